//! A fleet that scales itself: the autoscaler that it reconciles has its own StatefulSet as target. Real
//! kubelets and containers of the image; what they do is read from the processes, and served as an adapter of
//! custom metrics would.
//!
//! Scaled by the keys that a replica reconciles in a second. By CPU, as `deploy/overlays/autoscaled` has it,
//! a fleet must be busier than the API server of a small machine lets it be: at 80 changes a second a
//! replica's own needs are a third of what it uses.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::certificates::Identity;
use harness::nodes::can_run;
use harness::{Metrics, MetricsApi, kubeconfig, run_test, until, workspace_root};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::statefulset::{Bed, Load, install};
use crate::support::{POLL, alone, judge};

/// Changes a second at rest: with ten times as many the API server still has room on two processors.
const BASE: u32 = 8;
const FACTOR: u32 = 10;
const FEWEST: usize = 2;
const MOST: usize = 5;
/// What the replicas do is measured over this before it is scaled by.
const MEASURED: Duration = Duration::from_secs(40);
/// Nothing may be scaled in this time.
const HOLDS: Duration = Duration::from_secs(60);
const LOADED: Duration = Duration::from_secs(240);
/// Until all have joined, one by one, or left.
const FOLLOWS: Duration = Duration::from_secs(180);
/// Between two reads at what replicas do, as a metrics server reads.
const SCRAPED: Duration = Duration::from_secs(5);
/// Keys may wait so long in their queues, at p99.
const WAITS: f64 = 1.0;
/// What is scaled by: keys that a replica has reconciled in a second.
const METRIC: &str = "reconciles";
/// Queue waits beyond the longest bucket.
const ENDLESS: &str = "+Inf";

/// What is read of the replicas while the test runs.
#[derive(Debug, Default)]
struct Seen {
    /// Of each pod: when its process had used how many seconds of CPU and reconciled how many keys.
    totals: BTreeMap<String, (Instant, [f64; 2])>,
    /// Of each pod, since the reads before: thousandths of a CPU, and thousandths of a key in a second.
    rates: BTreeMap<String, [f64; 2]>,
    /// Of each pod: keys that waited no longer than a bucket's bound, by bound.
    queues: BTreeMap<String, BTreeMap<String, f64>>,
    /// The same of all pods, since the last time that it was asked for.
    waited: BTreeMap<String, f64>,
    /// Replicas that the StatefulSet was to have, one after the other.
    sizes: Vec<usize>,
}

impl Seen {
    /// Takes in what a replica says.
    fn scraped(&mut self, pod: &str, at: Instant, metrics: &Metrics) {
        let mut queue: BTreeMap<String, f64> = BTreeMap::new();
        for sample in metrics.select("workqueue_queue_duration_seconds_bucket", &[]) {
            let bound = sample.labels.get("le").cloned().unwrap_or_default();
            *queue.entry(bound).or_default() += sample.value;
        }
        let before = self.queues.insert(pod.to_owned(), queue.clone());
        for (bound, count) in queue {
            let known = before.as_ref().and_then(|before| before.get(&bound));
            *self.waited.entry(bound).or_default() += count - known.copied().unwrap_or(0.0);
        }
        let total = |name: &str| metrics.sum(name, &[]).unwrap_or(0.0);
        let totals = [
            total("process_cpu_seconds_total"),
            total("workqueue_work_duration_seconds_count"),
        ];
        if let Some((then, before)) = self.totals.insert(pod.to_owned(), (at, totals)) {
            let milli = 1000.0 / at.duration_since(then).as_secs_f64();
            let rates = [0, 1].map(|which| (totals[which] - before[which]) * milli);
            self.rates.insert(pod.to_owned(), rates);
        }
    }

    fn sized(&mut self, size: usize) {
        if self.sizes.last() != Some(&size) {
            self.sizes.push(size);
        }
    }

    /// What a replica uses on average, and what it reconciles.
    fn average(&self) -> [f64; 2] {
        let count = self.rates.len().max(1) as f64;
        [0, 1].map(|which| self.rates.values().map(|rates| rates[which]).sum::<f64>() / count)
    }

