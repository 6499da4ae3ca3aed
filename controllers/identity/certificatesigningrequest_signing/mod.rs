//! Issues the certificates of approved CertificateSigningRequests of the four built-in signers.
//!
//! Watches CertificateSigningRequests; patches their status; a key per request; remembers nothing. The
//! request is checked by the signer's rules first; a breach sets the condition Failed, for good. The
//! certificate itself is an answer of the node, which keeps the authorities' keys: the controller never has
//! them.
//!
//! A signer without files is left alone, and without any files the controller does not run.

use std::time::Duration;

use controllers_kit::{
    Answer, Controller, Descriptor, FlagDefault, Flags, Issue, Key, Plan, Query, Refusal, Runs,
    Sharding, Snapshot, StatusWrite, Watches,
};
use kubernetes_proto::{
    certificates::{CertificateSigningRequest, CertificateSigningRequestCondition},
    meta::Time,
};

use crate::{
    requests::{
        self, API_SERVER_CLIENT, APPROVED, DENIED, FAILED, KUBELET_CLIENT, KUBELET_SERVING,
        LEGACY_UNKNOWN,
    },
    x509::Request,
};

const FAILURE: &str = "SignerValidationFailure";
const DURATION: &str = "cluster-signing-duration";
const CERTIFICATE: &str = "cluster-signing-cert-file";
const KEY: &str = "cluster-signing-key-file";
/// The shortest lifetime, however short the requested one.
const TTL_MIN: Duration = Duration::from_secs(10 * 60);

/// One of the signers, and the flags that name its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Signer {
    name: &'static str,
    certificate: &'static str,
    key: &'static str,
    /// The common prefix of its flags, for errors.
    flags: &'static str,
}

const SIGNERS: [Signer; 4] = [
    Signer {
        name: KUBELET_SERVING,
        certificate: "cluster-signing-kubelet-serving-cert-file",
        key: "cluster-signing-kubelet-serving-key-file",
        flags: "cluster-signing-kubelet-serving",
    },
    Signer {
        name: KUBELET_CLIENT,
        certificate: "cluster-signing-kubelet-client-cert-file",
        key: "cluster-signing-kubelet-client-key-file",
        flags: "cluster-signing-kubelet-client",
    },
    Signer {
        name: API_SERVER_CLIENT,
        certificate: "cluster-signing-kube-apiserver-client-cert-file",
        key: "cluster-signing-kube-apiserver-client-key-file",
        flags: "cluster-signing-kube-apiserver-client",
    },
    Signer {
        name: LEGACY_UNKNOWN,
        certificate: "cluster-signing-legacy-unknown-cert-file",
        key: "cluster-signing-legacy-unknown-key-file",
        flags: "cluster-signing-legacy-unknown",
    },
];

/// Where a signer's authority lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorityFiles {
    /// The signer.
    pub signer: &'static str,
    /// The path of its certificate.
    pub certificate: String,
    /// The path of its key.
    pub key: String,
}

/// The files of the signers that have any.
///
/// # Errors
/// Where flags contradict each other: all faults, in upstream's words.
pub fn authorities(flags: &Flags) -> Result<Vec<AuthorityFiles>, String> {
    let mut own = Vec::new();
    let mut wrong = Vec::new();
    let mut has_own = false;
    for signer in SIGNERS {
        let (certificate, key) = (flags.text(signer.certificate), flags.text(signer.key));
        has_own |= !certificate.is_empty() || !key.is_empty();
        let missing = match (certificate.is_empty(), key.is_empty()) {
            (true, true) => continue,
            (true, false) => "key without cert",
            (false, true) => "cert without key",
            (false, false) => {
                own.push(files(signer.name, certificate, key));
                continue;
            }
        };
        wrong.push(format!("{:?}: cannot specify {missing}", signer.flags));
    }
    let (certificate, key) = (flags.text(CERTIFICATE), flags.text(KEY));
    let shared = !certificate.is_empty() || !key.is_empty();
    if shared && has_own {
        wrong.push(
            "cannot specify --cluster-signing-{cert,key}-file and other --cluster-signing-*-file flags at the same time"
                .to_owned(),
        );
    }
    match wrong.as_slice() {
        [] => {}
        [why] => return Err(why.clone()),
        several => return Err(format!("[{}]", several.join(", "))),
    }
    // Half a pair is none, as upstream has it.
    if !certificate.is_empty() && !key.is_empty() {
        return Ok(SIGNERS
            .iter()
            .map(|signer| files(signer.name, certificate, key))
            .collect());
    }
    Ok(own)
}

