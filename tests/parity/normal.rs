//! What differs by nature is made equal, here and nowhere else; no field is left out.
//!
//! - A **uid** becomes `<uid of …>` with the evened name of the object that had it, so that ownership
//!   is compared. One that no object of the namespace had is `<unknown uid>`.
//! - A **name's random part**: of a pod, what follows its `generateName`, is `<random>`; the hash of a
//!   ReplicaSet is `<template N>`, that of a ControllerRevision `<revision N>`, in the order in which
//!   its owner had them made, wherever these words stand, and those of a Job's Workload and PodGroup
//!   `<group N>`; the minute in the name of a CronJob's Job is `<run N>`.
//! - **Times** become `<time>`, **resourceVersions** `<version>`, **addresses** `<ip>`, the harness's
//!   **nodes** `<node>` (but for a DaemonSet's pods, whose node is decided by the controller), the name
//!   of a token's volume `kube-api-access-<random>`, a certificate `<certificate>`.
//! - The entries of `managedFields` are sorted, by their managers first: their order is that of their times.
//!   So are the endpoints of a slice and the addresses of Endpoints, which follow from chance and from
//!   addresses, and the ports of both, which follow from hashes of memory layouts.
//! - A **certificate** that was issued becomes what it says, but for its serial number, times and key: how
//!   long it is valid, issuer, subject, and its extensions' bytes; a **token** becomes its algorithm and its
//!   claims; a request's bytes become `<request>`.
//! - The **ports of nodes** that the server deals out become `<port>`.
//!
//! What is to be known of names and uids is learnt from the answers to creations, in their order, so
//! that objects that are gone are known too, and then from what is there.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

/// A longer `generateName` is cut before the random part is put behind it.
const PREFIX_LENGTH_MAX: usize = 58;
/// What random parts of names are made of.
const CHANCE: &str = "bcdfghjklmnpqrstvwxz2456789";

/// What was learnt of one namespace.
#[derive(Debug, Default)]
pub(crate) struct Normal {
    /// Whole names.
    names: BTreeMap<String, String>,
    /// Parts of names between hyphens.
    words: BTreeMap<String, String>,
    uids: BTreeMap<String, String>,
    /// What pods' names begin with.
    prefixes: BTreeSet<String>,
    /// Kind and owner → how many.
    counts: BTreeMap<(String, String), usize>,
}

impl Normal {
    /// Takes in an object as it was when it was made.
    pub(crate) fn learn(&mut self, object: &Value) {
        let kind = text_at(object, "/kind");
        let name = text_at(object, "/metadata/name");
        let owner = controller(object);
        match kind {
            "ReplicaSet" => {
                let hash = text_at(object, "/metadata/labels/pod-template-hash");
                if !hash.is_empty() && name.ends_with(&format!("-{hash}")) {
                    self.word(hash, "template", owner.map_or("", |owner| owner.1));
                }
            }
            "ControllerRevision" => {
                let hash = name.rsplit_once('-').map_or(name, |(_, hash)| hash);
                self.word(hash, "revision", owner.map_or("", |owner| owner.1));
            }
            "Workload" | "PodGroup" if owner.is_some() => {
                let hash = name.rsplit_once('-').map_or(name, |(_, hash)| hash);
                self.word(hash, "group", owner.map_or("", |owner| owner.1));
            }
            "Job" => {
                if let Some(("CronJob", cron_job)) = owner
                    && let Some(minute) = name.strip_prefix(&format!("{cron_job}-"))
                {
                    self.word(minute, "run", cron_job);
                }
            }
            "EndpointSlice" | "ResourceClaim" => {
                let prefix = text_at(object, "/metadata/generateName");
                if !prefix.is_empty() && name.starts_with(prefix) {
                    // A claim's begins with the name of its pod, which may have a random part itself.
                    let even = match owner {
                        Some((_, owner)) if prefix.starts_with(owner) => {
                            prefix.replacen(owner, &self.one(owner, false), 1)
                        }
                        _ => prefix.to_owned(),
                    };
                    self.names
                        .insert(name.to_owned(), format!("{even}<random>"));
                    if even != prefix {
                        self.names.insert(prefix.to_owned(), even);
                    }
                }
            }
            "Pod" => {
                let prefix = text_at(object, "/metadata/generateName");
                let fixed = prefix.len().min(PREFIX_LENGTH_MAX);
                // A StatefulSet's pods have both a prefix and a name that does not follow from chance.
                let chance = !matches!(owner, Some(("StatefulSet", _)));
                if fixed > 0 && chance && name.len() > fixed && name.starts_with(&prefix[..fixed]) {
                    let even = format!("{}<random>", self.pieces(&prefix[..fixed]));
                    self.names.insert(name.to_owned(), even);
                    self.prefixes.insert(prefix[..fixed].to_owned());
                }
            }
            _ => {}
        }
        let uid = text_at(object, "/metadata/uid");
        let even = format!("<uid of {kind} {}>", self.text(name, false));
        self.uids.insert(uid.to_owned(), even);
    }

