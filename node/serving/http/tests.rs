use std::sync::atomic::{AtomicBool, Ordering};

use futures::StreamExt as _;
use http_body_util::BodyExt;
use node_options::{Options, Surroundings};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{ServerName, pem::PemObject as _},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower::ServiceExt;

use super::*;

use crate::auth::tests::{auth, values};

struct Inside;

impl Debug for Inside {
    fn shards(&self) -> Value {
        serde_json::json!({ "ranges": 256 })
    }
    fn fleet_shards(&self) -> BoxFuture<'static, Value> {
        Box::pin(async { serde_json::json!({ "replicas": [] }) })
    }
    fn explain(
        &self,
        controller: String,
        key: String,
        is_for_fleet: bool,
        _: Arc<dyn Rights>,
    ) -> BoxFuture<'static, Result<Value, Denied>> {
        Box::pin(async move {
            match key.as_str() {
                "shop/web" => {
                    Ok(serde_json::json!({ "controller": controller, "fleet": is_for_fleet }))
                }
                _ => Err(Denied::NotFound(format!("{key} is not known"))),
            }
        })
    }
    fn explain_object(
        &self,
        kind: String,
        namespace: String,
        name: String,
        rights: Arc<dyn Rights>,
    ) -> BoxFuture<'static, Result<Value, Denied>> {
        Box::pin(async move {
            let target = Target::Object {
                resource: <kubernetes_proto::core::Pod as kubernetes_proto::Object>::resource(),
                namespace,
                name,
            };
            let may = rights.may("get", &target).await;
            may.map_err(Denied::Refused)?;
            Ok(serde_json::json!({ "kind": kind }))
        })
    }
    fn top(
        &self,
        namespace: String,
        _: Arc<dyn Rights>,
    ) -> BoxFuture<'static, Result<Value, Denied>> {
        Box::pin(async move { Ok(serde_json::json!({ "top": namespace })) })
    }
    fn unhappy(
        &self,
        namespace: String,
        _: Arc<dyn Rights>,
    ) -> BoxFuture<'static, Result<Value, Denied>> {
        Box::pin(async move { Ok(serde_json::json!({ "unhappy": namespace })) })
    }
    fn shadow(&self, _: Arc<dyn Rights>) -> BoxFuture<'static, Result<Value, Denied>> {
        Box::pin(async { Err(Denied::NotFound("this fleet is no shadow".to_owned())) })
    }

    fn live(&self, rights: Arc<dyn Rights>) -> BoxStream<'static, Update> {
        let update = |number: u32| Update {
            name: "state",
            json: format!("{{\"number\":{number}}}"),
        };
        let never = futures::stream::pending();
        futures::stream::iter([update(1), update(2)])
            .chain(never)
            .inspect(move |_| {
                let _of_the_caller = &rights;
            })
            .boxed()
    }

    fn move_range(
        &self,
        range: u16,
        to: String,
        by: String,
    ) -> BoxFuture<'static, Result<Value, String>> {
        Box::pin(async move {
            match range {
                7 => Ok(serde_json::json!({ "range": range, "to": to, "by": by })),
                _ => Err(format!("range {range} is not held here: ask b")),
            }
        })
    }
}

fn options(words: &[&str]) -> Arc<Options> {
    let surroundings = Surroundings {
        host_name: "a".to_owned(),
        ..Surroundings::default()
    };
    Arc::new(Options::new(values(words).unwrap(), &[], &surroundings).unwrap())
}

fn sources(words: &[&str]) -> Sources {
    let metrics = Metrics::new(&[]);
    let options = options(words);
    Sources {
        health: Health::new(metrics.clone()),
        metrics,
        options: Arc::new(InForce::new(Arc::clone(&options))),
        verbosity: Arc::new(Verbosity::of(&options.logging, false)),
        debug: Arc::new(Inside),
        auth: auth(),
    }
}

async fn ask(
    sources: &Sources,
    method: &str,
    path: &str,
    token: Option<&str>,
    body: &'static str,
) -> (u16, String, String) {
    let mut request = Request::builder().method(method).uri(path);
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let response = router(sources.clone(), Streams::new(CancellationToken::new()))
        .oneshot(request.body(Body::from(body)).unwrap())
        .await
        .unwrap();
    let kind = response
        .headers()
        .get("content-type")
        .map(|kind| kind.to_str().unwrap().to_owned());
    assert_eq!(response.headers()["cache-control"], "no-cache, private");
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (
        code,
        kind.unwrap_or_default(),
        String::from_utf8(bytes.to_vec()).unwrap(),
    )
}

