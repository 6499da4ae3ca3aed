use controllers_kit::{
    Factory,
    testing::{
        Common, PodBuild, StatefulSetBuild, WorkloadBuild, World, contract, pod, stateful_set,
    },
};
use kubernetes_proto::{
    Object,
    apps::{ControllerRevision, StatefulSet},
    core::{PersistentVolumeClaim, Pod},
};

use super::StatefulSets;

const FACTORY: Factory = Factory::of::<StatefulSets>();

fn world() -> World {
    World::at("12:00:00")
}

fn settled(set: StatefulSet) -> World {
    let mut world = world().with(set);
    world.settle_for(600, &[FACTORY]);
    world
}

fn image(image: &str) -> impl FnOnce(&mut StatefulSet) {
    move |set| {
        let template = set.spec.as_mut().unwrap().template.as_mut().unwrap();
        template.spec = controllers_kit::testing::pod_spec_bytes(image);
    }
}

fn scaled(count: i32) -> impl FnOnce(&mut StatefulSet) {
    move |set| set.spec.as_mut().unwrap().replicas = Some(count)
}

#[test]
fn stateful_sets_keep_the_contract() {
    let web = stateful_set("web").replicas(3);
    contract::Contract::of(&FACTORY).seeds(8).check([
        world().with(web.clone()),
        world().with(web.clone().parallel().claims("data")),
        world().with(
            web.clone()
                .claims("data")
                .retention("Delete", "Delete")
                .min_ready(20),
        ),
        settled(web.clone()).changed("web", image("app:2")),
        settled(web.clone().parallel()).changed("web", image("app:2")),
        settled(web.clone().partition(2)).changed("web", image("app:2")),
        settled(web.clone().claims("data").retention("Retain", "Delete")).changed("web", scaled(1)),
        settled(web.clone().parallel()).changed("web", scaled(1)),
        settled(web.clone()).with(pod("web-9").label("app", "web").ready("11:00:00")),
        settled(web).with(pod("orphan-a").label("app", "web")),
    ]);
}
