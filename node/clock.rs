//! The clocks of the process, so that a simulation can have its own.

use std::time::Instant;

use controllers_kit::Timestamp;

use crate::queue::Monotonic;

/// A source of the time.
pub trait Clock: Send + Sync {
    /// Time since the process started.
    fn monotonic(&self) -> Monotonic;
    /// The present, as objects' timestamps know it.
    fn now(&self) -> Timestamp;
}

/// The machine's clocks.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self {
            start: Instant::now(),
        }
    }
}

impl Clock for SystemClock {
    fn monotonic(&self) -> Monotonic {
        self.start.elapsed()
    }

    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}
