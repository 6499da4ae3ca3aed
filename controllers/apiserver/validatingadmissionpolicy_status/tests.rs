//! The corpus holds expressions with the warnings that kube-controller-manager 1.36.3 gives of them against
//! the same schemas; the number in a type's name is left out of it.

use controllers_kit::{
    Answer, Factory, Object, PatchKind, Plan, Verb,
    catalogue::{Catalogue, Entry},
    openapi,
    testing::*,
};
use kubernetes_proto::admissionregistration::{
    MatchResources, NamedRuleWithOperations, ParamKind, Rule, RuleWithOperations,
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicySpec, Validation, Variable,
};
use serde_json::{Value, json};
use std::sync::Arc;

use super::{
    ValidatingAdmissionPolicyStatus,
    kinds::{self, Found, Kind, Served},
    schema,
    warnings::{self, Against, Outcome},
};

fn corpus() -> Value {
    serde_json::from_str(include_str!("corpus.json")).expect("the corpus is JSON")
}

fn kind(name: &str) -> Kind {
    Kind::of("example.com/v1", name).expect("a kind")
}

fn schemas(document: &Value, name: &str) -> Option<Arc<Value>> {
    match openapi::answer(document.clone(), "example.com", "v1", name) {
        Answer::Object(answer) => Some(answer),
        _ => None,
    }
}

fn validation(expression: &str) -> Validation {
    Validation {
        expression: expression.to_owned(),
        ..Validation::default()
    }
}

fn texts(value: &Value) -> Vec<String> {
    let all = value.as_array().into_iter().flatten();
    all.map(|text| text.as_str().unwrap_or_default().to_owned())
        .collect()
}

/// The warning of one expression, with the numbers of types left out.
fn warning(document: &Value, group: &Value, expression: &str) -> (String, usize) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let variables = group["variables"].as_array().into_iter().flatten();
    let spec = ValidatingAdmissionPolicySpec {
        validations: vec![validation(expression)],
        variables: variables
            .map(|variable| Variable {
                name: text(&variable["name"]),
                expression: text(&variable["expression"]),
            })
            .collect(),
        ..ValidatingAdmissionPolicySpec::default()
    };
    let mut names = texts(&group["kinds"]);
    names.sort();
    let params = group["params"].as_str();
    let kinds: Vec<(Kind, Arc<Value>)> = names
        .iter()
        .filter_map(|name| Some((kind(name), schemas(document, name)?)))
        .collect();
    let given = params.map(|name| (kind(name), schemas(document, name)));
    let against = Against {
        kinds: kinds
            .iter()
            .map(|(kind, schemas)| (kind.clone(), &**schemas))
            .collect(),
        params: given
            .as_ref()
            .map(|(kind, schemas)| (kind.clone(), schemas.as_deref())),
        spec: &spec,
    };
    let Outcome {
        warnings,
        unchecked,
    } = warnings::check(&against);
    let mut found = warnings
        .first()
        .map(|warning| warning.warning.clone())
        .unwrap_or_default();
    for name in names.iter().map(String::as_str).chain(params) {
        found = found.replace(&warnings::type_name(&kind(name)), &format!("{name}#"));
    }
    (found, unchecked)
}

#[test]
fn warnings_are_those_of_kube_controller_manager() {
    let corpus = corpus();
    let (mut count, mut equal, mut unsaid) = (0, 0, 0);
    let mut wrong = Vec::new();
    for group in corpus["groups"].as_array().into_iter().flatten() {
        for case in group["cases"].as_array().into_iter().flatten() {
            let expression = case["expression"].as_str().unwrap_or_default();
            let expected = case["warning"].as_str().unwrap_or_default();
            let (found, unchecked) = warning(&corpus["document"], group, expression);
            count += 1;
            if found == expected {
                equal += 1;
            } else if found.is_empty() && unchecked > 0 {
                unsaid += 1;
                // Only what the API server refuses to store, and messages of protobuf.
                let is_expected =
                    expected.contains("Syntax error") || expression.contains("google.protobuf");
                if !is_expected {
                    wrong.push(format!(
                        "{expression}\nexpected, but unchecked:\n{expected}"
                    ));
                }
            } else {
                wrong.push(format!(
                    "{expression}\nexpected:\n{expected}\nfound:\n{found}"
                ));
            }
        }
    }
    println!("{count} expressions: {equal} warnings equal, {unsaid} left unchecked");
    assert!(
        wrong.is_empty(),
        "{} differ:\n{}",
        wrong.len(),
        wrong.join("\n\n")
    );
    assert!(count > 500);
    assert!(equal * 100 >= count * 99);
}

