//! How the work of a fleet grows with its replicas, where the API server is far away.
//!
//! Each replica reaches the API server through a proxy that holds up every call, so a replica's workers bound
//! what it does a second, not the machine that all of them share here. Enough changes are kept waiting that
//! no worker is ever idle, and few enough that none waits long.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt, TryStreamExt};
use harness::observe::{Change, Probes, Waited, follow};
use harness::progress::Steps;
use harness::proxy::Proxy;
use harness::{ControlPlane, Fleet, Metrics, Replica, kubeconfig, until};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::machine::Machine;
use crate::meter;
use crate::peer::RANGES;
use crate::report::Spread;
use crate::run::NO_AUDIT;
use crate::workload;

/// Changes that wait at a time for each worker. They fall on replicas by chance, so that now and then one has
/// none while the others have all: of two workers, each is idle once in 25 times. More would wait too long.
const WAITING_PER_WORKER: usize = 12;
/// The interval between two checks whether more changes may go out.
const TICK: Duration = Duration::from_millis(2);
/// The stream runs for so long before it is measured.
const WARM: Duration = Duration::from_secs(3);
const LIMIT: Duration = Duration::from_secs(180);
const POLL: Duration = Duration::from_millis(50);
/// Creations of the driver at once.
const AT_ONCE: usize = 16;
const MANAGER: &str = "system:kube-controller-manager";
/// What counts as served in time.
const QUEUE_P99_MAX: f64 = 1.0;
const WORK_P99_MAX: f64 = 5.0;
/// By number of replicas, the promised multiple of one replica's throughput.
const PROMISED: [(usize, f64); 4] = [(2, 1.9), (3, 2.8), (4, 3.6), (5, 4.5)];

/// The settings of the rig.
#[derive(Debug, Clone)]
pub(crate) struct Rig {
    pub(crate) replicas_max: usize,
    pub(crate) keys: usize,
    pub(crate) workers: usize,
    pub(crate) delay: Duration,
    pub(crate) window: Duration,
}

/// The results for one number of replicas.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Grown {
    pub(crate) round: usize,
    pub(crate) replicas: usize,
    pub(crate) served_per_s: f64,
    pub(crate) wait_p50_s: f64,
    pub(crate) wait_p99_s: f64,
    /// Upper bounds: those of the histograms' buckets.
    pub(crate) queue_p99_s: f64,
    pub(crate) work_p99_s: f64,
    /// Of all replicas.
    pub(crate) cpu_per_s: f64,
    /// Of everything on the machine; not in results of before it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) machine_per_s: Option<f64>,
    /// What the API server was asked for meanwhile, by whomever, for each change served.
    pub(crate) requests: BTreeMap<String, f64>,
}

/// One use of the rig.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) date: Timestamp,
    pub(crate) machine: Machine,
    pub(crate) keys: usize,
    pub(crate) workers: usize,
    pub(crate) delay_ms: u64,
    pub(crate) runs: Vec<Grown>,
}

/// A replica behind its proxy; it goes before the proxy does.
struct Far {
    replica: Replica,
    proxy: Proxy,
}

/// The keys, and who changes them.
struct Stream {
    book: Arc<Mutex<Probes>>,
    api: Api<Deployment>,
    seeing: JoinHandle<()>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.seeing.abort();
    }
}

fn lock(book: &Mutex<Probes>) -> MutexGuard<'_, Probes> {
    book.lock().unwrap_or_else(PoisonError::into_inner)
}

fn name(index: usize) -> String {
    format!("key-{index:04}")
}

