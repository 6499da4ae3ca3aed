//! Detects nodes whose kubelets have fallen silent, reports that in their conditions, taints and pods, and
//! limits the rate at which pods of unhealthy nodes are evicted.
//!
//! Watches nodes, Leases and pods; patches nodes' conditions, taints and two labels, and pods' Ready
//! condition; a key per Node, and one per zone, which alone adds `NoExecute` taints, so that a rate holds
//! for the zone however many replicas there are. A kubelet is silent when this replica has watched it show
//! no heartbeat for the grace period ([`controllers_kit::Reader::heartbeat_age`]): no clock of another
//! machine is trusted, each replica measures by itself, and one whose watches are stalled finds no node
//! silent. Remembers which pods were marked, and when a zone had its turn.

mod facts;
mod zone;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use controllers_kit::{
    Change, Controller, Descriptor, Event, Failure, Flags, Key, MetricKind, MetricSpec, Outcome,
    PatchKind, Plan, Reader, Refusal, Sharding, SignedDuration, Snapshot, StatusWrite, Timestamp,
    Watches, cast, conditions,
    heartbeat::{NODE_LEASES, ready},
};
use kubernetes_proto::{
    Object, Str,
    coordination::Lease,
    core::{Node, Pod},
    meta::Time,
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    bound::{BY_NODE, by_node, node_of},
    events, flags,
};
use facts::{
    NOT_READY, UNREACHABLE, Zone, all_down, by_status, counts, follow_conditions, follow_labels,
    has_no_execute, is_ready, silenced, status, taint,
};
use zone::Turn;

const BY_ZONE: &str = "zone";
/// An older node was registered by its previous owner.
const YOUNG: SignedDuration = SignedDuration::from_secs(10);

const HEALTH: &str = "node_collector_zone_health";
const SIZE: &str = "node_collector_zone_size";
const UNHEALTHY: &str = "node_collector_unhealthy_nodes_in_zone";
const EVICTIONS: &str = "node_collector_evictions_total";
const UPDATE_ONE: &str = "node_collector_update_node_health_duration_seconds";
const UPDATE_ALL: &str = "node_collector_update_all_nodes_health_duration_seconds";

/// The controller.
pub struct NodeLifecycle {
    /// The grace periods of a node that has never posted a status, and of one that has.
    startup: Duration,
    grace: Duration,
    period: Duration,
    pace: Pace,
}

/// How fast pods are driven away.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// Nodes a second.
    normal: f64,
    /// The rate in a partly disrupted zone, if it is large.
    secondary: f64,
    /// A zone of more nodes is large.
    large: i64,
    /// Which part of a zone must be ill.
    threshold: f64,
}

/// The memory of a node, or of a zone.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// The node's uid, once it was seen.
    uid: String,
    /// The transition of Ready that `marked` belongs to.
    transition: Option<i64>,
    /// Whether pods are left unmarked in that transition: the node was not ready before it either.
    leaves: bool,
    /// The uids of pods that were marked not ready in it: a live kubelet may mark them ready again.
    marked: BTreeSet<String>,
    turn: Turn,
}

/// The parts of a node that its own key and its zone's decide by. Heartbeats are not among them.
#[derive(PartialEq)]
struct Facts<'a> {
    ready: Option<&'a str>,
    conditions: Vec<(&'a str, &'a str)>,
    taints: Vec<(&'a str, &'a str)>,
    labels: [Option<&'a str>; 4],
    zone: Zone,
    counts: bool,
    unschedulable: bool,
}

