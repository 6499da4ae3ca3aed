//! A Deployment with its ReplicaSets, as they are and as they should be.

use std::sync::Arc;

use controllers_kit::{Timestamp, pods};
use kubernetes_proto::{
    Object,
    apps::{Deployment, DeploymentStatus, ReplicaSet, ReplicaSetStatus},
};

pub(super) const RECREATE: &str = "Recreate";

pub(super) const ROLLING_UPDATE: &str = "RollingUpdate";

/// A ReplicaSet in a rollout: as seen and as wanted.
#[derive(Clone, Debug)]
pub(super) struct Set {
    /// The cached object; `None` for one that this plan creates.
    pub seen: Option<Arc<ReplicaSet>>,
    /// As it should be. An existing one leaves out the template: it never changes and is expensive to
    /// compare.
    pub wanted: ReplicaSet,
    /// Whether it is deleted by the plan.
    pub is_deleted: bool,
}

impl Set {
    /// An existing ReplicaSet.
    pub fn seen(set: &Arc<ReplicaSet>) -> Self {
        Self {
            seen: Some(Arc::clone(set)),
            wanted: without_template(set),
            is_deleted: false,
        }
    }

    /// A ReplicaSet that the plan creates.
    pub fn created(set: ReplicaSet) -> Self {
        Self {
            seen: None,
            wanted: set,
            is_deleted: false,
        }
    }

    pub fn name(&self) -> &str {
        &self.wanted.metadata().name
    }

    pub fn uid(&self) -> &str {
        &self.wanted.metadata().uid
    }

    /// The replicas in its spec; the server's default is 1.
    pub fn replicas(&self) -> i32 {
        replicas(&self.wanted)
    }

    pub fn set_replicas(&mut self, count: i32) {
        self.wanted.spec.get_or_insert_default().replicas = Some(count);
    }

    pub fn status(&self) -> &ReplicaSetStatus {
        static NONE: std::sync::OnceLock<ReplicaSetStatus> = std::sync::OnceLock::new();
        self.wanted
            .status
            .as_ref()
            .unwrap_or_else(|| NONE.get_or_init(Default::default))
    }

    pub fn created_at(&self) -> Option<Timestamp> {
        pods::instant(self.wanted.metadata().creation_timestamp)
    }
}

/// A saturating sum: two ReplicaSets may ask for more together than an `i32` holds.
pub(super) fn sum(counts: impl Iterator<Item = i32>) -> i32 {
    counts.fold(0, i32::saturating_add)
}

/// The replicas in a ReplicaSet's spec; the server's default is 1.
pub(super) fn replicas(set: &ReplicaSet) -> i32 {
    set.spec
        .as_ref()
        .and_then(|spec| spec.replicas)
        .unwrap_or(1)
}

/// A ReplicaSet for comparisons: its template never changes.
pub(super) fn without_template(set: &ReplicaSet) -> ReplicaSet {
    ReplicaSet {
        metadata: set.metadata.clone(),
        spec: set
            .spec
            .as_ref()
            .map(|spec| kubernetes_proto::apps::ReplicaSetSpec {
                replicas: spec.replicas,
                min_ready_seconds: spec.min_ready_seconds,
                selector: None,
                template: None,
            }),
        status: set.status.clone(),
    }
}

/// A Deployment with all its ReplicaSets.
pub(super) struct Rollout {
    /// The Deployment as the cache has it.
    pub deployment: Arc<Deployment>,
    /// The status, with the conditions as the decisions so far have set them.
    pub status: DeploymentStatus,
    /// The Deployment's new revision, where it changes.
    pub revision: Option<String>,
    /// All ReplicaSets, the oldest first; one that is created comes last.
    pub sets: Vec<Set>,
    /// Which of them has the Deployment's template.
    pub new: Option<usize>,
    /// The present.
    pub now: Timestamp,
    /// Whether the status counts terminating pods: a feature gate.
    pub counts_terminating: bool,
}
