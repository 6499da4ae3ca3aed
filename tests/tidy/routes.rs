//! The routes of node's README, walked in the source: each step's function is in its file, and what it passes
//! on by is in its body and in the next step's file.

use super::Files;

const README: &str = "node/README.md";
/// What begins a table of steps.
const HEAD: &str = "| step | file | function → by |";
/// Steps of a route, and routes.
const STEPS: usize = 10;
const ROUTES: usize = 2;

struct Step<'a> {
    file: &'a str,
    function: &'a str,
    by: Option<&'a str>,
}

/// What is between the first two backticks.
fn quoted(text: &str) -> Option<&str> {
    text.split('`').nth(1).filter(|name| !name.is_empty())
}

fn step(row: &str) -> Option<Step<'_>> {
    let mut cells = row.split('|').skip(2);
    let (file, function) = (cells.next()?, cells.next()?);
    let (function, by) = match function.split_once('→') {
        Some((function, by)) => (function, quoted(by)),
        None => (function, None),
    };
    Some(Step {
        file: quoted(file)?,
        function: quoted(function)?,
        by,
    })
}

/// The tables of steps of a page.
fn routes(text: &str) -> Vec<Vec<Step<'_>>> {
    let mut routes = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.starts_with(HEAD) {
            let rows = lines
                .by_ref()
                .skip(1)
                .take_while(|row| row.starts_with('|'));
            routes.push(rows.filter_map(step).collect());
        }
    }
    routes
}

/// The text of a file that a step names, from the root or from `node/`.
fn source<'a>(files: &'a Files, file: &str) -> Option<&'a str> {
    let found = files
        .get(file)
        .or_else(|| files.get(&format!("node/{file}")));
    found.map(String::as_str)
}

/// The function's text, up to the next one of the file.
fn body<'a>(source: &'a str, function: &str) -> Option<&'a str> {
    let starts = ["(", "<"].map(|after| format!("fn {function}{after}"));
    let start = starts.iter().filter_map(|start| source.find(start)).min()?;
    let rest = &source[start..];
    // As rustfmt has it, a method or function ends at its own indentation.
    let before = &source[..start];
    let line = before.rfind('\n').map_or(0, |at| at + 1);
    let indent: String = source[line..].chars().take_while(|c| *c == ' ').collect();
    let end = rest.find(&format!("\n{indent}}}")).unwrap_or(rest.len());
    Some(&rest[..end])
}

/// Whether a name occurs as a whole word.
fn has_word(text: &str, word: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
        .any(|one| one == word)
}

/// Steps that are not as the page has them.
pub(crate) fn broken(files: &Files) -> Vec<String> {
    let Some(text) = files.get(README) else {
        return vec![format!("{README} is not there")];
    };
    let routes = routes(text);
    let mut complaints = Vec::new();
    if routes.len() != ROUTES || routes.iter().any(|route| route.len() != STEPS) {
        complaints.push(format!(
            "{README}: {ROUTES} routes of {STEPS} steps are expected"
        ));
    }
    for route in &routes {
        for (at, one) in route.iter().enumerate() {
            let place = format!("{README}: step {} (`{}`)", at + 1, one.function);
            let Some(body) = source(files, one.file).and_then(|text| body(text, one.function))
            else {
                complaints.push(format!("{place}: `{}` has no such function", one.file));
                continue;
            };
            let Some(by) = one.by else {
                continue;
            };
            if !has_word(body, by) {
                complaints.push(format!("{place}: it does not mention `{by}`"));
            }
            let next = route.get(at + 1).and_then(|next| source(files, next.file));
            if next.is_some_and(|next| !has_word(next, by)) {
                complaints.push(format!("{place}: the next step does not mention `{by}`"));
            }
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(rows: &[&str], sources: &[(&str, &str)]) -> Vec<String> {
        let mut readme = format!("{HEAD} what |\n|---|---|---|---|\n");
        for row in rows {
            readme.push_str(row);
            readme.push('\n');
        }
        let mut files = Files::from([(README.to_owned(), readme)]);
        for (name, text) in sources {
            files.insert((*name).to_owned(), (*text).to_owned());
        }
        let mut found = broken(&files);
        found.retain(|one| !one.contains("are expected"));
        found
    }

    #[test]
    fn a_step_is_there_and_passes_on_by_what_the_next_one_knows() {
        let rows = [
            "| 1 | `a.rs` | `first` → `Poll` | |",
            "| 2 | `b.rs` | `second` | |",
        ];
        let first = "impl A {\n    fn first(&self) {\n        send(Poll);\n    }\n}\n";
        let second = "impl Handler<Poll> for B {}\nfn second() {}\n";
        let sources = [("node/a.rs", first), ("b.rs", second)];
        assert_eq!(complaints(&rows, &sources), Vec::<String>::new());
        for (sources, expected) in [
            (
                [
                    ("node/a.rs", "fn first() {\n}\nfn other() { send(Poll) }"),
                    ("b.rs", second),
                ],
                "step 1 (`first`): it does not mention `Poll`",
            ),
            (
                [("node/a.rs", first), ("b.rs", "fn second() {}")],
                "step 1 (`first`): the next step does not mention `Poll`",
            ),
            (
                [("node/a.rs", first), ("b.rs", "struct Poll;")],
                "step 2 (`second`): `b.rs` has no such function",
            ),
        ] {
            let found = complaints(&rows, &sources);
            assert!(found.iter().any(|one| one.ends_with(expected)), "{found:?}");
        }
        assert_eq!(
            broken(&Files::from([(README.to_owned(), String::new())])).len(),
            1
        );
    }
}
