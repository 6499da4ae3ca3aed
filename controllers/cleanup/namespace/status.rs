//! The conditions of a namespace that is ending: five, each false with a word of its own where nothing is
//! wrong.

use std::collections::BTreeMap;

use controllers_kit::{
    Timestamp,
    conditions::{self, Policy},
};
use kubernetes_proto::core::{Namespace, NamespaceCondition};

/// What one reconcile has found.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// Why discovery as a whole can't be read.
    pub outdated: Option<String>,
    /// Group versions that discovery does not show, with the reason.
    pub discovery: Vec<String>,
    /// Why content could not be read or deleted.
    pub content_errors: Vec<String>,
    /// What is left, a text for each resource.
    pub remaining: Vec<String>,
    /// In how many objects each finalizer is left.
    pub finalizers: BTreeMap<String, usize>,
}

/// Type, and reason and message where nothing is wrong.
const CONDITIONS: [(&str, &str, &str); 5] = [
    (
        "NamespaceDeletionDiscoveryFailure",
        "ResourcesDiscovered",
        "All resources successfully discovered",
    ),
    (
        "NamespaceDeletionGroupVersionParsingFailure",
        "ParsedGroupVersions",
        "All legacy kube types successfully parsed",
    ),
    (
        "NamespaceDeletionContentFailure",
        "ContentDeleted",
        "All content successfully deleted, may be waiting on finalization",
    ),
    (
        "NamespaceContentRemaining",
        "ContentRemoved",
        "All content successfully removed",
    ),
    (
        "NamespaceFinalizersRemaining",
        "ContentHasNoFinalizers",
        "All content-preserving finalizers finished",
    ),
];

fn sorted(texts: &[String]) -> String {
    let mut texts = texts.to_vec();
    texts.sort();
    texts.join(", ")
}

/// Reason and message of a condition that is true; `None` for one that is false.
fn trouble(r#type: &str, findings: &Findings) -> Option<(&'static str, String)> {
    let Findings {
        outdated,
        discovery,
        content_errors,
        remaining,
        finalizers,
    } = findings;
    match r#type {
        "NamespaceDeletionDiscoveryFailure" if let Some(why) = outdated => {
            Some(("DiscoveryFailed", why.clone()))
        }
        "NamespaceDeletionDiscoveryFailure" if !discovery.is_empty() => Some((
            "DiscoveryFailed",
            format!(
                "Discovery failed for some groups, {} failing: unable to retrieve the complete list of server APIs: {}",
                discovery.len(),
                sorted(discovery)
            ),
        )),
        "NamespaceDeletionContentFailure" if !content_errors.is_empty() => Some((
            "ContentDeletionFailed",
            format!(
                "Failed to delete all resource types, {} remaining: {}",
                content_errors.len(),
                sorted(content_errors)
            ),
        )),
        "NamespaceContentRemaining" if !remaining.is_empty() => Some((
            "SomeResourcesRemain",
            format!("Some resources are remaining: {}", sorted(remaining)),
        )),
        "NamespaceFinalizersRemaining" if !finalizers.is_empty() => {
            let each: Vec<String> = finalizers
                .iter()
                .map(|(name, count)| format!("{name} in {count} resource instances"))
                .collect();
            Some((
                "SomeFinalizersRemain",
                format!(
                    "Some content in the namespace has finalizers remaining: {}",
                    sorted(&each)
                ),
            ))
        }
        _ => None,
    }
}

/// The namespace with the conditions that follow from a reconcile. One whose status stays keeps its time.
pub(super) fn of(namespace: &Namespace, findings: &Findings, now: Timestamp) -> Namespace {
    let mut new = namespace.clone();
    let status = new.status.get_or_insert_default();
    status.phase = "Terminating".to_owned();
    for (r#type, ok_reason, ok_message) in CONDITIONS {
        let (value, reason, message) = match trouble(r#type, findings) {
            Some((reason, message)) => ("True", reason, message),
            None => ("False", ok_reason, ok_message.to_owned()),
        };
        let condition = NamespaceCondition {
            r#type: r#type.to_owned(),
            status: value.to_owned(),
            last_transition_time: Some(now.into()),
            reason: reason.to_owned(),
            message,
        };
        conditions::set(&mut status.conditions, condition, Policy::InPlace);
    }
    new
}
