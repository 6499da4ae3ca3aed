//! How replicas speak with each other: see peer.proto.
#![allow(missing_docs, clippy::all)]

tonic::include_proto!("manifold.peer.v1");

/// All that is handed over with one range.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RangeState {
    /// One entry for each controller that knows a key of the range.
    pub controllers: Vec<ControllerState>,
}
