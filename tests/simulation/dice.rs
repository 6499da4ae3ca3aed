//! Chance from a seed: the same seed, the same run.

use std::{cell::RefCell, time::Duration};

/// splitmix64.
#[derive(Clone, Debug)]
pub struct Dice {
    state: u64,
    /// Whether nothing is left to chance.
    steady: bool,
}

impl Dice {
    /// For a seed.
    pub fn new(seed: u64) -> Self {
        Self {
            state: seed,
            steady: false,
        }
    }

    /// Without chance: every delay is the middle of what it may be, and all that may happen does.
    pub fn steady() -> Self {
        Self {
            steady: true,
            ..Self::new(0)
        }
    }

    /// Other dice of the same seed: what is thrown with them does not shift what is thrown with these.
    pub fn fork(&self, salt: u64) -> Self {
        let mut other = self.clone();
        other.state ^= salt.wrapping_mul(0xd6e8_feb8_6659_fd93);
        other.bits();
        other
    }

    /// 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below a bound.
    pub fn below(&mut self, bound: usize) -> usize {
        assert!(bound > 0, "nothing to choose from");
        usize::try_from((self.bits() >> 16) % bound as u64).expect("below a usize")
    }

    /// This many times in a thousand.
    pub fn chance(&mut self, per_mille: usize) -> bool {
        self.steady || self.below(1000) < per_mille
    }

    /// From one number of milliseconds to another.
    pub fn millis(&mut self, least: usize, most: usize) -> Duration {
        let spread = match self.steady {
            true => (most - least) / 2,
            false => self.below(most - least + 1),
        };
        Duration::from_millis((least + spread) as u64)
    }

    /// In `0.0..1.0`.
    pub fn fraction(&mut self) -> f64 {
        match self.steady {
            true => 0.5,
            false => (self.bits() >> 11) as f64 / (1u64 << 53) as f64,
        }
    }
}

thread_local! {
    static OF_THREAD: RefCell<Dice> = const { RefCell::new(Dice { state: 0, steady: false }) };
}

/// Sets the dice of [`of_thread`].
pub fn seed_thread(dice: Dice) {
    OF_THREAD.set(dice);
}

/// For code that takes a plain function for its randomness. One simulation runs on a thread at a time.
pub fn of_thread() -> f64 {
    OF_THREAD.with_borrow_mut(Dice::fraction)
}
