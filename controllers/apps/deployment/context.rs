//! A Deployment with its ReplicaSets, as they are and as they should be.

use std::sync::Arc;

use controllers_kit::{Timestamp, pods};
use kubernetes_proto::{
    Object,
    apps::{Deployment, DeploymentStatus, ReplicaSet, ReplicaSetStatus},
};

pub(super) const RECREATE: &str = "Recreate";

pub(super) const ROLLING_UPDATE: &str = "RollingUpdate";

/// One ReplicaSet.
#[derive(Clone, Debug)]
pub(super) struct Set {
    /// As seen; `None` for one that this plan creates.
    pub seen: Option<Arc<ReplicaSet>>,
    /// As it should be. Of one that was seen the template is left out: it never changes, and comparing it is
    /// dear.
    pub wanted: ReplicaSet,
    /// Whether it goes.
    pub is_deleted: bool,
}

impl Set {
    /// One that was seen.
    pub fn seen(set: &Arc<ReplicaSet>) -> Self {
        Self {
            seen: Some(Arc::clone(set)),
            wanted: without_template(set),
            is_deleted: false,
        }
    }

    /// One to be created.
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

    /// What its spec asks for; the server puts in 1 where nothing was said.
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

/// A sum that stays at the largest number: two ReplicaSets may ask for more together than a number holds.
pub(super) fn sum(counts: impl Iterator<Item = i32>) -> i32 {
    counts.fold(0, i32::saturating_add)
}

/// What a ReplicaSet's spec asks for; the server puts in 1 where nothing was said.
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
    /// As seen.
    pub deployment: Arc<Deployment>,
    /// The status, with the conditions as the decisions so far have set them.
    pub status: DeploymentStatus,
    /// The Deployment's revision, where it is to change.
    pub revision: Option<String>,
    /// All ReplicaSets, the oldest first; one that is created comes last.
    pub sets: Vec<Set>,
    /// Which of them has the Deployment's template.
    pub new: Option<usize>,
    /// The present.
    pub now: Timestamp,
    /// Whether the status says how many pods terminate: a feature gate.
    pub counts_terminating: bool,
}
