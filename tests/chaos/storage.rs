//! Pods with volumes that are scaled, moved, deleted and made again all the time, with the real side-cars at
//! work: what nobody wants any more must be gone at the end, and what somebody wants must be where its pod
//! is.
//!
//! StatefulSets have claims of a class that waits for its first pod and of one that does not; lone pods have
//! a claim that moves with them and one of their own. A successor is made before its predecessor is gone, and
//! a claim is deleted before its pod is. Every name is used once, so that what is left of a life shows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::mounts::unique;
use harness::nodes::csi::{Csi, DRIVER};
use harness::{ControlPlane, Mounts, until};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{StorageClass, VolumeAttachment};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::workload::or_gone;

/// StatefulSets.
const SETS: usize = 4;
/// Lone pods.
const LONE: usize = 4;
/// Most replicas of a StatefulSet.
const MOST: u32 = 4;
/// kwok's nodes.
const NODES: usize = 5;
/// Between two changes.
const CHANGE: Duration = Duration::from_millis(700);
const POLL: Duration = Duration::from_millis(500);
/// For all of it to come to rest, with the slowest faults just over: side-cars back off for minutes.
const REST: Duration = Duration::from_secs(300);
/// Waits for the first pod, and does not.
const CLASSES: [(&str, &str); 2] = [("late", "WaitForFirstConsumer"), ("now", "Immediate")];

/// What is wanted of one StatefulSet.
#[derive(Debug, Clone, Copy)]
struct Set {
    /// How often it was made.
    life: u32,
    replicas: u32,
}

/// What is wanted of a lone pod.
#[derive(Debug, Clone, Copy)]
struct Lone {
    /// How often its claim was made.
    life: u32,
    /// How often the pod of this claim was.
    moves: u32,
    node: usize,
}

#[derive(Debug, Clone)]
struct Wishes {
    sets: Vec<Set>,
    lone: Vec<Lone>,
}

fn set_name(index: usize, set: Set) -> String {
    format!("db-{index}-{}", set.life)
}

fn claim_name(index: usize, lone: Lone) -> String {
    format!("lone-{index}-{}", lone.life)
}

fn pod_name(index: usize, lone: Lone) -> String {
    format!("{}-{}", claim_name(index, lone), lone.moves)
}

fn claim_spec(index: usize) -> Value {
    json!({
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": CLASSES[index % CLASSES.len()].0,
        "resources": {"requests": {"storage": "1Gi"}},
    })
}

fn set_body(index: usize, set: Set) -> Value {
    let name = set_name(index, set);
    json!({
        "metadata": {"name": name},
        "spec": {
            "serviceName": name,
            "replicas": set.replicas,
            "podManagementPolicy": "Parallel",
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Delete"},
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{"name": "app", "image": "example/app:1"}],
                },
            },
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim_spec(index)}],
        },
    })
}

fn claim_body(index: usize, lone: Lone) -> Value {
    json!({
        "metadata": {"name": claim_name(index, lone), "labels": {"lone": "yes"}},
        "spec": claim_spec(index),
    })
}

fn pod_body(index: usize, lone: Lone) -> Value {
    json!({
        "metadata": {"name": pod_name(index, lone), "labels": {"lone": "yes"}},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": format!("node-{}", lone.node)},
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "app", "image": "example/app:1"}],
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": claim_name(index, lone)}},
                {"name": "own", "ephemeral": {"volumeClaimTemplate": {"spec": claim_spec(index + 1)}}},
            ],
        },
    })
}

/// There already is as good.
fn or_there<T>(result: Result<T, kube::Error>) -> Result<(), kube::Error> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        other => other.map(drop),
    }
}

/// The kinds that it changes.
#[derive(Clone)]
struct Apis {
    sets: Api<StatefulSet>,
    pods: Api<Pod>,
    claims: Api<PersistentVolumeClaim>,
    volumes: Api<PersistentVolume>,
    attachments: Api<VolumeAttachment>,
    nodes: Api<Node>,
}

impl Apis {
    fn new(client: &Client, namespace: &str) -> Self {
        Self {
            sets: Api::namespaced(client.clone(), namespace),
            pods: Api::namespaced(client.clone(), namespace),
            claims: Api::namespaced(client.clone(), namespace),
            volumes: Api::all(client.clone()),
            attachments: Api::all(client.clone()),
            nodes: Api::all(client.clone()),
        }
    }

    async fn make_set(&self, index: usize, set: Set) -> Result<()> {
        let object = serde_json::from_value(set_body(index, set))?;
        Ok(or_there(
            self.sets.create(&PostParams::default(), &object).await,
        )?)
    }

    async fn make_claim(&self, index: usize, lone: Lone) -> Result<()> {
        let object = serde_json::from_value(claim_body(index, lone))?;
        Ok(or_there(
            self.claims.create(&PostParams::default(), &object).await,
        )?)
    }

