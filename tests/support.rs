//! What the suites share: turns on the machine, the fleet's Leases, Deployments and their pods.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{ControlPlane, Fleet, Metrics, Replica, Shards, panic::panic_in, until};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::MissedTickBehavior;

use crate::judge::{Judge, Verdict};

/// Between two checks of something awaited.
pub(crate) const POLL: Duration = Duration::from_millis(50);
/// For what has no bound of its own: far beyond what it takes on a machine busy with other tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// A kubelet compares its containers with what the runtime has once a second.
pub(crate) const KUBELET: Duration = Duration::from_secs(1);
/// A replica that is to panic has work within this.
const WORKS: Duration = Duration::from_secs(20);
/// What every reconcile of a key comes to, in a task on one of the threads that have the ranges.
const IN_A_TASK: &str = "Range$GT$8finished";
/// The fleet's name, unless a test says otherwise.
pub(crate) const FLEET: &str = "manifold";

/// Who measures time has the machine alone.
static MACHINE: RwLock<()> = RwLock::new(());

/// Waits until no other suite runs; none starts until the guard is dropped.
pub(crate) fn alone() -> RwLockWriteGuard<'static, ()> {
    // A suite that panicked has left nothing half-done here.
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until nobody wants the machine alone; other suites may run beside.
pub(crate) fn beside() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}

/// A variable of the environment as a number.
pub(crate) fn from_environment<T: std::str::FromStr>(name: &str, default: T) -> Result<T> {
    match std::env::var(name) {
        Ok(text) => match text.parse() {
            Ok(value) => Ok(value),
            Err(_) => anyhow::bail!("{name} is {text:?}: give a number"),
        },
        Err(_) => Ok(default),
    }
}

/// Range → owner's name (empty: nobody) and epoch.
pub(crate) type Owners = BTreeMap<u32, (String, u64)>;

/// The owners as the Leases say.
pub(crate) async fn owners(client: &Client) -> Result<Owners> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), harness::fleet::NAMESPACE);
    let of_fleet = ListParams::default().labels(&format!("manifold.dev/fleet={FLEET}"));
    let mut owners = Owners::new();
    for lease in leases.list(&of_fleet).await?.items {
        let name = lease.metadata.name.unwrap_or_default();
        let Some(range) = name.strip_prefix(&format!("{FLEET}-range-")) else {
            continue;
        };
        let range = range.parse().with_context(|| format!("the Lease {name}"))?;
        let spec = lease.spec.unwrap_or_default();
        let holder = spec.holder_identity.unwrap_or_default();
        let owner = holder.rsplit_once('_').map_or("", |(name, _)| name);
        let epoch = u64::try_from(spec.lease_transitions.unwrap_or(0))?;
        let before = owners.insert(range, (owner.to_owned(), epoch));
        ensure!(before.is_none(), "two Leases for the range {range}");
    }
    Ok(owners)
}

/// Ranges whose epoch is another than before; the epochs must have grown by just one.
pub(crate) fn moved(before: &Owners, after: &Owners) -> Result<Vec<u32>> {
    let mut moved = Vec::new();
    for (range, (owner, epoch)) in after {
        let (old_owner, old_epoch) = before.get(range).context("a new range")?;
        match epoch - old_epoch {
            0 => ensure!(
                owner == old_owner,
                "range {range}: an owner without an epoch"
            ),
            1 => moved.push(*range),
            more => anyhow::bail!("range {range}: moved {more} times"),
        }
    }
    Ok(moved)
}

/// How many ranges each has.
pub(crate) fn loads(owners: &Owners) -> BTreeMap<String, usize> {
    let mut loads = BTreeMap::new();
    for (owner, _) in owners.values() {
        *loads.entry(owner.clone()).or_default() += 1;
    }
    loads
}

