//! A public item that nothing names is kept by nobody: the compiler warns of private ones alone.
//!
//! By names, so an item that shares its name with another is not found; what is found is unused.

use std::collections::BTreeMap;

use super::Files;

/// Folders of what is shipped.
const SHIPPED: [&str; 4] = ["controllers/", "coordinator/", "node/", "proto/"];
const KINDS: [&str; 7] = ["fn", "struct", "enum", "trait", "const", "static", "type"];
const QUALIFIERS: [&str; 2] = ["async", "const"];

pub(crate) fn complaints(files: &Files) -> Vec<String> {
    let sources = || files.iter().filter(|(path, _)| path.ends_with(".rs"));
    let mut named: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, text) in sources() {
        for word in text.lines().flat_map(words) {
            *named.entry(word).or_default() += 1;
        }
    }
    let shipped =
        sources().filter(|(path, _)| SHIPPED.iter().any(|folder| path.starts_with(folder)));
    shipped
        .flat_map(|(path, text)| {
            let items = text.lines().filter_map(public_item);
            let unused = items.filter(|item| named.get(item) == Some(&1));
            unused.map(move |item| format!("{path}: nothing names `{item}`: remove it, or use it"))
        })
        .collect()
}

/// The identifiers of a line, without those of a comment at its end.
fn words(line: &str) -> impl Iterator<Item = &str> {
    let code = line.split("//").next().unwrap_or_default();
    code.split(|char: char| !char.is_alphanumeric() && char != '_')
        .filter(|word| !word.is_empty())
}

/// The name of the public item that begins in a line.
fn public_item(line: &str) -> Option<&str> {
    let mut words = words(line.trim_start().strip_prefix("pub ")?);
    let mut kind = words.next()?;
    while QUALIFIERS.contains(&kind) {
        let next = words.next()?;
        if !KINDS.contains(&next) && !QUALIFIERS.contains(&next) {
            return Some(next);
        }
        kind = next;
    }
    KINDS.contains(&kind).then(|| words.next()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(node: &str, other: &str) -> Vec<String> {
        let files = [("node/a.rs", node), ("tests/b.rs", other)];
        let files = files.map(|(path, text)| (path.to_owned(), text.to_owned()));
        complaints(&files.into_iter().collect())
    }

    #[test]
    fn public_items_that_nothing_names_are_found() {
        for unused in [
            "pub fn gone() {}",
            "    pub async fn gone(&self) {}",
            "pub const fn gone() {}",
            "pub const gone: u8 = 1;",
            "pub struct gone;",
            "pub fn gone() {} // gone is mentioned alone",
        ] {
            assert_eq!(found(unused, "").len(), 1, "{unused}");
            assert_eq!(found(unused, "gone").len(), 0, "{unused}");
        }
        assert_eq!(
            found("pub(crate) fn gone() {}\npub use other::gone_too;", ""),
            [""; 0]
        );
    }
}
