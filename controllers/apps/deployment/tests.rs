use std::sync::Arc;

use controllers_kit::{
    Answer, Answers, Failure, FlagValue, Key, Outcome, PatchKind, Plan, Query, Refusal, Requeue,
    Snapshot, StatusWrite, Verb, Written,
    testing::{
        Common, DeploymentBuild, PodBuild, WorkloadBuild, World, at, deployment, pod,
        pod_spec_bytes, replica_set,
    },
};
use kubernetes_proto::{
    Object,
    apps::{
        Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet, ReplicaSetCondition,
        ReplicaSetStatus,
    },
    core::{Pod, PodTemplateSpec},
    meta::LabelSelector,
};
use serde_json::{Value, json};

use super::{
    Deployments, Memory, TERMINATING_REPLICAS,
    context::{Rollout, Set},
    progress::{condition, new_condition, set_condition},
    revision::{self, DESIRED_REPLICAS, MAX_REPLICAS, REVISION, REVISION_HISTORY, ROLLBACK_TO},
    template,
};
use crate::REGISTRY;

const NOW: &str = "12:00:00";
const DEPLOYMENTS: Deployments = Deployments {
    counts_terminating: true,
};

fn world() -> World {
    World::at(NOW)
}

trait SetBuild: Sized {
    fn available(self, count: i32) -> Self;
    fn status(self, replicas: i32, ready: i32, available: i32) -> Self;
    fn noted(self, desired: i32, most: i32) -> Self;
    fn revision(self, revision: &str) -> Self;
    fn of(self, deployment: &Deployment) -> Self;
    fn failing(self, reason: &str) -> Self;
}

impl SetBuild for ReplicaSet {
    fn available(self, count: i32) -> Self {
        self.status(count, count, count)
    }
    fn status(mut self, replicas: i32, ready: i32, available: i32) -> Self {
        let generation = self.metadata().generation.max(1);
        let status = self.status.get_or_insert_default();
        status.replicas = replicas;
        status.ready_replicas = ready;
        status.available_replicas = available;
        status.terminating_replicas = Some(0);
        status.observed_generation = generation;
        self
    }
    fn noted(self, desired: i32, most: i32) -> Self {
        self.annotation(DESIRED_REPLICAS, &desired.to_string())
            .annotation(MAX_REPLICAS, &most.to_string())
    }
    fn revision(self, revision: &str) -> Self {
        self.annotation(REVISION, revision)
    }
    fn of(self, deployment: &Deployment) -> Self {
        let app = deployment.metadata().name.to_string();
        self.selects(&[("app", &app)])
            .label("app", &app)
            .owned_by(deployment)
    }
    fn failing(mut self, reason: &str) -> Self {
        self.status
            .get_or_insert_default()
            .conditions
            .push(ReplicaSetCondition {
                r#type: "ReplicaFailure".into(),
                status: "True".into(),
                last_transition_time: Some(at("11:30:00").into()),
                reason: reason.into(),
                message: "quota".into(),
            });
        self
    }
}

fn set(name: &str, replicas: i32) -> ReplicaSet {
    replica_set(name)
        .replicas(replicas)
        .created("10:00:00")
        .available(replicas)
}

/// Old ones the oldest first.
fn rollout(deployment: Deployment, new: Option<ReplicaSet>, old: Vec<ReplicaSet>) -> Rollout {
    let mut sets: Vec<Set> = old
        .into_iter()
        .map(|set| Set::seen(&Arc::new(set)))
        .collect();
    let new = new.map(|set| {
        sets.push(Set::seen(&Arc::new(set)));
        sets.len() - 1
    });
    Rollout {
        status: deployment.status.clone().unwrap_or_default(),
        deployment: Arc::new(deployment),
        revision: None,
        sets,
        new,
        now: at(NOW),
        counts_terminating: true,
    }
}

fn sizes(rollout: &Rollout) -> Vec<i32> {
    rollout.sets.iter().map(Set::replicas).collect()
}

// ---- rolling update, step by step ----

#[test]
fn the_new_replica_set_grows_as_far_as_surge_allows() {
    for (wanted, surge, old, new, expected) in [
        (10, "0", 10, 0, None),
        (10, "2", 10, 0, Some(2)),
        (10, "2", 5, 0, Some(7)),
        (10, "2", 10, 2, None),
        (10, "2", 2, 11, Some(10)),
        (10, "25%", 10, 0, Some(3)),
        (10, "100%", 10, 0, Some(10)),
        (1, "1%", 1, 0, Some(1)),
        (0, "25%", 0, 3, Some(0)),
        (5, "0", 2, 3, None),
        (5, "0", 1, 3, Some(4)),
    ] {
        let mut rollout = rollout(
            deployment("web").replicas(wanted).rolling("0", surge),
            Some(set("new", new)),
            vec![set("old", old)],
        );
        let scaled = rollout.grow_new();
        let case = format!("{wanted} wanted, surge {surge}, {old} old, {new} new");
        assert_eq!(scaled, expected.is_some(), "{case}");
        assert_eq!(sizes(&rollout), [old, expected.unwrap_or(new)], "{case}");
    }
}

#[test]
fn old_replica_sets_shrink_as_far_as_unavailability_allows() {
    for (what, unavailable, old, new, old_available, new_available, expected) in [
        ("nothing may be missing", "0", 10, 0, 10, 0, Some(9)),
        ("two may be missing", "2", 10, 0, 10, 0, Some(8)),
        ("the unhealthy go first", "2", 10, 0, 8, 0, Some(8)),
        ("one unhealthy, one healthy", "2", 10, 0, 9, 0, Some(8)),
        (
            "what is new and not available counts for nothing",
            "2",
            8,
            2,
            8,
            0,
            None,
        ),
        ("what is new and available counts", "2", 8, 2, 8, 2, Some(6)),
        ("percent are rounded down", "29%", 10, 0, 10, 0, Some(8)),
        ("nothing old is left", "2", 0, 10, 0, 10, None),
        (
            "a lagging status is not counted on",
            "20%",
            6,
            6,
            8,
            6,
            None,
        ),
    ] {
        let mut rollout = rollout(
            deployment("web").replicas(10).rolling(unavailable, "0"),
            Some(set("new", new).available(new_available)),
            vec![set("old", old).available(old_available)],
        );
        let scaled = rollout.shrink_old();
        assert_eq!(scaled, expected.is_some(), "{what}");
        assert_eq!(sizes(&rollout), [expected.unwrap_or(old), new], "{what}");
    }
}

#[test]
fn unhealthy_replicas_go_up_to_a_bound() {
    for (old, available, most, expected) in [
        (10, 8, 1, Some(1)),
        (10, 8, 3, Some(2)),
        (10, 8, 0, Some(0)),
        (10, 10, 3, Some(0)),
        (0, 0, 3, Some(0)),
        (5, 7, 3, None),
    ] {
        let mut rollout = rollout(
            deployment("web").replicas(10).rolling("2", "2"),
            None,
            vec![set("old", old).available(available)],
        );
        assert_eq!(
            rollout.shrink_unhealthy(&[0], most),
            expected,
            "{old} with {available} available, at most {most}"
        );
        assert_eq!(sizes(&rollout), [old - expected.unwrap_or(0)]);
    }
}

#[test]
fn healthy_replicas_go_while_enough_are_available() {
    for (unavailable, available, old, expected) in [
        (0, 11, 10, 9),
        (2, 10, 10, 8),
        (2, 8, 10, 10),
        (2, 10, 0, 0),
        (2, 1, 10, 10),
        (2, 12, 3, 0),
    ] {
        let mut rollout = rollout(
            deployment("web").replicas(10),
            None,
            vec![set("old", old).available(available)],
        );
        rollout.shrink_healthy(&[0], 10 - unavailable);
        assert_eq!(
            sizes(&rollout),
            [expected],
            "{available} available of {old}"
        );
    }
}

#[test]
fn the_oldest_shrinks_first_and_its_unhealthy_before_anothers_healthy() {
    let mut healthy = rollout(
        deployment("web").replicas(10).rolling("4", "0"),
        Some(set("new", 0)),
        vec![set("v1", 3), set("v2", 7)],
    );
    assert!(healthy.shrink_old());
    assert_eq!(sizes(&healthy), [0, 6, 0]);
    let mut unhealthy = rollout(
        deployment("web").replicas(10).rolling("4", "0"),
        Some(set("new", 0)),
        vec![set("v1", 3), set("v2", 7).available(4)],
    );
    assert!(unhealthy.shrink_old());
    assert_eq!(
        sizes(&unhealthy),
        [2, 4, 0],
        "three unhealthy ones, one healthy one"
    );
}

/// All ReplicaSets get what they ask for, except that up to `ill` new pods never become available.
fn settle_pods(rollout: &mut Rollout, ill: i32) {
    let new = rollout.new;
    for (index, set) in rollout.sets.iter_mut().enumerate() {
        let replicas = set.replicas();
        let available = if Some(index) == new {
            replicas - ill
        } else {
            replicas
        };
        let status = set.wanted.status.get_or_insert_default();
        status.replicas = replicas;
        status.available_replicas = available.max(0);
    }
}

