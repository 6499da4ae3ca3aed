//! Ranges, queues and controllers, of one replica and of all.

use serde::{Deserialize, Serialize};

use crate::Missing;

/// Of [`FleetShards`].
pub const SHARDS_SCHEMA: &str = "manifold.dev/shards/v1";

/// What all replicas say of themselves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FleetShards {
    /// [`SHARDS_SCHEMA`].
    pub schema: String,
    /// The replica that was asked; members and ranges are as it sees them.
    pub replica: String,
    /// Replicas with a Lease, by name.
    pub members: Vec<Member>,
    /// Ranges with a Lease, in order.
    pub ranges: Vec<RangeOwner>,
    /// How many ranges the fleet has.
    pub ranges_total: u32,
    /// The answers, by name.
    pub replicas: Vec<ReplicaShards>,
    /// Replicas without an answer.
    pub missing: Vec<Missing>,
}

/// A replica with a Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// Which start of it.
    pub incarnation: String,
    /// Where its peers reach it.
    pub address: String,
    /// Whether its caches were complete once.
    pub ready: bool,
    /// Whether it hands everything over.
    pub draining: bool,
    /// Its build.
    pub version: String,
    /// Names of the members that do not answer it, with commas between them.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub unreachable: String,
}

/// A range's owner by its Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RangeOwner {
    /// Its number.
    pub range: u16,
    /// The owner's name.
    pub owner: Option<String>,
    /// Changes of owner so far.
    pub epoch: u64,
}

/// What one replica says of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReplicaShards {
    /// Its name.
    pub replica: String,
    /// Whether it may write.
    pub fence: Fence,
    /// Its ranges.
    pub owned: Vec<OwnedRange>,
    /// Sums over those.
    pub totals: Totals,
    /// Its controllers.
    pub controllers: Vec<ControllerState>,
    /// Objects that it can't use.
    pub set_aside: Vec<SetAside>,
    /// Keys during which replicas have died.
    pub suspected: Vec<Suspected>,
}

/// Whether a replica may write.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fence {
    /// Whether it may.
    pub open: bool,
}

/// A range that a replica owns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OwnedRange {
    /// Its number.
    pub range: u16,
    /// The epoch under which it is owned.
    pub epoch: u64,
    /// `active` or `frozen`.
    pub state: String,
    /// Keys known.
    pub keys: usize,
    /// Keys that wait.
    pub queued: usize,
}

/// Sums over a replica's ranges; what was done is counted from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Keys known.
    pub keys: usize,
    /// Keys that wait.
    pub queued: usize,
    /// Keys reconciled.
    pub reconciles: u64,
    /// Writes that succeeded.
    pub writes: u64,
}

/// A controller in one replica.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ControllerState {
    /// Its name.
    pub name: String,
    /// Whether the caches that it reads are complete.
    pub ready: bool,
    /// Keys in flight.
    pub working: usize,
    /// Keys reconciled since the start.
    pub reconciles: u64,
}

/// An object that can't be used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SetAside {
    /// Its resource, as in `pods`.
    pub resource: String,
    /// Namespace and name.
    pub object: String,
    /// The controller, where it concerns one alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<String>,
    /// Why.
    pub why: String,
}

/// A key during which replicas have died.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Suspected {
    /// Controller and key.
    pub key: String,
    /// How many replicas.
    pub deaths: u32,
}
