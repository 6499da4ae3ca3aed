//! What a volume is called wherever it is attached, and which pods want which.

use std::collections::BTreeSet;

use controllers_kit::{Key, Reader, Str, cast};
use kubernetes_proto::{
    Object,
    core::{
        FcVolumeSource, InlineVolumeSource, Node, PersistentVolume, PersistentVolumeClaim, Pod,
        Volume,
    },
    storage::VolumeAttachment,
};

use ring::digest::{SHA256, digest};
use serde_json::Value;

use crate::{
    claims,
    translation::{self, Translated},
};

/// The annotation of an attachment that names its volume. The attachment's own name is a hash, and the
/// PersistentVolume in its specification may go before the attachment: then nothing else says what is
/// attached, and an owner that has not created the attachment could not find it.
const NAMED: &str = "manifold.dev/volume";
/// Unique names of more bytes are not written to it: CSI allows handles of 128 bytes, the API server any.
const NAMED_MAX: usize = 4096;

const CSI: &str = "kubernetes.io/csi";
const FC: &str = "kubernetes.io/fc";
const ISCSI: &str = "kubernetes.io/iscsi";

/// A volume as the cluster names it, whatever names it: `<plugin>/<name>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unique {
    /// As in a node's `volumesAttached` and `volumesInUse`.
    pub(super) text: String,
    /// Driver and volume handle; `None` for plugins whose attaching is the entry in `volumesAttached` alone.
    pub(super) csi: Option<(String, String)>,
}

impl Unique {
    /// Parses a unique name; `None` for a plugin that is not attached from here.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let after = |plugin: &str| text.strip_prefix(plugin)?.strip_prefix('/');
        let csi = match after(CSI) {
            Some(rest) => {
                let (driver, handle) = rest.split_once('^')?;
                Some((driver.to_owned(), handle.to_owned()))
            }
            None if after(FC).is_some() || after(ISCSI).is_some() => None,
            None => return None,
        };
        Some(Self {
            text: text.to_owned(),
            csi,
        })
    }

    fn of_csi(driver: &str, handle: &str) -> Self {
        Self {
            text: format!("{CSI}/{driver}^{handle}"),
            csi: Some((driver.to_owned(), handle.to_owned())),
        }
    }

    fn other(plugin: &str, name: &str) -> Self {
        Self {
            text: format!("{plugin}/{name}"),
            csi: None,
        }
    }

    /// The plugin as metrics name it.
    pub(super) fn plugin(&self) -> String {
        match &self.csi {
            Some((driver, _)) => plugin_of(driver),
            None if self.text.starts_with(FC) => FC.to_owned(),
            None => ISCSI.to_owned(),
        }
    }

    /// The one name that an attachment of this volume to a node has, so that a second one can't be made.
    pub(super) fn attachment(&self, node: &str) -> Option<String> {
        let (driver, handle) = self.csi.as_ref()?;
        let hash = digest(&SHA256, format!("{handle}{driver}{node}").as_bytes());
        let hex: String = hash
            .as_ref()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        Some(format!("csi-{hex}"))
    }
}

/// What makes an attachment: how a pod's volume is specified.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Spec {
    pub(super) unique: Unique,
    /// As events call it.
    pub(super) name: String,
    /// Whether one node alone may have it.
    pub(super) exclusive: bool,
    /// Whether an in-tree source was translated.
    pub(super) migrated: bool,
    /// The translated specification of an in-line volume; `None` for that of a PersistentVolume.
    pub(super) in_line: Option<Value>,
}

fn is_exclusive<T: AsRef<str>>(modes: &[T]) -> bool {
    let shared = |mode: &T| matches!(mode.as_ref(), "ReadWriteMany" | "ReadOnlyMany");
    !modes.is_empty() && !modes.iter().any(shared)
}

/// The name of a Fibre Channel volume, as Go prints its lists.
fn fc_name(fc: &FcVolumeSource) -> Option<String> {
    match fc.lun {
        Some(lun) if !fc.target_ww_ns.is_empty() => {
            Some(format!("[{}]:{lun}", fc.target_ww_ns.join(" ")))
        }
        _ if !fc.wwids.is_empty() => Some(format!("[{}]", fc.wwids.join(" "))),
        _ => None,
    }
}

fn translated(found: Translated, in_line: bool) -> Spec {
    Spec {
        unique: Unique::of_csi(found.driver, &found.handle),
        exclusive: is_exclusive(&found.access_modes),
        migrated: true,
        in_line: in_line.then(|| found.spec()),
        name: found.name,
    }
}

