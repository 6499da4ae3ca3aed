//! Mixed mode: kube-controller-manager keeps what a fleet does not run, with the list that `manifold
//! companion` prints. A workload over both sets converges, and by the audit log each controller writes in one
//! manager alone, also while controllers are moved over and back.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use harness::{AuditRecord, ControlPlane, Fleet, Kcm, Replica, run_test, until};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};

use crate::support::{PATIENCE, POLL, beside, complete, create, deployment, fleet};

const MEMBERS: usize = 3;
const ACCOUNTS: &str = "system:serviceaccount:kube-system:";
/// What the fleet runs at first.
const FIRST: [&str; 5] = [
    "deployment-controller",
    "replicaset-controller",
    "job-controller",
    "endpointslice-controller",
    "horizontal-pod-autoscaler-controller",
];
/// Moved over and back in `cargo verify`: one whose state is in its objects' statuses, one that only reacts.
const MOVED: [&str; 2] = ["statefulset-controller", "endpointslice-controller"];
/// Moved with the key, not by a list.
const TOKENS: &str = "serviceaccount-token-controller";
/// kube-controller-manager has their names and never runs them.
const CLOUD: [&str; 3] = [
    "cloud-node-lifecycle-controller",
    "node-route-controller",
    "service-lb-controller",
];

/// What `manifold companion` says for a list.
struct Division {
    fleet: BTreeSet<String>,
    kcm: BTreeSet<String>,
    fleet_args: Vec<String>,
    kcm_args: Vec<String>,
}

fn divide(binary: &Path, controllers: &BTreeSet<String>) -> Result<Division> {
    let list: Vec<&str> = controllers.iter().map(String::as_str).collect();
    let output = std::process::Command::new(binary)
        .args(["companion", "-o", "json"])
        .arg(format!("--controllers={}", list.join(",")))
        .output()
        .context("manifold companion")?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let value: Value = serde_json::from_slice(&output.stdout)?;
    let texts = |side: &str, field: &str| {
        let all = value[side][field].as_array().into_iter().flatten();
        all.filter_map(Value::as_str)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    ensure!(value["unassigned"] == json!([]), "{value}");
    Ok(Division {
        fleet: texts("manifold", "controllers").into_iter().collect(),
        kcm: texts("kcm", "controllers").into_iter().collect(),
        fleet_args: texts("manifold", "args"),
        kcm_args: texts("kcm", "args"),
    })
}

/// Service account → controllers that write by it.
fn accounts() -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    let mut accounts: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for one in node_registry::descriptors() {
        accounts
            .entry(one.service_account)
            .or_default()
            .insert(one.name);
    }
    accounts
}

/// Who has written since the log was last read, and what should not have been.
#[derive(Default)]
struct Writers {
    /// Account, and how many writes of the fleet and of kube-controller-manager.
    counts: BTreeMap<String, (usize, usize)>,
    /// Of a controller that is handed over: for each of its writes, whether it is the fleet's.
    moved: Vec<bool>,
    complaints: Vec<String>,
}

/// No change of the cluster: what any manager asks of the API server.
const OWN_BUSINESS: [&str; 4] = [
    "leases",
    "subjectaccessreviews",
    "tokenreviews",
    "serviceaccounts/token",
];

