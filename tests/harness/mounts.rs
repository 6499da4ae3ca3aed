//! What kubelets would say and do about the volumes of [`Csi`](crate::nodes::csi::Csi) on kwok's nodes.
//!
//! A kubelet reports a volume as in use before it reads whether the volume is attached, mounts it then,
//! unmounts it when its pods are gone, and only then ceases to report it. Mounting is a mark in the driver's
//! folder of the volume, so that the driver records who detaches, deletes or attaches elsewhere what is
//! mounted.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::nodes::csi::DRIVER;

/// Between two rounds. A kubelet has one each 100 ms and reports each ten seconds, or at once where
/// pods begin or end.
const EVERY: Duration = Duration::from_millis(500);

/// Handles of volumes, by node.
type ByNode = BTreeMap<String, BTreeSet<String>>;

/// Runs until it is dropped.
#[derive(Debug)]
pub struct Mounts {
    task: JoinHandle<()>,
}

impl Mounts {
    /// On all nodes; `volumes` is the driver's folder.
    pub fn start(client: Client, volumes: &Path) -> Self {
        let volumes = volumes.to_owned();
        let task = tokio::spawn(async move {
            loop {
                // The server may be away: a kubelet tries again too.
                let _later = round(&client, &volumes).await;
                tokio::time::sleep(EVERY).await;
            }
        });
        Self { task }
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A CSI volume as nodes name it.
pub fn unique(handle: &str) -> String {
    format!("kubernetes.io/csi/{DRIVER}^{handle}")
}

/// One round over all nodes; where the server or the folder does not answer, what was done until then stays
/// done.
async fn round(client: &Client, volumes: &Path) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let list = nodes.list(&ListParams::default()).await?.items;
    let wanted = wanted(client).await?;
    let mut mounted = mounted(volumes)?;
    for node in list {
        let name = node.metadata.name.unwrap_or_default();
        let status = node.status.unwrap_or_default();
        let wanted = wanted.get(&name).cloned().unwrap_or_default();
        let mounted = mounted.remove(&name).unwrap_or_default();
        let listed: BTreeSet<String> = status
            .volumes_attached
            .into_iter()
            .flatten()
            .map(|one| one.name)
            .collect();
        let in_use: BTreeSet<String> = status.volumes_in_use.into_iter().flatten().collect();
        let mark = |handle: &str| volumes.join(handle).join("mounted").join(&name);
        for handle in mounted.difference(&wanted) {
            unmark(&mark(handle))?;
        }
        for handle in wanted.difference(&mounted) {
            let unique = unique(handle);
            let mark = mark(handle);
            let is_there = mark.parent().is_some_and(Path::is_dir);
            if is_there && in_use.contains(&unique) && listed.contains(&unique) {
                fs::write(&mark, "").with_context(|| format!("mounting {}", mark.display()))?;
            }
        }
        let uses: BTreeSet<String> = wanted.iter().map(|handle| unique(handle)).collect();
        if uses != in_use {
            let uses = if uses.is_empty() {
                json!(null)
            } else {
                json!(uses)
            };
            let patch = Patch::Merge(json!({"status": {"volumesInUse": uses}}));
            nodes
                .patch_status(&name, &PatchParams::default(), &patch)
                .await?;
        }
    }
    Ok(())
}

/// What the pods of each node want, as far as their claims are bound.
async fn wanted(client: &Client) -> Result<ByNode> {
    let all = ListParams::default();
    let pods: Api<Pod> = Api::all(client.clone());
    let pods = pods.list(&all).await?.items;
    let claims: Api<PersistentVolumeClaim> = Api::all(client.clone());
    let claims: BTreeMap<(String, String), String> = claims
        .list(&all)
        .await?
        .items
        .into_iter()
        .filter(|claim| {
            let status = claim.status.as_ref();
            status.and_then(|status| status.phase.as_deref()) == Some("Bound")
        })
        .filter_map(|claim| {
            let meta = claim.metadata;
            Some(((meta.namespace?, meta.name?), claim.spec?.volume_name?))
        })
        .collect();
    let persistent: Api<PersistentVolume> = Api::all(client.clone());
    let handles: BTreeMap<String, String> = persistent
        .list(&all)
        .await?
        .items
        .into_iter()
        .filter_map(|one| {
            let csi = one.spec?.csi.filter(|csi| csi.driver == DRIVER)?;
            Some((one.metadata.name?, csi.volume_handle))
        })
        .collect();
    let mut wanted = ByNode::new();
    for pod in pods {
        let namespace = pod.metadata.namespace.unwrap_or_default();
        let name = pod.metadata.name.unwrap_or_default();
        let phase = pod.status.and_then(|status| status.phase);
        let spec = pod.spec.unwrap_or_default();
        let has_ended = matches!(phase.as_deref(), Some("Succeeded" | "Failed"));
        let Some(node) = spec.node_name.filter(|_| !has_ended) else {
            continue;
        };
        for volume in spec.volumes.into_iter().flatten() {
            let claim = match (volume.persistent_volume_claim, volume.ephemeral) {
                (Some(source), _) => source.claim_name,
                (_, Some(_)) => format!("{name}-{}", volume.name),
                _ => continue,
            };
            let volume = claims.get(&(namespace.clone(), claim));
            if let Some(handle) = volume.and_then(|volume| handles.get(volume)) {
                wanted
                    .entry(node.clone())
                    .or_default()
                    .insert(handle.clone());
            }
        }
    }
    Ok(wanted)
}

/// What is mounted, by the marks.
fn mounted(volumes: &Path) -> Result<ByNode> {
    let mut mounted = ByNode::new();
    for volume in entries(volumes)?.into_iter().filter(|path| path.is_dir()) {
        let Some(handle) = volume
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
        else {
            continue;
        };
        for mark in entries(&volume.join("mounted"))? {
            if let Some(node) = mark.file_name() {
                let node = node.to_string_lossy().into_owned();
                mounted.entry(node).or_default().insert(handle.clone());
            }
        }
    }
    Ok(mounted)
}

/// What lies in a folder; nothing where it is gone.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    match fs::read_dir(folder) {
        Ok(entries) => Ok(entries.flatten().map(|entry| entry.path()).collect()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| format!("reading {}", folder.display())),
    }
}

fn unmark(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}
