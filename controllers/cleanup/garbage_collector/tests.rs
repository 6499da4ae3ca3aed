use std::sync::Arc;

use controllers_kit::{
    Answers, AnyObject, Counted, Factory, Object, Only, Plan, Propagation, Reader, Refusal,
    Resource, Snapshot, Standing, Str,
    catalogue::{Catalogue, Entry},
    testing::*,
};
use kubernetes_proto::{
    Shared,
    apps::ReplicaSet,
    core::{ConfigMap, Node, Pod},
    kinds,
    meta::{ObjectMeta, OwnerReference},
    metadata_only,
};

use super::{GarbageCollector, Refused, key, plan};

const GC: Factory = Factory::of::<GarbageCollector>();

fn start() -> World {
    World::at("12:00:00").without_collector().without_kubelets()
}

fn web() -> ReplicaSet {
    replica_set("web")
}

/// An owner reference that blocks, or not.
fn named(mut reference: Shared<OwnerReference>, blocks: bool) -> Shared<OwnerReference> {
    reference.controller = None;
    reference.block_owner_deletion = blocks.then_some(true);
    reference
}

fn with_owners<T: Object>(mut object: T, owners: Vec<Shared<OwnerReference>>) -> T {
    object.metadata_mut().owner_references = owners;
    object
}

fn key_of<T: Object>(world: &World, name: &str) -> String {
    key::of(&*world.get::<T>(name)).to_string()
}

fn plan_of<T: Object>(world: &World, name: &str) -> Plan {
    world.plan::<GarbageCollector>(&key_of::<T>(world, name))
}

fn delete<T: Object>(world: &mut World, name: &str, propagation: Propagation) {
    let mut plan = Plan::nothing();
    plan.delete(&*world.get::<T>(name), Only::ThisUid, propagation);
    world.apply(&plan).expect_success();
}

fn collect(world: &mut World) {
    world.settle(&[GC]);
}

fn deletion(plan: &Plan) -> Option<(Only, Propagation)> {
    plan.actions().find_map(|action| match action.verb {
        controllers_kit::Verb::Delete {
            only, propagation, ..
        } => Some((only, propagation)),
        _ => None,
    })
}

#[test]
fn a_background_deletion_deletes_the_dependents() {
    let mut world = start()
        .with(web())
        .with(pod("web-1").owned_by(&web()))
        .with(pod("other"));
    collect(&mut world);
    assert_eq!(world.all::<Pod>().len(), 2, "a living owner keeps all");
    world.delete::<ReplicaSet>("web");
    let plan = plan_of::<Pod>(&world, "web-1");
    assert_eq!(plan.verbs(), ["delete pods/web-1"]);
    assert_eq!(
        deletion(&plan),
        Some((Only::ThisVersion, Propagation::Background))
    );
    collect(&mut world);
    assert_eq!(world.all::<Pod>().len(), 1);
    assert!(world.find::<Pod>("other").is_some());
}

#[test]
fn a_later_owner_of_the_same_name_is_another() {
    let mut old = owner_reference(&web());
    old.uid = "uid-of-old".into();
    let world = start()
        .with(web())
        .with(with_owners(pod("web-1"), vec![old]));
    assert_eq!(
        plan_of::<Pod>(&world, "web-1").verbs(),
        ["delete pods/web-1"]
    );
}

#[test]
fn an_existing_owner_keeps_the_object_and_missing_ones_are_removed_from_it() {
    let living = web();
    let gone = named(owner_reference(&replica_set("gone")), true);
    let mut world = start().with(living.clone()).with(with_owners(
        pod("web-1"),
        vec![gone, owner_reference(&living)],
    ));
    assert_eq!(
        plan_of::<Pod>(&world, "web-1").verbs(),
        ["patch pods/web-1"]
    );
    collect(&mut world);
    let pod = world.get::<Pod>("web-1");
    let owners = &Object::metadata(&*pod).owner_references;
    assert_eq!(owners.len(), 1);
    assert_eq!(owners[0].uid, Object::metadata(&living).uid);
}

