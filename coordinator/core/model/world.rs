//! One state of the modelled fleet, and what can happen in it.
//!
//! The replicas are the two real machines. Around them stand a Lease store, messages on their way, and a
//! clock that counts ticks. Without faults everything that was asked for in a tick is done in that tick,
//! first come, first served: one schedule, and at its end the fleet must rest. A fault departs from it at one
//! point. So "all placements of at most K faults" is a tree that ends, and every state of it is followed to
//! rest.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use crate::{
    Config, Core, Effect, Epoch, Gone, Holder, Input, NoAnswer, NotSent, Offer, OwnPhase, Plan,
    PlanLease, RangeId, RangeLease, Renewal, RenewalConfig, RenewalEffect, RenewalInput,
    ReplicaLease, Status, Time, Version, Witness, WitnessStep, Written, deaths::first_life,
    mutation::broken,
};

const LEASE_DURATION: Duration = Duration::from_secs(5);
const RENEW_DEADLINE: Duration = Duration::from_secs(3);
const RETRY_PERIOD: Duration = Duration::from_secs(1);

/// What each replica's clock gains in a tick, in milliseconds. The fastest and the slowest differ by 1.625;
/// the protocol claims to bear 5 to 3.
const RATES: [u32; 3] = [1300, 800, 1000];

/// Versions written in one tick stay below this. A version names the tick, so that a write more or less is
/// forgotten once nobody holds what it wrote, and states meet again.
const VERSIONS_IN_A_TICK: u64 = 256;

/// The largest epoch that the API stores.
const EPOCH_MAX: Epoch = i32::MAX as Epoch;

/// A peer that does not answer is given up after this number of ticks.
const PEER_PATIENCE: u32 = 2;

/// A process that ends by itself is gone after this number of ticks, whether its Lease could be released or
/// not.
const PANIC_TICKS: u32 = 3;

/// This number of quiet ticks in a row is rest.
const REST: u8 = 3;

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Wrong {
    /// Two may act on one range.
    TwoOwners,
    /// A replica acts whose incarnation has been evicted.
    EvictedActs,
    /// A replica acts on a range whose Lease names another or a later epoch.
    StaleEpochActs,
    /// An epoch was written that is not above all before.
    EpochFell,
    /// State that was acknowledged is not what the last owner knew, or was dropped.
    StateLost,
    /// A replica behind a closed fence evicts, or writes a range Lease.
    FencedDecides,
    /// A range was taken before its owner's requests were refused.
    TakenUnbarred,
    /// A stalled server, and nothing else, has moved a range.
    MovedByAStall,
    /// A replica gave up for good.
    GaveUp,
    /// Faults are over, and ranges have no owner, or not evenly.
    NoRest,
}

/// What a scenario starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Start {
    /// Nobody has started yet.
    Cold,
    /// All but the last are at rest; the last starts now, and ranges begin to move.
    Join,
    /// All are at rest.
    Rest,
    /// All are at rest; the first is asked to leave.
    Drain,
    /// Nobody has started yet, and no peer ever reaches another.
    Alone,
    /// The same, but all are at rest; the first begins to leave.
    Parted,
}

/// The bounds of an exploration.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Bounds {
    pub(super) replicas: usize,
    pub(super) ranges: u16,
    pub(super) start: Start,
    /// Faults in one run.
    pub(super) faults: u8,
    /// Ticks from the start in which faults happen.
    pub(super) window: u32,
    /// Whether a status may say that a process has ended which has not.
    pub(super) lies: bool,
}

/// Ticks after the last fault in which the fleet must come to rest.
const SETTLE: u32 = 45;

/// For so long there is a plan.
const PLANNED_TICKS: u32 = 8;

/// The kinds of fault, to know which ones a run has seen.
const STALL: u8 = 1;
const DAMAGE: u8 = 2;
const DRAIN: u8 = 4;
const MESSAGE: u8 = 8;
const OTHER: u8 = 16;
const ALL_STALE: u8 = 32;

#[allow(clippy::large_enum_variant, reason = "few, and kept for a tick or two")]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Change {
    Replica(ReplicaLease),
    ReplicaGone(String),
    Range(RangeLease),
    RangeGone(RangeId),
}

/// A request to the API server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Ask {
    Own(RenewalEffect, Time),
    Replicas(Time),
    Ranges(Time),
    Range(RangeId),
    Evict(ReplicaLease),
    Claim(Option<Version>, RangeLease),
    /// And whether the receiver has acknowledged the state.
    Swap(Version, RangeLease, bool),
    Delete(RangeId, Version),
    Bar(Holder),
    Pod(Holder),
}

