use controllers_kit::testing::{contract::Contract, *};

use crate::REGISTRY;

#[test]
fn the_contract_holds() {
    let joining = World::at("12:00:00")
        .with(node("a"))
        .with(node("b"))
        .with(node("c"));
    for factory in REGISTRY {
        let contract = Contract::of(factory).seconds(400);
        match (factory.describe)().name {
            "ttl-controller" => contract.check([joining.clone()]),
            other => panic!("{other} has no worlds"),
        }
    }
}
