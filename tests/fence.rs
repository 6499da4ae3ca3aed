//! A process that stood still between its last check and the send of a write, and continues after its ranges
//! were taken.
//!
//! The victim is a replica made of the parts that ship, inside this process, so that it can be held at just
//! that point: its server is wrapped, and a write that has passed the gate continues in a task that nobody
//! aborts, as it would in a process that was stopped there. Dropping its coordinator is its death: it renews
//! no more and releases nothing. Then real replicas evict it and take everything, and what was held is sent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use controllers_kit::{
    Action, Descriptor, Event, EventType, Failure, Flags, Key, ObjectRef, Only, PatchKind, Plan,
    Propagation, Resource, StatusWrite, Timestamp, Verb, Written,
};
use coordinator::{
    Epoch, Frozen, Gained, Handle, Holder, RangeHost, RangeId, ServerFence, ServerFenceMode,
};
use futures::future::{BoxFuture, FutureExt, LocalBoxFuture, join_all, try_join_all};
use harness::{ControlPlane, Fleet, Replica, run_test, until};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{Event as CoreEvent, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use kubernetes_proto::Object as _;
use node::actors::host::LateFence;
use node::apply::Writer;
use node::clock::{Clock, SystemClock};
use node::events::{Correlator, Send as SendEvent};
use node::gate::Gate;
use node::node::{Node, Parts, Threads};
use node::server::api_server::ApiServer;
use node::server::{Live, LiveItem, Refused, Sender, Server};
use node_cache::{Api as Connection, Purpose};
use node_telemetry::metrics::Metrics;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};

use crate::support::{PATIENCE, POLL, alone, complete, create, deployment, fleet, owners};

const VICTIM: &str = "victim";
/// Held writes of each kind.
const OF_EACH: usize = 100;
/// A dead replica is evicted after its Lease's duration; the rest is for a busy machine.
const TAKEN_WITHIN: Duration = Duration::from_secs(40);

/// What became of a held write.
#[derive(Debug, Clone)]
struct Outcome {
    kind: String,
    /// The object's.
    name: String,
    result: Result<Written, Refused>,
}

/// Where writes stand still.
#[derive(Debug)]
struct Hold {
    holding: AtomicBool,
    go: watch::Sender<bool>,
    /// Writes held so far, by kind.
    held: Mutex<BTreeMap<String, usize>>,
    outcomes: Mutex<Vec<Outcome>>,
}

impl Hold {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            holding: AtomicBool::new(false),
            go: watch::Sender::new(false),
            held: Mutex::default(),
            outcomes: Mutex::default(),
        })
    }

    fn held(&self) -> BTreeMap<String, usize> {
        self.held
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn total(&self) -> usize {
        self.held().values().sum()
    }

    fn outcomes(&self) -> Vec<Outcome> {
        self.outcomes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Sends what is held; returns when all of it has been answered.
    async fn release(&self) -> Result<Vec<Outcome>> {
        self.go.send_replace(true);
        until("what was held is answered", PATIENCE, POLL, || async {
            let outcomes = self.outcomes();
            ensure!(
                outcomes.len() == self.total(),
                "{} of {}",
                outcomes.len(),
                self.total()
            );
            Ok(Some(outcomes))
        })
        .await
    }
}

/// The real server, behind a point at which writes can be held.
struct Held {
    server: Arc<ApiServer>,
    hold: Arc<Hold>,
}

impl Held {
    /// One that gives up waiting for the answer does not take the write back.
    fn pass<'a>(
        &'a self,
        (kind, name): (String, String),
        send: impl FnOnce(Arc<ApiServer>) -> BoxFuture<'static, Result<Written, Refused>>,
    ) -> BoxFuture<'a, Result<Written, Refused>> {
        let sent = send(Arc::clone(&self.server));
        if !self.hold.holding.load(Ordering::Acquire) {
            return sent;
        }
        let hold = Arc::clone(&self.hold);
        let task = tokio::spawn(async move {
            let mut go = hold.go.subscribe();
            *hold
                .held
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .entry(kind.clone())
                .or_default() += 1;
            let _ = go.wait_for(|go| *go).await;
            let result = sent.await;
            hold.outcomes
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(Outcome {
                    kind,
                    name,
                    result: result.clone(),
                });
            result
        });
        async move {
            match task.await {
                Ok(result) => result,
                Err(error) => Err(Failure::Other(error.to_string()).into()),
            }
        }
        .boxed()
    }
}

