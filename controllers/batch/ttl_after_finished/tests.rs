use controllers_kit::{
    Plan, Refusal,
    testing::{Common, JobBuild, World, at, contract, job},
};
use kubernetes_proto::batch::Job;

use super::TtlAfterFinished;
use crate::REGISTRY;

#[test]
fn a_finished_job_goes_when_its_ttl_is_over_and_not_before() {
    let world = World::at("12:00:00").with(job("pi").finished("11:59:00").ttl(90));
    assert_eq!(
        world.plan::<TtlAfterFinished>("pi"),
        Plan::nothing().requeued_at(at("12:00:30"))
    );
    assert!(world.later(29).plan::<TtlAfterFinished>("pi").is_nothing());
    assert_eq!(
        world.later(30).plan::<TtlAfterFinished>("pi").verbs(),
        ["delete jobs/pi"]
    );
}

#[test]
fn only_a_finished_job_with_a_ttl_goes() {
    let table = [
        (job("j").ttl(0), false),
        (job("j").finished("11:00:00"), false),
        (job("j").failed("11:00:00"), false),
        (job("j").finished("11:00:00").ttl(0), true),
        (job("j").failed("11:00:00").ttl(0), true),
        (job("j").finished("12:00:00").ttl(0), true),
        (job("j").finished("11:00:00").ttl(3600), true),
        (job("j").finished("11:00:00").ttl(3601), false),
        (job("j").finished("13:00:00").ttl(0), false),
        (
            job("j").condition("Complete", "False", "11:00:00").ttl(0),
            false,
        ),
        (
            job("j")
                .condition("FailureTarget", "True", "11:00:00")
                .ttl(0),
            false,
        ),
        (
            job("j")
                .finished("11:00:00")
                .ttl(0)
                .finalizer("example.com/hold")
                .terminating("11:30:00"),
            false,
        ),
        (job("j").finished("11:00:00").ttl(i32::MAX), false),
    ];
    for (job, goes) in table {
        let plan = World::at("12:00:00")
            .with(job.clone())
            .plan::<TtlAfterFinished>("j");
        assert_eq!(!plan.is_nothing(), goes, "{job:?}");
    }
    assert_eq!(
        World::at("12:00:00").plan::<TtlAfterFinished>("gone"),
        Plan::nothing()
    );
}

#[test]
fn the_first_finishing_condition_counts() {
    let world = World::at("12:00:00").with(
        job("j")
            .condition("Suspended", "False", "10:00:00")
            .failed("11:59:50")
            .finished("11:00:00")
            .ttl(60),
    );
    assert_eq!(
        world.plan::<TtlAfterFinished>("j"),
        Plan::nothing().requeued_at(at("12:00:50"))
    );
}

#[test]
fn a_job_finished_at_an_unknown_time_is_refused() {
    let world = World::at("12:00:00").with(job("j").condition("Complete", "True", "").ttl(0));
    assert_eq!(
        world.refusal::<TtlAfterFinished>("j"),
        Refusal::Retry("unable to find the time when the Job default/j finished".into())
    );
}

#[test]
fn a_ttl_past_the_end_of_the_calendar_never_comes() {
    let world = World::at("12:00:00").with(
        job("j")
            .condition("Complete", "True", "9999-12-30T00:00:00Z")
            .ttl(i32::MAX),
    );
    assert!(world.plan::<TtlAfterFinished>("j").is_nothing());
}

#[test]
fn a_job_goes_after_its_pods_and_one_whose_ttl_was_raised_stays() {
    let mut world = World::at("12:00:00").with(job("pi").finished("11:59:00").ttl(60));
    let stale = world.plan::<TtlAfterFinished>("pi");
    world.change::<Job>("pi", |job| {
        job.spec.as_mut().unwrap().ttl_seconds_after_finished = Some(600);
    });
    let applied = world.apply(&stale);
    assert_eq!(applied.failures().len(), 1, "{applied:?}");
    assert!(world.run::<TtlAfterFinished>().is_empty());

    let mut world = world.later(540);
    world.run::<TtlAfterFinished>();
    let job = world.get::<Job>("pi");
    assert_eq!(
        job.metadata.as_ref().unwrap().finalizers,
        ["foregroundDeletion"]
    );
    world.step();
    assert!(world.find::<Job>("pi").is_none());
}

#[test]
fn the_contract_holds() {
    let worlds = [
        World::at("12:00:00")
            .with(job("soon").finished("11:59:00").ttl(90))
            .with(job("now").failed("11:00:00").ttl(60))
            .with(job("runs").ttl(1))
            .with(job("kept").finished("11:00:00")),
        World::at("12:00:00")
            .with(
                job("held")
                    .finished("11:00:00")
                    .ttl(0)
                    .finalizer("example.com/hold"),
            )
            .with(job("timeless").condition("Complete", "True", "").ttl(0))
            .with(
                job("other")
                    .in_namespace("shop")
                    .finished("12:10:00")
                    .ttl(0),
            ),
    ];
    contract::covers(
        REGISTRY,
        &[
            "ttl-after-finished-controller",
            "job-controller",
            "cronjob-controller",
        ],
    );
    contract::check(&REGISTRY[0], worlds);
}
