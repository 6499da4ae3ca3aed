//! One owned range: the queues, marks and memory of all controllers for its keys. A thin shell: the queue is
//! pure, a reconcile is a function, and this actor only says when.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use actix::{
    Actor, ActorContext, ActorFutureExt, AsyncContext, Context, Handler, Message, MessageResult,
    SpawnHandle, WrapFuture,
};
use controllers_kit::{
    Event, EventType, Key, Memory, ObjectRef, Resource, SignedDuration, Standing, Str, Timestamp,
};
use coordinator::{Care, Frozen, Gained, Suspicion, Work};
use futures::{
    FutureExt,
    future::{self, BoxFuture},
};
use inspect::Attempt;
use peer_proto::{ControllerState, KeyState, RangeState};
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::{
    arbiters,
    attempts::ATTEMPTS_MAX,
    gate::{Gate, Stopped},
    heat::{Heat, Rate},
    quarantine::{self, Isolation, PASS_SPACING, Verdict},
    queue::{self, Monotonic, Place, Priority, Queue, Taken},
    reconcile::{Done, Job, Mark, Next, ReportFrom, Trouble, reconcile_with},
    server::Sender,
    shared::{Inbox, Origin, RangeStats, Shared, Unit},
    steer::{SPEAKER, in_force::Change, waiting::Waiting},
    trace::{self, Woken},
};

/// Status reports of one key are at least this far apart; the last one is always written.
pub const REPORT_SPACING: Duration = Duration::from_millis(200);
/// The same of how far something has come, and of a key that continues reporting, after [`REPORTS_DENSE`]:
/// what happens to many need not be reported each time. Still within half a second.
pub const REPORT_SPACING_STEADY: Duration = Duration::from_millis(450);
/// This many reports in a row are [`REPORT_SPACING`] apart: what happens to few is reported each time.
pub const REPORTS_DENSE: u32 = 5;
/// A key that could have reported for so long and has not begins a new row.
const REPORTS_QUIET: Duration = Duration::from_secs(1);
/// By how much longer a spaced key waits for each further report that its last plan wrote: upstream writes
/// such one after the other, which takes longer the more there are.
const REPORT_SPACING_EACH: Duration = Duration::from_millis(20);
/// The same where its plan is expensive: the wait then counts from the plan's beginning.
const REPORT_SPACING_EACH_EXPENSIVE: Duration = Duration::from_millis(50);
/// What a spaced key waits at most: what it reports must be known within a second.
const REPORT_SPACING_MAX: Duration = Duration::from_millis(700);

/// When a key that has reported may report again: `row` counts the reports of its row, `written` is what its
/// plan wrote, `objects` what it examined, `began` its beginning and `now` its end. What an expensive plan
/// of a spaced key and its writes take is part of the wait; otherwise the next one would come later by both
/// where the server is slow.
pub(super) fn report_from(
    min_sync_interval: Option<Duration>,
    row: u32,
    written: u64,
    objects: usize,
    (began, now): (Monotonic, Monotonic),
) -> ReportFrom {
    if min_sync_interval.is_none() {
        let dense = match row > REPORTS_DENSE {
            true => REPORT_SPACING_STEADY,
            false => REPORT_SPACING,
        };
        return ReportFrom {
            seen: now + dense,
            underway: now + REPORT_SPACING_STEADY,
        };
    }
    let more = u32::try_from(written.saturating_sub(1)).unwrap_or(u32::MAX);
    let spacing = plan_spacing(min_sync_interval, objects);
    let (from, least, each) = match spacing.is_zero() {
        true => (now, REPORT_SPACING, REPORT_SPACING_EACH),
        false => (
            began,
            REPORT_SPACING.max(spacing),
            REPORT_SPACING_EACH_EXPENSIVE,
        ),
    };
    let wait = each.saturating_mul(more).saturating_add(least);
    let from = from + wait.min(REPORT_SPACING_MAX);
    ReportFrom {
        seen: from,
        underway: from,
    }
}
/// How long after a plan began the next one of its key begins, for each object that was examined: what a
/// plan costs grows with them, and in a Job of thousands of pods each of them changes several times. Upstream
/// holds back what pods report to a Job for a second.
const PLAN_SPACING_EACH: Duration = Duration::from_micros(250);
/// Plans that examine fewer objects are cheap enough to follow each other at once.
const PLAN_SPACING_FROM: usize = 200;
/// What a key waits so at most.
const PLAN_SPACING_MAX: Duration = Duration::from_millis(500);

/// How long after the beginning of a plan that examined this many objects its key may be planned again. Its
/// controller's bound is [`controllers_kit::Descriptor::min_sync_interval`].
pub(super) fn plan_spacing(min_sync_interval: Option<Duration>, objects: usize) -> Duration {
    if objects < PLAN_SPACING_FROM {
        return Duration::ZERO;
    }
    let objects = u32::try_from(objects).unwrap_or(u32::MAX);
    PLAN_SPACING_EACH
        .saturating_mul(objects)
        .min(min_sync_interval.unwrap_or(PLAN_SPACING_MAX))
}
/// How often a closed fence is examined again by a range that has work.
const FENCE_POLL: Duration = Duration::from_millis(50);
/// A mark of another replica may be ahead of what this one has seen by this much: at a thousand writes a
/// second of the whole cluster that is a quarter of an hour. One further ahead is a fault of its sender, and
/// would hold its key up for as long as the object lives.
const MARK_MARGIN: u64 = 1_000_000;
/// How long a handoff waits for events that are on their way.
const EVENTS_GRACE: Duration = Duration::from_millis(50);
/// How often keys are examined of which nothing is left but marks.
const LEAVING_CHECK: Duration = Duration::from_secs(5);
/// How often it is checked whose turn has come of the quarantined keys, while any waits …
const ISOLATION_CHECK: Duration = Duration::from_secs(1);
/// … and while none does, whether they are still suspected.
const ISOLATION_CHECK_IDLE: Duration = Duration::from_secs(10);
/// The reason of the event at the object of a quarantined key.
const QUARANTINED: &str = "ReconcileQuarantined";
/// A key that waits for its marks longer than this is reported, once.
const MARKS_PATIENCE: Duration = Duration::from_secs(60);

/// What is remembered of a key between two reconciles.
#[derive(Default)]
struct Known {
    marks: Vec<Mark>,
    memory: Option<Memory>,
    /// What it counts was checked against the API server since the range was taken over.
    proven: bool,
    /// The object that it is about, too.
    head_proven: bool,
    /// The newest version of what has happened to it.
    evidence: u64,
    /// It is unknown whether a write of it happened: what it counts is checked against the API server.
    doubtful: bool,
    /// Until when a write of it may still land that was given up: what is examined before proves nothing.
    late_write_until: Monotonic,
    report_from: Option<ReportFrom>,
    /// How often it has reported in a row.
    row: u32,
    /// When it may be planned again, where its last plan was expensive.
    plan_from: Monotonic,
    last: Option<Box<Last>>,
    /// Waits for its marks; the task that waits wakes it.
    parked: bool,
    /// What has woken it since its last reconcile, where that is traced.
    woken: Option<Box<Woken>>,
    /// The object by which it was woken first since then.
    origin: Option<Box<Origin>>,
    /// Its last attempts are kept, since it fails.
    unhappy: bool,
    /// The trace of the owner before, or of the attempt that this one follows from.
    link: Option<Arc<str>>,
    /// It was reconciled since the range was gained, and nobody died of it.
    survived: bool,
}

/// The last attempt, for `/debug/explain`.
struct Last {
    at: Timestamp,
    took: Duration,
    next: Next,
    plan: Vec<String>,
    objects: usize,
    trace: Option<Arc<str>>,
    trouble: Option<Trouble>,
    waits: Option<String>,
    heat: Heat,
}

/// One controller's part of the range.
struct Lane {
    queue: Queue,
    known: HashMap<Key, Known>,
    sender: Sender,
    /// A permit is being waited for.
    asking: bool,
}