    async fn make_pod(&self, index: usize, lone: Lone) -> Result<()> {
        let object = serde_json::from_value(pod_body(index, lone))?;
        Ok(or_there(
            self.pods.create(&PostParams::default(), &object).await,
        )?)
    }

    async fn scale(&self, index: usize, set: Set) -> Result<()> {
        let patch = Patch::Merge(json!({"spec": {"replicas": set.replicas}}));
        let name = set_name(index, set);
        self.sets
            .patch(&name, &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    async fn delete_set(&self, name: &str) -> Result<()> {
        Ok(or_gone(
            self.sets.delete(name, &DeleteParams::background()).await,
        )?)
    }

    async fn delete_pod(&self, name: &str) -> Result<()> {
        Ok(or_gone(
            self.pods.delete(name, &DeleteParams::default()).await,
        )?)
    }

    async fn delete_claim(&self, name: &str) -> Result<()> {
        Ok(or_gone(
            self.claims.delete(name, &DeleteParams::default()).await,
        )?)
    }

    /// Everything that is wished for, and nothing else.
    async fn say_again(&self, wishes: &Wishes) -> Result<()> {
        let of_lone = ListParams::default().labels("lone=yes");
        let mut wanted = BTreeSet::new();
        for (index, set) in wishes.sets.iter().enumerate() {
            wanted.insert(set_name(index, *set));
            self.make_set(index, *set).await?;
            self.scale(index, *set).await?;
        }
        for (index, lone) in wishes.lone.iter().enumerate() {
            wanted.insert(claim_name(index, *lone));
            wanted.insert(pod_name(index, *lone));
            self.make_claim(index, *lone).await?;
            self.make_pod(index, *lone).await?;
        }
        for set in self.sets.list(&ListParams::default()).await?.items {
            if !wanted.contains(&set.name_any()) {
                self.delete_set(&set.name_any()).await?;
            }
        }
        for pod in self.pods.list(&of_lone).await?.items {
            if !wanted.contains(&pod.name_any()) {
                self.delete_pod(&pod.name_any()).await?;
            }
        }
        for claim in self.claims.list(&of_lone).await?.items {
            if !wanted.contains(&claim.name_any()) {
                self.delete_claim(&claim.name_any()).await?;
            }
        }
        // A set that is deleted within a second of its making has not come to own its claims, as under
        // upstream.
        for claim in self.claims.list(&ListParams::default()).await?.items {
            let name = claim.name_any();
            let mut sets = wishes.sets.iter().enumerate();
            let is_wanted = sets
                .any(|(index, set)| name.starts_with(&format!("data-{}-", set_name(index, *set))));
            let is_orphan = name.starts_with("data-") && claim.owner_references().is_empty();
            if is_orphan && !is_wanted {
                self.delete_claim(&name).await?;
            }
        }
        Ok(())
    }

    /// One change; the wish is said before it is tried, since a request may land though its answer is lost.
    async fn change(&self, wishes: &Mutex<Wishes>, random: &mut StdRng) -> Result<()> {
        let now = || wishes.lock().unwrap_or_else(PoisonError::into_inner);
        let (set_at, lone_at) = (random.random_range(0..SETS), random.random_range(0..LONE));
        let set = now().sets[set_at];
        let lone = now().lone[lone_at];
        let next_node = (lone.node + random.random_range(1..NODES)) % NODES;
        match random.random_range(0..10) {
            0 => {
                let next = Set {
                    life: set.life + 1,
                    ..set
                };
                now().sets[set_at] = next;
                self.delete_set(&set_name(set_at, set)).await?;
                self.make_set(set_at, next).await
            }
            1..4 => {
                let replicas = random.random_range(0..=MOST);
                let next = Set { replicas, ..set };
                now().sets[set_at] = next;
                self.scale(set_at, next).await
            }
            // Its successor may have any node.
            4 => {
                let name = set_name(set_at, set);
                let ordinal = random.random_range(0..MOST);
                self.delete_pod(&format!("{name}-{ordinal}")).await
            }
            5 => {
                let on_node =
                    ListParams::default().fields(&format!("spec.nodeName=node-{next_node}"));
                for pod in self.pods.list(&on_node).await?.items {
                    if !pod.labels().contains_key("lone") {
                        self.delete_pod(&pod.name_any()).await?;
                    }
                }
                Ok(())
            }
            6..8 => {
                let next = Lone {
                    moves: lone.moves + 1,
                    node: next_node,
                    ..lone
                };
                now().lone[lone_at] = next;
                self.make_pod(lone_at, next).await?;
                self.delete_pod(&pod_name(lone_at, lone)).await
            }
            8 => {
                let next = Lone {
                    life: lone.life + 1,
                    moves: 1,
                    node: next_node,
                };
                now().lone[lone_at] = next;
                self.delete_claim(&claim_name(lone_at, lone)).await?;
                self.make_claim(lone_at, next).await?;
                self.make_pod(lone_at, next).await?;
                self.delete_pod(&pod_name(lone_at, lone)).await
            }
            _ => {
                let size = format!("{}Gi", random.random_range(2..9));
                let larger = json!({"spec": {"resources": {"requests": {"storage": size}}}});
                let name = claim_name(lone_at, lone);
                let patched = self
                    .claims
                    .patch(&name, &PatchParams::default(), &Patch::Merge(larger))
                    .await;
                match patched {
                    // It is as large already, or not bound yet.
                    Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404 | 422) => {
                        Ok(())
                    }
                    other => Ok(other.map(drop)?),
                }
            }
        }
    }

    /// An error unless all is as it is wished: pods run, each claim has a volume and each volume is attached
    /// to the node of its pod alone.
    async fn check(&self, wishes: &Wishes) -> Result<()> {
        let all = ListParams::default();
        let wanted = wishes
            .sets
            .iter()
            .map(|set| set.replicas as usize)
            .sum::<usize>()
            + LONE;
        let pods = self.pods.list(&all).await?.items;
        let running = pods.iter().filter(|pod| {
            let phase = pod
                .status
                .as_ref()
                .and_then(|status| status.phase.as_deref());
            phase == Some("Running") && pod.metadata.deletion_timestamp.is_none()
        });
        let running = running.count();
        ensure!(
            (running, pods.len()) == (wanted, wanted),
            "{running} of {} pods run, {wanted} are wanted",
            pods.len()
        );
        // Lone ones have two claims.
        let wanted = wanted + LONE;
        let claims = self.claims.list(&all).await?.items;
        // A pod that was deleted just before its set was scaled down leaves its claim to the set, as upstream
        // has it.
        let is_left = |name: &str| {
            let mut sets = wishes.sets.iter().enumerate();
            sets.any(|(index, set)| {
                let ordinal = name.strip_prefix(&format!("data-{}-", set_name(index, *set)));
                let ordinal = ordinal.and_then(|ordinal| ordinal.parse::<u32>().ok());
                ordinal.is_some_and(|ordinal| ordinal >= set.replicas)
            })
        };
        let (mut bound, mut left) = (BTreeMap::new(), 0);
        for claim in claims {
            let name = claim.name_any();
            let phase = claim.status.and_then(|status| status.phase);
            let is_bound = phase.as_deref() == Some("Bound");
            if is_left(&name) {
                left += usize::from(is_bound);
                continue;
            }
            ensure!(
                is_bound && claim.metadata.deletion_timestamp.is_none(),
                "claim {name} is {phase:?}"
            );
            let volume = claim.spec.and_then(|spec| spec.volume_name);
            bound.insert(name, volume.unwrap_or_default());
        }
        ensure!(bound.len() == wanted, "{} claims of {wanted}", bound.len());
        let wanted = wanted + left;
        let mut handles = BTreeMap::new();
        for volume in self.volumes.list(&all).await?.items {
            let name = volume.name_any();
            let status = volume.status.and_then(|status| status.phase);
            ensure!(
                status.as_deref() == Some("Bound"),
                "volume {name} is {status:?}"
            );
            let csi = volume
                .spec
                .and_then(|spec| spec.csi)
                .context("no CSI volume")?;
            handles.insert(name, csi.volume_handle);
        }
        ensure!(
            handles.len() == wanted,
            "{} volumes of {wanted}",
            handles.len()
        );
        let mut places = BTreeSet::new();
        for pod in &pods {
            let spec = pod.spec.clone().unwrap_or_default();
            let node = spec.node_name.unwrap_or_default();
            for volume in spec.volumes.unwrap_or_default() {
                let claim = match (volume.persistent_volume_claim, volume.ephemeral) {
                    (Some(source), _) => source.claim_name,
                    (_, Some(_)) => format!("{}-{}", pod.name_any(), volume.name),
                    _ => continue,
                };
                let volume = bound
                    .get(&claim)
                    .with_context(|| format!("no claim {claim}"))?;
                places.insert((volume.clone(), node.clone()));
            }
        }
        let mut attached = BTreeSet::new();
        for attachment in self.attachments.list(&all).await?.items {
            let is_attached = attachment
                .status
                .as_ref()
                .is_some_and(|status| status.attached);
            ensure!(is_attached, "{} is not attached", attachment.name_any());
            let volume = attachment.spec.source.persistent_volume_name;
            attached.insert((volume.unwrap_or_default(), attachment.spec.node_name));
        }
        ensure!(
            attached == places,
            "attached are {attached:?}, wanted {places:?}"
        );
        let places: BTreeSet<(String, String)> = places
            .into_iter()
            .filter_map(|(volume, node)| Some((unique(handles.get(&volume)?), node)))
            .collect();
        let listed = self.listed().await?;
        ensure!(listed == places, "listed are {listed:?}, wanted {places:?}");
        Ok(())
    }

    /// What nodes list as attached.
    async fn listed(&self) -> Result<BTreeSet<(String, String)>> {
        let mut listed = BTreeSet::new();
        for node in self.nodes.list(&ListParams::default()).await?.items {
            let name = node.name_any();
            let status = node.status.unwrap_or_default();
            let volumes = status.volumes_attached.into_iter().flatten();
            listed.extend(volumes.map(|volume| (volume.name, name.clone())));
        }
        Ok(listed)
    }

    /// How many claims, volumes, attachments and entries of nodes there are.
    async fn left(&self) -> Result<[usize; 4]> {
        let all = ListParams::default();
        Ok([
            self.claims.list(&all).await?.items.len(),
            self.volumes.list(&all).await?.items.len(),
            self.attachments.list(&all).await?.items.len(),
            self.listed().await?.len(),
        ])
    }
}

/// Changes pods with volumes until it is asked for their end.
pub(super) struct Storage {
    csi: Csi,
    _mounts: Mounts,
    apis: Apis,
    wishes: Arc<Mutex<Wishes>>,
    changes: Arc<Mutex<usize>>,
    task: JoinHandle<()>,
}

impl Storage {
    pub(super) async fn start(control_plane: &ControlPlane, seed: u64) -> Result<Self> {
        let csi = Csi::for_fake_nodes(control_plane).await?;
        let client = control_plane.client().await?;
        let namespace = control_plane.namespace("storage").await?;
        let apis = Apis::new(&client, &namespace);
        let classes: Api<StorageClass> = Api::all(client.clone());
        for (name, mode) in CLASSES {
            let class = serde_json::from_value(json!({
                "metadata": {"name": name},
                "provisioner": DRIVER,
                "volumeBindingMode": mode,
                "allowVolumeExpansion": true,
            }))?;
            classes.create(&PostParams::default(), &class).await?;
        }
        let wishes = Wishes {
            sets: vec![
                Set {
                    life: 1,
                    replicas: 2
                };
                SETS
            ],
            lone: (0..LONE)
                .map(|index| Lone {
                    life: 1,
                    moves: 1,
                    node: index % NODES,
                })
                .collect(),
        };
        apis.say_again(&wishes).await?;
        let (wishes, changes) = (Arc::new(Mutex::new(wishes)), Arc::default());
        let task = tokio::spawn(change(
            apis.clone(),
            Arc::clone(&wishes),
            Arc::clone(&changes),
            StdRng::seed_from_u64(seed),
        ));
        Ok(Self {
            _mounts: Mounts::start(client, csi.folder()),
            csi,
            apis,
            wishes,
            changes,
            task,
        })
    }

