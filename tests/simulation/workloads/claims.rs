//! Claims to devices that are made for pods, reserved for them and freed while pods come and go.

use controllers_kit::testing::{Common, PodBuild, World, pod};
use kubernetes_proto::{
    Object,
    core::{Pod, PodResourceClaim, PodResourceClaimStatus},
    resource::{
        AllocationResult, ResourceClaim, ResourceClaimConsumerReference, ResourceClaimTemplate,
    },
};

use super::Making;
use crate::claims::{FINALIZER, OF_ENTRY};

/// Pods of each sort.
const PODS: usize = 4;

/// An entry with a claim, or with a template.
pub(super) fn entry(mut pod: Pod, name: &str, claim: &str, template: &str) -> Pod {
    let entry = PodResourceClaim {
        name: name.into(),
        resource_claim_name: claim.into(),
        resource_claim_template_name: template.into(),
    };
    let spec = pod.spec.get_or_insert_default();
    spec.resource_claims
        .get_or_insert_default()
        .push(entry.into());
    pod
}

fn template(name: &str) -> ResourceClaimTemplate {
    let mut template = ResourceClaimTemplate::default();
    template.metadata_mut().name = name.into();
    template.in_namespace("default")
}

/// A claim that is allocated.
fn allocated(name: &str) -> ResourceClaim {
    let mut claim = ResourceClaim::default();
    claim.metadata_mut().name = name.into();
    claim.status.get_or_insert_default().allocation = Some(AllocationResult::default());
    claim.in_namespace("default").finalizer(FINALIZER)
}

/// As the scheduler does.
pub(super) fn reserve(mut claim: ResourceClaim, pod: &Pod) -> ResourceClaim {
    let meta = pod.metadata();
    let consumer = ResourceClaimConsumerReference {
        resource: "pods".to_owned(),
        name: meta.name.to_string(),
        uid: meta.uid.to_string(),
        ..ResourceClaimConsumerReference::default()
    };
    let reserved = &mut claim.status.get_or_insert_default().reserved_for;
    if !reserved.iter().any(|other| other.uid == consumer.uid) {
        reserved.push(consumer);
    }
    claim
}

fn has(mut pod: Pod, entry: &str, claim: &str) -> Pod {
    let status = pod.status.get_or_insert_default();
    let statuses = status.resource_claim_statuses.get_or_insert_default();
    statuses.push(PodResourceClaimStatus {
        name: entry.into(),
        resource_claim_name: claim.into(),
    });
    pod
}

fn delete_pod(world: &mut World, name: &str) {
    if world.find::<Pod>(name).is_some() {
        world.delete::<Pod>(name);
    }
}

/// Pods whose claims are made and stay; pods that go before or after theirs are made; pods that finish or go
/// and free what is theirs; pods that come together with their reservation. What is reserved by the
/// controller alone stays, so that the end does not depend on when it was.
pub(super) fn made_and_freed(making: &mut Making) {
    making.workload.pods_may_go = false;
    making.put(template("gpus"));
    making.put(allocated("kept"));
    making.put(entry(pod("user"), "a", "kept", "").on("node-1"));
    for number in 0..PODS {
        let named = |what: &str| format!("{what}-{number}");
        // Made for pods that stay, and for pods that are gone soon.
        let (stays, goes) = (named("stays"), named("goes"));
        making.then(move |world| {
            let pod = entry(pod(&stays).on("node-1"), "a", "", "gpus");
            world.put(entry(pod, "b", "", "gpus"));
        });
        let of = goes.clone();
        making.then_soon(move |world| world.put(entry(pod(&of), "a", "", "gpus").on("node-1")));
        if making.dice.chance(500) {
            making.then_soon(move |world| delete_pod(world, &goes));
        } else {
            making.then(move |world| delete_pod(world, &goes));
        }
        // Freed by pods that finish, with a claim of their own, and by pods that are deleted.
        let (done, own, gone, given) = (named("done"), named("own"), named("gone"), named("given"));
        let pod_of_own = has(entry(pod(&done), "a", "", "gpus"), "a", &own);
        let pod_of_own = pod_of_own.on("node-1").running();
        let claim = allocated(&own)
            .owned_by(&pod_of_own)
            .annotation(OF_ENTRY, "a");
        making.put(reserve(claim, &pod_of_own));
        making.put(pod_of_own);
        let user = entry(pod(&gone), "a", &given, "").on("node-1").running();
        making.put(reserve(allocated(&given), &user));
        making.put(user);
        making.then(move |world| {
            world.change::<Pod>(&done, |pod| {
                pod.status.get_or_insert_default().phase = "Succeeded".into();
            });
        });
        making.then_soon(move |world| delete_pod(world, &gone));
        // The scheduler's: the reservation may be seen before the pod.
        let (late, shared) = (named("late"), named("shared"));
        making.put(allocated(&shared));
        making.then(move |world| {
            let pod = entry(pod(&late), "a", &shared, "").on("node-1");
            world.put(pod.clone());
            world.change::<ResourceClaim>(&shared, |claim| {
                *claim = reserve(claim.clone(), &pod);
            });
        });
    }
}
