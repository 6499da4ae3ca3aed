//! How many ranges a replica asks for after lives that ended without a word. A replica that dies each time
//! that it has its share (out of memory, an object that kills it) would stall that share at each start; so it
//! gets it back step by step, and dies with little.
//!
//! What happened before is kept in the replica's own Lease: when its last lives ended that did not leave in
//! good order. The replica itself says in that Lease how many ranges it takes at most, so all members place
//! alike.

use std::{fmt, time::Duration};

/// Ends that are remembered: more of them mean no more than these.
const KEPT: usize = 3;

/// One end within so long makes the next start slow, in seconds.
const LATELY: i64 = 600;

/// [`KEPT`] ends within so long keep the share small until the first of them is so long ago, in seconds.
const LOOPING: i64 = 3600;

/// A replica that ends again and again takes this part of a full share.
const LOOPING_PART: u16 = 4;

/// When lives of one replica ended without having left, in Unix seconds by that replica's clock, oldest
/// first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Crashes(Vec<i64>);

impl Crashes {
    /// From what [`Display`](fmt::Display) wrote; what is no number is left out.
    pub fn parse(text: &str) -> Self {
        let mut ends: Vec<i64> = text.split(',').filter_map(|end| end.parse().ok()).collect();
        ends.sort_unstable();
        Self::newest(ends)
    }

    fn newest(mut ends: Vec<i64>) -> Self {
        ends.drain(..ends.len().saturating_sub(KEPT));
        Self(ends)
    }

    /// With one more.
    #[must_use]
    pub fn and(&self, at: i64) -> Self {
        let mut ends = self.0.clone();
        // A clock that was set back must not make it the oldest.
        ends.retain(|end| *end <= at);
        ends.push(at);
        Self::newest(ends)
    }

    fn within(&self, now: i64, seconds: i64) -> usize {
        let recent = |end: &&i64| now.saturating_sub(**end) < seconds;
        self.0.iter().filter(recent).count()
    }

    /// How many ranges the replica takes at most, having lived for so long, where a full share is `full`;
    /// `None` for as many as there are for it. `step` is the time in which the share doubles, from one range
    /// on; with zero the start is never slow.
    pub fn share(&self, now: i64, lived: Duration, full: u16, step: Duration) -> Option<u16> {
        if step.is_zero() {
            return None;
        }
        let full = full.max(1);
        let most = if self.within(now, LOOPING) >= KEPT {
            (full / LOOPING_PART).max(1)
        } else if self.within(now, LATELY) > 0 {
            full
        } else {
            return None;
        };
        let steps = lived.as_nanos() / step.as_nanos();
        let share = u32::try_from(steps)
            .ok()
            .and_then(|steps| 1_u16.checked_shl(steps))
            .filter(|share| *share > 0)
            .map_or(most, |share| share.min(most));
        (share < full).then_some(share)
    }
}

impl fmt::Display for Crashes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ends: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&ends.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_secs(10);
    const NOW: i64 = 1_700_000_000;

    fn shares(crashes: &Crashes, now: i64, lived: &[u64]) -> Vec<Option<u16>> {
        let share = |lived: &u64| {
            let lived_long = Duration::from_secs(*lived);
            let now = now + i64::try_from(*lived).unwrap();
            crashes.share(now, lived_long, 85, STEP)
        };
        lived.iter().map(share).collect()
    }

    #[test]
    fn after_one_end_the_share_doubles_from_one_range_on() {
        let once = Crashes::default().and(NOW);
        assert_eq!(
            shares(&once, NOW, &[0, 9, 10, 20, 60, 69, 70, 10_000]),
            [
                Some(1),
                Some(1),
                Some(2),
                Some(4),
                Some(64),
                Some(64),
                None,
                None
            ]
        );
        assert_eq!(shares(&once, NOW + 599, &[0]), [Some(1)]);
        assert_eq!(shares(&once, NOW + 600, &[0]), [None], "that is long ago");
    }

    #[test]
    fn who_has_left_in_good_order_has_its_share_at_once() {
        assert_eq!(shares(&Crashes::default(), NOW, &[0]), [None]);
        let once = Crashes::default().and(NOW);
        assert_eq!(
            once.share(NOW, STEP, 85, Duration::ZERO),
            None,
            "switched off"
        );
    }

    #[test]
    fn after_three_ends_the_share_stays_small_until_an_hour_is_over() {
        let thrice = Crashes::default().and(NOW).and(NOW + 60).and(NOW + 120);
        assert_eq!(
            shares(&thrice, NOW + 120, &[0, 30, 40, 50, 1000, 3479, 3480]),
            [
                Some(1),
                Some(8),
                Some(16),
                Some(21),
                Some(21),
                Some(21),
                None
            ]
        );
        let few = thrice.share(NOW + 120, Duration::from_secs(500), 3, STEP);
        assert_eq!(few, Some(1), "never nothing");
    }

    #[test]
    fn the_newest_are_kept_and_survive_their_text() {
        let ends = Crashes::default().and(1).and(2).and(3).and(4);
        assert_eq!(ends.to_string(), "2,3,4");
        assert_eq!(Crashes::parse("4,x,2,,3"), ends);
        assert_eq!(Crashes::parse(""), Crashes::default());
        assert_eq!(ends.and(3).to_string(), "2,3,3", "a clock was set back");
    }
}
