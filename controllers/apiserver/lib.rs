//! Controllers of the API server's own upkeep: policies, stored versions and their migration.

use controllers_kit::Factory;

pub mod validatingadmissionpolicy_status;

/// All controllers of this group.
pub const REGISTRY: &[Factory] = &[Factory::of::<
    validatingadmissionpolicy_status::ValidatingAdmissionPolicyStatus,
>()];

#[cfg(test)]
mod tests;