    fn word(&mut self, word: &str, what: &str, owner: &str) {
        if self.words.contains_key(word) {
            return;
        }
        let count = self
            .counts
            .entry((what.to_owned(), owner.to_owned()))
            .or_default();
        *count += 1;
        self.words
            .insert(word.to_owned(), format!("<{what} {count}>"));
    }

    /// The object with what differs by nature made equal.
    pub(crate) fn object(&self, object: &Value) -> Value {
        let keep_nodes = matches!(controller(object), Some(("DaemonSet", _)));
        let mut even = self.value(object, keep_nodes);
        if let Some(Value::Array(entries)) = even.pointer_mut("/metadata/managedFields") {
            let who = ["/manager", "/operation", "/subresource"];
            let who = |entry: &Value| who.map(|part| text_at(entry, part).to_owned());
            entries.sort_by_key(|entry| (who(entry), entry.to_string()));
        }
        match text_at(&even, "/kind") {
            "EndpointSlice" => {
                sort(&mut even, "endpoints");
                sort(&mut even, "ports");
            }
            // The effects of one condition are written by two loops, upstream's as well, in either order.
            "Node" => {
                if let Some(spec) = even.get_mut("spec") {
                    sort(spec, "taints");
                }
            }
            "Endpoints" => {}
            _ => return even,
        }
        let subsets = even.get_mut("subsets").and_then(Value::as_array_mut);
        for subset in subsets.into_iter().flatten() {
            for list in ["addresses", "notReadyAddresses", "ports"] {
                sort(subset, list);
            }
        }
        sort(&mut even, "subsets");
        even
    }

