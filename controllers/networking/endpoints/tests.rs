use controllers_kit::{
    Factory, Requeue, Verb,
    testing::{
        BackendBuild, Common, EndpointsBuild, PodBuild, ServiceBuild, World, at, endpoints, pod,
        service,
    },
};
use serde_json::json;

use super::*;
use crate::services::TRIGGER_TIME;

fn backend(number: usize) -> Pod {
    pod(&format!("web-{number}"))
        .label("app", "web")
        .ready("11:50:00")
        .ip(&format!("10.1.{}.{}", number / 250, number % 250 + 1))
}

fn cluster(service: Service, pods: usize) -> World {
    let mut world = World::at("12:00:00")
        .without_kubelets()
        .with(service.created("11:00:00"));
    for number in 0..pods {
        world.put(backend(number));
    }
    world
}

fn run(world: &mut World) -> Vec<Plan> {
    world.run::<EndpointsOfServices>()
}

/// Each subset as `ready addresses | others | ports`.
fn text(world: &World) -> Vec<String> {
    let ips = |addresses: &[EndpointAddress]| {
        let ips: Vec<&str> = addresses.iter().map(|one| one.ip.as_str()).collect();
        ips.join(",")
    };
    world
        .get::<Endpoints>("web")
        .subsets
        .iter()
        .map(|subset| {
            let ports: Vec<String> = subset
                .ports
                .iter()
                .map(|port| format!("{}:{}", port.name, port.port))
                .collect();
            format!(
                "{} | {} | {}",
                ips(&subset.addresses),
                ips(&subset.not_ready_addresses),
                ports.join(",")
            )
        })
        .collect()
}

#[test]
fn endpoints_are_made_with_the_service_s_name_and_labels() {
    let mut world = cluster(service("web").label("team", "blue"), 2);
    let plans = run(&mut world);
    assert_eq!(plans[0].verbs(), ["create endpoints/web"]);
    assert_eq!(text(&world), ["10.1.0.1,10.1.0.2 |  | :8080"]);
    let made = world.get::<Endpoints>("web");
    let meta = made.metadata();
    assert_eq!(meta.label("team"), Some("blue"));
    assert_eq!(
        meta.label("endpoints.kubernetes.io/managed-by"),
        Some("endpoint-controller")
    );
    assert_eq!(meta.label("service.kubernetes.io/headless"), None);
    assert_eq!(meta.annotation(TRIGGER_TIME), Some("2026-03-02T11:00:00Z"));
    assert!(meta.owner_references.is_empty());
    let address = &made.subsets[0].addresses[0];
    let target = address.target_ref.clone().unwrap();
    assert_eq!(
        (
            target.kind.as_str(),
            target.name.as_str(),
            target.uid.as_str()
        ),
        ("Pod", "web-0", "uid-pods-default-web-0")
    );
    assert_eq!(address.node_name.as_deref(), Some("node-1"));
}

#[test]
fn a_service_without_pods_has_empty_endpoints() {
    let mut world = cluster(service("web"), 0);
    run(&mut world);
    assert_eq!(text(&world), [""; 0]);
}

#[test]
fn which_pods_are_listed_and_where() {
    let ready = "10.1.0.1 |  | :8080";
    let other = " | 10.1.0.1 | :8080";
    let table: Vec<(&str, Pod, bool, Option<&str>)> = vec![
        ("ready", backend(0), false, Some(ready)),
        (
            "not ready",
            backend(0).condition("Ready", "False", "11:55:00"),
            false,
            Some(other),
        ),
        (
            "not ready, published",
            backend(0).condition("Ready", "False", "11:55:00"),
            true,
            Some(ready),
        ),
        ("going", backend(0).terminating("12:00:10"), false, None),
        (
            "going, published",
            backend(0).terminating("12:00:10"),
            true,
            Some(ready),
        ),
        ("succeeded", backend(0).phase("Succeeded"), true, None),
        ("failed", backend(0).phase("Failed"), true, None),
        (
            "without an address",
            pod("web-0").label("app", "web").ready("11:50:00"),
            true,
            None,
        ),
        (
            "of another family alone",
            pod("web-0")
                .label("app", "web")
                .ready("11:50:00")
                .ip("fd00::1"),
            true,
            None,
        ),
        ("of other labels", backend(0).label("app", "x"), true, None),
    ];
    for (what, pod, publish, expected) in table {
        let service = if publish {
            service("web").publish_not_ready()
        } else {
            service("web")
        };
        let mut world = cluster(service, 0).with(pod);
        run(&mut world);
        assert_eq!(
            text(&world),
            expected.into_iter().collect::<Vec<_>>(),
            "{what}"
        );
    }
}

