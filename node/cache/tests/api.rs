use std::{
    io::Write as _,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Method};
use kubernetes_proto::{envelope, meta};
use proptest::prelude::*;
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use hyper_util::rt::TokioIo;

use super::server::Server;
use crate::{
    Api, ApiError, ConnectError, Exchange, Guard, Observe, Purpose, Request,
    api::{Framer, parse_status},
    socket::{Line, Socket},
};

/// Made by openssl without any extension, which makes it version 1.
const CERTIFICATE_OF_VERSION_1: &str = "\
-----BEGIN CERTIFICATE-----
MIICpzCCAY8CFA0ziNtTlqWo02RA/RdbZ4i74EKcMA0GCSqGSIb3DQEBCwUAMBMx
ETAPBgNVBAMMCGNhY2hlLWNhMB4XDTI2MTEyMDE0MjA1MVoXDTI2MTIyMDE0MjA1
MVowDTELMAkGA1UEAwwCdjEwggEiMA0GCSqGSIb3DQEBAQUAA4IBDwAwggEKAoIB
AQD1B4AjRtyQ78FTl9dtLbFoMcQZr4gHpgNIVbypJL40y3UU7PgQkSPSFElK4bpt
SMpcMMC0jpBpiIDH+FcEQGeCkvqhX3kQ1rX4ndo8spQQkJ7rFJ7vnepFBqQ68V32
jHK4U1FtM6lIvx0iK1kmF5lqDSGE7DszMFi1gvWZ6MiYDk6FZOyu8eQs1NCiPdGB
V1hOePDjnj2MirvcKkGyOjyQp/nbSt8/leAKW+FBTPzhfS6LwTL3p33tt9NaNydK
CrFrUXnj3d6NLHKdgTaPpqxDvAJNvYEwhZhitx1mMfOpO3XkATjFK/WG+ThbB+kU
WuKzZabBr/aFKoOMh0y36vKZAgMBAAEwDQYJKoZIhvcNAQELBQADggEBAFGAOiD2
WQl7E4PX3TWulDrCBWJzWHUiglMmPscu11AN7wghPmdx6NqJfSgXKFnNIp1BO22b
A8OJA0xe7AaBAjShpsc03dKBavz/U6MyNBzipDVxB9W6GB8sEhE+T72rS+eK+jQ9
UuG0RIohizI9jnKl7nY33NSkTR+T0iqe9vl38m59V7+S7wOJgKoZ2z00XqXTS+qL
b3jG3kQgePd0R+TzLomm6cGOojI23pk4rvOayVUCCoA/OaiJWJphj1bEXVoaQ6CG
a4TWc1SKnclirgnTZs+QBaWAFr9S2UHWT3r8f5NSmYmx1gioL62MjvsFU6fvGzHo
c55RDTyjtzf4CEs=
-----END CERTIFICATE-----
";

#[derive(Default)]
struct Seen(Mutex<Vec<String>>);

impl Observe for Seen {
    fn observe(&self, exchange: &Exchange<'_>) {
        self.0.lock().unwrap().push(format!(
            "{} {} {} sent {} received {}",
            exchange.method,
            exchange.path,
            exchange
                .code
                .map_or("<error>".to_owned(), |code| code.to_string()),
            exchange.request_bytes,
            exchange.response_bytes,
        ));
        assert!(exchange.host.starts_with("127.0.0.1:"));
    }
}

