//! Gathering changes: what is to be written waits until a period has passed since it was first due to be.

use std::time::Duration;

use controllers_kit::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// The memory of one key while a batching period is set; empty without one. Losing it costs an early write.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Batch {
    /// The version of the key's own object at its last plan: its own changes never wait.
    version: u64,
    /// Since when something waits to be written.
    since: Option<Timestamp>,
}

impl Batch {
    /// Until when writes wait; `None` where they are due now.
    pub fn wait(&mut self, period: Duration, version: u64, now: Timestamp) -> Option<Timestamp> {
        if period.is_zero() {
            *self = Self::default();
            return None;
        }
        let changed = self.version != version;
        self.version = version;
        // A time that another replica has recorded may be ahead of this one's clock.
        let since = self.since.map_or(now, |since| since.min(now));
        let due = SignedDuration::try_from(period)
            .ok()
            .and_then(|period| since.checked_add(period).ok())
            .unwrap_or(Timestamp::MAX);
        if changed || due <= now {
            self.since = None;
            return None;
        }
        self.since = Some(since);
        Some(due)
    }

    /// Nothing is to be written.
    pub fn rest(&mut self, period: Duration, version: u64) {
        *self = Self {
            version: if period.is_zero() { 0 } else { version },
            since: None,
        };
    }
}