#[test]
fn only_the_first_family_is_listed() {
    let with_address = |address: &str| {
        let mut service = service("web").families(&[]);
        service.spec.as_mut().unwrap().cluster_ip = address.to_owned();
        service
    };
    let v4 = "10.1.0.1 |  | :8080";
    let v6 = "fd00::1 |  | :8080";
    for (service, expected) in [
        (service("web").families(&["IPv4", "IPv6"]), v4),
        (service("web").families(&["IPv6", "IPv4"]), v6),
        // None is named: that of the Service's address, or else of the pod's.
        (with_address("10.96.0.9"), v4),
        (with_address("fd00::96"), v6),
        (with_address("None"), v4),
        (with_address(""), v4),
    ] {
        let mut world = cluster(service, 0).with(backend(0).ip("fd00::1"));
        run(&mut world);
        assert_eq!(text(&world), [expected]);
    }
    let mut world = cluster(with_address("None"), 0).with(
        pod("web-0")
            .label("app", "web")
            .ready("11:50:00")
            .ip("fd00::1")
            .ip("10.1.0.1"),
    );
    run(&mut world);
    assert_eq!(text(&world), [v6]);
}

#[test]
fn ports_are_grouped_by_who_serves_them() {
    let mut world = cluster(
        service("web")
            .port_named("main", "http")
            .port("admin", 9000),
        0,
    )
    .with(backend(0).serves("http", 8080))
    .with(backend(1).serves("http", 8080))
    .with(
        backend(2)
            .serves("http", 8081)
            .condition("Ready", "False", "11:55:00"),
    )
    .with(backend(3));
    run(&mut world);
    assert_eq!(
        text(&world),
        [
            "10.1.0.1,10.1.0.2,10.1.0.4 | 10.1.0.3 | admin:9000",
            "10.1.0.1,10.1.0.2 |  | main:8080",
            " | 10.1.0.3 | main:8081",
        ]
    );
    let mut world = cluster(service("web").port("b", 2).port("a", 1), 1);
    run(&mut world);
    assert_eq!(text(&world), ["10.1.0.1 |  | a:1,b:2"]);
}

#[test]
fn headless_services_are_marked_and_may_do_without_ports() {
    let mut world =
        cluster(service("web").headless().no_ports(), 0).with(backend(0).hostname("first", "web"));
    run(&mut world);
    assert_eq!(text(&world), ["10.1.0.1 |  | "]);
    let made = world.get::<Endpoints>("web");
    assert_eq!(
        made.metadata().label("service.kubernetes.io/headless"),
        Some("")
    );
    assert_eq!(made.subsets[0].addresses[0].hostname, "first");
    assert!(world.plan::<EndpointsOfServices>("web").is_nothing());
    // With an address there must be ports.
    let mut world = cluster(service("web").no_ports(), 1);
    run(&mut world);
    assert_eq!(text(&world), [""; 0]);
}

#[test]
fn at_most_a_thousand_addresses_are_listed_the_ready_ones_first() {
    let counts = |world: &World| {
        let held = world.get::<Endpoints>("web");
        let sum = |of: fn(&EndpointSubset) -> usize| held.subsets.iter().map(of).sum::<usize>();
        (
            sum(|subset| subset.addresses.len()),
            sum(|subset| subset.not_ready_addresses.len()),
            held.metadata().annotation(OVER_CAPACITY).map(str::to_owned),
        )
    };
    let cut = || Some("truncated".to_owned());
    for (ready, others, expected) in [
        (1000, 0, (1000, 0, None)),
        (1001, 5, (1000, 0, cut())),
        (990, 20, (990, 10, cut())),
    ] {
        let mut world = cluster(service("web"), ready);
        for number in ready..ready + others {
            world.put(backend(number).condition("Ready", "False", "11:55:00"));
        }
        let plan = world.plan::<EndpointsOfServices>("web");
        world.apply(&plan).expect_success();
        assert_eq!(counts(&world), expected);
        assert!(world.plan::<EndpointsOfServices>("web").is_nothing());
        if expected.2.is_some() {
            for number in 900..ready + others {
                world.vanish::<Pod>(&format!("web-{number}"));
            }
            let plan = world.plan::<EndpointsOfServices>("web");
            world.apply(&plan).expect_success();
            assert_eq!(counts(&world), (900, 0, None));
        }
    }
}

