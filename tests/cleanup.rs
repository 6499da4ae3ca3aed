//! Garbage and namespaces, beside upstream's manager: nothing is left, nothing with a living owner is deleted, and it
//! takes no longer.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use harness::{ControlPlane, Fleet, Replica, run_test, until};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use crate::support::{PATIENCE, POLL, alone, beside, complete, create, deployment};

const DEPLOYMENTS: usize = 20;
const PODS: u32 = 20;
const NAMESPACES: usize = 10;
/// With a Deployment, its ReplicaSet and its pods they are 50 objects a namespace.
const CONFIG_MAPS: usize = 38;
const NAMESPACE_PODS: u32 = 10;
const REPLICAS: usize = 3;
/// A kind that is made at run time is looked after within this time.
const NEW_KIND: Duration = Duration::from_secs(5);
/// Neither manager may be held back by its own limits.
const NO_LIMITS: [&str; 2] = ["--kube-api-qps=5000", "--kube-api-burst=5000"];
const AT_ONCE: usize = 20;

/// How long each deletion took until nothing was left.
#[derive(Debug)]
struct Times {
    background: Duration,
    foreground: Duration,
    namespaces: Duration,
}

async fn fleet(control_plane: &ControlPlane) -> Result<(Fleet, Vec<Replica>)> {
    let mut builder = control_plane
        .fleet()
        .arg("--use-service-account-credentials=true");
    for limit in NO_LIMITS {
        builder = builder.arg(limit);
    }
    let fleet = builder.build().await?;
    let replicas = fleet.start_all(REPLICAS).await?;
    Ok((fleet, replicas))
}

fn uids(pods: &[Pod]) -> BTreeSet<String> {
    pods.iter()
        .filter_map(|pod| pod.metadata.uid.clone())
        .collect()
}

/// Deletes all Deployments but one that stays, and waits until nothing of them is left.
async fn delete_deployments(
    client: &Client,
    namespace: &str,
    how: &DeleteParams,
) -> Result<Duration> {
    let api: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let names: Vec<String> = (0..DEPLOYMENTS)
        .map(|number| format!("web-{number}"))
        .collect();
    for name in &names {
        create(&api, deployment(name, PODS)).await?;
    }
    create(&api, deployment("stays", PODS)).await?;
    for name in names.iter().map(String::as_str).chain(["stays"]) {
        complete(&api, name, i32::try_from(PODS)?).await?;
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let staying = ListParams::default().labels("app=stays");
    let before = uids(&pods.list(&staying).await?.items);
    ensure!(before.len() == PODS as usize, "{} pods stay", before.len());

    let began = Instant::now();
    stream::iter(&names)
        .map(|name| api.delete(name, how))
        .buffer_unordered(AT_ONCE)
        .try_collect::<Vec<_>>()
        .await?;
    let others = ListParams::default().labels("app!=stays");
    let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), namespace);
    until(
        "nothing is left of the Deployments",
        PATIENCE,
        POLL,
        || async {
            let left = [
                api.list_metadata(&others).await?.items.len(),
                sets.list_metadata(&others).await?.items.len(),
                pods.list_metadata(&others).await?.items.len(),
            ];
            // What stays has no such label itself; its Deployment is one of the first.
            let only_stays = left == [1, 0, 0];
            ensure!(
                only_stays,
                "Deployments, ReplicaSets and pods left: {left:?}"
            );
            Ok(Some(()))
        },
    )
    .await?;
    let took = began.elapsed();
    let after = uids(&pods.list(&staying).await?.items);
    ensure!(before == after, "pods of a living Deployment were deleted");
    api.delete("stays", &DeleteParams::background()).await?;
    until("nothing is left at all", PATIENCE, POLL, || async {
        let left = pods
            .list_metadata(&ListParams::default())
            .await?
            .items
            .len();
        ensure!(left == 0, "{left} pods left");
        Ok(Some(()))
    })
    .await?;
    Ok(took)
}

