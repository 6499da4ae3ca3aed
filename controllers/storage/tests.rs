use controllers_kit::testing::contract::{self, Contract};

use crate::{REGISTRY, persistentvolume_binder};

#[test]
fn the_contract_holds() {
    contract::covers(REGISTRY, &["persistentvolume-binder-controller"]);
    for factory in REGISTRY {
        let contract = Contract::of(factory).seconds(400);
        match (factory.describe)().name {
            "persistentvolume-binder-controller" => {
                contract.check(persistentvolume_binder::tests::worlds());
            }
            other => panic!("{other} has no worlds"),
        }
    }
}
