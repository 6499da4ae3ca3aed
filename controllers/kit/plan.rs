//! What one reconcile would write. A plan is data: it can be compared, printed, refused and replayed.

use jiff::Timestamp;
use kubernetes_proto::{AnyObject, Object, Resource, Str, meta::ObjectMeta};
use serde_json::Value;

use crate::{Failure, Key, patch, selectors::Selector, status};

/// What one reconcile writes, records and measures.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Groups of actions. A stage starts when every action of the one before it has succeeded. Within a
    /// stage, creates start slowly (1, 2, 4 …) and stop at the first batch that fails; other actions run side
    /// by side.
    pub stages: Vec<Vec<Action>>,
    /// Events that depend on no action.
    pub events: Vec<Event>,
    /// When the key is reconciled again without any change.
    pub requeue: Requeue,
    /// Values of the controller's metrics, recorded when every action has succeeded.
    pub measures: Vec<Measure>,
    /// Metrics of the total duration, from the queries to the last answer: the node fills in the value, in
    /// seconds, whatever the results of the actions.
    pub timings: Vec<Measure>,
    /// Recorded instead of `measures` and `timings` where the reconcile fails: an action has failed so that
    /// the key backs off, or `failure` is set.
    pub on_failure: OnFailure,
    /// Why the reconcile fails although its actions may succeed: the key is retried with back-off once events
    /// are recorded and actions are carried out.
    pub failure: Option<String>,
    /// What was counted to decide on creations and deletions. After a takeover the node checks it against the
    /// API server before it applies the plan.
    pub counted: Vec<Counted>,
}

/// Values of the controller's metrics that are recorded where a reconcile fails.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OnFailure {
    /// As [`Plan::measures`].
    pub measures: Vec<Measure>,
    /// As [`Plan::timings`]; where it is empty those are recorded.
    pub timings: Vec<Measure>,
}

/// A value of one of the controller's metrics ([`crate::MetricSpec`]).
#[derive(Clone, Debug, PartialEq)]
pub struct Measure {
    /// The metric's whole name.
    pub name: &'static str,
    /// Its labels' values, in the order of the declaration.
    pub labels: Vec<Str>,
    /// The increment of a counter; the value of a gauge; one observation of a histogram.
    pub value: f64,
}

/// When a key is reconciled again without any change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Requeue {
    /// Only a change wakes the key.
    #[default]
    Never,
    /// Not later than this instant.
    At(Timestamp),
    /// At once after this plan, without back-off.
    Now,
}

/// A set of objects whose number a decision rests on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Counted {
    /// The set's resource.
    pub resource: &'static Resource,
    /// The set's namespace.
    pub namespace: Str,
    /// The selector of its objects.
    pub selector: Selector,
    /// Not 0: a decision rests on the set being complete as of this resourceVersion, takeover or not. The
    /// node lists it live where the cache has not reached it.
    pub since: u64,
    /// Whether the proof is mandatory: while the set can't be read, or an object of it can't be decoded,
    /// the plan is not applied. Otherwise a resource that can't be read for long holds back nobody.
    pub strict: bool,
}

/// The precondition of a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Only {
    /// The object with this uid, whatever changed in it.
    ThisUid,
    /// The object in the very version that was seen.
    ThisVersion,
}

/// What a delete does to dependents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// They are deleted afterwards by the garbage collector.
    Background,
    /// They are deleted before the object.
    Foreground,
    /// They stay, without this owner.
    Orphan,
}

/// How a patch is read by the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchKind {
    /// A JSON merge patch, RFC 7386.
    Merge,
    /// Kubernetes' own strategic merge: lists merge by key. For patches that only add to or remove from a
    /// list.
    Strategic,
    /// Server-side apply by a field manager, forced: it takes the named fields from their previous manager.
    /// kind, apiVersion and name are added to the patch.
    Apply {
        /// The field manager that comes to own the fields.
        manager: &'static str,
    },
    /// An empty apply, by which the API server stores the object again in its present encoding. uid and
    /// resourceVersion are preconditions: an object that has been written since, or is gone, needs no
    /// rewrite, so its refusal is a success ([`Action::is_superseded`]).
    Rewrite {
        /// The field manager, which comes to own no field.
        manager: &'static str,
    },
}

/// Whether a patch only reports what was observed, so that a newer one may replace it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusWrite {
    /// A write with an effect, or one that the next decision rests on: it is sent at once.
    No,
    /// Progress that continues by itself: the next status write will follow soon.
    Progress,
    /// The observed state.
    Observed,
}

