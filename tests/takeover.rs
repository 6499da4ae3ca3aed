//! How long keys wait for a new owner after a replica's end, by the audit log: from the end to the first
//! write of the next owner of each of its ranges.
//!
//! A replica is killed and nobody knows it; is killed, and a kubelet says so; is killed, and a witness runs
//! beside it; is killed and started again in place, where a lock proves that; panics; is asked to end twice
//! and ends at once. The kubelet's word is written by the test, as a kubelet would, a while after the end.
//! Each time all Deployments grow by one pod, so that the ranges have work.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use harness::{AuditRecord, ControlPlane, Fleet, Replica, run_test, until};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use crate::support::{
    FLEET, KUBELET, Owners, PATIENCE, POLL, Watcher, alone, complete, create, deployment,
    ended_well, judge, judged, log_of, owners, panic_at_work,
};

const REPLICAS: usize = 3;
const RANGES: u32 = 256;
/// Each is a key, and so are its ReplicaSets: a third of them is in a replica's ranges.
const DEPLOYMENTS: usize = 24;
/// What a process has sent may be executed for so long after its end: the defaults' lease duration less the
/// renew deadline.
const LATE_WRITES: Duration = Duration::from_secs(2);
/// The default.
const LEASE: Duration = Duration::from_secs(5);
/// Beyond what the protocol waits for: the eviction, the claims, a scan for the keys, their verification.
const TAKING: Duration = Duration::from_millis(800);
/// In one run of each kind, a single range decides, and other tests compute on the same processors.
const SLACK: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    /// SIGKILL, and nothing else is known.
    Silence,
    /// SIGKILL, and [`KUBELET`] later the pod's status says that the container has ended.
    KubeletsWord,
    /// SIGKILL beside a witness.
    Witnessed,
    /// SIGKILL, and it is started again at once.
    Restart,
    /// A panic outside of a plan.
    Panic,
    /// Asked to end, and again while it hands over.
    Fatal,
}

impl End {
    const ALL: [Self; 6] = [
        Self::Panic,
        Self::Fatal,
        Self::KubeletsWord,
        Self::Witnessed,
        Self::Restart,
        Self::Silence,
    ];

    /// Within this the next owner writes.
    fn promise(self) -> Duration {
        match self {
            Self::Panic | Self::Fatal => Duration::from_secs(1),
            // Nothing of it is in flight.
            Self::Witnessed => TAKING,
            Self::KubeletsWord => KUBELET + LATE_WRITES + TAKING,
            // Nothing of it is in flight; an unoptimised program has to be there first.
            Self::Restart => TAKING + TAKING,
            Self::Silence => LEASE + TAKING,
        }
    }
}

/// What ended when, and what it owned.
struct Ended {
    how: End,
    at: Timestamp,
    until: Timestamp,
    /// The epoch of each of its ranges.
    epochs: BTreeMap<u32, u64>,
}

struct Scene {
    control_plane: ControlPlane,
    client: Client,
    fleet: Fleet,
    replicas: Vec<Replica>,
    watcher: Watcher,
    namespace: String,
    deployments: Api<Deployment>,
    names: Vec<String>,
    pods: i32,
}

fn name(index: usize) -> String {
    format!("manifold-{index}")
}

impl Scene {
    async fn new() -> Result<Self> {
        let control_plane = judged().await?;
        let client = control_plane.client().await?;
        let fleet = control_plane
            .fleet()
            .arg("--use-service-account-credentials=true")
            .locks()
            .build()
            .await?;
        let namespace = control_plane.namespace("takeover").await?;
        let mut scene = Self {
            deployments: Api::namespaced(client.clone(), &namespace),
            namespace,
            watcher: Watcher::new(client.clone(), RANGES),
            names: (0..DEPLOYMENTS)
                .map(|index| format!("web-{index}"))
                .collect(),
            control_plane,
            client,
            fleet,
            replicas: Vec::new(),
            pods: 1,
        };
        for index in 0..REPLICAS {
            let replica = scene.start(index)?;
            scene.replicas.push(replica);
        }
        for index in 0..REPLICAS {
            scene.is_back(index).await?;
        }
        for name in &scene.names {
            create(&scene.deployments, deployment(name, 1)).await?;
        }
        scene.complete().await?;
        for index in 0..REPLICAS {
            scene.make_pod(index).await?;
        }
        Ok(scene)
    }

    fn start(&self, index: usize) -> Result<Replica> {
        let pod = format!("--replica-pod={}/{}", self.namespace, name(index));
        self.fleet.start_named(&name(index), &[&pod])
    }

    async fn is_back(&mut self, index: usize) -> Result<()> {
        let replica = &mut self.replicas[index];
        replica.wait_ready(harness::fleet::READY_LIMIT).await?;
        self.watcher.add(replica)
    }

