//! A file is read at one sitting.

use super::Files;

/// Lines of a file of what is shipped, comments included.
const LINES_MAX: usize = 900;
/// Folders of what is shipped.
const SHIPPED: [&str; 4] = ["controllers/", "coordinator/", "node/", "proto/"];
/// What is compiled for tests alone lies there, too.
const OF_TESTS: [&str; 5] = [
    "controllers/kit/testing/",
    "coordinator/core/model/",
    "coordinator/core/simulation",
    "/tests/",
    "tests.rs",
];

pub(crate) fn complaints(files: &Files) -> Vec<String> {
    files
        .iter()
        .filter(|(path, _)| path.ends_with(".rs"))
        .filter(|(path, _)| SHIPPED.iter().any(|folder| path.starts_with(folder)))
        .filter(|(path, _)| !OF_TESTS.iter().any(|part| path.contains(part)))
        .filter_map(|(path, text)| {
            let lines = text.lines().count();
            (lines > LINES_MAX).then(|| {
                format!("{path}: {lines} lines, {LINES_MAX} at most: give a part of it a file of its own")
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_files_are_counted_and_tests_are_not() {
        let files: Files = [
            ("node/long.rs", 901),
            ("node/right.rs", 900),
            ("node/long/tests.rs", 901),
            ("node/cache/tests/watch.rs", 901),
            ("controllers/kit/testing/engine.rs", 901),
            ("tests/long.rs", 901),
            ("node/long.md", 901),
        ]
        .map(|(path, lines)| (path.to_owned(), "\n".repeat(lines)))
        .into();
        assert_eq!(
            complaints(&files),
            ["node/long.rs: 901 lines, 900 at most: give a part of it a file of its own"]
        );
    }
}
