//! Deletes Nodes whose machines the cloud provider no longer has, and taints those whose machines are shut
//! down.
//!
//! Watches nodes; deletes a Node that is not ready once the provider says definitely that its instance does
//! not exist, and adds or removes the taint `node.cloudprovider.kubernetes.io/shutdown`; a key per Node;
//! remembers nothing. Invariant: only a definite no deletes a Node, and only the version of it that was
//! seen not to be ready. A provider that is down, slow, or answers anything else deletes nothing.

use std::{sync::Arc, time::Duration};

use controllers_kit::{
    Controller, Descriptor, Event, EventType, Flags, Key, ObjectRef, Only, Plan, Propagation,
    Query, Refusal, Sharding, Snapshot, Watches,
    cloud::{self, Call, Deed, Reason, Refused, Reply},
};
use kubernetes_proto::{
    Object, Str,
    core::{Node, Taint},
};

use crate::flags::{self, UNSUPPORTED_RETRY};

/// The taint of a Node whose instance is shut down.
const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";
const EFFECT: &str = "NoSchedule";

/// Nodes for which one replica queries the provider concurrently.
const WORKERS: usize = 10;

/// The controller.
pub struct CloudNodeLifecycle {
    period: Duration,
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| &status.conditions);
    conditions
        .into_iter()
        .any(|one| one.r#type == "Ready" && one.status == "True")
}

fn is_shutdown_taint(taint: &Taint) -> bool {
    taint.key == SHUTDOWN && taint.effect == EFFECT
}

fn is_tainted(node: &Node) -> bool {
    let taints = node.spec.iter().flat_map(|spec| &spec.taints);
    taints.into_iter().any(is_shutdown_taint)
}

/// Writes the taints of a Node: a list without merge keys, so a whole list for the version that was seen.
fn write_taints(plan: &mut Plan, node: &Node, change: impl FnOnce(&mut Vec<Taint>)) {
    let mut changed = node.clone();
    change(&mut changed.spec.get_or_insert_default().taints);
    plan.update(node, &changed);
}

fn event(node: &Node, r#type: EventType, reason: &'static str, message: String) -> Event {
    Event {
        about: ObjectRef {
            resource_version: 0,
            ..ObjectRef::of(node)
        },
        r#type,
        reason: Str::interned(reason),
        message,
    }
}

/// The provider's answers about existence and shutdown.
fn answers(seen: &Snapshot<'_>) -> [Option<Result<bool, Refused>>; 2] {
    let mut answers = [None, None];
    for (call, answered) in seen.cloud() {
        let place = match &call.deed {
            Deed::InstanceExists(_) => 0,
            Deed::InstanceShutdown(_) => 1,
            _ => continue,
        };
        answers[place] = Some(answered.outcome.and_then(|reply| match reply {
            Reply::Is(truth) => Ok(truth),
            other => Err(Refused::new(
                Reason::Failed,
                format!("the provider answered something else: {other:?}"),
            )),
        }));
    }
    answers
}

impl Controller for CloudNodeLifecycle {
    type Memory = ();

    fn describe() -> Descriptor {
        Descriptor::new("cloud-node-lifecycle-controller", Sharding::ByObject)
            .aliases(&["cloud-node-lifecycle"])
            .service_account("node-controller")
            .event_source("cloud-node-lifecycle-controller")
            .workers_fixed(WORKERS)
            .one_by_one()
            .retry_first(Duration::from_secs(1))
            .retry_max_flag("node-monitor-period")
            .with_flags(flags::NODES)
            .with_flags(flags::PROVIDER)
            .runs_where(flags::runs)
            .rule("", "nodes", &["list", "watch", "patch", "delete"])
            .differences(include_str!("differences.md"))
    }

    fn new(flags: &Flags) -> Self {
        Self {
            period: flags.duration("node-monitor-period"),
        }
    }

