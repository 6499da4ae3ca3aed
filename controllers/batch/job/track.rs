//! Counting pods that have ended, and the status that reports them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use controllers_kit::{Action, Event, Plan, SignedDuration, StatusWrite};
use kubernetes_proto::{
    Object,
    batch::{Job, JobCondition, JobStatus},
    core::Pod,
};

use super::{
    BY_FAILURE_POLICY, INDEXES_FINISHED, JOBS_FINISHED, Memory, PODS_FINISHED, WITH_FINALIZER,
    context::{Finish, JobSync, counters, ensure, phase},
    indexes::{self, Indexes},
    orphans, policies,
};

/// Uids in `status.uncountedTerminatedPods` at most: about 20 kB. It also keeps a large Job from starving
/// small ones.
const UNCOUNTED_MAX: usize = 500;
/// Pods are counted at most this often, so that a burst of them costs a few writes.
const COUNT_EVERY: SignedDuration = SignedDuration::from_secs(1);

/// The pods that this plan counts.
#[derive(Debug, Default)]
pub(super) struct Counted {
    /// Pods whose finalizer is removed once the status is written.
    pub finalizers: Vec<Arc<Pod>>,
    /// Failures by the action of the rule that matched.
    by_action: BTreeMap<policies::Action, usize>,
    /// Whether counting is delayed.
    held: bool,
    /// The final condition, where the Job is finished with this plan.
    finished: Option<Finish>,
}

/// Moves counted pods into the counters, adds ended pods to the list, and sets the conditions.
pub(super) fn count(
    sync: &JobSync<'_>,
    status: &mut JobStatus,
    finish: Option<&Finish>,
    memory: &mut Memory,
    is_whole: bool,
    plan: &mut Plan,
) -> Counted {
    let mut counted = Counted::default();
    clean(sync, status, is_whole, plan);
    let next = memory.counted_at.map(|at| at + COUNT_EVERY);
    let ended = countable(sync, finish);
    // What is over or goes away is counted at once.
    counted.held = finish.is_none()
        && !sync.job.is_terminating()
        && ended.len() < UNCOUNTED_MAX
        && next.is_some_and(|next| sync.now < next);
    if counted.held {
        if let Some(next) = next.filter(|_| !ended.is_empty()) {
            plan.requeue_at(next);
        }
        return counted;
    }
    if !ended.is_empty() {
        memory.counted_at = Some(sync.now);
    }
    let reached_max = list(sync, status, finish, ended, &mut counted);
    if sync.wanted.indexed {
        let succeeded = sync.succeeded_indexes.clone();
        status.succeeded = i32::try_from(succeeded.count()).unwrap_or(i32::MAX);
        status.completed_indexes = succeeded.to_string();
        status.failed_indexes = sync.failed_indexes.as_ref().map(Indexes::to_string);
    }
    if let Some(finish) = finish {
        conclude(sync, status, finish, reached_max, &mut counted);
    }
    counted
}

/// A uid in the list whose pod has no finalizer any more is counted, and so is one whose pod is gone. The
/// pod of a uid existed before the status that lists it was written: where it is not in the cache, it is
/// gone if the cache has reached the Job's resourceVersion. On a view that is not whole the plan asks for
/// proof of that; counting a pod that is not in the cache yet would count it twice.
fn clean(sync: &JobSync<'_>, status: &mut JobStatus, is_whole: bool, plan: &mut Plan) {
    let uid = |pod: &Arc<Pod>| Object::metadata(&**pod).uid.to_string();
    let known: BTreeSet<String> = sync.pods.iter().map(uid).collect();
    let waiting: BTreeSet<String> = sync
        .pods
        .iter()
        .filter(|pod| sync.is_tracked(pod))
        .map(uid)
        .collect();
    let uncounted = status.uncounted_terminated_pods.get_or_insert_default();
    let mut listed = uncounted.succeeded.iter().chain(&uncounted.failed);
    if !is_whole && listed.any(|uid| !known.contains(uid)) {
        let meta = Object::metadata(sync.job);
        plan.rests_on(Pod::resource(), &meta.namespace, meta.resource_version);
    }
    let take = |uids: &mut Vec<String>| {
        let before = uids.len();
        uids.retain(|uid| waiting.contains(uid));
        i32::try_from(before - uids.len()).unwrap_or(i32::MAX)
    };
    status.succeeded += take(&mut uncounted.succeeded);
    status.failed += take(&mut uncounted.failed);
}

