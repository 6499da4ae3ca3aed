//! Spares a provider that can't be reached, and its callers the wait for it.

use std::time::Duration;

use tokio::time::Instant;

/// Pause after the first failure to reach the provider; doubled by each that follows a pause …
const FIRST: Duration = Duration::from_millis(500);
/// … up to this.
const LONGEST: Duration = Duration::from_secs(10);

/// Pauses after failures in a row.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    pauses: u32,
    until: Option<Instant>,
    why: String,
}

impl Breaker {
    /// Whether a call may be tried; why not otherwise.
    pub(super) fn admit(&self, now: Instant) -> Result<(), String> {
        match self.until {
            Some(until) if now < until => {
                let left = (until - now).as_secs_f64();
                Err(format!(
                    "the cloud provider can't be reached, and is tried again in {left:.1}s: {}",
                    self.why
                ))
            }
            _ => Ok(()),
        }
    }

    /// The provider has answered; whether it had not before.
    pub(super) fn reached(&mut self) -> bool {
        let had_paused = self.pauses > 0;
        *self = Self::default();
        had_paused
    }

    /// The provider could not be reached; whether that is news. Calls that fail together count as one.
    pub(super) fn missed(&mut self, now: Instant, why: &str) -> bool {
        if self.until.is_some_and(|until| now < until) {
            return false;
        }
        let factor = 1_u32.checked_shl(self.pauses).unwrap_or(u32::MAX);
        let pause = FIRST
            .checked_mul(factor)
            .map_or(LONGEST, |pause| pause.min(LONGEST));
        self.pauses = self.pauses.saturating_add(1);
        self.until = now.checked_add(pause);
        why.clone_into(&mut self.why);
        self.pauses == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_double_up_to_a_bound_and_end_with_an_answer() {
        let mut breaker = Breaker::default();
        for (turn, millis) in [500_u64, 1000, 2000, 4000, 8000, 10_000, 10_000]
            .into_iter()
            .enumerate()
        {
            let now = Instant::now();
            assert_eq!(breaker.admit(now), Ok(()));
            assert_eq!(breaker.missed(now, "refused"), turn == 0);
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
}
