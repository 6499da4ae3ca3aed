//! The secure port: health, metrics, configuration, and what goes on inside.
//!
//! It listens before anything is owned, so that probes and scrapes see a replica from its first second. Every request
//! passes [`Auth`]; connections, headers, bodies and times are bounded.

mod health;
mod tls;

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, Path, Query, Request, State},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{any, get, post},
};
use futures::future::BoxFuture;
use http::{HeaderValue, Method, StatusCode, header};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use rustls::pki_types::CertificateDer;
use serde::Serialize;
use serde_json::Value;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::Service;

pub use health::{Check, Health, Kind};

use crate::{
    auth::{Asked, Auth, Refused},
    metrics::{self, Metrics},
    options::{Options, ServingOptions},
    telemetry::Verbosity,
};

/// Connections at once; further ones wait in the kernel's queue. A scraper, some probes and a few operators need ten.
const CONNECTIONS_MAX: usize = 256;

/// Connections that the kernel keeps waiting.
const BACKLOG: u32 = 128;

/// How long a TLS handshake, and the headers of a request, may take.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
const HEADERS_MAX: Duration = Duration::from_secs(10);

/// Bytes of headers, and how many: what a bearer token and a proxy's headers need, ten times over.
const HEADER_BYTES_MAX: usize = 64 * 1024;
const HEADER_COUNT_MAX: usize = 128;

/// Bytes of a body: `/debug/flags/v` takes a number, nothing else takes any.
const BODY_MAX: usize = 1024;

/// How long an answer may take; the API server has to be asked for some.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Quiet HTTP/2 connections are asked for a sign of life.
const PING_EVERY: Duration = Duration::from_secs(30);

/// How long open connections may go on at the end.
const GOODBYE_MAX: Duration = Duration::from_secs(2);

/// Why the port can't be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A certificate or key.
    #[error(
        "{path}: {why}: check --tls-cert-file, --tls-private-key-file, --tls-sni-cert-key and --cert-dir"
    )]
    File {
        /// The file.
        path: String,
        /// What is wrong.
        why: String,
    },
    /// The combination of TLS flags.
    #[error("TLS can't be set up: {0}: check the --tls-* flags")]
    Tls(String),
    /// The address.
    #[error(
        "can't listen on {address}: {why}: choose another --secure-port or --bind-address, or end what listens there"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What is wrong.
        why: io::Error,
    },
}

/// What goes on inside, as `/debug/shards` and `/debug/explain` tell it.
pub trait Debug: Send + Sync + 'static {
    /// Members, ranges, epochs, queue depths.
    fn shards(&self) -> Value;
    /// Owner, queue state, last attempts, next retry, last plan, trace of one key.
    fn explain(&self, controller: String, key: String)
    -> BoxFuture<'static, Result<Value, String>>;
    /// Hands a range that is held here over to another replica; says what was begun.
    fn move_range(&self, range: u16, to: String) -> BoxFuture<'static, Result<Value, String>>;
}

/// What the answers are made from.
#[derive(Clone)]
pub struct Sources {
    /// For `/metrics`.
    pub metrics: Arc<Metrics>,
    /// For `/healthz` and its like.
    pub health: Arc<Health>,
    /// For `/configz`, `/flagz`.
    pub options: Arc<Options>,
    /// For `/debug/flags/v`.
    pub verbosity: Arc<Verbosity>,
    /// For `/debug/shards`, `/debug/explain`.
    pub debug: Arc<dyn Debug>,
    /// Who may ask.
    pub auth: Arc<Auth>,
}

/// A port that listens; [`Server::serve`] answers.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    certificates: Arc<tls::Certificates>,
    options: ServingOptions,
}

