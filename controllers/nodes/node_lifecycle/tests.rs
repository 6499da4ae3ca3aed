use std::time::Duration;

use controllers_kit::{
    Controller, Factory, Failure, FlagValue, Flags, Outcome, Plan, Requeue, SignedDuration,
    testing::*,
};
use kubernetes_proto::{
    Object,
    coordination::{Lease, LeaseSpec},
    core::{Node, NodeCondition, Pod},
    meta::Time,
};

use super::{
    Memory, NodeLifecycle, Zone,
    zone::{State, state},
};

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

fn condition(kind: &str, status: &str) -> NodeCondition {
    NodeCondition {
        r#type: kind.to_owned(),
        status: status.to_owned(),
        last_heartbeat_time: Some(at("11:59:55").into()),
        last_transition_time: Some(at("11:00:00").into()),
        reason: "Kubelet".to_owned(),
        message: "said so".to_owned(),
    }
}

/// A node of a zone whose kubelet has said how it is.
pub(crate) fn posted(name: &str, ready: &str, zone: &str) -> Node {
    let mut node = node(name).created("10:00:00");
    if !zone.is_empty() {
        node = node.label("topology.kubernetes.io/zone", zone);
    }
    node.status.get_or_insert_default().conditions = vec![
        condition("NetworkUnavailable", "False"),
        condition("MemoryPressure", "False"),
        condition("DiskPressure", "False"),
        condition("PIDPressure", "False"),
        condition("Ready", ready),
    ];
    node
}

/// One whose kubelet is known to be silent.
fn unknown(name: &str, zone: &str) -> Node {
    posted(name, "Unknown", zone)
}

fn lease(name: &str, renewed: &str) -> Lease {
    let mut lease = Lease {
        spec: Some(LeaseSpec {
            renew_time: Some(Time::from(at(renewed))),
        }),
        ..Lease::default()
    };
    lease.metadata_mut().name = name.into();
    lease.metadata_mut().namespace = "kube-node-lease".into();
    lease
}

fn start() -> World {
    World::at("12:00:00").without_kubelets()
}

/// The memory of a key that was planned before.
fn known(world: &World, key: &str) -> Memory {
    let mut memory = Memory::default();
    world.plan_with::<NodeLifecycle>(key, &mut memory).unwrap();
    memory
}

fn plan_of(world: &World, key: &str, memory: &mut Memory) -> Plan {
    world.plan_with::<NodeLifecycle>(key, memory).unwrap()
}

fn apply(world: &mut World, plan: &Plan, memory: &mut Memory) {
    let applied = world.apply(plan);
    applied.expect_success();
    let controller = NodeLifecycle::new(&world.flags([&NodeLifecycle::describe()]));
    for (action, result) in &applied.0 {
        controller.learn(
            &Outcome {
                action,
                result: result.as_ref().cloned(),
            },
            memory,
        );
    }
}

fn run(world: &mut World, seconds: i64) {
    world.settle_for(seconds, &[Factory::of::<NodeLifecycle>()]);
}

