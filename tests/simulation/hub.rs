//! What a simulated run shares: the server, the dice, what is broken at the moment, the judge, and the record
//! of all that happened. Everything runs on one thread; the lock is only for the compiler, and is never held
//! across an await.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt::Write as _,
    sync::{Arc, Mutex, PoisonError, atomic::AtomicBool},
    time::Duration,
};

use controllers_kit::{FlagValue, SignedDuration, Timestamp, testing};
use coordinator::Door;
use futures::task::AtomicWaker;
use node::view::View;
use tokio::{sync::Notify, time::Instant};

use crate::{
    dice::Dice,
    judge::{By, Judge, Verdict, Writer},
    mutants::Mutant,
    poison::Poison,
    server::{Answer, Log, Request, Server},
    stories::Recorder,
};

/// Lines of the record that a violation shows.
const TALE: usize = 160;
/// A replica knows after so long that its watches bring nothing.
const NOTICED_AFTER: Duration = Duration::from_secs(2);

/// How requests fare that a replica sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    /// Connections are refused.
    Refused,
    /// Nothing comes back.
    Silent,
}

/// What is known of a replica from outside.
#[derive(Default)]
pub struct Seen {
    /// Which start of it runs; 0 for none yet.
    pub life: u32,
    /// Whether it runs (stopped counts as running).
    pub alive: bool,
    /// Stopped until then.
    pub paused_until: Option<Instant>,
    /// By how much its clock is late, where it stops with the process.
    pub late: Arc<Mutex<Duration>>,
    /// The API server can't be reached until then.
    pub outage: Option<(Instant, Outage)>,
    /// Renewals and all else about Leases get nowhere until then: they have connections of their own.
    pub no_leases_until: Option<Instant>,
    /// Watches bring nothing until then.
    pub watches_frozen_until: Option<Instant>,
    /// Since when that is so.
    pub watches_frozen_since: Option<Instant>,
    /// Some resources' watches bring nothing until then, while the others continue.
    pub some_frozen_until: Option<(BTreeSet<Log>, Instant)>,
    /// Grows when all its watches break.
    pub watches_broken: u32,
    /// Peers can't be reached, nor reach it, until then.
    pub cut_off_until: Option<Instant>,
    /// Where peers speak to it.
    pub door: Option<Door>,
    /// Its fence.
    pub fence: Option<Arc<coordinator::Fence>>,
    /// How far its watches have come: when a change was sent, and when it had happened.
    pub shown: BTreeMap<Log, Vec<(Instant, Instant)>>,
    /// Its cache.
    pub view: Option<Arc<dyn View>>,
    /// Where its process notes whether anything of it is in flight.
    pub in_flight: Arc<AtomicBool>,
    /// Nothing of its last process was when that ended.
    pub still: bool,
    /// When the kubelet says that its last process has ended.
    pub mourned_at: Option<Instant>,
    /// From when until when the kubelet says so of the one that runs.
    pub misjudged: Option<(Instant, Instant)>,
}

impl Seen {
    /// Whether its watches have stood still for so long that it knows.
    pub fn sees_nothing(&self) -> bool {
        let now = Instant::now();
        self.watches_frozen_until.is_some_and(|until| now < until)
            && self
                .watches_frozen_since
                .is_some_and(|since| now >= since + NOTICED_AFTER)
    }

    /// Its watches bring nothing for so long.
    pub fn freeze_watches(&mut self, length: Duration) {
        let now = Instant::now();
        if self.watches_frozen_until.is_none_or(|until| until <= now) {
            self.watches_frozen_since = Some(now);
        }
        self.watches_frozen_until = Some(now + length);
    }

    /// Until when a log's watch brings nothing, if that is still to come.
    pub fn frozen_until(&self, log: Log) -> Option<Instant> {
        let some = self.some_frozen_until.as_ref();
        let some = some.filter(|(logs, _)| logs.contains(&log));
        self.watches_frozen_until
            .max(some.map(|(_, until)| *until))
            .filter(|until| *until > Instant::now())
    }
}

