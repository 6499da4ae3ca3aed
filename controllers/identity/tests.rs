use controllers_kit::{
    FlagValue, Sharding,
    testing::{
        Common, ConfigMapBuild, NamespaceBuild, World, config_map, contract, namespace,
        service_account,
    },
};

use crate::REGISTRY;

#[test]
fn the_contract_holds() {
    let worlds = |start: World| {
        [
            start
                .clone()
                .with(namespace("shop"))
                .with(namespace("bank"))
                .with(service_account("robot").in_namespace("shop"))
                .with(config_map("settings").in_namespace("shop")),
            start
                .clone()
                .with(namespace("ending").ending("11:59:00"))
                .with(service_account("default").in_namespace("ending"))
                .with(
                    config_map("kube-root-ca.crt")
                        .in_namespace("ending")
                        .data("ca.crt", "forged"),
                )
                .with(namespace("late")),
            start
                .with(
                    service_account("default")
                        .in_namespace("shop")
                        .finalizer("example.com/hold")
                        .terminating("11:59:00"),
                )
                .with(
                    config_map("kube-root-ca.crt")
                        .in_namespace("shop")
                        .data("ca.crt", "forged")
                        .data("more", "x"),
                )
                .with(namespace("bank")),
        ]
    };
    for factory in REGISTRY {
        contract::check(
            factory,
            worlds(World::at("12:00:00").flag(
                "root-ca-file",
                FlagValue::File(Some(b"-----BEGIN CERTIFICATE-----".to_vec())),
            )),
        );
    }
    contract::covers(
        REGISTRY,
        &[
            "serviceaccount-controller",
            "root-ca-certificate-publisher-controller",
        ],
    );
}

#[test]
fn names_are_upstream_s() {
    let table: Vec<_> = REGISTRY
        .iter()
        .map(|factory| {
            let descriptor = (factory.describe)();
            assert_eq!(descriptor.sharding, Sharding::ByNamespace);
            (
                descriptor.name,
                descriptor.aliases,
                descriptor.service_account,
                descriptor.queue,
            )
        })
        .collect();
    let expected: [(_, &[&str], _, _); 2] = [
        (
            "serviceaccount-controller",
            &["serviceaccount"],
            "service-account-controller",
            "serviceaccount",
        ),
        (
            "root-ca-certificate-publisher-controller",
            &["root-ca-cert-publisher"],
            "root-ca-cert-publisher",
            "root_ca_cert_publisher",
        ),
    ];
    assert_eq!(table, expected);
}
