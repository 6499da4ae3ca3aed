//! Keeps a VolumeAttributesClass that is being deleted as long as a volume or a claim has it, by a finalizer.
//!
//! Watches volumeattributesclasses, persistentvolumes and persistentvolumeclaims; patches the finalizer
//! `kubernetes.io/vac-protection`; a key per class; remembers nothing. Invariant: the finalizer of a class is
//! removed only when the caches are proven to hold every volume and claim that there was when the class was
//! already being deleted, and none of them names it.

use controllers_kit::{
    Change, Controller, Descriptor, Flags, Key, Plan, Query, Reader, Refusal, Resource, Sharding,
    Snapshot, Str, Watches, finalizers,
};
use kubernetes_proto::{
    Object,
    core::{PersistentVolume, PersistentVolumeClaim},
    storage::VolumeAttributesClass,
};

/// The finalizer.
const FINALIZER: &str = "kubernetes.io/vac-protection";
/// The index of volumes and of claims by each class that they name.
const BY_CLASS: &str = "attributes class";

/// The controller.
pub struct ClassProtection;

/// What the removal of a finalizer rests on.
fn barriers() -> [&'static Resource; 2] {
    [
        PersistentVolume::resource(),
        PersistentVolumeClaim::resource(),
    ]
}

fn distinct<'a>(names: impl IntoIterator<Item = Option<&'a str>>) -> Vec<Str> {
    let names = names.into_iter().flatten().filter(|name| !name.is_empty());
    let mut names: Vec<Str> = names.map(Str::from).collect();
    names.sort();
    names.dedup();
    names
}

/// The class of a volume.
fn of_volume(volume: &PersistentVolume) -> Vec<Str> {
    let spec = volume.spec.as_ref();
    distinct([spec.and_then(|spec| spec.volume_attributes_class_name.as_deref())])
}

/// The classes that a claim requests, has and changes to.
fn of_claim(claim: &PersistentVolumeClaim) -> Vec<Str> {
    let (spec, status) = (claim.spec.as_ref(), claim.status.as_ref());
    let change = status.and_then(|status| status.modify_volume_status.as_ref());
    distinct([
        spec.and_then(|spec| spec.volume_attributes_class_name.as_deref()),
        status.and_then(|status| status.current_volume_attributes_class_name.as_deref()),
        change.map(|change| &*change.target_volume_attributes_class_name),
    ])
}

/// The classes that an object no longer names.
fn left<T>(change: &Change<'_, T>, names: fn(&T) -> Vec<Str>) -> Vec<Key> {
    let still = change.new.map(names).unwrap_or_default();
    let before = change.old.map(names).unwrap_or_default().into_iter();
    let gone = before.filter(|name| !still.contains(name));
    gone.map(Key::cluster).collect()
}

/// Whether anything of the cache names a class.
fn is_used(class: &VolumeAttributesClass, seen: &Snapshot<'_>) -> bool {
    let name = &class.metadata().name;
    !seen.indexed::<PersistentVolume>(BY_CLASS, name).is_empty()
        || !seen
            .indexed::<PersistentVolumeClaim>(BY_CLASS, name)
            .is_empty()
}

impl Controller for ClassProtection {
    type Memory = ();

    fn describe() -> Descriptor {
        Descriptor::new(
            "volumeattributesclass-protection-controller",
            Sharding::ByObject,
        )
        .queue("vacprotection")
        .rule("", "persistentvolumeclaims", &["list", "watch"])
        .rule("", "persistentvolumes", &["list", "watch"])
        .rule(
            "storage.k8s.io",
            "volumeattributesclasses",
            &["list", "watch", "patch"],
        )
        .differences(include_str!("differences.md"))
    }

    fn new(_: &Flags) -> Self {
        Self
    }

    fn watch(&self, on: &mut Watches) {
        on.kind::<VolumeAttributesClass>()
            .where_served()
            .wakes(|change, _: &dyn Reader| finalizers::wakes(change.new, FINALIZER));
        on.kind::<PersistentVolume>()
            .indexed_by(BY_CLASS, of_volume)
            .wakes(|change, _| left(change, of_volume));
        on.kind::<PersistentVolumeClaim>()
            .indexed_by(BY_CLASS, of_claim)
            .wakes(|change, _| left(change, of_claim));
    }

    fn ask(&self, key: &Key, seen: &Snapshot<'_>, (): &()) -> Vec<Query> {
        let class = seen.get::<VolumeAttributesClass>(key);
        let may_go = class.is_some_and(|class| {
            finalizers::is_candidate(&*class, FINALIZER) && !is_used(&class, seen)
        });
        match may_go {
            true => finalizers::barriers(&barriers()),
            false => Vec::new(),
        }
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, (): &mut ()) -> Result<Plan, Refusal> {
        let mut plan = Plan::nothing();
        let Some(class) = seen.get::<VolumeAttributesClass>(key) else {
            return Ok(plan);
        };
        if finalizers::is_missing(&*class, FINALIZER) {
            finalizers::add(&mut plan, &*class, FINALIZER);
        } else if finalizers::is_candidate(&*class, FINALIZER) && !is_used(&class, seen) {
            // Irreversible. Verified immediately before: the class was seen to be terminating before the
            // versions of volumes and claims were asked for; the caches hold all of them up to these
            // (strict proofs), and none names the class. The class's uid and version are the patch's
            // preconditions.
            if !finalizers::rest_on(&mut plan, seen, &barriers(), &Str::default())? {
                return Ok(Plan::nothing().requeued_at(seen.now));
            }
            finalizers::remove(&mut plan, &*class, FINALIZER);
        }
        Ok(plan)
    }
}

#[cfg(test)]
pub(crate) mod tests;
