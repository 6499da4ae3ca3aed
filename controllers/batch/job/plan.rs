//! One reconcile of a Job: what became of its pods, whether it has finished, what is done about it.

use std::{collections::BTreeSet, sync::Arc};

use controllers_kit::{
    Answer, Event, Key, Plan, Query, Refusal, SignedDuration, Snapshot, Timestamp, conditions,
    owners::{self, Claimed},
    pods, podspec,
    selectors::Selector,
};
use kubernetes_proto::{
    Object, Str,
    batch::{Job, JobCondition, JobSpec, JobStatus},
    core::Pod,
};

use super::{
    Counters, EXTERNAL, Gates, Memory, SYNC_SECONDS, SYNCS, TRACKING,
    backoff::Record,
    context::{Finish, INDEXED, JobSync, NON_INDEXED, Wanted, counters, ensure, number, phase},
    indexes::{self, Indexes},
    manage, orphans, policies, track,
    workload::{self, Ensured},
};

/// A Job to reconcile, with its pods.
type View = Claimed<Job, Pod>;

fn view(key: &Key, seen: &Snapshot<'_>) -> Result<Option<View>, Refusal> {
    let Some(job) = orphans::job_of(key, seen.reader()) else {
        return Ok(None);
    };
    if orphans::manager(&job).is_some() || conditions::finished(&job).is_some() {
        return Ok(None);
    }
    let selector = job.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    let selector = Selector::compile(selector)
        .map_err(|error| Refusal::Wait(format!("couldn't convert Job selector: {error}")))?;
    if selector.is_empty() {
        // The API sets one; without it every created pod would be released again.
        return Err(Refusal::Wait(format!("Job {key} selects nothing")));
    }
    Ok(Some(
        Claimed::of(job, selector, seen).with_finalizer(TRACKING),
    ))
}

fn uid_set(uids: &[String]) -> BTreeSet<&str> {
    uids.iter().map(String::as_str).collect()
}

/// Whether the cache shows for every counted pod that it was counted.
fn is_whole(status: &JobStatus, memory: &Memory) -> bool {
    let counters = counters(status);
    counters == Counters::default() || memory.counters.as_ref() == Some(&counters)
}

/// The pods that must be read live before they are counted.
fn doubtful(view: &View, memory: &Memory) -> Vec<Arc<Pod>> {
    let status = view.owner.status.clone().unwrap_or_default();
    let spec = view.owner.spec.clone().unwrap_or_default();
    if is_whole(&status, memory) {
        return Vec::new();
    }
    let wanted = Wanted::of(&spec);
    let uncounted = status.uncounted_terminated_pods.unwrap_or_default();
    let known: BTreeSet<&str> = uid_set(&uncounted.succeeded)
        .union(&uid_set(&uncounted.failed))
        .copied()
        .collect();
    let mut pods = view.claims.owned.clone();
    pods.retain(|pod| {
        let ended = wanted.has_failed(pod) || (phase(pod) == "Succeeded" && !wanted.indexed);
        ended && orphans::is_tracked(pod) && !known.contains(&*Object::metadata(&**pod).uid)
    });
    pods
}

fn live(pod: &Pod) -> Query {
    Query::Live {
        resource: Pod::resource(),
        key: Key::of(pod),
    }
}

/// Before an adoption the Job is read live, and so is a pod that may have been counted before.
pub(super) fn ask(key: &Key, seen: &Snapshot<'_>, memory: &Memory) -> Vec<Query> {
    let job = orphans::job_of(key, seen.reader());
    let mut queries = Vec::from_iter(orphans::ask(key, job.as_deref(), seen));
    let Ok(Some(view)) = view(key, seen) else {
        return queries;
    };
    if view.claims.are_unsettled() {
        queries.extend(view.ask());
        return queries;
    }
    queries.extend(doubtful(&view, memory).iter().map(|pod| live(pod)));
    if !queries.is_empty() || is_older_than_pods(&view) {
        queries.push(owners::recheck(view.owner.as_ref()));
    }
    queries
}

