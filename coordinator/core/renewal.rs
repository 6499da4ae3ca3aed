//! A replica's own Lease: acquire, renew, release, and the fence that hangs on it.
//!
//! Kept true: while the fence is open, less than the renew deadline has passed since the start of a renewal
//! that landed, and the Lease named this incarnation when it landed. So one that changes the holder by
//! compare-and-swap a lease duration after the last renewal knows that the fence has closed.

use std::sync::Arc;

use crate::{
    deaths::{Death, Deaths, Work, first_life, unix_second},
    lease::{NoAnswer, ReplicaLease, Status, Time, Version, Written},
    mutation::broken,
    reachable::reachable,
    slow_start::Crashes,
};

/// A dead process may have had one renewal under way, and somebody may have touched its Lease; two are a sign
/// of life.
pub(crate) const RENEWALS_OF_THE_LIVING: u32 = 2;

/// A retry period has this many renewals at most, however much is announced.
const ANNOUNCEMENTS_EACH_PERIOD: u32 = 50;

/// Who renews, and how often.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RenewalConfig {
    /// The replica's name.
    pub name: String,
    /// The random id of this start. Later lives of the process count on: `<id>`, `<id>-1`, `<id>-2` …
    pub incarnation: String,
    /// How long others wait before they call this replica dead; how long it waits for a Lease of its name.
    pub lease_duration: Time,
    /// How long after a renewal's start the fence stays open.
    pub renew_deadline: Time,
    /// Time between renewals.
    pub retry_period: Time,
    /// The Unix second at time 0, by the clock of this machine; `None` where lives that ended without leaving
    /// are not remembered.
    pub epoch_second: Option<i64>,
    /// The same where deaths are recorded, with the keys that were in flight; `None` where they are not.
    pub deaths_from: Option<i64>,
    /// The processes of this name that have ended for certain; `None` where nothing shows it.
    pub gone: Option<Gone>,
}

/// Processes that have ended, by something that only the end of a process brings about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gone {
    /// The first incarnation of each.
    pub processes: Vec<String>,
    /// They had ended by then.
    pub by: Time,
    /// The last of them had nothing in flight when it ended, nor had it given up anything that the API server
    /// may still execute.
    pub still: bool,
    /// How long after its end what one of them had sent may still be executed.
    pub late: Time,
}

impl Gone {
    /// Whether the process of this incarnation is one of them.
    pub(crate) fn names(&self, incarnation: &str) -> bool {
        let process = first_life(incarnation);
        self.processes.iter().any(|one| one == process)
    }

    /// When nothing of a Lease's holder can be executed any more: a renewal may have been under way when it
    /// ended, two show that it has not. `None` where the holder is none of them or lives.
    pub(crate) fn over_at(&self, seen: &Sighting, retry_period: Time) -> Option<Time> {
        if seen.renewals >= RENEWALS_OF_THE_LIVING || !self.names(&seen.holder) {
            return None;
        }
        let ended = match seen.renewals {
            0 => self.by,
            // Who lives has renewed again by then.
            _ => self.by.max(seen.since + retry_period + retry_period / 3),
        };
        let process = first_life(&seen.holder);
        let is_last = self.processes.last().is_some_and(|last| last == process);
        let is_still = (self.still && is_last) || broken!(PredecessorIsTakenAtOnce);
        let late = match is_still {
            true => Time::ZERO,
            false => self.late,
        };
        Some(ended + late)
    }
}

/// The holder of a Lease, as far as it was watched.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Sighting {
    pub(crate) holder: String,
    /// The Lease's version, and since when it has it.
    pub(crate) version: Version,
    pub(crate) since: Time,
    /// How often the Lease has changed meanwhile.
    pub(crate) renewals: u32,
}

impl Sighting {
    pub(crate) fn first(now: Time, holder: String, version: Version) -> Self {
        Self {
            holder,
            version,
            since: now,
            renewals: 0,
        }
    }

    /// The same holder at this version: whether that is another one than before.
    pub(crate) fn again(&mut self, now: Time, version: Version) -> bool {
        let changed = self.version != version;
        if changed {
            (self.version, self.since) = (version, now);
            self.renewals += 1;
        }
        changed
    }
}

