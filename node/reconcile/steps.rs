//! The steps of a reconcile, each of which may end it: ask, plan, verify, apply, learn.

use std::{ops::ControlFlow, sync::Arc, time::Instant};

use controllers_kit::{
    Answers, Landed, Plan, Refusal, Requeue, Snapshot, Timestamp, guard::guarded, postconditions,
};
use node_telemetry::trace::{Stage, Trail};

use super::{
    Attempt, Job, Next, Trouble, after, breached, explained, learn, panicked,
    proof::{Head, Unproven, lagging_head, proof},
    restore, settle,
};
use crate::{
    ask,
    queue::Monotonic,
    shadowing::Shadow,
    shared::{Shared, Unit},
    view::counting::Counting,
};

/// What a key's plan is made from.
struct Input<'a> {
    shared: &'a Arc<Shared>,
    unit: &'a Unit,
    trail: Option<Arc<Trail>>,
    view: Counting<'a>,
    answers: Answers,
    now: Timestamp,
    /// The memory before the plan, where the plan may be dropped: what it has noted as reported was not
    /// reported then.
    before: Option<Option<Vec<u8>>>,
}

impl Input<'_> {
    fn ended(&self, next: Next) -> Attempt {
        Attempt {
            objects: self.view.objects(),
            ..Attempt::ended(next)
        }
    }

    fn stage(&self, name: &'static str) -> Stage {
        Stage::begin(self.trail.as_ref(), name)
    }

    /// Drops what the plan has left in the key's memory.
    fn restore(&mut self, job: &mut Job) {
        restore(job, self.unit, self.before.take());
    }
}

/// Reconciles a key, for [`super::reconcile`], which measures it.
pub(super) async fn attempt(shared: &Arc<Shared>, job: &mut Job) -> Attempt {
    match steps(shared, job).await {
        ControlFlow::Continue(attempt) | ControlFlow::Break(attempt) => attempt,
    }
}

async fn steps(shared: &Arc<Shared>, job: &mut Job) -> ControlFlow<Attempt, Attempt> {
    let unit = &shared.units[usize::from(job.unit)];
    let mut input = Input {
        shared,
        unit,
        trail: job.sender.trail.clone(),
        view: Counting::new(&*shared.view),
        answers: Answers::new(),
        now: shared.clock.now(),
        before: None,
    };
    input.answers = ask(&input, job).await?;
    let lagging = lagging_head(shared, job);
    let may_be_dropped =
        job.unproven || job.head_unproven || lagging.is_some() || shared.shadow.is_some();
    input.before = may_be_dropped.then(|| unit.pack(&job.key, &job.memory));
    input.now = shared.clock.now();
    let by = shared.clock.monotonic();
    let (plan, mut attempt) = plan(&input, job)?;
    if let Some(shadow) = &shared.shadow {
        // In the place of all that follows: nothing is sent, so nothing is proven, marked, learnt or
        // recorded.
        attempt.next = shadowed(shadow, &mut input, job, &plan, attempt.next);
        return ControlFlow::Break(attempt);
    }
    // What ends here has sent nothing.
    let dropped = |attempt| Attempt {
        dropped: true,
        ..attempt
    };
    let attempt = verify(&mut input, job, (&plan, by), lagging, attempt)
        .await
        .map_break(dropped)?;
    ControlFlow::Continue(apply(&input, job, &plan, attempt).await)
}

/// The answers to what the controller asks before it plans.
async fn ask(input: &Input<'_>, job: &mut Job) -> ControlFlow<Attempt, Answers> {
    let (shared, unit) = (input.shared, input.unit);
    let mut stage = input.stage("ask");
    let queries = guarded(|| {
        let seen = Snapshot::new(&input.view, &input.answers, input.now);
        unit.controller.ask(&job.key, &seen, &job.memory)
    });
    let queries = match queries {
        Ok(queries) => queries,
        Err(panic) => return ControlFlow::Break(panicked(shared, job, &panic)),
    };
    stage.count("queries", queries.len());
    if queries.is_empty() {
        return ControlFlow::Continue(Answers::new());
    }
    let is_slow = ask::is_slow(&queries);
    let gives_back = is_slow && !ask::holds_its_worker(&queries);
    if gives_back {
        job.permit = None;
    }
    let answers = ask::ask(
        shared.writer.server(),
        &*shared.keys,
        &*shared.cloud,
        shared.clock.now(),
        &job.sender,
        queries,
    );
    let answers = match is_slow {
        false => answers.await,
        true => tokio::select! {
            biased;
            // A handoff does not wait for it: one that has the range next asks again.
            stopped = job.sender.gate.stopped() => {
                return ControlFlow::Break(Attempt::ended(Next::Stopped(stopped)));
            }
            answers = answers => answers,
        },
    };
    if gives_back {
        job.permit = Arc::clone(&unit.workers).acquire().await;
    }
    ControlFlow::Continue(answers)
}

