//! What a change of the fleet costs the keys that move.
//!
//! 200 Deployments without pods are changed in turn, ten times a second, while a fourth replica joins
//! and leaves. A change is served when `status.observedGeneration` has caught up. CronJobs of the same names
//! hold what only a controller's memory and its queue know.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use harness::observe::{Change, follow};
use harness::{ControlPlane, run_test, until};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::CronJob;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::support::{
    Owners, PATIENCE, POLL, Watcher, alone, create, deployment, ended_well, fleet, judge, judged,
    loads, moved, owners,
};

const RANGES: u32 = 256;
const KEYS: usize = 200;
/// Ten touches a second.
const TOUCH: Duration = Duration::from_millis(100);
/// Without a move: every tenth of the keys twice.
const QUIET: Duration = Duration::from_secs(10);
/// A move's window continues so long after its end, for what it may leave behind.
const AFTERWARDS: Duration = Duration::from_secs(4);
/// What a move may cost a key, at p99.
const BOUND: Duration = Duration::from_millis(300);
/// Status writes of a key are spaced by 200 ms, and one touch costs two objects a few writes.
const AFTER_A_TOUCH: Duration = Duration::from_secs(5);

/// One key's changes.
#[derive(Debug, Default, Clone)]
struct Key {
    /// Newest generation written, and newest seen served.
    written: i64,
    served: i64,
    /// Writes that wait: generation, and when they were sent.
    waiting: Vec<(i64, Instant)>,
    /// When it was touched, by the clock that the audit log has too.
    touched: Vec<Timestamp>,
}

/// Begin of a touch, and how long it waited.
type Wait = (Instant, Duration);

#[derive(Debug, Default)]
struct Stream {
    keys: Vec<Key>,
    waits: Vec<Wait>,
}

impl Stream {
    fn serve(&mut self, index: usize, generation: i64, now: Instant) {
        let key = &mut self.keys[index];
        key.served = key.served.max(generation);
        let served = key.served;
        let waits = &mut self.waits;
        key.waiting.retain(|(wanted, since)| {
            if *wanted <= served {
                waits.push((*since, now.saturating_duration_since(*since)));
            }
            *wanted > served
        });
    }
}

type Shared = Arc<Mutex<Stream>>;

fn lock(stream: &Shared) -> std::sync::MutexGuard<'_, Stream> {
    stream.lock().unwrap_or_else(PoisonError::into_inner)
}

fn name(index: usize) -> String {
    format!("key-{index:03}")
}

fn index_of(name: &str) -> Option<usize> {
    name.strip_prefix("key-")?.get(..3)?.parse().ok()
}

/// Sees what is served.
async fn watch(api: Api<Deployment>, stream: Shared) {
    follow(api, String::new(), |change| {
        let Change::Seen(deployment) = change else {
            return;
        };
        let name = deployment.metadata.name.unwrap_or_default();
        let status = deployment.status.unwrap_or_default();
        if let (Some(index), Some(generation)) = (index_of(&name), status.observed_generation) {
            lock(&stream).serve(index, generation, Instant::now());
        }
    })
    .await;
}

/// Touches one key after the other. Each request is its own task: a slow answer delays no touch.
async fn touch(api: Api<Deployment>, stream: Shared) {
    let mut ticks = tokio::time::interval(TOUCH);
    for turn in 0_usize.. {
        ticks.tick().await;
        let (api, stream) = (api.clone(), Arc::clone(&stream));
        tokio::spawn(async move {
            let index = turn % KEYS;
            // Changes the generation, and no pod: what is below has a second key to serve too.
            let seconds = 1 + turn / KEYS;
            let patch = Patch::Merge(json!({"spec": {"minReadySeconds": seconds}}));
            lock(&stream).keys[index].touched.push(Timestamp::now());
            let since = Instant::now();
            let written = api
                .patch(&name(index), &PatchParams::default(), &patch)
                .await;
            let generation = written
                .expect("the server takes a change")
                .metadata
                .generation
                .unwrap_or_default();
            let mut stream = lock(&stream);
            let key = &mut stream.keys[index];
            key.written = generation;
            key.waiting.push((generation, since));
            let served = key.served;
            // Its being served may have been seen before this answer.
            stream.serve(index, served, Instant::now());
        });
    }
}

