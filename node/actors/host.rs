//! The node's side of ownership: makes and drops Range actors as the coordinator says.

use std::{
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use actix::{Actor, Addr, ArbiterHandle, Context, Handler, Message, prelude::SendError};
use coordinator::{
    EndCause, Epoch, Frozen, Gained, Holder, Loads, Meter, Quarantine, RangeHost, RangeId, Sending,
    Work,
};
use futures::{FutureExt, future::BoxFuture};
use peer_proto::{InspectRequest, RangeState, Sight};
use tokio::sync::oneshot;

use crate::{
    actors::{
        range::{Freeze, Range, Resume, Stop},
        scan::Scans,
    },
    currency::Others,
    debug::answers,
    gate::{Fence, Gate, Stopped},
    queue::Monotonic,
    shared::{Inbox, RangeStats, Shared, Slot, poll},
};

/// Messages that a Range's mailbox holds: wakes go through its inbox, so there are few.
const RANGE_MAILBOX: usize = 64;

/// Makes and drops Range actors.
pub struct Host {
    shared: Arc<Shared>,
    arbiters: Vec<ArbiterHandle>,
    ready: Arc<AtomicBool>,
    /// In whose name what is gained now is written: `<replica>_<incarnation>`.
    life: Mutex<Arc<str>>,
    scans: Scans,
    /// When each range was given up last, at most one of each.
    given_up: Mutex<BTreeMap<RangeId, Monotonic>>,
    /// How much work the ranges are.
    meter: Mutex<Meter>,
    /// What other replicas see.
    pub others: Arc<Others>,
    /// Whether the status of another replica's pod proves its end, where such can be read.
    pods: OnceLock<Box<AskPod>>,
}

/// Whether the status of a pod, `<namespace>/<name>`, proves that a process has ended.
pub type AskPod = dyn Fn(&str, &str) -> BoxFuture<'static, bool> + Send + Sync;

impl Host {
    /// Over these arbiters; over none, ranges run on the thread of the caller.
    pub fn new(shared: Arc<Shared>, arbiters: Vec<ArbiterHandle>, ready: Arc<AtomicBool>) -> Self {
        Self {
            scans: Scans::new(Arc::clone(&shared)),
            shared,
            arbiters,
            ready,
            life: Mutex::new("".into()),
            given_up: Mutex::default(),
            meter: Mutex::default(),
            others: Arc::default(),
            pods: OnceLock::new(),
        }
    }

    /// Asks for other replicas' pods so, from now on.
    pub fn ask_pods(&self, ask: Box<AskPod>) {
        self.pods.get_or_init(|| ask);
    }

    /// When this replica gave up the range last.
    fn given_up_at(&self, range: RangeId) -> Option<Monotonic> {
        let given_up = self.given_up.lock().unwrap_or_else(PoisonError::into_inner);
        given_up.get(&range).copied()
    }

    /// This replica gives up the range now; requests may be in flight.
    fn give_up(&self, range: RangeId) {
        let now = self.shared.clock.monotonic();
        let mut given_up = self.given_up.lock().unwrap_or_else(PoisonError::into_inner);
        given_up.insert(range, now);
    }

    /// Sends what must not be lost: past a full mailbox it waits for room in a task of its own.
    fn send<M>(&self, addr: &Addr<Range>, message: M)
    where
        M: Message + Send + 'static,
        M::Result: Send,
        Range: Handler<M>,
    {
        if let Err(SendError::Full(message)) = addr.try_send(message) {
            let sent = addr.send(message);
            self.shared.aside.spawn(async move {
                // Who is gone needs to hear nothing.
                let _gone = sent.await;
            });
        }
    }

    fn count(&self) {
        let owned = self
            .shared
            .table
            .iter()
            .filter(|slot| slot.load().is_some())
            .count();
        self.shared.metrics.ranges_owned(owned);
    }
}

impl RangeHost for Host {
    fn lives_as(&self, holder: &Holder) {
        let mut life = self.life.lock().unwrap_or_else(PoisonError::into_inner);
        *life = holder.to_string().into();
    }

    fn gained(&self, range: RangeId, epoch: Epoch, how: Gained) {
        let Some(place) = self.shared.table.get(usize::from(range)) else {
            tracing::error!(
                range,
                "a range beyond the fleet's number was gained; it is left alone"
            );
            return;
        };
        let life = Arc::clone(&self.life.lock().unwrap_or_else(PoisonError::into_inner));
        let gate = Gate::of_life(life, range, epoch, Arc::clone(&self.shared.fence));
        let (inbox, stats) = (Arc::<Inbox>::default(), Arc::<RangeStats>::default());
        let (shared, its_inbox, its_stats) = (
            Arc::clone(&self.shared),
            Arc::clone(&inbox),
            Arc::clone(&stats),
        );
        if place.load().is_some() {
            self.give_up(range);
        }
        let given_up = self.given_up_at(range);
        let how = Arc::new(how);
        let its_how = Arc::clone(&how);
        let make = move |ctx: &mut Context<Range>| {
            ctx.set_mailbox_capacity(RANGE_MAILBOX);
            Range::new(shared, gate, its_inbox, its_stats, &its_how, given_up)
        };
        let addr = match self.arbiters.len() {
            0 => Range::create(make),
            count => Range::start_in_arbiter(&self.arbiters[usize::from(range) % count], make),
        };
        let slot = Slot {
            epoch,
            addr,
            inbox,
            stats,
        };
        if let Some(before) = place.swap(Some(Arc::new(slot))) {
            self.send(&before.addr, Stop);
        }
        self.shared.metrics.epoch_changed();
        self.count();
        // Orders that have changed while the actor was made and not yet in the table.
        if let Some(slot) = self.shared.slot(range) {
            poll(&slot);
        }
        match &*how {
            Gained::Takeover => self.scans.taken(range),
            Gained::Handoff(state) => self.scans.handed(range, state),
        }
    }

    fn lost(&self, range: RangeId) {
        let Some(place) = self.shared.table.get(usize::from(range)) else {
            return;
        };
        self.shared.attempts().lost(range);
        if let Some(before) = place.swap(None) {
            self.give_up(range);
            // The gate refuses its writes already; the actor ends when it gets to it.
            self.send(&before.addr, Stop);
        }
        self.count();
    }

    fn freeze(
        &self,
        range: RangeId,
        budget: Duration,
        force: bool,
    ) -> Pin<Box<dyn Future<Output = Frozen> + Send + 'static>> {
        let slot = self.shared.slot(range);
        Box::pin(async move {
            let nothing = || Frozen::Still(RangeState::default());
            let Some(slot) = slot else { return nothing() };
            let (reply, answer) = oneshot::channel();
            if slot
                .addr
                .send(Freeze {
                    budget,
                    force,
                    reply,
                })
                .await
                .is_err()
            {
                return nothing();
            }
            answer.await.unwrap_or_else(|_| nothing())
        })
    }

    fn resume(&self, range: RangeId) {
        if let Some(slot) = self.shared.slot(range) {
            self.send(&slot.addr, Resume);
        }
    }

    fn ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    fn inspect(
        &self,
        asked: InspectRequest,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<u8>, String>> + Send + 'static>> {
        let (reply, answer) = oneshot::channel();
        let shared = Arc::clone(&self.shared);
        // Elsewhere: the coordinator's thread does not wait for it.
        self.shared.aside.spawn(async move {
            let _gone = reply.send(answers::answer(shared, asked).await);
        });
        Box::pin(async move {
            answer
                .await
                .unwrap_or_else(|_| Err("the replica is on its way out".to_owned()))
        })
    }

    fn working(&self) -> Vec<Work> {
        let now = self.shared.clock.monotonic();
        self.shared.watchlist.working(now)
    }

    fn loads(&self) -> Arc<Loads> {
        let mut meter = self.meter.lock().unwrap_or_else(PoisonError::into_inner);
        meter.report(self.shared.clock.monotonic(), || {
            (0..self.shared.ranges).filter_map(|range| {
                let slot = self.shared.slot(range)?;
                Some((range, slot.epoch, slot.stats.busy()))
            })
        })
    }

    fn sights(&self) -> Vec<Sight> {
        self.others.own()
    }

    fn peer_sees(&self, replica: &str, sights: Vec<Sight>) {
        self.others.said(replica, sights);
    }

    fn has_ended(
        &self,
        pod: &str,
        process: &str,
    ) -> Pin<Box<dyn Future<Output = bool> + Send + 'static>> {
        match self.pods.get() {
            Some(ask) => ask(pod, process),
            None => Box::pin(std::future::ready(false)),
        }
    }

    fn quarantine(&self, quarantine: &Quarantine) {
        self.shared.watchlist.set(quarantine.clone());
    }
}

