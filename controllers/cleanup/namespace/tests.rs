use controllers_kit::{
    Answer, Controller, Failure, FlagValue, Flags, Object, Outcome, Plan, Refusal, Requeue,
    Resource, Str,
    catalogue::{Catalogue, Entry},
    testing::*,
};
use kubernetes_proto::{
    core::{ConfigMap, Namespace, Pod},
    kinds,
    meta::ObjectMeta,
    metadata_only,
};

use super::{Namespaces, Progress};

fn start() -> World {
    World::at("12:00:00")
        .without_collector()
        .without_kubelets()
        .with(namespace("shop").ending("12:00:00"))
}

fn settings(name: &str) -> ConfigMap {
    config_map(name).in_namespace("shop")
}

fn cart(name: &str) -> Pod {
    pod(name).in_namespace("shop")
}

/// The plan of a namespace whose first five seconds are over.
fn plan(world: &World, progress: &mut Progress) -> Plan {
    if progress.since.is_none() {
        progress.uid = Object::metadata(&*world.get::<Namespace>("shop"))
            .uid
            .to_string();
        progress.since = Some(at("11:59:55"));
    }
    world.plan_with::<Namespaces>("shop", progress).unwrap()
}

fn conditions(world: &World) -> Vec<String> {
    let namespace = world.get::<Namespace>("shop");
    let status = namespace.status.clone().unwrap_or_default();
    status
        .conditions
        .iter()
        .map(|one| {
            format!(
                "{} {} {}: {}",
                one.r#type, one.status, one.reason, one.message
            )
        })
        .collect()
}

fn controller() -> Namespaces {
    Namespaces::new(&Flags::defaults([&Namespaces::describe()]))
}

/// With its deletions remembered, as the node does.
fn apply(world: &mut World, plan: &Plan, progress: &mut Progress) {
    for (action, result) in world.apply(plan).0 {
        let result = result.as_ref().cloned();
        let action = &action;
        controller().learn(&Outcome { action, result }, progress);
    }
}

/// Every write of a plan has failed so.
fn learn(plan: &Plan, failure: &Failure, progress: &mut Progress) {
    for action in plan.actions() {
        let result = Err(failure);
        controller().learn(&Outcome { action, result }, progress);
    }
}

#[test]
fn a_namespace_is_left_alone_while_active_and_for_five_seconds_after() {
    let living = World::at("12:00:00")
        .with(namespace("shop"))
        .with(settings("a"));
    assert!(living.plan::<Namespaces>("shop") == Plan::nothing());

    let world = start().with(settings("a"));
    let mut progress = Progress::default();
    let first = world
        .plan_with::<Namespaces>("shop", &mut progress)
        .unwrap();
    assert!(first.is_nothing());
    assert_eq!(first.requeue, Requeue::At(at("12:00:05")));
    let then = world.later(5);
    let pods = then.plan_with::<Namespaces>("shop", &mut progress).unwrap();
    assert!(pods.is_nothing() && pods.requeue == Requeue::Now);
    let second = then.plan_with::<Namespaces>("shop", &mut progress).unwrap();
    assert_eq!(second.verbs(), ["deletecollection configmaps/"]);
}

#[test]
fn pods_go_first_then_the_rest_then_the_namespace() {
    let mut world = start().with(settings("a")).with(cart("one"));
    let mut progress = Progress::default();
    for expected in [
        &["deletecollection pods/"][..],
        &[],
        &["deletecollection configmaps/"],
        &["update namespaces/shop/finalize"],
    ] {
        let plan = plan(&world, &mut progress);
        assert_eq!(plan.verbs(), expected);
        apply(&mut world, &plan, &mut progress);
    }
    assert!(world.find::<Namespace>("shop").is_none());

    let unordered = start()
        .with(settings("a"))
        .with(cart("one"))
        .flag("OrderedNamespaceDeletion", FlagValue::Bool(false));
    assert_eq!(
        plan(&unordered, &mut Progress::default()).verbs(),
        ["deletecollection pods/", "deletecollection configmaps/"]
    );
}

