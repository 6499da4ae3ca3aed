//! How an action becomes a request, and an answer becomes an outcome. Pure; `apply.rs` sends.

use controllers_kit::{
    Action, Event, Failure, NOT_FOUND, Only, PatchKind, Propagation, Verb, Written, is_json,
};
use kubernetes_proto::{envelope, meta::PartialObjectMetadata};
use node_cache::api::Status;
use serde_json::{Value, json};

use crate::events;

#[cfg(test)]
mod tests;

/// An answer to a write need not carry more than metadata: uid and resourceVersion are all that is read of
/// it.
pub const ACCEPT_METADATA: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,\
                                   application/vnd.kubernetes.protobuf,application/json";
/// The answer to the deletion of a collection is a list, which has no such form.
pub const ACCEPT_ANY: &str = "application/vnd.kubernetes.protobuf,application/json";
/// Field ownership stays what it is under upstream, so that a swap of managers moves no field.
const FIELD_MANAGER: &str = "fieldManager=kube-controller-manager";

/// A request that writes.
#[derive(Clone, Debug, PartialEq)]
pub struct WriteRequest {
    /// POST, PUT, PATCH or DELETE.
    pub method: &'static str,
    /// Path and query.
    pub path: String,
    /// Of the body.
    pub content_type: &'static str,
    /// The body.
    pub body: Vec<u8>,
}

/// The request of an action.
pub fn request(action: &Action) -> WriteRequest {
    let (namespace, name) = (&action.key.namespace, &action.key.name);
    match &action.verb {
        Verb::Create { body } if is_json(body) => WriteRequest {
            method: "POST",
            path: format!("{}?{FIELD_MANAGER}", action.resource.path(namespace, "")),
            content_type: "application/json",
            body: body.clone(),
        },
        Verb::Create { body } => WriteRequest {
            method: "POST",
            path: format!("{}?{FIELD_MANAGER}", action.resource.path(namespace, "")),
            content_type: envelope::PROTOBUF,
            body: envelope::wrap(
                &action.resource.api_version(),
                action.resource.kind,
                body.clone(),
            ),
        },
        Verb::Patch {
            subresource,
            kind,
            patch,
            ..
        } => {
            let mut path = action.resource.path(namespace, name);
            if !subresource.is_empty() {
                path.push('/');
                path.push_str(subresource);
            }
            let mut body = with_preconditions(patch, action);
            let (content_type, query) = match kind {
                PatchKind::Merge => ("application/merge-patch+json", FIELD_MANAGER.to_owned()),
                PatchKind::Strategic => (
                    "application/strategic-merge-patch+json",
                    FIELD_MANAGER.to_owned(),
                ),
                PatchKind::Apply { manager } => {
                    identify(&mut body, action);
                    (
                        "application/apply-patch+yaml",
                        format!("fieldManager={manager}&force=true"),
                    )
                }
                PatchKind::Rewrite { manager } => {
                    identify(&mut body, action);
                    (
                        "application/apply-patch+yaml",
                        format!("fieldManager={manager}"),
                    )
                }
            };
            WriteRequest {
                method: "PATCH",
                path: format!("{path}?{query}"),
                content_type,
                body: body.to_string().into_bytes(),
            }
        }
        Verb::DeleteCollection { propagation } => WriteRequest {
            method: "DELETE",
            path: action.resource.path(namespace, ""),
            content_type: "application/json",
            body: json!({
                "apiVersion": "v1",
                "kind": "DeleteOptions",
                "propagationPolicy": policy(*propagation),
            })
            .to_string()
            .into_bytes(),
        },
        Verb::Replace { subresource, body } => WriteRequest {
            method: "PUT",
            path: format!(
                "{}/{subresource}?{FIELD_MANAGER}",
                action.resource.path(namespace, name)
            ),
            content_type: "application/json",
            body: body.to_string().into_bytes(),
        },
        Verb::Delete {
            only,
            propagation,
            grace_period_seconds,
        } => {
            let mut preconditions = json!({"uid": action.uid});
            if *only == Only::ThisVersion {
                preconditions["resourceVersion"] = json!(action.resource_version.to_string());
            }
            let mut options = json!({
                "apiVersion": "v1",
                "kind": "DeleteOptions",
                "preconditions": preconditions,
                "propagationPolicy": policy(*propagation),
            });
            if let Some(seconds) = grace_period_seconds {
                options["gracePeriodSeconds"] = json!(seconds);
            }
            WriteRequest {
                method: "DELETE",
                path: action.resource.path(namespace, name),
                content_type: "application/json",
                body: options.to_string().into_bytes(),
            }
        }
    }
}

