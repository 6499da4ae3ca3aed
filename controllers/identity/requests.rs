//! What the three controllers of CertificateSigningRequests share: a request's state, and the rules for
//! kubelets' requests.

use std::time::Duration;

use controllers_kit::conditions;
use kubernetes_proto::certificates::{
    CertificateSigningRequest, CertificateSigningRequestSpec, CertificateSigningRequestStatus,
};

use crate::x509::{self, Request};

pub const GROUP: &str = "certificates.k8s.io";
pub const RESOURCE: &str = "certificatesigningrequests";

pub const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
pub const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
pub const API_SERVER_CLIENT: &str = "kubernetes.io/kube-apiserver-client";
pub const LEGACY_UNKNOWN: &str = "kubernetes.io/legacy-unknown";

pub const APPROVED: &str = "Approved";
pub const DENIED: &str = "Denied";
pub const FAILED: &str = "Failed";

/// The first delay of a failed request; upstream's queue of these controllers has its own figures.
pub const RETRY_FIRST: Duration = Duration::from_millis(200);

/// A request's spec; empty where the server sent none.
pub fn spec(request: &CertificateSigningRequest) -> CertificateSigningRequestSpec {
    request.spec.clone().unwrap_or_default()
}

/// Whether there is a condition of a type, whatever its status.
pub fn has(status: &CertificateSigningRequestStatus, r#type: &str) -> bool {
    conditions::find(&status.conditions, r#type).is_some()
}

/// Decodes the request in its PEM.
///
/// # Errors
/// Where it is no PEM of a request, or the request is malformed.
pub fn read(name: &str, pem: &[u8]) -> Result<(Vec<u8>, Request), String> {
    x509::request_der(pem)
        .and_then(|der| x509::read(&der).map(|request| (der, request)))
        .map_err(|why| format!("unable to parse csr {name:?}: {why}"))
}

/// Whether usages are exactly those wanted, with or without key encipherment, which only RSA keys need.
fn usages_are(usages: &[String], wanted: &str) -> bool {
    let among = ["digital signature", "key encipherment", wanted];
    let has = |usage: &str| usages.iter().any(|one| one == usage);
    usages.iter().all(|usage| among.contains(&usage.as_str()))
        && has("digital signature")
        && has(wanted)
}

fn is_of_nodes(request: &Request) -> bool {
    *request.organizations() == ["system:nodes"]
}

const NOT_NODES: &str = "subject organization is not system:nodes";
const NOT_A_NODE: &str = "subject common name does not begin with system:node:";

/// Whether it is a kubelet's request for a client certificate for the API server.
///
/// # Errors
/// Where it is not; upstream's text says why.
pub fn kubelet_client(request: &Request, usages: &[String]) -> Result<(), String> {
    let why = if !is_of_nodes(request) {
        NOT_NODES
    } else if !request.dns.is_empty() {
        "DNS subjectAltNames are not allowed"
    } else if !request.emails.is_empty() {
        "Email subjectAltNames are not allowed"
    } else if !request.ips.is_empty() {
        "IP subjectAltNames are not allowed"
    } else if !request.uris.is_empty() {
        "URI subjectAltNames are not allowed"
    } else if !request.common_name().starts_with("system:node:") {
        NOT_A_NODE
    } else if !usages_are(usages, "client auth") {
        "usages did not match [client auth digital signature key encipherment]"
    } else {
        return Ok(());
    };
    Err(why.to_owned())
}

/// Whether it is a kubelet's request for a serving certificate.
///
/// # Errors
/// Where it is not; upstream's text says why.
pub fn kubelet_serving(request: &Request, usages: &[String]) -> Result<(), String> {
    let why = if !is_of_nodes(request) {
        NOT_NODES
    } else if request.dns.is_empty() && request.ips.is_empty() {
        "DNS or IP subjectAltName is required"
    } else if !request.emails.is_empty() {
        "Email subjectAltNames are not allowed"
    } else if !request.uris.is_empty() {
        "URI subjectAltNames are not allowed"
    } else if !usages_are(usages, "server auth") {
        "usages did not match [digital signature key encipherment server auth]"
    } else if !request.common_name().starts_with("system:node:") {
        NOT_A_NODE
    } else {
        return Ok(());
    };
    Err(why.to_owned())
}

/// Whether a client of the API server may request it.
///
/// # Errors
/// Where it is not; upstream's text says why.
pub fn api_server_client(usages: &[String]) -> Result<(), String> {
    const CLIENT: &str = "client auth";
    let allowed = ["digital signature", "key encipherment", CLIENT];
    if let Some(usage) = usages
        .iter()
        .find(|usage| !allowed.contains(&usage.as_str()))
    {
        return Err(format!("invalid usage for client certificate: {usage}"));
    }
    if !usages.iter().any(|usage| usage == CLIENT) {
        return Err(format!(
            "missing required usage for client certificate: {CLIENT}"
        ));
    }
    Ok(())
}
