//! A fleet as README installs it, with its own commands: a static pod on the control-plane host and a
//! StatefulSet, of the image that `cargo image` makes, on two real kubelets with real containers. Nothing
//! else manages controllers. It is scaled, rolled out, drained, deleted as a whole and cut off, while 50
//! changes a second are made.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use harness::control_plane::MANAGER;
use harness::image::Obtained;
use harness::nodes::{API_PORT, Network, Node, can_run};
use harness::observe::{Change, Ledger, Probes, follow};
use harness::{AuditRecord, ControlPlane, image, kubeconfig, run_test, until, workspace_root};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::task::JoinSet;

use crate::judge::AUDIT_POLICY;
use crate::kubelets::{join, talking, usable};
use crate::support::{
    FLEET, Owners, PATIENCE, POLL, alone, complete, create, deployment, judge, loads, owners,
};

const NODES: u8 = 2;
/// Replicas of the StatefulSet as it ships.
const REPLICAS: usize = 3;
const RANGES: usize = 256;
/// Pods of the workload.
const PODS: u32 = 6;
/// Deployments without pods that are changed in turn.
const KEYS: usize = 100;
/// Changes a second.
const RATE: u32 = 50;
/// What an orderly change of the fleet may cost a key, at p99.
const BOUND: Duration = Duration::from_millis(300);
/// Keys of a node that was cut off are served again within this: a Lease's duration, an eviction, a takeover.
const TAKEN_OVER: Duration = Duration::from_secs(7);
/// Far longer than a container takes to start beside others.
const LIMIT: Duration = Duration::from_secs(120);
/// After a change of the fleet, for what it may leave behind.
const AFTERWARDS: Duration = Duration::from_secs(3);
/// Without a change of the fleet, to compare with.
const QUIET: Duration = Duration::from_secs(5);
/// The cut node's kubelet is silent for less than the grace period, so that only Manifold's replicas are
/// concerned.
const CUT: Duration = Duration::from_secs(20);

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The commands of README's part on clusters, in order; comments are left out.
fn commands(readme: &str) -> Result<Vec<String>> {
    let (_, part) = readme
        .split_once("\n## On a cluster\n")
        .context("README has no part `On a cluster`")?;
    let part = part.split_once("\n## ").map_or(part, |(part, _)| part);
    let blocks = part.split("\n```\n").skip(1).step_by(2);
    let lines = blocks.flat_map(str::lines);
    Ok(lines
        .map(|line| line.split('#').next().unwrap_or_default().trim().to_owned())
        .filter(|line| !line.is_empty())
        .collect())
}

/// How long the keys wait, and for how long ranges had no owner in their Leases.
pub(super) struct Load {
    /// Changes a second.
    rate: Arc<AtomicU32>,
    probes: Arc<Mutex<Probes>>,
    ledger: Arc<Mutex<Ledger>>,
    unowned: Arc<Mutex<Unowned>>,
    /// Bounds that were missed: the rest is seen all the same.
    missed: Mutex<Vec<String>>,
    _tasks: JoinSet<()>,
}

/// Ranges whose Lease names nobody.
#[derive(Debug, Default)]
struct Unowned {
    since: BTreeMap<String, Instant>,
    seconds: f64,
}

impl Unowned {
    fn lease(&mut self, lease: &Lease, now: Instant) {
        let name = lease.metadata.name.clone().unwrap_or_default();
        if !name.contains("-range-") {
            return;
        }
        let holder = lease
            .spec
            .as_ref()
            .and_then(|spec| spec.holder_identity.clone());
        if holder.unwrap_or_default().is_empty() {
            self.since.entry(name).or_insert(now);
        } else if let Some(since) = self.since.remove(&name) {
            self.seconds += now.duration_since(since).as_secs_f64();
        }
    }
}

