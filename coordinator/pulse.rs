//! Signs of life, for `/livez`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

// The runtime's clock: a simulation moves it on by itself.
use tokio::time::Instant;

/// How often something that has nothing else to do shows that it runs.
pub const BEATS_EVERY: Duration = Duration::from_secs(10);

/// Says when a thread, an arbiter or an actor last ran.
#[derive(Clone, Debug)]
pub struct Pulse(Arc<Beats>);

#[derive(Debug)]
struct Beats {
    began: Instant,
    /// Milliseconds after `began`; [`RESTS`] while there is nothing to do.
    last: AtomicU64,
}

const RESTS: u64 = u64::MAX;

impl Default for Pulse {
    /// At rest: what has not begun is not late.
    fn default() -> Self {
        Self(Arc::new(Beats {
            began: Instant::now(),
            last: AtomicU64::new(RESTS),
        }))
    }
}

impl Pulse {
    /// It runs now.
    pub fn beat(&self) {
        let passed = self.0.began.elapsed().as_millis();
        let passed = u64::try_from(passed).unwrap_or(RESTS - 1);
        self.0.last.store(passed, Ordering::Relaxed);
    }

    /// It waits for something that may never come: no further beat is to be expected.
    pub fn rest(&self) {
        self.0.last.store(RESTS, Ordering::Relaxed);
    }

    /// How long ago it last ran; nothing while it rests.
    pub fn age(&self) -> Duration {
        match self.0.last.load(Ordering::Relaxed) {
            RESTS => Duration::ZERO,
            last => self
                .0
                .began
                .elapsed()
                .saturating_sub(Duration::from_millis(last)),
        }
    }

    /// Beats for ever on the thread that polls this.
    pub async fn keep(self) {
        loop {
            self.beat();
            tokio::time::sleep(BEATS_EVERY).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_pulse_ages_from_its_last_beat_and_not_at_rest() {
        let pulse = Pulse::default();
        tokio::time::advance(Duration::from_secs(40)).await;
        assert_eq!(pulse.age(), Duration::ZERO, "it has not begun");
        pulse.beat();
        tokio::time::advance(Duration::from_secs(40)).await;
        assert_eq!(pulse.age(), Duration::from_secs(40));
        let kept = tokio::spawn(pulse.clone().keep());
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert!(pulse.age() <= BEATS_EVERY);
        kept.abort();
        pulse.rest();
        assert_eq!(pulse.age(), Duration::ZERO);
    }
}