#[tokio::test]
async fn requests_go_by_http_2_with_what_they_were_given_and_are_observed() {
    let mut server = Server::start().await;
    let seen = Arc::new(Seen::default());
    let api = Api::connect_anonymous(&server.config, Purpose::Writes, Some(seen.clone())).unwrap();
    let mut request = Request::new(Method::POST, "/api/v1/namespaces/shop/pods?dryRun=All")
        .body(envelope::PROTOBUF, vec![1, 2, 3]);
    request.user_agent = Some(HeaderValue::from_static("manifold/1 (replica=a; range=7)"));
    request.authorization = Some(HeaderValue::from_static("Bearer t"));
    let sent = tokio::spawn(async move { api.send(request).await });
    let asked = server.asked().await;
    assert_eq!(asked.head.version, http::Version::HTTP_2);
    assert_eq!(asked.head.method, Method::POST);
    assert_eq!(
        asked.head.headers["user-agent"],
        "manifold/1 (replica=a; range=7)"
    );
    assert_eq!(asked.head.headers["authorization"], "Bearer t");
    assert_eq!(asked.head.headers["content-type"], envelope::PROTOBUF);
    assert_eq!(asked.body, Bytes::from_static(&[1, 2, 3]));
    asked.answer(201, "application/vnd.kubernetes.protobuf", vec![9, 9]);
    let response = sent.await.unwrap().unwrap();
    assert_eq!((response.status.as_u16(), response.protobuf), (201, true));
    assert_eq!(
        *seen.0.lock().unwrap(),
        ["POST /api/v1/namespaces/shop/pods 201 sent 3 received 2"]
    );
}

#[tokio::test]
async fn refusals_are_typed_from_json_and_from_protobuf() {
    let mut server = Server::start().await;
    let api = Api::connect(&server.config, Purpose::Writes, None).unwrap();
    let mut ask = async |code: u16, kind: &str, body: Vec<u8>| {
        let api = api.clone();
        let sent = tokio::spawn(async move { api.send(Request::get("/x")).await });
        server.asked().await.answer(code, kind, body);
        sent.await.unwrap().unwrap_err()
    };

    let json = br#"{"kind":"Status","code":409,"reason":"AlreadyExists","message":"pods \"a\" already exists",
                    "details":{"name":"a","kind":"pods","newer":"field","causes":[{"reason":"R","message":"m"}]}}"#;
    let error = ask(409, "application/json", json.to_vec()).await;
    assert!(error.is_already_exists() && !error.is_conflict() && error.has_cause("R"));
    assert_eq!(error.to_string(), "pods \"a\" already exists");

    let status = meta::Status {
        reason: "Conflict".into(),
        message: "the object has been modified".into(),
        code: 409,
        details: Some(meta::StatusDetails {
            retry_after_seconds: 2,
            ..meta::StatusDetails::default()
        }),
        ..meta::Status::default()
    };
    let body = envelope::wrap("v1", "Status", status.encode_to_vec());
    let error = ask(409, envelope::PROTOBUF, body).await;
    assert!(error.is_conflict() && !error.is_already_exists() && !error.is_undecided());
    assert_eq!(error.retry_after(), Some(Duration::from_secs(2)));

    let json = br#"{"kind":"Status","code":429,"details":{"retryAfterSeconds":2147483647}}"#;
    let error = ask(429, "application/json", json.to_vec()).await;
    assert_eq!(error.retry_after(), Some(Duration::from_secs(300)));

    let mut headers = http::HeaderMap::new();
    let centuries = HeaderValue::from_static("18446744073709551615");
    headers.insert("retry-after", centuries);
    let status = crate::api::read_status(http::StatusCode::TOO_MANY_REQUESTS, &headers, b"");
    assert_eq!(status.retry_after, Some(Duration::from_secs(300)));

    let error = ask(502, "text/html", b"<h1>bad\ngateway</h1>".to_vec()).await;
    assert_eq!(error.to_string(), "status 502: <h1>bad gateway</h1>");
    let error = ask(503, "text/plain", Vec::new()).await;
    assert_eq!(error.to_string(), "the API server answered with status 503");
}

#[tokio::test]
async fn no_answer_is_distinguished_from_a_late_one() {
    let mut server = Server::start().await;
    let api = Api::connect(&server.config, Purpose::Writes, None).unwrap();
    let late = tokio::spawn({
        let api = api.clone();
        async move {
            api.send(Request::get("/x").timeout(Duration::from_millis(300)))
                .await
        }
    });
    let _unanswered = server.asked().await;
    let error = late.await.unwrap().unwrap_err();
    assert!(
        matches!(error, ApiError::Timeout { .. }) && error.is_undecided(),
        "{error}"
    );
    assert!(
        error.to_string().ends_with("has not answered within 300ms"),
        "{error}"
    );

    // A port that nobody listens on.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = server.config.clone();
    config.cluster_url = format!("https://{}", closed.local_addr().unwrap())
        .parse()
        .unwrap();
    drop(closed);
    let api = Api::connect(&config, Purpose::Writes, None).unwrap();
    let error = api.send(Request::get("/x")).await.unwrap_err();
    assert!(error.to_string().contains("does not answer"), "{error}");
    assert!(error.to_string().contains("refused"), "{error}");
    assert!(!error.is_undecided(), "it was never sent");
}

