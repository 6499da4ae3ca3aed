use super::*;

#[test]
fn quantities_of_memory_are_read() {
    let table = [
        ("256Mi", Some(256 << 20)),
        ("1Gi", Some(1 << 30)),
        ("1.5Gi", Some(3 << 29)),
        ("128974848", Some(128_974_848)),
        ("129M", Some(129_000_000)),
        ("1Ei", None),
        ("many", None),
    ];
    for (text, expected) in table {
        assert_eq!(bytes(text), expected, "{text}");
    }
}

#[test]
fn a_policy_is_asked_in_the_namespaces_that_its_selector_names() {
    let named = |operator: &str, values: &[&str]| serde_json::json!({"key": "kubernetes.io/metadata.name", "operator": operator, "values": values});
    let table = [
        (vec![], "one", true),
        (vec![named("In", &["one", "two"])], "one", true),
        (vec![named("In", &["one", "two"])], "three", false),
        // Both must hold.
        (
            vec![named("In", &["one", "two"]), named("In", &["two"])],
            "one",
            false,
        ),
    ];
    for (expressions, namespace, expected) in table {
        let selector = serde_json::json!({ "matchExpressions": expressions });
        let constraints = serde_json::json!({ "namespaceSelector": selector });
        let policy = serde_json::json!({"spec": {"matchConstraints": constraints}});
        assert_eq!(
            covered(&policy).holds_for(namespace),
            expected,
            "{policy} in {namespace}"
        );
    }
    assert_eq!(covered(&Value::Null), Covered::All);
}
