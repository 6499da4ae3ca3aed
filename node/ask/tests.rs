//! A decision that rests on a whole set is proven by the watch, or by one read that serves all who ask.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use controllers_kit::{
    Action, AnyObject, Descriptor, Failure, Key, Reader, Sharding, Timestamp, Written,
    selectors::Selector,
    testing::{World, at, config_map},
};
use futures::{FutureExt as _, future::BoxFuture};
use kubernetes_proto::{Object as _, core::ConfigMap};
use node_telemetry::metrics::Metrics;
use serde_json::Value;

use super::*;

use crate::{
    events,
    gate::{Fence, Gate},
    server::Live,
};

struct Open;

impl Fence for Open {
    fn open(&self, _: u16, _: u64) -> bool {
        true
    }
    fn closed(&self, _: u16, _: u64) -> BoxFuture<'static, ()> {
        std::future::pending().boxed()
    }
    fn settled(&self) -> u64 {
        0
    }
    fn renewed(&self) -> Option<(u64, tokio::time::Instant)> {
        None
    }

    fn late_write_max(&self) -> Duration {
        Duration::ZERO
    }
    fn announced(&self) -> BoxFuture<'static, ()> {
        std::future::ready(()).boxed()
    }
}

/// A cache, a server, and how often that was asked.
struct Bed {
    cache: World,
    server: World,
    reached: u64,
    /// Whether everything was listed once.
    complete: bool,
    hopeless: bool,
    set_aside: Vec<(&'static Resource, Key, String)>,
    lists: AtomicUsize,
    /// Whether sets that need not be whole as of a version are compared.
    doubted: bool,
    now: AtomicU64,
}

impl Bed {
    fn grounds<'a>(&'a self, proofs: &'a Proofs) -> Grounds<'a> {
        Grounds {
            server: self,
            view: self,
            proofs,
            clock: self,
        }
    }
}

impl Clock for Bed {
    fn monotonic(&self) -> Monotonic {
        Duration::from_secs(self.now.load(Ordering::Relaxed))
    }
    fn now(&self) -> Timestamp {
        at("12:00:00")
    }
}

impl Reader for Bed {
    fn get(&self, resource: &'static Resource, namespace: &str, name: &str) -> Option<AnyObject> {
        Reader::get(&self.cache, resource, namespace, name)
    }
    fn list(&self, resource: &'static Resource, namespace: Option<&str>) -> Vec<AnyObject> {
        self.cache.list(resource, namespace)
    }
    fn indexed(&self, _: &'static Resource, _: &'static str, _: &str) -> Vec<AnyObject> {
        Vec::new()
    }
}

impl View for Bed {
    fn passed(&self, _: &'static Resource, version: u64) -> bool {
        self.reached >= version
    }
    fn wait_passed(&self, _: &'static Resource, _: u64) -> BoxFuture<'static, ()> {
        std::future::ready(()).boxed()
    }
    fn wait_departed(&self, _: &'static Resource, _: &str) -> BoxFuture<'static, ()> {
        std::future::ready(()).boxed()
    }
    fn complete(&self, _: &'static Resource) -> bool {
        self.complete
    }
    fn is_hopeless(&self, _: &'static Resource) -> bool {
        self.hopeless
    }
    fn set_aside(&self) -> Vec<(&'static Resource, Key, String)> {
        self.set_aside.clone()
    }
    fn newest(&self, _: &'static Resource) -> u64 {
        2000
    }
    fn newest_of_all(&self) -> u64 {
        2000
    }
}

impl Server for Bed {
    fn write<'a>(
        &'a self,
        _: &'a Sender,
        _: &'a Action,
    ) -> BoxFuture<'a, Result<Written, Refused>> {
        unreachable!("a proof writes nothing")
    }
    fn record<'a>(
        &'a self,
        _: &'a Sender,
        _: &'a events::Send,
        _: bool,
    ) -> BoxFuture<'a, Result<Written, Refused>> {
        unreachable!("a proof writes nothing")
    }
    fn get<'a>(
        &'a self,
        _: &'a Sender,
        _: &'static Resource,
        _: &'a Key,
    ) -> BoxFuture<'a, Result<Option<Value>, Refused>> {
        unreachable!("a proof lists")
    }
    fn head<'a>(
        &'a self,
        _sender: &'a Sender,
        _: &'static Resource,
        _: &'a Key,
    ) -> BoxFuture<'a, Result<Live<Option<LiveItem>>, Refused>> {
        unreachable!("a proof lists")
    }
    fn list<'a>(
        &'a self,
        _: &'a Sender,
        resource: &'static Resource,
        namespace: &'a str,
        _: &'a str,
    ) -> BoxFuture<'a, Result<Live<Vec<LiveItem>>, Refused>> {
        self.lists.fetch_add(1, Ordering::Relaxed);
        let live = self.server.list(resource, Some(namespace));
        let items = live.iter().map(|object| LiveItem {
            key: Key::of_meta(object.metadata()),
            uid: object.metadata().uid.clone(),
            resource_version: object.metadata().resource_version,
        });
        let answer = match namespace {
            "broken" => Err(Failure::Other("503".to_owned()).into()),
            "unserved" => Err(Failure::NotFound("404".to_owned()).into()),
            _ => Ok(Live {
                version: 1800,
                found: items.collect(),
            }),
        };
        std::future::ready(answer).boxed()
    }
}

