//! Which pods are made and deleted.

use controllers_kit::{Requeue, Verb};

use super::*;

fn creates(count: usize) -> Vec<String> {
    let mut verbs = vec!["create pi".to_owned(); count];
    verbs.push("patch jobs/pi/status".to_owned());
    verbs
}

#[test]
fn as_many_pods_as_parallelism_and_open_completions_allow() {
    let table = [
        (job("pi"), 1),
        (job("pi").parallel(3).completions(2), 2),
        (job("pi").parallel(2).completions(5), 2),
        (job("pi").parallel(0).completions(5), 0),
        (job("pi").completions(0), 0),
        (job("pi").queue(4), 4),
        (job("pi").parallel(600).completions(600), 500),
        (
            job("pi")
                .parallel(5)
                .completions(5)
                .started("11:00:00")
                .counted(3, 0),
            2,
        ),
        (job("pi").queue(4).started("11:00:00").counted(1, 0), 0),
    ];
    for (job, count) in table {
        let world = world().with(job.clone());
        let made = verbs(&plan(&world))
            .iter()
            .filter(|verb| *verb == "create pi")
            .count();
        assert_eq!(made, count, "{:?}", job.spec);
    }
}

#[test]
fn the_status_counts_pods_that_are_created_in_the_same_plan() {
    let world = world().with(job("pi").parallel(3).completions(3));
    assert_eq!(verbs(&plan(&world)), creates(3));
    let job = after(&world);
    assert_eq!(numbers(&job), [3, 0, 0, 0, 0]);
    assert_eq!(job.status.unwrap().start_time, Some(at("12:00:00").into()));
}

#[test]
fn existing_pods_are_not_created_again() {
    let pi = job("pi").parallel(3).completions(5).started("11:00:00");
    let running = |name: &str| pod(&pi, name).ready("11:30:00");
    let table = [
        (vec![], 3, 0),
        (vec![running("pi-a")], 2, 0),
        (
            vec![running("pi-a"), running("pi-b"), running("pi-c")],
            0,
            0,
        ),
        (
            vec![
                running("pi-a"),
                running("pi-b"),
                running("pi-c"),
                running("pi-d"),
            ],
            0,
            1,
        ),
        (
            vec![running("pi-a"), pod(&pi, "pi-b").exited(0, "11:40:00")],
            2,
            0,
        ),
        // One that is deleted is replaced at once, unless only failed ones are.
        (vec![running("pi-a").terminating("11:50:00")], 3, 0),
        (vec![pod(&job("other"), "pi-x").ready("11:30:00")], 3, 0),
    ];
    for (pods, made, gone) in table {
        let mut world = world().with(pi.clone());
        for pod in &pods {
            world.put(pod.clone());
        }
        // A pod of another Job is another key's business, whose owner is not there: it has one.
        if pods.iter().any(|pod| pod.metadata().name == *"pi-x") {
            world.put(job("other"));
        }
        let verbs = verbs(&plan(&world));
        let count = |start: &str| verbs.iter().filter(|verb| verb.starts_with(start)).count();
        assert_eq!(
            (count("create"), count("delete")),
            (made, gone),
            "{verbs:?}"
        );
    }
}

#[test]
fn only_failed_pods_are_replaced_where_the_job_says_so() {
    let policy = |pi: Job| pi.spec(|spec| spec.pod_replacement_policy = Some("Failed".to_owned()));
    let pi = policy(job("pi").started("11:00:00"));
    let going = pod(&pi, "pi-a").ready("11:30:00").terminating("11:50:00");
    let gone = pod(&pi, "pi-a")
        .exited(137, "11:50:00")
        .terminating("11:50:00");
    let count = |pi: &Job, pod: &Pod| {
        let world = world().with(pi.clone()).with(pod.clone());
        verbs(&plan(&world))
            .iter()
            .filter(|verb| *verb == "create pi")
            .count()
    };
    assert_eq!(count(&pi, &going), 0);
    assert_eq!(count(&job("pi").started("11:00:00"), &going), 1);
    assert_eq!(count(&pi, &gone), 1);
}

#[test]
fn surplus_pods_go_uncounted_the_least_advanced_first() {
    let pi = job("pi").parallel(1).completions(5).started("11:00:00");
    let mut world = world()
        .with(pi.clone())
        .with(pod(&pi, "pi-old").ready("11:10:00"))
        .with(pod(&pi, "pi-young").ready("11:50:00"))
        .with(pod(&pi, "pi-waits"));
    let planned = plan(&world);
    assert_eq!(
        planned.verbs(),
        [
            "patch pods/pi-waits",
            "patch pods/pi-young",
            "delete pods/pi-waits",
            "delete pods/pi-young",
            "patch jobs/pi/status"
        ]
    );
    assert_eq!(planned.stages.len(), 3);
    world.apply(&planned).expect_success();
    assert_eq!(numbers(&world.get::<Job>("pi")), [1, 1, 2, 0, 0]);
    world.settle(&[JOBS]);
    assert_eq!(numbers(&world.get::<Job>("pi")), [1, 1, 0, 0, 0]);
}

