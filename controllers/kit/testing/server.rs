//! Writes, as the API server answers them: preconditions, name collisions, generations, the status
//! subresource, finalizers, grace and propagation. Only what plans contain is supported; anything else
//! panics.

use std::sync::Arc;

use kubernetes_proto::{
    AnyObject, Object, Resource, Str,
    core::{Namespace, Pod},
    meta::{LabelSelector, ObjectMeta, Time},
};
use prost::Message as _;
use serde_json::{Map, Value, json};

use super::{Place, World};
use crate::{
    Action, Failure, Key, Only, PatchKind, Plan, Propagation, SignedDuration, Verb, Written,
    patch::apply_merge, selectors::Selector,
};

/// The finalizer of a deletion that waits for dependents.
pub(super) const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer of a deletion that orphans dependents.
pub(super) const ORPHAN: &str = "orphan";
/// What a pod without its own grace period has.
const POD_GRACE_SECONDS: i64 = 30;
/// RFC 1123 subdomains.
const NAME_BYTES_MAX: usize = 253;

/// The results of a plan's actions, in the plan's order.
#[derive(Clone, Debug, Default)]
pub struct Applied(pub Vec<(Action, Result<Written, Failure>)>);

impl Applied {
    /// Panics where an action has failed.
    pub fn expect_success(&self) {
        for (action, result) in &self.0 {
            if let Err(failure) = result {
                panic!("{action} failed: {failure} ({failure:?})");
            }
        }
    }

    /// The failures, with the actions as in [`Plan::verbs`].
    pub fn failures(&self) -> Vec<(String, &Failure)> {
        self.0
            .iter()
            .filter_map(|(action, result)| Some((action.to_string(), result.as_ref().err()?)))
            .collect()
    }
}

/// What goes wrong on the way of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Nothing.
    None,
    /// It never reaches the server.
    Lost,
    /// It is done, but the answer is lost.
    AnswerLost,
}

/// Whether the server counts the generations of a resource.
pub(super) fn has_generation(resource: &Resource) -> bool {
    !matches!(
        resource.type_id().as_str(),
        "namespaces"
            | "serviceaccounts"
            | "configmaps"
            | "nodes"
            | "services"
            | "endpoints"
            | "persistentvolumeclaims"
            | "persistentvolumes"
            | "storageclasses.storage.k8s.io"
            | "secrets"
            | "controllerrevisions.apps"
            | "certificatesigningrequests.certificates.k8s.io"
            | "podcertificaterequests.certificates.k8s.io"
            | "clustertrustbundles.certificates.k8s.io"
            | "clusterroles.rbac.authorization.k8s.io"
            | "leases.coordination.k8s.io"
            | "servicecidrs.networking.k8s.io"
            | "ipaddresses.networking.k8s.io"
            | "storageversions.internal.apiserver.k8s.io"
            | "resourceclaims.resource.k8s.io"
            | "resourceclaimtemplates.resource.k8s.io"
    )
}

fn with_meta(
    resource: &'static Resource,
    mut json: Value,
    change: impl FnOnce(&mut ObjectMeta),
) -> AnyObject {
    let mut meta: ObjectMeta =
        serde_json::from_value(json["metadata"].take()).expect("metadata was valid before");
    change(&mut meta);
    json["metadata"] = serde_json::to_value(meta).expect("metadata is plain");
    resource.read_json(json).expect("only metadata has changed")
}

impl World {
    /// Applies a plan as the node does: stage by stage, creates of a stage in batches of 1, 2, 4 …, the
    /// rest skipped after a failure; events recorded.
    pub fn apply(&mut self, plan: &Plan) -> Applied {
        self.apply_with(plan, &mut |_| Fault::None)
    }