impl Server for Held {
    fn write<'a>(
        &'a self,
        sender: &'a Sender,
        action: &'a Action,
    ) -> BoxFuture<'a, Result<Written, Refused>> {
        let kind = match &action.verb {
            Verb::Patch { subresource, .. } if !subresource.is_empty() => {
                format!("patch {}/{subresource}", action.resource.plural)
            }
            verb => format!("{} {}", verb.name(), action.resource.plural),
        };
        let (sender, action) = (sender.clone(), action.clone());
        self.pass((kind, action.key.name.to_string()), move |server| {
            async move { server.write(&sender, &action).await }.boxed()
        })
    }

    fn record<'a>(
        &'a self,
        sender: &'a Sender,
        event: &'a SendEvent,
        create: bool,
    ) -> BoxFuture<'a, Result<Written, Refused>> {
        let kind = match event.patch {
            Some(_) if !create => "patch events",
            _ => "create events",
        };
        let (sender, event) = (sender.clone(), event.clone());
        self.pass((kind.to_owned(), event.name.clone()), move |server| {
            async move { server.record(&sender, &event, create).await }.boxed()
        })
    }

    fn get<'a>(
        &'a self,
        sender: &'a Sender,
        resource: &'static Resource,
        key: &'a Key,
    ) -> BoxFuture<'a, Result<Option<Value>, Refused>> {
        self.server.get(sender, resource, key)
    }

    fn head<'a>(
        &'a self,
        sender: &'a Sender,
        resource: &'static Resource,
        key: &'a Key,
    ) -> BoxFuture<'a, Result<Live<Option<LiveItem>>, Refused>> {
        self.server.head(sender, resource, key)
    }

    fn list<'a>(
        &'a self,
        sender: &'a Sender,
        resource: &'static Resource,
        namespace: &'a str,
        selector: &'a str,
    ) -> BoxFuture<'a, Result<Live<Vec<LiveItem>>, Refused>> {
        self.server.list(sender, resource, namespace, selector)
    }
}

/// How the victim reaches the API server.
struct Reach {
    config: kube::Config,
    server_fence: Arc<ServerFence>,
    server: Arc<ApiServer>,
    watches: Connection,
}

impl Reach {
    async fn new(control_plane: &ControlPlane, mode: ServerFenceMode) -> Result<Self> {
        // Set once for the process, by the one that comes first.
        let _already = rustls::crypto::ring::default_provider().install_default();
        let config = harness::kubeconfig::load(control_plane.manager_kubeconfig()).await?;
        let connect = |purpose| Connection::connect(&config, purpose, None);
        let server_fence = ServerFence::new(mode);
        let credentials = Arc::new(node::credentials::Credentials::new(Client::try_from(
            config.clone(),
        )?));
        Ok(Self {
            server: Arc::new(ApiServer::new(
                connect(Purpose::Writes)?,
                Connection::connect_anonymous(&config, Purpose::Writes, None)?,
                Some(credentials),
                Arc::clone(&server_fence),
            )),
            watches: connect(Purpose::Watches)?,
            server_fence,
            config,
        })
    }

    /// The victim's coordinator: it owns every range, and its peers can't speak with it, so none moves while
    /// it lives.
    async fn join(&self, host: Arc<dyn RangeHost>) -> Result<Handle> {
        let config = coordinator::Config {
            replica_name: VICTIM.to_owned(),
            expected_replicas: Some(1),
            peer_bind_address: std::net::Ipv4Addr::LOCALHOST.into(),
            peer_port: 0,
            peer_insecure: true,
            server_fence: Arc::clone(&self.server_fence),
            ..coordinator::Config::default()
        };
        let leases = self.config.clone();
        let purpose = Purpose::Leases {
            period: config.lease_retry_period,
            deadline: config.lease_renew_deadline,
        };
        let clients = move || {
            Connection::connect(&leases, purpose, None)
                .expect("this configuration has connected before")
                .kube()
        };
        Ok(coordinator::start(config, host, Arc::new(clients)).await?)
    }
}

async fn owns_everything(handle: &Handle) -> Result<()> {
    until("the victim owns everything", PATIENCE, POLL, || async {
        let own = handle.view().own.len();
        ensure!(own == 256, "{own} ranges");
        Ok(Some(()))
    })
    .await
}

/// Waits until other replicas have all that was the victim's; returns how long it took.
async fn taken(client: &Client) -> Result<Duration> {
    let since = Instant::now();
    until(
        "the victim's ranges are taken",
        TAKEN_WITHIN,
        POLL,
        || async {
            let owners = owners(client).await?;
            let left = owners.values().filter(|(name, _)| name == VICTIM).count();
            ensure!(left == 0, "{left} are not");
            Ok(Some(()))
        },
    )
    .await?;
    Ok(since.elapsed())
}

