//! Differences that are none of the managers': what the suite itself has deleted, and what docs/shadow.md
//! names as a limit.

use std::collections::BTreeSet;

use anyhow::Result;
use harness::ControlPlane;
use inspect::ShadowDifference;

/// What the audit log says that no shadow can see.
#[derive(Default)]
pub(super) struct Unseen {
    /// What somebody else than kube-controller-manager has deleted or evicted: resource, namespace and name.
    deleted: BTreeSet<(String, String, String)>,
    /// Namespaces in which the API server has refused kube-controller-manager a creation.
    refused: BTreeSet<String>,
}

/// Reads the audit log.
pub(super) fn unseen(control_plane: &ControlPlane) -> Result<Unseen> {
    let mut unseen = Unseen::default();
    control_plane.audit().read(|record| {
        let object = record.object();
        let by_upstream = record.user_agent.starts_with("kube-controller-manager/");
        let deletes = record.verb == "delete" || object.subresource == "eviction";
        if deletes && !by_upstream {
            let place = (object.resource, object.namespace, object.name);
            unseen.deleted.insert(place);
        } else if record.verb == "create"
            && by_upstream
            && record.code().is_some_and(|code| code >= 400)
        {
            unseen.refused.insert(object.namespace);
        }
    })?;
    Ok(unseen)
}

const LIFECYCLE: &str = "node-lifecycle-controller";
const TURNS: &str = "several nodes of a zone wait, and each manager has an order of its own";
/// Scenarios that show where controllers differ from upstream, as their `differences.md` and docs/shadow.md
/// say.
const KNOWN: [(&str, &str, &str); 6] = [
    ("nodes-addresses-without-kubelet", LIFECYCLE, TURNS),
    ("nodes-not-ready", LIFECYCLE, TURNS),
    ("nodes-pressed", LIFECYCLE, TURNS),
    (
        "daemonset-node-deleted",
        "daemonset-controller",
        "upstream counts a node that is gone until something else wakes the DaemonSet",
    ),
    (
        "devices-claims-again",
        "resourceclaim-controller",
        "upstream's mutation cache shows a deleted claim for up to an hour",
    ),
    (
        "volumes-incomplete-reference",
        "persistentvolume-binder-controller",
        "a volume whose claim can't be read is not released",
    ),
];

/// Why a difference is none.
pub(super) fn excuse(one: &ShadowDifference, unseen: &Unseen) -> Option<&'static str> {
    let plural = one.resource.split('.').next().unwrap_or_default();
    let object = (plural.to_owned(), one.namespace.clone(), one.name.clone());
    let is_deletion = one.kind == "extra" && one.write.starts_with("delete ");
    if is_deletion && unseen.deleted.contains(&object) {
        return Some("the suite has deleted it");
    }
    // A name that is taken is counted in the owner's status.
    let counts = one.kind == "extra" && one.resource.starts_with("deployments");
    let follows_refusal = one.kind == "missing" || counts;
    if follows_refusal && unseen.refused.contains(&one.namespace) {
        return Some("the API server has refused it to upstream");
    }
    let is_of = |scenario: &str| {
        one.namespace == scenario || (one.namespace.is_empty() && one.name.starts_with(scenario))
    };
    let known = KNOWN
        .iter()
        .find(|(scenario, controller, _)| one.controller == *controller && is_of(scenario));
    known.map(|(_, _, why)| *why)
}
