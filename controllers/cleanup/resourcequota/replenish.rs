//! When a quota is reckoned anew.

use controllers_kit::{AnyObject, Change, DynChange, Key, Reader, Resource};
use kubernetes_proto::{
    Object, cast,
    core::{PersistentVolumeClaim, Pod, ResourceQuota, Service},
    resource::ResourceClaim,
};

use super::{devices, names, plan::equal, pods, services, volumes};

/// A quota is reckoned when it is made and when its limits change. What else changes in it was written here or by
/// admission.
pub(super) fn limits_changed(change: &Change<'_, ResourceQuota>, _: &dyn Reader) -> Vec<Key> {
    let hard = |quota: &ResourceQuota| quota.spec.clone().unwrap_or_default().hard;
    match (change.old, change.new) {
        (Some(old), Some(new)) if equal(&hard(old), &hard(new)) => Vec::new(),
        (_, Some(new)) => vec![Key::of(new)],
        (_, None) => Vec::new(),
    }
}

/// Names the quotas that have more room after a change. What was made takes room, which admission has charged for.
pub(super) fn wake(change: DynChange<'_>, reader: &dyn Reader, name: &mut dyn FnMut(Key)) {
    let Some(old) = change.old else {
        return;
    };
    if change.new.is_some_and(|new| !frees(old, new)) {
        return;
    }
    let namespace = &old.metadata().namespace;
    for quota in reader.list(ResourceQuota::resource(), Some(namespace)) {
        let Some(quota) = cast::<ResourceQuota>(quota) else {
            continue;
        };
        // The status may be on its way: by what it says alone, this change would be missed.
        let limits = quota.spec.iter().flat_map(|spec| &spec.hard);
        if limits
            .into_iter()
            .any(|limit| is_about(&limit.key, old.resource()))
        {
            name(Key::of(&*quota));
        }
    }
}

/// Whether a limit is about a resource.
fn is_about(limit: &str, resource: &'static Resource) -> bool {
    if resource == Pod::resource() {
        pods::charge(limit).is_some()
    } else if resource == Service::resource() {
        services::is_limit(limit)
    } else if resource == PersistentVolumeClaim::resource() {
        volumes::is_limit(limit)
    } else if resource == ResourceClaim::resource() {
        devices::may_be_limit(limit)
    } else {
        names::counts(limit, resource)
    }
}

/// Whether a change can lower what an object is charged.
fn frees(old: &AnyObject, new: &AnyObject) -> bool {
    fn both<'a, T: 'static>(old: &'a AnyObject, new: &'a AnyObject) -> Option<(&'a T, &'a T)> {
        old.as_any()
            .downcast_ref::<T>()
            .zip(new.as_any().downcast_ref::<T>())
    }
    if let Some((old, new)) = both::<Pod>(old, new) {
        pods::frees(old, new)
    } else if let Some((old, new)) = both::<Service>(old, new) {
        services::frees(old, new)
    } else if let Some((old, new)) = both::<PersistentVolumeClaim>(old, new) {
        volumes::frees(old, new)
    } else {
        false
    }
}
