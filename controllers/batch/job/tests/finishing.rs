//! How Jobs end.

use kubernetes_proto::batch::{SuccessPolicy, SuccessPolicyRule};

use super::*;

const DONE: [&str; 2] = [
    "SuccessCriteriaMet=True CompletionsReached",
    "Complete=True CompletionsReached",
];

fn failed(reason: &str) -> Vec<String> {
    vec![
        format!("FailureTarget=True {reason}"),
        format!("Failed=True {reason}"),
    ]
}

fn ends_failed(job: Job, reason: &str, succeeded: i32, count: i32) -> World {
    let conditions = failed(reason);
    let conditions: Vec<&str> = conditions.iter().map(String::as_str).collect();
    ends(job, &conditions, succeeded, count)
}

#[test]
fn jobs_complete() {
    ends(job("pi").exits("0"), &DONE, 1, 0);
    ends(job("pi").completions(5).parallel(2).exits("0"), &DONE, 5, 0);
    ends(job("pi").completions(7).parallel(7).exits("0"), &DONE, 7, 0);
    ends(job("pi").indexed(4).exits("0"), &DONE, 4, 0);
    ends(job("pi").indexed(5).parallel(2).exits("0"), &DONE, 5, 0);
    ends(job("pi").queue(3).exits("0"), &DONE, 3, 0);
    ends(job("pi").completions(0).exits("0"), &DONE, 0, 0);
}

#[test]
fn jobs_fail() {
    ends_failed(job("pi").limit(0).exits("1"), "BackoffLimitExceeded", 0, 1);
    ends_failed(job("pi").limit(2).exits("1"), "BackoffLimitExceeded", 0, 3);
    ends_failed(
        job("pi").limit(0).indexed(1).exits("1"),
        "BackoffLimitExceeded",
        0,
        1,
    );
    ends_failed(
        job("pi")
            .limit(i32::MAX)
            .indexed(3)
            .per_index(0)
            .exits("0,1,0"),
        "FailedIndexes",
        2,
        1,
    );
    ends_failed(
        job("pi")
            .limit(i32::MAX)
            .indexed(3)
            .per_index(2)
            .exits("0,1,0"),
        "FailedIndexes",
        2,
        3,
    );
    ends_failed(
        job("pi").limit(i32::MAX).indexed(2).per_index(0).exits("1"),
        "FailedIndexes",
        0,
        2,
    );
    let most = |pi: Job| pi.spec(|spec| spec.max_failed_indexes = Some(0));
    ends_failed(
        most(job("pi").limit(i32::MAX).indexed(1).per_index(0).exits("1")),
        "MaxFailedIndexesExceeded",
        0,
        1,
    );
    let deadline = |pi: Job| pi.spec(|spec| spec.active_deadline_seconds = Some(30));
    ends_failed(deadline(job("pi")), "DeadlineExceeded", 0, 1);
    ends_failed(
        deadline(job("pi").parallel(3).completions(3)),
        "DeadlineExceeded",
        0,
        3,
    );
    let policy =
        |pi: Job| pi.spec(|spec| spec.pod_failure_policy = Some(super::parts::fail_job_on(3)));
    ends_failed(policy(job("pi").exits("3")), "PodFailurePolicy", 0, 1);
    let index =
        |pi: Job| pi.spec(|spec| spec.pod_failure_policy = Some(super::parts::fail_index_on(3)));
    ends_failed(
        index(
            job("pi")
                .limit(i32::MAX)
                .indexed(2)
                .per_index(5)
                .exits("0,3"),
        ),
        "FailedIndexes",
        1,
        1,
    );
}

#[test]
fn failed_indexes_stand_in_the_status() {
    let (_, job) = run(
        job("pi")
            .limit(i32::MAX)
            .indexed(4)
            .per_index(0)
            .exits("0,1,1,0"),
        3600,
    );
    let status = job.status.unwrap();
    assert_eq!(status.completed_indexes, "0,3");
    assert_eq!(status.failed_indexes.as_deref(), Some("1,2"));
}

