//! `cargo run --bin audit -- --audit-log FILE`: what an API server's audit log proves of a fleet.
//!
//! Reports every request of an older epoch after a newer one began, every write by a replica that was not the
//! owner, every pod made beyond what its ReplicaSet wanted at that moment, every generated name that was
//! given twice within an hour, every volume that was released, deleted or attached elsewhere while its claim
//! or node had it, and every range that was nobody's for longer than announced. The history of Leases, claims
//! and volumes is in the log itself, where the policy logs their bodies (`--print-policy`).

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use jiff::SignedDuration;
use tests::judge::{AUDIT_POLICY, Children, Judge, Names, Ownership, Volumes};

const USAGE: &str = "usage: audit --audit-log FILE [--fleet-name NAME] [--unowned-seconds N] | audit --print-policy";

struct Args {
    log: PathBuf,
    fleet: String,
    unowned: SignedDuration,
}

/// `None` prints the policy.
fn parse(mut words: impl Iterator<Item = String>) -> Result<Option<Args>> {
    let (mut log, mut fleet, mut unowned) = (None, "manifold".to_owned(), tests::judge::UNOWNED);
    while let Some(word) = words.next() {
        let (name, inline) = match word.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (word, None),
        };
        if name == "--print-policy" {
            return Ok(None);
        }
        let mut value = || {
            inline
                .clone()
                .or_else(|| words.next())
                .with_context(|| format!("{name} wants a value; {USAGE}"))
        };
        match name.as_str() {
            "--audit-log" => log = Some(PathBuf::from(value()?)),
            "--fleet-name" => fleet = value()?,
            "--unowned-seconds" => {
                let text = value()?;
                let seconds: i64 = text.parse().with_context(|| {
                    format!("--unowned-seconds {text:?} must be a whole number")
                })?;
                ensure!(seconds > 0, "--unowned-seconds must be greater than 0");
                unowned = SignedDuration::from_secs(seconds);
            }
            other => bail!("unknown argument {other:?}; {USAGE}"),
        }
    }
    let log = log.with_context(|| format!("--audit-log is missing; {USAGE}"))?;
    ensure!(log.is_file(), "--audit-log {}: no such file", log.display());
    Ok(Some(Args {
        log,
        fleet,
        unowned,
    }))
}

fn run() -> Result<bool> {
    let Some(args) = parse(std::env::args().skip(1))? else {
        print!("{}", AUDIT_POLICY.trim_start());
        return Ok(true);
    };
    let (mut judge, mut ownership, mut children, mut names, mut volumes) = (
        Judge::default(),
        Ownership::of(&args.fleet),
        Children::default(),
        Names::default(),
        Volumes::default(),
    );
    harness::AuditLog::open(&args.log).read(|record| {
        judge.read(&record);
        ownership.read(&record);
        children.read(&record);
        names.read(&record);
        volumes.read(&record);
    })?;
    let (verdict, owned, counted, kept) = (
        judge.verdict(),
        ownership.verdict(args.unowned),
        children.verdict(1.0),
        volumes.verdict(),
    );
    println!("ownership: {}", owned.summary());
    println!(
        "children: {} pods of {} ReplicaSets; {} complaints",
        counted.pods,
        counted.owners,
        counted.complaints.len()
    );
    println!("names: {} generated", names.count());
    println!("volumes: {}", kept.summary());
    println!("log: {}", verdict.summary());
    let complaints: Vec<String> = [
        owned.complaints,
        counted.complaints,
        names.complaints(),
        kept.complaints,
    ]
    .concat();
    for complaint in &complaints {
        println!("{complaint}");
    }
    Ok(complaints.is_empty())
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("audit: {error:#}");
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod arguments {
    use super::*;

    fn given(words: &[&str]) -> Result<Option<Args>> {
        parse(words.iter().map(|word| (*word).to_owned()))
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (words, part) in [
            (&[][..], "--audit-log is missing"),
            (&["--audit-log"], "wants a value"),
            (&["--audit-log=/nonexistent/log"], "no such file"),
            (&["--log", "x"], "unknown argument \"--log\""),
            (&["--unowned-seconds=x"], "must be a whole number"),
            (&["--unowned-seconds", "0"], "greater than 0"),
        ] {
            let why = given(words).err().map(|error| format!("{error:#}"));
            assert!(
                why.as_ref().is_some_and(|why| why.contains(part)),
                "{words:?}: {why:?}"
            );
        }
        assert!(given(&["--print-policy"]).is_ok_and(|args| args.is_none()));
    }
}
