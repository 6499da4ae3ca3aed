//! What is felt when a manager's process or machine goes: three replicas beside kube-controller-manager with
//! a standby, in one run and in turn.
//!
//! ReplicaSets without pods are changed all the time; a key waits from a change to the status that has seen
//! it (`observedGeneration`). Each end is followed for the same time on both sides.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::memory::Memory;
use harness::observe::{Change, Probes, follow};
use harness::process::Process;
use harness::{ControlPlane, Fleet, Kcm, Replica, run_test, until};
use k8s_openapi::api::apps::v1::ReplicaSet;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::task::JoinSet;

use crate::support::{KUBELET, PATIENCE, POLL, alone, panic_at_work};

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
/// What a process that is to run out of memory still gets. It works until it asks for a page.
const MEMORY_LEFT: u64 = 0;
/// After a crash the process is gone within this.
const CRASHES: Duration = Duration::from_secs(20);
/// How a program in Go ends by a fatal error, and what the OOM killer sends.
const GO_FATAL: i32 = 2;
const SIGKILL: i32 = 9;
/// How long a process may take to leave.
const LEAVES: Duration = Duration::from_secs(40);
/// Enough for the changes: by default both may send 20 writes a second.
const RATE: [&str; 2] = ["--kube-api-qps=200", "--kube-api-burst=400"];

/// How an active process ends. After a crash a kubelet starts it again in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// SIGTERM, as of a drained node.
    Asked,
    /// All processes, one after the other, as of an upgrade.
    Rolled,
    /// A thread of a replica panics outside of a plan. Upstream's process gets SIGABRT: the Go runtime ends
    /// it by a fatal error, with its goroutines' stacks and the status of a panic, and nothing is released.
    Panicked,
    /// The kernel's OOM killer ends it, because its cgroup gives it no more memory.
    OutOfMemory,
    /// SIGKILL, and nobody starts it again.
    Killed,
    /// Nothing of it moves any more, and its connections stay open: as of a machine without power.
    Lost,
}

impl End {
    const ALL: [Self; 6] = [
        Self::Asked,
        Self::Rolled,
        Self::Panicked,
        Self::OutOfMemory,
        Self::Killed,
        Self::Lost,
    ];

    /// Within this all keys of a fleet that were hit are served.
    fn promise(self) -> Duration {
        match self {
            Self::Asked | Self::Rolled | Self::Panicked => Duration::from_secs(1),
            // A witness knows it at once; what was in flight may be executed two seconds later.
            Self::OutOfMemory | Self::Killed => Duration::from_secs(3),
            Self::Lost => Duration::from_secs(7),
        }
    }

    /// The replica that it happens to: each to another one, as far as they reach, since ranges whose owners
    /// have died twice within ten minutes begin their keys with care.
    fn replica(self) -> usize {
        match self {
            Self::Asked | Self::Rolled | Self::OutOfMemory => 1,
            Self::Killed => 2,
            Self::Panicked | Self::Lost => 0,
        }
    }
}

enum Manager {
    Upstream(Vec<Kcm>),
    Fleet {
        fleet: Box<Fleet>,
        replicas: Vec<Replica>,
        _witnesses: Vec<Process>,
    },
}

impl Manager {
    async fn upstream(control_plane: &ControlPlane) -> Result<Self> {
        let first = control_plane.start_kcm(&RATE).await?;
        let second = control_plane.start_kcm(&RATE).await?;
        Ok(Self::Upstream(vec![first, second]))
    }

    /// With a lock in memory and a witness beside each, as deploy/base has it.
    async fn fleet(control_plane: &ControlPlane, flags: &[&str]) -> Result<Self> {
        let mut fleet = control_plane.fleet().locks();
        for flag in RATE.iter().chain(flags) {
            fleet = fleet.arg(*flag);
        }
        let fleet = fleet.build().await?;
        let replicas = fleet.start_all(REPLICAS).await?;
        let mut witnesses = Vec::new();
        for replica in &replicas {
            witnesses.push(fleet.start_witness(replica.name()).await?);
        }
        Ok(Self::Fleet {
            _witnesses: witnesses,
            fleet: Box::new(fleet),
            replicas,
        })
    }

