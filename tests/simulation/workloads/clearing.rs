//! What is owned and deleted in every way, and namespaces that end.

use controllers_kit::{
    Propagation, Resource,
    testing::{
        Common, ConfigMapBuild, DeploymentBuild, WorkloadBuild, World, config_map, deployment,
        namespace, node, owner_reference, replica_set, service,
    },
};
use kubernetes_proto::{
    Object, Shared, Str,
    apps::{Deployment, ReplicaSet},
    core::{ConfigMap, Namespace, Node},
    meta::{ObjectMeta, OwnerReference},
    metadata_only,
};
use node::discovery::announcers;

use super::Making;

/// What keeps an object until somebody else lets it go.
const HOLD: &str = "tests.manifold.dev/hold";

/// A resource of which the manager has no projection.
fn custom(kind: &str, plural: &str) -> &'static Resource {
    metadata_only("tests.manifold.dev", "v1", kind, plural, true)
        .expect("there is room for a few resources")
}

fn widgets() -> &'static Resource {
    custom("Widget", "widgets")
}

fn gadgets() -> &'static Resource {
    custom("Gadget", "gadgets")
}

/// With a kind that is there from the start, and with what reports of others.
pub(super) fn serve_custom_kinds(world: &mut World) {
    for resource in announcers().chain([widgets()]) {
        world.serve_kind(resource);
    }
}

fn partial(resource: &Resource, namespace: &str, name: &str) -> ObjectMeta {
    ObjectMeta {
        name: name.into(),
        namespace: namespace.into(),
        uid: format!("uid-{}-{namespace}-{name}", resource.plural)
            .as_str()
            .into(),
        ..ObjectMeta::default()
    }
}

/// Named as one owner of several: not as the one that manages.
fn refers<T: Object>(mut object: T, owner: Shared<OwnerReference>) -> T {
    object.metadata_mut().owner_references.push(one_of(owner));
    object
}

/// As one owner of several.
fn one_of(mut owner: Shared<OwnerReference>) -> Shared<OwnerReference> {
    owner.controller = None;
    owner
}

