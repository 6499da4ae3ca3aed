//! The graph of owners and dependents, read from the caches: nothing of it is held a second time.

use controllers_kit::{
    AnyObject, DynChange, Entry, Index, Key, Reader, Resource, Standing, Str, catalogue::Catalogue,
};
use kubernetes_proto::meta::{ObjectMeta, OwnerReference};

use super::key;

/// The finalizer of a deletion that waits for dependents.
pub(super) const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer of a deletion that orphans dependents.
pub(super) const ORPHAN: &str = "orphan";

pub(super) fn has(meta: &ObjectMeta, finalizer: &str) -> bool {
    meta.finalizers.iter().any(|held| **held == *finalizer)
}

/// Whether an object is being deleted and waits for its dependents to go first.
pub(super) fn waits_for_dependents(meta: &ObjectMeta) -> bool {
    meta.is_terminating() && has(meta, FOREGROUND) && !has(meta, ORPHAN)
}

/// Whether a resource takes part in the graph. Events are numerous, and do not own anything.
pub(super) fn takes_part(entry: &Entry) -> bool {
    !is_event(entry.resource) && entry.can(&["list", "watch", "delete"])
}

fn is_event(resource: &Resource) -> bool {
    resource.plural == "events" && matches!(resource.group, "" | "events.k8s.io")
}

/// The resources of the graph. Those of a group version whose discovery fails stay in it, as their caches do:
/// their objects can't be written now, but they depend on their owners all the same.
pub(super) fn resources(catalogue: &Catalogue) -> impl Iterator<Item = &'static Resource> {
    let stale = catalogue.stale().iter().filter(|entry| takes_part(entry));
    catalogue
        .deletable()
        .chain(stale)
        .map(|entry| entry.resource)
        .filter(|resource| !is_event(resource))
}

/// Why the discovery of a resource's group version fails; `None` where its objects can be written.
pub(super) fn unwritable<'a>(catalogue: &'a Catalogue, resource: &Resource) -> Option<&'a Str> {
    match catalogue.preferred(resource) {
        Some(_) => None,
        None => catalogue.failures.get(&*resource.api_version()),
    }
}

/// Whether an object can be the dependent of an owner by scope: a namespaced owner owns in its namespace.
pub(super) fn in_reach(owner: &ObjectMeta, dependent: &ObjectMeta) -> bool {
    owner.namespace.is_empty() || owner.namespace == dependent.namespace
}

/// All objects that name a uid as one of their owners.
pub(super) fn dependents(reader: &dyn Reader, catalogue: &Catalogue, uid: &str) -> Vec<AnyObject> {
    resources(catalogue)
        .flat_map(|resource| reader.indexed(resource, Index::DEPENDENTS, uid))
        .collect()
}

/// Whether a reference keeps its owner from being deleted before the dependent, where the owner waits.
pub(super) fn blocks(reference: &OwnerReference) -> bool {
    reference.block_owner_deletion == Some(true)
}

/// Whether an object keeps an owner that waits for its dependents.
pub(super) fn keeps(dependent: &AnyObject, uid: &Str) -> bool {
    let mut owners = dependent.metadata().owner_references.iter();
    owners.any(|reference| reference.uid == *uid && blocks(reference))
}

/// Where to find an owner.
pub(super) enum Place {
    /// In a resource, under a key.
    At(&'static Resource, Key),
    /// Nowhere yet: the kind is not served, as far as is known.
    Unknown,
    /// Nowhere ever: a cluster-scoped object can't have a namespaced owner.
    Impossible,
}

/// Where to find the owner that a reference names, seen from its dependent.
pub(super) fn place(
    catalogue: &Catalogue,
    reference: &OwnerReference,
    dependent: &ObjectMeta,
) -> Place {
    let Some(entry) = catalogue.by_kind(&reference.api_version, &reference.kind) else {
        return Place::Unknown;
    };
    let name = reference.name.clone();
    if !entry.resource.namespaced {
        Place::At(entry.resource, Key::cluster(name))
    } else if dependent.namespace.is_empty() {
        Place::Impossible
    } else {
        let namespace = dependent.namespace.clone();
        Place::At(entry.resource, Key::new(namespace, name))
    }
}

/// The owner that a reference names, if the caches have it.
pub(super) fn owner(
    reader: &dyn Reader,
    catalogue: &Catalogue,
    reference: &OwnerReference,
    dependent: &ObjectMeta,
) -> Option<AnyObject> {
    let Place::At(resource, key) = place(catalogue, reference, dependent) else {
        return None;
    };
    catalogue.find(resource.group, resource.plural)?;
    reader
        .get(resource, &key.namespace, &key.name)
        .filter(|owner| owner.metadata().uid == reference.uid)
}

/// Names the keys that a change wakes.
pub(super) fn wake(change: DynChange<'_>, reader: &dyn Reader, name: &mut dyn FnMut(Key)) {
    let catalogue = reader.catalogue();
    let old = change.old.map(|object| object.metadata());
    let Some(object) = change.new else {
        if let Some(object) = change.old {
            gone(object, reader, &catalogue, name);
        }
        return;
    };
    let new = object.metadata();
    let same = old.is_some_and(|old| {
        old.owner_references == new.owner_references
            && old.finalizers == new.finalizers
            && old.is_terminating() == new.is_terminating()
    });
    if same {
        return;
    }
    let waits = waits_for_dependents(new);
    let acts = if new.is_terminating() {
        waits || has(new, ORPHAN)
    } else {
        is_questionable(new, reader, &catalogue)
    };
    if acts {
        name(key::of(&**object));
    }
    if waits && !old.is_some_and(waits_for_dependents) {
        for dependent in dependents(reader, &catalogue, &new.uid) {
            name(key::of(&*dependent));
        }
    }
    // An owner that waits may wait no longer.
    for reference in old.iter().flat_map(|old| &old.owner_references) {
        let still = new
            .owner_references
            .iter()
            .any(|held| held.uid == reference.uid && blocks(held));
        if blocks(reference) && !still {
            wake_waiting_owner(reference, new, reader, &catalogue, name);
        }
    }
}

/// An object has gone: wakes its dependents, and the owners that waited for it.
fn gone(object: &AnyObject, reader: &dyn Reader, catalogue: &Catalogue, name: &mut dyn FnMut(Key)) {
    let meta = object.metadata();
    for dependent in dependents(reader, catalogue, &meta.uid) {
        name(key::of(&*dependent));
    }
    for reference in &meta.owner_references {
        wake_waiting_owner(reference, meta, reader, catalogue, name);
    }
}

fn wake_waiting_owner(
    reference: &OwnerReference,
    dependent: &ObjectMeta,
    reader: &dyn Reader,
    catalogue: &Catalogue,
    name: &mut dyn FnMut(Key),
) {
    if let Some(owner) = owner(reader, catalogue, reference, dependent)
        && waits_for_dependents(owner.metadata())
    {
        name(key::of(&*owner));
    }
}

/// Whether some owners of an object are missing from the caches. While the owners' resource is still being
/// listed this is unknown; when the list is complete, everything is scanned again.
fn is_questionable(meta: &ObjectMeta, reader: &dyn Reader, catalogue: &Catalogue) -> bool {
    meta.owner_references
        .iter()
        .any(|reference| match place(catalogue, reference, meta) {
            Place::Impossible => false,
            Place::Unknown => true,
            Place::At(resource, _) => match owner(reader, catalogue, reference, meta) {
                Some(owner) => waits_for_dependents(owner.metadata()),
                None => reader.standing(resource) != Standing::Listing,
            },
        })
}
