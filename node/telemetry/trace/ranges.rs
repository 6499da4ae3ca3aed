//! How ranges change owners: a handoff with its calls on both sides, an eviction with the takeovers after it.
//! There are few of them, and each explains why keys had to wait, so that all are exported.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use coordinator::{Happening, PeerCall, PeerSpan, RangeId, Tracer};
use opentelemetry::{
    KeyValue,
    trace::{SpanContext, SpanId, SpanKind},
};

use super::{ByRange, Open, Traces, before, ids, propagate, trail::Recorded};

/// Evicted incarnations whose time of eviction is remembered, for the takeovers that follow.
const EVICTED_MAX: usize = 64;

/// What is remembered between a begin and an end.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    /// The span by which an owned range came, and its epoch. Bound: the number of ranges.
    gained: ByRange<(u64, SpanContext)>,
    /// When a range's state was accepted. Bound: the number of ranges.
    accepted: ByRange<SystemTime>,
    /// When an incarnation's silence began.
    evicted: Mutex<HashMap<String, SystemTime>>,
}

impl Ranges {
    /// The span by which a range came.
    pub(super) fn gained(&self, range: u16, epoch: u64) -> Option<SpanContext> {
        let gained = self.gained.lock().unwrap_or_else(PoisonError::into_inner);
        let (of, context) = gained.get(&range)?;
        (*of == epoch).then(|| context.clone())
    }
}

fn of_range(range: RangeId, epoch: u64) -> Vec<KeyValue> {
    let epoch = i64::try_from(epoch).unwrap_or(i64::MAX);
    vec![
        KeyValue::new("range", i64::from(range)),
        KeyValue::new("epoch", epoch),
    ]
}

impl Traces {
    fn open(
        self: &Arc<Self>,
        name: &'static str,
        kind: SpanKind,
        context: SpanContext,
        parent: SpanId,
        mut attributes: Vec<KeyValue>,
    ) -> Open {
        let now = SystemTime::now();
        attributes.push(KeyValue::new("replica", self.instance.replica.clone()));
        Open {
            traces: Arc::clone(self),
            span: Recorded::new(
                (context.span_id(), parent),
                name,
                kind,
                (now, now),
                attributes,
            ),
            context,
        }
    }

    /// Records a change of ownership that has happened. `incarnation` is this process's, `epoch_of` gives the
    /// epoch of a range that is held here.
    pub fn happened(
        self: &Arc<Self>,
        happening: &Happening,
        incarnation: &str,
        epoch_of: impl Fn(RangeId) -> Option<u64>,
    ) {
        match happening {
            Happening::HandedOver {
                range,
                epoch,
                to,
                took,
            } => {
                let to = ("to", to.to_string());
                self.handed(incarnation, (*range, *epoch), to, *took, None);
            }
            Happening::HandoffFailed { range, to, why } => {
                if let Some(epoch) = epoch_of(*range) {
                    let (to, why) = (("to", to.to_string()), Some(why.clone()));
                    self.handed(incarnation, (*range, epoch + 1), to, Duration::ZERO, why);
                }
            }
            Happening::Received { range, epoch, from } => {
                let root = ids::of_handoff(&from.incarnation, *range, *epoch);
                let accepted = &self.ranges.accepted;
                let mut accepted = accepted.lock().unwrap_or_else(PoisonError::into_inner);
                let start = accepted.remove(range);
                drop(accepted);
                self.gain("range gained", &root, (*range, *epoch), from, start);
            }
            Happening::TookOver {
                range,
                epoch,
                from: Some(from),
            } => {
                let root = ids::of_eviction(&from.incarnation);
                let evicted = &self.ranges.evicted;
                let evicted = evicted.lock().unwrap_or_else(PoisonError::into_inner);
                let start = evicted.get(&from.incarnation).copied();
                drop(evicted);
                self.gain("takeover", &root, (*range, *epoch), from, start);
            }
            Happening::Evicted { holder, silent, .. } => {
                let context = ids::of_eviction(&holder.incarnation);
                let attributes = vec![KeyValue::new("evicted", holder.to_string())];
                let mut open = self.open(
                    "evict replica",
                    SpanKind::Internal,
                    context,
                    SpanId::INVALID,
                    attributes,
                );
                open.span.start = before(open.span.start, *silent);
                let evicted = &self.ranges.evicted;
                let mut evicted = evicted.lock().unwrap_or_else(PoisonError::into_inner);
                if evicted.len() >= EVICTED_MAX {
                    evicted.clear();
                }
                evicted.insert(holder.incarnation.clone(), open.span.start);
                drop(evicted);
                let silent = silent.as_secs_f64();
                open.end(Some(format!("{holder} was silent for {silent:.1} s")));
            }
            Happening::SelfEvicted {
                incarnation,
                ranges,
            } => {
                let root = ids::of_eviction(incarnation);
                let count = i64::try_from(ranges.len()).unwrap_or(i64::MAX);
                let attributes = vec![KeyValue::new("ranges", count)];
                let own = self.child(&root);
                let open = self.open(
                    "evicted",
                    SpanKind::Internal,
                    own,
                    root.span_id(),
                    attributes,
                );
                open.end(Some("this replica was evicted by another".to_owned()));
            }
            _ => {}
        }
    }

