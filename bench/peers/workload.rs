//! What the managers are asked for, and waiting until they have done it.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt};
use harness::observe::{Change, follow};
use harness::until;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, ServiceAccount};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, PropagationPolicy};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// Requests of the driver at once.
const AT_ONCE: usize = 16;
/// The interval between two checks of what is watched, and so the resolution of what is measured.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// Between two countings at the server.
const COUNT: Duration = Duration::from_millis(50);
/// For one step: 10,000 pods at 20 a second take 500 s.
pub(crate) const LIMIT: Duration = Duration::from_secs(1_200);
/// Marks what the bench makes.
const LABEL: &str = "manifold.dev/bench";

/// Does many requests, some at once; the first error ends it.
async fn all<F>(requests: impl IntoIterator<Item = F>) -> Result<()>
where
    F: Future<Output = Result<()>>,
{
    futures::stream::iter(requests)
        .buffer_unordered(AT_ONCE)
        .try_collect::<Vec<()>>()
        .await?;
    Ok(())
}

/// What is known of one Deployment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Seen {
    observed: i64,
    replicas: i32,
    updated: i32,
    available: i32,
}

impl From<&Deployment> for Seen {
    fn from(deployment: &Deployment) -> Self {
        let status = deployment.status.clone().unwrap_or_default();
        Self {
            observed: status.observed_generation.unwrap_or(0),
            replicas: status.replicas.unwrap_or(0),
            updated: status.updated_replicas.unwrap_or(0),
            available: status.available_replicas.unwrap_or(0),
        }
    }
}

/// The Deployments of one namespace, followed by a watch.
#[derive(Debug)]
struct Board {
    seen: Arc<Mutex<BTreeMap<String, Seen>>>,
    task: JoinHandle<()>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Board {
    fn follow(api: Api<Deployment>) -> Self {
        let seen = Arc::new(Mutex::new(BTreeMap::new()));
        let book = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            follow(api, String::new(), |change| {
                let mut book = lock(&book);
                match change {
                    Change::Seen(deployment) => {
                        let name = deployment.metadata.name.clone().unwrap_or_default();
                        book.insert(name, Seen::from(&deployment));
                    }
                    Change::Gone(deployment) => {
                        book.remove(deployment.metadata.name.as_deref().unwrap_or_default());
                    }
                    Change::Again => book.clear(),
                }
            })
            .await;
        });
        Self { seen, task }
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Deployments of one size in a namespace of their own.
pub(crate) struct Web {
    client: Client,
    namespace: String,
    board: Board,
    /// Name → generation that the server gave its last change.
    wanted: BTreeMap<String, i64>,
    replicas: usize,
    turn: usize,
}

impl Web {
    /// An empty namespace.
    pub(crate) async fn empty(client: &Client, namespace: &str) -> Result<Self> {
        create_namespace(client, namespace).await?;
        let api = Api::namespaced(client.clone(), namespace);
        Ok(Self {
            client: client.clone(),
            namespace: namespace.to_owned(),
            board: Board::follow(api),
            wanted: BTreeMap::new(),
            replicas: 0,
            turn: 0,
        })
    }

    fn api(&self) -> Api<Deployment> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) async fn create(&mut self, count: usize, replicas: usize) -> Result<()> {
        let api = self.api();
        let create = |index: usize| {
            let api = api.clone();
            async move {
                let name = format!("web-{index:03}");
                let object = deployment(&name, replicas, "example/web:1")?;
                api.create(&PostParams::default(), &object).await?;
                Ok(())
            }
        };
        all((0..count).map(create))
            .await
            .context("making the Deployments")?;
        self.wanted = (0..count)
            .map(|index| (format!("web-{index:03}"), 1))
            .collect();
        self.replicas = replicas;
        Ok(())
    }

    /// Another number of pods for each.
    pub(crate) async fn scale(&mut self, replicas: usize) -> Result<()> {
        self.replicas = replicas;
        self.patch(json!({"spec": {"replicas": replicas}})).await
    }

    /// Another template for each.
    pub(crate) async fn roll_out(&mut self) -> Result<()> {
        self.turn += 1;
        let image = format!("example/web:{}", self.turn + 1);
        let containers = json!([{"name": "web", "image": image}]);
        self.patch(json!({"spec": {"template": {"spec": {"containers": containers}}}}))
            .await
    }

    async fn patch(&mut self, patch: Value) -> Result<()> {
        let api = self.api();
        let names: Vec<String> = self.wanted.keys().cloned().collect();
        let written: Vec<(String, i64)> = futures::stream::iter(names)
            .map(|name| {
                let (api, patch) = (api.clone(), Patch::Strategic(patch.clone()));
                async move {
                    let written = api.patch(&name, &PatchParams::default(), &patch).await?;
                    anyhow::Ok((name, written.metadata.generation.unwrap_or(0)))
                }
            })
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await
            .context("changing the Deployments")?;
        self.wanted.extend(written);
        Ok(())
    }