/// The state of the own Lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OwnPhase {
    /// Not asked to join yet.
    Idle,
    /// On its way to the Lease.
    Joining,
    /// The Lease is held.
    Held,
    /// On its way out.
    Releasing,
    /// The Lease is released, or was another's already.
    Released,
    /// Another live process, of this incarnation, has the name.
    NameTaken(String),
}

/// The first renewal that landed after the fence had closed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Regained {
    /// When it was started.
    pub started: Time,
    /// When its answer came.
    pub seen: Time,
}

/// What the rest of the replica knows of the own Lease. A level, not an event: only the newest one counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OwnLease {
    /// The present incarnation.
    pub incarnation: String,
    /// Its state.
    pub phase: OwnPhase,
    /// The fence is open until then; `None` while it is closed.
    pub open_until: Option<Time>,
    /// With a closed fence and a Lease that is held: the renewal that got it back, after whose end range
    /// Leases must be read before the fence opens.
    pub regained: Option<Regained>,
    /// While the Lease is held: when the newest renewal that has landed was started, and a version that the
    /// Lease has had since then.
    pub landed: Option<(Time, Version)>,
    /// How often this process has been evicted.
    pub evictions: u32,
    /// When lives of this replica ended that did not leave.
    pub crashes: Crashes,
}

/// What happens to a [`Renewal`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RenewalInput {
    /// Time passes.
    Tick,
    /// Go and get the Lease.
    Join,
    /// Say this of the replica from now on.
    Status(Status),
    /// Range Leases were read after this renewal had ended: the fence may open.
    Reopen(Regained),
    /// What is in flight is to be written before it continues: renew as soon as possible.
    Announce,
    /// This process did not run for a while: the fence is closed until a renewal has landed that is started
    /// from now on.
    Gap,
    /// Give the Lease up.
    Release,
    /// Give the Lease up as a replica that has died, with these keys in flight: it panics or a thread of it
    /// hangs, and nobody can hand anything over.
    GiveUp(Vec<Work>),
    /// The Lease as read; `Err` if the read failed.
    Read(Result<Option<ReplicaLease>, NoAnswer>),
    /// What came of the newest write, and when it was started.
    Written {
        /// When the request was started.
        started: Time,
        /// What came of it.
        result: Written<ReplicaLease>,
    },
}