/// One replica, then one more, and so on.
pub(crate) async fn run(
    round: usize,
    rig: &Rig,
    binary: &Path,
    progress: &mut Steps,
) -> Result<Vec<Grown>> {
    let control_plane = ControlPlane::builder()
        .audit_policy(NO_AUDIT)
        .start()
        .await?;
    let client = control_plane.client().await?;
    let fleet = control_plane
        .fleet()
        .binary(binary)
        .ranges(RANGES.into())
        .arg(format!("--concurrent-deployment-syncs={}", rig.workers))
        .arg(format!("--concurrent-replicaset-syncs={}", rig.workers))
        .build()
        .await?;
    let mut members = vec![far(&control_plane, &fleet, 0).await?];
    shared(&members).await?;
    progress.begin(&format!("round {round}: {} keys are made", rig.keys));
    workload::create_namespace(&client, "stream").await?;
    let stream = Stream::start(&client, rig.keys).await?;
    let mut grown = Vec::new();
    for replicas in 1..=rig.replicas_max {
        if members.len() < replicas {
            members.push(far(&control_plane, &fleet, members.len()).await?);
            shared(&members).await?;
        }
        progress.begin(&format!("round {round}: {replicas} replicas"));
        rest(&mut members).await?;
        for member in &members {
            member.proxy.delay_calls(rig.delay);
        }
        let measured = measure(&client, round, rig, &mut members, &stream).await;
        for member in &members {
            member.proxy.delay_calls(Duration::ZERO);
        }
        grown.push(measured.with_context(|| format!("with {replicas} replicas"))?);
        stream.drained().await?;
    }
    Ok(grown)
}

async fn far(control_plane: &ControlPlane, fleet: &Fleet, index: usize) -> Result<Far> {
    let proxy = Proxy::start(control_plane).await?;
    let authority = control_plane.authority();
    let text = kubeconfig::render(
        &format!("https://127.0.0.1:{}", proxy.port()),
        authority.certificate(),
        MANAGER,
        &authority.client(MANAGER, None)?,
    )?;
    let file = control_plane
        .dir()
        .write(&format!("far-{index}.kubeconfig"), text)?;
    let flag = format!("--kubeconfig={}", file.display());
    let mut replica = fleet.start_named(&format!("manifold-{index}"), &[&flag])?;
    replica.wait_ready(LIMIT).await?;
    Ok(Far { replica, proxy })
}

async fn shared(members: &[Far]) -> Result<()> {
    let fair = usize::from(RANGES) / members.len().max(1);
    until("the replicas share the ranges", LIMIT, POLL, || async {
        let mut owned = 0;
        for member in members {
            let count = member.replica.shards().await?.owned.len();
            if count < fair {
                bail!("{} owns {count} ranges", member.replica.name());
            }
            owned += count;
        }
        Ok((owned == usize::from(RANGES)).then_some(()))
    })
    .await
}

async fn rest(members: &mut [Far]) -> Result<()> {
    let pids: Vec<u32> = members.iter().map(|member| member.replica.id()).collect();
    let check = || {
        members
            .iter_mut()
            .try_for_each(|member| member.replica.check())
    };
    ensure!(
        meter::resting(&pids, check).await?,
        "the replicas do not come to rest without any change"
    );
    Ok(())
}

async fn scrape(members: &[Far]) -> Result<Vec<Metrics>> {
    let mut scrapes = Vec::new();
    for member in members {
        scrapes.push(member.replica.metrics().await?);
    }
    Ok(scrapes)
}

