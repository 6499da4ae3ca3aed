//! What happens in the demo, in order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::future::join_all;
use harness::audit::Proof;
use harness::fleet::{Fleet, Replica, shards};
use harness::observe::{Change, Ledger, Owners, Probes, follow};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use tokio::task::JoinSet;

use crate::cluster::{Cluster, FLEET, FLEET_LABEL, FLEET_NAMESPACE};
use crate::summary::{Event, Summary, TAKEOVER_LIMIT};
use crate::view::{Figures, Pods, Row, State, View};
use crate::workload::Workload;

/// Between two checks of everything.
const TICK: Duration = Duration::from_millis(250);
/// A replica that answers no sooner shows no figures in this picture.
const ANSWER_LIMIT: Duration = Duration::from_millis(400);
/// Between two probes touched: 50 a second, each probe every 1.3 s, few enough to be no load.
const TOUCH_EVERY: Duration = Duration::from_millis(20);
/// A touch is given up by then, and tried again with the next probe.
const TOUCH_LIMIT: Duration = Duration::from_secs(10);
/// Time without any event, for comparison.
const CALM: Duration = Duration::from_secs(5);
/// After an event is over, probes touched at its end are still waited for.
const AFTERMATH: Duration = Duration::from_secs(2);
/// With no event going on, no probe should wait for longer.
const CALM_WAIT: Duration = Duration::from_secs(1);
/// For each thing awaited.
const LIMIT: Duration = Duration::from_secs(120);
/// For all pods of the workload: 100 a second are slow, and this is for 12,000.
const PODS_LIMIT: Duration = Duration::from_secs(120);
const POD_MILLISECONDS: u64 = 50;

struct Slot {
    replica: Replica,
    client: Client,
    row: Row,
    /// Reconciles counted at a moment, from which the rate follows.
    counted: Option<(Instant, u64)>,
    /// Writes as last reported.
    writes: u64,
}

