//! Hostile objects: every integer and time at both of its ends, every list and map with thousands of
//! entries, 1.5 MB of annotations or of template, and all of that with each integer of the spec at its
//! largest. One plan must stay within [`CPU_MAX`] and [`HELD_BYTES_MAX`], and must not panic.
//!
//! A kind's fields are found through its JSON reader, so that new fields and new controllers are covered by
//! the existing worlds of the contract.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{LazyLock, Mutex, PoisonError},
    time::{Duration, Instant},
};

use kubernetes_proto::{AnyObject, Resource};
use serde_json::{Map, Value, json};

use super::{World, engine::Built};
use crate::{Factory, Key, Plan, Verb};

/// The processor time of one plan, its queries included. Unoptimized builds get ten times as much.
const CPU_MAX: Duration = Duration::from_millis(if cfg!(debug_assertions) { 1000 } else { 100 });
/// The most bytes of a plan and its key's memory.
const HELD_BYTES_MAX: usize = 50 << 20;
/// About the largest object that the API server accepts.
const OBJECT_BYTES: usize = 1_500_000;
/// Entries of a list or map.
const ENTRIES: usize = 4000;
/// The maximum depth of nested messages.
const DEPTH_MAX: usize = 12;
/// Go's zero time, and the last instant of jiff.
const TIMES: [&str; 2] = ["0001-01-01T00:00:00Z", "9999-12-30T22:00:00Z"];
/// Objects of one kind that are changed in one world, and worlds in which that is done.
const OBJECTS_OF_A_KIND: usize = 2;
const WORLDS: usize = 8;
/// Worlds in which objects of 1.5 MB are tried: they take most of the time.
const LARGE_WORLDS: usize = 2;

/// A place in an object.
type Path = Vec<Step>;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Field(String),
    /// The first item of a list.
    Item,
}

/// What a place can hold.
#[derive(Clone, Debug)]
enum Place {
    Integer {
        least: Value,
        most: Value,
    },
    List,
    Map,
    /// Bytes as hexadecimal digits.
    Opaque,
    Time,
    Text,
}

/// The places of a kind, in the order of their paths.
type Schema = BTreeMap<Path, Place>;

/// The kind's places. Found once.
fn schema(resource: &'static Resource) -> Schema {
    static FOUND: LazyLock<Mutex<BTreeMap<String, Schema>>> = LazyLock::new(Mutex::default);
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    found
        .entry(format!("{} {}", resource.id(), resource.metadata_only))
        .or_insert_with(|| {
            let mut schema = Schema::new();
            explore(resource, &mut Vec::new(), &mut schema);
            schema
        })
        .clone()
}

/// An otherwise empty object with a value at a path, as the kind's reader accepts it.
fn probe(resource: &'static Resource, path: &[Step], value: Value) -> Result<AnyObject, String> {
    let mut json = json!({"metadata": {}});
    put(&mut json, path, value);
    resource.read_json(json).map_err(|error| error.to_string())
}

fn explore(resource: &'static Resource, path: &mut Path, schema: &mut Schema) {
    if path.len() > DEPTH_MAX {
        return;
    }
    let takes = |value: Value| probe(resource, path, value).is_ok();
    if takes(json!(1)) {
        let first = |ends: &[Value]| ends.iter().find(|end| takes((*end).clone())).cloned();
        let most = first(&[
            json!(i64::MAX),
            json!(u32::MAX),
            json!(i32::MAX),
            json!(255),
        ]);
        let least = first(&[json!(i64::MIN), json!(i32::MIN), json!(0)]);
        if let (Some(least), Some(most)) = (least, most) {
            schema.insert(path.clone(), Place::Integer { least, most });
        }
        return;
    }
    if takes(json!(TIMES[0])) && !takes(json!("x")) {
        schema.insert(path.clone(), Place::Time);
        return;
    }
    if takes(json!("x")) {
        schema.insert(path.clone(), Place::Text);
        return;
    }
    if takes(json!({"protobuf": "00"})) && !takes(json!({"x": "y"})) {
        let mut opaque = path.clone();
        opaque.push(Step::Field("protobuf".to_owned()));
        schema.insert(opaque, Place::Opaque);
        return;
    }
    if takes(json!({"x": "y"})) || takes(json!({"x": "1"})) {
        schema.insert(path.clone(), Place::Map);
        return;
    }
    // A message's reader names the fields that it knows; it would take a list of their values too.
    if let Err(error) = probe(resource, path, json!({"\u{1}": 0}))
        && let Some((_, expected)) = error.split_once(", expected ")
        && error.starts_with("unknown field")
    {
        for field in expected.split('`').skip(1).step_by(2) {
            path.push(Step::Field(field.to_owned()));
            explore(resource, path, schema);
            path.pop();
        }
        return;
    }
    if takes(json!([])) {
        schema.insert(path.clone(), Place::List);
        path.push(Step::Item);
        explore(resource, path, schema);
        path.pop();
    }
}

