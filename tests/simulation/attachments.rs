//! Attached volumes: who attaches and mounts them here, and what must hold of that.
//!
//! A driver attaches what VolumeAttachments ask for, and holds them and their PersistentVolumes by a
//! finalizer until it has detached, as external-attacher does.
//! Each kubelet reports the volumes of its pods as in use, then reads whether its node lists them as
//! attached, and mounts a while after that read, without another check. A node out of service does nothing
//! any more.
//!
//! Without allowance for late watches, since a wrong detach corrupts a file system: nobody asks for an
//! attachment of a volume that one node alone may have while another node has one, and nothing is detached
//! from a node, or taken off its list, while its kubelet has it mounted or is about to mount it. Nodes out of
//! service are excepted; runs end before the six minutes after which a silent node may lose its volumes.

use std::{collections::BTreeSet, sync::Arc};

use controllers_kit::testing::World;
use kubernetes_proto::{
    Object, cast,
    core::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::{VolumeAttachment, VolumeAttachmentStatus},
};

use crate::{
    dice::Dice,
    heartbeats::SILENT,
    server::{Change, Server},
};

/// Who asks for attachments.
pub const CONTROLLER: &str = "persistentvolume-attach-detach-controller";
/// The driver's name.
pub const DRIVER: &str = "disks.example.com";
/// By which the kubelets say that attachments are asked for by a controller.
pub const MANAGED: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
/// By which nodes are taken to be shut down.
pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// PersistentVolumes whose names begin so are attached and detached slowly: longer than a takeover takes.
pub const SLOW: &str = "slow-";
/// By which the driver holds attachments and PersistentVolumes.
pub const FINALIZER: &str = "external-attacher/disks-example-com";

/// A node and the unique name of a volume.
type Place = (String, String);

/// What the kubelets know.
#[derive(Default)]
pub struct Attachments {
    mounted: BTreeSet<Place>,
    /// Volumes that a node was read to list, in use as reported.
    mounting: BTreeSet<Place>,
    /// Whose attachments a write has ended that the server's fence would refuse.
    spoiled: BTreeSet<Place>,
}

fn is_out(node: &Node) -> bool {
    let mut taints = node.spec.iter().flat_map(|spec| &spec.taints);
    taints.any(|taint| taint.key == OUT_OF_SERVICE)
}

fn name<T: Object>(object: &T) -> String {
    object.metadata().name.to_string()
}

fn is_held<T: Object>(object: &T) -> bool {
    let held = &object.metadata().finalizers;
    held.iter().any(|one| **one == *FINALIZER)
}

fn listed(node: &Node) -> BTreeSet<&str> {
    let status = node.status.iter();
    let volumes = status.flat_map(|status| &status.volumes_attached);
    volumes.map(|volume| volume.name.as_str()).collect()
}

/// The unique name of a PersistentVolume.
fn unique(volume: &PersistentVolume) -> Option<String> {
    let source = volume.spec.as_ref()?.persistent_volume_source.as_ref()?;
    let csi = source.csi.as_ref()?;
    Some(format!(
        "kubernetes.io/csi/{}^{}",
        csi.driver, csi.volume_handle
    ))
}

/// The PersistentVolume of an attachment.
pub fn source(attachment: &VolumeAttachment) -> Option<&str> {
    let source = attachment.spec.as_ref()?.source.as_ref()?;
    source.persistent_volume_name.as_deref()
}

/// The names of the claims that a pod names, those of generic ephemeral volumes included.
pub fn claim_names(pod: &Pod) -> Vec<String> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter());
    let named = volumes.filter_map(|volume| {
        let source = volume.volume_source.as_ref()?;
        let inline = source.inline.as_deref();
        if inline.is_some_and(|inline| inline.ephemeral.is_some()) {
            return Some(format!("{}-{}", Object::metadata(pod).name, volume.name));
        }
        let claim = source.persistent_volume_claim.as_ref()?;
        Some(claim.claim_name.to_string())
    });
    named.collect()
}

/// Whether several nodes may have a volume at once.
pub fn is_shared(volume: &PersistentVolume) -> bool {
    let mut modes = volume.spec.iter().flat_map(|spec| &spec.access_modes);
    modes.any(|mode| !matches!(&**mode, "ReadWriteOnce" | "ReadWriteOncePod"))
}

