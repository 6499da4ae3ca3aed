//! The simulated API server: requests as they come over the wire, answered from kit's `World` and a store of
//! Leases.
//!
//! Resources are those of the world's catalogue, which discovery shows, and kit's objects; Leases are JSON;
//! Events are names that exist; metrics are worked out from what the world serves as load (`metrics.rs`).
//! Whatever the manager does not ask for is answered as a path that nobody serves. `tests/conformance.rs`
//! holds it to the real one.

use std::{cmp::Ordering, collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use controllers_kit::{
    Action, Failure, Key, Only, PatchKind, Plan, Propagation, Reader, StatusWrite, Str, Verb,
    Written, is_json, patch::apply_merge, testing::World,
};
use http::Method;
use jiff::Timestamp;
use kubernetes_proto::{
    AnyObject, Object, Resource, cast,
    coordination::Lease,
    core::{PersistentVolume, PersistentVolumeClaim},
    envelope,
    meta::{self, ObjectMeta, PartialObjectMetadata},
};
use prost::Message as _;
use serde_json::{Value, json};
use tokio::{sync::Notify, time::Instant};

use crate::{discovery, heartbeats::Heartbeats, identity, metrics, selection::Selection, storage};

const JSON: &str = "application/json";
const LEASES: &str = "leases";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

/// A request as the server reads it.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its method.
    pub method: Method,
    /// Without the query.
    pub path: String,
    /// Unescaped.
    pub query: Vec<(String, String)>,
    /// Of the body.
    pub content_type: String,
    /// What is wanted back.
    pub accept: String,
    /// Who asks.
    pub user_agent: String,
    /// The body.
    pub body: Bytes,
}

impl Request {
    fn parameter(&self, name: &str) -> &str {
        self.query
            .iter()
            .find(|(key, _)| key == name)
            .map_or("", |(_, value)| value)
    }

    /// Whether it writes: a review only asks.
    pub fn writes(&self) -> bool {
        self.method != Method::GET && !self.path.ends_with(REVIEWS)
    }

    /// Whether it is about Leases.
    pub fn about_leases(&self) -> bool {
        self.path.contains("/leases")
    }
}

/// An answer.
pub enum Answer {
    /// A body.
    Whole {
        /// HTTP's.
        code: u16,
        /// Of the body.
        content_type: &'static str,
        /// The body.
        body: Vec<u8>,
    },
    /// A watch that has begun.
    Watch(Opened),
}

/// A watch that has begun.
pub struct Opened {
    /// What is watched.
    pub of: Log,
    /// The only object's name, if it is for one.
    pub only: String,
    /// Whether metadata is all that is wanted.
    pub metadata: bool,
    /// What is sent at once.
    pub first: Vec<Vec<u8>>,
    /// The place in the log from which it continues.
    pub at: usize,
    /// Reports when the log has grown. (No `watch` channel: it wakes its receivers in a random order.)
    pub grows: Arc<Notify>,
}

/// Which log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Log {
    /// Of a resource.
    Of(&'static Resource),
    /// Of Leases.
    Leases,
}

/// What a write did.
#[derive(Clone, Debug)]
pub struct Change {
    /// Before; `None` where it was made.
    pub old: Option<AnyObject>,
    /// After; `None` where it has gone.
    pub new: Option<AnyObject>,
}

impl Change {
    /// The newest form.
    pub fn object(&self) -> &AnyObject {
        self.new
            .as_ref()
            .or(self.old.as_ref())
            .expect("a change has a before or an after")
    }
}

#[derive(Clone)]
enum Content {
    Object(AnyObject),
    Lease(Value),
}

#[derive(Clone)]
struct Happened {
    at: Instant,
    version: u64,
    kind: &'static str,
    name: Str,
    content: Content,
}

#[derive(Default)]
struct History {
    happened: Vec<Happened>,
    /// What is older can't be watched from any more.
    compacted: u64,
    grows: Arc<Notify>,
}

impl History {
    fn push(&mut self, happened: Happened) {
        self.happened.push(happened);
        self.grows.notify_waiters();
    }
}

type Place = (&'static Resource, Key);

/// The server.
pub struct Server {
    /// What it holds.
    pub world: World,
    /// The objects as the histories have them.
    known: BTreeMap<Place, AnyObject>,
    histories: BTreeMap<Log, History>,
    leases: BTreeMap<String, Value>,
    lease_version: u64,
    events: BTreeMap<String, u64>,
    /// The Leases as those see them who watch all namespaces, and nodes' signs of life.
    pub heartbeats: Heartbeats,
}

/// A refusal as a Status.
struct Refusal {
    code: u16,
    reason: &'static str,
    message: String,
    cause: Option<(&'static str, &'static str)>,
}

impl Refusal {
    fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            cause: None,
        }
    }

    fn not_found(what: &str) -> Self {
        Self::new(404, "NotFound", format!("{what} not found"))
    }

    fn answer(self) -> Answer {
        let causes: Vec<Value> = self
            .cause
            .iter()
            .map(|(reason, field)| json!({"reason": reason, "field": field, "message": self.message}))
            .collect();
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
            "details": {"causes": causes},
        });
        Answer::Whole {
            code: self.code,
            content_type: JSON,
            body: status.to_string().into_bytes(),
        }
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        let message = failure.to_string();
        match failure {
            Failure::Conflict(_) => Self::new(409, "Conflict", message),
            Failure::AlreadyExists(_) => Self::new(409, "AlreadyExists", message),
            Failure::NotFound(_) => Self::new(404, "NotFound", message),
            Failure::NamespaceTerminating(_) => Self {
                cause: Some(("NamespaceTerminating", "metadata.namespace")),
                ..Self::new(403, "Forbidden", message)
            },
            Failure::Forbidden(_) => Self::new(403, "Forbidden", message),
            Failure::Invalid(_) => Self::new(422, "Invalid", message),
            Failure::NotSupported(_) => Self::new(405, "MethodNotAllowed", message),
            Failure::Timeout(_) | Failure::Other(_) | Failure::Skipped | Failure::Fenced => {
                Self::new(500, "InternalError", message)
            }
        }
    }
}

