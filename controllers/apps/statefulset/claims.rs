//! The claims of a pod: made where they are missing, owned by the set or the pod as the retention policy
//! says.

use std::sync::Arc;

use controllers_kit::{Event, Key, Plan, Snapshot, owners};
use kubernetes_proto::{
    Object, Shared,
    apps::StatefulSet,
    core::{PersistentVolumeClaim, PersistentVolumeClaimTemplate, Pod},
    meta::{self, ObjectMeta, OwnerReference},
};

use super::pod::{self, spec};

/// Deleted with the set, and when it is scaled down.
struct Policy {
    with_set: bool,
    when_scaled: bool,
}

fn policy(set: &StatefulSet) -> Policy {
    let policy = spec(set).persistent_volume_claim_retention_policy.as_ref();
    let (with_set, when_scaled) = policy.map_or(("", ""), |policy| {
        (policy.when_deleted.as_str(), policy.when_scaled.as_str())
    });
    let is_known = |word: &str| matches!(word, "Retain" | "Delete");
    // A policy of unknown words retains.
    let is_read = is_known(with_set) && is_known(when_scaled);
    Policy {
        with_set: is_read && with_set == "Delete",
        when_scaled: is_read && when_scaled == "Delete",
    }
}

fn find(
    set: &StatefulSet,
    template: &PersistentVolumeClaimTemplate,
    ordinal: i64,
    seen: &Snapshot<'_>,
) -> Option<Arc<PersistentVolumeClaim>> {
    let name = pod::claim_name(set, template, ordinal);
    seen.get(&Key::new(set.metadata().namespace.clone(), name))
}

/// The claims of an ordinal that are there.
fn present<'a>(
    set: &'a StatefulSet,
    ordinal: i64,
    seen: &'a Snapshot<'_>,
) -> impl Iterator<Item = Arc<PersistentVolumeClaim>> + 'a {
    spec(set)
        .volume_claim_templates
        .iter()
        .filter_map(move |template| find(set, template, ordinal, seen))
}

fn refers_to<T: Object>(reference: &OwnerReference, object: &T) -> bool {
    let resource = T::resource();
    *reference.api_version == *resource.api_version()
        && reference.kind == *resource.kind
        && reference.name == object.metadata().name
}

/// Whether a claim has an owner reference to another object of that name.
fn is_stale<T: Object>(claim: &PersistentVolumeClaim, owner: &T) -> bool {
    let owners = &claim.metadata().owner_references;
    let found = owners.iter().find(|reference| refers_to(reference, owner));
    found.is_some_and(|reference| reference.uid != owner.metadata().uid)
}

/// Whether a claim that should go with the set still belongs to an earlier pod of the ordinal: it is about to
/// be deleted, and a new pod must not take it.
pub(super) fn are_stale(set: &StatefulSet, ordinal: i64, seen: &Snapshot<'_>) -> bool {
    let name = pod::name(set, ordinal);
    let of_pod_before = |reference: &Shared<OwnerReference>| {
        reference.api_version == *"v1" && reference.kind == *"Pod" && *reference.name == *name
    };
    policy(set).when_scaled
        && present(set, ordinal, seen)
            .any(|claim| claim.metadata().owner_references.iter().any(of_pod_before))
}

fn has_unexpected_controller(claim: &PersistentVolumeClaim, set: &StatefulSet, pod: &Pod) -> bool {
    let policy = policy(set);
    if !policy.with_set && !policy.when_scaled {
        return false;
    }
    claim.metadata().owner_references.iter().any(|reference| {
        if refers_to(reference, set) {
            reference.uid != set.metadata().uid
        } else if refers_to(reference, pod) {
            reference.uid != pod.metadata().uid
        } else {
            reference.controller == Some(true)
        }
    })
}

fn is_up_to_date(claim: &PersistentVolumeClaim, set: &StatefulSet, pod: &Pod) -> bool {
    // Owned by an earlier set or pod and about to be garbage-collected: must not be touched.
    if is_stale(claim, set) || is_stale(claim, pod) {
        return true;
    }
    let (set_uid, pod_uid) = (&set.metadata().uid, &pod.metadata().uid);
    let owners = &claim.metadata().owner_references;
    let has = |uid: &str| owners.iter().any(|reference| *reference.uid == *uid);
    if has_unexpected_controller(claim, set, pod) {
        return !has(set_uid) && !has(pod_uid);
    }
    let is_idle_owner = |reference: &Shared<OwnerReference>| {
        (reference.uid == *set_uid || reference.uid == *pod_uid)
            && reference.controller != Some(true)
    };
    if owners.iter().any(is_idle_owner) {
        return false;
    }
    let (by_set, by_pod) = wanted(set, pod);
    has(set_uid) == by_set && has(pod_uid) == by_pod
}

