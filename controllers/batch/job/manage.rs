//! Which pods are made and which are deleted.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use controllers_kit::{
    Event, Only, Plan, Propagation, Refusal, Snapshot, Timestamp,
    names::{Children, Known, NAME_LENGTH_MAX},
    owners, pods, podspec,
};
use kubernetes_proto::{
    Object, Str,
    core::{Pod, PodFromTemplate},
};

use super::{
    PODS_CREATED, TRACKING, backoff,
    context::{JobSync, number, phase},
    indexes::{self, INDEX, Indexes},
    orphans,
};

/// The metrics' label of a sync that created and deleted no pod.
pub(super) const RECONCILING: &str = "reconciling";
/// The most pods that one plan creates or deletes: more wait until the cache has seen these.
const BURST: i64 = 500;
/// How often an index has failed so far.
const FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
/// The number of failures that the policy ignores.
const FAILURES_IGNORED: &str = "batch.kubernetes.io/job-index-ignored-failure-count";
/// The variable that gives a container its index.
const INDEX_VARIABLE: &str = "JOB_COMPLETION_INDEX";
/// Longest prefix of a generated name.
const PREFIX_LENGTH_MAX: usize = 58;

/// By how much the numbers of pods change.
#[derive(Clone, Debug, Default)]
pub(super) struct Difference {
    pub active: i64,
    pub ready: i64,
    pub terminating: i64,
}

pub(super) static NOTHING: Difference = Difference {
    active: 0,
    ready: 0,
    terminating: 0,
};

/// Pods to be made or deleted.
#[derive(Debug, Default)]
pub(super) struct Managed {
    deletes: Vec<Arc<Pod>>,
    /// Whether deleted pods must not be counted: the finalizer goes before the pod.
    uncounted: bool,
    creates: Vec<PodFromTemplate>,
    creation_reason: &'static str,
    /// The change of the status's counters.
    pub change: Difference,
    label: &'static str,
}

impl Managed {
    pub(super) fn is_nothing(&self) -> bool {
        self.deletes.is_empty() && self.creates.is_empty()
    }

    /// What the sync did, as metrics name it.
    pub(super) fn label(&self) -> &'static str {
        if self.label.is_empty() {
            RECONCILING
        } else {
            self.label
        }
    }

    fn deletes(pods: Vec<Arc<Pod>>) -> Self {
        let count = number(pods.len());
        let ready = number(pods.iter().filter(|pod| pods::is_ready(pod)).count());
        Self {
            deletes: pods,
            change: Difference {
                active: -count,
                ready: -ready,
                terminating: count,
            },
            ..Self::default()
        }
    }

    /// Adds the writes to a plan.
    pub(super) fn put(&self, plan: &mut Plan, job: &kubernetes_proto::batch::Job) {
        if self.uncounted {
            for pod in self.deletes.iter().filter(|pod| orphans::is_tracked(pod)) {
                orphans::remove_finalizer(plan, pod);
            }
            plan.then();
        }
        // A pod that has ended meanwhile stays, to be counted. (Without the finalizer it has another
        // version.)
        let only = if self.uncounted {
            Only::ThisUid
        } else {
            Only::ThisVersion
        };
        for pod in &self.deletes {
            plan.delete(pod.as_ref(), only, Propagation::Background)
                .announce(Event::normal(
                    job,
                    "SuccessfulDelete",
                    format!("Deleted pod: {}", Object::metadata(&**pod).name),
                ))
                .announce_failure(Event::warning(job, "FailedDelete", "Error deleting: "));
        }
        for pod in &self.creates {
            let (name, beginning) = pod
                .metadata
                .as_ref()
                .map_or(("", ""), |meta| (&meta.name, &meta.generate_name));
            pods::create(plan, pod)
                .announce(Event::normal(
                    job,
                    "SuccessfulCreate",
                    format!("Created pod: {name}"),
                ))
                .announce_failure(Event::warning(job, "FailedCreate", "Error creating: "))
                .reported_as(beginning)
                .measure(PODS_CREATED, &[self.creation_reason, "succeeded"], 1.0)
                .measure_failure(PODS_CREATED, &[self.creation_reason, "failed"], 1.0);
        }
    }
}

