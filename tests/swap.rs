//! From upstream's manager to Manifold and back: what is at rest stays at rest, and what is in motion comes
//! to the end that it comes to under upstream alone.

use std::time::Duration;

use anyhow::{Result, ensure};
use harness::{AuditRecord, ControlPlane, Replica, run_test, until};
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use serde_json::json;

use crate::parity::{self, Difference, Side};
use crate::support::{
    PATIENCE, POLL, all_end_well, beside, complete, create, deployment, fleet, judged,
};

/// How long nothing may happen, in `cargo verify` and in the long run.
const REST: Duration = Duration::from_secs(20);
const LONG_REST: Duration = Duration::from_secs(60);
const DEPLOYMENTS: usize = 10;
const PODS: i32 = 3;
const MANAGER: &str = "system:kube-controller-manager";
const CONTROLLERS: &str = "system:serviceaccount:kube-system:";

/// The manager's Lease: each of the two records an event at it when it has acquired it.
const LEASE: &str = "kube-controller-manager";
/// Upstream's manager releases its Lease at its end only with this gate.
const RELEASES: &str = "--feature-gates=ControllerManagerReleaseLeaderElectionLockOnExit=true";

/// Asks for no change of the cluster: Leases, and who a caller is. Upstream's binder reports every 15 seconds
/// of a claim that nobody provisions, one that ran before it.
fn is_own_business(record: &AuditRecord) -> bool {
    let resource = record.resource();
    let waits = record.user.username.ends_with(":persistent-volume-binder");
    let leads = record.object().name.starts_with(&format!("{LEASE}."));
    ((waits || leads) && resource == "events")
        || matches!(
            resource.as_str(),
            "leases"
                | "serviceaccounts/token"
                | "tokenreviews"
                | "subjectaccessreviews"
                | "selfsubjectaccessreviews"
        )
}

fn line(record: &AuditRecord) -> String {
    let object = record.object();
    format!(
        "{} {} {}/{} ({:?}) by {} {}",
        record.verb,
        record.resource(),
        object.namespace,
        object.name,
        record.code(),
        record.user.username,
        record.user_agent
    )
}

/// Writes of either manager since the log was last read, in this namespace or in all.
fn writes(log: &mut harness::AuditLog, namespace: Option<&str>) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    log.read(|record| {
        let user = &record.user.username;
        let manager = user == MANAGER || user.starts_with(CONTROLLERS);
        let here = namespace.is_none_or(|wanted| record.object().namespace == wanted);
        if record.stage == "ResponseComplete"
            && record.is_write()
            && manager
            && here
            && !is_own_business(&record)
        {
            lines.push(line(&record));
        }
    })?;
    Ok(lines)
}

/// Waits until neither manager has written for two seconds.
async fn quiet(control_plane: &ControlPlane, namespace: &str) -> Result<()> {
    let mut log = control_plane.audit();
    let mut last = tokio::time::Instant::now();
    until("the managers rest", PATIENCE, POLL, || {
        let wrote = writes(&mut log, Some(namespace));
        if wrote.as_ref().is_ok_and(|lines| !lines.is_empty()) {
            last = tokio::time::Instant::now();
        }
        let still = last.elapsed() > Duration::from_secs(2);
        async move { wrote.map(|_| still.then_some(())) }
    })
    .await
}