#[test]
fn every_rollout_keeps_its_bounds_at_every_step_and_comes_to_an_end() {
    for (replicas, surge, unavailable) in (1..=9)
        .flat_map(|replicas| (0..=4).map(move |surge| (replicas, surge)))
        .flat_map(|(replicas, surge)| {
            (0..=4).map(move |unavailable| (replicas, surge, unavailable))
        })
    {
        let case = format!("{replicas} replicas, surge {surge}, unavailable {unavailable}");
        let web = || {
            deployment("web")
                .replicas(replicas)
                .rolling(&unavailable.to_string(), &surge.to_string())
        };
        for ill in [0, 1, replicas] {
            let old = vec![set("v1", replicas / 2), set("v2", replicas - replicas / 2)];
            let mut rollout = rollout(web(), Some(set("new", 0)), old);
            let least = replicas - rollout.max_unavailable();
            for step in 0.. {
                assert!(step < 100, "{case}, {ill} ill: no end");
                let before = sizes(&rollout);
                rollout.roll();
                assert!(
                    rollout.total_replicas() <= rollout.max_replicas(),
                    "{case}: too many"
                );
                settle_pods(&mut rollout, ill);
                assert!(
                    rollout.available_replicas() >= least,
                    "{case}, {ill} ill: too few are available"
                );
                if sizes(&rollout) == before {
                    break;
                }
            }
            if ill == 0 {
                assert_eq!(sizes(&rollout), [0, 0, replicas], "{case}");
            }
        }
    }
}

#[test]
fn surge_and_unavailability_are_resolved_together() {
    for (wanted, unavailable, surge, expected) in [
        (2, "1%", "0%", (0, 1)),
        (1, "1%", "0%", (0, 1)),
        (2, "25%", "1%", (1, 0)),
        (1, "25%", "1%", (1, 0)),
        (10, "25%", "25%", (3, 2)),
        (10, "0", "0", (0, 1)),
        (10, "30%", "0", (0, 3)),
        (10, "10", "0", (0, 10)),
        (10, "20", "0", (0, 10)),
        (10, "110%", "0", (0, 10)),
        (0, "25%", "25%", (0, 0)),
        (10, "nonsense", "3", (0, 0)),
    ] {
        let rollout = rollout(
            deployment("web")
                .replicas(wanted)
                .rolling(unavailable, surge),
            None,
            vec![],
        );
        assert_eq!(
            (rollout.max_surge(), rollout.max_unavailable()),
            expected,
            "{wanted} wanted, {unavailable} unavailable, surge {surge}"
        );
    }
    let recreate = rollout(deployment("web").replicas(10).recreate(), None, vec![]);
    assert_eq!((recreate.max_surge(), recreate.max_unavailable()), (0, 0));
}

// ---- recreate ----

#[test]
fn recreate_waits_until_no_old_pod_runs() {
    for (what, status_replicas, phases, runs) in [
        ("no pods", 0, &[][..], false),
        ("the status says there are some", 1, &[], true),
        ("ended ones only", 0, &["Failed", "Succeeded"], false),
        ("one of an unknown phase", 0, &["Unknown"], true),
        ("one pending", 0, &["Pending"], true),
        ("one running", 0, &["Running"], true),
        (
            "one running among ended ones",
            0,
            &["Failed", "Running"],
            true,
        ),
    ] {
        let web = deployment("web").recreate().replicas(2);
        let old = set("old", 0)
            .of(&web)
            .image("app:0")
            .available(status_replicas);
        let mut world = world().with(web.clone()).with(old.clone());
        for (number, phase) in phases.iter().enumerate() {
            world.put(
                pod(&format!("old-{number}"))
                    .label("app", "web")
                    .owned_by(&old)
                    .phase(phase),
            );
        }
        let creates = world
            .plan::<Deployments>("web")
            .verbs()
            .iter()
            .any(|verb| verb.starts_with("create"));
        assert_eq!(creates, !runs, "{what}");
    }
}

#[test]
fn recreate_scales_all_old_ones_down_at_once_and_creates_nothing_yet() {
    let web = deployment("web").recreate().replicas(2);
    let world = world()
        .with(web.clone())
        .with(set("a", 1).of(&web).image("app:0"))
        .with(set("b", 2).of(&web).image("app:00"));
    let plan = world.plan::<Deployments>("web");
    assert_eq!(
        plan.verbs(),
        [
            "patch replicasets/a",
            "patch replicasets/b",
            "patch deployments/web/status"
        ]
    );
    assert_eq!(plan.stages.len(), 2, "the status comes after");
}

#[test]
fn the_end_of_a_pod_wakes_only_a_deployment_that_recreates() {
    for (web, woken) in [(deployment("web").recreate(), 1), (deployment("web"), 0)] {
        let old = set("old", 0).of(&web);
        let gone = pod("old-1").label("app", "web").owned_by(&old);
        let world = world().with(web).with(old);
        let keys = |old: Option<&Pod>, new: Option<&Pod>| {
            super::recreate_waiting_for(&controllers_kit::Change { old, new }, &world).len()
        };
        assert_eq!(keys(Some(&gone), None), woken);
        assert_eq!(keys(None, Some(&gone)), 0);
        assert_eq!(keys(Some(&gone), Some(&gone)), 0);
    }
}

// ---- scaling in proportion ----

#[test]
fn several_active_replica_sets_share_a_change_of_size_in_proportion() {
    // Who: sizes of the Deployment before and after, its surge before and after; sizes of the ReplicaSets
    // before (the old ones, the new one) and after.
    type Case = (
        &'static str,
        i32,
        i32,
        &'static str,
        &'static str,
        Vec<i32>,
        Option<i32>,
        Vec<i32>,
    );
    let cases: Vec<Case> = vec![
        (
            "one active, up",
            10,
            12,
            "0",
            "0",
            vec![],
            Some(10),
            vec![12],
        ),
        (
            "one active, down",
            10,
            5,
            "0",
            "0",
            vec![],
            Some(10),
            vec![5],
        ),
        ("5 to 10", 5, 10, "0", "0", vec![3], Some(2), vec![6, 4]),
        ("5 to 3", 5, 3, "0", "0", vec![3], Some(2), vec![2, 1]),
        ("9 to 4", 9, 4, "0", "0", vec![1], Some(8), vec![0, 4]),
        (
            "7 to 10",
            7,
            10,
            "0",
            "0",
            vec![2, 3],
            Some(2),
            vec![3, 4, 3],
        ),
        (
            "13 to 8",
            13,
            8,
            "0",
            "0",
            vec![3, 8],
            Some(2),
            vec![2, 5, 1],
        ),
        (
            "what is left over goes to the newest",
            3,
            4,
            "0",
            "0",
            vec![1, 1],
            Some(1),
            vec![1, 1, 2],
        ),
        (
            "what is too much is taken from the oldest",
            3,
            2,
            "0",
            "0",
            vec![1, 1],
            Some(1),
            vec![0, 1, 1],
        ),
        (
            "no new one yet",
            4,
            5,
            "0",
            "0",
            vec![2, 2],
            None,
            vec![2, 3],
        ),
        (
            "to nothing",
            6,
            0,
            "0",
            "0",
            vec![1, 2],
            Some(3),
            vec![0, 0, 0],
        ),
        (
            "from nothing the new one alone",
            6,
            6,
            "0",
            "0",
            vec![0, 0],
            Some(0),
            vec![0, 0, 6],
        ),
        (
            "with surge",
            10,
            20,
            "2",
            "2",
            vec![6],
            Some(6),
            vec![11, 11],
        ),
        (
            "size and surge at once",
            10,
            50,
            "3",
            "6",
            vec![8],
            Some(5),
            vec![34, 22],
        ),
        (
            "size and template at once",
            10,
            14,
            "0",
            "0",
            vec![3, 7],
            None,
            vec![4, 10],
        ),
    ];
    for (what, before, wanted, surge_before, surge, old, new, expected) in cases {
        let most = before + surge_before.parse::<i32>().unwrap();
        let noted = |set: ReplicaSet| set.noted(before, most);
        let mut rollout = rollout(
            deployment("web").replicas(wanted).rolling("0", surge),
            new.map(|replicas| noted(set("new", replicas).created("19:00:00"))),
            old.iter()
                .enumerate()
                .map(|(number, replicas)| {
                    noted(
                        set(&format!("v{number}"), *replicas).created(&format!("1{number}:00:00")),
                    )
                })
                .collect(),
        );
        rollout.scale_all();
        assert_eq!(sizes(&rollout), expected, "{what}");
        for set in rollout.sets.iter().filter(|set| set.replicas() > 0) {
            let meta = set.wanted.metadata();
            assert_eq!(
                revision::noted(meta, DESIRED_REPLICAS),
                Some(wanted),
                "{what}"
            );
            assert_eq!(
                revision::noted(meta, MAX_REPLICAS),
                Some(rollout.max_replicas()),
                "{what}"
            );
        }
    }
}

#[test]
fn a_saturated_new_replica_set_leaves_nothing_to_the_old_ones_but_a_broken_one_takes_nothing() {
    for (available, old_after) in [(2, 0), (0, 1)] {
        let mut rollout = rollout(
            deployment("web").replicas(2).rolling("1", "1"),
            Some(set("new", 2).noted(2, 3).available(available)),
            vec![set("old", 1).noted(2, 3)],
        );
        rollout.scale_all();
        assert_eq!(sizes(&rollout), [old_after, 2], "{available} available");
    }
}