#[test]
fn a_dead_connection_for_leases_is_given_up_in_time_for_another_and_a_live_one_is_not_pinged() {
    let pings = |period: u64, deadline: u64| {
        let (period, deadline) = (
            Duration::from_millis(period),
            Duration::from_millis(deadline),
        );
        let (quiet, patience) = Purpose::Leases { period, deadline }.pings();
        // It may have died just after an answer; then there must be time to connect and ask.
        assert!(
            quiet + patience + deadline / 12 <= deadline,
            "{quiet:?} and {patience:?}"
        );
        quiet > period
    };
    // Ours, upstream's, and short ones.
    for (period, deadline) in [(1_000, 3_000), (2_000, 10_000), (200, 1_000)] {
        assert!(pings(period, deadline), "{period} of {deadline}");
    }
    // So little room that it must be asked whether the server is there.
    assert!(!pings(2_000, 3_000));
}

#[tokio::test]
async fn a_burst_of_requests_shares_one_connection() {
    let mut server = Server::start().await;
    let api = Api::connect(&server.config, Purpose::Writes, None).unwrap();
    let mut burst = tokio::task::JoinSet::new();
    for number in 0..100 {
        let api = api.clone();
        burst.spawn(async move { api.send(Request::get(format!("/{number}"))).await });
    }
    let mut asked = Vec::new();
    for _ in 0..100 {
        asked.push(server.asked().await);
    }
    for asked in asked {
        asked.answer(200, "text/plain", "yes");
    }
    assert!(burst.join_all().await.iter().all(Result::is_ok));
    assert_eq!(server.connections.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn requests_that_bring_a_token_share_a_connection_that_is_not_begun_without_one() {
    let mut server = Server::wary().await;
    let api = Api::connect_anonymous(&server.config, Purpose::Writes, None).unwrap();
    for burst in 0..3 {
        let sent: Vec<_> = (0..20)
            .map(|_| {
                let (api, mut request) = (api.clone(), Request::get("/x"));
                request.authorization = Some(HeaderValue::from_static("Bearer t"));
                tokio::spawn(async move { api.send(request).await })
            })
            .collect();
        for sent in sent {
            server.asked().await.answer(200, "text/plain", "yes");
            drop(sent);
        }
        let connections = server.connections.load(Ordering::Relaxed);
        assert_eq!(connections, 1, "after burst {burst}");
    }
}

#[tokio::test]
async fn there_is_a_connection_until_the_last_one_has_ended() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let line = Arc::<Line>::default();
    let socket = async || {
        let tcp = tokio::net::TcpStream::connect(address).await.unwrap();
        Socket::new(TokioIo::new(tcp), Arc::clone(&line))
    };
    let (first, second) = (socket().await, socket().await);
    line.connected.store(true, Ordering::Release);
    drop(first);
    assert!(line.connected.load(Ordering::Acquire));
    drop(second);
    assert!(!line.connected.load(Ordering::Acquire));
}

#[tokio::test]
async fn a_server_that_speaks_http_1_1_alone_is_spoken_to() {
    let mut server = Server::speaking("http/1.1").await;
    let api = Api::connect(&server.config, Purpose::Writes, None).unwrap();
    let sent = tokio::spawn(async move { api.send(Request::get("/x")).await });
    let asked = server.asked().await;
    assert_eq!(asked.head.version, http::Version::HTTP_11);
    asked.answer(200, "text/plain", "yes");
    assert_eq!(sent.await.unwrap().unwrap().bytes, "yes");
}

#[tokio::test]
async fn a_server_under_another_authority_is_named_as_such() {
    let (server, other) = (Server::start().await, Server::start().await);
    let mut config = server.config.clone();
    config.root_cert = other.config.root_cert.clone();
    let api = Api::connect(&config, Purpose::Writes, None).unwrap();
    let error = api.send(Request::get("/x")).await.unwrap_err().to_string();
    assert!(error.contains("certificate"), "{error}");
}

#[tokio::test]
async fn a_client_certificate_that_rustls_can_t_take_is_named_with_the_remedy() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(CERTIFICATE_OF_VERSION_1.as_bytes()).unwrap();
    let path = file.path().to_str().unwrap().to_owned();
    let mut config = kube::Config::new("https://127.0.0.1:1".parse().unwrap());
    config.auth_info.client_certificate = Some(path.clone());
    config.auth_info.client_key = Some(path.clone());
    let error = Api::connect(&config, Purpose::Writes, None).unwrap_err();
    assert!(
        matches!(error, ConnectError::CertificateVersion(_, 1)),
        "{error}"
    );
    assert!(
        error.to_string().contains(&path) && error.to_string().contains("version 3"),
        "{error}"
    );
    assert!(Api::connect_anonymous(&config, Purpose::Writes, None).is_ok());

    config.auth_info.client_certificate = Some("/none/such.crt".to_owned());
    let error = Api::connect(&config, Purpose::Writes, None).unwrap_err();
    assert!(error.to_string().contains("/none/such.crt"), "{error}");
    config.auth_info.client_certificate_data = Some("bm90aGluZw==".to_owned());
    let error = Api::connect(&config, Purpose::Writes, None).unwrap_err();
    assert!(
        error.to_string().contains("client-certificate-data"),
        "{error}"
    );
}

