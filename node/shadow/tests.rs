//! Stories of plans and changes, as tables.

use std::{sync::Arc, time::Duration};

use controllers_kit::{
    AnyObject, Key, Object, Only, Plan, Propagation,
    testing::{at, config_map, pod},
};
use kubernetes_proto::{
    core::Pod,
    meta::{ObjectMeta, OwnerReference},
};
use serde_json::{Value, json};

use super::*;

const ROLLER: &str = "roller";
const TIMER: &str = "timer";

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn comparison() -> Comparison {
    let mut comparison = Comparison::new(Config {
        patience: secs(60),
        slow: (&[TIMER], 5),
        early: secs(15),
    });
    comparison.tick(Duration::ZERO, true, "", &|_| None);
    comparison
}

fn meta(name: &str, version: u64) -> ObjectMeta {
    ObjectMeta {
        name: name.into(),
        namespace: "shop".into(),
        uid: format!("uid-{name}").into(),
        resource_version: version,
        ..ObjectMeta::default()
    }
}

/// A pod of the owner `owner`, with a label.
fn child(name: &str, label: &str) -> Pod {
    let mut pod = pod(name);
    *pod.metadata_mut() = meta(name, 9);
    let meta = pod.metadata_mut();
    meta.generate_name = "web-".into();
    meta.set_label("app", label);
    let owner = OwnerReference {
        kind: "ReplicaSet".into(),
        name: "web".into(),
        uid: "owner".into(),
        controller: Some(true),
        ..OwnerReference::default()
    };
    meta.owner_references = vec![owner.into()];
    pod
}

fn any(pod: Pod) -> AnyObject {
    Arc::new(pod)
}

fn wants(fill: impl FnOnce(&mut Plan)) -> Vec<Want> {
    let mut plan = Plan::nothing();
    fill(&mut plan);
    plan.actions().map(Want::of).collect()
}

fn labelled(from: &str, to: &str) -> Vec<Want> {
    let (old, mut new) = (child("a", from), child("a", from));
    new.metadata_mut().set_label("app", to);
    wants(|plan| {
        plan.update(&old, &new);
    })
}

fn created() -> Change {
    Change {
        old: None,
        new: Some(any(child("theirs", "web"))),
        version: 0,
    }
}

fn relabelled(from: &str, to: &str) -> Change {
    Change {
        old: Some(any(child("a", from))),
        new: Some(any(child("a", to))),
        version: 0,
    }
}

fn deleted() -> Change {
    Change {
        old: Some(any(child("a", "web"))),
        new: None,
        version: 0,
    }
}

fn kinds(verdicts: impl IntoIterator<Item = Verdict>) -> Vec<Kind> {
    verdicts.into_iter().map(|one| one.kind).collect()
}

fn key() -> Key {
    Key::new("shop", "web")
}

#[test]
fn a_change_that_brings_the_state_of_a_planned_write_agrees_with_it() {
    let create = || {
        wants(|plan| {
            plan.create(&child("ours", "web"));
        })
    };
    let delete = || {
        wants(|plan| {
            plan.delete(&child("a", "web"), Only::ThisUid, Propagation::Background);
        })
    };
    let terminating = || {
        let mut pod = child("a", "web");
        pod.metadata_mut().deletion_timestamp = Some(Default::default());
        Change {
            old: Some(any(child("a", "web"))),
            new: Some(any(pod)),
            version: 0,
        }
    };
    let other_owner = || {
        let mut pod = child("theirs", "web");
        pod.metadata_mut().owner_references.clear();
        Change {
            old: None,
            new: Some(any(pod)),
            version: 0,
        }
    };
    let other_label = || Change {
        old: None,
        new: Some(any(child("theirs", "other"))),
        version: 0,
    };
    for (what, planned, seen, agreed) in [
        ("a child of another name", create(), created(), true),
        ("a child of another owner", create(), other_owner(), false),
        ("another child", create(), other_label(), false),
        ("a child that goes", create(), deleted(), false),
        ("it is gone", delete(), deleted(), true),
        ("it is on its way out", delete(), terminating(), true),
        ("it has changed", delete(), relabelled("web", "x"), false),
        (
            "the value",
            labelled("web", "new"),
            relabelled("web", "new"),
            true,
        ),
        (
            "another value",
            labelled("web", "new"),
            relabelled("web", "x"),
            false,
        ),
        (
            "what was to change is gone",
            labelled("web", "new"),
            deleted(),
            true,
        ),
    ] {
        let mut comparison = comparison();
        assert_eq!(comparison.planned(ROLLER, &key(), planned, secs(1)), []);
        let verdicts = comparison.observed(seen, false, secs(2));
        let expected: &[Kind] = if agreed { &[Kind::Agreed] } else { &[] };
        assert_eq!(kinds(verdicts), expected, "{what}");
    }
}