/// An owner that comes and goes while a watch is away is in no cache before or after: nothing but asking
/// again finds that it is gone (kubernetes/kubernetes issue 56121).
#[test]
fn an_owner_that_no_watch_shows_yet_is_read_again() {
    let owner = web();
    let seen = start().with(with_owners(pod("web-1"), vec![owner_reference(&owner)]));
    let server = seen.clone().with(owner);
    let plan_by = |server: &World| {
        let object = Reader::get(&seen, Pod::resource(), "default", "web-1").unwrap();
        let none = Answers::new();
        let queries = plan::ask(&object, &Snapshot::new(&seen, &none, seen.now()), false);
        let answers = server.answer(queries);
        plan::plan(&object, &Snapshot::new(&seen, &answers, seen.now()), false)
    };
    let again = plan_by(&server).unwrap_err();
    assert!(matches!(again, Refusal::Expected(_)), "{again:?}");
    // It has gone meanwhile.
    assert!(deletion(&plan_by(&seen).unwrap()).is_some());
    // The cache shows it.
    assert!(plan_of::<Pod>(&server, "web-1").verbs().is_empty());
}

#[test]
fn in_the_foreground_dependents_go_first() {
    let mut world = start()
        .with(web())
        .with(pod("web-1").owned_by(&web()).finalizer("example.com/hold"))
        .with(pod("web-2").owned_by(&web()));
    delete::<ReplicaSet>(&mut world, "web", Propagation::Foreground);
    collect(&mut world);
    assert!(world.find::<ReplicaSet>("web").is_some(), "web-1 blocks");
    assert!(world.find::<Pod>("web-2").is_none());
    assert!(world.get::<Pod>("web-1").is_terminating());
    world.change::<Pod>("web-1", |pod| pod.metadata_mut().finalizers.clear());
    collect(&mut world);
    assert!(world.find::<Pod>("web-1").is_none());
    assert!(world.find::<ReplicaSet>("web").is_none());
}

#[test]
fn a_dependent_that_does_not_block_is_not_waited_for() {
    let owner = web();
    let mut world = start().with(owner.clone()).with(
        with_owners(pod("web-1"), vec![named(owner_reference(&owner), false)])
            .finalizer("example.com/hold"),
    );
    delete::<ReplicaSet>(&mut world, "web", Propagation::Foreground);
    let plan = plan_of::<ReplicaSet>(&world, "web");
    assert_eq!(plan.verbs(), ["patch replicasets/web"]);
    let version = Object::metadata(&*world.get::<ReplicaSet>("web")).resource_version;
    assert!(
        plan.counted
            .iter()
            .all(|set| set.since == version && set.namespace == *"default"),
        "the release rests on all dependents having been seen"
    );
    assert!(
        plan.counted
            .iter()
            .any(|set| set.resource == Pod::resource())
    );
    assert!(
        plan.counted.iter().all(|set| set.resource.namespaced),
        "nothing cluster-scoped can depend on it"
    );
}

#[test]
fn an_owner_that_waits_for_dependents_is_released_by_a_list_alone() {
    for propagation in [Propagation::Foreground, Propagation::Orphan] {
        let mut world = start().with(web());
        delete::<ReplicaSet>(&mut world, "web", propagation);
        let version = Object::metadata(&*world.get::<ReplicaSet>("web")).resource_version;
        let plan = |standing| {
            let world = world.clone().standing_at(Pod::resource(), standing);
            world.try_plan::<GarbageCollector>(&key_of::<ReplicaSet>(&world, "web"))
        };
        for standing in [Standing::Listing, Standing::Unwatched] {
            assert_eq!(
                plan(standing),
                Err(Refusal::Retry("pods are not listed yet".to_owned())),
                "{propagation:?}"
            );
        }
        // Whether there are any is asked of the server.
        for standing in [Standing::Complete, Standing::Failing] {
            let plan = plan(standing).unwrap();
            assert_eq!(plan.verbs(), ["patch replicasets/web"], "{propagation:?}");
            let rests = |set: &Counted| {
                set.resource == Pod::resource()
                    && (&*set.namespace, set.since) == ("default", version)
            };
            assert!(plan.counted.iter().any(rests), "{standing:?}");
        }
    }
}

#[test]
fn a_chain_is_deleted_in_the_foreground_all_the_way_down() {
    let top = config_map("top");
    let blocking = named(owner_reference(&top), true);
    let middle = with_owners(web(), vec![blocking]);
    let world = {
        let mut world = start()
            .with(top)
            .with(middle.clone())
            .with(pod("web-1").owned_by(&middle));
        delete::<ConfigMap>(&mut world, "top", Propagation::Foreground);
        world
    };
    let plan = plan_of::<ReplicaSet>(&world, "web");
    assert_eq!(
        deletion(&plan),
        Some((Only::ThisVersion, Propagation::Foreground))
    );
    let mut world = world;
    collect(&mut world);
    assert!(world.all::<Pod>().is_empty());
    assert!(world.all::<ReplicaSet>().is_empty());
    assert!(world.all::<ConfigMap>().is_empty());
}

