//! A claim: which volume it gets, and what it says of itself.

use std::sync::Arc;

use controllers_kit::{Event, Key, Refusal, Snapshot, StatusWrite};
use kubernetes_proto::{
    Object,
    core::{ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod},
    quantity::Quantity,
    storage::StorageClass,
};

use crate::{claims, translation};

use super::{
    BY_CLAIM, ERRORS, FREE, Live, OPERATION, Pass, RETROACTIVE, RETROACTIVE_ERRORS, class_place,
    facts::{
        BETA_PROVISIONER, BIND_COMPLETED, BOUND, BOUND_BY_CONTROLLER, LOST, MIGRATED_TO, PENDING,
        PRE_RESIZE, PROVISIONER, SELECTED_NODE, annotation, claim_class, claim_phase, claim_ref,
        claim_spec, default_class, has, named_class, points_at, storage, volume_phase, volume_spec,
        with_storage, without_annotation,
    },
    live_volume,
    matching::{Wanted, mismatch},
    plugins::{HOST_PATH, Provisioner, provisioner},
};

/// The name by which events about the claim are remembered.
pub(super) const ABOUT: &str = "claim";
const WAIT: &str = "WaitForFirstConsumer";

/// Whether a bound claim has lost its volume according to the cache, so that the volume is read live.
pub(super) fn seems_lost(claim: &PersistentVolumeClaim, seen: &Snapshot<'_>) -> bool {
    let name = &claim_spec(claim).volume_name;
    if !has(claim, BIND_COMPLETED) || name.is_empty() || claim_phase(claim) == LOST {
        return false;
    }
    let volume = seen.get::<PersistentVolume>(&Key::cluster(name));
    volume.is_none_or(|volume| {
        claim_ref(&volume).is_some_and(|to| *to.uid != *Object::metadata(claim).uid)
    })
}

/// Sets the annotation that names the CSI driver for a migrated plugin.
pub(super) fn with_migration<T: Object>(object: &mut T, plugin: Option<&str>) -> bool {
    let Some(plugin) = plugin else { return false };
    let named = annotation(object, MIGRATED_TO).unwrap_or_default();
    match translation::driver_of(plugin) {
        Some(driver) if named == driver => false,
        Some(driver) => {
            object.metadata_mut().set_annotation(MIGRATED_TO, driver);
            true
        }
        None => !named.is_empty() && without_annotation(object, MIGRATED_TO),
    }
}

fn of_claim(claim: &PersistentVolumeClaim) -> Option<&str> {
    annotation(claim, PROVISIONER).or(annotation(claim, BETA_PROVISIONER))
}

/// The volume with its reference to a claim; `None` where it is set already.
fn bound_volume(
    volume: &PersistentVolume,
    claim: &PersistentVolumeClaim,
) -> Option<PersistentVolume> {
    let meta = Object::metadata(claim);
    let mut new = volume.clone();
    let is_named = points_at(volume, claim);
    if !claim_ref(volume).is_some_and(|to| is_named && *to.uid == *meta.uid) {
        new.spec.get_or_insert_default().claim_ref = Some(ObjectReference {
            kind: "PersistentVolumeClaim".to_owned(),
            api_version: "v1".to_owned(),
            namespace: meta.namespace.to_string(),
            name: meta.name.to_string(),
            uid: meta.uid.to_string(),
            resource_version: meta.resource_version.to_string(),
            field_path: String::new(),
        });
    }
    if !is_named && !has(volume, BOUND_BY_CONTROLLER) {
        new.metadata_mut()
            .set_annotation(BOUND_BY_CONTROLLER, "yes");
    }
    (new != *volume).then_some(new)
}

/// The claim with the name of a volume; `None` where it is set already.
fn bound_claim(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
) -> Option<PersistentVolumeClaim> {
    let name = &Object::metadata(volume).name;
    let mut new = claim.clone();
    if claim_spec(claim).volume_name != name.as_str() {
        new.spec.get_or_insert_default().volume_name = name.to_string();
        if !has(claim, BOUND_BY_CONTROLLER) {
            new.metadata_mut()
                .set_annotation(BOUND_BY_CONTROLLER, "yes");
        }
    }
    if !has(claim, BIND_COMPLETED) {
        new.metadata_mut().set_annotation(BIND_COMPLETED, "yes");
    }
    (new != *claim).then_some(new)
}

/// The claim in a phase without a volume.
fn without_volume(claim: &PersistentVolumeClaim, phase: &str) -> PersistentVolumeClaim {
    let mut new = claim.clone();
    let status = new.status.get_or_insert_default();
    status.phase = phase.to_owned();
    status.access_modes.clear();
    status.capacity.clear();
    status.current_volume_attributes_class_name = None;
    new
}

