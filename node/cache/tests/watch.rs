use std::{
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use controllers_kit::Reader as _;
use kubernetes_proto::{Object as _, core::Pod, metadata_only};

use super::server::{PATIENCE, Server, Watch, pod, raw};
use crate::{Api, Cache, Order, Purpose, Renewed, Settings, Sight, State, Stats};

/// What subscribers were notified of: name and version, `-` in front of what is gone.
type Reported = Arc<Mutex<Vec<String>>>;

struct Bed {
    server: Server,
    cache: Arc<Cache>,
    reported: Reported,
    running: tokio::task::JoinHandle<Infallible>,
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.running.abort();
    }
}

fn quick() -> Settings {
    Settings {
        silence_max: PATIENCE,
        backoff_min: Duration::from_millis(1),
        backoff_max: Duration::from_millis(4),
        page_size: 2,
        ..Settings::default()
    }
}

impl Bed {
    async fn new(settings: Settings) -> Self {
        let server = Server::start().await;
        let cache = Cache::builder()
            .resource(Pod::resource())
            .settings(settings)
            .build();
        let reported = Reported::default();
        cache.subscribe(Pod::resource(), {
            let reported = Arc::clone(&reported);
            Box::new(move |change| {
                let text = match (change.old, change.new) {
                    (_, Some(new)) => format!(
                        "{}@{}",
                        new.metadata().name,
                        new.metadata().resource_version
                    ),
                    (Some(old), None) => format!("-{}", old.metadata().name),
                    (None, None) => "nothing".to_owned(),
                };
                reported.lock().unwrap().push(text);
            })
        });
        let api = Api::connect(&server.config, Purpose::Watches, None).unwrap();
        let running = tokio::spawn(cache.run(Pod::resource(), api));
        Self {
            server,
            cache,
            reported,
            running,
        }
    }

    /// With the pods `a` and `b`, at version 10.
    async fn listed(settings: Settings) -> (Self, Watch) {
        let mut bed = Self::new(settings).await;
        let asked = bed.server.asked().await;
        assert!(asked.streams_a_list());
        let watch = asked.open();
        watch.event("ADDED", raw(&pod("a", "u-a", 5, "o")));
        watch.event("ADDED", raw(&pod("b", "u-b", 3, "o")));
        watch.bookmark(10, true);
        bed.passed(10).await;
        (bed, watch)
    }

    async fn passed(&self, version: u64) {
        tokio::time::timeout(PATIENCE, self.cache.wait_passed(Pod::resource(), version))
            .await
            .unwrap_or_else(|_| panic!("version {version} was expected: {:?}", self.stats()));
    }

