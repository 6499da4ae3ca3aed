//! The secure port: health, metrics, configuration, and what happens inside.
//!
//! It listens before anything is owned, so that probes and scrapes see a replica from its first second. Every
//! request passes [`Auth`]; connections, headers, bodies and times are bounded.

mod connections;
mod debug;
mod health;
mod page;
mod tls;
mod zpages;

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Body,
    extract::{DefaultBodyLimit, Extension, Path, Query, Request, State},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{any, get, post},
};
use futures::{future::BoxFuture, stream::BoxStream};
use http::{HeaderValue, StatusCode, header};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use node_options::{InForce, ServingOptions, version};
use node_telemetry::{
    Verbosity,
    metrics::{self, Metrics},
};
use rustls::pki_types::CertificateDer;
use serde::Serialize;
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::Service;

use connections::{Connections, FIRST_BYTE_MAX, HEADERS_MAX, Place};
use debug::{explain, move_range, pprof, shadow, shards, top, unhappy, verbosity};
pub use health::{Check, Health, Kind};
use page::Streams;
use zpages::Page;

use crate::auth::{Asked, Auth, Refused, Target, User};

/// How long a TLS handshake may take, and an answer to a ping.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// Bytes that are read ahead of hyper, to see whether the client says anything at all.
const FIRST_READ_BYTES: usize = 4096;

/// Bytes of headers, and how many: what a bearer token and a proxy's headers need, ten times over.
const HEADER_BYTES_MAX: usize = 64 * 1024;
const HEADER_COUNT_MAX: usize = 128;

/// Bytes of a body: `/debug/flags/v` takes a number, nothing else takes any.
const BODY_MAX: usize = 1024;

/// How long an answer may take; the API server has to be asked for some.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Quiet HTTP/2 connections are asked for a sign of life.
const PING_EVERY: Duration = Duration::from_secs(30);

/// How long open connections may continue at the end.
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

/// What happens inside, as `/debug/shards` and `/debug/explain` show it.
pub trait Debug: Send + Sync + 'static {
    /// Members, ranges, epochs, queue depths.
    fn shards(&self) -> Value;
    /// What every replica says of itself.
    fn fleet_shards(&self) -> BoxFuture<'static, Value>;
    /// Owner, queue state, last attempts, next retry, last plan, trace of one key: as this replica knows it,
    /// or its owner.
    fn explain(
        &self,
        controller: String,
        key: String,
        is_for_fleet: bool,
        rights: Arc<dyn Rights>,
    ) -> BoxFuture<'static, Result<Value, Denied>>;
    /// The same of all keys that an object concerns, by their owners.
    fn explain_object(
        &self,
        kind: String,
        namespace: String,
        name: String,
        rights: Arc<dyn Rights>,
    ) -> BoxFuture<'static, Result<Value, Denied>>;
    /// What is busy, in all replicas; keys of a namespace alone, where one is given.
    fn top(
        &self,
        namespace: String,
        rights: Arc<dyn Rights>,
    ) -> BoxFuture<'static, Result<Value, Denied>>;
    /// Keys that failed lately, in all replicas.
    fn unhappy(
        &self,
        namespace: String,
        rights: Arc<dyn Rights>,
    ) -> BoxFuture<'static, Result<Value, Denied>>;
    /// How the writes that are planned compare with those of the manager in charge, in all replicas.
    fn shadow(&self, rights: Arc<dyn Rights>) -> BoxFuture<'static, Result<Value, Denied>>;
    /// What the live page shows, as far as the caller may see it, for as long as somebody reads it. Who reads
    /// slowly gets fewer updates, and the newest.
    fn live(&self, rights: Arc<dyn Rights>) -> BoxStream<'static, Update>;
    /// Hands a range that is held here over to another replica, as `by` asks; says what was begun.
    fn move_range(
        &self,
        range: u16,
        to: String,
        by: String,
    ) -> BoxFuture<'static, Result<Value, String>>;
}

/// One event of the live page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    /// Its name: `columns`, `state` or `keys`.
    pub name: &'static str,
    /// JSON on one line.
    pub json: String,
}

/// What a caller may see.
pub trait Rights: Send + Sync + 'static {
    /// Whether the caller may do this to an object of the API.
    fn may<'a>(
        &'a self,
        verb: &'static str,
        target: &'a Target,
    ) -> BoxFuture<'a, Result<(), Refused>>;
}

