//! Keeps EndpointSlices for every Service with a selector, with the addresses of the pods that it selects,
//! for each of its address families, at most `--max-endpoints-per-slice` endpoints in each, no endpoint in
//! two.
//!
//! Watches services, pods, nodes and endpointslices; creates, patches and deletes the slices that bear its
//! label, and leaves all others alone; a key per Service. Slices go with their Service by garbage collection.
//!
//! Remembers which addresses have hints by topology and why others have none, so that each is reported
//! once; and what waits for the end of a batching period.
//!
//! `packing.rs` decides which endpoint goes into which slice; `hints.rs` and `traffic.rs` decide for which
//! zones and nodes it is meant.

mod endpoint;
mod hints;
mod packing;
mod plan;
mod traffic;

use std::{collections::BTreeMap, time::Duration};

use controllers_kit::{
    Change, Controller, Descriptor, FlagDefault, Flags, Key, MetricKind, MetricSpec, Plan, Reader,
    Refusal, Said, Sharding, Snapshot, Watches, pods,
};
use kubernetes_proto::{
    Object, Str, cast,
    core::{Node, Pod, Service},
    discovery::EndpointSlice,
};
use serde::{Deserialize, Serialize};

use crate::{batching::Batch, services, slices};

/// The label's value of slices of this controller.
const MANAGER: &str = "endpointslice-controller.k8s.io";

/// The index of Services whose hints depend on all nodes, and its one value.
const HINTED: &str = "topology-hints";
const AUTO: &str = "auto";

/// The index of pods by their node.
const ON_NODE: &str = "node";

/// The controller.
pub struct SlicesOfServices {
    most_per_slice: usize,
    period: Duration,
    /// Whether the traffic distributions of same node and same zone are available.
    prefers_same: bool,
}

/// What is remembered of one Service between plans.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// The last reported state of each address type's hints: empty where they were given, else why not.
    pub hints: BTreeMap<String, String>,
    /// Whether an event has reported pods without a node.
    pub said: Said,
    /// The batching of its changes.
    pub batch: Batch,
}

/// Its metrics, named as upstream names them.
const METRICS: &[MetricSpec] = &[
    MetricSpec::new(
        plan::ADDED,
        MetricKind::Histogram(2.0, 2.0, 15),
        &[],
        "Number of endpoints added on each Service sync",
    ),
    MetricSpec::new(
        plan::REMOVED,
        MetricKind::Histogram(2.0, 2.0, 15),
        &[],
        "Number of endpoints removed on each Service sync",
    ),
    MetricSpec::new(
        plan::CHANGES,
        MetricKind::Counter,
        &["operation"],
        "Number of EndpointSlice changes",
    ),
    MetricSpec::new(
        plan::CHANGED,
        MetricKind::Histogram(0.005, 2.5, 9),
        &["topology", "traffic_distribution"],
        "Number of EndpointSlices changed on each Service sync",
    ),
    MetricSpec::new(
        plan::DESIRED,
        MetricKind::Sum,
        &[],
        "Number of endpoints desired",
    ),
    MetricSpec::new(
        plan::SLICES,
        MetricKind::Sum,
        &[],
        "Number of EndpointSlices",
    ),
    MetricSpec::new(
        plan::DESIRED_SLICES,
        MetricKind::Sum,
        &[],
        "Number of EndpointSlices that would exist with perfect endpoint allocation",
    ),
    MetricSpec::new(
        plan::TRAFFIC,
        MetricKind::Sum,
        &["traffic_distribution"],
        "Number of Services using some specific trafficDistribution",
    ),
    MetricSpec::new(
        plan::SYNCS,
        MetricKind::Counter,
        &["result"],
        "Number of EndpointSlice syncs",
    ),
];

impl Controller for SlicesOfServices {
    type Memory = Memory;

