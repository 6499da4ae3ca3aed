//! The connection to the API server: HTTP/2 over rustls, with kube's configuration and authentication round
//! it.
//!
//! kube's own client speaks HTTP/1 alone: a TLS connection for each request in flight and each watch. Here
//! requests share one connection per purpose. Watches, writes and Leases have one each, so that a burst of
//! one never blocks another.

use std::{
    fmt,
    sync::{Arc, OnceLock, atomic::Ordering},
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use http_body_util::{BodyExt as _, combinators::UnsyncBoxBody};
use hyper_util::{
    client::legacy::{
        Client,
        connect::{
            Connect, HttpConnector,
            proxy::{SocksV5, Tunnel},
        },
    },
    rt::{TokioExecutor, TokioTimer},
};
use kube::client::{Body, ConfigExt as _};
use kubernetes_proto::{
    envelope::{self, PROTOBUF},
    meta,
};
use tower::{BoxError, Layer as _, ServiceExt as _, util::BoxCloneSyncService};

use crate::{
    only::Only,
    proxy::{self, Way},
    socket::{Guard, Line, Socket},
    switch::{Connection, Refusals, Switch, Switched, Validity},
};

/// The body of an answer, wherever it comes from.
pub type AnswerBody = UnsyncBoxBody<Bytes, BoxError>;

/// What answers requests: a connection, or a simulated API server.
pub type Service = BoxCloneSyncService<http::Request<Body>, http::Response<AnswerBody>, BoxError>;

/// A [`Service`] of a simulation says by it that no answer came.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct NoAnswer {
    /// Why.
    pub reason: String,
    /// Whether the server can't have seen the request.
    pub before_sending: bool,
}

/// What a connection is for. It decides how soon a dead connection is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Lists and watches: much data, long silences.
    Watches,
    /// Writes and single reads.
    Writes,
    /// Reviews of who asks this process: rare, so that nothing is sent while there is none.
    Reviews,
    /// Leases: a connection that has died must be replaced well within the renew deadline.
    Leases {
        /// How often something is asked over it, and comes back, as long as all is well.
        period: Duration,
        /// What is asked must have come back by then, over another connection if need be.
        deadline: Duration,
    },
}

impl Purpose {
    /// How long nothing comes before a connection is pinged, and how long an answer may take before it is
    /// given up.
    pub(crate) fn pings(self) -> (Duration, Duration) {
        match self {
            Self::Watches => (Duration::from_secs(10), Duration::from_secs(10)),
            Self::Writes => (Duration::from_secs(5), Duration::from_secs(5)),
            Self::Reviews => (Duration::from_secs(3), Duration::from_secs(3)),
            Self::Leases { period, deadline } => {
                // None is sent where answers come: a process at rest wakes up for each.
                let quiet = period * 5 / 4;
                match quiet + period * 3 / 2 <= deadline {
                    true => (quiet, period),
                    false => (deadline / 4, deadline / 4),
                }
            }
        }
    }

    /// Bytes that the server may send ahead of their being read: for each stream, and for the connection.
    fn windows(self) -> (u32, u32) {
        const MIB: u32 = 1 << 20;
        match self {
            Self::Watches => (4 * MIB, 16 * MIB),
            Self::Writes | Self::Reviews | Self::Leases { .. } => (MIB, 4 * MIB),
        }
    }
}

/// How long a TCP connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The request that goes ahead: open to all, and cheap.
const PROBE_PATH: &str = "/version";

/// How long it may take: to connect, to shake hands, to answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// An answer that is longer is refused: larger than any list page or object that the API server sends.
const ANSWER_BYTES_MAX: usize = 512 << 20;

/// A watch frame that is longer is refused: etcd takes no object of this size.
const FRAME_BYTES_MAX: usize = 64 << 20;

/// Hears of every request, for `rest_client_*` metrics. Called once per request, when its answer is complete,
/// or for a watch when it has begun.
pub trait Observe: Send + Sync {
    /// A request has ended.
    fn observe(&self, exchange: &Exchange<'_>);
}

/// One request and its answer, as metrics see them.
#[derive(Clone, Copy, Debug)]
pub struct Exchange<'a> {
    /// As in `GET`: upstream's labels `verb` and `method`.
    pub method: &'a str,
    /// The server's host and port.
    pub host: &'a str,
    /// The path, without query.
    pub path: &'a str,
    /// `None` where no answer came: upstream's label value is then `<error>`.
    pub code: Option<u16>,
    /// From sending to the end of the answer (of its head, for a watch).
    pub duration: Duration,
    /// Of the body sent.
    pub request_bytes: usize,
    /// Of the body received; 0 for a watch.
    pub response_bytes: usize,
}

