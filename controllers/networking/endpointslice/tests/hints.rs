//! For which zones and nodes endpoints are meant.

use std::{collections::BTreeMap, sync::Arc};

use controllers_kit::{
    FlagValue,
    testing::{BackendBuild, Common, PodBuild, ServiceBuild, World, ZoneBuild, node, pod, service},
};
use kubernetes_proto::core::{Node, Pod, Service};

use super::{super::hints, *};

const AUTO: &str = "service.kubernetes.io/topology-mode";

/// Nodes of these processors in zones a, b, c …, named after them, and a number of ready pods in each.
fn zones(service: Service, zones: &[(&str, usize)]) -> World {
    let mut world = World::at("12:00:00").without_kubelets().with(service);
    for (index, (processors, pods)) in zones.iter().enumerate() {
        let zone = char::from(b'a' + u8::try_from(index).unwrap()).to_string();
        world.put(node(&format!("node-{zone}")).works_in(&zone, processors));
        for number in 0..*pods {
            world.put(
                pod(&format!("web-{zone}{number}"))
                    .label("app", "web")
                    .on(&format!("node-{zone}"))
                    .ready("11:50:00")
                    .ip(&format!("10.{index}.0.{}", number + 1)),
            );
        }
    }
    world
}

/// How many ready endpoints are meant for each zone.
fn meant(world: &World) -> BTreeMap<String, usize> {
    let mut meant = BTreeMap::new();
    for slice in slices(world) {
        for endpoint in &slice.endpoints {
            for zone in endpoint.hints.iter().flat_map(|hints| &hints.for_zones) {
                *meant.entry(zone.name.clone()).or_default() += 1;
            }
        }
    }
    meant
}

fn counts(of: &[(&str, usize)]) -> BTreeMap<String, usize> {
    of.iter()
        .map(|(zone, count)| ((*zone).to_owned(), *count))
        .collect()
}

fn auto() -> Service {
    service("web").annotation(AUTO, "Auto")
}

#[test]
fn hints_are_asked_for_by_either_annotation_and_the_older_one_counts() {
    let older = "service.kubernetes.io/topology-aware-hints";
    for (service, expected) in [
        (service("web"), false),
        (service("web").annotation(AUTO, "Auto"), true),
        (service("web").annotation(AUTO, "auto"), true),
        (service("web").annotation(AUTO, "AUTO"), false),
        (service("web").annotation(older, "auto"), true),
        (
            service("web")
                .annotation(older, "Disabled")
                .annotation(AUTO, "Auto"),
            false,
        ),
    ] {
        assert_eq!(
            hints::are_wanted(&service),
            expected,
            "{:?}",
            service.metadata
        );
    }
}

#[test]
fn shares_go_by_processors_of_nodes_that_count() {
    let ready =
        |name: &str, zone: &str, processors: &str| Arc::new(node(name).works_in(zone, processors));
    let unready = |name: &str| {
        let mut node = node(name).works_in("c", "64");
        node.status.as_mut().unwrap().conditions[0].status = "False".to_owned();
        Arc::new(node)
    };
    let control = Arc::new(
        node("control")
            .works_in("d", "64")
            .label("node-role.kubernetes.io/control-plane", ""),
    );
    let shares = hints::shares(&[
        ready("1", "a", "3"),
        ready("2", "b", "500m"),
        ready("3", "b", "500m"),
        unready("4"),
        control.clone(),
    ])
    .unwrap();
    assert_eq!(
        shares,
        BTreeMap::from([("a".to_owned(), 0.75), ("b".to_owned(), 0.25)])
    );
    let unknown =
        "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes";
    for nodes in [
        vec![ready("1", "a", "3")],
        vec![ready("1", "a", "3"), ready("2", "b", "0")],
        vec![ready("1", "a", "3"), ready("2", "", "3")],
        vec![ready("1", "a", "3"), ready("2", "b", "lots")],
        vec![control],
    ] {
        assert_eq!(hints::shares(&nodes).unwrap_err(), unknown);
    }
    assert_eq!(
        hints::shares(&[]).unwrap_err(),
        "Nodes only ready in one zone"
    );
}

