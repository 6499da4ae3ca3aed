//! Which pods are created and which go.

use std::sync::Arc;

use controllers_kit::{
    Event, Key, Only, Plan, Propagation, Query, Refusal, Snapshot, Timestamp,
    names::{Children, Known},
    owners::{self, Claimed},
    pods,
};
use kubernetes_proto::{Object, core::Pod};

use super::{
    AGE_RATIO, Attempt, Memory,
    context::{Gates, Replicator},
    status,
};

/// The most pods that one plan creates or deletes: more wait until the cache has seen these.
const BURST_REPLICAS: usize = 500;

/// The set and its active pods.
fn claimed<O: Replicator>(
    key: &Key,
    seen: &Snapshot<'_>,
) -> Result<Option<Claimed<O, Pod>>, Refusal> {
    let Some(set) = seen.get::<O>(key) else {
        return Ok(None);
    };
    let selector = set.selector().map_err(|error| {
        Refusal::Wait(format!(
            "error converting pod selector to selector for rs {key}: {error}"
        ))
    })?;
    let is_active = |_: &O, pod: &Pod| pods::is_active(pod);
    Ok(Some(Claimed::among(set, selector, seen, is_active)))
}

/// Before an adoption the set is read live.
pub(crate) fn ask<O: Replicator>(key: &Key, seen: &Snapshot<'_>) -> Vec<Query> {
    let claimed = claimed::<O>(key, seen).ok().flatten();
    Vec::from_iter(claimed.and_then(|claimed| claimed.ask()))
}

pub(crate) fn plan<O: Replicator>(
    gates: Gates,
    key: &Key,
    seen: &Snapshot<'_>,
    memory: &mut Memory,
) -> Result<Plan, Refusal> {
    let Some(claimed) = claimed::<O>(key, seen)? else {
        return Ok(Plan::nothing());
    };
    if let Some(settled) = claimed.settle(seen) {
        return settled;
    }
    let mut plan = Plan::nothing();
    memory.has_failed = false;
    match surplus(&claimed) {
        0 => memory.attempt = Attempt::Unknown,
        _ if claimed.owner.is_terminating() => {}
        missing @ ..=-1 => create_pods(&mut plan, &claimed, seen, missing.unsigned_abs()),
        surplus => {
            delete_pods(&mut plan, &claimed, gates, seen, surplus.unsigned_abs());
        }
    }
    status::report(
        &mut plan,
        claimed.owner.as_ref(),
        &claimed.claims.owned,
        gates
            .terminating_replicas
            .then(|| terminating_count(&claimed)),
        &memory.attempt,
        seen.now,
    );
    Ok(plan)
}

/// Pods too many; negative: too few.
fn surplus<O: Replicator>(claimed: &Claimed<O, Pod>) -> i64 {
    let wanted = claimed.owner.replicas();
    let active = i64::try_from(claimed.claims.owned.len()).unwrap_or(i64::MAX);
    active - i64::from(wanted)
}

fn burst(count: u64) -> usize {
    usize::try_from(count).map_or(BURST_REPLICAS, |count| count.min(BURST_REPLICAS))
}

/// Ordinals between the first names of two generations.
const NAMES_PER_GENERATION: u64 = 1009;

fn create_pods<O: Replicator>(
    plan: &mut Plan,
    claimed: &Claimed<O, Pod>,
    seen: &Snapshot<'_>,
    missing: u64,
) {
    let set = claimed.owner.as_ref();
    let meta = set.metadata();
    let children = Children::of(&meta.name, &meta.uid);
    let existing = claimed.children.iter().map(|pod| pod.metadata());
    let known = Known::of(seen.reader(), Pod::resource(), meta);
    claimed.count(plan);
    // A set that was scaled to zero and up again starts another generation: its pods get unused names.
    let first = u64::try_from(meta.generation)
        .unwrap_or_default()
        .wrapping_mul(NAMES_PER_GENERATION);
    let copied = pods::template_bytes(set.template());
    let count = pods::creations_at_once(burst(missing), copied);
    for name in children.next(first, existing, &known, count) {
        let pod = pods::from_template(
            set.template(),
            owners::reference(set),
            &children,
            &meta.namespace,
            &name,
        );
        pods::create(plan, &pod)
            .announce(Event::normal(
                set,
                "SuccessfulCreate",
                format!("Created pod: {name}"),
            ))
            .announce_failure(Event::warning(set, "FailedCreate", "Error creating: "))
            .reported_as(children.generate_name());
    }
}

fn delete_pods<O: Replicator>(
    plan: &mut Plan,
    claimed: &Claimed<O, Pod>,
    gates: Gates,
    seen: &Snapshot<'_>,
    surplus: u64,
) {
    let set = claimed.owner.as_ref();
    claimed.count(plan);
    let siblings = sibling_pods(set, seen);
    let going = pods::to_delete(
        &claimed.claims.owned,
        &siblings,
        burst(surplus),
        gates.deletion_cost,
        seen.now,
    );
    if O::resource().plural == "replicasets" && going.len() < claimed.claims.owned.len() {
        for ratio in age_ratios(&claimed.claims.owned, &going, seen.now) {
            plan.measure(AGE_RATIO, &[], ratio);
        }
    }
    for pod in going {
        plan.delete(pod.as_ref(), Only::ThisUid, Propagation::Background)
            .announce(Event::normal(
                set,
                "SuccessfulDelete",
                format!("Deleted pod: {}", pod.metadata().name),
            ))
            .announce_failure(Event::warning(set, "FailedDelete", "Error deleting: "));
    }
}

/// The age of each ready pod that is deleted, as a multiple of the age of the youngest ready one.
fn age_ratios(all: &[Arc<Pod>], going: &[Arc<Pod>], now: Timestamp) -> Vec<f64> {
    let age = |pod: &Arc<Pod>| {
        let since = pods::instant(pod.metadata().creation_timestamp)?;
        Some(now.duration_since(since).as_millis())
    };
    let ready = |pods: &[Arc<Pod>]| -> Vec<i128> {
        pods.iter()
            .filter(|pod| pods::is_ready(pod))
            .filter_map(age)
            .collect()
    };
    let Some(youngest) = ready(all).into_iter().min().filter(|age| *age > 0) else {
        return Vec::new();
    };
    ready(going)
        .into_iter()
        .map(|age| (age / youngest) as f64)
        .collect()
}

/// The pods of all sets with the same controller; none where the set has no controller.
fn sibling_pods<O: Replicator>(set: &O, seen: &Snapshot<'_>) -> Vec<Arc<Pod>> {
    let Some(controller) = set.metadata().controller() else {
        return Vec::new();
    };
    let orphans = seen.indexed::<Pod>(owners::ORPHANS, &set.metadata().namespace);
    let mut related = Vec::new();
    for sibling in seen.owned_by::<O>(&controller.uid) {
        let Ok(selector) = sibling.selector() else {
            continue;
        };
        related.extend(
            seen.owned_by::<Pod>(&sibling.metadata().uid)
                .into_iter()
                .chain(orphans.iter().cloned())
                .filter(|pod| selector.matches(&pod.metadata().labels)),
        );
    }
    related.sort_by(|one, other| one.metadata().name.cmp(&other.metadata().name));
    related.dedup_by(|one, other| one.metadata().name == other.metadata().name);
    related
}

fn terminating_count<O>(claimed: &Claimed<O, Pod>) -> usize {
    claimed
        .children
        .iter()
        .filter(|pod| pods::is_terminating(pod) && claimed.selector.matches(&pod.metadata().labels))
        .count()
}
