use controllers_kit::{
    Factory,
    testing::{
        Common, DaemonSetBuild, NodeBuild, PodBuild, World, contract, daemon_set, node, pod,
    },
};
use kubernetes_proto::apps::DaemonSet;

use super::DaemonSets;

const FACTORY: Factory = Factory::of::<DaemonSets>();

fn world() -> World {
    World::at("12:00:00")
        .with(node("node-1"))
        .with(node("node-2"))
        .with(node("node-3"))
}

fn settled(set: DaemonSet) -> World {
    let mut world = world().with(set);
    world.settle_for(600, &[FACTORY]);
    world
}

fn image(image: &str) -> impl FnOnce(&mut DaemonSet) {
    move |set| {
        let template = set.spec.as_mut().unwrap().template.as_mut().unwrap();
        template.spec = controllers_kit::testing::pod_spec_bytes(image);
    }
}

#[test]
fn daemon_sets_keep_the_contract() {
    let web = daemon_set("web");
    let child = |name: &str| pod(name).label("app", "web").owned_by(&web);
    contract::Contract::of(&FACTORY).seeds(8).surplus(1).check([
        world().with(web.clone()),
        world().with(web.clone().min_ready(20)),
        world()
            .with(node("node-4").taint("broken", "", "NoExecute"))
            .with(web.clone()),
        settled(web.clone()).changed("web", image("app:2")),
        settled(web.clone().rolling("0", "1")).changed("web", image("app:2")),
        settled(web.clone().on_delete()).changed("web", image("app:2")),
        world()
            .with(web.clone())
            .with(child("web-a").on("node-1").phase("Failed"))
            .with(child("web-b").on("node-2").phase("Succeeded"))
            .with(child("web-c").on("node-3").ready("11:00:00"))
            .with(child("web-d").on("node-3").ready("11:30:00")),
        world()
            .with(web.clone())
            .with(pod("orphan").label("app", "web").on("node-1")),
    ]);
}