#[test]
fn a_lost_note_of_the_size_falls_back_to_the_status() {
    for (what, note, status_replicas, expected) in [
        ("missing", None, 10, [6, 6]),
        ("no number", Some("x"), 10, [6, 6]),
        ("negative", Some("-10"), 10, [6, 6]),
        ("zero", Some("0"), 10, [6, 6]),
        ("out of range", Some("2147483648"), 10, [6, 6]),
        ("the status says nothing either", None, 0, [5, 7]),
    ] {
        let mut web = deployment("web").replicas(12).rolling("0", "0");
        web.status.as_mut().unwrap().replicas = status_replicas;
        let old = |name: &str, created: &str| {
            let set = set(name, 5).created(created);
            match note {
                Some(note) => set.annotation(MAX_REPLICAS, note),
                None => set,
            }
        };
        let mut rollout = rollout(
            web,
            Some(old("new", "11:00:00")),
            vec![old("old", "10:00:00")],
        );
        rollout.scale_all();
        assert_eq!(sizes(&rollout), expected, "{what}");
    }
}

#[test]
fn the_recorded_size_distinguishes_scaling_from_a_rollout() {
    for (what, sets, scaling) in [
        ("as noted", vec![set("a", 3).noted(3, 4)], false),
        ("noted otherwise", vec![set("a", 3).noted(2, 3)], true),
        ("not noted", vec![set("a", 2)], false),
        (
            "noted on an inactive one",
            vec![set("a", 0).noted(2, 3)],
            false,
        ),
        (
            "noted otherwise on one of two",
            vec![set("a", 1).noted(3, 4), set("b", 2).noted(2, 3)],
            true,
        ),
    ] {
        let rollout = rollout(deployment("web").replicas(3), None, sets);
        assert_eq!(rollout.is_scaling(), scaling, "{what}");
    }
}

// ---- history ----

#[test]
fn history_beyond_the_limit_goes_oldest_revision_first_but_nothing_alive() {
    let empty = |name: &str, revision: &str| set(name, 0).revision(revision).generation(1);
    for (what, limit, old, gone) in [
        (
            "one too many",
            1,
            vec![empty("a", "2"), empty("b", "1")],
            vec!["b"],
        ),
        (
            "none kept",
            0,
            vec![empty("a", "2"), empty("b", "1")],
            vec!["a", "b"],
        ),
        (
            "as many as allowed",
            2,
            vec![empty("a", "2"), empty("b", "1")],
            vec![],
        ),
        (
            "no limit",
            i32::MAX,
            vec![empty("a", "2"), empty("b", "1")],
            vec![],
        ),
        (
            "one that has pods stays",
            0,
            vec![empty("a", "1").status(1, 0, 0), empty("b", "2")],
            vec!["b"],
        ),
        (
            "one that wants pods stays",
            0,
            vec![set("a", 1).revision("1").status(0, 0, 0)],
            vec![],
        ),
        (
            "one whose size was just changed stays",
            0,
            vec![empty("a", "1").generation(2)],
            vec![],
        ),
        (
            "one that goes already does not count",
            1,
            vec![empty("a", "1").terminating("11:00:00"), empty("b", "2")],
            vec![],
        ),
        (
            "without a readable revision by age",
            1,
            vec![
                empty("x", "?").created("10:00:00"),
                empty("y", "?").created("09:00:00"),
            ],
            vec!["y"],
        ),
    ] {
        let mut rollout = rollout(
            deployment("web").history(limit),
            Some(set("new", 1).revision("9")),
            old,
        );
        rollout.clean_up();
        let mut deleted: Vec<&str> = rollout
            .sets
            .iter()
            .filter(|set| set.is_deleted)
            .map(Set::name)
            .collect();
        deleted.sort_unstable();
        assert_eq!(deleted, gone, "{what}");
    }
}

#[test]
fn history_goes_only_when_the_rollout_is_complete_and_the_very_version_seen() {
    let web = deployment("web").history(0).replicas(2);
    let new = set("new", 2)
        .of(&web)
        .revision("2")
        .noted(2, 3)
        .created("11:00:00");
    let old = set("old", 0).of(&web).image("app:0").revision("1");
    let mut done = web.clone();
    done.status = Some(DeploymentStatus {
        replicas: 2,
        updated_replicas: 2,
        available_replicas: 2,
        observed_generation: 1,
        ..Default::default()
    });
    let plan = |web: Deployment| {
        world()
            .with(web)
            .with(new.clone())
            .with(old.clone())
            .plan::<Deployments>("web")
    };
    assert!(
        !plan(web)
            .verbs()
            .contains(&"delete replicasets/old".to_owned())
    );
    let plan = plan(done);
    let action = plan
        .actions()
        .find(|action| action.verb.name() == "delete")
        .unwrap();
    assert_eq!(action.to_string(), "delete replicasets/old");
    assert!(matches!(
        action.verb,
        Verb::Delete {
            only: controllers_kit::Only::ThisVersion,
            ..
        }
    ));
    assert_eq!(plan.counted.len(), 1);
    assert_eq!(plan.counted[0].selector.text().unwrap(), "app=web");
}

// ---- revisions and annotations ----

#[test]
fn the_new_replica_sets_revision_rises_and_remembers() {
    let long = (100..600)
        .map(|n| n.to_string())
        .collect::<Vec<_>>()
        .join(",");
    for (what, revision, history, next, expected, expected_history) in [
        ("first", None, None, 1, "1", None),
        ("rises", Some("1"), None, 3, "3", Some("1")),
        ("rises again", Some("3"), Some("1"), 5, "5", Some("1,3")),
        (
            "stays where it is the highest",
            Some("5"),
            Some("1"),
            4,
            "5",
            Some("1"),
        ),
        ("equal", Some("5"), None, 5, "5", None),
        ("not a number", Some("x"), None, 5, "x", None),
        ("empty", Some(""), None, 5, "5", Some("")),
        (
            "a long history loses its oldest",
            Some("600"),
            Some(&*long),
            601,
            "601",
            None,
        ),
    ] {
        let mut meta = set("new", 1).metadata().clone();
        if let Some(revision) = revision {
            meta.set_annotation(REVISION, revision);
        }
        if let Some(history) = history {
            meta.set_annotation(REVISION_HISTORY, history);
        }
        revision::annotate_new(&mut meta, deployment("web").metadata(), next);
        assert_eq!(meta.annotation(REVISION), Some(expected), "{what}");
        if history == Some(&*long) {
            let kept = meta.annotation(REVISION_HISTORY).unwrap();
            assert!(kept.len() <= 2000 && kept.ends_with(",600") && !kept.starts_with("100,"));
        } else {
            assert_eq!(
                meta.annotation(REVISION_HISTORY),
                expected_history,
                "{what}"
            );
        }
    }
}

#[test]
fn annotations_are_copied_except_those_of_one_object_alone() {
    let web = deployment("web")
        .annotation("kubernetes.io/change-cause", "edit")
        .annotation("team", "shop")
        .annotation("kubectl.kubernetes.io/last-applied-configuration", "{}")
        .annotation(REVISION, "7")
        .annotation(REVISION_HISTORY, "1")
        .annotation(DESIRED_REPLICAS, "9")
        .annotation(MAX_REPLICAS, "9")
        .annotation(ROLLBACK_TO, "1");
    let mut meta = set("new", 1).annotation("kept", "yes").metadata().clone();
    revision::annotate_new(&mut meta, web.metadata(), 2);
    let all: Vec<String> = meta
        .annotations
        .iter()
        .map(|entry| format!("{}={}", entry.key, entry.value))
        .collect();
    assert_eq!(
        all,
        [
            "deployment.kubernetes.io/revision=2",
            "kept=yes",
            "kubernetes.io/change-cause=edit",
            "team=shop"
        ]
    );
}

#[test]
fn the_last_revision_is_the_highest_but_one() {
    for (revisions, highest, last) in [
        (&[][..], 0, 0),
        (&["1"], 1, 0),
        (&["1", "2", "3"], 3, 2),
        (&["3", "1", "2"], 3, 2),
        (&["2", "x", "5"], 5, 2),
        (&["4", "4"], 4, 4),
    ] {
        let sets: Vec<Set> = revisions
            .iter()
            .map(|revision| Set::seen(&Arc::new(set("a", 0).revision(revision))))
            .collect();
        assert_eq!(
            (
                revision::highest(sets.iter()),
                revision::last_but_one(sets.iter())
            ),
            (highest, last),
            "{revisions:?}"
        );
    }
}

#[test]
fn a_changed_annotation_or_min_ready_seconds_reaches_the_new_replica_set_without_a_rollout() {
    let mut world = rolled_out(deployment("web").replicas(2));
    world.change("web", |web: &mut Deployment| {
        web.metadata_mut().set_annotation("team", "shop");
        web.spec.as_mut().unwrap().min_ready_seconds = 5;
    });
    let name = only_set(&world);
    let plan = world.plan::<Deployments>("web");
    let Verb::Patch { patch, .. } = &plan.actions().next().unwrap().verb else {
        panic!()
    };
    assert_eq!(
        *patch,
        json!({"metadata": {"annotations": {"team": "shop"}}, "spec": {"minReadySeconds": 5}})
    );
    assert!(plan.verbs()[0].ends_with(&name));
}

