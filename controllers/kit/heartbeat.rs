//! Heartbeats of nodes, and their age by the clock of the replica that saw them.
//!
//! A heartbeat carries the time of the machine that sent it, which is not used: clocks differ. What counts
//! is that it differs from the previous one. Each replica records on its own monotonic clock when it saw a
//! heartbeat change ([`crate::Reader::heartbeat_age`]), so a key that changes its owner neither loses nor
//! repeats a waiting time.

use kubernetes_proto::{
    DynObject,
    coordination::Lease,
    core::{Node, NodeCondition, Taint},
};

use crate::conditions;

/// The namespace of the Leases that kubelets renew, each named after its node.
pub const NODE_LEASES: &str = "kube-node-lease";

/// What distinguishes one heartbeat of an object from the next; `None` for an object that has none.
pub fn of(object: &dyn DynObject) -> Option<(i64, i32)> {
    let object = object.as_any();
    if let Some(lease) = object.downcast_ref::<Lease>() {
        let renewed = lease.spec.as_ref().and_then(|spec| spec.renew_time);
        return renewed.map(|at| (at.seconds, at.nanos));
    }
    let node = object.downcast_ref::<Node>()?;
    // A node without a Ready condition counts as seen nevertheless.
    let beat = ready(node).and_then(|ready| ready.last_heartbeat_time);
    let beat = beat.unwrap_or_default();
    Some((beat.seconds, beat.nanos))
}

/// The condition by which a kubelet reports its node's health.
pub fn ready(node: &Node) -> Option<&NodeCondition> {
    conditions::find(&node.status.as_ref()?.conditions, "Ready")
}

/// A node's taints that pods must bear to stay.
pub fn no_execute(node: &Node) -> impl Iterator<Item = &Taint> {
    let taints = node.spec.iter().flat_map(|spec| &spec.taints);
    taints.filter(|taint| taint.effect == "NoExecute")
}
