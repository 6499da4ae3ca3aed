use kubernetes_proto::{apps::DeploymentCondition, batch::Job};

use super::{Policy, find, finished, is_true, remove, set};
use crate::testing::{JobBuild, at, job};

fn progressing(status: &str, reason: &str, since: &str) -> DeploymentCondition {
    DeploymentCondition {
        r#type: "Progressing".into(),
        status: status.into(),
        reason: reason.into(),
        message: format!("because of {reason}"),
        last_transition_time: Some(at(since).into()),
        ..Default::default()
    }
}

#[test]
fn the_time_of_transition_moves_with_the_status_alone() {
    let mut conditions = vec![progressing("True", "Created", "12:00:00")];
    let available = DeploymentCondition {
        r#type: "Available".into(),
        status: "True".into(),
        ..Default::default()
    };
    let replace = Policy::Replace;
    assert!(set(&mut conditions, available, replace));

    assert!(!set(
        &mut conditions,
        progressing("True", "Created", "12:01:00"),
        replace
    ));
    assert_eq!(
        find(&conditions, "Progressing").unwrap(),
        &progressing("True", "Created", "12:00:00")
    );

    assert!(set(
        &mut conditions,
        progressing("True", "Updated", "12:02:00"),
        replace
    ));
    assert_eq!(
        find(&conditions, "Progressing").unwrap(),
        &progressing("True", "Updated", "12:00:00")
    );

    assert!(set(
        &mut conditions,
        progressing("False", "Updated", "12:03:00"),
        replace
    ));
    assert_eq!(
        conditions.last().unwrap(),
        &progressing("False", "Updated", "12:03:00")
    );
    assert_eq!(conditions.len(), 2);
    assert!(is_true(&conditions, "Available"));
    assert!(!is_true(&conditions, "Progressing"));
    assert!(!is_true(&conditions, "ReplicaFailure"));

    assert!(remove(&mut conditions, "Progressing"));
    assert!(!remove(&mut conditions, "Progressing"));
}

#[test]
fn each_policy_keeps_what_upstream_keeps() {
    use Policy::{InPlace, Replace, Restamp};
    const SECOND: usize = 1;
    // Held first: True, Created, "because of Created", since 12:00:00. Set at 12:09:00.
    let table = [
        // (policy, status, reason, message) -> (changed, place, message, since)
        (
            Replace,
            "True",
            "Created",
            "new",
            (false, 0, "because of Created", "12:00:00"),
        ),
        (
            Replace,
            "True",
            "Updated",
            "new",
            (true, SECOND, "new", "12:00:00"),
        ),
        (
            Replace,
            "False",
            "Created",
            "new",
            (true, SECOND, "new", "12:09:00"),
        ),
        (
            InPlace,
            "True",
            "Created",
            "because of Created",
            (false, 0, "because of Created", "12:00:00"),
        ),
        (
            InPlace,
            "True",
            "Created",
            "new",
            (true, 0, "new", "12:00:00"),
        ),
        (
            InPlace,
            "True",
            "Updated",
            "new",
            (true, 0, "new", "12:00:00"),
        ),
        (
            InPlace,
            "False",
            "Created",
            "new",
            (true, 0, "new", "12:09:00"),
        ),
        (
            Restamp,
            "True",
            "Created",
            "because of Created",
            (false, 0, "because of Created", "12:00:00"),
        ),
        (
            Restamp,
            "True",
            "Created",
            "new",
            (true, 0, "new", "12:09:00"),
        ),
        (
            Restamp,
            "False",
            "Created",
            "new",
            (true, 0, "new", "12:09:00"),
        ),
    ];
    for (policy, status, reason, message, (changes, place, kept, since)) in table {
        let case = format!("{policy:?} {status} {reason} {message}");
        let other = DeploymentCondition {
            r#type: "Available".into(),
            ..Default::default()
        };
        let mut conditions = vec![progressing("True", "Created", "12:00:00"), other];
        let new = DeploymentCondition {
            message: message.into(),
            ..progressing(status, reason, "12:09:00")
        };
        assert_eq!(set(&mut conditions, new, policy), changes, "{case}");
        assert_eq!(conditions.len(), 2, "{case}");
        let condition = &conditions[place];
        assert_eq!(condition.r#type, "Progressing", "{case}");
        assert_eq!(condition.message, kept, "{case}");
        let since = Some(at(since).into());
        assert_eq!(condition.last_transition_time, since, "{case}");
    }
}

#[test]
fn a_job_is_finished_by_a_true_complete_or_failed_alone() {
    let table: [(Job, Option<&str>); 6] = [
        (job("runs"), None),
        (job("done").finished("12:00:00"), Some("Complete")),
        (job("broken").failed("12:00:00"), Some("Failed")),
        (
            job("not-yet").condition("Complete", "False", "12:00:00"),
            None,
        ),
        (job("held").condition("Suspended", "True", "12:00:00"), None),
        (
            job("targeted").condition("FailureTarget", "True", "12:00:00"),
            None,
        ),
    ];
    for (job, expected) in table {
        assert_eq!(
            finished(&job).map(|condition| condition.r#type.as_str()),
            expected,
            "{job:?}"
        );
    }
}
