use std::{cell::RefCell, collections::BTreeSet};

use controllers_kit::{
    Factory, Plan, Requeue, Verb,
    cloud::{Address, Call, Outcome, Refused},
    testing::{World, at},
};
use kubernetes_proto::core::{NodeAddress, NodeCondition};

use super::{routes::*, *};
use crate::tests::{Bed, answer, route, routed, with_ranges};

const RANGES: &str = "10.120.0.0/16,a00::/8";

fn addressed(name: &str, cidrs: &[&str], address: &str) -> Node {
    let mut node = routed(name, cidrs);
    node.status.get_or_insert_default().addresses = vec![NodeAddress {
        r#type: "InternalIP".to_owned(),
        address: address.to_owned(),
    }];
    node
}

fn compared(name: &str, node: &str, cidr: &str, address: &str) -> Route {
    Route {
        compare_addresses: true,
        target_addresses: vec![Address {
            r#type: "InternalIP".to_owned(),
            address: address.to_owned(),
        }],
        ..route(name, node, cidr)
    }
}

fn blackhole(name: &str, cidr: &str) -> Route {
    Route {
        blackhole: true,
        ..route(name, "", cidr)
    }
}

/// A cloud that does what it is asked.
#[derive(Default)]
struct Cloud {
    routes: RefCell<Vec<Route>>,
    /// Calls that fail, by name and destination.
    refuses: BTreeSet<(&'static str, &'static str)>,
    /// Lists what it had at the beginning.
    lags: Option<Vec<Route>>,
}

impl Cloud {
    fn of(routes: &[Route]) -> Self {
        Self {
            routes: RefCell::new(routes.to_vec()),
            ..Self::default()
        }
    }

    fn call(&self, call: &Call) -> Outcome {
        let refuses = |destination: &str| {
            self.refuses
                .iter()
                .any(|(name, of)| *name == call.deed.name() && *of == destination)
        };
        let mut routes = self.routes.borrow_mut();
        match &call.deed {
            Deed::ListRoutes if refuses("") => Err(Refused::new(Reason::Failed, "down")),
            Deed::ListRoutes => Ok(Reply::Routes(self.lags.clone().unwrap_or(routes.clone()))),
            Deed::CreateRoute { route, .. } if refuses(&route.destination) => {
                Err(Refused::new(Reason::Failed, "quota"))
            }
            Deed::CreateRoute { route, hint } => {
                assert!(!hint.is_empty());
                let name = format!("made-{}", routes.len());
                routes.push(Route {
                    name,
                    ..route.clone()
                });
                Ok(Reply::Done)
            }
            Deed::DeleteRoute { route } if refuses(&route.destination) => {
                Err(Refused::new(Reason::Failed, "busy"))
            }
            Deed::DeleteRoute { route } => {
                routes.retain(|one| one != route);
                Ok(Reply::Done)
            }
            other => panic!("{other:?}"),
        }
    }

    fn all(&self) -> Vec<String> {
        let mut all: Vec<String> = self
            .routes
            .borrow()
            .iter()
            .map(|route| format!("{} {}", route.target_node, route.destination))
            .collect();
        all.sort();
        all
    }
}

fn bed(world: World) -> Bed<NodeRoute> {
    Bed::new(world, "routes")
}

/// Steps until the round ends; the last plan, and the events on the way.
fn round(bed: &mut Bed<NodeRoute>, cloud: &Cloud) -> (Plan, Vec<String>) {
    let mut reported = Vec::new();
    for _ in 0..20 {
        let plan = bed.step(|call| cloud.call(call)).unwrap();
        reported.extend(plan.events.iter().map(|event| event.message.clone()));
        if plan.requeue != Requeue::Now {
            return (plan, reported);
        }
    }
    panic!("the round never ends");
}

/// Nodes with their condition, as a plan writes it.
fn written(plan: &Plan) -> Vec<String> {
    plan.actions()
        .map(|action| match &action.verb {
            Verb::Patch { patch, .. } => {
                let condition = &patch["status"]["conditions"][0];
                assert_eq!(condition["type"], "NetworkUnavailable");
                let text = |name: &str| condition[name].as_str().unwrap().to_owned();
                format!("{} {} {}", action.key, text("status"), text("reason"))
            }
            other => panic!("{other:?}"),
        })
        .collect()
}

