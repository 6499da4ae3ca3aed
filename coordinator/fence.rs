//! Whether a request may go out: read before each one, without a lock.

use std::{
    fmt,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use coordinator_core::{Ending, GAP_MAX, Time};
// The runtime's clock: a simulation moves it on by itself.
use tokio::{sync::Notify, time::Instant};

use crate::{Clock, Epoch, RangeId, pulse::Pulse};

/// Why a request may not go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fenced {
    /// No renewal has landed in time.
    #[error("the fence is closed: no renewal of the replica Lease has landed in time")]
    Closed,
    /// The fleet does not hold the manager's Lease, or no renewal of it was seen in time.
    #[error("the fence is closed: the fleet's hold of the manager's Lease is not proven")]
    NotHolding,
    /// This replica is about to end: it is the last one of the fleet, or ends by itself.
    #[error("the fence is closed: this replica is about to end")]
    Leaves,
    /// The range is not held under this epoch.
    #[error("range {range} is not held under epoch {epoch}")]
    NotHeld {
        /// The range.
        range: RangeId,
        /// The epoch of the request.
        epoch: Epoch,
    },
}

/// What ends a replica from within.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndCause {
    /// A thread does not run any more. The process aborts.
    Hang,
    /// Code that must not panic has, or something failed that cannot. The process aborts.
    Panic,
    /// Anything else, such as an error that it cannot live with. The process ends in its own way.
    Other,
}

/// The end that a replica has come to by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// What kind of end it is.
    pub cause: EndCause,
    /// The cause in words.
    pub why: String,
}

/// [`Fence`]'s hold of a replica that is not guarded by the manager's Lease.
const UNGUARDED: u64 = u64::MAX;
/// [`Fence`]'s margin before a renewal has landed on an open fence.
const UNMEASURED: u64 = u64::MAX;

fn micros(time: Time) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX - 1)
}

/// Notes where it outlives this process whether anything of the process is in flight. What it was called with
/// last must be what a reader finds; `false` where that could not be noted.
#[derive(Clone)]
pub struct InFlightMark(Arc<dyn Fn(bool) -> bool + Send + Sync>);

impl InFlightMark {
    /// Notes by this. Called under a lock, at each change.
    pub fn new(note: impl Fn(bool) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(note))
    }
}

impl fmt::Debug for InFlightMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InFlightMark")
    }
}

/// What is noted: something is in flight, from before the first write is sent until the last is over.
#[derive(Debug)]
struct Marked {
    mark: InFlightMark,
    /// Whether that is noted now. At first it is, until nothing is known to be.
    in_flight: Mutex<bool>,
}

/// One per replica. The renewal thread moves the time on, the coordinator sets the epochs, everybody checks.
#[derive(Debug)]
pub struct Fence {
    clock: Clock,
    late_write_max: Duration,
    /// Microseconds by `clock`; 0 is closed.
    until: AtomicU64,
    /// By range; 0 is not held.
    epochs: Box<[AtomicU64]>,
    /// Notifies when a permission is taken away.
    closings: Notify,
    /// The versions that the newest renewal and the one before it were given.
    newest: AtomicU64,
    settled: AtomicU64,
    /// The newest renewal, and when its request was started.
    renewed: Mutex<Option<(u64, Instant)>>,
    /// What the newest renewal found left when it landed, in microseconds; [`UNMEASURED`] where none did.
    margin: AtomicU64,
    /// The fleet's hold of the manager's Lease: microseconds by `clock`; 0 is closed, [`UNGUARDED`]
    /// depends on none.
    hold_until: AtomicU64,
    /// The fleet's term that the hold is of, and the one that the coordinator has taken note of.
    hold_term: AtomicU64,
    noted_term: AtomicU64,
    /// Nothing new is sent; what is in flight may end.
    paused: AtomicBool,
    /// Writes that were sent and not answered yet.
    in_flight: AtomicUsize,
    /// The same, noted for the next process, where there is a place for it.
    marked: Option<Marked>,
    /// When a write was given up last that may still be executed, in microseconds by `clock`; 0 is never.
    given_up: AtomicU64,
    /// When the renewal thread checked last, in microseconds by `clock`; 0 before the first time.
    watched: AtomicU64,
    /// A thread may hang: nothing is sent for now.
    suspected: AtomicBool,
    /// Why this replica ends by itself, if it does.
    end: OnceLock<End>,
    ends: Notify,
    /// It does not open again.
    shut: AtomicBool,
    /// What must be in the replica's Lease before it continues.
    pub(crate) announcements: Announcements,
    /// Signs of life of the two who move it.
    pub(crate) renewing: Pulse,
    pub(crate) coordinating: Pulse,
}

