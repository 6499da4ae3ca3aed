//! What is counted: the way of a pod's change, from the frame to the request.

use std::hint::black_box;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bench::load::cluster::Cluster;
use bench::load::{self, cluster};
use controllers_kit::Key;
use kubernetes_proto::{Object as _, core::Pod};
use node::queue::{Priority, Queue};
use node_cache::Cache;
use prost::Message as _;

/// Pods that are decoded and stored.
const PODS: usize = 200;
/// Plans of a key at rest: one alone takes a twentieth more or less, by where things fall in its hash tables.
const PLANS: usize = 20;
/// Keys that are queued.
const KEYS: usize = 500;

/// Something that is done so often in one run.
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) times: u64,
    work: Box<dyn Fn()>,
}

impl Part {
    fn new(name: impl Into<String>, times: usize, work: impl Fn() + 'static) -> Self {
        Self {
            name: name.into(),
            times: times as u64,
            work: Box::new(work),
        }
    }

    /// All of it, once.
    pub(crate) fn run(&self) {
        (self.work)();
    }
}

/// All parts, in the order in which they are counted.
pub(crate) fn all() -> Vec<Part> {
    let cluster = Rc::new(Cluster::at_rest());
    let mut parts = vec![decode(), store(), replace(), queue(), creations(), encode()];
    parts.extend(["pods", "replicasets", "deployments"].map(|plural| wake(&cluster, plural)));
    for controller in &cluster.controllers {
        let keys = cluster.keys(controller.as_ref());
        if !keys.is_empty() {
            parts.push(plan_at_rest(&cluster, controller.descriptor().name, keys));
        }
    }
    parts
}

fn pods() -> Arc<Cache> {
    Cache::builder().resource(Pod::resource()).build()
}

fn feed(cache: &Cache, frames: &[Vec<u8>]) {
    for frame in frames {
        cache
            .feed(Pod::resource(), black_box(frame))
            .expect("a frame of our own");
    }
}

fn frames() -> Vec<Vec<u8>> {
    (0..PODS).map(load::added).collect()
}

fn decode() -> Part {
    let pods: Vec<Vec<u8>> = (0..PODS).map(load::pod).collect();
    Part::new("decode a pod", PODS, move || {
        for pod in &pods {
            black_box(Pod::decode(black_box(pod.as_slice())).expect("a pod"));
        }
    })
}

fn store() -> Part {
    let frames = frames();
    Part::new("decode and store a new pod", PODS, move || {
        let cache = pods();
        feed(&cache, &frames);
        black_box(cache);
    })
}

fn replace() -> Part {
    let (frames, cache) = (frames(), pods());
    Part::new("decode and store a changed pod", PODS, move || {
        feed(&cache, &frames);
    })
}

fn queue() -> Part {
    let keys: Vec<Key> = (0..KEYS)
        .map(|number| Key::new("default", format!("web-{number}")))
        .collect();
    let now = Duration::from_secs(1);
    Part::new("queue a key, twice, and work it off", KEYS, move || {
        let mut queue = Queue::default();
        for _ in 0..2 {
            for key in &keys {
                queue.add(black_box(key), Priority::High, now);
            }
        }
        while let Some(taken) = queue.take(now) {
            queue.done(&taken.key);
        }
    })
}

fn creations() -> Part {
    let pods = cluster::creations().actions().count();
    Part::new("plan the creation of a pod", pods, || {
        black_box(cluster::creations());
    })
}

fn encode() -> Part {
    let plan = cluster::creations();
    let pods = plan.actions().count();
    Part::new("encode the creation of a pod", pods, move || {
        for action in plan.actions() {
            black_box(node::write::request(black_box(action)));
        }
    })
}

fn wake(cluster: &Rc<Cluster>, plural: &'static str) -> Part {
    let cluster = Rc::clone(cluster);
    let (objects, subscriptions) = (cluster.objects(plural), cluster.subscriptions(plural));
    let name = format!("tell all controllers of one of the {plural}");
    Part::new(name, objects.len(), move || {
        for object in &objects {
            black_box(cluster.wakes(&subscriptions, black_box(object)));
        }
    })
}

fn plan_at_rest(cluster: &Rc<Cluster>, name: &'static str, keys: Vec<Key>) -> Part {
    let cluster = Rc::clone(cluster);
    let times = keys.len() * PLANS;
    Part::new(format!("plan at rest, {name}"), times, move || {
        let controller = cluster.controller(name);
        for key in keys.iter().cycle().take(times) {
            black_box(cluster.plan(controller, black_box(key)));
        }
    })
}
