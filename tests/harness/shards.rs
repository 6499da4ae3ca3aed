//! What `/debug/shards` of a replica says.

use serde::Deserialize;

/// The whole answer.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Shards {
    /// The replica's name.
    pub replica: String,
    /// This start of it.
    pub incarnation: String,
    /// Whether it may write.
    pub fence: Fence,
    /// Everyone it knows.
    pub members: Vec<Member>,
    /// All ranges as it sees them.
    pub ranges: Vec<RangeOwner>,
    /// Those that it owns.
    pub owned: Vec<OwnedRange>,
    /// Sums over those.
    pub totals: Totals,
}

/// The fence of one replica.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Fence {
    /// Open: it may write.
    pub open: bool,
    /// For how long still, without another renewal.
    #[serde(default)]
    pub remaining_ms: i64,
}

/// One member of the fleet.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Member {
    /// Replica name.
    pub name: String,
    /// Start of it.
    #[serde(default)]
    pub incarnation: String,
    /// Where peers reach it.
    #[serde(default)]
    pub address: String,
    /// Counts for placement.
    #[serde(default)]
    pub ready: bool,
    /// Is handing everything off.
    #[serde(default)]
    pub draining: bool,
    /// Version of the program.
    #[serde(default)]
    pub version: String,
}

/// Who owns a range.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct RangeOwner {
    /// Number of the range.
    pub range: u32,
    /// Replica name; none before anybody has taken it.
    #[serde(default)]
    pub owner: Option<String>,
    /// Grows with every change of owner.
    #[serde(default)]
    pub epoch: u64,
}

/// A range in the hands of the replica that was asked.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct OwnedRange {
    /// Number of the range.
    pub range: u32,
    /// Its epoch.
    pub epoch: u64,
    /// `active` or `frozen`.
    pub state: String,
    /// Keys in it.
    #[serde(default)]
    pub keys: u64,
    /// Keys that wait.
    #[serde(default)]
    pub queued: u64,
}

/// Sums over the owned ranges.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub struct Totals {
    /// Keys.
    #[serde(default)]
    pub keys: u64,
    /// Keys that wait.
    #[serde(default)]
    pub queued: u64,
    /// Reconciles since the start.
    #[serde(default)]
    pub reconciles: u64,
    /// Writes to the API server since the start.
    #[serde(default)]
    pub writes: u64,
}

impl Shards {
    /// The owned ranges' numbers, sorted.
    pub fn owned_ranges(&self) -> Vec<u32> {
        let mut ranges: Vec<u32> = self.owned.iter().map(|owned| owned.range).collect();
        ranges.sort_unstable();
        ranges
    }
}
