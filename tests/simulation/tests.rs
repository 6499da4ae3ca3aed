use std::collections::BTreeSet;

use clap::ValueEnum as _;

use crate::{
    mutants::Mutant,
    poison,
    run::{Options, Report, controllers, run},
    workloads,
};

mod conformance;
mod seeds;
mod stories;

/// What `cargo verify` runs.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=300;
/// A deliberate fault must be caught within this many seeds.
const MUTANT_SEEDS: u64 = 500;

#[test]
fn every_registered_controller_has_a_workload() {
    let registered: BTreeSet<&str> = controllers().into_iter().collect();
    let simulated: BTreeSet<&str> = workloads::ALL
        .iter()
        .map(|entry| entry.controller)
        .collect();
    assert_eq!(
        registered, simulated,
        "registered (left) and with a workload in tests/simulation/workloads.rs (right)"
    );
}

#[test]
fn a_seed_is_one_run() {
    for seed in [1, 12, 23, 34] {
        let (once, again) = (run(&Options::seed(seed)), run(&Options::seed(seed)));
        assert_eq!(once.tale, again.tale, "seed {seed}");
        assert_eq!(once.hash, again.hash, "seed {seed}");
    }
    assert_ne!(run(&Options::seed(1)).hash, run(&Options::seed(11)).hash);
}

#[test]
fn three_hundred_seeds_are_without_violation() {
    let reports = side_by_side(SEEDS, |seed| Some(run(&Options::seed(seed))));
    for report in &reports {
        report.expect_well();
    }
    // A workload in which its controller has nothing to do shows nothing.
    let at_work: BTreeSet<&str> = reports
        .iter()
        .filter(|report| report.wrote.contains(&report.controller))
        .map(|report| report.controller.as_str())
        .collect();
    assert_eq!(
        at_work,
        controllers().into_iter().collect(),
        "those that have written in their own workloads (left), all (right)"
    );
    let writes: u64 = reports.iter().map(|report| report.counts.writes).sum();
    let moves: u64 = reports.iter().map(|report| report.counts.moves).sum();
    assert!(
        reports.len() == 300 && writes > 9_000 && moves > 3_000,
        "{} runs with {writes} writes and {moves} changes of owners are too little to show anything",
        reports.len()
    );
}

#[test]
fn a_key_that_kills_is_quarantined_within_three_deaths_and_all_others_are_served() {
    for seed in 1..=4 {
        let replicas = 1 + usize::try_from(seed % 3).expect("few");
        let report = poison::run(seed, replicas, false);
        if let Some(violation) = report.violation {
            panic!(
                "seed {seed}, {replicas} replicas: {violation}, named {:?}{}",
                report.named, report.tale
            );
        }
        let first: Vec<&str> = report.named.iter().take(3).map(String::as_str).collect();
        assert_eq!(
            first,
            ["", "", "~"],
            "it kills before a renewal could name it, until it is announced"
        );
    }
    // Where Leases can't say what the dead were doing, the judge notices.
    let report = poison::run(1, 2, true);
    assert!(report.violation.is_some(), "{:?}", report.named);
}

#[test]
fn a_load_that_falls_shrinks_nothing_early_in_a_hundred_runs() {
    let reports = side_by_side(1..=100, |seed| {
        Some(run(&Options {
            controller: Some("horizontal-pod-autoscaler-controller".to_owned()),
            ..Options::seed(seed)
        }))
    });
    for report in &reports {
        report.expect_well();
    }
    let shrunk: u64 = reports.iter().map(|report| report.shrunk).sum();
    let moves: u64 = reports.iter().map(|report| report.counts.moves).sum();
    assert!(
        reports.len() == 100 && shrunk > 200 && moves > 3_000,
        "{} runs with {shrunk} scale-downs and {moves} changes of owners are too little to show anything",
        reports.len()
    );
}

#[test]
fn every_deliberate_fault_is_caught() {
    for mutant in Mutant::value_variants() {
        let found = std::sync::atomic::AtomicBool::new(false);
        let reports = side_by_side(1..=MUTANT_SEEDS, |seed| {
            if found.load(std::sync::atomic::Ordering::Relaxed) {
                return None;
            }
            let report = run(&Options {
                mutant: Some(*mutant),
                ..Options::seed(seed)
            });
            if report.violation.is_some() {
                found.store(true, std::sync::atomic::Ordering::Relaxed);
            }
            Some(report)
        });
        assert!(
            reports.iter().any(|report| report.violation.is_some()),
            "{mutant:?} was not caught in {} seeds: a judge is missing",
            reports.len()
        );
    }
}

/// Runs seeds on all cores.
fn side_by_side(
    seeds: std::ops::RangeInclusive<u64>,
    run: impl Fn(u64) -> Option<Report> + Sync,
) -> Vec<Report> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = std::sync::atomic::AtomicU64::new(*seeds.start());
    let work = || {
        let mut reports = Vec::new();
        loop {
            let seed = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            if seed > *seeds.end() {
                return reports;
            }
            reports.extend(run(seed));
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().expect("a run that panics says so itself"))
            .collect()
    })
}
