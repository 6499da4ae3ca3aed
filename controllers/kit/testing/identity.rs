//! Builders for roles, requests for certificates, and Secrets of tokens.

use kubernetes_proto::{
    Object,
    certificates::{
        CertificateSigningRequest, CertificateSigningRequestCondition, ExtraValue,
        PodCertificateRequest,
    },
    core::{BootstrapToken, ClusterInfo, ObjectReference, ServiceAccount, ServiceAccountToken},
    meta::{Entry, LabelSelector},
    rbac::{AggregationRule, ClusterRole, PolicyRule},
};

use super::{Common, at, builders::named};

/// A ClusterRole without rules.
pub fn cluster_role(name: &str) -> ClusterRole {
    named(name)
}

/// What ClusterRoles have.
pub trait ClusterRoleBuild {
    /// With a rule for a verb on a resource of the core group.
    #[must_use]
    fn may(self, verb: &str, resource: &str) -> Self;
    /// With a selector of roles by one label, after those that it has.
    #[must_use]
    fn aggregates(self, label: &str, value: &str) -> Self;
}

impl ClusterRoleBuild for ClusterRole {
    fn may(mut self, verb: &str, resource: &str) -> Self {
        self.rules.push(PolicyRule {
            verbs: vec![verb.to_owned()],
            api_groups: vec![String::new()],
            resources: vec![resource.to_owned()],
            ..PolicyRule::default()
        });
        self
    }

    fn aggregates(mut self, label: &str, value: &str) -> Self {
        let rule = self
            .aggregation_rule
            .get_or_insert_with(AggregationRule::default);
        rule.cluster_role_selectors.push(LabelSelector {
            match_labels: vec![Entry {
                key: label.into(),
                value: value.into(),
            }],
            ..LabelSelector::default()
        });
        self
    }
}

/// An undecided CertificateSigningRequest.
pub fn certificate_signing_request(name: &str) -> CertificateSigningRequest {
    let mut request: CertificateSigningRequest = named(name);
    request.spec = Some(kubernetes_proto::certificates::CertificateSigningRequestSpec::default());
    request.status =
        Some(kubernetes_proto::certificates::CertificateSigningRequestStatus::default());
    request
}

