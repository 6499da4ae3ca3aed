use controllers_kit::{
    FlagValue, Object, Only, Plan, Propagation,
    testing::{contract::Contract, *},
};
use kubernetes_proto::{
    apps::ReplicaSet,
    core::{Amount, Pod, ResourceQuota},
    meta::Quantity,
};

use crate::REGISTRY;

fn deleted(mut world: World, propagation: Propagation) -> World {
    let mut plan = Plan::nothing();
    plan.delete(&*world.get::<ReplicaSet>("web"), Only::ThisUid, propagation);
    world.apply(&plan).expect_success();
    world
}

fn owned(name: &str) -> Pod {
    pod(name).owned_by(&replica_set("web")).ready("11:00:00")
}

#[test]
fn the_contract_holds() {
    let start = World::at("12:00:00").with(namespace("kube-system"));
    let sets = start
        .clone()
        .without_collector()
        .with(replica_set("web"))
        .with(replica_set("other"))
        .with(owned("web-1"))
        .with(owned("web-2").finalizer("example.com/hold"))
        .with({
            let mut shared = owned("web-3");
            let mut second = owner_reference(&replica_set("other"));
            second.controller = None;
            shared.metadata_mut().owner_references.push(second);
            shared
        })
        .with(pod("alone"));
    let collected = [
        sets.clone(),
        deleted(sets.clone(), Propagation::Background),
        deleted(sets.clone(), Propagation::Foreground),
        deleted(sets, Propagation::Orphan),
    ];
    let pods = start
        .clone()
        .without_kubelets()
        .with(node("node-1"))
        .with(pod("lost").on("node-9").phase("Running"))
        .with(pod("well").on("node-1").phase("Running"))
        .with(pod("never").terminating("11:59:00"));
    let ended = start
        .clone()
        .without_kubelets()
        .flag("terminated-pod-gc-threshold", FlagValue::Int(1))
        .with(node("node-1"))
        .with(pod("runs").on("node-1").phase("Running"))
        .with(pod("done-1").on("node-1").phase("Succeeded"))
        .with(pod("done-2").on("node-1").phase("Failed"));
    let ending = start
        .without_collector()
        .with(namespace("shop").ending("12:00:00"))
        .with(config_map("a").in_namespace("shop"))
        .with(pod("one").in_namespace("shop").ready("11:00:00"))
        .with(pod("two").in_namespace("shop").ready("11:00:00"))
        .with(config_map("b"));
    let mut limits = ResourceQuota::default();
    limits.metadata_mut().name = "limits".into();
    limits.metadata_mut().namespace = "default".into();
    limits.spec.get_or_insert_default().hard = ["pods", "count/pods", "configmaps"]
        .map(|name| Amount {
            key: name.into(),
            value: Some(Quantity::text("9")),
        })
        .to_vec();
    let limited = World::at("12:00:00")
        .with(limits)
        .with(pod("runs").in_namespace("default"))
        .with(pod("goes").in_namespace("default").terminating("11:59:00"))
        .with(pod("done").in_namespace("default").phase("Succeeded"))
        .with(config_map("a").in_namespace("default"));
    for factory in REGISTRY {
        // Long enough for the quarantine of lost nodes to begin again a few times, as it does when it is
        // forgotten.
        let contract = Contract::of(factory).seconds(400);
        match (factory.describe)().name {
            "garbage-collector-controller" => contract.check(collected.clone()),
            "pod-garbage-collector-controller" => contract.check([pods.clone(), ended.clone()]),
            "namespace-controller" => contract.check([ending.clone()]),
            "resourcequota-controller" => contract.check([limited.clone()]),
            other => panic!("{other} has no worlds"),
        }
    }
}
