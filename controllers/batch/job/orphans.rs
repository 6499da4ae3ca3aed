//! Pods that nobody will count: their Job is gone or has finished, or nothing owns them. The finalizer that
//! waits for counting must go, or they would stay forever.

use std::sync::Arc;

use controllers_kit::{
    Answer, Change, Key, PatchKind, Plan, Query, Reader, Refusal, Snapshot, StatusWrite,
    conditions, selectors::Selector,
};
use kubernetes_proto::{
    Object, Str,
    batch::Job,
    cast,
    core::Pod,
    meta::{ObjectMeta, OwnerReference},
};
use serde_json::json;

use super::{TRACKING, WITH_FINALIZER};

/// The index of pods with the finalizer by `namespace/name` of their Job.
pub(super) const TRACKED: &str = "job-tracked";
/// The index of pods with the finalizer and without a controller, by namespace.
pub(super) const LOST: &str = "job-lost";

const JOB_CONTROLLER: &str = "kubernetes.io/job-controller";

/// Whether a pod still waits to be counted.
pub(super) fn is_tracked(pod: &Pod) -> bool {
    has_finalizer(Object::metadata(pod))
}

fn has_finalizer(meta: &ObjectMeta) -> bool {
    meta.finalizers.iter().any(|name| **name == *TRACKING)
}

fn is_job(owner: &OwnerReference) -> bool {
    owner.kind == *"Job" && owner.api_version == *"batch/v1"
}

/// The value of [`TRACKED`].
pub(super) fn tracked_for(pod: &Pod) -> Vec<Str> {
    let meta = Object::metadata(pod);
    match meta.controller() {
        Some(owner) if is_job(owner) && has_finalizer(meta) => {
            vec![Str::from(format!("{}/{}", meta.namespace, owner.name))]
        }
        _ => Vec::new(),
    }
}

/// The value of [`LOST`].
pub(super) fn lost_in(pod: &Pod) -> Vec<Str> {
    let meta = Object::metadata(pod);
    if meta.controller().is_none() && has_finalizer(meta) {
        vec![meta.namespace.clone()]
    } else {
        Vec::new()
    }
}

/// A pod that nothing owns has a key of its own.
pub(super) fn itself(change: &Change<'_, Pod>, _: &dyn Reader) -> Vec<Key> {
    change
        .new
        .filter(|pod| !lost_in(pod).is_empty())
        .map(Key::of)
        .into_iter()
        .collect()
}

/// A Job that no longer adopts leaves such pods alone.
pub(super) fn left_by(change: &Change<'_, Job>, reader: &dyn Reader) -> Vec<Key> {
    if change.new.is_some_and(may_adopt) {
        return Vec::new();
    }
    reader
        .indexed(
            Pod::resource(),
            LOST,
            &Object::metadata(change.newest()).namespace,
        )
        .iter()
        .map(|pod| Key::of_meta(pod.metadata()))
        .collect()
}

fn may_adopt(job: &Job) -> bool {
    !job.is_terminating() && conditions::finished(job).is_none() && manager(job).is_none()
}

/// The Job's manager, where that is another controller.
pub(super) fn manager(job: &Job) -> Option<&str> {
    job.spec
        .as_ref()?
        .managed_by
        .as_deref()
        .filter(|name| *name != JOB_CONTROLLER)
}

/// The pods whose Job is not in the cache: it is gone, or the cache has not reached it.
fn bereft(key: &Key, job: Option<&Job>, seen: &Snapshot<'_>) -> Vec<Arc<Pod>> {
    let mut pods = seen.indexed::<Pod>(TRACKED, &format!("{}/{}", key.namespace, key.name));
    pods.retain(|pod| {
        let owner = Object::metadata(&**pod).controller();
        job.is_none_or(|job| owner.is_some_and(|owner| owner.uid != Object::metadata(job).uid))
    });
    pods
}

