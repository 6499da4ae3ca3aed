//! Quotas, beside upstream's manager: admission lets in what it says, and what is used is exact at rest.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use controllers_kit::{Plan, Verb};
use futures::{StreamExt, stream};
use harness::{ControlPlane, run_test, until};
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client};
use kubernetes_proto::{
    DynObject,
    core::{ConfigMap, PodFromTemplate},
    envelope,
    meta::ObjectMeta,
};
use serde_json::{Value, json};

use crate::support::{PATIENCE, POLL, all_end_well, alone, beside, fleet_of};

/// Pods that are allowed.
const ALLOWED: usize = 100;
/// Creations that are tried.
const TRIED: usize = 500;
/// This many of them at once.
const AT_ONCE: usize = 50;
/// Pods that go while others come.
const DELETED: usize = 40;
/// Pods more than upstream lets in while some go. One that reckons just between admission's charge and the
/// pod's creation reports too little, under either manager: this many are under way at once.
const RACE_MAX: usize = AT_ONCE;
const REPLICAS: usize = 3;
const NO_LIMITS: [&str; 2] = ["--kube-api-qps=5000", "--kube-api-burst=5000"];
/// A kind that is made at run time is counted within this time: it is watched within five seconds where the
/// machine is not busy, listed, and all quotas are examined. Upstream only searches for it every thirty.
const NEW_KIND: Duration = Duration::from_secs(15);

fn quota(name: &str, hard: &Value) -> Result<ResourceQuota> {
    Ok(serde_json::from_value(
        json!({"metadata": {"name": name}, "spec": {"hard": hard}}),
    )?)
}

/// What a quota reports of one limit.
async fn used(quotas: &Api<ResourceQuota>, name: &str, limit: &str) -> Result<Option<String>> {
    let status = quotas.get(name).await?.status.unwrap_or_default();
    let used = status.used.unwrap_or_default();
    Ok(used.get(limit).map(|amount| amount.0.clone()))
}

async fn is_used(
    quotas: &Api<ResourceQuota>,
    name: &str,
    limit: &str,
    wanted: usize,
    within: Duration,
) -> Result<()> {
    let what = format!("{wanted} of {limit} are reported");
    until(&what, within, POLL, || async {
        let reported = used(quotas, name, limit).await?;
        ensure!(
            reported.as_deref() == Some(&wanted.to_string()),
            "reported: {reported:?}"
        );
        Ok(Some(()))
    })
    .await
}

/// Nothing happens to it but what is done here.
fn pod(name: &str) -> Result<Pod> {
    Ok(serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "schedulingGates": [{"name": "example.com/hand"}],
            "containers": [{"name": "app", "image": "example/app:1"}],
        },
    }))?)
}

/// Tries to make this many pods; how many were let in. Whatever refuses one is no error: quotas do, and so do
/// conflicts over them.
async fn make(pods: &Api<Pod>, prefix: &str) -> Result<usize> {
    let made = stream::iter(0..TRIED)
        .map(|number| async move {
            let pod = pod(&format!("{prefix}-{number}"))?;
            Ok(pods.create(&PostParams::default(), &pod).await.is_ok())
        })
        .buffer_unordered(AT_ONCE)
        .collect::<Vec<Result<bool>>>()
        .await;
    let mut count = 0;
    for one in made {
        count += usize::from(one?);
    }
    Ok(count)
}

async fn names(pods: &Api<Pod>) -> Result<Vec<String>> {
    let items = pods.list_metadata(&ListParams::default()).await?.items;
    Ok(items
        .into_iter()
        .filter_map(|pod| pod.metadata.name)
        .collect())
}

