//! Controllers of workloads: the chain from a Deployment to its pods.

use controllers_kit::Factory;

pub mod daemonset;
pub mod deployment;
pub mod disruption;
pub mod replicaset;
pub mod replicationcontroller;
pub mod revisions;
pub mod statefulset;

/// All controllers of this group.
pub const REGISTRY: &[Factory] = &[
    Factory::of::<deployment::Deployments>(),
    Factory::of::<replicaset::ReplicaSets>(),
    Factory::of::<replicationcontroller::ReplicationControllers>(),
    Factory::of::<statefulset::StatefulSets>(),
    Factory::of::<daemonset::DaemonSets>(),
    Factory::of::<disruption::Disruptions>(),
];

#[cfg(test)]
mod tests;
