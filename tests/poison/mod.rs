//! Objects that the API server accepts and that try to exhaust a controller: no replica dies of them, and the
//! keys of everybody else are served as before.

mod objects;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{ControlPlane, Replica, run_test, until};
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::DeleteParams;
use serde_json::json;

use self::objects::{Poison, poisons};
use crate::chaos::probes::{Probes, Wait, p99};
use crate::support::{PATIENCE, POLL, alone, fleet};

const RANGES: u16 = 256;
const REPLICAS: usize = 3;
/// Pods that the namespace of the poison may hold: controllers that want 2^31 of them meet a quota, as they
/// would in a shared cluster, and retry.
const PODS: u32 = 20;
/// How long the fleet is observed after each object.
const OBSERVED: Duration = Duration::from_secs(2);
/// And after the last of them.
const OBSERVED_AT_THE_END: Duration = Duration::from_secs(10);
/// Other keys wait no longer than this, at the 99th percentile.
const WAIT_P99: Duration = Duration::from_millis(500);
/// What a replica may hold more than before. The objects themselves are some 8 MB of JSON, most of which no
/// projection keeps.
const GROWTH_BYTES: f64 = 100e6;

/// Resident memory in bytes.
async fn memory(replica: &Replica) -> Result<f64> {
    replica
        .metrics()
        .await?
        .sum("process_resident_memory_bytes", &[])
        .context("no process_resident_memory_bytes")
}

fn slow(waits: &[Wait]) -> Result<Duration> {
    p99(waits, |wait| wait.whole).context("no key was touched")
}

async fn create(control_plane: &ControlPlane, namespace: &str, poison: &Poison) -> Result<()> {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": poison.objects});
    control_plane
        .kubectl_with_input(&["-n", namespace, "create"], &list.to_string())
        .await
        .with_context(|| format!("the API server refused {}", poison.name))?;
    for (kind, name, status) in &poison.statuses {
        let patch = json!({ "status": status }).to_string();
        let target = format!("{kind}/{name}");
        let args = [
            "-n",
            namespace,
            "patch",
            &target,
            "--subresource=status",
            "--type=merge",
            "-p",
            &patch,
        ];
        control_plane
            .kubectl(&args)
            .await
            .with_context(|| format!("the API server refused the status of {}", poison.name))?;
    }
    for target in &poison.deleted {
        control_plane
            .kubectl(&["-n", namespace, "delete", target, "--wait=false"])
            .await?;
    }
    Ok(())
}

#[test]
fn no_object_kills_a_replica_or_holds_up_other_keys() {
    let _alone = alone();
    run_test(async {
        let control_plane = ControlPlane::builder().start().await?;
        let client = control_plane.client().await?;
        let fleet = fleet(&control_plane).await?;
        let mut replicas = fleet.start_all(REPLICAS).await?;
        let quiet = control_plane.namespace("probes").await?;
        let probes = Probes::start(&client, &quiet, RANGES).await?;
        let namespace = control_plane.namespace("poison").await?;
        let quota = json!({
            "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "pods"},
            "spec": {"hard": {"pods": PODS.to_string()}},
        });
        control_plane
            .kubectl_with_input(&["-n", &namespace, "create"], &quota.to_string())
            .await?;
        let account = ["-n", namespace.as_str(), "get", "serviceaccount", "default"];
        until("pods may be created", PATIENCE, POLL, || async {
            Ok(control_plane.kubectl(&account).await.ok().map(|_| ()))
        })
        .await?;
        // Start-up is over: what is held now is what a fleet at work holds.
        until("probes are served", PATIENCE, POLL, || async {
            Ok((probes.served() > 200).then_some(()))
        })
        .await?;
        let mut before = Vec::new();
        for replica in &replicas {
            before.push(memory(replica).await?);
        }

        let began = Instant::now();
        for poison in poisons() {
            let since = Instant::now();
            create(&control_plane, &namespace, &poison).await?;
            tokio::time::sleep(OBSERVED).await;
            for replica in &mut replicas {
                replica
                    .check()
                    .with_context(|| format!("{} killed {}", poison.name, replica.name()))?;
            }
            let (_, waits) = probes.waits(since, &BTreeSet::new());
            println!(
                "poison: {}: {} touches of other keys, p99 {:.0?}",
                poison.name,
                waits.len(),
                slow(&waits)?
            );
        }
        tokio::time::sleep(OBSERVED_AT_THE_END).await;
        let mut largest = 0.0_f64;
        for (replica, before) in replicas.iter_mut().zip(before) {
            replica.check()?;
            let growth = memory(replica).await? - before;
            largest = largest.max(growth);
            ensure!(
                growth <= GROWTH_BYTES,
                "{} holds {:.0} MB more than before",
                replica.name(),
                growth / 1e6
            );
        }
        let (_, waits) = probes.waits(began, &BTreeSet::new());
        let all = slow(&waits)?;
        println!(
            "poison: {} objects, {} touches of other keys, p99 {all:.0?}; a replica grew by at most {:.0} MB",
            poisons()
                .iter()
                .map(|poison| poison.objects.len())
                .sum::<usize>(),
            waits.len(),
            largest / 1e6
        );
        ensure!(all <= WAIT_P99, "other keys waited {all:?} at p99");

        // They can all be removed again, the one that a finalizer holds once that is taken off.
        let released = r#"{"metadata":{"finalizers":null}}"#;
        let args = ["patch", "pod/patient", "--type=merge", "-p", released];
        control_plane
            .kubectl(&[&["-n", namespace.as_str()], &args[..]].concat())
            .await?;
        let namespaces: Api<Namespace> = Api::all(client.clone());
        namespaces
            .delete(&namespace, &DeleteParams::default())
            .await?;
        until("the namespace is gone", 2 * PATIENCE, POLL, || async {
            Ok(namespaces
                .get_opt(&namespace)
                .await?
                .is_none()
                .then_some(()))
        })
        .await?;
        for replica in &mut replicas {
            replica.check()?;
        }
        Ok(())
    });
}
