//! One evaluation of one autoscaler: read the scale, compute, limit, write scale and status.

use std::sync::Arc;

use controllers_kit::{
    Action, Answer, Entry, Event, Key, NOT_FOUND, Object, PatchKind, Plan, Query, Refusal,
    Snapshot, StatusWrite, Verb,
    conditions::{self, Policy},
    patch, pods,
    selectors::Selector,
};
use kubernetes_proto::{
    autoscaling::{
        HorizontalPodAutoscaler, HorizontalPodAutoscalerCondition, HorizontalPodAutoscalerSpec,
        HorizontalPodAutoscalerStatus, MetricStatus,
    },
    meta::Time,
};
use serde_json::json;

use super::{
    COMPUTATION_SECONDS, COMPUTATIONS, COUNT, DESIRED, Memory, RECONCILIATION_SECONDS,
    RECONCILIATIONS, Rescale, Settings,
    history::ANNOTATION,
    limits::{self, Limited, Wish},
    metrics::{self, Given, Outcome},
    overlap,
    replicas::{Circumstances, Tolerances},
    sources::{self, Asking, Scale},
    turn,
};

/// Rounds of queries for one evaluation: one more when the target's selector is learned, one when discovery
/// changes meanwhile. Beyond it the answers so far must do.
const ROUNDS_MAX: u8 = 4;

const ABLE: &str = "AbleToScale";
const ACTIVE: &str = "ScalingActive";
const LIMITED: &str = "ScalingLimited";
const TO_ZERO: &str = "ScaledToZero";

/// One evaluation of an autoscaler, with the plan and status in the making.
struct SyncContext<'a> {
    settings: &'a Settings,
    seen: &'a Snapshot<'a>,
    hpa: &'a HorizontalPodAutoscaler,
    spec: &'a HorizontalPodAutoscalerSpec,
    /// The status as it will be.
    status: HorizontalPodAutoscalerStatus,
    plan: Plan,
}

/// What came of computing a proposal.
enum Computed {
    Proposed(Outcome),
    /// Metrics must be queried first; the key comes again with their answers.
    Queried,
    /// The status says why.
    Failed,
}

fn target<'a>(
    spec: &HorizontalPodAutoscalerSpec,
    catalogue: &'a controllers_kit::Catalogue,
) -> Result<&'a Entry, String> {
    let target = spec.scale_target_ref.clone().unwrap_or_default();
    sources::resource(catalogue, &target.api_version, &target.kind)
}

fn target_name(spec: &HorizontalPodAutoscalerSpec) -> &str {
    spec.scale_target_ref
        .as_ref()
        .map_or("", |target| target.name.as_str())
}

/// The queries for an evaluation, if one is due.
pub(super) fn ask(
    settings: &Settings,
    key: &Key,
    seen: &Snapshot<'_>,
    memory: &Memory,
) -> Vec<Query> {
    let Some(hpa) = seen.get::<HorizontalPodAutoscaler>(key) else {
        return Vec::new();
    };
    let Some(spec) = &hpa.spec else {
        return Vec::new();
    };
    let uid = &Object::metadata(&*hpa).uid;
    if memory.is_of(uid)
        && (memory.failed.is_some() || !turn::is_due(settings, seen.now, uid, memory))
    {
        return Vec::new();
    }
    if !memory.is_of(uid) {
        return Vec::new();
    }
    let catalogue = seen.catalogue();
    let mut queries = Vec::new();
    if let Ok(entry) = target(spec, &catalogue) {
        queries.push(sources::scale(entry, &key.namespace, target_name(spec)));
    }
    if !memory.restored {
        queries.push(live(key));
    }
    if let Some(selector) = &memory.selector {
        let asking = Asking {
            namespace: &key.namespace,
            pods: selector,
            catalogue: &catalogue,
        };
        let metrics = spec.metrics.iter().filter_map(|spec| asking.metric(spec));
        queries.extend(metrics);
    }
    queries.sort();
    queries.dedup();
    queries
}

fn live(key: &Key) -> Query {
    Query::Live {
        resource: HorizontalPodAutoscaler::resource(),
        key: key.clone(),
    }
}

