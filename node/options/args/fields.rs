//! The fields of the configuration file: where each flag's value is, and how it is written there.
//!
//! The flags' table says both ([`Field`]), so `/configz`, the file, its JSON schema and `manifold config`
//! can't differ from the flags or from each other. Fields that begin with a capital are those of upstream's
//! KubeControllerManagerConfiguration as its `/configz` prints them; all others are Manifold's, named as the
//! flags are.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde::{Serialize, Serializer, ser::SerializeMap as _};
use serde_json::{Map, Value as Json, json};

use super::{Field, Kind, Spec, Value, gates, upstream, value};

/// `apiVersion` of a configuration.
pub const API_VERSION: &str = "kubecontrollermanager.config.k8s.io/v1alpha1";
/// `kind` of a configuration.
pub const KIND: &str = "KubeControllerManagerConfiguration";
/// Of a text that an error quotes, in characters.
const QUOTED_MAX: usize = 60;
/// Of a path that an error names, in characters: the longest field has 110.
const PATH_MAX: usize = 160;
/// Fields that a suggestion names.
const SUGGESTED_MAX: usize = 3;

/// A step of the way to a value in a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A field, or a key of a map.
    Name(String),
    /// An item of a list, from 0.
    Item(usize),
}

/// The way to a value as people write it: `Generic.Controllers[2]`.
fn dotted(path: &[Step]) -> String {
    let mut text = String::new();
    for step in path {
        match step {
            Step::Name(name) => {
                let dot = if text.is_empty() { "" } else { "." };
                text.push_str(&format!("{dot}{}", name.escape_debug()));
            }
            Step::Item(index) => text.push_str(&format!("[{index}]")),
        }
    }
    text
}

/// What is wrong at one place of a document, with the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The place.
    pub path: Vec<Step>,
    /// What, as the end of a sentence that begins with the place.
    pub why: String,
}

/// A flag's value that a document gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// The flag without dashes.
    pub flag: &'static str,
    /// Where it was found.
    pub field: &'static str,
    /// The value.
    pub value: Value,
}

/// What a field holds.
#[derive(Clone, Debug)]
pub enum Leaf<'a> {
    /// The value of a flag.
    Flag(&'a Spec),
    /// What is before the comma in the value of a flag.
    First(&'a Spec),
    /// What is after it.
    Second(&'a Spec),
    /// Always the same.
    Fixed(Json),
}

/// Fields in the order of the table, or one of them.
#[derive(Clone, Debug)]
pub enum Shape<'a> {
    /// A mapping of fields.
    Section(Vec<(&'static str, Shape<'a>)>),
    /// A field, with its dotted path.
    Leaf(&'static str, Leaf<'a>),
}

/// A document whose fields are in the order of the table.
#[derive(Clone, Debug, PartialEq)]
pub enum Tree {
    /// Fields.
    Section(Vec<(&'static str, Tree)>),
    /// A value.
    Leaf(Json),
}

impl Serialize for Tree {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Leaf(value) => value.serialize(serializer),
            Self::Section(fields) => {
                let mut map = serializer.serialize_map(Some(fields.len()))?;
                for (name, tree) in fields {
                    map.serialize_entry(name, tree)?;
                }
                map.end()
            }
        }
    }
}

/// The shape of a whole document.
pub fn shape(specs: &[Spec]) -> Shape<'_> {
    let mut root = Vec::new();
    let mut add = |path: &'static str, leaf| insert(&mut root, path, Shape::Leaf(path, leaf));
    add("apiVersion", Leaf::Fixed(json!(API_VERSION)));
    add("kind", Leaf::Fixed(json!(KIND)));
    for spec in specs {
        match spec.field {
            Field::In(path) => add(path, Leaf::Flag(spec)),
            Field::Halves(first, second) => {
                add(first, Leaf::First(spec));
                add(second, Leaf::Second(spec));
            }
            Field::FlagOnly(_) => {}
        }
    }
    for (path, value) in upstream::FIXED {
        // The table's own texts, which a test reads.
        let value = serde_json::from_str(value).unwrap_or_default();
        add(path, Leaf::Fixed(value));
    }
    // Upstream's fields first, ours after them.
    root.sort_by_key(|(name, _)| {
        !["apiVersion", "kind"].contains(name) && name.starts_with(char::is_lowercase)
    });
    Shape::Section(root)
}

