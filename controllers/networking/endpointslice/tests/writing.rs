//! What slices say: addresses, conditions, ports, labels, trigger times; which slices are left alone.

use std::time::Duration;

use controllers_kit::{
    FlagValue, Requeue, StatusWrite,
    testing::{
        BackendBuild, Common, PodBuild, ServiceBuild, SliceBuild, World, ZoneBuild, at,
        endpoint_slice, namespace, node, pod, service,
    },
};
use kubernetes_proto::{
    Object,
    core::{Node, Pod, Service},
    discovery::EndpointSlice,
};

use super::*;
use crate::services::TRIGGER_TIME;

#[test]
fn a_service_without_pods_has_one_empty_slice_of_each_family() {
    let mut world = cluster(
        service("web")
            .label("team", "blue")
            .families(&["IPv4", "IPv6"]),
        0,
    );
    let plan = world.plan::<SlicesOfServices>("web");
    world.apply(&plan).expect_success();
    let made = slices(&world);
    let mut types: Vec<_> = made
        .iter()
        .map(|slice| slice.address_type.clone())
        .collect();
    types.sort();
    assert_eq!(types, ["IPv4", "IPv6"]);
    for slice in made {
        let meta = slice.metadata();
        assert!(
            meta.name.starts_with("web-") && meta.name.len() == 9,
            "{}",
            meta.name
        );
        assert_eq!(meta.generate_name, *"web-");
        assert_eq!(meta.label("team"), Some("blue"));
        assert_eq!(meta.label("kubernetes.io/service-name"), Some("web"));
        assert_eq!(
            meta.label("endpointslice.kubernetes.io/managed-by"),
            Some("endpointslice-controller.k8s.io")
        );
        assert_eq!(meta.label("service.kubernetes.io/headless"), None);
        let owner = meta.controller().unwrap();
        assert_eq!((&*owner.kind, &*owner.name), ("Service", "web"));
        assert_eq!(owner.block_owner_deletion, Some(true));
        assert_eq!(meta.annotation(TRIGGER_TIME), Some("2026-03-02T11:00:00Z"));
        assert!(slice.endpoints.is_empty() && slice.ports.is_empty());
    }
    assert!(world.plan::<SlicesOfServices>("web").is_nothing());
}

#[test]
fn conditions_reflect_the_pod() {
    let own = || backend(0);
    type Conditions = (bool, bool, bool);
    let table: Vec<(&str, Pod, bool, Option<Conditions>)> = vec![
        ("ready", own(), false, Some((true, true, false))),
        (
            "not ready",
            own().condition("Ready", "False", "11:55:00"),
            false,
            Some((false, false, false)),
        ),
        (
            "not ready, published",
            own().condition("Ready", "False", "11:55:00"),
            true,
            Some((true, false, false)),
        ),
        (
            "going",
            own().terminating("12:00:10"),
            false,
            Some((false, true, true)),
        ),
        (
            "going, published",
            own().terminating("12:00:10"),
            true,
            Some((true, true, true)),
        ),
        (
            "going, not serving",
            own()
                .condition("Ready", "False", "11:55:00")
                .terminating("12:00:10"),
            false,
            Some((false, false, true)),
        ),
        ("succeeded", own().phase("Succeeded"), true, None),
        ("failed", own().phase("Failed"), true, None),
        ("of other labels", own().label("app", "other"), true, None),
        (
            "without an address",
            pod("web-0").label("app", "web").running(),
            true,
            None,
        ),
        (
            "of another family",
            pod("web-0").label("app", "web").running().ip("fd00::1"),
            true,
            None,
        ),
    ];
    for (what, pod, publish, expected) in table {
        let service = if publish {
            service("web").publish_not_ready()
        } else {
            service("web")
        };
        let mut world = cluster(service, 0).with(pod);
        run(&mut world);
        let conditions = endpoint(&world, "web-0").map(|endpoint| {
            let conditions = endpoint.conditions.unwrap();
            (
                conditions.ready.unwrap(),
                conditions.serving.unwrap(),
                conditions.terminating.unwrap(),
            )
        });
        assert_eq!(conditions, expected, "{what}");
    }
}