fn files(signer: &'static str, certificate: &str, key: &str) -> AuthorityFiles {
    AuthorityFiles {
        signer,
        certificate: certificate.to_owned(),
        key: key.to_owned(),
    }
}

/// The controller.
pub struct CertificateSigningRequestSigning {
    signers: Vec<&'static str>,
    ttl: Duration,
}

impl Controller for CertificateSigningRequestSigning {
    type Memory = ();

    fn describe() -> Descriptor {
        let text = FlagDefault::Text("");
        let file = |descriptor: Descriptor, signer: &Signer, help: [&'static str; 2]| {
            descriptor
                .flag(signer.certificate, FlagDefault::Text(""), help[0])
                .flag(signer.key, FlagDefault::Text(""), help[1])
        };
        let [serving, client, api, legacy] = &SIGNERS;
        let descriptor = Descriptor::new(
            "certificatesigningrequest-signing-controller",
            Sharding::ByObject,
        )
        .aliases(&["csrsigning"])
        .service_account("certificate-controller")
        .queue("certificate")
        .workers_fixed(20)
        .retry_first(requests::RETRY_FIRST)
        .flag(
            CERTIFICATE,
            text.clone(),
            "CA certificate for all signers, PEM; reloaded with its key when they change. Mutually exclusive with files of single signers.",
        )
        .flag(KEY, text, "CA key for all signers, PEM.")
        .flag(
            DURATION,
            FlagDefault::Duration(Duration::from_secs(365 * 24 * 3600)),
            "Longest lifetime of a signed certificate; a request may ask for a shorter one by spec.expirationSeconds.",
        );
        let descriptor = file(
            descriptor,
            serving,
            [
                "CA certificate for kubernetes.io/kubelet-serving.",
                "CA key for kubernetes.io/kubelet-serving.",
            ],
        );
        let descriptor = file(
            descriptor,
            client,
            [
                "CA certificate for kubernetes.io/kube-apiserver-client-kubelet.",
                "CA key for kubernetes.io/kube-apiserver-client-kubelet.",
            ],
        );
        let descriptor = file(
            descriptor,
            api,
            [
                "CA certificate for kubernetes.io/kube-apiserver-client.",
                "CA key for kubernetes.io/kube-apiserver-client.",
            ],
        );
        file(
            descriptor,
            legacy,
            [
                "CA certificate for kubernetes.io/legacy-unknown.",
                "CA key for kubernetes.io/legacy-unknown.",
            ],
        )
        .runs_where(|flags| match authorities(flags) {
            Err(why) => Runs::Wrong(why),
            Ok(files) if files.is_empty() => {
                Runs::No("no --cluster-signing-cert-file and --cluster-signing-key-file were given")
            }
            Ok(_) => Runs::Yes,
        })
        .rule(
            requests::GROUP,
            requests::RESOURCE,
            &["get", "list", "watch"],
        )
        .rule(
            requests::GROUP,
            "certificatesigningrequests/status",
            &["patch"],
        )
        .rule_for(
            requests::GROUP,
            "signers",
            &[
                LEGACY_UNKNOWN,
                API_SERVER_CLIENT,
                KUBELET_CLIENT,
                KUBELET_SERVING,
            ],
            &["sign"],
        )
        .differences(include_str!("differences.md"))
    }

    fn new(flags: &Flags) -> Self {
        Self {
            signers: authorities(flags)
                .unwrap_or_default()
                .iter()
                .map(|files| files.signer)
                .collect(),
            ttl: flags.duration(DURATION),
        }
    }

