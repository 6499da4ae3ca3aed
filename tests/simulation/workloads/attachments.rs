//! Volumes whose pods move from node to node.

use std::time::Duration;

use controllers_kit::testing::{NodeBuild, PodBuild, World, claim, node, pod};
use kubernetes_proto::{
    Object as _,
    core::{
        AttachedVolume, CsiPersistentVolumeSource, Node, NodeCondition, ObjectReference,
        PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimVolumeSource,
        PersistentVolumeSource, PersistentVolumeSpec, Pod, Volume, VolumeSource,
    },
    storage::{
        VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec, VolumeAttachmentStatus,
    },
};

use super::Making;
use crate::{
    attachments::{DRIVER, MANAGED, OUT_OF_SERVICE, SLOW},
    heartbeats::SILENT,
};

const NODES: [&str; 3] = ["disk-a", "disk-b", "disk-c"];
/// The last of them that goes out of service.
const LOST: &str = "disk-c";
/// One that falls silent.
const SILENCED: &str = "disk-d";
/// Volumes that one node alone may have.
const VOLUMES: usize = 4;
/// The volume of the silent node, and the name of its attachment: the SHA-256 of volume, driver and node.
const STUCK: &str = "stuck";
const ATTACHMENT: &str = "csi-4366e15f1928f78df15ee39dfc633f2bedf98418936e4b072080763d9762d24f";
/// Long after the faults: the attachments to the lost node have gone.
const CALM: Duration = Duration::from_secs(90);

fn managed(name: &str) -> Node {
    let mut node = node(name);
    node.metadata_mut().set_annotation(MANAGED, "true");
    node.status.get_or_insert_default().conditions = vec![NodeCondition {
        r#type: "Ready".to_owned(),
        status: "True".to_owned(),
        ..NodeCondition::default()
    }];
    node
}

fn volume_of(claim: &str) -> String {
    format!("{claim}-pv")
}

/// The claims of volumes that one node alone may have; half of them are slow.
fn claim_of(number: usize) -> String {
    match number % 2 {
        0 => format!("disk-{number}"),
        _ => format!("{SLOW}{number}"),
    }
}

/// A claim and its volume, bound to each other.
pub fn bound(name: &str, mode: &str) -> (PersistentVolumeClaim, PersistentVolume) {
    let mut claim: PersistentVolumeClaim = claim(name);
    let volume = volume_of(name);
    claim.metadata_mut().uid = format!("uid-{name}").as_str().into();
    for done in [
        "pv.kubernetes.io/bind-completed",
        "pv.kubernetes.io/bound-by-controller",
    ] {
        claim.metadata_mut().set_annotation(done, "yes");
    }
    let spec = claim.spec.get_or_insert_default();
    spec.volume_name = volume.as_str().into();
    spec.access_modes = vec![mode.into()];
    claim.status.get_or_insert_default().phase = "Bound".into();
    let mut made = PersistentVolume::default();
    made.metadata_mut().name = volume.as_str().into();
    made.metadata_mut()
        .set_annotation("pv.kubernetes.io/bound-by-controller", "yes");
    made.spec = Some(PersistentVolumeSpec {
        access_modes: vec![mode.into()],
        claim_ref: Some(ObjectReference {
            kind: "PersistentVolumeClaim".into(),
            api_version: "v1".into(),
            namespace: "default".into(),
            name: name.into(),
            uid: format!("uid-{name}").as_str().into(),
            ..ObjectReference::default()
        }),
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
    made.status.get_or_insert_default().phase = "Bound".into();
    (claim, made)
}

fn put_bound(making: &mut Making, name: &str, mode: &str) {
    let (claim, volume) = bound(name, mode);
    making.put(claim);
    making.put(volume);
}

fn user(name: &str, node: &str, claim: &str) -> Pod {
    let mut pod = pod(name).on(node);
    pod.spec.get_or_insert_default().volumes.push(Volume {
        name: "data".into(),
        volume_source: Some(VolumeSource {
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim.into(),
                read_only: false,
            }),
            ..VolumeSource::default()
        }),
    });
    pod
}

/// The silent node has had its volume all along.
fn held(making: &mut Making) {
    let mut attachment = VolumeAttachment {
        spec: Some(VolumeAttachmentSpec {
            attacher: DRIVER.to_owned(),
            source: Some(VolumeAttachmentSource {
                persistent_volume_name: Some(volume_of(STUCK)),
                inline_volume_spec: None,
            }),
            node_name: SILENCED.to_owned(),
        }),
        status: Some(VolumeAttachmentStatus {
            attached: true,
            ..VolumeAttachmentStatus::default()
        }),
        ..VolumeAttachment::default()
    };
    attachment.metadata_mut().name = ATTACHMENT.into();
    making.put(attachment);
    let volume = format!("kubernetes.io/csi/{DRIVER}^{STUCK}");
    making.workload.world.change::<Node>(SILENCED, |node| {
        let status = node.status.get_or_insert_default();
        status.volumes_in_use = vec![volume.clone()];
        status.volumes_attached = vec![AttachedVolume {
            name: volume,
            device_path: String::new(),
        }];
    });
}

fn remove(world: &mut World, name: &str) {
    if world.find::<Pod>(name).is_some() {
        world.delete::<Pod>(name);
    }
}

/// Pods of volumes move between nodes, some so soon that the volume has not come, or not gone; a node with a
/// volume goes out of service, and one falls silent.
pub(super) fn attached(making: &mut Making) {
    making.workload.pods_may_go = false;
    making.workload.faults = Duration::from_secs(60);
    for name in NODES.into_iter().chain([SILENCED]) {
        making.put(managed(name));
    }
    put_bound(making, "shared", "ReadWriteMany");
    for node in NODES {
        making.put(user(&format!("reads-{node}"), node, "shared"));
    }
    put_bound(making, STUCK, "ReadWriteOnce");
    making.put(user("stays", SILENCED, STUCK));
    held(making);
    making.then(|world| {
        world.change::<Node>(SILENCED, |node| {
            node.metadata_mut().set_label(SILENT, "true");
        });
    });
    making.then(|world| remove(world, "stays"));
    for number in 0..VOLUMES {
        let claim = claim_of(number);
        put_bound(making, &claim, "ReadWriteOnce");
        let first = making.dice.below(NODES.len());
        making.put(user(&format!("{claim}-0"), NODES[first], &claim));
    }
    for round in 1..=3 {
        for number in 0..VOLUMES {
            let claim = claim_of(number);
            // In the end none is where a node is lost.
            let node = NODES[making.dice.below(if round < 3 { 3 } else { 2 })];
            let (before, after) = (format!("{claim}-{}", round - 1), format!("{claim}-{round}"));
            let early = making.dice.chance(300);
            let come = {
                let claim = claim.clone();
                move |world: &mut World| world.put(user(&after, node, &claim))
            };
            let go = move |world: &mut World| remove(world, &before);
            // A pod may come while the one before has the volume.
            if early {
                making.then_soon(come);
                making.then(go);
            } else if making.dice.chance(500) {
                making.then_soon(go);
                making.then_soon(come);
            } else {
                making.then_soon(go);
                making.then(come);
            }
        }
    }
    making.then(|world| {
        world.change::<Node>(LOST, |node| {
            let tainted = node
                .clone()
                .taint(OUT_OF_SERVICE, "nodeshutdown", "NoExecute");
            *node = tainted;
        });
    });
    making.then(|world| world.put(user("waits", NODES[0], STUCK)));
    // What it was using when it was lost depends on when that was.
    making.at += CALM;
    making.then(|world| world.delete::<Node>(LOST));
}
