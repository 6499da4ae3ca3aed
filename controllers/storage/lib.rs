//! Controllers of storage: volumes and claims, who uses them, and where they are attached.

use controllers_kit::Factory;

#[cfg(test)]
mod builders;
mod claims;
pub mod ephemeral_volume;
mod migrated;
pub mod persistentvolume_attach_detach;
pub mod persistentvolume_binder;
pub mod persistentvolume_expander;
pub mod persistentvolume_protection;
pub mod persistentvolumeclaim_protection;
pub mod selinux_warning;
pub mod translation;
pub mod volumeattributesclass_protection;

/// All controllers of this group.
pub const REGISTRY: &[Factory] = &[
    Factory::of::<ephemeral_volume::EphemeralVolumes>(),
    Factory::of::<persistentvolume_attach_detach::AttachDetach>(),
    Factory::of::<persistentvolume_binder::PersistentVolumeBinder>(),
    Factory::of::<persistentvolume_expander::VolumeExpander>(),
    Factory::of::<persistentvolume_protection::VolumeProtection>(),
    Factory::of::<persistentvolumeclaim_protection::ClaimProtection>(),
    Factory::of::<selinux_warning::SeLinuxWarning>(),
    Factory::of::<volumeattributesclass_protection::ClassProtection>(),
];

#[cfg(test)]
mod tests;
