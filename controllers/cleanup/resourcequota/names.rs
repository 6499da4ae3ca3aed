//! What a quota's limits are called, and which resource each is about.

use controllers_kit::{Entry, Resource, catalogue::Catalogue};

/// The prefix of limits that count objects, as in `count/deployments.apps`.
const COUNT: &str = "count/";
/// The prefix of limits on requests, as in `requests.cpu`.
pub(super) const REQUESTS: &str = "requests.";

/// Core resources that are also counted by their bare plural.
const BARE: [&str; 4] = [
    "configmaps",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
];

/// Resources with charging rules of their own, by group and plural.
const SPECIAL: [(&str, &str); 4] = [
    ("", "pods"),
    ("", "services"),
    ("", "persistentvolumeclaims"),
    ("resource.k8s.io", "resourceclaims"),
];

/// Whether the objects of a resource can be counted, and have no charging rules of their own: it is
/// namespaced, can be created, deleted and watched. Events are never counted: they are too many.
pub(super) fn is_countable(entry: &Entry) -> bool {
    let resource = entry.resource;
    let is_event = resource.plural == "events" && matches!(resource.group, "" | "events.k8s.io");
    let is_special = SPECIAL.contains(&(resource.group, resource.plural));
    resource.namespaced
        && !is_event
        && !is_special
        && entry.can(&["create", "delete", "list", "watch"])
}

/// The group and plural of the objects that a limit counts; `None` for limits of other kinds and for
/// resources with charging rules of their own.
pub(super) fn counted(limit: &str) -> Option<(&str, &str)> {
    let (group, plural) = match limit.strip_prefix(COUNT) {
        Some(name) => match name.split_once('.') {
            Some((plural, group)) => (group, plural),
            None => ("", name),
        },
        None => ("", *BARE.iter().find(|bare| **bare == limit)?),
    };
    (!SPECIAL.contains(&(group, plural))).then_some((group, plural))
}

/// Whether a limit counts the objects of a resource.
pub(super) fn counts(limit: &str, resource: &Resource) -> bool {
    counted(limit) == Some((resource.group, resource.plural))
}

/// Whether objects of a core resource are counted even where discovery does not show it.
pub(super) fn is_always_known(group: &str, plural: &str) -> bool {
    group.is_empty() && BARE.contains(&plural)
}

/// The served resource whose objects a limit counts.
pub(super) fn find<'a>(catalogue: &'a Catalogue, group: &str, plural: &str) -> Option<&'a Entry> {
    catalogue
        .find(group, plural)
        .filter(|entry| is_countable(entry))
}

/// Whether a resource, as in `example.com/gpu`, is a vendor's.
pub(super) fn is_extended(resource: &str) -> bool {
    !is_native(resource) && !resource.starts_with(REQUESTS)
}

/// Whether a resource is one of Kubernetes' own.
pub(super) fn is_native(resource: &str) -> bool {
    !resource.contains('/') || resource.contains("kubernetes.io/")
}
