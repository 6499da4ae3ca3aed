//! Controllers of storage: volumes and claims, who uses them, and where they are attached.

use controllers_kit::Factory;

pub mod translation;

/// All controllers of this group.
pub const REGISTRY: &[Factory] = &[];
