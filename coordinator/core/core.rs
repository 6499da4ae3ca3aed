//! The replica's decisions: whom to call dead, what to take, what to hand over, what to let go.
//!
//! Kept true:
//! * A range is held only while its Lease, as last seen, names this incarnation at the epoch held, and only
//!   if this replica wrote that itself or has the state that the owner before handed over. Any other claim is
//!   checked with every live member first.
//! * A range is taken from another only after that incarnation has lost its replica Lease by
//!   compare-and-swap, or has not held it for a whole lease duration of good reads. Before, its fence has
//!   closed.
//! * Epochs written grow: each is above all that were ever seen for the range.
//!
//! Every input is absorbed into the view, then all rules run over the whole view. So the order and number of
//! inputs decide how fast something happens, never whether it does.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use serde::Serialize;

use crate::{
    deaths::{Deaths, Quarantine, with_dead_owner},
    event::{Effect, Fatal, Happening, Input, NotSent, Offer, Refused},
    lease::{
        EPOCH_END, Epoch, Holder, Pin, RangeId, RangeLease, ReplicaLease, Status, Time, Version,
        Written, next_epoch,
    },
    mutation::broken,
    placement::place_within,
    questions::{Question, Replies},
    renewal::{OwnLease, OwnPhase, RENEWALS_OF_THE_LIVING},
    ring::Ring,
    slow_start::Crashes,
};

/// So many retry periods may lie between two good reads of the replica Leases; with more, silence proves
/// nothing and every wait begins again. One for the pause, one for the read itself, one for a busy machine.
const READ_GAP_PERIODS: u32 = 3;

/// So many retry periods lie between two lists of the range Leases while nothing calls for one. The watch
/// brings what changes; this is for the day on which it does not.
const RANGES_PERIODS: u32 = 30;

/// Retry periods between two lists of the replica Leases while nobody is silent or going and the watch has
/// everything up to the own renewals: that is what a list would show. It is still asked for now and then,
/// since only a list shows that the server's storage went back.
const REPLICAS_PERIODS: u32 = 15;

/// Retry periods without a renewal after which a member is silent: what follows from that rests on lists.
const SILENT_PERIODS: u32 = 2;

/// What holds a range up is tried again after this part of a retry period: a swap without a clear answer,
/// orphans whose owner's end the watch has not passed yet.
const SHORT_PARTS: u32 = 5;

/// A replica that leaves waits so many retry periods for the Lease of a range whose state it has
/// acknowledged: with it gone, the state would be nobody's. The owner may also have thought better of it and
/// never says so.
const KEPT_PERIODS: u32 = 4;

/// A replica that is not current gives its ranges away once others have been current for this many retry
/// periods: where all see the same late, some notice it a moment before the others.
const STALE_PERIODS: u32 = 2;

/// The same once nobody was current: they all come back, and some notice that a while before the others.
const STALE_TOGETHER_PERIODS: u32 = 10;

/// A member that answered within this many retry periods is reachable: a range may be frozen for a move to
/// it. Any other is asked first, with nothing frozen.
const CONTACT_PERIODS: u32 = 5;

/// Upper bound of the back-off for a member that cannot be reached or refuses ranges, in retry periods. The
/// lower bound is one.
const CONTACT_BACKOFF_MAX_PERIODS: u32 = 60;

/// A member has not answered three times in a row when its back-off has come to this many retry periods.
const SILENT_BACKOFF_PERIODS: u32 = 4;

/// A range whose state is too large for a handoff is tried again after this many retry periods: it may have
/// shrunk.
const OVERSIZED_PERIODS: u32 = 300;

/// What is doubtful for a lease duration is reported, and again after each this many retry periods.
const DOUBT_REPORT_PERIODS: u32 = 60;

/// Who has not renewed for a retry period and this part of another is late: it may have ended.
const LATE_PARTS: u32 = 3;

/// Between two questions whether it has lies this part of a retry period …
const POD_PARTS: u32 = 4;

/// … and this number of members ask: one that hears of the end is enough, and a fleet of 50 is not to ask at
/// once.
const POD_READERS_MAX: usize = 3;

/// Pods that one member asks for in a while. Where more replicas than this are late at once, it is no crash
/// of a process but a zone or a network.
const PODS_ASKED_MAX: usize = 8;

/// The number of the question that only asks whether a member answers. Inquiries count from 1.
const CONTACT_INQUIRY: u64 = 0;

/// Upper bound of replicas in a fleet: connections between peers and their buffers are dimensioned for it.
pub const REPLICAS_MAX: usize = 64;

/// What a replica is told at its start.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// The replica's name.
    pub name: String,
    /// Where peers reach it.
    pub address: String,
    /// The key by which peers know it.
    pub pin: Option<Pin>,
    /// The pod that it runs in, `<namespace>/<name>`; empty where there is none.
    pub pod: Arc<str>,
    /// Its build, as in `0.1.0`.
    pub build: String,
    /// The fleet's number of ranges.
    pub ranges: u16,
    /// How long a replica may be silent.
    pub lease_duration: Duration,
    /// How long the API server may still execute what a process has sent that has ended since.
    pub late_write_max: Duration,
    /// Time between reads, and before anything that failed is tried again.
    pub retry_period: Duration,
    /// At a fleet's cold start no range is taken before membership has been still for so long …
    pub settle_time: Duration,
    /// … or so many members are ready.
    pub expected_replicas: Option<u16>,
    /// Handoffs under way at once.
    pub moves_at_once: usize,
    /// How long writes in flight may take when a range is frozen.
    pub freeze_budget: Duration,
    /// The same while the replica leaves: then a range goes after it all the same, and its other keys wait no
    /// longer for one write that is slow.
    pub drain_budget: Duration,
    /// Whether the API server may be able to fence: then it is asked to before anything of the dead is taken.
    pub bars: bool,
    /// After a life that ended without leaving, a replica's share doubles in so long, from one range on; zero
    /// gives it a full share at once.
    pub slow_start: Duration,
    /// The Unix second at time 0.
    pub epoch_second: i64,
    /// Whether deaths are recorded, with the keys that were in flight.
    pub records_deaths: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Seen {
    lease: ReplicaLease,
    /// This version was seen first then, or the reads were bad until then.
    since: Time,
    /// The holder has renewed before our eyes.
    renews: bool,
}

/// The newest placement, and what it was made from beside the ring.
#[derive(Clone, Debug)]
struct Placed {
    owners: Vec<Option<u16>>,
    most: Vec<Option<u16>>,
    placed: Arc<[u16]>,
}

/// What follows from the rest of a state, kept to save time: no part of it when states are compared.
#[derive(Clone, Debug)]
struct Memo<T>(Option<T>);

impl<T> Default for Memo<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> PartialEq for Memo<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<T> Eq for Memo<T> {}

impl<T> std::hash::Hash for Memo<T> {
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
}

impl Seen {
    fn holds(&self, holder: &Holder) -> bool {
        self.lease.incarnation.as_ref() == Some(&holder.incarnation)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Held {
    epoch: Epoch,
    phase: Phase,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Serving,
    Freezing {
        to: Holder,
        since: Time,
    },
    Streaming {
        to: Holder,
        since: Time,
        attempt: u64,
    },
    Swapping {
        to: Holder,
        since: Time,
        retry_at: Option<Time>,
        /// A swap had no answer: it may have landed.
        unanswered: bool,
        /// The other has acknowledged the state.
        with_state: bool,
    },
}

impl Phase {
    fn target(&self) -> Option<&Holder> {
        match self {
            Self::Serving => None,
            Self::Freezing { to, .. } | Self::Streaming { to, .. } | Self::Swapping { to, .. } => {
                Some(to)
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Kept {
    from: Holder,
    /// The epoch at which the Lease must name us.
    epoch: Epoch,
    attempt: u64,
    /// When it was acknowledged.
    since: Time,
}

/// Our name written, or on its way, into a range Lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Claim {
    epoch: Epoch,
    version: Option<Version>,
    from: Option<Holder>,
    /// `None` while an answer is awaited.
    retry_at: Option<Time>,
    /// The Lease is there, and no list or watch shows it: somebody has taken its labels away.
    hidden: bool,
}

/// An eviction on its way. The watch may bring what it wrote before its answer comes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Evicting {
    holder: Holder,
    /// Since when the holder was silent.
    since: Time,
    /// Its process was proven to have ended.
    proven: bool,
    /// Far away while an answer is awaited.
    retry_at: Time,
}

/// Something else than silence says that a replica's process has ended.
///
/// It does not make the process dead at once: what it had sent may still be executed. That wait also finds
/// out proofs that are none, since a process that runs renews its Lease meanwhile.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct DeathProof {
    since: Time,
    /// The version of the replica's Lease then.
    version: Version,
}

/// Does any live member hold these? Asked of all before a range without a trustworthy Lease is taken.
///
/// An answer counts for as long as the inquiry lasts, however long others take to answer. A member that
/// holds nothing of a range when it answers can come to hold it by a write to its Lease alone. If the Lease
/// is there, the claim is a compare-and-swap on what stood there before the question; if not, a Lease that
/// appears meanwhile is seen. In both cases the range is asked for again, under another number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Inquiry {
    id: u64,
    /// What is left of what was asked for.
    ranges: BTreeSet<RangeId>,
    /// Who has not answered yet.
    waiting: BTreeMap<Holder, Asked>,
    /// As written into the own Lease while somebody is waited for.
    question: Arc<Question>,
    /// Whether it is there: somebody did not answer by gRPC, or takes its time.
    published: bool,
    since: Time,
    /// Since when some range has been asked for, under this number and those before.
    doubtful_since: Time,
    report_at: Time,
}

/// A member that is waited for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Asked {
    /// When it is asked again by gRPC; `None` while an answer is awaited.
    retry_at: Option<Time>,
}

/// A range Lease whose epoch no replica can have written. It is deleted on its version; then the range has no
/// Lease, which the usual rules repair.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Damaged {
    version: Version,
    epoch: Epoch,
    /// When the deletion is due; `None` while its answer is awaited.
    delete_at: Option<Time>,
}

/// Exponential back-off towards one member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Backoff {
    delay: Duration,
    since: Time,
}

impl Backoff {
    /// Failures that come together count once: several ranges may be on their way to one member.
    fn fail(&mut self, now: Time, period: Duration) {
        if now >= self.since + self.delay {
            let delay = self.delay.saturating_mul(2);
            self.delay = delay.clamp(period, period * CONTACT_BACKOFF_MAX_PERIODS);
        }
        self.since = now;
    }

    /// A replica that leaves has no time to wait: for it the delay is bounded by `most`.
    fn until(&self, most: Duration) -> Time {
        self.since.saturating_add(self.delay.min(most))
    }
}

/// What is known of the way to a member. Forgotten once it says nothing any more, so it holds only members to
/// which something was to be moved lately.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Contact {
    /// When the newest answer came.
    answered: Option<Time>,
    /// A question is under way.
    asking: bool,
    /// It did not answer.
    unreachable: Backoff,
    /// It answered, and refused a range.
    refuses: Backoff,
    /// Since when it has not answered.
    silent_since: Option<Time>,
}

impl Contact {
    fn answered(&mut self, now: Time) {
        self.answered = Some(now);
        self.asking = false;
        self.unreachable = Backoff::default();
        self.silent_since = None;
    }

    fn unanswered(&mut self, now: Time, period: Duration) {
        self.answered = None;
        self.asking = false;
        self.unreachable.fail(now, period);
        self.silent_since.get_or_insert(now);
    }

    /// It has not answered for so long, nor to several questions in a row: a lost message or two are no
    /// silence.
    fn is_silent(&self, now: Time, patience: Duration, period: Duration) -> bool {
        let long = |since| now.saturating_sub(since) >= patience;
        self.unreachable.delay >= period * SILENT_BACKOFF_PERIODS
            && self.silent_since.is_some_and(long)
    }

    fn is_fresh(&self, now: Time, period: Duration) -> bool {
        self.answered
            .is_some_and(|at| now <= at + period * CONTACT_PERIODS)
    }
}

