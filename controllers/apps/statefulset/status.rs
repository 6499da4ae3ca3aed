//! The status that a StatefulSet reports.

use std::sync::Arc;

use controllers_kit::{Plan, SignedDuration, StatusWrite, Timestamp, pods};
use kubernetes_proto::{
    Object,
    apps::{StatefulSet, StatefulSetStatus},
    core::Pod,
};

use super::{
    context::{ROLLING_UPDATE, replicas, strategy},
    pod::{self, spec},
};

/// Counts some pods into a status.
pub(super) fn count<'a>(
    status: &mut StatefulSetStatus,
    pods: impl IntoIterator<Item = &'a Arc<Pod>>,
    min_ready_seconds: i32,
    now: Timestamp,
) {
    status.replicas = 0;
    status.ready_replicas = 0;
    status.available_replicas = 0;
    status.current_replicas = 0;
    status.updated_replicas = 0;
    for pod in pods {
        let created = pod::is_created(pod);
        status.replicas += i32::from(created);
        if pod::is_running_and_ready(pod) {
            status.ready_replicas += 1;
            status.available_replicas += i32::from(pods::is_available(pod, min_ready_seconds, now));
        }
        if created && !pod.is_terminating() {
            let revision = pod::revision(pod);
            status.current_replicas += i32::from(revision == status.current_revision);
            status.updated_replicas += i32::from(revision == status.update_revision);
        }
    }
}

/// A rollout is complete when all pods are of the new revision and ready: the new revision is then the
/// current one.
pub(super) fn complete(set: &StatefulSet, status: &mut StatefulSetStatus) {
    let wanted = replicas(set);
    if strategy(set) == ROLLING_UPDATE
        && status.updated_replicas == wanted
        && status.ready_replicas == wanted
        && status.replicas == wanted
    {
        status.current_replicas = status.updated_replicas;
        status.current_revision.clone_from(&status.update_revision);
    }
}

/// Plans the status write, if one is due. The revisions in the status decide the revision of the next pod:
/// a write that changes them is never delayed while deletions of the same plan are carried out.
pub(super) fn report(plan: &mut Plan, set: &StatefulSet, status: StatefulSetStatus) {
    let before = set.status.clone().unwrap_or_default();
    let is_due = status.observed_generation > before.observed_generation
        || StatefulSetStatus {
            observed_generation: before.observed_generation,
            collision_count: before.collision_count,
            ..status.clone()
        } != before;
    if is_due {
        // Skips the spec: it is unchanged and expensive to compare.
        let part = |status| StatefulSet {
            metadata: set.metadata.clone(),
            spec: None,
            status: Some(status),
        };
        let decides = before.current_replicas != status.current_replicas
            || before.current_revision != status.current_revision
            || before.update_revision != status.update_revision;
        if let Some(action) = plan.update_status(&part(before), &part(status))
            && decides
        {
            action.reports(StatusWrite::No);
        }
    }
}

/// Pods that are ready become available by time alone: nothing else would wake the key.
pub(super) fn requeue_until_available(
    plan: &mut Plan,
    set: &StatefulSet,
    status: &StatefulSetStatus,
    pods: &[Arc<Pod>],
    now: Timestamp,
) {
    let min_ready_seconds = spec(set).min_ready_seconds;
    if min_ready_seconds <= 0 || status.ready_replicas == status.available_replicas {
        return;
    }
    let latest = now + SignedDuration::from_secs(min_ready_seconds.into());
    let next = pods::next_available(pods, min_ready_seconds, now);
    plan.requeue_at(next.unwrap_or(latest));
}
