//! The cloud controllers beside the reference provider: load balancers, routes and nodes follow the cluster
//! while replicas die, and a provider in trouble has nothing removed.

mod beside;
mod bridge;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use cloud_proto::{Route, refusal::Reason};
use cloud_provider::reference::{Fault, Reference, Serving};
use harness::control_plane::NO_KUBELET;
use harness::{ControlPlane, Fleet, Replica, run_test, until};
use k8s_openapi::api::core::v1::{Event, Node, Service};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use crate::support::{PATIENCE, POLL, Unrest, all_end_well, alone, beside, fleet_of};

const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";
const CLUSTER: &str = "kubernetes";
/// For what must not happen: several periods of the controllers.
const QUIET: Duration = Duration::from_secs(4);
const CALLS: [&str; 9] = [
    "GetLoadBalancer",
    "EnsureLoadBalancer",
    "UpdateLoadBalancer",
    "EnsureLoadBalancerDeleted",
    "InstanceExists",
    "InstanceShutdown",
    "ListRoutes",
    "CreateRoute",
    "DeleteRoute",
];

struct Scene {
    _control_plane: ControlPlane,
    cloud: Reference,
    socket: PathBuf,
    serving: Option<Serving>,
    client: Client,
    fleet: Fleet,
    replicas: Vec<Replica>,
    services: Api<Service>,
}

impl Scene {
    async fn new(replicas: usize) -> Result<Self> {
        let control_plane = ControlPlane::builder()
            .nodes(0)
            .kubelets_may_end()
            .start()
            .await?;
        let client = control_plane.client().await?;
        let cloud = Reference::new();
        let socket = control_plane.dir().path().join("cloud.sock");
        let serving = Some(cloud.serve(&socket)?);
        let endpoint = format!("--cloud-provider-endpoint=unix://{}", socket.display());
        let fleet = fleet_of(
            &control_plane,
            &[
                &endpoint,
                // The other controllers of nodes would taint nodes without kubelets.
                "--controllers=service,route,cloud-node-lifecycle",
                "--cluster-cidr=10.200.0.0/16",
                "--node-monitor-period=1s",
                "--route-reconciliation-period=1s",
                "--concurrent-service-syncs=5",
            ],
        )
        .await?;
        let replicas = fleet.start_all(replicas).await?;
        let namespace = control_plane.namespace("clouds").await?;
        Ok(Self {
            _control_plane: control_plane,
            cloud,
            socket,
            serving,
            services: Api::namespaced(client.clone(), &namespace),
            client,
            fleet,
            replicas,
        })
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    /// A machine and its ready node, with a block of addresses.
    async fn join(&self, number: usize) -> Result<String> {
        let name = format!("n{number}");
        self.cloud.machine(&name);
        let node = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {NO_KUBELET: "none"}},
            "spec": {"providerID": format!("reference://{name}"), "podCIDR": cidr(number), "podCIDRs": [cidr(number)]},
        }))?;
        self.nodes().create(&PostParams::default(), &node).await?;
        self.ready(&name, "True").await?;
        Ok(name)
    }

    async fn ready(&self, name: &str, status: &str) -> Result<()> {
        let now = jiff::Timestamp::now().to_string();
        let patch = json!({"status": {"conditions": [{
            "type": "Ready", "status": status, "reason": "Test", "message": "",
            "lastHeartbeatTime": now, "lastTransitionTime": now,
        }]}});
        self.nodes()
            .patch_status(name, &PatchParams::default(), &Patch::Strategic(patch))
            .await?;
        Ok(())
    }

    async fn balanced(&self, name: &str) -> Result<()> {
        let service = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"type": "LoadBalancer", "ports": [{"port": 80, "targetPort": 8080}]},
        }))?;
        self.services
            .create(&PostParams::default(), &service)
            .await?;
        Ok(())
    }

    /// Waits until a Service shows the address of its load balancer, and the cloud has it with these nodes.
    async fn is_balanced(&self, name: &str, nodes: &[&str]) -> Result<()> {
        let wanted: BTreeSet<String> = nodes.iter().map(|one| (*one).to_owned()).collect();
        let what = format!("{name} is balanced to {nodes:?}");
        until(&what, PATIENCE, POLL, || async {
            let service = self.services.get(name).await?;
            let key = format!("{}/{name}", service.metadata.namespace.unwrap_or_default());
            let found = self
                .cloud
                .balancers()
                .remove(&key)
                .context("it is not made")?;
            let status = service.status.and_then(|status| status.load_balancer);
            let shown = status.and_then(|status| status.ingress).unwrap_or_default();
            let shown = shown.first().and_then(|one| one.ip.clone());
            ensure!(shown.as_ref() == Some(&found.ip), "shown: {shown:?}");
            ensure!(found.nodes == wanted, "behind it: {:?}", found.nodes);
            let held = service.metadata.finalizers.unwrap_or_default();
            ensure!(held.contains(&FINALIZER.to_owned()), "held by {held:?}");
            Ok(Some(()))
        })
        .await
    }

    async fn has_routes(&self, numbers: &[usize]) -> Result<()> {
        let wanted: Vec<String> = numbers
            .iter()
            .map(|number| format!("n{number} {}", cidr(*number)))
            .collect();
        until("routes are those of the nodes", PATIENCE, POLL, || async {
            let mut found = self.cloud.routes();
            found.retain(|route| !route.starts_with("elsewhere"));
            ensure!(found == wanted, "{found:?}");
            let nodes = self.nodes().list(&ListParams::default()).await?.items;
            for node in nodes {
                let conditions = node.status.and_then(|status| status.conditions);
                let held = conditions
                    .into_iter()
                    .flatten()
                    .find(|one| one.type_ == "NetworkUnavailable");
                let reason = held.and_then(|one| one.reason);
                ensure!(reason.as_deref() == Some("RouteCreated"), "{reason:?}");
            }
            Ok(Some(()))
        })
        .await
    }

    async fn is_gone(&self, node: &str) -> Result<()> {
        until(&format!("{node} is deleted"), PATIENCE, POLL, || async {
            Ok(self.nodes().get_opt(node).await?.is_none().then_some(()))
        })
        .await
    }

    /// Kills a replica and starts it again.
    async fn kill(&mut self, index: usize) -> Result<()> {
        self.replicas[index].kill();
        self.replicas[index] = self.fleet.start(index)?;
        self.replicas[index].wait_ready(PATIENCE).await
    }

    async fn events(&self) -> Result<BTreeMap<String, usize>> {
        let events: Api<Event> = Api::all(self.client.clone());
        let mut reasons = BTreeMap::new();
        for event in events.list(&ListParams::default()).await?.items {
            *reasons.entry(event.reason.unwrap_or_default()).or_default() += 1;
        }
        Ok(reasons)
    }
}

