//! Keeps a PersistentVolumeClaim that is being deleted as long as a pod uses it, by a finalizer.
//!
//! Watches persistentvolumeclaims and pods; patches the finalizer `kubernetes.io/pvc-protection` and, with
//! the gate PersistentVolumeClaimUnusedSinceTime, the condition `Unused`; a key per claim; remembers nothing.
//! Invariant: the finalizer of a claim is removed only when the cache is proven to hold every pod of the
//! namespace that there was when the claim was already being deleted, and none of them uses it. No later pod
//! can: kubelets start no pod whose claim is being deleted.

use controllers_kit::{
    Change, Controller, Descriptor, Flags, Key, Plan, Query, Reader, Refusal, Resource, Sharding,
    Snapshot, StatusWrite, Timestamp, Watches, finalizers, pods,
};
use kubernetes_proto::{
    Object,
    core::{PersistentVolumeClaim, PersistentVolumeClaimCondition, Pod},
    meta::Time,
};

use crate::claims;

/// The finalizer.
const FINALIZER: &str = "kubernetes.io/pvc-protection";
/// The gate of the condition.
const UNUSED_SINCE: &str = "PersistentVolumeClaimUnusedSinceTime";
/// The condition.
const UNUSED: &str = "Unused";

/// The controller.
pub struct ClaimProtection {
    /// Whether the condition is kept.
    reports_unused: bool,
}

/// The reads that the removal of a finalizer, and the condition `Unused`, rest on.
fn barriers() -> [&'static Resource; 1] {
    [Pod::resource()]
}

/// Whether a pod no longer uses its volumes: the kubelet has reported so by a deletion without grace, or it
/// was forced. The claim of its ephemeral volume may be released before the pod, or a finalizer of the pod
/// that waits for that claim would wait forever.
fn is_shut_down(pod: &Pod) -> bool {
    let meta = pod.metadata();
    meta.is_terminating() && meta.deletion_grace_period_seconds == Some(0)
}

/// Whether a pod names a claim; its ephemeral volumes count only `with_ephemeral`, and only if the claim was
/// made for it.
fn names(pod: &Pod, claim: &PersistentVolumeClaim, with_ephemeral: bool) -> bool {
    let name = &claim.metadata().name;
    claims::volumes(pod).any(|volume| match claims::ephemeral(volume) {
        Some(_) => {
            with_ephemeral
                && claims::ephemeral_name(pod, volume) == *name
                && claims::made_for(pod, claim).is_ok()
        }
        None => claims::named(volume).is_some_and(|named| named == name),
    })
}

/// Whether a pod keeps a claim from being deleted. A finished pod does; a pod without a node does not,
/// since its kubelet would refuse to start it.
fn keeps(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    !pods::node_name(pod).is_empty() && names(pod, claim, !is_shut_down(pod))
}

/// Whether a pod counts as a user for the condition: scheduled or not, until its containers have ended.
fn uses(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    !claims::is_terminated(pod) && names(pod, claim, true)
}

/// Whether any pod of the cache keeps or uses a claim, as `does` decides.
fn any_pod(
    seen: &Snapshot<'_>,
    claim: &PersistentVolumeClaim,
    does: fn(&Pod, &PersistentVolumeClaim) -> bool,
) -> bool {
    let meta = claim.metadata();
    let key = claims::key(&meta.namespace, &meta.name);
    let pods = seen.indexed::<Pod>(claims::BY_CLAIM, &key);
    pods.iter().any(|pod| does(pod, claim))
}

/// The status of the condition `Unused`.
fn unused(claim: &PersistentVolumeClaim) -> Option<&str> {
    let mut conditions = claim.status.iter().flat_map(|status| &status.conditions);
    let unused = conditions.find(|condition| condition.r#type == UNUSED)?;
    Some(&unused.status)
}

/// The pod that had the name of another before, where this replica has not seen its deletion.
fn replaced<'a>(change: &Change<'a, Pod>) -> Option<&'a Pod> {
    let (old, new) = (change.old?, change.new?);
    (old.metadata().uid != new.metadata().uid).then_some(old)
}

/// A pod that is deleted, has ended, was forced or has no node may have been the last to keep a claim.
fn released(change: &Change<'_, Pod>, _: &dyn Reader) -> Vec<Key> {
    let releases = |pod: &Pod| {
        claims::is_terminated(pod) || is_shut_down(pod) || pods::node_name(pod).is_empty()
    };
    let newest = change.newest();
    let gone = change.new.is_none();
    let may = (gone || releases(newest)).then_some(newest);
    may.into_iter()
        .chain(replaced(change))
        .flat_map(claims::of)
        .collect()
}

/// Every creation, change or deletion of a pod may change the users of its claims.
fn touched(change: &Change<'_, Pod>, _: &dyn Reader) -> Vec<Key> {
    let both = [Some(change.newest()), replaced(change)];
    both.into_iter().flatten().flat_map(claims::of).collect()
}