#[test]
fn circles_of_owners_that_wait_for_each_other_are_undone() {
    let (one, two) = (config_map("one"), config_map("two"));
    let mut world = start()
        .with(with_owners(
            one.clone(),
            vec![named(owner_reference(&two), true)],
        ))
        .with(with_owners(two, vec![named(owner_reference(&one), true)]));
    delete::<ConfigMap>(&mut world, "one", Propagation::Foreground);
    collect(&mut world);
    assert!(world.all::<ConfigMap>().is_empty());
}

#[test]
fn orphans_are_let_go_of_and_stay() {
    let mut world = start()
        .with(web())
        .with(pod("web-1").owned_by(&web()))
        .with(pod("web-2").owned_by(&web()));
    delete::<ReplicaSet>(&mut world, "web", Propagation::Orphan);
    let plan = plan_of::<ReplicaSet>(&world, "web");
    assert_eq!(
        plan.verbs(),
        [
            "patch pods/web-1",
            "patch pods/web-2",
            "patch replicasets/web"
        ]
    );
    assert_eq!(plan.stages.len(), 2, "the owner goes when all are let go");
    collect(&mut world);
    assert!(world.find::<ReplicaSet>("web").is_none());
    for pod in world.all::<Pod>() {
        assert!(!pod.is_terminating());
        assert!(Object::metadata(&*pod).owner_references.is_empty());
    }
    assert_eq!(world.all::<Pod>().len(), 2);
}

#[test]
fn an_objects_own_finalizers_say_what_becomes_of_its_dependents() {
    let gone = || vec![owner_reference(&replica_set("gone"))];
    for (finalizer, expected) in [
        ("example.com/hold", Propagation::Background),
        ("foregroundDeletion", Propagation::Foreground),
        ("orphan", Propagation::Orphan),
    ] {
        let world = start().with(with_owners(pod("web-1"), gone()).finalizer(finalizer));
        let plan = plan_of::<Pod>(&world, "web-1");
        assert_eq!(
            deletion(&plan),
            Some((Only::ThisVersion, expected)),
            "{finalizer}"
        );
    }
}

#[test]
fn an_owner_in_another_namespace_does_not_count_and_is_reported() {
    let elsewhere = config_map("settings").in_namespace("bank");
    let mut world = start()
        .with(elsewhere.clone())
        .with(with_owners(pod("web-1"), vec![owner_reference(&elsewhere)]));
    collect(&mut world);
    assert!(world.all::<Pod>().is_empty());
    assert_eq!(
        world.events(),
        [
            "Warning OwnerRefInvalidNamespace ownerRef [v1/ConfigMap, namespace: default, name: settings, uid: uid-configmaps-bank-settings] does not exist in namespace \"default\""
        ]
    );
}

#[test]
fn cluster_scoped_objects_may_own_anywhere_but_have_no_namespaced_owner() {
    let owner = node("node-1");
    let mut world = start()
        .with(owner.clone())
        .with(with_owners(pod("web-1"), vec![owner_reference(&owner)]))
        .with(with_owners(
            node("node-2"),
            vec![owner_reference(&config_map("settings"))],
        ));
    collect(&mut world);
    assert_eq!(world.all::<Pod>().len(), 1);
    assert_eq!(world.all::<Node>().len(), 2, "it is never decided");
    world.delete::<Node>("node-1");
    collect(&mut world);
    assert!(world.all::<Pod>().is_empty());
}

#[test]
fn the_search_for_an_owner_of_an_unknown_kind_is_retried() {
    let reference = Shared::from(OwnerReference {
        api_version: "example.com/v1".into(),
        kind: "Gadget".into(),
        name: "one".into(),
        uid: "u-1".into(),
        ..Default::default()
    });
    let world = start().with(with_owners(pod("web-1"), vec![reference]));
    let refusal = world.refusal::<GarbageCollector>(&key_of::<Pod>(&world, "web-1"));
    assert!(matches!(refusal, Refusal::Retry(why) if why.contains("Gadget")));
}

fn gadgets() -> &'static Resource {
    metadata_only("example.com", "v1", "Gadget", "gadgets", true).unwrap()
}

/// The catalogue after gadgets were served and then their group's discovery failed.
fn with_lost_gadgets() -> Catalogue {
    let entries = with_gadgets().all().to_vec();
    let others = entries
        .into_iter()
        .filter(|entry| entry.resource != gadgets())
        .collect();
    let failures = [(
        "example.com/v1".into(),
        "stale GroupVersion discovery".into(),
    )];
    Catalogue::new(others, failures.into(), 2).succeeding(&with_gadgets())
}

