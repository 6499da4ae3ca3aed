//! Says how many pods of a PodDisruptionBudget may be evicted now.
//!
//! Watches poddisruptionbudgets, pods, and the workloads that say how many pods are expected; asks any
//! other owner for its scale. Writes the budget's status, from which the eviction API takes its answer, and
//! resets a pod's condition DisruptionTarget when two minutes have passed and it still exists. A key per
//! budget; a pod with such a condition has the key of its own name. Remembers which events it has recorded,
//! so that each is recorded once while its reason lasts; pods that were evicted and are not gone yet are
//! kept in the status.
//!
//! Where the count can't be made, nothing may be evicted: the status says so, with the reason.

use controllers_kit::{
    Change, Controller, Descriptor, Flags, Key, Object, Plan, Query, Reader, Refusal, Said,
    Sharding, SignedDuration, Snapshot, Watches, cast, pods, selectors::Selector,
};
use kubernetes_proto::{
    apps::{Deployment, ReplicaSet, StatefulSet},
    core::{Pod, ReplicationController},
    policy::PodDisruptionBudget,
};

mod expected;
mod plan;
mod stale;

/// How long after its eviction was granted a pod's deletion may take to be seen.
const DELETION_TIMEOUT: SignedDuration = SignedDuration::from_mins(2);

/// The disruption controller.
pub struct Disruptions;

impl Controller for Disruptions {
    type Memory = Said;

    fn describe() -> Descriptor {
        Descriptor::new("disruption-controller", Sharding::ByObject)
            .aliases(&["disruption"])
            .event_source("controllermanager")
            .queue("disruption")
            // Upstream has a worker for budgets, one for rechecks and one for pods.
            .workers_fixed(3)
            .reads_live::<PodDisruptionBudget>()
            .writes_status::<PodDisruptionBudget>()
            .reads::<Pod>()
            .writes_status::<Pod>()
            .reads::<ReplicationController>()
            .reads::<Deployment>()
            .reads::<ReplicaSet>()
            .reads::<StatefulSet>()
            .rule("*", "*/scale", &["get"])
            .differences(include_str!("differences.md"))
    }

    fn new(_: &Flags) -> Self {
        Self
    }

    fn watch(&self, on: &mut Watches) {
        on.catalogue();
        on.kind::<PodDisruptionBudget>().wakes_itself();
        on.kind::<Pod>()
            .wakes(budgets_of)
            .wakes(stale::itself)
            .indexed_by_labels(pods::LABELED, pods::labels_of);
        on.kind::<Deployment>().wakes(|change, reader| {
            resized(change, reader, |one| {
                one.spec.as_ref().map(|spec| spec.replicas)
            })
        });
        on.kind::<ReplicaSet>().wakes(|change, reader| {
            resized(change, reader, |one| {
                one.spec.as_ref().map(|spec| spec.replicas)
            })
        });
        on.kind::<StatefulSet>().wakes(|change, reader| {
            resized(change, reader, |one| {
                one.spec.as_ref().map(|spec| spec.replicas)
            })
        });
        on.kind::<ReplicationController>().wakes(|change, reader| {
            resized(change, reader, |one| {
                one.spec.as_ref().map(|spec| spec.replicas)
            })
        });
    }

    fn ask(&self, key: &Key, seen: &Snapshot<'_>, _: &Said) -> Vec<Query> {
        expected::ask(key, seen)
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, said: &mut Said) -> Result<Plan, Refusal> {
        let mut plan = plan::budget(key, seen, said)?;
        stale::reset(key, seen, &mut plan);
        Ok(plan)
    }
}

fn budgets(namespace: &str, reader: &dyn Reader) -> Vec<std::sync::Arc<PodDisruptionBudget>> {
    reader
        .list(PodDisruptionBudget::resource(), Some(namespace))
        .into_iter()
        .filter_map(cast)
        .collect()
}

/// A budget's selector; one that can't be read selects nothing.
fn selector(budget: &PodDisruptionBudget) -> Result<Selector, String> {
    let spec = budget.spec.as_ref();
    Selector::compile(spec.and_then(|spec| spec.selector.as_ref()))
        .map_err(|error| error.to_string())
}

/// All budgets that select a pod, or did before its labels changed.
fn budgets_of(change: &Change<'_, Pod>, reader: &dyn Reader) -> Vec<Key> {
    budgets(&Object::metadata(change.newest()).namespace, reader)
        .into_iter()
        .filter(|budget| {
            selector(budget).is_ok_and(|selector| {
                change
                    .both()
                    .any(|pod| selector.matches(&Object::metadata(pod).labels))
            })
        })
        .map(|budget| Key::of(&*budget))
        .collect()
}

/// The namespace's budgets, where a workload's wanted size has changed.
fn resized<T: Object, S: PartialEq>(
    change: &Change<'_, T>,
    reader: &dyn Reader,
    size: fn(&T) -> S,
) -> Vec<Key> {
    let (Some(old), Some(new)) = (change.old, change.new) else {
        return Vec::new();
    };
    if size(old) == size(new) {
        return Vec::new();
    }
    budgets(&new.metadata().namespace, reader)
        .iter()
        .map(|budget| Key::of(&**budget))
        .collect()
}

#[cfg(test)]
mod tests;
