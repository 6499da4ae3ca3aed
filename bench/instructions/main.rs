//! `cargo instructions`: how many instructions the parts of an event's way take, beside what they took when
//! they were last written down.
//!
//! Times on a shared machine differ by a third from one minute to the next; instructions of the same program
//! do not. callgrind counts them, so this needs `valgrind`; where there is none it says so and compares
//! nothing.

mod parts;

use std::collections::BTreeMap;
use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use harness::{toolchain, workspace_root};
use serde::{Deserialize, Serialize};

use crate::parts::Part;

/// The allocator of the binary `manifold`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// What was counted last.
const KEPT: &str = "bench/results/instructions.json";
/// The allowed growth over the recorded count; beyond it a part fails. The same program differs from itself
/// by three in a hundred, since places in hash tables are drawn by lot; another processor copies memory in
/// other ways.
const MORE_MAX: f64 = 0.1;

/// Counts the instructions that decoding, storing, waking, queueing, planning and encoding take
#[derive(Debug, Parser)]
#[command(name = "cargo instructions", bin_name = "cargo instructions")]
struct Args {
    /// Write down what is counted, to be compared with from now on
    #[arg(long)]
    keep: bool,
    /// Only do what is counted: callgrind runs this
    #[arg(long, hide = true, conflicts_with = "keep")]
    counted: bool,
}

/// Counts of one build.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Counts {
    /// The compiler decides too.
    rustc: String,
    /// Instructions of each part, once.
    parts: BTreeMap<String, u64>,
}

/// Counted runs of each part, after one that is not counted; the least is taken: now and then the allocator
/// tidies up, which is a tenth of the shortest part in one run and nothing in the next of the same program.
const TIMES: usize = 3;