/// A fence that is given its inside later: the actors need one before the coordinator, which has it, can be
/// started. Until then it is closed.
#[derive(Default)]
pub struct LateFence(OnceLock<Arc<coordinator::Fence>>);

impl LateFence {
    /// Sets the real one; the first counts.
    pub fn set(&self, fence: Arc<coordinator::Fence>) {
        self.0.get_or_init(|| fence);
    }

    /// Ends this replica, which has panicked, in so much time at most. `None` where there is no fence yet:
    /// then nothing was ever sent.
    pub fn end(&self, why: String) -> Option<Duration> {
        let fence = self.0.get()?;
        fence.end(EndCause::Panic, why);
        Some(fence.longest_end())
    }
}

impl node_cache::Guard for LateFence {
    fn open(&self) -> bool {
        self.0.get().is_some_and(|fence| fence.is_open())
    }

    fn late_write_max(&self) -> Duration {
        Fence::late_write_max(self)
    }
}

impl Fence for LateFence {
    fn open(&self, range: RangeId, epoch: Epoch) -> bool {
        self.0
            .get()
            .is_some_and(|fence| fence.check(range, epoch).is_ok())
    }

    fn send(&self, range: RangeId, epoch: Epoch) -> Result<Option<Sending>, Stopped> {
        let fence = self.0.get().ok_or(Stopped::Fenced)?;
        let sending = fence.sending(range, epoch);
        sending.map(Some).map_err(|_| Stopped::Fenced)
    }

    fn closed(&self, range: RangeId, epoch: Epoch) -> BoxFuture<'static, ()> {
        match self.0.get() {
            Some(fence) => {
                let fence = Arc::clone(fence);
                async move {
                    fence.closed(range, epoch).await;
                }
                .boxed()
            }
            None => std::future::ready(()).boxed(),
        }
    }

    fn settled(&self) -> u64 {
        self.0.get().map_or(0, |fence| fence.settled())
    }

    fn renewed(&self) -> Option<(u64, tokio::time::Instant)> {
        self.0.get()?.renewed()
    }

    fn late_write_max(&self) -> Duration {
        // Before there is a fence nothing is sent.
        self.0
            .get()
            .map_or(Duration::ZERO, |fence| fence.late_write_max())
    }

    fn announced(&self) -> BoxFuture<'static, ()> {
        match self.0.get() {
            Some(fence) => {
                let fence = Arc::clone(fence);
                async move { fence.announced().await }.boxed()
            }
            // Before there is a fence nothing begins.
            None => std::future::pending().boxed(),
        }
    }
}