/// Fills namespaces, deletes them all at once, and waits until they are gone.
async fn delete_namespaces(client: &Client, prefix: &str) -> Result<Duration> {
    let api: Api<Namespace> = Api::all(client.clone());
    let names: Vec<String> = (0..NAMESPACES)
        .map(|number| format!("{prefix}-{number}"))
        .collect();
    for name in &names {
        let namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        api.create(&PostParams::default(), &namespace).await?;
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), name);
        stream::iter(0..CONFIG_MAPS)
            .map(|number| {
                let maps = maps.clone();
                async move {
                    let map = json!({"metadata": {"name": format!("map-{number}")}});
                    let map = serde_json::from_value(map)?;
                    maps.create(&PostParams::default(), &map).await?;
                    anyhow::Ok(())
                }
            })
            .buffer_unordered(AT_ONCE)
            .try_collect::<Vec<()>>()
            .await?;
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), name);
        create(&deployments, deployment("web", NAMESPACE_PODS)).await?;
    }
    for name in &names {
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), name);
        complete(&deployments, "web", i32::try_from(NAMESPACE_PODS)?).await?;
    }
    let began = Instant::now();
    for name in &names {
        api.delete(name, &DeleteParams::default()).await?;
    }
    until("all namespaces are gone", PATIENCE, POLL, || async {
        let left = api.list_metadata(&ListParams::default()).await?.items;
        let left = left
            .iter()
            .filter(|one| {
                one.metadata
                    .name
                    .as_ref()
                    .is_some_and(|name| names.contains(name))
            })
            .count();
        ensure!(left == 0, "{left} namespaces are left");
        Ok(Some(()))
    })
    .await?;
    Ok(began.elapsed())
}

async fn measure(control_plane: &ControlPlane, who: &str) -> Result<Times> {
    let client = control_plane.client().await?;
    let namespace = control_plane.namespace(who).await?;
    let times = Times {
        background: delete_deployments(&client, &namespace, &DeleteParams::background()).await?,
        foreground: delete_deployments(&client, &namespace, &DeleteParams::foreground()).await?,
        namespaces: delete_namespaces(&client, &format!("{who}-full")).await?,
    };
    println!("cleanup: {who}: {times:.2?}");
    Ok(times)
}

#[test]
fn everything_is_cleared_up_no_slower_than_upstream_does() {
    let _alone = alone();
    run_test(async {
        let control_plane = ControlPlane::builder().nodes(5).start().await?;
        let theirs = {
            let _kcm = control_plane.start_kcm(&NO_LIMITS).await?;
            measure(&control_plane, "kcm").await?
        };
        let (_fleet, _replicas) = fleet(&control_plane).await?;
        let ours = measure(&control_plane, "manifold").await?;
        for (what, ours, theirs) in [
            ("background", ours.background, theirs.background),
            ("foreground", ours.foreground, theirs.foreground),
            ("namespaces", ours.namespaces, theirs.namespaces),
        ] {
            let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
            println!("cleanup: {what}: {ratio:.2} of upstream's time");
            // This build is not optimised, and a look takes its time.
            ensure!(
                ours <= theirs.mul_f64(1.5) + Duration::from_secs(1),
                "{what}: {ours:?}, upstream {theirs:?}"
            );
        }
        Ok(())
    });
}

#[test]
fn orphans_stay_and_know_no_owner() {
    let _beside = beside();
    run_test(async {
        let control_plane = ControlPlane::builder().start().await?;
        let client = control_plane.client().await?;
        let (_fleet, _replicas) = fleet(&control_plane).await?;
        let namespace = control_plane.namespace("orphans").await?;
        let api: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
        create(&api, deployment("web", 5)).await?;
        complete(&api, "web", 5).await?;
        let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        let before = uids(&pods.list(&ListParams::default()).await?.items);
        api.delete("web", &DeleteParams::orphan()).await?;
        until("the Deployment is gone", PATIENCE, POLL, || async {
            let left = api.list_metadata(&ListParams::default()).await?.items;
            ensure!(left.is_empty(), "it is still there");
            Ok(Some(()))
        })
        .await?;
        let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), &namespace);
        let set = sets.list(&ListParams::default()).await?.items;
        let set = set.first().context("the ReplicaSet is gone")?;
        ensure!(
            set.metadata
                .owner_references
                .as_ref()
                .is_none_or(Vec::is_empty),
            "it still names its owner"
        );
        let after = uids(&pods.list(&ListParams::default()).await?.items);
        ensure!(before == after, "pods were deleted");
        Ok(())
    });
}

fn definition(plural: &str, kind: &str, versions: &serde_json::Value) -> serde_json::Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.example.com")},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind},
            "versions": versions,
        },
    })
}

fn version(name: &str, storage: bool) -> serde_json::Value {
    json!({
        "name": name,
        "served": true,
        "storage": storage,
        "schema": {"openAPIV3Schema": {"type": "object"}},
    })
}

async fn apply(control_plane: &ControlPlane, object: &serde_json::Value) -> Result<()> {
    let text = object.to_string();
    until("it is applied", PATIENCE, POLL, || async {
        control_plane.kubectl_with_input(&["apply"], &text).await?;
        Ok(Some(()))
    })
    .await
}

async fn uid(control_plane: &ControlPlane, namespace: &str, what: &str) -> Result<String> {
    let arguments = [
        "-n",
        namespace,
        "get",
        what,
        "-o",
        "jsonpath={.metadata.uid}",
    ];
    control_plane.kubectl(&arguments).await
}