impl Lane {
    fn new(shared: &Shared, gate: &Arc<Gate>, unit: &Unit) -> Self {
        let descriptor = unit.controller.descriptor();
        Self {
            queue: Queue::new(unit.backoff),
            known: HashMap::new(),
            sender: Sender::new(&shared.replica, descriptor, Arc::clone(&unit.metrics), gate),
            asking: false,
        }
    }

    fn forget(&mut self, key: &Key) {
        self.known.remove(key);
        queue::give_back(&mut self.known);
    }
}

/// The lanes of all controllers, each made when it is first needed: most ranges have keys of few controllers.
struct Lanes {
    shared: Arc<Shared>,
    gate: Arc<Gate>,
    all: Vec<Option<Box<Lane>>>,
}

impl Lanes {
    fn new(shared: &Arc<Shared>, gate: &Arc<Gate>) -> Self {
        Self {
            shared: Arc::clone(shared),
            gate: Arc::clone(gate),
            all: shared.units.iter().map(|_| None).collect(),
        }
    }

    fn at(&mut self, lane: u16) -> &mut Lane {
        let Self { shared, gate, all } = self;
        let at = usize::from(lane);
        all[at].get_or_insert_with(|| Box::new(Lane::new(shared, gate, &shared.units[at])))
    }

    fn get(&self, lane: u16) -> Option<&Lane> {
        self.all[usize::from(lane)].as_deref()
    }

    /// Those that were made, with their places.
    fn iter(&self) -> impl Iterator<Item = (u16, &Lane)> {
        (0..)
            .zip(&self.all)
            .filter_map(|(at, lane)| Some((at, lane.as_deref()?)))
    }
}

/// The actor.
pub struct Range {
    shared: Arc<Shared>,
    gate: Arc<Gate>,
    inbox: Arc<Inbox>,
    stats: Arc<RangeStats>,
    lanes: Lanes,
    /// What the owner before had seen of what a controller reads: no key is planned on less, and one that has
    /// the range next hears of it where there was none. Bound: what all controllers read.
    horizons: HashMap<u16, Horizon>,
    /// Keys under way, by lane.
    working: Vec<(u16, Key)>,
    /// Keys to forget as soon as the cache has come to their marks: nothing may ever wake them, as when a
    /// controller's key is an object that it has deleted. Bound: what was worked on since they were read
    /// at, and what is left of it.
    leaving: Vec<(u16, Key)>,
    /// Whether they are going to be examined.
    checks_leaving: bool,
    timer: Option<(Monotonic, SpawnHandle)>,
    /// Suspected keys.
    isolation: Isolation,
    /// The quarantined key whose turn it is: nothing else begins.
    alone: Option<Alone>,
    /// Whether the isolation is going to be examined.
    checks_isolation: bool,
    /// Keys that wait for the end of a pause.
    waiting: Waiting,
    /// The orders with which they were compared last.
    compared: u64,
    /// How many of each controller wait, as the metrics say.
    waiting_counted: Vec<usize>,
    /// Quarantined keys of each controller, as the metrics say.
    quarantined: Vec<usize>,
    freezing: Option<Freezing>,
    unproven: bool,
    /// What owners before have written was written by then.
    settled: Monotonic,
}

/// What the owner before had seen for one controller.
struct Horizon {
    /// What the cache has not reached yet.
    marks: Vec<Mark>,
    /// Resolves when it has reached all of it: one wait, for however many keys.
    reached: future::Shared<BoxFuture<'static, ()>>,
}

impl Horizon {
    fn new(shared: &Arc<Shared>, controller: &'static str, marks: Vec<Mark>) -> Self {
        let (shared, awaited) = (Arc::clone(shared), marks.clone());
        let reached = async move {
            wait_for(&shared, &awaited, |mark| {
                tracing::warn!(
                    controller,
                    ?mark,
                    "the cache has not come as far as that of a range's owner before for a minute; the range's keys wait"
                );
            })
            .await;
        };
        Self {
            marks,
            reached: reached.boxed().shared(),
        }
    }
}

/// A quarantined key whose turn it is.
struct Alone {
    place: quarantine::Place,
    /// A permit of its controller is waited for, or it is being reconciled.
    begun: bool,
    /// No other quarantined key of this process has its turn meanwhile.
    _turn: OwnedSemaphorePermit,
}

struct Freezing {
    reply: oneshot::Sender<Frozen>,
    force: bool,
    deadline: SpawnHandle,
}

/// Read the inbox.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Poll;

/// Start no key, let writes in flight end, and give out all that is known.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Freeze {
    /// How long writes in flight may take.
    pub budget: Duration,
    /// Whether the state is given out even if they have not ended.
    pub force: bool,
    /// Where the answer goes.
    pub reply: oneshot::Sender<Frozen>,
}

/// The move did not happen.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Resume;

/// The range is another's.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Stop;

/// Orders of operators have changed: what, and the object that has them.
#[derive(Message, Clone)]
#[rtype(result = "()")]
pub struct Steered(pub Arc<(Vec<Change>, Option<ObjectRef>)>);

/// What is busy?
#[derive(Message)]
#[rtype(result = "Survey")]
pub struct Sample {
    /// The busiest keys that are named, at most.
    pub keys_max: usize,
    /// Keys of this namespace alone; empty for all.
    pub namespace: String,
}

/// What is busy in a range.
#[derive(Debug, Default)]
pub struct Survey {
    /// By controller's place.
    pub controllers: Vec<(u16, Busy)>,
    /// The busiest keys.
    pub keys: Vec<(u16, Key, u32, Rate)>,
}

/// How busy a controller is in a range.
#[derive(Clone, Copy, Debug, Default)]
pub struct Busy {
    /// Keys known.
    pub keys: usize,
    /// Keys that wait.
    pub queued: usize,
    /// Keys that failed when they were last reconciled.
    pub failing: usize,
    /// Of all its keys.
    pub rate: Rate,
}

/// Why does this key not move?
#[derive(Message)]
#[rtype(result = "Option<Value>")]
pub struct Explain {
    /// The controller's place in [`Shared::units`].
    pub unit: u16,
    /// The key.
    pub key: Key,
}

impl Range {
    /// For a range that was just gained.
    pub fn new(
        shared: Arc<Shared>,
        gate: Arc<Gate>,
        inbox: Arc<Inbox>,
        stats: Arc<RangeStats>,
        how: &Gained,
    ) -> Self {
        let lanes = Lanes::new(&shared, &gate);
        let mut settled = shared.clock.monotonic();
        if matches!(how, Gained::Handoff(_)) {
            // What was under way may still be in the server's hands; of the dead a lease duration has been
            // waited for.
            settled += shared.fence.late_write_max();
        }
        let mut range = Self {
            shared,
            gate,
            inbox,
            stats,
            lanes,
            horizons: HashMap::new(),
            working: Vec::new(),
            leaving: Vec::new(),
            checks_leaving: false,
            timer: None,
            isolation: Isolation::default(),
            alone: None,
            checks_isolation: false,
            waiting: Waiting::default(),
            compared: 0,
            waiting_counted: Vec::new(),
            quarantined: Vec::new(),
            freezing: None,
            unproven: matches!(how, Gained::Takeover),
            settled,
        };
        if let Gained::Handoff(state) = how {
            arbiters::hurry();
            range.restore(state);
        }
        range
    }

    fn unit(&self, lane: u16) -> &Unit {
        &self.shared.units[usize::from(lane)]
    }

    fn now(&self) -> Monotonic {
        self.shared.clock.monotonic()
    }

    fn add(&mut self, lane: u16, key: &Key, priority: Priority) {
        let now = self.now();
        if self.lanes.at(lane).queue.add(key, priority, now) {
            self.unit(lane).queue_metrics.added();
            self.unit(lane).queue_metrics.depth(1);
        }
    }

    fn read_inbox(&mut self) {
        for wake in self.inbox.drain() {
            self.add(wake.unit, &wake.key, wake.priority);
            let known = &mut self.lanes.at(wake.unit).known;
            let known = known.entry(wake.key).or_default();
            known.evidence = wake.evidence.max(known.evidence);
            if known.origin.is_none() {
                known.origin = wake.origin;
            }
            if let Some(more) = wake.woken {
                match &mut known.woken {
                    Some(known) => known.merge(*more),
                    none => *none = Some(more),
                }
            }
        }
    }

