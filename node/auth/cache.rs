//! Answers that are remembered for a while; bounded.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

pub(super) struct Cache<K, V> {
    held: Mutex<HashMap<K, (V, Instant)>>,
    most: usize,
}

impl<K: Eq + Hash, V: Clone> Cache<K, V> {
    pub(super) fn new(most: usize) -> Self {
        Self {
            held: Mutex::default(),
            most,
        }
    }

    pub(super) fn get(&self, key: &K) -> Option<V> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let (value, until) = held.get(key)?;
        (Instant::now() < *until).then(|| value.clone())
    }

    /// At the bound, what is over goes; if nothing is, everything does: an attacker's many names must cost the memory
    /// of no more than that, and others one more question.
    pub(super) fn put(&self, key: K, value: V, ttl: Duration) {
        let now = Instant::now();
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.len() >= self.most {
            held.retain(|_, (_, until)| now < *until);
            if held.len() >= self.most {
                held.clear();
            }
        }
        held.insert(key, (value, now + ttl));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_forgotten_when_its_time_is_over_and_there_are_never_too_many() {
        let cache = Cache::new(3);
        cache.put(1, "a", Duration::ZERO);
        assert_eq!(cache.get(&1), None);
        let long = Duration::from_secs(60);
        for key in 2..20 {
            cache.put(key, "b", long);
            assert_eq!(cache.get(&key), Some("b"));
            assert!(cache.held.lock().unwrap().len() <= 3);
        }
    }
}
