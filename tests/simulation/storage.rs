//! Volumes from their making to their end: who provisions, schedules and resizes here, and what must hold of
//! that.
//!
//! A provisioner makes a disk for each claim that is annotated for it, and some time later the volume,
//! whether or not the claim is still there; it deletes the disk of a Released volume of policy Delete that is
//! attached nowhere, then the volume, then its own finalizer, as external-provisioner does. The scheduler
//! binds volumes of classes that wait for the first consumer: it points a free one at the claim, or names a
//! node for the provisioner; it binds a pod once all its claims are bound. Kubelets run pods whose claims are
//! bound. A resizer does what the expander has asked for. Attaching is done in `attachments.rs`.
//!
//! Each rule has a name, by which a deliberate fault says that it is this one which must catch it. None
//! allows for late watches: what they forbid loses data.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use controllers_kit::{
    Reader as _,
    testing::{PodBuild as _, World},
};
use kubernetes_proto::{
    AnyObject, Object, Str, cast,
    core::{
        CsiPersistentVolumeSource, Node, ObjectReference, PersistentVolume, PersistentVolumeClaim,
        PersistentVolumeSource, PersistentVolumeSpec, Pod,
    },
    storage::{StorageClass, VolumeAttachment, VolumeAttributesClass},
};

use crate::{
    attachments::{self, DRIVER},
    dice::Dice,
    heartbeats::SILENT,
    server::{Change, Server},
};

/// Who binds.
pub const BINDER: &str = "persistentvolume-binder-controller";
/// Who keeps volumes that are bound.
pub const VOLUME_PROTECTION: &str = "persistentvolume-protection-controller";
/// Who keeps the classes of attributes that are named.
pub const CLASS_PROTECTION: &str = "volumeattributesclass-protection-controller";

/// No volume becomes Released while the claim that it points at is there and has no other volume.
pub const RELEASED: &str = "released-while-claimed";
/// Neither a volume nor its disk goes while a claim has it.
pub const DELETED: &str = "deleted-while-claimed";
/// No two attachments of a volume that one node alone may have both say that it is attached.
pub const ATTACHED: &str = "attached-once";
/// The protection of a volume stays on it while a claim has it.
pub const VOLUME_KEPT: &str = "volume-kept";
/// The protection of a class of attributes stays on it while something names it that did when the class was
/// deleted.
pub const CLASS_KEPT: &str = "class-kept";
/// A claim has one volume and a volume one claim, for good.
pub const BOUND_ONCE: &str = "bound-once";
/// At the end every claim is bound to a volume that is bound to it, and nothing waits for somebody.
pub const PROGRESS: &str = "progress";

/// Finalizers, as the API server's admission adds them to what is made.
pub const OF_CLAIM: &str = "kubernetes.io/pvc-protection";
/// Of a volume.
pub const OF_VOLUME: &str = "kubernetes.io/pv-protection";
/// Of a class of attributes.
pub const OF_CLASS: &str = "kubernetes.io/vac-protection";
/// The provisioner's own.
const OF_PROVISIONER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

/// By which a pod says on which node it is to run.
pub const WANTED_NODE: &str = "simulation.example.com/node";
/// A claim that nothing can be bound to.
pub const STAYS_PENDING: &str = "simulation.example.com/stays-pending";
/// The class whose volumes outlive their claims.
pub const RETAINING: &str = "retained";

const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const RESIZER: &str = "volume.kubernetes.io/storage-resizer";
const WAIT: &str = "WaitForFirstConsumer";

/// Who provisions, schedules, runs pods and resizes.
#[derive(Default)]
pub struct Actors {
    /// Whether they are at work.
    acts: bool,
    /// Volumes whose disks are there already, by the claim's uid.
    making: BTreeMap<Str, PersistentVolume>,
    /// Volumes whose disks are gone, by uid.
    destroyed: Vec<Str>,
    /// What they did that must not have been.
    wrong: Vec<String>,
}

/// What the judge remembers.
#[derive(Default)]
pub struct Storage {
    /// At which version a class of attributes was deleted, by name.
    doomed: BTreeMap<Str, u64>,
    /// At which version something named a class first, by uid and class.
    named: BTreeMap<(Str, String), u64>,
    /// Uids of attachments that were asked for by a write that the server's fence would refuse.
    late: BTreeSet<Str>,
}