/// p50, p99 and the longest of the touches that began in this time.
struct Figures {
    count: usize,
    p50: Duration,
    p99: Duration,
    max: Duration,
}

impl Figures {
    fn of(stream: &Shared, from: Instant, to: Instant) -> Result<Self> {
        let stream = lock(stream);
        let mut waits: Vec<Duration> = stream
            .waits
            .iter()
            .filter(|(begin, _)| (from..to).contains(begin))
            .map(|(_, wait)| *wait)
            .collect();
        waits.sort_unstable();
        let at = |percent: usize| waits.get((waits.len() * percent).div_ceil(100).max(1) - 1);
        Ok(Self {
            count: waits.len(),
            p50: *at(50).context("nothing was touched")?,
            p99: *at(99).context("nothing was touched")?,
            max: *waits.last().context("nothing was touched")?,
        })
    }

    fn print(&self, what: &str) {
        println!(
            "moves: {what}: {} touches, p50 {:.0?}, p99 {:.0?}, longest {:.0?}",
            self.count, self.p50, self.p99, self.max
        );
    }
}

/// Waits until every touch before now is served.
async fn drained(stream: &Shared) -> Result<()> {
    let until_then = Instant::now();
    until("every touched key is served", PATIENCE, POLL, || async {
        let stream = lock(stream);
        let waiting: Vec<String> = stream
            .keys
            .iter()
            .enumerate()
            .filter(|(_, key)| key.waiting.iter().any(|(_, since)| *since < until_then))
            .map(|(index, _)| name(index))
            .collect();
        ensure!(waiting.is_empty(), "{} are not", waiting.join(", "));
        Ok(Some(()))
    })
    .await
}

/// Writes of replicas to anything that nobody had touched, as lines.
fn untouched_writes(
    control_plane: &ControlPlane,
    stream: &Shared,
    windows: &[(Timestamp, Timestamp)],
    ranges: &BTreeSet<u32>,
) -> Result<(usize, Vec<String>)> {
    let stream = lock(stream);
    let mut writes = 0;
    let mut untouched = Vec::new();
    control_plane.audit().read(|record| {
        let at = record.request_received_timestamp;
        let inside = windows.iter().any(|(from, to)| (*from..*to).contains(&at));
        let Some(agent) = record.agent() else { return };
        let Some(range) = agent.range.filter(|range| ranges.contains(range)) else {
            return;
        };
        if !inside || !record.is_write() {
            return;
        }
        writes += 1;
        let object = record.object();
        let touched = index_of(&object.name).is_some_and(|index| {
            let touches = &stream.keys[index].touched;
            touches.iter().any(|touch| {
                let after = at.duration_since(*touch);
                after.is_positive() && after.unsigned_abs() < AFTER_A_TOUCH
            })
        });
        if !touched {
            untouched.push(format!(
                "{at} {} {} {}/{} by {} for range {range}",
                record.verb,
                record.resource(),
                object.namespace,
                object.name,
                agent.replica
            ));
        }
    })?;
    Ok((writes, untouched))
}

async fn keys(client: &Client, namespace: &str) -> Result<Api<Deployment>> {
    let api: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    for chunk in (0..KEYS).collect::<Vec<_>>().chunks(20) {
        let creations = chunk
            .iter()
            .map(|index| create(&api, deployment(&name(*index), 0)));
        try_join_all(creations).await?;
    }
    Ok(api)
}

/// Nothing is on its way: no key queued, and no write since a moment.
async fn at_rest(control_plane: &ControlPlane) -> Result<()> {
    let mut log = control_plane.audit();
    let mut last = Instant::now();
    log.records()?;
    until("the replicas rest", PATIENCE, POLL, || {
        let mut wrote = false;
        let read =
            log.read(|record| wrote |= record.agent().is_some_and(|agent| agent.range.is_some()));
        if wrote {
            last = Instant::now();
        }
        let still = last.elapsed();
        async move {
            read?;
            Ok((still > Duration::from_secs(2)).then_some(()))
        }
    })
    .await
}

/// CronJobs beside the Deployments, of the same names and so in the same ranges.
const CRON_JOBS: usize = 100;
/// A date that is years away most of the time, and another.
const SCHEDULES: [&str; 2] = ["17 3 29 2 *", "18 3 29 2 *"];
/// What a delay may differ by, since it is reported at two moments.
const OBSERVED_FOR: Duration = Duration::from_secs(60);

