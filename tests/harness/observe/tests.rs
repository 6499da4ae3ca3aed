//! The books, fed by hand.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use serde_json::json;

use super::{Ledger, Owners, Probes, Waited};

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

#[test]
fn a_probe_waits_from_its_touch_until_its_generation_is_reported() {
    let start = Instant::now();
    let mut probes = Probes::new(2);
    assert_eq!(probes.touch(start), Some(0));
    assert_eq!(probes.touch(start + ms(10)), Some(1));
    assert_eq!(probes.touch(start + ms(20)), None, "all wait");
    probes.accepted(0, 7);
    probes.observed(0, 6, start + ms(100));
    assert_eq!(
        probes.longest_lasting(start + ms(150)),
        ms(150),
        "an older generation does not count"
    );
    probes.observed(0, 7, start + ms(200));
    assert_eq!(probes.longest_since(start, start + ms(205)), ms(200));

    // Served before the server's answer reached us: it counts from when it was seen.
    probes.observed(1, 3, start + ms(40));
    assert_eq!(probes.longest_lasting(start + ms(300)), ms(290));
    probes.accepted(1, 3);
    assert_eq!(probes.longest_lasting(start + ms(300)), ms(0));
    assert_eq!(probes.ever_served(), 2);

    // Windows: what ended before does not count, what reaches in counts whole, what lasts counts.
    assert_eq!(
        probes.longest_since(start + ms(201), start + ms(300)),
        ms(0)
    );
    assert_eq!(
        probes.longest_since(start + ms(190), start + ms(300)),
        ms(200)
    );
    assert_eq!(probes.touch(start + ms(400)), Some(0));
    assert_eq!(
        probes.longest_since(start + ms(390), start + ms(1400)),
        ms(1000)
    );
    probes.refused(0);
    assert_eq!(
        probes.longest_since(start + ms(390), start + ms(1400)),
        ms(0)
    );
    assert_eq!(probes.touch(start + ms(1500)), Some(1), "in turn");
}

fn pod(uid: &str, set: &str, ready: bool) -> k8s_openapi::api::core::v1::Pod {
    let status = if ready { "True" } else { "False" };
    serde_json::from_value(json!({
        "metadata": {"uid": uid, "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": set, "uid": set, "controller": true},
        ]},
        "status": {"conditions": [{"type": "Ready", "status": status}]},
    }))
    .unwrap()
}

fn replica_set(uid: &str, replicas: i32) -> k8s_openapi::api::apps::v1::ReplicaSet {
    serde_json::from_value(json!({
        "metadata": {"uid": uid},
        "spec": {"replicas": replicas, "selector": {}},
    }))
    .unwrap()
}

#[test]
fn pods_beyond_wanted_are_counted_even_when_they_are_gone_again() {
    let mut ledger = Ledger::default();
    ledger.replica_set(&replica_set("old", 2));
    ledger.pod(&pod("a", "old", true));
    ledger.pod(&pod("b", "old", false));
    ledger.pod(&pod("b", "old", true));
    assert_eq!(
        (ledger.present(), ledger.ready(), ledger.beyond_wanted()),
        (2, 2, 0)
    );

    // A rollout: the old one shrinks, the new one grows, and nothing is too much.
    ledger.replica_set(&replica_set("old", 0));
    ledger.pod_gone(&pod("a", "old", true));
    ledger.pod_gone(&pod("b", "old", true));
    ledger.replica_set(&replica_set("new", 2));
    ledger.pod(&pod("c", "new", true));
    ledger.pod(&pod("d", "new", false));
    assert_eq!(
        (ledger.present(), ledger.ready(), ledger.ever_created()),
        (2, 1, 4)
    );
    assert_eq!(ledger.beyond_wanted(), 0);

    // One too many, deleted at once, and one that no ReplicaSet has asked for.
    ledger.pod_gone(&pod("e", "new", false));
    assert_eq!(ledger.beyond_wanted(), 1);
    ledger.pod(&pod("f", "nobody's", false));
    assert_eq!(ledger.beyond_wanted(), 2);

    // One is evicted, and another takes its place.
    let mut evicted = pod("c", "new", false);
    let disrupted = json!([{"type": "DisruptionTarget", "status": "True"}]);
    let status = json!({"conditions": disrupted});
    evicted.status = serde_json::from_value(status).unwrap();
    ledger.pod(&evicted);
    ledger.pod(&pod("g", "new", true));
    assert_eq!((ledger.evicted(), ledger.beyond_wanted()), (1, 2));

    ledger.pods_again();
    assert_eq!(
        (
            ledger.present(),
            ledger.ever_created(),
            ledger.beyond_wanted()
        ),
        (0, 7, 2)
    );
}

