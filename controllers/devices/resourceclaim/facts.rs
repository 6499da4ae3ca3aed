//! What objects say of claims to devices: who asks for which claim, whose claim one is, for whom it is
//! reserved.

use controllers_kit::{Key, Str, pods};
use kubernetes_proto::{
    Object,
    core::Pod,
    meta::{ObjectMeta, OwnerReference},
    resource::{ResourceClaim, ResourceClaimConsumerReference, ResourceClaimSpec},
    scheduling::PodGroup,
};

/// The annotation of a claim that was created for an entry of a pod or PodGroup: the entry's name.
pub(super) const OF_ENTRY: &str = "resource.kubernetes.io/pod-claim-name";
/// The annotation of a claim that was created for a pod's extended resources.
pub(super) const OF_EXTENDED: &str = "resource.kubernetes.io/extended-resource-claim";
/// The finalizer of allocated claims; added before the allocation.
pub(super) const FINALIZER: &str = "resource.kubernetes.io/delete-protection";
/// The API's maximum of consumers of a claim.
pub(super) const CONSUMERS_MAX: usize = 256;
/// The group of PodGroups.
pub(super) const SCHEDULING: &str = "scheduling.k8s.io";
const UNSUPPORTED: &str = "none of the supported fields are set";

/// An entry of a pod's or PodGroup's `spec.resourceClaims`; empty texts for absent fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry<'a> {
    pub name: &'a str,
    /// A claim that somebody else makes.
    pub claim: &'a str,
    /// What the claim is made from.
    pub template: &'a str,
}

/// The claim of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named<'a> {
    /// It is somebody else's to make.
    Given(&'a str),
    /// It was created for the entry; whether it still is the holder's must be checked.
    Made(&'a str),
    /// The status says that none is needed.
    NotNeeded,
    /// It must still be created, or its name recorded.
    NotMade,
    /// The entry is of a form unknown to this version.
    Unsupported,
}

impl<'a> Named<'a> {
    /// The claim's name, if there is one.
    pub(super) fn claim(self) -> Option<&'a str> {
        match self {
            Self::Given(name) | Self::Made(name) => Some(name),
            Self::NotNeeded | Self::NotMade | Self::Unsupported => None,
        }
    }
}

/// Which kind of object asks for claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Pod,
    PodGroup,
}

/// The claims part of a pod or a PodGroup.
pub(super) struct Holder<'a> {
    pub kind: Kind,
    pub meta: &'a ObjectMeta,
    pub entries: Vec<Entry<'a>>,
    /// The names of entries and of the claims that were created for them; an empty one where none is
    /// needed.
    statuses: Vec<(&'a str, &'a str)>,
}

impl<'a> Holder<'a> {
    pub(super) fn of_pod(pod: &'a Pod) -> Self {
        let spec = pod.spec.as_ref();
        let entries = spec.and_then(|spec| spec.resource_claims.as_deref());
        let status = pod.status.as_ref();
        let statuses = status.and_then(|status| status.resource_claim_statuses.as_deref());
        Self {
            kind: Kind::Pod,
            meta: pod.metadata(),
            entries: (entries.into_iter().flatten())
                .map(|entry| Entry {
                    name: &entry.name,
                    claim: &entry.resource_claim_name,
                    template: &entry.resource_claim_template_name,
                })
                .collect(),
            statuses: (statuses.into_iter().flatten())
                .map(|status| (&*status.name, &*status.resource_claim_name))
                .collect(),
        }
    }

    pub(super) fn of_group(group: &'a PodGroup) -> Self {
        let entries = group.spec.iter().flat_map(|spec| &spec.resource_claims);
        let status = group.status.iter();
        let statuses = status.flat_map(|status| &status.resource_claim_statuses);
        Self {
            kind: Kind::PodGroup,
            meta: group.metadata(),
            entries: entries
                .map(|entry| Entry {
                    name: &entry.name,
                    claim: entry.resource_claim_name.as_deref().unwrap_or_default(),
                    template: (entry.resource_claim_template_name.as_deref()).unwrap_or_default(),
                })
                .collect(),
            statuses: statuses
                .map(|status| {
                    let claim = status.resource_claim_name.as_deref();
                    (&*status.name, claim.unwrap_or_default())
                })
                .collect(),
        }
    }

