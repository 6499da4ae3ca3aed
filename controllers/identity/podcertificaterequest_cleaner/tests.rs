use controllers_kit::{
    Controller, FlagValue, Flags, Only, Requeue, Runs, Verb,
    testing::{Common, World, at, identity::pod_certificate_request},
};
use kubernetes_proto::certificates::PodCertificateRequest;

use super::{GATE, PodCertificateRequestCleaner};

fn outcome(request: PodCertificateRequest) -> (bool, Requeue) {
    let plan = World::at("12:00:00")
        .with(request)
        .plan::<PodCertificateRequestCleaner>("web");
    for action in plan.actions() {
        assert!(matches!(
            action.verb,
            Verb::Delete {
                only: Only::ThisUid,
                ..
            }
        ));
    }
    (!plan.is_nothing(), plan.requeue)
}

#[test]
fn a_request_goes_a_quarter_of_an_hour_after_it_was_made() {
    let made = |time| pod_certificate_request("web").created(time);
    let table = [
        (made("11:45:00"), (true, Requeue::Never)),
        (made("11:45:01"), (false, Requeue::At(at("12:00:01")))),
        (made("12:00:00"), (false, Requeue::At(at("12:15:00")))),
        (made("2026-03-01T12:00:00Z"), (true, Requeue::Never)),
        // By a clock that is ahead of this one.
        (made("13:00:00"), (false, Requeue::At(at("13:15:00")))),
        (
            made("11:00:00")
                .finalizer("example.com/hold")
                .terminating("11:59:00"),
            (false, Requeue::Never),
        ),
    ];
    for (request, expected) in table {
        assert_eq!(outcome(request.clone()), expected, "{request:?}");
    }
}

#[test]
fn the_controller_runs_where_the_gate_is_on() {
    let descriptor = PodCertificateRequestCleaner::describe();
    let mut flags = Flags::defaults([&descriptor]);
    assert!(matches!((descriptor.runs)(&flags), Runs::No(_)));
    flags.set(GATE, FlagValue::Bool(true));
    assert_eq!((descriptor.runs)(&flags), Runs::Yes);
}
