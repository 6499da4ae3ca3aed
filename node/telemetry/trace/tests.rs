use std::sync::Mutex as StdMutex;

use controllers_kit::{
    DynChange, Key, Timestamp,
    testing::{Common as _, World, deployment, pod, replica_set},
};
use http_body_util::{BodyExt, Full};
use hyper::{
    Request as HttpRequest, Response as HttpResponse,
    body::{Bytes, Incoming},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use kubernetes_proto::{Object as _, apps::Deployment};

use super::*;

/// A collector that keeps what it is sent, by gRPC or HTTP.
async fn collector() -> (String, Arc<StdMutex<Vec<u8>>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let kept = Arc::new(StdMutex::new(Vec::new()));
    let keep = kept.clone();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let service = service_fn(move |request: HttpRequest<Incoming>| {
            let keep = keep.clone();
            async move {
                let path = request.uri().path().to_owned();
                assert!(
                    path.ends_with("TraceService/Export") || path == "/v1/traces",
                    "{path}"
                );
                let body = request.into_body().collect().await.unwrap().to_bytes();
                keep.lock().unwrap().extend_from_slice(&body);
                // An empty message, framed as gRPC has it; in HTTP no bytes at all.
                let (content_type, frame, status) = match path == "/v1/traces" {
                    true => ("application/x-protobuf", &[][..], None),
                    false => ("application/grpc", &[0; 5][..], Some("0")),
                };
                let trailers = status.map(|status| {
                    let value = http::HeaderValue::from_static(status);
                    http::HeaderMap::from_iter([(
                        http::HeaderName::from_static("grpc-status"),
                        value,
                    )])
                });
                let body = Full::new(Bytes::from_static(frame))
                    .with_trailers(futures::future::ready(trailers.map(Ok)));
                let answer = HttpResponse::builder().header("content-type", content_type);
                Ok::<_, std::convert::Infallible>(answer.body(body).unwrap())
            }
        });
        let _ = auto::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(stream), service)
            .await;
    });
    (endpoint, kept)
}

fn start(vars: &[(&str, &str)]) -> Arc<Traces> {
    let env = |name: &str| {
        let found = vars.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    let settings = settings::read(&env, None).settings.unwrap();
    let instance = Instance {
        replica: "replica-7".to_owned(),
        pod: Some(("kube-system".to_owned(), "manifold-7".to_owned())),
        fleet: "manifold".to_owned(),
    };
    Traces::start(settings, instance)
}

fn of(key: &str) -> Reconcile {
    Reconcile {
        controller: "deployment-controller",
        primary: Some(Deployment::resource()),
        key: Key::new("shop", key),
        range: 1,
        epoch: 2,
        waited: Duration::from_millis(3),
        low_priority: false,
        failures: 0,
        woken: None,
        link: None,
        is_first: false,
    }
}

const OK: Ended<'_> = Ended {
    result: "success",
    error: None,
    writes: 0,
    actions: 0,
};

#[tokio::test(flavor = "multi_thread")]
async fn spans_reach_a_collector_by_grpc_and_by_http() {
    for protocol in ["grpc", "http/protobuf"] {
        let (endpoint, kept) = collector().await;
        let traces = start(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
            ("OTEL_TRACES_SAMPLER", "always_on"),
        ]);
        let from = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let world = World::at("12:00:00");
        let what = Reconcile {
            link: Some(from.into()),
            ..of("web")
        };
        let reconciling = traces.begin(&world, 0, what).unwrap();
        drop(Stage::begin(Some(reconciling.trail()), "plan"));
        assert!(reconciling.end(&world, 0, &OK).is_some());
        let flushing = Arc::clone(&traces);
        tokio::task::spawn_blocking(move || flushing.flush())
            .await
            .unwrap();
        let kept = kept.lock().unwrap();
        let has = |part: &[u8]| kept.windows(part.len()).any(|window| window == part);
        for part in [
            "manifold",
            "service.instance.id",
            "replica-7",
            "k8s.pod.name",
            "reconcile deployment-controller",
            "plan",
            "queue.wait_ms",
            "shop/web",
        ] {
            assert!(has(part.as_bytes()), "{protocol}: {part} is missing");
        }
        let linked = propagate::extract(from).unwrap();
        assert!(
            has(&linked.trace_id().to_bytes()) && has(&linked.span_id().to_bytes()),
            "{protocol}: the link is missing"
        );
        let (exported, dropped) = traces.new_counts();
        assert_eq!(exported, 3, "{protocol}");
        assert!(dropped.iter().all(|(_, count)| *count == 0), "{dropped:?}");
    }
}

/// Nobody listens there.
const NOWHERE: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1");

#[test]
fn what_fails_is_exported_though_it_was_not_sampled_and_the_rest_is_not() {
    let traces = start(&[NOWHERE, ("OTEL_TRACES_SAMPLER_ARG", "0")]);
    let world = World::at("12:00:00");
    let end = |error| {
        let reconciling = traces.begin(&world, 0, of("web")).unwrap();
        reconciling.end(&world, 0, &Ended { error, ..OK })
    };
    assert_eq!(end(None), None);
    for _ in 0..LATE_MAX {
        assert!(end(Some("forbidden")).is_some());
    }
    let mut more = 0;
    while end(Some("forbidden")).is_some() {
        more += 1;
        assert!(more <= LATE_MAX, "what is exported of failures is bounded");
    }
    let (_, dropped) = traces.new_counts();
    assert!(dropped.contains(&("rate_limited", 1)), "{dropped:?}");
}

