//! What keeps strangers from making this process ask the API server without end: a rate, a bound on reviews
//! in flight, and one flight for all who ask the same.

use std::{
    collections::HashMap,
    hash::Hash,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared, WeakShared},
};

/// Reviews a second and at once after a pause, of each kind: the figures of upstream's delegated
/// authentication and authorization.
const QPS: f64 = 200.0;
const BURST: f64 = 400.0;

/// Reviews of one kind in flight, those included that wait for the rate. Beyond it the client is answered
/// 429.
pub(super) const IN_FLIGHT_MAX: usize = 64;

/// Those of one client address, so that one client does not take all places.
pub(super) const IN_FLIGHT_PER_ADDRESS_MAX: usize = 16;

/// Why a review has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unanswered {
    /// Too many are in flight.
    Busy,
    /// The API server could not be asked.
    Failed(String),
}

/// A token bucket. The caller has the clock.
#[derive(Debug)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Bucket {
    fn new(now: Instant) -> Self {
        Self {
            tokens: BURST,
            at: now,
        }
    }

    /// Takes a token, of the future if there is none now; returns how long to wait for it.
    fn reserve(&mut self, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.tokens = (self.tokens + passed * QPS).min(BURST) - 1.0;
        match self.tokens < 0.0 {
            true => Duration::from_secs_f64(-self.tokens / QPS),
            false => Duration::ZERO,
        }
    }
}

type Flight<V> = BoxFuture<'static, Result<V, Unanswered>>;

/// Reviews of one kind.
pub(super) struct Flights<K, V> {
    bucket: Arc<Mutex<Bucket>>,
    /// By client address; the sum is bounded by [`IN_FLIGHT_MAX`], and so is the number of entries.
    places: Arc<Mutex<HashMap<Option<IpAddr>, usize>>>,
    /// Weak: a flight ends with the last client that waits for it.
    flying: Mutex<HashMap<K, WeakShared<Flight<V>>>>,
}

impl<K: Eq + Hash, V: Clone + Send + Sync + 'static> Flights<K, V> {
    pub(super) fn new() -> Self {
        Self {
            bucket: Arc::new(Mutex::new(Bucket::new(Instant::now()))),
            places: Arc::default(),
            flying: Mutex::default(),
        }
    }

    /// The answer of the flight for this key, which is begun with `ask` where there is none.
    pub(super) async fn join<F>(
        &self,
        key: K,
        from: Option<IpAddr>,
        ask: impl FnOnce() -> F,
    ) -> Result<V, Unanswered>
    where
        F: Future<Output = Result<V, String>> + Send + 'static,
    {
        let flight = self.flight(key, from, ask)?;
        flight.await
    }

    fn flight<F>(
        &self,
        key: K,
        from: Option<IpAddr>,
        ask: impl FnOnce() -> F,
    ) -> Result<Shared<Flight<V>>, Unanswered>
    where
        F: Future<Output = Result<V, String>> + Send + 'static,
    {
        let mut flying = self.flying.lock().unwrap_or_else(PoisonError::into_inner);
        let live = flying.get(&key).and_then(WeakShared::upgrade);
        if let Some(flight) = live.filter(|flight| flight.peek().is_none()) {
            return Ok(flight);
        }
        let place = Place::take(&self.places, from).ok_or(Unanswered::Busy)?;
        // Bound: the living are as many as there are places, and the dead go before they are as many again.
        if flying.len() >= 2 * IN_FLIGHT_MAX {
            flying.retain(|_, flight| flight.upgrade().is_some());
        }
        let bucket = Arc::clone(&self.bucket);
        let asked = ask();
        let flight = async move {
            let _place = place;
            let wait = bucket
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .reserve(Instant::now());
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            asked.await.map_err(Unanswered::Failed)
        };
        let flight = flight.boxed().shared();
        if let Some(weak) = flight.downgrade() {
            flying.insert(key, weak);
        }
        Ok(flight)
    }
}

/// A review in flight.
struct Place {
    places: Arc<Mutex<HashMap<Option<IpAddr>, usize>>>,
    from: Option<IpAddr>,
}

impl Place {
    fn take(
        places: &Arc<Mutex<HashMap<Option<IpAddr>, usize>>>,
        from: Option<IpAddr>,
    ) -> Option<Self> {
        let mut held = places.lock().unwrap_or_else(PoisonError::into_inner);
        let of_address = held.get(&from).copied().unwrap_or_default();
        if of_address >= IN_FLIGHT_PER_ADDRESS_MAX || held.values().sum::<usize>() >= IN_FLIGHT_MAX
        {
            return None;
        }
        held.insert(from, of_address + 1);
        Some(Self {
            places: Arc::clone(places),
            from,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut held = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = held.get_mut(&self.from) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.from);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::join_all;
    use tokio::sync::Notify;

    use super::*;

    #[test]
    fn the_bucket_gives_a_burst_of_400_and_then_200_a_second() {
        let start = Instant::now();
        let mut bucket = Bucket::new(start);
        for _ in 0..400 {
            assert_eq!(bucket.reserve(start), Duration::ZERO);
        }
        assert_eq!(bucket.reserve(start), Duration::from_millis(5));
        assert_eq!(bucket.reserve(start), Duration::from_millis(10));
        let later = start + Duration::from_secs(1);
        let free = (0..500).filter(|_| bucket.reserve(later).is_zero()).count();
        assert_eq!(free, 198, "200 less the two that were taken ahead");
        let much_later = later + Duration::from_secs(3600);
        let free = (0..500)
            .filter(|_| bucket.reserve(much_later).is_zero())
            .count();
        assert_eq!(free, 400, "no more than a burst is saved up");
    }

    #[tokio::test]
    async fn all_who_ask_the_same_share_one_flight() {
        let flights = Flights::<u8, u8>::new();
        let asked = Arc::new(AtomicUsize::new(0));
        let go = Arc::new(Notify::new());
        let ask = || {
            let (asked, go) = (Arc::clone(&asked), Arc::clone(&go));
            move || async move {
                asked.fetch_add(1, Ordering::Relaxed);
                go.notified().await;
                Ok(7)
            }
        };
        let many = join_all((0..1000).map(|_| flights.join(1, None, ask())));
        let (answers, ()) = futures::future::join(many, async {
            tokio::task::yield_now().await;
            go.notify_one();
        })
        .await;
        assert!(answers.iter().all(|answer| *answer == Ok(7)));
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn flights_are_bounded_for_each_address_and_in_all_and_their_places_come_back() {
        let flights = Flights::<u32, ()>::new();
        let address = |last: u8| Some(IpAddr::from([10, 0, 0, last]));
        let begin =
            |key: u32, from| flights.flight(key, from, std::future::pending::<Result<(), String>>);
        let held: Vec<_> = (0..100).map(|key| begin(key, address(1))).collect();
        let flying = held.iter().filter(|one| one.is_ok()).count();
        assert_eq!(flying, IN_FLIGHT_PER_ADDRESS_MAX);
        let others: Vec<_> = (100..300)
            .map(|key| begin(key, address((key % 16) as u8 + 2)))
            .collect();
        let flying = flying + others.iter().filter(|one| one.is_ok()).count();
        assert_eq!(flying, IN_FLIGHT_MAX);
        assert_eq!(begin(999, address(99)).err(), Some(Unanswered::Busy));
        drop((held, others));
        assert!(flights.places.lock().unwrap().is_empty());
        for key in 1000..5000 {
            drop(begin(key, address(1)).unwrap());
        }
        assert!(flights.flying.lock().unwrap().len() <= 2 * IN_FLIGHT_MAX);
    }
}