#[test]
fn each_child_that_is_made_agrees_with_one_creation() {
    let mut comparison = comparison();
    let two = wants(|plan| {
        plan.create(&child("one", "web"));
        plan.create(&child("two", "web"));
    });
    comparison.planned(ROLLER, &key(), two, secs(1));
    let pending = |comparison: &Comparison| comparison.pending().get(ROLLER).copied();
    assert_eq!(pending(&comparison), Some(2));
    for left in [1, 0] {
        let verdicts = comparison.observed(created(), false, secs(2));
        assert_eq!(kinds(verdicts), [Kind::Agreed]);
        assert_eq!(pending(&comparison), Some(left));
    }
    assert_eq!(comparison.observed(created(), false, secs(2)), []);
}

#[test]
fn what_is_planned_and_not_done_is_missing_once_after_a_patience() {
    for (controller, patience) in [(ROLLER, 60), (TIMER, 300)] {
        let mut comparison = comparison();
        let current = |_: &Want| Some(any(child("a", "web")));
        for second in (1..=patience + 20).step_by(5) {
            // The same plan again and again is one.
            comparison.planned(controller, &key(), labelled("web", "new"), secs(second));
            let verdicts = kinds(comparison.tick(secs(second), true, "12:00", &current));
            let expected: &[Kind] = if second == patience + 1 {
                &[Kind::Missing]
            } else {
                &[]
            };
            assert_eq!(verdicts, expected, "{controller} at {second}");
        }
        let (differences, omitted) = comparison.differences();
        assert_eq!((differences.len(), omitted), (1, 0));
        let one = &differences[0];
        assert_eq!(
            (
                one.kind.as_str(),
                one.field.as_str(),
                one.ours.as_str(),
                one.theirs.as_str()
            ),
            ("missing", "metadata.labels.app", "new", "web")
        );
        assert_eq!(
            (one.write.as_str(), one.at.as_str()),
            ("patch pods/a", "12:00")
        );
    }
}

#[test]
fn the_time_of_a_plan_continues_with_other_values_and_restarts_where_they_are_at_it() {
    for (theirs, missing) in [(None, true), (Some(relabelled("web", "x")), false)] {
        let mut comparison = comparison();
        let mut seen = false;
        for second in 1..=62 {
            let wanted = labelled("web", &format!("new-{}", second % 3));
            comparison.planned(ROLLER, &key(), wanted, secs(second));
            if second == 30
                && let Some(theirs) = theirs.clone()
            {
                assert_eq!(comparison.observed(theirs, false, secs(second)), []);
            }
            seen |= kinds(comparison.tick(secs(second), true, "", &|_| None)) == [Kind::Missing];
        }
        assert_eq!(seen, missing);
    }
}

#[test]
fn a_plan_that_is_dropped_is_superseded_and_still_explains_what_comes_within_a_patience() {
    for (at, explained) in [(30, true), (90, false)] {
        let mut comparison = comparison();
        comparison.planned(ROLLER, &key(), labelled("web", "new"), secs(1));
        let dropped = comparison.planned(ROLLER, &key(), Vec::new(), secs(5));
        assert_eq!(kinds(dropped), [Kind::Superseded]);
        let verdicts = kinds(comparison.observed(relabelled("web", "new"), true, secs(at)));
        assert_eq!(verdicts == [Kind::Agreed], explained, "at {at}");
        assert_eq!(comparison.to_ask(secs(at)).is_empty(), explained);
    }
}

#[test]
fn what_was_planned_long_before_is_early() {
    let mut comparison = comparison();
    comparison.planned(ROLLER, &key(), labelled("web", "new"), secs(1));
    let verdicts = comparison.observed(relabelled("web", "new"), false, secs(20));
    assert_eq!(kinds(verdicts), [Kind::Early]);
}

