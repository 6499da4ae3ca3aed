use controllers_kit::{
    FlagValue, Sharding,
    testing::{
        BackendBuild, Common, EndpointsBuild, NamespaceBuild, PodBuild, ServiceBuild, SliceBuild,
        World, ZoneBuild,
        contract::{self, Contract},
        endpoint_slice, endpoints, namespace, node, pod, service,
    },
};
use kubernetes_proto::core::Pod;

use crate::{
    REGISTRY,
    service_cidr::tests::{address, service_cidr},
};

/// A pod that starts up under the kubelets.
fn starting(service: &str, number: usize, node: &str) -> Pod {
    pod(&format!("{service}-{number}"))
        .label("app", service)
        .on(node)
        .ip(&format!("10.1.0.{}", number + 1))
        .ip(&format!("fd00::{}", number + 1))
}

fn nodes(start: World) -> World {
    start
        .with(node("node-1").works_in("a", "4"))
        .with(node("node-2").works_in("b", "4"))
}

/// Slices of three, so that packing has something to decide.
fn small(start: World) -> World {
    start
        .flag("max-endpoints-per-slice", FlagValue::Int(3))
        .flag("mirroring-max-endpoints-per-subset", FlagValue::Int(3))
}

fn worlds() -> Vec<World> {
    let start = || nodes(World::at("12:00:00"));
    let mut crowd = small(start())
        .with(
            service("web")
                .families(&["IPv4", "IPv6"])
                .label("team", "blue"),
        )
        .with(service("hinted").annotation("service.kubernetes.io/topology-mode", "Auto"))
        .with(service("close").traffic("PreferSameNode").headless());
    for number in 0..5 {
        for of in ["web", "hinted", "close"] {
            let on = if number % 2 == 0 { "node-1" } else { "node-2" };
            crowd.put(starting(of, number, on));
        }
    }
    let plain = service("web");
    vec![
        crowd,
        // Slices of all kinds, some of them wrong, and pods that go.
        small(start())
            .with(plain.clone())
            .with(starting("web", 0, "node-1").ready("11:50:00"))
            .with(
                starting("web", 1, "node-1")
                    .ready("11:50:00")
                    .terminating("12:00:00"),
            )
            .with(starting("web", 2, "missing").ready("11:50:00"))
            .with(
                endpoint_slice("web-a", &plain, "endpointslice-controller.k8s.io")
                    .endpoint(&starting("web", 0, "node-1"))
                    .endpoint(&starting("web", 7, "node-1")),
            )
            .with(
                endpoint_slice("web-b", &plain, "endpointslice-controller.k8s.io")
                    .endpoint(&starting("web", 0, "node-1")),
            )
            .with(endpoint_slice(
                "web-c",
                &plain.clone().uid("earlier"),
                "endpointslice-controller.k8s.io",
            ))
            .with(endpoint_slice("by-hand", &plain, "me").endpoint(&starting("web", 9, "node-1"))),
        // Endpoints made by hand, a lock, leftovers.
        small(start())
            .with(service("bare").no_selector())
            .with(endpoints("bare").subset(
                &[
                    "192.0.2.1",
                    "192.0.2.2",
                    "192.0.2.3",
                    "192.0.2.4",
                    "2001:db8::1",
                ],
                &["192.0.2.9"],
                80,
            ))
            .with(
                endpoints("left")
                    .subset(&["192.0.2.1"], &[], 80)
                    .label("endpoints.kubernetes.io/managed-by", "endpoint-controller"),
            )
            .with(endpoints("lock").annotation("control-plane.alpha.kubernetes.io/leader", "{}"))
            .with(endpoints("alone").subset(&["192.0.2.1"], &[], 80)),
        // A namespace that goes.
        start()
            .with(namespace("ending").ending("11:59:00"))
            .with(service("web").in_namespace("ending"))
            .with(starting("web", 0, "node-1").in_namespace("ending")),
        // What waits for a period.
        small(start())
            .flag(
                "endpoint-updates-batch-period",
                FlagValue::Duration(std::time::Duration::from_secs(20)),
            )
            .flag(
                "endpointslice-updates-batch-period",
                FlagValue::Duration(std::time::Duration::from_secs(20)),
            )
            .flag(
                "mirroring-endpointslice-updates-batch-period",
                FlagValue::Duration(std::time::Duration::from_secs(20)),
            )
            .with(service("web"))
            .with(starting("web", 0, "node-1"))
            .with(starting("web", 1, "node-2"))
            .with(service("bare").no_selector())
            .with(endpoints("bare").subset(&["192.0.2.1"], &[], 80)),
    ]
}

#[test]
fn the_contract_holds() {
    let of_services = || {
        REGISTRY
            .iter()
            .filter(|factory| (factory.describe)().sharding == Sharding::ByObject)
    };
    for (number, factory) in of_services().enumerate() {
        let others: Vec<_> = of_services()
            .enumerate()
            .filter(|(other, _)| *other != number)
            .map(|(_, factory)| *factory)
            .collect();
        // How many slices there are on the way goes by the order in which pods start.
        Contract::of(factory)
            .among(&others)
            .seeds(8)
            .surplus(4)
            .check(worlds());
    }
    let ranges = World::at("12:00:00")
        .with(service_cidr("kubernetes", &["10.0.0.0/24", "fd00::/112"]))
        .with(service_cidr("extra", &["10.1.0.0/24"]))
        .with(
            service_cidr("needless", &["10.2.0.0/24"])
                .finalizer("networking.k8s.io/service-cidr-finalizer")
                .terminating("12:00:00"),
        )
        .with(
            service_cidr("needed", &["10.3.0.0/24"])
                .finalizer("networking.k8s.io/service-cidr-finalizer")
                .terminating("11:59:55"),
        )
        .with(
            service_cidr("needed-too", &["10.3.0.0/24"])
                .finalizer("networking.k8s.io/service-cidr-finalizer")
                .terminating("12:00:00"),
        )
        .with(address("10.3.0.7"));
    let single = REGISTRY
        .iter()
        .find(|factory| (factory.describe)().sharding == Sharding::Single)
        .expect("there is one");
    Contract::of(single).seconds(60).check([ranges]);
    contract::covers(
        REGISTRY,
        &[
            "endpoints-controller",
            "endpointslice-controller",
            "endpointslice-mirroring-controller",
            "service-cidr-controller",
        ],
    );
}

#[test]
fn addresses_are_read_forgivingly() {
    for (text, expected) in [
        ("10.1.2.3", Some("10.1.2.3")),
        ("010.001.002.003", Some("10.1.2.3")),
        ("::ffff:10.1.2.3", Some("10.1.2.3")),
        ("fd00::0001", Some("fd00::1")),
        ("10.1.2", None),
        ("10.1.2.3.4", None),
        ("10.1.2.256", None),
        ("10.1.2.x", None),
        ("10.1.2.+3", None),
        ("", None),
    ] {
        let read = crate::services::parse_ip(text).map(|ip| ip.to_string());
        assert_eq!(read.as_deref(), expected, "{text:?}");
    }
}
