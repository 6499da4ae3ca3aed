use controllers_kit::{FlagValue, Verb, testing::*};
use kubernetes_proto::{
    Object,
    core::{Node, NodeCondition, Pod},
};

use serde_json::json;

use super::{Missed, PodGarbageCollector};

fn start() -> World {
    World::at("12:00:00")
        .without_kubelets()
        .with(namespace("kube-system"))
        .with(node("node-1"))
}

fn verbs(world: &World, missed: &mut Missed) -> Vec<String> {
    world
        .plan_with::<PodGarbageCollector>("pods", missed)
        .unwrap()
        .verbs()
}

fn run(world: &mut World, seconds: i64) {
    world.settle_for(
        seconds,
        &[controllers_kit::Factory::of::<PodGarbageCollector>()],
    );
}

#[test]
fn a_disruption_is_reported_after_existing_conditions() {
    let mut missed = Missed::default();
    let world = start().with(pod("lost").on("node-9").ready("11:00:00"));
    assert!(verbs(&world, &mut missed).is_empty());
    let plan = world
        .later(40)
        .plan_with::<PodGarbageCollector>("pods", &mut missed)
        .unwrap();
    let Verb::Patch { patch, .. } = &plan.actions().next().unwrap().verb else {
        panic!("{:?}", plan.verbs());
    };
    assert_eq!(
        patch["status"]["$setElementOrder/conditions"],
        json!([{"type": "Ready"}, {"type": "DisruptionTarget"}])
    );
}

#[test]
fn pods_of_a_node_that_is_gone_are_failed_and_deleted_after_the_quarantine() {
    let mut world = start()
        .with(pod("lost").on("node-9").phase("Running"))
        .with(pod("ended").on("node-9").phase("Succeeded"))
        .with(pod("well").on("node-1").phase("Running"));
    let mut missed = Missed::default();
    assert!(verbs(&world, &mut missed).is_empty());
    assert!(verbs(&world.later(39), &mut missed).is_empty());
    let then = world.later(40);
    assert_eq!(
        verbs(&then, &mut missed),
        ["delete pods/ended", "patch pods/lost/status"]
    );
    let plan = then
        .plan_with::<PodGarbageCollector>("pods", &mut missed)
        .unwrap();
    let mut after = then.clone();
    after.apply(&plan).expect_success();
    let lost = after.get::<Pod>("lost");
    let status = lost.status.as_ref().unwrap();
    assert_eq!(status.phase, "Failed");
    assert_eq!(status.conditions[0].reason, "DeletionByPodGC");
    assert_eq!(status.conditions[0].message, "PodGC: node no longer exists");
    assert_eq!(verbs(&after, &mut missed), ["delete pods/lost"]);

    run(&mut world, 70);
    assert_eq!(
        world.all::<Pod>().len(),
        1,
        "the pod of the living node alone stays"
    );
}

#[test]
fn a_node_that_comes_back_during_the_quarantine_ends_it() {
    let world = start().with(pod("lost").on("node-9").phase("Running"));
    let mut missed = Missed::default();
    verbs(&world, &mut missed);
    let back = world.later(20).with(node("node-9"));
    assert!(verbs(&back, &mut missed).is_empty());
    let again = world.later(41);
    assert!(
        verbs(&again, &mut missed).is_empty(),
        "its absence is counted again, from then on"
    );
    assert_eq!(verbs(&again.later(40), &mut missed).len(), 1);
}

#[test]
fn beyond_the_threshold_evicted_pods_go_first_then_the_oldest() {
    let ended = |name: &str, time: &str| {
        let mut pod = pod(name).on("node-1").phase("Failed");
        pod.metadata_mut().creation_timestamp = Some(at(time).into());
        pod
    };
    let mut evicted = ended("evicted", "11:50:00");
    evicted.status.as_mut().unwrap().reason = "Evicted".into();
    let world = start()
        .with(ended("oldest", "10:00:00"))
        .with(ended("older", "11:00:00"))
        .with(evicted)
        .with(pod("runs").on("node-1").phase("Running"));
    for (threshold, expected) in [
        (0, &[][..]),
        (-1, &[]),
        (3, &[]),
        (2, &["delete pods/evicted"]),
        (1, &["delete pods/evicted", "delete pods/oldest"]),
    ] {
        let world = world
            .clone()
            .flag("terminated-pod-gc-threshold", FlagValue::Int(threshold));
        assert_eq!(
            verbs(&world, &mut Missed::default()),
            expected,
            "threshold {threshold}"
        );
    }
}

#[test]
fn pods_deleted_before_they_had_a_node_go_at_once() {
    let mut world = start()
        .with(pod("never").terminating("11:59:00"))
        .with(pod("waits"));
    assert_eq!(
        verbs(&world, &mut Missed::default()),
        ["patch pods/never/status"]
    );
    run(&mut world, 1);
    assert_eq!(world.all::<Pod>().len(), 1);
}

#[test]
fn a_pod_that_only_finalizers_hold_is_left_alone() {
    let mut held = pod("held")
        .phase("Failed")
        .finalizer("example.com/hold")
        .terminating("11:59:00");
    held.metadata_mut().deletion_grace_period_seconds = Some(0);
    let world = start().with(held);
    assert!(verbs(&world, &mut Missed::default()).is_empty());
}

#[test]
fn terminating_pods_go_from_nodes_that_are_out_of_service_and_not_ready() {
    const TAINT: &str = "node.kubernetes.io/out-of-service";
    let ready = |mut node: Node, status: &str| {
        node.status.get_or_insert_default().conditions = vec![NodeCondition {
            r#type: "Ready".into(),
            status: status.into(),
            ..Default::default()
        }];
        node
    };
    for (node, goes) in [
        (
            ready(node("node-2"), "False").taint(TAINT, "", "NoExecute"),
            true,
        ),
        (
            ready(node("node-2"), "Unknown").taint(TAINT, "", "NoExecute"),
            true,
        ),
        (
            ready(node("node-2"), "True").taint(TAINT, "", "NoExecute"),
            false,
        ),
        (ready(node("node-2"), "False"), false),
    ] {
        let world = start()
            .with(node)
            .with(
                pod("stuck")
                    .on("node-2")
                    .phase("Running")
                    .terminating("11:59:00"),
            )
            .with(pod("lives").on("node-2").phase("Running"));
        let expected = if goes {
            vec!["patch pods/stuck/status"]
        } else {
            vec![]
        };
        assert_eq!(verbs(&world, &mut Missed::default()), expected);
    }
}
