//! Controllers of the API server's own upkeep: policies, stored versions and their migration.

use controllers_kit::Factory;

/// All controllers of this group.
pub const REGISTRY: &[Factory] = &[];
