//! What happens to a [`crate::Core`], and what it wants done.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use crate::{
    RangePin,
    lease::{
        EPOCH_END, Epoch, Holder, NoAnswer, RangeId, RangeLease, ReplicaLease, Status, Time,
        Version, Written,
    },
    plan::PlanLease,
    questions::write_ranges,
    renewal::{OwnLease, Regained},
};

/// A range's state, offered by its owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Offer {
    /// The shell's number for the request.
    pub id: u64,
    /// The owner.
    pub from: Holder,
    /// The incarnation that it is meant for.
    pub to_incarnation: String,
    /// The range.
    pub range: RangeId,
    /// The epoch under which the sender owns it.
    pub epoch: Epoch,
    /// Counts the sender's attempts, so that an older one that comes late is distinguished from the newest.
    pub attempt: u64,
    /// The sender's build.
    pub build: String,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// Time passes.
    Tick,
    /// The state of the own Lease.
    Own(OwnLease),
    /// A consistent list of all replica Leases.
    Replicas {
        /// When the request was started.
        started: Time,
        /// The list's version.
        version: Version,
        /// All of them.
        leases: Vec<ReplicaLease>,
    },
    /// Such a list failed, or came too late to mean anything.
    ReplicasFailed,
    /// A consistent list of all range Leases.
    Ranges {
        /// When the request was started.
        started: Time,
        /// The list's version.
        version: Version,
        /// All of them.
        leases: Vec<RangeLease>,
    },
    /// Such a list failed.
    RangesFailed,
    /// The watch has brought everything that happened up to this version.
    WatchedTo(Version),
    /// A replica Lease, from a watch or a single read.
    Replica(ReplicaLease),
    /// A replica Lease is gone.
    ReplicaGone {
        /// The replica's name.
        name: String,
        /// The version of its end.
        version: Version,
    },
    /// A range Lease, from a watch or a single read.
    Range(RangeLease),
    /// A range Lease is gone.
    RangeGone {
        /// The range.
        range: RangeId,
        /// The version of its end.
        version: Version,
    },
    /// What came of deleting a range Lease.
    RangeDeleted {
        /// The range.
        range: RangeId,
        /// The version that it had to have.
        version: Version,
        /// Whether it was deleted: `false` where it has another version or is gone, `Err` without an answer.
        result: Result<bool, NoAnswer>,
    },
    /// Something other than silence proves that a replica's process has ended.
    ProvenDead(Holder),
    /// Its pod does not say that this replica has ended, or could not be read.
    NotProven(Holder),
    /// What came of an eviction.
    Evicted {
        /// Whose Lease.
        name: String,
        /// What came of it.
        result: Written<ReplicaLease>,
    },
    /// What came of a claim on a range Lease.
    Claimed {
        /// The range.
        range: RangeId,
        /// What came of it.
        result: Written<RangeLease>,
    },
    /// What came of giving a range Lease to another.
    Swapped {
        /// The range.
        range: RangeId,
        /// What came of it.
        result: Written<RangeLease>,
    },
    /// Whether the node's caches are complete.
    HostReady(bool),
    /// Whether what the node sees is current.
    HostCurrent(bool),
    /// Whether each write of this replica carries its incarnation from now on.
    ServerFenced(bool),
    /// Fingerprints of what every replica must have the same of, as [`Status`] has them.
    Fingerprints(String),
    /// Names of the members that do not answer, as [`Status`] has them.
    Unreachable(String),
    /// What the node would write, as a class of its own.
    Demand(u8),
    /// The node has answered a freeze.
    Frozen {
        /// The range.
        range: RangeId,
        /// The epoch of the freeze.
        epoch: Epoch,
        /// Writes were under way and the range is served as before; never with force.
        busy: bool,
    },
    /// The other side has answered a handoff, or not.
    Sent {
        /// The range.
        range: RangeId,
        /// The attempt.
        attempt: u64,
        /// What the answer was.
        result: Result<(), NotSent>,
    },
    /// A peer offers a range.
    Offered(Offer),
    /// A peer says that a range Lease names us now. A hint: the Lease is read.
    SwapAnnounced {
        /// Who says so.
        from: Holder,
        /// The range.
        range: RangeId,
        /// Our epoch.
        epoch: Epoch,
    },
    /// A peer asks which of these ranges are held here.
    HoldsAsked {
        /// The shell's number for the request.
        id: u64,
        /// The ranges.
        ranges: Vec<RangeId>,
    },
    /// A peer's answer to the same question.
    HoldsAnswered {
        /// The inquiry.
        inquiry: u64,
        /// Who was asked.
        from: Holder,
        /// For each range asked: whether it is held there, and the highest epoch known. `Err` without an
        /// answer by this very incarnation.
        result: Result<BTreeMap<RangeId, (bool, Epoch)>, NoAnswer>,
    },
    /// The API server refuses whatever this holder still sends, or that was not to be had in time: then the
    /// rules of time alone hold.
    Barred(Holder),
    /// Hand everything over, then leave; at this time leave anyway.
    Drain(Time),
    /// The Lease with the fleet's plan of placement.
    Plan(PlanLease),
    /// There is none, as of this version.
    PlanGone(Version),
    /// What came of writing a plan.
    PlanWritten(Written<PlanLease>),
    /// The ranges that operators want to be certain members'.
    Pins(BTreeMap<RangeId, RangePin>),
    /// The fleet's hold of the manager's Lease ([`crate::Hold`]).
    Hold {
        /// The fleet's term; `None` while it does not hold the Lease.
        term: Option<u64>,
        /// A renewal was seen within the deadline.
        fresh: bool,
        /// Who holds it instead.
        other: Option<String>,
    },
    /// An operator wants a range that is held here to be a member's. Tried once; placement keeps loads even
    /// afterwards.
    Move {
        /// The range.
        range: RangeId,
        /// Who is to own it.
        to: String,
    },
}