/// The machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Core {
    config: Config,
    own: Option<OwnLease>,
    joined: bool,
    fenced_since: Option<Time>,
    fatal: bool,
    told_status: Option<Status>,

    replicas: BTreeMap<String, Seen>,
    replicas_known: bool,
    still_since: Time,
    /// Since when this life holds its Lease.
    held_since: Option<Time>,
    /// By the newest good read all was seen that happened to replica Leases: by a list, or by a watch that
    /// has brought the own renewal.
    last_read: Option<Time>,
    reading: bool,
    next_read: Time,
    /// When the newest good list was answered.
    listed: Option<Time>,
    /// Everything that happened to replica Leases up to this version has been seen.
    watched: Version,
    /// Of the newest renewal of its own that the watch has brought.
    counted: Version,
    /// When the watch has brought one that is as good as a list.
    brought: Option<Time>,
    /// The newest version that was seen when the newest list of the replica Leases was asked for, and when
    /// that was: a consistent list that starts later is not older, unless the server's storage went back.
    floor: (Time, Version),

    ranges: BTreeMap<RangeId, RangeLease>,
    range_ends: BTreeMap<RangeId, Version>,
    highest: BTreeMap<RangeId, Epoch>,
    /// Range Leases with an impossible epoch; they are not in `ranges`.
    damaged: BTreeMap<RangeId, Damaged>,
    /// The newest list of all range Leases was started then.
    ranges_read: Option<Time>,
    reading_ranges: bool,
    next_ranges: Time,
    /// Everything that happened to range Leases up to this version has been seen.
    as_of: Version,

    /// Named by a range Lease and known to have ended: at which version of its replica Lease this was seen
    /// first, and when. Its last handoffs may be on their way to us: they count before its ranges are called
    /// orphans.
    ended: BTreeMap<Holder, (Version, Time)>,
    /// Named by a range Lease, not known to have ended, not in its replica Lease: since when.
    unproven: BTreeMap<Holder, Time>,
    /// The dead among both, whom the API server was asked to refuse: whether it has been answered.
    barred: BTreeMap<Holder, bool>,
    /// Lost its replica Lease otherwise than by compare-and-swap: it may live on and hold what no Lease shows
    /// any more. Nothing without a Lease is taken until they have had a lease duration to notice.
    vanished: BTreeMap<Holder, Time>,
    /// Holders of whom something else than silence says that they have ended.
    proven_dead: BTreeMap<Holder, DeathProof>,
    /// Those whose Lease changed after that, how often. A renewal may have been under way when the process
    /// ended: it is asked for again. With the second one it lives, whatever is said.
    disproven: BTreeMap<Holder, u32>,
    /// Holders that are late, whose pods were asked for: when the next question is due, `None` while an
    /// answer is awaited.
    pods_asked: BTreeMap<Holder, Option<Time>>,
    evicting: BTreeMap<String, Evicting>,

    held: BTreeMap<RangeId, Held>,
    claims: BTreeMap<RangeId, Claim>,
    /// A claim has just failed: the range is not claimed again before then.
    claim_pauses: BTreeMap<RangeId, Time>,
    kept: BTreeMap<RangeId, Kept>,
    put_off: BTreeMap<RangeId, Time>,
    /// Held here with a state that is too large for a handoff, as of the last attempt.
    oversized: BTreeSet<RangeId>,
    /// Held here, and wanted elsewhere by an operator.
    wished: BTreeMap<RangeId, String>,
    /// Members that ranges are to be moved to.
    contacts: BTreeMap<Holder, Contact>,
    attempts: u64,
    inquiry: Option<Inquiry>,
    inquiries: u64,
    next_inquiry: Time,
    /// What is said of the questions in other members' Leases.
    replies: Option<Arc<Replies>>,

    host_ready: bool,
    /// Since when what the node sees is not current.
    stale_since: Option<Time>,
    /// Since when that is so while others are current.
    outdated_since: Option<Time>,
    /// Whether nobody of several was current since it is stale.
    stale_together: bool,
    server_fenced: bool,
    fingerprints: Arc<str>,
    unreachable: Arc<str>,
    drain_until: Option<Time>,
    left: bool,
    ring: Option<Ring>,
    placed: Memo<Placed>,

    /// The fleet's term of the manager's Lease: without one nothing is owned, and nothing that was owned in
    /// one continues in the next.
    hold: Option<u64>,
    /// Whether a renewal of it was seen in time.
    hold_fresh: bool,
    /// Who holds it instead.
    standby_for: Option<String>,
}