/// The Job is finished: active pods are deleted, and counted by their result.
pub(super) fn delete_all(sync: &JobSync<'_>) -> Managed {
    Managed::deletes(sync.active.clone())
}

/// Continues the Job with as many pods as it wants. Per plan either deletions or creations, deletions
/// first. Requeues the key for the end of the back-off.
pub(super) fn manage(
    sync: &JobSync<'_>,
    seen: &Snapshot<'_>,
    plan: &mut Plan,
) -> Result<Managed, Refusal> {
    let active = number(sync.active.len());
    let mut surplus = 0;
    let mut wanted = 0;
    if sync.wanted.suspended {
        surplus = active;
    } else {
        wanted = active_wanted(sync, active);
        surplus = surplus.max(active - wanted);
    }
    let mut deletes = for_removal(sync, surplus);
    if !sync.wanted.suspended {
        deletes.truncate(usize::try_from(BURST).unwrap_or(usize::MAX));
    }
    if !deletes.is_empty() || sync.wanted.suspended {
        return Ok(Managed {
            uncounted: true,
            label: "pods_deleted",
            ..Managed::deletes(deletes)
        });
    }
    let going = if sync.wanted.only_failed {
        sync.terminating
    } else {
        0
    };
    let missing = wanted - going - active;
    if missing <= 0 {
        return Ok(Managed {
            label: "tracking",
            ..Managed::default()
        });
    }
    // A large template is copied fewer times at once.
    let template = sync
        .job
        .spec
        .as_ref()
        .and_then(|spec| spec.template.as_ref());
    let most = usize::try_from(BURST).unwrap_or(usize::MAX);
    let most = pods::creations_at_once(most, pods::template_bytes(template));
    let most = i64::try_from(most).unwrap_or(BURST);
    create(sync, seen, plan, missing.min(most))
}

/// How many pods should be active.
fn active_wanted(sync: &JobSync<'_>, active: i64) -> i64 {
    match sync.wanted.completions {
        // After the first success of a work queue no pod is created any more.
        None if sync.succeeded > 0 => active,
        None => sync.wanted.parallelism,
        Some(completions) => (i64::from(completions) - sync.succeeded)
            .min(sync.wanted.parallelism)
            .max(0),
    }
}

fn create(
    sync: &JobSync<'_>,
    seen: &Snapshot<'_>,
    plan: &mut Plan,
    missing: i64,
) -> Result<Managed, Refusal> {
    let label = "pods_created";
    let waits = Managed {
        label,
        ..Managed::default()
    };
    let until = sync.losses_until.max(match sync.wanted.per_index {
        None => sync.backoff.until(sync.now),
        Some(_) => None,
    });
    if let Some(until) = until {
        plan.requeue_at(until);
        return Ok(waits);
    }
    let count = usize::try_from(missing).unwrap_or(0);
    let creates = if sync.wanted.indexed {
        let mut pending = pending_indexes(sync, count);
        if sync.wanted.per_index.is_some() {
            let next = pending
                .iter()
                .filter_map(|index| index_until(sync, *index))
                .min();
            pending.retain(|index| index_until(sync, *index).is_none());
            if let Some(next) = next {
                plan.requeue_at(next);
            }
        }
        pending
            .into_iter()
            .map(|index| indexed_pod(sync, seen, index))
            .collect::<Result<Vec<_>, _>>()?
    } else {
        plain_pods(sync, seen, count)
    };
    Ok(Managed {
        change: Difference {
            active: number(creates.len()),
            ..Difference::default()
        },
        creates,
        creation_reason: creation_reason(sync),
        label,
        ..Managed::default()
    })
}

/// Why pods are made, as metrics name it.
fn creation_reason(sync: &JobSync<'_>) -> &'static str {
    let only_failed = sync.wanted.spec.pod_replacement_policy.as_deref() == Some("Failed");
    if only_failed && sync.failed > 0 {
        "recreate_failed"
    } else if sync.failed > 0 || sync.terminating > 0 {
        "recreate_terminating_or_failed"
    } else {
        "new"
    }
}

fn index_until(sync: &JobSync<'_>, index: i64) -> Option<Timestamp> {
    let pod = sync.kept.get(&index)?;
    let (failures, ignored) = index_failures(pod);
    backoff::until(
        failures.saturating_add(ignored).saturating_add(1),
        backoff::ended_at(pod),
        sync.now,
    )
}

fn indexes_of<'a>(pods: impl Iterator<Item = &'a Arc<Pod>>) -> BTreeSet<i64> {
    pods.filter_map(|pod| indexes::of(pod)).collect()
}

