//! The small pure parts: sets of indexes, policies, back-off, names.

use std::collections::BTreeSet;

use controllers_kit::Timestamp;
use kubernetes_proto::batch::{
    PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement,
    PodFailurePolicyOnPodConditionsPattern, PodFailurePolicyRule, SuccessPolicy, SuccessPolicyRule,
};

use super::super::{
    backoff::{self, Record},
    indexes::Indexes,
    policies,
};
use super::*;

#[test]
fn indexes_are_read_and_written_as_the_api_does() {
    let table = [
        ("", 10, "", 0),
        ("0", 10, "0", 1),
        ("0,1", 10, "0,1", 2),
        ("0-2", 10, "0-2", 3),
        ("0-2,3", 10, "0-3", 4),
        ("0,2,4", 10, "0,2,4", 3),
        ("1-3,7-9", 10, "1-3,7-9", 6),
        ("1-3,7-12", 10, "1-3,7-9", 6),
        ("1,12", 10, "1", 1),
        ("5-6", 10, "5,6", 2),
        ("x,3", 10, "3", 1),
        ("3-x,5", 10, "5", 1),
        ("0-9", 3, "0-2", 3),
        ("3", 3, "", 0),
    ];
    for (text, completions, wanted, count) in table {
        let indexes = Indexes::parse(text, completions);
        assert_eq!(
            (indexes.to_string(), indexes.count()),
            (wanted.to_owned(), count),
            "{text}"
        );
    }
}

#[test]
fn indexes_are_joined_found_and_completed() {
    let table = [
        ("", vec![3], "3", vec![0, 1, 2]),
        ("0-2", vec![3], "0-3", vec![4, 5, 6]),
        ("0-2", vec![4], "0-2,4", vec![3, 5, 6]),
        ("1,3", vec![2], "1-3", vec![0, 4, 5]),
        ("1-3", vec![2], "1-3", vec![0, 4, 5]),
        ("0-8", vec![9], "0-9", vec![]),
        ("2-5", vec![0, 7], "0,2-5,7", vec![1, 6, 8]),
    ];
    for (text, more, wanted, missing) in table {
        let more: BTreeSet<i64> = more.into_iter().collect();
        let indexes = Indexes::parse(text, 10).with(&more);
        assert_eq!(indexes.to_string(), wanted, "{text}");
        assert_eq!(indexes.first_missing(3, 10), missing, "{text}");
        assert!(more.iter().all(|index| indexes.has(*index)), "{text}");
        assert!(missing.iter().all(|index| !indexes.has(*index)), "{text}");
    }
}

fn on_codes(
    action: &str,
    operator: &str,
    values: &[i32],
    container: Option<&str>,
) -> PodFailurePolicyRule {
    PodFailurePolicyRule {
        action: action.to_owned(),
        on_exit_codes: Some(PodFailurePolicyOnExitCodesRequirement {
            container_name: container.map(str::to_owned),
            operator: operator.to_owned(),
            values: values.to_vec(),
        }),
        ..Default::default()
    }
}

fn on_condition(action: &str, r#type: &str, status: &str) -> PodFailurePolicyRule {
    PodFailurePolicyRule {
        action: action.to_owned(),
        on_pod_conditions: vec![PodFailurePolicyOnPodConditionsPattern {
            r#type: r#type.to_owned(),
            status: status.to_owned(),
        }],
        ..Default::default()
    }
}

pub(super) fn policy(rules: Vec<PodFailurePolicyRule>) -> PodFailurePolicy {
    PodFailurePolicy { rules }
}

pub(super) fn fail_job_on(code: i32) -> PodFailurePolicy {
    policy(vec![on_codes("FailJob", "In", &[code], None)])
}

pub(super) fn ignore_disruption() -> PodFailurePolicy {
    policy(vec![on_condition("Ignore", "DisruptionTarget", "True")])
}

pub(super) fn fail_index_on(code: i32) -> PodFailurePolicy {
    policy(vec![on_codes("FailIndex", "In", &[code], None)])
}