#[test]
fn routes_become_those_of_the_nodes() {
    let (v4, v6) = (
        ["10.120.0.0/24", "10.120.1.0/24"],
        ["a00:100::/24", "a00:200::/24"],
    );
    let nodes = || {
        [
            addressed("a", &[v4[0], v6[0]], "10.0.3.1"),
            addressed("b", &[v4[1], v6[1]], "10.0.4.1"),
        ]
    };
    let right = [
        route("1", "a", v4[0]),
        route("2", "a", v6[0]),
        route("3", "b", v4[1]),
        route("4", "b", v6[1]),
    ];
    let swapped = [route("1", "b", v4[0]), route("2", "a", v4[1])];
    let moved = right
        .clone()
        .map(|one| compared(&one.name, &one.target_node, &one.destination, "10.0.9.9"));
    let bare = right.clone().map(|one| Route {
        compare_addresses: true,
        ..one
    });
    let rows: [(&str, Vec<Route>, [usize; 2]); 9] = [
        ("none", vec![], [0, 4]),
        ("all", right.to_vec(), [0, 0]),
        ("some", vec![right[0].clone(), right[3].clone()], [0, 2]),
        ("of the wrong node", swapped.to_vec(), [2, 4]),
        ("with other addresses", moved.to_vec(), [4, 4]),
        ("without addresses, which count", bare.to_vec(), [4, 4]),
        (
            "of nodes that are gone",
            [
                &right[..],
                &[
                    route("x", "c", "10.120.7.0/24"),
                    route("y", "c", "a00:300::/24"),
                ],
            ]
            .concat(),
            [2, 0],
        ),
        (
            "blackhole in the cluster's range",
            [&right[..], &[blackhole("x", "10.120.9.0/24")]].concat(),
            [1, 0],
        ),
        (
            "without a target",
            [&right[..], &[route("x", "", "10.120.9.0/24")]].concat(),
            [1, 0],
        ),
    ];
    for (what, listed, [deleted, created]) in rows {
        let [a, b] = nodes();
        let mut bed = bed(with_ranges(RANGES).with(a).with(b));
        let cloud = Cloud::of(&listed);
        let (plan, reported) = round(&mut bed, &cloud);
        let count = |name: &str| bed.calls.iter().filter(|call| **call == name).count();
        assert_eq!(
            [count("DeleteRoute"), count("CreateRoute")],
            [deleted, created],
            "{what}"
        );
        let wanted: Vec<String> = right
            .iter()
            .map(|route| format!("{} {}", route.target_node, route.destination))
            .collect();
        assert_eq!(cloud.all(), wanted, "{what}");
        assert_eq!(
            written(&plan),
            ["a False RouteCreated", "b False RouteCreated"],
            "{what}"
        );
        assert!(reported.is_empty() && plan.failure.is_none());
        assert_eq!(plan.requeue, Requeue::At(at("12:00:10")));
    }
}

#[test]
fn routes_outside_the_cluster_s_ranges_are_left_alone() {
    let foreign = [
        route("x", "nobody", "10.224.0.0/24"),
        blackhole("y", "10.1.2.0/24"),
        route("z", "nobody", "nonsense"),
    ];
    let mut bed = bed(with_ranges(RANGES).with(routed("a", &["10.120.0.0/24"])));
    let cloud = Cloud::of(&foreign);
    round(&mut bed, &cloud);
    assert_eq!(cloud.all().len(), 4);
}

