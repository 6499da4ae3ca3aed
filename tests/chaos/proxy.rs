//! HTTP between replicas and the API server, with TLS ended here: the one way to hold up watches and nothing else.
//!
//! Towards the API server it is the manager itself: with its client certificate, or without one where the request brings a
//! token of its own.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use harness::ControlPlane;
use harness::certificates::Identity;
use http::{Request, Response, Uri, Version, header};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

type Forward = Client<HttpsConnector<HttpConnector>, Incoming>;
type Body = StreamBody<BoxStream<'static, Result<Frame<Bytes>, hyper::Error>>>;

pub(super) fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>> {
    rustls_pemfile::certs(&mut pem.as_bytes())
        .collect::<Result<_, _>>()
        .context("a certificate in PEM")
}

pub(super) fn key(pem: &str) -> Result<PrivateKeyDer<'static>> {
    rustls_pemfile::private_key(&mut pem.as_bytes())?.context("a key in PEM")
}

pub(super) fn roots(pem: &str) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem)? {
        roots.add(certificate)?;
    }
    Ok(roots)
}

fn server_config(identity: &Identity, protocols: &[&str]) -> Result<Arc<ServerConfig>> {
    let mut config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(certificates(&identity.certificate)?, key(&identity.key)?)?;
    config.alpn_protocols = protocols
        .iter()
        .map(|name| name.as_bytes().to_vec())
        .collect();
    Ok(Arc::new(config))
}

fn forward(authority: &str, identity: Option<&Identity>) -> Result<Forward> {
    let config = ClientConfig::builder().with_root_certificates(roots(authority)?);
    let config = match identity {
        Some(identity) => config
            .with_client_auth_cert(certificates(&identity.certificate)?, key(&identity.key)?)?,
        None => config.with_no_client_auth(),
    };
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(config)
        .https_only()
        .enable_http2()
        .build();
    Ok(Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build(connector))
}

/// A reverse proxy of one replica.
#[derive(Debug)]
pub(super) struct Proxy {
    port: u16,
    frozen: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Proxy {
    pub(super) async fn start(control_plane: &ControlPlane) -> Result<Self> {
        let authority = control_plane.authority();
        let manager = authority.client("system:kube-controller-manager", None)?;
        let own = forward(authority.certificate(), Some(&manager))?;
        let with_token = forward(authority.certificate(), None)?;
        let config = server_config(&authority.server("chaos-proxy", &["localhost"])?, &["h2"])?;
        let server: Uri = control_plane.url().parse()?;
        let host = server
            .authority()
            .context("the server's address")?
            .to_string();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let frozen = watch::Sender::new(false);
        let freezes = frozen.subscribe();
        let task = tokio::spawn(serve(listener, config, move |request| {
            let to = if request.headers().contains_key(header::AUTHORIZATION) {
                with_token.clone()
            } else {
                own.clone()
            };
            pass(request, to, host.clone(), freezes.clone())
        }));
        Ok(Self { port, frozen, task })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Watches bring nothing any more; everything else goes on.
    pub(super) fn freeze_watches(&self, frozen: bool) {
        self.frozen.send_replace(frozen);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve<F, A>(listener: TcpListener, config: Arc<ServerConfig>, answer: F)
where
    F: Fn(Request<Incoming>) -> A + Clone + Send + 'static,
    A: Future<Output = Result<Response<Body>, hyper_util::client::legacy::Error>> + Send + 'static,
{
    let acceptor = TlsAcceptor::from(config);
    loop {
        let Ok((tcp, _)) = listener.accept().await else {
            continue;
        };
        let (acceptor, answer) = (acceptor.clone(), answer.clone());
        tokio::spawn(async move {
            let _ = tcp.set_nodelay(true);
            // Whoever goes away in the middle of it is no fault of ours.
            if let Ok(tls) = acceptor.accept(tcp).await {
                let mut server = auto::Builder::new(TokioExecutor::new());
                server.http2().max_concurrent_streams(1000);
                let service = service_fn(answer);
                let _ = server.serve_connection(TokioIo::new(tls), service).await;
            }
        });
    }
}

async fn pass(
    mut request: Request<Incoming>,
    to: Forward,
    host: String,
    frozen: watch::Receiver<bool>,
) -> Result<Response<Body>, hyper_util::client::legacy::Error> {
    let path = request
        .uri()
        .path_and_query()
        .map_or("/", http::uri::PathAndQuery::as_str)
        .to_owned();
    let is_watch = path.contains("watch=true") || path.contains("watch=1");
    if let Ok(uri) = format!("https://{host}{path}").parse() {
        *request.uri_mut() = uri;
    }
    request.headers_mut().remove(header::HOST);
    *request.version_mut() = Version::HTTP_2;
    let answer = to.request(request).await?;
    let (head, body) = answer.into_parts();
    let frames = stream::unfold((body, frozen), move |(mut body, mut frozen)| async move {
        let frame = body.frame().await?;
        if is_watch && frozen.wait_for(|frozen| !*frozen).await.is_err() {
            return None;
        }
        Some((frame, (body, frozen)))
    });
    Ok(Response::from_parts(head, StreamBody::new(frames.boxed())))
}

/// An admission webhook that takes its time.
#[derive(Debug)]
pub(super) struct Webhook {
    port: u16,
    task: JoinHandle<()>,
}

impl Webhook {
    pub(super) async fn start(control_plane: &ControlPlane, takes: Duration) -> Result<Self> {
        let identity = control_plane
            .authority()
            .server("chaos-webhook", &["localhost"])?;
        let config = server_config(&identity, &["h2", "http/1.1"])?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let task = tokio::spawn(serve(listener, config, move |request| async move {
            let review: Value = match request.into_body().collect().await {
                Ok(body) => serde_json::from_slice(&body.to_bytes()).unwrap_or_default(),
                Err(_) => Value::Null,
            };
            tokio::time::sleep(takes).await;
            let answer = json!({
                "apiVersion": "admission.k8s.io/v1",
                "kind": "AdmissionReview",
                "response": {"uid": review["request"]["uid"], "allowed": true},
            });
            let body = Full::new(Bytes::from(answer.to_string()));
            let frames = body.into_data_stream().map(|data| match data {
                Ok(data) => Ok(Frame::data(data)),
                Err(never) => match never {},
            });
            let mut response = Response::new(StreamBody::new(frames.boxed()));
            response.headers_mut().insert(
                header::CONTENT_TYPE,
                header::HeaderValue::from_static("application/json"),
            );
            Ok(response)
        }));
        Ok(Self { port, task })
    }

    /// What makes the API server ask it for every pod.
    pub(super) fn configuration(&self, authority: &str) -> Value {
        use base64::Engine as _;
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "chaos"},
            "webhooks": [{
                "name": "pods.chaos.manifold.dev",
                "clientConfig": {
                    "url": format!("https://127.0.0.1:{}/", self.port),
                    "caBundle": base64::engine::general_purpose::STANDARD.encode(authority),
                },
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Fail",
                "timeoutSeconds": 20,
            }],
        })
    }
}

impl Drop for Webhook {
    fn drop(&mut self) {
        self.task.abort();
    }
}
