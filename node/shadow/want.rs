//! A planned write as a state of one object, and whether a change has brought it about.

use std::time::Duration;

use controllers_kit::{
    Action, AnyObject, Key, PatchKind, Resource, Str, Verb, is_json, patch::merge_patch,
};
use serde_json::{Value, json};

use crate::{
    Change,
    same::{Lists, Mismatch, differ},
};

/// Fields of metadata that the API server sets.
const SERVERS: [&str; 6] = [
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "generation",
    "namespace",
    "generateName",
];

/// A planned write.
#[derive(Clone, Debug, PartialEq)]
pub struct Want {
    /// The object's resource.
    pub resource: &'static Resource,
    /// The object's key; of a created child the name that this manager would give it.
    pub key: Key,
    /// Its uid; empty for a creation.
    pub uid: Str,
    /// As in `patch pods/web-1/status`.
    pub text: String,
    /// What it does.
    pub deed: Deed,
}

/// What a write does.
#[derive(Clone, Debug, PartialEq)]
pub enum Deed {
    /// Makes an object.
    Create {
        /// The object without what each manager chooses for itself.
        object: Value,
        /// The uid of its managing controller; empty for none.
        owner: Str,
        /// Whether its name is the same under each manager.
        is_named: bool,
    },
    /// Sets fields.
    Fields {
        /// What the fields become; null removes one.
        patch: Value,
        /// How its lists are read.
        lists: Lists,
    },
    /// Has the object stored again as it is.
    Rewrite,
    /// Deletes an object, or all of a namespace where the key has no name.
    Delete,
    /// Replaces a whole object at a subresource: a namespace is let go of.
    Replace,
}

/// Where the effect of a write is seen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// At one object.
    Object(&'static str, &'static str, Key),
    /// Among the children of an owner of this uid.
    Children(&'static str, &'static str, Str),
    /// Anywhere among the objects of a namespace.
    All(&'static str, &'static str, Str),
}

impl Place {
    /// Where a change of this object shows the effect of writes.
    pub fn of_object(object: &AnyObject) -> [Option<Self>; 3] {
        let (resource, meta) = (object.resource(), object.metadata());
        let (group, plural) = (resource.group, resource.plural);
        [
            Some(Self::Object(group, plural, Key::of_meta(meta))),
            meta.controller()
                .map(|owner| Self::Children(group, plural, owner.uid.clone())),
            Some(Self::All(group, plural, meta.namespace.clone())),
        ]
    }
}

impl Want {
    /// Of an action.
    pub fn of(action: &Action) -> Self {
        let deed = match &action.verb {
            Verb::Create { body } => created(action, body),
            Verb::Patch { kind, patch, .. } => match kind {
                PatchKind::Rewrite { .. } => Deed::Rewrite,
                PatchKind::Merge => Deed::Fields {
                    patch: patch.clone(),
                    lists: Lists::Whole,
                },
                PatchKind::Strategic | PatchKind::Apply { .. } => Deed::Fields {
                    patch: patch.clone(),
                    lists: Lists::Contained,
                },
            },
            Verb::Delete { .. } | Verb::DeleteCollection { .. } => Deed::Delete,
            Verb::Replace { .. } => Deed::Replace,
        };
        Self {
            resource: action.resource,
            key: action.key.clone(),
            uid: action.uid.clone(),
            text: action.to_string(),
            deed,
        }
    }

    /// Where its effect is seen.
    pub fn place(&self) -> Place {
        let (group, plural) = (self.resource.group, self.resource.plural);
        match &self.deed {
            Deed::Create {
                owner,
                is_named: false,
                ..
            } => Place::Children(group, plural, owner.clone()),
            Deed::Delete if self.key.name.is_empty() => {
                Place::All(group, plural, self.key.namespace.clone())
            }
            _ => Place::Object(group, plural, self.key.clone()),
        }
    }

