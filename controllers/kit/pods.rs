//! Pods: which are alive, ready, available; which go first; how one is made from a template.

use std::{cmp::Ordering, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use kubernetes_proto::{
    Object, Shared, Str,
    core::{Pod, PodCondition, PodFromTemplate, PodTemplateSpec},
    meta::{OwnerReference, Time},
};

use crate::{Action, Key, Plan, Snapshot, Verb, conditions, names::Children, selectors::Selector};

/// What a pod costs to be deleted, relative to its siblings.
pub const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// The index of pods by one of their labels: see [`selected`].
pub const LABELED: &str = "labeled";

/// Labels that only one pod or one revision has: no selector names them alone, so they are not indexed.
const UNSHARED_LABELS: [&str; 7] = [
    "pod-template-hash",
    "controller-revision-hash",
    "statefulset.kubernetes.io/pod-name",
    "apps.kubernetes.io/pod-index",
    "batch.kubernetes.io/job-completion-index",
    "batch.kubernetes.io/controller-uid",
    "controller-uid",
];

/// The values of [`LABELED`], for a kind's `indexed_by_labels`.
pub fn labels_of(pod: &Pod) -> Vec<Str> {
    let meta = pod.metadata();
    meta.labels
        .iter()
        .filter(|label| !UNSHARED_LABELS.contains(&label.key.as_str()))
        .map(|label| labeled(&meta.namespace, &label.key, &label.value))
        .collect()
}

fn labeled(namespace: &str, key: &str, value: &str) -> Str {
    Str::interned(&format!("{namespace}/{key}={value}"))
}

/// The pods of a namespace that a selector selects, in order of names. The caller must have declared
/// [`LABELED`], by which a selector that names a label finds its pods without reading all others.
pub fn selected(seen: &Snapshot<'_>, namespace: &str, selector: &Selector) -> Vec<Arc<Pod>> {
    let mut pods = match selector
        .labels()
        .find(|(key, _)| !UNSHARED_LABELS.contains(key))
    {
        Some((key, value)) => seen.indexed::<Pod>(LABELED, &labeled(namespace, key, value)),
        None => seen.list::<Pod>(namespace),
    };
    pods.retain(|pod| selector.matches(&pod.metadata().labels));
    pods
}

/// Neither finished nor being deleted.
pub fn is_active(pod: &Pod) -> bool {
    !has_finished(pod) && !pod.is_terminating()
}

/// Whether it is being deleted and has not finished.
pub fn is_terminating(pod: &Pod) -> bool {
    !has_finished(pod) && pod.is_terminating()
}

/// Whether all its containers have ended and none will start again.
pub fn has_finished(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().map_or("", |status| &status.phase)
}

/// The node it is assigned to; empty before that.
pub fn node_name(pod: &Pod) -> &str {
    pod.spec.as_ref().map_or("", |spec| &spec.node_name)
}

fn ready_condition(pod: &Pod) -> Option<&PodCondition> {
    let conditions = &pod.status.as_ref()?.conditions;
    let ready = conditions::find(conditions, "Ready")?;
    (ready.status == "True").then_some(ready)
}

/// Whether its condition Ready is true.
pub fn is_ready(pod: &Pod) -> bool {
    ready_condition(pod).is_some()
}

/// An instant that is set: the API treats the epoch as unset.
pub fn instant(time: Option<Time>) -> Option<Timestamp> {
    time.filter(|time| *time != Time::default())
        .map(Time::timestamp)
}

/// An instant and a duration after it, saturating at the last instant. Times and durations in objects are
/// arbitrary user input.
pub fn after(at: Timestamp, wait: SignedDuration) -> Timestamp {
    at.checked_add(wait).unwrap_or(Timestamp::MAX)
}

/// When it became ready; `None` where it is not.
pub fn ready_since(pod: &Pod) -> Option<Timestamp> {
    instant(ready_condition(pod)?.last_transition_time)
}

/// Whether it has been ready for `minReadySeconds`.
pub fn is_available(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> bool {
    is_ready(pod)
        && (min_ready_seconds == 0
            || ready_since(pod)
                .is_some_and(|since| after(since, seconds(min_ready_seconds)) <= now))
}

/// When a ready pod becomes available; `None` if it is available already or not ready.
pub fn available_at(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> Option<Timestamp> {
    if min_ready_seconds <= 0 {
        return None;
    }
    let at = after(ready_since(pod)?, seconds(min_ready_seconds));
    (at > now).then_some(at)
}

/// When the next of some pods becomes available by time alone, without a change of any object; `None` where
/// none of them waits for that.
pub fn next_available<'a>(
    pods: impl IntoIterator<Item = &'a Arc<Pod>>,
    min_ready_seconds: i32,
    now: Timestamp,
) -> Option<Timestamp> {
    let waiting = pods.into_iter();
    waiting
        .filter_map(|pod| available_at(pod, min_ready_seconds, now))
        .min()
}

fn seconds(count: i32) -> SignedDuration {
    SignedDuration::from_secs(count.into())
}

/// The deletion cost in its annotation; 0 without a valid one.
pub fn deletion_cost(pod: &Pod) -> i32 {
    let Some(text) = pod.metadata().annotation(DELETION_COST) else {
        return 0;
    };
    // The API takes neither a plus sign nor leading zeros.
    let valid = text == "0" || matches!(text.as_bytes().first(), Some(b'-' | b'1'..=b'9'));
    if valid { text.parse().unwrap_or(0) } else { 0 }
}

fn phase_rank(pod: &Pod) -> u8 {
    match phase(pod) {
        "Unknown" => 1,
        "Running" => 2,
        _ => 0,
    }
}

/// Restarts of the container that restarted most: of the regular ones, and of the sidecars.
pub fn restarts_max(pod: &Pod) -> (i32, i32) {
    let Some(status) = &pod.status else {
        return (0, 0);
    };
    let is_sidecar = |name: &str| {
        pod.spec.as_ref().is_some_and(|spec| {
            spec.init_containers
                .iter()
                .any(|container| container.name == name && container.restart_policy == "Always")
        })
    };
    let regular = status
        .container_statuses
        .iter()
        .map(|container| container.restart_count);
    let sidecars = status
        .init_container_statuses
        .iter()
        .filter(|container| is_sidecar(&container.name))
        .map(|container| container.restart_count);
    (
        regular.max().unwrap_or(0).max(0),
        sidecars.max().unwrap_or(0).max(0),
    )
}

/// Ages are compared by their order of magnitude, so that pods of about one age go in an arbitrary order (by
/// uid) instead of always the youngest.
fn age_rank(since: Timestamp, now: Timestamp) -> i64 {
    let nanoseconds = now.duration_since(since).as_nanos();
    if nanoseconds > 0 {
        (nanoseconds as f64).log2() as i64
    } else {
        -1
    }
}

/// Compares by age, the younger first; a pod without a time counts as youngest; `None` where the times are
/// equal.
fn younger_first(
    one: (Option<Timestamp>, &Pod),
    other: (Option<Timestamp>, &Pod),
    now: Timestamp,
) -> Option<bool> {
    match (one.0, other.0) {
        (one, other) if one == other => None,
        (None, _) => Some(true),
        (_, None) => Some(false),
        (Some(since_one), Some(since_other)) => Some(
            match age_rank(since_one, now).cmp(&age_rank(since_other, now)) {
                Ordering::Equal => one.1.metadata().uid < other.1.metadata().uid,
                order => order == Ordering::Less,
            },
        ),
    }
}

/// A pod with the number of its active siblings on its node.
#[derive(Clone, Debug)]
pub struct Ranked {
    /// The pod.
    pub pod: Arc<Pod>,
    /// Active siblings on its node, itself included.
    pub neighbours: usize,
    /// Its deletion cost; 0 for all where the feature is off.
    pub cost: i32,
}

/// Whether `one` should go before `other` when there are too many.
pub fn goes_before(one: &Ranked, other: &Ranked, now: Timestamp) -> bool {
    let (neighbours_one, neighbours_other) = (one.neighbours, other.neighbours);
    let (cost_one, cost_other) = (one.cost, other.cost);
    let (one, other) = (one.pod.as_ref(), other.pod.as_ref());
    // Not assigned to a node < assigned.
    let (assigned_one, assigned_other) = (!node_name(one).is_empty(), !node_name(other).is_empty());
    if assigned_one != assigned_other {
        return !assigned_one;
    }
    // Pending < unknown < running.
    if phase_rank(one) != phase_rank(other) {
        return phase_rank(one) < phase_rank(other);
    }
    // Not ready < ready.
    if is_ready(one) != is_ready(other) {
        return !is_ready(one);
    }
    // Lower deletion cost < higher.
    if cost_one != cost_other {
        return cost_one < cost_other;
    }
    // Doubled up on a node < spread.
    if neighbours_one != neighbours_other {
        return neighbours_one > neighbours_other;
    }
    // Ready for a shorter time < for a longer.
    if is_ready(one)
        && let Some(first) =
            younger_first((ready_since(one), one), (ready_since(other), other), now)
    {
        return first;
    }
    // More restarts < fewer.
    if restarts_max(one) != restarts_max(other) {
        return restarts_max(one) > restarts_max(other);
    }
    // Younger < older.
    let created = |pod: &Pod| instant(pod.metadata().creation_timestamp);
    younger_first((created(one), one), (created(other), other), now).unwrap_or(false)
}

/// The `count` surplus pods to delete. `siblings` are all pods of the owner's owner: of two pods the one
/// with more of them on its node goes first. With `by_cost` the deletion cost counts.
pub fn to_delete(
    pods: &[Arc<Pod>],
    siblings: &[Arc<Pod>],
    count: usize,
    by_cost: bool,
    now: Timestamp,
) -> Vec<Arc<Pod>> {
    if count >= pods.len() {
        return pods.to_vec();
    }
    let mut on_node = std::collections::HashMap::<&str, usize>::new();
    for sibling in siblings.iter().filter(|sibling| is_active(sibling)) {
        *on_node.entry(node_name(sibling)).or_default() += 1;
    }
    let ranked = pods
        .iter()
        .map(|pod| Ranked {
            pod: Arc::clone(pod),
            neighbours: on_node.get(node_name(pod)).copied().unwrap_or(0),
            cost: if by_cost { deletion_cost(pod) } else { 0 },
        })
        .collect();
    merge_sort(ranked, &|one, other| goes_before(one, other, now))
        .into_iter()
        .take(count)
        .map(|ranked| ranked.pod)
        .collect()
}

/// Stable. The standard sort may panic where an order is not total, and this one is not: ages within one
/// order of magnitude compare by uid, equal ages by restarts, so three pods can form a cycle.
fn merge_sort<T>(mut items: Vec<T>, before: &dyn Fn(&T, &T) -> bool) -> Vec<T> {
    if items.len() < 2 {
        return items;
    }
    let right = items.split_off(items.len() / 2);
    let mut left = merge_sort(items, before).into_iter().peekable();
    let mut right = merge_sort(right, before).into_iter().peekable();
    let mut sorted = Vec::with_capacity(left.len() + right.len());
    while let (Some(one), Some(other)) = (left.peek(), right.peek()) {
        let next = if before(other, one) {
            right.next()
        } else {
            left.next()
        };
        sorted.extend(next);
    }
    sorted.extend(left);
    sorted.extend(right);
    sorted
}

/// The most bytes that one plan's creations may hold: half of what a plan may hold at all.
const CREATED_BYTES_MAX: usize = 25 << 20;
/// Bytes of a creation beside what it copies: names, owner, events.
const CREATED_BYTES_MORE: usize = 2048;

/// The number of children that one plan creates where each copies `bytes_each` bytes: at least one, at most
/// `most`. A thousand copies of a template of 1.5 MB would take more memory than a replica has; the others
/// follow with the next plans.
pub fn creations_at_once(most: usize, bytes_each: usize) -> usize {
    (CREATED_BYTES_MAX / bytes_each.saturating_add(CREATED_BYTES_MORE)).clamp(1, most.max(1))
}

/// The bytes that a pod copies from its template.
pub fn template_bytes(template: Option<&PodTemplateSpec>) -> usize {
    template.map_or(0, prost::Message::encoded_len)
}

/// A pod of a template: its labels, annotations and finalizers, and its spec byte for byte.
pub fn from_template(
    template: Option<&PodTemplateSpec>,
    owner: Shared<OwnerReference>,
    children: &Children,
    namespace: &Str,
    name: &str,
) -> PodFromTemplate {
    let template_meta = template.and_then(|template| template.metadata.as_ref());
    let mut metadata = kubernetes_proto::meta::ObjectMeta {
        name: name.into(),
        generate_name: Str::interned(children.generate_name()),
        namespace: namespace.clone(),
        owner_references: vec![owner],
        ..Default::default()
    };
    if let Some(meta) = template_meta {
        metadata.labels.clone_from(&meta.labels);
        metadata.annotations.clone_from(&meta.annotations);
        metadata.finalizers.clone_from(&meta.finalizers);
    }
    PodFromTemplate {
        metadata: Some(metadata),
        spec: template
            .map(|template| template.spec.clone())
            .unwrap_or_default(),
    }
}

/// Plans the creation of a pod from a template.
pub fn create<'a>(plan: &'a mut Plan, pod: &PodFromTemplate) -> &'a mut Action {
    let meta = pod.metadata.clone().unwrap_or_default();
    plan.act(Action {
        verb: Verb::Create {
            body: prost::Message::encode_to_vec(pod),
        },
        resource: Pod::resource(),
        key: Key::of_meta(&meta),
        uid: Str::default(),
        resource_version: 0,
        announcement: None,
    })
}

#[cfg(test)]
mod tests;
