//! What a CronJob does at a time.

use controllers_kit::{Refusal, Requeue, Verb};

use super::*;

fn again(time: &str) -> Requeue {
    Requeue::At(at(time) + controllers_kit::SignedDuration::from_millis(100))
}

#[test]
fn a_job_is_made_when_its_time_has_come_and_not_before() {
    // Last run at 11:50; every ten minutes.
    let table = [
        ("11:55:00", false),
        ("11:59:59", false),
        ("12:00:00", true),
        ("12:00:01", true),
        ("12:09:59", true),
    ];
    for (now, made) in table {
        let planned = plan(&World::at(now).with(cron("tick").last("11:50:00")));
        let wanted = format!("create jobs/tick-{}", minute("12:00:00"));
        assert_eq!(planned.verbs().contains(&wanted), made, "{now}");
        assert_eq!(
            planned.requeue,
            again(if made { "12:10:00" } else { "12:00:00" }),
            "{now}"
        );
    }
}

#[test]
fn the_job_is_the_template_s_byte_for_byte_with_its_time_and_owner() {
    let planned = plan(
        &World::at("12:00:00").with(
            cron("tick")
                .last("11:50:00")
                .zone("Asia/Tokyo")
                .schedule("*/10 * * * *"),
        ),
    );
    let Verb::Create { body } = &planned.stages.last().unwrap()[0].verb else {
        panic!("{planned:?}");
    };
    let job = kubernetes_proto::batch::JobFromTemplate::decode(&body[..]).unwrap();
    assert_eq!(job.spec, template(None).spec);
    let meta = job.metadata.unwrap();
    assert_eq!(meta.label("made"), Some("by-cron"));
    assert_eq!(meta.annotation("note"), Some("kept"));
    assert_eq!(
        meta.annotation("batch.kubernetes.io/cronjob-scheduled-timestamp"),
        Some("2026-03-02T21:00:00+09:00")
    );
    let owner = meta.controller().unwrap();
    assert_eq!(
        (&*owner.kind, &*owner.name, &*owner.api_version),
        ("CronJob", "tick", "batch/v1")
    );
}

#[test]
fn a_job_that_was_made_is_noted_and_is_not_unexpected() {
    let mut world = World::at("12:00:00").with(cron("tick").last("11:50:00"));
    world.run::<CronJobs>();
    let name = format!("tick-{}", minute("12:00:00"));
    assert_eq!(active_names(&world).join(" "), name);
    let cron = world.get::<CronJob>("tick");
    let status = cron.status.as_ref().unwrap();
    assert_eq!(status.last_schedule_time, Some(at("12:00:00").into()));
    let reference = &status.active[0];
    assert_eq!(
        (
            &*reference.kind,
            &*reference.api_version,
            &*reference.namespace
        ),
        ("Job", "batch/v1", "default")
    );
    assert_eq!(
        world.events(),
        [format!("Normal SuccessfulCreate Created job {name}")]
    );
}

#[test]
fn two_owners_make_one_job_of_a_minute() {
    let world = World::at("12:00:00").with(cron("tick").last("11:50:00"));
    let (one, other) = (plan(&world), plan(&world.later(20)));
    let mut server = world;
    server.apply(&one).expect_success();
    assert_eq!(server.apply(&other).failures().len(), 1);
    assert_eq!(server.all::<Job>().len(), 1);
}

#[test]
fn concurrency_policies() {
    let old = child("11:50:00");
    let name = Object::metadata(&old).name.to_string();
    let run = |policy: &str| {
        plan(
            &World::at("12:00:00")
                .with(cron("tick").policy(policy).last("11:50:00").active(&[&old]))
                .with(old.clone()),
        )
    };
    let create = format!("create jobs/tick-{}", minute("12:00:00"));
    assert_eq!(run("Allow").verbs().join(" "), create);
    let forbidden = run("Forbid");
    assert!(forbidden.verbs().is_empty());
    assert_eq!(
        events(&forbidden),
        [
            "JobAlreadyActive Not starting job because prior execution is running and concurrency policy is Forbid"
        ]
    );
    let replaced = run("Replace");
    assert_eq!(
        replaced.verbs(),
        [
            format!("delete jobs/{name}"),
            "patch cronjobs/tick/status".to_owned(),
            create
        ]
    );
    assert_eq!(replaced.stages.len(), 3);
}

