//! Controllers of workloads: the chain from a Deployment to its pods.

use controllers_kit::Factory;

pub mod deployment;
pub mod replicaset;

/// All controllers of this group.
pub const REGISTRY: &[Factory] = &[
    Factory::of::<deployment::Deployments>(),
    Factory::of::<replicaset::ReplicaSets>(),
];

#[cfg(test)]
mod tests;