/// The first indexes that have neither succeeded nor failed nor have a pod.
fn pending_indexes(sync: &JobSync<'_>, count: usize) -> Vec<i64> {
    let mut taken = sync.succeeded_indexes.with(&indexes_of(sync.active.iter()));
    if sync.wanted.only_failed {
        let going = sync.pods.iter().filter(|pod| pods::is_terminating(pod));
        taken = taken.with(&indexes_of(going));
    }
    if let Some(failed) = &sync.failed_indexes {
        taken = taken.merge(failed);
    }
    taken.first_missing(count, sync.wanted.index_count())
}

/// How often a pod's index has failed before it: counted failures and ignored ones.
pub(super) fn index_failures(pod: &Pod) -> (i32, i32) {
    let read = |name: &str| {
        Object::metadata(pod)
            .annotation(name)
            .and_then(indexes::parse)
            .and_then(|count| i32::try_from(count).ok())
            .filter(|count| *count >= 0)
            .unwrap_or(0)
    };
    (read(FAILURES), read(FAILURES_IGNORED))
}

/// For each index that is to be retried, the failed pod that records how often it has failed: the last one.
pub(super) fn kept_failures(
    sync: &JobSync<'_>,
    succeeded: &Indexes,
    failed: &Indexes,
) -> BTreeMap<i64, Arc<Pod>> {
    let active = indexes_of(sync.active.iter());
    let rank = |pod: &Pod| {
        let (failures, ignored) = index_failures(pod);
        (failures.saturating_add(ignored), backoff::ended_at(pod))
    };
    let mut kept: BTreeMap<i64, Arc<Pod>> = BTreeMap::new();
    for pod in &sync.pods {
        let Some(index) = indexes::valid(pod, sync.wanted.index_count()) else {
            continue;
        };
        let is_over = succeeded.has(index) || failed.has(index) || active.contains(&index);
        if is_over || !sync.is_tracked(pod) || !sync.wanted.has_failed(pod) {
            continue;
        }
        let is_later = kept.get(&index).is_none_or(|last| {
            let (one, other) = (rank(last), rank(pod));
            one.0 <= other.0 && one.1 <= other.1
        });
        if is_later {
            kept.insert(index, Arc::clone(pod));
        }
    }
    kept
}

/// A pod of the template, with the finalizer that keeps it until it is counted.
fn from_template(sync: &JobSync<'_>, children: &Children, name: &str) -> PodFromTemplate {
    let job = sync.job;
    let mut pod = pods::from_template(
        sync.wanted.spec.template.as_ref(),
        owners::reference(job),
        children,
        &Object::metadata(job).namespace,
        name,
    );
    let meta = pod.metadata.get_or_insert_default();
    if !meta.finalizers.iter().any(|name| **name == *TRACKING) {
        meta.finalizers.push(Str::interned(TRACKING));
    }
    pod
}

fn known<'a>(sync: &'a JobSync<'_>, seen: &Snapshot<'a>) -> Known<'a> {
    Known::of(seen.reader(), Pod::resource(), Object::metadata(sync.job))
}

fn plain_pods(sync: &JobSync<'_>, seen: &Snapshot<'_>, count: usize) -> Vec<PodFromTemplate> {
    let meta = Object::metadata(sync.job);
    let children = Children::of(&meta.name, &meta.uid);
    let existing = sync.pods.iter().map(|pod| Object::metadata(&**pod));
    children
        .next(0, existing, &known(sync, seen), count)
        .iter()
        .map(|name| from_template(sync, &children, name))
        .collect()
}

/// `<job>-<index>`, the Job's name cut so that the index fits into the pod's name.
fn index_prefix(job: &str, index: i64) -> String {
    let suffix = format!("-{index}-");
    let whole = format!("{job}{suffix}");
    if whole.len() <= PREFIX_LENGTH_MAX {
        return whole[..whole.len() - 1].to_owned();
    }
    let mut end = (PREFIX_LENGTH_MAX - suffix.len())
        .min(job.len())
        .min(NAME_LENGTH_MAX);
    while !job.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}-{index}", &job[..end])
}

