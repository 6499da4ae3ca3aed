//! What Prometheus scrapes of a fleet: one static pod and a StatefulSet of three, by the names, labels and
//! buckets that the program itself exports.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use node_telemetry::metrics::Metrics;

use super::rules::Rules;
use super::series::Series;

/// Between two scrapes.
pub(super) const STEP_SECONDS: u32 = 30;
/// A whole run.
pub(super) const MINUTES: u32 = 120;
/// The ranges of the fleet.
pub(super) const RANGES: f64 = 256.0;

const DAY: f64 = 86_400.0;
const CODES: [(&str, Option<u16>); 6] = [
    ("GET", Some(200)),
    ("POST", Some(201)),
    ("PATCH", Some(409)),
    ("PATCH", Some(429)),
    ("POST", Some(500)),
    ("GET", None),
];

/// A series without the labels of its target.
type Name = String;

/// One target at one scrape: gauges as they are, counters by how much they grow.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) namespace: &'static str,
    pub(super) pod: String,
    pub(super) instance: String,
    /// Whether Prometheus knows it at all.
    pub(super) exists: bool,
    /// Whether it answers.
    pub(super) up: bool,
    /// When its process began, in seconds: its counters then begin again.
    started: f64,
    gauges: BTreeMap<Name, f64>,
    /// In a second.
    rates: BTreeMap<Name, f64>,
    /// At this scrape alone.
    added: BTreeMap<Name, f64>,
}

/// All targets at one scrape.
#[derive(Debug, Clone)]
pub(super) struct Cluster {
    /// The static pod, then the pods of the StatefulSet.
    pub(super) targets: Vec<Target>,
    /// `replicas` of the StatefulSet, where kube-state-metrics runs.
    pub(super) wanted: Option<f64>,
    exported: BTreeSet<Name>,
}

impl Target {
    /// Sets a gauge that the healthy replica has.
    pub(super) fn set(&mut self, name: &str, value: f64) {
        let gauge = self.gauges.get_mut(name);
        *gauge.unwrap_or_else(|| panic!("a healthy replica has no gauge {name}")) = value;
    }

    /// Sets how much a counter grows in a second.
    pub(super) fn rate(&mut self, name: &str, value: f64) {
        let rate = self.rates.get_mut(name);
        *rate.unwrap_or_else(|| panic!("a healthy replica has no counter {name}")) = value;
    }

    /// Adds to a counter at this scrape.
    pub(super) fn add(&mut self, name: &str, value: f64) {
        assert!(self.rates.contains_key(name), "no counter {name}");
        self.added.insert(name.to_owned(), value);
    }

    /// Its process began that many seconds into the run.
    pub(super) fn start(&mut self, at: f64) {
        self.started = at;
        self.set("process_start_time_seconds", at);
    }

    /// It may not write: since it could not renew, or as another manager may.
    pub(super) fn fenced(&mut self) {
        self.set("manifold_fence_open", 0.0);
    }