async fn measure(
    client: &Client,
    round: usize,
    rig: &Rig,
    members: &mut [Far],
    stream: &Stream,
) -> Result<Grown> {
    let waiting_max = WAITING_PER_WORKER * rig.workers * members.len();
    let touching = stream.touch(waiting_max);
    let window = async {
        tokio::time::sleep(WARM).await;
        let pids: Vec<u32> = members.iter().map(|member| member.replica.id()).collect();
        let before = scrape(members).await?;
        let asked = meter::server(client).await?;
        let (cpu, all, from) = (
            meter::cpu_of_all(&pids)?,
            meter::machine_seconds()?,
            Instant::now(),
        );
        tokio::time::sleep(rig.window).await;
        let (used, to) = (meter::cpu_of_all(&pids)? - cpu, Instant::now());
        let used_by_all = meter::machine_seconds()? - all;
        let (served, mut waits) = {
            let book = lock(&stream.book);
            let waits = book.waits_since(from, to);
            (book.served_between(from, to), waits)
        };
        let after = scrape(members).await?;
        let asked = meter::requests_since(&asked, &meter::server(client).await?);
        for member in members.iter_mut() {
            member.replica.check()?;
        }
        ensure!(served > 0, "nothing was served");
        waits.sort_by_key(|wait| wait.lasted);
        let wait = |percent: usize| {
            let at = (waits.len() * percent).div_ceil(100).max(1) - 1;
            waits
                .get(at)
                .map_or(0.0, |wait: &Waited| wait.lasted.as_secs_f64())
        };
        let p99 = |metric: &str| quantile(&before, &after, metric, 0.99);
        let seconds = (to - from).as_secs_f64();
        anyhow::Ok(Grown {
            round,
            replicas: pids.len(),
            served_per_s: served as f64 / seconds,
            wait_p50_s: wait(50),
            wait_p99_s: wait(99),
            queue_p99_s: p99("workqueue_queue_duration_seconds_bucket"),
            work_p99_s: p99("workqueue_work_duration_seconds_bucket"),
            cpu_per_s: used / seconds,
            machine_per_s: Some(used_by_all / seconds),
            requests: asked
                .into_iter()
                .map(|(what, count)| (what, count / served as f64))
                .collect(),
        })
    };
    tokio::select! {
        grown = window => grown,
        error = touching => Err(error),
    }
}

/// The bound of the bucket in which this part of all syncs of Deployments lies.
fn quantile(before: &[Metrics], after: &[Metrics], metric: &str, part: f64) -> f64 {
    let mut counts: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
    for (scrapes, sign) in [(before, -1.0), (after, 1.0)] {
        for sample in scrapes
            .iter()
            .flat_map(|scrape| scrape.select(metric, &[("name", "deployment")]))
        {
            let bound = match sample.labels.get("le").map(String::as_str) {
                Some("+Inf") | None => f64::INFINITY,
                Some(text) => text.parse().unwrap_or(f64::INFINITY),
            };
            // Bounds are positive, and positive floats are ordered as their bits are.
            let (_, count) = counts.entry(bound.to_bits()).or_insert((bound, 0.0));
            *count += sign * sample.value;
        }
    }
    let all = counts.values().map(|(_, count)| *count).fold(0.0, f64::max);
    counts
        .values()
        .find(|(_, count)| *count >= part * all)
        .map_or(0.0, |(bound, _)| *bound)
}

impl Stream {
    /// Makes the keys; returns when all were served once.
    async fn start(client: &Client, keys: usize) -> Result<Self> {
        let api: Api<Deployment> = Api::namespaced(client.clone(), "stream");
        let book = Arc::new(Mutex::new(Probes::new(keys)));
        let (watched, seen) = (api.clone(), Arc::clone(&book));
        let seeing = tokio::spawn(async move {
            follow(watched, String::new(), |change| {
                let Change::Seen(deployment) = change else {
                    return;
                };
                let name = deployment.metadata.name.unwrap_or_default();
                let index = name.strip_prefix("key-").and_then(|rest| rest.parse().ok());
                let observed = deployment
                    .status
                    .and_then(|status| status.observed_generation);
                if let (Some(index), Some(generation)) = (index, observed) {
                    lock(&seen).observed(index, generation, Instant::now());
                }
            })
            .await;
        });
        let stream = Self { book, api, seeing };
        futures::stream::iter(0..keys)
            .map(|index| {
                let api = stream.api.clone();
                async move {
                    let object = workload::deployment(&name(index), 0, "example/web:1")?;
                    api.create(&PostParams::default(), &object).await?;
                    anyhow::Ok(())
                }
            })
            .buffer_unordered(AT_ONCE)
            .try_collect::<Vec<()>>()
            .await
            .context("making the keys")?;
        until("every key is served once", LIMIT, POLL, || async {
            let served = lock(&stream.book).ever_served();
            ensure!(served == keys, "{served} are");
            Ok(Some(()))
        })
        .await?;
        Ok(stream)
    }

