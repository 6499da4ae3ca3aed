use std::{sync::Arc, time::Duration};

use controllers_kit::{
    Answer, Controller, FlagValue, Flags, Plan, Query, Refusal, Runs, Verb,
    testing::{
        World,
        identity::{RequestBuild, certificate_signing_request},
    },
};
use kubernetes_proto::certificates::CertificateSigningRequest;
use rcgen::SanType;
use serde_json::json;

use super::{CertificateSigningRequestSigning, DURATION, authorities};
use crate::{
    requests::{API_SERVER_CLIENT, KUBELET_CLIENT, KUBELET_SERVING, LEGACY_UNKNOWN},
    x509::tests::{dns, email, ip, request_pem, uri},
};

const NODE: &str = "system:node:one";

fn text(value: &str) -> FlagValue {
    FlagValue::Text(value.to_owned())
}

/// With an authority for every signer.
fn world() -> World {
    World::at("12:00:00")
        .flag("cluster-signing-cert-file", text("/ca.crt"))
        .flag("cluster-signing-key-file", text("/ca.key"))
        .answering(|query| match query {
            Query::Certificate(issue) => Some(Answer::Object(Arc::new(json!(format!(
                "by {} for {}s",
                issue.signer,
                issue.ttl.as_secs()
            ))))),
            _ => None,
        })
}

fn request(signer: &str, names: Vec<SanType>, usages: &[&str]) -> CertificateSigningRequest {
    certificate_signing_request("csr")
        .signer(signer)
        .asks(&request_pem(NODE, &["system:nodes"], names))
        .usages(usages)
        .condition("Approved", "11:59:00")
}

const CLIENT: [&str; 3] = ["client auth", "digital signature", "key encipherment"];
const SERVER: [&str; 3] = ["server auth", "digital signature", "key encipherment"];

fn client() -> CertificateSigningRequest {
    request(KUBELET_CLIENT, Vec::new(), &CLIENT)
}

/// What a plan writes to the status.
#[derive(Debug, PartialEq, Eq)]
enum Written {
    Nothing,
    Certificate(String),
    Failed(String),
}

fn written(plan: &Plan) -> Written {
    let mut actions = plan.actions();
    let Some(action) = actions.next() else {
        return Written::Nothing;
    };
    assert!(actions.next().is_none());
    assert!(action.resource_version > 0, "of two certificates one stays");
    let Verb::Patch {
        subresource: "status",
        patch,
        report: controllers_kit::StatusWrite::No,
        ..
    } = &action.verb
    else {
        panic!("no status but {action:?}");
    };
    let status = &patch["status"];
    if let Some(certificate) = status["certificate"].as_str() {
        use base64::Engine as _;
        let bytes = base64::engine::general_purpose::STANDARD
            .decode(certificate)
            .unwrap();
        return Written::Certificate(String::from_utf8(bytes).unwrap());
    }
    let last = status["conditions"].as_array().unwrap().last().unwrap();
    assert_eq!(last["type"], "Failed");
    assert_eq!(last["status"], "True");
    assert_eq!(last["reason"], "SignerValidationFailure");
    assert_eq!(last["lastUpdateTime"], "2026-03-02T12:00:00Z");
    Written::Failed(last["message"].as_str().unwrap().to_owned())
}

fn outcome(request: CertificateSigningRequest) -> Written {
    written(
        &world()
            .with(request)
            .plan::<CertificateSigningRequestSigning>("csr"),
    )
}

const YEAR: u64 = 365 * 24 * 3600;

