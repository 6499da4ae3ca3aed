//! Many nodes: addresses while a thousand join, and two thousand that live while replicas die all the time;
//! both beside upstream's manager.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{ControlPlane, Metrics, run_test, until};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use serde_json::Value;

use super::{REPLICAS, all, is_driven, name, ready};
use crate::support::{
    Cost, PATIENCE, POLL, Unrest, all_end_well, alone, cost, deployment, fleet_of, metrics_of,
};

/// Nodes that join at once.
const JOINING: usize = 1_000;
/// Blocks of both families; neither manager may be held back by its own limits.
const JOINING_FLAGS: [&str; 4] = [
    "--allocate-node-cidrs=true",
    "--cluster-cidr=10.64.0.0/12,fd00:64::/48",
    "--kube-api-qps=5000",
    "--kube-api-burst=5000",
];
/// Each replica dies once while they join.
const JOINING_UNREST: Unrest = Unrest {
    moved: 16,
    kill_every: Duration::from_secs(2),
    kills_max: REPLICAS,
};
/// Until the last node has its blocks, a takeover for each kill included.
const JOINED: Duration = Duration::from_secs(120);

/// Nodes that live on.
const LIVING: usize = 2_000;
const PODS: u32 = 1_000;
const KILLS: usize = 100;
/// Time for a replica that comes back to be one of the owners.
const KILL_EVERY: Duration = Duration::from_secs(4);
/// CPU time is counted for so long.
const MEASURED: Duration = Duration::from_secs(60);
/// After a start: lists are read, and the first pass over all nodes is done.
const SETTLED: Duration = Duration::from_secs(30);
/// For all nodes to be ready and their pods to run.
const MADE: Duration = Duration::from_secs(300);

async fn joined(client: &Client, count: usize) -> Result<Vec<Node>> {
    until(
        "every node has blocks of both families",
        JOINED,
        POLL,
        || async {
            let nodes = all(client).await?;
            let done = nodes.iter().filter(|node| {
                let spec = node.spec.as_ref();
                let blocks = spec.and_then(|spec| spec.pod_cidrs.as_ref());
                blocks.is_some_and(|blocks| blocks.len() == 2)
            });
            let done = done.count();
            ensure!(done == count, "{done} of {count} have them");
            Ok(Some(nodes))
        },
    )
    .await
}

/// Who makes addresses.
enum Manager {
    Upstream,
    /// With replicas that die and ranges that move, or undisturbed.
    Manifold {
        unrest: bool,
    },
}