fn partial_reference(resource: &Resource, meta: &ObjectMeta) -> Shared<OwnerReference> {
    Shared::from(OwnerReference {
        api_version: Str::from(resource.api_version()),
        kind: resource.kind.into(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        controller: None,
        block_owner_deletion: Some(true),
    })
}

fn map(name: &str) -> ConfigMap {
    config_map(name).data("a", "1")
}

pub(super) fn owned(making: &mut Making) {
    let world = &mut making.workload.world;
    // Two levels below a Deployment, in each way of deleting it.
    for name in ["behind", "before", "apart"] {
        world.put(
            deployment(name)
                .replicas(2)
                .selects(&[("app", name)])
                .history(0),
        );
    }
    // A chain over a kind of which only metadata is known.
    let root = map("root");
    let mut middle = partial(widgets(), "default", "middle");
    middle.owner_references.push(one_of(owner_reference(&root)));
    let leaf = refers(map("leaf"), partial_reference(widgets(), &middle));
    world.put(root);
    world.put_partial(widgets(), middle);
    world.put(leaf);
    // Two owners, one of which stays for longer; and one that comes to have another in time.
    let (left, right) = (map("left"), map("right"));
    world.put(refers(
        refers(map("shared"), owner_reference(&left)),
        owner_reference(&right),
    ));
    world.put(refers(map("kept"), owner_reference(&left)));
    world.put(map("anchor"));
    // An owner that never was, and one that lives elsewhere.
    world.put(refers(
        map("stray"),
        owner_reference(&map("never").uid("uid-never")),
    ));
    world.put(refers(
        config_map("astray").in_namespace("other"),
        owner_reference(&left),
    ));
    world.put(left);
    world.put(right);
    // Two that own each other.
    let (one, two) = (map("one"), map("two"));
    world.put(refers(one.clone(), owner_reference(&two)));
    world.put(refers(two, owner_reference(&one)));
    // An owner of the cluster.
    let host = node("host");
    world.put(refers(map("on-host"), owner_reference(&host)));
    world.put(host);
    // A set whose dependents are held for a while.
    let slow = map("slow");
    world.put(refers(map("held"), owner_reference(&slow)).finalizer(HOLD));
    world.put(slow);

    let late = making.dice.chance(500);
    making.then(|world| delete::<Deployment>(world, "behind", Propagation::Background));
    making.then(|world| delete::<Deployment>(world, "before", Propagation::Foreground));
    making.then(|world| delete::<ConfigMap>(world, "root", Propagation::Foreground));
    making.then(|world| {
        let anchor = owner_reference(&*world.get::<ConfigMap>("anchor"));
        world.change_meta(ConfigMap::resource(), "default/kept", |meta| {
            meta.owner_references.push(one_of(anchor));
        });
    });
    making.then(|world| delete::<ConfigMap>(world, "left", Propagation::Foreground));
    making.then(|world| delete::<ConfigMap>(world, "slow", Propagation::Foreground));
    making.then(|world| delete::<Deployment>(world, "apart", Propagation::Orphan));
    if late {
        // A kind that is known only when its owner has gone already.
        making.then(|world| {
            let definitions = announcers().next().expect("there is room for it");
            world.put_partial(definitions, partial(definitions, "", "gadgets"));
            world.serve_kind(gadgets());
            let mut gadget = partial(gadgets(), "default", "late");
            let owner = owner_reference(&map("left"));
            gadget.owner_references.push(one_of(owner));
            world.put_partial(gadgets(), gadget);
        });
    }
    making.then(|world| delete::<ConfigMap>(world, "one", Propagation::Foreground));
    making.then(|world| delete::<Node>(world, "host", Propagation::Background));
    making.then(|world| let_go(world, ConfigMap::resource(), "default/held"));
    making.then(|world| delete::<ConfigMap>(world, "right", Propagation::Background));
    for round in 0..3 {
        hasty(making, round);
    }
    let replicas = making.count(1, 3);
    making.then(move |world| {
        world.put(
            replica_set("stays")
                .replicas(replicas)
                .selects(&[("app", "stays")]),
        );
    });
}

/// Owners that go before everybody has seen what they own, and dependents that find another owner while they
/// go.
fn hasty(making: &mut Making, round: usize) {
    let name = move |what: &str| format!("{what}-{round}");
    making.then(move |world| {
        // The dependents' watches are others than the owners'.
        let mut owner = partial(widgets(), "default", &name("above"));
        let dependent = refers(map(&name("below")), partial_reference(widgets(), &owner));
        owner
            .owner_references
            .push(one_of(owner_reference(&map("anchor"))));
        world.put_partial(widgets(), owner);
        world.put(dependent);
        let owner = map(&name("first"));
        let mut dependent = partial(widgets(), "default", &name("second"));
        dependent
            .owner_references
            .push(one_of(owner_reference(&owner)));
        world.put(owner);
        world.put_partial(widgets(), dependent);
    });
    making.then_soon(move |world| {
        world.delete_how(
            widgets(),
            &format!("default/{}", name("above")),
            Propagation::Foreground,
        );
        delete::<ConfigMap>(world, &name("first"), Propagation::Foreground);
    });
    making.then(move |world| {
        let owner = map(&name("last"));
        world.put(refers(map(&name("saved")), owner_reference(&owner)));
        world.put(owner);
        world.put(map(&name("saver")));
    });
    making.then_soon(move |world| {
        delete::<ConfigMap>(world, &name("last"), Propagation::Background);
    });
    making.then_soon(move |world| {
        let saver = one_of(owner_reference(&map(&name("saver"))));
        let saved = format!("default/{}", name("saved"));
        world.change_meta(ConfigMap::resource(), &saved, |meta| {
            meta.owner_references.push(saver);
        });
    });
    // Whether it was in time or not, in the end it has no owner.
    making.then(move |world| {
        delete::<ConfigMap>(world, &name("saver"), Propagation::Background);
    });
}

fn delete<T: Object>(world: &mut World, name: &str, propagation: Propagation) {
    let namespace = if T::resource().namespaced {
        "default/"
    } else {
        ""
    };
    world.delete_how(T::resource(), &format!("{namespace}{name}"), propagation);
}

fn let_go(world: &mut World, resource: &'static Resource, key: &str) {
    world.change_meta(resource, key, |meta| {
        meta.finalizers.retain(|finalizer| **finalizer != *HOLD);
    });
}

pub(super) fn namespaces(making: &mut Making) {
    let world = &mut making.workload.world;
    for name in ["busy", "kept"] {
        world.put(deployment("web").in_namespace(name).replicas(2).history(0));
        world.put(
            replica_set("set")
                .in_namespace(name)
                .replicas(2)
                .selects(&[("app", "set")]),
        );
        world.put(service("web").in_namespace(name));
        world.put(config_map("settings").in_namespace(name).data("a", "1"));
        let mut widget = partial(widgets(), name, "held");
        widget.finalizers.push(HOLD.into());
        world.put_partial(widgets(), widget);
    }
    for number in 0..3 {
        world.put(config_map(&format!("map-{number}")).in_namespace("plain"));
    }
    world.put(namespace("empty"));
    let watched = making.dice.chance(500);
    if watched {
        making.put(namespace("watched").finalizer(HOLD));
        making.put(config_map("settings").in_namespace("watched"));
    }
    making.then(|world| delete::<Namespace>(world, "busy", Propagation::Background));
    making.then(|world| delete::<Namespace>(world, "plain", Propagation::Background));
    making.then(|world| delete::<Namespace>(world, "empty", Propagation::Background));
    if watched {
        making.then(|world| delete::<Namespace>(world, "watched", Propagation::Background));
    }
    making.then(|world| {
        world.put(replica_set("set").in_namespace("late").replicas(3));
        world.put(config_map("settings").in_namespace("late"));
    });
    making.then(|world| let_go(world, widgets(), "busy/held"));
    making.then(|world| delete::<Namespace>(world, "late", Propagation::Background));
    if watched {
        making.then(|world| let_go(world, Namespace::resource(), "watched"));
    }
    let replicas = Some(making.count(1, 4));
    making.then(move |world| {
        world.change::<ReplicaSet>("kept/set", |set| {
            set.spec.get_or_insert_default().replicas = replicas;
        });
    });
}
