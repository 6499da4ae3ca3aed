//! The status of a budget.

use std::{collections::BTreeMap, sync::Arc};

use controllers_kit::{
    Event, Key, Object, Plan, Refusal, Said, SignedDuration, Snapshot, Timestamp,
    conditions::{self, Policy},
    pods,
    selectors::in_messages,
};
use kubernetes_proto::{
    core::Pod,
    meta::{Condition, Time},
    policy::{PodDisruptionBudget, PodDisruptionBudgetStatus},
};

use super::{
    DELETION_TIMEOUT,
    expected::{self, Failed},
};

/// When a count that failed is made again.
const AGAIN: SignedDuration = SignedDuration::from_secs(30);
/// A pod's deadline must have passed, not just been reached.
const PAST: SignedDuration = SignedDuration::from_millis(1);

const ALLOWED: &str = "DisruptionAllowed";

pub(super) fn budget(key: &Key, seen: &Snapshot<'_>, said: &mut Said) -> Result<Plan, Refusal> {
    let mut plan = Plan::nothing();
    let Some(budget) = seen.get::<PodDisruptionBudget>(key) else {
        *said = Said::default();
        return Ok(plan);
    };
    if !seen.catalogue().is_known() {
        return Err(Refusal::Retry(
            "what the API serves has not been discovered yet".to_owned(),
        ));
    }
    let status = match count(&budget, seen, &mut plan) {
        Ok(status) => status,
        Err(failed) => {
            if failed.again {
                plan.requeue_at(seen.now + AGAIN);
            }
            Some(nothing_allowed(&budget, &failed.why, seen))
        }
    };
    if let Some(status) = status {
        let new = PodDisruptionBudget {
            status: Some(status),
            ..PodDisruptionBudget::clone(&budget)
        };
        plan.update_status(&*budget, &new);
    }
    // Events about the budget are recorded once, those about pods each time.
    let uid = &Object::metadata(&*budget).uid;
    for event in std::mem::take(&mut plan.events) {
        match event.about.uid == *uid {
            true => plan.event_once(said, event),
            false => plan.event(event),
        }
    }
    said.settle();
    Ok(plan)
}

/// The status as it should be; `None` where it is unchanged.
fn count(
    budget: &PodDisruptionBudget,
    seen: &Snapshot<'_>,
    plan: &mut Plan,
) -> Result<Option<PodDisruptionBudgetStatus>, Failed> {
    let pods = expected::selected(budget, seen).map_err(|why| {
        let message = format!("Failed to get pods: {why}");
        plan.event(Event::warning(budget, "NoPods", message));
        Failed { why, again: false }
    })?;
    if pods.is_empty() {
        plan.event(Event::normal(budget, "NoPods", "No matching pods found"));
    }
    let expected = expected::count(budget, &pods, seen).inspect_err(|failed| {
        let message = format!(
            "Failed to calculate the number of expected pods: {}",
            failed.why
        );
        plan.event(Event::warning(
            budget,
            "CalculateExpectedPodCountFailed",
            message,
        ));
    })?;
    if expected.unmanaged {
        let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        let message = format!(
            "Pods selected by this PodDisruptionBudget (selector: {}) were found to be unmanaged. As a result, the \
             status of the PDB cannot be calculated correctly, which may result in undefined behavior. To account for \
             these pods please set \".spec.minAvailable\" field of the PDB to an integer value.",
            in_messages(selector)
        );
        plan.event(Event::warning(budget, "UnmanagedPods", message));
    }
    let evicted = still_evicted(budget, &pods, seen.now, plan);
    let healthy = pods
        .iter()
        .filter(|pod| {
            let meta = Object::metadata(&***pod);
            !meta.is_terminating()
                && pods::is_ready(pod)
                && !is_going(&evicted, &meta.name, seen.now)
        })
        .count();
    let healthy = i32::try_from(healthy).unwrap_or(i32::MAX);
    let spare = healthy.saturating_sub(expected.healthy);
    // Without an expected pod nothing is allowed: its first pod may exist before this status is written.
    let allowed = if expected.count > 0 { spare.max(0) } else { 0 };

    let old = budget.status.clone().unwrap_or_default();
    let generation = Object::metadata(budget).generation;
    let mut new = PodDisruptionBudgetStatus {
        observed_generation: generation,
        disrupted_pods: evicted,
        disruptions_allowed: allowed,
        current_healthy: healthy,
        desired_healthy: expected.healthy,
        expected_pods: expected.count,
        conditions: old.conditions.clone(),
    };
    if new == old && says_so(&old) {
        return Ok(None);
    }
    let (holds, reason) = verdict(allowed);
    set(&mut new.conditions, holds, reason, "", generation, seen.now);
    Ok(Some(new))
}

fn verdict(allowed: i32) -> (&'static str, &'static str) {
    if allowed > 0 {
        ("True", "SufficientPods")
    } else {
        ("False", "InsufficientPods")
    }
}

/// Whether the condition agrees with the number of allowed disruptions.
fn says_so(status: &PodDisruptionBudgetStatus) -> bool {
    conditions::find(&status.conditions, ALLOWED).is_some_and(|condition| {
        (condition.status.as_str(), condition.reason.as_str())
            == verdict(status.disruptions_allowed)
    })
}

fn set(
    conditions: &mut Vec<Condition>,
    holds: &str,
    reason: &str,
    message: &str,
    generation: i64,
    now: Timestamp,
) {
    let condition = Condition {
        r#type: ALLOWED.to_owned(),
        status: holds.to_owned(),
        observed_generation: generation,
        last_transition_time: Some(Time::from(now)),
        reason: reason.to_owned(),
        message: message.to_owned(),
    };
    conditions::set(conditions, condition, Policy::InPlace);
}

/// The count is unknown: nothing may be evicted until it is known.
fn nothing_allowed(
    budget: &PodDisruptionBudget,
    why: &str,
    seen: &Snapshot<'_>,
) -> PodDisruptionBudgetStatus {
    let mut status = budget.status.clone().unwrap_or_default();
    status.disruptions_allowed = 0;
    let generation = status.observed_generation;
    set(
        &mut status.conditions,
        "False",
        "SyncFailed",
        why,
        generation,
        seen.now,
    );
    status
}

fn is_going(evicted: &BTreeMap<String, Time>, name: &str, now: Timestamp) -> bool {
    evicted
        .get(name)
        .is_some_and(|since| pods::after(since.timestamp(), DELETION_TIMEOUT) > now)
}

/// The pods whose eviction was granted and that are not gone yet. A pod that still exists after its
/// deadline gets an event and counts again.
fn still_evicted(
    budget: &PodDisruptionBudget,
    pods: &[Arc<Pod>],
    now: Timestamp,
    plan: &mut Plan,
) -> BTreeMap<String, Time> {
    let mut still = BTreeMap::new();
    let Some(status) = &budget.status else {
        return still;
    };
    let namespace = &Object::metadata(budget).namespace;
    for pod in pods {
        let meta = Object::metadata(&**pod);
        let since = status.disrupted_pods.get(meta.name.as_str());
        let Some(since) = since.filter(|_| !meta.is_terminating()) else {
            continue;
        };
        let end = controllers_kit::pods::after(since.timestamp(), DELETION_TIMEOUT);
        if end < now {
            // Upstream names the namespace twice.
            let message = format!(
                "Pod was expected by PDB {namespace}/{namespace} to be deleted but it wasn't"
            );
            plan.event(Event::warning(&**pod, "NotDeleted", message));
        } else {
            plan.requeue_at(controllers_kit::pods::after(end, PAST));
            still.insert(meta.name.to_string(), *since);
        }
    }
    still
}
