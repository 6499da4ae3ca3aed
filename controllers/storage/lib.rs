//! Controllers of storage: volumes and claims, who uses them, and where they are attached.

use controllers_kit::Factory;

pub mod persistentvolume_attach_detach;
pub mod translation;

/// All controllers of this group.
pub const REGISTRY: &[Factory] = &[Factory::of::<persistentvolume_attach_detach::AttachDetach>()];

#[cfg(test)]
mod tests;