/// What one owner knows of a CronJob that no other could read anywhere.
struct Remembered {
    range: u64,
    memory: Value,
    failures: Value,
    due: Timestamp,
}

/// What the owners remember of the CronJobs, as soon as all remember this.
async fn remembered(watcher: &Watcher, namespace: &str, what: &str) -> Result<Vec<Remembered>> {
    let title = format!("every CronJob's {what} is remembered");
    until(&title, PATIENCE, POLL, || async {
        let mut all = Vec::new();
        for index in 0..CRON_JOBS {
            let key = format!("{namespace}/{}", name(index));
            let said = watcher.explain("cronjob-controller", &key).await?;
            ensure!(!said["memory"][what].is_null(), "not yet: {said}");
            let due = said["next_in_ms"].as_u64().context("nothing is due")?;
            all.push(Remembered {
                range: said["range"].as_u64().context("no range")?,
                memory: said["memory"].clone(),
                failures: said["failures"].clone(),
                due: Timestamp::now() + Duration::from_millis(due),
            });
        }
        Ok(Some(all))
    })
    .await
}

/// CronJobs whose schedule was changed once: that they are not counted back beyond the change is
/// known to the controller's memory alone, and their next check to the queue alone.
async fn cron_jobs(client: &Client, watcher: &Watcher, namespace: &str) -> Result<Vec<Remembered>> {
    let api: Api<CronJob> = Api::namespaced(client.clone(), namespace);
    let [before, after] = SCHEDULES;
    for index in 0..CRON_JOBS {
        let cron_job = serde_json::from_value(json!({
            "apiVersion": "batch/v1",
            "kind": "CronJob",
            "metadata": {"name": name(index)},
            "spec": {"schedule": before, "jobTemplate": {"spec": {"template": {"spec": {
                "restartPolicy": "Never",
                "containers": [{"name": "app", "image": "example/app:1"}],
            }}}}},
        }))?;
        api.create(&PostParams::default(), &cron_job).await?;
    }
    remembered(watcher, namespace, "schedule").await?;
    let patch = Patch::Merge(json!({"spec": {"schedule": after}}));
    for index in 0..CRON_JOBS {
        api.patch(&name(index), &PatchParams::default(), &patch)
            .await?;
    }
    remembered(watcher, namespace, "not_before").await
}

/// How many of them were in ranges that moved; an error unless each is what it was.
fn check_remembered(
    before: &[Remembered],
    after: &[Remembered],
    moved: &BTreeSet<u32>,
) -> Result<usize> {
    for (index, (before, after)) in before.iter().zip(after).enumerate() {
        let key = name(index);
        ensure!(
            before.memory == after.memory && before.failures == after.failures,
            "{key}: {} with {} failures became {} with {}",
            before.memory,
            before.failures,
            after.memory,
            after.failures
        );
        ensure!(
            before.due.duration_since(after.due).unsigned_abs() < OBSERVED_FOR,
            "{key} was due at {}, now at {}",
            before.due,
            after.due
        );
    }
    let came = after
        .iter()
        .filter(|after| moved.iter().any(|range| u64::from(*range) == after.range))
        .count();
    ensure!(came > 0, "no memory was in a range that moved");
    Ok(came)
}

fn check_moved(before: &Owners, after: &Owners) -> Result<BTreeSet<u32>> {
    let moved: BTreeSet<u32> = moved(before, after)?.into_iter().collect();
    ensure!(moved.len() == 64, "{} ranges moved", moved.len());
    Ok(moved)
}