fn owned(
    namespace: &str,
    (api_version, kind, name): (&str, &str, &str),
    owner: (&str, &str, &str, &str),
) -> serde_json::Value {
    json!({
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "ownerReferences": [{"apiVersion": owner.0, "kind": owner.1, "name": owner.2, "uid": owner.3}],
        },
    })
}

/// Waits until the server has none of these.
async fn gone(
    control_plane: &ControlPlane,
    namespace: &str,
    what: &[&str],
    limit: Duration,
) -> Result<()> {
    until(&format!("{what:?} are gone"), limit, POLL, || async {
        let mut arguments = vec!["-n", namespace, "get", "--ignore-not-found", "-o", "name"];
        arguments.extend(what);
        let left = control_plane.kubectl(&arguments).await?;
        ensure!(left.trim().is_empty(), "left: {left}");
        Ok(Some(()))
    })
    .await
}

#[test]
fn kinds_made_at_run_time_own_and_are_owned_and_a_broken_one_holds_back_no_other() {
    let _beside = beside();
    run_test(async {
        let control_plane = ControlPlane::builder().start().await?;
        let (_fleet, replicas) = fleet(&control_plane).await?;
        let namespace = control_plane.namespace("kinds").await?;
        let space = namespace.as_str();

        // ConfigMap → Gadget → ConfigMap.
        apply(
            &control_plane,
            &definition("gadgets", "Gadget", &json!([version("v1", true)])),
        )
        .await?;
        let made = Instant::now();
        apply(&control_plane, &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "top", "namespace": space}})).await?;
        let top = uid(&control_plane, space, "configmap/top").await?;
        let gadget = owned(
            space,
            ("example.com/v1", "Gadget", "middle"),
            ("v1", "ConfigMap", "top", &top),
        );
        apply(&control_plane, &gadget).await?;
        let middle = uid(&control_plane, space, "gadget/middle").await?;
        let leaf = owned(
            space,
            ("v1", "ConfigMap", "leaf"),
            ("example.com/v1", "Gadget", "middle", &middle),
        );
        apply(&control_plane, &leaf).await?;
        control_plane
            .kubectl(&["-n", space, "delete", "configmap", "top"])
            .await?;
        gone(&control_plane, space, &["gadget/middle"], NEW_KIND).await?;
        gone(&control_plane, space, &["configmap/leaf"], NEW_KIND).await?;
        println!(
            "cleanup: a new kind was looked after {:.2?} after it was made",
            made.elapsed()
        );

        // A kind whose objects nobody can read any more: its preferred version needs a webhook that is not there.
        apply(
            &control_plane,
            &definition("widgets", "Widget", &json!([version("v1", true)])),
        )
        .await?;
        let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "one", "namespace": space}});
        apply(&control_plane, &widget).await?;
        let mut broken = definition(
            "widgets",
            "Widget",
            &json!([version("v2", false), version("v1", true)]),
        );
        broken["spec"]["conversion"] = json!({
            "strategy": "Webhook",
            "webhook": {
                "conversionReviewVersions": ["v1"],
                "clientConfig": {"url": "https://127.0.0.1:1/convert"},
            },
        });
        apply(&control_plane, &broken).await?;
        until("the broken kind is named", PATIENCE, POLL, || async {
            for replica in &replicas {
                let text = replica.text("/readyz?verbose").await?;
                ensure!(
                    text.contains("[~]widgets.example.com are not watched"),
                    "{text}"
                );
                let metrics = replica.text("/metrics").await?;
                ensure!(
                    metrics.contains("manifold_discovery_failing{name=\"widgets.example.com\"} 1"),
                    "it is in no metric"
                );
            }
            Ok(Some(()))
        })
        .await?;
        let client = control_plane.client().await?;
        let api: Api<Deployment> = Api::namespaced(client.clone(), space);
        let pods: Api<Pod> = Api::namespaced(client.clone(), space);
        for how in [DeleteParams::background(), DeleteParams::foreground()] {
            create(&api, deployment("web", 5)).await?;
            complete(&api, "web", 5).await?;
            let began = Instant::now();
            api.delete("web", &how).await?;
            until(
                "the rest is collected all the same",
                PATIENCE,
                POLL,
                || async {
                    let left = pods
                        .list_metadata(&ListParams::default())
                        .await?
                        .items
                        .len();
                    let owner = api.list_metadata(&ListParams::default()).await?.items.len();
                    ensure!(left == 0 && owner == 0, "{left} pods left");
                    Ok(Some(()))
                },
            )
            .await?;
            println!("cleanup: beside a broken kind: {:.2?}", began.elapsed());
        }
        Ok(())
    });
}