#[test]
fn addresses_are_truncated_in_proportion() {
    let subset = |ready: usize, others: usize| EndpointSubset {
        addresses: vec![EndpointAddress::default(); ready],
        not_ready_addresses: vec![EndpointAddress::default(); others],
        ports: Vec::new(),
    };
    type Counts = Vec<(usize, usize)>;
    let table: Vec<(Counts, bool, Counts)> = vec![
        (vec![(5, 5)], false, vec![(5, 5)]),
        (vec![(6, 5)], true, vec![(6, 4)]),
        (vec![(12, 3)], true, vec![(10, 0)]),
        (vec![(10, 1), (10, 1)], true, vec![(5, 0), (5, 0)]),
        (vec![(2, 9), (2, 3)], true, vec![(2, 5), (2, 1)]),
        (
            vec![(3, 0), (3, 0), (5, 0)],
            true,
            vec![(3, 0), (3, 0), (4, 0)],
        ),
    ];
    for (before, cut, after) in table {
        let mut subsets: Vec<EndpointSubset> = before
            .iter()
            .map(|(ready, others)| subset(*ready, *others))
            .collect();
        assert_eq!(subsets::truncate(&mut subsets, 10), cut, "{before:?}");
        let counts: Counts = subsets
            .iter()
            .map(|one| (one.addresses.len(), one.not_ready_addresses.len()))
            .collect();
        assert_eq!(counts, after, "{before:?}");
    }
}

#[test]
fn labels_follow_the_service_s() {
    let mut world = cluster(service("web").label("team", "blue"), 1);
    run(&mut world);
    world.change::<Service>("web", |service| {
        service.metadata_mut().set_label("team", "red");
    });
    let plan = world.plan::<EndpointsOfServices>("web");
    let action = plan.actions().next().unwrap();
    let Verb::Patch { patch, .. } = &action.verb else {
        panic!("{action} is no patch");
    };
    assert_eq!(action.report(), StatusWrite::Observed);
    assert_eq!(patch["metadata"]["labels"], json!({"team": "red"}));
    assert_eq!(patch.get("subsets"), None);
    run(&mut world);
    // A label that somebody adds goes.
    world.change::<Endpoints>("web", |held| held.metadata_mut().set_label("more", "x"));
    assert_eq!(run(&mut world).len(), 1);
    assert_eq!(world.get::<Endpoints>("web").metadata().label("more"), None);
}

#[test]
fn endpoints_in_upstream_s_order_are_left_alone() {
    let mut world = cluster(service("web").port("a", 1).port("b", 2), 3);
    run(&mut world);
    world.change::<Endpoints>("web", |held| {
        for subset in &mut held.subsets {
            subset.addresses.reverse();
            subset.ports.reverse();
            for address in &mut subset.addresses {
                address.target_ref.as_mut().unwrap().resource_version = "77".to_owned();
            }
        }
        held.subsets.reverse();
    });
    assert!(world.plan::<EndpointsOfServices>("web").is_nothing());
    // What is no more canonical is, if it says the same.
    world.change::<Endpoints>("web", |held| {
        let whole = held.subsets.pop().unwrap();
        for port in &whole.ports {
            held.subsets.push(EndpointSubset {
                ports: vec![port.clone()],
                ..whole.clone()
            });
        }
    });
    assert!(world.plan::<EndpointsOfServices>("web").is_nothing());
}

#[test]
fn a_change_that_endpoints_do_not_show_writes_nothing() {
    let mut world = cluster(service("web"), 1);
    run(&mut world);
    world.change::<Pod>("web-0", |pod| {
        pod.metadata_mut().set_annotation("note", "x");
    });
    world.change::<Pod>("web-0", |pod| pod.metadata_mut().set_label("tier", "front"));
    assert!(run(&mut world).is_empty());
}

#[test]
fn the_trigger_time_is_that_of_the_earliest_change() {
    let mut world = cluster(service("web"), 2);
    run(&mut world);
    let trigger = |world: &World| {
        world
            .get::<Endpoints>("web")
            .metadata()
            .annotation(TRIGGER_TIME)
            .map(str::to_owned)
    };
    world.change::<Pod>("web-0", |pod| {
        *pod = pod.clone().condition("Ready", "False", "11:58:00");
    });
    world.put(backend(2).condition("Ready", "True", "11:57:00"));
    run(&mut world);
    assert_eq!(trigger(&world).as_deref(), Some("2026-03-02T11:57:00Z"));
    world.vanish::<Pod>("web-0");
    run(&mut world);
    assert_eq!(trigger(&world), None);
}

