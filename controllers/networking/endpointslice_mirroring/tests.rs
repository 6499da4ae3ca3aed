use controllers_kit::{
    FlagValue, Requeue,
    testing::{
        Common, EndpointsBuild, ServiceBuild, SliceBuild, World, at, endpoint_slice, endpoints,
        pod, service,
    },
};

use super::*;

fn cluster(endpoints: Endpoints) -> World {
    World::at("12:00:00")
        .with(service("web").no_selector())
        .with(endpoints)
}

fn some() -> Endpoints {
    endpoints("web").subset(&["192.0.2.1", "192.0.2.2"], &["192.0.2.3"], 80)
}

fn run(world: &mut World) -> Vec<Plan> {
    world.run::<MirroredSlices>()
}

/// Each slice as its type, ports, and addresses with whether they are ready.
fn text(world: &World) -> Vec<String> {
    let mut text: Vec<String> = world
        .all::<EndpointSlice>()
        .iter()
        .map(|slice| {
            let ports: Vec<String> = slice
                .ports
                .iter()
                .map(|port| port.port.unwrap_or(-1).to_string())
                .collect();
            let addresses: Vec<String> = slice
                .endpoints
                .iter()
                .map(|one| {
                    let ready = one.conditions.unwrap().ready == Some(true);
                    format!(
                        "{}{}",
                        one.addresses.join("+"),
                        if ready { "" } else { "!" }
                    )
                })
                .collect();
            format!(
                "{} {} {}",
                slice.address_type,
                ports.join(","),
                addresses.join(" ")
            )
        })
        .collect();
    text.sort();
    text
}

#[test]
fn endpoints_made_by_hand_are_mirrored() {
    let mut world = cluster(
        some()
            .label("team", "blue")
            .annotation("note", "x")
            .annotation("kubectl.kubernetes.io/last-applied-configuration", "{}")
            .annotation(
                "endpoints.kubernetes.io/last-change-trigger-time",
                "2026-03-02T11:00:00Z",
            ),
    );
    run(&mut world);
    assert_eq!(text(&world), ["IPv4 80 192.0.2.1 192.0.2.2 192.0.2.3!"]);
    let slice = &world.all::<EndpointSlice>()[0];
    let meta = slice.metadata();
    assert!(meta.name.starts_with("web-"));
    assert_eq!(meta.label("team"), Some("blue"));
    assert_eq!(meta.label("kubernetes.io/service-name"), Some("web"));
    assert_eq!(
        meta.label("endpointslice.kubernetes.io/managed-by"),
        Some("endpointslicemirroring-controller.k8s.io")
    );
    let annotations: Vec<&str> = meta.annotations.iter().map(|entry| &*entry.key).collect();
    assert_eq!(annotations, ["note"]);
    let owner = meta.controller().unwrap();
    assert_eq!(
        (&*owner.kind, &*owner.uid),
        ("Endpoints", "uid-endpoints-default-web")
    );
    let conditions = slice.endpoints[0].conditions.unwrap();
    assert_eq!((conditions.serving, conditions.terminating), (None, None));
    assert!(world.plan::<MirroredSlices>("web").is_nothing());
}

#[test]
fn each_subset_and_family_has_a_slice() {
    let mut world = cluster(
        endpoints("web")
            .subset(&["192.0.2.1", "2001:db8::1"], &[], 80)
            .subset(&["192.0.2.2"], &[], 81),
    );
    run(&mut world);
    assert_eq!(
        text(&world),
        [
            "IPv4 80 192.0.2.1",
            "IPv4 81 192.0.2.2",
            "IPv6 80 2001:db8::1"
        ]
    );
    let names: std::collections::BTreeSet<_> = world
        .all::<EndpointSlice>()
        .iter()
        .map(|slice| slice.metadata().name.clone())
        .collect();
    assert_eq!(names.len(), 3);
}

#[test]
fn subsets_are_brought_into_their_canonical_form_first() {
    let mut world = cluster(endpoints("web").subset(&["192.0.2.1"], &[], 80).subset(
        &["192.0.2.2"],
        &[],
        80,
    ));
    run(&mut world);
    assert_eq!(text(&world), ["IPv4 80 192.0.2.1 192.0.2.2"]);
}

#[test]
fn endpoints_that_ask_for_it_or_have_no_bare_service_are_not_mirrored() {
    let with = |service: Option<Service>, endpoints: Endpoints| {
        let world = World::at("12:00:00").with(endpoints);
        match service {
            Some(service) => world.with(service),
            None => world,
        }
    };
    let bare = || Some(service("web").no_selector());
    for (what, world) in [
        ("asks for it", with(bare(), some().label(SKIP, "true"))),
        (
            "a lock",
            with(
                bare(),
                some().annotation("control-plane.alpha.kubernetes.io/leader", "{}"),
            ),
        ),
        ("a selector", with(Some(service("web")), some())),
        ("no Service", with(None, some())),
    ] {
        assert!(world.plan::<MirroredSlices>("web").is_nothing(), "{what}");
        // What there is goes.
        let mut slice =
            endpoint_slice("web-1", &service("web"), MANAGER).endpoint(&pod("x").clone());
        slice.metadata_mut().owner_references.clear();
        let mut world = world.with(slice);
        run(&mut world);
        assert!(world.all::<EndpointSlice>().is_empty(), "{what}");
    }
    let world = with(bare(), some().label(SKIP, "false"));
    assert_eq!(
        world.plan::<MirroredSlices>("web").verbs().len(),
        1,
        "only \"true\" counts"
    );
}

