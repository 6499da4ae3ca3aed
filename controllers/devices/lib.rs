//! Controllers of devices: claims made, reserved and freed, devices with taints, pods in groups.

use controllers_kit::Factory;

pub mod device_taint_eviction;
pub mod podgroup_protection;
pub mod resourceclaim;
pub mod resourcepoolstatusrequest;

/// All controllers of this group.
pub const REGISTRY: &[Factory] = &[
    Factory::of::<device_taint_eviction::DeviceTaintEviction>(),
    Factory::of::<podgroup_protection::PodGroupProtection>(),
    Factory::of::<resourceclaim::ResourceClaims>(),
    Factory::of::<resourcepoolstatusrequest::PoolStatusRequests>(),
];

#[cfg(test)]
mod tests;
