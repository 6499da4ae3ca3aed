//! `cargo verify`: every check and test of the project, in one go.
//!
//! Each step prints a heading, then whatever its tool says, then its time. The first failure ends the
//! run and is named last. CI calls the same command.

mod suites;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use harness::fleet::{self, Profile};
use harness::programs::Programs;
use harness::{toolchain, workspace_root};

/// Pinned, so that a new release of the tool cannot change what passes.
const CARGO_DENY: &str = "0.20.2";

/// Runs all checks and tests of Manifold.
#[derive(Debug, Parser)]
#[command(name = "cargo verify", bin_name = "cargo verify")]
struct Args {
    /// Run these steps alone (may be given several times)
    #[arg(long, value_name = "STEP")]
    only: Vec<Step>,
    /// List the steps and do nothing
    #[arg(long)]
    list: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Step {
    Toolchain,
    Format,
    Clippy,
    Deny,
    ControlPlane,
    Build,
    Instructions,
    Test,
}

impl Step {
    fn name(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }

    fn heading(self) -> &'static str {
        match self {
            Self::Toolchain => "Rust, Go and a C compiler are there",
            Self::Format => "cargo fmt --all --check",
            Self::Clippy => "cargo clippy --workspace --all-targets -- -D warnings",
            Self::Deny => "cargo deny check bans licenses sources",
            Self::ControlPlane => "the programs of the real control plane are built",
            Self::Build => {
                "cargo build --release --bin manifold --bin instructions, cargo test --no-run"
            }
            Self::Instructions => "cargo instructions: no part has become more expensive",
            Self::Test => "cargo test --workspace",
        }
    }

    fn run(self) -> Result<Option<String>> {
        match self {
            Self::Toolchain => check_toolchain().map(Some),
            Self::Format => cargo(&["fmt", "--all", "--check"]).map(|()| None),
            Self::Clippy => cargo(&[
                "clippy",
                "--workspace",
                "--all-targets",
                "--",
                "-D",
                "warnings",
            ])
            .map(|()| None),
            Self::Deny => deny().map(|()| None),
            Self::ControlPlane => {
                Programs::obtain().map(|programs| Some(programs.version().to_owned()))
            }
            Self::Build => build().map(Some),
            Self::Instructions => cargo(&["instructions"]).map(|()| None),
            Self::Test => test().map(Some),
        }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.list {
        for step in Step::value_variants() {
            println!("{:14} {}", step.name(), step.heading());
        }
        return ExitCode::SUCCESS;
    }
    let chosen: Vec<Step> = Step::value_variants()
        .iter()
        .copied()
        .filter(|step| args.only.is_empty() || args.only.contains(step))
        .collect();
    let start = Instant::now();
    let mut done = Vec::new();
    for (index, step) in chosen.iter().enumerate() {
        say(&format!(
            "\n[{}/{}] {}: {}",
            index + 1,
            chosen.len(),
            step.name(),
            step.heading()
        ));
        let since = Instant::now();
        let result = step.run();
        let took = since.elapsed();
        match result {
            Ok(note) => done.push((*step, took, note.unwrap_or_default())),
            Err(error) => {
                summarise(&done);
                say(&format!(
                    "verify: {} FAILED after {}: {error:#}",
                    step.name(),
                    seconds(took)
                ));
                say(&format!(
                    "again, this step alone: cargo verify --only {}",
                    step.name()
                ));
                return ExitCode::FAILURE;
            }
        }
    }
    summarise(&done);
    say(&format!(
        "verify: all {} steps passed in {}",
        done.len(),
        seconds(start.elapsed())
    ));
    ExitCode::SUCCESS
}

fn summarise(done: &[(Step, Duration, String)]) {
    say("");
    for (step, took, note) in done {
        say(&format!(
            "  {:14} {:>8}  {note}",
            step.name(),
            seconds(*took)
        ));
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// One line to stdout at once, so that it is in order with what the tools print.
fn say(line: &str) {
    println!("{line}");
    // Who reads the output may have gone; the exit code still reports.
    let _ = std::io::stdout().flush();
}

fn check_toolchain() -> Result<String> {
    let rust = toolchain::rust()?;
    let c = toolchain::c_compiler()?;
    let go = toolchain::go()?;
    for component in ["fmt", "clippy"] {
        let there = toolchain::cargo()
            .args([component, "--version"])
            .output()
            .is_ok_and(|output| output.status.success());
        if !there {
            bail!(
                "cargo {component} is missing: install it with `rustup component add rustfmt clippy`"
            );
        }
    }
    Ok(format!("{rust}, {go}, {}", c.display()))
}

fn cargo(args: &[&str]) -> Result<()> {
    run(toolchain::cargo().args(args))
}

fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command
        .status()
        .with_context(|| format!("starting {program}"))?;
    if !status.success() {
        bail!("its tool ended with {status}");
    }
    Ok(())
}

/// cargo-deny is a tool, not a dependency: it lies in the cache, built once.
fn deny() -> Result<()> {
    let program = toolchain::installed("cargo-deny", CARGO_DENY, &[])?;
    run(Command::new(program).current_dir(workspace_root()).args([
        "--locked",
        "check",
        "--hide-inclusion-graph",
        "bans",
        "licenses",
        "sources",
    ]))
}

fn build() -> Result<String> {
    // Together, so that what both need is built once.
    let bins = ["--bin", "manifold", "--bin", "instructions"];
    // The tests are of another profile, so that neither waits for the other: the last crate of each keeps one
    // processor busy.
    thread::scope(|scope| {
        let tests = scope.spawn(suites::build);
        cargo(&[&["build", "--release"][..], &bins].concat())?;
        tests
            .join()
            .map_err(|_| anyhow::anyhow!("the build of the tests panicked"))
            .flatten()
    })?;
    let program = released_program()?;
    let size = program.metadata().context("the built program")?.len();
    Ok(format!("{:.1} MB", size as f64 / 1e6))
}

/// Nothing is built here when the step before has run.
fn released_program() -> Result<PathBuf> {
    fleet::binary(Profile::Release)
}

/// Tests run on the released program: what users get, and much faster on the real control plane.
fn test() -> Result<String> {
    let program = released_program()?;
    let suites = suites::build()?;
    Ok(suites::run(&suites, &program)?.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_known_by_the_names_that_list_prints() {
        for step in Step::value_variants() {
            let args = Args::try_parse_from(["verify", "--only", &step.name()]).unwrap();
            assert_eq!(args.only, [*step]);
        }
        let error = Args::try_parse_from(["verify", "--only", "tests"])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("'tests'") && error.contains("similar value exists: 'test'"),
            "{error}"
        );
    }
}