impl Writers {
    /// `moving` is being handed over, so that either side may write for it, one after the other.
    fn read(&mut self, record: &AuditRecord, division: &Division, moving: Option<&str>) {
        let user = match &record.impersonated_user {
            Some(user) => &user.username,
            None => &record.user.username,
        };
        let Some(account) = user.strip_prefix(ACCOUNTS) else {
            return;
        };
        let own_business = OWN_BUSINESS.contains(&record.resource().as_str());
        if record.stage != "ResponseComplete" || !record.is_write() || own_business {
            return;
        }
        let line = || {
            format!(
                "{} {} by {account}: {}",
                record.verb,
                record.resource(),
                record.user_agent
            )
        };
        let counts = self.counts.entry(account.to_owned()).or_default();
        if let Some(agent) = record.agent() {
            let name = agent.controller.unwrap_or_default();
            counts.0 += 1;
            if moving == Some(name.as_str()) {
                self.moved.push(true);
            } else if !division.fleet.contains(&name) {
                self.complaints
                    .push(format!("the fleet as {name}: {}", line()));
            }
        } else if record.user_agent.starts_with("kube-controller-manager/") {
            counts.1 += 1;
            let controllers = accounts().remove(account).unwrap_or_default();
            if controllers.len() == 1 && moving.is_some_and(|name| controllers.contains(name)) {
                self.moved.push(false);
            } else if !controllers
                .iter()
                .any(|name| division.kcm.contains(*name) || moving == Some(*name))
            {
                self.complaints
                    .push(format!("kube-controller-manager: {}", line()));
            }
        }
    }

    fn verdict(self, moving: bool) -> Result<(usize, usize)> {
        let few = &self.complaints[..self.complaints.len().min(10)];
        ensure!(few.is_empty(), "{few:#?}");
        let changes = self.moved.windows(2).filter(|pair| pair[0] != pair[1]);
        let changes = changes.count();
        ensure!(changes <= 1, "the writer has changed {changes} times");
        let shared = accounts();
        for (account, (ours, theirs)) in &self.counts {
            // Some accounts are of several controllers, which may be divided.
            let controllers = shared.get(account.as_str()).map_or(0, BTreeSet::len);
            ensure!(
                moving || *ours == 0 || *theirs == 0 || controllers > 1,
                "{account}: {ours} writes of the fleet, {theirs} of kube-controller-manager"
            );
        }
        let sum = |side: fn(&(usize, usize)) -> usize| self.counts.values().map(side).sum();
        Ok((sum(|counts| counts.0), sum(|counts| counts.1)))
    }
}

/// Both managers.
struct Pair<'a> {
    control_plane: &'a ControlPlane,
    binary: PathBuf,
    fleet: Fleet,
    replicas: Vec<Replica>,
    kcm: Option<Kcm>,
    division: Division,
    log: harness::AuditLog,
    round: usize,
}

impl<'a> Pair<'a> {
    async fn start(control_plane: &'a ControlPlane, controllers: &[&str]) -> Result<Self> {
        let binary = tokio::task::spawn_blocking(|| {
            harness::fleet::binary(harness::fleet::Profile::of_this_build())
        })
        .await??;
        let controllers = controllers.iter().map(|name| (*name).to_owned()).collect();
        let division = divide(&binary, &controllers)?;
        let mut pair = Self {
            control_plane,
            binary,
            fleet: fleet(control_plane).await?,
            replicas: Vec::new(),
            kcm: None,
            division,
            log: control_plane.audit(),
            round: 0,
        };
        pair.start_kcm().await?;
        for index in 0..MEMBERS {
            let replica = pair.start_replica(index)?;
            pair.replicas.push(replica);
        }
        pair.await_members().await?;
        Ok(pair)
    }

    fn start_replica(&self, index: usize) -> Result<Replica> {
        let args: Vec<&str> = self
            .division
            .fleet_args
            .iter()
            .map(String::as_str)
            .collect();
        self.fleet.start_named(&format!("manifold-{index}"), &args)
    }

    async fn await_members(&mut self) -> Result<()> {
        for replica in &mut self.replicas {
            replica.wait_ready(PATIENCE).await?;
        }
        Ok(())
    }

    /// With leader election, as in a cluster; the last one has released or lost its Lease before.
    async fn start_kcm(&mut self) -> Result<()> {
        let mut flags: Vec<&str> = self.division.kcm_args.iter().map(String::as_str).collect();
        flags.extend([
            "--kube-api-qps=500",
            "--kube-api-burst=500",
            "--leader-elect-lease-duration=4s",
            "--leader-elect-renew-deadline=3s",
            "--leader-elect-retry-period=500ms",
        ]);
        self.kcm = Some(self.control_plane.start_kcm(&flags).await?);
        Ok(())
    }