/// A path's parts; empty where it has none.
pub struct Target<'a> {
    /// API group.
    pub group: &'a str,
    /// Namespace.
    pub namespace: &'a str,
    /// Plural.
    pub plural: &'a str,
    /// An object's name.
    pub name: &'a str,
    /// Subresource.
    pub subresource: &'a str,
}

/// Takes a path apart.
pub fn target(path: &str) -> Option<Target<'_>> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (group, rest) = match parts.as_slice() {
        ["api", _, rest @ ..] => ("", rest),
        ["apis", group, _, rest @ ..] => (*group, rest),
        _ => return None,
    };
    let (namespace, rest) = match rest {
        ["namespaces", namespace, plural, rest @ ..]
            if !(group.is_empty() && matches!(*plural, "status" | "finalize")) =>
        {
            (*namespace, [&[*plural], rest].concat())
        }
        _ => ("", rest.to_vec()),
    };
    let part = |index: usize| rest.get(index).copied().unwrap_or_default();
    Some(Target {
        group,
        namespace,
        plural: part(0),
        name: part(1),
        subresource: part(2),
    })
}

impl Server {
    /// Over a world.
    pub fn new(world: World) -> Self {
        let mut server = Self {
            world,
            known: BTreeMap::new(),
            histories: BTreeMap::new(),
            leases: BTreeMap::new(),
            lease_version: 1,
            events: BTreeMap::new(),
            heartbeats: Heartbeats::default(),
        };
        server.note();
        // What was there at the start can only be listed.
        server.compact();
        server
    }

    /// Lets the world be changed by somebody else, and notes what has changed.
    pub fn change(&mut self, change: impl FnOnce(&mut World)) -> Vec<Change> {
        let before = self.world.version();
        change(&mut self.world);
        if self.world.version() == before {
            return Vec::new();
        }
        self.note()
    }

    /// Moves the clock.
    pub fn advance_to(&mut self, at: Timestamp) {
        self.world.advance_to(at);
    }

    /// Forgets all history: a watch from before must list again.
    pub fn compact(&mut self) {
        let version = self.world.version();
        for (log, history) in &mut self.histories {
            history.compacted = match log {
                Log::Of(resource) if is_lease(resource) => self.lease_version,
                Log::Of(_) => version,
                Log::Leases => self.lease_version,
            };
        }
    }

    /// Takes a Lease away, as somebody does by hand.
    pub fn delete_lease(&mut self, name: &str) -> bool {
        let Some(mut lease) = self.leases.remove(name) else {
            return false;
        };
        self.lease_version += 1;
        lease["metadata"]["resourceVersion"] = self.lease_version.to_string().into();
        self.lease_happened("DELETED", name, lease);
        true
    }

    /// Sets a range Lease's epoch, as somebody does by hand.
    pub fn set_epoch(&mut self, name: &str, epoch: i32) {
        let edit = |lease: &mut Value| lease["spec"]["leaseTransitions"] = epoch.into();
        self.edit_lease(name, edit, "MODIFIED");
    }

    /// Takes the labels of a Lease, as somebody does by hand: for a watch by labels it is gone.
    pub fn unlabel(&mut self, name: &str) {
        let edit = |lease: &mut Value| lease["metadata"]["labels"] = json!({});
        self.edit_lease(name, edit, "DELETED");
    }

    fn edit_lease(&mut self, name: &str, edit: impl FnOnce(&mut Value), happens: &'static str) {
        let Some(lease) = self.leases.get_mut(name) else {
            return;
        };
        self.lease_version += 1;
        edit(lease);
        lease["metadata"]["resourceVersion"] = self.lease_version.to_string().into();
        let lease = lease.clone();
        self.lease_happened(happens, name, lease);
    }

    /// The Leases, by name.
    pub fn leases(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.leases
            .iter()
            .map(|(name, lease)| (name.as_str(), lease))
    }