impl Load {
    pub(super) async fn start(client: &Client, namespace: &str) -> Result<Self> {
        let api: Api<Deployment> = Api::namespaced(client.clone(), namespace);
        for index in 0..KEYS {
            create(&api, deployment(&format!("key-{index}"), 0)).await?;
        }
        let probes = Arc::new(Mutex::new(Probes::new(KEYS)));
        let ledger = Arc::new(Mutex::new(Ledger::default()));
        let unowned = Arc::new(Mutex::new(Unowned::default()));
        let mut tasks = JoinSet::new();
        let book = Arc::clone(&probes);
        tasks.spawn(follow(api.clone(), String::new(), move |change| {
            let Change::Seen(probe) = change else { return };
            let name = probe.metadata.name.unwrap_or_default();
            let index = name.strip_prefix("key-").and_then(|text| text.parse().ok());
            let observed = probe.status.and_then(|status| status.observed_generation);
            if let Some((index, observed)) = index.zip(observed) {
                lock(&book).observed(index, observed, Instant::now());
            }
        }));
        let rate = Arc::new(AtomicU32::new(RATE));
        let (book, wanted) = (Arc::clone(&probes), Arc::clone(&rate));
        tasks.spawn(async move {
            let mut touches = JoinSet::new();
            let mut next = tokio::time::Instant::now();
            for turn in 0_u64.. {
                let pause = Duration::from_secs(1) / wanted.load(Relaxed).max(1);
                // What was missed is not made up for.
                next = (next + pause).max(tokio::time::Instant::now());
                tokio::time::sleep_until(next).await;
                while touches.try_join_next().is_some() {}
                let Some(index) = lock(&book).touch(Instant::now()) else {
                    continue;
                };
                let (api, book) = (api.clone(), Arc::clone(&book));
                touches.spawn(async move {
                    // A new generation, and no other object to write than the Deployment itself.
                    let limit = 1 + turn % 1000;
                    let patch = Patch::Merge(json!({"spec": {"revisionHistoryLimit": limit}}));
                    let name = format!("key-{index}");
                    let written = api.patch(&name, &PatchParams::default(), &patch).await;
                    match written.map(|written| written.metadata.generation) {
                        Ok(Some(generation)) => lock(&book).accepted(index, generation),
                        _ => lock(&book).refused(index),
                    }
                });
            }
        });
        let book = Arc::clone(&ledger);
        let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
        tasks.spawn(follow(pods, "app=web".to_owned(), move |change| {
            let mut book = lock(&book);
            match change {
                Change::Seen(pod) => book.pod(&pod),
                Change::Gone(pod) => book.pod_gone(&pod),
                // What was made stays in the book.
                _ => {}
            }
        }));
        let book = Arc::clone(&ledger);
        let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), "default");
        tasks.spawn(follow(sets, "app=web".to_owned(), move |change| {
            if let Change::Seen(set) | Change::Gone(set) = change {
                lock(&book).replica_set(&set);
            }
        }));
        let book = Arc::clone(&unowned);
        let leases: Api<Lease> = Api::namespaced(client.clone(), harness::fleet::NAMESPACE);
        let labels = format!("manifold.dev/fleet={FLEET}");
        tasks.spawn(follow(leases, labels, move |change| {
            if let Change::Seen(lease) = change {
                lock(&book).lease(&lease, Instant::now());
            }
        }));
        let load = Self {
            rate,
            probes,
            ledger,
            unowned,
            missed: Mutex::default(),
            _tasks: tasks,
        };
        until("every key is served", LIMIT, POLL, || async {
            Ok((lock(&load.probes).ever_served() == KEYS).then_some(()))
        })
        .await?;
        Ok(load)
    }

    /// Changes a second from now on.
    pub(super) fn set_rate(&self, changes: u32) {
        self.rate.store(changes, Relaxed);
    }

    /// How long the changes since a moment have waited: the median, p99, the longest, and how many they are.
    pub(super) fn waited(&self, from: Instant) -> (Duration, Duration, Duration, usize) {
        let mut waits: Vec<Duration> = lock(&self.probes)
            .waits_since(from, Instant::now())
            .iter()
            .map(|wait| wait.lasted)
            .collect();
        waits.sort_unstable();
        let at = |percent: usize| {
            let index = (waits.len() * percent).div_ceil(100).max(1) - 1;
            waits.get(index).copied().unwrap_or_default()
        };
        (at(50), at(99), at(100), waits.len())
    }

    /// Prints how the changes since a moment were served. Their p99 has a bound, and so has the time for
    /// which ranges had no owner, where no replica was lost.
    fn report(&self, what: &str, from: Instant, (before, after): (&Owners, &Owners), bound: Bound) {
        let (p50, p99, longest, changes) = self.waited(from);
        let seconds = std::mem::take(&mut lock(&self.unowned).seconds);
        println!(
            "statefulset: {what}: {:.1} s, {changes} changes, p50 {p50:.0?}, p99 {p99:.0?}, longest {longest:.1?}; ranges \
             moved {} (at least {}), unowned {seconds:.3} range seconds; members {:?}",
            from.elapsed().as_secs_f64(),
            moves(before, after),
            fewest(before, after),
            loads(after)
        );
        let mut missed = Vec::new();
        if bound == Bound::Orderly && p99 > BOUND {
            missed.push(format!("{what}: p99 is {p99:.0?}"));
        }
        if bound == Bound::Orderly && seconds > 0.0 {
            missed.push(format!(
                "{what}: ranges had no owner for {seconds:.3} range seconds"
            ));
        }
        lock(&self.missed).extend(missed);
    }
}