#[test]
fn a_running_job_is_read_live_before_it_is_replaced() {
    let old = child("11:50:00");
    let name = Object::metadata(&old).name.to_string();
    let cached = World::at("12:00:00")
        .with(
            cron("tick")
                .policy("Replace")
                .last("11:50:00")
                .active(&[&old]),
        )
        .with(old.clone());
    let (delete, status) = (
        format!("delete jobs/{name}"),
        "patch cronjobs/tick/status".to_owned(),
    );
    let create = format!("create jobs/tick-{}", minute("12:00:00"));
    // It is there, and the cache has not seen it yet.
    let behind = World::at("12:00:00").with(
        cron("tick")
            .policy("Replace")
            .last("11:50:00")
            .active(&[&old]),
    );
    let planned = plan_replacing(&behind, &old, Some(live(&old)));
    assert_eq!(planned.verbs(), [delete, status, create.clone()]);
    assert_eq!(planned.failure, None);
    // Its name is another's by now: that one is left alone.
    let other = old.clone().uid("other");
    let planned = plan_replacing(&cached, &old, Some(live(&other)));
    let status = "patch cronjobs/tick/status".to_owned();
    assert_eq!(planned.verbs(), [status, create]);
    // It can't be read: nothing is started beside it, and the sync fails.
    let not_found = format!("FailedGet Get job: jobs.batch {name:?} not found");
    let failing = [
        (controllers_kit::Answer::Missing, not_found),
        (
            controllers_kit::Answer::Failed("etcd is away".to_owned()),
            "FailedGet Get job: etcd is away".to_owned(),
        ),
    ];
    for (answer, event) in failing {
        let planned = plan_replacing(&cached, &old, Some(answer));
        assert!(planned.verbs().is_empty(), "{:?}", planned.verbs());
        assert_eq!(events(&planned), [event]);
        assert!(planned.failure.is_some());
    }
    // It was not asked for, since its time has come only just now.
    let planned = plan_replacing(&cached, &old, None);
    assert_eq!(planned.requeue, controllers_kit::Requeue::Now);
    assert!(planned.is_nothing() && planned.failure.is_none());
}

fn live(job: &Job) -> controllers_kit::Answer {
    let json = kubernetes_proto::DynObject::to_json(job);
    controllers_kit::Answer::Object(std::sync::Arc::new(json))
}

/// A plan for which the Job that runs was read live with this answer; every query of the controller must be
/// for it.
fn plan_replacing(world: &World, old: &Job, answer: Option<controllers_kit::Answer>) -> Plan {
    use controllers_kit::{Controller, Key, Query, Snapshot};
    let cron_jobs = CronJobs::new(&Default::default());
    let key = Key::new("default", "tick");
    let query = Query::Live {
        resource: Job::resource(),
        key: Key::of(old),
    };
    let (reader, none) = (world.with_indexes_of::<CronJobs>(), Default::default());
    let seen = Snapshot::new(&reader, &none, world.now());
    let mut memory = Memory::default();
    assert_eq!(
        cron_jobs.ask(&key, &seen, &memory),
        std::slice::from_ref(&query)
    );
    let answers = answer
        .into_iter()
        .map(|answer| (query.clone(), answer))
        .collect();
    let seen = Snapshot::new(&reader, &answers, world.now());
    cron_jobs.plan(&key, &seen, &mut memory).unwrap()
}

