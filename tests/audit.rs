//! What the API server's audit log proves of replicas that come, go, hang and die while Deployments
//! grow, roll out and shrink.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use harness::{ControlPlane, Fleet, Replica, run_test};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::support::{
    PATIENCE, POLL, Watcher, alone, beside, complete, create, deployment, ended_well, fleet, judge,
    judged,
};

/// Scaled up and nothing else: never a pod beyond wanted.
const GROWING: usize = 8;
/// Rolled out, scaled down and up again.
const RESTLESS: usize = 4;
const REVISION: &str = "deployment.kubernetes.io/revision";
/// Longer than a lease: a paused replica is taken for dead, and wakes up to find so.
const HANG: Duration = Duration::from_secs(8);

/// Three replicas of a fleet, and who watches what they own.
async fn three(control_plane: &ControlPlane) -> Result<(Fleet, Vec<Replica>, Watcher)> {
    let fleet = fleet(control_plane).await?;
    let replicas = fleet.start_all(3).await?;
    let mut watcher = Watcher::new(control_plane.client().await?, fleet.ranges());
    for replica in &replicas {
        watcher.add(replica)?;
    }
    Ok((fleet, replicas, watcher))
}

async fn create_growing(api: &Api<Deployment>) -> Result<()> {
    for index in 0..GROWING {
        create(api, deployment(&format!("growing-{index}"), 2)).await?;
    }
    Ok(())
}

async fn patch(api: &Api<Deployment>, prefix: &str, count: usize, change: Value) -> Result<()> {
    for index in 0..count {
        let name = format!("{prefix}-{index}");
        api.patch(
            &name,
            &PatchParams::default(),
            &Patch::Merge(change.clone()),
        )
        .await?;
    }
    Ok(())
}

async fn grow(api: &Api<Deployment>, replicas: u32) -> Result<()> {
    patch(
        api,
        "growing",
        GROWING,
        json!({"spec": {"replicas": replicas}}),
    )
    .await
}

async fn roll(api: &Api<Deployment>, image: &str, replicas: u32) -> Result<()> {
    let change = json!({"spec": {"replicas": replicas, "template": {"spec": {
        "containers": [{"name": "app", "image": image}]}}}});
    patch(api, "restless", RESTLESS, change).await
}

/// Each restless Deployment has a ReplicaSet of its newest template: one that is replaced before its owner
/// has seen it gets none.
async fn revised(api: &Api<Deployment>, revision: &str) -> Result<()> {
    for index in 0..RESTLESS {
        let name = format!("restless-{index}");
        harness::until("its template has a ReplicaSet", PATIENCE, POLL, || async {
            let annotations = api.get(&name).await?.metadata.annotations;
            let is = annotations.and_then(|all| all.get(REVISION).cloned());
            ensure!(is.as_deref() == Some(revision), "{name}: revision {is:?}");
            Ok(Some(()))
        })
        .await?;
    }
    Ok(())
}

async fn grown(api: &Api<Deployment>, replicas: i32) -> Result<()> {
    for index in 0..GROWING {
        complete(api, &format!("growing-{index}"), replicas).await?;
    }
    Ok(())
}

async fn all_complete(api: &Api<Deployment>, growing: i32, restless: i32) -> Result<()> {
    grown(api, growing).await?;
    for index in 0..RESTLESS {
        complete(api, &format!("restless-{index}"), restless).await?;
    }
    Ok(())
}

/// A Job that is finished, and may go at once.
async fn finished_job(jobs: &Api<Job>) -> Result<()> {
    let job = json!({
        "metadata": {"name": "done"},
        "spec": {"ttlSecondsAfterFinished": 0, "template": {"spec": {
            "restartPolicy": "Never", "containers": [{"name": "app", "image": "example/app:1"}]}}},
    });
    jobs.create(&PostParams::default(), &serde_json::from_value(job)?)
        .await?;
    let now = jiff::Timestamp::now()
        .round(jiff::Unit::Second)?
        .to_string();
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastProbeTime": now, "lastTransitionTime": now});
    let status = json!({"status": {
        "startTime": now, "completionTime": now, "succeeded": 1, "uncountedTerminatedPods": {},
        "conditions": [condition("SuccessCriteriaMet"), condition("Complete")],
    }});
    jobs.patch_status("done", &PatchParams::default(), &Patch::Merge(status))
        .await?;
    harness::until("the finished Job is deleted", PATIENCE, POLL, || async {
        let left = jobs.get_opt("done").await?;
        // Nobody runs who would take the finalizer of a foreground deletion away.
        let going = left.is_none_or(|job| job.metadata.deletion_timestamp.is_some());
        Ok(going.then_some(()))
    })
    .await
}

