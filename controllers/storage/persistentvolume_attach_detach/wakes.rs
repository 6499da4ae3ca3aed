//! Which volumes a change concerns.

use std::collections::BTreeSet;

use controllers_kit::{Change, Key, Reader, Str, cast, pods::node_name};
use kubernetes_proto::{
    Object,
    core::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::{CsiDriver, VolumeAttachment},
};

use crate::claims;

use super::volumes::{
    BY_NODE, Unique, Wanted, ephemeral_drivers, keys, of_attachment, of_persistent,
    pods_by_in_line, wanted,
};
use super::{EPHEMERAL, is_managed, is_out_of_service, is_ready, places};

fn names_of(pod: &Pod, reader: &dyn Reader) -> Vec<String> {
    let known = |wanted| match wanted {
        Wanted::Known { spec, .. } => Some(spec.unique.text),
        Wanted::Unknown => None,
    };
    wanted(pod, reader).into_iter().filter_map(known).collect()
}

pub(super) fn pod(change: &Change<'_, Pod>, reader: &dyn Reader) -> Vec<Key> {
    let place = |pod: &Pod| (node_name(pod).to_owned(), claims::is_terminated(pod));
    let newest = change.newest();
    let has_volumes = newest
        .spec
        .as_ref()
        .is_some_and(|spec| !spec.volumes.is_empty());
    let same =
        matches!((change.old, change.new), (Some(old), Some(new)) if place(old) == place(new));
    // A pod's volumes never change.
    if same || !has_volumes || node_name(newest).is_empty() {
        return Vec::new();
    }
    let wanted = wanted(newest, reader);
    let mut names: BTreeSet<String> = wanted
        .iter()
        .filter_map(|wanted| match wanted {
            Wanted::Known { spec, .. } => Some(spec.unique.text.clone()),
            Wanted::Unknown => None,
        })
        .collect();
    // A claim that can't be followed any more may have stood for anything that the node lists or that is
    // attached to it.
    if wanted.iter().any(|one| matches!(one, Wanted::Unknown)) {
        let node = reader.get(Node::resource(), "", node_name(newest));
        let node = node.and_then(cast::<Node>);
        let status = node.as_ref().and_then(|node| node.status.as_ref());
        let listed = status.iter().flat_map(|status| &status.volumes_attached);
        names.extend(listed.map(|volume| volume.name.clone()));
        names.extend(attached_to(node_name(newest), reader));
    }
    let mut found = keys(names);
    if ephemeral_drivers(newest).next().is_some() {
        found.push(Key::composite(EPHEMERAL, node_name(newest)));
    }
    found
}

pub(super) fn claim(change: &Change<'_, PersistentVolumeClaim>, reader: &dyn Reader) -> Vec<Key> {
    let facts = |claim: &PersistentVolumeClaim| {
        let spec = claim.spec.as_ref();
        let volume = spec.map_or_else(String::new, |spec| spec.volume_name.to_string());
        let phase = claim
            .status
            .as_ref()
            .map_or_else(String::new, |status| status.phase.to_string());
        (volume, phase, Object::metadata(claim).uid.to_string())
    };
    if matches!((change.old, change.new), (Some(old), Some(new)) if facts(old) == facts(new)) {
        return Vec::new();
    }
    let volumes: BTreeSet<String> = change.both().map(|claim| facts(claim).0).collect();
    let volumes = volumes.iter().filter(|name| !name.is_empty());
    let found = volumes.filter_map(|name| {
        let pv = reader.get(PersistentVolume::resource(), "", name);
        of_persistent(&*pv.and_then(cast::<PersistentVolume>)?)
    });
    keys(found.map(|spec| spec.unique.text))
}

pub(super) fn volume(change: &Change<'_, PersistentVolume>, _: &dyn Reader) -> Vec<Key> {
    let facts = |pv: &PersistentVolume| {
        let claim = pv.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        (of_persistent(pv), claim.map(|claim| claim.uid.to_string()))
    };
    if matches!((change.old, change.new), (Some(old), Some(new)) if facts(old) == facts(new)) {
        return Vec::new();
    }
    let names: BTreeSet<String> = change
        .both()
        .filter_map(of_persistent)
        .map(|spec| spec.unique.text)
        .collect();
    keys(names)
}