    /// The smallest bound of a bucket that 99 of 100 keys have not waited longer than, and how many keys
    /// waited; counts again from here.
    fn queue_p99(&mut self) -> (f64, f64) {
        let waited = std::mem::take(&mut self.waited);
        let all = waited.get(ENDLESS).copied().unwrap_or(0.0);
        let bounds = waited
            .iter()
            .filter(|(_, count)| **count >= all * 0.99)
            .map(|(bound, _)| bound.parse().unwrap_or(f64::INFINITY));
        (bounds.fold(f64::INFINITY, f64::min), all)
    }
}

/// Sizes go up, and then down: a turn for each change of direction.
fn turns(sizes: &[usize]) -> usize {
    let ways: Vec<bool> = sizes
        .windows(2)
        .filter(|pair| pair[0] != pair[1])
        .map(|pair| pair[1] > pair[0])
        .collect();
    ways.windows(2).filter(|pair| pair[0] != pair[1]).count()
}

/// What a replica may do on average such that two are enough at rest and five are needed under load, and no
/// number in between is left too early: from what each of two does at rest and under load. The static pod
/// takes a share too.
fn target(rest: f64, loaded: f64) -> Result<u64> {
    let factor = f64::from(FACTOR);
    let share = |replicas: usize| 1.0 / (replicas + 1) as f64;
    // What all do under load, beyond what each does without any.
    let load = (loaded - rest) / share(FEWEST) / (1.0 - 1.0 / factor);
    let idle = loaded - load * share(FEWEST);
    // An autoscaler does nothing within a tenth.
    let at_most = (idle + load * share(MOST - 1)) / 1.1;
    let at_least = (idle + load / factor * share(MOST)) * MOST as f64 / FEWEST as f64;
    ensure!(
        at_least < at_most && idle + load / factor * share(FEWEST) < at_most,
        "a replica does {rest:.0} at rest and {loaded:.0} under {FACTOR} times the load: too little of it is the load's"
    );
    // A positive number of thousandths.
    Ok((at_least * at_most).sqrt().round() as u64)
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the replicas' processes, and reports the metrics API; follows the StatefulSet's size.
struct Watched {
    seen: Arc<Mutex<Seen>>,
    _tasks: JoinSet<()>,
}

impl Watched {
    fn start(bed: &Bed, api: MetricsApi) -> Result<Self> {
        let authority = bed.control_plane().authority();
        let reader = Reader {
            client: bed.client().clone(),
            authority: authority.certificate().to_owned(),
            identity: authority.client("viewer", Some("system:masters"))?,
        };
        let sets: Api<StatefulSet> =
            Api::namespaced(bed.client().clone(), harness::fleet::NAMESPACE);
        let seen = Arc::new(Mutex::new(Seen::default()));
        let mut tasks = JoinSet::new();
        let book = Arc::clone(&seen);
        tasks.spawn(async move {
            loop {
                let began = Instant::now();
                // The API server may be slow: the next round counts.
                let _next_time = reader.read(&api, &book).await;
                tokio::time::sleep(SCRAPED.saturating_sub(began.elapsed())).await;
            }
        });
        let book = Arc::clone(&seen);
        tasks.spawn(async move {
            loop {
                let set = sets.get("manifold").await.ok();
                let size = set.and_then(|set| set.spec?.replicas);
                if let Some(size) = size.and_then(|size| usize::try_from(size).ok()) {
                    lock(&book).sized(size);
                }
                tokio::time::sleep(POLL * 4).await;
            }
        });
        Ok(Self {
            seen,
            _tasks: tasks,
        })
    }

    fn size(&self) -> Option<usize> {
        lock(&self.seen).sizes.last().copied()
    }
}

/// Reads the replicas' `/metrics` by their pods' addresses.
struct Reader {
    client: Client,
    authority: String,
    identity: Identity,
}

impl Reader {
    /// One round over all replicas that run.
    async fn read(&self, api: &MetricsApi, book: &Mutex<Seen>) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), harness::fleet::NAMESPACE);
        let own = ListParams::default().labels("app.kubernetes.io/name=manifold");
        let pods = pods.list(&own).await?.items;
        let known = |uid: &String| {
            pods.iter()
                .any(|pod| pod.metadata.uid.as_ref() == Some(uid))
        };
        lock(book).rates.retain(|uid, _| known(uid));
        for pod in &pods {
            let address = pod.status.as_ref().and_then(|status| status.pod_ip.clone());
            let Some(uid) = &pod.metadata.uid else {
                continue;
            };
            // One that starts or ends does not answer.
            let Ok(metrics) = self.scrape(&address.unwrap_or_default()).await else {
                continue;
            };
            lock(book).scraped(uid, Instant::now(), &metrics);
        }
        // Of every pod the same: only their average is asked for. They have no label `app`.
        let [_, reconciles] = lock(book).average();
        let value = format!("{:.0}m", reconciles.max(0.0));
        api.pods(harness::fleet::NAMESPACE, "", METRIC, Some(&value));
        Ok(())
    }

    async fn scrape(&self, address: &str) -> Result<Metrics> {
        let server = format!("https://{address}:10257");
        let text = kubeconfig::render(&server, &self.authority, "viewer", &self.identity)?;
        let file = Kubeconfig::from_yaml(&text)?;
        let mut config =
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
        config.proxy_url = None;
        // Its serving certificate is one that it makes itself.
        config.accept_invalid_certs = true;
        let client = Client::try_from(config)?;
        let request = http::Request::get("/metrics").body(Vec::new())?;
        let answer = tokio::time::timeout(SCRAPED, client.request_text(request)).await??;
        Ok(Metrics::parse(&answer))
    }
}

