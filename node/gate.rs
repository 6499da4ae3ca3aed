//! The gate that every write passes: the fence of the replica, and whether the range is frozen for a handoff.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use coordinator::{Epoch, RangeId, Sending};
use futures::future::BoxFuture;
use tokio::sync::Notify;

/// The replica's fence as a write sees it. `coordinator::Fence` is the real one.
pub trait Fence: Send + Sync {
    /// Whether a write for the range under that epoch may be sent now.
    fn open(&self, range: RangeId, epoch: Epoch) -> bool;
    /// As [`Fence::open`], for a write that goes out now and counts as in flight until it is answered.
    ///
    /// # Errors
    /// Where it may not be sent.
    fn send(&self, range: RangeId, epoch: Epoch) -> Result<Option<Sending>, Stopped> {
        match self.open(range, epoch) {
            true => Ok(None),
            false => Err(Stopped::Fenced),
        }
    }
    /// Resolves when such a write may not be under way any more: the fence has closed, or the range has
    /// another owner.
    fn closed(&self, range: RangeId, epoch: Epoch) -> BoxFuture<'static, ()>;
    /// How far the API server had come a while ago, as a resourceVersion: a watch that brings older changes
    /// is late.
    fn settled(&self) -> u64;
    /// The version of the newest renewal of this replica's Lease, and when its request was started
    /// ([`node_cache::Renewed`]).
    fn renewed(&self) -> Option<(u64, tokio::time::Instant)>;
    /// How long a write that was given up may still be in the server's hands.
    fn late_write_max(&self) -> Duration;
    /// Resolves when the replica's Lease names what is in flight now; while it can't be renewed, never.
    fn announced(&self) -> BoxFuture<'static, ()>;
}

/// Why a write was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The range is about to be handed over: the key continues with its next owner.
    Frozen,
    /// The fence is closed or the range is lost.
    Fenced,
}

/// One owned range under one epoch.
pub struct Gate {
    /// The range.
    pub range: RangeId,
    /// The epoch under which it is owned.
    pub epoch: Epoch,
    /// The life of this replica that owns it, for the API server's fence: a later life of the process is
    /// another.
    pub holder: Arc<str>,
    fence: Arc<dyn Fence>,
    frozen: AtomicBool,
    changed: Notify,
    events: AtomicUsize,
}

impl Gate {
    /// For a range that was just gained.
    pub fn new(range: RangeId, epoch: Epoch, fence: Arc<dyn Fence>) -> Arc<Self> {
        Self::of_life("".into(), range, epoch, fence)
    }

    /// For a range that this life of the replica, `<replica>_<incarnation>`, has gained.
    pub fn of_life(
        holder: Arc<str>,
        range: RangeId,
        epoch: Epoch,
        fence: Arc<dyn Fence>,
    ) -> Arc<Self> {
        Arc::new(Self {
            range,
            epoch,
            holder,
            fence,
            frozen: AtomicBool::new(false),
            changed: Notify::new(),
            events: AtomicUsize::new(0),
        })
    }

    /// Asked right before every request.
    ///
    /// # Errors
    /// Why it may not be sent.
    pub fn admit(&self) -> Result<(), Stopped> {
        if self.frozen.load(Ordering::Acquire) {
            return Err(Stopped::Frozen);
        }
        self.admit_while_frozen()
    }

    /// As [`Gate::admit`], for a write that goes out now: it counts as in flight until it is answered.
    ///
    /// # Errors
    /// Why it may not be sent.
    pub fn send(&self) -> Result<Option<Sending>, Stopped> {
        match self.frozen.load(Ordering::Acquire) {
            true => Err(Stopped::Frozen),
            false => self.fence.send(self.range, self.epoch),
        }
    }

    /// As [`Gate::admit`], for what may still go out while the range is frozen: events of writes that were
    /// made.
    ///
    /// # Errors
    /// Where the fence is closed or the range is lost.
    pub fn admit_while_frozen(&self) -> Result<(), Stopped> {
        if self.fence.open(self.range, self.epoch) {
            Ok(())
        } else {
            Err(Stopped::Fenced)
        }
    }

    /// Resolves when a request in flight must be aborted.
    pub fn closed(&self) -> BoxFuture<'static, ()> {
        self.fence.closed(self.range, self.epoch)
    }

    /// Resolves when nothing new may be sent: frozen or closed.
    pub async fn stopped(&self) -> Stopped {
        let closed = self.closed();
        let frozen = async {
            loop {
                let changed = self.changed.notified();
                if self.frozen.load(Ordering::Acquire) {
                    return;
                }
                changed.await;
            }
        };
        tokio::select! {
            biased;
            () = closed => Stopped::Fenced,
            () = frozen => Stopped::Frozen,
        }
    }

    /// No new request from now on.
    pub fn freeze(&self) {
        self.frozen.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }

    /// The handoff did not happen.
    pub fn resume(&self) {
        self.frozen.store(false, Ordering::Release);
        self.changed.notify_waiters();
    }

    /// Whether it is frozen.
    pub fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::Acquire)
    }

    /// Events of this range that are not sent yet.
    pub fn events_pending(&self) -> usize {
        self.events.load(Ordering::Acquire)
    }

    /// Counts an event until the guard is dropped.
    pub fn event(self: &Arc<Self>) -> EventGuard {
        self.events.fetch_add(1, Ordering::AcqRel);
        EventGuard(Arc::clone(self))
    }
}

/// An event on its way.
pub struct EventGuard(Arc<Gate>);

impl EventGuard {
    /// The gate it has to pass.
    pub fn gate(&self) -> &Gate {
        &self.0
    }
}

impl Drop for EventGuard {
    fn drop(&mut self) {
        self.0.events.fetch_sub(1, Ordering::AcqRel);
    }
}
