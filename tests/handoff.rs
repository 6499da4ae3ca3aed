//! Ranges that change owner at random every second, while a Job, a StatefulSet, a DaemonSet and a
//! Deployment are in motion: no pod beyond wanted, no index, ordinal or node twice, counters exact.
//!
//! The ranges of the workloads' own keys are among those that move (`POST /debug/move`), each about
//! every other second. What became of it is read from the audit log: a pod lives from the answer to
//! its creation to the arrival of the first request to delete it.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{ControlPlane, Replica, run_test, until};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::judge::AUDIT_POLICY;
use crate::support::{POLL, ROUND, alone, ask_for_moves, fleet, judge, owners};

const REPLICAS: usize = 3;
/// Ranges moved in each round beside those of the workloads.
const OTHERS: usize = 8;
/// For a workload to get through: far beyond what it takes on a machine busy with other tests.
const LIMIT: Duration = Duration::from_secs(300);

/// Beside what the judge reads: what a ReplicaSet is reported to have.
const SCALING: &str = r#"rules:
- level: Request
  verbs: ["patch"]
  resources:
  - {group: "apps", resources: ["replicasets"]}
"#;

/// How much is in motion.
struct Figures {
    indexes: u32,
    at_once: u32,
    ordinals: u32,
    nodes: usize,
    replicas: u32,
    /// Rounds of moves that must have happened at least.
    rounds: usize,
}

impl Figures {
    /// Above `replicas`, as `maxSurge` 25% is read.
    fn surge(&self) -> u32 {
        self.replicas.div_ceil(4)
    }
}

/// What the audit log says of pods.
#[derive(Debug)]
enum Step {
    Made(Pod),
    /// By a controller, or by anybody else.
    Deleted(String, bool),
    /// How many pods a ReplicaSet must have.
    Wants(String, u64),
}

#[derive(Debug)]
struct Pod {
    name: String,
    owner: String,
    /// Index, ordinal, node; of a Deployment's pod the ReplicaSet.
    place: String,
}

fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or("")
}

/// The steps in a namespace, in the order in which they took effect.
fn steps(control_plane: &ControlPlane, namespace: &str) -> Result<Vec<Step>> {
    let mut steps: Vec<(Timestamp, Step)> = Vec::new();
    control_plane.audit().read(|record| {
        let object = record.object();
        let granted = record.code().is_some_and(|code| (200..300).contains(&code));
        if object.namespace != namespace || record.stage != "ResponseComplete" || !granted {
            return;
        }
        if record.resource() == "replicasets"
            && let Some(asked) = &record.request_object
            && let Some(wanted) = asked["spec"]["replicas"].as_u64()
        {
            let step = Step::Wants(object.name.clone(), wanted);
            steps.push((record.request_received_timestamp, step));
        }
        if record.resource() != "pods" {
            return;
        }
        let by_controller = record.agent().is_some();
        match record.verb.as_str() {
            "create" => {
                let (Some(asked), Some(made)) = (&record.request_object, &record.response_object)
                else {
                    return;
                };
                let node = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/\
                            nodeSelectorTerms/0/matchFields/0/values/0";
                let places = [
                    text(asked, "/metadata/annotations/batch.kubernetes.io~1job-completion-index"),
                    text(asked, "/metadata/labels/apps.kubernetes.io~1pod-index"),
                    text(asked, node),
                ];
                let owner = text(asked, "/metadata/ownerReferences/0/kind");
                let pod = Pod {
                    name: text(made, "/metadata/name").to_owned(),
                    owner: owner.to_owned(),
                    place: match owner {
                        "ReplicaSet" => text(asked, "/metadata/ownerReferences/0/name").to_owned(),
                        _ => places.concat(),
                    },
                };
                steps.push((record.stage_timestamp, Step::Made(pod)));
            }
            "delete" => {
                let step = Step::Deleted(object.name, by_controller);
                steps.push((record.request_received_timestamp, step));
            }
            _ => {}
        }
    })?;
    steps.sort_by_key(|(at, _)| *at);
    Ok(steps.into_iter().map(|(_, step)| step).collect())
}