    /// Changes that the server has taken.
    pub(super) fn changes(&self) -> usize {
        *self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A side-car that an outage has ended begins again, as its kubelet would see to.
    pub(super) fn start_the_ended_again(&mut self) -> Result<()> {
        self.csi.start_the_ended_again()
    }

    /// Ends the changes: what is wished for comes to be, and once nothing is wished for, nothing is left.
    pub(super) async fn end(mut self) -> Result<()> {
        self.task.abort();
        self.start_the_ended_again()?;
        let wishes = self
            .wishes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        // The last change may have been cut off in its middle.
        self.apis.say_again(&wishes).await?;
        until("each pod has its volumes", REST, POLL, || async {
            self.apis.check(&wishes).await?;
            Ok(Some(()))
        })
        .await?;
        let nothing = Wishes {
            sets: Vec::new(),
            lone: Vec::new(),
        };
        self.apis.say_again(&nothing).await?;
        until("no volume is left", REST, POLL, || async {
            let left = self.apis.left().await?;
            ensure!(
                left == [0; 4],
                "claims, volumes, attachments, entries of nodes: {left:?}"
            );
            let folders = self.csi.volumes()?;
            ensure!(folders.is_empty(), "the driver has {folders:?}");
            Ok(Some(()))
        })
        .await?;
        let violations = self.csi.violations()?;
        ensure!(violations.is_empty(), "{violations}");
        Ok(())
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn change(
    apis: Apis,
    wishes: Arc<Mutex<Wishes>>,
    changes: Arc<Mutex<usize>>,
    mut random: StdRng,
) {
    loop {
        tokio::time::sleep(CHANGE).await;
        match apis.change(&wishes, &mut random).await {
            Ok(()) => *changes.lock().unwrap_or_else(PoisonError::into_inner) += 1,
            // The server is away: the wish remains and is applied again at the end.
            Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
        }
    }
}
