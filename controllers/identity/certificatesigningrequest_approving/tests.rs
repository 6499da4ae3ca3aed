use std::sync::Arc;

use controllers_kit::{
    Answer, Plan, Query, Refusal, Verb,
    testing::{
        World,
        identity::{RequestBuild, certificate_signing_request},
    },
};
use kubernetes_proto::certificates::CertificateSigningRequest;
use rcgen::SanType;
use serde_json::{Value, json};

use super::CertificateSigningRequestApproving;
use crate::{
    requests::{API_SERVER_CLIENT, KUBELET_CLIENT, KUBELET_SERVING},
    x509::tests::{dns, email, ip, request_pem, uri},
};

const NODE: &str = "system:node:one";
const USAGES: [&str; 3] = ["digital signature", "key encipherment", "client auth"];

/// A kubelet's request for itself.
fn kubelet() -> CertificateSigningRequest {
    named(NODE, &["system:nodes"], Vec::new()).by(NODE)
}

fn named(name: &str, organizations: &[&str], names: Vec<SanType>) -> CertificateSigningRequest {
    certificate_signing_request("csr")
        .signer(KUBELET_CLIENT)
        .asks(&request_pem(name, organizations, names))
        .usages(&USAGES)
        .by("system:bootstrap:abcdef")
}

fn reviewed(query: &Query) -> Option<Value> {
    match query {
        Query::Review { path, body } => {
            assert_eq!(*path, "/apis/authorization.k8s.io/v1/subjectaccessreviews");
            Some(serde_json::from_str(body).unwrap())
        }
        _ => None,
    }
}

fn allows(query: &Query, subresources: &[&str]) -> Option<Answer> {
    let review = reviewed(query)?;
    let asked = &review["spec"]["resourceAttributes"]["subresource"];
    let allowed = subresources.iter().any(|one| asked == one);
    Some(Answer::Object(Arc::new(
        json!({"status": {"allowed": allowed}}),
    )))
}

fn world() -> World {
    World::at("12:00:00")
}

/// The message of the approval that a plan writes.
fn approval(plan: &Plan) -> Option<String> {
    let mut actions = plan.actions();
    let action = actions.next()?;
    assert!(actions.next().is_none());
    assert!(action.resource_version > 0, "two that decide can't both");
    match &action.verb {
        Verb::Patch {
            subresource: "approval",
            patch,
            ..
        } => {
            let conditions = patch["status"]["conditions"].as_array().unwrap();
            let last = conditions.last().unwrap();
            assert_eq!(last["type"], "Approved");
            assert_eq!(last["status"], "True");
            assert_eq!(last["reason"], "AutoApproved");
            Some(last["message"].as_str().unwrap().to_owned())
        }
        other => panic!("no approval but {other:?}"),
    }
}

fn decide(world: &World) -> Result<Plan, Refusal> {
    world.try_plan::<CertificateSigningRequestApproving>("csr")
}

const OWN: &str = "Auto approving self kubelet client certificate after SubjectAccessReview.";
const ANY: &str = "Auto approving kubelet client certificate after SubjectAccessReview.";

#[test]
fn recognized_and_permitted_requests_are_approved() {
    type Allows = fn(&Query) -> Option<Answer>;
    let none: Allows = |query| allows(query, &[]);
    let own: Allows = |query| allows(query, &["selfnodeclient"]);
    let any: Allows = |query| allows(query, &["nodeclient"]);
    let both: Allows = |query| allows(query, &["nodeclient", "selfnodeclient"]);
    let stranger = || named(NODE, &["system:nodes"], Vec::new());
    type Case = (
        &'static str,
        CertificateSigningRequest,
        Allows,
        Result<Option<&'static str>, &'static str>,
    );
    let table: Vec<Case> = vec![
        ("for itself, allowed", kubelet(), own, Ok(Some(OWN))),
        ("for itself, both allowed", kubelet(), both, Ok(Some(OWN))),
        (
            "for itself, only any allowed",
            kubelet(),
            any,
            Ok(Some(ANY)),
        ),
        (
            "for itself, nothing allowed",
            kubelet(),
            none,
            Err(
                "recognized csr \"csr\" as [selfnodeclient nodeclient] but subject access review was not approved",
            ),
        ),
        ("for another, allowed", stranger(), any, Ok(Some(ANY))),
        (
            "for another, only own allowed",
            stranger(),
            own,
            Err(
                "recognized csr \"csr\" as [nodeclient] but subject access review was not approved",
            ),
        ),
        (
            "without key encipherment",
            kubelet().usages(&["digital signature", "client auth"]),
            own,
            Ok(Some(OWN)),
        ),
        (
            "approved already",
            kubelet().condition("Approved", "11:00:00"),
            both,
            Ok(None),
        ),
        (
            "denied already",
            kubelet().condition("Denied", "11:00:00"),
            both,
            Ok(None),
        ),
        ("issued already", kubelet().issued("x"), both, Ok(None)),
        (
            "no request",
            kubelet().asks("garbage"),
            both,
            Err("unable to parse csr \"csr\": PEM block type must be CERTIFICATE REQUEST"),
        ),
    ];
    for (name, request, allows, expected) in table {
        let world = world().with(request).answering(allows);
        let got = decide(&world);
        match expected {
            Ok(message) => assert_eq!(approval(&got.unwrap()).as_deref(), message, "{name}"),
            // Somebody who asks for what nobody allows is no fault, and no line in the log at each retry.
            Err(why) if why.contains("was not approved") => {
                assert_eq!(got, Err(Refusal::Expected(why.to_owned())), "{name}");
            }
            Err(why) => assert_eq!(got, Err(Refusal::Retry(why.to_owned())), "{name}"),
        }
    }
}

