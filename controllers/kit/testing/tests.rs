//! The tests' own tests: the server answers as the API server does, and the contract finds what it is there
//! to find.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicU64, Ordering},
};

use kubernetes_proto::{
    Object, Str,
    apps::{Deployment, ReplicaSet},
    batch::Job,
    core::{ConfigMap, Namespace, Pod, PodFromTemplate, ServiceAccount},
};
use prost::Message;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::*;
use crate::{
    Action, Controller, Descriptor, Failure, Only, PatchKind, Propagation, Requeue, StatusWrite,
    Verb, Watches,
};

fn meta<T: Object>(object: &T) -> &kubernetes_proto::meta::ObjectMeta {
    object.metadata()
}

fn apply_one(world: &mut World, change: impl FnOnce(&mut Plan)) -> Result<crate::Written, Failure> {
    let mut plan = Plan::nothing();
    change(&mut plan);
    let mut applied = world.apply(&plan);
    assert_eq!(applied.0.len(), 1, "one action is tried at a time");
    applied.0.remove(0).1
}

// ---- the server ----

#[test]
fn a_created_object_gets_what_only_the_server_gives() {
    let mut world = World::at("12:00:00").with(namespace("default"));
    let mut new = replica_set("web").replicas(3);
    new.metadata_mut().uid = Str::default();
    new.status.as_mut().unwrap().replicas = 7;
    let before = world.resource_version;
    let written = apply_one(&mut world, |plan| {
        plan.create(&new);
    })
    .unwrap();
    let made = world.get::<ReplicaSet>("web");
    assert_eq!(meta(&*made).uid, written.uid);
    assert!(!written.uid.is_empty());
    assert_eq!(written.resource_version, before + 1);
    assert_eq!(meta(&*made).resource_version, before + 1);
    assert_eq!(meta(&*made).generation, 1);
    assert_eq!(meta(&*made).creation_timestamp, Some(at("12:00:00").into()));
    assert_eq!(made.spec, new.spec);
    assert_eq!(made.status, None, "a status is not created");
}

#[test]
fn a_create_is_refused_as_the_api_server_does() {
    let mut world = World::at("12:00:00")
        .with(config_map("taken"))
        .with(namespace("ending").ending("11:00:00"));
    let fresh = |name: &str, namespace: &str| config_map(name).in_namespace(namespace).uid("");
    let failure = |world: &mut World, map: ConfigMap| {
        apply_one(world, |plan| {
            plan.create(&map);
        })
        .unwrap_err()
    };
    assert_eq!(
        failure(&mut world, fresh("taken", "default")),
        Failure::AlreadyExists("configmaps \"taken\" already exists".into())
    );
    assert_eq!(
        failure(&mut world, fresh("new", "nowhere")),
        Failure::NotFound("namespaces \"nowhere\" not found".into())
    );
    assert!(matches!(
        failure(&mut world, fresh("new", "ending")),
        Failure::NamespaceTerminating(text)
            if text.contains("namespace ending because it is being terminated")
    ));
    for name in ["", "Upper", "-dash", "dot.", "a_b", &"x".repeat(254)] {
        assert!(
            matches!(
                failure(&mut world, fresh(name, "default")),
                Failure::Invalid(_)
            ),
            "{name:?}"
        );
    }
    let mut versioned = fresh("new", "default");
    versioned.metadata_mut().resource_version = 1;
    assert!(matches!(
        failure(&mut world, versioned),
        Failure::Invalid(_)
    ));
    let (one, other) = (replica_set("one"), replica_set("other"));
    assert!(matches!(
        failure(
            &mut world,
            fresh("new", "default").owned_by(&one).owned_by(&other)
        ),
        Failure::Invalid(_)
    ));
    assert_eq!(world.all::<ConfigMap>().len(), 1);
}

