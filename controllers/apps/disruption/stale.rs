//! A pod that was to be disrupted and is still there two minutes later: its condition DisruptionTarget is
//! taken back, so that nobody counts a later failure as a disruption.

use controllers_kit::{
    Change, Key, Object, PatchKind, Plan, Reader, SignedDuration, Snapshot, StatusWrite, Timestamp,
    conditions, patch, pods,
};
use kubernetes_proto::core::{Pod, PodCondition};

const TARGET: &str = "DisruptionTarget";
/// The kubelet's own conditions last as long as the termination takes.
const BY_KUBELET: &str = "TerminationByKubelet";
const TIMEOUT: SignedDuration = SignedDuration::from_mins(2);

/// When the condition becomes stale; `None` without such a condition.
fn stale_at(pod: &Pod) -> Option<Timestamp> {
    if Object::is_terminating(pod) || pods::has_finished(pod) {
        return None;
    }
    let condition = conditions::find(&pod.status.as_ref()?.conditions, TARGET)?;
    if condition.status != "True" || condition.reason == BY_KUBELET {
        return None;
    }
    let since = pods::instant(condition.last_transition_time).unwrap_or(Timestamp::UNIX_EPOCH);
    Some(pods::after(since, TIMEOUT))
}

/// Such a pod has a key of its own.
pub(super) fn itself(change: &Change<'_, Pod>, _: &dyn Reader) -> Vec<Key> {
    change
        .new
        .filter(|pod| stale_at(pod).is_some())
        .map(Key::of)
        .into_iter()
        .collect()
}

/// Resets the condition, or waits until it is stale.
pub(super) fn reset(key: &Key, seen: &Snapshot<'_>, plan: &mut Plan) {
    let Some(pod) = seen.get::<Pod>(key) else {
        return;
    };
    let Some(at) = stale_at(&pod) else {
        return;
    };
    if seen.now < at {
        plan.requeue_at(at);
        return;
    }
    let mut new = Pod::clone(&pod);
    let generation = Object::metadata(&new).generation;
    for condition in new
        .status
        .iter_mut()
        .flat_map(|status| &mut status.conditions)
        .filter(|condition| condition.r#type == TARGET)
    {
        **condition = PodCondition {
            r#type: TARGET.into(),
            observed_generation: generation,
            status: "False".into(),
            last_transition_time: Some(seen.now.into()),
            ..PodCondition::default()
        };
    }
    if let Some(patch) = patch::difference(&*pod, &new, patch::Part::Status) {
        plan.patch(&*pod, "status", PatchKind::Merge, patch, StatusWrite::No);
    }
}
