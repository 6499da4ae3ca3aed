//! A key that kills the replica that reconciles it: an admission webhook has the creation of its pod wait,
//! and the replica that asked for it is killed meanwhile, within milliseconds of having begun, so that no
//! renewal could name the key.
//!
//! After three deaths the key is quarantined, by name, and all else is served: while it kills, while it is
//! held back, and when it is mended it is released.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{ControlPlane, Fleet, Replica, run_test, until};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Event;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::chaos::webhook::Webhook;
use crate::support::{
    FLEET, PATIENCE, POLL, alone, complete, create, deployment, fleet, judge, judged,
};

const REPLICAS: usize = 3;
const CONTROLLER: &str = "replicaset-controller";
/// Until a dead owner's ranges have another, which has begun with their keys.
const TAKEN_OVER: Duration = Duration::from_secs(30);
/// The webhook holds a creation for longer than the API server waits for it: it refuses none.
const HOLDS: Duration = Duration::from_secs(60);

/// The fleet, its replicas, and the key that kills.
struct Scene {
    control_plane: ControlPlane,
    client: Client,
    fleet: Fleet,
    replicas: Vec<Replica>,
    namespace: String,
    /// Creations of the pod, as the webhook is asked for them.
    asked: mpsc::UnboundedReceiver<()>,
    /// Whether they pass.
    passes: Arc<AtomicBool>,
    _webhook: Webhook,
}

impl Scene {
    async fn new() -> Result<Self> {
        let control_plane = judged().await?;
        let client = control_plane.client().await?;
        let fleet = fleet(&control_plane).await?;
        let namespace = control_plane.namespace("quarantine").await?;
        let (asks, asked) = mpsc::unbounded_channel();
        let passes = Arc::<AtomicBool>::default();
        let its_passes = Arc::clone(&passes);
        let webhook = Webhook::answering(&control_plane, move |_| {
            let (asks, passes) = (asks.clone(), Arc::clone(&its_passes));
            async move {
                let _gone = asks.send(());
                let end = Instant::now() + HOLDS;
                while !passes.load(Ordering::Relaxed) && Instant::now() < end {
                    tokio::time::sleep(POLL).await;
                }
                passes.load(Ordering::Relaxed)
            }
        })
        .await?;
        let mut configuration =
            webhook.configuration(control_plane.authority().certificate(), "pods", "Fail");
        configuration["webhooks"][0]["objectSelector"] = json!({"matchLabels": {"app": "poison"}});
        let api: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
        let configuration = serde_json::from_value(configuration)?;
        api.create(&PostParams::default(), &configuration).await?;
        let replicas = fleet.start_all(REPLICAS).await?;
        Ok(Self {
            control_plane,
            client,
            fleet,
            replicas,
            namespace,
            asked,
            passes,
            _webhook: webhook,
        })
    }

    /// What the owner of the key says of it, and which replica that is.
    async fn explain(&self) -> Result<(usize, Value)> {
        let key = format!("{}/poison", self.namespace);
        for (index, replica) in self.replicas.iter().enumerate() {
            let Ok(client) = replica.client() else {
                continue;
            };
            // One that has just been started says nothing yet.
            let Ok(said) = harness::fleet::explain(&client, CONTROLLER, &key).await else {
                continue;
            };
            if said["owner"] == said["replica"] {
                return Ok((index, said));
            }
        }
        anyhow::bail!("nobody owns {key}")
    }

    /// Waits until some replica is about to make the pod.
    async fn meets_the_key(&mut self) -> Result<()> {
        tokio::time::timeout(TAKEN_OVER, self.asked.recv())
            .await
            .context("nobody has begun with the key")?
            .context("the webhook has ended")
    }

    /// Kills the replica that has the key in flight, and starts it again; gives its name.
    async fn kill(&mut self) -> Result<String> {
        let (owner, _) = self.explain().await?;
        let replica = &mut self.replicas[owner];
        let name = replica.name().to_owned();
        replica.kill();
        *replica = self.fleet.start(owner)?;
        // Its request is withdrawn with its connection; what was asked until then is no sign of its
        // successor.
        while self.asked.try_recv().is_ok() {}
        Ok(name)
    }

    async fn quarantined(&self) -> Result<f64> {
        let mut all = 0.0;
        for replica in &self.replicas {
            let labels = [("controller", CONTROLLER)];
            let metrics = replica.metrics().await?;
            all += metrics
                .sum("manifold_quarantined_keys", &labels)
                .unwrap_or(0.0);
        }
        Ok(all)
    }

