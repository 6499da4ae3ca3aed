//! Does deeds: whatever an outage of the API server refuses is tried again.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use harness::control_plane::{NO_KUBELET, node_object};
use harness::{MetricsApi, until};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::plan::{
    BOUNDED, CRON_JOBS, Deed, METRIC, NAMESPACE, NODES_STEADY, STEADY, VOLUMES, VOLUMES_EACH,
    volume,
};

/// For whatever a controller is to do: upstream checks for new kinds every 30 s, and a silent node may hold
/// pods for a while.
const LIMIT: Duration = Duration::from_secs(180);
const POLL: Duration = Duration::from_millis(250);
/// Between two checks for pods that are marked as not ready.
const KUBELETS: Duration = Duration::from_secs(3);
/// Pods on a node, as a kubelet says by default.
const PODS: usize = 110;
/// Kind, version, plural, and whether it belongs to a namespace.
const KINDS: [(&str, &str, &str, bool); 20] = [
    ("Pod", "v1", "pods", true),
    ("Deployment", "apps/v1", "deployments", true),
    ("StatefulSet", "apps/v1", "statefulsets", true),
    ("DaemonSet", "apps/v1", "daemonsets", true),
    ("Job", "batch/v1", "jobs", true),
    ("CronJob", "batch/v1", "cronjobs", true),
    ("Service", "v1", "services", true),
    ("ConfigMap", "v1", "configmaps", true),
    ("ServiceAccount", "v1", "serviceaccounts", true),
    ("ResourceQuota", "v1", "resourcequotas", true),
    (
        "PersistentVolumeClaim",
        "v1",
        "persistentvolumeclaims",
        true,
    ),
    (
        "PodDisruptionBudget",
        "policy/v1",
        "poddisruptionbudgets",
        true,
    ),
    (
        "HorizontalPodAutoscaler",
        "autoscaling/v2",
        "horizontalpodautoscalers",
        true,
    ),
    ("Gadget", "week.example.com/v1", "gadgets", true),
    ("Namespace", "v1", "namespaces", false),
    ("Node", "v1", "nodes", false),
    ("PersistentVolume", "v1", "persistentvolumes", false),
    ("CSIDriver", "storage.k8s.io/v1", "csidrivers", false),
    (
        "ClusterRole",
        "rbac.authorization.k8s.io/v1",
        "clusterroles",
        false,
    ),
    (
        "CustomResourceDefinition",
        "apiextensions.k8s.io/v1",
        "customresourcedefinitions",
        false,
    ),
];

/// The cluster, as an administrator, and its metrics.
pub(super) struct World {
    client: Client,
    metrics: MetricsApi,
}

fn text<'v>(object: &'v Value, pointer: &str) -> &'v str {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or("")
}

fn code(error: &anyhow::Error) -> Option<u16> {
    match error.downcast_ref::<kube::Error>() {
        Some(kube::Error::Api(status)) => Some(status.code),
        _ => None,
    }
}

/// Tries until it is done, since the API server may be away, and a kind not served yet.
async fn insist<T>(what: &str, mut attempt: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    let began = Instant::now();
    loop {
        match attempt().await {
            Ok(done) => return Ok(done),
            // What is wrong with the deed itself stays wrong.
            Err(error) if matches!(code(&error), Some(400 | 422)) => return Err(error),
            Err(error) if began.elapsed() > LIMIT => return Err(error.context(what.to_owned())),
            Err(_) => tokio::time::sleep(POLL).await,
        }
    }
}

impl World {
    pub(super) fn new(client: Client, metrics: MetricsApi) -> Self {
        Self { client, metrics }
    }

    fn api(&self, kind: &str, namespace: &str) -> Result<Api<DynamicObject>> {
        let known = KINDS.iter().find(|(name, ..)| *name == kind);
        let (kind, version, plural, namespaced) =
            known.with_context(|| format!("no kind {kind}: add it to tests/week/world.rs"))?;
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let gvk = GroupVersionKind::gvk(group, version, kind);
        let resource = ApiResource::from_gvk_with_plural(&gvk, plural);
        Ok(match namespaced {
            true => Api::namespaced_with(self.client.clone(), namespace, &resource),
            false => Api::all_with(self.client.clone(), &resource),
        })
    }

    /// As it is, or null.
    async fn get(&self, kind: &str, namespace: &str, name: &str) -> Result<Value> {
        let found = self.api(kind, namespace)?.get_opt(name).await;
        Ok(match found? {
            Some(object) => serde_json::to_value(object)?,
            None => Value::Null,
        })
    }

