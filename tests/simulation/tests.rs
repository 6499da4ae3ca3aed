use std::collections::BTreeSet;

use crate::{
    run::{Options, controllers, run},
    workloads,
};

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
    for seed in [1, 12, 23] {
        let (once, again) = (run(&Options::seed(seed)), run(&Options::seed(seed)));
        assert_eq!(once.hash, again.hash, "seed {seed}");
        assert_eq!(once.tale, again.tale, "seed {seed}");
    }
    assert_ne!(run(&Options::seed(1)).hash, run(&Options::seed(11)).hash);
}