/// What was found in the log.
#[derive(Debug, Default)]
struct Found {
    complaints: Vec<String>,
    /// Owner's kind and place → creations.
    made: BTreeMap<(String, String), usize>,
    /// Ordinal → deletions by the controller.
    ordinals_deleted: BTreeMap<String, usize>,
    /// Most pods of the Deployment at any time.
    most: usize,
}

/// `templates`: how many each of the workloads that roll out has had.
fn examine(steps: &[Step], figures: &Figures, templates: usize) -> Found {
    let mut found = Found::default();
    let mut living: BTreeMap<String, (String, String)> = BTreeMap::new();
    let mut last_ordinal = None;
    // A rollout is bounded by what the ReplicaSets want, and each of them by its own number: an old one may
    // still have pods to delete when the new one makes its own, as under upstream.
    let mut wants: BTreeMap<String, u64> = BTreeMap::new();
    let most = u64::from(figures.replicas + figures.surge());
    for step in steps {
        match step {
            Step::Made(pod) => {
                let place = (pod.owner.clone(), pod.place.clone());
                let there = living.values().filter(|other| **other == place).count();
                if pod.owner == "ReplicaSet" {
                    let of_sets = living.values().filter(|(owner, _)| owner == "ReplicaSet");
                    found.most = found.most.max(of_sets.count() + 1);
                    let wanted = wants.get(&pod.place).copied().unwrap_or(0);
                    if there as u64 >= wanted {
                        found.complaints.push(format!(
                            "{} was made beside {there}, its ReplicaSet wants {wanted}",
                            pod.name
                        ));
                    }
                } else if there > 0 {
                    found.complaints.push(format!(
                        "{} was made while another lived at {} {}",
                        pod.name, pod.owner, pod.place
                    ));
                }
                let count = found.made.entry(place.clone()).or_default();
                *count += 1;
                if pod.owner == "StatefulSet" && *count == 1 {
                    let ordinal: Option<u32> = pod.place.parse().ok();
                    if ordinal < last_ordinal {
                        found
                            .complaints
                            .push(format!("{} came before its turn", pod.name));
                    }
                    last_ordinal = ordinal;
                }
                living.insert(pod.name.clone(), place);
            }
            Step::Wants(name, wanted) => {
                wants.insert(name.clone(), *wanted);
                let all: u64 = wants.values().sum();
                if all > most {
                    let complaint = format!("the ReplicaSets want {all} pods");
                    found.complaints.push(complaint);
                }
            }
            Step::Deleted(name, by_controller) => {
                if let Some((owner, place)) = living.remove(name)
                    && owner == "StatefulSet"
                    && *by_controller
                {
                    *found.ordinals_deleted.entry(place).or_default() += 1;
                }
            }
        }
    }
    // Each index once; each node and each ordinal once for each template.
    let mut expect = |owner: &str, places: Vec<String>, times: usize| {
        let of_owner: BTreeMap<&str, usize> = found
            .made
            .iter()
            .filter(|((kind, _), _)| kind == owner)
            .map(|((_, place), count)| (place.as_str(), *count))
            .collect();
        let wanted: BTreeMap<&str, usize> =
            places.iter().map(|place| (place.as_str(), times)).collect();
        if of_owner != wanted {
            found
                .complaints
                .push(format!("pods made by {owner}: {of_owner:?}"));
        }
    };
    expect(
        "Job",
        (0..figures.indexes).map(|n| n.to_string()).collect(),
        1,
    );
    expect(
        "DaemonSet",
        (0..figures.nodes).map(|n| format!("node-{n}")).collect(),
        templates,
    );
    expect(
        "StatefulSet",
        (0..figures.ordinals).map(|n| n.to_string()).collect(),
        templates,
    );
    let replaced: BTreeMap<String, usize> = (0..figures.ordinals)
        .map(|n| (n.to_string(), templates - 1))
        .collect();
    if found.ordinals_deleted != replaced {
        found.complaints.push(format!(
            "deletions by ordinal: {:?}",
            found.ordinals_deleted
        ));
    }
    found
}

