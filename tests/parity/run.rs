//! Runs scenarios on one control plane, one that manages it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use futures::future::join_all;
use harness::{ControlPlane, until};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::api::{ELSEWHERE, Format, KINDS, Kind, LABEL, Server, is_refused, kind_of, reference};
use super::normal::{Normal, text_at};
use super::scenario::{
    Among, Node, Pods, Scenario, Step, Turn, Wait, WaitPods, dated, filled, owners, requestor,
};
use super::writes::{AUDIT_POLICY, Course, Follower};
use crate::support::POLL;

/// Scenarios under way at once: more would only wait for each other on two processors.
const AT_ONCE: usize = 12;
/// So that a scenario with a thousand pods finds room beside the others.
const PODS_PER_NODE: usize = 500;
/// A namespace is at rest when its manager has written nothing for so long: twice the second that
/// upstream's Job controller waits before it examines a Job.
const REST: Duration = Duration::from_millis(2500);
/// For anything that a scenario waits for.
const LIMIT: Duration = Duration::from_secs(120);
/// Services may have addresses of both families.
const DUAL_STACK: &str = "--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/108";
/// Between two readings of the audit log.
const FOLLOW: Duration = Duration::from_millis(200);
/// Between two searches for pods to run.
const KUBELET: Duration = Duration::from_millis(100);
/// Nobody's events but the managers' are compared: the scheduler and the API server report their own
/// decisions.
const OTHERS: &[&str] = &["default-scheduler", "ipallocator-repair-controller"];

/// What was there at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshot {
    pub(crate) name: String,
    /// Kind and evened name → evened objects.
    pub(crate) objects: BTreeMap<String, Vec<Value>>,
    /// Evened event → whether it was reported once or several times.
    pub(crate) events: BTreeMap<String, &'static str>,
    pub(crate) course: Course,
}

impl Snapshot {
    /// Of evened objects of any namespace, and of nothing else.
    pub(crate) fn of(name: &str, evened: impl IntoIterator<Item = Value>) -> Self {
        let mut objects: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for even in evened {
            let namespace = text_at(&even, "/metadata/namespace");
            let name = text_at(&even, "/metadata/name");
            let key = format!("{} {namespace}/{name}", text_at(&even, "/kind"));
            objects.entry(key).or_default().push(even);
        }
        Self {
            name: name.to_owned(),
            objects,
            ..Self::default()
        }
    }
}

/// What one scenario left behind.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outcome {
    pub(crate) snapshots: Vec<Snapshot>,
    /// Why it could not continue.
    pub(crate) failed: Option<String>,
}

impl Outcome {
    /// Puts the conditions of all objects in the order of their types. The managers put the one that changed
    /// last behind the others, so their order reports which pod was ready first, and when who came to read.
    pub(crate) fn sort_conditions(&mut self) {
        let objects = self
            .snapshots
            .iter_mut()
            .flat_map(|snapshot| &mut snapshot.objects);
        for object in objects.flat_map(|(_, objects)| objects) {
            if let Some(Value::Array(conditions)) = object.pointer_mut("/status/conditions") {
                conditions.sort_by_key(|one| one["type"].to_string());
            }
        }
    }
}

/// A control plane whose audit log is followed.
pub(crate) struct Side {
    pub(crate) name: &'static str,
    pub(crate) control_plane: ControlPlane,
    server: Server,
    follower: Arc<Mutex<Follower>>,
    following: tokio::task::JoinHandle<()>,
}

impl Drop for Side {
    fn drop(&mut self) {
        self.following.abort();
    }
}

/// A scenario under way.
pub(crate) struct Play<'s> {
    scenario: &'s Scenario,
    outcome: Outcome,
    /// Its next step.
    next: usize,
    /// When the last deed was done.
    since: Instant,
}