impl Fence {
    /// A closed fence without ranges, by the runtime's clock; `late` is for how long a request that was given
    /// up may still be executed.
    pub fn new(ranges: u16, late: Duration) -> Self {
        Self::by(Clock::runtime(), ranges, late)
    }

    /// The same by another clock.
    pub(crate) fn by(clock: Clock, ranges: u16, late: Duration) -> Self {
        Self {
            clock,
            late_write_max: late,
            until: AtomicU64::new(0),
            epochs: (0..ranges).map(|_| AtomicU64::new(0)).collect(),
            closings: Notify::new(),
            newest: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            renewed: Mutex::default(),
            margin: AtomicU64::new(UNMEASURED),
            hold_until: AtomicU64::new(UNGUARDED),
            hold_term: AtomicU64::new(0),
            noted_term: AtomicU64::new(0),
            paused: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            marked: None,
            given_up: AtomicU64::new(0),
            watched: AtomicU64::new(0),
            suspected: AtomicBool::new(false),
            end: OnceLock::new(),
            ends: Notify::new(),
            shut: AtomicBool::new(false),
            announcements: Announcements::default(),
            renewing: Pulse::default(),
            coordinating: Pulse::default(),
        }
    }

    /// The same, which notes whether anything is in flight.
    pub(crate) fn with_mark(self, mark: InFlightMark) -> Self {
        let in_flight = Mutex::new(true);
        Self {
            marked: Some(Marked { mark, in_flight }),
            ..self
        }
    }

    /// Notes that something is in flight, before it is; `false` where that was not possible.
    fn mark_in_flight(&self) -> bool {
        let Some(marked) = &self.marked else {
            return true;
        };
        let mut noted = marked
            .in_flight
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *noted = *noted || (marked.mark.0)(true);
        *noted
    }

    /// Notes that nothing is in flight, if that is so. What is counted from now on waits for the lock.
    pub(crate) fn mark_if_still(&self) {
        let Some(marked) = &self.marked else {
            return;
        };
        let mut noted = marked
            .in_flight
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if *noted && self.is_still() {
            // Where it cannot be noted, the next write notes anyway that there is something.
            (marked.mark.0)(false);
            *noted = false;
        }
    }

    /// Time since this fence was made, that of a suspended machine included: the time of both machines of the
    /// core.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// The renewal thread has checked, then, and has closed what must be closed.
    pub(crate) fn watched(&self, now: Time) {
        self.watched.store(micros(now).max(1), Ordering::Release);
    }

    /// Whether the renewal thread has not checked for long. All threads resume at once after the process was
    /// stopped, and it may not be the first.
    fn is_unwatched(&self) -> bool {
        let watched = self.watched.load(Ordering::Acquire);
        watched != 0 && Duration::from_micros(watched) + GAP_MAX < self.now()
    }

    /// Whether a thread of this replica may hang. The next [`Fence::set_until`] closes or opens accordingly.
    pub(crate) fn suspect(&self, suspected: bool) {
        self.suspected.store(suspected, Ordering::Release);
        if suspected {
            self.set_until(None);
        }
    }

    /// This replica ends by itself: from now on nothing new is sent, for good. The renewal thread closes the
    /// fence once what is in flight is answered, and releases the replica Lease. Only the first end counts.
    pub fn end(&self, cause: EndCause, why: String) {
        // In this order: a renewal thread that knows of the end counts all that is in flight.
        self.pause();
        self.end.get_or_init(|| End { cause, why });
        self.ends.notify_one();
    }

    /// The end that this replica has come to by itself.
    pub fn ending(&self) -> Option<&End> {
        self.end.get()
    }

    /// How long an end takes at most.
    pub fn longest_end(&self) -> Duration {
        Ending::longest(self.late_write_max)
    }

    /// Ends when there is one.
    pub(crate) async fn ends(&self) {
        self.ends.notified().await;
    }

    /// Closes it for good; what is in flight is given up.
    pub(crate) fn shut(&self) {
        self.shut.store(true, Ordering::Release);
        self.set_until(None);
    }

    /// Whether a request for the range may go out now. Call it right before sending.
    pub fn check(&self, range: RangeId, epoch: Epoch) -> Result<(), Fenced> {
        match self.paused.load(Ordering::SeqCst) {
            true => Err(Fenced::Leaves),
            false => self.check_in_flight(range, epoch),
        }
    }