/// One of each other kind, brought to rest.
async fn others(control_plane: &ControlPlane, namespace: &str) -> Result<()> {
    let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}});
    for manifest in [
        json!({"kind": "StatefulSet", "metadata": {"name": "db"}, "spec": {"replicas": 3}}),
        json!({"kind": "StatefulSet", "metadata": {"name": "claiming"}, "pods": "gated",
            "spec": {"replicas": 2, "podManagementPolicy": "Parallel", "volumeClaimTemplates": [claim]}}),
        json!({"kind": "DaemonSet", "metadata": {"name": "logs"}}),
        json!({"kind": "ReplicationController", "metadata": {"name": "old"}, "spec": {"replicas": 2}}),
        json!({"kind": "ReplicaSet", "metadata": {"name": "alone"}, "spec": {"replicas": 2}}),
        json!({"kind": "Job", "metadata": {"name": "done"}, "spec": {"completions": 3}}),
        json!({"kind": "Job", "metadata": {"name": "sweep"}, "spec": {"completionMode": "Indexed",
            "completions": 3, "parallelism": 3}}),
        json!({"kind": "Job", "metadata": {"name": "waiting"}, "pods": "gated", "spec": {"parallelism": 2}}),
        json!({"kind": "Job", "metadata": {"name": "later"}, "spec": {"suspend": true}}),
        json!({"kind": "CronJob", "metadata": {"name": "yearly"}, "spec": {"schedule": "0 0 1 1 *"}}),
        json!({"kind": "Service", "metadata": {"name": "db"}, "spec": {"selector": {"app": "db"},
            "ports": [{"port": 80}]}}),
        json!({"kind": "Service", "metadata": {"name": "elsewhere"}, "spec": {"ports": [{"port": 80}]}}),
        json!({"kind": "Endpoints", "metadata": {"name": "elsewhere"},
            "subsets": [{"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 80}]}]}),
        json!({"kind": "PodDisruptionBudget", "metadata": {"name": "db"}, "spec": {"maxUnavailable": 1,
            "selector": {"matchLabels": {"app": "db"}}}}),
        json!({"kind": "ResourceQuota", "metadata": {"name": "all"}, "spec": {"hard": {"pods": "999",
            "count/replicasets.apps": "999", "secrets": "999", "requests.storage": "999Gi"}}}),
    ] {
        let object = parity::filled(&manifest)?.to_string();
        control_plane
            .kubectl_with_input(&["-n", namespace, "create"], &object)
            .await?;
    }
    for wait in [
        "rollout status statefulset/db --timeout=60s",
        "rollout status daemonset/logs --timeout=60s",
        "wait job/done job/sweep --for=condition=Complete --timeout=60s",
        "wait job/later --for=condition=Suspended --timeout=60s",
    ] {
        let mut args = vec!["-n", namespace];
        args.extend(wait.split(' '));
        control_plane.kubectl(&args).await?;
    }
    // A history of theirs too.
    for change in ["statefulset/db", "daemonset/logs"] {
        let args = ["-n", namespace, "set", "image", change, "app=example/app:2"];
        control_plane.kubectl(&args).await?;
        let args = [
            "-n",
            namespace,
            "rollout",
            "status",
            change,
            "--timeout=60s",
        ];
        control_plane.kubectl(&args).await?;
    }
    Ok(())
}

#[test]
fn a_swap_to_manifold_and_back_writes_nothing() {
    let _beside = beside();
    at_rest(REST);
}

#[test]
#[ignore = "minutes: cargo parity"]
fn a_swap_to_manifold_and_back_writes_nothing_for_long() {
    let _beside = beside();
    at_rest(LONG_REST);
}

#[test]
#[ignore = "minutes: cargo parity"]
fn swaps_in_motion_come_to_the_end_that_upstream_comes_to() {
    let _beside = beside();
    run_test(async {
        let scenarios = parity::swaps()?;
        let mut theirs = parity::upstream(&scenarios).await?;
        let side = Side::start("upstream, Manifold, upstream", &[]).await?;
        let flags = parity::kcm_flags(parity::Among::Swapped);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let mut plays = Side::begin(&scenarios);

        let mut kcm = side.control_plane.start_kcm(&flags).await?;
        side.play_all(&mut plays, true).await;
        kcm.process().kill();
        drop(kcm);

        let fleet = parity::fleet(&side, parity::Among::Swapped).await?;
        let mut replicas = fleet.start_all(parity::REPLICAS).await?;
        side.play_all(&mut plays, true).await;
        all_end_well(&mut replicas).await?;

        let _kcm = side.control_plane.start_kcm(&flags).await?;
        side.play_all(&mut plays, false).await;
        let mut ours = Side::end(plays);
        for outcome in theirs.iter_mut().chain(&mut ours) {
            outcome.sort_conditions();
        }
        parity::judge("swap", &scenarios, &theirs, &ours, done_by_the_swap)?;
        Ok(())
    });
}

/// In which a manager that begins finds what others were asked to go.
const GOING: [&str; 3] = ["swap-foreground", "swap-orphans", "swap-namespace"];

/// What a manager reports when it begins, and upstream's binder every 15 seconds while it lasts.
const WAITING: [&str; 2] = ["ExternalProvisioning", "ExternalExpanding"];

/// A manager that is killed takes the events along that it has not sent yet; one that begins knows nothing of
/// what was asked to go already, and reports it once more.
fn done_by_the_swap(one: &Difference) -> Option<&'static str> {
    let reported = one.path.starts_with("Delete ") || one.path == "Change namespaces/status";
    if GOING.contains(&one.scenario.as_str()) && one.object == "writes" && reported {
        return Some("what goes was asked to by two managers");
    }
    let waits = WAITING.iter().any(|reason| one.path.contains(reason));
    if one.object == "event" && waits {
        return Some("a manager that begins reports once more what waits");
    }
    let rank = |class: &str| {
        ["nothing", "one", "several"]
            .iter()
            .position(|rank| *rank == class)
    };
    let fewer = one.object == "event" && rank(&one.ours) < rank(&one.theirs);
    fewer.then_some("an event went with the process that was killed")
}

/// Waits until the fleet owns ranges: it holds the Lease.
async fn owns(replicas: &[Replica]) -> Result<()> {
    until("the fleet works", PATIENCE, POLL, || async {
        for replica in replicas {
            ensure!(
                !replica.shards().await?.owned.is_empty(),
                "{} waits",
                replica.name()
            );
        }
        Ok(Some(()))
    })
    .await
}

fn at_rest(rest: Duration) {
    run_test(async move {
        let control_plane = judged().await?;
        let client = control_plane.client().await?;
        let mut kcm = control_plane.start_kcm(&[RELEASES]).await?;
        let namespace = control_plane.namespace("swap").await?;
        let api: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
        let names: Vec<String> = (0..DEPLOYMENTS)
            .map(|index| format!("web-{index}"))
            .collect();
        for name in &names {
            create(&api, deployment(name, 3)).await?;
        }
        others(&control_plane, &namespace).await?;
        for name in &names {
            complete(&api, name, PODS).await?;
        }
        // A history: half of them have been rolled out twice.
        for name in names.iter().step_by(2) {
            let target = format!("deployment/{name}");
            control_plane
                .kubectl(&[
                    "-n",
                    &namespace,
                    "set",
                    "image",
                    &target,
                    "app=example/app:2",
                ])
                .await?;
        }
        for name in &names {
            complete(&api, name, PODS).await?;
        }
        quiet(&control_plane, &namespace).await?;

        // To Manifold, in one rolling step: it waits for the Lease, and finds everything as it should be.
        let mut log = control_plane.audit();
        log.read(drop)?;
        let fleet = fleet(&control_plane).await?;
        let mut replicas = fleet.start_all(3).await?;
        kcm.process().terminate(PATIENCE).await?;
        drop(kcm);
        owns(&replicas).await?;
        let marks = {
            tokio::time::sleep(rest).await;
            writes(&mut log, None)?
        };
        println!("swap: KCM → Manifold: {} writes in {rest:?}", marks.len());
        ensure!(marks.is_empty(), "{}", marks.join("\n"));
        let mut reconciles = 0;
        for replica in &replicas {
            reconciles += replica.shards().await?.totals.reconciles;
        }
        println!("swap: {reconciles} reconciles meanwhile");
        ensure!(
            reconciles >= 2 * DEPLOYMENTS as u64,
            "nobody watched: nothing was shown"
        );
        // It is at work all the same.
        create(&api, deployment("ours", 2)).await?;
        complete(&api, "ours", 2).await?;
        quiet(&control_plane, &namespace).await?;

        // And back in the same way.
        log.read(drop)?;
        let _kcm = control_plane.start_kcm(&[]).await?;
        all_end_well(&mut replicas).await?;
        tokio::time::sleep(rest).await;
        let back = writes(&mut log, Some(&namespace))?;
        println!("swap: Manifold → KCM: {} writes in {rest:?}", back.len());
        ensure!(back.is_empty(), "{}", back.join("\n"));
        Ok(())
    });
}