/// When a change that this controller would not have made is asked about until it is extra, in milliseconds.
fn asked_until_extra(comparison: &mut Comparison, controller: &'static str) -> Vec<u128> {
    let seen = comparison.observed(relabelled("web", "x"), true, secs(10));
    assert_eq!(seen, []);
    let mut asked = Vec::new();
    for half in 20..=700 {
        let now = Duration::from_millis(half * 500);
        for candidate in comparison.to_ask(now) {
            asked.push(now.as_millis());
            let unwanted = Answer::Unwanted(Box::new(Unwanted {
                controller,
                key: "shop/web".to_owned(),
                instead: None,
                by: "kube-controller-manager",
            }));
            let verdict = comparison.answered(&candidate, unwanted, "12:00");
            let expected: &[Kind] = match candidate.is_last {
                true => &[Kind::Extra],
                false => &[],
            };
            assert_eq!(kinds(verdict), expected);
        }
    }
    asked
}

#[test]
fn a_change_that_nobody_wants_is_asked_about_and_extra_after_a_patience() {
    let by_timer = asked_until_extra(&mut comparison(), TIMER);
    assert_eq!(by_timer, [10_000, 10_500, 13_000, 22_000, 310_000]);
    let mut comparison = comparison();
    let asked = asked_until_extra(&mut comparison, ROLLER);
    assert_eq!(asked, [10_000, 10_500, 13_000, 22_000, 70_000]);
    let one = &comparison.differences().0[0];
    assert_eq!(
        [
            &one.kind,
            &one.write,
            &one.field,
            &one.ours,
            &one.theirs,
            &one.by
        ],
        [
            "extra",
            "update pods/a",
            "metadata.labels.app",
            "web",
            "x",
            "kube-controller-manager"
        ]
    );
}

#[test]
fn what_is_left_of_a_step_is_what_a_plan_has_to_set() {
    let labels = |app: &str, tier: &str| {
        let mut pod = child("a", app);
        pod.metadata_mut().set_label("tier", tier);
        any(pod)
    };
    let (old, new) = (labels("a", "a"), labels("b", "b"));
    let app = vec![vec![
        "metadata".to_owned(),
        "labels".to_owned(),
        "app".to_owned(),
    ]];
    for (since, standing) in [(labels("c", "c"), vec![]), (labels("b", "c"), app.clone())] {
        assert_eq!(standing_fields(&old, &new, &since), standing);
    }
    let since = labels("b", "c");
    let create = || {
        wants(|plan| {
            plan.create(&child("a", "b"));
        })
    };
    for (want, expected) in [
        (labelled("web", "b"), true),
        (labelled("web", "x"), false),
        (create(), false),
    ] {
        let want = want.first().expect("a write");
        assert_eq!(sets(want, &app, &since, secs(60)), expected, "{want:?}");
    }
}

#[test]
fn what_is_there_already_explains_no_change_of_other_fields() {
    let labels = |tier: &str| {
        let mut pod = child("a", "web");
        pod.metadata_mut().set_label("tier", tier);
        any(pod)
    };
    let mut comparison = comparison();
    comparison.planned(ROLLER, &key(), labelled("old", "web"), secs(1));
    comparison.planned(ROLLER, &key(), Vec::new(), secs(2));
    let change = Change {
        old: Some(labels("a")),
        new: Some(labels("b")),
        version: 0,
    };
    assert_eq!(kinds(comparison.observed(change, true, secs(3))), []);
    assert_eq!(comparison.unexplained(), 1);
}

#[test]
fn a_step_may_be_overtaken_by_several_changes() {
    // Two labels are changed at once, and one after the other again.
    let both = |app: &str, tier: &str| {
        let mut pod = child("a", app);
        pod.metadata_mut().set_label("tier", tier);
        Some(any(pod))
    };
    let mut comparison = comparison();
    for (old, new, expected) in [
        (both("a", "a"), both("b", "b"), vec![]),
        (both("b", "b"), both("c", "b"), vec![]),
        // Of the first change nothing is left; the second one's label stays.
        (both("c", "b"), both("c", "c"), vec![Kind::Superseded]),
    ] {
        let verdicts = comparison.observed(
            Change {
                old,
                new,
                version: 0,
            },
            true,
            secs(10),
        );
        assert_eq!(kinds(verdicts), expected);
    }
    assert_eq!(comparison.unexplained(), 2);
}

#[test]
fn a_step_is_overtaken_by_one_of_the_same_second() {
    let step = |phase: &str, second: &str| {
        let mut pod = child("a", "web");
        let status = pod.status.get_or_insert_default();
        status.phase = phase.into();
        status.start_time = Some(at(second).into());
        Some(any(pod))
    };
    let (first, second) = ("10:00:01", "10:00:02");
    let mut comparison = comparison();
    for (old, new, expected) in [
        (step("Pending", first), step("Failed", second), vec![]),
        (
            step("Failed", second),
            step("Running", second),
            vec![Kind::Superseded],
        ),
    ] {
        let change = Change {
            old,
            new,
            version: 0,
        };
        assert_eq!(kinds(comparison.observed(change, true, secs(10))), expected);
    }
}

