use controllers_kit::{
    Factory, Plan,
    testing::{Common, EXITS, PodBuild, World, at, contract, pod_spec_bytes},
};
use kubernetes_proto::{
    Object,
    batch::{Job, JobSpec},
    core::{Pod, PodTemplateSpec},
    meta::{LabelSelector, ObjectMeta},
};

use super::{Jobs, Memory, TRACKING};

mod counting;
mod finishing;
mod groups;
mod hazards;
mod losses;
mod managing;
mod parts;
mod settling;

const JOBS: Factory = Factory::of::<Jobs>();
const UID: &str = "batch.kubernetes.io/controller-uid";

/// A Job as the API server leaves it: one completion, six retries, pods selected by its uid.
fn job(name: &str) -> Job {
    let mut job = controllers_kit::testing::job(name);
    let uid = job.metadata().uid.to_string();
    let mut selector = LabelSelector::default();
    kubernetes_proto::meta::set(&mut selector.match_labels, UID, &uid);
    let mut meta = ObjectMeta::default();
    meta.set_label(UID, &uid);
    meta.set_label("job-name", name);
    job.spec = Some(JobSpec {
        parallelism: Some(1),
        completions: Some(1),
        backoff_limit: Some(6),
        completion_mode: Some("NonIndexed".to_owned()),
        suspend: Some(false),
        selector: Some(selector),
        template: Some(PodTemplateSpec {
            metadata: Some(meta),
            spec: pod_spec_bytes("pi:1"),
        }),
        ..Default::default()
    });
    job
}

/// What the tests' Jobs have.
trait Build: Sized {
    fn spec(self, change: impl FnOnce(&mut JobSpec)) -> Self;
    fn status(self, change: impl FnOnce(&mut kubernetes_proto::batch::JobStatus)) -> Self;

    fn parallel(self, count: i32) -> Self {
        self.spec(|spec| spec.parallelism = Some(count))
    }
    fn completions(self, count: i32) -> Self {
        self.spec(|spec| spec.completions = Some(count))
    }
    /// Indexed, with `count` indexes, all in parallel.
    fn indexed(self, count: i32) -> Self {
        self.spec(|spec| {
            spec.completion_mode = Some("Indexed".to_owned());
            spec.completions = Some(count);
            spec.parallelism = Some(count);
        })
    }
    fn queue(self, parallelism: i32) -> Self {
        self.spec(|spec| {
            spec.completions = None;
            spec.parallelism = Some(parallelism);
        })
    }
    fn limit(self, retries: i32) -> Self {
        self.spec(|spec| spec.backoff_limit = Some(retries))
    }
    fn per_index(self, retries: i32) -> Self {
        self.spec(|spec| spec.backoff_limit_per_index = Some(retries))
    }
    fn suspended(self) -> Self {
        self.spec(|spec| spec.suspend = Some(true))
    }
    /// Its pods end with these codes, by index.
    fn exits(self, codes: &str) -> Self {
        self.spec(|spec| {
            let template = spec.template.get_or_insert_default();
            template
                .metadata
                .get_or_insert_default()
                .set_annotation(EXITS, codes);
        })
    }
    /// Started, as a first status says.
    fn started(self, time: &str) -> Self {
        self.status(|status| {
            status.start_time = Some(at(time).into());
            status.ready = Some(0);
            status.terminating = Some(0);
            status.uncounted_terminated_pods = Some(Default::default());
        })
    }
    fn counted(self, succeeded: i32, failed: i32) -> Self {
        self.status(|status| {
            status.succeeded = succeeded;
            status.failed = failed;
        })
    }
}

impl Build for Job {
    fn spec(mut self, change: impl FnOnce(&mut JobSpec)) -> Self {
        change(self.spec.get_or_insert_default());
        self
    }
    fn status(mut self, change: impl FnOnce(&mut kubernetes_proto::batch::JobStatus)) -> Self {
        change(self.status.get_or_insert_default());
        self
    }
}