    /// After anything has happened: start what can be started, set the timer, keep the figures.
    fn proceed(&mut self, ctx: &mut Context<Self>) {
        self.read_inbox();
        self.end_pauses();
        for lane in 0..self.lanes.all.len() {
            self.dispatch(u16::try_from(lane).expect("there are few controllers"), ctx);
        }
        self.isolate(ctx);
        self.set_timer(ctx);
        if !self.leaving.is_empty() && !self.checks_leaving {
            self.checks_leaving = true;
            ctx.run_later(LEAVING_CHECK, |range, ctx| {
                range.checks_leaving = false;
                range.let_go();
                range.proceed(ctx);
            });
        }
        let queued = self.lanes.iter().map(|(_, lane)| lane.queue.depth()).sum();
        self.stats.queued.store(queued, Ordering::Relaxed);
        let keys = self.lanes.iter().map(|(_, lane)| lane.known.len()).sum();
        self.stats.keys.store(keys, Ordering::Relaxed);
        self.answer_freeze_if_still(ctx);
    }

    /// Asks for a permit to work where keys wait. One at a time: one that gets it takes the most urgent key
    /// then.
    fn dispatch(&mut self, lane: u16, ctx: &mut Context<Self>) {
        // Most controllers have nothing to do at a time.
        if self
            .lanes
            .get(lane)
            .is_none_or(|lane| lane.queue.is_at_rest())
        {
            return;
        }
        if self.gate.is_frozen()
            || self.alone.is_some()
            || !self.unit(lane).ready.load(Ordering::Acquire)
        {
            return;
        }
        let now = self.now();
        let part = self.lanes.at(lane);
        let before = part.queue.depth();
        part.queue.ripen(now);
        let ripened = part.queue.depth() - before;
        let idle = part.queue.depth() == 0 || part.asking;
        for _ in 0..ripened {
            self.unit(lane).queue_metrics.added();
        }
        self.unit(lane)
            .queue_metrics
            .depth(i64::try_from(ripened).unwrap_or(i64::MAX));
        if idle {
            return;
        }
        if self.gate.admit() == Err(Stopped::Fenced) {
            // The queue is kept; it continues when the fence is open again, or is dropped with the range.
            self.lanes.at(lane).asking = true;
            ctx.run_later(FENCE_POLL, move |range, ctx| {
                range.lanes.at(lane).asking = false;
                range.proceed(ctx);
            });
            return;
        }
        self.lanes.at(lane).asking = true;
        let workers = Arc::clone(&self.unit(lane).workers);
        ctx.spawn(
            workers
                .acquire()
                .into_actor(self)
                .map(move |permit, range, ctx| {
                    range.lanes.at(lane).asking = false;
                    if let Some(permit) = permit {
                        range.start_one(lane, permit, ctx);
                    }
                    range.proceed(ctx);
                }),
        );
    }

    /// Takes the most urgent key whose marks the cache has reached.
    fn start_one(&mut self, lane: u16, permit: OwnedSemaphorePermit, ctx: &mut Context<Self>) {
        if self.gate.admit().is_err() || self.alone.is_some() {
            return;
        }
        let now = self.now();
        let care = match self
            .shared
            .watchlist
            .list()
            .careful
            .contains(&self.gate.range)
        {
            true => Care::Announced,
            false => Care::None,
        };
        let mut permit = Some(permit);
        while let Some(taken) = self.lanes.at(lane).queue.take(now) {
            self.unit(lane).queue_metrics.depth(-1);
            if self.pauses(lane, &taken, now) || self.holds_back(lane, &taken.key, now) {
                self.lanes.at(lane).queue.done(&taken.key);
            } else if self.start(lane, taken, care, &mut permit, ctx) {
                return;
            }
        }
    }

    /// Starts a key that was taken from its queue, unless it has to wait for its marks or its time; whether
    /// it has begun.
    fn start(
        &mut self,
        lane: u16,
        taken: Taken,
        care: Care,
        permit: &mut Option<OwnedSemaphorePermit>,
        ctx: &mut Context<Self>,
    ) -> bool {
        let now = self.now();
        let shared = Arc::clone(&self.shared);
        let part = self.lanes.at(lane);
        let known = part.known.entry(taken.key.clone()).or_default();
        if known.parked {
            // The task that waits for its marks wakes it.
            part.queue.done(&taken.key);
            return false;
        }
        // One that takes the range next announces it again: a change that makes it kill costs one more death.
        let care = match care {
            Care::Announced if known.survived => Care::None,
            care => care,
        };
        let descriptor = shared.units[usize::from(lane)].controller.descriptor();
        let spaced = known
            .report_from
            .filter(|_| descriptor.min_sync_interval.is_some());
        let from = spaced
            .unwrap_or_default()
            .seen
            .max(known.late_write_until)
            .max(known.plan_from);
        if now < from {
            part.queue.done(&taken.key);
            part.queue.add_at(&taken.key, from);
            return false;
        }
        known.marks.retain(|mark| !reached(&shared, mark));
        let marks = known.marks.clone();
        if let Some(horizon) = self.horizons.get_mut(&lane) {
            horizon.marks.retain(|mark| !reached(&shared, mark));
            if horizon.marks.is_empty() {
                self.horizons.remove(&lane);
            }
        }
        let horizon = self
            .horizons
            .get(&lane)
            .map(|horizon| horizon.reached.clone());
        if !marks.is_empty() || horizon.is_some() {
            known.parked = true;
            if shared.traces.is_some() {
                known.woken.get_or_insert_default().park(taken.waited);
            }
            part.queue.done(&taken.key);
            self.park(lane, taken.key, marks, horizon, taken.priority, ctx);
            return false;
        }
        let failures = match shared.traces {
            Some(_) => part.queue.failures(&taken.key),
            None => 0,
        };
        let memory = known
            .memory
            .take()
            .unwrap_or_else(|| shared.units[usize::from(lane)].controller.new_memory());
        let job = Job {
            unit: lane,
            key: taken.key.clone(),
            memory,
            sender: part.sender.clone(),
            unproven: known.doubtful || (self.unproven && !known.proven),
            head_unproven: self.unproven && !known.head_proven,
            settled: (!known.doubtful).then_some(self.settled),
            evidence: known.evidence,
            report_from: known.report_from.unwrap_or_default(),
            waited: taken.waited,
            low_priority: taken.priority == Priority::Low,
            failures,
            woken: known.woken.take(),
            link: known.link.take(),
            is_first: !known.survived,
            origin: known.origin.take(),
            permit: permit.take(),
        };
        self.working.push((lane, taken.key));
        ctx.spawn(reconcile_with(shared, job, care).into_actor(self).map(
            move |done, range, ctx| {
                range.finished(done);
                range.proceed(ctx);
            },
        ));
        true
    }

    /// Whether a key that was taken from its queue is paused: it waits for the end of the pause then.
    fn pauses(&mut self, lane: u16, taken: &Taken, now: Monotonic) -> bool {
        let shared = Arc::clone(&self.shared);
        if shared.steering.in_force().pause(lane, &taken.key).is_none() {
            return false;
        }
        let since = now.saturating_sub(taken.waited);
        if self.waiting.put(lane, taken.key.clone(), since) {
            return true;
        }
        self.stats.unscanned.insert(lane);
        // The pause may have ended since it was asked for, and the controller been scanned before this range
        // had noted that it must be.
        shared.steering.in_force().pause(lane, &taken.key).is_some()
    }

    /// Enqueues the keys that are paused no more, where the orders have changed.
    fn end_pauses(&mut self) {
        let shared = Arc::clone(&self.shared);
        let in_force = shared.steering.in_force();
        if self.compared != in_force.generation {
            self.compared = in_force.generation;
            let is_paused = |lane: u16, key: &Key| in_force.pause(lane, key).is_some();
            for (lane, key) in self.waiting.take(is_paused) {
                self.add(lane, &key, Priority::High);
            }
        }
        if self.waiting.is_empty() && self.waiting_counted.is_empty() {
            return;
        }
        self.count_waiting();
    }