#[test]
fn a_change_whose_fields_are_all_changed_again_was_a_step_and_the_last_one_is_judged() {
    let unwanted = || {
        Answer::Unwanted(Box::new(Unwanted {
            controller: ROLLER,
            ..Unwanted::default()
        }))
    };
    let mut comparison = comparison();
    comparison.observed(relabelled("web", "x"), true, secs(10));
    let first = comparison
        .to_ask(secs(10))
        .pop()
        .expect("it is asked about");
    assert_eq!(kinds(comparison.answered(&first, unwanted(), "")), []);
    let verdicts = comparison.observed(relabelled("x", "y"), true, secs(11));
    assert_eq!(kinds(verdicts), [Kind::Superseded]);
    assert_eq!(comparison.unexplained(), 1, "the last one");
    let mut last = Vec::new();
    for second in 11..=80 {
        for candidate in comparison.to_ask(secs(second)) {
            last.extend(kinds(comparison.answered(&candidate, unwanted(), "")));
        }
    }
    assert_eq!(last, [Kind::Extra]);
}

#[test]
fn a_change_is_explained_by_an_answer_by_a_later_plan_or_because_it_is_not_theirs() {
    for (what, answer, agreed) in [
        (
            "a controller would make it",
            Some(Answer::Wanted(ROLLER)),
            true,
        ),
        ("somebody else made it", Some(Answer::NotTheirs), false),
        ("a later plan wants it", None, true),
    ] {
        let mut comparison = comparison();
        comparison.observed(relabelled("web", "new"), true, secs(10));
        let candidate = comparison
            .to_ask(secs(10))
            .pop()
            .expect("it is asked about");
        let kinds = match answer {
            Some(answer) => kinds(comparison.answered(&candidate, answer, "")),
            None => kinds(comparison.planned(ROLLER, &key(), labelled("web", "new"), secs(12))),
        };
        let expected: &[Kind] = if agreed { &[Kind::Agreed] } else { &[] };
        assert_eq!(kinds, expected, "{what}");
        assert_eq!(comparison.unexplained(), 0, "{what}");
        assert!(comparison.to_ask(secs(500)).is_empty(), "{what}");
    }
}

#[test]
fn time_in_which_nobody_is_in_charge_does_not_count() {
    let mut comparison = comparison();
    comparison.planned(ROLLER, &key(), labelled("web", "new"), secs(1));
    let mut missing_at = None;
    for second in 1..200 {
        let is_led = !(10..100).contains(&second);
        if kinds(comparison.tick(secs(second), is_led, "", &|_| None)) == [Kind::Missing] {
            missing_at = Some(second);
        }
        if !is_led {
            comparison.observed(created(), true, secs(second));
        }
    }
    assert_eq!(missing_at, Some(151));
    assert_eq!(
        comparison.unexplained(),
        0,
        "nor does what is changed meanwhile"
    );
}

#[test]
fn all_that_is_kept_has_a_bound() {
    let mut comparison = comparison();
    let many = |count: usize| {
        wants(|plan| {
            for at in 0..count {
                plan.create(&config_map(&format!("map-{at}")));
            }
        })
    };
    comparison.planned(ROLLER, &key(), many(WANTS_OF_KEY_MAX + 3), secs(1));
    assert_eq!(comparison.dropped(), 3);
    for at in 0..WANTS_MAX / WANTS_OF_KEY_MAX {
        let key = Key::new("shop", format!("other-{at}"));
        comparison.planned(ROLLER, &key, many(WANTS_OF_KEY_MAX), secs(1));
    }
    assert_eq!(comparison.pending()[ROLLER], WANTS_MAX);
    assert_eq!(comparison.dropped(), 3 + WANTS_OF_KEY_MAX as u64);
    let missing = comparison.tick(secs(100), true, "", &|_| None);
    assert_eq!(missing.len(), WANTS_MAX);
    let (differences, omitted) = comparison.differences();
    assert_eq!(differences.len(), DIFFERENCES_MAX);
    assert_eq!(omitted as usize, WANTS_MAX - DIFFERENCES_MAX);
    for at in 0..=CANDIDATES_MAX {
        let mut pod = child("a", "x");
        pod.metadata_mut().name = format!("pod-{at}").into();
        let change = Change {
            old: None,
            new: Some(any(pod)),
            version: 0,
        };
        comparison.observed(change, true, secs(100));
    }
    assert_eq!(comparison.unexplained(), CANDIDATES_MAX);
    assert_eq!(comparison.dropped(), 4 + WANTS_OF_KEY_MAX as u64);
    comparison.forget_keys(&|_, _| true);
    assert_eq!(comparison.pending()[ROLLER], 0);
}