    /// Whether one that went out may continue.
    fn check_in_flight(&self, range: RangeId, epoch: Epoch) -> Result<(), Fenced> {
        let held = self
            .epochs
            .get(usize::from(range))
            .map_or(0, |held| held.load(Ordering::Acquire));
        if held != epoch || epoch == 0 {
            return Err(Fenced::NotHeld { range, epoch });
        }
        if !self.is_renewed() {
            return Err(Fenced::Closed);
        }
        if self.hold_remaining().is_zero() {
            return Err(Fenced::NotHolding);
        }
        Ok(())
    }

    /// A write that goes out now. Keep it until the answer has come, then call [`Sending::answered`]; dropped
    /// without, the write counts as still in the server's hands.
    ///
    /// # Errors
    /// As [`Fence::check`].
    pub fn sending(self: &Arc<Self>, range: RangeId, epoch: Epoch) -> Result<Sending, Fenced> {
        // Counted before it is checked: a fence that is closed with nothing in flight stays so.
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        let mut sending = Sending {
            fence: Arc::clone(self),
            answered: true,
        };
        self.check(range, epoch)?;
        if !self.mark_in_flight() {
            // The next process would rely on it.
            let why = "it cannot be noted that writes are in flight".to_owned();
            self.end(EndCause::Panic, why);
            return Err(Fenced::Leaves);
        }
        sending.answered = false;
        Ok(sending)
    }

    /// Whether no write is in flight, nor may be executed that was given up.
    pub(crate) fn is_still(&self) -> bool {
        let given_up = self.given_up.load(Ordering::SeqCst);
        let over = Duration::from_micros(given_up) + self.late_write_max <= self.now();
        self.in_flight.load(Ordering::SeqCst) == 0 && (given_up == 0 || over)
    }

    /// From now on nothing is sent, for good.
    pub(crate) fn pause(&self) {
        self.paused.store(true, Ordering::SeqCst);
    }