fn rolled_out(deployment: Deployment) -> World {
    let mut world = world().with(deployment);
    world.settle_for(120, REGISTRY);
    world
}

fn only_set(world: &World) -> String {
    let sets = world.all::<ReplicaSet>();
    assert_eq!(sets.len(), 1);
    sets[0].metadata().name.to_string()
}

fn status_patch(plan: &Plan) -> Value {
    plan.actions()
        .find_map(|action| match &action.verb {
            Verb::Patch {
                subresource: "status",
                patch,
                ..
            } => Some(patch.clone()),
            _ => None,
        })
        .unwrap_or(Value::Null)
}

// ---- the first rollout ----

#[test]
fn a_new_deployment_gets_its_replica_set_and_then_reports_it() {
    let plan = world()
        .with(deployment("web").replicas(3))
        .plan::<Deployments>("web");
    assert_eq!(plan.stages.len(), 2);
    let create = &plan.stages[0][0];
    let Verb::Create { body } = &create.verb else {
        panic!("{create}")
    };
    let made = <ReplicaSet as prost::Message>::decode(body.as_slice()).unwrap();
    let meta = made.metadata();
    let hash = meta.label("pod-template-hash").unwrap();
    assert_eq!(meta.name.as_str(), format!("web-{hash}"));
    assert_eq!(meta.annotation(REVISION), Some("1"));
    assert_eq!(meta.annotation(DESIRED_REPLICAS), Some("3"));
    assert_eq!(meta.annotation(MAX_REPLICAS), Some("4"));
    assert_eq!(meta.controller().unwrap().kind, "Deployment");
    let spec = made.spec.as_ref().unwrap();
    assert_eq!(spec.replicas, Some(3));
    let labels = &spec
        .template
        .as_ref()
        .unwrap()
        .metadata
        .as_ref()
        .unwrap()
        .labels;
    assert_eq!(labels, &spec.selector.as_ref().unwrap().match_labels);
    assert_eq!(labels, &meta.labels);
    let announced = create.announcement.as_ref().unwrap();
    assert_eq!(
        announced.success.as_ref().unwrap().message,
        format!("Scaled up replica set web-{hash} from 0 to 3")
    );
    let failure = announced.failure.as_ref().unwrap();
    assert_eq!(&*failure.reason, "ReplicaSetCreateError");
    assert_eq!(
        failure.message,
        format!("Failed to create new replica set \"web-{hash}\": ")
    );
    let patch = status_patch(&plan);
    assert_eq!(patch["metadata"]["annotations"][REVISION], "1");
    assert_eq!(patch["status"]["unavailableReplicas"], 3);
    let conditions: Vec<&str> = patch["status"]["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|condition| condition["reason"].as_str().unwrap())
        .collect();
    assert_eq!(
        conditions,
        ["NewReplicaSetCreated", "MinimumReplicasUnavailable"]
    );
    assert_eq!(plan.counted[0].selector.text().unwrap(), "app=web");
}

#[test]
fn a_rollout_is_reported_as_upstream_reports_it_and_comes_to_rest() {
    let mut world = rolled_out(deployment("web").replicas(2).rolling("0", "1"));
    let first = only_set(&world);
    world.change("web", |web: &mut Deployment| {
        web.spec.as_mut().unwrap().template.as_mut().unwrap().spec = pod_spec_bytes("app:2");
    });
    world.settle_for(60, REGISTRY);
    let second = world
        .all::<ReplicaSet>()
        .iter()
        .map(|set| set.metadata().name.to_string())
        .find(|name| *name != first)
        .unwrap();
    let scalings: Vec<String> = world
        .events()
        .into_iter()
        .filter(|event| event.contains("ScalingReplicaSet"))
        .collect();
    let up = |set: &str, from, to| {
        format!("Normal ScalingReplicaSet Scaled up replica set {set} from {from} to {to}")
    };
    let down = |set: &str, from, to| {
        format!("Normal ScalingReplicaSet Scaled down replica set {set} from {from} to {to}")
    };
    assert_eq!(
        scalings,
        [
            up(&first, 0, 2),
            up(&second, 0, 1),
            down(&first, 2, 1),
            up(&second, 1, 2),
            down(&first, 1, 0),
        ]
    );
    let web = world.get::<Deployment>("web");
    assert_eq!(web.metadata().annotation(REVISION), Some("2"));
    let progressing = condition(web.status.as_ref().unwrap(), "Progressing").unwrap();
    assert_eq!(progressing.reason, "NewReplicaSetAvailable");
    assert_eq!(
        progressing.message,
        format!("ReplicaSet \"{second}\" has successfully progressed.")
    );
    let rest = world.plan::<Deployments>("web");
    assert!(
        rest.is_nothing() && rest.requeue == Requeue::Never,
        "{:?}",
        rest.verbs()
    );
}

#[test]
fn a_template_reaches_replica_set_and_pods_byte_for_byte() {
    // A container, a node and field 4000, which no projection knows.
    let spec = [
        &pod_spec_bytes("app:1")[..],
        &[0x82, 0xfa, 0x01, 0x03],
        b"new",
    ]
    .concat();
    let mut web = deployment("web");
    web.spec.as_mut().unwrap().template.as_mut().unwrap().spec = spec.clone();
    let plan = world().with(web.clone()).plan::<Deployments>("web");
    let Verb::Create { body } = &plan.stages[0][0].verb else {
        panic!()
    };
    let mut made = <ReplicaSet as prost::Message>::decode(body.as_slice()).unwrap();
    assert_eq!(
        made.spec.as_ref().unwrap().template.as_ref().unwrap().spec,
        spec
    );
    made.metadata_mut().uid = "made".into();
    let plan = world()
        .with(made)
        .plan::<crate::replicaset::ReplicaSets>(&plan.stages[0][0].key.name);
    let Verb::Create { body } = &plan.stages[0][0].verb else {
        panic!()
    };
    assert!(body.windows(spec.len()).any(|window| window == spec));
}

// ---- kubectl rollout ----

#[test]
fn kubectl_rollout_undo_takes_the_old_replica_set_up_again_under_a_new_revision() {
    let mut world = rolled_out(deployment("web").replicas(2));
    let first = only_set(&world);
    let template = |image: &'static str| {
        move |web: &mut Deployment| {
            web.spec.as_mut().unwrap().template.as_mut().unwrap().spec = pod_spec_bytes(image);
        }
    };
    world.change("web", template("app:2"));
    world.settle_for(60, REGISTRY);
    // Undo writes the old template, without the hash label, and the old annotations.
    world.change("web", template("app:1"));
    world.settle_for(60, REGISTRY);
    assert_eq!(world.all::<ReplicaSet>().len(), 2, "none is recreated");
    let set = world.get::<ReplicaSet>(&first);
    assert_eq!(set.spec.as_ref().unwrap().replicas, Some(2));
    assert_eq!(set.metadata().annotation(REVISION), Some("3"));
    assert_eq!(set.metadata().annotation(REVISION_HISTORY), Some("1"));
    assert_eq!(
        world
            .get::<Deployment>("web")
            .metadata()
            .annotation(REVISION),
        Some("3")
    );
}

#[test]
fn kubectl_rollout_restart_starts_a_rollout_by_an_annotation_of_the_template() {
    let mut world = rolled_out(deployment("web").replicas(2));
    world.change("web", |web: &mut Deployment| {
        let template = web.spec.as_mut().unwrap().template.as_mut().unwrap();
        template
            .metadata
            .as_mut()
            .unwrap()
            .set_annotation("kubectl.kubernetes.io/restartedAt", "2026-03-02T12:10:00Z");
    });
    world.settle_for(60, REGISTRY);
    assert_eq!(world.all::<ReplicaSet>().len(), 2);
    let pods = world.all::<Pod>();
    assert_eq!(pods.len(), 2);
    assert!(pods.iter().all(|pod| {
        pod.metadata()
            .annotation("kubectl.kubernetes.io/restartedAt")
            .is_some()
    }));
}

#[test]
fn kubectl_rollout_pause_stops_the_rollout_and_resume_continues_it() {
    let mut world = rolled_out(deployment("web").replicas(2));
    world.change("web", |web: &mut Deployment| {
        let spec = web.spec.as_mut().unwrap();
        spec.paused = true;
        spec.template.as_mut().unwrap().spec = pod_spec_bytes("app:2");
    });
    world.settle_for(700, REGISTRY);
    assert_eq!(world.all::<ReplicaSet>().len(), 1, "nothing is rolled out");
    let reason = |world: &World| {
        let web = world.get::<Deployment>("web");
        let condition = condition(web.status.as_ref().unwrap(), "Progressing")
            .unwrap()
            .clone();
        (condition.status, condition.reason, condition.message)
    };
    let text = |status: &str, reason: &str, message: &str| {
        (status.to_owned(), reason.to_owned(), message.to_owned())
    };
    assert_eq!(
        reason(&world),
        text("Unknown", "DeploymentPaused", "Deployment is paused")
    );
    // Scaling continues while it is paused.
    world.change("web", |web: &mut Deployment| {
        web.spec.as_mut().unwrap().replicas = Some(3);
    });
    world.settle_for(60, REGISTRY);
    assert_eq!(world.all::<Pod>().len(), 3);
    world.change("web", |web: &mut Deployment| {
        web.spec.as_mut().unwrap().paused = false;
    });
    let plan = world.plan::<Deployments>("web");
    // The creation of the ReplicaSet is news that comes after the resumption in the same plan.
    assert!(
        status_patch(&plan)["status"]["conditions"]
            .to_string()
            .contains("NewReplicaSetCreated")
    );
    world.settle_for(60, REGISTRY);
    assert_eq!(reason(&world).1, "NewReplicaSetAvailable");
}