/// How many pods were let in at first, and how many there were after some had gone while others came. What is
/// used is exact again soon where that is asked for: upstream leaves out what was being made until its next
/// full reckoning.
async fn crowd(
    client: &Client,
    control_plane: &ControlPlane,
    who: &str,
    exact: bool,
) -> Result<(usize, usize)> {
    let namespace = control_plane.namespace(who).await?;
    let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), &namespace);
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let accounts = ["-n", &namespace, "get", "serviceaccount", "default"];
    until("pods are admitted", PATIENCE, POLL, || async {
        Ok(control_plane.kubectl(&accounts).await.ok())
    })
    .await?;
    let hard = json!({"pods": ALLOWED.to_string()});
    quotas
        .create(&PostParams::default(), &quota("all", &hard)?)
        .await?;
    is_used(&quotas, "all", "pods", 0, PATIENCE).await?;

    let first = make(&pods, "first").await?;
    is_used(&quotas, "all", "pods", first, PATIENCE).await?;

    let going: Vec<String> = names(&pods).await?.into_iter().take(DELETED).collect();
    let at_once = DeleteParams::default().grace_period(0);
    let go = async {
        for name in &going {
            pods.delete(name, &at_once).await?;
        }
        anyhow::Ok(())
    };
    let (gone, made) = tokio::join!(go, make(&pods, "second"));
    gone?;
    made?;
    if exact {
        is_used(&quotas, "all", "pods", names(&pods).await?.len(), PATIENCE).await?;
    }
    // What admission has refused for want of a fresh count is let in when that is there.
    make(&pods, "third").await?;
    let count = names(&pods).await?.len();
    if exact {
        is_used(&quotas, "all", "pods", count, PATIENCE).await?;
    }

    for name in names(&pods).await? {
        pods.delete(&name, &at_once).await?;
    }
    is_used(&quotas, "all", "pods", 0, PATIENCE).await?;
    println!("quota: {who}: {first} at first, {count} after {DELETED} had gone");
    Ok((first, count))
}

#[test]
#[ignore = "minutes: cargo parity"]
fn no_more_is_let_in_than_under_upstream_and_what_is_used_is_exact_at_rest() {
    let _alone = alone();
    run_test(async {
        let control_plane = ControlPlane::builder().start().await?;
        let client = control_plane.client().await?;
        let theirs = {
            let mut kcm = control_plane.start_kcm(&NO_LIMITS).await?;
            let theirs = crowd(&client, &control_plane, "kcm", false).await?;
            kcm.process().kill();
            theirs
        };
        let fleet = fleet_of(&control_plane, &NO_LIMITS).await?;
        let mut replicas = fleet.start_all(REPLICAS).await?;
        let ours = crowd(&client, &control_plane, "manifold", true).await?;
        ensure!(
            theirs.0 == ALLOWED && ours.0 == ALLOWED,
            "of {TRIED} pods {ours:?} were let in, {theirs:?} under upstream"
        );
        ensure!(
            ours.1 >= ALLOWED && ours.1 <= theirs.1.max(ALLOWED) + RACE_MAX,
            "there are {} pods of {ALLOWED}; under upstream there were {}",
            ours.1,
            theirs.1
        );
        all_end_well(&mut replicas).await?;
        Ok(())
    });
}

/// In the place of bytes that are no text in what is encoded.
const MARK: &[u8] = b"<??>";

/// Creates an object as a client of protobuf does, its annotation being no UTF-8.
async fn create_odd(client: &Client, path: &str, kind: &str, mut raw: Vec<u8>) -> Result<()> {
    let place = raw.windows(MARK.len()).position(|window| window == MARK);
    let place = place.context("there is no mark")?;
    raw[place..place + MARK.len()].copy_from_slice(&[0xff, 0xfe, 0xe2, 0x82]);
    let request = http::Request::post(path)
        .header("content-type", envelope::PROTOBUF)
        .header("accept", "application/json")
        .body(envelope::wrap("v1", kind, raw).into())?;
    let answer = client.send(request).await?;
    ensure!(answer.status().is_success(), "{kind}: {}", answer.status());
    Ok(())
}