#[test]
fn the_first_rule_that_matches_decides() {
    let exited = pod(&job("pi"), "pi-a").exited(3, "11:59:00");
    let disrupted = PodBuild::condition(exited.clone(), "DisruptionTarget", "True", "11:58:00");
    let code = "Container main for pod default/pi-a failed with exit code 3 matching FailJob rule at index ";
    let disruption =
        "Pod default/pi-a has condition DisruptionTarget matching FailJob rule at index 0";
    let table = [
        (vec![], &exited, "count", None),
        (
            vec![on_codes("Count", "In", &[3], None)],
            &exited,
            "count Count",
            None,
        ),
        (
            vec![on_codes("Ignore", "In", &[1, 3], None)],
            &exited,
            "ignore Ignore",
            None,
        ),
        (
            vec![on_codes("Ignore", "In", &[1, 2], None)],
            &exited,
            "count",
            None,
        ),
        (
            vec![on_codes("Ignore", "NotIn", &[1, 2], None)],
            &exited,
            "ignore Ignore",
            None,
        ),
        (
            vec![on_codes("Ignore", "NotIn", &[3], None)],
            &exited,
            "count",
            None,
        ),
        (
            vec![on_codes("Ignore", "Like", &[3], None)],
            &exited,
            "count",
            None,
        ),
        (
            vec![on_codes("Ignore", "In", &[3], Some("main"))],
            &exited,
            "ignore Ignore",
            None,
        ),
        (
            vec![on_codes("Ignore", "In", &[3], Some("side"))],
            &exited,
            "count",
            None,
        ),
        (
            vec![on_codes("FailIndex", "In", &[3], None)],
            &exited,
            "count FailIndex",
            None,
        ),
        (
            vec![on_codes("FailJob", "In", &[3], None)],
            &exited,
            "count FailJob",
            Some(format!("{code}0")),
        ),
        (
            vec![
                on_codes("Later", "In", &[3], None),
                on_codes("FailJob", "In", &[3], None),
            ],
            &exited,
            "count FailJob",
            Some(format!("{code}1")),
        ),
        (
            vec![
                on_codes("Ignore", "In", &[3], None),
                on_codes("FailJob", "In", &[3], None),
            ],
            &exited,
            "ignore Ignore",
            None,
        ),
        (
            vec![on_condition("Ignore", "DisruptionTarget", "True")],
            &exited,
            "count",
            None,
        ),
        (
            vec![on_condition("Ignore", "DisruptionTarget", "True")],
            &disrupted,
            "ignore Ignore",
            None,
        ),
        (
            vec![on_condition("Ignore", "DisruptionTarget", "False")],
            &disrupted,
            "count",
            None,
        ),
        (
            vec![on_condition("FailJob", "DisruptionTarget", "True")],
            &disrupted,
            "count FailJob",
            Some(disruption.to_owned()),
        ),
    ];
    for (rules, pod, wanted, message) in table {
        let verdict = policies::judge(Some(&policy(rules.clone())), pod);
        let mut said = if verdict.counts { "count" } else { "ignore" }.to_owned();
        if let Some(action) = verdict.action {
            said = format!("{said} {}", action.name());
        }
        assert_eq!(
            (said.as_str(), verdict.message),
            (wanted, message),
            "{rules:?}"
        );
    }
}

#[test]
fn a_success_rule_is_met_by_its_indexes_or_their_number() {
    let rule = |indexes: Option<&str>, count: Option<i32>| SuccessPolicyRule {
        succeeded_indexes: indexes.map(str::to_owned),
        succeeded_count: count,
    };
    let table = [
        (vec![rule(Some("0"), None)], "0", Some(0)),
        (vec![rule(Some("0"), None)], "1-9", None),
        (vec![rule(Some("0-2"), None)], "0-2,5", Some(0)),
        (vec![rule(Some("0-2"), None)], "0,1", None),
        (vec![rule(Some("0-2"), Some(2))], "0,1", Some(0)),
        (vec![rule(Some("0-2"), Some(2))], "0,5,6", None),
        (vec![rule(None, Some(3))], "0,5,6", Some(0)),
        (vec![rule(None, Some(4))], "0,5,6", None),
        (
            vec![rule(Some("0"), None), rule(None, Some(1))],
            "4",
            Some(1),
        ),
        (
            vec![rule(Some("x"), Some(0)), rule(None, Some(1))],
            "4",
            Some(1),
        ),
        (vec![rule(None, Some(1))], "", None),
        (vec![rule(Some("1,3-5"), None)], "1-5", Some(0)),
        (vec![rule(Some("1,3-5"), None)], "1-4", None),
        (vec![], "0-9", None),
    ];
    for (rules, succeeded, wanted) in table {
        let policy = SuccessPolicy {
            rules: rules.clone(),
        };
        assert_eq!(
            policies::success(Some(&policy), 10, &Indexes::parse(succeeded, 10)),
            wanted.map(|place: i32| format!("Matched rules at index {place}")),
            "{rules:?} {succeeded}"
        );
    }
    assert_eq!(
        policies::success(None, 10, &Indexes::parse("0-9", 10)),
        None
    );
}

