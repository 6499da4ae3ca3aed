//! Claims and volumes: bound as they stand, provisioned, moved, expanded, protected, and deleted in any
//! order.

use std::time::Duration;

use controllers_kit::testing::{Common, NodeBuild, World, claim, node, pod};
use kubernetes_proto::{
    Object,
    core::{
        Amount, CsiPersistentVolumeSource, EphemeralVolumeSource, InlineVolumeSource, Node,
        NodeCondition, ObjectReference, PersistentVolume, PersistentVolumeClaim,
        PersistentVolumeClaimSpec, PersistentVolumeClaimTemplate,
        PersistentVolumeClaimVolumeSource, PersistentVolumeSource, PersistentVolumeSpec, Pod,
        Volume, VolumeResourceRequirements, VolumeSource,
    },
    meta::Quantity,
    storage::{StorageClass, VolumeAttachment, VolumeAttributesClass},
};
use prost::Message as _;

use super::Making;
use crate::{
    attachments::{DRIVER, MANAGED, OUT_OF_SERVICE},
    heartbeats::SILENT,
    storage::{OF_CLAIM, OF_CLASS, OF_VOLUME, RETAINING, STAYS_PENDING, WANTED_NODE, is_bound},
};

/// The class of volumes that were made by hand.
const MANUAL: &str = "manual";
/// The class that is provisioned at once.
const FAST: &str = "fast";
/// The classes that wait for the first consumer: provisioned, and made by hand.
const LAZY: &str = "lazy";
const LOCAL: &str = "local";
const WAIT: &str = "WaitForFirstConsumer";
const IMMEDIATE: &str = "Immediate";
const NOBODY: &str = "kubernetes.io/no-provisioner";
/// Volumes whose names begin so are one like another: which of them a claim gets is not distinguished.
pub const ANY: &str = "any-";
/// By which a claim says that it or its pod has been deleted.
const HALF_GONE: &str = "simulation.example.com/half-gone";
const NODES: [&str; 3] = ["node-1", "store-a", "store-b"];

fn amount(size: &str) -> Vec<Amount> {
    vec![Amount {
        key: "storage".into(),
        value: Some(Quantity::text(size)),
    }]
}

fn class(name: &str, provisioner: &str, mode: &str) -> StorageClass {
    let mut class = StorageClass {
        provisioner: provisioner.into(),
        volume_binding_mode: Some(mode.into()),
        ..StorageClass::default()
    };
    class.metadata_mut().name = name.into();
    class
}

/// A claim of 1 GiB that one node alone may have.
pub fn wants(name: &str, class: &str) -> PersistentVolumeClaim {
    let mut claim = claim(name).finalizer(OF_CLAIM);
    claim.metadata_mut().uid = format!("uid-{name}").as_str().into();
    claim.spec = Some(PersistentVolumeClaimSpec {
        access_modes: vec!["ReadWriteOnce".into()],
        resources: Some(VolumeResourceRequirements {
            requests: amount("1Gi"),
        }),
        storage_class_name: Some(class.into()),
        ..PersistentVolumeClaimSpec::default()
    });
    claim.status.get_or_insert_default().phase = "Pending".into();
    claim
}

/// A volume of a driver that was made by hand, and stays.
pub fn by_hand(name: &str, class: &str) -> PersistentVolume {
    let mut volume = PersistentVolume::default();
    let meta = volume.metadata_mut();
    meta.name = name.into();
    meta.finalizers.push(OF_VOLUME.into());
    volume.spec = Some(PersistentVolumeSpec {
        capacity: amount("1Gi"),
        access_modes: vec!["ReadWriteOnce".into()],
        persistent_volume_reclaim_policy: "Retain".into(),
        storage_class_name: class.into(),
        persistent_volume_source: Some(PersistentVolumeSource {
            csi: Some(Box::new(CsiPersistentVolumeSource {
                driver: DRIVER.to_owned(),
                volume_handle: name.to_owned(),
                ..CsiPersistentVolumeSource::default()
            })),
            ..PersistentVolumeSource::default()
        }),
        ..PersistentVolumeSpec::default()
    });
    volume.status.get_or_insert_default().phase = "Pending".into();
    volume
}

/// A volume that a user has reserved for a claim.
fn reserved(mut volume: PersistentVolume, claim: &str) -> PersistentVolume {
    volume.spec.get_or_insert_default().claim_ref = Some(ObjectReference {
        namespace: "default".into(),
        name: claim.into(),
        ..ObjectReference::default()
    });
    volume
}

fn named(mut claim: PersistentVolumeClaim, volume: &str) -> PersistentVolumeClaim {
    claim.spec.get_or_insert_default().volume_name = volume.into();
    claim
}

