//! Pages: how long they may be, that their links lead somewhere, and that the code they name exists.

use std::collections::BTreeSet;

use super::Files;

/// Words of ARCHITECTURE.md, as `wc -w` counts: ten minutes.
const ARCHITECTURE_WORDS_MAX: usize = 2500;
/// Words of one decision record.
const RECORD_WORDS_MAX: usize = 250;
const RECORDS: &str = "docs/decisions/";
/// What every record has.
const SECTIONS: [&str; 4] = [
    "**Context.**",
    "**Decision.**",
    "**Alternatives.**",
    "**Consequence.**",
];

/// Names in backticks that resemble code of this tree and are defined elsewhere.
const FOREIGN: &[&str] = &[
    // Kubernetes.
    "FlowSchema",
    "ShardedListAndWatch",
    "ValidatingAdmissionPolicy",
    "kustomize/stage",
    "leader-election",
    // Linux.
    "TCP_USER_TIMEOUT",
    // Go and its libraries.
    "crypto/x509",
    // Files of any controller's folder.
    "context.rs",
    "differences.md",
];

/// Metrics, which are put together from prefix and name.
const METRICS: &[&str] = &[
    "apiserver_",
    "authentication_",
    "authorization_",
    "garbage_collector_",
    "go_",
    "informer_",
    "job_",
    "kubernetes_",
    "leader_election_",
    "manifold_",
    "process_",
    "registered_",
    "resource_quota_",
    "resourcequota_",
    "rest_client_",
    "running_",
    "workqueue_",
];

/// Pages that are too long, and records that are not of the common form or not in the index.
pub(crate) fn sizes(files: &Files) -> Vec<String> {
    let mut complaints = Vec::new();
    if let Some(text) = files.get("ARCHITECTURE.md") {
        complaints.extend(too_long("ARCHITECTURE.md", text, ARCHITECTURE_WORDS_MAX));
    }
    let index = files
        .get(&format!("{RECORDS}README.md"))
        .map_or("", String::as_str);
    let records = files.iter().filter_map(|(path, text)| {
        let name = path.strip_prefix(RECORDS)?;
        (name != "README.md").then_some((path, name, text))
    });
    for (path, name, text) in records {
        complaints.extend(too_long(path, text, RECORD_WORDS_MAX));
        let number = name.get(..3).unwrap_or_default();
        if !number.chars().all(|c| c.is_ascii_digit())
            || !text.starts_with(&format!("# {number}: "))
        {
            complaints.push(format!(
                "{path}: its name is `NNN-title.md` and its heading `# NNN: title`"
            ));
        }
        for section in SECTIONS.iter().filter(|section| !text.contains(*section)) {
            complaints.push(format!("{path}: has no {section}"));
        }
        if !index.contains(&format!("({name})")) {
            complaints.push(format!("{path}: {RECORDS}README.md does not list it"));
        }
    }
    complaints
}

fn too_long(path: &str, text: &str, most: usize) -> Option<String> {
    let words = text.split_whitespace().count();
    (words > most).then(|| format!("{path}: {words} words, {most} at most"))
}

/// Links of pages to files that are not there.
pub(crate) fn links(files: &Files) -> Vec<String> {
    let mut complaints = Vec::new();
    for (path, text) in pages(files) {
        for (number, line) in prose(text) {
            for target in targets(line) {
                let outside = target.contains("://") || target.starts_with("mailto:");
                let file = target.split('#').next().unwrap_or_default();
                if outside || file.is_empty() {
                    continue;
                }
                let place = resolved(parent(path), file);
                if !place.is_some_and(|place| exists(files, &place)) {
                    complaints.push(format!(
                        "{path}:{number}: links to `{target}`, which is not there"
                    ));
                }
            }
        }
    }
    complaints
}

/// Names in backticks that resemble files, types or functions of this tree and are not in it.
pub(crate) fn names(files: &Files) -> Vec<String> {
    let identifiers = identifiers(files);
    let mut complaints = Vec::new();
    for (path, text) in pages(files) {
        for (number, line) in prose(text) {
            for span in spans(line) {
                if let Some(what) = unknown(files, &identifiers, path, span) {
                    complaints.push(format!("{path}:{number}: `{span}`: {what}"));
                }
            }
        }
    }
    complaints
}

/// Pages that people write. What is measured is written by programs, in words of its own.
fn pages(files: &Files) -> impl Iterator<Item = (&String, &String)> {
    files.iter().filter(|(path, _)| path.ends_with(".md"))
}

/// The numbered lines of a page that are in no code block.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut in_code = false;
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if !in_code {
            lines.push((index + 1, line));
        }
    }
    lines
}

