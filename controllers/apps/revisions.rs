//! ControllerRevisions: what a pod template was, as JSON in upstream's own bytes, so that revisions made by
//! upstream are found equal here and those made here are found equal there.
//!
//! Controllers hold templates as bytes; the JSON requires a live read of the owner. That is done only where
//! neither the owner's status nor a memory of the same bytes determines the template's revision.

use std::{cmp::Ordering, sync::Arc};

use controllers_kit::{
    Answer, Key, Query, Refusal, Snapshot, names,
    owners::{self, Claimed},
    pods,
    selectors::Selector,
};
use kubernetes_proto::{
    Object,
    apps::ControllerRevision,
    core::PodTemplateSpec,
    meta::{ObjectMeta, RawExtension},
};
use prost::Message;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The label that distinguishes the pods of one revision from those of another.
pub(crate) const REVISION_LABEL: &str = "controller-revision-hash";

/// Bytes of an owner's name that a revision's name keeps at most.
const PREFIX_BYTES_MAX: usize = 223;

/// The data of a template's bytes: the result of a live read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Known {
    /// A hash of the template's bytes; 0 where nothing is known.
    pub template: u64,
    /// A hash of the data that they make.
    pub data: u64,
    /// The uid of a revision that is equivalent though encoded differently; empty without one.
    pub equivalent: String,
}

/// A hash of a template's bytes.
pub(crate) fn template_hash(template: Option<&PodTemplateSpec>) -> u64 {
    names::hash(&template.map(Message::encode_to_vec).unwrap_or_default())
}

/// A revision's data.
pub(crate) fn data(revision: &ControllerRevision) -> &[u8] {
    revision.data.as_ref().map_or(&[], |data| &data.raw)
}

/// The revisions that an owner has, in order, or might adopt.
pub(crate) fn of_owner<O: Object>(
    owner: &Arc<O>,
    selector: &Selector,
    seen: &Snapshot<'_>,
) -> Claimed<O, ControllerRevision> {
    let mut revisions = Claimed::of(Arc::clone(owner), selector.clone(), seen);
    sort(&mut revisions.claims.owned);
    revisions
}

/// Sorts by number, then age, then name.
pub(crate) fn sort(revisions: &mut [Arc<ControllerRevision>]) {
    revisions.sort_by(|one, other| order(one, other));
}

fn order(one: &ControllerRevision, other: &ControllerRevision) -> Ordering {
    let created = |revision: &ControllerRevision| {
        pods::instant(Object::metadata(revision).creation_timestamp)
    };
    one.revision
        .cmp(&other.revision)
        .then_with(|| created(one).cmp(&created(other)))
        .then_with(|| {
            Object::metadata(one)
                .name
                .cmp(&Object::metadata(other).name)
        })
}

/// What reads an owner live.
pub(crate) fn live<O: Object>(owner: &O) -> Query {
    Query::Live {
        resource: O::resource(),
        key: Key::of(owner),
    }
}

/// The data of an owner's template, from the owner as read live.
///
/// # Errors
/// Where it was not read, or has changed since it was seen.
pub(crate) fn live_data<O: Object>(owner: &O, seen: &Snapshot<'_>) -> Result<Vec<u8>, Refusal> {
    let (kind, key, meta) = (O::resource().kind, Key::of(owner), owner.metadata());
    match seen.answer(&live(owner)) {
        Some(Answer::Object(object)) => {
            let is_seen = object["metadata"]["uid"].as_str() == Some(meta.uid.as_str())
                && object["metadata"]["generation"].as_i64().unwrap_or(0) == meta.generation;
            if !is_seen {
                return Err(Refusal::Retry(format!(
                    "{kind} {key} has changed since it was seen"
                )));
            }
            let mut template = object["spec"]["template"].clone();
            template["$patch"] = "replace".into();
            Ok(go_json(&json!({"spec": {"template": template}})).into_bytes())
        }
        Some(Answer::Missing | Answer::NotFound(_)) => {
            Err(Refusal::Retry(format!("{kind} {key} is gone")))
        }
        Some(Answer::Failed(why)) => Err(Refusal::Retry(format!(
            "can't read {kind} {key} for its revision: {why}"
        ))),
        None => Err(Refusal::Retry(format!(
            "{kind} {key} was not read for its revision"
        ))),
    }
}

/// JSON as Go writes a map: keys in byte order, numbers as floating point, some characters escaped. Null
/// values are left out, as Go leaves out all of a template's.
fn go_json(value: &Value) -> String {
    let mut text = String::new();
    write(value, &mut text);
    text
}

