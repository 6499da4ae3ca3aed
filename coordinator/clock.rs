//! The time by which a fence closes. It must run while the machine is suspended: `std` and tokio read
//! `CLOCK_MONOTONIC`, which on Linux does not.

use std::{fmt, sync::Arc};

use coordinator_core::Time;
// The runtime's clock: a simulation moves it on by itself.
use tokio::time::Instant;

/// A clock that never goes back, from zero.
#[derive(Clone)]
pub struct Clock(Source);

#[derive(Clone)]
enum Source {
    #[cfg(target_os = "linux")]
    Boot(Time),
    Runtime(Instant),
    Given(Arc<dyn Fn() -> Time + Send + Sync>),
}

#[cfg(target_os = "linux")]
fn since_boot() -> Time {
    let read = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    // Neither is ever negative.
    let seconds = u64::try_from(read.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(read.tv_nsec).unwrap_or(0);
    Time::new(seconds, nanos)
}

impl Clock {
    /// The machine's time since its start, time of suspension included; elsewhere than on Linux the
    /// runtime's.
    pub fn boot() -> Self {
        #[cfg(target_os = "linux")]
        return Self(Source::Boot(since_boot()));
        #[cfg(not(target_os = "linux"))]
        Self::runtime()
    }

    /// The runtime's, which tests may pause.
    pub fn runtime() -> Self {
        Self(Source::Runtime(Instant::now()))
    }

    /// The one that this reads.
    pub fn given(now: impl Fn() -> Time + Send + Sync + 'static) -> Self {
        Self(Source::Given(Arc::new(now)))
    }

    /// Since it was made.
    pub fn now(&self) -> Time {
        match &self.0 {
            #[cfg(target_os = "linux")]
            Source::Boot(origin) => since_boot().saturating_sub(*origin),
            Source::Runtime(origin) => origin.elapsed(),
            Source::Given(now) => now(),
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Clock").field(&self.now()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_time_since_boot_passes() {
        let clock = Clock::boot();
        let before = clock.now();
        std::thread::sleep(Duration::from_millis(20));
        let passed = clock.now() - before;
        assert!(passed >= Duration::from_millis(20), "{passed:?}");
        assert!(passed < Duration::from_secs(10), "{passed:?}");
    }
}
