use serde_json::json;

use super::*;
use crate::{
    Plan,
    testing::{WorkloadBuild, replica_set},
};
use kubernetes_proto::{
    apps::{ReplicaSet, ReplicaSetStatus},
    meta::Time,
};

fn with_condition(r#type: &str, status: &str) -> Value {
    json!({"conditions": [{"type": r#type, "status": status}]})
}

#[test]
fn every_claim_that_falls_is_urgent_and_none_that_rises() {
    for field in CLAIMS {
        let (more, less) = (json!({*field: 3}), json!({*field: 2}));
        assert!(worsens(&more, &less), "{field} falls");
        assert!(worsens(&more, &json!({})), "{field} falls to 0");
        assert!(!worsens(&less, &more), "{field} rises");
        assert!(!worsens(&less, &less), "{field} stays");
    }
}

#[test]
fn every_burden_that_rises_is_urgent_and_none_that_falls() {
    for field in BURDENS {
        let (more, less) = (json!({*field: 1}), json!({}));
        assert!(worsens(&less, &more), "{field} rises");
        assert!(!worsens(&more, &less), "{field} falls");
    }
}

#[test]
fn a_condition_that_turns_for_the_worse_is_urgent() {
    let none = json!({});
    let of = with_condition;
    for (before, after, urgent) in [
        (of("Available", "True"), of("Available", "False"), true),
        (of("Available", "True"), of("Available", "Unknown"), true),
        (of("Available", "Unknown"), of("Available", "False"), true),
        (of("Available", "False"), of("Available", "True"), false),
        (of("Available", "True"), none.clone(), true),
        (of("Available", "False"), none.clone(), false),
        (none.clone(), of("Available", "False"), true),
        (none.clone(), of("Available", "True"), false),
        (of("Progressing", "True"), of("Progressing", "False"), true),
        (none.clone(), of("ReplicaFailure", "True"), true),
        (
            of("ReplicaFailure", "False"),
            of("ReplicaFailure", "True"),
            true,
        ),
        (of("ReplicaFailure", "True"), none, false),
        (
            of("DisruptionAllowed", "True"),
            of("DisruptionAllowed", "False"),
            true,
        ),
        (of("Available", "True"), of("Available", "True"), false),
    ] {
        assert_eq!(worsens(&before, &after), urgent, "{before} -> {after}");
    }
}

#[test]
fn a_daemon_set_that_was_complete_and_wants_more_nodes_is_urgent() {
    let status = |generation: i64, wanted: i64, there: i64| {
        json!({
            "observedGeneration": generation,
            "desiredNumberScheduled": wanted,
            "numberReady": there,
            "numberAvailable": there,
            "updatedNumberScheduled": there,
        })
    };
    assert!(worsens(&status(1, 3, 3), &status(1, 4, 3)));
    // Many nodes that join one after the other are progress.
    assert!(!worsens(&status(1, 4, 3), &status(1, 5, 3)));
    // Of another generation nothing was claimed, nor by a status that was never written.
    assert!(!worsens(&status(1, 3, 3), &status(2, 4, 3)));
    assert!(!worsens(&json!({}), &status(0, 4, 0)));
}

#[test]
fn a_falling_count_is_written_at_once_unless_the_object_is_being_deleted() {
    let report = |set: ReplicaSet, before: i32, after: i32| {
        let with = |ready_replicas| ReplicaSet {
            status: Some(ReplicaSetStatus {
                ready_replicas,
                ..Default::default()
            }),
            ..set.clone()
        };
        let mut plan = Plan::nothing();
        let action = plan.update_status(&with(before), &with(after)).unwrap();
        action.progresses();
        action.report()
    };
    let web = replica_set("web").replicas(3);
    assert_eq!(report(web.clone(), 3, 2), StatusWrite::No);
    assert_eq!(report(web.clone(), 2, 3), StatusWrite::Progress);
    let mut going = web;
    going.metadata_mut().deletion_timestamp = Some(Time::from(crate::testing::at("11:00:00")));
    assert_eq!(report(going, 3, 2), StatusWrite::Progress);
}

#[test]
fn a_condition_that_turns_for_the_worse_is_urgent_also_while_the_object_is_being_deleted() {
    let available = |status: &str| json!({"readyReplicas": 3, "conditions": [{"type": "Available", "status": status}]});
    let mut going = replica_set("web").replicas(3);
    going.metadata_mut().deletion_timestamp = Some(Time::from(crate::testing::at("11:00:00")));
    for (before, after, expected) in [
        ("True", "False", StatusWrite::No),
        ("False", "True", StatusWrite::Observed),
        ("True", "True", StatusWrite::Observed),
    ] {
        assert_eq!(
            report(&going, &available(before), &available(after)),
            expected
        );
    }
}