/// What a connection has shown of its client.
#[derive(Clone, Debug, Default)]
struct ClientCertificates(Arc<Vec<CertificateDer<'static>>>);

impl Server {
    /// Listens. From here on connections are accepted by the kernel, and answered once [`Server::serve`] runs.
    ///
    /// # Errors
    /// An address or a certificate that can't be used.
    pub fn bind(options: &ServingOptions) -> Result<Self, Error> {
        let certificates = tls::Certificates::load(options)?;
        let listener = listen(options).map_err(|why| Error::Listen {
            address: options.address,
            why,
        })?;
        Ok(Self {
            listener,
            certificates,
            options: options.clone(),
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// Those of the system.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers until told to stop, then lets open requests end for two seconds.
    ///
    /// # Errors
    /// TLS flags that don't go together.
    pub async fn serve(self, sources: Sources, stop: CancellationToken) -> Result<(), Error> {
        let acceptor = TlsAcceptor::from(self.certificates.config()?);
        let fresh = [
            tokio::spawn(self.certificates.clone().keep_fresh()),
            tokio::spawn(sources.auth.clone().keep_fresh()),
        ];
        let protocol = protocol(&self.options);
        let router = router(sources);
        let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let open = TaskTracker::new();
        loop {
            // The permit comes first, so that connections beyond the bound stay with the kernel.
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = next(&self.listener, &room) => accepted,
            };
            let Some((stream, permit)) = accepted else {
                continue;
            };
            let connection = connection(
                stream,
                acceptor.clone(),
                protocol.clone(),
                router.clone(),
                stop.clone(),
            );
            open.spawn(async move {
                connection.await;
                drop(permit);
            });
        }
        drop(self.listener);
        open.close();
        if tokio::time::timeout(GOODBYE_MAX, open.wait())
            .await
            .is_err()
        {
            tracing::debug!("some connections did not end in time");
        }
        fresh.iter().for_each(tokio::task::JoinHandle::abort);
        Ok(())
    }
}

/// A socket; an unspecified address means both families, as in Go.
fn listen(options: &ServingOptions) -> io::Result<TcpListener> {
    let open = |address: SocketAddr| -> io::Result<TcpListener> {
        let socket = match address.is_ipv4() {
            true => TcpSocket::new_v4()?,
            false => TcpSocket::new_v6()?,
        };
        // Go sets it always; --permit-address-sharing has no more to say on Linux.
        socket.set_reuseaddr(true)?;
        socket.set_reuseport(options.port_sharing)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    let address = options.address;
    if address.ip().is_unspecified() {
        let both = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), address.port());
        match open(both) {
            Ok(listener) => return Ok(listener),
            Err(why) if why.kind() == io::ErrorKind::AddrInUse => return Err(why),
            // No IPv6 here.
            Err(_) => {}
        }
    }
    open(address)
}

async fn next(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    /// Out of file descriptors, most likely: pause, or the loop spins.
    const PAUSE: Duration = Duration::from_millis(100);
    let permit = room.clone().acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => Some((stream, permit)),
        Err(why) => {
            tracing::warn!(%why, "a connection could not be accepted");
            tokio::time::sleep(PAUSE).await;
            None
        }
    }
}

fn protocol(options: &ServingOptions) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_MAX)
        .max_buf_size(HEADER_BYTES_MAX)
        .max_headers(HEADER_COUNT_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(HANDSHAKE_MAX)
        .max_header_list_size(HEADER_BYTES_MAX as u32)
        .max_concurrent_streams(options.http2_streams_max);
    builder
}

async fn connection(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    protocol: auto::Builder<TokioExecutor>,
    router: Router,
    stop: CancellationToken,
) {
    let stream = match tokio::time::timeout(HANDSHAKE_MAX, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        // As common as port scanners.
        Ok(Err(why)) => return tracing::debug!(%why, "TLS handshake failed"),
        Err(_) => return tracing::debug!("TLS handshake took too long"),
    };
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let certificates = certificates
        .iter()
        .map(|one| one.clone().into_owned())
        .collect();
    let certificates = ClientCertificates(Arc::new(certificates));
    let service =
        hyper::service::service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(certificates.clone());
            router.clone().call(request)
        });
    let serving = protocol.serve_connection(TokioIo::new(stream), service);
    let mut serving = std::pin::pin!(serving);
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        () = stop.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(why) = ended {
        tracing::debug!(%why, "a connection ended");
    }
}

fn router(sources: Sources) -> Router {
    let sources = Arc::new(sources);
    let mut router = Router::new();
    for kind in [Kind::Healthz, Kind::Livez, Kind::Readyz] {
        let path = format!("/{}", kind.name());
        router = router
            .route(
                &path,
                get(move |state, query| health_of(kind, state, query)),
            )
            .route(
                &format!("{path}/{{check}}"),
                get(move |state, name| health_check(kind, state, name)),
            );
    }
    router
        .route("/metrics", get(serve_metrics))
        .route("/metrics/slis", get(serve_slis))
        .route("/configz", get(configz))
        .route("/statusz", get(statusz))
        .route("/flagz", get(flagz))
        .route("/debug/flags/v", any(verbosity))
        .route("/debug/shards", get(shards))
        .route("/debug/explain", get(explain))
        .route("/debug/move", post(move_range))
        .route("/debug/pprof", any(pprof))
        .route("/debug/pprof/", any(pprof))
        .route("/debug/pprof/{*what}", any(pprof))
        .fallback(not_found)
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .layer(middleware::from_fn_with_state(sources.clone(), guard))
        .with_state(sources)
}

