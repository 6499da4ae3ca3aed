//! When a quota is recalculated.

use controllers_kit::{Change, DynChange, Key, Object, Reader, Str};
use kubernetes_proto::{
    cast,
    core::{PersistentVolumeClaim, Pod, ResourceQuota, Service},
    resource::ResourceClaim,
};

use super::{devices, names, plan::equal, pods, services, volumes};

/// A quota is calculated when it is created and when its limits change. Its other changes were written here
/// or by admission.
pub(super) fn limits_changed(change: &Change<'_, ResourceQuota>, _: &dyn Reader) -> Vec<Key> {
    let hard = |quota: &ResourceQuota| quota.spec.clone().unwrap_or_default().hard;
    match (change.old, change.new) {
        (Some(old), Some(new)) if equal(&hard(old), &hard(new)) => Vec::new(),
        (_, Some(new)) => vec![Key::of(new)],
        (_, None) => Vec::new(),
    }
}

/// Quotas on pods have more room when one is deleted, finishes or takes less.
pub(super) fn pods(change: &Change<'_, Pod>, reader: &dyn Reader) -> Vec<Key> {
    freed(change, reader, pods::frees, |limit| {
        pods::charge(limit).is_some()
    })
}

/// Quotas on Services have more room when one is deleted or takes less.
pub(super) fn services(change: &Change<'_, Service>, reader: &dyn Reader) -> Vec<Key> {
    freed(change, reader, services::frees, services::is_limit)
}

/// Quotas on claims to volumes have more room when one is deleted or takes less.
pub(super) fn volumes(change: &Change<'_, PersistentVolumeClaim>, reader: &dyn Reader) -> Vec<Key> {
    freed(change, reader, volumes::frees, volumes::is_limit)
}

/// Quotas on claims to devices have more room when one is deleted; its requests never change.
pub(super) fn devices(change: &Change<'_, ResourceClaim>, reader: &dyn Reader) -> Vec<Key> {
    freed(change, reader, |_, _| false, devices::may_be_limit)
}

/// Quotas on the number of any other objects have more room when one is deleted.
pub(super) fn objects(change: DynChange<'_>, reader: &dyn Reader, name: &mut dyn FnMut(Key)) {
    if let (Some(gone), None) = (change.old, change.new) {
        let resource = gone.resource();
        let namespace = &gone.metadata().namespace;
        about(reader, namespace, |limit| names::counts(limit, resource))
            .into_iter()
            .for_each(name);
    }
}

/// The quotas that have more room after a change. A creation takes room, which admission has charged.
fn freed<T: Object>(
    change: &Change<'_, T>,
    reader: &dyn Reader,
    frees: fn(&T, &T) -> bool,
    is_limit: fn(&str) -> bool,
) -> Vec<Key> {
    match (change.old, change.new) {
        (None, _) => Vec::new(),
        (Some(old), Some(new)) if !frees(old, new) => Vec::new(),
        (Some(old), _) => about(reader, &old.metadata().namespace, is_limit),
    }
}

/// The quotas of a namespace that have such a limit.
fn about(reader: &dyn Reader, namespace: &Str, is_limit: impl Fn(&str) -> bool) -> Vec<Key> {
    let quotas = reader.list(ResourceQuota::resource(), Some(namespace));
    quotas
        .into_iter()
        .filter_map(cast::<ResourceQuota>)
        .filter(|quota| {
            // The status may still be written: by its present content alone, this change would be missed.
            let mut limits = quota.spec.iter().flat_map(|spec| &spec.hard);
            limits.any(|limit| is_limit(&limit.key))
        })
        .map(|quota| Key::of(&*quota))
        .collect()
}