fn name<T: Object>(object: &T) -> &Str {
    &object.metadata().name
}

/// A claim's key as the world takes it.
fn place<T: Object>(object: &T) -> String {
    let meta = object.metadata();
    format!("{}/{}", meta.namespace, meta.name)
}

fn holds<T: Object>(object: &T, finalizer: &str) -> bool {
    let held = &object.metadata().finalizers;
    held.iter().any(|one| **one == *finalizer)
}

fn volume_name(claim: &PersistentVolumeClaim) -> &str {
    claim.spec.as_ref().map_or("", |spec| &spec.volume_name)
}

fn claim_phase(claim: &PersistentVolumeClaim) -> &str {
    claim.status.as_ref().map_or("", |status| &status.phase)
}

fn volume_phase(volume: &PersistentVolume) -> &str {
    volume.status.as_ref().map_or("", |status| &status.phase)
}

/// Whether both sides of a claim's binding are done.
pub fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.metadata().annotation(BIND_COMPLETED).is_some() && claim_phase(claim) == "Bound"
}

fn class_of(claim: &PersistentVolumeClaim) -> &str {
    let named = claim
        .spec
        .as_ref()
        .and_then(|spec| spec.storage_class_name.as_deref());
    named.unwrap_or_default()
}

fn reference(volume: &PersistentVolume) -> Option<&ObjectReference> {
    volume.spec.as_ref()?.claim_ref.as_ref()
}

/// The claim that a volume points at, if it is there.
fn claim_of(world: &World, volume: &PersistentVolume) -> Option<Arc<PersistentVolumeClaim>> {
    let to = reference(volume)?;
    let claim = world.find::<PersistentVolumeClaim>(&format!("{}/{}", to.namespace, to.name))?;
    (claim.metadata().uid == *to.uid).then_some(claim)
}

/// The claim that has a volume: each names the other.
fn owner_of(world: &World, volume: &PersistentVolume) -> Option<Arc<PersistentVolumeClaim>> {
    claim_of(world, volume).filter(|claim| volume_name(claim) == name(volume).as_str())
}

/// The names of the classes of attributes that an object names.
fn attribute_classes(object: &AnyObject) -> Vec<String> {
    if let Some(volume) = object.as_any().downcast_ref::<PersistentVolume>() {
        let spec = volume.spec.as_ref();
        let class = spec.and_then(|spec| spec.volume_attributes_class_name.clone());
        return class.into_iter().collect();
    }
    let Some(claim) = object.as_any().downcast_ref::<PersistentVolumeClaim>() else {
        return Vec::new();
    };
    let asked = claim.spec.as_ref();
    let asked = asked.and_then(|spec| spec.volume_attributes_class_name.clone());
    let held = claim.status.as_ref();
    let held = held.and_then(|status| status.current_volume_attributes_class_name.clone());
    asked.into_iter().chain(held).collect()
}

/// The volume that a provisioner makes for a claim.
fn provisioned(claim: &PersistentVolumeClaim, class: &str) -> PersistentVolume {
    let meta = claim.metadata();
    let spec = claim.spec.clone().unwrap_or_default();
    let mut volume = PersistentVolume::default();
    let made = volume.metadata_mut();
    made.name = format!("pvc-{}", meta.uid).as_str().into();
    made.set_annotation(PROVISIONED_BY, DRIVER);
    made.finalizers = vec![OF_VOLUME.into()];
    let policy = match class {
        RETAINING => "Retain",
        _ => {
            made.finalizers.push(OF_PROVISIONER.into());
            "Delete"
        }
    };
    volume.spec = Some(PersistentVolumeSpec {
        capacity: spec.resources.unwrap_or_default().requests,
        access_modes: spec.access_modes,
        storage_class_name: class.to_owned(),
        persistent_volume_reclaim_policy: policy.to_owned(),
        claim_ref: Some(ObjectReference {
            kind: "PersistentVolumeClaim".to_owned(),
            api_version: "v1".to_owned(),
            namespace: meta.namespace.to_string(),
            name: meta.name.to_string(),
            uid: meta.uid.to_string(),
            ..ObjectReference::default()
        }),
        persistent_volume_source: Some(PersistentVolumeSource {
            csi: Some(Box::new(CsiPersistentVolumeSource {
                driver: DRIVER.to_owned(),
                volume_handle: format!("disk-{}", meta.uid),
                ..CsiPersistentVolumeSource::default()
            })),
            ..PersistentVolumeSource::default()
        }),
        ..PersistentVolumeSpec::default()
    });
    // As the API server leaves it.
    volume.status.get_or_insert_default().phase = "Pending".to_owned();
    volume
}

