//! Watches of pods that bring nothing for longer than kube-controller-manager remembers its own writes
//! (kubernetes/kubernetes issue 129795): a ReplicaSet grows meanwhile, and is changed again and again.
//!
//! Upstream expects its creations for five minutes and then plans by its cache, in which no pod has appeared.
//! The gates `StaleControllerConsistency…` of 1.36 (on by default) compare versions instead. Three managers
//! meet the same at once, each on a control plane of its own: upstream as of 1.36, upstream with the gates
//! off, as every version before, and a fleet in which no replica sees a pod.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use harness::proxy::Proxy;
use harness::{ControlPlane, Kcm, Replica, run_test, until};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::chaos::member::kubeconfig;
use crate::support::{PATIENCE, POLL, beside, fleet};

/// How long upstream expects what it has created or deleted (`ExpectationsTimeout`).
const EXPECTED: Duration = Duration::from_secs(300);
/// With one change of the ReplicaSet after the expectations have passed, and time for what follows.
const FROZEN: Duration = Duration::from_secs(EXPECTED.as_secs() + 45);
/// Between two changes that wake the ReplicaSet.
const CHANGED_EVERY: Duration = Duration::from_secs(15);
const BEFORE: usize = 2;
const WANTED: usize = 12;
const GATES_OFF: &str = "--feature-gates=StaleControllerConsistencyReplicaSet=false,\
                         StaleControllerConsistencyDaemonSet=false,StaleControllerConsistencyJob=false,\
                         StaleControllerConsistencyStatefulSet=false";

/// Who works, and what it sees the API server through.
enum Manager {
    Upstream(Box<Kcm>, Proxy),
    Fleet(Vec<(Replica, Proxy)>),
}

impl Manager {
    async fn upstream(control_plane: &ControlPlane, flags: &[&str]) -> Result<Self> {
        let (proxy, kubeconfig) = way(control_plane, "kcm").await?;
        let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
        let flags = [&[kubeconfig.as_str()][..], flags].concat();
        let kcm = control_plane.start_kcm(&flags).await?;
        Ok(Self::Upstream(Box::new(kcm), proxy))
    }

    async fn fleet(control_plane: &ControlPlane) -> Result<Self> {
        let fleet = fleet(control_plane).await?;
        let mut members = Vec::new();
        for index in 0..3 {
            let name = format!("manifold-{index}");
            let (proxy, kubeconfig) = way(control_plane, &name).await?;
            let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
            members.push((fleet.start_named(&name, &[&kubeconfig])?, proxy));
        }
        for (replica, _) in &mut members {
            replica.wait_ready(PATIENCE).await?;
        }
        Ok(Self::Fleet(members))
    }

    fn freeze(&self, resource: Option<&'static str>) {
        match self {
            Self::Upstream(_, proxy) => proxy.freeze(resource),
            Self::Fleet(members) => members.iter().for_each(|(_, proxy)| proxy.freeze(resource)),
        }
    }

    /// An error if a process has ended.
    fn check(&mut self) -> Result<()> {
        match self {
            Self::Upstream(kcm, _) => kcm.process().check(),
            Self::Fleet(members) => members
                .iter_mut()
                .try_for_each(|(replica, _)| replica.check()),
        }
    }
}

async fn way(control_plane: &ControlPlane, name: &str) -> Result<(Proxy, PathBuf)> {
    let proxy = Proxy::start(control_plane).await?;
    let kubeconfig = kubeconfig(control_plane, name, proxy.port())?;
    Ok((proxy, kubeconfig))
}

/// What a manager has made of it.
#[derive(Debug)]
struct Made {
    /// Pods that were there at once and not being deleted, at most.
    most: usize,
    /// Pods altogether.
    pods: usize,
    /// From the thaw to a status that counts what is wanted.
    settled: Duration,
}

async fn grow(control_plane: &ControlPlane, mut manager: Manager) -> Result<Made> {
    let client = control_plane.client().await?;
    let namespace = control_plane.namespace("stale").await?;
    let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), &namespace);
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    let set = serde_json::from_value(json!({
        "metadata": {"name": "web"},
        "spec": {
            "replicas": BEFORE,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "app", "image": "example/app:1"}]},
            },
        },
    }))?;
    sets.create(&PostParams::default(), &set).await?;
    counted(&sets, BEFORE).await?;

    manager.freeze(Some("/pods"));
    let began = Instant::now();
    patch(&sets, json!({"spec": {"replicas": WANTED}})).await?;
    let (mut most, mut seen, mut changed) = (0, BTreeSet::new(), began);
    while began.elapsed() < FROZEN {
        manager.check()?;
        let now = pods.list(&ListParams::default()).await?.items;
        let living = now
            .iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none());
        most = most.max(living.count());
        seen.extend(now.into_iter().filter_map(|pod| pod.metadata.uid));
        if changed.elapsed() >= CHANGED_EVERY {
            changed = Instant::now();
            let seconds = began.elapsed().as_secs().to_string();
            patch(
                &sets,
                json!({"metadata": {"annotations": {"changed-after": seconds}}}),
            )
            .await?;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    manager.freeze(None);
    let thawed = Instant::now();
    counted(&sets, WANTED).await?;
    Ok(Made {
        most,
        pods: seen.len(),
        settled: thawed.elapsed(),
    })
}

async fn patch(sets: &Api<ReplicaSet>, patch: serde_json::Value) -> Result<()> {
    sets.patch("web", &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    Ok(())
}

/// Waits until the status counts the ready pods that are wanted, as of the newest generation.
async fn counted(sets: &Api<ReplicaSet>, wanted: usize) -> Result<()> {
    let wanted = i32::try_from(wanted)?;
    until(
        "the ReplicaSet has what is wanted",
        PATIENCE,
        POLL,
        || async {
            let set = sets.get("web").await?;
            let status = set.status.unwrap_or_default();
            ensure!(
                status.observed_generation == set.metadata.generation
                    && status.replicas == wanted
                    && status.ready_replicas == Some(wanted),
                "{status:?}"
            );
            Ok(Some(()))
        },
    )
    .await
}

#[test]
#[ignore = "six minutes: cargo parity"]
fn a_replica_set_that_sees_no_pod_for_six_minutes_has_none_too_many() {
    let _beside = beside();
    run_test(async {
        let (new, old, ours) = tokio::try_join!(
            async {
                let control_plane = ControlPlane::builder().start().await?;
                let manager = Manager::upstream(&control_plane, &[]).await?;
                grow(&control_plane, manager).await
            },
            async {
                let control_plane = ControlPlane::builder().start().await?;
                let manager = Manager::upstream(&control_plane, &[GATES_OFF]).await?;
                grow(&control_plane, manager).await
            },
            async {
                let control_plane = ControlPlane::builder().start().await?;
                let manager = Manager::fleet(&control_plane).await?;
                grow(&control_plane, manager).await
            },
        )?;
        for (name, made) in [
            ("kube-controller-manager 1.36", &new),
            ("kube-controller-manager, gates off", &old),
            ("manifold, 3 replicas", &ours),
        ] {
            println!(
                "stale: {name}: {} pods made, {} at once, of {WANTED} wanted; counted {:.1} s after the thaw",
                made.pods,
                made.most,
                made.settled.as_secs_f64()
            );
        }
        ensure!(ours.pods == WANTED && ours.most == WANTED, "{ours:?}");
        Ok(())
    });
}