/// The demo in progress.
pub(crate) struct Scenario {
    slots: Vec<Slot>,
    fleet: Fleet,
    client: Client,
    workload: Workload,
    view: View,
    phase: String,
    ledger: Arc<Mutex<Ledger>>,
    probes: Arc<Mutex<Probes>>,
    owners: Arc<Mutex<Owners>>,
    events: Vec<Event>,
    /// Ends with the scenario: what follows the cluster, and what touches the probes.
    tasks: JoinSet<()>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Scenario {
    pub(crate) fn new(client: &Client, fleet: Fleet, workload: Workload) -> Self {
        Self {
            slots: Vec::new(),
            fleet,
            client: client.clone(),
            probes: Arc::new(Mutex::new(Probes::new(workload.probes))),
            workload,
            view: View::new(),
            phase: String::new(),
            ledger: Arc::default(),
            owners: Arc::default(),
            events: Vec::new(),
            tasks: JoinSet::new(),
        }
    }

    /// Everything, from the first replica to the summary.
    pub(crate) async fn play(&mut self, cluster: &mut Cluster, replicas: usize) -> Result<Summary> {
        self.start_fleet(cluster, replicas).await?;
        self.apply_workload(cluster).await?;
        self.stay_calm(cluster).await?;
        self.scale_out(cluster).await?;
        self.roll_out(cluster).await?;
        self.lose_a_node(cluster).await?;
        self.kill_one(cluster).await?;
        self.stop_one(cluster).await?;
        self.await_pods(cluster).await?;
        self.summarise(cluster)
    }

    /// The picture goes; what was said stays.
    pub(crate) fn end_view(&mut self) {
        self.view.end();
    }

    /// Where the replicas that still run serve.
    pub(crate) fn urls(&self) -> Vec<(String, String)> {
        self.slots
            .iter()
            .filter(|slot| slot.row.state == State::Ready)
            .map(|slot| (slot.row.name.clone(), slot.replica.url()))
            .collect()
    }

    async fn start_fleet(&mut self, cluster: &mut Cluster, replicas: usize) -> Result<()> {
        self.follow_owners();
        self.begin(format!("starting {replicas} replicas"));
        for index in 0..replicas {
            self.start_replica(index)?;
        }
        self.await_spread(cluster).await?;
        let ranges = self.fleet.ranges();
        self.view
            .say(&format!("{replicas} replicas share {ranges} ranges"));
        Ok(())
    }

    async fn apply_workload(&mut self, cluster: &mut Cluster) -> Result<()> {
        let Workload {
            deployments, pods, ..
        } = self.workload;
        self.begin(format!("applying {deployments} Deployments × {pods} pods"));
        self.workload.create_namespaces(&self.client).await?;
        self.follow_pods();
        self.workload.create_probes(&self.client).await?;
        self.touch_probes();
        self.workload.create_deployments(&self.client).await?;
        self.await_pods(cluster).await?;
        self.await_calm(cluster).await?;
        self.view
            .say(&format!("{} pods are ready", self.workload.wanted()));
        Ok(())
    }

    /// The measure without any event.
    async fn stay_calm(&mut self, cluster: &mut Cluster) -> Result<()> {
        let before = self.before("nothing happens");
        self.run_for(cluster, CALM).await?;
        self.record(before, CALM, None);
        Ok(())
    }

    async fn scale_out(&mut self, cluster: &mut Cluster) -> Result<()> {
        let index = self.slots.len();
        let before = self.before(&format!("scale out to {} replicas", index + 1));
        self.start_replica(index)?;
        self.await_spread(cluster).await?;
        self.settle(cluster, before, None).await
    }

    async fn roll_out(&mut self, cluster: &mut Cluster) -> Result<()> {
        let (namespace, name) = (self.workload.namespace(0), Workload::name(0));
        let before = self.before(&format!("roll out {namespace}/{name}"));
        let generation = self.workload.roll_out(&self.client, 0).await?;
        let deadline = Instant::now() + LIMIT;
        while !self
            .workload
            .is_rolled_out(&self.client, 0, generation)
            .await?
        {
            if Instant::now() > deadline {
                bail!("the rollout of {namespace}/{name} is not complete after {LIMIT:?}");
            }
            self.tick(cluster).await?;
        }
        self.await_pods(cluster).await?;
        self.settle(cluster, before, None).await
    }

    /// The pods of a node whose kubelet ends run on others, and it comes back without them.
    async fn lose_a_node(&mut self, cluster: &mut Cluster) -> Result<()> {
        if let Cluster::Existing { .. } = cluster {
            return Ok(());
        }
        let (node, pods) = self.workload.busiest_node(&self.client).await?;
        let before = self.before(&format!("{node} dies with {pods} pods"));
        let died = before.1;
        cluster.set_kubelet(&self.client, &node, false).await?;
        let evicted = lock(&self.ledger).evicted() + pods;
        self.until(cluster, "its pods running on other nodes", LIMIT, |this| {
            let Pods { wanted, ready, .. } = this.pods();
            lock(&this.ledger).evicted() >= evicted && ready == wanted
        })
        .await?;
        self.view.say(&format!(
            "its {pods} pods run on other nodes after {:.1} s; it comes back",
            died.elapsed().as_secs_f64()
        ));
        cluster.set_kubelet(&self.client, &node, true).await?;
        self.await_pods(cluster).await?;
        self.settle(cluster, before, None).await
    }

    async fn kill_one(&mut self, cluster: &mut Cluster) -> Result<()> {
        let slot = self.running().first().copied().context("no replica runs")?;
        let before = self.before(&format!("SIGKILL {}", self.slots[slot].row.name));
        self.slots[slot].row.state = State::Killed;
        self.slots[slot].row.figures = None;
        self.slots[slot].replica.kill();
        self.await_spread(cluster).await?;
        self.settle(cluster, before, Some(TAKEOVER_LIMIT)).await
    }

    async fn stop_one(&mut self, cluster: &mut Cluster) -> Result<()> {
        let slot = self.running().first().copied().context("no replica runs")?;
        let before = self.before(&format!("SIGTERM {}", self.slots[slot].row.name));
        self.slots[slot].row.state = State::Stopping;
        self.slots[slot].replica.ask_to_end()?;
        let deadline = Instant::now() + LIMIT;
        let status = loop {
            if let Some(status) = self.slots[slot].replica.exited() {
                break status;
            }
            if Instant::now() > deadline {
                bail!(
                    "{} still runs {LIMIT:?} after SIGTERM",
                    self.slots[slot].row.name
                );
            }
            self.tick(cluster).await?;
        };
        self.slots[slot].row.state = State::Stopped;
        self.slots[slot].row.figures = None;
        if !status.success() {
            bail!(
                "{} did not end in order: {status}",
                self.slots[slot].row.name
            );
        }
        self.await_spread(cluster).await?;
        self.settle(cluster, before, None).await
    }

    fn summarise(&mut self, cluster: &Cluster) -> Result<Summary> {
        // One lock at a time: a guard in a struct's expression lives until the whole is built.
        let (ever_created, beyond_wanted) = {
            let ledger = lock(&self.ledger);
            (ledger.ever_created(), ledger.beyond_wanted())
        };
        let served = lock(&self.probes).ever_served();
        let mut summary = Summary {
            pods: self.pods(),
            ever_created,
            beyond_wanted,
            events: std::mem::take(&mut self.events),
            probes: (self.workload.probes, served),
            ..Summary::default()
        };
        match cluster.audit() {
            Some(mut audit) => {
                let ours: BTreeSet<String> = (0..self.workload.deployments)
                    .map(|index| self.workload.namespace(index))
                    .collect();
                let mut writes: BTreeMap<String, u64> = BTreeMap::new();
                let mut granted = 0;
                let mut proof = Proof::default();
                audit.read(|record| {
                    proof.read(&record);
                    let object = record.object();
                    if record.stage != "ResponseComplete"
                        || !record.is_write()
                        || object.resource == "leases"
                    {
                        return;
                    }
                    if let Some(agent) = record.agent() {
                        *writes.entry(agent.replica).or_default() += 1;
                    }
                    let creates_pod = record.verb == "create" && record.resource() == "pods";
                    if creates_pod && record.code() == Some(201) && ours.contains(&object.namespace)
                    {
                        granted += 1;
                    }
                })?;
                summary.writes = writes;
                summary.granted = Some(granted);
                summary.breaches = proof.complaints();
                summary.writes_from = "from the audit log";
            }
            None => {
                summary.writes = self
                    .slots
                    .iter()
                    .map(|slot| (slot.row.name.clone(), slot.writes))
                    .collect();
                summary.writes_from =
                    "as each replica last reported; the audit log of this cluster cannot be read";
            }
        }
        Ok(summary)
    }

    fn begin(&mut self, phase: String) {
        self.view.say(&phase);
        self.phase = phase;
    }

    fn before(&mut self, event: &str) -> (String, Instant, Owners) {
        self.begin(event.to_owned());
        (event.to_owned(), Instant::now(), lock(&self.owners).clone())
    }

    /// Waits until no key waits any longer than usual, and writes the event down.
    async fn settle(
        &mut self,
        cluster: &mut Cluster,
        before: (String, Instant, Owners),
        limit: Option<Duration>,
    ) -> Result<()> {
        self.await_calm(cluster).await?;
        let settled = before.1.elapsed();
        self.run_for(cluster, AFTERMATH).await?;
        self.record(before, settled, limit);
        Ok(())
    }

    fn record(
        &mut self,
        before: (String, Instant, Owners),
        settled: Duration,
        limit: Option<Duration>,
    ) {
        let (name, since, owners) = before;
        let moved = lock(&self.owners).moved_since(&owners);
        let longest = lock(&self.probes).longest_since(since, Instant::now());
        let event = Event {
            moved,
            longest,
            name,
            settled,
            limit,
        };
        self.view.say(&format!(
            "{}: {} ranges moved, settled after {:.1} s, longest a key waited {:.2} s",
            event.name,
            event.moved,
            event.settled.as_secs_f64(),
            event.longest.as_secs_f64()
        ));
        self.events.push(event);
    }

    fn start_replica(&mut self, index: usize) -> Result<()> {
        let replica = self.fleet.start(index)?;
        self.slots.push(Slot {
            client: replica.client()?,
            row: Row {
                name: replica.name().to_owned(),
                state: State::Starting,
                figures: None,
            },
            replica,
            counted: None,
            writes: 0,
        });
        Ok(())
    }

    /// Slots whose replica must serve.
    fn running(&self) -> Vec<usize> {
        let serves = |slot: &Slot| matches!(slot.row.state, State::Starting | State::Ready);
        (0..self.slots.len())
            .filter(|index| serves(&self.slots[*index]))
            .collect()
    }

    fn pods(&self) -> Pods {
        let ledger = lock(&self.ledger);
        Pods {
            wanted: self.workload.wanted(),
            created: ledger.present(),
            ready: ledger.ready(),
        }
    }

    /// Examines everything once, shows it, and fails if something has died that should run.
    async fn tick(&mut self, cluster: &mut Cluster) -> Result<()> {
        let next = Instant::now() + TICK;
        cluster.check()?;
        for index in self.running() {
            self.slots[index].replica.check()?;
        }
        join_all(self.slots.iter_mut().map(Slot::read)).await;
        let pods = self.pods();
        let rows: Vec<Row> = self.slots.iter().map(|slot| slot.row.clone()).collect();
        self.view.show(&self.phase, &rows, pods);
        tokio::time::sleep(next.saturating_duration_since(Instant::now())).await;
        Ok(())
    }

    async fn run_for(&mut self, cluster: &mut Cluster, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.tick(cluster).await?;
        }
        Ok(())
    }