/// The unique names of the volumes of pods on a node.
fn wanted(world: &World, node: &str) -> BTreeSet<String> {
    let mut wanted = BTreeSet::new();
    for pod in world.all::<Pod>() {
        let is_there = controllers_kit::pods::node_name(&pod) == node;
        if !is_there || controllers_kit::pods::has_finished(&pod) {
            continue;
        }
        let namespace = &Object::metadata(&*pod).namespace;
        for claim in claim_names(&pod) {
            let claim = world.find::<PersistentVolumeClaim>(&format!("{namespace}/{claim}"));
            let volume = claim.and_then(|claim| {
                let spec = claim.spec.as_ref()?;
                world.find::<PersistentVolume>(&spec.volume_name)
            });
            wanted.extend(volume.as_deref().and_then(unique));
        }
    }
    wanted
}

/// The driver lets go of PersistentVolumes that are deleted and attached nowhere; whether there were any.
fn release(world: &mut World, dice: &mut Dice) -> bool {
    let mut busy = false;
    for volume in world.all::<PersistentVolume>() {
        let name = name(&*volume);
        if !volume.is_terminating() || !is_held(&*volume) {
            continue;
        }
        let attachments = world.all::<VolumeAttachment>();
        if attachments.iter().any(|one| source(one) == Some(&name)) {
            continue;
        }
        busy = true;
        if dice.chance(300) {
            world.change::<PersistentVolume>(&name, |volume| {
                let held = &mut volume.metadata_mut().finalizers;
                held.retain(|one| **one != *FINALIZER);
            });
        }
    }
    busy
}

impl Attachments {
    /// The driver and the kubelets do some of what they have to do; whether there was anything. Without
    /// volumes no chance is drawn.
    pub fn step(&mut self, world: &mut World, dice: &mut Dice) -> bool {
        let mut busy = false;
        for attachment in world.all::<VolumeAttachment>() {
            let volume = source(&attachment).and_then(|name| world.find::<PersistentVolume>(name));
            let unheld = volume.filter(|volume| !is_held(&**volume));
            let is_held = is_held(&*attachment);
            let is_attached = attachment.status.as_ref().is_some_and(|one| one.attached);
            let is_ending = attachment.is_terminating();
            if is_ending && !is_held || !is_ending && is_attached {
                continue;
            }
            let refused = unheld
                .as_ref()
                .is_some_and(|volume| volume.is_terminating());
            if refused && !is_ending && !is_held {
                continue;
            }
            busy = true;
            let is_slow = source(&attachment).is_some_and(|name| name.starts_with(SLOW));
            if !dice.chance(if is_slow { 12 } else { 300 }) {
                continue;
            }
            if let Some(volume) = unheld.filter(|_| !is_ending && !is_held) {
                world.change::<PersistentVolume>(&name(&*volume), |volume| {
                    volume.metadata_mut().finalizers.push(FINALIZER.into());
                });
            }
            world.change::<VolumeAttachment>(&name(&*attachment), |one| {
                if is_ending {
                    one.metadata_mut().finalizers.clear();
                } else if is_held {
                    one.status = Some(VolumeAttachmentStatus {
                        attached: true,
                        ..VolumeAttachmentStatus::default()
                    });
                } else {
                    one.metadata_mut().finalizers.push(FINALIZER.into());
                }
            });
        }
        busy |= release(world, dice);
        for node in world.all::<Node>() {
            let meta = Object::metadata(&*node);
            if meta.annotation(MANAGED).is_some() && meta.label(SILENT).is_none() && !is_out(&node)
            {
                busy |= self.kubelet(world, &node, dice);
            }
        }
        busy
    }

    fn kubelet(&mut self, world: &mut World, node: &Node, dice: &mut Dice) -> bool {
        let mut busy = false;
        let name = name(node);
        let wanted = wanted(world, &name);
        let used: BTreeSet<String> = node
            .status
            .iter()
            .flat_map(|status| status.volumes_in_use.iter().cloned())
            .collect();
        let listed = listed(node);
        let mut target = wanted.clone();
        for (_, volume) in self.of(&name) {
            target.insert(volume);
        }
        for volume in target.iter().chain(&used).collect::<BTreeSet<_>>() {
            let place = (name.clone(), volume.clone());
            let is_wanted = wanted.contains(volume);
            if self.mounted.contains(&place) {
                busy |= !is_wanted;
                if !is_wanted && dice.chance(300) {
                    self.mounted.remove(&place);
                }
            } else if self.mounting.contains(&place) {
                busy = true;
                if dice.chance(300) {
                    self.mounting.remove(&place);
                    self.mounted.insert(place);
                }
            } else if is_wanted && used.contains(volume) && listed.contains(volume.as_str()) {
                busy = true;
                if dice.chance(500) {
                    self.mounting.insert(place);
                }
            }
        }
        let mut target = wanted;
        target.extend(self.of(&name).map(|(_, volume)| volume));
        busy |= target != used;
        if target != used && dice.chance(500) {
            world.change::<Node>(&name, |node| {
                node.status.get_or_insert_default().volumes_in_use = target.into_iter().collect();
            });
        }
        busy
    }

