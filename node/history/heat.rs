//! How busy a key was lately: counts that halve each minute.

use std::time::Duration;

use crate::queue::Monotonic;

/// After so long, half of a count is left.
const HALF_LIFE_SECONDS: f64 = 60.0;

/// Reconciles of a key and what they took, each halved for every minute since.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heat {
    count: f32,
    seconds: f32,
    at: Monotonic,
}

/// A second's share.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    /// Reconciles a second.
    pub rate: f64,
    /// Seconds of reconciling a second.
    pub load: f64,
}

impl std::ops::AddAssign for Rate {
    fn add_assign(&mut self, other: Self) {
        self.rate += other.rate;
        self.load += other.load;
    }
}

impl Heat {
    fn left(self, now: Monotonic) -> f64 {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        (-passed / HALF_LIFE_SECONDS).exp2()
    }

    /// One more reconcile.
    pub fn add(&mut self, now: Monotonic, took: Duration) {
        let left = self.left(now) as f32;
        *self = Self {
            count: self.count * left + 1.0,
            seconds: self.seconds * left + took.as_secs_f32(),
            at: now,
        };
    }

    /// As of now. At a steady rate the count settles at rate × half-life / ln 2.
    pub fn rate(self, now: Monotonic) -> Rate {
        let each = self.left(now) * std::f64::consts::LN_2 / HALF_LIFE_SECONDS;
        Rate {
            rate: f64::from(self.count) * each,
            load: f64::from(self.seconds) * each,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_rate_is_found_and_halves_each_minute() {
        let mut heat = Heat::default();
        let mut now = Monotonic::from_secs(1000);
        for _ in 0..5000 {
            now += Duration::from_millis(200);
            heat.add(now, Duration::from_millis(10));
        }
        let Rate { rate, load } = heat.rate(now);
        assert!((4.9..5.1).contains(&rate), "{rate}");
        assert!((0.049..0.051).contains(&load), "{load}");
        let later = heat.rate(now + Duration::from_secs(60)).rate;
        assert!((later * 2.0 - rate).abs() < 0.001, "{later} {rate}");
        assert!(heat.rate(now + Duration::from_secs(36_000)).rate < 1e-9);
        assert_eq!(Heat::default().rate(now), Rate::default());
    }
}
