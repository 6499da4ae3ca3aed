//! Deployments that are scaled, rolled out, deleted and made again all the time, and what they must be at
//! the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use harness::until;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// Deployments.
const COUNT: usize = 10;
/// Between two changes.
const CHANGE: Duration = Duration::from_millis(300);
const POLL: Duration = Duration::from_millis(200);
/// For all of it to come to rest, with the slowest faults just over.
const REST: Duration = Duration::from_secs(120);

/// A Deployment of one small container; `app` marks its pods.
pub(super) fn deployment(name: &str, app: &str, replicas: u32, image: u32) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": {"load": "yes"}},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": app}},
            "template": {
                "metadata": {"labels": {"app": app}},
                "spec": {"containers": [{"name": "app", "image": format!("example/app:{image}")}]},
            },
        },
    })
}

/// How one must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wish {
    /// How often it was made.
    life: u32,
    replicas: u32,
    image: u32,
}

/// Changes Deployments until it is asked for their end.
pub(super) struct Workload {
    client: Client,
    namespace: String,
    wishes: Arc<Mutex<Vec<Wish>>>,
    changes: Arc<Mutex<usize>>,
    task: JoinHandle<()>,
}

fn name(index: usize) -> String {
    format!("load-{index}")
}

/// Labels of one life of it: what the life before has left is another's.
fn app(index: usize, life: u32) -> String {
    format!("load-{index}-{life}")
}

fn body(index: usize, wish: Wish) -> Value {
    deployment(
        &name(index),
        &app(index, wish.life),
        wish.replicas,
        wish.image,
    )
}

/// Gone already is as good.
pub(super) fn or_gone<T>(result: Result<T, kube::Error>) -> Result<(), kube::Error> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(drop),
    }
}

/// Takes away what was made of one life: owners first, so that nobody makes it again.
pub(super) async fn sweep(client: &Client, namespace: &str, app: &str) -> Result<(), kube::Error> {
    let of_life = ListParams::default().labels(&format!("app={app}"));
    let now = DeleteParams::background().grace_period(0);
    let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), namespace);
    for set in sets.list(&of_life).await?.items {
        or_gone(
            sets.delete(&set.metadata.name.unwrap_or_default(), &now)
                .await,
        )?;
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    for pod in pods.list(&of_life).await?.items {
        or_gone(
            pods.delete(&pod.metadata.name.unwrap_or_default(), &now)
                .await,
        )?;
    }
    Ok(())
}

impl Workload {
    pub(super) async fn start(client: &Client, namespace: &str, seed: u64) -> Result<Self> {
        let wishes: Vec<Wish> = (0..COUNT)
            .map(|_| Wish {
                life: 1,
                replicas: 2,
                image: 1,
            })
            .collect();
        let api: Api<Deployment> = Api::namespaced(client.clone(), namespace);
        try_join_all(wishes.iter().enumerate().map(|(index, wish)| {
            let (api, body) = (api.clone(), body(index, *wish));
            async move {
                let object = serde_json::from_value(body)?;
                api.create(&PostParams::default(), &object).await?;
                anyhow::Ok(())
            }
        }))
        .await?;
        let wishes = Arc::new(Mutex::new(wishes));
        let changes = Arc::default();
        let task = tokio::spawn(change(
            client.clone(),
            namespace.to_owned(),
            Arc::clone(&wishes),
            Arc::clone(&changes),
            StdRng::seed_from_u64(seed),
        ));
        Ok(Self {
            client: client.clone(),
            namespace: namespace.to_owned(),
            wishes,
            changes,
            task,
        })
    }