fn insert<'a>(section: &mut Vec<(&'static str, Shape<'a>)>, path: &'static str, leaf: Shape<'a>) {
    let Some((first, rest)) = path.split_once('.') else {
        debug_assert!(
            section.iter().all(|(name, _)| *name != path),
            "the field {path} is in the table twice"
        );
        section.push((path, leaf));
        return;
    };
    let at = section.iter().position(|(name, _)| *name == first);
    let at = at.unwrap_or_else(|| {
        section.push((first, Shape::Section(Vec::new())));
        section.len() - 1
    });
    match &mut section[at].1 {
        Shape::Section(inner) => insert(inner, rest, leaf),
        Shape::Leaf(other, _) => panic!("{path} is below the field {other}"),
    }
}

impl<'a> Shape<'a> {
    /// All fields with their dotted paths, in the order of the table.
    pub fn leaves(&self) -> Vec<(&'static str, &Leaf<'a>)> {
        match self {
            Self::Leaf(path, leaf) => vec![(path, leaf)],
            Self::Section(fields) => fields.iter().flat_map(|(_, one)| one.leaves()).collect(),
        }
    }

    /// The document with the values that `value_of` gives; fields without one are left out, and so are
    /// sections without a field. With `fixed`, what no flag sets is there too.
    pub fn write(&self, value_of: &dyn Fn(&Spec) -> Option<Value>, fixed: bool) -> Tree {
        self.written(value_of, fixed)
            .unwrap_or(Tree::Section(Vec::new()))
    }

    fn written(&self, value_of: &dyn Fn(&Spec) -> Option<Value>, fixed: bool) -> Option<Tree> {
        let halves = |spec: &Spec| match value_of(spec)? {
            Value::Text(text) => Some(match text.split_once(',') {
                Some((first, second)) => (first.to_owned(), second.to_owned()),
                None => (text, String::new()),
            }),
            _ => None,
        };
        match self {
            Self::Section(fields) => {
                let fields: Vec<_> = fields
                    .iter()
                    .filter_map(|(name, one)| Some((*name, one.written(value_of, fixed)?)))
                    .collect();
                (!fields.is_empty()).then_some(Tree::Section(fields))
            }
            Self::Leaf(_, Leaf::Flag(spec)) => {
                Some(Tree::Leaf(encode(spec.kind, &value_of(spec)?)))
            }
            Self::Leaf(_, Leaf::First(spec)) => Some(Tree::Leaf(json!(halves(spec)?.0))),
            Self::Leaf(_, Leaf::Second(spec)) => {
                let second = halves(spec)?.1;
                (fixed || !second.is_empty()).then(|| Tree::Leaf(json!(second)))
            }
            Self::Leaf("apiVersion" | "kind", Leaf::Fixed(value)) => {
                Some(Tree::Leaf(value.clone()))
            }
            Self::Leaf(_, Leaf::Fixed(value)) => fixed.then(|| Tree::Leaf(value.clone())),
        }
    }

    /// What a document sets.
    ///
    /// # Errors
    /// With everything that is wrong with it: fields that there are not, values of another type.
    pub fn read(&self, document: &Json) -> Result<Vec<Setting>, Vec<Problem>> {
        let mut reading = Reading {
            root: self,
            path: Vec::new(),
            settings: Vec::new(),
            halves: BTreeMap::new(),
            problems: Vec::new(),
        };
        for (name, wanted) in [("apiVersion", API_VERSION), ("kind", KIND)] {
            let given = document.get(name);
            if document.is_object() && given.is_none_or(Json::is_null) {
                reading.wrong(format!("{name} is missing: write {name}: {wanted}"));
            }
        }
        reading.any(self, document);
        reading.join_halves();
        match reading.problems.is_empty() {
            true => Ok(reading.settings),
            false => Err(reading.problems),
        }
    }
}

struct Reading<'a> {
    root: &'a Shape<'a>,
    path: Vec<Step>,
    settings: Vec<Setting>,
    /// Of each flag with two fields: the path and value of each that is given.
    halves: BTreeMap<&'static str, [Option<(&'static str, String)>; 2]>,
    problems: Vec<Problem>,
}