#[test]
fn each_signer_gives_what_its_rules_allow_and_fails_the_rest() {
    let certificate = |signer: &str| Written::Certificate(format!("by {signer} for {YEAR}s"));
    let failed = |why: &str| Written::Failed(why.to_owned());
    let serving = |names| request(KUBELET_SERVING, names, &SERVER);
    let kubelet = |names| request(KUBELET_CLIENT, names, &CLIENT);
    let named = |mut of: CertificateSigningRequest, name: &str, organizations: &[&str], names| {
        of = of.asks(&request_pem(name, organizations, names));
        of
    };
    let a = || vec![dns("a.example")];
    let table = [
        (serving(a()), certificate(KUBELET_SERVING)),
        (serving(vec![ip("10.0.0.1")]), certificate(KUBELET_SERVING)),
        (
            serving(a()).usages(&["server auth", "digital signature"]),
            certificate(KUBELET_SERVING),
        ),
        (
            named(serving(a()), NODE, &[], a()),
            failed("subject organization is not system:nodes"),
        ),
        (
            serving(Vec::new()),
            failed("DNS or IP subjectAltName is required"),
        ),
        (
            serving(vec![dns("a.example"), email("me@a.example")]),
            failed("Email subjectAltNames are not allowed"),
        ),
        (
            serving(vec![dns("a.example"), uri("spiffe://a/b")]),
            failed("URI subjectAltNames are not allowed"),
        ),
        (
            serving(a()).usages(&CLIENT),
            failed("usages did not match [digital signature key encipherment server auth]"),
        ),
        (
            named(serving(a()), "one", &["system:nodes"], a()),
            failed("subject common name does not begin with system:node:"),
        ),
        (kubelet(Vec::new()), certificate(KUBELET_CLIENT)),
        (
            kubelet(Vec::new()).usages(&["client auth", "digital signature"]),
            certificate(KUBELET_CLIENT),
        ),
        (
            named(kubelet(a()), NODE, &["other"], Vec::new()),
            failed("subject organization is not system:nodes"),
        ),
        (kubelet(a()), failed("DNS subjectAltNames are not allowed")),
        (
            kubelet(vec![email("me@a.example")]),
            failed("Email subjectAltNames are not allowed"),
        ),
        (
            kubelet(vec![ip("10.0.0.1")]),
            failed("IP subjectAltNames are not allowed"),
        ),
        (
            kubelet(vec![uri("spiffe://a/b")]),
            failed("URI subjectAltNames are not allowed"),
        ),
        (
            named(kubelet(a()), "one", &["system:nodes"], Vec::new()),
            failed("subject common name does not begin with system:node:"),
        ),
        (
            kubelet(Vec::new()).usages(&SERVER),
            failed("usages did not match [client auth digital signature key encipherment]"),
        ),
        (
            request(API_SERVER_CLIENT, a(), &["client auth"]),
            certificate(API_SERVER_CLIENT),
        ),
        (
            request(API_SERVER_CLIENT, a(), &["client auth", "server auth"]),
            failed("invalid usage for client certificate: server auth"),
        ),
        (
            request(API_SERVER_CLIENT, a(), &["digital signature"]),
            failed("missing required usage for client certificate: client auth"),
        ),
        (
            request(LEGACY_UNKNOWN, a(), &["server auth", "cert sign"]),
            certificate(LEGACY_UNKNOWN),
        ),
    ];
    for (number, (request, expected)) in table.into_iter().enumerate() {
        assert_eq!(outcome(request), expected, "row {number}");
    }
}

#[test]
fn requests_that_must_not_be_signed_are_left_alone() {
    let mut not_approved = client();
    not_approved.status.as_mut().unwrap().conditions.clear();
    let mut not_failed = client().condition("Failed", "11:59:30");
    not_failed.status.as_mut().unwrap().conditions[1].status = "False".to_owned();
    let mut failed = client().condition("Failed", "11:59:30");
    failed.status.as_mut().unwrap().conditions[1].status = String::new();
    let table = [
        ("not approved", not_approved),
        ("denied too", client().condition("Denied", "11:59:30")),
        ("failed", client().condition("Failed", "11:59:30")),
        ("failed, in an old form", failed),
        ("issued", client().issued("x")),
        ("of another signer", client().signer("example.com/x")),
        (
            "of an unknown one of ours",
            client().signer("kubernetes.io/x"),
        ),
    ];
    for (name, request) in table {
        assert_eq!(outcome(request), Written::Nothing, "{name}");
    }
    assert_ne!(outcome(not_failed), Written::Nothing);
}

#[test]
fn a_certificate_lives_as_long_as_asked_for_within_bounds() {
    let hours = |count: u64| count * 3600;
    let table = [
        (None, hours(24)),
        (Some(3600), hours(1)),
        (Some(10 * 60), 600),
        (Some(10 * 60 - 1), 600),
        (Some(1), 600),
        (Some(-3600), 600),
        (Some(24 * 3600), hours(24)),
        (Some(48 * 3600), hours(24)),
    ];
    for (asked, seconds) in table {
        let mut request = client();
        request.spec.as_mut().unwrap().expiration_seconds = asked;
        let world = world()
            .flag(
                DURATION,
                FlagValue::Duration(Duration::from_secs(hours(24))),
            )
            .with(request);
        assert_eq!(
            written(&world.plan::<CertificateSigningRequestSigning>("csr")),
            Written::Certificate(format!("by {KUBELET_CLIENT} for {seconds}s")),
            "{asked:?}"
        );
    }
}

