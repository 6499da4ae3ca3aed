//! What keeps a number of pods of one template: a ReplicaSet, or a ReplicationController as one.

use controllers_kit::selectors::{self, Selector};
use kubernetes_proto::{
    Object,
    apps::{ReplicaSet, ReplicaSetStatus},
    core::PodTemplateSpec,
};

/// A workload that keeps a number of pods of one template.
pub(crate) trait Replicator: Object {
    /// How many pods it asks for.
    fn replicas(&self) -> i32;
    /// Seconds that a pod must have been ready to be available.
    fn min_ready_seconds(&self) -> i32;
    /// Which pods it selects.
    fn selector(&self) -> Result<Selector, selectors::Error>;
    /// What its pods are made from.
    fn template(&self) -> Option<&PodTemplateSpec>;
    /// Its status, as a ReplicaSet's.
    fn status(&self) -> ReplicaSetStatus;
    /// Itself with another status and without a spec: for patches of the status.
    fn reporting(&self, status: ReplicaSetStatus) -> Self;
}

impl Replicator for ReplicaSet {
    fn replicas(&self) -> i32 {
        // The server puts in 1 where nothing was said.
        self.spec
            .as_ref()
            .and_then(|spec| spec.replicas)
            .unwrap_or(1)
    }
    fn min_ready_seconds(&self) -> i32 {
        self.spec.as_ref().map_or(0, |spec| spec.min_ready_seconds)
    }
    fn selector(&self) -> Result<Selector, selectors::Error> {
        Selector::compile(self.spec.as_ref().and_then(|spec| spec.selector.as_ref()))
    }
    fn template(&self) -> Option<&PodTemplateSpec> {
        self.spec.as_ref()?.template.as_ref()
    }
    fn status(&self) -> ReplicaSetStatus {
        self.status.clone().unwrap_or_default()
    }
    fn reporting(&self, status: ReplicaSetStatus) -> Self {
        Self {
            metadata: self.metadata.clone(),
            spec: None,
            status: Some(status),
        }
    }
}

/// Which feature gates are on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gates {
    /// Whether the status counts terminating pods.
    pub terminating_replicas: bool,
    /// Whether pods give their deletion cost by an annotation.
    pub deletion_cost: bool,
}
