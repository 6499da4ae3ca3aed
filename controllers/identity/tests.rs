use std::{sync::Arc, time::Duration};

use controllers_kit::{
    Answer, FlagValue, Object, Query,
    testing::{
        Common, ConfigMapBuild, NamespaceBuild, World, config_map, contract,
        identity::{
            AccountBuild, ClusterInfoBuild, ClusterRoleBuild, RequestBuild, SecretBuild,
            bootstrap_token, certificate_signing_request, cluster_info, cluster_role,
            pod_certificate_request, service_account_token,
        },
        namespace, service_account,
    },
};
use kubernetes_proto::certificates::ServingTrustBundle;
use serde_json::json;

use crate::{
    REGISTRY,
    requests::{API_SERVER_CLIENT, KUBELET_CLIENT, KUBELET_SERVING},
    x509::tests::{certificate_until, request_pem},
};

const NODE: &str = "system:node:one";

/// What the node and the API server answer: reviews of nodes for themselves are allowed, certificates and
/// tokens are made.
fn answer(query: &Query) -> Option<Answer> {
    let text = match query {
        Query::Review { body, .. } => {
            let allowed = body.contains("selfnodeclient") && body.contains(NODE);
            return Some(Answer::Object(Arc::new(
                json!({"status": {"allowed": allowed}}),
            )));
        }
        Query::Certificate(issue) => format!("by {}", issue.signer),
        Query::Token { claims } => format!("signed {claims}"),
        _ => return None,
    };
    Some(Answer::Object(Arc::new(json!(text))))
}

fn start() -> World {
    let text = |text: &str| FlagValue::Text(text.to_owned());
    let mut world = World::at("12:00:00")
        .flag(
            "root-ca-file",
            FlagValue::File(Some(b"-----BEGIN CERTIFICATE-----".to_vec())),
        )
        .flag("cluster-signing-cert-file", text("/ca.crt"))
        .flag("cluster-signing-key-file", text("/ca.key"))
        .with(namespace("kube-system"))
        .answering(answer);
    world.serve_kind(ServingTrustBundle::resource());
    world
}

/// Namespaces, accounts and ConfigMaps.
fn of_namespaces() -> [World; 3] {
    [
        start()
            .with(namespace("shop"))
            .with(namespace("bank"))
            .with(service_account("robot").in_namespace("shop"))
            .with(config_map("settings").in_namespace("shop")),
        start()
            .with(namespace("ending").ending("11:59:00"))
            .with(service_account("default").in_namespace("ending"))
            .with(
                config_map("kube-root-ca.crt")
                    .in_namespace("ending")
                    .data("ca.crt", "forged"),
            )
            .with(namespace("late")),
        start()
            .with(
                service_account("default")
                    .in_namespace("shop")
                    .finalizer("example.com/hold")
                    .terminating("11:59:00"),
            )
            .with(
                config_map("kube-root-ca.crt")
                    .in_namespace("shop")
                    .data("ca.crt", "forged")
                    .data("more", "x"),
            )
            .with(namespace("bank")),
    ]
}

fn of_roles() -> World {
    start()
        .with(cluster_role("outer").aggregates("level", "inner"))
        .with(
            cluster_role("inner")
                .label("level", "inner")
                .aggregates("level", "leaf")
                .aggregates("level", "twig")
                .may("get", "nothing"),
        )
        .with(
            cluster_role("leaf")
                .label("level", "leaf")
                .may("get", "pods"),
        )
        .with(
            cluster_role("twig")
                .label("level", "twig")
                .may("get", "pods")
                .may("list", "pods"),
        )
        .with(cluster_role("plain").may("get", "secrets"))
}

fn of_bootstrap_tokens() -> World {
    start()
        .with(
            cluster_info()
                .says("kubeconfig", "payload")
                .says("jws-kubeconfig-zzzzzz", "of nobody"),
        )
        .with(bootstrap_token("abcdef", "one"))
        .with(bootstrap_token("ghijkl", "two").holds("expiration", "2026-03-02T12:20:00Z"))
        .with(bootstrap_token("mnopqr", "three").holds("expiration", "2026-03-02T11:00:00Z"))
}

