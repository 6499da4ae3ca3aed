//! What of an object matters, in few words: what a write changed, without times, uids and versions.

use std::collections::{BTreeMap, BTreeSet};

use kubernetes_proto::{core::PodSpecOutline, opaque};
use prost::Message as _;
use serde_json::Value;

/// Fields that differ between runs, follow from others, or are the tests' own.
const NOT_SHOWN: [&str; 16] = [
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "pod-template-hash",
    "controller-uid",
    "batch.kubernetes.io/controller-uid",
    "startTime",
    "completionTime",
    "finishedAt",
    "lastTransitionTime",
    "lastHeartbeatTime",
    "lastUpdateTime",
    "tolerations",
    crate::heartbeats::SILENT,
];
/// Parents of fields that are clear without them.
const LEFT_OUT: [&str; 7] = [
    "metadata",
    "spec",
    "status",
    "annotations",
    "labels",
    "containerStatuses",
    "template",
];

/// What a creation shows, by the resource's plural.
fn of_new(plural: &str) -> &'static [&'static str] {
    match plural {
        "deployments" | "replicasets" => &[
            "/metadata/annotations/deployment.kubernetes.io~1revision",
            "/spec/replicas",
            "/spec/template/spec/image",
        ],
        "jobs" => &[
            "/spec/completions",
            "/spec/parallelism",
            "/spec/backoffLimit",
        ],
        "volumeattachments" => &["/spec/source/persistentVolumeName", "/spec/nodeName"],
        "pods" => &["/metadata/finalizers/0"],
        _ => &[],
    }
}

/// An object that has been made.
pub(super) fn made(plural: &str, new: &Value) -> String {
    let new = readable(new);
    let mut words: Vec<String> = of_new(plural)
        .iter()
        .filter_map(|path| {
            let value = new.pointer(path)?;
            let name = path.trim_end_matches("/0").rsplit('/').next()?;
            let name = name.replace("~1", "/");
            Some(format!("{} {}", short(&name), scalar(value)))
        })
        .collect();
    let owner = new["metadata"]["ownerReferences"].as_array();
    if let Some(owner) = owner.and_then(|owners| owners.first()) {
        words.push(format!("of {}", reference(owner)));
    }
    words.join(", ")
}

/// What has changed between two states of an object; empty where nothing has that is shown.
pub(super) fn changed(old: &Value, new: &Value) -> String {
    let mut words = Vec::new();
    compare(&mut Vec::new(), &readable(old), &readable(new), &mut words);
    words.join(", ")
}

/// The same with templates' specs as their images.
fn readable(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let bytes = fields.get(opaque::FIELD).and_then(Value::as_str);
            if let Some(outline) = bytes
                .and_then(opaque::digits)
                .and_then(|bytes| PodSpecOutline::decode(&*bytes).ok())
            {
                let images: Vec<&str> = outline
                    .containers
                    .iter()
                    .map(|one| one.image.as_str())
                    .collect();
                return serde_json::json!({"image": images.join("+")});
            }
            let readable = fields
                .iter()
                .map(|(name, value)| (name.clone(), readable(value)));
            Value::Object(readable.collect())
        }
        Value::Array(entries) => Value::Array(entries.iter().map(readable).collect()),
        other => other.clone(),
    }
}

fn compare(path: &mut Vec<String>, old: &Value, new: &Value, words: &mut Vec<String>) {
    if old == new {
        return;
    }
    match (old, new) {
        (Value::Object(_) | Value::Null, Value::Object(_)) | (Value::Object(_), Value::Null) => {
            let none = serde_json::Map::new();
            let (old, new) = (
                old.as_object().unwrap_or(&none),
                new.as_object().unwrap_or(&none),
            );
            for name in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
                if NOT_SHOWN.contains(&name.as_str()) {
                    continue;
                }
                let of = |fields: &serde_json::Map<String, Value>| {
                    fields.get(name).cloned().unwrap_or_default()
                };
                if name == "deletionTimestamp" {
                    if of(old).is_null() && !of(new).is_null() {
                        words.push("terminating".to_owned());
                    }
                    continue;
                }
                path.push(name.clone());
                compare(path, &of(old), &of(new), words);
                path.pop();
            }
        }
        (Value::Array(_) | Value::Null, Value::Array(_)) | (Value::Array(_), Value::Null) => {
            lists(path, old, new, words);
        }
        _ => {
            if matches!(path.as_slice(), [.., of, _, field] if of == "containerStatuses" && field == "name")
            {
                return;
            }
            let (old, new) = (with_zero(path, old, new), with_zero(path, new, old));
            if old != new {
                words.push(format!("{} {}", named(path), arrow(&old, &new)));
            }
        }
    }
}