#[test]
fn a_cron_job_without_a_zone_runs_by_the_host_s_clock() {
    let berlin = jiff::tz::TimeZone::get("Europe/Berlin").unwrap();
    let run = |cron: CronJob| {
        let mut server = World::at("12:00:00")
            .with(cron.last("11:00:00"))
            .local_zone(berlin.clone());
        let planned = plan(&server);
        server.apply(&planned).expect_success();
        let made = server.all::<Job>();
        made.first().map(|job| {
            let meta = Object::metadata(&**job);
            let at = meta.annotation("batch.kubernetes.io/cronjob-scheduled-timestamp");
            at.unwrap_or_default().to_owned()
        })
    };
    let noon = |hour: i8| cron("tick").schedule(&format!("0 {hour} * * *"));
    let offset = berlin.to_offset(at("12:00:00")).seconds() / 3600;
    let local = 12 + i8::try_from(offset).unwrap();
    let day = at("12:00:00").strftime("%Y-%m-%d").to_string();
    // Upstream writes the annotation in UTC where the CronJob names no zone.
    assert_eq!(run(noon(local)), Some(format!("{day}T12:00:00Z")));
    assert_eq!(run(noon(12)), None, "noon of UTC is not noon of the host");
    assert_eq!(run(noon(12).zone("UTC")), Some(format!("{day}T12:00:00Z")));
}

#[test]
fn finished_jobs_leave_the_list_and_the_last_success_is_recorded() {
    let done = completed(child("11:50:00"), "11:51:00");
    let failed = child("11:40:00").failed("11:41:00");
    let world = World::at("11:55:00")
        .with(cron("tick").last("11:50:00").active(&[&done, &failed]))
        .with(done.clone())
        .with(failed.clone());
    let planned = plan(&world);
    assert_eq!(planned.verbs(), ["patch cronjobs/tick/status"]);
    assert_eq!(
        events(&planned),
        [
            format!(
                "SawCompletedJob Saw completed job: {}, condition: Failed",
                Object::metadata(&failed).name
            ),
            format!(
                "SawCompletedJob Saw completed job: {}, condition: Complete",
                Object::metadata(&done).name
            ),
        ]
    );
    let after = after(&world);
    assert!(active_names(&after).is_empty());
    let cron = after.get::<CronJob>("tick");
    assert_eq!(
        cron.status.as_ref().unwrap().last_successful_time,
        Some(at("11:51:00").into())
    );
}

#[test]
fn only_a_later_success_counts() {
    let table = [("11:40:00", "11:51:00"), ("11:59:00", "11:59:00")];
    for (before, wanted) in table {
        let done = completed(child("11:50:00"), "11:51:00");
        let mut cron = cron("tick").last("11:50:00");
        cron.status.as_mut().unwrap().last_successful_time = Some(at(before).into());
        let world = after(&World::at("11:59:30").with(cron).with(done));
        let cron = world.get::<CronJob>("tick");
        assert_eq!(
            cron.status.as_ref().unwrap().last_successful_time,
            Some(at(wanted).into()),
            "{before}"
        );
    }
}

#[test]
fn a_job_that_went_missing_leaves_the_list() {
    let gone = child("11:50:00");
    let world = World::at("11:55:00").with(cron("tick").last("11:50:00").active(&[&gone]));
    let planned = plan(&world);
    assert_eq!(
        events(&planned),
        [format!(
            "MissingJob Active job went missing: {}",
            Object::metadata(&gone).name
        )]
    );
    assert!(active_names(&after(&world)).is_empty());
}

#[test]
fn an_unexpected_job_is_reported_once() {
    let stray = child("11:30:00");
    let world = World::at("11:55:00")
        .with(cron("tick").last("11:50:00"))
        .with(stray.clone());
    let mut memory = Memory::default();
    let first = world.plan_with::<CronJobs>("tick", &mut memory).unwrap();
    let wanted = format!(
        "UnexpectedJob Saw a job that the controller did not create or forgot: {}",
        Object::metadata(&stray).name
    );
    assert_eq!(events(&first), [wanted]);
    assert!(
        world
            .plan_with::<CronJobs>("tick", &mut memory)
            .unwrap()
            .is_nothing()
    );
}

#[test]
fn children_are_known_by_their_owner_s_name() {
    let other_uid = job("tick-old").owned_by(&cron("tick").uid("uid-before"));
    let world = World::at("11:55:00")
        .with(cron("tick").last("11:50:00").history(0, 0))
        .with(completed(started(other_uid, "11:00:00"), "11:01:00"));
    assert!(
        plan(&world)
            .verbs()
            .contains(&"delete jobs/tick-old".to_owned())
    );
}

