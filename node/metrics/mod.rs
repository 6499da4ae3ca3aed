//! What the process exports to Prometheus, under upstream's names wherever upstream has one.
//!
//! Everything is counted with atomics through handles that are fetched once ([`Metrics::queue`],
//! [`Metrics::controller`], [`Metrics::cache`], [`Metrics::client`]), so that counting costs nanoseconds and
//! no lock is shared on the way of an event. Label values come from fixed sets (controllers, resources,
//! verbs, results, status codes), so the number of series is bounded by the program and not by the cluster.

mod declared;
mod exposition;
mod histogram;
mod process;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicI64, AtomicU64},
    },
    time::{Duration, Instant},
};

use controllers_kit::{Descriptor, Key, Measure};
use coordinator::Planned;
use declared::Declared;
use node_options::version;
use prometheus_client::{
    encoding::text::encode,
    metrics::{MetricType, counter::Counter, family::Family, gauge::Gauge},
    registry::{Metric, Registry},
};

use shadow::Kind;

pub use exposition::CONTENT_TYPE;
use histogram::{Histogram, exponential};
pub use process::start_time_seconds;

type Text = Cow<'static, str>;
type Labels<const N: usize> = [(&'static str, Text); N];
type Counters<const N: usize> = Family<Labels<N>, Counter>;
type Gauges<const N: usize> = Family<Labels<N>, Gauge<i64, AtomicI64>>;
type Seconds<const N: usize> = Family<Labels<N>, Gauge<f64, AtomicU64>>;
type Histograms<const N: usize> = Family<Labels<N>, Histogram, fn() -> Histogram>;

/// What upstream's labels call the process and its Lease.
const MANAGER: &str = "kube-controller-manager";

/// Keys that one queue works on at once and that are tracked for `unfinished_work_seconds`: far more than any
/// `--concurrent-*-syncs` in use. Beyond it the two gauges read too low; nothing else suffers.
const IN_FLIGHT_TRACKED_MAX: usize = 4096;

/// From 10 ns to 10 s: upstream's bounds for queues.
fn queue_seconds() -> Histogram {
    Histogram::new(exponential(10e-9, 10.0, 10))
}

/// Upstream's bounds for requests and for waiting in front of the rate limit.
fn request_seconds() -> Histogram {
    Histogram::new(vec![
        0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0,
    ])
}

/// 64 bytes to 16 MiB: upstream's bounds for bodies.
fn body_bytes() -> Histogram {
    Histogram::new(vec![
        64.0,
        256.0,
        512.0,
        1024.0,
        4096.0,
        16384.0,
        65536.0,
        262_144.0,
        1_048_576.0,
        4_194_304.0,
        16_777_216.0,
    ])
}

/// 1 µs to 4 s: a plan takes microseconds, and one that takes seconds must be seen.
fn plan_seconds() -> Histogram {
    Histogram::new(exponential(1e-6, 4.0, 12))
}

/// 1 ms to 33 s: a handoff takes milliseconds, a takeover up to the lease duration and some.
fn move_seconds() -> Histogram {
    Histogram::new(exponential(0.001, 2.0, 16))
}

/// Seconds as Prometheus wants them.
fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}

struct Families {
    depth: Gauges<1>,
    adds: Counters<1>,
    waited: Histograms<1>,
    worked: Histograms<1>,
    unfinished: Seconds<1>,
    longest: Seconds<1>,
    retries: Counters<1>,

    requests: Counters<3>,
    request_seconds: Histograms<2>,
    request_bytes: Histograms<2>,
    response_bytes: Histograms<2>,
    limiter_seconds: Histograms<2>,
    request_retries: Counters<3>,

    ranges: Gauge<i64, AtomicI64>,
    ranges_unowned: Gauge<i64, AtomicI64>,
    ranges_owned: Gauge<i64, AtomicI64>,
    epoch_changes: Counter,
    handoff_seconds: Histograms<1>,
    takeover_seconds: Histogram,
    fence_refusals: Counters<1>,
    fence_open: Gauge<i64, AtomicI64>,
    fence_remaining: Gauge<f64, AtomicU64>,
    api_budget: Gauge<f64, AtomicU64>,
    api_back_pressure: Gauge<f64, AtomicU64>,
    standby: Gauge<i64, AtomicI64>,
    leader: Gauges<1>,
    slow_renewals: Counters<1>,
    features: Gauges<2>,
    running: Gauges<2>,
    disabled: Counter,
    certificate_expiration: Histogram,
    client_certificate_ends: Gauges<1>,
    server_fence: Gauge<i64, AtomicI64>,
    server_fence_proofs: Counters<1>,
    peer_refusals: Counters<1>,
    ownership_changes: Counters<1>,
    cache_lag: Seconds<1>,
    cache_objects: Gauges<1>,
    cache_bytes: Gauges<1>,
    discovery_failing: Gauges<1>,
    key_material_differs: Gauges<1>,
    members: Gauges<1>,
    members_unreachable: Gauge<i64, AtomicI64>,
    current: Gauge<i64, AtomicI64>,
    drained: Gauge<i64, AtomicI64>,
    decode_errors: Counters<1>,
    plan_seconds: Histograms<1>,
    plan_panics: Counters<1>,
    config_reads: Counters<1>,
    config_pending: Gauge<i64, AtomicI64>,
    config_refused: Gauge<i64, AtomicI64>,
    plan_breaches: Counters<1>,
    wake_panics: Counters<1>,
    quarantined: Gauges<1>,
    paused_waiting: Gauges<1>,
    pauses: Gauges<2>,
    drains: Gauge<i64, AtomicI64>,
    moves: Gauge<i64, AtomicI64>,
    moves_without_effect: Gauge<i64, AtomicI64>,
    plan: Gauge<i64, AtomicI64>,
    plan_in_force: Gauge<i64, AtomicI64>,
    imbalance: Gauge<f64, AtomicU64>,
    settings: Seconds<2>,
    steering_faults: Gauge<i64, AtomicI64>,
    steering_unread: Gauge<i64, AtomicI64>,
    shadow: Gauge<i64, AtomicI64>,
    shadow_verdicts: [(Kind, Counters<1>); 5],
    shadow_pending: Gauges<1>,
    shadow_dropped: Gauge<i64, AtomicI64>,
    reconciles: Counters<2>,
    writes: Counters<4>,
    events_dropped: Counter,
    marks_dropped: Counter,
    spans_exported: Counter,
    spans_dropped: Counters<1>,
}

/// Registers as it goes, so that no family can be made and forgotten; and the families with their types, by
/// the names that they were registered with.
struct Registering(Registry, Vec<(String, MetricType)>);

impl Registering {
    fn add<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.0.register(name, help, metric.clone());
        self.1.push((name.to_owned(), metric.metric_type()));
        metric
    }

    /// A counter's name is given without the `_total` that it is served with.
    fn counters<const N: usize>(&mut self, name: &str, help: &str) -> Counters<N> {
        self.add(name, help, Family::default())
    }

    fn gauges<const N: usize>(&mut self, name: &str, help: &str) -> Gauges<N> {
        self.add(name, help, Family::default())
    }

    fn seconds<const N: usize>(&mut self, name: &str, help: &str) -> Seconds<N> {
        self.add(name, help, Family::default())
    }

    fn histograms<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        of: fn() -> Histogram,
    ) -> Histograms<N> {
        self.add(name, help, Family::new_with_constructor(of))
    }
}