/// A pod that the scheduler puts on a node.
fn user(name: &str, node: &str, claims: &[&str]) -> Pod {
    let mut pod = pod(name).annotation(WANTED_NODE, node);
    for claim in claims {
        pod.spec.get_or_insert_default().volumes.push(Volume {
            name: (*claim).into(),
            volume_source: Some(VolumeSource {
                persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                    claim_name: (*claim).into(),
                    read_only: false,
                }),
                ..VolumeSource::default()
            }),
        });
    }
    pod
}

/// A pod with a generic ephemeral volume `data`.
fn with_own(name: &str, node: &str, class: &str) -> Pod {
    let mut pod = user(name, node, &[]);
    let spec = wants("template", class).spec.unwrap_or_default();
    let template = PersistentVolumeClaimTemplate {
        metadata: None,
        spec: spec.encode_to_vec(),
    };
    let inline = InlineVolumeSource {
        ephemeral: Some(
            EphemeralVolumeSource {
                volume_claim_template: Some(template),
            }
            .into(),
        ),
        ..InlineVolumeSource::default()
    };
    pod.spec.get_or_insert_default().volumes.push(Volume {
        name: "data".into(),
        volume_source: Some(VolumeSource {
            inline: Some(Box::new(inline)),
            ..VolumeSource::default()
        }),
    });
    pod
}

fn remove<T: Object>(world: &mut World, name: &str) {
    if world
        .find::<T>(name)
        .is_some_and(|one| !one.is_terminating())
    {
        world.delete::<T>(name);
    }
}

fn is_claim_bound(world: &World, name: &str) -> bool {
    let claim = world.find::<PersistentVolumeClaim>(name);
    claim.is_some_and(|claim| is_bound(&claim))
}

fn runs(world: &World, name: &str) -> bool {
    let pod = world.find::<Pod>(name);
    pod.is_some_and(|pod| {
        let status = pod.status.as_ref();
        status.is_some_and(|status| *status.phase == *"Running")
    })
}

fn phase(world: &World, volume: &str) -> String {
    let volume = world.find::<PersistentVolume>(volume);
    let status = volume.and_then(|volume| volume.status.clone());
    status.unwrap_or_default().phase
}

/// A node whose kubelet leaves attaching to the controller.
fn store(name: &str) -> Node {
    let mut node = node(name).annotation(MANAGED, "true");
    node.status.get_or_insert_default().conditions = vec![NodeCondition {
        r#type: "Ready".to_owned(),
        status: "True".to_owned(),
        ..NodeCondition::default()
    }];
    node
}

/// Actors of storage in the place of kit's kubelets, and classes.
fn begin(making: &mut Making) {
    making.workload.pods_may_go = false;
    making.workload.storage = true;
    making.workload.world = making.workload.world.clone().without_kubelets();
    for name in NODES {
        making.put(store(name));
    }
    for (name, provisioner, mode) in [
        (MANUAL, NOBODY, IMMEDIATE),
        (LOCAL, NOBODY, WAIT),
        (FAST, DRIVER, IMMEDIATE),
        (LAZY, DRIVER, WAIT),
        (RETAINING, DRIVER, IMMEDIATE),
    ] {
        making.put(class(name, provisioner, mode));
    }
}

