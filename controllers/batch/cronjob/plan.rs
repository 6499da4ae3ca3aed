//! One reconcile of a CronJob: which of its Jobs have ended, which are too old, whether one is due.

use std::sync::Arc;

use controllers_kit::{
    Action, Answer, Event, Key, Only, Plan, Propagation, Query, Refusal, Said, SignedDuration,
    Snapshot, StatusWrite, Timestamp, Verb, conditions, owners, pods,
};
use jiff::tz::TimeZone;
use kubernetes_proto::{
    Object, Str,
    batch::{CronJob, CronJobSpec, CronJobStatus, Job, JobFromTemplate},
    core::ObjectReference,
    meta::ObjectMeta,
};

use super::{
    Memory, SKEW,
    schedule::{self, Schedule},
};

/// The index of Jobs by `namespace/name` of their controller, of whatever kind and uid.
pub(super) const CHILDREN: &str = "cronjob-children";

/// The time that a Job was due, in the CronJob's zone.
const SCHEDULED_AT: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";
/// Clocks differ a little: a key is requeued for this much after its next time.
const LATER: SignedDuration = SignedDuration::from_millis(100);
/// More missed times than this get a warning event.
const MISSED_MAX: i64 = 100;

/// The value of [`CHILDREN`].
pub(super) fn child_of(job: &Job) -> Vec<Str> {
    let meta = Object::metadata(job);
    meta.controller()
        .map(|owner| Str::from(format!("{}/{}", meta.namespace, owner.name)))
        .into_iter()
        .collect()
}

fn children(key: &Key, seen: &Snapshot<'_>) -> Vec<Arc<Job>> {
    seen.indexed::<Job>(CHILDREN, &format!("{}/{}", key.namespace, key.name))
}

fn uid(job: &Job) -> &Str {
    &Object::metadata(job).uid
}

fn is_active(active: &[ObjectReference], uid: &str) -> bool {
    active.iter().any(|reference| reference.uid == *uid)
}

/// Running children that are not in the status.
fn unexpected(cron: &CronJob, children: &[Arc<Job>]) -> bool {
    let active = cron
        .status
        .as_ref()
        .map_or(&[][..], |status| &status.active);
    children
        .iter()
        .any(|job| conditions::finished(job).is_none() && !is_active(active, uid(job)))
}

/// Jobs in the status that are not in the cache.
fn missing(cron: &CronJob, children: &[Arc<Job>]) -> Vec<ObjectReference> {
    let active = cron
        .status
        .as_ref()
        .map_or(&[][..], |status| &status.active);
    active
        .iter()
        .filter(|reference| children.iter().all(|job| *uid(job) != *reference.uid))
        .cloned()
        .collect()
}

fn live_job(reference: &ObjectReference) -> Query {
    Query::Live {
        resource: Job::resource(),
        key: Key::new(reference.namespace.as_str(), reference.name.as_str()),
    }
}

/// Queries for what the cache may not show yet: whether a Job is really gone, whether one is really
/// unexpected, and, as in upstream, the Jobs that are about to be replaced.
pub(super) fn ask(key: &Key, seen: &Snapshot<'_>, memory: &Memory, local: &TimeZone) -> Vec<Query> {
    let Some(cron) = seen.get::<CronJob>(key) else {
        return Vec::new();
    };
    let children = children(key, seen);
    let mut queries: Vec<Query> = missing(&cron, &children).iter().map(live_job).collect();
    if unexpected(&cron, &children) {
        queries.push(owners::recheck(cron.as_ref()));
    }
    if is_replacing(&cron, seen.now, memory, local) {
        let active = cron.status.iter().flat_map(|status| &status.active);
        queries.extend(active.map(live_job));
        queries.sort_unstable();
        queries.dedup();
    }
    queries
}