    /// The process that works; of a fleet the one that this happens to.
    async fn active(&self, how: End) -> Result<usize> {
        let Self::Upstream(processes) = self else {
            return Ok(how.replica());
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
            Self::Fleet {
                fleet, replicas, ..
            } => {
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
            Self::Fleet { replicas, .. } => replicas[index].terminate(LEAVES).await,
        }?;
        Ok(())
    }

    fn id(&mut self, index: usize) -> u32 {
        match self {
            Self::Upstream(processes) => processes[index].process().id(),
            Self::Fleet { replicas, .. } => replicas[index].id(),
        }
    }

    async fn exit(&mut self, index: usize) -> Result<ExitStatus> {
        let manager = Mutex::new(self);
        until("the process is gone", CRASHES, POLL / 5, || async {
            let mut manager = manager.lock().unwrap_or_else(PoisonError::into_inner);
            Ok(match &mut **manager {
                Self::Upstream(processes) => processes[index].process().exited(),
                Self::Fleet { replicas, .. } => replicas[index].exited(),
            })
        })
        .await
    }

    /// Gives the moment, once the process is gone.
    async fn panic(&mut self, index: usize) -> Result<Instant> {
        let at = match self {
            Self::Upstream(processes) => {
                let at = Instant::now();
                processes[index].process().abort()?;
                at
            }
            Self::Fleet { replicas, .. } => panic_at_work(&replicas[index]).await?,
        };
        let status = self.exit(index).await?;
        let (log, says) = match self {
            Self::Upstream(processes) => {
                ensure!(status.code() == Some(GO_FATAL), "{status}");
                (processes[index].process().log(), "SIGABRT: abort")
            }
            Self::Fleet { replicas, .. } => (replicas[index].log(), "panicked at"),
        };
        let log = std::fs::read_to_string(log)?;
        ensure!(log.contains(says), "{status}; no {says:?} in its log");
        Ok(at)
    }

    /// Gives when the process was gone.
    async fn exhaust(&mut self, index: usize, memory: &Memory) -> Result<Instant> {
        let bound = Instant::now();
        memory.bound(self.id(index), MEMORY_LEFT)?;
        let status = self.exit(index).await?;
        let (at, killed) = (Instant::now(), memory.killed()?);
        println!(
            "failover: killed {:.2?} after it got no more memory",
            at.duration_since(bound)
        );
        ensure!(
            status.signal() == Some(SIGKILL) && killed == 1,
            "{status}, though the OOM killer has ended {killed} processes"
        );
        Ok(at)
    }

    /// Does it; gives when it began, and which process has to be started again.
    async fn end(
        &mut self,
        control_plane: &ControlPlane,
        how: End,
        memory: Option<&Memory>,
    ) -> Result<(Instant, Option<usize>)> {
        let began = Instant::now();
        if how == End::Rolled {
            let count = match self {
                Self::Upstream(processes) => processes.len(),
                Self::Fleet { replicas, .. } => replicas.len(),
            };
            for index in 0..count {
                self.terminate(index).await?;
                self.start_again(control_plane, index).await?;
            }
            return Ok((began, None));
        }
        let index = self.active(how).await?;
        let crashed = match (how, memory) {
            (End::Panicked, _) => Some(self.panic(index).await?),
            (End::OutOfMemory, Some(memory)) => Some(self.exhaust(index, memory).await?),
            _ => None,
        };
        if let Some(began) = crashed {
            tokio::time::sleep(KUBELET).await;
            self.start_again(control_plane, index).await?;
            return Ok((began, None));
        }
        match (how, self) {
            (End::Asked, Self::Upstream(processes)) => processes[index].process().ask_to_end()?,
            (End::Asked, Self::Fleet { replicas, .. }) => replicas[index].ask_to_end()?,
            (End::Lost, Self::Upstream(processes)) => processes[index].process().pause()?,
            (End::Lost, Self::Fleet { replicas, .. }) => replicas[index].pause()?,
            (_, Self::Upstream(processes)) => processes[index].process().kill(),
            (_, Self::Fleet { replicas, .. }) => replicas[index].kill(),
        }
        Ok((began, Some(index)))
    }
}

type Watched = Arc<Mutex<Probes>>;

fn lock(probes: &Watched) -> MutexGuard<'_, Probes> {
    probes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Changes one key after the other until something fails. A key that waits is not changed again.
async fn change_all(sets: Api<ReplicaSet>, probes: Watched) -> Result<()> {
    let mut every = tokio::time::interval(CHANGED_EVERY);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for turn in 1_u32.. {
        every.tick().await;
        let Some(index) = lock(&probes).touch(Instant::now()) else {
            continue;
        };
        let patch = Patch::Merge(json!({"spec": {"minReadySeconds": turn}}));
        let name = format!("key-{index}");
        let set = sets.patch(&name, &PatchParams::default(), &patch).await?;
        let generation = set.metadata.generation.context("no generation")?;
        lock(&probes).accepted(index, generation);
    }
    Ok(())
}

/// Notes what the controller has seen of the keys.
async fn follow_all(sets: Api<ReplicaSet>, probes: Watched) {
    follow(sets, String::new(), move |change| {
        let Change::Seen(set) = change else { return };
        let name = set.metadata.name.unwrap_or_default();
        let index = name.strip_prefix("key-").and_then(|text| text.parse().ok());
        let observed = set.status.and_then(|status| status.observed_generation);
        if let Some((index, observed)) = index.zip(observed) {
            lock(&probes).observed(index, observed, Instant::now());
        }
    })
    .await;
}

/// How long each key that was changed since then waited at most, the longest last.
fn worst_since(probes: &Watched, from: Instant) -> Vec<Duration> {
    let mut of_each = BTreeMap::<usize, Duration>::new();
    for waited in lock(probes).waits_since(from, Instant::now()) {
        let worst = of_each.entry(waited.probe).or_default();
        *worst = waited.lasted.max(*worst);
    }
    let mut all: Vec<Duration> = of_each.into_values().collect();
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
    ways: &[End],
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
    let probes = Arc::new(Mutex::new(Probes::new(KEYS)));
    let mut tasks = JoinSet::new();
    tasks.spawn(follow_all(sets.clone(), Arc::clone(&probes)));
    let changing = tokio::spawn(change_all(sets, Arc::clone(&probes)));
    let mut found = Vec::new();
    for how in ways.iter().copied() {
        // One for each: it is the process that is bound.
        let memory = match how {
            End::OutOfMemory => Memory::create()?,
            _ => None,
        };
        if how == End::OutOfMemory && memory.is_none() {
            println!(
                "failover: {who}, {how:?}: left out, since this machine has no memory cgroups of version 1"
            );
            continue;
        }
        let served = format!("{who}: all keys are served");
        until(&served, PATIENCE, POLL, || async {
            let longest = lock(&probes).longest_lasting(Instant::now());
            Ok((longest <= HIT).then_some(()))
        })
        .await?;
        tokio::time::sleep(BEFORE).await;
        let (began, again) = manager.end(control_plane, how, memory.as_ref()).await?;
        tokio::time::sleep(FOLLOWED.saturating_sub(began.elapsed())).await;
        ensure!(!changing.is_finished(), "{who}: the changes ended");
        // What was changed just before may be in flight.
        let all = worst_since(&probes, began.checked_sub(HIT).unwrap_or(began));
        ensure!(
            all.len() == KEYS,
            "{who}, {how:?}: {} keys were changed",
            all.len()
        );
        let hit: Vec<Duration> = all.iter().copied().filter(|wait| *wait > HIT).collect();
        println!(
            "failover: {who}, {how:?}: {} of {} keys ({} %) waited for more than {HIT:?}; of all p50 {:.2?}, p99 {:.2?}; \
             of those p50 {:.2?}, p99 {:.2?}",
            hit.len(),
            all.len(),
            100 * hit.len() / all.len(),
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
    Ok(found)
}

#[test]
#[ignore = "seven minutes: cargo parity"]
fn fewer_keys_wait_and_for_a_shorter_time_than_beside_upstream_however_a_process_ends() {
    let _alone = alone();
    run_test(async {
        let control_plane = ControlPlane::builder().start().await?;
        let manager = Manager::upstream(&control_plane).await?;
        let upstream = ends("upstream", &control_plane, manager, &End::ALL).await?;
        let control_plane = ControlPlane::builder().start().await?;
        let manager = Manager::fleet(&control_plane, &[]).await?;
        let ours = ends("three replicas", &control_plane, manager, &End::ALL).await?;
        for ((how, ours), (_, upstream)) in ours.iter().zip(&upstream) {
            let of = |all: &[Duration], percent| format!("{:.2?}", at(all, percent));
            let hit = |all: &[Duration]| all.iter().filter(|wait| **wait > HIT).count();
            println!(
                "failover: {how:?}: three replicas p50 {}, p99 {}, {} % hit; upstream p50 {}, p99 {}, {} % hit",
                of(ours, 50),
                of(ours, 99),
                100 * hit(ours) / KEYS,
                of(upstream, 50),
                of(upstream, 99),
                100 * hit(upstream) / KEYS,
            );
        }
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

/// Flags of an operator who wants a lost machine noticed sooner. Nothing more is sent: the Lease is renewed
/// as often, and one renewal may be lost instead of two.
const SHORT_LEASE: [&str; 2] = ["--lease-duration=3s", "--lease-renew-deadline=2s"];
/// What a lost machine costs then.
const LOST_BY_A_SHORT_LEASE: Duration = Duration::from_secs(4);

#[test]
#[ignore = "two minutes: cargo parity"]
fn the_keys_of_a_lost_machine_wait_for_as_long_as_the_lease_says() {
    let _alone = alone();
    run_test(async {
        let control_plane = ControlPlane::builder().start().await?;
        let manager = Manager::fleet(&control_plane, &SHORT_LEASE).await?;
        let ways = [End::Killed, End::Lost];
        for (how, all) in ends("a lease of 3 s", &control_plane, manager, &ways).await? {
            let longest = all.last().copied().unwrap_or_default();
            ensure!(
                longest <= LOST_BY_A_SHORT_LEASE,
                "{how:?}: a key waited for {longest:.2?}"
            );
        }
        Ok(())
    });
}
