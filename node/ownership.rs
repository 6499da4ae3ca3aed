//! What happens to ownership, for people: metrics for each change, and one log line for those that come
//! together.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use controllers_kit::EventType;
use coordinator::{Handle, Happening, RangeId};
use node_telemetry::{
    metrics::{Direction, Metrics},
    trace::Traces,
};
use tokio::sync::{broadcast::error::RecvError, mpsc};

use crate::pod_events::Notice;

/// Changes that come within this time of each other are reported in one line: a replica that joins or dies
/// moves dozens of ranges at once.
const TOGETHER: Duration = Duration::from_millis(300);

/// Ranges as people read them: `3-7,12`.
pub fn spans(ranges: &[RangeId]) -> String {
    let mut sorted = ranges.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut spans: Vec<(RangeId, RangeId)> = Vec::new();
    for range in sorted {
        match spans.last_mut() {
            Some((_, last)) if *last + 1 == range => *last = range,
            _ => spans.push((range, range)),
        }
    }
    let words: Vec<String> = spans
        .into_iter()
        .map(|(first, last)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        })
        .collect();
    words.join(",")
}

/// What has happened and is not reported yet.
#[derive(Default)]
struct Pending {
    took_over: BTreeMap<String, Vec<RangeId>>,
    received: BTreeMap<String, Vec<RangeId>>,
    handed_over: BTreeMap<String, Vec<RangeId>>,
    /// By whom it was for, and why it did not happen.
    failed: BTreeMap<(String, String), Vec<RangeId>>,
    slowest: Duration,
    since: Option<Instant>,
}

impl Pending {
    fn note(&mut self, happening: &Happening) {
        let (list, other, range) = match happening {
            Happening::TookOver { range, from, .. } => {
                let from = from
                    .as_ref()
                    .map_or("nobody".to_owned(), ToString::to_string);
                (&mut self.took_over, from, *range)
            }
            Happening::Received { range, from, .. } => {
                (&mut self.received, from.to_string(), *range)
            }
            Happening::HandedOver {
                range, to, took, ..
            } => {
                self.slowest = self.slowest.max(*took);
                (&mut self.handed_over, to.to_string(), *range)
            }
            Happening::HandoffFailed { range, to, why } => {
                let place = (to.to_string(), why.clone());
                self.failed.entry(place).or_default().push(*range);
                self.since.get_or_insert_with(Instant::now);
                return;
            }
            _ => return,
        };
        list.entry(other).or_default().push(range);
        self.since.get_or_insert_with(Instant::now);
    }

    /// The lines, and what of them is reported at the Pod.
    fn take_notices(&mut self) -> Vec<Notice> {
        let Some(since) = self.since.take() else {
            return Vec::new();
        };
        let mut notices = Vec::new();
        let took_ms = since.elapsed().as_millis();
        for (from, ranges) in std::mem::take(&mut self.took_over) {
            notices.push(Notice::normal(
                "TookOver",
                format!(
                    "took {} ranges over from {from} within {took_ms} ms: {}",
                    ranges.len(),
                    spans(&ranges)
                ),
            ));
            tracing::info!(
                from,
                count = ranges.len(),
                ranges = spans(&ranges),
                took_ms,
                "took ranges over"
            );
        }
        for (from, ranges) in std::mem::take(&mut self.received) {
            tracing::info!(
                from,
                count = ranges.len(),
                ranges = spans(&ranges),
                took_ms,
                "received ranges"
            );
        }
        for ((to, why), ranges) in std::mem::take(&mut self.failed) {
            notices.push(Notice::warning(
                "HandoffFailed",
                format!(
                    "{} ranges were not handed to {to}: {why}: {}",
                    ranges.len(),
                    spans(&ranges)
                ),
            ));
            tracing::info!(
                to,
                why,
                count = ranges.len(),
                ranges = spans(&ranges),
                "handoffs did not happen; the ranges continue here until they are tried again"
            );
        }
        let slowest_ms = std::mem::take(&mut self.slowest).as_millis();
        for (to, ranges) in std::mem::take(&mut self.handed_over) {
            tracing::info!(
                to,
                count = ranges.len(),
                ranges = spans(&ranges),
                slowest_ms,
                "handed ranges over"
            );
        }
        notices
    }
}

/// What is reported at the Pod at once.
fn notice(happening: &Happening, held: usize) -> Option<Notice> {
    let (r#type, reason) = match happening {
        Happening::Fenced => {
            return Some(Notice::warning(
                "Fenced",
                format!(
                    "{happening}; it had {held} ranges and writes nothing until it has renewed"
                ),
            ));
        }
        Happening::SelfEvicted { ranges, .. } => {
            return Some(Notice::warning(
                "SelfEvicted",
                format!("{happening}: {}", spans(ranges)),
            ));
        }
        Happening::Dropped { ranges } => {
            return Some(Notice::warning(
                "Dropped",
                format!("{happening}: {}", spans(ranges)),
            ));
        }
        Happening::Evicted { .. } => (EventType::Normal, "Evicted"),
        Happening::Reopened { .. } => (EventType::Normal, "Reopened"),
        Happening::FalseProof { .. } => (EventType::Warning, "FalseProofOfDeath"),
        Happening::Deprived { .. } => (EventType::Warning, "Deprived"),
        Happening::Standby { .. } => (EventType::Warning, "Standby"),
        Happening::Damaged { .. } => (EventType::Warning, "LeaseDamaged"),
        Happening::Doubtful { .. } => (EventType::Warning, "RangesDoubtful"),
        Happening::Planned { .. } => (EventType::Normal, "MovePlanned"),
        Happening::BadPlan { .. } => (EventType::Warning, "PlanUnreadable"),
        Happening::MovesGivenUp { .. } => (EventType::Warning, "MovesGivenUp"),
        Happening::Joined { .. }
        | Happening::TookOver { .. }
        | Happening::Received { .. }
        | Happening::HandedOver { .. }
        | Happening::Relinquished { .. }
        | Happening::HandoffFailed { .. }
        | Happening::Holds => return None,
    };
    Some(Notice {
        r#type,
        reason,
        message: happening.to_string(),
    })
}