    fn describe() -> Descriptor {
        Descriptor::new("endpointslice-controller", Sharding::ByObject)
            .aliases(&["endpointslice"])
            .event_source("endpoint-slice-controller")
            .queue("endpoint_slice")
            .retry_first(Duration::from_secs(1))
            .min_sync_interval(Duration::from_millis(300))
            .workers(
                "concurrent-service-endpoint-syncs",
                5,
                "The number of Services whose EndpointSlices each replica handles concurrently.",
            )
            .flag(
                "max-endpoints-per-slice",
                FlagDefault::Int(100),
                "The maximum number of endpoints in one EndpointSlice: a larger number makes fewer but larger slices.",
            )
            .flag(
                "endpointslice-updates-batch-period",
                FlagDefault::Duration(Duration::ZERO),
                "How long changes of pods are batched before EndpointSlices are written: fewer but later writes.",
            )
            .bound("concurrent-service-endpoint-syncs", 1, 50)
            .bound("max-endpoints-per-slice", 1, 1000)
            .gate("PreferSameTrafficDistribution", true)
            .reads_live::<Service>()
            .reads_live::<Pod>()
            .reads_live::<Node>()
            .blocks_owner_deletion::<Service>()
            .rule("discovery.k8s.io", "endpointslices", &["get", "list", "watch", "create", "patch", "delete"])
            .metrics(METRICS)
            .differences(include_str!("differences.md"))
    }

    fn new(flags: &Flags) -> Self {
        Self {
            most_per_slice: usize::try_from(flags.int("max-endpoints-per-slice"))
                .unwrap_or(1)
                .max(1),
            period: flags.duration("endpointslice-updates-batch-period"),
            prefers_same: flags.bool("PreferSameTrafficDistribution"),
        }
    }

    fn watch(&self, on: &mut Watches) {
        on.kind::<Service>()
            .wakes_itself()
            .indexed_by(services::SELECTING, services::selecting)
            .indexed_by(HINTED, |service| {
                let hinted = hints::are_wanted(service);
                hinted.then(|| Str::interned(AUTO)).into_iter().collect()
            });
        on.kind::<Pod>()
            .wakes(services::woken_by_pod)
            .indexed_by(ON_NODE, |pod| {
                let node = pods::node_name(pod);
                let assigned = !node.is_empty();
                assigned.then(|| Str::interned(node)).into_iter().collect()
            });
        on.kind::<Node>().wakes(woken_by_node);
        on.kind::<EndpointSlice>()
            .wakes(|change, _| slices::woken_by_slice(change.both(), MANAGER))
            .indexed_by(slices::BY_SERVICE, slices::by_service);
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, memory: &mut Memory) -> Result<Plan, Refusal> {
        let Some(service) = seen.get::<Service>(key) else {
            *memory = Memory::default();
            return Ok(Plan::nothing());
        };
        if !services::has_endpoints(&service) {
            *memory = Memory::default();
            return Ok(Plan::nothing());
        }
        Ok(plan::plan(self, &service, seen, memory))
    }
}

/// A node that is created, is deleted or changes its zone wakes the Services of its pods; one whose share
/// of the cluster's capacity changes wakes all whose hints depend on it.
fn woken_by_node(change: &Change<'_, Node>, reader: &dyn Reader) -> Vec<Key> {
    let mut keys = Vec::new();
    if change.old.map(endpoint::zone) != change.new.map(endpoint::zone) {
        let name = &change.newest().metadata().name;
        let pods = reader.indexed(Pod::resource(), ON_NODE, name);
        for pod in pods.into_iter().filter_map(cast::<Pod>) {
            keys.extend(services::of_pod(&pod, reader));
        }
    }
    if change.old.map(hints::capacity) != change.new.map(hints::capacity) {
        let hinted = reader.indexed(Service::resource(), HINTED, AUTO);
        keys.extend(
            hinted
                .iter()
                .map(|service| Key::of_meta(service.metadata())),
        );
    }
    keys.sort_unstable();
    keys.dedup();
    keys
}

#[cfg(test)]
mod tests;