/// Whether a Job is due that replaces running ones.
fn is_replacing(cron: &CronJob, now: Timestamp, memory: &Memory, local: &TimeZone) -> bool {
    let active = cron.status.as_ref().map_or(0, |status| status.active.len());
    let Some(spec) = cron.spec.as_ref() else {
        return false;
    };
    if spec.concurrency_policy != "Replace" || active == 0 {
        return false;
    }
    let mut context = SyncContext::new(cron, spec, now, local, Said::default());
    matches!(due(&mut context, &mut memory.clone()), Due::At(..))
}

/// One reconcile: the CronJob, the clock, and the plan and status in the making.
struct SyncContext<'a> {
    cron: &'a CronJob,
    spec: &'a CronJobSpec,
    now: Timestamp,
    /// The zone of schedules that name none.
    local: &'a TimeZone,
    plan: Plan,
    /// The status as it will be written.
    status: CronJobStatus,
    /// Which events were recorded.
    said: Said,
}

impl<'a> SyncContext<'a> {
    fn new(
        cron: &'a CronJob,
        spec: &'a CronJobSpec,
        now: Timestamp,
        local: &'a TimeZone,
        said: Said,
    ) -> Self {
        Self {
            cron,
            spec,
            now,
            local,
            plan: Plan::nothing(),
            status: cron.status.clone().unwrap_or_default(),
            said,
        }
    }

    /// Records an event once; `cause` distinguishes events of the same text.
    fn record(&mut self, event: Event, cause: &str) {
        self.plan.event_once_for(&mut self.said, event, cause);
    }

    fn warn(&mut self, reason: &'static str, message: String, cause: &str) {
        self.record(Event::warning(self.cron, reason, message), cause);
    }
}

pub(super) fn plan(
    key: &Key,
    seen: &Snapshot<'_>,
    memory: &mut Memory,
    local: &TimeZone,
) -> Result<Plan, Refusal> {
    let Some(cron) = seen.get::<CronJob>(key) else {
        *memory = Memory::default();
        return Ok(Plan::nothing());
    };
    let spec = cron.spec.clone().unwrap_or_default();
    let children = children(key, seen);
    let said = std::mem::take(&mut memory.said);
    let mut context = SyncContext::new(&cron, &spec, seen.now, local, said);
    let decided = decide(&mut context, &children, seen, memory);
    match decided {
        Ok(_) => context.said.settle(),
        Err(_) => context.said.abandon(),
    }
    memory.said = context.said;
    decided?;
    Ok(context.plan)
}

fn decide(
    context: &mut SyncContext<'_>,
    children: &[Arc<Job>],
    seen: &Snapshot<'_>,
    memory: &mut Memory,
) -> Result<(), Refusal> {
    let own_due = due(context, memory);
    let just_made = match &own_due {
        Due::At(at, _) => own_child(context, children, *at),
        _ => None,
    };
    let expected = just_made.as_ref().map(|job| uid(job).clone());
    clean_up(context, children, expected.as_ref());
    see_children(context, children, expected.as_ref(), seen)?;
    see_missing(context, children, seen)?;
    if context.cron.is_terminating() {
        write_status(context);
        return Ok(());
    }
    match own_due {
        Due::Never => write_status(context),
        Due::Wrong(reason, message) => {
            context.warn(reason, message, "");
            write_status(context);
        }
        Due::Later(next) => {
            write_status(context);
            requeue(context, next);
        }
        Due::At(at, schedule) => {
            start(context, seen, at, just_made.as_deref());
            let next = next_due(context, &schedule);
            requeue(context, next);
        }
    }
    Ok(())
}

fn requeue(context: &mut SyncContext<'_>, next: Option<Timestamp>) {
    if let Some(next) = next {
        context.plan.requeue_at(next);
    }
}

// ---- the schedule ----