/// The autoscaler of `deploy/overlays/autoscaled`, by what this machine's replicas do and with windows that a
/// test can wait for.
fn autoscaler(milli: u64) -> Result<Value> {
    let path = workspace_root().join("deploy/overlays/autoscaled/horizontal-pod-autoscaler.yaml");
    let text =
        std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let mut object: Value = serde_yaml::from_str(&text)?;
    let spec = &mut object["spec"];
    ensure!(
        spec["minReplicas"] == json!(FEWEST) && spec["maxReplicas"] == json!(MOST),
        "{spec}"
    );
    let target = json!({"type": "AverageValue", "averageValue": format!("{milli}m")});
    spec["metrics"] =
        json!([{"type": "Pods", "pods": {"metric": {"name": METRIC}, "target": target}}]);
    let behavior = &mut spec["behavior"];
    behavior["scaleUp"]["policies"][0]["periodSeconds"] = json!(15);
    behavior["scaleDown"]["stabilizationWindowSeconds"] = json!(60);
    behavior["scaleDown"]["policies"][0]["periodSeconds"] = json!(15);
    Ok(object)
}

/// One stretch of the test, printed.
fn report(what: &str, from: Instant, load: &Load, watched: &Watched) -> f64 {
    let (p50, p99, longest, changes) = load.waited(from);
    let mut seen = lock(&watched.seen);
    let (queue, keys) = seen.queue_p99();
    let [cpu, reconciles] = seen.average();
    println!(
        "autoscaled: {what}: {:.0} s, {changes} changes, p50 {p50:.0?}, p99 {p99:.0?}, longest {longest:.1?}; {keys} keys \
         waited in queues, p99 at most {queue} s; {:.1} keys a second and {cpu:.1} m of CPU for each of {} replicas; \
         sizes {:?}",
        from.elapsed().as_secs_f64(),
        reconciles / 1000.0,
        seen.rates.len(),
        seen.sizes
    );
    queue
}

#[test]
fn a_target_lies_between_what_too_many_and_what_too_few_use() {
    // Each uses 4 m for itself; all together 100 m under load, 10 m at rest.
    let milli = target(4.0 + 10.0 / 3.0, 4.0 + 100.0 / 3.0).unwrap();
    assert!((15..21).contains(&milli), "{milli}");
    assert!(target(30.0, 40.0).is_err(), "the load is not seen");
}

#[test]
fn sizes_that_go_up_and_down_once_turn_once() {
    for (sizes, expected) in [
        (&[2, 3, 4, 5, 4, 3, 2][..], 1),
        (&[2, 5, 2][..], 1),
        (&[2, 2, 3][..], 0),
        (&[2, 3, 2, 3, 5, 2][..], 3),
        (&[][..], 0),
    ] {
        assert_eq!(turns(sizes), expected, "{sizes:?}");
    }
}

