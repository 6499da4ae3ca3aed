//! Deletes PodCertificateRequests a quarter of an hour after they were created: their outcome is known by
//! then.
//!
//! Watches PodCertificateRequests where the server serves them; deletes them by uid; a key per request;
//! remembers nothing.

use controllers_kit::{
    Controller, Descriptor, Flags, Key, Only, Plan, Propagation, Refusal, Runs, Sharding,
    SignedDuration, Snapshot, Timestamp, Watches,
};
use kubernetes_proto::{Object, certificates::PodCertificateRequest};

const GATE: &str = "PodCertificateRequest";
/// How old they get.
const AGE: SignedDuration = SignedDuration::from_mins(15);

/// The controller.
pub struct PodCertificateRequestCleaner;

impl Controller for PodCertificateRequestCleaner {
    type Memory = ();

    fn describe() -> Descriptor {
        Descriptor::new(
            "podcertificaterequest-cleaner-controller",
            Sharding::ByObject,
        )
        .service_account("podcertificaterequestcleaner")
        .gate(GATE, false)
        .runs_where(|flags| match flags.bool(GATE) {
            true => Runs::Yes,
            false => Runs::No("the feature gate PodCertificateRequest is off"),
        })
        .rule(
            "certificates.k8s.io",
            "podcertificaterequests",
            &["get", "list", "watch", "delete"],
        )
        .differences(include_str!("differences.md"))
    }

    fn new(_: &Flags) -> Self {
        Self
    }

    fn watch(&self, on: &mut Watches) {
        on.kind::<PodCertificateRequest>()
            .where_served()
            .wakes_itself();
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, (): &mut ()) -> Result<Plan, Refusal> {
        let mut plan = Plan::nothing();
        let request = seen
            .get::<PodCertificateRequest>(key)
            .filter(|request| !request.is_terminating());
        let Some(request) = request else {
            return Ok(plan);
        };
        let made = Object::metadata(&*request)
            .creation_timestamp
            .map_or(Timestamp::MIN, |time| time.timestamp());
        let end = made.checked_add(AGE).unwrap_or(Timestamp::MAX);
        if seen.now < end {
            plan.requeue_at(end);
        } else {
            plan.delete(&*request, Only::ThisUid, Propagation::Background);
        }
        Ok(plan)
    }
}

#[cfg(test)]
mod tests;
