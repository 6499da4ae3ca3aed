//! One key, once: ask, plan, prove, apply, learn.

mod proof;
mod steps;

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use controllers_kit::{
    Action, Key, Measure, Memory, Outcome, Plan, Requeue, Resource, Severity, SignedDuration,
    StatusWrite, Str, Timestamp, Verb, Written, guard::guarded, postconditions::Breach,
};
use node_telemetry::trace::{self, Ended, Reconciling, Woken};

pub(crate) use proof::is_object;

use crate::{
    apply::{Applied, is_report},
    gate::Stopped,
    queue::Monotonic,
    server::Sender,
    shared::{Origin, Shared, Unit},
};
use coordinator::Care;
use tokio::sync::OwnedSemaphorePermit;

/// Actions of a plan that `/debug/explain` shows.
const EXPLAINED_ACTIONS_MAX: usize = 20;

/// What the cache must have seen before the key is planned again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Mark {
    /// A write.
    Version(&'static Resource, u64),
    /// A deletion: the object of that uid is gone or on its way out.
    Gone(&'static Resource, Key, Str),
    /// The removal of what held an object that was on its way out: the object of that uid is gone.
    Removed(&'static Resource, Key, Str),
}

/// One key that is to be reconciled.
pub struct Job {
    /// The controller's place in [`Shared::units`].
    pub unit: u16,
    /// The key.
    pub key: Key,
    /// The controller's memory of it.
    pub memory: Memory,
    /// In whose name.
    pub sender: Sender,
    /// Whether what a plan counts must be checked against the API server: the range was taken over, or a
    /// write of the key before may have happened without having left a mark.
    pub unproven: bool,
    /// Whether the object that the key is about must be, too.
    pub head_unproven: bool,
    /// What others have done to the key was done by then: a cache that holds all that there was at a later
    /// instant needs no proof. `None` where a write of our own is in doubt, of which nobody knows when it
    /// happens.
    pub settled: Option<Monotonic>,
    /// The newest version of what has happened to the key. Where the watch of the object that it is about has
    /// not come so far, the object may be another by now, or gone: what has happened may be that.
    pub evidence: u64,
    /// When a report may be written.
    pub report_from: ReportFrom,
    /// How long it has waited.
    pub waited: Duration,
    /// Whether it waited behind all others.
    pub low_priority: bool,
    /// Failures in a row before this attempt.
    pub failures: u32,
    /// What woke it, where that is traced.
    pub woken: Option<Box<Woken>>,
    /// The trace of the owner before, to be linked.
    pub link: Option<Arc<str>>,
    /// Whether it is the first since the range was gained.
    pub is_first: bool,
    /// The object by which it was woken, if any.
    pub origin: Option<Box<Origin>>,
    /// What lets it work beside that number of others; given back while it waits for a slow answer.
    pub permit: Option<OwnedSemaphorePermit>,
}

/// Why an attempt has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// HTTP status of the refusal that it is due to, or the one that corresponds to the failure.
    pub code: Option<u16>,
    /// The error.
    pub why: String,
}

/// When a key that has reported may report again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportFrom {
    /// How things are ([`StatusWrite::Observed`]).
    pub seen: Monotonic,
    /// How far something has come ([`StatusWrite::Progress`]).
    pub underway: Monotonic,
}

impl ReportFrom {
    /// When what a plan reports may be written: as soon as the least patient of its reports.
    pub(crate) fn of(self, plan: &Plan) -> Monotonic {
        let underway = |action: &Action| action.report() == StatusWrite::Progress;
        let seen = |action: &Action| action.report() == StatusWrite::Observed;
        match plan.actions().any(underway) && !plan.actions().any(seen) {
            true => self.underway,
            false => self.seen,
        }
    }
}

/// When a key is examined again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// On a change.
    Change,
    /// After this time too.
    After(Duration),
    /// When a report may be written again; failures in a row stay counted.
    Postponed(Duration),
    /// At once.
    Now,
    /// At once, since the plan was dropped: what it rests on was compared with the server, and the next one
    /// rests on that. Nothing was written, so failures in a row stay counted.
    Replan,
    /// After the back-off that failures in a row make; the text says why. `error` distinguishes a fault from
    /// a conflict.
    Backoff {
        /// The reason, for people.
        why: String,
        /// Whether it counts as an error.
        error: bool,
    },
    /// The range was frozen or lost meanwhile: the key waits on.
    Stopped(Stopped),
}

