//! Controllers of devices: claims made, reserved and freed, devices with taints, pods in groups.

use controllers_kit::Factory;

pub mod podgroup_protection;
pub mod resourceclaim;

/// All controllers of this group.
pub const REGISTRY: &[Factory] = &[
    Factory::of::<podgroup_protection::PodGroupProtection>(),
    Factory::of::<resourceclaim::ResourceClaims>(),
];

#[cfg(test)]
mod tests;