/// Open while it is true.
struct Door(AtomicBool);

impl Guard for Door {
    fn open(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
    fn late_write_max(&self) -> Duration {
        Duration::from_secs(2)
    }
}

#[tokio::test]
async fn nothing_leaves_while_the_guard_is_closed_and_one_connection_comes_after_it() {
    let mut server = Server::start().await;
    let api = Api::connect(&server.config, Purpose::Writes, None).unwrap();
    let door = Arc::new(Door(AtomicBool::new(false)));
    api.guard(Arc::clone(&door) as Arc<dyn Guard>);
    let error = api.send(Request::get("/early")).await.unwrap_err();
    assert!(error.to_string().contains("may not write now"), "{error}");
    assert!(!error.is_undecided(), "it was never sent");

    door.0.store(true, Ordering::Release);
    let ask = |path: &str| {
        let (api, request) = (api.clone(), Request::get(path));
        tokio::spawn(async move { api.send(request).await })
    };
    let sent = ask("/open");
    let asked = server.asked().await;
    assert_eq!(asked.path(), "/open");
    door.0.store(false, Ordering::Release);
    assert!(ask("/closed").await.unwrap().is_err());
    assert!(sent.await.unwrap().is_err(), "its connection has ended");
    drop(asked);

    let before = server.connections.load(Ordering::Relaxed);
    door.0.store(true, Ordering::Release);
    let burst: Vec<_> = (0..20).map(|_| ask("/again")).collect();
    for sent in burst {
        let asked = server.asked().await;
        assert_eq!(asked.path(), "/again", "what was stopped never came");
        asked.answer(200, "text/plain", "yes");
        drop(sent);
    }
    assert_eq!(server.connections.load(Ordering::Relaxed), before + 1);
}

/// Answers what goes ahead on the connection and returns it with the beginning of the request after that.
async fn begun(listener: &tokio::net::TcpListener) -> tokio::net::TcpStream {
    let (mut tcp, _) = listener.accept().await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(tcp.read_u8().await.unwrap());
    }
    tcp.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        .await
        .unwrap();
    tcp.read_u8().await.unwrap();
    tcp
}

