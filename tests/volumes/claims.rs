//! Thousands of claims of one class at once, beside upstream's manager: each gets a volume of its own, with
//! no more writes, in no more time.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use harness::{ControlPlane, run_test, until};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
};
use serde_json::json;

use crate::support::{POLL, all_end_well, alone, fleet_of};

const PAIRS: usize = 2_000;
const CLASS: &str = "many";
/// Requests of the test at once.
const AT_ONCE: usize = 20;
const LIMIT: Duration = Duration::from_secs(600);
/// Neither manager may be held back by its own limits, nor by controllers that nobody needs here.
const FLAGS: [&str; 3] = [
    "--controllers=persistentvolume-binder-controller",
    "--kube-api-qps=5000",
    "--kube-api-burst=5000",
];
/// How many times upstream's time it may take, and what a read of all claims may add.
const SLACK: f64 = 1.0;
const READ: Duration = Duration::from_secs(2);
const MANAGERS: [&str; 2] = [
    "system:kube-controller-manager",
    "system:serviceaccount:kube-system:",
];

/// What binding all took.
#[derive(Debug)]
struct Taken {
    time: Duration,
    /// Granted writes to claims and volumes.
    writes: usize,
    /// Those that were refused.
    refused: usize,
}

async fn make_volumes(client: &Client) -> Result<()> {
    let api: Api<PersistentVolume> = Api::all(client.clone());
    stream::iter(0..PAIRS)
        .map(|number| {
            let api = api.clone();
            async move {
                let name = format!("volume-{number}");
                let volume = serde_json::from_value(json!({
                    "metadata": {"name": name},
                    "spec": {
                        "storageClassName": CLASS,
                        "capacity": {"storage": "1Gi"},
                        "accessModes": ["ReadWriteOnce"],
                        "persistentVolumeReclaimPolicy": "Retain",
                        "csi": {"driver": "csi.example.com", "volumeHandle": name},
                    },
                }))?;
                api.create(&PostParams::default(), &volume).await?;
                anyhow::Ok(())
            }
        })
        .buffer_unordered(AT_ONCE)
        .try_collect::<Vec<()>>()
        .await?;
    until("all volumes are available", LIMIT, POLL, || async {
        let volumes = api.list(&ListParams::default()).await?.items;
        let available = volumes.iter().filter(|volume| {
            let status = volume.status.as_ref();
            status.and_then(|status| status.phase.as_deref()) == Some("Available")
        });
        let available = available.count();
        ensure!(available == PAIRS, "{available} are");
        Ok(Some(()))
    })
    .await
}

async fn make_claims(api: &Api<PersistentVolumeClaim>) -> Result<()> {
    stream::iter(0..PAIRS)
        .map(|number| async move {
            let claim = serde_json::from_value(json!({
                "metadata": {"name": format!("claim-{number}")},
                "spec": {
                    "storageClassName": CLASS,
                    "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": "1Gi"}},
                },
            }))?;
            api.create(&PostParams::default(), &claim).await?;
            anyhow::Ok(())
        })
        .buffer_unordered(AT_ONCE)
        .try_collect::<Vec<()>>()
        .await?;
    Ok(())
}

/// Each claim names a volume that points back at it, and no two name the same.
async fn check_pairs(client: &Client, claims: &Api<PersistentVolumeClaim>) -> Result<()> {
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let volumes = volumes.list(&ListParams::default()).await?.items;
    let volumes: BTreeMap<String, PersistentVolume> = volumes
        .into_iter()
        .map(|volume| (volume.metadata.name.clone().unwrap_or_default(), volume))
        .collect();
    let mut named = BTreeSet::new();
    for claim in claims.list(&ListParams::default()).await?.items {
        let name = claim.metadata.name.clone().unwrap_or_default();
        let volume = claim.spec.and_then(|spec| spec.volume_name);
        let volume = volume.with_context(|| format!("{name} names no volume"))?;
        let to = volumes[&volume].spec.as_ref();
        let to = to.and_then(|spec| spec.claim_ref.as_ref());
        let to = to.with_context(|| format!("{volume} points at no claim"))?;
        ensure!(
            to.uid == claim.metadata.uid,
            "{volume} points at {:?}, and {name} names it",
            to.name
        );
        ensure!(named.insert(volume.clone()), "{volume} is named twice");
    }
    ensure!(named.len() == PAIRS, "{} are bound", named.len());
    Ok(())
}

/// Binds all under the manager that runs.
async fn bind_all(control_plane: &ControlPlane, who: &str) -> Result<Taken> {
    let client = control_plane.client().await?;
    let namespace = control_plane.namespace("many").await?;
    make_volumes(&client).await?;
    let mut audit = control_plane.audit();
    audit.read(|_| {})?;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &namespace);
    let began = Instant::now();
    make_claims(&claims).await?;
    until("all claims are bound", LIMIT, POLL, || async {
        let claims = claims.list(&ListParams::default()).await?.items;
        let bound = claims.iter().filter(|claim| {
            let status = claim.status.as_ref();
            status.and_then(|status| status.phase.as_deref()) == Some("Bound")
        });
        let bound = bound.count();
        ensure!(bound == PAIRS, "{bound} are");
        Ok(Some(()))
    })
    .await?;
    let time = began.elapsed();
    check_pairs(&client, &claims).await?;
    let (mut writes, mut refused) = (0, 0);
    audit.read(|record| {
        let user = &record.user.username;
        let of_binding = record.object().resource.starts_with("persistentvolume");
        let by_manager = MANAGERS.iter().any(|manager| user.starts_with(manager));
        if record.stage == "ResponseComplete" && record.is_write() && of_binding && by_manager {
            match record.code() {
                Some(200..300) => writes += 1,
                _ => refused += 1,
            }
        }
    })?;
    let taken = Taken {
        time,
        writes,
        refused,
    };
    println!("volumes: {who}: {PAIRS} claims: {taken:.2?}");
    Ok(taken)
}

async fn bed() -> Result<ControlPlane> {
    ControlPlane::builder().nodes(1).start().await
}

#[test]
#[ignore = "minutes: cargo parity"]
fn two_thousand_claims_of_one_class_are_bound_one_to_one_no_slower_than_by_upstream() {
    let _alone = alone();
    run_test(async {
        let theirs = {
            let control_plane = bed().await?;
            let _kcm = control_plane.start_kcm(&FLAGS).await?;
            bind_all(&control_plane, "kcm").await?
        };
        for replicas in [1, 3] {
            let control_plane = bed().await?;
            let fleet = fleet_of(&control_plane, &FLAGS).await?;
            let mut running = fleet.start_all(replicas).await?;
            let who = format!("manifold, {replicas} replicas");
            let ours = bind_all(&control_plane, &who).await?;
            all_end_well(&mut running).await?;
            ensure!(
                ours.refused <= ours.writes / 10,
                "{who}: {} of {} writes were refused",
                ours.refused,
                ours.writes + ours.refused
            );
            ensure!(
                ours.time <= theirs.time.mul_f64(SLACK) + READ,
                "{who}: {:?}, upstream {:?}",
                ours.time,
                theirs.time
            );
            ensure!(
                ours.writes <= theirs.writes,
                "{who}: {} writes, upstream {}",
                ours.writes,
                theirs.writes
            );
        }
        Ok(())
    });
}
