//! Whether what this replica sees is current: a replica owns ranges only while it is.
//!
//! Silence proves nothing, since a cluster may be quiet; so what counts is a version that is known to exist
//! and is not shown: the newest renewal of the own Lease, which a watch over the watches' connection must
//! bring (the canary), and what somebody waits for, because it was written here or another replica has seen
//! it. What is stuck is given a new connection first, then a new list; where that does not help the
//! replica says that it is stale, and its ranges move. The decisions are made here, without clock and I/O.

mod canary;
mod others;
mod shell;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use others::Others;
pub use shell::{Parts, Said, follow};

/// What is stuck for this long gets a new connection.
const CONNECT_AFTER: Duration = Duration::from_secs(3);
/// Not sooner than so long after the last one, twice as long each time while that does not help: a server
/// that is slow does not get faster by it.
const CONNECT_AGAIN_AFTER: Duration = Duration::from_secs(15);
const CONNECT_AGAIN_AFTER_MAX: Duration = Duration::from_secs(300);
/// A resource that is stuck for this long is listed.
const LIST_AFTER: Duration = Duration::from_secs(5);
/// Not sooner than so long after it was listed last for this reason.
const LIST_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// The replica is stale when its canary is stuck for this long: no watch brings anything …
const STALE_AFTER: Duration = Duration::from_millis(4_500);
/// … or when one resource does, though it was to be listed.
const STALE_AFTER_LIST: Duration = Duration::from_secs(8);
/// It is current again when nothing has stood still for this long …
const RETURN_AFTER: Duration = Duration::from_secs(10);
/// … twice as long each time that it was stale within ten minutes, while others are current.
const RETURN_AFTER_MAX: Duration = Duration::from_secs(80);
const REMEMBERED_FOR: Duration = Duration::from_secs(600);
/// A standstill counts only while the server answers, which the last renewal proves for this long.
const ALIVE_FOR: Duration = Duration::from_millis(2_500);
/// Between two checks lies less than this. What happens in a longer gap, in which the process did not run,
/// says nothing of the connection.
const GAP_MAX: Duration = Duration::from_secs(2);

/// How far something has come, and the version that it should show, where one is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Everything up to it is shown.
    pub reached: u64,
    /// It exists.
    pub wanted: Option<u64>,
}

/// What is seen at one time.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The newest renewal of the own Lease, and what the canary shows.
    pub canary: Progress,
    /// Each resource, by its place.
    pub resources: &'a [Progress],
    /// Whether another member is current.
    pub others_are_current: bool,
}

/// What is to be done against a standstill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repair {
    /// A new connection for all watches.
    Connect,
    /// A list of the resource of this place.
    List(usize),
}

/// What is stuck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standstill {
    /// Every watch, as far as the canary shows.
    Connection,
    /// The resource of this place.
    Resource(usize),
}

/// Whether the replica sees what happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What is to be done now.
    pub repairs: Vec<Repair>,
    /// Whether it may own ranges.
    pub current: bool,
    /// What has stood still longest, and for how long.
    pub worst: Option<(Standstill, Duration)>,
}

/// The lowest version that is missing, and since when that is known.
#[derive(Clone, Copy, Debug, Default)]
struct Lag {
    missing: Option<(u64, Duration)>,
    listed: Option<Duration>,
}

impl Lag {
    /// For how long it has been missing.
    fn check(&mut self, now: Duration, progress: Progress) -> Duration {
        let Progress { reached, wanted } = progress;
        self.missing = match self.missing {
            // Nobody waits for it any more: the range has gone, or the object was deleted.
            Some(_) if wanted.is_none() => None,
            Some((version, since)) if reached < version => Some((version, since)),
            _ => wanted
                .filter(|version| reached < *version)
                .map(|version| (version, now)),
        };
        self.missing
            .map_or(Duration::ZERO, |(_, since)| now.saturating_sub(since))
    }
}