/// Changes of owner between two readings, those that came back included.
fn moves(before: &Owners, after: &Owners) -> u64 {
    let epoch = |range: &u32| before.get(range).map_or(0, |(_, epoch)| *epoch);
    after
        .iter()
        .map(|(range, (_, now))| now.saturating_sub(epoch(range)))
        .sum()
}

/// The least number of ranges that must change their owner, given who has how many.
fn fewest(before: &Owners, after: &Owners) -> usize {
    let (before, after) = (loads(before), loads(after));
    let more = |(name, load): (&String, &usize)| {
        load.saturating_sub(before.get(name).copied().unwrap_or(0))
    };
    after.iter().map(more).sum()
}

/// What replicas still sent, from a moment on, for ranges that others had taken over by then.
#[derive(Debug, Default, PartialEq, Eq)]
struct Late {
    /// What the API server took: a second writer's.
    taken: Vec<String>,
    refused: usize,
}

impl Late {
    fn read(&mut self, record: &AuditRecord, from: Timestamp, owners: &Owners) {
        let Some(agent) = record.agent() else { return };
        let Some((range, epoch)) = agent.range.zip(agent.epoch) else {
            return;
        };
        let passed = owners.get(&range).is_some_and(|(_, now)| epoch < *now);
        let came = record.request_received_timestamp >= from;
        if record.stage != "ResponseComplete" || !record.is_write() || !came || !passed {
            return;
        }
        if record.code().is_some_and(|code| code < 300) {
            self.taken.push(format!(
                "{} {} by {}",
                record.verb, record.request_uri, record.user_agent
            ));
        } else {
            self.refused += 1;
        }
    }
}

/// What a change may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bound {
    /// Replicas hand their ranges over.
    Orderly,
    /// Replicas are lost, and their ranges are taken over.
    Lost,
}

pub(super) struct Bed {
    nodes: Vec<Node>,
    control_plane: ControlPlane,
    network: Network,
    client: Client,
    image: Obtained,
}

