use controllers_kit::testing::{World, controller_revision, stateful_set};
use controllers_kit::{Answer, Answers, Query, Snapshot};
use serde_json::{Value, json};

use super::*;

/// A StatefulSet's template as the API server 1.36.3 gave it, and the revision's name that
/// kube-controller-manager gave.
const TEMPLATE: &str = r#"{"metadata": {"labels": {"app": "par"}}, "spec": {"containers": [{"image": "app:1", "imagePullPolicy": "IfNotPresent", "name": "main", "resources": {}, "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}], "dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "schedulerName": "default-scheduler", "securityContext": {}, "terminationGracePeriodSeconds": 0}}"#;
const NAME: &str = "par-7b747444b4";

fn live(template: &Value) -> Result<Vec<u8>, Refusal> {
    let set = stateful_set("par").generation_of(1);
    let object = json!({
        "metadata": {"uid": set.metadata().uid, "generation": 1},
        "spec": {"template": template},
    });
    let answers = Answers::from([(super::live(&set), Answer::Object(Arc::new(object)))]);
    let world = World::at("12:00:00");
    live_data(&set, &Snapshot::new(&world, &answers, world.now()))
}

trait Of {
    fn generation_of(self, generation: i64) -> Self;
}

impl<T: Object> Of for T {
    fn generation_of(mut self, generation: i64) -> Self {
        self.metadata_mut().generation = generation;
        self
    }
}

#[test]
fn a_revision_has_the_name_that_upstream_gives_it() {
    let template: Value = serde_json::from_str(TEMPLATE).unwrap();
    let data = live(&template).unwrap();
    assert_eq!(name("par", &name_hash(&data, 0)), NAME);
    assert_ne!(name("par", &name_hash(&data, 1)), NAME);
}

#[test]
fn data_is_written_as_go_writes_it() {
    let table = [
        (json!({"b": 1, "a": 2}), r#"{"a":2,"b":1}"#),
        (json!({"a": null, "b": [null]}), r#"{"b":[null]}"#),
        (json!("<a> & b"), r#""\u003ca\u003e \u0026 b""#),
        (json!("\u{2028}\u{2029}"), r#""\u2028\u2029""#),
        (json!("\u{1}\n\t\"\\"), "\"\\u0001\\n\\t\\\"\\\\\""),
        (json!("é"), "\"é\""),
        (json!(9_007_199_254_740_993_i64), "9007199254740992"),
        (json!(-5), "-5"),
        (json!(true), "true"),
        (json!({}), "{}"),
        (json!([]), "[]"),
    ];
    for (value, text) in table {
        assert_eq!(go_json(&value), text, "{value}");
    }
}

#[test]
fn an_older_revision_may_lack_what_is_filled_in_and_nothing_else() {
    let old =
        json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "a"}]}}}});
    let with = |field: &str, value: Value| {
        let mut new = old.clone();
        new["spec"]["template"]["spec"]["containers"][0][field] = value;
        new
    };
    let table = [
        (old.clone(), true),
        (with("terminationMessagePolicy", json!("File")), true),
        (
            with("terminationMessagePath", json!("/dev/termination-log")),
            true,
        ),
        (with("imagePullPolicy", json!("Always")), true),
        (with("resources", json!({})), true),
        (with("securityContext", json!({"capabilities": {}})), true),
        (with("image", json!("b")), false),
        (
            with("terminationMessagePolicy", json!("FallbackToLogsOnError")),
            false,
        ),
        (with("env", json!([{"name": "A"}])), false),
        (with("command", json!(["sh"])), false),
        (with("tty", json!(true)), false),
    ];
    for (new, same) in table {
        let bytes = |value: &Value| go_json(value).into_bytes();
        assert_eq!(are_equivalent(&bytes(&new), &bytes(&old)), same, "{new}");
        if !same {
            assert!(!are_equivalent(&bytes(&old), &bytes(&new)), "{new}");
        }
    }
    let zero_time = br#"{"spec":{"template":{"metadata":{"creationTimestamp":null}}}}"#;
    assert!(are_equivalent(
        br#"{"spec":{"template":{"metadata":{}}}}"#,
        zero_time
    ));
    assert!(!are_equivalent(b"{}", b"no JSON"));
}

#[test]
fn revisions_stand_in_order_of_number_age_and_name() {
    use controllers_kit::testing::Common;
    let mut revisions: Vec<_> = [
        controller_revision("d", 2, "").created("10:00:00"),
        controller_revision("c", 1, "").created("11:00:00"),
        controller_revision("b", 1, "").created("10:00:00"),
        controller_revision("a", 1, "").created("11:00:00"),
    ]
    .map(Arc::new)
    .into();
    sort(&mut revisions);
    let names: Vec<&str> = revisions.iter().map(|one| &*one.metadata().name).collect();
    assert_eq!(names, ["b", "a", "c", "d"]);
}

#[test]
fn the_object_that_was_read_must_be_the_one_that_was_seen() {
    let set = stateful_set("par").generation_of(2);
    let world = World::at("12:00:00");
    let read = |answers: &Answers| {
        live_data(&set, &Snapshot::new(&world, answers, world.now()))
            .unwrap_err()
            .to_string()
    };
    let of = |answer: Answer| -> Answers { [(super::live(&set), answer)].into() };
    let object = |uid: &str, generation: i64| {
        Answer::Object(Arc::new(
            json!({"metadata": {"uid": uid, "generation": generation}}),
        ))
    };
    let uid = set.metadata().uid.as_str();
    let table = [
        (Answers::new(), "was not read"),
        (of(Answer::Missing), "is gone"),
        (of(Answer::Failed("no way".into())), "no way"),
        (of(object(uid, 3)), "has changed since"),
        (of(object("another", 2)), "has changed since"),
    ];
    for (answers, reason) in table {
        assert!(read(&answers).contains(reason), "{reason}");
    }
    assert!(matches!(super::live(&set), Query::Live { .. }));
}

#[test]
fn a_revision_gives_its_template_back() {
    let of = |data: &str| template(&controller_revision("web-1", 1, data));
    let template = of(r#"{"spec":{"template":{"$patch":"replace","spec":{"a":1}}}}"#).unwrap();
    assert_eq!(Value::Object(template), json!({"spec": {"a": 1}}));
    for wrong in ["", "{}", "[]", r#"{"spec":{"template":1}}"#] {
        assert_eq!(of(wrong), None, "{wrong}");
    }
}

#[test]
fn a_long_owner_s_name_is_cut() {
    assert_eq!(name(&"x".repeat(300), "abc").len(), 223 + 4);
    assert_eq!(name("web", "abc"), "web-abc");
}
