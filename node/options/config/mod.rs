//! The configuration file: `--config`, and `manifold config`.
//!
//! What its fields are and how they are read is the flags' table's ([`crate::args`]): here is what is around
//! it, from bytes to values and from what is wrong to a line. docs/config.md is for users.

pub mod cli;
mod schema;
mod source;
pub mod yaml;

use std::{io, path::Path};

use crate::{
    Invalid,
    args::{self, Origin, Problem, Setting, Spec, Step, Values},
};
use yaml::Unreadable;

/// Problems that are shown at once.
const SHOWN_MAX: usize = 10;

/// Why a configuration can't be used: sentences that begin with file and line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct Wrong(pub Vec<String>);

/// A configuration that was read.
#[derive(Clone, Debug)]
pub struct File {
    name: String,
    text: String,
    settings: Vec<Setting>,
}

impl File {
    /// Reads a configuration from its bytes.
    ///
    /// # Errors
    /// Where something in it is wrong.
    pub fn parse(name: &str, content: Vec<u8>, specs: &[Spec]) -> Result<Self, Wrong> {
        let document = read(name, &content)?;
        if let Some(kind) = source::other_kind(&document) {
            return Err(Wrong(vec![format!(
                "{name}: is {kind}, not a {}: make one of it by manifold config from-flags -f {name}",
                args::KIND
            )]));
        }
        Self::of(name, content, &document, specs)
    }

    /// From a document that was read from these bytes.
    fn of(
        name: &str,
        content: Vec<u8>,
        document: &serde_json::Value,
        specs: &[Spec],
    ) -> Result<Self, Wrong> {
        let text = String::from_utf8(content).unwrap_or_default();
        match args::shape(specs).read(document) {
            Ok(settings) => Ok(Self {
                name: name.to_owned(),
                text,
                settings,
            }),
            Err(problems) => Err(Wrong(sentences(name, &text, &problems))),
        }
    }

    /// Its name, for people.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it sets.
    pub fn settings(&self) -> &[Setting] {
        &self.settings
    }

    /// The same of what is wrong with its values taken together: where a sentence is about a flag whose value
    /// is the file's, it begins with file, line and field. `values` are those that were refused.
    #[must_use]
    pub fn place(&self, values: &Values, invalid: &Invalid) -> Wrong {
        let placed = invalid.0.iter().map(|sentence| {
            let about = self
                .settings
                .iter()
                .filter(|setting| values.origin(setting.flag) == Some(Origin::File))
                .filter_map(|setting| Some((mentioned(sentence, setting.flag)?, setting)))
                .min_by_key(|(at, _)| *at);
            match about {
                Some((_, setting)) => {
                    let place = place(&self.name, &self.text, &args::steps(setting.field));
                    format!("{place} {}: {sentence}", setting.field)
                }
                None => sentence.clone(),
            }
        });
        Wrong(placed.collect())
    }
}

/// What the file of `--config` holds.
///
/// # Errors
/// Where it can't be read: with the remedy.
pub fn content(path: &Path) -> Result<Vec<u8>, Wrong> {
    reload::read(path).map_err(|why| {
        let path = path.display();
        let remedy = match why.kind() {
            io::ErrorKind::NotFound => "; manifold config from-flags makes such a file",
            _ => remedy(&why),
        };
        Wrong(vec![format!("--config: can't read {path}: {why}{remedy}")])
    })
}

/// What to do about a file that can't be read, as a sentence's end; nothing where the reason says it.
fn remedy(why: &io::Error) -> &'static str {
    match why.kind() {
        io::ErrorKind::IsADirectory => "; name the file in it",
        io::ErrorKind::PermissionDenied => "; let the user that this process runs as read it",
        _ => "",
    }
}

/// The one document of these bytes.
fn read(name: &str, content: &[u8]) -> Result<serde_json::Value, Wrong> {
    yaml::read(content).map_err(|Unreadable { line, why }| {
        Wrong(vec![match line {
            Some(line) => format!("{name}:{line}: {why}"),
            None => format!("{name}: {why}"),
        }])
    })
}

/// `file:line:`.
fn place(name: &str, text: &str, path: &[Step]) -> String {
    match yaml::line(text, path) {
        Some(line) => format!("{name}:{line}:"),
        None => format!("{name}:"),
    }
}

fn sentences(name: &str, text: &str, problems: &[Problem]) -> Vec<String> {
    let mut sentences: Vec<String> = problems
        .iter()
        .take(SHOWN_MAX)
        .map(|problem| format!("{} {problem}", place(name, text, &problem.path)))
        .collect();
    if let Some(more) = problems
        .len()
        .checked_sub(SHOWN_MAX)
        .filter(|more| *more > 0)
    {
        sentences.push(format!("{name}: and {more} more"));
    }
    sentences
}

/// Where a sentence mentions a flag: with its dashes, or, where the name itself has one, without.
fn mentioned(sentence: &str, flag: &str) -> Option<usize> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let mut from = 0;
    while let Some(found) = sentence[from..].find(flag) {
        let (at, end) = (from + found, from + found + flag.len());
        let dashes = sentence[..at].ends_with("--");
        let before = sentence[..at].trim_end_matches('-').chars().next_back();
        let after = sentence[end..].chars().next();
        let is_whole = !before.is_some_and(is_of_name) && !after.is_some_and(is_of_name);
        if is_whole && (dashes || flag.contains('-')) {
            return Some(at);
        }
        from = end;
    }
    None
}

#[cfg(test)]
mod tests;
