//! Volumes of a CSI driver on real nodes, with the real side-cars: provisioned, attached, mounted, moved,
//! expanded and reclaimed, while Manifold's ranges move and its replicas die; and under
//! kube-controller-manager the same. The driver records every call that would have lost data on a real disk.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::nodes::csi::{Csi, DRIVER};
use harness::nodes::{IMAGE, Network, Node, can_run};
use harness::{ControlPlane, run_test, until};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::ListParams;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::kubelets::{join, usable};
use crate::support::{POLL, Unrest, all_end_well, alone, beside, fleet_of};

const NODES: u8 = 2;
const REPLICAS: usize = 3;
/// Pods of the StatefulSet, each with a volume.
const PODS: usize = 2;
/// How often the first one is sent to the other node.
const MOVES: usize = 3;
/// A kubelet writes which volumes it uses every ten seconds, three programs back off, and a node is missed
/// after fifty seconds.
const LIMIT: Duration = Duration::from_secs(180);
const UNREST: Unrest = Unrest {
    moved: 8,
    kill_every: Duration::from_secs(10),
    kills_max: 6,
};

/// A cluster of real nodes with the driver, and no manager.
struct Bed {
    csi: Csi,
    client: Client,
    namespace: String,
    /// After the driver, whose instances on nodes end before these.
    nodes: Vec<Node>,
    control_plane: ControlPlane,
    _network: Network,
}

impl Bed {
    /// Nodes can join; they are usable once a manager runs.
    async fn start() -> Result<Self> {
        let mut network = Network::start().await?;
        let control_plane = ControlPlane::builder()
            .nodes(0)
            .real_nodes(&network)
            .start()
            .await?;
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, control_plane.port()));
        network.forward(at).await?;
        // A kubelet grows a file system when it next synchronizes the pod.
        let often = json!({"syncFrequency": "10s"});
        let nodes = join(&network, &control_plane, NODES, &often).await?;
        let csi = Csi::start(&control_plane, &network, &nodes).await?;
        Ok(Self {
            csi,
            client: control_plane.client().await?,
            namespace: control_plane.namespace("csi").await?,
            nodes,
            control_plane,
            _network: network,
        })
    }

    async fn kubectl(&self, args: &[&str]) -> Result<String> {
        let args = [&["--namespace", &self.namespace][..], args].concat();
        self.control_plane.kubectl(&args).await
    }

    async fn apply(&self, objects: &[Value]) -> Result<()> {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
        let args = ["--namespace", &self.namespace, "apply"];
        self.control_plane.kubectl_with_input(&args, &list).await?;
        Ok(())
    }

    async fn shell(&self, pod: &str, script: &str) -> Result<String> {
        self.kubectl(&["exec", pod, "--", "sh", "-c", script]).await
    }

    /// Waits until a pod of this name, another one than `but`, is ready; gives its uid and node.
    async fn ready(&self, name: &str, but: &str) -> Result<(String, String)> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        until(&format!("{name} is ready"), LIMIT, POLL, || async {
            let pod = pods.get(name).await?;
            let uid = pod.metadata.uid.unwrap_or_default();
            let status = pod.status.unwrap_or_default();
            let mut conditions = status.conditions.unwrap_or_default().into_iter();
            let is_ready = conditions.any(|one| one.type_ == "Ready" && one.status == "True");
            ensure!(is_ready && uid != but, "{:?}", status.container_statuses);
            let node = pod.spec.and_then(|spec| spec.node_name);
            Ok(Some((uid, node.context("a ready pod without a node")?)))
        })
        .await
    }

    async fn claim(&self, name: &str) -> Result<PersistentVolumeClaim> {
        let claims: Api<PersistentVolumeClaim> =
            Api::namespaced(self.client.clone(), &self.namespace);
        Ok(claims.get(name).await?)
    }

    /// The PersistentVolume of a claim and the driver's id of it.
    async fn volume_of(&self, claim: &str) -> Result<(String, String)> {
        let spec = self.claim(claim).await?.spec;
        let name = spec
            .and_then(|spec| spec.volume_name)
            .context("no volume")?;
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let csi = volumes.get(&name).await?.spec.and_then(|spec| spec.csi);
        Ok((name, csi.context("no CSI volume")?.volume_handle))
    }

    /// Waits until no volume is attached anywhere, by the API and by the driver.
    async fn detached(&self) -> Result<()> {
        let attachments: Api<VolumeAttachment> = Api::all(self.client.clone());
        until("all volumes are detached", LIMIT, POLL, || async {
            let left = attachments.list(&ListParams::default()).await?.items.len();
            ensure!(left == 0, "{left} VolumeAttachments are left");
            Ok(Some(()))
        })
        .await?;
        for volume in self.csi.volumes()? {
            let nodes = fs::read_dir(self.csi.file(&volume, "attached"))?.count();
            ensure!(nodes == 0, "{volume} is attached to {nodes} nodes");
        }
        Ok(())
    }
}