/// Whether more pods were counted than the Job's status says: then the Job is older in the cache than its
/// pods, unless somebody has taken finalizers off by hand. Pods made by its counters would be too many.
fn is_older_than_pods(view: &View) -> bool {
    let status = view.owner.status.clone().unwrap_or_default();
    let spec = view.owner.spec.clone().unwrap_or_default();
    let wanted = Wanted::of(&spec);
    let uncounted = status.uncounted_terminated_pods.clone().unwrap_or_default();
    let completions = wanted.index_count();
    let completed = Indexes::parse(&status.completed_indexes, completions);
    let (mut succeeded, mut failed) = (0, 0);
    for pod in view
        .claims
        .owned
        .iter()
        .filter(|pod| !orphans::is_tracked(pod))
    {
        match phase(pod) {
            "Succeeded" if wanted.indexed => {
                let index = indexes::valid(pod, completions);
                if index.is_some_and(|index| !completed.has(index)) {
                    return true;
                }
            }
            "Succeeded" => succeeded += 1,
            "Failed" if wanted.verdict(pod).counts => failed += 1,
            _ => {}
        }
    }
    succeeded > i64::from(status.succeeded) + number(uncounted.succeeded.len())
        || failed > i64::from(status.failed) + number(uncounted.failed.len())
}

/// # Errors
/// Where the Job is older than its pods: the cache will catch up.
fn check_age(view: &View, doubtful: &[Arc<Pod>], seen: &Snapshot<'_>) -> Result<(), Refusal> {
    if doubtful.is_empty() && !is_older_than_pods(view) {
        return Ok(());
    }
    let meta = Object::metadata(&*view.owner);
    match seen.answer(&owners::recheck(view.owner.as_ref())) {
        Some(Answer::Object(found))
            if found["metadata"]["resourceVersion"] == *meta.resource_version.to_string() =>
        {
            Ok(())
        }
        Some(Answer::Object(_) | Answer::Missing | Answer::NotFound(_)) => Err(Refusal::Wait(
            "the Job in the cache is not the newest".to_owned(),
        )),
        Some(Answer::Failed(why)) => Err(Refusal::Retry(format!(
            "the Job may be older than its pods and can't be read: {why}"
        ))),
        None => Err(Refusal::Retry(
            "the Job may be older than its pods and was not read".to_owned(),
        )),
    }
}

/// The doubtful pods that were counted before.
fn settled(pods: &[Arc<Pod>], seen: &Snapshot<'_>) -> Result<BTreeSet<Str>, Refusal> {
    let mut settled = BTreeSet::new();
    for pod in pods {
        let meta = Object::metadata(&**pod);
        let still = match seen.answer(&live(pod)) {
            Some(Answer::Object(found)) => {
                let finalizers = found["metadata"]["finalizers"].as_array();
                found["metadata"]["uid"] == *meta.uid
                    && finalizers.is_some_and(|names| names.iter().any(|name| name == TRACKING))
            }
            Some(Answer::Missing | Answer::NotFound(_)) => false,
            Some(Answer::Failed(why)) => {
                return Err(Refusal::Retry(format!(
                    "pod {} can't be counted before it is read: {why}",
                    meta.name
                )));
            }
            None => {
                return Err(Refusal::Retry(format!(
                    "pod {} can't be counted before it is read",
                    meta.name
                )));
            }
        };
        if !still {
            settled.insert(meta.uid.clone());
        }
    }
    Ok(settled)
}

pub(super) fn plan(
    gates: Gates,
    key: &Key,
    seen: &Snapshot<'_>,
    memory: &mut Memory,
) -> Result<Plan, Refusal> {
    let job = orphans::job_of(key, seen.reader());
    let freed = orphans::free(key, job.as_deref(), seen)?;
    if !freed.is_nothing() {
        return Ok(freed);
    }
    let Some(view) = view(key, seen)? else {
        return Ok(at_rest(job.as_deref(), memory));
    };
    if let Some(settled) = view.settle(seen) {
        let mut plan = failing(settled)?;
        measure_failure(&mut plan, mode_of(&view.owner), manage::RECONCILING);
        return Ok(plan);
    }
    let Some(spec) = view.owner.spec.as_ref() else {
        return Ok(Plan::nothing());
    };
    if let Some(mode) = &spec.completion_mode
        && mode != INDEXED
        && mode != NON_INDEXED
    {
        return Ok(unknown_mode(&view.owner, memory));
    }
    let mut plan = failing(sync(gates, &view, spec, seen, memory))?;
    if plan.failure.is_some() {
        measure_failure(&mut plan, mode_of(&view.owner), manage::RECONCILING);
    }
    Ok(plan)
}