/// What became of it.
pub struct Done {
    /// The controller.
    pub unit: u16,
    /// The key.
    pub key: Key,
    /// The controller's memory of it.
    pub memory: Memory,
    /// What the cache must have seen before the next plan.
    pub marks: Vec<Mark>,
    /// When it is examined again.
    pub next: Next,
    /// Whether its plan was dropped and nothing was sent, since what the plan rests on was not proven.
    pub dropped: bool,
    /// Whether what it counts is proven now.
    pub proven: bool,
    /// Whether the object that the key is about is proven now.
    pub head_proven: bool,
    /// Whether it is unknown if some write happened: its answer was lost, or it was given up on its way.
    pub doubtful: bool,
    /// Whether such a write may still be in the server's hands.
    pub late_write: bool,
    /// Whether a report was written.
    pub reported: bool,
    /// As the metrics say it.
    pub result: &'static str,
    /// Why it has failed, if it has.
    pub trouble: Option<Trouble>,
    /// For what change it waits, where the controller refused to plan.
    pub waits: Option<String>,
    /// The object by which it was woken, if any.
    pub origin: Option<Box<Origin>>,
    /// The plan in words.
    pub plan: Vec<String>,
    /// How many objects were examined for it.
    pub objects: usize,
    /// When it began.
    pub began: Timestamp,
    /// That instant, for what comes after it.
    pub since: Monotonic,
    /// How long it took.
    pub took: Duration,
    /// How long it had waited before.
    pub waited: Duration,
    /// Writes that succeeded.
    pub writes: u64,
    /// The trace it left, if traces are exported.
    pub trace: Option<Arc<str>>,
}

impl Done {
    /// A key that was not reconciled: its range was frozen or lost before it began.
    pub fn stopped(shared: &Shared, job: Job, stopped: Stopped) -> Self {
        let outcome = Attempt::ended(Next::Stopped(stopped));
        let result = outcome.result();
        Self {
            unit: job.unit,
            key: job.key,
            memory: job.memory,
            marks: outcome.marks,
            result,
            trouble: None,
            waits: None,
            origin: job.origin,
            next: outcome.next,
            dropped: outcome.dropped,
            proven: outcome.proven,
            head_proven: outcome.head_proven,
            doubtful: outcome.doubtful,
            late_write: outcome.late_write,
            reported: outcome.reported,
            plan: outcome.plan,
            objects: outcome.objects,
            began: shared.clock.now(),
            since: shared.clock.monotonic(),
            took: Duration::ZERO,
            waited: job.waited,
            writes: outcome.writes,
            trace: None,
        }
    }
}

/// Reconciles a key; with any care only once the replica's Lease names it.
pub async fn reconcile_with(shared: Arc<Shared>, job: Job, care: Care) -> Done {
    let controller = shared.units[usize::from(job.unit)].name();
    let enter = || {
        let (key, now) = (job.key.clone(), shared.clock.monotonic());
        shared.watchlist.enter(controller, key, care, now)
    };
    if care == Care::None {
        let _flight = enter();
        return reconcile(shared, job).await;
    }
    let gate = Arc::clone(&job.sender.gate);
    let announced = async {
        let room = match care {
            Care::Announced => {
                let room = Arc::clone(&shared.watchlist.announced);
                room.acquire_owned().await.ok()
            }
            Care::Alone | Care::None => None,
        };
        let flight = enter();
        shared.fence.announced().await;
        (room, flight)
    };
    let begun = tokio::select! {
        biased;
        stopped = gate.stopped() => Err(stopped),
        announced = announced => Ok(announced),
    };
    match begun {
        Ok(_until_done) => reconcile(shared, job).await,
        Err(stopped) => Done::stopped(&shared, job, stopped),
    }
}