fn class(name: &str, reclaims: &str, mode: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": DRIVER,
        "reclaimPolicy": reclaims,
        "volumeBindingMode": mode,
        "allowVolumeExpansion": true,
    })
}

fn claim(class: &str) -> Value {
    json!({
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": class,
        "resources": {"requests": {"storage": "1Gi"}},
    })
}

/// A pod that sleeps, with a volume at /data.
fn pod_spec() -> Value {
    json!({
        "terminationGracePeriodSeconds": 1,
        "containers": [{
            "name": "app",
            "image": IMAGE,
            "imagePullPolicy": "Never",
            "command": ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1; done"],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        }],
    })
}

fn stateful_set() -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "db"},
        "spec": {
            "serviceName": "db",
            "replicas": PODS,
            "podManagementPolicy": "Parallel",
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Retain"},
            "selector": {"matchLabels": {"app": "db"}},
            "template": {"metadata": {"labels": {"app": "db"}}, "spec": pod_spec()},
            "volumeClaimTemplates": [
                {"metadata": {"name": "data"}, "spec": claim("folders")},
            ],
        },
    })
}

/// Everything that a volume goes through.
async fn story(bed: &Bed) -> Result<()> {
    let mut keeper = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "keeper"},
        "spec": pod_spec(),
    });
    keeper["spec"]["volumes"] =
        json!([{"name": "data", "persistentVolumeClaim": {"claimName": "kept"}}]);
    bed.apply(&[
        class("folders", "Delete", "WaitForFirstConsumer"),
        class("kept", "Retain", "Immediate"),
        stateful_set(),
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "kept"},
            "spec": claim("kept"),
        }),
        keeper,
    ])
    .await?;
    for pod in ["db-0", "db-1", "keeper"] {
        bed.ready(pod, "").await?;
        bed.shell(pod, &format!("echo of {pod} >>/data/words"))
            .await?;
    }

    // Its successor on the other node has its data.
    for round in 1..=MOVES {
        let (uid, from) = bed.ready("db-0", "").await?;
        bed.kubectl(&["cordon", &from]).await?;
        bed.kubectl(&["delete", "pod", "db-0"]).await?;
        let (_, to) = bed.ready("db-0", &uid).await?;
        bed.kubectl(&["uncordon", &from]).await?;
        ensure!(to != from, "{to}");
        let words = bed.shell("db-0", "cat /data/words").await?;
        let lines = words.lines().count();
        ensure!(
            words.starts_with("of db-0\n") && lines == round,
            "{words:?}"
        );
        bed.shell("db-0", &format!("echo on {to} >>/data/words"))
            .await?;
    }

    // It grows while it is mounted.
    let (_, id) = bed.volume_of("data-db-0").await?;
    let larger = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}}).to_string();
    bed.kubectl(&["patch", "pvc", "data-db-0", "--patch", &larger])
        .await?;
    until("the claim has grown", LIMIT, POLL, || async {
        let status = bed.claim("data-db-0").await?.status.unwrap_or_default();
        let size = status.capacity.unwrap_or_default().remove("storage");
        ensure!(
            size.as_ref().is_some_and(|size| size.0 == "2Gi"),
            "{size:?}"
        );
        Ok(Some(()))
    })
    .await?;
    let grown = fs::read_to_string(bed.csi.file(&id, "grown"))?;
    ensure!(grown == (2_u64 << 30).to_string(), "{grown}");

    // The policies: one volume stays, with its content, the others go.
    let (kept, kept_id) = bed.volume_of("kept").await?;
    bed.kubectl(&["delete", "pod", "keeper"]).await?;
    bed.kubectl(&["delete", "pvc", "kept"]).await?;
    bed.kubectl(&["delete", "statefulset", "db"]).await?;
    let volumes: Api<PersistentVolume> = Api::all(bed.client.clone());
    until("one volume is left", LIMIT, POLL, || async {
        let left = volumes.list(&ListParams::default()).await?.items;
        let phases: Vec<_> = left
            .iter()
            .map(|one| {
                let status = one.status.as_ref();
                (
                    &one.metadata.name,
                    status.and_then(|status| status.phase.clone()),
                )
            })
            .collect();
        let wanted = [(&Some(kept.clone()), Some("Released".to_owned()))];
        ensure!(phases == wanted, "{phases:?}");
        Ok(Some(()))
    })
    .await?;
    bed.detached().await?;
    let left = bed.csi.volumes()?;
    ensure!(left == [kept_id.clone()], "{left:?} are left");
    let words = fs::read_to_string(bed.csi.file(&kept_id, "data/words"))?;
    ensure!(words == "of keeper\n", "{words:?}");
    let sets: Api<StatefulSet> = Api::namespaced(bed.client.clone(), &bed.namespace);
    ensure!(sets.list(&ListParams::default()).await?.items.is_empty());
    let violations = bed.csi.violations()?;
    ensure!(violations.is_empty(), "{violations}");
    Ok(())
}

