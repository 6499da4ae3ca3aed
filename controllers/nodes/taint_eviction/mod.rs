//! Deletes pods that do not tolerate a `NoExecute` taint of their node, or tolerate it for a limited time.
//!
//! Watches nodes and pods; sets the condition `DisruptionTarget` of a pod and then deletes it, by uid; a
//! key per Node with all its pods; remembers until when a pod may stay. Without that memory the time
//! follows from ages that each replica measures itself: how long it has seen the taint on the node, and the
//! pod there. So a takeover neither extends nor shortens a pod's time, whatever the clocks say.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use controllers_kit::{
    Controller, Descriptor, Event, EventType, Flags, Key, MetricKind, ObjectRef, Only, Outcome,
    PatchKind, Plan, Propagation, Refusal, Sharding, SignedDuration, Snapshot, StatusWrite,
    Timestamp, Watches, conditions, heartbeat::no_execute, tolerations::tolerates,
};
use kubernetes_proto::{
    Object, Shared, Str,
    core::{Node, Pod, Taint, Toleration},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    bound::{BY_NODE, by_node, node_of},
    retries::Retries,
};

const DISRUPTION: &str = "DisruptionTarget";
const REASON: &str = "DeletionByTaintManager";
const MESSAGE: &str = "Taint manager: deleting due to NoExecute taint";
const EVENT: &str = "TaintManagerEviction";
const COMPARISONS: &str = "TaintTolerationComparisonOperators";

/// The tolerated difference of two measures of the same age. Tolerations are whole seconds.
const JITTER: SignedDuration = SignedDuration::from_secs(1);

const DELETIONS: &str = "taint_eviction_controller_pod_deletions_total";
const LATENCY: &str = "taint_eviction_controller_pod_deletion_duration_seconds";

/// The controller.
pub struct TaintEviction {
    comparisons: bool,
}

/// What outlasts a plan of a node.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// The pods of the node that are to go, by uid.
    timers: BTreeMap<String, Timer>,
    /// Those of them whose eviction was refused.
    retries: Retries,
}

/// When a pod is to go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Timer {
    namespace: String,
    name: String,
    at: Timestamp,
    /// Whether the event of the deletion was recorded.
    fired: bool,
}

/// How a pod bears its node's taints.
#[derive(Debug, PartialEq, Eq)]
enum Bears {
    /// For ever.
    Always,
    /// Until this instant.
    Until(Timestamp),
    /// Not all of them.
    Not,
}

fn tolerations_of(pod: &Pod) -> &[Shared<Toleration>] {
    pod.spec.as_ref().map_or(&[], |spec| &spec.tolerations)
}

fn pod_key(pod: &Pod) -> Key {
    Key::of(pod)
}

/// A reference to a pod without its uid, as in upstream's events.
fn event(namespace: &str, name: &str, message: String) -> Event {
    Event {
        about: ObjectRef {
            api_version: Str::interned("v1"),
            kind: Str::interned("Pod"),
            key: Key::new(namespace, name),
            uid: Str::default(),
            resource_version: 0,
        },
        r#type: EventType::Normal,
        reason: Str::interned(EVENT),
        message,
    }
}

impl TaintEviction {
    fn bears(&self, seen: &Snapshot<'_>, node: &str, pod: &Pod, taints: &[&Taint]) -> Bears {
        let mut until: Option<Timestamp> = None;
        for taint in taints {
            let tolerations = tolerations_of(pod);
            let Some(toleration) = tolerations
                .iter()
                .find(|one| tolerates(one, taint, self.comparisons))
            else {
                return Bears::Not;
            };
            let Some(seconds) = toleration.toleration_seconds else {
                continue;
            };
            if seconds <= 0 {
                return Bears::Until(seen.now);
            }
            let age = seen.exposure_age(node, &taint.key, &pod_key(pod));
            let age = SignedDuration::try_from(age.unwrap_or_default()).unwrap_or_default();
            let since = seen.now - age;
            let end = since
                .checked_add(SignedDuration::from_secs(seconds))
                .unwrap_or(Timestamp::MAX);
            until = Some(until.map_or(end, |earlier| earlier.min(end)));
        }
        until.map_or(Bears::Always, Bears::Until)
    }
}