    /// Has metrics say how many keys wait for the end of a pause.
    fn count_waiting(&mut self) {
        self.waiting_counted.resize(self.shared.units.len(), 0);
        for (unit, counted) in self.shared.units.iter().zip(&mut self.waiting_counted) {
            let count = self.waiting.count(unit.index);
            if count != *counted {
                let more = i64::try_from(count).unwrap_or(0) - i64::try_from(*counted).unwrap_or(0);
                unit.metrics.paused_waiting(more);
                match count > *counted {
                    true => unit.paused.fetch_add(count - *counted, Ordering::Relaxed),
                    false => unit.paused.fetch_sub(*counted - count, Ordering::Relaxed),
                };
                *counted = count;
            }
        }
        if self.waiting.is_empty() {
            self.waiting_counted = Vec::new();
        }
    }

    /// Says at an object, or at the one that has the orders, which order about it has changed.
    fn record_order(&mut self, change: &Change, orders: Option<&ObjectRef>) {
        let shared = Arc::clone(&self.shared);
        let (controller, key) = match &change.order.target {
            steering::Target::Controller(controller)
            | steering::Target::Setting { controller, .. } => (controller, None),
            steering::Target::Key { controller, key } => (controller, Some(Key::parse(key))),
            steering::Target::Replica(_) => return,
        };
        let Some(unit) = shared.units.iter().find(|unit| unit.name() == controller) else {
            return;
        };
        let range = key
            .as_ref()
            .map_or(SPEAKER, |key| shared.range_of(unit, key));
        if range != self.gate.range {
            return;
        }
        let own = key.as_ref().and_then(|key| object_of(&shared, unit, key));
        let Some(about) = own.or_else(|| orders.cloned()) else {
            return;
        };
        let (reason, message) = change.event();
        let event = Event {
            about,
            r#type: EventType::Normal,
            reason: Str::interned(reason),
            message,
        };
        let sender = self.lanes.at(unit.index).sender.as_replica();
        shared.writer.record(&sender, &event);
    }

    /// Whether a key that was taken from its queue is quarantined: it waits for its turn then.
    fn holds_back(&mut self, lane: u16, key: &Key, now: Monotonic) -> bool {
        let shared = Arc::clone(&self.shared);
        let list = shared.watchlist.list();
        if list.keys.is_empty() && self.isolation.is_empty() {
            return false;
        }
        let unit = &shared.units[usize::from(lane)];
        let suspicion = list.keys.get(&Work::name(unit.name(), key)).copied();
        let version = version_of(&shared, unit, key);
        let place = (lane, key.clone());
        let verdict = self.isolation.judge(&place, suspicion, version, now);
        if let (Verdict::HeldBack { first: true }, Some(suspicion)) = (verdict, suspicion) {
            self.report_quarantine(lane, key, suspicion);
        }
        verdict != Verdict::Free
    }

    fn report_quarantine(&mut self, lane: u16, key: &Key, suspicion: Suspicion) {
        let shared = Arc::clone(&self.shared);
        let unit = &shared.units[usize::from(lane)];
        let Suspicion { deaths, alone, .. } = suspicion;
        let held_back = quarantine::hold_back(alone);
        tracing::warn!(
            controller = unit.name(),
            %key,
            deaths,
            alone,
            held_back_seconds = held_back,
            "a key is quarantined, since replicas died while they reconciled it: it is reconciled alone and last"
        );
        let Some(about) = object_of(&shared, unit, key) else {
            return;
        };
        let event = Event {
            about,
            r#type: EventType::Warning,
            reason: Str::interned(QUARANTINED),
            message: format!(
                "{deaths} replicas ended while they reconciled this object; {} reconciles it alone, after all others{}",
                unit.name(),
                match held_back {
                    0 => String::new(),
                    seconds => format!(", {seconds}s after the last of them or when it changes"),
                }
            ),
        };
        let sender = self.lanes.at(lane).sender.as_replica();
        shared.writer.record(&sender, &event);
    }

    /// Gives a quarantined key its turn when it has come, and lets go those that are suspected no more.
    fn isolate(&mut self, ctx: &mut Context<Self>) {
        if self.isolation.is_empty() {
            if self.stats.quarantined.load(Ordering::Relaxed) > 0 {
                self.count_quarantined();
            }
            return;
        }
        let shared = Arc::clone(&self.shared);
        let list = shared.watchlist.list();
        let unit = |lane: u16| &shared.units[usize::from(lane)];
        let free = self.isolation.review(|(lane, key)| {
            let name = Work::name(unit(*lane).name(), key);
            list.keys.get(&name).copied()
        });
        for (lane, key) in free {
            tracing::info!(controller = unit(lane).name(), %key, "a key is quarantined no more: the deaths are long ago");
            self.add(lane, &key, Priority::Low);
            self.dispatch(lane, ctx);
        }
        if self.alone.is_none() && self.gate.admit().is_ok() {
            let quiet = self.working.is_empty()
                && self.lanes.iter().all(|(_, lane)| lane.queue.depth() == 0);
            let at = (shared.clock.now().as_second(), self.now());
            let in_force = shared.steering.in_force();
            let is_free = |(lane, key): &quarantine::Place| in_force.pause(*lane, key).is_none();
            let next = self.isolation.next(at, quiet, is_free, |(lane, key)| {
                version_of(&shared, unit(*lane), key)
            });
            let turn = Arc::clone(&shared.watchlist.alone);
            if let Some(place) = next
                && unit(place.0).ready.load(Ordering::Acquire)
                && let Ok(turn) = turn.try_acquire_owned()
            {
                self.alone = Some(Alone {
                    place,
                    begun: false,
                    _turn: turn,
                });
            }
        }
        self.begin_alone(ctx);
        self.count_quarantined();
        if !self.checks_isolation && !self.isolation.is_empty() {
            self.checks_isolation = true;
            let pause = match self.isolation.has_waiting() {
                true => ISOLATION_CHECK,
                false => ISOLATION_CHECK_IDLE,
            };
            ctx.run_later(pause, |range, ctx| {
                range.checks_isolation = false;
                range.proceed(ctx);
            });
        }
    }

    /// Begins with the key whose turn it is, once nothing else of the range is in flight.
    fn begin_alone(&mut self, ctx: &mut Context<Self>) {
        let still = self.working.is_empty();
        let Some(alone) = self.alone.as_mut().filter(|alone| still && !alone.begun) else {
            return;
        };
        alone.begun = true;
        let (lane, key) = alone.place.clone();
        let workers = Arc::clone(&self.unit(lane).workers);
        ctx.spawn(
            workers
                .acquire()
                .into_actor(self)
                .map(move |permit, range, ctx| {
                    let begun = permit.is_some_and(|permit| {
                        range.gate.admit().is_ok() && range.start_alone(lane, &key, permit, ctx)
                    });
                    if !begun {
                        range.alone = None;
                    }
                    range.proceed(ctx);
                }),
        );
    }

    fn start_alone(
        &mut self,
        lane: u16,
        key: &Key,
        permit: OwnedSemaphorePermit,
        ctx: &mut Context<Self>,
    ) -> bool {
        let place = (lane, key.clone());
        let now = self.now();
        let Some(taken) = self.isolation.take(&place, now) else {
            return false;
        };
        if self.lanes.at(lane).queue.start(key) {
            self.unit(lane).queue_metrics.depth(-1);
        }
        tracing::info!(controller = self.unit(lane).name(), %key, "a quarantined key has its turn");
        self.start(lane, taken, Care::Alone, &mut Some(permit), ctx)
    }

    /// A key was reconciled alone.
    fn finished_alone(&mut self, stopped: bool) {
        let Some(Alone { place, .. }) = self.alone.take() else {
            return;
        };
        let now = self.now();
        if stopped {
            return;
        }
        let (lane, key) = &place;
        if self.isolation.passed(&place) {
            tracing::info!(
                controller = self.unit(*lane).name(),
                %key,
                "a key is quarantined no more: it was reconciled alone and nobody died"
            );
        } else {
            self.lanes.at(*lane).queue.add_at(key, now + PASS_SPACING);
        }
    }