/// The claims that a pod names, as far as they are there; `None` where one is not.
fn claims_of(world: &World, pod: &Pod) -> Option<Vec<Arc<PersistentVolumeClaim>>> {
    let namespace = &Object::metadata(pod).namespace;
    let names = attachments::claim_names(pod);
    let find = |name: String| world.find::<PersistentVolumeClaim>(&format!("{namespace}/{name}"));
    names.into_iter().map(find).collect()
}

impl Actors {
    /// At work or not.
    pub fn new(acts: bool) -> Self {
        Self {
            acts,
            ..Self::default()
        }
    }

    /// What must not have been of what they did since the last call.
    pub fn take_wrong(&mut self) -> Vec<String> {
        std::mem::take(&mut self.wrong)
    }

    /// They do some of what they have to do; whether there was anything.
    pub fn step(&mut self, world: &mut World, dice: &mut Dice) -> bool {
        if !self.acts {
            return false;
        }
        let provisions = self.provision(world, dice);
        let destroys = self.destroy(world, dice);
        let schedules = schedule(world, dice);
        let runs = run_pods(world, dice);
        let resizes = resize(world, dice);
        provisions || destroys || schedules || runs || resizes
    }

    fn provision(&mut self, world: &mut World, dice: &mut Dice) -> bool {
        let mut busy = false;
        for claim in world.all::<PersistentVolumeClaim>() {
            let meta = claim.metadata();
            let class = class_of(&claim).to_owned();
            let is_asked = meta.annotation(PROVISIONER) == Some(DRIVER)
                && volume_name(&claim).is_empty()
                && !meta.is_terminating()
                && !self.making.contains_key(&meta.uid);
            if !is_asked {
                continue;
            }
            let Some(held) = world.find::<StorageClass>(&class) else {
                continue;
            };
            let waits = held.volume_binding_mode.as_deref() == Some(WAIT);
            let is_chosen = !waits || meta.annotation(SELECTED_NODE).is_some();
            let volume = provisioned(&claim, &class);
            if !is_chosen || world.find::<PersistentVolume>(name(&volume)).is_some() {
                continue;
            }
            busy = true;
            if dice.chance(300) {
                self.making.insert(meta.uid.clone(), volume);
            }
        }
        for uid in self.making.keys().cloned().collect::<Vec<_>>() {
            busy = true;
            if dice.chance(300)
                && let Some(volume) = self.making.remove(&uid)
            {
                world.put(volume);
            }
        }
        busy
    }

    fn destroy(&mut self, world: &mut World, dice: &mut Dice) -> bool {
        let mut busy = false;
        for volume in world.all::<PersistentVolume>() {
            let meta = volume.metadata();
            let is_gone = self.destroyed.contains(&meta.uid);
            let policy = volume
                .spec
                .as_ref()
                .map_or("", |spec| spec.persistent_volume_reclaim_policy.as_str());
            let is_mine = meta.annotation(PROVISIONED_BY) == Some(DRIVER) && policy == "Delete";
            let may_go = volume_phase(&volume) == "Released"
                && (!meta.is_terminating() || holds(&*volume, OF_PROVISIONER));
            let attached = world.all::<VolumeAttachment>();
            let is_attached = attached
                .iter()
                .any(|one| attachments::source(one) == Some(name(&*volume).as_str()));
            if !is_mine || !may_go || is_attached {
                continue;
            }
            busy = true;
            if !dice.chance(300) {
                continue;
            }
            if !is_gone {
                if let Some(claim) = owner_of(world, &volume) {
                    self.wrong.push(format!(
                        "{DELETED}: the disk of {} was deleted, which the claim {} has",
                        meta.name,
                        place(&*claim)
                    ));
                }
                self.destroyed.push(meta.uid.clone());
            } else if !meta.is_terminating() {
                world.delete::<PersistentVolume>(&meta.name);
            } else {
                world.change::<PersistentVolume>(&meta.name, |volume| {
                    let held = &mut volume.metadata_mut().finalizers;
                    held.retain(|one| **one != *OF_PROVISIONER);
                });
            }
        }
        busy
    }
}