#[tokio::test]
async fn what_the_kernel_still_holds_is_thrown_away_when_the_guard_has_closed() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    for (closes, end) in [
        (false, None),
        (true, Some(std::io::ErrorKind::ConnectionReset)),
    ] {
        let config = kube::Config::new(format!("http://{address}").parse().unwrap());
        let api = Api::connect(&config, Purpose::Writes, None).unwrap();
        let door = Arc::new(Door(AtomicBool::new(true)));
        api.guard(Arc::clone(&door) as Arc<dyn Guard>);
        // More than the kernel takes ahead of its being read.
        let request =
            Request::new(Method::POST, "/x").body("application/json", vec![b' '; 64 << 20]);
        let sent = tokio::spawn(async move { api.send(request).await });
        let mut tcp = begun(&listener).await;
        door.0.store(!closes, Ordering::Release);
        let mut read = 1;
        let mut buffer = vec![0; 1 << 16];
        let ended = loop {
            match tcp.read(&mut buffer).await {
                Ok(0) => break None,
                Ok(count) => read += count,
                Err(error) => break Some(error.kind()),
            }
            if read > 64 << 20 {
                break None;
            }
        };
        assert_eq!((ended, read > 64 << 20), (end, !closes), "read {read}");
        drop(tcp);
        assert!(sent.await.unwrap().is_err());
    }
}

#[test]
fn what_is_no_status_is_not_taken_for_one() {
    for body in [&b""[..], b"{}", b"[]", b"k8s\0\xff", b"{\"kind\":\"Pod\"}"] {
        assert!(parse_status(body).is_none(), "{body:?}");
    }
}

proptest! {
    #[test]
    fn frames_come_out_as_they_went_in_however_the_stream_is_cut(
        frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..12),
        cuts in prop::collection::vec(1usize..30, 1..60),
    ) {
        let mut stream = Vec::new();
        for frame in &frames {
            stream.extend_from_slice(&u32::try_from(frame.len()).unwrap().to_be_bytes());
            stream.extend_from_slice(frame);
        }
        let (mut framer, mut out) = (Framer::default(), Vec::new());
        let mut rest = stream.as_slice();
        for cut in cuts.iter().cycle() {
            let (piece, later) = rest.split_at((*cut).min(rest.len()));
            framer.push(piece);
            while let Some(frame) = framer.next().unwrap() {
                out.push(frame.to_vec());
            }
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(out, frames);
        prop_assert!(framer.is_empty());
    }
}

#[test]
fn a_frame_beyond_the_bound_is_refused_before_it_is_collected() {
    let mut framer = Framer::default();
    framer.push(&u32::MAX.to_be_bytes());
    assert!(framer.next().unwrap_err().contains("4294967295 bytes"));
}

#[tokio::test]
async fn a_replaced_connection_ends_what_it_has_begun_and_new_requests_trust_the_new_authority() {
    let (mut server, other) = (Server::start().await, Server::start().await);
    let api = Api::connect(&server.config, Purpose::Writes, None).unwrap();
    let client = api.kube();
    let ask = |path: &'static str| {
        let api = api.clone();
        tokio::spawn(async move { api.send(Request::get(path)).await })
    };
    let begun = ask("/begun");
    let begun_asked = server.asked().await;
    let mut wrong = server.config.clone();
    wrong.root_cert = other.config.root_cert.clone();
    api.replace(&wrong).unwrap();
    let error = api.send(Request::get("/x")).await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
    let refusals = api.refusals().unwrap();
    assert!(refusals.why.starts_with("TLS: "), "{}", refusals.why);
    begun_asked.answer(200, "text/plain", b"ended".to_vec());
    assert_eq!(begun.await.unwrap().unwrap().bytes, "ended");

    api.replace(&server.config).unwrap();
    let next = ask("/next");
    server.asked().await.answer(200, "text/plain", Vec::new());
    next.await.unwrap().unwrap();
    assert!(api.refusals().is_none(), "it was answered");
    let by_kube = tokio::spawn(async move {
        let request = http::Request::get("/kube").body(Vec::new()).unwrap();
        client.request_text(request).await
    });
    server.asked().await.answer(200, "text/plain", Vec::new());
    by_kube.await.unwrap().unwrap();
    assert_eq!(
        server.connections.load(Ordering::Relaxed),
        3,
        "one refused among them"
    );
}

