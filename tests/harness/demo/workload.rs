//! What the demo asks the cluster for: Deployments over three namespaces, and the probes.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use serde_json::json;

use crate::cluster::{FLEET, FLEET_LABEL, FLEET_NAMESPACE};

/// Namespaces over which the Deployments are spread.
const NAMESPACES: usize = 3;
/// Creations at once.
const AT_ONCE: usize = 8;
/// Marks every object of the demo; the value distinguishes one demo from another.
pub(crate) const LABEL: &str = "manifold.dev/demo";
/// Marks the probes.
pub(crate) const PROBE_LABEL: &str = "manifold.dev/demo-probe";
/// Seconds that a pod stays on a dead node; by default it is five minutes.
const TOLERATED: u32 = 5;
const MANAGER: &str = "manifold-demo";

/// Names and sizes.
#[derive(Debug, Clone)]
pub(crate) struct Workload {
    /// Begins the namespaces' names; the label's value.
    pub(crate) id: String,
    /// Deployments.
    pub(crate) deployments: usize,
    /// Pods of each.
    pub(crate) pods: usize,
    /// Probes.
    pub(crate) probes: usize,
}

impl Workload {
    /// Pods wanted.
    pub(crate) fn wanted(&self) -> usize {
        self.deployments * self.pods
    }

    /// Selects every object of this demo.
    pub(crate) fn selector(&self) -> String {
        format!("{LABEL}={}", self.id)
    }

    /// Selects its probes.
    pub(crate) fn probe_selector(&self) -> String {
        format!("{PROBE_LABEL}={}", self.id)
    }

    /// Namespace of a Deployment.
    pub(crate) fn namespace(&self, index: usize) -> String {
        format!("{}-{}", self.id, index % NAMESPACES + 1)
    }

    /// Name of a Deployment.
    pub(crate) fn name(index: usize) -> String {
        format!("web-{index:02}")
    }

    pub(crate) fn probe_namespace(&self) -> String {
        format!("{}-probes", self.id)
    }

    pub(crate) fn probe_name(index: usize) -> String {
        format!("probe-{index}")
    }

    /// The number in a probe's name.
    pub(crate) fn probe_index(name: &str) -> Option<usize> {
        name.strip_prefix("probe-")?.parse().ok()
    }

    fn namespaces(&self) -> Vec<String> {
        let mut all: Vec<String> = (0..NAMESPACES).map(|index| self.namespace(index)).collect();
        all.push(self.probe_namespace());
        all
    }

    pub(crate) async fn create_namespaces(&self, client: &Client) -> Result<()> {
        let api: Api<Namespace> = Api::all(client.clone());
        for name in self.namespaces() {
            let namespace = serde_json::from_value(json!({
                "metadata": {"name": name, "labels": {LABEL: self.id}},
            }))?;
            api.create(&PostParams::default(), &namespace)
                .await
                .with_context(|| format!("making the namespace {name}"))?;
        }
        Ok(())
    }

    pub(crate) async fn create_probes(&self, client: &Client) -> Result<()> {
        let namespace = self.probe_namespace();
        let all = (0..self.probes)
            .map(|index| (namespace.clone(), Self::probe_name(index), 0, PROBE_LABEL));
        self.create(client, all.collect()).await
    }

    pub(crate) async fn create_deployments(&self, client: &Client) -> Result<()> {
        let all = (0..self.deployments)
            .map(|index| (self.namespace(index), Self::name(index), self.pods, LABEL));
        self.create(client, all.collect()).await
    }