fn write(value: &Value, text: &mut String) {
    match value {
        Value::Object(fields) => {
            let mut keys: Vec<&String> = fields
                .iter()
                .filter(|(_, value)| !value.is_null())
                .map(|(key, _)| key)
                .collect();
            keys.sort_unstable();
            text.push('{');
            for (place, key) in keys.into_iter().enumerate() {
                if place > 0 {
                    text.push(',');
                }
                write_text(key, text);
                text.push(':');
                write(&fields[key], text);
            }
            text.push('}');
        }
        Value::Array(items) => {
            text.push('[');
            for (place, item) in items.iter().enumerate() {
                if place > 0 {
                    text.push(',');
                }
                write(item, text);
            }
            text.push(']');
        }
        Value::String(content) => write_text(content, text),
        // Beyond 2^53 a float64 is not exact, and Go converts to one.
        Value::Number(number) => match number.as_i64() {
            Some(whole) => text.push_str(&(whole as f64).to_string()),
            None => text.push_str(&number.to_string()),
        },
        other => text.push_str(&other.to_string()),
    }
}

fn write_text(content: &str, text: &mut String) {
    for character in Value::from(content).to_string().chars() {
        match character {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                text.push_str(&format!("\\u{:04x}", u32::from(character)));
            }
            other => text.push(other),
        }
    }
}

/// The hash in a revision's name: FNV-1 of its data and of how often names have collided.
pub(crate) fn name_hash(data: &[u8], collisions: i32) -> String {
    let mut hash = 0x811c_9dc5_u32;
    for byte in data
        .iter()
        .copied()
        .chain(collisions.to_string().into_bytes())
    {
        hash = hash.wrapping_mul(0x0100_0193) ^ u32::from(byte);
    }
    names::encode_hash(hash)
}

/// A revision's name.
pub(crate) fn name(owner: &str, hash: &str) -> String {
    let mut end = owner.len().min(PREFIX_BYTES_MAX);
    while !owner.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}-{hash}", &owner[..end])
}

/// A new revision of an owner, without labels.
pub(crate) fn new<O: Object>(
    owner: &O,
    name: &str,
    data: Vec<u8>,
    number: i64,
) -> ControllerRevision {
    let meta = owner.metadata();
    ControllerRevision {
        metadata: Some(ObjectMeta {
            name: name.into(),
            namespace: meta.namespace.clone(),
            annotations: meta.annotations.clone(),
            owner_references: vec![owners::reference(owner)],
            ..Default::default()
        }),
        data: Some(RawExtension { raw: data }),
        revision: number,
    }
}

/// The template that a revision restores; `None` where its data is no such patch.
pub(crate) fn template(revision: &ControllerRevision) -> Option<Map<String, Value>> {
    let mut data: Value = serde_json::from_slice(data(revision)).ok()?;
    let template = data.pointer_mut("/spec/template")?;
    let fields = template.as_object_mut()?;
    fields.remove("$patch");
    Some(std::mem::take(fields))
}

/// Whether older data is equivalent to new data: it may lack defaults that the server has begun to fill in
/// since.
pub(crate) fn are_equivalent(new: &[u8], old: &[u8]) -> bool {
    let parse = |data: &[u8]| serde_json::from_slice::<Value>(data).ok();
    match (parse(new), parse(old)) {
        (Some(new), Some(old)) => same(&new, &old),
        _ => false,
    }
}

fn same(new: &Value, old: &Value) -> bool {
    match (new, old) {
        (Value::Object(new_fields), Value::Object(old_fields)) => {
            let mut keys: Vec<&String> = new_fields.keys().chain(old_fields.keys()).collect();
            keys.sort_unstable();
            keys.dedup();
            keys.into_iter()
                .all(|key| match (new_fields.get(key), old_fields.get(key)) {
                    (Some(new), Some(old)) => same(new, old),
                    (Some(new), None) => is_default(key, new),
                    (None, Some(old)) => is_nothing(old),
                    (None, None) => true,
                })
        }
        (Value::Array(new), Value::Array(old)) => {
            new.len() == old.len() && new.iter().zip(old).all(|(new, old)| same(new, old))
        }
        (new, old) => new == old,
    }
}

/// Fields that Go drops when it reads and writes the template.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.values().all(is_nothing),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// The server's defaults for fields that a template leaves out.
fn is_default(field: &str, value: &Value) -> bool {
    is_nothing(value)
        || match field {
            "restartPolicy" => value == "Always",
            "dnsPolicy" => value == "ClusterFirst",
            "schedulerName" => value == "default-scheduler",
            "terminationGracePeriodSeconds" => value == 30,
            "terminationMessagePath" => value == "/dev/termination-log",
            "terminationMessagePolicy" => value == "File",
            "imagePullPolicy" => value == "IfNotPresent" || value == "Always",
            "protocol" => value == "TCP",
            "scheme" => value == "HTTP",
            "path" => value == "/",
            "apiVersion" => value == "v1",
            "defaultMode" => value == 420,
            "expirationSeconds" => value == 3600,
            "timeoutSeconds" | "successThreshold" => value == 1,
            "periodSeconds" => value == 10,
            "failureThreshold" => value == 3,
            "nodeAffinityPolicy" => value == "Honor",
            "nodeTaintsPolicy" => value == "Ignore",
            "type" | "service" => value == "",
            "pullPolicy" => value == "IfNotPresent" || value == "Always",
            "recursiveReadOnly" => value == "Disabled",
            _ => false,
        }
}

// Beside, not below: a folder of a group is a controller.
#[cfg(test)]
#[path = "revisions_tests.rs"]
mod tests;
