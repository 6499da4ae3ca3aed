//! Sets how long kubelets may cache Secrets and ConfigMaps: the annotation `node.alpha.kubernetes.io/ttl`
//! on every Node, in seconds, grows with the number of nodes.
//!
//! Watches nodes; patches that annotation alone; a key per Node; remembers nothing. The steps overlap, so
//! that a cluster at a border does not flap: a node keeps its value while the number of nodes lies within
//! that value's step.

use std::sync::Arc;

use controllers_kit::{
    Change, Controller, Descriptor, Flags, Key, PatchKind, Plan, Reader, Refusal, Sharding,
    Snapshot, StatusWrite, Watches, cast,
};
use kubernetes_proto::{Object, core::Node};
use serde_json::json;

/// Where kubelets read it.
const ANNOTATION: &str = "node.alpha.kubernetes.io/ttl";

/// The numbers of nodes between which a value holds.
struct Step {
    least: usize,
    most: usize,
    seconds: i64,
}

const STEPS: [Step; 5] = [
    step(0, 100, 0),
    step(90, 500, 15),
    step(450, 1000, 30),
    step(900, 2000, 60),
    step(1800, usize::MAX, 300),
];

const fn step(least: usize, most: usize, seconds: i64) -> Step {
    Step {
        least,
        most,
        seconds,
    }
}

impl Step {
    fn holds(&self, nodes: usize) -> bool {
        (self.least..=self.most).contains(&nodes)
    }
}

/// The controller.
pub struct Ttl;

/// The step of a node's value, if it has one of ours.
fn step_of(node: &Node) -> Option<usize> {
    let value = Object::metadata(node).annotation(ANNOTATION)?;
    let seconds: i64 = value.parse().ok()?;
    STEPS.iter().position(|step| step.seconds == seconds)
}

/// The step of a cluster of this size, starting from another one: up while it is too large, down while it
/// is too small.
fn reached(mut step: usize, nodes: usize) -> usize {
    while nodes > STEPS[step].most {
        step += 1;
    }
    while nodes < STEPS[step].least {
        step -= 1;
    }
    step
}

/// The step of a node without a value of its own: that of the others, so that all nodes have the same.
fn joined(others: &[Arc<Node>], nodes: usize) -> usize {
    others
        .iter()
        .filter_map(|node| step_of(node))
        .find(|step| STEPS[*step].holds(nodes))
        .unwrap_or_else(|| reached(0, nodes))
}

/// All nodes where the cluster has just left a step, else the node itself.
fn woken(change: &Change<'_, Node>, reader: &dyn Reader) -> Vec<Key> {
    let itself = vec![Key::of(change.newest())];
    let nodes = || reader.count(Node::resource());
    let left = match (change.old, change.new) {
        (None, Some(_)) => {
            let nodes = nodes();
            STEPS.iter().any(|step| nodes > 0 && nodes - 1 == step.most)
        }
        (Some(_), None) => {
            let nodes = nodes();
            STEPS.iter().any(|step| nodes + 1 == step.least)
        }
        _ => false,
    };
    if !left {
        return itself;
    }
    let all = reader.list(Node::resource(), None);
    all.into_iter()
        .filter_map(cast::<Node>)
        .map(|node| Key::of(&*node))
        .collect()
}

impl Controller for Ttl {
    type Memory = ();

    fn describe() -> Descriptor {
        Descriptor::new("ttl-controller", Sharding::ByObject)
            .aliases(&["ttl"])
            .queue("ttlcontroller")
            .workers_fixed(5)
            .writes::<Node>(&["patch"])
            .differences(include_str!("differences.md"))
    }

    fn new(_: &Flags) -> Self {
        Self
    }

    fn watch(&self, on: &mut Watches) {
        on.kind::<Node>().wakes(woken);
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, (): &mut ()) -> Result<Plan, Refusal> {
        let Some(node) = seen.get::<Node>(key) else {
            return Ok(Plan::nothing());
        };
        let nodes = seen.count::<Node>();
        let wanted = match step_of(&node) {
            Some(step) => reached(step, nodes),
            None => joined(&seen.all::<Node>(), nodes),
        };
        let mut plan = Plan::nothing();
        // As numbers: "+15" says 15.
        if step_of(&node) != Some(wanted) {
            let text = STEPS[wanted].seconds.to_string();
            let patch = json!({"metadata": {"annotations": {ANNOTATION: text}}});
            plan.patch(&*node, "", PatchKind::Strategic, patch, StatusWrite::No)
                .whatever_version();
        }
        Ok(plan)
    }
}

#[cfg(test)]
mod tests;
