//! Keeps pods with an identity: one of each ordinal, with claims of its own, created, replaced and deleted
//! in order.
//!
//! Watches statefulsets, pods, persistentvolumeclaims and controllerrevisions. Creates and deletes pods,
//! mends their labels; creates claims and sets their owners by the retention policy; keeps the template's
//! history in ControllerRevisions; writes the StatefulSet's status. A key per StatefulSet. Remembers which
//! revision a template's bytes are of, so that the StatefulSet need not be read live again.
//!
//! Differs from upstream: a pod is deleted by its uid, so an owner with an old view never kills the next pod
//! of an ordinal. Adoptions and releases are settled in a plan of their own. A pod of an older revision is
//! created from the revision's JSON, one of the newest from the template's own bytes.

mod claims;
mod context;
mod plan;
mod pod;
mod status;

use controllers_kit::{
    Change, Controller, Descriptor, Flags, Key, MetricKind, Plan, Query, Reader, Refusal, Said,
    Sharding, Snapshot, Watches, owners,
};
use kubernetes_proto::{
    Object,
    apps::{ControllerRevision, StatefulSet},
    cast,
    core::{PersistentVolumeClaim, Pod},
};
use serde::{Deserialize, Serialize};

use crate::revisions::Known;

/// The gate of `maxUnavailable`.
const MAX_UNAVAILABLE: &str = "MaxUnavailableStatefulSet";
/// The gate of comparing the newest revision by its content.
const SEMANTIC: &str = "StatefulSetSemanticRevisionComparison";
const MAX_UNAVAILABLE_METRIC: &str = "statefulset_controller_statefulset_max_unavailable";
const UNAVAILABLE_METRIC: &str = "statefulset_controller_statefulset_unavailable_replicas";
const METRIC_LABELS: &[&str] = &[
    "statefulset_namespace",
    "statefulset_name",
    "pod_management_policy",
];

/// The statefulset controller.
pub struct StatefulSets {
    max_unavailable: bool,
    semantic: bool,
}

/// What the controller remembers of one StatefulSet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// Which data the template makes.
    pub known: Known,
    /// The event about what could not be done.
    pub said: Said,
}

impl Controller for StatefulSets {
    type Memory = Memory;

    fn describe() -> Descriptor {
        Descriptor::new("statefulset-controller", Sharding::ByObject)
            .aliases(&["statefulset"])
            .queue("statefulset")
            .workers(
                "concurrent-statefulset-syncs",
                5,
                "The number of statefulset objects that are allowed to sync concurrently. Larger number = more \
                 responsive statefulsets, but more CPU (and network) load",
            )
            .gate(MAX_UNAVAILABLE, false)
            .gate(SEMANTIC, true)
            .reads_live::<StatefulSet>()
            .writes_status::<StatefulSet>()
            .blocks_owner_deletion::<StatefulSet>()
            .writes::<Pod>(&["create", "patch", "delete"])
            .blocks_owner_deletion::<Pod>()
            .writes::<PersistentVolumeClaim>(&["create", "patch"])
            .writes::<ControllerRevision>(&["create", "patch", "delete"])
            .metric(
                MAX_UNAVAILABLE_METRIC,
                MetricKind::Gauge,
                METRIC_LABELS,
                "Maximum number of unavailable pods allowed during StatefulSet rolling updates",
            )
            .metric(
                UNAVAILABLE_METRIC,
                MetricKind::Gauge,
                METRIC_LABELS,
                "Current number of unavailable pods in StatefulSet",
            )
            .differences(include_str!("differences.md"))
    }

    fn new(flags: &Flags) -> Self {
        Self {
            max_unavailable: flags.bool(MAX_UNAVAILABLE),
            semantic: flags.bool(SEMANTIC),
        }
    }

    fn watch(&self, on: &mut Watches) {
        on.kind::<StatefulSet>().wakes_itself();
        on.kind::<Pod>()
            .wakes_controller::<StatefulSet>()
            .wakes(|change, reader| {
                owners::adopters::<StatefulSet, Pod>(change, reader, |set| {
                    set.spec.as_ref()?.selector.as_ref()
                })
            })
            .indexed_by(owners::ORPHANS, owners::orphan_in);
        on.kind::<PersistentVolumeClaim>().wakes(of_claim);
        on.kind::<ControllerRevision>()
            .wakes_controller::<StatefulSet>()
            .wakes(|change, reader| {
                owners::adopters::<StatefulSet, ControllerRevision>(change, reader, |set| {
                    set.spec.as_ref()?.selector.as_ref()
                })
            })
            .indexed_by(owners::ORPHANS, owners::orphan_in);
    }

    fn ask(&self, key: &Key, seen: &Snapshot<'_>, memory: &Memory) -> Vec<Query> {
        plan::ask(self, key, seen, memory)
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, memory: &mut Memory) -> Result<Plan, Refusal> {
        plan::plan(self, key, seen, memory)
    }
}

/// The StatefulSets that a claim's name refers to, when it is created, terminates or is deleted: a pod may
/// wait for that, and the claim's owner references may have to be mended.
fn of_claim(change: &Change<'_, PersistentVolumeClaim>, reader: &dyn Reader) -> Vec<Key> {
    let claim = change.newest().metadata();
    reader
        .list(StatefulSet::resource(), Some(&claim.namespace))
        .into_iter()
        .filter_map(cast::<StatefulSet>)
        .filter(|set| {
            let templates = set
                .spec
                .as_ref()
                .map_or(&[][..], |spec| &spec.volume_claim_templates);
            let name = &set.metadata().name;
            templates.iter().any(|template| {
                let prefix = template.metadata.as_ref().map_or("", |meta| &meta.name);
                claim
                    .name
                    .strip_prefix(&*format!("{prefix}-{name}-"))
                    .is_some_and(|ordinal| ordinal.bytes().all(|byte| byte.is_ascii_digit()))
            })
        })
        .map(|set| Key::of(set.as_ref()))
        .collect()
}

#[cfg(test)]
mod tests;