/// Moves ranges until it is dropped.
struct Mover<'m> {
    client: Client,
    namespace: String,
    replicas: BTreeMap<String, Client>,
    /// Whose `/debug/explain` says the range of a key.
    any: &'m Replica,
    rounds: AtomicUsize,
    accepted: AtomicUsize,
    refused: AtomicUsize,
}

impl Mover<'_> {
    async fn range_of(&self, controller: &str, name: &str) -> Result<u32> {
        let key = format!("{}/{name}", self.namespace);
        let path = format!("/debug/explain?controller={controller}&key={key}");
        let said: Value = serde_json::from_str(&self.any.text(&path).await?)?;
        let range = said["range"].as_u64().context("no range")?;
        Ok(u32::try_from(range)?)
    }

    /// The ranges of everything that is in motion.
    async fn own_ranges(&self) -> Result<BTreeSet<u32>> {
        let mut ranges = BTreeSet::new();
        for (controller, name) in [
            ("job-controller", "sweep"),
            ("statefulset-controller", "db"),
            ("daemonset-controller", "logs"),
            ("deployment-controller", "web"),
        ] {
            ranges.insert(self.range_of(controller, name).await?);
        }
        let sets: Api<ReplicaSet> = Api::namespaced(self.client.clone(), &self.namespace);
        for set in sets.list(&ListParams::default()).await?.items {
            let name = set.metadata.name.unwrap_or_default();
            ranges.insert(self.range_of("replicaset-controller", &name).await?);
        }
        Ok(ranges)
    }

    async fn round(&self) -> Result<()> {
        let mut ranges: Vec<u32> = self.own_ranges().await?.into_iter().collect();
        ranges.retain(|_| rand::random());
        ranges.extend((0..OTHERS).map(|_| u32::from(rand::random::<u8>())));
        let owners = owners(&self.client).await?;
        let (accepted, refused) = ask_for_moves(&owners, &self.replicas, ranges).await?;
        self.accepted.fetch_add(accepted, Ordering::Relaxed);
        self.refused.fetch_add(refused, Ordering::Relaxed);
        self.rounds.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    async fn run(&self) -> Result<Infallible> {
        let mut ticks = tokio::time::interval(ROUND);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.round().await?;
        }
    }
}

fn workload(kind: &str, name: &str, spec: &Value) -> Value {
    let restart = if kind == "Job" { "Never" } else { "Always" };
    let mut object = json!({
        "kind": kind,
        "metadata": {"name": name},
        "spec": {
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "restartPolicy": restart,
                    "terminationGracePeriodSeconds": 0,
                    "containers": [{"name": "app", "image": "example/app:1"}],
                },
            },
        },
    });
    if kind != "Job" {
        object["spec"]["selector"] = json!({"matchLabels": {"app": name}});
    }
    for (key, value) in spec.as_object().into_iter().flatten() {
        object["spec"][key] = value.clone();
    }
    object
}

/// The four of them.
struct Workloads {
    jobs: Api<Job>,
    stateful_sets: Api<StatefulSet>,
    daemon_sets: Api<DaemonSet>,
    deployments: Api<Deployment>,
    pods: Api<k8s_openapi::api::core::v1::Pod>,
}

impl Workloads {
    fn of(client: &Client, namespace: &str) -> Self {
        Self {
            jobs: Api::namespaced(client.clone(), namespace),
            stateful_sets: Api::namespaced(client.clone(), namespace),
            daemon_sets: Api::namespaced(client.clone(), namespace),
            deployments: Api::namespaced(client.clone(), namespace),
            pods: Api::namespaced(client.clone(), namespace),
        }
    }

