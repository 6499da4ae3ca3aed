//! What happens to ownership, for people: metrics for each change, and one log line for those that come together.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use coordinator::{Handle, Happening, RangeId};
use tokio::sync::broadcast::error::RecvError;

use crate::metrics::{Direction, Metrics};

/// Changes that come within this time of each other are told in one line: a replica that joins or dies moves dozens of
/// ranges at once.
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

/// What has happened and is not told yet.
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

    fn tell(&mut self) {
        let Some(since) = self.since.take() else {
            return;
        };
        let took_ms = since.elapsed().as_millis();
        for (from, ranges) in std::mem::take(&mut self.took_over) {
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
            tracing::info!(
                to,
                why,
                count = ranges.len(),
                ranges = spans(&ranges),
                "handoffs did not happen; the ranges go on here until they are tried again"
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
    }
}

fn measure(happening: &Happening, metrics: &Metrics) {
    match happening {
        Happening::Evicted { silent, .. } => metrics.taken_over(*silent),
        Happening::HandedOver { took, .. } => metrics.handed_off(Direction::Out, *took),
        _ => {}
    }
}

/// Follows what happens until the coordinator has ended.
pub async fn follow(handle: Handle, metrics: Arc<Metrics>) {
    let mut happenings = handle.happenings();
    let mut pending = Pending::default();
    loop {
        let happening = if pending.since.is_some() {
            match tokio::time::timeout(TOGETHER, happenings.recv()).await {
                Ok(happening) => happening,
                Err(_) => {
                    pending.tell();
                    continue;
                }
            }
        } else {
            happenings.recv().await
        };
        match happening {
            Ok(happening) => {
                measure(&happening, &metrics);
                pending.note(&happening);
            }
            Err(RecvError::Lagged(missed)) => {
                tracing::warn!(missed, "ownership changes faster than it is told of");
            }
            Err(RecvError::Closed) => {
                pending.tell();
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::spans;

    #[test]
    fn ranges_read_as_spans() {
        assert_eq!(spans(&[]), "");
        assert_eq!(spans(&[7, 3, 4, 5, 12, 4]), "3-5,7,12");
        assert_eq!(spans(&[0, 1]), "0-1");
    }
}
