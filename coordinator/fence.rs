//! Whether a request may go out: read before each one, without a lock.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use coordinator_core::Time;
// The runtime's clock: a simulation moves it on by itself.
use tokio::{sync::Notify, time::Instant};

use crate::{Epoch, RangeId, pulse::Pulse};

/// Why a request may not go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fenced {
    /// No renewal has landed in time.
    #[error("the fence is closed: no renewal of the replica Lease has landed in time")]
    Closed,
    /// The range is not held under this epoch.
    #[error("range {range} is not held under epoch {epoch}")]
    NotHeld {
        /// Which.
        range: RangeId,
        /// The epoch of the request.
        epoch: Epoch,
    },
}

/// One per replica. The renewal thread moves the time on, the coordinator sets the epochs, everybody checks.
#[derive(Debug)]
pub struct Fence {
    origin: Instant,
    in_hand: Duration,
    /// Microseconds since `origin`; 0 is closed.
    until: AtomicU64,
    /// By range; 0 is not held.
    epochs: Box<[AtomicU64]>,
    /// Tells when a permission is taken away.
    closings: Notify,
    /// The versions that the newest renewal and the one before it were given.
    newest: AtomicU64,
    settled: AtomicU64,
    /// The newest renewal, and when its request was started.
    renewed: Mutex<Option<(u64, Instant)>>,
    /// What must be in the replica's Lease before it goes on.
    pub(crate) announcements: Announcements,
    /// Signs of life of the two who move it.
    pub(crate) renewing: Pulse,
    pub(crate) coordinating: Pulse,
}

impl Fence {
    /// A closed fence without ranges. `in_hand` is [`Fence::in_hand`].
    pub fn new(ranges: u16, in_hand: Duration) -> Self {
        Self {
            origin: Instant::now(),
            in_hand,
            until: AtomicU64::new(0),
            epochs: (0..ranges).map(|_| AtomicU64::new(0)).collect(),
            closings: Notify::new(),
            newest: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            renewed: Mutex::default(),
            announcements: Announcements::default(),
            renewing: Pulse::default(),
            coordinating: Pulse::default(),
        }
    }

    /// Monotonic time since this fence was made: the time of both machines of the core.
    pub fn now(&self) -> Time {
        self.origin.elapsed()
    }

    /// Whether a request for the range may go out now. Call it right before sending.
    pub fn check(&self, range: RangeId, epoch: Epoch) -> Result<(), Fenced> {
        let held = self
            .epochs
            .get(usize::from(range))
            .map_or(0, |held| held.load(Ordering::Acquire));
        if held != epoch || epoch == 0 {
            return Err(Fenced::NotHeld { range, epoch });
        }
        if !self.is_open() {
            return Err(Fenced::Closed);
        }
        Ok(())
    }

    /// Whether it is open: what is held may be written.
    pub fn is_open(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// How long the fence stays open without another renewal.
    pub fn remaining(&self) -> Duration {
        Duration::from_micros(self.until.load(Ordering::Acquire)).saturating_sub(self.now())
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
            // Before the look, so that what happens after it is heard.
            let closing = self.closings.notified();
            if let Err(fenced) = self.check(range, epoch) {
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
    pub fn in_hand(&self) -> Duration {
        self.in_hand
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

    /// A renewal has landed that was started then, and was given this version.
    pub(crate) fn landed(&self, version: u64, started: Time) {
        let before = self.newest.swap(version, Ordering::AcqRel);
        self.settled.store(before, Ordering::Release);
        let renewed = Some((version, self.origin + started));
        *self.renewed.lock().unwrap_or_else(PoisonError::into_inner) = renewed;
    }

    pub(crate) fn set_until(&self, until: Option<Time>) {
        let until = until.map_or(0, |until| {
            u64::try_from(until.as_micros()).unwrap_or(u64::MAX)
        });
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

/// Announcements of what is in flight: whoever makes one waits for the renewal that carries it.
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
            // Before the look, so that what happens after it is heard.
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

    /// A renewal has landed that was written when there were so many.
    pub(crate) fn landed(&self, count: u64) {
        if self.landed.fetch_max(count, Ordering::AcqRel) < count {
            self.lands.notify_waiters();
        }
    }
}