    /// Writes what has changed since the last time into the histories, in the order of versions.
    fn note(&mut self) -> Vec<Change> {
        let mut changed: Vec<(u64, Place, Change)> = Vec::new();
        let mut gone: Vec<(Place, AnyObject)> = Vec::new();
        // Both are in order; what is the same object is passed over without a check of its name.
        let mut known = self.known.iter().peekable();
        let mut held = self.world.objects().peekable();
        loop {
            match (known.peek(), held.peek()) {
                (None, None) => break,
                (Some((_, old)), Some(new)) if Arc::ptr_eq(old, new) => {
                    known.next();
                    held.next();
                    continue;
                }
                _ => {}
            }
            let place = |object: &AnyObject| (object.resource(), Key::of_meta(object.metadata()));
            let order = match (known.peek(), held.peek()) {
                (Some((old, _)), Some(new)) => (*old).cmp(&place(new)),
                (Some(_), None) => Ordering::Less,
                _ => Ordering::Greater,
            };
            let old = known.next_if(|_| order.is_le());
            let new = held.next_if(|_| order.is_ge());
            let another = old
                .zip(new)
                .is_some_and(|((_, old), new)| old.metadata().uid != new.metadata().uid);
            if let Some((place, old)) = old.filter(|_| new.is_none() || another) {
                // Gone, and perhaps made again.
                gone.push((place.clone(), Arc::clone(old)));
            }
            if let Some(new) = new {
                let old = old.filter(|_| !another).map(|(_, old)| Arc::clone(old));
                changed.push((
                    new.metadata().resource_version,
                    place(new),
                    Change {
                        old,
                        new: Some(Arc::clone(new)),
                    },
                ));
            }
        }
        drop((known, held));
        for (place, _) in &gone {
            self.known.remove(place);
        }
        for (_, place, change) in &changed {
            if let Some(new) = &change.new {
                self.known.insert(place.clone(), Arc::clone(new));
            }
        }
        // A deletion takes a version that no object carries: the newest ones that are free.
        let mut version = self.world.version();
        for (place, old) in gone.into_iter().rev() {
            while changed.iter().any(|(taken, ..)| *taken == version) {
                version -= 1;
            }
            changed.push((
                version,
                place,
                Change {
                    old: Some(old),
                    new: None,
                },
            ));
        }
        changed.sort_by(|(one, place, _), (other, another, _)| (one, place).cmp(&(other, another)));
        for (version, (resource, key), change) in &changed {
            let (kind, object) = match (&change.old, &change.new) {
                (None, Some(new)) => ("ADDED", Arc::clone(new)),
                (_, Some(new)) => ("MODIFIED", Arc::clone(new)),
                (Some(old), None) => ("DELETED", at_version(old, *version)),
                (None, None) => continue,
            };
            self.history(Log::Of(resource)).push(Happened {
                at: Instant::now(),
                version: *version,
                kind,
                name: key.name.clone(),
                content: Content::Object(object),
            });
        }
        changed.into_iter().map(|(.., change)| change).collect()
    }

    fn history(&mut self, log: Log) -> &mut History {
        self.histories.entry(log).or_default()
    }

    /// Answers a request.
    pub fn handle(&mut self, request: &Request) -> (Answer, Vec<Change>) {
        match self.answer(request) {
            Ok(answer) => answer,
            Err(refusal) => (refusal.answer(), Vec::new()),
        }
    }