    /// The claim of an entry.
    pub(super) fn named(&self, entry: Entry<'a>) -> Named<'a> {
        if !entry.claim.is_empty() {
            return Named::Given(entry.claim);
        }
        if entry.template.is_empty() {
            return Named::Unsupported;
        }
        let noted = self.statuses.iter().find(|(name, _)| *name == entry.name);
        match noted {
            None => Named::NotMade,
            Some((_, "")) => Named::NotNeeded,
            Some((_, claim)) => Named::Made(claim),
        }
    }

    /// The names of all its known claims.
    pub(super) fn claims(&self) -> impl Iterator<Item = &'a str> {
        let entries = self.entries.iter();
        entries.filter_map(|entry| self.named(*entry).claim())
    }

    /// What an event calls its entries.
    pub(super) fn word(&self) -> &'static str {
        match self.kind {
            Kind::Pod => "PodResourceClaim",
            Kind::PodGroup => "PodGroupResourceClaim",
        }
    }

    /// Why an entry of an unknown form can't be served.
    pub(super) fn unsupported(&self, entry: Entry<'_>) -> String {
        let Key { namespace, name } = Key::of_meta(self.meta);
        let what = match self.kind {
            Kind::Pod => format!(
                "pod \"{namespace}/{name}\", spec.resourceClaim {:?}",
                entry.name
            ),
            Kind::PodGroup => {
                format!(
                    "PodGroup {namespace}/{name}, spec.resourceClaim {}",
                    entry.name
                )
            }
        };
        format!("checking for claim before creating it: {what}: {UNSUPPORTED}")
    }

    /// The reference that makes it the controller of a claim.
    pub(super) fn owner(&self) -> OwnerReference {
        let (api_version, kind) = match self.kind {
            Kind::Pod => ("v1", "Pod"),
            Kind::PodGroup => ("scheduling.k8s.io/v1alpha2", "PodGroup"),
        };
        OwnerReference {
            api_version: Str::interned(api_version),
            kind: Str::interned(kind),
            name: self.meta.name.clone(),
            uid: self.meta.uid.clone(),
            controller: Some(true),
            block_owner_deletion: None,
        }
    }

    /// Whether a reference is to an object of its kind, in whatever version.
    pub(super) fn is_of_kind(&self, owner: &OwnerReference) -> bool {
        match self.kind {
            Kind::Pod => is_pod(owner),
            Kind::PodGroup => is_group(owner),
        }
    }
}

/// The name of a pod's group.
pub(super) fn group_name(pod: &Pod) -> Option<&Str> {
    let group = &pod.spec.as_ref()?.scheduling_group.as_ref()?.pod_group_name;
    (!group.is_empty()).then_some(group)
}

fn is_pod(owner: &OwnerReference) -> bool {
    owner.api_version == *"v1" && owner.kind == *"Pod"
}

fn is_group(owner: &OwnerReference) -> bool {
    let group = owner.api_version.split_once('/').map(|(group, _)| group);
    owner.kind == *"PodGroup" && group == Some(SCHEDULING)
}

/// The pod that a claim was made for.
pub(super) fn owning_pod(claim: &ResourceClaim) -> Option<&OwnerReference> {
    claim.metadata().controller().filter(|owner| is_pod(owner))
}

/// Whether a claim was created for a pod or, where groups have claims, for the pod's group.
pub(super) fn is_for_pod(pod: &Pod, claim: &ResourceClaim, groups: bool) -> bool {
    let Some(owner) = claim.metadata().controller() else {
        return false;
    };
    owner.uid == pod.metadata().uid
        || groups && is_group(owner) && group_name(pod).is_some_and(|group| *group == owner.name)
}

/// Whether a claim was made for a PodGroup.
pub(super) fn is_for_group(group: &ObjectMeta, claim: &ResourceClaim) -> bool {
    let owner = claim.metadata().controller();
    owner.is_some_and(|owner| owner.uid == group.uid)
}

