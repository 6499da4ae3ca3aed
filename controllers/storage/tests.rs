use controllers_kit::testing::contract::Contract;

use crate::{
    REGISTRY,
    persistentvolume_attach_detach::tests::{attachment, kept_node, user, world},
};

#[test]
fn the_contract_holds() {
    const V: &str = "kubernetes.io/csi/d^h";
    for factory in REGISTRY {
        let contract = Contract::of(factory).seconds(800);
        match (factory.describe)().name {
            "persistentvolume-attach-detach-controller" => {
                let once = || world(&["ReadWriteOnce"]);
                contract.check([
                    once().with(kept_node("a", &[], &[])).with(user("web", "a")),
                    once()
                        .with(kept_node("a", &[], &[]))
                        .with(user("web", "a"))
                        .with(attachment("a", true)),
                    once()
                        .with(kept_node("a", &[V], &[]))
                        .with(kept_node("b", &[], &[]))
                        .with(attachment("a", true))
                        .with(user("web", "b")),
                ]);
            }
            other => panic!("{other} has no worlds"),
        }
    }
}
