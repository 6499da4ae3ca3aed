//! What an audit log proves, of any writer.
//!
//! Fed with every record of a log under [`AUDIT_POLICY`], asked at the end:
//!
//! - **Epochs.** For each range the epochs in the User-Agents of writes never decrease in order of
//!   arrival, and one epoch belongs to one replica.
//! - **Beyond wanted.** A Deployment that was only ever scaled up, or a ReplicaSet without one, never
//!   has more pods than its `spec.replicas`. Rolling updates may have their surge: a Deployment whose
//!   template, or whose size downwards, was changed is left out from then on.
//! - **Twice.** No object is created under a name that is taken; no two ReplicaSets of one Deployment
//!   have the same template at the same time.
//! - **Forbidden.** What the managers asked for and were not allowed.
//!
//! A creation counts from when its answer was sent, a deletion from when it arrived, so that a count
//! is never too high on account of the order in which the log was written.

use std::collections::{BTreeMap, BTreeSet};

use harness::AuditRecord;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

mod children;
mod names;
mod volumes;

pub use audit_log::{Owned, Ownership, UNOWNED};
pub use children::{Children, Counted};
pub use names::Names;
pub use volumes::{Kept, Volumes};

/// A promised time, times a factor.
pub fn stretched(promised: SignedDuration, slack: f64) -> SignedDuration {
    SignedDuration::try_from(promised.unsigned_abs().mul_f64(slack)).unwrap_or(promised)
}

/// Like the harness's own, with the bodies that [`Judge`] reads; of other changes what was asked, since a
/// request without it was withdrawn before it was read.
pub const AUDIT_POLICY: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: ["RequestReceived"]
omitManagedFields: true
rules:
- level: None
  users: ["system:kube-scheduler", "system:apiserver", "kwok"]
  verbs: ["get", "list", "watch"]
- level: None
  nonResourceURLs: ["/healthz*", "/readyz*", "/livez*", "/version", "/openapi*"]
- level: RequestResponse
  verbs: ["create", "delete"]
  resources:
  - {group: "", resources: ["pods", "pods/binding"]}
- level: RequestResponse
  verbs: ["create", "update", "patch", "delete"]
  resources:
  - {group: "", resources: ["persistentvolumeclaims", "persistentvolumeclaims/status"]}
  - {group: "", resources: ["persistentvolumes", "persistentvolumes/status"]}
  - {group: "storage.k8s.io", resources: ["volumeattachments", "volumeattachments/status"]}
- level: RequestResponse
  verbs: ["create"]
  resources:
  - {group: "apps", resources: ["replicasets"]}
- level: RequestResponse
  verbs: ["create", "update", "patch"]
  resources:
  - {group: "apps", resources: ["deployments", "deployments/scale", "replicasets", "replicasets/scale"]}
- level: RequestResponse
  verbs: ["create", "update", "patch"]
  namespaces: ["manifold-system"]
  resources:
  - {group: "coordination.k8s.io", resources: ["leases"]}
- level: Request
  verbs: ["update", "patch", "delete"]
- level: Metadata
"#;

/// Whose requests are a manager's: the two identities of a fleet, and the service accounts of its
/// controllers.
const MANAGERS: &[&str] = &[
    "system:kube-controller-manager",
    "system:serviceaccount:manifold-system:manifold",
];
const CONTROLLERS: &str = "system:serviceaccount:kube-system:";

type Name = (String, String);

/// One step in the life of what wants pods, or of its pods.
#[derive(Debug, Clone)]
enum Step {
    /// A Deployment as the server has stored it: uid, template, replicas.
    Deployment(Name, String, String, i64),
    /// A ReplicaSet made: uid, its owner's uid, template, replicas.
    ReplicaSet(Name, String, Option<String>, String, i64),
    /// Somebody scaled through the subresource.
    Scaled(String, Name, i64),
    /// A pod made, with its owner's uid.
    Pod(Name, String),
    Gone(String, Name),
    /// Whatever was of this resource in the namespace may be gone.
    AllGone(String, String),
}

/// A request that was refused as forbidden.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Forbidden {
    /// Who asked.
    pub user: String,
    /// For what.
    pub verb: String,
    /// Of which resource.
    pub resource: String,
}