/// All metrics of the process. Clone the `Arc` that [`Metrics::new`] gives.
pub struct Metrics {
    registry: Registry,
    slis: Registry,
    families: Families,
    declared: Arc<Declared>,
    registered: Vec<(String, MetricType)>,
    healthcheck: Gauges<2>,
    healthchecks: Counters<3>,
    queues: Mutex<BTreeMap<&'static str, Arc<QueueMetrics>>>,
    refresh: OnceLock<Refresh>,
}

/// Brings gauges that nobody pushes up to date.
type Refresh = Box<dyn Fn(&Metrics) + Send + Sync>;

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Metrics {
    /// All families, those that the controllers declare included, with nothing counted yet.
    pub fn new(descriptors: &[Descriptor]) -> Arc<Self> {
        let mut on = Registering(Registry::default(), Vec::new());
        let families = families(&mut on);
        let declared = Arc::new(Declared::register(&mut on, descriptors));
        build_info(&mut on);
        registered(&mut on);
        on.0.register_collector(Box::new(process::Process));

        let mut slis = Registering(Registry::default(), Vec::new());
        let healthcheck = slis.gauges(
            "kubernetes_healthcheck",
            "1 where the latest run of a health check passed, 0 where it failed.",
        );
        let healthchecks = slis.counters(
            "kubernetes_healthchecks",
            "Runs of health checks, by what came of them.",
        );
        let start: Gauge<f64, AtomicU64> = slis.add(
            "process_start_time_seconds",
            "Start time of the process since unix epoch in seconds.",
            Gauge::default(),
        );
        start.set(start_time_seconds());
        Arc::new(Self {
            registry: on.0,
            slis: slis.0,
            families,
            declared,
            registered: on.1,
            healthcheck,
            healthchecks,
            queues: Mutex::default(),
            refresh: OnceLock::new(),
        })
    }

    /// The `workqueue_*` metrics of one queue; the name is [`controllers_kit::Descriptor::queue`]. The same
    /// name gives the same handle.
    pub fn queue(&self, name: &'static str) -> Arc<QueueMetrics> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = queues.entry(name).or_insert_with(|| {
            let labels = [("name", Text::from(name))];
            let families = &self.families;
            Arc::new(QueueMetrics {
                depth: families.depth.get_or_create_owned(&labels),
                adds: families.adds.get_or_create_owned(&labels),
                waited: families.waited.get_or_create_owned(&labels),
                worked: families.worked.get_or_create_owned(&labels),
                unfinished: families.unfinished.get_or_create_owned(&labels),
                longest: families.longest.get_or_create_owned(&labels),
                retries: families.retries.get_or_create_owned(&labels),
                in_flight: Mutex::default(),
            })
        });
        queue.clone()
    }

    /// The `rest_client_*` metrics towards one API server; `host` is `name:port` as in its URL.
    pub fn client(&self, host: &str) -> Arc<ClientMetrics> {
        let families = &self.families;
        Arc::new(ClientMetrics {
            host: Text::from(host.to_owned()),
            requests: families.requests.clone(),
            request_seconds: families.request_seconds.clone(),
            request_bytes: families.request_bytes.clone(),
            response_bytes: families.response_bytes.clone(),
            limiter_seconds: families.limiter_seconds.clone(),
            retries: families.request_retries.clone(),
        })
    }

    /// What one controller's work is counted by; the name is [`controllers_kit::Descriptor::name`].
    pub fn controller(&self, name: &'static str) -> Arc<ControllerMetrics> {
        let labels = [("controller", Text::from(name))];
        let families = &self.families;
        Arc::new(ControllerMetrics {
            name,
            plan_seconds: families.plan_seconds.get_or_create_owned(&labels),
            plan_panics: families.plan_panics.get_or_create_owned(&labels),
            plan_breaches: families.plan_breaches.get_or_create_owned(&labels),
            wake_panics: families.wake_panics.get_or_create_owned(&labels),
            quarantined: families.quarantined.get_or_create_owned(&labels),
            paused_waiting: families.paused_waiting.get_or_create_owned(&labels),
            fence_refusals: families.fence_refusals.get_or_create_owned(&labels),
            reconciles: families.reconciles.clone(),
            writes: families.writes.clone(),
            declared: Arc::clone(&self.declared),
        })
    }

    /// What one resource's cache is described by, as in `pods` or `replicasets.apps`.
    pub fn cache(&self, resource: &str) -> Arc<CacheMetrics> {
        let labels = [("resource", Text::from(resource.to_owned()))];
        let families = &self.families;
        Arc::new(CacheMetrics {
            lag: families.cache_lag.get_or_create_owned(&labels),
            objects: families.cache_objects.get_or_create_owned(&labels),
            bytes: families.cache_bytes.get_or_create_owned(&labels),
            decode_errors: families.decode_errors.get_or_create_owned(&labels),
        })
    }

    /// What discovery has brought and can't be read: exactly these, so that what works again disappears.
    pub fn discovery_failing(&self, names: &[String]) {
        let family = &self.families.discovery_failing;
        family.clear();
        for name in names {
            family
                .get_or_create(&[("name", Text::from(name.clone()))])
                .set(1);
        }
    }

    /// The configuration file has changed and was used or refused; how many of its fields need a restart.
    pub fn config_read(&self, used: bool, pending: usize) {
        let result = if used { "used" } else { "refused" };
        self.families
            .config_reads
            .get_or_create(&[("result", result.into())])
            .inc();
        self.families.config_refused.set(i64::from(!used));
        if used {
            let pending = i64::try_from(pending).unwrap_or(i64::MAX);
            self.families.config_pending.set(pending);
        }
    }

    /// What the members of the fleet have not got the same of, by name.
    pub fn key_material_differs(&self, names: &[String]) {
        let family = &self.families.key_material_differs;
        family.clear();
        for name in names {
            family
                .get_or_create(&[("name", Text::from(name.clone()))])
                .set(1);
        }
    }

    /// Whether what this replica sees is current.
    pub fn current(&self, current: bool) {
        self.families.current.set(i64::from(current));
    }

    /// How many members there are, by state: `ready`, `not_ready`, `draining`. Each state keeps its series,
    /// so that an alert sees it fall to 0.
    pub fn members(&self, by_state: &[(&'static str, usize)]) {
        for (state, count) in by_state {
            self.families
                .members
                .get_or_create(&[("state", Text::from(*state))])
                .set(i64::try_from(*count).unwrap_or(i64::MAX));
        }
    }

    /// How many members do not answer this replica.
    pub fn members_unreachable(&self, count: usize) {
        self.families
            .members_unreachable
            .set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// How many ranges there are, and how many of them have no live owner, as this replica sees it.
    pub fn ranges(&self, all: usize, unowned: usize) {
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.families.ranges.set(count(all));
        self.families.ranges_unowned.set(count(unowned));
    }

    /// Whether this replica leaves its ranges to others.
    pub fn drained(&self, drained: bool) {
        self.families.drained.set(i64::from(drained));
    }

    /// How many orders pause a controller, and how many a key of it.
    pub fn pauses(&self, controller: &'static str, whole: usize, keys: usize) {
        for (of, count) in [("controller", whole), ("key", keys)] {
            self.families
                .pauses
                .get_or_create(&[("controller", controller.into()), ("of", of.into())])
                .set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// How many drains hold.
    pub fn drains(&self, count: usize) {
        self.families
            .drains
            .set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// How many moves of ranges hold.
    pub fn moves(&self, count: usize) {
        self.families
            .moves
            .set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// The fleet's plan of placement, and moves by order that have no effect.
    pub fn placement(&self, planned: &Planned) {
        let families = &self.families;
        let idle = planned.pins.iter().filter(|pin| !pin.counts).count();
        families
            .moves_without_effect
            .set(i64::try_from(idle).unwrap_or(i64::MAX));
        families
            .plan
            .set(i64::try_from(planned.number).unwrap_or(i64::MAX));
        families.plan_in_force.set(i64::from(planned.in_force));
        // Who does not plan does not know it.
        let imbalance = planned.spread.map_or(0.0, |(most, mean)| match mean {
            0 => 1.0,
            mean => most as f64 / mean as f64,
        });
        families.imbalance.set(imbalance);
    }

    /// The value that an order has set of a controller; 0 without one.
    pub fn setting(&self, controller: &'static str, setting: &'static str, value: f64) {
        self.families
            .settings
            .get_or_create(&[
                ("controller", controller.into()),
                ("setting", setting.into()),
            ])
            .set(value);
    }

    /// Whether this replica can't read the fleet's orders.
    pub fn steering_unread(&self, unread: bool) {
        self.families.steering_unread.set(i64::from(unread));
    }

    /// How many fields of the fleet's steering object can't be read.
    pub fn steering_faults(&self, count: usize) {
        self.families
            .steering_faults
            .set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// This process is a shadow.
    pub fn is_shadow(&self) {
        self.families.shadow.set(1);
    }

    /// What has come of a planned write, or of a change that no plan wanted.
    pub fn shadow_verdict(&self, controller: &'static str, kind: Kind) {
        let families = &self.families.shadow_verdicts;
        if let Some((_, family)) = families.iter().find(|(of, _)| *of == kind) {
            family
                .get_or_create(&[("controller", controller.into())])
                .inc();
        }
    }

    /// How many planned writes of a controller are waited for.
    pub fn shadow_pending(&self, controller: &'static str, count: usize) {
        self.families
            .shadow_pending
            .get_or_create(&[("controller", controller.into())])
            .set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// What bounds have left out of the comparison since the start.
    pub fn shadow_dropped(&self, count: u64) {
        self.families
            .shadow_dropped
            .set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// How many ranges this replica owns.
    pub fn ranges_owned(&self, count: usize) {
        self.families
            .ranges_owned
            .set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// A range has come to this replica under a new epoch.
    pub fn epoch_changed(&self) {
        self.families.epoch_changes.inc();
    }

    /// A handoff has ended: from the freeze to the other owner's Lease.
    pub fn handed_off(&self, direction: Direction, took: Duration) {
        let labels = [("direction", Text::from(direction.as_str()))];
        self.families
            .handoff_seconds
            .get_or_create(&labels)
            .observe(seconds(took));
    }

    /// A takeover has ended: from the moment the owner was found dead to the moment the range was ours.
    pub fn taken_over(&self, took: Duration) {
        self.families.takeover_seconds.observe(seconds(took));
    }

    /// For how long this replica may write without another renewal: at zero its fence is closed.
    pub fn fence(&self, remaining: Duration) {
        self.families
            .fence_open
            .set(i64::from(!remaining.is_zero()));
        self.families.fence_remaining.set(seconds(remaining));
    }

    /// The part of `--kube-api-qps` that this replica may use now, and what the API server's back-pressure
    /// has left of it, both of 1.
    pub fn api_budget(&self, scale: f64, pressure: f64) {
        self.families.api_budget.set(scale);
        self.families.api_back_pressure.set(pressure);
    }

    /// Whether another manager, or another fleet, holds the Lease that keeps managers apart.
    pub fn standby(&self, waits: bool) {
        self.families.standby.set(i64::from(waits));
    }

    /// Whether this replica works under the Lease of this name, which the fleet holds. Every such replica
    /// works as KCM's leader does, so it counts as one.
    pub fn leads(&self, lease: &str, leads: bool) {
        self.families
            .leader
            .get_or_create(&[("name", Text::from(lease.to_owned()))])
            .set(i64::from(leads));
    }

    /// How many renewals of the Lease of this name were made on a version that had to be read first, since
    /// the process started.
    pub fn slow_renewals(&self, lease: &str, count: u64) {
        let counter = self
            .families
            .slow_renewals
            .get_or_create(&[("name", Text::from(lease.to_owned()))]);
        counter.inc_by(count.saturating_sub(counter.get()));
    }

    /// What the process was started with: feature gates with their stages, the controllers that run, and how
    /// many metrics are not shown.
    pub fn started_with(
        &self,
        gates: impl Iterator<Item = (&'static str, &'static str, bool)>,
        controllers: &[&'static str],
        disabled: usize,
    ) {
        let families = &self.families;
        for (name, stage, on) in gates {
            families
                .features
                .get_or_create(&[("name", name.into()), ("stage", stage.into())])
                .set(i64::from(on));
        }
        for name in controllers {
            families
                .running
                .get_or_create(&[("name", (*name).into()), ("manager", MANAGER.into())])
                .set(1);
        }
        families
            .disabled
            .inc_by(u64::try_from(disabled).unwrap_or(u64::MAX));
    }

    /// A client of the secure port was known by a certificate that is valid for so long still.
    pub fn client_certificate(&self, valid_for: Duration) {
        self.families
            .certificate_expiration
            .observe(seconds(valid_for));
    }

    /// When the client certificate of a kubeconfig ends to be valid, in seconds since 1970; `None` where
    /// there is none (any more).
    pub fn client_certificate_ends(&self, flag: &'static str, seconds: Option<i64>) {
        let labels = [("flag", Text::from(flag))];
        let family = &self.families.client_certificate_ends;
        match seconds {
            Some(seconds) => {
                family.get_or_create(&labels).set(seconds);
            }
            None => {
                family.remove(&labels);
            }
        }
    }

    /// Whether the API server fences, and how often it was shown to refuse a dead incarnation, or was not.
    pub fn server_fence(&self, on: bool, (held, unproven): (u64, u64)) {
        self.families.server_fence.set(i64::from(on));
        for (result, count) in [("held", held), ("unproven", unproven)] {
            let labels = [("result", Text::from(result))];
            let counter = self.families.server_fence_proofs.get_or_create(&labels);
            counter.inc_by(count.saturating_sub(counter.get()));
        }
    }

    /// How many peers were refused, by reason.
    pub fn peer_refusals(&self, refusals: &[(&'static str, u64)]) {
        for (reason, count) in refusals {
            let labels = [("reason", Text::from(*reason))];
            let counter = self.families.peer_refusals.get_or_create(&labels);
            counter.inc_by(count.saturating_sub(counter.get()));
        }
    }

    /// Something has happened to ownership.
    pub fn ownership_changed(&self, what: &'static str) {
        self.families
            .ownership_changes
            .get_or_create(&[("what", Text::from(what))])
            .inc();
    }

    /// An Event was not sent: their queue was full or the server refused it.
    pub fn event_dropped(&self) {
        self.families.events_dropped.inc();
    }

    /// What has become of spans since this was last called.
    pub fn trace_spans(&self, exported: u64, dropped: &[(&'static str, u64)]) {
        self.families.spans_exported.inc_by(exported);
        for (why, count) in dropped {
            let labels = [("reason", (*why).into())];
            self.families
                .spans_dropped
                .get_or_create(&labels)
                .inc_by(*count);
        }
    }

    /// A mark that came with a range can't be true and was left out.
    pub fn mark_dropped(&self) {
        self.families.marks_dropped.inc();
    }

    /// One run of a health check; `kind` is `healthz`, `livez` or `readyz`.
    pub fn health_checked(&self, name: &str, kind: &'static str, passed: bool) {
        let name = Text::from(name.to_owned());
        self.healthcheck
            .get_or_create(&[("name", name.clone()), ("type", kind.into())])
            .set(i64::from(passed));
        let status = if passed { "success" } else { "error" };
        self.healthchecks
            .get_or_create(&[
                ("name", name),
                ("status", status.into()),
                ("type", kind.into()),
            ])
            .inc();
    }

    /// The names under which `/metrics` has samples, those that have no series yet included.
    pub fn names(&self) -> BTreeSet<String> {
        // A collector's families are not registered; none of them is a histogram.
        let encoded = self.encode();
        let collected = encoded
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
            .filter(|(_, kind)| *kind != "histogram")
            .map(|(name, _)| name.to_owned());
        let suffixes = |name: &str, kind: &MetricType| match kind {
            MetricType::Histogram => ["_bucket", "_sum", "_count"].as_slice(),
            MetricType::Counter if !self.declared.bare.contains(name) => ["_total"].as_slice(),
            _ => [""].as_slice(),
        };
        let registered = self.registered.iter().flat_map(|(name, kind)| {
            let of = suffixes(name, kind).iter();
            of.map(move |suffix| format!("{name}{suffix}"))
        });
        collected.chain(registered).collect()
    }

    /// `/metrics`, in the Prometheus text format; see [`CONTENT_TYPE`].
    pub fn encode(&self) -> String {
        self.encode_without(&[])
    }

    /// The same, with some families left out (`--disabled-metrics`).
    pub fn encode_without(&self, disabled: &[String]) -> String {
        let now = Instant::now();
        let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.values().for_each(|queue| queue.read(now));
        drop(queues);
        if let Some(read) = self.refresh.get() {
            read(self);
        }
        text(&self.registry, disabled, &self.declared.bare)
    }

    /// Has gauges that nobody pushes brought up to date whenever they are asked for, and only then: a replica
    /// at rest spends nothing on them. The first to say how stays.
    pub fn refresh_with(&self, read: impl Fn(&Self) + Send + Sync + 'static) {
        let _already = self.refresh.set(Box::new(read));
    }

    /// `/metrics/slis`.
    pub fn encode_slis(&self) -> String {
        text(&self.slis, &[], &BTreeSet::new())
    }
}

fn text(registry: &Registry, disabled: &[String], bare: &BTreeSet<&str>) -> String {
    let mut open = String::new();
    // The only error is that of the writer, and a String has none.
    let _ = encode(&mut open, registry);
    exposition::classic(&open, disabled, bare)
}

/// A status code as a label, without an allocation for the usual ones.
fn status_text(code: u16) -> Text {
    match code {
        200 => "200".into(),
        201 => "201".into(),
        400 => "400".into(),
        403 => "403".into(),
        404 => "404".into(),
        409 => "409".into(),
        422 => "422".into(),
        429 => "429".into(),
        500 => "500".into(),
        503 => "503".into(),
        other => other.to_string().into(),
    }
}

fn families(on: &mut Registering) -> Families {
    Families {
        depth: on.gauges("workqueue_depth", "Keys that wait in the queue now."),
        adds: on.counters("workqueue_adds", "Keys that were added to the queue."),
        waited: on.histograms(
            "workqueue_queue_duration_seconds",
            "How long a key waits in the queue before it is taken up.",
            queue_seconds,
        ),
        worked: on.histograms(
            "workqueue_work_duration_seconds",
            "How long the work on a key takes.",
            queue_seconds,
        ),
        unfinished: on.seconds(
            "workqueue_unfinished_work_seconds",
            "Sum of how long the keys that are worked on now have been so. It grows where work is stuck.",
        ),
        longest: on.seconds(
            "workqueue_longest_running_processor_seconds",
            "How long the key that is worked on longest has been so.",
        ),
        retries: on.counters("workqueue_retries", "Keys that were put back with back-off."),

        requests: on.counters(
            "rest_client_requests",
            "Requests to the API server by status code, method and host; the code is <error> where no answer came.",
        ),
        request_seconds: on.histograms(
            "rest_client_request_duration_seconds",
            "How long a request to the API server takes, by verb and host.",
            request_seconds,
        ),
        request_bytes: on.histograms(
            "rest_client_request_size_bytes",
            "Size of request bodies, by verb and host.",
            body_bytes,
        ),
        response_bytes: on.histograms(
            "rest_client_response_size_bytes",
            "Size of response bodies, by verb and host.",
            body_bytes,
        ),
        limiter_seconds: on.histograms(
            "rest_client_rate_limiter_duration_seconds",
            "How long a request waits for this client's own rate limit, by verb and host.",
            request_seconds,
        ),
        request_retries: on.counters(
            "rest_client_request_retries",
            "Requests that were sent again, by status code, verb and host.",
        ),

        ranges: on.add(
            "manifold_ranges",
            "Ranges of the key space: --ranges.",
            Gauge::default(),
        ),
        ranges_unowned: on.add(
            "manifold_ranges_unowned",
            "Ranges that no member owns by their Leases, as this replica sees them.",
            Gauge::default(),
        ),
        ranges_owned: on.add(
            "manifold_ranges_owned",
            "Ranges of the key space that this replica owns. Summed over the fleet it is --ranges.",
            Gauge::default(),
        ),
        epoch_changes: on.add(
            "manifold_epoch_changes",
            "Ranges that came to this replica, each under a new epoch.",
            Counter::default(),
        ),
        handoff_seconds: on.histograms(
            "manifold_handoff_duration_seconds",
            "How long an orderly change of owner keeps a range still; direction is in or out.",
            move_seconds,
        ),
        takeover_seconds: on.add(
            "manifold_takeover_duration_seconds",
            "How long it takes to own a range after its owner was found dead.",
            Histogram::new(exponential(0.001, 2.0, 16)),
        ),
        fence_refusals: on.counters(
            "manifold_fence_refusals",
            "Writes that were not sent because the range is not this replica's (any more) or its Lease may be over.",
        ),
        fence_open: on.add(
            "manifold_fence_open",
            "1 while this replica may write: its Lease was renewed within the deadline, and so was the manager's by the fleet.",
            Gauge::default(),
        ),
        fence_remaining: on.add(
            "manifold_fence_remaining_seconds",
            "For how long this replica may write without another renewal. Between two renewals it falls from \
             --lease-renew-deadline by --lease-retry-period; it is lower where renewals are slow.",
            Gauge::default(),
        ),
        api_budget: on.add(
            "manifold_api_budget_ratio",
            "The part of --kube-api-qps and --kube-api-burst that this replica may use now. With \
             --kube-api-budget=fleet it follows from what each replica has to write, and the parts of all add up to 1.",
            Gauge::default(),
        ),
        api_back_pressure: on.add(
            "manifold_api_back_pressure_ratio",
            "What the API server's answers 429 have left of the part that this replica may use: 1 without, halved in \
             each second with such an answer.",
            Gauge::default(),
        ),
        standby: on.add(
            "manifold_standby",
            "1 while another manager holds the Lease that keeps managers apart: this replica writes nothing.",
            Gauge::default(),
        ),
        leader: on.gauges(
            "leader_election_master_status",
            "1 while this replica may write under the Lease of that name, which the fleet holds. All replicas work at once, so their sum is the number of replicas at work; 0 in all while another manager holds it.",
        ),
        slow_renewals: on.counters(
            "leader_election_slowpath",
            "Renewals of the Lease of that name that this replica made on a version which it had to read again, since its write on the version that it knew was refused or had no answer.",
        ),
        features: on.gauges(
            "kubernetes_feature_enabled",
            "Whether a feature gate is on, by its name and stage.",
        ),
        running: on.gauges(
            "running_managed_controllers",
            "1 for each controller that runs in this replica, whatever ranges of its keys it owns.",
        ),
        disabled: on.add(
            "disabled_metrics",
            "Metrics that --disabled-metrics names.",
            Counter::default(),
        ),
        certificate_expiration: on.add(
            "apiserver_client_certificate_expiration_seconds",
            "How long the certificates are valid still by which clients of the secure port are known.",
            Histogram::new(vec![
                0.0,
                1_800.0,
                3_600.0,
                7_200.0,
                21_600.0,
                43_200.0,
                86_400.0,
                172_800.0,
                345_600.0,
                604_800.0,
                2_592_000.0,
                7_776_000.0,
                15_552_000.0,
                31_104_000.0,
            ]),
        ),
        client_certificate_ends: on.gauges(
            "manifold_client_certificate_expiration_timestamp_seconds",
            "When the client certificate by which the API server is asked expires, by the flag that names its kubeconfig.",
        ),
        server_fence: on.add(
            "manifold_server_fence",
            "1 while writes carry their incarnation, so that the API server refuses those of the dead.",
            Gauge::default(),
        ),
        server_fence_proofs: on.counters(
            "manifold_server_fence_proofs",
            "Dead incarnations before a takeover: result is held (the API server was shown to refuse them) or unproven.",
        ),
        peer_refusals: on.counters(
            "manifold_peer_refusals",
            "Peers that were refused, by reason: handshake (no TLS, or too slow), displaced (by newer connections), \
             unknown (no live member's key or certificate), other_name (a message in another's name), wrong_key (a \
             member was called and has not the key that its Lease names).",
        ),
        ownership_changes: on.counters(
            "manifold_ownership_changes",
            "What has happened to ownership here, by what: took_over, received, handed_over, handoff_failed, evicted, \
             fenced, reopened, self_evicted, deprived, dropped, joined, lease_damaged, ranges_doubtful (some member \
             has not said for a lease duration that it holds none of them), relinquished (given without state to a \
             member that does not answer), holds, standby, false_proof (a replica that was said to have ended renews), \
             planned (this replica's plan moves a range), bad_plan (the fleet's plan can not be read).",
        ),
        cache_lag: on.seconds(
            "manifold_cache_lag_seconds",
            "How long ago the watch of a resource last came further.",
        ),
        cache_objects: on.gauges("manifold_cache_objects", "Objects in the cache."),
        cache_bytes: on.gauges("manifold_cache_bytes", "Memory that the cached objects take, as estimated."),
        discovery_failing: on.gauges(
            "manifold_discovery_failing",
            "Group versions whose discovery fails, and resources found by discovery that can't be watched.",
        ),
        key_material_differs: on.gauges(
            "manifold_key_material_differs",
            "1 while replicas have different files of what they must have the same of, by name: a signer's authority, \
             root-ca, service-account-key; controllers are those of --controllers.",
        ),
        members: on.gauges(
            "manifold_members",
            "Members of the fleet as this replica sees them, by state: ready, not_ready (caches fill), draining.",
        ),
        members_unreachable: on.add(
            "manifold_members_unreachable",
            "Members that do not answer this replica.",
            Gauge::default(),
        ),
        current: on.add(
            "manifold_current",
            "1 while what this replica sees is current; at 0 its ranges move to others whose view is.",
            Gauge::default(),
        ),
        decode_errors: on.counters(
            "manifold_decode_errors",
            "Objects that could not be decoded or indexed and were left alone.",
        ),
        plan_seconds: on.histograms(
            "manifold_plan_duration_seconds",
            "How long a controller thinks about a key.",
            plan_seconds,
        ),
        plan_panics: on.counters(
            "manifold_plan_panics",
            "Plans that panicked; each costs its key a back-off.",
        ),
        config_reads: on.counters(
            "manifold_config_changes",
            "Changes of the configuration file since the start, by whether they were used or refused.",
        ),
        config_pending: on.add(
            "manifold_config_pending_fields",
            "Fields of the configuration file that a restart would change.",
            Gauge::default(),
        ),
        config_refused: on.add(
            "manifold_config_refused",
            "1 while the configuration file is one that was refused, so that an earlier one is in force, else 0.",
            Gauge::default(),
        ),
        plan_breaches: on.counters(
            "manifold_plan_breaches",
            "Plans that were not applied since they broke a post-condition: an action beyond the controller's rules, or a deletion of a child that was not counted; each costs its key a back-off.",
        ),
        wake_panics: on.counters(
            "manifold_wake_panics",
            "Changes of objects over which a controller panicked when it was asked which keys they wake; they wake none.",
        ),
        quarantined: on.gauges(
            "manifold_quarantined_keys",
            "Keys of this replica that are reconciled alone and last: replicas have died while they reconciled them.",
        ),
        paused_waiting: on.gauges(
            "manifold_paused_keys_waiting",
            "Keys of this replica that something has happened to while they were paused: they are reconciled when the pause ends.",
        ),
        pauses: on.gauges(
            "manifold_pauses",
            "Pauses that hold, by controller, and by what they pause: the whole controller or a key of it. Each replica says the same.",
        ),
        drained: on.add(
            "manifold_drained",
            "1 while the replica was drained by an operator: it hands its ranges over and takes none.",
            Gauge::default(),
        ),
        drains: on.add(
            "manifold_drains",
            "Drains of replicas that hold. Each replica says the same.",
            Gauge::default(),
        ),
        moves: on.add(
            "manifold_moves",
            "Ranges that an order gives to another replica than placement would. Each replica says the same.",
            Gauge::default(),
        ),
        moves_without_effect: on.add(
            "manifold_moves_without_effect",
            "Of these, those without effect: there is no such ready replica, or not all replicas follow such orders.",
            Gauge::default(),
        ),
        plan: on.add(
            "manifold_placement_plan",
            "The number of the newest plan of placement; 0 where there never was one. Each replica says the same.",
            Gauge::default(),
        ),
        plan_in_force: on.add(
            "manifold_placement_plan_in_force",
            "1 while ranges are placed by a plan, 0 while by equal numbers. Each replica says the same.",
            Gauge::default(),
        ),
        imbalance: on.add(
            "manifold_placement_imbalance",
            "The load of the busiest replica over the mean: 1 is even. Said by the replica that plans, 0 by the others.",
            Gauge::default(),
        ),
        settings: on.seconds(
            "manifold_settings",
            "Workers or writes a second of a controller that an order has set, while it holds; 0 otherwise. Each replica says the same.",
        ),
        steering_unread: on.add(
            "manifold_steering_unread",
            "1 while this replica can't read the fleet's orders: it goes by those that it has read before.",
            Gauge::default(),
        ),
        steering_faults: on.add(
            "manifold_steering_faults",
            "Fields of the fleet's steering object that can't be read and have no effect. Each replica says the same.",
            Gauge::default(),
        ),
        shadow: on.add(
            "manifold_shadow",
            "1 where this replica is a shadow: it plans and compares, and writes nothing.",
            Gauge::default(),
        ),
        shadow_verdicts: [
            (Kind::Agreed, on.counters(
                "manifold_shadow_agreed",
                "Writes that both managers want at about the same time, by controller.",
            )),
            (Kind::Early, on.counters(
                "manifold_shadow_early",
                "Writes that both managers want and that were planned here long before, by controller.",
            )),
            (Kind::Superseded, on.counters(
                "manifold_shadow_superseded",
                "Planned writes that were planned no more before the manager in charge came to them, by controller.",
            )),
            (Kind::Missing, on.counters(
                "manifold_shadow_missing",
                "Planned writes that the manager in charge has not done in time, by controller.",
            )),
            (Kind::Extra, on.counters(
                "manifold_shadow_extra",
                "Writes of the manager in charge that no plan wanted, by the controller that might have made them.",
            )),
        ],
        shadow_pending: on.gauges(
            "manifold_shadow_pending",
            "Planned writes that the manager in charge is waited for with, by controller.",
        ),
        shadow_dropped: on.add(
            "manifold_shadow_dropped",
            "Planned writes and changes that a bound has left out of the comparison.",
            Gauge::default(),
        ),
        reconciles: on.counters("manifold_reconciles", "Keys that were reconciled, by what came of it."),
        writes: on.counters(
            "manifold_writes",
            "Writes to the API server, by controller, verb, resource and what came of them.",
        ),
        events_dropped: on.add(
            "manifold_events_dropped",
            "Events that were not sent: their queue was full or the server refused them.",
            Counter::default(),
        ),
        marks_dropped: on.add(
            "manifold_handoff_marks_dropped",
            "Versions that came with a range, far beyond all that was seen here, and were left out.",
            Counter::default(),
        ),
        spans_exported: on.add(
            "manifold_trace_spans_exported",
            "Spans that the OTLP endpoint has taken.",
            Counter::default(),
        ),
        spans_dropped: on.counters(
            "manifold_trace_spans_dropped",
            "Spans that were not exported: queue_full, export_failed, buffer_full (of unfinished reconciles); \
             rate_limited counts reconciles that failed or were slow beyond what is exported of such in a second.",
        ),
    }
}

/// `kubernetes_build_info`, with upstream's labels; what has no meaning here is empty.
fn build_info(on: &mut Registering) {
    let info: Gauges<9> = on.gauges(
        "kubernetes_build_info",
        "Always 1; the labels say what was built and for which platform.",
    );
    info.get_or_create(&[
        ("build_date", "".into()),
        ("compiler", "rustc".into()),
        ("git_commit", "".into()),
        ("git_tree_state", "".into()),
        ("git_version", version::GIT_VERSION.into()),
        ("go_version", "".into()),
        ("major", "1".into()),
        ("minor", "36".into()),
        ("platform", version::platform().into()),
    ])
    .set(1);
}

/// How many metrics there are, `version_info`, and that none is hidden.
fn registered(on: &mut Registering) {
    let info: Gauges<4> = on.gauges(
        "version_info",
        "Always 1; the labels say the Kubernetes version that is built, emulated, and the oldest that is compatible.",
    );
    info.get_or_create(&[
        ("component", "kube".into()),
        ("binary", "1.36".into()),
        ("emulation", "1.36".into()),
        ("min_compat", "1.35".into()),
    ])
    .set(1);
    on.add(
        "hidden_metrics",
        "Metrics that are hidden for their age: none.",
        <Counter>::default(),
    );
    let all: Counters<2> = on.counters(
        "registered_metrics",
        "Metrics of this process. Their stability is not graded: both labels are empty.",
    );
    let labels = [
        ("stability_level", Text::from("")),
        ("deprecated_version", Text::from("")),
    ];
    all.get_or_create(&labels)
        .inc_by(u64::try_from(on.1.len()).unwrap_or(u64::MAX));
}

/// Which way a range goes in a handoff.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To this replica.
    In,
    /// Away from it.
    Out,
}

impl Direction {
    fn as_str(self) -> &'static str {
        match self {
            Self::In => "in",
            Self::Out => "out",
        }
    }
}

/// The `workqueue_*` metrics of one queue. All methods may be called from any thread.
#[derive(Debug)]
pub struct QueueMetrics {
    depth: Gauge<i64, AtomicI64>,
    adds: Counter,
    waited: Histogram,
    worked: Histogram,
    unfinished: Gauge<f64, AtomicU64>,
    longest: Gauge<f64, AtomicU64>,
    retries: Counter,
    /// When the work on each key under way began: as many as `--concurrent-*-syncs`.
    in_flight: Mutex<Vec<Instant>>,
}

impl QueueMetrics {
    /// A key was added; one that waits already does not count.
    pub fn added(&self) {
        self.adds.inc();
    }

    /// This many keys more (or fewer) wait.
    pub fn depth(&self, delta: i64) {
        self.depth.inc_by(delta);
    }

    /// Work on a key begins, after it has waited in the queue. Each call is followed by one of
    /// [`QueueMetrics::finished`].
    pub fn started(&self, waited: Duration) {
        self.waited.observe(seconds(waited));
        let mut in_flight = self
            .in_flight
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if in_flight.len() < IN_FLIGHT_TRACKED_MAX {
            in_flight.push(Instant::now());
        }
    }

    /// Work on a key has ended, however it went.
    pub fn finished(&self, took: Duration) {
        self.worked.observe(seconds(took));
        let began = Instant::now()
            .checked_sub(took)
            .unwrap_or_else(Instant::now);
        let away = |from: &Instant| {
            from.saturating_duration_since(began) + began.saturating_duration_since(*from)
        };
        let mut in_flight = self
            .in_flight
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // The caller keeps its own clock, so the beginning that lies nearest is this key's.
        let nearest = (0..in_flight.len()).min_by_key(|place| away(&in_flight[*place]));
        if let Some(place) = nearest {
            in_flight.swap_remove(place);
        }
    }

    /// A key was put back with back-off.
    pub fn retried(&self) {
        self.retries.inc();
    }

    /// Brings the two gauges that grow by themselves up to date.
    fn read(&self, now: Instant) {
        let in_flight = self
            .in_flight
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let ages = in_flight
            .iter()
            .map(|began| seconds(now.saturating_duration_since(*began)));
        self.unfinished.set(ages.clone().sum());
        self.longest.set(ages.fold(0.0, f64::max));
    }
}

/// The `rest_client_*` metrics towards one host. Verbs are HTTP's, as upstream's labels have it.
#[derive(Debug)]
pub struct ClientMetrics {
    host: Text,
    requests: Counters<3>,
    request_seconds: Histograms<2>,
    request_bytes: Histograms<2>,
    response_bytes: Histograms<2>,
    limiter_seconds: Histograms<2>,
    retries: Counters<3>,
}

impl ClientMetrics {
    fn verb(&self, verb: &'static str) -> Labels<2> {
        [("host", self.host.clone()), ("verb", verb.into())]
    }

    /// A request has ended: `code` is the answer's status, `None` where no answer came; the sizes are those
    /// of the bodies, `received` is `None` for a watch, whose body never ends.
    pub fn answered(
        &self,
        verb: &'static str,
        code: Option<u16>,
        took: Duration,
        sent: u64,
        received: Option<u64>,
    ) {
        let code = code.map_or(Text::from("<error>"), status_text);
        self.requests
            .get_or_create(&[
                ("code", code),
                ("host", self.host.clone()),
                ("method", verb.into()),
            ])
            .inc();
        let labels = self.verb(verb);
        self.request_seconds
            .get_or_create(&labels)
            .observe(seconds(took));
        self.request_bytes
            .get_or_create(&labels)
            .observe(sent as f64);
        if let Some(received) = received {
            self.response_bytes
                .get_or_create(&labels)
                .observe(received as f64);
        }
    }

    /// A request has waited for our own rate limit.
    pub fn limited(&self, verb: &'static str, waited: Duration) {
        self.limiter_seconds
            .get_or_create(&self.verb(verb))
            .observe(seconds(waited));
    }

    /// A request is sent again after this answer.
    pub fn retried(&self, verb: &'static str, code: Option<u16>) {
        let code = code.map_or(Text::from("<error>"), status_text);
        self.retries
            .get_or_create(&[
                ("code", code),
                ("host", self.host.clone()),
                ("verb", verb.into()),
            ])
            .inc();
    }
}

/// What one controller's work is counted by.
#[derive(Debug)]
pub struct ControllerMetrics {
    name: &'static str,
    plan_seconds: Histogram,
    plan_panics: Counter,
    plan_breaches: Counter,
    wake_panics: Counter,
    quarantined: Gauge<i64, AtomicI64>,
    paused_waiting: Gauge<i64, AtomicI64>,
    fence_refusals: Counter,
    reconciles: Counters<2>,
    writes: Counters<4>,
    declared: Arc<Declared>,
}

impl ControllerMetrics {
    /// A plan was made, or refused.
    pub fn planned(&self, took: Duration) {
        self.plan_seconds.observe(seconds(took));
    }

    /// A value of one of the controller's own metrics.
    pub fn measure(&self, measure: &Measure) {
        self.declared.measure(measure);
    }

    /// What a key of a range adds to the controller's sums, in place of what it added before.
    pub fn add_up(&self, range: u16, key: &Key, measures: &[Measure]) {
        self.declared.add_up(self.name, range, key, measures);
    }

    /// A range's keys add nothing any more.
    pub fn forget(&self, range: u16) {
        self.declared.forget(self.name, range);
    }

    /// A sync has ended; `code` is 200, or the status of the write that failed, or 500 where there was none.
    pub fn synced(&self, code: u16, took: Duration) {
        self.declared.synced(self.name, code, took);
    }

    /// A plan panicked.
    pub fn panicked(&self) {
        self.plan_panics.inc();
    }

    /// A plan was not applied since it broke a post-condition.
    pub fn breached(&self) {
        self.plan_breaches.inc();
    }

    /// A controller panicked over an object that was to wake its keys.
    pub fn wake_panicked(&self) {
        self.wake_panics.inc();
    }

    /// This many keys more are quarantined, or fewer.
    pub fn quarantined(&self, more: i64) {
        self.quarantined.inc_by(more);
    }

    /// More keys wait for the end of a pause, or fewer.
    pub fn paused_waiting(&self, more: i64) {
        self.paused_waiting.inc_by(more);
    }

    /// A write was not sent: the fence was closed or the range is another's.
    pub fn fenced(&self) {
        self.fence_refusals.inc();
    }

    /// A key was reconciled; `result` is a word of a fixed set, as in `success`, `requeue`, `error`.
    pub fn reconciled(&self, result: &'static str) {
        self.reconciles
            .get_or_create(&[("controller", self.name.into()), ("result", result.into())])
            .inc();
    }

    /// A write has ended; `resource` as in `replicasets`, `result` a word of a fixed set, as in `success`,
    /// `conflict`.
    pub fn wrote(&self, verb: &'static str, resource: &'static str, result: &'static str) {
        self.writes
            .get_or_create(&[
                ("controller", self.name.into()),
                ("resource", resource.into()),
                ("result", result.into()),
                ("verb", verb.into()),
            ])
            .inc();
    }
}

/// What one resource's cache is described by.
#[derive(Debug)]
pub struct CacheMetrics {
    lag: Gauge<f64, AtomicU64>,
    objects: Gauge<i64, AtomicI64>,
    bytes: Gauge<i64, AtomicI64>,
    decode_errors: Counter,
}

impl CacheMetrics {
    /// How long ago the watch last heard from the server.
    pub fn lag(&self, lag: Duration) {
        self.lag.set(seconds(lag));
    }

    /// Objects held.
    pub fn objects(&self, count: usize) {
        self.objects.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Bytes that they take.
    pub fn bytes(&self, count: usize) {
        self.bytes.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// An object could not be decoded.
    pub fn decode_error(&self) {
        self.decode_errors.inc();
    }
}

#[cfg(test)]
mod tests;