    fn child(&self, of: &SpanContext) -> SpanContext {
        ids::sampled(of.trace_id(), SpanId::from(rand::random::<u64>().max(1)))
    }

    /// The whole of a handoff, on the side that gives.
    fn handed(
        self: &Arc<Self>,
        incarnation: &str,
        (range, epoch): (RangeId, u64),
        (other, to): (&'static str, String),
        took: Duration,
        error: Option<String>,
    ) {
        let root = ids::of_handoff(incarnation, range, epoch);
        let mut attributes = of_range(range, epoch);
        attributes.push(KeyValue::new(other, to));
        // The range may go at a later attempt, under the same epoch: that one is the trace's root.
        let (name, context, parent) = match error {
            None => ("handoff", root, SpanId::INVALID),
            Some(_) => ("handoff failed", self.child(&root), root.span_id()),
        };
        let mut open = self.open(name, SpanKind::Internal, context, parent, attributes);
        open.span.start = before(open.span.start, took);
        open.end(error);
    }

    fn gain(
        self: &Arc<Self>,
        name: &'static str,
        root: &SpanContext,
        (range, epoch): (RangeId, u64),
        from: &coordinator::Holder,
        start: Option<SystemTime>,
    ) {
        let mut attributes = of_range(range, epoch);
        attributes.push(KeyValue::new("from", from.to_string()));
        let context = self.child(root);
        let gained = &self.ranges.gained;
        let mut gained = gained.lock().unwrap_or_else(PoisonError::into_inner);
        gained.insert(range, (epoch, context.clone()));
        drop(gained);
        let mut open = self.open(
            name,
            SpanKind::Internal,
            context,
            root.span_id(),
            attributes,
        );
        open.span.start = start.unwrap_or(open.span.start);
        open.end(None);
    }
}

/// Records the calls between replicas.
pub struct OfPeers(Arc<Traces>);

impl OfPeers {
    /// For the coordinator.
    pub fn shared(traces: Arc<Traces>) -> Arc<dyn Tracer> {
        Arc::new(Self(traces))
    }
}

impl Tracer for OfPeers {
    fn begin(&self, call: &PeerCall<'_>) -> Option<Box<dyn PeerSpan>> {
        let traces = &self.0;
        if traces.queue.is_closed() {
            return None;
        }
        let root = ids::of_handoff(call.from, call.range, call.epoch);
        // A peer of another build may send none.
        let remote = call.parent.and_then(propagate::extract);
        let is_remote = remote.is_some();
        let parent = remote.unwrap_or(root);
        let (name, kind) = match (call.method, call.is_client) {
            ("Handoff", true) => ("send Handoff", SpanKind::Client),
            ("Handoff", false) => ("receive Handoff", SpanKind::Server),
            (_, true) => ("send Released", SpanKind::Client),
            (_, false) => ("receive Released", SpanKind::Server),
        };
        let mut attributes = of_range(call.range, call.epoch);
        attributes.push(KeyValue::new("rpc.system", "grpc"));
        attributes.push(KeyValue::new("rpc.service", "manifold.peer.v1.Peer"));
        attributes.push(KeyValue::new("rpc.method", call.method));
        attributes.push(KeyValue::new("peer", call.peer.to_owned()));
        let context = traces.child(&parent);
        let mut open = traces.open(name, kind, context, parent.span_id(), attributes);
        open.span.parent_is_remote = is_remote;
        Some(Box::new(OfCall {
            open: Some(open),
            accepts: (call.method == "Handoff" && !call.is_client).then_some(call.range),
        }))
    }
}

struct OfCall {
    open: Option<Open>,
    /// The range whose state comes with it.
    accepts: Option<RangeId>,
}

impl PeerSpan for OfCall {
    fn traceparent(&self) -> Option<String> {
        propagate::inject(&self.open.as_ref()?.context)
    }

    fn end(mut self: Box<Self>, error: Option<String>) {
        let Some(open) = self.open.take() else { return };
        if let Some(range) = self.accepts.filter(|_| error.is_none()) {
            let accepted = &open.traces.ranges.accepted;
            let mut accepted = accepted.lock().unwrap_or_else(PoisonError::into_inner);
            accepted.insert(range, SystemTime::now());
        }
        open.end(error);
    }
}

impl Drop for OfCall {
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            open.end(Some("given up before its end".to_owned()));
        }
    }
}
