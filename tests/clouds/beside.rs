//! The same deeds over the same cloud under upstream's cloud controllers and under Manifold's, and what is
//! left compared: Services and Nodes field by field, events, the cloud's state, and the calls that change it.
//!
//! Both sides have a control plane and a cloud each, and play the scenarios one after the other, since Nodes
//! belong to the whole cluster. A difference fails the suite unless [`MEANT`] names it with its reason, which
//! must stand in controllers/README.md.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use cloud_proto::{Route, refusal::Reason};
use cloud_provider::reference::{Fault, Reference, Serving};
use harness::{
    ControlPlane, Fleet, Replica, control_plane::NO_KUBELET, process::Process, run_test, until,
};
use k8s_openapi::api::core::v1::{Event, Node, Service};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::{CLUSTER, bridge};
use crate::{
    parity::Normal,
    support::{POLL, all_end_well, beside, fleet_of},
};

/// For what a scenario awaits: upstream's first retries come after 5 s and 10 s.
const LIMIT: Duration = Duration::from_secs(60);
/// Nothing has changed for so long: more than a period of the controllers.
const AT_REST: Duration = Duration::from_millis(2500);
const POLL_EVERY: Duration = Duration::from_millis(250);
/// The snapshot that every scenario has.
const END: &str = "the end";
/// Replicas of Manifold.
const REPLICAS: usize = 2;
/// Blocks of addresses of a scenario's nodes.
const BLOCKS: usize = 4;
const PERIODS: [&str; 4] = [
    "--cluster-cidr=10.200.0.0/16",
    "--node-monitor-period=1s",
    "--route-reconciliation-period=1s",
    "--concurrent-service-syncs=5",
];
/// Those that change the cloud.
const DEEDS: [&str; 5] = [
    "EnsureLoadBalancer",
    "UpdateLoadBalancer",
    "EnsureLoadBalancerDeleted",
    "CreateRoute",
    "DeleteRoute",
];

