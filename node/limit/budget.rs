//! The division of one allowance of requests among the replicas of a fleet, and what back-pressure of the API
//! server takes of a replica's part. Pure.
//!
//! Each replica publishes in its Lease what it would send, and each computes its own part from what all have
//! published, its own value included. So where all see the same Leases the parts add up to the allowance:
//! a fleet asks no more of the API server than one process with the same flags.

use std::time::Duration;

use crate::queue::Monotonic;

/// This part of the allowance is divided evenly, so that a replica which has had nothing to send can begin at
/// once; the rest follows the demand.
const EVEN: f64 = 1.0 / 4.0;

/// A demand below this number of requests a second is none.
const DEMAND_MIN: f64 = 0.02;

/// A demand is published as lower once it has been lower for this long: each change is one more annotation
/// in a renewal and one more decision of every member.
const LOWER_AFTER: Duration = Duration::from_secs(5);

/// Between two cuts by back-pressure: answers to requests that were in flight together count once.
const CUT_EVERY: Duration = Duration::from_secs(1);

/// What is left at least after cuts.
const FACTOR_MIN: f64 = 1.0 / 32.0;

/// From nothing back to the whole part without another cut.
const RECOVERY: Duration = Duration::from_secs(16);

/// Requests a second that a replica would send, as a class: two classes are a factor of two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Demand(u8);

impl Demand {
    /// The highest class.
    const MAX: u8 = 40;
    /// The rate of class 1, in requests a second.
    const UNIT: f64 = 1.0 / 8.0;

    /// The lowest class that is no less than the rate, in requests a second.
    pub fn of(rate: f64) -> Self {
        if rate.is_nan() || rate < DEMAND_MIN {
            return Self(0);
        }
        let steps = (2.0 * (rate / Self::UNIT).log2()).ceil().max(0.0);
        // The conversion of a float ends at the bounds of the integer.
        Self((steps as u8).saturating_add(1).min(Self::MAX))
    }

    /// As a Lease has it. A class that no build writes counts as the highest.
    pub fn from_class(class: u8) -> Self {
        Self(class.min(Self::MAX))
    }

    /// As it is written into a Lease.
    pub fn class(self) -> u8 {
        self.0
    }

    /// Requests a second.
    fn rate(self) -> f64 {
        match self.0 {
            0 => 0.0,
            class => Self::UNIT * (f64::from(class - 1) / 2.0).exp2(),
        }
    }
}

/// What a replica has published of its demand, and what it publishes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Published {
    demand: Demand,
    /// The highest demand since it is lower than what is published, and since when it is lower.
    lower: Option<(Demand, Monotonic)>,
}

impl Published {
    /// The demand to publish, where it is another than before. A difference of one class is none, so that a
    /// demand at the border of two does not alternate.
    pub fn next(&mut self, now: Monotonic, rate: f64) -> Option<Demand> {
        let demand = Demand::of(rate);
        let is_lower = match demand.0 {
            0 => self.demand.0 > 0,
            class => class + 1 < self.demand.0,
        };
        if !is_lower {
            self.lower = None;
            let is_higher = match self.demand.0 {
                0 => demand.0 > 0,
                class => demand.0 > class + 1,
            };
            return is_higher.then(|| {
                self.demand = demand;
                demand
            });
        }
        let (highest, since) = self.lower.get_or_insert((demand, now));
        *highest = demand.max(*highest);
        if now < *since + LOWER_AFTER {
            return None;
        }
        self.demand = *highest;
        self.lower = None;
        Some(self.demand)
    }
}

/// The part of the allowance that a replica may use, of 1. `members` are those with a Lease, by name, with
/// what they have published; one of an older build publishes nothing and counts with the mean of the others.
pub fn part(own: &str, members: &[(&str, Option<Demand>)]) -> f64 {
    let joins = !members.iter().any(|(name, _)| *name == own);
    let count = (members.len() + usize::from(joins)) as f64;
    let known: Vec<f64> = members
        .iter()
        .filter_map(|(_, demand)| Some((*demand)?.rate()))
        .collect();
    let mean = match known.is_empty() {
        true => 0.0,
        false => known.iter().sum::<f64>() / known.len() as f64,
    };
    let rate = |demand: &Option<Demand>| demand.map_or(mean, Demand::rate);
    let sum: f64 = members.iter().map(|(_, demand)| rate(demand)).sum();
    let own = members.iter().find(|(name, _)| *name == own);
    let follows = match own {
        _ if sum <= 0.0 => 1.0 / count,
        Some((_, demand)) => rate(demand) / sum,
        None => 0.0,
    };
    EVEN / count + (1.0 - EVEN) * follows
}

/// What is left of a replica's part after the API server has answered 429: it halves with each second in
/// which that happens, and comes back steadily.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackPressure {
    factor: f64,
    at: Monotonic,
    cut: Option<Monotonic>,
}

