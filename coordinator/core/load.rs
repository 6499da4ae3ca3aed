//! How much work each range makes, and how replicas report it: a moving average for each range, as one byte.
//!
//! The load of a range is the time that its reconciles take in a second: planning, reads and writes, and the
//! wait in the queue before. It has no unit but itself: seconds in a second.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use crate::lease::{Epoch, RangeId, Time};

/// After so long, half of what was measured counts no more.
const HALF_LIFE: Duration = Duration::from_secs(30);

/// Two measurements lie so far apart at least: reading all ranges of a replica is not for each second.
const MEASURED_EVERY: Duration = Duration::from_secs(5);

/// What a replica says of its loads changes so seldom …
const REPORTED_EVERY: Duration = Duration::from_secs(15);

/// … and only where some load has changed by this number of levels: by an eighth. Less is noise.
const REPORTED_LEVELS: u8 = 2;

/// Level 1, in microseconds a second. What is below it is nothing.
const FIRST_LEVEL: f64 = 1000.0;

/// One level to the next: 255 of them reach from a millisecond a second to 2,700 seconds.
const STEP: f64 = 1.06;

/// A load on its logarithmic scale; 0 is none.
pub type Level = u8;

/// The level of a load in microseconds a second.
fn level_of(load: f64) -> Level {
    if load < FIRST_LEVEL {
        return 0;
    }
    let steps = (load / FIRST_LEVEL).ln() / STEP.ln();
    // Between 1 and 255.
    (steps.round() + 1.0).clamp(1.0, f64::from(Level::MAX)) as Level
}

/// The load of a level in microseconds a second.
pub fn load_of(level: Level) -> u64 {
    match level.checked_sub(1) {
        None => 0,
        Some(steps) => (FIRST_LEVEL * STEP.powi(i32::from(steps))).round() as u64,
    }
}

/// What a replica says of its ranges' loads, in its Lease; ranges without load are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Loads(BTreeMap<RangeId, Level>);

impl Loads {
    /// The level of a range; 0 for one that is not named.
    pub fn level(&self, range: RangeId) -> Level {
        self.0.get(&range).copied().unwrap_or(0)
    }

    /// All that have a load, with it in microseconds a second.
    pub fn iter(&self) -> impl Iterator<Item = (RangeId, u64)> + '_ {
        self.0
            .iter()
            .map(|(range, level)| (*range, load_of(*level)))
    }

    /// From what [`Display`](fmt::Display) wrote: what can't be read is left out.
    pub fn parse(text: &str) -> Self {
        let mut loads = BTreeMap::new();
        for run in text.split(',') {
            let Some((first, levels)) = run.split_once(':') else {
                continue;
            };
            let Ok(first) = first.parse::<RangeId>() else {
                continue;
            };
            let digits = levels.as_bytes().chunks_exact(2);
            for (range, pair) in (first..=RangeId::MAX).zip(digits) {
                let text = std::str::from_utf8(pair).unwrap_or_default();
                if let Ok(level) = Level::from_str_radix(text, 16)
                    && level > 0
                {
                    loads.insert(range, level);
                }
            }
        }
        Self(loads)
    }

    /// Whether it differs from another by more than noise.
    fn has_changed_since(&self, before: &Self) -> bool {
        let is_noise = |range: &RangeId| {
            let (one, other) = (self.level(*range), before.level(*range));
            one.abs_diff(other) < REPORTED_LEVELS && (one == 0) == (other == 0)
        };
        !self.0.keys().chain(before.0.keys()).all(is_noise)
    }
}

impl FromIterator<(RangeId, Level)> for Loads {
    fn from_iter<I: IntoIterator<Item = (RangeId, Level)>>(loads: I) -> Self {
        Self(loads.into_iter().filter(|(_, level)| *level > 0).collect())
    }
}

/// As `<range>:<level><level>…,<range>:<level>…`: the first range of each run in decimals, a level for each
/// of its ranges as two hexadecimal digits.
impl fmt::Display for Loads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut next = None;
        for (range, level) in &self.0 {
            match next {
                Some(next) if next == *range => {}
                Some(_) => write!(f, ",{range}:")?,
                None => write!(f, "{range}:")?,
            }
            write!(f, "{level:02x}")?;
            next = range.checked_add(1);
        }
        Ok(())
    }
}

/// A range that is measured.
#[derive(Clone, Debug)]
struct Measured {
    epoch: Epoch,
    /// What it had taken by the measurement before.
    total: Duration,
    /// Time taken and time passed, in seconds, both halved in each half-life.
    taken: f64,
    passed: f64,
    /// For how long it has taken nothing.
    idle: Duration,
}

/// Measures the ranges of one replica.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    ranges: BTreeMap<RangeId, Measured>,
    measured_at: Option<Time>,
    reported: Arc<Loads>,
    reported_at: Option<Time>,
}

impl Meter {
    /// What to say of the loads now. `totals` gives for each owned range its epoch, and what its reconciles
    /// have taken so far under it; it is called as seldom as possible.
    pub fn report<I: IntoIterator<Item = (RangeId, Epoch, Duration)>>(
        &mut self,
        now: Time,
        totals: impl FnOnce() -> I,
    ) -> Arc<Loads> {
        let since = |at: Option<Time>| at.map(|at| now.saturating_sub(at));
        if since(self.measured_at).is_none_or(|passed| passed >= MEASURED_EVERY) {
            self.measure(since(self.measured_at).unwrap_or_default(), totals());
            self.measured_at = Some(now);
            if since(self.reported_at).is_none_or(|passed| passed >= REPORTED_EVERY) {
                let loads: Loads = self.levels().collect();
                if loads.has_changed_since(&self.reported) {
                    self.reported = Arc::new(loads);
                    self.reported_at = Some(now);
                }
            }
        }
        Arc::clone(&self.reported)
    }

