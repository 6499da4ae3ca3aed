//! Every test binary of the workspace, run in two lanes at once.
//!
//! The suites on the real control plane wait for timers most of their time, and the others compute. Side by
//! side they take little longer than the suites alone. The computing lane runs at the lowest priority, so
//! that it takes only what the suites leave and does not disturb their timing.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use harness::toolchain;

use super::{say, seconds};

/// The package whose tests run on the real control plane.
const ON_THE_CONTROL_PLANE: &str = "tests";

/// Up to this number, failures may be due to a busy machine; more are run again by nobody.
const AGAIN_MAX: usize = 3;

/// Of what a failed test printed, this many lines are repeated at the end, the last ones …
const REPEATED_LINES: usize = 40;
/// … each cut to this many characters.
const REPEATED_LENGTH: usize = 500;

/// Suites that judge safety by the faults they happened to meet: one failure is a defect, also where a
/// second run passes.
const NEVER_AGAIN: [&str; 12] = [
    "audit",
    "bystanders",
    "chaos",
    "fence",
    "fleet",
    "handoff",
    "interlock",
    "judge",
    "quarantine",
    "stale",
    "swap",
    "tidy",
];

/// One test binary that cargo built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suite {
    /// The package and the target, as `cargo test` names them: `tests --lib`.
    pub name: String,
    /// What is run.
    pub program: PathBuf,
    /// The package's folder, where its tests expect to be started.
    pub folder: PathBuf,
}

impl Suite {
    fn waits(&self) -> bool {
        self.name.split(' ').next() == Some(ON_THE_CONTROL_PLANE)
    }

    /// How to start it.
    fn command(&self, manifold: &Path) -> Command {
        let mut command = match self.waits() {
            true => Command::new(&self.program),
            false => toolchain::at_lowest_priority(&self.program),
        };
        command
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .env("MANIFOLD_BIN", manifold)
            .stdout(Stdio::piped());
        command
    }
}

/// Builds every test binary and names them.
///
/// # Errors
/// What does not compile, as cargo prints it.
pub fn build() -> Result<Vec<Suite>> {
    let mut child = toolchain::cargo()
        .args([
            "test",
            "--workspace",
            "--no-run",
            "--message-format=json-render-diagnostics",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .context("starting cargo")?;
    let mut text = String::new();
    child
        .stdout
        .take()
        .context("cargo has no output")?
        .read_to_string(&mut text)
        .context("reading cargo's output")?;
    if !child.wait().context("waiting for cargo")?.success() {
        bail!("the tests do not compile");
    }
    Ok(text.lines().filter_map(suite).collect())
}

/// The test binary that one of cargo's messages is about.
fn suite(message: &str) -> Option<Suite> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let program = message["executable"].as_str()?;
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
    let package = package(message["package_id"].as_str()?);
    let target = message["target"]["name"].as_str()?;
    let kind = match message["target"]["kind"][0].as_str()? {
        kind @ ("bin" | "test" | "bench" | "example") => format!("--{kind} {target}"),
        _ => "--lib".to_owned(),
    };
    Some(Suite {
        name: format!("{package} {kind}"),
        program: program.into(),
        folder: folder.into(),
    })
}

/// The package's name in `path+file:///folder#name@version`, or `path+file:///name#version`.
fn package(id: &str) -> String {
    let (path, fragment) = id.rsplit_once('#').unwrap_or(("", id));
    match fragment.split_once('@') {
        Some((name, _)) => name.to_owned(),
        None => path.rsplit('/').next().unwrap_or(path).to_owned(),
    }
}

/// Runs them all, also after a failure.
///
/// # Errors
/// What failed, and how many tests passed.
pub fn run(suites: &[Suite], manifold: &Path) -> Result<Counts> {
    let (waiting, computing): (Vec<_>, Vec<_>) = suites.iter().partition(|suite| suite.waits());
    let lane = |suites: Vec<&Suite>| {
        let mut counts = Counts::default();
        for suite in suites {
            counts.add(run_one(suite, manifold)?);
        }
        Ok::<_, anyhow::Error>(counts)
    };
    let (waited, computed) = thread::scope(|scope| {
        let other = scope.spawn(|| lane(computing));
        (lane(waiting), other.join())
    });
    let mut counts = waited?;
    counts.add(
        computed
            .map_err(|_| anyhow::anyhow!("the lane of the other tests panicked"))
            .flatten()?,
    );
    for suite in suites.iter().filter(|suite| suite.waits()) {
        again(suite, manifold, &mut counts)?;
    }
    if !counts.names.is_empty() || counts.failed > 0 {
        for (suite, names) in &counts.names {
            say(&format!("failed in {suite}: {}", names.join(", ")));
            for name in names {
                let of = (suite.clone(), name.clone());
                for line in counts.printed.get(&of).into_iter().flatten() {
                    say(&format!("  {line}"));
                }
            }
        }
        bail!("tests failed ({counts})");
    }
    Ok(counts)
}

/// Tests that have failed beside others are run once more, one by one, alone on the machine. What passes then
/// is counted and named in the summary.
fn again(suite: &Suite, manifold: &Path, counts: &mut Counts) -> Result<()> {
    let failed = counts.names.get(&suite.name).cloned().unwrap_or_default();
    if failed.len() > AGAIN_MAX {
        return Ok(());
    }
    for name in failed.iter().filter(|name| may_run_again(name)) {
        say(&format!("\nagain, alone: {name}"));
        let since = Instant::now();
        let status = suite
            .command(manifold)
            .args(["--exact", name, "--nocapture"])
            .stdout(Stdio::inherit())
            .status()
            .with_context(|| format!("starting {name} again"))?;
        let took = seconds(since.elapsed());
        if status.success() {
            say(&format!("{name} has passed alone in {took}"));
            counts.passes_alone(&suite.name, name);
        } else {
            say(&format!("{name} has failed alone, too, after {took}"));
        }
    }
    Ok(())
}

fn may_run_again(test: &str) -> bool {
    let module = test.split("::").find(|part| *part != "alone");
    module.is_some_and(|module| !NEVER_AGAIN.contains(&module))
}

/// Runs one. The lane of those that wait speaks line by line, the others when they have ended, so that one's
/// output does not stand in the middle of another's.
fn run_one(suite: &Suite, manifold: &Path) -> Result<Counts> {
    let since = Instant::now();
    let mut child = suite
        .command(manifold)
        .spawn()
        .with_context(|| format!("starting the tests of {}", suite.name))?;
    let stdout = child.stdout.take().context("a test has no output")?;
    let mut counts = Counts::default();
    let mut held = format!("\n     Running {}\n", suite.name);
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line.context("reading a test's output")?;
        let line = String::from_utf8_lossy(&line);
        counts.read(&suite.name, &line);
        if suite.waits() && line.starts_with("test ") {
            // Where the time goes: the suites of this lane are the longest step.
            say(&format!("{line} at {}", seconds(since.elapsed())));
        } else if suite.waits() {
            say(&line);
        } else {
            held.push_str(&line);
            held.push('\n');
        }
    }
    let status = child.wait().context("waiting for a test")?;
    if !status.success() {
        // One that aborts prints no result.
        counts
            .names
            .entry(suite.name.clone())
            .or_insert_with(|| vec![status.to_string()]);
    }
    if suite.waits() || counts.passed + counts.failed + counts.ignored > 0 || !status.success() {
        say(&format!(
            "{held}     {} took {}",
            suite.name,
            seconds(since.elapsed())
        ));
    }
    Ok(counts)
}

