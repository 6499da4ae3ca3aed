//! The API server and the local clock.

use super::Finding;
use crate::facts::{Facts, Unusable};

/// The version of Kubernetes whose kube-controller-manager this build follows.
const BUILT_FOR: (u32, u32) = (1, 36);

/// Group versions without which a controller that is on by default can't work.
const NEEDED: &[&str] = &[
    "v1",
    "admissionregistration.k8s.io/v1",
    "apiextensions.k8s.io/v1",
    "apps/v1",
    "authentication.k8s.io/v1",
    "authorization.k8s.io/v1",
    "autoscaling/v2",
    "batch/v1",
    "certificates.k8s.io/v1",
    "coordination.k8s.io/v1",
    "discovery.k8s.io/v1",
    "events.k8s.io/v1",
    "flowcontrol.apiserver.k8s.io/v1",
    "networking.k8s.io/v1",
    "policy/v1",
    "rbac.authorization.k8s.io/v1",
    "storage.k8s.io/v1",
];

/// Seconds that clocks may differ: what a network and whole seconds of the `Date` header explain, twice over.
pub(super) const CLOCK_SECONDS_MAX: i64 = 3;
/// Beyond it certificates and tokens that were issued just now are refused.
const CLOCK_SECONDS_BROKEN: i64 = 60;

pub(super) fn reachable(facts: &Facts) -> Finding {
    let credentials = &facts.credentials;
    let server = &credentials.server;
    match &facts.server {
        Ok(found) => {
            let user = facts.user.as_deref().unwrap_or("an unknown user");
            Finding::passed(format!("{server}, {}, as {user}", found.version))
        }
        Err(Unusable::Unreachable(why)) => Finding::failed(
            format!("{server} does not answer: {why}"),
            [format!(
                "kubectl config set-cluster {} --server=https://HOST:6443   # or start the API server there",
                or_name(&credentials.cluster, "CLUSTER")
            )],
        ),
        Err(Unusable::Untrusted(why)) => Finding::failed(
            format!("{server} is not trusted: {why} (see certificates/authority)"),
            [trust(facts)],
        ),
        Err(Unusable::Unauthenticated(why)) => Finding::failed(
            format!("{server} does not accept your credentials: {why} (see certificates/client)"),
            [renew(facts)],
        ),
        Err(Unusable::Failing(why)) => Finding::failed(
            format!("{server} fails: {why}"),
            [
                "kubectl get --raw='/readyz?verbose'   # names the check of the API server that fails",
            ],
        ),
    }
}

fn or_name<'a>(name: &'a str, placeholder: &'a str) -> &'a str {
    match name.is_empty() {
        true => placeholder,
        false => name,
    }
}

/// The command that makes a kubeconfig trust the server.
pub(super) fn trust(facts: &Facts) -> String {
    format!(
        "kubectl config set-cluster {} --certificate-authority=/etc/kubernetes/pki/ca.crt --embed-certs",
        or_name(&facts.credentials.cluster, "CLUSTER")
    )
}

/// The command that renews the client certificate.
pub(super) fn renew(facts: &Facts) -> String {
    let path = &facts.credentials.kubeconfig;
    let file = path.rsplit('/').next().unwrap_or(path);
    let known = [
        "admin.conf",
        "super-admin.conf",
        "controller-manager.conf",
        "scheduler.conf",
    ];
    match known.contains(&file) {
        true => format!("kubeadm certs renew {file}"),
        false => "kubeadm certs renew admin.conf   # or have a new kubeconfig issued".to_owned(),
    }
}

pub(super) fn version(facts: &Facts) -> Finding {
    let Ok(server) = &facts.server else {
        return Finding::Skipped("the API server can't be used".to_owned());
    };
    let (major, minor) = BUILT_FOR;
    let built = format!("{major}.{minor}");
    let (their_major, their_minor) = server.minor;
    match (
        their_major == major,
        i64::from(their_minor) - i64::from(minor),
    ) {
        (true, 0) => Finding::passed(server.version.clone()),
        (true, 1) => Finding::passed(format!(
            "{}, one minor version newer than this build's {built}",
            server.version
        )),
        (true, ..0) => Finding::failed(
            format!(
                "{} is older than {built}, and a controller manager must not be newer than the API server",
                server.version
            ),
            [format!("kubeadm upgrade apply v{built}.0")],
        ),
        _ => Finding::failed(
            format!(
                "{} is more than one minor version newer than {built}, which this build follows",
                server.version
            ),
            [format!(
                "kubectl -n {} set image statefulset/manifold manifold=manifold:VERSION   # one for Kubernetes {their_major}.{their_minor}",
                facts.namespace()
            )],
        ),
    }
}

pub(super) fn served(facts: &Facts) -> Finding {
    let served = match &facts.served {
        Ok(served) => served,
        Err(unknown) => return Finding::unknown(unknown),
    };
    let missing: Vec<String> = NEEDED
        .iter()
        .filter(|version| !served.versions.contains(**version))
        .map(|version| (*version).to_owned())
        .collect();
    match missing.is_empty() {
        true => Finding::passed(""),
        false => {
            let off: Vec<String> = missing.iter().map(|name| format!("{name}=true")).collect();
            Finding::failed(
                format!("not served: {}", super::some(&missing)),
                [format!(
                    "# give kube-apiserver --runtime-config={} (kubeadm: apiServer.extraArgs in kubeadm-config)",
                    off.join(",")
                )],
            )
        }
    }
}

pub(super) fn clock(facts: &Facts) -> Finding {
    let Some(ahead) = facts
        .server
        .as_ref()
        .ok()
        .and_then(|server| server.clock_ahead)
    else {
        return Finding::Skipped("the API server sends no Date".to_owned());
    };
    let seconds = ahead.as_secs();
    let side = if seconds < 0 { "behind" } else { "ahead of" };
    let why = format!(
        "the local clock is {} s {side} the API server's: certificates and tokens begin and end at other times here",
        seconds.abs()
    );
    let remedy = ["sudo chronyc makestep"];
    if seconds.abs() <= CLOCK_SECONDS_MAX {
        Finding::passed("")
    } else if seconds.abs() <= CLOCK_SECONDS_BROKEN {
        Finding::warning(why, remedy)
    } else {
        Finding::failed(why, remedy)
    }
}