#[test]
fn a_pod_is_made_from_a_template_s_bytes() {
    let mut world = World::at("12:00:00").with(replica_set("web"));
    let owner = world.get::<ReplicaSet>("web");
    let mut body = PodFromTemplate {
        metadata: Some(meta(&pod("web-1").uid("").owned_by(&*owner)).clone()),
        spec: pod_spec_bytes("app:1"),
    };
    body.metadata.as_mut().unwrap().set_label("app", "web");
    let mut plan = Plan::nothing();
    plan.act(Action {
        verb: Verb::Create {
            body: body.encode_to_vec(),
        },
        resource: Pod::resource(),
        key: Key::new("default", "web-1"),
        uid: Str::default(),
        resource_version: 0,
        announcement: None,
    });
    world.apply(&plan).expect_success();
    let pod = world.get::<Pod>("web-1");
    assert_eq!(pod.status.as_ref().unwrap().phase, "Pending");
    assert_eq!(meta(&*pod).label("app"), Some("web"));
    let owned = Reader::indexed(&world, Pod::resource(), Index::OWNER, &meta(&*owner).uid);
    assert_eq!(owned.len(), 1);
}

#[test]
fn a_patch_of_another_uid_or_version_is_a_conflict_and_of_nothing_not_found() {
    let world = World::at("12:00:00").with(config_map("a"));
    let seen = world.get::<ConfigMap>("a");
    let patch = |world: &mut World, whatever_version: bool| {
        apply_one(world, |plan| {
            let action = plan
                .update(&*seen, &ConfigMap::clone(&seen).data("k", "v"))
                .unwrap();
            if whatever_version {
                action.whatever_version();
            }
        })
    };
    assert!(patch(&mut world.clone(), false).is_ok());

    let mut changed = world.clone();
    changed.change::<ConfigMap>("a", |map| {
        map.data.insert("other".into(), "x".into());
    });
    assert!(matches!(
        patch(&mut changed, false),
        Err(Failure::Conflict(_))
    ));
    assert!(patch(&mut changed, true).is_ok());
    assert_eq!(changed.get::<ConfigMap>("a").data.len(), 2);

    let mut another = world;
    another.vanish::<ConfigMap>("a");
    assert!(matches!(
        patch(&mut another, true),
        Err(Failure::NotFound(_))
    ));
    another.put(config_map("a").uid("another"));
    assert!(matches!(
        patch(&mut another, true),
        Err(Failure::Conflict(_))
    ));
}

#[test]
fn a_patch_that_changes_nothing_makes_no_version() {
    let mut world = World::at("12:00:00").with(config_map("a").data("k", "v"));
    let seen = world.get::<ConfigMap>("a");
    let written = apply_one(&mut world, |plan| {
        plan.patch(
            &*seen,
            "",
            PatchKind::Merge,
            json!({"data": {"k": "v"}, "metadata": {"uid": "x", "generation": 9}}),
            StatusWrite::No,
        );
    })
    .unwrap();
    assert_eq!(written.resource_version, meta(&*seen).resource_version);
    assert_eq!(*world.get::<ConfigMap>("a"), *seen);
}

#[test]
fn the_generation_counts_changes_of_the_spec_and_a_deployment_s_annotations() {
    let mut world = World::at("12:00:00").with(deployment("web"));
    let generation = |world: &World| meta(&*world.get::<Deployment>("web")).generation;
    assert_eq!(generation(&world), 1);

    let old = world.get::<Deployment>("web");
    let mut new = Deployment::clone(&old).replicas(5);
    new.status.as_mut().unwrap().replicas = 9;
    apply_one(&mut world, |plan| {
        plan.update(&*old, &new);
    })
    .unwrap();
    assert_eq!(generation(&world), 2);
    assert_eq!(world.get::<Deployment>("web").status, old.status);

    let old = world.get::<Deployment>("web");
    let mut new = Deployment::clone(&old).replicas(8).annotation("k", "v");
    new.status.as_mut().unwrap().replicas = 5;
    // The status subresource takes the status and a Deployment's metadata but its labels, and counts for
    // nothing.
    apply_one(&mut world, |plan| {
        plan.patch(
            &*old,
            "status",
            PatchKind::Merge,
            json!({
                "status": {"replicas": 5},
                "spec": {"replicas": 8},
                "metadata": {"annotations": {"k": "v"}, "labels": {"l": "no"}},
            }),
            StatusWrite::Observed,
        );
    })
    .unwrap();
    let now = world.get::<Deployment>("web");
    assert_eq!(generation(&world), 2);
    assert_eq!(now.spec, old.spec);
    assert_eq!(now.status.as_ref().unwrap().replicas, 5);
    assert_eq!(meta(&*now).annotation("k"), Some("v"));
    assert_eq!(meta(&*now).label("l"), None);

    world.change::<Deployment>("web", |deployment| {
        deployment.metadata_mut().set_annotation("k", "w");
    });
    assert_eq!(generation(&world), 3);
    world.change::<Deployment>("web", |deployment| {
        deployment.metadata_mut().set_label("l", "w");
    });
    assert_eq!(generation(&world), 3);
}

