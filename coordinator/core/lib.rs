//! Who may act on what: ring, membership, epochs, handoff and fence, as state machines without clock,
//! randomness or I/O.
//!
//! Three machines make one replica. [`Renewal`] keeps the replica's own Lease and with it the fence;
//! [`Interlock`] keeps the fleet's hold of the manager's leader-election Lease; both stand alone, so that a
//! shell can run them on a thread which nothing starves. [`Core`] watches everybody's Leases and decides:
//! evict, take, hand over, let go. All take inputs with an explicit monotonic time and give out effects; all
//! can be cloned, compared and hashed, so that a model checker runs the very code that ships.

mod deaths;
mod ending;
mod event;
mod interlock;
#[cfg(test)]
mod interlock_tests;
mod lease;
mod load;
mod machine;
#[cfg(test)]
mod model;
mod mutation;
mod placement;
mod plan;
mod planner;
mod questions;
mod reachable;
mod renewal;
mod ring;
#[cfg(test)]
mod simulation;
mod slow_start;
#[cfg(test)]
mod tests;
mod watchdog;
mod witness;

pub use crate::{
    deaths::{
        Care, Death, Deaths, Quarantine, Suspicion, WORK_BYTES_MAX, WORKING_MAX, Work, first_life,
        parse_dead_owners,
    },
    ending::{Ending, EndingStep},
    event::{Effect, Fatal, Happening, Input, NotSent, Offer, Refused},
    interlock::{
        Hold, HoldWrite, Holds, Interlock, InterlockConfig, InterlockEffect, InterlockInput, Record,
    },
    lease::{
        EPOCH_END, Epoch, Follows, Holder, NoAnswer, NotAHolder, NotAPin, Pin, RangeId, RangeLease,
        ReplicaLease, Status, Time, Version, Written,
    },
    load::{Level, Loads, Meter, load_of},
    machine::{
        Config, Core, Member, Move, Pinned, Planned, REPLICAS_MAX, RangeOwner, RangePin, View,
        ViewFence,
    },
    placement::{Weights, place, place_within},
    plan::{NotAPlan, Plan, PlanLease, place_planned},
    planner::{MOVES_APART, RESTS_FOR, UNEVEN_FOR},
    questions::{Question, Replies},
    reachable::{Branch, branches_taken},
    renewal::{
        Gone, OwnLease, OwnPhase, Regained, Renewal, RenewalConfig, RenewalEffect, RenewalInput,
    },
    ring::{MAX_RANGES, Ring, VIRTUAL_NODES, range_of},
    slow_start::Crashes,
    watchdog::{Findings, GAP_MAX, Hung, Sign, Watchdog},
    witness::{Witness, WitnessStep},
};
