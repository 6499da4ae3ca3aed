//! Which pods are on which node.

use kubernetes_proto::{Str, core::Pod};

/// The index of pods by the node that they are bound to.
pub(crate) const BY_NODE: &str = "bound-node";

/// The node that a pod is bound to.
pub(crate) fn node_of(pod: &Pod) -> Option<&Str> {
    let node = &pod.spec.as_ref()?.node_name;
    (!node.is_empty()).then_some(node)
}

/// The values of the index.
pub(crate) fn by_node(pod: &Pod) -> Vec<Str> {
    node_of(pod).into_iter().cloned().collect()
}
