use std::time::Duration;

use controllers_kit::{
    Factory, Plan, Refusal, Requeue,
    cloud::{Call, Deed, Outcome, Reason, Refused, Reply},
    testing::{Common, NodeBuild, at},
};
use kubernetes_proto::core::Node;

use super::*;
use crate::tests::{Bed, answer, events, machine, start};

const TAINT: &str = "node.cloudprovider.kubernetes.io/shutdown";

/// A provider with one machine.
fn provider(exists: Outcome, shutdown: Outcome) -> impl Fn(&Call) -> Outcome {
    move |call| match &call.deed {
        Deed::InstanceExists(node) => {
            assert_eq!(node.provider_id, "reference://n");
            exists.clone()
        }
        Deed::InstanceShutdown(_) => shutdown.clone(),
        other => panic!("{other:?}"),
    }
}

fn refused(reason: Reason) -> Outcome {
    Err(Refused::new(reason, "why"))
}

fn planned(node: Node, exists: Outcome, shutdown: Outcome) -> Result<Plan, Refusal> {
    let mut bed = Bed::<CloudNodeLifecycle>::new(start().with(node), "n");
    bed.step(provider(exists, shutdown))
}

#[test]
fn a_node_is_deleted_only_where_it_is_not_ready_and_its_machine_certainly_does_not_exist() {
    let yes = || Ok(Reply::Is(true));
    let no = || Ok(Reply::Is(false));
    for (ready, exists, deleted) in [
        ("False", no(), true),
        ("Unknown", no(), true),
        ("True", no(), false),
        ("False", yes(), false),
        ("Unknown", yes(), false),
        ("False", refused(Reason::Failed), false),
        ("False", refused(Reason::InstanceNotFound), false),
        ("False", refused(Reason::NotSupported), false),
        ("False", refused(Reason::Stale), false),
        ("False", refused(Reason::ImplementedElsewhere), false),
        ("False", Ok(Reply::Done), false),
    ] {
        let plan = planned(machine("n", ready), exists.clone(), no());
        let verbs = plan.map_or_else(|_| Vec::new(), |plan| plan.verbs());
        let wanted: &[&str] = if deleted { &["delete nodes/n"] } else { &[] };
        assert_eq!(verbs, wanted, "{ready} {exists:?}");
    }
}

#[test]
fn a_node_without_a_ready_condition_counts_as_not_ready() {
    let mut node = machine("n", "True");
    node.status.get_or_insert_default().conditions.clear();
    let plan = planned(node, Ok(Reply::Is(false)), Ok(Reply::Is(false))).unwrap();
    assert_eq!(plan.verbs(), ["delete nodes/n"]);
}

#[test]
fn the_deletion_of_a_node_names_the_version_that_was_seen_and_is_reported() {
    let world = start().with(machine("n", "False"));
    let version = Object::metadata(&*world.get::<Node>("n")).resource_version;
    let mut bed = Bed::<CloudNodeLifecycle>::new(world, "n");
    let plan = bed
        .step(provider(
            Ok(Reply::Is(false)),
            refused(Reason::InstanceNotFound),
        ))
        .unwrap();
    assert_eq!(
        events(&plan),
        ["Normal DeletingNode Deleting node n because it does not exist in the cloud provider"]
    );
    let action = plan.actions().next().unwrap();
    assert!(!action.uid.is_empty());
    assert_eq!(action.resource_version, version);
    let failure = action.announcement.as_ref().unwrap().failure.as_ref();
    let failure = failure.unwrap();
    assert_eq!(&*failure.reason, "DeletingNodeFailed");
    assert_eq!(failure.message, "Failed deleting node n: ");
}

