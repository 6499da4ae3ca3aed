//! What is felt when a manager's process or machine goes: three replicas beside kube-controller-manager with
//! a standby, in one run and in turn.
//!
//! ReplicaSets without pods are changed all the time; a key waits from a change to the status that has seen
//! it (`observedGeneration`). Each end is followed for the same time on both sides.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::TryStreamExt as _;
use harness::{ControlPlane, Fleet, Kcm, Replica, run_test, until};
use k8s_openapi::api::apps::v1::ReplicaSet;
use kube::api::{Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::support::{PATIENCE, POLL, alone};

const REPLICAS: usize = 3;
const KEYS: usize = 100;
/// Each key is changed every two seconds.
const CHANGED_EVERY: Duration = Duration::from_millis(20);
/// Of changes before an end.
const BEFORE: Duration = Duration::from_secs(4);
/// After it: upstream's standby takes over after up to 18 seconds.
const FOLLOWED: Duration = Duration::from_secs(30);
/// Who waits for longer was hit.
const HIT: Duration = Duration::from_millis(500);
/// How long a process may take to leave.
const LEAVES: Duration = Duration::from_secs(40);
/// Enough for the changes: by default both may send 20 writes a second.
const RATE: [&str; 2] = ["--kube-api-qps=200", "--kube-api-burst=400"];

/// How an active process ends. A process that runs out of memory is killed by the kernel as by SIGKILL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// SIGTERM, as of a drained node.
    Asked,
    /// All processes, one after the other, as of an upgrade.
    Rolled,
    /// SIGKILL.
    Killed,
    /// Nothing of it moves any more, and its connections stay open: as of a machine without power.
    Lost,
}

impl End {
    const ALL: [Self; 4] = [Self::Asked, Self::Rolled, Self::Killed, Self::Lost];

    /// Within this all keys of a fleet that were hit are served.
    fn promise(self) -> Duration {
        match self {
            Self::Asked | Self::Rolled => Duration::from_secs(1),
            Self::Killed | Self::Lost => Duration::from_secs(7),
        }
    }
}

enum Manager {
    Upstream(Vec<Kcm>),
    Fleet(Box<Fleet>, Vec<Replica>),
}

impl Manager {
    async fn upstream(control_plane: &ControlPlane) -> Result<Self> {
        let first = control_plane.start_kcm(&RATE).await?;
        let second = control_plane.start_kcm(&RATE).await?;
        Ok(Self::Upstream(vec![first, second]))
    }

    async fn fleet(control_plane: &ControlPlane) -> Result<Self> {
        let mut fleet = control_plane.fleet();
        for flag in RATE {
            fleet = fleet.arg(flag);
        }
        let fleet = fleet.build().await?;
        let replicas = fleet.start_all(REPLICAS).await?;
        Ok(Self::Fleet(Box::new(fleet), replicas))
    }

    /// The process that works; of a fleet any.
    async fn active(&self) -> Result<usize> {
        let Self::Upstream(processes) = self else {
            return Ok(1);
        };
        until("one of two works", PATIENCE, POLL, || async {
            for (index, process) in processes.iter().enumerate() {
                let of = [("name", "kube-controller-manager")];
                let metrics = process.metrics().await?;
                if metrics.sum("leader_election_master_status", &of) == Some(1.0) {
                    return Ok(Some(index));
                }
            }
            Ok(None)
        })
        .await
    }

    async fn start_again(&mut self, control_plane: &ControlPlane, index: usize) -> Result<()> {
        match self {
            Self::Upstream(processes) => {
                processes[index].process().kill();
                processes[index] = control_plane.start_kcm(&RATE).await?;
            }
            Self::Fleet(fleet, replicas) => {
                replicas[index].kill();
                replicas[index] = fleet.start(index)?;
                replicas[index].wait_ready(PATIENCE).await?;
            }
        }
        Ok(())
    }

