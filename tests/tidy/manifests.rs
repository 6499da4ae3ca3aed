//! Versions and features of dependencies stand in the root manifest: a member that asked for one
//! more feature would make cargo compile a big crate again. One exception: what controllers are tested in is
//! a feature of kit, so that no shipped crate can use it.

use super::Files;

/// `manifests` are those of the members.
pub(crate) fn complaints(manifests: &Files) -> Vec<String> {
    let mut complaints = Vec::new();
    for (name, text) in manifests {
        let mut in_dependencies = false;
        let mut of_tests = false;
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if let Some(section) = line.strip_prefix('[') {
                let section = section.trim_end_matches(']');
                in_dependencies = section.ends_with("dependencies");
                of_tests = section == "dev-dependencies"
                    || name.starts_with("tests/")
                    || name.starts_with("bench/");
                if section.contains("dependencies.") {
                    complaints.push(format!(
                        "{name}:{}: write `<crate>.workspace = true` instead of [{section}]",
                        index + 1
                    ));
                }
                continue;
            }
            if of_tests && line == TESTING {
                continue;
            }
            if in_dependencies && !line.is_empty() && !is_inherited(line) {
                complaints.push(format!(
                    "{name}:{}: `{line}`: members write `<crate>.workspace = true` and nothing else",
                    index + 1
                ));
            }
        }
    }
    complaints
}

/// Crates whose arithmetic meets integers of objects and Leases, which are anybody's.
const CHECKED: &[&str] = &[
    "kubernetes-proto",
    "coordinator-core",
    "coordinator",
    "controllers-kit",
];

/// Those of `members` (names of crates) that the root manifest compiles for release without checks for
/// overflow: what overflows there continues as another number.
pub(crate) fn unchecked(root: &str, members: &[String]) -> Vec<String> {
    let wanted = members
        .iter()
        .filter(|name| CHECKED.contains(&name.as_str()) || name.starts_with("controllers-"));
    wanted
        .filter(|name| {
            let section = format!("[profile.release.package.{name}]\noverflow-checks = true\n");
            !root.contains(&section)
        })
        .map(|name| format!("Cargo.toml: {name} has no `overflow-checks = true` in release"))
        .collect()
}

/// For tests of controllers.
const TESTING: &str = r#"controllers-kit = { workspace = true, features = ["testing"] }"#;

fn is_inherited(line: &str) -> bool {
    line.split_once('=').is_some_and(|(key, value)| {
        value.trim() == "true"
            && key
                .trim()
                .strip_suffix(".workspace")
                .is_some_and(|name| !name.contains('.'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_that_overflows_in_silence_is_named() {
        let root = "[profile.release.package.controllers-a]\noverflow-checks = true\n";
        let members = ["controllers-a", "controllers-b", "node"].map(str::to_owned);
        assert_eq!(
            unchecked(root, &members),
            ["Cargo.toml: controllers-b has no `overflow-checks = true` in release"]
        );
    }

    #[test]
    fn only_inherited_dependencies_pass() {
        let good = "[package]\nname = \"a\"\n[dependencies]\n# why\nserde.workspace = true # and more\n\n[dev-dependencies]\ncontrollers-kit = { workspace = true, features = [\"testing\"] }\n[lib]\npath = \"lib.rs\"\n";
        assert_eq!(
            complaints(&[("a/Cargo.toml".to_owned(), good.to_owned())].into()),
            Vec::<String>::new()
        );
        for bad in [
            "[dependencies]\nserde = \"1\"",
            "[dependencies]\nserde = { workspace = true, features = [\"rc\"] }",
            "[build-dependencies]\nserde.version = \"1\"",
            "[dependencies.serde]\nworkspace = true",
            "[dependencies]\ncontrollers-kit = { workspace = true, features = [\"testing\"] }",
            "[target.'cfg(unix)'.dependencies]\nlibc = \"0.2\"",
        ] {
            let found = complaints(&[("a/Cargo.toml".to_owned(), bad.to_owned())].into());
            assert_eq!(found.len(), 1, "{bad}: {found:?}");
        }
    }
}
