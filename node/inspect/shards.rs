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
    /// Orders of operators that hold, as the replica that was asked knows them.
    pub steering: Steering,
    /// Whether it is a shadow: it plans and compares, and writes nothing.
    pub shadow: bool,
    /// The plan of placement, as the replica that was asked knows it.
    pub placement: Placement,
}

/// Orders of operators that hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Steering {
    /// The ConfigMap that has them, as namespace and name.
    pub object: String,
    /// Paused controllers and keys.
    pub pauses: Vec<Pause>,
    /// Drained replicas.
    pub drains: Vec<Drain>,
    /// What is set of controllers.
    pub settings: Vec<Setting>,
    /// Ranges that are to be another replica's.
    pub moves: Vec<Moved>,
    /// Fields of the object that have no effect, and why.
    pub faults: Vec<String>,
}

/// A paused controller, or key of one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pause {
    /// The controller.
    pub controller: String,
    /// Namespace and name of the key; empty where all are paused.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// When it was paused.
    pub since: String,
    /// When the pause ends by itself.
    pub until: String,
    /// The reason, for people.
    pub reason: String,
    /// Who has paused it, as the object says.
    pub by: String,
}

/// A drained replica.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Drain {
    /// Its name.
    pub replica: String,
    /// The start of it that is drained.
    pub incarnation: String,
    /// When it was drained.
    pub since: String,
    /// When that ends by itself.
    pub until: String,
    /// The reason, for people.
    pub reason: String,
    /// Who has drained it, as the object says.
    pub by: String,
}

/// Workers or rate of writes of a controller, in each replica.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Setting {
    /// The controller.
    pub controller: String,
    /// `workers` or `qps`.
    pub setting: String,
    /// Its value.
    pub value: f64,
    /// When it was set.
    pub since: String,
    /// When that ends by itself.
    pub until: String,
    /// The reason, for people.
    pub reason: String,
    /// Who has set it, as the object says.
    pub by: String,
}

/// A range that an operator has moved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Moved {
    /// Its number.
    pub range: u16,
    /// The replica that is to own it.
    pub to: String,
    /// The replica that owns it otherwise; empty where that is not known.
    pub home: String,
    /// Whether the order has no effect: there is no such replica, or not all replicas follow such orders.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub without_effect: bool,
    /// When it was moved.
    pub since: String,
    /// When that ends by itself.
    pub until: String,
    /// The reason, for people.
    pub reason: String,
    /// Who has moved it, as the object says.
    pub by: String,
}

/// The fleet's plan of placement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Placement {
    /// Whether all replicas follow plans, so that one counts.
    pub load_aware: bool,
    /// The number of the newest plan; 0 where there never was one.
    pub plan: u64,
    /// Whether it is followed; otherwise ranges are placed by equal numbers.
    pub in_force: bool,
    /// The replica that plans.
    pub planner: String,
}

/// What a replica has read of the fleet's orders.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OrdersRead {
    /// The version of the ConfigMap; empty where there is none.
    pub version: String,
    /// Orders that hold by this replica's clock.
    pub in_force: usize,
    /// Why it can't be read, where it can't.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub unread: String,
}

/// A replica with a Lease.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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
    /// The work of its ranges: seconds of reconciling, and of waiting for it, in a second.
    pub load: f64,
}

/// A range's owner by its Lease.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RangeOwner {
    /// Its number.
    pub range: u16,
    /// The owner's name.
    pub owner: Option<String>,
    /// Changes of owner so far.
    pub epoch: u64,
    /// Its work, as its owner says: seconds of reconciling, and of waiting for it, in a second.
    pub load: f64,
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
    /// What it has read of the fleet's orders; none where its build knows nothing of them.
    pub orders: Option<OrdersRead>,
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
    /// Keys that wait for the end of a pause.
    pub paused: usize,
    /// Keys that may be in flight at once, by flag or by order.
    pub workers: usize,
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
    /// The reason, for people.
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