impl Side {
    /// A control plane whose API server has these flags beside the suite's own.
    pub(crate) async fn start(name: &'static str, api_server: &[&str]) -> Result<Self> {
        let builder = ControlPlane::builder()
            .audit_policy(AUDIT_POLICY)
            .api_server_arg(DUAL_STACK)
            .api_server_arg("--feature-gates=ClusterTrustBundle=true")
            .api_server_arg("--runtime-config=certificates.k8s.io/v1beta1/clustertrustbundles=true")
            .pods_per_node(PODS_PER_NODE);
        let control_plane = api_server
            .iter()
            .fold(builder, |builder, flag| builder.api_server_arg(*flag))
            .start()
            .await?;
        let server = Server::new(control_plane.client().await?);
        server.define_widgets().await?;
        let follower = Arc::new(Mutex::new(Follower::new(control_plane.audit())));
        let reader = Arc::clone(&follower);
        let following = tokio::spawn(async move {
            loop {
                let read = reader.lock().unwrap_or_else(PoisonError::into_inner).read();
                if let Err(error) = read {
                    eprintln!("parity: the audit log: {error:#}");
                    return;
                }
                tokio::time::sleep(FOLLOW).await;
            }
        });
        Ok(Self {
            name,
            control_plane,
            server,
            follower,
            following,
        })
    }