/// Upstream's own cases of type checking (typechecking_test.go and controller_test.go): what is checked, the
/// schema of every kind, and each warning's field with a part of its text.
#[test]
fn upstream_s_own_cases_of_type_checking_end_as_there() {
    struct Case {
        name: &'static str,
        /// None: it can't be resolved.
        schema: Option<Value>,
        validations: &'static [(&'static str, &'static str)],
        variables: &'static [(&'static str, &'static str)],
        params: bool,
        warnings: &'static [(&'static str, &'static str)],
    }
    fn case(
        name: &'static str,
        schema: Value,
        validations: &'static [(&'static str, &'static str)],
        warnings: &'static [(&'static str, &'static str)],
    ) -> Case {
        Case {
            name,
            schema: Some(schema),
            validations,
            variables: &[],
            params: false,
            warnings,
        }
    }
    const FIRST: &str = "spec.validations[0].expression";
    const SECOND: &str = "spec.validations[1].expression";
    let object = |properties: Value| json!({"type": "object", "properties": properties});
    let text = || object(json!({"foo": {"type": "string"}}));
    let number = || object(json!({"foo": {"type": "integer", "format": "int64"}}));
    let any = object(json!({
        "spec": {"type": "object", "properties": {"text": {"type": "string"}}},
        "status": {"type": "object", "properties": {
            "problematicProperty": {"type": "object", "additionalProperties": true},
        }},
    }));
    let spec = object(json!({"spec": {"type": "object", "properties": {
        "replicas": {"type": "integer", "format": "int32"},
    }}}));
    let foo: &[(&str, &str)] = &[("object.foo == 'bar'", "")];
    let cases = [
        case("empty", text(), &[], &[]),
        Case {
            schema: None,
            ..case("unresolved schema", Value::Null, foo, &[])
        },
        case("passed check", text(), foo, &[]),
        case(
            "undefined field",
            object(json!({"bar": {"type": "string"}})),
            foo,
            &[(FIRST, "undefined field 'foo'")],
        ),
        case(
            "field type mismatch",
            number(),
            foo,
            &[(FIRST, "found no matching overload")],
        ),
        Case {
            params: true,
            ..case(
                "params",
                text(),
                &[("object.foo == params.bar", "")],
                &[(FIRST, "undefined field 'bar'")],
            )
        },
        Case {
            params: true,
            ..case(
                "params with untyped schema",
                json!({}),
                &[("params != null", "")],
                &[],
            )
        },
        case(
            "multiple expressions",
            text(),
            &[("object.foo == 'bar'", ""), ("object.bar == 'foo'", "")],
            &[(SECOND, "undefined field 'bar'")],
        ),
        case(
            "message expressions",
            text(),
            &[("object.foo == 'bar'", "object.foo + 114514")],
            &[(
                "spec.validations[0].messageExpression",
                "found no matching overload",
            )],
        ),
        case(
            "authorizer",
            text(),
            &[(
                "authorizer.group('').resource('endpoints').check('create').allowed()",
                "",
            )],
            &[],
        ),
        case(
            "authorizer invalid",
            text(),
            &[("authorizer.allowed()", "")],
            &[(
                FIRST,
                "found no matching overload for 'allowed' applied to 'kubernetes.authorization.Authorizer",
            )],
        ),
        case(
            "additionalProperties: true",
            any,
            &[("has(object.spec.text)", "")],
            &[],
        ),
        case("schema without type", json!({}), &[("true", "")], &[]),
        Case {
            variables: &[("works", "true")],
            ..case("variables valid", number(), &[("variables.works", "")], &[])
        },
        Case {
            variables: &[("works", "true")],
            ..case(
                "variables missing field",
                number(),
                &[("variables.nonExisting", "")],
                &[(FIRST, "undefined field 'nonExisting'")],
            )
        },
        Case {
            variables: &[("name", "'something'")],
            ..case(
                "variables field wrong type",
                number(),
                &[("variables.name == object.foo", "")],
                &[(
                    FIRST,
                    "found no matching overload for '_==_' applied to '(string, int)'",
                )],
            )
        },
        Case {
            variables: &[("name", "object.foo == 'str'")],
            ..case(
                "error in variables, not reported during type checking",
                number(),
                &[("variables.name == object.foo", "")],
                &[],
            )
        },
        case(
            "deployment with correct expression",
            spec.clone(),
            &[("object.spec.replicas > 1", "")],
            &[],
        ),
        case(
            "deployment with type confusion",
            spec.clone(),
            &[
                ("object.spec.replicas < 100", ""),
                ("object.spec.replicas > '1'", ""),
            ],
            &[(
                SECOND,
                "found no matching overload for '_>_' applied to '(int, string)'",
            )],
        ),
        case(
            "two expressions different type checking errors",
            spec.clone(),
            &[
                ("object.spec.nonExistingFirst > 1", ""),
                ("object.spec.replicas > '1'", ""),
            ],
            &[
                (FIRST, "undefined field 'nonExistingFirst'"),
                (
                    SECOND,
                    "found no matching overload for '_>_' applied to '(int, string)'",
                ),
            ],
        ),
        case(
            "one expression, two warnings",
            spec,
            &[
                ("object.spec.replicas < 100", ""),
                (
                    "object.spec.replicas > '1' && object.spec.nonExisting == 1",
                    "",
                ),
            ],
            &[
                (SECOND, "undefined field 'nonExisting'"),
                (
                    SECOND,
                    "found no matching overload for '_>_' applied to '(int, string)'",
                ),
            ],
        ),
    ];
    for case in &cases {
        let named = |name: &str| {
            let mut schema = case.schema.clone()?;
            schema["x-kubernetes-group-version-kind"] =
                json!([{"group": "example.com", "version": "v1", "kind": name}]);
            schemas(&json!({"components": {"schemas": {name: schema}}}), name)
        };
        let policy = ValidatingAdmissionPolicySpec {
            validations: (case.validations.iter())
                .map(|(expression, message)| Validation {
                    message_expression: (*message).to_owned(),
                    ..validation(expression)
                })
                .collect(),
            variables: (case.variables.iter())
                .map(|(name, expression)| Variable {
                    name: (*name).to_owned(),
                    expression: (*expression).to_owned(),
                })
                .collect(),
            ..ValidatingAdmissionPolicySpec::default()
        };
        let (kinds, params) = (named("Deployment"), named("Config"));
        let outcome = warnings::check(&Against {
            kinds: kinds
                .iter()
                .map(|schemas| (kind("Deployment"), &**schemas))
                .collect(),
            params: case.params.then(|| (kind("Config"), params.as_deref())),
            spec: &policy,
        });
        let name = case.name;
        assert_eq!(outcome.unchecked, 0, "{name}");
        let fields: Vec<&str> = outcome
            .warnings
            .iter()
            .map(|one| one.field_ref.as_str())
            .collect();
        let mut wanted: Vec<&str> = case.warnings.iter().map(|(field, _)| *field).collect();
        wanted.dedup();
        assert_eq!(fields, wanted, "{name}: {:?}", outcome.warnings);
        for (field, part) in case.warnings {
            let found = outcome.warnings.iter().find(|one| one.field_ref == *field);
            let found = found.map(|one| one.warning.as_str()).unwrap_or_default();
            assert!(found.contains(part), "{name}: {found}");
        }
    }
    println!(
        "{} of upstream's {} cases end as there",
        cases.len(),
        cases.len()
    );
}

