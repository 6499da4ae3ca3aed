//! Migration of stored versions: owners are killed while they are at work, and what etcd holds afterwards is
//! of the new version, to the last object.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use harness::{AuditLog, ControlPlane, Fleet, Replica, run_test, until};
use kube::Client;
use serde_json::{Value, json};

use crate::support::{PATIENCE, POLL, all_end_well, beside, fleet_of};

const REPLICAS: usize = 3;
/// Requests that make objects at once.
const AT_ONCE: usize = 50;
/// Where etcd has them.
const STORED: &str = "/registry/example.com/parts/";
const DEFINITION: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const PARTS: &str = "/apis/example.com/v1/namespaces/default/parts";
const MIGRATIONS: &str = "/apis/storagemigration.k8s.io/v1beta1/storageversionmigrations";
const ACCOUNT: &str = "system:serviceaccount:kube-system:storage-version-migrator-controller";
/// The migrator may send twenty times as many.
const CONTROLLERS: &str =
    "--controllers=garbage-collector-controller,storage-version-migrator-controller";
/// Takeovers, and what is done again.
const LIMIT: Duration = Duration::from_secs(300);

struct Migration {
    objects: usize,
    kills: usize,
    /// `--kube-api-qps`: the migrator writes twenty times as many a second.
    qps: usize,
}

async fn send(client: &Client, method: &str, path: &str, body: &Value) -> Result<Value> {
    let kind = match method {
        "PATCH" => "application/merge-patch+json",
        _ => "application/json",
    };
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("Content-Type", kind)
        .body(if body.is_null() {
            Vec::new()
        } else {
            serde_json::to_vec(body)?
        })?;
    client
        .request(request)
        .await
        .with_context(|| format!("{method} {path}"))
}

fn versions(storage: &str) -> Value {
    let version = |name: &str| {
        json!({
            "name": name, "served": true, "storage": name == storage,
            "schema": {"openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true,
            }},
        })
    };
    json!([version("v1"), version("v2")])
}

fn part(name: &str) -> Value {
    json!({
        "apiVersion": "example.com/v1", "kind": "Part",
        "metadata": {"name": name}, "spec": {"size": 1},
    })
}

/// How many of the objects in etcd are of each version.
async fn stored(control_plane: &ControlPlane) -> Result<(usize, usize)> {
    let (mut old, mut new) = (0, 0);
    for (key, bytes) in control_plane.stored(STORED).await? {
        let object: Value = serde_json::from_slice(&bytes).with_context(|| key.clone())?;
        match object["apiVersion"].as_str() {
            Some("example.com/v1") => old += 1,
            Some("example.com/v2") => new += 1,
            other => anyhow::bail!("{key} is of {other:?}"),
        }
    }
    Ok((old, new))
}