/// A kind of write, with its body.
#[derive(Clone, Debug, PartialEq)]
pub enum Verb {
    /// Creates an object from its protobuf, or from its JSON where a part of it is known as JSON alone.
    Create {
        /// The object's message, without envelope; or its whole JSON, which is recognised by its opening
        /// brace: no message of the API begins with one ([`is_json`]).
        body: Vec<u8>,
    },
    /// Changes an object; the patch carries uid and resourceVersion as preconditions.
    Patch {
        /// Empty for the object itself, or as in `status`.
        subresource: &'static str,
        /// How the API server interprets the patch.
        kind: PatchKind,
        /// The patch as JSON.
        patch: Value,
        /// Whether it only reports what was observed: such writes are rate-limited per key.
        report: StatusWrite,
    },
    /// Deletes an object.
    Delete {
        /// Its precondition besides the uid.
        only: Only,
        /// What happens to dependents.
        propagation: Propagation,
        /// The grace period in seconds; `None` for the object's own default.
        grace_period_seconds: Option<i64>,
    },
    /// Deletes every object of a resource in a namespace; the action's key has no name, and there are no
    /// preconditions.
    DeleteCollection {
        /// What happens to dependents.
        propagation: Propagation,
    },
    /// Replaces a whole object at a subresource that takes nothing else, as in `finalize`. The body was
    /// read live, so no field is lost; its resourceVersion is the precondition.
    Replace {
        /// The subresource, as in `finalize`.
        subresource: &'static str,
        /// The whole object as JSON.
        body: Value,
    },
}

/// Whether a create's body is JSON.
pub fn is_json(body: &[u8]) -> bool {
    body.first() == Some(&b'{')
}

impl Verb {
    /// The verb's name in RBAC.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Create { .. } => "create",
            Self::Patch { .. } => "patch",
            Self::Delete { .. } => "delete",
            Self::DeleteCollection { .. } => "deletecollection",
            Self::Replace { .. } => "update",
        }
    }
}

/// One write, a part of a [`Plan`].
#[derive(Clone, PartialEq)]
pub struct Action {
    /// The kind of write, with its body.
    pub verb: Verb,
    /// The object's resource.
    pub resource: &'static Resource,
    /// The object's key.
    pub key: Key,
    /// Its uid as seen; empty for a create.
    pub uid: Str,
    /// Its resourceVersion as seen, sent as a precondition by patches and by deletes of
    /// [`Only::ThisVersion`]; 0 for none.
    pub resource_version: u64,
    /// Events and metrics for the action's success or failure.
    pub announcement: Option<Box<Announcement>>,
}

/// Events and metrics that an action's success or failure records.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Announcement {
    /// Recorded when the action has succeeded.
    pub success: Option<Event>,
    /// Recorded when it has failed, except by a conflict; the error's text is appended to the message.
    pub failure: Option<Event>,
    /// Whether that event is recorded as it is, without the error's text.
    pub failure_as_is: bool,
    /// Values of the controller's metrics, recorded when the action has succeeded.
    pub measures: Vec<Measure>,
    /// Values recorded when it has failed, except by a conflict.
    pub failure_measures: Vec<Measure>,
    /// What a failure calls the object; empty for its name.
    pub reported_as: Str,
}

fn measure(name: &'static str, labels: &[&str], value: f64) -> Measure {
    Measure {
        name,
        labels: labels.iter().map(|label| Str::interned(label)).collect(),
        value,
    }
}

/// An event's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    /// Information.
    Normal,
    /// A condition that needs attention.
    Warning,
}

/// A reference to the object of an event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectRef {
    /// As in `apps/v1`.
    pub api_version: Str,
    /// As in `Deployment`.
    pub kind: Str,
    /// Its key.
    pub key: Key,
    /// Its uid.
    pub uid: Str,
    /// Its resourceVersion as seen.
    pub resource_version: u64,
}

impl ObjectRef {
    /// A reference to an object.
    pub fn of<T: Object>(object: &T) -> Self {
        let resource = T::resource();
        Self {
            api_version: Str::interned(&resource.api_version()),
            kind: Str::interned(resource.kind),
            key: Key::of(object),
            uid: object.metadata().uid.clone(),
            resource_version: object.metadata().resource_version,
        }
    }
}

/// An event, as `kubectl describe` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    /// The object that it is recorded for.
    pub about: ObjectRef,
    /// Its type.
    pub r#type: EventType,
    /// The reason in CamelCase, upstream's.
    pub reason: Str,
    /// The message, upstream's.
    pub message: String,
}