/// What the tests came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Counts {
    passed: u64,
    failed: u64,
    ignored: u64,
    /// What failed, by suite.
    names: BTreeMap<String, Vec<String>>,
    /// What each of these has printed, by suite and test, without backtraces: a log that is cut at its middle
    /// has its end.
    printed: BTreeMap<(String, String), VecDeque<String>>,
    output: Output,
    /// What failed beside others and passed alone.
    alone: Vec<String>,
}

impl Counts {
    /// Adds up the `test result:` lines, notes the names of the tests that failed and what these printed.
    fn read(&mut self, suite: &str, line: &str) {
        if let Some(name) = self.output.of(line) {
            let of = (suite.to_owned(), name.to_owned());
            let printed = self.printed.entry(of).or_default();
            if printed.len() == REPEATED_LINES {
                printed.pop_front();
            }
            printed.push_back(line.chars().take(REPEATED_LENGTH).collect());
        }
        let failed = line
            .strip_prefix("test ")
            .and_then(|rest| rest.strip_suffix(" ... FAILED"));
        if let Some(name) = failed {
            self.names
                .entry(suite.to_owned())
                .or_default()
                .push(name.to_owned());
        }
        let Some(rest) = line.strip_prefix("test result: ") else {
            return;
        };
        for part in rest.split([';', '.']) {
            let mut words = part.split_whitespace();
            let (Some(count), Some(what)) = (words.next(), words.next()) else {
                continue;
            };
            let Ok(count) = count.parse::<u64>() else {
                continue;
            };
            match what {
                "passed" => self.passed += count,
                "failed" => self.failed += count,
                "ignored" => self.ignored += count,
                _ => {}
            }
        }
    }

    /// A failed test has passed when it was run again.
    fn passes_alone(&mut self, suite: &str, test: &str) {
        if let Some(names) = self.names.get_mut(suite) {
            names.retain(|name| name != test);
        }
        self.names.retain(|_, names| !names.is_empty());
        self.failed = self.failed.saturating_sub(1);
        self.passed += 1;
        self.alone.push(test.to_owned());
    }

    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        self.names.extend(other.names);
        self.printed.extend(other.printed);
        self.alone.extend(other.alone);
    }
}

/// Where in the output of failed tests a line is.
#[derive(Debug, Default, PartialEq, Eq)]
struct Output {
    test: Option<String>,
    in_backtrace: bool,
}

