//! Spares a provider that can't be reached, and its callers the wait for it.

use std::time::Duration;

use tokio::time::Instant;

/// Pause after the second failure in a row to reach the provider; doubled by each that follows a pause. One
/// failure alone is no reason for a pause: an answer may be lost, and what the caller asks next shows more …
const FIRST: Duration = Duration::from_millis(500);
/// … up to this.
const LONGEST: Duration = Duration::from_secs(10);

/// Pauses after failures in a row.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    /// Failures in a row; calls that failed while one was paused for count once.
    failures: u32,
    until: Option<Instant>,
    why: String,
}

impl Breaker {
    /// Whether a call may be tried; why not otherwise.
    pub(super) fn admit(&self, now: Instant) -> Result<(), String> {
        match self.until {
            // No time is in it: events about it count up instead of being many.
            Some(until) if now < until => Err(format!(
                "the cloud provider can't be reached, and is not tried again yet: {}",
                self.why
            )),
            _ => Ok(()),
        }
    }

    /// The provider has answered; whether it had not before.
    pub(super) fn reached(&mut self) -> bool {
        let had_failed = self.failures > 0;
        *self = Self::default();
        had_failed
    }

    /// The provider could not be reached; whether that is news. Calls that fail together count as one.
    pub(super) fn missed(&mut self, now: Instant, why: &str) -> bool {
        if self.until.is_some_and(|until| now < until) {
            return false;
        }
        why.clone_into(&mut self.why);
        let before = self.failures;
        self.failures = before.saturating_add(1);
        if let Some(doublings) = before.checked_sub(1) {
            let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
            let pause = FIRST
                .checked_mul(factor)
                .map_or(LONGEST, |pause| pause.min(LONGEST));
            self.until = now.checked_add(pause);
        }
        before == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_double_up_to_a_bound_and_end_with_an_answer() {
        let mut breaker = Breaker::default();
        assert!(breaker.missed(Instant::now(), "refused"), "it is news");
        for millis in [500_u64, 1000, 2000, 4000, 8000, 10_000, 10_000] {
            let now = Instant::now();
            assert_eq!(breaker.admit(now), Ok(()));
            assert!(!breaker.missed(now, "refused"));
            assert!(
                !breaker.missed(now, "refused"),
                "a call that failed beside it"
            );
            tokio::time::advance(Duration::from_millis(millis - 1)).await;
            let why = breaker.admit(Instant::now()).unwrap_err();
            assert!(why.ends_with(": refused"), "{why}");
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert!(breaker.reached());
        assert!(!breaker.reached());
        assert_eq!(breaker.admit(Instant::now()), Ok(()));
    }

    #[test]
    fn one_failure_alone_holds_no_call_back() {
        let mut breaker = Breaker::default();
        let now = Instant::now();
        for _ in 0..3 {
            assert!(breaker.missed(now, "the answer is lost"));
            assert_eq!(breaker.admit(now), Ok(()));
            assert!(breaker.reached());
        }
    }
}