#[test]
fn the_back_off_doubles_from_ten_seconds_to_ten_minutes() {
    let last = at("12:00:00");
    let wait = |failures| {
        backoff::until(failures, last, last).map_or(0, |until| until.duration_since(last).as_secs())
    };
    let table = [
        (0, 0),
        (1, 10),
        (2, 20),
        (3, 40),
        (4, 80),
        (5, 160),
        (6, 320),
        (7, 600),
        (8, 600),
        (100, 600),
        (i32::MAX, 600),
        (-1, 0),
    ];
    for (failures, seconds) in table {
        assert_eq!(wait(failures), seconds, "{failures}");
    }
    assert_eq!(backoff::until(1, last, at("12:00:10")), None);
    assert_eq!(
        backoff::until(1, last, at("12:00:09")),
        Some(at("12:00:10"))
    );
}

#[test]
fn failures_count_since_the_last_success() {
    let pi = job("pi");
    let end = |time: &str| pod(&pi, "pi-a").exited(1, time);
    let record = |failures, last: Option<&str>| Record {
        failures,
        last: last.map(at),
    };
    let table: [(Record, &[&str], &[&str], Record); 7] = [
        (record(0, None), &[], &[], record(0, None)),
        (
            record(2, Some("11:00:00")),
            &[],
            &[],
            record(2, Some("11:00:00")),
        ),
        (
            record(0, None),
            &[],
            &["11:00:00"],
            record(1, Some("11:00:00")),
        ),
        (
            record(1, Some("10:00:00")),
            &[],
            &["11:00:05", "11:00:00"],
            record(3, Some("11:00:05")),
        ),
        (
            record(3, Some("10:00:00")),
            &["11:00:00"],
            &[],
            record(0, None),
        ),
        (
            record(3, Some("10:00:00")),
            &["11:00:00"],
            &["10:30:00"],
            record(0, None),
        ),
        (
            record(3, Some("10:00:00")),
            &["11:00:00"],
            &["10:30:00", "11:10:00"],
            record(1, Some("11:10:00")),
        ),
    ];
    for (before, succeeded, failed, wanted) in table {
        let pods = |times: &[&str]| times.iter().map(|time| end(time)).collect::<Vec<Pod>>();
        let (succeeded, failed) = (pods(succeeded), pods(failed));
        assert_eq!(before.with(succeeded.iter(), failed.iter()), wanted);
    }
}

#[test]
fn a_pod_has_ended_with_its_containers_or_when_it_ceased_to_be_ready_or_was_deleted() {
    let pi = job("pi");
    let born = pod(&pi, "pi-a").created("11:00:00");
    let table: [(Pod, &str); 4] = [
        (born.clone().exited(1, "11:30:00"), "11:30:00"),
        (
            PodBuild::condition(born.clone(), "Ready", "False", "11:20:00"),
            "11:20:00",
        ),
        (
            {
                let mut pod = born.clone().terminating("11:10:30");
                pod.metadata_mut().deletion_grace_period_seconds = Some(30);
                pod
            },
            "11:10:00",
        ),
        (born, "11:00:00"),
    ];
    for (pod, wanted) in table {
        let ended: Timestamp = backoff::ended_at(&pod);
        assert_eq!(ended, at(wanted), "{pod:?}");
    }
}
