//! Approves kubelets' requests for client certificates where the requestor is authorized to have them.
//!
//! Watches CertificateSigningRequests; patches their approval; a key per request; remembers nothing. A
//! request is recognized as that of a kubelet for itself, or for any node; for each the API server is
//! asked, by a SubjectAccessReview of the requestor, whether that may be approved. Where nothing allows it
//! the key is retried with back-off, since a binding may be created later.

use controllers_kit::{
    Answer, Controller, Descriptor, Flags, Key, PatchKind, Plan, Query, Refusal, Sharding,
    Snapshot, StatusWrite, Watches,
};
use kubernetes_proto::certificates::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestSpec,
};
use serde_json::json;

use crate::requests::{self, APPROVED, DENIED, KUBELET_CLIENT};

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
const REASON: &str = "AutoApproved";

/// What a request can be recognized as.
struct Recognizer {
    /// The subresource that the requestor must be allowed to create.
    subresource: &'static str,
    /// What the approval says.
    message: &'static str,
    /// Whether only a request of a node for itself matches.
    own: bool,
}

const RECOGNIZERS: [Recognizer; 2] = [
    Recognizer {
        subresource: "selfnodeclient",
        message: "Auto approving self kubelet client certificate after SubjectAccessReview.",
        own: true,
    },
    Recognizer {
        subresource: "nodeclient",
        message: "Auto approving kubelet client certificate after SubjectAccessReview.",
        own: false,
    },
];

/// The controller.
pub struct CertificateSigningRequestApproving;

impl Controller for CertificateSigningRequestApproving {
    type Memory = ();

    fn describe() -> Descriptor {
        Descriptor::new(
            "certificatesigningrequest-approving-controller",
            Sharding::ByObject,
        )
        .aliases(&["csrapproving"])
        .service_account("certificate-controller")
        .queue("certificate")
        .workers_fixed(5)
        .retry_first(requests::RETRY_FIRST)
        .rule(
            requests::GROUP,
            requests::RESOURCE,
            &["get", "list", "watch"],
        )
        .rule(
            requests::GROUP,
            "certificatesigningrequests/approval",
            &["patch"],
        )
        .rule_for(requests::GROUP, "signers", &[KUBELET_CLIENT], &["approve"])
        .rule("authorization.k8s.io", "subjectaccessreviews", &["create"])
        .differences(include_str!("differences.md"))
    }

    fn new(_: &Flags) -> Self {
        Self
    }

    fn watch(&self, on: &mut Watches) {
        on.kind::<CertificateSigningRequest>().wakes_itself();
    }

    fn ask(&self, key: &Key, seen: &Snapshot<'_>, (): &()) -> Vec<Query> {
        let Ok(Some((request, recognized))) = undecided(key, seen) else {
            return Vec::new();
        };
        let spec = requests::spec(&request);
        recognized.iter().map(|one| review(&spec, one)).collect()
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, (): &mut ()) -> Result<Plan, Refusal> {
        let mut plan = Plan::nothing();
        let Some((request, recognized)) = undecided(key, seen).map_err(Refusal::Retry)? else {
            return Ok(plan);
        };
        let spec = requests::spec(&request);
        for recognizer in &recognized {
            match seen.answer(&review(&spec, recognizer)) {
                Some(Answer::Object(review)) if review["status"]["allowed"] == true => {
                    approve(&mut plan, &request, recognizer);
                    return Ok(plan);
                }
                Some(Answer::Object(_)) => {}
                Some(Answer::Failed(why)) => return Err(Refusal::Retry(why.clone())),
                _ => {
                    return Err(Refusal::Retry(
                        "the API server does not answer SubjectAccessReviews".to_owned(),
                    ));
                }
            }
        }
        if recognized.is_empty() {
            return Ok(plan);
        }
        // A binding may be made later.
        let tried: Vec<&str> = recognized.iter().map(|one| one.subresource).collect();
        Err(Refusal::Expected(format!(
            "recognized csr {:?} as [{}] but subject access review was not approved",
            key.name.as_str(),
            tried.join(" ")
        )))
    }
}

type Recognized = (
    std::sync::Arc<CertificateSigningRequest>,
    Vec<&'static Recognizer>,
);

/// The undecided request of a key, with its recognized kind.
fn undecided(key: &Key, seen: &Snapshot<'_>) -> Result<Option<Recognized>, String> {
    let Some(request) = seen.get::<CertificateSigningRequest>(key) else {
        return Ok(None);
    };
    let status = request.status.clone().unwrap_or_default();
    let decided = requests::has(&status, APPROVED) || requests::has(&status, DENIED);
    if decided || !status.certificate.is_empty() {
        return Ok(None);
    }
    let spec = requests::spec(&request);
    let (_, asked) = requests::read(&key.name, &spec.request)?;
    let is_kubelet = spec.signer_name == KUBELET_CLIENT
        && requests::kubelet_client(&asked, &spec.usages).is_ok();
    let recognized = RECOGNIZERS
        .iter()
        .filter(|one| is_kubelet && (!one.own || spec.username == asked.common_name()))
        .collect();
    Ok(Some((request, recognized)))
}

/// Whether the requestor may create the subresource.
fn review(spec: &CertificateSigningRequestSpec, recognizer: &Recognizer) -> Query {
    let extra: serde_json::Map<String, serde_json::Value> = spec
        .extra
        .iter()
        .map(|(key, values)| (key.clone(), json!(values.items)))
        .collect();
    Query::Review {
        path: REVIEWS,
        body: json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": spec.username,
                "uid": spec.uid,
                "groups": spec.groups,
                "extra": extra,
                "resourceAttributes": {
                    "group": requests::GROUP,
                    "resource": requests::RESOURCE,
                    "subresource": recognizer.subresource,
                    "verb": "create",
                    "version": "*",
                },
            },
        })
        .to_string(),
    }
}

fn approve(plan: &mut Plan, request: &CertificateSigningRequest, recognizer: &Recognizer) {
    let mut conditions = request.status.clone().unwrap_or_default().conditions;
    conditions.push(CertificateSigningRequestCondition {
        r#type: APPROVED.to_owned(),
        status: "True".to_owned(),
        reason: REASON.to_owned(),
        message: recognizer.message.to_owned(),
        ..CertificateSigningRequestCondition::default()
    });
    plan.patch(
        request,
        "approval",
        PatchKind::Merge,
        json!({"status": {"conditions": conditions}}),
        StatusWrite::No,
    );
}

#[cfg(test)]
mod tests;
