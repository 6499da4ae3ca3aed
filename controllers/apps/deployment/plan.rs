//! What a Deployment needs next.

use std::sync::Arc;

use controllers_kit::{
    Event, Key, Plan, Query, Refusal, Snapshot,
    owners::Claimed,
    pods,
    selectors::{self, Selector},
};
use kubernetes_proto::{
    Object,
    apps::{Deployment, DeploymentStatus, ReplicaSet},
};

use super::{
    Deployments, Memory,
    context::{RECREATE, ROLLING_UPDATE, Rollout, Set},
    create::New,
    rollback, template,
};

type Sets = Claimed<Deployment, ReplicaSet>;

/// A Deployment's own ReplicaSets, the oldest first.
fn by_age(claimed: &Sets) -> Vec<Arc<ReplicaSet>> {
    let mut sets = claimed.claims.owned.clone();
    sets.sort_by_cached_key(|set| {
        let meta = set.metadata();
        (pods::instant(meta.creation_timestamp), meta.name.clone())
    });
    sets
}

fn claimed(key: &Key, seen: &Snapshot<'_>) -> Result<Option<Sets>, Refusal> {
    let Some(deployment) = seen.get::<Deployment>(key) else {
        return Ok(None);
    };
    let spec = deployment.spec.as_ref();
    let selector =
        Selector::compile(spec.and_then(|spec| spec.selector.as_ref())).map_err(|error| {
            Refusal::Wait(format!(
                "deployment {key} has invalid label selector: {error}"
            ))
        })?;
    Ok(Some(Claimed::of(deployment, selector, seen)))
}

/// An empty selector would select everything in the namespace.
fn selects_all(deployment: &Deployment) -> bool {
    let spec = deployment.spec.as_ref();
    selectors::selects_all(spec.and_then(|spec| spec.selector.as_ref()))
}

pub(super) fn ask(key: &Key, seen: &Snapshot<'_>, memory: &Memory) -> Vec<Query> {
    let Ok(Some(claimed)) = claimed(key, seen) else {
        return Vec::new();
    };
    let deployment = &claimed.owner;
    if selects_all(deployment) {
        return Vec::new();
    }
    if claimed.claims.are_unsettled() {
        return Vec::from_iter(claimed.ask());
    }
    let sets = by_age(&claimed);
    let mut queries = template::ask(deployment, &sets, memory);
    if !deployment.is_terminating() {
        queries.extend(rollback::ask(deployment, &sets, memory));
    }
    queries.sort_unstable();
    queries.dedup();
    queries
}

pub(super) fn plan(
    of: &Deployments,
    key: &Key,
    seen: &Snapshot<'_>,
    memory: &mut Memory,
) -> Result<Plan, Refusal> {
    let Some(claimed) = claimed(key, seen)? else {
        return Ok(Plan::nothing());
    };
    let deployment = &claimed.owner;
    if selects_all(deployment) {
        return Ok(refuse_to_select_all(deployment));
    }
    if let Some(settled) = claimed.settle(seen) {
        return settled;
    }
    let mut rollout = rollout(of, &claimed, seen, memory)?;
    let mut plan = Plan::nothing();

    if deployment.is_terminating() {
        rollout.sync_revision();
        let status = rollout.counted_status();
        rollout.write(&mut plan, &status);
        return Ok(plan);
    }
    rollout.note_pause();
    if rollout.spec().paused {
        return Ok(scaled(rollout, plan, &claimed.selector));
    }
    // A rollback is not begun twice, and nothing else is begun before it is complete.
    if let Some(revision) = rollback::wanted(deployment) {
        return rolled_back(rollout, revision, seen, memory, plan, &claimed.selector);
    }
    rollout.sync_revision();
    if rollout.is_scaling() {
        return Ok(scaled(rollout, plan, &claimed.selector));
    }
    let new = match rollout.strategy() {
        RECREATE => rollout.recreate(seen),
        ROLLING_UPDATE => match rollout.create_new(seen) {
            New::Settled => {
                rollout.roll();
                New::Settled
            }
            New::Collides => New::Collides,
        },
        other => {
            return Err(Refusal::Wait(format!(
                "unexpected deployment strategy type: {other}"
            )));
        }
    };
    Ok(finished(&rollout, new, memory, plan, &claimed.selector))
}