/// Asks the owner of each of these ranges to hand it to another replica, whichever. How many were accepted,
/// and how many refused because the range had moved since the owners were read.
pub(crate) async fn ask_for_moves(
    owners: &Owners,
    replicas: &BTreeMap<String, Client>,
    ranges: impl IntoIterator<Item = u32>,
) -> Result<(usize, usize)> {
    let (mut accepted, mut refused) = (0, 0);
    for range in ranges {
        let Some((owner, _)) = owners.get(&range) else {
            continue;
        };
        let others: Vec<&String> = replicas.keys().filter(|name| *name != owner).collect();
        let (Some(at), false) = (replicas.get(owner), others.is_empty()) else {
            continue;
        };
        let to = others[rand::random::<u32>() as usize % others.len()];
        let path = format!("/debug/move?range={range}&to={to}");
        let request = http::Request::post(path).body(Vec::new())?;
        match at.request_text(request).await {
            Ok(_) => accepted += 1,
            Err(kube::Error::Api(status)) if status.code == 409 => refused += 1,
            Err(error) => return Err(error).context("asking for a move"),
        }
    }
    Ok((accepted, refused))
}

/// Ranges that move every second and replicas that are killed, one after the other, and come back at once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unrest {
    /// Ranges that move in each round.
    pub(crate) moved: usize,
    pub(crate) kill_every: Duration,
    /// Kills altogether.
    pub(crate) kills_max: usize,
}

/// Between two rounds of moves.
pub(crate) const ROUND: Duration = Duration::from_secs(1);
/// A replica that comes back answers within this.
const COMES_BACK: Duration = Duration::from_secs(5);

impl Unrest {
    /// Does something meanwhile; with what comes of it, how many moves were accepted and how many replicas
    /// killed.
    pub(crate) async fn during<T>(
        self,
        work: impl Future<Output = Result<T>>,
        fleet: &Fleet,
        replicas: &mut [Replica],
        client: &Client,
    ) -> Result<(T, usize, usize)> {
        let (moves, kills) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let done = tokio::select! {
            done = work => done?,
            failed = self.proceed(fleet, replicas, client, (&moves, &kills)) => match failed? {},
        };
        Ok((done, moves.into_inner(), kills.into_inner()))
    }

    async fn proceed(
        self,
        fleet: &Fleet,
        replicas: &mut [Replica],
        client: &Client,
        (moves, kills): (&AtomicUsize, &AtomicUsize),
    ) -> Result<Infallible> {
        let mut clients = BTreeMap::new();
        for replica in replicas.iter() {
            clients.insert(replica.name().to_owned(), replica.client()?);
        }
        let mut rounds = tokio::time::interval(ROUND);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut killed = Instant::now();
        loop {
            rounds.tick().await;
            let more = kills.load(Ordering::Relaxed) < self.kills_max;
            if more && killed.elapsed() >= self.kill_every {
                killed = Instant::now();
                let index = kills.fetch_add(1, Ordering::Relaxed) % replicas.len();
                let replica = &mut replicas[index];
                replica.kill();
                *replica = fleet.start(index)?;
                clients.insert(replica.name().to_owned(), replica.client()?);
            }
            let ranges = (0..self.moved).map(|_| rand::random::<u32>() % fleet.ranges());
            match ask_for_moves(&owners(client).await?, &clients, ranges).await {
                Ok((accepted, _)) => moves.fetch_add(accepted, Ordering::Relaxed),
                Err(_) if killed.elapsed() < COMES_BACK => 0,
                Err(error) => return Err(error),
            };
        }
    }
}

/// Examines the fleet from outside: the Leases, and what each replica says of itself.
pub(crate) struct Watcher {
    client: Client,
    ranges: u32,
    replicas: BTreeMap<String, Client>,
}

impl Watcher {
    pub(crate) fn new(client: Client, ranges: u32) -> Self {
        Self {
            client,
            ranges,
            replicas: BTreeMap::new(),
        }
    }

    pub(crate) fn add(&mut self, replica: &Replica) -> Result<()> {
        self.replicas
            .insert(replica.name().to_owned(), replica.client()?);
        Ok(())
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.replicas.remove(name);
    }

    /// An error unless each range has exactly one owner, loads differ by one at most, and every
    /// replica says what the Leases say.
    pub(crate) async fn read(&self) -> Result<Owners> {
        let before = owners(&self.client).await?;
        let mut said = BTreeMap::new();
        for (name, client) in &self.replicas {
            let shards = harness::fleet::shards(client).await;
            said.insert(
                name.clone(),
                shards.with_context(|| format!("{name}'s /debug/shards"))?,
            );
        }
        let after = owners(&self.client).await?;
        ensure!(before == after, "ranges are moving");
        self.judge(&after, &said)?;
        Ok(after)
    }

