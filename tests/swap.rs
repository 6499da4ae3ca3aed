//! From upstream's manager to Manifold and back: what is at rest stays at rest.

use std::time::Duration;

use anyhow::{Result, ensure};
use harness::{AuditRecord, ControlPlane, run_test, until};
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;

use crate::support::{
    PATIENCE, POLL, beside, complete, create, deployment, ended_well, fleet, judged,
};

/// How long nothing may happen.
const REST: Duration = Duration::from_secs(20);
const DEPLOYMENTS: usize = 10;
const PODS: i32 = 3;
const MANAGER: &str = "system:kube-controller-manager";
const CONTROLLERS: &str = "system:serviceaccount:kube-system:";

/// Asks for no change of the cluster: Leases, and who a caller is.
fn is_own_business(record: &AuditRecord) -> bool {
    let resource = record.resource();
    matches!(
        resource.as_str(),
        "leases" | "serviceaccounts/token" | "tokenreviews" | "subjectaccessreviews"
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

#[test]
fn a_swap_to_manifold_and_back_writes_nothing() {
    let _beside = beside();
    run_test(async {
        let control_plane = judged().await?;
        let client = control_plane.client().await?;
        let mut kcm = control_plane.start_kcm(&[]).await?;
        let namespace = control_plane.namespace("swap").await?;
        let api: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
        let names: Vec<String> = (0..DEPLOYMENTS)
            .map(|index| format!("web-{index}"))
            .collect();
        for name in &names {
            create(&api, deployment(name, 3)).await?;
        }
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
        kcm.process().kill();
        drop(kcm);

        // To Manifold: it finds everything as it should be.
        let mut log = control_plane.audit();
        log.read(drop)?;
        let fleet = fleet(&control_plane).await?;
        let mut replicas = fleet.start_all(3).await?;
        let marks = {
            tokio::time::sleep(REST).await;
            writes(&mut log, None)?
        };
        println!("swap: KCM → Manifold: {} writes in {REST:?}", marks.len());
        ensure!(marks.is_empty(), "{}", marks.join("\n"));
        let mut reconciles = 0;
        for replica in &replicas {
            reconciles += replica.shards().await?.totals.reconciles;
        }
        println!("swap: {reconciles} reconciles meanwhile");
        ensure!(
            reconciles >= 2 * DEPLOYMENTS as u64,
            "nobody looked: nothing was shown"
        );
        // It is at work all the same.
        create(&api, deployment("ours", 2)).await?;
        complete(&api, "ours", 2).await?;
        quiet(&control_plane, &namespace).await?;
        for replica in &mut replicas {
            replica.ask_to_end()?;
        }
        for replica in &mut replicas {
            ended_well(replica).await?;
        }

        // And back.
        log.read(drop)?;
        let _kcm = control_plane.start_kcm(&[]).await?;
        tokio::time::sleep(REST).await;
        let back = writes(&mut log, Some(&namespace))?;
        println!("swap: Manifold → KCM: {} writes in {REST:?}", back.len());
        ensure!(back.is_empty(), "{}", back.join("\n"));
        Ok(())
    });
}
