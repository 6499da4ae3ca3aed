//! Translates the volume sources of in-tree plugins that were migrated to CSI into the driver and the volume
//! handle by which the CSI driver knows the same disk.
//!
//! The handle is half of a volume's identity: with two different translations of one disk, each would be
//! attached without regard to the other. So the rules are exactly those of upstream's
//! `csi-translation-lib`.

use std::collections::BTreeMap;

use kubernetes_proto::{
    Object,
    core::{InlineVolumeSource, PersistentVolume},
    meta::ObjectMeta,
};
use serde_json::{Value, json};

/// In-tree plugins and the CSI drivers that replace them.
pub const MIGRATED: [(&str, &str); 7] = [
    ("kubernetes.io/aws-ebs", EBS),
    ("kubernetes.io/gce-pd", GCE),
    ("kubernetes.io/azure-disk", AZURE_DISK),
    ("kubernetes.io/azure-file", AZURE_FILE),
    ("kubernetes.io/cinder", CINDER),
    ("kubernetes.io/vsphere-volume", VSPHERE),
    ("kubernetes.io/portworx-volume", PORTWORX),
];

pub(crate) const EBS: &str = "ebs.csi.aws.com";
pub(crate) const GCE: &str = "pd.csi.storage.gke.io";
pub(crate) const AZURE_DISK: &str = "disk.csi.azure.com";
pub(crate) const AZURE_FILE: &str = "file.csi.azure.com";
pub(crate) const CINDER: &str = "cinder.csi.openstack.org";
pub(crate) const VSPHERE: &str = "csi.vsphere.vmware.com";
pub(crate) const PORTWORX: &str = "pxd.portworx.com";

const ONCE: &str = "ReadWriteOnce";
const READ_MANY: &str = "ReadOnlyMany";
const WRITE_MANY: &str = "ReadWriteMany";

const UNSPECIFIED: &str = "UNSPECIFIED";
const ZONE_LABELS: [&str; 2] = [
    "failure-domain.beta.kubernetes.io/zone",
    "topology.kubernetes.io/zone",
];
const RESOURCE_GROUP: &str = "kubernetes.io/azure-file-resource-group";

/// The CSI driver that replaces an in-tree plugin.
pub fn driver_of(plugin: &str) -> Option<&'static str> {
    let found = MIGRATED.iter().find(|(name, _)| *name == plugin);
    found.map(|(_, driver)| *driver)
}

/// The in-tree plugin that a CSI driver replaces.
pub fn plugin_of(driver: &str) -> Option<&'static str> {
    let found = MIGRATED.iter().find(|(_, name)| *name == driver);
    found.map(|(plugin, _)| *plugin)
}

/// A volume in the terms of CSI.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Translated {
    /// The name of its PersistentVolume; made up for an in-line source.
    pub name: String,
    /// The driver.
    pub driver: &'static str,
    /// The driver's name of the disk.
    pub handle: String,
    /// How it may be used at once.
    pub access_modes: Vec<String>,
    /// The driver's parameters.
    pub attributes: BTreeMap<&'static str, String>,
    /// Whether it is only read.
    pub read_only: bool,
    /// Its file system; empty for the driver's default.
    pub fs_type: String,
    /// Name and namespace of the Secret that the driver mounts it with.
    pub secret: Option<(String, String)>,
}

impl Translated {
    /// As the `spec` of a PersistentVolume, which an attachment of an in-line volume carries.
    pub fn spec(&self) -> Value {
        let mut csi = json!({ "driver": self.driver, "volumeHandle": self.handle });
        if self.read_only {
            csi["readOnly"] = true.into();
        }
        if !self.fs_type.is_empty() {
            csi["fsType"] = self.fs_type.as_str().into();
        }
        if !self.attributes.is_empty() {
            csi["volumeAttributes"] = json!(self.attributes);
        }
        if let Some((name, namespace)) = &self.secret {
            csi["nodeStageSecretRef"] = json!({ "name": name, "namespace": namespace });
        }
        json!({ "csi": csi, "accessModes": self.access_modes, "volumeMode": "Filesystem" })
    }
}

/// An identifier of an EBS volume without the URL that it may be written as (`aws://zone/vol-1`).
fn ebs_id(id: &str) -> Result<String, String> {
    let Some(url) = id.strip_prefix("aws://") else {
        return Ok(id.to_owned());
    };
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let path = url.split_once('/').map_or("", |(_, path)| path);
    let bare = path.trim_matches('/');
    if !bare.starts_with("vol-") || bare.contains('/') {
        return Err(format!(
            "failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume ({id})"
        ));
    }
    Ok(bare.to_owned())
}

