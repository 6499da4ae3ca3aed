//! Scaling a Deployment, apart from rolling it out, and clearing away what its history limit does not keep.

use std::cmp::Ordering;

use super::{
    context::{Rollout, Set},
    revision::{self, DESIRED_REPLICAS, MAX_REPLICAS},
};
use kubernetes_proto::Object;

/// The older first, then by name.
fn by_age(one: &Set, other: &Set) -> Ordering {
    (one.created_at(), one.name()).cmp(&(other.created_at(), other.name()))
}

impl Rollout {
    /// Whether the Deployment asks for another number of replicas than its ReplicaSets were scaled for.
    pub fn is_scaling(&self) -> bool {
        self.sets
            .iter()
            .filter(|set| set.replicas() > 0)
            .filter_map(|set| revision::noted(set.wanted.metadata(), DESIRED_REPLICAS))
            .any(|desired| desired != self.replicas())
    }

    /// Scales. A single active ReplicaSet takes the whole change; several, during a rollout, share it in
    /// proportion to their sizes: otherwise scaling would hasten the rollout and spread a bad template
    /// wider.
    pub fn scale_all(&mut self) {
        if let Some(only) = self.active_or_latest() {
            self.scale(only, self.replicas(), false);
            return;
        }
        // A saturated new ReplicaSet leaves nothing to the old ones (adopted late, for example).
        if self.is_saturated() {
            for index in self.active_old() {
                self.scale(index, 0, false);
            }
            return;
        }
        if self.is_rolling_update() {
            self.scale_in_proportion();
        }
    }

    /// The only active ReplicaSet, or the newest where none is active; `None` if there are several.
    fn active_or_latest(&self) -> Option<usize> {
        let active: Vec<usize> = (0..self.sets.len())
            .filter(|index| self.sets[*index].replicas() > 0)
            .collect();
        match active[..] {
            [] => self.new.or_else(|| self.old().last()),
            [only] => Some(only),
            _ => None,
        }
    }

    /// Whether the new ReplicaSet has all the pods that the Deployment asks for, by size, by annotation and
    /// available.
    fn is_saturated(&self) -> bool {
        self.new_set().is_some_and(|set| {
            set.replicas() == self.replicas()
                && revision::noted(set.wanted.metadata(), DESIRED_REPLICAS) == Some(self.replicas())
                && set.status().available_replicas == self.replicas()
        })
    }

    fn scale_in_proportion(&mut self) {
        let mut active: Vec<usize> = (0..self.sets.len())
            .filter(|index| self.sets[*index].replicas() > 0)
            .collect();
        let allowed = if self.replicas() > 0 {
            self.max_replicas()
        } else {
            0
        };
        let to_add = allowed.saturating_sub(self.total_replicas());
        // Larger ones first. Of one size, the newer when scaling up, the older when scaling down.
        active.sort_by(|one, other| {
            let (one, other) = (&self.sets[*one], &self.sets[*other]);
            let by_age = match to_add.cmp(&0) {
                Ordering::Greater => by_age(other, one),
                Ordering::Less | Ordering::Equal => by_age(one, other),
            };
            other.replicas().cmp(&one.replicas()).then(by_age)
        });
        let mut added = 0_i32;
        let mut sizes = Vec::with_capacity(active.len());
        for index in &active {
            let proportion = self.proportion(&self.sets[*index], to_add, added);
            added = added.saturating_add(proportion);
            sizes.push(self.sets[*index].replicas().saturating_add(proportion));
        }
        // The rounding remainder goes to the largest.
        if let Some(largest) = sizes.first_mut() {
            *largest = largest.saturating_add(to_add).saturating_sub(added).max(0);
        }
        for (index, size) in active.into_iter().zip(sizes) {
            self.scale(index, size, true);
        }
    }

    /// The share of one ReplicaSet in the pods to add or (negative) remove, `added` of which are
    /// distributed already.
    fn proportion(&self, set: &Set, to_add: i32, added: i32) -> i32 {
        if set.replicas() == 0 || to_add == 0 || to_add == added {
            return 0;
        }
        let fraction = self.fraction(set);
        let allowed = to_add.saturating_sub(added);
        if to_add > 0 {
            fraction.min(allowed)
        } else {
            fraction.max(allowed)
        }
    }

    /// By how much one ReplicaSet grows when the whole does.
    fn fraction(&self, set: &Set) -> i32 {
        if self.replicas() == 0 {
            return 0_i32.saturating_sub(set.replicas());
        }
        let most_before = revision::noted(set.wanted.metadata(), MAX_REPLICAS)
            .filter(|most| *most != 0)
            // The annotation was removed: the present size is near enough.
            .unwrap_or(self.status.replicas);
        if most_before == 0 {
            return 0;
        }
        let size =
            f64::from(set.replicas()) * f64::from(self.max_replicas()) / f64::from(most_before);
        ((size + 0.5) as i32).saturating_sub(set.replicas())
    }

    /// Deletes old ReplicaSets beyond the history limit, the lowest revisions first; none that has or wants
    /// pods.
    pub fn clean_up(&mut self) {
        let Some(limit) = self
            .spec()
            .revision_history_limit
            .filter(|limit| *limit != i32::MAX)
        else {
            return;
        };
        let mut old: Vec<usize> = self
            .old()
            .filter(|index| !self.sets[*index].wanted.is_terminating())
            .collect();
        let keep = usize::try_from(limit).unwrap_or(0);
        let surplus = old.len().saturating_sub(keep);
        old.sort_by(|one, other| {
            let (one, other) = (&self.sets[*one], &self.sets[*other]);
            let by_revision = match (
                revision::of(one.wanted.metadata()),
                revision::of(other.wanted.metadata()),
            ) {
                (Some(one), Some(other)) => one.cmp(&other),
                // A set without a readable revision sorts lowest. A total order, whatever the annotations
                // say.
                (one, other) => one.is_some().cmp(&other.is_some()),
            };
            by_revision.then_with(|| by_age(one, other))
        });
        for index in old.into_iter().take(surplus) {
            let set = &mut self.sets[index];
            let is_observed = set.wanted.metadata().generation <= set.status().observed_generation;
            set.is_deleted = set.replicas() == 0 && set.status().replicas == 0 && is_observed;
        }
    }
}