/// Why no client could be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// rustls takes X.509 v3 alone.
    #[error(
        "the client certificate {0} is X.509 version {1}, but only version 3 is supported: issue it again as version 3 \
         (with openssl, any extension makes it one, as in -addext keyUsage=digitalSignature)"
    )]
    CertificateVersion(String, u32),
    /// The client certificate can't be read.
    #[error("the client certificate {0} can't be read: {1}")]
    Certificate(String, String),
    /// The proxy that is configured can't be used.
    #[error(
        "the proxy {proxy} can't be used: {reason}: check the kubeconfig's proxy-url, HTTPS_PROXY and NO_PROXY"
    )]
    Proxy {
        /// Its address, without user and password.
        proxy: String,
        /// What is wrong.
        reason: String,
    },
    /// Anything else in the configuration.
    #[error("the client configuration for {server} is not usable: {reason}")]
    Config {
        /// The server's address.
        server: String,
        /// What is wrong.
        reason: String,
    },
}

/// What an answer other than success said: the API's `Status`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// HTTP status code.
    pub code: u16,
    /// One word, as in `AlreadyExists`; empty where the answer came from something else than the API server.
    pub reason: String,
    /// For people.
    pub message: String,
    /// About which object, and why.
    pub details: meta::StatusDetails,
    /// When to come again.
    pub retry_after: Option<Duration>,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.message.as_str(), self.reason.as_str()) {
            ("", "") => write!(f, "the API server answered with status {}", self.code),
            ("", reason) => write!(
                f,
                "the API server answered with status {} ({reason})",
                self.code
            ),
            (message, _) => f.write_str(message),
        }
    }
}

/// Why a request has not succeeded.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ApiError {
    /// The API server answered, and refused.
    #[error("{0}")]
    Status(Box<Status>),
    /// No answer: nobody listens, the connection broke, TLS failed. A write may have happened or not, unless
    /// `before_sending` says that the request never left.
    #[error("{server} does not answer: {reason}")]
    Transport {
        /// The server's address.
        server: Arc<str>,
        /// The chain of causes.
        reason: String,
        /// Whether the connection did not even come about.
        before_sending: bool,
    },
    /// No answer in time. A write may have happened or not.
    #[error("{server} has not answered within {after:?}")]
    Timeout {
        /// The server's address.
        server: Arc<str>,
        /// The time that was given.
        after: Duration,
    },
    /// An answer that can't be read.
    #[error("{server} sent an answer that can't be read: {reason}")]
    Garbage {
        /// The server's address.
        server: Arc<str>,
        /// What is wrong with it.
        reason: String,
    },
    /// Credentials could not be had (an exec plugin failed, a token file is missing).
    #[error("credentials for {server} can't be had: {reason}")]
    Credentials {
        /// The server's address.
        server: Arc<str>,
        /// Why.
        reason: String,
    },
}

impl ApiError {
    /// The API's answer, if there was one.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Status(status) => Some(status),
            _ => None,
        }
    }

    /// The HTTP status code, if there was an answer.
    pub fn code(&self) -> Option<u16> {
        self.status().map(|status| status.code)
    }

    fn reason_is(&self, reason: &str) -> bool {
        self.status().is_some_and(|status| status.reason == reason)
    }

    /// The object has changed since it was seen, or a precondition fails.
    pub fn is_conflict(&self) -> bool {
        self.reason_is("Conflict") || (self.code() == Some(409) && !self.is_already_exists())
    }

    /// An object of that name exists.
    pub fn is_already_exists(&self) -> bool {
        self.reason_is("AlreadyExists")
    }

    /// There is no such object, or no such resource.
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    /// RBAC, quota, policy.
    pub fn is_forbidden(&self) -> bool {
        self.code() == Some(403)
    }

    /// The credentials are not accepted.
    pub fn is_unauthorized(&self) -> bool {
        self.code() == Some(401)
    }

    /// The resourceVersion is older than what the server remembers.
    pub fn is_expired(&self) -> bool {
        self.code() == Some(410) || self.reason_is("Expired") || self.reason_is("Gone")
    }

    /// The resourceVersion is newer than what the server knows.
    pub fn is_resource_version_too_large(&self) -> bool {
        self.has_cause("ResourceVersionTooLarge")
    }

    /// Too many requests: wait before the next.
    pub fn is_throttled(&self) -> bool {
        self.code() == Some(429)
    }

    /// Whether the write may have happened although no success came back.
    pub fn is_undecided(&self) -> bool {
        match self {
            Self::Status(status) => status.code == 504 || status.reason == "Timeout",
            Self::Transport { before_sending, .. } => !before_sending,
            Self::Timeout { .. } | Self::Garbage { .. } => true,
            Self::Credentials { .. } => false,
        }
    }

    /// When the server wants to be asked again.
    pub fn retry_after(&self) -> Option<Duration> {
        self.status().and_then(|status| status.retry_after)
    }

    /// Whether one of the causes in the answer's details has this reason.
    pub fn has_cause(&self, reason: &str) -> bool {
        self.status().is_some_and(|status| {
            status
                .details
                .causes
                .iter()
                .any(|cause| cause.reason == reason)
        })
    }
}

