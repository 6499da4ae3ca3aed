//! The transaction of counting, write by write.

use controllers_kit::Requeue;

use super::*;

fn uncounted(job: &Job) -> (Vec<String>, Vec<String>) {
    let uncounted = job
        .status
        .clone()
        .unwrap_or_default()
        .uncounted_terminated_pods
        .unwrap_or_default();
    (uncounted.succeeded, uncounted.failed)
}

#[test]
fn the_uid_comes_first_then_the_finalizer_goes_then_the_counter_grows() {
    let pi = job("pi").completions(2).started("11:00:00");
    let mut world = world()
        .with(pi.clone())
        .with(pod(&pi, "pi-a").exited(0, "11:50:00").uid("u1"));
    // The next pod, the list, the finalizer.
    let first = plan(&world);
    assert_eq!(
        verbs(&first),
        ["create pi", "patch jobs/pi/status", "patch pods/pi-a"]
    );
    assert_eq!(first.stages.len(), 3);
    world.apply(&first).expect_success();
    let seen = world.get::<Job>("pi");
    assert_eq!(uncounted(&seen), (vec!["u1".to_owned()], vec![]));
    assert_eq!(numbers(&seen), [1, 0, 0, 0, 0]);
    assert!(!super::super::orphans::is_tracked(
        &world.get::<Pod>("pi-a")
    ));
    // Only now it counts.
    let second = plan(&world);
    assert_eq!(second.verbs(), ["patch jobs/pi/status"]);
    world.apply(&second).expect_success();
    let seen = world.get::<Job>("pi");
    assert_eq!(uncounted(&seen), (vec![], vec![]));
    assert_eq!(numbers(&seen), [1, 0, 0, 1, 0]);
}

#[test]
fn another_replica_can_continue_after_any_write() {
    let pi = job("pi").completions(2).parallel(1).started("11:00:00");
    let begun = |finalizer: bool| {
        let pi = pi.clone().status(|status| {
            status
                .uncounted_terminated_pods
                .get_or_insert_default()
                .succeeded = vec!["u1".to_owned()];
        });
        let ended = pod(&pi, "pi-a").exited(0, "11:50:00").uid("u1");
        let ended = if finalizer { ended } else { untracked(ended) };
        world().with(pi).with(ended)
    };
    for finalizer in [true, false] {
        let mut world = begun(finalizer);
        world.settle(&[JOBS]);
        assert_eq!(
            numbers(&world.get::<Job>("pi"))[3..],
            [1, 0],
            "finalizer {finalizer}"
        );
        assert_eq!(world.all::<Pod>().len(), 2);
    }
}

#[test]
fn failed_pods_and_deleted_ones_are_counted_as_failed() {
    let pi = job("pi").started("11:00:00");
    let table = [
        (pod(&pi, "pi-a").exited(1, "11:00:00"), 1),
        (
            pod(&pi, "pi-a").ready("11:00:00").terminating("11:30:00"),
            1,
        ),
        (pod(&pi, "pi-a").ready("11:00:00"), 0),
        (
            untracked(pod(&pi, "pi-a").ready("11:00:00").terminating("11:30:00")),
            0,
        ),
    ];
    for (pod, failed) in table {
        let mut world = World::at("12:00:00").with(pi.clone()).with(pod);
        world.run::<Jobs>();
        assert_eq!(numbers(&world.get::<Job>("pi"))[4], failed);
    }
}

#[test]
fn pods_without_an_index_of_the_job_are_not_counted_but_let_go() {
    let pi = job("pi").indexed(2).limit(0).started("11:00:00");
    let mut world = world()
        .with(pi.clone())
        .with(pod(&pi, "pi-none").exited(1, "11:50:00"))
        .with(indexed(&pi, "pi-9-aaaaa", 9).exited(1, "11:50:00"));
    world.run::<Jobs>();
    assert_eq!(numbers(&world.get::<Job>("pi"))[3..], [0, 0]);
    assert!(
        world
            .all::<Pod>()
            .iter()
            .filter(|pod| pod.status.as_ref().unwrap().phase == "Failed")
            .all(|pod| !super::super::orphans::is_tracked(pod))
    );
}