#[tokio::test]
async fn every_path_answers_as_upstream_or_as_asked() {
    let sources = sources(&["--disabled-metrics=process_open_fds"]);
    const TEXT: &str = "text/plain; charset=utf-8";
    const JSON: &str = "application/json";
    for (method, path, code, kind, part) in [
        ("GET", "/healthz", 200, TEXT, "ok"),
        (
            "GET",
            "/healthz?verbose",
            200,
            TEXT,
            "healthz check passed\n",
        ),
        (
            "GET",
            "/livez?verbose&exclude=x",
            200,
            TEXT,
            "warn: some health checks cannot be excluded: no matches for \"x\"\n",
        ),
        ("GET", "/healthz/nope", 404, TEXT, "404 page not found"),
        (
            "GET",
            "/metrics",
            200,
            metrics::CONTENT_TYPE,
            "process_cpu_seconds_total",
        ),
        (
            "GET",
            "/metrics/slis",
            200,
            metrics::CONTENT_TYPE,
            "process_start_time_seconds",
        ),
        (
            "GET",
            "/configz",
            200,
            JSON,
            "KubeControllerManagerConfiguration",
        ),
        (
            "GET",
            "/flagz",
            200,
            TEXT,
            "\ndisabled-metrics=[process_open_fds]\n",
        ),
        ("GET", "/statusz", 200, TEXT, "Replica: a of fleet manifold"),
        ("GET", "/debug/shards", 200, JSON, "{\"ranges\":256}"),
        ("GET", "/debug/explain", 400, TEXT, "give ?controller="),
        (
            "GET",
            "/debug/explain?controller=c&key=shop/web",
            200,
            JSON,
            "{\"controller\":\"c\",\"fleet\":false}",
        ),
        (
            "GET",
            "/debug/explain?controller=c&key=shop/web&scope=fleet",
            200,
            JSON,
            "{\"controller\":\"c\",\"fleet\":true}",
        ),
        (
            "GET",
            "/debug/explain?kind=pod&namespace=shop&name=web",
            200,
            JSON,
            "{\"kind\":\"pod\"}",
        ),
        (
            "GET",
            "/debug/shards?scope=fleet",
            200,
            JSON,
            "{\"replicas\":[]}",
        ),
        (
            "GET",
            "/debug/shards?scope=all",
            400,
            TEXT,
            "neither fleet nor replica",
        ),
        (
            "GET",
            "/debug/top?namespace=shop",
            200,
            JSON,
            "{\"top\":\"shop\"}",
        ),
        ("GET", "/debug/unhappy", 200, JSON, "{\"unhappy\":\"\"}"),
        ("GET", "/debug/shadow", 404, TEXT, "this fleet is no shadow"),
        (
            "GET",
            "/debug/explain?controller=c&key=shop/db",
            404,
            TEXT,
            "shop/db is not known",
        ),
        (
            "POST",
            "/debug/move?range=7&to=b",
            202,
            JSON,
            "{\"by\":\"\\\"prometheus\\\" from an unknown address\",\"range\":7,\"to\":\"b\"}",
        ),
        ("POST", "/debug/move?range=8&to=b", 409, TEXT, "ask b"),
        (
            "POST",
            "/debug/move?range=x&to=b",
            400,
            TEXT,
            "give ?range=",
        ),
        ("POST", "/debug/move?range=7", 400, TEXT, "give ?range="),
        ("GET", "/debug/pprof/heap", 501, TEXT, "not offered"),
        (
            "GET",
            "/debug/flags/v",
            406,
            TEXT,
            "unsupported http method",
        ),
        (
            "PUT",
            "/debug/flags/v",
            400,
            TEXT,
            "expected a whole number from 0 up",
        ),
        ("GET", "/", 404, TEXT, "404 page not found"),
        ("GET", "/version", 404, TEXT, "404 page not found"),
    ] {
        let (got, got_kind, text) = ask(&sources, method, path, Some("good"), "x").await;
        assert_eq!((got, got_kind.as_str()), (code, kind), "{path}: {text}");
        assert!(text.contains(part), "{path}: {text}");
    }
    let (_, _, text) = ask(&sources, "GET", "/metrics", Some("good"), "").await;
    assert!(!text.contains("process_open_fds"));
    let without = super::tests::sources(&["--profiling=false"]);
    assert_eq!(
        ask(&without, "GET", "/debug/pprof/", Some("good"), "")
            .await
            .0,
        404
    );
}