/// One request.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its method.
    pub method: Method,
    /// As in `/api/v1/pods?limit=500`.
    pub path_and_query: String,
    /// Of the body; left out where there is none.
    pub content_type: &'static str,
    /// What is wanted back.
    pub accept: &'static str,
    /// The body.
    pub body: Bytes,
    /// Overrides the client's own.
    pub user_agent: Option<HeaderValue>,
    /// Only on a client made by [`Api::connect_anonymous`]: elsewhere the configured credentials go before
    /// it.
    pub authorization: Option<HeaderValue>,
    /// Further headers, as for impersonation.
    pub headers: Vec<(http::HeaderName, HeaderValue)>,
    /// For the whole exchange; for a watch, until it has begun.
    pub timeout: Duration,
}

/// How long a request may take where nothing else is said: the API server's own bound.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

impl Request {
    /// A request without body that wants protobuf back.
    pub fn new(method: Method, path_and_query: impl Into<String>) -> Self {
        Self {
            method,
            path_and_query: path_and_query.into(),
            content_type: "",
            accept: PROTOBUF,
            body: Bytes::new(),
            user_agent: None,
            authorization: None,
            headers: Vec::new(),
            timeout: REQUEST_TIMEOUT,
        }
    }

    /// A read.
    pub fn get(path_and_query: impl Into<String>) -> Self {
        Self::new(Method::GET, path_and_query)
    }

    /// With a body.
    #[must_use]
    pub fn body(mut self, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        self.content_type = content_type;
        self.body = body.into();
        self
    }

    /// With another media type wanted back, as in `application/json`.
    #[must_use]
    pub fn accept(mut self, accept: &'static str) -> Self {
        self.accept = accept;
        self
    }

    /// With another bound on its time.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

/// A successful answer.
#[derive(Clone, Debug)]
pub struct Response {
    /// 200, 201 or 202.
    pub status: StatusCode,
    /// The body, in its envelope if it is protobuf.
    pub bytes: Bytes,
    /// Whether the body is protobuf; else it is what was asked for, JSON as a rule.
    pub protobuf: bool,
}

/// A client of one API server, for one purpose. Cloned by counting; all clones share one connection.
#[derive(Clone)]
pub struct Api {
    inner: Arc<Inner>,
}

struct Inner {
    switch: Arc<Switch>,
    /// What [`Api::replace`] makes a connection for; `None` over a service of the caller's.
    purpose: Option<Purpose>,
    /// Whether the configuration's credentials are left out.
    anonymous: bool,
    server: Arc<str>,
    host: String,
    default_namespace: String,
    observe: Option<Arc<dyn Observe>>,
    kube: OnceLock<kube::Client>,
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api")
            .field("server", &self.inner.server)
            .finish_non_exhaustive()
    }
}

impl Api {
    /// With the configuration's credentials. Connects at the first request.
    ///
    /// # Errors
    /// Where the configuration can't be used: a certificate that is not X.509 v3, an exec plugin that fails.
    pub fn connect(
        config: &kube::Config,
        purpose: Purpose,
        observe: Option<Arc<dyn Observe>>,
    ) -> Result<Self, ConnectError> {
        Self::build(config, purpose, observe, false)
    }

    /// To the same server with the same CA, but with no credentials at all: for requests that bring a bearer
    /// token.
    ///
    /// # Errors
    /// Where the configuration can't be used.
    pub fn connect_anonymous(
        config: &kube::Config,
        purpose: Purpose,
        observe: Option<Arc<dyn Observe>>,
    ) -> Result<Self, ConnectError> {
        Self::build(config, purpose, observe, true)
    }

    /// Over a service of the caller's: what a simulation has for an API server.
    pub fn over(service: Service, server: &str) -> Self {
        Self {
            inner: Arc::new(Inner {
                switch: {
                    let line = Arc::<Line>::default();
                    let guard = Arc::clone(&line.guard);
                    Switch::new(Connection::new(service, line, None), guard, true)
                },
                purpose: None,
                anonymous: false,
                server: Arc::from(server),
                host: server.to_owned(),
                default_namespace: "default".to_owned(),
                observe: None,
                kube: OnceLock::new(),
            }),
        }
    }

    fn build(
        config: &kube::Config,
        purpose: Purpose,
        observe: Option<Arc<dyn Observe>>,
        anonymous: bool,
    ) -> Result<Self, ConnectError> {
        let server = config.cluster_url.to_string();
        let server: Arc<str> = Arc::from(server.trim_end_matches('/'));
        let guard = Arc::default();
        let first = connect(config, purpose, anonymous, &guard)?;
        Ok(Self {
            inner: Arc::new(Inner {
                switch: Switch::new(first, guard, !anonymous),
                purpose: Some(purpose),
                anonymous,
                host: config
                    .cluster_url
                    .authority()
                    .map(ToString::to_string)
                    .unwrap_or_default(),
                server,
                default_namespace: config.default_namespace.clone(),
                observe,
                kube: OnceLock::new(),
            }),
        })
    }