/// Claims and volumes that somebody made by hand: any for any, reserved from either side or both, and bound
/// when their pod is scheduled; claims that go, so that their volumes are kept as Released.
pub(super) fn bound(making: &mut Making) {
    begin(making);
    let count = making.dice.below(3) + 3;
    for number in 0..count {
        let (volume, claim) = (format!("{ANY}{number}"), format!("some-{number}"));
        // Claims may come before volumes, or after them, and several want the same ones at once.
        if making.dice.chance(500) {
            making.put(by_hand(&volume, MANUAL));
        } else {
            making.then_soon(move |world| world.put(by_hand(&volume, MANUAL)));
        }
        making.then_soon(move |world| world.put(wants(&claim, MANUAL)));
    }
    let pairs = [
        ("from-volume", true, false),
        ("from-claim", false, true),
        ("both", true, true),
    ];
    for (name, by_volume, by_claim) in pairs {
        let volume = format!("{name}-pv");
        // Each of a class of its own, so that it is nobody else's.
        let plain = by_hand(&volume, name);
        let made = match by_volume {
            true => reserved(plain, name),
            false => plain,
        };
        let wanted = match by_claim {
            true => named(wants(name, name), &volume),
            false => wants(name, name),
        };
        if making.dice.chance(500) {
            making.put(made);
            making.then(move |world| world.put(wanted));
        } else {
            making.put(wanted);
            making.then(move |world| world.put(made));
        }
        making.when(
            &format!("{name} is bound"),
            move |world| is_claim_bound(world, name),
            |_| {},
        );
    }
    making.put(by_hand(&format!("{ANY}local"), LOCAL));
    making.put(wants("local", LOCAL));
    making.then(|world| world.put(user("local", "node-1", &["local"])));
    making.put(wants("nobody", "missing").annotation(STAYS_PENDING, ""));
    // A claim without a class gets the default one, once there is one.
    let mut classless = wants("classless", "");
    classless.spec.get_or_insert_default().storage_class_name = None;
    making.put(classless);
    making.then(|world| {
        world.change::<StorageClass>(FAST, |class| {
            class
                .metadata_mut()
                .set_annotation("storageclass.kubernetes.io/is-default-class", "true");
        });
    });
    let goes = making.dice.below(count);
    for name in [
        format!("some-{goes}"),
        "both".to_owned(),
        "local".to_owned(),
    ] {
        let (is_due, of) = (name.clone(), name.clone());
        making.when(
            &format!("{name} is bound and deleted"),
            move |world| {
                is_claim_bound(world, &is_due) && (is_due != "local" || runs(world, "local"))
            },
            move |world| {
                remove::<PersistentVolumeClaim>(world, &of);
                remove::<Pod>(world, &of);
            },
        );
    }
    // A claim of the name of one that has gone is another claim: its volume is not that of the one before.
    making.when(
        "both comes again",
        |world| phase(world, "both-pv") == "Released",
        |world| {
            world.put(wants("both", FAST).uid("uid-both-again"));
        },
    );
}

/// Volumes that are provisioned at once or for their pod; pods and claims go in any order, and with the
/// claims their volumes, but for those of a class that keeps them.
pub(super) fn provisioned(making: &mut Making) {
    begin(making);
    for number in 0..3 {
        for class in [FAST, LAZY, RETAINING] {
            let name = format!("{class}-{number}");
            let node = NODES[making.dice.below(NODES.len())];
            let stays = number == 0;
            let claim = name.clone();
            making.then_soon(move |world| world.put(wants(&claim, class)));
            let claim = name.clone();
            making.then_soon(move |world| world.put(user(&claim, node, &[&claim])));
            if stays {
                continue;
            }
            let first = making.dice.chance(500);
            let (is_due, of) = (name.clone(), name.clone());
            making.when(
                &format!("{name} runs"),
                move |world| runs(world, &is_due),
                move |world| {
                    world.change::<PersistentVolumeClaim>(&of, |claim| {
                        claim.metadata_mut().set_annotation(HALF_GONE, "");
                    });
                    match first {
                        true => remove::<PersistentVolumeClaim>(world, &of),
                        false => remove::<Pod>(world, &of),
                    }
                },
            );
            let (is_due, of) = (name.clone(), name.clone());
            making.when(
                &format!("{name} is half gone"),
                move |world| {
                    let claim = world.find::<PersistentVolumeClaim>(&is_due);
                    claim.is_some_and(|claim| {
                        Object::metadata(&*claim).annotation(HALF_GONE).is_some()
                    })
                },
                move |world| {
                    remove::<Pod>(world, &of);
                    remove::<PersistentVolumeClaim>(world, &of);
                },
            );
        }
    }
    // Gone before it can be bound: the disk may be there already.
    for number in 0..3 {
        let name = format!("hasty-{number}");
        let claim = name.clone();
        making.then(move |world| world.put(wants(&claim, FAST)));
        making.at += making.dice.millis(50, 2500);
        making.then_soon(move |world| remove::<PersistentVolumeClaim>(world, &name));
    }
}

