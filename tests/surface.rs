//! Names, flags and feature gates as kube-controller-manager itself prints them, compared with ours.

mod started;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use harness::programs::{Program, Programs};
use node_options::args::{self, Parsed, Values};

use crate::support::beside;

/// What the released program prints for `--help`.
fn upstreams_help() -> Result<String> {
    let program = Programs::obtain()?.path(Program::ControllerManager);
    let output = std::process::Command::new(program)
        .arg("--help")
        .output()
        .context("kube-controller-manager --help")?;
    ensure!(output.status.success(), "{}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

fn ours() -> Values {
    match args::parse(args::flags(&node_registry::descriptors()), [""; 0]) {
        Ok(Parsed::Run(values)) => values,
        Ok(Parsed::Print(text)) => panic!("prints {text}"),
        Err(why) => panic!("{why}"),
    }
}

/// The names that follow these words in the help.
fn names<'a>(help: &'a str, words: &str) -> Result<BTreeSet<&'a str>> {
    let line = help
        .lines()
        .find_map(|line| line.trim_start().strip_prefix(words))
        .with_context(|| format!("the help has no {words:?}"))?;
    let list = line.split(" (default").next().unwrap_or_default();
    Ok(list.split(',').map(str::trim).collect())
}

#[test]
fn the_controllers_are_those_that_upstream_names() {
    let _beside = beside();
    let help = upstreams_help().expect("upstream's help");
    let all = names(&help, "All controllers:").unwrap();
    let off = names(&help, "Disabled-by-default controllers:").unwrap();
    let descriptors = node_registry::descriptors();
    for name in &all {
        assert_eq!(
            args::canonical(name, &descriptors),
            Some(*name),
            "--controllers={name} is unknown"
        );
        assert_eq!(args::on_by_default(name), !off.contains(name), "{name}");
    }
    for descriptor in &descriptors {
        // What is built before all others is not in the list, but can be switched off by name.
        let listed = all.contains(descriptor.name);
        assert!(
            listed || descriptor.runs_unlisted,
            "{} is not upstream's",
            descriptor.name
        );
        assert_eq!(
            descriptor.on_by_default,
            !off.contains(descriptor.name),
            "{}",
            descriptor.name
        );
    }
}

/// Each flag of the help with its default; empty where it prints none, since that is the type's zero.
fn flags(help: &str) -> BTreeMap<String, String> {
    let mut flags: BTreeMap<String, String> = BTreeMap::new();
    let mut last = String::new();
    for line in help.lines() {
        let text = line.trim_start();
        let text = match text.as_bytes() {
            // As in `-v, --v Level`.
            [b'-', _, b',', b' ', ..] => &text[4..],
            _ => text,
        };
        let is_flag = line.starts_with("      --") || line.starts_with("  -");
        if let Some(rest) = text.strip_prefix("--").filter(|_| is_flag) {
            last = rest.split([' ', '[']).next().unwrap_or_default().to_owned();
            flags.insert(last.clone(), String::new());
        }
        if let Some((_, default)) = line.rsplit_once("(default ")
            && let Some(default) = default.strip_suffix(')')
            && !line.contains("- default=")
        {
            flags.insert(last.clone(), default.trim_matches('"').to_owned());
        }
    }
    flags
}

#[test]
fn the_flags_have_the_defaults_that_upstream_prints() {
    let _beside = beside();
    let help = upstreams_help().expect("upstream's help");
    let theirs = flags(&help);
    assert!(theirs.len() > 140, "only {} flags were found", theirs.len());
    let ours = ours();
    let known = ours.flagz();
    let mut wrong = Vec::new();
    for (name, default) in &theirs {
        let Some(shown) = known.get(&**name) else {
            wrong.push(format!("--{name} is unknown"));
            continue;
        };
        let zero = default.is_empty() && ["", "false", "0", "0s", "[]"].contains(&shown.as_str());
        if !zero && shown != default {
            wrong.push(format!("--{name} is {shown:?}, not {default:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_feature_gates_have_the_stages_and_defaults_that_upstream_prints() {
    let _beside = beside();
    let help = upstreams_help().expect("upstream's help");
    let theirs: BTreeMap<String, (String, bool)> = help
        .lines()
        .filter_map(|line| {
            let (name, rest) = line
                .trim()
                .strip_prefix("kube:")?
                .split_once("=true|false (")?;
            let (stage, default) = rest.strip_suffix(')')?.split_once(" - default=")?;
            Some((name.to_owned(), (stage.to_owned(), default == "true")))
        })
        .collect();
    assert!(theirs.len() > 100, "only {} gates were found", theirs.len());
    let none = BTreeMap::new();
    let ours: BTreeMap<String, (String, bool)> = args::gate_states(&none)
        .filter(|(_, stage, _)| matches!(*stage, "ALPHA" | "BETA"))
        .map(|(name, stage, on)| (name.to_owned(), (stage.to_owned(), on)))
        .collect();
    let differing: Vec<_> = theirs
        .iter()
        .filter(|(name, gate)| ours.get(*name) != Some(gate))
        .chain(ours.iter().filter(|(name, _)| !theirs.contains_key(*name)))
        .collect();
    assert!(differing.is_empty(), "{differing:?}");
}
