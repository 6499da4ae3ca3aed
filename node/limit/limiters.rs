//! Whose requests have which limiter. Two things change that while the process runs: the configuration file
//! the rate of all, an order the rate of one controller. An order goes before the file for as long as it
//! holds.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use tokio::{sync::Notify, time::Instant};

use super::{Bucket, Limiter, budget::BackPressure, burst_for, times};
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
    /// Requests that took their turn from what is divided: not those whose rate an order has set.
    taken: AtomicU64,
    /// Requests that wait for such a turn.
    waiting: AtomicUsize,
    throttled: AtomicBool,
}

/// A request that waits for its turn.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn of(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct State {
    /// Requests a second and at once, by the flags and the file.
    configured: (f64, u32),
    /// The part of it that this replica may use, of 1.
    part: f64,
    pressure: BackPressure,
    /// What is in force of both, of 1.
    scale: f64,
    all: Arc<Limiter>,
    events: Arc<Limiter>,
    /// Of controllers with an allowance of their own, with what it is a multiple by. Bound: one for each such
    /// controller.
    own: HashMap<&'static str, ((u32, u32), Arc<Limiter>)>,
    /// Of controllers for which an order has set an allowance, with its rate. Bound: the controllers.
    ordered: BTreeMap<&'static str, (f64, Arc<Limiter>)>,
}

/// A scale is put into force where it differs from the one before by more than this part of it: each change
/// wakes all that wait for their turn.
const SCALE_STEP: f64 = 0.02;

impl State {
    /// Requests a second and at once that this replica may send.
    fn allowed(&self) -> (f64, u32) {
        let (qps, burst) = self.configured;
        match self.scale < 1.0 {
            true => {
                let scaled = qps * self.scale;
                (scaled, burst_for(scaled, (qps, burst)))
            }
            false => (qps, burst),
        }
    }

    /// Puts what is allowed into force.
    fn apply(&mut self, now: Monotonic) {
        let allowed = self.allowed();
        for limiter in [&mut self.all, &mut self.events] {
            *limiter = Arc::new(limiter.with_rate(now, allowed));
        }
        for (of, limiter) in self.own.values_mut() {
            *limiter = Arc::new(limiter.with_rate(now, times(allowed, *of)));
        }
    }

    /// Whether another scale is in force than before.
    fn rescale(&mut self, now: Monotonic) -> bool {
        let scale = self.part * self.pressure.factor(now);
        let is_step = (scale - self.scale).abs() > self.scale * SCALE_STEP;
        let is_whole = scale >= 1.0 && self.scale < 1.0;
        // Without a limit there is nothing to divide.
        if !(is_step || is_whole) || self.configured.0 <= 0.0 {
            return false;
        }
        self.scale = scale;
        self.apply(now);
        true
    }
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
                part: 1.0,
                pressure: BackPressure::default(),
                scale: 1.0,
                all: limiter(configured),
                events: limiter(configured),
                own: HashMap::new(),
                ordered: BTreeMap::new(),
            }),
            changed: Notify::new(),
            taken: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            throttled: AtomicBool::new(false),
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
        state.apply(now);
        for (qps, limiter) in state.ordered.values_mut() {
            *limiter = Arc::new(limiter.with_rate(now, (*qps, burst_for(*qps, configured))));
        }
        self.changed.notify_waiters();
    }

    /// From now on this replica may use this part of what is configured, of 1. Also to be called now and then
    /// while [`Self::scale`] is below the part: what back-pressure took comes back by it. Orders keep their
    /// rates.
    pub fn divide(&self, now: Monotonic, part: f64) {
        let mut state = self.state();
        state.part = part;
        if state.rescale(now) {
            self.changed.notify_waiters();
        }
    }

    /// The API server has answered 429: less is sent from now on.
    pub fn throttled(&self, now: Monotonic) {
        self.throttled.store(true, Ordering::Relaxed);
        let mut state = self.state();
        state.pressure.throttled(now);
        if state.rescale(now) {
            self.changed.notify_waiters();
        }
    }

    /// Requests a second of flags and file; infinite without a limit.
    pub fn configured(&self) -> f64 {
        match self.state().configured.0 {
            qps if qps > 0.0 => qps,
            _ => f64::INFINITY,
        }
    }

    /// Whether the API server has answered 429 since that was asked for.
    pub fn was_throttled(&self) -> bool {
        self.throttled.swap(false, Ordering::Relaxed)
    }

    /// The part of what is configured that is in force, of 1, and what back-pressure has left of it, of 1.
    pub fn scale(&self, now: Monotonic) -> (f64, f64) {
        let state = self.state();
        (state.scale, state.pressure.factor(now))
    }

    /// How many requests took their turn from what is divided since the process started, and how many wait
    /// for theirs.
    pub fn counts(&self) -> (u64, usize) {
        (
            self.taken.load(Ordering::Relaxed),
            self.waiting.load(Ordering::Relaxed),
        )
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
        self.found(whose).0
    }

    /// The limiter of these requests, and whether its rate is a part of what is divided: that of an order is
    /// not.
    fn found(&self, whose: Whose) -> (Arc<Limiter>, bool) {
        let mut state = self.state();
        let (name, of) = match whose {
            Whose::Events => return (Arc::clone(&state.events), true),
            Whose::Controller(name, of) => (name, of),
        };
        if let Some((_, limiter)) = state.ordered.get(name) {
            return (Arc::clone(limiter), false);
        }
        if of == (1, 1) {
            return (Arc::clone(&state.all), true);
        }
        let allowed = state.allowed();
        let own = state.own.entry(name);
        let (_, own) = own.or_insert_with(|| (of, limiter(times(allowed, of))));
        (Arc::clone(own), true)
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
        if self.found(whose).1 {
            self.taken.fetch_add(1, Ordering::Relaxed);
        }
        loop {
            let (limiter, is_divided) = self.found(whose);
            let delay = limiter.with(|bucket| bucket.take(clock.monotonic()));
            if delay.is_zero() {
                return Ok(limiter);
            }
            let turn = Instant::now() + delay;
            let _waiting = is_divided.then(|| Waiting::of(&self.waiting));
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