    /// From now on new requests, those of clones and of [`Api::kube`]'s client too, go by a connection with
    /// these credentials and authorities. Those under way end where they began. The server stays the one of
    /// the begin.
    ///
    /// # Errors
    /// Where the configuration can't be used; the connection before stays then.
    pub fn replace(&self, config: &kube::Config) -> Result<(), ConnectError> {
        let inner = &self.inner;
        let Some(purpose) = inner.purpose else {
            return Ok(());
        };
        let next = connect(config, purpose, inner.anonymous, &inner.switch.guard)?;
        inner.switch.replace(next);
        Ok(())
    }

    /// How long the server has done nothing but refuse these credentials.
    pub fn refusals(&self) -> Option<Refusals> {
        self.inner.switch.refusals()
    }

    /// Has a bell rung at the first refusal after a time without; the first bell stays.
    pub fn ring_at_refusal(&self, bell: Arc<tokio::sync::Notify>) {
        self.inner.switch.ring(bell);
    }

    /// When the client certificate begins and ends to be valid; `None` where there is none.
    pub fn certificate(&self) -> Option<Validity> {
        self.inner.switch.now().validity
    }

    /// From now on nothing leaves this client and its clones but while the guard is open; the first guard
    /// is. To be called before the first request: how long the kernel may keep bytes is said where a
    /// connection begins.
    pub fn guard(&self, guard: Arc<dyn Guard>) {
        self.inner.switch.guard.get_or_init(|| guard);
    }

    /// The server's address, for messages.
    pub fn server(&self) -> &str {
        &self.inner.server
    }

    /// kube's client over the same connection, for what is rare. Needs a tokio runtime, which must outlive
    /// it.
    pub fn kube(&self) -> kube::Client {
        self.inner.kube.get_or_init(|| self.kube_here()).clone()
    }

    /// As [`Api::kube`], but one of its own for the runtime in which this is called.
    pub fn kube_here(&self) -> kube::Client {
        let inner = &self.inner;
        let (service, host) = (
            Switched(Arc::clone(&inner.switch)),
            Arc::<str>::from(&*inner.host),
        );
        let observe = inner.observe.clone();
        // A request that is given up while it waits is not counted.
        let counted = tower::service_fn(move |request: http::Request<Body>| {
            let (service, host) = (service.clone(), Arc::clone(&host));
            let observe = observe.clone();
            async move {
                let (at, method) = (Instant::now(), request.method().clone());
                let path = request.uri().path().to_owned();
                let length = hyper::body::Body::size_hint(request.body()).lower();
                let answer = service.oneshot(request).await;
                if let Some(observe) = observe {
                    observe.observe(&Exchange {
                        method: method.as_str(),
                        host: &host,
                        path: &path,
                        code: answer.as_ref().ok().map(|answer| answer.status().as_u16()),
                        duration: at.elapsed(),
                        request_bytes: usize::try_from(length).unwrap_or(usize::MAX),
                        response_bytes: 0,
                    });
                }
                answer
            }
        });
        kube::Client::new(counted, inner.default_namespace.clone())
    }

    /// Sends a request and collects the answer.
    ///
    /// # Errors
    /// For any answer but success, and where none came.
    pub async fn send(&self, request: Request) -> Result<Response, ApiError> {
        let exchange = Begun::new(&request);
        let deadline = request.timeout;
        let answer = tokio::time::timeout(deadline, async {
            let (head, body) = self.call(request).await?;
            let bytes = self.collect(body).await?;
            Ok((head, bytes))
        })
        .await
        .unwrap_or_else(|_| Err(self.timed_out(deadline)));
        let (code, length) = match &answer {
            Ok((head, bytes)) => (Some(head.status.as_u16()), bytes.len()),
            Err(_) => (None, 0),
        };
        self.observe(&exchange, code, length);
        let (head, bytes) = answer?;
        if head.status.is_success() {
            Ok(Response {
                status: head.status,
                protobuf: is_protobuf(&head.headers),
                bytes,
            })
        } else {
            Err(ApiError::Status(Box::new(read_status(
                head.status,
                &head.headers,
                &bytes,
            ))))
        }
    }

