//! Deletes pods that nobody else will: those of nodes that are gone, those that were deleted before they
//! had a node, those stuck on nodes that are out of service, and, beyond a threshold, those that have
//! ended.
//!
//! Watches pods and nodes, and examines all of them every 20 s; deletes pods at once, by uid, after it has
//! set those that had not ended to `Failed`; one key for the cluster; remembers since when each node is
//! missing. A node counts as gone after 40 s without it, and only when the API server says so too.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use controllers_kit::{
    Answer, Controller, Descriptor, FlagDefault, Flags, Key, MetricKind, Only, PatchKind, Plan,
    Propagation, Query, Refusal, Sharding, SignedDuration, Snapshot, StatusWrite, Timestamp, Verb,
    Watches, conditions, selectors::Selector,
};
use kubernetes_proto::{
    Object,
    core::{Node, Pod},
};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// How often all pods are examined.
const PERIOD: SignedDuration = SignedDuration::from_secs(20);
/// How long a node must be missing before the API server is asked for it.
const QUARANTINE: SignedDuration = SignedDuration::from_secs(40);
/// Missing nodes queried in one reconcile; the rest waits for the next.
const NODES_ASKED_MAX: usize = 500;
/// A failing pod must not keep the others waiting beyond the next reconcile.
const RETRY_MAX: Duration = Duration::from_secs(20);
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
const DELETED: &str = "pod_gc_collector_force_delete_pods_total";
const ERRORS: &str = "pod_gc_collector_force_delete_pod_errors_total";

/// The condition that says why a pod is deleted.
const DISRUPTION: &str = "DisruptionTarget";

/// The controller.
pub struct PodGarbageCollector {
    threshold: usize,
}

/// Since when nodes are missing that pods are bound to.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missed(BTreeMap<String, Timestamp>);

/// Why a pod is deleted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reason {
    OutOfService,
    Terminated,
    Orphaned,
    Unscheduled,
}

impl Reason {
    fn label(self) -> &'static str {
        match self {
            Self::OutOfService => "out-of-service",
            Self::Terminated => "terminated",
            Self::Orphaned => "orphaned",
            Self::Unscheduled => "unscheduled",
        }
    }
}

fn only_key() -> Key {
    Key::cluster("pods")
}

fn ask_for(node: &str) -> Query {
    Query::Live {
        resource: Node::resource(),
        key: Key::cluster(node),
    }
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().map_or("", |status| &status.phase)
}

fn node_of(pod: &Pod) -> &str {
    pod.spec.as_ref().map_or("", |spec| &spec.node_name)
}

