//! Every bug that the simulation has found, as the seed that shows it.

use crate::run::{Options, run};

fn of(controller: &str, seed: u64) {
    run(&Options {
        controller: Some(controller.to_owned()),
        ..Options::seed(seed)
    })
    .expect_well();
}

/// A replica that took a range over had seen the ReplicaSets, but not yet the Deployment that its predecessor had
/// acted on: it took the newest ReplicaSet for an old one and rolled back.
#[test]
fn test_reproduce_rollback_on_an_older_view_of_the_deployment() {
    of("deployment-controller", 10);
}

/// A creation's answer was lost, so it left no mark; the next plan, on a cache that did not show the pod yet, made one
/// more under the name that came next. And the proof of freshness compared the cache after the plan, which by then had
/// caught up, and let the older plan pass.
#[test]
fn test_reproduce_one_pod_too_many_after_a_lost_answer() {
    of("replicaset-controller", 1601);
}