/// The incarnations whose writes the API server refuses.
pub(crate) async fn listed(client: &Client) -> Result<BTreeMap<String, String>> {
    let path = "/apis/manifold.dev/v1/fences/manifold-fence";
    let request = http::Request::get(path).body(Vec::new())?;
    let fence: Value = client.request(request).await?;
    Ok(serde_json::from_value(fence["incarnations"].clone())?)
}

async fn replicas(fleet: &Fleet) -> Result<Vec<Replica>> {
    fleet.start_all(2).await
}

/// A node that holds nothing: only its life is asked for.
#[derive(Default)]
struct Bare {
    life: Mutex<Arc<str>>,
}

impl RangeHost for Bare {
    fn lives_as(&self, holder: &Holder) {
        *self.life.lock().unwrap_or_else(PoisonError::into_inner) = holder.to_string().into();
    }
    fn gained(&self, _: RangeId, _: Epoch, _: Gained) {}
    fn lost(&self, _: RangeId) {}
    fn freeze(
        &self,
        _: RangeId,
        _: Duration,
        _: bool,
    ) -> std::pin::Pin<Box<dyn Future<Output = Frozen> + Send + 'static>> {
        Box::pin(std::future::ready(Frozen::Still(Default::default())))
    }
    fn resume(&self, _: RangeId) {}
    fn ready(&self) -> bool {
        true
    }
}

fn descriptor(controller: &str) -> Result<Descriptor> {
    node_registry::descriptors()
        .into_iter()
        .find(|descriptor| descriptor.name == controller)
        .with_context(|| format!("no {controller}"))
}

/// Pods that nobody runs.
fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"schedulerName": "nobody", "containers": [{"name": "app", "image": "example/app:1"}]},
    })
}

fn action(
    verb: Verb,
    resource: &'static Resource,
    namespace: &str,
    name: &str,
    uid: &str,
) -> Action {
    Action {
        verb,
        resource,
        key: Key::new(namespace, name),
        uid: uid.into(),
        resource_version: 0,
        announcement: None,
    }
}

/// One plan for each write, so that all of them are on their way at once.
struct Writes {
    namespace: String,
    /// Uids by name.
    pods: BTreeMap<String, String>,
    deployments: BTreeMap<String, String>,
}

impl Writes {
    async fn prepare(client: &Client, namespace: &str) -> Result<Self> {
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        // Admission wants it, and the victim's controllers do not run.
        let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> =
            Api::namespaced(client.clone(), namespace);
        let account = serde_json::from_value(json!({"metadata": {"name": "default"}}))?;
        match accounts.create(&PostParams::default(), &account).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(error.into()),
        }
        let names = ["changed", "deleted"]
            .into_iter()
            .flat_map(|kind| (0..=OF_EACH).map(move |at| format!("{kind}-{at}")));
        let made = try_join_all(names.map(|name| {
            let pods = pods.clone();
            async move {
                let object = serde_json::from_value(pod(&name))?;
                anyhow::Ok(pods.create(&PostParams::default(), &object).await?)
            }
        }))
        .await?;
        let pods = made
            .into_iter()
            .map(|pod| {
                (
                    pod.metadata.name.unwrap_or_default(),
                    pod.metadata.uid.unwrap_or_default(),
                )
            })
            .collect();
        let api: Api<Deployment> = Api::namespaced(client.clone(), namespace);
        let made = try_join_all((0..=OF_EACH).map(|at| {
            let mut deployment = deployment(&format!("reported-{at}"), 0);
            // Nobody makes ReplicaSets of it.
            deployment["spec"]["paused"] = true.into();
            let api = api.clone();
            async move { create(&api, deployment).await }
        }))
        .await?;
        let deployments = made
            .into_iter()
            .map(|one| {
                (
                    one.metadata.name.unwrap_or_default(),
                    one.metadata.uid.unwrap_or_default(),
                )
            })
            .collect();
        Ok(Self {
            namespace: namespace.to_owned(),
            pods,
            deployments,
        })
    }

    /// The `at`th write of every kind that goes through `Writer`, with the controller that makes it.
    fn plans(&self, at: usize) -> Vec<(&'static str, Plan)> {
        let namespace = &self.namespace;
        let pods = kubernetes_proto::core::Pod::resource();
        let deployments = kubernetes_proto::apps::Deployment::resource();
        let patch = |subresource, patch| Verb::Patch {
            subresource,
            kind: PatchKind::Merge,
            patch,
            report: StatusWrite::No,
        };
        let (changed, deleted, reported) = (
            format!("changed-{at}"),
            format!("deleted-{at}"),
            format!("reported-{at}"),
        );
        let made = format!("made-{at}");
        let body = pod(&made).to_string().into_bytes();
        let actions = [
            (
                "replicaset-controller",
                action(Verb::Create { body }, pods, namespace, &made, ""),
            ),
            (
                "replicaset-controller",
                action(
                    patch("", json!({"metadata": {"labels": {"held": "yes"}}})),
                    pods,
                    namespace,
                    &changed,
                    &self.pods[&changed],
                ),
            ),
            (
                "replicaset-controller",
                action(
                    Verb::Delete {
                        only: Only::ThisUid,
                        propagation: Propagation::Background,
                        grace_period_seconds: None,
                    },
                    pods,
                    namespace,
                    &deleted,
                    &self.pods[&deleted],
                ),
            ),
            (
                "deployment-controller",
                action(
                    patch("status", json!({"status": {"collisionCount": 7}})),
                    deployments,
                    namespace,
                    &reported,
                    &self.deployments[&reported],
                ),
            ),
        ];
        actions
            .into_iter()
            .map(|(controller, action)| {
                let mut plan = Plan::nothing();
                plan.act(action);
                (controller, plan)
            })
            .collect()
    }

    /// Events about a pod: a new one, and one that counts it up.
    fn events(&self, at: usize) -> Result<[SendEvent; 2]> {
        let name = format!("changed-{at}");
        let event = Event {
            about: ObjectRef {
                api_version: "v1".into(),
                kind: "Pod".into(),
                key: Key::new(&self.namespace, &name),
                uid: self.pods[&name].as_str().into(),
                resource_version: 0,
            },
            r#type: EventType::Normal,
            reason: "Held".into(),
            message: "held past takeover".to_owned(),
        };
        let mut correlator = Correlator::new("replicaset-controller");
        let now = Timestamp::now();
        let mut next = || {
            correlator
                .correlate(&event, now, Duration::ZERO)
                .context("a first event is always sent")
        };
        Ok([next()?, next()?])
    }
}