/// The core: takes checks and says what follows.
#[derive(Clone, Debug)]
pub struct Currency {
    checked: Duration,
    /// The newest renewal, and when it was seen first.
    renewed: (Option<u64>, Duration),
    canary: Lag,
    resources: Vec<Lag>,
    connected: Option<Duration>,
    connect_again_after: Duration,
    current: bool,
    /// Since when nothing is stuck, while it is stale.
    well_since: Option<Duration>,
    /// How long it must be so.
    return_after: Duration,
    stale_at: Option<Duration>,
}

impl Currency {
    /// For this number of resources. It begins as current: nothing is known to be missing.
    pub fn new(resources: usize) -> Self {
        Self {
            checked: Duration::ZERO,
            renewed: (None, Duration::ZERO),
            canary: Lag::default(),
            resources: vec![Lag::default(); resources],
            connected: None,
            connect_again_after: CONNECT_AGAIN_AFTER,
            current: true,
            well_since: None,
            return_after: RETURN_AFTER,
            stale_at: None,
        }
    }

    /// Takes one check, at a time from any instant that does not change.
    pub fn check(&mut self, now: Duration, view: View<'_>) -> Verdict {
        let View {
            canary, resources, ..
        } = view;
        let gap = now.saturating_sub(self.checked);
        self.checked = now;
        if self.renewed.0 != canary.wanted {
            self.renewed = (canary.wanted, now);
        }
        let answers = now.saturating_sub(self.renewed.1) <= ALIVE_FOR;
        if gap > GAP_MAX || !answers {
            // Whatever was missing before gets its time again.
            let lags = self.resources.iter_mut().chain([&mut self.canary]);
            lags.for_each(|lag| lag.missing = None);
            self.well_since = None;
        }
        let of_all = self.canary.check(now, canary);
        let mut worst = (Standstill::Connection, of_all);
        let mut repairs = Vec::new();
        let mut stale = of_all >= STALE_AFTER;
        for (at, (lag, progress)) in self.resources.iter_mut().zip(resources).enumerate() {
            let stuck = lag.check(now, *progress);
            stale |= stuck >= STALE_AFTER_LIST;
            // Of several the one that explains the others.
            if stuck > worst.1 && of_all < CONNECT_AFTER {
                worst = (Standstill::Resource(at), stuck);
            }
            let again = lag.listed.is_none_or(|at| now >= at + LIST_AGAIN_AFTER);
            // With nothing coming by any watch the connection is at fault, and lists would come by it too.
            if stuck >= LIST_AFTER && of_all < CONNECT_AFTER && again {
                lag.listed = Some(now);
                repairs.push(Repair::List(at));
            }
        }
        let after = self.connect_again_after;
        let again = |at| now >= at + after;
        match worst.1 >= CONNECT_AFTER {
            true if self.connected.is_none_or(again) => {
                if self.connected.is_some() {
                    let doubled = self.connect_again_after * 2;
                    self.connect_again_after = doubled.min(CONNECT_AGAIN_AFTER_MAX);
                }
                self.connected = Some(now);
                repairs.insert(0, Repair::Connect);
            }
            true => {}
            // The next standstill is another one, if it does not come at once.
            false if self.connected.is_some_and(again) => {
                (self.connected, self.connect_again_after) = (None, CONNECT_AGAIN_AFTER);
            }
            false => {}
        }
        let after = match view.others_are_current {
            true => self.return_after,
            false => RETURN_AFTER,
        };
        self.judge(now, stale, worst.1 >= CONNECT_AFTER, after);
        Verdict {
            repairs,
            current: self.current,
            worst: Some(worst).filter(|(_, stuck)| !stuck.is_zero()),
        }
    }

    fn judge(&mut self, now: Duration, stale: bool, stuck: bool, after: Duration) {
        if self.current {
            if stale {
                let lately = self.stale_at.is_some_and(|at| now < at + REMEMBERED_FOR);
                self.return_after = match lately {
                    true => (self.return_after * 2).min(RETURN_AFTER_MAX),
                    false => RETURN_AFTER,
                };
                (self.current, self.stale_at, self.well_since) = (false, Some(now), None);
            }
            return;
        }
        match stuck {
            true => self.well_since = None,
            false => {
                let since = *self.well_since.get_or_insert(now);
                self.current = now.saturating_sub(since) >= after;
            }
        }
    }
}
