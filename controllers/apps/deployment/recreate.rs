//! The strategy Recreate: no new pod before the last old one is gone.

use controllers_kit::{Snapshot, owners, pods};
use kubernetes_proto::{Object, core::Pod};

use super::{context::Rollout, create::New};

impl Rollout {
    /// Plans the next step of the strategy Recreate.
    pub fn recreate(&mut self, seen: &Snapshot<'_>) -> New {
        if self.scale_down_old() || self.old_pods_run(seen) {
            return New::Settled;
        }
        if self.create_new(seen) == New::Collides {
            return New::Collides;
        }
        if let Some(new) = self.new {
            self.scale(new, self.replicas(), false);
        }
        if self.is_complete(self.deployment.status.as_ref()) {
            self.clean_up();
        }
        New::Settled
    }

    /// Whether old ReplicaSets are scaled to nothing.
    pub fn scale_down_old(&mut self) -> bool {
        let old = self.active_old();
        for index in &old {
            self.scale(*index, 0, false);
        }
        !old.is_empty()
    }

    /// Whether an old ReplicaSet's status counts pods, or it has an unfinished pod, whatever its status
    /// says.
    pub fn old_pods_run(&self, seen: &Snapshot<'_>) -> bool {
        self.old().any(|index| {
            let set = &self.sets[index];
            set.status().replicas > 0
                || seen.owned_by::<Pod>(set.uid()).iter().any(|pod| {
                    owners::is_controlled_by(pod.metadata(), set.uid()) && !pods::has_finished(pod)
                })
        })
    }
}