async fn prepare(control_plane: &ControlPlane, client: &Client, objects: usize) -> Result<usize> {
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "parts.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"kind": "Part", "plural": "parts"},
            "versions": versions("v1"),
        },
    });
    send(client, "POST", DEFINITION, &definition).await?;
    until("parts are served", PATIENCE, POLL, || async {
        Ok(send(client, "GET", PARTS, &Value::Null).await.ok())
    })
    .await?;
    stream::iter(0..objects)
        .map(|number| async move {
            send(client, "POST", PARTS, &part(&format!("part-{number:05}"))).await
        })
        .buffer_unordered(AT_ONCE)
        .try_collect::<Vec<_>>()
        .await?;
    let path = format!("{DEFINITION}/parts.example.com");
    let change = json!({"spec": {"versions": versions("v2")}});
    send(client, "PATCH", &path, &change).await?;
    // The server stores in the new version some time after it has taken the definition.
    let tried = Mutex::new(0_usize);
    until("the new version is stored", PATIENCE, POLL, || async {
        let number = {
            let mut tried = tried.lock().unwrap_or_else(PoisonError::into_inner);
            *tried += 1;
            *tried
        };
        send(client, "POST", PARTS, &part(&format!("probe-{number}"))).await?;
        let (_, new) = stored(control_plane).await?;
        Ok((new > 0).then_some(()))
    })
    .await?;
    Ok(objects + tried.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Who has stored objects again, in order.
fn workers(audit: &mut AuditLog, seen: &mut Vec<String>) -> Result<()> {
    audit.read(|record| {
        let object = record.object();
        if record.verb == "patch" && object.resource == "parts" && record.user.username == ACCOUNT {
            seen.extend(record.agent().map(|agent| agent.replica));
        }
    })
}

/// Kills the replica that is at work, each time after it has done something.
async fn kill(
    control_plane: &ControlPlane,
    fleet: &Fleet,
    replicas: &mut [Replica],
    kills: usize,
) -> Result<usize> {
    let mut audit = control_plane.audit();
    let mut seen = Vec::new();
    let mut killed = 0;
    let began = Instant::now();
    while killed < kills && began.elapsed() < LIMIT {
        let before = seen.len();
        workers(&mut audit, &mut seen)?;
        if let Some(name) = seen.get(before..).and_then(<[String]>::last)
            && let Some(index) = replicas.iter().position(|replica| replica.name() == name)
        {
            replicas[index].kill();
            replicas[index] = fleet.start(index)?;
            killed += 1;
            println!("migration: killed {name} after {} objects", seen.len());
            // What it has sent may be logged late.
            tokio::time::sleep(Duration::from_secs(1)).await;
            workers(&mut audit, &mut seen)?;
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(killed)
}

fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    let conditions = object["status"]["conditions"].as_array();
    let found = conditions.and_then(|all| all.iter().find(|one| one["type"] == kind));
    found.map_or(&Value::Null, |one| &one["status"])
}

async fn migrate(migration: Migration) -> Result<()> {
    let control_plane = ControlPlane::builder()
        .nodes(1)
        .api_server_arg("--feature-gates=StorageVersionMigrator=true")
        .api_server_arg("--runtime-config=storagemigration.k8s.io/v1beta1=true")
        .start()
        .await?;
    let client = control_plane.client().await?;
    let objects = prepare(&control_plane, &client, migration.objects).await?;
    let (old, _) = stored(&control_plane).await?;
    ensure!(old >= migration.objects, "{old} are of the old version");

    let qps = format!("--kube-api-qps={}", migration.qps);
    let fleet = fleet_of(
        &control_plane,
        &[
            CONTROLLERS,
            "--feature-gates=StorageVersionMigrator=true",
            &qps,
            "--kube-api-burst=1",
        ],
    )
    .await?;
    let mut replicas = fleet.start_all(REPLICAS).await?;
    let wanted = json!({
        "apiVersion": "storagemigration.k8s.io/v1beta1", "kind": "StorageVersionMigration",
        "metadata": {"name": "parts"},
        "spec": {"resource": {"group": "example.com", "resource": "parts"}},
    });
    let since = Instant::now();
    send(&client, "POST", MIGRATIONS, &wanted).await?;
    let killed = kill(&control_plane, &fleet, &mut replicas, migration.kills).await?;
    let path = format!("{MIGRATIONS}/parts");
    until("the migration has succeeded", LIMIT, POLL, || async {
        let now = send(&client, "GET", &path, &Value::Null).await?;
        ensure!(
            *condition(&now, "Failed") == Value::Null,
            "it has failed: {now}"
        );
        ensure!(*condition(&now, "Succeeded") == "True", "{}", now["status"]);
        // When success is written, nothing of the old version may be left.
        let (old, new) = stored(&control_plane).await?;
        ensure!(
            old == 0,
            "{old} of {} are of the old version, yet it succeeded",
            old + new
        );
        Ok(Some(()))
    })
    .await?;
    let took = since.elapsed();
    let end = until("the migration is over", PATIENCE, POLL, || async {
        let now = send(&client, "GET", &path, &Value::Null).await?;
        ensure!(*condition(&now, "Running") == "False", "{}", now["status"]);
        Ok(Some(now))
    })
    .await?;
    let (old, new) = stored(&control_plane).await?;
    ensure!(
        (old, new) == (0, objects),
        "{old} old and {new} new ones of {objects}"
    );
    let path = format!("{DEFINITION}/parts.example.com");
    let definition = send(&client, "GET", &path, &Value::Null).await?;
    ensure!(
        definition["status"]["storedVersions"] == json!(["v2"]),
        "{}",
        definition["status"]
    );
    ensure!(*condition(&definition, "StorageMigrating") == "False");

    let (mut statuses, mut again, mut others) = (0, 0, Vec::new());
    control_plane.audit().read(|record| {
        if record.user.username != ACCOUNT || record.stage != "ResponseComplete" {
            return;
        }
        let (object, code) = (record.object(), record.code().unwrap_or(0));
        match (&*object.resource, code) {
            ("storageversionmigrations", 200) if record.is_write() => statuses += 1,
            ("parts", 200) if record.is_write() => again += 1,
            // What a killed owner had in flight is recorded as timed out, a list as failed.
            (_, 200 | 409 | 504) => {}
            (_, 500) if !record.is_write() => {}
            (resource, code) => others.push(format!("{} {resource} {code}", record.verb)),
        }
    })?;
    println!(
        "migration: {objects} objects in {took:.1?}, {killed} owners killed, {again} rewrites granted, {statuses} status writes"
    );
    ensure!(killed == migration.kills, "only {killed} were killed");
    // Running, the version, the end, and that it does not run any more.
    ensure!(
        statuses == 4,
        "{statuses} writes of the status: {}",
        end["status"]
    );
    ensure!(others.is_empty(), "{others:?}");
    all_end_well(&mut replicas).await
}

#[test]
fn no_object_is_left_in_the_old_version_though_owners_die() {
    let _beside = beside();
    run_test(migrate(Migration {
        objects: 400,
        kills: 1,
        qps: 2,
    }));
}

#[test]
#[ignore = "minutes: cargo parity"]
fn ten_thousand_objects_are_migrated_though_owners_die() {
    let _beside = beside();
    run_test(migrate(Migration {
        objects: 10_000,
        kills: 4,
        qps: 10,
    }));
}