#[test]
fn a_job_without_a_limit_per_index_has_no_failed_indexes() {
    let (_, job) = run(job("pi").indexed(1).exits("0"), 60);
    assert_eq!(job.status.unwrap().failed_indexes, None);
}

fn succeeds_with(count: i32) -> impl FnOnce(&mut JobSpec) {
    move |spec| {
        spec.success_policy = Some(SuccessPolicy {
            rules: vec![SuccessPolicyRule {
                succeeded_indexes: None,
                succeeded_count: Some(count),
            }],
        });
    }
}

#[test]
fn a_success_policy_ends_a_job_and_what_still_runs_is_not_failed() {
    let pi = job("pi")
        .indexed(3)
        .started("11:00:00")
        .spec(succeeds_with(1));
    let mut world = world()
        .with(pi.clone())
        .with(indexed(&pi, "pi-0-aaaaa", 0).exited(0, "11:50:00"))
        .with(indexed(&pi, "pi-1-aaaaa", 1).ready("11:10:00"))
        .with(indexed(&pi, "pi-2-aaaaa", 2).ready("11:10:00"));
    world.settle_for(60, &[JOBS]);
    let job = world.get::<Job>("pi");
    assert_eq!(
        conditions(&job),
        [
            "SuccessCriteriaMet=True SuccessPolicy",
            "Complete=True SuccessPolicy"
        ]
    );
    assert_eq!(numbers(&job), [0, 0, 0, 1, 0]);
    assert_eq!(
        job.status.as_ref().unwrap().conditions[0].message,
        "Matched rules at index 0"
    );
    assert_eq!(world.all::<Pod>().len(), 1);
}

#[test]
fn a_finished_job_requeues_at_once_when_only_its_own_writes_are_left() {
    use controllers_kit::Requeue;
    let pi = job("pi").completions(2).parallel(2).started("11:00:00");
    let ended = pod(&pi, "pi-a").exited(0, "11:50:00");
    let with = |other: Pod| plan(&world().with(pi.clone()).with(ended.clone()).with(other)).requeue;
    let last = pod(&pi, "pi-b").exited(0, "11:55:00");
    assert_eq!(with(last), Requeue::Now);
    // It isn't over.
    assert_eq!(with(pod(&pi, "pi-b").ready("11:10:00")), Requeue::Never);
    // It is, and a pod is terminating, whose deletion will wake the key.
    let pi = pi.spec(succeeds_with(1)).indexed(2);
    let going = indexed(&pi, "pi-1-aaaaa", 1).ready("11:10:00");
    let done = indexed(&pi, "pi-0-aaaaa", 0).exited(0, "11:50:00");
    for other in [going.clone(), going.terminating("11:59:59")] {
        let world = world().with(pi.clone()).with(done.clone()).with(other);
        assert_eq!(plan(&world).requeue, Requeue::Never);
    }
    // Nothing was removed, so nothing new would be seen.
    let counted = untracked(done);
    let world = world()
        .with(pi.completions(1).parallel(1).indexed(1))
        .with(counted);
    assert_eq!(plan(&world).requeue, Requeue::Never);
}

#[test]
fn events_messages_and_times_are_upstream_s() {
    let world = ends(job("pi").exits("0"), &DONE, 1, 0);
    let events = world.events();
    assert!(events[0].starts_with("Normal SuccessfulCreate Created pod: pi-"));
    assert_eq!(events[1..], ["Normal Completed Job completed"]);
    let job = world.get::<Job>("pi");
    let status = job.status.as_ref().unwrap();
    assert_eq!(
        status.conditions[1].message,
        "Reached expected number of succeeded pods"
    );
    assert_eq!(
        status.completion_time,
        status.conditions[1].last_transition_time
    );
    assert_eq!(
        status.conditions[1].last_probe_time,
        status.conditions[1].last_transition_time
    );

    let world = ends_failed(job_limit(), "BackoffLimitExceeded", 0, 1);
    assert_eq!(
        world.events().last().unwrap(),
        "Warning BackoffLimitExceeded Job has reached the specified backoff limit"
    );
    assert_eq!(
        world
            .get::<Job>("pi")
            .status
            .as_ref()
            .unwrap()
            .completion_time,
        None
    );
}

