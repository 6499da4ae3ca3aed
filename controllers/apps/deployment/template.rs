//! When two pod templates are the same, whatever the label pod-template-hash says.
//!
//! Equal bytes are equal. Different bytes may still describe the same template (two servers of different
//! versions encode one spec differently), and that must not start a rollout: then both are read live and
//! compared as JSON, once.

use std::sync::Arc;

use controllers_kit::{Answer, Key, Query, Refusal, Snapshot, names};
use kubernetes_proto::{
    Object,
    apps::{Deployment, ReplicaSet},
    core::{PodSpecOutline, PodTemplateSpec},
    meta::{Entry, ObjectMeta},
};
use prost::Message;
use serde_json::Value;

use super::{Memory, Verdict};

/// The label that distinguishes the pods of one ReplicaSet from those of another.
pub(super) const HASH_LABEL: &str = "pod-template-hash";

/// The result of comparing bytes alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Likeness {
    Equal,
    Different,
    /// Different bytes that may say the same.
    Doubtful,
}

fn likeness(one: &PodTemplateSpec, other: &PodTemplateSpec) -> Likeness {
    if !same_metadata(one.metadata.as_ref(), other.metadata.as_ref()) {
        Likeness::Different
    } else if one.spec == other.spec {
        Likeness::Equal
    } else if outline(&one.spec) == outline(&other.spec) {
        Likeness::Doubtful
    } else {
        Likeness::Different
    }
}

fn outline(spec: &[u8]) -> Option<PodSpecOutline> {
    PodSpecOutline::decode(spec).ok()
}

fn same_metadata(one: Option<&ObjectMeta>, other: Option<&ObjectMeta>) -> bool {
    let none = ObjectMeta::default();
    let (one, other) = (one.unwrap_or(&none), other.unwrap_or(&none));
    let labels = |meta: &ObjectMeta| -> Vec<Entry> {
        meta.labels
            .iter()
            .filter(|label| label.key != *HASH_LABEL)
            .cloned()
            .collect()
    };
    labels(one) == labels(other)
        && one.annotations == other.annotations
        && one.finalizers == other.finalizers
        && one.owner_references == other.owner_references
        && one.name == other.name
        && one.generate_name == other.generate_name
        && one.namespace == other.namespace
}

fn of_deployment(deployment: &Deployment) -> PodTemplateSpec {
    deployment
        .spec
        .as_ref()
        .and_then(|spec| spec.template.clone())
        .unwrap_or_default()
}

fn of_set(set: &ReplicaSet) -> Option<&PodTemplateSpec> {
    set.spec.as_ref()?.template.as_ref()
}

