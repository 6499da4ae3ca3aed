//! Deployments that grow, are rolled out and shrink, and Jobs: round by round the same deeds, so that what
//! two rounds cost can be compared.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::observe::{Change, follow};
use harness::until;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::create;

/// Deeds of a round, one for each Deployment.
pub(super) const DEEDS: usize = 24;
const SMALL: i32 = 3;
const LARGE: i32 = 5;
/// Pods of a Job.
const COMPLETIONS: usize = 3;
const POLL: Duration = Duration::from_millis(100);
/// For all to be as was wanted.
const LIMIT: Duration = Duration::from_secs(180);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    Grow,
    Roll,
    Shrink,
    /// A Job is created, and the one before it deleted.
    Job,
}

/// The deeds of one Deployment, in turn; those of a round are spread evenly over them.
const TURNS: [Deed; 4] = [Deed::Grow, Deed::Roll, Deed::Shrink, Deed::Job];

#[derive(Debug)]
struct Place {
    size: i32,
    image: u32,
    job: Option<String>,
}

impl Place {
    fn new(index: usize) -> Self {
        // As if it had had a round before.
        let is_large = matches!(TURNS[index % TURNS.len()], Deed::Roll | Deed::Shrink);
        Self {
            size: if is_large { LARGE } else { SMALL },
            image: 1,
            job: None,
        }
    }
}

/// What is awaited.
#[derive(Debug, Default)]
struct Board {
    /// By name: the newest generation that has come true.
    settled: BTreeMap<String, i64>,
    waiting: BTreeMap<String, (Instant, i64)>,
    took: Vec<Duration>,
    overtaken: usize,
}

impl Board {
    fn wait(&mut self, name: &str, since: Instant, generation: i64) {
        let before = self.waiting.insert(name.to_owned(), (since, generation));
        self.overtaken += usize::from(before.is_some());
        // That it has come true may have been seen before the answer.
        self.check(name, Instant::now());
    }

    fn settle(&mut self, name: &str, generation: i64) {
        self.settled.insert(name.to_owned(), generation);
        self.check(name, Instant::now());
    }

    fn check(&mut self, name: &str, now: Instant) {
        let settled = self.settled.get(name).copied().unwrap_or(0);
        if let Some((since, generation)) = self.waiting.get(name)
            && *generation <= settled
        {
            self.took.push(now.saturating_duration_since(*since));
            self.waiting.remove(name);
        }
    }
}

fn lock(board: &Mutex<Board>) -> MutexGuard<'_, Board> {
    board.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The generation that has come true, if it has.
fn settled(deployment: &Deployment) -> Option<i64> {
    let status = deployment.status.as_ref()?;
    let wanted = deployment.spec.as_ref()?.replicas?;
    let counts = [
        status.replicas,
        status.updated_replicas,
        status.ready_replicas,
        status.available_replicas,
    ]
    .map(Option::unwrap_or_default);
    let generation = deployment.metadata.generation?;
    let is_so = status.observed_generation == Some(generation) && counts == [wanted; 4];
    is_so.then_some(generation)
}

fn is_complete(job: &Job) -> bool {
    let conditions = job
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition.type_ == "Complete" && condition.status == "True")
}

fn deployment(name: &str, place: &Place) -> Value {
    let mut object = crate::support::deployment(name, u32::try_from(place.size).unwrap_or(0));
    // No ReplicaSets that are left behind until there are ten: each rollout costs as much as the one before.
    object["spec"]["revisionHistoryLimit"] = json!(0);
    object
}

fn job(name: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "completions": COMPLETIONS, "parallelism": COMPLETIONS,
            "template": {"spec": {
                "restartPolicy": "Never",
                "containers": [{"name": "main", "image": "example/main:1"}],
            }},
        },
    })
}

/// A namespace in motion.
#[derive(Debug)]
pub(super) struct Deeds {
    deployments: Api<Deployment>,
    sets: Api<ReplicaSet>,
    jobs: Api<Job>,
    pods: Api<Pod>,
    places: Vec<Place>,
    round: usize,
    board: Arc<Mutex<Board>>,
    _tasks: JoinSet<()>,
}