/// How a range Lease comes to name somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// Its holder writes itself.
    Claim,
    /// The owner before gives it to one that has its state.
    Handoff,
    /// The owner before gives it to one that knows nothing of it.
    Lease,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum What {
    /// At the store and back.
    Ask(Ask),
    /// At the store; the sender has given up waiting.
    Land(Ask),
    Core(Input),
    Renewal(RenewalInput),
    /// The core reads the renewal.
    Own,
    /// The renewal reads what the core says of the replica.
    Said,
    /// The watch brings what is new.
    Watch,
    Offer {
        offer: Offer,
        token: u32,
        sender: usize,
    },
    Holds {
        inquiry: u64,
        ranges: Vec<RangeId>,
        asked: Holder,
        sender: usize,
    },
    Restart,
    Resume,
    /// The process is gone, and starts again after this number of ticks; 0 is never.
    End(u32),
    /// Whether what its host sees is current.
    Current(bool),
    /// A witness, which outlives the process, reads its Lease.
    Witness(Witness),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Message {
    /// The replica that acts or gets the message.
    pub(super) at: usize,
    pub(super) life: u32,
    pub(super) what: What,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Node {
    life: u32,
    alive: bool,
    paused: bool,
    /// Since when its clock is stopped, and for how many ticks it was stopped before.
    stopped_since: Option<u32>,
    stopped: u32,
    cut_until: u32,
    frozen_until: u32,
    /// Its host sees nothing of what it is to act on.
    stale: bool,
    /// Its pod's status says that it has ended, which is not so.
    mourned: bool,
    core: Core,
    renewal: Renewal,
    /// What the core said last of the replica. What passes between the two machines is a level, not a queue.
    said: Option<Status>,
    /// What the host may act on.
    epochs: BTreeMap<RangeId, Epoch>,
    /// What the host knows of each range: see `World::tokens`.
    known: BTreeMap<RangeId, u32>,
    /// What it has worked on since it got or resumed it.
    works: BTreeSet<RangeId>,
    kept: BTreeMap<RangeId, u32>,
    offers: BTreeMap<u64, (usize, u64, u32)>,
    questions: BTreeMap<u64, (usize, u64, Holder)>,
    serial: u64,
    watched: Version,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Store {
    version: Version,
    replicas: BTreeMap<String, ReplicaLease>,
    ranges: BTreeMap<RangeId, RangeLease>,
    log: Vec<(Version, Change)>,
    highest: BTreeMap<RangeId, Epoch>,
    /// Range Leases whose present content was written by the owner before, for another who has its state.
    given: BTreeSet<RangeId>,
    /// Whose requests are refused, and those for whom somebody was answered that this was not to be had.
    barred: BTreeSet<Holder>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) now: u32,
    pub(super) faults: u8,
    until: u32,
    nodes: Vec<Arc<Node>>,
    store: Arc<Store>,
    pub(super) queue: VecDeque<Message>,
    later: Vec<(u32, Message)>,
    down_until: u32,
    /// No peer reaches another any more.
    peers_cut: bool,
    /// For each range how often somebody began to work on it: what the last one to do so knows.
    tokens: Vec<u32>,
    seen: u8,
    lies: bool,
    /// An evicted replica may act until another does too: what comes of it is to be seen.
    pub(super) lenient: bool,
    pub(super) wrong: Option<Wrong>,
    pub(super) rested: u8,
}

/// A departure from the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Fault {
    /// The first message is lost; if it was a request, its sender hears so.
    Lose,
    /// The first request lands, the answer is lost.
    LoseAnswer,
    /// The first message comes after all others, or this number of ticks later; a request lands without
    /// anyone waiting.
    Hold(u32),
    /// The first request is answered at once, and the answer comes this number of ticks later.
    HoldAnswer(u32),
    /// The first message comes twice, the second this number of ticks later.
    Double(u32),
    /// Writes are under way, the freeze is refused.
    Busy,
    /// The replica of the first message ends; it starts again after this number of ticks, 0 is never.
    Crash(usize, u32),
    /// It ends by itself: it releases its Lease, and is gone a while later.
    Panic(usize, u32),
    /// It stops, and its clock runs: SIGSTOP, or a suspended machine.
    Pause(usize, u32),
    /// It stops with all of its clocks, so that it can't know: a machine that its hypervisor stops.
    Suspend(usize, u32),
    /// It cannot reach the API server.
    Cut(usize, u32),
    /// The same, and its pod's status says that it has ended, for good: a false proof.
    Mourned(usize, u32),
    /// Its watch brings nothing.
    FreezeWatch(usize, u32),
    /// From now on no peer reaches another.
    CutPeers,
    /// The API server answers nobody.
    Stall(u32),
    /// Its host sees nothing any more, for this number of ticks; 0 is for good.
    Stale(usize, u32),
    /// Nobody's does, and some notice it a tick before the others; nor do all see again at once.
    AllStale(u32),
    /// Its Lease is deleted by hand.
    DeleteReplica(usize),
    /// A range's Lease is deleted by hand.
    DeleteRange(RangeId),
    /// A range's epoch is set to the end of its type by hand.
    EditEpoch(RangeId),
    /// It is asked to leave; the process starts again later.
    Drain(usize),
    /// A plan gives all ranges to this one; all see it, or it alone, and a while later it is gone.
    Plan(usize, bool),
}

thread_local! {
    /// Whether this thread shows what every machine hears and wants.
    pub(super) static TRACE: Cell<bool> = const { Cell::new(false) };
}

fn name(at: usize) -> String {
    format!("r{at}")
}

impl Node {
    fn fresh(at: usize, life: u32, ranges: u16) -> Self {
        let status = Status {
            address: name(at),
            build: "0.1.0".to_owned(),
            ranges,
            ..Status::default()
        };
        Self {
            life,
            alive: false,
            paused: false,
            stopped_since: None,
            stopped: 0,
            cut_until: 0,
            frozen_until: 0,
            stale: false,
            mourned: false,
            core: Core::new(Config {
                name: name(at),
                address: name(at),
                pin: None,
                pod: name(at).into(),
                build: "0.1.0".to_owned(),
                ranges,
                lease_duration: LEASE_DURATION,
                late_write_max: LEASE_DURATION - RENEW_DEADLINE,
                retry_period: RETRY_PERIOD,
                settle_time: Duration::from_secs(1),
                expected_replicas: None,
                moves_at_once: 8,
                freeze_budget: Duration::from_secs(2),
                drain_budget: Duration::from_millis(500),
                bars: true,
                slow_start: Duration::ZERO,
                epoch_second: 0,
                records_deaths: false,
                plans: true,
            }),
            renewal: Renewal::new(
                RenewalConfig {
                    name: name(at),
                    incarnation: format!("i{life}"),
                    lease_duration: LEASE_DURATION,
                    renew_deadline: RENEW_DEADLINE,
                    retry_period: RETRY_PERIOD,
                    epoch_second: None,
                    deaths_from: None,
                    gone: None,
                },
                status,
            ),
            said: None,
            epochs: BTreeMap::new(),
            known: BTreeMap::new(),
            works: BTreeSet::new(),
            kept: BTreeMap::new(),
            offers: BTreeMap::new(),
            questions: BTreeMap::new(),
            serial: 0,
            watched: 0,
        }
    }
}

impl World {
    /// Where a scenario starts.
    pub(super) fn start(bounds: &Bounds) -> Self {
        let mut world = Self {
            now: 1,
            faults: 0,
            until: u32::MAX,
            nodes: (0..bounds.replicas)
                .map(|at| Arc::new(Node::fresh(at, 0, bounds.ranges)))
                .collect(),
            store: Arc::default(),
            queue: VecDeque::new(),
            later: Vec::new(),
            down_until: 0,
            peers_cut: matches!(bounds.start, Start::Alone | Start::Parted),
            tokens: vec![0; usize::from(bounds.ranges)],
            seen: 0,
            lies: bounds.lies,
            lenient: false,
            wrong: None,
            rested: 0,
        };
        let late = usize::from(bounds.start == Start::Join);
        for at in 0..bounds.replicas - late {
            world.push(at, What::Restart);
        }
        if !matches!(bounds.start, Start::Cold | Start::Alone) {
            while world.rested < REST && world.wrong.is_none() && world.now < SETTLE {
                world.tick();
            }
            if world.rested < REST {
                world.fail(Wrong::NoRest);
            }
        }
        world.rested = 0;
        match bounds.start {
            Start::Join => world.push(bounds.replicas - 1, What::Restart),
            Start::Drain => world.drain(0),
            Start::Parted => world.drain(0),
            Start::Alone | Start::Cold | Start::Rest => {}
        }
        if world.peers_cut {
            world.seen |= OTHER;
        }
        world.faults = bounds.faults;
        world.until = world.now + bounds.window;
        world
    }

    /// Whether faults can still happen.
    pub(super) fn may_fail(&self) -> bool {
        self.faults > 0 && self.now < self.until
    }

    /// Whether nothing more is to be checked on this way.
    pub(super) fn is_over(&self) -> bool {
        self.wrong.is_some() || (!self.may_fail() && self.rested >= REST)
    }

    fn clock(&self, at: usize) -> Time {
        let node = &self.nodes[at];
        let ticks = node.stopped_since.unwrap_or(self.now) - node.stopped;
        Duration::from_millis(u64::from(RATES[at % RATES.len()] * ticks))
    }

    /// Whether its clock has stood still, so that no rule of time binds it: it acts until it hears of its
    /// end.
    fn stood_still(&self, at: usize) -> bool {
        let node = &self.nodes[at];
        (node.stopped > 0 || node.stopped_since.is_some()) && !broken!(ClockStops)
    }

    /// The API server refuses what it does: it was barred before anybody took its ranges. What hands edited
    /// may name nobody who could be barred: against that and a clock that is stopped at once, nothing helps.
    fn is_refused(&self, at: usize) -> bool {
        self.stood_still(at) && (self.is_damaged() || self.store.barred.contains(&self.holder(at)))
    }

    fn node(&mut self, at: usize) -> &mut Node {
        Arc::make_mut(&mut self.nodes[at])
    }

    fn holder(&self, at: usize) -> Holder {
        Holder::new(name(at), self.nodes[at].renewal.incarnation())
    }

    fn find(&self, holder: &Holder) -> Option<usize> {
        (0..self.nodes.len()).find(|at| name(*at) == holder.name)
    }

    fn message(&self, at: usize, what: What) -> Message {
        Message {
            at,
            life: self.nodes[at].life,
            what,
        }
    }

    fn push(&mut self, at: usize, what: What) {
        let message = self.message(at, what);
        self.queue.push_back(message);
    }

    fn push_later(&mut self, ticks: u32, message: Message) {
        self.later.push((self.now + ticks, message));
        self.later.sort_by_key(|(due, _)| *due);
    }

    fn fail(&mut self, wrong: Wrong) {
        self.wrong = self.wrong.or(Some(wrong));
    }

    // ---- the schedule ----

    /// Handles the first message, or lets a tick pass.
    pub(super) fn step(&mut self) {
        match self.queue.pop_front() {
            Some(message) => self.handle(message),
            None => self.pass(),
        }
        self.judge();
    }

    /// Everything up to the next tick at once.
    pub(super) fn tick(&mut self) {
        while let Some(message) = self.queue.pop_front() {
            self.handle(message);
            self.judge();
            if self.wrong.is_some() {
                return;
            }
        }
        self.pass();
        self.judge();
    }

    /// A tick passes, and every machine hears of it.
    fn pass(&mut self) {
        let quiet = self.is_at_rest();
        self.rested = if quiet {
            (self.rested + 1).min(REST)
        } else {
            0
        };
        self.now += 1;
        let horizon = self.until.saturating_add(SETTLE);
        if self.now > horizon && self.rested == 0 {
            self.fail(Wrong::NoRest);
        }
        let due = self.later.partition_point(|(due, _)| *due <= self.now);
        let due: Vec<Message> = self
            .later
            .drain(..due)
            .map(|(_, message)| message)
            .collect();
        self.queue.extend(due);
        for at in 0..self.nodes.len() {
            if self.nodes[at].alive && !self.nodes[at].paused {
                self.renewal(at, RenewalInput::Tick);
                self.core(at, Input::Tick);
            }
        }
        self.wake_watches();
    }

    fn handle(&mut self, message: Message) {
        let Message { at, life, what } = message;
        if let What::Land(ask) = what {
            if self.now >= self.down_until {
                self.at_the_store(&ask, at);
            }
            return;
        }
        if let What::Witness(witness) = what {
            return self.witness(at, witness);
        }
        if self.nodes[at].life != life {
            if let What::Ask(ask) = what {
                // Sent by a life that is over; it lands all the same.
                return self.handle(Message {
                    at,
                    life,
                    what: What::Land(ask),
                });
            }
            self.refused_by_nobody(at, &what);
            return;
        }
        match what {
            What::Restart => return self.restart(at),
            What::Resume => return self.resume(at),
            What::End(ticks) => return self.crash(at, ticks),
            _ => {}
        }
        if !self.nodes[at].alive {
            return self.refused_by_nobody(at, &what);
        }
        match what {
            What::Ask(ask) => {
                let unheard = self.now < self.down_until || self.now < self.nodes[at].cut_until;
                let answer = if unheard {
                    let answer = self.no_answer(ask);
                    if let Some(answer) = answer {
                        let message = self.message(at, answer);
                        self.push_later(1, message);
                    }
                    return;
                } else {
                    self.at_the_store(&ask, at)
                };
                if let Some(answer) = answer {
                    if self.nodes[at].paused {
                        self.push(at, answer);
                    } else {
                        self.deliver(at, answer);
                    }
                }
            }
            // What is sent to a suspended process waits for it.
            what if self.nodes[at].paused => {
                let resume = self
                    .later
                    .iter()
                    .find(|(_, message)| message.at == at && message.what == What::Resume)
                    .map(|(due, _)| *due);
                let message = self.message(at, what);
                self.push_later(resume.unwrap_or(self.now + 1) - self.now, message);
            }
            what => self.deliver(at, what),
        }
    }

    fn deliver(&mut self, at: usize, what: What) {
        match what {
            What::Core(input) => self.core(at, input),
            What::Renewal(input) => self.renewal(at, input),
            What::Said => {
                if let Some(status) = self.nodes[at].said.clone() {
                    self.renewal(at, RenewalInput::Status(status));
                }
            }
            What::Own => {
                let own = self.nodes[at].renewal.own();
                self.core(at, Input::Own(own));
            }
            What::Watch => self.watch(at),
            What::Offer {
                mut offer,
                token,
                sender,
            } => {
                let attempt = offer.attempt;
                let node = self.node(at);
                node.serial += 1;
                offer.id = node.serial;
                node.offers.insert(offer.id, (sender, attempt, token));
                self.core(at, Input::Offered(offer));
            }
            What::Holds {
                inquiry,
                ranges,
                asked,
                sender,
            } => {
                let node = self.node(at);
                node.serial += 1;
                let id = node.serial;
                node.questions.insert(id, (sender, inquiry, asked));
                self.core(at, Input::HoldsAsked { id, ranges });
            }
            What::Current(current) => {
                self.node(at).stale = !current;
                self.core(at, Input::HostCurrent(current));
            }
            What::Ask(_)
            | What::Land(_)
            | What::Restart
            | What::Resume
            | What::End(_)
            | What::Witness(_) => {}
        }
    }

    /// Something that only the end of a process brings about says that this one has ended.
    fn end_is_witnessed(&mut self, at: usize) {
        let life = self.nodes[at].life;
        let gone = Gone {
            processes: (0..=life).map(|life| format!("i{life}")).collect(),
            by: self.clock(at),
            still: !life.is_multiple_of(2) || broken!(WitnessOfTheLiving),
            late: LEASE_DURATION - RENEW_DEADLINE,
        };
        self.push(at, What::Witness(Witness::new(RETRY_PERIOD, gone, 0)));
    }

    fn witness(&mut self, at: usize, mut witness: Witness) {
        let lease = self.store.replicas.get(&name(at)).cloned();
        let now = self.clock(at);
        let answers = self.now >= self.down_until;
        let ticks = match answers.then(|| witness.read(now, lease.as_ref())) {
            None => 1,
            Some(WitnessStep::Read(due)) => {
                let millis = u32::try_from((due - now).as_millis()).unwrap_or(u32::MAX);
                millis.div_ceil(RATES[at % RATES.len()]).max(1)
            }
            Some(WitnessStep::Evict(lease)) => {
                self.push(at, What::Land(Ask::Evict(lease)));
                1
            }
            Some(WitnessStep::Released | WitnessStep::Lives) => return,
        };
        let message = self.message(at, What::Witness(witness));
        self.push_later(ticks, message);
    }

    fn crash(&mut self, at: usize, ticks: u32) {
        // Where no lock proves anything to the next process, one proves it to a witness.
        if !at.is_multiple_of(2) {
            self.end_is_witnessed(at);
        }
        let life = self.nodes[at].life + 1;
        let ranges = u16::try_from(self.tokens.len()).unwrap_or(0);
        self.nodes[at] = Arc::new(Node::fresh(at, life, ranges));
        if ticks > 0 {
            let message = self.message(at, What::Restart);
            self.push_later(ticks, message);
        }
    }

    fn restart(&mut self, at: usize) {
        let life = self.nodes[at].life + 1;
        let ranges = u16::try_from(self.tokens.len()).unwrap_or(0);
        let mut node = Node::fresh(at, life, ranges);
        // Where a lock proves to a restarted process that those before it have ended: at every other replica.
        if at.is_multiple_of(2) {
            node.renewal.set_gone(Gone {
                processes: (0..life).map(|life| format!("i{life}")).collect(),
                by: self.clock(at),
                still: !life.is_multiple_of(2),
                late: LEASE_DURATION - RENEW_DEADLINE,
            });
        }
        node.alive = true;
        node.watched = self.store.version;
        node.cut_until = self.nodes[at].cut_until;
        self.nodes[at] = Arc::new(node);
        self.core(at, Input::HostReady(true));
    }

    fn resume(&mut self, at: usize) {
        let now = self.now;
        let node = self.node(at);
        node.paused = false;
        match node.stopped_since.take() {
            Some(since) => node.stopped += now - since,
            // Seen at the first check, before anything is sent.
            None => {
                self.renewal(at, RenewalInput::Gap);
                // As the shell does it that asks the fence itself before each write.
                let own = self.nodes[at].renewal.own();
                self.core(at, Input::Own(own));
            }
        }
        self.renewal(at, RenewalInput::Tick);
        self.core(at, Input::Tick);
    }

    fn watch(&mut self, at: usize) {
        if self.is_blind(at) {
            return;
        }
        let from = self.nodes[at].watched;
        let after = self
            .store
            .log
            .partition_point(|(version, _)| *version <= from);
        let news: Vec<(Version, Change)> = self.store.log[after..].to_vec();
        let Some(&(last, _)) = news.last() else {
            return;
        };
        self.node(at).watched = last;
        for (version, change) in news {
            let input = match change {
                Change::Replica(lease) => Input::Replica(lease),
                Change::ReplicaGone(name) => Input::ReplicaGone { name, version },
                Change::Range(lease) => Input::Range(lease),
                Change::RangeGone(range) => Input::RangeGone { range, version },
            };
            self.core(at, input);
            self.core(at, Input::WatchedTo(version));
        }
    }

    fn is_blind(&self, at: usize) -> bool {
        let node = &self.nodes[at];
        !node.alive
            || self.now < node.frozen_until
            || self.now < node.cut_until
            || self.now < self.down_until
    }

    fn wake_watches(&mut self) {
        let floor = self
            .nodes
            .iter()
            .filter(|node| node.alive)
            .map(|node| node.watched)
            .min()
            .unwrap_or(self.store.version);
        if self
            .store
            .log
            .first()
            .is_some_and(|(version, _)| *version <= floor)
        {
            Arc::make_mut(&mut self.store)
                .log
                .retain(|(version, _)| *version > floor);
        }
        for at in 0..self.nodes.len() {
            let behind = self.nodes[at].watched < self.store.version;
            let queued = self
                .queue
                .iter()
                .any(|message| message.at == at && message.what == What::Watch);
            if behind && !queued && !self.is_blind(at) && !self.nodes[at].paused {
                self.push(at, What::Watch);
            }
        }
    }

    // ---- the machines ----

    fn renewal(&mut self, at: usize, input: RenewalInput) {
        let (now, tick) = (self.clock(at), self.now);
        let node = self.node(at);
        let before = node.renewal.own();
        if TRACE.get() && input != RenewalInput::Tick {
            eprintln!("{tick} r{at} {now:?} = {input:?}");
        }
        let effects = node.renewal.step(now, input);
        let own = node.renewal.own();
        for effect in effects {
            self.push(at, What::Ask(Ask::Own(effect, now)));
        }
        let known = self
            .queue
            .iter()
            .any(|message| message.at == at && message.what == What::Own);
        if own != before && !known {
            self.push(at, What::Own);
        }
    }

    fn core(&mut self, at: usize, input: Input) {
        let now = self.clock(at);
        if TRACE.get() && input != Input::Tick {
            eprintln!("{} r{at} {now:?} < {input:?}", self.now);
        }
        if let Input::Barred(holder) = &input {
            Arc::make_mut(&mut self.store).barred.insert(holder.clone());
        }
        let effects = self.node(at).core.step(now, input);
        for effect in effects {
            if TRACE.get() {
                eprintln!("    {effect:?}");
            }
            self.effect(at, effect);
        }
    }

    fn is_open(&self, at: usize) -> bool {
        self.nodes[at].alive
            && self.nodes[at]
                .renewal
                .own()
                .open_until
                .is_some_and(|until| until > self.clock(at))
    }

    /// Whether hands have edited Leases: then some promises are weaker.
    fn is_damaged(&self) -> bool {
        self.seen & DAMAGE != 0
    }

    fn effect(&mut self, at: usize, effect: Effect) {
        let clock = self.clock(at);
        match effect {
            Effect::Join => self.push(at, What::Renewal(RenewalInput::Join)),
            Effect::Status(status) => {
                self.node(at).said = Some(status);
                self.push(at, What::Said);
            }
            Effect::Reopen(regained) => {
                self.push(at, What::Renewal(RenewalInput::Reopen(regained)));
            }
            Effect::Release => self.push(at, What::Renewal(RenewalInput::Release)),
            Effect::ReadReplicas => self.push(at, What::Ask(Ask::Replicas(clock))),
            Effect::ReadRanges => self.push(at, What::Ask(Ask::Ranges(clock))),
            Effect::ReadRange(range) => self.push(at, What::Ask(Ask::Range(range))),
            Effect::AskPod { holder, .. } => self.push(at, What::Ask(Ask::Pod(holder))),
            Effect::Evict(lease) => {
                // The core may not have heard yet that its own Lease is gone.
                let own = self.nodes[at].renewal.own();
                if !self.is_open(at) && own.phase == OwnPhase::Held {
                    self.fail(Wrong::FencedDecides);
                }
                self.push(at, What::Ask(Ask::Evict(lease)));
            }
            Effect::Bar { holder, .. } => self.push(at, What::Ask(Ask::Bar(holder))),
            Effect::Claim { version, lease } => {
                self.sends_a_swap(at);
                self.push(at, What::Ask(Ask::Claim(version, lease)));
            }
            Effect::Swap {
                version,
                lease,
                with_state,
            } => {
                self.sends_a_swap(at);
                self.push(at, What::Ask(Ask::Swap(version, lease, with_state)));
            }
            Effect::DeleteRange { range, version } => {
                self.sends_a_swap(at);
                self.push(at, What::Ask(Ask::Delete(range, version)));
            }
            Effect::Gained { range, epoch, kept } => self.gained(at, range, epoch, kept),
            Effect::Lost(range) => {
                let node = self.node(at);
                node.epochs.remove(&range);
                node.known.remove(&range);
                node.works.remove(&range);
            }
            Effect::Freeze { range, epoch, .. } => {
                let node = self.node(at);
                node.epochs.remove(&range);
                node.works.remove(&range);
                let busy = false;
                self.push(at, What::Core(Input::Frozen { range, epoch, busy }));
            }
            Effect::CloseRange(range) => {
                let node = self.node(at);
                node.epochs.remove(&range);
                node.works.remove(&range);
            }
            Effect::Resume { range, epoch } => {
                self.node(at).epochs.insert(range, epoch);
            }
            Effect::Send {
                range,
                epoch,
                attempt,
                to,
                ..
            } => self.send(at, range, epoch, attempt, &to),
            Effect::AnnounceSwap {
                range, epoch, to, ..
            } => {
                let from = self.holder(at);
                if let Some(peer) = self.find(&to).filter(|_| !self.peers_cut) {
                    self.push(
                        peer,
                        What::Core(Input::SwapAnnounced { from, range, epoch }),
                    );
                }
            }
            Effect::Answer { id, range, refused } => {
                let node = self.node(at);
                if let Some((sender, attempt, token)) = node.offers.remove(&id) {
                    if refused.is_none() {
                        node.kept.insert(range, token);
                    }
                    let result = refused
                        .map_or(Ok(()), |refused| Err(NotSent::Refused(refused.to_string())));
                    self.push(
                        sender,
                        What::Core(Input::Sent {
                            range,
                            attempt,
                            result,
                        }),
                    );
                }
            }
            Effect::Forget(range) => {
                self.node(at).kept.remove(&range);
            }
            Effect::AskHolds {
                inquiry,
                to,
                ranges,
                ..
            } => {
                let reached = self
                    .find(&to)
                    .filter(|_| !self.peers_cut)
                    .filter(|peer| self.nodes[*peer].alive && self.holder(*peer) == to);
                match reached {
                    Some(peer) => self.push(
                        peer,
                        What::Holds {
                            inquiry,
                            ranges,
                            asked: to,
                            sender: at,
                        },
                    ),
                    None => self.unanswered(at, inquiry, to),
                }
            }
            Effect::AnswerHolds { id, answer } => {
                let me = self.holder(at);
                if let Some((sender, inquiry, from)) = self.node(at).questions.remove(&id) {
                    let result = if from == me {
                        Ok(answer)
                    } else {
                        Err(NoAnswer)
                    };
                    self.push(
                        sender,
                        What::Core(Input::HoldsAnswered {
                            inquiry,
                            from,
                            result,
                        }),
                    );
                }
            }
            // No plan is ever made here; those that are followed come by a fault.
            Effect::WritePlan { .. } => {}
            Effect::Happened(_) => {}
            Effect::Fatal(_) => self.fail(Wrong::GaveUp),
        }
    }

    /// The core may not have heard yet that its own Lease is gone.
    fn sends_a_swap(&mut self, at: usize) {
        if !self.is_open(at) && self.nodes[at].renewal.own().phase == OwnPhase::Held {
            self.fail(Wrong::FencedDecides);
        }
    }

    fn unanswered(&mut self, at: usize, inquiry: u64, from: Holder) {
        let result = Err(NoAnswer);
        let message = self.message(
            at,
            What::Core(Input::HoldsAnswered {
                inquiry,
                from,
                result,
            }),
        );
        self.push_later(1, message);
    }

    fn gained(&mut self, at: usize, range: RangeId, epoch: Epoch, kept: bool) {
        let token = self.tokens[usize::from(range)];
        let node = self.node(at);
        node.epochs.insert(range, epoch);
        let state = node.kept.remove(&range).unwrap_or(0);
        node.known.insert(range, if kept { state } else { token });
        node.works.remove(&range);
        if !kept && token > 0 {
            // Nobody was killed, stopped, cut off or edited: everything moves in order.
            if self.seen & !(DRAIN | MESSAGE) == 0 {
                self.fail(Wrong::StateLost);
            } else if self.seen == STALL {
                self.fail(Wrong::MovedByAStall);
            }
        }
        // They see as much as each other, so nothing is gained by a move.
        if self.seen == ALL_STALE {
            self.fail(Wrong::MovedByAStall);
        }
    }

    /// A replica that may act begins to, and from then on knows something of the range that nobody else does.
    /// Behind a closed fence an old message may still be believed: it has no effect.
    fn begin(&mut self, at: usize) {
        let node = &self.nodes[at];
        let begun: Vec<RangeId> = node
            .epochs
            .keys()
            .filter(|range| !node.works.contains(range))
            .copied()
            .collect();
        for range in begun {
            let token = &mut self.tokens[usize::from(range)];
            let node = Arc::make_mut(&mut self.nodes[at]);
            let lost = node.known.get(&range) != Some(token);
            *token += 1;
            node.known.insert(range, *token);
            node.works.insert(range);
            if lost {
                self.fail(Wrong::StateLost);
            }
        }
    }

    fn send(&mut self, at: usize, range: RangeId, epoch: Epoch, attempt: u64, to: &Holder) {
        let token = self.nodes[at].known.get(&range).copied().unwrap_or(0);
        let offer = Offer {
            id: 0,
            from: self.holder(at),
            to_incarnation: to.incarnation.clone(),
            range,
            epoch,
            attempt,
            build: "0.1.0".to_owned(),
        };
        let reached = self.find(to).filter(|_| !self.peers_cut);
        match reached.filter(|peer| self.nodes[*peer].alive) {
            Some(peer) => {
                if self.nodes[peer].paused {
                    self.unreachable(at, range, attempt);
                }
                self.push(
                    peer,
                    What::Offer {
                        offer,
                        token,
                        sender: at,
                    },
                );
            }
            None => self.unreachable(at, range, attempt),
        }
    }

    fn unreachable(&mut self, at: usize, range: RangeId, attempt: u64) {
        let result = Err(NotSent::Unreachable(String::new()));
        let message = self.message(
            at,
            What::Core(Input::Sent {
                range,
                attempt,
                result,
            }),
        );
        self.push_later(PEER_PATIENCE, message);
    }

    // ---- the store ----

    fn at_the_store(&mut self, ask: &Ask, at: usize) -> Option<What> {
        let before = self.store.version;
        let answer = self.ask_the_store(ask, at);
        if self.store.version != before {
            self.wake_watches();
        }
        answer
    }

    fn ask_the_store(&mut self, ask: &Ask, at: usize) -> Option<What> {
        Some(match ask {
            Ask::Own(RenewalEffect::Read, _) => {
                let lease = self.store.replicas.get(&name(at)).cloned();
                What::Renewal(RenewalInput::Read(Ok(lease)))
            }
            Ask::Own(RenewalEffect::Write { version, lease }, started) => {
                What::Renewal(RenewalInput::Written {
                    started: *started,
                    result: self.put_replica(*version, lease.clone()),
                })
            }
            Ask::Replicas(started) => What::Core(Input::Replicas {
                started: *started,
                version: self.store.version,
                leases: self.store.replicas.values().cloned().collect(),
            }),
            Ask::Ranges(started) => What::Core(Input::Ranges {
                started: *started,
                version: self.store.version,
                leases: self.store.ranges.values().cloned().collect(),
            }),
            Ask::Range(range) => What::Core(Input::Range(self.store.ranges.get(range)?.clone())),
            Ask::Evict(lease) => {
                let result = self.put_replica(Some(lease.version), lease.clone());
                if matches!(result, Written::Done(_)) && self.seen == STALL {
                    self.fail(Wrong::MovedByAStall);
                }
                What::Core(Input::Evicted {
                    name: lease.name.clone(),
                    result,
                })
            }
            Ask::Delete(range, version) => {
                let present = self.store.ranges.get(range).map(|lease| lease.version);
                let same = present == Some(*version);
                if same {
                    self.remove_range(*range);
                }
                What::Core(Input::RangeDeleted {
                    range: *range,
                    version: *version,
                    result: Ok(same),
                })
            }
            Ask::Bar(holder) => {
                Arc::make_mut(&mut self.store).barred.insert(holder.clone());
                What::Core(Input::Barred(holder.clone()))
            }
            Ask::Pod(holder) => What::Core(match self.is_said_to_have_ended(holder) {
                true => Input::ProvenDead(holder.clone()),
                false => Input::NotProven(holder.clone()),
            }),
            Ask::Claim(version, lease) => What::Core(Input::Claimed {
                range: lease.range,
                result: self.put_range(*version, lease.clone(), By::Claim),
            }),
            Ask::Swap(version, lease, with_state) => {
                let by = match with_state {
                    true => By::Handoff,
                    false => By::Lease,
                };
                What::Core(Input::Swapped {
                    range: lease.range,
                    result: self.put_range(Some(*version), lease.clone(), by),
                })
            }
        })
    }

    /// What the kubelet says of a process.
    fn is_said_to_have_ended(&self, holder: &Holder) -> bool {
        self.find(holder).is_none_or(|at| {
            let node = &self.nodes[at];
            let process = format!("i{}", node.life);
            !node.alive || node.mourned || first_life(&holder.incarnation) != process
        })
    }

    fn remove_range(&mut self, range: RangeId) {
        let version = self.next_version();
        let store = Arc::make_mut(&mut self.store);
        store.ranges.remove(&range);
        // Nobody may be left who remembers the epoch; the judge forgets it too.
        store.highest.remove(&range);
        store.given.remove(&range);
        store.log.push((version, Change::RangeGone(range)));
    }

    fn next_version(&mut self) -> Version {
        let first = u64::from(self.now) * VERSIONS_IN_A_TICK;
        let store = Arc::make_mut(&mut self.store);
        store.version = (store.version + 1).max(first);
        store.version
    }

    fn put_replica(
        &mut self,
        version: Option<Version>,
        mut lease: ReplicaLease,
    ) -> Written<ReplicaLease> {
        let present = self.store.replicas.get(&lease.name);
        if present.map(|lease| lease.version) != version {
            return Written::Conflict(present.cloned());
        }
        lease.version = self.next_version();
        let store = Arc::make_mut(&mut self.store);
        store.replicas.insert(lease.name.clone(), lease.clone());
        store
            .log
            .push((lease.version, Change::Replica(lease.clone())));
        Written::Done(lease)
    }

    fn put_range(
        &mut self,
        version: Option<Version>,
        mut lease: RangeLease,
        by: By,
    ) -> Written<RangeLease> {
        let range = lease.range;
        let present = self.store.ranges.get(&range).cloned();
        if present.as_ref().map(|lease| lease.version) != version {
            return Written::Conflict(present);
        }
        if self.store.highest.get(&range).copied().unwrap_or(0) >= lease.epoch {
            self.fail(Wrong::EpochFell);
        }
        let taken_from = present
            .as_ref()
            .and_then(|present| present.holder.as_ref())
            .filter(|holder| by == By::Claim && Some(*holder) != lease.holder.as_ref());
        if taken_from.is_some_and(|holder| !self.store.barred.contains(holder)) {
            self.fail(Wrong::TakenUnbarred);
        }
        // One that was given a range has its state, and may not claim it as if it were anybody's.
        if by == By::Claim
            && self.store.given.contains(&range)
            && present
                .as_ref()
                .is_some_and(|present| present.holder == lease.holder)
            && !self.is_damaged()
        {
            self.fail(Wrong::StateLost);
        }
        // A swap that lands after its sender was evicted gives nothing: the receiver knows the sender as
        // dead.
        let given = by == By::Handoff
            && present
                .and_then(|present| present.holder)
                .is_some_and(|giver| {
                    let lease = self.store.replicas.get(&giver.name);
                    lease.and_then(|lease| lease.incarnation.as_ref()) == Some(&giver.incarnation)
                });
        lease.version = self.next_version();
        let store = Arc::make_mut(&mut self.store);
        store.highest.insert(range, lease.epoch);
        if given {
            store.given.insert(range);
        } else {
            store.given.remove(&range);
        }
        store.ranges.insert(range, lease.clone());
        store
            .log
            .push((lease.version, Change::Range(lease.clone())));
        Written::Done(lease)
    }

    /// What the sender of a request hears when nobody answers.
    fn no_answer(&self, ask: Ask) -> Option<What> {
        Some(match ask {
            Ask::Own(RenewalEffect::Read, _) => What::Renewal(RenewalInput::Read(Err(NoAnswer))),
            Ask::Own(RenewalEffect::Write { .. }, started) => {
                What::Renewal(RenewalInput::Written {
                    started,
                    result: Written::Unknown,
                })
            }
            Ask::Replicas(_) => What::Core(Input::ReplicasFailed),
            Ask::Ranges(_) => What::Core(Input::RangesFailed),
            Ask::Range(_) => return None,
            Ask::Evict(lease) => What::Core(Input::Evicted {
                name: lease.name,
                result: Written::Unknown,
            }),
            // The shell says so after a while, and the rules of time hold.
            Ask::Bar(holder) => What::Core(Input::Barred(holder)),
            Ask::Pod(holder) => What::Core(Input::NotProven(holder)),
            Ask::Claim(_, lease) => What::Core(Input::Claimed {
                range: lease.range,
                result: Written::Unknown,
            }),
            Ask::Swap(_, lease, _) => What::Core(Input::Swapped {
                range: lease.range,
                result: Written::Unknown,
            }),
            Ask::Delete(range, version) => What::Core(Input::RangeDeleted {
                range,
                version,
                result: Err(NoAnswer),
            }),
        })
    }

    // ---- faults ----

    /// All that can go wrong here and now.
    pub(super) fn possible(&self, faults: &mut Vec<Fault>) {
        if !self.may_fail() {
            return;
        }
        let Some(first) = self.queue.front() else {
            for at in (0..self.nodes.len()).filter(|at| self.nodes[*at].alive) {
                faults.extend([4, 8].map(|ticks| Fault::Cut(at, ticks)));
                if self.lies {
                    faults.extend([3, 8].map(|ticks| Fault::Mourned(at, ticks)));
                    faults.extend([true, false].map(|all| Fault::Plan(at, all)));
                }
                faults.push(Fault::FreezeWatch(at, 7));
                faults.extend([6, 0].map(|ticks| Fault::Stale(at, ticks)));
                if self.store.replicas.contains_key(&name(at)) {
                    faults.push(Fault::DeleteReplica(at));
                }
                faults.push(Fault::Drain(at));
            }
            faults.extend([4, 8].map(Fault::Stall));
            if !self.peers_cut {
                faults.push(Fault::CutPeers);
            }
            if self.is_at_rest() {
                faults.push(Fault::AllStale(8));
            }
            faults.extend(
                self.store
                    .ranges
                    .keys()
                    .flat_map(|range| [Fault::DeleteRange(*range), Fault::EditEpoch(*range)]),
            );
            return;
        };
        let at = first.at;
        if !self.nodes[at].alive || self.nodes[at].life != first.life {
            return;
        }
        match &first.what {
            What::Ask(ask) => {
                let write = match ask {
                    Ask::Own(effect, _) => matches!(effect, RenewalEffect::Write { .. }),
                    Ask::Replicas(_)
                    | Ask::Ranges(_)
                    | Ask::Range(_)
                    | Ask::Bar(_)
                    | Ask::Pod(_) => false,
                    Ask::Evict(_) | Ask::Claim(..) | Ask::Swap(..) | Ask::Delete(..) => true,
                };
                faults.extend([Fault::Lose, Fault::Hold(0), Fault::HoldAnswer(1)]);
                if write {
                    faults.extend([Fault::LoseAnswer, Fault::Hold(1), Fault::Hold(3)]);
                }
            }
            What::Offer { .. } | What::Core(Input::SwapAnnounced { .. } | Input::Sent { .. }) => {
                faults.extend([
                    Fault::Lose,
                    Fault::Hold(0),
                    Fault::Hold(1),
                    Fault::Hold(4),
                    Fault::Double(0),
                    Fault::Double(3),
                ]);
            }
            What::Holds { .. } | What::Core(Input::HoldsAnswered { .. }) => {
                faults.extend([Fault::Lose, Fault::Hold(0)]);
            }
            What::Core(Input::Frozen { .. }) => faults.extend([Fault::Busy, Fault::Hold(1)]),
            What::Watch => faults.push(Fault::Hold(0)),
            What::Own | What::Said | What::Renewal(_) => faults.push(Fault::Hold(1)),
            _ => {}
        }
        if !self.nodes[at].paused
            && !matches!(first.what, What::Restart | What::Resume | What::End(_))
        {
            faults.extend([2, 9, 0].map(|ticks| Fault::Crash(at, ticks)));
            faults.push(Fault::Panic(at, 2));
            faults.extend([3, 8].map(|ticks| Fault::Pause(at, ticks)));
            faults.push(Fault::Suspend(at, 8));
        }
    }

    /// Departs from the schedule.
    pub(super) fn fault(&mut self, fault: Fault) {
        self.faults -= 1;
        self.rested = 0;
        self.seen |= match fault {
            Fault::Stall(_) => STALL,
            Fault::AllStale(_) => ALL_STALE,
            // It hands over like one that leaves.
            Fault::Stale(..) => DRAIN,
            Fault::DeleteReplica(_) | Fault::DeleteRange(_) | Fault::EditEpoch(_) => DAMAGE,
            // If all leave, there is nobody to hand anything to.
            Fault::Drain(_) if self.seen & DRAIN != 0 => OTHER,
            Fault::Drain(_) => DRAIN,
            // A lost renewal or read can cost a replica its Lease.
            Fault::Lose | Fault::LoseAnswer | Fault::Hold(_) | Fault::HoldAnswer(_)
                if self.is_about_replicas() =>
            {
                OTHER
            }
            Fault::Lose
            | Fault::LoseAnswer
            | Fault::Hold(_)
            | Fault::HoldAnswer(_)
            | Fault::Double(_)
            | Fault::Busy => MESSAGE,
            Fault::Crash(..)
            | Fault::Panic(..)
            | Fault::Pause(..)
            | Fault::Suspend(..)
            | Fault::Cut(..)
            | Fault::Mourned(..)
            | Fault::CutPeers
            | Fault::Plan(..)
            | Fault::FreezeWatch(..) => OTHER,
        };
        match fault {
            Fault::Crash(at, ticks) => self.crash(at, ticks),
            Fault::Panic(at, ticks) => {
                self.renewal(at, RenewalInput::GiveUp(Vec::new()));
                let message = self.message(at, What::End(ticks));
                self.push_later(PANIC_TICKS, message);
            }
            Fault::Pause(at, ticks) | Fault::Suspend(at, ticks) => {
                let now = self.now;
                let node = self.node(at);
                node.paused = true;
                if matches!(fault, Fault::Suspend(..)) || broken!(ClockStops) {
                    node.stopped_since = Some(now);
                }
                let message = self.message(at, What::Resume);
                self.push_later(ticks, message);
            }
            Fault::Cut(at, ticks) => {
                self.node(at).cut_until = self.now + ticks;
                if broken!(WitnessOfTheLiving) {
                    self.end_is_witnessed(at);
                }
            }
            Fault::Mourned(at, ticks) => {
                let until = self.now + ticks;
                let node = self.node(at);
                (node.cut_until, node.mourned) = (until, true);
            }
            Fault::FreezeWatch(at, ticks) => self.node(at).frozen_until = self.now + ticks,
            Fault::CutPeers => self.peers_cut = true,
            Fault::Stall(ticks) => self.down_until = self.now + ticks,
            Fault::Stale(at, ticks) => {
                self.push(at, What::Current(false));
                if ticks > 0 {
                    let message = self.message(at, What::Current(true));
                    self.push_later(ticks, message);
                }
            }
            Fault::AllStale(ticks) => {
                for at in 0..self.nodes.len() {
                    let late = u32::from(at > 0);
                    for (after, current) in [(late, false), (ticks + late, true)] {
                        let message = self.message(at, What::Current(current));
                        self.push_later(after, message);
                    }
                }
            }
            Fault::DeleteReplica(at) => {
                let version = self.next_version();
                let store = Arc::make_mut(&mut self.store);
                store.replicas.remove(&name(at));
                store.log.push((version, Change::ReplicaGone(name(at))));
                self.wake_watches();
            }
            Fault::DeleteRange(range) => {
                self.remove_range(range);
                self.wake_watches();
            }
            Fault::EditEpoch(range) => {
                let version = self.next_version();
                let store = Arc::make_mut(&mut self.store);
                if let Some(lease) = store.ranges.get_mut(&range) {
                    lease.version = version;
                    lease.epoch = EPOCH_MAX;
                    store.given.remove(&range);
                    store.log.push((version, Change::Range(lease.clone())));
                }
                self.wake_watches();
            }
            Fault::Drain(at) => self.drain(at),
            Fault::Plan(to, all) => self.plan(to, all),
            Fault::Lose
            | Fault::LoseAnswer
            | Fault::Hold(_)
            | Fault::HoldAnswer(_)
            | Fault::Double(_)
            | Fault::Busy => {
                if let Some(first) = self.queue.pop_front() {
                    self.fault_of_a_message(fault, first);
                }
            }
        }
        self.judge();
    }

    fn is_about_replicas(&self) -> bool {
        self.queue.front().is_some_and(|first| {
            matches!(
                first.what,
                What::Ask(Ask::Own(..) | Ask::Replicas(_))
                    | What::Own
                    | What::Said
                    | What::Renewal(_)
            )
        })
    }

    fn plan(&mut self, to: usize, all: bool) {
        let members: Vec<String> = (0..self.nodes.len()).map(name).collect();
        let ranges = self.tokens.len();
        let plan = u16::try_from(to).map(|to| Plan::new(members, vec![to; ranges]));
        let Ok(Ok(plan)) = plan else { return };
        let lease = PlanLease {
            version: self.next_version(),
            number: 1,
            text: plan.to_string(),
            planner: name(to),
        };
        let gone = self.next_version();
        for at in (0..self.nodes.len()).filter(|at| all || *at == to) {
            self.push(at, What::Core(Input::Plan(lease.clone())));
            let message = self.message(at, What::Core(Input::PlanGone(gone)));
            self.push_later(PLANNED_TICKS, message);
        }
    }

    fn drain(&mut self, at: usize) {
        self.seen |= DRAIN;
        let until = self.clock(at) + 10 * RETRY_PERIOD;
        self.push(at, What::Core(Input::Drain(until)));
        let message = self.message(at, What::Restart);
        self.push_later(16, message);
    }

    fn fault_of_a_message(&mut self, fault: Fault, first: Message) {
        let at = first.at;
        match (fault, first.what.clone()) {
            (Fault::Lose, What::Ask(ask)) => self.unheard(at, ask),
            (Fault::LoseAnswer, What::Ask(ask)) => {
                if self.now >= self.down_until && self.now >= self.nodes[at].cut_until {
                    self.at_the_store(&ask, at);
                }
                self.unheard(at, ask);
            }
            (Fault::Hold(0), _) => self.queue.push_back(first),
            (Fault::Hold(ticks), What::Ask(ask)) => {
                let message = self.message(at, What::Land(ask.clone()));
                self.push_later(ticks, message);
                self.unheard(at, ask);
            }
            (Fault::HoldAnswer(ticks), What::Ask(ask)) => {
                if self.now < self.down_until || self.now < self.nodes[at].cut_until {
                    self.unheard(at, ask);
                } else if let Some(answer) = self.at_the_store(&ask, at) {
                    let message = self.message(at, answer);
                    self.push_later(ticks, message);
                }
            }
            (Fault::Lose, what) => self.peer_gives_up(at, &what),
            (Fault::Hold(ticks), what) => {
                if ticks >= PEER_PATIENCE {
                    self.peer_gives_up(at, &what);
                }
                self.push_later(ticks, first);
            }
            (Fault::Double(0), _) => {
                self.queue.push_back(first.clone());
                self.queue.push_front(first);
            }
            (Fault::Double(ticks), _) => {
                self.push_later(ticks, first.clone());
                self.queue.push_front(first);
            }
            (Fault::Busy, What::Core(Input::Frozen { range, epoch, .. })) => {
                self.node(at).epochs.insert(range, epoch);
                let busy = true;
                self.queue.push_front(Message {
                    what: What::Core(Input::Frozen { range, epoch, busy }),
                    ..first
                });
            }
            _ => self.queue.push_front(first),
        }
    }

    fn unheard(&mut self, at: usize, ask: Ask) {
        if let Some(answer) = self.no_answer(ask) {
            let message = self.message(at, answer);
            self.push_later(1, message);
        }
    }

    /// What was meant for a process that has ended.
    fn refused_by_nobody(&mut self, at: usize, what: &What) {
        if matches!(what, What::Offer { .. } | What::Holds { .. }) {
            self.peer_gives_up(at, what);
        }
    }

    /// Those who wait for an answer to this hear that there is none.
    fn peer_gives_up(&mut self, at: usize, what: &What) {
        match what {
            What::Offer { offer, sender, .. } => {
                self.unreachable(*sender, offer.range, offer.attempt);
            }
            What::Core(Input::Sent { range, attempt, .. }) => {
                self.unreachable(at, *range, *attempt);
            }
            What::Holds {
                inquiry,
                sender,
                asked,
                ..
            } => self.unanswered(*sender, *inquiry, asked.clone()),
            What::Core(Input::HoldsAnswered { inquiry, from, .. }) => {
                self.unanswered(at, *inquiry, from.clone());
            }
            _ => {}
        }
    }

    // ---- judges ----

    /// What may never be.
    fn judge(&mut self) {
        let mut owned: BTreeMap<RangeId, usize> = BTreeMap::new();
        for at in 0..self.nodes.len() {
            let node = &self.nodes[at];
            if node.epochs.is_empty() || !self.is_open(at) || self.is_refused(at) {
                continue;
            }
            let me = self.holder(at);
            let evicted = self
                .store
                .replicas
                .get(&me.name)
                .is_some_and(|lease| lease.ended.contains(&me.incarnation));
            let acts = evicted && !self.stood_still(at) && !self.lenient;
            let mut wrong = acts.then_some(Wrong::EvictedActs);
            for (range, epoch) in &node.epochs {
                if owned.insert(*range, at).is_some() {
                    wrong = Some(Wrong::TwoOwners);
                }
                // After a deletion by hand epochs may begin again.
                let stale = self.store.ranges.get(range).is_some_and(|lease| {
                    lease.epoch > *epoch
                        || (lease.epoch == *epoch && lease.holder.as_ref() != Some(&me))
                });
                if stale && !self.is_damaged() {
                    wrong = wrong.or(Some(Wrong::StaleEpochActs));
                }
            }
            if let Some(wrong) = wrong {
                return self.fail(wrong);
            }
            if !self.nodes[at].paused {
                self.begin(at);
            }
        }
    }

    /// Every range has an owner that may act and sees what happens, and loads are even.
    fn is_at_rest(&self) -> bool {
        if !self.later.is_empty() {
            return false;
        }
        let current = self.nodes.iter().any(|node| node.alive && !node.stale);
        let mut owned: BTreeSet<RangeId> = BTreeSet::new();
        let (mut most, mut least) = (0, usize::MAX);
        for (at, node) in self.nodes.iter().enumerate() {
            if !node.alive {
                continue;
            }
            if !self.is_open(at) || self.now < node.frozen_until {
                return false;
            }
            if node.stale && current {
                if !node.epochs.is_empty() {
                    return false;
                }
                continue;
            }
            most = most.max(node.epochs.len());
            least = least.min(node.epochs.len());
            owned.extend(node.epochs.keys());
        }
        let nobody = least == usize::MAX;
        nobody || (owned.len() == self.tokens.len() && most - least <= 1)
    }
}
