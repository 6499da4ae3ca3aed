use controllers_kit::{Failure, Key, NOT_FOUND, Only, Plan, Propagation, Verb, Written};
use kubernetes_proto::{
    Object, core, envelope,
    meta::{ObjectMeta, PartialObjectMetadata, StatusCause, StatusDetails},
};
use node_cache::api::Status;
use prost::Message;
use serde_json::{Value, json};

use super::{failure, request, slow_start, written};

fn pod() -> core::Pod {
    core::Pod {
        metadata: Some(ObjectMeta {
            name: "web-1".into(),
            namespace: "shop".into(),
            uid: "u-1".into(),
            resource_version: 7,
            ..ObjectMeta::default()
        }),
        ..core::Pod::default()
    }
}

#[test]
fn a_create_of_json_is_sent_as_it_is() {
    let mut plan = Plan::nothing();
    let json = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web-1"}, "spec": {"unheardOf": 1}});
    plan.create_json::<core::Pod>(Key::new("shop", "web-1"), &json);
    let sent = request(plan.actions().next().unwrap());
    assert_eq!(
        (sent.method, sent.content_type),
        ("POST", "application/json")
    );
    assert_eq!(
        sent.path,
        "/api/v1/namespaces/shop/pods?fieldManager=kube-controller-manager"
    );
    assert_eq!(serde_json::from_slice::<Value>(&sent.body).unwrap(), json);
}

#[test]
fn a_rewrite_is_an_apply_of_nothing_to_the_version_that_was_seen() {
    let mut plan = Plan::nothing();
    let pod = pod();
    plan.rewrite(core::Pod::resource(), Object::metadata(&pod), "the-manager");
    let sent = request(plan.actions().next().unwrap());
    assert_eq!(
        (sent.method, sent.content_type),
        ("PATCH", "application/apply-patch+yaml")
    );
    assert_eq!(
        sent.path,
        "/api/v1/namespaces/shop/pods/web-1?fieldManager=the-manager"
    );
    assert_eq!(
        serde_json::from_slice::<Value>(&sent.body).unwrap(),
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "web-1", "namespace": "shop", "uid": "u-1", "resourceVersion": "7",
            },
        })
    );
}

#[test]
fn a_create_is_an_envelope_round_the_message() {
    let mut plan = Plan::nothing();
    plan.create(&pod());
    let sent = request(plan.actions().next().unwrap());
    assert_eq!(
        (sent.method, sent.content_type),
        ("POST", kubernetes_proto::envelope::PROTOBUF)
    );
    assert_eq!(
        sent.path,
        "/api/v1/namespaces/shop/pods?fieldManager=kube-controller-manager"
    );
    let envelope = envelope::open(&sent.body).unwrap();
    assert_eq!((envelope.api_version, envelope.kind), ("v1", "Pod"));
    assert_eq!(core::Pod::decode(envelope.raw).unwrap(), pod());
    assert_eq!(
        written(&sent.body),
        Written {
            uid: "u-1".into(),
            resource_version: 7,
            gone: false
        }
    );
}

#[test]
fn a_patch_insists_on_the_object_and_version_seen() {
    let mut plan = Plan::nothing();
    let mut new = pod();
    new.metadata_mut().set_label("a", "b");
    plan.update(&pod(), &new);
    let sent = request(plan.actions().next().unwrap());
    let body: Value = serde_json::from_slice(&sent.body).unwrap();
    assert_eq!(
        body,
        json!({"metadata": {"uid": "u-1", "resourceVersion": "7", "labels": {"a": "b"}}})
    );
    plan.stages[0][0].whatever_version();
    let body: Value = serde_json::from_slice(&request(&plan.stages[0][0]).body).unwrap();
    assert_eq!(body["metadata"].get("resourceVersion"), None);
    assert_eq!(body["metadata"]["uid"], "u-1");
}

#[test]
fn a_delete_insists_on_the_uid_and_where_asked_on_the_version() {
    for (only, version) in [
        (Only::ThisUid, Value::Null),
        (Only::ThisVersion, json!("7")),
    ] {
        let mut plan = Plan::nothing();
        plan.delete(&pod(), only, Propagation::Foreground);
        let sent = request(plan.actions().next().unwrap());
        let body: Value = serde_json::from_slice(&sent.body).unwrap();
        assert_eq!(sent.path, "/api/v1/namespaces/shop/pods/web-1");
        assert_eq!(body["preconditions"]["uid"], "u-1");
        assert_eq!(body["preconditions"]["resourceVersion"], version);
        assert_eq!(body["propagationPolicy"], "Foreground");
        assert_eq!(body.get("gracePeriodSeconds"), None);
    }
}