fn facts_of(node: &Node) -> Facts<'_> {
    let meta = Object::metadata(node);
    let held = node.status.iter().flat_map(|status| &status.conditions);
    let label = |name| meta.label(name);
    Facts {
        ready: status(node),
        conditions: held
            .map(|one| (one.r#type.as_str(), one.status.as_str()))
            .collect(),
        taints: facts::taints(node)
            .iter()
            .map(|one| (one.key.as_str(), one.effect.as_str()))
            .collect(),
        labels: [
            label("kubernetes.io/os"),
            label("beta.kubernetes.io/os"),
            label("kubernetes.io/arch"),
            label("beta.kubernetes.io/arch"),
        ],
        zone: Zone::of(node),
        counts: counts(node),
        unschedulable: node.spec.as_ref().is_some_and(|spec| spec.unschedulable),
    }
}

/// The node and its zone; all keys, where the last ready node has gone or the first has come.
fn woken_by_node(change: &Change<'_, Node>, reader: &dyn Reader) -> Vec<Key> {
    let (old, new) = (change.old.map(facts_of), change.new.map(facts_of));
    if old == new {
        return Vec::new();
    }
    let mut keys = vec![Key::of(change.newest())];
    keys.extend(old.iter().chain(&new).map(|facts| facts.zone.key()));
    keys.dedup();
    let lives = |facts: &Option<Facts<'_>>| {
        facts
            .as_ref()
            .is_some_and(|facts| facts.counts && facts.ready == Some("True"))
    };
    if lives(&old) != lives(&new) {
        let name = &Object::metadata(change.newest()).name;
        let nodes: Vec<Arc<Node>> = reader
            .list(Node::resource(), None)
            .into_iter()
            .filter_map(cast)
            .collect();
        let others_live = nodes
            .iter()
            .any(|node| is_ready(node) && counts(node) && Object::metadata(&**node).name != *name);
        if !others_live {
            keys.extend(
                nodes
                    .iter()
                    .flat_map(|node| [Key::of(&**node), Zone::of(node).key()]),
            );
        }
    }
    keys
}

/// Whether a pod has the condition Ready and it is not False.
fn may_be_ready(pod: &Pod) -> bool {
    let ready = pod
        .status
        .as_ref()
        .and_then(|status| conditions::find(&status.conditions, "Ready"));
    ready.is_some_and(|ready| ready.status != "False")
}

/// The node of a pod that is ready although its node is silent.
fn woken_by_pod(change: &Change<'_, Pod>, reader: &dyn Reader) -> Vec<Key> {
    let exposed = |pod: &Pod| node_of(pod).cloned().filter(|_| may_be_ready(pod));
    let Some(node) = change.new.and_then(exposed) else {
        return Vec::new();
    };
    if change.old.and_then(exposed).as_ref() == Some(&node) {
        return Vec::new();
    }
    let object = reader.get(Node::resource(), "", &node);
    let silent = object
        .and_then(cast::<Node>)
        .is_some_and(|node| status(&node) == Some("Unknown"));
    silent.then(|| Key::cluster(node)).into_iter().collect()
}

/// By zone.
const LABELS: &[&str] = &["zone"];

/// Its metrics, named as upstream names them.
const METRICS: &[MetricSpec] = &[
    MetricSpec::new(
        HEALTH,
        MetricKind::Sum,
        LABELS,
        "Percentage of the zone's Nodes that are ready.",
    ),
    MetricSpec::new(
        SIZE,
        MetricKind::Sum,
        LABELS,
        "Number of Nodes in the zone.",
    ),
    MetricSpec::new(
        UNHEALTHY,
        MetricKind::Sum,
        LABELS,
        "Number of Nodes in the zone that are not ready.",
    ),
    MetricSpec::new(
        EVICTIONS,
        MetricKind::Counter,
        LABELS,
        "Nodes whose pods were evicted.",
    ),
    MetricSpec::new(
        UPDATE_ONE,
        MetricKind::Histogram(0.001, 4.0, 8),
        &[],
        "Duration of one Node's health update, in seconds.",
    ),
    MetricSpec::new(
        UPDATE_ALL,
        MetricKind::Histogram(0.01, 4.0, 8),
        &[],
        "Duration of a health check of a zone's Nodes, in seconds.",
    ),
];

impl Controller for NodeLifecycle {
    type Memory = Memory;

    fn describe() -> Descriptor {
        Descriptor::new("node-lifecycle-controller", Sharding::ByObject)
            .aliases(&["nodelifecycle"])
            .service_account("node-controller")
            .event_source("node-controller")
            .queue("node_lifecycle_controller")
            .workers_fixed(8)
            .retry_max_flag("node-monitor-period")
            .with_flags(flags::HEALTH)
            .metrics(METRICS)
            .writes::<Node>(&["patch"])
            .writes_status::<Node>()
            .reads::<Pod>()
            .writes_status::<Pod>()
            .reads::<Lease>()
            .differences(include_str!("differences.md"))
    }