/// One deed of a scenario. Nodes and Services have numbers and short names of their own in each.
#[derive(Debug)]
enum Step {
    /// A machine and its ready node, with a block of addresses.
    Join(usize),
    /// What the kubelet says: whether the node is ready.
    Ready(usize, &'static str),
    /// A merge patch of a node.
    Node(usize, Value),
    /// The machine is gone.
    Terminate(usize),
    /// The machine is shut down.
    ShutDown(usize),
    /// A Service with this spec.
    Make(&'static str, Value),
    /// A merge patch of a Service.
    Patch(&'static str, Value),
    Delete(&'static str),
    DeleteNode(usize),
    /// A route made by hand to a node that is not there: the block's number, or one outside the cluster.
    Stray(Option<usize>),
    Fault(&'static str, Fault, Option<usize>),
    Mend,
    /// Until this is so.
    Until(&'static str, fn(&Value) -> bool),
    /// Until nothing has changed for a while.
    Rest,
    /// What both sides must have in common at this point too.
    Snapshot(&'static str),
}
use Step::{
    Delete, DeleteNode, Join, Make, Mend, Patch as Alter, Ready, Rest, ShutDown, Snapshot, Stray,
    Terminate, Until,
};

struct Scenario {
    name: &'static str,
    steps: Vec<Step>,
}

fn balanced() -> Value {
    json!({"type": "LoadBalancer", "ports": [{"port": 80, "targetPort": 8080}]})
}

fn has(reason: &str, state: &Value) -> bool {
    let events = state["events"].as_object().into_iter().flatten();
    events.into_iter().any(|(event, _)| event.contains(reason))
}

fn is_balanced(state: &Value) -> bool {
    state
        .pointer("/services/web/status/loadBalancer/ingress/0/ip")
        .is_some()
}

fn fault(call: &'static str, fault: Fault, times: usize) -> Step {
    Step::Fault(call, fault, Some(times))
}

fn refusal(why: &str) -> Fault {
    Fault::Refuse(Reason::Failed, why.to_owned())
}

fn routed(state: &Value) -> bool {
    let nodes = state["nodes"].as_object().into_iter().flatten();
    nodes
        .into_iter()
        .all(|(_, node)| reason_of(node) == "RouteCreated")
}

/// Why a node's network is available or is not.
fn reason_of(node: &Value) -> &str {
    let conditions = node["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten();
    let mut found = conditions.filter(|one| one["type"] == "NetworkUnavailable");
    found
        .find_map(|one| one["reason"].as_str())
        .unwrap_or_default()
}

fn is_tainted(state: &Value) -> bool {
    state
        .to_string()
        .contains("node.cloudprovider.kubernetes.io/shutdown")
}

fn is_gone(state: &Value) -> bool {
    state["services"]
        .as_object()
        .is_some_and(serde_json::Map::is_empty)
}

/// A load balancer of one Service over two nodes.
fn with_web(steps: Vec<Step>) -> Vec<Step> {
    let mut all = vec![
        Join(1),
        Join(2),
        Rest,
        Make("web", balanced()),
        Until("web is balanced", is_balanced),
        Rest,
    ];
    all.extend(steps);
    all
}

#[rustfmt::skip]
fn scenarios() -> Vec<Scenario> {
    let scenario = |name, steps| Scenario { name, steps };
    let gone = || Until("web is gone", is_gone);
    let down = || fault("GetLoadBalancer", Fault::Down, 1);
    vec![
        scenario("made", with_web(vec![])),
        scenario("deleted", with_web(vec![Delete("web"), gone()])),
        scenario("another-type", with_web(vec![
            Alter("web", json!({"spec": {"type": "ClusterIP", "externalTrafficPolicy": null, "allocateLoadBalancerNodePorts": null}})),
            Until("the load balancer is deleted", |state| has("DeletedLoadBalancer", state)),
            Rest, Snapshot("a ClusterIP"),
            Alter("web", json!({"spec": {"type": "LoadBalancer"}})),
            Until("web is balanced", is_balanced),
        ])),
        scenario("other-ports", with_web(vec![
            Alter("web", json!({"spec": {"ports": [{"port": 81, "targetPort": 8080}]}})),
            Until("the port is changed", |state| state["balancers"]["web"]["ports"] == json!([81])),
        ])),
        scenario("annotated", with_web(vec![
            Alter("web", json!({"metadata": {"annotations": {"example.com/kind": "fast"}}})),
            Rest,
            Alter("web", json!({"metadata": {"labels": {"example.com/team": "a"}}})),
        ])),
        scenario("of-a-class", vec![
            Join(1), Rest,
            Make("web", json!({"type": "LoadBalancer", "loadBalancerClass": "example.com/own", "ports": [{"port": 80}]})),
        ]),
        scenario("without-nodes", vec![
            Make("web", balanced()),
            Until("web is balanced", is_balanced),
            Rest, Snapshot("no hosts"),
            Join(1),
            Until("it has a host", |state| state["balancers"]["web"]["nodes"] == json!(["n1"])),
        ]),
        scenario("nodes-come-and-go", with_web(vec![
            Join(3),
            Until("it has three hosts", |state| state["balancers"]["web"]["nodes"] == json!(["n1", "n2", "n3"])),
            Rest, Snapshot("three"),
            DeleteNode(2),
            Until("it has two hosts", |state| state["balancers"]["web"]["nodes"] == json!(["n1", "n3"])),
        ])),
        scenario("nodes-excluded", with_web(vec![
            Step::Node(1, json!({"metadata": {"labels": {"node.kubernetes.io/exclude-from-external-load-balancers": ""}}})),
            Until("n1 is out", |state| state["balancers"]["web"]["nodes"] == json!(["n2"])),
            Rest, Snapshot("a label"),
            Step::Node(1, json!({"metadata": {"labels": {"node.kubernetes.io/exclude-from-external-load-balancers": null}}})),
            Until("n1 is back", |state| state["balancers"]["web"]["nodes"] == json!(["n1", "n2"])),
            Rest,
            // A taint alone changes nothing; the next change of a node takes it into account.
            Step::Node(2, json!({"spec": {"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]}})),
            Rest, Snapshot("a taint"),
            Join(3),
            Until("n2 is out", |state| state["balancers"]["web"]["nodes"] == json!(["n1", "n3"])),
        ])),
        scenario("nodes-not-ready-stay", with_web(vec![Ready(1, "False"), Rest])),
        // Faults of load balancers.
        scenario("ensure-refused", vec![
            Join(1), Rest,
            fault("EnsureLoadBalancer", refusal("quota of addresses exceeded"), 2),
            Make("web", balanced()),
            Until("it has failed", |state| has("SyncLoadBalancerFailed", state)),
            Snapshot("failed"),
            Until("web is balanced", is_balanced),
        ]),
        scenario("ensure-down", vec![
            Join(1), Rest,
            fault("EnsureLoadBalancer", Fault::Down, 1),
            Make("web", balanced()),
            Until("web is balanced", is_balanced),
        ]),
        scenario("ensure-later", vec![
            Join(1), Rest,
            fault("EnsureLoadBalancer", Fault::RetryAfter(Duration::from_secs(2)), 2),
            Make("web", balanced()),
            Until("web is balanced", is_balanced),
        ]),
        scenario("ensure-slow", vec![
            Join(1), Rest,
            fault("EnsureLoadBalancer", Fault::Slow(Duration::from_secs(3)), 1),
            Make("web", balanced()),
            Until("web is balanced", is_balanced),
        ]),
        scenario("ensure-lost", vec![
            Join(1), Rest,
            fault("EnsureLoadBalancer", Fault::LostAnswer, 1),
            Make("web", balanced()),
            Until("web is balanced", is_balanced),
        ]),
        scenario("ensure-unanswered", vec![
            Join(1), Rest,
            fault("EnsureLoadBalancer", Fault::Empty, 1),
            Make("web", balanced()),
            Until("web is balanced", is_balanced),
        ]),
        scenario("ensure-elsewhere", vec![
            Join(1), Rest,
            Step::Fault("EnsureLoadBalancer", Fault::Refuse(Reason::ImplementedElsewhere, "another does it".to_owned()), None),
            Make("web", balanced()),
        ]),
        scenario("delete-refused", with_web(vec![
            fault("EnsureLoadBalancerDeleted", refusal("in use"), 1),
            Delete("web"), gone(),
        ])),
        scenario("delete-down", with_web(vec![
            fault("EnsureLoadBalancerDeleted", Fault::Down, 1),
            Delete("web"), gone(),
        ])),
        scenario("delete-lost", with_web(vec![
            fault("EnsureLoadBalancerDeleted", Fault::LostAnswer, 1),
            Delete("web"), gone(),
        ])),
        scenario("delete-unseen", with_web(vec![down(), Delete("web"), gone()])),
        scenario("delete-held", with_web(vec![
            Step::Fault("EnsureLoadBalancerDeleted", Fault::Down, None),
            Delete("web"),
            Until("it has failed", |state| has("SyncLoadBalancerFailed", state)),
            Snapshot("held"),
            Mend, gone(),
        ])),
        scenario("update-refused", with_web(vec![
            fault("UpdateLoadBalancer", refusal("in use"), 1),
            Join(3),
            Until("it has three hosts", |state| state["balancers"]["web"]["nodes"] == json!(["n1", "n2", "n3"])),
        ])),
        scenario("update-lost", with_web(vec![
            fault("UpdateLoadBalancer", Fault::LostAnswer, 1),
            Join(3),
            Until("it has three hosts", |state| state["balancers"]["web"]["nodes"] == json!(["n1", "n2", "n3"])),
            Until("it is reported", |state| has("UpdateLoadBalancerFailed", state)),
        ])),
        // Routes.
        scenario("routes", vec![Join(1), Join(2), Until("both have routes", routed)]),
        scenario("routes-strays", vec![
            Stray(Some(3)), Stray(None),
            Join(1),
            Until("the stray is gone", |state| state["routes"] == json!(["elsewhere 10.9.0.0/24", "n1 block1"])),
            DeleteNode(1),
            Until("its route is gone", |state| state["routes"] == json!(["elsewhere 10.9.0.0/24"])),
        ]),
        scenario("routes-refused", vec![
            fault("CreateRoute", refusal("table is full"), 2),
            Join(1),
            Until("it has no route", |state| reason_of(&state["nodes"]["n1"]) == "NoRouteCreated"),
            Until("it has a route", routed),
        ]),
        scenario("routes-partial", vec![
            Join(1), Until("it has a route", routed), Rest,
            fault("CreateRoute", Fault::Down, 1),
            Join(2),
            Until("both have routes", |state| routed(state) && has("FailedToCreateRoute", state)),
        ]),
        scenario("routes-lost", vec![
            fault("CreateRoute", Fault::LostAnswer, 1),
            Join(1),
            Until("it has a route", |state| routed(state) && has("FailedToCreateRoute", state)),
        ]),
        scenario("routes-unlisted", vec![
            Join(1), Until("it has a route", routed),
            Step::Fault("ListRoutes", Fault::Down, None),
            Join(2), Stray(Some(3)), Rest, Snapshot("nothing is done"),
            Mend,
            Until("both have routes", |state| routed(state) && state["routes"] == json!(["n1 block1", "n2 block2"])),
        ]),
        scenario("routes-unanswered", vec![
            Join(1), Until("it has a route", routed),
            Step::Fault("ListRoutes", Fault::Empty, None),
            Join(2), Rest, Snapshot("nothing is done"),
            Mend,
            Until("both have routes", routed),
        ]),
        scenario("routes-undeleted", vec![
            Join(1), Until("it has a route", routed),
            fault("DeleteRoute", Fault::LostAnswer, 1),
            DeleteNode(1),
            Until("its route is gone", |state| state["routes"] == json!([])),
        ]),
        // Machines.
        scenario("machine-gone", vec![
            Join(1), Join(2), Until("both have routes", routed), Rest,
            Terminate(1), Rest, Snapshot("a ready node stays"),
            Ready(1, "Unknown"),
            Until("n1 is deleted", |state| state["nodes"]["n1"].is_null()),
            Until("its route is gone", |state| state["routes"] == json!(["n2 block2"])),
        ]),
        scenario("machine-shut-down", vec![
            Join(1), Until("it has a route", routed), Rest,
            ShutDown(1), Ready(1, "False"),
            Until("it is tainted", is_tainted),
            Rest, Snapshot("shut down"),
            Ready(1, "True"),
            Until("it is not tainted", |state| !is_tainted(state)),
        ]),
        scenario("machine-not-ready", vec![
            Join(1), Until("it has a route", routed), Rest,
            Ready(1, "False"), Rest,
        ]),
        scenario("machine-unknown", vec![
            Join(1), Until("it has a route", routed), Rest,
            Terminate(1),
            Step::Fault("InstanceExists", Fault::Down, None),
            Ready(1, "Unknown"), Rest, Snapshot("it stays"),
            Mend, Step::Fault("InstanceExists", Fault::Empty, None), Rest, Snapshot("it still stays"),
            Mend, Step::Fault("InstanceExists", Fault::Refuse(Reason::InstanceNotFound, "no such machine".to_owned()), None),
            Rest, Snapshot("not found is no answer"),
            Mend,
            Until("n1 is deleted", |state| state["nodes"]["n1"].is_null()),
        ]),
        scenario("machine-undecided", vec![
            Join(1), Until("it has a route", routed), Rest,
            ShutDown(1),
            Step::Fault("InstanceShutdown", refusal("try later"), None),
            Ready(1, "False"), Rest, Snapshot("no taint"),
            Mend,
            Until("it is tainted", is_tainted),
        ]),
    ]
}

/// Who runs the controllers.
#[allow(clippy::large_enum_variant, reason = "one of a test")]
enum Manager {
    Upstream {
        _process: Process,
        _bridge: bridge::Bridge,
    },
    Ours {
        _fleet: Fleet,
        replicas: Vec<Replica>,
        _serving: Serving,
    },
}

struct Side {
    control_plane: ControlPlane,
    cloud: Reference,
    client: Client,
    manager: Manager,
}

/// A scenario under way.
struct Play<'s> {
    side: &'s Side,
    scenario: &'s str,
    /// Its place among all: its blocks of addresses follow from it.
    place: usize,
    services: Api<Service>,
    nodes: Api<Node>,
    /// Calls before it.
    calls: usize,
    normal: Normal,
}

/// What was found at each reads.
type Snapshots = BTreeMap<String, Value>;

/// What a scenario left behind on one side.
#[derive(Debug, Default)]
struct Outcome {
    snapshots: Snapshots,
    /// The step that could not be done, and why.
    failed: Option<String>,
}

impl Side {
    async fn start(ours: bool) -> Result<Self> {
        let control_plane = ControlPlane::builder()
            .nodes(0)
            .kubelets_may_end()
            .start()
            .await?;
        let client = control_plane.client().await?;
        let cloud = Reference::new();
        let socket: PathBuf = control_plane.dir().path().join("cloud.sock");
        let manager = if ours {
            let serving = cloud.serve(&socket)?;
            let endpoint = format!("--cloud-provider-endpoint=unix://{}", socket.display());
            let mut flags = vec![
                "--controllers=service,route,cloud-node-lifecycle",
                &endpoint,
            ];
            flags.extend(PERIODS);
            let fleet = fleet_of(&control_plane, &flags).await?;
            let replicas = fleet.start_all(REPLICAS).await?;
            Manager::Ours {
                _fleet: fleet,
                replicas,
                _serving: serving,
            }
        } else {
            let bridge = bridge::serve(&cloud, &socket)?;
            let process = control_plane
                .start_cloud_controllers(&socket, &PERIODS)
                .await?;
            Manager::Upstream {
                _process: process,
                _bridge: bridge,
            }
        };
        Ok(Self {
            control_plane,
            cloud,
            client,
            manager,
        })
    }

    async fn run(&mut self, scenarios: &[Scenario]) -> Result<Vec<Outcome>> {
        let mut all = Vec::new();
        for (place, scenario) in scenarios.iter().enumerate() {
            let begun = Instant::now();
            let outcome = self.play(place, scenario).await;
            all.push(outcome.with_context(|| format!("the scenario {}", scenario.name))?);
            println!("clouds: {}: {:.1?}", scenario.name, begun.elapsed());
        }
        if let Manager::Ours { replicas, .. } = &mut self.manager {
            all_end_well(replicas).await?;
        }
        Ok(all)
    }

    async fn play(&self, place: usize, scenario: &Scenario) -> Result<Outcome> {
        let namespace = self.control_plane.namespace(scenario.name).await?;
        let mut play = Play {
            side: self,
            scenario: scenario.name,
            place,
            services: Api::namespaced(self.client.clone(), &namespace),
            nodes: Api::all(self.client.clone()),
            calls: self.cloud.calls().len(),
            normal: Normal::default(),
        };
        let mut outcome = Outcome::default();
        for step in &scenario.steps {
            if let Err(error) = play.step(step, &mut outcome.snapshots).await {
                // The others are of interest nevertheless.
                outcome.failed = Some(format!("the step {step:?}: {error:#}"));
                break;
            }
        }
        let end = play.at_rest().await?;
        outcome.snapshots.insert(END.to_owned(), end);
        play.clear().await?;
        Ok(outcome)
    }
}

impl Play<'_> {
    fn node(&self, number: usize) -> String {
        format!("{}-n{number}", self.scenario)
    }

    fn block(&self, number: usize) -> String {
        format!("10.200.{}.0/24", BLOCKS * self.place + number)
    }

    async fn step(&mut self, step: &Step, snapshots: &mut Snapshots) -> Result<()> {
        let cloud = &self.side.cloud;
        let merge = PatchParams::default();
        match step {
            Join(number) => {
                let name = self.node(*number);
                cloud.machine(&name);
                let block = self.block(*number);
                let node = serde_json::from_value(json!({
                    "metadata": {"name": name, "labels": {NO_KUBELET: "none"}},
                    "spec": {"providerID": format!("reference://{name}"), "podCIDR": block, "podCIDRs": [block]},
                }))?;
                let made = self.nodes.create(&PostParams::default(), &node).await?;
                self.learn("Node", &made)?;
                self.ready(*number, "True").await?;
            }
            Ready(number, status) => self.ready(*number, status).await?,
            Step::Node(number, change) => {
                let name = self.node(*number);
                self.nodes
                    .patch(&name, &merge, &Patch::Merge(change))
                    .await?;
            }
            Terminate(number) => cloud.terminate(&self.node(*number)),
            ShutDown(number) => cloud.shut_down(&self.node(*number)),
            Make(name, spec) => {
                let service = json!({"metadata": {"name": name}, "spec": spec});
                let service = serde_json::from_value(service)?;
                let made = self
                    .services
                    .create(&PostParams::default(), &service)
                    .await?;
                self.learn("Service", &made)?;
            }
            Alter(name, change) => {
                self.services
                    .patch(name, &merge, &Patch::Merge(change))
                    .await?;
            }
            Delete(name) => {
                self.services.delete(name, &DeleteParams::default()).await?;
            }
            DeleteNode(number) => {
                let name = self.node(*number);
                self.nodes.delete(&name, &DeleteParams::default()).await?;
            }
            Stray(block) => {
                let (node, destination) = match block {
                    Some(number) => (self.node(*number), self.block(*number)),
                    None => (
                        format!("elsewhere-{}", self.scenario),
                        "10.9.0.0/24".to_owned(),
                    ),
                };
                let route = Route {
                    name: node.clone(),
                    target_node: node,
                    destination_cidr: destination,
                    ..Route::default()
                };
                cloud.put_route(CLUSTER, route);
            }
            Step::Fault(call, fault, times) => cloud.fault(call, fault.clone(), *times),
            Mend => cloud.mend(),
            Until(what, so) => {
                let waited = until(what, LIMIT, POLL, || async {
                    let state = self.state().await?;
                    ensure!(so(&state), "{state:#}");
                    Ok(Some(()))
                });
                waited.await?;
            }
            Rest => {
                self.at_rest().await?;
            }
            Snapshot(what) => {
                let state = self.at_rest().await?;
                snapshots.insert((*what).to_owned(), state);
            }
        }
        Ok(())
    }

    fn learn<T: serde::Serialize>(&mut self, kind: &str, object: &T) -> Result<()> {
        let mut object = serde_json::to_value(object)?;
        object["kind"] = json!(kind);
        self.normal.learn(&object);
        Ok(())
    }

    async fn ready(&self, number: usize, status: &str) -> Result<()> {
        let now = jiff::Timestamp::now().to_string();
        let patch = json!({"status": {"conditions": [{
            "type": "Ready", "status": status, "reason": "Test", "message": "",
            "lastHeartbeatTime": now, "lastTransitionTime": now,
        }]}});
        let name = self.node(number);
        let params = PatchParams::default();
        self.nodes
            .patch_status(&name, &params, &Patch::Strategic(patch))
            .await?;
        Ok(())
    }

    /// The state, once it has not changed for a while. The periods of the controllers are shorter.
    async fn at_rest(&self) -> Result<Value> {
        let (mut last, mut since) = (self.state().await?, Instant::now());
        let begun = Instant::now();
        while since.elapsed() < AT_REST && begun.elapsed() < LIMIT {
            tokio::time::sleep(POLL_EVERY).await;
            let state = self.state().await?;
            if state != last {
                (last, since) = (state, Instant::now());
            }
        }
        Ok(last)
    }

    /// Everything that both sides must have in common.
    async fn state(&self) -> Result<Value> {
        let all = ListParams::default();
        let mut services = serde_json::Map::new();
        for service in self.services.list(&all).await?.items {
            let name = service.metadata.name.clone().unwrap_or_default();
            services.insert(name, self.even("Service", &service)?);
        }
        let mut nodes = serde_json::Map::new();
        for node in self.nodes.list(&all).await?.items {
            let name = self.short(&node.metadata.name.clone().unwrap_or_default());
            nodes.insert(name, self.even("Node", &node)?);
        }
        let balancers: serde_json::Map<String, Value> = (self.side.cloud.balancers().iter())
            .map(|(service, one)| {
                let name = service.rsplit('/').next().unwrap_or_default().to_owned();
                let nodes: Vec<String> = one.nodes.iter().map(|node| self.short(node)).collect();
                (name, json!({"nodes": nodes, "ports": one.ports}))
            })
            .collect();
        let own = [
            format!("{}-n", self.scenario),
            format!("elsewhere-{} ", self.scenario),
        ];
        let mut routes = self.side.cloud.routes();
        routes.retain(|route| own.iter().any(|beginning| route.starts_with(beginning)));
        let routes: Vec<String> = routes.iter().map(|route| self.short(route)).collect();
        Ok(json!({
            "services": services,
            "nodes": nodes,
            "balancers": balancers,
            "routes": routes,
            "events": self.events().await?,
            "calls": self.calls(),
        }))
    }

    /// Names and blocks without what distinguishes this scenario from others.
    fn short(&self, text: &str) -> String {
        let mut short = text
            .replace(&format!("{}-n", self.scenario), "n")
            .replace(&format!("elsewhere-{}", self.scenario), "elsewhere");
        for number in 1..BLOCKS {
            short = short.replace(&self.block(number), &format!("block{number}"));
        }
        short
    }

    fn even<T: serde::Serialize>(&self, kind: &str, object: &T) -> Result<Value> {
        let mut object = serde_json::to_value(object)?;
        object["kind"] = json!(kind);
        if let Some(meta) = object["metadata"].as_object_mut() {
            // Each manager has a name of its own as a client.
            meta.remove("managedFields");
            meta.remove("namespace");
        }
        // What a finalizer held is gone a moment later.
        let even = self.normal.object(&object);
        Ok(serde_json::from_str(&self.short(&even.to_string()))?)
    }

    /// Events about the scenario's objects, with how often each was recorded.
    async fn events(&self) -> Result<BTreeMap<String, i64>> {
        let events: Api<Event> = Api::all(self.side.client.clone());
        let namespace = self.services.namespace().unwrap_or_default();
        let mut found = BTreeMap::new();
        for event in events.list(&ListParams::default()).await?.items {
            let about = &event.involved_object;
            let name = about.name.clone().unwrap_or_default();
            let is_ours = about.namespace.as_deref() == Some(namespace)
                || name.starts_with(&format!("{}-n", self.scenario));
            if !is_ours || about.kind.as_deref() == Some("Namespace") {
                continue;
            }
            let message = self.normal.text(&event.message.unwrap_or_default(), true);
            let source = event.source.and_then(|source| source.component);
            // The API server's own, of how it repairs what it has allocated.
            if event.reason.as_deref() == Some("ClusterIPNotAllocated") {
                continue;
            }
            let text = format!(
                "{} {name} ({}): {} {}: {}",
                about.kind.clone().unwrap_or_default(),
                source.unwrap_or_default(),
                event.type_.unwrap_or_default(),
                event.reason.unwrap_or_default(),
                without_duration(&message),
            );
            let count = i64::from(event.count.unwrap_or(1));
            *found.entry(self.short(&text)).or_default() += count;
        }
        Ok(found)
    }

    /// The calls of the scenario that change the cloud, with their number.
    fn calls(&self) -> BTreeMap<String, usize> {
        let mut found = BTreeMap::new();
        for one in self.side.cloud.calls().iter().skip(self.calls) {
            if DEEDS.contains(&one.call) {
                let about = self.normal.text(&self.short(&one.about), true);
                *found.entry(format!("{} {about}", one.call)).or_default() += 1;
            }
        }
        found
    }

    /// Leaves nothing to the next scenario.
    async fn clear(&self) -> Result<()> {
        self.side.cloud.mend();
        let all = ListParams::default();
        for service in self.services.list(&all).await?.items {
            let name = service.metadata.name.unwrap_or_default();
            // What nobody is in charge of any more.
            let _gone = self.services.delete(&name, &DeleteParams::default()).await;
        }
        until("no Service is left", LIMIT, POLL, || async {
            Ok(self
                .services
                .list(&all)
                .await?
                .items
                .is_empty()
                .then_some(()))
        })
        .await?;
        for node in self.nodes.list(&all).await?.items {
            let name = node.metadata.name.unwrap_or_default();
            let _gone = self.nodes.delete(&name, &DeleteParams::default()).await;
        }
        until("no route is left", LIMIT, POLL, || async {
            let routes = self.side.cloud.routes();
            let left = routes
                .iter()
                .filter(|route| !route.starts_with("elsewhere"));
            ensure!(left.count() == 0, "{routes:?}");
            Ok(Some(()))
        })
        .await
    }
}

/// An event's text with `after 1.2ms` made equal.
fn without_duration(message: &str) -> String {
    let mut words: Vec<&str> = message.split(' ').collect();
    for at in 1..words.len() {
        let takes = words[at - 1] == "after" && words[at].starts_with(|c: char| c.is_ascii_digit());
        if takes {
            words[at] = "<time>:";
        }
    }
    words.join(" ")
}

/// One thing that is not the same.
#[derive(Debug)]
struct Difference {
    scenario: &'static str,
    snapshot: String,
    path: String,
    theirs: Value,
    ours: Value,
}

/// A difference that is meant, with a sentence of a controller's differences.
struct Meant {
    reason: &'static str,
    fits: fn(&Difference) -> bool,
}

const MEANT: &[Meant] = &[];

fn compare(
    path: &str,
    theirs: &Value,
    ours: &Value,
    report: &mut impl FnMut(&str, &Value, &Value),
) {
    match (theirs, ours) {
        (Value::Object(one), Value::Object(other)) => {
            let mut keys: Vec<&String> = one.keys().chain(other.keys()).collect();
            keys.sort();
            keys.dedup();
            for key in keys {
                compare(&format!("{path}/{key}"), &theirs[key], &ours[key], report);
            }
        }
        _ if theirs == ours => {}
        _ => report(path, theirs, ours),
    }
}

fn differences(scenario: &'static str, theirs: &Outcome, ours: &Outcome) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut report = |snapshot: &str, path: &str, theirs: &Value, ours: &Value| {
        found.push(Difference {
            scenario,
            snapshot: snapshot.to_owned(),
            path: path.to_owned(),
            theirs: theirs.clone(),
            ours: ours.clone(),
        });
    };
    // A scenario that came to its end under neither shows nothing.
    if theirs.failed.is_some() || ours.failed.is_some() {
        report("course", "", &json!(theirs.failed), &json!(ours.failed));
    }
    for (snapshot, theirs) in &theirs.snapshots {
        let ours = ours.snapshots.get(snapshot).unwrap_or(&Value::Null);
        compare("", theirs, ours, &mut |path, theirs, ours| {
            report(snapshot, path, theirs, ours);
        });
    }
    found
}

#[test]
#[ignore = "minutes: cargo parity"]
fn the_same_deeds_end_as_under_upstream_s_cloud_controllers() {
    let _beside = beside();
    run_test(async {
        let only = std::env::var("MANIFOLD_PARITY").unwrap_or_default();
        let mut scenarios = scenarios();
        scenarios.retain(|one| {
            only.is_empty() || only.split(',').any(|begin| one.name.starts_with(begin))
        });
        let (mut theirs, mut ours) = tokio::try_join!(Side::start(false), Side::start(true))?;
        let (theirs, ours) = tokio::try_join!(theirs.run(&scenarios), ours.run(&scenarios))?;
        let (mut unexplained, mut meant) = (Vec::new(), BTreeMap::<&str, usize>::new());
        let (mut snapshots, mut events) = (0, 0);
        for ((scenario, theirs), ours) in scenarios.iter().zip(&theirs).zip(&ours) {
            snapshots += theirs.snapshots.len();
            events += theirs.snapshots[END]["events"]
                .as_object()
                .map_or(0, serde_json::Map::len);
            for one in differences(scenario.name, theirs, ours) {
                match MEANT.iter().find(|meant| (meant.fits)(&one)) {
                    Some(known) => *meant.entry(known.reason).or_default() += 1,
                    None => unexplained.push(format!(
                        "{} ({}): {}: theirs {}, ours {}",
                        one.scenario, one.snapshot, one.path, one.theirs, one.ours
                    )),
                }
            }
        }
        for (reason, count) in &meant {
            println!("clouds: meant, {count} times: {reason}");
        }
        println!(
            "clouds: {} scenarios, {snapshots} snapshots, {events} events of upstream's, {} meant differences, {} \
             unexplained",
            scenarios.len(),
            meant.values().sum::<usize>(),
            unexplained.len()
        );
        ensure!(unexplained.is_empty(), "{}", unexplained.join("\n"));
        Ok(())
    });
}

#[test]
fn every_meant_difference_has_its_reason_in_the_readme() {
    let readme = std::fs::read_to_string(harness::workspace_root().join("controllers/README.md"));
    let readme = readme.expect("controllers/README.md");
    for meant in MEANT {
        assert!(readme.contains(meant.reason), "{}", meant.reason);
    }
}
