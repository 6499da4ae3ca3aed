//! Why a request has not succeeded, and the API's `Status`.

use std::{fmt, sync::Arc, time::Duration};

use http::{HeaderMap, StatusCode, header};
use kubernetes_proto::{envelope, meta};

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
        /// The reason, for people.
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

pub(super) fn broken(server: &Arc<str>, error: &dyn std::error::Error) -> ApiError {
    ApiError::Transport {
        server: Arc::clone(server),
        reason: causes(error),
        before_sending: false,
    }
}

/// An error with all that caused it, each said once.
pub(super) fn causes(error: &dyn std::error::Error) -> String {
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