    /// Opens a watch. Its end is not bounded: who reads the frames says how long a silence may last.
    ///
    /// # Errors
    /// As [`Api::send`], until the watch has begun.
    pub async fn watch(&self, request: Request) -> Result<Frames, ApiError> {
        let exchange = Begun::new(&request);
        let deadline = request.timeout;
        let answer = tokio::time::timeout(deadline, async {
            let (head, body) = self.call(request).await?;
            if head.status.is_success() {
                return Ok((head, Ok(body)));
            }
            let bytes = self.collect(body).await?;
            Ok((head, Err(bytes)))
        })
        .await
        .unwrap_or_else(|_| Err(self.timed_out(deadline)));
        let code = answer.as_ref().ok().map(|(head, _)| head.status.as_u16());
        self.observe(&exchange, code, 0);
        let (head, body) = answer?;
        match body {
            Ok(body) if is_protobuf(&head.headers) => Ok(Frames {
                server: Arc::clone(&self.inner.server),
                body,
                framer: Framer::default(),
            }),
            Ok(_) => Err(ApiError::Garbage {
                server: Arc::clone(&self.inner.server),
                reason: format!(
                    "a watch in {:?} instead of {PROTOBUF}",
                    head.headers
                        .get(header::CONTENT_TYPE)
                        .map_or("", |value| value.to_str().unwrap_or_default())
                ),
            }),
            Err(bytes) => Err(ApiError::Status(Box::new(read_status(
                head.status,
                &head.headers,
                &bytes,
            )))),
        }
    }

    async fn call(
        &self,
        request: Request,
    ) -> Result<(http::response::Parts, AnswerBody), ApiError> {
        let mut builder = http::Request::builder()
            .method(request.method)
            .uri(request.path_and_query)
            .header(header::ACCEPT, request.accept);
        if let Some(user_agent) = request.user_agent {
            builder = builder.header(header::USER_AGENT, user_agent);
        }
        if !request.content_type.is_empty() {
            builder = builder.header(header::CONTENT_TYPE, request.content_type);
        }
        let authorization = request.authorization.map(|mut authorization| {
            authorization.set_sensitive(true);
            authorization
        });
        if let Some(authorization) = &authorization {
            builder = builder.header(header::AUTHORIZATION, authorization);
        }
        for (name, value) in request.headers {
            builder = builder.header(name, value);
        }
        let request =
            builder
                .body(Body::from(request.body))
                .map_err(|error| ApiError::Garbage {
                    server: Arc::clone(&self.inner.server),
                    reason: format!("the request can't be written: {error}"),
                })?;
        let connection = self.inner.switch.now();
        self.connected(&connection, authorization).await?;
        let answer = self.inner.switch.send(&connection, request).await;
        let answer = answer.map_err(|error| self.no_answer(&connection, &error))?;
        Ok(answer.into_parts())
    }

    /// Lets one small request go ahead where there is no connection. Requests that find none open one each,
    /// and a hundred writes after an outage would make a hundred TLS connections, all but one of them for
    /// nothing. It goes in the name of a request that waits: where the API server doesn't know who asks, it
    /// ends the connection with its answer.
    async fn connected(
        &self,
        connection: &Connection,
        authorization: Option<HeaderValue>,
    ) -> Result<(), ApiError> {
        let line = &connection.line;
        if line.connected.load(Ordering::Acquire) {
            return Ok(());
        }
        let _first = connection.connecting.lock().await;
        if line.connected.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut probe = http::Request::get(PROBE_PATH)
            .body(Body::empty())
            .expect("the path is a constant");
        if let Some(authorization) = authorization {
            probe
                .headers_mut()
                .insert(header::AUTHORIZATION, authorization);
        }
        let sent = self.inner.switch.send(connection, probe);
        match tokio::time::timeout(PROBE_TIMEOUT, sent).await {
            // Whatever the answer is: there is a connection.
            Ok(Ok(_)) => {
                line.connected.store(true, Ordering::Release);
                Ok(())
            }
            Ok(Err(error)) => Err(self.no_answer(connection, &error)),
            Err(_) => Err(self.timed_out(PROBE_TIMEOUT)),
        }
    }

    async fn collect(&self, mut body: AnswerBody) -> Result<Bytes, ApiError> {
        let mut collected = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| broken(&self.inner.server, error.as_ref()))?;
            if let Ok(data) = frame.into_data() {
                if collected.len() + data.len() > ANSWER_BYTES_MAX {
                    return Err(self.garbage(format!("longer than {ANSWER_BYTES_MAX} bytes")));
                }
                collected.extend_from_slice(&data);
            }
        }
        Ok(collected.freeze())
    }

    /// An answer that can't be read.
    pub fn garbage(&self, reason: String) -> ApiError {
        ApiError::Garbage {
            server: Arc::clone(&self.inner.server),
            reason,
        }
    }

    fn timed_out(&self, after: Duration) -> ApiError {
        ApiError::Timeout {
            server: Arc::clone(&self.inner.server),
            after,
        }
    }

    fn no_answer(&self, connection: &Connection, error: &BoxError) -> ApiError {
        connection.line.connected.store(false, Ordering::Release);
        let server = Arc::clone(&self.inner.server);
        if let Some(none) = error.downcast_ref::<NoAnswer>() {
            return ApiError::Transport {
                server,
                reason: none.reason.clone(),
                before_sending: none.before_sending,
            };
        }
        match error.downcast_ref::<hyper_util::client::legacy::Error>() {
            Some(error) => ApiError::Transport {
                server,
                reason: causes(error),
                before_sending: error.is_connect(),
            },
            // The layers above the connection only add credentials.
            None => ApiError::Credentials {
                server,
                reason: causes(error.as_ref()),
            },
        }
    }

    fn observe(&self, begun: &Begun, code: Option<u16>, response_bytes: usize) {
        if let Some(observe) = &self.inner.observe {
            observe.observe(&Exchange {
                method: begun.method.as_str(),
                host: &self.inner.host,
                path: begun.path.split('?').next().unwrap_or_default(),
                code,
                duration: begun.at.elapsed(),
                request_bytes: begun.bytes,
                response_bytes,
            });
        }
    }
}