#[tokio::test]
async fn refusals_of_the_own_credentials_are_counted_from_the_first_and_ring() {
    let mut server = Server::start().await;
    let api = Api::connect(&server.config, Purpose::Writes, None).unwrap();
    let anonymous = Api::connect_anonymous(&server.config, Purpose::Writes, None).unwrap();
    let bell = Arc::new(tokio::sync::Notify::new());
    api.ring_at_refusal(Arc::clone(&bell));
    let mut ask = async |api: &Api, code: u16| {
        let api = api.clone();
        let sent = tokio::spawn(async move { api.send(Request::get("/x")).await });
        server.asked().await.answer(code, "text/plain", Vec::new());
        let _answer = sent.await.unwrap();
    };
    ask(&anonymous, 401).await;
    assert!(
        anonymous.refusals().is_none(),
        "that was the request's own token"
    );
    ask(&api, 403).await;
    assert!(api.refusals().is_none());
    ask(&api, 401).await;
    tokio::time::timeout(Duration::from_secs(5), bell.notified())
        .await
        .unwrap();
    let first = api.refusals().unwrap();
    ask(&api, 401).await;
    let second = api.refusals().unwrap();
    assert!(second.first == first.first && second.last > first.last);
    assert!(second.why.contains("401"), "{}", second.why);
    ask(&api, 200).await;
    assert!(api.refusals().is_none());
    drop(server);
    let _refused = api.send(Request::get("/x")).await.unwrap_err();
    assert!(
        api.refusals().is_none(),
        "a server that is away says nothing of credentials"
    );
}

/// A proxy of one connection after the other; returns what it was asked for before the tunnel.
async fn tunnel(socks: bool) -> (std::net::SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let note = Arc::clone(&seen);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let target = match socks {
                true => {
                    let mut greeting = [0; 3];
                    client.read_exact(&mut greeting).await.unwrap();
                    client.write_all(&[5, 0]).await.unwrap();
                    let mut request = [0; 10];
                    client.read_exact(&mut request).await.unwrap();
                    client
                        .write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0])
                        .await
                        .unwrap();
                    let port = u16::from_be_bytes([request[8], request[9]]);
                    let target = format!("127.0.0.1:{port}");
                    note.lock().unwrap().push(format!("socks5 {target}"));
                    target
                }
                false => {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        head.push(client.read_u8().await.unwrap());
                    }
                    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
                    let head = String::from_utf8(head).unwrap();
                    let target = head.split(' ').nth(1).unwrap().to_owned();
                    note.lock().unwrap().push(head);
                    target
                }
            };
            let mut server = tokio::net::TcpStream::connect(target).await.unwrap();
            tokio::spawn(async move {
                let _ended = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    (address, seen)
}

#[tokio::test]
async fn a_server_is_reached_through_a_proxy_by_connect_and_by_socks5() {
    for (scheme, wanted) in [
        ("http", "CONNECT 127.0.0.1:"),
        ("socks5", "socks5 127.0.0.1:"),
    ] {
        let mut server = Server::start().await;
        let (address, seen) = tunnel(scheme == "socks5").await;
        let mut config = server.config.clone();
        let user = if scheme == "http" { "u:p@" } else { "" };
        config.proxy_url = Some(format!("{scheme}://{user}{address}").parse().unwrap());
        let api = Api::connect(&config, Purpose::Writes, None).unwrap();
        let sent = tokio::spawn(async move { api.send(Request::get("/x")).await });
        server.asked().await.answer(200, "text/plain", Vec::new());
        sent.await.unwrap().unwrap();
        let seen = seen.lock().unwrap();
        assert!(seen[0].starts_with(wanted), "{seen:?}");
        if scheme == "http" {
            assert!(
                seen[0].contains("\r\nProxy-Authorization: Basic dTpw\r\n"),
                "{seen:?}"
            );
        }
    }
}