#[test]
fn fields_are_the_same_where_a_write_would_have_made_them_so() {
    let time = |second: u32| json!({"at": format!("2026-01-01T12:00:{second:02}Z")});
    let (whole, contained) = (Lists::Whole, Lists::Contained);
    let none = Value::Null;
    for (ours, theirs, lists, field) in [
        (json!({"a": 1}), json!({"a": 1, "b": 2}), whole, None),
        (json!({"a": 1}), json!({"a": 2}), whole, Some("a")),
        (json!({"a": null}), json!({}), whole, None),
        (json!({"a": 0}), json!({}), whole, None),
        (json!({"a": null}), json!({"a": 1}), whole, Some("a")),
        (json!({"a": 0}), json!({"a": 1}), contained, None),
        (json!({"a": {"b": 0}}), none.clone(), whole, None),
        (json!({"a": {"b": 1}}), none, whole, Some("a.b")),
        // A reference's version is that of the moment in which its writer saw the object.
        (
            json!({"a": [{"uid": "u", "resourceVersion": "7"}]}),
            json!({"a": [{"uid": "u", "resourceVersion": "9"}]}),
            whole,
            None,
        ),
        (time(1), time(40), whole, None),
        (
            json!({"at": "2026-01-01T12:00:00Z"}),
            json!({"at": "2026-01-01T12:01:01Z"}),
            whole,
            Some("at"),
        ),
        (
            json!([{"type": "A", "status": "True"}, {"type": "B"}]),
            json!([{"type": "B"}, {"type": "A", "status": "True"}]),
            whole,
            None,
        ),
        (
            json!([{"type": "A", "status": "True"}]),
            json!([{"type": "A", "status": "False"}]),
            whole,
            Some("[A].status"),
        ),
        (json!(["x"]), json!(["x", "y"]), whole, Some("")),
        (json!(["x"]), json!(["x", "y"]), contained, None),
        (json!(["x"]), json!(["y"]), contained, Some("[x]")),
        (
            json!({"finalizers": [{"$patch": "delete", "name": "x"}]}),
            json!({"finalizers": []}),
            contained,
            None,
        ),
        (
            json!({"$deleteFromPrimitiveList/finalizers": ["x"]}),
            json!({"finalizers": ["x"]}),
            contained,
            Some("finalizers[x]"),
        ),
        (
            json!({"$deleteFromPrimitiveList/finalizers": ["x"]}),
            json!({"finalizers": ["y"]}),
            contained,
            None,
        ),
        (
            json!({"labels": {"pod-template-hash": "a", "app": "web"}}),
            json!({"labels": {"pod-template-hash": "b", "app": "web"}}),
            whole,
            None,
        ),
    ] {
        let found = differ(&ours, &theirs, lists, secs(60)).map(|one| one.field);
        assert_eq!(found.as_deref(), field, "{ours} {theirs} {lists:?}");
    }
}

/// An update of a pod to this version.
fn updated(name: &str, namespace: &str, version: u64) -> Change {
    let at = |version: u64| {
        let mut pod = child(name, "web");
        pod.metadata_mut().namespace = namespace.into();
        pod.metadata_mut().resource_version = version;
        any(pod)
    };
    Change {
        old: Some(at(version - 1)),
        new: Some(at(version)),
        version,
    }
}

fn new_at(name: &str, namespace: &str, version: u64) -> Change {
    Change {
        old: None,
        ..updated(name, namespace, version)
    }
}

/// What each moment before a change shows, as `a@3`.
fn moments(history: &History, of: &Change) -> Vec<Vec<String>> {
    shown(&history.moments(of))
}

fn shown(moments: &Moments) -> Vec<Vec<String>> {
    let shown = |objects: Objects| {
        let mut all: Vec<String> = objects
            .into_iter()
            .map(|((_, _, key), before)| match before {
                Some(before) => format!("{}@{}", key.name, before.metadata().resource_version),
                None => format!("no {}", key.name),
            })
            .collect();
        all.sort();
        all
    };
    moments.iter().map(shown).collect()
}

