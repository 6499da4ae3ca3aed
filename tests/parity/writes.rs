//! What the audit log says of a namespace: what was made, and what the managers wrote.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::Result;
use harness::{AuditLog, AuditRecord};
use serde_json::{Value, json};

use super::api::KINDS;

/// Who creates or has created what is needed to know names and uids; the rest as the judge reads it.
pub(crate) const AUDIT_POLICY: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: ["RequestReceived"]
omitManagedFields: true
rules:
# Whatever a shadow writes, Leases too.
- level: Metadata
  users: ["system:serviceaccount:manifold-shadow:manifold-shadow"]
  verbs: ["create", "update", "patch", "delete", "deletecollection"]
- level: None
  users: ["system:kube-scheduler", "system:apiserver", "kwok"]
- level: None
  nonResourceURLs: ["/healthz*", "/readyz*", "/livez*", "/version", "/openapi*"]
- level: None
  verbs: ["get", "list", "watch"]
- level: None
  resources:
  - {group: "coordination.k8s.io"}
- level: RequestResponse
  verbs: ["create"]
  omitStages: ["RequestReceived"]
  resources:
  - {group: "", resources: ["pods", "replicationcontrollers", "persistentvolumeclaims", "serviceaccounts", "configmaps", "services", "endpoints", "secrets", "resourcequotas"]}
  - {group: "discovery.k8s.io"}
  - {group: "example.com"}
  - {group: "resource.k8s.io"}
  - {group: "apps"}
  - {group: "batch"}
  - {group: "policy"}
- level: Metadata
"#;

const MANAGER: &str = "system:kube-controller-manager";
const CONTROLLERS: &str = "system:serviceaccount:kube-system:";

/// One write of a manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verb {
    Create,
    /// Upstream updates where Manifold patches.
    Change,
    Delete,
}

/// Resource and verb → granted writes.
pub(crate) type Counts = BTreeMap<(String, Verb), usize>;

/// What happened in one namespace.
#[derive(Debug, Default, Clone)]
pub(crate) struct Course {
    /// Answers to creations, by the time at which they were given.
    pub(crate) made: Vec<(jiff::Timestamp, Value)>,
    pub(crate) writes: Counts,
    /// Resource, verb and HTTP status → writes that were refused.
    pub(crate) refused: BTreeMap<(String, Verb, u16), usize>,
    /// When the last write of a manager was read.
    pub(crate) last: Option<Instant>,
}

/// Reads the log as it grows.
#[derive(Debug)]
pub(crate) struct Follower {
    log: AuditLog,
    courses: BTreeMap<String, Course>,
}

impl Follower {
    pub(crate) fn new(log: AuditLog) -> Self {
        Self {
            log,
            courses: BTreeMap::new(),
        }
    }

    /// Reads what is new.
    pub(crate) fn read(&mut self) -> Result<()> {
        let courses = &mut self.courses;
        self.log.read(|record| take(courses, &record))
    }

    /// What is known of a namespace.
    pub(crate) fn course(&self, namespace: &str) -> Course {
        self.courses.get(namespace).cloned().unwrap_or_default()
    }
}

fn take(courses: &mut BTreeMap<String, Course>, record: &AuditRecord) {
    let object = record.object();
    if record.stage != "ResponseComplete" || !record.is_write() {
        return;
    }
    let course = courses.entry(object.namespace.clone()).or_default();
    let granted = record.code().is_some_and(|code| (200..300).contains(&code));
    if granted
        && record.verb == "create"
        && object.subresource.is_empty()
        && let Some(body) = &record.response_object
        && let Some(kind) = KINDS.iter().find(|kind| kind.plural == object.resource)
    {
        let mut body = body.clone();
        // Who asks for metadata alone is answered with a kind of its own.
        body["kind"] = json!(kind.name);
        course.made.push((record.stage_timestamp, body));
    }
    let user = &record.user.username;
    if user != MANAGER && !user.starts_with(CONTROLLERS) {
        return;
    }
    course.last = Some(Instant::now());
    let verb = match record.verb.as_str() {
        "create" => Verb::Create,
        "delete" | "deletecollection" => Verb::Delete,
        _ => Verb::Change,
    };
    let resource = record.resource();
    if granted {
        *course.writes.entry((resource, verb)).or_default() += 1;
    } else {
        let code = record.code().unwrap_or(0);
        *course.refused.entry((resource, verb, code)).or_default() += 1;
    }
}
