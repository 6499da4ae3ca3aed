//! Which storage is behind a volume, as far as SELinux labels of its mounts matter.

use controllers_kit::{Key, Snapshot, Str};
use kubernetes_proto::{
    Object,
    core::{
        InlineVolumeSource, PersistentVolume, PersistentVolumeClaim, PersistentVolumeSource, Pod,
        Volume,
    },
    storage::CsiDriver,
};

use crate::{claims, migrated, translation};

/// The index of volumes, and of pods with in-line volumes, by their storage and by their CSI drivers.
pub(super) const BY_STORAGE: &str = "storage";

/// What is behind a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Storage {
    /// The same for all volumes with the same storage.
    pub id: String,
    /// The CSI driver, which says itself whether it mounts with a context; without one it always does.
    pub driver: Option<String>,
}

impl Storage {
    fn of_driver(id: String, driver: &str) -> Option<Self> {
        let driver = Some(driver.to_owned());
        Some(Self { id, driver })
    }

    fn plain(id: String) -> Option<Self> {
        Some(Self { id, driver: None })
    }

    /// Whether it can be mounted with a context.
    pub fn supports_context(&self, seen: &Snapshot<'_>) -> bool {
        self.driver.as_ref().is_none_or(|driver| {
            let driver = seen.get::<CsiDriver>(&Key::cluster(driver.as_str()));
            driver.is_some_and(|driver| mounts_with_context(&driver))
        })
    }

    fn values(self) -> Vec<Str> {
        let driver = self.driver.map(|driver| by_driver(&driver));
        driver.into_iter().chain([Str::from(self.id)]).collect()
    }
}

/// Whether a driver mounts with a context.
pub(super) fn mounts_with_context(driver: &CsiDriver) -> bool {
    let spec = driver.spec.as_ref();
    spec.and_then(|spec| spec.se_linux_mount) == Some(true)
}

/// The value of [`BY_STORAGE`] for all storage of a driver.
pub(super) fn by_driver(driver: &str) -> Str {
    Str::from(format!("driver/{driver}"))
}

fn fibre_channel(names: &[String], lun: Option<i32>, ids: &[String]) -> Option<Storage> {
    let all = |names: &[String]| names.join(" ");
    match lun {
        Some(lun) if !names.is_empty() => {
            Storage::plain(format!("kubernetes.io/fc/[{}]:{lun}", all(names)))
        }
        _ if !ids.is_empty() => Storage::plain(format!("kubernetes.io/fc/[{}]", all(ids))),
        _ => None,
    }
}

fn taken_over(plugin: &str, id: &str) -> Option<Storage> {
    Storage::of_driver(format!("{plugin}/{id}"), translation::driver_of(plugin)?)
}

/// The storage of a PersistentVolume. NFS and paths of nodes are never mounted with a context, so pods
/// never conflict about them.
pub(super) fn of_volume(volume: &PersistentVolume) -> Option<Storage> {
    let spec = volume.spec.as_ref()?;
    let source: &PersistentVolumeSource = spec.persistent_volume_source.as_ref()?;
    if let Some(csi) = &source.csi {
        let id = format!("kubernetes.io/csi/{}^{}", csi.driver, csi.volume_handle);
        return Storage::of_driver(id, &csi.driver);
    }
    if let Some(fc) = &source.fc {
        return fibre_channel(&fc.target_ww_ns, fc.lun, &fc.wwids);
    }
    if let Some(iscsi) = &source.iscsi {
        let target = (&iscsi.target_portal, &iscsi.iqn, iscsi.lun);
        return Storage::plain(format!(
            "kubernetes.io/iscsi/{}:{}:{}",
            target.0, target.1, target.2
        ));
    }
    let plugin = migrated::plugin_of(volume)?;
    let id = migrated::volume_id(source);
    Storage::of_driver(format!("{}/{id}", plugin.in_tree), plugin.driver)
}

/// The storage of an in-line volume of a pod. In-line volumes of CSI drivers are private to their pod.
pub(super) fn of_inline(source: &InlineVolumeSource) -> Option<Storage> {
    if let Some(fc) = &source.fc {
        return fibre_channel(&fc.target_ww_ns, fc.lun, &fc.wwids);
    }
    if let Some(iscsi) = &source.iscsi {
        return Storage::plain(format!(
            "kubernetes.io/iscsi/{}:{}:{}",
            iscsi.target_portal, iscsi.iqn, iscsi.lun
        ));
    }
    let aws = source.aws_elastic_block_store.as_ref();
    let gce = source.gce_persistent_disk.as_ref();
    let cinder = source.cinder.as_ref();
    let azure_disk = source.azure_disk.as_ref();
    let vsphere = source.vsphere_volume.as_ref();
    let portworx = source.portworx_volume.as_ref();
    [
        aws.map(|aws| ("kubernetes.io/aws-ebs", &aws.volume_id)),
        gce.map(|gce| ("kubernetes.io/gce-pd", &gce.pd_name)),
        cinder.map(|cinder| ("kubernetes.io/cinder", &cinder.volume_id)),
        azure_disk.map(|azure| ("kubernetes.io/azure-disk", &azure.disk_uri)),
        vsphere.map(|vsphere| ("kubernetes.io/vsphere-volume", &vsphere.volume_path)),
        portworx.map(|portworx| ("kubernetes.io/portworx-volume", &portworx.volume_id)),
    ]
    .into_iter()
    .flatten()
    .find_map(|(plugin, id)| taken_over(plugin, id))
}

/// The values of [`BY_STORAGE`] of a PersistentVolume.
pub(super) fn values_of_volume(volume: &PersistentVolume) -> Vec<Str> {
    of_volume(volume).map(Storage::values).unwrap_or_default()
}

/// The values of [`BY_STORAGE`] of a pod: of its in-line volumes.
pub(super) fn values_of_pod(pod: &Pod) -> Vec<Str> {
    let inline = inline_volumes(pod).filter_map(|(_, source)| of_inline(source));
    let mut values: Vec<Str> = inline.flat_map(Storage::values).collect();
    values.sort();
    values.dedup();
    values
}

/// A pod's in-line volumes.
pub(super) fn inline_volumes(pod: &Pod) -> impl Iterator<Item = (&Volume, &InlineVolumeSource)> {
    claims::volumes(pod).filter_map(|volume| {
        let source = volume.volume_source.as_ref()?;
        Some((volume, source.inline.as_deref()?))
    })
}

/// The claim of a pod's volume, if the pod may use it.
pub(super) fn claim_of(
    pod: &Pod,
    volume: &Volume,
    find: impl Fn(&Key) -> Option<std::sync::Arc<PersistentVolumeClaim>>,
) -> Option<std::sync::Arc<PersistentVolumeClaim>> {
    let namespace = &pod.metadata().namespace;
    let is_own = claims::ephemeral(volume).is_some();
    let name = match is_own {
        true => claims::ephemeral_name(pod, volume),
        false => claims::named(volume)?.clone(),
    };
    let claim = find(&Key::new(namespace.clone(), name))?;
    (!is_own || claims::made_for(pod, &claim).is_ok()).then_some(claim)
}

/// Whether a volume and a claim are bound to each other, as both say.
pub(super) fn are_bound(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let named = claim.spec.as_ref().map(|spec| &*spec.volume_name);
    let phase = claim.status.as_ref().map(|status| &*status.phase);
    let reference = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.claim_ref.as_ref());
    phase == Some("Bound")
        && named == Some(&*volume.metadata().name)
        && reference.is_some_and(|reference| *reference.uid == *claim.metadata().uid)
}