#[test]
fn pause_and_resumption_are_reported_unless_there_is_no_deadline_or_it_has_passed() {
    for (what, paused, before, expected) in [
        (
            "paused",
            true,
            Some("NewReplicaSetAvailable"),
            Some("DeploymentPaused"),
        ),
        (
            "paused, nothing reported yet",
            true,
            None,
            Some("DeploymentPaused"),
        ),
        (
            "paused, reported",
            true,
            Some("DeploymentPaused"),
            Some("DeploymentPaused"),
        ),
        (
            "paused after time was up",
            true,
            Some("ProgressDeadlineExceeded"),
            Some("ProgressDeadlineExceeded"),
        ),
        (
            "resumed",
            false,
            Some("DeploymentPaused"),
            Some("DeploymentResumed"),
        ),
        (
            "never paused",
            false,
            Some("ReplicaSetUpdated"),
            Some("ReplicaSetUpdated"),
        ),
    ] {
        let mut web = deployment("web");
        web.spec.as_mut().unwrap().paused = paused;
        if let Some(reason) = before {
            web.status.as_mut().unwrap().conditions = vec![new_condition(
                "Progressing",
                "True",
                reason,
                "",
                at("11:00:00"),
            )];
        }
        let mut with = rollout(web.clone(), None, vec![]);
        with.note_pause();
        let reason = condition(&with.status, "Progressing").map(|condition| &*condition.reason);
        assert_eq!(reason, expected, "{what}");
        let mut without = rollout(web.deadline(i32::MAX), None, vec![]);
        without.note_pause();
        let reason = condition(&without.status, "Progressing").map(|condition| &*condition.reason);
        assert_eq!(reason, before, "{what}, without a deadline");
    }
}

// ---- progress ----

fn progressing(status: &str, reason: &str, time: &str) -> DeploymentCondition {
    new_condition("Progressing", status, reason, "", at(time))
}

#[test]
fn progress_is_estimated_against_the_reported_status() {
    let reported = |replicas, updated, ready, available| DeploymentStatus {
        replicas,
        updated_replicas: updated,
        ready_replicas: ready,
        available_replicas: available,
        ..Default::default()
    };
    for (what, before, after, progressed) in [
        ("more updated", (10, 4, 10, 10), (10, 6, 10, 10), true),
        ("nothing", (10, 4, 4, 4), (10, 4, 4, 4), false),
        ("old ones gone", (10, 4, 4, 4), (8, 4, 4, 4), true),
        ("fewer new ones", (10, 7, 5, 5), (10, 6, 5, 5), false),
        (
            "fewer in all, more new ones",
            (10, 7, 5, 5),
            (8, 8, 5, 5),
            true,
        ),
        ("more ready", (10, 10, 5, 5), (10, 10, 6, 5), true),
        ("more available", (10, 10, 5, 5), (10, 10, 5, 6), true),
    ] {
        let mut web = deployment("web").replicas(10);
        let (replicas, updated, ready, available) = before;
        web.status = Some(reported(replicas, updated, ready, available));
        let rollout = rollout(web, None, vec![]);
        let (replicas, updated, ready, available) = after;
        let status = reported(replicas, updated, ready, available);
        assert_eq!(rollout.has_progressed(&status), progressed, "{what}");
    }
}

#[test]
fn a_rollout_is_complete_when_all_is_updated_available_and_alone() {
    for (what, wanted, replicas, updated, available, observed, complete) in [
        ("not all available", 5, 5, 5, 4, 1, false),
        ("none available", 5, 5, 5, 0, 1, false),
        ("complete", 5, 5, 5, 5, 1, true),
        ("not all updated", 5, 5, 4, 5, 1, false),
        ("old pods left", 5, 6, 5, 5, 1, false),
        ("one that never comes up", 1, 2, 1, 1, 1, false),
        ("nothing wanted", 0, 0, 0, 0, 1, true),
        ("an older generation", 5, 5, 5, 5, 0, false),
    ] {
        let status = DeploymentStatus {
            replicas,
            updated_replicas: updated,
            available_replicas: available,
            observed_generation: observed,
            ..Default::default()
        };
        let rollout = rollout(
            deployment("web").replicas(wanted).generation(1),
            None,
            vec![],
        );
        assert_eq!(rollout.is_complete(Some(&status)), complete, "{what}");
    }
}

#[test]
fn a_rollout_times_out_when_its_deadline_has_passed() {
    for (what, deadline, reason, since, timed_out) in [
        ("no condition yet", 10, None, "11:59:00", false),
        (
            "no deadline",
            i32::MAX,
            Some("ReplicaSetUpdated"),
            "11:00:00",
            false,
        ),
        (
            "11 s of 10",
            10,
            Some("ReplicaSetUpdated"),
            "11:59:49",
            true,
        ),
        (
            "just 10 s of 10",
            10,
            Some("ReplicaSetUpdated"),
            "11:59:50",
            false,
        ),
        (
            "9 s of 10",
            10,
            Some("ReplicaSetUpdated"),
            "11:59:51",
            false,
        ),
        (
            "resumed just now",
            10,
            Some("DeploymentResumed"),
            "11:59:59",
            false,
        ),
        (
            "reported already",
            10,
            Some("ProgressDeadlineExceeded"),
            "11:59:59",
            true,
        ),
        (
            "the last rollout went well",
            10,
            Some("NewReplicaSetAvailable"),
            "10:00:00",
            false,
        ),
    ] {
        let mut status = DeploymentStatus::default();
        if let Some(reason) = reason {
            status.conditions = vec![progressing("True", reason, since)];
        }
        let rollout = rollout(deployment("web").deadline(deadline), None, vec![]);
        assert_eq!(rollout.has_timed_out(&status), timed_out, "{what}");
    }
}

#[test]
fn a_stuck_rollout_is_requeued_for_its_deadline() {
    for (what, deadline, reason, since, again) in [
        (
            "no deadline",
            i32::MAX,
            Some("ReplicaSetUpdated"),
            "11:59:50",
            None,
        ),
        ("nothing reported", 60, None, "11:59:50", None),
        (
            "30 s left",
            60,
            Some("ReplicaSetUpdated"),
            "11:59:30",
            Some("12:00:31"),
        ),
        (
            "1 s left",
            60,
            Some("ReplicaSetUpdated"),
            "11:59:01",
            Some("12:00:02"),
        ),
        (
            "over this moment",
            60,
            Some("ReplicaSetUpdated"),
            "11:59:00",
            Some("12:00:01"),
        ),
        (
            "timed out",
            60,
            Some("ProgressDeadlineExceeded"),
            "11:59:30",
            None,
        ),
        (
            "through",
            60,
            Some("NewReplicaSetAvailable"),
            "11:59:30",
            None,
        ),
    ] {
        let mut status = DeploymentStatus::default();
        if let Some(reason) = reason {
            status.conditions = vec![progressing("True", reason, since)];
        }
        let rollout = rollout(deployment("web").deadline(deadline), None, vec![]);
        let mut plan = Plan::nothing();
        rollout.requeue_at_deadline(&mut plan, &status);
        let expected = again.map_or(Requeue::Never, |time| Requeue::At(at(time)));
        assert_eq!(plan.requeue, expected, "{what}");
    }
}