    fn new(flags: &Flags) -> Self {
        Self {
            startup: flags.duration("node-startup-grace-period"),
            grace: flags.duration("node-monitor-grace-period"),
            period: flags.duration("node-monitor-period"),
            pace: Pace {
                normal: flags.float("node-eviction-rate"),
                secondary: flags.float("secondary-node-eviction-rate"),
                large: flags.int("large-cluster-size-threshold"),
                threshold: flags.float("unhealthy-zone-threshold"),
            },
        }
    }

    fn watch(&self, on: &mut Watches) {
        on.ages();
        on.kind::<Node>()
            .indexed_by(BY_ZONE, |node| vec![Str::from(Zone::of(node).text())])
            .wakes(woken_by_node);
        // Renewals wake no key: a node is reconciled when it is due.
        on.kind::<Lease>();
        on.kind::<Pod>()
            .indexed_by(BY_NODE, by_node)
            .wakes(woken_by_pod);
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, memory: &mut Memory) -> Result<Plan, Refusal> {
        if let Some(zone) = Zone::of_key(key) {
            return Ok(zone::plan(&self.pace, &zone, seen, &mut memory.turn));
        }
        let Some(node) = seen.get::<Node>(key) else {
            let mut plan = Plan::nothing();
            let gone = std::mem::take(memory);
            if !gone.uid.is_empty() {
                let what = format!("Removing Node {} from Controller", key.name);
                plan.event(events::happened(
                    &key.name,
                    &gone.uid,
                    "RemovingNode",
                    &what,
                ));
            }
            return Ok(plan);
        };
        let mut plan = Plan::nothing();
        plan.time(UPDATE_ONE, &[]);
        register(&mut plan, &node, seen.now, memory);
        // The rest follows from what is written then.
        if !self.judge(&mut plan, key, &node, seen, memory) {
            repair(&mut plan, &node, seen);
            mark_pods(&mut plan, &node, seen, memory);
        }
        Ok(plan)
    }

    fn learn(&self, outcome: &Outcome<'_>, memory: &mut Memory) {
        let action = outcome.action;
        if action.resource == Pod::resource() {
            if outcome.result.is_ok() {
                memory.marked.insert(action.uid.to_string());
            }
            return;
        }
        // Only a zone's key has a turn.
        let refused = matches!(
            outcome.result,
            Err(Failure::Conflict(_)
                | Failure::NotFound(_)
                | Failure::Invalid(_)
                | Failure::Forbidden(_)
                | Failure::Skipped)
        );
        if refused {
            memory.turn.give_back();
        }
    }

    fn shift(&self, memory: &mut Memory, by: SignedDuration) {
        memory.turn.shift(by);
    }
}

/// Records an event for a new node.
fn register(plan: &mut Plan, node: &Node, now: Timestamp, memory: &mut Memory) {
    let meta = Object::metadata(node);
    if *memory.uid == *meta.uid {
        return;
    }
    *memory = Memory {
        uid: meta.uid.to_string(),
        ..Memory::default()
    };
    let young = meta
        .creation_timestamp
        .is_none_or(|at| now.duration_since(at.timestamp()) < YOUNG);
    // Its kubelet may have been faster than this: a young node is recorded whatever its state. An older one
    // was recorded by its previous owner, so that a swap of managers or a takeover repeats nothing.
    if young || ready(node).is_none() {
        let what = format!("Registered Node {} in Controller", meta.name);
        plan.event(events::happened(
            &meta.name,
            &meta.uid,
            "RegisteredNode",
            &what,
        ));
    }
}