/// Whether a Job is due.
enum Due {
    /// It is suspended.
    Never,
    /// The schedule can't be followed: reason and message.
    Wrong(&'static str, String),
    /// Not before this time, if any.
    Later(Option<Timestamp>),
    /// A Job is due for this time.
    At(Timestamp, Schedule),
}

fn due(context: &mut SyncContext<'_>, memory: &mut Memory) -> Due {
    if context.cron.is_terminating() {
        return Due::Never;
    }
    note_schedule(context, memory);
    let spec = context.spec;
    if let Some(name) = &spec.time_zone
        && let Err(why) = schedule::zone(name, context.local)
    {
        return Due::Wrong(
            "UnknownTimeZone",
            format!("invalid timeZone: {name:?}: {why}"),
        );
    }
    if spec.suspend == Some(true) {
        return Due::Never;
    }
    let parsed = match schedule::parse(&text(context), context.local) {
        Ok(parsed) => parsed,
        Err(why) => {
            return Due::Wrong(
                "UnparseableSchedule",
                format!("unparseable schedule: {:?} : {why}", spec.schedule),
            );
        }
    };
    if is_held(context, &parsed, memory) {
        return Due::Later(memory.not_before);
    }
    match recent(context, &parsed, true) {
        Err(why) => Due::Wrong(
            "InvalidSchedule",
            format!("invalid schedule: {} : {why}", spec.schedule),
        ),
        Ok(Recent {
            last: Some(at),
            missed,
            ..
        }) => {
            if missed > MISSED_MAX {
                context.warn(
                    "TooManyMissedTimes",
                    "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew"
                        .to_owned(),
                    &at.to_string(),
                );
            }
            Due::At(at, parsed)
        }
        Ok(_) => Due::Later(next_due(context, &parsed)),
    }
}

/// Remembers in which version of the CronJob its schedule was changed. No request changes spec and status:
/// where the status differs too, more than the schedule has changed since the last reconcile.
fn note_schedule(context: &SyncContext<'_>, memory: &mut Memory) {
    let spec = context.spec;
    let zone = spec.time_zone.as_deref().unwrap_or("");
    let now = format!("{}\n{zone}", spec.schedule);
    let last_run = pods::instant(context.status.last_schedule_time);
    if memory.schedule.as_ref().is_some_and(|then| *then != now) {
        let alone = memory.last_run == last_run;
        let version = Object::metadata(context.cron).resource_version;
        memory.changed_in = if alone { version } else { 0 };
        memory.not_before = None;
    }
    memory.last_run = last_run;
    memory.schedule = Some(now);
}

/// A changed schedule begins with its next time, unless something else of the CronJob changes before: then
/// the present schedule applies as usual, and what it has missed is made up for.
fn is_held(context: &SyncContext<'_>, parsed: &Schedule, memory: &mut Memory) -> bool {
    if memory.changed_in != Object::metadata(context.cron).resource_version {
        memory.changed_in = 0;
        memory.not_before = None;
        return false;
    }
    if memory.not_before.is_none() {
        memory.not_before = next_due(context, parsed);
    }
    memory.not_before.is_some_and(|until| context.now < until)
}

/// The schedule with its zone.
fn text(context: &mut SyncContext<'_>) -> String {
    let spec = context.spec;
    if spec.schedule.contains("TZ") {
        context.warn(
            "UnsupportedSchedule",
            format!(
                "CRON_TZ or TZ used in schedule {:?} is not officially supported, see \
                 https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details",
                spec.schedule
            ),
            "",
        );
        return spec.schedule.clone();
    }
    match &spec.time_zone {
        Some(zone) => format!("TZ={zone} {}", spec.schedule),
        None => spec.schedule.clone(),
    }
}

/// What has become due since the last time.
struct Recent {
    /// The instant after which times were searched.
    since: Timestamp,
    /// The last time that has passed.
    last: Option<Timestamp>,
    /// The approximate number of times that have passed.
    missed: i64,
}

fn recent(
    context: &SyncContext<'_>,
    schedule: &Schedule,
    within_deadline: bool,
) -> Result<Recent, String> {
    let meta = Object::metadata(context.cron);
    let mut since = pods::instant(context.status.last_schedule_time)
        .or(pods::instant(meta.creation_timestamp))
        .unwrap_or(Timestamp::UNIX_EPOCH);
    if within_deadline && let Some(seconds) = context.spec.starting_deadline_seconds {
        let earliest = context
            .now
            .checked_sub(SignedDuration::from_secs(seconds))
            .unwrap_or(Timestamp::MIN);
        since = since.max(earliest);
    }
    let none = Recent {
        since,
        last: None,
        missed: 0,
    };
    let first = schedule.next(since);
    if first.is_some_and(|first| context.now < first) {
        return Ok(none);
    }
    let second = first.and_then(|first| schedule.next(first));
    let (Some(first), Some(second)) = (first, second) else {
        return Err("time difference between two schedules is less than 1 second".to_owned());
    };
    if context.now < second {
        return Ok(Recent {
            last: Some(first),
            ..none
        });
    }
    // The approximate number of missed times, from the distance of the first two.
    let distance = second.duration_since(first).as_secs();
    let missed = context.now.duration_since(first).as_secs() / distance + 1;
    // Starts one time early, so that an irregular schedule finds its own last one.
    let mut at = first
        .checked_add(SignedDuration::from_secs((missed - 2) * distance))
        .map_err(|error| error.to_string())?;
    let mut last = None;
    while let Some(next) = schedule.next(at).filter(|next| *next <= context.now) {
        last = Some(next);
        at = next;
    }
    Ok(Recent {
        since,
        last,
        missed,
    })
}

/// When the key is requeued for the schedule's next time.
fn next_due(context: &SyncContext<'_>, schedule: &Schedule) -> Option<Timestamp> {
    let after = match recent(context, schedule, false) {
        Ok(Recent {
            last: Some(last), ..
        }) => last,
        Ok(Recent {
            since, missed: 0, ..
        }) => since,
        _ => context.now,
    };
    schedule.next(after)?.checked_add(LATER).ok()
}

// ---- what there is ----

/// Deletes the oldest finished Jobs beyond the limits.
fn clean_up(context: &mut SyncContext<'_>, children: &[Arc<Job>], expected: Option<&Str>) {
    let limits = [
        ("Complete", context.spec.successful_jobs_history_limit),
        ("Failed", context.spec.failed_jobs_history_limit),
    ];
    for (r#type, limit) in limits {
        let Some(limit) = limit.and_then(|limit| usize::try_from(limit).ok()) else {
            continue;
        };
        let mut finished: Vec<&Arc<Job>> = children
            .iter()
            // A Job that was just created is recorded before it is deleted.
            .filter(|job| expected != Some(uid(job)))
            .filter(|job| conditions::finished(job).is_some_and(|found| found.r#type == r#type))
            .collect();
        let surplus = finished.len().saturating_sub(limit);
        finished.sort_by_key(|job| {
            let start = job
                .status
                .as_ref()
                .and_then(|status| pods::instant(status.start_time));
            (
                start.is_none(),
                start,
                Object::metadata(&***job).name.clone(),
            )
        });
        for job in finished.into_iter().take(surplus) {
            if !job.is_terminating() {
                delete(context, job);
            }
            let gone = uid(job).clone();
            context
                .status
                .active
                .retain(|reference| gone != *reference.uid);
        }
    }
}

fn delete(context: &mut SyncContext<'_>, job: &Job) {
    let meta = Object::metadata(job);
    let cron = context.cron;
    count_jobs(&mut context.plan, meta);
    context
        .plan
        .delete(job, Only::ThisUid, Propagation::Background)
        .announce(Event::normal(
            cron,
            "SuccessfulDelete",
            format!("Deleted job {}", meta.name),
        ))
        .announce_failure(Event::warning(cron, "FailedDelete", "Deleted job: "));
}

/// After a takeover the namespace's Jobs are read before any is made or deleted.
fn count_jobs(plan: &mut Plan, meta: &ObjectMeta) {
    let all = controllers_kit::selectors::Selector::of_labels(&[]);
    plan.counted::<Job>(&meta.namespace, &all);
}

/// Removes finished Jobs from the list and records the last success.
fn see_children(
    context: &mut SyncContext<'_>,
    children: &[Arc<Job>],
    expected: Option<&Str>,
    seen: &Snapshot<'_>,
) -> Result<(), Refusal> {
    for job in children {
        let known = is_active(&context.status.active, uid(job));
        let name = &Object::metadata(&**job).name;
        match conditions::finished(job) {
            None if !known && expected != Some(uid(job)) => {
                if is_known_live(context, job, seen)? {
                    return Err(Refusal::Wait(
                        "the CronJob is older in the cache than its Jobs".to_owned(),
                    ));
                }
                context.warn(
                    "UnexpectedJob",
                    format!("Saw a job that the controller did not create or forgot: {name}"),
                    uid(job),
                );
            }
            None => {}
            Some(finished) => {
                if known && expected != Some(uid(job)) {
                    context
                        .status
                        .active
                        .retain(|reference| *uid(job) != *reference.uid);
                    context.plan.event(Event::normal(
                        context.cron,
                        "SawCompletedJob",
                        format!("Saw completed job: {name}, condition: {}", finished.r#type),
                    ));
                }
                if finished.r#type == "Complete" {
                    note_success(context, job);
                }
            }
        }
    }
    Ok(())
}

fn note_success(context: &mut SyncContext<'_>, job: &Job) {
    let completed = job
        .status
        .as_ref()
        .and_then(|status| status.completion_time);
    let before = context.status.last_successful_time;
    if completed.is_some() && (before.is_none() || completed > before) {
        context.status.last_successful_time = completed;
    }
}

/// Whether the live status has a Job that the cached one does not.
fn is_known_live(
    context: &SyncContext<'_>,
    job: &Job,
    seen: &Snapshot<'_>,
) -> Result<bool, Refusal> {
    match seen.answer(&owners::recheck(context.cron)) {
        Some(Answer::Object(live)) => Ok(live["status"]["active"]
            .as_array()
            .is_some_and(|active| active.iter().any(|one| one["uid"] == **uid(job)))),
        Some(Answer::Missing | Answer::NotFound(_)) => {
            Err(Refusal::Wait("the CronJob is gone".to_owned()))
        }
        Some(Answer::Failed(why)) => Err(Refusal::Retry(why.clone())),
        None => Err(Refusal::Retry("the CronJob was not read".to_owned())),
    }
}

/// Removes missing Jobs from the list, or the CronJob would wait for them forever.
fn see_missing(
    context: &mut SyncContext<'_>,
    children: &[Arc<Job>],
    seen: &Snapshot<'_>,
) -> Result<(), Refusal> {
    for reference in missing(context.cron, children) {
        if !is_active(&context.status.active, &reference.uid) {
            continue;
        }
        match seen.answer(&live_job(&reference)) {
            Some(Answer::Missing | Answer::NotFound(_)) => {
                context.plan.event(Event::normal(
                    context.cron,
                    "MissingJob",
                    format!("Active job went missing: {}", reference.name),
                ));
                context
                    .status
                    .active
                    .retain(|other| other.uid != reference.uid);
            }
            Some(Answer::Object(_)) => {}
            Some(Answer::Failed(why)) => return Err(Refusal::Retry(why.clone())),
            None => {
                return Err(Refusal::Retry(format!(
                    "job {} was not read",
                    reference.name
                )));
            }
        }
    }
    Ok(())
}

// ---- starting ----

fn job_name(cron: &CronJob, at: Timestamp) -> String {
    format!("{}-{}", Object::metadata(cron).name, at.as_second() / 60)
}

/// The Job of a time that this CronJob has created and that its status does not have yet.
fn own_child(context: &SyncContext<'_>, children: &[Arc<Job>], at: Timestamp) -> Option<Arc<Job>> {
    let name = job_name(context.cron, at);
    let own = &Object::metadata(context.cron).uid;
    children
        .iter()
        .find(|job| {
            let meta = Object::metadata(&***job);
            *meta.name == *name && owners::is_controlled_by(meta, own)
        })
        .filter(|job| !is_processed(context, at) && !is_active(&context.status.active, uid(job)))
        .cloned()
}

fn is_processed(context: &SyncContext<'_>, at: Timestamp) -> bool {
    let name = job_name(context.cron, at);
    context
        .status
        .active
        .iter()
        .any(|reference| reference.name == name)
        || context
            .status
            .last_schedule_time
            .is_some_and(|last| last.timestamp() == at)
}

/// Starts the Job of a time, records one that exists already, or reports why none is started.
fn start(context: &mut SyncContext<'_>, seen: &Snapshot<'_>, at: Timestamp, made: Option<&Job>) {
    if let Some(job) = made {
        let meta = Object::metadata(job);
        context.status.active.push(ObjectReference {
            kind: "Job".to_owned(),
            namespace: meta.namespace.to_string(),
            name: meta.name.to_string(),
            uid: meta.uid.to_string(),
            api_version: "batch/v1".to_owned(),
            resource_version: meta.resource_version.to_string(),
            field_path: String::new(),
        });
        context.status.last_schedule_time = Some(at.into());
        write_status(context);
        return;
    }
    let is_late = context
        .spec
        .starting_deadline_seconds
        .is_some_and(|seconds| {
            at.checked_add(SignedDuration::from_secs(seconds))
                .is_ok_and(|until| until < context.now)
        });
    if is_late {
        let time =
            jiff::fmt::strtime::format("%a, %d %b %Y %H:%M:%S %z", &at.to_zoned(TimeZone::UTC))
                .unwrap_or_else(|_| at.to_string());
        context.warn(
            "MissSchedule",
            format!("Missed scheduled time to start a job: {time}"),
            "",
        );
        write_status(context);
        return;
    }
    if is_processed(context, at) {
        write_status(context);
        return;
    }
    if context.spec.concurrency_policy == "Forbid" && !context.status.active.is_empty() {
        let event = Event::normal(
            context.cron,
            "JobAlreadyActive",
            "Not starting job because prior execution is running and concurrency policy is Forbid",
        );
        context.record(event, &at.to_string());
        write_status(context);
        return;
    }
    let key = Key::new(
        Object::metadata(context.cron).namespace.clone(),
        job_name(context.cron, at),
    );
    if seen.get::<Job>(&key).is_some() {
        // Created by somebody else, who is responsible for it.
        write_status(context);
        return;
    }
    let is_clear = context.spec.concurrency_policy != "Replace" || replace(context, seen, at);
    write_status(context);
    if is_clear {
        context.plan.then();
        create(context, at);
    }
}

/// Deletes running Jobs, as read live; whether none is left. Where one can't be read nothing is started
/// beside it: the sync fails.
fn replace(context: &mut SyncContext<'_>, seen: &Snapshot<'_>, at: Timestamp) -> bool {
    let mut active = std::mem::take(&mut context.status.active).into_iter();
    let mut is_clear = true;
    for reference in active.by_ref() {
        let why = match seen.answer(&live_job(&reference)) {
            Some(Answer::Object(found)) => {
                replace_one(context, &reference, found);
                continue;
            }
            Some(Answer::Missing) => format!("jobs.batch {:?} not found", reference.name),
            Some(Answer::NotFound(why) | Answer::Failed(why)) => why.clone(),
            None => {
                // A time has come since the queries were made.
                context.plan.requeue_now();
                String::new()
            }
        };
        if !why.is_empty() {
            context.warn("FailedGet", format!("Get job: {why}"), &at.to_string());
            context.plan.fail(format!("job {}: {why}", reference.name));
        }
        context.status.active.push(reference);
        is_clear = false;
        break;
    }
    context.status.active.extend(active);
    context.plan.then();
    is_clear
}

/// Deletes a Job that was read live, unless another has its name by now: then the one that ran is gone.
fn replace_one(
    context: &mut SyncContext<'_>,
    reference: &ObjectReference,
    found: &serde_json::Value,
) {
    let text = |field: &str| found["metadata"][field].as_str();
    if text("uid") != Some(&reference.uid) || text("deletionTimestamp").is_some() {
        return;
    }
    let version = text("resourceVersion").and_then(|version| version.parse().ok());
    let job = Job {
        metadata: Some(ObjectMeta {
            name: reference.name.as_str().into(),
            namespace: reference.namespace.as_str().into(),
            uid: reference.uid.as_str().into(),
            resource_version: version.unwrap_or_default(),
            ..Default::default()
        }),
        ..Default::default()
    };
    delete(context, &job);
}

fn create(context: &mut SyncContext<'_>, at: Timestamp) {
    let cron = context.cron;
    let meta = Object::metadata(cron);
    let name = job_name(cron, at);
    let template = context.spec.job_template.clone().unwrap_or_default();
    let template_meta = template.metadata.unwrap_or_default();
    let mut job_meta = ObjectMeta {
        name: Str::from(name.as_str()),
        namespace: meta.namespace.clone(),
        labels: template_meta.labels,
        annotations: template_meta.annotations,
        owner_references: vec![owners::reference(cron)],
        ..Default::default()
    };
    job_meta.set_annotation(SCHEDULED_AT, &rfc3339(at, context));
    let job = JobFromTemplate {
        metadata: Some(job_meta),
        spec: template.spec,
    };
    count_jobs(&mut context.plan, meta);
    #[expect(clippy::cast_precision_loss, reason = "seconds of a delay")]
    let skew = context.now.duration_since(at).as_secs() as f64;
    context
        .plan
        .act(Action {
            verb: Verb::Create {
                body: prost::Message::encode_to_vec(&job),
            },
            resource: Job::resource(),
            key: Key::new(meta.namespace.clone(), name.as_str()),
            uid: Str::default(),
            resource_version: 0,
            announcement: None,
        })
        .announce(Event::normal(
            cron,
            "SuccessfulCreate",
            format!("Created job {name}"),
        ))
        .announce_failure(Event::warning(cron, "FailedCreate", "Error creating job: "))
        .measure(SKEW, &[], skew);
}

/// As Go writes it: `Z` for UTC, the offset otherwise. UTC for a CronJob without a zone, whatever the
/// host's.
fn rfc3339(at: Timestamp, context: &SyncContext<'_>) -> String {
    let zone = context.spec.time_zone.as_deref().unwrap_or("");
    let zone = schedule::zone(zone, context.local).unwrap_or(TimeZone::UTC);
    let offset = zone.to_offset(at);
    if offset.is_zero() {
        return at.to_string();
    }
    at.display_with_offset(offset).to_string()
}

fn write_status(context: &mut SyncContext<'_>) {
    // Skips the spec: it is unchanged and expensive to compare.
    let part = |status: Option<CronJobStatus>| CronJob {
        metadata: context.cron.metadata.clone(),
        spec: None,
        status,
    };
    let (old, new) = (
        part(context.cron.status.clone()),
        part(Some(context.status.clone())),
    );
    if context.cron.status.clone().unwrap_or_default() == context.status {
        return;
    }
    if let Some(action) = context.plan.update_status(&old, &new) {
        // What runs next is decided by it.
        action.reports(StatusWrite::No);
    }
}