/// The spans in backticks.
fn spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Where the links of a line lead.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("](").filter_map(|(at, _)| {
        let rest = &line[at + 2..];
        rest.find(')').map(|end| &rest[..end])
    })
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// A path as seen from a folder; `None` where it leads out of the tree.
fn resolved(folder: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/').filter(|part| !part.is_empty()) {
        match part {
            "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Whether a path is a file of the tree, or a folder with one in it.
fn exists(files: &Files, path: &str) -> bool {
    let folder = format!("{path}/");
    path.is_empty()
        || files.contains_key(path)
        || files
            .range(folder.clone()..)
            .next()
            .is_some_and(|(next, _)| next.starts_with(&folder))
}

/// Every word of code, strings included and comments left out.
fn identifiers(files: &Files) -> BTreeSet<&str> {
    let code = files.iter().filter(|(path, _)| {
        [".rs", ".proto", ".toml", ".yaml"]
            .iter()
            .any(|end| path.ends_with(end))
            && !path.starts_with("tests/tidy/")
    });
    code.flat_map(|(_, text)| text.lines())
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_'))
        .collect()
}

/// What is wrong with a name in backticks, if it resembles one of this tree.
fn unknown(
    files: &Files,
    identifiers: &BTreeSet<&str>,
    page: &str,
    span: &str,
) -> Option<&'static str> {
    let foreign = |name: &str| FOREIGN.contains(&name);
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if foreign(span) || METRICS.iter().any(|prefix| span.starts_with(prefix)) {
        return None;
    }
    if let Some(path) = as_path(files, page, span) {
        return (!names_file(files, page, path)).then_some("no such file");
    }
    let bare = span.strip_suffix("()").unwrap_or(span);
    let parts: Vec<&str> = bare.split("::").collect();
    let well_formed = parts.iter().all(|part| {
        !part.is_empty() && part.chars().all(plain) && !part.starts_with(char::is_numeric)
    });
    let is_code = well_formed
        && (parts.len() > 1
            || bare != span
            || is_camel(bare)
            || (bare.contains('_') && bare.len() > 3));
    // A suite and its tests are named by `cargo test`'s filters, which may end within a name.
    let there = |part: &&str| {
        identifiers.contains(part)
            || foreign(part)
            || identifiers
                .range(*part..)
                .next()
                .is_some_and(|next| parts.len() > 1 && next.starts_with(&format!("{part}_")))
    };
    (is_code && !parts.iter().all(there)).then_some("no such name in the code")
}

/// A name of two humps or more, as in `RangeState`: one hump is an English word or a kind.
fn is_camel(name: &str) -> bool {
    let humps = name
        .chars()
        .zip(name.chars().skip(1))
        .filter(|(a, b)| a.is_ascii_lowercase() && b.is_ascii_uppercase());
    name.starts_with(|c: char| c.is_ascii_uppercase()) && humps.count() > 0
}

/// A span that names a file or folder of this tree: by a source's ending, or by a first part that is there.
fn as_path<'a>(files: &Files, page: &str, span: &'a str) -> Option<&'a str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    let path = span.trim_end_matches('/');
    let outside = path.starts_with(['/', '.']) && !path.starts_with("../");
    if path.is_empty() || outside || !path.chars().all(plain) {
        return None;
    }
    let source = [".rs", ".md", ".proto"]
        .iter()
        .any(|end| path.ends_with(end));
    let first = path.split('/').next().unwrap_or_default();
    let starts_here = span.contains('/')
        && [parent(page), ""].iter().any(|folder| {
            resolved(folder, first).is_some_and(|place| !place.is_empty() && exists(files, &place))
        });
    (source || starts_here).then_some(path)
}

/// Whether a path is there as seen from the root or the page, or ends a longer one of the page's folder.
fn names_file(files: &Files, page: &str, path: &str) -> bool {
    let here = parent(page);
    let whole = [here, ""]
        .iter()
        .any(|folder| resolved(folder, path).is_some_and(|place| exists(files, &place)));
    let tail = format!("/{path}");
    whole
        || files
            .keys()
            .any(|file| file.starts_with(here) && file.ends_with(&tail))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> Files {
        files
            .iter()
            .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()))
            .collect()
    }

    #[test]
    fn names_that_the_tree_lacks_are_found_and_others_are_not() {
        let page = "a/README.md";
        let files = tree(&[
            (page, ""),
            (
                "a/core/ring.rs",
                "pub struct RangeState { late_write_ms: u64 }\nfn give_back() {}",
            ),
            ("b/lib.rs", "// struct OnlyInAComment\nmod queue;"),
        ]);
        let identifiers = identifiers(&files);
        for good in [
            "RangeState",
            "late_write_ms",
            "queue::give_back",
            "give_back()",
            "core/ring.rs",
            "ring.rs",
            "b/",
            "a/core",
            "manifold_any_metric",
            "--flag",
            "kubectl get pods",
            "Deployment",
            "apps/v1",
            "crypto/x509",
            "…",
        ] {
            assert_eq!(unknown(&files, &identifiers, page, good), None, "{good}");
        }
        for bad in [
            "OnlyInAComment",
            "RangeState::nothing",
            "no_such_name",
            "gone()",
            "core/gone.rs",
            "gone.rs",
            "b/gone",
            "../b/gone.rs",
        ] {
            assert!(unknown(&files, &identifiers, page, bad).is_some(), "{bad}");
        }
    }

    #[test]
    fn links_lead_to_files_and_folders_as_seen_from_their_page() {
        let page = "See [a](../x.md#part), [b](sub/), [c](https://example.com), [d](gone.md).\n```\n[e](gone.md)\n```";
        let files = tree(&[("d/page.md", page), ("x.md", ""), ("d/sub/y.rs", "")]);
        assert_eq!(
            links(&files),
            ["d/page.md:1: links to `gone.md`, which is not there"]
        );
    }

    #[test]
    fn long_pages_and_records_of_another_form_are_named() {
        let words = |count: usize| "word ".repeat(count);
        let sections = SECTIONS.join(" ");
        let good = format!("# 001: Good\n{sections}");
        let odd = format!("# Odd\n{}", words(300));
        let files = tree(&[
            ("ARCHITECTURE.md", &words(2501)),
            ("docs/decisions/README.md", "(001-good.md)"),
            ("docs/decisions/001-good.md", &good),
            ("docs/decisions/odd.md", &odd),
        ]);
        let complaints = sizes(&files);
        assert_eq!(
            complaints.len(),
            1 + 1 + 1 + SECTIONS.len() + 1,
            "{complaints:?}"
        );
        assert!(complaints[0].starts_with("ARCHITECTURE.md: 2501 words"));
    }
}