/// Puts a value at a path; missing parents are created.
fn put(json: &mut Value, path: &[Step], value: Value) {
    let Some((step, rest)) = path.split_first() else {
        *json = value;
        return;
    };
    let next = match step {
        Step::Field(name) => {
            if !json.is_object() {
                *json = Value::Object(Map::new());
            }
            json.as_object_mut()
                .expect("it is one now")
                .entry(name.clone())
                .or_insert(Value::Null)
        }
        Step::Item => {
            if json.as_array().is_none_or(Vec::is_empty) {
                *json = json!([null]);
            }
            &mut json.as_array_mut().expect("it is one now")[0]
        }
    };
    put(next, rest, value);
}

fn at<'a>(json: &'a Value, path: &[Step]) -> Option<&'a Value> {
    path.iter().try_fold(json, |json, step| match step {
        Step::Field(name) => json.get(name),
        Step::Item => json.get(0),
    })
}

fn dotted(path: &[Step]) -> String {
    path.iter()
        .map(|step| match step {
            Step::Field(name) => format!(".{name}"),
            Step::Item => "[0]".to_owned(),
        })
        .collect()
}

/// Whether clients can write a path: not the parts that identify the object.
fn is_open(path: &[Step]) -> bool {
    let [Step::Field(part), Step::Field(field), ..] = path else {
        return true;
    };
    part != "metadata"
        || !matches!(
            field.as_str(),
            "name" | "namespace" | "uid" | "resourceVersion" | "creationTimestamp"
        )
}

/// A list of many items: like the first one, or minimal, each with other texts.
fn many(schema: &Schema, list: &[Step], first: Option<&Value>) -> Value {
    let mut item = list.to_vec();
    item.push(Step::Item);
    let texts: Vec<&String> = schema
        .iter()
        .filter(|(path, place)| {
            matches!(place, Place::Text) && path.len() == item.len() + 1 && path.starts_with(&item)
        })
        .filter_map(|(path, _)| match path.last() {
            Some(Step::Field(name)) => Some(name),
            _ => None,
        })
        .filter(|name| matches!(name.as_str(), "name" | "key" | "type" | "uid" | "ip"))
        .collect();
    let first = match (first, schema.get(&item)) {
        (Some(first), _) => first.clone(),
        (None, Some(Place::Text)) => json!("x"),
        (None, Some(Place::Integer { .. })) => json!(1),
        (None, _) => json!({}),
    };
    let bytes = first.to_string().len() + 24 * texts.len();
    let count = ENTRIES.min(OBJECT_BYTES / bytes.max(1)).max(1);
    (0..count)
        .map(|number| match &first {
            Value::String(_) => json!(format!("x-{number}")),
            other => {
                let mut other = other.clone();
                for text in &texts {
                    // One in two keeps the first's name: a search by it may have to find many.
                    if number % 2 == 1 || other.get(*text).is_none() {
                        other[text.as_str()] = json!(format!("x-{number}"));
                    }
                }
                other
            }
        })
        .collect()
}