impl Deeds {
    /// Makes the Deployments, and waits until they are complete.
    pub(super) async fn start(client: &Client, namespace: &str) -> Result<Self> {
        let board = Arc::new(Mutex::new(Board::default()));
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
        let jobs: Api<Job> = Api::namespaced(client.clone(), namespace);
        let mut tasks = JoinSet::new();
        let (of_deployments, of_jobs) = (Arc::clone(&board), Arc::clone(&board));
        tasks.spawn(follow(deployments.clone(), String::new(), move |change| {
            if let Change::Seen(deployment) = change
                && let Some(generation) = settled(&deployment)
            {
                let name = deployment.metadata.name.unwrap_or_default();
                lock(&of_deployments).settle(&name, generation);
            }
        }));
        tasks.spawn(follow(jobs.clone(), String::new(), move |change| {
            if let Change::Seen(job) = change
                && is_complete(&job)
            {
                lock(&of_jobs).settle(&job.metadata.name.unwrap_or_default(), 1);
            }
        }));
        let places: Vec<Place> = (0..DEEDS).map(Place::new).collect();
        for (index, place) in places.iter().enumerate() {
            let (name, since) = (format!("web-{index}"), Instant::now());
            let made = create(&deployments, deployment(&name, place)).await?;
            let generation = made.metadata.generation.context("no generation")?;
            lock(&board).wait(&name, since, generation);
        }
        let deeds = Self {
            deployments,
            sets: Api::namespaced(client.clone(), namespace),
            jobs,
            pods: Api::namespaced(client.clone(), namespace),
            places,
            round: 0,
            board,
            _tasks: tasks,
        };
        deeds.come_true().await?;
        deeds.took();
        Ok(deeds)
    }

    /// All deeds of a round, so long after one another.
    pub(super) async fn round(&mut self, pace: Duration) -> Result<()> {
        for index in 0..DEEDS {
            self.deed(index).await?;
            tokio::time::sleep(pace).await;
        }
        self.round += 1;
        Ok(())
    }

    async fn deed(&mut self, index: usize) -> Result<()> {
        let (place, name) = (&mut self.places[index], format!("web-{index}"));
        let since = Instant::now();
        let patch = match TURNS[(index + self.round) % TURNS.len()] {
            Deed::Grow => {
                place.size = LARGE;
                json!({"spec": {"replicas": LARGE}})
            }
            Deed::Shrink => {
                place.size = SMALL;
                json!({"spec": {"replicas": SMALL}})
            }
            Deed::Roll => {
                place.image += 1;
                let image = format!("example/app:{}", place.image);
                json!({"spec": {"template": {"spec": {"containers": [{"name": "app", "image": image}]}}}})
            }
            Deed::Job => {
                let name = format!("job-{index}-{}", self.round);
                let object = serde_json::from_value(job(&name))?;
                self.jobs.create(&PostParams::default(), &object).await?;
                lock(&self.board).wait(&name, since, 1);
                if let Some(before) = place.job.replace(name) {
                    let gone = DeleteParams::background();
                    self.jobs.delete(&before, &gone).await?;
                }
                return Ok(());
            }
        };
        let params = PatchParams::default();
        let patch = Patch::Strategic(patch);
        let patched = self.deployments.patch(&name, &params, &patch).await?;
        let generation = patched.metadata.generation.context("no generation")?;
        lock(&self.board).wait(&name, since, generation);
        Ok(())
    }

    /// Waits until all is as was wanted, and nothing else is there.
    pub(super) async fn come_true(&self) -> Result<()> {
        let pods = self.places.iter().map(|place| place.size).sum::<i32>();
        let jobs = self.places.iter().filter(|place| place.job.is_some());
        let pods = usize::try_from(pods)? + COMPLETIONS * jobs.count();
        until("all deeds come true", LIMIT, POLL, || async {
            let waiting: Vec<String> = lock(&self.board).waiting.keys().cloned().collect();
            ensure!(waiting.is_empty(), "these wait: {waiting:?}");
            let all = ListParams::default();
            let sets = self.sets.list_metadata(&all).await?.items.len();
            ensure!(sets == DEEDS, "{sets} ReplicaSets of {DEEDS} Deployments");
            let found = self.pods.list_metadata(&all).await?.items.len();
            ensure!(found == pods, "{found} pods of {pods}");
            Ok(Some(()))
        })
        .await
    }

    /// How long each deed took since the last call, sorted, and how many were overtaken by the next one at
    /// the same object.
    pub(super) fn took(&self) -> (Vec<Duration>, usize) {
        let mut board = lock(&self.board);
        let mut took = std::mem::take(&mut board.took);
        took.sort_unstable();
        (took, std::mem::take(&mut board.overtaken))
    }
}
