//! One owned range: the queues, marks and memory of all controllers for its keys. A thin shell: the queue is
//! pure, a reconcile is a function, and this actor only says when.

mod explain;
mod handoff;
mod held_back;
mod known;
mod marks;
mod work;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use actix::{Actor, ActorContext, AsyncContext, Context, Handler, Message, SpawnHandle};
use controllers_kit::{Key, ObjectRef};
use coordinator::Gained;

use self::handoff::Freezing;
use self::held_back::Alone;
use self::known::{Known, Lanes};
use self::marks::Horizon;
use crate::arbiters;
use crate::gate::Gate;
use crate::quarantine::Isolation;
use crate::queue::{Monotonic, Priority};
use crate::shared::{Inbox, RangeStats, Shared, Unit};
use crate::steer::in_force::Change;
use crate::steer::waiting::Waiting;

pub(in crate::actors) use self::handoff::unpack_mark;
pub use self::{
    explain::{Busy, Explain, Sample},
    handoff::{Freeze, Resume},
};

/// How often keys are examined of which nothing is left but marks.
const LEAVING_CHECK: Duration = Duration::from_secs(5);

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
    /// No key is reconciled before then: this replica has owned the range under another epoch until just now,
    /// and what that had sent may still be executed.
    begins: Monotonic,
}

/// Read the inbox.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Poll;

/// The range is another's.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Stop;

/// Orders of operators have changed: what, and the object that has them.
#[derive(Message, Clone)]
#[rtype(result = "()")]
pub struct Steered(pub Arc<(Vec<Change>, Option<ObjectRef>)>);

impl Actor for Range {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.proceed(ctx);
    }

    fn stopped(&mut self, _: &mut Context<Self>) {
        self.lanes.report_depths(true);
        for (lane, _) in self.lanes.iter() {
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

impl Range {
    /// For a range that was just gained; `given_up` is when this replica gave it up last.
    pub fn new(
        shared: Arc<Shared>,
        gate: Arc<Gate>,
        inbox: Arc<Inbox>,
        stats: Arc<RangeStats>,
        how: &Gained,
        given_up: Option<Monotonic>,
    ) -> Self {
        let lanes = Lanes::new(&shared, &gate);
        let now = shared.clock.monotonic();
        let late = shared.fence.late_write_max();
        let (settled, begins) = match how {
            // What was under way may still be in the server's hands; each key's state says for how long.
            Gained::Handoff(_) => (now + late, now),
            // Of the dead a lease duration has been waited for; of ourselves nothing has.
            Gained::Takeover => {
                let over = given_up.map_or(now, |at| now.max(at + late));
                (over, over)
            }
        };
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
            begins,
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

    /// Until when something may be executed that was sent for a key and given up.
    fn late_write_until(&self, known: Option<&Known>) -> Monotonic {
        known.map_or(self.begins, |known| known.late_write_until.max(self.begins))
    }

    fn add(&mut self, lane: u16, key: &Key, priority: Priority) {
        let now = self.now();
        if self.lanes.at(lane).queue.add(key, priority, now) {
            self.unit(lane).queue_metrics.added();
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
        self.lanes.report_depths(false);
        let queued = self.lanes.iter().map(|(_, lane)| lane.queue.depth()).sum();
        self.stats.queued.store(queued, Ordering::Relaxed);
        let keys = self.lanes.iter().map(|(_, lane)| lane.known.len()).sum();
        self.stats.keys.store(keys, Ordering::Relaxed);
        self.answer_freeze_if_still(ctx);
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
}
