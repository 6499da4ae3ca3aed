//! What claims to volumes are charged for.

use kubernetes_proto::{Object, core::PersistentVolumeClaim, quantity::Exact};

use super::context::{Scope, amount};

const CLAIMS: &str = "persistentvolumeclaims";
const STORAGE: &str = "requests.storage";
/// The separator between a storage class's name and the limited resource.
const OF_CLASS: &str = ".storageclass.storage.k8s.io/";
/// Names a claim's class before its field does.
const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

/// Whether a limit is about claims.
pub(super) fn is_limit(limit: &str) -> bool {
    limit == "count/persistentvolumeclaims" || matches!(parts(limit), (_, CLAIMS | STORAGE))
}

/// The storage class of a limit, if it has one, and the limited resource.
fn parts(limit: &str) -> (Option<&str>, &str) {
    for what in [CLAIMS, STORAGE] {
        let class = limit
            .strip_suffix(what)
            .and_then(|rest| rest.strip_suffix(OF_CLASS));
        if let Some(class) = class {
            return (Some(class), what);
        }
    }
    (None, limit)
}

/// What a claim is charged.
pub(super) fn usage(claim: &PersistentVolumeClaim, limit: &str) -> Exact {
    let (class, what) = parts(limit);
    if class.is_some_and(|class| class.is_empty() || class != class_of(claim)) {
        return Exact::default();
    }
    match what {
        STORAGE => storage(claim).unwrap_or_default(),
        _ => Exact::of_count(1),
    }
}

fn class_of(claim: &PersistentVolumeClaim) -> &str {
    let annotated = Object::metadata(claim).annotation(CLASS_ANNOTATION);
    let field = || {
        let spec = claim.spec.as_ref();
        spec.and_then(|spec| spec.storage_class_name.as_deref())
    };
    annotated.or_else(field).unwrap_or_default()
}

/// The bytes that a claim takes: its request or, while a larger size that failed is taken back, the
/// allocated size.
fn storage(claim: &PersistentVolumeClaim) -> Option<Exact> {
    let resources = claim.spec.as_ref()?.resources.as_ref()?;
    let asked = amount(&resources.requests, "storage")?.whole();
    let status = claim.status.as_ref();
    let set_aside = status.and_then(|status| amount(&status.allocated_resources, "storage"));
    Some(match set_aside {
        Some(set_aside) if set_aside.exceeds(asked) => set_aside.whole(),
        _ => asked,
    })
}

/// The attributes classes that a claim has, changes to or requests.
fn attributes(claim: &PersistentVolumeClaim) -> Vec<&str> {
    let asked = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.volume_attributes_class_name.as_deref());
    let status = claim.status.as_ref();
    let current = status.and_then(|status| status.current_volume_attributes_class_name.as_deref());
    let target = status
        .and_then(|status| status.modify_volume_status.as_ref())
        .map(|modify| &*modify.target_volume_attributes_class_name);
    let mut names: Vec<&str> = [asked, current, target]
        .into_iter()
        .flatten()
        .filter(|name| !name.is_empty())
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Whether a claim fulfils a condition.
pub(super) fn matches(claim: &PersistentVolumeClaim, scope: &Scope<'_>) -> bool {
    scope.name == "VolumeAttributesClass" && scope.selects(attributes(claim).into_iter())
}

/// Whether a change of a claim can lower its charge.
pub(super) fn frees(old: &PersistentVolumeClaim, new: &PersistentVolumeClaim) -> bool {
    let bytes = |claim: &PersistentVolumeClaim| storage(claim).unwrap_or_default();
    old.spec != new.spec
        || class_of(old) != class_of(new)
        || attributes(old) != attributes(new)
        || !bytes(old).equals(bytes(new))
}