fn with_gadgets() -> Catalogue {
    let entry = |resource, verbs: &[&str]| Entry {
        resource,
        verbs: verbs.iter().map(|verb| Str::from(*verb)).collect(),
        subresources: Vec::new(),
        preferred: true,
    };
    let all = ["delete", "get", "list", "patch", "watch"];
    let mut entries: Vec<Entry> = kinds().into_iter().map(|kind| entry(kind, &all)).collect();
    entries.push(entry(gadgets(), &all));
    Catalogue::new(entries, Default::default(), 1)
}

fn gadget(name: &str, owners: Vec<Shared<OwnerReference>>) -> ObjectMeta {
    ObjectMeta {
        name: name.into(),
        namespace: "default".into(),
        uid: format!("u-{name}").into(),
        owner_references: owners,
        ..Default::default()
    }
}

#[test]
fn objects_known_by_metadata_alone_own_and_are_owned_like_all_others() {
    let reference = Shared::from(OwnerReference {
        api_version: "example.com/v1".into(),
        kind: "Gadget".into(),
        name: "one".into(),
        uid: "u-one".into(),
        block_owner_deletion: Some(true),
        ..Default::default()
    });
    let mut world = start()
        .with_catalogue(with_gadgets())
        .with(config_map("top"))
        .with_partial(
            gadgets(),
            gadget("one", vec![owner_reference(&config_map("top"))]),
        )
        .with(with_owners(pod("web-1"), vec![reference]));
    collect(&mut world);
    assert_eq!(world.all::<Pod>().len(), 1);
    delete::<ConfigMap>(&mut world, "top", Propagation::Foreground);
    collect(&mut world);
    assert!(world.find_any(gadgets(), "default/one").is_none());
    assert!(world.all::<Pod>().is_empty());
    assert!(world.all::<ConfigMap>().is_empty());
}

#[test]
fn an_owner_stays_while_a_dependent_is_of_a_group_whose_discovery_fails() {
    let gadget_of =
        |owner: &ReplicaSet, blocks| gadget("one", vec![named(owner_reference(owner), blocks)]);
    let why = "dependent Gadget one can't be changed, discovery of example.com/v1 fails: stale GroupVersion discovery";
    for (propagation, blocks, held) in [
        (Propagation::Orphan, false, true),
        (Propagation::Orphan, true, true),
        (Propagation::Foreground, true, true),
        (Propagation::Foreground, false, false),
    ] {
        let mut world = start()
            .with_catalogue(with_lost_gadgets())
            .with(web())
            .with(replica_set("other"))
            .with_partial(gadgets(), gadget_of(&web(), blocks));
        delete::<ReplicaSet>(&mut world, "web", propagation);
        let found = world.try_plan::<GarbageCollector>(&key_of::<ReplicaSet>(&world, "web"));
        match held {
            true => assert_eq!(
                found,
                Err(Refusal::Retry(why.to_owned())),
                "{propagation:?}"
            ),
            false => assert_eq!(found.unwrap().verbs(), ["patch replicasets/web"]),
        }
        // The group can't be read: that holds back nobody who has no dependents there.
        delete::<ReplicaSet>(&mut world, "other", propagation);
        let other = plan_of::<ReplicaSet>(&world, "other");
        assert_eq!(other.verbs(), ["patch replicasets/other"]);
        assert!(other.counted.iter().any(|set| set.resource == gadgets()));

        // When the group is back, the deletion ends as it was asked for.
        let mut world = world.with_catalogue(with_gadgets());
        collect(&mut world);
        assert!(world.find::<ReplicaSet>("web").is_none());
        let kept = world.find_any(gadgets(), "default/one").is_some();
        assert_eq!(kept, propagation == Propagation::Orphan, "{propagation:?}");
    }
}

#[test]
fn events_take_no_part() {
    for (group, expected) in [("", false), ("events.k8s.io", false), ("example.com", true)] {
        let resource = metadata_only(group, "v1", "Event", "events", true).unwrap();
        let verbs = ["delete", "list", "watch"].map(Str::from).to_vec();
        let entry = Entry {
            resource,
            verbs,
            subresources: Vec::new(),
            preferred: true,
        };
        assert_eq!(super::graph::takes_part(&entry), expected, "{group}");
    }
}