#[test]
fn succeeded_indexes_stand_in_the_status_and_need_no_uid() {
    let pi = job("pi").indexed(4).started("11:00:00");
    let mut world = world().with(pi.clone());
    for index in [0, 1, 3] {
        world.put(indexed(&pi, &format!("pi-{index}-aaaaa"), index).exited(0, "11:50:00"));
    }
    world.run::<Jobs>();
    let job = world.get::<Job>("pi");
    assert_eq!(job.status.as_ref().unwrap().completed_indexes, "0,1,3");
    assert_eq!(uncounted(&job), (vec![], vec![]));
    assert_eq!(numbers(&job), [1, 0, 0, 3, 0]);
}

#[test]
fn an_index_counts_once_however_often_it_succeeds() {
    let pi = job("pi").indexed(3).started("11:00:00");
    let mut world = world()
        .with(pi.clone())
        .with(indexed(&pi, "pi-0-aaaaa", 0).exited(0, "11:50:00"))
        .with(indexed(&pi, "pi-0-bbbbb", 0).exited(0, "11:51:00"));
    world.run::<Jobs>();
    assert_eq!(numbers(&world.get::<Job>("pi"))[3], 1);
}

#[test]
fn at_most_five_hundred_uids_are_listed_at_once() {
    let pi = job("pi").completions(700).parallel(700).started("11:00:00");
    let mut world = world().with(pi.clone());
    for number in 0..700 {
        world.put(pod(&pi, &format!("pi-{number:05}")).exited(0, "11:50:00"));
    }
    let first = plan(&world);
    assert_eq!(
        first
            .actions()
            .filter(|action| action.resource.plural == "pods")
            .count(),
        500
    );
    world.apply(&first).expect_success();
    assert_eq!(uncounted(&world.get::<Job>("pi")).0.len(), 500);
    world.settle_for(5, &[JOBS]);
    let job = world.get::<Job>("pi");
    assert_eq!(numbers(&job), [0, 0, 0, 700, 0]);
    assert_eq!(
        conditions(&job).last().unwrap(),
        "Complete=True CompletionsReached"
    );
}

#[test]
fn pods_are_counted_once_a_second_unless_the_job_is_over() {
    let pi = job("pi").completions(5).parallel(2).started("11:00:00");
    let mut memory = Memory::default();
    let mut world = world()
        .with(pi.clone())
        .with(pod(&pi, "pi-a").exited(0, "11:50:00"))
        .with(pod(&pi, "pi-b").ready("11:50:00"));
    let first = world.plan_with::<Jobs>("pi", &mut memory).unwrap();
    assert!(first.verbs().contains(&"patch pods/pi-a".to_owned()));
    world.apply(&first).expect_success();
    world.change::<Pod>("pi-b", |pod| *pod = pod.clone().exited(0, "12:00:00"));
    let held = world.plan_with::<Jobs>("pi", &mut memory).unwrap();
    assert!(
        !held.verbs().contains(&"patch pods/pi-b".to_owned()),
        "{:?}",
        held.verbs()
    );
    // The place of the pod is filled at once all the same.
    assert!(verbs(&held).contains(&"create pi".to_owned()));
    assert_eq!(held.requeue, Requeue::At(at("12:00:01")));
    let later = world.later(1).plan_with::<Jobs>("pi", &mut memory).unwrap();
    assert!(
        later.verbs().contains(&"patch pods/pi-b".to_owned()),
        "{:?}",
        later.verbs()
    );
}

#[test]
fn a_write_that_counting_rests_on_is_no_report_that_may_be_put_off() {
    let is_report = |world: &World| {
        let planned = plan(world);
        let status = planned
            .actions()
            .find(|action| action.rbac_resource() == "jobs/status");
        status.expect("a status is written").report() != controllers_kit::StatusWrite::No
    };
    let pi = job("pi").started("11:00:00");
    let running = world()
        .with(pi.clone())
        .with(pod(&pi, "pi-a").ready("11:50:00"));
    assert!(is_report(&running));
    let ended = world()
        .with(pi.clone())
        .with(pod(&pi, "pi-a").exited(0, "11:50:00"));
    assert!(!is_report(&ended));
    assert!(!is_report(&world().with(job("pi"))));
    assert!(!is_report(
        &world().with(job("pi").started("11:00:00").suspended())
    ));
}