    async fn stop_kcm(&mut self) -> Result<()> {
        if let Some(mut kcm) = self.kcm.take() {
            kcm.process().kill();
            let kcm = std::sync::Mutex::new(kcm);
            until("kube-controller-manager ends", PATIENCE, POLL, || async {
                let mut kcm = kcm
                    .lock()
                    .unwrap_or_else(std::sync::PoisonError::into_inner);
                Ok(kcm.process().exited())
            })
            .await?;
        }
        Ok(())
    }

    async fn restart_fleet(&mut self) -> Result<()> {
        for index in 0..MEMBERS {
            self.replicas[index].terminate(PATIENCE).await?;
            self.replicas[index] = self.start_replica(index)?;
            self.replicas[index].wait_ready(PATIENCE).await?;
        }
        Ok(())
    }

    /// Gives a controller to the other side: first it is taken out of one list, then put into the other.
    async fn hand_over(&mut self, name: &str) -> Result<()> {
        self.judge()?;
        let mut controllers = self.division.fleet.clone();
        let to_fleet = controllers.insert(name.to_owned());
        if !to_fleet {
            controllers.remove(name);
        }
        self.division = divide(&self.binary, &controllers)?;
        if to_fleet {
            self.stop_kcm().await?;
            self.start_kcm().await?;
            self.restart_fleet().await?;
        } else {
            self.restart_fleet().await?;
            self.stop_kcm().await?;
            self.start_kcm().await?;
        }
        // In between it may have been either, first the one and then the other.
        self.judged(Some(name)).map(drop)
    }

    /// Each controller has written in one manager alone since the last hand-over.
    fn judge(&mut self) -> Result<(usize, usize)> {
        self.judged(None)
    }

    fn judged(&mut self, moving: Option<&str>) -> Result<(usize, usize)> {
        let mut writers = Writers::default();
        let division = &self.division;
        self.log
            .read(|record| writers.read(&record, division, moving))?;
        writers.verdict(moving.is_some())
    }

    /// A workload that needs controllers of both sides comes to its end.
    async fn converge(&mut self) -> Result<(usize, usize)> {
        let started = Instant::now();
        self.round += 1;
        let client = self.control_plane.client().await?;
        let namespace = self.control_plane.namespace("companion").await?;
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &namespace);
        until("the namespace has its account", PATIENCE, POLL, || async {
            Ok(accounts.get_opt("default").await?)
        })
        .await?;
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
        create(&deployments, deployment("web", 2)).await?;
        let pod = json!({"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [{"name": "app", "image": "example/app:1"}]}});
        for object in [
            json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"},
                "spec": {"replicas": 2, "serviceName": "db", "selector": {"matchLabels": {"app": "db"}}, "template": pod}}),
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
                "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}}),
            json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"},
                "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "web"}}}}),
            json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "all"}, "spec": {"hard": {"pods": "99"}}}),
        ] {
            self.control_plane
                .kubectl_with_input(&["-n", &namespace, "create"], &object.to_string())
                .await?;
        }
        complete(&deployments, "web", 2).await?;
        let sets: Api<StatefulSet> = Api::namespaced(client.clone(), &namespace);
        until("two pods of db are ready", PATIENCE, POLL, || async {
            let status = sets.get("db").await?.status.unwrap_or_default();
            Ok((status.ready_replicas == Some(2)).then_some(()))
        })
        .await?;
        let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), &namespace);
        until("the Service has two endpoints", PATIENCE, POLL, || async {
            let list = slices
                .list(&ListParams::default().labels("kubernetes.io/service-name=web"))
                .await?;
            let count: usize = list
                .items
                .iter()
                .map(|slice| slice.endpoints.iter().flatten().count())
                .sum();
            Ok((count == 2).then_some(()))
        })
        .await?;
        until("budget and quota are counted", PATIENCE, POLL, || async {
            let budget = self
                .control_plane
                .kubectl(&[
                    "-n",
                    &namespace,
                    "get",
                    "pdb",
                    "web",
                    "-o",
                    "jsonpath={.status.currentHealthy}",
                ])
                .await?;
            let quota = self
                .control_plane
                .kubectl(&[
                    "-n",
                    &namespace,
                    "get",
                    "quota",
                    "all",
                    "-o",
                    "jsonpath={.status.used.pods}",
                ])
                .await?;
            Ok((budget == "2" && quota == "4").then_some(()))
        })
        .await?;
        let deleted = Instant::now();
        self.control_plane
            .kubectl(&["delete", "namespace", &namespace, "--timeout=60s"])
            .await?;
        let (ours, theirs) = self.judge()?;
        println!(
            "companion: round {}: converged and deleted in {:.1?} ({:.1?} of it deletion), {ours} writes of the fleet, {theirs} of kube-controller-manager",
            self.round,
            started.elapsed(),
            deleted.elapsed()
        );
        Ok((ours, theirs))
    }

    async fn end(mut self) -> Result<()> {
        for replica in &mut self.replicas {
            replica.terminate(PATIENCE).await?;
        }
        self.stop_kcm().await
    }
}