impl Reading<'_> {
    fn wrong(&mut self, why: impl Into<String>) {
        self.problems.push(Problem {
            path: self.path.clone(),
            why: why.into(),
        });
    }

    /// Runs something one step further.
    fn at<R>(&mut self, step: Step, act: impl FnOnce(&mut Self) -> R) -> R {
        self.path.push(step);
        let result = act(self);
        self.path.pop();
        result
    }

    fn any(&mut self, shape: &Shape<'_>, node: &Json) {
        match shape {
            Shape::Section(fields) => self.section(fields, node),
            // As in Go: null leaves the default.
            Shape::Leaf(..) if node.is_null() => {}
            Shape::Leaf(_, Leaf::Fixed(wanted)) => {
                if !is_within(node, wanted) {
                    self.wrong(match self.path.len() {
                        1 => format!("must be {}, not {}", show(wanted), show(node)),
                        _ => format!("is always {} and can't be set: leave it out", show(wanted)),
                    });
                }
            }
            Shape::Leaf(field, Leaf::Flag(spec)) => {
                if let Some(value) = self.value(spec.kind, node) {
                    self.settings.push(Setting {
                        flag: spec.name,
                        field,
                        value,
                    });
                }
            }
            Shape::Leaf(field, Leaf::First(spec)) => self.half(spec, 0, field, node),
            Shape::Leaf(field, Leaf::Second(spec)) => self.half(spec, 1, field, node),
        }
    }

    fn section(&mut self, fields: &[(&'static str, Shape<'_>)], node: &Json) {
        let map = match node {
            Json::Object(map) => map,
            // A section of which all is commented out.
            Json::Null => return,
            other => {
                self.wrong(format!("must be a mapping of fields, not {}", show(other)));
                return;
            }
        };
        for (name, value) in map {
            let known = fields.iter().find(|(known, _)| known == name);
            self.at(Step::Name(name.clone()), |at| match known {
                Some((_, shape)) => at.any(shape, value),
                None => {
                    let hint = suggestion(at.root, fields, name);
                    at.wrong(format!("there is no such field{hint}"));
                }
            });
        }
    }

    fn half(&mut self, spec: &Spec, index: usize, field: &'static str, node: &Json) {
        let Some(Value::Text(text)) = self.value(Kind::Text, node) else {
            return;
        };
        if text.contains(',') {
            self.wrong("must be one range: the second has a field of its own");
            return;
        }
        self.halves.entry(spec.name).or_default()[index] = Some((field, text));
    }

    fn join_halves(&mut self) {
        for (flag, halves) in std::mem::take(&mut self.halves) {
            let [first, second] = halves;
            let second = second.filter(|(_, text)| !text.is_empty());
            match (first, second) {
                (Some((field, first)), None) => self.settings.push(Setting {
                    flag,
                    field,
                    value: Value::Text(first),
                }),
                (Some((field, first)), Some((_, second))) if !first.is_empty() => {
                    self.settings.push(Setting {
                        flag,
                        field,
                        value: Value::Text(format!("{first},{second}")),
                    });
                }
                (_, Some((field, _))) => self.problems.push(Problem {
                    path: steps(field),
                    why: "is given without the first range".to_owned(),
                }),
                (None, None) => {}
            }
        }
    }

    /// The value of a flag of this type.
    fn value(&mut self, kind: Kind, node: &Json) -> Option<Value> {
        let read = match kind {
            Kind::List | Kind::Int32List | Kind::NamedCert | Kind::Pattern => {
                return self.list(kind, node);
            }
            Kind::Map | Kind::Gates => return self.map(kind, node),
            _ => scalar(kind, node),
        };
        read.map_err(|why| self.wrong(why)).ok()
    }

    fn list(&mut self, kind: Kind, node: &Json) -> Option<Value> {
        let Json::Array(items) = node else {
            let example = match (kind, node) {
                (Kind::List, Json::String(text)) => format!(
                    ": write [{}]",
                    clipped(&text.split(',').collect::<Vec<_>>().join(", "))
                ),
                _ => String::new(),
            };
            self.wrong(format!("must be a list, not {}{example}", show(node)));
            return None;
        };
        let before = self.problems.len();
        let mut texts = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let text = self.at(Step::Item(index), |at| match kind {
                Kind::NamedCert => at.named_cert(item),
                Kind::Pattern => at.pattern(item),
                Kind::Int32List => at
                    .value(Kind::Int32, item)
                    .map(|value| value.show(Kind::Int32)),
                _ => at.text(item),
            });
            texts.extend(text);
        }
        if self.problems.len() > before {
            return None;
        }
        Some(match kind {
            Kind::Pattern => Value::Text(texts.join(",")),
            _ => Value::List(texts),
        })
    }

    fn text(&mut self, node: &Json) -> Option<String> {
        match self.value(Kind::Text, node)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The fields of an item that is a mapping; what there is no field for is wrong.
    fn fields<'j>(
        &mut self,
        known: &[&'static str],
        node: &'j Json,
    ) -> Option<&'j Map<String, Json>> {
        let Json::Object(map) = node else {
            self.wrong(format!(
                "must be a mapping of {}, not {}",
                known.join(", "),
                show(node)
            ));
            return None;
        };
        let before = self.problems.len();
        for name in map.keys().filter(|name| !known.contains(&name.as_str())) {
            let near = nearest(name, known.iter().copied())
                .map(|known| format!(" (did you mean {known}?)"))
                .unwrap_or_default();
            self.at(Step::Name(name.clone()), |at| {
                at.wrong(format!("there is no such field{near}"));
            });
        }
        (self.problems.len() == before).then_some(map)
    }

    /// The text of a field that must be there, without the characters that separate on the command line.
    fn needed(
        &mut self,
        map: &Map<String, Json>,
        name: &str,
        separators: &[char],
    ) -> Option<String> {
        let Some(node) = map.get(name).filter(|node| !node.is_null()) else {
            self.wrong(format!("{name} is missing"));
            return None;
        };
        self.at(Step::Name(name.to_owned()), |at| {
            let text = at.text(node)?;
            if text.is_empty() {
                at.wrong("must not be empty");
                return None;
            }
            if let Some(found) = text.chars().find(|c| separators.contains(c)) {
                at.wrong(format!("must not hold {found:?}"));
                return None;
            }
            Some(text)
        })
    }

    fn named_cert(&mut self, node: &Json) -> Option<String> {
        let map = self.fields(&["certFile", "keyFile", "names"], node)?;
        let cert = self.needed(map, "certFile", &[',', ':']);
        let key = self.needed(map, "keyFile", &[',', ':']);
        let names = map.get("names").filter(|names| !names.is_null());
        let names = match names {
            None => Vec::new(),
            Some(names) => self.at(Step::Name("names".to_owned()), |at| {
                match at.list(Kind::List, names)? {
                    Value::List(names) => Some(names),
                    _ => None,
                }
            })?,
        };
        if names.iter().any(|name| name.contains(',')) {
            self.wrong("names must not hold a comma");
            return None;
        }
        let files = format!("{},{}", cert?, key?);
        Some(match names.is_empty() {
            true => files,
            false => format!("{files}:{}", names.join(",")),
        })
    }

    fn pattern(&mut self, node: &Json) -> Option<String> {
        let map = self.fields(&["filePattern", "verbosity"], node)?;
        let pattern = self.needed(map, "filePattern", &[',', '=']);
        let level = match map.get("verbosity").filter(|level| !level.is_null()) {
            None => Value::Int(0),
            Some(level) => self.at(Step::Name("verbosity".to_owned()), |at| {
                at.value(Kind::Level, level)
            })?,
        };
        Some(format!("{}={}", pattern?, level.show(Kind::Level)))
    }

    fn map(&mut self, kind: Kind, node: &Json) -> Option<Value> {
        let Json::Object(map) = node else {
            let values = if kind == Kind::Gates {
                "true or false"
            } else {
                "texts"
            };
            self.wrong(format!(
                "must be a mapping of names to {values}, not {}",
                show(node)
            ));
            return None;
        };
        let before = self.problems.len();
        let mut read = BTreeMap::new();
        for (name, value) in map {
            let text = self.at(Step::Name(name.clone()), |at| match kind {
                Kind::Gates => at.gate(name, value),
                _ => at.text(value),
            });
            read.extend(text.map(|text| (name.clone(), text)));
        }
        (self.problems.len() == before).then_some(Value::Map(read))
    }

    fn gate(&mut self, name: &str, node: &Json) -> Option<String> {
        let Some(Value::Bool(on)) = self.value(Kind::Bool, node) else {
            return None;
        };
        match gates::settable(name, on) {
            Ok(_) => Some(on.to_string()),
            Err(why) => {
                let near = match gates::find(name) {
                    Some(_) => None,
                    None => nearest(name, gates::GATES.iter().map(|gate| gate.0)),
                };
                let hint = near.map(|near| format!(" (did you mean {near}?)"));
                self.wrong(format!("{why}{}", hint.unwrap_or_default()));
                None
            }
        }
    }
}

