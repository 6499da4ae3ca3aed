//! Decodes and stores pods of a real list, beside what k8s-openapi's types take for the same pods.
//!
//! `cargo bench -p bench --bench decode`

use std::{hint::black_box, time::Instant};

use bench::load;
use controllers_kit::{Index, Reader as _};
use divan::{Bencher, counter::ItemsCount};
use k8s_openapi::api::core::v1 as openapi;
use kubernetes_proto::{Object as _, core::Pod};
use node_cache::Cache;
use prost::Message as _;

/// The allocator of the binary `manifold`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Pods of one measurement of time.
const PODS: usize = 2_000;

/// Pods of the measurement of memory: enough that the process's own pages, of 2 MiB each, do not matter.
const PODS_HELD: usize = 50_000;

/// What each pod may take, decoded and stored, its indexes included.
const BYTES_MAX: f64 = 2_500.0;

/// And so long may it take to come there.
const MICROS_MAX: f64 = 3.0;

/// Frames that lie ready at a time: they fit into a core's cache, as what was just received does.
const BATCH: usize = 100;

/// Batches of k8s-openapi's types.
const OPENAPI_BATCHES: usize = 20;

fn main() {
    let beyond = held();
    divan::main();
    if !beyond.is_empty() {
        eprintln!("beyond what is allowed: {}", beyond.join(", "));
        std::process::exit(1);
    }
}

fn cache() -> std::sync::Arc<Cache> {
    Cache::builder().resource(Pod::resource()).build()
}

fn frames(numbers: std::ops::Range<usize>) -> Vec<Vec<u8>> {
    numbers.map(load::added).collect()
}

/// Time and resident memory while many pods come to be held, batch after batch, as frames come from a
/// connection: just received, and each once. Memory is fresh, so its page faults are counted too. Returns
/// what is beyond its bound.
fn held() -> Vec<String> {
    let cache = cache();
    let mut times = Vec::new();
    // So that the memory for the frames is there before the first measurement.
    let mut batch = frames(0..BATCH);
    let before = resident();
    for first in (0..PODS_HELD).step_by(BATCH) {
        batch.clear();
        batch.extend((first..first + BATCH).map(load::added));
        let began = Instant::now();
        for frame in &batch {
            cache
                .feed(Pod::resource(), frame)
                .expect("a frame of our own");
        }
        times.push(micros_each(began));
    }
    let bytes = (resident() - before) / PODS_HELD as f64;
    let (fastest, median) = fastest_and_median(times);
    let stats = cache.stats(Pod::resource()).expect("pods are watched");
    assert_eq!(
        (stats.objects, stats.decode_errors),
        (PODS_HELD, 0),
        "every pod is held"
    );

    let jsons: Vec<String> = (0..BATCH).map(load::pod_json).collect();
    let (before, mut times) = (resident(), Vec::new());
    let mut openapi: Vec<openapi::Pod> = Vec::new();
    for _ in 0..OPENAPI_BATCHES {
        let began = Instant::now();
        openapi.extend(
            jsons
                .iter()
                .map(|json| serde_json::from_str::<openapi::Pod>(json).expect("the pod is JSON")),
        );
        times.push(micros_each(began));
    }
    let their_bytes = (resident() - before) / openapi.len() as f64;
    let (their_fastest, their_median) = fastest_and_median(times);

    println!("for each pod               on the wire   fastest batch   median batch       memory");
    println!(
        "projection, store, index  {:>6} bytes {fastest:>12.2} µs {median:>11.2} µs {bytes:>6.0} bytes",
        load::pod(0).len(),
    );
    println!(
        "k8s-openapi's type, JSON  {:>6} bytes {their_fastest:>12.2} µs {their_median:>11.2} µs {their_bytes:>6.0} bytes",
        load::pod_json(0).len(),
    );
    println!(
        "allowed                                {MICROS_MAX:>12.2} µs                {BYTES_MAX:>6.0} bytes"
    );
    println!(
        "the cache's own estimate of its memory: {} bytes for each pod",
        cache.approximate_bytes(Pod::resource()) / stats.objects
    );
    let mut beyond = Vec::new();
    if bytes > BYTES_MAX {
        beyond.push(format!("{bytes:.0} bytes for each pod"));
    }
    // What else runs on the machine can only add to a batch.
    if fastest > MICROS_MAX {
        beyond.push(format!("{fastest:.2} µs for each pod in the fastest batch"));
    }
    beyond
}

fn micros_each(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e6 / BATCH as f64
}

fn fastest_and_median(mut times: Vec<f64>) -> (f64, f64) {
    times.sort_by(f64::total_cmp);
    (times[0], times[times.len() / 2])
}

