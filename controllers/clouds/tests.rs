use std::time::Duration;

use controllers_kit::{
    Answer, Answers, Controller, FlagValue, Key, Plan, Query, Refusal, Runs, Snapshot,
    cloud::{self, Call, Deed, Outcome, Route},
    cloud::{Reply, Reply::LoadBalancer},
    testing::{Common, NodeBuild, World, contract::Contract, namespace, node, service},
};
use kubernetes_proto::core::{LoadBalancerIngress, Node, NodeCondition, Service};

use crate::{REGISTRY, flags};

pub(crate) const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";

pub(crate) fn start() -> World {
    World::at("12:00:00").without_kubelets().flag(
        flags::ENDPOINT,
        FlagValue::Text("unix:///run/cloud.sock".to_owned()),
    )
}

pub(crate) fn with_ranges(ranges: &str) -> World {
    start()
        .with(namespace("kube-system"))
        .flag("cluster-cidr", FlagValue::Text(ranges.to_owned()))
}

/// A Service of type LoadBalancer.
pub(crate) fn balanced(name: &str) -> Service {
    let mut service = service(name);
    service.spec.get_or_insert_default().r#type = "LoadBalancer".to_owned();
    service
}

pub(crate) fn machine(name: &str, ready: &str) -> Node {
    let mut node = node(name);
    node.spec.get_or_insert_default().provider_id = format!("reference://{name}");
    node.status.get_or_insert_default().conditions = vec![NodeCondition {
        r#type: "Ready".to_owned(),
        status: ready.to_owned(),
        ..Default::default()
    }];
    node
}

pub(crate) fn routed(name: &str, cidrs: &[&str]) -> Node {
    let mut node = machine(name, "True");
    node.spec.get_or_insert_default().pod_cid_rs = cidrs.iter().map(|one| (*one).into()).collect();
    node
}

pub(crate) fn route(name: &str, node: &str, cidr: &str) -> Route {
    Route {
        name: name.to_owned(),
        target_node: node.to_owned(),
        destination: cidr.to_owned(),
        ..Route::default()
    }
}

pub(crate) fn ingress(ip: &str) -> LoadBalancerIngress {
    LoadBalancerIngress {
        ip: ip.to_owned(),
        ..Default::default()
    }
}

/// A provider that has all it is asked for, machines called `gone` and routes apart.
pub(crate) fn healthy(call: &Call) -> Outcome {
    Ok(match &call.deed {
        Deed::Describe => Reply::Provider {
            name: "test".to_owned(),
            instances: true,
            load_balancers: true,
            routes: true,
        },
        Deed::GetLoadBalancer | Deed::EnsureLoadBalancer { .. } => {
            LoadBalancer(Some(vec![ingress("192.0.2.1")]))
        }
        Deed::InstanceExists(node) => Reply::Is(node.name != "gone"),
        Deed::InstanceShutdown(node) => Reply::Is(node.name == "off"),
        // All that is wanted, since nothing is remembered here: with less there would be no rest. What a
        // round deletes and creates is tested with a cloud that remembers.
        Deed::ListRoutes => Reply::Routes(vec![
            route("r1", "a", "10.0.0.0/24"),
            route("r2", "b", "10.0.1.0/24"),
            route("r3", "nobody", "192.168.9.0/24"),
        ]),
        Deed::UpdateLoadBalancer { .. }
        | Deed::EnsureLoadBalancerDeleted
        | Deed::CreateRoute { .. }
        | Deed::DeleteRoute { .. } => Reply::Done,
    })
}

pub(crate) fn answer(query: &Query) -> Option<Answer> {
    match query {
        Query::Cloud(call) => Some(cloud::answer(healthy(call), Duration::from_millis(2))),
        _ => None,
    }
}

/// One controller with the memory of one key, asked and planned step by step.
pub(crate) struct Bed<C: Controller> {
    controller: C,
    pub(crate) key: Key,
    pub(crate) memory: C::Memory,
    pub(crate) world: World,
    /// The calls of all steps, by name.
    pub(crate) calls: Vec<&'static str>,
}

impl<C: Controller> Bed<C> {
    pub(crate) fn new(world: World, key: &str) -> Self {
        Self {
            controller: C::new(&world.flags([&C::describe()])),
            key: Key::parse(key),
            memory: C::Memory::default(),
            world,
            calls: Vec::new(),
        }
    }

    /// Asks the provider and plans.
    pub(crate) fn step(&mut self, provider: impl Fn(&Call) -> Outcome) -> Result<Plan, Refusal> {
        let none = Answers::new();
        let seen = Snapshot::new(&self.world, &none, self.world.now());
        let queries = self.controller.ask(&self.key, &seen, &self.memory);
        let answers: Answers = queries
            .into_iter()
            .map(|query| {
                let Query::Cloud(call) = &query else {
                    panic!("asked for {query:?}");
                };
                self.calls.push(call.deed.name());
                let answer = cloud::answer(provider(call), Duration::from_millis(2));
                (query, answer)
            })
            .collect();
        let seen = Snapshot::new(&self.world, &answers, self.world.now());
        self.controller.plan(&self.key, &seen, &mut self.memory)
    }

    pub(crate) fn controller(&self) -> &C {
        &self.controller
    }
}