#[test]
fn a_suspended_job_has_no_pods_and_no_clock() {
    let pi = job("pi").started("11:00:00").suspended();
    let mut world = world()
        .with(pi.clone())
        .with(pod(&pi, "pi-a").ready("11:30:00"));
    world.settle(&[JOBS]);
    let job = world.get::<Job>("pi");
    assert_eq!(conditions(&job), ["Suspended=True JobSuspended"]);
    assert_eq!(job.status.as_ref().unwrap().start_time, None);
    assert_eq!(numbers(&job), [0; 5]);
    assert_eq!(
        world.events(),
        [
            "Normal SuccessfulDelete Deleted pod: pi-a",
            "Normal Suspended Job suspended"
        ]
    );
    world.change::<Job>("pi", |job| job.spec.as_mut().unwrap().suspend = Some(false));
    let mut world = world.later(100);
    world.settle(&[JOBS]);
    let job = world.get::<Job>("pi");
    assert_eq!(conditions(&job), ["Suspended=False JobResumed"]);
    assert_eq!(
        job.status.as_ref().unwrap().start_time,
        Some(at("12:01:40").into())
    );
    assert_eq!(numbers(&job)[..2], [1, 1]);
    assert!(
        world
            .events()
            .contains(&"Normal Resumed Job resumed".to_owned())
    );
}

#[test]
fn a_suspended_job_keeps_its_start_time_without_the_gate() {
    let gate = "MutableSchedulingDirectivesForSuspendedJobs";
    for is_on in [true, false] {
        let pi = job("pi").started("11:00:00").suspended();
        let mut world = world()
            .flag(gate, controllers_kit::FlagValue::Bool(is_on))
            .with(pi);
        world.settle(&[JOBS]);
        let job = world.get::<Job>("pi");
        assert_eq!(conditions(&job), ["Suspended=True JobSuspended"]);
        let wanted = (!is_on).then(|| at("11:00:00").into());
        assert_eq!(job.status.as_ref().unwrap().start_time, wanted, "{is_on}");
    }
}

#[test]
fn of_surplus_pods_the_one_whose_sidecar_restarted_more_goes_first() {
    use kubernetes_proto::core::{ContainerStatus, InitContainer};
    let pi = job("pi").parallel(1).completions(5).started("11:00:00");
    // By name the first would go.
    let pods = [("pi-a", 1), ("pi-b", 2)].map(|(name, restarts)| {
        let mut pod = pod(&pi, name).ready("11:10:00");
        let side = InitContainer {
            name: "side".into(),
            restart_policy: "Always".into(),
            ..Default::default()
        };
        pod.spec.get_or_insert_default().init_containers.push(side);
        let status = ContainerStatus {
            name: "side".into(),
            restart_count: restarts,
            ..Default::default()
        };
        let statuses = &mut pod.status.get_or_insert_default().init_container_statuses;
        statuses.push(status);
        pod
    });
    let world = pods.into_iter().fold(world().with(pi), World::with);
    let verbs = plan(&world).verbs();
    assert!(verbs.contains(&"delete pods/pi-b".to_owned()), "{verbs:?}");
}

#[test]
fn a_job_that_was_never_suspended_says_nothing_of_it() {
    let world = world().with(job("pi"));
    assert!(conditions(&after(&world)).is_empty());
    let suspended = super::world().with(job("pi").suspended());
    let job = after(&suspended);
    assert_eq!(conditions(&job), ["Suspended=True JobSuspended"]);
    assert_eq!(job.status.unwrap().start_time, None);
}

#[test]
fn a_pod_is_the_template_s_with_the_finalizer_and_the_job_as_its_owner() {
    let mut world = world().with(job("pi").exits("0"));
    world.run::<Jobs>();
    let pods = world.all::<Pod>();
    let meta = Object::metadata(&*pods[0]);
    assert_eq!(meta.generate_name, "pi-");
    assert_eq!(meta.finalizers, [TRACKING]);
    assert_eq!(meta.label("job-name"), Some("pi"));
    assert_eq!(meta.annotation(EXITS), Some("0"));
    assert_eq!(meta.annotation(super::super::indexes::INDEX), None);
    let owner = meta.controller().unwrap();
    assert_eq!(
        (&*owner.kind, &*owner.name, owner.block_owner_deletion),
        ("Job", "pi", Some(true))
    );
    assert_eq!(
        world.events(),
        [format!(
            "Normal SuccessfulCreate Created pod: {}",
            meta.name
        )]
    );
}