impl Bed {
    pub(super) async fn start() -> Result<Self> {
        let image = tokio::task::spawn_blocking(image::obtain)
            .await
            .context("building the image")??;
        println!("statefulset: the image {image}");
        let mut network = Network::start().await?;
        let control_plane = ControlPlane::builder()
            .nodes(0)
            .real_nodes(&network)
            .audit_policy(AUDIT_POLICY)
            // For what is aggregated by a server on loopback.
            .api_server_arg("--enable-aggregator-routing=false")
            .start()
            .await?;
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, control_plane.port()));
        network.forward(to).await?;
        let client = control_plane.client().await?;
        let kubelet = json!({"staticPodPath": "/etc/kubernetes/manifests"});
        let nodes = join(&network, &control_plane, NODES, &kubelet).await?;
        let bed = Self {
            nodes,
            control_plane,
            network,
            client,
            image,
        };
        bed.write_host_files()?;
        Ok(bed)
    }

    /// A client as an administrator.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// The control plane.
    pub(super) fn control_plane(&self) -> &ControlPlane {
        &self.control_plane
    }

    /// The host of the control plane.
    fn host(&self) -> &Node {
        &self.nodes[0]
    }

    /// What kubeadm leaves on it for kube-controller-manager.
    fn write_host_files(&self) -> Result<()> {
        let authority = self.control_plane.authority();
        let server = format!("https://{}:{API_PORT}", self.network.gateway());
        let identity = authority.client(MANAGER, None)?;
        let kubeconfig = kubeconfig::render(&server, authority.certificate(), MANAGER, &identity)?;
        self.host()
            .write("etc/kubernetes/controller-manager.conf", &kubeconfig)?;
        for (file, from) in [
            ("ca.crt", "ca.crt"),
            ("ca.key", "ca.key"),
            ("sa.key", "service-account.key"),
            ("front-proxy-ca.crt", "front-proxy-ca.crt"),
        ] {
            let from = self.control_plane.dir().file(from);
            let content = std::fs::read_to_string(&from)
                .with_context(|| format!("reading {}", from.display()))?;
            self.host()
                .write(&format!("etc/kubernetes/pki/{file}"), &content)?;
        }
        Ok(())
    }

    /// One of README's commands, where a person would enter it.
    async fn enter(&self, command: &str) -> Result<()> {
        println!("statefulset: $ {command}");
        let words: Vec<&str> = command.split_whitespace().collect();
        match words.as_slice() {
            // The suite has it already.
            ["cargo", "image"] => {}
            ["ctr", "-n", "k8s.io", "images", "import", "manifold.tar"] => {
                for node in &self.nodes {
                    self.network.import(node, &self.image.path).await?;
                }
            }
            ["cp", from, to] => {
                let from = workspace_root().join(from);
                let name = from.file_name().context("a file")?;
                let to = Path::new(to.trim_start_matches('/')).join(name);
                let content = std::fs::read_to_string(&from)
                    .with_context(|| format!("reading {}", from.display()))?;
                self.host().write(&to.display().to_string(), &content)?;
                if to.starts_with("etc/kubernetes/manifests") {
                    self.lifeboat().await?;
                }
            }
            ["kubectl", arguments @ ..] => self.kubectl(arguments).await.map(|_| ())?,
            _ => bail!("README says {command:?}, which nobody enters here"),
        }
        Ok(())
    }

    pub(super) async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let root = workspace_root();
        let words: Vec<String> = arguments
            .iter()
            .map(|word| match word.split_once("/etc/") {
                // On the control plane's host.
                Some((before @ "--from-file=", path)) => {
                    let path = self.host().file("etc").join(path);
                    format!("{before}{}", path.display())
                }
                _ if word.starts_with("deploy/") => root.join(word).display().to_string(),
                _ => (*word).to_owned(),
            })
            .collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let said = tokio::time::timeout(LIMIT, self.control_plane.kubectl(&words));
        said.await
            .with_context(|| format!("kubectl {} within {LIMIT:?}", words.join(" ")))?
    }

    async fn owners(&self) -> Result<Owners> {
        owners(&self.client).await
    }

    /// Waits for the static pod, alone, to own every range.
    async fn lifeboat(&self) -> Result<()> {
        let name = self.host().name().to_owned();
        self.owned_by("the static pod owns every range", BTreeSet::from([name]))
            .await?;
        usable(&self.client, NODES.into()).await
    }

    /// The members with this many replicas in the StatefulSet.
    fn members(&self, replicas: usize) -> BTreeSet<String> {
        let mut members: BTreeSet<String> = (0..replicas)
            .map(|index| format!("manifold-{index}"))
            .collect();
        members.insert(self.host().name().to_owned());
        members
    }

    /// Waits until these and no others own all ranges, evenly.
    async fn owned_by(&self, what: &str, members: BTreeSet<String>) -> Result<Owners> {
        until(what, LIMIT, POLL, || async {
            let owners = self.owners().await?;
            let loads = loads(&owners);
            let names: BTreeSet<String> = loads.keys().cloned().collect();
            ensure!(
                owners.len() == RANGES && names == members,
                "{} ranges of {loads:?}",
                owners.len()
            );
            let spread = loads.values().max().zip(loads.values().min());
            let even = spread.is_some_and(|(most, least)| most - least <= 1);
            Ok(even.then_some(owners))
        })
        .await
    }

    /// Waits until the StatefulSet has this many replicas, all of its newest revision and ready.
    pub(super) async fn replicas_are(&self, count: usize) -> Result<()> {
        let sets: Api<StatefulSet> =
            Api::namespaced(self.client.clone(), harness::fleet::NAMESPACE);
        let count = i32::try_from(count)?;
        let what = format!("{count} replicas are ready");
        until(&what, LIMIT, POLL, || async {
            let set = sets.get("manifold").await?;
            let status = set.status.unwrap_or_default();
            let counts = [
                Some(status.replicas),
                status.ready_replicas,
                status.updated_replicas,
            ]
            .map(Option::unwrap_or_default);
            let current = status.current_revision == status.update_revision
                && status.observed_generation == set.metadata.generation;
            ensure!(
                current && counts == [count; 3],
                "{counts:?} replicas, ready, of the newest revision"
            );
            Ok(Some(()))
        })
        .await
    }

    async fn pods(&self) -> Result<Vec<Pod>> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), harness::fleet::NAMESPACE);
        Ok(pods.list(&ListParams::default()).await?.items)
    }

    /// The StatefulSet's pods by UID, each with whether it is ready.
    async fn replica_pods(&self) -> Result<BTreeMap<String, bool>> {
        let of_set = |pod: &Pod| {
            let mut owners = pod.metadata.owner_references.iter().flatten();
            owners.any(|owner| owner.kind == "StatefulSet")
        };
        let is_ready = |pod: &Pod| {
            let status = pod.status.as_ref();
            let mut conditions = status
                .iter()
                .flat_map(|status| status.conditions.iter().flatten());
            conditions.any(|one| one.type_ == "Ready" && one.status == "True")
        };
        let pods = self.pods().await?;
        let pods = pods.iter().filter(|pod| of_set(pod));
        Ok(pods
            .filter_map(|pod| Some((pod.metadata.uid.clone()?, is_ready(pod))))
            .collect())
    }

    /// Names of the replicas on a node.
    async fn on(&self, node: &Node) -> Result<BTreeSet<String>> {
        let pods = self.pods().await?;
        let there = pods.into_iter().filter(|pod| {
            let spec = pod.spec.as_ref();
            spec.and_then(|spec| spec.node_name.as_deref()) == Some(node.name())
        });
        Ok(there.filter_map(|pod| pod.metadata.name).collect())
    }
}