#[test]
fn a_status_is_delayed_only_while_it_promises_less_than_there_is() {
    let is_delayed = |active: i32, ready: i32, pods: &[Pod]| {
        let pi = job("pi").parallel(2).completions(2).started("11:00:00");
        let pi = pi.status(|status| {
            status.active = active;
            status.ready = Some(ready);
        });
        let world = pods.iter().cloned().fold(world().with(pi), World::with);
        // A loss has just been noticed: no replacement fills up what is missing.
        let mut memory = Memory::default();
        let generation = world.get::<Job>("pi").metadata().generation;
        let lost = pod(&job("pi"), "lost");
        memory
            .losses
            .observe(generation, [&lost; 3].into_iter(), world.now());
        memory
            .losses
            .observe(generation, [].into_iter(), world.now());
        let planned = world.plan_with::<Jobs>("pi", &mut memory).unwrap();
        let mut statuses = planned
            .actions()
            .filter(|action| action.rbac_resource() == "jobs/status");
        statuses.next().expect("a status is written").report() != controllers_kit::StatusWrite::No
    };
    let pi = job("pi");
    let (idle, ready) = (pod(&pi, "pi-a"), pod(&pi, "pi-b").ready("11:50:00"));
    let table = [
        ("more are ready", 1, 0, vec![ready.clone()], true),
        (
            "more are active",
            1,
            1,
            vec![idle.clone(), ready.clone()],
            true,
        ),
        ("fewer are ready", 1, 1, vec![idle], false),
        ("fewer are active", 2, 1, vec![ready], false),
    ];
    for (what, active, ready, pods, wanted) in table {
        assert_eq!(is_delayed(active, ready, &pods), wanted, "{what}");
    }
}

#[test]
fn an_ignored_failure_backs_off_though_nothing_else_of_the_status_changes() {
    let pi = job("pi").started("11:00:00").spec(|spec| {
        spec.pod_failure_policy = Some(parts::ignore_disruption());
    });
    let pi = pi.status(|status| status.active = 1);
    let ended = pod(&pi, "pi-a").exited(3, "12:00:00");
    let ended = PodBuild::condition(ended, "DisruptionTarget", "True", "12:00:00");
    let mut world = world().with(pi).with(ended);
    let mut memory = Memory::default();
    let planned = world.plan_with::<Jobs>("pi", &mut memory).unwrap();
    assert!(planned.verbs().contains(&"patch pods/pi-a".to_owned()));
    let status = planned
        .actions()
        .find(|action| action.rbac_resource() == "jobs/status");
    let status = status.expect("active has changed");
    assert_eq!(
        status.report(),
        controllers_kit::StatusWrite::No,
        "with it would go the record of the failure"
    );
    carry_out(&mut world, &planned, &mut memory);
    let next = world.later(2).plan_with::<Jobs>("pi", &mut memory).unwrap();
    assert!(!verbs(&next).contains(&"create pi".to_owned()), "{next:?}");
    let next = world
        .later(11)
        .plan_with::<Jobs>("pi", &mut memory)
        .unwrap();
    assert!(verbs(&next).contains(&"create pi".to_owned()), "{next:?}");
}

/// Applies a plan and lets the controller learn the result.
pub(super) fn carry_out(world: &mut World, plan: &Plan, memory: &mut Memory) {
    use controllers_kit::{Controller, Outcome};
    for (action, result) in &world.apply(plan).0 {
        let result = result.as_ref().cloned();
        Jobs::default().learn(&Outcome { action, result }, memory);
    }
}

