//! Finalizers that protect what is in use: added where they are missing, removed where nobody uses the object
//! any more.

use crate::{Key, PatchKind, Plan, Query, Refusal, Resource, Snapshot, StatusWrite, Str};
use kubernetes_proto::{Object, meta::ObjectMeta};
use serde_json::json;

fn is_held(meta: &ObjectMeta, finalizer: &str) -> bool {
    meta.finalizers.iter().any(|held| **held == *finalizer)
}

/// Whether an object lacks a finalizer that it should have. The API takes no new finalizers once it is being
/// deleted.
pub fn is_missing<T: Object>(object: &T, finalizer: &str) -> bool {
    let meta = object.metadata();
    !meta.is_terminating() && !is_held(meta, finalizer)
}

/// Whether an object is being deleted and waits for a finalizer to be removed.
pub fn is_candidate<T: Object>(object: &T, finalizer: &str) -> bool {
    let meta = object.metadata();
    meta.is_terminating() && is_held(meta, finalizer)
}

/// Whether a change of an object is one that its protection must act on: the object's own key.
pub fn wakes<T: Object>(object: Option<&T>, finalizer: &str) -> Vec<Key> {
    let due = |object: &&T| is_missing(*object, finalizer) || is_candidate(*object, finalizer);
    object.filter(due).map(Key::of).into_iter().collect()
}

/// Adds a finalizer to the version that was seen.
pub fn add<T: Object>(plan: &mut Plan, object: &T, finalizer: &str) {
    let mut finalizers = object.metadata().finalizers.clone();
    finalizers.push(finalizer.into());
    write(plan, object, &finalizers);
}

/// Removes a finalizer from the version that was seen. That can't be undone: the caller documents what was
/// verified.
pub fn remove<T: Object>(plan: &mut Plan, object: &T, finalizer: &str) {
    let mut finalizers = object.metadata().finalizers.clone();
    finalizers.retain(|held| **held != *finalizer);
    write(plan, object, &finalizers);
}

fn write<T: Object>(plan: &mut Plan, object: &T, finalizers: &[Str]) {
    let patch = json!({"metadata": {"finalizers": finalizers}});
    plan.patch(object, "", PatchKind::Merge, patch, StatusWrite::No);
}

/// Queries the current versions of some resources.
pub fn barriers(resources: &[&'static Resource]) -> Vec<Query> {
    let present = |resource: &&'static Resource| Query::Present { resource };
    resources.iter().map(present).collect()
}

/// Lets a plan rest on the caches of some resources being whole, in a namespace or (empty) in the cluster, as
/// of the versions that [`barriers`] has asked for: what was made before that is in what the plan was made
/// from. Whether they were asked for: where not, the plan must be made again.
///
/// # Errors
/// Where a resource could not be asked.
pub fn rest_on(
    plan: &mut Plan,
    seen: &Snapshot<'_>,
    resources: &[&'static Resource],
    namespace: &Str,
) -> Result<bool, Refusal> {
    for resource in resources {
        match seen.present(resource) {
            Some(Ok(version)) if version > 0 => {
                plan.rests_strictly_on(resource, namespace, version);
            }
            // Core resources are always served: an API server that says otherwise proves nothing.
            Some(Ok(_)) => {
                let id = resource.id();
                return Err(Refusal::Retry(format!(
                    "the API server does not serve {id}, so nothing shows that nobody uses the object"
                )));
            }
            Some(Err(why)) => {
                let id = resource.id();
                return Err(Refusal::Retry(format!("{id} could not be asked: {why}")));
            }
            None => return Ok(false),
        }
    }
    Ok(true)
}
