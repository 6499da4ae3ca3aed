use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use controllers_kit::{Index, Reader as _, Standing, Watches};
use futures::FutureExt as _;
use kubernetes_proto::{
    AnyObject, Object as _, Str, core::Pod, envelope, meta::Time, metadata_only,
};
use proptest::prelude::*;
use prost::Message as _;

use super::server::{PATIENCE, pod, raw};
use crate::{
    Cache, Freshness,
    store::{Departures, Progress, Store, owner_index},
};

fn phase_index() -> Index {
    Index {
        resource: Pod::resource(),
        name: "phase",
        of_labels: false,
        values: Arc::new(|object| {
            let pod: &Pod = object.as_any().downcast_ref().unwrap();
            pod.status
                .iter()
                .map(|status| status.phase.clone())
                .collect()
        }),
    }
}

fn label_index() -> Index {
    Index {
        resource: Pod::resource(),
        name: "label",
        of_labels: true,
        values: Arc::new(|object| {
            let labels = object.metadata().labels.iter();
            labels.map(|label| label.value.clone()).collect()
        }),
    }
}

fn keys(objects: &[AnyObject]) -> Vec<(String, String)> {
    objects
        .iter()
        .map(|object| {
            let meta = object.metadata();
            (meta.namespace.to_string(), meta.name.to_string())
        })
        .collect()
}

proptest! {
    /// Whatever is put and taken away: lookups, lists and indexes say what a plain map says, in its order.
    #[test]
    fn the_store_and_its_indexes_agree_with_a_plain_map(
        steps in prop::collection::vec((0u8..3, 0u8..6, 0u8..3, 0u8..2, any::<bool>()), 0..120),
        compacted in any::<bool>(),
    ) {
        let store = Store::new(vec![owner_index(Pod::resource()), phase_index(), label_index()]);
        let mut model: BTreeMap<(String, String), (String, String)> = BTreeMap::new();
        for (version, (namespace, name, owner, phase, put)) in steps.into_iter().enumerate() {
            let key = (format!("ns-{namespace}"), format!("pod-{name}"));
            if put {
                let owner = if owner == 0 { String::new() } else { format!("owner-{owner}") };
                let mut object = pod(&key.1, "u", version as u64 + 1, &owner);
                object.metadata_mut().namespace = Str::from(&key.0);
                object.status.as_mut().unwrap().phase = format!("phase-{phase}").into();
                object.metadata_mut().set_label("phase", &format!("label-{phase}"));
                let object: AnyObject = Arc::new(object);
                let old = store.put(&object).unwrap();
                let before = model.insert(key, (owner, format!("phase-{phase}")));
                prop_assert_eq!(old.is_some(), before.is_some());
            } else {
                let old = store.remove(&key.0, &key.1);
                prop_assert_eq!(old.is_some(), model.remove(&key).is_some());
            }
        }
        if compacted {
            let mut content = store.fresh();
            for object in store.list(None) {
                content.put(&object, &store.indexes).unwrap();
            }
            content.compact();
            store.replace(content);
        }
        let all: Vec<_> = model.keys().cloned().collect();
        prop_assert_eq!(keys(&store.list(None)), all);
        for namespace in ["ns-0", "ns-1", "ns-2", "ns-3"] {
            let of: Vec<_> = model.keys().filter(|key| key.0 == namespace).cloned().collect();
            prop_assert_eq!(keys(&store.list(Some(namespace))), of);
        }
        for owner in ["owner-1", "owner-2", ""] {
            let of: Vec<_> = model.iter().filter(|(_, (of, _))| !owner.is_empty() && of == owner)
                .map(|(key, _)| key.clone()).collect();
            prop_assert_eq!(keys(&store.indexed(Index::OWNER, owner).unwrap()), of);
        }
        for phase in ["phase-0", "phase-1"] {
            let of: Vec<_> = model.iter().filter(|(_, (_, of))| of == phase)
                .map(|(key, _)| key.clone()).collect();
            prop_assert_eq!(keys(&store.indexed("phase", phase).unwrap()), &of[..]);
            let label = phase.replace("phase", "label");
            prop_assert_eq!(keys(&store.indexed("label", &label).unwrap()), of);
        }
        prop_assert_eq!(store.read().len(), model.len());
    }

    /// A relist reports exactly what a reader sees differently: played upon the old content, its changes make
    /// the new.
    #[test]
    fn differences_played_upon_the_old_content_make_the_new(
        old in prop::collection::btree_map(0u8..12, 1u64..4, 0..12),
        new in prop::collection::btree_map(0u8..12, 1u64..4, 0..12),
    ) {
        let store = Store::new(vec![owner_index(Pod::resource())]);
        let (mut before, mut after) = (store.fresh(), store.fresh());
        for (content, pods) in [(&mut before, &old), (&mut after, &new)] {
            for (name, version) in pods {
                let object: AnyObject = Arc::new(pod(&format!("pod-{name:02}"), "u", *version, ""));
                content.put(&object, &store.indexes).unwrap();
            }
        }
        let reported = before.differences(&after);
        let unchanged = old.iter().filter(|(name, version)| new.get(name) == Some(version)).count();
        let gone = old.keys().filter(|name| !new.contains_key(name)).count();
        prop_assert_eq!(reported.len(), new.len() - unchanged + gone);
        for (old, new) in &reported {
            match new {
                Some(object) => { before.put(object, &store.indexes).unwrap(); }
                None => {
                    let meta = old.as_ref().unwrap().metadata().clone();
                    before.remove(&meta.namespace, &meta.name, &store.indexes);
                }
            }
        }
        prop_assert!(before.differences(&after).is_empty());
        prop_assert_eq!(before.len(), after.len());
    }
}