impl Event {
    /// A normal event.
    pub fn normal<T: Object>(about: &T, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            about: ObjectRef::of(about),
            r#type: EventType::Normal,
            reason: Str::interned(reason),
            message: message.into(),
        }
    }

    /// A warning event.
    pub fn warning<T: Object>(about: &T, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            r#type: EventType::Warning,
            ..Self::normal(about, reason, message)
        }
    }
}

impl Plan {
    /// The empty plan.
    pub fn nothing() -> Self {
        Self::default()
    }

    /// Whether nothing would be written; a later reconcile may still be wanted.
    pub fn is_nothing(&self) -> bool {
        self.stages.iter().all(Vec::is_empty) && self.events.is_empty()
    }

    /// All actions, stage by stage.
    pub fn actions(&self) -> impl Iterator<Item = &Action> {
        self.stages.iter().flatten()
    }

    /// `create pods/web-1`, one entry per action: for tests and logs.
    pub fn verbs(&self) -> Vec<String> {
        self.actions().map(Action::to_string).collect()
    }

    /// Requeues the key for an instant, or for an earlier one that was asked for before.
    #[must_use]
    pub fn requeued_at(mut self, at: Timestamp) -> Self {
        self.requeue_at(at);
        self
    }

    /// As [`Plan::requeued_at`].
    pub fn requeue_at(&mut self, at: Timestamp) {
        self.requeue = match self.requeue {
            Requeue::Now => Requeue::Now,
            Requeue::At(earlier) if earlier <= at => Requeue::At(earlier),
            Requeue::At(_) | Requeue::Never => Requeue::At(at),
        };
    }

    /// Requeues the key at once.
    pub fn requeue_now(&mut self) {
        self.requeue = Requeue::Now;
    }

    /// Starts a new stage: it waits until all actions before it have succeeded.
    pub fn then(&mut self) {
        if self.stages.last().is_some_and(|stage| !stage.is_empty()) {
            self.stages.push(Vec::new());
        }
    }

    /// Declares a set that the plan has counted.
    pub fn counted<T: Object>(&mut self, namespace: &Str, selector: &Selector) {
        let counted = Counted {
            resource: T::resource(),
            namespace: namespace.clone(),
            selector: selector.clone(),
            since: 0,
            strict: false,
        };
        if !self.counted.contains(&counted) {
            self.counted.push(counted);
        }
    }

    /// Declares that the plan rests on having seen every object of a resource in a namespace (empty for the
    /// cluster) up to a resourceVersion.
    pub fn rests_on(&mut self, resource: &'static Resource, namespace: &Str, since: u64) {
        self.counted.push(Counted {
            resource,
            namespace: namespace.clone(),
            selector: Selector::of_labels(&[]),
            since,
            strict: false,
        });
    }

    /// As [`Plan::rests_on`], for irreversible writes: the plan is applied with this proof or not at all
    /// ([`Counted::strict`]).
    pub fn rests_strictly_on(&mut self, resource: &'static Resource, namespace: &Str, since: u64) {
        self.rests_on(resource, namespace, since);
        if let Some(set) = self.counted.last_mut() {
            set.strict = true;
        }
    }

    /// Records a metric when the whole plan has succeeded.
    pub fn measure(&mut self, name: &'static str, labels: &[&str], value: f64) {
        self.measures.push(measure(name, labels, value));
    }

    /// Records the seconds that queries, planning and writes took.
    pub fn time(&mut self, name: &'static str, labels: &[&str]) {
        self.timings.push(measure(name, labels, 0.0));
    }

    /// Measures something where the reconcile fails.
    pub fn measure_on_failure(&mut self, name: &'static str, labels: &[&str], value: f64) {
        self.on_failure.measures.push(measure(name, labels, value));
    }

    /// As [`Plan::time`], where the reconcile fails.
    pub fn time_on_failure(&mut self, name: &'static str, labels: &[&str]) {
        self.on_failure.timings.push(measure(name, labels, 0.0));
    }

    /// The reconcile fails for this reason: the key is retried with back-off, after actions and events.
    pub fn fail(&mut self, why: impl Into<String>) {
        self.failure = Some(why.into());
    }

    /// Records an event that depends on no action.
    pub fn event(&mut self, event: Event) {
        self.events.push(event);
    }