    /// All scenarios up to where the manager starts, if that is not where they begin.
    pub(crate) async fn prepared<'s>(&self, scenarios: &'s [Scenario]) -> Vec<Play<'s>> {
        let mut plays = Self::begin(scenarios);
        if scenarios.iter().all(|one| one.among == Among::AtStart) {
            self.play_all(&mut plays, true).await;
        }
        plays
    }

    /// All scenarios to their end, whatever swaps they have.
    pub(crate) async fn run(&self, mut plays: Vec<Play<'_>>) -> Vec<Outcome> {
        let started = Instant::now();
        self.play_all(&mut plays, false).await;
        println!(
            "parity: {}: {} scenarios in {:.1?}",
            self.name,
            plays.len(),
            started.elapsed()
        );
        Self::end(plays)
    }

    /// None of them has done anything yet.
    pub(crate) fn begin(scenarios: &[Scenario]) -> Vec<Play<'_>> {
        scenarios
            .iter()
            .map(|scenario| Play {
                scenario,
                outcome: Outcome::default(),
                next: 0,
                since: Instant::now(),
            })
            .collect()
    }

    /// What they have left behind.
    pub(crate) fn end(plays: Vec<Play<'_>>) -> Vec<Outcome> {
        plays.into_iter().map(|play| play.outcome).collect()
    }

    /// Plays all, as many at once as there is room for: each to its next swap, or to its end.
    pub(crate) async fn play_all(&self, plays: &mut [Play<'_>], to_swap: bool) {
        let room = Semaphore::new(AT_ONCE);
        let turns: BTreeMap<String, Semaphore> = plays
            .iter()
            .filter_map(|play| Some((play.scenario.in_turn.clone()?, Semaphore::new(1))))
            .collect();
        join_all(plays.iter_mut().map(|play| async {
            let _turn = match &play.scenario.in_turn {
                Some(what) => Some(turns[what].acquire().await),
                None => None,
            };
            let _permit = room.acquire().await;
            if play.outcome.failed.is_some() {
                return;
            }
            if let Err(error) = self.play(play, to_swap).await {
                play.outcome.failed = Some(format!("{error:#}"));
                // What is there all the same helps to understand.
                if let Ok(snapshot) = self.snapshot(play.scenario, "failed").await {
                    play.outcome.snapshots.push(snapshot);
                }
            }
        }))
        .await;
    }

    async fn play(&self, play: &mut Play<'_>, to_swap: bool) -> Result<()> {
        let scenario = play.scenario;
        if play.next == 0 {
            self.make_namespace(&scenario.name, scenario.among).await?;
        }
        let steps = async {
            while let Some(step) = scenario.steps.get(play.next) {
                play.next += 1;
                self.step(play, step)
                    .await
                    .with_context(|| format!("step {} ({step:?})", play.next))?;
                if to_swap && matches!(step, Step::Swap(_)) {
                    return Ok(());
                }
            }
            self.rest(play).await?;
            let snapshot = self.snapshot(scenario, "the end").await?;
            play.outcome.snapshots.push(snapshot);
            Ok(())
        };
        if !scenario.kubelet {
            return steps.await;
        }
        tokio::select! {
            done = steps => done,
            failed = self.run_pods(&scenario.name) => failed,
        }
    }

    async fn make_namespace(&self, namespace: &str, among: Among) -> Result<()> {
        let kind = kind_of("namespace")?;
        let object =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        self.server.create(kind, "", &object).await?;
        if among == Among::AtStart {
            return Ok(());
        }
        // No pod is admitted before.
        let account = kind_of("serviceaccount")?;
        until(
            "the namespace has its service account",
            LIMIT,
            POLL,
            || async { self.server.get(account, namespace, "default").await },
        )
        .await?;
        Ok(())
    }

    /// Runs every pending pod, until it is dropped.
    async fn run_pods(&self, namespace: &str) -> Result<()> {
        let kind = kind_of("pod")?;
        let run = Pods::to_run();
        loop {
            for pod in self.server.list(kind, namespace).await? {
                if !fits(&pod, &run) {
                    continue;
                }
                let uid = text_at(&pod, "/metadata/uid");
                let change =
                    json!({"metadata": {"uid": uid}, "status": status(&pod, Turn::Run, &run)});
                let name = (text_at(&pod, "/metadata/name"), "status");
                let done = self
                    .server
                    .patch(kind, namespace, name, Format::Merge, &change)
                    .await;
                // It may have gone, or another may have come in its place.
                if let Err(error) = done
                    && !is_refused(&error)
                {
                    return Err(error);
                }
            }
            tokio::time::sleep(KUBELET).await;
        }
    }

    async fn step(&self, play: &mut Play<'_>, step: &Step) -> Result<()> {
        let namespace = play.scenario.name.as_str();
        match step {
            Step::Make(manifest) => {
                let mut object = filled(manifest)?;
                let owners = self.owners(namespace, manifest).await?;
                if !owners.is_empty() {
                    object["metadata"]["ownerReferences"] = Value::Array(owners);
                }
                let object = dated(&object, jiff::Timestamp::now())?;
                let object = self.with_uids(namespace, &object).await?;
                let kind = kind_of(text_at(&object, "/kind"))?;
                let place = text_at(&object, "/metadata/namespace");
                match requestor(manifest)? {
                    Some((user, groups)) => {
                        let by = (user.as_str(), groups.as_slice());
                        self.server.create_as(kind, &object, by).await?;
                    }
                    None if place.is_empty() => {
                        self.server.create(kind, namespace, &object).await?;
                    }
                    None => {
                        self.server.create(kind, place, &object).await?;
                    }
                }
            }
            Step::Change(change) => self.patch(namespace, change, "", Format::Merge).await?,
            Step::Edit(change) => self.patch(namespace, change, "", Format::Json).await?,
            Step::Status(change) => {
                self.patch(namespace, change, "status", Format::Merge)
                    .await?;
            }
            Step::Approval(change) => {
                self.patch(namespace, change, "approval", Format::Merge)
                    .await?;
            }
            Step::Delete(delete) => {
                let (kind, name) = reference(&delete.of)?;
                let name = &self.whole_name(namespace, kind, name).await?;
                let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": delete.how});
                self.server.delete(kind, namespace, name, &options).await?;
            }
            Step::Kubectl(command) => {
                let mut args = vec!["-n", namespace];
                args.extend(command.split_whitespace());
                self.control_plane.kubectl(&args).await?;
            }
            Step::Pods(pods) => self.pods(namespace, pods).await?,
            // What was awaited has only just happened.
            Step::Wait(wait) => self.wait(namespace, wait).await?,
            Step::WaitPods(wait) => self.wait_pods(namespace, wait).await?,
            Step::Node(node) => self.node(node, play.scenario.among).await?,
            Step::Pause(seconds) => tokio::time::sleep(Duration::from_secs(*seconds)).await,
            Step::Rest(_) => return self.rest(play).await,
            Step::Snapshot(name) => {
                self.rest(play).await?;
                let snapshot = self.snapshot(play.scenario, name).await?;
                play.outcome.snapshots.push(snapshot);
                return Ok(());
            }
            Step::Swap(_) => return Ok(()),
        }
        play.since = Instant::now();
        Ok(())
    }

    /// The references of an object to the owners that its manifest names.
    async fn owners(&self, namespace: &str, manifest: &Value) -> Result<Vec<Value>> {
        let mut references = Vec::new();
        for owner in owners(manifest)? {
            let (kind, name) = match &owner.api_version {
                Some(_) => owner.of.split_once('/').context("<kind>/<name>")?,
                None => {
                    let (kind, name) = reference(&owner.of)?;
                    (kind.name, name)
                }
            };
            let version = match &owner.api_version {
                Some(version) => version,
                None => kind_of(kind)?.version,
            };
            let uid = match owner.uid {
                Some(uid) => uid,
                None => {
                    let namespace = owner.namespace.as_deref().unwrap_or(namespace);
                    let live = self.server.get(kind_of(kind)?, namespace, name).await?;
                    let live = live.with_context(|| format!("there is no {}", owner.of))?;
                    text_at(&live, "/metadata/uid").to_owned()
                }
            };
            let mut reference =
                json!({"apiVersion": version, "kind": kind, "name": name, "uid": uid});
            if owner.block {
                reference["blockOwnerDeletion"] = json!(true);
            }
            references.push(reference);
        }
        Ok(references)
    }

    /// With the uid of an object wherever `uid:<kind>/<name>` is written.
    async fn with_uids(&self, namespace: &str, value: &Value) -> Result<Value> {
        let mut value = value.clone();
        for text in uids_wanted(&value) {
            let (kind, name) = reference(text.trim_start_matches(UID_OF))?;
            let live = self.server.get(kind, namespace, name).await?;
            let live = live.with_context(|| format!("there is no object for `{text}`"))?;
            replace_texts(&mut value, &text, text_at(&live, "/metadata/uid"));
        }
        Ok(value)
    }

    /// An object by its name; by `~` and a prefix the one whose name was generated with that.
    async fn find(&self, namespace: &str, kind: &Kind, name: &str) -> Result<Option<Value>> {
        let Some(prefix) = name.strip_prefix('~') else {
            return self.server.get(kind, namespace, name).await;
        };
        let all = self.server.list(kind, namespace).await?;
        let mut all = all.into_iter();
        Ok(all.find(|object| text_at(object, "/metadata/generateName") == prefix))
    }

    async fn whole_name(&self, namespace: &str, kind: &Kind, name: &str) -> Result<String> {
        if !name.starts_with('~') {
            return Ok(name.to_owned());
        }
        let found = self.find(namespace, kind, name).await?;
        let found = found.with_context(|| format!("no {} {name}", kind.name))?;
        Ok(text_at(&found, "/metadata/name").to_owned())
    }

    async fn patch(
        &self,
        namespace: &str,
        change: &super::scenario::Change,
        subresource: &str,
        format: Format,
    ) -> Result<()> {
        let (kind, name) = reference(&change.of)?;
        let name = self.whole_name(namespace, kind, name).await?;
        let to = dated(&change.to, jiff::Timestamp::now())?;
        let to = self.with_uids(namespace, &to).await?;
        self.server
            .patch(kind, namespace, (name.as_str(), subresource), format, &to)
            .await?;
        Ok(())
    }

    async fn wait(&self, namespace: &str, wait: &Wait) -> Result<()> {
        let (kind, name) = reference(&wait.of)?;
        let limit = wait.within.map_or(LIMIT, Duration::from_secs);
        until(&wait.of, limit, POLL, || async {
            let object = self.find(namespace, kind, name).await?;
            let Some(object) = object else {
                ensure!(wait.gone, "it is not there");
                return Ok(Some(()));
            };
            ensure!(!wait.gone, "it is there");
            let observed = object.pointer("/status/observedGeneration");
            let generation = object.pointer("/metadata/generation");
            // Where a controller reports what it has seen, an older status is no answer.
            let reported = matches!(
                kind.name,
                "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet" | "ReplicationController"
            );
            ensure!(
                !reported || observed == generation,
                "its last change is not yet seen"
            );
            for (path, wanted) in &wait.until {
                let found = fact(&object, path);
                ensure!(found == *wanted, "{path} is {found}, not {wanted}");
            }
            Ok(Some(()))
        })
        .await
    }

    async fn wait_pods(&self, namespace: &str, wait: &WaitPods) -> Result<()> {
        let what = format!("{} pods of {}", wait.count, wait.of);
        until(&what, LIMIT, POLL, || async {
            let pods = self.candidates(namespace, &wait.of).await?;
            let fitting = pods
                .iter()
                .filter(|pod| is_terminating(pod) == wait.terminating)
                .filter(|pod| {
                    let phase = text_at(pod, "/status/phase");
                    wait.phase.as_ref().is_none_or(|wanted| wanted == phase)
                });
            let count = fitting.count();
            ensure!(count == wait.count, "there are {count}");
            Ok(Some(()))
        })
        .await
    }

    /// Oldest first.
    async fn candidates(&self, namespace: &str, app: &str) -> Result<Vec<Value>> {
        let mut pods = self.server.list(kind_of("pod")?, namespace).await?;
        pods.retain(|pod| text_at(pod, "/metadata/labels/app") == app);
        pods.sort_by_key(|pod| {
            let at = |pointer| text_at(pod, pointer).to_owned();
            (at("/metadata/creationTimestamp"), at("/metadata/name"))
        });
        Ok(pods)
    }

    async fn pods(&self, namespace: &str, pods: &Pods) -> Result<()> {
        let what = format!("{} pods of {} to {:?}", pods.count, pods.of, pods.turn);
        let chosen = until(&what, LIMIT, POLL, || async {
            let mut fitting = self.candidates(namespace, &pods.of).await?;
            fitting.retain(|pod| fits(pod, pods));
            ensure!(fitting.len() >= pods.count, "there are {}", fitting.len());
            fitting.truncate(pods.count);
            Ok(Some(fitting))
        })
        .await?;
        let kind = kind_of("pod")?;
        for pod in chosen {
            let name = text_at(&pod, "/metadata/name");
            let (subresource, change) = match pods.turn {
                Turn::Delete => {
                    self.server
                        .delete(kind, namespace, name, &json!({}))
                        .await?;
                    continue;
                }
                Turn::Evict => {
                    self.server.evict(namespace, name).await?;
                    continue;
                }
                Turn::End => {
                    let now = json!({"gracePeriodSeconds": 0});
                    self.server.delete(kind, namespace, name, &now).await?;
                    continue;
                }
                Turn::Change => ("", pods.to.clone().context("`change` needs `to`")?),
                turn => ("status", json!({"status": status(&pod, turn, pods)})),
            };
            self.server
                .patch(kind, namespace, (name, subresource), Format::Merge, &change)
                .await?;
        }
        Ok(())
    }

    async fn node(&self, node: &Node, among: Among) -> Result<()> {
        let kind = kind_of("node")?;
        match node {
            Node::Add {
                name,
                labels,
                kubelet,
                annotations: own,
                spec,
            } => {
                let taint = json!({"key": "parity", "effect": "NoSchedule"});
                let mut annotations = if *kubelet {
                    json!({})
                } else {
                    ControlPlane::without_kubelet()
                };
                for (key, value) in own {
                    annotations[key] = json!(value);
                }
                let mut object = json!({
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": {"name": name, "labels": labels, "annotations": annotations},
                    "spec": {"taints": [taint]},
                    "status": {
                        "capacity": {"cpu": "8", "memory": "16Gi", "pods": "110"},
                        "allocatable": {"cpu": "8", "memory": "16Gi", "pods": "110"},
                    },
                });
                for (field, value) in spec {
                    object["spec"][field] = value.clone();
                }
                self.server.create(kind, "", &object).await?;
                if among == Among::Nodes {
                    // The scenario waits for its status; the manager removes the taint.
                    return Ok(());
                }
                until(&format!("{name} is ready"), LIMIT, POLL, || async {
                    let node = self.server.get(kind, "", name).await?.unwrap_or_default();
                    let ready = fact(&node, "condition.Ready") == "True";
                    ensure!(ready || !kubelet, "it is not");
                    Ok(Some(()))
                })
                .await?;
                // Admission has put the taint of new nodes there, which only node-lifecycle takes away.
                let ready = json!({"spec": {"taints": [taint]}});
                self.server
                    .patch(kind, "", (name, ""), Format::Merge, &ready)
                    .await?;
            }
            Node::Change { name, to } => {
                self.server
                    .patch(kind, "", (name, ""), Format::Merge, to)
                    .await?;
            }
            Node::Delete { name } => self.server.delete(kind, "", name, &json!({})).await?,
        }
        Ok(())
    }

    fn course(&self, namespace: &str) -> Course {
        let follower = self.follower.lock().unwrap_or_else(PoisonError::into_inner);
        follower.course(namespace)
    }

    /// Waits until nothing has happened for [`REST`].
    async fn rest(&self, play: &Play<'_>) -> Result<()> {
        let namespace = &play.scenario.name;
        until("the manager rests", LIMIT, FOLLOW, || async {
            ensure!(
                !self.following.is_finished(),
                "nobody follows the audit log"
            );
            let mut last = self.course(namespace).last;
            if play.scenario.among.is_elsewhere() {
                // Whose it is that is written there can't be reported.
                for (_, place) in ELSEWHERE {
                    last = last.max(self.course(place).last);
                }
            }
            let since = last.map_or(play.since, |last| last.max(play.since));
            let quiet = since.elapsed();
            ensure!(quiet > REST, "its last write was {quiet:.1?} ago");
            Ok(Some(()))
        })
        .await
    }

    async fn snapshot(&self, scenario: &Scenario, name: &str) -> Result<Snapshot> {
        let namespace = &scenario.name;
        let course = self.course(namespace);
        let mut normal = Normal::default();
        let mut made = course.made.clone();
        // Not by time: a child's creation may be answered before its owner's.
        made.sort_by_key(|(at, object)| {
            let version = text_at(object, "/metadata/resourceVersion");
            (version.parse().unwrap_or(u64::MAX), *at)
        });
        for (_, object) in &made {
            normal.learn(object);
        }
        let mut there = Vec::new();
        for kind in KINDS {
            there.extend(self.server.list(kind, namespace).await?);
        }
        if scenario.among.is_elsewhere() {
            for (kind, place) in ELSEWHERE {
                let mut found = self.server.list(kind_of(kind)?, place).await?;
                found.retain(|object| object["metadata"]["labels"][LABEL] == namespace.as_str());
                there.append(&mut found);
            }
        }
        let itself = self
            .server
            .get(kind_of("namespace")?, "", namespace)
            .await?;
        there.extend(itself);
        let own = format!("{namespace}-");
        let of_the_cluster: &[&str] = match scenario.among {
            Among::Nodes => &["node", "servicecidr"],
            Among::Storage => &["persistentvolume", "volumeattributesclass"],
            Among::Attach => &["node", "persistentvolume", "volumeattachment"],
            Among::Labels => &["persistentvolume"],
            Among::Volumes => &["storageclass", "persistentvolume"],
            Among::Swapped => &["storageclass", "persistentvolume", "volumeattachment"],
            Among::StoredVersions => &[
                "customresourcedefinition",
                "storageversionmigration",
                "storageversion",
            ],
            Among::Devices => &[
                "resourceslice",
                "devicetaintrule",
                "resourcepoolstatusrequest",
            ],
            _ => &[],
        };
        if !of_the_cluster.is_empty() {
            for kind in of_the_cluster {
                let mut all = self.server.list(kind_of(kind)?, "").await?;
                // An attachment's name is a hash.
                let place = match *kind {
                    "volumeattachment" => "/spec/nodeName",
                    _ => "/metadata/name",
                };
                all.retain(|object| text_at(object, place).starts_with(&own));
                there.extend(all);
            }
        }
        // Owners stand before what they own in `KINDS`.
        for object in &there {
            if !normal.knows(object) {
                normal.learn(object);
            }
        }
        let mut objects: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for object in &there {
            let even = normal.object(object);
            let name = text_at(&even, "/metadata/name");
            let key = format!("{} {name}", text_at(&even, "/kind"));
            objects.entry(key).or_default().push(even);
        }
        let mut counts: BTreeMap<String, i64> = BTreeMap::new();
        let mut events = self.server.events(namespace).await?;
        if !of_the_cluster.is_empty() {
            // Events of what belongs to no namespace lie in this one.
            let mut all = self.server.events("default").await?;
            all.retain(|event| text_at(event, "/involvedObject/name").starts_with(&own));
            events.extend(all);
        }
        for event in events {
            let (key, count) = reported(&event, &normal)?;
            if let Some(key) = key {
                *counts.entry(key).or_default() += count;
            }
        }
        let class = |count: i64| if count > 1 { "several" } else { "one" };
        let events = counts
            .into_iter()
            .map(|(key, count)| (key, class(count)))
            .collect();
        Ok(Snapshot {
            name: name.to_owned(),
            objects,
            events,
            course,
        })
    }
}

