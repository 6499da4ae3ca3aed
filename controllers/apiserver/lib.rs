//! Controllers of the API server's own upkeep: policies, stored versions and their migration.

use controllers_kit::Factory;

pub mod storage_version_migrator;
pub mod storageversion_garbage_collector;

/// All controllers of this group.
pub const REGISTRY: &[Factory] = &[
    Factory::of::<storage_version_migrator::StorageVersionMigrator>(),
    Factory::of::<storageversion_garbage_collector::StorageVersionGarbageCollector>(),
];

#[cfg(test)]
mod tests;
