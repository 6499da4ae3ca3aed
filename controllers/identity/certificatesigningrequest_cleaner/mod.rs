//! Deletes CertificateSigningRequests that nobody needs any more.
//!
//! Watches CertificateSigningRequests; deletes them, with the version seen as precondition; a key per
//! request; remembers nothing. A request is deleted an hour after it was issued, denied or failed, a day
//! after it was created or approved without a result, and when its certificate has expired. A condition
//! without a time never counts as old.

use controllers_kit::{
    Controller, Descriptor, Flags, Key, Only, Plan, Propagation, Refusal, Sharding, SignedDuration,
    Snapshot, Timestamp, Watches,
};
use kubernetes_proto::{Object, certificates::CertificateSigningRequest, meta::Time};

use crate::{
    requests::{self, APPROVED, DENIED, FAILED},
    x509,
};

/// How long what has been decided stays.
const DECIDED: SignedDuration = SignedDuration::from_hours(1);
/// Past a deadline: instants are read to the nanosecond, and a request goes after its deadline.
const PAST: SignedDuration = SignedDuration::from_nanos(1);
/// How long what waits for somebody stays.
const PENDING: SignedDuration = SignedDuration::from_hours(24);

/// The controller.
pub struct CertificateSigningRequestCleaner;

impl Controller for CertificateSigningRequestCleaner {
    type Memory = ();

    fn describe() -> Descriptor {
        Descriptor::new(
            "certificatesigningrequest-cleaner-controller",
            Sharding::ByObject,
        )
        .aliases(&["csrcleaner"])
        .service_account("certificate-controller")
        .rule(
            requests::GROUP,
            requests::RESOURCE,
            &["get", "list", "watch", "delete"],
        )
        .differences(include_str!("differences.md"))
    }

    fn new(_: &Flags) -> Self {
        Self
    }

    fn watch(&self, on: &mut Watches) {
        on.kind::<CertificateSigningRequest>().wakes_itself();
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, (): &mut ()) -> Result<Plan, Refusal> {
        let mut plan = Plan::nothing();
        let request = seen
            .get::<CertificateSigningRequest>(key)
            .filter(|request| !request.is_terminating());
        let Some(request) = request else {
            return Ok(plan);
        };
        match end(&request) {
            // Older than its time, not as old.
            Some(end) if end < seen.now => {
                plan.delete(&*request, Only::ThisVersion, Propagation::Background);
            }
            Some(end) => plan.requeue_at(end.saturating_add(PAST).unwrap_or(Timestamp::MAX)),
            None => {}
        }
        Ok(plan)
    }
}

/// When a request goes, if ever.
fn end(request: &CertificateSigningRequest) -> Option<Timestamp> {
    let after = |time: Option<&Time>, long| {
        let time = time.filter(|time| !time.is_zero())?;
        time.timestamp().checked_add(long).ok()
    };
    let status = request.status.clone().unwrap_or_default();
    let issued = !status.certificate.is_empty();
    let mut ends = Vec::new();
    if status.conditions.is_empty() {
        let made = Object::metadata(request).creation_timestamp;
        ends.push(after(made.as_ref(), PENDING));
    }
    for condition in &status.conditions {
        let since = condition.last_update_time.as_ref();
        match condition.r#type.as_str() {
            APPROVED if issued => {
                ends.push(after(since, DECIDED));
                ends.push(x509::not_after(&status.certificate));
            }
            APPROVED => ends.push(after(since, PENDING)),
            DENIED | FAILED => ends.push(after(since, DECIDED)),
            _ => {}
        }
    }
    ends.into_iter().flatten().min()
}

#[cfg(test)]
mod tests;
