//! The actor that drives the core: events in, effects out. It decides nothing.

use std::{collections::HashMap, sync::Arc, time::Duration};

use actix::{
    Actor, ActorFutureExt, AsyncContext, Context, Handler, Message, SpawnHandle, WrapFuture, fut,
};
use coordinator_core::{
    Core, Effect, Epoch, Fatal, Happening, Hold, Holder, Holds, Input, Member, NoAnswer, NotSent,
    Offer, OwnLease, Quarantine, RangeId, Refused, View, Written, first_life,
};
use peer_proto::RangeState;
use tokio::sync::{Semaphore, broadcast, oneshot, watch};

use crate::{
    Fence, Frozen, Gained, RangeHost,
    admission::Refusals,
    interlock::HoldState,
    lease::{Kind, Leases},
    peer::{Calls, Holdings},
    renewal::RenewalThread,
    server_fence::Barrier,
    trust,
};

/// Senders wait when it is full: the watch, peers. The node never sends here.
const MAILBOX: usize = 256;

/// Lease writes under way at once. A cold start writes a third of 256 in a few round trips; a takeover of
/// 4096 does not flood the API server.
const WRITES_AT_ONCE: usize = 32;

/// All states that wait for their Leases. Beyond it, offers are refused and their senders try again.
const KEPT_BYTES_MAX: usize = 256 << 20;

/// How often the node is asked whether its caches are complete, until they are.
const READY_PERIOD: Duration = Duration::from_millis(50);

/// A freeze that the node never answers is given up this long after its budget.
const FREEZE_GRACE: Duration = Duration::from_secs(1);

/// Lists of all range Leases: 4096 of them take a second on a busy machine.
const RANGES_DEADLINE: Duration = Duration::from_secs(10);

/// A pod's status that takes longer comes too late to shorten a wait.
const POD_DEADLINE: Duration = Duration::from_secs(1);

/// Happenings of each range that a slow listener may lag behind: the busiest moment, a takeover of all, fits.
const HAPPENINGS_EACH: usize = 2;

/// What others see of the actor.
#[derive(Clone)]
pub(crate) struct Shared {
    pub view: Arc<watch::Sender<Arc<View>>>,
    /// The members of the view; wakes only where one is another than before.
    pub members: Arc<watch::Sender<Vec<Member>>>,
    pub happenings: broadcast::Sender<Happening>,
    pub fatal: Arc<watch::Sender<Option<Fatal>>>,
    pub refusals: Arc<Refusals>,
}

impl Shared {
    pub(crate) fn new(ranges: u16) -> Self {
        let happenings = HAPPENINGS_EACH * usize::from(ranges);
        Self {
            view: Arc::new(watch::Sender::new(Arc::new(View::default()))),
            members: Arc::default(),
            happenings: broadcast::Sender::new(happenings),
            fatal: Arc::new(watch::Sender::new(None)),
            refusals: Arc::default(),
        }
    }
}

/// An offer before the core's answer: its state, the state's size, who waits.
type Waiting = (RangeState, usize, oneshot::Sender<Result<(), Refused>>);

pub(crate) struct Coordinator {
    core: Core,
    leases: Leases,
    barrier: Barrier,
    fence: Arc<Fence>,
    host: Arc<dyn RangeHost>,
    peers: Arc<dyn Calls>,
    renewal: RenewalThread,
    shared: Shared,
    writes: Arc<Semaphore>,
    /// As last reported to the node.
    life: Option<Holder>,
    /// As last reported to the node.
    quarantine: Quarantine,
    pending: Vec<Input>,
    timer: Option<SpawnHandle>,
    /// Frozen here, to be sent.
    frozen: HashMap<RangeId, RangeState>,
    /// Sent to us, waiting for their Leases.
    kept: HashMap<RangeId, (RangeState, usize)>,
    offers: HashMap<u64, Waiting>,
    questions: HashMap<u64, oneshot::Sender<Holdings>>,
    next_id: u64,
    /// Dropped with the actor: those who wait for it see that it has ended.
    _alive: oneshot::Sender<()>,
}

/// Things that happened outside.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Feed(pub Vec<Input>);