fn refuse_to_select_all(deployment: &Arc<Deployment>) -> Plan {
    let mut plan = Plan::nothing();
    let generation = deployment.metadata().generation;
    let before = deployment.status.clone().unwrap_or_default();
    if before.observed_generation < generation {
        plan.event(Event::warning(
            deployment.as_ref(),
            "SelectingAll",
            "This deployment is selecting all pods. A non-empty selector is required.",
        ));
        let part = |observed_generation| Deployment {
            metadata: deployment.metadata.clone(),
            spec: None,
            status: Some(DeploymentStatus {
                observed_generation,
                ..before.clone()
            }),
        };
        plan.update_status(&part(before.observed_generation), &part(generation));
    }
    plan
}

fn rollout(
    of: &Deployments,
    claimed: &Sets,
    seen: &Snapshot<'_>,
    memory: &mut Memory,
) -> Result<Rollout, Refusal> {
    let deployment = &claimed.owner;
    let sets = by_age(claimed);
    let new = template::find_new(deployment, &sets, seen, memory)?;
    Ok(Rollout {
        deployment: Arc::clone(deployment),
        status: deployment.status.clone().unwrap_or_default(),
        revision: None,
        sets: sets.iter().map(Set::seen).collect(),
        new,
        now: seen.now,
        counts_terminating: of.counts_terminating,
    })
}

/// Scaled or paused: no rollout, no estimate of progress.
fn scaled(mut rollout: Rollout, mut plan: Plan, selector: &Selector) -> Plan {
    rollout.sync_revision();
    rollout.scale_all();
    if rollout.spec().paused && rollback::wanted(&rollout.deployment).is_none() {
        rollout.clean_up();
    }
    let status = rollout.counted_status();
    rollout.write(&mut plan, &status);
    count(&rollout, &mut plan, selector);
    plan
}

/// The present template gets its ReplicaSet first, so that it stays in the history; then the Deployment is
/// written.
fn rolled_back(
    mut rollout: Rollout,
    revision: i64,
    seen: &Snapshot<'_>,
    memory: &mut Memory,
    mut plan: Plan,
    selector: &Selector,
) -> Result<Plan, Refusal> {
    rollout.sync_revision();
    let new = rollout.create_new(seen);
    if new == New::Collides || rollout.changes_sets() {
        return Ok(finished(&rollout, new, memory, plan, selector));
    }
    rollout.roll_back(&mut plan, revision, seen, memory)?;
    Ok(plan)
}

/// Writes a step of a rollout.
fn finished(
    rollout: &Rollout,
    new: New,
    memory: &Memory,
    mut plan: Plan,
    selector: &Selector,
) -> Plan {
    if new == New::Collides {
        rollout.write_status(&mut plan, &rollout.status);
        return plan;
    }
    // A failed creation is reported before it is retried.
    if let Some(created) = rollout.new_set().filter(|set| set.seen.is_none())
        && let Some(failure) = &memory.create_failure
        && failure.name == created.name()
        && let Some(status) = rollout.status_of_failed_create(&failure.name, &failure.message)
    {
        let before = Rollout {
            deployment: Arc::clone(&rollout.deployment),
            status: rollout.status.clone(),
            revision: None,
            sets: Vec::new(),
            new: None,
            now: rollout.now,
            counts_terminating: rollout.counts_terminating,
        };
        before.write_status(&mut plan, &status);
        plan.requeue_now();
        return plan;
    }
    let status = rollout.rollout_status();
    rollout.requeue_at_deadline(&mut plan, &status);
    rollout.write(&mut plan, &status);
    count(rollout, &mut plan, selector);
    plan
}

/// Creations and deletions of ReplicaSets rest on their number.
fn count(rollout: &Rollout, plan: &mut Plan, selector: &Selector) {
    let rests_on_count = rollout
        .sets
        .iter()
        .any(|set| set.seen.is_none() || set.is_deleted);
    if rests_on_count {
        plan.counted::<ReplicaSet>(&rollout.deployment.metadata().namespace, selector);
    }
}
