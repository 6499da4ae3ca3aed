use serde_json::{Value, json};

use super::compare::{is_like, outcomes};
use super::normal::Normal;
use super::run::{Outcome, Snapshot, fact};
use super::scenario::{filled, parse};
use super::writes::Verb;
use super::{expected, scenario};

const UID: &str = "0b1f4a3e-95a2-4d0c-8a3b-6a3f6c1d2e3f";

fn replica_set(hash: &str, uid: &str) -> Value {
    json!({
        "kind": "ReplicaSet",
        "metadata": {
            "name": format!("web-{hash}"),
            "uid": uid,
            "labels": {"pod-template-hash": hash},
            "ownerReferences": [{"kind": "Deployment", "name": "web", "controller": true}],
        },
    })
}

fn pod(prefix: &str, chance: &str, owner: &str) -> Value {
    json!({
        "kind": "Pod",
        "metadata": {
            "name": format!("{prefix}{chance}"),
            "generateName": prefix,
            "uid": UID,
            "ownerReferences": [{"kind": owner, "name": prefix.trim_end_matches('-'), "controller": true}],
        },
    })
}

fn normal(objects: &[Value]) -> Normal {
    let mut normal = Normal::default();
    for object in objects {
        normal.learn(object);
    }
    normal
}

#[test]
fn names_are_evened_by_what_their_owners_had_made() {
    let normal = normal(&[
        replica_set("5d9c7b8f6", "00000000-0000-4000-8000-000000000001"),
        replica_set("77c4bb69d", "00000000-0000-4000-8000-000000000002"),
        pod("web-77c4bb69d-", "x2z4q", "ReplicaSet"),
        json!({"kind": "ResourceClaim", "metadata": {
            "name": "web-77c4bb69d-x2z4q-gpu-b9c8d",
            "generateName": "web-77c4bb69d-x2z4q-gpu-",
            "ownerReferences": [{"kind": "Pod", "name": "web-77c4bb69d-x2z4q", "controller": true}],
        }}),
    ]);
    for (text, even) in [
        ("web-5d9c7b8f6", "web-<template 1>"),
        (
            "web-77c4bb69d-x2z4q-gpu-b9c8d",
            "web-<template 2>-<random>-gpu-<random>",
        ),
        ("web-77c4bb69d-x2z4q-gpu-", "web-<template 2>-<random>-gpu-"),
        (
            "Created pod: web-77c4bb69d-x2z4q",
            "Created pod: web-<template 2>-<random>",
        ),
        ("web-77c4bb69d-other", "web-<template 2>-other"),
        ("web-77c4bb69d-zz9zz", "web-<template 2>-<random>"),
        ("77c4bb69d", "<template 2>"),
        ("web-77c4bb69d-x2z4q.", "web-<template 2>-<random>."),
        ("web", "web"),
        (UID, "<uid of Pod web-<template 2>-<random>>"),
        (
            "k:{\"uid\":\"00000000-0000-4000-8000-000000000002\"}",
            "k:{\"uid\":\"<uid of ReplicaSet web-<template 2>>\"}",
        ),
        ("00000000-0000-4000-8000-00000000000f", "<unknown uid>"),
    ] {
        assert_eq!(normal.text(text, false), even, "{text}");
    }
}

#[test]
fn a_statefulsets_pods_and_revisions_are_distinguished() {
    let revision = json!({"kind": "ControllerRevision", "metadata": {
        "name": "db-6c5f8d7b9", "uid": "00000000-0000-4000-8000-000000000001",
        "ownerReferences": [{"kind": "StatefulSet", "name": "db", "controller": true}]}});
    let normal = normal(&[revision, pod("db-", "0", "StatefulSet")]);
    assert_eq!(normal.text("db-6c5f8d7b9", false), "db-<revision 1>");
    assert_eq!(normal.text("db-0", false), "db-0");
    assert_eq!(normal.text(UID, false), "<uid of Pod db-0>");
}

