//! What a Service wants of a load balancer, and which Nodes are behind it.

use std::{
    collections::BTreeSet,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
};

use controllers_kit::{SignedDuration, Snapshot, cloud};
use kubernetes_proto::{
    Object, Str,
    core::{LoadBalancerIngress, Node, Service},
};
use serde_json::json;

/// Holds a Service until its load balancer is removed.
pub(super) const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";
/// Nodes with this label are excluded from load balancers.
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// Nodes with this taint are about to be removed.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";
/// The index of Services that concern this controller, all under one value.
pub(super) const BY_WISH: &str = "load balancer";
pub(super) const ALL: &str = "all";
/// Names of Nodes in an event.
const NAMES_MAX: usize = 20;
/// A cache that was behind is read again, should no change wake the key.
pub(super) const STALE_RETRY: SignedDuration = SignedDuration::from_secs(5);

/// What is wanted of the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// Nothing.
    Nothing,
    /// A load balancer.
    Balance,
    /// No load balancer, where there may be one.
    Clean,
}

fn wants(service: &Service) -> bool {
    service
        .spec
        .as_ref()
        .is_some_and(|spec| spec.r#type == "LoadBalancer" && spec.load_balancer_class.is_none())
}

/// Whether the finalizer is there.
pub(super) fn is_held(service: &Service) -> bool {
    let mut finalizers = service.metadata().finalizers.iter();
    finalizers.any(|held| **held == *FINALIZER)
}

/// The wanted state; `dealt` says that the provider was asked for a load balancer before.
pub(super) fn wish(service: &Service, dealt: bool) -> Wish {
    let balances = service
        .spec
        .as_ref()
        .is_some_and(|spec| spec.r#type == "LoadBalancer");
    let ends = service.is_terminating();
    match is_held(service) {
        true if ends || !balances => Wish::Clean,
        // The API takes no finalizer for an object that is being deleted.
        false if ends => Wish::Nothing,
        _ if wants(service) => Wish::Balance,
        _ if dealt => Wish::Clean,
        _ => Wish::Nothing,
    }
}

/// Whether the Service may concern this controller at all.
pub(super) fn concerns(service: &Service) -> bool {
    wants(service) || is_held(service)
}

pub(super) fn index(service: &Service) -> Vec<Str> {
    let all = wants(service).then(|| Str::interned(ALL));
    all.into_iter().collect()
}

/// The load balancer's addresses in the status.
pub(super) fn ingress(service: &Service) -> &[LoadBalancerIngress] {
    let status = service.status.as_ref();
    let balancer = status.and_then(|status| status.load_balancer.as_ref());
    balancer.map_or(&[], |balancer| &balancer.ingress)
}

/// A hash of all fields whose change is a reason to ensure the load balancer again.
pub(super) fn spec_hash(service: &Service) -> u64 {
    let meta = service.metadata();
    let annotations: Vec<_> = meta
        .annotations
        .iter()
        .map(|one| (one.key.as_str(), one.value.as_str()))
        .collect();
    let mut hasher = DefaultHasher::new();
    meta.uid.as_str().hash(&mut hasher);
    annotations.hash(&mut hasher);
    if let Some(spec) = &service.spec {
        let part = json!([
            spec.ports,
            spec.session_affinity,
            spec.session_affinity_config,
            spec.load_balancer_ip,
            spec.load_balancer_source_ranges,
            spec.external_i_ps,
            spec.external_traffic_policy,
            spec.health_check_node_port,
            spec.ip_families.len(),
        ]);
        part.to_string().hash(&mut hasher);
    }
    hasher.finish()
}

/// Whether the label does not exclude the Node. A value other than true or false excludes it.
fn is_included(node: &Node) -> bool {
    match Object::metadata(node).label(EXCLUDED) {
        None => true,
        Some(value) => matches!(value, "0" | "f" | "F" | "false" | "FALSE" | "False"),
    }
}

fn is_behind(node: &Node) -> bool {
    let mut taints = node.spec.iter().flat_map(|spec| &spec.taints);
    !node.is_terminating() && is_included(node) && !taints.any(|taint| taint.key == TO_BE_DELETED)
}

/// The target Nodes of each load balancer.
pub(super) fn hosts(seen: &Snapshot<'_>) -> Vec<Arc<Node>> {
    let mut nodes = seen.all::<Node>();
    nodes.retain(|node| is_behind(node));
    nodes
}

/// The same for the provider.
pub(super) fn machines(seen: &Snapshot<'_>) -> Vec<cloud::Node> {
    hosts(seen)
        .iter()
        .map(|node| cloud::Node::of(node))
        .collect()
}

/// What distinguishes a Node from another.
pub(super) fn host(node: &Node) -> (&str, &str) {
    let id = node.spec.as_ref().map_or("", |spec| &*spec.provider_id);
    (&Object::metadata(node).name, id)
}

/// A hash of a set of Nodes by name and provider id.
pub(super) fn nodes_hash<'a>(hosts: impl Iterator<Item = (&'a str, &'a str)>) -> u64 {
    let set: BTreeSet<(&str, &str)> = hosts.collect();
    let mut hasher = DefaultHasher::new();
    set.hash(&mut hasher);
    hasher.finish()
}

/// Whether a change of a Node matters: upstream watches for these alone, and includes any other changes
/// when one of them occurs.
pub(super) fn node_matters(old: Option<&Node>, new: Option<&Node>) -> bool {
    match (old, new) {
        (Some(old), Some(new)) => {
            is_included(old) != is_included(new) || host(old).1 != host(new).1
        }
        _ => true,
    }
}

/// Names as an event has them, limited.
pub(super) fn loggable<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let count = names.len();
    let mut shown: Vec<String> = names.take(NAMES_MAX).map(str::to_owned).collect();
    shown.sort();
    if count > NAMES_MAX {
        shown.push(format!("<{} more>", count - NAMES_MAX));
    }
    format!(
        "[{}] [node names limited, total number of nodes: {count}]",
        shown.join(" ")
    )
}