pub(super) fn plan(
    settings: &Settings,
    key: &Key,
    seen: &Snapshot<'_>,
    memory: &mut Memory,
) -> Result<Plan, Refusal> {
    let Some(hpa) = seen.get::<HorizontalPodAutoscaler>(key) else {
        *memory = Memory::default();
        return Ok(Plan::nothing());
    };
    let mut plan = of(&hpa, settings, key, seen, memory)?;
    plan.measure(COUNT, &[], 1.0);
    Ok(plan)
}

/// The plan of an autoscaler that is there.
fn of(
    hpa: &HorizontalPodAutoscaler,
    settings: &Settings,
    key: &Key,
    seen: &Snapshot<'_>,
    memory: &mut Memory,
) -> Result<Plan, Refusal> {
    let meta = Object::metadata(hpa);
    // One that is being deleted keeps scaling for as long as a finalizer holds it.
    let Some(spec) = &hpa.spec else {
        *memory = Memory::default();
        return Ok(Plan::nothing());
    };
    if !memory.is_of(&meta.uid) {
        *memory = Memory::of(meta.uid.clone());
        // The first evaluation comes with the next turn.
        memory.turn = Some(turn::present(settings, seen.now, &meta.uid));
    }
    let next = turn::next(settings, seen.now, &meta.uid);
    if let Some(failed) = memory.failed.take() {
        return Ok(report_failure(hpa, failed, seen).requeued_at(next));
    }
    if !turn::is_due(settings, seen.now, &meta.uid, memory) {
        return Ok(Plan::nothing().requeued_at(next));
    }
    if !seen.catalogue().is_known() {
        return Err(Refusal::Retry(
            "what the API serves has not been discovered yet".to_owned(),
        ));
    }
    let mut context = SyncContext {
        settings,
        seen,
        hpa,
        spec,
        status: hpa.status.clone().unwrap_or_default(),
        plan: Plan::nothing(),
    };
    context.take(key, memory)?;
    let mut plan = context.plan;
    plan.requeue_at(next);
    Ok(plan)
}

/// Reports a scaling that has failed; it is retried with the next turn.
fn report_failure(
    hpa: &HorizontalPodAutoscaler,
    failed: super::Failed,
    seen: &Snapshot<'_>,
) -> Plan {
    let mut plan = Plan::nothing();
    let mut status = failed.status;
    set(
        &mut status,
        seen,
        ABLE,
        false,
        "FailedUpdateScale",
        format!(
            "the HPA controller was unable to update the target scale: {}",
            failed.why
        ),
    );
    write_status(&mut plan, hpa, status, None);
    plan
}