/// Reads a log; see the module.
#[derive(Debug, Default)]
pub struct Judge {
    ranges: BTreeMap<u32, Vec<(Timestamp, u64, String)>>,
    steps: Vec<(Timestamp, Step)>,
    created: Vec<(Timestamp, String, Name)>,
    forbidden: BTreeMap<Forbidden, usize>,
    tokens: BTreeMap<String, usize>,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Broken promises, a line each.
    pub complaints: Vec<String>,
    /// Writes that reported their range and epoch.
    pub writes: usize,
    /// Ranges that they were for.
    pub ranges: usize,
    /// Changes of epoch seen between two writes of a range.
    pub changes: usize,
    /// Pods made.
    pub pods: usize,
    /// ReplicaSets made.
    pub replica_sets: usize,
    /// Deployments and lone ReplicaSets that were only scaled up.
    pub only_grown: usize,
    /// Most pods beyond wanted among those, at any time.
    pub beyond: i64,
    /// Refused requests of managers.
    pub forbidden: BTreeMap<Forbidden, usize>,
    /// Tokens that the manager asked for, by service account.
    pub tokens: BTreeMap<String, usize>,
}

impl Judge {
    /// Takes in one record.
    pub fn read(&mut self, record: &AuditRecord) {
        if record.stage != "ResponseComplete" {
            return;
        }
        self.read_forbidden(record);
        if !record.is_write() {
            return;
        }
        if let Some(agent) = record.agent()
            && let (Some(range), Some(epoch)) = (agent.range, agent.epoch)
        {
            let arrived = record.request_received_timestamp;
            let writes = self.ranges.entry(range).or_default();
            writes.push((arrived, epoch, agent.replica));
        }
        if record.code().is_some_and(|code| (200..300).contains(&code)) && !is_dry_run(record) {
            self.read_granted(record);
        }
    }

    fn read_forbidden(&mut self, record: &AuditRecord) {
        let user = &record.user.username;
        let manager = MANAGERS.contains(&user.as_str())
            || (user.starts_with(CONTROLLERS) && record.agent().is_some());
        // A namespace that is being ended refuses creations with 403 too; no suite ends one.
        if record.code() == Some(403) && manager {
            let forbidden = Forbidden {
                user: user.clone(),
                verb: record.verb.clone(),
                resource: record.resource(),
            };
            *self.forbidden.entry(forbidden).or_default() += 1;
        }
    }

    fn read_granted(&mut self, record: &AuditRecord) {
        let object = record.object();
        let body = record.response_object.as_ref();
        let done = record.stage_timestamp;
        let resource = record.resource();
        let name = (object.namespace.clone(), name_of(&object.name, body));
        match (record.verb.as_str(), resource.as_str()) {
            ("create", "serviceaccounts/token")
                if MANAGERS.contains(&record.user.username.as_str()) =>
            {
                *self.tokens.entry(object.name).or_default() += 1;
            }
            // An eviction that the budgets allow is a deletion.
            ("create", "pods/eviction") => {
                let step = Step::Gone("pods".to_owned(), name);
                self.steps.push((record.request_received_timestamp, step));
            }
            ("delete", "pods" | "replicasets" | "deployments") => {
                let step = Step::Gone(resource, name);
                self.steps.push((record.request_received_timestamp, step));
            }
            ("deletecollection", _) => {
                let step = Step::AllGone(resource, object.namespace);
                self.steps.push((record.request_received_timestamp, step));
            }
            ("create" | "update" | "patch", "deployments") => {
                // A manager's patch answered with metadata alone changes no size and no template.
                let Some(body) = body.filter(|body| body["spec"].is_object()) else {
                    return;
                };
                let step = Step::Deployment(
                    name,
                    text(&body["metadata"]["uid"]),
                    body["spec"]["template"].to_string(),
                    replicas(body),
                );
                // Growing counts from the arrival: the controller may have seen it before the answer.
                self.steps.push((record.request_received_timestamp, step));
            }
            ("create" | "update" | "patch", "deployments/scale" | "replicasets/scale") => {
                let Some(body) = body else { return };
                let step = Step::Scaled(object.resource, name, replicas(body));
                self.steps.push((record.request_received_timestamp, step));
            }
            ("create", "replicasets") => {
                let Some(body) = body else { return };
                // One that asks for its metadata alone gets no spec in the answer.
                let spec = Some(body).filter(|body| body["spec"].is_object());
                let Some(whole) = spec.or(record.request_object.as_ref()) else {
                    return;
                };
                let step = Step::ReplicaSet(
                    name.clone(),
                    text(&body["metadata"]["uid"]),
                    controller_of(body),
                    template_without_hash(whole),
                    replicas(whole),
                );
                self.steps.push((done, step));
                self.created.push((done, resource, name));
            }
            ("create", "pods") => {
                let Some(owner) = body.and_then(controller_of) else {
                    return;
                };
                self.steps.push((done, Step::Pod(name.clone(), owner)));
                self.created.push((done, resource, name));
            }
            _ => {}
        }
    }

