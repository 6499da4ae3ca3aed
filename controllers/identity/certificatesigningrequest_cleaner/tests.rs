use controllers_kit::{
    Only, Requeue, SignedDuration, Verb,
    testing::{
        Common, World, at,
        identity::{RequestBuild, certificate_signing_request},
    },
};
use kubernetes_proto::certificates::CertificateSigningRequest;

use super::CertificateSigningRequestCleaner;
use crate::x509::tests::certificate_until;

fn request() -> CertificateSigningRequest {
    certificate_signing_request("web")
}

/// The outcome for a request at noon: whether it is deleted, and when it is requeued.
fn outcome(request: CertificateSigningRequest) -> (bool, Requeue) {
    let plan = World::at("12:00:00")
        .with(request)
        .plan::<CertificateSigningRequestCleaner>("web");
    for action in plan.actions() {
        let is_of_what_was_seen = matches!(
            action.verb,
            Verb::Delete {
                only: Only::ThisVersion,
                ..
            }
        );
        assert!(is_of_what_was_seen && action.resource_version > 0);
    }
    (!plan.is_nothing(), plan.requeue)
}

const GONE: (bool, Requeue) = (true, Requeue::Never);

/// A request goes after its deadline, not at it.
fn stays_until(time: &str) -> (bool, Requeue) {
    let past = at(time) + SignedDuration::from_nanos(1);
    (false, Requeue::At(past))
}

#[test]
fn each_rule_holds_on_either_side_of_its_deadline() {
    let valid = certificate_until("2027-03-02T12:00:00Z");
    let over = certificate_until("2026-03-02T11:59:59Z");
    let soon = certificate_until("2026-03-02T12:30:00Z");
    let yesterday = "2026-03-01T11:59:59Z";
    let exactly_a_day = "2026-03-01T12:00:00Z";
    let table = [
        ("pending for a day", request().created(yesterday), GONE),
        (
            "pending for exactly a day",
            request().created(exactly_a_day),
            stays_until("12:00:00"),
        ),
        (
            "issued more than an hour ago",
            request().condition("Approved", "10:59:59").issued(&valid),
            GONE,
        ),
        (
            "issued exactly an hour ago",
            request().condition("Approved", "11:00:00").issued(&valid),
            stays_until("12:00:00"),
        ),
        (
            "issued, and the certificate is over",
            request().condition("Approved", "11:59:00").issued(&over),
            GONE,
        ),
        (
            "issued, and the certificate is over soon",
            request().condition("Approved", "11:59:00").issued(&soon),
            stays_until("12:30:00"),
        ),
        (
            "issued, and the certificate ends now",
            request()
                .condition("Approved", "11:59:00")
                .issued(&certificate_until("2026-03-02T12:00:00Z")),
            stays_until("12:00:00"),
        ),
        (
            "issued, and nobody has approved it",
            request().condition("Denied", "11:30:00").issued(&over),
            stays_until("12:30:00"),
        ),
        (
            "issued with something that can't be read",
            request()
                .condition("Approved", "11:59:00")
                .issued("garbage"),
            stays_until("12:59:00"),
        ),
        (
            "issued without a condition that says so",
            request().condition("Other", "10:00:00").issued(&over),
            (false, Requeue::Never),
        ),
        (
            "denied more than an hour ago",
            request().condition("Denied", "10:59:59"),
            GONE,
        ),
        (
            "denied exactly an hour ago",
            request().condition("Denied", "11:00:00"),
            stays_until("12:00:00"),
        ),
        (
            "failed more than an hour ago",
            request().condition("Failed", "10:59:59"),
            GONE,
        ),
        (
            "failed exactly an hour ago",
            request().condition("Failed", "11:00:00"),
            stays_until("12:00:00"),
        ),
        (
            "approved for a day and not issued",
            request().condition("Approved", yesterday),
            GONE,
        ),
        (
            "approved for exactly a day and not issued",
            request().condition("Approved", exactly_a_day),
            stays_until("12:00:00"),
        ),
        (
            "of several the first counts",
            request()
                .condition("Approved", "11:30:00")
                .condition("Failed", "11:10:00"),
            stays_until("12:10:00"),
        ),
        (
            "decided at no time",
            request().created(yesterday).condition("Denied", ""),
            (false, Requeue::Never),
        ),
    ];
    for (name, request, expected) in table {
        assert_eq!(outcome(request), expected, "{name}");
    }
}

#[test]
fn a_request_that_is_decided_on_meanwhile_stays() {
    let mut world = World::at("12:00:00").with(request().created("2026-03-01T11:00:00Z"));
    let plan = world.plan::<CertificateSigningRequestCleaner>("web");
    world.change::<CertificateSigningRequest>("web", |held| {
        *held = held.clone().condition("Approved", "12:00:00");
    });
    assert_eq!(world.apply(&plan).failures().len(), 1);
    assert!(world.find::<CertificateSigningRequest>("web").is_some());
}

#[test]
fn terminating_and_missing_requests_are_left_alone() {
    let old = request()
        .created("2026-03-01T11:00:00Z")
        .finalizer("example.com/hold")
        .terminating("11:00:00");
    assert_eq!(outcome(old), (false, Requeue::Never));
    let plan = World::at("12:00:00").plan::<CertificateSigningRequestCleaner>("web");
    assert!(plan.is_nothing());
}