/// The status of a claim that is bound to a volume. The capacity is set together with the phase alone:
/// afterwards it is that of the file system, which may differ from the volume's.
fn with_volume(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
) -> Result<PersistentVolumeClaim, String> {
    let spec = volume_spec(volume);
    let before = claim_phase(claim);
    let mut new = claim.clone();
    let status = new.status.get_or_insert_default();
    status.phase = BOUND.to_owned();
    status.access_modes.clone_from(&spec.access_modes);
    if before != BOUND {
        let Some(size) = storage(&spec.capacity) else {
            let name = &Object::metadata(volume).name;
            return Err(format!(
                "PersistentVolume \"{name}\" is without a storage capacity"
            ));
        };
        let amount = |size: &Quantity| size.exact();
        match annotation(volume, PRE_RESIZE) {
            Some(text) => {
                let before = Quantity::text(text);
                let before = amount(&before).map_or_else(|| size.clone(), |_| before);
                with_storage(&mut status.capacity, before);
            }
            None => {
                let held = storage(&status.capacity).and_then(amount);
                let same = held
                    .zip(amount(size))
                    .is_some_and(|(one, other)| one.equals(other));
                if !same {
                    status.capacity.clone_from(&spec.capacity);
                }
            }
        }
    }
    if before == PENDING {
        status
            .current_volume_attributes_class_name
            .clone_from(&spec.volume_attributes_class_name);
    }
    Ok(new)
}

