//! Creates claims to devices from templates, records their names in pods and PodGroups, reserves claims for
//! pods that were bound without the scheduler, and takes back reservations, allocations and claims of pods
//! that are done.
//!
//! Watches pods, resourceclaims, resourceclaimtemplates and, with the gate DRAWorkloadResourceClaims,
//! podgroups. Creates and deletes claims, patches their status and finalizers, and applies the statuses of
//! pods and PodGroups. A key per pod (`namespace/name`), per claim (`namespace/claim:name`) and per PodGroup
//! (`namespace/podgroup:name`), each with its own owner: claims are written by the keys of claims and of
//! pods, so each write to a claim carries the version seen, and conflicts with any that it has not seen.
//!
//! Invariants: an entry of a holder has one claim. Its name follows from the holder's uid and the entry's
//! name, so that a second creation collides; claims that are not in the cache are read live, after a
//! takeover and where the holder names one. A reservation is dropped only when its consumer was seen to be
//! done or deleted, or a live read says that it is not there.
//!
//! Remembers of a claim whose allocation it has just removed that allocation, since the finalizer goes
//! next, and since when a finalizer has been left over.

mod claim;
mod facts;
mod holder;
mod make;
mod wakes;

use controllers_kit::{
    Controller, Descriptor, Flags, Key, MetricKind, Outcome, Plan, Query, Refusal, Sharding,
    SignedDuration, Snapshot, Watches,
};
use kubernetes_proto::{
    core::Pod,
    resource::{ResourceClaim, ResourceClaimTemplate},
    scheduling::PodGroup,
};

pub use claim::Memory;

const CREATES: &str = "resourceclaim_controller_creates_total";
const CLAIMS: &str = "resourceclaim_controller_resource_claims";
/// The reason of all its events.
const FAILED: &str = "FailedResourceClaimCreation";
/// The field manager of claims' names: upstream's, so that each implementation takes over the other's
/// entries.
const MANAGER: &str = "ResourceClaimController";
/// The kinds of keys besides those of pods.
const CLAIM: &str = "claim";
const PODGROUP: &str = "podgroup";

const ADMIN_ACCESS: &str = "DRAAdminAccess";
const PRIORITIZED_LIST: &str = "DRAPrioritizedList";
const GROUPS: &str = "DRAWorkloadResourceClaims";

/// Which of the API's features are on.
#[derive(Clone, Copy, Debug)]
struct Features {
    /// Access to devices that others use.
    admin_access: bool,
    /// Requests with alternatives.
    prioritized_list: bool,
    /// PodGroups with claims of their own.
    groups: bool,
}

/// The controller.
pub struct ResourceClaims {
    features: Features,
}

impl Controller for ResourceClaims {
    type Memory = Memory;

    fn describe() -> Descriptor {
        const GROUP: &str = "resource.k8s.io";
        let (name, kind, labels) = claim::COUNTED;
        Descriptor::new("resourceclaim-controller", Sharding::ByObject)
            .aliases(&["resource-claim-controller"])
            .service_account("resource-claim-controller")
            .event_source("resource_claim")
            .queue("resource_claim")
            .workers(
                "concurrent-resourceclaim-syncs",
                50,
                "The number of pods, resource claims and PodGroups that each replica handles concurrently.",
            )
            .bound("concurrent-resourceclaim-syncs", 1, i64::from(i32::MAX))
            .gate(ADMIN_ACCESS, true)
            .gate(PRIORITIZED_LIST, true)
            .gate(GROUPS, false)
            .rule("", "pods", &["get", "list", "watch"])
            .rule("", "pods/finalizers", &["update"])
            .rule("", "pods/status", &["patch"])
            .rule(
                GROUP,
                "resourceclaims",
                &["get", "list", "watch", "create", "delete", "patch"],
            )
            .rule(GROUP, "resourceclaims/status", &["patch"])
            // The API server requires this permission where reservations and allocations change.
            .rule(GROUP, "resourceclaims/binding", &["patch"])
            .rule(GROUP, "resourceclaimtemplates", &["list", "watch"])
            .rule(facts::SCHEDULING, "podgroups", &["get", "list", "watch"])
            .rule(facts::SCHEDULING, "podgroups/status", &["patch"])
            .metric(
                CREATES,
                MetricKind::Counter,
                &["status", "admin_access"],
                "Number of ResourceClaims creation requests, categorized by creation status and admin access",
            )
            .metric(
                name,
                kind,
                labels,
                "Number of ResourceClaims, categorized by allocation status, admin access, and source. \
                 Source can be 'resource_claim_template' (created from a template), \
                 'extended_resource' (extended resources), or empty (manually created by a user).",
            )
            .differences(include_str!("differences.md"))
    }