/// As metrics name it.
fn mode_of(job: &Job) -> &'static str {
    job.spec
        .as_ref()
        .map_or(NON_INDEXED, |spec| Wanted::of(spec).mode())
}

/// A refusal with retry as a plan that fails, so that it is measured.
fn failing(planned: Result<Plan, Refusal>) -> Result<Plan, Refusal> {
    match planned {
        Err(Refusal::Retry(why)) => {
            let mut plan = Plan::nothing();
            plan.fail(why);
            Ok(plan)
        }
        other => other,
    }
}

fn sync(
    gates: Gates,
    view: &View,
    spec: &JobSpec,
    seen: &Snapshot<'_>,
    memory: &mut Memory,
) -> Result<Plan, Refusal> {
    let doubtful = doubtful(view, memory);
    check_age(view, &doubtful, seen)?;
    let settled = settled(&doubtful, seen)?;
    let is_whole = is_whole(&view.owner.status.clone().unwrap_or_default(), memory);
    let owned = view.claims.owned.iter().map(|pod| &**pod);
    let generation = Object::metadata(&*view.owner).generation;
    memory.losses.observe(generation, owned, seen.now);
    let mut sync = consider(view, spec, settled, memory, seen.now);
    if gates.workload {
        match workload::ensure(&view.owner, &sync.wanted, &sync.pods, seen) {
            Ensured::Nothing => {}
            Ensured::Group(name) => sync.group = Some(name),
            Ensured::First(mut plan) => {
                measure_failure(&mut plan, sync.wanted.mode(), manage::RECONCILING);
                return Ok(plan);
            }
        }
    }
    decide(gates, view, &sync, seen, memory, is_whole)
}

/// The plan of a key without a Job to manage: nothing, and nothing to remember.
fn at_rest(job: Option<&Job>, memory: &mut Memory) -> Plan {
    let reported = memory.reported;
    *memory = Memory::default();
    let mut plan = Plan::nothing();
    if let Some(manager) = job.and_then(orphans::manager) {
        memory.reported = true;
        if !reported {
            plan.measure(EXTERNAL, &[manager], 1.0);
        }
    }
    plan
}

fn unknown_mode(job: &Job, memory: &mut Memory) -> Plan {
    let mut plan = Plan::nothing();
    if !memory.reported {
        plan.event(Event::warning(
            job,
            "UnknownCompletionMode",
            "Skipped Job sync because completion mode is unknown",
        ));
    }
    memory.reported = true;
    plan
}

/// Evaluates the Job's pods.
fn consider<'a>(
    view: &'a View,
    spec: &'a JobSpec,
    settled: BTreeSet<Str>,
    memory: &Memory,
    now: Timestamp,
) -> JobSync<'a> {
    let wanted = Wanted::of(spec);
    let mut pods = view.claims.owned.clone();
    pods.sort_by_cached_key(|pod| {
        let index = indexes::of(pod).unwrap_or(-1);
        (
            if wanted.indexed { index } else { 0 },
            Object::metadata(&**pod).name.clone(),
        )
    });
    let mut before = view.owner.status.clone().unwrap_or_default();
    before.uncounted_terminated_pods.get_or_insert_default();
    let active: Vec<Arc<Pod>> = pods
        .iter()
        .filter(|pod| pods::is_active(pod))
        .cloned()
        .collect();
    let count = |test: &dyn Fn(&Pod) -> bool, pods: &[Arc<Pod>]| {
        number(pods.iter().filter(|pod| test(pod)).count())
    };
    let mut sync = JobSync {
        job: &view.owner,
        now,
        ready: count(&pods::is_ready, &active),
        terminating: count(&pods::is_terminating, &pods),
        active,
        settled,
        before,
        succeeded: 0,
        failed: 0,
        succeeded_before: Indexes::default(),
        succeeded_indexes: Indexes::default(),
        failed_indexes: None,
        kept: Default::default(),
        backoff: Record::default(),
        group: None,
        losses_until: memory.losses.until(now),
        wanted,
        pods,
    };
    count_pods(&mut sync, memory);
    if sync.wanted.indexed {
        count_indexes(&mut sync);
    }
    sync
}

