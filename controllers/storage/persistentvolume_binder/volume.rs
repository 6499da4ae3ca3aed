//! A volume that points at a claim or at none: its phase, and its end.

use std::sync::Arc;

use controllers_kit::{
    Action, Event, Key, Only, Propagation, Query, Refusal, SignedDuration, Snapshot,
};
use kubernetes_proto::{
    Object,
    core::{PersistentVolume, PersistentVolumeClaim, Pod},
    storage::StorageClass,
};

use crate::{claims, translation};

use super::{
    ERRORS, Live, Pass, PersistentVolumeBinder, RETRY_MAX, Recycling,
    claim::with_migration,
    facts::{
        AVAILABLE, BOUND, BOUND_BY_CONTROLLER, FAILED, MIGRATED_TO, PROVISIONED_BY, RELEASED,
        annotation, claim_ref, claim_spec, has, is_over, modes_differ, volume_class, volume_spec,
        without_annotation,
    },
    live_claim, live_volume,
    plugins::{Deleter, HOST_PATH, UNKNOWN, deleter, is_in_tree, is_temporary},
};

/// Finalizers of provisioned volumes: this controller's, and that of external provisioners.
const IN_TREE_FINALIZER: &str = "kubernetes.io/pv-controller";
const EXTERNAL_FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
const FAILED_RECYCLE: &str = "VolumeFailedRecycle";

/// Whether a claim is the one that a volume refers to.
fn is_of(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    claim_ref(volume).is_some_and(|to| *to.uid == *Object::metadata(claim).uid)
}

/// Whether a volume was provisioned for its claim and is deleted with it.
fn goes_unneeded(volume: &PersistentVolume) -> bool {
    has(volume, PROVISIONED_BY) && policy(volume) == "Delete"
}

fn policy(volume: &PersistentVolume) -> &str {
    &volume_spec(volume).persistent_volume_reclaim_policy
}

/// Whether according to the cache the volume has lost its claim, so that the claim is read live: it is
/// gone, or has another volume.
pub(super) fn seems_released(
    volume: &PersistentVolume,
    claim: Option<&PersistentVolumeClaim>,
) -> bool {
    if claim_ref(volume).is_none_or(|to| to.uid.is_empty()) {
        return false;
    }
    match claim.filter(|claim| is_of(volume, claim)) {
        None => true,
        Some(claim) => {
            let name = &claim_spec(claim).volume_name;
            let elsewhere = !name.is_empty() && *name != *Object::metadata(volume).name;
            elsewhere && goes_unneeded(volume)
        }
    }
}

/// Whether this controller reclaims it, and not a provisioner or nobody.
pub(super) fn acts(volume: &PersistentVolume) -> bool {
    if annotation(volume, MIGRATED_TO).is_some_and(|driver| !driver.is_empty()) {
        return false;
    }
    match policy(volume) {
        "Recycle" => true,
        "Delete" => deleter(volume, "") != Deleter::External,
        _ => false,
    }
}

/// The corrected finalizers of a provisioned volume.
fn finalizers(volume: &mut PersistentVolume) {
    let Some(provisioner) = annotation(volume, PROVISIONED_BY).map(str::to_owned) else {
        return;
    };
    let policy = policy(volume).to_owned();
    let held = &mut volume.metadata_mut().finalizers;
    let has = |name: &str, held: &[kubernetes_proto::Str]| held.iter().any(|one| *one == *name);
    if translation::driver_of(&provisioner).is_some() {
        held.retain(|one| *one != *IN_TREE_FINALIZER);
        return;
    }
    if !is_in_tree(&provisioner) {
        return;
    }
    match policy.as_str() {
        "Delete" if !has(IN_TREE_FINALIZER, held) => held.push(IN_TREE_FINALIZER.into()),
        "Retain" | "Recycle" => held.retain(|one| *one != *IN_TREE_FINALIZER),
        _ => {}
    }
    held.retain(|one| *one != *EXTERNAL_FINALIZER);
}

/// The volume without a claim: a claimRef that this controller set is removed; of one that a user set, the
/// uid.
fn unbound(volume: &PersistentVolume) -> PersistentVolume {
    let mut new = volume.clone();
    if without_annotation(&mut new, BOUND_BY_CONTROLLER) {
        new.spec.get_or_insert_default().claim_ref = None;
    } else if let Some(to) = &mut new.spec.get_or_insert_default().claim_ref {
        to.uid.clear();
    }
    new
}