/// The forms that an object takes, each with a description.
fn forms(object: &AnyObject, with_large: bool) -> Vec<(String, Value)> {
    let schema = schema(object.resource());
    let json = object.to_json();
    let mut forms = Vec::new();
    let mut large = vec![("1.5 MB of annotations".to_owned(), {
        let mut json = json.clone();
        json["metadata"]["annotations"]["example.com/large"] = "x".repeat(OBJECT_BYTES).into();
        json
    })];
    for (path, place) in schema.iter().filter(|(path, _)| is_open(path)) {
        let mut form = json.clone();
        let what = match place {
            Place::Integer { least, most } => {
                put(&mut form, path, least.clone());
                forms.push((format!("{} at {least}", dotted(path)), form.clone()));
                put(&mut form, path, most.clone());
                format!("{} at {most}", dotted(path))
            }
            Place::List => {
                let first = at(&json, path).and_then(|list| list.get(0));
                put(&mut form, path, many(&schema, path, first));
                format!("{} of many items", dotted(path))
            }
            Place::Map => {
                let mut map = at(&json, path)
                    .and_then(Value::as_object)
                    .cloned()
                    .unwrap_or_default();
                let value = map.values().next().cloned().unwrap_or_else(|| json!("1"));
                for number in 0..ENTRIES {
                    map.insert(format!("x-{number}"), value.clone());
                }
                put(&mut form, path, Value::Object(map));
                format!("{} of many entries", dotted(path))
            }
            Place::Opaque => {
                if let Some(bytes) = at(&json, path).and_then(Value::as_str) {
                    let mut digits = bytes.to_owned();
                    add_unknown_field(&mut digits);
                    put(&mut form, path, digits.into());
                    large.push((format!("1.5 MB in {}", dotted(path)), form));
                }
                continue;
            }
            Place::Time => {
                put(&mut form, path, TIMES[0].into());
                forms.push((format!("{} at {}", dotted(path), TIMES[0]), form.clone()));
                put(&mut form, path, TIMES[1].into());
                format!("{} at {}", dotted(path), TIMES[1])
            }
            Place::Text => continue,
        };
        forms.push((what, form));
    }
    if !with_large {
        return forms;
    }
    // What multiplies the largest object.
    let counts = |path: &Path| matches!(path.first(), Some(Step::Field(part)) if part == "spec");
    for (what, large) in large {
        for (path, place) in schema.iter().filter(|(path, _)| counts(path)) {
            if let Place::Integer { most, .. } = place
                && path.len() <= 4
            {
                let mut form = large.clone();
                put(&mut form, path, most.clone());
                forms.push((format!("{what} and {} at {most}", dotted(path)), form));
            }
        }
        forms.push((what, large));
    }
    forms
}

/// Adds an unknown field of many zero bytes to a message in hexadecimal digits.
fn add_unknown_field(digits: &mut String) {
    // Field 1000, length-delimited.
    let mut head = vec![0xc2, 0x3e];
    prost::encoding::encode_varint(OBJECT_BYTES as u64, &mut head);
    digits.extend(head.iter().map(|byte| format!("{byte:02x}")));
    digits.push_str(&"00".repeat(OBJECT_BYTES));
}

/// Plans the keys that each form of each object wakes.
pub(super) fn check(name: &str, number: usize, world: &World, factory: &Factory) {
    if number >= WORLDS {
        return;
    }
    let built = Built::new(world, factory);
    let all: BTreeSet<Key> = world
        .objects()
        .flat_map(|object| built.woken(None, Some(object), world))
        .collect();
    let mut of_kind: BTreeMap<&'static Resource, usize> = BTreeMap::new();
    for object in world.objects() {
        let resource = object.resource();
        let count = of_kind.entry(resource).or_default();
        *count += 1;
        // What is not watched may be read live.
        if *count > OBJECTS_OF_A_KIND {
            continue;
        }
        let version = world.version() + 1;
        for (form, mut json) in forms(object, number < LARGE_WORLDS) {
            json["metadata"]["resourceVersion"] = version.to_string().into();
            // The reader refuses what no server would send, as a number that is out of range beside
            // another.
            let Ok(new) = resource.read_json(json) else {
                continue;
            };
            let mut changed = world.clone();
            changed.resource_version = version;
            let place = (resource, Key::of_meta(new.metadata()));
            changed.objects.insert(place, AnyObject::clone(&new));
            let mut keys = built.woken(Some(object), Some(&new), &changed);
            keys.extend(all.iter().take(2).cloned());
            for key in keys {
                let context = Context(format!(
                    "{name}: key {key} with {}/{} {form}",
                    resource.plural,
                    object.metadata().name
                ));
                let (cpu, held) = plan(&built, &changed, &key);
                assert!(
                    cpu <= CPU_MAX,
                    "{}: one plan took {cpu:?} of processor time, the bound is {CPU_MAX:?}",
                    context.0
                );
                assert!(
                    held <= HELD_BYTES_MAX,
                    "{}: one plan holds {held} bytes, the bound is {HELD_BYTES_MAX}",
                    context.0
                );
            }
        }
    }
}

/// Printed when the code under test panics.
struct Context(String);

impl Drop for Context {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("while planning {}", self.0);
        }
    }
}