    fn answer(&mut self, request: &Request) -> Result<(Answer, Vec<Change>), Refusal> {
        if request.path == "/version" {
            return Ok((
                json_answer(200, &json!({"major": "1", "minor": "36"})),
                Vec::new(),
            ));
        }
        if matches!(request.path.as_str(), "/api" | "/apis") {
            let shown = discovery::document(&self.world.catalogue(), request.path == "/api");
            return Ok((json_answer(200, &shown), Vec::new()));
        }
        if request.path == REVIEWS && request.method == Method::POST {
            let answer = json_answer(201, &identity::review(&request.body));
            return Ok((answer, Vec::new()));
        }
        let nobody = || Refusal::not_found("the requested resource");
        if let Some(metrics) = metrics::answer(&self.world, &request.path, &request.query) {
            return Ok((json_answer(200, &metrics.ok_or_else(nobody)?), Vec::new()));
        }
        let target = target(&request.path).ok_or_else(nobody)?;
        if target.plural == LEASES && target.namespace.is_empty() {
            let answer = self.all_leases(request, &target)?;
            return Ok((answer, Vec::new()));
        }
        if target.plural == LEASES {
            return self
                .lease(request, &target)
                .map(|answer| (answer, Vec::new()));
        }
        if target.plural == "events" {
            return self
                .event(request, &target)
                .map(|answer| (answer, Vec::new()));
        }
        let resource = self
            .selected(&target, request.parameter("fieldSelector"))
            .or_else(|| {
                let catalogue = self.world.catalogue();
                let entry = catalogue.find(target.group, target.plural)?;
                Some(entry.resource)
            })
            .ok_or_else(nobody)?;
        let key = Key::new(target.namespace, target.name);
        if request.method == Method::GET {
            let answer = if request.parameter("watch") == "true" {
                self.watch(resource, request)?
            } else if target.subresource == "scale" {
                let missing = || Refusal::not_found(&format!("{:?}", key.name.as_str()));
                json_answer(200, &*self.world.scale(&request.path).ok_or_else(missing)?)
            } else if !target.subresource.is_empty() {
                return Err(nobody());
            } else if target.name.is_empty() {
                self.list(resource, &target, request)?
            } else {
                self.get(resource, &key)?
            };
            return Ok((answer, Vec::new()));
        }
        let action = self.action(resource, key, &target, request)?;
        self.check_binding(&action)?;
        let mut written = self.write(&action)?;
        self.admit_storage(&action, &mut written);
        let changes = self.note();
        let answer = match action.verb {
            Verb::Create { .. } => metadata_answer(201, &action.key, &written),
            Verb::DeleteCollection { .. } => json_answer(
                200,
                &json!({"kind": format!("{}List", resource.kind), "items": [],
                        "apiVersion": resource.api_version(), "metadata": {}}),
            ),
            Verb::Delete { .. } if written.resource_version == 0 => json_answer(
                200,
                &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
                        "details": {"name": action.key.name, "uid": written.uid}}),
            ),
            _ => metadata_answer(200, &action.key, &written),
        };
        Ok((answer, changes))
    }

    /// The selection that a request is for: by its field selector where it is for many objects, by where the
    /// object is held where it is for one.
    fn selected(&self, target: &Target<'_>, fields: &str) -> Option<&'static Resource> {
        let key = Key::new(target.namespace, target.name);
        let is_meant = |resource: &&'static Resource| {
            let Some(selection) = resource.selection else {
                return false;
            };
            let is_named = (resource.group, resource.plural) == (target.group, target.plural);
            let held = || Reader::get(&self.world, resource, &key.namespace, &key.name).is_some();
            let selects = target.name.is_empty() && fields.ends_with(selection.fields);
            is_named && (selects || (!target.name.is_empty() && held()))
        };
        kubernetes_proto::selections()
            .into_iter()
            .find(|resource| is_meant(resource))
    }

    /// A claim's volume never changes once it is set.
    fn check_binding(&self, action: &Action) -> Result<(), Refusal> {
        let Verb::Patch {
            subresource: "",
            patch,
            ..
        } = &action.verb
        else {
            return Ok(());
        };
        let key = &action.key;
        let is_claim = action.resource == PersistentVolumeClaim::resource();
        let held = Reader::get(&self.world, action.resource, &key.namespace, &key.name)
            .filter(|_| is_claim)
            .and_then(cast::<PersistentVolumeClaim>);
        let held = held.and_then(|claim| claim.spec.clone());
        let held = held.map(|spec| spec.volume_name).unwrap_or_default();
        let named = &patch["spec"]["volumeName"];
        match held.is_empty() || named.is_null() || *named == *held {
            true => Ok(()),
            false => Err(Refusal {
                cause: Some(("FieldValueForbidden", "spec")),
                ..Refusal::new(
                    422,
                    "Invalid",
                    "spec: Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims",
                )
            }),
        }
    }

    /// Claims and volumes are made pending, and protected by the admission `StorageObjectInUseProtection`;
    /// one that has gone is answered with itself.
    fn admit_storage(&mut self, action: &Action, written: &mut Written) {
        let of_storage = [
            PersistentVolumeClaim::resource(),
            PersistentVolume::resource(),
        ];
        if !of_storage.contains(&action.resource) {
            return;
        }
        match action.verb {
            Verb::Create { .. } => {}
            Verb::Delete { .. } if written.gone => {
                written.resource_version = self.world.version();
                return;
            }
            _ => return,
        }
        let key = action.key.to_string();
        let protect = |meta: &mut ObjectMeta, finalizer: &str| {
            if !meta.finalizers.iter().any(|held| **held == *finalizer) {
                meta.finalizers.push(finalizer.into());
            }
        };
        if action.resource == PersistentVolumeClaim::resource() {
            self.world.change::<PersistentVolumeClaim>(&key, |claim| {
                claim.status.get_or_insert_default().phase = "Pending".to_owned();
                protect(claim.metadata_mut(), storage::OF_CLAIM);
            });
        } else {
            self.world.change::<PersistentVolume>(&key, |volume| {
                volume.status.get_or_insert_default().phase = "Pending".to_owned();
                protect(volume.metadata_mut(), storage::OF_VOLUME);
            });
        }
        written.resource_version = self.world.version();
    }

    fn write(&mut self, action: &Action) -> Result<Written, Refusal> {
        let plan = Plan {
            stages: vec![vec![action.clone()]],
            ..Plan::default()
        };
        let mut applied = self.world.apply(&plan);
        let (_, result) = applied.0.remove(0);
        Ok(result?)
    }

    /// What a request to write asks for.
    fn action(
        &self,
        resource: &'static Resource,
        key: Key,
        target: &Target<'_>,
        request: &Request,
    ) -> Result<Action, Refusal> {
        let mut action = Action {
            verb: Verb::Create { body: Vec::new() },
            resource,
            key,
            uid: Str::default(),
            resource_version: 0,
            announcement: None,
        };
        let bad = |what: &str| Refusal::new(400, "BadRequest", what);
        let body_json = || {
            serde_json::from_slice::<Value>(&request.body)
                .map_err(|error| bad(&format!("the body can't be read: {error}")))
        };
        if request.method == Method::POST {
            let body = if is_json(&request.body) {
                request.body.to_vec()
            } else {
                envelope::open(&request.body)
                    .map_err(|error| bad(&error.to_string()))?
                    .raw
                    .to_vec()
            };
            let name = if is_json(&body) {
                body_json()?["metadata"]["name"].as_str().map(Str::from)
            } else {
                let glimpse = envelope::glimpse(&body);
                Some(Str::from(glimpse.name))
            };
            action.key.name = name.unwrap_or_default();
            action.verb = Verb::Create { body };
        } else if request.method == Method::PATCH {
            let mut patch = body_json()?;
            let kind = match request.content_type.as_str() {
                "application/merge-patch+json" => PatchKind::Merge,
                "application/strategic-merge-patch+json" => PatchKind::Strategic,
                "application/apply-patch+yaml" => {
                    let fields = patch.as_object_mut().expect("an apply names its object");
                    fields.remove("apiVersion");
                    fields.remove("kind");
                    if let Some(metadata) = fields["metadata"].as_object_mut() {
                        metadata.remove("name");
                        metadata.remove("namespace");
                    }
                    PatchKind::Apply { manager: "" }
                }
                other => {
                    return Err(Refusal::new(
                        415,
                        "UnsupportedMediaType",
                        format!("a patch of type {other}"),
                    ));
                }
            };
            action.resource_version = version_in(&patch["metadata"]);
            // The uid comes after the version, and is a field like any other that can't be changed.
            let uid = patch["metadata"]["uid"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            let key = &action.key;
            if let Some(held) = Reader::get(&self.world, resource, &key.namespace, &key.name)
                .filter(|held| !uid.is_empty() && held.metadata().uid != *uid)
            {
                let version = held.metadata().resource_version;
                // A scale is no field of the object: its uid is a precondition, which the world checks.
                let is_field = target.subresource != "scale";
                if is_field && (action.resource_version == 0 || action.resource_version == version)
                {
                    return Err(Refusal {
                        cause: Some(("FieldValueInvalid", "metadata.uid")),
                        ..Refusal::new(
                            422,
                            "Invalid",
                            format!("metadata.uid: Invalid value: {uid:?}: field is immutable"),
                        )
                    });
                }
            }
            action.uid = uid.as_str().into();
            if let Some(metadata) = patch["metadata"].as_object_mut() {
                metadata.remove("uid");
                metadata.remove("resourceVersion");
                if metadata.is_empty() {
                    patch
                        .as_object_mut()
                        .expect("it has metadata")
                        .remove("metadata");
                }
            } else if patch.get("metadata").is_some_and(Value::is_null) {
                patch
                    .as_object_mut()
                    .expect("it has metadata")
                    .remove("metadata");
            }
            action.verb = Verb::Patch {
                subresource: match target.subresource {
                    "" => "",
                    "status" => "status",
                    "scale" => "scale",
                    "approval" if resource.plural == "certificatesigningrequests" => "approval",
                    _ => return Err(Refusal::not_found("the requested resource")),
                },
                kind,
                patch,
                report: StatusWrite::No,
            };
        } else if request.method == Method::DELETE {
            let options = if request.body.is_empty() {
                json!({})
            } else {
                body_json()?
            };
            let propagation = match options["propagationPolicy"].as_str() {
                Some("Foreground") => Propagation::Foreground,
                Some("Orphan") => Propagation::Orphan,
                _ => Propagation::Background,
            };
            if action.key.name.is_empty() {
                action.verb = Verb::DeleteCollection { propagation };
                return Ok(action);
            }
            let conditions = &options["preconditions"];
            action.uid = conditions["uid"].as_str().unwrap_or_default().into();
            action.resource_version = version_in(conditions);
            action.verb = Verb::Delete {
                only: match action.resource_version {
                    0 => Only::ThisUid,
                    _ => Only::ThisVersion,
                },
                propagation,
                grace_period_seconds: options["gracePeriodSeconds"].as_i64(),
            };
        } else if request.method == Method::PUT
            && (resource.id().as_str(), target.subresource) == ("namespaces", "finalize")
        {
            let body = body_json()?;
            let uid = body["metadata"]["uid"].as_str().unwrap_or_default();
            action.uid = uid.into();
            action.verb = Verb::Replace {
                subresource: "finalize",
                body,
            };
        } else {
            return Err(Refusal::new(405, "MethodNotAllowed", "not done here"));
        }
        Ok(action)
    }

    fn get(&self, resource: &'static Resource, key: &Key) -> Result<Answer, Refusal> {
        let object =
            Reader::get(&self.world, resource, &key.namespace, &key.name).ok_or_else(|| {
                Refusal::not_found(&format!("{} {:?}", resource.id(), key.name.as_str()))
            })?;
        let mut json = object.to_json();
        json["kind"] = resource.kind.into();
        json["apiVersion"] = resource.api_version().into();
        Ok(json_answer(200, &json))
    }

    fn list(
        &self,
        resource: &'static Resource,
        target: &Target<'_>,
        request: &Request,
    ) -> Result<Answer, Refusal> {
        let namespace = (!target.namespace.is_empty()).then_some(target.namespace);
        let objects = Reader::list(&self.world, resource, namespace);
        Self::list_of(resource, request, &objects, self.world.version())
    }

    fn list_of(
        resource: &'static Resource,
        request: &Request,
        objects: &[AnyObject],
        version: u64,
    ) -> Result<Answer, Refusal> {
        let selector = selection(request)?;
        let only = request
            .parameter("fieldSelector")
            .strip_prefix("metadata.name=")
            .map_or("", |rest| rest.split(',').next().unwrap_or_default());
        let metadata_alone = request.accept.contains("as=PartialObjectMetadataList");
        let kind = format!("{}List", resource.kind);
        let chosen = objects
            .iter()
            .filter(|object| selector.matches(&object.metadata().labels))
            .filter(|object| only.is_empty() || object.metadata().name == *only);
        if request.accept == JSON {
            let items: Vec<Value> = chosen.map(|object| object.to_json()).collect();
            let list = json!({"kind": kind, "apiVersion": resource.api_version(),
                "metadata": {"resourceVersion": version.to_string()}, "items": items});
            return Ok(json_answer(200, &list));
        }
        let items = chosen
            .map(|object| {
                if metadata_alone {
                    PartialObjectMetadata {
                        metadata: Some(object.metadata().clone()),
                    }
                    .encode_to_vec()
                } else {
                    object.encode()
                }
            })
            .collect();
        let list = meta::List {
            metadata: Some(meta::ListMeta {
                resource_version: version.to_string(),
                ..meta::ListMeta::default()
            }),
            items,
        };
        Ok(Answer::Whole {
            code: 200,
            content_type: envelope::PROTOBUF,
            body: envelope::wrap(&resource.api_version(), &kind, list.encode_to_vec()),
        })
    }

    fn watch(&mut self, resource: &'static Resource, request: &Request) -> Result<Answer, Refusal> {
        let objects = Reader::list(&self.world, resource, None);
        let version = self.world.version();
        self.watch_of(resource, request, &objects, version)
    }

    fn watch_of(
        &mut self,
        resource: &'static Resource,
        request: &Request,
        objects: &[AnyObject],
        version: u64,
    ) -> Result<Answer, Refusal> {
        let only = request
            .parameter("fieldSelector")
            .strip_prefix("metadata.name=")
            .unwrap_or_default()
            .to_owned();
        let metadata = request.accept.contains("as=PartialObjectMetadata;");
        let mut first = Vec::new();
        let from = if request.parameter("sendInitialEvents") == "true" {
            for object in objects {
                if only.is_empty() || object.metadata().name == *only {
                    first.push(object_frame("ADDED", object, metadata));
                }
            }
            first.push(bookmark_frame(resource, version, true));
            version
        } else {
            request
                .parameter("resourceVersion")
                .parse()
                .map_err(|_| Refusal::new(400, "BadRequest", "a watch wants a resourceVersion"))?
        };
        let history = self.history(Log::Of(resource));
        if from > version {
            return Err(Refusal {
                cause: Some(("ResourceVersionTooLarge", "")),
                ..Refusal::new(
                    504,
                    "Timeout",
                    format!("Too large resource version: {from}, current: {version}"),
                )
            });
        }
        if from < history.compacted {
            first.clear();
            first.push(error_frame(
                410,
                "Expired",
                &format!("too old resource version: {from}"),
            ));
            return Ok(Answer::Watch(Opened {
                of: Log::Of(resource),
                only,
                metadata,
                first,
                at: usize::MAX,
                grows: Arc::clone(&history.grows),
            }));
        }
        let at = history.happened.partition_point(|one| one.version <= from);
        Ok(Answer::Watch(Opened {
            of: Log::Of(resource),
            only,
            metadata,
            first,
            at,
            grows: Arc::clone(&history.grows),
        }))
    }

    /// What a watch has to send from a place on, as frames: at most `most` changes; with `skip`, only the
    /// last of several changes of one object; without what a deliberate fault hides. And the place after
    /// them.
    pub fn frames(
        &self,
        watch: &Opened,
        most: usize,
        skip: bool,
        hides: &dyn Fn(&str, Option<&AnyObject>) -> bool,
    ) -> (Vec<Vec<u8>>, usize) {
        let Some(history) = self.histories.get(&watch.of) else {
            return (Vec::new(), watch.at);
        };
        let end = history.happened.len().min(watch.at.saturating_add(most));
        let part = &history.happened[watch.at.min(end)..end];
        let mut frames = Vec::new();
        for (index, one) in part.iter().enumerate() {
            let another = !watch.only.is_empty() && one.name != *watch.only;
            let object = match &one.content {
                Content::Object(object) => Some(object),
                Content::Lease(_) => None,
            };
            if another || hides(one.kind, object) {
                continue;
            }
            let later = |other: &Happened| match (&one.content, &other.content) {
                (Content::Object(one), Content::Object(other)) => {
                    one.metadata().uid == other.metadata().uid
                }
                _ => false,
            };
            let replaced = skip
                && one.kind == "MODIFIED"
                && part[index + 1..]
                    .iter()
                    .any(|other| other.kind == "MODIFIED" && later(other));
            if !replaced {
                frames.push(match &one.content {
                    Content::Object(object) => object_frame(one.kind, object, watch.metadata),
                    Content::Lease(lease) => lease_frame(one.kind, lease),
                });
            }
        }
        (frames, end)
    }

    /// When the last change before a place happened.
    pub fn happened_at(&self, log: Log, place: usize) -> Option<Instant> {
        let before = place.checked_sub(1)?;
        Some(self.histories.get(&log)?.happened.get(before)?.at)
    }

    /// How much has happened so far.
    pub fn length(&self, log: Log) -> usize {
        self.histories
            .get(&log)
            .map_or(0, |history| history.happened.len())
    }

    /// A bookmark for a watch that has seen everything.
    pub fn bookmark(&self, log: Log) -> Vec<u8> {
        match log {
            Log::Of(resource) if is_lease(resource) => {
                bookmark_frame(resource, self.lease_version, false)
            }
            Log::Of(resource) => bookmark_frame(resource, self.world.version(), false),
            Log::Leases => lease_frame(
                "BOOKMARK",
                &json!({"kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": {
                    "resourceVersion": self.lease_version.to_string()}, "spec": {}}),
            ),
        }
    }

    // ---- Events ----

    fn event(&mut self, request: &Request, target: &Target<'_>) -> Result<Answer, Refusal> {
        let json: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let known = self.events.len() as u64 + 1;
        let (name, create) = if request.method == Method::POST {
            let name = json["metadata"]["name"].as_str().unwrap_or_default();
            (name.to_owned(), true)
        } else {
            (target.name.to_owned(), false)
        };
        let place = format!("{}/{name}", target.namespace);
        match (create, self.events.contains_key(&place)) {
            (true, true) => {
                return Err(Refusal::new(
                    409,
                    "AlreadyExists",
                    format!("events {name:?} already exists"),
                ));
            }
            (false, false) => return Err(Refusal::not_found(&format!("events {name:?}"))),
            _ => *self.events.entry(place).or_insert(known) += 1,
        }
        let written = Written {
            uid: Str::from(format!("event-{known}")),
            resource_version: known,
            gone: false,
        };
        let key = Key::new(target.namespace, name);
        Ok(metadata_answer(
            if create { 201 } else { 200 },
            &key,
            &written,
        ))
    }

    // ---- Leases ----

    /// What those see who watch the Leases of all namespaces.
    fn all_leases(&mut self, request: &Request, target: &Target<'_>) -> Result<Answer, Refusal> {
        let (resource, version) = (Lease::resource(), self.lease_version);
        let objects = self.heartbeats.leases();
        match (request.method == Method::GET, request.parameter("watch")) {
            (true, "true") => self.watch_of(resource, request, &objects, version),
            (true, _) if target.name.is_empty() => {
                Self::list_of(resource, request, &objects, version)
            }
            _ => Err(Refusal::new(405, "MethodNotAllowed", "not done here")),
        }
    }

    /// A node's kubelet renews its Lease.
    pub fn renew(&mut self, node: &str) {
        self.lease_version += 1;
        let version = self.lease_version;
        let (kind, lease) = self.heartbeats.renew(node, version, self.world.now());
        self.lease_object_happened(kind, node, lease);
    }

    fn lease_object_happened(&mut self, kind: &'static str, name: &str, lease: AnyObject) {
        let version = self.lease_version;
        self.history(Log::Of(Lease::resource())).push(Happened {
            at: Instant::now(),
            version,
            kind,
            name: name.into(),
            content: Content::Object(lease),
        });
    }

    fn lease_happened(&mut self, kind: &'static str, name: &str, lease: Value) {
        let version = self.lease_version;
        let object = self.heartbeats.of_fleet(kind, version, &lease);
        self.lease_object_happened(kind, name, object);
        self.history(Log::Leases).push(Happened {
            at: Instant::now(),
            version,
            kind,
            name: name.into(),
            content: Content::Lease(lease),
        });
    }

    fn lease(&mut self, request: &Request, target: &Target<'_>) -> Result<Answer, Refusal> {
        let selector = selection(request)?;
        let missing =
            || Refusal::not_found(&format!("leases.coordination.k8s.io {:?}", target.name));
        if request.method == Method::GET && request.parameter("watch") == "true" {
            let from: u64 = request.parameter("resourceVersion").parse().unwrap_or(0);
            let history = self.history(Log::Leases);
            let (at, first) = if from < history.compacted {
                let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
                    "status": "Failure", "code": 410, "reason": "Expired",
                    "message": format!("too old resource version: {from}")});
                (usize::MAX, vec![lease_frame("ERROR", &status)])
            } else {
                let at = history.happened.partition_point(|one| one.version <= from);
                (at, Vec::new())
            };
            return Ok(Answer::Watch(Opened {
                of: Log::Leases,
                only: String::new(),
                metadata: false,
                first,
                at,
                grows: Arc::clone(&history.grows),
            }));
        }
        if request.method == Method::GET && target.name.is_empty() {
            let items: Vec<&Value> = self
                .leases
                .values()
                .filter(|lease| selector.matches_json(&lease["metadata"]["labels"]))
                .collect();
            return Ok(json_answer(
                200,
                &json!({"kind": "LeaseList", "apiVersion": "coordination.k8s.io/v1",
                        "metadata": {"resourceVersion": self.lease_version.to_string()},
                        "items": items}),
            ));
        }
        if request.method == Method::GET {
            return Ok(json_answer(
                200,
                self.leases.get(target.name).ok_or_else(missing)?,
            ));
        }
        let body: Value = serde_json::from_slice(&request.body)
            .map_err(|error| Refusal::new(400, "BadRequest", error.to_string()))?;
        if request.method == Method::POST {
            let name = body["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            if self.leases.contains_key(&name) {
                return Err(Refusal::new(
                    409,
                    "AlreadyExists",
                    format!("leases.coordination.k8s.io {name:?} already exists"),
                ));
            }
            self.lease_version += 1;
            let mut lease = body;
            lease["kind"] = "Lease".into();
            lease["apiVersion"] = "coordination.k8s.io/v1".into();
            lease["metadata"]["namespace"] = target.namespace.into();
            lease["metadata"]["uid"] = format!("lease-{}", self.lease_version).into();
            lease["metadata"]["resourceVersion"] = self.lease_version.to_string().into();
            self.leases.insert(name.clone(), lease.clone());
            self.lease_happened("ADDED", &name, lease.clone());
            return Ok(json_answer(201, &lease));
        }
        let held = self.leases.get(target.name).ok_or_else(missing)?;
        if request.method == Method::DELETE {
            let asked = version_in(&body["preconditions"]);
            let found = version_in(&held["metadata"]);
            if asked != 0 && asked != found {
                return Err(Refusal::new(
                    409,
                    "Conflict",
                    format!(
                        "Operation cannot be fulfilled on leases.coordination.k8s.io {:?}: the ResourceVersion in the precondition ({asked}) does not match the ResourceVersion in record ({found}). The object might have been modified",
                        target.name
                    ),
                ));
            }
            self.delete_lease(target.name);
            return Ok(json_answer(
                200,
                &json!({"kind": "Status", "apiVersion": "v1",
                "metadata": {}, "status": "Success"}),
            ));
        }
        let asked = version_in(&body["metadata"]);
        if asked != 0 && asked != version_in(&held["metadata"]) {
            return Err(Refusal::new(
                409,
                "Conflict",
                format!(
                    "Operation cannot be fulfilled on leases.coordination.k8s.io {:?}: the object has been modified; please apply your changes to the latest version and try again",
                    target.name
                ),
            ));
        }
        let mut lease = held.clone();
        apply_merge(&mut lease, &body);
        lease["metadata"]["resourceVersion"] = held["metadata"]["resourceVersion"].clone();
        if lease == *held {
            return Ok(json_answer(200, &lease));
        }
        self.lease_version += 1;
        lease["metadata"]["resourceVersion"] = self.lease_version.to_string().into();
        self.leases.insert(target.name.to_owned(), lease.clone());
        self.lease_happened("MODIFIED", target.name, lease.clone());
        Ok(json_answer(200, &lease))
    }
}