/// Of a PersistentVolume; `None` for one that is attached to no node.
pub(super) fn of_persistent(pv: &PersistentVolume) -> Option<Spec> {
    if let Some(found) = translation::persistent_volume(pv) {
        return found.ok().map(|found| translated(found, false));
    }
    let spec = pv.spec.as_ref()?;
    let source = spec.persistent_volume_source.as_ref()?;
    let unique = if let Some(csi) = &source.csi {
        Unique::of_csi(&csi.driver, &csi.volume_handle)
    } else if let Some(fc) = &source.fc {
        Unique::other(FC, &fc_name(fc)?)
    } else if let Some(iscsi) = &source.iscsi {
        let name = format!("{}:{}:{}", iscsi.target_portal, iscsi.iqn, iscsi.lun);
        Unique::other(ISCSI, &name)
    } else {
        return None;
    };
    Some(Spec {
        unique,
        name: Object::metadata(pv).name.to_string(),
        exclusive: is_exclusive(&spec.access_modes),
        migrated: false,
        in_line: None,
    })
}

/// Of a volume that a pod names itself; `None` for one that is attached to no node, as a driver's ephemeral
/// ones.
fn of_in_line(name: &str, source: &InlineVolumeSource, namespace: &str) -> Option<Spec> {
    if let Some(found) = translation::in_line(name, source, namespace) {
        return found.ok().map(|found| translated(found, true));
    }
    let unique = if let Some(fc) = &source.fc {
        Unique::other(FC, &fc_name(fc)?)
    } else if let Some(iscsi) = &source.iscsi {
        let name = format!("{}:{}:{}", iscsi.target_portal, iscsi.iqn, iscsi.lun);
        Unique::other(ISCSI, &name)
    } else {
        return None;
    };
    Some(Spec {
        unique,
        name: name.to_owned(),
        exclusive: false,
        migrated: false,
        in_line: None,
    })
}

/// The claim of a pod's volume and whether it is made for the pod.
fn claim_of(pod: &Pod, volume: &Volume) -> Option<(Str, bool)> {
    match claims::ephemeral(volume) {
        Some(_) => Some((claims::ephemeral_name(pod, volume), true)),
        None => claims::named(volume).map(|name| (name.clone(), false)),
    }
}

fn of_pods_own(pod: &Pod, volume: &Volume) -> Option<Spec> {
    let source = volume.volume_source.as_ref()?.inline.as_ref()?;
    of_in_line(&volume.name, source, &Object::metadata(pod).namespace)
}

/// What is known of a volume that a pod names.
#[derive(Debug)]
pub(super) enum Wanted {
    /// It is this one.
    Known {
        /// Which.
        spec: Spec,
        /// Whether it may be attached: its claim is bound to it both ways. What is attached already stays so
        /// without.
        bound: bool,
    },
    /// It has a claim, and the volume of that is unknown now.
    Unknown,
}

/// What a pod's volumes are; those that are attached nowhere are left out.
pub(super) fn wanted(pod: &Pod, reader: &dyn Reader) -> Vec<Wanted> {
    let of_claim = |name: &str, made_for_pod: bool| -> Option<Wanted> {
        let meta = Object::metadata(pod);
        let claims = PersistentVolumeClaim::resource();
        let claim = reader.get(claims, &meta.namespace, name);
        let Some(claim) = claim.and_then(cast::<PersistentVolumeClaim>) else {
            return Some(Wanted::Unknown);
        };
        let claim_meta = Object::metadata(&*claim);
        let owner = claim_meta.controller();
        if made_for_pod && owner.is_none_or(|owner| *owner.uid != *meta.uid) {
            return Some(Wanted::Unknown);
        }
        let volume = claim.spec.as_ref().map_or("", |spec| &*spec.volume_name);
        let pv = reader.get(PersistentVolume::resource(), "", volume);
        let Some(pv) = pv.and_then(cast::<PersistentVolume>) else {
            return Some(Wanted::Unknown);
        };
        let points = pv.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        let points_back = points.is_some_and(|claim| *claim.uid == *claim_meta.uid);
        let phase = claim.status.as_ref().map_or("", |status| &*status.phase);
        let bound = points_back && phase == "Bound";
        of_persistent(&pv).map(|spec| Wanted::Known { spec, bound })
    };
    claims::volumes(pod)
        .filter_map(|volume| match claim_of(pod, volume) {
            Some((claim, made_for_pod)) => of_claim(&claim, made_for_pod),
            None => {
                let spec = of_pods_own(pod, volume)?;
                Some(Wanted::Known { spec, bound: true })
            }
        })
        .collect()
}

/// The drivers of a pod's ephemeral volumes, which are not attached: one entry for each volume.
pub(super) fn ephemeral_drivers(pod: &Pod) -> impl Iterator<Item = &String> {
    claims::volumes(pod).filter_map(|volume| {
        let source = volume.volume_source.as_ref()?.inline.as_ref()?;
        Some(&source.csi.as_ref()?.driver)
    })
}

/// The plugin of a driver's volumes as metrics name it.
pub(super) fn plugin_of(driver: &str) -> String {
    format!("{CSI}:{driver}")
}

