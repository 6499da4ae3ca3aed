//! What a quota's limits are called, and which resource each is about.

use controllers_kit::{Entry, Resource, catalogue::Catalogue};

/// In front of what counts objects, as in `count/deployments.apps`.
const COUNT: &str = "count/";
/// In front of what is asked for, as in `requests.cpu`.
pub(super) const REQUESTS: &str = "requests.";

/// Core resources that are counted by their bare plural too.
const BARE: [&str; 4] = [
    "configmaps",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
];

/// Resources that are charged for in their own ways, by group and plural.
const SPECIAL: [(&str, &str); 4] = [
    ("", "pods"),
    ("", "services"),
    ("", "persistentvolumeclaims"),
    ("resource.k8s.io", "resourceclaims"),
];

/// Whether the objects of a resource can be counted, and are not charged for otherwise: it lives in
/// namespaces, is made and goes, and can be followed. Events never were counted, and are too many.
pub(super) fn is_countable(entry: &Entry) -> bool {
    let resource = entry.resource;
    let is_event = resource.plural == "events" && matches!(resource.group, "" | "events.k8s.io");
    let is_special = SPECIAL.contains(&(resource.group, resource.plural));
    resource.namespaced
        && !is_event
        && !is_special
        && entry.can(&["create", "delete", "list", "watch"])
}

/// The group and plural of which a limit counts the objects; none for limits of other kinds and for resources
/// that are charged for in their own ways.
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

/// Whether objects of a core resource are counted whether discovery shows it or not.
pub(super) fn is_always_known(group: &str, plural: &str) -> bool {
    group.is_empty() && BARE.contains(&plural)
}

/// The resource of which a limit counts the objects, as it is served.
pub(super) fn find<'a>(catalogue: &'a Catalogue, group: &str, plural: &str) -> Option<&'a Entry> {
    catalogue
        .find(group, plural)
        .filter(|entry| is_countable(entry))
}

/// Whether a resource, as in `example.com/gpu`, is named by nobody but those who offer it.
pub(super) fn is_extended(resource: &str) -> bool {
    !is_native(resource) && !resource.starts_with(REQUESTS)
}

/// Whether a resource is one of the project's own.
pub(super) fn is_native(resource: &str) -> bool {
    !resource.contains('/') || resource.contains("kubernetes.io/")
}
