//! What claims to devices are charged for.

use std::collections::BTreeMap;

use controllers_kit::{Key, Snapshot};
use kubernetes_proto::{
    Object, Str,
    core::Pod,
    meta::ObjectMeta,
    quantity::Exact,
    resource::{DeviceClass, DeviceRequest, ResourceClaim},
};

use super::{
    Gates,
    context::IMPLICIT,
    names,
    pods::{self, is_extended_limit},
};

const CLAIMS: &str = "count/resourceclaims.resource.k8s.io";
/// Behind the name of a class of devices.
const DEVICES: &str = ".deviceclass.resource.k8s.io/devices";
/// The annotation of a claim that was created for a pod's extended resources.
const OF_EXTENDED: &str = "resource.kubernetes.io/extended-resource-claim";
/// Devices of an allocation at most: a request for all devices is charged for this number.
const ALLOCATION_MAX: i64 = 32;

/// Whether a limit may be about claims to devices, whatever classes exist.
pub(super) fn may_be_limit(limit: &str) -> bool {
    limit == CLAIMS || limit.ends_with(DEVICES) || is_extended_limit(limit)
}

/// The device classes, with their extended resources.
#[derive(Default)]
pub(super) struct Classes {
    /// By class; `None` for classes without an explicit extended resource.
    extended: BTreeMap<Str, Option<String>>,
}

impl Classes {
    /// As they are, where a limit needs them.
    pub(super) fn read(limits: &[&Str], seen: &Snapshot<'_>, gates: Gates) -> Self {
        if !gates.extended_resources || !limits.iter().any(|limit| may_be_limit(limit)) {
            return Self::default();
        }
        let classes = seen.all::<DeviceClass>();
        let extended = classes.iter().map(|class| {
            let spec = class.spec.as_ref();
            let resource = spec.and_then(|spec| spec.extended_resource_name.clone());
            let resource = resource.filter(|name| !name.is_empty());
            (Object::metadata(&**class).name.clone(), resource)
        });
        Self {
            extended: extended.collect(),
        }
    }

    /// Whether a limit is about claims.
    pub(super) fn is_limit(&self, limit: &str) -> bool {
        if limit == CLAIMS || limit.ends_with(DEVICES) {
            return true;
        }
        if let Some(class) = limit.strip_prefix(IMPLICIT) {
            return self.extended.contains_key(class);
        }
        is_extended_limit(limit)
            && limit.strip_prefix(names::REQUESTS).is_some_and(|resource| {
                self.extended
                    .values()
                    .any(|known| known.as_deref() == Some(resource))
            })
    }

    /// What a claim is charged, by limit.
    pub(super) fn usage(
        &self,
        claim: &ResourceClaim,
        seen: &Snapshot<'_>,
        gates: Gates,
    ) -> Vec<(Str, Exact)> {
        let mut usage = vec![(Str::interned(CLAIMS), Exact::of_count(1))];
        let devices = devices(claim);
        let pod = pod_of(claim, seen).filter(|_| gates.extended_resources);
        for (class, count) in devices {
            let count = Exact::of_count(count);
            usage.push((Str::from(format!("{class}{DEVICES}")), count));
            if !gates.extended_resources {
                continue;
            }
            let mut limits = vec![format!("{IMPLICIT}{class}")];
            let resource = self.extended.get(class).and_then(Option::as_deref);
            limits.extend(resource.map(|resource| format!("{}{resource}", names::REQUESTS)));
            for limit in limits {
                let charged = pod
                    .as_deref()
                    .filter(|pod| pods::lives(pod, seen.now))
                    .zip(pods::charge(&limit))
                    .map_or(Exact::default(), |(pod, charge)| {
                        pods::usage(pod, &charge, gates)
                    });
                // Usage that the pod is charged for is not charged twice.
                let rest = count.less(charged);
                if rest.exceeds(Exact::default()) {
                    usage.push((Str::from(limit), rest));
                }
            }
        }
        usage
    }
}

/// The most devices of each class that a claim may take.
fn devices(claim: &ResourceClaim) -> BTreeMap<&str, i64> {
    let mut devices = BTreeMap::new();
    let asked = claim.spec.as_ref().and_then(|spec| spec.devices.as_ref());
    for request in asked.iter().flat_map(|asked| &asked.requests) {
        for (class, count) in of_request(request) {
            let sum: &mut i64 = devices.entry(class).or_default();
            *sum = sum.saturating_add(count);
        }
    }
    devices
}

/// The most devices of each class that one request may take: of alternatives, the largest.
fn of_request(request: &DeviceRequest) -> BTreeMap<&str, i64> {
    fn number(mode: &str, count: i64) -> i64 {
        match mode {
            "ExactCount" => count,
            "All" => ALLOCATION_MAX,
            _ => 0,
        }
    }
    let mut most = BTreeMap::new();
    if !request.first_available.is_empty() {
        for one in &request.first_available {
            let count = number(&one.allocation_mode, one.count);
            if count > 0 {
                let most: &mut i64 = most.entry(&*one.device_class_name).or_default();
                *most = (*most).max(count);
            }
        }
    } else if let Some(exactly) = &request.exactly {
        let count = number(&exactly.allocation_mode, exactly.count);
        most.insert(&*exactly.device_class_name, count);
    }
    most
}

/// The pod that a claim was created for, to give it its extended resources, if the claim is the pod's.
fn pod_of(claim: &ResourceClaim, seen: &Snapshot<'_>) -> Option<std::sync::Arc<Pod>> {
    let meta = Object::metadata(claim);
    let (name, uid) = extended_owner(meta)?;
    let pod = seen
        .get::<Pod>(&Key::new(meta.namespace.clone(), name.clone()))
        .filter(|pod| Object::metadata(&**pod).uid == *uid)?;
    let stated = pod
        .status
        .as_ref()
        .and_then(|status| status.extended_resource_claim_status.as_ref());
    let is_its = match stated {
        Some(stated) => *stated.resource_claim_name == *meta.name,
        // The first one is, as long as the pod's status names none.
        None => !seen.owned_by::<ResourceClaim>(uid).iter().any(|other| {
            let other = Object::metadata(&**other);
            let (ours, theirs) = (meta.creation_timestamp, other.creation_timestamp);
            extended_owner(other).is_some() && (theirs, &other.name) < (ours, &meta.name)
        }),
    };
    is_its.then_some(pod)
}

/// The pod whose extended resources a claim is for, by name and uid.
fn extended_owner(meta: &ObjectMeta) -> Option<(&Str, &Str)> {
    let owner = meta.controller()?;
    let is_pod = &*owner.kind == "Pod" && &*owner.api_version == "v1";
    let is_extended = meta.annotation(OF_EXTENDED) == Some("true");
    (is_pod && is_extended).then_some((&owner.name, &owner.uid))
}
