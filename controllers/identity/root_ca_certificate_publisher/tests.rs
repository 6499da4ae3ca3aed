use controllers_kit::{
    Failure, FlagValue, Plan, Verb,
    testing::{Common, ConfigMapBuild, NamespaceBuild, World, config_map, namespace},
};
use kubernetes_proto::core::{ConfigMap, Namespace};
use serde_json::json;

use super::{CERTIFICATES, DESCRIPTION, DESCRIPTION_KEY, NAME, RootCaCertificatePublisher};

/// A world with a CA file.
fn world() -> World {
    World::at("12:00:00").flag(
        "root-ca-file",
        FlagValue::File(Some(b"-----BEGIN CERTIFICATE-----".to_vec())),
    )
}

const CA: &str = "-----BEGIN CERTIFICATE-----";

fn patches(plan: &Plan) -> Vec<serde_json::Value> {
    plan.actions()
        .map(|action| match &action.verb {
            Verb::Patch { patch, .. } => patch.clone(),
            other => panic!("no patch but {other:?}"),
        })
        .collect()
}

#[test]
fn every_active_namespace_gets_the_certificates_with_a_description() {
    let mut world = world().with(namespace("shop"));
    assert_eq!(
        world.plan::<RootCaCertificatePublisher>("shop").verbs(),
        ["create configmaps/kube-root-ca.crt"]
    );
    world.run::<RootCaCertificatePublisher>();
    let map = world.get::<ConfigMap>("shop/kube-root-ca.crt");
    assert_eq!(map.data[CERTIFICATES], CA);
    assert_eq!(map.data.len(), 1);
    assert_eq!(
        map.metadata.as_ref().unwrap().annotation(DESCRIPTION_KEY),
        Some(DESCRIPTION)
    );
}

#[test]
fn changed_content_is_restored_and_no_more() {
    let right = config_map(NAME).in_namespace("shop").data(CERTIFICATES, CA);
    let described = |map: ConfigMap| map.annotation(DESCRIPTION_KEY, DESCRIPTION);
    let table = [
        (described(right.clone()), None),
        (right.clone().annotation(DESCRIPTION_KEY, "mine"), None),
        (
            right.clone(),
            Some(json!({"metadata": {"annotations": {DESCRIPTION_KEY: DESCRIPTION}}})),
        ),
        (
            right.clone().annotation(DESCRIPTION_KEY, ""),
            Some(json!({"metadata": {"annotations": {DESCRIPTION_KEY: DESCRIPTION}}})),
        ),
        (
            right.clone().annotation("team", "blue"),
            Some(json!({"metadata": {"annotations": {DESCRIPTION_KEY: DESCRIPTION}}})),
        ),
        (
            described(right.clone()).data(CERTIFICATES, "forged"),
            Some(json!({"data": {CERTIFICATES: CA}})),
        ),
        (
            right
                .annotation(DESCRIPTION_KEY, "mine")
                .data("more.crt", "x"),
            Some(json!({
                "data": {"more.crt": null},
                "metadata": {"annotations": {DESCRIPTION_KEY: DESCRIPTION}},
            })),
        ),
        (
            described(config_map(NAME).in_namespace("shop")),
            Some(json!({"data": {CERTIFICATES: CA}})),
        ),
    ];
    for (map, expected) in table {
        let mut world = world().with(map.clone());
        let plan = world.plan::<RootCaCertificatePublisher>("shop");
        assert_eq!(
            patches(&plan),
            expected.into_iter().collect::<Vec<_>>(),
            "{map:?}"
        );
        world.apply(&plan).expect_success();
        assert!(
            world
                .plan::<RootCaCertificatePublisher>("shop")
                .is_nothing()
        );
    }
}

#[test]
fn a_deleted_config_map_comes_back() {
    let mut world = world().with(namespace("shop"));
    world.run::<RootCaCertificatePublisher>();
    world.delete::<ConfigMap>("shop/kube-root-ca.crt");
    assert_eq!(world.run::<RootCaCertificatePublisher>().len(), 1);
    assert!(world.find::<ConfigMap>("shop/kube-root-ca.crt").is_some());
}

#[test]
fn a_change_of_the_file_reaches_every_namespace() {
    let mut world = world().with(namespace("shop")).with(namespace("bank"));
    world.run::<RootCaCertificatePublisher>();
    let mut world = world.flag("root-ca-file", FlagValue::File(Some(b"the next".to_vec())));
    assert_eq!(world.run::<RootCaCertificatePublisher>().len(), 2);
    for name in ["shop", "bank"] {
        let map = world.get::<ConfigMap>(&format!("{name}/kube-root-ca.crt"));
        assert_eq!(map.data[CERTIFICATES], "the next");
    }
}

#[test]
fn without_any_certificates_an_empty_text_is_published() {
    let mut world = World::at("12:00:00").with(namespace("shop"));
    world.run::<RootCaCertificatePublisher>();
    let map = world.get::<ConfigMap>("shop/kube-root-ca.crt");
    assert_eq!(map.data[CERTIFICATES], "");
}

#[test]
fn namespaces_that_are_not_active_are_left_alone() {
    let world = world()
        .with(namespace("ending").ending("11:59:00"))
        .with(
            config_map(NAME)
                .in_namespace("ending")
                .data(CERTIFICATES, "forged"),
        )
        .with(Namespace {
            status: None,
            ..namespace("new")
        });
    for name in ["ending", "new", "missing"] {
        assert_eq!(
            world.plan::<RootCaCertificatePublisher>(name),
            Plan::nothing(),
            "{name}"
        );
    }
}

#[test]
fn a_namespace_that_ends_meanwhile_takes_no_more() {
    let mut world = world().with(namespace("shop"));
    let plan = world.plan::<RootCaCertificatePublisher>("shop");
    world.delete::<Namespace>("shop");
    let applied = world.apply(&plan);
    assert!(
        matches!(
            applied.failures()[..],
            [(_, Failure::NamespaceTerminating(_))]
        ),
        "{applied:?}"
    );
    assert!(world.run::<RootCaCertificatePublisher>().is_empty());
}

#[test]
fn other_config_maps_are_ignored() {
    let mut world = world().with(config_map("settings").in_namespace("shop").data("a", "b"));
    world.run::<RootCaCertificatePublisher>();
    assert_eq!(
        world.get::<ConfigMap>("shop/settings").data["a"],
        "b",
        "it was not ours"
    );
    assert_eq!(world.all::<ConfigMap>().len(), 2);
}
