//! What blocks a key, read from the API server's refusal.
//!
//! The server names it in the message alone: quota, webhook, policy and missing right all come as 403 or 500.
//! The texts are those of kube-apiserver 1.36 (plugin/pkg/admission/resourcequota, apiserver's webhook
//! errors, authorization's `ForbiddenMessage`); a text that is not known blocks all the same, and is shown.

use serde::{Deserialize, Serialize};

/// The sort of what blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BlockerKind {
    /// A ResourceQuota is exhausted.
    Quota,
    /// A LimitRange refuses.
    LimitRange,
    /// An admission webhook does not answer.
    WebhookDown,
    /// An admission webhook refuses.
    WebhookRefusal,
    /// A ValidatingAdmissionPolicy refuses.
    Policy,
    /// Pod Security Admission refuses.
    PodSecurity,
    /// A right is missing.
    MissingRight,
    /// A ServiceAccount is missing.
    MissingServiceAccount,
    /// The namespace is being deleted.
    NamespaceTerminating,
    /// The object is being deleted and finalizers hold it.
    Finalizers,
    /// The object is paused or suspended.
    Paused,
    /// The API server asks for less.
    Throttled,
    /// The API server does not answer.
    NoAnswer,
    /// Another writer is faster.
    Conflict,
    /// The API server finds the object invalid.
    Invalid,
    /// A kind that this program does not know.
    #[default]
    #[serde(other)]
    Other,
}

impl BlockerKind {
    /// As in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Quota => "quota",
            Self::LimitRange => "limit-range",
            Self::WebhookDown => "webhook-down",
            Self::WebhookRefusal => "webhook-refusal",
            Self::Policy => "policy",
            Self::PodSecurity => "pod-security",
            Self::MissingRight => "missing-right",
            Self::MissingServiceAccount => "missing-service-account",
            Self::NamespaceTerminating => "namespace-terminating",
            Self::Finalizers => "finalizers",
            Self::Paused => "paused",
            Self::Throttled => "throttled",
            Self::NoAnswer => "no-answer",
            Self::Conflict => "conflict",
            Self::Invalid => "invalid",
            Self::Other => "other",
        }
    }
}

/// What blocks a key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Blocker {
    /// Its sort.
    pub kind: BlockerKind,
    /// Its name: of the quota, webhook, policy, user, object.
    pub name: String,
    /// What it says.
    pub detail: String,
    /// What to do.
    pub remedy: String,
}

impl Blocker {
    /// One.
    pub fn new(
        kind: BlockerKind,
        name: impl Into<String>,
        detail: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            name: name.into(),
            detail: detail.into(),
            remedy: remedy.into(),
        }
    }
}

/// What the API server's refusal of a write in a namespace shows; `None` where it is no refusal.
pub fn blocker(code: u16, message: &str, namespace: &str) -> Option<Blocker> {
    quota(message, namespace)
        .or_else(|| webhook(message))
        .or_else(|| policy(message))
        .or_else(|| pod_security(message, namespace))
        .or_else(|| right(message))
        .or_else(|| service_account(message, namespace))
        .or_else(|| terminating(message, namespace))
        .or_else(|| limit_range(message, namespace))
        .or_else(|| by_code(code, message))
}

/// What follows a word, up to an end or to the end of the text.
fn between<'a>(text: &'a str, begin: &str, end: &str) -> Option<&'a str> {
    let after = &text[text.find(begin)? + begin.len()..];
    Some(&after[..after.find(end).unwrap_or(after.len())])
}

fn quota(message: &str, namespace: &str) -> Option<Blocker> {
    let after = &message[message.find("exceeded quota: ")? + "exceeded quota: ".len()..];
    let (name, detail) = after.split_once(", ").unwrap_or((after, ""));
    Some(Blocker::new(
        BlockerKind::Quota,
        format!("resourcequotas {namespace}/{name}"),
        detail,
        format!("kubectl describe quota {name} -n {namespace}: raise it or delete what uses it up"),
    ))
}

fn webhook(message: &str) -> Option<Blocker> {
    if let Some(name) = between(message, "failed calling webhook \"", "\"") {
        let whole = format!("failed calling webhook \"{name}\": ");
        let detail = message.find(&whole).map(|at| &message[at + whole.len()..]);
        return Some(Blocker::new(
            BlockerKind::WebhookDown,
            name,
            detail.unwrap_or_default(),
            format!(
                "repair the Service behind the webhook {name}, or set its failurePolicy to Ignore: kubectl get \
                 validatingwebhookconfigurations,mutatingwebhookconfigurations -o yaml shows it"
            ),
        ));
    }
    let name = between(message, "admission webhook \"", "\"")?;
    let detail = message.split_once("denied the request").map(|(_, why)| why);
    Some(Blocker::new(
        BlockerKind::WebhookRefusal,
        name,
        detail.unwrap_or_default().trim_start_matches([':', ' ']),
        "change what the webhook refuses, or the webhook's rules",
    ))
}

