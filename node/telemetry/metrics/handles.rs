//! What is fetched once and counted in from then on: the metrics of a queue, a controller, a cache, a client.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI64, AtomicU64},
    },
    time::{Duration, Instant},
};

use controllers_kit::{Key, Measure};
use prometheus_client::metrics::{counter::Counter, gauge::Gauge};

use super::{
    declared::Declared,
    families::{Counters, Histograms, Labels, Text},
    histogram::Histogram,
    seconds,
};

/// Keys that one queue works on at once and that are tracked for `unfinished_work_seconds`: far more than any
/// `--concurrent-*-syncs` in use. Beyond it the two gauges read too low; nothing else suffers.
const IN_FLIGHT_TRACKED_MAX: usize = 4096;

/// The `workqueue_*` metrics of one queue. All methods may be called from any thread.
#[derive(Debug)]
pub struct QueueMetrics {
    pub(super) depth: Gauge<i64, AtomicI64>,
    pub(super) adds: Counter,
    pub(super) waited: Histogram,
    pub(super) worked: Histogram,
    pub(super) unfinished: Gauge<f64, AtomicU64>,
    pub(super) longest: Gauge<f64, AtomicU64>,
    pub(super) retries: Counter,
    /// When the work on each key under way began: as many as `--concurrent-*-syncs`.
    pub(super) in_flight: Mutex<Vec<Instant>>,
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
    pub(super) fn read(&self, now: Instant) {
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
    pub(super) host: Text,
    pub(super) requests: Counters<3>,
    pub(super) request_seconds: Histograms<2>,
    pub(super) request_bytes: Histograms<2>,
    pub(super) response_bytes: Histograms<2>,
    pub(super) limiter_seconds: Histograms<2>,
    pub(super) retries: Counters<3>,
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
    pub(super) name: &'static str,
    pub(super) plan_seconds: Histogram,
    pub(super) plan_panics: Counter,
    pub(super) plan_breaches: Counter,
    pub(super) wake_panics: Counter,
    pub(super) quarantined: Gauge<i64, AtomicI64>,
    pub(super) paused_waiting: Gauge<i64, AtomicI64>,
    pub(super) fence_refusals: Counter,
    pub(super) reconciles: Counters<2>,
    pub(super) writes: Counters<4>,
    pub(super) declared: Arc<Declared>,
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
    pub(super) lag: Gauge<f64, AtomicU64>,
    pub(super) objects: Gauge<i64, AtomicI64>,
    pub(super) bytes: Gauge<i64, AtomicI64>,
    pub(super) decode_errors: Counter,
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