fn policy(propagation: Propagation) -> &'static str {
    match propagation {
        Propagation::Background => "Background",
        Propagation::Foreground => "Foreground",
        Propagation::Orphan => "Orphan",
    }
}

/// The request that records an event: a creation, or a patch that counts an earlier one up.
pub fn event_request(send: &events::Send, create: bool) -> WriteRequest {
    let collection = format!("/api/v1/namespaces/{}/events", send.namespace);
    match &send.patch {
        Some(patch) if !create => WriteRequest {
            method: "PATCH",
            path: format!("{collection}/{}?{FIELD_MANAGER}", send.name),
            content_type: "application/strategic-merge-patch+json",
            body: patch.to_string().into_bytes(),
        },
        _ => WriteRequest {
            method: "POST",
            path: format!("{collection}?{FIELD_MANAGER}"),
            content_type: "application/json",
            body: send.body.to_string().into_bytes(),
        },
    }
}

/// What an apply says of the object besides its fields. JSON is YAML.
fn identify(body: &mut Value, action: &Action) {
    body["apiVersion"] = json!(action.resource.api_version());
    body["kind"] = json!(action.resource.kind);
    body["metadata"]["name"] = json!(action.key.name);
    if !action.key.namespace.is_empty() {
        body["metadata"]["namespace"] = json!(action.key.namespace);
    }
}

/// uid always, resourceVersion where the action names one: the server refuses the patch of anything else.
fn with_preconditions(patch: &Value, action: &Action) -> Value {
    let mut patch = patch.clone();
    if !action.uid.is_empty() {
        patch["metadata"]["uid"] = json!(action.uid);
    }
    if action.resource_version != 0 {
        patch["metadata"]["resourceVersion"] = json!(action.resource_version.to_string());
    }
    patch
}

/// What a successful answer says of the object; nothing where it carries none (a Status).
pub fn written(body: &[u8]) -> Written {
    if let Ok(envelope) = envelope::open(body) {
        if envelope.kind == "Status" {
            return Written::default();
        }
        return PartialObjectMetadata::read(envelope.raw).ok().map_or_else(
            Written::default,
            |meta| Written {
                gone: meta.is_held_by_nothing(),
                uid: meta.uid,
                resource_version: meta.resource_version,
            },
        );
    }
    serde_json::from_slice::<Value>(body)
        .ok()
        .filter(|json| json["kind"] != "Status")
        .and_then(|json| {
            let meta = json.get("metadata")?;
            let list = |field: &str| meta[field].as_array().is_some_and(|list| !list.is_empty());
            Some(Written {
                uid: meta.get("uid")?.as_str()?.into(),
                resource_version: meta.get("resourceVersion")?.as_str()?.parse().ok()?,
                gone: meta["deletionTimestamp"].is_string()
                    && !list("finalizers")
                    && meta["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0,
            })
        })
        .unwrap_or_default()
}

/// What a refused write means.
pub fn failure(status: &Status) -> Failure {
    let message = status.to_string();
    let causes = || status.details.causes.iter();
    match (status.code, status.reason.as_str()) {
        (409, "AlreadyExists") => Failure::AlreadyExists(message),
        (409, _) => Failure::Conflict(message),
        // No `Status`: nothing is served under the path.
        (404, "") => Failure::NotFound(NOT_FOUND.to_owned()),
        (404, _) => Failure::NotFound(message),
        (403, _) if causes().any(|cause| cause.reason == "NamespaceTerminating") => {
            Failure::NamespaceTerminating(message)
        }
        (403, _) => Failure::Forbidden(message),
        // A patch whose uid is not the object's: another object has the name now.
        (422, _) if causes().any(|cause| cause.field == "metadata.uid") => {
            Failure::Conflict(message)
        }
        (405, _) => Failure::NotSupported(message),
        (422 | 400, _) => Failure::Invalid(message),
        (504 | 408, _) => Failure::Timeout(message),
        _ => Failure::Other(message),
    }
}

/// The event that reports a failure: the error follows the announced message.
pub fn failure_event(announced: &Event, failure: &Failure) -> Event {
    Event {
        message: format!("{}{failure}", announced.message),
        ..announced.clone()
    }
}

/// Sizes of the batches in which creates are sent: 1, 2, 4 …; a batch that fails stops the rest, so that a
/// tenant without quota costs the API server one refusal a sync and not hundreds.
pub fn slow_start(count: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let mut start = 0;
    let mut size = 1;
    std::iter::from_fn(move || {
        (start < count).then(|| {
            let end = (start + size).min(count);
            let batch = start..end;
            start = end;
            size *= 2;
            batch
        })
    })
}
