//! A shadow beside kube-controller-manager: the scenarios of the parity suite are played under upstream, and
//! what the shadow plans is what upstream does. The shadow has a user that may write nothing but its Leases
//! and its report, and the audit log shows that it has tried nothing else.
//!
//! `cargo verify` plays a selection, in which a shadow must compare and write nothing. What differs is asked
//! of `cargo parity` alone, which plays all, or those whose names begin as `MANIFOLD_PARITY` says: a state on
//! the way may still differ on a busy machine. It also plants faults in one of the two managers
//! ([`faults`]), each of which must be found.

mod excuses;
mod faults;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::{ControlPlane, Replica, run_test, until};
use inspect::{Shadow, ShadowDifference};

use crate::parity::{Among, Scenario, Side, by_api_server, by_controllers, flags, scenarios};
use crate::support::{PATIENCE, POLL, beside};

/// Where its Leases and its report are, as in `deploy/shadow`.
pub(crate) const NAMESPACE: &str = "manifold-shadow";
/// Whom `deploy/shadow` gives its rights.
pub(crate) const USER: &str = "system:serviceaccount:manifold-shadow:manifold-shadow";
/// How long upstream may take, in seconds: its slowest answers here take some.
const SOON: u32 = 12;
/// The same in all scenarios: pods are collected every 20 seconds, by each manager at moments of its own.
const IN_ALL: u32 = 25;
/// Until all that is waited for is decided: five times the patience, and a margin.
fn decided_within(patience: u32) -> Duration {
    Duration::from_secs(u64::from(patience) * 5 + 30)
}
/// Replicas of the shadow.
const REPLICAS: usize = 2;

/// Those of `cargo verify`: one each of what controllers do.
const SELECTION: [&str; 12] = [
    "deployment-rolling-default",
    "job-simple",
    "statefulset-rolling",
    "daemonset-rolling",
    "cronjob-forbid",
    "garbage-background",
    "garbage-deployment",
    "endpoints-plain",
    "nodes-joins",
    "nodes-not-ready",
    "nodes-taint-evicts",
    "pvc-protection-used",
];

/// Upstream with these flags, in charge.
pub(crate) async fn upstream(
    control_plane: &ControlPlane,
    flags: &[String],
) -> Result<harness::Kcm> {
    let mut all = flags.to_vec();
    all.extend(["--kube-api-qps=5000", "--kube-api-burst=5000"].map(str::to_owned));
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    control_plane.start_kcm(&all).await
}

/// A control plane with an audit log and the rights of a shadow.
pub(crate) async fn prepared(nodes: usize) -> Result<ControlPlane> {
    let control_plane = ControlPlane::builder()
        .audit_policy(crate::parity::AUDIT_POLICY)
        .nodes(nodes)
        .start()
        .await?;
    rights(&control_plane).await?;
    Ok(control_plane)
}

/// The rights of the shadow, once for a control plane.
async fn rights(control_plane: &ControlPlane) -> Result<()> {
    for file in ["namespace.yaml", "rbac.yaml"] {
        let path = harness::workspace_root().join("deploy/shadow").join(file);
        let path = path.display().to_string();
        let apply = ["apply", "--server-side", "-f", path.as_str()];
        control_plane.kubectl(&apply).await?;
    }
    Ok(())
}

/// A shadow with these flags that knows who is in charge.
pub(crate) async fn shadow(
    control_plane: &ControlPlane,
    flags: &[String],
    count: usize,
    patience: u32,
) -> Result<Vec<Replica>> {
    let identity = control_plane.authority().client(USER, None)?;
    let kubeconfig = control_plane.kubeconfig_of(USER, &identity)?;
    let fleet = control_plane
        .fleet()
        .kubeconfig(kubeconfig)
        .namespace(NAMESPACE)
        .name_prefix("shadow")
        .arg("--shadow")
        .arg(format!("--shadow-patience={patience}s"));
    let fleet = flags.iter().fold(fleet, |fleet, flag| fleet.arg(flag));
    let replicas = fleet.build().await?.start_all(count).await?;
    until(
        "the shadow knows who is in charge",
        PATIENCE,
        POLL,
        || async {
            for replica in &replicas {
                let found = report(replica).await?;
                ensure!(found.manager.is_some(), "{} does not", replica.name());
            }
            Ok(Some(()))
        },
    )
    .await?;
    Ok(replicas)
}

/// `/debug/shadow`, of the whole fleet.
pub(crate) async fn report(replica: &Replica) -> Result<Shadow> {
    let text = replica.text("/debug/shadow").await?;
    serde_json::from_str(&text).with_context(|| format!("reading {text}"))
}

/// The report once nothing is waited for any more.
async fn decided(replica: &Replica, patience: u32) -> Result<Shadow> {
    let found = until(
        "all is decided",
        decided_within(patience),
        Duration::from_secs(1),
        || async {
            let found = report(replica).await?;
            ensure!(!found.is_pending(), "{}", found.text());
            Ok(Some(found))
        },
    )
    .await;
    match found {
        Ok(found) => Ok(found),
        // What is still waited for is no difference.
        Err(_) => report(replica).await,
    }
}

