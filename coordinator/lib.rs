//! Drives `coordinator-core` with Leases and gRPC: membership, placement, takeover, handoff, the fence.
//!
//! README.md beside this file has the protocol and its argument.

mod actor;
mod admission;
mod clock;
mod config;
mod fence;
mod handle;
mod host;
mod interlock;
mod lease;
mod listen;
mod peer;
mod pulse;
mod reach;
mod renewal;
mod server_fence;
mod sweep;
#[cfg(test)]
mod tests;
mod tls;
mod trace;
mod trust;
mod witness;

use std::sync::Arc;

pub use admission::PeerRefusal;
pub use clock::Clock;
pub use config::{Config, ConfigError, InterlockOptions};
pub use coordinator_core::{
    Branch, Care, EPOCH_END, Fatal, Gone, Happening, Hold, Holder, Holds, Loads, Member, Meter,
    Move, NotSent, Offer, Pinned, Planned, Quarantine, REPLICAS_MAX, RangeLease, RangeOwner,
    RangePin, ReplicaLease, Suspicion, View, ViewFence, WORKING_MAX, Work, branches_taken,
    first_life, load_of, range_of,
};
pub use fence::{End, EndCause, Fence, Fenced, InFlightMark, Sending};
pub use handle::{
    Assembled, Door, Drained, FatalError, Handle, Outside, StartError, assemble, start,
};
pub use host::{Epoch, Frozen, Gained, RangeHost, RangeId};
pub use interlock::HoldState;
pub use lease::{Found, LABEL_FLEET, LeaseError, decode};
pub use listen::listen;
pub use peer::{CALL_DEADLINE, CONTACT_DEADLINE, Call, Calls, HANDOFF_DEADLINE, Holdings};
pub use pulse::{BEATS_EVERY, Pulse};
pub use renewal::THREAD as RENEWAL_THREAD;
pub use server_fence::{
    PROBE_ACCOUNT, ServerFence, ServerFenceMode, impersonation, is_no_impersonation, is_refusal,
};
pub use tls::TlsError;
pub use trace::{PeerCall, PeerSpan, Tracer};
pub use witness::{Witnessed, witness};

/// Makes an API client inside the runtime that will use it.
pub type ClientFactory = Arc<dyn Fn() -> kube::Client + Send + Sync>;