    fn watch(&self, on: &mut Watches) {
        // Most changes of a Node are heartbeats.
        on.kind::<Node>().wakes(|change, _| {
            let state = |node: &Node| (is_ready(node), is_tainted(node), node.is_terminating());
            let wakes = match (change.old, change.new) {
                (Some(old), Some(new)) => state(old) != state(new),
                (None, Some(_)) => true,
                (_, None) => false,
            };
            let keys = change.new.filter(|_| wakes).map(Key::of);
            keys.into_iter().collect()
        });
    }

    fn ask(&self, key: &Key, seen: &Snapshot<'_>, (): &()) -> Vec<Query> {
        let Some(node) = seen.get::<Node>(key) else {
            return Vec::new();
        };
        if is_ready(&node) || node.is_terminating() {
            return Vec::new();
        }
        let machine = Box::new(cloud::Node::of(&node));
        [
            Deed::InstanceExists(machine.clone()),
            Deed::InstanceShutdown(machine),
        ]
        .map(|deed| Query::Cloud(Call::read(deed)))
        .to_vec()
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, (): &mut ()) -> Result<Plan, Refusal> {
        let mut plan = Plan::nothing();
        let Some(node) = seen.get::<Node>(key) else {
            return Ok(plan);
        };
        let node: Arc<Node> = node;
        if is_ready(&node) {
            if is_tainted(&node) {
                write_taints(&mut plan, &node, |taints| {
                    taints.retain(|taint| !is_shutdown_taint(taint));
                });
            }
            return Ok(plan);
        }
        if node.is_terminating() {
            return Ok(plan);
        }
        let [exists, shutdown] = answers(seen);
        // It has become ready since the queries were made: it is asked about with the next plan.
        let Some(exists) = exists else {
            return Ok(plan.requeued_at(seen.now));
        };
        let due = flags::after(seen.now, self.period)?;
        match exists {
            Ok(true) => {}
            Ok(false) => {
                let name = &Object::metadata(&*node).name;
                plan.event(event(
                    &node,
                    EventType::Normal,
                    "DeletingNode",
                    format!("Deleting node {name} because it does not exist in the cloud provider"),
                ));
                // Irreversible. Verified: the provider has answered with a definite no for this uid, and
                // the Node was not ready in the version that is the request's precondition.
                plan.delete(&*node, Only::ThisVersion, Propagation::Background)
                    .announce_failure(event(
                        &node,
                        EventType::Warning,
                        "DeletingNodeFailed",
                        format!("Failed deleting node {name}: "),
                    ));
                return Ok(plan);
            }
            Err(refused) => return self.undecided(plan, &refused, seen, "exists"),
        }
        match shutdown {
            Some(Ok(true)) if !is_tainted(&node) => {
                write_taints(&mut plan, &node, |taints| {
                    taints.push(Taint {
                        key: SHUTDOWN.to_owned(),
                        effect: EFFECT.to_owned(),
                        ..Default::default()
                    });
                });
            }
            // An instance that is not found here has gone since it was reported to exist.
            Some(Err(refused))
                if !matches!(
                    refused.reason,
                    Reason::InstanceNotFound | Reason::NotSupported
                ) =>
            {
                return self.undecided(plan, &refused, seen, "is shutdown");
            }
            _ => {}
        }
        Ok(plan.requeued_at(due))
    }
}

impl CloudNodeLifecycle {
    /// Nothing is done where the provider gives no definite answer.
    fn undecided(
        &self,
        plan: Plan,
        refused: &Refused,
        seen: &Snapshot<'_>,
        what: &str,
    ) -> Result<Plan, Refusal> {
        if refused.reason == Reason::NotSupported {
            return Ok(plan.requeued_at(seen.now + UNSUPPORTED_RETRY));
        }
        if let Some(at) = flags::retry_at(refused, seen.now) {
            return Ok(plan.requeued_at(at));
        }
        Err(Refusal::Retry(format!(
            "error checking if the node {what}: {}",
            refused.message
        )))
    }
}

#[cfg(test)]
mod tests;