    async fn make(&self, figures: &Figures) -> Result<()> {
        let new = PostParams::default();
        let job = json!({"completionMode": "Indexed", "completions": figures.indexes, "parallelism": figures.at_once});
        let job = workload("Job", "sweep", &job);
        self.jobs
            .create(&new, &serde_json::from_value(job)?)
            .await?;
        let set = json!({"serviceName": "db", "replicas": figures.ordinals});
        let mut set = workload("StatefulSet", "db", &set);
        set["spec"]["template"]["spec"]["schedulingGates"] = json!([{"name": "example.com/hand"}]);
        self.stateful_sets
            .create(&new, &serde_json::from_value(set)?)
            .await?;
        let set = json!({"updateStrategy": {"rollingUpdate": {"maxUnavailable": "20%"}}});
        let set = workload("DaemonSet", "logs", &set);
        self.daemon_sets
            .create(&new, &serde_json::from_value(set)?)
            .await?;
        let deployment = workload("Deployment", "web", &json!({"replicas": figures.replicas}));
        self.deployments
            .create(&new, &serde_json::from_value(deployment)?)
            .await?;
        Ok(())
    }

    /// Runs the StatefulSet's pods, until it is dropped. The test bed's kubelets delete by name, and what is
    /// meant for a pod may hit the next one of its ordinal.
    async fn run_ordinals(&self) -> Result<Infallible> {
        let of_set = ListParams::default()
            .labels("app=db")
            .fields("status.phase=Pending");
        let ready = json!({"type": "Ready", "status": "True"});
        loop {
            for pod in self.pods.list(&of_set).await?.items {
                let meta = pod.metadata;
                let run = json!({
                    "metadata": {"uid": meta.uid},
                    "status": {"phase": "Running", "conditions": [ready]},
                });
                let name = meta.name.unwrap_or_default();
                let how = PatchParams::default();
                match self
                    .pods
                    .patch_status(&name, &how, &Patch::Merge(run))
                    .await
                {
                    Ok(_) => {}
                    // It has gone, or another has come in its place.
                    Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn roll_out(&self, version: usize) -> Result<()> {
        let image = format!("example/app:{version}");
        let template = json!({"spec": {"template": {"spec": {"containers": [{"name": "app", "image": image}]}}}});
        let change = Patch::Strategic(template);
        let how = PatchParams::default();
        self.stateful_sets.patch("db", &how, &change).await?;
        self.daemon_sets.patch("logs", &how, &change).await?;
        self.deployments.patch("web", &how, &change).await?;
        Ok(())
    }

    /// Every pod of the newest template is available, and there is none beside; the Job is through.
    async fn through(&self, figures: &Figures) -> Result<()> {
        until("everything is through", LIMIT, POLL * 4, || async {
            let at = |object: &Value, names: &[&str]| -> Vec<u64> {
                let status = &object["status"];
                names
                    .iter()
                    .map(|name| status[name].as_u64().unwrap_or(0))
                    .collect()
            };
            let seen = |object: &Value| {
                object["status"]["observedGeneration"] == object["metadata"]["generation"]
            };
            let web = serde_json::to_value(self.deployments.get("web").await?)?;
            let counts = at(&web, &["replicas", "updatedReplicas", "availableReplicas"]);
            let all = counts
                .iter()
                .all(|count| *count == u64::from(figures.replicas));
            ensure!(seen(&web) && all, "the Deployment has {counts:?}");
            let db = serde_json::to_value(self.stateful_sets.get("db").await?)?;
            let counts = at(&db, &["replicas", "updatedReplicas", "availableReplicas"]);
            let all = counts
                .iter()
                .all(|count| *count == u64::from(figures.ordinals));
            ensure!(seen(&db) && all, "the StatefulSet has {counts:?}");
            let logs = serde_json::to_value(self.daemon_sets.get("logs").await?)?;
            let counts = at(
                &logs,
                &[
                    "currentNumberScheduled",
                    "updatedNumberScheduled",
                    "numberAvailable",
                ],
            );
            let all = counts.iter().all(|count| *count == figures.nodes as u64);
            ensure!(seen(&logs) && all, "the DaemonSet has {counts:?}");
            let job = self.jobs.get("sweep").await?.status.unwrap_or_default();
            let done = job
                .conditions
                .iter()
                .flatten()
                .any(|one| one.type_ == "Complete");
            ensure!(done, "the Job has {:?} of its indexes", job.succeeded);
            Ok(Some(()))
        })
        .await
    }

    async fn job_is_exact(&self, figures: &Figures) -> Result<()> {
        let status = self.jobs.get("sweep").await?.status.unwrap_or_default();
        let indexes = format!("0-{}", figures.indexes - 1);
        let left = status.uncounted_terminated_pods.clone().unwrap_or_default();
        ensure!(
            status.succeeded == i32::try_from(figures.indexes).ok()
                && status.failed.unwrap_or(0) == 0
                && status.completed_indexes.as_deref() == Some(indexes.as_str())
                && left.succeeded.unwrap_or_default().is_empty()
                && left.failed.unwrap_or_default().is_empty(),
            "the Job says {status:?}"
        );
        Ok(())
    }
}

async fn in_motion(figures: &Figures) -> Result<()> {
    let control_plane = ControlPlane::builder()
        .audit_policy(AUDIT_POLICY.replacen("rules:\n", SCALING, 1))
        .nodes(figures.nodes)
        .start()
        .await?;
    let client = control_plane.client().await?;
    let fleet = fleet(&control_plane).await?;
    let replicas = fleet.start_all(REPLICAS).await?;
    let namespace = control_plane.namespace("handoff").await?;
    until("every range has an owner", LIMIT, POLL, || async {
        let owned = owners(&client).await?;
        let owned = owned
            .values()
            .filter(|(owner, _)| !owner.is_empty())
            .count();
        ensure!(owned == fleet.ranges() as usize, "{owned} have");
        Ok(Some(()))
    })
    .await?;
    let before = owners(&client).await?;
    let clients = replicas
        .iter()
        .map(|replica| Ok((replica.name().to_owned(), replica.client()?)))
        .collect::<Result<_>>()?;
    let mover = Mover {
        client: client.clone(),
        namespace: namespace.clone(),
        replicas: clients,
        any: replicas.first().context("a replica")?,
        rounds: AtomicUsize::new(0),
        accepted: AtomicUsize::new(0),
        refused: AtomicUsize::new(0),
    };
    let workloads = Workloads::of(&client, &namespace);
    let since = Instant::now();
    let work = async {
        workloads.make(figures).await?;
        workloads.through(figures).await.context("made")?;
        // How long a rollout takes is the machine's affair: there are as many as the rounds need, and at
        // least one.
        let mut templates: usize = 1;
        while templates == 1 || mover.rounds.load(Ordering::Relaxed) < figures.rounds {
            templates += 1;
            workloads.roll_out(templates).await?;
            workloads.through(figures).await.context("rolled out")?;
        }
        anyhow::Ok(templates)
    };
    let templates = tokio::select! {
        done = work => done?,
        failed = mover.run() => match failed.context("the mover")? {},
        failed = workloads.run_ordinals() => match failed.context("running the ordinals")? {},
    };
    let took = since.elapsed();
    let own = mover.own_ranges().await?;
    let after = owners(&client).await?;
    let moves = |range: &u32| after[range].1.saturating_sub(before[range].1);
    let own_moves: u64 = own.iter().map(moves).sum();
    let all_moves: u64 = after.keys().map(moves).sum();

    workloads.job_is_exact(figures).await?;
    let found = examine(&steps(&control_plane, &namespace)?, figures, templates);
    println!(
        "handoff: {} indexes, {} ordinals, {} nodes, {} replicas rolled out in {took:.1?}; {} rounds, {} moves \
         asked for, {} refused; {all_moves} changes of epoch, {own_moves} of them in the {} ranges of the \
         workloads; most pods of the Deployment {}; {} complaints",
        figures.indexes,
        figures.ordinals,
        figures.nodes,
        figures.replicas,
        mover.rounds.load(Ordering::Relaxed),
        mover.accepted.load(Ordering::Relaxed),
        mover.refused.load(Ordering::Relaxed),
        own.len(),
        found.most,
        found.complaints.len()
    );
    ensure!(
        found.complaints.is_empty(),
        "{}",
        found.complaints.join("\n")
    );
    let rounds = mover.rounds.load(Ordering::Relaxed);
    ensure!(
        own_moves >= rounds as u64,
        "the workloads' ranges hardly moved"
    );
    judge(&control_plane, "handoff")?;
    Ok(())
}

#[test]
fn workloads_in_motion_survive_ranges_in_motion() {
    let _alone = alone();
    run_test(in_motion(&Figures {
        indexes: 200,
        at_once: 20,
        ordinals: 10,
        nodes: 20,
        replicas: 80,
        rounds: 5,
    }));
}

#[test]
#[ignore = "minutes: cargo parity"]
fn large_workloads_in_motion_survive_ranges_in_motion() {
    let _alone = alone();
    run_test(in_motion(&Figures {
        indexes: 500,
        at_once: 100,
        ordinals: 20,
        nodes: 50,
        replicas: 200,
        rounds: 10,
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIGURES: Figures = Figures {
        indexes: 2,
        at_once: 2,
        ordinals: 2,
        nodes: 1,
        replicas: 2,
        rounds: 0,
    };

    fn made(owner: &str, name: &str, place: &str) -> Step {
        Step::Made(Pod {
            name: name.to_owned(),
            owner: owner.to_owned(),
            place: place.to_owned(),
        })
    }

    fn deleted(name: &str) -> Step {
        Step::Deleted(name.to_owned(), true)
    }

    fn faultless() -> Vec<Step> {
        vec![
            made("Job", "s-0", "0"),
            made("Job", "s-1", "1"),
            made("StatefulSet", "db-0", "0"),
            made("StatefulSet", "db-1", "1"),
            deleted("db-1"),
            made("StatefulSet", "db-1", "1"),
            deleted("db-0"),
            made("StatefulSet", "db-0", "0"),
            made("DaemonSet", "l-1", "node-0"),
            deleted("l-1"),
            made("DaemonSet", "l-2", "node-0"),
            Step::Wants("w".to_owned(), 2),
            made("ReplicaSet", "w-1", "w"),
            made("ReplicaSet", "w-2", "w"),
        ]
    }

    fn complaints(steps: &[Step]) -> Vec<String> {
        examine(steps, &FIGURES, 2).complaints
    }

    #[test]
    fn what_is_as_it_should_be_is_not_complained_of() {
        assert_eq!(complaints(&faultless()), Vec::<String>::new());
    }

    #[test]
    fn each_fault_is_seen() {
        for (at, extra, said) in [
            (2, made("Job", "s-2", "1"), "while another lived at Job 1"),
            (14, made("ReplicaSet", "w-4", "w"), "its ReplicaSet wants 2"),
            (14, Step::Wants("v".to_owned(), 2), "want 4 pods"),
            (
                9,
                made("DaemonSet", "l-3", "node-0"),
                "another lived at DaemonSet node-0",
            ),
            (14, deleted("db-0"), "deletions by ordinal"),
            (2, made("StatefulSet", "db-1", "1"), "before its turn"),
        ] {
            let mut steps = faultless();
            steps.insert(at, extra);
            let complaints = complaints(&steps).join("\n");
            assert!(complaints.contains(said), "{said}: {complaints}");
        }
    }
}