#[test]
fn history_limits_keep_the_newest() {
    let times = ["11:00:00", "11:10:00", "11:20:00", "11:30:00"];
    let table = [(0, 4), (1, 3), (3, 1), (4, 0), (9, 0)];
    for success in [true, false] {
        for (limit, gone) in table {
            let mut world = World::at("11:55:00").with(cron("tick").last("11:50:00").history(
                if success { limit } else { 9 },
                if success { 9 } else { limit },
            ));
            for time in times {
                let child = child(time);
                world.put(if success {
                    completed(child, "11:50:00")
                } else {
                    child.failed("11:50:00")
                });
            }
            let mut deleted: Vec<String> = plan(&world).verbs();
            deleted.retain(|verb| verb.starts_with("delete"));
            let wanted: Vec<String> = times[..gone]
                .iter()
                .map(|time| format!("delete jobs/tick-{}", minute(time)))
                .collect();
            assert_eq!(deleted, wanted, "{success} {limit}");
        }
    }
}

#[test]
fn schedules_that_can_t_be_followed_are_reported_once() {
    let table = [
        (
            cron("tick").schedule("61 * * * *"),
            "UnparseableSchedule unparseable schedule: \"61 * * * *\" : end of range (61) above maximum (59): 61",
        ),
        (
            cron("tick").schedule("x"),
            "UnparseableSchedule unparseable schedule: \"x\" : expected exactly 5 fields, found 1: [x]",
        ),
        (
            cron("tick").zone("Nowhere/City"),
            "UnknownTimeZone invalid timeZone: \"Nowhere/City\": unknown time zone Nowhere/City",
        ),
        (
            cron("tick").schedule("0 0 31 2 *"),
            "InvalidSchedule invalid schedule: 0 0 31 2 * : time difference between two schedules is less than 1 second",
        ),
    ];
    for (cron, wanted) in table {
        let world = World::at("12:00:00").with(cron);
        let mut memory = Memory::default();
        let first = world.plan_with::<CronJobs>("tick", &mut memory).unwrap();
        assert_eq!(events(&first), [wanted]);
        assert_eq!((first.verbs().len(), first.requeue), (0, Requeue::Never));
        assert!(
            world
                .plan_with::<CronJobs>("tick", &mut memory)
                .unwrap()
                .is_nothing()
        );
    }
}

#[test]
fn a_zone_within_the_schedule_works_and_is_warned_of() {
    let world = World::at("12:00:00").with(
        cron("tick")
            .schedule("TZ=Asia/Tokyo 0 21 * * *")
            .last("11:00:00"),
    );
    let planned = plan(&world);
    assert!(events(&planned)[0].starts_with("UnsupportedSchedule CRON_TZ or TZ used in schedule \"TZ=Asia/Tokyo 0 21 * * *\" is not officially supported, see https://kubernetes.io/"));
    assert_eq!(
        planned.verbs(),
        [format!("create jobs/tick-{}", minute("12:00:00"))]
    );
}

#[test]
fn a_starting_deadline_lets_late_times_pass() {
    let run = |now: &str, seconds: i64| {
        plan(&World::at(now).with(cron("tick").last("11:50:00").deadline(seconds)))
            .verbs()
            .len()
    };
    assert_eq!(run("12:00:05", 10), 1);
    assert_eq!(run("12:00:10", 10), 0);
    assert_eq!(run("12:00:11", 10), 0);
    assert_eq!(run("12:09:00", 600), 1);
}

#[test]
fn of_many_missed_times_the_last_is_run_and_more_than_a_hundred_are_reported() {
    let run = |last: &str, schedule: &str| {
        let planned = plan(&World::at("12:00:30").with(cron("tick").last(last).schedule(schedule)));
        (planned.verbs(), events(&planned))
    };
    let create = vec![format!("create jobs/tick-{}", minute("12:00:00"))];
    assert_eq!(run("11:00:00", "*/10 * * * *"), (create.clone(), vec![]));
    assert_eq!(run("10:20:00", "* * * * *"), (create.clone(), vec![]));
    let warning = "TooManyMissedTimes too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
    assert_eq!(
        run("10:19:00", "* * * * *"),
        (create.clone(), vec![warning.to_owned()])
    );
    assert_eq!(
        run("2020-01-01T00:00:00Z", "* * * * *"),
        (create, vec![warning.to_owned()])
    );
}