/// A value that is neither list nor mapping.
fn scalar(kind: Kind, node: &Json) -> Result<Value, String> {
    let number_as_text = |text: &str| match value::is_number(text) {
        true => ": leave the quotes out",
        false => "",
    };
    match (kind, node) {
        (Kind::Bool, Json::Bool(truth)) => Ok(Value::Bool(*truth)),
        (Kind::Bool, Json::String(text)) if value::truth(text).is_some() => Err(format!(
            "must be true or false, not {}: leave the quotes out",
            show(node)
        )),
        (Kind::Bool, _) => Err(format!("must be true or false, not {}", show(node))),
        (
            Kind::Int | Kind::Int32 | Kind::Level | Kind::Float | Kind::Float32,
            Json::Number(number),
        ) => Value::parse(kind, &number.to_string())
            .map_err(|expected| format!("must be {expected}, not {}", show(node))),
        (Kind::Int | Kind::Int32 | Kind::Level, Json::String(text)) => Err(format!(
            "must be a whole number, not {}{}",
            show(node),
            number_as_text(text)
        )),
        (Kind::Int | Kind::Int32 | Kind::Level, _) => {
            Err(format!("must be a whole number, not {}", show(node)))
        }
        (Kind::Float | Kind::Float32, Json::String(text)) => Err(format!(
            "must be a number, not {}{}",
            show(node),
            number_as_text(text)
        )),
        (Kind::Float | Kind::Float32, _) => Err(format!("must be a number, not {}", show(node))),
        (Kind::Duration, Json::Number(number)) => Err(format!(
            "must be a duration with its unit, not {}: write {number}s for seconds",
            show(node)
        )),
        (Kind::Quantity, Json::Number(number)) if !number.is_f64() => {
            Value::parse(kind, &number.to_string())
                .map_err(|expected| format!("must be {expected}, not {}", show(node)))
        }
        (_, Json::String(text)) => {
            if text.chars().any(char::is_control) {
                return Err(format!(
                    "must not hold control characters, as {} does",
                    show(node)
                ));
            }
            Value::parse(kind, text)
                .map_err(|expected| format!("must be {expected}, not {}", show(node)))
        }
        (Kind::Duration, _) => Err(format!(
            "must be a duration such as 300ms, 15s or 1h30m, not {}",
            show(node)
        )),
        (_, Json::Number(_) | Json::Bool(_)) => Err(format!(
            "must be a text, not {}: put it in quotes",
            show(node)
        )),
        _ => Err(format!("must be a text, not {}", show(node))),
    }
}