    pub(super) fn apply_with(
        &mut self,
        plan: &Plan,
        fault: &mut dyn FnMut(&Action) -> Fault,
    ) -> Applied {
        self.events.extend(plan.events.iter().cloned());
        let mut applied = Vec::new();
        let mut stage_failed = false;
        for stage in &plan.stages {
            let skip_stage = stage_failed;
            // Creates of this stage that were sent, and that may be sent before the batch must have
            // succeeded.
            let (mut sent, mut batch_end, mut batch_size) = (0, 1, 1);
            let mut creates_failed = false;
            for action in stage {
                let is_create = matches!(action.verb, Verb::Create { .. });
                if is_create {
                    if sent == batch_end && !creates_failed {
                        batch_size *= 2;
                        batch_end += batch_size;
                    }
                    let over = sent == batch_end;
                    if skip_stage || (creates_failed && over) {
                        applied.push((action.clone(), Err(Failure::Skipped)));
                        continue;
                    }
                    sent += 1;
                } else if skip_stage {
                    applied.push((action.clone(), Err(Failure::Skipped)));
                    continue;
                }
                let result = match fault(action) {
                    Fault::None => match self.write(action) {
                        Err(failure) if action.is_superseded(&failure) => Ok(Written::default()),
                        result => result,
                    },
                    Fault::Lost => Err(Failure::Timeout("the request was lost".to_owned())),
                    Fault::AnswerLost => {
                        // Whatever it was, nobody hears of it.
                        let _ = self.write(action);
                        Err(Failure::Timeout("the answer was lost".to_owned()))
                    }
                };
                if result.is_err() {
                    stage_failed = true;
                    creates_failed |= is_create;
                }
                let result = result.map_err(|failure| action.reported(failure));
                self.announce(action, &result);
                applied.push((action.clone(), result));
            }
        }
        Applied(applied)
    }

    fn announce(&mut self, action: &Action, result: &Result<Written, Failure>) {
        let Some(announcement) = &action.announcement else {
            return;
        };
        match result {
            Ok(_) => self.events.extend(announcement.success.clone()),
            Err(Failure::Conflict(_) | Failure::Skipped | Failure::Fenced) => {}
            Err(failure) => self
                .events
                .extend(announcement.failure.clone().map(|event| crate::Event {
                    message: match announcement.failure_as_is {
                        true => event.message,
                        false => format!("{}{failure}", event.message),
                    },
                    ..event
                })),
        }
    }

    /// One write.
    pub(super) fn write(&mut self, action: &Action) -> Result<Written, Failure> {
        match &action.verb {
            Verb::Create { body } => self.create(action, body),
            Verb::Patch {
                subresource,
                kind,
                patch,
                ..
            } => self.patch(action, subresource, *kind, patch),
            Verb::Delete {
                only,
                propagation,
                grace_period_seconds,
            } => self.delete_action(action, *only, *propagation, *grace_period_seconds),
            Verb::DeleteCollection { propagation } => self.delete_collection(action, *propagation),
            Verb::Replace { subresource, body } => self.replace_whole(action, subresource, body),
        }
    }

    fn create(&mut self, action: &Action, body: &[u8]) -> Result<Written, Failure> {
        let resource = action.resource;
        let object = read_body(resource, body)
            .map_err(|error| Failure::Invalid(format!("the body can't be decoded: {error}")))?;
        let meta = object.metadata();
        check_name(resource, meta)?;
        if Key::of_meta(meta) != action.key {
            return Err(Failure::Invalid(format!(
                "the name of the object ({}) does not match the name on the URL ({})",
                Key::of_meta(meta),
                action.key
            )));
        }
        if meta.resource_version != 0 {
            return Err(Failure::Invalid(
                "resourceVersion should not be set on objects to be created".to_owned(),
            ));
        }
        check_owners(meta)?;
        if resource.namespaced {
            self.check_namespace(resource, meta)?;
        }
        let place: Place = (resource, action.key.clone());
        if self.objects.contains_key(&place) {
            return Err(Failure::AlreadyExists(format!(
                "{} \"{}\" already exists",
                resource.id(),
                action.key.name
            )));
        }
        let mut json = object.to_json();
        match resource.type_id().as_str() {
            "pods" => json["status"] = json!({"phase": "Pending"}),
            "namespaces" => json["status"] = json!({"phase": "Active"}),
            _ => {
                fields(&mut json).remove("status");
            }
        }
        set_defaults(resource, &mut json);
        check_template(resource, &action.key, &json)?;
        self.uids += 1;
        self.resource_version += 1;
        let (uid, version, now) = (self.uids, self.resource_version, self.now);
        if resource.id() == "jobs.batch" {
            select_by_uid(&mut json, &format!("uid-{uid}"));
        }
        let object = with_meta(resource, json, |meta| {
            meta.uid = Str::from(format!("uid-{uid}"));
            meta.resource_version = version;
            meta.creation_timestamp = Some(Time::from(now));
            meta.generation = i64::from(has_generation(resource));
            meta.deletion_timestamp = None;
            meta.deletion_grace_period_seconds = None;
        });
        Ok(self.store(place, object))
    }