/// What is there of the writes' traces.
async fn traces(client: &Client, namespace: &str) -> Result<BTreeMap<&'static str, usize>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let pods = pods.list(&ListParams::default()).await?.items;
    let named = |prefix: &str| {
        pods.iter()
            .filter(|pod| {
                pod.metadata
                    .name
                    .as_deref()
                    .is_some_and(|name| name.starts_with(prefix))
            })
            .count()
    };
    let labelled = pods
        .iter()
        .filter(|pod| {
            pod.metadata
                .labels
                .as_ref()
                .is_some_and(|labels| labels.contains_key("held"))
        })
        .count();
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let reported = deployments.list(&ListParams::default()).await?.items;
    let reported = reported
        .iter()
        .filter(|one| {
            one.status
                .as_ref()
                .is_some_and(|status| status.collision_count == Some(7))
        })
        .count();
    let events: Api<CoreEvent> = Api::namespaced(client.clone(), namespace);
    let events = events
        .list(&ListParams::default().fields("reason=Held"))
        .await?
        .items;
    let counted = events
        .iter()
        .filter(|event| event.count.unwrap_or(1) > 1)
        .count();
    Ok(BTreeMap::from([
        ("made", named("made-")),
        ("deleted", OF_EACH + 1 - named("deleted-")),
        ("changed", labelled),
        ("reported", reported),
        ("events", events.len()),
        ("events counted up", counted),
    ]))
}