    /// Keeps `waiting_max` changes waiting; ends only with an error.
    async fn touch(&self, waiting_max: usize) -> anyhow::Error {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        // What is sent ends with the stream.
        let mut sending = tokio::task::JoinSet::new();
        for turn in 0_u64.. {
            ticks.tick().await;
            while sending.try_join_next().is_some() {}
            let due: Vec<usize> = {
                let mut book = lock(&self.book);
                let free = waiting_max.saturating_sub(book.waiting());
                (0..free)
                    .filter_map(|_| book.touch(Instant::now()))
                    .collect()
            };
            for index in due {
                let (api, book) = (self.api.clone(), Arc::clone(&self.book));
                sending.spawn(async move {
                    // Changes the generation, and costs one write of the status.
                    let patch = json!({"spec": {"revisionHistoryLimit": turn % 100_000}});
                    let written = api
                        .patch_metadata(&name(index), &PatchParams::default(), &Patch::Merge(patch))
                        .await;
                    let mut book = lock(&book);
                    match written.ok().and_then(|object| object.metadata.generation) {
                        Some(generation) => book.accepted(index, generation),
                        None => book.refused(index),
                    }
                });
            }
        }
        anyhow::anyhow!("the stream of changes has ended")
    }

    /// Nothing waits any more. What was being sent when the stream ended may have arrived or not: nobody
    /// waits for it.
    async fn drained(&self) -> Result<()> {
        until("every change is served", LIMIT, POLL, || async {
            let mut book = lock(&self.book);
            book.forget_unanswered();
            let waiting = book.waiting();
            ensure!(waiting == 0, "{waiting} wait");
            Ok(Some(()))
        })
        .await
    }
}

/// The newest of each rig, the one with the most workers first; `kept` is from the oldest to the newest.
pub(crate) fn newest(kept: Vec<Results>) -> Vec<Results> {
    let newest: BTreeMap<(usize, u64), Results> = kept
        .into_iter()
        .map(|results| ((results.workers, results.delay_ms), results))
        .collect();
    newest.into_values().rev().collect()
}

impl Results {
    pub(crate) fn new(machine: Machine, rig: &Rig) -> Self {
        Self {
            date: Timestamp::now(),
            machine,
            keys: rig.keys,
            workers: rig.workers,
            delay_ms: u64::try_from(rig.delay.as_millis()).unwrap_or(u64::MAX),
            runs: Vec::new(),
        }
    }

    /// By date, so that the newest is the last.
    pub(crate) fn file_name(&self) -> String {
        format!(
            "bench/results/scale-out-{}.json",
            self.date.strftime("%Y%m%dT%H%M%SZ")
        )
    }

    fn runs_of(&self, replicas: usize) -> impl Iterator<Item = &Grown> {
        self.runs.iter().filter(move |run| run.replicas == replicas)
    }

    fn spread(&self, replicas: usize, of: impl Fn(&Grown) -> f64) -> Spread {
        Spread::of(self.runs_of(replicas).map(of))
    }

