//! A real node with pods loses its network: how long until that is noticed, until the taints, and until the
//! first and the last pod is evicted, under kube-controller-manager and under Manifold whose ranges move each
//! second. The replica that owns the zone's key is killed when the node has been silent for most of its grace
//! period, and the next owner once the pods' tolerations run.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::fleet::explain;
use harness::nodes::{Network, can_run};
use harness::{ControlPlane, Fleet, Replica, run_test};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node as NodeObject, Pod};
use kube::api::ListParams;
use kube::{Api, Client};
use serde_json::json;

use crate::kubelets::{join, talking, usable};
use crate::support::{
    POLL, ROUND, all_end_well, alone, ask_for_moves, complete, create, fleet_of, owners,
};

const REPLICAS: usize = 3;
const NODES: u8 = 2;
/// On both nodes: half of them are on the one that dies.
const PODS: u32 = 60;
const GRACE: Duration = Duration::from_secs(12);
/// Seconds for which pods tolerate a node that is gone.
const TOLERATED: u32 = 5;
/// Kubelets renew each second, so that the age of the last renewal says little.
const KUBELET_LEASE: u32 = 4;
const FLAGS: [&str; 4] = [
    "--node-monitor-grace-period=12s",
    "--node-startup-grace-period=30s",
    "--node-monitor-period=1s",
    "--node-eviction-rate=1",
];
/// The key that decides about nodes without a zone.
const ZONE: &str = "zone/:";
/// Ranges that move in each round.
const MOVED: usize = 8;
/// The owner of the zone's key dies so long after the cut.
const KILLS: [Duration; 2] = [Duration::from_secs(9), Duration::from_secs(16)];
/// Of Manifold beyond upstream: a takeover, within which nobody decides about the zone.
const LATER: Duration = Duration::from_secs(8 + 2);
const LIMIT: Duration = Duration::from_secs(90);

/// Since the network was cut.
#[derive(Debug, Default, Clone)]
struct Course {
    unknown: Option<Duration>,
    tainted: Option<Duration>,
    evicted: BTreeMap<String, Duration>,
    /// Pods that nobody should have touched.
    wrongly: BTreeSet<String>,
}

impl Course {
    fn summary(&self) -> String {
        let after = |time: Option<&Duration>| {
            time.map_or("never".to_owned(), |time| {
                format!("after {:.1} s", time.as_secs_f64())
            })
        };
        format!(
            "NotReady {}, NoExecute {}, {} pods evicted, the first {}, the last {}",
            after(self.unknown.as_ref()),
            after(self.tainted.as_ref()),
            self.evicted.len(),
            after(self.evicted.values().min()),
            after(self.evicted.values().max())
        )
    }
}

async fn pods(client: &Client, namespace: &str) -> Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    Ok(pods.list(&ListParams::default()).await?.items)
}

fn name(pod: &Pod) -> String {
    pod.metadata.name.clone().unwrap_or_default()
}

fn node_of(pod: &Pod) -> &str {
    let spec = pod.spec.as_ref();
    spec.and_then(|spec| spec.node_name.as_deref())
        .unwrap_or("")
}

