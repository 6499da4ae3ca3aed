//! Creates the claims of pods' generic ephemeral volumes.
//!
//! Watches pods and persistentvolumeclaims; creates claims named `<pod>-<volume>`, controlled by the pod,
//! so that the garbage collector deletes them with it; a key per pod; remembers nothing. The template's
//! spec is copied byte for byte. A claim of that name with another owner is never touched. The name is
//! fixed, so a second creation collides.

use controllers_kit::{
    Change, Controller, Descriptor, Event, Flags, Key, MetricKind, Plan, Reader, Refusal, Sharding,
    Snapshot, Str, Verb, Watches, cast, owners,
};
use kubernetes_proto::{
    Object,
    core::{PersistentVolumeClaim, PersistentVolumeClaimTemplate, Pod, Volume},
    meta::ObjectMeta,
};

use crate::claims;

const CREATES: &str = "ephemeral_volume_controller_create_total";
const FAILURES: &str = "ephemeral_volume_controller_create_failures_total";
/// The reason of all its events.
const FAILED_BINDING: &str = "FailedBinding";

/// The controller.
pub struct EphemeralVolumes;

/// The key of a pod that has ephemeral volumes and is not being deleted.
fn key_of(pod: &Pod) -> Option<Key> {
    let has = claims::volumes(pod).any(|volume| claims::ephemeral(volume).is_some());
    (has && !pod.is_terminating()).then(|| Key::of(pod))
}

/// A pod that was created. A pod's volumes never change, so later changes do not matter.
fn arrived(change: &Change<'_, Pod>, _: &dyn Reader) -> Vec<Key> {
    let uid = |pod: &Pod| pod.metadata().uid.clone();
    let is_other = change.old.map(uid) != change.new.map(uid);
    let pod = change.new.filter(|_| is_other);
    pod.and_then(key_of).into_iter().collect()
}

/// The pods of a claim that was deleted, or was replaced by another of its name.
fn bereft(change: &Change<'_, PersistentVolumeClaim>, reader: &dyn Reader) -> Vec<Key> {
    let Some(old) = change.old.map(PersistentVolumeClaim::metadata) else {
        return Vec::new();
    };
    if change.new.is_some_and(|new| new.metadata().uid == old.uid) {
        return Vec::new();
    }
    let key = claims::key(&old.namespace, &old.name);
    let pods = reader.indexed(Pod::resource(), claims::BY_CLAIM, &key);
    let pods = pods.into_iter().filter_map(cast::<Pod>);
    pods.filter_map(|pod| key_of(&pod)).collect()
}

/// Plans the creation of a volume's claim.
fn create(plan: &mut Plan, pod: &Pod, volume: &Volume, name: &Str) {
    let template =
        claims::ephemeral(volume).and_then(|source| source.volume_claim_template.as_ref());
    let wanted = template.and_then(|template| template.metadata.as_ref());
    let namespace = &pod.metadata().namespace;
    let claim = PersistentVolumeClaimTemplate {
        metadata: Some(ObjectMeta {
            name: name.clone(),
            namespace: namespace.clone(),
            labels: wanted.map(|meta| meta.labels.clone()).unwrap_or_default(),
            annotations: wanted
                .map(|meta| meta.annotations.clone())
                .unwrap_or_default(),
            owner_references: vec![owners::reference(pod)],
            ..ObjectMeta::default()
        }),
        spec: template
            .map(|template| template.spec.clone())
            .unwrap_or_default(),
    };
    let failure = format!("ephemeral volume {}: create PVC {name}: ", volume.name);
    plan.then();
    plan.act(controllers_kit::Action {
        verb: Verb::Create {
            body: prost::Message::encode_to_vec(&claim),
        },
        resource: PersistentVolumeClaim::resource(),
        key: Key::new(namespace.clone(), name.clone()),
        uid: Str::default(),
        resource_version: 0,
        announcement: None,
    })
    .announce_failure(Event::warning(pod, FAILED_BINDING, failure))
    .measure(CREATES, &[], 1.0)
    .measure_failure(CREATES, &[], 1.0)
    .measure_failure(FAILURES, &[], 1.0);
}

impl Controller for EphemeralVolumes {
    type Memory = ();

    fn describe() -> Descriptor {
        Descriptor::new("ephemeral-volume-controller", Sharding::ByObject)
            .aliases(&["ephemeral-volume"])
            .event_source("ephemeral_volume")
            .queue("ephemeral_volume")
            // Names are fixed: nothing is counted.
            .one_by_one()
            .workers(
                "concurrent-ephemeralvolume-syncs",
                5,
                "The number of pods with ephemeral volumes that each replica handles concurrently.",
            )
            .rule("", "pods", &["list", "watch"])
            .rule("", "pods/finalizers", &["update"])
            .rule("", "persistentvolumeclaims", &["list", "watch", "create"])
            .metric(
                CREATES,
                MetricKind::Counter,
                &[],
                "Number of PersistentVolumeClaim creation requests",
            )
            .metric(
                FAILURES,
                MetricKind::Counter,
                &[],
                "Number of PersistentVolumeClaim creation requests",
            )
            .differences(include_str!("differences.md"))
    }

    fn new(_: &Flags) -> Self {
        Self
    }

    fn watch(&self, on: &mut Watches) {
        on.kind::<Pod>()
            .indexed_by(claims::BY_CLAIM, claims::keys)
            .wakes(arrived);
        on.kind::<PersistentVolumeClaim>().wakes(bereft);
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, (): &mut ()) -> Result<Plan, Refusal> {
        let mut plan = Plan::nothing();
        let Some(pod) = seen.get::<Pod>(key).filter(|pod| !pod.is_terminating()) else {
            return Ok(plan);
        };
        for volume in claims::volumes(&pod) {
            if claims::ephemeral(volume).is_none() {
                continue;
            }
            let name = claims::ephemeral_name(&pod, volume);
            let place = Key::new(key.namespace.clone(), name.clone());
            let Some(claim) = seen.get::<PersistentVolumeClaim>(&place) else {
                create(&mut plan, &pod, volume, &name);
                continue;
            };
            // Later volumes wait until this one can be created, as upstream's.
            if let Err(why) = claims::made_for(&pod, &claim) {
                let what = format!("ephemeral volume {}: {why}", volume.name);
                plan.event(Event::warning(&*pod, FAILED_BINDING, what.clone()));
                plan.fail(format!("pod {key}, {what}"));
                break;
            }
        }
        Ok(plan)
    }
}

#[cfg(test)]
pub(crate) mod tests;
