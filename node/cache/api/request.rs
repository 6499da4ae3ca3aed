//! Requests, their answers, and who hears of both.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode};
use kubernetes_proto::envelope::PROTOBUF;

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
    /// Only on a client made by [`super::Api::connect_anonymous`]: elsewhere the configured credentials go
    /// before it.
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