/// Pods that ended: those counted before and those to be counted.
fn count_pods(sync: &mut JobSync<'_>, memory: &Memory) {
    let uncounted = sync
        .before
        .uncounted_terminated_pods
        .clone()
        .unwrap_or_default();
    let (known_succeeded, known_failed) =
        (uid_set(&uncounted.succeeded), uid_set(&uncounted.failed));
    let uid = |pod: &Pod| Object::metadata(pod).uid.clone();
    let (mut succeeded, mut failed, mut old_succeeded, mut old_failed) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for pod in &sync.pods {
        let tracked = sync.is_tracked(pod) && sync.is_valid(pod);
        if phase(pod) == "Succeeded" {
            let is_new = tracked && !known_succeeded.contains(&*uid(pod));
            if is_new {
                &mut succeeded
            } else {
                &mut old_succeeded
            }
            .push(&**pod);
        } else if sync.wanted.has_failed(pod) {
            let is_new = tracked && !known_failed.contains(&*uid(pod));
            if is_new { &mut failed } else { &mut old_failed }.push(&**pod);
        }
    }
    // Where another owner has counted meanwhile, the record does not include it; the pods do.
    let is_own = memory.counters == Some(counters(&sync.before));
    let record = memory
        .backoff
        .clone()
        .filter(|_| is_own)
        .unwrap_or_else(|| {
            Record::default().with(old_succeeded.iter().copied(), old_failed.iter().copied())
        });
    let backoff = record.with(succeeded.iter().copied(), failed.iter().copied());
    let counting = failed
        .iter()
        .filter(|pod| sync.wanted.verdict(pod).counts)
        .count();
    let all_succeeded =
        i64::from(sync.before.succeeded) + number(succeeded.len() + uncounted.succeeded.len());
    let all_failed = i64::from(sync.before.failed) + number(counting + uncounted.failed.len());
    sync.backoff = backoff;
    sync.succeeded = all_succeeded;
    sync.failed = all_failed;
}

/// Counts indexes that have succeeded or failed for good, and finds the pod that records how often each has
/// failed.
fn count_indexes(sync: &mut JobSync<'_>) {
    let completions = sync.wanted.index_count();
    sync.succeeded_before = Indexes::parse(&sync.before.completed_indexes, completions);
    let tracked = |test: &dyn Fn(&Pod) -> bool| -> BTreeSet<i64> {
        sync.pods
            .iter()
            .filter(|pod| orphans::is_tracked(pod) && test(pod))
            .filter_map(|pod| indexes::valid(pod, completions))
            .collect()
    };
    let succeeded = sync
        .succeeded_before
        .with(&tracked(&|pod| phase(pod) == "Succeeded"));
    let failed = sync.wanted.per_index.map(|limit| {
        let before = sync.before.failed_indexes.as_deref().unwrap_or("");
        let gone = tracked(&|pod| {
            if !sync.wanted.has_failed(pod) {
                return false;
            }
            let verdict = sync.wanted.verdict(pod);
            verdict.action == Some(policies::Action::FailIndex)
                || (verdict.counts && manage::index_failures(pod).0 >= limit)
        });
        Indexes::parse(before, completions).with(&gone)
    });
    sync.succeeded = succeeded.count();
    if let Some(failed) = &failed {
        sync.kept = manage::kept_failures(sync, &succeeded, failed);
    }
    sync.succeeded_indexes = succeeded;
    sync.failed_indexes = failed;
}