#[test]
fn the_template_s_spec_is_sent_back_byte_for_byte() {
    let unknown = [
        pod_spec_bytes("pi:1"),
        vec![0xfa, 0x3e, 3, b'n', b'e', b'w'],
    ]
    .concat();
    let pi = job("pi").spec(|spec| {
        spec.template.as_mut().unwrap().spec.clone_from(&unknown);
    });
    let planned = plan(&world().with(pi));
    let Verb::Create { body } = &planned.stages[0][0].verb else {
        panic!("{planned:?}");
    };
    let pod: kubernetes_proto::core::PodFromTemplate = prost::Message::decode(&body[..]).unwrap();
    assert_eq!(pod.spec, unknown);
}

#[test]
fn a_pod_of_an_index_knows_it_by_name_label_annotation_variable_and_host() {
    let planned = plan(&world().with(job("pi").indexed(3).per_index(2)));
    let names: Vec<String> = verbs(&planned);
    assert_eq!(names[..3], ["create pi-0", "create pi-1", "create pi-2"]);
    let Verb::Create { body } = &planned.stages[0][2].verb else {
        panic!("{planned:?}");
    };
    let pod: kubernetes_proto::core::PodFromTemplate = prost::Message::decode(&body[..]).unwrap();
    let meta = pod.metadata.unwrap();
    assert_eq!(meta.generate_name, "pi-2-");
    assert_eq!(meta.label(super::super::indexes::INDEX), Some("2"));
    assert_eq!(meta.annotation(super::super::indexes::INDEX), Some("2"));
    assert_eq!(
        meta.annotation("batch.kubernetes.io/job-index-failure-count"),
        Some("0")
    );
    let text = String::from_utf8_lossy(&pod.spec).into_owned();
    assert!(text.contains("JOB_COMPLETION_INDEX"));
    assert!(text.contains("metadata.labels['batch.kubernetes.io/job-completion-index']"));
    assert!(text.contains("pi-2"));
}

#[test]
fn a_long_job_s_name_is_cut_so_that_the_index_stays_whole() {
    let name = "a".repeat(60);
    let table = [
        (job(&name).indexed(1), format!("{}-0-", "a".repeat(55))),
        (job(&name), format!("{name}-")),
        (job("pi").indexed(1), "pi-0-".to_owned()),
    ];
    for (job, prefix) in table {
        let key = job.metadata().name.to_string();
        let planned = world().with(job).plan::<Jobs>(&key);
        let Verb::Create { body } = &planned.stages[0][0].verb else {
            panic!("{planned:?}");
        };
        let pod: kubernetes_proto::core::PodFromTemplate =
            prost::Message::decode(&body[..]).unwrap();
        let meta = pod.metadata.unwrap();
        assert_eq!(*meta.generate_name, *prefix);
        assert!(
            meta.name.starts_with(&prefix[..prefix.len().min(58)]),
            "{}",
            meta.name
        );
        assert!(meta.name.len() <= 63);
    }
}

#[test]
fn indexes_are_filled_from_the_first_that_is_open() {
    let pi = job("pi").indexed(6).parallel(3).started("11:00:00");
    let with = |indexes: &str, active: &[i32], failed: &[i32]| {
        let pi = pi.clone().status(|status| {
            status.completed_indexes = indexes.to_owned();
            status.succeeded =
                i32::try_from(super::super::indexes::Indexes::parse(indexes, 6).count()).unwrap();
        });
        let mut world = world().with(pi.clone());
        for index in active {
            world.put(indexed(&pi, &format!("pi-{index}-aaaaa"), *index).ready("11:30:00"));
        }
        for index in failed {
            world.put(indexed(&pi, &format!("pi-{index}-fffff"), *index).exited(1, "11:30:00"));
        }
        let mut made = verbs(&plan(&world));
        made.retain(|verb| verb.starts_with("create"));
        made
    };
    assert_eq!(
        with("", &[], &[]),
        ["create pi-0", "create pi-1", "create pi-2"]
    );
    assert_eq!(with("0", &[1], &[]), ["create pi-2", "create pi-3"]);
    assert_eq!(with("0-2", &[4], &[]), ["create pi-3", "create pi-5"]);
    assert_eq!(with("0-3,5", &[], &[]), ["create pi-4"]);
    assert_eq!(with("", &[1, 2], &[0]), ["create pi-0"]);
    assert!(with("0-5", &[], &[]).is_empty());
    assert!(with("", &[0, 1, 2], &[]).is_empty());
}