fn pods() -> Arc<Cache> {
    Cache::builder().resource(Pod::resource()).build()
}

fn feed(cache: &Cache, kind: &str, pod: &Pod) {
    let frame = envelope::watch_frame(kind, envelope::wrap("v1", "Pod", raw(pod)));
    cache.feed(Pod::resource(), &frame).unwrap();
}

#[test]
fn subscribers_find_the_change_applied_and_no_lock_held() {
    let cache = pods();
    let reported = Arc::new(Mutex::new(Vec::new()));
    assert!(cache.subscribe(Pod::resource(), {
        let (cache, reported) = (Arc::downgrade(&cache), Arc::clone(&reported));
        Box::new(move |change| {
            let cache = cache.upgrade().unwrap();
            // Reading from within would hang if the store's lock were held.
            let seen = cache.list(Pod::resource(), None).len();
            let version = |object: Option<&AnyObject>| {
                object.map_or(0, |object| object.metadata().resource_version)
            };
            reported
                .lock()
                .unwrap()
                .push((version(change.old), version(change.new), seen));
        })
    }));
    feed(&cache, "ADDED", &pod("a", "u-1", 5, ""));
    feed(&cache, "MODIFIED", &pod("a", "u-1", 6, ""));
    feed(&cache, "MODIFIED", &pod("a", "u-2", 8, ""));
    feed(&cache, "DELETED", &pod("a", "u-2", 9, ""));
    feed(&cache, "DELETED", &pod("b", "u-3", 10, ""));
    assert_eq!(
        *reported.lock().unwrap(),
        [
            (0, 5, 1),
            (5, 6, 1),
            // Deleted and made again while nobody watched: reported as two changes.
            (6, 0, 1),
            (0, 8, 1),
            (8, 0, 0),
            // Never stored, but its end is reported with what the server sent.
            (10, 0, 0)
        ]
    );
    assert_eq!(cache.version(Pod::resource()), 10);
    assert!(!cache.subscribe(
        kubernetes_proto::apps::ReplicaSet::resource(),
        Box::new(|_| {})
    ));
}

#[test]
fn one_name_is_watched_alone_only_where_all_agree_and_equal_indexes_are_one() {
    let (mut one, mut other, mut all) =
        (Watches::default(), Watches::default(), Watches::default());
    let _ = one
        .kind::<Pod>()
        .only_named("root")
        .indexed_by("node", |_| Vec::new());
    let _ = other
        .kind::<Pod>()
        .only_named("root")
        .indexed_by("node", |_| Vec::new());
    let _ = all.kind::<Pod>().wakes_itself();
    let only = |watches: &[&Watches]| {
        let mut builder = Cache::builder();
        for watches in watches {
            builder = builder.watches(watches);
        }
        let cache = builder.build();
        assert_eq!(cache.resources().count(), 1);
        let slot = cache.slot(Pod::resource()).unwrap();
        (slot.only_name, slot.store.indexes.len())
    };
    assert_eq!(only(&[&one]), (Some("root"), 2));
    assert_eq!(only(&[&one, &other]), (Some("root"), 2));
    assert_eq!(only(&[&one, &all, &other]), (None, 2));
    assert_eq!(only(&[&all, &one]), (None, 2));
}