    fn watch(&self, on: &mut Watches) {
        on.kind::<CertificateSigningRequest>().wakes_itself();
    }

    fn ask(&self, key: &Key, seen: &Snapshot<'_>, (): &()) -> Vec<Query> {
        match self.wanted(key, seen) {
            Ok(Some((_, Ok(issue)))) => vec![Query::Certificate(issue)],
            _ => Vec::new(),
        }
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, (): &mut ()) -> Result<Plan, Refusal> {
        let mut plan = Plan::nothing();
        let Some((request, wanted)) = self.wanted(key, seen).map_err(Refusal::Retry)? else {
            return Ok(plan);
        };
        let mut new = CertificateSigningRequest::clone(&request);
        let status = new.status.get_or_insert_default();
        match wanted {
            Err(why) => status.conditions.push(CertificateSigningRequestCondition {
                r#type: FAILED.to_owned(),
                status: "True".to_owned(),
                reason: FAILURE.to_owned(),
                message: why,
                last_update_time: Some(Time::from(seen.now)),
                ..CertificateSigningRequestCondition::default()
            }),
            Ok(issue) => match seen.answer(&Query::Certificate(issue)) {
                Some(Answer::Object(pem)) => {
                    status.certificate = pem.as_str().unwrap_or_default().as_bytes().to_vec();
                }
                Some(Answer::Failed(why)) => {
                    return Err(Refusal::Retry(format!("error auto signing csr: {why}")));
                }
                _ => {
                    return Err(Refusal::Retry(
                        "error auto signing csr: there is no authority here".to_owned(),
                    ));
                }
            },
        }
        if let Some(action) = plan.update_status(&*request, &new) {
            // Nothing that comes later takes its place.
            action.reports(StatusWrite::No);
        }
        Ok(plan)
    }
}

/// A request, and the certificate that it should get, or why it gets none.
type Wanted = (
    std::sync::Arc<CertificateSigningRequest>,
    Result<Issue, String>,
);

impl CertificateSigningRequestSigning {
    /// What to do with a key's request; `None` for nothing.
    fn wanted(&self, key: &Key, seen: &Snapshot<'_>) -> Result<Option<Wanted>, String> {
        let Some(request) = seen.get::<CertificateSigningRequest>(key) else {
            return Ok(None);
        };
        let status = request.status.clone().unwrap_or_default();
        let has_failed = status.conditions.iter().any(|condition| {
            condition.r#type == FAILED && matches!(condition.status.as_str(), "" | "True")
        });
        let approved = requests::has(&status, APPROVED) && !requests::has(&status, DENIED);
        if !approved || has_failed || !status.certificate.is_empty() {
            return Ok(None);
        }
        let spec = requests::spec(&request);
        let Some(signer) = self.signers.iter().find(|name| **name == spec.signer_name) else {
            return Ok(None);
        };
        let (der, asked) = requests::read(&key.name, &spec.request)?;
        let wanted = allowed(signer, &asked, &spec.usages).map(|()| Issue {
            signer,
            request: der,
            usages: spec.usages.clone(),
            ttl: self.ttl(spec.expiration_seconds),
        });
        Ok(Some((request, wanted)))
    }

    /// The certificate's lifetime: the requested one, within the flag's bound and the shortest useful
    /// lifetime.
    fn ttl(&self, seconds: Option<i32>) -> Duration {
        let Some(seconds) = seconds else {
            return self.ttl;
        };
        let asked = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        if asked > self.ttl {
            self.ttl
        } else {
            asked.max(TTL_MIN)
        }
    }
}

/// Whether a signer gives what is asked for.
fn allowed(signer: &str, asked: &Request, usages: &[String]) -> Result<(), String> {
    match signer {
        KUBELET_SERVING => requests::kubelet_serving(asked, usages),
        KUBELET_CLIENT => requests::kubelet_client(asked, usages),
        API_SERVER_CLIENT => requests::api_server_client(usages),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
