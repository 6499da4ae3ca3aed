//! Nodes while replicas die and while the API server hangs: addresses are given once, a silent node is
//! noticed, a zone's pace holds, and no living node becomes Unknown.

mod crowd;
mod zones;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use harness::control_plane::NO_KUBELET;
use harness::{ControlPlane, run_test};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, api::ListParams};

use crate::support::{PATIENCE, POLL, all_end_well, alone, beside, fleet_of};

const REPLICAS: usize = 3;
/// kwok renews a node's Lease every ten seconds and a little.
const GRACE: Duration = Duration::from_secs(16);
/// Between two nodes of a zone, at the rate of the flags below.
const INTERVAL: Duration = Duration::from_secs(4);
/// What a reading of the nodes every [`POLL`] may be late or early by, twice.
const BLUR: Duration = Duration::from_millis(600);
/// A silent node is noticed so long after its grace period: its last renewal, a monitor period, a takeover.
const NOTICED: Duration = Duration::from_secs(12 + 5 + 10);
/// Longer than the grace period.
const STALL: Duration = Duration::from_secs(30);
const FLAGS: [&str; 6] = [
    "--allocate-node-cidrs=true",
    "--cluster-cidr=10.64.0.0/12",
    "--node-monitor-grace-period=16s",
    "--node-startup-grace-period=60s",
    "--node-monitor-period=1s",
    "--node-eviction-rate=0.25",
];

async fn all(client: &Client) -> Result<Vec<Node>> {
    let nodes: Api<Node> = Api::all(client.clone());
    Ok(nodes.list(&ListParams::default()).await?.items)
}

fn name(node: &Node) -> String {
    node.metadata.name.clone().unwrap_or_default()
}

fn ready(node: &Node) -> String {
    let conditions = node.status.iter().flat_map(|status| &status.conditions);
    let ready = conditions.flatten().find(|one| one.type_ == "Ready");
    ready.map(|one| one.status.clone()).unwrap_or_default()
}

fn is_driven(node: &Node) -> bool {
    let taints = node.spec.iter().flat_map(|spec| &spec.taints);
    taints.flatten().any(|taint| taint.effect == "NoExecute")
}

#[test]
#[ignore = "minutes: cargo parity"]
fn silent_nodes_are_noticed_and_driven_away_at_their_zone_s_pace_while_replicas_die() {
    let _alone = alone();
    run_test(async {
        let control_plane = ControlPlane::builder()
            .nodes(12)
            .kubelets_may_end()
            .start()
            .await?;
        let fleet = fleet_of(&control_plane, &FLAGS).await?;
        let mut replicas = fleet.start_all(REPLICAS).await?;
        let client = control_plane.client().await?;
        let silent: BTreeSet<String> = (0..4).map(|number| format!("node-{number}")).collect();
        for node in &silent {
            let label = format!("{NO_KUBELET}=none");
            control_plane
                .kubectl(&["label", "node", node, &label])
                .await?;
        }
        let began = Instant::now();
        let mut noticed: BTreeMap<String, Instant> = BTreeMap::new();
        let mut driven: BTreeMap<String, Instant> = BTreeMap::new();
        let mut killed = 0;
        while driven.len() < silent.len() {
            let limit = GRACE + NOTICED + (INTERVAL + PATIENCE / 4) * 4;
            ensure!(began.elapsed() < limit, "driven so far: {driven:?}");
            for node in all(&client).await? {
                let name = name(&node);
                let lives = !silent.contains(&name);
                ensure!(
                    !lives || ready(&node) == "True",
                    "{name} is {}",
                    ready(&node)
                );
                ensure!(!lives || !is_driven(&node), "{name} is driven away");
                if ready(&node) == "Unknown" {
                    noticed.entry(name.clone()).or_insert_with(Instant::now);
                }
                if is_driven(&node) {
                    driven.entry(name).or_insert_with(Instant::now);
                }
            }
            // After each of the first three, another replica dies: the zone's owner is among them.
            if driven.len() > killed && killed < REPLICAS {
                replicas[killed].kill();
                replicas[killed] = fleet.start(killed)?;
                killed += 1;
            }
            tokio::time::sleep(POLL).await;
        }
        for (name, at) in &noticed {
            let after = at.duration_since(began);
            ensure!(
                after < GRACE + NOTICED,
                "{name} was noticed after {after:.1?}"
            );
        }
        let mut times: Vec<Instant> = driven.values().copied().collect();
        times.sort();
        let gaps: Vec<Duration> = times.windows(2).map(|two| two[1] - two[0]).collect();
        println!("nodes: noticed {}, gaps {gaps:.1?}", noticed.len());
        for gap in gaps {
            ensure!(gap + BLUR >= INTERVAL, "two nodes within {gap:.1?}");
        }
        for replica in &mut replicas {
            replica.wait_ready(PATIENCE).await?;
        }
        all_end_well(&mut replicas).await
    });
}

#[test]
fn an_api_server_that_hangs_makes_no_node_silent() {
    let _beside = beside();
    run_test(async {
        let mut control_plane = ControlPlane::builder().nodes(5).start().await?;
        let fleet = fleet_of(&control_plane, &FLAGS).await?;
        let mut replicas = fleet.start_all(REPLICAS).await?;
        let client = control_plane.client().await?;
        // So long that all heartbeats are of one age or another.
        tokio::time::sleep(GRACE).await;
        control_plane.pause_api_server()?;
        tokio::time::sleep(STALL).await;
        control_plane.resume_api_server()?;
        let began = Instant::now();
        let mut reads = 0;
        while began.elapsed() < GRACE * 2 {
            if let Ok(nodes) = all(&client).await {
                reads += 1;
                for node in &nodes {
                    ensure!(ready(node) == "True", "{} is {}", name(node), ready(node));
                }
            }
            tokio::time::sleep(POLL).await;
        }
        ensure!(reads > 10, "the API server answered {reads} times");
        for replica in &mut replicas {
            replica.wait_ready(PATIENCE).await?;
        }
        all_end_well(&mut replicas).await
    });
}