fn of_requests() -> World {
    let kubelet = |name: &str| {
        certificate_signing_request(name)
            .asks(&request_pem(NODE, &["system:nodes"], Vec::new()))
            .signer(KUBELET_CLIENT)
            .usages(&["digital signature", "client auth"])
            .by(NODE)
    };
    start()
        .with(kubelet("own"))
        .with(kubelet("foreign").by("somebody"))
        .with(kubelet("approved").condition("Approved", "11:50:00"))
        .with(
            kubelet("wrong")
                .signer(KUBELET_SERVING)
                .condition("Approved", "11:50:00"),
        )
        .with(
            kubelet("client")
                .signer(API_SERVER_CLIENT)
                .condition("Approved", "11:10:00"),
        )
        .with(kubelet("denied").condition("Denied", "11:10:00"))
        .with(
            kubelet("issued")
                .condition("Approved", "11:50:00")
                .issued(&certificate_until("2026-03-02T12:10:00Z")),
        )
        .with(kubelet("garbage").asks("garbage"))
}

fn of_tokens() -> World {
    let long_ago = "2024-01-01T00:00:00Z";
    start()
        .with(
            config_map("kube-apiserver-legacy-service-account-token-tracking")
                .in_namespace("kube-system")
                .data("since", "2024-01-01"),
        )
        .with(service_account("robot").lists("legacy").lists("marked"))
        .with(service_account_token("fresh", "robot"))
        .with(service_account_token("orphan", "gone"))
        .with(service_account_token("legacy", "robot").created(long_ago))
        .with(
            service_account_token("marked", "robot")
                .created(long_ago)
                .label("kubernetes.io/legacy-token-invalid-since", "2024-06-01"),
        )
}

fn of_old_pod_requests() -> World {
    start()
        .with(pod_certificate_request("old").created("11:00:00"))
        .with(pod_certificate_request("new").created("11:59:00"))
}

fn worlds(name: &str) -> Vec<World> {
    match name {
        "clusterrole-aggregation-controller" => vec![of_roles()],
        "token-cleaner-controller" | "bootstrap-signer-controller" => vec![of_bootstrap_tokens()],
        "certificatesigningrequest-cleaner-controller"
        | "certificatesigningrequest-approving-controller"
        | "certificatesigningrequest-signing-controller" => vec![of_requests()],
        "serviceaccount-token-controller" | "legacy-serviceaccount-token-cleaner-controller" => {
            vec![of_tokens()]
        }
        "podcertificaterequest-cleaner-controller" => vec![of_old_pod_requests()],
        _ => of_namespaces().into(),
    }
}

#[test]
fn the_contract_holds() {
    for factory in REGISTRY {
        contract::check(factory, worlds((factory.describe)().name));
    }
    contract::covers(REGISTRY, &NAMES);
}

const NAMES: [&str; 12] = [
    "serviceaccount-controller",
    "root-ca-certificate-publisher-controller",
    "clusterrole-aggregation-controller",
    "token-cleaner-controller",
    "bootstrap-signer-controller",
    "certificatesigningrequest-cleaner-controller",
    "certificatesigningrequest-approving-controller",
    "certificatesigningrequest-signing-controller",
    "serviceaccount-token-controller",
    "legacy-serviceaccount-token-cleaner-controller",
    "podcertificaterequest-cleaner-controller",
    "kube-apiserver-serving-clustertrustbundle-publisher-controller",
];

#[test]
fn the_controllers_of_requests_wait_at_first_as_long_as_upstream_s() {
    for factory in REGISTRY {
        let descriptor = (factory.describe)();
        let first = match descriptor.queue {
            "certificate" => Duration::from_millis(200),
            _ => Duration::from_millis(5),
        };
        let backoff = descriptor.backoff;
        let longest = Duration::from_secs(1000);
        assert_eq!(
            (backoff.first, backoff.max),
            (first, longest),
            "{}",
            descriptor.name
        );
    }
}

#[test]
fn tokens_are_signed_whatever_controllers_are_listed() {
    let unlisted: Vec<&str> = REGISTRY
        .iter()
        .map(|factory| (factory.describe)())
        .filter(|descriptor| descriptor.runs_unlisted)
        .map(|descriptor| descriptor.name)
        .collect();
    assert_eq!(unlisted, ["serviceaccount-token-controller"]);
}
