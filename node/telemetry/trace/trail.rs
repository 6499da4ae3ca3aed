//! What one reconcile leaves: its spans, kept until it is known whether they are exported.
//!
//! A sampled reconcile is exported, and so is one that has failed or was slow (docs/decisions/058). All
//! others cost a few vectors that are dropped at their end.

use std::{
    borrow::Cow,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use http::{HeaderName, HeaderValue, Method};
use node_cache::api::{ApiError, Request, Response};
use opentelemetry::{
    KeyValue,
    trace::{Link, SpanContext, SpanId, SpanKind, Status, TraceId},
};
use opentelemetry_sdk::trace::{SpanData, SpanLinks};

use super::{Traces, ids, propagate, target};

/// Spans of one reconcile: a plan of hundreds of writes shows the first of them, and how many more there
/// were.
pub const SPANS_MAX: usize = 256;

/// A finished span.
#[derive(Debug)]
pub(super) struct Recorded {
    pub(super) id: SpanId,
    pub(super) parent: SpanId,
    pub(super) name: Cow<'static, str>,
    pub(super) kind: SpanKind,
    pub(super) start: SystemTime,
    pub(super) end: SystemTime,
    pub(super) attributes: Vec<KeyValue>,
    pub(super) links: Vec<SpanContext>,
    /// What kind of error, and what it says.
    pub(super) error: Option<String>,
    /// The request of a call, taken apart when it is exported.
    pub(super) request: Option<(Method, String)>,
    /// Whether its parent is another process's.
    pub(super) parent_is_remote: bool,
}

impl Recorded {
    pub(super) fn new(
        (id, parent): (SpanId, SpanId),
        name: impl Into<Cow<'static, str>>,
        kind: SpanKind,
        (start, end): (SystemTime, SystemTime),
        attributes: Vec<KeyValue>,
    ) -> Self {
        Self {
            id,
            parent,
            name: name.into(),
            kind,
            start,
            end,
            attributes,
            links: Vec::new(),
            error: None,
            request: None,
            parent_is_remote: false,
        }
    }

    /// As the exporter wants it.
    pub(super) fn export(self, trace: TraceId) -> SpanData {
        let (mut name, mut attributes) = (self.name, self.attributes);
        if let Some((method, path)) = &self.request {
            let target = target::of(path);
            name = Cow::Owned(format!("{} {}", target.verb(method), target.resource()));
            attributes.extend(target.attributes(method));
        }
        let mut links = SpanLinks::default();
        links.links = self
            .links
            .into_iter()
            .map(|context| Link::new(context, Vec::new(), 0))
            .collect();
        SpanData {
            span_context: ids::sampled(trace, self.id),
            parent_span_id: self.parent,
            parent_span_is_remote: self.parent_is_remote,
            span_kind: self.kind,
            name,
            start_time: self.start,
            end_time: self.end,
            attributes,
            dropped_attributes_count: 0,
            events: opentelemetry_sdk::trace::SpanEvents::default(),
            links,
            status: match self.error {
                Some(description) => Status::error(description),
                None => Status::Unset,
            },
            instrumentation_scope: super::scope(),
        }
    }
}

/// Whether the spans are still gathered.
#[derive(Debug)]
enum State {
    Open {
        spans: Vec<Recorded>,
        more: usize,
    },
    /// What comes late, as the call of an event, is exported too.
    Exported,
    Dropped,
}

/// The spans of one reconcile.
#[derive(Debug)]
pub struct Trail {
    traces: Arc<Traces>,
    trace: TraceId,
    root: u64,
    sampled: bool,
    next: AtomicU64,
    /// The span that what begins now is part of.
    within: AtomicU64,
    state: Mutex<State>,
}

/// Why a reconcile's spans are exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    Sampled,
    Failed,
    Slow,
}

/// Whether and why a reconcile is exported that has ended.
pub(super) fn why(sampled: bool, failed: bool, took: Duration, slow: Duration) -> Option<Why> {
    match (sampled, failed) {
        (true, _) => Some(Why::Sampled),
        (false, true) => Some(Why::Failed),
        (false, false) if took >= slow => Some(Why::Slow),
        (false, false) => None,
    }
}

impl Why {
    fn word(self) -> &'static str {
        match self {
            Self::Sampled => "head",
            Self::Failed => "failed",
            Self::Slow => "slow",
        }
    }
}

