//! YAML that somebody else wrote, read within bounds, and the line of each value in it.
//!
//! The parser behind this, libyaml, reads anything into events; what they expand to is bounded here. It
//! knows where an event is only while it deserialises it, so a line is found by reading the text a second
//! time, up to the value in question: that costs nothing but time, and only where there is an error.

use std::{cell::Cell, fmt};

use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::{Map, Number, Value as Json};

use crate::args::Step;

/// Bytes of a text. All fields with their defaults are a tenth of it.
pub const BYTES_MAX: usize = 128 << 10;
/// Mappings and lists in each other. Our own file needs five, a Pod's manifest a dozen.
const DEPTH_MAX: u8 = 24;
/// Brackets that are open at once anywhere in a text, comments included. The parser's time grows with their
/// number times that of the words.
const OPEN_MAX: usize = 500;
/// Values in a document, aliases expanded.
const NODES_MAX: usize = 20_000;
/// Bytes of all texts in a document, aliases expanded: without any there can't be more.
const TEXTS_MAX: usize = BYTES_MAX;

/// Of what the parser says, in characters.
const WHY_MAX: usize = 300;

/// Why a text is no document that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// Counted from 1, where it is known.
    pub line: Option<usize>,
    /// What, with the remedy.
    pub why: String,
}

fn unreadable(line: Option<usize>, why: impl Into<String>) -> Unreadable {
    Unreadable {
        line,
        why: why.into(),
    }
}

/// The one document of a text.
///
/// # Errors
/// Where it is no UTF-8, no YAML, more than one document, or beyond a bound; where a field is there twice.
pub fn read(bytes: &[u8]) -> Result<Json, Unreadable> {
    if bytes.len() > BYTES_MAX {
        return Err(unreadable(
            None,
            format!("is longer than {BYTES_MAX} bytes: this is no configuration"),
        ));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let before = &bytes[..error.valid_up_to()];
        unreadable(
            Some(line_of(before)),
            "is not UTF-8: save it as UTF-8 without other bytes",
        )
    })?;
    if let Some(at) = text.find('\0') {
        return Err(unreadable(
            Some(line_of(&bytes[..at])),
            "holds a NUL byte: this is no text",
        ));
    }
    if let Some(at) = too_open(text) {
        return Err(unreadable(
            Some(line_of(&bytes[..at])),
            format!("more than {OPEN_MAX} brackets are open: this is no configuration"),
        ));
    }
    let spent = Spent::default();
    let seed = Bounded {
        depth: 0,
        spent: &spent,
    };
    match seed.deserialize(serde_yaml::Deserializer::from_str(text)) {
        Ok(Json::Null) => Err(unreadable(None, "is empty")),
        Ok(document) => Ok(document),
        Err(error) => {
            let line = error.location().map(|location| location.line());
            Err(unreadable(line, worded(&error)))
        }
    }
}

/// Where a text opens one bracket too many.
fn too_open(text: &str) -> Option<usize> {
    let mut open = 0usize;
    text.bytes().position(|byte| {
        match byte {
            b'[' | b'{' => open += 1,
            b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        open > OPEN_MAX
    })
}

fn line_of(before: &[u8]) -> usize {
    1 + before.iter().filter(|byte| **byte == b'\n').count()
}

/// What the parser says, without the place, which is said before it.
fn worded(error: &serde_yaml::Error) -> String {
    let text = error.to_string();
    let place = error
        .location()
        .map(|at| format!(" at line {} column {}", at.line(), at.column()))
        .unwrap_or_default();
    match text.as_str() {
        "deserializing from YAML containing more than one document is not supported" => {
            "holds more than one document: keep one, without --- between".to_owned()
        }
        // It may quote what somebody has written.
        text => {
            let printable = |c: char| if c.is_control() { '?' } else { c };
            let text = text.replacen(&place, "", 1);
            text.chars().map(printable).take(WHY_MAX).collect()
        }
    }
}

#[derive(Default)]
struct Spent {
    nodes: Cell<usize>,
    texts: Cell<usize>,
}

impl Spent {
    fn node<E: serde::de::Error>(&self) -> Result<(), E> {
        self.nodes.set(self.nodes.get() + 1);
        match self.nodes.get() > NODES_MAX {
            true => Err(E::custom(format!(
                "there are more than {NODES_MAX} values, aliases expanded: this is no configuration"
            ))),
            false => Ok(()),
        }
    }

    fn text<E: serde::de::Error>(&self, text: &str) -> Result<(), E> {
        self.texts.set(self.texts.get() + text.len());
        match self.texts.get() > TEXTS_MAX {
            true => Err(E::custom(format!(
                "there are more than {TEXTS_MAX} bytes of text, aliases expanded: this is no configuration"
            ))),
            false => Ok(()),
        }
    }
}

/// Reads a value, and all that is in it.
#[derive(Clone, Copy)]
struct Bounded<'a> {
    depth: u8,
    spent: &'a Spent,
}

