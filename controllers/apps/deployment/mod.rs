//! Rolls a pod template out: keeps one ReplicaSet for each revision and moves the replicas to the newest.
//!
//! Watches deployments, replicasets and (for the strategy Recreate) the end of pods. Adopts and releases
//! ReplicaSets; creates, scales, annotates and deletes them; writes the Deployment's status and, with it,
//! its revision. A key per Deployment. Remembers why the new ReplicaSet could not be created, which goes
//! into the condition Progressing, and which ReplicaSets hold the Deployment's template though the two are
//! encoded differently.
//!
//! Differs from upstream: the hash in a ReplicaSet's name is our own; existing ReplicaSets are found by
//! their template, whatever their name. One plan does what upstream does in several writes, so a ReplicaSet
//! that is scaled twice in one step gets one event.

mod context;
mod create;
mod plan;
mod progress;
mod recreate;
mod revision;
mod rollback;
mod rolling;
mod rollout;
mod scale;
mod status;
mod template;

use controllers_kit::{
    Change, Controller, Descriptor, Failure, Flags, Key, Outcome, Plan, Query, Reader, Refusal,
    Sharding, Snapshot, Verb, Watches, owners,
};
use kubernetes_proto::{
    Object,
    apps::{Deployment, ReplicaSet},
    cast,
    core::Pod,
};
use serde::{Deserialize, Serialize};

/// The gate of counting terminating pods in the statuses of Deployments and ReplicaSets.
pub(crate) const TERMINATING_REPLICAS: &str = "DeploymentReplicaSetTerminatingReplicas";

/// The deployment controller.
pub struct Deployments {
    counts_terminating: bool,
}

/// What the controller remembers of one Deployment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// Why the new ReplicaSet could not be created.
    pub create_failure: Option<CreateFailure>,
    /// Templates whose encodings differ, with the verdict whether they are equal. At most one for each
    /// ReplicaSet.
    pub verdicts: Vec<Verdict>,
}

/// Why a ReplicaSet could not be created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateFailure {
    /// The ReplicaSet's name.
    pub name: String,
    /// The server's error.
    pub message: String,
}

/// Whether two templates, read live, are equal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The ReplicaSet's uid.
    pub set: String,
    /// A hash of both encodings.
    pub encodings: u64,
    /// Whether both describe the same template.
    pub equal: bool,
}

impl Controller for Deployments {
    type Memory = Memory;

    fn describe() -> Descriptor {
        Descriptor::new("deployment-controller", Sharding::ByObject)
            .aliases(&["deployment"])
            .queue("deployment")
            .workers(
                "concurrent-deployment-syncs",
                5,
                "The number of deployment objects that are allowed to sync concurrently. Larger number = more \
                 responsive deployments, but more CPU (and network) load",
            )
            .gate(TERMINATING_REPLICAS, true)
            .rule("apps", "deployments", &["get", "list", "watch", "patch"])
            .writes_status::<Deployment>()
            .blocks_owner_deletion::<Deployment>()
            .rule(
                "apps",
                "replicasets",
                &["get", "list", "watch", "create", "patch", "delete"],
            )
            .reads::<Pod>()
            .differences(include_str!("differences.md"))
    }

    fn new(flags: &Flags) -> Self {
        Self {
            counts_terminating: flags.bool(TERMINATING_REPLICAS),
        }
    }

    fn watch(&self, on: &mut Watches) {
        on.kind::<Deployment>().wakes_itself();
        on.kind::<ReplicaSet>()
            .wakes_controller::<Deployment>()
            .wakes(|change, reader| {
                owners::adopters::<Deployment, ReplicaSet>(change, reader, |deployment| {
                    deployment.spec.as_ref()?.selector.as_ref()
                })
            })
            .indexed_by(owners::ORPHANS, owners::orphan_in);
        on.kind::<Pod>().wakes(recreate_waiting_for);
    }

    fn ask(&self, key: &Key, seen: &Snapshot<'_>, memory: &Memory) -> Vec<Query> {
        plan::ask(key, seen, memory)
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, memory: &mut Memory) -> Result<Plan, Refusal> {
        plan::plan(self, key, seen, memory)
    }

    fn learn(&self, outcome: &Outcome<'_>, memory: &mut Memory) {
        let is_create = matches!(outcome.action.verb, Verb::Create { .. });
        if !is_create || outcome.action.resource != ReplicaSet::resource() {
            return;
        }
        match &outcome.result {
            // In a namespace that is terminating, nothing can be created and nothing is reported.
            Ok(_) | Err(Failure::NamespaceTerminating(_)) => memory.create_failure = None,
            Err(failure) if failure.is_inconclusive() => {}
            Err(failure) => {
                memory.create_failure = Some(CreateFailure {
                    name: outcome.action.key.name.to_string(),
                    message: failure.to_string(),
                });
            }
        }
    }
}

/// The Deployment of strategy Recreate whose pod is gone: it may wait for that to create new pods.
fn recreate_waiting_for(change: &Change<'_, Pod>, reader: &dyn Reader) -> Vec<Key> {
    if change.new.is_some() {
        return Vec::new();
    }
    let deployment = || {
        let pod = change.newest().metadata();
        let owner = pod
            .controller()
            .filter(|owner| owner.kind == "ReplicaSet")?;
        let set = reader
            .get(ReplicaSet::resource(), &pod.namespace, &owner.name)
            .and_then(cast::<ReplicaSet>)
            .filter(|set| set.metadata().uid == owner.uid)?;
        let owner = set
            .metadata()
            .controller()
            .filter(|owner| owner.kind == "Deployment")?;
        let deployment = reader
            .get(Deployment::resource(), &pod.namespace, &owner.name)
            .and_then(cast::<Deployment>)
            .filter(|deployment| deployment.metadata().uid == owner.uid)?;
        let strategy = deployment.spec.as_ref()?.strategy.as_ref()?;
        (strategy.r#type == context::RECREATE).then(|| Key::of(deployment.as_ref()))
    };
    deployment().into_iter().collect()
}

#[cfg(test)]
mod tests;