/// A volume that one node alone may have, provisioned, goes from node to node with its pods; then its node
/// dies, and is taken out of service.
pub(super) fn moved(making: &mut Making) {
    begin(making);
    making.workload.faults = Duration::from_secs(45);
    let claims = ["disk-0", "disk-1"];
    for claim in claims {
        making.put(wants(claim, FAST));
        let mut before: Option<String> = None;
        for round in 0..3 {
            let (pod, node) = (format!("{claim}-{round}"), NODES[round % NODES.len()]);
            let last = before.replace(pod.clone());
            let is_due = {
                let last = last.clone();
                move |world: &World| last.as_ref().is_none_or(|last| runs(world, last))
            };
            making.when(&format!("{pod} comes"), is_due, move |world| {
                if let Some(last) = last {
                    remove::<Pod>(world, &last);
                }
                world.put(user(&pod, node, &[claim]));
            });
        }
    }
    // The node of the last pods.
    making.when(
        "the node dies",
        move |world| {
            claims
                .iter()
                .all(|claim| runs(world, &format!("{claim}-2")))
        },
        |world| {
            world.change::<Node>("store-b", |node| {
                let dead = node
                    .clone()
                    .taint(OUT_OF_SERVICE, "nodeshutdown", "NoExecute");
                *node = dead.label(SILENT, "true");
            });
        },
    );
    // As pods of a set are forced off it, and come again.
    for claim in claims {
        let old = format!("{claim}-2");
        making.when(
            &format!("{claim} leaves the dead node"),
            |world| {
                let node = world.find::<Node>("store-b");
                node.is_some_and(|node| Object::metadata(&*node).label(SILENT).is_some())
            },
            move |world| {
                if world.find::<Pod>(&old).is_some() {
                    world.vanish::<Pod>(&old);
                }
                world.put(user(&format!("{claim}-3"), "node-1", &[claim]));
            },
        );
    }
    // What it was using when it died depends on when that was.
    making.when(
        "the dead node goes",
        move |world| {
            let attached = world.all::<VolumeAttachment>();
            let is_left = attached.iter().any(|one| {
                let spec = one.spec.as_ref();
                spec.is_some_and(|spec| spec.node_name == "store-b")
            });
            !is_left
                && claims
                    .iter()
                    .all(|claim| runs(world, &format!("{claim}-3")))
        },
        |world| remove::<Node>(world, "store-b"),
    );
}

/// Everything is deleted, in a random order, while it is made.
pub(super) fn all_gone(making: &mut Making) {
    begin(making);
    let count = making.dice.below(3) + 4;
    for number in 0..count {
        let class = [FAST, LAZY, MANUAL][number % 3];
        let name = format!("gone-{number}");
        let node = NODES[making.dice.below(NODES.len())];
        if class == MANUAL {
            let volume = format!("{name}-pv");
            making.put(reserved(by_hand(&volume, MANUAL), &name));
        }
        let claim = name.clone();
        making.then_soon(move |world| world.put(wants(&claim, class)));
        let pod = name.clone();
        making.then_soon(move |world| world.put(user(&pod, node, &[&pod])));
    }
    // In some order, soon after one another: the volume that a claim has, too.
    let mut order: Vec<(usize, usize)> = (0..count)
        .flat_map(|number| [(number, 0), (number, 1), (number, 2)])
        .collect();
    for place in (1..order.len()).rev() {
        order.swap(place, making.dice.below(place + 1));
    }
    for (number, what) in order {
        let name = format!("gone-{number}");
        making.at += making.dice.millis(0, 900);
        making.then_soon(move |world| match what {
            0 => remove::<PersistentVolumeClaim>(world, &name),
            1 => remove::<Pod>(world, &name),
            _ => {
                let claim = world.find::<PersistentVolumeClaim>(&name);
                let volume = claim.and_then(|claim| claim.spec.clone());
                let volume = volume.map(|spec| spec.volume_name).unwrap_or_default();
                if !volume.is_empty() {
                    remove::<PersistentVolume>(world, &volume);
                }
            }
        });
    }
    // Those made by hand outlive their claims: somebody deletes them, too.
    making.at += Duration::from_secs(20);
    for number in (0..count).filter(|number| number % 3 == 2) {
        let volume = format!("gone-{number}-pv");
        making.then_soon(move |world| remove::<PersistentVolume>(world, &volume));
    }
}

/// Volumes that are deleted while claims have them, and just when one gets them.
pub(super) fn kept(making: &mut Making) {
    begin(making);
    for number in 0..4 {
        let (name, volume) = (format!("kept-{number}"), format!("kept-{number}-pv"));
        // A class for each: where one volume has gone, no claim takes another's.
        let class = format!("class-{number}");
        making.put(reserved(by_hand(&volume, &class), &name));
        let claim = name.clone();
        making.then(move |world| world.put(wants(&claim, &class)));
        let of = volume.clone();
        match number % 2 {
            // While it is being bound: a claim can be bound to a volume that is on its way out, or comes too
            // late for it.
            0 => making.then_soon(move |world| remove::<PersistentVolume>(world, &of)),
            _ => {
                let claim = name.clone();
                making.when(
                    &format!("{volume} is deleted"),
                    move |world| is_claim_bound(world, &claim),
                    move |world| remove::<PersistentVolume>(world, &of),
                );
                making.when(
                    &format!("{name} is deleted"),
                    move |world| {
                        let held = world.find::<PersistentVolume>(&volume);
                        held.is_some_and(|held| held.is_terminating())
                    },
                    move |world| remove::<PersistentVolumeClaim>(world, &name),
                );
                continue;
            }
        }
        making.at += Duration::from_secs(5);
        making.then(move |world| remove::<PersistentVolumeClaim>(world, &name));
    }
    making.put(by_hand("spare", "class-of-none"));
}

