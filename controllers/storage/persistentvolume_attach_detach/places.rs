//! Where a volume is, where it should be, and what else a node's list waits for.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use controllers_kit::{Key, Reader, Snapshot, cast, pods::node_name};
use kubernetes_proto::{
    Object,
    core::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::{CsiDriver, VolumeAttachment},
};

use crate::claims;

use super::volumes::{
    BY_IN_LINE, BY_NODE, BY_SOURCE, BY_VOLUME, Spec, Unique, Wanted, persistent_name, wanted,
};

/// A volume on one node.
#[derive(Default)]
pub(super) struct Place {
    /// The node, if there is one.
    pub(super) node: Option<Arc<Node>>,
    /// The pods on it that want the volume, in order of namespace and name.
    pub(super) pods: Vec<Arc<Pod>>,
    /// How many volumes of its pods this is, those of pods that have ended and of drivers that attach nothing
    /// included.
    pub(super) references: usize,
    /// How they specify it.
    pub(super) spec: Option<Spec>,
    /// Whether a pod on it has the volume by a claim that is not bound to it any more: nothing is attached
    /// for it, and nothing is taken from it.
    pub(super) kept: bool,
    /// The attachment, by the name that follows from volume and node.
    pub(super) attachment: Option<Arc<VolumeAttachment>>,
    /// Whether an attachment of somebody else, by another name, is there.
    pub(super) foreign: bool,
}

impl Place {
    /// Whether the node lists the volume as attached.
    pub(super) fn is_listed(&self, unique: &Unique) -> bool {
        self.node
            .as_ref()
            .is_some_and(|node| lists(node, &unique.text))
    }

    /// Whether the node reports that the volume is in use; `None` if it is gone.
    pub(super) fn is_in_use(&self, unique: &Unique) -> Option<bool> {
        self.node.as_ref().map(|node| uses(node, &unique.text))
    }

    /// Whether the attachment says that the volume is attached.
    pub(super) fn is_attached(&self) -> bool {
        let status = self.attachment.as_ref().and_then(|one| one.status.as_ref());
        status.is_some_and(|status| status.attached)
    }

    /// Whether anything reports that the node has, or may get, the volume.
    pub(super) fn is_taken(&self, unique: &Unique) -> bool {
        self.attachment.is_some() || self.foreign || self.is_listed(unique)
    }
}

pub(super) fn lists(node: &Node, name: &str) -> bool {
    let mut listed = node
        .status
        .iter()
        .flat_map(|status| &status.volumes_attached);
    listed.any(|volume| volume.name == name)
}

pub(super) fn uses(node: &Node, name: &str) -> bool {
    let mut used = node.status.iter().flat_map(|status| &status.volumes_in_use);
    used.any(|volume| volume == name)
}

/// Whether volumes of a driver are attached at all: unless its CSIDriver says that they are not.
pub(super) fn is_attachable(unique: &Unique, reader: &dyn Reader) -> bool {
    let Some((driver, _)) = &unique.csi else {
        return true;
    };
    let driver = reader.get(CsiDriver::resource(), "", driver);
    let driver = driver.and_then(cast::<CsiDriver>);
    let spec = driver.as_ref().and_then(|driver| driver.spec.as_ref());
    spec.and_then(|spec| spec.attach_required) != Some(false)
}

