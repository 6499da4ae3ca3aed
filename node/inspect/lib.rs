//! What a replica says of the fleet's inside, as JSON: the secure port answers with it, replicas ask each
//! other for it, `kubectl manifold` shows it. docs/kubectl.md describes the fields.
//!
//! A field that is added changes no schema's version; one that goes or changes its meaning does. Readers
//! pass over fields that they do not know, and take what is missing as empty, so a program and a replica may
//! be one build apart.

mod blocker;
mod explain;
mod page;
mod shadow;
mod shards;
mod top;

pub use blocker::{Blocker, BlockerKind, blocker};
pub use explain::{
    Attempt, EXPLAIN_SCHEMA, Explanation, Hidden, KeyReport, LastAttempt, ObjectReport, Reference,
    UNHAPPY_SCHEMA, Unhappy, UnhappyKey,
};
pub use page::{
    Column, Columns, Figures, PAGE_SCHEMA, PageKeys, PageReplica, PageState, Recorded, Row,
};
pub use shadow::{
    AGREED, DIFFERS, SHADOW_SCHEMA, Shadow, ShadowCounts, ShadowDifference, UNDECIDED,
};
pub use shards::{
    ControllerState, Drain, Fence, FleetShards, Member, Moved, OrdersRead, OwnedRange, Pause,
    Placement, RangeOwner, ReplicaShards, SHARDS_SCHEMA, SetAside, Setting, Steering, Suspected,
    Totals,
};
pub use top::{BusyController, BusyKey, BusyRange, TOP_SCHEMA, Top};

use serde::{Deserialize, Serialize};

/// A replica whose answer is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Missing {
    /// Its name.
    pub replica: String,
    /// The reason, for people.
    pub why: String,
}