    /// Whether a pod's node has all volumes mounted that its pods want.
    pub fn are_mounted(&self, world: &World, pod: &Pod) -> bool {
        let node = controllers_kit::pods::node_name(pod);
        let mut wanted = wanted(world, node).into_iter();
        claim_names(pod).is_empty()
            || wanted.all(|volume| self.mounted.contains(&(node.to_owned(), volume)))
    }

    /// What a node has mounted or is about to mount.
    fn of(&self, node: &str) -> impl Iterator<Item = Place> {
        let all = self.mounted.iter().chain(&self.mounting);
        all.filter(move |(at, _)| at == node).cloned()
    }

    fn has(&self, node: &str, volume: &str) -> bool {
        let place = (node.to_owned(), volume.to_owned());
        self.mounted.contains(&place) || self.mounting.contains(&place)
    }

    /// A write that the server's fence would refuse has ended an attachment: what follows from that is
    /// excused.
    pub fn spoiled(&mut self, server: &Server, change: &Change) {
        let old = change.old.as_ref().map(Arc::clone);
        let Some(old) = old.and_then(cast::<VolumeAttachment>) else {
            return;
        };
        let volume = source(&old).and_then(|name| server.world.find::<PersistentVolume>(name));
        let node = old.spec.as_ref().map(|spec| spec.node_name.clone());
        if let Some(place) = node.zip(volume.and_then(|volume| unique(&volume))) {
            self.spoiled.insert(place);
        }
    }

    /// Judges a change, made by a controller if one is named.
    pub fn after(
        &self,
        server: &Server,
        change: &Change,
        controller: Option<&str>,
    ) -> Option<String> {
        if controller != Some(CONTROLLER) {
            return None;
        }
        let of = |one: &Option<kubernetes_proto::AnyObject>| {
            let one = Arc::clone(one.as_ref()?);
            cast::<VolumeAttachment>(one)
        };
        match (of(&change.old), of(&change.new)) {
            (None, None) => self.unlisted(change),
            (None, Some(made)) => attached_twice(server, &made),
            (Some(old), new) => {
                let ends = !old.is_terminating() && new.is_none_or(|new| new.is_terminating());
                ends.then(|| self.detached(server, &old)).flatten()
            }
        }
    }

    fn detached(&self, server: &Server, attachment: &VolumeAttachment) -> Option<String> {
        let node = &attachment.spec.as_ref()?.node_name;
        let volume = server.world.find::<PersistentVolume>(source(attachment)?)?;
        let volume = unique(&volume)?;
        let is_out = server
            .world
            .find::<Node>(node)
            .is_some_and(|node| is_out(&node));
        (!is_out && self.has(node, &volume))
            .then(|| format!("{CONTROLLER}: detached {volume} from {node}, which has it mounted"))
    }

    fn unlisted(&self, change: &Change) -> Option<String> {
        let node = |one: &Option<kubernetes_proto::AnyObject>| {
            let one = Arc::clone(one.as_ref()?);
            cast::<Node>(one)
        };
        let (old, new) = (node(&change.old)?, node(&change.new)?);
        let name = name(&*new);
        let kept = listed(&new);
        let gone = listed(&old)
            .into_iter()
            .filter(|volume| !self.spoiled.contains(&(name.clone(), (*volume).to_owned())))
            .find(|volume| !kept.contains(volume) && self.has(&name, volume))?;
        (!is_out(&new)).then(|| {
            format!("{CONTROLLER}: took {gone} off the list of {name}, which has it mounted")
        })
    }
}

/// Whether a volume that one node alone may have has an attachment to another node.
fn attached_twice(server: &Server, made: &VolumeAttachment) -> Option<String> {
    let volume = source(made)?;
    let is_shared = is_shared(&*server.world.find::<PersistentVolume>(volume)?);
    let node = |one: &VolumeAttachment| one.spec.as_ref().map(|spec| spec.node_name.clone());
    let all = server.world.all::<VolumeAttachment>();
    let other = all
        .iter()
        .find(|one| source(one) == Some(volume) && node(one) != node(made))?;
    (!is_shared).then(|| {
        format!(
            "{CONTROLLER}: asked for an attachment of {volume} to {:?} while {:?} has one",
            node(made).unwrap_or_default(),
            node(other).unwrap_or_default()
        )
    })
}