/// Classes of attributes that are deleted while claims and volumes name them.
pub(super) fn attributes(making: &mut Making) {
    begin(making);
    let attributes = |name: &str| {
        let mut class = VolumeAttributesClass {
            driver_name: DRIVER.into(),
            ..VolumeAttributesClass::default()
        };
        class.metadata_mut().name = name.into();
        class
    };
    for name in ["gold", "silver", "unused"] {
        making.put(attributes(name).finalizer(OF_CLASS));
    }
    making.put(attributes("late"));
    for (number, class) in ["gold", "silver"].into_iter().enumerate() {
        let (name, volume) = (format!("has-{class}"), format!("has-{class}-pv"));
        let mut made = by_hand(&volume, MANUAL);
        made.spec
            .get_or_insert_default()
            .volume_attributes_class_name = Some(class.into());
        let mut wanted = wants(&name, MANUAL);
        wanted
            .spec
            .get_or_insert_default()
            .volume_attributes_class_name = Some(class.into());
        making.put(made);
        if number == 0 {
            making.put(wanted);
        } else {
            making.then(move |world| world.put(wanted));
        }
        let claim = name.clone();
        making.when(
            &format!("{class} is deleted"),
            move |world| is_claim_bound(world, &claim),
            move |world| remove::<VolumeAttributesClass>(world, class),
        );
        if number == 1 {
            making.when(
                "silver is free",
                move |world| {
                    let held = world.find::<VolumeAttributesClass>("silver");
                    held.is_some_and(|held| held.is_terminating())
                },
                move |world| {
                    remove::<PersistentVolumeClaim>(world, &name);
                    remove::<PersistentVolume>(world, &volume);
                },
            );
        }
    }
    making.then(|world| remove::<VolumeAttributesClass>(world, "unused"));
}

/// Claims that grow, of a driver that has taken over a plugin.
pub(super) fn expanded(making: &mut Making) {
    begin(making);
    for number in 0..3 {
        let name = format!("grows-{number}");
        let volume = format!("{name}-pv");
        let mut made = reserved(by_hand(&volume, MANUAL), &name);
        made.spec.get_or_insert_default().persistent_volume_source = Some(PersistentVolumeSource {
            aws_elastic_block_store: Some(Box::default()),
            ..PersistentVolumeSource::default()
        });
        if number == 2 {
            // One of a driver of its own: no annotation asks anybody for it.
            made = reserved(by_hand(&volume, MANUAL), &name);
        }
        making.put(made);
        making.put(wants(&name, MANUAL));
        for (round, size) in ["2Gi", "3Gi"].into_iter().enumerate() {
            let (is_due, of) = (name.clone(), name.clone());
            making.when(
                &format!("{name} grows to {size}"),
                move |world| {
                    let claim = world.find::<PersistentVolumeClaim>(&is_due);
                    claim.is_some_and(|claim| {
                        let asked = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref());
                        let before = ["1Gi", "2Gi"][round];
                        let is_next = asked.is_some_and(|asked| asked.requests == amount(before));
                        is_bound(&claim) && is_next
                    })
                },
                move |world| {
                    world.change::<PersistentVolumeClaim>(&of, |claim| {
                        let spec = claim.spec.get_or_insert_default();
                        spec.resources.get_or_insert_default().requests = amount(size);
                    });
                },
            );
        }
    }
}

/// Pods with ephemeral volumes come and go; one finds a claim of somebody else in its claim's place.
pub(super) fn ephemeral(making: &mut Making) {
    begin(making);
    making.put(wants("blocked-data", FAST));
    making.then(|world| world.put(with_own("blocked", "", FAST)));
    for number in 0..4 {
        let class = [FAST, LAZY][number % 2];
        let name = format!("own-{number}");
        let node = NODES[making.dice.below(NODES.len())];
        let pod = name.clone();
        making.then_soon(move |world| world.put(with_own(&pod, node, class)));
        if number == 0 {
            continue;
        }
        let of = name.clone();
        if number == 3 {
            // Gone before or after its claim has come.
            making.then_soon(move |world| remove::<Pod>(world, &of));
            continue;
        }
        making.when(
            &format!("{name} runs"),
            move |world| runs(world, &name),
            move |world| remove::<Pod>(world, &of),
        );
    }
}