/// The pods of a Job that has finished.
fn left_over(key: &Key, job: Option<&Job>, seen: &Snapshot<'_>) -> Vec<Arc<Pod>> {
    let finished = job.filter(|job| conditions::finished(job).is_some() && manager(job).is_none());
    let Some(job) = finished else {
        return Vec::new();
    };
    let mut pods = seen.indexed::<Pod>(TRACKED, &format!("{}/{}", key.namespace, key.name));
    pods.retain(|pod| {
        let owner = Object::metadata(&**pod).controller();
        owner.is_some_and(|owner| owner.uid == Object::metadata(job).uid)
    });
    pods
}

/// The pod of a key, if it has no owner and no Job will adopt it.
fn lost(key: &Key, seen: &Snapshot<'_>) -> Option<Arc<Pod>> {
    let pod = seen
        .get::<Pod>(key)
        .filter(|pod| !lost_in(pod).is_empty())?;
    let meta = Object::metadata(&*pod);
    let is_wanted = !meta.is_terminating()
        && seen.list::<Job>(&meta.namespace).iter().any(|job| {
            let selector = job.spec.as_ref().and_then(|spec| spec.selector.as_ref());
            may_adopt(job)
                && Selector::compile(selector).is_ok_and(|selector| selector.matches(&meta.labels))
        });
    (!is_wanted).then_some(pod)
}

fn live_job(key: &Key) -> Query {
    Query::Live {
        resource: Job::resource(),
        key: key.clone(),
    }
}

/// Whether a Job is really gone is read live: its pods may be in the cache first.
pub(super) fn ask(key: &Key, job: Option<&Job>, seen: &Snapshot<'_>) -> Option<Query> {
    (!bereft(key, job, seen).is_empty()).then(|| live_job(key))
}

/// Removes the finalizers of a key's pods that nobody will count.
///
/// # Errors
/// Where a Job has not reached the cache, or can't be read.
pub(super) fn free(key: &Key, job: Option<&Job>, seen: &Snapshot<'_>) -> Result<Plan, Refusal> {
    let mut plan = Plan::nothing();
    let mut pods = left_over(key, job, seen);
    pods.extend(lost(key, seen));
    for pod in bereft(key, job, seen) {
        let owner = Object::metadata(&*pod).controller();
        match seen.answer(&live_job(key)) {
            Some(Answer::Missing | Answer::NotFound(_)) => pods.push(pod),
            Some(Answer::Object(live)) => {
                if owner.is_some_and(|owner| live["metadata"]["uid"] == *owner.uid) {
                    return Err(Refusal::Wait(format!("Job {key} is not in the cache yet")));
                }
                pods.push(pod);
            }
            Some(Answer::Failed(why)) => {
                return Err(Refusal::Retry(format!(
                    "whether Job {key} is gone is not known: {why}"
                )));
            }
            None => {
                return Err(Refusal::Retry(format!(
                    "whether Job {key} is gone was not read"
                )));
            }
        }
    }
    for pod in pods {
        remove_finalizer(&mut plan, &pod);
    }
    Ok(plan)
}

/// Removes a pod's finalizer, whatever else has changed in it.
pub(super) fn remove_finalizer(plan: &mut Plan, pod: &Pod) {
    let patch = json!({"metadata": {
        "uid": Object::metadata(pod).uid,
        "$deleteFromPrimitiveList/finalizers": [TRACKING],
    }});
    let action = plan
        .patch(pod, "", PatchKind::Strategic, patch, StatusWrite::No)
        .whatever_version();
    if controllers_kit::pods::has_finished(pod) {
        action.measure(WITH_FINALIZER, &["delete"], 1.0);
    }
}

/// The Job of a key, as a store holds it.
pub(super) fn job_of(key: &Key, reader: &dyn Reader) -> Option<Arc<Job>> {
    reader
        .get(Job::resource(), &key.namespace, &key.name)
        .and_then(cast)
}