impl SyncContext<'_> {
    fn take(&mut self, key: &Key, memory: &mut Memory) -> Result<(), Refusal> {
        let catalogue = self.seen.catalogue();
        let reference = self.spec.scale_target_ref.clone().unwrap_or_default();
        if reference.api_version.matches('/').count() > 1 {
            let why = format!("unexpected GroupVersion string: {}", reference.api_version);
            self.no_scale(memory, &why, "spec");
            return Ok(());
        }
        let entry = match target(self.spec, &catalogue) {
            Ok(entry) => entry.clone(),
            Err(why) => {
                self.no_scale(memory, &why, "internal");
                return Ok(());
            }
        };
        let query = sources::scale(&entry, &key.namespace, &reference.name);
        let scale = match self.seen.answer(&query) {
            Some(Answer::Object(json)) => Scale::read(json),
            Some(Answer::NotFound(why)) => {
                let why = if why == NOT_FOUND && entry.has("scale") {
                    format!("{} {:?} not found", entry.resource.id(), reference.name)
                } else {
                    why.clone()
                };
                self.no_scale(memory, &why, "internal");
                return Ok(());
            }
            Some(Answer::Failed(why)) => {
                let why = why.clone();
                self.no_scale(memory, &why, "internal");
                return Ok(());
            }
            // It was not due when it was asked.
            Some(Answer::Missing) | None => {
                self.plan.requeue_now();
                return Ok(());
            }
        };
        if !memory.restored && !self.restore(key, &scale, memory)? {
            self.plan.requeue_now();
            return Ok(());
        }
        self.set(
            ABLE,
            true,
            "SucceededGetScale",
            "the HPA controller was able to get the target's current scale",
        );
        if let Some(doubtful) = memory
            .doubtful
            .take_if(|doubtful| doubtful.to == scale.replicas)
        {
            memory
                .history
                .scaled(doubtful.from, doubtful.to, doubtful.at);
        }
        memory.history.begin(scale.replicas, self.seen.now);
        self.decide(key, &entry, &scale, memory);
        Ok(())
    }

    /// Restores the previous owner's checkpoint from the API; whether it could be read.
    fn restore(&self, key: &Key, scale: &Scale, memory: &mut Memory) -> Result<bool, Refusal> {
        let json = match self.seen.answer(&live(key)) {
            Some(Answer::Object(json)) => Arc::clone(json),
            Some(Answer::Missing) => {
                return Err(Refusal::Wait("the autoscaler is gone".to_owned()));
            }
            Some(Answer::NotFound(why) | Answer::Failed(why)) => {
                return Err(Refusal::Retry(format!(
                    "what the autoscaler's last owner knew can't be read: {why}"
                )));
            }
            None => return Ok(false),
        };
        memory.restored = true;
        if self.spec.behavior.is_none() {
            return Ok(true);
        }
        if let Some(text) = json["metadata"]["annotations"][ANNOTATION].as_str() {
            memory.history.restore(text, self.seen.now);
        }
        // Scaled, but not reported: the previous owner has ended in between. A scaling by another client
        // has the same effect, and costs no more than that policies count it.
        let reported = json["status"]["desiredReplicas"]
            .as_i64()
            .and_then(|count| i32::try_from(count).ok())
            .filter(|count| *count > 0 && json["status"]["lastScaleTime"].is_string());
        if let Some(reported) = reported.filter(|reported| *reported != scale.replicas) {
            memory
                .history
                .scaled(reported, scale.replicas, self.seen.now);
        }
        Ok(true)
    }

    fn decide(&mut self, key: &Key, entry: &Entry, scale: &Scale, memory: &mut Memory) {
        let current = scale.replicas;
        let min = self.spec.min_replicas.unwrap_or(1);
        let max = self.spec.max_replicas;
        let to_zero = self.settings.scale_to_zero;
        let outside = self
            .spec
            .metrics
            .iter()
            .any(|metric| matches!(metric.r#type.as_str(), "Object" | "External"));
        let was_scaled_to_zero = to_zero && conditions::is_true(&self.status.conditions, TO_ZERO);

        let mut statuses = Vec::new();
        let (mut desired, mut reason, mut failed) = (0, String::new(), false);
        let rescale;
        if current == 0 && !(was_scaled_to_zero && (min != 0 || outside)) {
            self.set(
                ACTIVE,
                false,
                "ScalingDisabled",
                "scaling is disabled since the replica count of the target is zero",
            );
            if !to_zero {
                self.unset(TO_ZERO);
            }
            rescale = false;
        } else if current > max {
            reason = "Current number of replicas above Spec.MaxReplicas".to_owned();
            desired = max;
            rescale = true;
        } else if current < min && current != 0 {
            reason = "Current number of replicas below Spec.MinReplicas".to_owned();
            desired = min;
            rescale = true;
        } else {
            let outcome = match self.compute(key, scale, memory) {
                Computed::Proposed(outcome) => outcome,
                Computed::Queried => return,
                Computed::Failed => {
                    memory.done(self.settings, self.seen.now);
                    self.count("none", "internal");
                    return;
                }
            };
            failed = !outcome.failures.is_empty();
            let metric = outcome.replicas.unwrap_or(0);
            let by = if metric > desired {
                desired = metric;
                outcome.name.as_str()
            } else {
                ""
            };
            statuses = outcome.statuses;
            if desired > current {
                reason = format!("{by} above target");
            }
            if desired < current {
                "All metrics below target".clone_into(&mut reason);
            }
            desired = self.limit(current, desired, min, memory);
            if current == 0 && min != 0 && was_scaled_to_zero && desired < min {
                desired = min;
                if reason.is_empty() {
                    "Current number of replicas below Spec.MinReplicas".clone_into(&mut reason);
                }
            }
            rescale = desired != current;
        }
        memory.done(self.settings, self.seen.now);
        let error = if failed { "internal" } else { "none" };
        if rescale {
            self.rescale(entry, scale, (desired, &reason), statuses, memory, error);
            let zero = current > 0 && desired == 0 && min == 0 && outside;
            self.report_zero(to_zero, zero);
        } else {
            self.sizes(current, current, statuses);
            self.count("none", error);
        }
        let desired = if rescale { desired } else { current };
        let meta = Object::metadata(self.hpa);
        self.plan
            .measure(DESIRED, &[&meta.namespace, &meta.name], desired.into());
        let rescaled = rescale.then_some((current, desired));
        self.write(memory, rescaled);
    }

    // ---- metrics ----

    /// The proposal of the metrics.
    fn compute(&mut self, key: &Key, scale: &Scale, memory: &mut Memory) -> Computed {
        let selector = match self.select(scale) {
            Ok(selector) => selector,
            Err(why) => {
                self.cannot_compute(scale.replicas, Vec::new(), &why);
                return Computed::Failed;
            }
        };
        if memory.selector.as_deref() != Some(scale.selector.as_str()) {
            memory.selector = Some(scale.selector.clone());
            if memory.another_round(ROUNDS_MAX) {
                self.plan.requeue_now();
                return Computed::Queried;
            }
        }
        let pods = pods::selected(self.seen, &key.namespace, &selector);
        let scaling = overlap::scaling(self.hpa, &pods, self.seen);
        if scaling.len() > 1 {
            let why = format!(
                "pods by selector {} are controlled by multiple HPAs: {}",
                scale.selector,
                overlap::listed(&scaling)
            );
            self.warn("AmbiguousSelector", &why);
            self.set(ACTIVE, false, "AmbiguousSelector", &why);
            self.cannot_compute(scale.replicas, Vec::new(), &why);
            return Computed::Failed;
        }
        let catalogue = self.seen.catalogue();
        let asking = Asking {
            namespace: &key.namespace,
            pods: &scale.selector,
            catalogue: &catalogue,
        };
        if self.lacks_answers(&asking) && memory.another_round(ROUNDS_MAX) {
            self.plan.requeue_now();
            return Computed::Queried;
        }
        let given = Given {
            seen: self.seen,
            asking,
            with: Circumstances {
                current: scale.replicas,
                pods: &pods,
                tolerances: self.tolerances(),
                now: self.seen.now,
                cpu_initialization: self.settings.cpu_initialization,
                readiness_delay: self.settings.readiness_delay,
                pod_level: self.settings.pod_level,
            },
            present: scale.present,
        };
        let outcome = metrics::all(&self.spec.metrics, &given);
        self.count_metrics(&outcome);
        for failure in &outcome.failures {
            self.warn(failure.reason, &failure.why);
        }
        if outcome.replicas.is_none() {
            if let Some(first) = outcome.failures.first() {
                let message = format!(
                    "the HPA was unable to compute the replica count: {}",
                    first.why
                );
                self.set(ACTIVE, false, first.reason, &message);
            }
            let why = outcome
                .error()
                .unwrap_or_else(|| "no metrics are configured".to_owned());
            self.cannot_compute(scale.replicas, outcome.statuses, &why);
            return Computed::Failed;
        }
        let message = format!(
            "the HPA was able to successfully calculate a replica count from {}",
            outcome.name
        );
        self.set(ACTIVE, true, "ValidMetricFound", &message);
        Computed::Proposed(outcome)
    }

    fn select(&mut self, scale: &Scale) -> Result<Selector, String> {
        if scale.selector.is_empty() {
            let why = "selector is required";
            self.warn("SelectorRequired", why);
            self.set(
                ACTIVE,
                false,
                "InvalidSelector",
                "the HPA target's scale is missing a selector",
            );
            return Err(why.to_owned());
        }
        Selector::parse(&scale.selector).map_err(|error| {
            let why = format!(
                "couldn't convert selector into a corresponding internal selector object: {error}"
            );
            self.warn("InvalidSelector", &why);
            self.set(ACTIVE, false, "InvalidSelector", &why);
            why
        })
    }

    /// Whether a metric's query would differ by now: the served API has changed since the queries.
    fn lacks_answers(&self, asking: &Asking<'_>) -> bool {
        let metrics = self.spec.metrics.iter();
        let mut queries = metrics.filter_map(|spec| asking.metric(spec));
        queries.any(|query| self.seen.answer(&query).is_none())
    }

    fn tolerances(&self) -> Tolerances {
        let mut tolerances = Tolerances {
            down: self.settings.tolerance,
            up: self.settings.tolerance,
        };
        let Some(behavior) = self
            .spec
            .behavior
            .as_ref()
            .filter(|_| self.settings.configurable_tolerance)
        else {
            return tolerances;
        };
        let of = |rules: &Option<kubernetes_proto::autoscaling::HpaScalingRules>| {
            rules.as_ref()?.tolerance.as_ref()?.approximate()
        };
        if let Some(down) = of(&behavior.scale_down) {
            tolerances.down = down;
        }
        if let Some(up) = of(&behavior.scale_up) {
            tolerances.up = up;
        }
        tolerances
    }

    fn limit(&mut self, current: i32, desired: i32, min: i32, memory: &mut Memory) -> i32 {
        let wish = Wish {
            current,
            desired,
            min,
            max: self.spec.max_replicas,
            now: self.seen.now,
        };
        let behavior = self.spec.behavior.as_ref();
        let Limited {
            replicas,
            able,
            limited,
        } = limits::apply(wish, behavior, self.settings.window, &mut memory.history);
        self.set(ABLE, true, able.0, able.1);
        self.set(LIMITED, limited.0, limited.1, limited.2);
        replicas
    }

    // ---- what is written ----

    fn rescale(
        &mut self,
        entry: &Entry,
        scale: &Scale,
        (desired, reason): (i32, &str),
        statuses: Vec<MetricStatus>,
        memory: &mut Memory,
        error: &'static str,
    ) {
        let current = scale.replicas;
        // The status if the scaling fails.
        let mut unscaled = self.status.clone();
        set_sizes(
            &mut unscaled,
            current,
            self.status.desired_replicas,
            statuses.clone(),
        );
        memory.rescale = Some(Rescale {
            from: current,
            to: desired,
            at: self.seen.now,
            unscaled,
        });
        let action = if desired > current {
            "scale_up"
        } else {
            "scale_down"
        };
        let message = format!("New size: {desired}; reason: {reason}");
        let failure = Event::warning(self.hpa, "FailedRescale", format!("{message}; error: "));
        let success = Event::normal(self.hpa, "SuccessfulRescale", message);
        self.plan
            .act(Action {
                verb: Verb::Patch {
                    subresource: "scale",
                    kind: PatchKind::Merge,
                    patch: json!({"spec": {"replicas": desired}}),
                    report: StatusWrite::No,
                },
                resource: entry.resource,
                key: Key::new(
                    Object::metadata(self.hpa).namespace.clone(),
                    target_name(self.spec),
                ),
                uid: scale.uid.clone(),
                resource_version: scale.resource_version,
                announcement: None,
            })
            .announce(success)
            .announce_failure(failure)
            .measure(RECONCILIATIONS, &[action, error], 1.0)
            .measure_failure(RECONCILIATIONS, &["none", "internal"], 1.0);
        self.plan.time(RECONCILIATION_SECONDS, &[action, error]);
        self.plan.then();
        let message =
            format!("the HPA controller was able to update the target scale to {desired}");
        self.set(ABLE, true, "SucceededRescale", &message);
        self.sizes(current, desired, statuses);
        self.status.last_scale_time = Some(Time::from(self.seen.now));
    }

    fn report_zero(&mut self, gate: bool, zero: bool) {
        if !gate {
            self.unset(TO_ZERO);
        } else if zero {
            self.set(
                TO_ZERO,
                true,
                "ScaledToZero",
                "the HPA controller scaled the workload to zero",
            );
        } else {
            self.set(
                TO_ZERO,
                false,
                "NotScaledToZero",
                "the HPA controller did not scale the workload to zero",
            );
        }
    }

    /// The scale can't be read: the conditions report it, the rest of the status stays.
    fn no_scale(&mut self, memory: &mut Memory, why: &str, error: &'static str) {
        memory.done(self.settings, self.seen.now);
        self.warn("FailedGetScale", why);
        let message =
            format!("the HPA controller was unable to get the target's current scale: {why}");
        self.set(ABLE, false, "FailedGetScale", &message);
        self.count("none", error);
        let status = self.status.clone();
        write_status(&mut self.plan, self.hpa, status, None);
    }

    /// Nothing can be computed: the status reports the sizes, an event the reason.
    fn cannot_compute(&mut self, current: i32, statuses: Vec<MetricStatus>, why: &str) {
        let desired = self.status.desired_replicas;
        self.sizes(current, desired, statuses);
        self.warn("FailedComputeMetricsReplicas", why);
        let status = self.status.clone();
        write_status(&mut self.plan, self.hpa, status, None);
    }

    fn sizes(&mut self, current: i32, desired: i32, statuses: Vec<MetricStatus>) {
        set_sizes(&mut self.status, current, desired, statuses);
    }

    fn write(&mut self, memory: &Memory, rescaled: Option<(i32, i32)>) {
        let checkpoint = self.spec.behavior.is_some().then(|| {
            let mut history = memory.history.clone();
            if let Some((from, to)) = rescaled {
                history.scaled(from, to, self.seen.now);
            }
            history.checkpoint(self.seen.now)
        });
        let status = self.status.clone();
        let kept = checkpoint.unwrap_or_default();
        write_status(&mut self.plan, self.hpa, status, Some(kept));
    }

    fn warn(&mut self, reason: &'static str, message: &str) {
        self.plan.event(Event::warning(self.hpa, reason, message));
    }

    fn set(&mut self, r#type: &str, holds: bool, reason: &str, message: &str) {
        set(
            &mut self.status,
            self.seen,
            r#type,
            holds,
            reason,
            message.to_owned(),
        );
    }

    fn unset(&mut self, r#type: &str) {
        conditions::remove(&mut self.status.conditions, r#type);
    }

    fn count(&mut self, action: &str, error: &str) {
        self.plan.measure(RECONCILIATIONS, &[action, error], 1.0);
        self.plan.time(RECONCILIATION_SECONDS, &[action, error]);
    }

    fn count_metrics(&mut self, outcome: &Outcome) {
        let present = self
            .hpa
            .status
            .as_ref()
            .map_or(0, |status| status.current_replicas);
        let mut failures = outcome.failures.iter();
        for (kind, proposal) in &outcome.proposals {
            let (action, error) = match proposal {
                Some(replicas) if *replicas > present => ("scale_up", "none"),
                Some(replicas) if *replicas < present => ("scale_down", "none"),
                Some(_) => ("none", "none"),
                None if failures.next().is_some_and(|failure| failure.spec) => ("none", "spec"),
                None => ("none", "internal"),
            };
            self.plan.measure(COMPUTATIONS, &[action, error, kind], 1.0);
            self.plan.time(COMPUTATION_SECONDS, &[action, error, kind]);
        }
    }
}

fn set_sizes(
    status: &mut HorizontalPodAutoscalerStatus,
    current: i32,
    desired: i32,
    statuses: Vec<MetricStatus>,
) {
    status.current_replicas = current;
    status.desired_replicas = desired;
    status.current_metrics = statuses;
    status.observed_generation = None;
}

/// Sets a condition; the time is that of the last change of its status.
fn set(
    status: &mut HorizontalPodAutoscalerStatus,
    seen: &Snapshot<'_>,
    r#type: &str,
    holds: bool,
    reason: &str,
    message: String,
) {
    let condition = HorizontalPodAutoscalerCondition {
        r#type: r#type.to_owned(),
        status: if holds { "True" } else { "False" }.to_owned(),
        last_transition_time: Some(Time::from(seen.now)),
        reason: reason.to_owned(),
        message,
    };
    conditions::set(&mut status.conditions, condition, Policy::InPlace);
}

/// Writes a status where it differs; the checkpoint goes along.
///
/// Without a resourceVersion precondition: nobody else writes this status, and it is right whatever a user
/// changes meanwhile. `StatusWrite::No`, because no successor would count a scaling that is not reported.
fn write_status(
    plan: &mut Plan,
    hpa: &HorizontalPodAutoscaler,
    status: HorizontalPodAutoscalerStatus,
    checkpoint: Option<String>,
) {
    let new = HorizontalPodAutoscaler {
        status: Some(status),
        ..hpa.clone()
    };
    let Some(mut patch) = patch::difference(hpa, &new, patch::Part::Status) else {
        return;
    };
    if let Some(text) = checkpoint {
        let kept = Object::metadata(hpa).annotation(ANNOTATION).unwrap_or("");
        if kept != text {
            let value = if text.is_empty() {
                serde_json::Value::Null
            } else {
                text.into()
            };
            patch["metadata"] = json!({"annotations": {ANNOTATION: value}});
        }
    }
    plan.patch(hpa, "status", PatchKind::Merge, patch, StatusWrite::No)
        .whatever_version()
        .announce_failure(Event::warning(hpa, "FailedUpdateStatus", ""));
}