#[test]
fn a_moment_after_a_change_has_what_came_since_and_not_the_change() {
    let mut history = History::new(secs(12));
    history.tick(secs(10));
    let made = new_at("d", "shop", 12);
    for change in [
        updated("a", "shop", 11),
        made.clone(),
        updated("a", "shop", 13),
        updated("x", "elsewhere", 14),
        updated("d", "shop", 15),
    ] {
        history.add(change);
    }
    history.tick(secs(14));
    history.add(updated("a", "shop", 16));
    assert_eq!(
        shown(&history.moments_after(&made)),
        [vec!["a@15", "no d"], vec!["a@15", "no d"]]
    );
    assert!(shown(&history.moments_after(&updated("a", "shop", 16))).is_empty());
}

#[test]
fn a_moment_before_a_change_has_all_objects_as_they_were() {
    let mut history = History::new(secs(12));
    history.tick(secs(10));
    // The watches of two resources are not in step: versions give the order.
    let deleted = Change {
        old: updated("c", "shop", 2).new,
        new: None,
        version: 14,
    };
    let made = new_at("d", "shop", 15);
    for change in [
        updated("a", "shop", 11),
        updated("b", "shop", 16),
        updated("x", "elsewhere", 13),
        deleted.clone(),
        made,
        updated("a", "shop", 12),
    ] {
        history.add(change);
    }
    assert_eq!(
        moments(&history, &deleted),
        [
            vec!["b@15", "c@2", "no d"],
            vec!["a@11", "b@15", "c@2", "no d"],
            vec!["a@10", "b@15", "c@2", "no d"],
        ]
    );
}

#[test]
fn moments_reach_as_far_as_the_caches_of_a_manager_may_lag_behind() {
    let mut history = History::new(secs(12));
    let seen = |history: &mut History, at: u64, version: u64| {
        history.tick(secs(at));
        history.add(updated("a", "shop", version));
    };
    for (at, version) in [(10, 11), (14, 12), (15, 13), (17, 14)] {
        seen(&mut history, at, version);
    }
    let last = updated("a", "shop", 15);
    // Seen with the others at 17 s: 14 s is as far as is gone back.
    assert_eq!(
        moments(&history, &last),
        [vec!["a@14"], vec!["a@13"], vec!["a@12"], vec!["a@11"]]
    );
    // What is forgotten is not undone, and the change itself always is.
    history.tick(secs(60));
    assert_eq!(moments(&history, &last), [vec!["a@14"]]);
}

#[test]
fn the_history_reaches_back_to_the_last_question_about_a_change() {
    let mut history = History::new(secs(60));
    history.tick(secs(10));
    history.add(updated("b", "shop", 12));
    history.tick(secs(72));
    let first = updated("a", "shop", 11);
    assert_eq!(moments(&history, &first), [vec!["a@10", "b@11"]]);
}

#[test]
fn the_history_has_a_bound() {
    let mut history = History::new(secs(12));
    for version in 0..HISTORY_MAX as u64 + 5 {
        history.add(updated("a", "shop", version + 1));
    }
    let first = updated("b", "shop", 1);
    let moments = moments(&history, &first);
    assert_eq!(moments, [vec!["a@5", "b@0"]]);
}

#[test]
fn a_write_that_is_waited_for_is_no_reason_why_its_object_is_gone() {
    let mut comparison = comparison();
    comparison.planned(ROLLER, &key(), labelled("old", "web"), secs(1));
    assert_eq!(
        kinds(comparison.observed(deleted(), true, secs(2))),
        [Kind::Agreed]
    );
    assert_eq!(comparison.unexplained(), 1);
    let want = &labelled("old", "web")[0];
    assert!(satisfied(want, deleted().old.as_ref(), None, secs(60)));
    assert!(!explains(want, deleted().old.as_ref(), None, secs(60)));
}

#[test]
fn a_deletion_is_not_overtaken_by_the_end_of_its_grace_period() {
    let ending = |seconds: Option<i64>| {
        let mut pod = child("a", "web");
        pod.metadata_mut().deletion_timestamp = seconds.map(|_| Default::default());
        pod.metadata_mut().deletion_grace_period_seconds = seconds;
        Some(any(pod))
    };
    let mut comparison = comparison();
    for (old, new) in [(None, Some(30)), (Some(30), Some(0))] {
        let change = Change {
            old: ending(old),
            new: ending(new),
            version: 0,
        };
        comparison.observed(change, old.is_none(), secs(1));
    }
    assert_eq!(comparison.unexplained(), 1);
}
