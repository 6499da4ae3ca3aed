//! The contract of both controllers, alone and together.

use controllers_kit::{
    Factory,
    testing::{
        Common, DeploymentBuild, PodBuild, WorkloadBuild, World, contract, deployment, pod,
        replica_set,
    },
};
use kubernetes_proto::{Object, core::Pod};

use crate::{REGISTRY, deployment::Deployments, replicaset::ReplicaSets};

const DEPLOYMENTS: Factory = Factory::of::<Deployments>();
const REPLICA_SETS: Factory = Factory::of::<ReplicaSets>();

fn world() -> World {
    World::at("12:00:00")
}

#[test]
fn both_controllers_are_held_to_the_contract() {
    contract::covers(
        REGISTRY,
        &[
            "deployment-controller",
            "replicaset-controller",
            "replicationcontroller-controller",
            "statefulset-controller",
            "daemonset-controller",
            "disruption-controller",
        ],
    );
}

#[test]
fn replica_sets_keep_the_contract() {
    let web = replica_set("web").replicas(3);
    let child = |name: &str| {
        pod(name)
            .label("app", "web")
            .owned_by(&web)
            .ready("11:00:00")
    };
    contract::check(
        &REPLICA_SETS,
        [
            world().with(web.clone()),
            world().with(web.clone().min_ready(30)),
            world()
                .with(web.clone().replicas(1))
                .with(child("web-a"))
                .with(child("web-b"))
                .with(child("web-c")),
            world()
                .with(web.clone())
                .with(pod("orphan").label("app", "web"))
                .with(child("web-lost").label("app", "db")),
            world()
                .with(web.clone())
                .with(child("web-done").phase("Succeeded"))
                .with(child("web-going").terminating("11:59:50")),
        ],
    );
}

#[test]
fn deployments_keep_the_contract_beside_replica_sets() {
    let web = deployment("web").replicas(4);
    contract::Contract::of(&DEPLOYMENTS)
        .among(&[REPLICA_SETS])
        .seeds(8)
        .check([
            world().with(web.clone()),
            world().with(web.clone().recreate()),
            world().with(web.clone().paused()),
            rolled_out(web.clone()).changed("web", image("app:2")),
            rolled_out(web.clone().recreate()).changed("web", image("app:2")),
            rolled_out(web.clone().rolling("0", "50%").min_ready(20))
                .changed("web", image("app:2")),
            rolled_out(web).changed(
                "web",
                |deployment: &mut kubernetes_proto::apps::Deployment| {
                    deployment.spec.as_mut().unwrap().replicas = Some(1);
                },
            ),
        ]);
}

/// A cluster in which a Deployment is through with its first rollout.
fn rolled_out(deployment: kubernetes_proto::apps::Deployment) -> World {
    let mut world = world().with(deployment);
    world.settle_for(120, REGISTRY);
    assert!(world.all::<Pod>().iter().all(|pod| !pod.is_terminating()));
    world
}

fn image(image: &str) -> impl FnOnce(&mut kubernetes_proto::apps::Deployment) {
    move |deployment| {
        let template = deployment.spec.as_mut().unwrap().template.as_mut().unwrap();
        template.spec = controllers_kit::testing::pod_spec_bytes(image);
    }
}
