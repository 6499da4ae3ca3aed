//! Signs of life of threads and actors: the renewal thread reads them before it renews, and so does
//! `/livez`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI32, AtomicU64, Ordering},
    },
    time::Duration,
};

use coordinator_core::Sign;
// The runtime's clock: a simulation moves it on by itself.
use tokio::time::Instant;

/// How often something that has nothing else to do shows that it runs.
pub const BEATS_EVERY: Duration = Duration::from_millis(250);

/// Says when a thread, an arbiter or an actor last ran.
#[derive(Clone, Debug)]
pub struct Pulse(Arc<Beats>);

#[derive(Debug)]
struct Beats {
    began: Instant,
    /// Milliseconds after `began`; [`RESTS`] before the first.
    last: AtomicU64,
    /// The thread of the last beat, as the kernel numbers it; 0 for none.
    thread: AtomicI32,
}

const RESTS: u64 = u64::MAX;

impl Default for Pulse {
    /// At rest: what has not begun is not late.
    fn default() -> Self {
        Self(Arc::new(Beats {
            began: Instant::now(),
            last: AtomicU64::new(RESTS),
            thread: AtomicI32::new(0),
        }))
    }
}

impl Pulse {
    /// It runs now.
    pub fn beat(&self) {
        let passed = self.0.began.elapsed().as_millis();
        let passed = u64::try_from(passed).unwrap_or(RESTS - 1);
        self.0.thread.store(thread(), Ordering::Relaxed);
        self.0.last.store(passed, Ordering::Relaxed);
    }

    /// What the watchdog compares.
    pub(crate) fn sign(&self) -> Sign {
        let last = self.0.last.load(Ordering::Relaxed);
        Sign {
            beat: (last != RESTS).then_some(last),
            waited: waited(self.0.thread.load(Ordering::Relaxed)),
        }
    }

    /// How long ago it last ran; nothing before it has begun.
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

#[cfg(target_os = "linux")]
fn thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// How long a thread of this process has waited for a processor; zero where the kernel does not say.
#[cfg(target_os = "linux")]
fn waited(thread: i32) -> Duration {
    if thread == 0 {
        return Duration::ZERO;
    }
    let file = format!("/proc/self/task/{thread}/schedstat");
    let text = std::fs::read_to_string(file).unwrap_or_default();
    // Nanoseconds on a processor, nanoseconds in wait for one, number of slices.
    let waited = text.split_ascii_whitespace().nth(1);
    Duration::from_nanos(waited.and_then(|field| field.parse().ok()).unwrap_or(0))
}

#[cfg(not(target_os = "linux"))]
fn thread() -> i32 {
    0
}

#[cfg(not(target_os = "linux"))]
fn waited(_: i32) -> Duration {
    Duration::ZERO
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn what_a_thread_has_waited_for_a_processor_is_read() {
        let pulse = Pulse::default();
        assert_eq!(pulse.sign(), Sign::default());
        pulse.beat();
        let sign = pulse.sign();
        assert!(sign.beat.is_some());
        assert!(sign.waited < Duration::from_secs(600), "{:?}", sign.waited);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pulse_ages_from_its_last_beat_and_not_before_the_first() {
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
    }
}