    fn value(&self, value: &Value, keep_nodes: bool) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(text, keep_nodes)),
            Value::Array(values) => values
                .iter()
                .map(|value| self.value(value, keep_nodes))
                .collect(),
            Value::Object(map) => {
                let mut even = Map::new();
                for (key, value) in map {
                    let value = match (key.as_str(), value) {
                        ("resourceVersion", Value::String(_)) => json!("<version>"),
                        ("nodePort", Value::Number(_)) => json!("<port>"),
                        ("request", Value::String(_)) => json!("<request>"),
                        (_, Value::String(text)) => match super::signed::plain(text) {
                            Some(plain) => json!(self.text(&plain, keep_nodes)),
                            None => self.value(value, keep_nodes),
                        },
                        _ => self.value(value, keep_nodes),
                    };
                    even.insert(self.text(key, keep_nodes), value);
                }
                Value::Object(even)
            }
            other => other.clone(),
        }
    }

    /// A text with every word evened out.
    pub(crate) fn text(&self, text: &str, keep_nodes: bool) -> String {
        if text.starts_with("-----BEGIN CERTIFICATE-----") {
            return "<certificate>".to_owned();
        }
        if text.starts_with("X509SHA256=") {
            return "<credential>".to_owned();
        }
        let text = even_long_times(text);
        let mut even = String::new();
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let end = rest.find(|c| !is_of_word(c)).unwrap_or(rest.len());
            if end == 0 {
                let next = rest.chars().next().map_or(1, char::len_utf8);
                even.push_str(&rest[..next]);
                rest = &rest[next..];
                continue;
            }
            let word = rest[..end].trim_end_matches([':', '.']);
            if word.is_empty() {
                even.push_str(&rest[..end]);
            } else {
                even.push_str(&self.one(word, keep_nodes));
                even.push_str(&rest[word.len()..end]);
            }
            rest = &rest[end..];
        }
        even
    }

    fn one(&self, word: &str, keep_nodes: bool) -> String {
        if let Some(name) = self.names.get(word) {
            return name.clone();
        }
        if is_uid(word) {
            let known = self.uids.get(word).cloned();
            return known.unwrap_or_else(|| "<unknown uid>".to_owned());
        }
        if is_time(word) {
            return "<time>".to_owned();
        }
        if word.parse::<std::net::IpAddr>().is_ok() {
            return "<ip>".to_owned();
        }
        if word.starts_with("kube-api-access-") {
            return "kube-api-access-<random>".to_owned();
        }
        let number = word.strip_prefix("node-");
        if !keep_nodes && number.is_some_and(|number| number.parse::<u16>().is_ok()) {
            return "<node>".to_owned();
        }
        // One whose creation had no answer, because who asked was killed.
        let of_pod = self.prefixes.iter().find(|prefix| {
            let rest = word.strip_prefix(prefix.as_str());
            rest.is_some_and(|rest| rest.len() == 5 && rest.chars().all(|c| CHANCE.contains(c)))
        });
        match of_pod {
            Some(prefix) => format!("{}<random>", self.pieces(prefix)),
            None => self.pieces(word),
        }
    }

    /// Whether the object was taken in.
    pub(crate) fn knows(&self, object: &Value) -> bool {
        self.uids.contains_key(text_at(object, "/metadata/uid"))
    }

    fn pieces(&self, word: &str) -> String {
        let pieces = word.split('-').map(|piece| {
            let known = self.words.get(piece).cloned();
            known.unwrap_or_else(|| piece.to_owned())
        });
        pieces.collect::<Vec<_>>().join("-")
    }
}

/// Sorts one of an object's lists, if it has it.
fn sort(object: &mut Value, list: &str) {
    if let Some(Value::Array(items)) = object.get_mut(list) {
        items.sort_by_key(Value::to_string);
    }
}

/// Kind and name of the owner that controls it.
fn controller(object: &Value) -> Option<(&str, &str)> {
    let owners = object.pointer("/metadata/ownerReferences")?.as_array()?;
    let owner = owners.iter().find(|owner| owner["controller"] == true)?;
    Some((owner["kind"].as_str()?, owner["name"].as_str()?))
}

pub(crate) fn text_at<'v>(value: &'v Value, pointer: &str) -> &'v str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or("")
}

fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-.:".contains(c)
}

fn is_uid(word: &str) -> bool {
    let lengths = [8, 4, 4, 4, 12];
    let parts: Vec<&str> = word.split('-').collect();
    parts.len() == lengths.len()
        && parts.iter().zip(lengths).all(|(part, length)| {
            part.len() == length && part.chars().all(|c| c.is_ascii_hexdigit())
        })
}

/// `2006-01-02T15:04:05Z`, with fractions of a second or without.
fn is_time(word: &str) -> bool {
    let shape = "0000-00-00T00:00:00";
    word.len() >= shape.len()
        && word.is_char_boundary(shape.len())
        && has_shape(&word[..shape.len()], shape)
}

/// `Mon, 02 Jan 2006 15:04:05 +0000`, as events write times.
fn even_long_times(text: &str) -> String {
    let shape = "aaa, 00 aaa 0000 00:00:00 +0000";
    let mut even = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        if let Some(start) = rest.get(..shape.len())
            && has_shape(start, shape)
        {
            even.push_str("<time>");
            rest = &rest[shape.len()..];
            continue;
        }
        let next = rest.chars().next().map_or(1, char::len_utf8);
        even.push_str(&rest[..next]);
        rest = &rest[next..];
    }
    even
}

/// Digits where the shape has a zero, letters where it has an `a`, else the same.
fn has_shape(text: &str, shape: &str) -> bool {
    text.len() == shape.len()
        && text
            .chars()
            .zip(shape.chars())
            .all(|(c, wanted)| match wanted {
                '0' => c.is_ascii_digit(),
                'a' => c.is_ascii_alphabetic(),
                '+' => c == '+' || c == '-',
                other => c == other,
            })
}