fn cidr(number: usize) -> String {
    format!("10.200.{number}.0/24")
}

#[test]
fn a_cloud_follows_the_cluster_and_a_provider_in_trouble_has_nothing_removed() {
    let _beside = beside();
    run_test(async {
        let mut scene = Scene::new(2).await?;
        // A route of somebody else outside the cluster's ranges, and one of a node that is gone inside them.
        for (node, destination) in [("elsewhere", "10.9.0.0/24"), ("lost", "10.200.99.0/24")] {
            scene.cloud.put_route(
                CLUSTER,
                Route {
                    name: node.to_owned(),
                    target_node: node.to_owned(),
                    destination_cidr: destination.to_owned(),
                    ..Route::default()
                },
            );
        }
        scene.join(1).await?;
        scene.join(2).await?;
        scene.balanced("web").await?;
        scene.is_balanced("web", &["n1", "n2"]).await?;
        scene.has_routes(&[1, 2]).await?;

        scene.join(3).await?;
        scene.is_balanced("web", &["n1", "n2", "n3"]).await?;

        // Events are written behind: one that its recorder has not sent yet dies with it.
        until("the new hosts are reported", PATIENCE, POLL, || async {
            let events = scene.events().await?;
            Ok(events.contains_key("UpdatedLoadBalancer").then_some(()))
        })
        .await?;

        // A replica dies; what comes meanwhile is followed all the same.
        scene.replicas[0].kill();
        scene.join(4).await?;
        scene.is_balanced("web", &["n1", "n2", "n3", "n4"]).await?;
        scene.has_routes(&[1, 2, 3, 4]).await?;
        scene.replicas[0] = scene.fleet.start(0)?;

        // The provider is down, then answers nothing definite: nothing is removed.
        scene.cloud.fail(&CALLS, &Fault::Down);
        scene.cloud.terminate("n2");
        scene.cloud.shut_down("n3");
        scene.ready("n2", "Unknown").await?;
        scene.ready("n3", "False").await?;
        let refuse = Fault::Refuse(Reason::Failed, "injected".to_owned());
        for fault in [Fault::Down, Fault::Empty, refuse] {
            scene.cloud.fail(&CALLS, &fault);
            tokio::time::sleep(QUIET / 3).await;
        }
        scene
            .services
            .delete("web", &DeleteParams::default())
            .await?;
        scene.serving = None;
        tokio::time::sleep(QUIET).await;
        ensure!(scene.nodes().get_opt("n2").await?.is_some(), "n2 is gone");
        ensure!(
            scene.services.get_opt("web").await?.is_some(),
            "web is gone"
        );
        ensure!(
            scene.cloud.routes().len() == 5,
            "{:?}",
            scene.cloud.routes()
        );

        // It is back, and loses the first answers after the deed was done.
        scene.cloud.mend();
        for call in ["EnsureLoadBalancerDeleted", "DeleteRoute"] {
            scene.cloud.fault(call, Fault::LostAnswer, Some(1));
        }
        scene.serving = Some(scene.cloud.serve(&scene.socket)?);
        scene.is_gone("n2").await?;
        scene.has_routes(&[1, 3, 4]).await?;
        until("n3 is tainted", PATIENCE, POLL, || async {
            let spec = scene.nodes().get("n3").await?.spec.unwrap_or_default();
            let mut taints = spec.taints.into_iter().flatten();
            let found = taints.any(|one| one.key == "node.cloudprovider.kubernetes.io/shutdown");
            Ok(found.then_some(()))
        })
        .await?;
        until(
            "web and its load balancer are gone",
            PATIENCE,
            POLL,
            || async {
                let gone = scene.services.get_opt("web").await?.is_none();
                Ok((gone && scene.cloud.balancers().is_empty()).then_some(()))
            },
        )
        .await?;
        ensure!(
            scene.cloud.doubles().is_empty(),
            "{:?}",
            scene.cloud.doubles()
        );
        let reasons = [
            "EnsuringLoadBalancer",
            "EnsuredLoadBalancer",
            "UpdatedLoadBalancer",
            "SyncLoadBalancerFailed",
            "DeletingLoadBalancer",
            "DeletedLoadBalancer",
            "DeletingNode",
        ];
        // An event is sent after its write.
        until("all of it is reported", PATIENCE, POLL, || async {
            let events = scene.events().await?;
            for reason in reasons {
                ensure!(events.contains_key(reason), "no {reason} in {events:?}");
            }
            Ok(Some(()))
        })
        .await?;
        all_end_well(&mut scene.replicas).await
    });
}