/// Sets the condition that says why a pod is deleted, or deletes the pod where it has that condition.
fn evict(plan: &mut Plan, pod: &Pod, now: Timestamp, late: SignedDuration) {
    let held = pod
        .status
        .as_ref()
        .and_then(|status| conditions::find(&status.conditions, DISRUPTION));
    let is_reported = held.is_some_and(|held| {
        held.status == "True" && held.reason == REASON && *held.message == *MESSAGE
    });
    if is_reported {
        plan.delete(pod, Only::ThisUid, Propagation::Background)
            .measure(DELETIONS, &[], 1.0)
            .measure(LATENCY, &[], late.as_secs_f64().max(0.0));
        return;
    }
    let since = held
        .filter(|held| held.status == "True")
        .and_then(|held| held.last_transition_time)
        .unwrap_or_else(|| now.into());
    let mut condition = json!({
        "type": DISRUPTION,
        "status": "True",
        "lastTransitionTime": since,
        "reason": REASON,
        "message": MESSAGE,
    });
    if let Some(generation) = observed_generation(pod) {
        condition["observedGeneration"] = generation.into();
    }
    // A new condition would otherwise be put in front of the others.
    let others = pod.status.iter().flat_map(|status| &status.conditions);
    let order: Value = others
        .map(|one| one.r#type.to_string())
        .filter(|name| name != DISRUPTION)
        .chain([DISRUPTION.to_owned()])
        .map(|name| json!({ "type": name }))
        .collect();
    let status = json!({"conditions": [condition], "$setElementOrder/conditions": order});
    plan.patch(
        pod,
        "status",
        PatchKind::Strategic,
        json!({ "status": status }),
        StatusWrite::No,
    )
    .whatever_version();
}

/// The pod's generation for the condition, if the API server counts generations.
fn observed_generation(pod: &Pod) -> Option<i64> {
    let generation = Object::metadata(pod).generation;
    (generation != 0).then_some(generation)
}

impl Controller for TaintEviction {
    type Memory = Memory;

    fn describe() -> Descriptor {
        Descriptor::new("taint-eviction-controller", Sharding::ByObject)
            .service_account("node-controller")
            .event_source("taint-eviction-controller")
            .queue("noexec_taint_node")
            .workers_fixed(8)
            .one_by_one()
            .gate(COMPARISONS, false)
            .metric(
                DELETIONS,
                MetricKind::Counter,
                &[],
                "Pods that were deleted because of a NoExecute taint.",
            )
            .metric(
                LATENCY,
                MetricKind::Buckets(&[
                    0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0, 120.0, 180.0, 240.0,
                ]),
                &[],
                "Delay between the end of a pod's toleration and its deletion, in seconds.",
            )
            .reads::<Node>()
            .writes::<Pod>(&["delete"])
            .writes_status::<Pod>()
            .differences(include_str!("differences.md"))
    }

    fn new(flags: &Flags) -> Self {
        Self {
            comparisons: flags.bool(COMPARISONS),
        }
    }

    fn watch(&self, on: &mut Watches) {
        on.ages();
        on.kind::<Node>().wakes(|change, _| {
            let taints = |node: Option<&Node>| -> Option<Vec<Taint>> {
                node.map(|node| no_execute(node).cloned().collect())
            };
            let matters = taints(change.old) != taints(change.new);
            matters
                .then(|| Key::of(change.newest()))
                .into_iter()
                .collect()
        });
        on.kind::<Pod>()
            .indexed_by(BY_NODE, by_node)
            .wakes(|change, reader| {
                let place = |pod: &Pod| {
                    let leaves = pod.is_terminating();
                    let reported = pod
                        .status
                        .as_ref()
                        .is_some_and(|status| conditions::is_true(&status.conditions, DISRUPTION));
                    (node_of(pod).cloned(), leaves, reported)
                };
                let same = match (change.old, change.new) {
                    (Some(old), Some(new)) => {
                        place(old) == place(new) && tolerations_of(old) == tolerations_of(new)
                    }
                    _ => false,
                };
                if same {
                    return Vec::new();
                }
                let mut keys: Vec<Key> = change
                    .both()
                    .filter_map(node_of)
                    .filter(|node| {
                        // Most nodes have no such taint, and most pods live on those.
                        let object = reader.get(Node::resource(), "", node);
                        object
                            .and_then(controllers_kit::cast::<Node>)
                            .is_none_or(|node| no_execute(&node).next().is_some())
                    })
                    .map(|node| Key::cluster(node.clone()))
                    .collect();
                keys.dedup();
                keys
            });
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, memory: &mut Memory) -> Result<Plan, Refusal> {
        let mut plan = Plan::nothing();
        let node = seen.get::<Node>(key);
        let taints: Vec<&Taint> = node.iter().flat_map(|node| no_execute(node)).collect();
        if taints.is_empty() && memory.timers.is_empty() {
            return Ok(plan);
        }
        let pods = seen.indexed::<Pod>(BY_NODE, &key.name);
        let mut staying = BTreeSet::new();
        for pod in &pods {
            let uid = Object::metadata(&**pod).uid.to_string();
            self.judge(&mut plan, seen, memory, node.is_some(), pod, &taints);
            staying.insert(uid);
        }
        // Pods that are gone, or unknown since.
        let gone: Vec<String> = memory
            .timers
            .keys()
            .filter(|uid| !staying.contains(*uid))
            .cloned()
            .collect();
        for uid in gone {
            cancel(&mut plan, memory, &uid);
        }
        let Memory { timers, retries } = memory;
        retries.retain(|uid| timers.contains_key(uid));
        Ok(plan)
    }

    fn learn(&self, outcome: &Outcome<'_>, memory: &mut Memory) {
        let failure = outcome.result.as_ref().err().copied();
        memory.retries.learn(&outcome.action.uid, failure);
    }

    fn shift(&self, memory: &mut Memory, by: SignedDuration) {
        memory.retries.shift(by);
        for timer in memory.timers.values_mut() {
            timer.at = timer.at.checked_add(by).unwrap_or(timer.at);
        }
    }
}

/// A pod does not go after all.
fn cancel(plan: &mut Plan, memory: &mut Memory, uid: &str) {
    if let Some(timer) = memory.timers.remove(uid)
        && !timer.fired
    {
        let Timer {
            namespace, name, ..
        } = &timer;
        let message = format!("Cancelling deletion of Pod {namespace}/{name}");
        plan.event(event(namespace, name, message));
    }
}

impl TaintEviction {
    fn judge(
        &self,
        plan: &mut Plan,
        seen: &Snapshot<'_>,
        memory: &mut Memory,
        node_exists: bool,
        pod: &Arc<Pod>,
        taints: &[&Taint],
    ) {
        let meta = Object::metadata(&**pod);
        let uid = meta.uid.to_string();
        let now = seen.now;
        if pod.is_terminating() {
            cancel(plan, memory, &uid);
            return;
        }
        let bears = match (node_exists, taints.is_empty()) {
            // Upstream keeps the timers of a deleted node running.
            (false, _) => memory
                .timers
                .get(&uid)
                .map_or(Bears::Always, |timer| Bears::Until(timer.at)),
            (true, true) => Bears::Always,
            (true, false) => {
                let node = node_of(pod).map_or("", |node| node);
                self.bears(seen, node, pod, taints)
            }
        };
        let end = match bears {
            Bears::Always => {
                cancel(plan, memory, &uid);
                return;
            }
            Bears::Not => {
                if memory.timers.get(&uid).is_some_and(|timer| timer.at > now) {
                    cancel(plan, memory, &uid);
                }
                now
            }
            Bears::Until(end) => end,
        };
        let waits = memory.retries.waits(&uid, now);
        let timer = memory.timers.entry(uid).or_insert_with(|| Timer {
            namespace: meta.namespace.to_string(),
            name: meta.name.to_string(),
            at: end,
            fired: false,
        });
        // Ages are measured again each time: a difference below the resolution of tolerations is no other
        // toleration.
        if end.checked_add(JITTER).is_ok_and(|end| end <= timer.at) {
            timer.at = end;
        }
        if timer.at > now {
            plan.requeue_at(timer.at);
            return;
        }
        if !timer.fired {
            timer.fired = true;
            let Timer {
                namespace, name, ..
            } = &*timer;
            let message = format!("Marking for deletion Pod {namespace}/{name}");
            plan.event(event(namespace, name, message));
        }
        match waits {
            Some(at) => plan.requeue_at(at),
            None => evict(plan, pod, now, now.duration_since(timer.at)),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
