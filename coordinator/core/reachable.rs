//! Rare branches of the protocol, by name, and how often this process has taken each.
//!
//! A fault that no run of the simulation meets is not tested, by any number of seeds. So each branch
//! that only a fault or a race leads to is counted, and `cargo simulate` fails where one was never taken in a
//! run that is long enough. No decision reads a counter.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts that a rare branch is taken.
macro_rules! reachable {
    ($branch:ident) => {
        $crate::reachable::count($crate::reachable::Branch::$branch)
    };
}

pub(crate) use reachable;

macro_rules! branches {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// A rare branch.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Branch {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Branch {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];
        }
    };
}

branches! {
    /// A read of the replica Leases was slow or came after a gap: every wait begins again.
    WaitsBeginAgain,
    /// A replica's Lease was deleted while it was held.
    ReplicaLeaseDeleted,
    /// A replica's Lease has another holder, and does not list the one before as ended.
    HolderReplacedUnlisted,
    /// The replica sees no changes, and others do.
    StaleAmongCurrent,
    /// The replica sees no changes, and nobody does.
    StaleTogether,
    /// An eviction lost against a renewal or another eviction.
    EvictionLost,
    /// An eviction had no answer.
    EvictionUnanswered,
    /// A replica was evicted because it was silent.
    EvictedSilent,
    /// A replica was evicted because its process was proven to have ended.
    EvictedProven,
    /// A replica renewed once after it was said to have ended.
    RenewedAfterItsEnd,
    /// A replica renewed twice after it was said to have ended: it lives.
    ProofWasFalse,
    /// A range was taken from an owner of whom no replica Lease speaks, which had been waited for.
    UnprovenTaken,
    /// The view of range Leases lagged behind an owner's end, and was read.
    ViewLagsBehindAnEnd,
    /// A range Lease has an epoch that no replica writes.
    LeaseDamaged,
    /// A damaged range Lease was deleted.
    DamagedDeleted,
    /// A damaged range Lease could not be deleted at the version that was seen.
    DamagedDeletionFailed,
    /// A claim lost against another.
    ClaimLost,
    /// A claim came upon a Lease that no list or watch shows.
    ClaimHidden,
    /// The Lease that a claim was for was deleted.
    ClaimedLeaseDeleted,
    /// A claim had no answer.
    ClaimUnanswered,
    /// A claim without an answer was sent again.
    ClaimSentAgain,
    /// A claim without an answer was overtaken by another write.
    ClaimOvertaken,
    /// The Lease of a range that is held went back to a lower epoch.
    EpochFell,
    /// The Lease of a range that is held names this replica at a higher epoch.
    EpochRose,
    /// The Lease of a range that is held is gone.
    HeldLeaseGone,
    /// The Lease of a range whose swap is under way is gone.
    SwappingLeaseGone,
    /// A range that is held has another owner by its Lease.
    Deprived,
    /// A range was given by its Lease alone, to a member that does not answer.
    Relinquished,
    /// Writes were still under way when a freeze's time was over.
    FreezeBusy,
    /// The member that a frozen range was for is gone.
    ReceiverGone,
    /// The fence closed while a range was on its way.
    FenceClosedInHandoff,
    /// The Lease changed while a range was on its way.
    LeaseChangedInHandoff,
    /// A member refused a range.
    OfferRefused,
    /// A member did not answer an offer.
    OfferUnanswered,
    /// An answer to an older attempt came late.
    AnswerToAnOlderAttempt,
    /// A swap had no answer.
    SwapUnanswered,
    /// A swap came upon a version that another write had changed, and was sent again.
    SwapSentAgain,
    /// The Lease that a swap was for was deleted.
    SwapLeaseDeleted,
    /// A range whose swap may have landed was let go.
    UnansweredSwapLetGo,
    /// An offer was for another incarnation.
    OfferForAnotherLife,
    /// An offer came from one that is no member.
    OfferOfNoMember,
    /// An offer came from one that does not own the range by its Lease.
    OfferOfNoOwner,
    /// An offer was older than the one that was acknowledged.
    OfferSuperseded,
    /// What was kept for a range was given up.
    KeptInVain,
    /// Nothing was frozen for a member that has not answered yet.
    ReceiverAskedFirst,
    /// A replica left with ranges, since its time was over or nobody was there to take them.
    LeftWithRanges,
    /// A member said that it holds a range which was doubtful.
    DoubtfulIsHeld,
    /// A member replied to a question in its Lease.
    ReplyInLease,
    /// Ranges became doubtful while others were asked for.
    InquiryReplaced,
    /// A doubtful range waited for a holder whose Lease had vanished.
    VanishedWaitedFor,
    /// A doubtful range was claimed after everybody was asked.
    DoubtfulClaimed,
    /// This life was evicted.
    OwnLifeEvicted,
    /// An acquisition that had no answer had landed, and was evicted.
    AcquisitionEvictedUnseen,
    /// A restarted process took its predecessor's Lease before the lease duration was over.
    PredecessorTaken,
    /// A restarted process waited for its predecessor's Lease to expire.
    PredecessorExpired,
    /// A renewal had no answer.
    RenewalUnanswered,
    /// A fence that was closed has opened.
    FenceReopened,
    /// The process has stood still.
    StoodStill,
    /// A release had no answer.
    ReleaseUnanswered,
    /// A witness has evicted a replica whose process had ended.
    WitnessEvicts,
    /// A witness waited for what the process had sent.
    WitnessWaits,
    /// A witness saw a renewal that was under way when the process ended.
    WitnessSeesARenewal,
}

static COUNTS: [AtomicU64; Branch::ALL.len()] = [const { AtomicU64::new(0) }; Branch::ALL.len()];

pub(crate) fn count(branch: Branch) {
    COUNTS[branch as usize].fetch_add(1, Ordering::Relaxed);
}

/// How often each was taken in this process.
pub fn branches_taken() -> impl Iterator<Item = (Branch, u64)> {
    let counts = COUNTS.iter().map(|count| count.load(Ordering::Relaxed));
    Branch::ALL.iter().copied().zip(counts)
}