/// Whether the set and the pod should own the pod's claims.
fn wanted(set: &StatefulSet, pod: &Pod) -> (bool, bool) {
    let policy = policy(set);
    let is_scaled_down = !super::context::is_in_range(set, pod::ordinal(pod));
    let by_pod = policy.when_scaled && is_scaled_down;
    (policy.with_set && !by_pod, by_pod)
}

/// Whether all existing claims of a pod have the right owners.
pub(super) fn match_policy(set: &StatefulSet, pod: &Pod, seen: &Snapshot<'_>) -> bool {
    present(set, pod::ordinal(pod), seen).all(|claim| is_up_to_date(&claim, set, pod))
}

/// Plans the writes that give a pod's claims their owner references. `event` is recorded with the last one.
pub(super) fn mend_owners(
    plan: &mut Plan,
    set: &StatefulSet,
    pod: &Pod,
    seen: &Snapshot<'_>,
    event: Option<&Event>,
) {
    let mut last = None;
    for claim in present(set, pod::ordinal(pod), seen) {
        if is_up_to_date(&claim, set, pod) {
            continue;
        }
        let conflicts = has_unexpected_controller(&claim, set, pod);
        let mut new = PersistentVolumeClaim::clone(&claim);
        let owners = &mut new.metadata_mut().owner_references;
        owners.retain(|reference| !refers_to(reference, set) && !refers_to(reference, pod));
        if conflicts {
            plan.event(Event::warning(
                set,
                "ConflictingController",
                format!(
                    "PersistentVolumeClaim {} has a conflicting OwnerReference that acts as a manging controller, the \
                     retention policy is ignored for this claim",
                    claim.metadata().name
                ),
            ));
        } else {
            let (by_set, by_pod) = wanted(set, pod);
            if by_set {
                owners.push(owners::reference(set));
            }
            if by_pod {
                owners.push(owners::reference(pod));
            }
        }
        if plan.update(claim.as_ref(), &new).is_some() {
            last = plan.stages.last().map(Vec::len);
        }
    }
    if let (Some(count), Some(event)) = (last, event) {
        let stage = plan.stages.last_mut().expect("a write was just planned");
        stage[count - 1].announce(event.clone());
    }
}

/// Plans the creation of the claims that an ordinal lacks. A claim that is being deleted blocks its name.
///
/// # Errors
/// Where a claim is being deleted: upstream's sentence.
pub(super) fn create_missing(
    plan: &mut Plan,
    set: &StatefulSet,
    ordinal: i64,
    seen: &Snapshot<'_>,
) -> Result<(), String> {
    let set_meta = set.metadata();
    let pod = pod::name(set, ordinal);
    let mut leaving = Vec::new();
    for template in &spec(set).volume_claim_templates {
        let name = pod::claim_name(set, template, ordinal);
        match find(set, template, ordinal, seen) {
            Some(claim) if claim.is_terminating() => {
                leaving.push(format!("pvc {name} is being deleted"));
            }
            Some(_) => {}
            None => {
                let wanted = template.metadata.clone().unwrap_or_default();
                let mut metadata = ObjectMeta {
                    name: name.as_str().into(),
                    namespace: set_meta.namespace.clone(),
                    labels: wanted.labels,
                    annotations: wanted.annotations,
                    finalizers: wanted.finalizers,
                    owner_references: wanted.owner_references,
                    ..Default::default()
                };
                for label in spec(set)
                    .selector
                    .iter()
                    .flat_map(|selector| &selector.match_labels)
                {
                    meta::set(&mut metadata.labels, &label.key, &label.value);
                }
                let claim = PersistentVolumeClaimTemplate {
                    metadata: Some(metadata),
                    spec: template.spec.clone(),
                };
                create(plan, set, &claim, &name, &pod);
            }
        }
    }
    match leaving.as_slice() {
        [] => Ok(()),
        [one] => Err(one.clone()),
        several => Err(format!("[{}]", several.join(", "))),
    }
}

fn create(
    plan: &mut Plan,
    set: &StatefulSet,
    claim: &PersistentVolumeClaimTemplate,
    name: &str,
    pod: &str,
) {
    let set_name = &set.metadata().name;
    plan.act(controllers_kit::Action {
        verb: controllers_kit::Verb::Create {
            body: prost::Message::encode_to_vec(claim),
        },
        resource: PersistentVolumeClaim::resource(),
        key: Key::new(set.metadata().namespace.clone(), name),
        uid: Default::default(),
        resource_version: 0,
        announcement: None,
    })
    .announce(Event::normal(
        set,
        "SuccessfulCreate",
        format!("Create Claim {name} Pod {pod} in StatefulSet {set_name} success"),
    ))
    .announce_failure(Event::warning(
        set,
        "FailedCreate",
        format!("Create Claim {name} for Pod {pod} in StatefulSet {set_name} failed error: "),
    ));
}