#[test]
fn the_queue_has_a_bound_and_what_it_drops_is_counted() {
    let traces = start(&[
        NOWHERE,
        ("OTEL_TRACES_SAMPLER", "always_on"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "5"),
        ("OTEL_BSP_SCHEDULE_DELAY", "60000"),
    ]);
    let world = World::at("12:00:00");
    for _ in 0..4 {
        // Two spans each: the wait in the queue, and the whole.
        let reconciling = traces.begin(&world, 0, of("web")).unwrap();
        reconciling.end(&world, 0, &OK);
    }
    let (_, dropped) = traces.new_counts();
    assert!(dropped.contains(&("queue_full", 4)), "{dropped:?}");
}

#[test]
fn a_deployment_its_replica_set_and_its_pods_are_of_one_trace() {
    let web = deployment("web");
    let set = replica_set("web-1").owned_by(&web);
    let of_set = pod("web-1-a").owned_by(&set);
    let alone = pod("alone");
    let world = World::at("12:00:00")
        .with(web)
        .with(set)
        .with(of_set)
        .with(alone);
    let resources = [
        Deployment::resource(),
        kubernetes_proto::apps::ReplicaSet::resource(),
        kubernetes_proto::core::Pod::resource(),
    ];
    let owners = Owners::among(resources.into_iter());
    let root = |resource, name: &str| {
        let reader: &dyn Reader = &world;
        let object = reader.get(resource, "default", name).unwrap();
        owners.root(reader, &object)
    };
    let whole = root(resources[0], "web").trace(0);
    assert_eq!(root(resources[1], "web-1").trace(0), whole);
    assert_eq!(root(resources[2], "web-1-a").trace(0), whole);
    assert_ne!(root(resources[2], "alone").trace(0), whole);
    assert!(
        root(resources[2], "web-1-a")
            .label()
            .starts_with("Deployment ")
    );
}

/// What is left of a rollout when its owner is killed is taken up by the next one, which has seen no change.
#[test]
fn the_first_reconcile_in_a_gained_range_follows_from_what_made_its_object() {
    let traces = start(&[NOWHERE, ("OTEL_TRACES_SAMPLER", "always_on")]);
    let sets = kubernetes_proto::apps::ReplicaSet::resource();
    traces.know([Deployment::resource(), sets].into_iter());
    let web = deployment("web");
    let set = replica_set("web-1").owned_by(&web);
    let world = World::at("12:00:00").with(web).with(set);
    let reader: &dyn Reader = &world;
    let set = reader.get(sets, "default", "web-1").unwrap();
    let created = set.metadata().creation_timestamp.unwrap();
    let created = created.timestamp().as_second();
    let links = |key: &str, seconds: i64, is_first, primary| {
        let now = created + seconds;
        let what = Reconcile {
            key: Key::new("default", key),
            primary: Some(primary),
            is_first,
            ..of("")
        };
        let reconciling = traces.begin(&world, now, what).unwrap();
        let recorded = reconciling.span(&world, now, SystemTime::now(), &OK);
        let trace = recorded.links.first().map(SpanContext::trace_id);
        let written = ids::of_version(&set.metadata().uid, set.metadata().resource_version);
        assert!(recorded.links.iter().all(|link| link.span_id() == written));
        trace
    };
    let of_web = traces.owners().root(reader, &set).trace(created + 1);
    assert_eq!(links("web-1", 1, true, sets), Some(of_web));
    assert_eq!(links("web-1", 1, false, sets), None, "its own timer");
    assert_eq!(links("web-1", 3600, true, sets), None, "it is old");
    assert_eq!(
        links("web", 1, true, Deployment::resource()),
        None,
        "a user's"
    );
    assert_eq!(links("gone", 1, true, sets), None);
}

#[test]
fn nothing_that_has_not_happened_is_a_cause() {
    let nothing = DynChange {
        old: None,
        new: None,
        version: 0,
    };
    assert!(Cause::of(Deployment::resource(), nothing, Timestamp::UNIX_EPOCH).is_none());
}

#[test]
fn the_api_server_is_sent_the_span_of_a_sampled_call_alone() {
    for (ratio, expected) in [("0", false), ("1", true)] {
        let traces = start(&[NOWHERE, ("OTEL_TRACES_SAMPLER_ARG", ratio)]);
        let world = World::at("12:00:00");
        let reconciling = traces.begin(&world, 0, of("web")).unwrap();
        let mut request = node_cache::api::Request::get("/api/v1/pods");
        drop(Call::begin(Some(reconciling.trail()), &mut request));
        let mut names = request.headers.iter().map(|(name, _)| name.as_str());
        assert_eq!(names.any(|name| name == propagate::TRACEPARENT), expected);
    }
}