/// What is planned on what was seen, its own live read answered by the server.
fn plan_after_refusal(before: &World, server: &World) -> Result<Plan, Refusal> {
    let object = Reader::get(before, Pod::resource(), "default", "web-1").unwrap();
    let none = Answers::new();
    let queries = plan::ask(&object, &Snapshot::new(server, &none, server.now()), true);
    let answers = server.answer(queries);
    let seen = Snapshot::new(server, &answers, server.now());
    plan::plan(&object, &seen, true)
}

/// Likewise, with the precondition of the deletion.
fn after_refusal(before: &World, server: &World) -> Result<u64, Refusal> {
    let plan = plan_after_refusal(before, server)?;
    let action = plan.actions().next().expect("it is deleted");
    assert_eq!(
        deletion(&plan).unwrap(),
        (Only::ThisVersion, Propagation::Background)
    );
    Ok(action.resource_version)
}

#[test]
fn a_deletion_refused_insists_on_the_version_that_the_server_has_if_owners_stand() {
    let before = start().with(with_owners(
        pod("web-1"),
        vec![owner_reference(&replica_set("gone"))],
    ));
    let version = |world: &World| Object::metadata(&*world.get::<Pod>("web-1")).resource_version;
    assert_eq!(after_refusal(&before, &before).unwrap(), version(&before));

    let mut written = before.clone();
    written.change::<Pod>("web-1", |pod| {
        pod.status.get_or_insert_default().phase = "Running".into();
    });
    assert!(version(&written) > version(&before));
    assert_eq!(after_refusal(&before, &written).unwrap(), version(&written));

    // Another finalizer does not keep it: what it says of dependents is followed.
    for (finalizer, expected) in [
        ("x.com/y", Propagation::Background),
        ("foregroundDeletion", Propagation::Foreground),
        ("orphan", Propagation::Orphan),
    ] {
        let mut held = before.clone();
        held.change::<Pod>("web-1", |pod| {
            pod.metadata_mut().finalizers = vec![finalizer.into()];
        });
        let plan = plan_after_refusal(&before, &held).unwrap();
        assert_eq!(deletion(&plan), Some((Only::ThisVersion, expected)));
    }

    // Its owner was removed, changed or replaced, or it is being deleted.
    let changes: [fn(&mut Pod); 4] = [
        |pod| pod.metadata_mut().owner_references.clear(),
        |pod| {
            let owner = owner_reference(&replica_set("gone"));
            pod.metadata_mut().owner_references = vec![named(owner, true)];
        },
        |pod| pod.metadata_mut().owner_references = vec![owner_reference(&replica_set("other"))],
        |pod| *pod = pod.clone().terminating("12:00:00"),
    ];
    for change in changes {
        let mut server = written.clone();
        server.change::<Pod>("web-1", change);
        let refusal = after_refusal(&before, &server).unwrap_err();
        assert!(matches!(refusal, Refusal::Wait(_)), "{refusal:?}");
    }
    let refusal = after_refusal(&before, &start()).unwrap_err();
    assert!(matches!(refusal, Refusal::Wait(_)), "{refusal:?}");
}

#[test]
fn a_refused_write_is_remembered_until_the_object_s_fate_changes() {
    let mut world = start().with(with_owners(
        pod("web-1"),
        vec![owner_reference(&replica_set("gone"))],
    ));
    let key = key_of::<Pod>(&world, "web-1");
    for refused in [false, true] {
        let mut memory = Refused { refused };
        let plan = world.plan_with::<GarbageCollector>(&key, &mut memory);
        assert_eq!(deletion(&plan.unwrap()).unwrap().0, Only::ThisVersion);
        assert_eq!(memory.refused, refused);
    }
    let mut memory = Refused { refused: true };
    world.change::<Pod>("web-1", |pod| {
        pod.metadata_mut().owner_references.clear();
    });
    world
        .plan_with::<GarbageCollector>(&key, &mut memory)
        .unwrap();
    assert!(!memory.refused);
}

#[test]
fn a_key_names_its_object_and_no_later_one() {
    let world = start().with(pod("web-1"));
    let object: AnyObject = world.get::<Pod>("web-1") as Arc<Pod>;
    let key = key::of(&*object);
    assert_eq!(key.to_string(), "default/pods:uid-pods-default-web-1:web-1");
    assert!(key::object(&key, &world).is_some());
    let later = start().with(pod("web-1").uid("another"));
    assert!(key::object(&key, &later).is_none());
    let nonsense = controllers_kit::Key::new("default", "web-1");
    assert!(key::object(&nonsense, &world).is_none());
}