#[test]
fn requests_of_other_clients_are_left_alone() {
    let with = |names: Vec<SanType>| named(NODE, &["system:nodes"], names);
    let table = [
        ("another signer", kubelet().signer(API_SERVER_CLIENT)),
        ("a serving certificate", kubelet().signer(KUBELET_SERVING)),
        ("no organization", named(NODE, &[], Vec::new())),
        ("another organization", named(NODE, &["nodes"], Vec::new())),
        (
            "another name",
            named("system:kubelet:one", &["system:nodes"], Vec::new()),
        ),
        ("a DNS name", with(vec![dns("a.example")])),
        ("an e-mail address", with(vec![email("me@a.example")])),
        ("an IP address", with(vec![ip("10.0.0.1")])),
        ("a URI", with(vec![uri("spiffe://a/b")])),
        ("a usage less", kubelet().usages(&["client auth"])),
        (
            "a usage more",
            kubelet().usages(&["digital signature", "client auth", "server auth"]),
        ),
        ("no usages", kubelet().usages(&[])),
    ];
    for (name, request) in table {
        let world = world()
            .with(request)
            .answering(|query| panic!("nothing should be asked, but {query:?}"));
        let plan = decide(&world).unwrap();
        assert!(plan.is_nothing(), "{name}: {:?}", plan.verbs());
    }
    assert!(decide(&world()).unwrap().is_nothing(), "a missing request");
}

#[test]
fn the_requestor_is_who_is_asked_about() {
    let mut request = kubelet().extra("scopes", "a");
    let spec = request.spec.as_mut().unwrap();
    spec.uid = "uid-of-the-user".to_owned();
    spec.groups = vec!["system:nodes".to_owned(), "more".to_owned()];
    let world = world().with(request).answering(|query| {
        let mut review = reviewed(query)?;
        // Both are asked; they differ in this alone.
        review["spec"]["resourceAttributes"]["subresource"] = json!("selfnodeclient");
        let expected = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": NODE,
                "uid": "uid-of-the-user",
                "groups": ["system:nodes", "more"],
                "extra": {"scopes": ["a"]},
                "resourceAttributes": {
                    "group": "certificates.k8s.io",
                    "resource": "certificatesigningrequests",
                    "subresource": "selfnodeclient",
                    "verb": "create",
                    "version": "*",
                },
            },
        });
        assert_eq!(review, expected);
        allows(query, &["selfnodeclient"])
    });
    assert_eq!(approval(&decide(&world).unwrap()).as_deref(), Some(OWN));
}

#[test]
fn a_review_that_fails_is_tried_again() {
    let world = world()
        .with(kubelet())
        .answering(|query| reviewed(query).map(|_| Answer::Failed("no quota".to_owned())));
    assert_eq!(decide(&world), Err(Refusal::Retry("no quota".to_owned())));
    let missing = world.answering(|_| None);
    assert!(matches!(decide(&missing), Err(Refusal::Retry(_))));
}

#[test]
fn a_request_that_nothing_allows_is_refused_in_every_plan_so_that_its_back_off_grows() {
    let world = world()
        .with(kubelet())
        .answering(|query| allows(query, &[]));
    // A plan between two refusals would count as a success, and the API server be asked without rest.
    for _ in 0..3 {
        assert!(matches!(decide(&world), Err(Refusal::Expected(_))));
    }
    let later = world.answering(|query| allows(query, &["selfnodeclient"]));
    assert_eq!(approval(&decide(&later).unwrap()).as_deref(), Some(OWN));
}

#[test]
fn an_approval_keeps_other_conditions_and_gets_its_time_from_the_server() {
    let mut world = world()
        .with(kubelet().condition("Example", "11:00:00"))
        .answering(|query| allows(query, &["selfnodeclient"]));
    world.run::<CertificateSigningRequestApproving>();
    let request = world.get::<CertificateSigningRequest>("csr");
    let conditions = &request.status.as_ref().unwrap().conditions;
    let types: Vec<&str> = conditions.iter().map(|one| one.r#type.as_str()).collect();
    assert_eq!(types, ["Example", "Approved"]);
    assert_eq!(
        conditions[1].last_update_time.map(|time| time.timestamp()),
        Some(world.now())
    );
}