impl Storage {
    /// Of a cluster as it is.
    pub fn new(server: &Server) -> Self {
        let mut storage = Self::default();
        for object in server.world.objects() {
            storage.note(object);
        }
        storage
    }

    fn note(&mut self, object: &AnyObject) {
        let meta = object.metadata();
        let version = meta.resource_version;
        if object.resource() == VolumeAttributesClass::resource() && meta.is_terminating() {
            self.doomed.entry(meta.name.clone()).or_insert(version);
        }
        for class in attribute_classes(object) {
            let place = (meta.uid.clone(), class);
            self.named.entry(place).or_insert(version);
        }
    }

    /// A write that the server's fence would refuse has asked for something: that an attachment is one too
    /// many is excused.
    pub fn late(&mut self, change: &Change) {
        if let (None, Some(new)) = (&change.old, &change.new)
            && new.resource() == VolumeAttachment::resource()
        {
            self.late.insert(new.metadata().uid.clone());
        }
    }

    /// Attachments among those whose volumes are gone: nobody takes them away, as upstream does not.
    pub fn left_over(&self, world: &World) -> Vec<String> {
        let attachments = world.all::<VolumeAttachment>();
        let late = attachments
            .iter()
            .filter(|one| self.late.contains(&one.metadata().uid));
        let is_gone = |one: &&Arc<VolumeAttachment>| {
            let volume = attachments::source(one);
            volume.is_some_and(|volume| world.find::<PersistentVolume>(volume).is_none())
        };
        late.filter(is_gone)
            .map(|one| name(&**one).to_string())
            .collect()
    }

    /// Judges a change, made by a controller if one is named.
    pub fn after(
        &mut self,
        server: &Server,
        change: &Change,
        controller: Option<&str>,
    ) -> Vec<String> {
        if let Some(new) = &change.new {
            self.note(new);
        }
        let mut wrong = Vec::new();
        let world = &server.world;
        let volume = |one: &Option<AnyObject>| {
            let one = Arc::clone(one.as_ref()?);
            cast::<PersistentVolume>(one)
        };
        match (volume(&change.old), volume(&change.new)) {
            (None, None) => {}
            (old, Some(new)) => {
                wrong.extend(released(world, old.as_deref(), &new));
                wrong.extend(volume_given_twice(world, old.as_deref(), &new));
                if let Some(old) = old {
                    wrong.extend(let_go(world, &old, Some(&new), controller));
                }
            }
            (Some(old), None) => {
                if let Some(claim) = owner_of(world, &old) {
                    wrong.push(format!(
                        "{DELETED}: volume {} has gone, which the claim {} has",
                        name(&*old),
                        place(&*claim)
                    ));
                }
                wrong.extend(let_go(world, &old, None, controller));
            }
        }
        let claim = |one: &Option<AnyObject>| {
            let one = Arc::clone(one.as_ref()?);
            cast::<PersistentVolumeClaim>(one)
        };
        if let Some(new) = claim(&change.new) {
            wrong.extend(claim_bound_twice(
                world,
                claim(&change.old).as_deref(),
                &new,
            ));
        }
        if let Some(new) = change.new.as_ref()
            && let Some(attachment) = cast::<VolumeAttachment>(Arc::clone(new))
        {
            wrong.extend(attached_twice(world, &attachment, &self.late));
        }
        if controller == Some(CLASS_PROTECTION) {
            wrong.extend(self.class_let_go(server, change));
        }
        if let (Some(old), None) = (&change.old, &change.new) {
            let meta = old.metadata();
            self.named.retain(|(uid, _), _| *uid != meta.uid);
            if old.resource() == VolumeAttributesClass::resource() {
                self.doomed.remove(&meta.name);
            }
        }
        wrong
    }

