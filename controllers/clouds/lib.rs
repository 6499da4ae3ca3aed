//! Controllers of clouds: load balancers, routes, and nodes that a provider no longer has.
//!
//! They run where `--cloud-provider-endpoint` names a provider that speaks the protocol of `proto/cloud`.
//! Without it they behave as in kube-controller-manager, which knows their names and never runs them.

use controllers_kit::Factory;

pub mod cloud_node_lifecycle;
pub mod flags;
pub mod node_route;
pub mod service_lb;

/// All controllers of this group.
pub const REGISTRY: &[Factory] = &[
    Factory::of::<cloud_node_lifecycle::CloudNodeLifecycle>(),
    Factory::of::<node_route::NodeRoute>(),
    Factory::of::<service_lb::ServiceLb>(),
];

#[cfg(test)]
mod tests;