fn said(world: &World, name: &str, kind: &str) -> Option<(String, String, String)> {
    let node = world.get::<Node>(name);
    let conditions = &node.status.as_ref()?.conditions;
    let one = conditions.iter().find(|one| one.r#type == kind)?;
    Some((one.status.clone(), one.reason.clone(), one.message.clone()))
}

fn ready(world: &World, name: &str) -> String {
    said(world, name, "Ready").map_or_else(String::new, |(status, ..)| status)
}

/// A node's taints as in `not-ready:NoExecute`.
fn taints(world: &World, name: &str) -> Vec<String> {
    let node = world.get::<Node>(name);
    let taints = node.spec.iter().flat_map(|spec| &spec.taints);
    taints
        .map(|taint| {
            let key = taint.key.rsplit('/').next().unwrap_or_default();
            format!("{key}:{}", taint.effect)
        })
        .collect()
}

fn driven(world: &World) -> Vec<String> {
    let nodes = world.all::<Node>();
    let names = nodes
        .iter()
        .map(|node| Object::metadata(&**node).name.to_string());
    names
        .filter(|name| {
            taints(world, name)
                .iter()
                .any(|one| one.ends_with("NoExecute"))
        })
        .collect()
}

#[test]
fn a_node_is_silent_after_its_grace_period_and_not_before() {
    let mut without = node("n1").created("12:00:00");
    without.status = None;
    for (name, node, grace, was) in [
        ("ready", posted("n1", "True", ""), 50, "True"),
        ("not ready", posted("n1", "False", ""), 50, "False"),
        ("without conditions", without, 60, ""),
    ] {
        // Another that lives, so that not all are down.
        let mut world = start()
            .with(node)
            .with(posted("other", "True", ""))
            .living("other");
        run(&mut world, grace - 1);
        assert_eq!(ready(&world, "n1"), was, "{name}");
        run(&mut world, 2);
        assert_eq!(ready(&world, "n1"), "Unknown", "{name}");
        assert_eq!(ready(&world, "other"), "True", "{name}");
    }
}

#[test]
fn a_lease_or_a_status_keeps_a_node_alive() {
    for (name, by_lease) in [("lease", true), ("status", false)] {
        let mut world = start()
            .with(posted("n1", "True", ""))
            .with(lease("n1", "11:59:55"));
        for turn in 0..5 {
            run(&mut world, 40);
            // Whatever the kubelet's clock says.
            let beat = Some(Time {
                seconds: 1000 - turn,
                nanos: 0,
            });
            if by_lease {
                world.change::<Lease>("kube-node-lease/n1", |lease| {
                    lease.spec.get_or_insert_default().renew_time = beat;
                });
            } else {
                world.change::<Node>("n1", |node| {
                    let conditions = &mut node.status.as_mut().unwrap().conditions;
                    conditions.last_mut().unwrap().last_heartbeat_time = beat;
                });
            }
            assert_eq!(ready(&world, "n1"), "True", "{name}");
        }
        run(&mut world, 51);
        assert_eq!(ready(&world, "n1"), "Unknown", "{name}");
    }
}

#[test]
fn a_lease_of_another_namespace_says_nothing() {
    let mut foreign = lease("n1", "11:59:55");
    foreign.metadata_mut().namespace = "default".into();
    let mut world = start().with(posted("n1", "True", "")).with(foreign);
    run(&mut world, 45);
    world.change::<Lease>("default/n1", |lease| {
        lease.spec.get_or_insert_default().renew_time = Some(at("12:00:44").into());
    });
    run(&mut world, 6);
    assert_eq!(ready(&world, "n1"), "Unknown");
}

#[test]
fn a_heartbeat_that_is_old_by_its_own_clock_is_fresh_where_it_was_just_observed() {
    let mut world = start().with(posted("n1", "True", "").created("01:00:00"));
    world.change::<Node>("n1", |node| {
        let conditions = &mut node.status.as_mut().unwrap().conditions;
        conditions.last_mut().unwrap().last_heartbeat_time = Some(at("01:00:00").into());
    });
    let plan = plan_of(&world, "n1", &mut known(&world, "n1"));
    assert!(plan.verbs().is_empty());
    assert_eq!(plan.requeue, Requeue::At(at("12:00:50")));
}

#[test]
fn a_takeover_neither_restarts_a_grace_period_nor_ends_it() {
    let world = start()
        .with(posted("n1", "True", ""))
        .with(posted("other", "True", ""))
        .living("other");
    let plan = world.later(49).plan::<NodeLifecycle>("n1");
    assert_eq!(plan.requeue, Requeue::At(at("12:00:50")));
    let plan = world.later(50).plan::<NodeLifecycle>("n1");
    assert_eq!(plan.verbs(), ["patch nodes/n1/status"]);
}

#[test]
fn the_conditions_of_a_silent_kubelet() {
    let mut world = start()
        .with(posted("n1", "True", ""))
        .with(posted("other", "True", ""))
        .living("other");
    world.change::<Node>("n1", |node| {
        let conditions = &mut node.status.as_mut().unwrap().conditions;
        conditions.retain(|one| one.r#type != "PIDPressure");
        conditions[1].status = "Unknown".to_owned();
    });
    run(&mut world, 51);
    let unknown = |reason: &str, message: &str| {
        Some(("Unknown".to_owned(), reason.to_owned(), message.to_owned()))
    };
    let stopped = unknown("NodeStatusUnknown", "Kubelet stopped posting node status.");
    assert_eq!(said(&world, "n1", "Ready"), stopped);
    assert_eq!(said(&world, "n1", "DiskPressure"), stopped);
    assert_eq!(
        said(&world, "n1", "MemoryPressure"),
        unknown("Kubelet", "said so"),
        "what was unknown stays as it was said"
    );
    assert_eq!(
        said(&world, "n1", "PIDPressure"),
        unknown(
            "NodeStatusNeverUpdated",
            "Kubelet never posted node status."
        )
    );
    assert_eq!(said(&world, "n1", "NetworkUnavailable").unwrap().0, "False");
    let node = world.get::<Node>("n1");
    let conditions = &node.status.as_ref().unwrap().conditions;
    let one = |kind: &str| conditions.iter().find(|one| one.r#type == kind).unwrap();
    assert_eq!(
        one("Ready").last_heartbeat_time,
        Some(at("11:59:55").into())
    );
    assert_eq!(
        one("Ready").last_transition_time,
        Some(at("12:00:50").into())
    );
    assert_eq!(
        one("PIDPressure").last_heartbeat_time,
        Some(at("10:00:00").into())
    );
    let event = "Normal NodeNotReady Node n1 status is now: NodeNotReady";
    assert_eq!(world.events(), [event]);
    let event = crate::events::status(&node, "NodeNotReady");
    assert_eq!(event.about.uid, Object::metadata(&*node).uid);
    assert_eq!(event.about.resource_version, 0, "by name and uid alone");
    // It is not written again.
    let mut later = world.later(1000);
    let mut memory = known(&later, "n1");
    let plan = plan_of(&later, "n1", &mut memory);
    assert!(plan.verbs().is_empty());
    later.change::<Node>("n1", |node| {
        node.status.as_mut().unwrap().conditions[2].status = "False".to_owned();
    });
    assert!(plan_of(&later, "n1", &mut memory).verbs().is_empty());
}

#[test]
fn only_a_node_that_was_ready_is_reported_as_not_ready() {
    let mut world = start()
        .with(posted("n1", "False", ""))
        .with(posted("other", "True", ""))
        .living("other")
        .with(pod("web").on("n1").ready("11:00:00"));
    run(&mut world, 55);
    assert_eq!(ready(&world, "n1"), "Unknown");
    assert!(world.events().is_empty());
    let pod = world.get::<Pod>("web");
    assert!(super::may_be_ready(&pod), "its kubelet had the say before");
}

#[test]
fn pods_of_a_node_that_falls_silent_are_marked_once_each() {
    let mut world = start()
        .with(posted("n1", "True", ""))
        .with(posted("other", "True", ""))
        .living("other")
        .with(pod("web").on("n1").ready("11:00:00"))
        .with(pod("idle").on("n1").running())
        .with(pod("elsewhere").on("other").ready("11:00:00"));
    run(&mut world, 51);
    let is_ready = |world: &World, name: &str| super::may_be_ready(&world.get::<Pod>(name));
    assert!(!is_ready(&world, "web"));
    assert!(is_ready(&world, "elsewhere"));
    let marked = "Warning NodeNotReady Node is not ready";
    let count = |world: &World| world.events().iter().filter(|one| *one == marked).count();
    assert_eq!(count(&world), 1);
    let pod_now = world.get::<Pod>("web");
    let conditions = &pod_now.status.as_ref().unwrap().conditions;
    let since = conditions[0].last_transition_time;
    assert_eq!(since, Some(at("12:00:50").into()));

    // One that comes later is marked too; one whose kubelet says otherwise is left to it.
    let mut memory = known(&world, "n1");
    memory
        .marked
        .insert(Object::metadata(&*pod_now).uid.to_string());
    memory.transition = super::transition(&world.get::<Node>("n1"));
    world.put(pod("late").on("n1").ready("12:00:51"));
    world.change::<Pod>("web", |pod| {
        pod.status.as_mut().unwrap().conditions[0].status = "True".into();
    });
    let plan = plan_of(&world, "n1", &mut memory);
    assert_eq!(plan.verbs(), ["patch pods/late/status"]);
    apply(&mut world, &plan, &mut memory);
    assert_eq!(memory.marked.len(), 2);
    assert!(plan_of(&world, "n1", &mut memory).verbs().is_empty());
    assert_eq!(count(&world), 2);
    // The next silence starts over.
    world.change::<Node>("n1", |node| {
        node.status.as_mut().unwrap().conditions[4].last_transition_time =
            Some(at("12:30:00").into());
    });
    let plan = plan_of(&world, "n1", &mut memory);
    assert_eq!(plan.verbs(), ["patch pods/web/status"]);
}

#[test]
fn a_pod_is_marked_not_ready_unless_its_condition_is_missing_or_false() {
    for (status, expected) in [
        (Some("True"), true),
        (Some("Unknown"), true),
        (Some("False"), false),
        (None, false),
    ] {
        let mut web = pod("web").on("n1").ready("11:00:00");
        let conditions = &mut web.status.as_mut().unwrap().conditions;
        match status {
            Some(status) => conditions[0].status = status.into(),
            None => conditions.clear(),
        }
        let world = start()
            .with(unknown("n1", ""))
            .with(posted("other", "True", ""))
            .living("other")
            .with(web);
        let plan = world.plan::<NodeLifecycle>("n1");
        let marks = plan.verbs().contains(&"patch pods/web/status".to_owned());
        assert_eq!(marks, expected, "{status:?}");
    }
}

#[test]
fn a_write_that_keeps_failing_holds_up_a_node_for_no_longer_than_the_monitor_period() {
    let descriptor = NodeLifecycle::describe();
    let mut flags = Flags::defaults([&descriptor]);
    let longest = |flags: &Flags| descriptor.backoff_with(flags).after(40);
    assert_eq!(longest(&flags), Duration::from_secs(5));
    let period = FlagValue::Duration(Duration::from_secs(2));
    flags.set("node-monitor-period", period);
    assert_eq!(longest(&flags), Duration::from_secs(2));
}

#[test]
fn a_lease_that_is_deleted_takes_no_grace_period_away() {
    let mut world = start()
        .with(posted("n1", "True", ""))
        .with(lease("n1", "11:59:55"))
        .with(posted("other", "True", ""))
        .living("other");
    run(&mut world, 40);
    world.change::<Lease>("kube-node-lease/n1", |lease| {
        lease.spec.get_or_insert_default().renew_time = Some(at("12:00:40").into());
    });
    run(&mut world, 15);
    world.vanish::<Lease>("kube-node-lease/n1");
    run(&mut world, 34);
    assert_eq!(ready(&world, "n1"), "True", "49 s after the last renewal");
    run(&mut world, 2);
    assert_eq!(ready(&world, "n1"), "Unknown");
}

#[test]
fn a_mark_that_failed_is_tried_again() {
    let world = start()
        .with(unknown("n1", ""))
        .with(posted("other", "True", ""))
        .living("other")
        .with(pod("web").on("n1").ready("11:00:00"));
    let mut memory = Memory::default();
    let plan = plan_of(&world, "n1", &mut memory);
    let controller = NodeLifecycle::new(&world.flags([&NodeLifecycle::describe()]));
    let failure = Failure::Other("no".to_owned());
    for action in plan.actions() {
        let result = Err(&failure);
        controller.learn(&Outcome { action, result }, &mut memory);
    }
    let again = plan_of(&world, "n1", &mut memory);
    assert!(again.verbs().contains(&"patch pods/web/status".to_owned()));
}

#[test]
fn taints_without_effect_on_what_runs_follow_the_conditions() {
    for (changes, unschedulable, expected) in [
        (vec![], false, vec![]),
        (
            vec![("Ready", "False")],
            false,
            vec!["not-ready:NoSchedule"],
        ),
        (
            vec![("Ready", "Unknown")],
            false,
            vec!["unreachable:NoSchedule"],
        ),
        (
            vec![("MemoryPressure", "True")],
            false,
            vec!["memory-pressure:NoSchedule"],
        ),
        (
            vec![("DiskPressure", "True")],
            false,
            vec!["disk-pressure:NoSchedule"],
        ),
        (
            vec![("PIDPressure", "True")],
            false,
            vec!["pid-pressure:NoSchedule"],
        ),
        (
            vec![("NetworkUnavailable", "True")],
            false,
            vec!["network-unavailable:NoSchedule"],
        ),
        (vec![("MemoryPressure", "Unknown")], false, vec![]),
        (vec![], true, vec!["unschedulable:NoSchedule"]),
        (
            vec![("DiskPressure", "True"), ("Ready", "False")],
            true,
            vec![
                "disk-pressure:NoSchedule",
                "not-ready:NoSchedule",
                "unschedulable:NoSchedule",
            ],
        ),
    ] {
        let mut node = posted("n1", "True", "");
        for (kind, status) in &changes {
            let conditions = &mut node.status.as_mut().unwrap().conditions;
            let one = conditions
                .iter_mut()
                .find(|one| one.r#type == *kind)
                .unwrap();
            one.status = (*status).to_owned();
        }
        node.spec.as_mut().unwrap().unschedulable = unschedulable;
        // Some that are out of date, and some of others.
        let node = node
            .taint("node.kubernetes.io/memory-pressure", "", "NoExecute")
            .taint(
                "node.kubernetes.io/network-unavailable",
                "",
                "PreferNoSchedule",
            )
            .taint("mine", "", "NoSchedule")
            .taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
            .taint("node.kubernetes.io/pid-pressure", "", "NoSchedule");
        let mut world = start()
            .with(node)
            .living("n1")
            .with(posted("other", "True", ""))
            .living("other");
        world.run::<NodeLifecycle>();
        let mut held = taints(&world, "n1");
        held.retain(|one| one.ends_with(":NoSchedule") && !one.starts_with("mine"));
        held.sort();
        let mut expected = expected;
        expected.sort_unstable();
        assert_eq!(held, expected, "{changes:?} {unschedulable}");
        for other in [
            "memory-pressure:NoExecute",
            "network-unavailable:PreferNoSchedule",
            "mine:NoSchedule",
        ] {
            assert!(taints(&world, "n1").contains(&other.to_owned()), "{other}");
        }
    }
}

#[test]
fn old_names_of_labels_follow_the_new_ones() {
    for (labels, expected) in [
        (vec![], vec![]),
        (
            vec![
                ("kubernetes.io/os", "linux"),
                ("kubernetes.io/arch", "arm64"),
            ],
            vec![
                ("beta.kubernetes.io/os", "linux"),
                ("beta.kubernetes.io/arch", "arm64"),
            ],
        ),
        (
            vec![
                ("kubernetes.io/os", "linux"),
                ("beta.kubernetes.io/os", "windows"),
            ],
            vec![("beta.kubernetes.io/os", "linux")],
        ),
        (
            vec![("beta.kubernetes.io/os", "windows")],
            vec![("beta.kubernetes.io/os", "windows")],
        ),
    ] {
        let mut node = posted("n1", "True", "");
        for (key, value) in &labels {
            node = node.label(key, value);
        }
        let mut world = start().with(node).living("n1");
        world.run::<NodeLifecycle>();
        let node = world.get::<Node>("n1");
        for (key, value) in expected {
            assert_eq!(Object::metadata(&*node).label(key), Some(value));
        }
        if labels.is_empty() {
            assert_eq!(
                Object::metadata(&*node).label("beta.kubernetes.io/os"),
                None
            );
        }
    }
}

#[test]
fn a_zone_is_named_by_old_and_new_labels() {
    let zone = |labels: &[(&str, &str)]| {
        let mut node = node("n1");
        for (key, value) in labels {
            node = node.label(key, value);
        }
        let zone = Zone::of(&node);
        assert_eq!(Zone::of_key(&zone.key()), Some(zone.clone()));
        zone.label()
    };
    let (old_zone, new_zone) = (
        "failure-domain.beta.kubernetes.io/zone",
        "topology.kubernetes.io/zone",
    );
    let region = "topology.kubernetes.io/region";
    assert_eq!(zone(&[]), "");
    assert_eq!(zone(&[(new_zone, "a")]), ":\0:a");
    assert_eq!(zone(&[(region, "eu"), (new_zone, "a")]), "eu:\0:a");
    assert_eq!(zone(&[(old_zone, "b"), (new_zone, "a")]), ":\0:b");
    assert_eq!(zone(&[(region, "eu")]), "eu:\0:");
    assert_eq!(Zone::of_key(&controllers_kit::Key::cluster("n1")), None);
}

#[test]
fn keys_of_zones_are_placed_apart_from_nodes_of_the_same_name() {
    let descriptor = NodeLifecycle::describe();
    let golden = [
        (Zone::of(&node("n1")).key(), "zone/:"),
        (
            Zone::of(&node("n1").label("topology.kubernetes.io/zone", "a")).key(),
            "zone/:a",
        ),
        (controllers_kit::Key::cluster("zone"), "zone"),
    ];
    for (key, text) in golden {
        assert_eq!(
            std::str::from_utf8(&descriptor.shard_text(&key)),
            Ok(text),
            "golden: a change of it moves the key"
        );
        assert_eq!(controllers_kit::Key::parse(&key.to_string()), key);
    }
}

#[test]
fn the_state_of_a_zone_and_its_pace() {
    for (healthy, ill, expected) in [
        (0, 0, State::Normal),
        (1, 0, State::Normal),
        (0, 1, State::Full),
        (0, 5, State::Full),
        (1, 2, State::Normal),
        (1, 3, State::Partial),
        (3, 3, State::Normal),
        (9, 11, State::Partial),
        (10, 11, State::Normal),
        (100, 2, State::Normal),
    ] {
        assert_eq!(state(healthy, ill, 0.55), expected, "{healthy} and {ill}");
    }
    let flags = Flags::defaults([&NodeLifecycle::describe()]);
    let pace = NodeLifecycle::new(&flags).pace;
    for (of, nodes, rate) in [
        (State::Normal, 3, 0.1),
        (State::Full, 3, 0.1),
        (State::Partial, 50, 0.0),
        (State::Partial, 51, 0.01),
    ] {
        let found = pace.rate(of, nodes);
        assert!((found - rate).abs() < f64::EPSILON, "{of:?} {nodes}");
    }
}

/// A zone of ill nodes, and another that is well.
fn ill_zone(ill: usize, well: usize) -> World {
    let mut world = start().with(posted("far", "True", "b")).living("far");
    for number in 0..ill {
        world.put(unknown(&format!("ill-{number:02}"), "a"));
    }
    for number in 0..well {
        let name = format!("well-{number:02}");
        world.put(posted(&name, "True", "a"));
        world.live(&name);
    }
    world
}

#[test]
fn a_zone_drives_away_the_pods_of_one_node_in_ten_seconds() {
    // The first waits for one interval too.
    for (seconds, expected) in [
        (9, 0),
        (10, 1),
        (19, 1),
        (20, 2),
        (29, 2),
        (40, 4),
        (100, 4),
    ] {
        let mut world = ill_zone(4, 8);
        run(&mut world, seconds);
        assert_eq!(driven(&world).len(), expected, "{seconds} s");
        for number in 0..expected {
            assert_eq!(
                taints(&world, &format!("ill-{number:02}")),
                ["unreachable:NoSchedule", "unreachable:NoExecute"]
            );
        }
    }
}

#[test]
fn a_zone_that_is_partly_ill_slows_down_or_stops_and_one_that_is_wholly_ill_does_not() {
    for (name, ill, well, seconds, expected) in [
        ("small", 6, 2, 600, 0),
        ("large", 40, 15, 100, 1),
        ("large, later", 40, 15, 200, 2),
        ("wholly ill", 5, 0, 30, 3),
    ] {
        let mut world = ill_zone(ill, well);
        run(&mut world, seconds);
        assert_eq!(driven(&world).len(), expected, "{name}");
    }
}

/// One node's name, its zone, and what its kubelet says: of upstream's zone states.
type Row = (&'static str, &'static str, &'static str);

/// The state of each zone, and whether a node may be tainted anywhere.
fn states(rows: &[Row]) -> (Vec<(&'static str, State)>, bool) {
    let mut world = start();
    for (name, zone, ready) in rows {
        world.put(posted(name, ready, zone));
    }
    let mut zones: Vec<&str> = rows.iter().map(|(_, zone, _)| *zone).collect();
    zones.dedup();
    let states = zones.iter().map(|zone| {
        let of_zone = rows.iter().filter(|(_, of, _)| of == zone);
        let healthy = of_zone.clone().filter(|(.., ready)| *ready == "True");
        let ill = of_zone.clone().count() - healthy.clone().count();
        (*zone, state(healthy.count(), ill, 0.55))
    });
    let states = states.collect();
    (states, !super::all_down(&world.all::<Node>()))
}

#[test]
fn zones_fall_ill_and_recover_as_in_upstream_s_table() {
    use State::{Full, Normal, Partial};
    type Expected = (Vec<(&'static str, State)>, bool);
    type Case = (&'static str, Vec<Row>, Expected, Vec<Row>, Expected);
    let cases: Vec<Case> = vec![
        (
            "no disruption",
            vec![("n0", "a", "True")],
            (vec![("a", Normal)], true),
            vec![("n0", "a", "True")],
            (vec![("a", Normal)], true),
        ),
        (
            "both zones down, one comes back",
            vec![("n0", "a", "Unknown"), ("n1", "b", "Unknown")],
            (vec![("a", Full), ("b", Full)], false),
            vec![("n0", "a", "Unknown"), ("n1", "b", "True")],
            (vec![("a", Full), ("b", Normal)], true),
        ),
        (
            "one zone down, the other partly ill afterwards",
            vec![
                ("n0", "a", "Unknown"),
                ("n1", "b", "True"),
                ("n2", "b", "True"),
                ("n3", "b", "True"),
                ("n4", "b", "True"),
            ],
            (vec![("a", Full), ("b", Normal)], true),
            vec![
                ("n0", "a", "Unknown"),
                ("n1", "b", "Unknown"),
                ("n2", "b", "Unknown"),
                ("n3", "b", "Unknown"),
                ("n4", "b", "True"),
            ],
            (vec![("a", Full), ("b", Partial)], true),
        ),
        (
            "the only zone goes down",
            vec![("n0", "a", "True"), ("n1", "a", "True")],
            (vec![("a", Normal)], true),
            vec![("n0", "a", "Unknown"), ("n1", "a", "Unknown")],
            (vec![("a", Full)], false),
        ),
        (
            "one zone stays down while the other is well",
            vec![("n0", "a", "Unknown"), ("n1", "b", "True")],
            (vec![("a", Full), ("b", Normal)], true),
            vec![("n0", "a", "Unknown"), ("n1", "b", "True")],
            (vec![("a", Full), ("b", Normal)], true),
        ),
        (
            "nodes that say False count as those that say nothing",
            vec![("n0", "a", "False"), ("n1", "a", ""), ("n2", "a", "True")],
            (vec![("a", Normal)], true),
            vec![
                ("n0", "a", "False"),
                ("n1", "a", ""),
                ("n2", "a", "Unknown"),
            ],
            (vec![("a", Full)], false),
        ),
    ];
    for (name, before, expected_before, after, expected_after) in cases {
        assert_eq!(states(&before), expected_before, "{name}: before");
        assert_eq!(states(&after), expected_after, "{name}: after");
    }
}

#[test]
fn the_rate_is_a_flag() {
    let mut world = ill_zone(5, 9).flag("node-eviction-rate", FlagValue::Float(2.0));
    run(&mut world, 2);
    assert_eq!(driven(&world).len(), 4);
    for rate in [0.0, -1.0, f64::MIN_POSITIVE] {
        let mut world = ill_zone(5, 9).flag("node-eviction-rate", FlagValue::Float(rate));
        run(&mut world, 1000);
        assert!(driven(&world).is_empty(), "{rate}");
    }
    // Faster than a clock's resolution.
    let mut world = ill_zone(5, 9).flag("node-eviction-rate", FlagValue::Float(1e12));
    run(&mut world, 1);
    assert_eq!(driven(&world).len(), 5);
}

#[test]
fn the_rate_holds_when_the_zone_s_owner_is_lost_and_when_it_hands_over() {
    let mut world = ill_zone(6, 12);
    let key = "zone/:a";
    let mut memory = known(&world, key);
    world = world.later(10);
    let plan = plan_of(&world, key, &mut memory);
    assert_eq!(plan.verbs(), ["patch nodes/ill-00"]);
    apply(&mut world, &plan, &mut memory);
    // Another replica takes over right afterwards: it knows nothing of that, and has its own clock.
    world = world.later(1);
    let mut fresh = Memory::default();
    for second in [0, 5, 9] {
        let plan = plan_of(&world.later(second), key, &mut fresh);
        assert!(plan.verbs().is_empty(), "{second} s after the takeover");
    }
    let plan = plan_of(&world.later(10), key, &mut fresh);
    assert_eq!(plan.verbs(), ["patch nodes/ill-01"]);
    // What is handed over is moved with the clocks.
    let flags = Flags::defaults([&NodeLifecycle::describe()]);
    NodeLifecycle::new(&flags).shift(&mut memory, SignedDuration::from_secs(-3));
    let plan = plan_of(&world.later(5), key, &mut memory);
    assert!(plan.verbs().is_empty());
    let plan = plan_of(&world.later(6), key, &mut memory);
    assert_eq!(plan.verbs(), ["patch nodes/ill-01"]);
}

#[test]
fn a_taint_that_was_not_added_gives_its_turn_back_and_one_in_doubt_does_not() {
    let world = ill_zone(3, 6).later(0);
    let key = "zone/:a";
    let controller = NodeLifecycle::new(&world.flags([&NodeLifecycle::describe()]));
    for (failure, again) in [
        (Failure::Conflict("changed".to_owned()), true),
        (Failure::Timeout("no answer".to_owned()), false),
    ] {
        let mut memory = known(&world, key);
        let then = world.later(10);
        let plan = plan_of(&then, key, &mut memory);
        for action in plan.actions() {
            let result = Err(&failure);
            controller.learn(&Outcome { action, result }, &mut memory);
        }
        let plan = plan_of(&then.later(1), key, &mut memory);
        assert_eq!(!plan.verbs().is_empty(), again, "{failure}");
    }
}

#[test]
fn taints_that_drive_away_are_exchanged_at_once_and_removed_from_a_ready_node() {
    for (status, held, expected) in [
        ("False", UNREACHABLE, vec!["not-ready:NoExecute"]),
        ("Unknown", NOT_READY, vec!["unreachable:NoExecute"]),
        ("False", NOT_READY, vec!["not-ready:NoExecute"]),
        ("Unknown", UNREACHABLE, vec!["unreachable:NoExecute"]),
        ("True", UNREACHABLE, vec![]),
        ("True", NOT_READY, vec![]),
    ] {
        let mut world = start()
            .with(
                posted("n1", status, "a")
                    .taint(held, "", "NoExecute")
                    .taint("mine", "", "NoExecute"),
            )
            .living("n1")
            .with(posted("other", "True", "a"))
            .living("other");
        world.run::<NodeLifecycle>();
        let mut found = taints(&world, "n1");
        assert!(found.contains(&"mine:NoExecute".to_owned()));
        found.retain(|one| one.ends_with("NoExecute") && !one.starts_with("mine"));
        assert_eq!(found, expected, "{status} with {held}");
        let node = world.get::<Node>("n1");
        let exchanged = node.spec.as_ref().unwrap().taints.iter();
        for taint in exchanged.filter(|taint| taint.key != held && taint.key != "mine") {
            assert_eq!(taint.time_added, Some(at("12:00:00").into()));
        }
    }
}

#[test]
fn a_taint_that_was_removed_by_hand_comes_back_at_the_zone_s_pace() {
    let mut world = ill_zone(1, 3);
    run(&mut world, 11);
    assert_eq!(driven(&world), ["ill-00"]);
    world.change::<Node>("ill-00", |node| {
        node.spec
            .as_mut()
            .unwrap()
            .taints
            .retain(|taint| taint.effect != "NoExecute");
    });
    run(&mut world, 11);
    assert_eq!(driven(&world), ["ill-00"]);
}

#[test]
fn when_no_node_is_ready_any_more_nobody_is_driven_away() {
    let mut world = start();
    for (name, zone) in [("n1", "a"), ("n2", "a"), ("n3", "b")] {
        world.put(posted(name, "True", zone));
        world.live(name);
    }
    world.put(unknown("old", "b").taint(UNREACHABLE, "", "NoExecute"));
    run(&mut world, 20);
    assert_eq!(driven(&world), ["old"]);
    for name in ["n1", "n2", "n3"] {
        world.fall_silent(name);
    }
    run(&mut world, 300);
    assert_eq!(ready(&world, "n1"), "Unknown");
    assert!(driven(&world).is_empty(), "{:?}", driven(&world));
    // The first that comes back starts it again.
    world.live("n1");
    world.change::<Node>("n1", |node| {
        node.status.as_mut().unwrap().conditions[4].status = "True".to_owned();
    });
    run(&mut world, 60);
    assert!(driven(&world).len() >= 2, "{:?}", driven(&world));
    assert_eq!(taints(&world, "n1"), Vec::<String>::new());
}

#[test]
fn a_node_that_is_excluded_says_nothing_of_its_zone() {
    let excluded = |name: &str, status: &str| {
        posted(name, status, "a").label("node.kubernetes.io/exclude-disruption", "")
    };
    // The one that is ready does not count: all are down.
    let mut world = start()
        .with(excluded("n1", "True"))
        .living("n1")
        .with(unknown("n2", "a"));
    run(&mut world, 100);
    assert!(driven(&world).is_empty());
    // Those that are ill do not count: the zone is well, and they are driven all the same.
    let mut world = start().with(posted("n1", "True", "a")).living("n1");
    for name in ["n2", "n3", "n4", "n5"] {
        world.put(excluded(name, "Unknown"));
    }
    run(&mut world, 41);
    assert_eq!(driven(&world).len(), 4);
}

#[test]
fn a_node_s_coming_and_going_is_recorded() {
    let mut world = start().with(node("n1").created("12:00:00"));
    let mut memory = Memory::default();
    let plan = plan_of(&world, "n1", &mut memory);
    apply(&mut world, &plan, &mut memory);
    let registered = "Normal RegisteredNode Node n1 event: Registered Node n1 in Controller";
    assert_eq!(world.events(), [registered]);
    let plan = plan_of(&world, "n1", &mut memory);
    assert!(plan.events.is_empty(), "once");
    let uid = Object::metadata(&*world.get::<Node>("n1")).uid.clone();
    world.vanish::<Node>("n1");
    let plan = plan_of(&world, "n1", &mut memory);
    assert_eq!(plan.events[0].reason, "RemovingNode");
    assert_eq!(
        plan.events[0].message,
        "Node n1 event: Removing Node n1 from Controller"
    );
    assert_eq!(plan.events[0].about.uid, uid);
    assert_eq!(memory, Memory::default());
    // A kubelet that was ready before this controller's first plan makes no difference.
    for ready in ["True", "False", "Unknown"] {
        let young = start().with(posted("n1", ready, "").created("11:59:55"));
        let plan = young.plan::<NodeLifecycle>("n1");
        assert_eq!(plan.events[0].reason, "RegisteredNode", "{ready}");
    }
    // An old one with a previous owner is not recorded again.
    let old = start().with(posted("n1", "True", ""));
    assert!(old.plan::<NodeLifecycle>("n1").events.is_empty());
}

#[test]
fn a_zone_is_measured() {
    let world = ill_zone(1, 3);
    let plan = world.plan::<NodeLifecycle>("zone/:a");
    let measured: Vec<_> = plan
        .measures
        .iter()
        .map(|one| {
            assert_eq!(one.labels, [":\0:a"]);
            (one.name, one.value)
        })
        .collect();
    assert_eq!(
        measured,
        [
            (super::SIZE, 4.0),
            (super::HEALTH, 75.0),
            (super::UNHEALTHY, 1.0),
            (super::EVICTIONS, 0.0),
        ]
    );
    let mut memory = known(&world, "zone/:a");
    let plan = plan_of(&world.later(10), "zone/:a", &mut memory);
    let action = plan.actions().next().unwrap();
    let measures = &action.announcement.as_ref().unwrap().measures;
    assert_eq!(
        (measures[0].name, measures[0].value),
        (super::EVICTIONS, 1.0)
    );
    // A zone that has gone is measured no more.
    let empty = start().plan::<NodeLifecycle>("zone/:a");
    assert!(empty.measures.is_empty());
}

#[test]
fn heartbeats_wake_nobody() {
    let mut world = start().with(posted("n1", "True", "")).living("n1");
    world.run::<NodeLifecycle>();
    world.change::<Node>("n1", |node| {
        for one in &mut node.status.as_mut().unwrap().conditions {
            one.last_heartbeat_time = Some(at("12:10:00").into());
        }
    });
    let node = world.get::<Node>("n1");
    let mut other = Node::clone(&node);
    other.status.as_mut().unwrap().conditions[0].last_heartbeat_time = None;
    let change = controllers_kit::Change {
        old: Some(&*node),
        new: Some(&other),
    };
    assert!(super::woken_by_node(&change, &world).is_empty());
}

#[test]
fn a_write_is_for_the_version_that_was_seen() {
    let world = ill_zone(1, 3).later(100);
    let silent = start()
        .with(posted("n1", "True", ""))
        .with(posted("other", "True", ""))
        .living("other")
        .later(60);
    let mut memory = known(&ill_zone(1, 3), "zone/:a");
    for plan in [
        plan_of(&world, "zone/:a", &mut memory),
        silent.plan::<NodeLifecycle>("n1"),
        world.plan::<NodeLifecycle>("ill-00"),
    ] {
        assert!(plan.actions().count() > 0);
        for action in plan.actions() {
            assert_ne!(action.resource_version, 0, "{action}");
        }
    }
}

#[test]
fn defaults_are_upstream_s() {
    let flags = Flags::defaults([&NodeLifecycle::describe()]);
    let controller = NodeLifecycle::new(&flags);
    assert_eq!(controller.grace, Duration::from_secs(50));
    assert_eq!(controller.startup, Duration::from_secs(60));
    assert_eq!(controller.period, Duration::from_secs(5));
    assert_eq!(controller.pace.large, 50);
}