#[test]
fn what_a_dead_replica_still_sends_is_refused_by_the_server() {
    let _alone = alone();
    run_test(async {
        let control_plane = ControlPlane::builder().nodes(1).fence().start().await?;
        let client = control_plane.client().await?;
        let namespace = control_plane.namespace("fence").await?;
        let reach = Reach::new(&control_plane, ServerFenceMode::On).await?;
        let host = Arc::new(Bare::default());
        let handle = reach.join(Arc::clone(&host) as Arc<dyn RangeHost>).await?;
        ensure!(
            reach.server_fence.summary() == "on",
            "{:?}",
            reach.server_fence
        );
        owns_everything(&handle).await?;

        let hold = Hold::new();
        let held = Arc::new(Held {
            server: Arc::clone(&reach.server),
            hold: Arc::clone(&hold),
        });
        let metrics = Metrics::new(&node_registry::descriptors());
        let (writer, _events) = Writer::new(
            Arc::clone(&held) as Arc<dyn Server>,
            "test",
            (5000.0, 5000),
            Arc::new(SystemClock::default()) as Arc<dyn Clock>,
            Arc::clone(&metrics),
            false,
        );
        let fence = Arc::new(LateFence::default());
        fence.set(handle.fence());
        let life = Arc::clone(&*host.life.lock().unwrap_or_else(PoisonError::into_inner));
        let own = handle.view().own;
        let (&range, &epoch) = own.first_key_value().context("a range")?;
        let gate = Gate::of_life(Arc::clone(&life), range, epoch, fence);
        let senders: BTreeMap<&str, Sender> = ["replicaset-controller", "deployment-controller"]
            .into_iter()
            .map(|name| {
                let descriptor = descriptor(name)?;
                let metrics = metrics.controller(descriptor.name);
                Ok((name, Sender::new(VICTIM, &descriptor, metrics, &gate)))
            })
            .collect::<Result<_>>()?;
        let writes = Writes::prepare(&client, &namespace).await?;

        // Alive, it writes all of this, as its controllers' service accounts.
        for (controller, plan) in writes.plans(OF_EACH) {
            let applied = writer.apply(&senders[controller], &plan, true).await;
            ensure!(
                applied.outcomes.iter().all(Result::is_ok),
                "{plan:?}: {applied:?}"
            );
        }
        let sender = &senders["replicaset-controller"];
        for (event, create) in writes.events(OF_EACH)?.iter().zip([true, false]) {
            held.record(sender, event, create)
                .await
                .map_err(|refused| anyhow!("{refused:?}"))?;
        }
        let before = traces(&client, &namespace).await?;
        ensure!(before.values().all(|count| *count == 1), "{before:?}");

        // An event to be counted up must be there.
        let mut to_count = Vec::new();
        for at in 0..OF_EACH {
            let [first, second] = writes.events(at)?;
            held.record(sender, &first, true)
                .await
                .map_err(|refused| anyhow!("{refused:?}"))?;
            to_count.push(second);
        }
        let before = traces(&client, &namespace).await?;

        hold.holding.store(true, Ordering::Release);
        let mut waiting: Vec<LocalBoxFuture<'_, ()>> = Vec::new();
        for (at, counting) in to_count.into_iter().enumerate() {
            for (controller, plan) in writes.plans(at) {
                let (writer, sender) = (&writer, &senders[controller]);
                waiting.push(
                    async move {
                        writer.apply(sender, &plan, true).await;
                    }
                    .boxed_local(),
                );
            }
            let [event, _] = writes.events(at)?;
            for (event, create) in [(event, true), (counting, false)] {
                ensure!(sender.gate.admit().is_ok(), "the last check");
                let held = &held;
                waiting.push(
                    async move {
                        let _ = held.record(sender, &event, create).await;
                    }
                    .boxed_local(),
                );
            }
        }
        let fleet = fleet(&control_plane).await?;
        let died = async {
            until("all writes are held", PATIENCE, POLL, || async {
                let held = hold.held();
                ensure!(hold.total() == 6 * OF_EACH, "{held:?}");
                Ok(Some(()))
            })
            .await?;
            let replicas = replicas(&fleet).await?;
            drop(handle);
            let took = taken(&client).await?;
            let listed = listed(&client).await?;
            ensure!(
                listed.contains_key(&*life),
                "{life} is not listed: {listed:?}"
            );
            let mut held = 0.0;
            for replica in &replicas {
                let ready = replica.text("/readyz?verbose").await?;
                ensure!(ready.contains("[+]server-fence ok: on"), "{ready}");
                let metrics = replica.metrics().await?;
                let proofs = "manifold_server_fence_proofs_total";
                held += metrics.sum(proofs, &[("result", "held")]).unwrap_or(0.0);
            }
            // The victim's Lease has said that all of its writes carry their incarnation.
            ensure!(held > 0.0, "no proof has counted");
            println!("fence: taken after {took:.1?}");
            let outcomes = hold.release().await?;
            anyhow::Ok((replicas, outcomes))
        };
        let ((replicas, outcomes), _) = {
            let (died, ended) = futures::join!(died, join_all(waiting));
            (died?, ended)
        };
        let mut refused: BTreeMap<String, usize> = BTreeMap::new();
        for outcome in &outcomes {
            let why = outcome
                .result
                .as_ref()
                .err()
                .map(|refused| &refused.failure);
            // The policy leaves events out: nobody decides by them.
            if outcome.kind.ends_with(" events") {
                ensure!(why.is_none(), "{outcome:?}");
                continue;
            }
            ensure!(why == Some(&Failure::Fenced), "{outcome:?}");
            *refused.entry(outcome.kind.clone()).or_default() += 1;
        }
        println!("fence: refused {refused:?}");
        ensure!(refused.len() == 4 && refused.values().all(|count| *count == OF_EACH));
        let mut after = traces(&client, &namespace).await?;
        let mut before = before;
        for traces in [&mut before, &mut after] {
            traces.retain(|what, _| !what.starts_with("events"));
        }
        ensure!(
            before == after,
            "something has landed: {before:?}, {after:?}"
        );
        // Who sent them is in the log under upstream's name for it.
        let mut names = BTreeMap::new();
        control_plane.audit().read(|record| {
            if record.is_write()
                && record
                    .agent()
                    .is_some_and(|agent| agent.replica == VICTIM && agent.range.is_some())
            {
                let user = record
                    .impersonated_user
                    .map(|user| user.username)
                    .unwrap_or_default();
                *names.entry(user).or_insert(0) += 1;
            }
        })?;
        let account = |name: &str| format!("system:serviceaccount:kube-system:{name}");
        let expected = [
            account("deployment-controller"),
            account("replicaset-controller"),
        ];
        ensure!(names.keys().eq(expected.iter()), "{names:?}");
        drop(replicas);
        Ok(())
    });
}

