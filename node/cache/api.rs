//! The connection to the API server: HTTP/2 over rustls, with kube's configuration and authentication round
//! it.
//!
//! kube's own client speaks HTTP/1 alone: a TLS connection for each request in flight and each watch. Here
//! requests share one connection per purpose. Watches, writes and Leases have one each, so that a burst of
//! one never blocks another.

mod connection;
mod error;
mod frames;
mod request;

use std::{
    fmt,
    sync::{Arc, OnceLock, atomic::Ordering},
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, header};
use http_body_util::BodyExt as _;
use kube::client::Body;
use kubernetes_proto::envelope::PROTOBUF;
use tower::{BoxError, ServiceExt as _};

pub use connection::{AnswerBody, NoAnswer, Purpose, Service};
pub use error::{ApiError, ConnectError, Status};
pub(crate) use error::{parse_status, read_status};
#[cfg(test)]
pub(crate) use frames::Framer;
pub use frames::Frames;
pub use request::{Exchange, Observe, REQUEST_TIMEOUT, Request, Response};

use connection::connect;
use error::{broken, causes};

use crate::{
    socket::{Guard, Line},
    switch::{Connection, Refusals, Switch, Switched, Validity},
};

/// The request that goes ahead: open to all, and cheap.
const PROBE_PATH: &str = "/version";

/// How long it may take: to connect, to shake hands, to answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// An answer that is longer is refused: larger than any list page or object that the API server sends.
const ANSWER_BYTES_MAX: usize = 512 << 20;

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
                framer: frames::Framer::default(),
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

fn is_protobuf(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(PROTOBUF.as_bytes()))
}