    /// What the owner of a key says of it.
    pub(crate) async fn explain(&self, controller: &str, key: &str) -> Result<Value> {
        for client in self.replicas.values() {
            let said = harness::fleet::explain(client, controller, key).await?;
            if said["owner"] == said["replica"] {
                return Ok(said);
            }
        }
        anyhow::bail!("no replica owns {key} of {controller}")
    }

    fn judge(&self, owners: &Owners, said: &BTreeMap<String, Shards>) -> Result<()> {
        let numbers: Vec<u32> = owners.keys().copied().collect();
        ensure!(
            numbers == (0..self.ranges).collect::<Vec<_>>(),
            "{} of {} ranges have a Lease",
            owners.len(),
            self.ranges
        );
        let loads = loads(owners);
        let members: BTreeSet<&String> = self.replicas.keys().collect();
        ensure!(
            loads.keys().collect::<BTreeSet<_>>() == members,
            "the Leases name {loads:?}, alive are {members:?}"
        );
        let (least, most) = (loads.values().min(), loads.values().max());
        ensure!(
            most.zip(least)
                .is_some_and(|(most, least)| most - least <= 1),
            "uneven: {loads:?}"
        );
        for (name, shards) in said {
            let view: Owners = shards
                .ranges
                .iter()
                .map(|range| {
                    let owner = range.owner.clone().unwrap_or_default();
                    (range.range, (owner, range.epoch))
                })
                .collect();
            let differing = owners
                .iter()
                .find(|(range, owner)| view.get(range) != Some(owner));
            if let Some((range, owner)) = differing {
                anyhow::bail!(
                    "{name} says {:?} of range {range}, its Lease {owner:?}",
                    view.get(range)
                );
            }
            ensure!(
                view.len() == owners.len(),
                "{name} knows {} ranges",
                view.len()
            );
            let owned: BTreeMap<u32, u64> = shards
                .owned
                .iter()
                .map(|owned| (owned.range, owned.epoch))
                .collect();
            let granted: BTreeMap<u32, u64> = owners
                .iter()
                .filter(|(_, (owner, _))| owner == name)
                .map(|(range, (_, epoch))| (*range, *epoch))
                .collect();
            ensure!(
                owned == granted,
                "{name} acts on {} ranges, its Leases are {}",
                owned.len(),
                granted.len()
            );
            ensure!(
                shards.owned.iter().all(|owned| owned.state == "active"),
                "{name} has frozen ranges"
            );
        }
        Ok(())
    }

    /// Waits for [`Self::read`]; gives the owners, and how long it took since `since`.
    pub(crate) async fn settled(
        &self,
        what: &str,
        since: Instant,
        limit: Duration,
    ) -> Result<(Owners, Duration)> {
        let left = limit.saturating_sub(since.elapsed());
        let owners = until(what, left, POLL, || async { self.read().await.map(Some) }).await?;
        Ok((owners, since.elapsed()))
    }
}

/// What a manager costs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cost {
    /// Processors used, of all processes.
    pub(crate) processors: f64,
    /// The largest process, in MiB.
    pub(crate) memory: f64,
}

/// The metrics of each replica.
pub(crate) async fn metrics_of(replicas: &[Replica]) -> Result<Vec<Metrics>> {
    let mut all = Vec::new();
    for replica in replicas {
        all.push(replica.metrics().await?);
    }
    Ok(all)
}

fn used(all: &[Metrics]) -> Result<f64> {
    all.iter()
        .map(|one| one.sum("process_cpu_seconds_total", &[]))
        .sum::<Option<f64>>()
        .context("no process_cpu_seconds_total")
}

/// What a manager costs while something is done.
pub(crate) async fn cost<R>(
    metrics: &impl Fn() -> R,
    meanwhile: impl Future<Output = Result<()>>,
) -> Result<Cost>
where
    R: Future<Output = Result<Vec<Metrics>>>,
{
    let before = used(&metrics().await?)?;
    let began = Instant::now();
    meanwhile.await?;
    let took = began.elapsed().as_secs_f64();
    let after = metrics().await?;
    let memory = after
        .iter()
        .filter_map(|one| one.sum("process_resident_memory_bytes", &[]))
        .fold(0.0, f64::max);
    Ok(Cost {
        processors: (used(&after)? - before) / took,
        memory: memory / f64::from(1 << 20),
    })
}