/// A pod of a Job, pending, waiting to be counted.
fn pod(job: &Job, name: &str) -> Pod {
    controllers_kit::testing::pod(name)
        .label(UID, &job.metadata().uid)
        .label("job-name", &job.metadata().name)
        .owned_by(job)
        .finalizer(TRACKING)
}

/// A pod of an index.
fn indexed(job: &Job, name: &str, index: i32) -> Pod {
    pod(job, name)
        .label(super::indexes::INDEX, &index.to_string())
        .annotation(super::indexes::INDEX, &index.to_string())
}

/// Without the finalizer: counted.
fn untracked(mut pod: Pod) -> Pod {
    pod.metadata_mut().finalizers.clear();
    pod
}

fn world() -> World {
    World::at("12:00:00")
}

fn plan(world: &World) -> Plan {
    world.plan::<Jobs>("pi")
}

/// What the plan does, creations without their generated ends.
fn verbs(plan: &Plan) -> Vec<String> {
    plan.verbs()
        .into_iter()
        .map(|verb| match verb.strip_prefix("create pods/") {
            Some(name) => format!("create {}", &name[..name.len() - 6]),
            None => verb,
        })
        .collect()
}

/// The Job after a plan was carried out.
fn after(world: &World) -> Job {
    let mut world = world.clone();
    let plan = plan(&world);
    world.apply(&plan).expect_success();
    Job::clone(&world.get::<Job>("pi"))
}

/// Each condition as `Type=Status Reason`.
fn conditions(job: &Job) -> Vec<String> {
    job.status
        .iter()
        .flat_map(|status| &status.conditions)
        .map(|condition| {
            format!(
                "{}={} {}",
                condition.r#type, condition.status, condition.reason
            )
        })
        .collect()
}

/// `active ready terminating succeeded failed`.
fn numbers(job: &Job) -> [i32; 5] {
    let status = job.status.clone().unwrap_or_default();
    [
        status.active,
        status.ready.unwrap_or(-1),
        status.terminating.unwrap_or(-1),
        status.succeeded,
        status.failed,
    ]
}

/// A whole run: controller, kubelets, garbage collector, through `seconds` seconds.
fn run(job: Job, seconds: i64) -> (World, Job) {
    let mut world = world().with(job);
    world.settle_for(seconds, &[JOBS]);
    let job = Job::clone(&world.get::<Job>("pi"));
    (world, job)
}

/// Checks what became of a Job that ran.
fn ends(job: Job, wanted: &[&str], succeeded: i32, failed: i32) -> World {
    let (world, job) = run(job, 7200);
    assert_eq!(conditions(&job), wanted);
    assert_eq!(numbers(&job), [0, 0, 0, succeeded, failed]);
    let status = job.status.unwrap_or_default();
    assert_eq!(status.uncounted_terminated_pods, Some(Default::default()));
    for pod in world.all::<Pod>() {
        assert!(!super::orphans::is_tracked(&pod), "{pod:?}");
    }
    world
}

#[test]
fn the_contract_holds() {
    let worlds = [
        world().with(job("pi").exits("0")),
        world().with(job("pi").completions(5).parallel(2).exits("0")),
        world().with(job("pi").indexed(4).exits("0")),
        world().with(job("pi").queue(2).exits("0")),
        world().with(job("pi").parallel(2).completions(2)),
        world().with(job("pi").limit(1).exits("1")),
        world().with(job("pi").indexed(3).per_index(1).exits("0,1,0")),
        world().with(job("pi").suspended()),
        world()
            .with(job("pi").started("11:59:00").suspended())
            .with(pod(&job("pi"), "pi-a").ready("11:59:10")),
        world()
            .with(pod(&job("gone"), "gone-a").ready("11:59:10"))
            .with({
                let mut lost = pod(&job("lost"), "lost");
                lost.metadata_mut().owner_references.clear();
                lost
            }),
        world()
            .with(job("pi").completions(3).started("11:59:00"))
            .with(pod(&job("pi"), "pi-a").exited(0, "11:59:30"))
            .with(untracked(pod(&job("pi"), "pi-b")).label(UID, "other")),
    ];
    contract::Contract::of(&JOBS)
        .seeds(12)
        .seconds(3600)
        .check(worlds);
}