    /// What all that was read comes to.
    pub fn verdict(&self) -> Verdict {
        let mut verdict = Verdict {
            writes: self.ranges.values().map(Vec::len).sum(),
            ranges: self.ranges.len(),
            forbidden: self.forbidden.clone(),
            tokens: self.tokens.clone(),
            ..Verdict::default()
        };
        self.judge_epochs(&mut verdict);
        self.judge_pods(&mut verdict);
        verdict
    }

    fn judge_epochs(&self, verdict: &mut Verdict) {
        for (range, writes) in &self.ranges {
            let mut writes: Vec<_> = writes.iter().collect();
            // The log is written when requests end; what counts is when they arrived.
            writes.sort_by_key(|(arrived, epoch, _)| (*arrived, *epoch));
            let mut newest: Option<(u64, &str)> = None;
            for (arrived, epoch, replica) in writes {
                match newest {
                    Some((before, by)) if *epoch < before => verdict.complaints.push(format!(
                        "range {range}: {replica} wrote with epoch {epoch} at {arrived}, after {by} with epoch {before}"
                    )),
                    Some((before, by)) if *epoch == before && by != replica => {
                        verdict.complaints.push(format!(
                            "range {range}: {by} and {replica} both wrote with epoch {epoch}, at {arrived}"
                        ));
                    }
                    Some((before, _)) => {
                        verdict.changes += usize::from(*epoch > before);
                        newest = Some((*epoch, replica));
                    }
                    None => newest = Some((*epoch, replica)),
                }
            }
        }
    }

    fn judge_pods(&self, verdict: &mut Verdict) {
        let mut steps: Vec<_> = self.steps.iter().collect();
        // At the same microsecond: growth, then deletions, then creations; never counted too high.
        steps.sort_by_key(|(at, step)| (*at, step.rank()));
        let mut world = World::default();
        for (at, step) in steps {
            world.take(*at, step, verdict);
        }
        verdict.only_grown = world
            .wants
            .values()
            .filter(|wants| wants.only_grown)
            .count();
        for wants in world.wants.values().filter(|wants| wants.only_grown) {
            verdict.beyond = verdict.beyond.max(wants.beyond);
            if wants.beyond > 0 {
                let (namespace, name) = &wants.name;
                verdict.complaints.push(format!(
                    "{namespace}/{name} had {} pods beyond those wanted, first at {}",
                    wants.beyond,
                    wants
                        .beyond_at
                        .map_or_else(String::new, |at| at.to_string())
                ));
            }
        }
    }
}

impl Step {
    fn rank(&self) -> u8 {
        match self {
            Self::Deployment(..) | Self::Scaled(..) => 0,
            Self::ReplicaSet(..) => 1,
            Self::Gone(..) | Self::AllGone(..) => 2,
            Self::Pod(..) => 3,
        }
    }
}

/// What wants pods, by uid.
#[derive(Debug, Default)]
struct Wants {
    name: Name,
    template: String,
    replicas: i64,
    pods: BTreeSet<Name>,
    only_grown: bool,
    beyond: i64,
    beyond_at: Option<Timestamp>,
}

#[derive(Debug, Default)]
struct World {
    wants: BTreeMap<String, Wants>,
    /// ReplicaSet's uid → the uid of what wants its pods.
    parents: BTreeMap<String, String>,
    /// Living ReplicaSets: owner's uid and template.
    sets: BTreeMap<Name, (Option<String>, String)>,
    pods: BTreeMap<Name, String>,
}

