//! Which change of a status is urgent: one that retracts what the status claims. A status that is no longer
//! true is corrected at once, whatever the kind; only progress is rate-limited ([`StatusWrite::Observed`],
//! [`StatusWrite::Progress`]).
//!
//! The rule reads field names, so it holds for every kind that uses the API's conventions: counts of pods
//! that are there or ready, counts that an eviction is granted by, and conditions. The counts of an object
//! that is being deleted are exempt: they fall as requested, pod by pod, and nobody relies on them. Its
//! conditions are not: each turns once.

use kubernetes_proto::Object;
use serde_json::{Map, Value};

use crate::StatusWrite;

/// Counts that are a claim: readers rely on at least this many.
const CLAIMS: &[&str] = &[
    "active",
    "availableReplicas",
    "currentHealthy",
    "currentNumberScheduled",
    "currentReplicas",
    "disruptionsAllowed",
    "fullyLabeledReplicas",
    "numberAvailable",
    "numberReady",
    "ready",
    "readyReplicas",
    "replicas",
    "updatedNumberScheduled",
    "updatedReplicas",
];

/// Counts of faults, or of what is required before something is granted: readers must not miss a rise.
const BURDENS: &[&str] = &["desiredHealthy", "failed", "numberMisscheduled"];

/// Conditions for which true is bad. For all others true is good.
const BAD_NEWS: &[&str] = &[
    "Failed",
    "FailureTarget",
    "NamespaceContentRemaining",
    "NamespaceDeletionContentFailure",
    "NamespaceDeletionDiscoveryFailure",
    "NamespaceDeletionGroupVersionParsingFailure",
    "NamespaceFinalizersRemaining",
    "ReplicaFailure",
    "ScalingLimited",
];

/// What a change of an object's status is reported as, given both statuses as JSON: [`StatusWrite::No`] where
/// it takes back a claim ([`worsens`]; of an object that is being deleted, a condition alone),
/// [`StatusWrite::Observed`] otherwise.
pub fn report<T: Object>(object: &T, before: &Value, after: &Value) -> StatusWrite {
    let is_urgent = if object.metadata().is_terminating() {
        conditions_worsen(before, after)
    } else {
        worsens(before, after)
    };
    if is_urgent {
        StatusWrite::No
    } else {
        StatusWrite::Observed
    }
}

/// Whether a status (the JSON of the field `status`) takes back what the one before claimed: a count of pods
/// that are there, ready, available, updated or allowed to be disrupted falls; a count of failures or
/// misplaced pods, or the number that must stay healthy, rises; a condition turns for the worse; or a
/// DaemonSet that was complete wants pods on more nodes.
pub fn worsens(before: &Value, after: &Value) -> bool {
    CLAIMS
        .iter()
        .any(|field| count(after, field) < count(before, field))
        || BURDENS
            .iter()
            .any(|field| count(after, field) > count(before, field))
        || is_complete_no_more(before, after)
        || conditions_worsen(before, after)
}

/// A count; 0 where the field is absent, as the API leaves out zeros.
fn count(status: &Value, field: &str) -> i64 {
    status.get(field).and_then(Value::as_i64).unwrap_or(0)
}

/// Whether every node that should run a daemon pod had an available one of the present template, and now
/// there are more such nodes. Of a new generation nothing has been claimed yet: readers compare the observed
/// generation first.
fn is_complete_no_more(before: &Value, after: &Value) -> bool {
    const WANTED: &str = "desiredNumberScheduled";
    let wanted = count(before, WANTED);
    let is_complete = ["numberReady", "numberAvailable", "updatedNumberScheduled"]
        .iter()
        .all(|field| count(before, field) >= wanted);
    let generation = |status| count(status, "observedGeneration");
    is_complete
        && generation(before) != 0
        && generation(before) == generation(after)
        && count(after, WANTED) > wanted
}

fn conditions_worsen(before: &Value, after: &Value) -> bool {
    let (before, after) = (conditions(before), conditions(after));
    let vanished = before
        .iter()
        .filter(|(r#type, _)| !after.contains_key(*r#type))
        .any(|(r#type, status)| !is_bad_news(r#type) && *status == "True");
    vanished
        || after.iter().any(|(r#type, status)| {
            let now = standing(r#type, status.as_str());
            // Where nothing was said, nothing bad was.
            let then = before
                .get(r#type)
                .map_or(GOOD, |status| standing(r#type, status.as_str()));
            now < then
        })
}

const GOOD: u8 = 2;

/// How good it is that a condition has a status.
fn standing(r#type: &str, status: Option<&str>) -> u8 {
    match status {
        Some("True") if is_bad_news(r#type) => 0,
        Some("False") if !is_bad_news(r#type) => 0,
        Some("True" | "False") => GOOD,
        _ => 1,
    }
}

fn is_bad_news(r#type: &str) -> bool {
    BAD_NEWS.contains(&r#type)
}

/// The conditions' statuses, by type.
fn conditions(status: &Value) -> Map<String, Value> {
    let conditions = status.get("conditions").and_then(Value::as_array);
    conditions
        .into_iter()
        .flatten()
        .filter_map(|condition| {
            let r#type = condition.get("type")?.as_str()?;
            Some((r#type.to_owned(), condition.get("status")?.clone()))
        })
        .collect()
}

#[cfg(test)]
mod tests;
