//! Ids that every replica derives alike, so that traces are connected without a word between replicas
//! (docs/decisions/057).
//!
//! All reconciles for one object and what belongs to it are of one trace: its id is a hash of the uid of the
//! root owner (a Deployment for its ReplicaSets and their pods), the root's generation and a window of time.
//! Each write is a span whose id is a hash of what was written; the reconcile that this version wakes links
//! to it.

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// How long one trace of a root at rest may last: as long as a rollout may make no progress by default
/// (`progressDeadlineSeconds`), so that hardly one is cut, and what is sampled of a busy key ends.
pub const WINDOW_SECONDS: i64 = 600;

fn text(parts: &[&str]) -> Vec<u8> {
    parts.join("\0").into_bytes()
}

fn trace_id(parts: &[&str]) -> TraceId {
    TraceId::from(xxh3_128(&text(parts)).max(1))
}

fn span_id(parts: &[&str]) -> SpanId {
    SpanId::from(xxh3_64(&text(parts)).max(1))
}

/// The trace of a root at a time. Windows of different roots begin at different times.
pub fn of_root(uid: &str, generation: i64, unix_seconds: i64) -> TraceId {
    let offset = i64::try_from(xxh3_64(uid.as_bytes()) % 3600).unwrap_or(0);
    let window = (unix_seconds + offset).div_euclid(WINDOW_SECONDS);
    trace_id(&["root", uid, &generation.to_string(), &window.to_string()])
}

/// The span of the write by which an object got a version.
pub fn of_version(uid: &str, version: u64) -> SpanId {
    span_id(&["version", uid, &version.to_string()])
}

/// The span of the deletion of an object.
pub fn of_deletion(uid: &str) -> SpanId {
    span_id(&["deletion", uid])
}

/// The trace of a range's way from one incarnation to the next, and in it the span of the handoff.
pub fn of_handoff(from: &str, range: u16, epoch: u64) -> SpanContext {
    let (range, epoch) = (range.to_string(), epoch.to_string());
    sampled(
        trace_id(&["handoff", from, &range, &epoch]),
        span_id(&["handoff", from, &range, &epoch]),
    )
}

/// The trace of the end of an incarnation that did not leave, and in it the span of its eviction.
pub fn of_eviction(incarnation: &str) -> SpanContext {
    sampled(
        trace_id(&["eviction", incarnation]),
        span_id(&["eviction", incarnation]),
    )
}

/// The context of an exported span.
pub fn sampled(trace: TraceId, span: SpanId) -> SpanContext {
    SpanContext::new(
        trace,
        span,
        TraceFlags::SAMPLED,
        false,
        TraceState::default(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_of_one_root_one_generation_and_one_window() {
        let of = |uid, generation, second| of_root(uid, generation, second).to_string();
        let one = of("a", 1, 0);
        assert_eq!(one, of("a", 1, 1), "the window lasts");
        assert_ne!(one, of("b", 1, 0));
        assert_ne!(one, of("a", 2, 0));
        assert_ne!(one, of("a", 1, WINDOW_SECONDS));
    }

    /// Replicas of two versions must derive the same ids.
    #[test]
    fn ids_do_not_change_from_build_to_build() {
        assert_eq!(
            of_root("u", 3, 1_000_000).to_string(),
            "f3c95d138a6788e9a83efde5819ba574"
        );
        assert_eq!(of_version("u", 7).to_string(), "715d8d8e13f18155");
        assert_eq!(of_deletion("u").to_string(), "d969d7d981ae4b21");
    }

    #[test]
    fn windows_of_different_roots_begin_at_different_times() {
        let begins = |uid: &str| {
            let same = |second: &i64| of_root(uid, 1, *second) == of_root(uid, 1, *second - 1);
            (1..=WINDOW_SECONDS).find(|second| !same(second))
        };
        let all: std::collections::BTreeSet<_> = ["a", "b", "c", "d"].map(begins).into();
        assert!(all.len() > 1, "{all:?}");
    }
}