/// Reconciles a key.
pub async fn reconcile(shared: Arc<Shared>, mut job: Job) -> Done {
    let unit = &shared.units[usize::from(job.unit)];
    unit.working.fetch_add(1, Ordering::Relaxed);
    unit.queue_metrics.started(job.waited);
    let start = Instant::now();
    let (began, since) = (shared.clock.now(), shared.clock.monotonic());
    let tracing = trace(&shared, unit, &mut job);
    let outcome = steps::attempt(&shared, &mut job).await;
    let took = start.elapsed();
    for timing in &outcome.timings {
        job.sender.metrics.measure(&Measure {
            value: took.as_secs_f64(),
            ..timing.clone()
        });
    }
    unit.working.fetch_sub(1, Ordering::Relaxed);
    unit.reconciles.fetch_add(1, Ordering::Relaxed);
    unit.queue_metrics.finished(took);
    let result = outcome.result();
    unit.metrics.reconciled(result);
    let trace = tracing.and_then(|tracing| {
        let ended = Ended {
            result,
            error: outcome.fault(),
            writes: outcome.writes,
            actions: outcome.actions,
        };
        tracing.end(&*shared.view, shared.clock.now().as_second(), &ended)
    });
    if !matches!(outcome.next, Next::Stopped(_)) {
        unit.metrics.synced(outcome.code, took);
    }
    match &outcome.next {
        Next::Backoff { why, .. } if outcome.expected => {
            tracing::debug!(controller = unit.name(), key = %job.key, error = %why, "reconcile failed");
        }
        Next::Backoff { why, error: true } => {
            tracing::warn!(controller = unit.name(), key = %job.key, error = %why, "reconcile failed");
        }
        _ => {}
    }
    let trouble = outcome.trouble();
    Done {
        unit: job.unit,
        key: job.key,
        memory: job.memory,
        marks: outcome.marks,
        result,
        trouble,
        waits: outcome.waits,
        origin: job.origin,
        next: outcome.next,
        dropped: outcome.dropped,
        proven: outcome.proven,
        head_proven: outcome.head_proven,
        doubtful: outcome.doubtful,
        late_write: outcome.late_write,
        reported: outcome.reported,
        plan: outcome.plan,
        objects: outcome.objects,
        began,
        since,
        took,
        waited: job.waited,
        writes: outcome.writes,
        trace: trace.map(Into::into),
    }
}

/// Begins the trace of a reconcile, where there are traces.
fn trace(shared: &Shared, unit: &Unit, job: &mut Job) -> Option<Reconciling> {
    let traces = shared.traces.as_ref()?;
    let what = trace::Reconcile {
        controller: unit.name(),
        primary: unit.primary(),
        key: job.key.clone(),
        range: job.sender.gate.range,
        epoch: job.sender.gate.epoch,
        waited: job.waited,
        low_priority: job.low_priority,
        failures: job.failures,
        woken: job.woken.take(),
        link: job.link.take(),
        is_first: job.is_first,
    };
    let tracing = traces.begin(&*shared.view, shared.clock.now().as_second(), what)?;
    job.sender.trail = Some(Arc::clone(tracing.trail()));
    Some(tracing)
}

struct Attempt {
    next: Next,
    dropped: bool,
    marks: Vec<Mark>,
    proven: bool,
    head_proven: bool,
    doubtful: bool,
    late_write: bool,
    reported: bool,
    /// Whether a back-off is an everyday matter.
    expected: bool,
    plan: Vec<String>,
    actions: usize,
    objects: usize,
    writes: u64,
    /// Metrics of how long it took.
    timings: Vec<Measure>,
    /// As the API server would say it: upstream labels a few syncs by it.
    code: u16,
    /// The write that has failed most severely.
    failed: Option<Trouble>,
    /// For what change it waits.
    waits: Option<String>,
}

impl Attempt {
    fn ended(next: Next) -> Self {
        Self {
            next,
            dropped: false,
            marks: Vec::new(),
            proven: false,
            head_proven: false,
            doubtful: false,
            late_write: false,
            reported: false,
            expected: false,
            plan: Vec::new(),
            actions: 0,
            objects: 0,
            writes: 0,
            timings: Vec::new(),
            code: 200,
            failed: None,
            waits: None,
        }
    }