    fn check_namespace(&self, resource: &Resource, meta: &ObjectMeta) -> Result<(), Failure> {
        let place = (Namespace::resource(), Key::cluster(meta.namespace.clone()));
        let namespace = self.objects.get(&place).ok_or_else(|| {
            Failure::NotFound(format!("namespaces \"{}\" not found", meta.namespace))
        })?;
        let terminating = namespace.metadata().is_terminating()
            || namespace.to_json()["status"]["phase"] == "Terminating";
        if terminating {
            return Err(Failure::NamespaceTerminating(format!(
                "{} \"{}\" is forbidden: unable to create new content in namespace {} because it is being terminated",
                resource.type_id(),
                meta.name,
                meta.namespace
            )));
        }
        Ok(())
    }

    /// The object that a write is for, if its uid is the expected one. (A patch of another uid without a
    /// version is answered with Invalid by the API server; the node makes a conflict of it.)
    fn target(&self, action: &Action) -> Result<AnyObject, Failure> {
        let (resource, name) = (action.resource, &action.key.name);
        let object = self
            .objects
            .get(&(resource, action.key.clone()))
            .ok_or_else(|| Failure::NotFound(format!("{} \"{name}\" not found", resource.id())))?;
        let meta = object.metadata();
        if !action.uid.is_empty() && action.uid != meta.uid {
            return Err(Failure::Conflict(format!(
                "Operation cannot be fulfilled on {} \"{name}\": the UID in the precondition ({}) does not match the UID in record ({})",
                resource.id(),
                action.uid,
                meta.uid
            )));
        }
        Ok(Arc::clone(object))
    }

    fn check_version(object: &AnyObject, action: &Action) -> Result<(), Failure> {
        let held = object.metadata().resource_version;
        if action.resource_version != 0 && action.resource_version != held {
            return Err(Failure::Conflict(format!(
                "Operation cannot be fulfilled on {} \"{}\": the object has been modified; please apply your changes to the latest version and try again",
                action.resource.id(),
                action.key.name
            )));
        }
        Ok(())
    }

    fn patch(
        &mut self,
        action: &Action,
        subresource: &str,
        kind: PatchKind,
        patch: &Value,
    ) -> Result<Written, Failure> {
        let object = match self.target(action) {
            // It is read as a creation, which is refused for its uid.
            Err(Failure::NotFound(why)) if action.is_rewrite() => {
                return Err(Failure::Conflict(why));
            }
            object => object?,
        };
        Self::check_version(&object, action)?;
        let old = object.to_json();
        let mut new = old.clone();
        match kind {
            PatchKind::Merge => apply_merge(&mut new, patch),
            PatchKind::Strategic => apply_strategic(&mut new, patch)?,
            // Field ownership is not kept: a field that is left out stays.
            PatchKind::Apply { .. } => apply_merge(&mut new, patch),
            // Every object counts as stored in an older encoding.
            PatchKind::Rewrite { .. } => return Ok(self.rewritten(&object)),
        }
        let resource = action.resource;
        match subresource {
            "" if has_status(resource) => restore(&mut new, &old, "status"),
            "" => {}
            "scale" if !old["spec"]["replicas"].is_null() => {
                let replicas = new["spec"]["replicas"].clone();
                new = old.clone();
                new["spec"]["replicas"] = replicas;
            }
            "approval" if resource.plural == "certificatesigningrequests" => {
                let conditions = new["status"]["conditions"].clone();
                new = old.clone();
                new["status"]["conditions"] = approved(conditions, self.now);
            }
            "status" if has_status(resource) => {
                for field in fields(&mut new).keys().cloned().collect::<Vec<_>>() {
                    if field != "status" && field != "metadata" {
                        restore(&mut new, &old, &field);
                    }
                }
                // Metadata is included, except what some kinds protect.
                let guarded = match resource.type_id().as_str() {
                    "deployments.apps" => "labels",
                    "pods" => "ownerReferences",
                    _ => "",
                };
                if !guarded.is_empty() {
                    restore(&mut new["metadata"], &old["metadata"], guarded);
                }
            }
            other => {
                return Err(Failure::NotFound(format!(
                    "{} has no subresource {other}",
                    resource.id()
                )));
            }
        }
        // A patch's own preconditions and what only the server sets are no changes.
        for field in [
            "name",
            "namespace",
            "uid",
            "resourceVersion",
            "generation",
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
        ] {
            let before = old["metadata"].get(field).cloned();
            let meta = fields(&mut new["metadata"]);
            match before {
                Some(value) => meta.insert(field.to_owned(), value),
                None => meta.remove(field),
            };
        }
        set_defaults(resource, &mut new);
        if subresource.is_empty() && old["spec"]["selector"] != new["spec"]["selector"] {
            return Err(Failure::Invalid(format!(
                "{} \"{}\" is invalid: spec.selector: field is immutable",
                resource.id(),
                action.key.name
            )));
        }
        check_template(resource, &action.key, &new)?;
        let parsed = resource
            .read_json(new)
            .map_err(|error| Failure::Invalid(format!("the patched object is invalid: {error}")))?;
        check_owners(parsed.metadata())?;
        Ok(self.put_changed(&object, &old, parsed.to_json()))
    }