    /// How many writes were sent and are not answered.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    /// Whether it is open: what is held may be written.
    pub fn is_open(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// How long the fence stays open without another renewal, of the replica's Lease or of the manager's.
    pub fn remaining(&self) -> Duration {
        self.own_remaining().min(self.hold_remaining())
    }

    /// Whether the replica's own Lease was renewed in time: it is a member, and may take part in what the
    /// fleet does with its Leases.
    pub fn is_renewed(&self) -> bool {
        !self.own_remaining().is_zero()
    }

    fn own_remaining(&self) -> Duration {
        if self.is_unwatched() {
            return Duration::ZERO;
        }
        Duration::from_micros(self.until.load(Ordering::Acquire)).saturating_sub(self.now())
    }

    fn hold_remaining(&self) -> Duration {
        let until = self.hold_until.load(Ordering::Acquire);
        if until == UNGUARDED {
            return Duration::MAX;
        }
        // What was owned in another term was not dropped yet.
        if self.hold_term.load(Ordering::Acquire) != self.noted_term.load(Ordering::Acquire) {
            return Duration::ZERO;
        }
        Duration::from_micros(until).saturating_sub(self.now())
    }

    /// The fleet holds the manager's Lease in this term, by a renewal that counts until then.
    pub(crate) fn set_hold(&self, term: Option<u64>, until: Option<Time>) {
        let until = match term {
            Some(_) => until.map_or(0, micros),
            None => 0,
        };
        let before = self.hold_until.load(Ordering::Acquire);
        if let Some(term) = term
            && self.hold_term.load(Ordering::Acquire) != term
        {
            // Never open under the new term with the old time, or the other way round.
            self.hold_until.store(0, Ordering::Release);
            self.hold_term.store(term, Ordering::Release);
        }
        self.hold_until.store(until, Ordering::Release);
        if until < before {
            self.closings.notify_waiters();
        }
    }

    /// The coordinator has dropped whatever was owned in another term than this.
    pub(crate) fn note_term(&self, term: Option<u64>) {
        if let Some(term) = term {
            self.noted_term.store(term, Ordering::Release);
        }
    }

    /// The epoch under which the range is held, if it is.
    pub fn epoch(&self, range: RangeId) -> Option<Epoch> {
        let held = self
            .epochs
            .get(usize::from(range))
            .map_or(0, |held| held.load(Ordering::Acquire));
        (held != 0).then_some(held)
    }

    /// Ends as soon as a request for the range may not be under way any more: race it against every request.
    pub async fn closed(&self, range: RangeId, epoch: Epoch) -> Fenced {
        loop {
            // Before the check, so that what happens after it is heard.
            let closing = self.closings.notified();
            if let Err(fenced) = self.check_in_flight(range, epoch) {
                return fenced;
            }
            // The clock alone closes a fence too, even if nobody is there to say so.
            let remaining = self.remaining();
            tokio::select! {
                biased;
                () = closing => {}
                () = tokio::time::sleep(remaining) => {}
            }
        }
    }

    /// How long a request may still be in the server's hands that was given up when the fence closed: what
    /// the lease duration leaves to it before somebody else may own the range.
    pub fn late_write_max(&self) -> Duration {
        self.late_write_max
    }

    /// Ends when a renewal has landed that names what is in flight now ([`crate::RangeHost::working`]); while
    /// none lands, never.
    pub async fn announced(&self) {
        self.announcements.made().await;
    }

    /// How far the API server had come by the renewal before the newest, as a resourceVersion: what is older
    /// happened a retry period ago or longer. 0 before the second. Versions of other resources compare with
    /// it where the server keeps them in one etcd.
    pub fn settled(&self) -> u64 {
        self.settled.load(Ordering::Acquire)
    }

    /// The version that the newest renewal of the replica's Lease was given, and when its request was
    /// started: a watch of Leases that has come to this version has brought all that had happened by then.
    /// `None` before the first.
    pub fn renewed(&self) -> Option<(u64, Instant)> {
        *self.renewed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For how long the fence would still have been open when the newest renewal landed: the same until the
    /// next one lands, whenever it is read. Zero where the renewal came too late; `None` before one has
    /// landed on an open fence.
    pub fn margin(&self) -> Option<Duration> {
        let margin = self.margin.load(Ordering::Acquire);
        (margin != UNMEASURED).then(|| Duration::from_micros(margin))
    }

    /// A renewal has landed that was started then, and was given this version.
    pub(crate) fn landed(&self, version: u64, started: Time) {
        let until = self.until.load(Ordering::Acquire);
        if until != 0 {
            let margin = until.saturating_sub(micros(self.now()));
            self.margin.store(margin, Ordering::Release);
        }
        let before = self.newest.swap(version, Ordering::AcqRel);
        self.settled.store(before, Ordering::Release);
        // By the clock that the caches compare it with, on which less time may have passed.
        let ago = self.now().saturating_sub(started);
        let then = Instant::now().checked_sub(ago);
        let renewed = then.map(|then| (version, then));
        *self.renewed.lock().unwrap_or_else(PoisonError::into_inner) = renewed;
    }

    pub(crate) fn set_until(&self, until: Option<Time>) {
        let opens = !self.suspected.load(Ordering::Acquire) && !self.shut.load(Ordering::Acquire);
        let until = until.filter(|_| opens).map_or(0, micros);
        let before = self.until.swap(until, Ordering::AcqRel);
        if until < before {
            self.closings.notify_waiters();
        }
    }

    pub(crate) fn set_epoch(&self, range: RangeId, epoch: Option<Epoch>) {
        if let Some(held) = self.epochs.get(usize::from(range)) {
            let before = held.swap(epoch.unwrap_or(0), Ordering::AcqRel);
            if before != 0 && Some(before) != epoch {
                self.closings.notify_waiters();
            }
        }
    }

    /// Nothing goes out any more, for good.
    pub(crate) fn close(&self) {
        for range in 0..self.epochs.len() {
            self.set_epoch(u16::try_from(range).unwrap_or(u16::MAX), None);
        }
        self.set_until(None);
    }
}

/// A write on its way.
#[derive(Debug)]
pub struct Sending {
    fence: Arc<Fence>,
    answered: bool,
}

impl Sending {
    /// The server has answered: nothing of it is in flight any more.
    pub fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        if !self.answered {
            let now = micros(self.fence.now()).max(1);
            self.fence.given_up.fetch_max(now, Ordering::SeqCst);
        }
        if self.fence.in_flight.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.fence.mark_if_still();
        }
    }
}

/// Announcements of what is in flight: each waits for the renewal that carries it.
#[derive(Debug, Default)]
pub(crate) struct Announcements {
    made: AtomicU64,
    landed: AtomicU64,
    asks: Notify,
    lands: Notify,
}

impl Announcements {
    async fn made(&self) {
        let own = self.made.fetch_add(1, Ordering::AcqRel) + 1;
        self.asks.notify_one();
        loop {
            // Before the check, so that what happens after it is heard.
            let lands = self.lands.notified();
            if self.landed.load(Ordering::Acquire) >= own {
                return;
            }
            lands.await;
        }
    }

    /// Ends when one has been made.
    pub(crate) async fn asked(&self) {
        self.asks.notified().await;
    }

    /// How many were made.
    pub(crate) fn count(&self) -> u64 {
        self.made.load(Ordering::Acquire)
    }

    /// A renewal has landed that was written when there was this number.
    pub(crate) fn landed(&self, count: u64) {
        if self.landed.fetch_max(count, Ordering::AcqRel) < count {
            self.lands.notify_waiters();
        }
    }
}
