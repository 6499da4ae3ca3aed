//! Attaches volumes to the nodes whose pods use them, and detaches them afterwards; a volume that one node
//! alone may have is attached to one node at a time.
//!
//! Watches pods, nodes, claims, PersistentVolumes, VolumeAttachments and CSIDrivers; creates and deletes
//! VolumeAttachments, and writes `status.volumesAttached` of nodes, which kubelets read before they mount; a
//! key per volume, by its unique name (`volume/kubernetes.io/csi/<driver>^<handle>`), so that one owner
//! decides about all of its nodes. What is attached is read from the API alone; remembered is since when a
//! node should have let a volume go, and what events have reported.
//!
//! A detach has three steps, each a plan of its own that begins with what the step before has left in the
//! API:
//! 1. the entry leaves `volumesAttached` by a compare-and-swap on the very version of the node that does not
//!    list the volume as in use: a kubelet reports a volume as in use before it reads `volumesAttached` and
//!    mounts, so one that has not reported by that version finds the entry gone;
//! 2. the node is read live, and the volume must be in neither list;
//! 3. the VolumeAttachment is deleted as it was seen, by uid and version.
//!
//! A forced detach skips the checks of what is in use; the node is read live all the same, and must still be
//! gone, not ready, or out of service.
//!
//! Ephemeral volumes of drivers are not attached, but counted by a metric: a key per node that has some
//! (`ephemeral/<node>`).

mod changes;
mod places;
mod volumes;
mod wakes;

use std::{collections::BTreeMap, time::Duration};

use controllers_kit::{
    Controller, Descriptor, Failure, FlagDefault, Flags, Key, MetricKind, Outcome, Plan, Query,
    Refusal, Runs, Sharding, SignedDuration, Snapshot, Timestamp, Verb, Watches,
};
use kubernetes_proto::{
    Object,
    core::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::{CsiDriver, VolumeAttachment},
};

use crate::claims;
use serde::{Deserialize, Serialize};

use changes::Changes;
use volumes::{BY_IN_LINE, BY_NODE, BY_SOURCE, BY_VOLUME, Unique};

/// The kind of the keys of volumes.
const KEY: &str = "volume";
/// The kind of the keys of nodes, for which CSI ephemeral volumes are counted.
const EPHEMERAL: &str = "ephemeral";

const PERIOD: &str = "attach-detach-reconcile-sync-period";
const NO_SYNC: &str = "disable-attach-detach-reconcile-sync";
const NO_FORCE: &str = "disable-force-detach-on-timeout";

const MANAGED: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// How long an unhealthy node may keep a volume that it should release.
const UNMOUNT: SignedDuration = SignedDuration::from_mins(6);
/// How long a driver may take to attach before that is an error.
const OPERATION: SignedDuration = SignedDuration::from_mins(2);

const TOTAL: &str = "attachdetach_controller_total_volumes";
const IN_USE: &str = "storage_count_attachable_volumes_in_use";
const FORCED: &str = "attach_detach_controller_attachdetach_controller_forced_detaches";
const SECONDS: &str = "storage_operation_duration_seconds";

/// The controller.
pub struct AttachDetach {
    /// How long an attachment that is listed may be lost before it is made again; `None` forever.
    sync: Option<SignedDuration>,
    forces: bool,
}

/// The memory of a volume, beyond what the API holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// By node; bounded by the nodes that have, want or had the volume.
    nodes: BTreeMap<String, Note>,
    /// Why attachments could not be created in the last plan, by their names.
    failed: BTreeMap<String, String>,
}

/// The memory of a volume on a node. Losing it delays a forced detach, and repeats an event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    /// Since when the node should let the volume go.
    unwanted_since: Option<Timestamp>,
    /// When the attachment's deletion was requested.
    detaching_since: Option<Timestamp>,
    /// Whether the node neither listed nor used the volume when it was last seen: its kubelet can't mount
    /// it any more, so this holds after the node is gone.
    let_go: bool,
    /// Which failure to detach was measured last.
    measured_failure: Option<String>,
    /// Since when the node waits for the volume.
    attaching_since: Option<Timestamp>,
    /// Since when the node lists a volume whose attachment is not there.
    lost_since: Option<Timestamp>,
    /// When a write to the node's list is due, whatever other key wants to write it.
    turn: Option<Timestamp>,
    /// How many keys were before this one in line when that was set.
    #[serde(default)]
    before: usize,
    /// Whether pods were reported that the volume is attached elsewhere.
    reported_elsewhere: bool,
    /// Whether pods were reported that it is attached.
    reported_success: bool,
    /// Which failure pods were reported of last.
    reported_failure: Option<String>,
}

fn is_managed(node: &Node) -> bool {
    Object::metadata(node).annotation(MANAGED).is_some()
}

