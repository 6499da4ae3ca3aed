//! Patches as the difference of two projections: they name only what changed, so fields that this build does
//! not know are never touched.

use kubernetes_proto::Object;
use serde_json::{Map, Value};

/// Which part of an object a write goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Everything but the status.
    Object,
    /// The status alone.
    Status,
}

/// The merge patch (RFC 7386) from one projection to another; `None` where they do not differ in that part.
/// Lists are replaced whole: a list in a projection must be complete.
pub fn difference<T: Object>(old: &T, new: &T, part: Part) -> Option<Value> {
    merge_patch(&json(old, part), &json(new, part))
}

/// A part of an object as JSON.
pub(crate) fn json<T: Object>(object: &T, part: Part) -> Value {
    let mut value =
        serde_json::to_value(object).expect("a projection has only string keys and finite numbers");
    let fields = value
        .as_object_mut()
        .expect("an object's JSON is an object");
    match part {
        Part::Object => {
            fields.remove("status");
        }
        Part::Status => fields.retain(|name, _| name == "status"),
    }
    value
}

/// The merge patch from `old` to `new`; `None` where they are equal.
pub fn merge_patch(old: &Value, new: &Value) -> Option<Value> {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            let mut patch = Map::new();
            for name in old.keys().filter(|name| !new.contains_key(*name)) {
                patch.insert(name.clone(), Value::Null);
            }
            for (name, value) in new {
                match old.get(name) {
                    Some(before) => {
                        if let Some(change) = merge_patch(before, value) {
                            patch.insert(name.clone(), change);
                        }
                    }
                    None => {
                        patch.insert(name.clone(), value.clone());
                    }
                }
            }
            (!patch.is_empty()).then_some(Value::Object(patch))
        }
        _ => (old != new).then(|| new.clone()),
    }
}

/// Applies a merge patch.
pub fn apply_merge(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let fields = target.as_object_mut().expect("it is one now");
    for (name, change) in changes {
        if change.is_null() {
            fields.remove(name);
        } else {
            apply_merge(fields.entry(name.clone()).or_insert(Value::Null), change);
        }
    }
}