    async fn create(&self, object: &Value) -> Result<()> {
        let (kind, namespace) = (text(object, "/kind"), text(object, "/metadata/namespace"));
        let api = self.api(kind, namespace)?;
        let mut object = object.clone();
        let owner = object.pointer("/metadata/ownerReferences/0").cloned();
        if let Some(owner) = owner {
            let (kind, name) = (text(&owner, "/kind"), text(&owner, "/name"));
            let uid = insist("its owner", async || {
                let of = self.get(kind, namespace, name).await?;
                let uid = of["metadata"]["uid"].clone();
                ensure!(uid.is_string(), "there is no {owner}");
                Ok(uid)
            })
            .await?;
            object["metadata"]["ownerReferences"][0]["uid"] = uid;
        }
        let what = format!("making {kind} {}", text(&object, "/metadata/name"));
        let object: DynamicObject = serde_json::from_value(object)?;
        insist(&what, async || {
            match api.create(&PostParams::default(), &object).await {
                // The answer to an attempt before was lost.
                Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(()),
                done => Ok(done.map(drop)?),
            }
        })
        .await
    }

    async fn change(&self, kind: &str, namespace: &str, name: &str, to: &Value) -> Result<()> {
        let api = self.api(kind, namespace)?;
        let what = format!("{kind} {name}");
        let changed = insist(&what, async || {
            let patch = Patch::Merge(to);
            Ok(api.patch(name, &PatchParams::default(), &patch).await?)
        })
        .await?;
        let generation = changed.metadata.generation;
        if ["Node", "ResourceQuota", "Job"].contains(&kind) {
            return Ok(());
        }
        until(&format!("{what} is seen"), LIMIT, POLL, || async {
            let seen = self.get(kind, namespace, name).await?;
            let seen = seen
                .pointer("/status/observedGeneration")
                .and_then(Value::as_i64);
            Ok((seen >= generation).then_some(()))
        })
        .await
    }