#[test]
fn an_expression_of_any_size_and_nesting_is_checked_in_bounded_time_or_not_at_all() {
    let corpus = corpus();
    let widget = json!({ "kinds": ["Widget"] });
    let nested = |open: &str, close: &str, count: usize| {
        format!("{}1{}", open.repeat(count), close.repeat(count))
    };
    let doubling = ".optMap(x, x)".repeat(60);
    for (expression, is_checked) in [
        (nested("(", ")", 100), true),
        (nested("(", ")", 10_000), false),
        (nested("[", "]", 50_000), false),
        (nested("-(", ")", 40_000), false),
        (nested("[1].map(x, ", ")", 60), true),
        (nested("[1].map(x, ", ")", 5_000), false),
        (format!("object{}", ".a".repeat(30_000)), false),
        (format!("1{}", "+1".repeat(300)), true),
        (format!("1{}", "+1".repeat(40_000)), false),
        (format!("true{}", "&&true".repeat(15_000)), true),
        (format!("[{}]", "1,".repeat(40_000)), true),
        (format!("[{}]", "[],".repeat(30_000)), true),
        (format!("object.spec.?name{doubling}"), false),
        (nested("{1: [", "]}", 60), true),
        (
            format!("{}1", "[1].map(x, {x: x}).map(x, {x: x})".repeat(400)),
            false,
        ),
        ("'\\".to_owned(), false),
        ("\u{0}".to_owned(), false),
        ("a".repeat(100_001), false),
        (String::new(), false),
    ] {
        let begin = std::time::Instant::now();
        let (_, unchecked) = warning(&corpus["document"], &widget, &expression);
        let shown: String = expression.chars().take(40).collect();
        assert_eq!(unchecked == 0, is_checked, "{shown}");
        assert!(begin.elapsed().as_secs() < 20, "{shown}");
    }
}

