//! Which pods are created and which go.

use std::sync::Arc;

use controllers_kit::{
    Event, Key, Only, Plan, Propagation, Query, Refusal, Seen, Timestamp,
    names::{Children, Known},
    owners::{self, Claims},
    pods,
    selectors::{self, Selector},
};
use kubernetes_proto::{
    Object,
    apps::{ReplicaSet, ReplicaSetStatus},
    core::{Pod, PodTemplateSpec},
};

use super::{AGE_RATIO, Attempt, Memory, status};

/// Pods that one plan creates or deletes at most: more wait until the cache has seen these.
const BURST_REPLICAS: usize = 500;

/// What keeps a number of pods of one template alive.
pub(crate) trait Replicator: Object {
    /// How many pods it asks for.
    fn replicas(&self) -> i32;
    /// For how long a pod must have been ready to be available.
    fn min_ready_seconds(&self) -> i32;
    /// Which pods it selects.
    fn selector(&self) -> Result<Selector, selectors::Error>;
    /// What its pods are made from.
    fn template(&self) -> Option<&PodTemplateSpec>;
    /// Its status, as a ReplicaSet's.
    fn status(&self) -> ReplicaSetStatus;
    /// Itself with another status and without a spec: for patches of the status.
    fn reporting(&self, status: ReplicaSetStatus) -> Self;
}

impl Replicator for ReplicaSet {
    fn replicas(&self) -> i32 {
        // The server puts in 1 where nothing was said.
        self.spec
            .as_ref()
            .and_then(|spec| spec.replicas)
            .unwrap_or(1)
    }
    fn min_ready_seconds(&self) -> i32 {
        self.spec.as_ref().map_or(0, |spec| spec.min_ready_seconds)
    }
    fn selector(&self) -> Result<Selector, selectors::Error> {
        Selector::compile(self.spec.as_ref().and_then(|spec| spec.selector.as_ref()))
    }
    fn template(&self) -> Option<&PodTemplateSpec> {
        self.spec.as_ref()?.template.as_ref()
    }
    fn status(&self) -> ReplicaSetStatus {
        self.status.clone().unwrap_or_default()
    }
    fn reporting(&self, status: ReplicaSetStatus) -> Self {
        Self {
            metadata: self.metadata.clone(),
            spec: None,
            status: Some(status),
        }
    }
}

/// A set and the pods that it may have a say in.
struct View<O> {
    set: Arc<O>,
    selector: Selector,
    /// All that it owns, in whatever state.
    children: Vec<Arc<Pod>>,
    /// What is to be done about those that are alive, and about orphans.
    claims: Claims<Pod>,
}

fn view<O: Replicator>(key: &Key, seen: &Seen<'_>) -> Result<Option<View<O>>, Refusal> {
    let Some(set) = seen.get::<O>(key) else {
        return Ok(None);
    };
    let selector = set.selector().map_err(|error| {
        Refusal::Wait(format!(
            "error converting pod selector to selector for rs {key}: {error}"
        ))
    })?;
    let children = seen.owned_by::<Pod>(&set.metadata().uid);
    let orphans = seen.indexed::<Pod>(owners::ORPHANS, &key.namespace);
    let alive = children
        .iter()
        .cloned()
        .chain(orphans)
        .filter(|pod| pods::is_active(pod));
    let claims = owners::claim(set.as_ref(), &selector, alive);
    Ok(Some(View {
        set,
        selector,
        children,
        claims,
    }))
}

/// Before an adoption the set is read live.
pub(crate) fn ask<O: Replicator>(key: &Key, seen: &Seen<'_>) -> Vec<Query> {
    match view::<O>(key, seen) {
        Ok(Some(view)) if !view.claims.adopt.is_empty() => {
            vec![owners::recheck(view.set.as_ref())]
        }
        _ => Vec::new(),
    }
}

/// Which feature gates are on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gates {
    /// Whether the status says how many pods terminate.
    pub terminating_replicas: bool,
    /// Whether pods say by an annotation how dear their deletion is.
    pub deletion_cost: bool,
}

pub(crate) fn plan<O: Replicator>(
    gates: Gates,
    key: &Key,
    seen: &Seen<'_>,
    memory: &mut Memory,
) -> Result<Plan, Refusal> {
    let Some(view) = view::<O>(key, seen)? else {
        return Ok(Plan::nothing());
    };
    if view.claims.are_unsettled() {
        return owners::settle(view.set.as_ref(), &view.claims, seen);
    }
    let mut plan = Plan::nothing();
    memory.has_failed = false;
    match surplus(&view) {
        0 => memory.attempt = Attempt::Unknown,
        _ if view.set.is_terminating() => {}
        missing @ ..=-1 => create_pods(&mut plan, &view, seen, missing.unsigned_abs()),
        surplus => {
            delete_pods(&mut plan, &view, gates, seen, surplus.unsigned_abs());
        }
    }
    status::report(
        &mut plan,
        view.set.as_ref(),
        &view.claims.owned,
        gates.terminating_replicas.then(|| terminating_count(&view)),
        &memory.attempt,
        seen.now,
    );
    Ok(plan)
}

/// Pods too many; negative: too few.
fn surplus<O: Replicator>(view: &View<O>) -> i64 {
    let wanted = view.set.replicas();
    let active = i64::try_from(view.claims.owned.len()).unwrap_or(i64::MAX);
    active - i64::from(wanted)
}

fn burst(count: u64) -> usize {
    usize::try_from(count).map_or(BURST_REPLICAS, |count| count.min(BURST_REPLICAS))
}

/// Ordinals between the first names of two generations.
const NAMES_PER_GENERATION: u64 = 1009;

fn create_pods<O: Replicator>(plan: &mut Plan, view: &View<O>, seen: &Seen<'_>, missing: u64) {
    let set = view.set.as_ref();
    let meta = set.metadata();
    let children = Children::of(&meta.name, &meta.uid);
    let existing = view.children.iter().map(|pod| pod.metadata());
    let known = Known::of(seen.reader(), Pod::resource(), meta);
    count(plan, view);
    // A set that was scaled to nothing and up again is another generation: its pods get names that were not
    // in use.
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
            .told_as(children.generate_name());
    }
}

fn delete_pods<O: Replicator>(
    plan: &mut Plan,
    view: &View<O>,
    gates: Gates,
    seen: &Seen<'_>,
    surplus: u64,
) {
    let set = view.set.as_ref();
    count(plan, view);
    let siblings = sibling_pods(set, seen);
    let going = pods::to_delete(
        &view.claims.owned,
        &siblings,
        burst(surplus),
        gates.deletion_cost,
        seen.now,
    );
    if O::resource().plural == "replicasets" && going.len() < view.claims.owned.len() {
        for ratio in age_ratios(&view.claims.owned, &going, seen.now) {
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

/// The age of each ready pod that goes, in whole times the age of the youngest that is ready.
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

fn count<O: Replicator>(plan: &mut Plan, view: &View<O>) {
    plan.counted::<Pod>(&view.set.metadata().namespace, &view.selector);
}

/// The pods of all sets with the same controller; none where the set has no controller.
fn sibling_pods<O: Replicator>(set: &O, seen: &Seen<'_>) -> Vec<Arc<Pod>> {
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

fn terminating_count<O>(view: &View<O>) -> usize {
    view.children
        .iter()
        .filter(|pod| pods::is_terminating(pod) && view.selector.matches(&pod.metadata().labels))
        .count()
}