/// A whole replica in a thread of its own.
struct Victim {
    hold: Arc<Hold>,
    die: Option<oneshot::Sender<()>>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Victim {
    async fn start(control_plane: &ControlPlane) -> Result<Self> {
        let hold = Hold::new();
        let reach = Reach::new(control_plane, ServerFenceMode::Off).await?;
        let (die, dies) = oneshot::channel();
        let (end, ends) = oneshot::channel();
        let (started, start) = oneshot::channel();
        let its = Arc::clone(&hold);
        let thread = std::thread::spawn(move || {
            actix::System::new().block_on(async move {
                // Connections belong to the runtime that first uses them: none was used before.
                match Self::live(&reach, its).await {
                    Ok((node, handle)) => {
                        let _ = started.send(Ok(()));
                        let _ = dies.await;
                        drop(handle);
                        let _ = ends.await;
                        drop(node);
                    }
                    Err(error) => {
                        let _ = started.send(Err(error));
                    }
                }
            });
        });
        start.await.context("the victim's thread")??;
        Ok(Self {
            hold,
            die: Some(die),
            end: Some(end),
            thread: Some(thread),
        })
    }

    async fn live(reach: &Reach, hold: Arc<Hold>) -> Result<(Arc<Node>, Handle)> {
        let controllers = node_registry::all();
        let descriptors = node_registry::descriptors();
        let fence = Arc::new(LateFence::default());
        let node = Arc::new(Node::start(Parts {
            adapts: Box::new(|_| false),
            replica: VICTIM.to_owned(),
            ranges: 256,
            controllers: controllers
                .into_iter()
                .filter(|factory| {
                    ["deployment-controller", "replicaset-controller"]
                        .contains(&(factory.describe)().name)
                })
                .collect(),
            flags: Flags::defaults(&descriptors),
            watches: reach.watches.clone(),
            server: Arc::new(Held {
                server: Arc::clone(&reach.server),
                hold,
            }),
            keys: Arc::new(node::keys::NoKeys),
            cloud: Arc::new(node::cloud::NoCloud),
            host: "test".to_owned(),
            rate: (5000.0, 5000),
            fence: Arc::clone(&fence) as Arc<dyn node::gate::Fence>,
            metrics: Metrics::new(&descriptors),
            clock: Arc::new(SystemClock::default()),
            watching: node_cache::Settings::default(),
            threads: Threads::Many,
            traces: None,
            shadow: None,
        }));
        until(
            "the victim's caches are complete",
            PATIENCE,
            POLL,
            || async { Ok(node.is_ready_now().then_some(())) },
        )
        .await?;
        let handle = reach
            .join(Arc::clone(&node.host) as Arc<dyn RangeHost>)
            .await?;
        fence.set(handle.fence());
        owns_everything(&handle).await?;
        Ok((node, handle))
    }

    /// It renews no more.
    fn die(&mut self) {
        drop(self.die.take());
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.die();
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // What it panicked with was printed.
            let _ = thread.join();
        }
    }
}

async fn set_complete(sets: &Api<ReplicaSet>, name: &str, replicas: i32) -> Result<()> {
    let what = format!("{replicas} pods of {name} are ready");
    until(&what, PATIENCE, POLL, || async {
        let status = sets.get(name).await?.status.unwrap_or_default();
        let ready = status.ready_replicas.unwrap_or(0);
        ensure!(
            (status.replicas, ready) == (replicas, replicas),
            "{status:?}"
        );
        Ok(Some(()))
    })
    .await
}