/// Something to do. Every effect that has an answer gets exactly one, if only that it failed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Let the own Lease be acquired.
    Join,
    /// Say this in the own Lease.
    Status(Status),
    /// The fence may open.
    Reopen(Regained),
    /// Release the own Lease.
    Release,
    /// List the replica Leases, consistently. Answer: `Replicas` or `ReplicasFailed`.
    ReadReplicas,
    /// List the range Leases, consistently. Answer: `Ranges` or `RangesFailed`.
    ReadRanges,
    /// Read one range Lease. Answer: `Range`, if it is there.
    ReadRange(RangeId),
    /// Write a replica Lease without its holder, if it still has this version. Answer: `Evicted`.
    Evict(ReplicaLease),
    /// Ask whether the process of a replica that is late to renew has ended, by what the kubelet says of its
    /// pod. Answer: `ProvenDead` or `NotProven`.
    AskPod {
        /// The replica's incarnation.
        holder: Holder,
        /// Which pod, `<namespace>/<name>`.
        pod: Arc<str>,
    },
    /// Let the API server refuse whatever this holder, who is dead, may still send. Answer: `Barred`, within
    /// a bound.
    Bar {
        /// The incarnation that is refused.
        holder: Holder,
        /// Its replica Lease said that each of its writes carries its incarnation. Without that, a refusal of
        /// one that does proves nothing of the others.
        fenced: bool,
    },
    /// Write our name into a range Lease; `version` is `None` to create it. Answer: `Claimed`.
    Claim {
        /// The version it must still have.
        version: Option<Version>,
        /// What it is to say.
        lease: RangeLease,
    },
    /// Give a range Lease to another, if it still has this version. Answer: `Swapped`.
    Swap {
        /// The version it must still have.
        version: Version,
        /// What it is to say.
        lease: RangeLease,
        /// Whether the other has acknowledged the range's state.
        with_state: bool,
    },
    /// Delete a range Lease, if it still has this version. Answer: `RangeDeleted`.
    DeleteRange {
        /// The range.
        range: RangeId,
        /// The version it must still have.
        version: Version,
    },
    /// The range is ours: let requests through, notify the node.
    Gained {
        /// The range.
        range: RangeId,
        /// Under which epoch.
        epoch: Epoch,
        /// Whether the state that was handed over belongs to it.
        kept: bool,
    },
    /// The range is not ours any more: stop requests, notify the node.
    Lost(RangeId),
    /// Let the node freeze the range. Answer: `Frozen`.
    Freeze {
        /// The range.
        range: RangeId,
        /// The present epoch.
        epoch: Epoch,
        /// How long writes in flight may take.
        budget: Duration,
        /// Whether to freeze it even with writes in flight.
        force: bool,
    },
    /// No request for the range goes out, and those in flight are aborted.
    CloseRange(RangeId),
    /// Send the frozen state. Answer: `Sent`.
    Send {
        /// The range.
        range: RangeId,
        /// Our epoch.
        epoch: Epoch,
        /// The attempt.
        attempt: u64,
        /// The new owner.
        to: Holder,
        /// Where that is.
        address: String,
    },
    /// The move did not happen: let requests through again, thaw the range.
    Resume {
        /// The range.
        range: RangeId,
        /// Our epoch.
        epoch: Epoch,
    },
    /// Notify the new owner; nobody waits for it.
    AnnounceSwap {
        /// The range.
        range: RangeId,
        /// The new owner's epoch.
        epoch: Epoch,
        /// The new owner.
        to: Holder,
        /// Where that is.
        address: String,
    },
    /// Answer an offer; if it is accepted, keep its state until `Gained` or `Forget`.
    Answer {
        /// The offer.
        id: u64,
        /// The range.
        range: RangeId,
        /// `Some` refuses it.
        refused: Option<Refused>,
    },
    /// Drop the state that was kept for a range.
    Forget(RangeId),
    /// Answer `HoldsAsked`.
    AnswerHolds {
        /// The request.
        id: u64,
        /// By range: held here, highest epoch known.
        answer: BTreeMap<RangeId, (bool, Epoch)>,
    },
    /// Ask a peer which of these it holds; without ranges only whether it answers. Answer: `HoldsAnswered`.
    AskHolds {
        /// The inquiry.
        inquiry: u64,
        /// The peer.
        to: Holder,
        /// Where that is.
        address: String,
        /// The ranges.
        ranges: Vec<RangeId>,
    },
    /// Write the fleet's plan, if its Lease still has this version; `None` creates it. Answer: `PlanWritten`.
    WritePlan {
        /// The version it must still have.
        version: Option<Version>,
        /// What it is to say.
        lease: PlanLease,
    },
    /// For logs, metrics and events.
    Happened(Happening),
    /// This replica cannot take part.
    Fatal(Fatal),
}

