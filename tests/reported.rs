//! What a user sees of a fault: events at the replica's own Pod, metrics, and a `/readyz` that reports a
//! fenced replica from a broken one.

use anyhow::{Result, ensure};
use harness::{ControlPlane, run_test, until};
use k8s_openapi::api::core::v1::{Event, Pod, ServiceAccount};
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::json;

use crate::support::{PATIENCE, POLL, beside};

const POD: &str = "manifold-0";

/// Waits for an event of this reason at the Pod; gives its message.
async fn event(events: &Api<Event>, reason: &str) -> Result<String> {
    let fields = format!("involvedObject.kind=Pod,involvedObject.name={POD},reason={reason}");
    until(&format!("an event {reason}"), PATIENCE, POLL, || async {
        let list = events.list(&ListParams::default().fields(&fields)).await?;
        Ok(list
            .items
            .into_iter()
            .next()
            .and_then(|event| event.message))
    })
    .await
}

#[test]
fn a_fault_is_reported_at_the_pod_in_metrics_and_by_readyz() {
    let _beside = beside();
    run_test(async {
        let mut control_plane = ControlPlane::builder().nodes(1).start().await?;
        let client = control_plane.client().await?;
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "kube-system");
        let account = serde_json::from_value(json!({"metadata": {"name": "default"}}))?;
        accounts.create(&PostParams::default(), &account).await?;
        let pods: Api<Pod> = Api::namespaced(client.clone(), "kube-system");
        let pod = serde_json::from_value(json!({
            "metadata": {"name": POD},
            "spec": {"schedulerName": "nobody", "containers": [{"name": "manifold", "image": "manifold:test"}]},
        }))?;
        pods.create(&PostParams::default(), &pod).await?;
        let events: Api<Event> = Api::namespaced(client.clone(), "kube-system");
        let fleet = control_plane
            .fleet()
            .env("POD_NAME", POD)
            .env("POD_NAMESPACE", "kube-system")
            .build()
            .await?;
        // The second shares the Pod's name here; it is killed before it has anything to report.
        let mut replicas = fleet.start_all(2).await?;
        until("both have ranges", PATIENCE, POLL, || async {
            let shards = replicas[1].shards().await?;
            Ok((!shards.owned.is_empty()).then_some(()))
        })
        .await?;

        // Another dies.
        replicas[1].kill();
        let evicted = event(&events, "Evicted").await?;
        ensure!(evicted.contains("evicted manifold-1_"), "{evicted}");
        until("the takeover is reported", PATIENCE, POLL, || async {
            let message = event(&events, "TookOver").await?;
            Ok(message.contains("ranges over from").then_some(()))
        })
        .await?;
        let metrics = replicas[0].text("/metrics").await?;
        for what in ["evicted", "took_over"] {
            let line = format!("manifold_ownership_changes_total{{what=\"{what}\"}}");
            ensure!(metrics.contains(&line), "no {line} in\n{metrics}");
        }

        // The API server hangs: the replica is fenced, and nothing else is wrong with it.
        control_plane.pause_api_server()?;
        until("it says that it is fenced", PATIENCE, POLL, || async {
            let said = match replicas[0].text("/readyz?verbose").await {
                Ok(ready) => ready,
                Err(error) => format!("{error:#}"),
            };
            ensure!(said.contains("[-]fence failed: fenced:"), "{said}");
            ensure!(said.contains("[+]membership ok"), "{said}");
            ensure!(said.contains("[+]server-fence ok: off:"), "{said}");
            Ok(Some(()))
        })
        .await?;
        control_plane.resume_api_server()?;
        replicas[0].wait_ready(PATIENCE).await?;
        let fenced = event(&events, "Fenced").await?;
        ensure!(
            fenced.contains("ranges and writes nothing until"),
            "{fenced}"
        );
        let reopened = event(&events, "Reopened").await?;
        ensure!(reopened.contains("ms behind a closed fence"), "{reopened}");
        Ok(())
    });
}