pub(super) fn attachment(change: &Change<'_, VolumeAttachment>, reader: &dyn Reader) -> Vec<Key> {
    let newest = change.newest();
    let mut names = of_attachment(newest, reader);
    if names.is_empty() {
        // One that upstream has created, and whose PersistentVolume is gone, concerns what its node still
        // lists.
        names.extend(listed_by_name(newest, reader));
    }
    keys(names)
}

/// The unique names of the volumes that are attached to a node.
fn attached_to(node: &str, reader: &dyn Reader) -> BTreeSet<String> {
    let attachments = reader.indexed(VolumeAttachment::resource(), BY_NODE, node);
    let attachments = attachments.into_iter().filter_map(cast::<VolumeAttachment>);
    attachments
        .flat_map(|one| of_attachment(&one, reader))
        .collect()
}

fn listed_by_name(attachment: &VolumeAttachment, reader: &dyn Reader) -> Option<String> {
    let meta = Object::metadata(attachment);
    let node_name = &attachment.spec.as_ref()?.node_name;
    let node = reader.get(Node::resource(), "", node_name);
    let node = node.and_then(cast::<Node>)?;
    let status = node.status.as_ref()?;
    let own = |name: &&String| {
        let unique = Unique::parse(name);
        unique
            .and_then(|unique| unique.attachment(node_name))
            .as_deref()
            == Some(&*meta.name)
    };
    status
        .volumes_attached
        .iter()
        .map(|volume| &volume.name)
        .find(own)
        .cloned()
}

pub(super) fn node(change: &Change<'_, Node>, reader: &dyn Reader) -> Vec<Key> {
    let lists = |node: Option<&Node>| -> (BTreeSet<String>, BTreeSet<String>) {
        let status = node.and_then(|node| node.status.as_ref());
        let Some(status) = status else {
            return Default::default();
        };
        let attached = status
            .volumes_attached
            .iter()
            .map(|volume| volume.name.clone());
        (
            attached.collect(),
            status.volumes_in_use.iter().cloned().collect(),
        )
    };
    let facts = |node: Option<&Node>| {
        node.map(|node| {
            let uid = Object::metadata(node).uid.clone();
            (
                uid,
                is_managed(node),
                is_ready(node),
                is_out_of_service(node),
            )
        })
    };
    let (old, new) = (lists(change.old), lists(change.new));
    if facts(change.old) == facts(change.new) {
        let attached = old.0.symmetric_difference(&new.0);
        let in_use = old.1.symmetric_difference(&new.1);
        let mut names: BTreeSet<String> = attached.chain(in_use).cloned().collect();
        // Who is next in line to change the list.
        if let Some(node) = change.new.filter(|_| old.0 != new.0) {
            names.extend(places::waiting(node, reader).names.into_iter().next());
        }
        return keys(names);
    }
    let name = &Object::metadata(change.newest()).name;
    let mut names: BTreeSet<String> = [old.0, old.1, new.0, new.1].into_iter().flatten().collect();
    let pods = reader.indexed(Pod::resource(), BY_NODE, name);
    for pod in pods.into_iter().filter_map(cast::<Pod>) {
        names.extend(names_of(&pod, reader));
    }
    names.extend(attached_to(name, reader));
    keys(names)
}

/// A driver begins or ceases to want its volumes attached: rare, so all volumes are gone through.
pub(super) fn driver(change: &Change<'_, CsiDriver>, reader: &dyn Reader) -> Vec<Key> {
    let required = |driver: Option<&CsiDriver>| {
        let spec = driver.and_then(|driver| driver.spec.as_ref());
        spec.and_then(|spec| spec.attach_required) != Some(false)
    };
    if required(change.old) == required(change.new) {
        return Vec::new();
    }
    let driver = &Object::metadata(change.newest()).name;
    let volumes = reader.list(PersistentVolume::resource(), None);
    let volumes = volumes.into_iter().filter_map(cast::<PersistentVolume>);
    let mut names: BTreeSet<String> = volumes
        .filter_map(|pv| of_persistent(&pv))
        .map(|spec| spec.unique.text)
        .collect();
    if crate::translation::plugin_of(driver).is_some() {
        let pods = reader.list(Pod::resource(), None);
        let pods = pods.into_iter().filter_map(cast::<Pod>);
        names.extend(
            pods.flat_map(|pod| pods_by_in_line(&pod))
                .map(|name: Str| name.to_string()),
        );
    }
    names.retain(|name| {
        let csi = Unique::parse(name).and_then(|unique| unique.csi);
        csi.is_some_and(|(name, _)| *name == **driver)
    });
    keys(names)
}
