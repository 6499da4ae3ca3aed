//! Faults that tests put into the protocol, to see that the model notices. None of this is in the product:
//! there
//! [`broken!`] is the constant `false`.

#[cfg(test)]
use std::cell::Cell;

/// Whether this mutation is at work in the running test.
#[cfg(test)]
macro_rules! broken {
    ($mutation:ident) => {
        $crate::mutation::at_work($crate::mutation::Mutation::$mutation)
    };
}

/// The product has no mutations.
#[cfg(not(test))]
macro_rules! broken {
    ($mutation:ident) => {
        false
    };
}

pub(crate) use broken;

#[cfg(test)]
macro_rules! mutations {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// One thing done wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) enum Mutation {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Mutation {
            /// All of them.
            pub(crate) const ALL: &'static [Self] = &[$(Self::$name,)+];
        }
    };
}

#[cfg(test)]
mutations! {
    /// The fence stays open for as long as others wait: no margin for clocks.
    DeadlineIsTheDuration,
    /// The fence counts from a renewal's answer, not from its start.
    FenceCountsFromTheAnswer,
    /// A fence that was closed opens with the next renewal, before the range Leases are read.
    FenceOpensWithoutReading,
    /// An evicted incarnation takes its Lease again as if nothing had been.
    EvictedLivesOn,
    /// A renewal that lost against an eviction is written again over it.
    RenewsOverAnEviction,
    /// A replica is evicted after two retry periods of silence.
    SilenceIsCutShort,
    /// Silence counts although one's own reads were bad.
    BadReadsCount,
    /// An eviction that lost against a renewal counts all the same.
    LostEvictionCounts,
    /// Orphans are taken before the view has passed their owner's end.
    TakesBeforeTheViewHasPassed,
    /// Ranges are taken before the API server refuses what their owner may still send.
    TakesBeforeBarring,
    /// Claims and swaps without an answer are sent again behind a closed fence.
    RetriesBehindAClosedFence,
    /// A claim does not raise the epoch.
    EpochStays,
    /// An epoch at the end of its type is taken at its word.
    BelievesAnyEpoch,
    /// An older attempt that comes late replaces a newer one.
    OlderAttemptReplaces,
    /// An answer to an older attempt counts for the newest.
    AnyAnswerCounts,
    /// The Lease is swapped before the state has been acknowledged.
    SwapsBeforeTheAnswer,
    /// A handoff that was refused is swapped all the same.
    RefusalIsTakenForConsent,
    /// A swap without an answer counts as failed: the range is served on.
    ResumesWithASwapUnderWay,
    /// A range is streamed while it is served here.
    StreamsWithoutFreezing,
    /// A replica that is offered a range owns it at once.
    OwnsByOffer,
    /// A peer's word is enough to own what it has offered.
    OwnsByWord,
    /// What hands edited is claimed without asking who holds it.
    ClaimsWithoutAsking,
    /// A replica that is asked says that it holds nothing.
    DeniesWhatItHolds,
    /// A member that is asked does not mention claims of its own that are under way.
    ForgetsItsClaims,
    /// What a replica replies to a question in a Lease was found out before it read the question.
    RepliesFromMemory,
    /// A reply to a question before counts for the newest.
    AnyReplyCounts,
    /// A range that is given without its state is taken for a handoff that was acknowledged before.
    RelinquishesOneEpochOn,
    /// Replicas whose Lease was deleted are not waited for before what they may hold is claimed.
    VanishedAreNotWaitedFor,
    /// An owner without a replica Lease counts as dead at once.
    UnprovenCountAsDead,
    /// Behind a closed fence it evicts, takes and hands over as ever.
    FencedDecides,
    /// A new life of the process keeps the ranges of the life before, though their Leases name that one.
    NewLifeKeepsRanges,
    /// What was kept for a range is dropped with its Lease's next version.
    ForgetsWhatItAcknowledged,
    /// A fleet that grew stays uneven.
    NeverHandsOver,
    /// A replica that is asked to drain drops what it has.
    DrainDropsAll,
    /// A replica leaves while a range whose state it has acknowledged is on its way to it.
    LeavesWithWhatItKept,
    /// A claim without an answer is never asked for again.
    ForgetsUnansweredClaims,
    /// An eviction without an answer is never tried again.
    ForgetsUnansweredEvictions,
    /// A list of replica Leases that failed is never asked for again.
    StopsReadingAfterAFailure,
    /// The hold stays open for as long as a candidate waits: no margin for what is in flight.
    HoldIsTheDuration,
    /// A hold is open before this incarnation has renewed it itself.
    HoldsOnSight,
    /// Another replica's renewal is dated by the answer that showed it.
    DatesByTheAnswer,
    /// What a watch brings is dated by its arrival.
    DatesByTheWatch,
    /// What a watch brings counts though something newer was seen.
    BelievesOldEvents,
    /// The fleet takes the Lease of a holder that renews.
    TakesFromTheLiving,
    /// A replica that leaves releases the Lease without counting the others.
    ReleasesUncounted,
    /// A replica that can't date what others have renewed waits for their next renewal.
    WaitsForAnother,
    /// A replica that sees nothing counts as a member.
    StaleCounts,
    /// Who is no member hands nothing over, a stale one neither.
    StaleKeepsAll,
    /// Ranges move as soon as a replica is stale, though the others may be in the next moment.
    StaleMovesAtOnce,
    /// Where nobody is current there is no member.
    NobodyIsCurrent,
    /// A stale replica takes what it is offered.
    StaleTakes,
    /// The fence's clock stops while the process does, and nothing refuses what it then sends.
    ClockStops,
    /// A process that was stopped is taken to have run on.
    GapsAreIgnored,
    /// The time in which the whole process was stopped counts against each of its threads.
    GapsCountAsHung,
    /// A thread that waits for a processor counts as hung.
    WaitingCountsAsHung,
    /// After a gap the fence opens with a renewal that was started before it.
    GapIsForgotten,
    /// A replica that gives up because of a hang does not file its death.
    HangsWithoutATrace,
    /// A replica that ends by itself releases its Lease while its last writes may still be executed.
    EndsWithLateWrites,
    /// A replica that ends by itself releases its Lease with an open fence.
    ReleasesWithAnOpenFence,
    /// Who is said to have ended is evicted at once.
    ProofCountsAtOnce,
    /// A restarted replica replaces the process before while its last writes may still be executed.
    PredecessorIsTakenAtOnce,
    /// A witness evicts a replica whose process runs.
    WitnessOfTheLiving,
    /// A witness evicts a replica while its last writes may still be executed.
    WitnessDoesNotWait,
    /// A replica that renews after it was said to have ended counts as dead all the same.
    RenewalsDisproveNothing,
}