/// Watches until every pod of the dead node is being deleted, and for a while after.
async fn watch(client: &Client, namespace: &str, dead: &str, cut: Instant) -> Result<Course> {
    let before = pods(client, namespace).await?;
    let doomed: BTreeSet<String> = before
        .iter()
        .filter(|pod| node_of(pod) == dead)
        .map(name)
        .collect();
    let living: BTreeSet<String> = before
        .iter()
        .filter(|pod| node_of(pod) != dead)
        .map(name)
        .collect();
    ensure!(
        !doomed.is_empty() && !living.is_empty(),
        "{doomed:?}, {living:?}"
    );
    let nodes: Api<NodeObject> = Api::all(client.clone());
    let mut course = Course::default();
    let mut done: Option<Instant> = None;
    // What follows late would be wrong too.
    while done.is_none_or(|done| done.elapsed() < GRACE) {
        ensure!(cut.elapsed() < LIMIT, "{}", course.summary());
        let node = nodes.get(dead).await?;
        let conditions = node.status.and_then(|status| status.conditions);
        let ready = conditions.unwrap_or_default().into_iter();
        if ready
            .filter(|one| one.type_ == "Ready")
            .any(|one| one.status != "True")
        {
            course.unknown.get_or_insert_with(|| cut.elapsed());
        }
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        if taints.iter().any(|taint| taint.effect == "NoExecute") {
            course.tainted.get_or_insert_with(|| cut.elapsed());
        }
        let now = pods(client, namespace).await?;
        let there: BTreeSet<String> = now
            .iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none())
            .map(name)
            .collect();
        for pod in doomed.difference(&there) {
            let at = course.evicted.entry(pod.clone());
            at.or_insert_with(|| cut.elapsed());
        }
        course.wrongly.extend(living.difference(&there).cloned());
        if course.evicted.len() == doomed.len() {
            done.get_or_insert_with(Instant::now);
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(course)
}

/// Moves ranges each second, and kills the owner of the zone's key at each of [`KILLS`].
async fn unrest(
    fleet: &Fleet,
    replicas: &mut [Replica],
    client: &Client,
    cut: Instant,
    killed: &mut Vec<String>,
) -> Result<Infallible> {
    let mut rounds = tokio::time::interval(ROUND);
    loop {
        rounds.tick().await;
        let due = KILLS
            .get(killed.len())
            .is_some_and(|at| cut.elapsed() >= *at);
        let mut clients = BTreeMap::new();
        for (index, replica) in replicas.iter_mut().enumerate() {
            let at = replica.client()?;
            // One that has just come back does not know yet.
            let said = explain(&at, "node-lifecycle-controller", ZONE).await;
            let owns = said.is_ok_and(|said| said["owner"] == replica.name());
            if due && owns {
                replica.kill();
                *replica = fleet.start(index)?;
                let after = cut.elapsed().as_secs_f64();
                killed.push(format!("{} after {after:.1} s", replica.name()));
                break;
            }
            clients.insert(replica.name().to_owned(), at);
        }
        let ranges = (0..MOVED).map(|_| rand::random::<u32>() % fleet.ranges());
        // Who has been killed does not answer, and ranges move meanwhile.
        let _ = ask_for_moves(&owners(client).await?, &clients, ranges).await;
    }
}

/// One death, from new nodes to the last eviction.
async fn death(manifold: bool) -> Result<Course> {
    let mut network = Network::start().await?;
    let control_plane = ControlPlane::builder()
        .nodes(0)
        .real_nodes(&network)
        .start()
        .await?;
    let port = control_plane.port();
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    network.forward(to).await?;
    let client = control_plane.client().await?;
    let fleet = fleet_of(&control_plane, &FLAGS).await?;
    let (mut replicas, kcm) = if manifold {
        (fleet.start_all(REPLICAS).await?, None)
    } else {
        let flags = [&FLAGS[..], &["--leader-elect=false"]].concat();
        (Vec::new(), Some(control_plane.start_kcm(&flags).await?))
    };
    let kubelet = json!({"nodeLeaseDurationSeconds": KUBELET_LEASE});
    let nodes = join(&network, &control_plane, NODES, &kubelet).await?;
    usable(&client, NODES.into()).await?;
    let namespace = control_plane.namespace("dies").await?;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
    let mut web = talking("web", PODS);
    web["spec"]["template"]["spec"]["tolerations"] = json!([{
        "key": "node.kubernetes.io/unreachable",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": TOLERATED,
    }]);
    create(&deployments, web).await?;
    complete(&deployments, "web", PODS.try_into()?).await?;

    let dead = &nodes[0];
    let cut = Instant::now();
    dead.cut_off().await?;
    let work = watch(&client, &namespace, dead.name(), cut);
    let course = if manifold {
        let mut killed = Vec::new();
        let course = tokio::select! {
            course = work => course?,
            failed = unrest(&fleet, &mut replicas, &client, cut, &mut killed) => match failed? {},
        };
        println!("node_dies: killed {killed:?}");
        ensure!(killed.len() == KILLS.len(), "killed {killed:?}");
        course
    } else {
        work.await?
    };
    let who = if manifold { "Manifold" } else { "upstream" };
    println!("node_dies: {who}: {}", course.summary());
    for replica in &mut replicas {
        replica.wait_ready(LIMIT).await?;
    }
    all_end_well(&mut replicas).await?;
    drop(kcm);
    Ok(course)
}

#[test]
#[ignore = "minutes, and real nodes: cargo parity"]
fn a_node_that_dies_loses_its_pods_when_upstream_would_evict_them_and_no_others() {
    if !can_run("node_dies: a node that dies loses its pods") {
        return;
    }
    let _alone = alone();
    run_test(async {
        let theirs = death(false).await?;
        let ours = death(true).await?;
        for (who, course) in [("upstream", &theirs), ("Manifold", &ours)] {
            ensure!(course.wrongly.is_empty(), "{who}: {:?}", course.wrongly);
            let (unknown, first) = (course.unknown, course.evicted.values().min());
            let unknown = unknown.context("it was never noticed")?;
            // The last renewal is a second old at most, and the grace period counts from it.
            ensure!(
                unknown + Duration::from_secs(2) >= GRACE,
                "{who}: noticed after {unknown:.1?}"
            );
            let (tainted, first) = (course.tainted.context("no taint")?, first.context("none")?);
            // The time of a taint is reported in whole seconds.
            let tolerated = Duration::from_secs(u64::from(TOLERATED) - 1);
            ensure!(
                *first + POLL * 4 >= tainted + tolerated,
                "{who}: {}",
                course.summary()
            );
        }
        for (what, theirs, ours) in [
            ("NotReady", theirs.unknown, ours.unknown),
            ("the taint", theirs.tainted, ours.tainted),
            (
                "the last eviction",
                theirs.evicted.values().max().copied(),
                ours.evicted.values().max().copied(),
            ),
        ] {
            let (theirs, ours) = (theirs.context(what)?, ours.context(what)?);
            ensure!(
                ours <= theirs + LATER,
                "{what}: {ours:.1?} beside upstream's {theirs:.1?}"
            );
        }
        Ok(())
    });
}
