//! The status that a DaemonSet reports.

use controllers_kit::{Plan, SignedDuration, pods};
use kubernetes_proto::{
    Object,
    apps::{DaemonSet, DaemonSetStatus},
};

use super::context::{SyncContext, is_updated, order, spec};

/// Plans the status write, if one is due, and requeues for pods that are not available yet.
pub(super) fn report(plan: &mut Plan, context: &SyncContext<'_>, collisions: Option<i32>) {
    let (set, now) = (context.set, context.seen.now);
    let min_ready_seconds = spec(set).min_ready_seconds;
    let before = set.status.unwrap_or_default();
    let mut status = DaemonSetStatus {
        observed_generation: set.metadata().generation.max(before.observed_generation),
        collision_count: collisions.or(before.collision_count),
        ..Default::default()
    };
    for node in &context.nodes {
        let runs = context.placement.judge(node).runs;
        let pods = context.pods.get(&*Object::metadata(node.as_ref()).name);
        let Some(pods) = pods else {
            status.desired_number_scheduled += i32::from(runs);
            continue;
        };
        if !runs {
            status.number_misscheduled += 1;
            continue;
        }
        status.desired_number_scheduled += 1;
        status.current_number_scheduled += 1;
        let Some(pod) = pods.iter().min_by(|one, other| order(one, other)) else {
            continue;
        };
        status.number_ready += i32::from(pods::is_ready(pod));
        status.number_available += i32::from(pods::is_available(pod, min_ready_seconds, now));
        status.updated_number_scheduled += i32::from(is_updated(context, pod));
    }
    let next = pods::next_available(context.pods.values().flatten(), min_ready_seconds, now);
    status.number_unavailable = status.desired_number_scheduled - status.number_available;
    if min_ready_seconds > 0 && (next.is_some() || status.number_ready != status.number_available) {
        let at = next.unwrap_or(now + SignedDuration::from_secs(min_ready_seconds.into()));
        plan.requeue_at(at);
    }
    if status != before {
        // Skips the spec: it is unchanged and expensive to compare.
        let part = |status| DaemonSet {
            metadata: set.metadata.clone(),
            spec: None,
            status: Some(status),
        };
        plan.update_status(&part(before), &part(status));
    }
}