fn set(namespace: &str, since: u64) -> Counted {
    Counted {
        resource: ConfigMap::resource(),
        namespace: namespace.into(),
        selector: Selector::of_labels(&[]),
        since,
        strict: false,
    }
}

fn strict(set: Counted) -> Counted {
    Counted {
        strict: true,
        ..set
    }
}

async fn proof(bed: &Bed, proofs: &Proofs, set: Counted) -> Result<Proof, Refused> {
    let metrics = Metrics::new(&[]);
    let gate = Gate::new(0, 1, Arc::new(Open));
    let descriptor = Descriptor::new("test-controller", Sharding::Single);
    let sender = Sender::new(
        "m-0",
        &descriptor,
        metrics.controller("test-controller"),
        &gate,
    );
    let doubted = |_: &Counted| bed.doubted;
    let counted = [set];
    let unsure = unsure(bed, &counted, doubted);
    prove(bed.grounds(proofs), &sender, unsure).await
}

fn bed(reached: u64) -> Bed {
    let world = World::at("12:00:00").with(config_map("a"));
    Bed {
        cache: world.clone(),
        server: world,
        reached,
        complete: true,
        hopeless: false,
        set_aside: Vec::new(),
        lists: AtomicUsize::new(0),
        doubted: false,
        now: AtomicU64::new(10),
    }
}