impl World {
    fn take(&mut self, at: Timestamp, step: &Step, verdict: &mut Verdict) {
        match step {
            Step::Deployment(name, uid, template, replicas) => {
                let wants = self.wants.entry(uid.clone()).or_insert_with(|| Wants {
                    name: name.clone(),
                    template: template.clone(),
                    replicas: *replicas,
                    only_grown: true,
                    ..Wants::default()
                });
                wants.only_grown &= wants.template == *template && wants.replicas <= *replicas;
                wants.replicas = *replicas;
            }
            Step::Scaled(resource, name, replicas) => {
                let lone = resource == "replicasets";
                for (uid, wants) in &mut self.wants {
                    // A Deployment's own ReplicaSets are no wants of theirs.
                    let is_set = self.parents.get(uid) == Some(uid);
                    if wants.name == *name && is_set == lone {
                        wants.only_grown &= wants.replicas <= *replicas;
                        wants.replicas = *replicas;
                    }
                }
            }
            Step::ReplicaSet(name, uid, owner, template, replicas) => {
                verdict.replica_sets += 1;
                let twin = self.sets.iter().find(|(other, (its_owner, its_template))| {
                    *other != name
                        && owner.is_some()
                        && its_owner == owner
                        && its_template == template
                });
                if let Some(((_, twin), _)) = twin {
                    verdict.complaints.push(format!(
                        "{}/{}: a second ReplicaSet of the template that {twin} has",
                        name.0, name.1
                    ));
                }
                if self
                    .sets
                    .insert(name.clone(), (owner.clone(), template.clone()))
                    .is_some()
                {
                    let complaint = format!("replicasets {}/{} was created twice", name.0, name.1);
                    verdict.complaints.push(complaint);
                }
                if owner.is_none() {
                    let wants = Wants {
                        name: name.clone(),
                        replicas: *replicas,
                        only_grown: true,
                        ..Wants::default()
                    };
                    self.wants.insert(uid.clone(), wants);
                }
                let parent = owner.clone().unwrap_or_else(|| uid.clone());
                self.parents.insert(uid.clone(), parent);
            }
            Step::Pod(name, owner) => {
                verdict.pods += 1;
                let wanted_by = self.parents.get(owner).unwrap_or(owner).clone();
                if self.pods.insert(name.clone(), wanted_by.clone()).is_some() {
                    let complaint = format!("pods {}/{} was created twice", name.0, name.1);
                    verdict.complaints.push(complaint);
                }
                if let Some(wants) = self.wants.get_mut(&wanted_by) {
                    wants.pods.insert(name.clone());
                    let living = i64::try_from(wants.pods.len()).unwrap_or(i64::MAX);
                    let beyond = living - wants.replicas;
                    if wants.only_grown && beyond > wants.beyond {
                        wants.beyond = beyond;
                        wants.beyond_at.get_or_insert(at);
                    }
                }
            }
            Step::Gone(resource, name) => self.gone(resource, name),
            Step::AllGone(resource, namespace) => {
                let names: Vec<Name> = match resource.as_str() {
                    "pods" => self.pods.keys().cloned().collect(),
                    "replicasets" => self.sets.keys().cloned().collect(),
                    _ => Vec::new(),
                };
                for name in names.iter().filter(|name| name.0 == *namespace) {
                    self.gone(resource, name);
                }
            }
        }
    }

    fn gone(&mut self, resource: &str, name: &Name) {
        match resource {
            "replicasets" => {
                self.sets.remove(name);
            }
            "pods" => {
                if let Some(owner) = self.pods.remove(name)
                    && let Some(wants) = self.wants.get_mut(&owner)
                {
                    wants.pods.remove(name);
                }
            }
            // Its pods are somebody else's to delete, in their own time.
            _ => self.wants.retain(|_, wants| {
                let same = wants.name == *name;
                !(same && wants.pods.is_empty())
            }),
        }
    }
}

fn is_dry_run(record: &AuditRecord) -> bool {
    record.request_uri.contains("dryRun=All")
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn name_of(asked: &str, body: Option<&Value>) -> String {
    // A creation by generateName has its name in the answer alone.
    let given = body.map(|body| text(&body["metadata"]["name"]));
    given
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| asked.to_owned())
}

/// One, where a request leaves it out; a Scale leaves out zero.
fn replicas(body: &Value) -> i64 {
    let default = i64::from(body["kind"] != "Scale");
    body["spec"]["replicas"].as_i64().unwrap_or(default)
}

fn controller_of(body: &Value) -> Option<String> {
    let owners = body["metadata"]["ownerReferences"].as_array()?;
    let controller = owners.iter().find(|owner| owner["controller"] == true)?;
    Some(text(&controller["uid"]))
}

/// What two ReplicaSets of one Deployment must differ in.
fn template_without_hash(body: &Value) -> String {
    let mut template = body["spec"]["template"].clone();
    if let Some(labels) = template["metadata"]["labels"].as_object_mut() {
        labels.remove("pod-template-hash");
    }
    template.to_string()
}

impl Verdict {
    /// The figures in one line.
    pub fn summary(&self) -> String {
        format!(
            "{} writes for {} ranges, {} changes of epoch between them; {} ReplicaSets and {} pods made; \
             {} owners only scaled up, most pods beyond wanted {}; {} forbidden; {} tokens; {} complaints",
            self.writes,
            self.ranges,
            self.changes,
            self.replica_sets,
            self.pods,
            self.only_grown,
            self.beyond,
            self.forbidden.values().sum::<usize>(),
            self.tokens.values().sum::<usize>(),
            self.complaints.len()
        )
    }
}

#[cfg(test)]
mod tests;