#[cfg(test)]
impl Mutation {
    /// Those that tables and single ways through the model catch, of the watchdog, the renewal and the core:
    /// the model has no threads, and gives no range to a stale replica.
    pub(crate) const OF_TABLES: &'static [Self] = &[
        Self::AnyReplyCounts,
        Self::ForgetsItsClaims,
        Self::RelinquishesOneEpochOn,
        Self::StaleTakes,
        Self::GapsAreIgnored,
        Self::GapsCountAsHung,
        Self::WaitingCountsAsHung,
        Self::GapIsForgotten,
        Self::HangsWithoutATrace,
        Self::EndsWithLateWrites,
        Self::PredecessorIsTakenAtOnce,
        Self::WitnessDoesNotWait,
    ];

    /// Those of the hold of the manager's Lease, which the model of the ownership protocol has not.
    pub(crate) const INTERLOCK: &'static [Self] = &[
        Self::HoldIsTheDuration,
        Self::HoldsOnSight,
        Self::DatesByTheAnswer,
        Self::DatesByTheWatch,
        Self::BelievesOldEvents,
        Self::TakesFromTheLiving,
        Self::ReleasesUncounted,
        Self::WaitsForAnother,
    ];
}

#[cfg(test)]
thread_local! {
    static AT_WORK: Cell<Option<Mutation>> = const { Cell::new(None) };
}

/// Whether `mutation` is at work on this thread.
#[cfg(test)]
pub(crate) fn at_work(mutation: Mutation) -> bool {
    AT_WORK.get() == Some(mutation)
}

/// From now on, on this thread.
#[cfg(test)]
pub(crate) fn set(mutation: Option<Mutation>) {
    AT_WORK.set(mutation);
}