    /// Every status reflects the last change, with all pods of the newest template available and no others. A
    /// Deployment's status may say so before the last surplus pod is gone, so the pods are counted too.
    pub(crate) async fn converged(&self) -> Result<()> {
        let replicas = i32::try_from(self.replicas)?;
        until(
            "the Deployments converge",
            LIMIT,
            CHECK_INTERVAL,
            || async {
                let seen = lock(&self.board.seen);
                let behind = self.wanted.iter().find(|(name, generation)| {
                    let Some(seen) = seen.get(*name) else {
                        return true;
                    };
                    seen.observed < **generation
                        || [seen.replicas, seen.updated, seen.available] != [replicas; 3]
                });
                if let Some((name, generation)) = behind {
                    anyhow::bail!(
                        "{name} at generation {generation} with {replicas} pods wanted has {:?}",
                        seen.get(name)
                    );
                }
                Ok(Some(()))
            },
        )
        .await?;
        let wanted = self.wanted.len() * self.replicas;
        self.counted::<Pod>(wanted).await
    }

    async fn counted<K>(&self, wanted: usize) -> Result<()>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug,
    {
        let what = format!("{wanted} {} are left", K::plural(&()));
        until(&what, LIMIT, COUNT, || async {
            let count = count::<K>(&self.client, &self.namespace).await?;
            ensure!(count == wanted, "there are {count}");
            Ok(Some(()))
        })
        .await
    }

    /// Deletes all Deployments, without waiting.
    pub(crate) async fn delete(&mut self, how: PropagationPolicy) -> Result<()> {
        let api = self.api();
        let params = DeleteParams {
            propagation_policy: Some(how),
            ..DeleteParams::default()
        };
        let delete = |name: String| {
            let (api, params) = (api.clone(), params.clone());
            async move {
                api.delete(&name, &params).await?;
                Ok(())
            }
        };
        let names: Vec<String> = self.wanted.keys().cloned().collect();
        all(names.into_iter().map(delete))
            .await
            .context("deleting the Deployments")?;
        self.wanted.clear();
        Ok(())
    }

    /// Nothing is left of them.
    pub(crate) async fn gone(&self) -> Result<()> {
        self.counted::<Pod>(0).await?;
        self.counted::<ReplicaSet>(0).await?;
        self.counted::<Deployment>(0).await
    }

    /// Deletes them and waits, if there are any.
    pub(crate) async fn clear(&mut self) -> Result<()> {
        if !self.wanted.is_empty() {
            self.delete(PropagationPolicy::Background).await?;
        }
        self.gone().await
    }
}

/// Objects of a kind in a namespace: one is listed, and the server says how many more there are.
async fn count<K>(client: &Client, namespace: &str) -> Result<usize>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug,
{
    let api: Api<kube::core::PartialObjectMeta<K>> = Api::namespaced(client.clone(), namespace);
    let list = api.list_metadata(&ListParams::default().limit(1)).await?;
    let more = list.metadata.remaining_item_count.unwrap_or(0);
    Ok(list.items.len() + usize::try_from(more)?)
}

pub(crate) async fn create_namespace(client: &Client, name: &str) -> Result<()> {
    let api: Api<Namespace> = Api::all(client.clone());
    let namespace =
        serde_json::from_value(json!({"metadata": {"name": name, "labels": {LABEL: "true"}}}))?;
    api.create(&PostParams::default(), &namespace)
        .await
        .with_context(|| format!("making the namespace {name}"))?;
    // Pods are refused before it is there.
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), name);
    let what = format!("{name} has its service account");
    until(&what, LIMIT, COUNT, || async {
        Ok(accounts.get_opt("default").await?.map(|_| ()))
    })
    .await
}

/// A Deployment with the figures of an ordinary one.
pub(crate) fn deployment(name: &str, replicas: usize, image: &str) -> Result<Deployment> {
    let labels = json!({"app": name});
    Ok(serde_json::from_value(json!({
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [container("web", image)]},
            },
        },
    }))?)
}

fn container(name: &str, image: &str) -> Value {
    json!({
        "name": name,
        "image": image,
        "env": [{"name": "LOG_LEVEL", "value": "info"}, {"name": "REGION", "value": "somewhere"}],
        "ports": [{"containerPort": 8080}],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}},
    })
}

/// One Job of `pods` pods, all at once; returns when it is complete.
pub(crate) async fn job_to_completion(client: &Client, namespace: &str, pods: usize) -> Result<()> {
    let api: Api<Job> = Api::namespaced(client.clone(), namespace);
    let job = serde_json::from_value(json!({
        "metadata": {"name": "batch"},
        "spec": {
            "completions": pods,
            "parallelism": pods,
            "template": {"spec": {
                "restartPolicy": "Never",
                "containers": [container("batch", "example/batch:1")],
            }},
        },
    }))?;
    api.create(&PostParams::default(), &job)
        .await
        .context("making the Job")?;
    let wanted = i32::try_from(pods)?;
    watched_until(api, "the Job is complete", move |job: &Job| {
        let status = job.status.clone().unwrap_or_default();
        let complete = status
            .conditions
            .iter()
            .flatten()
            .any(|condition| condition.type_ == "Complete" && condition.status == "True");
        complete && status.succeeded == Some(wanted)
    })
    .await
}