/// The `what` of `manifold_ownership_changes_total`.
fn word(happening: &Happening) -> &'static str {
    match happening {
        Happening::Joined { .. } => "joined",
        Happening::Fenced => "fenced",
        Happening::Reopened { .. } => "reopened",
        Happening::SelfEvicted { .. } => "self_evicted",
        Happening::Evicted { .. } => "evicted",
        Happening::FalseProof { .. } => "false_proof",
        Happening::TookOver { .. } => "took_over",
        Happening::Received { .. } => "received",
        Happening::HandedOver { .. } => "handed_over",
        Happening::Relinquished { .. } => "relinquished",
        Happening::HandoffFailed { .. } => "handoff_failed",
        Happening::Deprived { .. } => "deprived",
        Happening::Damaged { .. } => "lease_damaged",
        Happening::Doubtful { .. } => "ranges_doubtful",
        Happening::Dropped { .. } => "dropped",
        Happening::Standby { .. } => "standby",
        Happening::Holds => "holds",
        Happening::Planned { .. } => "planned",
        Happening::BadPlan { .. } => "bad_plan",
        Happening::MovesGivenUp { .. } => "moves_given_up",
    }
}

fn measure(happening: &Happening, metrics: &Metrics) {
    metrics.ownership_changed(word(happening));
    match happening {
        Happening::Evicted { silent, .. } => metrics.taken_over(*silent),
        Happening::HandedOver { took, .. } => metrics.handed_off(Direction::Out, *took),
        _ => {}
    }
}

/// Follows what happens until the coordinator has ended. What there is no room for at the Pod is in the log
/// all the same.
pub async fn follow(
    handle: Handle,
    metrics: Arc<Metrics>,
    pod: Option<mpsc::Sender<Notice>>,
    traces: Option<Arc<Traces>>,
) {
    let at_the_pod = |notices: Vec<Notice>| {
        for notice in notices {
            if let Some(pod) = &pod
                && pod.try_send(notice).is_err()
            {
                metrics.event_dropped();
            }
        }
    };
    let mut happenings = handle.happenings();
    let mut pending = Pending::default();
    loop {
        let happening = if pending.since.is_some() {
            match tokio::time::timeout(TOGETHER, happenings.recv()).await {
                Ok(happening) => happening,
                Err(_) => {
                    at_the_pod(pending.take_notices());
                    continue;
                }
            }
        } else {
            happenings.recv().await
        };
        match happening {
            Ok(happening) => {
                measure(&happening, &metrics);
                if let Some(traces) = &traces {
                    let view = handle.view();
                    let epoch_of = |range| view.own.get(&range).copied();
                    traces.happened(&happening, &handle.incarnation(), epoch_of);
                }
                let held = handle.view().own.len();
                at_the_pod(notice(&happening, held).into_iter().collect());
                pending.note(&happening);
            }
            Err(RecvError::Lagged(missed)) => {
                tracing::warn!(missed, "ownership changes faster than it is reported");
            }
            Err(RecvError::Closed) => {
                at_the_pod(pending.take_notices());
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use coordinator::Holder;

    use super::*;

    #[test]
    fn what_comes_together_is_reported_in_one_notice_that_says_who_which_and_how_long() {
        let mut pending = Pending::default();
        for range in [3, 4, 7] {
            pending.note(&Happening::TookOver {
                range,
                epoch: 2,
                from: Some(Holder::new("b", "b1")),
            });
        }
        pending.note(&Happening::HandoffFailed {
            range: 9,
            to: Holder::new("c", "c1"),
            why: "no answer".to_owned(),
        });
        let notices = pending.take_notices();
        let reported: Vec<(&str, &str)> = notices
            .iter()
            .map(|notice| (notice.reason, notice.message.as_str()))
            .collect();
        let [took, failed] = &reported[..] else {
            panic!("{reported:?}")
        };
        assert!(
            took.0 == "TookOver"
                && took.1.starts_with("took 3 ranges over from b_b1 within ")
                && took.1.ends_with(" ms: 3-4,7"),
            "{took:?}"
        );
        assert_eq!(
            *failed,
            (
                "HandoffFailed",
                "1 ranges were not handed to c_c1: no answer: 9"
            )
        );
        assert!(pending.take_notices().is_empty());
    }

    #[test]
    fn a_self_fence_says_what_it_had() {
        let fenced = notice(&Happening::Fenced, 64).unwrap();
        assert_eq!(
            (fenced.reason, fenced.r#type),
            ("Fenced", EventType::Warning)
        );
        assert!(
            fenced.message.contains("it had 64 ranges"),
            "{}",
            fenced.message
        );
        let joined = Happening::Joined {
            incarnation: "a1".to_owned(),
        };
        assert!(notice(&joined, 0).is_none());
    }

    #[test]
    fn ranges_read_as_spans() {
        assert_eq!(spans(&[]), "");
        assert_eq!(spans(&[7, 3, 4, 5, 12, 4]), "3-5,7,12");
        assert_eq!(spans(&[0, 1]), "0-1");
    }
}