/// Services and nodes of the long suite.
const MANY: usize = 30;
const REPLICAS: usize = 3;

#[test]
#[ignore = "minutes: cargo parity"]
fn many_load_balancers_and_routes_have_no_doubles_and_leave_nothing_while_replicas_die() {
    let _alone = alone();
    run_test(async {
        let mut scene = Scene::new(REPLICAS).await?;
        let unrest = Unrest {
            moved: 60,
            kill_every: Duration::from_secs(6),
            kills_max: 2 * REPLICAS,
        };
        let numbers: Vec<usize> = (0..MANY).collect();
        let names: Vec<String> = numbers.iter().map(|number| format!("n{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut replicas = std::mem::take(&mut scene.replicas);
        let work = async {
            for number in 0..MANY {
                scene.balanced(&format!("s{number}")).await?;
                scene.join(number).await?;
                for call in CALLS {
                    let fault = match number % 3 {
                        0 => Fault::LostAnswer,
                        1 => Fault::Slow(Duration::from_millis(700)),
                        _ => Fault::RetryAfter(Duration::from_secs(1)),
                    };
                    scene.cloud.fault(call, fault, Some(1));
                }
            }
            for number in 0..MANY {
                scene.is_balanced(&format!("s{number}"), &names).await?;
            }
            let mut sorted = numbers.clone();
            sorted.sort_by_key(|number| format!("n{number}"));
            scene.has_routes(&sorted).await?;
            // Half of the machines go, and all Services.
            for number in (0..MANY).step_by(2) {
                scene.cloud.terminate(&format!("n{number}"));
                scene.ready(&format!("n{number}"), "Unknown").await?;
            }
            for number in 0..MANY {
                let name = format!("s{number}");
                scene
                    .services
                    .delete(&name, &DeleteParams::default())
                    .await?;
            }
            for number in (0..MANY).step_by(2) {
                scene.is_gone(&format!("n{number}")).await?;
            }
            sorted.retain(|number| number % 2 == 1);
            scene.has_routes(&sorted).await?;
            until("no load balancer is left", PATIENCE, POLL, || async {
                let left = scene
                    .services
                    .list(&ListParams::default())
                    .await?
                    .items
                    .len();
                let balancers = scene.cloud.balancers().len();
                ensure!(
                    left + balancers == 0,
                    "{left} Services, {balancers} load balancers"
                );
                Ok(Some(()))
            })
            .await
        };
        let ((), moves, kills) = unrest
            .during(work, &scene.fleet, &mut replicas, &scene.client)
            .await?;
        ensure!(
            scene.cloud.doubles().is_empty(),
            "{:?}",
            scene.cloud.doubles()
        );
        let calls = scene.cloud.calls().len();
        println!("clouds: {calls} calls, {moves} moves, {kills} kills");
        scene.replicas = replicas;
        for index in 0..REPLICAS {
            scene.replicas[index].wait_ready(PATIENCE).await?;
        }
        scene.kill(0).await?;
        all_end_well(&mut scene.replicas).await
    });
}