struct Begun {
    at: Instant,
    method: Method,
    path: String,
    bytes: usize,
}

impl Begun {
    fn new(request: &Request) -> Self {
        Self {
            at: Instant::now(),
            method: request.method.clone(),
            path: request.path_and_query.clone(),
            bytes: request.body.len(),
        }
    }
}

fn broken(server: &Arc<str>, error: &dyn std::error::Error) -> ApiError {
    ApiError::Transport {
        server: Arc::clone(server),
        reason: causes(error),
        before_sending: false,
    }
}

/// An error with all that caused it, each said once.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let said = next.to_string();
        // rustls appends the address of its manual to one of its errors.
        let said = said.split(": https://").next().unwrap_or_default();
        if !text.contains(said) {
            text.push_str(": ");
            text.push_str(said);
        }
        cause = next.source();
    }
    text
}

/// What a request is sent as that names nothing else: the configuration's User-Agent header or the build's
/// own. kube would add the configured one to the request's, so it is taken out of the configuration.
fn own_user_agent(config: &kube::Config) -> (HeaderValue, kube::Config) {
    let mut config = config.clone();
    let (named, others) = std::mem::take(&mut config.headers)
        .into_iter()
        .partition(|(name, _)| *name == header::USER_AGENT);
    config.headers = others;
    let named: Vec<(http::HeaderName, HeaderValue)> = named;
    let name = named.into_iter().next().map_or(
        HeaderValue::from_static(concat!("manifold/", env!("CARGO_PKG_VERSION"))),
        |(_, value)| value,
    );
    (name, config)
}

/// A connection with these credentials and authorities, or with the authorities alone.
fn connect(
    config: &kube::Config,
    purpose: Purpose,
    anonymous: bool,
    guard: &Arc<OnceLock<Arc<dyn Guard>>>,
) -> Result<Connection, ConnectError> {
    let mut config = config.clone();
    match anonymous {
        true => {
            config.auth_info = kube::config::AuthInfo::default();
            config
                .headers
                .retain(|(name, _)| *name == header::USER_AGENT);
        }
        false => check_client_certificate(&config)?,
    }
    let way = proxy::way(config.proxy_url.as_ref())?;
    let line = Line::guarded(guard);
    let unusable = |error: Box<kube::Error>| ConnectError::Config {
        server: config
            .cluster_url
            .to_string()
            .trim_end_matches('/')
            .to_owned(),
        reason: causes(error.as_ref()),
    };
    let tls = config
        .rustls_client_config()
        .map_err(|error| unusable(Box::new(error)))?;
    let validity = validity(&tls);
    let service = connection(&config, tls, way, purpose, &line).map_err(unusable)?;
    Ok(Connection::new(service, line, validity))
}

/// Of the certificate that is shown to the server, wherever it comes from: a file, the kubeconfig or a
/// plugin.
fn validity(tls: &rustls::ClientConfig) -> Option<Validity> {
    use rustls::SignatureScheme as Scheme;
    let schemes = [
        Scheme::ECDSA_NISTP256_SHA256,
        Scheme::ECDSA_NISTP384_SHA384,
        Scheme::ECDSA_NISTP521_SHA512,
        Scheme::ED25519,
        Scheme::RSA_PSS_SHA256,
        Scheme::RSA_PKCS1_SHA256,
    ];
    let key = tls.client_auth_cert_resolver.resolve(&[], &schemes)?;
    let (_, certificate) = x509_parser::parse_x509_certificate(key.cert.first()?).ok()?;
    let validity = certificate.validity();
    Some(Validity {
        begins: validity.not_before.timestamp(),
        ends: validity.not_after.timestamp(),
    })
}