/// Why the Job is finished, if it is; the order is upstream's, a reason that was reported before comes
/// first.
fn finish(sync: &JobSync<'_>, plan: &mut Plan) -> Result<Option<Finish>, Refusal> {
    let reported = |r#type: &str, success| {
        conditions::find(&sync.before.conditions, r#type)
            .filter(|condition| condition.status == "True")
            .map(|condition| Finish {
                success,
                reason: condition.reason.clone(),
                message: condition.message.clone(),
                reported: true,
            })
    };
    let by_policy = || {
        sync.pods
            .iter()
            .filter(|pod| sync.wanted.has_failed(pod))
            .find_map(|pod| sync.wanted.verdict(pod).message)
            .map(|message| Finish::failure("PodFailurePolicy", message))
    };
    if let Some(finish) = reported("SuccessCriteriaMet", true)
        .or_else(|| reported("FailureTarget", false))
        .or_else(by_policy)
    {
        return Ok(Some(finish));
    }
    if sync.failed > i64::from(sync.wanted.backoff_limit) || has_restarted_too_often(sync)? {
        return Ok(Some(Finish::failure(
            "BackoffLimitExceeded",
            "Job has reached the specified backoff limit",
        )));
    }
    if let Some(deadline) = deadline(sync) {
        if deadline <= sync.now {
            return Ok(Some(Finish::failure(
                "DeadlineExceeded",
                "Job was active longer than specified deadline",
            )));
        }
        plan.requeue_at(deadline);
    }
    Ok(by_indexes(sync))
}

fn by_indexes(sync: &JobSync<'_>) -> Option<Finish> {
    if !sync.wanted.indexed {
        return None;
    }
    let completions = sync.wanted.index_count();
    if let Some(failed) = &sync.failed_indexes {
        let most = sync.wanted.spec.max_failed_indexes;
        if most.is_some_and(|most| failed.count() > i64::from(most)) {
            return Some(Finish::failure(
                "MaxFailedIndexesExceeded",
                "Job has exceeded the specified maximal number of failed indexes",
            ));
        }
        let all = failed.count() + sync.succeeded_indexes.count();
        if failed.count() > 0 && all >= i64::from(completions) {
            return Some(Finish::failure("FailedIndexes", "Job has failed indexes"));
        }
    }
    let policy = sync.wanted.spec.success_policy.as_ref();
    policies::success(policy, completions, &sync.succeeded_indexes).map(|message| Finish {
        success: true,
        reason: "SuccessPolicy".to_owned(),
        message,
        reported: false,
    })
}

/// When the Job has been active for too long.
fn deadline(sync: &JobSync<'_>) -> Option<Timestamp> {
    let seconds = sync.wanted.spec.active_deadline_seconds?;
    if sync.wanted.suspended {
        return None;
    }
    let start = pods::instant(sync.before.start_time).unwrap_or(sync.now);
    Some(
        start
            .checked_add(SignedDuration::from_secs(seconds))
            .unwrap_or(Timestamp::MAX),
    )
}

/// Containers that are restarted within their pod fail without a pod failing.
fn has_restarted_too_often(sync: &JobSync<'_>) -> Result<bool, Refusal> {
    let template = sync.wanted.spec.template.as_ref();
    let spec = template.map_or(&[][..], |template| &template.spec);
    let restarts_on_failure = podspec::containers::restarts_on_failure(spec)
        .map_err(|error| Refusal::Wait(error.to_string()))?;
    if !restarts_on_failure {
        return Ok(false);
    }
    let restarts: i64 = sync
        .pods
        .iter()
        .filter(|pod| matches!(phase(pod), "Running" | "Pending"))
        .filter_map(|pod| pod.status.as_ref())
        .flat_map(|status| {
            status
                .container_statuses
                .iter()
                .chain(&status.init_container_statuses)
        })
        .map(|container| i64::from(container.restart_count))
        .sum();
    let limit = i64::from(sync.wanted.backoff_limit);
    Ok(restarts >= limit.max(1))
}

fn is_complete(sync: &JobSync<'_>, active: i64) -> bool {
    active == 0
        && match sync.wanted.completions {
            // One pod's success shows that the work is done; the others are waited for.
            None => sync.succeeded > 0,
            Some(completions) => sync.succeeded >= i64::from(completions),
        }
}

