//! A source file that no `mod` names is compiled by nobody: its tests do not run, its bugs do not show.

use std::collections::BTreeSet;

use super::Files;

/// `roots` are the files that cargo compiles: libraries, programs, build scripts.
pub(crate) fn complaints(roots: &[String], files: &Files) -> Vec<String> {
    let mut alive: BTreeSet<String> = BTreeSet::new();
    let mut complaints = Vec::new();
    let mut next: Vec<(String, bool)> = roots.iter().map(|root| (root.clone(), true)).collect();
    while let Some((path, is_root)) = next.pop() {
        if !alive.insert(path.clone()) {
            continue;
        }
        let Some(text) = files.get(&path) else {
            complaints.push(format!("{path}: is named, but is not there"));
            continue;
        };
        let folder = children_folder(&path, is_root);
        for (name, explicit) in modules(text) {
            let candidates = match explicit {
                Some(file) => vec![join(parent(&path), &file)],
                None => vec![
                    join(&folder, &format!("{name}.rs")),
                    join(&folder, &format!("{name}/mod.rs")),
                ],
            };
            match candidates
                .iter()
                .find(|candidate| files.contains_key(*candidate))
            {
                Some(found) => next.push((found.clone(), false)),
                None => complaints.push(format!("{path}: `mod {name};` has no file")),
            }
        }
    }
    let dead = files
        .keys()
        .filter(|path| path.ends_with(".rs") && !alive.contains(*path));
    complaints.extend(dead.map(|path| format!("{path}: no `mod` names it")));
    complaints
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

fn join(folder: &str, name: &str) -> String {
    if folder.is_empty() {
        name.to_owned()
    } else {
        format!("{folder}/{name}")
    }
}

/// Where a file's own modules lie.
fn children_folder(path: &str, is_root: bool) -> String {
    if is_root || path.ends_with("/mod.rs") {
        parent(path).to_owned()
    } else {
        path.trim_end_matches(".rs").to_owned()
    }
}

/// The `mod name;` lines of a file, each with the file that a `#[path]` above it names.
fn modules(text: &str) -> Vec<(String, Option<String>)> {
    let mut found = Vec::new();
    let mut explicit = None;
    for line in text.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("#[path = \"") {
            explicit = rest.split('"').next().map(str::to_owned);
            continue;
        }
        let bare = match line.strip_prefix("pub(") {
            Some(rest) => rest.split_once(") ").map_or("", |(_, rest)| rest),
            None => line.strip_prefix("pub ").unwrap_or(line),
        };
        if let Some(name) = bare
            .strip_prefix("mod ")
            .and_then(|rest| rest.strip_suffix(';'))
        {
            found.push((name.trim().to_owned(), explicit.take()));
        } else if !line.starts_with("#[") && !line.starts_with("//") {
            explicit = None;
        }
    }
    found
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
    fn modules_are_followed_through_every_form() {
        let files = tree(&[
            (
                "a/lib.rs",
                "pub mod one;\npub(crate) mod two;\n#[cfg(test)]\nmod tests;\n#[path = \"odd name.rs\"]\nmod odd;",
            ),
            ("a/one.rs", "mod inner;"),
            ("a/one/inner.rs", ""),
            ("a/two/mod.rs", "    mod deep;"),
            ("a/two/deep.rs", ""),
            ("a/tests.rs", ""),
            ("a/odd name.rs", ""),
            ("a/README.md", ""),
        ]);
        assert_eq!(
            complaints(&["a/lib.rs".to_owned()], &files),
            Vec::<String>::new()
        );
    }

    #[test]
    fn dead_files_and_missing_ones_are_named() {
        let files = tree(&[
            ("a/lib.rs", "mod gone;\n// mod old;"),
            ("a/old.rs", ""),
            ("a/gone/more.rs", ""),
        ]);
        assert_eq!(
            complaints(&["a/lib.rs".to_owned()], &files),
            [
                "a/lib.rs: `mod gone;` has no file",
                "a/gone/more.rs: no `mod` names it",
                "a/old.rs: no `mod` names it",
            ]
        );
    }
}