/// Before and after every answer: who asks, how long it takes, and the headers that all answers bear.
async fn guard(State(sources): State<Arc<Sources>>, request: Request, next: Next) -> Response {
    let pretty = wants_pretty(&request);
    let answer = async {
        let asked = Asked {
            method: request.method(),
            path: request.uri().path(),
            headers: request.headers(),
            certificates: &request
                .extensions()
                .get::<ClientCertificates>()
                .cloned()
                .unwrap_or_default()
                .0,
        };
        match sources.auth.check(&asked).await {
            Ok(_) => next.run(request).await,
            Err(refused) => refusal(refused, request.uri().path(), pretty),
        }
    };
    let mut response = match tokio::time::timeout(ANSWER_MAX, answer).await {
        Ok(response) => response,
        Err(_) => plain(
            StatusCode::GATEWAY_TIMEOUT,
            format!("no answer within {}s\n", ANSWER_MAX.as_secs()),
        ),
    };
    let headers = response.headers_mut();
    headers.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("no-cache, private"),
    );
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    response
}

/// Upstream indents for people.
fn wants_pretty(request: &Request) -> bool {
    let agent = request
        .headers()
        .get(header::USER_AGENT)
        .and_then(|agent| agent.to_str().ok())
        .unwrap_or_default();
    ["curl/", "Wget/", "Mozilla/5.0"]
        .iter()
        .any(|start| agent.starts_with(start))
}

/// The API's Status, its fields in upstream's order.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Status<'a> {
    kind: &'a str,
    api_version: &'a str,
    metadata: Nothing,
    status: &'a str,
    message: &'a str,
    reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Nothing>,
    code: u16,
}

#[derive(Serialize)]
struct Nothing {}

fn refusal(refused: Refused, path: &str, pretty: bool) -> Response {
    let status = |code: StatusCode, reason: &str, message: &str, details: bool| {
        let object = Status {
            kind: "Status",
            api_version: "v1",
            metadata: Nothing {},
            status: "Failure",
            message,
            reason,
            details: details.then_some(Nothing {}),
            code: code.as_u16(),
        };
        let text = match pretty {
            true => serde_json::to_string_pretty(&object),
            false => serde_json::to_string(&object).map(|text| text + "\n"),
        };
        let kind = [(header::CONTENT_TYPE, "application/json")];
        (code, kind, text.unwrap_or_default()).into_response()
    };
    match refused {
        Refused::Unauthorized(why) => {
            tracing::info!(path, why, "unable to authenticate the request");
            status(
                StatusCode::UNAUTHORIZED,
                "Unauthorized",
                "Unauthorized",
                false,
            )
        }
        Refused::Forbidden(message) => {
            tracing::debug!(path, message, "forbidden");
            status(StatusCode::FORBIDDEN, "Forbidden", &message, true)
        }
        Refused::Broken(why) => {
            tracing::warn!(
                path,
                why,
                "nobody could be asked whether the request is allowed"
            );
            plain(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("Internal Server Error: {path:?}: {why}\n"),
            )
        }
    }
}

fn plain(code: StatusCode, text: impl Into<String>) -> Response {
    (
        code,
        [(header::CONTENT_TYPE, "text/plain; charset=utf-8")],
        text.into(),
    )
        .into_response()
}

fn json_text(value: &Value) -> Response {
    (
        [(header::CONTENT_TYPE, "application/json")],
        value.to_string(),
    )
        .into_response()
}

async fn not_found() -> Response {
    plain(StatusCode::NOT_FOUND, "404 page not found\n")
}

type Shared = State<Arc<Sources>>;

/// `verbose`, `exclude=a&exclude=b`.
type Pairs = Query<Vec<(String, String)>>;

async fn health_of(kind: Kind, State(sources): Shared, Query(query): Pairs) -> Response {
    let verbose = query.iter().any(|(name, _)| name == "verbose");
    let excluded: Vec<String> = query
        .into_iter()
        .filter(|(name, _)| name == "exclude")
        .map(|(_, value)| value)
        .collect();
    let (code, text) = sources.health.all(kind, verbose, &excluded);
    plain(code, text)
}

async fn health_check(kind: Kind, State(sources): Shared, Path(name): Path<String>) -> Response {
    match sources.health.one(kind, &name) {
        Some((code, text)) => plain(code, text),
        None => not_found().await,
    }
}

fn exposition(text: String) -> Response {
    let start = metrics::start_time_seconds() as u64;
    (
        [
            (header::CONTENT_TYPE, metrics::CONTENT_TYPE.to_owned()),
            (
                header::HeaderName::from_static("process-start-time-unix"),
                start.to_string(),
            ),
        ],
        text,
    )
        .into_response()
}