/// Each request of the shadow's user that asks for a change, and is not its own business.
pub(crate) fn written(control_plane: &ControlPlane) -> Result<(usize, Vec<String>)> {
    let (mut own, mut others) = (0, Vec::new());
    control_plane.audit().read(|record| {
        if record.user.username != USER || !record.is_write() {
            return;
        }
        let object = record.object();
        let is_own = match (record.resource().as_str(), record.verb.as_str()) {
            ("leases", _) => object.namespace == NAMESPACE && !object.name.starts_with("kube-"),
            ("configmaps", "patch") => {
                object.namespace == NAMESPACE && object.name == "manifold-shadow"
            }
            ("tokenreviews" | "subjectaccessreviews", "create") => true,
            _ => false,
        };
        match is_own {
            true => own += 1,
            false => others.push(format!("{} {}", record.verb, record.request_uri)),
        }
    })?;
    Ok((own, others))
}

/// Plays scenarios of one set of controllers under upstream; what differs and is not excused.
async fn play(
    side: &Side,
    among: Among,
    chosen: &[Scenario],
    patience: u32,
) -> Result<Vec<ShadowDifference>> {
    let flags = flags(among);
    let plays = side.prepared(chosen).await;
    let mut kcm = upstream(&side.control_plane, &flags).await?;
    let mut replicas = shadow(&side.control_plane, &flags, REPLICAS, patience).await?;
    let outcomes = side.run(plays).await;
    let found = decided(&replicas[0], patience).await?;
    println!("shadow: {among:?}:\n{}", found.text());
    for (scenario, outcome) in chosen.iter().zip(&outcomes) {
        if let Some(why) = &outcome.failed {
            println!("shadow: {} failed under upstream: {why}", scenario.name);
        }
    }
    ensure!(found.missing.is_empty(), "{:?}", found.missing);
    ensure!(found.dropped == 0, "a bound was reached: {}", found.dropped);
    let agreed: u64 = found
        .controllers
        .iter()
        .map(|one| one.agreed + one.early)
        .sum();
    ensure!(agreed > 0, "nothing was compared");
    ensure!(
        found.omitted == 0 || !found.differences.is_empty(),
        "differences without one that is shown"
    );
    for replica in &mut replicas {
        replica.terminate(PATIENCE).await?;
    }
    kcm.process().terminate(PATIENCE).await?;
    let unseen = excuses::unseen(&side.control_plane)?;
    let mut unexplained = Vec::new();
    for one in found.differences {
        match excuses::excuse(&one, &unseen) {
            Some(why) => println!("shadow: excused ({why}): {} {}", one.write, one.name),
            None => unexplained.push(one),
        }
    }
    Ok(unexplained)
}

/// Plays scenarios of any sets; what differs and is not excused. By the audit log the shadow must have
/// written nothing but its own.
async fn played(chosen: &[Scenario], patience: u32) -> Result<Vec<ShadowDifference>> {
    let mut unexplained = Vec::new();
    for (api_server, chosen) in by_api_server(chosen) {
        let side = Side::start("shadow", api_server).await?;
        rights(&side.control_plane).await?;
        for (among, chosen) in by_controllers(chosen) {
            unexplained.extend(play(&side, among, chosen, patience).await?);
        }
        let (own, others) = written(&side.control_plane)?;
        println!("shadow: {own} writes of its own Leases, report and reviews");
        ensure!(own > 0, "the audit log does not show the shadow");
        ensure!(
            others.is_empty(),
            "the shadow has asked for changes: {others:#?}"
        );
    }
    let of: BTreeSet<&str> = unexplained
        .iter()
        .map(|one| one.namespace.as_str())
        .collect();
    println!(
        "shadow: {} scenarios, {} unexplained differences in {of:?}",
        chosen.len(),
        unexplained.len()
    );
    Ok(unexplained)
}

/// The scenarios that are wanted.
fn chosen(is_wanted: impl Fn(&str) -> bool) -> Vec<Scenario> {
    let all = scenarios().expect("the scenarios are well-formed");
    all.into_iter().filter(|one| is_wanted(&one.name)).collect()
}

#[test]
fn a_shadow_compares_and_writes_nothing_but_its_own() {
    let _beside = beside();
    let chosen = chosen(|name| SELECTION.contains(&name));
    let names: Vec<&str> = chosen.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names.len(), SELECTION.len(), "some are renamed: {names:?}");
    run_test(async { played(&chosen, SOON).await.map(drop) });
}

#[test]
#[ignore = "minutes: cargo parity"]
fn what_a_shadow_plans_is_what_upstream_does_in_all_scenarios() {
    let _beside = beside();
    let wanted = std::env::var("MANIFOLD_PARITY").unwrap_or_default();
    let chosen = chosen(|name| {
        wanted.is_empty() || wanted.split(',').any(|prefix| name.starts_with(prefix))
    });
    assert!(
        !chosen.is_empty(),
        "MANIFOLD_PARITY={wanted} names no scenario"
    );
    run_test(async {
        let unexplained = played(&chosen, IN_ALL).await?;
        ensure!(unexplained.is_empty(), "{unexplained:#?}");
        Ok(())
    });
}