impl Default for BackPressure {
    fn default() -> Self {
        Self {
            factor: 1.0,
            at: Monotonic::ZERO,
            cut: None,
        }
    }
}

impl BackPressure {
    /// What is left now, of 1.
    pub fn factor(&self, now: Monotonic) -> f64 {
        let back = now.saturating_sub(self.at).as_secs_f64() / RECOVERY.as_secs_f64();
        (self.factor + back).min(1.0)
    }

    /// The API server has answered 429.
    pub fn throttled(&mut self, now: Monotonic) {
        if self.cut.is_some_and(|cut| now < cut + CUT_EVERY) {
            return;
        }
        self.factor = (self.factor(now) / 2.0).max(FACTOR_MIN);
        (self.at, self.cut) = (now, Some(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Monotonic {
        Monotonic::ZERO + SECOND * u32::try_from(seconds).expect("small")
    }

    #[test]
    fn a_class_is_no_less_than_the_rate_and_at_most_half_more_than_it() {
        assert_eq!(Demand::of(0.0), Demand(0));
        assert_eq!(Demand::of(-3.0), Demand(0));
        assert_eq!(Demand::of(f64::NAN), Demand(0));
        assert_eq!(Demand::of(f64::INFINITY), Demand(Demand::MAX));
        for rate in [0.125, 0.13, 1.0, 7.0, 20.0, 333.0, 5000.0] {
            let class = Demand::of(rate);
            assert!(class.rate() >= rate * 0.999, "{rate}");
            assert!(class.rate() <= rate * 1.42, "{rate}: {}", class.rate());
            assert_eq!(Demand::from_class(class.class()), class);
        }
        assert_eq!(Demand::from_class(255), Demand(Demand::MAX));
    }

    #[test]
    fn a_demand_is_published_as_higher_at_once_and_as_lower_after_a_while() {
        let mut published = Published::default();
        let mut said = Vec::new();
        let rates = [0.0, 0.0, 8.0, 8.5, 30.0, 1.0, 25.0, 1.0].into_iter();
        let rates = rates.chain([0.5; 20]).chain([0.0; 40]);
        for (second, rate) in (0..).zip(rates) {
            if let Some(demand) = published.next(at(second), rate) {
                said.push((second, demand));
            }
        }
        let expected = [
            (2, Demand::of(8.0)),
            (4, Demand::of(30.0)),
            (12, Demand::of(1.0)),
            (18, Demand::of(0.5)),
            (33, Demand::of(0.0)),
        ];
        assert_eq!(said, expected);
    }

    #[test]
    fn parts_follow_the_demand_and_add_up() {
        let of = |rate: f64| Some(Demand::of(rate));
        for (demands, expected) in [
            (vec![of(0.0)], vec![1.0]),
            (vec![of(50.0)], vec![1.0]),
            (vec![of(0.0), of(0.0)], vec![0.5, 0.5]),
            (vec![of(8.0), of(0.0)], vec![0.875, 0.125]),
            (
                vec![of(8.0), of(8.0), of(16.0), of(0.0)],
                vec![0.25, 0.25, 0.4375, 0.0625],
            ),
            // An older build publishes nothing.
            (vec![of(8.0), None], vec![0.5, 0.5]),
            (vec![None, None], vec![0.5, 0.5]),
        ] {
            let names = ["a", "b", "c", "d"];
            let members: Vec<_> = names.into_iter().zip(demands).collect();
            let parts: Vec<f64> = members
                .iter()
                .map(|(name, _)| part(name, &members))
                .collect();
            let close = parts
                .iter()
                .zip(&expected)
                .all(|(a, b)| (a - b).abs() < 1e-9);
            assert!(close, "{members:?}: {parts:?}");
            assert!((parts.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        }
        // One that joins is no member yet: it begins with its even part.
        let members = [("a", of(8.0)), ("b", of(8.0)), ("c", of(8.0))];
        assert!((part("d", &members) - 1.0 / 16.0).abs() < 1e-9);
        assert!((part("a", &[]) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn answers_429_halve_the_part_once_a_second_and_it_comes_back() {
        let mut pressure = BackPressure::default();
        assert!((pressure.factor(at(0)) - 1.0).abs() < 1e-9);
        for _ in 0..100 {
            pressure.throttled(at(10));
        }
        assert!((pressure.factor(at(10)) - 0.5).abs() < 1e-9);
        pressure.throttled(at(11));
        assert!((pressure.factor(at(11)) - 0.28125).abs() < 1e-9);
        assert!((pressure.factor(at(30)) - 1.0).abs() < 1e-9);
        for second in 40..60 {
            pressure.throttled(at(second));
        }
        let left = pressure.factor(at(59));
        assert!((FACTOR_MIN..0.13).contains(&left), "{left}");
    }
}
