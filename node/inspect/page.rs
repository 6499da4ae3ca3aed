//! What the live page is made from: what a replica has recorded of its ranges, and the state of replicas.

use serde::{Deserialize, Serialize};

use crate::{Missing, Top, Unhappy};

/// Of [`PageState`].
pub const PAGE_SCHEMA: &str = "manifold.dev/page/v1";

/// What one replica says of itself for the page, to the replica that serves it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Recorded {
    /// Its name.
    pub replica: String,
    /// Whether it may write.
    pub open: bool,
    /// Ranges that it owns.
    pub ranges: usize,
    /// Keys known.
    pub keys: usize,
    /// Keys that wait.
    pub queued: usize,
    /// Seconds of reconciling a second, in the last whole column.
    pub load: f64,
    /// The longest wait in a queue in the last whole column, in milliseconds.
    pub waited_ms: u64,
    /// How long ago its watch of Leases came further, in milliseconds; none where it has no such watch.
    pub lag_ms: Option<u64>,
    /// The columns of its own ranges.
    pub rows: Vec<Row>,
}

/// Columns of one range, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Row {
    /// The range.
    pub range: u16,
    /// The number of the first column.
    pub first: u64,
    /// Work in each, as base64 of one byte a column.
    pub work: String,
    /// Wait in each, in the same form.
    pub wait: String,
}

/// A part of the heat map: of each column three planes of one byte a range. Planes that equal those of the
/// column before in the same part are left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Columns {
    /// Seconds of a column.
    pub seconds: u64,
    /// How many ranges the fleet has.
    pub ranges: usize,
    /// How many columns are kept.
    pub kept: usize,
    /// Names of owners: number 1 in the plane of owners is the first, 0 is nobody.
    pub names: Vec<String>,
    /// The columns, the oldest first.
    pub columns: Vec<Column>,
}

/// One column of the heat map.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Column {
    /// Its number: seconds since 1970, divided by the seconds of a column.
    pub at: u64,
    /// Base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work: Option<String>,
    /// Base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<String>,
}

/// The fleet at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PageState {
    /// [`PAGE_SCHEMA`].
    pub schema: String,
    /// The replica that serves the page.
    pub replica: String,
    /// Its clock.
    pub at: String,
    /// How many ranges the fleet has.
    pub ranges: usize,
    /// Ranges without an owner.
    pub unowned: usize,
    /// Replicas with a Lease, and those that have lost theirs within the time that the heat map shows.
    pub replicas: Vec<PageReplica>,
}

/// One replica in the page.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PageReplica {
    /// Its name.
    pub name: String,
    /// `active`, `starting`, `draining`, `stale` or `gone`.
    pub state: String,
    /// Why its figures are missing, where they are; when it was last seen, where it is gone.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// Ranges that it owns by their Leases.
    pub ranges: usize,
    /// What it says of itself; none where it does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub figures: Option<Figures>,
}

/// What a replica says of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Figures {
    /// Whether it may write.
    pub open: bool,
    /// Keys known.
    pub keys: usize,
    /// Keys that wait.
    pub queued: usize,
    /// Seconds of reconciling a second.
    pub load: f64,
    /// The longest wait in a queue, in milliseconds.
    pub waited_ms: u64,
    /// How long ago its watch of Leases came further, in milliseconds.
    pub lag_ms: Option<u64>,
}

impl From<&Recorded> for Figures {
    fn from(said: &Recorded) -> Self {
        Self {
            open: said.open,
            keys: said.keys,
            queued: said.queued,
            load: said.load,
            waited_ms: said.waited_ms,
            lag_ms: said.lag_ms,
        }
    }
}

/// What is busy and what fails, as far as the caller may see it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PageKeys {
    /// What is busy.
    pub top: Top,
    /// What fails.
    pub unhappy: Unhappy,
    /// Replicas without an answer.
    pub missing: Vec<Missing>,
    /// Why nothing is shown, where the caller's rights could not be found out.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub refused: String,
}