    /// Whether another plan's write is the same with perhaps other values.
    pub fn is_of_same_slot(&self, other: &Self) -> bool {
        let alike = match (&self.deed, &other.deed) {
            (Deed::Fields { patch: one, .. }, Deed::Fields { patch: other, .. }) => {
                fields(one) == fields(other)
            }
            // The next Job of a CronJob in place of one that was never made.
            (Deed::Create { owner: ours, .. }, Deed::Create { owner: theirs, .. })
                if !ours.is_empty() && std::ptr::eq(self.resource, other.resource) =>
            {
                return ours == theirs;
            }
            (one, other) => std::mem::discriminant(one) == std::mem::discriminant(other),
        };
        alike && self.uid == other.uid && self.place() == other.place()
    }

    /// Whether values of the object may be shown to nobody.
    pub fn is_confidential(&self) -> bool {
        is_secret(self.resource)
    }
}

fn is_secret(resource: &Resource) -> bool {
    resource.group.is_empty() && resource.plural == "secrets"
}

/// Names of children of these resources are hashes of each manager's own, without a generateName.
fn is_named_by_hash(resource: &Resource) -> bool {
    resource.group == "apps" && matches!(resource.plural, "replicasets" | "controllerrevisions")
}

fn created(action: &Action, body: &[u8]) -> Deed {
    let resource = action.resource;
    let mut object = match is_json(body) {
        // Parts that the projection has not are in no cache either.
        true => serde_json::from_slice::<Value>(body)
            .map(|json| json!({"metadata": json["metadata"]}))
            .unwrap_or_default(),
        false => resource
            .read(body)
            .map(|object| object.to_json())
            .unwrap_or_default(),
    };
    let meta = &object["metadata"];
    let owner = meta["ownerReferences"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|owner| owner["controller"] == true)
        .and_then(|owner| owner["uid"].as_str())
        .map(Str::from)
        .unwrap_or_default();
    let generated = meta["generateName"]
        .as_str()
        .is_some_and(|prefix| !prefix.is_empty());
    let is_named = owner.is_empty() || !(generated || is_named_by_hash(resource));
    let meta = object.get_mut("metadata").and_then(Value::as_object_mut);
    if let Some(meta) = meta {
        meta.retain(|name, _| !SERVERS.contains(&name.as_str()) && (is_named || name != "name"));
    }
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
        fields.remove("kind");
        fields.remove("apiVersion");
    }
    Deed::Create {
        object,
        owner,
        is_named,
    }
}

/// Whether a change has brought a write's state about. `slack`: how far apart two times may be.
pub fn satisfied(
    want: &Want,
    old: Option<&AnyObject>,
    new: Option<&AnyObject>,
    slack: Duration,
) -> bool {
    let Some(seen) = new.or(old) else {
        return false;
    };
    if !is_of(want, seen) {
        return false;
    }
    let gone = new.is_none_or(|new| new.metadata().is_terminating());
    match &want.deed {
        Deed::Create { .. } => {
            old.is_none() && new.is_some() && nearest(want, seen, slack).is_none()
        }
        Deed::Fields { .. } => new.is_none() || nearest(want, seen, slack).is_none(),
        Deed::Rewrite => true,
        Deed::Delete => gone,
        Deed::Replace => new.is_none(),
    }
}

/// Whether a change is what a write would have done: it brings its state about, and is about its fields.
pub fn explains(
    want: &Want,
    old: Option<&AnyObject>,
    new: Option<&AnyObject>,
    slack: Duration,
) -> bool {
    // What was to be written to an object is no reason why it is gone.
    let may = match want.deed {
        Deed::Fields { .. } => new.is_some() && (old.is_none() || touches(want, old, new)),
        Deed::Rewrite => new.is_some(),
        Deed::Create { .. } | Deed::Delete | Deed::Replace => true,
    };
    may && satisfied(want, old, new, slack)
}

/// Whether a change has changed a field that a write would set.
pub fn touches(want: &Want, old: Option<&AnyObject>, new: Option<&AnyObject>) -> bool {
    let (Deed::Fields { patch, .. }, Some(old), Some(new)) = (&want.deed, old, new) else {
        return false;
    };
    if !want.uid.is_empty() && new.metadata().uid != want.uid {
        return false;
    }
    let changed = changed_fields(old, new);
    fields(patch).iter().any(|path| overlaps(path, &changed))
}