#[test]
fn answers_are_distinguished() {
    let status = |code: u16, reason: &str, cause: Option<(&str, &str)>| Status {
        code,
        reason: reason.into(),
        message: "m".into(),
        details: StatusDetails {
            causes: cause
                .map(|(reason, field)| StatusCause {
                    reason: reason.into(),
                    field: field.into(),
                    ..StatusCause::default()
                })
                .into_iter()
                .collect(),
            ..StatusDetails::default()
        },
        ..Status::default()
    };
    let m = || "m".to_owned();
    let table = [
        (409, "AlreadyExists", None, Failure::AlreadyExists(m())),
        (409, "Conflict", None, Failure::Conflict(m())),
        (404, "NotFound", None, Failure::NotFound(m())),
        (403, "Forbidden", None, Failure::Forbidden(m())),
        (
            403,
            "Forbidden",
            Some(("NamespaceTerminating", "metadata.namespace")),
            Failure::NamespaceTerminating(m()),
        ),
        (422, "Invalid", None, Failure::Invalid(m())),
        (404, "", None, Failure::NotFound(NOT_FOUND.to_owned())),
        (405, "MethodNotAllowed", None, Failure::NotSupported(m())),
        (
            422,
            "Invalid",
            Some(("FieldValueInvalid", "metadata.uid")),
            Failure::Conflict(m()),
        ),
        (504, "Timeout", None, Failure::Timeout(m())),
        (429, "TooManyRequests", None, Failure::Other(m())),
        (500, "InternalError", None, Failure::Other(m())),
    ];
    for (code, reason, cause, expected) in table {
        assert_eq!(
            failure(&status(code, reason, cause)),
            expected,
            "{code} {reason}"
        );
    }
}

#[test]
fn a_status_names_no_object() {
    let status = br#"{"kind":"Status","metadata":{"uid":"x","resourceVersion":"9"}}"#;
    assert_eq!(written(status), Written::default());
    let object = br#"{"kind":"Pod","metadata":{"uid":"x","resourceVersion":"9"}}"#;
    assert_eq!(
        written(object),
        Written {
            uid: "x".into(),
            resource_version: 9,
            gone: false
        }
    );
    assert_eq!(written(b"garbage"), Written::default());
}

#[test]
fn a_write_that_lets_go_of_an_object_that_is_being_deleted_has_removed_it() {
    for (meta, gone) in [
        (json!({"deletionTimestamp": "2026-01-01T12:00:00Z"}), true),
        (
            json!({"deletionTimestamp": "2026-01-01T12:00:00Z", "deletionGracePeriodSeconds": 30}),
            false,
        ),
        (
            json!({"deletionTimestamp": "2026-01-01T12:00:00Z", "finalizers": ["a/b"]}),
            false,
        ),
        (json!({}), false),
    ] {
        let mut meta = meta;
        meta["uid"] = json!("x");
        meta["resourceVersion"] = json!("9");
        let as_json = json!({"kind": "Pod", "metadata": meta});
        assert_eq!(written(as_json.to_string().as_bytes()).gone, gone, "{meta}");
        let partial = PartialObjectMetadata {
            metadata: Some(serde_json::from_value(meta.clone()).unwrap()),
        };
        let kind = "PartialObjectMetadata";
        let message = envelope::wrap("meta.k8s.io/v1", kind, partial.encode_to_vec());
        assert_eq!(written(&message).gone, gone, "{meta}");
    }
}

#[test]
fn creates_start_slowly() {
    let sizes = |count| {
        slow_start(count)
            .map(|batch| batch.len())
            .collect::<Vec<_>>()
    };
    assert_eq!(sizes(0), Vec::<usize>::new());
    assert_eq!(sizes(1), [1]);
    assert_eq!(sizes(10), [1, 2, 4, 3]);
    assert_eq!(sizes(500).iter().sum::<usize>(), 500);
}

#[test]
fn actions_print_as_rbac_names_them() {
    let mut plan = Plan::nothing();
    plan.create(&pod());
    assert_eq!(plan.verbs(), ["create pods/web-1"]);
    assert!(matches!(plan.stages[0][0].verb, Verb::Create { .. }));
    assert_eq!(plan.stages[0][0].key, Key::new("shop", "web-1"));
}

#[test]
fn an_apply_names_its_object_its_manager_and_the_version_seen() {
    let mut plan = Plan::nothing();
    plan.apply(&pod(), "somebody", json!({"spec": {"nodeName": "a"}}));
    let sent = request(plan.actions().next().unwrap());
    assert_eq!(
        (sent.method, sent.content_type),
        ("PATCH", "application/apply-patch+yaml")
    );
    assert_eq!(
        sent.path,
        "/api/v1/namespaces/shop/pods/web-1?fieldManager=somebody&force=true"
    );
    assert_eq!(
        serde_json::from_slice::<Value>(&sent.body).unwrap(),
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "web-1", "namespace": "shop", "uid": "u-1", "resourceVersion": "7"},
            "spec": {"nodeName": "a"},
        })
    );
}