#[test]
fn times_addresses_and_nodes_are_evened_and_figures_are_not() {
    let normal = Normal::default();
    for (text, even) in [
        ("2026-11-20T16:57:46Z", "<time>"),
        ("2026-11-20T16:57:46.123456Z", "<time>"),
        (
            "missed Fri, 20 Nov 2026 16:57:00 +0000 by far",
            "missed <time> by far",
        ),
        ("10.244.0.17", "<ip>"),
        ("kube-api-access-x7k2p", "kube-api-access-<random>"),
        ("node-3", "<node>"),
        ("node-own-3", "node-own-3"),
        ("1.2", "1.2"),
        ("example/app:1", "example/app:1"),
        ("0-2,7", "0-2,7"),
        ("50%", "50%"),
        ("", ""),
        ("…", "…"),
    ] {
        assert_eq!(normal.text(text, false), even, "{text}");
    }
    assert_eq!(normal.text("node-3", true), "node-3");
}

#[test]
fn no_field_is_lost_and_numbers_stay() {
    let object = json!({
        "kind": "Job",
        "metadata": {"resourceVersion": "12", "generation": 3, "finalizers": ["a/b"],
            "managedFields": [{"manager": "z"}, {"manager": "b", "time": "2026-11-20T16:57:46Z"}]},
        "status": {"failed": 2, "ready": 0, "conditions": [], "startTime": "2026-11-20T16:57:46Z", "gone": null,
            "active": [{"resourceVersion": "7"}]},
    });
    let even = Normal::default().object(&object);
    assert_eq!(
        even,
        json!({
            "kind": "Job",
            "metadata": {"resourceVersion": "<version>", "generation": 3, "finalizers": ["a/b"],
                "managedFields": [{"manager": "b", "time": "<time>"}, {"manager": "z"}]},
            "status": {"failed": 2, "ready": 0, "conditions": [], "startTime": "<time>", "gone": null,
                "active": [{"resourceVersion": "<version>"}]},
        })
    );
}

fn outcome(objects: &[(&str, Value)]) -> Outcome {
    let mut snapshot = Snapshot {
        name: "the end".to_owned(),
        ..Snapshot::default()
    };
    for (key, value) in objects {
        snapshot
            .objects
            .entry((*key).to_owned())
            .or_default()
            .push(value.clone());
    }
    Outcome {
        snapshots: vec![snapshot],
        failed: None,
    }
}

