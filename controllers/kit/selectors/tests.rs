use kubernetes_proto::meta::{Entry, LabelSelector, LabelSelectorRequirement};

use super::{Error, Selector};

fn labels(pairs: &[(&str, &str)]) -> Vec<Entry> {
    pairs
        .iter()
        .map(|(key, value)| Entry {
            key: (*key).into(),
            value: (*value).into(),
        })
        .collect()
}

fn expression(key: &str, operator: &str, values: &[&str]) -> LabelSelectorRequirement {
    LabelSelectorRequirement {
        key: key.into(),
        operator: operator.into(),
        values: values.iter().map(|value| (*value).to_owned()).collect(),
    }
}

fn compiled(
    match_labels: &[(&str, &str)],
    match_expressions: Vec<LabelSelectorRequirement>,
) -> Result<Selector, Error> {
    Selector::compile(Some(&LabelSelector {
        match_labels: labels(match_labels),
        match_expressions,
    }))
}

#[test]
fn every_operator_matches_as_upstreams_does() {
    let none: &[(&str, &str)] = &[];
    for (key, operator, values, object, expected) in [
        ("a", "In", &["1", "2"][..], &[("a", "1")][..], true),
        ("a", "In", &["1", "2"], &[("a", "3")], false),
        ("a", "In", &["1"], none, false),
        ("a", "NotIn", &["1"], &[("a", "1")], false),
        ("a", "NotIn", &["1"], &[("a", "2")], true),
        ("a", "NotIn", &["1"], none, true),
        ("a", "Exists", &[], &[("a", "")], true),
        ("a", "Exists", &[], none, false),
        ("a", "DoesNotExist", &[], none, true),
        ("a", "DoesNotExist", &[], &[("a", "x")], false),
    ] {
        let selector = compiled(&[], vec![expression(key, operator, values)]).unwrap();
        assert_eq!(
            selector.matches(&labels(object)),
            expected,
            "{key} {operator} {values:?} on {object:?}"
        );
    }
}

#[test]
fn all_requirements_must_hold() {
    let selector = compiled(&[("app", "web")], vec![expression("tier", "Exists", &[])]).unwrap();
    assert!(selector.matches(&labels(&[("app", "web"), ("tier", "1")])));
    assert!(!selector.matches(&labels(&[("app", "web")])));
    assert!(!selector.matches(&labels(&[("app", "db"), ("tier", "1")])));
}

#[test]
fn none_selects_nothing_and_an_empty_one_everything_but_both_are_empty() {
    let nothing = Selector::compile(None).unwrap();
    let everything = compiled(&[], vec![]).unwrap();
    assert!(!nothing.matches(&[]) && everything.matches(&[]));
    assert!(nothing.is_empty() && everything.is_empty());
    assert_eq!(
        (nothing.text(), everything.text()),
        (None, Some(String::new()))
    );
    assert!(!compiled(&[("a", "1")], vec![]).unwrap().is_empty());
}

#[test]
fn an_unreadable_expression_is_named() {
    for (operator, values, expected) in [
        (
            "Equals",
            &["1"][..],
            "\"Equals\" is not a valid label selector operator",
        ),
        (
            "In",
            &[],
            "label \"a\": for 'in', 'notin' operators, values set can't be empty",
        ),
        (
            "Exists",
            &["1"],
            "label \"a\": values set must be empty for exists and does not exist",
        ),
    ] {
        let error = compiled(&[], vec![expression("a", operator, values)]).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn the_text_is_what_the_server_reads_sorted_by_key() {
    let selector = compiled(
        &[("z", "1"), ("a", "")],
        vec![
            expression("m", "In", &["y", "x"]),
            expression("n", "NotIn", &["q"]),
            expression("o", "Exists", &[]),
            expression("p", "DoesNotExist", &[]),
        ],
    )
    .unwrap();
    assert_eq!(
        selector.text().unwrap(),
        "a=,m in (x,y),n notin (q),o,!p,z=1"
    );
}

#[test]
fn a_selector_s_text_is_read_back() {
    for (text, again) in [
        ("app=web", "app=web"),
        ("app==web, tier in (a,b)", "app=web,tier in (a,b)"),
        ("x notin (a),!y,z", "x notin (a),!y,z"),
        ("a!=b", "a notin (b)"),
        ("", ""),
        ("app in (web)", "app=web"),
        ("app=", "app="),
    ] {
        let selector = Selector::parse(text).unwrap();
        assert_eq!(selector.text().as_deref(), Some(again), "{text}");
    }
    for text in ["app in web", "a b", "in (a)", "x in (a", "=a", "a>1"] {
        assert!(Selector::parse(text).is_err(), "{text}");
    }
}

#[test]
fn messages_show_a_selector_as_go_prints_it() {
    assert_eq!(super::in_messages(None), "nil");
    let selector: kubernetes_proto::meta::LabelSelector =
        serde_json::from_value(serde_json::json!({
            "matchLabels": {"b": "2", "a": "1"},
            "matchExpressions": [{"key": "x", "operator": "In", "values": ["y", "z"]}]
        }))
        .unwrap();
    assert_eq!(
        super::in_messages(Some(&selector)),
        "&LabelSelector{MatchLabels:map[string]string{a: 1,b: 2,},MatchExpressions:[]LabelSelectorRequirement{\
         LabelSelectorRequirement{Key:x,Operator:In,Values:[y z],},},}"
    );
}
