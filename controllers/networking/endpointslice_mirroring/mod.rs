//! Mirrors Endpoints that were created by hand for a Service without a selector to EndpointSlices, which
//! the data plane reads.
//!
//! Watches endpoints, services and endpointslices; creates, patches and deletes the slices that bear its
//! label; a key per Endpoints. One slice mirrors one subset's addresses of one type,
//! `--mirroring-max-endpoints-per-subset` at most. Slices bear the labels and annotations of their Endpoints.
//! Endpoints with the label `endpointslice.kubernetes.io/skip-mirror` or a leader election's annotation are
//! not mirrored.
//!
//! Remembers the last report of addresses that are left out, so that each is reported once; and what waits
//! for the end of a batching period.

mod plan;

use std::time::Duration;

use controllers_kit::{
    Controller, Descriptor, FlagDefault, Flags, Key, MetricKind, MetricSpec, Plan, Refusal, Said,
    Sharding, Snapshot, Watches,
};
use kubernetes_proto::{
    Object,
    core::{Endpoints, Service},
    discovery::EndpointSlice,
};
use serde::{Deserialize, Serialize};

use crate::{batching::Batch, services, slices};

/// The label's value of slices of this controller.
const MANAGER: &str = "endpointslicemirroring-controller.k8s.io";
/// The label of Endpoints that must not be mirrored.
const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";

/// The controller.
pub struct MirroredSlices {
    most: usize,
    period: Duration,
}

/// What is remembered of one Endpoints object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// The events about the number of addresses left out.
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
        "Number of endpoints added on each Endpoints sync",
    ),
    MetricSpec::new(
        plan::UPDATED,
        MetricKind::Histogram(2.0, 2.0, 15),
        &[],
        "Number of endpoints updated on each Endpoints sync",
    ),
    MetricSpec::new(
        plan::REMOVED,
        MetricKind::Histogram(2.0, 2.0, 15),
        &[],
        "Number of endpoints removed on each Endpoints sync",
    ),
    MetricSpec::new(
        plan::SKIPPED,
        MetricKind::Histogram(2.0, 2.0, 15),
        &[],
        "Number of addresses skipped on each Endpoints sync due to being invalid or exceeding MaxEndpointsPerSubset",
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
        plan::CHANGES,
        MetricKind::Counter,
        &["operation"],
        "Number of EndpointSlice changes",
    ),
];

impl Controller for MirroredSlices {
    type Memory = Memory;

    fn describe() -> Descriptor {
        Descriptor::new("endpointslice-mirroring-controller", Sharding::ByObject)
            .aliases(&["endpointslicemirroring"])
            .service_account("endpointslicemirroring-controller")
            .event_source("endpoint-slice-mirroring-controller")
            .queue("endpoint_slice_mirroring")
            .retry_first(Duration::from_secs(1))
            .retry_max(Duration::from_secs(100))
            .min_sync_interval(Duration::from_millis(500))
            .workers(
                "mirroring-concurrent-service-endpoint-syncs",
                5,
                "The number of Endpoints that each replica mirrors concurrently.",
            )
            .flag(
                "mirroring-max-endpoints-per-subset",
                FlagDefault::Int(1000),
                "The maximum number of addresses that are mirrored of one subset of Endpoints.",
            )
            .flag(
                "mirroring-endpointslice-updates-batch-period",
                FlagDefault::Duration(Duration::ZERO),
                "How long changes of EndpointSlices are batched before mirrors are written: fewer but later writes.",
            )
            .bound("mirroring-concurrent-service-endpoint-syncs", 1, 50)
            .bound("mirroring-max-endpoints-per-subset", 1, 1000)
            .reads_live::<Service>()
            .reads_live::<Endpoints>()
            .blocks_owner_deletion::<Service>()
            .blocks_owner_deletion::<Endpoints>()
            .rule("discovery.k8s.io", "endpointslices", &["get", "list", "watch", "create", "patch", "delete"])
            .metrics(METRICS)
            .sync_seconds("endpoint_slice_mirroring_controller_endpoints_sync_duration")
            .differences(include_str!("differences.md"))
    }

    fn new(flags: &Flags) -> Self {
        Self {
            most: usize::try_from(flags.int("mirroring-max-endpoints-per-subset"))
                .unwrap_or(1)
                .max(1),
            period: flags.duration("mirroring-endpointslice-updates-batch-period"),
        }
    }

    fn watch(&self, on: &mut Watches) {
        on.kind::<Endpoints>().wakes(|change, _| {
            let mirrored = change.both().any(may_be_mirrored);
            mirrored
                .then(|| Key::of(change.newest()))
                .into_iter()
                .collect()
        });
        on.kind::<Service>().wakes(|change, _| {
            let bare = |service: &Service| services::selector(service).is_empty();
            let wakes = match (change.old, change.new) {
                (Some(old), Some(new)) => bare(old) != bare(new),
                _ => bare(change.newest()),
            };
            wakes
                .then(|| Key::of(change.newest()))
                .into_iter()
                .collect()
        });
        on.kind::<EndpointSlice>()
            .wakes(|change, _| slices::woken_by_slice(change.both(), MANAGER))
            .indexed_by(slices::BY_SERVICE, slices::by_service);
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, memory: &mut Memory) -> Result<Plan, Refusal> {
        let held = slices::held(key, MANAGER, seen);
        let endpoints = seen.get::<Endpoints>(key).filter(|endpoints| {
            may_be_mirrored(endpoints)
                && seen
                    .get::<Service>(key)
                    .is_some_and(|service| services::selector(&service).is_empty())
        });
        let Some(endpoints) = endpoints else {
            *memory = Memory::default();
            return Ok(plan::clear(key, held));
        };
        Ok(plan::plan(self, &endpoints, &held, seen, memory))
    }
}

/// Whether Endpoints must not be mirrored, by label or as a lock.
fn may_be_mirrored(endpoints: &Endpoints) -> bool {
    let meta = endpoints.metadata();
    meta.label(SKIP) != Some("true") && meta.annotation(services::LEADER).is_none()
}

#[cfg(test)]
mod tests;