/// The doctor agrees that the two lists are complete and disjoint.
fn examined(pair: &Pair<'_>) -> Result<()> {
    let list = pair
        .division
        .kcm_args
        .iter()
        .find_map(|arg| arg.strip_prefix("--controllers="))
        .context("no list")?;
    // By the flag the doctor does not know of the key.
    let output = std::process::Command::new(&pair.binary)
        .args(["doctor", "-o", "json", "--kubeconfig"])
        .arg(pair.control_plane.admin_kubeconfig())
        .arg(format!("--kcm-controllers={list},{TOKENS}"))
        .output()?;
    let value: Value = serde_json::from_slice(&output.stdout)?;
    for id in ["coverage/agree", "coverage/complete", "coverage/disjoint"] {
        let checks = value["checks"].as_array().into_iter().flatten();
        let check = checks
            .into_iter()
            .find(|check| check["id"] == id)
            .context(id)?;
        ensure!(check["result"] == "passed", "{check}");
    }
    Ok(())
}

#[test]
fn both_managers_converge_on_one_workload_and_controllers_move_between_them() {
    let _beside = beside();
    run_test(async {
        let control_plane = ControlPlane::builder().nodes(2).start().await?;
        let mut pair = Pair::start(&control_plane, &FIRST).await?;
        let (ours, theirs) = pair.converge().await?;
        ensure!(
            ours > 0 && theirs > 0,
            "one of both wrote nothing: {ours} and {theirs}"
        );
        examined(&pair)?;
        for name in MOVED {
            let was = pair.division.fleet.contains(name);
            pair.hand_over(name).await?;
            ensure!(pair.division.fleet.contains(name) != was);
            pair.converge().await?;
        }
        examined(&pair)?;
        for name in MOVED {
            pair.hand_over(name).await?;
        }
        pair.converge().await?;
        pair.end().await
    });
}

#[test]
#[ignore = "minutes: cargo parity"]
fn every_controller_moves_over_and_back() {
    let _beside = beside();
    run_test(async {
        let control_plane = ControlPlane::builder().nodes(2).start().await?;
        let mut pair = Pair::start(&control_plane, &FIRST).await?;
        let names: Vec<String> = node_registry::descriptors()
            .into_iter()
            .map(|one| one.name.to_owned())
            .filter(|name| !CLOUD.contains(&name.as_str()))
            .collect();
        for (at, name) in names.iter().enumerate() {
            let started = Instant::now();
            for _way in ["over", "back"] {
                pair.hand_over(name).await.with_context(|| name.clone())?;
                pair.converge().await.with_context(|| name.clone())?;
            }
            println!(
                "companion: {} of {}: {name} over and back in {:.1?}",
                at + 1,
                names.len(),
                started.elapsed()
            );
        }
        if pair.division.fleet.len() != FIRST.len() {
            bail!("not back: {:?}", pair.division.fleet);
        }
        pair.end().await
    });
}