#[derive(Message)]
#[rtype(result = "()")]
struct Flush;

/// Asks for a sign of life.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Beat;

/// A peer offers a range.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Offered {
    pub offer: Offer,
    pub state: RangeState,
    pub bytes: usize,
    pub answer: oneshot::Sender<Result<(), Refused>>,
    pub full: oneshot::Sender<()>,
}

/// A peer asks what is held here.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Asked {
    pub ranges: Vec<RangeId>,
    pub answer: oneshot::Sender<Holdings>,
}

impl Coordinator {
    #[allow(
        clippy::too_many_arguments,
        reason = "called once, where the parts are made"
    )]
    pub(crate) fn new(
        core: Core,
        leases: Leases,
        barrier: Barrier,
        fence: Arc<Fence>,
        host: Arc<dyn RangeHost>,
        peers: Arc<dyn Calls>,
        renewal: RenewalThread,
        shared: Shared,
        alive: oneshot::Sender<()>,
    ) -> Self {
        Self {
            core,
            leases,
            barrier,
            fence,
            host,
            peers,
            renewal,
            shared,
            writes: Arc::new(Semaphore::new(WRITES_AT_ONCE)),
            life: None,
            quarantine: Quarantine::default(),
            pending: Vec::new(),
            timer: None,
            frozen: HashMap::new(),
            kept: HashMap::new(),
            offers: HashMap::new(),
            questions: HashMap::new(),
            next_id: 0,
            _alive: alive,
        }
    }

    /// Inputs that come together are decided upon together.
    fn feed(&mut self, inputs: impl IntoIterator<Item = Input>, ctx: &mut Context<Self>) {
        let idle = self.pending.is_empty();
        self.pending.extend(inputs);
        if idle && !self.pending.is_empty() {
            ctx.notify(Flush);
        }
    }

    fn decide(&mut self, ctx: &mut Context<Self>) {
        let inputs = std::mem::take(&mut self.pending);
        let Some(effects) = self.core.steps(self.fence.now(), inputs) else {
            return;
        };
        // As the core knows it: what it gains belongs to this life, though the renewal may have begun another
        // already.
        let life = self.core.holder();
        if life != self.life {
            if let Some(holder) = &life {
                self.host.lives_as(holder);
            }
            self.life = life;
        }
        let now = self.fence.now();
        // Before a range is gained: its first key may be the one.
        let quarantine = self.core.quarantine(now);
        if quarantine != self.quarantine {
            self.host.quarantine(&quarantine);
            self.quarantine = quarantine;
        }
        for effect in effects {
            self.perform(effect, ctx);
        }
        self.fence.note_term(self.core.hold());
        let now = self.fence.now();
        let before = Arc::clone(&self.shared.view.borrow());
        let view = self.core.view(now, &before);
        if view.members != before.members && trust::know(&self.shared.members, &view.members) {
            self.peers.keep(&view.members);
        }
        self.shared.view.send_replace(Arc::new(view));
        let wake = self.core.wake_at(now).saturating_sub(now);
        if let Some(timer) = self.timer.take() {
            ctx.cancel_future(timer);
        }
        self.timer = Some(ctx.run_later(wake, |actor, ctx| {
            actor.timer = None;
            actor.feed([Input::Tick], ctx);
        }));
    }

    /// Runs a request; what comes of it is an input.
    fn spawn(&self, ctx: &mut Context<Self>, request: impl Future<Output = Input> + 'static) {
        ctx.spawn(
            request
                .into_actor(self)
                .map(|input, actor, ctx| actor.feed([input], ctx)),
        );
    }

    fn own(&self) -> OwnLease {
        self.renewal.own.borrow().clone()
    }

    fn perform(&mut self, effect: Effect, ctx: &mut Context<Self>) {
        match effect {
            Effect::Join => self.renewal.wanted.send_modify(|wanted| wanted.join = true),
            Effect::Status(status) => self
                .renewal
                .wanted
                .send_modify(|wanted| wanted.status = status),
            Effect::Reopen(regained) => {
                self.renewal.wanted.send_if_modified(|wanted| {
                    let changed = wanted.reopen.as_ref() != Some(&regained);
                    wanted.reopen = Some(regained);
                    changed
                });
            }
            Effect::Release => self
                .renewal
                .wanted
                .send_modify(|wanted| wanted.release = true),
            Effect::ReadReplicas => self.read_replicas(ctx),
            Effect::ReadRanges => self.read_ranges(ctx),
            Effect::ReadRange(range) => self.read_range(range, ctx),
            Effect::Evict(lease) => {
                let name = lease.name.clone();
                let evict = async move |leases: Leases| {
                    let version = Some(lease.version);
                    leases.write_replica(version, &lease, None).await
                };
                let evicted = |result| Input::Evicted { name, result };
                self.write(ctx, evict, Written::Unknown, evicted);
            }
            Effect::AskPod { holder, pod } => {
                let asked = self.host.has_ended(&pod, first_life(&holder.incarnation));
                self.spawn(ctx, async move {
                    match tokio::time::timeout(POD_DEADLINE, asked).await {
                        Ok(true) => Input::ProvenDead(holder),
                        Ok(false) | Err(_) => Input::NotProven(holder),
                    }
                });
            }
            Effect::Bar { holder, fenced } => {
                let barrier = self.barrier.clone();
                self.spawn(ctx, async move {
                    barrier.bar(&holder, fenced).await;
                    Input::Barred(holder)
                });
            }
            Effect::DeleteRange { range, version } => {
                let delete = async move |leases: Leases| {
                    leases.delete_range(range, version).await.map_err(|error| {
                        tracing::warn!(range, %error, "deleting a damaged range Lease failed");
                        NoAnswer
                    })
                };
                let deleted = move |result| Input::RangeDeleted {
                    range,
                    version,
                    result,
                };
                self.write(ctx, delete, Err(NoAnswer), deleted);
            }
            Effect::Claim { version, lease } => {
                let range = lease.range;
                let claim = async move |leases: Leases| leases.write_range(version, &lease).await;
                let claimed = move |result| Input::Claimed { range, result };
                self.write(ctx, claim, Written::Unknown, claimed);
            }
            Effect::Swap { version, lease, .. } => {
                let range = lease.range;
                let version = Some(version);
                let swap = async move |leases: Leases| leases.write_range(version, &lease).await;
                let swapped = move |result| Input::Swapped { range, result };
                self.write(ctx, swap, Written::Unknown, swapped);
            }
            Effect::WritePlan { version, lease } => {
                let plan = async move |leases: Leases| leases.write_plan(version, &lease).await;
                self.write(ctx, plan, Written::Unknown, Input::PlanWritten);
            }
            Effect::Gained { range, epoch, kept } => {
                let state = self.kept.remove(&range).filter(|_| kept);
                self.fence.set_epoch(range, Some(epoch));
                self.host.gained(
                    range,
                    epoch,
                    state.map_or(Gained::Takeover, |(state, _)| Gained::Handoff(state)),
                );
            }
            Effect::Lost(range) => {
                self.fence.set_epoch(range, None);
                self.frozen.remove(&range);
                self.host.lost(range);
            }
            Effect::Freeze {
                range,
                epoch,
                budget,
                force,
            } => self.freeze(range, epoch, budget, force, ctx),
            Effect::CloseRange(range) => self.fence.set_epoch(range, None),
            Effect::Resume { range, epoch } => {
                self.frozen.remove(&range);
                self.fence.set_epoch(range, Some(epoch));
                self.host.resume(range);
            }
            Effect::Send {
                range,
                epoch,
                attempt,
                to,
                address,
            } => {
                self.send(to, address, (range, epoch, attempt), ctx);
            }
            Effect::AnnounceSwap {
                range,
                epoch,
                to,
                address,
            } => {
                let (peers, own) = (Arc::clone(&self.peers), self.own());
                let announce = async move {
                    if let Err(error) = peers
                        .released(&own.incarnation, &to, &address, range, epoch)
                        .await
                    {
                        // The watch brings it too.
                        tracing::debug!(range, %to, error, "could not announce the swap to the new owner");
                    }
                };
                ctx.spawn(announce.into_actor(self));
            }
            Effect::Answer { id, range, refused } => {
                if let Some((state, bytes, answer)) = self.offers.remove(&id) {
                    if refused.is_none() {
                        self.kept.insert(range, (state, bytes));
                    }
                    let _ = answer.send(refused.map_or(Ok(()), Err));
                }
            }
            Effect::Forget(range) => {
                self.kept.remove(&range);
            }
            Effect::AnswerHolds { id, answer } => {
                if let Some(question) = self.questions.remove(&id) {
                    let _ = question.send(answer);
                }
            }
            Effect::AskHolds {
                inquiry,
                to,
                address,
                ranges,
            } => {
                let peers = Arc::clone(&self.peers);
                self.spawn(ctx, async move {
                    let result = peers.holds(&to, &address, &ranges).await.map_err(|error| {
                        if ranges.is_empty() {
                            tracing::warn!(peer = %to, address, error, "a peer does not answer: no range is moved to it");
                        } else {
                            tracing::warn!(peer = %to, error, "could not ask a peer which ranges it holds");
                        }
                        NoAnswer
                    });
                    Input::HoldsAnswered { inquiry, from: to, result }
                });
            }
            Effect::Happened(happening) => {
                log(&happening, self.core.held().count());
                let _ = self.shared.happenings.send(happening);
            }
            Effect::Fatal(fatal) => {
                self.shared.fatal.send_replace(Some(fatal));
            }
        }
    }

    /// Writes a Lease once there is a place for the request. If the fence has closed while it was waited for,
    /// `unanswered` is what came of it: it is tried again when the fence is open.
    fn write<T: 'static>(
        &self,
        ctx: &mut Context<Self>,
        write: impl AsyncFnOnce(Leases) -> T + 'static,
        unanswered: T,
        input: impl FnOnce(T) -> Input + 'static,
    ) {
        let (leases, writes) = (self.leases.clone(), Arc::clone(&self.writes));
        let fence = Arc::clone(&self.fence);
        self.spawn(ctx, async move {
            let permit = writes.acquire_owned().await;
            let result = match permit {
                Ok(_permit) if fence.is_renewed() => write(leases).await,
                _ => unanswered,
            };
            input(result)
        });
    }

    fn read_replicas(&self, ctx: &mut Context<Self>) {
        let (leases, fence) = (self.leases.clone(), Arc::clone(&self.fence));
        self.spawn(ctx, async move {
            let started = fence.now();
            match leases.list(Kind::Replica, leases.deadline()).await {
                Ok(listed) => Input::Replicas {
                    started,
                    version: listed.version,
                    leases: listed.replicas,
                },
                Err(error) => {
                    tracing::warn!(%error, "listing the replica Leases failed");
                    Input::ReplicasFailed
                }
            }
        });
    }

    fn read_ranges(&self, ctx: &mut Context<Self>) {
        let (leases, fence) = (self.leases.clone(), Arc::clone(&self.fence));
        self.spawn(ctx, async move {
            let started = fence.now();
            match leases.list(Kind::Range, RANGES_DEADLINE).await {
                Ok(listed) => Input::Ranges {
                    started,
                    version: listed.version,
                    leases: listed.ranges,
                },
                Err(error) => {
                    tracing::warn!(%error, "listing the range Leases failed");
                    Input::RangesFailed
                }
            }
        });
    }

    fn read_range(&self, range: RangeId, ctx: &mut Context<Self>) {
        let leases = self.leases.clone();
        self.spawn(ctx, async move {
            match leases.range(range).await {
                Ok(Some(lease)) => Input::Range(lease),
                Ok(None) => Input::Tick,
                Err(error) => {
                    tracing::debug!(range, %error, "reading a range Lease failed; the watch will bring it");
                    Input::Tick
                }
            }
        });
    }

    fn freeze(
        &self,
        range: RangeId,
        epoch: Epoch,
        budget: Duration,
        force: bool,
        ctx: &mut Context<Self>,
    ) {
        let frozen = self.host.freeze(range, budget, force);
        let frozen = async move { tokio::time::timeout(budget + FREEZE_GRACE, frozen).await };
        ctx.spawn(frozen.into_actor(self).map(move |frozen, actor, ctx| {
            let busy = match frozen {
                Ok(Frozen::Still(state)) => {
                    actor.frozen.insert(range, state);
                    false
                }
                Ok(Frozen::Busy { keys, state }) if force => {
                    tracing::warn!(
                        range,
                        ?keys,
                        "handed over with writes under way; the next owner proves freshness"
                    );
                    actor.frozen.insert(range, state);
                    false
                }
                Ok(Frozen::Busy { keys, .. }) => {
                    tracing::info!(range, ?keys, "not handed over now: writes are under way");
                    true
                }
                Err(_) => {
                    tracing::error!(range, "the node has not answered a freeze");
                    actor.host.resume(range);
                    true
                }
            };
            actor.feed([Input::Frozen { range, epoch, busy }], ctx);
        }));
    }

    fn send(
        &mut self,
        to: Holder,
        address: String,
        what @ (range, _, attempt): (RangeId, Epoch, u64),
        ctx: &mut Context<Self>,
    ) {
        let (peers, own) = (Arc::clone(&self.peers), self.own());
        let Some(state) = self.frozen.remove(&range) else {
            let result = Err(NotSent::Refused("nothing was frozen".to_owned()));
            return self.feed(
                [Input::Sent {
                    range,
                    attempt,
                    result,
                }],
                ctx,
            );
        };
        self.spawn(ctx, async move {
            let result = peers
                .handoff(&own.incarnation, &to, &address, what, state)
                .await;
            Input::Sent {
                range,
                attempt,
                result,
            }
        });
    }

    fn ask_until_ready(&mut self, ctx: &mut Context<Self>) {
        if self.host.ready() {
            self.feed([Input::HostReady(true)], ctx);
        } else {
            ctx.run_later(READY_PERIOD, Self::ask_until_ready);
        }
    }

    /// The own Lease is to say whether each write carries its incarnation.
    fn follow_the_server_fence(&mut self, ctx: &mut Context<Self>) {
        let mut wanted = self.barrier.announcements();
        let fenced = *wanted.borrow_and_update();
        self.feed([Input::ServerFenced(fenced)], ctx);
        self.follow_announcements(wanted, ctx);
    }

    fn follow_announcements(&mut self, mut wanted: watch::Receiver<bool>, ctx: &mut Context<Self>) {
        let next = async move {
            let changed = wanted.changed().await.is_ok();
            let fenced = *wanted.borrow_and_update();
            changed.then_some((fenced, wanted))
        };
        ctx.spawn(next.into_actor(self).then(|next, actor, ctx| {
            if let Some((fenced, wanted)) = next {
                actor.feed([Input::ServerFenced(fenced)], ctx);
                actor.follow_announcements(wanted, ctx);
            }
            fut::ready(())
        }));
    }

    fn follow_the_renewal(&mut self, ctx: &mut Context<Self>) {
        let mut own = self.renewal.own.clone();
        let next = async move {
            own.changed()
                .await
                .is_ok()
                .then(|| own.borrow_and_update().clone())
        };
        ctx.spawn(next.into_actor(self).then(|own, actor, ctx| {
            if let Some(own) = own {
                // The receiver in `renewal` still counts the change as unseen; this one was seen.
                actor.renewal.own.mark_unchanged();
                actor.feed([Input::Own(own)], ctx);
                actor.follow_the_renewal(ctx);
            }
            fut::ready(())
        }));
    }

    /// Nothing is owned before the fleet holds the manager's Lease, where it must.
    fn follow_the_hold(&mut self, ctx: &mut Context<Self>) {
        if let Some(mut hold) = self.renewal.hold.clone() {
            let now = input_of(&hold.borrow_and_update().hold);
            self.feed([now], ctx);
            self.follow_hold(hold, ctx);
        }
    }

    fn follow_hold(&mut self, mut hold: watch::Receiver<HoldState>, ctx: &mut Context<Self>) {
        let before = input_of(&hold.borrow().hold);
        let next = async move {
            // Each renewal changes it, and most of them change nothing here.
            while hold.changed().await.is_ok() {
                let now = input_of(&hold.borrow_and_update().hold);
                if now != before {
                    return Some((now, hold));
                }
            }
            None
        };
        ctx.spawn(next.into_actor(self).then(|next, actor, ctx| {
            if let Some((now, hold)) = next {
                actor.feed([now], ctx);
                actor.follow_hold(hold, ctx);
            }
            fut::ready(())
        }));
    }
}

