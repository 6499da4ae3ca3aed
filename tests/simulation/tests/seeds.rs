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

/// A stopped process made the revision of a DaemonSet's older template late, with the same number as the newest one had:
/// it was taken for the newest, and every pod was replaced under its label.
#[test]
fn test_reproduce_a_late_revision_that_took_over_a_daemon_set() {
    of("daemonset-controller", 2056);
}

/// The fence closed while a scale was being written, and the replica kept its range: the scaling counted as one that
/// never was, and the next one came faster than the policy allows.
#[test]
fn test_reproduce_a_scaling_forgotten_when_the_fence_closed() {
    of("horizontal-pod-autoscaler-controller", 801);
}
