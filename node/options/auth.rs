//! Who somebody is, and what they may do.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use crate::args::{self, Values};

/// Who somebody is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthenticationOptions {
    /// With the right to create TokenReviews.
    pub kubeconfig: Option<PathBuf>,
    /// Do not read client CAs from the cluster.
    pub skip_lookup: bool,
    /// Start also where the lookup fails.
    pub tolerate_lookup_failure: bool,
    /// How long an answer about a token is remembered.
    pub token_ttl: Duration,
    /// Authorities of client certificates.
    pub client_ca_file: Option<PathBuf>,
    /// Authorities of proxies that name users in headers.
    pub proxy_ca_file: Option<PathBuf>,
    /// Common names of such proxies; all where empty.
    pub proxy_names: Vec<String>,
    /// Headers with a user's name.
    pub user_headers: Vec<String>,
    /// Headers with a user's groups.
    pub group_headers: Vec<String>,
    /// Headers with a user's UID.
    pub uid_headers: Vec<String>,
    /// Whether a client's certificate may name a UID.
    pub certificate_uids: bool,
    /// Prefixes of headers with extra fields.
    pub extra_prefixes: Vec<String>,
}

/// What somebody may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorizationOptions {
    /// With the right to create SubjectAccessReviews.
    pub kubeconfig: Option<PathBuf>,
    /// Paths that everybody may get.
    pub always_allow_paths: Vec<String>,
    /// How long a yes is remembered.
    pub allow_ttl: Duration,
    /// How long a no is remembered.
    pub deny_ttl: Duration,
}

/// The gate of UIDs in headers.
const HEADER_UIDS: &str = "RemoteRequestHeaderUID";
/// The gate of UIDs in certificates.
const CERTIFICATE_UIDS: &str = "AllowParsingUserUIDFromCertAuth";
/// By the flags.
pub(super) fn authentication(
    values: &Values,
    gates: &BTreeMap<&'static str, bool>,
    wrong: &mut Vec<String>,
) -> AuthenticationOptions {
    let path = |name| values.some(name).map(PathBuf::from);
    // Header names are compared without regard to case.
    let headers = |name: &'static str| -> Vec<String> {
        values
            .list(name)
            .iter()
            .map(|text| text.trim().to_ascii_lowercase())
            .collect()
    };
    for flag in [
        "requestheader-username-headers",
        "requestheader-group-headers",
        "requestheader-uid-headers",
        "requestheader-extra-headers-prefix",
    ] {
        for name in headers(flag) {
            if http::HeaderName::try_from(name.as_str()).is_err() {
                wrong.push(format!("--{flag}: {name:?} is no header's name"));
            }
        }
    }
    let uid_headers = headers("requestheader-uid-headers");
    if !uid_headers.is_empty() && !args::gate(HEADER_UIDS, gates) {
        wrong.push(format!(
            "--requestheader-uid-headers requires the \"{HEADER_UIDS}\" feature to be enabled"
        ));
    } else if !uid_headers.is_empty() && !uid_headers.iter().any(|name| name == "x-remote-uid") {
        wrong.push(
            "--requestheader-uid-headers is set without specifying the standard X-Remote-Uid header - API \
             aggregation will not work"
                .to_owned(),
        );
    }
    AuthenticationOptions {
        kubeconfig: path("authentication-kubeconfig"),
        skip_lookup: values.bool("authentication-skip-lookup"),
        tolerate_lookup_failure: values.bool("authentication-tolerate-lookup-failure"),
        token_ttl: values.duration("authentication-token-webhook-cache-ttl"),
        client_ca_file: path("client-ca-file"),
        proxy_ca_file: path("requestheader-client-ca-file"),
        proxy_names: values.list("requestheader-allowed-names").to_vec(),
        user_headers: headers("requestheader-username-headers"),
        group_headers: headers("requestheader-group-headers"),
        uid_headers,
        certificate_uids: args::gate(CERTIFICATE_UIDS, gates),
        extra_prefixes: headers("requestheader-extra-headers-prefix"),
    }
}

/// By the flags.
pub(super) fn authorization(values: &Values, wrong: &mut Vec<String>) -> AuthorizationOptions {
    let paths = values.list("authorization-always-allow-paths");
    for path in paths {
        let body = path.strip_suffix('*').unwrap_or(path);
        if body.contains('*') {
            wrong.push(format!(
                "--authorization-always-allow-paths: only trailing * allowed in {path:?}"
            ));
        }
    }
    AuthorizationOptions {
        kubeconfig: values.some("authorization-kubeconfig").map(PathBuf::from),
        // As upstream: a missing slash in front is put there.
        always_allow_paths: paths
            .iter()
            .map(|path| format!("/{}", path.trim_start_matches('/')))
            .collect(),
        allow_ttl: values.duration("authorization-webhook-cache-authorized-ttl"),
        deny_ttl: values.duration("authorization-webhook-cache-unauthorized-ttl"),
    }
}
