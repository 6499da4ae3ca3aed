//! Disruption budgets say under Manifold what they say under kube-controller-manager, and `kubectl drain`
//! follows them.

use std::collections::BTreeSet;
use std::time::Instant;

use anyhow::{Result, ensure};
use harness::{ControlPlane, run_test, until};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Event, Pod, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};

use crate::support::{PATIENCE, POLL, all_end_well, beside, complete, deployment, fleet};

/// Pods of the Deployment.
const SIZE: i32 = 5;

fn budget(name: &str, app: &str, spec: &Value) -> Value {
    let mut budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": {"app": app}}}
    });
    for (field, value) in spec.as_object().into_iter().flatten() {
        budget["spec"][field] = value.clone();
    }
    budget
}

fn lone(app: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": app, "labels": {"app": app}},
        "spec": {"containers": [{"name": "app", "image": "example/app:1"}]}
    })
}

fn job(name: &str) -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
        "spec": {"template": {
            "metadata": {"labels": {"app": name}},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "app", "image": "example/app:1"}]}
        }, "suspend": false, "parallelism": 2, "completions": 2}
    })
}

/// The pods of each namespace.
fn workloads(web: &str) -> Vec<Value> {
    let mut web_deployment = deployment(web, u32::try_from(SIZE).unwrap_or_default());
    // A drain waits for no grace.
    web_deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = json!(1);
    vec![web_deployment, lone("lone"), job("once")]
}

/// What is asked for them. Made when the pods are there: which budget sees none of them first would be
/// chance.
fn budgets_of(web: &str) -> Vec<Value> {
    vec![
        budget("least", web, &json!({"minAvailable": 2})),
        budget("most", web, &json!({"maxUnavailable": 1})),
        budget("half", web, &json!({"minAvailable": "50%"})),
        budget("third", web, &json!({"maxUnavailable": "34%"})),
        budget("beyond", web, &json!({"minAvailable": 9})),
        budget("nobody", "nobody", &json!({"maxUnavailable": 1})),
        budget("lone", "lone", &json!({"maxUnavailable": 1})),
        budget("once", "once", &json!({"maxUnavailable": 1})),
        budget(
            "lone-least",
            "lone",
            &json!({"minAvailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow"}),
        ),
        budget(
            "everything",
            "",
            &json!({"selector": {}, "minAvailable": 1}),
        ),
    ]
}

/// What each budget says: its status without times, and its events.
type Said = (String, Value, BTreeSet<String>);

async fn said(control_plane: &ControlPlane, namespace: &str) -> Result<Vec<Said>> {
    let client = control_plane.client().await?;
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), namespace);
    let events: Api<Event> = Api::namespaced(client, namespace);
    let all = events.list(&ListParams::default()).await?.items;
    let mut said = Vec::new();
    for budget in budgets.list(&ListParams::default()).await?.items {
        let name = budget.metadata.name.unwrap_or_default();
        let mut status = serde_json::to_value(budget.status)?;
        for condition in status["conditions"].as_array_mut().into_iter().flatten() {
            condition["lastTransitionTime"].take();
        }
        let reported = all
            .iter()
            .filter(|event| event.involved_object.name.as_ref() == Some(&name))
            .filter(|event| event.involved_object.kind.as_deref() == Some("PodDisruptionBudget"))
            .map(|event| {
                format!(
                    "{} {} {}",
                    event.type_.clone().unwrap_or_default(),
                    event.reason.clone().unwrap_or_default(),
                    event.message.clone().unwrap_or_default()
                )
            })
            .collect();
        said.push((name, status, reported));
    }
    Ok(said)
}

