//! Which nodes a DaemonSet's pods run on, judged as the scheduler does.

use std::collections::BTreeMap;

use controllers_kit::{
    podspec::{
        Malformed,
        placement::{self, NODE_NAME_FIELD},
    },
    tolerations::tolerates,
};
use kubernetes_proto::{
    Object,
    apps::DaemonSet,
    core::{Node, NodeSelectorRequirement, NodeSelectorTerm, Pod, Toleration},
    meta::{self, Entry},
};

const NO_EXECUTE: &str = "NoExecute";
const NO_SCHEDULE: &str = "NoSchedule";

/// Whether a node gets and keeps a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fit {
    /// Whether a missing pod is created.
    pub runs: bool,
    /// Whether an existing pod stays.
    pub stays: bool,
}

/// Where a DaemonSet's pods may run.
pub(super) struct Placement {
    node_selector: BTreeMap<String, String>,
    node_name: String,
    /// `None` where nothing is required.
    terms: Option<Vec<NodeSelectorTerm>>,
    tolerations: Vec<Toleration>,
    host_network: bool,
    comparisons: bool,
}

impl Placement {
    /// The placement of a DaemonSet's template, with the tolerations that every daemon has.
    pub fn of(set: &DaemonSet, comparisons: bool) -> Result<Self, Malformed> {
        let spec = set
            .spec
            .as_ref()
            .and_then(|spec| spec.template.as_ref())
            .map_or(&[][..], |template| &template.spec);
        let read = placement::read(spec)?;
        let mut tolerations = read.tolerations;
        tolerations.extend(daemon_tolerations(read.host_network));
        Ok(Self {
            node_selector: read.node_selector,
            node_name: read.node_name,
            terms: read
                .affinity
                .and_then(|affinity| affinity.node_affinity)
                .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution)
                .map(|selector| selector.node_selector_terms),
            tolerations,
            host_network: read.host_network,
            comparisons,
        })
    }

    /// The tolerations that are added to every pod.
    pub fn added_tolerations(&self) -> Vec<Toleration> {
        daemon_tolerations(self.host_network)
    }

    /// Whether a toleration compares numbers.
    pub fn compares(&self) -> bool {
        self.tolerations
            .iter()
            .any(|toleration| matches!(toleration.operator.as_str(), "Lt" | "Gt"))
    }

    pub fn judge(&self, node: &Node) -> Fit {
        let meta = Object::metadata(node);
        let none = Fit {
            runs: false,
            stays: false,
        };
        if !self.node_name.is_empty() && *self.node_name != *meta.name {
            return none;
        }
        let selected = self
            .node_selector
            .iter()
            .all(|(key, value)| meta.label(key) == Some(value));
        let required = self
            .terms
            .as_ref()
            .is_none_or(|terms| terms.iter().any(|term| matches(term, node)));
        if !selected || !required {
            return none;
        }
        let taints = node.spec.as_ref().map_or(&[][..], |spec| &spec.taints);
        let bears = |effects: &[&str]| {
            taints
                .iter()
                .filter(|taint| effects.contains(&taint.effect.as_str()))
                .all(|taint| {
                    self.tolerations
                        .iter()
                        .any(|toleration| tolerates(toleration, taint, self.comparisons))
                })
        };
        Fit {
            runs: bears(&[NO_EXECUTE, NO_SCHEDULE]),
            // Running pods are evicted by NoExecute alone.
            stays: bears(&[NO_EXECUTE]),
        }
    }
}

/// One of the terms must hold; within it everything. An empty term, or one that can't be read, matches no
/// node.
fn matches(term: &NodeSelectorTerm, node: &Node) -> bool {
    let meta = Object::metadata(node);
    let is_empty = term.match_expressions.is_empty() && term.match_fields.is_empty();
    !is_empty
        && term.match_expressions.iter().all(is_readable)
        && term.match_fields.iter().all(|field| {
            field.values.len() == 1 && matches!(field.operator.as_str(), "In" | "NotIn")
        })
        && term
            .match_expressions
            .iter()
            .all(|expression| label_matches(expression, &meta.labels))
        && term.match_fields.iter().all(|field| {
            let value = if field.key == NODE_NAME_FIELD {
                meta.name.as_str()
            } else {
                ""
            };
            (field.values[0] == value) == (field.operator == "In")
        })
}

fn is_readable(expression: &NodeSelectorRequirement) -> bool {
    let values = &expression.values;
    match expression.operator.as_str() {
        "In" | "NotIn" => !values.is_empty(),
        "Exists" | "DoesNotExist" => values.is_empty(),
        "Gt" | "Lt" => values.len() == 1 && values[0].parse::<i64>().is_ok(),
        _ => false,
    }
}

fn label_matches(expression: &NodeSelectorRequirement, labels: &[Entry]) -> bool {
    let value = meta::get(labels, &expression.key);
    let listed = || value.is_some_and(|value| expression.values.iter().any(|one| one == value));
    let compare = |wanted: fn(i64, i64) -> bool| {
        let numbers = || Some((value?.parse().ok()?, expression.values[0].parse().ok()?));
        numbers().is_some_and(|(value, bound)| wanted(value, bound))
    };
    match expression.operator.as_str() {
        "In" => listed(),
        "NotIn" => !listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare(|value, bound| value > bound),
        "Lt" => compare(|value, bound| value < bound),
        _ => false,
    }
}

/// A daemon survives a node's failures, and runs where nothing else may.
fn daemon_tolerations(host_network: bool) -> Vec<Toleration> {
    let exists = |key: &str, effect: &str| Toleration {
        key: format!("node.kubernetes.io/{key}"),
        operator: "Exists".to_owned(),
        effect: effect.to_owned(),
        ..Default::default()
    };
    let mut tolerations = vec![
        exists("not-ready", NO_EXECUTE),
        exists("unreachable", NO_EXECUTE),
        exists("disk-pressure", NO_SCHEDULE),
        exists("memory-pressure", NO_SCHEDULE),
        exists("pid-pressure", NO_SCHEDULE),
        exists("unschedulable", NO_SCHEDULE),
    ];
    if host_network {
        tolerations.push(exists("network-unavailable", NO_SCHEDULE));
    }
    tolerations
}

/// The node that a pod is on, or is meant for; `None` without either.
pub(super) fn target(pod: &Pod) -> Option<&str> {
    let spec = pod.spec.as_ref()?;
    if !spec.node_name.is_empty() {
        return Some(&spec.node_name);
    }
    let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    let required = affinity
        .required_during_scheduling_ignored_during_execution
        .as_ref()?;
    let field = required
        .node_selector_terms
        .iter()
        .flat_map(|term| &term.match_fields)
        .find(|field| field.key == NODE_NAME_FIELD && field.operator == "In")?;
    match field.values.as_slice() {
        [node] => Some(node),
        _ => None,
    }
}