    fn class_let_go(&self, server: &Server, change: &Change) -> Option<String> {
        let is_held = |object: &AnyObject| {
            let held = &object.metadata().finalizers;
            held.iter().any(|one| **one == *OF_CLASS)
        };
        let old = change.old.as_ref()?;
        let lets_go = old.resource() == VolumeAttributesClass::resource()
            && is_held(old)
            && !change.new.as_ref().is_some_and(is_held);
        if !lets_go {
            return None;
        }
        let class = &old.metadata().name;
        let doomed = self.doomed.get(class).copied().unwrap_or(u64::MAX);
        let world = &server.world;
        let claims = world.list(PersistentVolumeClaim::resource(), None);
        let volumes = world.list(PersistentVolume::resource(), None);
        let user = claims.into_iter().chain(volumes).find(|object| {
            let named = (object.metadata().uid.clone(), class.to_string());
            let since = self.named.get(&named);
            attribute_classes(object).iter().any(|one| *one == **class)
                && since.is_some_and(|since| *since < doomed)
        })?;
        Some(format!(
            "{CLASS_KEPT}: {CLASS_PROTECTION} let {class} go, which {} names",
            user.metadata().name
        ))
    }
}

/// The scheduler.
fn schedule(world: &mut World, dice: &mut Dice) -> bool {
    let mut busy = false;
    for pod in world.all::<Pod>() {
        let meta = Object::metadata(&*pod);
        let is_waiting =
            controllers_kit::pods::node_name(&pod).is_empty() && !meta.is_terminating();
        let wanted = meta.annotation(WANTED_NODE).filter(|node| !node.is_empty());
        let Some(node) = wanted.filter(|_| is_waiting) else {
            continue;
        };
        let Some(claims) = claims_of(world, &pod) else {
            continue;
        };
        if claims.iter().all(|claim| is_bound(claim)) {
            busy = true;
            if dice.chance(400) {
                let node = node.to_owned();
                world.change::<Pod>(&place(&*pod), |pod| {
                    pod.spec.get_or_insert_default().node_name = node.as_str().into();
                });
            }
            continue;
        }
        for claim in claims {
            let class = world.find::<StorageClass>(class_of(&claim));
            let waits = class
                .as_ref()
                .is_some_and(|class| class.volume_binding_mode.as_deref() == Some(WAIT));
            let is_provisioned = class.is_some_and(|class| class.provisioner == DRIVER);
            let is_new = volume_name(&claim).is_empty()
                && Object::metadata(&*claim)
                    .annotation(SELECTED_NODE)
                    .is_none()
                && !Object::metadata(&*claim).is_terminating();
            if !waits || !is_new {
                continue;
            }
            let pointed = |volume: &PersistentVolume| {
                let uid = &Object::metadata(&*claim).uid;
                reference(volume).is_some_and(|to| *to.uid == **uid)
            };
            let volumes = world.all::<PersistentVolume>();
            if volumes.iter().any(|volume| pointed(volume)) {
                continue;
            }
            let free = volumes.iter().find(|volume| {
                let class = volume
                    .spec
                    .as_ref()
                    .map(|spec| spec.storage_class_name.as_str());
                class == Some(class_of(&claim))
                    && reference(volume).is_none()
                    && volume_phase(volume) == "Available"
                    && !volume.is_terminating()
            });
            // Otherwise the pod can't be scheduled for now.
            let can_be = free.is_some() || is_provisioned;
            busy |= can_be;
            if !can_be || !dice.chance(400) {
                continue;
            }
            match free {
                Some(free) => world.change::<PersistentVolume>(name(&**free), |volume| {
                    let meta = Object::metadata(&*claim);
                    volume
                        .metadata_mut()
                        .set_annotation(BOUND_BY_CONTROLLER, "yes");
                    volume.spec.get_or_insert_default().claim_ref = Some(ObjectReference {
                        kind: "PersistentVolumeClaim".to_owned(),
                        api_version: "v1".to_owned(),
                        namespace: meta.namespace.to_string(),
                        name: meta.name.to_string(),
                        uid: meta.uid.to_string(),
                        ..ObjectReference::default()
                    });
                }),
                None => world.change::<PersistentVolumeClaim>(&place(&*claim), |claim| {
                    claim.metadata_mut().set_annotation(SELECTED_NODE, node);
                }),
            }
        }
    }
    busy
}