#[tokio::test]
async fn refusals_read_as_upstreams() {
    let sources = sources(&[]);
    let (code, kind, text) = ask(&sources, "GET", "/metrics", None, "").await;
    assert_eq!((code, kind.as_str()), (403, "application/json"));
    assert_eq!(
        text,
        "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\",\"message\":\"forbidden: User \
         \\\"system:anonymous\\\" cannot get path \\\"/metrics\\\"\",\"reason\":\"Forbidden\",\"details\":{},\"code\":403}\n"
    );
    let (code, _, text) = ask(&sources, "GET", "/healthz", Some("bad"), "").await;
    assert_eq!(code, 401);
    assert_eq!(
        text,
        "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\",\"message\":\"Unauthorized\",\
         \"reason\":\"Unauthorized\",\"code\":401}\n"
    );
    for path in [
        "/configz",
        "/debug/shards",
        "/nope",
        "/healthz/x",
        "/debug/pprof/",
    ] {
        assert_eq!(ask(&sources, "GET", path, None, "").await.0, 403, "{path}");
    }
}

#[tokio::test]
async fn a_failing_check_is_named_with_its_reason_and_counted() {
    let sources = sources(&[]);
    let broken = Arc::new(AtomicBool::new(true));
    let of_check = broken.clone();
    let check = move || match of_check.load(Ordering::Relaxed) {
        true => Err("list pods is forbidden".to_owned()),
        false => Ok(()),
    };
    sources
        .health
        .register("leases", Box::new(|| Ok(())), &[Kind::Readyz, Kind::Livez]);
    sources
        .health
        .register("watch pods", Box::new(check), &[Kind::Readyz]);
    let ready = async |path| ask(&sources, "GET", path, Some("good"), "").await;
    let reported =
        "[+]leases ok\n[-]watch pods failed: list pods is forbidden\nreadyz check failed\n";
    for path in ["/readyz", "/readyz?verbose"] {
        let (code, _, text) = ready(path).await;
        assert_eq!((code, text.as_str()), (500, reported), "{path}");
    }
    assert_eq!(sources.health.failing(Kind::Readyz).len(), 1);
    assert_eq!(
        ready("/livez?verbose").await.2,
        "[+]leases ok\nlivez check passed\n"
    );
    let (code, _, text) = ready("/readyz?verbose&exclude=watch%20pods").await;
    assert_eq!(
        (code, text.as_str()),
        (
            200,
            "[+]leases ok\n[+]watch pods excluded: ok\nreadyz check passed\n"
        )
    );
    let one = ask(&sources, "GET", "/readyz/watch%20pods", Some("good"), "").await;
    assert_eq!(
        (one.0, one.2.as_str()),
        (500, "internal server error: list pods is forbidden\n")
    );
    assert_eq!(
        ask(&sources, "GET", "/readyz/leases", Some("good"), "")
            .await
            .2,
        "ok"
    );
    let slis = sources.metrics.encode_slis();
    assert!(
        slis.contains("kubernetes_healthcheck{name=\"watch pods\",type=\"readyz\"} 0"),
        "{slis}"
    );
    broken.store(false, Ordering::Relaxed);
    assert_eq!(ready("/readyz").await.2, "ok");
    sources.health.remove("watch pods");
    assert_eq!(
        ready("/readyz?verbose").await.2,
        "[+]leases ok\nreadyz check passed\n"
    );
}

#[tokio::test]
async fn the_verbosity_can_be_changed() {
    let sources = sources(&[]);
    let (code, _, text) = ask(&sources, "PUT", "/debug/flags/v", Some("good"), "4").await;
    assert_eq!(
        (code, text.as_str()),
        (200, "successfully set klog.logging.verbosity to 4")
    );
    assert_eq!(sources.verbosity.level(), 4);
}

