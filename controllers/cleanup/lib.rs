//! Controllers that clear up what is left over.

use controllers_kit::Factory;

pub mod garbage_collector;
pub mod namespace;
pub mod pod_garbage_collector;
pub mod resourcequota;

/// All controllers of this group.
pub const REGISTRY: &[Factory] = &[
    Factory::of::<garbage_collector::GarbageCollector>(),
    Factory::of::<namespace::Namespaces>(),
    Factory::of::<pod_garbage_collector::PodGarbageCollector>(),
    Factory::of::<resourcequota::ResourceQuotas>(),
];

#[cfg(test)]
mod tests;