fn policy(message: &str) -> Option<Blocker> {
    let name = between(message, "ValidatingAdmissionPolicy '", "'")?;
    let detail = message.split_once("denied request: ").map(|(_, why)| why);
    Some(Blocker::new(
        BlockerKind::Policy,
        format!("validatingadmissionpolicies {name}"),
        detail.unwrap_or_default(),
        format!(
            "kubectl get validatingadmissionpolicy {name} -o yaml: change the object or the policy"
        ),
    ))
}

fn pod_security(message: &str, namespace: &str) -> Option<Blocker> {
    let level = between(message, "violates PodSecurity \"", "\"")?;
    let detail = message.split_once("\": ").map(|(_, why)| why);
    Some(Blocker::new(
        BlockerKind::PodSecurity,
        format!("namespaces {namespace}"),
        format!("{level}: {}", detail.unwrap_or_default()),
        format!(
            "change the pod's securityContext, or the pod-security.kubernetes.io labels of namespace {namespace}"
        ),
    ))
}

fn right(message: &str) -> Option<Blocker> {
    let user = between(message, "User \"", "\" cannot ")?;
    let wanted = &message[message.find("\" cannot ")? + "\" cannot ".len()..];
    let wanted = wanted.split(": RBAC:").next().unwrap_or(wanted);
    let remedy = match user.strip_prefix("system:serviceaccount:kube-system:") {
        Some(account) => format!(
            "kubectl apply -k deploy/rbac; the ClusterRole and ClusterRoleBinding system:controller:{account} are made by \
             kube-apiserver at its start"
        ),
        None => format!("bind a role with this right to {user}"),
    };
    Some(Blocker::new(
        BlockerKind::MissingRight,
        user,
        format!("cannot {wanted}"),
        remedy,
    ))
}

fn service_account(message: &str, namespace: &str) -> Option<Blocker> {
    let name = between(message, "error looking up service account ", ":")?;
    let only = name.rsplit('/').next().unwrap_or(name);
    Some(Blocker::new(
        BlockerKind::MissingServiceAccount,
        format!("serviceaccounts {name}"),
        "there is no such ServiceAccount",
        format!("kubectl create serviceaccount {only} -n {namespace}"),
    ))
}

fn terminating(message: &str, namespace: &str) -> Option<Blocker> {
    message.contains("because it is being terminated").then(|| {
        Blocker::new(
            BlockerKind::NamespaceTerminating,
            format!("namespaces {namespace}"),
            "nothing can be made in it any more",
            format!(
                "kubectl manifold explain namespace/{namespace} shows what holds its deletion up"
            ),
        )
    })
}

fn limit_range(message: &str, namespace: &str) -> Option<Blocker> {
    let is_it = ["minimum ", "maximum ", "max limit to request ratio per "]
        .iter()
        .any(|word| message.contains(word))
        && message.contains(" usage per ")
        || message.contains("limit to request ratio per ");
    is_it.then(|| {
        let detail = message.split_once("is forbidden: ").map_or(message, |(_, why)| why);
        Blocker::new(
            BlockerKind::LimitRange,
            format!("limitranges in namespace {namespace}"),
            detail,
            format!("kubectl describe limitrange -n {namespace}: change the requests and limits, or the range"),
        )
    })
}

fn by_code(code: u16, message: &str) -> Option<Blocker> {
    let (kind, remedy) = match code {
        409 => (
            BlockerKind::Conflict,
            "it passes when the other writer rests",
        ),
        422 => (
            BlockerKind::Invalid,
            "correct the object; a retry alone can't help",
        ),
        429 => (
            BlockerKind::Throttled,
            "it passes; see the API server's priority and fairness",
        ),
        504 => (
            BlockerKind::NoAnswer,
            "see whether the API server and its webhooks answer in time",
        ),
        403 | 405 => (
            BlockerKind::Other,
            "read the message: admission or authorization has refused",
        ),
        _ => return None,
    };
    Some(Blocker::new(kind, "", message, remedy))
}

#[cfg(test)]
mod tests;