    /// The `result` label of metrics and traces.
    fn result(&self) -> &'static str {
        match &self.next {
            Next::Change => "success",
            Next::After(_) => "requeue_after",
            Next::Postponed(_) => "postponed",
            Next::Now | Next::Replan => "requeue",
            Next::Backoff { .. } if self.expected => "requeue",
            Next::Backoff { error: true, .. } => "error",
            Next::Backoff { error: false, .. } => "conflict",
            Next::Stopped(_) => "stopped",
        }
    }

    /// Why it failed, a fault or not: a write that was refused, or what made the key back off. A conflict is
    /// none.
    fn trouble(&self) -> Option<Trouble> {
        self.failed.clone().or(match &self.next {
            Next::Backoff { why, error: true } => Some(Trouble {
                code: None,
                why: why.clone(),
            }),
            _ => None,
        })
    }

    /// Why it failed, where that is a fault.
    fn fault(&self) -> Option<&str> {
        match &self.next {
            Next::Backoff { why, error: true } if !self.expected => Some(why),
            _ => None,
        }
    }
}

/// The memory as it was before a plan.
fn restore(job: &mut Job, unit: &Unit, before: Option<Option<Vec<u8>>>) {
    if let Some(before) = before {
        job.memory = before.map_or_else(
            || unit.controller.new_memory(),
            |packed| unit.unpack(&job.key, &packed, SignedDuration::ZERO),
        );
    }
}

/// Reports to the controller what became of each action, and notes what the cache must see.
fn learn(shared: &Shared, job: &mut Job, plan: &Plan, applied: &Applied, attempt: &mut Attempt) {
    let controller = &shared.units[usize::from(job.unit)].controller;
    for (action, outcome) in plan.actions().zip(&applied.outcomes) {
        if let Ok(written) = outcome
            && !postponed(action, applied)
        {
            attempt.writes += 1;
            attempt.marks.extend(mark(action, written));
        }
        let heard = Outcome {
            action,
            result: outcome.as_ref().cloned(),
        };
        if guarded(|| controller.learn(&heard, &mut job.memory)).is_err() {
            // A memory that may be half-changed is dropped: losing it is safe.
            job.memory = controller.new_memory();
            shared.units[usize::from(job.unit)].metrics.panicked();
        }
    }
}

fn postponed(action: &Action, applied: &Applied) -> bool {
    applied.postponed && is_report(action)
}

fn mark(action: &Action, written: &Written) -> Option<Mark> {
    match &action.verb {
        Verb::Delete { .. } => Some(Mark::Gone(
            action.resource,
            action.key.clone(),
            action.uid.clone(),
        )),
        Verb::DeleteCollection { .. } => None,
        // What holds a namespace is in its spec: it goes by being finalized alone.
        _ if written.gone && action.resource.id() != "namespaces" => Some(Mark::Removed(
            action.resource,
            action.key.clone(),
            written.uid.clone(),
        )),
        // What is rewritten is what it was: nobody's cache has to see it first.
        _ if action.is_rewrite() => None,
        _ if written.resource_version != 0 => {
            Some(Mark::Version(action.resource, written.resource_version))
        }
        _ => None,
    }
}

/// Decides when the key is examined again, from what failed; whether the reconcile has failed.
fn settle(
    shared: &Shared,
    report_from: Monotonic,
    plan: &Plan,
    applied: &Applied,
    attempt: &mut Attempt,
) -> bool {
    if let Some(stopped) = applied.stopped {
        attempt.next = Next::Stopped(stopped);
        return false;
    }
    let failed = plan
        .actions()
        .zip(&applied.outcomes)
        .filter_map(|(action, outcome)| Some((action, outcome.as_ref().err()?)))
        .filter(|(action, failure)| !action.is_done(failure))
        .max_by_key(|(_, failure)| failure.class().severity);
    if let Some((action, failure)) = failed {
        let class = failure.class();
        attempt.code = match action.is_moot(failure) {
            true => 200,
            false => class.code,
        };
        if class.severity >= Severity::Error {
            attempt.failed = Some(Trouble {
                code: Some(class.code),
                why: format!("{action} ({}): {failure}", class.label),
            });
        }
        if class.severity == Severity::Terminating {
            // Nothing can be made there; the deletion of the objects is what comes next, and it wakes the
            // key.
            attempt.next = Next::Change;
            return false;
        }
        attempt.next = Next::Backoff {
            why: format!("{action} ({}): {failure}", class.label),
            error: class.severity >= Severity::Error,
        };
        if let Some(pause) = applied.retry_after {
            attempt.next = Next::After(pause);
        }
        return true;
    }
    if let Some(why) = &plan.failure {
        attempt.code = 500;
        attempt.next = Next::Backoff {
            why: why.clone(),
            error: true,
        };
        return true;
    }
    if applied.postponed {
        let wait = report_from.saturating_sub(shared.clock.monotonic());
        attempt.next = match attempt.next {
            Next::After(earlier) => Next::Postponed(earlier.min(wait)),
            Next::Now => Next::Now,
            _ => Next::Postponed(wait),
        };
    }
    false
}

