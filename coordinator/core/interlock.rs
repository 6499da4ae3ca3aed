//! The Lease of the manager's own leader election, held by the fleet as one: kube-controller-manager, or
//! another fleet, that finds it held waits on standby, and so does this fleet.
//!
//! Each replica runs one of these machines. All write the same holder identity; the one that has renewed
//! last continues, the others read, and renew when no renewal shows.
//!
//! Kept true: while a replica's hold is open, a renewal by the fleet has landed that it can date on its own
//! clock, and less than the renew deadline has passed since. A candidate on standby waits a lease duration
//! from a time not before that landing. Three ways to date a renewal: the start of one's own request, and,
//! for a renewal of another replica, the start of the newest read that did not show it yet, or the start of
//! the newest renewal of one's own replica Lease whose version is lower: what the API server has stored
//! later happened later. So a watch of the Lease is enough while somebody renews it, and reads are for when
//! nobody does. Clocks of other machines are never compared: the times in the Lease are only checked for
//! being different.
//!
//! A replica's hold opens only after this incarnation has renewed once itself, as a ready member. So the last
//! replica that leaves either sees the newcomer's replica Lease, or loses the compare-and-swap by which it
//! would release.

use crate::{
    lease::{NoAnswer, Time, Version, Written},
    mutation::broken,
};

/// Microseconds in a second: a candidate of upstream compares records by whole seconds.
const SECOND: i64 = 1_000_000;

/// What the fleet writes, and how often.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InterlockConfig {
    /// The holder identity of the whole fleet.
    pub identity: String,
    /// `--leader-elect-lease-duration`, in whole seconds.
    pub lease_duration: Time,
    /// `--leader-elect-renew-deadline`
    pub renew_deadline: Time,
    /// `--leader-elect-retry-period`: between two renewals, and twice as long as between two reads.
    pub retry_period: Time,
    /// How long a write may still be executed that was given up when the hold closed.
    pub late_write_max: Time,
    /// Added to the time without a renewal after which this replica renews: different for each, so that they
    /// do not collide.
    pub stagger: Time,
}

/// The Lease, as far as it matters. Times are the writer's, in microseconds; they are compared for being
/// equal alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// The version read or written.
    pub version: Version,
    /// `None` where it is released.
    pub holder: Option<String>,
    /// How long others wait after a renewal.
    pub duration: Time,
    /// When the holder became the holder.
    pub acquired: i64,
    /// When it renewed last.
    pub renewed: i64,
    /// How often the holder has changed.
    pub transitions: u32,
}

impl Record {
    /// Whether a candidate of upstream sees no difference: it keeps times to the second.
    fn equals_to_candidates(&self, other: &Self) -> bool {
        self.holder == other.holder
            && self.duration == other.duration
            && self.acquired.div_euclid(SECOND) == other.acquired.div_euclid(SECOND)
            && self.renewed.div_euclid(SECOND) == other.renewed.div_euclid(SECOND)
            && self.transitions == other.transitions
    }

    fn term(&self) -> (&Option<String>, i64, u32) {
        (&self.holder, self.acquired, self.transitions)
    }
}

/// What a write of the Lease does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HoldWrite {
    /// The fleet becomes the holder.
    Acquire,
    /// The fleet continues.
    Renew,
    /// The last replica leaves.
    Release,
}

/// What happens to an [`Interlock`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum InterlockInput {
    /// Time passes.
    Tick,
    /// The incarnation under which this replica is a ready member, `None` while it is none.
    Member(Option<String>),
    /// This replica has released its own Lease, and no write of it is in flight: release this one too, if it
    /// was the last.
    Leave,
    /// The Lease as read; `None` where there is none, `Err` if the read failed.
    Read {
        /// When the request was started.
        started: Time,
        /// The Lease.
        result: Result<Option<Record>, NoAnswer>,
    },
    /// The Lease as a watch shows it, late perhaps, and older perhaps than what was read.
    Watched {
        /// The Lease.
        record: Record,
        /// When the newest write of this process was started that the API server has stored at a lower
        /// version; `None` where none is known.
        after: Option<Time>,
    },
    /// What came of a write.
    Written {
        /// When the request was started.
        started: Time,
        /// What came of it.
        result: Written<Record>,
    },
    /// How many replicas of the fleet hold their replica Lease, by a consistent list.
    Members(Result<usize, NoAnswer>),
}