async fn serve_metrics(State(sources): Shared) -> Response {
    exposition(
        sources
            .metrics
            .encode_without(&sources.options.disabled_metrics),
    )
}

async fn serve_slis(State(sources): Shared) -> Response {
    exposition(sources.metrics.encode_slis())
}

async fn configz(State(sources): Shared) -> Response {
    json_text(&sources.options.configz())
}

const NOT_FOR_MACHINES: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting \
                                compatibility guarantees and is for debugging purposes only.\n";

async fn flagz(State(sources): Shared) -> Response {
    let flags = sources.options.values().flagz();
    plain(
        StatusCode::OK,
        format!("\nmanifold flagz\n{NOT_FOR_MACHINES}{flags}"),
    )
}

async fn statusz(State(sources): Shared) -> Response {
    let start = metrics::start_time_seconds();
    let started = jiff::Timestamp::from_second(start as i64).unwrap_or_default();
    let up = jiff::Timestamp::now()
        .duration_since(started)
        .as_secs()
        .max(0);
    let fleet = &sources.options.fleet;
    plain(
        StatusCode::OK,
        format!(
            "\nmanifold statusz\n{NOT_FOR_MACHINES}\n\
             Started:  {}\n\
             Up:  {} hr {:02} min {:02} sec\n\
             Binary version:  {}\n\
             Emulation version:  1.36\n\
             Replica:  {} of fleet {}\n\
             Paths:  /configz /debug/explain /debug/shards /flagz /healthz /livez /metrics /readyz\n",
            started.strftime("%a %b %e %H:%M:%S UTC %Y"),
            up / 3600,
            up / 60 % 60,
            up % 60,
            env!("CARGO_PKG_VERSION"),
            fleet.replica,
            fleet.fleet,
        ),
    )
}

async fn verbosity(State(sources): Shared, method: Method, body: Bytes) -> Response {
    if method != Method::PUT {
        return plain(StatusCode::NOT_ACCEPTABLE, "unsupported http method\n");
    }
    let text = String::from_utf8_lossy(&body);
    let text = text.trim();
    let Some(level) = text.parse::<i64>().ok().filter(|level| *level >= 0) else {
        return plain(
            StatusCode::BAD_REQUEST,
            format!("failed to set the verbosity to {text:?}: expected a whole number from 0 up\n"),
        );
    };
    match sources.verbosity.set(level) {
        Ok(()) => {
            tracing::info!(level, "the verbosity was changed");
            plain(
                StatusCode::OK,
                format!("successfully set klog.logging.verbosity to {level}"),
            )
        }
        Err(why) => plain(
            StatusCode::BAD_REQUEST,
            format!("failed to set the verbosity: {why}\n"),
        ),
    }
}

async fn shards(State(sources): Shared) -> Response {
    json_text(&sources.debug.shards())
}

async fn explain(State(sources): Shared, Query(query): Query<HashMap<String, String>>) -> Response {
    let (Some(controller), Some(key)) = (query.get("controller"), query.get("key")) else {
        return plain(
            StatusCode::BAD_REQUEST,
            "give ?controller=<name>&key=<namespace>/<name>, as in ?controller=deployment-controller&key=shop/web\n",
        );
    };
    match sources.debug.explain(controller.clone(), key.clone()).await {
        Ok(value) => json_text(&value),
        Err(why) => plain(StatusCode::NOT_FOUND, format!("{why}\n")),
    }
}

/// Changes who owns a range; whoever may `post` the path may do so.
async fn move_range(
    State(sources): Shared,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    let range = query.get("range").and_then(|range| range.parse().ok());
    let (Some(range), Some(to)) = (range, query.get("to")) else {
        return plain(
            StatusCode::BAD_REQUEST,
            "give ?range=<number>&to=<replica>, as in ?range=17&to=manifold-1\n",
        );
    };
    match sources.debug.move_range(range, to.clone()).await {
        Ok(value) => (StatusCode::ACCEPTED, json_text(&value)).into_response(),
        Err(why) => plain(StatusCode::CONFLICT, format!("{why}\n")),
    }
}

async fn pprof(State(sources): Shared) -> Response {
    if !sources.options.profiling {
        return not_found().await;
    }
    plain(
        StatusCode::NOT_IMPLEMENTED,
        "Go's profiles are not offered: this is no Go program. Use perf, or a profiler that reads DWARF.\n",
    )
}

#[cfg(test)]
mod tests;
