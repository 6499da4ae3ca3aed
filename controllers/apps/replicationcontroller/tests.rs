use controllers_kit::{
    Factory,
    testing::{Common, PodBuild, World, contract, pod, replication_controller},
};
use kubernetes_proto::core::{Pod, ReplicationController};

use super::ReplicationControllers;

const FACTORY: Factory = Factory::of::<ReplicationControllers>();

fn wanting(count: i32) -> ReplicationController {
    let mut set = replication_controller("web");
    set.spec.as_mut().unwrap().replicas = Some(count);
    set
}

fn world() -> World {
    World::at("12:00:00")
}

#[test]
fn replication_controllers_keep_the_contract() {
    let web = wanting(3);
    let child = |name: &str| {
        pod(name)
            .label("app", "web")
            .owned_by(&web)
            .ready("11:00:00")
    };
    contract::check(
        &FACTORY,
        [
            world().with(web.clone()),
            world()
                .with(wanting(1))
                .with(child("web-a"))
                .with(child("web-b"))
                .with(child("web-c")),
            world()
                .with(web.clone())
                .with(pod("orphan").label("app", "web"))
                .with(child("web-lost").label("app", "db")),
            world()
                .with(web.clone())
                .with(child("web-done").phase("Succeeded")),
        ],
    );
}

#[test]
fn pods_are_created_with_owner_and_event() {
    let mut world = world().with(wanting(2));
    world.settle(&[FACTORY]);
    let pods = world.all::<Pod>();
    assert_eq!(pods.len(), 2);
    let owner = kubernetes_proto::Object::metadata(&*pods[0])
        .controller()
        .unwrap();
    assert_eq!(
        (&*owner.api_version, &*owner.kind),
        ("v1", "ReplicationController")
    );
    let name = &kubernetes_proto::Object::metadata(&*pods[0]).name;
    assert!(
        world
            .events()
            .contains(&format!("Normal SuccessfulCreate Created pod: {name}"))
    );
}

#[test]
fn the_status_has_no_terminating_replicas() {
    let mut world = world().with(wanting(2));
    world.settle(&[FACTORY]);
    let json = kubernetes_proto::DynObject::to_json(&*world.get::<ReplicationController>("web"));
    assert_eq!(
        json["status"],
        serde_json::json!({
            "replicas": 2, "fullyLabeledReplicas": 2, "readyReplicas": 2, "availableReplicas": 2,
            "observedGeneration": 1
        })
    );
}

#[test]
fn a_controller_that_selects_nothing_adopts_no_pod() {
    let mut set = wanting(0);
    set.spec.as_mut().unwrap().selector.clear();
    let mut world = world().with(set).with(pod("other"));
    world.settle(&[FACTORY]);
    let other = world.get::<Pod>("other");
    assert!(
        kubernetes_proto::Object::metadata(&*other)
            .owner_references
            .is_empty()
    );
}

#[test]
fn a_surplus_goes_and_what_is_not_ready_first() {
    let web = wanting(1);
    let child = |name: &str| pod(name).label("app", "web").owned_by(&web);
    let plan = world()
        .with(web.clone())
        .with(child("web-a").ready("11:00:00"))
        .with(child("web-b").running())
        .plan::<ReplicationControllers>("web");
    assert_eq!(plan.verbs()[0], "delete pods/web-b");
}