#[test]
#[should_panic(expected = "replicasets.apps is read but was not declared")]
fn reading_what_was_not_declared_is_no_empty_answer() {
    pods().list(kubernetes_proto::apps::ReplicaSet::resource(), None);
}

#[test]
#[should_panic(expected = "the index \"node\", which was not declared")]
fn an_index_that_was_not_declared_is_no_empty_answer() {
    pods().indexed(Pod::resource(), "node", "n");
}

#[tokio::test]
async fn waiting_ends_when_the_version_is_passed_or_can_never_be() {
    let cache = pods();
    let resource = Pod::resource();
    let mut early = Box::pin(cache.wait_passed(resource, 5));
    assert!((&mut early).now_or_never().is_none() && !cache.passed(resource, 5));
    feed(&cache, "ADDED", &pod("a", "u-1", 4, ""));
    assert!((&mut early).now_or_never().is_none());
    feed(&cache, "MODIFIED", &pod("a", "u-1", 6, ""));
    assert_eq!(early.now_or_never(), Some(Freshness::Passed));
    assert!(cache.passed(resource, 6) && !cache.passed(resource, 7));
    let other = kubernetes_proto::apps::Deployment::resource();
    assert_eq!(
        cache.wait_passed(other, 1).now_or_never(),
        Some(Freshness::NotWatched)
    );
    assert!(!cache.passed(other, 0));
}

#[tokio::test]
async fn who_waits_for_an_object_to_go_is_woken_when_it_goes_and_by_nothing_else() {
    let cache = pods();
    let resource = Pod::resource();
    feed(&cache, "ADDED", &pod("a", "u-1", 4, ""));
    feed(&cache, "ADDED", &pod("b", "u-2", 5, ""));
    let wait = || Box::pin(cache.wait_departed(resource, "u-1"));
    let mut replaced = wait();
    feed(&cache, "MODIFIED", &pod("a", "u-1", 6, ""));
    feed(&cache, "DELETED", &pod("b", "u-2", 7, ""));
    assert!((&mut replaced).now_or_never().is_none());
    // Deleted and made again while nobody watched.
    feed(&cache, "MODIFIED", &pod("a", "u-3", 8, ""));
    assert_eq!(replaced.now_or_never(), Some(()));
    let wait = || Box::pin(cache.wait_departed(resource, "u-3"));
    let mut terminating = wait();
    let mut going = pod("a", "u-3", 9, "");
    going.metadata_mut().deletion_timestamp = Some(Time {
        seconds: 1_700_000_030,
        nanos: 0,
    });
    feed(&cache, "MODIFIED", &going);
    assert_eq!((&mut terminating).now_or_never(), Some(()));
    let mut gone = wait();
    feed(&cache, "DELETED", &pod("a", "u-3", 10, ""));
    assert_eq!((&mut gone).now_or_never(), Some(()));
    // What is not watched is not waited for.
    let other = kubernetes_proto::apps::Deployment::resource();
    assert_eq!(cache.wait_departed(other, "u-1").now_or_never(), Some(()));
}

#[test]
fn who_gives_up_waiting_for_an_object_leaves_nothing_behind() {
    let departures = Departures::default();
    let waiters: Vec<_> = (0..100)
        .map(|at| departures.next(&format!("u-{at}")))
        .collect();
    assert_eq!(departures.waiting(), 100);
    drop(waiters);
    for at in 0..100 {
        departures.tidy(&format!("u-{at}"));
    }
    assert_eq!(departures.waiting(), 0);
}