fn has_ended(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Whether nothing is left to do: it is being deleted, without grace, and waits for finalizers alone.
fn is_on_its_way(pod: &Pod) -> bool {
    let meta = Object::metadata(pod);
    meta.is_terminating() && meta.deletion_grace_period_seconds == Some(0) && has_ended(pod)
}

/// Evicted pods go first, then the oldest: evicted ones were replaced long ago.
fn by_eviction_and_age(pods: &mut [Arc<Pod>]) {
    pods.sort_by_cached_key(|pod| {
        let evicted = phase(pod) == "Failed"
            && pod
                .status
                .as_ref()
                .is_some_and(|status| status.reason == "Evicted");
        let meta = Object::metadata(&**pod);
        (!evicted, meta.creation_timestamp, meta.name.clone())
    });
}

fn is_out_of_service(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| &status.conditions);
    let ready = conditions
        .into_iter()
        .any(|condition| condition.r#type == "Ready" && condition.status == "True");
    let taints = node.spec.iter().flat_map(|spec| &spec.taints);
    !ready && taints.into_iter().any(|taint| taint.key == OUT_OF_SERVICE)
}

impl Controller for PodGarbageCollector {
    type Memory = Missed;

    fn describe() -> Descriptor {
        Descriptor::new("pod-garbage-collector-controller", Sharding::Single)
            .aliases(&["podgc"])
            .service_account("pod-garbage-collector")
            .queue("orphaned_pods_nodes")
            .retry_max(RETRY_MAX)
            .flag(
                "terminated-pod-gc-threshold",
                FlagDefault::Int(12_500),
                "The number of finished pods that may exist before the oldest are deleted; 0 or less for no limit.",
            )
            .metric(
                DELETED,
                MetricKind::Counter,
                &["namespace", "reason"],
                "Forced deletions of pods, including failed ones.",
            )
            .metric(
                ERRORS,
                MetricKind::Counter,
                &["namespace", "reason"],
                "Forced deletions of pods that failed.",
            )
            .remembers_what_it_sees()
            .reads_live::<Node>()
            .writes::<Pod>(&["delete"])
            .writes_status::<Pod>()
            .differences(include_str!("differences.md"))
    }

    fn new(flags: &Flags) -> Self {
        Self {
            threshold: usize::try_from(flags.int("terminated-pod-gc-threshold")).unwrap_or(0),
        }
    }

    fn watch(&self, on: &mut Watches) {
        on.always(|| vec![only_key()]);
        // Reconciled every 20 s, as upstream does: waking at each change would examine every pod for each
        // of them.
        on.kind::<Pod>();
        on.kind::<Node>();
    }

    fn ask(&self, key: &Key, seen: &Snapshot<'_>, missed: &Missed) -> Vec<Query> {
        if *key != only_key() {
            return Vec::new();
        }
        missed
            .0
            .iter()
            .filter(|(node, since)| {
                **since + QUARANTINE <= seen.now
                    && seen.get::<Node>(&Key::cluster(node.as_str())).is_none()
            })
            .take(NODES_ASKED_MAX)
            .map(|(node, _)| ask_for(node))
            .collect()
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, missed: &mut Missed) -> Result<Plan, Refusal> {
        if *key != only_key() {
            return Ok(Plan::nothing());
        }
        let pods = seen.all::<Pod>();
        let nodes: BTreeMap<String, Arc<Node>> = seen
            .all::<Node>()
            .into_iter()
            .map(|node| (Object::metadata(&*node).name.to_string(), node))
            .collect();
        note_missing(missed, &pods, &nodes, seen.now);

        let mut work = Work {
            plan: Plan::nothing().requeued_at(seen.now + PERIOD),
            taken: BTreeSet::new(),
            now: seen.now,
        };
        work.out_of_service(&pods, &nodes);
        work.terminated(&pods, self.threshold);
        work.orphaned(&pods, &gone(missed, seen));
        work.unscheduled(&pods);
        let mut plan = work.plan;
        if !plan.is_nothing() {
            plan.counted::<Pod>(&"".into(), &Selector::of_labels(&[]));
        }
        let marks_failed = plan
            .actions()
            .any(|action| matches!(action.verb, Verb::Patch { .. }));
        if marks_failed {
            // A pod that is set to Failed now is deleted as soon as the cache shows it.
            plan.requeue_now();
        }
        Ok(plan)
    }
}

/// Records missing nodes that pods are bound to, and forgets those that exist again or that no pod names
/// any more.
fn note_missing(
    missed: &mut Missed,
    pods: &[Arc<Pod>],
    nodes: &BTreeMap<String, Arc<Node>>,
    now: Timestamp,
) {
    let missing: BTreeSet<&str> = pods
        .iter()
        .map(|pod| node_of(pod))
        .filter(|node| !node.is_empty() && !nodes.contains_key(*node))
        .collect();
    missed.0.retain(|node, _| missing.contains(node.as_str()));
    for node in missing {
        missed.0.entry(node.to_owned()).or_insert(now);
    }
}

/// The missing nodes that do not exist according to the API server. For one that exists the absence is
/// counted from the start again.
fn gone(missed: &mut Missed, seen: &Snapshot<'_>) -> BTreeSet<String> {
    let mut gone = BTreeSet::new();
    missed
        .0
        .retain(|node, _| match seen.answer(&ask_for(node)) {
            Some(Answer::Missing) => {
                gone.insert(node.clone());
                true
            }
            Some(Answer::Object(_)) => false,
            Some(_) | None => true,
        });
    gone
}

/// A plan in progress, with the pods that it has handled.
struct Work {
    plan: Plan,
    /// The uids of pods that are handled already: one may qualify for several reasons.
    taken: BTreeSet<String>,
    now: Timestamp,
}

impl Work {
    fn out_of_service(&mut self, pods: &[Arc<Pod>], nodes: &BTreeMap<String, Arc<Node>>) {
        let mut stuck: Vec<Arc<Pod>> = pods
            .iter()
            .filter(|pod| pod.is_terminating())
            .filter(|pod| {
                nodes
                    .get(node_of(pod))
                    .is_some_and(|node| is_out_of_service(node))
            })
            .cloned()
            .collect();
        by_eviction_and_age(&mut stuck);
        for pod in stuck {
            self.delete(&pod, Reason::OutOfService);
        }
    }

    fn terminated(&mut self, pods: &[Arc<Pod>], threshold: usize) {
        if threshold == 0 {
            return;
        }
        let mut ended: Vec<Arc<Pod>> = pods
            .iter()
            .filter(|pod| !matches!(phase(pod), "Pending" | "Running" | "Unknown"))
            .cloned()
            .collect();
        let too_many = ended.len().saturating_sub(threshold);
        if too_many == 0 {
            return;
        }
        by_eviction_and_age(&mut ended);
        for pod in &ended[..too_many] {
            self.delete(pod, Reason::Terminated);
        }
    }

    fn orphaned(&mut self, pods: &[Arc<Pod>], gone: &BTreeSet<String>) {
        for pod in pods.iter().filter(|pod| gone.contains(node_of(pod))) {
            self.delete(pod, Reason::Orphaned);
        }
    }

    fn unscheduled(&mut self, pods: &[Arc<Pod>]) {
        for pod in pods {
            if pod.is_terminating() && node_of(pod).is_empty() {
                self.delete(pod, Reason::Unscheduled);
            }
        }
    }

    /// Deletes a pod without grace, or first sets it to Failed: no kubelet exists to do so.
    fn delete(&mut self, pod: &Pod, reason: Reason) {
        let meta = Object::metadata(pod);
        if is_on_its_way(pod) || !self.taken.insert(meta.uid.to_string()) {
            return;
        }
        let labels: [&str; 2] = [&meta.namespace, reason.label()];
        let action = if has_ended(pod) {
            let action = self
                .plan
                .delete(pod, Only::ThisUid, Propagation::Background);
            if let Verb::Delete {
                grace_period_seconds,
                ..
            } = &mut action.verb
            {
                *grace_period_seconds = Some(0);
            }
            action.measure(DELETED, &labels, 1.0)
        } else {
            let mut status = json!({"phase": "Failed", "observedGeneration": meta.generation});
            if reason == Reason::Orphaned {
                status["conditions"] = json!([self.disruption(pod)]);
                // A new condition would otherwise be put in front of the others.
                status["$setElementOrder/conditions"] = order(pod);
            }
            let patch = json!({ "status": status });
            self.plan
                .patch(pod, "status", PatchKind::Strategic, patch, StatusWrite::No)
        };
        action
            .measure_failure(DELETED, &labels, 1.0)
            .measure_failure(ERRORS, &labels, 1.0);
    }

    fn disruption(&self, pod: &Pod) -> serde_json::Value {
        let held = pod
            .status
            .as_ref()
            .and_then(|status| conditions::find(&status.conditions, DISRUPTION));
        let since = held
            .filter(|held| held.status == "True")
            .and_then(|held| held.last_transition_time)
            .unwrap_or_else(|| self.now.into());
        json!({
            "type": DISRUPTION,
            "status": "True",
            "observedGeneration": Object::metadata(pod).generation,
            "lastTransitionTime": since,
            "reason": "DeletionByPodGC",
            "message": "PodGC: node no longer exists",
        })
    }
}

/// The pod's conditions as they are, with the one for its disruption last.
fn order(pod: &Pod) -> serde_json::Value {
    let held = pod.status.iter().flat_map(|status| &status.conditions);
    let types = held.map(|condition| &*condition.r#type);
    types
        .filter(|held| *held != DISRUPTION)
        .chain([DISRUPTION])
        .map(|name| json!({ "type": name }))
        .collect()
}

#[cfg(test)]
mod tests;