/// TCP to the server or its proxy, a tunnel if there is a proxy, TLS, and kube's layers over one HTTP/2
/// connection.
fn connection(
    config: &kube::Config,
    tls: rustls::ClientConfig,
    way: Way,
    purpose: Purpose,
    line: &Arc<Line>,
) -> Result<Service, Box<kube::Error>> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(Duration::from_secs(30)));
    tcp.set_connect_timeout(Some(
        config
            .connect_timeout
            .map_or(CONNECT_TIMEOUT, |configured| {
                configured.min(CONNECT_TIMEOUT)
            }),
    ));
    let mut https = hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(tls.clone())
        .https_or_http();
    if let Some(name) = &config.tls_server_name {
        let name = rustls::pki_types::ServerName::try_from(name.clone())
            .map_err(|error| Box::new(kube::Error::Service(Box::new(error))))?;
        https = https.with_server_name_resolver(hyper_rustls::FixedServerNameResolver::new(name));
    }
    let https = https.enable_all_versions();
    let line = Arc::clone(line);
    let socket = tcp.map_response(move |tcp| Socket::new(tcp, Arc::clone(&line)));
    match way {
        Way::Direct => layers(config, purpose, https.wrap_connector(socket)),
        Way::Connect {
            proxy,
            authorization,
        } => {
            // As in Go the proxy is trusted by the same authorities, and shown the same certificate.
            let to_proxy = hyper_rustls::HttpsConnectorBuilder::new()
                .with_tls_config(tls)
                .https_or_http()
                .enable_http1()
                .wrap_connector(socket);
            let mut tunnel = Tunnel::new(proxy, to_proxy);
            if let Some(authorization) = authorization {
                tunnel = tunnel.with_auth(authorization);
            }
            layers(config, purpose, https.wrap_connector(tunnel))
        }
        Way::Socks5 { proxy, user } => {
            let mut socks = SocksV5::new(proxy, socket);
            if let Some((name, password)) = user {
                socks = socks.with_auth(name, password);
            }
            layers(config, purpose, https.wrap_connector(socks))
        }
    }
}

/// kube's layers over HTTP/2 by this connector.
fn layers<C>(config: &kube::Config, purpose: Purpose, https: C) -> Result<Service, Box<kube::Error>>
where
    C: Connect + Clone + Send + Sync + 'static,
{
    let (interval, timeout) = purpose.pings();
    let (stream_window, connection_window) = purpose.windows();
    let client: Client<_, Body> = Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_keep_alive_interval(interval)
        .http2_keep_alive_timeout(timeout)
        .http2_keep_alive_while_idle(purpose != Purpose::Reviews)
        .http2_initial_stream_window_size(stream_window)
        .http2_initial_connection_window_size(connection_window)
        .build(https);

    let client = client
        .map_response(|answer: http::Response<hyper::body::Incoming>| {
            answer.map(|body| body.map_err(BoxError::from).boxed_unsync())
        })
        .map_err(BoxError::from);
    let (name, config) = own_user_agent(config);
    let client = client.map_request(move |mut request: http::Request<Body>| {
        let headers = request.headers_mut();
        headers
            .entry(header::USER_AGENT)
            .or_insert_with(|| name.clone());
        request
    });
    let client = Only::new(client, config.cluster_url.path());
    let with_headers = config
        .extra_headers_layer()
        .map_err(Box::new)?
        .layer(client);
    let service = match config.auth_layer().map_err(Box::new)? {
        Some(auth) => {
            BoxCloneSyncService::new(config.base_uri_layer().layer(auth.layer(with_headers)))
        }
        None => BoxCloneSyncService::new(config.base_uri_layer().layer(with_headers)),
    };
    Ok(service)
}

/// rustls refuses X.509 v1 with a message that names neither the file nor the remedy; so it is examined
/// before.
fn check_client_certificate(config: &kube::Config) -> Result<(), ConnectError> {
    use rustls::pki_types::{CertificateDer, pem::PemObject as _};

    let auth = &config.auth_info;
    let (name, pem) = if let Some(data) = &auth.client_certificate_data {
        use base64::Engine as _;
        let name = "in the kubeconfig's client-certificate-data".to_owned();
        match base64::engine::general_purpose::STANDARD.decode(data.trim()) {
            Ok(pem) => (name, pem),
            Err(error) => return Err(ConnectError::Certificate(name, error.to_string())),
        }
    } else if let Some(path) = &auth.client_certificate {
        match std::fs::read(path) {
            Ok(pem) => (path.clone(), pem),
            Err(error) => return Err(ConnectError::Certificate(path.clone(), error.to_string())),
        }
    } else {
        return Ok(());
    };
    let leaf = CertificateDer::pem_slice_iter(&pem)
        .next()
        .ok_or_else(|| ConnectError::Certificate(name.clone(), "it holds none".to_owned()))?
        .map_err(|error| ConnectError::Certificate(name.clone(), error.to_string()))?;
    let (_, certificate) = x509_parser::parse_x509_certificate(&leaf)
        .map_err(|error| ConnectError::Certificate(name.clone(), error.to_string()))?;
    // The encoding counts from 0.
    match certificate.version().0 + 1 {
        3 => Ok(()),
        version => Err(ConnectError::CertificateVersion(name, version)),
    }
}