fn input_of(hold: &Hold) -> Input {
    Input::Hold {
        term: hold.term,
        fresh: hold.open_until.is_some(),
        other: match &hold.holds {
            Holds::Other(holder) => Some(holder.clone()),
            Holds::Unknown | Holds::Nobody | Holds::Fleet => None,
        },
    }
}

impl Actor for Coordinator {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        ctx.set_mailbox_capacity(MAILBOX);
        self.ask_until_ready(ctx);
        self.follow_the_renewal(ctx);
        self.follow_the_server_fence(ctx);
        self.follow_the_hold(ctx);
        self.feed([Input::Own(self.own())], ctx);
    }
}

impl Handler<Beat> for Coordinator {
    type Result = ();

    fn handle(&mut self, _: Beat, _: &mut Context<Self>) {
        self.fence.coordinating.beat();
    }
}

impl Handler<Feed> for Coordinator {
    type Result = ();

    fn handle(&mut self, Feed(inputs): Feed, ctx: &mut Context<Self>) {
        self.feed(inputs, ctx);
    }
}

impl Handler<Flush> for Coordinator {
    type Result = ();

    fn handle(&mut self, _: Flush, ctx: &mut Context<Self>) {
        self.decide(ctx);
    }
}

impl Handler<Offered> for Coordinator {
    type Result = ();

