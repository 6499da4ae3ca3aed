//! Garbage and namespaces, beside upstream's manager: nothing is left, nothing with a living owner is
//! deleted, and it takes no longer.

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

use crate::support::{
    PATIENCE, POLL, Unrest, all_end_well, alone, beside, complete, create, deployment, fleet_of,
};

/// How much is deleted.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    deployments: usize,
    /// Of each Deployment.
    pods: u32,
    namespaces: usize,
    /// For anything that is awaited.
    limit: Duration,
    /// How many times upstream's time it may take.
    slack: f64,
}

/// For `cargo verify`, whose build is not optimised.
const FEW: Sizes = Sizes {
    deployments: 20,
    pods: 20,
    namespaces: 10,
    limit: PATIENCE,
    slack: 1.5,
};
const MANY: Sizes = Sizes {
    deployments: 50,
    pods: 100,
    namespaces: 100,
    limit: Duration::from_secs(600),
    slack: 1.0,
};
/// This many Deployments are made before they are awaited.
const MADE_AT_ONCE: usize = 10;
const NODES: usize = 5;
const PODS_PER_NODE: usize = 2_000;
/// Meanwhile ranges move every second, and a replica is killed every 20 s.
const UNREST: Unrest = Unrest {
    moved: 8,
    kill_every: Duration::from_secs(20),
    kills_max: usize::MAX,
};
/// With a Deployment, its ReplicaSet and its pods they are 50 objects a namespace.
const CONFIG_MAPS: usize = 38;
const NAMESPACE_PODS: u32 = 10;
const REPLICAS: usize = 3;
/// A kind that is made at run time is found within this time.
const NEW_KIND: Duration = Duration::from_secs(5);
/// Neither manager may be held back by its own limits.
const NO_LIMITS: [&str; 2] = ["--kube-api-qps=5000", "--kube-api-burst=5000"];
const AT_ONCE: usize = 20;
/// A cluster with many operators, and what the graph may hold for each of their objects.
const KINDS: usize = 30;
const OBJECTS: usize = 20_000;
const OBJECT_BYTES: f64 = 600.0;
/// Their group.
const CUSTOM: &str = "example.com";

/// How long each deletion took until nothing was left.
#[derive(Debug)]
struct Times {
    background: Duration,
    foreground: Duration,
    namespaces: Duration,
}

async fn fleet(control_plane: &ControlPlane) -> Result<(Fleet, Vec<Replica>)> {
    let fleet = fleet_of(control_plane, &NO_LIMITS).await?;
    let replicas = fleet.start_all(REPLICAS).await?;
    Ok((fleet, replicas))
}

fn uids(pods: &[Pod]) -> BTreeSet<String> {
    pods.iter()
        .filter_map(|pod| pod.metadata.uid.clone())
        .collect()
}

/// Waits until the server has none of these. It is asked for one alone: thousands would hold it up.
async fn none_left<K>(api: &Api<K>, which: ListParams, limit: Duration) -> Result<()>
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let one = which.limit(1);
    let what = format!("no {} are left", K::plural(&()));
    until(&what, limit, POLL, || async {
        let left = api.list_metadata(&one).await?.items;
        ensure!(left.is_empty(), "{:?} is", left[0].metadata.name);
        Ok(Some(()))
    })
    .await
}

/// Deletes all Deployments but one that stays, and waits until nothing of them is left.
async fn delete_deployments(
    client: &Client,
    namespace: &str,
    sizes: &Sizes,
    how: &DeleteParams,
) -> Result<Duration> {
    let api: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let mut names: Vec<String> = (0..sizes.deployments)
        .map(|number| format!("web-{number}"))
        .collect();
    names.push("stays".to_owned());
    for some in names.chunks(MADE_AT_ONCE) {
        for name in some {
            create(&api, deployment(name, sizes.pods)).await?;
        }
        for name in some {
            complete(&api, name, i32::try_from(sizes.pods)?).await?;
        }
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let staying = ListParams::default().labels("app=stays");
    let before = uids(&pods.list(&staying).await?.items);
    ensure!(
        before.len() == sizes.pods as usize,
        "{} pods stay",
        before.len()
    );

    let began = Instant::now();
    stream::iter(names.iter().filter(|name| *name != "stays"))
        .map(|name| api.delete(name, how))
        .buffer_unordered(AT_ONCE)
        .try_collect::<Vec<_>>()
        .await?;
    let others = ListParams::default().labels("app!=stays");
    let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), namespace);
    // Deployments have no such label themselves.
    let other_names = ListParams::default().fields("metadata.name!=stays");
    none_left(&pods, others.clone(), sizes.limit).await?;
    none_left(&sets, others, sizes.limit).await?;
    none_left(&api, other_names, sizes.limit).await?;
    let took = began.elapsed();
    let after = uids(&pods.list(&staying).await?.items);
    ensure!(before == after, "pods of a living Deployment were deleted");
    api.delete("stays", &DeleteParams::background()).await?;
    none_left(&pods, ListParams::default(), sizes.limit).await?;
    Ok(took)
}