/// Entries by what they are known by.
fn lists(path: &mut Vec<String>, old: &Value, new: &Value, words: &mut Vec<String>) {
    let by_name = |list: &Value| -> BTreeMap<String, Value> {
        let entries = list.as_array().into_iter().flatten();
        entries.map(|one| (entry(one), one.clone())).collect()
    };
    let (old, new) = (by_name(old), by_name(new));
    let list = path.last().map_or("", String::as_str).to_owned();
    let uncounted = path.iter().any(|part| part == "uncountedTerminatedPods");
    for name in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
        match (old.get(name), new.get(name)) {
            // Known by their uids.
            (None, _) if uncounted => words.push(format!("+uncounted {list} pod")),
            (_, None) if uncounted => words.push(format!("-uncounted {list} pod")),
            (before, Some(after)) if list == "conditions" => {
                let words_of = condition(after);
                if before.map(condition).as_ref() != Some(&words_of) {
                    words.push(words_of);
                }
            }
            (Some(before), Some(after)) => {
                path.push(name.clone());
                compare(path, before, after, words);
                path.pop();
            }
            (None, Some(after)) if list == "containerStatuses" => {
                path.push(name.clone());
                compare(path, &Value::Null, after, words);
                path.pop();
            }
            (None, _) => words.push(format!("+{} {name}", list.trim_end_matches('s'))),
            (_, None) => words.push(format!("-{} {name}", list.trim_end_matches('s'))),
        }
    }
}

/// What an entry of a list is known by.
fn entry(value: &Value) -> String {
    let text = |name: &str| value[name].as_str().unwrap_or_default();
    if value.get("effect").is_some() {
        return format!("{}:{}", text("key"), text("effect"));
    }
    if value.get("controller").is_some() || value.get("blockOwnerDeletion").is_some() {
        return reference(value);
    }
    let named = ["type", "name"].into_iter().map(text);
    let mut named = named.filter(|name| !name.is_empty());
    named.next().map_or_else(|| scalar(value), str::to_owned)
}

fn reference(owner: &Value) -> String {
    let text = |name: &str| owner[name].as_str().unwrap_or_default();
    format!("{}/{}", text("kind"), text("name"))
}

/// As in `Available=False MinimumReplicasUnavailable "Deployment does not have minimum availability."`.
fn condition(value: &Value) -> String {
    let text = |name: &str| value[name].as_str().unwrap_or_default();
    let mut words = format!("{}={}", text("type"), text("status"));
    if !text("reason").is_empty() {
        words.push_str(&format!(" {}", text("reason")));
    }
    if !text("message").is_empty() {
        words.push_str(&format!(" {:?}", text("message")));
    }
    words
}

/// A number that is not there beside one that is, is 0.
fn with_zero(path: &[String], value: &Value, other: &Value) -> Value {
    let ended = path.last().is_some_and(|field| field == "exitCode");
    match (value, other) {
        (Value::Null, Value::Number(_)) if !ended => 0.into(),
        _ => value.clone(),
    }
}

fn arrow(old: &Value, new: &Value) -> String {
    match (old, new) {
        (Value::Null, new) => scalar(new),
        (old, Value::Null) => format!("{} -> none", scalar(old)),
        (old, new) => format!("{} -> {}", scalar(old), scalar(new)),
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A field by its path, without what is clear.
fn named(path: &[String]) -> String {
    let kept = path
        .iter()
        .filter(|part| !LEFT_OUT.contains(&part.as_str()));
    let kept: Vec<&str> = kept.map(|part| short(part)).collect();
    kept.join(".")
}

/// An annotation without its prefix.
fn short(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}