#[test]
fn the_test_server_refuses_the_patches_that_the_api_server_refuses() {
    let mut world = World::at("12:00:00").with(replica_set("web"));
    let seen = world.get::<ReplicaSet>("web");
    for (subresource, patch) in [
        ("", json!({"spec": {"replica": 1}})),
        (
            "",
            json!({"spec": {"selector": {"matchLabels": {"app": "other"}}}}),
        ),
        ("", json!({"spec": {"replicas": "three"}})),
        (
            "",
            json!({"spec": {"template": {"metadata": {"labels": {"app": "other"}}}}}),
        ),
    ] {
        let result = apply_one(&mut world, |plan| {
            plan.patch(
                &*seen,
                subresource,
                PatchKind::Merge,
                patch.clone(),
                StatusWrite::No,
            );
        });
        assert!(matches!(result, Err(Failure::Invalid(_))), "{patch}");
    }
    let result = apply_one(&mut world, |plan| {
        plan.patch(
            &*seen,
            "binding",
            PatchKind::Merge,
            json!({}),
            StatusWrite::No,
        );
    });
    assert!(matches!(result, Err(Failure::NotFound(_))));
}

#[test]
fn owners_are_added_and_taken_away_one_by_one() {
    let one = replica_set("one");
    let mut world = World::at("12:00:00").with(pod("p").owned_by(&one));
    let patch = |world: &mut World, patch: serde_json::Value| {
        let seen = world.get::<Pod>("p");
        apply_one(world, |plan| {
            plan.patch(&*seen, "", PatchKind::Strategic, patch, StatusWrite::No);
        })
    };
    let mut other = serde_json::to_value(owner_reference(&replica_set("other"))).unwrap();
    other["controller"] = false.into();
    patch(
        &mut world,
        json!({"metadata": {"ownerReferences": [other], "finalizers": ["x/y"]}}),
    )
    .unwrap();
    let uids = |world: &World| -> Vec<String> {
        let pod = world.get::<Pod>("p");
        let owners = &meta(&*pod).owner_references;
        owners.iter().map(|owner| owner.uid.to_string()).collect()
    };
    assert_eq!(
        uids(&world),
        [
            "uid-replicasets-default-one",
            "uid-replicasets-default-other"
        ]
    );
    assert_eq!(meta(&*world.get::<Pod>("p")).finalizers, ["x/y"]);
    patch(
        &mut world,
        json!({"metadata": {
            "ownerReferences": [{"$patch": "delete", "uid": "uid-replicasets-default-one"}],
            "$deleteFromPrimitiveList/finalizers": ["x/y"],
        }}),
    )
    .unwrap();
    assert_eq!(uids(&world), ["uid-replicasets-default-other"]);
    assert!(meta(&*world.get::<Pod>("p")).finalizers.is_empty());
    // Taking away what is not there changes nothing.
    let before = world.resource_version;
    patch(
        &mut world,
        json!({"metadata": {"ownerReferences": [{"$patch": "delete", "uid": "gone"}]}}),
    )
    .unwrap();
    assert_eq!(world.resource_version, before);
    assert!(
        patch(
            &mut world,
            json!({"metadata": {"ownerReferences": [{"name": "nobody"}]}})
        )
        .is_err()
    );
}

