//! A DaemonSet as one plan sees it, and which of its pods are up to date.

use std::{cmp::Ordering, collections::BTreeMap, sync::Arc};

use controllers_kit::{Seen, pods};
use kubernetes_proto::{
    Object,
    apps::{DaemonSet, DaemonSetSpec},
    core::{Node, Pod},
};

use super::nodes::Placement;
use crate::revisions::REVISION_LABEL;

/// The annotation by which a DaemonSet of old counts its templates, and the label of pods of one of them.
const GENERATION_ANNOTATION: &str = "deprecated.daemonset.template.generation";

pub(super) const GENERATION_LABEL: &str = "pod-template-generation";

pub(super) fn spec(set: &DaemonSet) -> &DaemonSetSpec {
    static NONE: std::sync::OnceLock<DaemonSetSpec> = std::sync::OnceLock::new();
    set.spec
        .as_ref()
        .unwrap_or_else(|| NONE.get_or_init(Default::default))
}

/// Pods by the node that they are on or meant for.
pub(super) type ByNode = BTreeMap<String, Vec<Arc<Pod>>>;

/// One look at a DaemonSet.
pub(super) struct Look<'a> {
    pub set: &'a DaemonSet,
    pub placement: Placement,
    pub nodes: Vec<Arc<Node>>,
    /// Without those that are over and being deleted.
    pub pods: ByNode,
    pub hash: String,
    pub seen: &'a Seen<'a>,
}

/// What is to be done about pods.
#[derive(Default)]
pub(super) struct Changes {
    /// Nodes that get one.
    pub create: Vec<String>,
    /// Those that go.
    pub delete: Vec<Arc<Pod>>,
}

/// Pods on nodes first, then by age, then by name.
pub(super) fn order(one: &Pod, other: &Pod) -> Ordering {
    let unassigned = |pod: &Pod| pods::node_name(pod).is_empty();
    let created = |pod: &Pod| pods::instant(pod.metadata().creation_timestamp);
    unassigned(one)
        .cmp(&unassigned(other))
        .then_with(|| created(one).cmp(&created(other)))
        .then_with(|| one.metadata().name.cmp(&other.metadata().name))
}

/// The number of the template, as a DaemonSet of old tells it; `None` where it tells none.
pub(super) fn template_generation(set: &DaemonSet) -> Option<i64> {
    set.metadata()
        .annotation(GENERATION_ANNOTATION)?
        .parse()
        .ok()
}

/// Whether a pod is of the present template.
pub(super) fn is_updated(look: &Look<'_>, pod: &Pod) -> bool {
    let meta = pod.metadata();
    let by_generation = template_generation(look.set)
        .is_some_and(|generation| meta.label(GENERATION_LABEL) == Some(&generation.to_string()));
    by_generation || meta.label(REVISION_LABEL) == Some(&look.hash)
}