#[test]
fn a_sync_is_measured_by_how_it_ended() {
    let said = |measures: &[controllers_kit::Measure]| -> Vec<String> {
        let syncs = measures
            .iter()
            .filter(|measure| measure.name.contains("job_sync"));
        syncs.map(|measure| measure.labels.join(" ")).collect()
    };
    let planned = plan(&world().with(job("pi")));
    let success = ["NonIndexed success pods_created"];
    let error = ["NonIndexed error pods_created"];
    assert_eq!(said(&planned.measures), success);
    assert_eq!(said(&planned.timings), success);
    assert_eq!(said(&planned.on_failure.measures), error);
    assert_eq!(said(&planned.on_failure.timings), error);
    // A pod to be counted can't be read.
    let pi = job("pi").completions(3).started("11:00:00").counted(1, 0);
    let world = world()
        .with(pi.clone())
        .with(pod(&pi, "pi-b").exited(0, "11:50:00"));
    let planned = hazards::plan_unanswered(&world);
    assert!(planned.failure.is_some() && planned.is_nothing());
    assert_eq!(
        said(&planned.on_failure.measures),
        ["NonIndexed error reconciling"]
    );
    assert!(planned.measures.is_empty());
}

#[test]
fn a_report_that_was_put_off_does_not_prove_the_view() {
    use controllers_kit::{Controller, Outcome, Written};
    let pi = job("pi").started("11:00:00");
    let world = world()
        .with(pi.clone())
        .with(pod(&pi, "pi-a").ready("11:50:00"));
    let mut memory = Memory::default();
    let planned = world.plan_with::<Jobs>("pi", &mut memory).unwrap();
    let action = planned.actions().next().unwrap();
    let pending = memory.counters_pending.clone();
    assert!(pending.is_some());
    let put_off = Written::default();
    Jobs::default().learn(
        &Outcome {
            action,
            result: Ok(put_off),
        },
        &mut memory,
    );
    assert_eq!(memory.counters, None);
    let written = Written {
        resource_version: 7,
        ..Default::default()
    };
    Jobs::default().learn(
        &Outcome {
            action,
            result: Ok(written),
        },
        &mut memory,
    );
    assert_eq!(memory.counters, pending);
}

#[test]
fn ignored_failures_are_let_go_uncounted() {
    let pi = job("pi").limit(0).started("11:00:00").spec(|spec| {
        spec.pod_failure_policy = Some(super::parts::ignore_disruption());
    });
    let ended = PodBuild::condition(
        pod(&pi, "pi-a").exited(137, "11:50:00"),
        "DisruptionTarget",
        "True",
        "11:50:00",
    );
    let mut world = world().with(pi).with(ended);
    world.settle(&[JOBS]);
    let job = world.get::<Job>("pi");
    assert!(conditions(&job).is_empty());
    assert_eq!(numbers(&job), [1, 1, 0, 0, 0]);
    assert!(!super::super::orphans::is_tracked(
        &world.get::<Pod>("pi-a")
    ));
}

#[test]
fn a_failed_attempt_to_make_pods_does_not_keep_ended_ones_from_being_counted() {
    let pi = job("pi").completions(3).started("11:00:00");
    let world = world()
        .with(pi.clone())
        .with(pod(&pi, "pi-a").exited(0, "11:50:00"));
    let mut memory = Memory {
        manage_failed: true,
        ..Default::default()
    };
    let planned = world.plan_with::<Jobs>("pi", &mut memory).unwrap();
    assert_eq!(
        verbs(&planned),
        ["patch jobs/pi/status", "patch pods/pi-a", "create pi"]
    );
    assert!(!memory.manage_failed);
    let mut world = world;
    world.apply(&planned).expect_success();
    assert_eq!(
        numbers(&world.get::<Job>("pi"))[0],
        0,
        "it is not reported before it exists"
    );
}

#[test]
fn a_failure_of_the_server_is_remembered_and_a_collision_is_not() {
    use controllers_kit::{Controller, Failure, Outcome};
    let planned = plan(&world().with(job("pi")));
    let action = planned.actions().next().unwrap();
    let after = |failure: Failure| {
        let mut memory = Memory::default();
        Jobs::default().learn(
            &Outcome {
                action,
                result: Err(&failure),
            },
            &mut memory,
        );
        memory.manage_failed
    };
    let text = String::new;
    assert!(after(Failure::Forbidden(text())));
    assert!(after(Failure::Timeout(text())));
    assert!(after(Failure::NamespaceTerminating(text())));
    assert!(!after(Failure::AlreadyExists(text())));
    assert!(!after(Failure::Conflict(text())));
    assert!(!after(Failure::Skipped));
    assert!(!after(Failure::Fenced));
}
