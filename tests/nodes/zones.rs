//! Zones that are cut off: whose pods are evicted, beside upstream's manager.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::control_plane::NO_KUBELET;
use harness::{ControlPlane, run_test, until};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use super::{REPLICAS, all, ready};
use crate::support::{PATIENCE, POLL, all_end_well, alone, fleet_of};

/// Of two nodes each.
const ZONES: [&str; 4] = ["a", "b", "c", "d"];
const NODES: usize = ZONES.len() * 2;
const FLAGS: [&str; 4] = [
    "--node-monitor-grace-period=16s",
    "--node-startup-grace-period=60s",
    "--node-monitor-period=1s",
    // Not 1: upstream's limiter that lets nothing pass says that this is its rate, and is never
    // replaced.
    "--node-eviction-rate=2",
];
/// Longer than kwok's nodes of one moment fall silent one after the other.
const TOLERATED: u32 = 30;
/// The API server hangs for so long.
const STALL: Duration = Duration::from_secs(120);
/// Grace, a renewal's age, the toleration, and a takeover.
const EVICTED: Duration = Duration::from_secs(16 + 12 + 30 + 20);

/// Nodes whose pods were evicted in each step.
type Evicted = BTreeMap<&'static str, BTreeSet<String>>;

async fn label(control_plane: &ControlPlane, nodes: &[usize], label: &str) -> Result<()> {
    for node in nodes {
        let node = format!("node-{node}");
        let args = ["label", "--overwrite", "node", &node, label];
        control_plane.kubectl(&args).await?;
    }
    Ok(())
}

/// The pod of each node that is not being deleted.
async fn pods(client: &Client, namespace: &str) -> Result<BTreeMap<String, String>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let list = pods.list(&ListParams::default()).await?.items.into_iter();
    Ok(list
        .filter(|pod| pod.metadata.deletion_timestamp.is_none())
        .filter_map(|pod| Some((pod.spec?.node_name?, pod.metadata.uid?)))
        .collect())
}

/// Waits for this long; with the nodes whose pod was evicted meanwhile.
async fn evicted_within(
    client: &Client,
    namespace: &str,
    time: Duration,
) -> Result<BTreeSet<String>> {
    let before = pods(client, namespace).await?;
    let began = Instant::now();
    let mut gone = BTreeSet::new();
    while began.elapsed() < time {
        // While the API server hangs there is no answer.
        let Ok(Ok(now)) = tokio::time::timeout(POLL * 10, pods(client, namespace)).await else {
            continue;
        };
        let others = before
            .iter()
            .filter(|(node, uid)| now.get(*node) != Some(uid));
        gone.extend(others.map(|(node, _)| node.clone()));
        tokio::time::sleep(POLL).await;
    }
    Ok(gone)
}

async fn all_back(client: &Client, namespace: &str) -> Result<()> {
    until(
        "all nodes are ready and have their pods",
        PATIENCE * 2,
        POLL,
        || async {
            let nodes = all(client).await?;
            let silent = nodes.iter().filter(|node| ready(node) != "True").count();
            ensure!(silent == 0, "{silent} nodes are not ready");
            make_pods(client, namespace).await?;
            let count = pods(client, namespace).await?.len();
            ensure!(count == NODES, "{count} of {NODES} nodes have a pod");
            Ok(Some(()))
        },
    )
    .await
}

async fn cut(manifold: bool) -> Result<Evicted> {
    let mut control_plane = ControlPlane::builder()
        .nodes(NODES)
        .kubelets_may_end()
        .start()
        .await?;
    let client = control_plane.client().await?;
    for node in 0..NODES {
        let zone = ZONES[node % ZONES.len()];
        label(
            &control_plane,
            &[node],
            &format!("topology.kubernetes.io/zone={zone}"),
        )
        .await?;
    }
    let fleet = fleet_of(&control_plane, &FLAGS).await?;
    let (mut replicas, mut kcm) = (Vec::new(), None);
    if manifold {
        replicas = fleet.start_all(REPLICAS).await?;
    } else {
        let flags = [&FLAGS[..], &["--leader-elect=false"]].concat();
        kcm = Some(control_plane.start_kcm(&flags).await?);
    }
    let namespace = control_plane.namespace("zones").await?;
    make_pods(&client, &namespace).await?;
    all_back(&client, &namespace).await?;

    let mut evicted = Evicted::new();
    let one: Vec<usize> = (0..NODES).step_by(ZONES.len()).collect();
    let every: Vec<usize> = (0..NODES).collect();

    label(&control_plane, &every, &format!("{NO_KUBELET}=none")).await?;
    let gone = evicted_within(&client, &namespace, EVICTED).await?;
    evicted.insert("all zones", gone);
    label(&control_plane, &every, &format!("{NO_KUBELET}-")).await?;
    all_back(&client, &namespace).await?;

    control_plane.pause_api_server()?;
    tokio::time::sleep(STALL).await;
    control_plane.resume_api_server()?;
    let gone = evicted_within(&client, &namespace, EVICTED).await?;
    evicted.insert("the API server", gone);
    all_back(&client, &namespace).await?;

    label(&control_plane, &one, &format!("{NO_KUBELET}=none")).await?;
    let gone = evicted_within(&client, &namespace, EVICTED).await?;
    evicted.insert("one of four zones", gone);

    let who = if manifold { "Manifold" } else { "upstream" };
    println!("nodes: {who}: evicted from {evicted:?}");
    drop(kcm.take());
    for replica in &mut replicas {
        replica.wait_ready(PATIENCE).await?;
    }
    all_end_well(&mut replicas).await?;
    Ok(evicted)
}

/// One for each node that has none, with no owner: what is evicted stays away until the next step.
async fn make_pods(client: &Client, namespace: &str) -> Result<()> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    until(
        "the namespace has its service account",
        PATIENCE,
        POLL,
        || async { Ok(accounts.get_opt("default").await?) },
    )
    .await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    for node in 0..NODES {
        let pod = serde_json::from_value(json!({
            "metadata": {"name": format!("on-{node}")},
            "spec": {
                "nodeName": format!("node-{node}"),
                "automountServiceAccountToken": false,
                "containers": [{"name": "main", "image": "main:1"}],
                "tolerations": [{
                    "key": "node.kubernetes.io/unreachable",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": TOLERATED,
                }],
            },
        }))?;
        match pods.create(&PostParams::default(), &pod).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            made => drop(made.with_context(|| format!("making the pod of node-{node}"))?),
        }
    }
    Ok(())
}

#[test]
#[ignore = "a quarter of an hour: cargo parity"]
fn zones_that_are_cut_off_lose_the_pods_that_they_lose_under_upstream() {
    let _alone = alone();
    run_test(async {
        let theirs = cut(false).await?;
        let ours = cut(true).await?;
        // Upstream evicts a pod now and then of a node that was tainted right before all others were silent
        // too: its timer is set again by an event from before the taint went.
        for none in ["all zones", "the API server"] {
            ensure!(ours[none].is_empty(), "{none}: {:?}", ours[none]);
            ensure!(
                theirs[none].len() <= 1,
                "upstream, {none}: {:?}",
                theirs[none]
            );
        }
        let one = "one of four zones";
        ensure!(
            ours[one] == theirs[one],
            "{ours:?}, under upstream {theirs:?}"
        );
        ensure!(theirs[one].len() == 2, "{theirs:?}");
        Ok(())
    });
}
