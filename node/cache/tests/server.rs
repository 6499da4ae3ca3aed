//! An API server of the test: every request is handed to the test, which answers it.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::channel::mpsc as stream;
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kubernetes_proto::{
    Object, Shared, Str,
    core::{Pod, PodStatus},
    envelope,
    meta::{self, Entry, ObjectMeta, OwnerReference},
};
use prost::Message as _;
use tokio::sync::{mpsc, oneshot};

type Answer = http::Response<BoxBody<Bytes, std::io::Error>>;

/// No test waits longer for anything.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

pub(super) struct Server {
    pub(super) config: kube::Config,
    asked: mpsc::UnboundedReceiver<Asked>,
    /// Connections so far.
    pub(super) connections: Arc<AtomicUsize>,
    listening: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

/// A request that waits for its answer.
pub(super) struct Asked {
    pub(super) head: http::request::Parts,
    pub(super) body: Bytes,
    answer: oneshot::Sender<Answer>,
}

impl Server {
    pub(super) async fn start() -> Self {
        Self::speaking("h2").await
    }

    /// With this protocol alone.
    pub(super) async fn speaking(protocol: &str) -> Self {
        Self::of(protocol, false).await
    }

    /// As the API server does it, a connection ends with the answer to a request that says nothing of who
    /// asks.
    pub(super) async fn wary() -> Self {
        Self::of("h2", true).await
    }

    async fn of(protocol: &str, wary: bool) -> Self {
        let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
        let certificate = made.cert.der().clone();
        let key =
            rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let mut tls = rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], key)
            .unwrap();
        tls.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (ask, asked) = mpsc::unbounded_channel();
        let connections = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connections);
        let listening = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((tcp, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                let (acceptor, ask) = (acceptor.clone(), ask.clone());
                connections.spawn(async move {
                    let Ok(tls) = acceptor.accept(tcp).await else {
                        return;
                    };
                    let ends = Arc::new(tokio::sync::Notify::new());
                    let end = Arc::clone(&ends);
                    let service = hyper::service::service_fn(move |request| {
                        if wary && !http::Request::headers(&request).contains_key("authorization") {
                            end.notify_one();
                        }
                        let ask = ask.clone();
                        async move { hand_over(request, &ask).await }
                    });
                    let builder =
                        hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    let mut serving =
                        std::pin::pin!(builder.serve_connection(TokioIo::new(tls), service));
                    // A connection that a test breaks off is no failure.
                    tokio::select! {
                        _ = &mut serving => {}
                        () = ends.notified() => {
                            serving.as_mut().graceful_shutdown();
                            let _ = serving.await;
                        }
                    }
                });
            }
        });
        let mut config = kube::Config::new(format!("https://{address}").parse().unwrap());
        config.root_cert = Some(vec![certificate.to_vec()]);
        Self {
            config,
            asked,
            connections,
            listening,
        }
    }

    /// The next request.
    pub(super) async fn asked(&mut self) -> Asked {
        tokio::time::timeout(PATIENCE, self.asked.recv())
            .await
            .expect("a request was expected")
            .expect("the server listens")
    }
}

async fn hand_over(
    request: http::Request<hyper::body::Incoming>,
    ask: &mpsc::UnboundedSender<Asked>,
) -> Result<Answer, std::io::Error> {
    let (head, body) = request.into_parts();
    if head.uri.path() == "/version" {
        // What goes ahead on a new connection.
        let body = Full::new(Bytes::new()).map_err(|never: Infallible| match never {});
        return Ok(http::Response::new(body.boxed()));
    }
    let body = body
        .collect()
        .await
        .map_err(std::io::Error::other)?
        .to_bytes();
    let (answer, answered) = oneshot::channel();
    let _ = ask.send(Asked { head, body, answer });
    answered
        .await
        .map_err(|_| std::io::Error::other("the test gives no answer"))
}

impl Asked {
    pub(super) fn path(&self) -> &str {
        self.head.uri.path()
    }