/// What befalls a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It arrives, and so does its answer.
    Fine,
    /// There is no connection.
    Refused,
    /// It never arrives; that shows then.
    Silent(Instant),
    /// It gets lost.
    Lost,
    /// It arrives, but its answer gets lost.
    AnswerLost,
}

/// A request's way there and back.
#[derive(Clone, Copy, Debug)]
pub struct Road {
    /// What befalls it.
    pub fate: Fate,
    /// There.
    pub out: Duration,
    /// Back.
    pub back: Duration,
    /// The process is stopped between its last check and the send, so long.
    pub held: Option<Duration>,
}

/// A request on its way.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// By which replica.
    pub replica: usize,
    /// In which life of it.
    pub life: u32,
    /// When.
    pub at: Instant,
    /// Whether its process was stopped just before the send.
    pub held: bool,
    /// Whether nobody waits for the answer any more.
    pub aborted: bool,
}

/// Counted over a run, for the report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Writes of controllers that the server carried out.
    pub writes: u64,
    /// Writes of an older epoch that came after a newer one's beginning, by a process that had been stopped
    /// between check and send.
    pub stale: u64,
    /// Faults.
    pub faults: u64,
    /// Ranges taken over, handed over.
    pub moves: u64,
}

/// All of it, under the lock.
pub struct State {
    /// The API server.
    pub server: Server,
    /// For the network and the server.
    pub dice: Dice,
    /// Whether faults may happen now.
    pub faulty: bool,
    /// The replicas, by number.
    pub replicas: BTreeMap<usize, Seen>,
    /// What must hold.
    pub judge: Judge,
    /// The deliberate fault, if one is tried.
    pub mutant: Option<Mutant>,
    /// Counted.
    pub counts: Counts,
    /// The controllers that have written.
    pub wrote: BTreeSet<String>,
    /// Writes on their way, of processes that have gone meanwhile, too.
    pub under_way: usize,
    /// Replicas that have ended by themselves and are still to be dropped.
    pub ended: Vec<usize>,
    /// A key that kills, where there is one.
    pub poison: Poison,
    /// Writes a story down, where one is played.
    pub recorder: Option<Recorder>,
    /// Flags of replicas with another value than [`crate::replica::flags`] has.
    pub flags: Vec<(&'static str, FlagValue)>,
    origin: Instant,
    hash: u64,
    lines: VecDeque<String>,
    /// Whether every line is printed as it is written.
    pub loud: bool,
    violation: Option<String>,
}

/// What a run shares.
pub struct Hub {
    state: Mutex<State>,
    /// Wakes one that polls the replicas.
    pub waker: AtomicWaker,
    /// Reports when all faults end, and one that is stuck continues.
    pub healed: Notify,
}

impl Hub {
    /// For a run that begins now.
    pub fn new(server: Server, dice: Dice, mutant: Option<Mutant>, loud: bool) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                judge: Judge::new(&server),
                server,
                dice,
                faulty: false,
                replicas: BTreeMap::new(),
                mutant,
                counts: Counts::default(),
                wrote: BTreeSet::new(),
                under_way: 0,
                ended: Vec::new(),
                poison: Poison::default(),
                recorder: None,
                flags: Vec::new(),
                origin: Instant::now(),
                hash: 0xcbf2_9ce4_8422_2325,
                lines: VecDeque::new(),
                loud,
                violation: None,
            }),
            waker: AtomicWaker::new(),
            healed: Notify::new(),
        })
    }

    /// Reads or changes.
    pub fn with<R>(&self, run: impl FnOnce(&mut State) -> R) -> R {
        run(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Stops a replica for a while, as SIGSTOP does: nothing of it runs, its clock continues.
    pub fn pause(self: &Arc<Self>, replica: usize, length: Duration) {
        let until = Instant::now() + length;
        self.with(|state| {
            let seen = state.replicas.entry(replica).or_default();
            seen.paused_until = Some(until);
            state.counts.faults += 1;
            state.log(format_args!("r-{replica} is stuck for {length:?}"));
        });
        let hub = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep_until(until).await;
            hub.with(|state| {
                if let Some(seen) = state.replicas.get_mut(&replica)
                    && seen.paused_until == Some(until)
                {
                    seen.paused_until = None;
                    if state.mutant == Some(Mutant::StoppedClock) {
                        *seen.late.lock().unwrap_or_else(PoisonError::into_inner) += length;
                    }
                    state.log(format_args!("r-{replica} continues"));
                }
            });
            hub.waker.wake();
        });
    }

    /// The clock by which a replica's fence closes.
    pub fn clock(&self, replica: usize) -> coordinator::Clock {
        // The judge asks fences while it holds the state.
        let (origin, late) = self.with(|state| {
            let seen = state.replicas.entry(replica).or_default();
            (state.origin, Arc::clone(&seen.late))
        });
        coordinator::Clock::given(move || {
            let late = *late.lock().unwrap_or_else(PoisonError::into_inner);
            origin.elapsed().saturating_sub(late)
        })
    }

    /// Whether a kubelet says that a process of a replica has ended: before it has, only where it errs.
    pub fn is_mourned(&self, replica: usize, life: u32) -> bool {
        self.with(|state| {
            let Some(seen) = state.replicas.get(&replica) else {
                return false;
            };
            let mourned = seen.mourned_at.is_some_and(|at| at <= Instant::now());
            let errs = seen
                .misjudged
                .is_some_and(|(_, until)| until > Instant::now());
            let said = if seen.alive { errs } else { mourned };
            life < seen.life || (life == seen.life && said)
        })
    }

    /// Whether a replica is stuck.
    pub fn is_paused(&self, replica: usize) -> bool {
        self.with(|state| {
            state
                .replicas
                .get(&replica)
                .is_some_and(|seen| seen.paused_until.is_some())
        })
    }
}