#[test]
fn which_routes_are_ours() {
    for (cluster, destination, ours) in [
        ("10.244.0.0/16", "10.244.0.0/24", true),
        ("10.244.0.0/16", "10.244.255.0/24", true),
        ("10.244.0.0/14", "10.247.255.0/24", true),
        ("a00:100::/10", "a00:100::/24", true),
        ("10.244.0.0/16", "10.224.0.0/24", false),
        ("10.244.0.0/16", "10.0.10.0/24", false),
        ("10.244.0.0/14", "10.248.0.0/24", false),
        ("10.244.0.0/14", "10.243.255.0/24", false),
        ("a00:100::/10", "b00:100::/24", false),
    ] {
        let found = is_ours(&route("r", "n", destination), &clusters(cluster).unwrap());
        assert_eq!(found, ours, "{cluster} {destination}");
    }
}

#[test]
fn ranges_are_one_or_one_of_each_family() {
    for (text, count) in [
        ("", 0),
        ("10.0.0.0/8", 1),
        (RANGES, 2),
        ("a00::/8,10.0.0.0/8", 2),
    ] {
        assert_eq!(clusters(text).unwrap().len(), count, "{text}");
    }
    for (text, why) in [
        ("10.0.0.0", "invalid CIDR address"),
        ("10.0.0.0/8,", "invalid CIDR address"),
        ("10.0.0.0/8,10.1.0.0/16", "not configured as dual stack"),
        ("10.0.0.0/8,a00::/8,b00::/8", "more than max allowed of 2"),
    ] {
        let found = clusters(text).unwrap_err();
        assert!(found.contains(why), "{text}: {found}");
    }
}

#[test]
fn the_controller_runs_with_a_provider_ranges_and_the_flag() {
    use controllers_kit::FlagValue;
    let runs = |world: World| {
        let descriptor = NodeRoute::describe();
        (descriptor.runs)(&world.flags([&descriptor]))
    };
    assert_eq!(runs(with_ranges(RANGES)), Runs::Yes);
    let off = with_ranges(RANGES).flag("configure-cloud-routes", FlagValue::Bool(false));
    assert!(matches!(runs(off), Runs::No(why) if why.contains("--configure-cloud-routes: false")));
    assert!(matches!(runs(with_ranges("")), Runs::No(why) if why.contains("--cluster-cidr")));
    assert!(matches!(runs(with_ranges("nonsense")), Runs::Wrong(_)));
}

#[test]
fn a_route_that_can_t_be_created_is_reported_and_tried_in_the_next_round() {
    let mut bed = bed(with_ranges(RANGES)
        .with(routed("a", &["10.120.0.0/24"]))
        .with(routed("b", &["10.120.1.0/24"])));
    let mut cloud = Cloud::default();
    cloud.refuses.insert(("CreateRoute", "10.120.1.0/24"));
    let (plan, reported) = round(&mut bed, &cloud);
    assert_eq!(reported.len(), 1);
    assert!(
        reported[0].starts_with("Could not create route "),
        "{reported:?}"
    );
    assert!(
        reported[0].ends_with(" 10.120.1.0/24 for node b after 2ms: quota"),
        "{reported:?}"
    );
    assert_eq!(
        written(&plan),
        ["a False RouteCreated", "b True NoRouteCreated"]
    );
    assert_eq!(plan.failure.as_ref(), Some(&reported[0]));
    cloud.refuses.clear();
    let (plan, _) = round(&mut bed, &cloud);
    // The cache still shows no condition.
    assert_eq!(
        written(&plan),
        ["a False RouteCreated", "b False RouteCreated"]
    );
    assert_eq!(cloud.all(), ["a 10.120.0.0/24", "b 10.120.1.0/24"]);
}

#[test]
fn a_list_that_lags_creates_nothing_twice() {
    let mut bed = bed(with_ranges(RANGES).with(routed("a", &["10.120.0.0/24"])));
    let gone = route("x", "nobody", "10.120.5.0/24");
    let mut cloud = Cloud::of(std::slice::from_ref(&gone));
    cloud.lags = Some(vec![gone]);
    let (plan, _) = round(&mut bed, &cloud);
    assert_eq!(written(&plan), ["a False RouteCreated"]);
    assert_eq!(
        bed.calls,
        ["ListRoutes", "DeleteRoute", "CreateRoute", "ListRoutes"]
    );
}