#[test]
fn an_endpoint_has_node_zone_and_hostname() {
    let mut world = cluster(service("web").headless(), 0)
        .with(backend(0).hostname("first", "web"))
        .with(backend(1).hostname("second", "other"));
    run(&mut world);
    let first = endpoint(&world, "web-0").unwrap();
    assert_eq!(first.hostname.as_deref(), Some("first"));
    assert_eq!(first.node_name.as_deref(), Some("node-1"));
    assert_eq!(first.zone.as_deref(), Some("a"));
    assert_eq!(first.target_ref.unwrap().uid, "uid-pods-default-web-0");
    assert_eq!(endpoint(&world, "web-1").unwrap().hostname, None);
    let slice = &slices(&world)[0];
    assert_eq!(
        slice.metadata().label("service.kubernetes.io/headless"),
        Some("")
    );
}

#[test]
fn each_family_has_slices_of_its_own_and_loses_them_with_it() {
    let both = |number: usize| backend(number).ip(&format!("fd00::{}", number + 1));
    let mut world = cluster(service("web").families(&["IPv6", "IPv4"]), 0)
        .with(both(0))
        .with(both(1))
        .with(backend(2));
    run(&mut world);
    let of = |world: &World, family: &str| -> Vec<String> {
        slices(world)
            .iter()
            .filter(|slice| slice.address_type == family)
            .flat_map(|slice| &slice.endpoints)
            .flat_map(|endpoint| endpoint.addresses.clone())
            .collect()
    };
    assert_eq!(of(&world, "IPv4"), ["10.1.0.1", "10.1.0.2", "10.1.0.3"]);
    assert_eq!(of(&world, "IPv6"), ["fd00::1", "fd00::2"]);
    world.change::<Service>("web", |service| {
        service.spec.as_mut().unwrap().ip_families = vec!["IPv4".to_owned()];
    });
    let plans = run(&mut world);
    assert_eq!(plans.len(), 1);
    assert_eq!(
        plans[0].verbs().len(),
        1,
        "only the deletion: {:?}",
        plans[0].verbs()
    );
    assert_eq!(of(&world, "IPv6"), [""; 0]);
}

#[test]
fn families_that_are_not_named_follow_from_the_address() {
    for (service, expected) in [
        (service("web").families(&[]), vec!["IPv4"]),
        (
            service("web").families(&[]).headless(),
            vec!["IPv4", "IPv6"],
        ),
        (
            {
                let mut service = service("web").families(&[]);
                service.spec.as_mut().unwrap().cluster_ip = "fd00::10".to_owned();
                service
            },
            vec!["IPv6"],
        ),
    ] {
        assert_eq!(super::super::endpoint::address_types(&service), expected);
    }
}

#[test]
fn addresses_are_written_in_one_form_and_a_pod_may_have_several() {
    let mut world =
        cluster(service("web"), 0).with(backend(0).ip("010.001.000.007").ip("::ffff:10.1.0.9"));
    run(&mut world);
    let endpoint = endpoint(&world, "web-0").unwrap();
    assert_eq!(endpoint.addresses, ["10.1.0.1", "10.1.0.7", "10.1.0.9"]);
}