/// Whether a field is, has or belongs to one of these.
pub(crate) fn overlaps(path: &[String], others: &[Vec<String>]) -> bool {
    let mut others = others.iter();
    others.any(|other| path.starts_with(other) || other.starts_with(path))
}

/// Whether an object is the one that a write is about, or may be the one that it makes.
fn is_of(want: &Want, seen: &AnyObject) -> bool {
    let (resource, meta) = (seen.resource(), seen.metadata());
    if (resource.group, resource.plural) != (want.resource.group, want.resource.plural) {
        return false;
    }
    let same_name = meta.namespace == want.key.namespace
        && (want.key.name.is_empty() || meta.name == want.key.name);
    match &want.deed {
        Deed::Create {
            owner, is_named, ..
        } => {
            let same_owner = meta
                .controller()
                .is_some_and(|controller| controller.uid == *owner);
            meta.namespace == want.key.namespace
                && (owner.is_empty() || same_owner)
                && (!is_named || same_name)
        }
        _ => same_name && (want.uid.is_empty() || want.uid == meta.uid),
    }
}

/// The first field of an object that is not as a write would have it. Values of Secrets are left out.
pub fn nearest(want: &Want, seen: &AnyObject, slack: Duration) -> Option<Mismatch> {
    let (ours, lists) = match &want.deed {
        Deed::Create { object, .. } => (object, Lists::Contained),
        Deed::Fields { patch, lists } => (patch, *lists),
        Deed::Rewrite | Deed::Delete | Deed::Replace => return None,
    };
    let (mut ours, mut theirs) = (ours.clone(), seen.to_json());
    let meta = ours.get_mut("metadata").and_then(Value::as_object_mut);
    if let Some(meta) = meta {
        meta.retain(|name, _| !SERVERS.contains(&name.as_str()));
    }
    if seen.resource().metadata_only
        && let Some(fields) = ours.as_object_mut()
    {
        fields.retain(|name, _| name == "metadata");
        let meta = fields.get_mut("metadata").and_then(Value::as_object_mut);
        if let Some(meta) = meta {
            // Nor these are held of such an object.
            meta.retain(|name, _| !matches!(name.as_str(), "labels" | "annotations"));
        }
    }
    hide(want.resource, &mut ours);
    hide(want.resource, &mut theirs);
    differ(&ours, &theirs, lists, slack)
}

/// By how long endpoints lag behind what they follow is measured with it.
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// What differs each time that it is made, or may not be shown: whether it is there is compared.
fn hide(resource: &Resource, object: &mut Value) {
    const THERE: &str = "(not compared)";
    if is_secret(resource) {
        for field in ["data", "stringData"] {
            let values = object.get_mut(field).and_then(Value::as_object_mut);
            for (_, value) in values.into_iter().flatten() {
                if !value.is_null() {
                    *value = json!(THERE);
                }
            }
        }
    }
    // When a manager reacted to which of several changes first is its own.
    if let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut)
        && let Some(annotations) = meta.get_mut("annotations").and_then(Value::as_object_mut)
        && annotations.remove(TRIGGER_TIME).is_some()
        && annotations.is_empty()
    {
        meta.remove("annotations");
    }
    // Which of the free ranges a node gets is each manager's choice.
    if resource.plural == "nodes" {
        for field in ["/spec/podCIDR", "/spec/podCIDRs"] {
            if let Some(range) = object.pointer_mut(field).filter(|one| !one.is_null()) {
                *range = json!(THERE);
            }
        }
    }
    if resource.plural == "certificatesigningrequests" {
        let certificate = object.pointer_mut("/status/certificate");
        if let Some(certificate) = certificate.filter(|one| !one.is_null()) {
            *certificate = json!(THERE);
        }
    }
}

