//! Controllers of nodes: their health and taints, the eviction of their pods, their pod address ranges.

use controllers_kit::Factory;

pub mod ttl;

/// All controllers of this group.
pub const REGISTRY: &[Factory] = &[Factory::of::<ttl::Ttl>()];

#[cfg(test)]
mod tests;
