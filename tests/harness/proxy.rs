//! HTTP between replicas and the API server, with TLS ended here: the one way to hold up watches and nothing
//! else, or calls and not what watches bring.
//!
//! Towards the API server it is the manager itself: with its client certificate, or without one where the
//! request brings a token of its own.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use http::{Request, Response, Uri, Version, header};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

use crate::certificates::Identity;
use crate::control_plane::ControlPlane;

type Forward = Client<HttpsConnector<HttpConnector>, Incoming>;
/// What a server here answers with.
pub type Body = StreamBody<BoxStream<'static, Result<Frame<Bytes>, hyper::Error>>>;

/// The certificates in a text.
pub fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .context("a certificate in PEM")
}

/// The private key in a text.
pub fn key(pem: &str) -> Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).context("a key in PEM")
}

/// Trusts these certificates and no others.
pub fn roots(pem: &str) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem)? {
        roots.add(certificate)?;
    }
    Ok(roots)
}

/// A server with this identity that speaks these protocols, and asks for no certificate.
pub fn server_config(identity: &Identity, protocols: &[&str]) -> Result<Arc<ServerConfig>> {
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
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    // Else a body waits 40 ms for the acknowledgement of its head.
    tcp.set_nodelay(true);
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(config)
        .https_only()
        .enable_http2()
        .wrap_connector(tcp);
    Ok(Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build(connector))
}

/// Frames of one watch that are late at once; the server waits for more.
const LATE_MAX: usize = 1024;

/// The ending of the paths whose watches bring nothing, if any.
type Frozen = Option<&'static str>;

/// A reverse proxy of one replica. Dropping it ends it.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    frozen: watch::Sender<Frozen>,
    delay: watch::Sender<Duration>,
    late: watch::Sender<Duration>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Passes everything on at once.
    pub async fn start(control_plane: &ControlPlane) -> Result<Self> {
        let authority = control_plane.authority();
        let manager = authority.client("system:kube-controller-manager", None)?;
        let own = forward(authority.certificate(), Some(&manager))?;
        let with_token = forward(authority.certificate(), None)?;
        let config = server_config(&authority.server("test-proxy", &["localhost"])?, &["h2"])?;
        let server: Uri = control_plane.url().parse()?;
        let host = server
            .authority()
            .context("the server's address")?
            .to_string();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let frozen = watch::Sender::new(None);
        let freezes = frozen.subscribe();
        let delay = watch::Sender::new(Duration::ZERO);
        let delays = delay.subscribe();
        let late = watch::Sender::new(Duration::ZERO);
        let lates = late.subscribe();
        let task = tokio::spawn(serve(listener, config, move |request| {
            let to = if request.headers().contains_key(header::AUTHORIZATION) {
                with_token.clone()
            } else {
                own.clone()
            };
            let (host, freezes, takes) = (host.clone(), freezes.clone(), *delays.borrow());
            let lates = lates.clone();
            async move {
                if !takes.is_zero() {
                    tokio::time::sleep(takes).await;
                }
                pass(request, to, host, (freezes, lates)).await
            }
        }));
        Ok(Self {
            port,
            frozen,
            delay,
            late,
            task,
        })
    }

    /// Where it listens on loopback.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Watches bring nothing any more; everything else continues.
    pub fn freeze_watches(&self, frozen: bool) {
        self.freeze(frozen.then_some(""));
    }

    /// Watches of this resource bring nothing any more, as in `/pods`; none thaws them all.
    pub fn freeze(&self, resource: Option<&'static str>) {
        self.frozen.send_replace(resource);
    }

    /// Every call is sent on so much later; what a watch brings, once it is open, is not held up.
    pub fn delay_calls(&self, delay: Duration) {
        self.delay.send_replace(delay);
    }

    /// All that a watch brings is so much later, in its order.
    pub fn delay_watches(&self, delay: Duration) {
        self.late.send_replace(delay);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Serves until it is dropped.
pub async fn serve<F, A>(listener: TcpListener, config: Arc<ServerConfig>, answer: F)
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
            // One that goes away in the middle of it is no fault of ours.
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
    (frozen, lates): (watch::Receiver<Frozen>, watch::Receiver<Duration>),
) -> Result<Response<Body>, hyper_util::client::legacy::Error> {
    let path = request
        .uri()
        .path_and_query()
        .map_or("/", http::uri::PathAndQuery::as_str)
        .to_owned();
    let is_watch = path.contains("watch=true") || path.contains("watch=1");
    let resource = request.uri().path().to_owned();
    if let Ok(uri) = format!("https://{host}{path}").parse() {
        *request.uri_mut() = uri;
    }
    request.headers_mut().remove(header::HOST);
    *request.version_mut() = Version::HTTP_2;
    let answer = to.request(request).await?;
    let (head, body) = answer.into_parts();
    let start = (body, frozen, resource);
    let frames = stream::unfold(start, move |(mut body, mut frozen, resource)| async move {
        let frame = body.frame().await?;
        let flows = |frozen: &Frozen| !frozen.is_some_and(|ending| resource.ends_with(ending));
        if is_watch && frozen.wait_for(flows).await.is_err() {
            return None;
        }
        Some((frame, (body, frozen, resource)))
    });
    if !is_watch {
        return Ok(Response::from_parts(head, StreamBody::new(frames.boxed())));
    }
    let frames = frames.map(move |frame| {
        let (since, late) = (Instant::now(), *lates.borrow());
        async move {
            // The clock of timers is a coarse one.
            if !late.is_zero() {
                tokio::time::sleep_until(since + late).await;
            }
            frame
        }
    });
    let frames = frames.buffered(LATE_MAX).boxed();
    Ok(Response::from_parts(head, StreamBody::new(frames)))
}