/// A Deployment of one small container.
pub(crate) fn deployment(name: &str, replicas: u32) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "app", "image": "example/app:1"}]},
            },
        },
    })
}

/// Makes a Deployment.
pub(crate) async fn create(api: &Api<Deployment>, deployment: Value) -> Result<Deployment> {
    let object = serde_json::from_value(deployment)?;
    Ok(api.create(&PostParams::default(), &object).await?)
}

/// Waits until a Deployment has this many ready pods, all of its newest template and none beside.
pub(crate) async fn complete(api: &Api<Deployment>, name: &str, replicas: i32) -> Result<()> {
    let what = format!("{replicas} pods of {name} are ready");
    until(&what, PATIENCE, POLL, || async {
        let deployment = api.get(name).await?;
        let status = deployment.status.unwrap_or_default();
        let counts = [
            status.replicas,
            status.updated_replicas,
            status.ready_replicas,
            status.available_replicas,
        ]
        .map(Option::unwrap_or_default);
        let seen = status.observed_generation == deployment.metadata.generation;
        ensure!(
            seen && counts == [replicas; 4],
            "replicas, updated, ready, available are {counts:?}"
        );
        Ok(Some(()))
    })
    .await
}

/// The end of one replica's log, for an error.
pub(crate) fn log_of(replica: &Replica) -> String {
    std::fs::read_to_string(replica.log()).unwrap_or_default()
}

/// One thread of a replica panics when it next has finished a key; gives the moment.
pub(crate) async fn panic_at_work(replica: &Replica) -> Result<Instant> {
    let (id, program) = (replica.id(), replica.program().to_owned());
    tokio::task::spawn_blocking(move || panic_in(id, &program, IN_A_TASK, WORKS)).await?
}

/// A control plane whose audit log the judge can read.
pub(crate) async fn judged() -> Result<ControlPlane> {
    ControlPlane::builder()
        .audit_policy(crate::judge::AUDIT_POLICY)
        .start()
        .await
}

/// A fleet whose controllers act as their own service accounts, as kubeadm has it: the manager's user
/// may do no more than upstream's role and `deploy/rbac` say.
pub(crate) async fn fleet(control_plane: &ControlPlane) -> Result<Fleet> {
    fleet_of(control_plane, &[]).await
}

/// As [`fleet`], with more arguments.
pub(crate) async fn fleet_of(control_plane: &ControlPlane, args: &[&str]) -> Result<Fleet> {
    let mut builder = control_plane
        .fleet()
        .arg("--use-service-account-credentials=true");
    for arg in args {
        builder = builder.arg(*arg);
    }
    builder.build().await
}

/// Asks all to end at once; each must end well.
pub(crate) async fn all_end_well(replicas: &mut [Replica]) -> Result<()> {
    for replica in replicas.iter_mut() {
        replica.ask_to_end()?;
    }
    for replica in replicas {
        ended_well(replica).await?;
    }
    Ok(())
}

/// Waits for the end of a replica that was asked to end; it must have ended well.
pub(crate) async fn ended_well(replica: &mut Replica) -> Result<()> {
    let what = format!("{} ends", replica.name());
    let log = log_of(replica);
    let replica = std::sync::Mutex::new(replica);
    let status = until(&what, PATIENCE, POLL / 5, || async {
        let mut replica = replica.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(replica.exited())
    })
    .await?;
    ensure!(status.success(), "{status}; its log:\n{log}");
    Ok(())
}

/// Reads the whole audit log; an error if any promise is broken.
pub(crate) fn judge(control_plane: &ControlPlane, suite: &str) -> Result<Verdict> {
    let mut judge = Judge::default();
    control_plane.audit().read(|record| judge.read(&record))?;
    let verdict = judge.verdict();
    println!("{suite}: {}", verdict.summary());
    ensure!(
        verdict.complaints.is_empty(),
        "{}",
        verdict.complaints.join("\n")
    );
    ensure!(
        verdict.forbidden.is_empty(),
        "forbidden: {:?}",
        verdict.forbidden
    );
    Ok(verdict)
}