/// Kubelets start and end pods.
fn run_pods(world: &mut World, dice: &mut Dice) -> bool {
    let mut busy = false;
    let now = world.now().to_string();
    for pod in world.all::<Pod>() {
        let node = controllers_kit::pods::node_name(&pod).to_owned();
        if node.is_empty() {
            continue;
        }
        let key = place(&*pod);
        let node = world.find::<Node>(&node);
        let is_silent = node
            .as_ref()
            .is_some_and(|node| Object::metadata(&**node).label(SILENT).is_some());
        if node.is_none() || is_silent {
            continue;
        }
        if pod.is_terminating() {
            busy = true;
            if dice.chance(400) && Object::metadata(&*pod).finalizers.is_empty() {
                world.vanish::<Pod>(&key);
            }
            continue;
        }
        let phase = pod.status.as_ref().map_or("", |status| &status.phase);
        let is_new = matches!(phase, "" | "Pending");
        let claims = claims_of(world, &pod);
        if is_new && claims.is_some_and(|claims| claims.iter().all(|claim| is_bound(claim))) {
            busy = true;
            if dice.chance(400) {
                world.change::<Pod>(&key, |pod| *pod = pod.clone().ready(&now));
            }
        }
    }
    busy
}

/// Gives claims what they ask for where a resizer was named.
fn resize(world: &mut World, dice: &mut Dice) -> bool {
    let mut busy = false;
    for claim in world.all::<PersistentVolumeClaim>() {
        let asked = claim.spec.as_ref();
        let asked = asked.and_then(|spec| spec.resources.as_ref());
        let asked = asked.map(|resources| resources.requests.clone());
        let held = claim.status.as_ref().map(|status| status.capacity.clone());
        let is_due = Object::metadata(&*claim).annotation(RESIZER).is_some()
            && claim_phase(&claim) == "Bound"
            && asked != held;
        let Some(asked) = asked.filter(|_| is_due) else {
            continue;
        };
        busy = true;
        if !dice.chance(200) {
            continue;
        }
        let capacity = asked.clone();
        if world
            .find::<PersistentVolume>(volume_name(&claim))
            .is_some()
        {
            world.change::<PersistentVolume>(volume_name(&claim), |volume| {
                volume.spec.get_or_insert_default().capacity = capacity;
            });
        }
        world.change::<PersistentVolumeClaim>(&place(&*claim), |claim| {
            claim.status.get_or_insert_default().capacity = asked;
        });
    }
    busy
}

fn released(
    world: &World,
    old: Option<&PersistentVolume>,
    new: &PersistentVolume,
) -> Option<String> {
    let before = old.map_or("", volume_phase);
    if volume_phase(new) != "Released" || before == "Released" {
        return None;
    }
    let claim = claim_of(world, new)?;
    let has_none = volume_name(&claim).is_empty();
    let has_it = volume_name(&claim) == name(new).as_str();
    (has_none || has_it).then(|| {
        format!(
            "{RELEASED}: volume {} is Released, and the claim {} is there",
            name(new),
            place(&*claim)
        )
    })
}

fn let_go(
    world: &World,
    old: &PersistentVolume,
    new: Option<&PersistentVolume>,
    controller: Option<&str>,
) -> Option<String> {
    let lets_go = controller == Some(VOLUME_PROTECTION)
        && holds(old, OF_VOLUME)
        && !new.is_some_and(|new| holds(new, OF_VOLUME));
    if !lets_go {
        return None;
    }
    let user = owner_of(world, old).map(|claim| place(&*claim));
    let says_so = || (volume_phase(old) == "Bound").then(|| "another one".to_owned());
    let user = user.or_else(says_so)?;
    Some(format!(
        "{VOLUME_KEPT}: {VOLUME_PROTECTION} let volume {} go, which the claim {user} has",
        name(old)
    ))
}

