//! A Deployment and its ReplicaSets while a plan is being made: decisions change the working copies, and at
//! the end the differences are written.

use controllers_kit::{Event, Only, Plan, Propagation, StatusWrite, patch, status as statuses};
use kubernetes_proto::{
    Object,
    apps::{Deployment, DeploymentSpec, DeploymentStatus},
    meta::IntOrString,
};
use serde_json::{Map, Value};

use super::{
    context::{ROLLING_UPDATE, Rollout, Set, replicas, sum, without_template},
    progress, revision,
};

impl Rollout {
    pub fn spec(&self) -> &DeploymentSpec {
        static NONE: std::sync::OnceLock<DeploymentSpec> = std::sync::OnceLock::new();
        self.deployment
            .spec
            .as_ref()
            .unwrap_or_else(|| NONE.get_or_init(Default::default))
    }

    pub fn name(&self) -> &str {
        &self.deployment.metadata().name
    }

    /// The replicas in its spec; the server's default is 1.
    pub fn replicas(&self) -> i32 {
        self.spec().replicas.unwrap_or(1)
    }

    pub fn strategy(&self) -> &str {
        self.spec()
            .strategy
            .as_ref()
            .map_or("", |strategy| &strategy.r#type)
    }

    pub fn is_rolling_update(&self) -> bool {
        self.strategy() == ROLLING_UPDATE
    }

    /// Surge and unavailability as numbers. Where rounding makes both zero, one pod may be unavailable,
    /// since a surge might fail for want of quota.
    fn fenceposts(&self) -> (i32, i32) {
        let rolling = self
            .spec()
            .strategy
            .as_ref()
            .and_then(|strategy| strategy.rolling_update.as_ref());
        let scaled = |value: Option<&IntOrString>, round_up| {
            value.map_or(Ok(0), |value| value.scaled(self.replicas(), round_up))
        };
        let surge = scaled(rolling.and_then(|one| one.max_surge.as_ref()), true);
        let unavailable = scaled(rolling.and_then(|one| one.max_unavailable.as_ref()), false);
        match (surge, unavailable) {
            (Ok(0), Ok(0)) => (0, 1),
            (Ok(surge), Ok(unavailable)) => (surge, unavailable),
            // The server lets no such text through.
            _ => (0, 0),
        }
    }

    /// How many pods there may be beyond the wanted.
    pub fn max_surge(&self) -> i32 {
        if self.is_rolling_update() {
            self.fenceposts().0
        } else {
            0
        }
    }

    /// How many of the wanted pods may be unavailable.
    pub fn max_unavailable(&self) -> i32 {
        if self.is_rolling_update() && self.replicas() != 0 {
            self.fenceposts().1.min(self.replicas())
        } else {
            0
        }
    }

    /// How many pods must be available.
    pub fn min_available(&self) -> i32 {
        self.replicas().saturating_sub(self.max_unavailable())
    }

    /// How many pods there may be at most.
    pub fn max_replicas(&self) -> i32 {
        self.replicas().saturating_add(self.max_surge())
    }

    /// A deadline of `i32::MAX` means none.
    pub fn progress_deadline_seconds(&self) -> Option<i32> {
        self.spec()
            .progress_deadline_seconds
            .filter(|seconds| *seconds != i32::MAX)
    }

    pub fn new_set(&self) -> Option<&Set> {
        self.new.map(|index| &self.sets[index])
    }

    /// All but the new one, the oldest first.
    pub fn old(&self) -> impl Iterator<Item = usize> {
        (0..self.sets.len()).filter(move |index| Some(*index) != self.new)
    }

    /// Those of the old ones that should have pods.
    pub fn active_old(&self) -> Vec<usize> {
        self.old()
            .filter(|index| self.sets[*index].replicas() > 0)
            .collect()
    }

    /// Pods that all ReplicaSets ask for.
    pub fn total_replicas(&self) -> i32 {
        sum(self.sets.iter().map(Set::replicas))
    }

    /// Pods that all ReplicaSets asked for before this plan scaled them; a new one counts with its initial
    /// size.
    pub fn total_replicas_before(&self) -> i32 {
        let before = |set: &Set| set.seen.as_deref().map_or(set.replicas(), replicas);
        sum(self.sets.iter().map(before))
    }

    /// Pods that are available in all ReplicaSets.
    pub fn available_replicas(&self) -> i32 {
        sum(self.sets.iter().map(|set| set.status().available_replicas))
    }

    /// Scales a ReplicaSet; whether its size changes. Without a change nothing is written, unless `force`
    /// is set: then its annotations are brought up to date.
    pub fn scale(&mut self, index: usize, replicas: i32, force: bool) -> bool {
        let (wanted, most) = (self.replicas(), self.max_replicas());
        let set = &mut self.sets[index];
        let is_scaled = set.replicas() != replicas;
        if is_scaled || force {
            set.set_replicas(replicas);
            revision::annotate_replicas(set.wanted.metadata_mut(), wanted, most);
        }
        is_scaled
    }

    /// Plans the writes: ReplicaSets first, then the Deployment's status.
    pub fn write(&self, plan: &mut Plan, status: &DeploymentStatus) {
        self.write_sets(plan);
        plan.then();
        self.write_status(plan, status);
    }

    /// Whether a ReplicaSet is to be written.
    pub fn changes_sets(&self) -> bool {
        let mut plan = Plan::nothing();
        self.write_sets(&mut plan);
        !plan.is_nothing()
    }

    fn write_sets(&self, plan: &mut Plan) {
        let deployment = self.deployment.as_ref();
        // The new one first: events then report growth before shrinking.
        let new_first = self.new.into_iter().chain(self.old());
        for set in new_first.map(|index| &self.sets[index]) {
            match &set.seen {
                None => {
                    let name = set.name();
                    let action = plan.create(&set.wanted);
                    if set.replicas() > 0 {
                        action.announce(scaled(deployment, name, 0, set.replicas()));
                    }
                    action.announce_failure(Event::warning(
                        deployment,
                        "ReplicaSetCreateError",
                        format!("Failed to create new replica set {name:?}: "),
                    ));
                }
                // It was seen empty in this very version.
                Some(seen) if set.is_deleted => {
                    plan.delete(seen.as_ref(), Only::ThisVersion, Propagation::Background);
                }
                Some(seen) => {
                    let before = without_template(seen);
                    if before == set.wanted {
                        continue;
                    }
                    let (from, to) = (replicas(&before), set.replicas());
                    if let Some(action) = plan.update(&before, &set.wanted)
                        && from != to
                    {
                        action.announce(scaled(deployment, set.name(), from, to));
                    }
                }
            }
        }
    }

    /// The revision goes with the status: the server takes annotations there too, without counting a new
    /// generation.
    pub fn write_status(&self, plan: &mut Plan, status: &DeploymentStatus) {
        let json = |status: &DeploymentStatus| {
            serde_json::to_value(status).expect("a status has only string keys and numbers")
        };
        let before = self.deployment.status.clone().unwrap_or_default();
        let mut change = Map::new();
        let mut report = StatusWrite::Observed;
        if before != *status {
            let (before, after) = (json(&before), json(status));
            report = statuses::report(self.deployment.as_ref(), &before, &after);
            if let Some(difference) = patch::merge_patch(&before, &after) {
                change.insert("status".to_owned(), difference);
            }
        }
        // The reported progress decides the next report: with one left out, a rollout that ends at once
        // would be taken for the previous one. Other reports may be replaced by newer ones.
        let progressing = |status: &DeploymentStatus| {
            let condition = progress::condition(status, progress::PROGRESSING);
            condition.map(|condition| (condition.status.clone(), condition.reason.clone()))
        };
        // Whether pods are still being created, becoming available or being deleted.
        let counts = [
            status.replicas,
            status.updated_replicas,
            status.available_replicas,
        ];
        let is_underway = counts.iter().any(|count| *count != self.replicas());
        if self.revision.is_some() || progressing(&before) != progressing(status) {
            report = StatusWrite::No;
        } else if is_underway && report == StatusWrite::Observed {
            report = StatusWrite::Progress;
        }
        if let Some(revision) = &self.revision {
            let annotations = serde_json::json!({"annotations": {revision::REVISION: revision}});
            change.insert("metadata".to_owned(), annotations);
        }
        if !change.is_empty() {
            plan.patch(
                self.deployment.as_ref(),
                "status",
                controllers_kit::PatchKind::Merge,
                Value::Object(change),
                report,
            );
        }
    }
}

fn scaled(deployment: &Deployment, set: &str, from: i32, to: i32) -> Event {
    let direction = if from < to { "up" } else { "down" };
    Event::normal(
        deployment,
        "ScalingReplicaSet",
        format!("Scaled {direction} replica set {set} from {from} to {to}"),
    )
}