    async fn until(
        &mut self,
        cluster: &mut Cluster,
        what: &str,
        limit: Duration,
        holds: impl Fn(&Self) -> bool,
    ) -> Result<()> {
        let deadline = Instant::now() + limit;
        while !holds(self) {
            if Instant::now() > deadline {
                bail!("{}: {what} is not so after {limit:?}", self.phase);
            }
            self.tick(cluster).await?;
        }
        Ok(())
    }

    /// Every range has one of the running replicas as its owner, evenly.
    async fn await_spread(&mut self, cluster: &mut Cluster) -> Result<()> {
        self.until(
            cluster,
            "an even spread of all ranges over the running replicas",
            LIMIT,
            |this| {
                let members = this
                    .running()
                    .iter()
                    .map(|index| this.slots[*index].row.name.clone())
                    .collect();
                lock(&this.owners).are_spread_over(this.fleet.ranges(), &members)
            },
        )
        .await
    }

    async fn await_pods(&mut self, cluster: &mut Cluster) -> Result<()> {
        let limit =
            PODS_LIMIT + Duration::from_millis(self.workload.wanted() as u64 * POD_MILLISECONDS);
        self.until(
            cluster,
            "as many pods ready as wanted, and no more of them",
            limit,
            |this| {
                let Pods {
                    wanted,
                    created,
                    ready,
                } = this.pods();
                ready == wanted && created == wanted
            },
        )
        .await
    }