impl Core {
    /// A replica that knows nothing yet.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            own: None,
            joined: false,
            fenced_since: None,
            fatal: false,
            told_status: None,
            replicas: BTreeMap::new(),
            replicas_known: false,
            still_since: Time::ZERO,
            held_since: None,
            last_read: None,
            listed: None,
            watched: 0,
            counted: 0,
            brought: None,
            reading: false,
            next_read: Time::ZERO,
            floor: (Time::ZERO, 0),
            ranges: BTreeMap::new(),
            range_ends: BTreeMap::new(),
            highest: BTreeMap::new(),
            damaged: BTreeMap::new(),
            ranges_read: None,
            reading_ranges: false,
            next_ranges: Time::ZERO,
            as_of: 0,
            ended: BTreeMap::new(),
            contacts: BTreeMap::new(),
            unproven: BTreeMap::new(),
            barred: BTreeMap::new(),
            vanished: BTreeMap::new(),
            proven_dead: BTreeMap::new(),
            disproven: BTreeMap::new(),
            pods_asked: BTreeMap::new(),
            evicting: BTreeMap::new(),
            held: BTreeMap::new(),
            claims: BTreeMap::new(),
            claim_pauses: BTreeMap::new(),
            kept: BTreeMap::new(),
            put_off: BTreeMap::new(),
            oversized: BTreeSet::new(),
            wished: BTreeMap::new(),
            attempts: 0,
            inquiry: None,
            inquiries: 0,
            next_inquiry: Time::ZERO,
            replies: None,
            host_ready: false,
            stale_since: None,
            outdated_since: None,
            stale_together: false,
            server_fenced: false,
            fingerprints: Arc::default(),
            unreachable: Arc::default(),
            drain_until: None,
            left: false,
            ring: None,
            placed: Memo::default(),
            hold: Some(0),
            hold_fresh: true,
            standby_for: None,
        }
    }

    /// From now on it asks the API server to fence.
    #[cfg(test)]
    pub(crate) fn set_bars(&mut self) {
        self.config.bars = true;
    }

    /// From now on its share doubles in so long after a crash.
    #[cfg(test)]
    pub(crate) fn set_slow_start(&mut self, step: Duration) {
        self.config.slow_start = step;
    }

    /// Takes one input and says what is to be done.
    pub fn step(&mut self, now: Time, input: Input) -> Vec<Effect> {
        self.steps(now, [input]).unwrap_or_default()
    }

    /// Takes inputs that came together, and decides once; `None` where they change nothing: then its view,
    /// its holder and the next [`Self::wake_at`] are good as they were.
    pub fn steps(
        &mut self,
        now: Time,
        inputs: impl IntoIterator<Item = Input>,
    ) -> Option<Vec<Effect>> {
        let inputs: Vec<Input> = inputs.into_iter().collect();
        let is_quiet = self.changes_nothing(&inputs);
        let mut out = Vec::new();
        if !self.fatal {
            for input in inputs {
                self.absorb(now, input, &mut out);
            }
            if !is_quiet {
                self.decide(now, &mut out);
            }
        }
        (!is_quiet).then_some(out)
    }

    /// Whether these inputs are renewals by which no rule decides otherwise than before, nor any earlier than
    /// at the next [`Self::wake_at`]. Each member of a large fleet sees those of all others all the time.
    pub(crate) fn changes_nothing(&self, inputs: &[Input]) -> bool {
        let is_bare = |input: &Input| match input {
            Input::Replica(lease) => self.is_renewal(lease),
            // What waits for the watch waits for it because of somebody who is going.
            Input::WatchedTo(_) => true,
            _ => false,
        };
        self.nobody_is_going() && !inputs.is_empty() && inputs.iter().all(is_bare)
    }

    /// The Lease as it was seen before, renewed; what is in flight decides nothing while its holder lives.
    fn is_renewal(&self, lease: &ReplicaLease) -> bool {
        self.replicas.get(&lease.name).is_some_and(|seen| {
            let ReplicaLease {
                name: _,
                version: _,
                incarnation,
                status,
                ended,
                working: _,
                deaths,
            } = &seen.lease;
            seen.renews
                && incarnation.is_some()
                && (incarnation, status, ended, deaths)
                    == (
                        &lease.incarnation,
                        &lease.status,
                        &lease.ended,
                        &lease.deaths,
                    )
        })
    }

    /// All rules, in order. Each looks at the whole view.
    fn decide(&mut self, now: Time, out: &mut Vec<Effect>) {
        if self.fatal {
            return;
        }
        self.forget_what_is_over(now);
        self.weigh_the_proofs(out);
        self.note_who_is_current(now);
        self.read_on_time(now, out);
        self.join_or_refuse(now, out);
        if self.fatal {
            return;
        }
        self.reply_to_questions(now);
        self.say_how_it_stands(now, out);
        if !self.is_held() {
            return;
        }
        self.watch_the_unproven(now);
        self.read_ranges_if_the_watch_lags(now, out);
        self.settle_claims(now, out);
        self.forget_what_was_kept_in_vain(now, out);
        self.open_the_fence_after_reading(now, out);
        self.retry_what_had_no_answer(now, out);
        if (self.is_open(now) || broken!(FencedDecides)) && !self.left {
            self.ask_pods_of_the_late(now, out);
            self.evict_the_silent(now, out);
            self.bar_the_dead(now, out);
            let placed = self.placement(now);
            if self.hold.is_some() {
                self.delete_the_damaged(now, placed.as_deref(), out);
                self.inquire(now, placed.as_deref(), out);
                self.take_orphans(now, placed.as_deref(), out);
            }
            // Who does not see the hold renewed may not know yet that the term is over.
            if self.hold.is_some() && self.hold_fresh {
                self.hand_over(now, placed.as_deref(), out);
            }
        }
        self.finish_the_drain(now, out);
    }

    fn note_who_is_current(&mut self, now: Time) {
        if self.stale_since.is_none() {
            (self.outdated_since, self.stale_together) = (None, false);
            return;
        }
        let members = self.member_names();
        match members.contains(&self.config.name) {
            // It counts though it is stale: nobody is current.
            true => {
                self.outdated_since = None;
                self.stale_together |= members.len() > 1;
            }
            false => {
                self.outdated_since.get_or_insert(now);
            }
        }
    }

    // ---- absorbing ----

    fn absorb(&mut self, now: Time, input: Input, out: &mut Vec<Effect>) {
        match input {
            Input::Tick => {}
            Input::Own(own) => self.own_changed(now, own, out),
            Input::Replicas {
                started,
                version,
                leases,
            } => {
                if self.went_back(started, version, out) {
                    return;
                }
                self.replicas_read(now, started, version, leases);
            }
            Input::ReplicasFailed => {
                self.reading = broken!(StopsReadingAfterAFailure);
                (self.last_read, self.listed) = (None, None);
            }
            Input::Ranges {
                started,
                version,
                leases,
            } => {
                self.reading_ranges = false;
                self.next_ranges = now + self.config.retry_period * RANGES_PERIODS;
                self.ranges_read = self.ranges_read.max(Some(started));
                self.as_of = self.as_of.max(version);
                let listed: BTreeSet<RangeId> = leases.iter().map(|lease| lease.range).collect();
                for lease in leases {
                    self.see_range(lease);
                }
                let gone =
                    |lease: &RangeLease| !listed.contains(&lease.range) && lease.version <= version;
                let gone: Vec<RangeId> = self
                    .ranges
                    .values()
                    .filter(|lease| gone(lease))
                    .map(|lease| lease.range)
                    .collect();
                for range in gone {
                    self.ranges.remove(&range);
                    self.ask_again(range);
                }
                self.damaged
                    .retain(|range, lease| listed.contains(range) || lease.version > version);
                self.range_ends.retain(|_, end| *end > version);
            }
            Input::WatchedTo(version) => {
                self.as_of = self.as_of.max(version);
                self.watched = self.watched.max(version);
                self.count_own_renewal(now);
            }
            Input::RangesFailed => {
                self.reading_ranges = false;
                self.next_ranges = now + self.config.retry_period;
            }
            Input::Replica(lease) => self.see_replica(now, lease),
            Input::ReplicaGone { name, version } => {
                if self
                    .replicas
                    .get(&name)
                    .is_some_and(|seen| seen.lease.version <= version)
                {
                    self.replica_is_gone(now, &name);
                }
            }
            Input::Range(lease) => self.see_range(lease),
            Input::RangeGone { range, version } => {
                if range < self.config.ranges {
                    self.ask_again(range);
                    self.range_ends.insert(range, version);
                    if self
                        .ranges
                        .get(&range)
                        .is_some_and(|lease| lease.version <= version)
                    {
                        self.ranges.remove(&range);
                    }
                    if self
                        .damaged
                        .get(&range)
                        .is_some_and(|lease| lease.version <= version)
                    {
                        self.damaged.remove(&range);
                    }
                }
            }
            Input::RangeDeleted {
                range,
                version,
                result,
            } => self.deletion_ended(now, range, version, result),
            Input::ProvenDead(holder) => {
                // Of a Lease that has changed since it was asked for, it says nothing.
                let asked = self.pods_asked.remove(&holder) == Some(None);
                let is_late = |seen: &Seen| now.saturating_sub(seen.since) >= self.late_after();
                let version = match self.replicas.get(&holder.name) {
                    Some(seen) if asked && seen.holds(&holder) && is_late(seen) => {
                        seen.lease.version
                    }
                    _ => return,
                };
                if !self.lives_whatever_is_said(&holder) {
                    let since = now;
                    let proof = DeathProof { since, version };
                    self.proven_dead.entry(holder).or_insert(proof);
                }
            }
            Input::NotProven(holder) => {
                if let Some(asked) = self.pods_asked.get_mut(&holder) {
                    *asked = Some(now + self.config.retry_period / POD_PARTS);
                }
            }
            Input::Evicted { name, result } => self.eviction_ended(now, &name, result, out),
            Input::Claimed { range, result } => self.claim_ended(now, range, result),
            Input::Swapped { range, result } => self.swap_ended(now, range, result, out),
            // Once ready, always ready: an owner whose caches lag for a moment still serves better than a
            // move.
            Input::HostReady(ready) => self.host_ready |= ready,
            Input::HostCurrent(true) => self.stale_since = None,
            Input::HostCurrent(false) => {
                self.stale_since.get_or_insert(now);
            }
            Input::ServerFenced(fenced) => self.server_fenced = fenced,
            Input::Fingerprints(fingerprints) => self.fingerprints = fingerprints.into(),
            Input::Unreachable(names) => self.unreachable = names.into(),
            Input::Frozen { range, epoch, busy } => self.frozen(now, range, epoch, busy, out),
            Input::Sent {
                range,
                attempt,
                result,
            } => self.sent(now, range, attempt, result, out),
            Input::Offered(offer) => {
                let refused = self.refusal(now, &offer);
                let range = offer.range;
                if refused.is_none() {
                    let kept = Kept {
                        from: offer.from,
                        epoch: next_epoch(offer.epoch),
                        attempt: offer.attempt,
                        since: now,
                    };
                    self.kept.insert(offer.range, kept);
                }
                out.push(Effect::Answer {
                    id: offer.id,
                    range,
                    refused,
                });
                if broken!(OwnsByOffer) {
                    self.receive(range, out);
                }
            }
            Input::Told { from, range, epoch } => {
                let awaited = self
                    .kept
                    .get(&range)
                    .is_some_and(|kept| kept.from == from && kept.epoch == epoch);
                if awaited
                    && self
                        .ranges
                        .get(&range)
                        .is_none_or(|lease| lease.epoch < epoch)
                {
                    out.push(Effect::ReadRange(range));
                }
                if broken!(OwnsByWord) {
                    self.receive(range, out);
                }
            }
            Input::HoldsAsked { id, ranges } => {
                let answer: BTreeMap<RangeId, (bool, Epoch)> = ranges
                    .into_iter()
                    .filter(|range| *range < self.config.ranges)
                    .map(|range| {
                        let epoch = self.highest.get(&range).copied().unwrap_or(0);
                        (range, (self.may_hold(range), epoch))
                    })
                    .collect();
                if answer.values().any(|(held, _)| *held) {
                    // Somebody sees a Lease that does not name us: look too.
                    self.next_ranges = self.next_ranges.min(now);
                }
                out.push(Effect::AnswerHolds { id, answer });
            }
            Input::HoldsAnswered {
                inquiry,
                from,
                result,
            } => self.holds_answered(now, inquiry, &from, result),
            Input::Barred(holder) => {
                if let Some(answered) = self.barred.get_mut(&holder) {
                    *answered = true;
                }
            }
            Input::Move { range, to } => {
                if self.held.contains_key(&range) {
                    self.wished.insert(range, to);
                }
            }
            Input::Hold { term, fresh, other } => self.hold_changed(term, fresh, other, out),
            Input::Drain(until) => {
                self.drain_until = Some(self.drain_until.map_or(until, |before| before.min(until)));
            }
        }
    }

    fn own_changed(&mut self, now: Time, own: OwnLease, out: &mut Vec<Effect>) {
        let before = self.own.replace(own.clone());
        self.count_own_renewal(now);
        let lived = before
            .as_ref()
            .filter(|before| before.phase == OwnPhase::Held);
        if let Some(lived) = lived
            && (lived.incarnation != own.incarnation
                || matches!(own.phase, OwnPhase::Released | OwnPhase::NameTaken(_)))
            && !self.left
        {
            let ranges = if broken!(NewLifeKeepsRanges) {
                Vec::new()
            } else {
                self.drop_everything(out)
            };
            out.push(Effect::Happened(Happening::SelfEvicted {
                incarnation: lived.incarnation.clone(),
                ranges,
            }));
            self.fenced_since = None;
            self.told_status = None;
        }
        if own.phase == OwnPhase::Held {
            if lived.is_none_or(|lived| lived.incarnation != own.incarnation) {
                out.push(Effect::Happened(Happening::Joined {
                    incarnation: own.incarnation,
                }));
                self.still_since = now;
                self.held_since = Some(now);
                // The renewal has said for itself how little it takes; from here on it is told.
                self.told_status = None;
            } else if !self.left {
                let was_open = lived.is_some_and(|lived| lived.open_until.is_some());
                if was_open && own.open_until.is_none() {
                    self.fenced_since = Some(now);
                    out.push(Effect::Happened(Happening::Fenced));
                }
            }
            if own.open_until.is_some()
                && let Some(since) = self.fenced_since.take()
            {
                out.push(Effect::Happened(Happening::Reopened {
                    closed: now.saturating_sub(since),
                }));
            }
        }
        if let OwnPhase::NameTaken(incarnation) = own.phase {
            self.fail(
                Fatal::NameTaken {
                    name: self.config.name.clone(),
                    incarnation,
                },
                out,
            );
        }
    }

    /// Another holder of the manager's Lease between two terms may have written: what is owned is dropped,
    /// and taken again as after a crash.
    fn hold_changed(
        &mut self,
        term: Option<u64>,
        fresh: bool,
        other: Option<String>,
        out: &mut Vec<Effect>,
    ) {
        self.hold_fresh = fresh;
        let ranges = match self.hold == term {
            true => Vec::new(),
            false => self.drop_everything(out),
        };
        if !ranges.is_empty() || (other.is_some() && self.standby_for != other) {
            out.push(Effect::Happened(Happening::Standby {
                holder: other.clone(),
                ranges,
            }));
        }
        if term.is_some() && self.hold != term {
            out.push(Effect::Happened(Happening::Holds));
        }
        self.standby_for = other;
        self.hold = term;
    }

    /// The fleet's term of the manager's Lease that everything owned belongs to.
    pub fn hold(&self) -> Option<u64> {
        self.hold
    }

    fn drop_everything(&mut self, out: &mut Vec<Effect>) -> Vec<RangeId> {
        let ranges: Vec<RangeId> = std::mem::take(&mut self.held).into_keys().collect();
        out.extend(ranges.iter().map(|range| Effect::Lost(*range)));
        out.extend(
            std::mem::take(&mut self.kept)
                .into_keys()
                .map(Effect::Forget),
        );
        self.claims.clear();
        self.put_off.clear();
        self.oversized.clear();
        self.inquiry = None;
        ranges
    }

    fn replicas_read(
        &mut self,
        now: Time,
        started: Time,
        version: Version,
        leases: Vec<ReplicaLease>,
    ) {
        self.reading = false;
        let (slow, in_time) = (self.is_slow(now, started), self.is_in_time(started));
        let listed: BTreeSet<String> = leases.iter().map(|lease| lease.name.clone()).collect();
        for lease in leases {
            self.see_replica(now, lease);
        }
        let gone = |(name, seen): &(&String, &Seen)| {
            !listed.contains(*name) && seen.lease.version <= version
        };
        let gone: Vec<String> = self
            .replicas
            .iter()
            .filter(gone)
            .map(|(name, _)| name.clone())
            .collect();
        for name in gone {
            self.replica_is_gone(now, &name);
        }
        if (slow || !in_time) && !broken!(BadReadsCount) {
            for seen in self.replicas.values_mut() {
                seen.since = now;
            }
            for since in self.unproven.values_mut().chain(self.vanished.values_mut()) {
                *since = now;
            }
        }
        self.last_read = (!slow || broken!(BadReadsCount)).then_some(now);
        self.listed = self.last_read;
        self.watched = self.watched.max(version);
        self.replicas_known = true;
    }

    /// The own renewal was started, then landed; a watch that has brought it has brought whatever happened to
    /// replica Leases before it was started. So this is a consistent list that was started then, and is as
    /// good as one: one that is slow, or comes after a gap, proves nothing and is left to a list.
    fn count_own_renewal(&mut self, now: Time) {
        let landed = self.own.as_ref().and_then(|own| own.landed);
        let news = landed.filter(|(_, version)| *version > self.counted);
        let Some((started, version)) = news.filter(|(_, version)| *version <= self.watched) else {
            return;
        };
        self.counted = version;
        if self.is_in_time(started) && !self.is_slow(now, started) {
            (self.last_read, self.brought) = (Some(now), Some(now));
        }
    }

    /// Whether a list of the replica Leases would show what is not seen without it.
    fn needs_list(&self, now: Time) -> bool {
        let period = self.config.retry_period;
        let before = |at: Option<Time>, most: Duration| at.is_none_or(|at| now >= at + most);
        let is_silent = |seen: &Seen| {
            seen.lease.incarnation.is_some() && now >= seen.since + period * SILENT_PERIODS
        };
        before(self.listed, period * REPLICAS_PERIODS)
            || before(self.brought, period + period / 2)
            || !self.nobody_is_going()
            || self.replicas.values().any(is_silent)
    }

    /// Nobody who was a member is gone or was said to be, and no member is asked what it holds.
    fn nobody_is_going(&self) -> bool {
        self.ended.is_empty()
            && self.unproven.is_empty()
            && self.vanished.is_empty()
            && self.proven_dead.is_empty()
            && self.pods_asked.is_empty()
            && self.evicting.is_empty()
            && self.inquiry.is_none()
    }

    fn replica_is_gone(&mut self, now: Time, name: &str) {
        if let Some(holder) = self
            .replicas
            .remove(name)
            .and_then(|seen| seen.lease.holder())
        {
            self.vanished.insert(holder, now);
        }
        self.still_since = now;
    }

    fn see_replica(&mut self, now: Time, lease: ReplicaLease) {
        let before = self.replicas.get(&lease.name);
        if before.is_some_and(|before| before.lease.version >= lease.version) {
            return;
        }
        let same = before.is_some_and(|before| before.lease.incarnation == lease.incarnation);
        if !same || before.is_none_or(|before| !before.lease.status.is_same_member(&lease.status)) {
            self.still_since = now;
        }
        let replaced = before.and_then(|before| before.lease.holder());
        if let Some(replaced) =
            replaced.filter(|before| !same && !lease.ended.contains(&before.incarnation))
        {
            self.vanished.insert(replaced, now);
        }
        self.replicas.insert(
            lease.name.clone(),
            Seen {
                lease,
                since: now,
                renews: same,
            },
        );
    }

    fn see_range(&mut self, lease: RangeLease) {
        let RangeLease {
            range,
            version,
            epoch,
            ..
        } = lease;
        if range >= self.config.ranges
            || self
                .ranges
                .get(&range)
                .is_some_and(|before| before.version >= version)
            || self
                .damaged
                .get(&range)
                .is_some_and(|before| before.version >= version)
            || self
                .range_ends
                .get(&range)
                .is_some_and(|end| *end >= version)
        {
            return;
        }
        self.range_ends.remove(&range);
        self.ask_again(range);
        if epoch >= EPOCH_END && !broken!(BelievesAnyEpoch) {
            self.ranges.remove(&range);
            let damaged = Damaged {
                version,
                epoch,
                delete_at: Some(Time::ZERO),
            };
            self.damaged.insert(range, damaged);
            return;
        }
        self.damaged.remove(&range);
        self.raise(range, epoch);
        self.ranges.insert(range, lease);
    }

    /// Something has happened to the range's Lease: what members answered before counts for nothing.
    fn ask_again(&mut self, range: RangeId) {
        if let Some(inquiry) = &mut self.inquiry {
            inquiry.ranges.remove(&range);
        }
    }

    /// Remembers an epoch that was seen. One that no replica can have written, by hand or from a peer, counts
    /// for nothing.
    fn raise(&mut self, range: RangeId, epoch: Epoch) {
        if epoch < EPOCH_END || broken!(BelievesAnyEpoch) {
            let highest = self.highest.entry(range).or_insert(0);
            *highest = epoch.max(*highest);
        }
    }

    /// Whether a consistent list is older than what had been seen before it was asked for. Then the server's
    /// storage was restored to an older state, and nothing that this process knows can be compared with it
    /// any more.
    fn went_back(&mut self, started: Time, version: Version, out: &mut Vec<Effect>) -> bool {
        let (asked, seen) = self.floor;
        // Version 0 is one that could not be read.
        if started < asked || version >= seen || version == 0 {
            return false;
        }
        self.drop_everything(out);
        let listed = version;
        self.fail(Fatal::WentBack { seen, listed }, out);
        true
    }

    /// The newest version that was seen anywhere.
    fn newest(&self) -> Version {
        let replicas = self.replicas.values().map(|seen| seen.lease.version);
        let ranges = self.ranges.values().map(|lease| lease.version);
        replicas.chain(ranges).fold(self.as_of, Version::max)
    }

    /// What came of deleting a range Lease on its version: deleted, or another version was there or nothing,
    /// or no answer.
    fn deletion_ended(
        &mut self,
        now: Time,
        range: RangeId,
        version: Version,
        result: Result<bool, ()>,
    ) {
        let same = self
            .damaged
            .get(&range)
            .is_some_and(|damaged| damaged.version == version);
        if !same {
            return;
        }
        match result {
            Ok(true) => {
                self.damaged.remove(&range);
                let end = self.range_ends.entry(range).or_insert(0);
                *end = version.max(*end);
            }
            Ok(false) | Err(()) => {
                if let Some(damaged) = self.damaged.get_mut(&range) {
                    damaged.delete_at = Some(now + self.config.retry_period);
                }
                self.next_ranges = self.next_ranges.min(now + self.config.retry_period);
            }
        }
    }

    fn eviction_ended(
        &mut self,
        now: Time,
        name: &str,
        result: Written<ReplicaLease>,
        out: &mut Vec<Effect>,
    ) {
        match result {
            Written::Done(lease) => {
                let evicted = self.evicting.remove(name);
                self.see_replica(now, lease);
                if let Some(Evicting {
                    holder,
                    since,
                    proven,
                    ..
                }) = evicted
                {
                    out.push(Effect::Happened(Happening::Evicted {
                        holder,
                        silent: now.saturating_sub(since),
                        proven,
                    }));
                }
            }
            Written::Conflict(lease) => {
                self.evicting.remove(name);
                match lease {
                    Some(lease) if broken!(LostEvictionCounts) => {
                        self.see_replica(now, lease.vacated());
                    }
                    Some(lease) => self.see_replica(now, lease),
                    None => self.replica_is_gone(now, name),
                }
            }
            Written::Unknown if broken!(ForgetsUnansweredEvictions) => {}
            Written::Unknown => {
                if let Some(evicting) = self.evicting.get_mut(name) {
                    evicting.retry_at = now + self.config.retry_period;
                }
            }
        }
    }

    fn claim_ended(&mut self, now: Time, range: RangeId, result: Written<RangeLease>) {
        let retry_at = now + self.config.retry_period;
        match result {
            Written::Done(lease) | Written::Conflict(Some(lease)) => {
                let (version, epoch) = (lease.version, lease.epoch);
                self.see_range(lease);
                let me = self.me();
                match (self.claims.get_mut(&range), self.ranges.get(&range)) {
                    // A conflict may be with our own write that had no answer; if it is another's, ours is
                    // over.
                    (Some(claim), Some(lease))
                        if lease.epoch != claim.epoch || lease.holder != me =>
                    {
                        self.give_up_the_claim(now, range);
                    }
                    (Some(_), None) if self.damaged.contains_key(&range) => {
                        self.give_up_the_claim(now, range);
                    }
                    // It was to be made, and is there at the very version at which it went from sight.
                    (Some(claim), None) => {
                        claim.hidden = true;
                        claim.version = Some(version);
                        if epoch < EPOCH_END {
                            claim.epoch = claim.epoch.max(next_epoch(epoch));
                        }
                        claim.retry_at = Some(retry_at);
                    }
                    _ => {}
                }
            }
            Written::Conflict(None) => {
                self.ranges.remove(&range);
                self.damaged.remove(&range);
                self.give_up_the_claim(now, range);
            }
            Written::Unknown if broken!(ForgetsUnansweredClaims) => {}
            Written::Unknown => {
                if let Some(claim) = self.claims.get_mut(&range) {
                    claim.retry_at = Some(retry_at);
                }
            }
        }
    }

    /// A claim that did not make the range ours is not repeated at once: whatever stands in its way may stand
    /// there again.
    fn give_up_the_claim(&mut self, now: Time, range: RangeId) {
        if self.claims.remove(&range).is_some() {
            self.claim_pauses
                .insert(range, now + self.config.retry_period);
        }
    }

    fn may_claim(&self, now: Time, range: RangeId) -> bool {
        !self.damaged.contains_key(&range)
            && !self.claims.contains_key(&range)
            && self.claim_pauses.get(&range).is_none_or(|at| *at <= now)
    }

    fn frozen(
        &mut self,
        now: Time,
        range: RangeId,
        epoch: Epoch,
        busy: bool,
        out: &mut Vec<Effect>,
    ) {
        let open = self.is_open(now);
        let draining = self.drain_until.is_some();
        let retry_at = now + self.config.retry_period;
        let Some(held) = self.held.get_mut(&range).filter(|held| held.epoch == epoch) else {
            return;
        };
        let Phase::Freezing { to, since } = held.phase.clone() else {
            return;
        };
        if busy {
            held.phase = Phase::Serving;
            self.put_off
                .insert(range, if draining { now } else { retry_at });
            let why = "writes were still under way".to_owned();
            out.push(Effect::Happened(Happening::HandoffFailed {
                range,
                to,
                why,
            }));
            return;
        }
        let (patience, period) = (self.config.lease_duration, self.config.retry_period);
        let is_silent = |contact: &Contact| contact.is_silent(now, patience, period);
        let relinquishes = !draining && self.contacts.get(&to).is_some_and(is_silent);
        if relinquishes && self.is_live(&to) {
            return self.relinquish(now, range, to, since, out);
        }
        let Some(held) = self.held.get_mut(&range) else {
            return;
        };
        let address = self
            .replicas
            .get(&to.name)
            .filter(|seen| seen.lease.holder().as_ref() == Some(&to));
        match address.map(|seen| seen.lease.status.address.clone()) {
            Some(address) if open => {
                self.attempts += 1;
                let attempt = self.attempts;
                held.phase = Phase::Streaming {
                    to: to.clone(),
                    since,
                    attempt,
                };
                if !broken!(StreamsWithoutFreezing) {
                    out.push(Effect::CloseRange(range));
                }
                out.push(Effect::Send {
                    range,
                    epoch,
                    attempt,
                    to,
                    address,
                });
                if broken!(SwapsBeforeTheAnswer) {
                    self.sent(now, range, attempt, Ok(()), out);
                }
            }
            Some(_) => self.resume(now, range, "the fence has closed".to_owned(), out),
            None => self.resume(now, range, "its replica Lease is gone".to_owned(), out),
        }
    }

    /// Gives a range to a member that lives and cannot be reached, by its Lease alone. The other then knows
    /// nothing of it, and takes it as any range that is named its own by nobody it has heard: after it has
    /// asked all members.
    fn relinquish(
        &mut self,
        now: Time,
        range: RangeId,
        to: Holder,
        since: Time,
        out: &mut Vec<Effect>,
    ) {
        let (open, me) = (self.is_open(now), self.me());
        let Some(held) = self.held.get_mut(&range) else {
            return;
        };
        let lease = self
            .ranges
            .get(&range)
            .filter(|lease| lease.holder == me && lease.epoch == held.epoch);
        match lease {
            Some(lease) if open => {
                held.phase = Phase::Swapping {
                    to: to.clone(),
                    since,
                    retry_at: None,
                    unanswered: false,
                    with_state: false,
                };
                out.push(Effect::CloseRange(range));
                out.push(swap(lease, to, false));
            }
            Some(_) => self.resume(now, range, "the fence has closed".to_owned(), out),
            None => self.resume(now, range, "its Lease has changed".to_owned(), out),
        }
    }

    fn sent(
        &mut self,
        now: Time,
        range: RangeId,
        attempt: u64,
        result: Result<(), NotSent>,
        out: &mut Vec<Effect>,
    ) {
        let open = self.is_open(now);
        let me = self.me();
        let Some(held) = self.held.get_mut(&range) else {
            return;
        };
        let (to, since) = match &held.phase {
            Phase::Streaming {
                to,
                since,
                attempt: awaited,
            } if *awaited == attempt || broken!(AnyAnswerCounts) => (to.clone(), *since),
            _ => return,
        };
        let lease = self
            .ranges
            .get(&range)
            .filter(|lease| lease.holder == me && lease.epoch == held.epoch);
        let result = match result {
            Err(NotSent::Refused(_)) if broken!(RefusalIsTakenForConsent) => Ok(()),
            result => result,
        };
        let period = self.config.retry_period;
        let contact = self.contacts.entry(to.clone()).or_default();
        match &result {
            Ok(()) => {
                contact.answered(now);
                contact.refuses = Backoff::default();
            }
            Err(NotSent::Refused(_)) => {
                contact.answered(now);
                contact.refuses.fail(now, period);
            }
            Err(NotSent::Unreachable(_)) => contact.unanswered(now, period),
            // Found out here, before anything was sent.
            Err(NotSent::TooLarge(_)) => {}
        }
        match (result, lease) {
            (Ok(()), Some(lease)) if open => {
                held.phase = Phase::Swapping {
                    to: to.clone(),
                    since,
                    retry_at: None,
                    unanswered: false,
                    with_state: true,
                };
                out.push(swap(lease, to, true));
            }
            (Ok(()), Some(_)) => self.resume(now, range, "the fence has closed".to_owned(), out),
            (Ok(()), None) => self.resume(now, range, "its Lease has changed".to_owned(), out),
            (Err(NotSent::Refused(why) | NotSent::Unreachable(why)), _) => {
                self.resume(now, range, why, out);
            }
            (Err(NotSent::TooLarge(why)), _) => {
                self.resume(now, range, why, out);
                self.put_off.insert(range, now + period * OVERSIZED_PERIODS);
                self.oversized.insert(range);
            }
        }
    }

    /// The move did not happen, and no swap of ours can land any more.
    fn resume(&mut self, now: Time, range: RangeId, why: String, out: &mut Vec<Effect>) {
        let Some(held) = self.held.get_mut(&range) else {
            return;
        };
        let phase = std::mem::replace(&mut held.phase, Phase::Serving);
        self.put_off.insert(range, now + self.config.retry_period);
        out.push(Effect::Resume {
            range,
            epoch: held.epoch,
        });
        if let Some(to) = phase.target().cloned() {
            out.push(Effect::Happened(Happening::HandoffFailed {
                range,
                to,
                why,
            }));
        }
    }

    fn swap_ended(
        &mut self,
        now: Time,
        range: RangeId,
        result: Written<RangeLease>,
        out: &mut Vec<Effect>,
    ) {
        let me = self.me();
        let soon = now + self.config.retry_period / SHORT_PARTS;
        let conflict = match result {
            Written::Done(lease) => {
                self.see_range(lease);
                false
            }
            Written::Conflict(Some(lease)) => {
                self.see_range(lease);
                if self.damaged.contains_key(&range) {
                    let why = "its Lease has an impossible epoch".to_owned();
                    self.resume_or_let_go(now, range, why, out);
                    return;
                }
                true
            }
            Written::Conflict(None) => {
                self.ranges.remove(&range);
                self.resume_or_let_go(now, range, "its Lease was deleted".to_owned(), out);
                return;
            }
            Written::Unknown if broken!(ResumesWithASwapUnderWay) => {
                self.resume(now, range, "no answer".to_owned(), out);
                return;
            }
            Written::Unknown => {
                if let Some(Held {
                    phase:
                        Phase::Swapping {
                            retry_at,
                            unanswered,
                            ..
                        },
                    ..
                }) = self.held.get_mut(&range)
                {
                    *retry_at = Some(soon);
                    *unanswered = true;
                }
                return;
            }
        };
        if !conflict {
            return;
        }
        // Somebody touched the Lease and left us in it: again, on the new version. The older swap cannot land
        // any more.
        if let Some(Held {
            epoch,
            phase: Phase::Swapping { retry_at, .. },
        }) = self.held.get_mut(&range)
            && self
                .ranges
                .get(&range)
                .is_some_and(|lease| lease.holder == me && lease.epoch == *epoch)
        {
            *retry_at = Some(now);
        }
    }

    /// There is no Lease to swap any more. If an earlier swap had no answer, it may have landed before, and
    /// the receiver may own the range: then it is let go, and whoever is to have it asks all members first.
    fn resume_or_let_go(&mut self, now: Time, range: RangeId, why: String, out: &mut Vec<Effect>) {
        let unanswered = self.held.get(&range).is_some_and(|held| {
            matches!(
                held.phase,
                Phase::Swapping {
                    unanswered: true,
                    ..
                }
            )
        });
        if unanswered {
            self.deprived(range, None, out);
        } else {
            self.resume(now, range, why, out);
        }
    }

    /// Lets go of a range that was not handed over.
    fn deprived(&mut self, range: RangeId, by: Option<Holder>, out: &mut Vec<Effect>) {
        if let Some(epoch) = self.held.get(&range).map(|held| held.epoch) {
            self.let_go(range, out);
            out.push(Effect::Happened(Happening::Deprived { range, epoch, by }));
        }
    }

    /// Why an offer is not taken; `None` takes it.
    fn refusal(&self, now: Time, offer: &Offer) -> Option<Refused> {
        let Some(own) = self.own.as_ref() else {
            return Some(Refused::NotTaking);
        };
        if offer.to_incarnation != own.incarnation {
            return Some(Refused::OtherIncarnation(own.incarnation.clone()));
        }
        let refuses = self.stale_since.is_some() && !self.counts_me() && !broken!(StaleTakes);
        if !self.host_ready
            || refuses
            || self.drain_until.is_some()
            || !self.is_held()
            || !self.is_open(now)
            || self.hold.is_none()
        {
            return Some(Refused::NotTaking);
        }
        if !compatible(&self.config.build, &offer.build) {
            return Some(Refused::Incompatible(
                self.config.build.clone(),
                offer.build.clone(),
            ));
        }
        if self
            .replicas
            .get(&offer.from.name)
            .and_then(|seen| seen.lease.holder())
            .as_ref()
            != Some(&offer.from)
        {
            return Some(Refused::NoMember(offer.from.clone()));
        }
        let lease = self.ranges.get(&offer.range);
        if !lease.is_some_and(|lease| {
            lease.holder.as_ref() == Some(&offer.from) && lease.epoch == offer.epoch
        }) {
            return Some(Refused::NotTheOwner {
                range: offer.range,
                from: offer.from.clone(),
                epoch: offer.epoch,
            });
        }
        let newer = self.kept.get(&offer.range).is_some_and(|kept| {
            kept.from == offer.from
                && kept.epoch == next_epoch(offer.epoch)
                && kept.attempt >= offer.attempt
        });
        (newer && !broken!(OlderAttemptReplaces)).then_some(Refused::Superseded)
    }

    fn holds_answered(
        &mut self,
        now: Time,
        id: u64,
        from: &Holder,
        result: Result<BTreeMap<RangeId, (bool, Epoch)>, ()>,
    ) {
        if let Some(contact) = self.contacts.get_mut(from) {
            match result {
                Ok(_) => contact.answered(now),
                Err(()) => contact.unanswered(now, self.config.retry_period),
            }
        }
        let retry_at = now + self.config.retry_period;
        let Some(inquiry) = self.inquiry.as_mut().filter(|inquiry| inquiry.id == id) else {
            return;
        };
        match result {
            Ok(answer)
                if inquiry
                    .ranges
                    .iter()
                    .all(|range| answer.contains_key(range)) =>
            {
                inquiry.waiting.remove(from);
                for (range, (held, _)) in &answer {
                    if *held {
                        inquiry.ranges.remove(range);
                    }
                }
                for (range, (_, epoch)) in answer {
                    if range < self.config.ranges {
                        self.raise(range, epoch);
                    }
                }
            }
            _ => {
                if let Some(asked) = inquiry.waiting.get_mut(from) {
                    asked.retry_at = Some(retry_at);
                    inquiry.published = true;
                }
            }
        }
    }

    // ---- rules ----

    fn read_on_time(&mut self, now: Time, out: &mut Vec<Effect>) {
        if self.left {
            return;
        }
        if !self.reading && self.next_read <= now {
            self.next_read = now + self.config.retry_period;
            if self.needs_list(now) {
                self.reading = true;
                self.floor = (now, self.newest());
                out.push(Effect::ReadReplicas);
            }
        }
        if !self.reading_ranges && self.next_ranges <= now {
            self.reading_ranges = true;
            out.push(Effect::ReadRanges);
        }
    }

    /// Joins once it is sure that nobody alive counts ranges otherwise; later refuses to live beside such a
    /// one.
    fn join_or_refuse(&mut self, now: Time, out: &mut Vec<Effect>) {
        if !self.replicas_known || self.left {
            return;
        }
        let mut unsure = false;
        let mut refused = None;
        for seen in self.replicas.values() {
            let Some(holder) = seen.lease.holder() else {
                continue;
            };
            let theirs = seen.lease.status.ranges;
            if theirs == self.config.ranges || self.is_me(&holder) {
                continue;
            }
            let they_own = self
                .ranges
                .values()
                .any(|lease| lease.holder.as_ref() == Some(&holder));
            let stronger = !self.joined
                || they_own
                || (self.held.is_empty() && holder.name < self.config.name);
            if seen.renews && stronger {
                refused = Some(Fatal::OtherRanges {
                    name: holder.name,
                    theirs,
                    ours: self.config.ranges,
                });
            }
            unsure |= now.saturating_sub(seen.since) < self.config.lease_duration;
        }
        let others = self
            .replicas
            .values()
            .filter_map(|seen| seen.lease.holder());
        let others = others.filter(|holder| holder.name != self.config.name);
        if refused.is_none() && !self.joined && !unsure && others.count() >= REPLICAS_MAX {
            refused = Some(Fatal::FleetIsFull { most: REPLICAS_MAX });
        }
        if let Some(fatal) = refused {
            self.drop_everything(out);
            out.push(Effect::Release);
            self.fail(fatal, out);
        } else if !self.joined && !unsure {
            self.joined = true;
            out.push(Effect::Join);
        }
    }

    fn fail(&mut self, fatal: Fatal, out: &mut Vec<Effect>) {
        self.fatal = true;
        out.push(Effect::Fatal(fatal));
    }

    /// How many ranges this replica takes at most, after what has become of its lives before.
    fn share(&self, now: Time) -> Option<u16> {
        let own = self.own.as_ref()?;
        let lived = self
            .held_since
            .map_or(Time::ZERO, |since| now.saturating_sub(since));
        let members = u16::try_from(self.member_names().len()).unwrap_or(u16::MAX);
        let full = self.config.ranges.div_ceil(members.max(1));
        own.crashes
            .share(self.second(now), lived, full, self.config.slow_start)
    }

    /// The Unix second, by the clock of this machine as it was at time 0.
    fn second(&self, now: Time) -> i64 {
        let second = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        self.config.epoch_second.saturating_add(second)
    }

    /// Which keys are suspected of killing their owners, and which of the ranges held here want care for it.
    pub fn quarantine(&self, now: Time) -> Quarantine {
        let leases = self.replicas.values().map(|seen| &seen.lease);
        let deaths: BTreeMap<&str, &Deaths> = leases
            .filter(|lease| !lease.deaths.is_empty())
            .map(|lease| (&*lease.name, &lease.deaths))
            .collect();
        if deaths.is_empty() {
            return Quarantine::default();
        }
        let held = self.held.keys().filter_map(|range| self.ranges.get(range));
        let ranges = held.map(|lease| (lease.range, &*lease.dead));
        Quarantine::of(self.second(now), &deaths, ranges)
    }

    /// The dead owners that a claim lists: those known before, and whom the range is taken from if it died.
    /// Whoever released its Lease, or was evicted by a build that files no deaths, is not known to have died.
    fn dead_owners(&self, range: RangeId) -> Vec<Holder> {
        let known = self.ranges.get(&range);
        let known = known.map_or_else(Vec::new, |lease| lease.dead.clone());
        let claim = self.claims.get(&range);
        let from = claim.and_then(|claim| claim.from.clone());
        let died = |holder: &Holder| {
            let seen = self.replicas.get(&holder.name);
            seen.is_some_and(|seen| seen.lease.deaths.names(&holder.incarnation))
        };
        match from.filter(died) {
            Some(from) => with_dead_owner(known, from),
            None => known,
        }
    }

    fn say_how_it_stands(&mut self, now: Time, out: &mut Vec<Effect>) {
        let status = Status {
            address: self.config.address.clone(),
            pin: self.config.pin,
            build: self.config.build.clone(),
            ready: self.host_ready,
            draining: self.drain_until.is_some(),
            stale: self.stale_since.is_some(),
            ranges: self.config.ranges,
            share: self.share(now),
            // The renewal knows them.
            crashes: Crashes::default(),
            server_fenced: self.server_fenced,
            fingerprints: Arc::clone(&self.fingerprints),
            unreachable: Arc::clone(&self.unreachable),
            pod: Arc::clone(&self.config.pod),
            question: self.published_question(now),
            replies: self.replies.clone(),
        };
        if self.told_status.as_ref() != Some(&status) {
            self.told_status = Some(status.clone());
            out.push(Effect::Status(status));
        }
    }

    /// A member that takes longer than a retry period to answer by gRPC may never do so.
    fn published_question(&self, now: Time) -> Option<Arc<Question>> {
        let period = self.config.retry_period;
        let inquiry = self.inquiry.as_ref()?;
        let published = inquiry.published || now >= inquiry.since + period;
        (published && !inquiry.waiting.is_empty()).then(|| Arc::clone(&inquiry.question))
    }

    /// What others ask in their Leases is answered once for each set of questions, so that a move meanwhile
    /// costs no write. Each answer is found out after all of the questions were read.
    fn reply_to_questions(&mut self, now: Time) {
        let Some(me) = self.me() else {
            self.replies = None;
            return;
        };
        let (mut to, mut asked) = (BTreeMap::new(), BTreeSet::new());
        for seen in self.replicas.values().take(REPLICAS_MAX + 1) {
            let (Some(holder), Some(question)) =
                (seen.lease.holder(), seen.lease.status.question.as_ref())
            else {
                continue;
            };
            if holder.name != me.name && holder.incarnation == question.by {
                to.insert(holder, question.number);
                asked.extend(&question.ranges);
            }
        }
        let before = self
            .replies
            .as_ref()
            .filter(|replies| replies.by == me.incarnation);
        if before.is_some_and(|replies| replies.to == to) {
            return;
        }
        let known = |range: &RangeId| Some((*range, self.highest.get(range).copied()?));
        let (held, epochs) = match before {
            Some(replies) if broken!(RepliesFromMemory) => {
                (replies.held.clone(), replies.epochs.clone())
            }
            _ => (
                asked
                    .iter()
                    .copied()
                    .filter(|range| self.may_hold(*range))
                    .collect::<BTreeSet<RangeId>>(),
                asked.iter().filter_map(known).collect(),
            ),
        };
        if !held.is_empty() {
            // Somebody sees a Lease that does not name us: read it too.
            self.next_ranges = self.next_ranges.min(now);
        }
        self.replies = Some(Arc::new(Replies {
            by: me.incarnation,
            to,
            held,
            epochs,
        }));
    }

    /// Whether it holds the range, or may without another word: by a claim that is under way, or by what it
    /// has acknowledged.
    fn may_hold(&self, range: RangeId) -> bool {
        let held = self.held.contains_key(&range);
        let claimed = self.claims.contains_key(&range) && !broken!(ForgetsItsClaims);
        (held || claimed || self.kept.contains_key(&range)) && !broken!(DeniesWhatItHolds)
    }

    /// Owners by some range Lease of whom no replica Lease speaks: counts how long that has been so.
    fn watch_the_unproven(&mut self, now: Time) {
        let (mut unproven, mut ended) = (BTreeMap::new(), BTreeMap::new());
        for holder in self
            .ranges
            .values()
            .filter_map(|lease| lease.holder.as_ref())
        {
            if self.is_live(holder) || unproven.contains_key(holder) || ended.contains_key(holder) {
                continue;
            }
            if self.has_ended(holder) {
                let version = self
                    .replicas
                    .get(&holder.name)
                    .map_or(0, |seen| seen.lease.version);
                ended.insert(
                    holder.clone(),
                    self.ended.get(holder).copied().unwrap_or((version, now)),
                );
            } else {
                unproven.insert(
                    holder.clone(),
                    self.unproven.get(holder).copied().unwrap_or(now),
                );
            }
        }
        self.unproven = unproven;
        self.ended = ended;
    }

    /// Orphans wait for the watch to pass their owner's end. If it takes its time, a list does it.
    fn read_ranges_if_the_watch_lags(&mut self, now: Time, out: &mut Vec<Effect>) {
        let grace = self.config.retry_period / SHORT_PARTS;
        let lags = self
            .ended
            .values()
            .any(|(version, since)| *version > self.as_of && *since + grace <= now);
        if lags && self.next_ranges > now + self.config.retry_period {
            self.next_ranges = now;
            self.read_on_time(now, out);
        }
    }

    /// Compares what is held with what the Leases say.
    fn settle_claims(&mut self, now: Time, out: &mut Vec<Effect>) {
        if self.left || self.ranges_read.is_none() {
            return;
        }
        let Some(me) = self.me() else { return };
        for range in 0..self.config.ranges {
            let mine = self
                .ranges
                .get(&range)
                .filter(|lease| lease.holder.as_ref() == Some(&me));
            let held = self.held.get(&range);
            if mine.map(|lease| lease.epoch) == held.map(|held| held.epoch)
                && !self.claims.contains_key(&range)
            {
                // As it should be: ours on both sides, or on neither.
                continue;
            }
            match (self.ranges.get(&range).cloned(), held.cloned()) {
                (Some(lease), Some(held)) if lease.holder.as_ref() == Some(&me) => {
                    if lease.epoch == held.epoch {
                        continue;
                    }
                    if lease.epoch < held.epoch {
                        // Edited by hand. Epochs never fall: write a higher one.
                        self.claim(now, range, Some(lease.version), Some(me.clone()), out);
                    } else {
                        self.let_go(range, out);
                        self.gain(range, lease.epoch, Some(me.clone()), out);
                    }
                }
                (Some(lease), None) if lease.holder.as_ref() == Some(&me) => {
                    let claimed = self
                        .claims
                        .get(&range)
                        .filter(|claim| claim.epoch == lease.epoch)
                        .cloned();
                    if let Some(claim) = claimed {
                        self.gain(range, lease.epoch, claim.from, out);
                    } else if self
                        .kept
                        .get(&range)
                        .is_some_and(|kept| kept.epoch == lease.epoch)
                    {
                        self.receive(range, out);
                    }
                    // Else the Lease names us and nobody knows why: `inquire` sees to it.
                }
                // The swap may have landed before the Lease went: the receiver may own the range by now.
                (
                    None,
                    Some(Held {
                        phase: Phase::Swapping { .. },
                        ..
                    }),
                ) => self.deprived(range, None, out),
                (None, Some(_)) => self.claim(now, range, None, Some(me.clone()), out),
                (Some(lease), Some(held)) => {
                    match held.phase {
                        Phase::Swapping {
                            to,
                            with_state: false,
                            ..
                        } if lease.holder.as_ref() == Some(&to) => {
                            self.let_go(range, out);
                            let epoch = lease.epoch;
                            out.push(Effect::Happened(Happening::Relinquished {
                                range,
                                epoch,
                                to,
                            }));
                        }
                        Phase::Swapping { to, since, .. } if lease.holder.as_ref() == Some(&to) => {
                            let took = now.saturating_sub(since);
                            let epoch = lease.epoch;
                            self.let_go(range, out);
                            if let Some(seen) = self.replicas.get(&to.name) {
                                let address = seen.lease.status.address.clone();
                                out.push(Effect::Tell {
                                    range,
                                    epoch,
                                    to: to.clone(),
                                    address,
                                });
                            }
                            out.push(Effect::Happened(Happening::HandedOver {
                                range,
                                epoch,
                                to,
                                took,
                            }));
                        }
                        _ if broken!(NewLifeKeepsRanges) => {}
                        _ => self.deprived(range, lease.holder.clone(), out),
                    }
                    self.claims.remove(&range);
                }
                (lease, None) => {
                    let version = lease.map(|lease| lease.version);
                    let overtaken = |claim: &Claim| {
                        claim.retry_at.is_some() && claim.version != version && !claim.hidden
                    };
                    if self.claims.get(&range).is_some_and(overtaken) {
                        self.give_up_the_claim(now, range);
                    }
                }
            }
        }
    }

    fn let_go(&mut self, range: RangeId, out: &mut Vec<Effect>) {
        self.held.remove(&range);
        self.put_off.remove(&range);
        self.oversized.remove(&range);
        out.push(Effect::Lost(range));
    }

    fn gain(&mut self, range: RangeId, epoch: Epoch, from: Option<Holder>, out: &mut Vec<Effect>) {
        self.claims.remove(&range);
        if self.kept.remove(&range).is_some() {
            out.push(Effect::Forget(range));
        }
        self.held.insert(
            range,
            Held {
                epoch,
                phase: Phase::Serving,
            },
        );
        out.push(Effect::Gained {
            range,
            epoch,
            kept: false,
        });
        out.push(Effect::Happened(Happening::TookOver { range, epoch, from }));
    }

    fn receive(&mut self, range: RangeId, out: &mut Vec<Effect>) {
        if let Some(Kept { from, epoch, .. }) = self.kept.remove(&range) {
            self.claims.remove(&range);
            self.held.insert(
                range,
                Held {
                    epoch,
                    phase: Phase::Serving,
                },
            );
            out.push(Effect::Gained {
                range,
                epoch,
                kept: true,
            });
            out.push(Effect::Happened(Happening::Received { range, epoch, from }));
        }
    }

    /// Writes our name, above every epoch seen. What was kept for the range is void: the one who sent it may
    /// have gone on. Behind a closed fence the claim waits until it opens. Nothing happens while a claim is
    /// under way, shortly after one has failed, and where a damaged Lease has to be deleted first.
    fn claim(
        &mut self,
        now: Time,
        range: RangeId,
        version: Option<Version>,
        from: Option<Holder>,
        out: &mut Vec<Effect>,
    ) {
        if !self.may_claim(now, range) {
            return;
        }
        self.claim_pauses.remove(&range);
        if self.kept.remove(&range).is_some() {
            out.push(Effect::Forget(range));
        }
        let highest = self.highest.get(&range).copied().unwrap_or(0);
        let epoch = match broken!(EpochStays) {
            true => highest,
            false => next_epoch(highest),
        };
        let open = self.is_open(now);
        self.claims.insert(
            range,
            Claim {
                epoch,
                version,
                from,
                retry_at: (!open).then_some(now),
                hidden: false,
            },
        );
        if open {
            out.push(self.claim_effect(range, epoch, version));
        }
    }

    fn claim_effect(&self, range: RangeId, epoch: Epoch, version: Option<Version>) -> Effect {
        Effect::Claim {
            version,
            lease: RangeLease {
                range,
                version: 0,
                holder: self.me(),
                epoch,
                dead: self.dead_owners(range),
            },
        }
    }

    fn forget_what_was_kept_in_vain(&mut self, now: Time, out: &mut Vec<Effect>) {
        let vain: Vec<RangeId> = self
            .kept
            .iter()
            .filter(|(range, kept)| {
                broken!(ForgetsWhatItAcknowledged)
                    || self.is_dead(now, &kept.from)
                    || self
                        .ranges
                        .get(range)
                        .is_none_or(|lease| lease.epoch >= kept.epoch)
            })
            .map(|(range, _)| *range)
            .collect();
        for range in vain {
            // If the Lease names us at this epoch, the range has been received before this rule runs.
            self.kept.remove(&range);
            out.push(Effect::Forget(range));
        }
    }

    fn open_the_fence_after_reading(&mut self, now: Time, out: &mut Vec<Effect>) {
        if self.is_open(now) || self.left {
            return;
        }
        let Some(regained) = self.own.as_ref().and_then(|own| own.regained.clone()) else {
            return;
        };
        if self.ranges_read.is_some_and(|read| read >= regained.seen) {
            out.push(Effect::Reopen(regained));
        } else if !self.reading_ranges && self.next_ranges > now {
            // After a failure the pause stands; anything else is read at once.
            if self.next_ranges > now + self.config.retry_period {
                self.next_ranges = now;
                self.read_on_time(now, out);
            }
        }
    }

    /// Not behind a closed fence: what is sent then may land after others have called this replica dead.
    fn retry_what_had_no_answer(&mut self, now: Time, out: &mut Vec<Effect>) {
        if self.left || !(self.is_open(now) || broken!(RetriesBehindAClosedFence)) {
            return;
        }
        let due: Vec<RangeId> = self
            .claims
            .iter()
            .filter(|(_, claim)| claim.retry_at.is_some_and(|at| at <= now))
            .map(|(range, _)| *range)
            .collect();
        for range in due {
            if let Some(claim) = self.claims.get_mut(&range) {
                claim.retry_at = None;
                let (epoch, version) = (claim.epoch, claim.version);
                out.push(self.claim_effect(range, epoch, version));
            }
        }
        let me = self.me();
        for (range, held) in &mut self.held {
            if let Phase::Swapping {
                to,
                retry_at,
                with_state,
                ..
            } = &mut held.phase
                && retry_at.is_some_and(|at| at <= now)
                && let Some(lease) = self.ranges.get(range).filter(|lease| lease.holder == me)
            {
                *retry_at = None;
                out.push(swap(lease, to.clone(), *with_state));
            }
        }
    }

    /// Drops proofs of death whose holders are gone, and those whose holders live on.
    fn weigh_the_proofs(&mut self, out: &mut Vec<Effect>) {
        let replicas = &self.replicas;
        let seen = |holder: &Holder| {
            let seen = replicas.get(&holder.name);
            seen.filter(|seen| seen.holds(holder))
        };
        self.disproven.retain(|holder, _| seen(holder).is_some());
        self.pods_asked.retain(|holder, _| seen(holder).is_some());
        let disproven = &mut self.disproven;
        self.proven_dead.retain(|holder, proof| {
            let Some(seen) = seen(holder) else {
                return false;
            };
            let is_same = seen.lease.version == proof.version || broken!(RenewalsDisproveNothing);
            if !is_same {
                let renewals = disproven.entry(holder.clone()).or_insert(0);
                *renewals += 1;
                if *renewals == RENEWALS_OF_THE_LIVING {
                    let holder = holder.clone();
                    out.push(Effect::Happened(Happening::FalseProof { holder }));
                }
            }
            is_same
        });
    }

    fn lives_whatever_is_said(&self, holder: &Holder) -> bool {
        let renewals = self.disproven.get(holder);
        renewals.is_some_and(|renewals| *renewals >= RENEWALS_OF_THE_LIVING)
    }

    /// Whether a holder that is proven to have ended can have nothing executed any more.
    fn is_proven_dead(&self, now: Time, holder: &Holder) -> bool {
        self.proven_dead.get(holder).is_some_and(|proof| {
            now >= proof.since + self.config.late_write_max || broken!(ProofCountsAtOnce)
        })
    }

    /// Who is late to renew may have ended, and the kubelet knows: the first members by name ask, again and
    /// again, until the Lease is renewed or evicted.
    fn ask_pods_of_the_late(&mut self, now: Time, out: &mut Vec<Effect>) {
        let (me, patience) = (&self.config.name, self.late_after());
        let is_late =
            |name: &String, seen: &Seen| name != me && now.saturating_sub(seen.since) >= patience;
        if self.pods_asked.is_empty()
            && !self.replicas.iter().any(|(name, seen)| is_late(name, seen))
        {
            return;
        }
        let in_time = self
            .replicas
            .iter()
            .filter(|(name, seen)| seen.lease.incarnation.is_some() && !is_late(name, seen));
        let reads =
            self.reads_good(now) && in_time.take(POD_READERS_MAX).any(|(name, _)| name == me);
        let known = |holder: &Holder| {
            self.proven_dead.contains_key(holder) || self.lives_whatever_is_said(holder)
        };
        let holders = self.replicas.iter().filter_map(|(name, seen)| {
            let holder = seen.lease.holder().filter(|holder| !known(holder))?;
            Some((name, seen, holder))
        });
        let holders: Vec<_> = holders.collect();
        for (name, seen, holder) in holders {
            let pod = &seen.lease.status.pod;
            let waits = match self.pods_asked.get(&holder) {
                None => self.pods_asked.len() >= PODS_ASKED_MAX,
                Some(due) => due.is_none_or(|due| due > now),
            };
            if !is_late(name, seen) {
                // An answer that is on its way finds nothing to put off.
                self.pods_asked.remove(&holder);
            } else if reads && !pod.is_empty() && !waits {
                self.pods_asked.insert(holder.clone(), None);
                let pod = Arc::clone(pod);
                out.push(Effect::AskPod { holder, pod });
            }
        }
    }

    /// Without a renewal for so long a replica is late.
    fn late_after(&self) -> Duration {
        self.config.retry_period + self.config.retry_period / LATE_PARTS
    }

    fn evict_the_silent(&mut self, now: Time, out: &mut Vec<Effect>) {
        let reads_good = self.reads_good(now);
        for (name, seen) in &self.replicas {
            let Some(holder) = seen.lease.holder() else {
                continue;
            };
            let patience = if broken!(SilenceIsCutShort) {
                self.config.retry_period * 2
            } else {
                self.config.lease_duration
            };
            let silent = reads_good && now.saturating_sub(seen.since) >= patience;
            let waits = self
                .evicting
                .get(name)
                .is_some_and(|evicting| evicting.retry_at > now);
            let proven = self.is_proven_dead(now, &holder);
            if *name != self.config.name && (silent || proven) && !waits {
                let evicting = Evicting {
                    holder,
                    since: seen.since,
                    proven,
                    retry_at: Time::MAX,
                };
                self.evicting.insert(name.clone(), evicting);
                let second = self.config.records_deaths.then(|| self.second(now));
                out.push(Effect::Evict(seen.lease.evicted(second)));
            }
        }
    }

    /// Once an owner is dead and before anything of it is taken, the API server is asked to refuse what it
    /// may still send: no clock stops a process that stood still between its last check and the send.
    fn bar_the_dead(&mut self, now: Time, out: &mut Vec<Effect>) {
        if !self.config.bars {
            return;
        }
        let (ended, unproven) = (&self.ended, &self.unproven);
        self.barred
            .retain(|holder, _| ended.contains_key(holder) || unproven.contains_key(holder));
        let waited = unproven.keys().filter(|holder| self.is_dead(now, holder));
        let dead: Vec<Holder> = ended
            .keys()
            .chain(waited)
            .filter(|holder| !self.barred.contains_key(*holder))
            .cloned()
            .collect();
        for holder in dead {
            self.barred.insert(holder.clone(), false);
            let fenced = self.replicas.get(&holder.name).is_some_and(|seen| {
                // A vacated Lease keeps what its last holder said.
                let lease = &seen.lease;
                let last = lease.incarnation.as_ref().or(lease.ended.last());
                last == Some(&holder.incarnation) && lease.status.server_fenced
            });
            out.push(Effect::Bar { holder, fenced });
        }
    }

    fn is_barred(&self, holder: &Holder) -> bool {
        !self.config.bars || self.barred.get(holder) == Some(&true) || broken!(TakesBeforeBarring)
    }

    /// Who shall own what, as this replica sees it; `None` while it may not act on it.
    fn placement(&mut self, now: Time) -> Option<Arc<[u16]>> {
        if self.ranges_read.is_none() || !self.replicas_known {
            return None;
        }
        let names = self.member_names();
        if self
            .ring
            .as_ref()
            .is_none_or(|ring| !ring.members().iter().eq(names.iter()))
        {
            self.ring = Some(Ring::new(names, self.config.ranges));
            self.placed = Memo::default();
        }
        let ring = self.ring.as_ref()?;
        if ring.members().is_empty() || (self.is_cold() && !self.is_settled(now)) {
            return None;
        }
        let index: BTreeMap<&str, u16> = (0..)
            .zip(ring.members())
            .map(|(at, name)| (name.as_str(), at))
            .collect();
        let of = |holder: &Holder| {
            let current = self.is_live(holder);
            current
                .then(|| index.get(holder.name.as_str()).copied())
                .flatten()
        };
        let me = self.me();
        let owners: Vec<Option<u16>> = (0..self.config.ranges)
            .map(|range| {
                let moving = self.held.get(&range).and_then(|held| held.phase.target());
                let claimed = me.as_ref().filter(|_| self.claims.contains_key(&range));
                let of_lease = || self.ranges.get(&range)?.holder.as_ref();
                moving.or(claimed).or_else(of_lease).and_then(of)
            })
            .collect();
        let share = |name: &String| self.replicas.get(name)?.lease.status.share;
        let most: Vec<Option<u16>> = ring.members().iter().map(share).collect();
        if let Some(before) = &self.placed.0
            && before.owners == owners
            && before.most == most
        {
            return Some(Arc::clone(&before.placed));
        }
        let placed: Arc<[u16]> = place_within(ring, &owners, &most).into();
        self.placed = Memo(Some(Placed {
            owners,
            most,
            placed: Arc::clone(&placed),
        }));
        Some(placed)
    }

    /// A Lease with an impossible epoch is deleted on its version by whoever holds its range or is to have
    /// it. Afterwards the range has no Lease, as if a hand had deleted it.
    fn delete_the_damaged(&mut self, now: Time, placed: Option<&[u16]>, out: &mut Vec<Effect>) {
        let due: Vec<RangeId> = self
            .damaged
            .iter()
            .filter(|(range, damaged)| {
                damaged.delete_at.is_some_and(|at| at <= now)
                    && (self.held.contains_key(range) || self.is_placed_here(**range, placed))
            })
            .map(|(range, _)| *range)
            .collect();
        for range in due {
            if let Some(damaged) = self.damaged.get_mut(&range) {
                damaged.delete_at = None;
                let (version, epoch) = (damaged.version, damaged.epoch);
                out.push(Effect::DeleteRange { range, version });
                out.push(Effect::Happened(Happening::Damaged { range, epoch }));
            }
        }
    }

    /// Ranges whose Lease is missing or not to be trusted: before we claim one, every live member says that
    /// it does not hold it, by gRPC or in its Lease.
    fn inquire(&mut self, now: Time, placed: Option<&[u16]>, out: &mut Vec<Effect>) {
        // One that takes long does not keep others waiting which have become doubtful meanwhile.
        let may_begin = match &self.inquiry {
            Some(inquiry) => now >= inquiry.since + self.config.lease_duration,
            None => self.next_inquiry <= now,
        };
        if may_begin {
            let ranges: BTreeSet<RangeId> = (0..self.config.ranges)
                .filter(|range| self.is_doubtful(now, *range, placed))
                .collect();
            let asked = |inquiry: &Inquiry| ranges.is_subset(&inquiry.ranges);
            if !self.inquiry.as_ref().is_some_and(asked) {
                let before = self.inquiry.take();
                if !ranges.is_empty() {
                    self.ask_all(now, ranges, before.as_ref(), out);
                }
            }
        }
        let noticed = |since: &Time| now.saturating_sub(*since) >= self.config.lease_duration;
        let (reads_good, name) = (self.reads_good(now), &self.config.name);
        let replicas = &self.replicas;
        let ended = |holder: &Holder| {
            let seen = replicas.get(&holder.name);
            seen.is_some_and(|seen| seen.lease.ended.contains(&holder.incarnation))
        };
        self.vanished.retain(|holder, since| {
            holder.name != *name && !ended(holder) && !(reads_good && noticed(since))
        });
        let Some(mut inquiry) = self.inquiry.take() else {
            return;
        };
        self.read_replies(now, &mut inquiry);
        if broken!(ClaimsWithoutAsking) {
            inquiry.waiting.clear();
        }
        if broken!(VanishedAreNotWaitedFor) {
            self.vanished.clear();
        }
        if inquiry.ranges.is_empty() {
            // All of them are held, or somebody wrote their Leases: if not, they are asked for again.
            self.next_inquiry = now + self.config.retry_period;
            return;
        }
        if !inquiry.waiting.is_empty() || !self.vanished.is_empty() {
            self.remind(now, &mut inquiry, out);
            self.inquiry = Some(inquiry);
            return;
        }
        let is_doubtful = |range: &RangeId| self.is_doubtful(now, *range, placed);
        if placed.is_none() && !inquiry.ranges.iter().any(is_doubtful) {
            // Whose they are is open for a moment: the answers count afterwards as well.
            self.inquiry = Some(inquiry);
            return;
        }
        for range in inquiry.ranges {
            if self.is_doubtful(now, range, placed) {
                let lease = self.ranges.get(&range);
                let (version, from) = (
                    lease.map(|lease| lease.version),
                    lease.and_then(|lease| lease.holder.clone()),
                );
                self.claim(now, range, version, from, out);
            }
        }
    }

    /// Takes the answers that stand in replica Leases. One counts when everything has been seen that happened
    /// to range Leases before it was written; the same holds for a member's end.
    fn read_replies(&mut self, now: Time, inquiry: &mut Inquiry) {
        let Some(me) = self.me() else { return };
        let mut read = Vec::new();
        let mut late = false;
        for holder in inquiry.waiting.keys() {
            let seen = self.replicas.get(&holder.name).map(|seen| &seen.lease);
            let Some(lease) = seen else {
                // Deleted by hand: it is waited for as one that has vanished.
                read.push((holder.clone(), None));
                continue;
            };
            let replies = match lease.incarnation == Some(holder.incarnation.clone()) {
                true => {
                    let replies = lease.status.replies.as_ref();
                    let answered = |replies: &&Arc<Replies>| {
                        let number = replies.to.get(&me);
                        replies.by == holder.incarnation
                            && (number == Some(&inquiry.id)
                                || number.is_some() && broken!(AnyReplyCounts))
                    };
                    let Some(replies) = replies.filter(answered) else {
                        continue;
                    };
                    Some(Arc::clone(replies))
                }
                false => None,
            };
            match lease.version <= self.as_of {
                true => read.push((holder.clone(), replies)),
                false => late = true,
            }
        }
        if late {
            let grace = self.config.retry_period / SHORT_PARTS;
            self.next_ranges = self.next_ranges.min(now + grace);
        }
        for (holder, replies) in read {
            inquiry.waiting.remove(&holder);
            let Some(replies) = replies else { continue };
            inquiry.ranges.retain(|range| !replies.held.contains(range));
            for (range, epoch) in &replies.epochs {
                if *range < self.config.ranges {
                    self.raise(*range, *epoch);
                }
            }
        }
    }

    /// Asks those again who did not answer, and says for whom it waits.
    fn remind(&mut self, now: Time, inquiry: &mut Inquiry, out: &mut Vec<Effect>) {
        for (to, asked) in &mut inquiry.waiting {
            if asked.retry_at.is_some_and(|at| at <= now)
                && let Some(seen) = self.replicas.get(&to.name)
            {
                asked.retry_at = None;
                out.push(Effect::AskHolds {
                    inquiry: inquiry.id,
                    to: to.clone(),
                    address: seen.lease.status.address.clone(),
                    ranges: inquiry.ranges.iter().copied().collect(),
                });
            }
        }
        if inquiry.report_at <= now {
            inquiry.report_at = now + self.config.retry_period * DOUBT_REPORT_PERIODS;
            let vanished = self.vanished.keys().cloned();
            out.push(Effect::Happened(Happening::Doubtful {
                ranges: inquiry.ranges.clone(),
                asked: now.saturating_sub(inquiry.doubtful_since),
                waiting: inquiry.waiting.keys().cloned().chain(vanished).collect(),
            }));
        }
    }

    fn is_doubtful(&self, now: Time, range: RangeId, placed: Option<&[u16]>) -> bool {
        if self.held.contains_key(&range) || !self.may_claim(now, range) {
            return false;
        }
        match self.ranges.get(&range).map(|lease| &lease.holder) {
            Some(Some(holder)) => Some(holder) == self.me().as_ref(),
            Some(None) | None => self.is_placed_here(range, placed),
        }
    }

    fn ask_all(
        &mut self,
        now: Time,
        ranges: BTreeSet<RangeId>,
        before: Option<&Inquiry>,
        out: &mut Vec<Effect>,
    ) {
        let Some(me) = self.me() else { return };
        self.inquiries += 1;
        let others: Vec<(Holder, String)> = self
            .replicas
            .values()
            .filter_map(|seen| Some((seen.lease.holder()?, seen.lease.status.address.clone())))
            .filter(|(holder, _)| holder.name != self.config.name)
            .collect();
        for (to, address) in &others {
            out.push(Effect::AskHolds {
                inquiry: self.inquiries,
                to: to.clone(),
                address: address.clone(),
                ranges: ranges.iter().copied().collect(),
            });
        }
        let waiting = others.into_iter();
        let question = Question {
            by: me.incarnation,
            number: self.inquiries,
            ranges: ranges.clone(),
        };
        self.inquiry = Some(Inquiry {
            id: self.inquiries,
            ranges,
            waiting: waiting
                .map(|(holder, _)| (holder, Asked { retry_at: None }))
                .collect(),
            question: Arc::new(question),
            published: false,
            since: now,
            doubtful_since: before.map_or(now, |before| before.doubtful_since),
            report_at: before.map_or(now + self.config.lease_duration, |before| before.report_at),
        });
    }

    fn take_orphans(&mut self, now: Time, placed: Option<&[u16]>, out: &mut Vec<Effect>) {
        let orphans: Vec<(RangeId, Version, Holder)> = self
            .ranges
            .values()
            .filter(|lease| self.is_placed_here(lease.range, placed))
            .filter(|lease| {
                !self.held.contains_key(&lease.range) && !self.claims.contains_key(&lease.range)
            })
            .filter_map(|lease| Some((lease.range, lease.version, lease.holder.clone()?)))
            .filter(|(_, _, holder)| self.is_dead(now, holder) && self.is_barred(holder))
            .collect();
        for (range, version, holder) in orphans {
            self.claim(now, range, Some(version), Some(holder), out);
        }
    }

    fn hand_over(&mut self, now: Time, placed: Option<&[u16]>, out: &mut Vec<Effect>) {
        let (Some(placed), Some(ring)) = (placed, &self.ring) else {
            return;
        };
        // Without a Lease of our own in the view something is wrong, and the renewal will say what. A stale
        // replica is no member and hands over all the same, but not at once: where everybody becomes stale at
        // about the same time, it is the API server that is stuck, and nothing is to move.
        let stale = self.outdated_since.filter(|_| !broken!(StaleKeepsAll));
        let periods = match self.stale_together {
            true => STALE_TOGETHER_PERIODS,
            false => STALE_PERIODS,
        };
        let settled = |since: Time| {
            now.saturating_sub(since) >= self.config.retry_period * periods
                || broken!(StaleMovesAtOnce)
        };
        if self.drain_until.is_none()
            && !ring.members().contains(&self.config.name)
            && !stale.is_some_and(settled)
        {
            return;
        }
        self.put_off.retain(|_, until| *until > now);
        let held = &self.held;
        self.wished
            .retain(|range, to| held.contains_key(range) && ring.members().contains(to));
        let moving = self
            .held
            .values()
            .filter(|held| held.phase != Phase::Serving)
            .count();
        let mut room = self.config.moves_at_once.saturating_sub(moving);
        if broken!(NeverHandsOver) {
            room = 0;
        }
        let force = self.drain_until.is_some();
        let mut unfrozen = Vec::new();
        // A member that gets a range by its Lease alone asks all others first: each of them must be able to
        // answer.
        let reads_questions = |seen: &Seen| {
            let lease = &seen.lease;
            let by = lease.status.replies.as_ref().map(|replies| &replies.by);
            lease.incarnation.is_none() || by == lease.incarnation.as_ref()
        };
        let relinquishes = !force && self.replicas.values().all(reads_questions);
        let patience_for_silence = self.config.lease_duration;
        let period = self.config.retry_period;
        let patience = match force {
            true => period,
            false => Duration::MAX,
        };
        for (range, held) in &mut self.held {
            if room == 0 {
                break;
            }
            let target = self.wished.get(range).or_else(|| {
                let at = placed.get(usize::from(*range))?;
                ring.members().get(usize::from(*at))
            });
            let Some(target) = target.filter(|target| **target != self.config.name) else {
                continue;
            };
            let seen = self.replicas.get(target);
            let to = seen.and_then(|seen| seen.lease.holder());
            let quiet = held.phase == Phase::Serving
                && !self.put_off.contains_key(range)
                && !self.claims.contains_key(range)
                && self.ranges.contains_key(range);
            if let (Some(to), Some(seen)) = (to.filter(|_| quiet), seen) {
                let contact = self.contacts.entry(to.clone()).or_default();
                let relinquishes =
                    relinquishes && contact.is_silent(now, patience_for_silence, period);
                let waits = contact.unreachable.until(patience) > now
                    || contact.refuses.until(patience) > now;
                if (waits || contact.asking) && !relinquishes {
                    continue;
                }
                // Nothing is frozen for a member before it has answered.
                if !contact.is_fresh(now, period) && !relinquishes {
                    contact.asking = true;
                    out.push(Effect::AskHolds {
                        inquiry: CONTACT_INQUIRY,
                        to,
                        address: seen.lease.status.address.clone(),
                        ranges: Vec::new(),
                    });
                    continue;
                }
                room -= 1;
                self.wished.remove(range);
                held.phase = Phase::Freezing { to, since: now };
                let budget = match force {
                    true => self.config.drain_budget,
                    false => self.config.freeze_budget,
                };
                if broken!(StreamsWithoutFreezing) {
                    unfrozen.push((*range, held.epoch));
                    continue;
                }
                out.push(Effect::Freeze {
                    range: *range,
                    epoch: held.epoch,
                    budget,
                    force,
                });
            }
        }
        for (range, epoch) in unfrozen {
            self.frozen(now, range, epoch, false, out);
        }
    }

    /// Drops what is over: pauses, and contacts that have nothing to say.
    fn forget_what_is_over(&mut self, now: Time) {
        self.claim_pauses.retain(|_, until| *until > now);
        let period = self.config.retry_period;
        self.contacts.retain(|_, contact| {
            let over = |backoff: &Backoff| {
                // Twice: the next failure soon after the end goes on from here.
                now >= backoff.since + backoff.delay + backoff.delay
            };
            contact.asking
                || contact.is_fresh(now, period)
                || !(over(&contact.unreachable) && over(&contact.refuses))
        });
    }

    fn finish_the_drain(&mut self, now: Time, out: &mut Vec<Effect>) {
        let Some(until) = self.drain_until else {
            return;
        };
        if self.left {
            return;
        }
        let nobody = self.member_names().is_empty()
            && self.held.values().all(|held| held.phase == Phase::Serving);
        let awaits = |kept: &Kept| now < kept.since + self.config.retry_period * KEPT_PERIODS;
        let awaits = self.kept.values().any(awaits) && !broken!(LeavesWithWhatItKept);
        // What is too large to hand over is taken over once the own Lease is released.
        let stays = |(range, held): (&RangeId, &Held)| {
            self.oversized.contains(range) && held.phase == Phase::Serving
        };
        let done = (self.held.iter().all(stays) && self.claims.is_empty() && !awaits)
            || broken!(DrainDropsAll);
        if done || until <= now || nobody {
            self.left = true;
            let ranges = self.drop_everything(out);
            if !ranges.is_empty() {
                out.push(Effect::Happened(Happening::Dropped { ranges }));
            }
            out.push(Effect::Release);
        }
    }

    // ---- what the view says ----

    fn me(&self) -> Option<Holder> {
        self.own
            .as_ref()
            .map(|own| Holder::new(&self.config.name, &own.incarnation))
    }

    fn is_me(&self, holder: &Holder) -> bool {
        holder.name == self.config.name
            && self
                .own
                .as_ref()
                .is_some_and(|own| own.incarnation == holder.incarnation)
    }

    fn is_held(&self) -> bool {
        self.own
            .as_ref()
            .is_some_and(|own| matches!(own.phase, OwnPhase::Held | OwnPhase::Releasing))
    }

    fn is_open(&self, now: Time) -> bool {
        self.own.as_ref().is_some_and(|own| {
            own.phase == OwnPhase::Held && own.open_until.is_some_and(|at| at > now)
        })
    }

    fn read_gap(&self) -> Duration {
        self.config.retry_period * READ_GAP_PERIODS
    }

    /// Whether a read that was started then comes too late to prove anything.
    fn is_slow(&self, now: Time, started: Time) -> bool {
        now.saturating_sub(started) > self.config.retry_period
    }

    /// Whether a read that was started then follows the good one before without a gap.
    fn is_in_time(&self, started: Time) -> bool {
        self.last_read
            .is_some_and(|last| started <= last + self.read_gap())
    }

    fn reads_good(&self, now: Time) -> bool {
        self.last_read
            .is_some_and(|last| now <= last + self.read_gap())
    }

    /// Its replica Lease names this incarnation.
    fn is_live(&self, holder: &Holder) -> bool {
        self.is_me(holder)
            || self
                .replicas
                .get(&holder.name)
                .and_then(|seen| seen.lease.incarnation.as_ref())
                == Some(&holder.incarnation)
    }

    /// It lost its replica Lease by compare-and-swap.
    fn has_ended(&self, holder: &Holder) -> bool {
        !self.is_me(holder)
            && self
                .replicas
                .get(&holder.name)
                .is_some_and(|seen| seen.lease.ended.contains(&holder.incarnation))
    }

    fn is_dead(&self, now: Time, holder: &Holder) -> bool {
        let waited = |since: &Time| now.saturating_sub(*since) >= self.config.lease_duration;
        let ended = self.ended.get(holder).is_some_and(|(version, _)| {
            *version <= self.as_of || broken!(TakesBeforeTheViewHasPassed)
        });
        let waited = |since: &Time| waited(since) || broken!(UnprovenCountAsDead);
        !self.is_live(holder)
            && (ended || (self.reads_good(now) && self.unproven.get(holder).is_some_and(waited)))
    }

    /// The members that count, sorted by name: those that see what happens. Where nobody does, that is no
    /// difference between them.
    fn member_names(&self) -> Vec<String> {
        let eligible = || {
            let leases = self.replicas.values().map(|seen| &seen.lease);
            leases.filter(|lease| self.is_eligible(lease))
        };
        let current = |lease: &&ReplicaLease| !self.is_stale(lease) || broken!(StaleCounts);
        let nobody = !eligible().any(|lease| current(&lease)) && !broken!(NobodyIsCurrent);
        eligible()
            .filter(|lease| nobody || current(lease))
            .map(|lease| lease.name.clone())
            .collect()
    }

    /// Whether this replica is a member that counts.
    fn counts_me(&self) -> bool {
        self.member_names().contains(&self.config.name)
    }

    /// Of itself a replica knows it first.
    fn is_stale(&self, lease: &ReplicaLease) -> bool {
        match lease.name == self.config.name {
            true => self.stale_since.is_some(),
            false => lease.status.stale,
        }
    }

    fn is_eligible(&self, lease: &ReplicaLease) -> bool {
        let mine = lease.name == self.config.name;
        let status = &lease.status;
        lease.incarnation.is_some()
            && (!mine || (lease.holder() == self.me() && self.drain_until.is_none()))
            && status.ready
            && !status.draining
            && status.ranges == self.config.ranges
            && compatible(&self.config.build, &status.build)
    }

    fn is_placed_here(&self, range: RangeId, placed: Option<&[u16]>) -> bool {
        let (Some(placed), Some(ring)) = (placed, &self.ring) else {
            return false;
        };
        placed
            .get(usize::from(range))
            .and_then(|at| ring.members().get(usize::from(*at)))
            == Some(&self.config.name)
    }

    /// Nobody alive owns anything.
    fn is_cold(&self) -> bool {
        self.held.is_empty()
            && !self.ranges.values().any(|lease| {
                lease
                    .holder
                    .as_ref()
                    .is_some_and(|holder| self.is_live(holder))
            })
    }

    fn is_settled(&self, now: Time) -> bool {
        let ready = self.member_names().len();
        let counts_otherwise = |seen: &Seen| {
            seen.lease.incarnation.is_some() && seen.lease.status.ranges != self.config.ranges
        };
        !self.replicas.values().any(counts_otherwise)
            && (now.saturating_sub(self.still_since) >= self.config.settle_time
                || self
                    .config
                    .expected_replicas
                    .is_some_and(|expected| ready >= usize::from(expected)))
    }

    /// When time alone may change a decision.
    pub fn wake_at(&self, now: Time) -> Time {
        let mut at = now + self.config.retry_period;
        let mut sooner = |then: Time| {
            if then > now {
                at = at.min(then);
            }
        };
        sooner(self.next_read);
        sooner(self.next_ranges);
        sooner(self.still_since + self.config.settle_time);
        sooner(self.next_inquiry);
        if let Some(inquiry) = &self.inquiry {
            sooner(inquiry.since + self.config.retry_period);
            let waiting = inquiry.waiting.values();
            waiting
                .filter_map(|asked| asked.retry_at)
                .for_each(&mut sooner);
        }
        let late = self.late_after();
        for seen in self.replicas.values() {
            sooner(seen.since + self.config.lease_duration);
            if !seen.lease.status.pod.is_empty() {
                sooner(seen.since + late);
            }
        }
        self.pods_asked
            .values()
            .flatten()
            .copied()
            .for_each(&mut sooner);
        self.proven_dead
            .values()
            .for_each(|proof| sooner(proof.since + self.config.late_write_max));
        let grace = self.config.retry_period / SHORT_PARTS;
        self.ended
            .values()
            .for_each(|(_, since)| sooner(*since + grace));
        let patience = match self.drain_until {
            Some(_) => self.config.retry_period,
            None => Duration::MAX,
        };
        for contact in self.contacts.values() {
            sooner(contact.unreachable.until(patience));
            sooner(contact.refuses.until(patience));
        }
        self.claim_pauses.values().copied().for_each(&mut sooner);
        self.damaged
            .values()
            .filter_map(|damaged| damaged.delete_at)
            .for_each(&mut sooner);
        self.vanished
            .values()
            .for_each(|since| sooner(*since + self.config.lease_duration));
        self.unproven
            .values()
            .for_each(|since| sooner(*since + self.config.lease_duration));
        self.evicting
            .values()
            .for_each(|evicting| sooner(evicting.retry_at));
        self.put_off.values().copied().for_each(&mut sooner);
        self.claims
            .values()
            .filter_map(|claim| claim.retry_at)
            .for_each(&mut sooner);
        self.drain_until.into_iter().for_each(&mut sooner);
        if self.drain_until.is_some() {
            let patience = self.config.retry_period * KEPT_PERIODS;
            self.kept
                .values()
                .for_each(|kept| sooner(kept.since + patience));
        }
        for held in self.held.values() {
            if let Phase::Swapping {
                retry_at: Some(retry_at),
                ..
            } = held.phase
            {
                sooner(retry_at);
            }
        }
        at
    }

    /// This life of the replica, as far as the core has heard.
    pub fn holder(&self) -> Option<Holder> {
        self.me()
    }

    /// The ranges held, with their epochs.
    pub fn held(&self) -> impl Iterator<Item = (RangeId, Epoch)> + '_ {
        self.held.iter().map(|(range, held)| (*range, held.epoch))
    }

    /// The range's Lease as last seen.
    pub fn range(&self, range: RangeId) -> Option<&RangeLease> {
        self.ranges.get(&range)
    }

    /// As if this replica had claimed the range under this epoch and waited for the answer.
    #[cfg(test)]
    pub(crate) fn seed_claim(&mut self, range: RangeId, epoch: Epoch) {
        self.claims.insert(
            range,
            Claim {
                epoch,
                version: None,
                from: None,
                retry_at: None,
                hidden: false,
            },
        );
    }

    /// Whether this incarnation is in a replica Lease as last seen: whose peers may speak.
    pub fn is_member(&self, name: &str) -> bool {
        self.replicas
            .get(name)
            .is_some_and(|seen| seen.lease.incarnation.is_some())
    }

    /// The owners by the Leases; `before`, where they are as they were.
    fn owners(&self, before: &Arc<[RangeOwner]>) -> Arc<[RangeOwner]> {
        fn owner(lease: &RangeLease) -> Option<&str> {
            lease.holder.as_ref().map(|holder| &*holder.name)
        }
        let same = self.ranges.len() == before.len()
            && before
                .iter()
                .zip(self.ranges.values())
                .all(|(before, lease)| {
                    (before.range, before.epoch) == (lease.range, lease.epoch)
                        && before.owner.as_deref() == owner(lease)
                });
        if same {
            return Arc::clone(before);
        }
        let leases = self.ranges.values();
        leases
            .map(|lease| RangeOwner {
                range: lease.range,
                owner: owner(lease).map(str::to_owned),
                epoch: lease.epoch,
            })
            .collect()
    }

    /// What `/debug/shards` tells. What has not changed since the view `before` is shared with it: a view is
    /// made with every decision, and there are hundreds of ranges.
    pub fn view(&self, now: Time, before: &View) -> View {
        let own = self.own.as_ref();
        let until = own
            .filter(|_| self.is_open(now))
            .and_then(|own| own.open_until);
        View {
            replica: self.config.name.clone(),
            incarnation: own.map(|own| own.incarnation.clone()).unwrap_or_default(),
            fence: ViewFence {
                open: until.is_some(),
                remaining_ms: until.map_or(0, |until| millis(until.saturating_sub(now))),
            },
            members: self
                .replicas
                .values()
                .filter_map(|seen| {
                    Some(Member {
                        name: seen.lease.name.clone(),
                        incarnation: seen.lease.incarnation.clone()?,
                        address: seen.lease.status.address.clone(),
                        pin: seen.lease.status.pin,
                        ready: seen.lease.status.ready,
                        draining: seen.lease.status.draining,
                        stale: seen.lease.status.stale,
                        version: seen.lease.status.build.clone(),
                        fingerprints: seen.lease.status.fingerprints.to_string(),
                        unreachable: seen.lease.status.unreachable.to_string(),
                    })
                })
                .collect(),
            ranges: self.owners(&before.ranges),
            own: match before
                .own
                .iter()
                .map(|(at, epoch)| (*at, *epoch))
                .eq(self.held())
            {
                true => Arc::clone(&before.own),
                false => Arc::new(self.held().collect()),
            },
            moves: self
                .held
                .iter()
                .filter_map(|(range, held)| {
                    Some(Move {
                        range: *range,
                        to: held.phase.target()?.name.clone(),
                    })
                })
                .collect(),
        }
    }
}