    /// The scale under a path as in `/apis/apps/v1/namespaces/default/deployments/web/scale`, if there is
    /// one.
    pub fn scale(&self, path: &str) -> Option<Arc<Value>> {
        let place = path.strip_suffix("/scale")?;
        let object = self
            .objects
            .values()
            .find(|object| {
                let meta = object.metadata();
                object.resource().path(&meta.namespace, &meta.name) == place
            })
            .filter(|object| !object.to_json()["spec"]["replicas"].is_null())?;
        let json = object.to_json();
        let selector: Option<LabelSelector> =
            match serde_json::from_value(json["spec"]["selector"].clone()) {
                Ok(selector) => selector,
                // A ReplicationController's is of equal labels alone.
                Err(_) => serde_json::from_value(json!({"matchLabels": json["spec"]["selector"]}))
                    .expect("a selector of labels"),
            };
        let selector = Selector::compile(selector.as_ref())
            .ok()
            .and_then(|selector| selector.text());
        let meta = &json["metadata"];
        Some(Arc::new(json!({
            "kind": "Scale",
            "apiVersion": "autoscaling/v1",
            "metadata": {
                "name": meta["name"],
                "namespace": meta["namespace"],
                "uid": meta["uid"],
                "resourceVersion": meta["resourceVersion"],
                "creationTimestamp": meta["creationTimestamp"],
            },
            "spec": {"replicas": json["spec"]["replicas"]},
            "status": {
                "replicas": json["status"]["replicas"].as_i64().unwrap_or(0),
                "selector": selector,
            },
        })))
    }

    /// Stores an object again unchanged, in a new version.
    fn rewritten(&mut self, object: &AnyObject) -> Written {
        self.resource_version += 1;
        let version = self.resource_version;
        let place = (object.resource(), Key::of_meta(object.metadata()));
        let again = with_meta(object.resource(), object.to_json(), |meta| {
            meta.resource_version = version;
        });
        let result = written(again.metadata());
        self.objects.insert(place, again);
        result
    }

    /// Stores a changed object: a new version if anything differs, a new generation if the spec does, and
    /// away with it if its last finalizer is gone.
    fn put_changed(&mut self, object: &AnyObject, old: &Value, new: Value) -> Written {
        let resource = object.resource();
        let meta = object.metadata();
        if *old == new {
            return written(meta);
        }
        let annotations_count = resource.id() == "deployments.apps"
            && old["status"] == new["status"]
            && old["metadata"]["annotations"] != new["metadata"]["annotations"];
        // A pod's binding changes its spec, but no generation.
        let spec_counts = has_generation(resource) && resource.id() != "pods";
        let bump = spec_counts && (old["spec"] != new["spec"] || annotations_count);
        self.resource_version += 1;
        let version = self.resource_version;
        let changed = with_meta(resource, new, |meta| {
            meta.resource_version = version;
            meta.generation += i64::from(bump);
        });
        let place = (resource, Key::of_meta(meta));
        let done = changed.metadata();
        let mut result = written(done);
        // A namespace goes when it is finalized, too.
        result.gone &= !is_held_by_spec(&changed);
        if result.gone {
            // The update becomes the deletion, and is answered with the former object.
            result.resource_version = meta.resource_version;
            self.take(&place);
        } else {
            self.note_heartbeat(&place, &changed);
            self.objects.insert(place, changed);
        }
        result
    }

