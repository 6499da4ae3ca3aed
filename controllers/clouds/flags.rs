//! The flags of this group: where the provider is, and upstream's flags of the three controllers.

use std::{path::PathBuf, time::Duration};

use controllers_kit::{
    Flag, FlagDefault, Flags, Refusal, Runs, SignedDuration, Timestamp, cloud::Refused,
};

/// The provider's address.
pub const ENDPOINT: &str = "cloud-provider-endpoint";
/// The provider's authorities.
pub const CA_FILE: &str = "cloud-provider-ca-file";
/// This replica's certificate for the provider.
pub const CERT_FILE: &str = "cloud-provider-cert-file";
/// The key of that certificate.
pub const KEY_FILE: &str = "cloud-provider-key-file";
/// How long a call may take.
pub const TIMEOUT: &str = "cloud-provider-timeout";
/// The cluster's name at the provider.
pub const CLUSTER_NAME: &str = "cluster-name";

/// When a provider that does not support an operation is asked again: it may have been replaced.
pub(crate) const UNSUPPORTED_RETRY: SignedDuration = SignedDuration::from_secs(300);
/// The bounds of the provider's own retry delay.
const RETRY_AFTER: [Duration; 2] = [Duration::from_secs(1), Duration::from_hours(24)];

const fn flag(name: &'static str, default: FlagDefault, help: &'static str) -> Flag {
    Flag {
        name,
        default,
        help,
    }
}

/// What reaches the provider.
pub(crate) const PROVIDER: [Flag; 6] = [
    flag(
        ENDPOINT,
        FlagDefault::Text(""),
        "Cloud provider that speaks the protocol manifold.cloud.v1: unix:///path of a socket, or https://host:port. Without it the cloud controllers do not run, as in kube-controller-manager.",
    ),
    flag(
        CA_FILE,
        FlagDefault::Text(""),
        "Certificate authorities of the cloud provider's certificate, PEM; required with https. Reloaded when the file changes.",
    ),
    flag(
        CERT_FILE,
        FlagDefault::Text(""),
        "Client certificate for the cloud provider, PEM; required with https. Reloaded when the file changes.",
    ),
    flag(
        KEY_FILE,
        FlagDefault::Text(""),
        "Private key of --cloud-provider-cert-file, PEM.",
    ),
    flag(
        TIMEOUT,
        FlagDefault::Duration(Duration::from_secs(120)),
        "Timeout of a call to the cloud provider that changes something; calls that only read time out after at most 30s.",
    ),
    flag(
        CLUSTER_NAME,
        FlagDefault::Text("kubernetes"),
        "Name of this cluster in the cloud, passed to the provider with each call for load balancers and routes.",
    ),
];

/// Those of node-route-controller.
pub(crate) const ROUTES: [Flag; 3] = [
    flag(
        "configure-cloud-routes",
        FlagDefault::Bool(true),
        "Set up routes for the Nodes' ranges in the cloud; needs --cloud-provider-endpoint and --cluster-cidr.",
    ),
    flag(
        "route-reconciliation-period",
        FlagDefault::Duration(Duration::from_secs(10)),
        "The period of comparing the cloud's routes with the Nodes.",
    ),
    flag(
        "cluster-cidr",
        FlagDefault::Text(""),
        "The pods' address range, or one of each address family; used with --allocate-node-cidrs.",
    ),
];

/// Those of cloud-node-lifecycle-controller.
pub(crate) const NODES: [Flag; 1] = [flag(
    "node-monitor-period",
    FlagDefault::Duration(Duration::from_secs(5)),
    "The period of checking Nodes: a Node that is nearly due is checked again after a tenth of it, a Node whose writes fail is retried at least that often, and the cloud provider is asked about each Node that is not ready.",
)];

/// Where the provider is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A Unix socket.
    Unix(PathBuf),
    /// TLS with certificates of both sides.
    Https {
        /// Host name or address, as in the provider's certificate.
        host: String,
        /// The port.
        port: u16,
    },
}

/// The provider's endpoint; `None` where no flag sets it.
///
/// # Errors
/// The fault of the flags, with the remedy.
pub fn endpoint(flags: &Flags) -> Result<Option<Endpoint>, String> {
    let text = flags.text(ENDPOINT);
    let files = [CA_FILE, CERT_FILE, KEY_FILE];
    let given = |name: &&&str| !flags.text(name).is_empty();
    if text.is_empty() {
        return match files.iter().find(given) {
            Some(name) => Err(format!("--{name} is given without --{ENDPOINT}")),
            None => Ok(None),
        };
    }
    if flags.duration(TIMEOUT) < Duration::from_secs(1) {
        return Err(format!("--{TIMEOUT} must be at least 1s"));
    }
    if let Some(path) = text.strip_prefix("unix://") {
        if !path.starts_with('/') {
            return Err(format!(
                "--{ENDPOINT} {text:?}: the path of a socket must be absolute, as in unix:///run/cloud.sock"
            ));
        }
        if let Some(name) = files.iter().find(given) {
            return Err(format!("--{name} is of no use with a Unix socket"));
        }
        return Ok(Some(Endpoint::Unix(path.into())));
    }
    let Some(authority) = text.strip_prefix("https://") else {
        return Err(format!(
            "--{ENDPOINT} {text:?} must begin with unix:// or https://"
        ));
    };
    let wrong = || format!("--{ENDPOINT} {text:?} must have the form https://host:port");
    let (host, port) = authority
        .trim_end_matches('/')
        .rsplit_once(':')
        .ok_or_else(wrong)?;
    let port = port.parse().map_err(|_| wrong())?;
    let host = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    if host.is_empty() || host.contains(['/', '?', '#', '@']) || port == 0 {
        return Err(wrong());
    }
    if let Some(name) = files.iter().find(|name| !given(name)) {
        return Err(format!(
            "--{ENDPOINT} {text:?} needs --{name}: both sides show a certificate"
        ));
    }
    Ok(Some(Endpoint::Https {
        host: host.to_owned(),
        port,
    }))
}

/// Whether the controllers of this group run at all.
pub(crate) fn runs(flags: &Flags) -> Runs {
    match endpoint(flags) {
        Ok(Some(_)) => Runs::Yes,
        // kube-controller-manager's words, and how to change it.
        Ok(None) => Runs::No(
            "Skipping a cloud provider controller (no cloud provider functionality is available without --cloud-provider-endpoint)",
        ),
        Err(why) => Runs::Wrong(why),
    }
}

/// The provider's own retry delay, if it names one.
pub(crate) fn retry_at(refused: &Refused, now: Timestamp) -> Option<Timestamp> {
    let [least, most] = RETRY_AFTER;
    let after = refused.retry_after?.clamp(least, most);
    now.checked_add(after).ok()
}

/// A period as the difference of two instants.
///
/// # Errors
/// Never for a flag's value; where it is out of bounds, the key is retried.
pub(crate) fn after(now: Timestamp, period: Duration) -> Result<Timestamp, Refusal> {
    now.checked_add(period)
        .map_err(|why| Refusal::Retry(format!("the period is too long: {why}")))
}
