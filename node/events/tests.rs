use std::time::Duration;

use controllers_kit::{Event, EventType, Key, ObjectRef, Timestamp};

use super::{Correlator, FOLD_AFTER, REMEMBERED_MAX, SPAM_BURST};

fn about(name: &str) -> ObjectRef {
    ObjectRef {
        api_version: "apps/v1".into(),
        kind: "ReplicaSet".into(),
        key: Key::new("shop", name),
        uid: "u-1".into(),
        resource_version: 7,
    }
}

fn event(name: &str, message: &str) -> Event {
    Event {
        about: about(name),
        r#type: EventType::Normal,
        reason: "SuccessfulCreate".into(),
        message: message.to_owned(),
    }
}

fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

#[test]
fn the_same_event_is_counted_up_instead_of_sent_again() {
    let mut correlator = Correlator::new("replicaset-controller");
    let first = correlator
        .correlate(&event("web", "Created pod: a"), now(), secs(0))
        .unwrap();
    assert_eq!(first.patch, None);
    assert_eq!(first.body["count"], 1);
    assert_eq!(first.body["source"]["component"], "replicaset-controller");
    assert_eq!(first.body["involvedObject"]["resourceVersion"], "7");
    let second = correlator
        .correlate(&event("web", "Created pod: a"), now(), secs(1))
        .unwrap();
    assert_eq!(second.name, first.name);
    assert_eq!(second.patch.unwrap()["count"], 2);
    let other = correlator
        .correlate(&event("api", "Created pod: a"), now(), secs(1))
        .unwrap();
    assert_eq!(other.patch, None, "another object has a series of its own");
}

#[test]
fn many_different_messages_are_folded_into_one() {
    let mut correlator = Correlator::new("x");
    let mut sent = Vec::new();
    for number in 0..FOLD_AFTER + 3 {
        sent.push(
            correlator
                .correlate(
                    &event("web", &format!("Created pod: {number}")),
                    now(),
                    secs(0),
                )
                .unwrap(),
        );
    }
    assert!(
        sent[..FOLD_AFTER - 1]
            .iter()
            .all(|send| send.patch.is_none())
    );
    let folded = &sent[FOLD_AFTER - 1];
    assert_eq!(folded.patch, None);
    assert_eq!(
        folded.body["message"],
        "(combined from similar events): Created pod: 9"
    );
    assert_eq!(sent[FOLD_AFTER].patch.as_ref().unwrap()["count"], 2);
    assert_eq!(sent[FOLD_AFTER + 2].patch.as_ref().unwrap()["count"], 4);
    let later = correlator
        .correlate(&event("web", "Created pod: late"), now(), secs(601))
        .unwrap();
    assert_eq!(
        later.body["message"], "Created pod: late",
        "after ten minutes they are distinguished again"
    );
}

#[test]
fn what_was_distinguished_before_the_flood_is_distinguished_when_it_recurs() {
    let mut correlator = Correlator::new("x");
    let mut record = |number: usize| {
        let event = event("web", &format!("Created pod: {number}"));
        correlator.correlate(&event, now(), secs(0)).unwrap().body
    };
    for number in 0..FOLD_AFTER {
        record(number);
    }
    let again = record(FOLD_AFTER - 2);
    assert_eq!(again["message"], "Created pod: 8");
    assert_eq!(again["count"], 2);
    // One of them was given up to make room: it counts as the next of many.
    let given_up = record(0);
    assert_eq!(
        given_up["message"],
        "(combined from similar events): Created pod: 0"
    );
    assert_eq!(given_up["count"], 2);
}

#[test]
fn an_object_that_floods_is_cut_off_and_refills_slowly() {
    let mut correlator = Correlator::new("x");
    let sent = (0..100)
        .filter(|_| {
            correlator
                .correlate(&event("web", "again"), now(), secs(0))
                .is_some()
        })
        .count();
    assert_eq!(sent as f64, SPAM_BURST);
    assert!(
        correlator
            .correlate(&event("web", "again"), now(), secs(299))
            .is_none()
    );
    assert!(
        correlator
            .correlate(&event("web", "again"), now(), secs(301))
            .is_some()
    );
    assert!(
        correlator
            .correlate(&event("api", "again"), now(), secs(301))
            .is_some()
    );
}

#[test]
fn the_memory_is_bounded() {
    let mut correlator = Correlator::new("x");
    for number in 0..REMEMBERED_MAX + 50 {
        correlator.correlate(&event(&format!("web-{number}"), "once"), now(), secs(0));
    }
    assert_eq!(correlator.series.entries.len(), REMEMBERED_MAX);
    assert_eq!(correlator.series.order.len(), REMEMBERED_MAX);
    assert!(
        correlator
            .correlate(&event("web-0", "once"), now(), secs(1))
            .unwrap()
            .patch
            .is_none()
    );
}

#[test]
fn two_events_of_one_instant_have_different_names() {
    let mut correlator = Correlator::new("x");
    let first = correlator
        .correlate(&event("web", "one"), now(), secs(0))
        .unwrap();
    let second = correlator
        .correlate(&event("web", "two"), now(), secs(0))
        .unwrap();
    assert_ne!(first.name, second.name);
}
