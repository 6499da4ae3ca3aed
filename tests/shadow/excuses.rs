//! Differences that are none of the managers': what the suite itself has deleted, and what docs/shadow.md
//! names as a limit.

use std::collections::BTreeSet;

use anyhow::Result;
use harness::ControlPlane;
use inspect::ShadowDifference;

/// Resource, namespace and name.
pub(super) type Deleted = BTreeSet<(String, String, String)>;

/// What somebody else than kube-controller-manager has deleted or evicted, by the audit log.
pub(super) fn deleted_by_others(control_plane: &ControlPlane) -> Result<Deleted> {
    let mut deleted = Deleted::new();
    control_plane.audit().read(|record| {
        let object = record.object();
        let deletes = record.verb == "delete" || object.subresource == "eviction";
        if deletes && !record.user_agent.starts_with("kube-controller-manager/") {
            deleted.insert((object.resource, object.namespace, object.name));
        }
    })?;
    Ok(deleted)
}

/// Why a difference is none.
pub(super) fn excuse(one: &ShadowDifference, deleted: &Deleted) -> Option<&'static str> {
    let plural = one.resource.split('.').next().unwrap_or_default();
    let object = (plural.to_owned(), one.namespace.clone(), one.name.clone());
    let by_suite =
        one.kind == "extra" && one.write.starts_with("delete ") && deleted.contains(&object);
    by_suite.then_some("the suite has deleted it")
}