#[test]
fn endpoints_are_shared_out_among_zones() {
    let table = [
        (
            "even",
            vec![("4", 3), ("4", 3)],
            Ok(vec![("a", 3), ("b", 3)]),
        ),
        (
            "within the threshold",
            vec![("4", 6), ("4", 5)],
            Ok(vec![("a", 6), ("b", 5)]),
        ),
        (
            "one is given away",
            vec![("4", 6), ("4", 4)],
            Ok(vec![("a", 5), ("b", 5)]),
        ),
        (
            "to a zone without any",
            vec![("4", 5), ("4", 4), ("4", 0)],
            Ok(vec![("a", 3), ("b", 3), ("c", 3)]),
        ),
        (
            "by processors",
            vec![("8", 2), ("4", 4)],
            Ok(vec![("a", 4), ("b", 2)]),
        ),
        (
            "too few",
            vec![("4", 1), ("4", 0)],
            Err("Insufficient number of endpoints (1 endpoints, 2 zones)"),
        ),
        (
            "too uneven",
            vec![("4", 1), ("4", 1), ("1", 1)],
            Err(
                "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold (3 endpoints, 3 zones)",
            ),
        ),
    ];
    for (what, nodes, expected) in table {
        let mut world = zones(auto(), &nodes);
        run(&mut world);
        match expected {
            Ok(expected) => {
                assert_eq!(meant(&world), counts(&expected), "{what}");
                assert_eq!(
                    world.events(),
                    [
                        "Normal TopologyAwareHintsEnabled Topology Aware Hints has been enabled, addressType: IPv4"
                    ],
                    "{what}"
                );
            }
            Err(why) => {
                assert_eq!(meant(&world), counts(&[]), "{what}");
                assert_eq!(
                    world.events(),
                    [format!(
                        "Warning TopologyAwareHintsDisabled {why}, addressType: IPv4"
                    )],
                    "{what}"
                );
            }
        }
    }
}

#[test]
fn the_endpoints_that_are_not_ready_get_none() {
    let mut world = zones(auto(), &[("4", 4), ("4", 3)]);
    world.change::<Pod>("web-a0", |pod| {
        *pod = pod.clone().condition("Ready", "False", "11:55:00");
    });
    run(&mut world);
    assert_eq!(endpoint(&world, "web-a0").unwrap().hints, None);
    assert_eq!(meant(&world).values().sum::<usize>(), 6);
}

#[test]
fn an_endpoint_without_a_zone_ends_all_hints() {
    let mut world = zones(auto(), &[("4", 3), ("4", 2)])
        .with(node("control").label("node-role.kubernetes.io/control-plane", ""))
        .with(
            pod("web-x")
                .label("app", "web")
                .on("control")
                .ready("11:50:00")
                .ip("10.9.0.1"),
        );
    run(&mut world);
    assert_eq!(meant(&world), counts(&[]));
    assert_eq!(
        world.events(),
        [
            "Warning TopologyAwareHintsDisabled One or more endpoints do not have a zone specified, addressType: IPv4"
        ]
    );
}

#[test]
fn hints_come_and_go_with_the_annotation_and_are_reported_once() {
    let mut world = zones(auto(), &[("4", 3), ("4", 3)]);
    let mut memory = fresh();
    let mut sync = |world: &mut World| {
        for _ in 0..2 {
            let plan = world
                .plan_with::<SlicesOfServices>("web", &mut memory)
                .unwrap();
            world.apply(&plan).expect_success();
        }
    };
    sync(&mut world);
    assert_eq!(meant(&world), counts(&[("a", 3), ("b", 3)]));
    world.change::<Service>("web", |service| service.metadata_mut().annotations.clear());
    sync(&mut world);
    assert_eq!(meant(&world), counts(&[]));
    assert_eq!(
        world.events(),
        [
            "Normal TopologyAwareHintsEnabled Topology Aware Hints has been enabled, addressType: IPv4",
            "Warning TopologyAwareHintsDisabled Topology Aware Hints has been disabled, addressType: IPv4",
        ]
    );
}

#[test]
fn a_new_owner_does_not_report_existing_hints_again() {
    let mut world = zones(auto(), &[("4", 3), ("4", 3)]);
    run(&mut world);
    let mut memory = fresh();
    let plan = world
        .plan_with::<SlicesOfServices>("web", &mut memory)
        .unwrap();
    assert!(plan.is_nothing(), "{:?}", plan.events);
    assert_eq!(memory.hints.get("IPv4").map(String::as_str), Some(""));
}

#[test]
fn nodes_that_change_the_shares_wake_the_services_that_ask_for_hints() {
    let mut world = zones(auto(), &[("4", 3), ("4", 3)]);
    world.put(service("plain"));
    run(&mut world);
    let before = meant(&world);
    // Zone b grows to three quarters of the cluster.
    world.put(node("node-b2").works_in("b", "8"));
    let plans = run(&mut world);
    assert_eq!(plans.len(), 1, "one Service is written");
    assert_ne!(meant(&world), before);
    assert_eq!(meant(&world), counts(&[("a", 2), ("b", 4)]));
    world.change::<Node>("node-b2", |node| {
        node.status.as_mut().unwrap().conditions[0].status = "False".to_owned();
    });
    run(&mut world);
    assert!(world.plan::<SlicesOfServices>("web").verbs().is_empty());
}