/// Why a handoff was not acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NotSent {
    /// The other side answered no.
    Refused(String),
    /// There was no answer.
    Unreachable(String),
    /// The state is over the limit of a handoff; nothing was sent.
    TooLarge(String),
}

/// Why an offered range is not taken.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refused {
    /// It was meant for a life that is over.
    #[error("meant for another incarnation; this one is {0}")]
    OtherIncarnation(String),
    /// This replica cannot take ranges now.
    #[error("this replica is not ready, is draining or has a closed fence")]
    NotTaking,
    /// The sender is no member.
    #[error("{0} holds no replica Lease")]
    NoMember(Holder),
    /// The Lease says otherwise.
    #[error("range {range} is not {from}'s at epoch {epoch}, by its Lease as seen here")]
    NotTheOwner {
        /// The range.
        range: RangeId,
        /// The sender.
        from: Holder,
        /// The epoch it claims.
        epoch: Epoch,
    },
    /// A later offer came first.
    #[error("a newer attempt is already here")]
    Superseded,
    /// The builds are too far apart.
    #[error("builds {0} and {1} are more than one minor version apart")]
    Incompatible(String, String),
}

/// What an operator wants to know of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Happening {
    /// The own Lease was acquired.
    Joined {
        /// Under which incarnation.
        incarnation: String,
    },
    /// The fence has closed because renewals failed.
    Fenced,
    /// The fence is open again.
    Reopened {
        /// How long it was closed.
        closed: Duration,
    },
    /// Somebody has evicted this replica, or its Lease was deleted; it comes back with nothing.
    SelfEvicted {
        /// The life that is over.
        incarnation: String,
        /// The ranges it had.
        ranges: Vec<RangeId>,
    },
    /// This replica has evicted another.
    Evicted {
        /// The incarnation that is refused.
        holder: Holder,
        /// How long it had been silent.
        silent: Duration,
        /// Its process was proven to have ended.
        proven: bool,
    },
    /// A replica renews though its process was said to have ended.
    FalseProof {
        /// Which.
        holder: Holder,
    },
    /// A range was taken without a handoff.
    TookOver {
        /// The range.
        range: RangeId,
        /// Our epoch.
        epoch: Epoch,
        /// Who had it.
        from: Option<Holder>,
    },
    /// A range came by handoff.
    Received {
        /// The range.
        range: RangeId,
        /// Our epoch.
        epoch: Epoch,
        /// Who had it.
        from: Holder,
    },
    /// A range went by handoff.
    HandedOver {
        /// The range.
        range: RangeId,
        /// The new owner's epoch.
        epoch: Epoch,
        /// The new owner.
        to: Holder,
        /// From the freeze to the written Lease.
        took: Duration,
    },
    /// A range was given without its state, to a member that lives and does not answer.
    Relinquished {
        /// The range.
        range: RangeId,
        /// The epoch of its Lease.
        epoch: Epoch,
        /// The new owner.
        to: Holder,
    },
    /// A handoff did not happen; the range went on here.
    HandoffFailed {
        /// The range.
        range: RangeId,
        /// The new owner.
        to: Holder,
        /// The reason, for people.
        why: String,
    },
    /// A range Lease names another and we did not give it.
    Deprived {
        /// The range.
        range: RangeId,
        /// Our epoch.
        epoch: Epoch,
        /// Who is named.
        by: Option<Holder>,
    },
    /// A range Lease has an epoch that no replica writes; it is deleted and made again.
    Damaged {
        /// The range.
        range: RangeId,
        /// The epoch found.
        epoch: Epoch,
    },
    /// Ranges without a Lease that can be trusted are nobody's until all live members have said that they
    /// hold none of them, and some have not for a lease duration.
    Doubtful {
        /// The ranges.
        ranges: BTreeSet<RangeId>,
        /// How long ago members were asked.
        asked: Duration,
        /// Who is waited for.
        waiting: Vec<Holder>,
    },
    /// The drain's time was over with ranges still here.
    Dropped {
        /// The ranges.
        ranges: Vec<RangeId>,
    },
    /// The manager's Lease is not the fleet's: nothing is owned or written.
    Standby {
        /// Whose it is; `None` where it is nobody's any more.
        holder: Option<String>,
        /// The ranges that this replica had.
        ranges: Vec<RangeId>,
    },
    /// The fleet holds the manager's Lease.
    Holds,
    /// This replica has planned a move, so that replicas have equal work.
    Planned {
        /// The plan's number.
        number: u64,
        /// The range.
        range: RangeId,
        /// Whose it is.
        from: String,
        /// Whose it will be.
        to: String,
    },
    /// This replica has planned that ranges stay where they are: who was to take them has not.
    MovesGivenUp {
        /// The plan's number.
        number: u64,
        /// The ranges.
        ranges: BTreeSet<RangeId>,
    },
    /// The fleet's plan can't be read: ranges are placed by equal numbers.
    BadPlan {
        /// The plan's number.
        number: u64,
        /// What is wrong with it.
        why: String,
    },
}

