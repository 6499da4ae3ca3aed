//! The status that a Deployment reports.

use kubernetes_proto::{Object, apps::DeploymentStatus};

use super::{
    context::{Rollout, Set, sum},
    progress::{new_condition, set_condition},
};

const AVAILABLE: &str = "Available";

impl Rollout {
    /// The status without an estimate of progress.
    pub fn counted_status(&self) -> DeploymentStatus {
        let sum = |count: fn(&Set) -> i32| sum(self.sets.iter().map(count));
        let available = self.available_replicas();
        let mut status = DeploymentStatus {
            observed_generation: self.deployment.metadata().generation,
            replicas: sum(|set| set.status().replicas),
            updated_replicas: self.new_set().map_or(0, |set| set.status().replicas),
            ready_replicas: sum(|set| set.status().ready_replicas),
            available_replicas: available,
            unavailable_replicas: self
                .total_replicas_before()
                .saturating_sub(available)
                .max(0),
            terminating_replicas: self
                .counts_terminating
                .then(|| self.terminating())
                .flatten(),
            collision_count: self.status.collision_count,
            conditions: self.status.conditions.clone(),
        };
        let condition = if available >= self.min_available() {
            new_condition(
                AVAILABLE,
                "True",
                "MinimumReplicasAvailable",
                "Deployment has minimum availability.",
                self.now,
            )
        } else {
            new_condition(
                AVAILABLE,
                "False",
                "MinimumReplicasUnavailable",
                "Deployment does not have minimum availability.",
                self.now,
            )
        };
        set_condition(&mut status.conditions, condition);
        status
    }

    /// Terminating pods; unknown while the status of a reconciled ReplicaSet lacks them (an older
    /// controller's).
    fn terminating(&self) -> Option<i32> {
        self.sets.iter().try_fold(0, |sum, set| {
            let status = set.status();
            match status.terminating_replicas {
                Some(count) => Some(count.saturating_add(sum)),
                None if status.observed_generation == 0 => Some(sum),
                None => None,
            }
        })
    }

    /// Whether all wanted pods are updated and available, and no old ones are left.
    pub fn is_complete(&self, status: Option<&DeploymentStatus>) -> bool {
        status.is_some_and(|status| {
            status.updated_replicas == self.replicas()
                && status.replicas == self.replicas()
                && status.available_replicas == self.replicas()
                && status.observed_generation >= self.deployment.metadata().generation
        })
    }
}