/// What somebody does to a Lease by hand.
#[derive(Clone, Copy, Debug)]
pub enum Edit {
    /// It is deleted.
    Delete,
    /// A range's epoch is set to the end of its type.
    EndOfType,
    /// A range's epoch is set back.
    SetBack,
    /// It is written as it is.
    Touch,
    /// It loses its labels, so that no replica sees it.
    Unlabel,
}

impl Edit {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Delete,
        Self::EndOfType,
        Self::SetBack,
        Self::Touch,
        Self::Unlabel,
    ];
}

impl State {
    /// Somebody edits a Lease by hand. One of a replica can only be deleted.
    pub fn edit_by_hand(&mut self, name: &str, edit: Edit) {
        let Some((_, lease)) = self.server.leases().find(|(one, _)| *one == name) else {
            return;
        };
        let epoch = lease["spec"]["leaseTransitions"].as_i64();
        let epoch = epoch
            .and_then(|epoch| i32::try_from(epoch).ok())
            .unwrap_or(0);
        let range = name
            .rsplit_once("-range-")
            .and_then(|(_, number)| number.parse().ok());
        self.log(format_args!("somebody edits the Lease {name}: {edit:?}"));
        match (edit, range) {
            (Edit::Delete, _) | (_, None) => {
                self.server.delete_lease(name);
            }
            (Edit::EndOfType, Some(_)) => self.server.set_epoch(name, i32::MAX),
            (Edit::SetBack, Some(range)) => {
                self.judge.set_back(range);
                self.server.set_epoch(name, (epoch - 2).max(0));
            }
            (Edit::Touch, Some(_)) => self.server.set_epoch(name, epoch),
            (Edit::Unlabel, Some(_)) => self.server.unlabel(name),
        }
        // At once: its owner may make it again before anybody else writes a Lease.
        self.judge.leases_changed(&self.server);
    }