/// Why this replica cannot take part.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Fatal {
    /// Two live processes with one name.
    #[error(
        "another live replica is named {name:?} (incarnation {incarnation}); give each replica its own --replica-name"
    )]
    NameTaken {
        /// The name.
        name: String,
        /// The other's incarnation.
        incarnation: String,
    },
    /// The fleet has another number of ranges.
    #[error(
        "replica {name:?} of this fleet runs with --ranges={theirs}, this one with --ranges={ours}; use --ranges={theirs} \
         or another --fleet-name"
    )]
    OtherRanges {
        /// Who has it.
        name: String,
        /// That one's number.
        theirs: u16,
        /// Ours.
        ours: u16,
    },
    /// The API server's storage was restored to an older state.
    #[error(
        "the API server's Leases went back: a list at resourceVersion {listed} came after resourceVersion {seen} had been \
         seen, as after a restore of etcd; this process ends, since nothing it has cached can be trusted, and must be \
         started again"
    )]
    WentBack {
        /// The newest version seen before.
        seen: Version,
        /// The list's version.
        listed: Version,
    },
    /// There are as many replicas as a fleet may have.
    #[error(
        "the fleet has {most} other replicas already, the most that are supported; run fewer replicas, or give these \
         another --fleet-name and other controllers"
    )]
    FleetIsFull {
        /// The bound.
        most: usize,
    },
}

