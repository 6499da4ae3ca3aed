//! Deletes a finished Job once its `ttlSecondsAfterFinished` has passed.
//!
//! Watches jobs; deletes jobs, their pods first; a key per Job; remembers nothing. A Job whose TTL was
//! raised meanwhile survives: upstream by a live read, here by deleting only the version seen. A Job that
//! says it has finished but not when is refused, and retried with back-off, as upstream does. One whose
//! finish time lies in the future, by its writer's clock, is waited for.

use controllers_kit::{
    Controller, Descriptor, Flags, Key, MetricKind, Only, Plan, Propagation, Refusal, Sharding,
    SignedDuration, Snapshot, Timestamp, Watches, conditions,
};
use kubernetes_proto::{Object, batch::Job};

const DELETION_SECONDS: &str = "ttl_after_finished_controller_job_deletion_duration_seconds";

/// The controller.
pub struct TtlAfterFinished;

impl Controller for TtlAfterFinished {
    type Memory = ();

    fn describe() -> Descriptor {
        Descriptor::new("ttl-after-finished-controller", Sharding::ByObject)
            .aliases(&["ttl-after-finished"])
            .queue("ttl_jobs_to_delete")
            .workers(
                "concurrent-ttl-after-finished-syncs",
                5,
                "The number of finished Jobs that each replica handles concurrently.",
            )
            .metric(
                DELETION_SECONDS,
                MetricKind::Histogram(0.1, 2.0, 14),
                &[],
                "Delay between the expiry of a Job's TTL and its deletion.",
            )
            .rule("batch", "jobs", &["get", "list", "watch", "delete"])
            .differences(include_str!("differences.md"))
    }

    fn new(_: &Flags) -> Self {
        Self
    }

    fn watch(&self, on: &mut Watches) {
        on.kind::<Job>().wakes_itself();
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, (): &mut ()) -> Result<Plan, Refusal> {
        let Some(job) = seen.get::<Job>(key).filter(|job| !job.is_terminating()) else {
            return Ok(Plan::nothing());
        };
        let Some(expiry) = expiry(&job)? else {
            return Ok(Plan::nothing());
        };
        if seen.now < expiry {
            return Ok(Plan::nothing().requeued_at(expiry));
        }
        let mut plan = Plan::nothing();
        let late = seen.now.duration_since(expiry).as_secs_f64();
        plan.delete(&*job, Only::ThisVersion, Propagation::Foreground)
            .measure(DELETION_SECONDS, &[], late);
        Ok(plan)
    }
}

/// When the Job expires; `None` while it runs or has no TTL.
fn expiry(job: &Job) -> Result<Option<Timestamp>, Refusal> {
    let ttl = job
        .spec
        .as_ref()
        .and_then(|spec| spec.ttl_seconds_after_finished);
    let (Some(ttl), Some(finished)) = (ttl, conditions::finished(job)) else {
        return Ok(None);
    };
    let Some(since) = finished.last_transition_time else {
        return Err(Refusal::Retry(format!(
            "unable to find the time when the Job {} finished",
            Key::of(job)
        )));
    };
    let expiry = since
        .timestamp()
        .checked_add(SignedDuration::from_secs(ttl.into()));
    // Past the end of the calendar it never comes.
    Ok(Some(expiry.unwrap_or(Timestamp::MAX)))
}

#[cfg(test)]
mod tests;
