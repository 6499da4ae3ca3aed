//! Warns of pods that use one volume with different SELinux labels or policies: on one node, only one of them
//! could.
//!
//! Watches pods, persistentvolumeclaims, persistentvolumes and csidrivers; records events and a gauge, and
//! writes nothing else. A key per storage (`volume:/<unique name>`), which finds all pods that use it by
//! indexes, and one per pod for volumes whose containers disagree within the pod. Remembers which events it
//! has recorded.

use std::{collections::BTreeSet, sync::Arc};

use controllers_kit::{
    Change, Controller, Descriptor, Event, Flags, Key, MetricKind, Plan, Reader, Refusal, Sharding,
    Snapshot, Watches, cast, pods,
};
use kubernetes_proto::{
    Object,
    core::{PersistentVolume, PersistentVolumeClaim, Pod},
    storage::CsiDriver,
};
use serde::{Deserialize, Serialize};

use crate::claims;

mod label;
mod volume;

use label::Label;

/// The kind of the keys of storage; no namespace has such a name.
const STORAGE: &str = "volume:";
/// Upstream's gauge, one series for each direction of a conflict.
const CONFLICT: &str = "selinux_warning_controller_selinux_volume_conflict";
/// Conflicts of one storage that are reported, each direction for itself: there are as many as pairs of
/// pods.
const CONFLICTS_MAX: usize = 1000;

/// The controller.
pub struct SeLinuxWarning;

/// The conflicts whose events were recorded. Lost memory repeats the events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorded {
    about: BTreeSet<String>,
}

impl Recorded {
    /// Records an event unless it was recorded before, and notes that its conflict is still present.
    fn record(&mut self, now: &mut BTreeSet<String>, about: String, plan: &mut Plan, event: Event) {
        if !self.about.contains(&about) {
            plan.event(event);
        }
        now.insert(about);
    }
}

/// How a pod uses a storage.
struct User {
    pod: Arc<Pod>,
    label: Label,
    policy: String,
}

/// Which property of two pods conflicts.
struct Property {
    name: &'static str,
    reason: &'static str,
    of: fn(&User) -> String,
    conflict: fn(&User, &User) -> bool,
}

const PROPERTIES: [Property; 2] = [
    Property {
        name: "SELinuxChangePolicy",
        reason: "SELinuxChangePolicyConflict",
        of: |user| user.policy.clone(),
        conflict: |one, other| one.policy != other.policy,
    },
    Property {
        name: "SELinuxLabel",
        reason: "SELinuxLabelConflict",
        of: |user| user.label.to_string(),
        conflict: |one, other| one.label.conflicts_with(&other.label),
    },
];

/// Upstream's sentence, spaces included: a pod of another namespace is not named.
fn message(property: &Property, user: &User, other: &User) -> String {
    let (name, value, other_value) = (property.name, (property.of)(user), (property.of)(other));
    let (meta, other_meta) = (user.pod.metadata(), other.pod.metadata());
    let end = "If both pods land on the same node, only one of them may access the volume.";
    if meta.namespace == other_meta.namespace {
        let other = &other_meta.name;
        format!(
            "{name} \"{value}\" conflicts with pod {other} that uses the same volume as this pod with {name} \"{other_value}\". {end}"
        )
    } else {
        format!(
            "{name}\"{value}\" conflicts with another pod that uses the same volume as this pod with a different {name}. {end}"
        )
    }
}