#[test]
fn a_service_that_goes_takes_its_endpoints_along_even_those_made_by_hand() {
    let mut world = cluster(service("web"), 1);
    run(&mut world);
    world.vanish::<Service>("web");
    assert_eq!(run(&mut world)[0].verbs(), ["delete endpoints/web"]);
    assert!(world.find::<Endpoints>("web").is_none());

    let by_hand = || endpoints("web").subset(&["192.0.2.1"], &[], 80);
    let mut world = cluster(service("web").no_selector(), 0).with(by_hand());
    assert!(run(&mut world).is_empty());
    world.vanish::<Service>("web");
    let plan = world.plan::<EndpointsOfServices>("web");
    assert_eq!(plan.verbs(), ["delete endpoints/web"]);
    assert_eq!(
        plan.counted.len(),
        1,
        "that there is no Service must be sure"
    );
}

/// The keys that an object wakes, as a range's gain or a change of it does.
fn wakes(old: Option<&Endpoints>, new: Option<&Endpoints>) -> bool {
    !woken_by_endpoints(&Change { old, new }, &World::at("12:00:00")).is_empty()
}

#[test]
fn endpoints_that_never_had_a_service_are_left_alone() {
    let by_hand = endpoints("web").subset(&["192.0.2.1"], &[], 80);
    let ours = by_hand.clone().label(MANAGED_BY, MANAGER);
    let lock = ours.clone().annotation(LEADER, "{}");
    for (what, old, new, expected) in [
        ("made by hand", None, Some(&by_hand), false),
        ("changed by hand", Some(&by_hand), Some(&by_hand), false),
        ("lost", Some(&by_hand), None, true),
        ("left behind", None, Some(&ours), true),
        ("no longer labelled", Some(&ours), Some(&by_hand), true),
        ("a lock", None, Some(&lock), false),
    ] {
        assert_eq!(wakes(old, new), expected, "{what}");
    }
    let mut world = World::at("12:00:00").with(by_hand).with(service("other"));
    assert!(
        run(&mut world)
            .iter()
            .flat_map(Plan::verbs)
            .all(|verb| verb.ends_with("other"))
    );
}

#[test]
fn endpoints_left_behind_while_nobody_owned_the_key_are_deleted() {
    // Nothing but the Endpoints themselves can wake the key.
    let mut world = World::at("12:00:00").with(
        endpoints("web")
            .subset(&["192.0.2.1"], &[], 80)
            .label(MANAGED_BY, MANAGER),
    );
    run(&mut world);
    assert!(world.find::<Endpoints>("web").is_none());
}

#[test]
fn services_that_others_serve_are_left_alone() {
    let alias = {
        let mut alias = service("web");
        alias.spec.as_mut().unwrap().r#type = "ExternalName".to_owned();
        alias
    };
    for service in [service("web").no_selector(), alias] {
        assert!(
            cluster(service, 1)
                .plan::<EndpointsOfServices>("web")
                .is_nothing()
        );
    }
}

#[test]
fn two_owners_make_and_change_one_object() {
    let mut world = cluster(service("web"), 1);
    let one = world.plan::<EndpointsOfServices>("web");
    world.apply(&one).expect_success();
    assert_eq!(world.apply(&one).failures().len(), 1);
    world.put(backend(1));
    let stale = world.plan::<EndpointsOfServices>("web");
    world.put(backend(2));
    run(&mut world);
    assert_eq!(world.apply(&stale).failures().len(), 1);
    assert_eq!(text(&world), ["10.1.0.1,10.1.0.2,10.1.0.3 |  | :8080"]);
}

#[test]
fn endpoints_that_are_lost_are_made_again() {
    let mut world = cluster(service("web"), 1);
    run(&mut world);
    world.vanish::<Endpoints>("web");
    run(&mut world);
    assert_eq!(text(&world), ["10.1.0.1 |  | :8080"]);
}

#[test]
fn changes_of_pods_are_gathered() {
    let period = controllers_kit::FlagValue::Duration(std::time::Duration::from_secs(10));
    let mut world = cluster(service("web"), 1).flag("endpoint-updates-batch-period", period);
    let mut memory = Batch::default();
    let mut plan = |world: &World| {
        world
            .plan_with::<EndpointsOfServices>("web", &mut memory)
            .unwrap()
    };
    let first = plan(&world);
    world.apply(&first).expect_success();
    assert!(plan(&world).is_nothing());
    world.put(backend(1));
    assert_eq!(plan(&world).requeue, Requeue::At(at("12:00:10")));
    let later = world.later(9).with(backend(2));
    assert_eq!(plan(&later).requeue, Requeue::At(at("12:00:10")));
    assert_eq!(plan(&later.later(1)).verbs(), ["patch endpoints/web"]);
    world.settle_for(30, &[Factory::of::<EndpointsOfServices>()]);
    assert_eq!(text(&world), ["10.1.0.1,10.1.0.2 |  | :8080"]);
}