impl PersistentVolumeBinder {
    /// The pod that was created to empty a volume, where it has failed: its message is read live.
    pub(super) fn failed_pod(
        &self,
        volume: &PersistentVolume,
        made: &Recycling,
        seen: &Snapshot<'_>,
    ) -> Option<Key> {
        let key = self.recyclers.as_ref()?.of_volume(volume)?.key(volume);
        let pod = seen.get::<Pod>(&key)?;
        let failed = pod
            .status
            .as_ref()
            .is_some_and(|status| status.phase == *FAILED);
        (failed && *Object::metadata(&*pod).uid == *made.pod).then_some(key)
    }
}

impl Pass<'_> {
    pub(super) fn sync_volume(
        &mut self,
        volume: &PersistentVolume,
        claim: Option<&PersistentVolumeClaim>,
    ) -> Result<(), Refusal> {
        let mut new = volume.clone();
        with_migration(&mut new, annotation(volume, PROVISIONED_BY));
        finalizers(&mut new);
        if new != *volume {
            self.plan.update(volume, &new);
            return Ok(());
        }
        if claim_ref(volume).is_none_or(|to| to.uid.is_empty()) {
            self.enter(volume, AVAILABLE, "");
            return Ok(());
        }
        if seems_released(volume, claim) {
            return self.release(volume, claim);
        }
        let Some(claim) = claim else { return Ok(()) };
        let name = &Object::metadata(volume).name;
        match &*claim_spec(claim).volume_name {
            "" if modes_differ(claim, volume) => {
                let claim_name = &Object::metadata(claim).name;
                let of_volume = format!(
                    "Cannot bind PersistentVolume to requested PersistentVolumeClaim \"{claim_name}\" due to incompatible volumeMode."
                );
                let of_claim = format!(
                    "Cannot bind PersistentVolume \"{name}\" to requested PersistentVolumeClaim due to incompatible volumeMode."
                );
                let event = Event::warning(volume, "VolumeMismatch", of_volume);
                self.record(&format!("volume {name}"), event);
                let event = Event::warning(claim, "VolumeMismatch", of_claim);
                self.record(&format!("volume {name} of the claim"), event);
            }
            // The claim's part of this plan, or of the next one, binds it.
            "" => {}
            bound if bound == name.as_str() => {
                self.enter(volume, BOUND, "");
            }
            // A claim's volume name never changes once it is set, so the cache is proof enough.
            _ => {
                self.plan.update(volume, &unbound(volume));
            }
        }
        Ok(())
    }

    /// A volume that has lost its claim according to the cache.
    fn release(
        &mut self,
        volume: &PersistentVolume,
        claim: Option<&PersistentVolumeClaim>,
    ) -> Result<(), Refusal> {
        let over = is_over(volume);
        if over && !acts(volume) {
            return self.reclaim(volume, claim);
        }
        let name = &Object::metadata(volume).name;
        let uid = claim_ref(volume).map_or("", |to| &to.uid);
        // A volume whose claimRef lacks a namespace or a name is planned in its own key. Such a reference
        // can't be read, so nothing proves that the claim is gone.
        let is_incomplete = self.key.namespace.is_empty();
        if is_incomplete && !over {
            return Err(Refusal::Retry(format!(
                "volume \"{name}\" is bound to a claim that can't be read: its claimRef has no namespace or no name; set them, or remove the claimRef"
            )));
        }
        let live = match is_incomplete {
            true => Live::Missing,
            false => self.live(&live_claim(self.key)),
        };
        match live {
            Live::Missing => {}
            Live::There { uid: live, json } if live == uid => {
                let bound = json["spec"]["volumeName"].as_str().unwrap_or_default();
                if bound.is_empty() || bound == name.as_str() || !goes_unneeded(volume) {
                    // It exists: the cache is behind, and the missing change wakes the key.
                    return Ok(());
                }
            }
            Live::There { .. } => {}
            Live::Unknown(why) => {
                return Err(Refusal::Retry(format!(
                    "the claim of volume \"{name}\" could not be read: {why}"
                )));
            }
        }
        if !over {
            // Irreversible: an external provisioner deletes the disk of a released volume. Verified
            // immediately before, by a live read: no claim of that name has the uid that the volume points
            // at (a uid never returns), or the one that has it names another volume, which it keeps for
            // good. The volume's uid and version are the patch's preconditions.
            self.enter(volume, RELEASED, "");
            return Ok(());
        }
        // Irreversible: the data is wiped or the object deleted. Verified immediately before, by live
        // reads: the claim as above, and that the volume is still the cached version.
        match self.live(&live_volume(name)) {
            Live::There { json, .. } => {
                let version = json["metadata"]["resourceVersion"].as_str();
                let held = Object::metadata(volume).resource_version.to_string();
                if version == Some(held.as_str()) {
                    return self.reclaim(volume, claim);
                }
            }
            Live::Missing => {}
            Live::Unknown(why) => {
                return Err(Refusal::Retry(format!(
                    "volume \"{name}\" could not be read: {why}"
                )));
            }
        }
        Ok(())
    }

    fn reclaim(
        &mut self,
        volume: &PersistentVolume,
        claim: Option<&PersistentVolumeClaim>,
    ) -> Result<(), Refusal> {
        if annotation(volume, MIGRATED_TO).is_some_and(|driver| !driver.is_empty()) {
            return Ok(());
        }
        match policy(volume) {
            "Retain" => {}
            "Recycle" => return self.recycle(volume, claim),
            "Delete" => self.delete(volume),
            _ => {
                self.fail_volume(
                    volume,
                    "VolumeUnknownReclaimPolicy",
                    "Volume has unrecognized PersistentVolumeReclaimPolicy",
                );
            }
        }
        Ok(())
    }

    /// Marks a volume as failed; the event is recorded with the phase alone.
    fn fail_volume(
        &mut self,
        volume: &PersistentVolume,
        reason: &'static str,
        message: &str,
    ) -> Option<&mut Action> {
        let event = Event::warning(volume, reason, message);
        let action = self.enter(volume, FAILED, message)?;
        Some(action.announce(event))
    }

    fn delete(&mut self, volume: &PersistentVolume) {
        let name = &Object::metadata(volume).name;
        let class = self
            .seen
            .get::<StorageClass>(&Key::cluster(volume_class(volume)));
        let plugin = match (deleter(volume, name), &class) {
            (Deleter::HostPath(_), _) => HOST_PATH,
            (Deleter::External, Some(class)) => {
                translation::driver_of(&class.provisioner).unwrap_or(&class.provisioner)
            }
            _ => UNKNOWN,
        };
        let began = self.began(plugin);
        let deleting = &mut self.memory.deleting;
        deleting.entry(name.to_string()).or_insert(began);
        match deleter(volume, name) {
            Deleter::External => {}
            Deleter::Nobody(why) => {
                self.fail_volume(volume, "VolumeFailedDelete", &why);
            }
            Deleter::HostPath(path) if !is_temporary(path) => {
                let why =
                    format!("host_path deleter only supports /tmp/.+ but received provided {path}");
                if let Some(action) = self.fail_volume(volume, "VolumeFailedDelete", &why) {
                    for counter in ERRORS {
                        action.measure(counter, &[HOST_PATH, "delete"], 1.0);
                    }
                }
            }
            Deleter::HostPath(_) => {
                let mut new = volume.clone();
                let held = &mut new.metadata_mut().finalizers;
                held.retain(|one| *one != *IN_TREE_FINALIZER);
                let only = match self.plan.update(volume, &new) {
                    Some(_) => Only::ThisUid,
                    None => Only::ThisVersion,
                };
                self.plan.then();
                if !volume.is_terminating() {
                    self.plan.delete(volume, only, Propagation::Background);
                }
            }
        }
    }

    fn recycle(
        &mut self,
        volume: &PersistentVolume,
        claim: Option<&PersistentVolumeClaim>,
    ) -> Result<(), Refusal> {
        let name = Object::metadata(volume).name.to_string();
        if claim.is_none()
            && let Some(users) = self.users()
        {
            let text = format!("Volume is used by pods: {users}");
            let event = Event::normal(volume, FAILED_RECYCLE, text);
            self.record(&format!("volume {name}"), event);
            return Ok(());
        }
        let recyclers = self.binder.recyclers.as_ref();
        let Some(recycler) = recyclers.and_then(|all| all.of_volume(volume)) else {
            let why = "No recycler plugin found for the volume!";
            self.fail_volume(volume, FAILED_RECYCLE, why);
            return Ok(());
        };
        let key = recycler.key(volume);
        let pod = self.seen.get::<Pod>(&key);
        let state = self.memory.recycling.get(&name).cloned();
        let mut state = state.unwrap_or_default();
        let failed = |why: &str| format!("Recycle failed: failed to recycle volume: {why}");
        let why = if !state.refused.is_empty() {
            let why = &state.refused;
            Some(format!(
                "Recycle failed: unexpected error creating recycler pod:  {why}"
            ))
        } else if state.pod.is_empty() {
            None
        } else {
            match pod
                .as_deref()
                .filter(|pod| *Object::metadata(*pod).uid == *state.pod)
            {
                None => Some(failed("recycler pod was deleted")),
                Some(pod) => match pod.status.as_ref().map_or("", |status| &status.phase) {
                    "Succeeded" => {
                        let event = Event::normal(volume, "VolumeRecycled", "Volume recycled");
                        if let Some(action) = self.plan.update(volume, &unbound(volume)) {
                            action.announce(event);
                        }
                        self.plan.then();
                        if !pod.is_terminating() {
                            self.plan
                                .delete(pod, Only::ThisUid, Propagation::Background);
                        }
                        return Ok(());
                    }
                    FAILED => Some(failed(&self.message(&key)?)),
                    // It is at work.
                    _ => return Ok(()),
                },
            }
        };
        if let Some(why) = why {
            if let Some(action) = self.enter(volume, FAILED, &why) {
                action.announce(Event::warning(volume, FAILED_RECYCLE, why));
                return Ok(());
            }
            let doublings = state.failures.min(10);
            let wait = self.binder.period.saturating_mul(1 << doublings);
            let longest = SignedDuration::try_from(RETRY_MAX).unwrap_or(SignedDuration::MAX);
            let wait = wait.min(longest.max(self.binder.period));
            let at = controllers_kit::pods::after(self.seen.now, wait);
            state = Recycling {
                failures: state.failures.saturating_add(1),
                retry_at: at.as_millisecond(),
                ..Recycling::default()
            };
        }
        let is_time = Self::instant(state.retry_at) <= self.seen.now;
        if let Some(pod) = pod {
            // One of whose end nothing can be concluded.
            if !pod.is_terminating() {
                self.plan
                    .delete(&*pod, Only::ThisUid, Propagation::Background);
            }
        } else if is_time {
            self.plan.create_json::<Pod>(key, &recycler.pod(volume));
        }
        if !is_time {
            self.plan.requeue_at(Self::instant(state.retry_at));
        }
        self.memory.recycling.insert(name, state);
        Ok(())
    }

    /// The unfinished pods that use the claim of this key.
    fn users(&self) -> Option<String> {
        let pods = self
            .seen
            .indexed::<Pod>(claims::BY_CLAIM, &self.key.to_string());
        let active = pods.iter().filter(|pod| !claims::is_terminated(pod));
        let mut names: Vec<String> = active.map(|pod| Key::of(&**pod).to_string()).collect();
        names.sort();
        (!names.is_empty()).then(|| names.join(","))
    }

    /// What a pod says of its failure, by a live read.
    fn message(&self, pod: &Key) -> Result<String, Refusal> {
        let query = Query::Live {
            resource: Pod::resource(),
            key: pod.clone(),
        };
        let why = match self.live(&query) {
            Live::There { json, .. } => {
                let said = json["status"]["message"].as_str().unwrap_or_default();
                return Ok(match said.is_empty() {
                    true => "pod failed, pod.Status.Message unknown".to_owned(),
                    false => said.to_owned(),
                });
            }
            Live::Missing => "it is gone".to_owned(),
            Live::Unknown(why) => why,
        };
        Err(Refusal::Retry(format!(
            "the recycler pod {pod} could not be read: {why}"
        )))
    }

    /// Deletes pods that were created for volumes which are no longer to be emptied.
    pub(super) fn clear_recyclers(&mut self, volumes: &[Arc<PersistentVolume>]) {
        let still = |name: &str| {
            volumes.iter().any(|volume| {
                *Object::metadata(&**volume).name == *name
                    && is_over(volume)
                    && policy(volume) == "Recycle"
            })
        };
        let names: Vec<String> = self.memory.recycling.keys().cloned().collect();
        for name in names.into_iter().filter(|name| !still(name)) {
            let Some(state) = self.memory.recycling.remove(&name) else {
                continue;
            };
            let pod_name = format!("{}{name}", super::recycle::POD_PREFIX);
            let pods = self
                .binder
                .recyclers
                .iter()
                .flat_map(|all| all.namespaces());
            let pod = pods
                .filter_map(|namespace| {
                    self.seen
                        .get::<Pod>(&Key::new(namespace, pod_name.as_str()))
                })
                .find(|pod| *Object::metadata(&**pod).uid == *state.pod);
            if let Some(pod) = pod
                && !pod.is_terminating()
            {
                self.plan.then();
                self.plan
                    .delete(&*pod, Only::ThisUid, Propagation::Background);
                self.memory.recycling.insert(name, state);
            }
        }
    }
}