#[test]
fn the_log_shows_one_owner_at_a_time_and_nothing_made_twice() {
    let _beside = beside();
    run_test(async {
        let control_plane = judged().await?;
        let (fleet, mut replicas, mut watcher) = three(&control_plane).await?;
        let client = control_plane.client().await?;
        let namespace = control_plane.namespace("audit").await?;
        let api: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
        create_growing(&api).await?;
        for index in 0..RESTLESS {
            create(&api, deployment(&format!("restless-{index}"), 4)).await?;
        }
        finished_job(&Api::namespaced(client, &namespace)).await?;
        all_complete(&api, 2, 4).await?;

        // One dies in the middle of the work, one joins, one leaves, one hangs and wakes up.
        grow(&api, 5).await?;
        replicas[2].kill();
        watcher.remove(replicas[2].name());
        roll(&api, "example/app:2", 6).await?;
        let mut fourth = fleet.start(3)?;
        fourth.wait_ready(PATIENCE).await?;
        watcher.add(&fourth)?;
        grow(&api, 8).await?;
        all_complete(&api, 8, 6).await?;
        watcher
            .settled("three share", Instant::now(), PATIENCE)
            .await?;

        grow(&api, 12).await?;
        replicas[1].pause()?;
        roll(&api, "example/app:3", 2).await?;
        tokio::time::sleep(HANG).await;
        revised(&api, "3").await?;
        grow(&api, 16).await?;
        replicas[1].resume()?;
        roll(&api, "example/app:1", 5).await?;
        all_complete(&api, 16, 5).await?;
        replicas[1].check()?;
        watcher
            .settled("three share again", Instant::now(), PATIENCE)
            .await?;

        grow(&api, 20).await?;
        fourth.ask_to_end()?;
        watcher.remove(fourth.name());
        ended_well(&mut fourth).await?;
        all_complete(&api, 20, 5).await?;
        watcher
            .settled("two share", Instant::now(), PATIENCE)
            .await?;

        let verdict = judge(&control_plane, "audit")?;
        ensure!(
            verdict.only_grown == GROWING,
            "{} only grew",
            verdict.only_grown
        );
        ensure!(verdict.pods >= 20 * GROWING + 4 * RESTLESS);
        // Three templates each; the first is come back to, and its ReplicaSet used again.
        ensure!(
            verdict.replica_sets == GROWING + 3 * RESTLESS,
            "{} ReplicaSets",
            verdict.replica_sets
        );
        ensure!(
            verdict.changes > 0,
            "no write before and after a move: nothing was shown"
        );
        Ok(())
    });
}

/// How often two of three are stopped: without a check of the fence in the socket, one time in ten something
/// came late.
const STOPS: u32 = 20;

#[test]
#[ignore = "minutes: cargo parity"]
fn what_a_replica_was_about_to_send_when_it_was_stopped_never_comes() {
    let _alone = alone();
    run_test(async {
        let control_plane = judged().await?;
        let (_fleet, mut replicas, watcher) = three(&control_plane).await?;
        let client = control_plane.client().await?;
        let namespace = control_plane.namespace("stopped").await?;
        let api: Api<Deployment> = Api::namespaced(client, &namespace);
        create_growing(&api).await?;
        for stop in 0..STOPS {
            watcher
                .settled("three share", Instant::now(), PATIENCE)
                .await?;
            let wanted = if stop % 2 == 0 { 52 } else { 2 };
            grow(&api, wanted).await?;
            // At another point of the work each time.
            tokio::time::sleep(Duration::from_millis(u64::from(stop % 10) * 4)).await;
            let (one, other) = ((stop % 3) as usize, ((stop + 1) % 3) as usize);
            for index in [one, other] {
                replicas[index].pause()?;
            }
            tokio::time::sleep(HANG).await;
            for index in [one, other] {
                replicas[index].resume()?;
            }
            grown(&api, i32::try_from(wanted)?).await?;
        }
        let verdict = judge(&control_plane, "audit")?;
        ensure!(verdict.changes > 0, "nothing moved: nothing was shown");
        Ok(())
    });
}