/// From the first node's creation to the last one's blocks.
async fn join(manager: Manager) -> Result<Duration> {
    let control_plane = ControlPlane::builder().nodes(0).start().await?;
    let client = control_plane.client().await?;
    let fleet = fleet_of(&control_plane, &JOINING_FLAGS).await?;
    let mut replicas = Vec::new();
    let mut kcm = None;
    match manager {
        Manager::Upstream => {
            let flags = [&JOINING_FLAGS[..], &["--leader-elect=false"]].concat();
            kcm = Some(control_plane.start_kcm(&flags).await?);
        }
        Manager::Manifold { .. } => replicas = fleet.start_all(REPLICAS).await?,
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    let began = Instant::now();
    let work = async {
        control_plane
            .add_nodes(&client, "joins", JOINING, 10)
            .await?;
        joined(&client, JOINING).await
    };
    let (nodes, killed) = match manager {
        Manager::Manifold { unrest: true } => {
            let (nodes, _, killed) = JOINING_UNREST
                .during(work, &fleet, &mut replicas, &client)
                .await?;
            (nodes, killed)
        }
        _ => (work.await?, 0),
    };
    let took = began.elapsed();
    let mut held: BTreeMap<&str, String> = BTreeMap::new();
    for node in &nodes {
        for block in node.spec.iter().flat_map(|spec| &spec.pod_cidrs).flatten() {
            if let Some(other) = held.insert(block, name(node)) {
                anyhow::bail!("{block} is {other}'s and {}'s", name(node));
            }
        }
    }
    ensure!(held.len() == JOINING * 2, "{} blocks", held.len());
    let who = match manager {
        Manager::Upstream => "upstream".to_owned(),
        Manager::Manifold { .. } => format!("Manifold, {killed} kills"),
    };
    println!(
        "nodes: {who}: {} blocks for {JOINING} nodes after {took:.1?}",
        held.len()
    );
    for replica in &mut replicas {
        replica.wait_ready(PATIENCE).await?;
    }
    all_end_well(&mut replicas).await?;
    drop(kcm);
    Ok(took)
}

#[test]
#[ignore = "minutes: cargo parity"]
fn a_thousand_nodes_that_join_while_replicas_die_get_blocks_of_their_own() {
    let _alone = alone();
    run_test(async {
        let theirs = join(Manager::Upstream).await?;
        let ours = join(Manager::Manifold { unrest: false }).await?;
        join(Manager::Manifold { unrest: true }).await?;
        let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
        println!("nodes: undisturbed {ratio:.2} × upstream's time");
        Ok(())
    });
}

/// What a manager of this many nodes costs at rest.
async fn at_rest<R>(metrics: impl Fn() -> R) -> Result<Cost>
where
    R: Future<Output = Result<Vec<Metrics>>>,
{
    tokio::time::sleep(SETTLED).await;
    cost(&metrics, async {
        tokio::time::sleep(MEASURED).await;
        Ok(())
    })
    .await
}

async fn uids(pods: &Api<Pod>) -> Result<BTreeSet<String>> {
    let list = pods.list(&ListParams::default()).await?;
    let living = list.items.into_iter().map(|pod| pod.metadata);
    Ok(living
        .filter(|meta| meta.deletion_timestamp.is_none())
        .filter_map(|meta| meta.uid)
        .collect())
}

/// Fails once a node is not ready or has a NoExecute taint.
async fn all_live(client: &Client) -> Result<()> {
    for node in all(client).await? {
        ensure!(
            ready(&node) == "True",
            "{} is {}",
            name(&node),
            ready(&node)
        );
        ensure!(!is_driven(&node), "{} has a NoExecute taint", name(&node));
    }
    Ok(())
}

#[test]
#[ignore = "a quarter of an hour: cargo parity"]
fn a_hundred_kills_of_replicas_mark_none_of_two_thousand_nodes_and_evict_no_pod() {
    let _alone = alone();
    run_test(async {
        let control_plane = ControlPlane::builder().nodes(0).start().await?;
        let client = control_plane.client().await?;
        let fleet = fleet_of(&control_plane, &[]).await?;
        let mut replicas = fleet.start_all(REPLICAS).await?;
        control_plane
            .add_nodes(&client, "lives", LIVING, 10)
            .await?;
        until("every node lives", MADE, Duration::from_secs(2), || async {
            all_live(&client).await?;
            let nodes = all(&client).await?;
            let tainted = nodes.iter().filter(|node| {
                let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
                taints.is_some_and(|taints| !taints.is_empty())
            });
            let tainted = tainted.count();
            ensure!(tainted == 0, "{tainted} nodes have taints");
            Ok(Some(()))
        })
        .await?;
        let namespace = control_plane.namespace("crowd").await?;
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
        let web: Value = deployment("web", PODS);
        let web = serde_json::from_value(web)?;
        deployments.create(&PostParams::default(), &web).await?;
        let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        until(
            "the Deployment is complete",
            MADE,
            Duration::from_secs(2),
            || async {
                let status = deployments.get("web").await?.status.unwrap_or_default();
                let available = status.available_replicas.unwrap_or(0);
                ensure!(
                    u32::try_from(available)? == PODS,
                    "{available} of {PODS} are available"
                );
                Ok(Some(()))
            },
        )
        .await?;

        let ours = at_rest(|| metrics_of(&replicas)).await?;
        all_end_well(&mut replicas).await?;
        let kcm = control_plane.start_kcm(&["--leader-elect=false"]).await?;
        let theirs = at_rest(|| async { Ok(vec![kcm.metrics().await?]) }).await?;
        drop(kcm);
        println!(
            "nodes: {LIVING} nodes at rest: upstream {theirs:.3?}, Manifold of {REPLICAS} {ours:.3?}"
        );
        println!(
            "nodes: processors {:.2} ×, memory {:.2} ×",
            ours.processors / theirs.processors,
            ours.memory / theirs.memory
        );

        let before = uids(&pods).await?;
        let mut replicas = fleet.start_all(REPLICAS).await?;
        tokio::time::sleep(SETTLED).await;
        for killed in 0..KILLS {
            let index = killed % REPLICAS;
            replicas[index].kill();
            replicas[index] = fleet.start(index)?;
            let until = Instant::now() + KILL_EVERY;
            while Instant::now() < until {
                all_live(&client)
                    .await
                    .with_context(|| format!("after {killed} kills"))?;
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
        let after = uids(&pods).await?;
        ensure!(
            before == after,
            "{} pods are others",
            before.difference(&after).count()
        );
        println!(
            "nodes: {KILLS} kills, 0 of {LIVING} nodes marked, 0 of {} pods evicted",
            before.len()
        );
        for replica in &mut replicas {
            replica.wait_ready(PATIENCE).await?;
        }
        all_end_well(&mut replicas).await
    });
}
