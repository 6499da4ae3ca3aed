//! One request in the log.

use jiff::Timestamp;
use serde::Deserialize;

/// One request, at the stage in which it was logged.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditRecord {
    /// One per request, the same in all its stages.
    #[serde(rename = "auditID")]
    pub audit_id: String,
    /// How much was logged: `Metadata`, `Request` or `RequestResponse`.
    #[serde(default)]
    pub level: String,
    /// `ResponseStarted` (watches), `ResponseComplete` or `Panic`.
    pub stage: String,
    /// `create`, `patch`, `watch`, …
    pub verb: String,
    /// Path and query.
    #[serde(rename = "requestURI")]
    pub request_uri: String,
    /// The request's user.
    #[serde(default)]
    pub user: User,
    /// As whom, where the request impersonates.
    pub impersonated_user: Option<User>,
    /// The client's own words.
    #[serde(default)]
    pub user_agent: String,
    /// The object.
    pub object_ref: Option<ObjectRef>,
    /// The answer; absent before it is known.
    pub response_status: Option<ResponseStatus>,
    /// When the request arrived.
    pub request_received_timestamp: Timestamp,
    /// When this stage was reached.
    pub stage_timestamp: Timestamp,
    /// What was sent; only where the policy's level is `Request` or `RequestResponse`.
    pub request_object: Option<serde_json::Value>,
    /// What was answered; only where the policy's level is `RequestResponse`.
    pub response_object: Option<serde_json::Value>,
}

/// A user as the audit log writes it.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct User {
    /// Name.
    #[serde(default)]
    pub username: String,
    /// Groups.
    #[serde(default)]
    pub groups: Vec<String>,
}

/// The object of a request.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectRef {
    /// Plural, lower case.
    pub resource: String,
    /// Empty for what is not namespaced.
    pub namespace: String,
    /// Empty for lists, and for creates that leave the name to the server.
    pub name: String,
    /// API group.
    pub api_group: String,
    /// `status`, `scale`, `token`, …
    pub subresource: String,
    /// Precondition of the request, where it has one.
    pub uid: String,
    /// Precondition of the request, where it has one.
    pub resource_version: String,
}

/// The answer's code.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct ResponseStatus {
    /// HTTP status.
    #[serde(default)]
    pub code: u16,
    /// What was said, where the request was refused.
    #[serde(default)]
    pub message: String,
}

/// What Manifold says of itself in a request's User-Agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agent {
    /// Version of the program.
    pub version: String,
    /// Replica name.
    pub replica: String,
    /// The range on whose behalf the request was made.
    pub range: Option<u32>,
    /// That range's epoch.
    pub epoch: Option<u64>,
    /// The controller.
    pub controller: Option<String>,
}

impl AuditRecord {
    /// HTTP status of the answer.
    pub fn code(&self) -> Option<u16> {
        self.response_status.as_ref().map(|status| status.code)
    }

    /// Whether the sender withdrew it before the server had read what was asked: then nothing was done. Known
    /// only where bodies are logged.
    pub fn was_withdrawn_unread(&self) -> bool {
        let bodies = self.level == "Request" || self.level == "RequestResponse";
        bodies && self.code() == Some(504) && self.request_object.is_none()
    }

    /// Whether it asks for a change.
    pub fn is_write(&self) -> bool {
        matches!(
            self.verb.as_str(),
            "create" | "update" | "patch" | "delete" | "deletecollection"
        )
    }

    /// Resource, with the subresource after a slash.
    pub fn resource(&self) -> String {
        match &self.object_ref {
            Some(object) if object.subresource.is_empty() => object.resource.clone(),
            Some(object) => format!("{}/{}", object.resource, object.subresource),
            None => String::new(),
        }
    }

    /// The object, or an empty reference for requests without one.
    pub fn object(&self) -> ObjectRef {
        self.object_ref.clone().unwrap_or_default()
    }

    /// The sender's words, where it is a replica of Manifold.
    pub fn agent(&self) -> Option<Agent> {
        Agent::parse(&self.user_agent)
    }
}

impl Agent {
    /// Reads `manifold/<version> (replica=<name>; range=<n>; epoch=<n>; controller=<name>)`.
    pub fn parse(user_agent: &str) -> Option<Self> {
        let (version, rest) = user_agent.strip_prefix("manifold/")?.split_once(" (")?;
        let inside = rest.split(')').next()?;
        let value = |name: &str| {
            inside
                .split(';')
                .filter_map(|part| part.trim().split_once('='))
                .find(|(key, _)| *key == name)
                .map(|(_, value)| value.to_owned())
        };
        Some(Self {
            version: version.to_owned(),
            replica: value("replica")?,
            range: value("range").and_then(|text| text.parse().ok()),
            epoch: value("epoch").and_then(|text| text.parse().ok()),
            controller: value("controller"),
        })
    }
}
