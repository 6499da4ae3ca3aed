//! Traces: what a key's way costs, from the change that woke it to the writes that came of it, and how ranges
//! change owners.
//!
//! | file | holds |
//! |---|---|
//! | `settings.rs` | what environment and file ask for |
//! | `ids.rs` | ids that replicas derive alike |
//! | `cause.rs` | why a key was woken, and what it belongs to |
//! | `trail.rs` | the spans of one reconcile, and whether they are exported |
//! | `target.rs`, `propagate.rs` | what a request is about; W3C Trace Context |
//! | `ranges.rs` | handoffs and takeovers |
//! | `export.rs` | the queue and the thread that sends it |
//!
//! Without an endpoint there is no [`Traces`], and nothing here runs.

mod cause;
mod export;
mod ids;
mod propagate;
mod ranges;
pub mod settings;
mod target;
mod trail;

use std::{
    collections::HashMap,
    sync::{
        Arc, LazyLock, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use controllers_kit::{AnyObject, Key, Reader, Resource};
use opentelemetry::{
    InstrumentationScope, KeyValue,
    trace::{SpanContext, SpanId, SpanKind, TraceId},
};
use opentelemetry_sdk::{
    Resource as Attributes,
    resource::{EnvResourceDetector, TelemetryResourceDetector},
    trace::{Sampler, SamplingDecision, ShouldSample, SpanData},
};

pub use cause::{Cause, Owners, Parked, Woken};
use export::Queue;
pub use ranges::OfPeers;
pub use settings::Settings;
use trail::Recorded;
pub use trail::{Call, Stage, Trail, Writing};

/// A key that takes longer, from its wake-up to the end of its reconcile, is exported.
const SLOW: Duration = Duration::from_secs(1);
/// Reconciles that are exported in a second though they were not sampled: where everything fails, some of it
/// is enough.
const LATE_MAX: u64 = 20;
/// Spans of all reconciles that have not ended yet: 16 Ki of about 300 bytes.
const BUFFERED_MAX: usize = 1 << 14;
/// What the process's end waits for the last spans.
const FLUSH_MAX: Duration = Duration::from_secs(1);

fn scope() -> InstrumentationScope {
    static SCOPE: LazyLock<InstrumentationScope> = LazyLock::new(|| {
        InstrumentationScope::builder("manifold")
            .with_version(env!("CARGO_PKG_VERSION"))
            .build()
    });
    SCOPE.clone()
}

/// Which process exports; `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME` precede it.
#[derive(Clone, Debug, Default)]
pub struct Instance {
    /// The replica's name.
    pub replica: String,
    /// Namespace and name of its Pod.
    pub pod: Option<(String, String)>,
    /// The fleet's name.
    pub fleet: String,
}

impl Instance {
    fn attributes(&self) -> Attributes {
        let mut own = vec![
            KeyValue::new("service.name", "manifold"),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", self.replica.clone()),
            KeyValue::new("service.namespace", self.fleet.clone()),
        ];
        if let Some((namespace, name)) = &self.pod {
            own.push(KeyValue::new("k8s.namespace.name", namespace.clone()));
            own.push(KeyValue::new("k8s.pod.name", name.clone()));
        }
        let builder = Attributes::builder_empty()
            .with_attributes(own)
            .with_detector(Box::new(TelemetryResourceDetector))
            .with_detector(Box::new(EnvResourceDetector::new()));
        let name = std::env::var("OTEL_SERVICE_NAME").unwrap_or_default();
        match name.trim() {
            "" => builder.build(),
            name => builder.with_service_name(name.to_owned()).build(),
        }
    }
}

/// Counts that the metrics have not taken yet.
#[derive(Debug, Default)]
struct Counts {
    /// Spans that were exported.
    exported: AtomicU64,
    /// Spans that found the queue full.
    queue_full: AtomicU64,
    /// Spans that the endpoint did not take.
    export_failed: AtomicU64,
    /// Spans of unfinished reconciles beyond what may be held.
    buffer_full: AtomicU64,
    /// Reconciles that failed or were slow, beyond what is exported of such in a second.
    rate_limited: AtomicU64,
}

/// Makes traces and has them exported.
#[derive(Debug)]
pub struct Traces {
    sampler: Sampler,
    queue: Queue,
    counts: Arc<Counts>,
    buffered: AtomicUsize,
    /// The second of the last late exports, and how many there were.
    late: Mutex<(u64, u64)>,
    owners: OnceLock<Owners>,
    ranges: ranges::Ranges,
    instance: Instance,
}

/// Which key is reconciled, and how it came to it.
pub struct Reconcile {
    /// The controller's name.
    pub controller: &'static str,
    /// The resource whose objects are its keys.
    pub primary: Option<&'static Resource>,
    /// The key.
    pub key: Key,
    /// The range that holds it.
    pub range: u16,
    /// That range's epoch.
    pub epoch: u64,
    /// How long it has waited in its queue.
    pub waited: Duration,
    /// Whether it had to wait behind all others: then that wait is no slowness.
    pub low_priority: bool,
    /// Failures in a row before this attempt.
    pub failures: u32,
    /// What woke it.
    pub woken: Option<Box<Woken>>,
    /// The last trace of the owner before.
    pub link: Option<Arc<str>>,
    /// Whether it is the first since the range was gained.
    pub is_first: bool,
}

impl Reconcile {
    fn causes(&self) -> &[Arc<Cause>] {
        self.woken.as_ref().map_or(&[], |woken| &woken.causes)
    }
}

/// A reconcile under way.
pub struct Reconciling {
    traces: Arc<Traces>,
    trail: Arc<Trail>,
    what: Reconcile,
    root: Option<cause::Root>,
    /// The creation of what the key is about, where no change of it was seen.
    found: Option<Cause>,
    /// When the key was queued, and when its reconcile began.
    queued: SystemTime,
    began: SystemTime,
}

/// What came of it.
pub struct Ended<'a> {
    /// The `result` label of the metrics.
    pub result: &'static str,
    /// Why it failed; `None` for anything but a fault.
    pub error: Option<&'a str>,
    /// Writes that succeeded.
    pub writes: u64,
    /// Actions planned.
    pub actions: usize,
}

impl Traces {
    /// Starts the exporter, on a thread of its own: whatever becomes of it, the process goes its way.
    pub fn start(settings: Settings, instance: Instance) -> Arc<Self> {
        let counts = Arc::<Counts>::default();
        let sampler = settings.sampler.clone();
        let attributes = instance.attributes();
        let queue = export::start(settings, attributes, Arc::clone(&counts));
        Arc::new(Self {
            sampler,
            queue,
            counts,
            buffered: AtomicUsize::new(0),
            late: Mutex::default(),
            owners: OnceLock::new(),
            ranges: ranges::Ranges::default(),
            instance,
        })
    }

    /// Names the resources among which owners are found; the first call counts.
    pub fn know(&self, resources: impl Iterator<Item = &'static Resource>) {
        self.owners.get_or_init(|| Owners::among(resources));
    }

    /// Spans exported since the last call, and what was dropped, by reason.
    pub fn new_counts(&self) -> (u64, [(&'static str, u64); 4]) {
        let taken = |count: &AtomicU64| count.swap(0, Ordering::Relaxed);
        let counts = &self.counts;
        let dropped = [
            ("queue_full", taken(&counts.queue_full)),
            ("export_failed", taken(&counts.export_failed)),
            ("buffer_full", taken(&counts.buffer_full)),
            ("rate_limited", taken(&counts.rate_limited)),
        ];
        (taken(&counts.exported), dropped)
    }

    /// Exports what waits; takes a second at most.
    pub fn flush(&self) {
        self.queue.flush(FLUSH_MAX);
    }

    /// Begins a reconcile; `None` where the exporter has ended.
    pub fn begin(
        self: &Arc<Self>,
        view: &dyn Reader,
        unix_seconds: i64,
        what: Reconcile,
    ) -> Option<Reconciling> {
        if self.queue.is_closed() {
            return None;
        }
        let began = SystemTime::now();
        let object = self.object_of(view, &what);
        let root = object
            .as_ref()
            .map(|object| self.owners().root(view, object));
        let trace = match &root {
            Some(root) => root.trace(unix_seconds),
            None => TraceId::from(rand::random::<u128>().max(1)),
        };
        let sampled = self.is_sampled(trace);
        let trail = Trail::new(
            Arc::clone(self),
            trace,
            rand::random::<u64>().max(1),
            sampled,
        );
        let last_queued = before(began, what.waited);
        let parked = what.woken.as_ref().and_then(|woken| woken.parked);
        if let Some(parked) = parked {
            trail.past("queue", parked.queued, parked.from);
            trail.past(
                "wait for cache",
                parked.from,
                parked.to.unwrap_or(last_queued),
            );
        }
        trail.past("queue", last_queued, began);
        let unseen = object.filter(|_| what.is_first && what.causes().is_empty());
        Some(Reconciling {
            traces: Arc::clone(self),
            trail,
            root,
            found: unseen.and_then(|object| Cause::of_found(object, unix_seconds)),
            queued: parked.map_or(last_queued, |parked| parked.queued),
            began,
            what,
        })
    }

    fn owners(&self) -> &Owners {
        self.owners.get_or_init(Owners::default)
    }

    /// The object that a key is about, as it is or was.
    fn object_of(&self, view: &dyn Reader, what: &Reconcile) -> Option<AnyObject> {
        let primary = what.primary?;
        if let Some(object) = view.get(primary, &what.key.namespace, &what.key.name) {
            return Some(object);
        }
        let about = |cause: &Arc<Cause>| cause.is_about(primary, &what.key).cloned();
        what.causes().iter().find_map(about)
    }

    fn is_sampled(&self, trace: TraceId) -> bool {
        let result =
            self.sampler
                .should_sample(None, trace, "reconcile", &SpanKind::Consumer, &[], &[]);
        result.decision == SamplingDecision::RecordAndSample
    }

    /// Room for one more span of a reconcile that has not ended.
    fn reserve(&self) -> bool {
        let has_room = self.buffered.fetch_add(1, Ordering::Relaxed) < BUFFERED_MAX;
        if !has_room {
            self.release(1);
            self.counts.buffer_full.fetch_add(1, Ordering::Relaxed);
        }
        has_room
    }

    fn release(&self, spans: usize) {
        self.buffered.fetch_sub(spans, Ordering::Relaxed);
    }

    /// Whether one more reconcile may be exported that was not sampled.
    fn admits_late(&self) -> bool {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let second = now.map_or(0, |now| now.as_secs());
        let mut late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        if late.0 != second {
            *late = (second, 0);
        }
        late.1 += 1;
        let admits = late.1 <= LATE_MAX;
        if !admits {
            self.counts.rate_limited.fetch_add(1, Ordering::Relaxed);
        }
        admits
    }

    fn export(&self, spans: Vec<SpanData>) {
        self.queue.push(spans);
    }
}

fn before(at: SystemTime, by: Duration) -> SystemTime {
    at.checked_sub(by).unwrap_or(at)
}

impl Reconciling {
    /// Where its parts are recorded.
    pub fn trail(&self) -> &Arc<Trail> {
        &self.trail
    }

    /// Ends it; the `traceparent` of its span, if it is exported.
    pub fn end(self, view: &dyn Reader, unix_seconds: i64, ended: &Ended<'_>) -> Option<String> {
        let end = SystemTime::now();
        let from = match self.what.low_priority {
            true => self.began,
            false => self.queued,
        };
        let took = end.duration_since(from).unwrap_or_default();
        let failed = ended.error.is_some();
        let trail = Arc::clone(&self.trail);
        trail.finish(failed, took, SLOW, || {
            self.span(view, unix_seconds, end, ended)
        })
    }

    /// The span of the whole.
    fn span(
        self,
        view: &dyn Reader,
        unix_seconds: i64,
        end: SystemTime,
        ended: &Ended<'_>,
    ) -> Recorded {
        let (what, traces) = (&self.what, &self.traces);
        let waited = self.began.duration_since(self.queued).unwrap_or_default();
        let int = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let mut attributes = vec![
            KeyValue::new("controller", what.controller),
            KeyValue::new("key", what.key.to_string()),
            KeyValue::new("range", i64::from(what.range)),
            KeyValue::new("epoch", int(what.epoch)),
            KeyValue::new("replica", traces.instance.replica.clone()),
            KeyValue::new("queue.wait_ms", waited.as_secs_f64() * 1000.0),
            KeyValue::new("retries", i64::from(what.failures)),
            KeyValue::new("result", ended.result),
            KeyValue::new("plan.actions", int(ended.actions as u64)),
            KeyValue::new("writes", int(ended.writes)),
        ];
        if !what.key.namespace.is_empty() {
            let namespace = what.key.namespace.to_string();
            attributes.push(KeyValue::new("k8s.namespace.name", namespace));
        }
        if let Some(root) = &self.root {
            attributes.push(KeyValue::new("root", root.label()));
            attributes.push(KeyValue::new("root.generation", root.generation()));
        }
        let written = |cause: &Cause| cause.written_by(traces.owners(), view, unix_seconds);
        let mut links = Vec::new();
        if let Some(woken) = &what.woken
            && let Some(first) = woken.causes.first()
        {
            attributes.push(KeyValue::new("woken_by", first.label()));
            attributes.push(KeyValue::new("woken_by.version", int(first.version())));
            attributes.push(KeyValue::new("woken_by.count", i64::from(woken.count)));
            let seen = self.began.duration_since(first.at()).unwrap_or_default();
            let seen = seen.as_secs_f64() * 1000.0;
            attributes.push(KeyValue::new("woken_by.seen_ms", seen));
            links.extend(woken.causes.iter().filter_map(|cause| written(cause)));
        }
        links.extend(self.found.as_ref().and_then(written));
        links.extend(what.link.as_deref().and_then(propagate::extract));
        if what.is_first {
            links.extend(traces.ranges.gained(what.range, what.epoch));
        }
        Recorded {
            links,
            error: ended.error.map(str::to_owned),
            ..Recorded::new(
                (self.trail.root(), SpanId::INVALID),
                format!("reconcile {}", what.controller),
                SpanKind::Consumer,
                (self.queued, end),
                attributes,
            )
        }
    }
}

/// The trace's id of a `traceparent`, for `/debug/explain`.
pub fn trace_id(traceparent: &str) -> Option<&str> {
    traceparent.split('-').nth(1)
}

/// Spans of several ranges, by range.
type ByRange<T> = Mutex<HashMap<u16, T>>;

/// A span in the making, of something that has one begin and one end.
#[derive(Debug)]
struct Open {
    traces: Arc<Traces>,
    context: SpanContext,
    span: Recorded,
}

impl Open {
    fn end(mut self, error: Option<String>) {
        self.span.end = SystemTime::now();
        self.span.error = error;
        let trace = self.context.trace_id();
        self.traces.export(vec![self.span.export(trace)]);
    }
}

#[cfg(test)]
mod tests;
