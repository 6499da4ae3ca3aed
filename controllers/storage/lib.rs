//! Controllers of storage: volumes and claims, who uses them, and where they are attached.

use controllers_kit::Factory;

pub mod persistentvolume_binder;

/// All controllers of this group.
pub const REGISTRY: &[Factory] =
    &[Factory::of::<persistentvolume_binder::PersistentVolumeBinder>()];

#[cfg(test)]
mod tests;
