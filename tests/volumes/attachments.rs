//! Hundreds of attachments at once, and a hundred that move because their node is drained.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use harness::{Fleet, Mounts, Replica, run_test};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

use super::{Bed, DRIVER, READ, UNLIMITED, Writes, each, writes};
use crate::support::{PATIENCE, all_end_well, alone, fleet_of};

const NODES: usize = 10;
const REPLICAS: usize = 3;
/// Pods that come at once, each with a volume, and go at once.
const MANY: usize = 500;
/// Pods of the node that is drained.
const MOVED: usize = 100;
const DRAINED: &str = "node-0";
/// A replica is killed once this part of all volumes is done, in percent.
const KILLED_AT: usize = 30;
/// How many times upstream's time it may take, and what reads and rounds of kubelets may add. A node's list
/// is one field that each volume's owner writes for its own volume, one after the other, where upstream's one
/// process writes it for all: attaching took 1.3 to 1.5 times upstream's time on a busy machine, detaching,
/// which one owner may write for all, a third.
const SLACK: f64 = 2.0;
const ROUNDS: Duration = Duration::from_secs(2);
/// The keys of a replica that was killed are served by others after this.
const TAKEOVER: Duration = Duration::from_secs(8);

/// One thing that all volumes go through.
#[derive(Debug)]
struct Act {
    name: &'static str,
    time: Duration,
    writes: Writes,
}

/// Who manages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manager {
    Upstream,
    Manifold { replicas: usize, killed: bool },
}

/// Whom to kill in the middle.
struct Victim<'v> {
    fleet: &'v Fleet,
    replicas: &'v mut Vec<Replica>,
    /// Kills so far.
    kills: usize,
}

impl Victim<'_> {
    /// Kills the next one once [`KILLED_AT`] of `of` volumes are attached; it comes back at once.
    async fn kill_in_the_middle(&mut self, bed: &Bed, of: usize, but: Option<&str>) -> Result<()> {
        loop {
            let listed = bed.listed().await?;
            let there = listed
                .values()
                .filter(|nodes| but.is_none_or(|but| !nodes.contains(but)))
                .count();
            if there * 100 >= of * KILLED_AT {
                break;
            }
            tokio::time::sleep(READ).await;
        }
        let index = self.kills % self.replicas.len();
        self.kills += 1;
        self.replicas[index].kill();
        self.replicas[index] = self.fleet.start(index)?;
        Ok(())
    }
}

/// Does something and waits for its end; a replica is killed in the middle if there is one to kill.
async fn act(
    bed: &Bed,
    name: &'static str,
    victim: &mut Option<Victim<'_>>,
    (count, but): (usize, Option<&str>),
    begin: impl Future<Output = Result<()>>,
) -> Result<Act> {
    let mut audit = bed.control_plane.audit();
    audit.read(drop)?;
    let began = Instant::now();
    let kill = async {
        match victim {
            Some(victim) => victim.kill_in_the_middle(bed, count, but).await,
            None => Ok(()),
        }
    };
    let end = async {
        begin.await?;
        bed.attached(count, but).await
    };
    tokio::try_join!(end, kill)?;
    let time = began.elapsed();
    Ok(Act {
        name,
        time,
        writes: writes(&mut audit)?,
    })
}

fn stateful_set() -> serde_json::Value {
    json!({
        "metadata": {"name": "db"},
        "spec": {
            "serviceName": "db",
            "replicas": MOVED,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app": "db"}},
            "template": {
                "metadata": {"labels": {"app": "db"}},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{"name": "app", "image": "example/app:1"}],
                },
            },
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "late",
                "resources": {"requests": {"storage": "1Gi"}},
            }}],
        },
    })
}

