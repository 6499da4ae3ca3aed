//! The volume plugins that kube-controller-manager has, and those whose work CSI drivers have taken over.

use kubernetes_proto::core::PersistentVolume;

use crate::translation;

use super::facts::{MIGRATED_TO, PROVISIONED_BY, annotation, has, volume_spec};

const IN_TREE: &str = "kubernetes.io/";
pub(super) const HOST_PATH: &str = "kubernetes.io/host-path";
pub(super) const NFS: &str = "kubernetes.io/nfs";
/// The plugin name where it is unknown.
pub(super) const UNKNOWN: &str = "N/A";

pub(super) fn is_in_tree(plugin: &str) -> bool {
    plugin.starts_with(IN_TREE)
}

/// Who provisions the volumes of a class.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Provisioner<'a> {
    /// A process of its own, of this name.
    External(&'a str),
    /// The plugin of paths on the manager's host, which is not supported.
    HostPath,
    /// Nobody; the text says why.
    Nobody(String),
}

/// The kind of provisioner that a class names.
pub(super) fn provisioner(named: &str) -> Provisioner<'_> {
    match named {
        HOST_PATH => Provisioner::HostPath,
        NFS => Provisioner::Nobody("no provisionable volume plugin matched".to_owned()),
        _ => match translation::driver_of(named) {
            Some(driver) => Provisioner::External(driver),
            None if is_in_tree(named) => {
                Provisioner::Nobody(format!("no volume plugin matched name: {named}"))
            }
            None => Provisioner::External(named),
        },
    }
}

/// Who deletes a volume whose policy is Delete.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Deleter<'a> {
    /// An external process, which acts on the phase.
    External,
    /// The plugin of paths on a host.
    HostPath(&'a str),
    /// Nobody; the text says why.
    Nobody(String),
}

/// Who deletes a volume.
pub(super) fn deleter<'a>(volume: &'a PersistentVolume, name: &str) -> Deleter<'a> {
    let source = volume_spec(volume).persistent_volume_source.as_ref();
    let path = source.and_then(|source| source.host_path.as_ref());
    match annotation(volume, PROVISIONED_BY) {
        None | Some("") => {}
        Some(HOST_PATH) => {
            return match path {
                Some(host) => Deleter::HostPath(&host.path),
                None => Deleter::Nobody(format!(
                    "failed to create deleter for volume \"{name}\": spec.PersistentVolumeSource.HostPath is nil"
                )),
            };
        }
        Some(NFS) => return Deleter::Nobody("no deletable volume plugin matched".to_owned()),
        Some(plugin) if is_in_tree(plugin) => {
            return Deleter::Nobody(format!("no volume plugin matched name: {plugin}"));
        }
        Some(_) => return Deleter::External,
    }
    if has(volume, MIGRATED_TO) || source.is_some_and(|source| source.csi.is_some()) {
        return Deleter::External;
    }
    match (path, source.is_some_and(|source| source.nfs.is_some())) {
        (Some(host), _) => Deleter::HostPath(&host.path),
        (None, nfs) => Deleter::Nobody(format!(
            "error getting deleter volume plugin for volume \"{name}\": {}",
            match nfs {
                true => "no deletable volume plugin matched",
                false => "no volume plugin matched",
            }
        )),
    }
}

/// Whether upstream's hostPath plugin would delete this path: its pattern `/tmp/.+`, anywhere in the path.
pub(super) fn is_temporary(path: &str) -> bool {
    let mut found = path.match_indices("/tmp/");
    found.any(|(at, prefix)| {
        let next = path[at + prefix.len()..].chars().next();
        next.is_some_and(|first| first != '\n')
    })
}

/// The plugin of a volume's source, as metrics name it.
pub(super) fn plugin_of(volume: &PersistentVolume) -> &'static str {
    let source = volume_spec(volume).persistent_volume_source.as_ref();
    match source {
        Some(source) if source.host_path.is_some() => HOST_PATH,
        Some(source) if source.nfs.is_some() => NFS,
        _ => UNKNOWN,
    }
}