/// A server on a free port; the token ends it.
async fn started(
    sources: Sources,
) -> (
    SocketAddr,
    CancellationToken,
    tokio::task::JoinHandle<Result<(), Error>>,
) {
    let mut serving = sources.options.load().serving.clone();
    serving.address = "127.0.0.1:0".parse().unwrap();
    let server = Server::bind(&serving).unwrap();
    let address = server.address().unwrap();
    let stop = CancellationToken::new();
    let task = tokio::spawn(server.serve(sources, stop.clone()));
    (address, stop, task)
}

/// A connection to the port of [`started`].
async fn connected(
    address: SocketAddr,
    dir: &std::path::Path,
) -> tokio_rustls::client::TlsStream<TcpStream> {
    let pem = std::fs::read(dir.join("manifold.crt")).unwrap();
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    tokio_rustls::TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .unwrap()
}

/// One request by HTTP/1.1 over TLS.
async fn over_tls(address: SocketAddr, dir: &std::path::Path, request: &str) -> String {
    let mut stream = connected(address, dir).await;
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // The server may end without TLS's goodbye.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn the_port_speaks_tls_and_ends_when_asked() {
    let dir = std::env::temp_dir().join(format!("manifold-port-{}", uuid::Uuid::new_v4()));
    let given = format!("--cert-dir={}", dir.display());
    let (address, stop, task) = started(sources(&[&given])).await;
    let answer = over_tls(
        address,
        &dir,
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    )
    .await;
    assert!(
        answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("ok"),
        "{answer}"
    );
    let long = format!(
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n",
        "x".repeat(2 * HEADER_BYTES_MAX)
    );
    let answer = over_tls(address, &dir, &long).await;
    assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
    // What is no TLS is cut off, and the port continues.
    let mut plain = TcpStream::connect(address).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut rest = Vec::new();
    let _ = plain.read_to_end(&mut rest).await;
    assert!(!String::from_utf8_lossy(&rest).contains("HTTP/"));
    stop.cancel();
    tokio::time::timeout(GOODBYE_MAX * 2, task)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert!(
        TcpStream::connect(address).await.is_err(),
        "nothing listens any more"
    );
    std::fs::remove_dir_all(&dir).unwrap();
}

#[tokio::test]
async fn a_port_that_is_taken_is_reported_with_its_address() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut serving = options(&[]).serving.clone();
    serving.address = taken.local_addr().unwrap();
    let why = Server::bind(&serving).unwrap_err().to_string();
    assert!(
        why.contains(&serving.address.to_string()) && why.contains("--secure-port"),
        "{why}"
    );
}

#[tokio::test]
async fn a_stranger_learns_which_check_fails_and_not_why() {
    let sources = sources(&[]);
    let secret = || Err("list secrets is forbidden at 10.0.0.1".to_owned());
    sources
        .health
        .register("watch-secrets", Box::new(secret), &[Kind::Readyz]);
    sources.health.describe(
        "server-fence",
        Box::new(|| "on".to_owned()),
        &[Kind::Readyz],
    );
    let note = || vec!["discovery of x is failing".to_owned()];
    sources.health.note(Kind::Readyz, Box::new(note));
    for path in ["/readyz", "/readyz?verbose"] {
        let (code, _, text) = ask(&sources, "GET", path, None, "").await;
        let wanted =
            "[-]watch-secrets failed: reason withheld\n[+]server-fence ok\nreadyz check failed\n";
        assert_eq!((code, text.as_str()), (500, wanted), "{path}");
    }
    let (_, _, text) = ask(&sources, "GET", "/readyz", Some("good"), "").await;
    let wanted = "[-]watch-secrets failed: list secrets is forbidden at 10.0.0.1\n[+]server-fence ok: on\n\
                  [~]discovery of x is failing\nreadyz check failed\n";
    assert_eq!(text, wanted);
    assert_eq!(
        ask(&sources, "GET", "/readyz/watch-secrets", None, "")
            .await
            .0,
        403
    );
}