/// Deployments and their pods as they stand: replicas, ReplicaSets' sizes and templates, pods' uids.
async fn picture(client: &Client, namespace: &str) -> Result<BTreeMap<String, Value>> {
    let mut picture = BTreeMap::new();
    let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), namespace);
    for set in sets.list(&ListParams::default()).await?.items {
        let name = set.metadata.name.unwrap_or_default();
        let spec = serde_json::to_value(set.spec)?;
        picture.insert(
            format!("replicasets/{name}"),
            json!([set.metadata.uid, spec, set.metadata.labels]),
        );
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    for pod in pods.list(&ListParams::default()).await?.items {
        let name = pod.metadata.name.unwrap_or_default();
        picture.insert(
            format!("pods/{name}"),
            json!([pod.metadata.uid, pod.metadata.deletion_timestamp.is_some()]),
        );
    }
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    for deployment in deployments.list(&ListParams::default()).await?.items {
        let name = deployment.metadata.name.unwrap_or_default();
        let status = deployment.status.unwrap_or_default();
        picture.insert(
            format!("deployments/{name}"),
            json!([
                deployment.metadata.uid,
                deployment.spec,
                status.replicas,
                status.updated_replicas,
                status.ready_replicas
            ]),
        );
    }
    Ok(picture)
}

/// A ReplicaSet whose pods were made, and became ready, within one second each. Where ages differ they are
/// compared by their order of magnitude, so that the choice of pods to delete changes with time: upstream's
/// rule.
async fn twins(sets: &Api<ReplicaSet>, pods: &Api<Pod>, name: &str, count: i32) -> Result<()> {
    const TRIES: usize = 30;
    let ours = ListParams::default().labels(&format!("app={name}"));
    for _ in 0..TRIES {
        let mut set = deployment(name, count.try_into()?);
        set["kind"] = "ReplicaSet".into();
        sets.create(&PostParams::default(), &serde_json::from_value(set)?)
            .await?;
        set_complete(sets, name, count).await?;
        let born: BTreeSet<_> = pods
            .list(&ours)
            .await?
            .items
            .into_iter()
            .map(|pod| {
                let conditions = pod.status.and_then(|status| status.conditions);
                let ready = conditions
                    .into_iter()
                    .flatten()
                    .find(|one| one.type_ == "Ready");
                let ready = ready.and_then(|one| one.last_transition_time);
                (pod.metadata.creation_timestamp, ready)
            })
            .collect();
        if born.len() == 1 {
            return Ok(());
        }
        sets.delete(name, &DeleteParams::background()).await?;
        pods.delete_collection(&DeleteParams::default(), &ours)
            .await?;
        until("it is gone with its pods", PATIENCE, POLL, || async {
            let left = pods.list(&ours).await?.items.len();
            let set = sets.get_opt(name).await?;
            Ok((left == 0 && set.is_none()).then_some(()))
        })
        .await?;
    }
    anyhow::bail!("{TRIES} times the pods of {name} were not made within one second")
}