    async fn terminate(&mut self, index: usize) -> Result<()> {
        match self {
            Self::Upstream(processes) => processes[index].process().terminate(LEAVES).await,
            Self::Fleet(_, replicas) => replicas[index].terminate(LEAVES).await,
        }?;
        Ok(())
    }

    /// Does it, and gives which process has to be started again.
    async fn end(&mut self, control_plane: &ControlPlane, how: End) -> Result<Option<usize>> {
        if how == End::Rolled {
            let count = match self {
                Self::Upstream(processes) => processes.len(),
                Self::Fleet(_, replicas) => replicas.len(),
            };
            for index in 0..count {
                self.terminate(index).await?;
                self.start_again(control_plane, index).await?;
            }
            return Ok(None);
        }
        let index = self.active().await?;
        match (how, self) {
            (End::Rolled, _) => {}
            (End::Asked, Self::Upstream(processes)) => processes[index].process().ask_to_end()?,
            (End::Asked, Self::Fleet(_, replicas)) => replicas[index].ask_to_end()?,
            (End::Killed, Self::Upstream(processes)) => processes[index].process().kill(),
            (End::Killed, Self::Fleet(_, replicas)) => replicas[index].kill(),
            (End::Lost, Self::Upstream(processes)) => processes[index].process().pause()?,
            (End::Lost, Self::Fleet(_, replicas)) => replicas[index].pause()?,
        }
        Ok(Some(index))
    }
}

/// What a key waits for, and how long it waited at most.
#[derive(Clone, Copy, Debug, Default)]
struct Wait {
    /// The generation, and since when.
    open: Option<(i64, Instant)>,
    /// The newest generation that a status has seen.
    seen: i64,
    worst: Duration,
}

impl Wait {
    fn worst(&self) -> Duration {
        let open = self.open.map(|(_, since)| since.elapsed());
        self.worst.max(open.unwrap_or_default())
    }
}

type Waits = Arc<Mutex<BTreeMap<String, Wait>>>;

fn lock(waits: &Waits) -> MutexGuard<'_, BTreeMap<String, Wait>> {
    waits.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Changes one key after the other for as long as it is polled. A key that waits is not changed again.
async fn change_all(sets: &Api<ReplicaSet>, waits: &Waits) -> Result<()> {
    let mut every = tokio::time::interval(CHANGED_EVERY);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for round in 1.. {
        for index in 0..KEYS {
            every.tick().await;
            let name = format!("key-{index}");
            if lock(waits)
                .get(&name)
                .is_some_and(|wait| wait.open.is_some())
            {
                continue;
            }
            let patch = Patch::Merge(json!({"spec": {"minReadySeconds": round}}));
            let sent = Instant::now();
            let set = sets.patch(&name, &PatchParams::default(), &patch).await?;
            let generation = set.metadata.generation.context("no generation")?;
            let mut waits = lock(waits);
            let wait = waits.entry(name).or_default();
            if wait.seen < generation {
                wait.open = Some((generation, sent));
            } else {
                // The watch was faster than the answer.
                wait.worst = wait.worst.max(sent.elapsed());
            }
        }
    }
    Ok(())
}

fn observed(set: &ReplicaSet) -> i64 {
    let status = set.status.as_ref();
    status
        .and_then(|status| status.observed_generation)
        .unwrap_or(0)
}

async fn follow(sets: &Api<ReplicaSet>, waits: &Waits) -> Result<()> {
    loop {
        let changes = sets.watch(&WatchParams::default(), "0").await?;
        let mut changes = std::pin::pin!(changes);
        while let Some(change) = changes.try_next().await? {
            let (WatchEvent::Added(set) | WatchEvent::Modified(set)) = change else {
                continue;
            };
            let mut waits = lock(waits);
            let wait = waits.entry(set.name_any()).or_default();
            wait.seen = observed(&set).max(wait.seen);
            if let Some((generation, since)) = wait.open
                && generation <= wait.seen
            {
                wait.worst = wait.worst.max(since.elapsed());
                wait.open = None;
            }
        }
    }
}