#[test]
fn a_route_goes_only_where_no_node_has_its_block() {
    let mut bed = bed(with_ranges(RANGES).with(addressed("a", &["10.120.0.0/24"], "10.0.0.1")));
    let cloud = Cloud::of(&[
        route("x", "gone", "10.120.5.0/24"),
        compared("y", "a", "10.120.0.0/24", "10.0.0.9"),
        blackhole("z", "10.120.6.0/24"),
    ]);
    let guards = RefCell::new(Vec::new());
    for _ in 0..2 {
        bed.step(|call| {
            guards.borrow_mut().push(call.guard.clone());
            cloud.call(call)
        })
        .unwrap();
    }
    let not_routed = |node: &str, cidr: &str, addresses: Option<&str>| Guard::NotRouted {
        node: node.to_owned(),
        cidr: cidr.to_owned(),
        addresses: addresses.map(|address| {
            vec![Address {
                r#type: "InternalIP".to_owned(),
                address: address.to_owned(),
            }]
        }),
    };
    let mut wanted = vec![
        Guard::Nothing,
        not_routed("gone", "10.120.5.0/24", None),
        not_routed("a", "10.120.0.0/24", Some("10.0.0.9")),
        not_routed("", "", None),
    ];
    let mut guards = guards.into_inner();
    guards.sort();
    wanted.sort();
    assert_eq!(guards, wanted);
}

#[test]
fn a_deletion_that_was_refused_ends_the_round_with_a_failure() {
    let mut bed = bed(with_ranges(RANGES).with(routed("a", &[])));
    let mut cloud = Cloud::of(&[route("x", "gone", "10.120.5.0/24")]);
    cloud.refuses.insert(("DeleteRoute", "10.120.5.0/24"));
    let (plan, _) = round(&mut bed, &cloud);
    let why = "Could not delete route x 10.120.5.0/24: busy";
    assert_eq!(plan.failure.as_deref(), Some(why));
    assert_eq!(cloud.all().len(), 1);
}

#[test]
fn a_node_without_blocks_is_unavailable_only_where_routes_lead_to_it() {
    let mut bed = bed(with_ranges(RANGES)
        .with(routed("a", &[]))
        .with(routed("b", &[])));
    let cloud = Cloud::of(&[route("x", "b", "10.120.5.0/24")]);
    let plan = bed.step(|call| cloud.call(call)).unwrap();
    assert_eq!(plan.requeue, Requeue::Now);
    let decision = decide(
        &bed.world.all::<Node>(),
        &[route("x", "b", "10.224.0.0/24")],
        &clusters(RANGES).unwrap(),
        &Tried::default(),
    );
    assert!(decision.deletions.is_empty());
    assert_eq!(decision.conditions, [("b".to_owned(), false)].into());
}

#[test]
fn a_block_that_a_node_names_twice_has_one_route() {
    let twice = routed("a", &["10.120.0.0/24", "10.120.0.0/24"]);
    let mut bed = bed(with_ranges(RANGES).with(twice));
    let cloud = Cloud::default();
    let (plan, _) = round(&mut bed, &cloud);
    assert_eq!(cloud.all(), ["a 10.120.0.0/24"]);
    assert_eq!(written(&plan), ["a False RouteCreated"]);
}

#[test]
fn a_condition_that_is_right_is_not_written_again() {
    let with = |status: &str, reason: &str| {
        let mut node = routed("a", &["10.120.0.0/24"]);
        let conditions = &mut node.status.get_or_insert_default().conditions;
        conditions.push(NodeCondition {
            r#type: "NetworkUnavailable".to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            ..Default::default()
        });
        node
    };
    for (status, reason, count) in [
        ("False", "RouteCreated", 0),
        ("False", "Other", 1),
        ("True", "NoRouteCreated", 1),
        ("Unknown", "RouteCreated", 1),
    ] {
        let mut bed = bed(with_ranges(RANGES).with(with(status, reason)));
        let (plan, _) = round(&mut bed, &Cloud::of(&[route("x", "a", "10.120.0.0/24")]));
        assert_eq!(plan.actions().count(), count, "{status} {reason}");
    }
}