/// What an event says, and how often; no key for those of others.
fn reported(event: &Value, normal: &Normal) -> Result<(Option<String>, i64)> {
    let source = text_at(event, "/source/component");
    let reporter = text_at(event, "/reportingComponent");
    let by = if source.is_empty() { reporter } else { source };
    if OTHERS.contains(&by) {
        return Ok((None, 0));
    }
    let even = |pointer| normal.text(text_at(event, pointer), false);
    let key = format!(
        "{} {} {} {} ({by}): {}",
        text_at(event, "/type"),
        text_at(event, "/reason"),
        text_at(event, "/involvedObject/kind"),
        even("/involvedObject/name"),
        even("/message")
    );
    let series = event.pointer("/series/count").and_then(Value::as_i64);
    let count = event["count"].as_i64();
    let count = series.or(count).unwrap_or(1);
    ensure!(!by.is_empty(), anyhow!("an event of nobody: {event}"));
    Ok((Some(key), count))
}

/// A fact of an object by its path with dots, or by a JSON pointer where a name has dots itself; null where
/// there is none.
pub(crate) fn fact(object: &Value, path: &str) -> Value {
    let of_condition = |kind: &str, field: &str| {
        let conditions = object.pointer("/status/conditions")?.as_array()?;
        let condition = conditions.iter().find(|one| one["type"] == kind)?;
        Some(condition[field].clone())
    };
    if let Some(kind) = path.strip_prefix("condition.") {
        return of_condition(kind, "status").unwrap_or_default();
    }
    if let Some(kind) = path.strip_prefix("reason.") {
        return of_condition(kind, "reason").unwrap_or_default();
    }
    if let Some((key, effect)) = path
        .strip_prefix("taint.")
        .and_then(|taint| taint.rsplit_once(':'))
    {
        let taints = object.pointer("/spec/taints").and_then(Value::as_array);
        let has = |taint: &Value| taint["key"] == key && taint["effect"] == effect;
        return json!(taints.is_some_and(|taints| taints.iter().any(has)));
    }
    if path.starts_with('/') {
        return object.pointer(path).cloned().unwrap_or_default();
    }
    let pointer = format!("/{}", path.replace('.', "/"));
    object.pointer(&pointer).cloned().unwrap_or_default()
}