/// The fields by which a step is judged. Metadata goes along with the rest, where there is any: an annotation
/// may have its last value before the list that it is about. So do times: two steps of one second have the
/// same.
pub(crate) fn judged_fields(mut paths: Vec<Vec<String>>) -> Vec<Vec<String>> {
    let is_rest = |path: &Vec<String>| {
        let is_metadata = path.first().is_some_and(|part| part == "metadata");
        let is_time = path.last().is_some_and(|part| part.ends_with("Time"));
        !is_metadata && !is_time
    };
    if paths.iter().any(is_rest) {
        paths.retain(is_rest);
    }
    paths
}

/// The fields of an update that are still as it has set them.
pub fn standing_fields(old: &AnyObject, new: &AnyObject, since: &AnyObject) -> Vec<Vec<String>> {
    let (set, present) = (new.to_json(), since.to_json());
    let mut paths = judged_fields(changed_fields(old, new));
    paths.retain(|path| value_at(&set, path) == value_at(&present, path));
    paths
}

/// Whether a write would set these fields to what they are.
pub fn sets(want: &Want, paths: &[Vec<String>], present: &AnyObject, slack: Duration) -> bool {
    let Deed::Fields { patch, lists } = &want.deed else {
        return false;
    };
    let json = present.to_json();
    is_of(want, present)
        && paths.iter().all(|path| {
            let set = patch.pointer(&pointer(path));
            set.is_some_and(|set| differ(set, value_at(&json, path), *lists, slack).is_none())
        })
}

/// Whether a write is what a change has done, also by what has become of the object since: the manager in
/// charge may have gone in several steps where a plan goes in one. `since` is the object as it is now,
/// `standing` are the fields of the change that are as it has set them.
pub fn would_make(
    want: &Want,
    change: &Change,
    (since, standing): (Option<&AnyObject>, &[Vec<String>]),
    slack: Duration,
) -> bool {
    let (old, new) = (change.old.as_ref(), change.new.as_ref());
    let has_become = || satisfied(want, old, since, slack);
    explains(want, old, new, slack)
        || ((old.is_none() || touches(want, old, new)) && has_become())
        || (!standing.is_empty() && since.is_some_and(|since| sets(want, standing, since, slack)))
}

fn pointer(path: &[String]) -> String {
    let escaped = |part: &String| format!("/{}", part.replace('~', "~0").replace('/', "~1"));
    path.iter().map(escaped).collect()
}

fn value_at<'a>(object: &'a Value, path: &[String]) -> &'a Value {
    object.pointer(&pointer(path)).unwrap_or(&Value::Null)
}

/// The fields that a change has changed, as paths down to lists and values: `spec`, `replicas`.
pub fn changed_fields(old: &AnyObject, new: &AnyObject) -> Vec<Vec<String>> {
    let stripped = |object: &AnyObject| {
        let mut json = object.to_json();
        if let Some(meta) = json.get_mut("metadata").and_then(Value::as_object_mut) {
            meta.retain(|name, _| !SERVERS.contains(&name.as_str()));
        }
        hide(object.resource(), &mut json);
        json
    };
    merge_patch(&stripped(old), &stripped(new))
        .map(|patch| fields(&patch))
        .unwrap_or_default()
}

/// The paths of a patch's leaves; preconditions are none.
pub(crate) fn fields(patch: &Value) -> Vec<Vec<String>> {
    fn walk(at: &mut Vec<String>, value: &Value, all: &mut Vec<Vec<String>>) {
        match value {
            Value::Object(fields) if !fields.is_empty() => {
                for (name, value) in fields {
                    at.push(name.clone());
                    walk(at, value, all);
                    at.pop();
                }
            }
            _ => all.push(at.clone()),
        }
    }
    let mut all = Vec::new();
    walk(&mut Vec::new(), patch, &mut all);
    let precondition = |path: &Vec<String>| {
        path.len() == 2
            && path[0] == "metadata"
            && matches!(path[1].as_str(), "uid" | "resourceVersion")
    };
    all.retain(|path| !precondition(path));
    all
}