#[test]
fn a_delete_keeps_to_its_preconditions() {
    let world = World::at("12:00:00").with(job("pi"));
    let seen = world.get::<Job>("pi");
    let delete = |world: &mut World, only: Only| {
        apply_one(world, |plan| {
            plan.delete(&*seen, only, Propagation::Background);
        })
    };
    let mut changed = world;
    changed.change::<Job>("pi", |job| {
        job.spec.as_mut().unwrap().ttl_seconds_after_finished = Some(1);
    });
    assert!(matches!(
        delete(&mut changed, Only::ThisVersion),
        Err(Failure::Conflict(_))
    ));
    let written = delete(&mut changed, Only::ThisUid).unwrap();
    assert_eq!(written.resource_version, 0, "a Job's deletion says none");
    assert!(matches!(
        delete(&mut changed, Only::ThisUid),
        Err(Failure::NotFound(_))
    ));
    changed.put(job("pi").uid("another"));
    assert!(matches!(
        delete(&mut changed, Only::ThisUid),
        Err(Failure::Conflict(_))
    ));
}

#[test]
fn a_pod_s_deletion_says_its_version() {
    let mut world = World::at("12:00:00").with(pod("p"));
    let seen = world.get::<Pod>("p");
    let written = apply_one(&mut world, |plan| {
        plan.delete(&*seen, Only::ThisUid, Propagation::Background);
    })
    .unwrap();
    assert_eq!(written.resource_version, world.resource_version);
    assert!(written.resource_version > meta(&*seen).resource_version);
}