fn volume_given_twice(
    world: &World,
    old: Option<&PersistentVolume>,
    new: &PersistentVolume,
) -> Option<String> {
    let uid = |volume: &PersistentVolume| {
        let to = reference(volume).map(|to| to.uid.clone());
        to.filter(|uid| !uid.is_empty())
    };
    let (before, after) = (old.and_then(uid), uid(new));
    let volume = name(new);
    if before.is_some() && after.is_some() && before != after {
        return Some(format!(
            "{BOUND_ONCE}: volume {volume} pointed at one claim and points at another"
        ));
    }
    let after = after.filter(|_| volume_phase(new) == "Bound")?;
    let volumes = world.all::<PersistentVolume>();
    let other = volumes.iter().find(|other| {
        name(&***other) != volume
            && volume_phase(other) == "Bound"
            && uid(other).as_ref() == Some(&after)
    })?;
    Some(format!(
        "{BOUND_ONCE}: volumes {volume} and {} are bound to one claim",
        name(&**other)
    ))
}

fn claim_bound_twice(
    world: &World,
    old: Option<&PersistentVolumeClaim>,
    new: &PersistentVolumeClaim,
) -> Option<String> {
    let (before, after) = (old.map_or("", volume_name), volume_name(new));
    if !before.is_empty() && before != after {
        return Some(format!(
            "{BOUND_ONCE}: the claim {} had volume {before} and has {after:?}",
            place(new)
        ));
    }
    let is_done = |claim: &PersistentVolumeClaim| {
        Object::metadata(claim).annotation(BIND_COMPLETED).is_some()
    };
    if after.is_empty() || !is_done(new) {
        return None;
    }
    let claims = world.all::<PersistentVolumeClaim>();
    let other = claims.iter().find(|other| {
        Object::metadata(&***other).uid != Object::metadata(new).uid
            && volume_name(other) == after
            && is_done(other)
    })?;
    Some(format!(
        "{BOUND_ONCE}: the claims {} and {} both have volume {after}",
        place(new),
        place(&**other)
    ))
}

fn attached_twice(
    world: &World,
    attachment: &VolumeAttachment,
    late: &BTreeSet<Str>,
) -> Option<String> {
    let source = attachments::source(attachment)?;
    let volume = world.find::<PersistentVolume>(source)?;
    if attachments::is_shared(&volume) {
        return None;
    }
    let is_attached =
        |one: &VolumeAttachment| one.status.as_ref().is_some_and(|status| status.attached);
    let all = world.all::<VolumeAttachment>();
    let nodes: Vec<&str> = all
        .iter()
        .filter(|one| attachments::source(one) == Some(source) && is_attached(one))
        .filter(|one| !late.contains(&one.metadata().uid))
        .filter_map(|one| one.spec.as_ref().map(|spec| spec.node_name.as_str()))
        .collect();
    (nodes.len() > 1).then(|| format!("{ATTACHED}: {source} is attached to all of {nodes:?}"))
}

/// What is wrong at the end.
pub fn at_the_end(server: &Server) -> Option<String> {
    let world = &server.world;
    if !server.world.all::<StorageClass>().is_empty() {
        for claim in world.all::<PersistentVolumeClaim>() {
            let meta = Object::metadata(&*claim);
            if meta.is_terminating() || meta.annotation(STAYS_PENDING).is_some() {
                continue;
            }
            let volume = world.find::<PersistentVolume>(volume_name(&claim));
            let is_its = volume.is_some_and(|volume| {
                volume_phase(&volume) == "Bound"
                    && reference(&volume).is_some_and(|to| *to.uid == *meta.uid)
            });
            if !is_bound(&claim) || !is_its {
                return Some(format!(
                    "{PROGRESS}: the claim {} is not bound to a volume that is bound to it",
                    place(&*claim)
                ));
            }
        }
    }
    let lost = world
        .all::<PersistentVolume>()
        .into_iter()
        .find(|volume| volume_phase(volume) == "Bound" && owner_of(world, volume).is_none())?;
    Some(format!(
        "{PROGRESS}: volume {} is bound to a claim that does not have it",
        name(&*lost)
    ))
}