#[test]
fn scrapes_report_cpu_keys_and_queue_waits_since_the_one_before() {
    let scrape = |cpu: f64, short: f64, all: f64| {
        Metrics::parse(&format!(
            "process_cpu_seconds_total {cpu}\n\
             workqueue_work_duration_seconds_count{{name=\"a\"}} {all}\n\
             workqueue_queue_duration_seconds_bucket{{name=\"a\",le=\"0.1\"}} {short}\n\
             workqueue_queue_duration_seconds_bucket{{name=\"a\",le=\"1\"}} {all}\n\
             workqueue_queue_duration_seconds_bucket{{name=\"a\",le=\"+Inf\"}} {all}\n"
        ))
    };
    let mut seen = Seen::default();
    let start = Instant::now();
    seen.scraped("uid", start, &scrape(1.0, 99.0, 100.0));
    assert!(seen.rates.is_empty());
    assert_eq!(seen.queue_p99(), (0.1, 100.0));
    let later = start + Duration::from_secs(10);
    seen.scraped("uid", later, &scrape(1.5, 100.0, 110.0));
    assert_eq!(seen.average().map(f64::round), [50.0, 1000.0]);
    assert_eq!(
        seen.queue_p99(),
        (1.0, 10.0),
        "of the ten since, one was short"
    );
}

#[test]
#[ignore = "a quarter of an hour, and real nodes: cargo parity"]
fn a_fleet_follows_ten_times_the_load_up_and_down_once() {
    if !can_run("autoscaled: a fleet scales itself") {
        return;
    }
    let _alone = alone();
    run_test(async {
        let bed = Bed::start().await?;
        install(&bed).await?;
        let set = ["-n", "manifold-system", "scale", "statefulset", "manifold"];
        bed.kubectl(&[&set[..], &["--replicas=2"]].concat()).await?;
        bed.replicas_are(FEWEST).await?;
        let namespace = bed.control_plane().namespace("load").await?;
        let load = Load::start(bed.client(), &namespace).await?;
        load.set_rate(BASE);
        let api = MetricsApi::start(bed.control_plane()).await?;
        let watched = Watched::start(&bed, api)?;

        // What they do, to scale by.
        tokio::time::sleep(MEASURED).await;
        let [_, rest] = lock(&watched.seen).average();
        load.set_rate(BASE * FACTOR);
        tokio::time::sleep(MEASURED).await;
        let [_, loaded] = lock(&watched.seen).average();
        load.set_rate(BASE);
        let milli = target(rest, loaded)?;
        println!(
            "autoscaled: each of {FEWEST} replicas reconciles {:.1} keys a second at {BASE} changes, {:.1} at {}: scaled for {:.1}",
            rest / 1000.0,
            loaded / 1000.0,
            BASE * FACTOR,
            milli as f64 / 1000.0
        );
        tokio::time::sleep(MEASURED / 2).await;
        lock(&watched.seen).queue_p99();

        bed.control_plane()
            .apply_text(&autoscaler(milli)?.to_string())
            .await?;
        let mut queues = Vec::new();
        let began = Instant::now();
        tokio::time::sleep(HOLDS).await;
        queues.push(report("at rest", began, &load, &watched));
        ensure!(watched.size() == Some(FEWEST), "{:?}", watched.size());

        load.set_rate(BASE * FACTOR);
        let began = Instant::now();
        let reach = |size: usize| {
            let watched = &watched;
            let what = format!("{size} replicas");
            async move {
                until(&what, FOLLOWS, POLL, || async {
                    let now = watched.size();
                    ensure!(now == Some(size), "{now:?}");
                    Ok(Some(()))
                })
                .await
            }
        };
        reach(MOST).await?;
        println!(
            "autoscaled: {MOST} replicas {:.0} s after the load",
            began.elapsed().as_secs_f64()
        );
        bed.replicas_are(MOST).await?;
        tokio::time::sleep(LOADED.saturating_sub(began.elapsed())).await;
        queues.push(report("ten times the load", began, &load, &watched));
        ensure!(watched.size() == Some(MOST), "{:?}", watched.size());

        load.set_rate(BASE);
        let began = Instant::now();
        reach(FEWEST).await?;
        println!(
            "autoscaled: {FEWEST} replicas {:.0} s after the load's end",
            began.elapsed().as_secs_f64()
        );
        bed.replicas_are(FEWEST).await?;
        tokio::time::sleep(HOLDS).await;
        queues.push(report("at rest again", began, &load, &watched));

        let sizes = lock(&watched.seen).sizes.clone();
        ensure!(turns(&sizes) == 1, "it oscillates: {sizes:?}");
        ensure!(
            queues.iter().all(|queue| *queue <= WAITS),
            "p99 of the waits in queues: {queues:?}"
        );
        judge(bed.control_plane(), "autoscaled").map(drop)
    });
}