fn is_lease(resource: &Resource) -> bool {
    resource.id() == Lease::resource().id()
}

/// A resourceVersion in JSON; 0 where there is none.
fn version_in(metadata: &Value) -> u64 {
    metadata["resourceVersion"]
        .as_str()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}

fn at_version(object: &AnyObject, version: u64) -> AnyObject {
    let mut json = object.to_json();
    json["metadata"]["resourceVersion"] = version.to_string().into();
    let resource = object.resource();
    (resource.from_json)(resource, json).expect("only the version has changed")
}

fn selection(request: &Request) -> Result<Selection, Refusal> {
    Selection::parse(request.parameter("labelSelector"))
        .map_err(|why| Refusal::new(400, "BadRequest", why))
}

fn json_answer(code: u16, json: &Value) -> Answer {
    Answer::Whole {
        code,
        content_type: JSON,
        body: json.to_string().into_bytes(),
    }
}

fn metadata_answer(code: u16, key: &Key, written: &Written) -> Answer {
    let partial = PartialObjectMetadata {
        metadata: Some(ObjectMeta {
            name: key.name.clone(),
            namespace: key.namespace.clone(),
            uid: written.uid.clone(),
            resource_version: written.resource_version,
            ..ObjectMeta::default()
        }),
    };
    Answer::Whole {
        code,
        content_type: envelope::PROTOBUF,
        body: envelope::wrap(
            "meta.k8s.io/v1",
            "PartialObjectMetadata",
            partial.encode_to_vec(),
        ),
    }
}

