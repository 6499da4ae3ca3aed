//! What somebody meant to come back to, and what is true on one machine only.

use super::Files;

/// Unfinished work. Written in two parts, so that this file does not complain of itself.
const UNFINISHED: &[&str] = &[
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("dbg", "!("),
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
];

/// Directories that exist on somebody's machine.
const MACHINE_PATHS: &[&str] = &[
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/Us", "ers/"),
    concat!("/wo", "rk/"),
];

/// Where packages and images come from is the business of who builds.
const REGISTRIES: &[&str] = &[
    concat!("index.crates", ".io"),
    concat!("static.crates", ".io"),
    concat!("proxy.golang", ".org"),
    concat!("sum.golang", ".org"),
    concat!("docker", ".io"),
    concat!("ghcr", ".io"),
    concat!("gcr", ".io"),
    concat!("quay", ".io"),
    concat!("registry.k8s", ".io"),
];

/// Written by tools, with addresses that they put there.
const GENERATED: &[&str] = &[
    "Cargo.lock",
    "tests/controlplane/go.mod",
    "tests/controlplane/go.sum",
    "tests/controlplane/containerd/go.mod",
    "tests/controlplane/containerd/go.sum",
    "tests/controlplane/csi-attacher/go.mod",
    "tests/controlplane/csi-attacher/go.sum",
    "tests/controlplane/csi-driver/go.mod",
    "tests/controlplane/csi-driver/go.sum",
    "tests/controlplane/csi-provisioner/go.mod",
    "tests/controlplane/csi-provisioner/go.sum",
    "tests/controlplane/csi-resizer/go.mod",
    "tests/controlplane/csi-resizer/go.sum",
    "tests/controlplane/jaeger/go.mod",
    "tests/controlplane/jaeger/go.sum",
    "tests/controlplane/kubelet/go.mod",
    "tests/controlplane/kubelet/go.sum",
    "tests/controlplane/metrics-server/go.mod",
    "tests/controlplane/metrics-server/go.sum",
    "tests/controlplane/prometheus/go.mod",
    "tests/controlplane/prometheus/go.sum",
];

pub(crate) fn complaints(files: &Files) -> Vec<String> {
    files
        .iter()
        .filter(|(path, _)| !GENERATED.contains(&path.as_str()))
        .flat_map(|(path, text)| {
            text.lines().enumerate().flat_map(move |(index, line)| {
                complaints_of(line, path.ends_with(".md"))
                    .into_iter()
                    .map(move |what| format!("{path}:{}: {what}", index + 1))
            })
        })
        .collect()
}

/// Prose may speak of such words; there only one with a colon is a note to oneself.
fn complaints_of(line: &str, prose: bool) -> Vec<String> {
    let mut found = Vec::new();
    for word in UNFINISHED {
        let word = if prose {
            format!("{word}:")
        } else {
            (*word).to_owned()
        };
        if as_word(line, &word, |c| c.is_alphanumeric() || c == '_') {
            found.push(format!("`{word}` is left"));
        }
    }
    for path in MACHINE_PATHS {
        // In the middle of a longer path it is not absolute.
        let inside = |c: char| c.is_alphanumeric() || "._-/}~*".contains(c);
        if line
            .match_indices(path)
            .any(|(at, _)| !line[..at].chars().next_back().is_some_and(inside))
        {
            found.push(format!("`{path}…` exists on one machine only"));
        }
    }
    for host in REGISTRIES {
        if as_word(line, host, |c| c.is_alphanumeric() || c == '_') {
            found.push(format!("`{host}`: no registry is named in the tree"));
        }
    }
    found
}

/// Whether `word` is in the line by itself, not as part of a longer one.
fn as_word(line: &str, word: &str, part: impl Fn(char) -> bool) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let closed = word.ends_with(['(', ':']) || !after.is_some_and(&part);
        closed && !before.is_some_and(&part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_are_found_as_words_only() {
        for word in UNFINISHED {
            let line = format!("    {word} later");
            assert_eq!(complaints_of(&line, false).len(), 1, "{line}");
        }
        for fine in ["TODOS", "mastodon", "my_dbg!(x)", "a prefix_FIXMEs"] {
            assert_eq!(complaints_of(fine, false), Vec::<String>::new(), "{fine}");
        }
    }

    #[test]
    fn prose_may_speak_of_leftovers_but_not_hold_them() {
        let word = UNFINISHED[3];
        assert_eq!(
            complaints_of(&format!("No stub, no {word}."), true),
            Vec::<String>::new()
        );
        assert_eq!(complaints_of(&format!("{word}: explain"), true).len(), 1);
    }

    #[test]
    fn absolute_paths_of_a_machine_are_found() {
        for path in MACHINE_PATHS {
            assert_eq!(
                complaints_of(&format!("see {path}me/x"), true).len(),
                1,
                "{path}"
            );
            assert_eq!(
                complaints_of(&format!("\"{path}me\""), false).len(),
                1,
                "{path}"
            );
            let inner = format!("$XDG{path}x ./a{path}b");
            assert_eq!(
                complaints_of(&inner, false),
                Vec::<String>::new(),
                "{inner}"
            );
        }
    }

    #[test]
    fn registries_are_found_and_generated_files_are_not_read() {
        for host in REGISTRIES {
            let line = format!("image: {host}/pause:3");
            assert!(!complaints_of(&line, false).is_empty(), "{line}");
            let lock = [("Cargo.lock".to_owned(), line.clone())].into();
            assert_eq!(complaints(&lock), Vec::<String>::new());
        }
    }
}
