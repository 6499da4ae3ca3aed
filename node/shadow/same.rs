//! Whether an object has the values that a write would have given it.

use std::{collections::HashMap, time::Duration};

use controllers_kit::Timestamp;
use serde_json::{Map, Value};

/// How a list is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lists {
    /// As a whole, in any order: a merge patch replaces lists.
    Whole,
    /// Ours must be in theirs: a strategic patch adds to lists, and the API server adds to what is created.
    Contained,
}

/// The first field that differs.
#[derive(Clone, Debug, PartialEq)]
pub struct Mismatch {
    /// As in `status.conditions[Ready].reason`.
    pub field: String,
    /// What the write would have set; null for nothing.
    pub ours: Value,
    /// What is there; null for nothing.
    pub theirs: Value,
}

/// By what elements of a list are distinguished, the first that they have.
const KEYS: [&str; 8] = [
    "type",
    "uid",
    "name",
    "key",
    "ip",
    "addresses",
    "kind",
    "port",
];
/// Labels whose values two managers compute by hashes of their own.
const HASHES: [&str; 3] = [
    "pod-template-hash",
    "controller-revision-hash",
    "controller.kubernetes.io/hash",
];

/// The first field of `ours` that `theirs` has not; `None` where it has them all. A field that is absent,
/// null or the default of its type is the same. Two times are the same where they are no further apart than
/// `slack`: each manager says when it wrote.
pub fn differ(ours: &Value, theirs: &Value, lists: Lists, slack: Duration) -> Option<Mismatch> {
    Comparer { lists, slack }.values("", ours, theirs)
}

struct Comparer {
    lists: Lists,
    slack: Duration,
}

impl Comparer {
    fn values(&self, at: &str, ours: &Value, theirs: &Value) -> Option<Mismatch> {
        let mismatch = || {
            Some(Mismatch {
                field: at.to_owned(),
                ours: ours.clone(),
                theirs: theirs.clone(),
            })
        };
        if is_default(ours) {
            // What is created is filled in by the API server.
            let same = self.lists == Lists::Contained || is_default(theirs);
            return if same { None } else { mismatch() };
        }
        match (ours, theirs) {
            (Value::Object(ours), Value::Object(theirs)) => self.maps(at, ours, theirs),
            // An object whose fields are all absent is none.
            (Value::Object(ours), Value::Null) => self.maps(at, ours, &Map::new()),
            (Value::Array(ours), Value::Array(theirs)) => self.elements(at, ours, theirs),
            (Value::String(one), Value::String(other)) if self.same_text(one, other) => None,
            (Value::Number(one), Value::Number(other)) if one.as_f64() == other.as_f64() => None,
            _ if ours == theirs => None,
            _ => mismatch(),
        }
    }

    fn maps(
        &self,
        at: &str,
        ours: &Map<String, Value>,
        theirs: &Map<String, Value>,
    ) -> Option<Mismatch> {
        ours.iter().find_map(|(name, value)| {
            if let Some(list) = name.strip_prefix("$deleteFromPrimitiveList/") {
                return without(&below(at, list), value, theirs.get(list));
            }
            // A reference's version is that of the moment in which its writer last saw the object.
            let is_moment = name == "resourceVersion" && !at.is_empty();
            if name.starts_with('$') || HASHES.contains(&name.as_str()) || is_moment {
                return None;
            }
            let found = theirs.get(name).unwrap_or(&Value::Null);
            self.values(&below(at, name), value, found)
        })
    }

    fn elements(&self, at: &str, ours: &[Value], theirs: &[Value]) -> Option<Mismatch> {
        if ours == theirs {
            return None;
        }
        let mut known: HashMap<String, Vec<&Value>> = HashMap::new();
        for (place, element) in theirs.iter().enumerate() {
            known.entry(key(element, place)).or_default().push(element);
        }
        let (mut removed, mut wanted) = (0, 0);
        for (place, element) in ours.iter().enumerate() {
            let key = key(element, place);
            let field = format!("{at}[{key}]");
            if element["$patch"] == "delete" {
                removed += 1;
                if let Some(found) = known.get(&key) {
                    return Some(Mismatch {
                        field,
                        ours: Value::Null,
                        theirs: found.first().map_or(Value::Null, |one| (*one).clone()),
                    });
                }
                continue;
            }
            wanted += 1;
            let candidates = known.get_mut(&key);
            let Some(candidates) = candidates.filter(|candidates| !candidates.is_empty()) else {
                return Some(Mismatch {
                    field,
                    ours: element.clone(),
                    theirs: Value::Null,
                });
            };
            let mut differs = None;
            let found = candidates.iter().position(|candidate| {
                let mismatch = self.values(&field, element, candidate);
                let same = mismatch.is_none();
                differs = differs.take().or(mismatch);
                same
            });
            match found {
                Some(found) => drop(candidates.swap_remove(found)),
                None => return differs,
            }
        }
        (self.lists == Lists::Whole && removed == 0 && wanted != theirs.len()).then(|| Mismatch {
            field: at.to_owned(),
            ours: Value::Array(ours.to_vec()),
            theirs: Value::Array(theirs.to_vec()),
        })
    }

    fn same_text(&self, one: &str, other: &str) -> bool {
        one == other
            || match (one.parse::<Timestamp>(), other.parse::<Timestamp>()) {
                (Ok(one), Ok(other)) => one.duration_since(other).unsigned_abs() <= self.slack,
                _ => false,
            }
    }
}

fn without(at: &str, removed: &Value, theirs: Option<&Value>) -> Option<Mismatch> {
    let theirs = theirs.and_then(Value::as_array)?;
    let left = removed
        .as_array()?
        .iter()
        .find(|one| theirs.contains(one))?;
    Some(Mismatch {
        field: format!("{at}[{}]", key(left, 0)),
        ours: Value::Null,
        theirs: left.clone(),
    })
}

fn below(at: &str, name: &str) -> String {
    match at.is_empty() {
        true => name.to_owned(),
        false => format!("{at}.{name}"),
    }
}

/// By what an element is distinguished from others; its place, where nothing distinguishes it.
fn key(element: &Value, place: usize) -> String {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match element {
        Value::Object(fields) => KEYS
            .iter()
            .find_map(|key| fields.get(*key))
            .map_or_else(|| place.to_string(), text),
        scalar => text(scalar),
    }
}

/// Whether a projection would leave the field out.
fn is_default(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(elements) => elements.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}