fn job_limit() -> Job {
    job("pi").limit(0).exits("1")
}

#[test]
fn messages_of_failures_are_upstream_s() {
    let policy = job("pi")
        .exits("3")
        .spec(|spec| spec.pod_failure_policy = Some(super::parts::fail_job_on(3)));
    let late = job("pi").spec(|spec| spec.active_deadline_seconds = Some(5));
    let most = job("pi")
        .indexed(1)
        .per_index(0)
        .limit(i32::MAX)
        .exits("1")
        .spec(|spec| spec.max_failed_indexes = Some(0));
    let some = job("pi").indexed(1).per_index(0).limit(i32::MAX).exits("1");
    let table = [
        (
            policy,
            " failed with exit code 3 matching FailJob rule at index 0",
        ),
        (late, "Job was active longer than specified deadline"),
        (
            most,
            "Job has exceeded the specified maximal number of failed indexes",
        ),
        (some, "Job has failed indexes"),
    ];
    for (job, message) in table {
        let (_, job) = run(job, 600);
        let conditions = job.status.unwrap().conditions;
        assert_eq!(conditions.len(), 2, "{conditions:?}");
        assert!(
            conditions
                .iter()
                .all(|condition| condition.message.ends_with(message)),
            "{conditions:?}"
        );
    }
}

#[test]
fn the_interim_condition_is_set_before_finalizers_go_and_the_final_one_after() {
    let pi = job("pi").started("11:00:00");
    let mut world = world()
        .with(pi.clone())
        .with(pod(&pi, "pi-a").exited(0, "11:50:00"));
    let first = plan(&world);
    assert_eq!(first.verbs(), ["patch jobs/pi/status", "patch pods/pi-a"]);
    world.apply(&first).expect_success();
    assert_eq!(conditions(&world.get::<Job>("pi")), [DONE[0]]);
    let second = plan(&world);
    assert_eq!(second.verbs(), ["patch jobs/pi/status"]);
    world.apply(&second).expect_success();
    assert_eq!(conditions(&world.get::<Job>("pi")), DONE);
    assert!(plan(&world).is_nothing());
}

#[test]
fn a_job_that_has_failed_deletes_its_pods_and_waits_until_they_are_gone() {
    let pi = job("pi")
        .parallel(2)
        .completions(3)
        .limit(0)
        .started("11:00:00");
    let mut world = world()
        .with(pi.clone())
        .with(pod(&pi, "pi-a").exited(1, "11:50:00"))
        .with(pod(&pi, "pi-b").ready("11:50:00"));
    let first = plan(&world);
    assert_eq!(
        first.verbs(),
        [
            "delete pods/pi-b",
            "patch jobs/pi/status",
            "patch pods/pi-a",
            "patch pods/pi-b"
        ]
    );
    world.apply(&first).expect_success();
    assert_eq!(numbers(&world.get::<Job>("pi")), [0, 0, 1, 0, 0]);
    world.run::<Jobs>();
    let job = world.get::<Job>("pi");
    assert_eq!(
        conditions(&job),
        [failed("BackoffLimitExceeded")[0].clone()],
        "one is on its way out"
    );
    assert_eq!(numbers(&job), [0, 0, 1, 0, 2]);
    world.settle(&[JOBS]);
    assert_eq!(
        conditions(&world.get::<Job>("pi")),
        failed("BackoffLimitExceeded")
    );
}