fn main() -> ExitCode {
    let args = Args::parse();
    if args.counted {
        for part in &parts::all() {
            // What is done once alone, as growing a table, is no part of it.
            for _ in 0..=TIMES {
                part.run();
                count_to_here(part);
            }
        }
        return ExitCode::SUCCESS;
    }
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("instructions: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// callgrind writes down what it has counted since it did so last.
#[inline(never)]
fn count_to_here(part: &Part) {
    black_box(part);
}

fn run(args: &Args) -> Result<()> {
    let Some(valgrind) = toolchain::on_path("valgrind") else {
        println!("nothing is counted: valgrind is not on the PATH (install your distribution's)");
        return Ok(());
    };
    let counts = Counts {
        rustc: toolchain::rust()?,
        parts: count(&valgrind)?,
    };
    let path = workspace_root().join(KEPT);
    if args.keep {
        print!("{}", table(&counts, None));
        let text = serde_json::to_string_pretty(&counts)? + "\n";
        return fs::write(&path, text).with_context(|| format!("writing {KEPT}"));
    }
    let text = fs::read_to_string(&path)
        .with_context(|| format!("reading {KEPT}: write it with `cargo instructions --keep`"))?;
    let kept: Counts = serde_json::from_str(&text)
        .with_context(|| format!("{KEPT} is not what `cargo instructions --keep` writes"))?;
    print!("{}", table(&counts, Some(&kept)));
    judge(&counts, &kept)
}

/// Runs this program under callgrind.
fn count(valgrind: &Path) -> Result<BTreeMap<String, u64>> {
    let folder = tempfile::tempdir().context("making a folder for what callgrind writes")?;
    let out = folder.path().join("out");
    let output = Command::new(valgrind)
        .arg("--tool=callgrind")
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg("--dump-before=*count_to_here*")
        .arg(std::env::current_exe().context("finding this program")?)
        .arg("--counted")
        .output()
        .with_context(|| format!("starting {}", valgrind.display()))?;
    ensure!(
        output.status.success(),
        "callgrind ended with {}:\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let parts = parts::all();
    let mut counts = BTreeMap::new();
    for (number, part) in (1_usize..).zip(&parts) {
        let last = number * (1 + TIMES);
        let mut least = u64::MAX;
        for dump in last - TIMES + 1..=last {
            let dump = PathBuf::from(format!("{}.{dump}", out.display()));
            let text = fs::read_to_string(&dump)
                .with_context(|| format!("callgrind has written no count of {}", part.name))?;
            let all = total(&text).with_context(|| format!("the count of {}", part.name))?;
            least = least.min(all);
        }
        counts.insert(part.name.clone(), least / part.times);
    }
    Ok(counts)
}

/// The total of a dump.
fn total(dump: &str) -> Result<u64> {
    let line = dump.lines().find_map(|line| {
        line.strip_prefix("totals:")
            .or(line.strip_prefix("summary:"))
    });
    let Some(count) = line.and_then(|count| count.trim().parse().ok()) else {
        bail!("no total in what callgrind has written");
    };
    Ok(count)
}

fn table(counts: &Counts, kept: Option<&Counts>) -> String {
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    table.set_header(["part, once", "instructions", "kept", ""]);
    for (name, count) in &counts.parts {
        let before = kept.and_then(|kept| kept.parts.get(name));
        table.add_row([
            name.clone(),
            count.to_string(),
            before.map_or_else(String::new, ToString::to_string),
            before.map_or_else(String::new, |before| {
                format!("{:+.1} %", 100.0 * (share(*count, *before) - 1.0))
            }),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(comfy_table::CellAlignment::Right);
    }
    table.trim_fmt() + "\n"
}

fn share(count: u64, before: u64) -> f64 {
    // Far below what a float holds exactly.
    count as f64 / before.max(1) as f64
}

/// An error that names each part that has become more expensive, or is not compared at all.
fn judge(counts: &Counts, kept: &Counts) -> Result<()> {
    let mut troubles = Vec::new();
    for (name, count) in &counts.parts {
        match kept.parts.get(name) {
            None => troubles.push(format!("{name} was never written down")),
            Some(before) if share(*count, *before) > 1.0 + MORE_MAX => {
                troubles.push(format!("{name} takes {count} instead of {before}"));
            }
            Some(_) => {}
        }
    }
    let gone = kept
        .parts
        .keys()
        .filter(|name| !counts.parts.contains_key(*name));
    troubles.extend(gone.map(|name| format!("{name} is not counted any more")));
    if troubles.is_empty() {
        return Ok(());
    }
    let compiler = if counts.rustc == kept.rustc {
        String::new()
    } else {
        format!(" (counted with {}, kept with {})", counts.rustc, kept.rustc)
    };
    bail!(
        "{}{compiler}: find out why, or if it is meant to be so, `cargo instructions --keep`",
        troubles.join("; ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(parts: &[(&str, u64)]) -> Counts {
        Counts {
            rustc: "rustc 1".to_owned(),
            parts: parts
                .iter()
                .map(|(name, count)| ((*name).to_owned(), *count))
                .collect(),
        }
    }

    #[test]
    fn a_part_that_has_become_more_expensive_is_named_with_both_counts() {
        let kept = counts(&[("queue", 1_000), ("wake", 200)]);
        judge(&counts(&[("queue", 1_100), ("wake", 100)]), &kept).unwrap();
        let error = judge(&counts(&[("queue", 1_101), ("wake", 200)]), &kept).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("queue takes 1101 instead of 1000: "),
            "{text}"
        );
        assert!(text.contains("cargo instructions --keep"), "{text}");
    }

    #[test]
    fn what_is_new_or_gone_must_be_written_down() {
        let error = judge(&counts(&[("new", 1)]), &counts(&[("old", 1)])).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("new was never written down"), "{text}");
        assert!(text.contains("old is not counted any more"), "{text}");
        let other = Counts {
            rustc: "rustc 2".to_owned(),
            ..counts(&[("old", 2)])
        };
        let error = judge(&other, &counts(&[("old", 1)])).unwrap_err();
        assert!(error.to_string().contains("kept with rustc 1"), "{error}");
    }

    #[test]
    fn the_total_is_found_in_what_callgrind_writes() {
        let dump = "version: 1\nevents: Ir\nsummary: 1234\n\nfn=(1) main\n1 1234\n";
        assert_eq!(total(dump).unwrap(), 1234);
        assert_eq!(total("fn=(1) main\n1 2\ntotals: 77\n").unwrap(), 77);
        assert!(total("events: Ir\n").is_err());
    }

    #[test]
    fn every_part_can_be_run_and_has_a_name_of_its_own() {
        let parts = parts::all();
        let names: std::collections::BTreeSet<&str> =
            parts.iter().map(|part| part.name.as_str()).collect();
        assert_eq!(names.len(), parts.len());
        for part in &parts {
            assert!(part.times > 0, "{}", part.name);
            part.run();
        }
    }
}