    /// What the Leases say was in flight when replicas died.
    async fn deaths(&self) -> Result<Vec<String>> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), harness::fleet::NAMESPACE);
        let of_fleet = format!("manifold.dev/fleet={FLEET},manifold.dev/lease=replica");
        let mut lines = Vec::new();
        for lease in leases
            .list(&ListParams::default().labels(&of_fleet))
            .await?
        {
            let annotations = lease.metadata.annotations.unwrap_or_default();
            let deaths = annotations.get("manifold.dev/deaths");
            lines.extend(
                deaths
                    .into_iter()
                    .flat_map(|text| text.lines())
                    .map(str::to_owned),
            );
        }
        Ok(lines)
    }
}

#[test]
fn a_key_that_kills_its_owners_is_quarantined_after_three_deaths_and_released_when_mended() {
    let _alone = alone();
    run_test(async {
        let mut scene = Scene::new().await?;
        let deployments: Api<Deployment> = Api::namespaced(scene.client.clone(), &scene.namespace);
        let names: Vec<String> = (0..6).map(|index| format!("web-{index}")).collect();
        for name in &names {
            create(&deployments, deployment(name, 1)).await?;
        }
        for name in &names {
            complete(&deployments, name, 1).await?;
        }
        let sets: Api<ReplicaSet> = Api::namespaced(scene.client.clone(), &scene.namespace);
        let labels = json!({"app": "poison"});
        let set = json!({
            "metadata": {"name": "poison"},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"containers": [{"name": "c", "image": "none"}]},
                },
            },
        });
        sets.create(&PostParams::default(), &serde_json::from_value(set)?)
            .await?;

        let mut killed = Vec::new();
        for death in 1..=3 {
            scene.meets_the_key().await?;
            let (_, said) = scene.explain().await?;
            ensure!(said["quarantine"].is_null(), "before death {death}: {said}");
            ensure!(
                said["announced"] == json!(death == 3),
                "before death {death}: {said}"
            );
            killed.push(scene.kill().await?);
        }
        let different: BTreeSet<&String> = killed.iter().collect();
        println!(
            "quarantine: {killed:?} died, {} of them different",
            different.len()
        );

        // It is in flight, alone, and the others are served.
        scene.meets_the_key().await?;
        let named = scene.deaths().await?;
        let key = format!("{CONTROLLER} {}/poison", scene.namespace);
        ensure!(
            named.contains(&format!("~{key}")),
            "the third death does not name {key}: {named:?}"
        );
        let (_, said) = scene.explain().await?;
        ensure!(said["quarantine"]["state"] == "quarantined", "{said}");
        ensure!(scene.quarantined().await? >= 1.0);
        let events: Api<Event> = Api::namespaced(scene.client.clone(), &scene.namespace);
        let of_it = "involvedObject.name=poison,reason=ReconcileQuarantined";
        until("an event says so", PATIENCE, POLL, || async {
            let events = events.list(&ListParams::default().fields(of_it)).await?;
            Ok((!events.items.is_empty()).then_some(()))
        })
        .await?;

        // It kills alone, and is held back from here on. All others are scaled meanwhile.
        let last = scene.kill().await?;
        let since = Instant::now();
        let two = Patch::Merge(json!({"spec": {"replicas": 2}}));
        for name in &names {
            deployments
                .patch(name, &PatchParams::default(), &two)
                .await?;
        }
        for name in &names {
            complete(&deployments, name, 2).await?;
        }
        let served = since.elapsed();
        let said = until("it is held back", TAKEN_OVER, POLL, || async {
            let said = scene.explain().await.map(|(_, said)| said);
            Ok(said
                .ok()
                .filter(|said| said["quarantine"]["state"] == "held back"))
        })
        .await?;
        ensure!(said["state"] == "quarantined", "{said}");
        ensure!(
            said["quarantine"]["held_back_seconds"].as_i64() > Some(0),
            "{said}"
        );
        println!(
            "quarantine: {last} died alone; all others were scaled within {served:.1?}; {}",
            said["quarantine"]
        );

        // Mended: its turn comes at once.
        scene.passes.store(true, Ordering::Relaxed);
        // The judge knows what Deployments want, and so this one's number stays as it is.
        let mended = Patch::Merge(json!({"spec": {"minReadySeconds": 1}}));
        sets.patch("poison", &PatchParams::default(), &mended)
            .await?;
        until("it is served", PATIENCE, POLL, || async {
            let status = sets.get("poison").await?.status.unwrap_or_default();
            Ok((status.replicas == 1).then_some(()))
        })
        .await?;
        until("it is released", PATIENCE, POLL, || async {
            Ok((scene.quarantined().await? == 0.0).then_some(()))
        })
        .await?;
        judge(&scene.control_plane, "quarantine")
            .map(|_| ())
            .with_context(|| format!("killed: {killed:?}, then {last}"))
    });
}