#[test]
fn mirrors_follow_what_they_mirror_in_place() {
    let mut world = cluster(some());
    run(&mut world);
    let name = world.all::<EndpointSlice>()[0].metadata().name.clone();
    let patched = |world: &mut World| {
        let plans = run(world);
        plans.iter().flat_map(Plan::verbs).collect::<Vec<_>>()
    };
    let expected = [format!("patch endpointslices/{name}")];
    world.change::<Endpoints>("web", |held| {
        let subset = &mut held.subsets[0];
        let turned = subset.not_ready_addresses.pop().unwrap();
        subset.addresses.push(turned);
    });
    assert_eq!(patched(&mut world), expected);
    assert_eq!(text(&world), ["IPv4 80 192.0.2.1 192.0.2.2 192.0.2.3"]);
    world.change::<Endpoints>("web", |held| held.metadata_mut().set_label("team", "red"));
    assert_eq!(patched(&mut world), expected);
    world.change::<Endpoints>("web", |held| {
        held.metadata_mut().set_annotation("note", "y");
    });
    assert_eq!(patched(&mut world), expected);
    // Another port: the slice is made use of again.
    world.change::<Endpoints>("web", |held| held.subsets[0].ports[0].port = 81);
    assert_eq!(patched(&mut world), expected);
    assert_eq!(text(&world), ["IPv4 81 192.0.2.1 192.0.2.2 192.0.2.3"]);
    world.change::<Endpoints>("web", |held| held.subsets.clear());
    assert_eq!(
        patched(&mut world),
        [format!("delete endpointslices/{name}")]
    );
}

#[test]
fn mirrors_go_with_the_endpoints_and_with_the_service() {
    let mut world = cluster(some());
    run(&mut world);
    world.vanish::<Service>("web");
    run(&mut world);
    assert!(world.all::<EndpointSlice>().is_empty());
    let mut world = cluster(some());
    run(&mut world);
    world.vanish::<Endpoints>("web");
    run(&mut world);
    assert!(world.all::<EndpointSlice>().is_empty());
    let mut world = cluster(some());
    run(&mut world);
    world.change::<Service>("web", |held| held.spec = service("web").spec);
    run(&mut world);
    assert!(world.all::<EndpointSlice>().is_empty());
}

#[test]
fn mirrors_left_behind_while_nobody_owned_their_key_go() {
    let mut slice = endpoint_slice("web-1", &service("web"), MANAGER);
    slice.metadata_mut().owner_references.clear();
    let mut world = World::at("12:00:00").with(slice);
    run(&mut world);
    assert!(world.all::<EndpointSlice>().is_empty());
}

#[test]
fn a_mirror_of_earlier_endpoints_changes_its_owner() {
    let mut world = cluster(some());
    run(&mut world);
    world.vanish::<Endpoints>("web");
    let mut world = world.with(some().uid("new"));
    run(&mut world);
    let slices = world.all::<EndpointSlice>();
    assert_eq!(slices.len(), 1);
    assert_eq!(slices[0].metadata().controller().unwrap().uid, *"new");
}

#[test]
fn one_slice_of_several_of_a_kind_stays() {
    let mut world = cluster(some());
    run(&mut world);
    let first = EndpointSlice::clone(&world.all::<EndpointSlice>()[0]);
    let mut second = first;
    second.metadata_mut().name = "web-zzzzz".into();
    second.metadata_mut().uid = "second".into();
    let mut world = world.with(second);
    run(&mut world);
    assert_eq!(world.all::<EndpointSlice>().len(), 1);
}

#[test]
fn a_bounded_number_is_mirrored_and_the_rest_is_reported_once() {
    let ips: Vec<String> = (1..=8).map(|number| format!("192.0.2.{number}")).collect();
    let ips: Vec<&str> = ips.iter().map(String::as_str).collect();
    let mut world = cluster(endpoints("web").subset(&ips[..5], &ips[5..], 80))
        .flag("mirroring-max-endpoints-per-subset", FlagValue::Int(6));
    run(&mut world);
    assert_eq!(
        text(&world),
        ["IPv4 80 192.0.2.1 192.0.2.2 192.0.2.3 192.0.2.4 192.0.2.5 192.0.2.6!"]
    );
    let expected = "Warning TooManyAddressesToMirror A max of 6 addresses can be mirrored to EndpointSlices per Endpoints subset. 2 addresses were skipped";
    assert_eq!(world.events(), [expected]);
    let mut memory = Memory::default();
    let mut count = || {
        world
            .plan_with::<MirroredSlices>("web", &mut memory)
            .unwrap()
            .events
            .len()
    };
    assert_eq!((count(), count()), (1, 0));
}

