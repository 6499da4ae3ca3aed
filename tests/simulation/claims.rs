//! What must hold of claims to devices: an entry of a pod has one claim, and nobody loses a reservation that
//! still needs it. At the end no reservation is for a pod that is gone, and none is missing.
//!
//! None of this allows for late watches: what a reservation is for runs on the device, and the next one would
//! be given the same.

use std::sync::Arc;

use controllers_kit::{Key, Reader, Str, pods, testing::World};
use kubernetes_proto::{
    AnyObject, Object, cast,
    core::Pod,
    resource::{ResourceClaim, ResourceClaimConsumerReference},
};

use crate::{
    judge::By,
    server::{Change, Server},
};

/// Who makes, reserves and frees claims.
pub const CONTROLLER: &str = "resourceclaim-controller";
/// On a claim: the entry that it was made for.
pub const OF_ENTRY: &str = "resource.kubernetes.io/pod-claim-name";
/// Keeps a claim that is allocated.
pub const FINALIZER: &str = "resource.kubernetes.io/delete-protection";

fn claim_of(object: &AnyObject) -> Option<Arc<ResourceClaim>> {
    cast::<ResourceClaim>(Arc::clone(object))
}

fn consumers(claim: &ResourceClaim) -> &[ResourceClaimConsumerReference] {
    let status = claim.status.as_ref();
    status.map_or(&[], |status| &status.reserved_for)
}

/// Whether a pod may still run.
fn is_needy(pod: &Pod) -> bool {
    !(pods::has_finished(pod) || pod.is_terminating() && pods::node_name(pod).is_empty())
}

fn pod_of(server: &Server, namespace: &str, name: &str) -> Option<Arc<Pod>> {
    let found = Reader::get(&server.world, Pod::resource(), namespace, name);
    found.and_then(cast::<Pod>)
}

/// Whether the pod that a claim is reserved for may still run.
fn needs(server: &Server, namespace: &str, of: &ResourceClaimConsumerReference) -> bool {
    let pod = pod_of(server, namespace, &of.name);
    pod.is_some_and(|pod| *Object::metadata(&*pod).uid == *of.uid && is_needy(&pod))
}

/// Whether a claim is made.
pub fn is_made(change: &Change) -> bool {
    change.old.is_none() && claim_of(change.object()).is_some()
}

/// Judges a change.
pub fn after(server: &Server, change: &Change, by: Option<&By<'_>>) -> Option<String> {
    let by = by.filter(|by| by.writer.controller == CONTROLLER)?;
    let claim = claim_of(change.object())?;
    let meta = Object::metadata(&*claim);
    match (&change.old, &change.new) {
        (None, Some(_)) if !by.stale => doubled(server, &claim),
        (Some(old), new) => {
            let old = claim_of(old)?;
            let new = new.as_ref().and_then(claim_of);
            let left = new.as_deref().map_or(&[][..], consumers);
            let lost = consumers(&old).iter().find(|of| {
                !left.iter().any(|other| other.uid == of.uid) && needs(server, &meta.namespace, of)
            })?;
            Some(format!(
                "{CONTROLLER}: took the claim {} from pod {}, which may still run",
                Key::of_meta(meta),
                lost.name
            ))
        }
        _ => None,
    }
}

/// Another claim of the entry that a claim was made for.
fn doubled(server: &Server, claim: &ResourceClaim) -> Option<String> {
    let meta = claim.metadata();
    let owner = meta.controller()?;
    let entry = meta.annotation(OF_ENTRY)?;
    let all = server
        .world
        .list(ResourceClaim::resource(), Some(&meta.namespace));
    let same = all.iter().filter(|other| {
        let other = other.metadata();
        let owned = other
            .controller()
            .is_some_and(|other| other.uid == owner.uid);
        owned && other.annotation(OF_ENTRY) == Some(entry) && !other.is_terminating()
    });
    let count = same.count();
    (count > 1).then(|| {
        format!(
            "{CONTROLLER}: {count} claims for entry {entry} of pod {}",
            owner.name
        )
    })
}

/// The claims that were made for a pod, as its status names them.
fn made_for(pod: &Pod) -> impl Iterator<Item = Str> {
    let statuses = pod.status.as_ref();
    let statuses = statuses.and_then(|status| status.resource_claim_statuses.as_deref());
    let made = statuses.into_iter().flatten();
    made.map(|made| made.resource_claim_name.clone())
}

/// Whether a pod's status names this claim.
pub fn is_named(world: &World, claim: &Key) -> bool {
    let claim = claim.to_string();
    world.all::<Pod>().iter().any(|pod| {
        let namespace = &Object::metadata(&**pod).namespace;
        made_for(pod).any(|name| format!("{namespace}/{name}") == claim)
    })
}

/// What is wrong at the end: reservations for pods that are gone, and pods without theirs.
pub fn at_the_end(server: &Server) -> Option<String> {
    let all = server.world.list(ResourceClaim::resource(), None);
    for claim in all.iter().filter_map(claim_of) {
        let meta = Object::metadata(&*claim);
        let mut pods = consumers(&claim).iter().filter(|of| of.resource == "pods");
        if let Some(of) = pods.find(|of| !needs(server, &meta.namespace, of)) {
            return Some(format!(
                "the claim {} is reserved for pod {}, which is done",
                Key::of_meta(meta),
                of.name
            ));
        }
    }
    let pods = server.world.list(Pod::resource(), None);
    for pod in pods.into_iter().filter_map(cast::<Pod>) {
        let meta = Object::metadata(&*pod);
        if !is_needy(&pod) || pod.is_terminating() || pods::node_name(&pod).is_empty() {
            continue;
        }
        let entries = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.resource_claims.as_deref());
        let named = entries
            .into_iter()
            .flatten()
            .map(|entry| entry.resource_claim_name.clone());
        for name in named.chain(made_for(&pod)).filter(|name| !name.is_empty()) {
            let claim = Reader::get(
                &server.world,
                ResourceClaim::resource(),
                &meta.namespace,
                &name,
            );
            let Some(claim) = claim.as_ref().and_then(claim_of) else {
                return Some(format!(
                    "pod {} names the claim {name}, which is not there",
                    meta.name
                ));
            };
            let status = claim.status.as_ref();
            let is_allocated = status.is_some_and(|status| status.allocation.is_some());
            if is_allocated && !consumers(&claim).iter().any(|of| *of.uid == *meta.uid) {
                return Some(format!(
                    "the claim {name} is not reserved for pod {}",
                    meta.name
                ));
            }
        }
    }
    None
}
