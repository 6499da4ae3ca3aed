use controllers_kit::testing::{PodBuild as _, contract::Contract, *};

use crate::{
    REGISTRY,
    device_taint_eviction::tests::{
        ClaimBuild as _, SliceBuild as _, UserBuild as _, gpus, rule, slice, taint, with_rules,
    },
    podgroup_protection::tests as groups,
    resourceclaim::tests as claims,
    resourcepoolstatusrequest::tests::{answered, request},
};

/// Pods whose devices are broken, at once or later, tolerated or not.
fn broken() -> World {
    let broken = |since: &str| taint("broken", "NoExecute", since);
    let user = |name: &str| pod(name).on("n1").uses(name);
    let mut world = World::at("12:00:00")
        .without_kubelets()
        .with(
            slice("s1", "n1")
                .device("at-once", &[broken("11:59:00")])
                .device("later", &[broken("11:59:30")])
                .device("never", &[broken("11:59:00")])
                .device("good", &[]),
        )
        .with(
            slice("s0", "n1")
                .device("good", &[broken("11:00:00")])
                .of_pool(0, 1),
        )
        .with(pod("unbound").uses("at-once"))
        .with(pod("other").on("n1"));
    for (name, seconds) in [
        ("at-once", Some(0)),
        ("later", Some(120)),
        ("never", None),
        ("good", Some(0)),
    ] {
        let claim = gpus(name, &[("n1", name)]).reserved(&user(name));
        world = world
            .with(claim.tolerates("broken", seconds))
            .with(user(name));
    }
    world
}

#[test]
fn the_contract_holds() {
    let ruled = || {
        with_rules(broken())
            .with(rule("none", "None", None, "12:00:00"))
            .with(rule("good", "NoExecute", Some("good"), "12:00:30"))
            .with(rule("other", "NoSchedule", None, "12:00:00"))
    };
    let asked = World::at("12:00:00")
        .with(slice("s1", "a").device("gpu-0", &[]))
        .with(slice("s2", "b").device("gpu-0", &[]).of_pool(1, 2))
        .with(gpus("one", &[("a", "gpu-0")]))
        .with(request("waits"))
        .with(answered("done", Some(("Complete", "11:30:00"))))
        .with(answered("old", Some(("Complete", "10:30:00"))));
    let complete = asked
        .clone()
        .with(slice("s3", "b").device("gpu-1", &[]).of_pool(1, 2));
    for factory in REGISTRY {
        let contract = Contract::of(factory).seconds(400);
        match (factory.describe)().name {
            "device-taint-eviction-controller" => contract.check([broken(), ruled()]),
            "resourcepoolstatusrequest-controller" => {
                contract.check([asked.clone(), complete.clone()]);
            }
            "podgroup-protection-controller" => contract.check([World::at("12:00:00")
                .without_kubelets()
                .with(groups::leaving("unused"))
                .with(groups::leaving("used").finalizer("other/one"))
                .with(groups::group("kept"))
                .with(groups::member("one", "used"))
                .with(groups::member("two", "unused").phase("Failed"))
                .with(pod("plain").on("node-1").phase("Running"))]),
            "resourceclaim-controller" => contract.check(claims::worlds()),
            other => panic!("{other} has no worlds"),
        }
    }
}