    /// Changes that the server has taken.
    pub(super) fn changes(&self) -> usize {
        *self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the changes, and compares what came of them with what the same wishes come to where nothing goes
    /// wrong.
    pub(super) async fn compare(self, calm: &str) -> Result<()> {
        self.task.abort();
        let wishes = self
            .wishes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), &self.namespace);
        // The last change may have been cut off in its middle: what was wished for last is said again.
        for (index, wish) in wishes.iter().enumerate() {
            let app = app(index, wish.life);
            let there = api.get_opt(&name(index)).await?;
            let is_of_life = there.as_ref().is_some_and(|there| {
                let labels = there
                    .spec
                    .as_ref()
                    .and_then(|spec| spec.selector.match_labels.as_ref());
                labels.is_some_and(|labels| labels.get("app") == Some(&app))
            });
            if is_of_life {
                let patch = Patch::Merge(json!({"spec": body(index, *wish)["spec"]}));
                api.patch(&name(index), &PatchParams::default(), &patch)
                    .await?;
            } else {
                or_gone(api.delete(&name(index), &DeleteParams::default()).await)?;
                let object = serde_json::from_value(body(index, *wish))?;
                api.create(&PostParams::default(), &object).await?;
            }
            for life in 1..wish.life {
                sweep(&self.client, &self.namespace, &self::app(index, life)).await?;
            }
        }
        let undisturbed: Api<Deployment> = Api::namespaced(self.client.clone(), calm);
        for (index, wish) in wishes.iter().enumerate() {
            let object = serde_json::from_value(body(index, *wish))?;
            undisturbed.create(&PostParams::default(), &object).await?;
        }
        let calm = picture_at_rest(&self.client, calm).await?;
        let disturbed = picture_at_rest(&self.client, &self.namespace).await?;
        ensure!(
            calm == disturbed,
            "what is left differs from an undisturbed run: {disturbed:#?} instead of {calm:#?}"
        );
        Ok(())
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn change(
    client: Client,
    namespace: String,
    wishes: Arc<Mutex<Vec<Wish>>>,
    changes: Arc<Mutex<usize>>,
    mut random: StdRng,
) {
    let api: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
    loop {
        tokio::time::sleep(CHANGE).await;
        let index = random.random_range(0..COUNT);
        let mut wish = wishes.lock().unwrap_or_else(PoisonError::into_inner)[index];
        let before = wish;
        let what = random.random_range(0..10);
        match what {
            0 => wish.life += 1,
            1..4 => wish.image = random.random_range(1..4),
            _ => wish.replicas = random.random_range(0..6),
        }
        // Said before it is tried: the request may land though its answer is lost.
        wishes.lock().unwrap_or_else(PoisonError::into_inner)[index] = wish;
        let done: Result<(), kube::Error> = async {
            if wish.life != before.life {
                or_gone(api.delete(&name(index), &DeleteParams::default()).await)?;
                sweep(&client, &namespace, &app(index, before.life)).await?;
                let Ok(object) = serde_json::from_value(body(index, wish)) else {
                    return Ok(());
                };
                api.create(&PostParams::default(), &object).await?;
            } else {
                let patch = Patch::Merge(json!({"spec": body(index, wish)["spec"]}));
                api.patch(&name(index), &PatchParams::default(), &patch)
                    .await?;
            }
            Ok(())
        }
        .await;
        match done {
            Ok(()) => *changes.lock().unwrap_or_else(PoisonError::into_inner) += 1,
            // The server is away: the wish is kept and is said again at the end.
            Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
        }
    }
}

/// What is there, without names that nobody chose: once it is complete and stays as it is.
async fn picture_at_rest(client: &Client, namespace: &str) -> Result<BTreeMap<String, Value>> {
    until("the workload is at rest", REST, POLL, || async {
        let one = picture(client, namespace).await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let other = picture(client, namespace).await?;
        Ok((one == other).then_some(one))
    })
    .await
}

async fn picture(client: &Client, namespace: &str) -> Result<BTreeMap<String, Value>> {
    let of_load = ListParams::default().labels("load=yes");
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let deployments = deployments.list(&of_load).await?.items;
    let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), namespace);
    let sets = sets.list(&ListParams::default()).await?.items;
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let pods = pods.list(&ListParams::default()).await?.items;
    let controller = |meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta| {
        meta.owner_references
            .iter()
            .flatten()
            .find(|owner| owner.controller == Some(true))
            .map(|owner| owner.uid.clone())
    };
    let mut picture = BTreeMap::new();
    let mut known = BTreeSet::new();
    for deployment in deployments {
        let name = deployment.metadata.name.clone().unwrap_or_default();
        if name.starts_with("probe-") {
            continue;
        }
        let status = deployment.status.clone().unwrap_or_default();
        ensure!(
            status.observed_generation == deployment.metadata.generation,
            "{name} was not checked"
        );
        let wanted = deployment
            .spec
            .as_ref()
            .and_then(|spec| spec.replicas)
            .unwrap_or(1);
        let counts = [
            status.replicas,
            status.updated_replicas,
            status.ready_replicas,
            status.available_replicas,
        ]
        .map(Option::unwrap_or_default);
        ensure!(counts == [wanted; 4], "{name} has {counts:?} of {wanted}");
        let own: Vec<&ReplicaSet> = sets
            .iter()
            .filter(|set| controller(&set.metadata) == deployment.metadata.uid)
            .collect();
        let mut images = Vec::new();
        let mut its_pods = 0;
        for set in &own {
            let uid = set.metadata.uid.clone();
            known.extend(uid.clone());
            let of_set = pods.iter().filter(|pod| controller(&pod.metadata) == uid);
            let count = of_set.count();
            if count > 0 {
                let template = set.spec.as_ref().and_then(|spec| spec.template.clone());
                let containers = template
                    .and_then(|template| template.spec)
                    .context("a ReplicaSet's template")?
                    .containers;
                images.extend(containers.into_iter().map(|one| one.image));
                its_pods += count;
            }
        }
        let conditions: BTreeMap<String, String> = status
            .conditions
            .unwrap_or_default()
            .into_iter()
            .map(|condition| (condition.type_, condition.status))
            .collect();
        picture.insert(
            name,
            json!({"wanted": wanted, "counts": counts, "pods": its_pods, "images": images, "conditions": conditions}),
        );
    }
    // Pods that belong to none of these ReplicaSets.
    let strays: Vec<String> = pods
        .iter()
        .filter(|pod| controller(&pod.metadata).is_none_or(|uid| !known.contains(&uid)))
        .filter_map(|pod| pod.metadata.name.clone())
        .collect();
    picture.insert("strays".to_owned(), json!(strays));
    Ok(picture)
}