    fn delete_collection(
        &mut self,
        action: &Action,
        propagation: Propagation,
    ) -> Result<Written, Failure> {
        let mut plan = Plan::nothing();
        for object in crate::Reader::list(self, action.resource, Some(&action.key.namespace)) {
            plan.delete_any(&object, Only::ThisUid, propagation);
        }
        for one in plan.actions() {
            self.write(one)?;
        }
        Ok(Written::default())
    }

    /// Only a namespace can be replaced, and only what finalizes it.
    fn replace_whole(
        &mut self,
        action: &Action,
        subresource: &str,
        body: &Value,
    ) -> Result<Written, Failure> {
        assert_eq!(
            action.rbac_resource(),
            "namespaces/finalize",
            "the tests' server knows no other subresource that is put than {subresource}"
        );
        let object = self.target(action)?;
        let held = object.metadata().resource_version.to_string();
        if body["metadata"]["resourceVersion"] != held.as_str() {
            return Err(Failure::Conflict("the object has been modified".to_owned()));
        }
        let old = object.to_json();
        let mut new = old.clone();
        new["spec"] = body["spec"].clone();
        if new["spec"]["finalizers"]
            .as_array()
            .is_none_or(Vec::is_empty)
            && object.metadata().is_terminating()
            && object.metadata().finalizers.is_empty()
        {
            let written = written(object.metadata());
            self.remove(action.resource, &action.key);
            return Ok(written);
        }
        let parsed = action
            .resource
            .read_json(new)
            .map_err(|error| Failure::Invalid(error.to_string()))?;
        Ok(self.put_changed(&object, &old, parsed.to_json()))
    }

    fn delete_action(
        &mut self,
        action: &Action,
        only: Only,
        propagation: Propagation,
        grace: Option<i64>,
    ) -> Result<Written, Failure> {
        let object = self.target(action)?;
        if only == Only::ThisVersion {
            assert_ne!(
                action.resource_version, 0,
                "{action} insists on a version but names none"
            );
            Self::check_version(&object, action)?;
        }
        let resource = action.resource;
        let grace = grace_seconds(&object, grace);
        let old_meta = object.metadata();
        let mut finalizers = old_meta.finalizers.clone();
        finalizers.retain(|name| *name != *FOREGROUND && *name != *ORPHAN);
        match propagation {
            Propagation::Background => {}
            Propagation::Foreground => finalizers.push(Str::interned(FOREGROUND)),
            Propagation::Orphan => finalizers.push(Str::interned(ORPHAN)),
        }
        let place = (resource, action.key.clone());
        let is_namespace = resource.id() == "namespaces";
        if grace == 0 && finalizers.is_empty() && !is_held_by_spec(&object) {
            self.resource_version += 1;
            self.take(&place);
            // Most kinds are answered for with a Status, which has no version.
            let says_version = matches!(resource.type_id().as_str(), "pods" | "serviceaccounts");
            return Ok(Written {
                uid: old_meta.uid.clone(),
                resource_version: if says_version {
                    self.resource_version
                } else {
                    0
                },
                gone: true,
            });
        }
        let unchanged = old_meta.is_terminating()
            && finalizers == old_meta.finalizers
            && old_meta
                .deletion_grace_period_seconds
                .is_some_and(|left| left <= grace);
        if unchanged {
            return Ok(written(old_meta));
        }
        self.resource_version += 1;
        let (version, now) = (self.resource_version, self.now);
        let mut json = object.to_json();
        if is_namespace {
            json["status"]["phase"] = "Terminating".into();
        }
        let marked = with_meta(resource, json, |meta| {
            if meta.deletion_timestamp.is_none() && meta.generation > 0 {
                meta.generation += 1;
            }
            let shorter = meta
                .deletion_grace_period_seconds
                .is_none_or(|left| grace < left);
            if shorter {
                meta.deletion_timestamp = Some((now + SignedDuration::from_secs(grace)).into());
                meta.deletion_grace_period_seconds = Some(grace);
            }
            meta.finalizers = finalizers;
            meta.resource_version = version;
        });
        Ok(self.store(place, marked))
    }

    fn store(&mut self, place: Place, object: AnyObject) -> Written {
        let result = written(object.metadata());
        self.note_heartbeat(&place, &object);
        self.objects.insert(place, object);
        result
    }