    fn new(flags: &Flags) -> Self {
        Self {
            features: Features {
                admin_access: flags.bool(ADMIN_ACCESS),
                prioritized_list: flags.bool(PRIORITIZED_LIST),
                groups: flags.bool(GROUPS),
            },
        }
    }

    fn watch(&self, on: &mut Watches) {
        let pods = on
            .kind::<Pod>()
            .indexed_by(wakes::BY_CLAIM, wakes::claims_of_pod)
            .indexed_by(wakes::BY_TEMPLATE, wakes::templates_of_pod);
        if !self.features.groups {
            pods.wakes(wakes::by_pod::<false>);
            on.kind::<ResourceClaim>()
                .where_served()
                .wakes(wakes::by_claim::<false>);
            on.kind::<ResourceClaimTemplate>()
                .where_served()
                .wakes(wakes::by_template::<false>);
            return;
        }
        pods.indexed_by(wakes::BY_GROUP, wakes::group_of_pod)
            .wakes(wakes::by_pod::<true>);
        on.kind::<ResourceClaim>()
            .where_served()
            .wakes(wakes::by_claim::<true>);
        on.kind::<ResourceClaimTemplate>()
            .where_served()
            .wakes(wakes::by_template::<true>);
        on.kind::<PodGroup>()
            .indexed_by(wakes::BY_CLAIM, wakes::claims_of_group)
            .indexed_by(wakes::BY_TEMPLATE, wakes::templates_of_group)
            .wakes(wakes::by_group);
    }

    fn ask(&self, key: &Key, seen: &Snapshot<'_>, _: &Memory) -> Vec<Query> {
        if let Some(key) = key.within_kind(CLAIM) {
            let claim = seen.get::<ResourceClaim>(&key);
            claim.map(|claim| claim::ask(&claim, self.features, seen))
        } else if let Some(key) = key.within_kind(PODGROUP) {
            let group = match self.features.groups {
                true => seen.get::<PodGroup>(&key),
                false => None,
            };
            group.map(|group| holder::ask_of_group(&group, seen))
        } else {
            let pod = seen.get::<Pod>(key);
            pod.map(|pod| holder::ask_of_pod(&pod, seen))
        }
        .unwrap_or_default()
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, memory: &mut Memory) -> Result<Plan, Refusal> {
        if let Some(key) = key.within_kind(CLAIM) {
            return match seen.get::<ResourceClaim>(&key) {
                Some(claim) => claim::plan(&claim, self.features, seen, memory),
                None => {
                    *memory = Memory::default();
                    Ok(Plan::nothing())
                }
            };
        }
        if let Some(key) = key.within_kind(PODGROUP) {
            // With the gate off keys from before may still exist.
            if !self.features.groups {
                return Ok(Plan::nothing());
            }
            let group = seen.get::<PodGroup>(&key);
            return group.map_or(Ok(Plan::nothing()), |group| {
                holder::plan_group(self.features, &group, seen)
            });
        }
        let pod = seen.get::<Pod>(key);
        pod.map_or(Ok(Plan::nothing()), |pod| {
            holder::plan_pod(self.features, &pod, seen)
        })
    }

    fn learn(&self, outcome: &Outcome<'_>, memory: &mut Memory) {
        if let Ok(written) = &outcome.result {
            memory.learn(outcome.action, written);
        }
    }

    fn shift(&self, memory: &mut Memory, by: SignedDuration) {
        memory.shift(by);
    }
}

#[cfg(test)]
pub(crate) mod tests;