fn is_terminating(pod: &Value) -> bool {
    !text_at(pod, "/metadata/deletionTimestamp").is_empty()
}

fn fits(pod: &Value, wanted: &Pods) -> bool {
    let phase = text_at(pod, "/status/phase");
    let of_phase = match &wanted.phase {
        Some(wanted) => wanted == phase,
        None if wanted.turn == Turn::Run => phase == "Pending",
        None => wanted.terminating || !matches!(phase, "Succeeded" | "Failed"),
    };
    let index = [
        "/metadata/annotations/batch.kubernetes.io~1job-completion-index",
        "/metadata/labels/apps.kubernetes.io~1pod-index",
    ]
    .map(|pointer| text_at(pod, pointer));
    let of_index = wanted
        .index
        .is_none_or(|wanted| index.contains(&wanted.to_string().as_str()));
    is_terminating(pod) == wanted.terminating && of_phase && of_index
}

/// The status that a kubelet would write.
fn status(pod: &Value, turn: Turn, wanted: &Pods) -> Value {
    let now = jiff::Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string();
    let condition = |kind: &str, status: bool| {
        let status = if status { "True" } else { "False" };
        json!({"type": kind, "status": status, "lastTransitionTime": now})
    };
    let (phase, ready) = match turn {
        Turn::Run => ("Running", true),
        Turn::Unready => ("Running", false),
        Turn::Fail => ("Failed", false),
        _ => ("Succeeded", false),
    };
    let exit = if turn == Turn::Fail {
        wanted.exit_code
    } else {
        0
    };
    let running = phase == "Running";
    let state = if running {
        json!({"running": {"startedAt": now}})
    } else {
        json!({"terminated": {"exitCode": exit, "startedAt": now, "finishedAt": now}})
    };
    let containers = pod["spec"]["containers"].as_array().cloned();
    let containers: Vec<Value> = containers
        .unwrap_or_default()
        .iter()
        .map(|container| {
            json!({
                "name": container["name"],
                "image": container["image"],
                "imageID": "",
                "ready": ready,
                "restartCount": 0,
                "state": state,
            })
        })
        .collect();
    let mut conditions = vec![
        condition("Ready", ready),
        condition("ContainersReady", ready),
    ];
    if let Some(kind) = &wanted.condition {
        conditions.push(condition(kind, true));
    }
    json!({
        "phase": phase,
        "conditions": conditions,
        "startTime": now,
        "containerStatuses": containers,
    })
}

/// What precedes the name of an object whose uid is meant.
const UID_OF: &str = "uid:";

/// All texts of a value that mean uids.
fn uids_wanted(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) if text.starts_with(UID_OF) => vec![text.clone()],
        Value::Array(values) => values.iter().flat_map(uids_wanted).collect(),
        Value::Object(map) => map.values().flat_map(uids_wanted).collect(),
        _ => Vec::new(),
    }
}

fn replace_texts(value: &mut Value, text: &str, by: &str) {
    match value {
        Value::String(found) if found == text => by.clone_into(found),
        Value::Array(values) => {
            for value in values {
                replace_texts(value, text, by);
            }
        }
        Value::Object(map) => {
            for value in map.values_mut() {
                replace_texts(value, text, by);
            }
        }
        _ => {}
    }
}
