//! The in-tree plugins that CSI drivers have taken over, by what is behind a volume.

use kubernetes_proto::core::{PersistentVolume, PersistentVolumeSource};

use crate::translation;

/// A plugin and the driver that does its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plugin {
    /// As upstream calls the plugin.
    pub in_tree: &'static str,
    /// The driver's name.
    pub driver: &'static str,
}

type IsBehind = fn(&PersistentVolumeSource) -> bool;

/// Which source it is, and the driver.
const DRIVERS: [(IsBehind, &str); 7] = [
    (
        |source| source.aws_elastic_block_store.is_some(),
        translation::EBS,
    ),
    (
        |source| source.gce_persistent_disk.is_some(),
        translation::GCE,
    ),
    (|source| source.cinder.is_some(), translation::CINDER),
    (
        |source| source.azure_disk.is_some(),
        translation::AZURE_DISK,
    ),
    (
        |source| source.azure_file.is_some(),
        translation::AZURE_FILE,
    ),
    (
        |source| source.vsphere_volume.is_some(),
        translation::VSPHERE,
    ),
    (
        |source| source.portworx_volume.is_some(),
        translation::PORTWORX,
    ),
];

/// The plugin of a volume, if it was migrated to a CSI driver.
pub(crate) fn plugin_of(volume: &PersistentVolume) -> Option<Plugin> {
    let spec = volume.spec.as_ref()?;
    let source = spec.persistent_volume_source.as_ref()?;
    let (_, driver) = DRIVERS.iter().find(|(is_behind, _)| is_behind(source))?;
    let in_tree = translation::plugin_of(driver)?;
    Some(Plugin { in_tree, driver })
}

/// The name of a volume's storage in a migrated plugin.
pub(crate) fn volume_id(source: &PersistentVolumeSource) -> String {
    let aws = source.aws_elastic_block_store.as_ref();
    let gce = source.gce_persistent_disk.as_ref();
    let cinder = source.cinder.as_ref();
    let azure_disk = source.azure_disk.as_ref();
    let azure_file = source.azure_file.as_ref();
    let vsphere = source.vsphere_volume.as_ref();
    let portworx = source.portworx_volume.as_ref();
    [
        aws.map(|aws| aws.volume_id.clone()),
        gce.map(|gce| gce.pd_name.clone()),
        cinder.map(|cinder| cinder.volume_id.clone()),
        azure_disk.map(|azure| azure.disk_uri.clone()),
        azure_file.map(|azure| {
            let namespace = azure.secret_namespace.as_deref().unwrap_or_default();
            format!("{namespace}/{}/{}", azure.secret_name, azure.share_name)
        }),
        vsphere.map(|vsphere| vsphere.volume_path.clone()),
        portworx.map(|portworx| portworx.volume_id.clone()),
    ]
    .into_iter()
    .flatten()
    .next()
    .unwrap_or_default()
}
