//! What an autoscaler remembers: what it has recommended and how it has scaled, as instants on this replica's
//! clock.
//!
//! A handoff carries both as ages. After a crash two things must still hold: no scale-down before the
//! stabilization window is over, none faster than the policies allow.
//!
//! - *Recommendations* are begun again with the size that the target has, as if it had just been recommended.
//!   That is never too early: whatever the window held, nothing below the present size is applied before a
//!   whole window has passed. It costs a scale-down that was waiting at most one window, once, and no write.
//! - *Scale events* ([`ANNOTATION`]) ride along with the status patch that reports the scaling itself,
//!   which is written anyway, and only for autoscalers that have a behavior: no others have policies with a
//!   past. So the checkpoint costs no request, and is never older than the last scaling. Where the crash fell
//!   between the scaling and that patch, the target's size differs from the reported one: the difference
//!   counts as an event of the present.
//!
//! Weighed against it: a checkpoint of the recommendations at a bounded rate costs each autoscaler under load
//! a write a period (its status changes in most periods, but not in all, and a checkpoint that is late by a
//! period would allow a scale-down that is early by a period); rebuilding from events fails where the spam
//! filter has cut them off, and they do not record the former sizes.

use controllers_kit::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// The annotation that keeps scale events: `+4@1700000000.250 -1@1700000060.500`.
pub const ANNOTATION: &str = "manifold.dev/scale-events";

/// Recommendations kept per autoscaler. Only those count that are larger or smaller than all later ones, so
/// there are at most two for each size; beyond the bound the two oldest are merged into one that forbids
/// what either forbade.
pub const RECOMMENDATIONS_MAX: usize = 512;
/// Events kept per direction: 1800 s, the longest period of a policy, with one scaling every 15 s. Beyond
/// the bound the two oldest are merged into one at the later instant.
pub const EVENTS_MAX: usize = 120;
/// The longest period that the API accepts for a policy.
const PERIOD_MAX: SignedDuration = SignedDuration::from_secs(1800);

/// A recommendation before stabilization.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recommendation {
    /// The recommended number of replicas.
    pub replicas: i32,
    /// The instant of the recommendation.
    pub at: Timestamp,
}

/// One scaling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The number of replicas added or removed, never below 0.
    pub change: i32,
    /// The instant of the scaling.
    pub at: Timestamp,
}

/// What an autoscaler remembers of its past.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct History {
    /// The oldest first.
    pub recommendations: Vec<Recommendation>,
    /// Scalings up, the oldest first.
    pub ups: Vec<Event>,
    /// Scalings down, the oldest first.
    pub downs: Vec<Event>,
}

impl History {
    /// Counts the present size as recommended, where there is no recommendation yet.
    pub fn begin(&mut self, replicas: i32, now: Timestamp) {
        if self.recommendations.is_empty() {
            self.recommendations
                .push(Recommendation { replicas, at: now });
        }
    }

    /// Records a recommendation; those outside both windows are dropped.
    pub fn recommend(&mut self, replicas: i32, now: Timestamp, window: SignedDuration) {
        let kept = &mut self.recommendations;
        kept.retain(|one| one.at >= now - window);
        kept.push(Recommendation { replicas, at: now });
        // A recommendation that a later one equals or exceeds in both directions never decides again.
        let (mut most, mut least) = (i32::MIN, i32::MAX);
        let mut counts: Vec<Recommendation> = Vec::with_capacity(kept.len());
        for one in kept.iter().rev() {
            if one.replicas > most || one.replicas < least {
                counts.push(*one);
            }
            most = most.max(one.replicas);
            least = least.min(one.replicas);
        }
        counts.reverse();
        while counts.len() > RECOMMENDATIONS_MAX {
            let oldest = counts.remove(0);
            counts[0].replicas = counts[0].replicas.max(oldest.replicas);
        }
        *kept = counts;
    }

    /// Records a scaling.
    pub fn scaled(&mut self, from: i32, to: i32, at: Timestamp) {
        let (events, change) = if to > from {
            (&mut self.ups, to.saturating_sub(from))
        } else {
            (&mut self.downs, from.saturating_sub(to))
        };
        events.retain(|event| event.at >= at - PERIOD_MAX);
        events.push(Event { change, at });
        while events.len() > EVENTS_MAX {
            let oldest = events.remove(0);
            events[0].change = events[0].change.saturating_add(oldest.change);
        }
    }

    /// Shifts all instants by the difference of two clocks.
    pub fn shift(&mut self, by: SignedDuration) {
        let moved = |at: Timestamp| at.checked_add(by).unwrap_or(at);
        for one in &mut self.recommendations {
            one.at = moved(one.at);
        }
        for one in self.ups.iter_mut().chain(&mut self.downs) {
            one.at = moved(one.at);
        }
    }

    /// The scale events that some policy may still count, as the annotation keeps them; empty for none.
    pub fn checkpoint(&self, now: Timestamp) -> String {
        let mut events: Vec<(Timestamp, String)> = Vec::new();
        for (sign, list) in [('+', &self.ups), ('-', &self.downs)] {
            for event in list.iter().filter(|event| event.at >= now - PERIOD_MAX) {
                let millis = event.at.as_millisecond();
                let (seconds, rest) = (millis.div_euclid(1000), millis.rem_euclid(1000));
                events.push((
                    event.at,
                    format!("{sign}{}@{seconds}.{rest:03}", event.change),
                ));
            }
        }
        events.sort();
        let words: Vec<String> = events.into_iter().map(|(_, word)| word).collect();
        words.join(" ")
    }

    /// Takes in what [`History::checkpoint`] has written; unknown words are skipped. An event in the
    /// future, by its writer's clock, counts as of now.
    pub fn restore(&mut self, text: &str, now: Timestamp) {
        for word in text.split_ascii_whitespace().take(2 * EVENTS_MAX) {
            let Some((sign, rest)) = word.split_at_checked(1) else {
                continue;
            };
            let Some((change, at)) = rest.split_once('@') else {
                continue;
            };
            let (Ok(change), Some(at)) = (change.parse::<i32>(), instant(at)) else {
                continue;
            };
            let at = at.min(now);
            if change < 0 || at < now - PERIOD_MAX {
                continue;
            }
            match sign {
                "+" => self.ups.push(Event { change, at }),
                "-" => self.downs.push(Event { change, at }),
                _ => {}
            }
        }
    }
}

/// From seconds and thousandths.
fn instant(text: &str) -> Option<Timestamp> {
    let (seconds, rest) = text.split_once('.').unwrap_or((text, "0"));
    let (seconds, rest) = (seconds.parse::<i64>().ok()?, rest.parse::<i64>().ok()?);
    let millis = seconds.checked_mul(1000)?.checked_add(rest)?;
    Timestamp::from_millisecond(millis).ok()
}

/// The total change within a policy's period.
pub fn changed_within(events: &[Event], period_seconds: i32, now: Timestamp) -> i64 {
    let cutoff = now - SignedDuration::from_secs(period_seconds.into());
    events
        .iter()
        .filter(|event| event.at > cutoff)
        .map(|event| i64::from(event.change))
        .sum()
}