#[test]
fn without_the_servers_fence_it_does_not_land_twice_nor_undo_what_the_next_owner_did() {
    let _alone = alone();
    run_test(async {
        let control_plane = crate::support::judged().await?;
        let client = control_plane.client().await?;
        let namespace = control_plane.namespace("held").await?;
        let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> =
            Api::namespaced(client.clone(), &namespace);
        let account = serde_json::from_value(json!({"metadata": {"name": "default"}}))?;
        accounts.create(&PostParams::default(), &account).await?;
        let mut victim = Victim::start(&control_plane).await?;
        let api: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
        let scale = |name: String, replicas: i32| {
            let api = api.clone();
            async move {
                let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
                api.patch(&name, &PatchParams::default(), &patch).await?;
                anyhow::Ok(())
            }
        };
        for (name, replicas) in [
            ("grows", 2),
            ("shrinks", 5),
            ("rolls", 3),
            ("lone", 2),
            ("reported", 1),
        ] {
            create(&api, deployment(name, replicas)).await?;
            complete(&api, name, replicas.try_into()?).await?;
        }
        // Of nobody: its pods are deleted without a Deployment's write before.
        let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), &namespace);
        let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        twins(&sets, &pods, "bare", 4).await?;

        // From here on everything that it writes is stuck between the last check and the send.
        victim.hold.holding.store(true, Ordering::Release);
        create(&api, deployment("fresh", 3)).await?;
        scale("grows".to_owned(), 6).await?;
        scale("shrinks".to_owned(), 1).await?;
        let template = json!({"spec": {"template": {"spec": {"containers": [{"name": "app", "image": "example/app:2"}]}}}});
        api.patch("rolls", &PatchParams::default(), &Patch::Merge(template))
            .await?;
        // Changes nothing but what is reported.
        let deadline = Patch::Merge(json!({"spec": {"progressDeadlineSeconds": 700}}));
        api.patch("reported", &PatchParams::default(), &deadline)
            .await?;
        let one = Patch::Merge(json!({"spec": {"replicas": 1}}));
        sets.patch("bare", &PatchParams::default(), &one).await?;
        let of_lone = ListParams::default().labels("app=lone");
        for pod in pods.list(&of_lone).await?.items {
            let name = pod.metadata.name.unwrap_or_default();
            pods.delete(&name, &Default::default()).await?;
        }
        let wanted = [
            "create replicasets",
            "patch replicasets",
            "create pods",
            "delete pods",
            "patch deployments/status",
        ];
        until("the victim's writes are held", PATIENCE, POLL, || async {
            let held = victim.hold.held();
            let missing: Vec<_> = wanted
                .iter()
                .filter(|kind| !held.contains_key(**kind))
                .collect();
            ensure!(missing.is_empty(), "{missing:?} are not; held: {held:?}");
            Ok(Some(()))
        })
        .await?;

        let fleet = control_plane
            .fleet()
            .arg("--server-fence=off")
            .build()
            .await?;
        let replicas = replicas(&fleet).await?;
        victim.die();
        taken(&client).await?;
        for (name, replicas) in [
            ("fresh", 3),
            ("grows", 6),
            ("shrinks", 1),
            ("rolls", 3),
            ("lone", 2),
            ("reported", 1),
        ] {
            complete(&api, name, replicas).await?;
        }
        set_complete(&sets, "bare", 1).await?;
        // Old ReplicaSets' pods end a moment after the status is complete.
        let before = until("the next owners rest", PATIENCE, POLL, || async {
            let one = picture(&client, &namespace).await?;
            tokio::time::sleep(Duration::from_secs(1)).await;
            let other = picture(&client, &namespace).await?;
            Ok((one == other).then_some(one))
        })
        .await?;

        let outcomes = victim.hold.release().await?;
        let mut reported: BTreeMap<String, usize> = BTreeMap::new();
        for Outcome { kind, name, result } in &outcomes {
            let word = match result {
                Ok(_) => "landed",
                Err(refused) => refused.failure.class().label,
            };
            *reported.entry(format!("{kind}: {word}")).or_default() += 1;
            let why = result.as_ref().err().map(|refused| &refused.failure);
            if kind.ends_with(" events") {
                // Reports of what was decided, and changes nothing.
            } else if kind.starts_with("create ") {
                // All that the victim had seen of this one's children has gone: the next owner could not
                // guess the name.
                let blind = name.starts_with("lone-");
                ensure!(
                    blind || matches!(why, Some(Failure::AlreadyExists(_))),
                    "{kind} {name}: {result:?}"
                );
            } else {
                ensure!(
                    matches!(why, Some(Failure::Conflict(_) | Failure::NotFound(_))),
                    "{kind} {name}: {result:?}"
                );
            }
        }
        println!("held, without the server's fence: {reported:?}");
        // One child too many, made blindly, is gone again as soon as its owner has seen it.
        until("the blind one is gone", PATIENCE, POLL, || async {
            let of_lone = pods.list(&of_lone).await?.items.len();
            let status = api.get_status("lone").await?.status.unwrap_or_default();
            Ok((of_lone == 2 && status.replicas == Some(2)).then_some(()))
        })
        .await?;
        complete(&api, "lone", 2).await?;
        let others = |picture: BTreeMap<String, Value>| -> BTreeMap<String, Value> {
            picture
                .into_iter()
                .filter(|(name, _)| !name.starts_with("pods/lone-"))
                .collect()
        };
        let before = others(before);
        // The Deployment may count the one child too many after that is gone.
        until("all is as before", PATIENCE, POLL, || async {
            let after = others(picture(&client, &namespace).await?);
            let undone: Vec<_> = before
                .iter()
                .filter(|(name, what)| after.get(*name) != Some(what))
                .map(|(name, what)| (name, what, after.get(name)))
                .collect();
            ensure!(undone.is_empty(), "something was undone: {undone:?}");
            let added: Vec<_> = after
                .keys()
                .filter(|name| !before.contains_key(*name))
                .collect();
            ensure!(added.is_empty(), "something has landed: {added:?}");
            Ok(Some(()))
        })
        .await?;
        drop(replicas);
        Ok(())
    });
}
