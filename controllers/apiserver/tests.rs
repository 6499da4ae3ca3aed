use controllers_kit::testing::contract::Contract;

use crate::{REGISTRY, validatingadmissionpolicy_status::tests as policies};

#[test]
fn the_contract_holds() {
    for factory in REGISTRY {
        let contract = Contract::of(factory);
        match (factory.describe)().name {
            "validatingadmissionpolicy-status-controller" => contract.check(policies::worlds()),
            other => panic!("{other} has no worlds"),
        }
    }
}