#[test]
fn a_list_that_fails_changes_nothing_and_counts_as_a_sync() {
    let mut bed = bed(with_ranges(RANGES).with(routed("a", &["10.120.0.0/24"])));
    let mut cloud = Cloud::of(&[route("x", "gone", "10.120.5.0/24")]);
    cloud.refuses.insert(("ListRoutes", ""));
    let plan = bed.step(|call| cloud.call(call)).unwrap();
    assert_eq!(plan.actions().count(), 0);
    assert_eq!(plan.failure.as_deref(), Some("error listing routes: down"));
    assert_eq!(plan.on_failure.measures[0].name, SYNCS);
    let plan = bed
        .step(|_| Err(Refused::new(Reason::NotSupported, "no routes here")))
        .unwrap();
    assert_eq!(plan.requeue, Requeue::At(at("12:05:00")));
}

#[test]
fn a_large_cluster_is_worked_off_in_steps() {
    let mut world = with_ranges("10.0.0.0/8");
    for number in 0..450 {
        let cidr = format!("10.{}.{}.0/24", number / 250, number % 250);
        world.put(routed(&format!("n{number:03}"), &[&cidr]));
    }
    let mut bed = bed(world);
    let cloud = Cloud::default();
    let mut written = 0;
    let mut most = 0;
    for _ in 0..20 {
        let before = bed.calls.len();
        let plan = bed.step(|call| cloud.call(call)).unwrap();
        most = most.max(bed.calls.len() - before);
        for action in plan.actions() {
            let key = action.key.to_string();
            bed.world.change::<Node>(&key, |node| {
                node.status
                    .get_or_insert_default()
                    .conditions
                    .push(NodeCondition {
                        r#type: "NetworkUnavailable".to_owned(),
                        status: "False".to_owned(),
                        reason: "RouteCreated".to_owned(),
                        ..Default::default()
                    });
            });
            written += 1;
        }
        if plan.requeue != Requeue::Now {
            break;
        }
    }
    assert_eq!((written, most, cloud.all().len()), (450, 200, 450));
}

#[test]
fn an_old_decision_is_made_again() {
    let mut bed = bed(with_ranges(RANGES).with(routed("a", &["10.120.0.0/24"])));
    let cloud = Cloud::default();
    bed.step(|call| cloud.call(call)).unwrap();
    assert!(bed.memory.step.is_some());
    bed.world = bed.world.later(31);
    bed.step(|call| cloud.call(call)).unwrap();
    assert_eq!(bed.calls, ["ListRoutes", "ListRoutes"]);
    // A memory from a machine whose clock is behind is as old as it was.
    bed.world = bed.world.later(3600);
    let controller = NodeRoute::new(&with_ranges(RANGES).flags([&NodeRoute::describe()]));
    controller.shift(&mut bed.memory, SignedDuration::from_secs(3600));
    bed.step(|call| cloud.call(call)).unwrap();
    assert_eq!(bed.calls[2..], ["CreateRoute"]);
}

#[test]
fn a_duration_is_written_as_go_does() {
    for (micros, text) in [
        (0, "0s"),
        (7, "7µs"),
        (1_500, "1.5ms"),
        (2_000_000, "2s"),
        (2_250_000, "2.25s"),
    ] {
        assert_eq!(go_duration(Duration::from_micros(micros)), text);
    }
}

#[test]
fn a_cluster_has_its_routes() {
    let mut world = with_ranges("10.0.0.0/16")
        .answering(answer)
        .with(routed("a", &["10.0.0.0/24"]))
        .with(routed("b", &["10.0.1.0/24"]));
    world.settle_for(30, &[Factory::of::<NodeRoute>()]);
    for name in ["a", "b"] {
        let node = world.get::<Node>(name);
        let conditions = &node.status.as_ref().unwrap().conditions;
        let held = conditions.iter().find(|one| one.r#type == CONDITION);
        assert_eq!(held.unwrap().reason, "RouteCreated", "{name}");
    }
}