    /// Has metrics say how many keys are quarantined.
    fn count_quarantined(&mut self) {
        let all = self.isolation.count(None);
        self.stats.quarantined.store(all, Ordering::Relaxed);
        self.quarantined.resize(self.shared.units.len(), 0);
        for (lane, reported) in (0..).zip(&mut self.quarantined) {
            let count = match all {
                0 => 0,
                _ => self.isolation.count(Some(lane)),
            };
            if count != *reported {
                let more =
                    i64::try_from(count).unwrap_or(0) - i64::try_from(*reported).unwrap_or(0);
                self.shared.units[usize::from(lane)]
                    .metrics
                    .quarantined(more);
                *reported = count;
            }
        }
    }

    /// Leaves a key alone until the cache has reached its marks and the horizon of its controller.
    fn park(
        &mut self,
        lane: u16,
        key: Key,
        marks: Vec<Mark>,
        horizon: Option<future::Shared<BoxFuture<'static, ()>>>,
        priority: Priority,
        ctx: &mut Context<Self>,
    ) {
        let shared = Arc::clone(&self.shared);
        ctx.spawn(
            async move {
                wait_for(&shared, &marks, |mark| {
                    tracing::warn!(
                        controller = shared.units[usize::from(lane)].name(),
                        %key,
                        ?mark,
                        "the cache has not seen this replica's own write for a minute; the key waits"
                    );
                })
                .await;
                if let Some(horizon) = horizon {
                    horizon.await;
                }
                key
            }
            .into_actor(self)
            .map(move |key, range, ctx| {
                if let Some(known) = range.lanes.at(lane).known.get_mut(&key) {
                    known.parked = false;
                    if let Some(woken) = &mut known.woken {
                        woken.unpark();
                    }
                }
                range.add(lane, &key, priority);
                range.proceed(ctx);
            }),
        );
    }

    // A function of its own in each build: suites have a thread panic where it is entered.
    #[inline(never)]
    fn finished(&mut self, mut done: Done) {
        let now = self.now();
        self.working
            .retain(|(lane, key)| *lane != done.unit || *key != done.key);
        self.stats.reconciles.fetch_add(1, Ordering::Relaxed);
        self.shared.writes.fetch_add(done.writes, Ordering::Relaxed);
        let shared = Arc::clone(&self.shared);
        let unit = &shared.units[usize::from(done.unit)];
        let part = self.lanes.at(done.unit);
        let known = part.known.entry(done.key.clone()).or_default();
        known.marks.append(&mut done.marks);
        known.doubtful = done.doubtful || (known.doubtful && !done.proven);
        if done.late_write {
            known.late_write_until = now + shared.fence.late_write_max();
        }
        known.survived |= !matches!(done.next, Next::Stopped(_));
        known.proven |= done.proven;
        known.head_proven |= done.head_proven;
        let min_sync_interval = unit.controller.descriptor().min_sync_interval;
        if done.reported {
            known.row = match known.report_from {
                Some(from) if now < from.seen + REPORTS_QUIET => known.row.saturating_add(1),
                _ => 1,
            };
            known.report_from = Some(report_from(
                min_sync_interval,
                known.row,
                done.writes,
                done.objects,
                (done.since, now),
            ));
        }
        let stopped = matches!(done.next, Next::Stopped(_));
        if !stopped && !matches!(done.next, Next::Now | Next::Replan) {
            known.plan_from = done.since + plan_spacing(min_sync_interval, done.objects);
        }
        // What follows from this attempt, and from no change, is linked to it.
        if stopped || matches!(done.next, Next::Now | Next::Replan | Next::Backoff { .. }) {
            known.link.clone_from(&done.trace);
        }
        match &done.next {
            Next::Change => part.queue.forget(&done.key),
            Next::After(delay) => {
                part.queue.forget(&done.key);
                part.queue.add_at(&done.key, now + *delay);
            }
            Next::Postponed(delay) => part.queue.add_at(&done.key, now + *delay),
            Next::Now | Next::Replan | Next::Stopped(_) => {
                if done.next == Next::Now {
                    part.queue.forget(&done.key);
                }
                part.queue.add(&done.key, Priority::High, now);
                unit.queue_metrics.added();
            }
            Next::Backoff { error, .. } => {
                match error {
                    true => part.queue.add_after_failure(&done.key, now),
                    false => part.queue.add_after_conflict(&done.key, now),
                };
                unit.queue_metrics.retried();
            }
        }
        let before = part.queue.depth();
        part.queue.done(&done.key);
        let waits = part.queue.depth() - before;
        unit.queue_metrics.depth(i64::try_from(waits).unwrap_or(0));

        let own = |alone: &Alone| alone.place.0 == done.unit && alone.place.1 == done.key;
        if self.alone.as_ref().is_some_and(own) {
            self.finished_alone(stopped);
        }
        self.note_attempt(&done, now);
        let part = self.lanes.at(done.unit);
        let known = part.known.entry(done.key.clone()).or_default();

        let fresh = unit.controller.is_fresh(&done.memory);
        // The object is gone and nothing is left to do or to remember, but for what the cache has still to
        // see.
        if fresh && !part.queue.knows(&done.key) && is_gone(&shared, unit, &done.key) {
            known.marks.retain(|mark| !reached(&shared, mark));
            if known.marks.is_empty() {
                part.forget(&done.key);
                return;
            }
            self.leaving.push((done.unit, done.key));
        }
        known.memory = (!fresh).then_some(done.memory);
        let mut heat = known
            .last
            .take()
            .map_or_else(Heat::default, |last| last.heat);
        heat.add(now, done.took);
        known.last = Some(Box::new(Last {
            trouble: done.trouble,
            waits: done.waits,
            heat,
            at: done.began,
            took: done.took,
            next: done.next,
            plan: done.plan,
            objects: done.objects,
            trace: done.trace,
        }));
    }

    /// Keeps an attempt of a key that fails, and the one by which it recovers.
    fn note_attempt(&mut self, done: &Done, now: Monotonic) {
        let part = self.lanes.at(done.unit);
        let known = part.known.entry(done.key.clone()).or_default();
        // What was given up, dropped or put off says nothing of what failed before.
        let is_over = !matches!(
            done.next,
            Next::Stopped(_) | Next::Replan | Next::Postponed(_)
        );
        if done.trouble.is_none() && !(known.unhappy && is_over) {
            return;
        }
        let place = part.queue.place(&done.key, now);
        let failures = place.as_ref().map_or(0, |place| place.failures);
        let conflict = matches!(done.next, Next::Backoff { error: false, .. });
        // A conflict says nothing of what failed before; a refusal without back-off counts as a failure too.
        let failures = match done.trouble.is_some() || conflict {
            true => failures.max(1),
            false => 0,
        };
        known.unhappy = failures > 0;
        let attempt = Attempt {
            at: done.began.to_string(),
            took_ms: done.took.as_secs_f64() * 1000.0,
            result: done.result.to_owned(),
            error: match (&done.trouble, &done.next) {
                (Some(trouble), _) => trouble.why.clone(),
                (None, Next::Backoff { why, .. }) => why.clone(),
                (None, _) => String::new(),
            },
            code: done.trouble.as_ref().and_then(|trouble| trouble.code),
            blocker: done
                .trouble
                .as_ref()
                .and_then(|trouble| blocker_of(trouble, &done.key)),
            woken_by: match (&done.origin, failures) {
                (Some(origin), _) => origin.to_string(),
                (None, 0 | 1) => "its own timer, a start or a gained range".to_owned(),
                (None, _) => "retry after its failure".to_owned(),
            },
            next_in_ms: place
                .and_then(|place| place.due_in)
                .map(|due| u64::try_from(due.as_millis()).unwrap_or(u64::MAX)),
        };
        let kept = (done.unit, done.key.clone());
        self.shared
            .attempts()
            .record(&kept, self.gate.range, failures, attempt, now);
    }