/// Assembles the plan.
fn decide(
    gates: Gates,
    view: &View,
    sync: &JobSync<'_>,
    seen: &Snapshot<'_>,
    memory: &mut Memory,
    is_whole: bool,
) -> Result<Plan, Refusal> {
    let job = sync.job;
    let mut plan = Plan::nothing();
    let status_first = std::mem::take(&mut memory.manage_failed);
    let mut finish = finish(sync, &mut plan)?;
    let mut status = sync.before.clone();
    if status.start_time.is_none() && !sync.wanted.suspended {
        status.start_time = Some(sync.now.into());
    }
    let is_managed = finish.is_none() && !job.is_terminating();
    let managed = if finish.is_some() {
        manage::delete_all(sync)
    } else if is_managed {
        manage::manage(sync, seen, &mut plan)?
    } else {
        manage::Managed::default()
    };
    if status_first && finish.is_some() && !managed.is_nothing() {
        // Nothing is over while pods can't be deleted.
        finish = None;
    }
    // What is written after the status can't be in it.
    let predicted = if status_first {
        &manage::NOTHING
    } else {
        &managed.change
    };
    let active = number(sync.active.len()) + predicted.active;
    let all_have_ended = sync.active.is_empty() && sync.terminating == 0;
    let mut event = None;
    if finish.is_none() {
        if is_complete(sync, active) {
            finish = Some(Finish {
                success: true,
                reason: "CompletionsReached".to_owned(),
                message: "Reached expected number of succeeded pods".to_owned(),
                reported: false,
            });
        } else if is_managed {
            event = suspend_or_resume(gates, &mut status, sync);
        }
    }
    status.active = i32::try_from(active).unwrap_or(i32::MAX);
    status.ready = Some(i32::try_from(sync.ready + predicted.ready).unwrap_or(i32::MAX));
    status.terminating =
        Some(i32::try_from(sync.terminating + predicted.terminating).unwrap_or(i32::MAX));

    let counted = track::count(
        sync,
        &mut status,
        finish.as_ref(),
        memory,
        is_whole,
        &mut plan,
    );
    if finish.is_some() && all_have_ended && !counted.finalizers.is_empty() {
        // Only what this plan itself removes is left; the Job is complete when the cache has seen that.
        plan.requeue_now();
    }
    if !managed.is_nothing() || !counted.finalizers.is_empty() {
        view.count(&mut plan);
    }
    if !status_first {
        managed.put(&mut plan, job);
        plan.then();
    }
    track::report(&mut plan, sync, &status, &counted, event, memory, is_whole);
    plan.then();
    for pod in &counted.finalizers {
        orphans::remove_finalizer(&mut plan, pod);
    }
    if status_first {
        plan.then();
        managed.put(&mut plan, job);
    }
    plan.stages.retain(|stage| !stage.is_empty());
    let mode = sync.wanted.mode();
    plan.measure(SYNCS, &[mode, "success", managed.label()], 1.0);
    plan.time(SYNC_SECONDS, &[mode, "success", managed.label()]);
    measure_failure(&mut plan, mode, managed.label());
    Ok(plan)
}

/// What metrics say of a sync where it fails.
fn measure_failure(plan: &mut Plan, mode: &str, label: &str) {
    plan.measure_on_failure(SYNCS, &[mode, "error", label], 1.0);
    plan.time_on_failure(SYNC_SECONDS, &[mode, "error", label]);
}

/// The event and status for a Job that is suspended or resumed; sets its clock.
fn suspend_or_resume(gates: Gates, status: &mut JobStatus, sync: &JobSync<'_>) -> Option<Event> {
    let mut condition = JobCondition {
        r#type: "Suspended".to_owned(),
        last_probe_time: Some(sync.now.into()),
        last_transition_time: Some(sync.now.into()),
        ..Default::default()
    };
    if sync.wanted.suspended {
        condition.status = "True".to_owned();
        condition.reason = "JobSuspended".to_owned();
        condition.message = "Job suspended".to_owned();
        ensure(&mut status.conditions, condition).then(|| {
            if gates.mutable_scheduling_directives {
                status.start_time = None;
            }
            Event::normal(sync.job, "Suspended", "Job suspended")
        })
    } else {
        condition.status = "False".to_owned();
        condition.reason = "JobResumed".to_owned();
        condition.message = "Job resumed".to_owned();
        ensure(&mut status.conditions, condition).then(|| {
            // The deadline is for the time that a Job is active without a suspension.
            status.start_time = Some(sync.now.into());
            Event::normal(sync.job, "Resumed", "Job resumed")
        })
    }
}
