//! The status that a ReplicaSet reports.

use std::sync::Arc;

use controllers_kit::{
    Plan, SignedDuration, Timestamp,
    conditions::{self, Policy},
    pods,
    selectors::Selector,
};
use kubernetes_proto::{
    Object,
    apps::{ReplicaSetCondition, ReplicaSetStatus},
    core::Pod,
};

use super::{Attempt, context::Replicator};

const REPLICA_FAILURE: &str = "ReplicaFailure";

/// Plans the status write, if one is due, and requeues for pods that are not available yet.
pub(super) fn report<O: Replicator>(
    plan: &mut Plan,
    set: &O,
    active: &[Arc<Pod>],
    terminating: Option<usize>,
    attempt: &Attempt,
    now: Timestamp,
) {
    let before = set.status();
    let min_ready_seconds = set.min_ready_seconds();
    // A terminating set is no longer managed: nothing can be missing.
    let is_off = !set.is_terminating() && i64::from(set.replicas()) != active.len() as i64;
    let mut status = count(set, active, terminating, min_ready_seconds, now);
    status.conditions = with_failure(&before.conditions, attempt, is_off, now);
    requeue_until_available(plan, &status, active, min_ready_seconds, now);
    // Whether pods are still being created, becoming available or being deleted.
    let is_underway = [status.replicas, status.available_replicas]
        .iter()
        .any(|count| *count != set.replicas());
    // Skips the spec: it is unchanged and expensive to compare.
    let (before, after) = (set.reporting(before), set.reporting(status));
    if before != after
        && let Some(action) = plan.update_status(&before, &after)
        && is_underway
    {
        action.progresses();
    }
}

fn count<O: Replicator>(
    set: &O,
    active: &[Arc<Pod>],
    terminating: Option<usize>,
    min_ready_seconds: i32,
    now: Timestamp,
) -> ReplicaSetStatus {
    let template_labels = set
        .template()
        .and_then(|template| template.metadata.as_ref())
        .map_or(&[][..], |meta| &meta.labels);
    let fully_labeled = Selector::of_labels(template_labels);
    let mut status = ReplicaSetStatus {
        replicas: number(active.len()),
        terminating_replicas: terminating.map(number),
        observed_generation: set.metadata().generation,
        ..Default::default()
    };
    for pod in active {
        status.fully_labeled_replicas += i32::from(fully_labeled.matches(&pod.metadata().labels));
        status.ready_replicas += i32::from(pods::is_ready(pod));
        status.available_replicas += i32::from(pods::is_available(pod, min_ready_seconds, now));
    }
    status
}

fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// The conditions with ReplicaFailure: reported once and kept until an attempt succeeds or nothing is left
/// to be done. A new owner, which has made no attempt yet, keeps the condition as it is.
fn with_failure(
    before: &[ReplicaSetCondition],
    attempt: &Attempt,
    is_off: bool,
    now: Timestamp,
) -> Vec<ReplicaSetCondition> {
    let is_reported = conditions::find(before, REPLICA_FAILURE).is_some();
    let mut conditions = before.to_vec();
    match attempt {
        Attempt::Failed { .. } if is_off && is_reported => {}
        Attempt::Failed { reason, message } if is_off => {
            let failure = ReplicaSetCondition {
                r#type: REPLICA_FAILURE.to_owned(),
                status: "True".to_owned(),
                last_transition_time: Some(now.into()),
                reason: reason.clone(),
                message: message.clone(),
            };
            conditions::set(&mut conditions, failure, Policy::Replace);
        }
        Attempt::Unknown if is_off => {}
        Attempt::Failed { .. } | Attempt::Unknown | Attempt::Succeeded => {
            conditions::remove(&mut conditions, REPLICA_FAILURE);
        }
    }
    conditions
}

/// Pods that are ready become available by time alone: nothing else would wake the key.
fn requeue_until_available(
    plan: &mut Plan,
    status: &ReplicaSetStatus,
    active: &[Arc<Pod>],
    min_ready_seconds: i32,
    now: Timestamp,
) {
    if min_ready_seconds <= 0 || status.ready_replicas == status.available_replicas {
        return;
    }
    let latest = now + SignedDuration::from_secs(min_ready_seconds.into());
    let next = pods::next_available(active, min_ready_seconds, now);
    plan.requeue_at(next.unwrap_or(latest));
}
