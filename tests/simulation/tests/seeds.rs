//! Every bug that the simulation has found, as the seed that showed it. A kind of fault that was added since
//! changes the course of a seed.

use crate::run::{Options, run};

fn of(controller: &str, seed: u64) {
    run(&Options {
        controller: Some(controller.to_owned()),
        ..Options::seed(seed)
    })
    .expect_well();
}

/// A replica that took a range over had seen the ReplicaSets, but not yet the Deployment that its predecessor
/// had acted on: it took the newest ReplicaSet for an old one and rolled back.
#[test]
fn test_reproduce_rollback_on_an_older_view_of_the_deployment() {
    of("deployment-controller", 10);
}

/// A creation's answer was lost, so it left no mark; the next plan, on a cache that did not show the pod yet,
/// made one more under the name that came next. And the proof of freshness compared the cache after the plan,
/// which by then had caught up, and let the older plan pass.
#[test]
fn test_reproduce_one_pod_too_many_after_a_lost_answer() {
    of("replicaset-controller", 1601);
}

/// A stopped process made the revision of a DaemonSet's older template late, with the same number as the
/// newest one had: it was taken for the newest, and every pod was replaced under its label.
#[test]
fn test_reproduce_a_late_revision_that_took_over_a_daemon_set() {
    of("daemonset-controller", 2056);
}

/// The fence closed while a scale was being written, and the replica kept its range: the scaling counted as
/// one that never was, and the next one came faster than the policy allows.
#[test]
fn test_reproduce_a_scaling_forgotten_when_the_fence_closed() {
    of("horizontal-pod-autoscaler-controller", 801);
}

/// The fence closed over the creation of a DaemonSet's pod and opened again a moment later, under the same
/// epoch. A list proved that the pod was not there, another was made for its node, and then the first one
/// landed.
#[test]
fn test_reproduce_a_pod_that_landed_after_its_absence_was_proven() {
    of("daemonset-controller", 8459);
}

/// What a stopped process had in its buffers stayed there when all faults had ended and the process went on:
/// the simulation's mistake, not the fleet's.
#[test]
fn test_reproduce_a_request_that_stood_still_longer_than_its_process() {
    of("garbage-collector-controller", 6793);
}

/// A Lease that somebody had deleted was made again by its owner before the judge had read: a write on its
/// way, of the epoch before, counted as a stranger's.
#[test]
fn test_reproduce_a_lease_made_again_before_the_judge_read() {
    of("replicationcontroller-controller", 6899);
}

/// A ReplicaSet that a stopped process made late got the newest number, the next one came back to it: it says
/// which numbers it had before, which an undisturbed run has nothing of.
#[test]
fn test_reproduce_a_revision_that_came_back() {
    of("deployment-controller", 8360);
}

/// A Job went on, its pods were made, and ended before any status of it could be written: it is complete, and
/// says "suspended" for ever, as upstream's would.
#[test]
fn test_reproduce_a_job_that_ended_before_it_could_say_that_it_continues() {
    of("job-controller", 8519);
}

/// A stopped process made the pod of a DaemonSet's older template after its successor had proven that there
/// was none, and before that one's watch reported it: two on a node for a moment, which only the server's
/// fence prevents. The judge counted the late one against the successor.
#[test]
fn test_reproduce_a_late_pod_of_an_older_template() {
    of("daemonset-controller", 163);
}

/// A replica that had just started failed once to list a kind, whose objects then held back no owner: one
/// that waited for its dependents was released while one of them blocked it.
#[test]
fn test_reproduce_an_owner_released_before_a_kind_was_listed() {
    of("garbage-collector-controller", 785);
}

/// A replica made a pod and died before it could report it, no other ran, and the pod was deleted: the next
/// process found the ReplicaSet at the version from which that name had been chosen, and gave it again.
#[test]
fn test_reproduce_a_name_given_again_after_nobody_had_read() {
    of("horizontal-pod-autoscaler-controller", 52);
}

/// A taint that came between two signs of life of the watch of Leases was aged by the whole time between
/// them, and a timer was moved to the earlier deadline that followed: a pod that bears the taint for 9 s was
/// driven away after 8.
#[test]
fn test_reproduce_a_toleration_cut_by_the_time_before_its_taint() {
    of("taint-eviction-controller", 1);
}

/// A replica's watch of pods stood still while another made a pod and died, and the pod was deleted: the
/// first took the range over, and gave the name again that it had never seen. It cannot know, and the same
/// name is what makes a late creation collide: the judge asked for more than a view holds.
#[test]
fn test_reproduce_a_name_that_came_and_went_while_a_watch_stood_still() {
    of("deployment-controller", 2991);
}

/// A pod came and went while a watch of pods stood still: the claim that was made for it had an owner when
/// the API server was asked, and nothing was there to say that it had gone.
#[test]
fn test_reproduce_a_dependent_of_an_owner_that_no_watch_ever_showed() {
    of("resourceclaim-controller", 10_006);
}