/// What an [`Interlock`] wants done. Each is answered once; there is never more than one under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum InterlockEffect {
    /// Read the Lease, consistently.
    Read,
    /// Write it, if it still has this version; `None` creates it.
    Write {
        /// What it is about.
        what: HoldWrite,
        /// The Lease that it replaces.
        before: Option<Record>,
    },
    /// Count the replicas that hold their replica Lease, by a consistent list that starts now.
    CountMembers,
}

/// Whose the Lease is, as seen last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Holds {
    /// It was not read yet.
    #[default]
    Unknown,
    /// Nobody's: it does not exist, or was released.
    Nobody,
    /// The fleet's.
    Fleet,
    /// Somebody else's, by this identity.
    Other(String),
}

/// What the rest of the replica knows of the Lease. A level: only the newest one counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Hold {
    /// Whose it is.
    pub holds: Holds,
    /// Counts the fleet's terms as this replica knows them. Between two of them somebody else may have held
    /// the Lease, so that nothing that was cached or decided in one is trusted in the next. `None` while the
    /// fleet does not hold it.
    pub term: Option<u64>,
    /// Writes may go out until then; `None` while they may not.
    pub open_until: Option<Time>,
    /// This replica has renewed last.
    pub renews: bool,
    /// This replica has done what it could to release it.
    pub left: bool,
    /// Renewals that followed one which had no clear end, or lost, so that the Lease had to be read first.
    pub slow_renewals: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Seen {
    record: Option<Record>,
    /// When the record, as others distinguish it from an older one, was seen first.
    since: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Leaving {
    No,
    Wanted,
    /// Nobody is left, by a list that started after this version had been read.
    Alone(Version),
    Left,
}

/// The machine that keeps the fleet's hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Interlock {
    config: InterlockConfig,
    seen: Option<Seen>,
    /// The newest that was seen of the Lease was current at this time or later.
    last_read: Option<Time>,
    /// When a watch has brought something new last.
    watched: Option<Time>,
    /// The newest renewal by the fleet has landed at this time or later.
    landed: Option<Time>,
    terms: u64,
    member: Option<String>,
    /// The incarnation that has renewed itself.
    vouched: Option<String>,
    /// The newest renewal is this replica's, started then.
    duty: Option<Time>,
    /// When this replica has tried to write last.
    tried: Option<Time>,
    /// A write had no clear end, or lost.
    must_read: bool,
    /// The last renewal of this term had no clear end, or lost.
    retries: bool,
    slow_renewals: u64,
    /// The write under way, and the incarnation that it is made by.
    writing: Option<(HoldWrite, Option<String>)>,
    busy: bool,
    next_at: Time,
    leaving: Leaving,
}

impl Interlock {
    /// A replica that has read nothing yet.
    pub fn new(config: InterlockConfig) -> Self {
        Self {
            config,
            seen: None,
            last_read: None,
            watched: None,
            landed: None,
            terms: 0,
            member: None,
            vouched: None,
            duty: None,
            tried: None,
            must_read: false,
            retries: false,
            slow_renewals: 0,
            writing: None,
            busy: false,
            next_at: Time::ZERO,
            leaving: Leaving::No,
        }
    }

    /// What the rest of the replica needs to know, as of `now`.
    pub fn hold(&self, now: Time) -> Hold {
        let holds = match &self.seen {
            None => Holds::Unknown,
            Some(Seen {
                record: Some(record),
                ..
            }) => match &record.holder {
                Some(holder) if *holder == self.config.identity => Holds::Fleet,
                Some(holder) => Holds::Other(holder.clone()),
                None => Holds::Nobody,
            },
            Some(Seen { record: None, .. }) => Holds::Nobody,
        };
        Hold {
            term: (holds == Holds::Fleet).then_some(self.terms),
            holds,
            open_until: self.open_until().filter(|until| *until > now),
            renews: self.duty.is_some(),
            left: self.leaving == Leaving::Left,
            slow_renewals: self.slow_renewals,
        }
    }