/// Bytes of this process in memory.
fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("this is Linux");
    let kilobytes: f64 = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.trim().strip_suffix("kB"))
        .and_then(|number| number.trim().parse().ok())
        .expect("the kernel reports VmRSS in kB");
    kilobytes * 1024.0
}

/// Decoding alone.
#[divan::bench]
fn projection_decode(bencher: Bencher<'_, '_>) {
    let pods: Vec<Vec<u8>> = (0..PODS).map(load::pod).collect();
    bencher.counter(ItemsCount::new(PODS)).bench_local(|| {
        pods.iter()
            .map(|pod| Pod::decode(black_box(pod.as_slice())).expect("a pod"))
            .collect::<Vec<_>>()
    });
}

/// From the frame of a watch into an empty store and the owner index: what a list costs.
#[divan::bench]
fn projection_decode_and_store(bencher: Bencher<'_, '_>) {
    let frames = frames(0..PODS);
    bencher
        .counter(ItemsCount::new(PODS))
        .with_inputs(cache)
        .bench_local_values(|cache| {
            for frame in &frames {
                cache
                    .feed(Pod::resource(), black_box(frame))
                    .expect("a frame of our own");
            }
            cache
        });
}

/// The same frames over objects that are there already: what a change costs.
#[divan::bench]
fn projection_decode_and_replace(bencher: Bencher<'_, '_>) {
    let frames = frames(0..PODS);
    let cache = cache();
    bencher.counter(ItemsCount::new(PODS)).bench_local(|| {
        for frame in &frames {
            cache
                .feed(Pod::resource(), black_box(frame))
                .expect("a frame of our own");
        }
    });
}

/// k8s-openapi's type from JSON.
#[divan::bench]
fn openapi_json_decode(bencher: Bencher<'_, '_>) {
    let pods: Vec<String> = (0..PODS).map(load::pod_json).collect();
    bencher.counter(ItemsCount::new(PODS)).bench_local(|| {
        pods.iter()
            .map(|pod| serde_json::from_str::<openapi::Pod>(black_box(pod)).expect("a pod"))
            .collect::<Vec<_>>()
    });
}

/// Reads by many readers while the watch writes without pause: by name, and all pods of an owner.
mod beside_a_writer {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    };

    use super::*;

    struct Writer {
        stop: Arc<AtomicBool>,
        written: Arc<AtomicU64>,
        thread: Option<std::thread::JoinHandle<()>>,
        began: std::time::Instant,
    }

    impl Writer {
        fn start(cache: &Arc<Cache>) -> Self {
            let (stop, written) = (
                Arc::new(AtomicBool::new(false)),
                Arc::new(AtomicU64::new(0)),
            );
            let frames = frames(0..PODS);
            for frame in &frames {
                cache
                    .feed(Pod::resource(), frame)
                    .expect("a frame of our own");
            }
            let thread = std::thread::spawn({
                let (cache, stop, written) =
                    (Arc::clone(cache), Arc::clone(&stop), Arc::clone(&written));
                move || {
                    for frame in frames.iter().cycle() {
                        if stop.load(Ordering::Relaxed) {
                            return;
                        }
                        cache
                            .feed(Pod::resource(), frame)
                            .expect("a frame of our own");
                        written.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
            Self {
                stop,
                written,
                thread: Some(thread),
                began: std::time::Instant::now(),
            }
        }
    }

    impl Drop for Writer {
        fn drop(&mut self) {
            self.stop.store(true, Ordering::Relaxed);
            let seconds = self.began.elapsed().as_secs_f64();
            if let Some(thread) = self.thread.take() {
                thread.join().expect("the writer does not panic");
            }
            println!(
                "    meanwhile written: {:.0} a second",
                self.written.load(Ordering::Relaxed) as f64 / seconds
            );
        }
    }

    #[divan::bench(threads = [1, 16])]
    fn get(bencher: Bencher<'_, '_>) {
        let cache = cache();
        let _writer = Writer::start(&cache);
        let name = "checkout-6f7d9c0010-00512";
        bencher.bench(|| {
            cache
                .get(Pod::resource(), "default", black_box(name))
                .expect("it is there")
        });
    }

    #[divan::bench(threads = [1, 16])]
    fn owned(bencher: Bencher<'_, '_>) {
        let cache = cache();
        let _writer = Writer::start(&cache);
        let uid = load::owner_uid(512);
        bencher.bench(|| {
            let owned = cache.indexed(Pod::resource(), Index::OWNER, black_box(&uid));
            assert_eq!(owned.len(), load::PODS_OF_AN_OWNER);
            owned
        });
    }
}
