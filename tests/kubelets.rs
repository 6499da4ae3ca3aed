//! Real kubelets with real containers, under Manifold.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

use anyhow::{Result, ensure};
use harness::nodes::{IMAGE, Network, Node, can_run};
use harness::{ControlPlane, run_test, until};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node as NodeObject, Pod};
use kube::api::ListParams;
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::support::{PATIENCE, POLL, all_end_well, beside, complete, create, fleet_of};

const NODES: u8 = 2;
/// Of the Deployment: more than one for each node.
const PODS: u32 = 3;

/// Nodes that join at once, and no others; how long each took.
pub(crate) async fn join(
    network: &Network,
    control_plane: &ControlPlane,
    count: u8,
    kubelet: &Value,
) -> Result<Vec<Node>> {
    let names: Vec<String> = (0..count).map(|index| format!("real-{index}")).collect();
    let joins = (0..count)
        .zip(&names)
        .map(|(index, name)| network.join(control_plane, index, name, kubelet));
    let mut nodes = futures::future::try_join_all(joins).await?;
    for node in &mut nodes {
        node.wait_for_containers().await?;
    }
    Ok(nodes)
}

/// Waits until this many nodes are ready and have no taints.
pub(crate) async fn usable(client: &Client, count: usize) -> Result<()> {
    let nodes: Api<NodeObject> = Api::all(client.clone());
    until("the nodes are ready", PATIENCE, POLL, || async {
        let nodes = nodes.list(&ListParams::default()).await?.items;
        ensure!(nodes.len() == count, "{} nodes", nodes.len());
        for node in nodes {
            let name = node.metadata.name.unwrap_or_default();
            let conditions = node.status.and_then(|status| status.conditions);
            let mut conditions = conditions.unwrap_or_default().into_iter();
            let ready = conditions.find(|one| one.type_ == "Ready");
            let said = ready.as_ref().and_then(|one| one.message.clone());
            ensure!(
                ready.is_some_and(|one| one.status == "True"),
                "{name} is not ready: {said:?}"
            );
            let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
            ensure!(taints.is_empty(), "{name} has taints: {taints:?}");
        }
        Ok(Some(()))
    })
    .await
}

/// A Deployment whose containers say who they are, and serve that.
pub(crate) fn talking(name: &str, replicas: u32) -> Value {
    let script = "echo I am $(cat /etc/hostname); mkdir /tmp/www; cat /etc/hostname >/tmp/www/index.html; \
                  exec httpd -f -p 8080 -h /tmp/www";
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{
                        "name": "app",
                        "image": IMAGE,
                        "imagePullPolicy": "Never",
                        "command": ["sh", "-c", script],
                        "readinessProbe": {
                            "httpGet": {"path": "/", "port": 8080},
                            "periodSeconds": 1,
                        },
                    }],
                },
            },
        },
    })
}

#[test]
fn pods_of_a_deployment_are_real_containers_on_real_nodes() {
    if !can_run("kubelets: pods_of_a_deployment_are_real_containers_on_real_nodes") {
        return;
    }
    let _beside = beside();
    run_test(async {
        let mut network = Network::start().await?;
        let control_plane = ControlPlane::builder()
            .nodes(0)
            .real_nodes(&network)
            .start()
            .await?;
        network
            .forward(SocketAddr::from((
                Ipv4Addr::LOCALHOST,
                control_plane.port(),
            )))
            .await?;
        let client = control_plane.client().await?;
        let fleet = fleet_of(&control_plane, &[]).await?;
        let mut replicas = fleet.start_all(1).await?;

        let began = Instant::now();
        let nodes = join(&network, &control_plane, NODES, &json!({})).await?;
        usable(&client, NODES.into()).await?;
        let joined = began.elapsed();

        let namespace = control_plane.namespace("real").await?;
        let began = Instant::now();
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
        create(&deployments, talking("web", PODS)).await?;
        complete(&deployments, "web", PODS.try_into()?).await?;
        let ran = began.elapsed();

        let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        let pods = pods.list(&ListParams::default()).await?.items;
        let at = |pod: &Pod| {
            let spec = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
            let status = pod.status.as_ref().and_then(|one| one.pod_ip.clone());
            let name = pod.metadata.name.clone().unwrap_or_default();
            (name, spec.unwrap_or_default(), status.unwrap_or_default())
        };
        let pods: Vec<(String, String, String)> = pods.iter().map(at).collect();
        let kubectl = |args: &[&str]| {
            let args: Vec<String> = ["-n", &namespace]
                .iter()
                .chain(args)
                .map(|arg| (*arg).to_owned())
                .collect();
            let control_plane = &control_plane;
            async move {
                let args: Vec<&str> = args.iter().map(String::as_str).collect();
                control_plane.kubectl(&args).await
            }
        };
        for (name, ..) in &pods {
            let said = kubectl(&["logs", name]).await?;
            ensure!(said == format!("I am {name}\n"), "{name} says {said:?}");
        }
        // From each to each, over nodes.
        for (from, ..) in &pods {
            for (to, _, address) in &pods {
                let url = format!("http://{address}:8080/");
                let said = kubectl(&["exec", from, "--", "wget", "-q", "-O", "-", &url]).await?;
                ensure!(said == format!("{to}\n"), "{url} says {said:?} to {from}");
            }
        }

        let cut = &nodes[0];
        let there = pods.iter().find(|(_, node, _)| node == cut.name());
        let Some((there, ..)) = there else {
            anyhow::bail!("no pod is on {}", cut.name());
        };
        cut.cut_off().await?;
        let limit = ["--request-timeout=2s", "logs", there.as_str()];
        ensure!(
            kubectl(&limit).await.is_err(),
            "{} is still reached",
            cut.name()
        );
        cut.reconnect().await?;
        until("the node is reached again", PATIENCE, POLL, || async {
            kubectl(&["logs", there]).await.map(Some)
        })
        .await?;
        println!(
            "kubelets: {NODES} nodes joined in {:.1} s, {PODS} containers ran in {:.1} s",
            joined.as_secs_f64(),
            ran.as_secs_f64()
        );
        all_end_well(&mut replicas).await
    });
}