#[tokio::test]
async fn a_watch_that_has_come_far_enough_is_proof_and_what_rests_on_nothing_needs_none() {
    let (bed, proofs) = (bed(1500), Proofs::default());
    assert_eq!(
        proof(&bed, &proofs, set("default", 1500)).await,
        Ok(Proof::Fresh)
    );
    assert_eq!(
        proof(&bed, &proofs, set("default", 0)).await,
        Ok(Proof::Fresh)
    );
    assert_eq!(bed.lists.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn one_list_proves_for_all_that_was_known_when_it_was_asked_for() {
    let (bed, proofs) = (bed(1500), Proofs::default());
    for since in [1600, 1700, 2000] {
        assert_eq!(
            proof(&bed, &proofs, set("default", since)).await,
            Ok(Proof::Fresh)
        );
    }
    assert_eq!(bed.lists.load(Ordering::Relaxed), 1);
    assert_eq!(
        proof(&bed, &proofs, set("default", 2001)).await,
        Ok(Proof::Fresh)
    );
    assert_eq!(
        proof(&bed, &proofs, set("shop", 1600)).await,
        Ok(Proof::Fresh)
    );
    assert_eq!(bed.lists.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn an_object_that_the_cache_lacks_is_no_proof() {
    let (mut bed, proofs) = (bed(1500), Proofs::default());
    bed.server.put(config_map("late"));
    let stale = proof(&bed, &proofs, set("default", 1600)).await.unwrap();
    assert!(matches!(stale, Proof::Stale { why } if why.contains("configmaps/default/late")));
    bed.cache = bed.server.clone();
    assert_eq!(
        proof(&bed, &proofs, set("default", 1600)).await,
        Ok(Proof::Fresh)
    );
    assert_eq!(bed.lists.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn what_can_t_be_read_proves_nothing_and_what_is_served_no_more_has_nothing_left() {
    let (bed, proofs) = (bed(1500), Proofs::default());
    assert!(proof(&bed, &proofs, set("broken", 1600)).await.is_err());
    assert_eq!(
        proof(&bed, &proofs, set("unserved", 1600)).await,
        Ok(Proof::Fresh)
    );
}

#[tokio::test]
async fn what_was_never_listed_is_read_until_there_is_no_hope() {
    let (mut bed, proofs) = (bed(0), Proofs::default());
    (bed.cache, bed.complete) = (World::at("12:00:00"), false);
    let stale = proof(&bed, &proofs, set("default", 1600)).await.unwrap();
    assert!(matches!(stale, Proof::Stale { why } if why.contains("configmaps/default/a")));
    assert_eq!(
        proof(&bed, &proofs, set("shop", 1600)).await,
        Ok(Proof::Fresh),
        "there are none in that namespace"
    );
    bed.hopeless = true;
    assert_eq!(
        proof(&bed, &proofs, set("default", 1600)).await,
        Ok(Proof::Fresh)
    );
    // What was listed once is compared all the same.
    bed.complete = true;
    let stale = proof(&bed, &proofs, set("default", 1600)).await.unwrap();
    assert!(matches!(stale, Proof::Stale { .. }));
}

#[tokio::test(start_paused = true)]
async fn what_can_t_be_read_for_long_holds_back_nobody_and_is_asked_for_now_and_then() {
    let (mut bed, proofs) = (bed(1500), Proofs::default());
    assert!(proof(&bed, &proofs, set("broken", 1600)).await.is_err());
    bed.hopeless = true;
    for _ in 0..3 {
        assert_eq!(
            proof(&bed, &proofs, set("broken", 1600)).await,
            Ok(Proof::Fresh)
        );
    }
    assert_eq!(bed.lists.load(Ordering::Relaxed), 2);
    bed.now.fetch_add(HOPELESS_FOR.as_secs(), Ordering::Relaxed);
    bed.hopeless = false;
    assert!(proof(&bed, &proofs, set("broken", 1600)).await.is_err());
    assert_eq!(bed.lists.load(Ordering::Relaxed), 3);
}

/// A finalizer that protects data must not go because the API server answers small lists alone.
#[tokio::test(start_paused = true)]
async fn a_strict_set_that_can_t_be_read_for_long_proves_nothing() {
    let (mut bed, proofs) = (bed(1500), Proofs::default());
    bed.hopeless = true;
    let lenient = proof(&bed, &proofs, set("broken", 1600)).await;
    assert_eq!(
        lenient,
        Ok(Proof::Fresh),
        "and is remembered to be hopeless"
    );
    for _ in 0..2 {
        let proven = proof(&bed, &proofs, strict(set("broken", 1600))).await;
        assert!(proven.is_err());
    }
    assert_eq!(bed.lists.load(Ordering::Relaxed), 3);

    bed.complete = false;
    bed.cache = World::at("12:00:00");
    let proven = proof(&bed, &proofs, strict(set("default", 1600))).await;
    assert!(matches!(proven, Ok(Proof::Stale { .. })));
}

#[tokio::test]
async fn a_strict_set_with_an_object_that_can_t_be_decoded_proves_nothing() {
    let (mut bed, proofs) = (bed(1500), Proofs::default());
    let aside = (
        ConfigMap::resource(),
        Key::new("default", "odd"),
        "no message".to_owned(),
    );
    bed.set_aside = vec![aside];
    let refused = proof(&bed, &proofs, strict(set("default", 1400))).await;
    let why = refused.unwrap_err().failure.to_string();
    assert_eq!(why, "configmaps/default/odd can't be read: no message");
    for other in [strict(set("shop", 1400)), set("default", 1400)] {
        assert_eq!(proof(&bed, &proofs, other).await, Ok(Proof::Fresh));
    }
}

#[tokio::test]
async fn a_live_read_vouches_for_the_cache_that_has_passed_it_and_for_what_was_before_it() {
    let (mut bed, proofs) = (bed(1500), Proofs::default());
    bed.doubted = true;
    let second = Duration::from_secs;
    let holds = |bed: &Bed, from, by| {
        let resource = ConfigMap::resource();
        bed.grounds(&proofs)
            .holds(resource, second(from), second(by))
    };
    assert!(!holds(&bed, 0, 99), "nothing was read");
    assert_eq!(
        proof(&bed, &proofs, set("default", 0)).await,
        Ok(Proof::Fresh)
    );
    assert!(!holds(&bed, 10, 99), "the watch has not come to 1800");
    bed.reached = 1800;
    bed.now = AtomicU64::new(20);
    assert!(!holds(&bed, 10, 21), "nobody knew how far it was");
    assert!(holds(&bed, 10, 21));
    assert!(
        !holds(&bed, 10, 20),
        "the plan was made before that was known"
    );
    assert!(!holds(&bed, 11, 21), "the read was before that");
    // A later read counts once the watch has passed it; until then the one before does.
    bed.reached = 1799;
    bed.now = AtomicU64::new(30);
    assert_eq!(
        proof(&bed, &proofs, set("default", 0)).await,
        Ok(Proof::Fresh)
    );
    assert!(holds(&bed, 10, 31) && !holds(&bed, 11, 31));
    bed.reached = 1800;
    assert!(holds(&bed, 10, 31), "and now it is noticed");
    assert!(holds(&bed, 30, 31));
}

#[tokio::test]
async fn how_far_a_resource_has_come_is_asked_of_the_server() {
    let bed = bed(1500);
    let metrics = Metrics::new(&[]);
    let gate = Gate::new(0, 1, Arc::new(Open));
    let descriptor = Descriptor::new("test-controller", Sharding::Single);
    let controller = metrics.controller("test-controller");
    let sender = Sender::new("m-0", &descriptor, controller, &gate);
    let query = Query::Present {
        resource: ConfigMap::resource(),
    };
    let answers = ask(
        &bed,
        &crate::keys::NoKeys,
        &crate::cloud::NoCloud,
        at("12:00:00"),
        &sender,
        vec![query.clone()],
    )
    .await;
    assert_eq!(answers.get(&query), Some(&Answer::present(1800)));
    let seen = controllers_kit::Snapshot::new(&bed, &answers, at("12:00:00"));
    assert_eq!(seen.present(ConfigMap::resource()), Some(Ok(1800)));
}

mod made_to_order {
    //! What is asked besides objects: reviews, what pages hold, certificates and tokens.

    use std::sync::atomic::{AtomicUsize, Ordering};

    use controllers_kit::{Answer, Issue, Pick, Query};
    use kubernetes_proto::core::Pod;
    use serde_json::json;

    use super::*;
    use crate::keys::Keys;

    /// Pods in two pages; a review that repeats what it was sent; a document of schemas.
    struct Pages;

    /// How often the document was read.
    static DOCUMENTS: AtomicUsize = AtomicUsize::new(0);

    impl Server for Pages {
        fn write<'a>(
            &'a self,
            _: &'a Sender,
            _: &'a Action,
        ) -> BoxFuture<'a, Result<Written, Refused>> {
            unreachable!("nothing is written")
        }
        fn record<'a>(
            &'a self,
            _: &'a Sender,
            _: &'a events::Send,
            _: bool,
        ) -> BoxFuture<'a, Result<Written, Refused>> {
            unreachable!("nothing is recorded")
        }
        fn get<'a>(
            &'a self,
            _: &'a Sender,
            _: &'static Resource,
            _: &'a Key,
        ) -> BoxFuture<'a, Result<Option<Value>, Refused>> {
            unreachable!("no object is read")
        }
        fn head<'a>(
            &'a self,
            _sender: &'a Sender,
            _: &'static Resource,
            _: &'a Key,
        ) -> BoxFuture<'a, Result<Live<Option<LiveItem>>, Refused>> {
            unreachable!("nothing is compared")
        }
        fn list<'a>(
            &'a self,
            _: &'a Sender,
            _: &'static Resource,
            _: &'a str,
            _: &'a str,
        ) -> BoxFuture<'a, Result<Live<Vec<LiveItem>>, Refused>> {
            unreachable!("nothing is listed")
        }
        fn read<'a>(
            &'a self,
            _: &'a Sender,
            path: &'a str,
        ) -> BoxFuture<'a, Result<Option<Value>, Refused>> {
            let pod = |secret: &str| json!({"spec": {"imagePullSecrets": [{"name": secret}]}});
            let page = match path {
                "/api/v1/namespaces/shop/pods?limit=500&continue=" => {
                    Ok(json!({"metadata": {"continue": "more"}, "items": [pod("b"), pod("a")]}))
                }
                "/api/v1/namespaces/shop/pods?limit=500&continue=more" => {
                    Ok(json!({"metadata": {}, "items": [pod("a"), pod("c")]}))
                }
                "/openapi/v3" => Ok(json!({"paths": {"apis/shop/v1": {
                    "serverRelativeURL": "/openapi/v3/apis/shop/v1?hash=7",
                }}})),
                "/openapi/v3/apis/shop/v1?hash=7" => {
                    DOCUMENTS.fetch_add(1, Ordering::Relaxed);
                    let kind = json!([{"group": "shop", "version": "v1", "kind": "Cart"}]);
                    Ok(json!({"components": {"schemas": {
                        "Cart": {"type": "object", "x-kubernetes-group-version-kind": kind},
                        "Other": {"type": "object"},
                    }}}))
                }
                _ => Err(Failure::Forbidden(format!("{path} is forbidden")).into()),
            };
            std::future::ready(page.map(Some)).boxed()
        }
        fn page<'a>(
            &'a self,
            _: &'a Sender,
            _: &'static Resource,
            limit: usize,
            token: &'a str,
        ) -> BoxFuture<'a, Result<Option<controllers_kit::Page>, Refused>> {
            let page = match token {
                "" => Ok(Some(controllers_kit::Page {
                    version: limit as u64,
                    metas: Vec::new(),
                    next: "more".to_owned(),
                })),
                "old" => Ok(None),
                "gone" => Err(Failure::NotFound("no such resource".to_owned()).into()),
                "405" => Err(Failure::NotSupported("no list".to_owned()).into()),
                _ => Err(Failure::Other("busy".to_owned()).into()),
            };
            std::future::ready(page).boxed()
        }
        fn review<'a>(
            &'a self,
            _: &'a Sender,
            path: &'a str,
            body: &'a str,
        ) -> BoxFuture<'a, Result<Value, Refused>> {
            std::future::ready(Ok(json!([path, body]))).boxed()
        }
    }

    struct Signs;

    impl Keys for Signs {
        fn certificate(&self, issue: &Issue, now: Timestamp) -> Result<String, String> {
            Ok(format!("{} at {now}", issue.signer))
        }
        fn token(&self, claims: &str) -> Result<String, String> {
            Err(format!("no key for {claims}"))
        }
    }

    async fn answer(query: Query) -> Answer {
        let metrics = Metrics::new(&[]);
        let gate = Gate::new(0, 1, Arc::new(Open));
        let descriptor = Descriptor::new("test", Sharding::ByObject);
        let sender = Sender::new("a", &descriptor, metrics.controller("test"), &gate);
        let now = at("12:00:00");
        let mut answers = ask(
            &Pages,
            &Signs,
            &crate::cloud::NoCloud,
            now,
            &sender,
            vec![query.clone()],
        )
        .await;
        answers.remove(&query).expect("an answer")
    }

    fn object(answer: &Answer) -> &Value {
        match answer {
            Answer::Object(object) => object,
            other => panic!("no object but {other:?}"),
        }
    }

    #[tokio::test]
    async fn what_is_picked_comes_from_every_page_each_once() {
        let picked = |namespace: &str| Query::Picked {
            resource: Pod::resource(),
            namespace: namespace.into(),
            pick: Pick::SecretsOfPod,
        };
        let names = answer(picked("shop")).await;
        assert_eq!(*object(&names), json!(["a", "b", "c"]));
        let refused = answer(picked("bank")).await;
        assert!(matches!(refused, Answer::Failed(why) if why.contains("forbidden")));
        assert!(is_slow(&[picked("shop")]), "it holds no permit");
    }

    #[tokio::test]
    async fn a_page_is_answered_or_says_why_there_is_none() {
        use controllers_kit::{NoPage, Snapshot};
        let page = |token: &str| Query::Page {
            resource: Pod::resource(),
            limit: 7,
            token: token.to_owned(),
        };
        let world = World::at("12:00:00");
        for (token, expected) in [
            ("", Ok((7, "more"))),
            ("old", Err(NoPage::Expired)),
            ("gone", Err(NoPage::NotServed)),
            ("405", Err(NoPage::NotServed)),
            ("?", Err(NoPage::Failed("busy".to_owned()))),
        ] {
            let query = page(token);
            let answers = [(query.clone(), answer(query.clone()).await)].into();
            let found = Snapshot::new(&world, &answers, at("12:00:00")).page(&query);
            let found = found.expect("it was asked");
            let found = found.as_ref().map(|page| (page.version, &*page.next));
            assert_eq!(found, expected.as_ref().map(|page| *page), "{token}");
        }
        assert!(is_slow(&[page("")]), "it holds no permit");
    }

    #[tokio::test]
    async fn reviews_are_posted_and_certificates_and_tokens_made() {
        let review = Query::Review {
            path: "/apis/x",
            body: "{}".to_owned(),
        };
        assert_eq!(*object(&answer(review).await), json!(["/apis/x", "{}"]));
        let certificate = Query::Certificate(Issue {
            signer: "example.com/x",
            request: Vec::new(),
            usages: Vec::new(),
            ttl: Duration::ZERO,
        });
        assert_eq!(
            *object(&answer(certificate).await),
            json!("example.com/x at 2026-03-02T12:00:00Z")
        );
        let token = Query::Token {
            claims: "x".to_owned(),
        };
        assert_eq!(
            answer(token).await,
            Answer::Failed("no key for x".to_owned())
        );
    }

    #[tokio::test]
    async fn a_document_of_schemas_is_read_once_as_long_as_it_stays_the_same() {
        let schema = |group: &str, kind: &str| Query::Schema {
            group: group.into(),
            version: "v1".into(),
            kind: kind.into(),
        };
        let expected = json!({"root": "Cart", "schemas": {"Cart": {"type": ["object"]}}});
        for _ in 0..3 {
            assert_eq!(*object(&answer(schema("shop", "Cart")).await), expected);
        }
        assert_eq!(DOCUMENTS.load(Ordering::Relaxed), 1);
        assert_eq!(answer(schema("shop", "Basket")).await, Answer::Missing);
        assert_eq!(answer(schema("bank", "Cart")).await, Answer::Missing);
        assert!(is_slow(&[schema("shop", "Cart")]), "it holds no permit");
    }
}