fn is_ready(node: &Node) -> bool {
    let mut conditions = node.status.iter().flat_map(|status| &status.conditions);
    conditions.any(|one| *one.r#type == *"Ready" && *one.status == *"True")
}

fn is_out_of_service(node: &Node) -> bool {
    let mut taints = node.spec.iter().flat_map(|spec| &spec.taints);
    taints.any(|taint| *taint.key == *OUT_OF_SERVICE)
}

impl AttachDetach {
    fn decide(&self, key: &Key, seen: &Snapshot<'_>, memory: &mut Memory) -> (Plan, Vec<Query>) {
        if let Some(node) = key.of_kind(EPHEMERAL) {
            return (changes::count_ephemeral(node, seen), Vec::new());
        }
        match key.of_kind(KEY).and_then(|name| Unique::parse(name)) {
            Some(unique) => Changes::new(self, &unique, seen, memory).of(memory),
            None => Default::default(),
        }
    }
}

impl Controller for AttachDetach {
    type Memory = Memory;

    fn describe() -> Descriptor {
        Descriptor::new("persistentvolume-attach-detach-controller", Sharding::ByObject)
            .aliases(&["attachdetach"])
            .service_account("attachdetach-controller")
            .event_source("attachdetach-controller")
            .queue("pvcs")
            .workers_fixed(16)
            .one_by_one()
            .retry_first(Duration::from_millis(500))
            .retry_max(Duration::from_secs(122))
            .flag(
                PERIOD,
                FlagDefault::Duration(Duration::from_mins(1)),
                "How long a node may list a volume without an attachment before it is attached again; at least 1s.",
            )
            .flag(
                NO_SYNC,
                FlagDefault::Bool(false),
                "Whether volumes without an attachment stay in the node's list.",
            )
            .flag(
                NO_FORCE,
                FlagDefault::Bool(false),
                "Whether a volume that an unhealthy node has not unmounted within six minutes stays attached; then only the taint node.kubernetes.io/out-of-service detaches it.",
            )
            .runs_where(|flags| match flags.duration(PERIOD) < Duration::from_secs(1) {
                true => Runs::Wrong(format!("--{PERIOD} must be at least 1s; --{NO_SYNC} switches it off")),
                false => Runs::Yes,
            })
            .metric(
                TOTAL,
                MetricKind::Sum,
                &["plugin_name", "state"],
                "Pairs of a volume and a node that are wanted (desired_state_of_world) and attached (actual_state_of_world).",
            )
            .metric(
                IN_USE,
                MetricKind::Sum,
                &["node", "volume_plugin"],
                "Volumes of pods on a node, by attachable plugin.",
            )
            .metric(
                FORCED,
                MetricKind::Counter,
                &["reason"],
                "Forced detaches: the kubelet had not reported the volume as unmounted.",
            )
            .metric(
                SECONDS,
                MetricKind::Buckets(&[
                    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0,
                ]),
                &["volume_plugin", "operation_name", "status", "migrated"],
                "Duration of attaching and detaching, in seconds.",
            )
            .rule("", "pods", &["list", "watch"])
            .rule("", "nodes", &["get", "list", "watch"])
            .rule("", "nodes/status", &["patch"])
            .rule("", "persistentvolumes", &["list", "watch"])
            .rule("", "persistentvolumeclaims", &["list", "watch"])
            .rule("storage.k8s.io", "csidrivers", &["list", "watch"])
            .rule(
                "storage.k8s.io",
                "volumeattachments",
                &["get", "list", "watch", "create", "delete"],
            )
            .differences(include_str!("differences.md"))
    }

    fn new(flags: &Flags) -> Self {
        let period = SignedDuration::try_from(flags.duration(PERIOD));
        Self {
            sync: (!flags.bool(NO_SYNC)).then(|| period.unwrap_or(SignedDuration::MAX)),
            forces: !flags.bool(NO_FORCE),
        }
    }

    fn watch(&self, on: &mut Watches) {
        on.kind::<Pod>()
            .indexed_by(claims::BY_CLAIM, claims::keys)
            .indexed_by(BY_IN_LINE, volumes::pods_by_in_line)
            .indexed_by(BY_NODE, volumes::pods_by_node)
            .wakes(wakes::pod);
        on.kind::<Node>()
            .indexed_by(BY_VOLUME, volumes::nodes_by_volume)
            .wakes(wakes::node);
        on.kind::<PersistentVolumeClaim>()
            .indexed_by(BY_VOLUME, volumes::claims_by_volume)
            .wakes(wakes::claim);
        on.kind::<PersistentVolume>()
            .indexed_by(BY_VOLUME, volumes::volumes_by_name)
            .wakes(wakes::volume);
        on.kind::<VolumeAttachment>()
            .indexed_by(BY_NODE, volumes::attachments_by_node)
            .indexed_by(BY_SOURCE, volumes::attachments_by_source)
            .wakes(wakes::attachment);
        on.kind::<CsiDriver>().wakes(wakes::driver);
    }

    fn ask(&self, key: &Key, seen: &Snapshot<'_>, memory: &Memory) -> Vec<Query> {
        self.decide(key, seen, &mut memory.clone()).1
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, memory: &mut Memory) -> Result<Plan, Refusal> {
        let (mut plan, unanswered) = self.decide(key, seen, memory);
        if !unanswered.is_empty() {
            // Something has come due since it was asked.
            plan.requeue_now();
        }
        Ok(plan)
    }

    fn learn(&self, outcome: &Outcome<'_>, memory: &mut Memory) {
        let Err(failure) = outcome.result else {
            return;
        };
        let reported = matches!(
            failure,
            Failure::Forbidden(_) | Failure::Invalid(_) | Failure::NotFound(_) | Failure::Other(_)
        );
        if reported && matches!(outcome.action.verb, Verb::Create { .. }) {
            let name = outcome.action.key.name.to_string();
            memory.failed.insert(name, failure.to_string());
        }
    }

    fn shift(&self, memory: &mut Memory, by: SignedDuration) {
        for note in memory.nodes.values_mut() {
            for at in [
                &mut note.unwanted_since,
                &mut note.detaching_since,
                &mut note.attaching_since,
                &mut note.lost_since,
                &mut note.turn,
            ] {
                *at = at.map(|at| at.checked_add(by).unwrap_or(at));
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