impl fmt::Display for Happening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Joined { incarnation } => write!(f, "joined the fleet as {incarnation}"),
            Self::Fenced => write!(f, "fenced itself: no renewal has landed in time"),
            Self::Reopened { closed } => write!(
                f,
                "acts again after {} ms behind a closed fence",
                closed.as_millis()
            ),
            Self::SelfEvicted {
                incarnation,
                ranges,
            } => {
                write!(
                    f,
                    "incarnation {incarnation} was evicted and has dropped {} ranges",
                    ranges.len()
                )
            }
            Self::Evicted {
                holder,
                silent,
                proven,
            } => {
                let proven = if *proven { " and proven dead" } else { "" };
                let silent = silent.as_millis();
                write!(f, "evicted {holder}, silent for {silent} ms{proven}")
            }
            Self::FalseProof { holder } => write!(
                f,
                "{holder} renews its Lease though its pod's status says that its process has ended: the status counts \
                 for nothing; does the container runtime report ends that have not happened?"
            ),
            Self::TookOver {
                range,
                epoch,
                from: Some(from),
            } => {
                write!(f, "took range {range} over from {from}, epoch {epoch}")
            }
            Self::TookOver {
                range,
                epoch,
                from: None,
            } => write!(f, "took range {range}, epoch {epoch}"),
            Self::Received { range, epoch, from } => {
                write!(f, "received range {range} from {from}, epoch {epoch}")
            }
            Self::HandedOver {
                range,
                epoch,
                to,
                took,
            } => {
                write!(
                    f,
                    "handed range {range} to {to} in {} ms, epoch {epoch}",
                    took.as_millis()
                )
            }
            Self::Relinquished { range, epoch, to } => {
                write!(
                    f,
                    "gave range {range} to {to}, which does not answer, without its state, epoch {epoch}"
                )
            }
            Self::HandoffFailed { range, to, why } => {
                write!(f, "range {range} was not handed to {to}: {why}")
            }
            Self::Deprived {
                range,
                epoch,
                by: Some(by),
            } => {
                write!(
                    f,
                    "the Lease of range {range} names {by}, not this replica's epoch {epoch}"
                )
            }
            Self::Deprived {
                range,
                epoch,
                by: None,
            } => {
                write!(
                    f,
                    "the Lease of range {range} names nobody, not this replica's epoch {epoch}"
                )
            }
            Self::Damaged { range, epoch } => {
                write!(
                    f,
                    "the Lease of range {range} was edited by hand: leaseTransitions is {epoch}, and no replica writes \
                     {EPOCH_END} or more; it is deleted and created again"
                )
            }
            Self::Doubtful {
                ranges,
                asked,
                waiting,
            } => {
                f.write_str("ranges ")?;
                write_ranges(f, ranges)?;
                let seconds = asked.as_secs();
                write!(
                    f,
                    " have no trustworthy Lease, and for {seconds} s these members have not said whether they hold \
                     them: "
                )?;
                for (at, holder) in waiting.iter().enumerate() {
                    let before = if at == 0 { "" } else { ", " };
                    write!(f, "{before}{holder}")?;
                }
                Ok(())
            }
            Self::Dropped { ranges } => {
                write!(f, "left with {} ranges not handed over", ranges.len())
            }
            Self::Standby { holder, ranges } => {
                let holder = holder.as_deref().unwrap_or("nobody");
                write!(f, "on standby: {holder} holds the manager's Lease")?;
                match ranges.len() {
                    0 => Ok(()),
                    count => write!(f, "; {count} ranges were dropped"),
                }
            }
            Self::Holds => f.write_str("the fleet holds the manager's Lease"),
            Self::Planned {
                number,
                range,
                from,
                to,
            } => write!(
                f,
                "plan {number} moves range {range} from {from} to {to}: their work is uneven"
            ),
            Self::MovesGivenUp { number, ranges } => {
                write!(f, "plan {number} leaves where they are the ranges ")?;
                write_ranges(f, ranges)?;
                f.write_str(
                    ": who was to take them has not within a minute, and is planned no others for five",
                )
            }
            Self::BadPlan { number, why } => write!(
                f,
                "plan {number} has no effect, and each replica gets as many ranges as the others: {why}; delete the \
                 plan's Lease, and a new one is written where it is needed"
            ),
        }
    }
}