    /// What is busy.
    fn survey(&self, sample: &Sample) -> Survey {
        let now = self.now();
        let wanted = |key: &Key| sample.namespace.is_empty() || key.namespace == *sample.namespace;
        let mut survey = Survey::default();
        for (at, lane) in self.lanes.iter() {
            let mut busy = Busy {
                keys: lane.known.len(),
                queued: lane.queue.depth(),
                ..Busy::default()
            };
            for (key, known) in &lane.known {
                let Some(last) = &known.last else { continue };
                let rate = last.heat.rate(now);
                busy.rate += rate;
                busy.failing += usize::from(known.unhappy);
                if wanted(key) {
                    let failures = lane.queue.failures(key);
                    survey.keys.push((at, key.clone(), failures, rate));
                }
            }
            survey.controllers.push((at, busy));
        }
        survey
            .keys
            .sort_by(|(.., one), (.., other)| other.rate.total_cmp(&one.rate));
        survey.keys.truncate(sample.keys_max);
        survey
    }

    /// Forgets keys of which nothing is left, the cache having come to their marks.
    fn let_go(&mut self) {
        let shared = Arc::clone(&self.shared);
        for (lane, key) in std::mem::take(&mut self.leaving) {
            let unit = &shared.units[usize::from(lane)];
            let part = self.lanes.at(lane);
            // Whatever is still done about it ends with another check.
            let Some(known) = part
                .known
                .get_mut(&key)
                .filter(|known| !known.parked && known.memory.is_none() && !part.queue.knows(&key))
            else {
                continue;
            };
            known.marks.retain(|mark| !reached(&shared, mark));
            if !known.marks.is_empty() {
                self.leaving.push((lane, key));
            } else if is_gone(&shared, unit, &key) {
                part.forget(&key);
            }
        }
    }

    fn set_timer(&mut self, ctx: &mut Context<Self>) {
        let next = self
            .lanes
            .iter()
            .filter_map(|(_, lane)| lane.queue.next_due())
            .min();
        match (next, &self.timer) {
            (Some(next), Some((set, _))) if *set == next => {}
            (next, _) => {
                if let Some((_, handle)) = self.timer.take() {
                    ctx.cancel_future(handle);
                }
                // While a key is reconciled alone nothing else begins: a timer for keys that are due already
                // would fire at once, and again. What ends it comes back here.
                if let Some(next) = next
                    && !self.gate.is_frozen()
                    && self.alone.is_none()
                {
                    let handle = ctx.run_later(next.saturating_sub(self.now()), |range, ctx| {
                        range.timer = None;
                        range.proceed(ctx);
                    });
                    self.timer = Some((next, handle));
                }
            }
        }
    }