    // ---- what others do ----

    /// The store's key of an object that still exists.
    pub(super) fn place_of(&self, object: &AnyObject) -> Option<Place> {
        let place = (object.resource(), Key::of_meta(object.metadata()));
        self.objects
            .get(&place)
            .is_some_and(|held| held.metadata().uid == object.metadata().uid)
            .then_some(place)
    }

    /// Changes an object's metadata, whatever its version.
    pub(super) fn edit(&mut self, object: &AnyObject, change: impl FnOnce(&mut ObjectMeta)) {
        let Some(place) = self.place_of(object) else {
            return;
        };
        let held = Arc::clone(&self.objects[&place]);
        let old = held.to_json();
        let new = with_meta(held.resource(), old.clone(), change).to_json();
        self.put_changed(&held, &old, new);
    }

    /// Puts a newer form of an object, spec and status at once.
    pub(super) fn replace<T: Object>(&mut self, new: &T) {
        let old = self
            .objects
            .get(&(T::resource(), Key::of(new)))
            .cloned()
            .unwrap_or_else(|| panic!("there is no {:?} to replace", Key::of(new)));
        let before = old.to_json();
        let mut json = kubernetes_proto::DynObject::to_json(new);
        // They are not the caller's to set.
        for field in ["resourceVersion", "generation"] {
            if let Some(value) = before["metadata"].get(field) {
                json["metadata"][field] = value.clone();
            }
        }
        self.put_changed(&old, &before, json);
    }

    pub(super) fn replace_as_user<T: Object>(&mut self, old: &T, new: &T) {
        assert_eq!(
            Key::of(old),
            Key::of(new),
            "an object's name can't be changed"
        );
        self.replace(new);
    }

    /// Takes an object away.
    pub(super) fn remove(&mut self, resource: &'static Resource, key: &Key) {
        let place = (resource, key.clone());
        if self.objects.contains_key(&place) {
            self.resource_version += 1;
            self.take(&place);
        }
    }
}

/// Whether an object is a namespace that has still to be finalized.
fn is_held_by_spec(object: &AnyObject) -> bool {
    object
        .as_any()
        .downcast_ref::<Namespace>()
        .and_then(|namespace| namespace.spec.as_ref())
        .is_some_and(|spec| !spec.finalizers.is_empty())
}

fn written(meta: &ObjectMeta) -> Written {
    Written {
        uid: meta.uid.clone(),
        resource_version: meta.resource_version,
        gone: meta.is_held_by_nothing(),
    }
}

/// The conditions of a CertificateSigningRequest after its approval: the server fills in the times.
fn approved(mut conditions: Value, now: crate::Timestamp) -> Value {
    let now = serde_json::to_value(Time::from(now)).expect("a time is a text");
    for condition in conditions.as_array_mut().into_iter().flatten() {
        for field in ["lastUpdateTime", "lastTransitionTime"] {
            if condition[field].is_null() {
                condition[field] = now.clone();
            }
        }
    }
    conditions
}

fn fields(json: &mut Value) -> &mut Map<String, Value> {
    json.as_object_mut().expect("an object's JSON is an object")
}

fn restore(new: &mut Value, old: &Value, field: &str) {
    match old.get(field) {
        Some(value) => new[field] = value.clone(),
        None => {
            fields(new).remove(field);
        }
    }
}

fn has_status(resource: &Resource) -> bool {
    !matches!(
        resource.type_id().as_str(),
        "serviceaccounts"
            | "configmaps"
            | "secrets"
            | "controllerrevisions.apps"
            | "clustertrustbundles.certificates.k8s.io"
            | "clusterroles.rbac.authorization.k8s.io"
    )
}

/// The object of a creation's body, protobuf or JSON.
pub(super) fn read_body(resource: &'static Resource, body: &[u8]) -> Result<AnyObject, String> {
    if !crate::is_json(body) {
        return resource.read(body).map_err(|error| error.to_string());
    }
    let mut json: Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let of = [
        ("kind", resource.kind),
        ("apiVersion", &resource.api_version()),
    ]
    .map(|(field, wanted)| {
        fields(&mut json)
            .remove(field)
            .is_some_and(|is| is == *wanted)
    });
    if of != [true, true] {
        return Err(format!("kind and apiVersion are not those of {resource:?}"));
    }
    if resource.id() == "pods" {
        read_pod_spec(&mut json["spec"])?;
    }
    resource.read_json(json).map_err(|error| error.to_string())
}

