//! Drives `coordinator-core` with Leases and gRPC: membership, placement, takeover, handoff, the fence.

mod host;

pub use host::{Epoch, Frozen, Gained, RangeHost, RangeId};