#[test]
fn slices_whose_hints_can_stay_are_not_written_again() {
    let mut world =
        zones(auto(), &[("4", 6), ("4", 6)]).flag("max-endpoints-per-slice", FlagValue::Int(4));
    run(&mut world);
    assert_eq!(sizes(&world), [4, 4, 4]);
    world.put(
        pod("web-a9")
            .label("app", "web")
            .on("node-a")
            .ready("11:50:00")
            .ip("10.0.0.99"),
    );
    let plans = run(&mut world);
    let verbs: Vec<String> = plans.iter().flat_map(Plan::verbs).collect();
    assert_eq!(verbs.len(), 1, "{verbs:?}");
    assert!(verbs[0].starts_with("create "));
}

#[test]
fn both_families_are_reported_once() {
    let mut world = zones(auto().families(&["IPv4", "IPv6"]), &[("4", 2), ("4", 2)]);
    for name in ["web-a0", "web-a1", "web-b0", "web-b1"] {
        world.change::<Pod>(name, |pod| {
            *pod = pod.clone().ip(&format!("fd00::{}", &name[4..]));
        });
    }
    run(&mut world);
    assert_eq!(meant(&world), counts(&[("a", 4), ("b", 4)]));
    assert_eq!(world.events().len(), 1);
}

#[test]
fn traffic_may_be_asked_to_stay_close() {
    type Case = (&'static str, bool, bool, bool);
    let table: [Case; 5] = [
        ("PreferClose", true, true, false),
        ("PreferClose", false, true, false),
        ("PreferSameZone", true, true, false),
        ("PreferSameNode", true, true, true),
        ("PreferFar", true, false, false),
    ];
    for (wanted, gate, zone, of_node) in table {
        let mut world = zones(service("web").traffic(wanted), &[("4", 1)])
            .flag("PreferSameTrafficDistribution", FlagValue::Bool(gate));
        run(&mut world);
        let hints = endpoint(&world, "web-a0")
            .unwrap()
            .hints
            .unwrap_or_default();
        assert_eq!(!hints.for_zones.is_empty(), zone, "{wanted}");
        assert_eq!(!hints.for_nodes.is_empty(), of_node, "{wanted}");
        assert!(world.plan::<SlicesOfServices>("web").verbs().is_empty());
        assert_eq!(world.events(), [""; 0]);
    }
    // Behind the gate.
    let mut world = zones(service("web").traffic("PreferSameNode"), &[("4", 1)])
        .flag("PreferSameTrafficDistribution", FlagValue::Bool(false));
    run(&mut world);
    assert_eq!(endpoint(&world, "web-a0").unwrap().hints, None);
}

#[test]
fn hints_by_traffic_follow_what_is_asked_for() {
    let mut world = zones(service("web").traffic("PreferSameNode"), &[("4", 1)]);
    run(&mut world);
    let mut ask = |wanted: Option<&str>| {
        world.change::<Service>("web", |service| {
            service.spec.as_mut().unwrap().traffic_distribution = wanted.map(str::to_owned);
        });
        run(&mut world);
        let hints = endpoint(&world, "web-a0").unwrap().hints;
        hints.map(|hints| (hints.for_zones.len(), hints.for_nodes.len()))
    };
    assert_eq!(ask(Some("PreferSameZone")), Some((1, 0)));
    assert_eq!(ask(Some("PreferSameNode")), Some((1, 1)));
    assert_eq!(ask(None), None);
}

#[test]
fn the_annotation_goes_before_traffic_distribution() {
    let mut world = zones(auto().traffic("PreferSameNode"), &[("4", 4), ("4", 2)]);
    run(&mut world);
    assert_eq!(meant(&world), counts(&[("a", 3), ("b", 3)]));
    let nodes = slices(&world)[0]
        .endpoints
        .iter()
        .any(|one| !one.hints.clone().unwrap().for_nodes.is_empty());
    assert!(!nodes);
}

#[test]
fn an_endpoint_without_a_zone_has_no_hint_by_traffic_but_its_node() {
    let mut world = World::at("12:00:00")
        .without_kubelets()
        .with(node("bare"))
        .with(service("web").traffic("PreferSameNode"))
        .with(service("zone").traffic("PreferClose"))
        .with(
            pod("web-0")
                .label("app", "web")
                .on("bare")
                .ready("11:50:00")
                .ip("10.0.0.1"),
        );
    run(&mut world);
    let hints = endpoint(&world, "web-0").unwrap().hints.unwrap();
    assert_eq!(
        (hints.for_zones.len(), hints.for_nodes[0].name.as_str()),
        (0, "bare")
    );
}