#[test]
fn pods_with_no_index_one_too_high_or_one_twice_go_first() {
    let pi = job("pi").indexed(3).started("11:00:00");
    let world = world()
        .with(pi.clone())
        .with(indexed(&pi, "pi-0-aaaaa", 0).ready("11:10:00"))
        .with(indexed(&pi, "pi-0-bbbbb", 0).ready("11:20:00"))
        .with(indexed(&pi, "pi-7-aaaaa", 7).ready("11:10:00"))
        .with(pod(&pi, "pi-none").ready("11:10:00"));
    let mut gone = plan(&world).verbs();
    gone.retain(|verb| verb.starts_with("delete"));
    gone.sort();
    assert_eq!(
        gone,
        [
            "delete pods/pi-0-bbbbb",
            "delete pods/pi-7-aaaaa",
            "delete pods/pi-none"
        ]
    );
}

#[test]
fn an_elastic_job_grows_and_shrinks() {
    let mut world = world().with(job("pi").indexed(2));
    world.settle(&[JOBS]);
    let resize = |world: &mut World, count: i32| {
        world.change::<Job>("pi", |job| {
            let spec = job.spec.as_mut().unwrap();
            (spec.parallelism, spec.completions) = (Some(count), Some(count));
        });
        world.settle(&[JOBS]);
        let pods = world.all::<Pod>();
        let mut indexes: Vec<i64> = pods
            .iter()
            .filter_map(|pod| super::super::indexes::of(pod))
            .collect();
        indexes.sort_unstable();
        indexes
    };
    assert_eq!(resize(&mut world, 4), [0, 1, 2, 3]);
    assert_eq!(resize(&mut world, 1), [0]);
    assert_eq!(numbers(&world.get::<Job>("pi")), [1, 1, 0, 0, 0]);
}

#[test]
fn after_a_failure_the_next_pod_waits() {
    let pi = job("pi").started("11:00:00");
    let mut world = World::at("12:00:00")
        .with(pi.clone())
        .with(pod(&pi, "pi-a").exited(1, "11:59:55"));
    let planned = plan(&world);
    assert!(!verbs(&planned).contains(&"create pi".to_owned()));
    assert_eq!(planned.requeue, Requeue::At(at("12:00:05")));
    world.settle_for(10, &[JOBS]);
    assert_eq!(world.all::<Pod>().len(), 2);
    assert_eq!(numbers(&world.get::<Job>("pi")), [1, 1, 0, 0, 1]);
}

#[test]
fn a_limit_for_each_index_has_a_back_off_for_each_index() {
    let pi = job("pi").indexed(2).per_index(3).started("11:00:00");
    let failed = |name: &str, index, count: &str, time: &str| {
        indexed(&pi, name, index)
            .annotation("batch.kubernetes.io/job-index-failure-count", count)
            .exited(1, time)
    };
    let world = world()
        .with(pi.clone())
        .with(failed("pi-0-aaaaa", 0, "0", "11:59:45"))
        .with(failed("pi-1-aaaaa", 1, "1", "11:59:45"));
    let planned = plan(&world);
    assert_eq!(verbs(&planned)[0], "create pi-0");
    assert!(!verbs(&planned).contains(&"create pi-1".to_owned()));
    assert_eq!(planned.requeue, Requeue::At(at("12:00:05")));
    let Verb::Create { body } = &planned.stages[0][0].verb else {
        panic!("{planned:?}");
    };
    let pod: kubernetes_proto::core::PodFromTemplate = prost::Message::decode(&body[..]).unwrap();
    let meta = pod.metadata.unwrap();
    assert_eq!(
        meta.annotation("batch.kubernetes.io/job-index-failure-count"),
        Some("1")
    );
    assert_eq!(
        meta.annotation("batch.kubernetes.io/job-index-ignored-failure-count"),
        None
    );
}

#[test]
fn ignored_failures_of_an_index_are_distinguished() {
    let pi = job("pi")
        .indexed(1)
        .per_index(0)
        .started("11:00:00")
        .spec(|spec| {
            spec.pod_failure_policy = Some(super::parts::ignore_disruption());
        });
    let failed = PodBuild::condition(
        indexed(&pi, "pi-0-aaaaa", 0).exited(137, "11:59:00"),
        "DisruptionTarget",
        "True",
        "11:59:00",
    );
    let planned = plan(&world().with(pi).with(failed));
    let Verb::Create { body } = &planned.stages[0][0].verb else {
        panic!("{planned:?}");
    };
    let pod: kubernetes_proto::core::PodFromTemplate = prost::Message::decode(&body[..]).unwrap();
    let meta = pod.metadata.unwrap();
    assert_eq!(
        meta.annotation("batch.kubernetes.io/job-index-failure-count"),
        Some("0")
    );
    assert_eq!(
        meta.annotation("batch.kubernetes.io/job-index-ignored-failure-count"),
        Some("1")
    );
}

#[test]
fn a_job_that_is_deleted_makes_no_pods() {
    let pi = job("pi")
        .finalizer("foregroundDeletion")
        .terminating("11:59:00");
    assert!(!verbs(&plan(&world().with(pi))).contains(&"create pi".to_owned()));
}
