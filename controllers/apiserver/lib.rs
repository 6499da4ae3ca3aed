//! Controllers of the API server's own upkeep: policies, stored versions and their migration.

use controllers_kit::Factory;

pub mod storage_version_migrator;
pub mod storageversion_garbage_collector;
pub mod validatingadmissionpolicy_status;

/// All controllers of this group.
pub const REGISTRY: &[Factory] = &[
    Factory::of::<storage_version_migrator::StorageVersionMigrator>(),
    Factory::of::<storageversion_garbage_collector::StorageVersionGarbageCollector>(),
    Factory::of::<validatingadmissionpolicy_status::ValidatingAdmissionPolicyStatus>(),
];

#[cfg(test)]
mod tests;