    /// Headings and rows.
    pub(crate) fn table(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let heads = [
            "replicas",
            "",
            "served a second",
            "times one replica",
            "promised",
            "wait p50, s",
            "wait p99, s",
            "in the queue p99, s",
            "a sync p99, s",
            "processor, s/s",
            "of the machine, s/s",
        ];
        let one = self.spread(1, |run| run.served_per_s).median;
        let most = self.runs.iter().map(|run| run.replicas).max().unwrap_or(0);
        let machine = |replicas: usize| {
            let used = self.runs_of(replicas).filter_map(|run| run.machine_per_s);
            let used: Vec<f64> = used.collect();
            match used.as_slice() {
                [] => "–".to_owned(),
                _ => format!("{:.2} of {}", Spread::of(used).median, self.machine.cores),
            }
        };
        let row = |replicas: usize| {
            let served = self.spread(replicas, |run| run.served_per_s);
            let (queue, work) = (
                self.spread(replicas, |run| run.queue_p99_s).most,
                self.spread(replicas, |run| run.work_p99_s).most,
            );
            // A bucket ends at 10 s, not at 5: what ends below 1 s is within both.
            let in_time = queue <= QUEUE_P99_MAX && work <= WORK_P99_MAX;
            let times = served.median / one;
            let promised = PROMISED.iter().find(|(count, _)| *count == replicas);
            vec![
                replicas.to_string(),
                if in_time { "" } else { "too late" }.to_owned(),
                format!(
                    "{:.0} ({:.0}–{:.0})",
                    served.median, served.least, served.most
                ),
                format!("{times:.2}"),
                promised.map_or_else(
                    || "–".to_owned(),
                    |(_, least)| {
                        let kept = if times >= *least { "kept" } else { "missed" };
                        format!("{least} {kept}")
                    },
                ),
                format!("{:.3}", self.spread(replicas, |run| run.wait_p50_s).median),
                format!("{:.3}", self.spread(replicas, |run| run.wait_p99_s).median),
                format!("≤ {queue}"),
                format!("≤ {work}"),
                format!("{:.2}", self.spread(replicas, |run| run.cpu_per_s).median),
                machine(replicas),
            ]
        };
        let rows = (1..=most).map(row).collect();
        (heads.map(str::to_owned).into(), rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scrape(counts: [u32; 3]) -> Metrics {
        let [short, long, all] = counts;
        Metrics::parse(&format!(
            "m_bucket{{name=\"deployment\",le=\"0.1\"}} {short}\n\
             m_bucket{{name=\"deployment\",le=\"1\"}} {long}\n\
             m_bucket{{name=\"deployment\",le=\"+Inf\"}} {all}\n\
             m_bucket{{name=\"job\",le=\"0.1\"}} 0\n"
        ))
    }

    #[test]
    fn a_quantile_is_the_bound_of_the_bucket_that_what_is_new_has_filled() {
        let before = [scrape([100, 100, 100])];
        let at = |after: [u32; 3], part: f64| quantile(&before, &[scrape(after)], "m_bucket", part);
        assert_eq!(at([199, 200, 200], 0.99), 0.1);
        assert_eq!(at([150, 200, 200], 0.99), 1.0);
        assert_eq!(at([150, 160, 200], 0.99), f64::INFINITY);
        assert_eq!(at([150, 160, 200], 0.5), 0.1);
    }

    #[test]
    fn the_newest_of_each_rig_is_shown_the_one_with_the_most_workers_first() {
        let kept = |second: i64, workers: usize| Results {
            date: Timestamp::from_second(second).unwrap(),
            machine: Machine::default(),
            keys: 2_000,
            workers,
            delay_ms: 25,
            runs: Vec::new(),
        };
        let newest = newest(vec![kept(1, 5), kept(2, 1), kept(3, 5), kept(4, 2)]);
        let shown: Vec<(i64, usize)> = newest
            .iter()
            .map(|results| (results.date.as_second(), results.workers))
            .collect();
        assert_eq!(shown, [(3, 5), (4, 2), (2, 1)]);
    }

    #[test]
    fn the_table_shows_multiples_of_one_replica_and_late_results() {
        let grown = |replicas: usize, served_per_s: f64, queue_p99_s: f64| Grown {
            round: 1,
            replicas,
            served_per_s,
            wait_p50_s: 0.1,
            wait_p99_s: 0.2,
            queue_p99_s,
            work_p99_s: 1.0,
            cpu_per_s: 0.5,
            machine_per_s: None,
            requests: BTreeMap::new(),
        };
        let results = Results {
            date: Timestamp::UNIX_EPOCH,
            machine: Machine::default(),
            keys: 2_000,
            workers: 5,
            delay_ms: 25,
            runs: vec![
                grown(1, 100.0, 0.1),
                grown(2, 195.0, 1.0),
                grown(3, 250.0, 10.0),
            ],
        };
        let (heads, rows) = results.table();
        assert!(rows.iter().all(|row| row.len() == heads.len()));
        assert_eq!(rows[1][..5], ["2", "", "195 (195–195)", "1.95", "1.9 kept"]);
        assert_eq!(
            rows[2][..5],
            ["3", "too late", "250 (250–250)", "2.50", "2.8 missed"]
        );
    }
}