    /// A parameter of the query; empty if it is missing.
    pub(super) fn parameter(&self, name: &str) -> String {
        self.head
            .uri
            .query()
            .unwrap_or_default()
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value.to_owned())
            .unwrap_or_default()
    }

    pub(super) fn streams_a_list(&self) -> bool {
        self.parameter("sendInitialEvents") == "true"
    }

    pub(super) fn answer(self, code: u16, content_type: &str, body: impl Into<Bytes>) {
        let body = Full::new(body.into())
            .map_err(|never: Infallible| match never {})
            .boxed();
        let answer = http::Response::builder()
            .status(code)
            .header("content-type", content_type)
            .body(body)
            .unwrap();
        let _ = self.answer.send(answer);
    }

    pub(super) fn refuse(self, code: u16, reason: &str, message: &str) {
        let body = serde_json::json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                                      "code": code, "reason": reason, "message": message});
        self.answer(code, "application/json", body.to_string());
    }

    pub(super) fn list(self, version: &str, token: &str, pods: &[Vec<u8>]) {
        let list = meta::List {
            metadata: Some(meta::ListMeta {
                resource_version: version.to_owned(),
                r#continue: token.to_owned(),
                remaining_item_count: None,
            }),
            items: pods.to_vec(),
        };
        let body = envelope::wrap("v1", "PodList", list.encode_to_vec());
        self.answer(200, envelope::PROTOBUF, body);
    }

    /// Opens the watch that was asked for.
    pub(super) fn open(self) -> Watch {
        let (frames, receiver) = stream::unbounded();
        let answer = http::Response::builder()
            .header(
                "content-type",
                "application/vnd.kubernetes.protobuf;stream=watch",
            )
            .body(BodyExt::boxed(StreamBody::new(receiver)))
            .unwrap();
        let _ = self.answer.send(answer);
        Watch { frames }
    }
}

/// An open watch; dropped, it ends in good order.
pub(super) struct Watch {
    frames: stream::UnboundedSender<Result<Frame<Bytes>, std::io::Error>>,
}

impl Watch {
    pub(super) fn bytes(&self, bytes: Vec<u8>) {
        let _ = self.frames.unbounded_send(Ok(Frame::data(bytes.into())));
    }

    pub(super) fn frame(&self, frame: &[u8]) {
        let mut bytes = u32::try_from(frame.len()).unwrap().to_be_bytes().to_vec();
        bytes.extend_from_slice(frame);
        self.bytes(bytes);
    }

    /// An event with the message of an object.
    pub(super) fn event(&self, kind: &str, raw: Vec<u8>) {
        self.frame(&envelope::watch_frame(
            kind,
            envelope::wrap("v1", "Pod", raw),
        ));
    }

    pub(super) fn bookmark(&self, version: u64, ends_list: bool) {
        let mut metadata = ObjectMeta {
            resource_version: version,
            ..ObjectMeta::default()
        };
        if ends_list {
            metadata.set_annotation(envelope::INITIAL_EVENTS_END, "true");
        }
        let bookmark = meta::PartialObjectMetadata {
            metadata: Some(metadata),
        };
        self.event("BOOKMARK", bookmark.encode_to_vec());
    }

    pub(super) fn error(&self, code: i32, reason: &str) {
        let status = meta::Status {
            status: "Failure".into(),
            message: format!("said the server: {reason}"),
            reason: reason.into(),
            details: None,
            code,
        };
        let body = envelope::wrap("v1", "Status", status.encode_to_vec());
        self.frame(&envelope::watch_frame("ERROR", body));
    }

    pub(super) fn break_off(&self) {
        let _ = self
            .frames
            .unbounded_send(Err(std::io::Error::other("broken off by the test")));
    }
}

/// A pod of the namespace `shop`.
pub(super) fn pod(name: &str, uid: &str, version: u64, owner: &str) -> Pod {
    let owner_references = if owner.is_empty() {
        Vec::new()
    } else {
        vec![Shared::from(OwnerReference {
            api_version: "apps/v1".into(),
            kind: "ReplicaSet".into(),
            name: "web".into(),
            uid: owner.into(),
            controller: Some(true),
            block_owner_deletion: None,
        })]
    };
    Pod {
        metadata: Some(ObjectMeta {
            name: name.into(),
            namespace: Str::from("shop"),
            uid: uid.into(),
            resource_version: version,
            labels: vec![Entry {
                key: "app".into(),
                value: "web".into(),
            }],
            owner_references,
            ..ObjectMeta::default()
        }),
        status: Some(PodStatus {
            phase: "Running".into(),
            ..PodStatus::default()
        }),
        ..Pod::default()
    }
}

pub(super) fn raw(pod: &Pod) -> Vec<u8> {
    debug_assert_eq!(Pod::resource().kind, "Pod");
    pod.encode_to_vec()
}