    /// How many keys of the queue `deployment` are taken up in a second, after waits below 0.1 s and of 1 to
    /// 10 s.
    pub(super) fn waits(&mut self, short: f64, long: f64) {
        for (name, rate) in &mut self.rates {
            let queue = name.contains(r#"name="deployment""#);
            if queue && name.starts_with("workqueue_queue_duration_seconds_count") {
                *rate = short + long;
            } else if queue && name.starts_with("workqueue_queue_duration_seconds_bucket") {
                let bound = name.split("le=\"").nth(1).unwrap_or_default();
                let bound = bound.split('"').next().unwrap_or_default();
                *rate = match bound.parse::<f64>() {
                    Ok(bound) if bound < 0.05 => 0.0,
                    Ok(bound) if bound < 5.0 => short,
                    _ => short + long,
                };
            }
        }
    }

    /// Nothing of the API server arrives: no request is answered, no key taken up.
    pub(super) fn cut_off(&mut self, seconds: f64) {
        self.fenced();
        self.waits(0.0, 0.0);
        self.set(r#"workqueue_depth{name="deployment"}"#, 40.0);
        let requests: Vec<Name> = self
            .rates
            .keys()
            .filter(|name| name.starts_with("rest_client_requests_total"))
            .cloned()
            .collect();
        for name in requests {
            let fails = name.contains("<error>");
            self.rate(&name, if fails { 2.0 } else { 0.0 });
        }
        for resource in ["pods", "deployments.apps"] {
            let lag = format!("manifold_cache_lag_seconds{{resource=\"{resource}\"}}");
            self.set(&lag, 40.0 + seconds);
        }
    }

    /// It is no replica: it has nothing of ours.
    pub(super) fn forget_ours(&mut self) {
        let is_other = |name: &Name| !name.starts_with("manifold_");
        self.gauges.retain(|name, _| is_other(name));
        self.rates.retain(|name, _| is_other(name));
    }

    fn labels(&self) -> String {
        let (container, endpoint) = match self.namespace {
            "kube-system" => ("manifold", "https-metrics"),
            _ => ("manifold", "https"),
        };
        format!(
            r#"container="{container}",endpoint="{endpoint}",instance="{}",job="kube-controller-manager",namespace="{}",pod="{}""#,
            self.instance, self.namespace, self.pod
        )
    }

    /// A series with the labels that Prometheus adds.
    fn labelled(&self, name: &str) -> String {
        match name.strip_suffix('}') {
            Some(open) => format!("{open},{}}}", self.labels()),
            None => format!("{name}{{{}}}", self.labels()),
        }
    }
}

impl Cluster {
    /// A fleet at rest.
    pub(super) fn healthy(rules: &Rules) -> Self {
        let named = rules.metrics();
        let exported: BTreeSet<Name> = exported()
            .into_iter()
            .filter(|name| named.contains(name.split('{').next().unwrap_or(name)))
            .collect();
        let targets = (0..4).map(|at| target(at, &exported)).collect();
        Self {
            targets,
            wanted: Some(3.0),
            exported,
        }
    }

    /// Every replica that there is.
    pub(super) fn each(&mut self) -> impl Iterator<Item = &mut Target> {
        self.targets.iter_mut()
    }

    /// A gauge that is there only while something is wrong.
    pub(super) fn appears(&mut self, name: &str, value: f64) {
        assert!(self.exported.contains(name), "nobody exports {name}");
        for target in &mut self.targets {
            target.gauges.insert(name.to_owned(), value);
        }
    }

    /// How many members the others see, by state.
    pub(super) fn members(&mut self, ready: f64, not_ready: f64, draining: f64) {
        for target in &mut self.targets {
            target.set(r#"manifold_members{state="ready"}"#, ready);
            target.set(r#"manifold_members{state="not_ready"}"#, not_ready);
            target.set(r#"manifold_members{state="draining"}"#, draining);
        }
    }

    /// One more replica than there were, of the StatefulSet.
    pub(super) fn join(&mut self) {
        let target = target(self.targets.len(), &self.exported);
        self.targets.push(target);
    }
}

/// A healthy replica.
fn target(at: usize, exported: &BTreeSet<Name>) -> Target {
    let is_counter = |name: &&Name| {
        let name = name.split('{').next().unwrap_or_default();
        ["_total", "_bucket", "_count", "_sum"]
            .iter()
            .any(|end| name.ends_with(end))
    };
    let (counters, gauges): (Vec<&Name>, Vec<&Name>) = exported.iter().partition(is_counter);
    let mut target = Target {
        namespace: if at == 0 {
            "kube-system"
        } else {
            "manifold-system"
        },
        pod: match at {
            0 => "manifold-cp-1".to_owned(),
            _ => format!("manifold-{}", at - 1),
        },
        instance: match at {
            0 => "192.168.0.10:10257".to_owned(),
            _ => format!("10.244.1.{at}:10257"),
        },
        exists: true,
        up: true,
        started: 0.0,
        gauges: gauges.into_iter().map(|name| (name.clone(), 0.0)).collect(),
        rates: counters
            .into_iter()
            .map(|name| (name.clone(), 0.0))
            .collect(),
        added: BTreeMap::new(),
    };
    // There only while replicas differ.
    target
        .gauges
        .retain(|name, _| !name.starts_with("manifold_key_material_differs"));
    for (name, value) in [
        ("manifold_ranges", RANGES),
        ("manifold_ranges_owned", RANGES / 4.0),
        ("manifold_fence_open", 1.0),
        ("manifold_renewal_margin_seconds", 1.95),
        (r#"manifold_members{state="ready"}"#, 4.0),
        ("manifold_current", 1.0),
        (r#"manifold_cache_lag_seconds{resource="pods"}"#, 5.0),
        (
            r#"manifold_cache_lag_seconds{resource="deployments.apps"}"#,
            55.0,
        ),
        ("process_resident_memory_bytes", 60.0 * 1024.0 * 1024.0),
        ("manifold_memory_limit_bytes", 384.0 * 1024.0 * 1024.0),
        (
            r#"manifold_client_certificate_expiration_timestamp_seconds{flag="kubeconfig"}"#,
            200.0 * DAY,
        ),
    ] {
        target.set(name, value);
    }
    for (name, rate) in [
        (
            r#"rest_client_requests_total{code="200",host="10.96.0.1:443",method="GET"}"#,
            5.0,
        ),
        (
            r#"rest_client_requests_total{code="201",host="10.96.0.1:443",method="POST"}"#,
            1.0,
        ),
        (
            r#"rest_client_requests_total{code="409",host="10.96.0.1:443",method="PATCH"}"#,
            0.125,
        ),
        (
            r#"manifold_reconciles_total{controller="deployment-controller",result="success"}"#,
            4.0,
        ),
        (
            r#"manifold_reconciles_total{controller="deployment-controller",result="error"}"#,
            0.03125,
        ),
        (
            r#"manifold_reconciles_total{controller="job-controller",result="success"}"#,
            0.25,
        ),
    ] {
        target.rate(name, rate);
    }
    target.waits(4.0, 0.0);
    target
}

/// Every series of a replica that has done a little of everything, without values.
fn exported() -> Vec<Name> {
    let metrics = Metrics::new(&node_registry::descriptors());
    let ms = Duration::from_millis;
    for name in ["deployment", "job"] {
        let queue = metrics.queue(name);
        queue.added();
        queue.started(ms(1));
        queue.finished(ms(1));
    }
    let client = metrics.client("10.96.0.1:443");
    for (method, code) in CODES {
        client.answered(method, code, ms(1), 1, Some(1));
    }
    for name in ["deployment-controller", "job-controller"] {
        let controller = metrics.controller(name);
        for result in ["success", "requeue", "error"] {
            controller.reconciled(result);
        }
        controller.panicked();
    }
    for resource in ["pods", "deployments.apps"] {
        let cache = metrics.cache(resource);
        cache.lag(ms(1));
        cache.decode_error();
    }
    metrics.members(&[("ready", 0), ("not_ready", 0), ("draining", 0)]);
    metrics.key_material_differs(&["controllers".to_owned()]);
    metrics.ownership_changed("fenced");
    metrics.pauses("deployment-controller", 0, 0);
    metrics.client_certificate_ends("kubeconfig", Some(1));
    let text = metrics.encode();
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned()))
        .collect()
}

/// The whole run of a fleet to which something happens, as Prometheus has scraped it.
pub(super) fn run(rules: &Rules, at_each: impl Fn(&mut Cluster, f64)) -> Series {
    let healthy = Cluster::healthy(rules);
    let mut series = Series::default();
    // Of each target's present process, by pod: when it began and what its counters are.
    let mut counters = BTreeMap::<(String, String), (f64, BTreeMap<Name, f64>)>::new();
    for step in 0..=MINUTES * 60 / STEP_SECONDS {
        let mut now = healthy.clone();
        at_each(&mut now, f64::from(step * STEP_SECONDS) / 60.0);
        let mut scraped = Vec::new();
        if let Some(wanted) = now.wanted {
            scraped.push((
                r#"kube_statefulset_replicas{job="kube-state-metrics",namespace="manifold-system",statefulset="manifold"}"#
                    .to_owned(),
                wanted,
            ));
        }
        for target in now.targets.iter().filter(|target| target.exists) {
            scraped.push((target.labelled("up"), f64::from(u8::from(target.up))));
            let (started, counted) = counters
                .entry((target.pod.clone(), target.instance.clone()))
                .or_default();
            if *started < target.started {
                *started = target.started;
                counted.clear();
            }
            for (name, rate) in &target.rates {
                let value = counted.entry(name.clone()).or_default();
                *value += rate * f64::from(STEP_SECONDS);
                *value += target.added.get(name).copied().unwrap_or_default();
            }
            if target.up {
                let gauges = target.gauges.iter().map(|(name, value)| (name, *value));
                let counters = counted.iter().map(|(name, value)| (name, *value));
                scraped.extend(
                    gauges
                        .chain(counters)
                        .map(|(name, value)| (target.labelled(name), value)),
                );
            }
        }
        series.scraped(scraped);
    }
    series
}