/// Plans a key; the time it took, and the bytes it holds.
fn plan(built: &Built, world: &World, key: &Key) -> (Duration, usize) {
    let mut memory = built.fresh_memory();
    let before = processor_time();
    let queries = built.ask(world, key, &memory);
    let asked = processor_time().saturating_sub(before);
    let answers = world.answer(queries);
    let before = processor_time();
    let planned = built.plan(world, key, &answers, &mut memory);
    let planning = processor_time().saturating_sub(before);
    let held = planned.as_ref().map_or(0, held) + built.packed_bytes(&memory);
    (asked + planning, held)
}

/// About how many bytes a plan holds.
fn held(plan: &Plan) -> usize {
    let actions: usize = plan
        .actions()
        .map(|action| {
            let body = match &action.verb {
                Verb::Create { body } => body.capacity(),
                Verb::Patch { patch, .. } => patch.to_string().len(),
                Verb::Replace { body, .. } => body.to_string().len(),
                Verb::Delete { .. } | Verb::DeleteCollection { .. } => 0,
            };
            body + size_of_val(action)
        })
        .sum();
    let events: usize = plan.events.iter().map(|event| event.message.len()).sum();
    actions + events + size_of_val(&*plan.counted) + size_of_val(&*plan.measures)
}

/// The processor time of this thread, so that a loaded machine proves nothing; the time of the clock where
/// the system does not provide it.
fn processor_time() -> Duration {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    std::fs::read_to_string("/proc/thread-self/schedstat")
        .ok()
        .and_then(|text| text.split_whitespace().next()?.parse().ok())
        .map_or_else(|| START.elapsed(), Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use kubernetes_proto::{
        Object,
        apps::{ReplicaSet, StatefulSet},
        core::Pod,
    };

    use super::*;

    fn places(resource: &'static Resource) -> Vec<String> {
        let schema = schema(resource);
        schema
            .iter()
            .map(|(path, place)| {
                let what = match place {
                    Place::Integer { least, most } => format!("{least}..{most}"),
                    Place::List => "list".to_owned(),
                    Place::Map => "map".to_owned(),
                    Place::Opaque => "opaque".to_owned(),
                    Place::Time => "time".to_owned(),
                    Place::Text => "text".to_owned(),
                };
                format!("{} {what}", dotted(path))
            })
            .collect()
    }

    #[test]
    fn every_place_of_a_kind_is_found_by_its_reader() {
        let found = places(StatefulSet::resource());
        for place in [
            ".metadata.generation -9223372036854775808..9223372036854775807",
            ".metadata.labels map",
            ".metadata.ownerReferences list",
            ".metadata.ownerReferences[0].name text",
            ".spec.replicas -2147483648..2147483647",
            ".spec.ordinals.start -2147483648..2147483647",
            ".spec.updateStrategy.rollingUpdate.partition -2147483648..2147483647",
            ".spec.updateStrategy.rollingUpdate.maxUnavailable -2147483648..2147483647",
            ".spec.template.spec.protobuf opaque",
            ".spec.volumeClaimTemplates list",
            ".status.currentReplicas -2147483648..2147483647",
        ] {
            assert!(
                found.iter().any(|one| one == place),
                "{place} in {found:#?}"
            );
        }
        let pod = places(Pod::resource());
        for place in [
            ".metadata.deletionTimestamp time",
            ".status.conditions list",
            ".status.containerStatuses[0].restartCount -2147483648..2147483647",
        ] {
            assert!(pod.iter().any(|one| one == place), "{place} in {pod:#?}");
        }
    }

    #[test]
    fn the_forms_of_an_object_can_be_read_and_are_as_large_as_they_say() {
        let set = super::super::WorkloadBuild::replicas(super::super::replica_set("web"), 3);
        let object = std::sync::Arc::new(set) as AnyObject;
        let forms = forms(&object, true);
        for (form, json) in &forms {
            let read = ReplicaSet::resource().read_json(json.clone());
            let read = read.unwrap_or_else(|error| panic!("{form}: {error}"));
            if form.contains("1.5 MB") {
                assert!(read.encode().len() > OBJECT_BYTES, "{form}");
            }
        }
        let has = |words: &str| forms.iter().any(|(form, _)| form == words);
        assert!(has(".spec.replicas at 2147483647"));
        assert!(has(".status.conditions of many items"));
        assert!(has(
            "1.5 MB in .spec.template.spec.protobuf and .spec.replicas at 2147483647"
        ));
    }
}