#[test]
fn pods_that_need_their_time_are_waited_for() {
    let mut world = start()
        .with(settings("a"))
        .with(cart("one").ready("11:00:00"));
    let mut progress = Progress::default();
    let deletes = plan(&world, &mut progress);
    apply(&mut world, &deletes, &mut progress);
    let waits = plan(&world, &mut progress);
    assert_eq!(waits.verbs(), ["patch namespaces/shop/status"]);
    assert_eq!(
        waits.requeue,
        Requeue::At(at("12:00:16")),
        "half of their 30 s and one more"
    );
    apply(&mut world, &waits, &mut progress);
    assert!(
        conditions(&world).contains(
            &"NamespaceContentRemaining False ContentRemoved: All content successfully removed"
                .to_owned()
        ),
        "as upstream says while pods are left"
    );
    world.vanish::<Pod>("shop/one");
    let then = plan(&world, &mut progress);
    assert!(then.is_nothing() && then.requeue == Requeue::Now);
}

#[test]
fn finalizers_keep_a_namespace_and_the_conditions_name_them() {
    let mut world = start()
        .with(settings("a").finalizer("example.com/hold"))
        .with(settings("b").finalizer("example.com/hold"))
        .with(settings("c"));
    let mut progress = Progress::default();
    let pods = plan(&world, &mut progress);
    assert!(pods.is_nothing(), "no pods: on to the rest");
    let deletes = plan(&world, &mut progress);
    apply(&mut world, &deletes, &mut progress);
    let waits = plan(&world, &mut progress);
    assert_eq!(
        waits.requeue,
        Requeue::At(at("12:00:08")),
        "half of 15 s and one more"
    );
    apply(&mut world, &waits, &mut progress);
    assert_eq!(
        conditions(&world),
        [
            "NamespaceDeletionDiscoveryFailure False ResourcesDiscovered: All resources successfully discovered",
            "NamespaceDeletionGroupVersionParsingFailure False ParsedGroupVersions: All legacy kube types successfully parsed",
            "NamespaceDeletionContentFailure False ContentDeleted: All content successfully deleted, may be waiting on finalization",
            "NamespaceContentRemaining True SomeResourcesRemain: Some resources are remaining: configmaps. has 2 resource instances",
            "NamespaceFinalizersRemaining True SomeFinalizersRemain: Some content in the namespace has finalizers remaining: example.com/hold in 2 resource instances",
        ]
    );
    assert!(plan(&world, &mut progress).is_nothing(), "said once");
    for name in ["shop/a", "shop/b"] {
        world.change::<ConfigMap>(name, |map| map.metadata_mut().finalizers.clear());
    }
    let last = plan(&world, &mut progress);
    assert_eq!(last.verbs(), ["update namespaces/shop/finalize"]);
    apply(&mut world, &last, &mut progress);
    assert!(world.find::<Namespace>("shop").is_none());
}

#[test]
fn another_finalizer_of_the_namespace_leaves_it_with_its_conditions() {
    let mut held = namespace("shop").ending("12:00:00");
    held.spec
        .get_or_insert_default()
        .finalizers
        .push("example.com/other".to_owned());
    let mut world = World::at("12:00:10").without_collector().with(held);
    let mut progress = Progress::default();
    for _ in 0..2 {
        let plan = plan(&world, &mut progress);
        apply(&mut world, &plan, &mut progress);
    }
    let namespace = world.get::<Namespace>("shop");
    assert_eq!(
        namespace.spec.as_ref().unwrap().finalizers,
        ["example.com/other"]
    );
    assert_eq!(conditions(&world).len(), 5);
    assert!(plan(&world, &mut Progress::default()).is_nothing());
}

fn partial(plural: &str) -> &'static Resource {
    metadata_only("example.com", "v1", "Gadget", plural, true).unwrap()
}