/// The pods whose finalizer may go.
fn countable(sync: &JobSync<'_>, finish: Option<&Finish>) -> Vec<Arc<Pod>> {
    let all = finish.is_some() || sync.job.is_terminating();
    let may_go = |pod: &Pod| {
        if all || phase(pod) == "Succeeded" {
            return true;
        }
        // The pod that records how often its index has failed stays until its successor records it.
        let is_kept = || {
            indexes::of(pod)
                .and_then(|index| sync.kept.get(&index))
                .is_some_and(|kept| Object::metadata(&**kept).uid == Object::metadata(pod).uid)
        };
        sync.wanted.has_failed(pod) && !is_kept()
    };
    let mut pods = sync.pods.clone();
    pods.retain(|pod| sync.is_tracked(pod) && may_go(pod));
    pods
}

/// Puts uids into the list; whether it is full.
fn list(
    sync: &JobSync<'_>,
    status: &mut JobStatus,
    finish: Option<&Finish>,
    ended: Vec<Arc<Pod>>,
    counted: &mut Counted,
) -> bool {
    let before = sync
        .before
        .uncounted_terminated_pods
        .clone()
        .unwrap_or_default();
    let known_succeeded: BTreeSet<&str> = before.succeeded.iter().map(String::as_str).collect();
    let known_failed: BTreeSet<&str> = before.failed.iter().map(String::as_str).collect();
    let uncounted = status.uncounted_terminated_pods.get_or_insert_default();
    let mut new_indexes = BTreeSet::new();
    // Indexes without a result when the Job fails count as failed.
    let all_failed = finish.is_some_and(|finish| !finish.success);
    for pod in ended {
        let uid = Object::metadata(&*pod).uid.to_string();
        if phase(&pod) == "Succeeded" && !known_failed.contains(&*uid) {
            if sync.wanted.indexed {
                // The set of indexes itself records which are counted.
                new_indexes.extend(
                    indexes::valid(&pod, sync.wanted.index_count())
                        .filter(|index| !sync.succeeded_before.has(*index)),
                );
            } else if !known_succeeded.contains(&*uid) {
                uncounted.succeeded.push(uid);
            }
        } else if (sync.wanted.has_failed(&pod) || all_failed)
            && !known_failed.contains(&*uid)
            && sync.is_valid(&pod)
        {
            let verdict = sync.wanted.verdict(&pod);
            if let Some(action) = verdict.action {
                *counted.by_action.entry(action).or_default() += 1;
            }
            if verdict.counts {
                uncounted.failed.push(uid);
            }
        }
        counted.finalizers.push(pod);
        if new_indexes.len() + uncounted.succeeded.len() + uncounted.failed.len() >= UNCOUNTED_MAX {
            return true;
        }
    }
    false
}

/// The interim condition comes before the last finalizers go, the final one when nothing is left to be
/// counted and no pod is terminating.
fn conclude(
    sync: &JobSync<'_>,
    status: &mut JobStatus,
    finish: &Finish,
    reached_max: bool,
    counted: &mut Counted,
) {
    let condition = |r#type: &str| JobCondition {
        r#type: r#type.to_owned(),
        status: "True".to_owned(),
        last_probe_time: Some(sync.now.into()),
        last_transition_time: Some(sync.now.into()),
        reason: finish.reason.clone(),
        message: finish.message.clone(),
    };
    if !finish.reported {
        let interim = if finish.success {
            "SuccessCriteriaMet"
        } else {
            "FailureTarget"
        };
        status.conditions.push(condition(interim));
        return;
    }
    let is_counted = status
        .uncounted_terminated_pods
        .as_ref()
        .is_none_or(|uncounted| uncounted.succeeded.is_empty() && uncounted.failed.is_empty());
    let is_still = status.terminating == Some(0) && counted.finalizers.is_empty();
    if reached_max || !is_counted || !is_still {
        return;
    }
    if finish.success {
        ensure(&mut status.conditions, condition("Complete"));
        status.completion_time = Some(sync.now.into());
    } else {
        ensure(&mut status.conditions, condition("Failed"));
    }
    counted.finished = Some(finish.clone());
}