/// The region of zones, which are written `locale-region-zone`.
fn region(zones: &[&str]) -> Result<String, String> {
    let mut found: Option<&str> = None;
    for zone in zones {
        let parts: Vec<&str> = zone.split('-').collect();
        let (Some((region, _)), 3) = (zone.rsplit_once('-'), parts.len()) else {
            return Err(format!(
                "failed to get region from zones: zone in unexpected format, expected: {{locale}}-{{region}}-{{zone}}, got: {zone}"
            ));
        };
        if found.is_some_and(|other| other != region) {
            return Err(format!(
                "failed to get region from zones: multiple or no regions gotten from zones, got: {zones:?}"
            ));
        }
        found = Some(region);
    }
    Ok(found.unwrap_or_default().to_owned())
}

/// The handle of a GCE disk, from the zones in its volume's labels.
fn gce_handle(meta: &ObjectMeta, disk: &str) -> Result<String, String> {
    let label = ZONE_LABELS
        .iter()
        .find_map(|name| meta.label(name).filter(|value| !value.is_empty()))
        .unwrap_or_default();
    let zones: Vec<&str> = label.split("__").collect();
    Ok(match zones[..] {
        [zone] => {
            let zone = if zone.is_empty() { UNSPECIFIED } else { zone };
            format!("projects/{UNSPECIFIED}/zones/{zone}/disks/{disk}")
        }
        _ => {
            let region = region(&zones)?;
            format!("projects/{UNSPECIFIED}/regions/{region}/disks/{disk}")
        }
    })
}

/// The access modes that the CSI driver of GCE supports: the in-tree plugin treated ReadWriteMany as
/// ReadWriteOnce.
fn gce_modes(modes: &[String]) -> Vec<String> {
    if modes.is_empty() {
        return Vec::new();
    }
    let once = modes.iter().any(|mode| mode == ONCE || mode == WRITE_MANY);
    let many = modes.iter().any(|mode| mode == READ_MANY);
    let mode = if many && !once { READ_MANY } else { ONCE };
    vec![mode.to_owned()]
}

/// `ReadOnlyMany` for read-only volumes, such as in-line disks of GCE and Portworx.
fn mode_of(read_only: bool) -> Vec<String> {
    let mode = if read_only { READ_MANY } else { ONCE };
    vec![mode.to_owned()]
}

/// The storage account in a Secret's name (`azure-storage-account-<account>-secret`), or the whole name.
fn account(secret: &str) -> &str {
    const BEFORE: &str = "azure-storage-account-";
    const AFTER: &str = "-secret";
    let begins = secret.match_indices(BEFORE);
    let found = begins
        .map(|(at, _)| &secret[at + BEFORE.len()..])
        .find_map(|rest| {
            let end = rest.rfind(AFTER)?;
            (end > 0).then(|| &rest[..end])
        });
    found.unwrap_or(secret)
}

fn managed(kind: Option<&str>) -> Result<(), String> {
    match kind {
        Some(kind) if !kind.eq_ignore_ascii_case("managed") => {
            Err(format!("kind({kind}) is not supported in csi migration"))
        }
        _ => Ok(()),
    }
}

fn partition(number: i32) -> String {
    match number {
        0 => String::new(),
        other => other.to_string(),
    }
}

