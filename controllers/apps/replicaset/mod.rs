//! Keeps as many pods of one template alive as a ReplicaSet asks for.
//!
//! Watches replicasets and pods. Adopts the orphan pods that its selector selects and releases those that
//! it no longer selects; creates and deletes pods; writes the ReplicaSet's status. A key per ReplicaSet.
//! Remembers the result of the last attempt to create or delete, because the condition ReplicaFailure
//! reports it and no object records it.
//!
//! Differs from upstream: a pod's name follows from the ReplicaSet's uid and an ordinal instead of chance, so
//! a second creation of the same pod collides. Adoptions and releases are settled in a plan of their own
//! before pods are counted. Expectations are not needed: no key is planned before the cache has seen its own
//! writes.

pub(crate) mod context;
pub(crate) mod plan;
mod status;

use controllers_kit::{
    Controller, Descriptor, Failure, Flags, Key, MetricKind, Outcome, Plan, Query, Refusal,
    Sharding, Snapshot, Verb, Watches, owners,
};
use kubernetes_proto::{Object, apps::ReplicaSet, core::Pod};
use serde::{Deserialize, Serialize};

use crate::deployment::TERMINATING_REPLICAS;

/// The gate of the annotation `controller.kubernetes.io/pod-deletion-cost`.
pub(crate) const POD_DELETION_COST: &str = "PodDeletionCost";

/// The replicaset controller.
pub struct ReplicaSets {
    gates: context::Gates,
}

/// The result of the last attempt to create or delete pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Attempt {
    /// Nothing is known, or nothing was to be done.
    #[default]
    Unknown,
    /// Every known result was a success.
    Succeeded,
    /// A write has failed.
    Failed {
        /// `FailedCreate` or `FailedDelete`.
        reason: String,
        /// The first error.
        message: String,
    },
}

const AGE_RATIO: &str = "replicaset_controller_sorting_deletion_age_ratio";

/// What the controller remembers of one ReplicaSet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// The last attempt.
    pub attempt: Attempt,
    /// Whether an action of the present plan has failed: later successes then do not clear the failure.
    pub has_failed: bool,
}

impl Controller for ReplicaSets {
    type Memory = Memory;

    fn describe() -> Descriptor {
        Descriptor::new("replicaset-controller", Sharding::ByObject)
            .aliases(&["replicaset"])
            .queue("replicaset")
            .workers(
                "concurrent-replicaset-syncs",
                5,
                "The number of replica sets that are allowed to sync concurrently. Larger number = more responsive \
                 replica management, but more CPU (and network) load",
            )
            .gate(TERMINATING_REPLICAS, true)
            .gate(POD_DELETION_COST, true)
            .reads_live::<ReplicaSet>()
            .writes_status::<ReplicaSet>()
            .blocks_owner_deletion::<ReplicaSet>()
            .writes::<Pod>(&["create", "patch", "delete"])
            .differences(include_str!("differences.md"))
            .metric(
                AGE_RATIO,
                MetricKind::Histogram(0.25, 2.0, 6),
                &[],
                "The ratio of chosen deleted pod's ages to the current youngest pod's age (at the time). Should be <2.",
            )
    }

    fn new(flags: &Flags) -> Self {
        Self {
            gates: context::Gates {
                terminating_replicas: flags.bool(TERMINATING_REPLICAS),
                deletion_cost: flags.bool(POD_DELETION_COST),
            },
        }
    }

    fn watch(&self, on: &mut Watches) {
        on.kind::<ReplicaSet>().wakes_itself();
        on.kind::<Pod>()
            .wakes_controller::<ReplicaSet>()
            .wakes(|change, reader| {
                owners::adopters::<ReplicaSet, Pod>(change, reader, |set| {
                    set.spec.as_ref()?.selector.as_ref()
                })
            })
            .indexed_by(owners::ORPHANS, owners::orphan_in);
    }

    fn ask(&self, key: &Key, seen: &Snapshot<'_>, _: &Memory) -> Vec<Query> {
        plan::ask::<ReplicaSet>(key, seen)
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, memory: &mut Memory) -> Result<Plan, Refusal> {
        plan::plan::<ReplicaSet>(self.gates, key, seen, memory)
    }

    fn learn(&self, outcome: &Outcome<'_>, memory: &mut Memory) {
        memory.learn(outcome);
    }
}

impl Memory {
    /// The result of a creation or deletion of a pod.
    pub(crate) fn learn(&mut self, outcome: &Outcome<'_>) {
        let reason = match outcome.action.verb {
            _ if outcome.action.resource != Pod::resource() => return,
            Verb::Create { .. } => "FailedCreate",
            Verb::Delete { .. } => "FailedDelete",
            Verb::Patch { .. } | Verb::DeleteCollection { .. } | Verb::Replace { .. } => return,
        };
        match &outcome.result {
            Err(failure) if failure.is_inconclusive() => {}
            // In a namespace that is terminating, nothing can be created and nothing needs to be.
            Ok(_) | Err(Failure::NamespaceTerminating(_)) => self.succeeded(),
            Err(failure) if outcome.action.is_done(failure) => self.succeeded(),
            Err(failure) => {
                let message = match reason {
                    "FailedDelete" => format!("unable to delete pods: {failure}"),
                    _ => failure.to_string(),
                };
                if !self.has_failed {
                    self.attempt = Attempt::Failed {
                        reason: reason.to_owned(),
                        message,
                    };
                }
                self.has_failed = true;
            }
        }
    }

    fn succeeded(&mut self) {
        if !self.has_failed {
            self.attempt = Attempt::Succeeded;
        }
    }
}

#[cfg(test)]
mod tests;