/// Those that a claim is reserved for.
pub(super) fn consumers(claim: &ResourceClaim) -> &[ResourceClaimConsumerReference] {
    let status = claim.status.as_ref();
    status.map_or(&[], |status| &status.reserved_for)
}

/// Whether a claim has been given devices.
pub(super) fn is_allocated(claim: &ResourceClaim) -> bool {
    let status = claim.status.as_ref();
    status.is_some_and(|status| status.allocation.is_some())
}

/// Whether a claim has the finalizer of allocated claims.
pub(super) fn is_protected(claim: &ResourceClaim) -> bool {
    let held = &claim.metadata().finalizers;
    held.iter().any(|name| **name == *FINALIZER)
}

/// Whether a claim is reserved for a pod or, where groups have claims, for the pod's group, whose uid pods do
/// not know.
pub(super) fn is_reserved_for(pod: &Pod, claim: &ResourceClaim, groups: bool) -> bool {
    let uid = &pod.metadata().uid;
    let group = group_name(pod).filter(|_| groups);
    consumers(claim).iter().any(|consumer| {
        *consumer.uid == **uid
            || group.is_some_and(|group| is_of_group(consumer) && *consumer.name == **group)
    })
}

/// Whether a reservation is a pod's.
pub(super) fn is_of_pod(consumer: &ResourceClaimConsumerReference) -> bool {
    consumer.api_group.is_empty() && consumer.resource == "pods"
}

/// Whether a reservation is a PodGroup's.
pub(super) fn is_of_group(consumer: &ResourceClaimConsumerReference) -> bool {
    consumer.api_group == SCHEDULING && consumer.resource == "podgroups"
}

/// The object that a claim of a pod's entry is created and reserved for: the pod's group where that has the
/// same entry, else the pod.
///
/// # Errors
/// Where the group has an entry of a form that is not known, in upstream's words.
pub(super) fn binds_to<'a>(
    pod: &Holder<'a>,
    group: Option<&Holder<'a>>,
    entry: Entry<'_>,
) -> Result<Kind, String> {
    for other in group.iter().flat_map(|group| &group.entries) {
        if other.claim.is_empty() && other.template.is_empty() {
            let group = group.map_or(pod.meta, |group| group.meta);
            return Err(format!(
                "PodGroup {} claim {}: {UNSUPPORTED}",
                Key::of_meta(group),
                other.name
            ));
        }
        if *other == entry {
            return Ok(Kind::PodGroup);
        }
    }
    Ok(Kind::Pod)
}

/// The reservation of a holder.
pub(super) fn reservation(holder: &Holder<'_>) -> ResourceClaimConsumerReference {
    let (api_group, resource) = match holder.kind {
        Kind::Pod => ("", "pods"),
        Kind::PodGroup => (SCHEDULING, "podgroups"),
    };
    ResourceClaimConsumerReference {
        api_group: api_group.to_owned(),
        resource: resource.to_owned(),
        name: holder.meta.name.to_string(),
        uid: holder.meta.uid.to_string(),
    }
}

/// Whether none of a pod's containers runs or ever will: it has finished, or was deleted before it was
/// bound to a node, after which the API server refuses to bind it. Once true it stays true.
pub(super) fn is_done(pod: &Pod) -> bool {
    pods::has_finished(pod) || pod.is_terminating() && pods::node_name(pod).is_empty()
}

/// Whether a claim's requests include one with access to devices that others use.
pub(super) fn has_admin_access(spec: Option<&ResourceClaimSpec>) -> bool {
    let devices = spec.and_then(|spec| spec.devices.as_ref());
    let mut requests = devices.iter().flat_map(|devices| &devices.requests);
    requests.any(|request| {
        let exactly = request.exactly.as_ref();
        exactly.is_some_and(|exactly| exactly.admin_access == Some(true))
    })
}

/// Whether a claim's requests include one with alternatives.
pub(super) fn has_prioritized_list(spec: &ResourceClaimSpec) -> bool {
    let mut requests = (spec.devices.iter()).flat_map(|devices| &devices.requests);
    requests.any(|request| !request.first_available.is_empty())
}