fn after(plan: &Plan, now: Timestamp) -> Next {
    match plan.requeue {
        Requeue::Never => Next::Change,
        Requeue::Now => Next::Now,
        Requeue::At(at) => {
            Next::After(Duration::try_from(at.duration_since(now)).unwrap_or(Duration::ZERO))
        }
    }
}

fn explained(plan: &Plan) -> Vec<String> {
    let mut words: Vec<String> = plan
        .actions()
        .take(EXPLAINED_ACTIONS_MAX)
        .map(ToString::to_string)
        .collect();
    let more = plan.actions().count().saturating_sub(EXPLAINED_ACTIONS_MAX);
    if more > 0 {
        words.push(format!("and {more} more"));
    }
    words
}

fn panicked(shared: &Shared, job: &mut Job, panic: &str) -> Attempt {
    let unit = &shared.units[usize::from(job.unit)];
    unit.metrics.panicked();
    tracing::error!(controller = unit.name(), key = %job.key, %panic, "plan panicked; the key is backed off");
    job.memory = unit.controller.new_memory();
    Attempt::ended(Next::Backoff {
        why: format!("the plan panicked: {panic}"),
        error: true,
    })
}

/// A plan that must not be applied. The memory may already hold what the plan was to do, so it is dropped.
fn breached(shared: &Shared, job: &mut Job, breach: &Breach) -> Attempt {
    let unit = &shared.units[usize::from(job.unit)];
    unit.metrics.breached();
    tracing::error!(controller = unit.name(), key = %job.key, %breach, "plan broke a post-condition and is not applied; the key is backed off");
    job.memory = unit.controller.new_memory();
    Attempt::ended(Next::Backoff {
        why: format!("the plan broke a post-condition: {breach}"),
        error: true,
    })
}

#[cfg(test)]
mod tests {
    use controllers_kit::{Failure, testing::config_map};
    use kubernetes_proto::{
        Object as _,
        core::{Node, Pod},
    };

    use super::*;

    #[test]
    fn a_key_that_can_be_no_object_of_a_resource_is_not_asked_for() {
        for (resource, key, can) in [
            (Pod::resource(), Key::new("shop", "web"), true),
            // Of a cluster-scoped object, for a controller whose other keys are pods.
            (Pod::resource(), Key::cluster("web"), false),
            (Pod::resource(), Key::within("shop", "claim", "web"), false),
            (Node::resource(), Key::cluster("n1"), true),
            (Node::resource(), Key::composite("zone", "a"), false),
        ] {
            assert_eq!(is_object(resource, &key), can, "{} {key}", resource.plural);
        }
    }

    #[test]
    fn a_creation_in_a_namespace_that_ends_is_no_error_of_the_sync() {
        let mut plan = Plan::nothing();
        plan.create(&config_map("kube-root-ca.crt"));
        plan.delete(
            &config_map("kube-root-ca.crt"),
            controllers_kit::Only::ThisUid,
            controllers_kit::Propagation::Background,
        );
        let actions: Vec<&Action> = plan.actions().collect();
        let why = || "why".to_owned();
        for (action, failure, moot) in [
            (0, Failure::NamespaceTerminating(why()), true),
            (0, Failure::NotFound(why()), true),
            (0, Failure::Forbidden(why()), false),
            (0, Failure::AlreadyExists(why()), false),
            (1, Failure::NotFound(why()), false),
        ] {
            assert_eq!(actions[action].is_moot(&failure), moot, "{failure:?}");
        }
    }
}