fn catalogue(more: &[(&'static Resource, &[&str])], failures: &[(&str, &str)]) -> Catalogue {
    let entry = |resource, verbs: &[&str]| Entry {
        resource,
        verbs: verbs.iter().map(|verb| Str::from(*verb)).collect(),
        subresources: Vec::new(),
        preferred: true,
    };
    let all = ["delete", "deletecollection", "list"];
    let mut entries: Vec<Entry> = kinds().into_iter().map(|kind| entry(kind, &all)).collect();
    entries.extend(more.iter().map(|(resource, verbs)| entry(*resource, verbs)));
    let failures = failures
        .iter()
        .map(|(name, why)| (Str::from(*name), Str::from(*why)));
    Catalogue::new(entries, failures.collect(), 1)
}

fn gadget(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: name.into(),
        namespace: "shop".into(),
        ..Default::default()
    }
}

#[test]
fn resources_without_deletecollection_are_deleted_one_by_one_and_undeletable_ones_stay() {
    let (single, fixed) = (partial("gadgets"), partial("fixtures"));
    let world = start()
        .with_catalogue(catalogue(
            &[(single, &["delete", "list"]), (fixed, &["list"])],
            &[],
        ))
        .with_partial(single, gadget("one"))
        .with_partial(single, gadget("two"))
        .with_partial(fixed, gadget("three"));
    let mut progress = Progress::default();
    plan(&world, &mut progress);
    assert_eq!(
        plan(&world, &mut progress).verbs(),
        ["delete gadgets/one", "delete gadgets/two"]
    );
}

/// Plans and applies until nothing is to be done at once any more; the requests.
fn settle(world: &mut World, progress: &mut Progress) -> Vec<String> {
    let mut requests = Vec::new();
    for _ in 0..20 {
        let plan = plan(world, progress);
        let at_once = plan.requeue == Requeue::Now;
        requests.extend(plan.verbs());
        apply(world, &plan, progress);
        if !at_once || world.find::<Namespace>("shop").is_none() {
            return requests;
        }
    }
    panic!("the namespace is reconciled without end: {requests:?}");
}

#[test]
fn a_resource_seen_empty_long_before_is_read_again_before_the_namespace_goes() {
    for (waited, expected) in [
        // Within one pass' time.
        (8, &["update namespaces/shop/finalize"][..]),
        (
            3600,
            &[
                "deletecollection gadgets/",
                "update namespaces/shop/finalize",
            ],
        ),
    ] {
        let gadgets = partial("gadgets");
        let mut world = start()
            .with_catalogue(catalogue(
                &[(gadgets, &["delete", "deletecollection", "list"])],
                &[],
            ))
            .with(settings("a").finalizer("example.com/hold"));
        let mut progress = Progress::default();
        settle(&mut world, &mut progress);
        // An API without the NamespaceLifecycle admission has let it in.
        let mut world = world.later(waited).with_partial(gadgets, gadget("late"));
        world.change::<ConfigMap>("shop/a", |map| map.metadata_mut().finalizers.clear());
        assert_eq!(settle(&mut world, &mut progress), expected, "{waited} s");
        assert!(world.find::<Namespace>("shop").is_none());
    }
}

#[test]
fn a_resource_that_was_not_found_is_not_taken_for_empty_for_good() {
    let gadgets = partial("gadgets");
    let path = gadgets.path("shop", "");
    let verbs: &[&str] = &["delete", "deletecollection", "list"];
    let mut world = start()
        .with_catalogue(catalogue(&[(gadgets, verbs)], &[]))
        .with(settings("a").finalizer("example.com/hold"));
    let mut missing = world.clone();
    missing.serve(&path, Answer::Missing);
    let mut progress = Progress::default();
    settle(&mut missing, &mut progress);
    assert!(!progress.emptied.contains("gadgets.example.com"));

    // It is served again, with an object.
    world = world.with_partial(gadgets, gadget("one"));
    let next = settle(&mut world, &mut progress);
    assert_eq!(
        next[..2],
        ["deletecollection configmaps/", "deletecollection gadgets/"]
    );

    // One that stays away keeps nothing.
    let mut world = start().with_catalogue(catalogue(&[(gadgets, verbs)], &[]));
    world.serve(&path, Answer::Missing);
    let all = settle(&mut world, &mut Progress::default());
    assert_eq!(all, ["update namespaces/shop/finalize"]);
}

#[test]
fn a_collection_that_the_server_refuses_to_delete_goes_one_by_one() {
    for refusal in [
        Failure::NotSupported("the server does not allow this method".into()),
        Failure::NotFound("the server could not find the requested resource".into()),
    ] {
        let gadgets = partial("gadgets");
        let world = start()
            .with_catalogue(catalogue(
                &[(gadgets, &["delete", "deletecollection", "list"])],
                &[],
            ))
            .with_partial(gadgets, gadget("one"))
            .with_partial(gadgets, gadget("two"));
        let mut progress = Progress::default();
        plan(&world, &mut progress);
        let collection = plan(&world, &mut progress);
        assert_eq!(collection.verbs(), ["deletecollection gadgets/"]);
        learn(&collection, &refusal, &mut progress);
        let each = plan(&world, &mut progress);
        assert_eq!(each.verbs(), ["delete gadgets/one", "delete gadgets/two"]);

        // Not even that: what remains is named, as any other that should have gone.
        learn(&each, &Failure::NotSupported("405".into()), &mut progress);
        let mut world = world;
        let named = plan(&world, &mut progress);
        apply(&mut world, &named, &mut progress);
        assert_eq!(
            conditions(&world)[2],
            "NamespaceDeletionContentFailure True ContentDeletionFailed: Failed to delete all resource types, 1 remaining: unexpected items still remain in namespace: shop for gvr: example.com/v1, Resource=gadgets"
        );
    }
}

#[test]
fn an_outdated_catalogue_keeps_the_namespace() {
    let mut old = catalogue(&[], &[]);
    old.outdated = Some("no answer within 10 s".into());
    let mut world = start().with_catalogue(old).with(settings("a"));
    let mut progress = Progress::default();
    for _ in 0..4 {
        settle(&mut world, &mut progress);
    }
    assert!(world.find::<ConfigMap>("shop/a").is_none(), "the rest goes");
    assert!(world.find::<Namespace>("shop").is_some());
    assert_eq!(
        conditions(&world)[0],
        "NamespaceDeletionDiscoveryFailure True DiscoveryFailed: no answer within 10 s"
    );
    let mut world = world.with_catalogue(catalogue(&[], &[]));
    assert_eq!(
        settle(&mut world, &mut progress),
        ["update namespaces/shop/finalize"]
    );
}

#[test]
fn a_group_that_can_t_be_discovered_keeps_the_namespace_and_is_named() {
    let why = "stale GroupVersion discovery: example.com/v1";
    let mut world = start()
        .with_catalogue(catalogue(&[], &[("example.com/v1", why)]))
        .with(settings("a"));
    let mut progress = Progress::default();
    for _ in 0..4 {
        let plan = plan(&world, &mut progress);
        apply(&mut world, &plan, &mut progress);
    }
    assert!(
        world.find::<ConfigMap>("shop/a").is_none(),
        "the rest goes all the same"
    );
    assert_eq!(
        conditions(&world)[0],
        "NamespaceDeletionDiscoveryFailure True DiscoveryFailed: Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server APIs: example.com/v1: stale GroupVersion discovery: example.com/v1"
    );
    assert!(matches!(
        plan(&world, &mut progress).requeue,
        Requeue::At(_)
    ));
    assert!(world.find::<Namespace>("shop").is_some());
}

#[test]
fn content_that_remains_after_its_deletion_is_a_failure_and_retried() {
    let mut stuck = settings("a");
    stuck.metadata_mut().deletion_timestamp = Some(at("12:00:01").into());
    let mut world = start().with(stuck);
    let mut progress = Progress::default();
    plan(&world, &mut progress);
    progress.deletion_requested.insert("configmaps".to_owned());
    let failed = plan(&world, &mut progress);
    apply(&mut world, &failed, &mut progress);
    assert_eq!(
        conditions(&world)[2],
        "NamespaceDeletionContentFailure True ContentDeletionFailed: Failed to delete all resource types, 1 remaining: unexpected items still remain in namespace: shop for gvr: /v1, Resource=configmaps"
    );
    let mut waits = Vec::new();
    for _ in 0..3 {
        let Requeue::At(next) = plan(&world, &mut progress).requeue else {
            panic!("it is tried again");
        };
        waits.push(next.duration_since(world.now()).as_millis());
    }
    assert_eq!(waits, [10, 20, 40]);
}

#[test]
fn without_discovery_nothing_is_decided() {
    let world = start().with_catalogue(Catalogue::default()).later(10);
    let mut progress = Progress {
        uid: Object::metadata(&*world.get::<Namespace>("shop"))
            .uid
            .to_string(),
        since: Some(at("12:00:00")),
        ..Progress::default()
    };
    let refusal = world
        .plan_with::<Namespaces>("shop", &mut progress)
        .unwrap_err();
    assert!(matches!(refusal, Refusal::Retry(_)));
}

#[test]
fn a_later_namespace_of_the_name_starts_over() {
    let world = start().later(60);
    let mut progress = Progress {
        uid: "another".to_owned(),
        since: Some(at("11:00:00")),
        emptied: [String::from("configmaps")].into(),
        ..Progress::default()
    };
    let plan = world
        .plan_with::<Namespaces>("shop", &mut progress)
        .unwrap();
    assert!(plan.is_nothing());
    assert_eq!(progress.since, Some(world.now()));
    assert!(progress.emptied.is_empty());
}