impl Trail {
    pub(super) fn new(traces: Arc<Traces>, trace: TraceId, root: u64, sampled: bool) -> Arc<Self> {
        Arc::new(Self {
            traces,
            trace,
            root,
            sampled,
            next: AtomicU64::new(0),
            within: AtomicU64::new(root),
            state: Mutex::new(State::Open {
                spans: Vec::with_capacity(8),
                more: 0,
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn new_id(&self) -> u64 {
        // Odd steps through 64 bits from a random root: no id of this reconcile comes twice.
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let number = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        self.root.wrapping_add(number.wrapping_mul(STEP)).max(1)
    }

    fn context(&self, id: u64) -> SpanContext {
        ids::sampled(self.trace, SpanId::from(id))
    }

    fn record(&self, span: Recorded) {
        match &mut *self.state() {
            State::Open { spans, .. } if spans.len() < SPANS_MAX && self.traces.reserve() => {
                spans.push(span);
            }
            State::Open { more, .. } => *more += 1,
            State::Exported => self.traces.export(vec![span.export(self.trace)]),
            State::Dropped => {}
        }
    }

    /// Records a span that has ended already, as a part of the reconcile.
    pub fn past(&self, name: &'static str, start: SystemTime, end: SystemTime) {
        let ids = (SpanId::from(self.new_id()), SpanId::from(self.root));
        self.record(Recorded::new(
            ids,
            name,
            SpanKind::Internal,
            (start, end),
            Vec::new(),
        ));
    }

    /// Ends the reconcile: exports its spans or drops them. The `traceparent` of its span, if it is exported.
    pub(super) fn finish(
        &self,
        failed: bool,
        took: Duration,
        slow: Duration,
        root: impl FnOnce() -> Recorded,
    ) -> Option<String> {
        let why = why(self.sampled, failed, took, slow)
            .filter(|why| *why == Why::Sampled || self.traces.admits_late());
        let next = match why {
            Some(_) => State::Exported,
            None => State::Dropped,
        };
        let State::Open { spans, more } = std::mem::replace(&mut *self.state(), next) else {
            return None;
        };
        self.traces.release(spans.len());
        let why = why?;
        let mut root = root();
        root.attributes
            .push(KeyValue::new("sampled_by", why.word()));
        if more > 0 {
            let more = i64::try_from(more).unwrap_or(i64::MAX);
            root.attributes.push(KeyValue::new("spans.omitted", more));
        }
        let spans = std::iter::once(root).chain(spans);
        let spans = spans.map(|span| span.export(self.trace)).collect();
        self.traces.export(spans);
        propagate::inject(&self.context(self.root))
    }

    pub(super) fn root(&self) -> SpanId {
        SpanId::from(self.root)
    }
}

/// A part of a reconcile, from its begin to its drop.
#[derive(Debug)]
pub struct Stage(Option<Begun>);

#[derive(Debug)]
struct Begun {
    trail: Arc<Trail>,
    id: u64,
    parent: u64,
    name: &'static str,
    start: SystemTime,
    attributes: Vec<KeyValue>,
    error: Option<String>,
}

impl Stage {
    /// Begins one; nothing at all where there is no trail.
    pub fn begin(trail: Option<&Arc<Trail>>, name: &'static str) -> Self {
        Self(trail.map(|trail| {
            let id = trail.new_id();
            Begun {
                id,
                parent: trail.within.swap(id, Ordering::Relaxed),
                trail: Arc::clone(trail),
                name,
                start: SystemTime::now(),
                attributes: Vec::new(),
                error: None,
            }
        }))
    }

    /// Notes a number.
    pub fn count(&mut self, name: &'static str, count: usize) {
        if let Some(begun) = &mut self.0 {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            begun.attributes.push(KeyValue::new(name, count));
        }
    }

    /// Notes a word.
    pub fn word(&mut self, name: &'static str, word: &'static str) {
        if let Some(begun) = &mut self.0 {
            begun.attributes.push(KeyValue::new(name, word));
        }
    }

    /// It has failed.
    pub fn fail(&mut self, why: impl std::fmt::Display) {
        if let Some(begun) = &mut self.0 {
            begun.error = Some(why.to_string());
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let Some(begun) = self.0.take() else { return };
        begun.trail.within.store(begun.parent, Ordering::Relaxed);
        let ids = (SpanId::from(begun.id), SpanId::from(begun.parent));
        let times = (begun.start, SystemTime::now());
        begun.trail.record(Recorded {
            error: begun.error,
            ..Recorded::new(ids, begun.name, SpanKind::Internal, times, begun.attributes)
        });
    }
}

/// One request to the API server. Dropped before its answer it was aborted.
#[derive(Debug)]
pub struct Call(Option<Sent>);

#[derive(Debug)]
struct Sent {
    trail: Arc<Trail>,
    id: u64,
    parent: u64,
    method: Method,
    path: String,
    start: SystemTime,
}

impl Call {
    /// Begins one. A sampled one is given the header by which the API server's spans become part of the
    /// trace.
    pub fn begin(trail: Option<&Arc<Trail>>, request: &mut Request) -> Self {
        Self(trail.map(|trail| {
            let id = trail.new_id();
            if trail.sampled
                && let Some(text) = propagate::inject(&trail.context(id))
                && let Ok(value) = HeaderValue::try_from(text)
            {
                let name = HeaderName::from_static(propagate::TRACEPARENT);
                request.headers.push((name, value));
            }
            Sent {
                id,
                parent: trail.within.load(Ordering::Relaxed),
                trail: Arc::clone(trail),
                method: request.method.clone(),
                path: request.path_and_query.clone(),
                start: SystemTime::now(),
            }
        }))
    }

    /// Records its answer; the span's place, for what it has written.
    pub fn end(mut self, answer: &Result<Response, ApiError>) -> Option<Writing> {
        let sent = self.0.take()?;
        let is_read = sent.method == Method::GET;
        let (code, error) = match answer {
            Ok(response) => (Some(response.status.as_u16()), None),
            // An object that is not there is an answer.
            Err(error) if is_read && error.is_not_found() => (error.code(), None),
            Err(error) => (error.code(), Some((kind_of(error), error.to_string()))),
        };
        let writing = Writing {
            trail: Arc::clone(&sent.trail),
            call: sent.id,
            times: (sent.start, SystemTime::now()),
        };
        sent.record(code, error);
        Some(writing)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(sent) = self.0.take() {
            let why = "given up before its answer: the fence has closed or the range is lost";
            sent.record(None, Some(("aborted".into(), why.to_owned())));
        }
    }
}

impl Sent {
    fn record(self, code: Option<u16>, error: Option<(Cow<'static, str>, String)>) {
        let mut attributes = Vec::with_capacity(8);
        if let Some(code) = code {
            attributes.push(KeyValue::new("http.response.status_code", i64::from(code)));
        }
        let error = error.map(|(kind, message)| {
            attributes.push(KeyValue::new("error.type", kind));
            message
        });
        let ids = (SpanId::from(self.id), SpanId::from(self.parent));
        let times = (self.start, SystemTime::now());
        self.trail.record(Recorded {
            error,
            request: Some((self.method, self.path)),
            ..Recorded::new(ids, "call", SpanKind::Client, times, attributes)
        });
    }
}

/// `error.type` of a call: the API's reason, the status code where there is none, or what has failed.
fn kind_of(error: &ApiError) -> Cow<'static, str> {
    match error {
        ApiError::Status(status) if status.reason.is_empty() => status.code.to_string().into(),
        ApiError::Status(status) => status.reason.clone().into(),
        ApiError::Transport { .. } => "transport".into(),
        ApiError::Timeout { .. } => "timeout".into(),
        ApiError::Garbage { .. } => "unreadable".into(),
        ApiError::Credentials { .. } => "credentials".into(),
    }
}

/// A call that has written something.
#[derive(Debug)]
pub struct Writing {
    trail: Arc<Trail>,
    call: u64,
    /// Those of the call: what it has written was written within it.
    times: (SystemTime, SystemTime),
}

impl Writing {
    /// Records what was written, under the id by which the next reconcile links to it, wherever that is.
    pub fn wrote(&self, resource: String, object: String, uid: &str, version: Option<u64>) {
        if uid.is_empty() || version == Some(0) {
            return;
        }
        let mut attributes = vec![
            KeyValue::new("k8s.resource", resource),
            KeyValue::new("k8s.object", object),
            KeyValue::new("k8s.object.uid", uid.to_owned()),
        ];
        let id = match version {
            Some(version) => {
                attributes.push(KeyValue::new("k8s.resource_version", version.to_string()));
                ids::of_version(uid, version)
            }
            None => ids::of_deletion(uid),
        };
        let name = match version {
            Some(_) => "written",
            None => "deleted",
        };
        let ids = (id, SpanId::from(self.call));
        let span = Recorded::new(ids, name, SpanKind::Producer, self.times, attributes);
        self.trail.record(span);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_and_slow_keys_are_exported_whatever_was_sampled() {
        let slow = Duration::from_secs(1);
        for (sampled, failed, took_ms, expected) in [
            (true, false, 1, Some(Why::Sampled)),
            (true, true, 5000, Some(Why::Sampled)),
            (false, true, 1, Some(Why::Failed)),
            (false, false, 1000, Some(Why::Slow)),
            (false, false, 999, None),
        ] {
            let took = Duration::from_millis(took_ms);
            assert_eq!(why(sampled, failed, took, slow), expected);
        }
    }
}