    async fn complete(&self) -> Result<()> {
        for name in &self.names {
            complete(&self.deployments, name, self.pods).await?;
        }
        Ok(())
    }

    /// All at once.
    async fn grow(&mut self) -> Result<()> {
        self.pods += 1;
        let patch = Patch::Merge(json!({"spec": {"replicas": self.pods}}));
        let params = PatchParams::default();
        let grown = self
            .names
            .iter()
            .map(|name| self.deployments.patch(name, &params, &patch));
        try_join_all(grown).await?;
        Ok(())
    }

    /// The pod that a replica says it runs in. No kubelet has it.
    async fn make_pod(&self, index: usize) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let pod = serde_json::from_value(json!({
            "metadata": {"name": name(index)},
            "spec": {
                "schedulerName": "nobody",
                "automountServiceAccountToken": false,
                "containers": [{"name": "manifold", "image": "example/manifold:1"}],
            },
        }))?;
        // The namespace's account may be still to be made.
        until("the replica's pod is made", PATIENCE, POLL, || async {
            Ok(pods.create(&PostParams::default(), &pod).await.map(Some)?)
        })
        .await?;
        Ok(())
    }

    /// As a kubelet writes it once the runtime says that the container has exited.
    async fn say_ended(&self, index: usize, process: &str) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let patch = Patch::Merge(
            json!({"status": {"phase": "Running", "containerStatuses": [{
                "name": "manifold", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "containerID": "containerd://0123",
                "state": {"terminated": {
                    "exitCode": 137, "reason": "Error", "containerID": "containerd://0123",
                    "message": format!("manifold.dev/incarnation={process}\n"),
                }},
            }]}}),
        );
        pods.patch_status(&name(index), &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    async fn process_of(&self, index: usize) -> Result<String> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), harness::fleet::NAMESPACE);
        let lease = leases
            .get(&format!("{FLEET}-replica-{}", name(index)))
            .await?;
        let holder = lease.spec.and_then(|spec| spec.holder_identity);
        let holder = holder.context("a replica Lease without its holder")?;
        let (_, incarnation) = holder.rsplit_once('_').context("no incarnation")?;
        Ok(incarnation.to_owned())
    }

    /// A replica ends, and all is served.
    async fn end(&mut self, index: usize, how: End) -> Result<Ended> {
        let since = Instant::now();
        let (before, _) = self
            .watcher
            .settled("the fleet is at rest", since, PATIENCE)
            .await?;
        let process = self.process_of(index).await?;
        let _witness = match how {
            End::Witnessed => Some(self.fleet.start_witness(&name(index)).await?),
            _ => None,
        };
        self.watcher.remove(&name(index));
        let at = match how {
            End::Silence | End::KubeletsWord | End::Witnessed | End::Restart => {
                let at = Timestamp::now();
                self.replicas[index].kill();
                at
            }
            End::Fatal => {
                let at = Timestamp::now();
                self.replicas[index].ask_to_end()?;
                self.replicas[index].interrupt()?;
                at
            }
            End::Panic => self.panic(index).await?,
        };
        if how == End::Restart {
            self.replicas[index] = self.start(index)?;
        }
        self.grow().await?;
        if how == End::KubeletsWord {
            let said = at + SignedDuration::try_from(KUBELET)?;
            let left = said.duration_since(Timestamp::now()).unsigned_abs();
            tokio::time::sleep(left).await;
            self.say_ended(index, &process).await?;
        }
        self.complete().await?;
        let until = Timestamp::now();
        match how {
            End::Fatal => ended_well(&mut self.replicas[index]).await?,
            End::Panic => self.has_panicked(index).await?,
            End::Silence | End::KubeletsWord | End::Witnessed | End::Restart => {}
        }
        if how != End::Restart {
            self.replicas[index] = self.start(index)?;
        }
        self.is_back(index).await?;
        Ok(Ended {
            how,
            at,
            until,
            epochs: owned(&before, &name(index)),
        })
    }

    /// Keeps the keys at work until one thread of a replica panics.
    async fn panic(&self, index: usize) -> Result<Timestamp> {
        let nudges = async {
            for number in 0.. {
                let patch = json!({"metadata": {"annotations": {"nudge": number.to_string()}}});
                for name in &self.names {
                    let params = PatchParams::default();
                    self.deployments
                        .patch(name, &params, &Patch::Merge(&patch))
                        .await?;
                }
            }
            anyhow::Ok(())
        };
        let at = tokio::select! {
            panicked = panic_at_work(&self.replicas[index]) => panicked?,
            nudged = nudges => {
                nudged?;
                anyhow::bail!("it works no more")
            }
        };
        Ok(Timestamp::now() - SignedDuration::try_from(at.elapsed())?)
    }

    async fn has_panicked(&mut self, index: usize) -> Result<()> {
        let replica = std::sync::Mutex::new(&mut self.replicas[index]);
        let status = until("it has aborted", PATIENCE, POLL, || async {
            let mut replica = replica
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner());
            Ok(replica.exited())
        })
        .await?;
        let log = log_of(&self.replicas[index]);
        ensure!(
            !status.success() && log.contains("panicked at") && log.contains("backtrace"),
            "{status}; its log:\n{log}"
        );
        Ok(())
    }
}