impl Pass<'_> {
    pub(super) fn sync_claim(&mut self, claim: &PersistentVolumeClaim) -> Result<(), Refusal> {
        let mut migrated = claim.clone();
        if with_migration(&mut migrated, of_claim(claim)) {
            self.keep_recorded();
            self.plan.update(claim, &migrated);
            return Ok(());
        }
        match (has(claim, BIND_COMPLETED), &*claim_spec(claim).volume_name) {
            (true, _) => self.sync_bound(claim),
            (false, "") => self.find_volume(claim),
            (false, name) => self.take_volume(claim, name),
        }
    }

    /// An event stays recorded where this plan does not reach its reason.
    fn keep_recorded(&mut self) {
        if let Some(recorded) = self.memory.recorded.get(ABOUT) {
            self.recorded.insert(ABOUT.to_owned(), recorded.clone());
        }
    }

    /// A claim with the annotation that it is bound.
    fn sync_bound(&mut self, claim: &PersistentVolumeClaim) -> Result<(), Refusal> {
        if claim_phase(claim) == BOUND
            && let Some(began) = self.memory.provisioning.take()
        {
            let seconds = self.took(&began);
            self.plan
                .measure(OPERATION, &[&began.plugin, "provision"], seconds);
        }
        let name = &claim_spec(claim).volume_name;
        if name.is_empty() {
            self.lose(
                claim,
                "ClaimLost",
                "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!",
            );
            return Ok(());
        }
        let uid = &Object::metadata(claim).uid;
        let volume = self.seen.get::<PersistentVolume>(&Key::cluster(name));
        if let Some(volume) = &volume
            && claim_ref(volume).is_none_or(|to| *to.uid == **uid)
        {
            self.bind(volume, claim);
            return Ok(());
        }
        if claim_phase(claim) == LOST {
            return Ok(());
        }
        match self.live(&live_volume(name)) {
            Live::Missing => self.lose(
                claim,
                "ClaimLost",
                "Bound claim has lost its PersistentVolume. Data on the volume is lost!",
            ),
            Live::There { json, .. } => {
                let to = &json["spec"]["claimRef"];
                // Otherwise the cache is behind, and the missing change wakes the key.
                if to.is_object() && to["uid"].as_str().unwrap_or_default() != uid.as_str() {
                    self.lose(
                        claim,
                        "ClaimMisbound",
                        "Two claims are bound to the same volume, this one is bound incorrectly",
                    );
                }
            }
            Live::Unknown(why) => {
                return Err(Refusal::Retry(format!(
                    "volume \"{name}\" could not be read: {why}"
                )));
            }
        }
        Ok(())
    }

    /// Marks a claim as lost. Verified immediately before: that this version of the claim names no volume,
    /// or by a live read that the one it names is gone or bound to another claim.
    fn lose(&mut self, claim: &PersistentVolumeClaim, reason: &'static str, message: &str) {
        if claim_phase(claim) == LOST {
            return;
        }
        let new = without_volume(claim, LOST);
        if let Some(action) = self.plan.update_status(claim, &new) {
            action
                .reports(StatusWrite::No)
                .announce(Event::warning(claim, reason, message));
        }
    }

    fn pend(&mut self, claim: &PersistentVolumeClaim) {
        let new = without_volume(claim, PENDING);
        if let Some(action) = self.plan.update_status(claim, &new) {
            action.reports(StatusWrite::No);
        }
    }

    /// A claim that asks for no volume by name.
    fn find_volume(&mut self, claim: &PersistentVolumeClaim) -> Result<(), Refusal> {
        let class = match claim_class(claim) {
            "" => None,
            name => self.seen.get::<StorageClass>(&Key::cluster(name)),
        };
        let delayed = match class
            .as_ref()
            .map(|class| class.volume_binding_mode.as_deref())
        {
            Some(None) => {
                return Err(Refusal::Retry(format!(
                    "VolumeBindingMode not set for StorageClass \"{}\"",
                    claim_class(claim)
                )));
            }
            Some(Some(mode)) => mode == WAIT,
            None => false,
        };
        let wanted = Wanted::by(claim).map_err(Refusal::Retry)?;
        let mut volumes: Vec<Arc<PersistentVolume>> =
            self.seen.indexed(BY_CLAIM, &self.key.to_string());
        if !delayed {
            let free = class_place(Some(claim_class(claim)));
            volumes.extend(self.seen.indexed::<PersistentVolume>(FREE, &free));
        }
        if let Some(volume) = wanted.best(volumes, delayed) {
            self.bind(&volume, claim);
            return Ok(());
        }
        if named_class(claim).is_none()
            && let Some(default) = default_class(self.seen)
        {
            let mut new = claim.clone();
            new.spec.get_or_insert_default().storage_class_name = Some(default);
            if let Some(action) = self.plan.update(claim, &new) {
                action.measure(RETROACTIVE, &[], 1.0);
                action.measure_failure(RETROACTIVE, &[], 1.0);
                action.measure_failure(RETROACTIVE_ERRORS, &[], 1.0);
            }
            return Ok(());
        }
        if delayed && !has(claim, SELECTED_NODE) {
            let event = self.waiting(claim);
            self.record(ABOUT, event);
        } else if claim_class(claim).is_empty() {
            let text = "no persistent volumes available for this claim and no storage class is set";
            self.record(ABOUT, Event::normal(claim, "FailedBinding", text));
            self.requeue_after_period();
        } else {
            self.provision(claim, class.as_deref());
            self.requeue_after_period();
            return Ok(());
        }
        self.pend(claim);
        Ok(())
    }

    /// Changes that free a volume wake some of those that it suits, not all.
    fn requeue_after_period(&mut self) {
        let at = controllers_kit::pods::after(self.seen.now, self.binder.period);
        self.plan.requeue_at(at);
    }

    /// Why a claim waits whose volume is chosen together with its pod's node.
    fn waiting(&self, claim: &PersistentVolumeClaim) -> Event {
        let pods = self
            .seen
            .indexed::<Pod>(claims::BY_CLAIM, &self.key.to_string());
        let unscheduled = pods.iter().filter(|pod| {
            let spec = pod.spec.as_ref();
            !claims::is_terminated(pod) && spec.is_none_or(|spec| spec.node_name.is_empty())
        });
        let names: Vec<&str> = unscheduled
            .map(|pod| Object::metadata(&**pod).name.as_str())
            .collect();
        let scheduled = |text| Event::normal(claim, "WaitForPodScheduled", text);
        match &names[..] {
            [] => Event::normal(
                claim,
                "WaitForFirstConsumer",
                "waiting for first consumer to be created before binding",
            ),
            [one] => scheduled(format!("waiting for pod {one} to be scheduled")),
            several => scheduled(format!(
                "waiting for pods {} to be scheduled",
                several.join(",")
            )),
        }
    }

    /// Asks the provisioner of the claim's class for a volume.
    fn provision(&mut self, claim: &PersistentVolumeClaim, class: Option<&StorageClass>) {
        if !self.binder.provisions {
            return;
        }
        let failed = |text: String| Event::warning(claim, "ProvisioningFailed", text);
        let Some(class) = class else {
            let name = claim_class(claim);
            let text = format!("storageclass.storage.k8s.io \"{name}\" not found");
            self.record(ABOUT, failed(text));
            return;
        };
        let (name, event) = match provisioner(&class.provisioner) {
            Provisioner::Nobody(why) => {
                self.record(ABOUT, failed(why));
                return;
            }
            Provisioner::HostPath => (
                HOST_PATH,
                failed(format!(
                    "Failed to create provisioner: provisioning in volume plugin \"{HOST_PATH}\" is disabled"
                )),
            ),
            Provisioner::External(name) => (
                name,
                Event::normal(
                    claim,
                    "ExternalProvisioning",
                    format!(
                        "Waiting for a volume to be created either by the external provisioner '{name}' or manually by the system administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered."
                    ),
                ),
            ),
        };
        if self.memory.provisioning.is_none() {
            self.memory.provisioning = Some(self.began(name));
        }
        if annotation(claim, PROVISIONER) == Some(name) {
            if self.record(ABOUT, event) && name == HOST_PATH {
                for counter in ERRORS {
                    self.plan.measure(counter, &[name, "provision"], 1.0);
                }
            }
            return;
        }
        let mut new = claim.clone();
        let meta = new.metadata_mut();
        meta.set_annotation(BETA_PROVISIONER, name);
        meta.set_annotation(PROVISIONER, name);
        with_migration(&mut new, Some(name));
        let (recorded, _) = self.due(ABOUT, &event);
        self.recorded.insert(ABOUT.to_owned(), recorded);
        if let Some(action) = self.plan.update(claim, &new) {
            action.announce(event);
            action.announce_failure(failed("Error saving claim: ".to_owned()));
            for counter in ERRORS {
                action.measure_failure(counter, &[name, "provision"], 1.0);
            }
        }
    }

    /// A claim that asks for a volume by name.
    fn take_volume(&mut self, claim: &PersistentVolumeClaim, name: &str) -> Result<(), Refusal> {
        let Some(volume) = self.seen.get::<PersistentVolume>(&Key::cluster(name)) else {
            self.pend(claim);
            return Ok(());
        };
        let Some(to) = claim_ref(&volume) else {
            match mismatch(&volume, claim) {
                None => self.bind(&volume, claim),
                Some(why) => {
                    let text = format!("Cannot bind to requested volume \"{name}\": {why}");
                    self.record(ABOUT, Event::warning(claim, "VolumeMismatch", text));
                    self.pend(claim);
                }
            }
            return Ok(());
        };
        if points_at(&volume, claim) {
            self.bind(&volume, claim);
            return Ok(());
        }
        let text = format!("volume \"{name}\" already bound to a different claim.");
        self.record(ABOUT, Event::warning(claim, "FailedBinding", text));
        if has(claim, BOUND_BY_CONTROLLER) {
            self.plan.fail(format!(
                "invalid binding of claim \"{}\" to volume \"{name}\": volume already claimed by \"{}/{}\"",
                self.key, to.namespace, to.name
            ));
        } else {
            self.pend(claim);
        }
        Ok(())
    }

    /// Binds a volume and a claim: the volume refers to the claim, the claim names the volume, and both
    /// statuses are Bound. Each object is written once in a plan; the rest follows when the watch has
    /// delivered the write.
    fn bind(&mut self, volume: &PersistentVolume, claim: &PersistentVolumeClaim) {
        let provisioner = self.memory.provisioning.as_ref();
        let provisioner = provisioner.map(|began| began.plugin.clone());
        let action = match bound_volume(volume, claim) {
            Some(new) => self.plan.update(volume, &new),
            None => self.enter(volume, BOUND, ""),
        };
        let is_written = action.is_some();
        if let (Some(action), Some(plugin)) = (action, &provisioner) {
            for counter in ERRORS {
                action.measure_failure(counter, &[plugin, "provision"], 1.0);
            }
        }
        // A volume that was bound before keeps its annotations and finalizers.
        if is_written {
            self.touched.push(Object::metadata(volume).name.clone());
        }
        self.plan.then();
        let action = match bound_claim(claim, volume) {
            Some(new) => self.plan.update(claim, &new),
            None => match with_volume(claim, volume) {
                Ok(new) => self
                    .plan
                    .update_status(claim, &new)
                    .map(|action| action.reports(StatusWrite::No)),
                Err(why) => {
                    self.plan.fail(why);
                    None
                }
            },
        };
        if let (Some(action), Some(plugin)) = (action, &provisioner) {
            for counter in ERRORS {
                action.measure_failure(counter, &[plugin, "provision"], 1.0);
            }
        }
    }

    /// Sets a volume's phase; nothing where it is set already.
    pub(super) fn enter(
        &mut self,
        volume: &PersistentVolume,
        phase: &str,
        message: &str,
    ) -> Option<&mut controllers_kit::Action> {
        if volume_phase(volume) == phase {
            return None;
        }
        let mut new = volume.clone();
        let status = new.status.get_or_insert_default();
        status.phase = phase.to_owned();
        status.message = message.to_owned();
        let action = self.plan.update_status(volume, &new)?;
        Some(action.reports(StatusWrite::No))
    }
}