/// A flag's value as the file and `/configz` write it.
pub fn encode(kind: Kind, value: &Value) -> Json {
    /// Whole numbers up to here are exact, and are written without a fraction, as Go does.
    const EXACT: f64 = 1e15;
    match value {
        Value::Bool(truth) => json!(truth),
        Value::Int(number) => json!(number),
        Value::Float(number) if number.fract() == 0.0 && number.abs() < EXACT => {
            json!(*number as i64)
        }
        Value::Float(number) => json!(number),
        Value::Duration(_) => json!(value.show(kind)),
        Value::Text(text) if kind == Kind::Pattern => {
            let patterns = value::patterns(text).unwrap_or_default();
            patterns
                .into_iter()
                .map(|(pattern, level)| json!({"filePattern": pattern, "verbosity": level}))
                .collect()
        }
        Value::Text(text) => json!(text),
        Value::List(list) => list
            .iter()
            .map(|text| match kind {
                Kind::Int32List => text.parse::<i32>().map_or_else(|_| json!(text), Json::from),
                Kind::NamedCert => {
                    let (cert, key, names) = value::split_named_cert(text);
                    match names.is_empty() {
                        true => json!({"certFile": cert, "keyFile": key}),
                        false => json!({"certFile": cert, "keyFile": key, "names": names}),
                    }
                }
                _ => json!(text),
            })
            .collect(),
        Value::Map(map) => map
            .iter()
            .map(|(name, text)| match (kind, value::truth(text)) {
                (Kind::Gates, Some(on)) => (
                    name.strip_prefix("kube:").unwrap_or(name).to_owned(),
                    json!(on),
                ),
                _ => (name.clone(), json!(text)),
            })
            .collect::<Map<String, Json>>()
            .into(),
    }
}