fn attributes<const N: usize>(of: [(&'static str, String); N]) -> BTreeMap<&'static str, String> {
    of.into_iter().collect()
}

/// A PersistentVolume of a migrated plugin in the terms of CSI; `None` for one of another source.
///
/// # Errors
/// Where upstream can't translate it either: a malformed identifier, an unmanaged disk of Azure, a share
/// without the namespace of its Secret.
pub fn persistent_volume(pv: &PersistentVolume) -> Option<Result<Translated, String>> {
    let meta = Object::metadata(pv);
    let spec = pv.spec.as_ref()?;
    let source = spec.persistent_volume_source.as_ref()?;
    let modes = || spec.access_modes.iter().map(ToString::to_string).collect();
    let named = |driver, handle: String, fs_type: &str, read_only| Translated {
        name: meta.name.to_string(),
        driver,
        handle,
        access_modes: modes(),
        fs_type: fs_type.to_owned(),
        read_only,
        ..Translated::default()
    };
    let found = if let Some(ebs) = &source.aws_elastic_block_store {
        ebs_id(&ebs.volume_id).map(|handle| named(EBS, handle, &ebs.fs_type, ebs.read_only))
    } else if let Some(gce) = &source.gce_persistent_disk {
        gce_handle(meta, &gce.pd_name).map(|handle| {
            let mut found = named(GCE, handle, &gce.fs_type, gce.read_only);
            found.access_modes = gce_modes(&found.access_modes);
            found
        })
    } else if let Some(disk) = &source.azure_disk {
        managed(disk.kind.as_deref()).map(|()| {
            let fs_type = disk.fs_type.as_deref().unwrap_or_default();
            let read_only = disk.read_only.unwrap_or_default();
            named(AZURE_DISK, disk.disk_uri.to_string(), fs_type, read_only)
        })
    } else if let Some(share) = &source.azure_file {
        let claim = spec.claim_ref.as_ref();
        let namespace = match &share.secret_namespace {
            Some(namespace) => namespace.to_string(),
            None => claim.map_or_else(String::new, |claim| claim.namespace.to_string()),
        };
        if namespace.is_empty() {
            Err(
                "could not find a secret namespace in PersistentVolumeSource or ClaimRef"
                    .to_owned(),
            )
        } else {
            let group = meta.annotation(RESOURCE_GROUP).unwrap_or_default();
            let account = account(&share.secret_name);
            let handle = format!(
                "{group}#{account}#{}#{}#{namespace}",
                share.share_name, meta.name
            );
            Ok(named(AZURE_FILE, handle, "", share.read_only))
        }
    } else if let Some(cinder) = &source.cinder {
        let handle = cinder.volume_id.to_string();
        Ok(named(CINDER, handle, &cinder.fs_type, cinder.read_only))
    } else if let Some(disk) = &source.vsphere_volume {
        let handle = disk.volume_path.to_string();
        Ok(named(VSPHERE, handle, &disk.fs_type, false))
    } else if let Some(volume) = &source.portworx_volume {
        let handle = volume.volume_id.to_string();
        Ok(named(PORTWORX, handle, &volume.fs_type, false))
    } else {
        return None;
    };
    Some(found)
}

/// An in-line volume of a pod, by its name in the pod, of a migrated plugin in the terms of CSI; `None` for
/// one of another source.
///
/// # Errors
/// As [`persistent_volume`].
pub fn in_line(
    name: &str,
    source: &InlineVolumeSource,
    namespace: &str,
) -> Option<Result<Translated, String>> {
    // Upstream names them by driver and disk; with access modes of a disk that one node has.
    let named = |driver, id: &str| Translated {
        name: format!("{driver}-{id}"),
        driver,
        handle: id.to_owned(),
        access_modes: mode_of(false),
        ..Translated::default()
    };
    let found = if let Some(ebs) = &source.aws_elastic_block_store {
        ebs_id(&ebs.volume_id).map(|id| Translated {
            attributes: attributes([("partition", ebs.partition.to_string())]),
            fs_type: ebs.fs_type.to_string(),
            read_only: ebs.read_only,
            ..named(EBS, &id)
        })
    } else if let Some(gce) = &source.gce_persistent_disk {
        Ok(Translated {
            handle: format!(
                "projects/{UNSPECIFIED}/zones/{UNSPECIFIED}/disks/{}",
                gce.pd_name
            ),
            access_modes: mode_of(gce.read_only),
            attributes: attributes([("partition", partition(gce.partition))]),
            fs_type: gce.fs_type.to_string(),
            read_only: gce.read_only,
            ..named(GCE, &gce.pd_name)
        })
    } else if let Some(disk) = &source.azure_disk {
        managed(disk.kind.as_deref()).map(|()| {
            let mut attributes = attributes([("kind", "Managed".to_owned())]);
            if let Some(mode) = disk.caching_mode.as_deref().filter(|mode| !mode.is_empty()) {
                attributes.insert("cachingmode", mode.to_owned());
            }
            if let Some(fs_type) = &disk.fs_type {
                attributes.insert("fstype", fs_type.to_string());
            }
            Translated {
                name: disk.disk_uri.to_string(),
                attributes,
                fs_type: disk.fs_type.as_deref().unwrap_or_default().to_owned(),
                read_only: disk.read_only.unwrap_or_default(),
                ..named(AZURE_DISK, &disk.disk_uri)
            }
        })
    } else if let Some(share) = &source.azure_file {
        let namespace = match namespace {
            "" => "default",
            other => other,
        };
        let account = account(&share.secret_name);
        let handle = format!("#{account}#{}#{name}#{namespace}", share.share_name);
        Ok(Translated {
            name: handle.clone(),
            access_modes: vec![WRITE_MANY.to_owned()],
            attributes: attributes([("sharename", share.share_name.to_string())]),
            read_only: share.read_only,
            secret: Some((share.secret_name.to_string(), namespace.to_owned())),
            ..named(AZURE_FILE, &handle)
        })
    } else if let Some(cinder) = &source.cinder {
        Ok(Translated {
            fs_type: cinder.fs_type.to_string(),
            read_only: cinder.read_only,
            ..named(CINDER, &cinder.volume_id)
        })
    } else if let Some(disk) = &source.vsphere_volume {
        let mut attributes = BTreeMap::new();
        if !disk.storage_policy_name.is_empty() {
            attributes.insert("storagepolicyname", disk.storage_policy_name.to_string());
        }
        Ok(Translated {
            attributes,
            fs_type: disk.fs_type.to_string(),
            ..named(VSPHERE, &disk.volume_path)
        })
    } else if let Some(volume) = &source.portworx_volume {
        Ok(Translated {
            access_modes: mode_of(volume.read_only),
            fs_type: volume.fs_type.to_string(),
            ..named(PORTWORX, &volume.volume_id)
        })
    } else {
        return None;
    };
    Some(found)
}

#[cfg(test)]
#[path = "translation_tests.rs"]
mod tests;