    async fn create(
        &self,
        client: &Client,
        all: Vec<(String, String, usize, &'static str)>,
    ) -> Result<()> {
        let create = |(namespace, name, pods, label): (String, String, usize, &'static str)| async move {
            let deployment = self.deployment(&name, pods, label)?;
            Api::<Deployment>::namespaced(client.clone(), &namespace)
                .create(&PostParams::default(), &deployment)
                .await
                .with_context(|| format!("making the Deployment {namespace}/{name}"))?;
            anyhow::Ok(())
        };
        futures::stream::iter(all.into_iter().map(create))
            .buffer_unordered(AT_ONCE)
            .try_collect::<Vec<()>>()
            .await?;
        Ok(())
    }

    fn deployment(&self, name: &str, pods: usize, label: &str) -> Result<Deployment> {
        let labels = json!({"app": name, label: self.id});
        Ok(serde_json::from_value(json!({
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "replicas": pods,
                "selector": {"matchLabels": {"app": name}},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "containers": [{"name": "main", "image": "demo:1"}],
                        "tolerations": [{
                            "key": "node.kubernetes.io/unreachable",
                            "operator": "Exists",
                            "effect": "NoExecute",
                            "tolerationSeconds": TOLERATED,
                        }],
                    },
                },
            },
        }))?)
    }

    /// The node with most of the pods, and how many it has.
    pub(crate) async fn busiest_node(&self, client: &Client) -> Result<(String, usize)> {
        let pods: Api<Pod> = Api::all(client.clone());
        let params = ListParams::default().labels(&self.selector());
        let pods = pods.list(&params).await.context("listing the pods")?;
        let nodes = pods.items.into_iter().filter_map(|pod| pod.spec?.node_name);
        let counts = nodes.fold(BTreeMap::<String, usize>::new(), |mut counts, node| {
            *counts.entry(node).or_default() += 1;
            counts
        });
        let most = counts.into_iter().max_by_key(|(_, pods)| *pods);
        most.context("no pod of the demo has a node")
    }

    /// Gives a Deployment a new template.
    pub(crate) async fn roll_out(&self, client: &Client, index: usize) -> Result<i64> {
        let api: Api<Deployment> = Api::namespaced(client.clone(), &self.namespace(index));
        let template = json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "demo:2"}]}}}});
        let params = PatchParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let rolled = api
            .patch(&Self::name(index), &params, &Patch::Strategic(template))
            .await;
        Ok(rolled
            .context("rolling a Deployment out")?
            .metadata
            .generation
            .unwrap_or(0))
    }

    /// Whether a Deployment has reached this generation with all its pods.
    pub(crate) async fn is_rolled_out(
        &self,
        client: &Client,
        index: usize,
        generation: i64,
    ) -> Result<bool> {
        let api: Api<Deployment> = Api::namespaced(client.clone(), &self.namespace(index));
        let status = api
            .get(&Self::name(index))
            .await?
            .status
            .unwrap_or_default();
        let pods = i32::try_from(self.pods).unwrap_or(i32::MAX);
        Ok(status.observed_generation.unwrap_or(0) >= generation
            && [
                status.replicas,
                status.updated_replicas,
                status.available_replicas,
            ]
            .iter()
            .all(|count| count.unwrap_or(0) == pods))
    }

    /// Changes a probe without changing what it runs; gives the new generation.
    pub(crate) async fn touch_probe(
        api: &Api<Deployment>,
        index: usize,
        odd: bool,
    ) -> kube::Result<i64> {
        let patch = json!({"spec": {"revisionHistoryLimit": if odd { 9 } else { 10 }}});
        let params = PatchParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let probe = api
            .patch(&Self::probe_name(index), &params, &Patch::Merge(patch))
            .await?;
        Ok(probe.metadata.generation.unwrap_or(0))
    }

    /// Takes everything away again from a cluster that stays. Nothing there may collect garbage, so
    /// each kind is deleted by itself.
    pub(crate) async fn remove(&self, client: &Client) -> Result<()> {
        let all = ListParams::default();
        for namespace in self.namespaces() {
            delete_all::<Deployment>(client, &namespace, &all).await?;
            delete_all::<ReplicaSet>(client, &namespace, &all).await?;
            delete_all::<Pod>(client, &namespace, &all).await?;
            let api: Api<Namespace> = Api::all(client.clone());
            if let Err(error) = api.delete(&namespace, &DeleteParams::default()).await
                && !is_not_found(&error)
            {
                return Err(error).with_context(|| format!("deleting the namespace {namespace}"));
            }
        }
        let fleet = ListParams::default().labels(&format!("{FLEET_LABEL}={FLEET}"));
        delete_all::<Lease>(client, FLEET_NAMESPACE, &fleet).await?;
        remove_fleet_namespace(client).await
    }
}

/// Makes the namespace of the fleet's Leases where `deploy/rbac` has not, with a mark by which it is removed
/// again.
pub(crate) async fn create_fleet_namespace(client: &Client) -> Result<()> {
    let namespace = serde_json::from_value(json!({
        "metadata": {"name": FLEET_NAMESPACE, "labels": {LABEL: FLEET}},
    }))?;
    let created = Api::<Namespace>::all(client.clone())
        .create(&PostParams::default(), &namespace)
        .await;
    match created {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        other => other
            .map(|_| ())
            .with_context(|| format!("making the namespace {FLEET_NAMESPACE}")),
    }
}

async fn remove_fleet_namespace(client: &Client) -> Result<()> {
    let api: Api<Namespace> = Api::all(client.clone());
    let Some(namespace) = api.get_opt(FLEET_NAMESPACE).await? else {
        return Ok(());
    };
    let labels = namespace.metadata.labels.unwrap_or_default();
    if labels.contains_key(LABEL) {
        api.delete(FLEET_NAMESPACE, &DeleteParams::default())
            .await
            .with_context(|| format!("deleting the namespace {FLEET_NAMESPACE}"))?;
    }
    Ok(())
}

async fn delete_all<K>(client: &Client, namespace: &str, which: &ListParams) -> Result<()>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    Api::<K>::namespaced(client.clone(), namespace)
        .delete_collection(&DeleteParams::background(), which)
        .await
        .with_context(|| format!("deleting {} in {namespace}", K::plural(&())))?;
    Ok(())
}

fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}