#[test]
fn the_work_for_one_policy_is_bounded() {
    let corpus = corpus();
    let expression = format!("object.spec.nope == '{}'", "x".repeat(2000));
    let spec = ValidatingAdmissionPolicySpec {
        validations: vec![validation(&expression); 1500],
        ..ValidatingAdmissionPolicySpec::default()
    };
    let widget = schemas(&corpus["document"], "Widget").expect("schemas");
    let outcome = warnings::check(&Against {
        kinds: vec![(kind("Widget"), &*widget); 4],
        params: None,
        spec: &spec,
    });
    let size: usize = outcome.warnings.iter().map(|w| w.warning.len()).sum();
    assert!(size <= 1 << 20, "{size}");
    assert!(outcome.unchecked > 1500, "{}", outcome.unchecked);
}

#[test]
fn names_of_fields_are_escaped_where_they_are_no_identifiers() {
    for (name, expected) in [
        ("replicas", Some("replicas")),
        ("namespace", Some("__namespace__")),
        ("max-surge", Some("max__dash__surge")),
        ("a.b/c", Some("a__dot__b__slash__c")),
        ("a__b", Some("a__underscores__b")),
        ("a___b", Some("a__underscores___b")),
        ("_a_", Some("_a_")),
        ("1st", None),
        ("a b", None),
        ("\u{e9}", None),
        ("", None),
    ] {
        assert_eq!(schema::escaped(name).as_deref(), expected, "{name}");
    }
}

fn entry(
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
) -> Entry {
    Entry {
        resource: kubernetes_proto::metadata_only(group, version, kind, plural, true)
            .expect("there is room"),
        verbs: Vec::new(),
        subresources: Vec::new(),
        preferred: true,
    }
}

fn catalogue() -> Catalogue {
    let entries = vec![
        entry("", "v1", "Pod", "pods"),
        entry("", "v1", "Event", "events"),
        entry("apps", "v1", "Deployment", "deployments"),
        entry("events.k8s.io", "v1", "Event", "events"),
        entry("example.com", "v1", "Widget", "widgets"),
        entry("example.com", "v1", "Gadget", "gadgets"),
    ];
    Catalogue::new(entries, Default::default(), 1)
}

fn rule(groups: &[&str], versions: &[&str], resources: &[&str]) -> NamedRuleWithOperations {
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    NamedRuleWithOperations {
        rule_with_operations: Some(RuleWithOperations {
            rule: Some(Rule {
                api_groups: owned(groups),
                api_versions: owned(versions),
                resources: owned(resources),
            }),
        }),
    }
}

fn spec(rules: Vec<NamedRuleWithOperations>, expression: &str) -> ValidatingAdmissionPolicySpec {
    ValidatingAdmissionPolicySpec {
        match_constraints: Some(MatchResources {
            resource_rules: rules,
        }),
        validations: vec![validation(expression)],
        ..ValidatingAdmissionPolicySpec::default()
    }
}

