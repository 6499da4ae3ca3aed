//! What the process exports to Prometheus, under upstream's names wherever upstream has one.
//!
//! Everything is counted with atomics through handles that are fetched once ([`Metrics::queue`],
//! [`Metrics::controller`], [`Metrics::cache`], [`Metrics::client`]), so that counting costs nanoseconds and
//! no lock is shared on the way of an event. Label values come from fixed sets (controllers, resources,
//! verbs, results, status codes), so the number of series is bounded by the program and not by the cluster.

mod declared;
mod exposition;
mod families;
mod handles;
mod histogram;
mod process;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex, OnceLock, PoisonError, atomic::AtomicU64},
    time::{Duration, Instant},
};

use controllers_kit::Descriptor;
use coordinator::Planned;
use declared::Declared;
use prometheus_client::{
    encoding::text::encode,
    metrics::{MetricType, gauge::Gauge},
    registry::Registry,
};

use shadow::Kind;

pub use exposition::CONTENT_TYPE;
use families::{Counters, Families, Gauges, Registering, Text, build_info, families, registered};
pub use handles::{CacheMetrics, ClientMetrics, ControllerMetrics, QueueMetrics};
pub use process::start_time_seconds;

/// What upstream's labels call the process and its Lease.
const MANAGER: &str = "kube-controller-manager";

/// Seconds as Prometheus wants them.
fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
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

    /// For how long this replica may write without another renewal: at zero its fence is closed. And what was
    /// left of that when the last renewal landed, once one has.
    pub fn fence(&self, remaining: Duration, margin: Option<Duration>) {
        self.families
            .fence_open
            .set(i64::from(!remaining.is_zero()));
        self.families.fence_remaining.set(seconds(remaining));
        if let Some(margin) = margin {
            self.families.renewal_margin.set(seconds(margin));
        }
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

#[cfg(test)]
mod tests;