/// What the controller would write, checked against what it may, and when the key is planned again.
fn plan(input: &Input<'_>, job: &mut Job) -> ControlFlow<Attempt, (Plan, Attempt)> {
    let (shared, unit) = (input.shared, input.unit);
    let thinking = Instant::now();
    let mut stage = input.stage("plan");
    let decided = guarded(|| {
        let seen = Snapshot::new(&input.view, &input.answers, input.now);
        unit.controller.plan(&job.key, &seen, &mut job.memory)
    });
    unit.metrics.planned(thinking.elapsed());
    stage.count("objects", input.view.objects());
    let plan = match decided {
        Ok(Ok(plan)) => plan,
        Ok(Err(Refusal::Wait(why))) => {
            tracing::debug!(controller = unit.name(), key = %job.key, %why, "waits for a change");
            stage.word("refusal", "wait");
            return ControlFlow::Break(Attempt {
                waits: Some(why),
                ..input.ended(Next::Change)
            });
        }
        Ok(Err(Refusal::Retry(why))) => {
            stage.fail(&why);
            return ControlFlow::Break(input.ended(Next::Backoff { why, error: true }));
        }
        Ok(Err(Refusal::Expected(why))) => {
            return ControlFlow::Break(Attempt {
                expected: true,
                ..input.ended(Next::Backoff { why, error: true })
            });
        }
        Err(panic) => return ControlFlow::Break(panicked(shared, job, &panic)),
    };
    let (descriptor, primary) = (unit.controller.descriptor(), unit.primary());
    let checked = postconditions::check(descriptor, primary, &job.key, &plan, &*shared.view);
    if let Err(breach) = checked {
        return ControlFlow::Break(breached(shared, job, &breach));
    }
    let mut attempt = input.ended(after(&plan, input.now));
    attempt.plan = explained(&plan);
    attempt.actions = plan.actions().count();
    stage.count("actions", attempt.actions);
    attempt.timings.clone_from(&plan.timings);
    tracing::debug!(controller = unit.name(), key = %job.key, plan = ?attempt.plan, unproven = job.unproven, "planned");
    ControlFlow::Continue((plan, attempt))
}

/// What a shadow does with a plan; when the key is planned again.
fn shadowed(
    shadow: &Shadow,
    input: &mut Input<'_>,
    job: &mut Job,
    plan: &Plan,
    next: Next,
) -> Next {
    if Shadow::forgets(input.unit, plan) {
        input.restore(job);
    }
    let now = input.shared.clock.monotonic();
    shadow.remember((input.unit, &job.key), &job.memory, now);
    match shadow.planned(input.shared, input.unit, &job.key, plan) {
        None => next,
        Some(again) => Next::After(match next {
            Next::After(earlier) => earlier.min(again),
            _ => again,
        }),
    }
}

/// Holds the plan, made from the cache as it was at an instant or later, against what there is by now.
async fn verify(
    input: &mut Input<'_>,
    job: &mut Job,
    (plan, by): (&Plan, Monotonic),
    lagging: Option<Head>,
    mut attempt: Attempt,
) -> ControlFlow<Attempt, Attempt> {
    let mut stage = input.stage("verify");
    let proof = proof(input.shared, job, plan, lagging, by).await;
    if let Err(Unproven {
        next: Next::Backoff { why, error },
        ..
    }) = &proof
    {
        stage.word("freshness", "not proven");
        if *error {
            stage.fail(why);
        }
    }
    drop(stage);
    match proof {
        Ok(proven) => {
            attempt.head_proven = proven.head;
            attempt.proven = proven.counted;
            if proven.compared {
                // What was compared is the cache as it is by now: it may have caught up since the plan was
                // made. The next plan rests on what is proven.
                attempt.next = Next::Replan;
                input.restore(job);
                return ControlFlow::Break(attempt);
            }
        }
        Err(unproven) => {
            if let (Some(code), Next::Backoff { why, .. }) = (unproven.code, &unproven.next) {
                attempt.failed = Some(Trouble {
                    code: Some(code),
                    why: why.clone(),
                });
            }
            attempt.next = unproven.next;
            input.restore(job);
            return ControlFlow::Break(attempt);
        }
    }
    if plan.counted.iter().any(|set| set.since > 0) {
        // What is proven is the cache as it is; the plan was made from the cache as it was.
        let again = guarded(|| {
            let seen = Snapshot::new(&input.view, &input.answers, input.now);
            let controller = &input.unit.controller;
            controller.plan(&job.key, &seen, &mut job.memory)
        });
        if !matches!(&again, Ok(Ok(again)) if again == plan) {
            attempt.next = Next::Replan;
            return ControlFlow::Break(attempt);
        }
    }
    ControlFlow::Continue(attempt)
}

/// Sends what the plan says, and has the controller learn what has become of it.
async fn apply(input: &Input<'_>, job: &mut Job, plan: &Plan, mut attempt: Attempt) -> Attempt {
    let (shared, unit) = (input.shared, input.unit);
    let report_from = job.report_from.of(plan);
    let report = shared.clock.monotonic() >= report_from;
    let stage = input.stage("apply");
    let applied = shared.writer.apply(&job.sender, plan, report).await;
    drop(stage);
    attempt.reported = applied.reported;
    let failures = applied
        .outcomes
        .iter()
        .filter_map(|outcome| outcome.as_ref().err());
    let landed = failures.map(|failure| failure.class().landed).max();
    attempt.doubtful = landed >= Some(Landed::Unknown);
    attempt.late_write = landed == Some(Landed::InFlight);
    // A plan that only waits says nothing of what there is.
    if applied.whole
        && plan.failure.is_none()
        && (!plan.measures.is_empty() || plan.requeue == Requeue::Never)
    {
        let range = job.sender.gate.range;
        unit.metrics.add_up(range, &job.key, &plan.measures);
    }
    let stage = input.stage("learn");
    learn(shared, job, plan, &applied, &mut attempt);
    drop(stage);
    if settle(shared, report_from, plan, &applied, &mut attempt) {
        for measure in &plan.on_failure.measures {
            job.sender.metrics.measure(measure);
        }
        if !plan.on_failure.timings.is_empty() {
            attempt.timings.clone_from(&plan.on_failure.timings);
        }
    }
    attempt
}