/// README's commands up to the last one that installs; the one that scales is the first of the changes.
pub(super) async fn install(bed: &Bed) -> Result<()> {
    let readme = std::fs::read_to_string(workspace_root().join("README.md"))?;
    let commands = commands(&readme)?;
    let installs = |command: &&String| !command.contains(" scale ");
    ensure!(
        commands.iter().any(|command| command.contains(" apply ")),
        "README installs nothing: {commands:?}"
    );
    for command in commands.iter().filter(installs) {
        bed.enter(command).await?;
    }
    bed.replicas_are(REPLICAS).await?;
    bed.owned_by("the replicas share the ranges", bed.members(REPLICAS))
        .await?;
    Ok(())
}

/// `kubectl scale` 3 → 5 → 2 → 3.
async fn scale(bed: &Bed, load: &Load) -> Result<()> {
    for replicas in [5, 2, 3] {
        let before = bed.owners().await?;
        let began = Instant::now();
        let count = format!("--replicas={replicas}");
        let arguments = [
            "-n",
            "manifold-system",
            "scale",
            "statefulset",
            "manifold",
            &count,
        ];
        bed.kubectl(&arguments).await?;
        bed.replicas_are(replicas).await?;
        let what = format!("{replicas} replicas share the ranges");
        let after = bed.owned_by(&what, bed.members(replicas)).await?;
        tokio::time::sleep(AFTERWARDS).await;
        let what = format!("scaled to {replicas}");
        load.report(&what, began, (&before, &after), Bound::Orderly);
    }
    Ok(())
}

async fn roll_out(bed: &Bed, load: &Load) -> Result<()> {
    let before = bed.owners().await?;
    let began = Instant::now();
    let set = "statefulset/manifold";
    bed.kubectl(&["-n", "manifold-system", "rollout", "restart", set])
        .await?;
    bed.kubectl(&["-n", "manifold-system", "rollout", "status", set])
        .await?;
    bed.replicas_are(REPLICAS).await?;
    let after = bed
        .owned_by("the new replicas share the ranges", bed.members(REPLICAS))
        .await?;
    tokio::time::sleep(AFTERWARDS).await;
    load.report("rollout restart", began, (&before, &after), Bound::Orderly);
    Ok(())
}