fn indexed_pod(
    sync: &JobSync<'_>,
    seen: &Snapshot<'_>,
    index: i64,
) -> Result<PodFromTemplate, Refusal> {
    let job = Object::metadata(sync.job);
    let children = Children::of(&index_prefix(&job.name, index), &job.uid);
    let existing = sync
        .pods
        .iter()
        .filter(|pod| indexes::of(pod) == Some(index))
        .map(|pod| Object::metadata(&**pod));
    let names = children.next(0, existing, &known(sync, seen), 1);
    let name = names.first().map_or("", String::as_str);
    let mut pod = from_template(sync, &children, name);
    let meta = pod.metadata.get_or_insert_default();
    let text = index.to_string();
    meta.set_annotation(INDEX, &text);
    meta.set_label(INDEX, &text);
    if sync.wanted.per_index.is_some() {
        let (failures, ignored) = failures_before(sync, index);
        meta.set_annotation(FAILURES, &failures.to_string());
        if ignored > 0 {
            meta.set_annotation(FAILURES_IGNORED, &ignored.to_string());
        }
    }
    let path = format!("metadata.labels['{INDEX}']");
    pod.spec = podspec::containers::with_env_from_field(&pod.spec, INDEX_VARIABLE, &path)
        .and_then(|spec| {
            podspec::containers::with_hostname(&spec, &format!("{}-{index}", job.name))
        })
        .and_then(|spec| match &sync.group {
            Some(group) => podspec::containers::with_group(&spec, group),
            None => Ok(spec),
        })
        .map_err(|error| Refusal::Wait(error.to_string()))?;
    Ok(pod)
}

/// How often an index has failed, including the pod that is replaced.
fn failures_before(sync: &JobSync<'_>, index: i64) -> (i32, i32) {
    let Some(pod) = sync.kept.get(&index) else {
        return (0, 0);
    };
    let (failures, ignored) = index_failures(pod);
    if sync.wanted.verdict(pod).counts {
        (failures.saturating_add(1), ignored)
    } else {
        (failures, ignored.saturating_add(1))
    }
}

/// At least `at_least` active pods to delete, the least advanced first. Of an Indexed Job, pods without an
/// index, beyond the last one, or with an index that another pod has too, are always among them.
fn for_removal(sync: &JobSync<'_>, at_least: i64) -> Vec<Arc<Pod>> {
    let at_least = usize::try_from(at_least).unwrap_or(0);
    let mut gone: Vec<Arc<Pod>> = Vec::new();
    let mut left: Vec<Arc<Pod>> = Vec::new();
    if sync.wanted.indexed {
        let mut by_index: BTreeMap<i64, Vec<Arc<Pod>>> = BTreeMap::new();
        for pod in &sync.active {
            match indexes::valid(pod, sync.wanted.index_count()) {
                Some(index) => by_index.entry(index).or_default().push(Arc::clone(pod)),
                None => gone.push(Arc::clone(pod)),
            }
        }
        for mut same in by_index.into_values() {
            same.sort_by_cached_key(|pod| advance(pod));
            left.extend(same.pop());
            gone.extend(same);
        }
    } else {
        left.clone_from(&sync.active);
    }
    if gone.len() < at_least {
        left.sort_by_cached_key(|pod| advance(pod));
        left.truncate(at_least - gone.len());
        gone.extend(left);
    }
    gone
}

/// The progress of a pod; of two the one with less is deleted first.
fn advance(pod: &Pod) -> impl Ord + use<> {
    use std::cmp::Reverse;
    let rank = match phase(pod) {
        "Unknown" => 1,
        "Running" => 2,
        _ => 0,
    };
    let meta = Object::metadata(pod);
    (
        !pods::node_name(pod).is_empty(),
        rank,
        pods::is_ready(pod),
        Reverse(pods::ready_since(pod).unwrap_or(Timestamp::MAX)),
        Reverse(pods::restarts_max(pod)),
        Reverse(pods::instant(meta.creation_timestamp).unwrap_or(Timestamp::MAX)),
        meta.name.clone(),
    )
}