#[test]
fn volumes_follow_their_pods_while_replicas_die() {
    if !can_run("csi: volumes_follow_their_pods_while_replicas_die") {
        return;
    }
    let _beside = beside();
    run_test(async {
        let mut bed = Bed::start().await?;
        let fleet = fleet_of(&bed.control_plane, &[]).await?;
        let mut replicas = fleet.start_all(REPLICAS).await?;
        usable(&bed.client, NODES.into()).await?;
        let began = Instant::now();
        let client = bed.client.clone();
        let ((), moves, kills) = UNREST
            .during(story(&bed), &fleet, &mut replicas, &client)
            .await?;
        println!(
            "csi: {:.1} s under Manifold, {moves} ranges moved, {kills} replicas killed",
            began.elapsed().as_secs_f64()
        );
        bed.csi.check()?;
        all_end_well(&mut replicas).await
    });
}

#[test]
#[ignore = "minutes: cargo parity"]
fn a_volume_leaves_a_node_without_power_that_is_out_of_service() {
    if !can_run("csi: a_volume_leaves_a_node_without_power_that_is_out_of_service") {
        return;
    }
    let _alone = alone();
    run_test(async {
        let mut bed = Bed::start().await?;
        let fleet = fleet_of(&bed.control_plane, &[]).await?;
        let mut replicas = fleet.start_all(REPLICAS).await?;
        usable(&bed.client, NODES.into()).await?;
        bed.apply(&[
            class("folders", "Delete", "WaitForFirstConsumer"),
            stateful_set(),
        ])
        .await?;
        let (uid, lost) = bed.ready("db-0", "").await?;
        bed.shell("db-0", "echo before >/data/words; sync").await?;
        bed.nodes.retain(|node| node.name() != lost);
        bed.csi.power_off(&lost)?;
        let began = Instant::now();
        let taint = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute";
        bed.kubectl(&["taint", "node", &lost, taint]).await?;
        let (_, node) = bed.ready("db-0", &uid).await?;
        ensure!(node != lost, "{node}");
        let words = bed.shell("db-0", "cat /data/words").await?;
        ensure!(words == "before\n", "{words:?}");
        let violations = bed.csi.violations()?;
        ensure!(violations.is_empty(), "{violations}");
        println!(
            "csi: a volume has left a node without power after {:.1} s",
            began.elapsed().as_secs_f64()
        );
        all_end_well(&mut replicas).await
    });
}

#[test]
#[ignore = "minutes: cargo parity"]
fn volumes_follow_their_pods_under_kube_controller_manager() {
    if !can_run("csi: volumes_follow_their_pods_under_kube_controller_manager") {
        return;
    }
    let _alone = alone();
    run_test(async {
        let mut bed = Bed::start().await?;
        let mut kcm = bed.control_plane.start_kcm(&[]).await?;
        usable(&bed.client, NODES.into()).await?;
        let began = Instant::now();
        story(&bed).await?;
        println!(
            "csi: {:.1} s under kube-controller-manager",
            began.elapsed().as_secs_f64()
        );
        bed.csi.check()?;
        kcm.process().check()
    });
}