#[test]
fn the_condition_progressing_follows_the_rollout() {
    struct Case {
        what: &'static str,
        before: Option<DeploymentCondition>,
        replicas: i32,
        status: (i32, i32),
        expected: Option<(&'static str, &'static str, &'static str)>,
    }
    let case = |what, before, replicas, status, expected| Case {
        what,
        before,
        replicas,
        status,
        expected,
    };
    for Case {
        what,
        before,
        replicas,
        status,
        expected,
    } in [
        case(
            "progress, first report",
            None,
            3,
            (1, 0),
            Some(("True", "ReplicaSetUpdated", NOW)),
        ),
        case(
            "progress, reported before: the transition stays",
            Some(progressing("True", "ReplicaSetUpdated", "11:59:00")),
            3,
            (1, 0),
            Some(("True", "ReplicaSetUpdated", "11:59:00")),
        ),
        case(
            "progress after a failure",
            Some(progressing("False", "ProgressDeadlineExceeded", "11:00:00")),
            3,
            (1, 0),
            Some(("True", "ReplicaSetUpdated", NOW)),
        ),
        case(
            "complete, first report",
            None,
            1,
            (1, 1),
            Some(("True", "NewReplicaSetAvailable", NOW)),
        ),
        case(
            "complete after progress: the transition stays",
            Some(progressing("True", "ReplicaSetUpdated", "11:59:00")),
            1,
            (1, 1),
            Some(("True", "NewReplicaSetAvailable", "11:59:00")),
        ),
        case(
            "complete after a failure",
            Some(progressing("False", "ProgressDeadlineExceeded", "11:59:00")),
            1,
            (1, 1),
            Some(("True", "NewReplicaSetAvailable", NOW)),
        ),
        case(
            "time is up",
            Some(progressing("True", "ReplicaSetUpdated", "11:00:00")),
            3,
            (0, 0),
            Some(("False", "ProgressDeadlineExceeded", NOW)),
        ),
        case(
            "time was up",
            Some(progressing("False", "ProgressDeadlineExceeded", "11:00:00")),
            3,
            (0, 0),
            Some(("False", "ProgressDeadlineExceeded", "11:00:00")),
        ),
        case(
            "through, and a pod falls ill",
            Some(progressing("True", "NewReplicaSetAvailable", "11:00:00")),
            3,
            (3, 2),
            Some(("True", "NewReplicaSetAvailable", "11:00:00")),
        ),
    ] {
        let mut web = deployment("web").replicas(replicas);
        web.status.as_mut().unwrap().conditions.extend(before);
        let new = set("new", replicas).status(status.0, status.1, status.1);
        let rollout = rollout(web, Some(new), vec![]);
        let status = rollout.rollout_status();
        let got = condition(&status, "Progressing").map(|condition| {
            (
                &*condition.status,
                &*condition.reason,
                condition.last_transition_time.unwrap(),
            )
        });
        let expected = expected.map(|(status, reason, time)| (status, reason, at(time).into()));
        assert_eq!(got, expected, "{what}");
    }
}

#[test]
fn without_a_deadline_progress_is_not_reported() {
    let mut web = deployment("web").deadline(i32::MAX);
    web.status.as_mut().unwrap().conditions =
        vec![progressing("True", "ReplicaSetUpdated", "11:00:00")];
    let status = rollout(web, Some(set("new", 1)), vec![]).rollout_status();
    assert!(condition(&status, "Progressing").is_none());
    assert!(condition(&status, "Available").is_some());
}

#[test]
fn a_stuck_rollout_fails_by_time_alone() {
    let mut world = world()
        .without_kubelets()
        .with(deployment("web").deadline(60));
    world.settle_for(59, REGISTRY);
    let reason = |world: &World| {
        let web = world.get::<Deployment>("web");
        condition(web.status.as_ref().unwrap(), "Progressing")
            .unwrap()
            .clone()
    };
    assert_ne!(reason(&world).reason, "ProgressDeadlineExceeded");
    world.settle_for(30, REGISTRY);
    let failed = reason(&world);
    assert_eq!(
        (&*failed.status, &*failed.reason),
        ("False", "ProgressDeadlineExceeded")
    );
    assert_eq!(
        failed.message,
        format!(
            "ReplicaSet {:?} has timed out progressing.",
            only_set(&world)
        )
    );
}

#[test]
fn conditions_change_only_with_status_or_reason() {
    let first = new_condition("A", "True", "X", "one", at("11:00:00"));
    for (what, next, kept, transition) in [
        (
            "the same",
            new_condition("A", "True", "X", "two", at(NOW)),
            true,
            "11:00:00",
        ),
        (
            "another reason",
            new_condition("A", "True", "Y", "two", at(NOW)),
            false,
            "11:00:00",
        ),
        (
            "another status",
            new_condition("A", "False", "X", "two", at(NOW)),
            false,
            NOW,
        ),
    ] {
        let mut conditions = vec![first.clone()];
        set_condition(&mut conditions, next);
        assert_eq!(conditions.len(), 1);
        assert_eq!(conditions[0] == first, kept, "{what}");
        assert_eq!(
            conditions[0].last_transition_time,
            Some(at(transition).into()),
            "{what}"
        );
    }
}

// ---- status ----

#[test]
fn availability_follows_from_the_minimum_of_available_pods() {
    for (available, expected) in [(10, "True"), (8, "True"), (7, "False"), (0, "False")] {
        let rollout = rollout(
            deployment("web").replicas(10).rolling("2", "0"),
            Some(set("new", 10).available(available)),
            vec![],
        );
        let status = rollout.counted_status();
        assert_eq!(
            condition(&status, "Available").unwrap().status,
            expected,
            "{available}"
        );
        assert_eq!(status.unavailable_replicas, 10 - available);
    }
}

#[test]
fn the_status_adds_up_all_replica_sets() {
    let rollout = rollout(
        deployment("web").replicas(5).generation(7),
        Some(set("new", 2).status(2, 1, 0)),
        vec![set("old", 4).status(5, 4, 4)],
    );
    let status = rollout.counted_status();
    assert_eq!(
        (
            status.observed_generation,
            status.replicas,
            status.updated_replicas,
            status.ready_replicas,
            status.available_replicas,
            status.unavailable_replicas,
            status.terminating_replicas
        ),
        (7, 7, 2, 5, 4, 2, Some(0))
    );
}

#[test]
fn terminating_pods_are_unknown_while_a_replica_set_does_not_report_them() {
    let telling = |count| {
        let mut set = set("a", 1);
        set.status.as_mut().unwrap().terminating_replicas = count;
        set
    };
    let fresh = replica_set("fresh");
    for (sets, expected) in [
        (vec![telling(Some(2)), telling(Some(3))], Some(5)),
        (vec![telling(Some(2)), fresh], Some(2)),
        (vec![telling(Some(2)), telling(None)], None),
        (vec![], Some(0)),
    ] {
        let status = rollout(deployment("web"), None, sets).counted_status();
        assert_eq!(status.terminating_replicas, expected);
    }
}

#[test]
fn the_status_counts_terminating_pods_where_the_gate_is_on() {
    let world = rolled_out(deployment("web").replicas(2));
    for (on, expected) in [
        (true, Value::Null),
        (false, json!({"terminatingReplicas": null})),
    ] {
        let world = world
            .clone()
            .flag(TERMINATING_REPLICAS, FlagValue::Bool(on));
        let patch = status_patch(&world.plan::<Deployments>("web"));
        assert_eq!(patch["status"], expected, "gate {on}");
    }
}

#[test]
fn unavailable_pods_are_counted_by_the_sizes_before_scaling() {
    let mut world = rolled_out(deployment("web").replicas(1));
    world.change("web", |deployment: &mut Deployment| {
        deployment.spec.as_mut().unwrap().replicas = Some(4);
    });
    let plan = world.plan::<Deployments>("web");
    assert!(
        plan.verbs()
            .iter()
            .any(|verb| verb.starts_with("patch replicasets/"))
    );
    let patch = status_patch(&plan);
    assert_eq!(
        patch["status"]["unavailableReplicas"],
        Value::Null,
        "{patch}"
    );
    world.apply(&plan).expect_success();
    let patch = status_patch(&world.plan::<Deployments>("web"));
    assert_eq!(patch["status"]["unavailableReplicas"], json!(3), "{patch}");
}

#[test]
fn a_replica_sets_failure_is_reported_the_new_ones_first() {
    for (new, old, expected) in [
        (
            set("new", 1).failing("FailedCreate"),
            set("old", 1).failing("FailedDelete"),
            Some("FailedCreate"),
        ),
        (
            set("new", 1),
            set("old", 1).failing("FailedDelete"),
            Some("FailedDelete"),
        ),
        (set("new", 1), set("old", 1), None),
    ] {
        let status = rollout(deployment("web"), Some(new), vec![old]).rollout_status();
        let failure = condition(&status, "ReplicaFailure").map(|condition| &*condition.reason);
        assert_eq!(failure, expected);
    }
}

#[test]
fn a_deployment_that_is_being_deleted_only_reports() {
    let web = deployment("web")
        .replicas(5)
        .finalizer("foregroundDeletion")
        .terminating("11:59:00");
    let world = world()
        .with(web.clone())
        .with(set("old", 2).of(&web).image("app:0"))
        .with(replica_set("orphan").label("app", "web"));
    assert_eq!(
        world.plan::<Deployments>("web").verbs(),
        ["patch deployments/web/status"]
    );
}

#[test]
fn a_deployment_that_selects_everything_is_refused_once() {
    let mut web = deployment("web").generation(3);
    web.spec.as_mut().unwrap().selector = Some(LabelSelector::default());
    let mut world = world().with(web);
    let plan = world.plan::<Deployments>("web");
    assert_eq!(plan.verbs(), ["patch deployments/web/status"]);
    assert_eq!(
        status_patch(&plan),
        json!({"status": {"observedGeneration": 3}})
    );
    world.apply(&plan).expect_success();
    assert_eq!(
        world.events(),
        [
            "Warning SelectingAll This deployment is selecting all pods. A non-empty selector is required."
        ]
    );
    assert!(world.plan::<Deployments>("web").is_nothing());
}

#[test]
fn an_invalid_selector_or_strategy_is_refused_by_name() {
    let mut selector = deployment("web");
    selector
        .spec
        .as_mut()
        .unwrap()
        .selector
        .as_mut()
        .unwrap()
        .match_expressions = vec![kubernetes_proto::meta::LabelSelectorRequirement {
        key: "a".into(),
        operator: "Near".into(),
        values: vec![],
    }];
    let mut strategy = deployment("web");
    strategy
        .spec
        .as_mut()
        .unwrap()
        .strategy
        .as_mut()
        .unwrap()
        .r#type = "BlueGreen".into();
    for (web, expected) in [
        (
            selector,
            "waits for a change: deployment default/web has invalid label selector: \"Near\" is not a valid label \
             selector operator",
        ),
        (
            strategy,
            "waits for a change: unexpected deployment strategy type: BlueGreen",
        ),
    ] {
        assert_eq!(
            world().with(web).refusal::<Deployments>("web").to_string(),
            expected
        );
    }
    assert!(world().plan::<Deployments>("gone").is_nothing());
}

// ---- adoption ----

#[test]
fn a_matching_orphan_is_adopted_before_anything_else_and_then_used() {
    let web = deployment("web").replicas(2);
    let orphan = set("orphan", 2)
        .selects(&[("app", "web")])
        .label("app", "web");
    let mut world = world().with(web).with(orphan);
    let plan = world.plan::<Deployments>("web");
    assert_eq!(plan.verbs(), ["patch replicasets/orphan"]);
    world.settle_for(60, REGISTRY);
    assert_eq!(
        world.all::<ReplicaSet>().len(),
        1,
        "its template is the Deployment's"
    );
    let set = world.get::<ReplicaSet>("orphan");
    assert_eq!(set.metadata().controller().unwrap().name, "web");
    assert_eq!(set.metadata().annotation(REVISION), Some("1"));
}

#[test]
fn a_replica_set_that_is_not_selected_any_more_is_let_go() {
    let web = deployment("web");
    let strayed = set("strayed", 1).of(&web).label("app", "db");
    let plan = world().with(web).with(strayed).plan::<Deployments>("web");
    let action = plan.actions().next().unwrap();
    assert_eq!(plan.verbs(), ["patch replicasets/strayed"]);
    assert!(
        matches!(&action.verb, Verb::Patch { kind: PatchKind::Strategic, patch, .. }
        if patch["metadata"]["ownerReferences"][0]["$patch"] == "delete")
    );
}

// ---- names that collide ----

#[test]
fn a_foreign_replica_set_of_the_same_name_makes_the_deployment_count_a_collision() {
    let web = deployment("web");
    let mut world = world().with(web);
    let name = world
        .plan::<Deployments>("web")
        .actions()
        .next()
        .unwrap()
        .key
        .name
        .to_string();
    world.put(replica_set(&name).label("app", "other"));
    let plan = world.plan::<Deployments>("web");
    assert_eq!(plan.verbs(), ["patch deployments/web/status"]);
    assert_eq!(
        status_patch(&plan),
        json!({"status": {"collisionCount": 1}})
    );
    world.settle_for(60, REGISTRY);
    let names: Vec<String> = world
        .all::<ReplicaSet>()
        .iter()
        .filter(|set| set.metadata().controller().is_some())
        .map(|set| set.metadata().name.to_string())
        .collect();
    assert_eq!(names.len(), 1);
    assert_ne!(names[0], name);
    assert_eq!(
        world
            .get::<Deployment>("web")
            .status
            .as_ref()
            .unwrap()
            .collision_count,
        Some(1)
    );
}

#[test]
fn a_change_of_progress_is_always_written() {
    let mut world = rolled_out(deployment("web").replicas(1));
    let set = only_set(&world);
    world.vanish::<ReplicaSet>(&set);
    let plan = world.plan::<Deployments>("web");
    let written = status_patch(&plan);
    assert!(
        written.to_string().contains("NewReplicaSetCreated"),
        "{written}"
    );
    let is_report = |plan: &Plan| {
        plan.actions().find_map(|action| match action.verb {
            Verb::Patch { report, .. } => Some(report),
            _ => None,
        })
    };
    assert_eq!(is_report(&plan), Some(StatusWrite::No));
    let report = |change: fn(&mut ReplicaSetStatus)| {
        let mut world = rolled_out(deployment("web").replicas(2));
        let set = only_set(&world);
        world.change::<ReplicaSet>(&set, |set| change(set.status.as_mut().unwrap()));
        is_report(&world.plan::<Deployments>("web"))
    };
    // The reported status is no longer true.
    assert_eq!(report(|set| set.ready_replicas = 1), Some(StatusWrite::No));
    assert_eq!(report(|set| set.replicas = 1), Some(StatusWrite::No));
    assert_eq!(
        report(|set| set.available_replicas = 1),
        Some(StatusWrite::No)
    );
    // More is to come.
    assert_eq!(report(|set| set.replicas = 3), Some(StatusWrite::Progress));
}

#[test]
fn the_hash_follows_from_template_and_collisions_alone() {
    let hash = template::hash(&deployment("web"), None);
    assert_eq!(hash, template::hash(&deployment("web").replicas(9), None));
    assert_eq!(
        hash,
        template::hash(&deployment("other").selects(&[("app", "web")]), None)
    );
    assert_ne!(
        hash,
        template::hash(&deployment("web").image("app:2"), None)
    );
    assert_ne!(hash, template::hash(&deployment("web"), Some(0)));
    assert_ne!(
        template::hash(&deployment("web"), Some(0)),
        template::hash(&deployment("web"), Some(1))
    );
    assert_eq!(
        hash, "bf8cb6977",
        "golden: a change of it changes the names of new ReplicaSets"
    );
}

// ---- a creation that fails ----

fn failed(plan: &Plan, failure: &Failure, memory: &mut Memory) {
    let deployments = DEPLOYMENTS;
    for action in plan.actions() {
        let result = match action.verb.name() {
            "create" => Err(failure),
            _ => Err(&Failure::Skipped),
        };
        controllers_kit::Controller::learn(&deployments, &Outcome { action, result }, memory);
    }
}

#[test]
fn a_failed_creation_is_reported_once_and_retried() {
    let mut world = world().with(deployment("web"));
    let mut memory = Memory::default();
    let plan = world.plan_with::<Deployments>("web", &mut memory).unwrap();
    failed(
        &plan,
        &Failure::Forbidden("exceeded quota".into()),
        &mut memory,
    );
    let report = world.plan_with::<Deployments>("web", &mut memory).unwrap();
    assert_eq!(report.verbs(), ["patch deployments/web/status"]);
    assert_eq!(report.requeue, Requeue::Now);
    let condition = &status_patch(&report)["status"]["conditions"][0];
    assert_eq!(
        (condition["status"].as_str(), condition["reason"].as_str()),
        (Some("False"), Some("ReplicaSetCreateError"))
    );
    let name = plan.actions().next().unwrap().key.name.clone();
    assert_eq!(
        condition["message"],
        format!("Failed to create new replica set {name:?}: exceeded quota")
    );
    world.apply(&report).expect_success();
    let again = world.plan_with::<Deployments>("web", &mut memory).unwrap();
    assert!(again.verbs()[0].starts_with("create replicasets/web-"));
    failed(
        &again,
        &Failure::Forbidden("exceeded quota".into()),
        &mut memory,
    );
    let again = world.plan_with::<Deployments>("web", &mut memory).unwrap();
    assert!(
        again.verbs()[0].starts_with("create"),
        "a reported failure is not reported again"
    );
    let action = again.actions().next().unwrap();
    let outcome = Outcome {
        action,
        result: Ok(Written::default()),
    };
    controllers_kit::Controller::learn(&DEPLOYMENTS, &outcome, &mut memory);
    assert_eq!(memory, Memory::default());
}

#[test]
fn failures_that_settle_themselves_are_not_reported() {
    for failure in [
        Failure::AlreadyExists(String::new()),
        Failure::Conflict(String::new()),
        Failure::NamespaceTerminating(String::new()),
        Failure::Fenced,
        Failure::Skipped,
    ] {
        let mut memory = Memory::default();
        let plan = world().with(deployment("web")).plan::<Deployments>("web");
        failed(&plan, &failure, &mut memory);
        assert_eq!(memory, Memory::default(), "{failure:?}");
    }
}

#[test]
fn without_a_deadline_a_failed_creation_is_only_tried_again() {
    let world = world().with(deployment("web").deadline(i32::MAX));
    let mut memory = Memory::default();
    let plan = world.plan_with::<Deployments>("web", &mut memory).unwrap();
    failed(&plan, &Failure::Other("boom".into()), &mut memory);
    let plan = world.plan_with::<Deployments>("web", &mut memory).unwrap();
    assert!(plan.verbs()[0].starts_with("create"));
}

// ---- templates that are encoded differently ----

/// `app:1` with an empty field 4001 more: other bytes that say the same, as another server's version might
/// write them.
fn other_encoding() -> Vec<u8> {
    [&pod_spec_bytes("app:1")[..], &[0x8a, 0xfa, 0x01, 0x00]].concat()
}

fn asked(
    world: &World,
    live_spec: &Value,
    set_spec: &Value,
    memory: &mut Memory,
) -> (usize, Result<Plan, Refusal>) {
    use controllers_kit::Controller;
    let key = Key::new("default", "web");
    let reader = world.with_indexes_of::<Deployments>();
    let none = Answers::new();
    let queries = DEPLOYMENTS.ask(&key, &Snapshot::new(&reader, &none, world.now()), memory);
    let answers: Answers = queries
        .iter()
        .map(|query| {
            let Query::Live { resource, key } = query else {
                panic!("{query:?} is not asked here")
            };
            let (meta, spec) = match resource.kind {
                "Deployment" => (world.get::<Deployment>(&key.name).metadata().clone(), live_spec),
                _ => (world.get::<ReplicaSet>(&key.name).metadata().clone(), set_spec),
            };
            let mut labels = json!({"app": "web"});
            if resource.kind == "ReplicaSet" {
                labels["pod-template-hash"] = "abc".into();
            }
            let live = json!({
                "metadata": {"uid": meta.uid, "generation": meta.generation},
                "spec": {"template": {"metadata": {"creationTimestamp": null, "labels": labels}, "spec": spec}},
            });
            (query.clone(), Answer::Object(Arc::new(live)))
        })
        .collect();
    let plan = DEPLOYMENTS.plan(&key, &Snapshot::new(&reader, &answers, world.now()), memory);
    (queries.len(), plan)
}

fn encoded_differently() -> World {
    let web = deployment("web").replicas(2);
    let mut old = set("web-abc", 2).of(&web).revision("1").noted(2, 3);
    old.spec.as_mut().unwrap().template.as_mut().unwrap().spec = other_encoding();
    world().with(web).with(old)
}

#[test]
fn no_rollout_starts_on_an_encoding_difference_and_it_is_asked_once() {
    let world = encoded_differently();
    let mut memory = Memory::default();
    let (queries, plan) = asked(&world, &json!({"x": 1}), &json!({"x": 1}), &mut memory);
    assert_eq!(queries, 2, "the Deployment and the ReplicaSet");
    assert_eq!(plan.unwrap().verbs(), ["patch deployments/web/status"]);
    assert!(memory.verdicts[0].equal);
    let (queries, plan) = asked(&world, &Value::Null, &Value::Null, &mut memory);
    assert_eq!(queries, 0, "memory knows");
    assert_eq!(plan.unwrap().verbs(), ["patch deployments/web/status"]);
}

#[test]
fn a_real_difference_is_rolled_out_after_one_query() {
    let world = encoded_differently();
    let mut memory = Memory::default();
    let (queries, plan) = asked(&world, &json!({"x": 1}), &json!({"x": 2}), &mut memory);
    assert_eq!(queries, 2);
    assert!(
        plan.unwrap()
            .verbs()
            .iter()
            .any(|verb| verb.starts_with("create replicasets"))
    );
    assert!(!memory.verdicts[0].equal);
    assert_eq!(asked(&world, &Value::Null, &Value::Null, &mut memory).0, 0);
}

#[test]
fn a_difference_that_bytes_prove_is_not_asked_about() {
    let web = deployment("web").replicas(2);
    let old = set("web-abc", 2).of(&web).image("app:0");
    let labelled = set("web-def", 0)
        .of(&web)
        .selects(&[("app", "web"), ("v", "0")]);
    let world = world().with(web).with(old).with(labelled);
    assert_eq!(
        asked(&world, &Value::Null, &Value::Null, &mut Memory::default()).0,
        0
    );
}

#[test]
fn a_doubt_that_can_not_be_settled_is_not_guessed() {
    use controllers_kit::Controller;
    let world = encoded_differently();
    let key = Key::new("default", "web");
    let reader = world.with_indexes_of::<Deployments>();
    let none = Answers::new();
    let seen = Snapshot::new(&reader, &none, world.now());
    let queries = DEPLOYMENTS.ask(&key, &seen, &Memory::default());
    let stale = json!({"metadata": {"uid": "another", "generation": 1}});
    for answer in [
        None,
        Some(Answer::Missing),
        Some(Answer::Failed("timeout".into())),
        Some(Answer::Object(Arc::new(stale))),
    ] {
        let answers: Answers = queries
            .iter()
            .filter_map(|query| Some((query.clone(), answer.clone()?)))
            .collect();
        let seen = Snapshot::new(&reader, &answers, world.now());
        let refusal = DEPLOYMENTS
            .plan(&key, &seen, &mut Memory::default())
            .unwrap_err();
        assert!(
            matches!(refusal, Refusal::Retry(_)),
            "{answer:?}: {refusal}"
        );
    }
}

// ---- the deprecated rollback ----

fn two_revisions(rollback_to: &str) -> World {
    let web = deployment("web")
        .replicas(2)
        .image("app:2")
        .annotation("change-cause", "two")
        .annotation("kubectl.kubernetes.io/last-applied-configuration", "{}")
        .annotation(REVISION, "2")
        .annotation(ROLLBACK_TO, rollback_to);
    let mut reported = web.clone();
    reported.status = Some(DeploymentStatus {
        conditions: vec![complete()],
        ..Default::default()
    });
    world()
        .with(
            set("v1", 0)
                .of(&web)
                .revision("1")
                .annotation("change-cause", "one")
                .created("09:00:00"),
        )
        .with(
            set("v2", 2)
                .of(&web)
                .image("app:2")
                .revision("2")
                .annotation("change-cause", "two")
                .noted(2, 3),
        )
        .with(reported)
}

fn complete() -> DeploymentCondition {
    progressing("True", "NewReplicaSetAvailable", "11:00:00")
}

#[test]
fn a_rollback_copies_template_and_annotations_and_clears_its_request() {
    for rollback_to in ["1", "0"] {
        let mut world = two_revisions(rollback_to);
        let plan = world.plan::<Deployments>("web");
        assert_eq!(plan.verbs(), ["patch deployments/web"]);
        let Verb::Patch {
            patch, subresource, ..
        } = &plan.actions().next().unwrap().verb
        else {
            panic!()
        };
        assert_eq!(*subresource, "");
        assert_eq!(
            patch["metadata"],
            json!({"annotations": {"change-cause": "one", ROLLBACK_TO: null}})
        );
        assert_eq!(
            patch["spec"]["template"]["spec"],
            serde_json::to_value(PodTemplateSpec {
                spec: pod_spec_bytes("app:1"),
                ..Default::default()
            })
            .unwrap()["spec"]
        );
        assert!(
            patch["spec"]["template"].get("metadata").is_none(),
            "labels are the same but for the hash"
        );
        world.apply(&plan).expect_success();
        assert_eq!(
            world.events(),
            ["Normal DeploymentRollback Rolled back deployment \"web\" to revision 1"]
        );
        world.settle_for(60, REGISTRY);
        assert_eq!(
            world
                .get::<ReplicaSet>("v1")
                .metadata()
                .annotation(REVISION),
            Some("3")
        );
        assert_eq!(
            world
                .get::<ReplicaSet>("v1")
                .spec
                .as_ref()
                .unwrap()
                .replicas,
            Some(2)
        );
    }
}

#[test]
fn a_rollback_that_goes_nowhere_says_so_and_clears_its_request() {
    for (what, world, event) in [
        (
            "to the present template",
            two_revisions("2"),
            "Warning DeploymentRollbackTemplateUnchanged The rollback revision contains the same template as current \
             deployment \"web\"",
        ),
        (
            "to no known revision",
            two_revisions("7"),
            "Warning DeploymentRollbackRevisionNotFound Unable to find the revision to rollback to.",
        ),
        (
            "to the last one where there is none",
            {
                let mut world = two_revisions("0");
                world.vanish::<ReplicaSet>("v1");
                world.vanish::<ReplicaSet>("v2");
                world.change("web", |web: &mut Deployment| {
                    web.metadata_mut()
                        .annotations
                        .retain(|entry| entry.key != *REVISION);
                });
                let create = world.plan::<Deployments>("web");
                assert!(
                    create.verbs()[0].starts_with("create"),
                    "the present template gets into the history first"
                );
                world.apply(&create).expect_success();
                world
            },
            "Warning DeploymentRollbackRevisionNotFound Unable to find last revision.",
        ),
    ] {
        let mut world = world;
        let plan = world.plan::<Deployments>("web");
        assert_eq!(plan.verbs(), ["patch deployments/web"], "{what}");
        let Verb::Patch { patch, .. } = &plan.actions().next().unwrap().verb else {
            panic!()
        };
        assert_eq!(
            *patch,
            json!({"metadata": {"annotations": {ROLLBACK_TO: null}}}),
            "{what}"
        );
        world.apply(&plan).expect_success();
        assert!(
            world.events().contains(&event.to_owned()),
            "{what}: {:?}",
            world.events()
        );
    }
}

#[test]
fn a_request_that_is_no_number_asks_for_nothing() {
    for text in ["", "x"] {
        let plan = two_revisions(text).plan::<Deployments>("web");
        assert!(
            !plan.verbs().contains(&"patch deployments/web".to_owned()),
            "{text:?}"
        );
    }
}

#[test]
fn the_descriptor_names_what_upstream_names() {
    use controllers_kit::Controller;
    let descriptor = Deployments::describe();
    assert_eq!(descriptor.name, "deployment-controller");
    assert_eq!(descriptor.aliases, ["deployment"]);
    assert_eq!(descriptor.workers, Some(("concurrent-deployment-syncs", 5)));
}