/// Why a question is not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denied {
    /// There is nothing of that name, in words.
    NotFound(String),
    /// The caller may not see it.
    Refused(Refused),
}

/// The rights of the caller of one request.
struct OfCaller {
    auth: Arc<Auth>,
    caller: Caller,
}

impl OfCaller {
    fn of(sources: &Sources, caller: Caller) -> Arc<dyn Rights> {
        let auth = Arc::clone(&sources.auth);
        Arc::new(Self { auth, caller })
    }
}

impl Rights for OfCaller {
    fn may<'a>(
        &'a self,
        verb: &'static str,
        target: &'a Target,
    ) -> BoxFuture<'a, Result<(), Refused>> {
        let Caller { user, from } = &self.caller;
        Box::pin(self.auth.may(user, verb, target, *from))
    }
}

/// What the answers are made from.
#[derive(Clone)]
pub struct Sources {
    /// For `/metrics`.
    pub metrics: Arc<Metrics>,
    /// For `/healthz` and its like.
    pub health: Arc<Health>,
    /// For `/configz`, `/flagz`.
    pub options: Arc<InForce>,
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
struct Client {
    from: Option<IpAddr>,
    certificates: Arc<Vec<CertificateDer<'static>>>,
}

/// Who asks, for handlers.
#[derive(Clone, Debug)]
struct Caller {
    user: User,
    from: Option<IpAddr>,
}

impl Caller {
    /// For logs and events.
    fn describe(&self) -> String {
        let from = self
            .from
            .map_or_else(|| "an unknown address".to_owned(), |from| from.to_string());
        format!("{:?} from {from}", self.user.name)
    }
}

impl Server {
    /// Listens. From here on connections are accepted by the kernel, and answered once [`Server::serve`]
    /// runs.
    ///
    /// # Errors
    /// An address or a certificate that can't be used.
    pub fn bind(options: &ServingOptions) -> Result<Self, Error> {
        let certificates = tls::Certificates::load(options)?;
        // --permit-address-sharing changes nothing: SO_REUSEADDR is always set, as by Go.
        let listen = || {
            let listener = coordinator::listen(options.address, options.port_sharing)?;
            TcpListener::from_std(listener)
        };
        let listener = listen().map_err(|why| Error::Listen {
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

    /// Answers until stopped, then lets open requests end for two seconds.
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
        let router = router(sources, Streams::new(stop.clone()));
        let connections = Connections::new(&self.options.own_addresses);
        let open = TaskTracker::new();
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = next(&self.listener) => accepted,
            };
            let Some((stream, from)) = accepted else {
                continue;
            };
            let to = stream.local_addr().ok().map(|to| to.ip());
            // Without a place the socket closes here.
            let Some(place) = connections.enter(from, to, Instant::now()) else {
                tracing::debug!(%from, "a connection was refused: all of this address are answering");
                continue;
            };
            open.spawn(connection(
                stream,
                from,
                place,
                acceptor.clone(),
                protocol.clone(),
                router.clone(),
                stop.clone(),
            ));
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

async fn next(listener: &TcpListener) -> Option<(TcpStream, IpAddr)> {
    /// Out of file descriptors, most likely: pause, or the loop spins.
    const PAUSE: Duration = Duration::from_millis(100);
    match listener.accept().await {
        Ok((stream, from)) => Some((stream, from.ip())),
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
    from: IpAddr,
    place: Place,
    acceptor: TlsAcceptor,
    protocol: auto::Builder<TokioExecutor>,
    router: Router,
    stop: CancellationToken,
) {
    let displaced = place.connection.displaced.clone();
    tokio::select! {
        // A newcomer has the place: this one ends at once.
        () = displaced.cancelled() => {}
        () = talk(stream, from, &place, acceptor, protocol, router, stop) => {}
    }
}

/// From the TLS handshake to the end of the connection.
async fn talk(
    stream: TcpStream,
    from: IpAddr,
    place: &Place,
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
    let client = Client {
        from: Some(from.to_canonical()),
        certificates: Arc::new(certificates),
    };
    // hyper waits without end for the bytes that distinguish HTTP/1 from HTTP/2.
    let mut stream = BufReader::with_capacity(FIRST_READ_BYTES, stream);
    match tokio::time::timeout(FIRST_BYTE_MAX, stream.fill_buf()).await {
        Ok(Ok([_, ..])) => {}
        _ => return tracing::debug!(%from, "a connection ended before its first byte"),
    }
    let state = Arc::clone(&place.connection);
    let service =
        hyper::service::service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
            let answering = state.request();
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(client.clone());
            // For an answer that goes beyond its head.
            request.extensions_mut().insert(Arc::clone(&state));
            let answer = router.clone().call(request);
            async move {
                let answer = answer.await;
                drop(answering);
                answer
            }
        });
    let serving = protocol.serve_connection(TokioIo::new(stream), service);
    let mut serving = std::pin::pin!(serving);
    let idle = async {
        while let Some(end) = place.connection.ends_at(Instant::now()) {
            tokio::time::sleep_until(end.into()).await;
        }
    };
    let ended = tokio::select! {
        ended = serving.as_mut() => Some(ended),
        () = stop.cancelled() => None,
        () = idle => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            serving.as_mut().graceful_shutdown();
            match tokio::time::timeout(GOODBYE_MAX, serving).await {
                Ok(ended) => ended,
                Err(_) => return,
            }
        }
    };
    if let Err(why) = ended {
        tracing::debug!(%why, "a connection ended");
    }
}

fn router(sources: Sources, streams: Arc<Streams>) -> Router {
    let sources = Arc::new(sources);
    let mut router = Router::new();
    for kind in [Kind::Healthz, Kind::Livez, Kind::Readyz] {
        let path = format!("/{}", kind.name());
        router = router
            .route(
                &path,
                get(move |state, query, caller| health_of(kind, state, query, caller)),
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
        .route("/debug/top", get(top))
        .route("/debug/unhappy", get(unhappy))
        .route("/debug/shadow", get(shadow))
        .route("/debug/move", post(move_range))
        .merge(page::routes(streams))
        .route("/debug/pprof", any(pprof))
        .route("/debug/pprof/", any(pprof))
        .route("/debug/pprof/{*what}", any(pprof))
        .fallback(not_found)
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .layer(middleware::from_fn_with_state(sources.clone(), guard))
        .with_state(sources)
}

/// Before and after every answer: who asks, how long it takes, and the headers that all answers bear.
async fn guard(State(sources): State<Arc<Sources>>, mut request: Request, next: Next) -> Response {
    let pretty = wants_pretty(&request);
    let answer = async {
        let client = request
            .extensions()
            .get::<Client>()
            .cloned()
            .unwrap_or_default();
        let asked = Asked {
            method: request.method(),
            path: request.uri().path(),
            headers: request.headers(),
            from: client.from,
            certificates: &client.certificates,
        };
        match sources.auth.check(&asked).await {
            Ok(user) => {
                let from = client.from;
                request.extensions_mut().insert(Caller { user, from });
                next.run(request).await
            }
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

/// A log line for something that strangers can cause at will: once a second at most.
#[derive(Debug)]
struct Seldom {
    last: Mutex<Option<Instant>>,
}

impl Seldom {
    const EVERY: Duration = Duration::from_secs(1);

    const fn new() -> Self {
        Self {
            last: Mutex::new(None),
        }
    }

    fn due(&self, now: Instant) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last.is_none_or(|last| now.saturating_duration_since(last) >= Self::EVERY);
        if due {
            *last = Some(now);
        }
        due
    }
}

/// Upstream indents for people, and for who asks for it.
fn wants_pretty(request: &Request) -> bool {
    let mut query = request.uri().query().unwrap_or_default().split('&');
    if let Some(given) = query.find_map(|pair| pair.strip_prefix("pretty="))
        && !given.is_empty()
    {
        // What strconv.ParseBool takes for true.
        return ["1", "t", "T", "true", "TRUE", "True"].contains(&given);
    }
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
            static LOGGED: Seldom = Seldom::new();
            if LOGGED.due(Instant::now()) {
                tracing::info!(path, why, "unable to authenticate the request");
            }
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
            static LOGGED: Seldom = Seldom::new();
            if LOGGED.due(Instant::now()) {
                tracing::warn!(
                    path,
                    why,
                    "nobody could be asked whether the request is allowed"
                );
            }
            // The reason names the API server's address, and the client may be anybody.
            plain(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("Internal Server Error: {path:?}: the request could not be authorized\n"),
            )
        }
        Refused::Busy => {
            let mut response = status(
                StatusCode::TOO_MANY_REQUESTS,
                "TooManyRequests",
                "Too many requests, please try again later.",
                false,
            );
            let headers = response.headers_mut();
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            response
        }
        Refused::TooLong => plain(StatusCode::URI_TOO_LONG, "414 URI too long\n"),
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

async fn health_of(
    kind: Kind,
    State(sources): Shared,
    Query(query): Pairs,
    Extension(caller): Extension<Caller>,
) -> Response {
    let verbose = query.iter().any(|(name, _)| name == "verbose");
    let excluded: Vec<String> = query
        .into_iter()
        .filter(|(name, _)| name == "exclude")
        .map(|(_, value)| value)
        .collect();
    let answer = sources.health.all(kind, &excluded);
    let text = match answer.is_brief(verbose) {
        true => answer.brief(),
        // The path itself is open to all; who may get the checks below it sees what is wrong.
        false if may_see_reasons(&sources, kind, &caller).await => answer.with_reasons(),
        false => answer.without_reasons(),
    };
    plain(answer.code(), text)
}

/// Whether somebody may get a single check, which reports its reason. Strangers are not asked about: a probe
/// must not cost a question to the API server.
async fn may_see_reasons(sources: &Sources, kind: Kind, caller: &Caller) -> bool {
    let path = format!("/{}/ping", kind.name());
    !caller.user.is_anonymous() && sources.auth.may_get(&caller.user, &path, caller.from).await
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
            .encode_without(&sources.options.load().disabled_metrics),
    )
}

async fn serve_slis(State(sources): Shared) -> Response {
    exposition(sources.metrics.encode_slis())
}

async fn configz(State(sources): Shared) -> Response {
    json_text(&sources.options.load().configz())
}

async fn flagz(State(sources): Shared, request: Request) -> Response {
    /// As in `v1beta1.Flagz`.
    #[derive(Serialize)]
    struct Content {
        flags: BTreeMap<&'static str, String>,
    }
    if !sources.options.load().gate(Page::Flagz.gate()) {
        return not_found().await;
    }
    let flags = sources.options.load().values().flagz();
    let lines = flags
        .iter()
        .map(|(name, value)| format!("{name}={value}\n"));
    let text: String = lines.collect();
    let accept = request.headers().get(header::ACCEPT);
    let pretty = wants_pretty(&request);
    zpages::answer(Page::Flagz, accept, pretty, &text, &Content { flags })
}

async fn statusz(State(sources): Shared, request: Request) -> Response {
    /// As in `v1beta1.Statusz`.
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Content<'a> {
        start_time: String,
        uptime_seconds: i64,
        go_version: &'a str,
        binary_version: &'a str,
        emulation_version: &'a str,
        paths: Vec<&'a str>,
    }
    if !sources.options.load().gate(Page::Statusz.gate()) {
        return not_found().await;
    }
    let start = metrics::start_time_seconds();
    let started = jiff::Timestamp::from_second(start as i64).unwrap_or_default();
    let up = jiff::Timestamp::now()
        .duration_since(started)
        .as_secs()
        .max(0);
    let content = Content {
        start_time: started.to_string(),
        uptime_seconds: up,
        // This is no Go program; the field is not optional.
        go_version: concat!("none (rustc ", env!("CARGO_PKG_RUST_VERSION"), " or newer)"),
        binary_version: version::GIT_VERSION.trim_start_matches('v'),
        emulation_version: "1.36",
        paths: vec![
            "/configz", "/debug", "/flagz", "/healthz", "/livez", "/metrics", "/readyz", "/statusz",
        ],
    };
    let options = sources.options.load();
    let fleet = &options.fleet;
    let text = format!(
        "\nStarted: {}\nUp: {} hr {:02} min {:02} sec\nGo version: {}\nBinary version: {}\n\
         Emulation version: {}\nPaths: {}\nReplica: {} of fleet {}\n",
        started.strftime("%a %b %e %H:%M:%S UTC %Y"),
        up / 3600,
        up / 60 % 60,
        up % 60,
        content.go_version,
        content.binary_version,
        content.emulation_version,
        content.paths.join(" "),
        fleet.replica,
        fleet.fleet,
    );
    let accept = request.headers().get(header::ACCEPT);
    let pretty = wants_pretty(&request);
    zpages::answer(Page::Statusz, accept, pretty, &text, &content)
}

#[cfg(test)]
mod tests;