#[tokio::test]
async fn waiters_that_gave_up_are_forgotten() {
    let progress = Progress::new();
    for version in 1..100 {
        assert!(progress.wait(version).now_or_never().is_none());
    }
    assert_eq!(progress.waiting(), 0);
    progress.reach(50);
    assert_eq!(progress.wait(50).now_or_never(), Some(()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_waiter_is_missed_however_waiting_and_reaching_meet() {
    const VERSIONS: u64 = 20_000;
    let progress = Arc::new(Progress::new());
    let done = Arc::new(AtomicUsize::new(0));
    let mut waiters = tokio::task::JoinSet::new();
    for first in 0..16u64 {
        let (progress, done) = (Arc::clone(&progress), Arc::clone(&done));
        waiters.spawn(async move {
            for version in (1 + first..=VERSIONS).step_by(16) {
                progress.wait(version).await;
                assert!(progress.version() >= version);
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let reaching = std::thread::spawn({
        let progress = Arc::clone(&progress);
        move || {
            for version in 1..=VERSIONS {
                progress.reach(version);
                if version % 64 == 0 {
                    std::thread::yield_now();
                }
            }
        }
    });
    tokio::time::timeout(PATIENCE, waiters.join_all())
        .await
        .expect("no waiter is missed");
    reaching.join().unwrap();
    assert_eq!(done.load(Ordering::Relaxed) as u64, VERSIONS);
    assert_eq!(progress.waiting(), 0);
}

#[test]
fn an_object_over_which_an_index_panics_is_set_aside_and_the_others_come() {
    let mut watches = Watches::default();
    let fussy = Index {
        resource: Pod::resource(),
        name: "fussy",
        of_labels: false,
        values: Arc::new(|object| match object.metadata().label("panics") {
            Some(why) => panic!("{why}"),
            None => vec!["fine".into()],
        }),
    };
    watches.indexes.push(fussy);
    let cache = Cache::builder()
        .resource(Pod::resource())
        .watches(&watches)
        .build();
    let mut bad = pod("a", "u-1", 6, "");
    bad.metadata_mut().set_label("panics", "at this label");
    feed(&cache, "ADDED", &pod("a", "u-1", 5, ""));
    feed(&cache, "MODIFIED", &bad);
    feed(&cache, "ADDED", &pod("b", "u-2", 7, ""));
    let version = |name| {
        let object = cache.get(Pod::resource(), "shop", name);
        object.map(|object| object.metadata().resource_version)
    };
    assert_eq!(version("a"), Some(5), "the older version stays");
    assert_eq!(version("b"), Some(7));
    assert_eq!(cache.indexed(Pod::resource(), "fussy", "fine").len(), 2);
    let stats = cache.stats(Pod::resource()).unwrap();
    assert_eq!((stats.decode_errors, stats.resource_version), (1, 7));
    let aside = cache.set_aside();
    let [(resource, key, why)] = &aside[..] else {
        panic!("{aside:?}")
    };
    assert_eq!((resource.plural, &*key.to_string()), ("pods", "shop/a"));
    assert!(why.contains("at this label"), "{why}");
    feed(&cache, "MODIFIED", &pod("a", "u-1", 8, ""));
    assert_eq!(version("a"), Some(8));
    assert!(cache.set_aside().is_empty(), "it is mended");
    feed(&cache, "DELETED", &pod("a", "u-1", 9, ""));
    assert_eq!(cache.indexed(Pod::resource(), "fussy", "fine").len(), 1);
}

#[test]
fn what_does_not_decode_is_counted_and_leaves_the_older_version_standing() {
    let cache = pods();
    feed(&cache, "ADDED", &pod("a", "u-1", 5, ""));
    let send = |kind: &str, raw: Vec<u8>| {
        let frame = envelope::watch_frame(kind, envelope::wrap("v1", "Pod", raw));
        cache.feed(Pod::resource(), &frame).unwrap();
        let object = cache
            .get(Pod::resource(), "shop", "a")
            .map(|object| object.metadata().resource_version);
        let stats = cache.stats(Pod::resource()).unwrap();
        (object, stats.decode_errors, stats.resource_version)
    };
    // A status (field 3) that is a number instead of a message; the metadata before it can be read.
    let mut broken = pod("a", "u-1", 6, "");
    broken.status = None;
    let mut bytes = broken.encode_to_vec();
    bytes.extend_from_slice(&[0x18, 1]);
    assert_eq!(send("MODIFIED", bytes.clone()), (Some(5), 1, 6));
    // A version that is no number can't be compared.
    let odd = pod("a", "u-1", 7, "");
    let mut odd = odd.encode_to_vec();
    let at = odd
        .windows(3)
        .position(|window| window == [0x32, 1, b'7'])
        .unwrap();
    odd[at + 2] = b'x';
    assert_eq!(send("MODIFIED", odd), (Some(5), 2, 6));
    // No name, nothing at all, not even a message.
    assert_eq!(send("ADDED", Vec::new()), (Some(5), 3, 6));
    assert_eq!(send("ADDED", vec![0xff; 9]), (Some(5), 4, 6));
    // Its end is believed even so.
    assert_eq!(send("DELETED", bytes), (None, 5, 6));
    let error = cache.feed(
        Pod::resource(),
        &envelope::watch_frame("ADDED", b"not k8s".to_vec()),
    );
    assert!(error.unwrap_err().contains("k8s"));
    assert!(
        cache
            .feed(Pod::resource(), &envelope::watch_frame("NEWS", Vec::new()))
            .unwrap_err()
            .contains("NEWS")
    );
}

#[test]
fn the_size_that_is_reported_grows_with_what_is_held() {
    let cache = pods();
    assert_eq!(cache.approximate_bytes(Pod::resource()), 0);
    for name in 0..1200 {
        feed(
            &cache,
            "ADDED",
            &pod(&format!("pod-{name}"), "u", name + 1, "o"),
        );
    }
    let stats = cache.stats(Pod::resource()).unwrap();
    assert_eq!(stats.objects, 1200);
    let each = cache.approximate_bytes(Pod::resource()) / stats.objects;
    assert!((400..1500).contains(&each), "{each} bytes each");
    assert!(stats.age.unwrap_or_default() < Duration::from_secs(60));
}

#[test]
fn what_discovery_brings_is_held_by_its_metadata_and_taken_away_again() {
    let mut watches = Watches::default();
    let _ = watches.kind::<Pod>().only_named("root");
    watches.discovered(|_| true, |_, _, _| {}, None);
    let cache = Cache::builder().watches(&watches).build();
    let all_pods = metadata_only("", "v1", "Pod", "pods", true).unwrap();
    let carts = metadata_only("example.com", "v1", "Cart", "carts", true).unwrap();
    assert!(cache.whole().is_empty(), "of one name only");
    assert_eq!(cache.standing(carts), Standing::Unwatched);
    assert!(
        cache.list(carts, None).is_empty(),
        "what is served no more is empty"
    );

    // The projection of one name's objects and the metadata of all are two stores.
    assert!(cache.find(all_pods) && cache.find(carts) && !cache.find(carts));
    assert_eq!(cache.standing(carts), Standing::Listing);
    let frame = |kind: &str, version| {
        let object = pod("a", "u-1", version, "u-owner");
        envelope::watch_frame(kind, envelope::wrap("v1", "Pod", object.encode_to_vec()))
    };
    cache.feed(all_pods, &frame("ADDED", 5)).unwrap();
    cache.feed(carts, &frame("ADDED", 6)).unwrap();
    assert_eq!(cache.standing(carts), Standing::Complete);
    assert_eq!(cache.newest_of_all(), 6);
    assert!(cache.get(Pod::resource(), "shop", "a").is_none());
    let held = cache.get(all_pods, "shop", "a").unwrap();
    assert!(std::ptr::eq(held.resource(), all_pods));
    assert_eq!(
        keys(&cache.indexed(carts, Index::DEPENDENTS, "u-owner")),
        [("shop".to_owned(), "a".to_owned())]
    );

    // A deletion is remembered; what only went out of sight is reported, but was not deleted.
    assert!(!cache.gone("u-1"));
    let reported = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&reported);
    cache.subscribe(
        carts,
        Box::new(move |change| {
            assert!(change.new.is_none());
            count.fetch_add(1, Ordering::Relaxed);
        }),
    );
    cache.forget(carts);
    assert_eq!(reported.load(Ordering::Relaxed), 1);
    assert!(!cache.gone("u-1"));
    assert_eq!(cache.found(), [all_pods]);
    cache.feed(all_pods, &frame("DELETED", 7)).unwrap();
    assert!(cache.gone("u-1"));
}