    async fn delete(&self, kind: &str, namespace: &str, name: &str, how: &str) -> Result<()> {
        let api = self.api(kind, namespace)?;
        let params = match how {
            "Foreground" => DeleteParams::foreground(),
            _ => DeleteParams::background(),
        };
        let what = format!("deleting {kind} {name}");
        insist(&what, async || match api.delete(name, &params).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            done => Ok(done.map(drop)?),
        })
        .await?;
        until(&format!("{kind} {name} is gone"), LIMIT, POLL, || async {
            let there = self.get(kind, namespace, name).await?;
            Ok(there.is_null().then_some(()))
        })
        .await
    }

    async fn label(&self, node: &str, label: &str, value: Value) -> Result<()> {
        let to = json!({"metadata": {"labels": {label: value}}});
        self.change("Node", "", node, &to).await
    }

    /// Waits until the manager has taken away the taints of a node that was silent.
    async fn is_ready(&self, node: &str) -> Result<()> {
        self.becomes("Node", "", node, "/spec/taints", &Value::Null)
            .await
    }

    /// Waits until the manager has tainted a node that is silent.
    async fn is_unreachable(&self, node: &str) -> Result<()> {
        let what = format!("{node} is unreachable");
        until(&what, LIMIT, POLL, || async {
            let object = self.get("Node", "", node).await?;
            let taints = object["spec"]["taints"].as_array().into_iter().flatten();
            let mut found = taints.map(|taint| text(taint, "/key"));
            let is_so = found.any(|key| key == "node.kubernetes.io/unreachable");
            Ok(is_so.then_some(()))
        })
        .await
    }

    /// Takes away the volumes of claims alone that are released, and provides them again.
    async fn provide(&self) -> Result<()> {
        let class = VOLUMES[1];
        let api = self.api("PersistentVolume", "")?;
        let phase = |volume: &DynamicObject| volume.data["status"]["phase"].clone();
        let released = until("a volume is released", LIMIT, POLL, || async {
            let mut all = api.list(&ListParams::default()).await?.items;
            all.retain(|volume| phase(volume) == "Released");
            Ok((!all.is_empty()).then_some(all))
        })
        .await?;
        for one in released {
            let name = one.metadata.name.unwrap_or_default();
            let Some(number) = name.strip_prefix(&format!("{class}-")) else {
                continue;
            };
            self.delete("PersistentVolume", "", &name, "Background")
                .await?;
            self.create(&volume(class, number.parse()?)).await?;
            self.becomes(
                "PersistentVolume",
                "",
                &name,
                "/status/phase",
                &json!("Available"),
            )
            .await?;
        }
        Ok(())
    }

    async fn becomes(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
        fact: &str,
        is: &Value,
    ) -> Result<()> {
        let what = format!("{kind} {name} has {is} at {fact:?}");
        until(&what, LIMIT, POLL, || async {
            let object = self.get(kind, namespace, name).await?;
            let found = object.pointer(fact).cloned().unwrap_or_default();
            ensure!(found == *is, "it has {found}");
            Ok(Some(()))
        })
        .await
    }

    /// Namespaces, volumes, and labels of nodes.
    pub(super) async fn prepare(&self) -> Result<()> {
        self.create(&json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
            "metadata": {"name": "csi.example.com"}, "spec": {"attachRequired": false},
        }))
        .await?;
        for class in VOLUMES {
            for number in 0..VOLUMES_EACH {
                self.create(&volume(class, number)).await?;
            }
        }
        for number in 0..NODES_STEADY {
            self.label(&format!("node-{number}"), STEADY, json!("true"))
                .await?;
        }
        for name in [NAMESPACE, BOUNDED] {
            let metadata = json!({"name": name});
            self.create(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}))
                .await?;
            // No pod is admitted before.
            until("the namespace has its account", LIMIT, POLL, || async {
                let account = self.get("ServiceAccount", name, "default").await?;
                Ok((!account.is_null()).then_some(()))
            })
            .await?;
        }
        Ok(())
    }

    /// Does for ever what a kubelet does that comes back and kwok does not: reports again that its pods are
    /// ready, once the manager has marked them otherwise and the node is ready again.
    pub(super) async fn play_kubelets(&self) -> Infallible {
        loop {
            // Whatever an outage or a change refuses is done the next time.
            let _ = self.report_pods().await;
            tokio::time::sleep(KUBELETS).await;
        }
    }

    async fn report_pods(&self) -> Result<()> {
        let condition = |object: &DynamicObject| -> Option<String> {
            let conditions = object.data["status"]["conditions"].as_array()?;
            let ready = conditions.iter().find(|one| one["type"] == "Ready")?;
            ready["status"].as_str().map(str::to_owned)
        };
        // Pods first: a node is marked before its pods are.
        let pods = self
            .api("Pod", NAMESPACE)?
            .list(&ListParams::default())
            .await?
            .items;
        let nodes = self
            .api("Node", "")?
            .list(&ListParams::default())
            .await?
            .items;
        let ready: BTreeSet<String> = nodes
            .into_iter()
            .filter(|node| condition(node).as_deref() == Some("True"))
            .filter_map(|node| node.metadata.name)
            .collect();
        for pod in pods {
            let node = pod.data["spec"]["nodeName"].as_str().unwrap_or_default();
            let marked = condition(&pod).as_deref() == Some("False")
                && pod.data["status"]["phase"] == "Running"
                && pod.metadata.deletion_timestamp.is_none();
            let (true, true, Some(name)) = (marked, ready.contains(node), &pod.metadata.name)
            else {
                continue;
            };
            let to = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
            let api = self.api("Pod", NAMESPACE)?;
            api.patch_status(name, &PatchParams::default(), &Patch::Strategic(&to))
                .await?;
        }
        Ok(())
    }

    /// What would continue for ever ends.
    pub(super) async fn ends(&self) -> Result<()> {
        for name in CRON_JOBS {
            let to = json!({"spec": {"suspend": true}});
            let api = self.api("CronJob", NAMESPACE)?;
            let patch = Patch::Merge(&to);
            api.patch(name, &PatchParams::default(), &patch).await?;
        }
        Ok(())
    }

    pub(super) async fn does(&self, deed: &Deed) -> Result<()> {
        match deed {
            Deed::Create(object) => self.create(object).await,
            Deed::Change {
                kind,
                namespace,
                name,
                to,
            } => self.change(kind, namespace, name, to).await,
            Deed::Delete {
                kind,
                namespace,
                name,
                how,
            } => self.delete(kind, namespace, name, how).await,
            Deed::Await {
                kind,
                namespace,
                name,
                fact,
                is,
            } => self.becomes(kind, namespace, name, fact, is).await,
            Deed::Provide => self.provide().await,
            Deed::Metric(value) => {
                self.metrics
                    .external(NAMESPACE, METRIC, &[&value.to_string()]);
                Ok(())
            }
            Deed::Silence(node) => self.label(node, NO_KUBELET, json!("none")).await,
            Deed::Unreachable(node) => self.is_unreachable(node).await,
            Deed::Wake(node) => {
                self.label(node, NO_KUBELET, Value::Null).await?;
                self.is_ready(node).await
            }
            Deed::Join(node) => {
                let mut object = node_object(node, PODS);
                object["apiVersion"] = json!("v1");
                object["kind"] = json!("Node");
                self.create(&object).await?;
                self.is_ready(node).await
            }
            Deed::Pause(time) => {
                tokio::time::sleep(*time).await;
                Ok(())
            }
            Deed::Outage(_) => bail!("that is for the one who has the API server"),
        }
    }
}

/// How many of each kind there are, for a first reads at what differs.
pub(super) fn counts<'v>(objects: impl IntoIterator<Item = &'v Value>) -> BTreeMap<&'v str, usize> {
    let mut counts = BTreeMap::new();
    for object in objects {
        *counts.entry(text(object, "/kind")).or_default() += 1;
    }
    counts
}
