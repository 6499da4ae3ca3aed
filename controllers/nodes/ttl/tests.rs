use controllers_kit::testing::*;
use kubernetes_proto::{Object, core::Node};

use super::{ANNOTATION, Ttl};

fn valued(name: &str, value: &str) -> Node {
    let mut node = node(name);
    node.metadata_mut().set_annotation(ANNOTATION, value);
    node
}

/// A cluster of a given size whose nodes have this value, but for the first one.
fn cluster(nodes: usize, value: &str, first: Option<&str>) -> World {
    let mut world = World::at("12:00:00");
    world.put(match first {
        Some(value) => valued("a", value),
        None => node("a"),
    });
    for number in 1..nodes {
        world.put(valued(&format!("n{number:04}"), value));
    }
    world
}

fn value_of(world: &World, name: &str) -> Option<String> {
    let node = world.get::<Node>(name);
    Object::metadata(&*node)
        .annotation(ANNOTATION)
        .map(str::to_owned)
}

#[test]
fn a_node_without_the_annotation_or_with_a_foreign_value_gets_that_of_the_cluster() {
    for (first, nodes, others, wanted) in [
        (None, 1, "0", "0"),
        (None, 96, "0", "0"),
        (None, 96, "15", "15"),
        (None, 101, "0", "15"),
        (Some("soon"), 96, "15", "15"),
        (Some("17"), 480, "30", "30"),
        (None, 480, "soon", "15"),
        (None, 2000, "60", "60"),
        (None, 2001, "60", "300"),
    ] {
        let mut world = cluster(nodes, others, first);
        let plan = world.plan::<Ttl>("a");
        assert_eq!(plan.verbs(), ["patch nodes/a"], "{nodes} nodes");
        world.apply(&plan).expect_success();
        assert_eq!(
            value_of(&world, "a").as_deref(),
            Some(wanted),
            "{nodes} nodes, others {others}"
        );
    }
}

#[test]
fn a_value_is_kept_within_its_step_and_left_beyond() {
    for (value, nodes, wanted) in [
        ("0", 1, "0"),
        ("0", 100, "0"),
        ("0", 101, "15"),
        ("15", 90, "15"),
        ("15", 89, "0"),
        ("15", 500, "15"),
        ("15", 501, "30"),
        ("30", 450, "30"),
        ("30", 449, "15"),
        ("30", 1001, "60"),
        ("60", 899, "30"),
        ("60", 2000, "60"),
        ("60", 2001, "300"),
        ("300", 1800, "300"),
        ("300", 1799, "60"),
        ("300", 3, "0"),
        ("0", 2500, "300"),
    ] {
        let world = cluster(nodes, value, Some(value));
        let plan = world.plan::<Ttl>("a");
        let mut after = world.clone();
        after.apply(&plan).expect_success();
        assert_eq!(
            value_of(&after, "a").as_deref(),
            Some(wanted),
            "{value} at {nodes} nodes"
        );
        assert_eq!(plan.verbs().is_empty(), value == wanted);
    }
}

#[test]
fn a_value_is_compared_as_a_number() {
    for value in ["15", "015", "+15"] {
        let world = cluster(200, value, Some(value));
        assert!(world.plan::<Ttl>("a").is_nothing(), "{value}");
    }
    for value in ["", " 15", "15s", "15.0", "99999999999999999999"] {
        let world = cluster(200, value, Some(value));
        assert_eq!(world.plan::<Ttl>("a").verbs(), ["patch nodes/a"], "{value}");
    }
}

#[test]
fn all_nodes_follow_when_the_cluster_crosses_a_border() {
    let mut world = cluster(100, "0", Some("0"));
    assert!(world.run::<Ttl>().is_empty());
    world.put(node("last"));
    world.run::<Ttl>();
    let values = |world: &World| -> Vec<String> {
        let mut values: Vec<_> = world
            .all::<Node>()
            .iter()
            .filter_map(|node| value_of(world, &Object::metadata(&**node).name))
            .collect();
        values.dedup();
        values
    };
    assert_eq!(values(&world), ["15"]);
    for number in 1..=11 {
        world.delete::<Node>(&format!("n{number:04}"));
    }
    world.run::<Ttl>();
    assert_eq!(values(&world), ["15"], "90 nodes are within the step");
    world.delete::<Node>("last");
    world.run::<Ttl>();
    assert_eq!(values(&world), ["0"]);
}

#[test]
fn the_annotation_is_patched_alone_and_whatever_else_has_changed() {
    let world = World::at("12:00:00").with(node("a"));
    let plan = world.plan::<Ttl>("a");
    let action = plan.actions().next().unwrap();
    assert_eq!(action.resource_version, 0);
    assert!(!action.uid.is_empty());
    let mut world = world.changed::<Node>("a", |node| {
        node.metadata_mut().set_annotation("other", "stays");
    });
    world.apply(&plan).expect_success();
    let node = world.get::<Node>("a");
    assert_eq!(Object::metadata(&*node).annotation("other"), Some("stays"));
    assert_eq!(value_of(&world, "a").as_deref(), Some("0"));
}

#[test]
fn a_node_that_is_gone_is_left_alone() {
    let world = World::at("12:00:00");
    assert!(world.plan::<Ttl>("a").is_nothing());
}