/// Takes the Job away with all its pods.
pub(crate) async fn clear_job(client: &Client, namespace: &str) -> Result<()> {
    let api: Api<Job> = Api::namespaced(client.clone(), namespace);
    api.delete("batch", &DeleteParams::background()).await?;
    until("the Job's pods are gone", LIMIT, COUNT, || async {
        let left = count::<Pod>(client, namespace).await? + count::<Job>(client, namespace).await?;
        ensure!(left == 0, "{left} objects are left");
        Ok(Some(()))
    })
    .await
}

/// Follows a kind until one object is as wished.
async fn watched_until<K>(
    api: Api<K>,
    what: &str,
    wish: impl Fn(&K) -> bool + Send + 'static,
) -> Result<()>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let (done, mut awaited) = tokio::sync::watch::channel(false);
    let following = Box::pin(follow(api, String::new(), |change| {
        if let Change::Seen(object) = change
            && wish(&object)
        {
            done.send_replace(true);
        }
    }));
    tokio::select! {
        () = following => anyhow::bail!("{what}: nobody watches any more"),
        held = awaited.wait_for(|done| *done) => { held?; }
        () = tokio::time::sleep(LIMIT) => anyhow::bail!("{what}: not within {LIMIT:?}"),
    }
    Ok(())
}

/// Namespaces with some ConfigMaps in each.
pub(crate) struct Namespaces {
    client: Client,
    names: Vec<String>,
}

impl Namespaces {
    pub(crate) async fn fill(client: &Client, count: usize, objects: usize) -> Result<Self> {
        let names: Vec<String> = (0..count).map(|index| format!("full-{index:03}")).collect();
        all(names.iter().map(|name| create_namespace(client, name))).await?;
        let fill = |name: &String| {
            let api: Api<ConfigMap> = Api::namespaced(client.clone(), name);
            (0..objects).map(move |index| {
                let api = api.clone();
                async move {
                    let object = serde_json::from_value(json!({
                        "metadata": {"name": format!("settings-{index:02}")},
                        "data": {"colour": "blue", "size": "large"},
                    }))?;
                    api.create(&PostParams::default(), &object).await?;
                    Ok(())
                }
            })
        };
        all(names.iter().flat_map(fill))
            .await
            .context("filling the namespaces")?;
        Ok(Self {
            client: client.clone(),
            names,
        })
    }

    /// Deletes all of them and waits until none is left.
    pub(crate) async fn delete(self) -> Result<()> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        let delete = |name: &String| {
            let (api, name) = (api.clone(), name.clone());
            async move {
                api.delete(&name, &DeleteParams::default()).await?;
                Ok(())
            }
        };
        all(self.names.iter().map(delete))
            .await
            .context("deleting the namespaces")?;
        until("the namespaces are gone", LIMIT, COUNT, || async {
            let list = api.list_metadata(&ListParams::default()).await?.items;
            let left = list
                .iter()
                .filter(|item| {
                    let name = item.metadata.name.as_ref();
                    name.is_some_and(|name| self.names.contains(name))
                })
                .count();
            ensure!(left == 0, "{left} are left");
            Ok(Some(()))
        })
        .await
    }
}

/// Deployments without pods that nobody has served yet, and when they are.
#[derive(Debug)]
pub(crate) struct Pending {
    served: Arc<Mutex<BTreeMap<String, Instant>>>,
    count: usize,
    task: JoinHandle<()>,
}

impl Pending {
    /// Makes them while no manager runs.
    pub(crate) async fn create(client: &Client, namespace: &str, count: usize) -> Result<Self> {
        let api: Api<Deployment> = Api::namespaced(client.clone(), namespace);
        let create = |index: usize| {
            let api = api.clone();
            async move {
                let object = deployment(&format!("pending-{index:02}"), 0, "example/web:1")?;
                api.create(&PostParams::default(), &object).await?;
                Ok(())
            }
        };
        all((0..count).map(create))
            .await
            .context("making what nobody serves")?;
        let served = Arc::new(Mutex::new(BTreeMap::new()));
        let book = Arc::clone(&served);
        let task = tokio::spawn(async move {
            follow(api, String::new(), |change| {
                if let Change::Seen(deployment) = change
                    && Seen::from(&deployment).observed > 0
                {
                    let name = deployment.metadata.name.unwrap_or_default();
                    lock(&book).entry(name).or_insert_with(Instant::now);
                }
            })
            .await;
        });
        Ok(Self {
            served,
            count,
            task,
        })
    }

    /// When the first was served, and when all were.
    pub(crate) async fn served(&self) -> Result<(Instant, Instant)> {
        until("what waited is served", LIMIT, CHECK_INTERVAL, || async {
            let served = lock(&self.served);
            let (first, last) = (served.values().min(), served.values().max());
            ensure!(served.len() == self.count, "{} are", served.len());
            Ok(first.copied().zip(last.copied()))
        })
        .await
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.task.abort();
    }
}