impl Output {
    /// The failed test that has printed a line; `None` for an empty one and those of a backtrace, which ends
    /// with an empty line, a note or the next panic.
    fn of(&mut self, line: &str) -> Option<&str> {
        let block = line.strip_prefix("---- ");
        if let Some(name) = block.and_then(|rest| rest.strip_suffix(" stdout ----")) {
            self.test = Some(name.to_owned());
            return None;
        }
        if line == "failures:" {
            self.test = None;
        }
        let line = line.trim();
        let ends = line.is_empty() || line.starts_with("note: ");
        if line.eq_ignore_ascii_case("stack backtrace:") {
            self.in_backtrace = true;
        } else if ends || line.starts_with("thread '") {
            self.in_backtrace = false;
        }
        let is_left_out = ends || self.in_backtrace;
        self.test.as_deref().filter(|_| !is_left_out)
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} passed, {} failed, {} ignored",
            self.passed, self.failed, self.ignored
        )?;
        if !self.alone.is_empty() {
            let names = self.alone.join(", ");
            write!(f, "; FLAKY, passed only when run again alone: {names}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_are_added_up_and_failures_named() {
        let mut counts = Counts::default();
        for line in [
            "running 3 tests",
            "test swap::at_rest ... FAILED",
            "test swap::in_motion ... ok",
            "test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 4 filtered out; finished in 6.63s",
            "test result: FAILED. 5 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "test result of a test that prints: 9 passed",
        ] {
            counts.read("tests --lib", line);
        }
        assert_eq!(counts.to_string(), "7 passed, 1 failed, 1 ignored");
        assert_eq!(counts.names["tests --lib"], ["swap::at_rest"]);
    }

    #[test]
    fn what_a_failed_test_printed_is_kept_without_its_backtrace() {
        let mut counts = Counts::default();
        let early: Vec<String> = (0..50).map(|number| format!("early {number}")).collect();
        let block = [
            "test chaos::once ... FAILED",
            "failures:",
            "",
            "---- chaos::once stdout ----",
        ];
        let after = [
            "thread 'chaos::once' panicked at harness/lib.rs:66:9:",
            "seed 4",
            "Caused by:",
            "    0: fault 3, Kill",
            "    the fleet does not rest",
            "stack backtrace:",
            "   0: __rustc::rust_begin_unwind",
            "             at /rustc/library/std/src/panicking.rs:689:5",
            "note: Some details are omitted",
            "",
            "failures:",
            "    chaos::once",
        ];
        let early = early.iter().map(String::as_str);
        for line in block.into_iter().chain(early).chain(after) {
            counts.read("tests --lib", line);
        }
        let of = ("tests --lib".to_owned(), "chaos::once".to_owned());
        let printed: Vec<&str> = counts.printed[&of].iter().map(String::as_str).collect();
        assert_eq!(printed.len(), REPEATED_LINES);
        assert_eq!(
            printed[REPEATED_LINES - 6..],
            [
                "early 49",
                "thread 'chaos::once' panicked at harness/lib.rs:66:9:",
                "seed 4",
                "Caused by:",
                "    0: fault 3, Kill",
                "    the fleet does not rest"
            ]
        );
    }

    #[test]
    fn who_passes_only_alone_is_named_and_who_judges_safety_never_runs_again() {
        let mut counts = Counts::default();
        for line in [
            "test page::shown ... FAILED",
            "test result: FAILED. 5 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s",
        ] {
            counts.read("tests --lib", line);
        }
        counts.passes_alone("tests --lib", "page::shown");
        assert_eq!(
            counts.to_string(),
            "6 passed, 0 failed, 0 ignored; FLAKY, passed only when run again alone: page::shown"
        );
        assert!(counts.names.is_empty());
        assert!(may_run_again("page::shown"));
        assert!(!may_run_again("chaos::faults_of_all_kinds"));
        assert!(!may_run_again("alone::fence::held"));
    }

    #[test]
    fn cargos_messages_name_the_test_binaries() {
        let message = |id: &str, kind: &str, test: bool| {
            serde_json::json!({
                "reason": "compiler-artifact",
                "package_id": id,
                "manifest_path": "/tree/tests/Cargo.toml",
                "target": {"name": "thing", "kind": [kind]},
                "profile": {"test": test},
                "executable": "/target/debug/deps/thing-1",
            })
            .to_string()
        };
        let named = |id: &str, kind: &str, test: bool| {
            suite(&message(id, kind, test)).map(|suite| suite.name)
        };
        let named_by_path = "path+file:///tree/tests#0.1.0";
        assert_eq!(
            named(named_by_path, "lib", true).as_deref(),
            Some("tests --lib")
        );
        let other = "path+file:///tree/node/cache#node-cache@0.1.0";
        assert_eq!(
            named(other, "bin", true).as_deref(),
            Some("node-cache --bin thing")
        );
        assert_eq!(named(other, "bin", false), None);
        assert_eq!(suite("not a message"), None);
        let built = suite(&message(named_by_path, "lib", true)).unwrap();
        assert!(built.waits());
        assert_eq!(built.folder, Path::new("/tree/tests"));
    }
}