#[test]
fn invalid_addresses_are_left_out_and_reported() {
    let mut world = cluster(endpoints("web").subset(
        &["192.0.2.01", "nonsense", "192.0.2"],
        &["fd00::1::2"],
        80,
    ));
    run(&mut world);
    assert_eq!(text(&world), ["IPv4 80 192.0.2.1"]);
    assert_eq!(
        world.events(),
        [
            "Warning InvalidIPAddress Skipped 3 invalid IP addresses when mirroring to EndpointSlices"
        ]
    );
}

#[test]
fn hostname_node_and_target_are_mirrored() {
    let mut endpoints = some();
    let address = &mut endpoints.subsets[0].addresses[0];
    address.hostname = "first".to_owned();
    address.node_name = Some("node-9".to_owned());
    address.target_ref = Some(kubernetes_proto::core::ObjectReference {
        kind: "Pod".to_owned(),
        name: "x".to_owned(),
        ..Default::default()
    });
    let mut world = cluster(endpoints);
    run(&mut world);
    let slice = &world.all::<EndpointSlice>()[0];
    let one = slice
        .endpoints
        .iter()
        .find(|one| one.addresses == ["192.0.2.1"])
        .unwrap();
    assert_eq!(
        (one.hostname.as_deref(), one.node_name.as_deref()),
        (Some("first"), Some("node-9"))
    );
    assert_eq!(one.target_ref.as_ref().unwrap().name, "x");
}

#[test]
fn slices_that_others_keep_are_left_alone() {
    let service = service("web").no_selector();
    let mut world = cluster(some())
        .with(endpoint_slice("by-hand", &service, "me"))
        .with(endpoint_slice(
            "other",
            &service,
            "endpointslice-controller.k8s.io",
        ));
    run(&mut world);
    assert_eq!(world.all::<EndpointSlice>().len(), 3);
    assert_eq!(world.get::<EndpointSlice>("other").metadata().generation, 1);
}

#[test]
fn nothing_is_made_for_endpoints_that_are_being_deleted() {
    let world = cluster(some().finalizer("example.com/hold").terminating("11:59:00"));
    assert!(world.plan::<MirroredSlices>("web").is_nothing());
}

#[test]
fn two_owners_make_one_mirror() {
    let mut world = cluster(endpoints("web").subset(&["192.0.2.1"], &[], 80).subset(
        &["192.0.2.2"],
        &[],
        81,
    ));
    let plan = world.plan::<MirroredSlices>("web");
    world.apply(&plan).expect_success();
    assert_eq!(world.apply(&plan).failures().len(), 2);
    assert_eq!(world.all::<EndpointSlice>().len(), 2);
}

#[test]
fn somebody_s_change_of_a_mirror_waits_for_the_period_and_the_endpoints_own_does_not() {
    let period = FlagValue::Duration(std::time::Duration::from_secs(5));
    let mut world = cluster(some()).flag("mirroring-endpointslice-updates-batch-period", period);
    let mut memory = Memory::default();
    let mut plan = |world: &World| {
        world
            .plan_with::<MirroredSlices>("web", &mut memory)
            .unwrap()
    };
    let first = plan(&world);
    world.apply(&first).expect_success();
    assert!(plan(&world).is_nothing());
    let name = world.all::<EndpointSlice>()[0].metadata().name.to_string();
    world.change::<EndpointSlice>(&name, |slice| slice.endpoints.clear());
    assert_eq!(plan(&world).requeue, Requeue::At(at("12:00:05")));
    assert_eq!(plan(&world.later(5)).verbs().len(), 1);
    world.change::<Endpoints>("web", |held| held.metadata_mut().set_label("a", "b"));
    assert_eq!(plan(&world).verbs().len(), 1);
}

#[test]
fn each_sync_is_measured() {
    let mut world = cluster(some());
    let measured = |plan: &Plan| -> Vec<(&'static str, f64)> {
        let prefix = "endpoint_slice_mirroring_controller_";
        plan.measures
            .iter()
            .map(|measure| (measure.name.strip_prefix(prefix).unwrap(), measure.value))
            .collect()
    };
    let expect = |plan: &Plan, added, updated, removed| {
        let measured = measured(plan);
        for expected in [
            ("endpoints_added_per_sync", added),
            ("endpoints_updated_per_sync", updated),
            ("endpoints_removed_per_sync", removed),
            ("addresses_skipped_per_sync", 0.0),
        ] {
            assert!(
                measured.contains(&expected),
                "{expected:?} not in {measured:?}"
            );
        }
    };
    expect(&world.plan::<MirroredSlices>("web"), 3.0, 0.0, 0.0);
    run(&mut world);
    expect(&world.plan::<MirroredSlices>("web"), 0.0, 0.0, 0.0);
    world.change::<Endpoints>("web", |held| {
        let subset = &mut held.subsets[0];
        subset.addresses.remove(0);
        let turned = subset.not_ready_addresses.pop().unwrap();
        subset.addresses.push(turned);
    });
    expect(&world.plan::<MirroredSlices>("web"), 0.0, 1.0, 1.0);
}