    /// Adds an action to the last stage; the builders below do so.
    pub fn act(&mut self, action: Action) -> &mut Action {
        if self.stages.is_empty() {
            self.stages.push(Vec::new());
        }
        let stage = self.stages.last_mut().expect("there is one now");
        stage.push(action);
        stage.last_mut().expect("it was just pushed")
    }

    /// Creates an object. Its name must be set: one that is derived from its owner makes a second creation
    /// of the same child collide.
    pub fn create<T: Object>(&mut self, object: &T) -> &mut Action {
        self.act(Action {
            verb: Verb::Create {
                body: object.encode_to_vec(),
            },
            resource: T::resource(),
            key: Key::of(object),
            uid: Str::default(),
            resource_version: 0,
            announcement: None,
        })
    }

    /// Creates an object from its whole JSON, kind and apiVersion included: for kinds that are known as
    /// JSON alone.
    pub fn create_json<T: Object>(&mut self, key: Key, object: &Value) -> &mut Action {
        self.act(Action {
            verb: Verb::Create {
                body: object.to_string().into_bytes(),
            },
            resource: T::resource(),
            key,
            uid: Str::default(),
            resource_version: 0,
            announcement: None,
        })
    }

    /// Writes the difference of two projections of one object (metadata and spec) as a merge patch. No
    /// difference: no action.
    pub fn update<T: Object>(&mut self, old: &T, new: &T) -> Option<&mut Action> {
        let patch = patch::difference(old, new, patch::Part::Object)?;
        Some(self.patch(old, "", PatchKind::Merge, patch, StatusWrite::No))
    }

    /// Writes the difference of two projections' `status` to the status subresource. No difference: no
    /// action. A change that retracts a claim is written at once ([`status::report`]); any other reports
    /// what was observed.
    pub fn update_status<T: Object>(&mut self, old: &T, new: &T) -> Option<&mut Action> {
        let before = patch::json(old, patch::Part::Status);
        let after = patch::json(new, patch::Part::Status);
        let patch = patch::merge_patch(&before, &after)?;
        let report = status::report(old, &before["status"], &after["status"]);
        Some(self.patch(old, "status", PatchKind::Merge, patch, report))
    }

    /// A patch with the version seen as its precondition.
    pub fn patch<T: Object>(
        &mut self,
        object: &T,
        subresource: &'static str,
        kind: PatchKind,
        patch: Value,
        report: StatusWrite,
    ) -> &mut Action {
        self.act(Action {
            verb: Verb::Patch {
                subresource,
                kind,
                patch,
                report,
            },
            resource: T::resource(),
            key: Key::of(object),
            uid: object.metadata().uid.clone(),
            resource_version: object.metadata().resource_version,
            announcement: None,
        })
    }

    /// Applies fields of an object as a field manager, with the version seen as the precondition: an
    /// outdated view can't undo later writes.
    pub fn apply<T: Object>(
        &mut self,
        object: &T,
        manager: &'static str,
        fields: Value,
    ) -> &mut Action {
        self.patch(
            object,
            "",
            PatchKind::Apply { manager },
            fields,
            StatusWrite::No,
        )
    }

    /// As [`Plan::delete`], for an object whose kind is known at run time only.
    pub fn delete_any(
        &mut self,
        object: &AnyObject,
        only: Only,
        propagation: Propagation,
    ) -> &mut Action {
        self.act(Action {
            verb: Verb::Delete {
                only,
                propagation,
                grace_period_seconds: None,
            },
            resource: object.resource(),
            key: Key::of_meta(object.metadata()),
            uid: object.metadata().uid.clone(),
            resource_version: object.metadata().resource_version,
            announcement: None,
        })
    }

    /// Deletes every object of a resource in a namespace.
    pub fn delete_collection(
        &mut self,
        resource: &'static Resource,
        namespace: &Str,
        propagation: Propagation,
    ) -> &mut Action {
        self.act(Action {
            verb: Verb::DeleteCollection { propagation },
            resource,
            key: Key::new(namespace.clone(), ""),
            uid: Str::default(),
            resource_version: 0,
            announcement: None,
        })
    }

    /// Deletes the object of a resource that has this metadata.
    pub fn delete_by_meta(
        &mut self,
        resource: &'static Resource,
        meta: &ObjectMeta,
        propagation: Propagation,
    ) -> &mut Action {
        self.act(Action {
            verb: Verb::Delete {
                only: Only::ThisUid,
                propagation,
                grace_period_seconds: None,
            },
            resource,
            key: Key::of_meta(meta),
            uid: meta.uid.clone(),
            resource_version: meta.resource_version,
            announcement: None,
        })
    }