fn lease(name: &str, holder: &str, epoch: i32) -> Lease {
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"holderIdentity": holder, "leaseTransitions": epoch},
    }))
    .unwrap()
}

#[test]
fn ranges_are_spread_when_every_one_has_a_live_owner_and_nobody_has_few_or_many() {
    let members = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let mut owners = Owners::default();
    for (range, holder) in [(0, "a_1"), (1, "b_2"), (2, "a_1")] {
        owners.lease(
            "manifold",
            &lease(&format!("manifold-range-{range:03}"), holder, 1),
        );
    }
    owners.lease("manifold", &lease("manifold-replica-a", "a_1", 0));
    owners.lease("manifold", &lease("other-range-003", "c_1", 0));
    assert!(owners.are_spread_over(3, &members(&["a", "b"])));
    assert!(
        !owners.are_spread_over(4, &members(&["a", "b"])),
        "one range is nobody's"
    );
    assert!(
        !owners.are_spread_over(3, &members(&["a"])),
        "b is gone but owns one"
    );
    assert!(!owners.are_spread_over(3, &members(&[])));
    for (of_first, expected) in [(0, false), (9, false), (20, true), (59, true), (70, false)] {
        let mut owners = Owners::default();
        for range in 0..80 {
            let holder = if range < of_first { "a_1" } else { "b_2" };
            let name = format!("manifold-range-{range:03}");
            owners.lease("manifold", &lease(&name, holder, 1));
        }
        let spread = owners.are_spread_over(80, &members(&["a", "b"]));
        assert_eq!(spread, expected, "{of_first} of 80");
    }

    let before = owners.clone();
    owners.lease("manifold", &lease("manifold-range-002", "b_2", 2));
    assert_eq!(owners.moved_since(&before), 1);
    owners.lease("manifold", &lease("manifold-range-001", "", 2));
    assert_eq!(owners.moved_since(&before), 2, "released is moved");
    owners.lease_gone("manifold", &lease("manifold-range-000", "a_1", 1));
    assert!(!owners.are_spread_over(3, &members(&["a", "b"])));
}

#[test]
fn waits_are_reported_probe_by_probe_and_what_was_never_answered_can_be_forgotten() {
    let start = Instant::now();
    let at = |ms: u64| start + Duration::from_millis(ms);
    let mut probes = Probes::new(3);
    for (index, ms) in [(0, 0), (1, 100), (2, 200)] {
        assert_eq!(probes.touch(at(ms)), Some(index));
    }
    assert_eq!(probes.touch(at(300)), None, "all wait");
    probes.accepted(0, 2);
    probes.accepted(1, 2);
    probes.observed(0, 2, at(500));
    let waited = |probe, ms, served| Waited {
        probe,
        lasted: Duration::from_millis(ms),
        served,
    };
    assert_eq!(
        probes.waits_since(at(0), at(600)),
        [
            waited(0, 500, true),
            waited(1, 500, false),
            waited(2, 400, false)
        ]
    );
    assert_eq!(
        probes.waits_since(at(150), at(600)),
        [waited(2, 400, false)]
    );
    assert_eq!(probes.served_between(at(400), at(600)), 1);
    assert_eq!(probes.served_between(at(501), at(600)), 0);
    assert_eq!(probes.waiting(), 2);
    probes.forget_unanswered();
    assert_eq!(probes.waiting(), 1, "the answered one still waits");
    assert_eq!(probes.touch(at(700)), Some(0));
    assert_eq!(probes.touch(at(700)), Some(2));
    assert_eq!(probes.touch(at(700)), None);
}
