use controllers_kit::{
    Failure, Plan,
    testing::{Common, NamespaceBuild, World, namespace, service_account},
};
use kubernetes_proto::core::{Namespace, ServiceAccount};

use super::ServiceAccounts;

#[test]
fn every_active_namespace_has_a_default_account() {
    let mut world = World::at("12:00:00")
        .with(namespace("shop"))
        .with(service_account("robot").in_namespace("shop"));
    assert_eq!(
        world.plan::<ServiceAccounts>("shop").verbs(),
        ["create serviceaccounts/default"]
    );
    world.run::<ServiceAccounts>();
    assert!(world.find::<ServiceAccount>("shop/default").is_some());
    assert!(world.plan::<ServiceAccounts>("shop").is_nothing());
}

#[test]
fn a_deleted_default_account_comes_back() {
    let mut world = World::at("12:00:00").with(namespace("shop"));
    world.run::<ServiceAccounts>();
    let first = world.get::<ServiceAccount>("shop/default");
    world.delete::<ServiceAccount>("shop/default");
    world.run::<ServiceAccounts>();
    let second = world.get::<ServiceAccount>("shop/default");
    assert_ne!(
        first.metadata.as_ref().unwrap().uid,
        second.metadata.as_ref().unwrap().uid
    );
}

#[test]
fn an_account_that_is_being_deleted_holds_its_name_until_it_is_gone() {
    let mut world = World::at("12:00:00").with(
        service_account("default")
            .in_namespace("shop")
            .finalizer("example.com/hold")
            .terminating("11:59:00"),
    );
    assert!(world.plan::<ServiceAccounts>("shop").is_nothing());
    world.vanish::<ServiceAccount>("shop/default");
    assert!(!world.plan::<ServiceAccounts>("shop").is_nothing());
}

#[test]
fn namespaces_that_are_not_active_are_left_alone() {
    let mut marked = namespace("marked").terminating("11:59:00");
    marked.status.as_mut().unwrap().phase = "Active".into();
    let world = World::at("12:00:00")
        .with(namespace("ending").ending("11:59:00"))
        .with(marked)
        .with(Namespace {
            status: None,
            ..namespace("new")
        });
    for name in ["ending", "marked", "new", "missing"] {
        assert_eq!(
            world.plan::<ServiceAccounts>(name),
            Plan::nothing(),
            "{name}"
        );
    }
}

#[test]
fn two_that_see_no_account_make_one() {
    let mut world = World::at("12:00:00").with(namespace("shop"));
    let plan = world.plan::<ServiceAccounts>("shop");
    world.apply(&plan).expect_success();
    let again = world.apply(&plan);
    assert!(
        matches!(again.failures()[..], [(_, Failure::AlreadyExists(_))]),
        "{again:?}"
    );
    assert_eq!(world.all::<ServiceAccount>().len(), 1);
}
