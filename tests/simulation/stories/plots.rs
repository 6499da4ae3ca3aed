//! What happens in each story.

use std::time::Duration;

use controllers_kit::{
    FlagValue,
    testing::{Common, WorkloadBuild, World, deployment, replica_set},
};
use futures::FutureExt as _;
use kubernetes_proto::{
    Object as _,
    apps::{Deployment, ReplicaSet},
    core::{
        Container, Node, PersistentVolumeClaimVolumeSource, Pod, PodSpec, Toleration, Volume,
        VolumeSource,
    },
};
use prost::Message as _;

use super::{STILL, Scene, Story};
use crate::{
    heartbeats::SILENT,
    workloads::{attachments as volumes, counted, nodes},
};

pub(super) const ALL: &[Story] = &[
    Story {
        name: "rollout",
        about: "A Deployment's image is changed: 3 replicas, RollingUpdate, maxSurge and maxUnavailable 25%
            (one more, none less). Two replicas share the work.",
        replicas: 2,
        ranges: false,
        flags: &[],
        before: |world| {
            workers(world);
            world.put(deployment("web").replicas(3));
        },
        play: |scene| rollout(scene).boxed_local(),
    },
    Story {
        name: "handoff",
        about: "A third replica joins while the ReplicaSet web is scaled from 2 to 8: its range moves, with
            queue, marks and memory. Of a writer, range@epoch is shown.",
        replicas: 2,
        ranges: true,
        flags: &[],
        before: scaled,
        play: |scene| handoff(scene).boxed_local(),
    },
    Story {
        name: "takeover",
        about: "A replica is killed while it scales the ReplicaSet web from 2 to 8; its kubelet reports the end a
            second later, and late writes are waited for. Of a writer, range@epoch is shown.",
        replicas: 3,
        ranges: true,
        flags: &[],
        before: scaled,
        play: |scene| takeover(scene).boxed_local(),
    },
    Story {
        name: "job",
        about: "A Job with backoffLimit 2 whose container exits with 1 each time: three pods, 10 s and 20 s
            apart, then it has failed.",
        replicas: 2,
        ranges: false,
        flags: &[],
        before: workers,
        play: |scene| job(scene).boxed_local(),
    },
    Story {
        name: "node",
        about: "One of three nodes dies under a pod of the Deployment web. With upstream's defaults: silent for
            50 s, then unreachable; pods tolerate that for 300 s, as admission has them. In the end the node is
            deleted by hand.",
        replicas: 2,
        ranges: false,
        flags: &[
            ("node-monitor-grace-period", || FlagValue::Duration(Duration::from_secs(50))),
            ("node-eviction-rate", || FlagValue::Float(0.1)),
        ],
        before: |world| {
            workers(world);
            world.put(deployment("web").replicas(3));
        },
        play: |scene| dying(scene).boxed_local(),
    },
    Story {
        name: "volume",
        about: "The pod of a claim (ReadWriteOnce, CSI) is moved from worker-1 to worker-2: drained, its
            Deployment makes another, which waits for the volume.",
        replicas: 2,
        ranges: false,
        flags: &[],
        before: |world| {
            workers(world);
            let (claim, volume) = volumes::bound("data", "ReadWriteOnce");
            world.put(claim);
            world.put(volume);
            let mut db = deployment("db").replicas(1);
            let spec = PodSpec {
                containers: vec![Container {
                    name: "main".into(),
                    ..Container::default()
                }],
                volumes: vec![Volume {
                    name: "data".into(),
                    volume_source: Some(VolumeSource {
                        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                            claim_name: "data".into(),
                            read_only: false,
                        }),
                        ..VolumeSource::default()
                    }),
                }],
                ..PodSpec::default()
            };
            let template = db.spec.get_or_insert_default().template.get_or_insert_default();
            template.spec = spec.encode_to_vec();
            world.put(db);
        },
        play: |scene| moved(scene).boxed_local(),
    },
];

/// Three nodes of one zone, whose kubelets leave attaching to the controller.
fn workers(world: &mut World) {
    for number in 1..=3 {
        let worker = nodes::ready(&format!("worker-{number}"), "a");
        world.put(worker.annotation(crate::attachments::MANAGED, "true"));
    }
}

fn scaled(world: &mut World) {
    workers(world);
    world.put(replica_set("web").replicas(2));
}

/// As the admission `DefaultTolerationSeconds` has it.
pub(super) fn tolerate(spec: &mut PodSpec) {
    for key in ["not-ready", "unreachable"] {
        let toleration = Toleration {
            key: format!("node.kubernetes.io/{key}"),
            operator: "Exists".to_owned(),
            effect: "NoExecute".to_owned(),
            toleration_seconds: Some(300),
            ..Toleration::default()
        };
        spec.tolerations.push(toleration.into());
    }
}

async fn rollout(scene: &mut Scene) {
    scene.user(|world| {
        world.change::<Deployment>("web", |web| *web = web.clone().image("app:2"));
    });
    scene.rest(STILL).await;
}

fn scale(scene: &mut Scene, replicas: i32) {
    // Work for some seconds.
    scene.starts_at_once = 2;
    scene.user(|world| {
        world.change::<ReplicaSet>("web", |web| *web = web.clone().replicas(replicas));
    });
}

async fn handoff(scene: &mut Scene) {
    scene.say("r-2", "starts");
    scene.fleet.start(2);
    scene.ready(2).await;
    scale(scene, 8);
    scene.rest(STILL).await;
}

async fn takeover(scene: &mut Scene) {
    scale(scene, 8);
    // Some pods are made, others are about to be.
    scene.pass(Duration::from_millis(35)).await;
    scene.say("r-0", "is killed");
    scene.fleet.crash(0);
    scene.rest(STILL).await;
}

async fn job(scene: &mut Scene) {
    scene.user(|world| world.put(counted("pi", 1, 1, "1")));
    scene.rest(Duration::from_secs(60)).await;
}

async fn dying(scene: &mut Scene) {
    scene.say("worker-2", "dies: its kubelet does nothing any more");
    scene.hub.with(|state| {
        state.others("kubelet", |world| {
            world.change::<Node>("worker-2", |node| {
                node.metadata_mut().set_label(SILENT, "true");
            });
        });
    });
    scene.pass(Duration::from_secs(420)).await;
    scene.user(|world| world.delete::<Node>("worker-2"));
    scene.pass(Duration::from_secs(90)).await;
}

async fn moved(scene: &mut Scene) {
    let pods = scene.hub.with(|state| state.server.world.all::<Pod>());
    let name = pods
        .first()
        .map(|pod| kubernetes_proto::Object::metadata(&**pod).name.to_string());
    let name = name.expect("the Deployment has a pod");
    scene.user(|world| {
        world.change::<Node>("worker-1", |node| {
            node.spec.get_or_insert_default().unschedulable = true;
        });
    });
    scene.user(|world| world.delete::<Pod>(&name));
    scene.rest(STILL).await;
}