/// Makes everything, waits until it is at rest, and reads what is said; then drains a node.
async fn play(control_plane: &ControlPlane, web: &str) -> Result<(Vec<Said>, Vec<Said>)> {
    let namespace = control_plane.namespace("disruption").await?;
    let client = control_plane.client().await?;
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &namespace);
    until("pods may be made", PATIENCE, POLL, || async {
        Ok(accounts.get_opt("default").await?.map(|_| ()))
    })
    .await?;
    let list = json!({"apiVersion": "v1", "kind": "List", "items": workloads(web)});
    control_plane
        .kubectl_with_input(&["-n", &namespace, "create"], &list.to_string())
        .await?;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
    complete(&deployments, web, SIZE).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    until("the other pods have run", PATIENCE, POLL, || async {
        let lone = pods
            .get("lone")
            .await?
            .status
            .and_then(|status| status.phase);
        let once = pods
            .list(&ListParams::default().labels("app=once"))
            .await?
            .items;
        let done = once.len() == 2
            && once.iter().all(|pod| {
                let phase = pod
                    .status
                    .as_ref()
                    .and_then(|status| status.phase.as_deref());
                phase == Some("Succeeded")
            });
        Ok((lone.as_deref() == Some("Running") && done).then_some(()))
    })
    .await?;
    let list = json!({"apiVersion": "v1", "kind": "List", "items": budgets_of(web)});
    control_plane
        .kubectl_with_input(&["-n", &namespace, "create"], &list.to_string())
        .await?;
    let before = still(control_plane, &namespace).await?;

    // Budgets that would hold the drain for ever go.
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), &namespace);
    for name in ["least", "half", "third", "beyond", "everything"] {
        budgets.delete(name, &DeleteParams::default()).await?;
    }
    let node = pods
        .list(&ListParams::default().labels(&format!("app={web}")))
        .await?
        .items
        .iter()
        .find_map(|pod| pod.spec.as_ref()?.node_name.clone());
    let Some(node) = node else {
        anyhow::bail!("no pod is on a node");
    };
    let selector = format!("--pod-selector=app={web}");
    let args = [
        "drain",
        node.as_str(),
        "--ignore-daemonsets",
        &selector,
        "--timeout=90s",
    ];
    let drain = control_plane.kubectl(&args);
    let watched = async {
        loop {
            let status = budgets.get("most").await?.status.unwrap_or_default();
            let healthy = status.current_healthy.unwrap_or_default();
            ensure!(healthy >= SIZE - 1, "{healthy} of {SIZE} are healthy");
            tokio::time::sleep(POLL).await;
        }
    };
    let begun = Instant::now();
    let broken: Result<()> = tokio::select! {
        drained = drain => drained.map(|_| ()),
        broken = watched => broken,
    };
    broken?;
    println!("disruption: {node} was drained in {:?}", begun.elapsed());
    complete(&deployments, web, SIZE).await?;
    control_plane.kubectl(&["uncordon", &node]).await?;
    let left = pods
        .list(&ListParams::default().fields(&format!("spec.nodeName={node}")))
        .await?
        .items
        .into_iter()
        .filter(|pod| {
            let labels = pod.metadata.labels.as_ref();
            labels
                .and_then(|labels| labels.get("app"))
                .is_some_and(|app| *app == web)
        })
        .count();
    ensure!(left == 0, "{left} pods of {web} are still on {node}");
    let after = still(control_plane, &namespace).await?;
    Ok((before, after))
}

/// What is said when it has not changed for a while.
async fn still(control_plane: &ControlPlane, namespace: &str) -> Result<Vec<Said>> {
    let begun = Instant::now();
    let mut last = Vec::new();
    loop {
        let now = said(control_plane, namespace).await?;
        if now == last {
            return Ok(now);
        }
        ensure!(begun.elapsed() < PATIENCE, "it never is at rest: {now:?}");
        last = now;
        tokio::time::sleep(POLL * 40).await;
    }
}

/// What both must say, with the Deployment's name evened out.
fn even(said: &[Said], web: &str) -> String {
    format!("{said:#?}").replace(web, "WEB")
}

#[test]
fn budgets_say_the_same_and_drains_follow_them() {
    let _beside = beside();
    run_test(async {
        let control_plane = ControlPlane::builder().nodes(4).start().await?;
        let mut kcm = control_plane.start_kcm(&[]).await?;
        let theirs = play(&control_plane, "web-theirs").await?;
        kcm.process().terminate(PATIENCE).await?;

        let fleet = fleet(&control_plane).await?;
        let mut replicas = fleet.start_all(2).await?;
        let ours = play(&control_plane, "web-ours").await?;
        all_end_well(&mut replicas).await?;
        for (theirs, ours) in [(&theirs.0, &ours.0), (&theirs.1, &ours.1)] {
            let (theirs, ours) = (even(theirs, "web-theirs"), even(ours, "web-ours"));
            ensure!(theirs == ours, "theirs {theirs}\nours {ours}");
        }
        Ok(())
    });
}