fn differences(theirs: &Outcome, ours: &Outcome) -> Vec<String> {
    outcomes("s", theirs, ours)
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn what_is_equal_in_another_order_does_not_differ() {
    let (one, two) = (json!({"node": 1}), json!({"node": 2}));
    let theirs = outcome(&[("Pod a", one.clone()), ("Pod a", two.clone())]);
    let ours = outcome(&[("Pod a", two), ("Pod a", one)]);
    assert_eq!(differences(&theirs, &ours), Vec::<String>::new());
}

#[test]
fn every_kind_of_difference_is_reported() {
    let theirs = outcome(&[
        (
            "Job pi",
            json!({"status": {"failed": 1, "conditions": [{"type": "Failed"}]}, "spec": {}}),
        ),
        ("Pod a", json!({"n": 1})),
        ("Pod a", json!({"n": 2})),
    ]);
    let mut ours = outcome(&[
        (
            "Job pi",
            json!({"status": {"failed": 2, "conditions": []}, "extra": true}),
        ),
        ("Pod a", json!({"n": 1})),
        ("Pod b", json!({})),
    ]);
    let snapshot = &mut ours.snapshots[0];
    snapshot.events.insert("Normal Scaled".to_owned(), "one");
    snapshot
        .course
        .writes
        .insert(("pods".to_owned(), Verb::Create), 1);
    assert_eq!(
        differences(&theirs, &ours),
        [
            "s (the end): Job pi /extra: theirs nothing, ours true",
            "s (the end): Job pi /spec: theirs {}, ours nothing",
            "s (the end): Job pi /status/conditions: theirs [{\"type\":\"Failed\"}], ours []",
            "s (the end): Job pi /status/failed: theirs 1, ours 2",
            "s (the end): Pod a : theirs {\"n\":2}, ours nothing",
            "s (the end): Pod b : theirs nothing, ours {}",
            "s (the end): event Normal Scaled: theirs nothing, ours one",
            "s (the end): writes Create pods: theirs 0, ours 1",
        ]
    );
    let failed = Outcome {
        failed: Some("no pod".to_owned()),
        ..outcome(&[])
    };
    assert_eq!(differences(&failed, &failed).len(), 1, "nothing was shown");
}

#[test]
fn writes_are_judged_by_the_rule() {
    for (verb, theirs, ours, like) in [
        (Verb::Create, 3, 3, true),
        (Verb::Create, 3, 2, false),
        (Verb::Delete, 0, 1, false),
        (Verb::Change, 10, 1, true),
        (Verb::Change, 10, 18, true),
        (Verb::Change, 10, 19, false),
        (Verb::Change, 0, 4, false),
    ] {
        assert_eq!(
            is_like("pods", verb, theirs, ours),
            like,
            "{verb:?} {theirs} {ours}"
        );
    }
    assert!(is_like("events", Verb::Create, 1, 9));
}

#[test]
fn manifests_are_filled_and_mistakes_are_named() {
    let job = json!({"kind": "Job", "metadata": {"name": "pi"}, "pods": "by-hand",
        "spec": {"completions": 3, "template": {"spec": {"containers": null, "hostNetwork": true}}}});
    let filled_job = filled(&job).unwrap();
    assert_eq!(
        filled_job["spec"],
        json!({"completions": 3, "template": {"metadata": {"labels": {"app": "pi"}},
            "spec": {"restartPolicy": "Never", "nodeName": "by-hand", "hostNetwork": true}}})
    );
    assert_eq!(filled_job["apiVersion"], "batch/v1");
    let set = json!({"kind": "ReplicaSet", "metadata": {"name": "rs"},
        "spec": {"selector": {"matchLabels": {"tier": "x"}}}});
    let set = filled(&set).unwrap();
    assert_eq!(
        set["spec"]["selector"],
        json!({"matchLabels": {"tier": "x"}})
    );
    let bare = filled(&json!({"kind": "DaemonSet", "metadata": {"name": "logs"}})).unwrap();
    assert_eq!(
        bare["spec"]["selector"],
        json!({"matchLabels": {"app": "logs"}})
    );
    let wrong = json!({"kind": "Job", "metadata": {"name": "pi"}, "pods": "by-chance"});
    let error = filled(&wrong).unwrap_err().to_string();
    assert!(
        error.contains("Job pi") && error.contains("by-hand"),
        "{error}"
    );
    let error = parse("- {name: one, steps: [{wait: {for: x}}]}").unwrap_err();
    assert!(format!("{error:#}").contains("scenario one"), "{error:#}");
}

#[test]
fn facts_are_found_by_their_paths() {
    let object = json!({"status": {"ready": 2, "used": {"count/one.example.com": "1"}, "conditions": [
        {"type": "Complete", "status": "True", "reason": "Done"}]}});
    assert_eq!(fact(&object, "status.ready"), 2);
    assert_eq!(fact(&object, "/status/used/count~1one.example.com"), "1");
    assert_eq!(fact(&object, "condition.Complete"), "True");
    assert_eq!(fact(&object, "reason.Complete"), "Done");
    assert_eq!(fact(&object, "condition.Failed"), Value::Null);
    assert_eq!(fact(&object, "status.none.deep"), Value::Null);
}

#[test]
fn the_scenarios_are_well_formed_and_enough() {
    let all = scenario::all().unwrap();
    assert!(all.iter().all(|scenario| !scenario.about.is_empty()));
    assert!(all.iter().any(|scenario| scenario.verify));
    assert!(!scenario::swaps().unwrap().is_empty());
}

#[test]
fn what_is_expected_is_in_the_controllers_readme() {
    let reasons: Vec<&str> = node_registry::descriptors()
        .iter()
        .flat_map(|descriptor| descriptor.differences.clone())
        .collect();
    for expectation in expected::EXPECTED {
        assert!(
            reasons.contains(&expectation.reason),
            "{}: no controller says: {}",
            expectation.name,
            expectation.reason
        );
    }
}

#[test]
fn days_ago_are_times() {
    let now = "2026-11-20T12:00:00Z".parse().unwrap();
    let dated = |value| scenario::dated(&value, now);
    assert_eq!(
        dated(json!({"a": ["ago:2d", "b", 3]})).unwrap(),
        json!({"a": ["2026-11-18T12:00:00Z", "b", 3]})
    );
    let error = dated(json!("ago:soon")).unwrap_err().to_string();
    assert!(error.contains("ago:soon"), "{error}");
}