/// A template's spec is opaque here (`kubernetes_proto::opaque`): fields that were set beside its bytes are
/// merged over them.
fn read_pod_spec(spec: &mut Value) -> Result<(), String> {
    let edits = spec.as_object_mut().ok_or("a pod wants a spec")?;
    let bytes = match edits.remove(kubernetes_proto::opaque::FIELD) {
        Some(Value::String(digits)) => {
            kubernetes_proto::opaque::digits(&digits).ok_or("a spec's bytes can't be read")?
        }
        _ => Vec::new(),
    };
    let held = kubernetes_proto::core::PodSpec::decode(bytes.as_slice())
        .map_err(|error| error.to_string())?;
    let mut new = serde_json::to_value(&held).map_err(|error| error.to_string())?;
    if let Some(Value::Array(volumes)) = edits.get_mut("volumes") {
        for volume in volumes {
            // In JSON a volume's source is inlined beside its name.
            let name = fields(volume).remove("name");
            *volume = json!({"name": name, "volumeSource": volume.take()});
        }
    }
    // A spec that is JSON as a whole: what no projection reads is dropped, as when it is read from the wire.
    edits.remove("restartPolicy");
    if let Some(Value::Array(containers)) = edits.get_mut("containers") {
        for container in containers {
            let held = fields(container);
            held.retain(|name, _| matches!(name.as_str(), "name" | "volumeMounts"));
            if let Some(Value::Array(mounts)) = held.get_mut("volumeMounts") {
                for mount in mounts {
                    fields(mount).retain(|name, _| name == "name");
                }
            }
        }
    }
    for (name, value) in std::mem::take(edits) {
        new[name] = value;
    }
    *spec = new;
    Ok(())
}

/// The defaults that the server fills in where a create or a patch leaves a field out.
fn set_defaults(resource: &Resource, json: &mut Value) {
    let replicated = resource.group == "apps" && resource.plural != "daemonsets";
    if (replicated || resource.plural == "replicationcontrollers") && json["spec"].is_object() {
        fields(&mut json["spec"])
            .entry("replicas")
            .or_insert_with(|| 1.into());
    }
}

/// A Job without a selector selects its pods by its own uid.
fn select_by_uid(json: &mut Value, uid: &str) {
    const LABEL: &str = "batch.kubernetes.io/controller-uid";
    let spec = &mut json["spec"];
    if !spec.is_object() || !spec["selector"].is_null() {
        return;
    }
    spec["selector"] = json!({"matchLabels": {LABEL: uid}});
    if !spec["template"]["metadata"].is_object() {
        spec["template"]["metadata"] = json!({});
    }
    spec["template"]["metadata"]["labels"][LABEL] = uid.into();
}

/// The grace period of a deleted object: a running pod's own, none for all else.
fn grace_seconds(object: &AnyObject, asked: Option<i64>) -> i64 {
    let Some(pod) = object.as_any().downcast_ref::<Pod>() else {
        return 0;
    };
    let scheduled = pod
        .spec
        .as_ref()
        .is_some_and(|spec| !spec.node_name.is_empty());
    let over = pod
        .status
        .as_ref()
        .is_some_and(|status| matches!(status.phase.as_str(), "Succeeded" | "Failed"));
    if !scheduled || over {
        return 0;
    }
    asked.unwrap_or(POD_GRACE_SECONDS).max(0)
}

fn check_name(resource: &Resource, meta: &ObjectMeta) -> Result<(), Failure> {
    let name = &meta.name;
    if name.is_empty() {
        return Err(Failure::Invalid(
            "metadata.name: Required value: name or generateName is required".to_owned(),
        ));
    }
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let label = |label: &str| {
        let bytes = label.as_bytes();
        bytes.first().copied().is_some_and(plain)
            && bytes.last().copied().is_some_and(plain)
            && bytes.iter().all(|byte| plain(*byte) || *byte == b'-')
    };
    // A trust bundle's name begins with its signer's, in which colons take the place of slashes.
    let has_signer = resource.plural == "clustertrustbundles";
    let parts = |char: char| char == '.' || (has_signer && char == ':');
    if name.len() > NAME_BYTES_MAX || !name.split(parts).all(label) {
        return Err(Failure::Invalid(format!(
            "{} \"{name}\" is invalid: metadata.name: a lowercase RFC 1123 subdomain is wanted",
            resource.id()
        )));
    }
    if resource.namespaced == meta.namespace.is_empty() {
        return Err(Failure::Invalid(format!(
            "{} \"{name}\" is invalid: metadata.namespace is {:?}",
            resource.id(),
            meta.namespace
        )));
    }
    Ok(())
}