/// Pods by the unique names of their in-line volumes.
pub(super) const BY_IN_LINE: &str = "attach-detach-pods-by-volume";
/// Pods and VolumeAttachments by node.
pub(super) const BY_NODE: &str = "attach-detach-by-node";
/// PersistentVolumes and nodes by unique name; claims by the volume that they name.
pub(super) const BY_VOLUME: &str = "attach-detach-by-volume";
/// VolumeAttachments by what they attach: a PersistentVolume's name, and the unique name, where it is known
/// without one.
pub(super) const BY_SOURCE: &str = "attach-detach-by-source";

pub(super) fn pods_by_in_line(pod: &Pod) -> Vec<Str> {
    claims::volumes(pod)
        .filter(|volume| claim_of(pod, volume).is_none())
        .filter_map(|volume| of_pods_own(pod, volume))
        .map(|spec| spec.unique.text.as_str().into())
        .collect()
}

pub(super) fn pods_by_node(pod: &Pod) -> Vec<Str> {
    let node = controllers_kit::pods::node_name(pod);
    let has = claims::volumes(pod).next().is_some();
    (has && !node.is_empty())
        .then(|| node.into())
        .into_iter()
        .collect()
}

pub(super) fn volumes_by_name(pv: &PersistentVolume) -> Vec<Str> {
    let spec = of_persistent(pv);
    spec.map(|spec| spec.unique.text.as_str().into())
        .into_iter()
        .collect()
}

pub(super) fn claims_by_volume(claim: &PersistentVolumeClaim) -> Vec<Str> {
    let name = claim.spec.as_ref().map_or("", |spec| &*spec.volume_name);
    (!name.is_empty())
        .then(|| name.into())
        .into_iter()
        .collect()
}

pub(super) fn nodes_by_volume(node: &Node) -> Vec<Str> {
    let status = node.status.iter();
    status
        .flat_map(|status| &status.volumes_attached)
        .map(|volume| volume.name.as_str().into())
        .collect()
}

pub(super) fn attachments_by_node(attachment: &VolumeAttachment) -> Vec<Str> {
    let spec = attachment.spec.iter();
    spec.map(|spec| spec.node_name.as_str().into()).collect()
}

/// Names the volume of an attachment that is about to be created, for [`named`].
pub(super) fn set_name(attachment: &mut VolumeAttachment, unique: &Unique) {
    if unique.text.len() <= NAMED_MAX {
        attachment
            .metadata_mut()
            .set_annotation(NAMED, &unique.text);
    }
}

/// The volume that an attachment's annotation names, if the attachment's name follows from it: anybody can
/// write annotations.
fn named(attachment: &VolumeAttachment) -> Option<Unique> {
    let meta = Object::metadata(attachment);
    let unique = Unique::parse(meta.annotation(NAMED)?)?;
    let name = unique.attachment(&attachment.spec.as_ref()?.node_name)?;
    (name == *meta.name).then_some(unique)
}

/// The name of an attachment's PersistentVolume.
pub(super) fn persistent_name(attachment: &VolumeAttachment) -> Option<&str> {
    let source = attachment.spec.as_ref()?.source.as_ref()?;
    source.persistent_volume_name.as_deref()
}

fn unique_name(attachment: &VolumeAttachment) -> Option<Unique> {
    let source = attachment.spec.as_ref()?.source.as_ref()?;
    let in_line = source
        .inline_volume_spec
        .as_ref()
        .and_then(|spec| spec.persistent_volume_source.as_ref())
        .and_then(|source| source.csi.as_ref())
        .map(|csi| Unique::of_csi(&csi.driver, &csi.volume_handle));
    in_line.or_else(|| named(attachment))
}

pub(super) fn attachments_by_source(attachment: &VolumeAttachment) -> Vec<Str> {
    let unique = unique_name(attachment).map(|unique| Str::from(unique.text.as_str()));
    let name = persistent_name(attachment).map(Str::from);
    name.into_iter().chain(unique).collect()
}

/// The unique names of the volumes that an attachment concerns: its own, and its PersistentVolume's, which
/// may be another one by now.
pub(super) fn of_attachment(
    attachment: &VolumeAttachment,
    reader: &dyn Reader,
) -> BTreeSet<String> {
    let pv = persistent_name(attachment)
        .and_then(|name| reader.get(PersistentVolume::resource(), "", name))
        .and_then(cast::<PersistentVolume>);
    let of_volume = pv.and_then(|pv| of_persistent(&pv)).map(|spec| spec.unique);
    let found = unique_name(attachment).into_iter().chain(of_volume);
    found.map(|unique| unique.text).collect()
}

/// The keys of the volumes with these unique names.
pub(super) fn keys<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> Vec<Key> {
    let names = names.into_iter();
    names
        .filter(|name| Unique::parse(name.as_ref()).is_some())
        .map(|name| Key::composite(super::KEY, name.as_ref()))
        .collect()
}
