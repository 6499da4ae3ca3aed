//! No circle between the files of one controller: what two of them share lies in a third, `context.rs`, so
//! that each can be read after those that it uses.
//!
//! `mod.rs` is left out, since every file is below it: it holds the memory, the flags and the trait. So are
//! tests.

use std::collections::{BTreeMap, BTreeSet};

use super::Files;

/// Which files of a controller's folder each of them names, by module names.
type Uses = BTreeMap<String, BTreeSet<String>>;

pub(crate) fn complaints(files: &Files) -> Vec<String> {
    let mut folders: BTreeMap<&str, BTreeMap<&str, &str>> = BTreeMap::new();
    for (path, text) in files {
        let parts: Vec<&str> = path.split('/').collect();
        let ["controllers", group, _, file] = parts[..] else {
            continue;
        };
        let module = file.strip_suffix(".rs").unwrap_or_default();
        if group == "kit" || matches!(module, "" | "mod" | "tests") {
            continue;
        }
        let folder = &path[..path.len() - file.len() - 1];
        folders.entry(folder).or_default().insert(module, text);
    }
    folders
        .into_iter()
        .flat_map(|(folder, modules)| {
            let uses = uses(&modules);
            let circles = circles(&uses);
            circles
                .into_iter()
                .map(move |circle| {
                    format!(
                        "{folder}: {} use each other: move what they share into context.rs",
                        circle.join(" and ")
                    )
                })
                .collect::<Vec<_>>()
        })
        .collect()
}

fn uses(modules: &BTreeMap<&str, &str>) -> Uses {
    let of = |module: &str, text: &str| {
        let named = siblings(text).into_iter();
        let named = named.filter(|name| name != module && modules.contains_key(name.as_str()));
        named.collect()
    };
    modules
        .iter()
        .map(|(module, text)| ((*module).to_owned(), of(module, text)))
        .collect()
}

/// What a file names behind `super::`, in its shipped code: `a` of `super::a`, and `a` and `b` of
/// `super::{a, b::C}`.
fn siblings(text: &str) -> BTreeSet<String> {
    const SUPER: &str = "super::";
    let shipped = text.split("#[cfg(test)]").next().unwrap_or_default();
    let code: String = shipped
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .fold(String::new(), |code, line| code + line + "\n");
    let mut names = BTreeSet::new();
    for (at, _) in code.match_indices(SUPER) {
        let rest = &code[at + SUPER.len()..];
        match rest.strip_prefix('{') {
            Some(list) => names.extend(first_names(list)),
            None => names.extend(identifier(rest)),
        }
    }
    names
}

/// The first identifier of each item of a list up to its closing brace.
fn first_names(list: &str) -> Vec<String> {
    let mut names = Vec::new();
    let (mut depth, mut begins) = (0_usize, true);
    for (at, character) in list.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => begins = true,
            _ if begins && !character.is_whitespace() => {
                names.extend(identifier(&list[at..]));
                begins = false;
            }
            _ => {}
        }
    }
    names
}

fn identifier(text: &str) -> Option<String> {
    let end = text.find(|character: char| !character.is_alphanumeric() && character != '_');
    let name = &text[..end.unwrap_or(text.len())];
    (!name.is_empty()).then(|| name.to_owned())
}

/// Modules that reach themselves: each circle once, its members in order.
fn circles(uses: &Uses) -> BTreeSet<Vec<String>> {
    let reached = |from: &str| {
        let mut reached = BTreeSet::new();
        let mut open = vec![from.to_owned()];
        while let Some(module) = open.pop() {
            for next in &uses[&module] {
                if reached.insert(next.clone()) {
                    open.push(next.clone());
                }
            }
        }
        reached
    };
    let reaches: Uses = uses
        .keys()
        .map(|module| (module.clone(), reached(module)))
        .collect();
    reaches
        .iter()
        .filter(|(module, reached)| reached.contains(*module))
        .map(|(module, reached)| {
            let mutual = reached
                .iter()
                .filter(|other| reaches[*other].contains(module));
            mutual.cloned().collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let files = files
            .iter()
            .map(|(path, text)| (format!("controllers/{path}"), (*text).to_owned()))
            .collect();
        complaints(&files)
    }

    #[test]
    fn files_that_use_each_other_are_named_once() {
        let found = found(&[
            ("apps/web/mod.rs", "mod plan;"),
            (
                "apps/web/plan.rs",
                "use super::{\n    Memory, context::View,\n    status::{self, Report},\n};",
            ),
            ("apps/web/status.rs", "fn of() { super::plan::spec() }"),
            ("apps/web/context.rs", "use super::Memory;"),
        ]);
        assert_eq!(
            found,
            [
                "controllers/apps/web: plan and status use each other: move what they share into context.rs"
            ]
        );
    }

    #[test]
    fn a_circle_of_three_is_one() {
        let found = found(&[
            ("apps/web/a.rs", "use super::b;"),
            ("apps/web/b.rs", "use super::c;"),
            ("apps/web/c.rs", "use super::{a::A, d};"),
            ("apps/web/d.rs", ""),
        ]);
        assert_eq!(
            found,
            [
                "controllers/apps/web: a and b and c use each other: move what they share into context.rs"
            ]
        );
    }

    #[test]
    fn comments_tests_other_folders_and_what_only_resembles_are_no_uses() {
        let found = found(&[
            ("apps/web/a.rs", "use super::b;\n// super::a"),
            (
                "apps/web/b.rs",
                "// see super::a\nuse super::{ab, c::a};\n#[cfg(test)]\nuse super::a;",
            ),
            ("apps/web/c.rs", ""),
            ("apps/web/tests.rs", "use super::{a, b};"),
            ("kit/web/a.rs", "use super::b;"),
            ("kit/web/b.rs", "use super::a;"),
            ("apps/other/a.rs", ""),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }
}