    fn handle(&mut self, message: Offered, ctx: &mut Context<Self>) {
        let Offered {
            mut offer,
            state,
            bytes,
            answer,
            full,
        } = message;
        let kept: usize = self.kept.values().map(|(_, bytes)| bytes).sum();
        let waiting: usize = self.offers.values().map(|(_, bytes, _)| bytes).sum();
        if kept + waiting + bytes > KEPT_BYTES_MAX {
            let _ = full.send(());
            return;
        }
        self.next_id += 1;
        offer.id = self.next_id;
        self.offers.insert(offer.id, (state, bytes, answer));
        self.feed([Input::Offered(offer)], ctx);
    }
}

impl Handler<Asked> for Coordinator {
    type Result = ();

    fn handle(&mut self, Asked { ranges, answer }: Asked, ctx: &mut Context<Self>) {
        self.next_id += 1;
        self.questions.insert(self.next_id, answer);
        self.feed(
            [Input::HoldsAsked {
                id: self.next_id,
                ranges,
            }],
            ctx,
        );
    }
}

/// One line for what an operator should know, none at the default level for what is every day.
fn log(happening: &Happening, held: usize) {
    match happening {
        Happening::Fenced => tracing::warn!(ranges = held, "{happening}"),
        Happening::SelfEvicted { .. }
        | Happening::Evicted { .. }
        | Happening::FalseProof { .. }
        | Happening::Deprived { .. }
        | Happening::Damaged { .. }
        | Happening::Doubtful { .. }
        | Happening::BadPlan { .. }
        | Happening::MovesGivenUp { .. }
        | Happening::Dropped { .. } => tracing::warn!("{happening}"),
        Happening::Joined { .. }
        | Happening::Reopened { .. }
        | Happening::Holds
        | Happening::Planned { .. } => {
            tracing::info!("{happening}");
        }
        // Whose the Lease is was said already.
        Happening::Standby { ranges, .. } if !ranges.is_empty() => tracing::warn!("{happening}"),
        Happening::Standby { .. }
        | Happening::TookOver { .. }
        | Happening::Received { .. }
        | Happening::HandedOver { .. }
        | Happening::Relinquished { .. }
        | Happening::HandoffFailed { .. } => {
            tracing::debug!("{happening}");
        }
    }
}