#[test]
fn a_reported_reason_comes_first() {
    let met = |r#type: &str| {
        let r#type = r#type.to_owned();
        move |status: &mut kubernetes_proto::batch::JobStatus| {
            status
                .conditions
                .push(kubernetes_proto::batch::JobCondition {
                    r#type,
                    status: "True".to_owned(),
                    reason: "Earlier".to_owned(),
                    message: "as it was".to_owned(),
                    ..Default::default()
                });
        }
    };
    // It would have failed by its limit; it had succeeded before.
    let pi = job("pi")
        .limit(0)
        .started("11:00:00")
        .status(met("SuccessCriteriaMet"));
    let mut succeeds = world()
        .with(pi.clone())
        .with(pod(&pi, "pi-a").exited(1, "11:50:00"));
    succeeds.settle_for(10, &[JOBS]);
    assert_eq!(
        conditions(&succeeds.get::<Job>("pi")),
        ["SuccessCriteriaMet=True Earlier", "Complete=True Earlier"]
    );
    // It would have completed; it had failed before.
    let pi = job("pi").started("11:00:00").status(met("FailureTarget"));
    let mut fails = world()
        .with(pi.clone())
        .with(pod(&pi, "pi-a").exited(0, "11:50:00"));
    fails.settle_for(10, &[JOBS]);
    let job = fails.get::<Job>("pi");
    assert_eq!(
        conditions(&job),
        ["FailureTarget=True Earlier", "Failed=True Earlier"]
    );
    assert_eq!(
        job.status.as_ref().unwrap().conditions[1].message,
        "as it was"
    );
}

#[test]
fn containers_that_restart_in_their_pod_exceed_the_limit_too() {
    // restartPolicy OnFailure is field 3 of a pod's spec.
    let on_failure = [&[0x1a, 9][..], b"OnFailure"].concat();
    let restarted = |limit: i32, restarts: i32, policy: bool| {
        let mut pi = job("pi").limit(limit).started("11:00:00");
        if policy {
            pi.spec
                .as_mut()
                .unwrap()
                .template
                .as_mut()
                .unwrap()
                .spec
                .extend(&on_failure);
        }
        let mut pod = pod(&pi, "pi-a").ready("11:50:00");
        pod.status.as_mut().unwrap().container_statuses.push(
            kubernetes_proto::core::ContainerStatus {
                name: "main".into(),
                restart_count: restarts,
                ..Default::default()
            },
        );
        let world = world().with(pi).with(pod);
        !conditions(&after(&world)).is_empty()
    };
    let table = [
        (0, 0, true, false),
        (0, 1, true, true),
        (1, 1, true, true),
        (3, 2, true, false),
        (3, 3, true, true),
        (3, 9, false, false),
    ];
    for (limit, restarts, policy, over) in table {
        assert_eq!(
            restarted(limit, restarts, policy),
            over,
            "{limit} {restarts} {policy}"
        );
    }
}

#[test]
fn the_deadline_is_for_the_time_that_a_job_is_active_at_a_stretch() {
    let with = |seconds: i64, start: &str| {
        job("pi")
            .started(start)
            .spec(|spec| spec.active_deadline_seconds = Some(seconds))
    };
    let planned = plan(&world().with(with(60, "11:59:30")));
    assert_eq!(
        planned.requeue,
        controllers_kit::Requeue::At(at("12:00:30"))
    );
    assert_eq!(
        conditions(&after(&world().with(with(30, "11:59:30")))),
        ["FailureTarget=True DeadlineExceeded"]
    );
    let suspended = world().with(with(30, "11:00:00").suspended());
    assert_eq!(
        conditions(&after(&suspended)),
        ["Suspended=True JobSuspended"]
    );
}

#[test]
fn too_many_successes_are_reported() {
    let pi = job("pi").started("11:00:00").parallel(2);
    let mut world = world()
        .with(pi.clone())
        .with(pod(&pi, "pi-a").exited(0, "11:50:00"))
        .with(pod(&pi, "pi-b").exited(0, "11:50:00"));
    world.settle_for(10, &[JOBS]);
    assert!(world.events().contains(
        &"Warning TooManySucceededPods Too many succeeded pods running after completion count reached".to_owned()
    ));
    assert_eq!(numbers(&world.get::<Job>("pi"))[3], 2);
}

#[test]
fn a_finished_job_is_left_alone() {
    let pi = controllers_kit::testing::JobBuild::finished(job("pi").completions(5), "11:59:00");
    assert!(plan(&world().with(pi)).is_nothing());
    let pi = controllers_kit::testing::JobBuild::failed(job("pi").completions(5), "11:59:00");
    assert!(plan(&world().with(pi)).is_nothing());
}