#[test]
fn rules_name_kinds_exactly_or_not_at_all() {
    let many: Vec<String> = (0..12).map(|number| format!("things{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let found = Found::from([(
        "/apis/example.com/v2".to_owned(),
        many.iter()
            .map(|name| ((*name).to_owned(), name.to_uppercase()))
            .collect(),
    )]);
    for (rules, expected) in [
        (vec![], ""),
        (
            vec![rule(&["apps"], &["v1"], &["deployments"])],
            "apps/v1, Kind=Deployment",
        ),
        (
            vec![
                rule(&["apps"], &["v1"], &["deployments"]),
                rule(&[""], &["v1"], &["pods"]),
            ],
            "/v1, Kind=Pod; apps/v1, Kind=Deployment",
        ),
        (vec![rule(&["apps"], &["v1"], &["*"])], ""),
        (
            vec![rule(&["apps"], &["v1"], &["pods/*", "deployments/scale"])],
            "",
        ),
        (
            vec![
                rule(&["apps"], &["v1"], &["deployments"]),
                rule(&["apps"], &["*"], &["deployments"]),
                rule(&["apps", "*"], &["v1"], &["deployments"]),
            ],
            "apps/v1, Kind=Deployment",
        ),
        (
            vec![rule(&["apps"], &["v1"], &["Deployment", "nothing"])],
            "apps/v1, Kind=Deployment",
        ),
        // The core group matches any.
        (
            vec![rule(&[""], &["v1"], &["events"])],
            "/v1, Kind=Event; events.k8s.io/v1, Kind=Event",
        ),
        // The tenth kind of a rule is the last of all.
        (
            vec![
                rule(&["example.com"], &["v2"], &many),
                rule(&["apps"], &["v1"], &["deployments"]),
            ],
            "example.com/v2, Kind=THINGS0; example.com/v2, Kind=THINGS1; example.com/v2, Kind=THINGS10; example.com/v2, Kind=THINGS11; example.com/v2, Kind=THINGS2; example.com/v2, Kind=THINGS3; example.com/v2, Kind=THINGS4; example.com/v2, Kind=THINGS5; example.com/v2, Kind=THINGS6; example.com/v2, Kind=THINGS7",
        ),
    ] {
        let (kinds, _) = kinds::of(&spec(rules, "true"), &Served::new(&catalogue()), &found);
        let shown: Vec<String> = kinds.iter().map(ToString::to_string).collect();
        assert_eq!(shown.join("; "), expected);
    }
}

