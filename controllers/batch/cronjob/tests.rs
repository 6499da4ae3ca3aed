use controllers_kit::{
    Factory, Plan,
    testing::{Common, EXITS, JobBuild, World, at, contract, job, pod_spec_bytes},
};
use kubernetes_proto::{
    Object,
    batch::{CronJob, CronJobSpec, Job, JobSpec, JobTemplateSpec},
    core::{ObjectReference, PodTemplateSpec},
    meta::ObjectMeta,
};
use prost::Message;

use super::{CronJobs, Memory};
use crate::job::Jobs;

mod schedules;
mod syncs;

const CRON_JOBS: Factory = Factory::of::<CronJobs>();
const JOBS: Factory = Factory::of::<Jobs>();

/// A CronJob made at 10:00 with the API's defaults, due every ten minutes.
fn cron(name: &str) -> CronJob {
    let mut cron = CronJob {
        spec: Some(CronJobSpec {
            schedule: "*/10 * * * *".to_owned(),
            concurrency_policy: "Allow".to_owned(),
            suspend: Some(false),
            successful_jobs_history_limit: Some(3),
            failed_jobs_history_limit: Some(1),
            job_template: Some(template(None)),
            ..Default::default()
        }),
        status: Some(Default::default()),
        ..Default::default()
    };
    let meta = cron.metadata_mut();
    meta.name = name.into();
    cron.in_namespace("default").created("10:00:00")
}

/// A Job's template whose pods end with a code, or run on.
fn template(code: Option<&str>) -> JobTemplateSpec {
    let mut pod_meta = ObjectMeta::default();
    if let Some(code) = code {
        pod_meta.set_annotation(EXITS, code);
    }
    let spec = JobSpec {
        parallelism: Some(1),
        completions: Some(1),
        backoff_limit: Some(0),
        template: Some(PodTemplateSpec {
            metadata: Some(pod_meta),
            spec: pod_spec_bytes("tick:1"),
        }),
        ..Default::default()
    };
    let mut meta = ObjectMeta::default();
    meta.set_label("made", "by-cron");
    meta.set_annotation("note", "kept");
    JobTemplateSpec {
        metadata: Some(meta),
        spec: spec.encode_to_vec(),
    }
}

/// What the tests' CronJobs have.
trait Build: Sized {
    fn spec(self, change: impl FnOnce(&mut CronJobSpec)) -> Self;
    fn active(self, jobs: &[&Job]) -> Self;
    fn last(self, time: &str) -> Self;

    fn schedule(self, schedule: &str) -> Self {
        self.spec(|spec| spec.schedule = schedule.to_owned())
    }
    fn zone(self, zone: &str) -> Self {
        self.spec(|spec| spec.time_zone = Some(zone.to_owned()))
    }
    fn policy(self, policy: &str) -> Self {
        self.spec(|spec| spec.concurrency_policy = policy.to_owned())
    }
    fn deadline(self, seconds: i64) -> Self {
        self.spec(|spec| spec.starting_deadline_seconds = Some(seconds))
    }
    fn suspended(self) -> Self {
        self.spec(|spec| spec.suspend = Some(true))
    }
    fn history(self, successful: i32, failed: i32) -> Self {
        self.spec(|spec| {
            spec.successful_jobs_history_limit = Some(successful);
            spec.failed_jobs_history_limit = Some(failed);
        })
    }
    /// Its Jobs' pods end with a code.
    fn exits(self, code: &str) -> Self {
        self.spec(|spec| spec.job_template = Some(template(Some(code))))
    }
}

impl Build for CronJob {
    fn spec(mut self, change: impl FnOnce(&mut CronJobSpec)) -> Self {
        change(self.spec.get_or_insert_default());
        self
    }
    fn active(mut self, jobs: &[&Job]) -> Self {
        for job in jobs {
            let meta = job.metadata();
            self.status
                .get_or_insert_default()
                .active
                .push(ObjectReference {
                    kind: "Job".to_owned(),
                    namespace: meta.namespace.to_string(),
                    name: meta.name.to_string(),
                    uid: meta.uid.to_string(),
                    api_version: "batch/v1".to_owned(),
                    resource_version: "7".to_owned(),
                    field_path: String::new(),
                });
        }
        self
    }
    fn last(mut self, time: &str) -> Self {
        self.status.get_or_insert_default().last_schedule_time = Some(at(time).into());
        self
    }
}

/// The Job of a time, made by the CronJob `tick`.
fn child(time: &str) -> Job {
    let minutes = at(time).as_second() / 60;
    started(
        job(&format!("tick-{minutes}")).owned_by(&cron("tick")),
        time,
    )
}

fn started(mut job: Job, time: &str) -> Job {
    let status = job.status.get_or_insert_default();
    status.start_time = Some(at(time).into());
    job
}

fn completed(job: Job, time: &str) -> Job {
    let mut job = job.finished(time);
    job.status.get_or_insert_default().completion_time = Some(at(time).into());
    job
}

fn plan(world: &World) -> Plan {
    world.plan::<CronJobs>("tick")
}

fn events(plan: &Plan) -> Vec<String> {
    plan.events
        .iter()
        .map(|event| format!("{} {}", event.reason, event.message))
        .collect()
}

/// After one plan.
fn after(world: &World) -> World {
    let mut world = world.clone();
    let plan = plan(&world);
    world.apply(&plan).expect_success();
    world
}

fn active_names(world: &World) -> Vec<String> {
    let cron = world.get::<CronJob>("tick");
    let status = cron.status.clone().unwrap_or_default();
    status.active.iter().map(|one| one.name.clone()).collect()
}

/// The minute of a time, as names contain it.
fn minute(time: &str) -> i64 {
    at(time).as_second() / 60
}

#[test]
fn the_contract_holds() {
    let worlds = [
        World::at("12:00:30").with(cron("tick").exits("0")),
        World::at("12:00:30").with(cron("tick").exits("1").history(1, 1)),
        World::at("12:00:30").with(cron("tick").policy("Forbid")),
        World::at("12:00:30").with(cron("tick").policy("Replace")),
        World::at("12:00:30").with(cron("tick").suspended()),
        World::at("12:00:30").with(cron("tick").schedule("61 * * * *")),
        World::at("12:00:30").with(cron("tick").deadline(10)),
        World::at("12:00:30")
            .with(
                cron("tick")
                    .exits("0")
                    .active(&[&child("11:50:00")])
                    .last("11:50:00"),
            )
            .with(completed(child("11:50:00"), "11:51:00"))
            .with(completed(child("11:40:00"), "11:41:00"))
            .with(child("11:30:00")),
    ];
    contract::Contract::of(&CRON_JOBS)
        .among(&[JOBS])
        .seeds(6)
        .seconds(1900)
        .check(worlds);
}