    /// What the Lease says after a write, by a clock that shows `wall` microseconds. A renewal must
    /// differ for a candidate of upstream, which compares whole seconds.
    pub fn record(&self, what: HoldWrite, before: Option<&Record>, wall: i64) -> Record {
        let same = |other: &Record| wall.div_euclid(SECOND) == other.renewed.div_euclid(SECOND);
        let renewed = match before.filter(|before| same(before)) {
            Some(before) => (before.renewed.div_euclid(SECOND) + 1) * SECOND,
            None => wall,
        };
        let transitions = before.map_or(0, |before| before.transitions);
        let version = before.map_or(0, |before| before.version);
        match (what, before) {
            (HoldWrite::Renew, Some(before)) => Record {
                version,
                holder: Some(self.config.identity.clone()),
                duration: self.config.lease_duration,
                acquired: before.acquired,
                renewed,
                transitions,
            },
            (HoldWrite::Acquire | HoldWrite::Renew, before) => Record {
                version,
                holder: Some(self.config.identity.clone()),
                duration: self.config.lease_duration,
                acquired: renewed,
                renewed,
                // As upstream counts.
                transitions: before.map_or(0, |before| before.transitions.saturating_add(1)),
            },
            (HoldWrite::Release, _) => Record {
                version,
                holder: None,
                duration: Time::from_secs(1),
                acquired: renewed,
                renewed,
                transitions,
            },
        }
    }

    /// When time alone changes something; `None` if it does not.
    pub fn wake_at(&self) -> Option<Time> {
        let next = (!self.busy && self.leaving != Leaving::Left).then_some(self.next_at);
        [next, self.open_until()].into_iter().flatten().min()
    }

    /// Takes one input.
    pub fn step(&mut self, now: Time, input: InterlockInput) -> Option<InterlockEffect> {
        // Over is over: only a renewal that is seen later opens it again.
        if self.open_until().is_some_and(|until| until <= now) {
            self.landed = None;
            // What others have renewed meanwhile is seen by a read.
            self.next_at = self.next_at.min(now);
        }
        let mut fresh = false;
        match input {
            InterlockInput::Tick => {}
            InterlockInput::Member(member) => {
                if self.member != member {
                    self.member = member;
                    self.next_at = now;
                }
            }
            InterlockInput::Leave => {
                if self.leaving == Leaving::No {
                    self.leaving = Leaving::Wanted;
                    self.must_read = true;
                    self.next_at = now;
                }
            }
            InterlockInput::Read { started, result } => {
                self.busy = false;
                // A period after its start: the end of an outage is not slept through.
                self.next_at = (started + self.poll()).max(now);
                if let Ok(record) = result {
                    fresh = true;
                    self.must_read = false;
                    if self.leaving != Leaving::No {
                        self.next_at = now;
                    }
                    // The watch may have gone ahead of a read under way.
                    let overtaken = self.watched.is_some_and(|watched| started <= watched)
                        && record.as_ref().is_none_or(|record| !self.is_news(record));
                    if !overtaken {
                        let current = self.last_read.max(Some(started));
                        self.observe(now, self.last_read, current, record);
                    }
                }
            }
            InterlockInput::Watched { record, after } => {
                if self.is_news(&record) || broken!(BelievesOldEvents) {
                    let after = match broken!(DatesByTheWatch) {
                        true => Some(now),
                        false => after,
                    };
                    let at = self.last_read.max(after);
                    let is_held = record.holder.is_some();
                    self.watched = Some(now);
                    self.observe(now, at, at, Some(record));
                    if !is_held {
                        // It is taken after a read alone.
                        self.next_at = now;
                    } else if self.is_shut(now) {
                        // So is it renewed by who only follows.
                        self.next_at = self.may_retry_at().max(now);
                    } else if self.only_follows() {
                        self.next_at = now + self.patience();
                    }
                }
            }
            InterlockInput::Written { started, result } => {
                self.busy = false;
                self.written(now, started, result);
            }
            InterlockInput::Members(members) => {
                self.busy = false;
                self.next_at = now;
                self.leaving = match (members, self.ours()) {
                    (Ok(0), Some(record)) => Leaving::Alone(record.version),
                    (Ok(_), _) | (_, None) => Leaving::Left,
                    (Err(NoAnswer), Some(_)) => {
                        self.next_at = now + self.poll() / 4;
                        self.must_read = true;
                        Leaving::Wanted
                    }
                };
            }
        }
        if self.busy {
            return None;
        }
        let effect = match self.leaving {
            Leaving::No => self.act(now, fresh),
            Leaving::Wanted | Leaving::Alone(_) | Leaving::Left => self.leave(now),
        };
        self.busy = effect.is_some();
        effect
    }