#[test]
fn suspended_and_deleted_cron_jobs_start_nothing_but_keep_their_status() {
    let done = completed(child("11:50:00"), "11:51:00");
    let table = [
        cron("tick").suspended(),
        cron("tick").finalizer("hold").terminating("11:55:00"),
    ];
    for cron in table {
        let world = World::at("12:00:00")
            .with(cron.active(&[&done]))
            .with(done.clone());
        let planned = plan(&world);
        assert_eq!(planned.verbs(), ["patch cronjobs/tick/status"]);
        assert_eq!(planned.requeue, Requeue::Never);
    }
}

#[test]
fn a_changed_schedule_begins_with_its_next_time() {
    let mut world =
        World::at("12:30:00").with(cron("tick").schedule("0 18 * * *").last("11:50:00"));
    let mut memory = Memory::default();
    assert!(
        world
            .plan_with::<CronJobs>("tick", &mut memory)
            .unwrap()
            .is_nothing()
    );
    world.change::<CronJob>("tick", |cron| {
        cron.spec.as_mut().unwrap().schedule = "0 12 * * *".to_owned();
    });
    let held = world.plan_with::<CronJobs>("tick", &mut memory).unwrap();
    assert!(held.verbs().is_empty(), "noon of today is not made up for");
    let mut touched = world.clone();
    touched.change::<CronJob>("tick", |cron| {
        cron.metadata_mut().set_annotation("touched", "yes");
    });
    let mut memory_then = memory.clone();
    let made_up_for = touched
        .plan_with::<CronJobs>("tick", &mut memory_then)
        .unwrap();
    assert_eq!(
        made_up_for.verbs().len(),
        1,
        "another change makes up for the missed time"
    );
    // Two changes that were seen as one.
    let mut both = world.clone();
    both.change::<CronJob>("tick", |cron| {
        cron.spec.as_mut().unwrap().schedule = "30 11 * * *".to_owned();
        cron.status.as_mut().unwrap().last_schedule_time = Some(at("11:00:00").into());
    });
    let mut memory_then = memory.clone();
    let made_up_for = both
        .plan_with::<CronJobs>("tick", &mut memory_then)
        .unwrap();
    assert_eq!(made_up_for.verbs().len(), 1, "a status came between");
    let tomorrow = world
        .later(24 * 3600)
        .plan_with::<CronJobs>("tick", &mut memory)
        .unwrap();
    assert_eq!(tomorrow.verbs().len(), 1);
}

#[test]
fn a_time_that_was_run_is_not_run_again() {
    let done = completed(child("12:00:00"), "12:00:10");
    let world = World::at("12:05:00")
        .with(cron("tick").last("12:00:00"))
        .with(done);
    assert!(
        plan(&world)
            .actions()
            .all(|action| action.verb.name() != "create")
    );
    let other = job(&format!("tick-{}", minute("12:00:00")));
    let world = World::at("12:05:00")
        .with(cron("tick").last("11:50:00"))
        .with(other);
    assert!(
        plan(&world).verbs().is_empty(),
        "somebody else's Job has the name"
    );
}

#[test]
fn a_status_older_than_the_jobs_waits() {
    let stray = child("11:30:00");
    let cached = World::at("11:55:00")
        .with(cron("tick").last("11:50:00"))
        .with(stray.clone());
    let cron = cached.get::<CronJob>("tick");
    let key = controllers_kit::Key::new("default", "tick");
    let live = cron.as_ref().clone().active(&[&stray]);
    let answers = [(
        controllers_kit::owners::recheck(cron.as_ref()),
        controllers_kit::Answer::Object(std::sync::Arc::new(kubernetes_proto::DynObject::to_json(
            &live,
        ))),
    )];
    let answers = answers.into_iter().collect();
    let reader = cached.with_indexes_of::<CronJobs>();
    let seen = controllers_kit::Snapshot::new(&reader, &answers, cached.now());
    use controllers_kit::Controller;
    assert_eq!(
        CronJobs::new(&Default::default()).plan(&key, &seen, &mut Memory::default()),
        Err(Refusal::Wait(
            "the CronJob is older in the cache than its Jobs".to_owned()
        ))
    );
}