/// Workloads must select the pods that they create.
fn check_template(resource: &Resource, key: &Key, json: &Value) -> Result<(), Failure> {
    let spec = &json["spec"];
    let wanted = spec["selector"]["matchLabels"].as_object();
    let labels = &spec["template"]["metadata"]["labels"];
    for (label, value) in wanted.into_iter().flatten() {
        if resource.group == "apps" && labels[label] != *value {
            return Err(Failure::Invalid(format!(
                "{} \"{}\" is invalid: spec.template.metadata.labels: Invalid value: {labels}: `selector` does not match template `labels`",
                resource.id(),
                key.name
            )));
        }
    }
    Ok(())
}

fn check_owners(meta: &ObjectMeta) -> Result<(), Failure> {
    let controllers = meta
        .owner_references
        .iter()
        .filter(|owner| owner.controller == Some(true))
        .count();
    if controllers > 1 {
        return Err(Failure::Invalid(
            "metadata.ownerReferences: only one reference can have controller set to true"
                .to_owned(),
        ));
    }
    for owner in &meta.owner_references {
        if [&owner.api_version, &owner.kind, &owner.name, &owner.uid]
            .iter()
            .any(|part| part.is_empty())
        {
            return Err(Failure::Invalid(format!(
                "metadata.ownerReferences: {owner:?} lacks one of apiVersion, kind, name and uid"
            )));
        }
    }
    Ok(())
}

/// The field that identifies the items of a list; `None` for lists that are replaced whole.
fn merge_key(list: &str) -> Option<&'static str> {
    match list {
        "ownerReferences" => Some("uid"),
        "conditions" => Some("type"),
        "secrets" => Some("name"),
        _ => None,
    }
}

/// Kubernetes' strategic merge patch, for the lists that [`merge_key`] knows and for finalizers.
fn apply_strategic(target: &mut Value, patch: &Value) -> Result<(), Failure> {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return Ok(());
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    for (name, change) in changes {
        let target = fields(target);
        if let Some(list) = name.strip_prefix("$deleteFromPrimitiveList/") {
            let gone = change.as_array().cloned().unwrap_or_default();
            if let Some(Value::Array(held)) = target.get_mut(list) {
                held.retain(|item| !gone.contains(item));
            }
        } else if name.starts_with("$setElementOrder/") {
            // Order carries no meaning in the lists that are known here.
        } else if name.starts_with('$') {
            return Err(Failure::Invalid(format!(
                "the directive {name} is not known to the tests' server"
            )));
        } else if change.is_null() {
            target.remove(name);
        } else if let (Some(key), Value::Array(items)) = (merge_key(name), change) {
            merge_list(target.entry(name.clone()).or_insert(json!([])), key, items)?;
        } else if let ("finalizers", Value::Array(items)) = (name.as_str(), change) {
            let held = target.entry(name.clone()).or_insert(json!([]));
            let held = held.as_array_mut().expect("finalizers are a list");
            for item in items {
                if !held.contains(item) {
                    held.push(item.clone());
                }
            }
        } else {
            apply_strategic(target.entry(name.clone()).or_insert(Value::Null), change)?;
        }
    }
    Ok(())
}

fn merge_list(list: &mut Value, key: &str, items: &[Value]) -> Result<(), Failure> {
    let held = list.as_array_mut().expect("a list is merged into a list");
    for item in items {
        let id = &item[key];
        if id.is_null() {
            return Err(Failure::Invalid(format!(
                "map: {item} does not contain declared merge key: {key}"
            )));
        }
        let place = held.iter().position(|other| other[key] == *id);
        if item["$patch"] == "delete" {
            if let Some(place) = place {
                held.remove(place);
            }
        } else if let Some(place) = place {
            apply_merge(&mut held[place], item);
        } else {
            held.push(item.clone());
        }
    }
    Ok(())
}