async fn acts(bed: &Bed, mut victim: Option<Victim<'_>>) -> Result<Vec<Act>> {
    let _mounts = Mounts::start(bed.client.clone(), bed.csi.folder());
    let mut acts = Vec::new();
    each(0..MANY, |number| bed.make_pair(number)).await?;
    bed.bound(MANY).await?;
    let make = each(0..MANY, |number| bed.make_pod(number, 0));
    acts.push(act(bed, "attached", &mut victim, (MANY, None), make).await?);

    let mut audit = bed.control_plane.audit();
    audit.read(drop)?;
    let began = Instant::now();
    bed.pods()
        .delete_collection(&DeleteParams::default(), &Default::default())
        .await?;
    bed.detached().await?;
    acts.push(Act {
        name: "detached",
        time: began.elapsed(),
        writes: writes(&mut audit)?,
    });

    let late = serde_json::from_value(json!({
        "metadata": {"name": "late"},
        "provisioner": DRIVER,
        "volumeBindingMode": "WaitForFirstConsumer",
    }))?;
    let classes: Api<StorageClass> = Api::all(bed.client.clone());
    classes.create(&PostParams::default(), &late).await?;
    let others: Vec<String> = (1..NODES).map(|node| format!("node-{node}")).collect();
    let others: Vec<&str> = others.iter().map(String::as_str).collect();
    bed.control_plane
        .kubectl(&[&["cordon"][..], &others[..]].concat())
        .await?;
    let sets: Api<StatefulSet> = Api::namespaced(bed.client.clone(), &bed.namespace);
    let set = serde_json::from_value(stateful_set())?;
    sets.create(&PostParams::default(), &set).await?;
    bed.attached(MOVED, None).await?;
    bed.control_plane
        .kubectl(&[&["uncordon"][..], &others[..]].concat())
        .await?;
    let drain = async {
        bed.control_plane.kubectl(&["drain", DRAINED]).await?;
        Ok(())
    };
    acts.push(act(bed, "moved", &mut victim, (MOVED, Some(DRAINED)), drain).await?);
    Ok(acts)
}

async fn play(manager: Manager) -> Result<Vec<Act>> {
    let mut bed = Bed::start(NODES).await?;
    let acts = match manager {
        Manager::Upstream => {
            let _kcm = bed.control_plane.start_kcm(&UNLIMITED).await?;
            acts(&bed, None).await?
        }
        Manager::Manifold { replicas, killed } => {
            let fleet = fleet_of(&bed.control_plane, &UNLIMITED).await?;
            let mut running = fleet.start_all(replicas).await?;
            let victim = killed.then_some(Victim {
                fleet: &fleet,
                replicas: &mut running,
                kills: 0,
            });
            let acts = acts(&bed, victim).await?;
            for replica in &mut running {
                replica.wait_ready(PATIENCE).await?;
            }
            all_end_well(&mut running).await?;
            acts
        }
    };
    for act in &acts {
        println!(
            "volumes: {manager:?}: {}: {:.2?}, {:?}",
            act.name, act.time, act.writes
        );
    }
    println!("volumes: {manager:?}: {}", bed.judge()?);
    bed.csi.check()?;
    Ok(acts)
}

#[test]
#[ignore = "minutes: cargo parity"]
fn hundreds_of_volumes_are_attached_detached_and_moved_in_twice_upstream_s_time_at_most() {
    let _alone = alone();
    run_test(async {
        let theirs = play(Manager::Upstream).await?;
        let mut beyond = Vec::new();
        for (replicas, killed) in [(1, false), (REPLICAS, false), (REPLICAS, true)] {
            let manager = Manager::Manifold { replicas, killed };
            let more = if killed { TAKEOVER } else { Duration::ZERO };
            for (ours, theirs) in play(manager).await?.iter().zip(&theirs) {
                let is_late = ours.time > theirs.time.mul_f64(SLACK) + ROUNDS + more;
                // More than one for each write that lands would grow with the number of replicas.
                let storms = ours.writes.conflicts > ours.writes.granted;
                if is_late || storms {
                    beyond.push(format!(
                        "{manager:?}: {ours:.2?}, upstream {:.2?}",
                        theirs.time
                    ));
                }
            }
        }
        ensure!(beyond.is_empty(), "{}", beyond.join("\n"));
        Ok(())
    });
}
