//! Every controller's folder has the same shape, is headed, and is registered in its group.

use std::collections::BTreeSet;

use super::Files;

/// The folder of `controllers/` that holds no controllers.
const KIT: &str = "kit";

pub(crate) fn complaints(files: &Files) -> Vec<String> {
    let folders: BTreeSet<(&str, &str)> = files
        .keys()
        .filter_map(|path| {
            let mut parts = path.strip_prefix("controllers/")?.split('/');
            let (group, folder, _file) = (parts.next()?, parts.next()?, parts.next()?);
            (group != KIT).then_some((group, folder))
        })
        .collect();
    folders
        .into_iter()
        .flat_map(|(group, folder)| of_one(files, group, folder))
        .collect()
}

fn of_one(files: &Files, group: &str, folder: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    let at = format!("controllers/{group}/{folder}");
    match files.get(&format!("{at}/mod.rs")) {
        None => complaints.push(format!("{at}: no mod.rs")),
        Some(text) if !text.starts_with("//! ") => {
            complaints.push(format!(
                "{at}/mod.rs: must open with `//!`: what it keeps true, watches, writes, remembers"
            ));
        }
        Some(text) if !text.contains("impl Controller for") => {
            complaints.push(format!("{at}/mod.rs: no `impl Controller for`"));
        }
        Some(_) => {}
    }
    if !files.contains_key(&format!("{at}/tests.rs")) {
        complaints.push(format!("{at}: no tests.rs"));
    }
    let lib = files
        .get(&format!("controllers/{group}/lib.rs"))
        .map_or("", String::as_str);
    let named = lib
        .lines()
        .any(|line| line.trim().ends_with(&format!("mod {folder};")));
    if !named {
        complaints.push(format!(
            "{at}: controllers/{group}/lib.rs has no `mod {folder};`"
        ));
    }
    if !lib.contains(&format!("{folder}::")) {
        complaints.push(format!(
            "{at}: is not registered in controllers/{group}/lib.rs"
        ));
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> Files {
        files
            .iter()
            .map(|(path, text)| (format!("controllers/{path}"), (*text).to_owned()))
            .collect()
    }

    #[test]
    fn a_whole_controller_passes_and_the_kit_is_no_group() {
        let files = tree(&[
            ("kit/pods/ready.rs", ""),
            (
                "apps/lib.rs",
                "pub mod deployment;\nFactory::of::<deployment::Deployment>()",
            ),
            (
                "apps/deployment/mod.rs",
                "//! Keeps.\nimpl Controller for Deployment {}",
            ),
            ("apps/deployment/tests.rs", ""),
        ]);
        assert_eq!(complaints(&files), Vec::<String>::new());
    }

    #[test]
    fn each_missing_part_is_named() {
        let files = tree(&[
            ("apps/lib.rs", "mod daemonset_of_another_name;"),
            ("apps/daemonset/mod.rs", "use x;"),
            ("apps/statefulset/plan.rs", ""),
        ]);
        let found = complaints(&files).join("\n");
        for expected in [
            "apps/daemonset/mod.rs: must open with `//!`",
            "apps/daemonset: no tests.rs",
            "apps/daemonset: controllers/apps/lib.rs has no `mod daemonset;`",
            "apps/daemonset: is not registered",
            "apps/statefulset: no mod.rs",
        ] {
            assert!(found.contains(expected), "{expected}\nnot in\n{found}");
        }
    }
}