/// Brings taints and labels into line with the conditions: one patch.
fn repair(plan: &mut Plan, node: &Arc<Node>, seen: &Snapshot<'_>) {
    let mut new = Node::clone(node);
    follow_conditions(&mut new, seen.now);
    follow_labels(&mut new);
    let driven = has_no_execute(node, NOT_READY) || has_no_execute(node, UNREACHABLE);
    if driven {
        let down = || all_down(&seen.all::<Node>());
        let keeps = match by_status(node) {
            None if ready(node).is_none() => None,
            None => Some(""),
            Some(_) if down() => Some(""),
            Some((wanted, _)) => Some(wanted),
        };
        if let Some(kept) = keeps {
            let spec = new.spec.get_or_insert_default();
            spec.taints.retain(|held| {
                held.effect != "NoExecute"
                    || held.key == kept
                    || ![NOT_READY, UNREACHABLE].contains(&held.key.as_str())
            });
            // It is replaced by its opposite at once: this node has had its turn.
            if !kept.is_empty() && !has_no_execute(node, kept) {
                spec.taints.push(taint(kept, "NoExecute", seen.now));
            }
        }
    }
    plan.update(&**node, &new);
}

/// The last transition of Ready, as a token: its time is compared with no clock.
fn transition(node: &Node) -> Option<i64> {
    ready(node)?.last_transition_time.map(|at| at.seconds)
}

/// Marks the pods of a silent node as not ready, each once.
fn mark_pods(plan: &mut Plan, node: &Node, seen: &Snapshot<'_>, memory: &mut Memory) {
    if status(node) != Some("Unknown") {
        (memory.transition, memory.leaves) = (None, false);
        memory.marked.clear();
        return;
    }
    let now = transition(node);
    if memory.transition != now {
        // `judge` has set `leaves` for the transition that this key itself has written.
        memory.leaves = memory.leaves && memory.transition.is_none();
        memory.transition = now;
        memory.marked.clear();
    }
    if memory.leaves {
        return;
    }
    let pods = seen.indexed::<Pod>(BY_NODE, &Object::metadata(node).name);
    memory.marked.retain(|uid| {
        pods.iter()
            .any(|pod| *Object::metadata(&**pod).uid == **uid)
    });
    for pod in pods.iter().filter(|pod| may_be_ready(pod)) {
        if memory.marked.contains(&*Object::metadata(&**pod).uid) {
            continue;
        }
        let condition = json!({
            "type": "Ready",
            "status": "False",
            "lastTransitionTime": Time::from(seen.now),
        });
        let patch = json!({"status": {"conditions": [condition]}});
        plan.patch(
            &**pod,
            "status",
            PatchKind::Strategic,
            patch,
            StatusWrite::No,
        )
        .announce(Event::warning(&**pod, "NodeNotReady", "Node is not ready"));
    }
}

impl NodeLifecycle {
    /// How long the node has been silent.
    fn silence(key: &Key, seen: &Snapshot<'_>) -> Duration {
        let lease = seen.heartbeat_age::<Lease>(&Key::new(NODE_LEASES, key.name.clone()));
        let own = seen.heartbeat_age::<Node>(key);
        lease.into_iter().chain(own).min().unwrap_or_default()
    }

    /// Writes that a node is silent, or determines when it will be; whether it was written.
    fn judge(
        &self,
        plan: &mut Plan,
        key: &Key,
        node: &Arc<Node>,
        seen: &Snapshot<'_>,
        memory: &mut Memory,
    ) -> bool {
        if status(node) == Some("Unknown") {
            return false;
        }
        let grace = match ready(node) {
            None => self.startup,
            Some(_) => self.grace,
        };
        let silence = Self::silence(key, seen);
        if silence < grace {
            let wait = (grace - silence)
                .max(self.period / 10)
                .max(Duration::from_millis(10));
            let wait = SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX);
            plan.requeue_at(seen.now.checked_add(wait).unwrap_or(Timestamp::MAX));
            return false;
        }
        let Some(new) = silenced(node, seen.now) else {
            return false;
        };
        let was_ready = is_ready(node);
        (memory.transition, memory.leaves) = (None, !was_ready);
        memory.marked.clear();
        if let Some(action) = plan.update_status(&**node, &new) {
            action.reports(StatusWrite::No);
            if was_ready {
                action.announce(events::status(node, "NodeNotReady"));
            }
        }
        true
    }
}

#[cfg(test)]
pub(crate) mod tests;