#[test]
fn failures_are_recorded_on_the_endpoints() {
    let failure = |plan: &Plan| {
        let event = plan
            .actions()
            .next()
            .unwrap()
            .announcement
            .as_ref()
            .unwrap()
            .failure
            .clone()
            .unwrap();
        (
            event.about.kind.to_string(),
            event.reason.to_string(),
            event.message,
        )
    };
    let mut world = cluster(service("web"), 1);
    assert_eq!(
        failure(&world.plan::<EndpointsOfServices>("web")),
        (
            "Endpoints".to_owned(),
            "FailedToCreateEndpoint".to_owned(),
            "Failed to create endpoint for service default/web: ".to_owned()
        )
    );
    run(&mut world);
    world.put(backend(1));
    assert_eq!(
        failure(&world.plan::<EndpointsOfServices>("web")),
        (
            "Endpoints".to_owned(),
            "FailedToUpdateEndpoint".to_owned(),
            "Failed to update endpoint default/web: ".to_owned()
        )
    );
}

mod repacking {
    use super::*;

    fn address(ip: &str, uid: &str) -> EndpointAddress {
        EndpointAddress {
            ip: ip.to_owned(),
            target_ref: (!uid.is_empty()).then(|| kubernetes_proto::core::ObjectReference {
                uid: uid.to_owned(),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    fn port(number: i32) -> EndpointPort {
        EndpointPort {
            port: number,
            protocol: "TCP".to_owned(),
            ..Default::default()
        }
    }

    fn subset(ready: &[(&str, &str)], others: &[(&str, &str)], ports: &[i32]) -> EndpointSubset {
        let addresses = |of: &[(&str, &str)]| of.iter().map(|(ip, uid)| address(ip, uid)).collect();
        EndpointSubset {
            addresses: addresses(ready),
            not_ready_addresses: addresses(others),
            ports: ports.iter().map(|number| port(*number)).collect(),
        }
    }

    #[test]
    fn each_set_of_addresses_occurs_once_with_all_its_ports() {
        let table: Vec<(&str, Vec<EndpointSubset>, Vec<EndpointSubset>)> = vec![
            ("nothing", vec![], vec![]),
            (
                "one",
                vec![subset(&[("1.2.3.4", "")], &[], &[1])],
                vec![subset(&[("1.2.3.4", "")], &[], &[1])],
            ),
            (
                "no addresses",
                vec![subset(&[], &[], &[1, 2])],
                vec![subset(&[], &[], &[1, 2])],
            ),
            (
                "two ports of one set",
                vec![
                    subset(&[("1.2.3.4", "")], &[], &[2]),
                    subset(&[("1.2.3.4", "")], &[], &[1]),
                ],
                vec![subset(&[("1.2.3.4", "")], &[], &[1, 2])],
            ),
            (
                "two addresses of one port",
                vec![
                    subset(&[("5.6.7.8", "")], &[], &[1]),
                    subset(&[("1.2.3.4", "")], &[], &[1]),
                ],
                vec![subset(&[("1.2.3.4", ""), ("5.6.7.8", "")], &[], &[1])],
            ),
            (
                "one address of two pods",
                vec![subset(&[("1.2.3.4", "b"), ("1.2.3.4", "a")], &[], &[1])],
                vec![subset(&[("1.2.3.4", "a"), ("1.2.3.4", "b")], &[], &[1])],
            ),
            (
                "ready here and not there, at one port",
                vec![
                    subset(&[("1.2.3.4", "")], &[], &[1]),
                    subset(&[], &[("1.2.3.4", "")], &[1]),
                ],
                vec![subset(&[], &[("1.2.3.4", "")], &[1])],
            ),
            (
                "ready at one port, not at another",
                vec![
                    subset(&[("1.2.3.4", "")], &[], &[1]),
                    subset(&[], &[("1.2.3.4", "")], &[2]),
                ],
                vec![
                    subset(&[("1.2.3.4", "")], &[], &[1]),
                    subset(&[], &[("1.2.3.4", "")], &[2]),
                ],
            ),
            (
                "without ports",
                vec![
                    subset(&[("1.2.3.4", "")], &[], &[]),
                    subset(&[("1.2.3.5", "")], &[], &[]),
                ],
                vec![subset(&[("1.2.3.4", ""), ("1.2.3.5", "")], &[], &[])],
            ),
        ];
        for (what, before, after) in table {
            assert_eq!(subsets::repack(&before), after, "{what}");
            assert_eq!(subsets::repack(&after), after, "{what}, again");
        }
    }
}