#[test]
fn ports_are_found_by_name_and_part_the_slices() {
    let mut sidecar = backend(2);
    sidecar.spec.as_mut().unwrap().init_containers = vec![kubernetes_proto::core::InitContainer {
        name: "proxy".into(),
        restart_policy: "Always".into(),
        ports: vec![
            kubernetes_proto::core::ContainerPort {
                name: "http".into(),
                container_port: 8080,
                protocol: "TCP".into(),
            }
            .into(),
        ],
        ..Default::default()
    }];
    let mut setup = sidecar.clone();
    setup.metadata_mut().name = "web-4".into();
    setup.spec.as_mut().unwrap().init_containers[0].restart_policy = "".into();
    let mut world = cluster(
        service("web")
            .port_named("main", "http")
            .port("admin", 9000),
        0,
    )
    .with(backend(0).serves("http", 8080))
    .with(backend(1).serves("http", 8081))
    .with(sidecar)
    .with(backend(3).serves("other", 8080))
    .with(setup);
    run(&mut world);
    type Ports = Vec<(String, i32)>;
    let mut seen: Vec<(Ports, Vec<String>)> = slices(&world)
        .iter()
        .map(|slice| {
            let ports = slice
                .ports
                .iter()
                .map(|port| (port.name.clone().unwrap(), port.port.unwrap()));
            (
                ports.collect(),
                slice
                    .endpoints
                    .iter()
                    .map(|one| pod_of(one).to_owned())
                    .collect(),
            )
        })
        .collect();
    seen.sort();
    let port = |name: &str, number| (name.to_owned(), number);
    let pods = |names: &[&str]| {
        names
            .iter()
            .map(|name| (*name).to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        seen,
        [
            (vec![port("admin", 9000)], pods(&["web-3", "web-4"])),
            (
                vec![port("admin", 9000), port("main", 8080)],
                pods(&["web-0", "web-2"])
            ),
            (
                vec![port("admin", 9000), port("main", 8081)],
                pods(&["web-1"])
            ),
        ]
    );
    // A set of ports that nobody serves any more goes.
    world.vanish::<Pod>("web-1");
    run(&mut world);
    assert_eq!(slices(&world).len(), 2);
}

#[test]
fn a_headless_service_may_do_without_ports() {
    let mut world = cluster(service("web").headless().no_ports(), 2);
    run(&mut world);
    assert_eq!(published(&world), ["web-0", "web-1"]);
    assert!(slices(&world)[0].ports.is_empty());
}

#[test]
fn the_placeholder_becomes_the_first_real_slice_and_the_last_one_a_placeholder() {
    let mut world = cluster(service("web"), 0);
    run(&mut world);
    let first = name(&slices(&world)[0]).to_owned();
    world.put(backend(0));
    let plans = run(&mut world);
    assert_eq!(
        plans
            .iter()
            .flat_map(controllers_kit::Plan::verbs)
            .collect::<Vec<_>>(),
        [format!("patch endpointslices/{first}")]
    );
    assert_eq!(slices(&world)[0].ports[0].port, Some(8080));
    world.vanish::<Pod>("web-0");
    let plans = run(&mut world);
    assert_eq!(plans[0].verbs(), [format!("patch endpointslices/{first}")]);
    let slice = &slices(&world)[0];
    assert!(slice.endpoints.is_empty() && slice.ports.is_empty());
}

#[test]
fn labels_follow_the_service_s_and_only_labels_are_written() {
    let mut world = cluster(service("web").label("team", "blue").label("old", "1"), 2);
    run(&mut world);
    world.change::<Service>("web", |service| {
        let labels = &mut service.metadata_mut().labels;
        labels.retain(|entry| entry.key != *"old");
        service.metadata_mut().set_label("team", "red");
        // Reserved ones are never copied.
        service
            .metadata_mut()
            .set_label("kubernetes.io/service-name", "other");
        service
            .metadata_mut()
            .set_label("endpointslice.kubernetes.io/managed-by", "me");
    });
    let plan = world.plan::<SlicesOfServices>("web");
    let patch = patch(&plan);
    assert_eq!(
        patch["metadata"]["labels"],
        serde_json::json!({"team": "red", "old": null})
    );
    assert!(patch.get("endpoints").is_none(), "{patch}");
    // A change of labels is traced back to nothing.
    assert_eq!(patch["metadata"]["annotations"], Value::Null);
    run(&mut world);
    assert!(world.plan::<SlicesOfServices>("web").is_nothing());
    let meta = slices(&world)[0].metadata().clone();
    assert_eq!(meta.label("kubernetes.io/service-name"), Some("web"));
}

#[test]
fn slices_that_others_keep_are_left_alone() {
    let other = service("web");
    let mut world = cluster(service("web"), 1)
        .with(endpoint_slice("by-hand", &other, "me").endpoint(&backend(7)))
        .with(endpoint_slice(
            "mirrored",
            &other,
            "endpointslicemirroring-controller.k8s.io",
        ))
        .with({
            let mut slice = endpoint_slice("no-manager", &other, "me");
            slice
                .metadata_mut()
                .labels
                .retain(|entry| entry.key == *"kubernetes.io/service-name");
            slice
        });
    run(&mut world);
    for kept in ["by-hand", "mirrored", "no-manager"] {
        let slice = world.get::<EndpointSlice>(kept);
        assert_eq!(slice.metadata().generation, 1, "{kept}");
    }
    assert_eq!(slices(&world).len(), 4);
}

#[test]
fn slices_of_an_earlier_service_of_the_name_go_and_are_not_made_use_of() {
    let earlier = service("web").uid("earlier");
    let mut world = cluster(service("web"), 1).with(
        endpoint_slice("web-old", &earlier, "endpointslice-controller.k8s.io")
            .endpoint(&backend(0)),
    );
    let plan = world.plan::<SlicesOfServices>("web");
    let verbs = plan.verbs();
    assert!(
        verbs[0].starts_with("create ") && verbs[1] == "delete endpointslices/web-old",
        "{verbs:?}"
    );
    assert_eq!(plan.stages.len(), 2);
    run(&mut world);
    assert_eq!(published(&world), ["web-0"]);
}

#[test]
fn a_slice_that_is_being_deleted_is_not_counted_on() {
    let mut world = cluster(service("web"), 1);
    run(&mut world);
    let gone = name(&slices(&world)[0]).to_owned();
    world.change::<EndpointSlice>(&gone, |slice| {
        slice
            .metadata_mut()
            .finalizers
            .push("example.com/hold".into());
    });
    world.delete::<EndpointSlice>(&gone);
    run(&mut world);
    let names: Vec<String> = slices(&world)
        .iter()
        .map(|slice| name(slice).to_owned())
        .collect();
    assert_eq!(names.len(), 2);
    assert!(names.contains(&gone));
    let live = slices(&world)
        .into_iter()
        .find(|slice| name(slice) != gone)
        .unwrap();
    assert_eq!(live.endpoints.len(), 1);
}

#[test]
fn services_without_endpoints_of_their_own_are_left_alone() {
    for (what, service) in [
        ("no selector", service("web").no_selector()),
        ("an alias", {
            let mut service = service("web");
            service.spec.as_mut().unwrap().r#type = "ExternalName".to_owned();
            service
        }),
    ] {
        let world = cluster(service, 1);
        assert!(world.plan::<SlicesOfServices>("web").is_nothing(), "{what}");
    }
    let world = World::at("12:00:00");
    assert!(world.plan::<SlicesOfServices>("gone").is_nothing());
}

#[test]
fn nothing_is_made_for_a_service_that_is_being_deleted() {
    let service = service("web")
        .finalizer("example.com/hold")
        .terminating("11:59:00");
    let world = cluster(service.clone(), 1);
    assert!(world.plan::<SlicesOfServices>("web").is_nothing());
    // What there is is still kept true.
    let world = world.with(
        endpoint_slice("web-1", &service, "endpointslice-controller.k8s.io").endpoint(&backend(9)),
    );
    let plan = world.plan::<SlicesOfServices>("web");
    assert_eq!(plan.verbs(), ["patch endpointslices/web-1"]);
}

#[test]
fn a_pod_is_left_out_while_its_node_is_missing_and_that_is_reported_once() {
    let mut world = cluster(service("web"), 1).with(backend(1).on("node-2"));
    run(&mut world);
    assert_eq!(published(&world), ["web-0"]);
    let expected = "Warning FailedToUpdateEndpointSlices Error updating Endpoint Slices for Service default/web: skipping Pod web-1 for Service default/web: Node node-2 Not Found";
    assert_eq!(world.events(), [expected]);
    let mut memory = fresh();
    let first = world
        .plan_with::<SlicesOfServices>("web", &mut memory)
        .unwrap();
    let second = world
        .plan_with::<SlicesOfServices>("web", &mut memory)
        .unwrap();
    assert_eq!((first.events.len(), second.events.len()), (1, 0));

    // With several, upstream's form of several errors.
    let more = world.clone().with(backend(2).on("node-3"));
    let plan = more.plan::<SlicesOfServices>("web");
    assert_eq!(
        plan.events[0].message,
        "Error updating Endpoint Slices for Service default/web: [skipping Pod web-1 for Service default/web: Node node-2 Not Found, skipping Pod web-2 for Service default/web: Node node-3 Not Found]"
    );

    // The node's arrival wakes the Service, its departure too.
    world.put(node("node-2").works_in("b", "4"));
    run(&mut world);
    assert_eq!(published(&world), ["web-0", "web-1"]);
    assert_eq!(
        endpoint(&world, "web-1").unwrap().zone.as_deref(),
        Some("b")
    );
    world.change::<Node>("node-2", |node| {
        node.metadata_mut()
            .set_label("topology.kubernetes.io/zone", "c");
    });
    run(&mut world);
    assert_eq!(
        endpoint(&world, "web-1").unwrap().zone.as_deref(),
        Some("c")
    );
}

#[test]
fn a_service_that_publishes_all_addresses_has_pods_of_missing_nodes_too() {
    let mut world = cluster(service("web").publish_not_ready(), 0).with(backend(1).on("node-2"));
    run(&mut world);
    assert_eq!(published(&world), ["web-1"]);
    assert_eq!(world.events(), [""; 0]);
}

#[test]
fn the_trigger_time_is_that_of_the_earliest_change() {
    let mut world = cluster(service("web"), 2);
    run(&mut world);
    let trigger = |world: &World| {
        slices(world)[0]
            .metadata()
            .annotation(TRIGGER_TIME)
            .map(str::to_owned)
    };
    assert_eq!(
        trigger(&world).as_deref(),
        Some("2026-03-02T11:00:00Z"),
        "a Service's first slice"
    );
    world.change::<Pod>("web-0", |pod| {
        *pod = pod.clone().condition("Ready", "False", "11:58:00");
    });
    world.put(backend(2).condition("Ready", "True", "11:57:00"));
    run(&mut world);
    assert_eq!(
        trigger(&world).as_deref(),
        Some("2026-03-02T11:57:00Z"),
        "the earliest of two"
    );
    world.change::<Pod>("web-0", |pod| {
        *pod = pod.clone().condition("Ready", "True", "11:59:00");
    });
    run(&mut world);
    assert_eq!(
        trigger(&world).as_deref(),
        Some("2026-03-02T11:59:00Z"),
        "only what changed"
    );
    world.vanish::<Pod>("web-0");
    run(&mut world);
    assert_eq!(trigger(&world), None, "a pod that is gone has no time");
}

#[test]
fn changes_of_pods_are_gathered_and_those_of_the_service_are_not() {
    let period = FlagValue::Duration(Duration::from_secs(10));
    let mut world = cluster(service("web"), 1).flag("endpointslice-updates-batch-period", period);
    let mut memory = fresh();
    let plan = world
        .plan_with::<SlicesOfServices>("web", &mut memory)
        .unwrap();
    assert_eq!(plan.verbs().len(), 1, "a new Service does not wait");
    world.apply(&plan).expect_success();
    assert!(
        world
            .plan_with::<SlicesOfServices>("web", &mut memory)
            .unwrap()
            .is_nothing()
    );

    world.put(backend(1));
    let plan = world
        .plan_with::<SlicesOfServices>("web", &mut memory)
        .unwrap();
    assert_eq!(
        (plan.verbs().len(), plan.requeue),
        (0, Requeue::At(at("12:00:10")))
    );
    let mut world = world.later(4).with(backend(2));
    let plan = world
        .plan_with::<SlicesOfServices>("web", &mut memory)
        .unwrap();
    assert_eq!(
        plan.requeue,
        Requeue::At(at("12:00:10")),
        "counted from the first change"
    );
    let mut packed = memory.clone();
    let plan = world
        .later(6)
        .plan_with::<SlicesOfServices>("web", &mut packed)
        .unwrap();
    assert_eq!(plan.verbs().len(), 1, "the period is over");

    world.change::<Service>("web", |service| service.metadata_mut().set_label("a", "b"));
    let plan = world
        .plan_with::<SlicesOfServices>("web", &mut memory)
        .unwrap();
    assert_eq!(plan.verbs().len(), 1, "the Service's own change");
    // Without its memory a key writes at once.
    world.put(backend(3));
    assert_eq!(world.plan::<SlicesOfServices>("web").verbs().len(), 1);

    // By themselves.
    let before = slices(&world)[0].endpoints.len();
    world.settle_for(9, &[crate::REGISTRY[1]]);
    assert!(
        slices(&world)[0].endpoints.len() > before,
        "a fresh owner writes at once"
    );
}

#[test]
fn a_failure_is_recorded_in_upstream_s_words() {
    let world = cluster(service("web"), 1).with(namespace("x"));
    let plan = world.plan::<SlicesOfServices>("web");
    let failure = |plan: &controllers_kit::Plan| {
        let action = plan.actions().next().unwrap();
        let event = action
            .announcement
            .as_ref()
            .unwrap()
            .failure
            .clone()
            .unwrap();
        format!("{} {}", event.reason, event.message)
    };
    assert_eq!(
        failure(&plan),
        "FailedToUpdateEndpointSlices Error updating Endpoint Slices for Service default/web: failed to create EndpointSlice for Service default/web: "
    );
    let mut world = world;
    run(&mut world);
    let name = name(&slices(&world)[0]).to_owned();
    world.put(backend(1));
    assert_eq!(
        failure(&world.plan::<SlicesOfServices>("web")),
        format!(
            "FailedToUpdateEndpointSlices Error updating Endpoint Slices for Service default/web: failed to update {name} EndpointSlice for Service default/web: "
        )
    );
}

#[test]
fn each_sync_is_measured() {
    let mut world = cluster(service("web"), 3);
    let measures = |plan: &controllers_kit::Plan| -> Vec<(&'static str, Vec<String>, f64)> {
        let all = plan.measures.iter().chain(
            plan.actions()
                .filter_map(|action| action.announcement.as_ref())
                .flat_map(|announcement| &announcement.measures),
        );
        all.map(|measure| {
            let labels = measure.labels.iter().map(ToString::to_string).collect();
            (
                measure
                    .name
                    .strip_prefix("endpoint_slice_controller_")
                    .unwrap(),
                labels,
                measure.value,
            )
        })
        .collect()
    };
    let none: Vec<String> = Vec::new();
    let one = |label: &str| vec![label.to_owned()];
    let disabled = vec!["Disabled".to_owned(), String::new()];
    let plan = world.plan::<SlicesOfServices>("web");
    let measured = measures(&plan);
    for expected in [
        ("endpoints_added_per_sync", none.clone(), 3.0),
        ("endpoints_removed_per_sync", none.clone(), 0.0),
        ("endpointslices_changed_per_sync", disabled, 1.0),
        ("syncs", one("success"), 1.0),
        ("changes", one("create"), 1.0),
    ] {
        assert!(
            measured.contains(&expected),
            "{expected:?} not in {measured:?}"
        );
    }
    world.apply(&plan).expect_success();
    world.vanish::<Pod>("web-1");
    let measured = measures(&world.plan::<SlicesOfServices>("web"));
    for expected in [
        ("endpoints_removed_per_sync", none, 1.0),
        ("changes", one("update"), 1.0),
    ] {
        assert!(
            measured.contains(&expected),
            "{expected:?} not in {measured:?}"
        );
    }
}

#[test]
fn each_family_of_a_service_is_measured_as_a_sync() {
    let world = cluster(service("web").families(&["IPv4", "IPv6"]), 3);
    let plan = world.plan::<SlicesOfServices>("web");
    let measured = |name: &str| -> Vec<f64> {
        let measures = plan.measures.iter();
        measures
            .filter(|measure| measure.name.ends_with(name))
            .map(|measure| measure.value)
            .collect()
    };
    assert_eq!(plan.verbs().len(), 2);
    let added = measured("endpoints_added_per_sync");
    assert_eq!(added.len(), 2);
    assert_eq!(added[0], 3.0, "backends have IPv4 addresses");
    assert_eq!(measured("endpoints_removed_per_sync"), [0.0, 0.0]);
    assert_eq!(measured("endpointslices_changed_per_sync"), [1.0, 1.0]);
    assert_eq!(measured("num_endpoint_slices").len(), 1, "a gauge is a sum");
}

#[test]
fn patches_are_reports_and_insist_on_what_was_seen() {
    let mut world = cluster(service("web"), 1);
    run(&mut world);
    world.put(backend(1));
    let plan = world.plan::<SlicesOfServices>("web");
    let action = plan.actions().next().unwrap();
    assert_eq!(action.report(), StatusWrite::Observed);
    assert_eq!(
        action.resource_version,
        slices(&world)[0].metadata().resource_version
    );
}
