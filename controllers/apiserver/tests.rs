use controllers_kit::testing::{contract::Contract, *};

use crate::{
    REGISTRY,
    storage_version_migrator::tests::migration,
    storageversion_garbage_collector::tests::{identity, storage_version},
    validatingadmissionpolicy_status::tests as policies,
};

#[test]
fn the_contract_holds() {
    let start = || World::at("12:00:00").with(namespace("kube-system"));
    for factory in REGISTRY {
        let contract = Contract::of(factory).seconds(400);
        match (factory.describe)().name {
            "storage-version-migrator-controller" => contract.check([
                start()
                    .with(config_map("one"))
                    .with(config_map("two"))
                    .with(service_account("robot"))
                    .with(migration("maps", "configmaps"))
                    .with(migration("accounts", "serviceaccounts"))
                    .with(migration("unknown", "widgets.example.com")),
                start()
                    .with(config_map("one"))
                    .with(migration("first", "configmaps"))
                    .with(migration("second", "configmaps").created("11:30:00"))
                    .with(migration("young", "gadgets.example.com").created("11:59:50")),
            ]),
            "storageversion-garbage-collector-controller" => contract.check([start()
                .with(identity("here"))
                .with(storage_version(
                    "apps.deployments",
                    &[("here", "v1"), ("gone", "v2")],
                ))
                .with(storage_version("batch.jobs", &[("here", "v1")]))
                .with(storage_version("core.pods", &[("gone", "v1")]))
                .with(storage_version("core.nodes", &[]))]),
            "validatingadmissionpolicy-status-controller" => contract.check(policies::worlds()),
            other => panic!("{other} has no worlds"),
        }
    }
}