    /// Every probe has been served, and none waits for longer than usual.
    async fn await_calm(&mut self, cluster: &mut Cluster) -> Result<()> {
        self.until(cluster, "every key being served", LIMIT, |this| {
            let probes = lock(&this.probes);
            probes.ever_served() == probes.len()
                && probes.longest_lasting(Instant::now()) < CALM_WAIT
        })
        .await
    }

    fn follow_owners(&mut self) {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), FLEET_NAMESPACE);
        let owners = Arc::clone(&self.owners);
        let labels = format!("{FLEET_LABEL}={FLEET}");
        self.tasks
            .spawn(follow(leases, labels, move |change| match change {
                Change::Seen(lease) => lock(&owners).lease(FLEET, &lease),
                Change::Gone(lease) => lock(&owners).lease_gone(FLEET, &lease),
                Change::Again => *lock(&owners) = Owners::default(),
            }));
    }

    fn follow_pods(&mut self) {
        let sets: Api<ReplicaSet> = Api::all(self.client.clone());
        let ledger = Arc::clone(&self.ledger);
        self.tasks.spawn(follow(
            sets,
            self.workload.selector(),
            move |change| match change {
                Change::Seen(set) | Change::Gone(set) => lock(&ledger).replica_set(&set),
                Change::Again => {}
            },
        ));
        let pods: Api<Pod> = Api::all(self.client.clone());
        let ledger = Arc::clone(&self.ledger);
        self.tasks.spawn(follow(
            pods,
            self.workload.selector(),
            move |change| match change {
                Change::Seen(pod) => lock(&ledger).pod(&pod),
                Change::Gone(pod) => lock(&ledger).pod_gone(&pod),
                Change::Again => lock(&ledger).pods_again(),
            },
        ));
        let deployments: Api<Deployment> =
            Api::namespaced(self.client.clone(), &self.workload.probe_namespace());
        let probes = Arc::clone(&self.probes);
        self.tasks.spawn(follow(
            deployments,
            self.workload.probe_selector(),
            move |change| {
                if let Change::Seen(probe) = change {
                    let index =
                        Workload::probe_index(probe.metadata.name.as_deref().unwrap_or_default());
                    let observed = probe.status.and_then(|status| status.observed_generation);
                    if let Some((index, observed)) = index.zip(observed) {
                        lock(&probes).observed(index, observed, Instant::now());
                    }
                }
            },
        ));
    }

    fn touch_probes(&mut self) {
        let api: Api<Deployment> =
            Api::namespaced(self.client.clone(), &self.workload.probe_namespace());
        let probes = Arc::clone(&self.probes);
        let mut odd = vec![false; self.workload.probes];
        self.tasks.spawn(async move {
            let mut every = tokio::time::interval(TOUCH_EVERY);
            every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            // At most one touch for each probe is on its way.
            let mut touches = JoinSet::new();
            loop {
                every.tick().await;
                while touches.try_join_next().is_some() {}
                let Some(index) = lock(&probes).touch(Instant::now()) else {
                    continue;
                };
                odd[index] = !odd[index];
                let (api, probes, odd) = (api.clone(), Arc::clone(&probes), odd[index]);
                touches.spawn(async move {
                    let touch = Workload::touch_probe(&api, index, odd);
                    match tokio::time::timeout(TOUCH_LIMIT, touch).await {
                        Ok(Ok(generation)) => lock(&probes).accepted(index, generation),
                        Ok(Err(_)) | Err(_) => lock(&probes).refused(index),
                    }
                });
            }
        });
    }
}

impl Slot {
    /// Asks the replica how it is.
    async fn read(&mut self) {
        if matches!(self.row.state, State::Killed | State::Stopped) {
            return;
        }
        let answer = tokio::time::timeout(ANSWER_LIMIT, shards(&self.client)).await;
        let Ok(Ok(shards)) = answer else {
            self.row.figures = None;
            return;
        };
        if self.row.state == State::Starting {
            let ready = shards
                .members
                .iter()
                .any(|member| member.name == self.row.name && member.ready);
            if ready {
                self.row.state = State::Ready;
            }
        }
        let now = Instant::now();
        let totals = shards.totals;
        let rate = self.counted.map_or(0.0, |(since, reconciles)| {
            let seconds = now.duration_since(since).as_secs_f64().max(f64::EPSILON);
            totals.reconciles.saturating_sub(reconciles) as f64 / seconds
        });
        self.counted = Some((now, totals.reconciles));
        self.writes = totals.writes;
        self.row.figures = Some(Figures {
            ranges: shards.owned.len(),
            keys: totals.keys,
            reconciles_per_second: rate,
            queued: totals.queued,
        });
    }
}
