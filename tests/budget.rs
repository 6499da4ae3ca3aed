//! A fleet's allowance of requests: `--kube-api-qps` is divided among the replicas by what each has to write.

use std::time::Duration;

use anyhow::{Result, ensure};
use harness::{ControlPlane, Replica, run_test, until};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use crate::support::alone;

const QPS: f64 = 20.0;
const BURST: f64 = 30.0;
/// Pods of one ReplicaSet, so of one key of one replica; and of many, so of all replicas.
const OF_ONE: i32 = 300;
const SETS: usize = 30;
const OF_EACH: i32 = 10;
const PATIENCE: Duration = Duration::from_secs(90);

async fn grow(client: &Client, namespace: &str, name: &str, pods: i32) -> Result<()> {
    let set = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": pods,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "c", "image": "registry.example/c:1"}]},
            },
        },
    }))?;
    let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), namespace);
    sets.create(&PostParams::default(), &set).await?;
    Ok(())
}

async fn pods(client: &Client, namespace: &str, expected: usize) -> Result<()> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    until(
        "all pods exist",
        PATIENCE,
        Duration::from_millis(500),
        || async {
            let found = api.list_metadata(&ListParams::default()).await?.items.len();
            Ok((found == expected).then_some(()))
        },
    )
    .await
}

/// Pods created a second, after the burst.
fn rate(control_plane: &ControlPlane, namespace: &str) -> Result<f64> {
    let mut at: Vec<Timestamp> = Vec::new();
    control_plane.audit().read(|record| {
        let object = record.object();
        if record.stage == "ResponseComplete"
            && record.verb == "create"
            && object.resource == "pods"
            && object.subresource.is_empty()
            && object.namespace == namespace
        {
            at.push(record.request_received_timestamp);
        }
    })?;
    at.sort_unstable();
    ensure!(at.len() > 2 * BURST as usize, "{} pods", at.len());
    let after_burst = &at[BURST as usize..];
    let span = after_burst[after_burst.len() - 1].duration_since(after_burst[0]);
    Ok((after_burst.len() - 1) as f64 / span.as_secs_f64())
}

/// The parts of all replicas, largest first.
async fn parts(replicas: &[Replica]) -> Result<Vec<f64>> {
    let mut parts = Vec::new();
    for replica in replicas {
        let metrics = replica.metrics().await?;
        parts.push(
            metrics
                .sum("manifold_api_budget_ratio", &[])
                .unwrap_or(-1.0),
        );
    }
    parts.sort_by(|a, b| b.total_cmp(a));
    Ok(parts)
}

async fn settled(replicas: &[Replica], is_so: impl Fn(&[f64]) -> bool) -> Result<Vec<f64>> {
    until(
        "the parts are divided",
        PATIENCE,
        Duration::from_millis(500),
        || async {
            let parts = parts(replicas).await?;
            let sum: f64 = parts.iter().sum();
            Ok(((sum - 1.0).abs() < 0.05 && is_so(&parts)).then_some(parts))
        },
    )
    .await
}

#[test]
fn a_fleet_asks_no_more_than_one_process_whichever_has_the_work() {
    let _alone = alone();
    run_test(async {
        let control_plane = ControlPlane::builder().nodes(1).start().await?;
        let client = control_plane.client().await?;
        let fleet = control_plane
            .fleet()
            .arg(format!("--kube-api-qps={QPS}"))
            .arg(format!("--kube-api-burst={BURST}"))
            .build()
            .await?;
        let replicas = fleet.start_all(3).await?;
        let even = settled(&replicas, |parts| parts[0] < 0.4).await?;

        let one = control_plane.namespace("budget-one").await?;
        grow(&client, &one, "one", OF_ONE).await?;
        let worker = settled(&replicas, |parts| parts[0] > 0.7).await?;
        pods(&client, &one, OF_ONE as usize).await?;
        let of_one = rate(&control_plane, &one)?;

        let many = control_plane.namespace("budget-many").await?;
        for at in 0..SETS {
            grow(&client, &many, &format!("set-{at}"), OF_EACH).await?;
        }
        pods(&client, &many, SETS * OF_EACH as usize).await?;
        let of_many = rate(&control_plane, &many)?;
        let again = settled(&replicas, |parts| parts[0] < 0.4).await?;
        println!(
            "budget: of {QPS}/s, one busy replica creates {of_one:.1} pods/s, three busy ones {of_many:.1}; parts at rest \
             {even:.2?}, with one busy {worker:.2?}, at rest again {again:.2?}"
        );
        // Statuses take their turns too. The bursts of three replicas add up to that of one.
        ensure!((0.6 * QPS..1.1 * QPS).contains(&of_one), "{of_one}");
        ensure!((0.5 * QPS..1.15 * QPS).contains(&of_many), "{of_many}");
        Ok(())
    });
}