impl<'de> DeserializeSeed<'de> for Bounded<'_> {
    type Value = Json;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json, D::Error> {
        self.spent.node()?;
        deserializer.deserialize_any(self)
    }
}

impl Bounded<'_> {
    fn deeper<E: serde::de::Error>(self) -> Result<Self, E> {
        match self.depth < DEPTH_MAX {
            true => Ok(Self {
                depth: self.depth + 1,
                ..self
            }),
            false => Err(E::custom(format!(
                "more than {DEPTH_MAX} mappings and lists are in each other: this is no configuration"
            ))),
        }
    }
}

impl<'de> Visitor<'de> for Bounded<'_> {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, number, list or mapping without a tag")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Json, E> {
        Number::from_f64(value)
            .map(Json::Number)
            .ok_or_else(|| E::custom("infinity and NaN are no values of any field"))
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Json, E> {
        self.spent.text(value)?;
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_none<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let inner = self.deeper()?;
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(inner)? {
            list.push(item);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Json, A::Error> {
        let inner = self.deeper()?;
        let mut map = Map::new();
        while let Some(name) = entries.next_key_seed(Name {
            spent: self.spent,
            before: &map,
        })? {
            let value = entries.next_value_seed(inner)?;
            map.insert(name, value);
        }
        Ok(map.into())
    }
}

/// Reads the name of a field.
struct Name<'a> {
    spent: &'a Spent,
    before: &'a Map<String, Json>,
}

impl<'de> DeserializeSeed<'de> for Name<'_> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Name<'_> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<String, E> {
        self.spent.text(name)?;
        match self.before.contains_key(name) {
            true => Err(E::custom(format!(
                "the field {name:?} is there twice: keep one"
            ))),
            false => Ok(name.to_owned()),
        }
    }
}

/// The line of a value, counted from 1: that of its name, if it is a field. Of what is not there, the line of
/// what would hold it.
pub fn line(text: &str, path: &[Step]) -> Option<usize> {
    (0..=path.len()).rev().find_map(|length| {
        let deserializer = serde_yaml::Deserializer::from_str(text);
        match (Find(&path[..length])).deserialize(deserializer) {
            Err(error) if error.to_string().contains(FOUND) => {
                error.location().map(|location| location.line())
            }
            _ => None,
        }
    })
}

/// The error by which the search ends: an error alone has a place.
const FOUND: &str = "this is the value in question";

struct Find<'a>(&'a [Step]);

impl<'de> DeserializeSeed<'de> for Find<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Find<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Whatever else is there is said to be of a wrong type, in these words.
        f.write_str(FOUND)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let Some((Step::Item(wanted), rest)) = self.0.split_first() else {
            return Err(A::Error::custom(FOUND));
        };
        for _ in 0..*wanted {
            items.next_element::<IgnoredAny>()?;
        }
        items.next_element_seed(Find(rest))?;
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let Some((Step::Name(wanted), rest)) = self.0.split_first() else {
            return Err(A::Error::custom(FOUND));
        };
        let ends = rest.is_empty();
        while let Some(here) = entries.next_key_seed(Is { wanted, ends })? {
            match here {
                true => entries.next_value_seed(Find(rest))?,
                false => {
                    entries.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

/// Whether a name is the wanted one; where it is the last of the path, that ends the search.
struct Is<'a> {
    wanted: &'a str,
    ends: bool,
}

impl<'de> DeserializeSeed<'de> for Is<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Is<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<bool, E> {
        match name == self.wanted {
            true if self.ends => Err(E::custom(FOUND)),
            here => Ok(here),
        }
    }
}

#[cfg(test)]
mod tests;