fn framed(frame: &[u8]) -> Vec<u8> {
    let length = u32::try_from(frame.len()).expect("frames are small");
    let mut bytes = length.to_be_bytes().to_vec();
    bytes.extend_from_slice(frame);
    bytes
}

fn object_frame(kind: &str, object: &AnyObject, metadata: bool) -> Vec<u8> {
    let resource = object.resource();
    let body = if metadata {
        let partial = PartialObjectMetadata {
            metadata: Some(object.metadata().clone()),
        };
        envelope::wrap(
            "meta.k8s.io/v1",
            "PartialObjectMetadata",
            partial.encode_to_vec(),
        )
    } else {
        envelope::wrap(&resource.api_version(), resource.kind, object.encode())
    };
    framed(&envelope::watch_frame(kind, body))
}

fn bookmark_frame(resource: &Resource, version: u64, ends_list: bool) -> Vec<u8> {
    let mut metadata = ObjectMeta {
        resource_version: version,
        ..ObjectMeta::default()
    };
    if ends_list {
        metadata.set_annotation(envelope::INITIAL_EVENTS_END, "true");
    }
    let bookmark = PartialObjectMetadata {
        metadata: Some(metadata),
    };
    let body = envelope::wrap(
        &resource.api_version(),
        resource.kind,
        bookmark.encode_to_vec(),
    );
    framed(&envelope::watch_frame("BOOKMARK", body))
}

fn error_frame(code: i32, reason: &str, message: &str) -> Vec<u8> {
    let status = meta::Status {
        status: "Failure".into(),
        message: message.into(),
        reason: reason.into(),
        details: None,
        code,
    };
    let body = envelope::wrap("v1", "Status", status.encode_to_vec());
    framed(&envelope::watch_frame("ERROR", body))
}

fn lease_frame(kind: &str, object: &Value) -> Vec<u8> {
    let mut line = json!({"type": kind, "object": object})
        .to_string()
        .into_bytes();
    line.push(b'\n');
    line
}