    /// Between two reads: a renewal that another replica makes each retry period is dated at most so much too
    /// early.
    fn poll(&self) -> Time {
        self.config.retry_period / 2
    }

    /// Without a renewal for this long, a replica that reads renews.
    fn patience(&self) -> Time {
        self.config.retry_period * 3 / 2 + self.config.stagger
    }

    fn ours(&self) -> Option<&Record> {
        let record = self.seen.as_ref()?.record.as_ref()?;
        (record.holder.as_ref() == Some(&self.config.identity)).then_some(record)
    }

    fn open_until(&self) -> Option<Time> {
        let record = self.ours()?;
        let vouched = self.vouched == self.member || broken!(HoldsOnSight);
        if self.member.is_none() || !vouched || self.leaving != Leaving::No {
            return None;
        }
        // Others wait as long as the Lease says, not as long as the flags say.
        let most = record.duration.saturating_sub(self.config.late_write_max);
        let deadline = match broken!(HoldIsTheDuration) {
            true => record.duration,
            false => self.config.renew_deadline.min(most),
        };
        Some(self.landed? + deadline)
    }

    /// Whether this replica has nothing to do but to see others renew.
    fn only_follows(&self) -> bool {
        let vouches = self.member.is_some() && self.vouched != self.member;
        let renews = self.duty.is_some() || (vouches && self.ours().is_some());
        self.leaving == Leaving::No && !self.must_read && !renews
    }

    /// Whether the fleet holds the Lease and this replica, which could renew it, may not write all the same:
    /// it can't date the newest renewal. A renewal of before an outage may be executed after it, and who
    /// started it may have ended; nobody is bound to renew soon then.
    fn is_shut(&self, now: Time) -> bool {
        let follows = self.member.is_some() && self.leaving == Leaving::No;
        let is_open = self.open_until().is_some_and(|until| now < until);
        follows && self.ours().is_some() && !is_open && !broken!(WaitsForAnother)
    }

    /// No sooner does a replica whose hold is closed write: a Lease that was edited may open none at all.
    fn may_retry_at(&self) -> Time {
        self.tried.map_or(Time::ZERO, |tried| tried + self.poll())
    }

    /// Whether a record is newer than all that was seen; nothing is before the first read.
    fn is_news(&self, record: &Record) -> bool {
        let seen = self.seen.as_ref().map(|seen| seen.record.as_ref());
        seen.is_some_and(|seen| seen.is_none_or(|seen| seen.version < record.version))
    }

    /// The Lease was seen. What is new in it has landed at `newest` or later; it was current at `current` or
    /// later.
    fn observe(
        &mut self,
        now: Time,
        newest: Option<Time>,
        current: Option<Time>,
        record: Option<Record>,
    ) {
        let before = self.seen.take();
        let before_record = before.as_ref().and_then(|seen| seen.record.as_ref());
        let ours = record
            .as_ref()
            .filter(|record| record.holder.as_ref() == Some(&self.config.identity));
        match ours {
            Some(record) => {
                let newest = match broken!(DatesByTheAnswer) {
                    true => Some(now),
                    false => newest,
                };
                let same_term = before_record.is_some_and(|old| old.term() == record.term());
                if !same_term {
                    self.terms += 1;
                    self.landed = newest;
                    self.duty = None;
                    self.retries = false;
                } else if before_record.is_some_and(|old| !old.equals_to_candidates(record)) {
                    self.landed = self.landed.max(newest);
                    self.duty = None;
                }
            }
            None => {
                self.landed = None;
                self.duty = None;
                self.retries = false;
            }
        }
        let same = match (before_record, &record) {
            (Some(old), Some(new)) => old.equals_to_candidates(new),
            (None, None) => true,
            _ => false,
        };
        let since = before
            .as_ref()
            .filter(|_| same)
            .map_or(now, |seen| seen.since);
        self.last_read = current;
        self.seen = Some(Seen { record, since });
    }