/// A hash of both encodings: the verdict holds for no others.
fn encodings(one: &PodTemplateSpec, other: &PodTemplateSpec) -> u64 {
    let mut bytes = one.spec.clone();
    bytes.extend_from_slice(&(one.spec.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&other.spec);
    names::hash(&bytes)
}

/// The known relation of a Deployment's template to those of its ReplicaSets.
struct Comparison {
    /// The oldest ReplicaSet with the very same bytes.
    equal: Option<usize>,
    /// The undecided ones, the oldest first, each with its encodings.
    doubts: Vec<(usize, u64)>,
}

fn compare(deployment: &Deployment, sets: &[Arc<ReplicaSet>]) -> Comparison {
    let wanted = of_deployment(deployment);
    let mut comparison = Comparison {
        equal: None,
        doubts: Vec::new(),
    };
    for (index, set) in sets.iter().enumerate() {
        let Some(template) = of_set(set) else {
            continue;
        };
        match likeness(&wanted, template) {
            Likeness::Equal => {
                comparison.equal = Some(index);
                break;
            }
            Likeness::Doubtful => comparison
                .doubts
                .push((index, encodings(&wanted, template))),
            Likeness::Different => {}
        }
    }
    comparison
}

fn remembered(memory: &Memory, set: &ReplicaSet, encodings: u64) -> Option<bool> {
    memory
        .verdicts
        .iter()
        .find(|verdict| set.metadata().uid == *verdict.set && verdict.encodings == encodings)
        .map(|verdict| verdict.equal)
}

pub(super) fn live<T: Object>(object: &T) -> Query {
    Query::Live {
        resource: T::resource(),
        key: Key::of(object),
    }
}

/// What must be read to find the new ReplicaSet: nothing where bytes decide, or where it was asked before.
pub(super) fn ask(
    deployment: &Deployment,
    sets: &[Arc<ReplicaSet>],
    memory: &Memory,
) -> Vec<Query> {
    let comparison = compare(deployment, sets);
    if comparison.equal.is_some() {
        return Vec::new();
    }
    let mut queries: Vec<Query> = comparison
        .doubts
        .iter()
        .filter(|(index, encodings)| remembered(memory, &sets[*index], *encodings).is_none())
        .map(|(index, _)| live(sets[*index].as_ref()))
        .collect();
    if !queries.is_empty() {
        queries.push(live(deployment));
    }
    queries
}

/// The oldest ReplicaSet that has the Deployment's template. `sets` stand in order of their creation.
///
/// # Errors
/// Where one is in doubt and could not be read.
pub(super) fn find_new(
    deployment: &Deployment,
    sets: &[Arc<ReplicaSet>],
    seen: &Snapshot<'_>,
    memory: &mut Memory,
) -> Result<Option<usize>, Refusal> {
    let comparison = compare(deployment, sets);
    if comparison.equal.is_some() {
        memory.verdicts.clear();
        return Ok(comparison.equal);
    }
    let mut verdicts = Vec::with_capacity(comparison.doubts.len());
    let mut found = None;
    for (index, encodings) in comparison.doubts {
        let set = sets[index].as_ref();
        let equal = match remembered(memory, set, encodings) {
            Some(equal) => equal,
            None => are_equal_live(deployment, set, seen)?,
        };
        verdicts.push(Verdict {
            set: set.metadata().uid.to_string(),
            encodings,
            equal,
        });
        if equal && found.is_none() {
            found = Some(index);
        }
    }
    memory.verdicts = verdicts;
    Ok(found)
}

/// Compares the live templates of both.
///
/// # Errors
/// Where one could not be read, or is not the one that was seen.
pub(super) fn are_equal_live(
    deployment: &Deployment,
    set: &ReplicaSet,
    seen: &Snapshot<'_>,
) -> Result<bool, Refusal> {
    Ok(live_template(deployment, seen)? == live_template(set, seen)?)
}

/// Whether a Deployment is known, by bytes or memory, to have a ReplicaSet's template.
pub(super) fn is_known_equal(
    deployment: &Deployment,
    set: &ReplicaSet,
    memory: &Memory,
) -> Option<bool> {
    let wanted = of_deployment(deployment);
    let template = of_set(set)?;
    match likeness(&wanted, template) {
        Likeness::Equal => Some(true),
        Likeness::Different => Some(false),
        Likeness::Doubtful => remembered(memory, set, encodings(&wanted, template)),
    }
}

/// The template as read live, without fields that do not count.
///
/// # Errors
/// Where the object could not be read, or is not the one that was seen.
pub(super) fn live_template<T: Object>(object: &T, seen: &Snapshot<'_>) -> Result<Value, Refusal> {
    let mut template = live_object(object, seen)?["spec"]["template"].clone();
    if let Some(meta) = template["metadata"].as_object_mut() {
        meta.retain(|_, value| !value.is_null());
        if let Some(labels) = meta.get_mut("labels").and_then(Value::as_object_mut) {
            labels.remove(HASH_LABEL);
        }
    }
    Ok(template)
}

/// The object as read live, of the generation that was seen.
///
/// # Errors
/// Where it could not be read, or is not the one that was seen.
pub(super) fn live_object<'a, T: Object>(
    object: &T,
    seen: &Snapshot<'a>,
) -> Result<&'a Value, Refusal> {
    let kind = T::resource().kind;
    let key = Key::of(object);
    let meta = object.metadata();
    match seen.answer(&live(object)) {
        Some(Answer::Object(value)) => {
            let is_seen = value["metadata"]["uid"].as_str() == Some(meta.uid.as_str())
                && value["metadata"]["generation"].as_i64().unwrap_or(0) == meta.generation;
            if is_seen {
                Ok(value)
            } else {
                Err(Refusal::Retry(format!(
                    "{kind} {key} has changed since it was seen"
                )))
            }
        }
        Some(Answer::Missing | Answer::NotFound(_)) => {
            Err(Refusal::Retry(format!("{kind} {key} is gone")))
        }
        Some(Answer::Failed(why)) => Err(Refusal::Retry(format!(
            "can't read {kind} {key} to compare templates: {why}"
        ))),
        None => Err(Refusal::Retry(format!(
            "{kind} {key} was not read to compare templates"
        ))),
    }
}

/// The hash in a new ReplicaSet's name: of the template's bytes and of how often names have collided.
pub(super) fn hash(deployment: &Deployment, collision_count: Option<i32>) -> String {
    let mut template = of_deployment(deployment);
    if let Some(meta) = &mut template.metadata {
        meta.creation_timestamp = None;
    }
    let mut bytes = template.encode_to_vec();
    if let Some(count) = collision_count {
        bytes.extend_from_slice(&count.to_le_bytes());
    }
    names::encode_hash(names::hash(&bytes) as u32)
}
