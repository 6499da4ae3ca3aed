//! Keeps as many pods of one template alive as a ReplicationController asks for.
//!
//! Watches replicationcontrollers and pods; decides, writes and remembers as the replicaset controller
//! does, with the same planner (`replicaset/plan.rs`). A key per ReplicationController.
//!
//! Differs from upstream as the replicaset controller does.

use controllers_kit::{
    Controller, Descriptor, Flags, Key, Outcome, Plan, Query, Refusal, Sharding, Snapshot, Watches,
    owners,
    selectors::{self, Selector},
};
use kubernetes_proto::{
    Object,
    apps::{ReplicaSetCondition, ReplicaSetStatus},
    cast,
    core::{
        Pod, PodTemplateSpec, ReplicationController, ReplicationControllerCondition,
        ReplicationControllerStatus,
    },
};

use crate::replicaset::{
    Memory, POD_DELETION_COST,
    context::{Gates, Replicator},
    plan,
};

/// The replicationcontroller controller.
pub struct ReplicationControllers {
    gates: Gates,
}

impl Controller for ReplicationControllers {
    type Memory = Memory;

    fn describe() -> Descriptor {
        Descriptor::new("replicationcontroller-controller", Sharding::ByObject)
            .aliases(&["replicationcontroller"])
            .service_account("replication-controller")
            .event_source("replication-controller")
            .queue("replicationmanager")
            .workers(
                "concurrent-rc-syncs",
                5,
                "The number of replication controllers that are allowed to sync concurrently. Larger number = more \
                 responsive replica management, but more CPU (and network) load",
            )
            .gate(POD_DELETION_COST, true)
            .reads_live::<ReplicationController>()
            .writes_status::<ReplicationController>()
            .blocks_owner_deletion::<ReplicationController>()
            .writes::<Pod>(&["create", "patch", "delete"])
            .differences(include_str!("differences.md"))
    }

    fn new(flags: &Flags) -> Self {
        Self {
            gates: Gates {
                // Its status has no such field.
                terminating_replicas: false,
                deletion_cost: flags.bool(POD_DELETION_COST),
            },
        }
    }

    fn watch(&self, on: &mut Watches) {
        on.kind::<ReplicationController>().wakes_itself();
        on.kind::<Pod>()
            .wakes_controller::<ReplicationController>()
            .wakes(|change, reader| {
                // A selector of equal labels alone: the search for orphans needs the other form.
                let Some(meta) = change.new.map(Object::metadata) else {
                    return Vec::new();
                };
                let is_news = change.old.map(Object::metadata).is_none_or(|before| {
                    before.controller().is_some() || before.labels != meta.labels
                });
                if meta.controller().is_some() || meta.is_terminating() || !is_news {
                    return Vec::new();
                }
                reader
                    .list(ReplicationController::resource(), Some(&meta.namespace))
                    .into_iter()
                    .filter_map(cast::<ReplicationController>)
                    .filter(|set| {
                        set.selector().is_ok_and(|selector| {
                            !selector.is_empty() && selector.matches(&meta.labels)
                        })
                    })
                    .map(|set| Key::of(set.as_ref()))
                    .collect()
            })
            .indexed_by(owners::ORPHANS, owners::orphan_in);
    }

    fn ask(&self, key: &Key, seen: &Snapshot<'_>, _: &Memory) -> Vec<Query> {
        plan::ask::<ReplicationController>(key, seen)
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, memory: &mut Memory) -> Result<Plan, Refusal> {
        plan::plan::<ReplicationController>(self.gates, key, seen, memory)
    }

    fn learn(&self, outcome: &Outcome<'_>, memory: &mut Memory) {
        memory.learn(outcome);
    }
}

impl Replicator for ReplicationController {
    fn replicas(&self) -> i32 {
        self.spec
            .as_ref()
            .and_then(|spec| spec.replicas)
            .unwrap_or(1)
    }
    fn min_ready_seconds(&self) -> i32 {
        self.spec.as_ref().map_or(0, |spec| spec.min_ready_seconds)
    }
    fn selector(&self) -> Result<Selector, selectors::Error> {
        Ok(match &self.spec {
            Some(spec) if !spec.selector.is_empty() => Selector::of_labels(&spec.selector),
            // An absent selector selects nothing: a ReplicaSet's would select everything.
            _ => Selector::nothing(),
        })
    }
    fn template(&self) -> Option<&PodTemplateSpec> {
        self.spec.as_ref()?.template.as_ref()
    }
    fn status(&self) -> ReplicaSetStatus {
        let status = self.status.clone().unwrap_or_default();
        ReplicaSetStatus {
            replicas: status.replicas,
            fully_labeled_replicas: status.fully_labeled_replicas,
            ready_replicas: status.ready_replicas,
            available_replicas: status.available_replicas,
            terminating_replicas: None,
            observed_generation: status.observed_generation,
            conditions: status.conditions.into_iter().map(of_set).collect(),
        }
    }
    fn reporting(&self, status: ReplicaSetStatus) -> Self {
        Self {
            metadata: self.metadata.clone(),
            spec: None,
            status: Some(ReplicationControllerStatus {
                replicas: status.replicas,
                fully_labeled_replicas: status.fully_labeled_replicas,
                observed_generation: status.observed_generation,
                ready_replicas: status.ready_replicas,
                available_replicas: status.available_replicas,
                conditions: status.conditions.into_iter().map(of_controller).collect(),
            }),
        }
    }
}

fn of_set(condition: ReplicationControllerCondition) -> ReplicaSetCondition {
    ReplicaSetCondition {
        r#type: condition.r#type,
        status: condition.status,
        last_transition_time: condition.last_transition_time,
        reason: condition.reason,
        message: condition.message,
    }
}

fn of_controller(condition: ReplicaSetCondition) -> ReplicationControllerCondition {
    ReplicationControllerCondition {
        r#type: condition.r#type,
        status: condition.status,
        last_transition_time: condition.last_transition_time,
        reason: condition.reason,
        message: condition.message,
    }
}

#[cfg(test)]
mod tests;