    /// Since the start.
    pub fn elapsed(&self) -> Duration {
        self.origin.elapsed()
    }

    /// The cluster's time.
    pub fn now(&self) -> Timestamp {
        let elapsed = SignedDuration::try_from(self.elapsed()).expect("a run lasts minutes");
        testing::at("12:00:00") + elapsed
    }

    /// Writes a line of the record.
    pub fn log(&mut self, what: std::fmt::Arguments<'_>) {
        let mut line = String::new();
        let _ = write!(line, "{:10.3} {what}", self.elapsed().as_secs_f64());
        for byte in line.bytes() {
            self.hash ^= u64::from(byte);
            self.hash = self.hash.wrapping_mul(0x0000_0100_0000_01b3);
        }
        if self.loud {
            println!("{line}");
        }
        if self.lines.len() == TALE {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// Writes it down where a story is played.
    pub fn record(&mut self, what: impl FnOnce(&mut Recorder)) {
        if let Some(recorder) = &mut self.recorder {
            what(recorder);
        }
    }

    /// The record, in one number.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The last lines of the record.
    pub fn tale(&self) -> String {
        self.lines.iter().fold(String::new(), |mut tale, line| {
            tale.push_str("\n  ");
            tale.push_str(line);
            tale
        })
    }

    /// Something that must not be. The first one counts; of a deliberate fault that one rule must catch, only
    /// what breaks it.
    pub fn violate(&mut self, what: String) {
        let rule = self.mutant.and_then(Mutant::rule);
        if rule.is_some_and(|rule| !what.contains(rule)) {
            self.log(format_args!("passed over: {what}"));
            return;
        }
        self.log(format_args!("VIOLATION {what}"));
        self.violation.get_or_insert(what);
    }

    /// What must not have been.
    pub fn violation(&self) -> Option<&str> {
        self.violation.as_deref()
    }

    /// A watch of a replica has been sent all that happened before a place.
    pub fn show(&mut self, replica: usize, log: Log, place: Option<usize>) {
        let now = Instant::now();
        let until = place.map_or(Some(now), |place| self.server.happened_at(log, place));
        let seen = self.replicas.entry(replica).or_default();
        if let Some(until) = until {
            seen.shown.entry(log).or_default().push((now, until));
        }
    }

    /// How a request of a replica will fare.
    pub fn road(&mut self, replica: usize, request: &Request) -> Road {
        let now = Instant::now();
        let faulty = self.faulty;
        let dice = &mut self.dice;
        let mut road = Road {
            fate: Fate::Fine,
            out: dice.millis(1, 12),
            back: dice.millis(1, 12),
            held: None,
        };
        let seen = self.replicas.entry(replica).or_default();
        match seen.outage {
            Some((until, Outage::Refused)) if now < until => road.fate = Fate::Refused,
            Some((until, Outage::Silent)) if now < until => road.fate = Fate::Silent(until),
            _ => seen.outage = None,
        }
        if let Some(until) = seen.no_leases_until.filter(|until| now < *until)
            && request.about_leases()
            && road.fate == Fate::Fine
        {
            road.fate = Fate::Silent(until);
        }
        if !faulty || road.fate != Fate::Fine {
            return road;
        }
        if dice.chance(20) {
            // In flight at the server for less than the time between a fence's end and its Lease's.
            road.out = dice.millis(50, 1500);
        }
        if dice.chance(20) {
            road.back = dice.millis(50, 4000);
        }
        if dice.chance(8) {
            road.fate = Fate::Lost;
        } else if dice.chance(8) {
            road.fate = Fate::AnswerLost;
        }
        if request.writes() && request.user_agent.contains("range=") && dice.chance(6) {
            road.held = Some(dice.millis(200, 14_000));
        }
        road
    }

    /// A request has come to the server.
    pub fn arrive(&mut self, sent: Sent, request: &Request) -> Answer {
        let now = self.now();
        self.server.advance_to(now);
        let changed = self
            .mutant
            .and_then(|mutant| mutant.request(request, &self.counts))
            .or_else(|| self.poison.lease(request));
        let request = changed.as_ref().unwrap_or(request);
        if !request.writes() {
            let view = self
                .replicas
                .get(&sent.replica)
                .and_then(|seen| seen.view.clone());
            if let Some(answer) = self.mutant.and_then(|mutant| mutant.read(request, view)) {
                return answer;
            }
            return self.server.handle(request).0;
        }
        let writer = Writer::parse(&request.user_agent);
        let (answer, changes) = self.server.handle(request);
        let code = match &answer {
            Answer::Whole { code, .. } => *code,
            Answer::Watch(_) => 200,
        };
        let done = code < 300;
        if request.about_leases() {
            self.log(format_args!(
                "r-{}/{} {} {} {code}",
                sent.replica, sent.life, request.method, request.path
            ));
            for line in self.judge.leases_changed(&self.server) {
                self.counts.moves += 1;
                self.log(format_args!("  {line}"));
            }
            if let Some(recorder) = &mut self.recorder {
                recorder.leases(sent.replica, request, code, &self.server);
            }
            return answer;
        }
        self.record(|recorder| recorder.answered(&sent, &writer, request, code, &changes));
        let flags = match (sent.held, sent.aborted) {
            (true, _) => " (stood still)",
            (false, true) => " (nobody waits)",
            (false, false) => "",
        };
        self.log(format_args!(
            "r-{}/{} {} {} {} {code}{flags}",
            sent.replica,
            sent.life,
            writer,
            request.method,
            describe(request, &changes),
        ));
        if done {
            self.counts.writes += 1;
            if !changes.is_empty() && !self.wrote.contains(&writer.controller) {
                self.wrote.insert(writer.controller.clone());
            }
            let mut stale = false;
            match self.judge.fence(&self.replicas, &sent, &writer) {
                Verdict::Fine => {}
                Verdict::Stale => {
                    stale = true;
                    self.counts.stale += 1;
                }
                Verdict::Wrong(what) => self.violate(what),
            }
            let shown = self
                .replicas
                .get(&sent.replica)
                .filter(|seen| seen.life == sent.life && !sent.held && !sent.aborted)
                .map(|seen| &seen.shown);
            let by = By {
                writer: &writer,
                shown,
                sent: sent.at,
                stale,
            };
            let wrong = self.judge.after(&self.server, &changes, Some(&by));
            // A stopped process' write is the server's fence's to refuse; what it does is made good by the
            // new owner.
            for what in wrong.into_iter().filter(|_| !stale) {
                self.violate(what);
            }
        }
        match self.mutant {
            Some(mutant) => mutant.answer(answer),
            None => answer,
        }
    }

    /// Something else than a replica changes the cluster.
    pub fn others(&mut self, what: &str, change: impl FnOnce(&mut testing::World)) -> bool {
        let now = self.now();
        self.server.advance_to(now);
        let changes = self.server.change(change);
        for change in &changes {
            self.log(format_args!("{what}: {}", change_words(change)));
            self.record(|recorder| recorder.other(what, change));
        }
        for what in self.judge.after(&self.server, &changes, None) {
            self.violate(what);
        }
        !changes.is_empty()
    }
}

fn describe(request: &Request, changes: &[crate::server::Change]) -> String {
    match changes.first() {
        Some(change) => change_words(change),
        None => request.path.clone(),
    }
}

fn change_words(change: &crate::server::Change) -> String {
    let object = change.object();
    let meta = object.metadata();
    let what = match (&change.old, &change.new) {
        (None, _) => "made",
        (_, None) => "gone",
        (Some(old), Some(new))
            if !old.metadata().is_terminating() && new.metadata().is_terminating() =>
        {
            "going"
        }
        _ => "changed",
    };
    format!(
        "{:?} {}/{} {what} @{}",
        object.resource(),
        meta.namespace,
        meta.name,
        meta.resource_version
    )
}