/// The Lease names the other, one epoch on. Without the state it is two: then no attempt of before fits,
/// whose state the other may have acknowledged without our hearing of it.
fn swap(lease: &RangeLease, to: Holder, with_state: bool) -> Effect {
    let next = next_epoch(lease.epoch);
    let epoch = match with_state || broken!(RelinquishesOneEpochOn) {
        true => next,
        false => next_epoch(next),
    };
    Effect::Swap {
        version: lease.version,
        lease: RangeLease {
            range: lease.range,
            version: 0,
            holder: Some(to),
            epoch,
            dead: lease.dead.clone(),
        },
        with_state,
    }
}

/// Builds speak with each other within one minor version of one major version.
fn compatible(ours: &str, theirs: &str) -> bool {
    let parse = |build: &str| {
        let mut parts = build
            .trim_start_matches('v')
            .split(['.', '-', '+'])
            .map(str::parse::<u32>);
        Some((parts.next()?.ok()?, parts.next()?.ok()?))
    };
    match (parse(ours), parse(theirs)) {
        (Some((major, minor)), Some((their_major, their_minor))) => {
            major == their_major && minor.abs_diff(their_minor) <= 1
        }
        _ => ours == theirs,
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The fleet as one replica sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct View {
    /// Who sees it.
    pub replica: String,
    /// Which start of it.
    pub incarnation: String,
    /// Its fence.
    pub fence: ViewFence,
    /// All replicas with a Lease, sorted by name.
    pub members: Vec<Member>,
    /// All ranges with a Lease, in order.
    pub ranges: Arc<[RangeOwner]>,
    /// The ranges held here, with their epochs.
    #[serde(skip)]
    pub own: Arc<BTreeMap<RangeId, Epoch>>,
    /// Handoffs under way from here.
    #[serde(skip)]
    pub moves: Vec<Move>,
}

/// A fence at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ViewFence {
    /// Whether requests go out.
    pub open: bool,
    /// How long it stays open without another renewal.
    pub remaining_ms: u64,
}

/// A replica with a Lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// Which start of it.
    pub incarnation: String,
    /// Where its peers reach it.
    pub address: String,
    /// The key by which its peers know it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pin: Option<Pin>,
    /// Whether its caches were complete once.
    pub ready: bool,
    /// Whether it is on its way out.
    pub draining: bool,
    /// Whether it sees changes too late to be an owner.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stale: bool,
    /// Its build.
    pub version: String,
    /// Fingerprints of what every replica must have the same of, as `name=hash` with commas between them.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub fingerprints: String,
    /// Names of the members that do not answer it, with commas between them.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub unreachable: String,
}

/// A range's owner by its Lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RangeOwner {
    /// Which.
    pub range: RangeId,
    /// The owner's name.
    pub owner: Option<String>,
    /// Its epoch.
    pub epoch: Epoch,
}

/// A handoff under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Move {
    /// Which range.
    pub range: RangeId,
    /// To whom.
    pub to: String,
}
