//! Answers that are remembered for a while; bounded.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Answers that are all kept equally long, so that the oldest is the first to expire.
pub(super) struct Cache<K, V> {
    held: Mutex<Held<K, V>>,
    most: usize,
    ttl: Duration,
}

struct Held<K, V> {
    answers: HashMap<K, (V, Instant)>,
    /// In order of expiry. As long as `answers`, but for those that were put twice.
    expiring: VecDeque<(K, Instant)>,
}

impl<K: Eq + Hash + Clone, V: Clone> Cache<K, V> {
    /// A lifetime of zero means that nothing is remembered.
    pub(super) fn new(most: usize, ttl: Duration) -> Self {
        Self {
            held: Mutex::new(Held {
                answers: HashMap::new(),
                expiring: VecDeque::new(),
            }),
            most,
            ttl,
        }
    }

    pub(super) fn get(&self, key: &K) -> Option<V> {
        self.get_at(key, Instant::now())
    }

    pub(super) fn put(&self, key: K, value: V) {
        self.put_at(key, value, Instant::now());
    }

    fn get_at(&self, key: &K, now: Instant) -> Option<V> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let (value, until) = held.answers.get(key)?;
        (now < *until).then(|| value.clone())
    }

    /// Drops what has expired, and at the bound the oldest, then remembers an answer.
    fn put_at(&self, key: K, value: V, now: Instant) {
        if self.ttl.is_zero() {
            return;
        }
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let Held { answers, expiring } = &mut *held;
        while let Some((_, until)) = expiring.front()
            && (*until <= now || expiring.len() >= self.most)
        {
            let Some((oldest, until)) = expiring.pop_front() else {
                break;
            };
            // One that was put again meanwhile stays.
            if answers
                .get(&oldest)
                .is_some_and(|(_, newer)| *newer <= until)
            {
                answers.remove(&oldest);
            }
        }
        let until = now + self.ttl;
        expiring.push_back((key.clone(), until));
        answers.insert(key, (value, until));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    #[test]
    fn an_answer_is_dropped_when_it_has_expired_and_there_are_never_too_many() {
        let start = Instant::now();
        let cache = Cache::new(3, TTL);
        cache.put_at(1, "a", start);
        assert_eq!(cache.get_at(&1, start + TTL / 2), Some("a"));
        assert_eq!(cache.get_at(&1, start + TTL), None);
        for key in 2..20 {
            cache.put_at(key, "b", start);
            assert_eq!(cache.get_at(&key, start), Some("b"));
            let held = cache.held.lock().unwrap();
            assert!(held.answers.len() <= 3 && held.expiring.len() <= 3);
        }
        cache.put_at(99, "c", start + TTL);
        assert_eq!(
            cache.held.lock().unwrap().answers.len(),
            1,
            "the expired are gone"
        );
    }

    #[test]
    fn an_answer_that_was_put_again_stays_until_its_new_end() {
        let start = Instant::now();
        let cache = Cache::new(9, TTL);
        cache.put_at(1, "old", start);
        cache.put_at(1, "new", start + TTL / 2);
        cache.put_at(2, "x", start + TTL);
        assert_eq!(cache.get_at(&1, start + TTL), Some("new"));
    }

    #[test]
    fn nothing_is_remembered_for_no_time() {
        let cache = Cache::new(3, Duration::ZERO);
        cache.put(1, "a");
        assert_eq!(cache.get(&1), None);
        assert!(cache.held.lock().unwrap().answers.is_empty());
    }
}
