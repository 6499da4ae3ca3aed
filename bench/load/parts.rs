//! What the way of an event costs, part by part: waking, queueing, planning, encoding.
//!
//! `cargo bench -p bench --bench parts`; decoding and storing stand in `decode.rs`.

use std::hint::black_box;
use std::sync::LazyLock;
use std::time::Duration;

use bench::load::cluster::{Cluster, creations};
use controllers_kit::Key;
use divan::{Bencher, counter::ItemsCount};
use node::queue::{Priority, Queue};

/// The allocator of the binary `manifold`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Keys of one measurement of the queue.
const KEYS: usize = 2_000;

static CLUSTER: LazyLock<Cluster> = LazyLock::new(Cluster::at_rest);

fn main() {
    divan::main();
}

/// Names of the controllers that plan without asking.
fn controllers() -> Vec<&'static str> {
    CLUSTER
        .controllers
        .iter()
        .filter(|controller| !CLUSTER.keys(controller.as_ref()).is_empty())
        .map(|controller| controller.descriptor().name)
        .collect()
}

/// A change of one object, delivered to all controllers.
#[divan::bench(args = ["pods", "replicasets", "deployments", "nodes", "services"])]
fn wake(bencher: Bencher<'_, '_>, plural: &str) {
    let (objects, subscriptions) = (CLUSTER.objects(plural), CLUSTER.subscriptions(plural));
    bencher
        .counter(ItemsCount::new(objects.len()))
        .bench_local(|| {
            objects
                .iter()
                .map(|object| CLUSTER.wakes(&subscriptions, black_box(object)))
                .sum::<usize>()
        });
}

/// A key with nothing left to do: what most reconciles are.
#[divan::bench(args = controllers())]
fn plan_at_rest(bencher: Bencher<'_, '_>, name: &str) {
    let controller = CLUSTER.controller(name);
    let keys = CLUSTER.keys(controller);
    bencher
        .counter(ItemsCount::new(keys.len()))
        .bench_local(|| {
            for key in &keys {
                black_box(CLUSTER.plan(controller, black_box(key)));
            }
        });
}

/// A ReplicaSet that has none of its pods.
#[divan::bench]
fn plan_of_creations(bencher: Bencher<'_, '_>) {
    let count = creations().actions().count();
    bencher
        .counter(ItemsCount::new(count))
        .bench_local(creations);
}

/// The creations of that plan as requests.
#[divan::bench]
fn encode_of_a_create(bencher: Bencher<'_, '_>) {
    let plan = creations();
    bencher
        .counter(ItemsCount::new(plan.actions().count()))
        .bench_local(|| {
            for action in plan.actions() {
                black_box(node::write::request(black_box(action)));
            }
        });
}

/// Added, added again while it waits, taken and done.
#[divan::bench]
fn queue(bencher: Bencher<'_, '_>) {
    let keys: Vec<Key> = (0..KEYS)
        .map(|number| Key::new("default", format!("web-{number}")))
        .collect();
    let now = Duration::from_secs(1);
    bencher.counter(ItemsCount::new(KEYS)).bench_local(|| {
        let mut queue = Queue::default();
        for _ in 0..2 {
            for key in &keys {
                queue.add(black_box(key), Priority::High, now);
            }
        }
        while let Some(taken) = queue.take(now) {
            queue.done(&taken.key);
        }
        queue
    });
}
