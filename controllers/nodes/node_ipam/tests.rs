use std::collections::BTreeSet;

use controllers_kit::{
    Answer, Descriptor, FlagValue, Flags, Query, Refusal, Resource, Runs, testing::*,
};
use kubernetes_proto::{Object, core::Node};

use super::{Controller as _, Memory, NodeIpam, Ranges, only_key, ranges::Taken};

const NODES: &str = "nodes";

fn flags(values: &[(&'static str, FlagValue)]) -> Flags {
    let descriptor: Descriptor = NodeIpam::describe();
    let mut flags = Flags::defaults([&descriptor]);
    flags.set("allocate-node-cidrs", FlagValue::Bool(true));
    for (name, value) in values {
        flags.set(name, value.clone());
    }
    flags
}

fn text(text: &str) -> FlagValue {
    FlagValue::Text(text.to_owned())
}

fn start(cluster: &str, mask: i64) -> World {
    World::at("12:00:00")
        .flag("allocate-node-cidrs", FlagValue::Bool(true))
        .flag("cluster-cidr", text(cluster))
        .flag("node-cidr-mask-size", FlagValue::Int(mask))
}

fn holding(name: &str, blocks: &[&str]) -> Node {
    let mut node = node(name);
    let spec = node.spec.get_or_insert_default();
    spec.pod_cidr = blocks
        .first()
        .map(|&text| text.to_owned())
        .unwrap_or_default();
    spec.pod_cid_rs = blocks.iter().map(|&text| text.to_owned()).collect();
    node
}

fn blocks(world: &World, name: &str) -> Vec<String> {
    let node = world.get::<Node>(name);
    let spec = node.spec.clone().unwrap_or_default();
    assert_eq!(
        spec.pod_cidr,
        spec.pod_cid_rs.first().cloned().unwrap_or_default()
    );
    spec.pod_cid_rs
}

/// What a node named `new` gets in a world.
fn given(mut world: World) -> Vec<String> {
    world.put(node("new"));
    world.run::<NodeIpam>();
    blocks(&world, "new")
}

#[test]
fn a_node_gets_the_first_free_block_of_each_family() {
    for (name, world, expected) in [
        (
            "the first",
            start("127.123.234.0/24", 30),
            vec!["127.123.234.0/30"],
        ),
        (
            "the one behind those that are taken",
            start("127.123.234.0/24", 30)
                .with(holding("a", &["127.123.234.0/30"]))
                .with(holding("b", &["127.123.234.4/30"]))
                .with(holding("c", &["127.123.234.12/30"])),
            vec!["127.123.234.8/30"],
        ),
        (
            "beside a range of Services within",
            start("127.123.234.0/24", 30)
                .flag("service-cluster-ip-range", text("127.123.234.0/26")),
            vec!["127.123.234.64/30"],
        ),
        (
            "beside two ranges of Services, one of them elsewhere",
            start("127.123.234.0/24", 30).flag(
                "service-cluster-ip-range",
                text("127.123.234.0/28,fd00::/112"),
            ),
            vec!["127.123.234.16/30"],
        ),
        ("of IPv6", start("2001:db8::/48", 64), vec!["2001:db8::/64"]),
        (
            "of both families, each with its default size",
            start("10.10.0.0/16,ace:cab:deca::/48", 0)
                .with(holding("a", &["10.10.0.0/24", "ace:cab:deca::/64"])),
            vec!["10.10.1.0/24", "ace:cab:deca:1::/64"],
        ),
        (
            "of both families in the other order, with sizes of their own",
            start("ace:cab:deca::/48,10.10.0.0/16", 0)
                .flag("node-cidr-mask-size-ipv4", FlagValue::Int(25))
                .flag("node-cidr-mask-size-ipv6", FlagValue::Int(60)),
            vec!["ace:cab:deca::/60", "10.10.0.0/25"],
        ),
        (
            "beside a wider block that somebody else has given",
            start("10.0.0.0/16", 24).with(holding("cloud", &["10.0.0.0/22"])),
            vec!["10.0.4.0/24"],
        ),
        (
            "beside a narrower one",
            start("10.0.0.0/16", 24).with(holding("cloud", &["10.0.0.128/25"])),
            vec!["10.0.1.0/24"],
        ),
        (
            "whatever lies outside",
            start("10.0.0.0/16", 24)
                .with(holding("far", &["192.0.2.0/24"]))
                .with(holding("broken", &["nothing"]))
                .with(holding("many", &["192.0.2.0/24", "fd00::/64"])),
            vec!["10.0.0.0/24"],
        ),
        (
            "none where there is none left",
            start("10.0.0.0/24", 24).with(holding("a", &["10.0.0.0/24"])),
            vec![],
        ),
        (
            "of no family where one has none left",
            start("10.0.0.0/24,fd00::/48", 0).with(holding("a", &["10.0.0.0/24"])),
            vec![],
        ),
        (
            "none where the range is of Services",
            start("10.0.0.0/24", 26).flag("service-cluster-ip-range", text("10.0.0.0/8")),
            vec![],
        ),
    ] {
        assert_eq!(given(world), expected, "{name}");
    }
}

#[test]
fn a_node_that_has_a_block_or_is_being_deleted_is_left_alone() {
    let mut world = start("10.0.0.0/16", 24)
        .with(holding("has", &["10.0.7.0/24"]))
        .with(node("leaves").finalizer("hold/it").terminating("11:59:00"));
    assert!(world.run::<NodeIpam>().is_empty());
}

#[test]
fn a_block_is_not_given_again_at_once() {
    let mut world = start("10.0.0.0/24", 26).with(node("a")).with(node("b"));
    let mut memory = Memory::default();
    let turn = |world: &mut World, memory: &mut Memory| {
        let plan = world.plan_with::<NodeIpam>(NODES, memory).unwrap();
        learned(world, &plan, memory);
    };
    turn(&mut world, &mut memory);
    assert_eq!(blocks(&world, "b"), ["10.0.0.64/26"]);
    world.delete::<Node>("b");
    world.put(node("c"));
    turn(&mut world, &mut memory);
    assert_eq!(blocks(&world, "c"), ["10.0.0.128/26"]);
    world.put(node("d"));
    turn(&mut world, &mut memory);
    world.delete::<Node>("a");
    world.put(node("e"));
    turn(&mut world, &mut memory);
    assert_eq!(blocks(&world, "e"), ["10.0.0.0/26"], "from the beginning");
    world.put(node("f"));
    turn(&mut world, &mut memory);
    assert_eq!(blocks(&world, "f"), ["10.0.0.64/26"]);
}

/// Applies a plan, and has the controller hear of it.
fn learned(world: &mut World, plan: &controllers_kit::Plan, memory: &mut Memory) {
    let applied = world.apply(plan);
    applied.expect_success();
    let controller = NodeIpam::new(&world.flags([&NodeIpam::describe()]));
    for (action, result) in &applied.0 {
        controller.learn(
            &controllers_kit::Outcome {
                action,
                result: result.as_ref().cloned(),
            },
            memory,
        );
    }
}

#[test]
fn a_thousand_nodes_that_join_get_a_thousand_blocks() {
    let mut world = start("10.0.0.0/8", 24);
    for number in 0..1000 {
        world.put(node(&format!("n{number:04}")));
    }
    let mut memory = Memory::default();
    let mut plans = 0;
    loop {
        let plan = world.plan_with::<NodeIpam>(NODES, &mut memory).unwrap();
        if plan.actions().count() == 0 {
            break;
        }
        assert!(plan.actions().count() <= super::AT_ONCE);
        learned(&mut world, &plan, &mut memory);
        plans += 1;
        // A takeover after a crash: nothing is known but the nodes.
        if plans % 7 == 0 {
            memory = Memory::default();
        }
    }
    assert_eq!(plans, 1000 / super::AT_ONCE);
    let all: BTreeSet<_> = world
        .all::<Node>()
        .iter()
        .map(|node| blocks(&world, &Object::metadata(&**node).name))
        .collect();
    assert_eq!(all.len(), 1000);
}

#[test]
fn a_plan_that_gives_blocks_rests_on_all_nodes_that_there_are() {
    let world = start("10.0.0.0/16", 24).with(node("a"));
    let plan = world.plan::<NodeIpam>(NODES);
    assert_eq!(plan.counted.len(), 1);
    assert_eq!(plan.counted[0].resource, Node::resource());
    assert_eq!(plan.counted[0].since, world.version());
    let action = plan.actions().next().unwrap();
    assert_ne!(
        action.resource_version, 0,
        "the version seen is a precondition"
    );
    let at_rest = start("10.0.0.0/16", 24).with(holding("a", &["10.0.0.0/24"]));
    assert!(at_rest.plan::<NodeIpam>(NODES).counted.is_empty());
}

#[test]
fn no_block_is_given_while_it_is_not_known_which_nodes_there_are() {
    let world = start("10.0.0.0/16", 24).with(node("a"));
    let resource: &'static Resource = Node::resource();
    let answers = [(
        Query::Present { resource },
        Answer::Failed("no answer".to_owned()),
    )]
    .into();
    let seen = controllers_kit::Snapshot::new(&world, &answers, world.now());
    let controller = NodeIpam::new(&world.flags([&NodeIpam::describe()]));
    let refused = controller.plan(&only_key(), &seen, &mut Memory::default());
    assert_eq!(
        refused,
        Err(Refusal::Retry(
            "nodes could not be asked: no answer".to_owned()
        ))
    );
}

#[test]
fn a_patch_whose_answer_was_lost_gives_its_block_to_nobody_else() {
    use controllers_kit::{Failure, Outcome};
    let world = start("10.0.0.0/16", 24).with(node("a"));
    let controller = NodeIpam::new(&world.flags([&NodeIpam::describe()]));
    for (failure, next) in [
        (Failure::Timeout("no answer".to_owned()), vec![1]),
        (Failure::Conflict("changed".to_owned()), vec![]),
        (Failure::Skipped, vec![]),
    ] {
        let mut memory = Memory::default();
        let plan = world.plan_with::<NodeIpam>(NODES, &mut memory).unwrap();
        for action in plan.actions() {
            let result = Err(&failure);
            controller.learn(&Outcome { action, result }, &mut memory);
        }
        assert_eq!(memory.next, next, "{failure}");
    }
}

#[test]
fn exhaustion_is_reported_once_for_each_node() {
    let mut world = start("10.0.0.0/24", 24)
        .with(holding("a", &["10.0.0.0/24"]))
        .with(node("b"));
    let mut memory = Memory::default();
    for _ in 0..3 {
        let plan = world.plan_with::<NodeIpam>(NODES, &mut memory).unwrap();
        learned(&mut world, &plan, &mut memory);
    }
    let expected = "Normal CIDRNotAvailable Node b status is now: CIDRNotAvailable";
    assert_eq!(world.events(), [expected]);
}

#[test]
fn nodes_that_refuse_their_blocks_keep_no_other_from_its_own() {
    let mut world = start("10.0.0.0/16", 24);
    for number in 0..super::AT_ONCE {
        world.put(node(&format!("old-{number:02}")).created("10:00:00"));
    }
    world.put(node("young").created("11:00:00"));
    let controller = NodeIpam::new(&world.flags([&NodeIpam::describe()]));
    let mut memory = Memory::default();
    let failure = controllers_kit::Failure::Forbidden("a webhook says no".to_owned());
    let mut tried = 0;
    for _ in 0..3 {
        let plan = world.plan_with::<NodeIpam>(NODES, &mut memory).unwrap();
        let mut allowed = plan.clone();
        allowed.stages.iter_mut().for_each(|stage| {
            stage.retain(|action| *action.key.name == *"young");
        });
        tried += plan.actions().count();
        for action in plan.actions() {
            let result = match *action.key.name == *"young" {
                true => Ok(controllers_kit::Written::default()),
                false => Err(&failure),
            };
            controller.learn(&controllers_kit::Outcome { action, result }, &mut memory);
        }
        world.apply(&allowed).expect_success();
    }
    assert!(!blocks(&world, "young").is_empty());
    assert_eq!(
        tried,
        super::AT_ONCE + 1,
        "the others wait for their back-off"
    );
    // They are tried again, and forgotten with their nodes.
    let later = world.later(1);
    let plan = later.plan_with::<NodeIpam>(NODES, &mut memory).unwrap();
    assert_eq!(plan.actions().count(), super::AT_ONCE);
    for number in 0..super::AT_ONCE {
        world.vanish::<Node>(&format!("old-{number:02}"));
    }
    world.plan_with::<NodeIpam>(NODES, &mut memory).unwrap();
    assert_eq!(memory.retries, crate::retries::Retries::default());
}

#[test]
fn a_failed_patch_is_reported_in_upstream_s_words() {
    let world = start("10.0.0.0/24", 24).with(node("a"));
    let plan = world.plan::<NodeIpam>(NODES);
    let action = plan.actions().next().unwrap();
    let announcement = action.announcement.as_ref().unwrap();
    let event = announcement.failure.as_ref().unwrap();
    assert_eq!(event.reason, "CIDRAssignmentFailed");
    assert_eq!(event.message, "Node a status is now: CIDRAssignmentFailed");
    assert!(announcement.failure_as_is);
}

#[test]
fn a_block_that_two_nodes_hold_is_reported() {
    let mut world = start("10.0.0.0/16", 24)
        .with(holding("b", &["10.0.0.0/24"]).created("11:00:00"))
        .with(holding("a", &["10.0.0.0/24"]).created("11:30:00"));
    world.run::<NodeIpam>();
    assert_eq!(
        world.events(),
        ["Warning CIDRNotUnique Node b has the pod CIDR 10.0.0.0/24 too"]
    );
}

#[test]
fn taken_and_released_blocks_are_counted() {
    let mut world = start("10.0.0.0/24", 26).with(holding("a", &["10.0.0.0/26"]));
    let mut memory = Memory::default();
    let measures = |world: &World, memory: &mut Memory| -> Vec<(&'static str, f64)> {
        let plan = world.plan_with::<NodeIpam>(NODES, memory).unwrap();
        plan.measures
            .iter()
            .map(|one| {
                assert_eq!(one.labels, ["10.0.0.0/24"]);
                (one.name, one.value)
            })
            .collect()
    };
    let gauges = |usage| vec![(super::MAX, 4.0), (super::USAGE, usage)];
    let with = |usage, more| [gauges(usage), vec![more]].concat();
    assert_eq!(
        measures(&world, &mut memory),
        with(0.25, (super::ALLOCATIONS, 1.0))
    );
    assert_eq!(measures(&world, &mut memory), gauges(0.25));
    world.put(holding("b", &["10.0.0.64/26"]));
    assert_eq!(
        measures(&world, &mut memory),
        with(0.5, (super::ALLOCATIONS, 1.0))
    );
    world.delete::<Node>("a");
    assert_eq!(
        measures(&world, &mut memory),
        with(0.25, (super::RELEASES, 1.0))
    );
    let plan = world.with(node("c")).plan::<NodeIpam>(NODES);
    let action = plan.actions().next().unwrap();
    let tries = &action.announcement.as_ref().unwrap().measures;
    assert_eq!(tries[0].name, super::TRIES);
}

#[test]
fn flags_are_refused_in_upstream_s_words() {
    let mask = "node-cidr-mask-size";
    let (v4, v6) = ("node-cidr-mask-size-ipv4", "node-cidr-mask-size-ipv6");
    let int = FlagValue::Int;
    type Given<'a> = &'a [(&'static str, FlagValue)];
    let cases: &[(Given<'_>, Option<&str>)] = &[
        (&[("cluster-cidr", text("10.0.0.0/16"))], None),
        (&[("cluster-cidr", text("10.0.0.0/16,fd00::/48"))], None),
        (&[("cluster-cidr", text("fd00::/48"))], None),
        (
            &[("cluster-cidr", text("10.0.0.0/16")), (mask, int(16))],
            None,
        ),
        (
            &[("cluster-cidr", text("10.0.0.0/16")), (v4, int(25))],
            None,
        ),
        (&[("cluster-cidr", text("fd00::/48")), (v6, int(60))], None),
        (
            &[
                ("cluster-cidr", text("10.0.0.0/16")),
                ("service-cluster-ip-range", text("what")),
            ],
            None,
        ),
        (
            &[],
            Some("Controller: Must specify --cluster-cidr if --allocate-node-cidrs is set"),
        ),
        (
            &[("cluster-cidr", text("10.0.0.0"))],
            Some("--cluster-cidr: invalid CIDR[0]: <nil> (invalid CIDR address: 10.0.0.0)"),
        ),
        (
            &[("cluster-cidr", text("10.0.0.0/16,"))],
            Some("--cluster-cidr: invalid CIDR[1]: <nil> (invalid CIDR address: )"),
        ),
        (
            &[("cluster-cidr", text("10.0.0.0/16,11.0.0.0/16"))],
            Some(
                "len of ClusterCIDRs==2 and they are not configured as dual stack (at least one from each IPFamily",
            ),
        ),
        (
            &[("cluster-cidr", text("10.0.0.0/16,fd00::/48,11.0.0.0/16"))],
            Some("length of clusterCIDRs is:3 more than max allowed of 2"),
        ),
        (
            &[
                ("cluster-cidr", text("10.0.0.0/16,fd00::/48")),
                (mask, int(24)),
            ],
            Some("usage of --node-cidr-mask-size is not allowed with dual-stack clusters"),
        ),
        (
            &[
                ("cluster-cidr", text("10.0.0.0/16")),
                (mask, int(24)),
                (v4, int(24)),
            ],
            Some(
                "usage of --node-cidr-mask-size-ipv4 and --node-cidr-mask-size-ipv6 is not allowed if --node-cidr-mask-size is set. For dual-stack clusters please unset it and use IPFamily specific flags",
            ),
        ),
        (
            &[("cluster-cidr", text("fd00::/48")), (v4, int(24))],
            Some(
                "usage of --node-cidr-mask-size-ipv4 is not allowed for a single-stack IPv6 cluster",
            ),
        ),
        (
            &[("cluster-cidr", text("10.0.0.0/16")), (v6, int(64))],
            Some(
                "usage of --node-cidr-mask-size-ipv6 is not allowed for a single-stack IPv4 cluster",
            ),
        ),
        (
            &[("cluster-cidr", text("10.0.0.0/25"))],
            Some(
                "Controller: Invalid --cluster-cidr, mask size of cluster CIDR must be less than or equal to --node-cidr-mask-size configured for CIDR family",
            ),
        ),
        (
            &[("cluster-cidr", text("fd00::/47"))],
            Some("New CIDR set failed; the node CIDR size is too big"),
        ),
        (
            &[("cluster-cidr", text("10.0.0.0/16")), (mask, int(33))],
            Some("New CIDR set failed; the node CIDR size is too big"),
        ),
        (
            &[
                ("cidr-allocator-type", text("CloudAllocator")),
                ("cluster-cidr", text("10.0.0.0/16")),
            ],
            Some(
                "--cidr-allocator-type is set to 'CloudAllocator' but cloud provider is not configured",
            ),
        ),
        (
            &[
                ("cidr-allocator-type", text("IPAMFromCloud")),
                ("cluster-cidr", text("10.0.0.0/16")),
            ],
            Some("Error trying to Init(): legacy cloud provider support disabled at build time"),
        ),
        (
            // The first fault in upstream's order.
            &[
                ("cidr-allocator-type", text("Other")),
                ("cluster-cidr", text("10.0.0.0/25")),
                ("service-cluster-ip-range", text("10.1.0.0/16,10.2.0.0/16")),
                (v6, int(64)),
            ],
            Some(
                "serviceCIDR and secondaryServiceCIDR are not dualstack (from different IPfamiles)",
            ),
        ),
        (
            &[
                ("cidr-allocator-type", text("Other")),
                ("cluster-cidr", text("10.0.0.0/16")),
            ],
            Some("invalid CIDR allocator type: Other"),
        ),
        (
            &[
                ("cluster-cidr", text("10.0.0.0/16")),
                ("service-cluster-ip-range", text("10.1.0.0/16,10.2.0.0/16")),
            ],
            Some(
                "serviceCIDR and secondaryServiceCIDR are not dualstack (from different IPfamiles)",
            ),
        ),
        (
            &[
                ("cluster-cidr", text("10.0.0.0/16")),
                (
                    "service-cluster-ip-range",
                    text("10.1.0.0/16,fd00::/112,10.2.0.0/16"),
                ),
            ],
            Some("--service-cluster-ip-range can not contain more than two entries"),
        ),
    ];
    let runs = NodeIpam::describe().runs;
    for (given, expected) in cases {
        match (runs(&flags(given)), expected) {
            (Runs::Yes, None) => {}
            (Runs::Wrong(fault), Some(text)) => {
                assert_eq!(fault, *text, "{given:?}");
            }
            (runs, expected) => panic!("{given:?}: {runs:?} instead of {expected:?}"),
        }
    }
}

#[test]
fn the_controller_runs_only_where_it_is_enabled() {
    let mut flags = flags(&[]);
    flags.set("allocate-node-cidrs", FlagValue::Bool(false));
    assert_eq!(
        (NodeIpam::describe().runs)(&flags),
        Runs::No("--allocate-node-cidrs is not given")
    );
}

#[test]
fn taken_blocks_are_joined_counted_and_passed_over() {
    let mut taken = Taken::default();
    for (first, last, new) in [
        (2, 3, true),
        (3, 3, false),
        (7, 7, true),
        (4, 6, true),
        (0, 0, true),
        (9, 12, true),
        (1, 10, true),
    ] {
        assert_eq!(taken.take(first, last), new, "{first} to {last}");
    }
    assert_eq!(taken.count(), 13);
    assert_eq!(taken.free(0, 16), Some((13, 13)));
    assert_eq!(taken.free(14, 16), Some((14, 0)));
    taken.take(13, 15);
    assert_eq!(taken.free(5, 16), None);
    let mut few = Taken::default();
    few.take(3, 3);
    assert_eq!(few.free(3, 4), Some((0, 1)), "on from the beginning");
    assert!(Ranges::default().cluster.is_empty());
}