/// Plans the status write, if one is due.
pub(super) fn report(
    plan: &mut Plan,
    sync: &JobSync<'_>,
    status: &JobStatus,
    counted: &Counted,
    event: Option<Event>,
    memory: &mut Memory,
    is_whole: bool,
) {
    memory.counters_pending = None;
    memory.backoff_pending = None;
    let before = &sync.before;
    if status == before {
        return;
    }
    // Only progress may be delayed. A status that counting rests on may not, nor one with which finalizers
    // go: the record of the failures would go with them. Nor may one that claims more pods than there are.
    let is_progress = {
        let mut same = status.clone();
        same.active = before.active;
        same.ready = before.ready;
        same.terminating = before.terminating;
        same == *before
            && counted.finalizers.is_empty()
            && status.active >= before.active
            && status.ready >= before.ready
    };
    // Skips the spec: it is unchanged and expensive to compare.
    let part = |status: Option<JobStatus>| Job {
        metadata: sync.job.metadata.clone(),
        spec: None,
        status,
    };
    let old = part(sync.job.status.clone());
    let new = part(Some(status.clone()));
    let Some(action) = plan.update_status(&old, &new) else {
        return;
    };
    if !is_progress {
        action.reports(StatusWrite::No);
    }
    if let Some(event) = event {
        action.announce(event);
    }
    measure(action, sync, status, counted);
    if let Some(finish) = &counted.finished {
        conclusion(action, sync, finish);
    }
    if is_whole {
        memory.counters_pending = Some(counters(status));
    }
    if !counted.held {
        memory.backoff_pending = Some(sync.backoff.clone());
    }
    let is_surplus = counted
        .finished
        .as_ref()
        .is_some_and(|finish| finish.success)
        && sync
            .wanted
            .completions
            .is_some_and(|completions| status.succeeded > completions);
    if is_surplus {
        plan.event(Event::warning(
            sync.job,
            "TooManySucceededPods",
            "Too many succeeded pods running after completion count reached",
        ));
    }
}

fn conclusion(action: &mut Action, sync: &JobSync<'_>, finish: &Finish) {
    let mode = sync.wanted.mode();
    if finish.success {
        action.announce(Event::normal(sync.job, "Completed", "Job completed"));
        action.measure(JOBS_FINISHED, &[mode, "succeeded", &finish.reason], 1.0);
    } else {
        let mut event = Event::warning(sync.job, "Failed", finish.message.clone());
        event.reason = finish.reason.as_str().into();
        action.announce(event);
        action.measure(JOBS_FINISHED, &[mode, "failed", &finish.reason], 1.0);
    }
}

fn measure(action: &mut Action, sync: &JobSync<'_>, status: &JobStatus, counted: &Counted) {
    let mode = sync.wanted.mode();
    let before = &sync.before;
    let mut grow = |name, labels: &[&str], by: i64| {
        if by > 0 {
            action.measure(name, labels, by as f64);
        }
    };
    let mut succeeded = i64::from(status.succeeded) - i64::from(before.succeeded);
    if sync.wanted.indexed {
        let limit = if sync.wanted.per_index.is_some() {
            "perIndex"
        } else {
            "global"
        };
        let completions = sync.wanted.index_count();
        let count = |text: &str| Indexes::parse(text, completions).count();
        succeeded = count(&status.completed_indexes) - count(&before.completed_indexes);
        let failed = |status: &JobStatus| count(status.failed_indexes.as_deref().unwrap_or(""));
        grow(INDEXES_FINISHED, &["succeeded", limit], succeeded);
        grow(
            INDEXES_FINISHED,
            &["failed", limit],
            failed(status) - failed(before),
        );
    }
    grow(PODS_FINISHED, &[mode, "succeeded"], succeeded);
    let failed = i64::from(status.failed) - i64::from(before.failed);
    grow(PODS_FINISHED, &[mode, "failed"], failed);
    for (rule, count) in &counted.by_action {
        let count = i64::try_from(*count).unwrap_or(i64::MAX);
        grow(BY_FAILURE_POLICY, &[rule.name()], count);
    }
    let listed = counted
        .finalizers
        .iter()
        .filter(|pod| controllers_kit::pods::has_finished(pod) && orphans::is_tracked(pod))
        .count();
    grow(
        WITH_FINALIZER,
        &["add"],
        i64::try_from(listed).unwrap_or(i64::MAX),
    );
}