    fn written(&mut self, now: Time, started: Time, result: Written<Record>) {
        let Some((what, by)) = self.writing.take() else {
            return;
        };
        self.next_at = now;
        match result {
            Written::Done(record) => {
                match what {
                    HoldWrite::Release => self.leaving = Leaving::Left,
                    HoldWrite::Acquire | HoldWrite::Renew => {
                        if what == HoldWrite::Acquire {
                            self.terms += 1;
                        }
                        self.landed = Some(started);
                        self.duty = Some(started);
                        self.retries = false;
                        self.vouched = by;
                    }
                }
                self.last_read = Some(started);
                self.seen = Some(Seen {
                    record: Some(record),
                    since: now,
                });
            }
            Written::Conflict(_) => {
                self.must_read = true;
                self.retries |= what == HoldWrite::Renew;
            }
            Written::Unknown => {
                self.must_read = true;
                self.retries |= what == HoldWrite::Renew;
                self.next_at = (started + self.poll()).max(now);
            }
        }
        if let Leaving::Alone(_) = self.leaving {
            self.leaving = Leaving::Wanted;
        }
    }

    /// What is to be done; `fresh` right after a read.
    fn act(&mut self, now: Time, fresh: bool) -> Option<InterlockEffect> {
        if !fresh && now < self.next_at {
            return None;
        }
        let Some(seen) = self.seen.as_ref().filter(|_| !self.must_read) else {
            return Some(InterlockEffect::Read);
        };
        let member = self.member.is_some();
        if self.ours().is_some() {
            let vouches = self.vouched != self.member;
            let due = self
                .duty
                .is_some_and(|renewed| now >= renewed + self.config.retry_period);
            let shut = self.is_shut(now) && now >= self.may_retry_at();
            let overdue = fresh && (shut || now >= seen.since + self.patience());
            if member && (vouches || due || overdue) {
                self.slow_renewals += u64::from(self.retries);
                return self.write(now, HoldWrite::Renew);
            }
            if let Some(renewed) = self.duty.filter(|_| member) {
                self.next_at = renewed + self.config.retry_period;
                return None;
            }
        } else {
            let over = match &seen.record {
                Some(record) if record.holder.is_some() => {
                    let over = seen.since + record.duration;
                    if now < over {
                        self.next_at = self.next_at.min(over);
                    }
                    now >= over
                }
                _ => true,
            };
            if fresh && member && (over || broken!(TakesFromTheLiving)) {
                return self.write(now, HoldWrite::Acquire);
            }
        }
        (!fresh).then_some(InterlockEffect::Read)
    }

    fn write(&mut self, now: Time, what: HoldWrite) -> Option<InterlockEffect> {
        self.tried = Some(now);
        self.writing = Some((what, self.member.clone()));
        let before = self.seen.as_ref().and_then(|seen| seen.record.clone());
        Some(InterlockEffect::Write { what, before })
    }

    /// The last replica releases: reads, then counts, then writes on the version read.
    fn leave(&mut self, now: Time) -> Option<InterlockEffect> {
        if self.leaving == Leaving::Left || now < self.next_at {
            return None;
        }
        if self.must_read {
            return Some(InterlockEffect::Read);
        }
        let Some(version) = self.ours().map(|record| record.version) else {
            self.leaving = Leaving::Left;
            return None;
        };
        match self.leaving {
            Leaving::Alone(read) if read == version => self.write(now, HoldWrite::Release),
            _ if broken!(ReleasesUncounted) => self.write(now, HoldWrite::Release),
            _ => Some(InterlockEffect::CountMembers),
        }
    }
}