/// Reasons and messages.
pub(crate) fn events(plan: &Plan) -> Vec<String> {
    let announced = plan
        .actions()
        .filter_map(|action| action.announcement.as_ref()?.success.as_ref());
    plan.events
        .iter()
        .chain(announced)
        .map(|event| format!("{:?} {} {}", event.r#type, event.reason, event.message))
        .collect()
}

#[test]
fn the_contract_holds() {
    let held = balanced("held").finalizer(FINALIZER);
    let mut former = service("former").finalizer(FINALIZER);
    former.status.get_or_insert_default().load_balancer =
        Some(kubernetes_proto::core::LoadBalancerStatus {
            ingress: vec![ingress("192.0.2.9")],
        });
    let services = start()
        .answering(answer)
        .with(machine("a", "True"))
        .with(machine("b", "False").taint("ToBeDeletedByClusterAutoscaler", "", "NoSchedule"))
        .with(balanced("new"))
        .with(held.clone())
        .with(
            balanced("ending")
                .finalizer(FINALIZER)
                .terminating("11:59:00"),
        )
        .with(former)
        .with(service("plain"));
    let machines = start()
        .answering(answer)
        .with(machine("gone", "Unknown"))
        .with(machine("off", "False"))
        .with(machine("slow", "False"))
        .with(machine("back", "True").taint(
            "node.cloudprovider.kubernetes.io/shutdown",
            "",
            "NoSchedule",
        ));
    let routes = with_ranges("10.0.0.0/16")
        .answering(answer)
        .with(routed("a", &["10.0.0.0/24"]))
        .with(routed("b", &["10.0.1.0/24"]))
        .with(routed("none", &[]));
    for factory in REGISTRY {
        let contract = Contract::of(factory).seconds(120);
        match (factory.describe)().name {
            "cloud-node-lifecycle-controller" => contract.check([machines.clone()]),
            "node-route-controller" => contract.check([routes.clone()]),
            "service-lb-controller" => contract.check([
                services.clone(),
                start().answering(answer).with(held.clone()),
            ]),
            other => panic!("{other} has no worlds"),
        }
    }
}

/// What kube-controller-manager does with the three names: it knows them and never runs them.
#[test]
fn without_a_provider_no_controller_of_this_group_runs() {
    for factory in REGISTRY {
        let descriptor = (factory.describe)();
        let flags = World::at("12:00:00").flags([&descriptor]);
        let Runs::No(why) = (descriptor.runs)(&flags) else {
            panic!("{} runs", descriptor.name);
        };
        assert!(
            why.starts_with("Skipping a cloud provider controller"),
            "{why}"
        );
        assert!(descriptor.on_by_default && !descriptor.runs_unlisted);
    }
}

#[test]
fn an_endpoint_is_a_socket_or_mutual_tls() {
    use flags::Endpoint;
    let tls = [
        (flags::CA_FILE, "/ca"),
        (flags::CERT_FILE, "/cert"),
        (flags::KEY_FILE, "/key"),
    ];
    let read = |endpoint: &str, files: &[(&'static str, &str)]| {
        let descriptor = (REGISTRY[0].describe)();
        let mut flags = World::at("12:00:00").flags([&descriptor]);
        flags.set(flags::ENDPOINT, FlagValue::Text(endpoint.to_owned()));
        for (name, path) in files {
            flags.set(name, FlagValue::Text((*path).to_owned()));
        }
        flags::endpoint(&flags)
    };
    let host = |host: &str, port| {
        Ok(Some(Endpoint::Https {
            host: host.to_owned(),
            port,
        }))
    };
    assert_eq!(read("", &[]), Ok(None));
    assert_eq!(
        read("unix:///run/x.sock", &[]),
        Ok(Some(Endpoint::Unix("/run/x.sock".into())))
    );
    assert_eq!(
        read("https://cloud.example:443", &tls),
        host("cloud.example", 443)
    );
    assert_eq!(read("https://[::1]:8443/", &tls), host("::1", 8443));
    for (endpoint, files, why) in [
        ("", &tls[..1], "given without --cloud-provider-endpoint"),
        ("unix://run/x.sock", &[], "must be absolute"),
        (
            "unix:///run/x.sock",
            &tls[..1],
            "of no use with a Unix socket",
        ),
        (
            "http://cloud.example:80",
            &tls,
            "must begin with unix:// or https://",
        ),
        ("https://cloud.example", &tls, "https://host:port"),
        ("https://cloud.example:0", &tls, "https://host:port"),
        ("https://u@cloud.example:1", &tls, "https://host:port"),
        (
            "https://cloud.example:443",
            &tls[..2],
            "needs --cloud-provider-key-file",
        ),
        (
            "https://cloud.example:443",
            &tls[1..],
            "needs --cloud-provider-ca-file",
        ),
    ] {
        let found = read(endpoint, files).unwrap_err();
        assert!(found.contains(why), "{endpoint}: {found}");
    }
}

#[test]
fn the_providers_own_delay_is_heeded_within_bounds() {
    let now = controllers_kit::testing::at("12:00:00");
    for (asked, given) in [(0, 1), (7, 7), (90_000, 86_400)] {
        let refused = cloud::Refused {
            retry_after: Some(Duration::from_secs(asked)),
            ..cloud::Refused::new(cloud::Reason::Failed, "later")
        };
        let at = flags::retry_at(&refused, now).unwrap();
        assert_eq!(at.duration_since(now).as_secs(), given);
    }
    let none = cloud::Refused::new(cloud::Reason::Failed, "later");
    assert_eq!(flags::retry_at(&none, now), None);
}
