//! Keeps book of the pods: how many there are, how many are ready, and whether any was made that
//! nobody wanted.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Pod;

/// Pods and ReplicaSets of the workload, from its beginning.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Ready or not, by uid.
    pods: BTreeMap<String, bool>,
    /// Every pod there ever was, by the uid of its ReplicaSet.
    created: BTreeMap<String, BTreeSet<String>>,
    /// The most pods that each ReplicaSet ever asked for.
    asked: BTreeMap<String, i64>,
    /// Pods that were evicted, by the uid of their ReplicaSet.
    evicted: BTreeMap<String, BTreeSet<String>>,
}

impl Ledger {
    /// A ReplicaSet as it is now.
    pub fn replica_set(&mut self, set: &ReplicaSet) {
        let uid = set.metadata.uid.clone().unwrap_or_default();
        let replicas = set
            .spec
            .as_ref()
            .and_then(|spec| spec.replicas)
            .unwrap_or(1);
        let most = self.asked.entry(uid).or_default();
        *most = (*most).max(replicas.into());
    }

    /// A pod as it is now.
    pub fn pod(&mut self, pod: &Pod) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let owner = pod
            .metadata
            .owner_references
            .iter()
            .flatten()
            .find(|owner| owner.controller == Some(true))
            .map_or_else(String::new, |owner| owner.uid.clone());
        let conditions = pod
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_ref());
        let is_true = |kind: &str| {
            conditions
                .into_iter()
                .flatten()
                .any(|condition| condition.type_ == kind && condition.status == "True")
        };
        let ready = is_true("Ready");
        if is_true("DisruptionTarget") {
            self.evicted
                .entry(owner.clone())
                .or_default()
                .insert(uid.clone());
        }
        self.created.entry(owner).or_default().insert(uid.clone());
        // One that is being deleted is no longer of use to anybody.
        self.pods
            .insert(uid, ready && pod.metadata.deletion_timestamp.is_none());
    }

    /// A pod that is no more.
    pub fn pod_gone(&mut self, pod: &Pod) {
        // It may have come and gone between two checks.
        self.pod(pod);
        self.pods
            .remove(pod.metadata.uid.as_deref().unwrap_or_default());
    }

    /// What is there is reported again; what was made stays in the book.
    pub fn pods_again(&mut self) {
        self.pods.clear();
    }

    /// Pods there are.
    pub fn present(&self) -> usize {
        self.pods.len()
    }

    /// Those that are ready.
    pub fn ready(&self) -> usize {
        self.pods.values().filter(|ready| **ready).count()
    }

    /// Pods there ever were.
    pub fn ever_created(&self) -> usize {
        self.created.values().map(BTreeSet::len).sum()
    }

    /// Those that were evicted.
    pub fn evicted(&self) -> usize {
        self.evicted.values().map(BTreeSet::len).sum()
    }

    /// Pods made beyond what was wanted. No pod of the workload ends by itself, and a ReplicaSet here
    /// only grows or only shrinks: so each may have made as many pods as it ever asked for, and one for
    /// each pod that was evicted.
    pub fn beyond_wanted(&self) -> usize {
        self.created
            .iter()
            .map(|(set, pods)| {
                let asked = self.asked.get(set).copied().unwrap_or(0);
                let evicted = self.evicted.get(set).map_or(0, BTreeSet::len);
                pods.len()
                    .saturating_sub(usize::try_from(asked).unwrap_or(0))
                    .saturating_sub(evicted)
            })
            .sum()
    }
}