    /// Waits for what is not announced by a version.
    async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while !holds(self) {
            assert!(
                tokio::time::Instant::now() < deadline,
                "{what}: {:?}",
                self.stats()
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    fn stats(&self) -> Stats {
        self.cache.stats(Pod::resource()).unwrap()
    }

    fn names(&self) -> Vec<String> {
        self.cache
            .list(Pod::resource(), Some("shop"))
            .iter()
            .map(|object| {
                format!(
                    "{}@{}",
                    object.metadata().name,
                    object.metadata().resource_version
                )
            })
            .collect()
    }

    fn reported(&self) -> Vec<String> {
        std::mem::take(&mut self.reported.lock().unwrap())
    }
}

#[tokio::test]
async fn a_streamed_list_is_served_whole_and_not_before_its_end() {
    let mut bed = Bed::new(quick()).await;
    let asked = bed.server.asked().await;
    assert_eq!(asked.path(), "/api/v1/pods");
    for (name, value) in [
        ("watch", "true"),
        ("allowWatchBookmarks", "true"),
        ("sendInitialEvents", "true"),
        ("resourceVersionMatch", "NotOlderThan"),
        ("resourceVersion", ""),
        ("fieldSelector", ""),
    ] {
        assert_eq!(asked.parameter(name), value, "{name}");
    }
    let seconds: u64 = asked.parameter("timeoutSeconds").parse().unwrap();
    assert!((300..=600).contains(&seconds));
    assert_eq!(
        asked.head.headers["accept"],
        "application/vnd.kubernetes.protobuf;stream=watch"
    );
    let watch = asked.open();
    watch.event("ADDED", raw(&pod("b", "u-b", 9, "o")));
    watch.event("ADDED", raw(&pod("a", "u-a", 5, "o")));
    watch.bookmark(7, false);
    bed.until("something is heard", |bed| bed.stats().age.is_some())
        .await;
    assert_eq!(bed.names(), [""; 0]);
    assert!(!bed.cache.complete() && !bed.cache.passed(Pod::resource(), 5));
    assert_eq!(
        bed.cache.missing(),
        [(Pod::resource(), "not listed yet".to_owned())]
    );
    watch.bookmark(10, true);
    bed.passed(10).await;
    assert!(bed.cache.complete() && bed.cache.missing().is_empty());
    assert_eq!(bed.names(), ["a@5", "b@9"]);
    assert_eq!(bed.cache.indexed(Pod::resource(), "owner", "o").len(), 2);

    watch.event("MODIFIED", raw(&pod("a", "u-a", 11, "o")));
    watch.event("DELETED", raw(&pod("b", "u-b", 12, "o")));
    watch.bookmark(40, false);
    bed.passed(40).await;
    assert_eq!(bed.names(), ["a@11"]);
    assert_eq!(bed.reported(), ["a@5", "b@9", "a@11", "-b"]);
}

#[tokio::test]
async fn a_watch_continues_where_it_was_after_its_end_and_after_a_break() {
    let (mut bed, watch) = Bed::listed(quick()).await;
    watch.bookmark(20, false);
    bed.passed(20).await;
    drop(watch);
    let asked = bed.server.asked().await;
    assert!(!asked.streams_a_list());
    assert_eq!(asked.parameter("resourceVersion"), "20");
    let watch = asked.open();
    watch.event("MODIFIED", raw(&pod("a", "u-a", 21, "o")));
    bed.passed(21).await;
    watch.break_off();
    let asked = bed.server.asked().await;
    assert_eq!(asked.parameter("resourceVersion"), "21");
    let _watch = asked.open();
    bed.until("open again", |bed| bed.stats().trouble.is_none())
        .await;
    assert_eq!((bed.stats().lists, bed.stats().watches), (1, 3));
}

#[tokio::test]
async fn a_version_that_is_gone_lists_again_while_the_old_content_is_served() {
    let (mut bed, watch) = Bed::listed(quick()).await;
    bed.reported();
    watch.error(410, "Expired");
    let asked = bed.server.asked().await;
    assert!(asked.streams_a_list());
    let watch = asked.open();
    watch.event("ADDED", raw(&pod("b", "u-b2", 30, "o")));
    watch.event("ADDED", raw(&pod("c", "u-c", 31, "")));
    watch.event("ADDED", raw(&pod("d", "u-d", 32, "")));
    // A change between two initial events counts too.
    watch.event("DELETED", raw(&pod("d", "u-d", 33, "")));
    let lists = bed.stats().lists;
    assert_eq!(
        (bed.names(), lists),
        (vec!["a@5".to_owned(), "b@3".to_owned()], 1)
    );
    watch.bookmark(35, true);
    bed.passed(35).await;
    assert_eq!(bed.names(), ["b@30", "c@31"]);
    bed.until("all is reported", |bed| {
        bed.reported.lock().unwrap().len() >= 4
    })
    .await;
    assert_eq!(bed.reported(), ["-a", "-b", "b@30", "c@31"]);
    assert_eq!(bed.cache.indexed(Pod::resource(), "owner", "o").len(), 1);
}

#[tokio::test]
async fn a_server_that_does_not_stream_is_asked_for_pages() {
    let mut bed = Bed::new(quick()).await;
    bed.server
        .asked()
        .await
        .refuse(422, "Invalid", "sendInitialEvents is forbidden");
    let asked = bed.server.asked().await;
    assert_eq!(
        (asked.parameter("limit"), asked.parameter("continue")),
        ("2".into(), String::new())
    );
    assert_eq!(asked.parameter("watch"), "");
    asked.list(
        "10",
        "next+page",
        &[raw(&pod("a", "u-a", 5, "")), raw(&pod("b", "u-b", 6, ""))],
    );
    let asked = bed.server.asked().await;
    assert_eq!(asked.parameter("continue"), "next%2Bpage");
    // The server has forgotten what it was listing: all is asked for at once.
    asked.refuse(410, "Expired", "the continue parameter is too old");
    let asked = bed.server.asked().await;
    assert_eq!(
        (asked.parameter("limit"), asked.parameter("continue")),
        ("0".into(), String::new())
    );
    assert!(!bed.cache.complete());
    asked.list(
        "12",
        "",
        &[raw(&pod("b", "u-b", 6, "")), raw(&pod("c", "u-c", 11, ""))],
    );
    bed.passed(12).await;
    assert_eq!(bed.names(), ["b@6", "c@11"]);
    let asked = bed.server.asked().await;
    assert_eq!(
        (asked.parameter("watch"), asked.parameter("resourceVersion")),
        ("true".into(), "12".into())
    );
}

#[tokio::test]
async fn what_the_server_refuses_is_named_with_its_verb_and_asked_again() {
    let mut bed = Bed::new(quick()).await;
    bed.server
        .asked()
        .await
        .refuse(403, "Forbidden", "pods is forbidden");
    let asked = bed.server.asked().await;
    let blocked = State::Blocked {
        verb: "watch",
        reason: "pods is forbidden".to_owned(),
    };
    assert_eq!(bed.stats().state, blocked);
    assert_eq!(
        bed.cache.missing(),
        [(
            Pod::resource(),
            "watch refused: pods is forbidden".to_owned()
        )]
    );
    asked.refuse(404, "NotFound", "there is no such resource");
    let asked = bed.server.asked().await;
    assert!(
        matches!(bed.stats().state, State::Blocked { reason, .. } if reason.contains("no such"))
    );
    let watch = asked.open();
    watch.bookmark(10, true);
    bed.until("watched", |bed| bed.stats().state == State::Complete)
        .await;
    // The rights are taken away later: the content stays, the trouble is reported.
    drop(watch);
    bed.server
        .asked()
        .await
        .refuse(403, "Forbidden", "pods is forbidden");
    let _asked = bed.server.asked().await;
    assert_eq!(bed.stats().state, blocked);
    assert!(bed.cache.complete() && bed.stats().listed);
}

#[tokio::test]
async fn a_silent_watch_is_reopened() {
    let settings = Settings {
        silence_max: Duration::from_millis(60),
        ..quick()
    };
    let (mut bed, _silent) = Bed::listed(settings).await;
    let asked = bed.server.asked().await;
    assert_eq!(asked.parameter("resourceVersion"), "10");
    // Bookmarks that bring nothing new are silence, too.
    let stale = asked.open();
    let repeats = tokio::spawn(async move {
        loop {
            stale.bookmark(10, false);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let asked = bed.server.asked().await;
    repeats.abort();
    assert_eq!(asked.parameter("resourceVersion"), "10");
    let watch = asked.open();
    watch.event("MODIFIED", raw(&pod("a", "u-a", 11, "o")));
    bed.passed(11).await;
}

#[tokio::test]
async fn a_watch_that_is_stuck_is_opened_again_or_listed_when_that_is_ordered() {
    let (mut bed, _stuck) = Bed::listed(quick()).await;
    let sight = |bed: &Bed| bed.cache.sights()[0].1;
    let Sight {
        reached,
        wanted,
        newest,
        digest,
    } = sight(&bed);
    assert_eq!((reached, wanted, newest), (10, None, 5));
    assert_eq!(
        digest.map(|digest| (digest.from, digest.count)),
        Some((10, 2))
    );
    let waits = tokio::spawn(bed.cache.wait_passed(Pod::resource(), 12));
    bed.until("version 12 is waited for", |bed| {
        sight(bed).wanted == Some(12)
    })
    .await;
    bed.cache.reopen_all();
    let asked = bed.server.asked().await;
    assert_eq!(asked.parameter("resourceVersion"), "10");
    // Even before the server has answered.
    bed.cache.order(Pod::resource(), Order::List);
    let asked = bed.server.asked().await;
    assert!(asked.streams_a_list());
    let list = asked.open();
    bed.cache.order(Pod::resource(), Order::Reopen);
    list.event("ADDED", raw(&pod("a", "u-a", 12, "o")));
    list.bookmark(12, true);
    waits.await.unwrap();
    // The order that came while it was listed.
    let asked = bed.server.asked().await;
    assert_eq!(asked.parameter("resourceVersion"), "12");
    assert_eq!(sight(&bed).wanted, None);
}

#[tokio::test]
async fn heartbeats_are_caught_up_with_now_and_then() {
    let mut server = Server::start().await;
    let leases = metadata_only("coordination.k8s.io", "v1", "Lease", "leases", true).unwrap();
    let cache = Cache::builder()
        .resource(leases)
        .settings(Settings {
            heartbeat_rest: Duration::from_millis(300),
            ..quick()
        })
        .build();
    let api = Api::connect(&server.config, Purpose::Watches, None).unwrap();
    let running = tokio::spawn(Arc::clone(&cache).run(leases, api));
    let passed = async |version| {
        tokio::time::timeout(PATIENCE, cache.wait_passed(leases, version))
            .await
            .unwrap_or_else(|_| {
                panic!("version {version} was expected: {:?}", cache.stats(leases))
            });
    };
    let version = |cache: &Cache| cache.stats(leases).unwrap().resource_version;
    let lease = |version| raw(&pod("node-a", "u-a", version, "o"));

    // The list is taken whole, however long it takes, and until the first renewal the watch stays.
    let watch = server.asked().await.open();
    watch.event("ADDED", lease(5));
    tokio::time::sleep(Duration::from_millis(100)).await;
    watch.bookmark(10, true);
    passed(10).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    watch.event("MODIFIED", lease(11));
    passed(11).await;
    // Then it ends by itself, and what comes meanwhile is fetched after the rest.
    let ended = std::time::Instant::now();
    let asked = server.asked().await;
    assert!(ended.elapsed() >= Duration::from_millis(250));
    assert_eq!(asked.parameter("resourceVersion"), "11");
    let watch = asked.open();
    watch.event("MODIFIED", lease(12));
    watch.event("MODIFIED", lease(13));
    let asked = server.asked().await;
    assert_eq!(asked.parameter("resourceVersion"), "13");
    assert_eq!(version(&cache), 13);

    // Where something always comes, the watch ends too: after a second, or at a gap of a busy machine. No gap
    // lies between two that come together.
    let watch = asked.open();
    let beating = tokio::spawn(async move {
        for version in (14..).step_by(2) {
            watch.event("MODIFIED", lease(version));
            watch.event("MODIFIED", lease(version + 1));
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    let asked = server.asked().await;
    beating.abort();
    assert_eq!(
        asked.parameter("resourceVersion"),
        version(&cache).to_string()
    );
    assert!(version(&cache) > 14);
    assert_eq!(cache.stats(leases).unwrap().lists, 1);
    running.abort();
}

#[tokio::test]
async fn heartbeats_are_followed_until_the_own_renewal_comes_whatever_the_gaps() {
    let mut server = Server::start().await;
    let leases = metadata_only("coordination.k8s.io", "v1", "Lease", "leases", true).unwrap();
    let renewed = Arc::new(AtomicU64::new(20));
    let newest = Arc::clone(&renewed);
    let began = tokio::time::Instant::now();
    let cache = Cache::builder()
        .resource(leases)
        .settings(Settings {
            heartbeat_rest: Duration::from_millis(50),
            renewed: Renewed::by(move || Some((newest.load(Ordering::Relaxed), began))),
            ..quick()
        })
        .build();
    let api = Api::connect(&server.config, Purpose::Watches, None).unwrap();
    let running = tokio::spawn(Arc::clone(&cache).run(leases, api));
    let lease = |version| raw(&pod("node-a", "u-a", version, "o"));
    let watch = server.asked().await.open();
    watch.bookmark(10, true);
    // A slow server: five times the gap that ends a watch which has caught up.
    for version in [11, 12, 13] {
        watch.event("MODIFIED", lease(version));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // A renewal that lands meanwhile is not waited for.
    renewed.store(30, Ordering::Relaxed);
    watch.event("MODIFIED", lease(20));
    let asked = tokio::time::timeout(PATIENCE, server.asked())
        .await
        .unwrap();
    assert_eq!(asked.parameter("resourceVersion"), "20");
    // The next one waits for it.
    let watch = asked.open();
    watch.event("MODIFIED", lease(21));
    let early = tokio::time::timeout(Duration::from_millis(300), server.asked()).await;
    assert!(early.is_err(), "{:?}", cache.stats(leases));
    watch.event("MODIFIED", lease(30));
    let asked = tokio::time::timeout(PATIENCE, server.asked())
        .await
        .unwrap();
    assert_eq!(asked.parameter("resourceVersion"), "30");
    running.abort();
}

#[tokio::test]
async fn garbage_neither_ends_the_watch_nor_touches_what_is_there() {
    let (mut bed, watch) = Bed::listed(quick()).await;
    // A length beyond the bound, a frame that is no event, a stream that ends within a frame: then it lists
    // again.
    watch.bytes(vec![0xff; 8]);
    let asked = bed.server.asked().await;
    assert_eq!(asked.parameter("resourceVersion"), "10");
    assert_eq!(bed.names(), ["a@5", "b@3"]);
    asked.open().frame(&[0xff; 5]);
    let asked = bed.server.asked().await;
    assert_eq!(asked.parameter("resourceVersion"), "10");
    asked.open().bytes(vec![0, 0, 0, 9, 1]);
    let asked = bed.server.asked().await;
    assert!(asked.streams_a_list());
    assert!(bed.stats().trouble.unwrap().contains("ends within a frame"));
    // An answer in another encoding is refused too.
    asked.answer(200, "application/json", "{}");
    let asked = bed.server.asked().await;
    assert!(bed.stats().trouble.unwrap().contains("application/json"));
    assert_eq!(bed.names(), ["a@5", "b@3"]);
    let watch = asked.open();
    watch.bookmark(50, true);
    bed.passed(50).await;
    assert_eq!(bed.names(), [""; 0]);
}

#[tokio::test]
async fn an_object_that_does_not_decode_in_a_list_stays_as_it_was() {
    let (mut bed, watch) = Bed::listed(quick()).await;
    watch.error(410, "Gone");
    let watch = bed.server.asked().await.open();
    let mut broken = pod("a", "u-a", 40, "o");
    broken.status = None;
    let mut bytes = raw(&broken);
    bytes.extend_from_slice(&[0x18, 1]);
    watch.event("ADDED", bytes);
    watch.bookmark(41, true);
    bed.passed(41).await;
    assert_eq!(bed.names(), ["a@5"]);
    assert_eq!(bed.stats().decode_errors, 1);
    assert_eq!(bed.cache.indexed(Pod::resource(), "owner", "o").len(), 1);
}

#[tokio::test]
async fn a_watch_that_is_stopped_and_run_again_continues_and_reports_all() {
    let (mut bed, _watch) = Bed::listed(quick()).await;
    bed.reported();
    // Two changes of a relist were put aside when the watch was stopped.
    let a = bed.cache.get(Pod::resource(), "shop", "a");
    let b = bed.cache.get(Pod::resource(), "shop", "b");
    bed.running.abort();
    let slot = bed.cache.slot(Pod::resource()).unwrap();
    slot.put_aside(vec![(None, a)]);
    slot.put_aside(vec![(b, None)]);
    let api = Api::connect(&bed.server.config, Purpose::Watches, None).unwrap();
    bed.running = tokio::spawn(bed.cache.run(Pod::resource(), api.clone()));
    // A second run waits for the first.
    let second = tokio::spawn(bed.cache.run(Pod::resource(), api));
    let asked = bed.server.asked().await;
    assert_eq!(asked.parameter("resourceVersion"), "10");
    assert_eq!(bed.reported(), ["a@5", "-b"]);
    bed.running.abort();
    drop(asked);
    let asked = bed.server.asked().await;
    assert_eq!(asked.parameter("resourceVersion"), "10");
    second.abort();
}

#[tokio::test]
async fn only_one_name_is_asked_for_where_only_that_is_wanted() {
    let mut server = Server::start().await;
    let mut watches = controllers_kit::Watches::default();
    let _ = watches.kind::<Pod>().only_named("kube-root-ca.crt");
    let cache = Cache::builder().watches(&watches).settings(quick()).build();
    let api = Api::connect(&server.config, Purpose::Watches, None).unwrap();
    let running = tokio::spawn(cache.run(Pod::resource(), api));
    let asked = server.asked().await;
    assert_eq!(
        asked.parameter("fieldSelector"),
        "metadata.name%3Dkube-root-ca.crt"
    );
    running.abort();
}

#[tokio::test]
async fn what_is_not_served_is_not_there_for_those_who_can_do_without_it() {
    let mut server = Server::start().await;
    let mut watches = controllers_kit::Watches::default();
    let _ = watches.kind::<Pod>().where_served();
    let cache = Cache::builder().watches(&watches).settings(quick()).build();
    let api = Api::connect(&server.config, Purpose::Watches, None).unwrap();
    let running = tokio::spawn(cache.run(Pod::resource(), api));
    let asked = server.asked().await;
    assert!(!cache.complete());
    asked.refuse(404, "NotFound", "there is no such resource");
    // It is asked for again, from nowhere.
    let asked = server.asked().await;
    assert!(cache.complete() && asked.streams_a_list());
    assert_eq!(cache.stats(Pod::resource()).unwrap().state, State::Complete);
    assert!(cache.missing().is_empty());
    // Other refusals are reported as ever.
    asked.refuse(403, "Forbidden", "pods is forbidden");
    let asked = server.asked().await;
    assert_eq!(cache.missing().len(), 1);
    // Which are no trouble any more when it is as before.
    asked.refuse(404, "NotFound", "there is no such resource");
    let asked = server.asked().await;
    assert!(cache.missing().is_empty());
    let watch = asked.open();
    watch.event("ADDED", raw(&pod("a", "uid", 5, "")));
    watch.bookmark(10, true);
    tokio::time::timeout(PATIENCE, cache.wait_passed(Pod::resource(), 10))
        .await
        .unwrap();
    assert_eq!(cache.stats(Pod::resource()).unwrap().objects, 1);
    running.abort();
}

#[tokio::test]
async fn what_one_controller_needs_is_waited_for_whichever_else_can_do_without_it() {
    let mut server = Server::start().await;
    let (mut with, mut without) = (
        controllers_kit::Watches::default(),
        controllers_kit::Watches::default(),
    );
    let _ = (with.kind::<Pod>().where_served(), without.kind::<Pod>());
    let cache = Cache::builder()
        .watches(&with)
        .watches(&without)
        .settings(quick())
        .build();
    let api = Api::connect(&server.config, Purpose::Watches, None).unwrap();
    let running = tokio::spawn(cache.run(Pod::resource(), api));
    let asked = server.asked().await;
    asked.refuse(404, "NotFound", "there is no such resource");
    let _asked = server.asked().await;
    assert!(!cache.complete());
    assert_eq!(cache.missing().len(), 1);
    running.abort();
}

#[tokio::test]
async fn a_name_counts_as_used_after_its_removal_and_a_list_begins_the_history_again() {
    let (mut bed, watch) = Bed::listed(quick()).await;
    let used = |bed: &Bed, name: &str| bed.cache.name_used(Pod::resource(), "shop", name);
    let covers = |bed: &Bed, uid: &str| bed.cache.history_covers(uid);
    assert!(used(&bed, "a") && !used(&bed, "c"), "what exists is used");
    assert!(!covers(&bed, "u-a"), "it may have followed others");
    watch.event("DELETED", raw(&pod("a", "u-a", 11, "o")));
    watch.event("ADDED", raw(&pod("c", "u-c", 12, "o")));
    bed.passed(12).await;
    assert!(used(&bed, "a"), "it was removed just now");
    assert!(!bed.cache.name_used(Pod::resource(), "other", "a"));
    assert!(covers(&bed, "u-c"), "all that comes after it is seen");
    assert_eq!(bed.cache.history_since(), 10);
    watch.error(410, "Expired");
    let again = bed.server.asked().await.open();
    again.event("ADDED", raw(&pod("c", "u-c", 12, "o")));
    again.bookmark(20, true);
    bed.passed(20).await;
    assert!(used(&bed, "b"), "the list shows that it has gone");
    assert!(used(&bed, "a"), "what was known before stays known");
    assert!(!covers(&bed, "u-c"), "who knows what has come and gone");
    assert_eq!(bed.cache.history_since(), 20);
}

#[tokio::test]
async fn of_a_selection_nothing_else_is_asked_for() {
    use kubernetes_proto::core::{BootstrapToken, ClusterInfo, ServiceAccountToken};
    let table: [(&'static kubernetes_proto::Resource, &str, &str); 3] = [
        (
            ServiceAccountToken::resource(),
            "/api/v1/secrets",
            "type%3Dkubernetes.io%2Fservice-account-token",
        ),
        (
            BootstrapToken::resource(),
            "/api/v1/namespaces/kube-system/secrets",
            "type%3Dbootstrap.kubernetes.io%2Ftoken",
        ),
        (
            ClusterInfo::resource(),
            "/api/v1/namespaces/kube-public/configmaps",
            "metadata.name%3Dcluster-info",
        ),
    ];
    for (resource, path, fields) in table {
        let mut server = Server::start().await;
        let cache = Cache::builder()
            .resource(resource)
            .settings(quick())
            .build();
        let api = Api::connect(&server.config, Purpose::Watches, None).unwrap();
        let running = tokio::spawn(cache.run(resource, api));
        let asked = server.asked().await;
        assert_eq!(asked.path(), path);
        assert_eq!(asked.parameter("fieldSelector"), fields);
        running.abort();
    }
}

#[test]
fn selections_of_one_resource_have_stores_of_their_own() {
    use kubernetes_proto::core::{BootstrapToken, ServiceAccountToken};
    let cache = Cache::builder()
        .resource(ServiceAccountToken::resource())
        .resource(BootstrapToken::resource())
        .build();
    assert_eq!(cache.resources().count(), 2);
    assert!(cache.whole().is_empty(), "neither has all Secrets");
    // What discovery finds is the resource itself.
    let all = kubernetes_proto::metadata_only("", "v1", "Secret", "secrets", true).unwrap();
    assert!(cache.find(all));
}
