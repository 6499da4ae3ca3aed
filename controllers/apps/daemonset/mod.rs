//! Keeps one pod of a template on every node that fits it.
//!
//! Watches daemonsets, pods, nodes and controllerrevisions. Creates and deletes pods, each pinned to its
//! node; keeps the template's history in ControllerRevisions; writes the DaemonSet's status. A key per
//! DaemonSet; every replica has all nodes. Remembers which revision a template's bytes are of, and for each
//! node how long a failed pod is left alone.
//!
//! Differs from upstream: a pod's name follows from the DaemonSet's uid, the node and the revision instead of
//! chance, so that a second pod for the same node collides. Adoptions and releases are settled in a plan of
//! their own.

mod context;
mod history;
mod nodes;
mod plan;
mod rolling;
mod status;

use std::collections::BTreeMap;

use controllers_kit::{
    Change, Controller, Descriptor, Flags, Key, Plan, Query, Reader, Refusal, Said, Sharding,
    SignedDuration, Snapshot, Timestamp, Watches, owners,
};
use kubernetes_proto::{
    Object,
    apps::{ControllerRevision, DaemonSet},
    cast,
    core::{Node, Pod},
};
use serde::{Deserialize, Serialize};

use crate::revisions::Known;

/// The gate of tolerations that compare numbers.
const COMPARISONS: &str = "TaintTolerationComparisonOperators";

/// The first and the longest back-off of a node with failed pods.
const BACKOFF_MIN: SignedDuration = SignedDuration::from_secs(1);
const BACKOFF_MAX: SignedDuration = SignedDuration::from_mins(15);

/// The daemonset controller.
pub struct DaemonSets {
    comparisons: bool,
}

/// What the controller remembers of one DaemonSet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// Which data the template makes.
    pub known: Known,
    /// The DaemonSet and generation of the back-offs.
    pub of: String,
    /// By node: at most one for each node of the cluster.
    pub backoffs: BTreeMap<String, Backoff>,
    /// Whether the event that it selects everything was recorded, by generation.
    pub said: Said,
}

/// The back-off after a failed pod, and its start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backoff {
    /// In seconds.
    pub seconds: i64,
    /// When it was last begun.
    pub since: Timestamp,
}

impl Memory {
    /// Drops the back-offs of another generation, and those that ended long ago.
    fn clear(&mut self, of: String, now: Timestamp) {
        if self.of != of {
            self.backoffs.clear();
            self.of = of;
        }
        self.backoffs
            .retain(|_, backoff| now.duration_since(backoff.since) <= BACKOFF_MAX + BACKOFF_MAX);
    }

    /// Until when a failed pod on a node is left alone; if the back-off has ended, starts the next one,
    /// twice as long.
    fn hold_back(&mut self, node: &str, now: Timestamp) -> Option<Timestamp> {
        let Some(backoff) = self.backoffs.get_mut(node) else {
            let seconds = BACKOFF_MIN.as_secs();
            let first = Backoff {
                seconds,
                since: now,
            };
            self.backoffs.insert(node.to_owned(), first);
            return None;
        };
        let until = backoff.since + SignedDuration::from_secs(backoff.seconds);
        if now < until {
            return Some(until);
        }
        backoff.seconds = (backoff.seconds * 2).min(BACKOFF_MAX.as_secs());
        backoff.since = now;
        None
    }
}

impl Controller for DaemonSets {
    type Memory = Memory;

    fn describe() -> Descriptor {
        Descriptor::new("daemonset-controller", Sharding::ByObject)
            .aliases(&["daemonset"])
            .service_account("daemon-set-controller")
            .queue("daemonset")
            .workers(
                "concurrent-daemonset-syncs",
                2,
                "The number of daemonset objects that are allowed to sync concurrently. Larger number = more \
                 responsive daemonsets, but more CPU (and network) load",
            )
            .gate(COMPARISONS, false)
            .reads_live::<DaemonSet>()
            .writes_status::<DaemonSet>()
            .blocks_owner_deletion::<DaemonSet>()
            .reads::<Node>()
            .writes::<Pod>(&["create", "patch", "delete"])
            .writes::<ControllerRevision>(&["create", "patch", "delete"])
            .differences(include_str!("differences.md"))
    }

    fn new(flags: &Flags) -> Self {
        Self {
            comparisons: flags.bool(COMPARISONS),
        }
    }

    fn watch(&self, on: &mut Watches) {
        on.kind::<DaemonSet>().wakes_itself();
        on.kind::<Pod>()
            .wakes_controller::<DaemonSet>()
            .wakes(|change, reader| {
                owners::adopters::<DaemonSet, Pod>(change, reader, |set| {
                    set.spec.as_ref()?.selector.as_ref()
                })
            })
            .indexed_by(owners::ORPHANS, owners::orphan_in);
        on.kind::<ControllerRevision>()
            .wakes_controller_on_change::<DaemonSet>()
            .wakes(|change, reader| {
                owners::adopters::<DaemonSet, ControllerRevision>(change, reader, |set| {
                    set.spec.as_ref()?.selector.as_ref()
                })
            })
            .indexed_by(owners::ORPHANS, owners::orphan_in);
        on.kind::<Node>().wakes(of_node);
    }

    fn ask(&self, key: &Key, seen: &Snapshot<'_>, memory: &Memory) -> Vec<Query> {
        plan::ask(key, seen, memory)
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, memory: &mut Memory) -> Result<Plan, Refusal> {
        plan::plan(self, key, seen, memory)
    }
}

/// The DaemonSets that a node's change affects: those that it fits now and did not before, or the reverse.
/// Heartbeats change neither labels nor taints and cost nothing here.
fn of_node(change: &Change<'_, Node>, reader: &dyn Reader) -> Vec<Key> {
    let taints = |node: &Node| {
        node.spec
            .as_ref()
            .map_or(Vec::new(), |spec| spec.taints.clone())
    };
    if let (Some(old), Some(new)) = (change.old, change.new)
        && Object::metadata(old).labels == Object::metadata(new).labels
        && taints(old) == taints(new)
    {
        return Vec::new();
    }
    reader
        .list(DaemonSet::resource(), None)
        .into_iter()
        .filter_map(cast::<DaemonSet>)
        .filter(|set| {
            // A key whose spec can't be read is planned, and the plan reports it. Whether tolerations may
            // compare numbers is not known here: tolerations by comparison wake the key in any case.
            let Ok(placement) = nodes::Placement::of(set, true) else {
                return true;
            };
            let fit = |node: Option<&Node>| node.map(|node| placement.judge(node));
            placement.compares() || fit(change.old) != fit(change.new)
        })
        .map(|set| Key::of(set.as_ref()))
        .collect()
}

#[cfg(test)]
mod tests;