    /// Replaces a whole object, read live and changed, at a subresource.
    pub fn replace<T: Object>(
        &mut self,
        object: &T,
        subresource: &'static str,
        body: Value,
    ) -> &mut Action {
        self.act(Action {
            verb: Verb::Replace { subresource, body },
            resource: T::resource(),
            key: Key::of(object),
            uid: object.metadata().uid.clone(),
            resource_version: 0,
            announcement: None,
        })
    }

    /// Has the API server store an object again unchanged ([`PatchKind::Rewrite`]), with the version seen
    /// as precondition.
    pub fn rewrite(
        &mut self,
        resource: &'static Resource,
        meta: &ObjectMeta,
        manager: &'static str,
    ) -> &mut Action {
        self.act(Action {
            verb: Verb::Patch {
                subresource: "",
                kind: PatchKind::Rewrite { manager },
                patch: serde_json::json!({}),
                report: StatusWrite::No,
            },
            resource,
            key: Key::of_meta(meta),
            uid: meta.uid.clone(),
            resource_version: meta.resource_version,
            announcement: None,
        })
    }

    /// Writes fields of the metadata as a merge patch, whose lists are whole, of an object whose kind is
    /// known at run time only. The version seen is the precondition.
    pub fn patch_metadata(&mut self, object: &AnyObject, metadata: &Value) -> &mut Action {
        self.act(Action {
            verb: Verb::Patch {
                subresource: "",
                kind: PatchKind::Merge,
                patch: serde_json::json!({ "metadata": metadata }),
                report: StatusWrite::No,
            },
            resource: object.resource(),
            key: Key::of_meta(object.metadata()),
            uid: object.metadata().uid.clone(),
            resource_version: object.metadata().resource_version,
            announcement: None,
        })
    }

    /// Deletes an object.
    pub fn delete<T: Object>(
        &mut self,
        object: &T,
        only: Only,
        propagation: Propagation,
    ) -> &mut Action {
        self.act(Action {
            verb: Verb::Delete {
                only,
                propagation,
                grace_period_seconds: None,
            },
            resource: T::resource(),
            key: Key::of(object),
            uid: object.metadata().uid.clone(),
            resource_version: object.metadata().resource_version,
            announcement: None,
        })
    }
}

impl Action {
    /// Sets what a patch reports; other actions report nothing.
    pub fn reports(&mut self, what: StatusWrite) -> &mut Self {
        if let Verb::Patch { report, .. } = &mut self.verb {
            *report = what;
        }
        self
    }

    /// Marks a status write as progress that continues by itself; an urgent one stays urgent.
    pub fn progresses(&mut self) -> &mut Self {
        match self.report() {
            StatusWrite::Observed => self.reports(StatusWrite::Progress),
            StatusWrite::No | StatusWrite::Progress => self,
        }
    }

    /// The kind of status write; [`StatusWrite::No`] for all other writes.
    pub fn report(&self) -> StatusWrite {
        match self.verb {
            Verb::Patch { report, .. } => report,
            _ => StatusWrite::No,
        }
    }

    /// Whether it is a [`PatchKind::Rewrite`].
    pub fn is_rewrite(&self) -> bool {
        matches!(
            self.verb,
            Verb::Patch {
                kind: PatchKind::Rewrite { .. },
                ..
            }
        )
    }

    /// Whether a failure says that there is nothing left to do, so that it counts as a success: the object of
    /// a rewrite has been written meanwhile, or is gone. An apply to what is gone is read as a creation,
    /// which is refused for its uid, or before that because its namespace is ending or has gone. A conflict
    /// over anything but the object itself, as admission may meet with an object of its own, says nothing of
    /// it.
    pub fn is_superseded(&self, failure: &Failure) -> bool {
        if !self.is_rewrite() {
            return false;
        }
        match failure {
            Failure::Conflict(why) | Failure::AlreadyExists(why) => {
                let object = format!("{} \"{}\"", self.resource.type_id(), self.key.name);
                why.contains(&object)
            }
            Failure::NamespaceTerminating(_) => true,
            Failure::NotFound(why) => {
                let namespace = &self.key.namespace;
                !namespace.is_empty()
                    && why.contains(&format!("namespaces \"{namespace}\" not found"))
            }
            _ => false,
        }
    }

