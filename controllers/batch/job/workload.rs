//! The Workload and the PodGroup of a Job whose pods are scheduled all or none (gate WorkloadWithJob).
//!
//! Both are made before the first pod, each in a plan of its own, and only for a Job that has never started:
//! a Job from before the gate runs on without them. Their names follow from the Job's uid as upstream's do,
//! so that either implementation finds what the other has made, and a second creation collides.

use std::sync::Arc;

use controllers_kit::{
    Change, Event, Key, Plan, Snapshot, conditions,
    names::{self, NAME_LENGTH_MAX},
    owners,
    selectors::Selector,
};
use kubernetes_proto::{
    Object, Shared, Str,
    batch::Job,
    core::Pod,
    meta::{ObjectMeta, OwnerReference},
    scheduling::{
        GangSchedulingPolicy, PodGroup, PodGroupSchedulingPolicy, PodGroupSpec, PodGroupTemplate,
        PodGroupTemplateReference, TypedLocalObjectReference, Workload,
        WorkloadPodGroupTemplateReference, WorkloadSpec,
    },
};

use super::context::Wanted;

/// The gate.
pub(super) const GATE: &str = "WorkloadWithJob";
/// The index of Workloads by the `namespace/name` of the Job that they name.
pub(super) const BY_JOB: &str = "workloads of a job";
/// The index of PodGroups by the `namespace/name` of the Workload that they were made from.
pub(super) const BY_WORKLOAD: &str = "pod groups of a workload";

/// The key of the Job that a Workload names.
fn job_of(workload: &Workload) -> Option<Key> {
    let named = workload.spec.as_ref()?.controller_ref.as_ref()?;
    let is_job = named.api_group == Job::resource().group
        && named.kind == Job::resource().kind
        && !named.name.is_empty();
    is_job.then(|| Key::new(workload.metadata().namespace.clone(), &*named.name))
}

/// The values of [`BY_JOB`].
pub(super) fn by_job(workload: &Workload) -> Vec<Str> {
    let job = job_of(workload);
    job.map(|key| key.to_string().into()).into_iter().collect()
}

/// The values of [`BY_WORKLOAD`].
pub(super) fn by_workload(group: &PodGroup) -> Vec<Str> {
    let template = (group.spec.as_ref()).and_then(|spec| spec.pod_group_template_ref.as_ref());
    let workload = template.and_then(|template| template.workload.as_ref());
    let named = workload.filter(|workload| !workload.workload_name.is_empty());
    let namespace = &group.metadata().namespace;
    named
        .map(|named| format!("{namespace}/{}", named.workload_name).into())
        .into_iter()
        .collect()
}

/// The Jobs that a Workload named or names: a failed creation need not wait for its back-off.
pub(super) fn wakes(change: &Change<'_, Workload>, _: &dyn controllers_kit::Reader) -> Vec<Key> {
    let mut keys: Vec<Key> = change.both().filter_map(job_of).collect();
    keys.dedup();
    keys
}

/// Whether a Job's pods are scheduled together: as many as it has indexes, all at once, at least two, and in
/// no group already.
fn is_candidate(wanted: &Wanted<'_>) -> bool {
    let template = wanted.spec.template.as_ref();
    let has_group = template
        .is_some_and(|template| controllers_kit::podspec::containers::has_group(&template.spec));
    wanted.indexed
        && wanted.spec.parallelism.is_some_and(|count| count > 1)
        && wanted.spec.completions == wanted.spec.parallelism
        && !has_group
}

/// Whether a Job has never started. Each sign alone has gaps: pods are cleared away, the start is reset by a
/// suspension.
fn is_new(job: &Job, pods: &[Arc<Pod>]) -> bool {
    let status = job.status.clone().unwrap_or_default();
    pods.is_empty()
        && status.start_time.is_none()
        && (status.succeeded, status.failed) == (0, 0)
        && conditions::find(&status.conditions, "Suspended").is_none()
}

/// What a Job's pods are to be scheduled with.
#[derive(Debug)]
pub(super) enum Ensured {
    /// Each by itself.
    Nothing,
    /// The PodGroup of this name.
    Group(Str),
    /// Something has to be made first.
    First(Plan),
}

/// Finds the Workload and the PodGroup of a Job, or plans the creation of the one that comes next. More than
/// one of a kind, one of somebody else, or a Workload with several templates is left alone, and the pods are
/// scheduled each by itself, as upstream does it.
pub(super) fn ensure(
    job: &Job,
    wanted: &Wanted<'_>,
    pods: &[Arc<Pod>],
    seen: &Snapshot<'_>,
) -> Ensured {
    if !is_candidate(wanted) || job.is_terminating() {
        return Ensured::Nothing;
    }
    let uid = &*job.metadata().uid;
    let workloads = seen.indexed::<Workload>(BY_JOB, &Key::of(job).to_string());
    let workload = match &workloads[..] {
        [] if is_new(job, pods) => return Ensured::First(create_workload(job)),
        [one] if owners::is_controlled_by(one.metadata(), uid) => one,
        _ => return Ensured::Nothing,
    };
    let templates = workload
        .spec
        .as_ref()
        .map(|spec| &spec.pod_group_templates[..]);
    let Some([template]) = templates else {
        return Ensured::Nothing;
    };
    let groups = seen.indexed::<PodGroup>(BY_WORKLOAD, &Key::of(&**workload).to_string());
    match &groups[..] {
        [] => Ensured::First(create_group(job, workload, template)),
        [one] if owners::is_controlled_by(one.metadata(), uid) => {
            Ensured::Group(one.metadata().name.clone())
        }
        _ => Ensured::Nothing,
    }
}