/// What a [`Renewal`] wants done.
#[allow(
    clippy::large_enum_variant,
    reason = "one a second, moved once to the shell that performs it"
)]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RenewalEffect {
    /// Read the own Lease, consistently.
    Read,
    /// Write the own Lease; `version` is `None` to create it.
    Write {
        /// The version it must still have.
        version: Option<Version>,
        /// What it is to say; its `version` is without meaning.
        lease: ReplicaLease,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State {
    Idle,
    /// Wants to read the Lease.
    Read,
    /// Another incarnation holds the Lease: waits for it to release, to fall silent or to prove that it
    /// lives.
    Wait {
        other: Sighting,
        first: Time,
    },
    /// Nobody holds it: `None` if it does not exist.
    Acquire {
        version: Option<Version>,
    },
    Held {
        version: Version,
    },
    /// A write of ours had no clear end, or somebody touched the Lease: read before the next write.
    Check,
    Releasing {
        version: Option<Version>,
    },
    Released,
    NameTaken {
        other: String,
    },
}

/// The machine that keeps the own Lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Renewal {
    config: RenewalConfig,
    state: State,
    status: Status,
    evictions: u32,
    /// A request is under way; there is never more than one.
    busy: bool,
    next_at: Time,
    release: bool,
    /// The death that the Lease is to say when it is released.
    death: Option<Vec<Work>>,
    /// Renewals that were started earlier open nothing.
    counts_from: Time,
    open_until: Option<Time>,
    renewed: Option<Time>,
    regained: Option<Regained>,
    /// As read or written last.
    ended: Vec<String>,
    /// As read last, with the death of the holder that is replaced.
    deaths: Deaths,
    /// An announcement is waited for, which no write under way carries.
    announce: bool,
    /// The life of this process whose Lease was deleted: over, as only this process can say.
    over: Option<String>,
}

impl Renewal {
    /// A replica that has not joined yet.
    pub fn new(config: RenewalConfig, status: Status) -> Self {
        Self {
            config,
            state: State::Idle,
            status,
            evictions: 0,
            busy: false,
            next_at: Time::ZERO,
            release: false,
            death: None,
            counts_from: Time::ZERO,
            open_until: None,
            renewed: None,
            regained: None,
            ended: Vec::new(),
            deaths: Deaths::default(),
            announce: false,
            over: None,
        }
    }

    /// These processes of its name have ended.
    #[cfg(test)]
    pub(crate) fn set_gone(&mut self, gone: Gone) {
        self.config.gone = Some(gone);
    }

    /// The present incarnation.
    pub fn incarnation(&self) -> String {
        match self.evictions {
            0 => self.config.incarnation.clone(),
            n => format!("{}-{n}", self.config.incarnation),
        }
    }

    /// What others of this replica need to know.
    pub fn own(&self) -> OwnLease {
        OwnLease {
            incarnation: self.incarnation(),
            phase: match &self.state {
                State::Idle => OwnPhase::Idle,
                State::Read | State::Wait { .. } | State::Acquire { .. } => OwnPhase::Joining,
                State::Held { .. } | State::Check => {
                    if self.release {
                        OwnPhase::Releasing
                    } else {
                        OwnPhase::Held
                    }
                }
                State::Releasing { .. } => OwnPhase::Releasing,
                State::Released => OwnPhase::Released,
                State::NameTaken { other } => OwnPhase::NameTaken(other.clone()),
            },
            open_until: self.open_until,
            regained: self.regained.clone(),
            landed: match self.state {
                State::Held { version } => self.renewed.map(|started| (started, version)),
                _ => None,
            },
            evictions: self.evictions,
            crashes: self.status.crashes.clone(),
        }
    }

    /// Whether it has the Lease and keeps it.
    pub fn holds(&self) -> bool {
        matches!(self.state, State::Held { .. } | State::Check) && !self.release
    }

    /// How long after a renewal's start the fence stays open.
    fn deadline(&self) -> Time {
        if broken!(DeadlineIsTheDuration) {
            return self.config.lease_duration;
        }
        self.config.renew_deadline
    }

    /// When time alone changes something; `None` if it does not.
    pub fn wake_at(&self) -> Option<Time> {
        let next = (!self.busy
            && !matches!(
                self.state,
                State::Idle | State::Released | State::NameTaken { .. }
            ))
        .then_some(self.next_at);
        [next, self.open_until].into_iter().flatten().min()
    }

    /// Takes one input.
    pub fn step(&mut self, now: Time, input: RenewalInput) -> Vec<RenewalEffect> {
        // Before anything else, so that no renewal that comes too late opens a fence that was closed
        // meanwhile.
        if self.open_until.is_some_and(|until| until <= now) {
            self.open_until = None;
        }
        if self
            .renewed
            .is_some_and(|renewed| renewed + self.deadline() <= now)
        {
            self.regained = None;
        }
        match input {
            RenewalInput::Tick => {}
            RenewalInput::Join => {
                if self.state == State::Idle {
                    self.state = State::Read;
                    self.next_at = now;
                }
            }
            RenewalInput::Status(mut status) => {
                status.crashes.clone_from(&self.status.crashes);
                if !matches!(self.state, State::Held { .. } | State::Check) {
                    // Who is about to hold the Lease again does not know yet what became of the life
                    // before.
                    status.share = status.share.or(self.status.share);
                }
                if self.status != status {
                    self.status = status;
                    if matches!(self.state, State::Held { .. }) {
                        self.next_at = now;
                    }
                }
            }
            RenewalInput::Announce => {
                self.announce = true;
                if matches!(self.state, State::Held { .. }) {
                    self.next_at = self.next_at.min(self.announce_at(now));
                }
            }
            RenewalInput::Reopen(regained) => self.reopen(now, &regained),
            RenewalInput::Gap => {
                reachable!(StoodStill);
                self.counts_from = now;
                self.open_until = None;
                self.regained = None;
                if matches!(self.state, State::Held { .. }) {
                    self.next_at = now;
                }
            }
            RenewalInput::Release => self.release(now),
            RenewalInput::GiveUp(working) => {
                if !broken!(HangsWithoutATrace) {
                    self.death.get_or_insert(working);
                }
                self.release(now);
            }
            RenewalInput::Read(read) => {
                self.busy = false;
                match read {
                    Ok(lease) => self.read_answered(now, lease),
                    Err(NoAnswer) => {
                        // A retry period after its start: one that was long in failing is tried again at
                        // once, so that the end of an outage is not slept through.
                        self.next_at = self.next_at.max(now);
                        // Nothing was seen meanwhile, so the wait begins again.
                        if let State::Wait { other, .. } = &mut self.state {
                            other.since = now;
                        }
                    }
                }
            }
            RenewalInput::Written { started, result } => {
                self.busy = false;
                self.written(now, started, result);
            }
        }
        self.act(now)
    }

    fn release(&mut self, now: Time) {
        self.release = true;
        if !broken!(ReleasesWithAnOpenFence) {
            self.open_until = None;
        }
        self.next_at = now;
        match self.state {
            State::Held { version } => {
                self.state = State::Releasing {
                    version: Some(version),
                }
            }
            State::Idle | State::Read | State::Wait { .. } => self.state = State::Released,
            // An acquisition may be under way: see what came of it first.
            State::Acquire { .. } => self.state = State::Releasing { version: None },
            State::Check | State::Releasing { .. } | State::Released | State::NameTaken { .. } => {}
        }
    }

    fn reopen(&mut self, now: Time, regained: &Regained) {
        if self.open_until.is_some() || self.regained.as_ref() != Some(regained) || self.release {
            return;
        }
        if let (State::Held { .. } | State::Check, Some(renewed)) = (&self.state, self.renewed) {
            reachable!(FenceReopened);
            self.open_until = Some(renewed + self.deadline()).filter(|until| *until > now);
            self.regained = None;
        }
    }

    /// The Lease was read, either to join or because a write had no clear end.
    fn read_answered(&mut self, now: Time, lease: Option<ReplicaLease>) {
        self.ended = lease
            .as_ref()
            .map(|lease| lease.ended.clone())
            .unwrap_or_default();
        let joining = matches!(
            self.state,
            State::Read | State::Wait { .. } | State::Acquire { .. }
        );
        if let Some(over) = self
            .over
            .as_ref()
            .filter(|over| joining && !self.ended.contains(over))
        {
            self.ended.push(over.clone());
        }
        if joining && self.ended.contains(&self.incarnation()) && !broken!(EvictedLivesOn) {
            // An acquisition of ours had landed unseen, and was evicted: others know this life as over.
            reachable!(AcquisitionEvictedUnseen);
            self.evictions += 1;
        }
        let me = self.incarnation();
        self.remember(now, lease.as_ref(), &me);
        let second = self.deaths_second(now);
        if let Some(lease) = lease.as_ref() {
            self.deaths.clone_from(&lease.deaths);
            if let Some(second) = second {
                self.deaths.prune(second, &me);
            }
        }
        let working = lease.as_ref().map(|lease| lease.working.clone());
        let holder = lease.as_ref().and_then(|lease| lease.incarnation.clone());
        let version = lease.map(|lease| lease.version);
        self.next_at = now;
        self.state = match (&self.state, holder, version) {
            (State::Idle | State::Released | State::NameTaken { .. }, ..) => return,
            (State::Releasing { .. }, Some(holder), version) if holder == me => {
                State::Releasing { version }
            }
            (State::Releasing { .. }, ..) => State::Released,
            // A write of ours landed unseen, or somebody touched the Lease and left us in it.
            (_, Some(holder), Some(version)) if holder == me => {
                if self.release {
                    State::Releasing {
                        version: Some(version),
                    }
                } else {
                    State::Held { version }
                }
            }
            (State::Check | State::Held { .. }, _, Some(version))
                if broken!(RenewsOverAnEviction) =>
            {
                State::Held { version }
            }
            // Deleted by hand. The next Lease lists this life as ended, so that others need not wait for it:
            // when it is written, what this life had sent is no longer in the server's hands.
            (State::Check | State::Held { .. }, _, None) if !broken!(EvictedLivesOn) => {
                self.over = Some(me);
                self.evicted(now);
                let deadline = self.config.renew_deadline;
                self.next_at = now + self.config.lease_duration.saturating_sub(deadline);
                return;
            }
            (State::Check | State::Held { .. }, ..) => return self.evicted(now),
            (State::Wait { other, first }, Some(holder), Some(version))
                if other.holder == holder =>
            {
                let (mut other, first) = (other.clone(), *first);
                other.again(now, version);
                let waited = |from: Time| now.saturating_sub(from) >= self.config.lease_duration;
                let over = self.is_over_at(&other);
                if waited(other.since) || over.is_some_and(|over| now >= over) {
                    match waited(other.since) {
                        true => reachable!(PredecessorExpired),
                        false => reachable!(PredecessorTaken),
                    }
                    self.replace(second, holder, version, working)
                } else if other.renewals >= RENEWALS_OF_THE_LIVING && waited(first) {
                    State::NameTaken { other: holder }
                } else {
                    self.next_at = now + self.config.retry_period;
                    if other.renewals < RENEWALS_OF_THE_LIVING {
                        let end = other.since + self.config.lease_duration;
                        self.next_at = self.next_at.min(over.unwrap_or(end)).min(end);
                    }
                    State::Wait { other, first }
                }
            }
            (_, Some(holder), Some(version)) => {
                let other = Sighting::first(now, holder.clone(), version);
                let over = self.is_over_at(&other);
                if over.is_some_and(|over| now >= over) {
                    reachable!(PredecessorTaken);
                    self.replace(second, holder, version, working)
                } else {
                    let next = now + self.config.retry_period;
                    self.next_at = next.min(over.unwrap_or(next));
                    State::Wait { other, first: now }
                }
            }
            (_, _, version) => State::Acquire { version },
        };
    }

    /// When the holder of this Lease, where it has ended for certain, is over.
    fn is_over_at(&self, other: &Sighting) -> Option<Time> {
        let gone = self.config.gone.as_ref()?;
        gone.over_at(other, self.config.retry_period)
    }

    /// Replacing a holder evicts it: its renewal is a compare-and-swap on the same object.
    fn replace(
        &mut self,
        second: Option<i64>,
        holder: String,
        version: Version,
        working: Option<Vec<Work>>,
    ) -> State {
        if let Some(second) = second {
            self.deaths.push(Death {
                second,
                incarnation: holder.clone(),
                working: working.unwrap_or_default(),
            });
        }
        self.ended.push(holder);
        State::Acquire {
            version: Some(version),
        }
    }

    /// Notes whether the life before has left. A replica that leaves says so (draining) before it gives the
    /// Lease up; who is evicted, or still holds it when this one comes, has not.
    fn remember(&mut self, now: Time, lease: Option<&ReplicaLease>, me: &str) {
        let Some((second, lease)) = self.config.epoch_second.zip(lease) else {
            return;
        };
        let second = unix_second(second, now);
        let known = &lease.status.crashes;
        self.status.crashes = match lease.incarnation.as_deref() {
            Some(holder) if holder == me => known.clone(),
            None if lease.status.draining => known.clone(),
            _ => {
                // From the first write on: a share that is taken back costs moves.
                self.status.share = Some(1);
                known.and(second)
            }
        };
    }

    fn written(&mut self, now: Time, started: Time, result: Written<ReplicaLease>) {
        match (&self.state, result) {
            (State::Idle | State::Released | State::NameTaken { .. }, _) => {}
            (State::Releasing { .. }, Written::Done(lease)) => {
                // The write may have been a renewal that was under way when the release was asked for.
                self.next_at = now;
                self.state = match lease.incarnation {
                    None => State::Released,
                    Some(_) => State::Releasing {
                        version: Some(lease.version),
                    },
                };
            }
            (State::Releasing { .. }, Written::Conflict(lease)) => self.read_answered(now, lease),
            (State::Releasing { .. }, Written::Unknown) => {
                reachable!(ReleaseUnanswered);
                self.state = State::Releasing { version: None };
                self.next_at = now + self.config.retry_period;
            }
            (_, Written::Done(lease)) => {
                self.state = State::Held {
                    version: lease.version,
                };
                self.ended = lease.ended;
                let started = if broken!(FenceCountsFromTheAnswer) {
                    now
                } else {
                    started
                };
                let counts = started >= self.counts_from || broken!(GapIsForgotten);
                self.renewed = Some(started).filter(|_| counts);
                self.next_at = if lease.status == self.status {
                    (started + self.config.retry_period).max(now)
                } else {
                    now
                };
                if self.announce {
                    self.next_at = self.next_at.min(self.announce_at(now));
                }
                if !counts {
                    self.next_at = now;
                } else if self.open_until.is_some() || broken!(FenceOpensWithoutReading) {
                    self.open_until = Some(started + self.deadline()).filter(|until| *until > now);
                } else if self.regained.is_none() {
                    self.regained = Some(Regained { started, seen: now });
                }
            }
            (_, Written::Conflict(lease)) => self.read_answered(now, lease),
            (State::Acquire { .. }, Written::Unknown) => {
                self.state = State::Read;
                self.next_at = now + self.config.retry_period;
            }
            (_, Written::Unknown) => {
                reachable!(RenewalUnanswered);
                self.state = State::Check;
                self.next_at = (started + self.config.retry_period).max(now);
            }
        }
    }

    /// Another has taken this life; the next one begins with nothing.
    fn evicted(&mut self, now: Time) {
        reachable!(OwnLifeEvicted);
        self.open_until = None;
        self.renewed = None;
        self.regained = None;
        self.next_at = now;
        if self.release {
            self.state = State::Released;
            return;
        }
        if !broken!(EvictedLivesOn) {
            self.evictions += 1;
        }
        self.state = State::Read;
    }

    fn act(&mut self, now: Time) -> Vec<RenewalEffect> {
        if self.busy || self.next_at > now {
            return Vec::new();
        }
        let effect = match self.state {
            State::Idle | State::Released | State::NameTaken { .. } => return Vec::new(),
            State::Read
            | State::Wait { .. }
            | State::Check
            | State::Releasing { version: None } => RenewalEffect::Read,
            State::Acquire { version } => self.write(now, version, false),
            State::Held { version } => self.write(now, Some(version), false),
            State::Releasing { version } => self.write(now, version, true),
        };
        if matches!(effect, RenewalEffect::Write { .. }) {
            self.announce = false;
        }
        self.busy = true;
        self.next_at = now + self.config.retry_period;
        vec![effect]
    }

    /// When an announcement may be written: renewals keep a distance, in which further ones are collected.
    fn announce_at(&self, now: Time) -> Time {
        let spacing = self.config.retry_period / ANNOUNCEMENTS_EACH_PERIOD;
        let from = self.renewed.map_or(now, |renewed| renewed + spacing);
        from.max(now)
    }

    /// The Unix second, where deaths are recorded.
    fn deaths_second(&self, now: Time) -> Option<i64> {
        Some(unix_second(self.config.deaths_from?, now))
    }

    fn write(&self, now: Time, version: Option<Version>, release: bool) -> RenewalEffect {
        let lease = ReplicaLease {
            name: self.config.name.clone(),
            version: 0,
            incarnation: Some(self.incarnation()),
            status: self.status.clone(),
            ended: self.ended.clone(),
            // The shell says what is in flight when it writes.
            working: Vec::new(),
            loads: Arc::default(),
            deaths: self.deaths.clone(),
        };
        RenewalEffect::Write {
            version,
            lease: match &self.death {
                _ if !release => lease,
                None => lease.vacated(),
                Some(working) => ReplicaLease {
                    working: working.clone(),
                    ..lease
                }
                .evicted(self.deaths_second(now)),
            },
        }
    }
}
