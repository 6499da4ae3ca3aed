//! Controllers of nodes: their health and taints, the eviction of their pods, their pod address ranges.

use controllers_kit::Factory;

mod bound;
mod events;
mod flags;
pub mod node_ipam;
pub mod node_lifecycle;
mod retries;
pub mod taint_eviction;
pub mod ttl;

/// All controllers of this group.
pub const REGISTRY: &[Factory] = &[
    Factory::of::<node_ipam::NodeIpam>(),
    Factory::of::<node_lifecycle::NodeLifecycle>(),
    Factory::of::<taint_eviction::TaintEviction>(),
    Factory::of::<ttl::Ttl>(),
];

#[cfg(test)]
mod tests;