/// The steps of a dotted path.
pub fn steps(field: &str) -> Vec<Step> {
    field
        .split('.')
        .map(|name| Step::Name(name.to_owned()))
        .collect()
}

/// Whether all that is given is as in the other; null and what is left out are. The order of a list may be
/// another: that of kube-controller-manager's `GCIgnoredResources` changes with each start.
fn is_within(given: &Json, wanted: &Json) -> bool {
    match (given, wanted) {
        (Json::Null, _) => true,
        (Json::Object(given), Json::Object(wanted)) => given.iter().all(|(name, value)| {
            wanted
                .get(name)
                .is_some_and(|wanted| is_within(value, wanted))
        }),
        (Json::Array(given), Json::Array(wanted)) => {
            given.len() == wanted.len() && wanted.iter().all(|one| given.contains(one))
        }
        _ => given == wanted,
    }
}

/// A value as errors show it.
fn show(node: &Json) -> String {
    match node {
        Json::Null => "nothing".to_owned(),
        Json::Bool(truth) => truth.to_string(),
        Json::Number(number) => format!("the number {number}"),
        Json::String(text) => format!("the text {:?}", clipped(text)),
        Json::Array(_) => "a list".to_owned(),
        Json::Object(_) => "a mapping".to_owned(),
    }
}

fn clipped(text: &str) -> String {
    clip(text, QUOTED_MAX)
}

fn clip(text: &str, characters: usize) -> String {
    match text.char_indices().nth(characters) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// Letters and digits in lower case: by these alone a field is compared with a flag.
fn bare(name: &str) -> String {
    name.chars()
        .filter(|c| c.is_ascii_alphanumeric())
        .map(|c| c.to_ascii_lowercase())
        .collect()
}

/// The name that is most like what was given, if any is.
fn nearest<'n>(given: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    /// Below it, two names have little in common.
    const LIKENESS_MIN: f64 = 0.8;
    /// Names from this length on that differ in one letter are alike, too.
    const SHORT: usize = 3;
    let given = bare(&clipped(given));
    names
        .filter_map(|name| {
            let known = bare(name);
            let like = strsim::normalized_damerau_levenshtein(&given, &known);
            let one_off = known.len() >= SHORT && strsim::damerau_levenshtein(&given, &known) <= 1;
            (like >= LIKENESS_MIN || one_off).then_some((like, name))
        })
        .max_by(|left, right| left.0.total_cmp(&right.0))
        .map(|(_, name)| name)
}

/// What an unknown field may have been meant to be: one beside it, one of the same name elsewhere, or that of
/// a flag.
fn suggestion(root: &Shape<'_>, beside: &[(&'static str, Shape<'_>)], given: &str) -> String {
    if let Some(near) = nearest(given, beside.iter().map(|(name, _)| *name)) {
        return format!(" (did you mean {near}?)");
    }
    let leaves = root.leaves();
    let last = |field: &'static str| field.rsplit('.').next().unwrap_or(field);
    let flag = |leaf: &Leaf<'_>| match leaf {
        Leaf::Flag(spec) | Leaf::First(spec) => spec.name,
        Leaf::Second(_) | Leaf::Fixed(_) => "",
    };
    let wanted = bare(&clipped(given));
    let same: BTreeSet<&str> = leaves
        .iter()
        .filter(|(field, leaf)| bare(last(field)) == wanted || bare(flag(leaf)) == wanted)
        .map(|(field, _)| *field)
        .collect();
    if !same.is_empty() && !wanted.is_empty() {
        let named: Vec<&str> = same.into_iter().take(SUGGESTED_MAX).collect();
        return format!(" (did you mean {}?)", named.join(" or "));
    }
    let names = leaves
        .iter()
        .flat_map(|(field, leaf)| [last(field), flag(leaf)]);
    let near = nearest(given, names).and_then(|near| {
        leaves
            .iter()
            .find(|(field, leaf)| last(field) == near || flag(leaf) == near)
    });
    near.map(|(field, _)| format!(" (did you mean {field}?)"))
        .unwrap_or_default()
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.is_empty() {
            true => f.write_str(&self.why),
            false => write!(f, "{}: {}", clip(&dotted(&self.path), PATH_MAX), self.why),
        }
    }
}
