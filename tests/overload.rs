//! An API server whose places are all taken by the bulk writes of kube-system: renewals of Leases go ahead of
//! them. And one that is slow for long, in [`slow`].

mod deeds;
mod kubelet;
mod slow;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use harness::{ControlPlane, Replica, run_test, workspace_root};
use jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};

use crate::chaos::webhook::Webhook;
use crate::support::{alone, fleet};

/// How long the flood lasts with the FlowSchema, and without.
const FLOOD: Duration = Duration::from_secs(20);
const FLOOD_WITHOUT: Duration = Duration::from_secs(12);
/// What each request of the flood holds its place for.
const HOLDS: Duration = Duration::from_millis(400);
/// Requests of the flood under way; many more than there are places.
const AT_ONCE: usize = 200;
/// What the API server works on at once, in all priority levels together.
const PLACES: u128 = 30;
/// A fence closes 3 s after a renewal's start; a renewal has 1 s.
const RENEWAL_P99: Duration = Duration::from_millis(200);

/// What the flood came to.
#[derive(Debug, Default)]
struct Flood {
    answered: AtomicU64,
    turned_away: AtomicU64,
}

/// Creates as an account of kube-system, without effect, for as long as this runs.
async fn flood(client: &Client, lasts: Duration) -> Arc<Flood> {
    let counts = Arc::new(Flood::default());
    let ends = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..AT_ONCE)
        .map(|at| {
            let (client, counts, ends) = (client.clone(), Arc::clone(&counts), Arc::clone(&ends));
            tokio::spawn(async move {
                while !ends.load(Ordering::Relaxed) {
                    let map = json!({
                        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("flood-{at}")},
                    });
                    let request = http::Request::post("/api/v1/namespaces/kube-system/configmaps?dryRun=All")
                        .header("content-type", "application/json")
                        .header("impersonate-user", format!("system:serviceaccount:kube-system:flood-{at}"))
                        .header("impersonate-group", "system:serviceaccounts:kube-system")
                        .header("impersonate-group", "system:masters-of-the-flood")
                        .body(map.to_string().into_bytes())
                        .expect("a request");
                    let answer: Result<Value, kube::Error> = client.request(request).await;
                    match answer {
                        Err(kube::Error::Api(status)) if status.code == 429 => {
                            counts.turned_away.fetch_add(1, Ordering::Relaxed);
                            tokio::time::sleep(Duration::from_millis(50)).await;
                        }
                        _ => drop(counts.answered.fetch_add(1, Ordering::Relaxed)),
                    }
                }
            })
        })
        .collect();
    tokio::time::sleep(lasts).await;
    ends.store(true, Ordering::Relaxed);
    for task in tasks {
        task.abort();
    }
    counts
}

/// How long the API server took for writes of replica Leases, slowest last.
fn renewals(control_plane: &ControlPlane, from: Timestamp, to: Timestamp) -> Result<Vec<Duration>> {
    let mut took = Vec::new();
    control_plane.audit().read(|record| {
        let object = record.object();
        let arrived = record.request_received_timestamp;
        if record.stage == "ResponseComplete"
            && record.verb == "patch"
            && object.resource == "leases"
            && object.name.starts_with("manifold-replica-")
            && (from..to).contains(&arrived)
        {
            let took_it = record.stage_timestamp.duration_since(arrived);
            took.push(Duration::try_from(took_it).unwrap_or_default());
        }
    })?;
    took.sort_unstable();
    Ok(took)
}

fn percentile(sorted: &[Duration], part: usize) -> Duration {
    let at = (sorted.len() * part).div_ceil(100).saturating_sub(1);
    sorted.get(at).copied().unwrap_or_default()
}

/// How often fences have closed.
async fn fenced(replicas: &[Replica]) -> Result<f64> {
    let mut sum = 0.0;
    for replica in replicas {
        let metrics = replica.metrics().await?;
        let changes = metrics.sum("manifold_ownership_changes_total", &[("what", "fenced")]);
        sum += changes.unwrap_or(0.0);
    }
    Ok(sum)
}

#[test]
fn renewals_go_ahead_of_the_bulk_writes_of_a_busy_api_server() {
    let _alone = alone();
    run_test(async {
        // As many as PLACES says in all; the level of kube-system's accounts has a sixth of them and what
        // others lend.
        let control_plane = ControlPlane::builder()
            .nodes(1)
            .api_server_arg("--max-requests-inflight=20")
            .api_server_arg("--max-mutating-requests-inflight=10")
            .start()
            .await?;
        let client = control_plane.client().await?;
        control_plane
            .kubectl_with_input(
                &["apply"],
                &json!({
                    "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
                    "metadata": {"name": "flood"},
                    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
                    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:masters-of-the-flood"}],
                })
                .to_string(),
            )
            .await?;
        // A request that waits for it holds its place and takes no processor time.
        let webhook = Webhook::start(&control_plane, HOLDS).await?;
        let hook = webhook.configuration(
            control_plane.authority().certificate(),
            "configmaps",
            "Ignore",
        );
        control_plane.apply_text(&hook.to_string()).await?;
        let fleet = fleet(&control_plane).await?;
        let replicas = fleet.start_all(3).await?;
        tokio::time::sleep(Duration::from_secs(2)).await;

        let (begun, before) = (Timestamp::now(), fenced(&replicas).await?);
        let counts = flood(&client, FLOOD).await;
        let took = renewals(&control_plane, begun, Timestamp::now())?;
        let closed = fenced(&replicas).await? - before;
        let p99 = percentile(&took, 99);
        println!(
            "overload: with deploy/rbac/flow.yaml: {} renewals, p50 {:.0?}, p99 {p99:.0?}, slowest {:.0?}, {closed} fences \
             closed; the flood: {counts:?}",
            took.len(),
            percentile(&took, 50),
            percentile(&took, 100),
        );
        // All places that there are were taken, or nothing was shown.
        let answered = u128::from(counts.answered.load(Ordering::Relaxed));
        let most = FLOOD.as_millis() / HOLDS.as_millis() * PLACES;
        ensure!(
            answered <= most,
            "{counts:?}: more than {PLACES} requests were under way at once"
        );
        ensure!(took.len() > 40, "{} renewals of three replicas", took.len());
        ensure!(closed == 0.0, "{closed} fences have closed");
        ensure!(p99 <= RENEWAL_P99, "{p99:?}");

        // What it is without.
        let flow = workspace_root()
            .join("deploy/rbac/flow.yaml")
            .display()
            .to_string();
        control_plane.kubectl(&["delete", "-f", &flow]).await?;
        tokio::time::sleep(Duration::from_secs(5)).await;
        let (begun, before) = (Timestamp::now(), fenced(&replicas).await?);
        let counts = flood(&client, FLOOD_WITHOUT).await;
        let took = renewals(&control_plane, begun, Timestamp::now())?;
        let closed = fenced(&replicas).await? - before;
        println!(
            "overload: without: {} renewals, p50 {:.0?}, p99 {:.0?}, slowest {:.0?}, {closed} fences closed; the flood: \
             {counts:?}",
            took.len(),
            percentile(&took, 50),
            percentile(&took, 99),
            percentile(&took, 100),
        );
        ensure!(
            closed > 0.0 || percentile(&took, 99) > RENEWAL_P99,
            "the flood does no harm without the FlowSchema either, so nothing was shown"
        );
        Ok(())
    });
}