#[test]
fn rules_that_multiply_without_end_are_cut_off() {
    let many: Vec<String> = (0..5000).map(|number| format!("x{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let spec = spec(vec![rule(&many, &many, &many)], "true");
    let begin = std::time::Instant::now();
    let served = Served::new(&catalogue());
    let (kinds, is_cut) = kinds::of(&spec, &served, &Found::new());
    assert!(kinds.is_empty() && is_cut);
    assert!(kinds::unknown(&spec, &served).len() <= kinds::READS_MAX);
    assert!(begin.elapsed().as_secs() < 5);
}

fn policy(spec: ValidatingAdmissionPolicySpec) -> ValidatingAdmissionPolicy {
    let mut policy = ValidatingAdmissionPolicy {
        spec: Some(spec),
        ..ValidatingAdmissionPolicy::default()
    };
    policy.metadata_mut().name = "checks".into();
    policy.metadata_mut().generation = 1;
    policy
}

fn widgets() -> Vec<NamedRuleWithOperations> {
    vec![rule(&["example.com"], &["v1"], &["widgets"])]
}

/// With the corpus's document served.
fn start() -> World {
    World::at("12:00:00").with_catalogue(catalogue()).serving(
        "/openapi/v3/apis/example.com/v1",
        corpus()["document"].clone(),
    )
}

fn status(world: &World) -> Value {
    let policy = world.get::<ValidatingAdmissionPolicy>("checks");
    let status = policy.status.clone().unwrap_or_default();
    let checking = status.type_checking.unwrap_or_default();
    json!([
        status.observed_generation,
        checking
            .expression_warnings
            .iter()
            .map(|warning| format!("{}: {}", warning.field_ref, warning.warning))
            .collect::<Vec<_>>(),
    ])
}

const NOPE: &str = "spec.validations[0].expression: example.com/v1, Kind=Widget: ERROR: <input>:1:12: undefined field 'nope'\n | object.spec.nope == 1\n | ...........^\n";

#[test]
fn a_generation_is_checked_once_and_its_warnings_are_applied_with_uid_and_version() {
    let mut world = start().with(policy(spec(widgets(), "object.spec.nope == 1")));
    let plan = world.plan::<ValidatingAdmissionPolicyStatus>("checks");
    let actions: Vec<_> = plan.stages.iter().flatten().collect();
    assert_eq!(actions.len(), 1);
    assert!(!actions[0].uid.is_empty() && actions[0].resource_version > 0);
    let Verb::Patch {
        subresource: "status",
        kind: PatchKind::Apply {
            manager: "validatingadmissionpolicy-status",
        },
        patch,
        ..
    } = &actions[0].verb
    else {
        panic!("{:?}", actions[0].verb);
    };
    assert_eq!(patch["status"]["observedGeneration"], 1);
    world.apply(&plan).expect_success();
    assert_eq!(status(&world), json!([1, [NOPE]]));
    assert_eq!(
        world.plan::<ValidatingAdmissionPolicyStatus>("checks"),
        Plan::nothing()
    );
    // The next generation is clean: no list at all, as upstream writes it.
    let mut next = (*world.get::<ValidatingAdmissionPolicy>("checks")).clone();
    next.metadata_mut().generation = 2;
    next.spec = Some(spec(widgets(), "object.spec.name == 'x'"));
    let plan = start()
        .with(next)
        .plan::<ValidatingAdmissionPolicyStatus>("checks");
    let Some(Verb::Patch { patch, .. }) = plan.stages.iter().flatten().next().map(|a| &a.verb)
    else {
        panic!("no patch");
    };
    assert_eq!(
        patch["status"],
        json!({ "observedGeneration": 2, "typeChecking": {} })
    );
}

#[test]
fn a_kind_without_schema_is_skipped_and_one_that_cannot_be_read_is_tried_again() {
    let unserved = World::at("12:00:00")
        .with_catalogue(catalogue())
        .with(policy(spec(widgets(), "object.spec.nope == 1")));
    let mut world = unserved.clone();
    let plan = world.plan::<ValidatingAdmissionPolicyStatus>("checks");
    world.apply(&plan).expect_success();
    assert_eq!(status(&world), json!([1, []]));
    let mut failing = unserved;
    failing.serve(
        "/openapi/v3/apis/example.com/v1",
        Answer::Failed("no".to_owned()),
    );
    let refusal = failing.refusal::<ValidatingAdmissionPolicyStatus>("checks");
    assert_eq!(
        refusal.to_string(),
        "the schema of example.com/v1, Kind=Widget can't be read: no"
    );
}

#[test]
fn a_resource_that_the_catalogue_lacks_is_read_live() {
    let widgets = json!({ "resources": [
        { "name": "widgets", "singularName": "widget", "kind": "Widget" },
        { "name": "widgets/status", "kind": "Widget" },
    ] });
    let mut world = start()
        .with_catalogue(Catalogue::new(
            vec![entry("", "v1", "Pod", "pods")],
            Default::default(),
            1,
        ))
        .serving("/apis/example.com/v1", widgets)
        .with(policy(spec(self::widgets(), "object.spec.nope == 1")));
    world.settle(&[Factory::of::<ValidatingAdmissionPolicyStatus>()]);
    assert_eq!(status(&world), json!([1, [NOPE]]));
}

#[test]
fn two_messages_of_protobuf_are_types_of_the_language() {
    let corpus = corpus();
    for name in ["Duration", "Timestamp"] {
        let expression = format!("type(object.nope) == google.protobuf.{name}");
        let (found, unchecked) = warning(&corpus["document"], &corpus["groups"][0], &expression);
        assert!(found.contains("undefined field 'nope'"), "{found}");
        assert_eq!(unchecked, 0);
        let expression = format!("1 == google.protobuf.{name}");
        let (found, _) = warning(&corpus["document"], &corpus["groups"][0], &expression);
        let types = format!("'(int, type({}))'", name.to_lowercase());
        assert!(found.contains(&types), "{found}");
    }
}

#[test]
fn an_unchecked_policy_is_counted() {
    let world = start().with(policy(spec(widgets(), "google.protobuf.Struct{} == 1")));
    let plan = world.plan::<ValidatingAdmissionPolicyStatus>("checks");
    let counts: Vec<_> = plan.measures.iter().map(|m| (m.name, m.value)).collect();
    assert_eq!(counts, [("manifold_vap_unchecked_total", 1.0)]);
}

pub fn worlds() -> Vec<World> {
    let params = || ParamKind {
        api_version: "example.com/v1".to_owned(),
        kind: "Gadget".to_owned(),
    };
    let mut with_params = spec(widgets(), "params.spec.limit == object.spec.name");
    with_params.param_kind = Some(params());
    vec![
        start().with(policy(spec(widgets(), "object.spec.nope == 1"))),
        start().with(policy(spec(widgets(), "true"))),
        start().with(policy(with_params)),
        start().with(policy(spec(
            vec![rule(&["gone.example"], &["v1"], &["x"])],
            "true",
        ))),
    ]
}