#[test]
fn objects_with_texts_that_are_not_utf_8_are_counted_and_their_namespace_can_end() {
    let _beside = beside();
    run_test(async {
        let control_plane = ControlPlane::builder().start().await?;
        let client = control_plane.client().await?;
        let fleet = fleet_of(&control_plane, &NO_LIMITS).await?;
        let _replicas = fleet.start_all(REPLICAS).await?;
        let namespace = control_plane.namespace("odd").await?;
        for needed in ["serviceaccount/default", "configmap/kube-root-ca.crt"] {
            let get = ["-n", &namespace, "get", needed];
            until(
                "what every namespace has is there",
                PATIENCE,
                POLL,
                || async { Ok(control_plane.kubectl(&get).await.ok()) },
            )
            .await?;
        }

        let mut meta = ObjectMeta {
            name: "odd".into(),
            namespace: namespace.as_str().into(),
            ..ObjectMeta::default()
        };
        meta.set_annotation("note", str::from_utf8(MARK)?);
        let mut plan = Plan::nothing();
        let pod = PodFromTemplate {
            metadata: Some(meta.clone()),
            // One container: its name, its image.
            spec: b"\x12\x06\x0a\x01c\x12\x01i".to_vec(),
        };
        let Verb::Create { body } = &controllers_kit::pods::create(&mut plan, &pod).verb else {
            bail!("a creation creates");
        };
        let path = format!("/api/v1/namespaces/{namespace}");
        create_odd(&client, &format!("{path}/pods"), "Pod", body.clone()).await?;
        let map = ConfigMap {
            metadata: Some(meta),
            ..ConfigMap::default()
        };
        let body = DynObject::encode(&map);
        create_odd(&client, &format!("{path}/configmaps"), "ConfigMap", body).await?;

        // Admission has not charged for what was there before the quota: it is counted by the controller
        // alone.
        let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), &namespace);
        let hard = json!({"pods": "9", "count/configmaps": "9"});
        quotas
            .create(&PostParams::default(), &quota("all", &hard)?)
            .await?;
        is_used(&quotas, "all", "pods", 1, PATIENCE).await?;
        // Beside the one with the root certificate.
        is_used(&quotas, "all", "count/configmaps", 2, PATIENCE).await?;

        let end = ["delete", "namespace", &namespace, "--wait=false"];
        control_plane.kubectl(&end).await?;
        until("the namespace is gone", PATIENCE, POLL, || async {
            let get = [
                "get",
                "namespace",
                &namespace,
                "--ignore-not-found",
                "-o",
                "name",
            ];
            let left = control_plane.kubectl(&get).await?;
            ensure!(left.trim().is_empty(), "left: {left}");
            Ok(Some(()))
        })
        .await
    });
}

#[test]
fn a_kind_that_is_made_later_is_counted() {
    let _beside = beside();
    run_test(async {
        let control_plane = ControlPlane::builder().start().await?;
        let client = control_plane.client().await?;
        let fleet = fleet_of(&control_plane, &NO_LIMITS).await?;
        let _replicas = fleet.start_all(REPLICAS).await?;
        let namespace = control_plane.namespace("later").await?;
        let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), &namespace);
        let hard = json!({"count/gadgets.example.com": "9", "configmaps": "9"});
        quotas
            .create(&PostParams::default(), &quota("all", &hard)?)
            .await?;
        until("what is known is reported", PATIENCE, POLL, || async {
            used(&quotas, "all", "configmaps").await
        })
        .await?;
        ensure!(
            used(&quotas, "all", "count/gadgets.example.com")
                .await?
                .is_none(),
            "gadgets are reported, though there are none"
        );

        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "gadgets.example.com"},
            "spec": {
                "group": "example.com",
                "scope": "Namespaced",
                "names": {"plural": "gadgets", "singular": "gadget", "kind": "Gadget"},
                "versions": [{"name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": {"type": "object"}}}],
            },
        });
        control_plane.apply_text(&definition.to_string()).await?;
        is_used(&quotas, "all", "count/gadgets.example.com", 0, NEW_KIND).await?;

        for name in ["one", "two"] {
            let gadget = json!({
                "apiVersion": "example.com/v1",
                "kind": "Gadget",
                "metadata": {"name": name, "namespace": namespace},
            });
            let text = gadget.to_string();
            until("a gadget is made", PATIENCE, POLL, || async {
                control_plane.apply_text(&text).await?;
                Ok(Some(()))
            })
            .await?;
        }
        let delete = ["-n", &namespace, "delete", "gadget", "one"];
        control_plane.kubectl(&delete).await?;
        is_used(&quotas, "all", "count/gadgets.example.com", 1, PATIENCE).await
    });
}