    fn answer_freeze_if_still(&mut self, ctx: &mut Context<Self>) {
        if !self.working.is_empty() {
            return;
        }
        let Some(freezing) = self.freezing.take() else {
            return;
        };
        ctx.cancel_future(freezing.deadline);
        let gate = Arc::clone(&self.gate);
        let grace = async move {
            let end = tokio::time::Instant::now() + EVENTS_GRACE;
            while gate.events_pending() > 0 && tokio::time::Instant::now() < end {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        ctx.spawn(grace.into_actor(self).map(move |(), range, _| {
            range.read_inbox();
            let _gone = freezing.reply.send(Frozen::Still(range.pack()));
        }));
    }

    /// All that is known, for the next owner.
    fn pack(&self) -> RangeState {
        let now = self.now();
        let controllers = self
            .shared
            .units
            .iter()
            .map(|unit| {
                let lane = self.lanes.get(unit.index);
                ControllerState {
                    controller: unit.name().to_owned(),
                    keys: lane.map_or_else(Vec::new, |lane| self.pack_lane(unit, lane, now)),
                    seen: self.pack_horizon(unit),
                }
            })
            .filter(|state| !state.keys.is_empty() || !state.seen.is_empty())
            .collect();
        RangeState { controllers }
    }

    /// How far this replica has seen what a controller reads. Where it knows no key, that there is none is
    /// what it has seen: one that is behind may still have one.
    fn pack_horizon(&self, unit: &Unit) -> Vec<peer_proto::Mark> {
        let mut seen: std::collections::BTreeMap<&'static Resource, u64> = self
            .horizons
            .get(&unit.index)
            .into_iter()
            .flat_map(|horizon| &horizon.marks)
            .filter_map(|mark| match mark {
                Mark::Version(resource, version) => Some((*resource, *version)),
                Mark::Gone(..) | Mark::Removed(..) => None,
            })
            .collect();
        for resource in unit.resources() {
            let version = seen.entry(resource).or_default();
            *version = (*version).max(self.shared.view.newest(resource));
        }
        seen.into_iter()
            .filter(|(_, version)| *version > 0)
            .map(|(resource, version)| pack_mark(&Mark::Version(resource, version)))
            .collect()
    }

    fn pack_lane(&self, unit: &Unit, lane: &Lane, now: Monotonic) -> Vec<KeyState> {
        let mut keys: Vec<&Key> = lane.known.keys().collect();
        let places = lane.queue.places(now);
        keys.extend(places.iter().map(|place| &place.key));
        keys.extend(self.isolation.keys(unit.index));
        keys.extend(self.waiting.keys(unit.index));
        keys.sort_unstable();
        keys.dedup();
        keys.into_iter()
            .filter_map(|key| {
                let known = lane.known.get(key);
                let place = lane.queue.place(key, now);
                let working = self
                    .working
                    .iter()
                    .any(|(lane, working)| *lane == unit.index && working == key);
                let in_flight = working || known.is_some_and(|known| known.doubtful);
                // What is under way is given up with the range.
                let late_write = match working {
                    true => self.shared.fence.late_write_max(),
                    false => known.map_or(Duration::ZERO, |known| {
                        known.late_write_until.saturating_sub(now)
                    }),
                };
                let parked = known.is_some_and(|known| known.parked);
                let (held_back, passes, deaths) = self.isolation.pack(&(unit.index, key.clone()));
                let waited = place.as_ref().and_then(|place| place.waited);
                let paused = self.waiting.since(unit.index, key);
                let marks: Vec<_> = known
                    .into_iter()
                    .flat_map(|known| &known.marks)
                    .filter(|mark| !reached(&self.shared, mark))
                    .map(pack_mark)
                    .collect();
                let memory = known
                    .and_then(|known| known.memory.as_ref())
                    .and_then(|memory| unit.pack(key, memory));
                let state = KeyState {
                    namespace: key.namespace.to_string(),
                    name: key.name.to_string(),
                    queued: waited.is_some()
                        || parked
                        || in_flight
                        || held_back
                        || paused.is_some(),
                    low_priority: waited.is_some_and(|(_, priority)| priority == Priority::Low),
                    failures: place.as_ref().map_or(0, |place| place.failures),
                    due_in_ms: place
                        .as_ref()
                        .and_then(|place| place.due_in)
                        .map(|due| u64::try_from(due.as_millis()).unwrap_or(u64::MAX)),
                    waited_ms: waited
                        .map(|(waited, _)| waited)
                        .or_else(|| Some(now.saturating_sub(paused?)))
                        .map_or(0, |waited| {
                            u64::try_from(waited.as_millis()).unwrap_or(u64::MAX)
                        }),
                    marks,
                    memory,
                    packed_at_ms: self.shared.clock.now().as_millisecond(),
                    traceparent: known
                        .and_then(|known| known.last.as_ref())
                        .and_then(|last| last.trace.as_deref())
                        .unwrap_or_default()
                        .to_owned(),
                    in_flight,
                    late_write_ms: u64::try_from(late_write.as_millis()).unwrap_or(u64::MAX),
                    quarantine_passes: passes,
                    quarantine_deaths: deaths,
                    attempts: self.pack_attempts(unit, key, known),
                };
                let says_nothing = !state.queued
                    && state.failures == 0
                    && state.due_in_ms.is_none()
                    && state.marks.is_empty()
                    && state.memory.is_none()
                    && !in_flight
                    && passes == 0;
                (!says_nothing).then_some(state)
            })
            .collect()
    }

    /// The last attempts of a key that fails, as JSON; empty for all others.
    fn pack_attempts(&self, unit: &Unit, key: &Key, known: Option<&Known>) -> Vec<u8> {
        if known.is_none_or(|known| !known.unhappy) {
            return Vec::new();
        }
        let recent = self.shared.attempts().of(&(unit.index, key.clone()));
        let packed = recent.and_then(|recent| serde_json::to_vec(&recent.attempts).ok());
        packed.unwrap_or_default()
    }

    /// Keeps the attempts of the owner before; what can't be read is left out.
    fn restore_attempts(&mut self, lane: u16, key: &Key, state: &KeyState, now: Monotonic) {
        let attempts: Vec<Attempt> = serde_json::from_slice(&state.attempts).unwrap_or_default();
        let skipped = attempts.len().saturating_sub(ATTEMPTS_MAX);
        let range = self.gate.range;
        for attempt in attempts.into_iter().skip(skipped) {
            let known = self.lanes.at(lane).known.entry(key.clone()).or_default();
            known.unhappy = true;
            let place = (lane, key.clone());
            let failures = state.failures.max(1);
            self.shared
                .attempts()
                .record(&place, range, failures, attempt, now);
        }
    }

    /// Takes over what another replica knew. What it says is a hint: a controller or resource that is not
    /// known here is passed over, and its keys are queued like all others when the range is gained.
    fn restore(&mut self, state: &RangeState) {
        let now = self.now();
        for part in &state.controllers {
            let shared = Arc::clone(&self.shared);
            let mut units = shared.units.iter();
            let Some(unit) = units.find(|unit| unit.name() == part.controller) else {
                continue;
            };
            let horizon = part
                .seen
                .iter()
                .filter_map(|mark| unpack_mark(&shared, mark))
                .filter(|mark| is_plausible(&shared, unit, mark))
                .collect();
            let horizon = Horizon::new(&shared, unit.name(), horizon);
            self.horizons.insert(unit.index, horizon);
            for key_state in &part.keys {
                let key = Key::new(key_state.namespace.as_str(), key_state.name.as_str());
                if shared.range_of(unit, &key) != self.gate.range {
                    continue;
                }
                let lane = self.lanes.at(unit.index);
                let priority = if key_state.low_priority {
                    Priority::Low
                } else {
                    Priority::High
                };
                let before = lane.queue.depth();
                lane.queue.restore(
                    &Place {
                        key: key.clone(),
                        waited: key_state
                            .queued
                            .then_some((Duration::from_millis(key_state.waited_ms), priority)),
                        due_in: key_state.due_in_ms.map(Duration::from_millis),
                        failures: key_state.failures,
                    },
                    now,
                );
                let waits = lane.queue.depth() - before;
                unit.queue_metrics.depth(i64::try_from(waits).unwrap_or(0));
                if key_state.quarantine_passes > 0 {
                    let place = (unit.index, key.clone());
                    let (passes, deaths) =
                        (key_state.quarantine_passes, key_state.quarantine_deaths);
                    self.isolation.restore(place, passes, deaths);
                }
                let known = lane.known.entry(key.clone()).or_default();
                // What had happened to it by then is not known here.
                known.evidence = shared.view.newest_of_all();
                known.marks = key_state
                    .marks
                    .iter()
                    .filter_map(|mark| unpack_mark(&shared, mark))
                    .collect();
                let marks = known.marks.len();
                known.marks.retain(|mark| is_plausible(&shared, unit, mark));
                // What was written for the key is not known then: it is fetched, as after a takeover.
                let believed = known.marks.len() == marks;
                known.memory = key_state.memory.as_ref().map(|bytes| {
                    // The way from one to the other counts as no time: instants end up a little late, ages
                    // right.
                    let by = match key_state.packed_at_ms {
                        0 => 0,
                        packed_at => {
                            let here = shared.clock.now().as_millisecond();
                            here.saturating_sub(packed_at)
                        }
                    };
                    unit.unpack(&key, bytes, SignedDuration::from_millis(by))
                });
                known.link = (!key_state.traceparent.is_empty())
                    .then(|| key_state.traceparent.as_str().into());
                // A write was under way: what it did is only known from the API server.
                let late_write = Duration::from_millis(key_state.late_write_ms);
                known.late_write_until = now + late_write.min(shared.fence.late_write_max());
                known.proven = !key_state.in_flight && believed;
                known.head_proven = known.proven;
                self.unproven |= !known.proven;
                if !known.marks.is_empty() && known.memory.is_none() {
                    self.leaving.push((unit.index, key.clone()));
                }
                self.restore_attempts(unit.index, &key, key_state, now);
            }
        }
    }

    fn explain(&self, lane: u16, key: &Key) -> Option<Value> {
        let part = self.lanes.get(lane)?;
        let known = part.known.get(key);
        let place = part.queue.place(key, self.now());
        let working = self
            .working
            .iter()
            .any(|(at, working)| *at == lane && working == key);
        let second = self.shared.clock.now().as_second();
        let quarantine = self.isolation.explain(&(lane, key.clone()), second);
        let paused = self.waiting.since(lane, key);
        if known.is_none() && place.is_none() && quarantine.is_none() && paused.is_none() {
            return None;
        }
        let list = self.shared.watchlist.list();
        let last = known.and_then(|known| known.last.as_ref());
        let memory = known
            .and_then(|known| known.memory.as_ref())
            .and_then(|memory| self.unit(lane).pack(key, memory))
            .and_then(|packed| serde_json::from_slice::<Value>(&packed).ok());
        Some(json!({
            "state": if working {
                "working"
            } else if known.is_some_and(|known| known.parked) {
                "waiting for the cache"
            } else if place.as_ref().is_some_and(|place| place.waited.is_some()) {
                if self.gate.admit() == Err(Stopped::Fenced) { "fenced" } else { "queued" }
            } else if place.as_ref().is_some_and(|place| place.due_in.is_some()) {
                "delayed"
            } else if paused.is_some() {
                "paused"
            } else if self.isolation.pack(&(lane, key.clone())).0 {
                "quarantined"
            } else {
                "at rest"
            },
            "quarantine": quarantine,
            "announced": list.careful.contains(&self.gate.range),
            "blocker": last
                .and_then(|last| last.trouble.as_ref())
                .and_then(|trouble| blocker_of(trouble, key)),
            "waited_ms": place
                .as_ref()
                .and_then(|place| Some(place.waited?.0))
                .or_else(|| Some(self.now().saturating_sub(paused?)))
                .map(|waited| waited.as_millis()),
            "next_in_ms": place.as_ref().and_then(|place| place.due_in).map(|due| due.as_millis()),
            "failures": place.as_ref().map_or(0, |place| place.failures),
            "late_write_ms": known.map(|known| known.late_write_until.saturating_sub(self.now()).as_millis()),
            "marks": known.map(|known| known.marks.iter().map(|mark| format!("{mark:?}")).collect::<Vec<_>>()),
            "proven": !self.unproven || known.is_some_and(|known| known.proven),
            "memory": memory,
            "last": last.map(|last| json!({
                "at": last.at.to_string(),
                "took_ms": last.took.as_secs_f64() * 1000.0,
                "result": match &last.next {
                    Next::Change => "done".to_owned(),
                    Next::Now => "done, again at once".to_owned(),
                    Next::Replan => "compared with the server, again at once".to_owned(),
                    Next::After(delay) => format!("done, again in {:.1}s", delay.as_secs_f64()),
                    Next::Postponed(delay) => format!("status written too recently, again in {delay:?}"),
                    Next::Backoff { why, .. } => why.clone(),
                    Next::Stopped(stopped) => format!("stopped: {stopped:?}"),
                },
                "error": last.trouble.as_ref().map(|trouble| &trouble.why),
                "code": last.trouble.as_ref().and_then(|trouble| trouble.code),
                "waits_for": last.waits,
                "plan": last.plan,
                "objects": last.objects,
                "trace": last.trace.as_deref().and_then(trace::trace_id),
            })),
        }))
    }
}

/// What the API server's refusal says of what blocks a key.
fn blocker_of(trouble: &Trouble, key: &Key) -> Option<inspect::Blocker> {
    inspect::blocker(trouble.code.unwrap_or(0), &trouble.why, &key.namespace)
}

/// By what it shows that somebody has changed the object under a controller's key: its generation, or its
/// resourceVersion where it has none.
fn version_of(shared: &Shared, unit: &Unit, key: &Key) -> Option<u64> {
    let primary = unit.primary()?;
    let object = shared.view.get(primary, &key.namespace, &key.name)?;
    let meta = object.metadata();
    match u64::try_from(meta.generation) {
        Ok(generation) if generation > 0 => Some(generation),
        _ => Some(meta.resource_version),
    }
}

/// The object under a controller's key, if the cache has it.
fn object_of(shared: &Shared, unit: &Unit, key: &Key) -> Option<ObjectRef> {
    let primary = unit.primary()?;
    let object = shared.view.get(primary, &key.namespace, &key.name)?;
    Some(ObjectRef {
        api_version: Str::interned(&primary.api_version()),
        kind: Str::interned(primary.kind),
        key: key.clone(),
        uid: object.metadata().uid.clone(),
        resource_version: object.metadata().resource_version,
    })
}

/// Whether the cache has no object under a controller's key.
fn is_gone(shared: &Shared, unit: &Unit, key: &Key) -> bool {
    let object = |primary| shared.view.get(primary, &key.namespace, &key.name);
    unit.primary().and_then(object).is_none()
}

/// Waits until the cache has reached all of these. `late` is called once, when that has taken a minute.
async fn wait_for(shared: &Shared, marks: &[Mark], late: impl Fn(&Mark)) {
    let since = shared.clock.monotonic();
    let mut warned = false;
    for mark in marks {
        while !reached(shared, mark) {
            let wait = match mark {
                Mark::Version(resource, version) => shared.view.wait_passed(resource, *version),
                Mark::Gone(resource, _, uid) | Mark::Removed(resource, _, uid) => {
                    shared.view.wait_departed(resource, uid)
                }
            };
            // After the call, so that nothing that happens in between is missed.
            if reached(shared, mark) {
                break;
            }
            // A timer beside it: a resource may be watched no more, and a watch that is stuck is worth a
            // line.
            let _late = tokio::time::timeout(MARKS_PATIENCE, wait).await;
            let waited = shared.clock.monotonic().saturating_sub(since);
            if !warned && waited >= MARKS_PATIENCE {
                warned = true;
                late(mark);
            }
        }
    }
}

/// Whether a mark of another replica can be true. One that can't is counted and left out.
fn is_plausible(shared: &Shared, unit: &Unit, mark: &Mark) -> bool {
    let Mark::Version(resource, version) = mark else {
        return true;
    };
    let newest = shared.view.newest_of_all().max(shared.fence.settled());
    if *version <= newest.saturating_add(MARK_MARGIN) {
        return true;
    }
    shared.metrics.mark_dropped();
    tracing::warn!(
        controller = unit.name(),
        resource = %resource.id(),
        version,
        newest,
        "a range came with a resourceVersion far beyond all that was seen here; it is left out and its key checked"
    );
    false
}

fn reached(shared: &Shared, mark: &Mark) -> bool {
    match mark {
        Mark::Version(resource, version) => {
            // What is watched no more shows nothing, whatever is waited for.
            shared.view.passed(resource, *version)
                || shared.view.standing(resource) == Standing::Unwatched
        }
        Mark::Gone(resource, key, uid) => shared
            .view
            .get(resource, &key.namespace, &key.name)
            .is_none_or(|object| {
                object.metadata().uid != *uid || object.metadata().is_terminating()
            }),
        Mark::Removed(resource, key, uid) => shared
            .view
            .get(resource, &key.namespace, &key.name)
            .is_none_or(|object| object.metadata().uid != *uid),
    }
}

fn pack_mark(mark: &Mark) -> peer_proto::Mark {
    match mark {
        Mark::Version(resource, version) => peer_proto::Mark {
            resource: resource.id(),
            resource_version: *version,
            ..peer_proto::Mark::default()
        },
        Mark::Gone(resource, key, uid) | Mark::Removed(resource, key, uid) => peer_proto::Mark {
            resource: resource.id(),
            resource_version: 0,
            gone_namespace: key.namespace.to_string(),
            gone_name: key.name.to_string(),
            gone_uid: uid.to_string(),
            removed: matches!(mark, Mark::Removed(..)),
        },
    }
}

pub(super) fn unpack_mark(shared: &Shared, mark: &peer_proto::Mark) -> Option<Mark> {
    let resource: &'static Resource = shared
        .units
        .iter()
        .flat_map(Unit::resources)
        .find(|resource| resource.is(&mark.resource))
        .or_else(|| {
            let catalogue = shared.view.catalogue();
            let mut found = catalogue.all().iter().filter(|entry| entry.preferred);
            found
                .find(|entry| entry.resource.is(&mark.resource))
                .map(|entry| entry.resource)
        })?;
    Some(if mark.gone_uid.is_empty() {
        Mark::Version(resource, mark.resource_version)
    } else {
        let key = Key::new(mark.gone_namespace.as_str(), mark.gone_name.as_str());
        let uid = mark.gone_uid.as_str().into();
        match mark.removed {
            true => Mark::Removed(resource, key, uid),
            false => Mark::Gone(resource, key, uid),
        }
    })
}

impl Actor for Range {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.proceed(ctx);
    }

    fn stopped(&mut self, _: &mut Context<Self>) {
        for (lane, part) in self.lanes.iter() {
            let waiting = i64::try_from(part.queue.depth()).unwrap_or(0);
            self.unit(lane).queue_metrics.depth(-waiting);
            self.unit(lane).metrics.forget(self.gate.range);
        }
        self.isolation = Isolation::default();
        self.count_quarantined();
        self.waiting = Waiting::default();
        self.count_waiting();
    }
}

impl Handler<Poll> for Range {
    type Result = ();
    fn handle(&mut self, _: Poll, ctx: &mut Context<Self>) {
        self.proceed(ctx);
    }
}

impl Handler<Freeze> for Range {
    type Result = ();
    fn handle(&mut self, freeze: Freeze, ctx: &mut Context<Self>) {
        arbiters::hurry();
        self.gate.freeze();
        self.stats.frozen.store(true, Ordering::Relaxed);
        let deadline = ctx.run_later(freeze.budget, |range, ctx| {
            let Some(freezing) = range.freezing.take() else {
                return;
            };
            let keys = range
                .working
                .iter()
                .map(|(lane, key)| format!("{} {key}", range.unit(*lane).name()))
                .collect();
            let state = if freezing.force {
                range.pack()
            } else {
                RangeState::default()
            };
            let _gone = freezing.reply.send(Frozen::Busy { keys, state });
            if !freezing.force {
                range.thaw(ctx);
            }
        });
        self.freezing = Some(Freezing {
            reply: freeze.reply,
            force: freeze.force,
            deadline,
        });
        self.proceed(ctx);
    }
}

impl Range {
    fn thaw(&mut self, ctx: &mut Context<Self>) {
        self.gate.resume();
        self.stats.frozen.store(false, Ordering::Relaxed);
        self.proceed(ctx);
    }
}

impl Handler<Resume> for Range {
    type Result = ();
    fn handle(&mut self, _: Resume, ctx: &mut Context<Self>) {
        if let Some(freezing) = self.freezing.take() {
            ctx.cancel_future(freezing.deadline);
        }
        self.thaw(ctx);
    }
}

impl Handler<Stop> for Range {
    type Result = ();
    fn handle(&mut self, _: Stop, ctx: &mut Context<Self>) {
        // What is under way is dropped with the actor: a request in flight is aborted.
        ctx.stop();
    }
}

impl Handler<Steered> for Range {
    type Result = ();
    fn handle(&mut self, steered: Steered, ctx: &mut Context<Self>) {
        let (changes, orders) = &*steered.0;
        for change in changes {
            self.record_order(change, orders.as_ref());
        }
        self.proceed(ctx);
    }
}

impl Handler<Sample> for Range {
    type Result = MessageResult<Sample>;
    fn handle(&mut self, sample: Sample, _: &mut Context<Self>) -> Self::Result {
        MessageResult(self.survey(&sample))
    }
}

impl Handler<Explain> for Range {
    type Result = MessageResult<Explain>;
    fn handle(&mut self, explain: Explain, _: &mut Context<Self>) -> Self::Result {
        MessageResult(self.explain(explain.unit, &explain.key))
    }
}