fn owned(all: &Owners, by: &str) -> BTreeMap<u32, u64> {
    let owned = all.iter().filter(|(_, (owner, _))| owner == by);
    owned.map(|(range, (_, epoch))| (*range, *epoch)).collect()
}

/// From each end to the first write in each range by its next owner.
fn waits(ends: &[Ended], records: &[AuditRecord]) -> BTreeMap<End, Vec<Duration>> {
    let mut waits = BTreeMap::<End, Vec<Duration>>::new();
    for end in ends {
        let mut first = BTreeMap::<u32, Timestamp>::new();
        for record in records {
            let arrived = record.request_received_timestamp;
            let Some(agent) = record.agent() else {
                continue;
            };
            let (Some(range), Some(epoch)) = (agent.range, agent.epoch) else {
                continue;
            };
            let after = end.epochs.get(&range).is_some_and(|before| epoch > *before);
            if after && arrived >= end.at && arrived <= end.until {
                let first = first.entry(range).or_insert(arrived);
                *first = arrived.min(*first);
            }
        }
        let times = first
            .into_values()
            .map(|at| at.duration_since(end.at).unsigned_abs());
        waits.entry(end.how).or_default().extend(times);
    }
    waits
}

fn quantile(sorted: &[Duration], share: f64) -> Duration {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss
    )]
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted[rank.saturating_sub(1).min(sorted.len() - 1)]
}

/// One end of each kind in a fleet of its own: keys that were in flight at several ends are quarantined.
async fn ends_of_each_kind(first: usize) -> Result<BTreeMap<End, Vec<Duration>>> {
    let mut scene = Scene::new().await?;
    let mut ends = Vec::new();
    for (place, how) in End::ALL.into_iter().enumerate() {
        let index = (first + place) % REPLICAS;
        let ended = scene.end(index, how).await;
        ends.push(ended.with_context(|| format!("{how:?} of {}", name(index)))?);
    }
    let mut records = Vec::new();
    scene.control_plane.audit().read(|record| {
        if record.stage == "ResponseComplete" && record.is_write() {
            records.push(record);
        }
    })?;
    let verdict = judge(&scene.control_plane, "takeover")?;
    ensure!(verdict.changes > 0 && verdict.only_grown == DEPLOYMENTS);
    let left = owners(&scene.client).await?;
    ensure!(left.len() == RANGES as usize);
    Ok(waits(&ends, &records))
}

/// With each promise longer by `slack`.
async fn takeovers(rounds: usize, slack: Duration) -> Result<()> {
    let mut waits = BTreeMap::<End, Vec<Duration>>::new();
    for round in 0..rounds {
        for (how, times) in ends_of_each_kind(round).await? {
            waits.entry(how).or_default().extend(times);
        }
    }
    waits.values_mut().for_each(|times| times.sort_unstable());
    for how in End::ALL {
        let times = waits.get(&how).filter(|times| !times.is_empty());
        let times = times.with_context(|| format!("{how:?}: no range had work"))?;
        println!(
            "takeover: {how:?}: {rounds} ends, {} ranges with work, first write of the next owner p50 {:.2} s, p99 {:.2} s, \
             longest {:.2} s (promised: {:.1} s)",
            times.len(),
            quantile(times, 0.5).as_secs_f64(),
            quantile(times, 0.99).as_secs_f64(),
            times[times.len() - 1].as_secs_f64(),
            how.promise().as_secs_f64(),
        );
    }
    for (how, times) in &waits {
        let longest = quantile(times, 0.99);
        ensure!(longest <= how.promise() + slack, "{how:?}: {longest:.2?}");
    }
    Ok(())
}

#[test]
fn whatever_ends_a_replica_its_keys_are_served_as_soon_as_that_is_certain() {
    let _alone = alone();
    run_test(takeovers(1, SLACK));
}

#[test]
#[ignore = "minutes: cargo parity"]
fn many_ends_of_each_kind_are_within_what_is_promised() {
    let _alone = alone();
    run_test(takeovers(12, Duration::ZERO));
}