async fn drain(bed: &Bed, load: &Load) -> Result<()> {
    let node = &bed.nodes[1];
    let there = bed.on(node).await?;
    ensure!(!there.is_empty(), "no replica is on {}", node.name());
    let before = bed.owners().await?;
    let began = Instant::now();
    bed.kubectl(&[
        "drain",
        node.name(),
        "--ignore-daemonsets",
        "--delete-emptydir-data",
    ])
    .await?;
    ensure!(
        bed.on(node).await?.is_empty(),
        "{} is not empty",
        node.name()
    );
    bed.replicas_are(REPLICAS).await?;
    let after = bed
        .owned_by("the moved replicas share the ranges", bed.members(REPLICAS))
        .await?;
    tokio::time::sleep(AFTERWARDS).await;
    let what = format!("drained a node of {there:?}");
    load.report(&what, began, (&before, &after), Bound::Orderly);
    bed.kubectl(&["uncordon", node.name()]).await?;
    Ok(())
}

/// Every pod of the StatefulSet at once, without a farewell: the static pod brings them back.
async fn delete_all(bed: &Bed, load: &Load) -> Result<()> {
    let (before, pods) = (bed.owners().await?, bed.replica_pods().await?);
    let began = Instant::now();
    let all = [
        "-n",
        "manifold-system",
        "delete",
        "pods",
        "-l",
        "app.kubernetes.io/name=manifold",
        "--force",
        "--grace-period=0",
    ];
    bed.kubectl(&all).await?;
    // By the status alone they would be back before it says that they had gone.
    until("other pods are ready", LIMIT, POLL, || async {
        let others = bed.replica_pods().await?;
        let ready = others
            .iter()
            .filter(|(uid, ready)| **ready && !pods.contains_key(*uid));
        let ready = ready.count();
        ensure!(ready == REPLICAS, "{ready} other pods are ready");
        Ok(Some(()))
    })
    .await?;
    bed.replicas_are(REPLICAS).await?;
    let back = began.elapsed();
    let after = bed
        .owned_by("the replicas are back", bed.members(REPLICAS))
        .await?;
    load.report(
        "all pods deleted by force",
        began,
        (&before, &after),
        Bound::Lost,
    );
    println!(
        "statefulset: all replicas were back after {:.1} s",
        back.as_secs_f64()
    );
    Ok(())
}

/// A node with replicas, but without the static pod, loses its network for a while.
async fn cut_off(bed: &Bed, load: &Load) -> Result<()> {
    // Both nodes have some again.
    let set = "statefulset/manifold";
    bed.kubectl(&["-n", "manifold-system", "rollout", "restart", set])
        .await?;
    bed.replicas_are(REPLICAS).await?;
    bed.owned_by("the replicas share the ranges", bed.members(REPLICAS))
        .await?;
    let node = &bed.nodes[1];
    let lost = bed.on(node).await?;
    ensure!(!lost.is_empty(), "no replica is on {}", node.name());
    let left = bed.members(REPLICAS).difference(&lost).cloned().collect();
    let before = bed.owners().await?;
    let began = Instant::now();
    node.cut_off().await?;
    let after = bed.owned_by("the others have taken over", left).await?;
    let taken = began.elapsed();
    // A change meanwhile is carried out once.
    let scaled = format!("--replicas={}", PODS + 2);
    bed.kubectl(&["scale", "deployment", "web", &scaled])
        .await?;
    tokio::time::sleep(CUT.saturating_sub(began.elapsed())).await;
    let longest = lock(&load.probes).longest_since(began, Instant::now());
    let what = format!("cut off {lost:?}");
    load.report(&what, began, (&before, &after), Bound::Lost);
    println!(
        "statefulset: taken over after {:.1} s, the longest wait of a key {:.1} s",
        taken.as_secs_f64(),
        longest.as_secs_f64()
    );
    let back = Timestamp::now();
    node.reconnect().await?;
    bed.replicas_are(REPLICAS).await?;
    bed.owned_by("they share the ranges again", bed.members(REPLICAS))
        .await?;
    // What lay in the cut node's sockets would have arrived by now.
    tokio::time::sleep(AFTERWARDS).await;
    let mut late = Late::default();
    bed.control_plane
        .audit()
        .read(|record| late.read(&record, back, &after))?;
    println!(
        "statefulset: the node is back: {} writes under epochs that had passed, {} of them taken",
        late.taken.len() + late.refused,
        late.taken.len()
    );
    ensure!(
        late.taken.is_empty(),
        "a second writer: {:?}",
        late.taken.iter().take(10).collect::<Vec<_>>()
    );
    if longest > TAKEN_OVER {
        lock(&load.missed).push(format!("a key of the cut node waited for {longest:.1?}"));
    }
    Ok(())
}