    fn levels(&self) -> impl Iterator<Item = (RangeId, Level)> + '_ {
        self.ranges.iter().map(|(range, measured)| {
            // Work that is over is no load: its average would take minutes to say so, and ranges would be
            // moved for the sake of a start that is long over.
            let load = match measured.passed > 0.0 && measured.idle < HALF_LIFE {
                true => measured.taken / measured.passed * 1e6,
                false => 0.0,
            };
            (*range, level_of(load))
        })
    }

    fn measure(
        &mut self,
        passed: Duration,
        totals: impl IntoIterator<Item = (RangeId, Epoch, Duration)>,
    ) {
        let left = (-passed.as_secs_f64() / HALF_LIFE.as_secs_f64()).exp2();
        let mut before = std::mem::take(&mut self.ranges);
        for (range, epoch, total) in totals {
            // One that was gained meanwhile is measured from now on.
            let known = before.remove(&range).filter(|known| known.epoch == epoch);
            let measured = match known {
                Some(known) => {
                    let taken = total.saturating_sub(known.total);
                    Measured {
                        epoch,
                        total,
                        taken: known.taken * left + taken.as_secs_f64(),
                        passed: known.passed * left + passed.as_secs_f64(),
                        idle: match taken.is_zero() {
                            true => known.idle + passed,
                            false => Duration::ZERO,
                        },
                    }
                }
                None => Measured {
                    epoch,
                    total,
                    taken: 0.0,
                    passed: 0.0,
                    idle: Duration::ZERO,
                },
            };
            self.ranges.insert(range, measured);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn levels_are_within_three_percent_of_the_load() {
        assert_eq!((level_of(0.0), level_of(999.0)), (0, 0));
        assert_eq!((level_of(1000.0), load_of(1), load_of(0)), (1, 1000, 0));
        for load in [1_234_u64, 50_000, 333_333, 1_000_000, 90_000_000] {
            let reported = load_of(level_of(load as f64));
            assert!(
                reported.abs_diff(load) * 100 <= load * 3,
                "{load} as {reported}"
            );
        }
        assert_eq!(level_of(1e15), Level::MAX);
    }

    #[test]
    fn loads_survive_their_text() {
        let loads: Loads = [(0, 1), (1, 255), (2, 0), (7, 16), (4095, 3)]
            .into_iter()
            .collect();
        assert_eq!(loads.to_string(), "0:01ff,7:10,4095:03");
        assert_eq!(Loads::parse(&loads.to_string()), loads);
        assert_eq!(Loads::default().to_string(), "");
        assert_eq!(Loads::parse(""), Loads::default());
        let odd = "x:01,3:zz05,9:0,65535:0102,-1:02,5";
        assert_eq!(Loads::parse(odd).to_string(), "4:05,65535:01");
    }

    #[test]
    fn a_steady_load_is_found_at_once_and_reported_once() {
        let mut meter = Meter::default();
        let mut reported = Vec::new();
        for second in 0..120 {
            let total = Duration::from_millis(200) * u32::try_from(second).unwrap();
            let loads = meter.report(seconds(second), || [(3, 7, total), (4, 1, Duration::ZERO)]);
            if reported.last() != Some(&loads) {
                reported.push(loads);
            }
        }
        let levels: Vec<u64> = reported
            .iter()
            .map(|loads| load_of(loads.level(3)))
            .collect();
        assert_eq!(levels.len(), 2, "nothing, then 0.2: {levels:?}");
        assert!((194_000..206_000).contains(&levels[1]), "{levels:?}");
        assert_eq!(reported[1].level(4), 0);
    }

    #[test]
    fn work_that_is_over_is_no_load_half_a_minute_later() {
        let mut meter = Meter::default();
        let mut reported = Vec::new();
        for second in 0..120 {
            // A start: four seconds of work in each, then none.
            let total = Duration::from_secs(4) * u32::try_from(second.min(20)).unwrap();
            let level = meter.report(seconds(second), || [(3, 7, total)]).level(3);
            if reported.last().is_none_or(|(_, before)| *before != level) {
                reported.push((second, level));
            }
        }
        assert!(
            reported
                .iter()
                .any(|(_, level)| load_of(*level) > 3_000_000)
        );
        let last = reported.last().unwrap();
        assert!(last.1 == 0 && (50..=65).contains(&last.0), "{reported:?}");
    }

    #[test]
    fn what_changes_is_reported_every_fifteen_seconds_at_most() {
        let mut meter = Meter::default();
        let (mut total, mut reported) = (Duration::ZERO, Vec::new());
        for second in 0..300 {
            total += Duration::from_millis(second * 10);
            let loads = meter.report(seconds(second), || [(3, 7, total)]);
            if reported.last().is_none_or(|(_, before)| *before != loads) {
                reported.push((second, loads));
            }
        }
        let far = |pair: &[(u64, Arc<Loads>)]| pair[1].0 - pair[0].0 >= 15;
        assert!(
            reported.len() > 5 && reported[1..].windows(2).all(far),
            "{reported:?}"
        );
    }

    #[test]
    fn a_range_that_has_gone_and_come_is_measured_from_then_on() {
        let mut meter = Meter::default();
        let busy = |second: u64| Duration::from_millis(500 * second);
        for second in 0..60 {
            meter.report(seconds(second), || [(3, 7, busy(second))]);
        }
        let lost = meter.report(seconds(80), || []);
        assert_eq!(*lost, Loads::default());
        let gained = meter.report(seconds(95), || [(3, 9, busy(1000))]);
        assert_eq!(*gained, Loads::default(), "what it took before counts not");
        let idle = meter.report(seconds(110), || [(3, 9, busy(1000))]);
        assert_eq!(*idle, Loads::default());
    }
}