#[test]
fn deleted_objects_go_at_once_or_after_their_grace_period() {
    // Object, propagation; what is left of it: nothing, or its deletion's end and finalizers.
    type Left = Option<(&'static str, &'static [&'static str])>;
    let table: [(Pod, Propagation, Option<i64>, Left); 8] = [
        (pod("p"), Propagation::Background, None, None),
        (
            pod("p").running(),
            Propagation::Background,
            None,
            Some(("12:00:30", &[])),
        ),
        (
            pod("p").running(),
            Propagation::Background,
            Some(5),
            Some(("12:00:05", &[])),
        ),
        (pod("p").running(), Propagation::Background, Some(0), None),
        (
            pod("p").on("node-1").phase("Failed"),
            Propagation::Background,
            None,
            None,
        ),
        (
            pod("p").finalizer("x/y"),
            Propagation::Background,
            None,
            Some(("12:00:00", &["x/y"])),
        ),
        (
            pod("p"),
            Propagation::Foreground,
            None,
            Some(("12:00:00", &["foregroundDeletion"])),
        ),
        (
            pod("p").finalizer("x/y"),
            Propagation::Orphan,
            None,
            Some(("12:00:00", &["x/y", "orphan"])),
        ),
    ];
    for (object, propagation, grace, left) in table {
        let mut world = World::at("12:00:00").with(object.clone());
        let seen = world.get::<Pod>("p");
        apply_one(&mut world, |plan| {
            let action = plan.delete(&*seen, Only::ThisUid, propagation);
            if let Verb::Delete {
                grace_period_seconds,
                ..
            } = &mut action.verb
            {
                *grace_period_seconds = grace;
            }
        })
        .unwrap();
        let found = world.find::<Pod>("p");
        let found = found.as_ref().map(|pod| {
            let meta = meta(&**pod);
            (
                meta.deletion_timestamp.unwrap().timestamp(),
                meta.finalizers.iter().map(Str::as_str).collect::<Vec<_>>(),
            )
        });
        assert_eq!(
            found,
            left.map(|(end, finalizers)| (at(end), finalizers.to_vec())),
            "{object:?} {propagation:?} {grace:?}"
        );
    }
}

#[test]
fn the_last_finalizer_takes_a_deleted_object_with_it() {
    let mut world = World::at("12:00:00").with(config_map("a").finalizer("x/y"));
    world.delete::<ConfigMap>("a");
    let seen = world.get::<ConfigMap>("a");
    let mut free = ConfigMap::clone(&seen);
    free.metadata_mut().finalizers.clear();
    apply_one(&mut world, |plan| {
        plan.update(&*seen, &free);
    })
    .unwrap();
    assert!(world.find::<ConfigMap>("a").is_none());
}

#[test]
fn a_stage_waits_for_the_one_before_it_and_creates_start_slowly() {
    let mut world = World::at("12:00:00").with(config_map("m3"));
    let mut plan = Plan::nothing();
    for number in 0..8 {
        plan.create(&config_map(&format!("m{number}")).uid(""));
    }
    plan.then();
    plan.create(&config_map("last").uid(""));
    let applied = world.apply(&plan);
    let failures = applied.failures();
    // Batches of 1, 2 and 4: m0; m1, m2; m3 (which exists) to m6. The batch with the failure is the last.
    assert_eq!(
        failures
            .iter()
            .map(|(action, failure)| (action.as_str(), **failure == Failure::Skipped))
            .collect::<Vec<_>>(),
        [
            ("create configmaps/m3", false),
            ("create configmaps/m7", true),
            ("create configmaps/last", true),
        ]
    );
    assert!(world.find::<ConfigMap>("m6").is_some());
    assert!(world.find::<ConfigMap>("last").is_none());
}

#[test]
fn events_report_success_and_failure_but_no_conflicts() {
    let mut world = World::at("12:00:00").with(config_map("a"));
    let about = world.get::<ConfigMap>("a");
    let announced = |plan: &mut Plan, name: &str| {
        plan.create(&config_map(name).uid(""))
            .announce(Event::normal(&*about, "Made", format!("Made {name}")))
            .announce_failure(Event::warning(&*about, "NotMade", "Not made: "));
    };
    let mut plan = Plan::nothing();
    announced(&mut plan, "b");
    world.apply(&plan).expect_success();
    world.apply(&plan);
    let stale = World::clone(&world).get::<ConfigMap>("a");
    world.change::<ConfigMap>("a", |map| {
        map.data.insert("k".into(), "v".into());
    });
    let mut conflict = Plan::nothing();
    conflict
        .update(&*stale, &ConfigMap::clone(&stale).data("k", "w"))
        .unwrap()
        .announce_failure(Event::warning(&*about, "NotChanged", ""));
    assert_eq!(world.apply(&conflict).failures().len(), 1);
    assert_eq!(
        world.events(),
        [
            "Normal Made Made b",
            "Warning NotMade Not made: configmaps \"b\" already exists"
        ]
    );
}

#[test]
fn the_rest_of_the_cluster_starts_stops_and_clears_up() {
    let owner = replica_set("web");
    let mut world = World::at("12:00:00")
        .with(owner.clone())
        .with(pod("kept").owned_by(&owner))
        .with(pod("orphan").owned_by(&replica_set("gone")))
        .with(pod("ends").running().terminating("11:59:00"))
        .with(service_account("s").in_namespace("ending"));
    world.delete::<Namespace>("ending");
    while world.step() {}
    let names: Vec<String> = world
        .all::<Pod>()
        .iter()
        .map(|pod| meta(&**pod).name.to_string())
        .collect();
    assert_eq!(names, ["kept"]);
    let kept = world.get::<Pod>("kept");
    assert_eq!(kept.status.as_ref().unwrap().phase, "Running");
    assert!(crate::conditions::is_true(
        &kept.status.as_ref().unwrap().conditions,
        "Ready"
    ));
    assert!(world.find::<Namespace>("ending").is_none());
    assert!(world.all::<ServiceAccount>().is_empty());

    let seen = world.get::<ReplicaSet>("web");
    let mut orphaning = world.clone();
    let mut plan = Plan::nothing();
    plan.delete(&*seen, Only::ThisUid, Propagation::Foreground);
    world.apply(&plan).expect_success();
    while world.step() {}
    assert!(world.all::<Pod>().is_empty());
    assert!(world.all::<ReplicaSet>().is_empty());

    let mut plan = Plan::nothing();
    plan.delete(&*seen, Only::ThisUid, Propagation::Orphan);
    orphaning.apply(&plan).expect_success();
    while orphaning.step() {}
    assert!(orphaning.all::<ReplicaSet>().is_empty());
    assert!(
        meta(&*orphaning.get::<Pod>("kept"))
            .owner_references
            .is_empty()
    );

    let mut still = World::at("12:00:00").with(pod("p")).without_kubelets();
    assert!(!still.step());
}

#[test]
fn an_unchanged_text_that_is_not_utf_8_is_left_out_of_patches() {
    let mut odd = deployment("web");
    odd.metadata_mut().uid = "u-1".into();
    odd.metadata_mut().set_annotation("note", "<??>");
    let mut bytes = prost::Message::encode_to_vec(&odd);
    let place = bytes
        .windows(4)
        .position(|window| window == b"<??>")
        .unwrap();
    bytes[place..place + 4].copy_from_slice(&[0xff, 0xfe, b'-', 0xff]);
    let read = Deployment::resource().read(&bytes).unwrap();
    let old = kubernetes_proto::cast::<Deployment>(read).unwrap();
    assert_eq!(
        old.metadata().annotation("note"),
        Some("\u{fffd}\u{fffd}-\u{fffd}")
    );
    let mut new = Deployment::clone(&old);
    new.metadata_mut().set_annotation("other", "x");
    new.spec.get_or_insert_default().replicas = Some(5);
    let mut plan = Plan::nothing();
    let action = plan.update(&*old, &new).unwrap();
    let Verb::Patch { patch, .. } = &action.verb else {
        panic!("{action}")
    };
    assert_eq!(patch["metadata"]["annotations"], json!({"other": "x"}));
    assert_eq!(patch["spec"], json!({"replicas": 5}));
}

// ---- the contract ----

/// What is wrong with a [`Replicas`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Nothing,
    /// Plans differ from call to call.
    Counter,
    /// Children have new names at each attempt.
    NewNames,
    /// Creates what it has no rule for.
    NoRule,
    /// Watches no pods, but reads them.
    Unwatched,
    /// A deleted pod wakes nobody.
    Deaf,
    /// Remembers how many pods it made and trusts that count.
    Trusting,
    /// Deletes what it has not seen.
    Blind,
    /// Does not say what it counted.
    Uncounted,
    /// Never has enough.
    Greedy,
    /// Says at rest that it has something to say.
    Talkative,
    /// Reads by an index that it has not declared.
    Unindexed,
    /// Requeues itself at once, forever.
    Restless,
    /// Makes nearly all children that are asked for in one plan.
    Lavish,
    /// Takes for granted what only the API server refuses.
    Trustful,
}

/// Of chance: not what the seeds decide.
static CHANCE: AtomicU64 = AtomicU64::new(0);

#[derive(Default, PartialEq, Serialize, Deserialize)]
struct Made {
    pods: usize,
    plans: usize,
}

/// Keeps as many pods as a ReplicaSet wants, named by ordinal; with a fault.
struct Replicas<const FAULT: usize>;

const FAULTS: [Fault; 15] = [
    Fault::Nothing,
    Fault::Counter,
    Fault::NewNames,
    Fault::NoRule,
    Fault::Unwatched,
    Fault::Deaf,
    Fault::Trusting,
    Fault::Blind,
    Fault::Uncounted,
    Fault::Greedy,
    Fault::Talkative,
    Fault::Unindexed,
    Fault::Restless,
    Fault::Lavish,
    Fault::Trustful,
];

impl<const FAULT: usize> Controller for Replicas<FAULT> {
    type Memory = Made;

    fn describe() -> Descriptor {
        let descriptor = Descriptor::new("replicas-controller", crate::Sharding::ByObject);
        match FAULTS[FAULT] {
            Fault::NoRule => descriptor.rule("", "pods", &["delete"]),
            _ => descriptor.rule("", "pods", &["create", "delete"]),
        }
    }

    fn new(_: &Flags) -> Self {
        Self
    }

    fn watch(&self, on: &mut Watches) {
        let _ = on.kind::<ReplicaSet>().wakes_itself();
        match FAULTS[FAULT] {
            Fault::Unwatched => {}
            Fault::Deaf => {
                let _ = on.kind::<Pod>();
            }
            _ => {
                let _ = on.kind::<Pod>().wakes_controller::<ReplicaSet>();
            }
        }
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, memory: &mut Made) -> Result<Plan, Refusal> {
        let fault = FAULTS[FAULT];
        memory.plans += 1;
        let mut plan = Plan::nothing();
        let Some(set) = seen
            .get::<ReplicaSet>(key)
            .filter(|set| !set.is_terminating())
        else {
            return Ok(plan);
        };
        let pods = match fault {
            Fault::Unindexed => seen.indexed::<Pod>("phase", "Running"),
            _ => seen.owned_by::<Pod>(&meta(&*set).uid),
        };
        let wanted = set.spec.as_ref().unwrap().replicas.unwrap();
        let wanted = match fault {
            Fault::Trustful => usize::try_from(wanted).expect("the API server refuses less than 0"),
            _ => usize::try_from(wanted).unwrap_or(0),
        };
        let burst = if fault == Fault::Lavish {
            1_000_000
        } else {
            100
        };
        if fault != Fault::Uncounted {
            plan.counted::<Pod>(&key.namespace, &crate::selectors::Selector::of_labels(&[]));
        }
        let have = match fault {
            Fault::Trusting => memory.pods.max(pods.len()),
            Fault::Greedy => 0,
            _ => pods.len(),
        };
        let mut names: Vec<String> = Vec::new();
        if have < wanted {
            let taken = |name: &String| pods.iter().any(|pod| meta(&**pod).name == **name);
            let free = (0..).map(|ordinal| match fault {
                Fault::Greedy => format!("{}-{}", key.name, pods.len() + ordinal),
                Fault::NewNames => format!("{}-{}-{ordinal}", key.name, memory.plans),
                _ => format!("{}-{ordinal}", key.name),
            });
            names.extend(
                free.filter(|name| !taken(name))
                    .take((wanted - have).min(burst)),
            );
        }
        if fault == Fault::Counter {
            let chance = CHANCE.fetch_add(1, Ordering::Relaxed);
            plan.requeue_at(at("23:00:00") + SignedDuration::from_nanos(chance.cast_signed()));
        }
        memory.pods = memory.pods.max(wanted);
        for name in names {
            plan.create(
                &pod(&name)
                    .uid("")
                    .in_namespace(&key.namespace)
                    .uid("")
                    .owned_by(&*set),
            );
        }
        for pod in pods.iter().skip(wanted).filter(|pod| !pod.is_terminating()) {
            plan.delete(&**pod, Only::ThisUid, Propagation::Background);
        }
        if fault == Fault::Blind && pods.is_empty() {
            let unseen = pod("web-0").uid("unseen");
            plan.delete(&unseen, Only::ThisUid, Propagation::Background);
        }
        if fault == Fault::Talkative {
            plan.event(Event::normal(&*set, "Fine", "All is well"));
        }
        if fault == Fault::Restless {
            plan.requeue_now();
        }
        Ok(plan)
    }
}

fn replicas_worlds() -> Vec<World> {
    let five = replica_set("five").replicas(1);
    let mut shrinking = World::at("12:00:00").with(five.clone());
    for number in 0..4 {
        shrinking.put(pod(&format!("five-{number}")).owned_by(&five).running());
    }
    vec![
        World::at("12:00:00").with(replica_set("web").replicas(3)),
        shrinking,
        World::at("12:00:00")
            .with(replica_set("web").replicas(2))
            .with(
                pod("web-0")
                    .owned_by(&replica_set("web"))
                    .running()
                    .terminating("11:59:59"),
            ),
    ]
}

fn broken<const FAULT: usize>() -> Option<String> {
    let factory = Factory::of::<Replicas<FAULT>>();
    let result = catch_unwind(AssertUnwindSafe(|| {
        contract::check(&factory, replicas_worlds());
    }));
    result.err().map(|panic| {
        panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
            .expect("panics carry texts")
    })
}

#[test]
fn the_contract_lets_a_right_controller_pass() {
    assert_eq!(broken::<0>(), None);
}

#[test]
fn the_contract_finds_each_fault_and_says_which() {
    let table = [
        (broken::<1>(), "same input, two plans"),
        (broken::<2>(), "at once, undisturbed"),
        (broken::<3>(), "is beyond its rules"),
        (broken::<4>(), "without watching them"),
        (broken::<5>(), "no change has woken it"),
        (broken::<6>(), "another rest"),
        (broken::<7>(), "which was not seen"),
        (broken::<8>(), "doesn't say which were counted"),
        (broken::<9>(), "no rest after"),
        (broken::<10>(), "no change has woken it"),
        (broken::<11>(), "without having declared that index"),
        (broken::<12>(), "no rest after"),
        (broken::<13>(), "the bound is"),
        (broken::<14>(), "the API server refuses less than 0"),
    ];
    for (place, (message, expected)) in table.into_iter().enumerate() {
        let fault = FAULTS[place + 1];
        let message = message.unwrap_or_else(|| panic!("{fault:?} was not found"));
        assert!(
            message.contains(expected),
            "{fault:?} was found as: {message}"
        );
    }
}

#[test]
fn a_world_in_which_nothing_happens_shows_nothing() {
    let factory = Factory::of::<Replicas<0>>();
    let result = catch_unwind(AssertUnwindSafe(|| {
        contract::check(&factory, [World::at("12:00:00")]);
    }));
    assert!(result.is_err());
}

#[test]
fn a_group_covers_its_registry() {
    let registry = [Factory::of::<Replicas<0>>()];
    contract::covers(&registry, &["replicas-controller"]);
    assert!(catch_unwind(|| contract::covers(&registry, &[])).is_err());
}

#[test]
fn worlds_run_to_rest_and_through_time() {
    let mut world = World::at("12:00:00").with(replica_set("web").replicas(3));
    let alone = world.clone().run::<Replicas<0>>();
    assert_eq!(alone.len(), 1);
    assert_eq!(alone[0].verbs().len(), 3);
    world.settle(&[Factory::of::<Replicas<0>>()]);
    assert!(
        world
            .all::<Pod>()
            .iter()
            .all(|pod| pod.status.as_ref().unwrap().phase == "Running")
    );
    world.delete::<Pod>("web-1");
    let plans = world.settle_for(60, &[Factory::of::<Replicas<0>>()]);
    assert_eq!(plans.len(), 1);
    assert_eq!(world.now(), at("12:01:00"));
    assert_eq!(world.all::<Pod>().len(), 3);
    assert_eq!(world.plan::<Replicas<0>>("web").requeue, Requeue::Never);
}

#[test]
fn slices_of_one_service_are_one_at_rest_but_an_endpoint_in_two_is_seen() {
    let service = service("web");
    let pods: Vec<Pod> = (0..3)
        .map(|number| pod(&format!("web-{number}")).ip(&format!("10.0.0.{number}")))
        .collect();
    let slice = |name: &str, of: &[usize]| {
        let empty = endpoint_slice(name, &service, "me");
        of.iter()
            .fold(empty, |slice, number| slice.endpoint(&pods[*number]))
    };
    let rest = |slices: Vec<kubernetes_proto::discovery::EndpointSlice>| {
        let start = World::at("12:00:00").with(service.clone());
        slices.into_iter().fold(start, World::with).rest()
    };
    let one = rest(vec![slice("a", &[0, 1]), slice("b", &[2])]);
    assert_eq!(one, rest(vec![slice("c", &[2, 1, 0])]));
    assert_ne!(one, rest(vec![slice("a", &[0, 1]), slice("b", &[1, 2])]));
    assert_ne!(one, rest(vec![slice("a", &[0, 1])]));
    let timed =
        slice("a", &[0, 1, 2]).annotation("endpoints.kubernetes.io/last-change-trigger-time", "x");
    assert_eq!(one, rest(vec![timed]));
}
