//! The status that a DaemonSet reports.

use controllers_kit::{Plan, SignedDuration, pods};
use kubernetes_proto::{
    Object,
    apps::{DaemonSet, DaemonSetStatus},
};

use super::context::{Look, is_updated, order, spec};

/// Plans the status write, if one is due, and the next look at pods that are not available yet.
pub(super) fn report(plan: &mut Plan, look: &Look<'_>, collisions: Option<i32>) {
    let (set, now) = (look.set, look.seen.now);
    let min_ready_seconds = spec(set).min_ready_seconds;
    let before = set.status.unwrap_or_default();
    let mut status = DaemonSetStatus {
        observed_generation: set.metadata().generation.max(before.observed_generation),
        collision_count: collisions.or(before.collision_count),
        ..Default::default()
    };
    for node in &look.nodes {
        let runs = look.placement.judge(node).runs;
        let pods = look.pods.get(&*Object::metadata(node.as_ref()).name);
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
        status.updated_number_scheduled += i32::from(is_updated(look, pod));
    }
    let next = pods::next_available(look.pods.values().flatten(), min_ready_seconds, now);
    status.number_unavailable = status.desired_number_scheduled - status.number_available;
    if min_ready_seconds > 0 && (next.is_some() || status.number_ready != status.number_available) {
        let at = next.unwrap_or(now + SignedDuration::from_secs(min_ready_seconds.into()));
        plan.look_again_at(at);
    }
    if status != before {
        // The spec stays out: it does not change, and comparing a template is dear.
        let part = |status| DaemonSet {
            metadata: set.metadata.clone(),
            spec: None,
            status: Some(status),
        };
        plan.update_status(&part(before), &part(status));
    }
}
