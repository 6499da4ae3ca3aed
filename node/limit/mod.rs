//! The rate limit of requests: `--kube-api-qps` and `--kube-api-burst`, and a pause where the API server asks
//! for one.

use std::{sync::Mutex, time::Duration};

use crate::queue::Monotonic;
pub use limiters::{Limiters, Whose};

pub mod budget;
mod limiters;
#[cfg(test)]
mod tests;

/// Longest pause that a single answer "429, Retry-After" is followed for.
pub const PAUSE_MAX: Duration = Duration::from_secs(30);

/// A token bucket from which a request takes its token at once and then waits as long as the bucket is
/// overdrawn, so that requests go in the order in which they came. Pure: the clock is an argument.
#[derive(Debug)]
pub struct Bucket {
    /// Tokens a second; none: no limit.
    qps: Option<f64>,
    burst: f64,
    tokens: f64,
    at: Monotonic,
    paused_until: Monotonic,
}

impl Bucket {
    /// Full at first. A `qps` of zero or less means no limit, as in client-go for what is below zero.
    pub fn new(qps: f64, burst: u32) -> Self {
        let burst = f64::from(burst.max(1));
        Self {
            qps: (qps > 0.0).then_some(qps),
            burst,
            tokens: burst,
            at: Monotonic::ZERO,
            paused_until: Monotonic::ZERO,
        }
    }

    /// The same with another rate. The tokens that are there stay, as far as they are no more than the new
    /// burst, and so does a pause. What is overdrawn is not carried over: it is of requests that wait for
    /// their turn, and those take again.
    #[must_use]
    pub fn with_rate(&self, now: Monotonic, qps: f64, burst: u32) -> Self {
        let new = Self::new(qps, burst);
        let tokens = match (self.qps, new.qps) {
            // Nothing was taken while there was no limit.
            (None, _) | (_, None) => new.burst,
            (Some(qps), Some(_)) => {
                let refill = now.saturating_sub(self.at).as_secs_f64() * qps;
                (self.tokens + refill).clamp(0.0, self.burst.min(new.burst))
            }
        };
        Self {
            tokens,
            at: self.at.max(now),
            paused_until: self.paused_until,
            ..new
        }
    }

    /// Takes a token; how long to wait before it may be used.
    pub fn take(&mut self, now: Monotonic) -> Duration {
        let pause = self.paused_until.saturating_sub(now);
        let Some(qps) = self.qps else { return pause };
        let refill = now.saturating_sub(self.at).as_secs_f64() * qps;
        self.tokens = (self.tokens + refill).min(self.burst);
        self.at = self.at.max(now);
        self.tokens -= 1.0;
        let overdrawn = if self.tokens < 0.0 {
            Duration::from_secs_f64(-self.tokens / qps)
        } else {
            Duration::ZERO
        };
        pause.max(overdrawn)
    }

    /// Gives a token back that was not used.
    pub fn give_back(&mut self) {
        if self.qps.is_some() {
            self.tokens = (self.tokens + 1.0).min(self.burst);
        }
    }

    /// The server asked for a pause: nothing is sent before it is over.
    pub fn pause(&mut self, now: Monotonic, length: Duration) {
        self.paused_until = self.paused_until.max(now + length.min(PAUSE_MAX));
    }
}

/// A limit of requests a second and at once, these numbers of times as high. No limit stays none.
#[must_use]
pub fn times((qps, burst): (f64, u32), (of_qps, of_burst): (u32, u32)) -> (f64, u32) {
    (qps * f64::from(of_qps), burst.saturating_mul(of_burst))
}

/// What goes at once where another number of requests a second is set: as much more or less, one at least.
#[must_use]
pub fn burst_for(qps: f64, (of_qps, of_burst): (f64, u32)) -> u32 {
    let burst = match of_qps > 0.0 {
        true => qps * f64::from(of_burst) / of_qps,
        false => qps,
    };
    // The conversion of a float ends at the bounds of the integer.
    (burst.ceil() as u32).max(1)
}

/// A bucket shared by tasks.
#[derive(Debug)]
pub struct Limiter(Mutex<Bucket>);

impl Limiter {
    /// See [`Bucket::new`].
    pub fn new(qps: f64, burst: u32) -> Self {
        Self(Mutex::new(Bucket::new(qps, burst)))
    }

    /// Another one with another rate: see [`Bucket::with_rate`].
    fn with_rate(&self, now: Monotonic, (qps, burst): (f64, u32)) -> Self {
        Self(Mutex::new(
            self.with(|bucket| bucket.with_rate(now, qps, burst)),
        ))
    }

    /// Runs something on the bucket; the lock is held for that alone.
    pub fn with<R>(&self, act: impl FnOnce(&mut Bucket) -> R) -> R {
        act(&mut self
            .0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}