fn create_workload(job: &Job) -> Plan {
    let meta = job.metadata();
    let count = job.spec.as_ref().and_then(|spec| spec.parallelism);
    let name = workload_name(&meta.name, &meta.uid);
    let mut plan = Plan::nothing();
    // Its absence is decided by the cache: after a takeover the node compares it with a live list.
    plan.counted::<Workload>(&meta.namespace, &Selector::of_labels(&[]));
    plan.create(&Workload {
        metadata: Some(ObjectMeta {
            name: name.as_str().into(),
            namespace: meta.namespace.clone(),
            owner_references: vec![owners::reference(job)],
            ..ObjectMeta::default()
        }),
        spec: Some(WorkloadSpec {
            controller_ref: Some(TypedLocalObjectReference {
                api_group: Job::resource().group.to_owned(),
                kind: Job::resource().kind.to_owned(),
                name: meta.name.to_string(),
            }),
            pod_group_templates: vec![PodGroupTemplate {
                name: format!("{}-pgt-0", meta.name),
                scheduling_policy: Some(PodGroupSchedulingPolicy {
                    basic: None,
                    gang: Some(GangSchedulingPolicy {
                        min_count: count.unwrap_or_default(),
                    }),
                }),
            }],
        }),
    })
    .announce(Event::normal(
        job,
        "WorkloadCreated",
        format!("Created Workload {name} for Job {}", meta.name),
    ));
    plan.requeue_now();
    plan
}

fn create_group(job: &Job, workload: &Workload, template: &PodGroupTemplate) -> Plan {
    let meta = job.metadata();
    let from = workload.metadata();
    let resource = Workload::resource();
    let mut plan = Plan::nothing();
    plan.counted::<PodGroup>(&meta.namespace, &Selector::of_labels(&[]));
    plan.create(&PodGroup {
        metadata: Some(ObjectMeta {
            name: group_name(&from.name, &template.name).into(),
            namespace: meta.namespace.clone(),
            owner_references: vec![
                owners::reference(job),
                // The Workload's deletion does not wait for its groups.
                Shared::from(OwnerReference {
                    api_version: Str::interned(&resource.api_version()),
                    kind: Str::interned(resource.kind),
                    name: from.name.clone(),
                    uid: from.uid.clone(),
                    controller: None,
                    block_owner_deletion: None,
                }),
            ],
            ..ObjectMeta::default()
        }),
        spec: Some(PodGroupSpec {
            pod_group_template_ref: Some(PodGroupTemplateReference {
                workload: Some(WorkloadPodGroupTemplateReference {
                    workload_name: from.name.to_string(),
                    pod_group_template_name: template.name.clone(),
                }),
            }),
            scheduling_policy: template.scheduling_policy,
            resource_claims: Vec::new(),
        }),
        status: None,
    });
    plan.requeue_now();
    plan
}

/// `<job>-<hash of its uid>`; upstream hashes the uid as Go prints it with its type.
fn workload_name(job: &str, uid: &str) -> String {
    let hash = names::fnv32a([b"(types.UID)".as_slice(), uid.as_bytes()]);
    names::with_hash(job, &names::encode_hash(hash))
}

/// `<workload>-<template>-<hash of both>`. Where that is too long, each part may have half of the room, and
/// what the other leaves.
fn group_name(workload: &str, template: &str) -> String {
    let hash = names::encode_hash(names::fnv32a([workload.as_bytes(), template.as_bytes()]));
    let room = NAME_LENGTH_MAX - hash.len() - 2;
    let half = room / 2;
    let first = room.saturating_sub(template.len()).max(room - half);
    let first = &workload[..workload.len().min(first)];
    let second = &template[..template.len().min(room - first.len())];
    format!("{first}-{second}-{hash}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_upstream_computes() {
        let uid = "0b8a1b0e-7f1c-4a34-9ac8-1d5e0ad8b3c7";
        assert_eq!(workload_name("pi", uid), "pi-8d895767f");
        let long = "j".repeat(300);
        assert_eq!(
            workload_name(&long, uid),
            format!("{}-8d895767f", "j".repeat(243))
        );
        // As kube-controller-manager 1.36.3 has named them.
        let uid = "e565647b-77d5-4fd3-9c17-066a383ed945";
        assert_eq!(workload_name("gang", uid), "gang-74bf7d5f4c");
        assert_eq!(
            group_name("gang-74bf7d5f4c", "gang-pgt-0"),
            "gang-74bf7d5f4c-gang-pgt-0-58548dccbc"
        );
        assert_eq!(
            group_name("pi-abc", "pi-pgt-0"),
            "pi-abc-pi-pgt-0-8469f59b95"
        );
    }

    #[test]
    fn long_names_share_the_room() {
        let hash = 10;
        let room = NAME_LENGTH_MAX - hash - 2;
        let half = room / 2;
        for (workload, template, wanted) in [
            (10, 10, [10, 10]),
            (250, 10, [room - 10, 10]),
            (10, 250, [10, room - 10]),
            (250, 250, [room - half, half]),
            (room - half, half, [room - half, half]),
            (room - half, 250, [room - half, half]),
            (250, half, [room - half, half]),
        ] {
            let name = group_name(&"w".repeat(workload), &"t".repeat(template));
            let (names, found) = name.rsplit_once('-').expect("a hash");
            // A hash of fewer characters leaves the rest to the parts.
            let more = if names.len() < workload + template {
                hash - found.len()
            } else {
                0
            };
            let [first, second] = ["w", "t"].map(|letter| names.matches(letter).count());
            assert!(name.len() <= NAME_LENGTH_MAX, "{name}");
            assert!((wanted[0]..=wanted[0] + more).contains(&first), "{name}");
            assert!((wanted[1]..=wanted[1] + more).contains(&second), "{name}");
        }
    }
}