#[test]
fn requests_that_can_t_be_signed_now_are_retried() {
    let refusal = |world: World| world.refusal::<CertificateSigningRequestSigning>("csr");
    assert_eq!(
        refusal(world().with(client().asks("garbage"))),
        Refusal::Retry(
            "unable to parse csr \"csr\": PEM block type must be CERTIFICATE REQUEST".to_owned()
        )
    );
    let broken = world().with(client()).answering(|query| match query {
        Query::Certificate(_) => Some(Answer::Failed("the signer has expired".to_owned())),
        _ => None,
    });
    assert_eq!(
        refusal(broken),
        Refusal::Retry("error auto signing csr: the signer has expired".to_owned())
    );
}

#[test]
fn the_request_itself_goes_to_the_authority() {
    let world = world()
        .with(client().expires_after(3600))
        .answering(|query| match query {
            Query::Certificate(issue) => {
                assert_eq!(issue.usages, CLIENT);
                let request = crate::x509::read(&issue.request).unwrap();
                assert_eq!(request.common_name(), NODE);
                Some(Answer::Object(Arc::new(json!("pem"))))
            }
            _ => None,
        });
    assert_eq!(
        written(&world.plan::<CertificateSigningRequestSigning>("csr")),
        Written::Certificate("pem".to_owned())
    );
}

#[test]
fn which_signers_there_are_follows_from_the_flags() {
    let with = |given: &[(&'static str, &str)]| {
        let descriptor = CertificateSigningRequestSigning::describe();
        let mut flags = Flags::defaults([&descriptor]);
        for (name, value) in given {
            flags.set(name, text(value));
        }
        let signers =
            authorities(&flags).map(|files| files.iter().map(|one| one.signer).collect::<Vec<_>>());
        (signers, (descriptor.runs)(&flags))
    };
    let (cert, key) = ("cluster-signing-cert-file", "cluster-signing-key-file");
    let (own_cert, own_key) = (
        "cluster-signing-kubelet-client-cert-file",
        "cluster-signing-kubelet-client-key-file",
    );
    let wrong = |given: &[(&'static str, &str)], why: &str| {
        let (signers, runs) = with(given);
        assert_eq!(signers, Err(why.to_owned()));
        assert_eq!(runs, Runs::Wrong(why.to_owned()));
    };
    assert_eq!(with(&[]).0, Ok(Vec::new()));
    assert!(matches!(with(&[]).1, Runs::No(_)));
    // Half of the shared pair is as good as none, which upstream does not complain of either.
    assert!(matches!(with(&[(cert, "/a")]).1, Runs::No(_)));
    let all = vec![
        KUBELET_SERVING,
        KUBELET_CLIENT,
        API_SERVER_CLIENT,
        LEGACY_UNKNOWN,
    ];
    assert_eq!(with(&[(cert, "/a"), (key, "/b")]), (Ok(all), Runs::Yes));
    assert_eq!(
        with(&[(own_cert, "/a"), (own_key, "/b")]),
        (Ok(vec![KUBELET_CLIENT]), Runs::Yes)
    );
    wrong(
        &[(own_cert, "/a")],
        "\"cluster-signing-kubelet-client\": cannot specify cert without key",
    );
    wrong(
        &[(own_key, "/a")],
        "\"cluster-signing-kubelet-client\": cannot specify key without cert",
    );
    wrong(
        &[(own_cert, "/a"), (own_key, "/b"), (cert, "/c"), (key, "/d")],
        "cannot specify --cluster-signing-{cert,key}-file and other --cluster-signing-*-file flags at the same time",
    );
}

#[test]
fn all_that_is_wrong_with_the_signing_flags_is_said_at_once() {
    let descriptor = CertificateSigningRequestSigning::describe();
    let mut flags = Flags::defaults([&descriptor]);
    flags.set("cluster-signing-cert-file", text("/a"));
    flags.set("cluster-signing-kubelet-serving-key-file", text("/b"));
    flags.set("cluster-signing-legacy-unknown-cert-file", text("/c"));
    assert_eq!(
        authorities(&flags),
        Err(concat!(
            "[\"cluster-signing-kubelet-serving\": cannot specify key without cert, ",
            "\"cluster-signing-legacy-unknown\": cannot specify cert without key, ",
            "cannot specify --cluster-signing-{cert,key}-file and other --cluster-signing-*-file flags ",
            "at the same time]"
        )
        .to_owned())
    );
}

#[test]
fn a_signer_without_files_leaves_its_requests_alone() {
    let world = World::at("12:00:00")
        .flag("cluster-signing-kubelet-serving-cert-file", text("/a"))
        .flag("cluster-signing-kubelet-serving-key-file", text("/b"))
        .with(client());
    let plan = world.plan::<CertificateSigningRequestSigning>("csr");
    assert!(plan.is_nothing());
}