/// How long each key waited at most, the longest last.
fn worst(waits: &Waits) -> Vec<Duration> {
    let mut all: Vec<Duration> = lock(waits).values().map(Wait::worst).collect();
    all.sort_unstable();
    all
}

fn at(sorted: &[Duration], percent: usize) -> Duration {
    let index = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(index).copied().unwrap_or_default()
}

/// For each end how long keys waited at most, sorted.
async fn ends(
    who: &str,
    control_plane: &ControlPlane,
    mut manager: Manager,
) -> Result<Vec<(End, Vec<Duration>)>> {
    let client = control_plane.client().await?;
    let namespace = control_plane.namespace("failover").await?;
    let sets: Api<ReplicaSet> = Api::namespaced(client, &namespace);
    for index in 0..KEYS {
        let labels = json!({"app": format!("key-{index}")});
        let set = serde_json::from_value(json!({
            "metadata": {"name": format!("key-{index}")},
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"containers": [{"name": "main", "image": "example/main:1"}]},
                },
            },
        }))?;
        sets.create(&PostParams::default(), &set).await?;
    }
    let waits = Waits::default();
    let (changing, following) = (
        {
            let (sets, waits) = (sets.clone(), Arc::clone(&waits));
            tokio::spawn(async move { change_all(&sets, &waits).await })
        },
        {
            let (sets, waits) = (sets.clone(), Arc::clone(&waits));
            tokio::spawn(async move { follow(&sets, &waits).await })
        },
    );
    let mut found = Vec::new();
    for how in End::ALL {
        let served = format!("{who}: all keys are served");
        until(&served, PATIENCE, POLL, || async {
            let waiting = lock(&waits)
                .values()
                .any(|wait| wait.open.is_some_and(|(_, since)| since.elapsed() > HIT));
            Ok((!waiting).then_some(()))
        })
        .await?;
        tokio::time::sleep(BEFORE).await;
        lock(&waits)
            .values_mut()
            .for_each(|wait| wait.worst = Duration::ZERO);
        let began = Instant::now();
        let again = manager.end(control_plane, how).await?;
        tokio::time::sleep(FOLLOWED.saturating_sub(began.elapsed())).await;
        ensure!(
            !changing.is_finished() && !following.is_finished(),
            "{who}: the changes ended"
        );
        let all = worst(&waits);
        let hit: Vec<Duration> = all.iter().copied().filter(|wait| *wait > HIT).collect();
        println!(
            "failover: {who}, {how:?}: {} of {} keys waited for more than {HIT:?}; of all p50 {:.2?}, p99 {:.2?}; of \
             those p50 {:.2?}, p99 {:.2?}",
            hit.len(),
            all.len(),
            at(&all, 50),
            at(&all, 99),
            at(&hit, 50),
            at(&hit, 99),
        );
        found.push((how, all));
        if let Some(index) = again {
            manager.start_again(control_plane, index).await?;
        }
    }
    changing.abort();
    following.abort();
    Ok(found)
}

#[test]
#[ignore = "five minutes: a command of its own"]
fn fewer_keys_wait_and_for_a_shorter_time_than_beside_upstream_however_a_process_ends() {
    let _alone = alone();
    run_test(async {
        let control_plane = ControlPlane::builder().start().await?;
        let manager = Manager::upstream(&control_plane).await?;
        let upstream = ends("upstream", &control_plane, manager).await?;
        let control_plane = ControlPlane::builder().start().await?;
        let manager = Manager::fleet(&control_plane).await?;
        let ours = ends("three replicas", &control_plane, manager).await?;
        for ((how, ours), (_, upstream)) in ours.iter().zip(&upstream) {
            let (is, was) = (at(ours, 99), at(upstream, 99));
            ensure!(
                is <= how.promise(),
                "{how:?}: p99 {is:.2?} of {:?}",
                how.promise()
            );
            ensure!(is <= was, "{how:?}: p99 {is:.2?}, upstream's {was:.2?}");
        }
        Ok(())
    });
}