#[tokio::test]
async fn the_pages_are_switched_by_their_gates_and_answer_in_what_is_accepted() {
    let page = async |sources: &Sources, path: &str, accept: &str| {
        let request = Request::builder()
            .uri(path)
            .header("authorization", "Bearer good")
            .header("accept", accept)
            .body(Body::empty())
            .unwrap();
        let router = router(sources.clone(), Streams::new(CancellationToken::new()));
        let response = router.oneshot(request).await.unwrap();
        let code = response.status().as_u16();
        let header = |name: &str| {
            let value = response.headers().get(name);
            value
                .map(|value| value.to_str().unwrap().to_owned())
                .unwrap_or_default()
        };
        let (kind, warning) = (header("content-type"), header("warning"));
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (
            code,
            kind,
            warning,
            String::from_utf8(bytes.to_vec()).unwrap(),
        )
    };
    let on = sources(&["--v=3"]);
    let flagz = "application/json;g=config.k8s.io;v=v1beta1;as=Flagz";
    let (code, kind, warning, text) = page(&on, "/flagz", flagz).await;
    assert_eq!((code, kind.as_str(), warning.as_str()), (200, flagz, ""));
    let start = "{\"kind\":\"Flagz\",\"apiVersion\":\"config.k8s.io/v1beta1\",\"metadata\":{\"name\":\
                 \"kube-controller-manager\"},\"flags\":{";
    assert!(text.starts_with(start) && text.ends_with("}}\n"), "{text}");
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["flags"]["v"], "3");
    let statusz = "application/yaml;g=config.k8s.io;v=v1alpha1;as=Statusz";
    let (code, kind, warning, text) = page(&on, "/statusz", statusz).await;
    assert_eq!((code, kind.as_str()), (200, statusz));
    assert!(
        warning.starts_with("299 - \"This version of the statusz endpoint is deprecated."),
        "{warning}"
    );
    let yaml: Value = serde_yaml::from_str(&text).unwrap();
    assert_eq!(yaml["apiVersion"], "config.k8s.io/v1alpha1");
    assert_eq!(yaml["emulationVersion"], "1.36");
    assert!(yaml["uptimeSeconds"].is_i64() && yaml["startTime"].as_str().unwrap().ends_with('Z'));
    assert_eq!(yaml["paths"][1], "/debug");
    let (code, kind, _, text) = page(&on, "/statusz", "application/json").await;
    assert_eq!((code, kind.as_str()), (406, "application/json"));
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (json["reason"].as_str(), json["message"].as_str()),
        (
            Some("NotAcceptable"),
            Some(
                "only the following media types are accepted: application/json, application/yaml, text/plain"
            )
        )
    );
    let off = sources(&["--feature-gates=ComponentFlagz=false,ComponentStatusz=false"]);
    for path in ["/flagz", "/statusz"] {
        assert_eq!(page(&off, path, "*/*").await.0, 404, "{path}");
        let (code, kind, _, text) = page(&on, path, "*/*").await;
        assert_eq!((code, kind.as_str()), (200, "text/plain; charset=utf-8"));
        assert!(text.starts_with("\nkube-controller-manager "), "{text}");
    }
}

#[tokio::test]
async fn a_server_that_cannot_be_asked_leaves_its_address_out_of_the_answer() {
    let refused = Refused::Broken("https://10.0.0.1:6443 does not answer".to_owned());
    let response = refusal(refused, "/metrics", false);
    assert_eq!(response.status().as_u16(), 500);
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(
        bytes,
        "Internal Server Error: \"/metrics\": the request could not be authorized\n"
    );
}

#[tokio::test]
async fn a_flood_of_silent_connections_does_not_keep_others_from_an_answer() {
    let dir = std::env::temp_dir().join(format!("manifold-port-{}", uuid::Uuid::new_v4()));
    let given = format!("--cert-dir={}", dir.display());
    let (address, stop, _task) = started(sources(&[&given])).await;
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let request = "GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let answer = tokio::time::timeout(Duration::from_secs(5), over_tls(address, &dir, request));
    assert!(answer.await.unwrap().starts_with("HTTP/1.1 200 OK"));
    // Those that were displaced have been closed, and the others not yet.
    let mut open = 0;
    for stream in &mut silent {
        let closed = tokio::time::timeout(Duration::from_millis(1), stream.read(&mut [0; 1])).await;
        open += usize::from(closed.is_err());
    }
    assert!(
        open <= connections::CONNECTIONS_PER_ADDRESS_MAX,
        "{open} are open"
    );
    stop.cancel();
    std::fs::remove_dir_all(&dir).unwrap();
}

#[path = "page_tests.rs"]
mod page;