#[test]
fn a_move_delays_no_key_loses_none_and_writes_nothing() {
    let _alone = alone();
    run_test(async {
        let control_plane = judged().await?;
        let client = control_plane.client().await?;
        let fleet = fleet(&control_plane).await?;
        let replicas = fleet.start_all(3).await?;
        let mut watcher = Watcher::new(client.clone(), RANGES);
        for replica in &replicas {
            watcher.add(replica)?;
        }
        watcher
            .settled("three replicas share", Instant::now(), PATIENCE)
            .await?;

        let namespace = control_plane.namespace("moves").await?;
        let stream: Shared = Arc::new(Mutex::new(Stream {
            keys: vec![Key::default(); KEYS],
            waits: Vec::new(),
        }));
        let api = keys(&client, &namespace).await?;
        let watching = tokio::spawn(watch(api.clone(), Arc::clone(&stream)));
        until("every key was served once", PATIENCE, POLL, || async {
            let left = lock(&stream)
                .keys
                .iter()
                .filter(|key| key.served == 0)
                .count();
            ensure!(left == 0, "{left} were not");
            Ok(Some(()))
        })
        .await?;
        let first = cron_jobs(&client, &watcher, &namespace).await?;
        at_rest(&control_plane).await?;

        let touching = tokio::spawn(touch(api.clone(), Arc::clone(&stream)));
        let quiet = Instant::now();
        tokio::time::sleep(QUIET).await;

        // Three become four.
        let three = owners(&client).await?;
        let (join, join_at) = (Instant::now(), Timestamp::now());
        let mut fourth = fleet.start(3)?;
        fourth.wait_ready(PATIENCE).await?;
        watcher.add(&fourth)?;
        let (four, join_took) = watcher.settled("four share", join, PATIENCE).await?;
        tokio::time::sleep(AFTERWARDS).await;
        let (joined, joined_at) = (Instant::now(), Timestamp::now());
        let came = check_moved(&three, &four)?;
        let second = remembered(&watcher, &namespace, "not_before").await?;
        let kept = check_remembered(&first, &second, &came)?;

        // Four become three.
        let (leave, leave_at) = (Instant::now(), Timestamp::now());
        fourth.ask_to_end()?;
        watcher.remove(fourth.name());
        let (again, leave_took) = watcher
            .settled("three share again", leave, PATIENCE)
            .await?;
        tokio::time::sleep(AFTERWARDS).await;
        let (left, left_at) = (Instant::now(), Timestamp::now());
        ended_well(&mut fourth).await?;
        let went = check_moved(&four, &again)?;
        ensure!(came == went, "others came back than had gone");

        let third = remembered(&watcher, &namespace, "not_before").await?;
        check_remembered(&second, &third, &went)?;
        println!("moves: {kept} of {CRON_JOBS} memories went along, there and back; none was lost");

        touching.abort();
        drained(&stream).await?;
        at_rest(&control_plane).await?;
        watching.abort();

        println!(
            "moves: {:?} → {:?} → {:?}; {} ranges came within {join_took:.2?} of the start, {} went within {leave_took:.2?}",
            loads(&three),
            loads(&four),
            loads(&again),
            came.len(),
            went.len()
        );
        let without = Figures::of(&stream, quiet, join)?;
        without.print("without a move");
        let joining = Figures::of(&stream, join, joined)?;
        joining.print("3 → 4");
        let leaving = Figures::of(&stream, leave, left)?;
        leaving.print("4 → 3");
        for (what, figures) in [("3 → 4", joining), ("4 → 3", leaving)] {
            let cost = figures.p99.saturating_sub(without.p50);
            ensure!(
                cost <= BOUND,
                "{what}: a key waited {:?} at p99",
                figures.p99
            );
        }
        let windows = [(join_at, joined_at), (leave_at, left_at)];
        let (writes, untouched) = untouched_writes(&control_plane, &stream, &windows, &came)?;
        println!(
            "moves: {writes} writes to keys of the moved ranges while they moved, {} to keys that nobody had touched",
            untouched.len()
        );
        ensure!(untouched.is_empty(), "{}", untouched.join("\n"));
        ensure!(
            writes > 0,
            "no key of a moved range was touched: nothing was shown"
        );

        // Nothing was lost: what the server has is what was written last, and it is served.
        let mut stored = BTreeMap::new();
        for deployment in api.list(&Default::default()).await?.items {
            let status = deployment.status.unwrap_or_default();
            let index = deployment.metadata.name.as_deref().and_then(index_of);
            stored.insert(
                index.context("a stranger")?,
                (deployment.metadata.generation, status.observed_generation),
            );
        }
        let keys = lock(&stream).keys.clone();
        for (index, key) in keys.iter().enumerate() {
            let written = (key.written > 0).then_some(key.written);
            let (generation, observed) = stored[&index];
            ensure!(
                observed == generation && written.is_none_or(|written| Some(written) == generation)
            );
        }
        judge(&control_plane, "moves")?;
        Ok(())
    });
}
