//! The strategy RollingUpdate: the new ReplicaSet grows and the old ones shrink, within surge and
//! unavailability.

use super::context::Rollout;

impl Rollout {
    /// Plans the next step of a rolling update. Growth comes first: new pods must become available before
    /// anything is scaled down.
    pub fn roll(&mut self) {
        if self.grow_new() || self.shrink_old() {
            return;
        }
        if self.is_complete(self.deployment.status.as_ref()) {
            self.clean_up();
        }
    }

    /// Whether the new ReplicaSet is scaled.
    pub fn grow_new(&mut self) -> bool {
        let Some(new) = self.new else {
            return false;
        };
        let (present, wanted) = (self.sets[new].replicas(), self.replicas());
        if present == wanted {
            return false;
        }
        let replicas = if present > wanted {
            wanted
        } else {
            self.replicas_of_new(new)
        };
        self.scale(new, replicas, false)
    }

    /// Whether old ReplicaSets are scaled down.
    pub fn shrink_old(&mut self) -> bool {
        let old = self.active_old();
        let Some(new) = self.new_set().filter(|_| !old.is_empty()) else {
            return false;
        };
        // Unavailable pods of the new ReplicaSet do not count: otherwise a template that never becomes
        // ready would replace the old pods step by step.
        let new_unavailable = new
            .replicas()
            .saturating_sub(new.status().available_replicas);
        let min_available = self.min_available();
        let most = self
            .total_replicas()
            .saturating_sub(min_available)
            .saturating_sub(new_unavailable);
        if most <= 0 {
            return false;
        }
        // Unhealthy ones first: they block the rollout, and deleting them makes nothing worse.
        let Some(unhealthy) = self.shrink_unhealthy(&old, most) else {
            return false;
        };
        let healthy = self.shrink_healthy(&old, min_available);
        unhealthy > 0 || healthy > 0
    }

    /// Scales down unavailable pods of old ReplicaSets, by at most `most`; returns their number. A
    /// ReplicaSet deletes its unhealthy pods first, so no available one is deleted. `None` where a
    /// ReplicaSet reports more available pods than it should have: its status lags behind, so available
    /// pods cannot be counted on.
    pub fn shrink_unhealthy(&mut self, old: &[usize], most: i32) -> Option<i32> {
        let mut total = 0;
        for index in old {
            if total >= most {
                break;
            }
            let set = &self.sets[*index];
            let (present, available) = (set.replicas(), set.status().available_replicas);
            if present == 0 || present == available {
                continue;
            }
            let count = (most - total).min(present.saturating_sub(available));
            if count < 0 {
                return None;
            }
            self.scale(*index, present - count, false);
            total += count;
        }
        Some(total)
    }

    /// Scales down old ReplicaSets by the pods that are available beyond the minimum; returns their number.
    pub fn shrink_healthy(&mut self, old: &[usize], min_available: i32) -> i32 {
        let surplus = self.available_replicas().saturating_sub(min_available);
        let mut total = 0;
        for index in old {
            if total >= surplus {
                break;
            }
            let present = self.sets[*index].replicas();
            let count = present.min(surplus - total);
            if count > 0 {
                self.scale(*index, present - count, false);
                total += count;
            }
        }
        total
    }
}
