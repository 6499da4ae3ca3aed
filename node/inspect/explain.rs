//! Why keys do not move.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Blocker, Missing};

/// Of [`Explanation`].
pub const EXPLAIN_SCHEMA: &str = "manifold.dev/explain/v1";
/// Of [`Unhappy`].
pub const UNHAPPY_SCHEMA: &str = "manifold.dev/unhappy/v1";

/// An object, and the keys of all controllers that it concerns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Explanation {
    /// [`EXPLAIN_SCHEMA`].
    pub schema: String,
    /// The replica that was asked.
    pub replica: String,
    /// The object, where one was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<ObjectReport>,
    /// Its controllers' keys, those in trouble first.
    pub keys: Vec<KeyReport>,
    /// Keys left out, since the caller may not get their objects.
    pub hidden: Vec<Hidden>,
    /// Keys left out, since there are too many.
    pub omitted: usize,
    /// Replicas without an answer.
    pub missing: Vec<Missing>,
}

/// An object as the cache has it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ObjectReport {
    /// Its resource, as in `deployments.apps`.
    pub resource: String,
    /// Namespace and name.
    pub name: String,
    /// Whether the cache has it.
    pub exists: bool,
    /// Objects that own it, the nearest first.
    pub owners: Vec<Reference>,
    /// Objects that it controls; a few where there are many.
    pub dependents: Vec<Reference>,
    /// How many those are in all.
    pub dependents_total: usize,
    /// What in the object itself or its owners holds it up: paused, suspended, being deleted.
    pub holds: Vec<Blocker>,
}

/// An object.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct Reference {
    /// Its resource, as in `deployments.apps`.
    pub resource: String,
    /// Namespace and name.
    pub name: String,
}

/// Keys that the caller may not see.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Hidden {
    /// Their controller.
    pub controller: String,
    /// The right that is missing, as in `get replicasets.apps in namespace shop`.
    pub needs: String,
}

/// One controller's key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KeyReport {
    /// The controller.
    pub controller: String,
    /// Namespace and name.
    pub key: String,
    /// The resource whose objects the controller's keys are.
    pub resource: String,
    /// Through which object it concerns the one that was asked for; empty for that one itself.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub via: String,
    /// Its range.
    pub range: u16,
    /// The replica that owns it.
    pub owner: Option<String>,
    /// The epoch under which it is owned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// `working`, `queued`, `delayed`, `at rest`, …
    pub state: String,
    /// Milliseconds in the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u64>,
    /// Milliseconds until the next attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_in_ms: Option<u64>,
    /// Failures in a row.
    pub failures: u32,
    /// What blocks it, by its last attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocker: Option<Blocker>,
    /// The last attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<LastAttempt>,
    /// The last attempts since it began to fail, the newest last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<Attempt>,
    /// All else that its owner knows of it.
    #[serde(flatten)]
    pub inside: Map<String, Value>,
}

/// The last attempt of a key, failed or not.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LastAttempt {
    /// When it began.
    pub at: String,
    /// How long it had waited in its queue, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u64>,
    /// Milliseconds.
    pub took_ms: f64,
    /// `done`, or why not.
    pub result: String,
    /// What failed.
    pub error: Option<String>,
    /// HTTP status of the API server's refusal, or the one that corresponds to the failure.
    pub code: Option<u16>,
    /// For what change it waits.
    pub waits_for: Option<String>,
    /// The plan, an action a line.
    pub plan: Vec<String>,
    /// Objects that were read.
    pub objects: usize,
    /// Its trace, where it was exported.
    pub trace: Option<String>,
}

/// One attempt of a key that fails.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Attempt {
    /// When it began.
    pub at: String,
    /// How long it had waited in its queue, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u64>,
    /// Milliseconds.
    pub took_ms: f64,
    /// `error`, `conflict`, `success`, …, as the metrics have it.
    pub result: String,
    /// What failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// HTTP status of the API server's refusal, or the one that corresponds to the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<u16>,
    /// What blocks it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocker: Option<Blocker>,
    /// What woke it.
    pub woken_by: String,
    /// Milliseconds until the next attempt, as of its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_in_ms: Option<u64>,
}

/// Keys that failed lately.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Unhappy {
    /// [`UNHAPPY_SCHEMA`].
    pub schema: String,
    /// The keys, those that still fail first, then by failures in a row.
    pub keys: Vec<UnhappyKey>,
    /// Keys left out, since the caller may not list their objects.
    pub hidden: usize,
    /// Keys whose attempts were forgotten for want of room, since the replicas' start.
    pub forgotten: u64,
    /// Keys left out, since there are too many.
    pub omitted: usize,
    /// Replicas without an answer.
    pub missing: Vec<Missing>,
}

/// A key that failed lately.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct UnhappyKey {
    /// The controller.
    pub controller: String,
    /// Namespace and name.
    pub key: String,
    /// The resource whose objects the controller's keys are.
    pub resource: String,
    /// The replica that owns it.
    pub owner: String,
    /// Failed attempts in a row; 0 where the last one succeeded.
    pub failures: u32,
    /// The pause for the end of which it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pause: Option<Blocker>,
    /// Its last attempts, the newest last.
    pub attempts: Vec<Attempt>,
}
