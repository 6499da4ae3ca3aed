//! What claims, volumes and classes say: the API's names, and the comparisons that upstream makes.

use std::sync::OnceLock;

use controllers_kit::{Key, Snapshot};
use kubernetes_proto::{
    Object,
    core::{
        Amount, ObjectReference, PersistentVolume, PersistentVolumeClaim,
        PersistentVolumeClaimSpec, PersistentVolumeSpec,
    },
    meta,
    quantity::{Exact, Quantity},
    storage::StorageClass,
};

pub(super) const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
pub(super) const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
pub(super) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
pub(super) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
pub(super) const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";
pub(super) const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
pub(super) const BETA_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
pub(super) const PRE_RESIZE: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";
const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
const DEFAULT_CLASS: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];

/// Phases of claims and volumes.
pub(super) const PENDING: &str = "Pending";
pub(super) const BOUND: &str = "Bound";
pub(super) const LOST: &str = "Lost";
pub(super) const AVAILABLE: &str = "Available";
pub(super) const RELEASED: &str = "Released";
pub(super) const FAILED: &str = "Failed";

const STORAGE: &str = "storage";

pub(super) fn claim_spec(claim: &PersistentVolumeClaim) -> &PersistentVolumeClaimSpec {
    static NONE: OnceLock<PersistentVolumeClaimSpec> = OnceLock::new();
    let none = || NONE.get_or_init(Default::default);
    claim.spec.as_ref().unwrap_or_else(none)
}

pub(super) fn volume_spec(volume: &PersistentVolume) -> &PersistentVolumeSpec {
    static NONE: OnceLock<PersistentVolumeSpec> = OnceLock::new();
    let none = || NONE.get_or_init(Default::default);
    volume.spec.as_ref().unwrap_or_else(none)
}

pub(super) fn claim_phase(claim: &PersistentVolumeClaim) -> &str {
    claim.status.as_ref().map_or("", |status| &status.phase)
}

pub(super) fn volume_phase(volume: &PersistentVolume) -> &str {
    volume.status.as_ref().map_or("", |status| &status.phase)
}

/// Whether only its reclaim is left of a volume's life.
pub(super) fn is_over(volume: &PersistentVolume) -> bool {
    matches!(volume_phase(volume), RELEASED | FAILED)
}

pub(super) fn annotation<'a, T: Object>(object: &'a T, name: &str) -> Option<&'a str> {
    Object::metadata(object).annotation(name)
}

pub(super) fn has<T: Object>(object: &T, name: &str) -> bool {
    annotation(object, name).is_some()
}

/// The class that a claim names, even an empty one; `None` where it leaves the choice to the cluster.
pub(super) fn named_class(claim: &PersistentVolumeClaim) -> Option<&str> {
    annotation(claim, BETA_CLASS).or(claim_spec(claim).storage_class_name.as_deref())
}

pub(super) fn claim_class(claim: &PersistentVolumeClaim) -> &str {
    named_class(claim).unwrap_or_default()
}

pub(super) fn volume_class(volume: &PersistentVolume) -> &str {
    annotation(volume, BETA_CLASS).unwrap_or(&volume_spec(volume).storage_class_name)
}

pub(super) fn claim_attributes(claim: &PersistentVolumeClaim) -> &str {
    let name = &claim_spec(claim).volume_attributes_class_name;
    name.as_deref().unwrap_or_default()
}

pub(super) fn volume_attributes(volume: &PersistentVolume) -> &str {
    let name = &volume_spec(volume).volume_attributes_class_name;
    name.as_deref().unwrap_or_default()
}

fn mode(named: Option<&str>) -> &str {
    named.unwrap_or("Filesystem")
}

pub(super) fn volume_mode(volume: &PersistentVolume) -> &str {
    mode(volume_spec(volume).volume_mode.as_deref())
}

pub(super) fn modes_differ(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    mode(claim_spec(claim).volume_mode.as_deref()) != volume_mode(volume)
}

/// Whether a volume supports all access modes of a claim.
pub(super) fn gives_access(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let given = &volume_spec(volume).access_modes;
    let mut wanted = claim_spec(claim).access_modes.iter();
    wanted.all(|mode| given.contains(mode))
}

/// How much storage a list of amounts names.
pub(super) fn storage(amounts: &[Amount]) -> Option<&Quantity> {
    let found = amounts.iter().find(|amount| *amount.key == *STORAGE)?;
    found.value.as_ref()
}

pub(super) fn with_storage(amounts: &mut Vec<Amount>, size: Quantity) {
    amounts.retain(|amount| *amount.key != *STORAGE);
    amounts.push(Amount {
        key: STORAGE.into(),
        value: Some(size),
    });
    amounts.sort_by(|one, other| one.key.cmp(&other.key));
}

pub(super) fn size(volume: &PersistentVolume) -> Exact {
    let named = storage(&volume_spec(volume).capacity);
    named.and_then(Quantity::exact).unwrap_or_default()
}

pub(super) fn requested(claim: &PersistentVolumeClaim) -> Exact {
    let resources = claim_spec(claim).resources.as_ref();
    let named = resources.and_then(|resources| storage(&resources.requests));
    named.and_then(Quantity::exact).unwrap_or_default()
}

/// The claim that a volume points at.
pub(super) fn claim_ref(volume: &PersistentVolume) -> Option<&ObjectReference> {
    volume_spec(volume).claim_ref.as_ref()
}

/// Whether a volume refers to a claim: by name, and by uid where it has one.
pub(super) fn points_at(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let meta = Object::metadata(claim);
    claim_ref(volume).is_some_and(|to| {
        *to.name == *meta.name
            && *to.namespace == *meta.namespace
            && (to.uid.is_empty() || *to.uid == *meta.uid)
    })
}

/// The key in which a volume is planned: that of the claim that it refers to, so that both sides of a
/// binding are decided in one place; its own without a reference to a possible claim.
pub(super) fn key_of(volume: &PersistentVolume) -> Key {
    match claim_ref(volume) {
        Some(to) if !to.namespace.is_empty() && !to.name.is_empty() => {
            Key::new(to.namespace.as_str(), to.name.as_str())
        }
        _ => Key::of(volume),
    }
}

/// Whether a claim has no volume and asks for none by name.
pub(super) fn is_unbound(claim: &PersistentVolumeClaim) -> bool {
    !has(claim, BIND_COMPLETED) && claim_spec(claim).volume_name.is_empty()
}

/// The newest default class; of equally old ones the first by name.
pub(super) fn default_class(seen: &Snapshot<'_>) -> Option<String> {
    let marked = |class: &StorageClass| {
        let mut names = DEFAULT_CLASS.iter();
        names.any(|name| annotation(class, name) == Some("true"))
    };
    let mut classes = seen.all::<StorageClass>();
    classes.retain(|class| marked(class));
    classes.sort_by(|one, other| {
        let made = |class: &StorageClass| {
            let at = Object::metadata(class).creation_timestamp;
            at.map(|at| at.timestamp())
        };
        let name = |class: &StorageClass| Object::metadata(class).name.clone();
        (made(other), name(one)).cmp(&(made(one), name(other)))
    });
    let class = classes.first()?;
    Some(Object::metadata(&**class).name.to_string())
}

pub(super) fn without_annotation<T: Object>(object: &mut T, name: &str) -> bool {
    meta::remove(&mut object.metadata_mut().annotations, name)
}