/// All pods that use a storage: by claims that are bound to a volume of it, or in-line.
fn users(id: &str, seen: &Snapshot<'_>) -> Vec<User> {
    let mut users = Vec::new();
    let mut add = |pod: Arc<Pod>, name: &str, supports: bool| {
        let known = |user: &User| user.pod.metadata().uid == pod.metadata().uid;
        if !pods::has_finished(&pod)
            && !users.iter().any(known)
            && let Some((label, policy)) = label::effective(&pod, name, supports)
        {
            users.push(User { pod, label, policy });
        }
    };
    for volume in seen.indexed::<PersistentVolume>(volume::BY_STORAGE, id) {
        let Some(storage) = volume::of_volume(&volume) else {
            continue;
        };
        let reference = volume
            .spec
            .as_ref()
            .and_then(|spec| spec.claim_ref.as_ref());
        let Some(reference) = reference else { continue };
        let key = Key::new(&*reference.namespace, &*reference.name);
        let claim = seen.get::<PersistentVolumeClaim>(&key);
        let Some(claim) = claim.filter(|claim| volume::are_bound(claim, &volume)) else {
            continue;
        };
        let supports = storage.supports_context(seen);
        let index = claims::key(&key.namespace, &key.name);
        for pod in seen.indexed::<Pod>(claims::BY_CLAIM, &index) {
            let of_claim = |one: &&kubernetes_proto::core::Volume| {
                let found = volume::claim_of(&pod, one, |key| seen.get(key));
                found.is_some_and(|found| found.metadata().uid == claim.metadata().uid)
            };
            let name = claims::volumes(&pod).find(of_claim);
            if let Some(name) = name.map(|volume| volume.name.clone()) {
                add(pod, &name, supports);
            }
        }
    }
    for pod in seen.indexed::<Pod>(volume::BY_STORAGE, id) {
        let found = volume::inline_volumes(&pod).find_map(|(one, source)| {
            let storage = volume::of_inline(source).filter(|storage| storage.id == *id)?;
            Some((one.name.clone(), storage.supports_context(seen)))
        });
        if let Some((name, supports)) = found {
            add(pod, &name, supports);
        }
    }
    users
}

/// Reports each conflict between two pods of a storage, on both.
fn compare(id: &str, seen: &Snapshot<'_>, recorded: &mut Recorded) -> Plan {
    let mut plan = Plan::nothing();
    let mut now = BTreeSet::new();
    let users = users(id, seen);
    let pairs = users.iter().enumerate().flat_map(|(at, one)| {
        let others = users.iter().skip(at + 1);
        others.flat_map(move |other| [(one, other), (other, one)])
    });
    let conflicts = pairs.flat_map(|(user, other)| {
        let properties = PROPERTIES.iter();
        let conflicting = properties.filter(move |property| (property.conflict)(user, other));
        conflicting.map(move |property| (property, user, other))
    });
    for (property, user, other) in conflicts.take(CONFLICTS_MAX) {
        let (meta, other_meta) = (user.pod.metadata(), other.pod.metadata());
        let (value, other_value) = ((property.of)(user), (property.of)(other));
        let labels = [
            property.name,
            &meta.namespace,
            &meta.name,
            &value,
            &other_meta.namespace,
            &other_meta.name,
            &other_value,
        ];
        plan.measure(CONFLICT, &labels, 1.0);
        let about = [
            &meta.uid,
            &*other_meta.uid,
            property.name,
            &value,
            &other_value,
        ]
        .join(" ");
        let event = Event::normal(&*user.pod, property.reason, message(property, user, other));
        recorded.record(&mut now, about, &mut plan, event);
    }
    recorded.about = now;
    plan
}

/// Reports volumes of a pod that its own containers mount with different labels.
fn compare_containers(pod: &Pod, seen: &Snapshot<'_>, recorded: &mut Recorded) -> Plan {
    let mut plan = Plan::nothing();
    let mut now = BTreeSet::new();
    for one in claims::volumes(pod) {
        let is_of_claim = claims::ephemeral(one).is_some() || claims::named(one).is_some();
        let is_there = !is_of_claim
            || volume::claim_of(pod, one, |key| seen.get(key)).is_some_and(|claim| {
                let name = claim.spec.as_ref().map_or("", |spec| &spec.volume_name);
                let volume = seen.get::<PersistentVolume>(&Key::cluster(name));
                volume.is_some_and(|volume| volume::are_bound(&claim, &volume))
            });
        let labels = label::of_mounts(pod, &one.name);
        if is_there && labels.is_some_and(|labels| labels.len() > 1) {
            let (uid, name) = (&pod.metadata().uid, &one.name);
            let what = format!(
                "Volume {name:?} is mounted twice with different SELinux labels inside this pod"
            );
            let event = Event::warning(pod, "MultipleSELinuxLabels", what);
            recorded.record(&mut now, format!("{uid} {name}"), &mut plan, event);
        }
    }
    recorded.about = now;
    plan
}

