//! A DaemonSet as one plan sees it, and which of its pods are up to date.

use std::{cmp::Ordering, collections::BTreeMap, sync::Arc};

use controllers_kit::{Snapshot, pods};
use kubernetes_proto::{
    Object,
    apps::{DaemonSet, DaemonSetSpec},
    core::{Node, Pod},
};

use super::nodes::Placement;
use crate::revisions::REVISION_LABEL;

/// The annotation with a DaemonSet's template generation, and the label of its pods with it; both
/// deprecated.
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

/// What one reconcile of a DaemonSet reads.
pub(super) struct SyncContext<'a> {
    pub set: &'a DaemonSet,
    pub placement: Placement,
    pub nodes: Vec<Arc<Node>>,
    /// Without finished pods that are being deleted.
    pub pods: ByNode,
    pub hash: String,
    pub seen: &'a Snapshot<'a>,
}

/// Pods to create and to delete.
#[derive(Default)]
pub(super) struct PodChanges {
    /// Nodes that get a pod.
    pub create: Vec<String>,
    /// Pods to delete.
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

/// The template's generation, as DaemonSets before ControllerRevisions recorded it in an annotation; `None`
/// without one.
pub(super) fn template_generation(set: &DaemonSet) -> Option<i64> {
    set.metadata()
        .annotation(GENERATION_ANNOTATION)?
        .parse()
        .ok()
}

/// Whether a pod is of the present template.
pub(super) fn is_updated(context: &SyncContext<'_>, pod: &Pod) -> bool {
    let meta = pod.metadata();
    let by_generation = template_generation(context.set)
        .is_some_and(|generation| meta.label(GENERATION_LABEL) == Some(&generation.to_string()));
    by_generation || meta.label(REVISION_LABEL) == Some(&context.hash)
}