#[test]
fn a_node_whose_machine_is_shut_down_is_tainted_until_it_is_ready() {
    let yes = || Ok(Reply::Is(true));
    let tainted = |ready: &str| machine("n", ready).taint(TAINT, "", "NoSchedule");
    for (node, shutdown, wanted) in [
        (machine("n", "False"), yes(), Some(1)),
        (machine("n", "False"), Ok(Reply::Is(false)), None),
        (
            machine("n", "False"),
            refused(Reason::InstanceNotFound),
            None,
        ),
        (machine("n", "False"), refused(Reason::NotSupported), None),
        (tainted("False"), yes(), None),
        (tainted("False"), Ok(Reply::Is(false)), None),
        (tainted("True"), yes(), Some(0)),
        (machine("n", "True"), yes(), None),
    ] {
        let reported = format!("{node:?} {shutdown:?}");
        let plan = planned(node, yes(), shutdown).unwrap();
        let patch = plan.actions().next().map(|action| match &action.verb {
            controllers_kit::Verb::Patch { patch, .. } => patch["spec"]["taints"].clone(),
            other => panic!("{other:?}"),
        });
        let count = patch.map(|taints| taints.as_array().map_or(0, Vec::len));
        assert_eq!(count, wanted, "{reported}");
    }
}

#[test]
fn a_node_that_is_not_ready_is_asked_for_each_period_and_a_ready_one_never() {
    let mut bed = Bed::<CloudNodeLifecycle>::new(start().with(machine("n", "False")), "n");
    let plan = bed
        .step(provider(Ok(Reply::Is(true)), Ok(Reply::Is(false))))
        .unwrap();
    assert_eq!(plan.requeue, Requeue::At(at("12:00:05")));
    assert_eq!(bed.calls, ["InstanceExists", "InstanceShutdown"]);
    let mut bed = Bed::<CloudNodeLifecycle>::new(start().with(machine("n", "True")), "n");
    let plan = bed.step(|call| panic!("{call:?}")).unwrap();
    assert_eq!(plan, Plan::nothing());
}

#[test]
fn a_provider_in_trouble_is_asked_again_when_it_says_so_or_with_back_off() {
    let failed = planned(
        machine("n", "False"),
        refused(Reason::Failed),
        Ok(Reply::Is(true)),
    );
    assert_eq!(
        failed,
        Err(Refusal::Retry(
            "error checking if the node exists: why".to_owned()
        ))
    );
    let failed = planned(
        machine("n", "False"),
        Ok(Reply::Is(true)),
        refused(Reason::Failed),
    );
    assert!(matches!(failed, Err(Refusal::Retry(why)) if why.contains("is shutdown")));
    let later: Outcome = Err(Refused {
        retry_after: Some(Duration::from_secs(40)),
        ..Refused::new(Reason::Failed, "busy")
    });
    let plan = planned(machine("n", "False"), later, Ok(Reply::Is(true))).unwrap();
    assert_eq!(plan, Plan::nothing().requeued_at(at("12:00:40")));
    let none = refused(Reason::NotSupported);
    let plan = planned(machine("n", "False"), none, Ok(Reply::Is(true))).unwrap();
    assert_eq!(plan, Plan::nothing().requeued_at(at("12:05:00")));
}

#[test]
fn heartbeats_wake_nobody() {
    let world = start();
    let woken = |old: Node, new: Node| {
        let (old, new) = (Arc::new(old) as _, Arc::new(new) as _);
        world.woken::<CloudNodeLifecycle>(Some(&old), Some(&new))
    };
    assert!(woken(machine("n", "True"), machine("n", "True").label("a", "b")).is_empty());
    assert_eq!(woken(machine("n", "True"), machine("n", "Unknown")), ["n"]);
    let tainted = machine("n", "True").taint(TAINT, "", "NoSchedule");
    assert_eq!(woken(machine("n", "True"), tainted), ["n"]);
}

#[test]
fn a_cluster_follows_its_machines() {
    let mut world = start()
        .answering(answer)
        .with(machine("gone", "Unknown"))
        .with(machine("off", "False"))
        .with(machine("well", "True"));
    world.settle_for(20, &[Factory::of::<CloudNodeLifecycle>()]);
    assert!(world.find::<Node>("gone").is_none());
    assert!(is_tainted(&world.get::<Node>("off")));
    assert!(!is_tainted(&world.get::<Node>("well")));
}
