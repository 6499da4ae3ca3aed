//! The API server's audit log: who asked for what, in the order of arrival.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde::Deserialize;

/// Bytes read at once.
const CHUNK: usize = 1 << 20;

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
    /// Who asked.
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

    /// Whether the sender withdrew it before the server had read what was asked: then nothing was done. Told
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

/// Reads an audit log as it grows.
#[derive(Debug)]
pub struct AuditLog {
    path: PathBuf,
    offset: u64,
    rest: Vec<u8>,
}

impl AuditLog {
    /// From the beginning of the file.
    pub fn open(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            offset: 0,
            rest: Vec::new(),
        }
    }

    /// Hands each request that was logged since the last call to `each`, in the order of the file;
    /// a line that is still being written waits for the next call.
    pub fn read(&mut self, mut each: impl FnMut(AuditRecord)) -> Result<()> {
        let what = || format!("reading the audit log {}", self.path.display());
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error).with_context(what),
        };
        file.seek(SeekFrom::Start(self.offset)).with_context(what)?;
        let mut chunk = vec![0; CHUNK];
        loop {
            let read = file.read(&mut chunk).with_context(what)?;
            if read == 0 {
                return Ok(());
            }
            self.offset += read as u64;
            self.rest.extend_from_slice(&chunk[..read]);
            let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else {
                continue;
            };
            let following = self.rest.split_off(end + 1);
            let lines = std::mem::replace(&mut self.rest, following);
            for line in lines
                .split(|byte| *byte == b'\n')
                .filter(|line| !line.is_empty())
            {
                let record = serde_json::from_slice(line).with_context(|| {
                    format!("a line of the audit log: {}", String::from_utf8_lossy(line))
                })?;
                each(record);
            }
        }
    }

    /// All that was logged since the last call.
    pub fn records(&mut self) -> Result<Vec<AuditRecord>> {
        let mut records = Vec::new();
        self.read(|record| records.push(record))?;
        Ok(records)
    }
}

/// What the audit log proves of ownership and of creations; fed with every record, asked at the end.
#[derive(Debug, Default)]
pub struct Proof {
    /// By range: when a request arrived, for which epoch, from whom.
    ranges: BTreeMap<u32, Vec<(Timestamp, u64, String)>>,
    /// Granted creations by resource, namespace and name.
    created: BTreeMap<(String, String, String), u64>,
    /// Granted deletions, after which a name may be used again.
    deleted: BTreeMap<(String, String, String), u64>,
}

impl Proof {
    /// Takes in one record.
    pub fn read(&mut self, record: &AuditRecord) {
        if record.stage != "ResponseComplete" || !record.is_write() {
            return;
        }
        if let Some(agent) = record.agent()
            && let (Some(range), Some(epoch)) = (agent.range, agent.epoch)
        {
            let arrived = record.request_received_timestamp;
            self.ranges
                .entry(range)
                .or_default()
                .push((arrived, epoch, agent.replica));
        }
        let object = record.object();
        let granted = record.code().is_some_and(|code| (200..300).contains(&code));
        if granted && !object.name.is_empty() && object.subresource.is_empty() {
            let key = (object.resource, object.namespace, object.name);
            match record.verb.as_str() {
                "create" => *self.created.entry(key).or_default() += 1,
                "delete" => *self.deleted.entry(key).or_default() += 1,
                _ => {}
            }
        }
    }

    /// Requests of an older epoch of a range after the first of a newer one, two replicas in one
    /// epoch, and objects that were created twice without having been deleted between.
    pub fn complaints(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        for (range, requests) in &self.ranges {
            let mut requests: Vec<_> = requests.iter().collect();
            // The log is written when requests end; what counts is when they arrived.
            requests.sort_by_key(|(arrived, ..)| *arrived);
            for pair in requests.windows(2) {
                let [(_, epoch, replica), (arrived, later, other)] = pair else {
                    continue;
                };
                if later < epoch {
                    complaints.push(format!(
                        "range {range}: {other} wrote with epoch {later} at {arrived}, after {replica} with epoch {epoch}"
                    ));
                } else if later == epoch && replica != other {
                    complaints.push(format!(
                        "range {range}: {replica} and {other} both wrote with epoch {epoch}"
                    ));
                }
            }
        }
        for (key, count) in &self.created {
            let deleted = self.deleted.get(key).copied().unwrap_or(0);
            if *count > deleted + 1 {
                let (resource, namespace, name) = key;
                complaints.push(format!(
                    "{resource} {namespace}/{name} was created {count} times"
                ));
            }
        }
        complaints
    }

    /// Writes that told their range and epoch.
    pub fn writes(&self) -> usize {
        self.ranges.values().map(Vec::len).sum()
    }
}