fn storage_key(storage: &volume::Storage) -> Key {
    Key::composite(STORAGE, storage.id.as_str())
}

/// The keys of all storage that a pod uses, and the pod's own.
fn keys_of(pod: &Pod, reader: &dyn Reader) -> Vec<Key> {
    let find = |key: &Key| {
        let claim = reader.get(PersistentVolumeClaim::resource(), &key.namespace, &key.name);
        claim.and_then(cast::<PersistentVolumeClaim>)
    };
    let claimed = claims::volumes(pod).filter_map(|one| volume::claim_of(pod, one, find));
    let claimed = claimed.filter_map(|claim| storage_of(&claim, reader));
    let inline = volume::inline_volumes(pod);
    let inline =
        inline.filter_map(|(_, source)| volume::of_inline(source).as_ref().map(storage_key));
    let mut keys: Vec<Key> = inline.chain(claimed).collect();
    // A pod without storage has no conflicts.
    if claims::volumes(pod).next().is_some() {
        keys.push(Key::of(pod));
    }
    keys
}

/// The key of the storage of a claim's volume.
fn storage_of(claim: &PersistentVolumeClaim, reader: &dyn Reader) -> Option<Key> {
    let name = &claim.spec.as_ref()?.volume_name;
    let volume = reader.get(PersistentVolume::resource(), "", name)?;
    let volume = cast::<PersistentVolume>(volume)?;
    volume::of_volume(&volume).as_ref().map(storage_key)
}

fn pods_of_claim(namespace: &str, name: &str, reader: &dyn Reader) -> Vec<Key> {
    let index = claims::key(namespace, name);
    let pods = reader.indexed(Pod::resource(), claims::BY_CLAIM, &index);
    let pods = pods.into_iter().filter_map(cast::<Pod>);
    pods.map(|pod| Key::of(&*pod)).collect()
}

/// A pod that is created, deleted or ends. In between nothing relevant changes, except for ephemeral
/// containers, which are compared when one of the other pods comes.
fn moved(change: &Change<'_, Pod>, reader: &dyn Reader) -> Vec<Key> {
    if let (Some(old), Some(new)) = (change.old, change.new)
        && old.metadata().uid == new.metadata().uid
        && pods::has_finished(old) == pods::has_finished(new)
    {
        return Vec::new();
    }
    let mut keys: Vec<Key> = change.both().flat_map(|pod| keys_of(pod, reader)).collect();
    keys.sort();
    keys.dedup();
    keys
}

/// A claim that is bound or goes.
fn claim_moved(change: &Change<'_, PersistentVolumeClaim>, reader: &dyn Reader) -> Vec<Key> {
    let facts = |claim: &PersistentVolumeClaim| {
        let volume = claim.spec.as_ref().map(|spec| spec.volume_name.clone());
        let phase = claim.status.as_ref().map(|status| status.phase.clone());
        (claim.metadata().uid.clone(), volume, phase)
    };
    if change.old.map(facts) == change.new.map(facts) {
        return Vec::new();
    }
    let meta = change.newest().metadata();
    let mut keys = pods_of_claim(&meta.namespace, &meta.name, reader);
    keys.extend(change.both().filter_map(|claim| storage_of(claim, reader)));
    keys
}

