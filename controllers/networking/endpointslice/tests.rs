mod hints;
mod packing;
mod sharding;
mod writing;

use controllers_kit::{
    Plan, Verb,
    testing::{BackendBuild, Common, PodBuild, World, ZoneBuild, node, pod},
};
use kubernetes_proto::{
    Object,
    core::{Pod, Service},
    discovery::{Endpoint, EndpointSlice},
};
use serde_json::Value;

use super::{Memory, SlicesOfServices};

/// A pod of Service `web`, ready since 11:50, whose address ends with its number.
fn backend(number: usize) -> Pod {
    pod(&format!("web-{number}"))
        .label("app", "web")
        .ready("11:50:00")
        .ip(&format!("10.1.{}.{}", number / 250, number % 250 + 1))
}

/// A cluster of one node with a Service created at 11:00, and `pods` of its pods.
fn cluster(service: Service, pods: usize) -> World {
    let mut world = World::at("12:00:00")
        .without_kubelets()
        .with(node("node-1").works_in("a", "4"))
        .with(service.created("11:00:00"));
    for number in 0..pods {
        world.put(backend(number));
    }
    world
}

/// The patch of a plan's only action.
fn patch(plan: &Plan) -> &Value {
    let actions: Vec<_> = plan.actions().collect();
    match actions.as_slice() {
        [action] => match &action.verb {
            Verb::Patch { patch, .. } => patch,
            other => panic!("{other:?} is no patch"),
        },
        _ => panic!("{:?} is not one action", plan.verbs()),
    }
}

fn run(world: &mut World) -> Vec<Plan> {
    world.run::<SlicesOfServices>()
}

fn slices(world: &World) -> Vec<std::sync::Arc<EndpointSlice>> {
    world.all::<EndpointSlice>()
}

/// How many endpoints each slice has, the fullest first.
fn sizes(world: &World) -> Vec<usize> {
    let mut sizes: Vec<usize> = slices(world)
        .iter()
        .map(|slice| slice.endpoints.len())
        .collect();
    sizes.sort_unstable_by(|one, other| other.cmp(one));
    sizes
}

fn pod_of(endpoint: &Endpoint) -> &str {
    endpoint
        .target_ref
        .as_ref()
        .map_or("", |target| &target.name)
}

/// The pods of all endpoints, sorted; one that is in two slices is listed twice.
fn published(world: &World) -> Vec<String> {
    let mut pods: Vec<String> = slices(world)
        .iter()
        .flat_map(|slice| &slice.endpoints)
        .map(|endpoint| pod_of(endpoint).to_owned())
        .collect();
    pods.sort();
    pods
}

fn endpoint(world: &World, pod: &str) -> Option<Endpoint> {
    slices(world)
        .iter()
        .flat_map(|slice| &slice.endpoints)
        .find(|endpoint| pod_of(endpoint) == pod)
        .cloned()
}

fn name(slice: &EndpointSlice) -> &str {
    &slice.metadata().name
}

fn fresh() -> Memory {
    Memory::default()
}