/// Fills namespaces, deletes them all at once, and waits until they are gone.
async fn delete_namespaces(client: &Client, prefix: &str, sizes: &Sizes) -> Result<Duration> {
    let api: Api<Namespace> = Api::all(client.clone());
    let names: Vec<String> = (0..sizes.namespaces)
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
    until("all namespaces are gone", sizes.limit, POLL, || async {
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

async fn measure(control_plane: &ControlPlane, who: &str, sizes: &Sizes) -> Result<Times> {
    let client = control_plane.client().await?;
    let namespace = control_plane.namespace(who).await?;
    let (background, foreground) = (DeleteParams::background(), DeleteParams::foreground());
    let times = Times {
        background: delete_deployments(&client, &namespace, sizes, &background).await?,
        foreground: delete_deployments(&client, &namespace, sizes, &foreground).await?,
        namespaces: delete_namespaces(&client, &format!("{who}-full"), sizes).await?,
    };
    println!("cleanup: {who}: {times:.2?}");
    Ok(times)
}

async fn bed() -> Result<ControlPlane> {
    ControlPlane::builder()
        .nodes(NODES)
        .pods_per_node(PODS_PER_NODE)
        .start()
        .await
}

fn beside_upstream(sizes: &Sizes) {
    run_test(async {
        // Each on a control plane of its own, as the bench does it: neither works beside what the other one
        // has left.
        let theirs = {
            let control_plane = bed().await?;
            let _kcm = control_plane.start_kcm(&NO_LIMITS).await?;
            measure(&control_plane, "kcm", sizes).await?
        };
        let control_plane = bed().await?;
        let (_fleet, _replicas) = fleet(&control_plane).await?;
        let ours = measure(&control_plane, "manifold", sizes).await?;
        let compared = [
            ("background", ours.background, theirs.background),
            ("foreground", ours.foreground, theirs.foreground),
            ("namespaces", ours.namespaces, theirs.namespaces),
        ];
        for (what, ours, theirs) in compared {
            let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
            println!("cleanup: {what}: {ratio:.2} of upstream's time");
        }
        for (what, ours, theirs) in compared {
            // A read takes its time.
            ensure!(
                ours <= theirs.mul_f64(sizes.slack) + Duration::from_secs(1),
                "{what}: {ours:?}, upstream {theirs:?}"
            );
        }
        Ok(())
    });
}

#[test]
fn everything_is_cleared_up_no_slower_than_upstream_does() {
    let _alone = alone();
    beside_upstream(&FEW);
}

#[test]
#[ignore = "minutes: cargo parity"]
fn much_is_cleared_up_no_slower_than_upstream_does() {
    let _alone = alone();
    beside_upstream(&MANY);
}

#[test]
#[ignore = "minutes: cargo parity"]
fn much_is_cleared_up_while_ranges_move_and_replicas_are_killed() {
    let _alone = alone();
    run_test(async {
        let control_plane = bed().await?;
        let client = control_plane.client().await?;
        let (fleet, mut replicas) = fleet(&control_plane).await?;
        let work = measure(&control_plane, "unrest", &MANY);
        let (_, moves, kills) = UNREST.during(work, &fleet, &mut replicas, &client).await?;
        println!("cleanup: {moves} moves and {kills} kills meanwhile");
        ensure!(moves > 0 && kills > 0, "nothing happened meanwhile");
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
        "metadata": {"name": format!("{plural}.{CUSTOM}")},
        "spec": {
            "group": CUSTOM,
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
        control_plane.apply_text(&text).await?;
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
            "cleanup: a new kind was found {:.2?} after it was made",
            made.elapsed()
        );

        // A kind whose objects nobody can read any more: its preferred version needs a webhook that is not
        // there.
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

/// Of this many starts each: where its pages fall, a replica takes up to 4 MB more or less.
const STARTS: usize = 3;

/// What a replica that has just started holds when it has read everything, in bytes; with this many custom
/// resources. The median of [`STARTS`].
async fn at_rest(fleet: &Fleet, objects: usize) -> Result<f64> {
    let mut held = Vec::new();
    for _ in 0..STARTS {
        held.push(after_start(fleet, objects).await?);
    }
    held.sort_by(f64::total_cmp);
    println!("cleanup: with {objects}: {held:.0?} bytes");
    Ok(held[STARTS / 2])
}

async fn after_start(fleet: &Fleet, objects: usize) -> Result<f64> {
    let mut replica = fleet.start(0)?;
    replica.wait_ready(PATIENCE).await?;
    until("all custom resources are known", PATIENCE, POLL, || async {
        let metrics = replica.metrics().await?;
        let known: f64 = metrics
            .select("manifold_cache_objects", &[])
            .filter(|sample| sample.labels.values().any(|name| name.contains(CUSTOM)))
            .map(|sample| sample.value)
            .sum();
        ensure!(known as usize == objects, "{known} of {objects} are");
        Ok(Some(()))
    })
    .await?;
    // The allocator gives pages back 10 s after it has last needed them.
    let mut least = f64::INFINITY;
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let metrics = replica.metrics().await?;
        let resident = metrics.sum("process_resident_memory_bytes", &[]);
        least = least.min(resident.context("no process_resident_memory_bytes")?);
    }
    all_end_well(std::slice::from_mut(&mut replica)).await?;
    Ok(least)
}

#[test]
#[ignore = "minutes: cargo parity"]
fn much_that_is_custom_costs_little_in_the_graph() {
    let _alone = alone();
    run_test(async {
        let control_plane = ControlPlane::builder().start().await?;
        let client = control_plane.client().await?;
        let namespace = control_plane.namespace("custom").await?;
        for number in 0..KINDS {
            let versions = json!([version("v1", true)]);
            let kind = definition(
                &format!("kind{number}s"),
                &format!("Kind{number}"),
                &versions,
            );
            apply(&control_plane, &kind).await?;
        }
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "owner", "namespace": namespace}});
        apply(&control_plane, &map).await?;
        let owner = uid(&control_plane, &namespace, "configmap/owner").await?;
        let fleet = control_plane.fleet().build().await?;
        let before = at_rest(&fleet, 0).await?;

        stream::iter(0..OBJECTS)
            .map(|number| {
                let (client, namespace, owner) = (client.clone(), &namespace, &owner);
                async move {
                    let kind = number % KINDS;
                    let name = format!("object-of-an-operator-{number}");
                    let object = owned(
                        namespace,
                        (&format!("{CUSTOM}/v1"), &format!("Kind{kind}"), &name),
                        ("v1", "ConfigMap", "owner", owner),
                    );
                    let path = format!("/apis/{CUSTOM}/v1/namespaces/{namespace}/kind{kind}s");
                    let request = http::Request::post(path)
                        .header("Content-Type", "application/json")
                        .body(object.to_string().into_bytes())?;
                    client.request_text(request).await?;
                    anyhow::Ok(())
                }
            })
            .buffer_unordered(AT_ONCE)
            .try_collect::<Vec<()>>()
            .await?;
        let after = at_rest(&fleet, OBJECTS).await?;
        let each = (after - before) / OBJECTS as f64;
        println!(
            "cleanup: {:.1} MB with {KINDS} kinds without objects, {:.1} MB with {OBJECTS}: {each:.0} bytes each",
            before / 1e6,
            after / 1e6
        );
        ensure!(
            each <= OBJECT_BYTES,
            "{each:.0} bytes for each custom resource"
        );
        Ok(())
    });
}
