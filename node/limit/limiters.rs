//! Whose requests have which limiter. Two things change that while the process runs: the configuration file
//! the rate of all, an order the rate of one controller. An order goes before the file for as long as it
//! holds.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{sync::Notify, time::Instant};

use super::{Bucket, Limiter, burst_for, times};
use crate::{clock::Clock, queue::Monotonic};

/// Whose requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// A controller's writes. The rate is a multiple of that of all, for requests a second and at once; with
    /// `(1, 1)` it shares that of all.
    Controller(&'static str, (u32, u32)),
    /// Events: they have an allowance of their own, as upstream's event client has.
    Events,
}

/// The limiters of one process.
#[derive(Debug)]
pub struct Limiters {
    state: Mutex<State>,
    /// They have changed: what waits for its turn may have another one.
    changed: Notify,
}

#[derive(Debug)]
struct State {
    /// Requests a second and at once, by the flags and the file.
    configured: (f64, u32),
    all: Arc<Limiter>,
    events: Arc<Limiter>,
    /// Of controllers with an allowance of their own, with what it is a multiple by. Bound: one for each such
    /// controller.
    own: HashMap<&'static str, ((u32, u32), Arc<Limiter>)>,
    /// Of controllers for which an order has set an allowance, with its rate. Bound: the controllers.
    ordered: BTreeMap<&'static str, (f64, Arc<Limiter>)>,
}

fn limiter((qps, burst): (f64, u32)) -> Arc<Limiter> {
    Arc::new(Limiter::new(qps, burst))
}

impl Limiters {
    /// With this number of requests a second and at once.
    pub fn new(configured: (f64, u32)) -> Self {
        Self {
            state: Mutex::new(State {
                configured,
                all: limiter(configured),
                events: limiter(configured),
                own: HashMap::new(),
                ordered: BTreeMap::new(),
            }),
            changed: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on with this number of requests a second and at once. What an order has set keeps its rate,
    /// with the burst that goes with it.
    pub fn configure(&self, now: Monotonic, configured: (f64, u32)) {
        let mut state = self.state();
        let state = &mut *state;
        state.configured = configured;
        for limiter in [&mut state.all, &mut state.events] {
            *limiter = Arc::new(limiter.with_rate(now, configured));
        }
        for (of, limiter) in state.own.values_mut() {
            *limiter = Arc::new(limiter.with_rate(now, times(configured, *of)));
        }
        for (qps, limiter) in state.ordered.values_mut() {
            *limiter = Arc::new(limiter.with_rate(now, (*qps, burst_for(*qps, configured))));
        }
        self.changed.notify_waiters();
    }

    /// From now on these controllers have this number of writes a second by orders, and take none from the
    /// allowance of all; the others as configured.
    pub fn order(&self, rates: &BTreeMap<&'static str, f64>) {
        let mut state = self.state();
        let new = |(name, qps): (&&'static str, &f64)| {
            let same = state.ordered.get(name).filter(|(known, _)| known == qps);
            // One that stays has no new burst.
            let limiter = match same {
                Some((_, limiter)) => Arc::clone(limiter),
                None => limiter((*qps, burst_for(*qps, state.configured))),
            };
            (*name, (*qps, limiter))
        };
        state.ordered = rates.iter().map(new).collect();
        self.changed.notify_waiters();
    }

    /// The limiter of these requests: by an order, else as configured.
    pub fn of(&self, whose: Whose) -> Arc<Limiter> {
        let mut state = self.state();
        let (name, of) = match whose {
            Whose::Events => return Arc::clone(&state.events),
            Whose::Controller(name, of) => (name, of),
        };
        if let Some((_, limiter)) = state.ordered.get(name) {
            return Arc::clone(limiter);
        }
        if of == (1, 1) {
            return Arc::clone(&state.all);
        }
        let configured = state.configured;
        let own = state.own.entry(name);
        let (_, own) = own.or_insert_with(|| (of, limiter(times(configured, of))));
        Arc::clone(own)
    }

    /// Waits for the turn of a request; the limiter whose token it has.
    ///
    /// # Errors
    /// With what has ended the wait before.
    pub async fn turn<S>(
        &self,
        whose: Whose,
        clock: &dyn Clock,
        stopped: impl Future<Output = S>,
    ) -> Result<Arc<Limiter>, S> {
        let mut stopped = std::pin::pin!(stopped);
        loop {
            let limiter = self.of(whose);
            let delay = limiter.with(|bucket| bucket.take(clock.monotonic()));
            if delay.is_zero() {
                return Ok(limiter);
            }
            let turn = Instant::now() + delay;
            loop {
                // Before the limiter is asked for again, so that no change is missed.
                let changed = self.changed.notified();
                if !Arc::ptr_eq(&limiter, &self.of(whose)) {
                    limiter.with(Bucket::give_back);
                    break;
                }
                tokio::select! {
                    biased;
                    stopped = &mut stopped => {
                        limiter.with(Bucket::give_back);
                        return Err(stopped);
                    }
                    () = tokio::time::sleep_until(turn) => return Ok(limiter),
                    () = changed => {}
                }
            }
        }
    }
}
