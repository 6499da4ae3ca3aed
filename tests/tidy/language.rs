//! The language of the tree: words of an older private dialect, and the width of comments. Both are
//! counted per folder and may only shrink ([`super::ratchets`]).

use super::Files;
use super::ratchets::{Counts, Ratchet, folder};

/// Words that the field has a term for, with that term.
const DIALECT: &[(&str, &str)] = &[
    ("told", "reported, logged, notified, recorded"),
    ("tell", "report, notify, show"),
    ("tells", "reports, notifies, shows"),
    ("whoever", "the client, the next owner, any caller"),
    ("anew", "again, recreate, restart"),
    ("dear", "expensive"),
    ("dearer", "more expensive"),
    ("shall", "must, should"),
    ("stands", "is, applies, is current"),
    ("look", "read, check, examine"),
    ("looks", "reads, checks"),
    ("looked", "read, checked"),
];

/// The same in two words.
const PHRASES: &[(&str, &str, &str)] = &[
    ("in", "hand", "in flight"),
    ("go", "on", "continue, resume"),
    ("goes", "on", "continues, resumes"),
    ("so", "many", "the number itself"),
];

/// The list names its own words; so does nobody else.
const NOT_READ: &[&str] = &["tests/tidy/language.rs"];

/// Longest comment line, indentation included, in characters.
const COMMENT_WIDTH_MAX: usize = 110;

/// Words of the dialect.
pub(crate) const WORDS: Ratchet = Ratchet {
    name: "dialect-words",
    remedy: "use the field's words (tests/tidy/language.rs has them, ARCHITECTURE.md the glossary)",
    headroom: 0,
};

/// Comment lines beyond [`COMMENT_WIDTH_MAX`].
pub(crate) const WIDE: Ratchet = Ratchet {
    name: "wide-comments",
    remedy: "a comment line has at most 110 columns",
    headroom: 0,
};

fn is_source(path: &str) -> bool {
    let read = [
        ".rs", ".md", ".proto", ".toml", ".yaml", ".yml", ".sh", "file",
    ];
    read.iter().any(|end| path.ends_with(end)) && !NOT_READ.contains(&path)
}

/// How often the dialect is used, by folder: in comments, strings, names and prose.
pub(crate) fn dialect(files: &Files) -> Counts {
    let mut counts = Counts::new();
    for (path, text) in files.iter().filter(|(path, _)| is_source(path)) {
        *counts.entry(folder(path).to_owned()).or_default() += dialect_of(text);
    }
    counts
}

fn dialect_of(text: &str) -> usize {
    let mut count = 0;
    let mut before = String::new();
    for word in words(text) {
        let known = DIALECT.iter().any(|(known, _)| *known == word);
        let phrase = PHRASES
            .iter()
            .any(|(first, second, _)| *first == before && *second == word);
        count += usize::from(known) + usize::from(phrase);
        before = word;
    }
    count
}

/// The words of a text in small letters; names are taken apart at underscores and capitals.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut small_before = false;
    for c in text.chars() {
        let ends = !c.is_ascii_alphabetic() || (c.is_ascii_uppercase() && small_before);
        if ends && !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        if c.is_ascii_alphabetic() {
            word.push(c.to_ascii_lowercase());
        }
        small_before = c.is_ascii_lowercase();
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

/// Comment lines that are too wide, by folder.
pub(crate) fn wide_comments(files: &Files) -> Counts {
    let mut counts = Counts::new();
    let sources = files
        .iter()
        .filter(|(path, _)| path.ends_with(".rs") || path.ends_with(".proto"));
    for (path, text) in sources {
        let wide = text
            .lines()
            .filter(|line| line.trim_start().starts_with("//"))
            .filter(|line| line.chars().count() > COMMENT_WIDTH_MAX)
            .count();
        *counts.entry(folder(path).to_owned()).or_default() += wide;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dialect_is_found_in_prose_names_and_phrases() {
        let table = [
            ("The cache is told of it.", 1),
            ("fn look_again(told: bool)", 2),
            ("struct StillToldOf", 1),
            ("so many keys are in hand, and it goes on", 3),
            ("// retold, looking, a shallow hand, so often, many", 0),
            ("Reconcile, enqueue, requeue.", 0),
        ];
        for (text, expected) in table {
            assert_eq!(dialect_of(text), expected, "{text}");
        }
    }

    #[test]
    fn comments_are_measured_in_characters_and_code_is_not() {
        let files = [
            ("a/fits.rs", format!("/// {}", "é".repeat(106))),
            ("a/wide.rs", format!("    // {}", "x".repeat(104))),
            ("b/code.rs", format!("let x = \"{}\";", "x".repeat(120))),
            ("b/page.md", format!("// {}", "x".repeat(120))),
        ];
        let files = files
            .into_iter()
            .map(|(path, text)| (path.to_owned(), text))
            .collect();
        let counts = wide_comments(&files);
        assert_eq!((counts["a"], counts["b"]), (1, 0));
    }
}
