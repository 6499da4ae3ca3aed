//! Adopted and released pods, pods without a Job, Jobs of others.

use controllers_kit::{Refusal, testing::JobBuild};

use super::*;

#[test]
fn an_orphan_that_the_job_selects_is_adopted_with_the_finalizer() {
    let pi = job("pi").started("11:00:00");
    let mut orphan = untracked(pod(&pi, "lone").ready("11:30:00"));
    orphan.metadata_mut().owner_references.clear();
    let mut world = world().with(pi).with(orphan);
    let planned = plan(&world);
    assert_eq!(planned.verbs(), ["patch pods/lone"]);
    world.apply(&planned).expect_success();
    let pod = world.get::<Pod>("lone");
    assert!(super::super::orphans::is_tracked(&pod));
    assert_eq!(&*Object::metadata(&*pod).controller().unwrap().name, "pi");
    world.run::<Jobs>();
    assert_eq!(numbers(&world.get::<Job>("pi")), [1, 1, 0, 0, 0]);
}

#[test]
fn a_pod_that_the_job_selects_no_more_is_let_go_with_its_finalizer() {
    let pi = job("pi").started("11:00:00");
    let mut world = world()
        .with(pi.clone())
        .with(pod(&pi, "stray").label(UID, "other").ready("11:30:00"));
    world.run::<Jobs>();
    let pod = world.get::<Pod>("stray");
    assert!(!super::super::orphans::is_tracked(&pod));
    assert!(Object::metadata(&*pod).owner_references.is_empty());
}

#[test]
fn a_job_that_goes_adopts_nothing() {
    let pi = job("pi")
        .finalizer("foregroundDeletion")
        .terminating("11:59:00");
    let mut orphan = untracked(pod(&pi, "lone").ready("11:30:00"));
    orphan.metadata_mut().owner_references.clear();
    let world = world().with(pi).with(orphan);
    assert!(!plan(&world).verbs().contains(&"patch pods/lone".to_owned()));
}

#[test]
fn pods_of_a_job_that_is_gone_lose_the_finalizer() {
    let mut world = world().with(pod(&job("gone"), "gone-a").ready("11:30:00"));
    world.run::<Jobs>();
    assert!(!super::super::orphans::is_tracked(
        &world.get::<Pod>("gone-a")
    ));
}

#[test]
fn pods_of_a_namesake_that_is_gone_lose_it_too() {
    let before = job("pi").uid("uid-before");
    let mut world = world()
        .with(job("pi"))
        .with(pod(&before, "pi-old").exited(0, "11:30:00"));
    world.run::<Jobs>();
    assert!(!super::super::orphans::is_tracked(
        &world.get::<Pod>("pi-old")
    ));
    assert_eq!(
        numbers(&world.get::<Job>("pi"))[3],
        0,
        "it is not this Job's success"
    );
}

#[test]
fn pods_of_a_finished_job_lose_it() {
    let pi = job("pi").started("11:00:00").finished("11:59:00");
    let mut world = world()
        .with(pi.clone())
        .with(pod(&pi, "pi-a").exited(0, "11:30:00"));
    world.run::<Jobs>();
    assert!(!super::super::orphans::is_tracked(
        &world.get::<Pod>("pi-a")
    ));
}

#[test]
fn pods_of_nobody_lose_it_unless_a_job_will_adopt_them() {
    let lost = || {
        let mut pod = pod(&job("pi"), "lost").ready("11:30:00");
        pod.metadata_mut().owner_references.clear();
        pod
    };
    let tracked = |mut world: World| {
        world.run::<Jobs>();
        let pod = world.get::<Pod>("lost");
        (
            super::super::orphans::is_tracked(&pod),
            Object::metadata(&*pod).controller().is_some(),
        )
    };
    assert_eq!(tracked(world().with(lost())), (false, false));
    assert_eq!(tracked(world().with(lost()).with(job("pi"))), (true, true));
    assert_eq!(
        tracked(world().with(lost()).with(job("pi").finished("11:00:00"))),
        (false, false)
    );
    let going = job("pi").finalizer("orphan").terminating("11:00:00");
    assert_eq!(tracked(world().with(lost()).with(going)), (false, false));
    assert_eq!(
        tracked(
            world()
                .with(lost().terminating("11:59:00").finalizer("other"))
                .with(job("pi"))
        ),
        (false, false)
    );
}

#[test]
fn pods_of_other_kinds_keep_it() {
    let mut other = pod(&job("pi"), "mine").ready("11:30:00");
    other.metadata_mut().owner_references[0].api_version = "example.com/v1".into();
    let mut world = world().with(other);
    world.run::<Jobs>();
    assert!(super::super::orphans::is_tracked(&world.get::<Pod>("mine")));
}

#[test]
fn a_job_that_somebody_else_manages_is_left_alone_and_measured_once() {
    let pi = job("pi").spec(|spec| spec.managed_by = Some("example.com/queue".to_owned()));
    let world = world()
        .with(pi.clone())
        .with(pod(&pi, "pi-a").exited(0, "11:30:00"));
    let mut memory = Memory::default();
    let first = world.plan_with::<Jobs>("pi", &mut memory).unwrap();
    assert!(first.is_nothing());
    assert_eq!(first.measures.len(), 1);
    assert_eq!(
        first.measures[0].name,
        "job_controller_jobs_by_external_controller_total"
    );
    assert_eq!(first.measures[0].labels, ["example.com/queue"]);
    assert!(
        world
            .plan_with::<Jobs>("pi", &mut memory)
            .unwrap()
            .measures
            .is_empty()
    );
    let own =
        job("pi").spec(|spec| spec.managed_by = Some("kubernetes.io/job-controller".to_owned()));
    assert!(!plan(&super::world().with(own)).is_nothing());
}

#[test]
fn an_unknown_completion_mode_is_reported_once_and_left_alone() {
    let world =
        world().with(job("pi").spec(|spec| spec.completion_mode = Some("Later".to_owned())));
    let mut memory = Memory::default();
    let first = world.plan_with::<Jobs>("pi", &mut memory).unwrap();
    assert_eq!(first.events.len(), 1);
    assert_eq!(
        first.events[0].message,
        "Skipped Job sync because completion mode is unknown"
    );
    assert!(
        world
            .plan_with::<Jobs>("pi", &mut memory)
            .unwrap()
            .is_nothing()
    );
}

#[test]
fn a_job_without_a_selector_waits() {
    let world = world().with(job("pi").spec(|spec| spec.selector = None));
    assert_eq!(
        world.refusal::<Jobs>("pi"),
        Refusal::Wait("Job default/pi selects nothing".to_owned())
    );
}

#[test]
fn a_job_that_is_deleted_lets_its_pods_go() {
    let mut world = world().with(job("pi").parallel(2).completions(2));
    world.settle(&[JOBS]);
    assert_eq!(world.all::<Pod>().len(), 2);
    world.delete::<Job>("pi");
    world.settle(&[JOBS]);
    assert!(world.all::<Pod>().is_empty());
    assert!(world.all::<Job>().is_empty());
}

#[test]
fn a_job_that_is_deleted_in_the_foreground_goes_after_its_pods() {
    let mut world = world().with(job("pi").parallel(2).completions(2));
    world.settle(&[JOBS]);
    let job = world.get::<Job>("pi");
    let mut plan = Plan::nothing();
    plan.delete(
        &*job,
        controllers_kit::Only::ThisUid,
        controllers_kit::Propagation::Foreground,
    );
    world.apply(&plan).expect_success();
    world.settle(&[JOBS]);
    assert!(world.all::<Pod>().is_empty());
    assert!(world.all::<Job>().is_empty());
}