impl ClaimProtection {
    /// Whether the condition should become true: the cache shows no user of the claim, which alone is no
    /// proof.
    fn may_become_unused(&self, seen: &Snapshot<'_>, claim: &PersistentVolumeClaim) -> bool {
        self.reports_unused
            && !claim.is_terminating()
            && unused(claim) != Some("True")
            && !any_pod(seen, claim, uses)
    }
}

impl Controller for ClaimProtection {
    type Memory = ();

    fn describe() -> Descriptor {
        Descriptor::new(
            "persistentvolumeclaim-protection-controller",
            Sharding::ByObject,
        )
        .aliases(&["pvc-protection"])
        .service_account("pvc-protection-controller")
        .queue("pvcprotection")
        .gate(UNUSED_SINCE, false)
        .rule("", "persistentvolumeclaims", &["list", "watch", "patch"])
        .rule("", "persistentvolumeclaims/status", &["patch"])
        .rule("", "pods", &["list", "watch"])
        .differences(include_str!("differences.md"))
    }

    fn new(flags: &Flags) -> Self {
        Self {
            reports_unused: flags.bool(UNUSED_SINCE),
        }
    }

    fn watch(&self, on: &mut Watches) {
        let claims = on.kind::<PersistentVolumeClaim>();
        match self.reports_unused {
            true => claims.wakes_itself(),
            false => claims.wakes(|change, _| finalizers::wakes(change.new, FINALIZER)),
        };
        let pods = on.kind::<Pod>().indexed_by(claims::BY_CLAIM, claims::keys);
        match self.reports_unused {
            true => pods.wakes(touched),
            false => pods.wakes(released),
        };
    }

    fn ask(&self, key: &Key, seen: &Snapshot<'_>, (): &()) -> Vec<Query> {
        let Some(claim) = seen.get::<PersistentVolumeClaim>(key) else {
            return Vec::new();
        };
        let may_go = finalizers::is_candidate(&*claim, FINALIZER) && !any_pod(seen, &claim, keeps);
        match may_go || self.may_become_unused(seen, &claim) {
            true => finalizers::barriers(&barriers()),
            false => Vec::new(),
        }
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, (): &mut ()) -> Result<Plan, Refusal> {
        let mut plan = Plan::nothing();
        let Some(claim) = seen.get::<PersistentVolumeClaim>(key) else {
            return Ok(plan);
        };
        let namespace = &claim.metadata().namespace;
        if finalizers::is_missing(&*claim, FINALIZER) {
            finalizers::add(&mut plan, &*claim, FINALIZER);
        } else if finalizers::is_candidate(&*claim, FINALIZER) && !any_pod(seen, &claim, keeps) {
            // Irreversible. Verified immediately before: the claim was seen to be terminating before the
            // version of pods was asked for; the cache holds every pod of the namespace up to that version
            // (a strict proof), and none with a node names the claim. The claim's uid and version are the
            // patch's preconditions.
            if !finalizers::rest_on(&mut plan, seen, &barriers(), namespace)? {
                return Ok(Plan::nothing().requeued_at(seen.now));
            }
            finalizers::remove(&mut plan, &*claim, FINALIZER);
        } else if self.reports_unused && !claim.is_terminating() {
            if self.may_become_unused(seen, &claim) {
                if !finalizers::rest_on(&mut plan, seen, &barriers(), namespace)? {
                    return Ok(Plan::nothing().requeued_at(seen.now));
                }
                let why = (
                    "NoPodsUsingPVC",
                    "No pods are currently referencing this PVC",
                );
                set_unused(&mut plan, &claim, seen.now, "True", why);
            } else if matches!(unused(&claim), None | Some("True")) && any_pod(seen, &claim, uses) {
                let why = ("PodUsingPVC", "A pod is currently referencing this PVC");
                set_unused(&mut plan, &claim, seen.now, "False", why);
            }
        }
        Ok(plan)
    }
}

fn set_unused(
    plan: &mut Plan,
    claim: &PersistentVolumeClaim,
    now: Timestamp,
    status: &str,
    (reason, message): (&str, &str),
) {
    let mut new = claim.clone();
    let conditions = &mut new.status.get_or_insert_default().conditions;
    let wanted = PersistentVolumeClaimCondition {
        r#type: UNUSED.to_owned(),
        status: status.to_owned(),
        last_transition_time: Some(Time::from(now)),
        reason: reason.to_owned(),
        message: message.to_owned(),
        ..Default::default()
    };
    match conditions
        .iter_mut()
        .find(|condition| condition.r#type == UNUSED)
    {
        Some(held) => *held = wanted,
        None => conditions.push(wanted),
    }
    if let Some(action) = plan.update_status(claim, &new) {
        action.reports(StatusWrite::No);
    }
}

#[cfg(test)]
pub(crate) mod tests;