/// Every node that has a volume, or should. Attachments whose PersistentVolume is gone are found if they name
/// the volume themselves, or lead to a `remembered` node.
pub(super) fn of<'m>(
    unique: &Unique,
    seen: &Snapshot<'_>,
    remembered: impl Iterator<Item = &'m String>,
) -> BTreeMap<String, Place> {
    let mut places: BTreeMap<String, Place> = BTreeMap::new();
    let listing = seen.indexed::<Node>(BY_VOLUME, &unique.text);
    for node in &listing {
        places
            .entry(Object::metadata(&**node).name.to_string())
            .or_default();
    }
    let own = |node: &str| {
        let name = unique.attachment(node)?;
        seen.get::<VolumeAttachment>(&Key::cluster(name.as_str()))
    };
    for node in remembered.filter(|node| own(node).is_some()) {
        places.entry(node.clone()).or_default();
    }
    let naming = seen.indexed::<VolumeAttachment>(BY_SOURCE, &unique.text);
    for spec in naming.iter().filter_map(|one| one.spec.as_ref()) {
        places.entry(spec.node_name.clone()).or_default();
    }
    // The PersistentVolumes that stand for it: those that there are, and those that attachments to these
    // nodes name.
    let mut names: BTreeSet<String> = seen
        .indexed::<PersistentVolume>(BY_VOLUME, &unique.text)
        .iter()
        .map(|pv| Object::metadata(&**pv).name.to_string())
        .collect();
    for attachment in places.keys().filter_map(|node| own(node)) {
        names.extend(persistent_name(&attachment).map(str::to_owned));
    }
    let sources = names
        .iter()
        .map(String::as_str)
        .chain([unique.text.as_str()]);
    for attachment in sources.flat_map(|source| seen.indexed::<VolumeAttachment>(BY_SOURCE, source))
    {
        let Some(spec) = &attachment.spec else {
            continue;
        };
        let place = places.entry(spec.node_name.clone()).or_default();
        let name = unique.attachment(&spec.node_name);
        if name.as_deref() != Some(&*Object::metadata(&*attachment).name) {
            place.foreign = true;
        }
    }
    let mut pods: BTreeMap<Key, Arc<Pod>> = BTreeMap::new();
    let mut add = |pod: Arc<Pod>| {
        if !node_name(&pod).is_empty() {
            pods.insert(Key::of(&*pod), pod);
        }
    };
    seen.indexed::<Pod>(BY_IN_LINE, &unique.text)
        .into_iter()
        .for_each(&mut add);
    for name in &names {
        for claim in seen.indexed::<PersistentVolumeClaim>(BY_VOLUME, name) {
            let claim = Key::of(&*claim).to_string();
            seen.indexed::<Pod>(claims::BY_CLAIM, &claim)
                .into_iter()
                .for_each(&mut add);
        }
    }
    let attachable = is_attachable(unique, seen.reader());
    for pod in pods.into_values() {
        let place = places.entry(node_name(&pod).to_owned()).or_default();
        let has_ended = claims::is_terminated(&pod);
        let mut found = false;
        for volume in wanted(&pod, seen.reader()) {
            match volume {
                Wanted::Known { spec, .. } if spec.unique != *unique => {}
                Wanted::Known { bound, .. } if has_ended => {
                    place.references += usize::from(bound);
                }
                Wanted::Unknown if has_ended => {}
                Wanted::Known { spec, bound: true } => {
                    place.references += 1;
                    found = true;
                    let exclusive = place.spec.as_ref().is_some_and(|spec| spec.exclusive);
                    let spec = place.spec.insert(spec);
                    spec.exclusive |= exclusive;
                }
                Wanted::Known { bound: false, .. } | Wanted::Unknown => place.kept |= attachable,
            }
        }
        if found {
            place.pods.push(pod);
        }
    }
    for (name, place) in &mut places {
        place.node = seen.get::<Node>(&Key::cluster(name.as_str()));
        place.attachment = own(name);
        if !attachable {
            place.spec = None;
        }
    }
    places
}

/// What a node's list waits for.
pub(super) struct Waiting {
    /// The volumes whose entry comes or goes, by unique name: their owners write one after the other, in this
    /// order.
    pub(super) names: BTreeSet<String>,
    /// Volumes that no pod of the node wants and the node does not use: the first writer removes them all.
    pub(super) leaving: BTreeSet<String>,
}

/// What a node's list waits for, as far as this replica sees.
pub(super) fn waiting(node: &Node, reader: &dyn Reader) -> Waiting {
    let name = &Object::metadata(node).name;
    let (mut coming, mut staying, mut sure) = (BTreeSet::new(), BTreeSet::new(), true);
    let pods = reader.indexed(Pod::resource(), BY_NODE, name);
    for pod in pods.into_iter().filter_map(cast::<Pod>) {
        if claims::is_terminated(&pod) {
            continue;
        }
        for volume in wanted(&pod, reader) {
            match volume {
                Wanted::Known { spec, bound } => {
                    if bound && !lists(node, &spec.unique.text) {
                        coming.insert(spec.unique.text.clone());
                    }
                    staying.insert(spec.unique.text);
                }
                Wanted::Unknown => sure = false,
            }
        }
    }
    coming.retain(|text| {
        let Some(unique) = Unique::parse(text).filter(|unique| is_attachable(unique, reader))
        else {
            return false;
        };
        let Some(attachment) = unique.attachment(name) else {
            return true;
        };
        let attachment = reader.get(VolumeAttachment::resource(), "", &attachment);
        attachment
            .and_then(cast::<VolumeAttachment>)
            .is_some_and(|one| {
                !one.is_terminating() && one.status.as_ref().is_some_and(|status| status.attached)
            })
    });
    let mut leaving = BTreeSet::new();
    // A pod whose claim can't be followed may want any of them.
    if sure {
        let listed = node
            .status
            .iter()
            .flat_map(|status| &status.volumes_attached);
        leaving.extend(
            listed
                .map(|volume| volume.name.clone())
                .filter(|text| Unique::parse(text).is_some())
                .filter(|text| !staying.contains(text) && !uses(node, text)),
        );
    }
    let names = coming.into_iter().chain(leaving.iter().cloned()).collect();
    Waiting { names, leaving }
}
