//! Drives `coordinator-core` with Leases and gRPC: membership, placement, takeover, handoff, the fence.
//!
//! README.md beside this file has the protocol and its argument.

mod actor;
mod admission;
mod config;
mod fence;
mod handle;
mod host;
mod lease;
mod listen;
mod peer;
mod pulse;
mod renewal;
mod server_fence;
mod sweep;
#[cfg(test)]
mod tests;
mod tls;

use std::sync::Arc;

pub use config::{Config, ConfigError, TraceParent};
pub use coordinator_core::{
    Care, EPOCH_END, Fatal, Happening, Holder, Member, Move, NotSent, Offer, Quarantine,
    REPLICAS_MAX, RangeOwner, Suspicion, View, ViewFence, WORKING_MAX, Work, range_of,
};
pub use fence::{Fence, Fenced};
pub use handle::{
    Assembled, Door, Drained, FatalError, Handle, Outside, StartError, assemble, start,
};
pub use host::{Epoch, Frozen, Gained, RangeHost, RangeId};
pub use lease::LeaseError;
pub use listen::listen;
pub use peer::{CALL_DEADLINE, CONTACT_DEADLINE, Call, Calls, HANDOFF_DEADLINE, Holdings};
pub use pulse::{BEATS_EVERY, Pulse};
pub use server_fence::{
    PROBE_ACCOUNT, ServerFence, ServerFenceMode, impersonation, is_no_impersonation, is_refusal,
};
pub use tls::TlsError;

/// Makes an API client inside the runtime that will use it.
pub type ClientFactory = Arc<dyn Fn() -> kube::Client + Send + Sync>;
