//! Pods with volumes, and volumes, for this group's tests.

use std::sync::Arc;

use controllers_kit::{AnyObject, FlagValue, testing::*};
use kubernetes_proto::{
    Object,
    core::{
        EphemeralVolumeSource, InlineVolumeSource, PersistentVolume, PersistentVolumeClaim,
        PersistentVolumeClaimTemplate, PersistentVolumeClaimVolumeSource, Pod, Volume,
        VolumeSource,
    },
};

/// What pods have besides: volumes.
pub(crate) trait Volumes {
    /// With a volume of a claim, named as the claim.
    #[must_use]
    fn uses(self, claim: &str) -> Self;
    /// With a generic ephemeral volume.
    #[must_use]
    fn ephemeral(self, volume: &str, spec: &[u8]) -> Self;
}

impl Volumes for Pod {
    fn uses(mut self, claim: &str) -> Self {
        let source = VolumeSource {
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim.into(),
                read_only: false,
            }),
            ..VolumeSource::default()
        };
        put(&mut self, claim, source);
        self
    }
    fn ephemeral(mut self, volume: &str, spec: &[u8]) -> Self {
        let template = PersistentVolumeClaimTemplate {
            metadata: None,
            spec: spec.to_vec(),
        };
        let inline = InlineVolumeSource {
            ephemeral: Some(
                EphemeralVolumeSource {
                    volume_claim_template: Some(template),
                }
                .into(),
            ),
            ..InlineVolumeSource::default()
        };
        let source = VolumeSource {
            inline: Some(Box::new(inline)),
            ..VolumeSource::default()
        };
        put(&mut self, volume, source);
        self
    }
}

fn put(pod: &mut Pod, name: &str, source: VolumeSource) {
    pod.spec.get_or_insert_default().volumes.push(Volume {
        name: name.into(),
        volume_source: Some(source),
    });
}

/// A claim with the protection's finalizer.
pub(crate) fn protected(name: &str) -> PersistentVolumeClaim {
    claim(name).finalizer("kubernetes.io/pvc-protection")
}

/// A protected claim that is being deleted.
pub(crate) fn leaving(name: &str) -> PersistentVolumeClaim {
    protected(name).terminating("11:59:00")
}

/// A volume in a phase.
pub(crate) fn volume(name: &str, phase: &str) -> PersistentVolume {
    let mut volume = PersistentVolume::default();
    let meta = volume.metadata_mut();
    meta.name = name.into();
    meta.uid = format!("uid-persistentvolumes-{name}").as_str().into();
    volume.status.get_or_insert_default().phase = phase.to_owned();
    volume
}

/// A world with a gate on.
pub(crate) fn gated(gate: &'static str) -> World {
    World::at("12:00:00").flag(gate, FlagValue::Bool(true))
}

/// An object as a change has it.
pub(crate) fn any<T: Object>(object: T) -> AnyObject {
    Arc::new(object)
}