    /// Records an event when the action has succeeded.
    pub fn announce(&mut self, event: Event) -> &mut Self {
        self.announcement.get_or_insert_default().success = Some(event);
        self
    }

    /// Records an event when the action has failed; the error is appended to its message.
    pub fn announce_failure(&mut self, event: Event) -> &mut Self {
        self.announcement.get_or_insert_default().failure = Some(event);
        self
    }

    /// As [`Action::announce_failure`], without the error's text.
    pub fn announce_failure_as_is(&mut self, event: Event) -> &mut Self {
        let announcement = self.announcement.get_or_insert_default();
        announcement.failure = Some(event);
        announcement.failure_as_is = true;
        self
    }

    /// Names the object `name` in the text of a failure. Upstream leaves a child's name to the server, so a
    /// child that is refused has only its generateName prefix; a name that changes with each attempt would
    /// also make each failure a different one.
    pub fn reported_as(&mut self, name: &str) -> &mut Self {
        self.announcement.get_or_insert_default().reported_as = name.into();
        self
    }

    /// The failure with the name that [`Self::reported_as`] has set.
    pub fn reported(&self, failure: Failure) -> Failure {
        match &self.announcement {
            Some(announcement) if !announcement.reported_as.is_empty() => {
                failure.map_text(|text| {
                    let quoted = |name: &str| format!("\"{name}\"");
                    text.replace(&quoted(&self.key.name), &quoted(&announcement.reported_as))
                })
            }
            _ => failure,
        }
    }

    /// Whether a failure leaves the action done all the same: what is gone needs no deletion.
    pub fn is_done(&self, failure: &Failure) -> bool {
        let is_delete = matches!(self.verb, Verb::Delete { .. });
        is_delete && matches!(failure, Failure::NotFound(_))
    }

    /// Whether a failure leaves nothing to do: a child of a namespace that is terminating or gone can't be
    /// created. As upstream, no error of the sync.
    pub fn is_moot(&self, failure: &Failure) -> bool {
        let is_create = matches!(self.verb, Verb::Create { .. });
        is_create
            && matches!(
                failure,
                Failure::NamespaceTerminating(_) | Failure::NotFound(_)
            )
    }

    /// Whether the events and metrics that are attached to the action's failure are recorded for this one.
    pub fn reports_failure(&self, failure: &Failure) -> bool {
        failure.class().is_reported && !self.is_done(failure)
    }

    /// Records a metric when the action has succeeded.
    pub fn measure(&mut self, name: &'static str, labels: &[&str], value: f64) -> &mut Self {
        self.announcement
            .get_or_insert_default()
            .measures
            .push(measure(name, labels, value));
        self
    }

    /// Records a metric when the action has failed, except by a conflict.
    pub fn measure_failure(
        &mut self,
        name: &'static str,
        labels: &[&str],
        value: f64,
    ) -> &mut Self {
        self.announcement
            .get_or_insert_default()
            .failure_measures
            .push(measure(name, labels, value));
        self
    }

    /// Leaves the resourceVersion out of a patch's preconditions: for values that are right whatever else
    /// has changed. The uid stays.
    pub fn whatever_version(&mut self) -> &mut Self {
        self.resource_version = 0;
        self
    }

    /// `resource` or `resource/subresource`, as RBAC names it.
    pub fn rbac_resource(&self) -> String {
        match &self.verb {
            Verb::Patch { subresource, .. } | Verb::Replace { subresource, .. }
                if !subresource.is_empty() =>
            {
                format!("{}/{subresource}", self.resource.plural)
            }
            _ => self.resource.plural.to_owned(),
        }
    }
}

/// The content of a Secret must not be printed.
impl std::fmt::Debug for Action {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let is_secret = self.resource.group.is_empty() && self.resource.plural == "secrets";
        let mut action = f.debug_struct("Action");
        match is_secret {
            true => action.field("verb", &format_args!("{self} (confidential)")),
            false => action.field("verb", &self.verb),
        };
        action
            .field("resource", &self.resource)
            .field("key", &self.key)
            .field("uid", &self.uid)
            .field("resource_version", &self.resource_version)
            .field("announcement", &self.announcement)
            .finish()
    }
}

impl std::fmt::Display for Action {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} {}/{}",
            self.verb.name(),
            self.resource.plural,
            self.key.name
        )?;
        match &self.verb {
            Verb::Patch { subresource, .. } | Verb::Replace { subresource, .. }
                if !subresource.is_empty() =>
            {
                write!(f, "/{subresource}")
            }
            _ => Ok(()),
        }
    }
}