/// A volume that is bound, unbound or goes.
fn volume_moved(change: &Change<'_, PersistentVolume>, reader: &dyn Reader) -> Vec<Key> {
    let reference = |volume: &PersistentVolume| {
        let spec = volume.spec.as_ref();
        spec.and_then(|spec| spec.claim_ref.clone())
    };
    let uid = |volume: &PersistentVolume| reference(volume).map(|reference| reference.uid);
    if change.old.is_some() && change.old.map(uid) == change.new.map(uid) {
        return Vec::new();
    }
    let storage = change.both().filter_map(volume::of_volume);
    let mut keys: Vec<Key> = storage.map(|storage| storage_key(&storage)).collect();
    if let Some(reference) = reference(change.newest()) {
        keys.extend(pods_of_claim(&reference.namespace, &reference.name, reader));
    }
    keys.sort();
    keys.dedup();
    keys
}

/// A driver begins or ceases to mount with a context: wakes all its storage.
fn driver_changed(change: &Change<'_, CsiDriver>, reader: &dyn Reader) -> Vec<Key> {
    let mounts = |driver: Option<&CsiDriver>| driver.is_some_and(volume::mounts_with_context);
    if mounts(change.old) == mounts(change.new) {
        return Vec::new();
    }
    let driver = volume::by_driver(&change.newest().metadata().name);
    let volumes = reader.indexed(PersistentVolume::resource(), volume::BY_STORAGE, &driver);
    let volumes = volumes.into_iter().filter_map(cast::<PersistentVolume>);
    let mut keys: Vec<Key> = volumes
        .filter_map(|one| volume::of_volume(&one).as_ref().map(storage_key))
        .collect();
    let pods = reader.indexed(Pod::resource(), volume::BY_STORAGE, &driver);
    for pod in pods.into_iter().filter_map(cast::<Pod>) {
        let inline = volume::inline_volumes(&pod);
        keys.extend(
            inline.filter_map(|(_, source)| volume::of_inline(source).as_ref().map(storage_key)),
        );
    }
    keys.sort();
    keys.dedup();
    keys
}

impl Controller for SeLinuxWarning {
    type Memory = Recorded;

    fn describe() -> Descriptor {
        Descriptor::new("selinux-warning-controller", Sharding::ByObject)
            .event_source("selinux_warning")
            .queue("selinux_warning")
            .off_by_default()
            .rule("", "persistentvolumes", &["list", "watch"])
            .rule("", "persistentvolumeclaims", &["list", "watch"])
            .rule("", "pods", &["list", "watch"])
            .rule("storage.k8s.io", "csidrivers", &["list", "watch"])
            .metric(
                CONFLICT,
                MetricKind::Gauge,
                &[
                    "property",
                    "pod1_namespace",
                    "pod1_name",
                    "pod1_value",
                    "pod2_namespace",
                    "pod2_name",
                    "pod2_value",
                ],
                "Conflict between two Pods using the same volume",
            )
            .differences(include_str!("differences.md"))
    }

    fn new(_: &Flags) -> Self {
        Self
    }

    fn watch(&self, on: &mut Watches) {
        on.kind::<Pod>()
            .indexed_by(claims::BY_CLAIM, claims::keys)
            .indexed_by(volume::BY_STORAGE, volume::values_of_pod)
            .wakes(moved);
        on.kind::<PersistentVolumeClaim>().wakes(claim_moved);
        on.kind::<PersistentVolume>()
            .indexed_by(volume::BY_STORAGE, volume::values_of_volume)
            .wakes(volume_moved);
        on.kind::<CsiDriver>().wakes(driver_changed);
    }

    fn plan(
        &self,
        key: &Key,
        seen: &Snapshot<'_>,
        recorded: &mut Recorded,
    ) -> Result<Plan, Refusal> {
        if let Some(id) = key.of_kind(STORAGE) {
            return Ok(compare(id, seen, recorded));
        }
        let pod = seen.get::<Pod>(key).filter(|pod| !pods::has_finished(pod));
        Ok(match pod {
            Some(pod) => compare_containers(&pod, seen, recorded),
            None => {
                recorded.about.clear();
                Plan::nothing()
            }
        })
    }
}

#[cfg(test)]
pub(crate) mod tests;