fn is_protobuf(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(PROTOBUF.as_bytes()))
}

/// The answer's `Status`, from protobuf or JSON; else what there is of text, so that a proxy's page says
/// something too.
pub(crate) fn read_status(code: StatusCode, headers: &HeaderMap, bytes: &[u8]) -> Status {
    let mut status = parse_status(bytes).unwrap_or_else(|| {
        let text = String::from_utf8_lossy(bytes);
        let line: String = text
            .trim()
            .chars()
            .take(STATUS_TEXT_CHARS_MAX)
            .collect::<String>()
            .replace(['\n', '\r'], " ");
        Status {
            message: if line.is_empty() {
                String::new()
            } else {
                format!("status {}: {line}", code.as_u16())
            },
            ..Status::default()
        }
    });
    status.code = code.as_u16();
    if let Some(seconds) = headers
        .get(header::RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.parse().ok())
    {
        status.retry_after = Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX));
    }
    status
}

/// The longest that a server's own word on when to come again is taken for, wherever it comes from (a proxy,
/// a webhook's answer passed on) may say any number, and a key that waits for centuries is lost.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);

/// So much is shown of an answer that is no `Status`.
const STATUS_TEXT_CHARS_MAX: usize = 200;

/// A `Status` from its envelope or from JSON.
pub(crate) fn parse_status(bytes: &[u8]) -> Option<Status> {
    let status = if let Ok(envelope) = envelope::open(bytes) {
        meta::Status::read(envelope.raw).ok()?
    } else {
        // Read field by field: a newer server may say more than the message knows.
        let json: serde_json::Value = serde_json::from_slice(bytes).ok()?;
        if json["kind"] != "Status" {
            return None;
        }
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let number = |value: &serde_json::Value| {
            value
                .as_i64()
                .and_then(|number| i32::try_from(number).ok())
                .unwrap_or_default()
        };
        let details = &json["details"];
        meta::Status {
            status: text(&json["status"]),
            message: text(&json["message"]),
            reason: text(&json["reason"]),
            code: number(&json["code"]),
            details: details.is_object().then(|| meta::StatusDetails {
                name: text(&details["name"]),
                group: text(&details["group"]),
                kind: text(&details["kind"]),
                uid: text(&details["uid"]),
                retry_after_seconds: number(&details["retryAfterSeconds"]),
                causes: details["causes"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(|cause| meta::StatusCause {
                        reason: text(&cause["reason"]),
                        message: text(&cause["message"]),
                        field: text(&cause["field"]),
                    })
                    .collect(),
            }),
        }
    };
    let details = status.details.unwrap_or_default();
    Some(Status {
        code: u16::try_from(status.code).unwrap_or_default(),
        reason: status.reason,
        message: status.message,
        retry_after: u64::try_from(details.retry_after_seconds)
            .ok()
            .filter(|seconds| *seconds > 0)
            .map(|seconds| Duration::from_secs(seconds).min(RETRY_AFTER_MAX)),
        details,
    })
}

/// The frames of an open watch.
pub struct Frames {
    server: Arc<str>,
    body: AnswerBody,
    framer: Framer,
}

impl Frames {
    /// The next frame, without its length; `None` when the server has ended the watch. Safe to give up while
    /// waiting: nothing that was received is lost.
    ///
    /// # Errors
    /// Where the connection broke, or a frame is too long.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        loop {
            if let Some(frame) = self.framer.next().map_err(|reason| ApiError::Garbage {
                server: Arc::clone(&self.server),
                reason,
            })? {
                return Ok(Some(frame));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.framer.push(&data);
                    }
                }
                Some(Err(error)) => return Err(broken(&self.server, error.as_ref())),
                None if self.framer.is_empty() => return Ok(None),
                None => {
                    return Err(ApiError::Garbage {
                        server: Arc::clone(&self.server),
                        reason: "a watch that ends within a frame".to_owned(),
                    });
                }
            }
        }
    }
}

/// Cuts a stream into frames: four bytes with the length, the most significant first, then as many bytes.
#[derive(Default)]
pub(crate) struct Framer {
    buffer: BytesMut,
}

impl Framer {
    pub(crate) fn push(&mut self, data: &[u8]) {
        self.buffer.extend_from_slice(data);
    }

    pub(crate) fn next(&mut self) -> Result<Option<Bytes>, String> {
        let Some((head, rest)) = self.buffer.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*head) as usize;
        if length > FRAME_BYTES_MAX {
            return Err(format!(
                "a watch frame of {length} bytes, more than {FRAME_BYTES_MAX}"
            ));
        }
        if rest.len() < length {
            return Ok(None);
        }
        let mut frame = self.buffer.split_to(4 + length);
        Ok(Some(frame.split_off(4).freeze()))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }
}