/// What CertificateSigningRequests have.
pub trait RequestBuild {
    /// For a signer.
    #[must_use]
    fn signer(self, name: &str) -> Self;
    /// With the PEM of the request.
    #[must_use]
    fn asks(self, pem: &str) -> Self;
    /// For usages.
    #[must_use]
    fn usages(self, usages: &[&str]) -> Self;
    /// By somebody.
    #[must_use]
    fn by(self, user: &str) -> Self;
    /// By somebody with an extra field.
    #[must_use]
    fn extra(self, key: &str, value: &str) -> Self;
    /// With a requested lifetime in seconds.
    #[must_use]
    fn expires_after(self, seconds: i32) -> Self;
    /// With a condition that is true since an instant; without a time where that is empty.
    #[must_use]
    fn condition(self, r#type: &str, since: &str) -> Self;
    /// With a certificate.
    #[must_use]
    fn issued(self, pem: &str) -> Self;
}

impl RequestBuild for CertificateSigningRequest {
    fn signer(mut self, name: &str) -> Self {
        self.spec.get_or_insert_default().signer_name = name.to_owned();
        self
    }
    fn asks(mut self, pem: &str) -> Self {
        self.spec.get_or_insert_default().request = pem.as_bytes().to_vec();
        self
    }
    fn usages(mut self, usages: &[&str]) -> Self {
        self.spec.get_or_insert_default().usages =
            usages.iter().map(|usage| (*usage).to_owned()).collect();
        self
    }
    fn by(mut self, user: &str) -> Self {
        self.spec.get_or_insert_default().username = user.to_owned();
        self
    }
    fn extra(mut self, key: &str, value: &str) -> Self {
        let values = ExtraValue {
            items: vec![value.to_owned()],
        };
        let spec = self.spec.get_or_insert_default();
        spec.extra.insert(key.to_owned(), values);
        self
    }
    fn expires_after(mut self, seconds: i32) -> Self {
        self.spec.get_or_insert_default().expiration_seconds = Some(seconds);
        self
    }
    fn condition(mut self, r#type: &str, since: &str) -> Self {
        let time = (!since.is_empty()).then(|| at(since).into());
        let condition = CertificateSigningRequestCondition {
            r#type: r#type.to_owned(),
            status: "True".to_owned(),
            last_update_time: time,
            last_transition_time: time,
            ..CertificateSigningRequestCondition::default()
        };
        let status = self.status.get_or_insert_default();
        status.conditions.push(condition);
        self
    }
    fn issued(mut self, pem: &str) -> Self {
        self.status.get_or_insert_default().certificate = pem.as_bytes().to_vec();
        self
    }
}

/// A PodCertificateRequest.
pub fn pod_certificate_request(name: &str) -> PodCertificateRequest {
    named(name)
}

/// The Secret of a bootstrap token in kube-system: named by its id, complete, without expiration, for
/// signing.
pub fn bootstrap_token(id: &str, secret: &str) -> BootstrapToken {
    let mut token: BootstrapToken = named(&format!("bootstrap-token-{id}"));
    token = token.in_namespace("kube-system");
    token.r#type = BootstrapToken::TYPE.into();
    token
        .holds("token-id", id)
        .holds("token-secret", secret)
        .holds("usage-bootstrap-signing", "true")
}

/// The Secret of a service account's token, still empty.
pub fn service_account_token(name: &str, account: &str) -> ServiceAccountToken {
    let mut token: ServiceAccountToken = named(name);
    token.r#type = ServiceAccountToken::TYPE.into();
    match account {
        "" => token,
        _ => token.annotation("kubernetes.io/service-account.name", account),
    }
}

/// What Secrets have.
pub trait SecretBuild {
    /// With a field; an empty text takes it away.
    #[must_use]
    fn holds(self, key: &str, text: &str) -> Self;
}

macro_rules! secret_build {
    ($($type:ty),*) => {$(
        impl SecretBuild for $type {
            fn holds(mut self, key: &str, text: &str) -> Self {
                match text {
                    "" => self.data.remove(key),
                    _ => self.data.insert(key.to_owned(), text.into()),
                };
                self
            }
        }
    )*};
}
secret_build!(BootstrapToken, ServiceAccountToken);

/// The ConfigMap kube-public/cluster-info.
pub fn cluster_info() -> ClusterInfo {
    named::<ClusterInfo>("cluster-info").in_namespace("kube-public")
}

/// What the ConfigMap has.
pub trait ClusterInfoBuild {
    /// With a text.
    #[must_use]
    fn says(self, key: &str, text: &str) -> Self;
}

impl ClusterInfoBuild for ClusterInfo {
    fn says(mut self, key: &str, text: &str) -> Self {
        self.data.insert(key.to_owned(), text.to_owned());
        self
    }
}

/// What ServiceAccounts have.
pub trait AccountBuild {
    /// With a reference to a Secret.
    #[must_use]
    fn lists(self, secret: &str) -> Self;
}

impl AccountBuild for ServiceAccount {
    fn lists(mut self, secret: &str) -> Self {
        self.secrets.push(ObjectReference {
            name: secret.to_owned(),
            ..ObjectReference::default()
        });
        self
    }
}

/// The text of a confidential field of a Secret; empty where there is none.
pub fn held(
    data: &std::collections::BTreeMap<String, kubernetes_proto::Confidential>,
    key: &str,
) -> String {
    data.get(key)
        .and_then(|value| value.reveal_text())
        .unwrap_or_default()
        .to_owned()
}

/// Checks that an object prints no trace of a text.
pub fn prints_no<T: Object>(object: &T, text: &str) -> bool {
    !format!("{object:?}").contains(text)
}
