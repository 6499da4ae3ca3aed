use controllers_kit::{
    FlagValue,
    testing::{contract::Contract, *},
};

use crate::{REGISTRY, node_lifecycle::tests::posted, taint_eviction::tests::bearing};

#[test]
fn the_contract_holds() {
    let joining = World::at("12:00:00")
        .with(node("a"))
        .with(node("b"))
        .with(node("c"));
    let lacking = joining
        .clone()
        .flag("allocate-node-cidrs", FlagValue::Bool(true))
        .flag(
            "cluster-cidr",
            FlagValue::Text("10.0.0.0/16,fd00::/48".to_owned()),
        );
    let exposed = World::at("12:00:00")
        .without_kubelets()
        .with(node("a").taint("down", "", "NoExecute"))
        .with(node("b").taint("slow", "", "NoSchedule"))
        .with(pod("at-once").on("a").ready("11:00:00"))
        .with(bearing(
            pod("later").on("a").ready("11:00:00"),
            "down",
            Some(60),
        ))
        .with(bearing(pod("never").on("a"), "down", None))
        .with(pod("elsewhere").on("b").ready("11:00:00"))
        .with(pod("nowhere"));
    let falling_ill = World::at("12:00:00")
        .without_kubelets()
        .with(posted("lives", "True", "a"))
        .living("lives")
        .with(posted("well", "True", "b"))
        .living("well")
        .with(posted("dies", "True", "a"))
        .with(posted("ill", "False", "b"))
        .living("ill")
        .with(posted("back", "True", "b").taint("node.kubernetes.io/unreachable", "", "NoExecute"))
        .living("back")
        .with(node("new").label("kubernetes.io/os", "linux"))
        .with(pod("web").on("dies").ready("11:00:00"))
        .with(pod("other").on("lives").ready("11:00:00"));
    for factory in REGISTRY {
        let contract = Contract::of(factory).seconds(400);
        match (factory.describe)().name {
            "node-ipam-controller" => contract.check([
                lacking.clone(),
                lacking
                    .clone()
                    .flag("cluster-cidr", FlagValue::Text("10.0.0.0/23".to_owned())),
            ]),
            "node-lifecycle-controller" => contract.check([falling_ill.clone()]),
            "taint-eviction-controller" => contract.check([exposed.clone()]),
            "ttl-controller" => contract.check([joining.clone()]),
            other => panic!("{other} has no worlds"),
        }
    }
}