#[test]
fn a_second_writer_is_who_writes_under_an_epoch_that_has_passed() {
    let record = |epoch: u64, verb: &str, second: u32, code: u16| -> AuditRecord {
        let at = format!("2026-11-25T12:00:{second:02}Z");
        let agent = format!(
            "manifold/0.1.0 (replica=manifold-1; range=7; epoch={epoch}; controller=deployment-controller)"
        );
        serde_json::from_value(json!({
            "auditID": "a", "stage": "ResponseComplete", "verb": verb, "requestURI": "/apis",
            "userAgent": agent, "responseStatus": {"code": code},
            "requestReceivedTimestamp": at, "stageTimestamp": at,
        }))
        .unwrap()
    };
    let from: Timestamp = "2026-11-25T12:00:10Z".parse().unwrap();
    let owners = Owners::from([(7, ("manifold-0".to_owned(), 5))]);
    let mut late = Late::default();
    for (record, taken, refused) in [
        (record(5, "patch", 11, 200), 0, 0),
        (record(4, "patch", 9, 200), 0, 0),
        (record(4, "get", 11, 200), 0, 0),
        (record(4, "patch", 11, 409), 0, 1),
        (record(4, "patch", 11, 200), 1, 1),
    ] {
        late.read(&record, from, &owners);
        assert_eq!((late.taken.len(), late.refused), (taken, refused));
    }
}

#[test]
fn readme_has_commands_for_a_cluster() {
    let readme = "# A\n\n## On a cluster\n\nText.\n\n```\na b   # why\n\n# only this\nc\n```\n\nMore.\n\n```\nd\n```\n\n## Next\n\n```\ne\n```\n";
    assert_eq!(commands(readme).unwrap(), ["a b", "c", "d"]);
    assert!(commands("# A\n").is_err());
}

#[test]
#[ignore = "minutes, and real nodes: cargo parity"]
fn a_fleet_installed_as_readme_says_survives_all_that_happens_to_a_statefulset() {
    if !can_run("statefulset: a fleet installed as README says") {
        return;
    }
    let _alone = alone();
    run_test(async {
        let bed = Bed::start().await?;
        let began = Instant::now();
        install(&bed).await?;
        println!(
            "statefulset: {REPLICAS} replicas and the static pod are at work {:.1} s after the first command",
            began.elapsed().as_secs_f64()
        );
        let deployments: Api<Deployment> = Api::namespaced(bed.client.clone(), "default");
        create(&deployments, talking("web", PODS)).await?;
        complete(&deployments, "web", PODS.try_into()?).await?;
        let load = Load::start(&bed.client, &bed.control_plane.namespace("load").await?).await?;

        let before = bed.owners().await?;
        let began = Instant::now();
        tokio::time::sleep(QUIET).await;
        load.report("at rest", began, (&before, &before), Bound::Orderly);
        scale(&bed, &load).await?;
        roll_out(&bed, &load).await?;
        drain(&bed, &load).await?;
        delete_all(&bed, &load).await?;
        cut_off(&bed, &load).await?;

        complete(&deployments, "web", (PODS + 2).try_into()?).await?;
        until("the keys are served", PATIENCE, POLL, || async {
            let lasting = lock(&load.probes).longest_lasting(Instant::now());
            Ok((lasting < BOUND).then_some(()))
        })
        .await?;
        let beyond = lock(&load.ledger).beyond_wanted();
        ensure!(beyond == 0, "{beyond} pods were made beyond those wanted");
        judge(&bed.control_plane, "statefulset")?;
        let missed = lock(&load.missed).clone();
        ensure!(missed.is_empty(), "{}", missed.join("; "));
        Ok(())
    });
}
