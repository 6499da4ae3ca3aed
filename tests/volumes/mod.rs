//! Thousands of claims, volumes and attachments, beside upstream's manager: each claim gets a volume of its
//! own, each volume is where its pod is and nowhere else, in what time, with how many writes, and at what
//! cost.

mod attachments;
mod claims;
mod held;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use harness::nodes::csi::{Csi, DRIVER};
use harness::{AuditLog, ControlPlane, until};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use crate::judge::{AUDIT_POLICY, Volumes};
use crate::support::POLL;

/// Requests of the test at once.
const AT_ONCE: usize = 20;
const LIMIT: Duration = Duration::from_secs(600);
/// Between two reads of all nodes.
const READ: Duration = Duration::from_millis(200);
/// Neither manager may be held back by its own limits.
const UNLIMITED: [&str; 2] = ["--kube-api-qps=5000", "--kube-api-burst=5000"];
const ATTACHER: &str = "system:serviceaccount:kube-system:attachdetach-controller";

/// Does something for each number, [`AT_ONCE`] at a time.
async fn each<F, W>(numbers: impl IntoIterator<Item = usize>, work: F) -> Result<()>
where
    F: Fn(usize) -> W,
    W: Future<Output = Result<()>>,
{
    stream::iter(numbers)
        .map(work)
        .buffer_unordered(AT_ONCE)
        .try_collect::<Vec<()>>()
        .await?;
    Ok(())
}

fn pod_name(number: usize, moves: usize) -> String {
    format!("pod-{number}-{moves}")
}

/// A control plane whose kwok nodes have volumes, and no manager.
struct Bed {
    csi: Csi,
    client: Client,
    namespace: String,
    nodes: usize,
    control_plane: ControlPlane,
}

impl Bed {
    async fn start(nodes: usize) -> Result<Self> {
        let control_plane = ControlPlane::builder()
            .nodes(nodes)
            .audit_policy(AUDIT_POLICY)
            .start()
            .await?;
        Ok(Self {
            csi: Csi::for_fake_nodes(&control_plane).await?,
            client: control_plane.client().await?,
            namespace: control_plane.namespace("volumes").await?,
            nodes,
            control_plane,
        })
    }

    /// The node that a pod of this number is on, after this number of moves.
    fn node(&self, number: usize, moves: usize) -> String {
        format!("node-{}", (number + moves) % self.nodes)
    }

    /// A volume, a claim of it, and the driver's folder.
    async fn make_pair(&self, number: usize) -> Result<()> {
        let (volume, claim) = (format!("volume-{number}"), format!("claim-{number}"));
        self.csi.make(&volume)?;
        let made = serde_json::from_value(json!({
            "metadata": {"name": volume},
            "spec": {
                "storageClassName": "",
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"namespace": self.namespace, "name": claim},
                "csi": {"driver": DRIVER, "volumeHandle": volume},
            },
        }))?;
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        volumes.create(&PostParams::default(), &made).await?;
        let made = serde_json::from_value(json!({
            "metadata": {"name": claim},
            "spec": {
                "storageClassName": "",
                "volumeName": volume,
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }))?;
        self.claims().create(&PostParams::default(), &made).await?;
        Ok(())
    }

    /// A pod of the claim of this number, on the node that it has after this number of moves. kwok deletes
    /// what it saw go once more by its name: each pod has a name of its own, and some grace.
    async fn make_pod(&self, number: usize, moves: usize) -> Result<()> {
        let node = self.node(number, moves);
        let pod = serde_json::from_value(json!({
            "metadata": {"name": pod_name(number, moves)},
            "spec": {
                "nodeName": node,
                "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "app", "image": "example/app:1"}],
                "volumes": [
                    {"name": "data", "persistentVolumeClaim": {"claimName": format!("claim-{number}")}},
                ],
            },
        }))?;
        self.pods().create(&PostParams::default(), &pod).await?;
        Ok(())
    }

    fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn bound(&self, count: usize) -> Result<()> {
        let claims = self.claims();
        until("all claims are bound", LIMIT, READ, || async {
            let claims = claims.list(&ListParams::default()).await?.items;
            let bound = claims.iter().filter(|claim| {
                let status = claim.status.as_ref();
                status.and_then(|status| status.phase.as_deref()) == Some("Bound")
            });
            let bound = bound.count();
            ensure!(bound == count, "{bound} of {count} are");
            Ok(Some(()))
        })
        .await
    }

    /// The volumes that nodes list as attached, each with its nodes.
    async fn listed(&self) -> Result<BTreeMap<String, BTreeSet<String>>> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let mut listed: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for node in nodes.list(&ListParams::default()).await?.items {
            let name = node.metadata.name.unwrap_or_default();
            let status = node.status.unwrap_or_default();
            for volume in status.volumes_attached.into_iter().flatten() {
                listed.entry(volume.name).or_default().insert(name.clone());
            }
        }
        Ok(listed)
    }

    /// Waits until `count` volumes are listed by nodes other than `but`, and none by two.
    async fn attached(&self, count: usize, but: Option<&str>) -> Result<()> {
        until("all volumes are attached", LIMIT, READ, || async {
            let listed = self.listed().await?;
            let there = listed
                .values()
                .filter(|nodes| but.is_none_or(|but| !nodes.contains(but)))
                .count();
            ensure!(there == count, "{there} of {count} are");
            Ok(Some(()))
        })
        .await
    }

    /// Waits until no volume is attached, by nodes, by attachments and by the driver.
    async fn detached(&self) -> Result<()> {
        let attachments: Api<VolumeAttachment> = Api::all(self.client.clone());
        until("all volumes are detached", LIMIT, POLL, || async {
            let listed = self.listed().await?.len();
            let left = attachments.list(&ListParams::default()).await?.items.len();
            ensure!(
                (listed, left) == (0, 0),
                "{listed} are listed, {left} have attachments"
            );
            Ok(Some(()))
        })
        .await
    }

    /// Nothing that would have cost data, by the driver's record and by the audit log.
    fn judge(&self) -> Result<String> {
        let violations = self.csi.violations()?;
        ensure!(violations.is_empty(), "{violations}");
        let mut volumes = Volumes::default();
        self.control_plane
            .audit()
            .read(|record| volumes.read(&record))?;
        let verdict = volumes.verdict();
        ensure!(
            verdict.complaints.is_empty(),
            "{}",
            verdict.complaints.join("\n")
        );
        Ok(verdict.summary())
    }
}

/// What the controller that attaches has written.
#[derive(Debug, Default, Clone, Copy)]
struct Writes {
    /// Granted writes to attachments and nodes.
    granted: usize,
    /// Of an outdated version, or of what is there already.
    conflicts: usize,
    /// Refused for other reasons.
    refused: usize,
}

/// Since the log was last read.
fn writes(audit: &mut AuditLog) -> Result<Writes> {
    let mut writes = Writes::default();
    audit
        .read(|record| {
            let resource = record.object().resource;
            let of_volumes = matches!(resource.as_str(), "volumeattachments" | "nodes");
            let is_its = record.user.username == ATTACHER && of_volumes;
            if record.stage == "ResponseComplete" && record.is_write() && is_its {
                match record.code() {
                    Some(200..300) => writes.granted += 1,
                    Some(409) => writes.conflicts += 1,
                    _ => writes.refused += 1,
                }
            }
        })
        .context("the audit log")?;
    Ok(writes)
}
