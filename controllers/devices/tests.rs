use controllers_kit::testing::{PodBuild as _, contract, contract::Contract, *};

use crate::{REGISTRY, podgroup_protection::tests as groups, resourceclaim::tests as claims};

#[test]
fn the_contract_holds() {
    contract::covers(
        REGISTRY,
        &["podgroup-protection-controller", "resourceclaim-controller"],
    );
    for factory in REGISTRY {
        let contract = Contract::of(factory).seconds(400);
        match (factory.describe)().name {
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
