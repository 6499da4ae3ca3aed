//! What an API server's audit log proves of who wrote: for the tests' judge and `kubectl manifold audit`.

mod log;
mod ownership;
mod record;

use jiff::SignedDuration;

pub use log::AuditLog;
pub use ownership::{Owned, Ownership};
pub use record::{Agent, AuditRecord, ObjectRef, ResponseStatus, User};

/// The longest that a range may be nobody's: a Lease's duration, two reads, an eviction with its proof, a
/// claim.
pub const UNOWNED: SignedDuration = SignedDuration::from_secs(8);

/// What must be logged, so that ownership can be judged: the bodies of the fleet's Leases, and every write.
/// The namespace is the fleet's default. Other bodies, Secrets among them, are not logged; without them a
/// late write that its sender has withdrawn can't be known from one that has landed, and is complained of.
pub const POLICY: &str = r#"apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: ["RequestReceived"]
omitManagedFields: true
rules:
- level: RequestResponse
  verbs: ["create", "update", "patch"]
  namespaces: ["manifold-system"]
  resources:
  - {group: "coordination.k8s.io", resources: ["leases"]}
- level: Metadata
  verbs: ["create", "update", "patch", "delete", "deletecollection"]
- level: None
"#;
