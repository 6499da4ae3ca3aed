//! Who has written the fields that a change has changed, by the object's `managedFields`.

use controllers_kit::AnyObject;
use serde_json::Value;
use shadow::Change;

/// The field manager of the manager in charge, of a fleet at work too.
const MANAGER: &str = "kube-controller-manager";

/// Whether an object was made by the manager in charge: nobody else owns a field of it outside
/// subresources.
pub fn has_made(object: &Value) -> bool {
    let mut mains = entries(object).filter(|entry| text(entry, "subresource").is_empty());
    let mut any = false;
    let all = mains.all(|entry| {
        any = true;
        is_manager(entry)
    });
    any && all
}

/// The fields of a change that are still as it has set them, lists of conditions by the conditions that have
/// changed: each has an owner of its own. What has been set again since has the owner of that.
pub fn parts(paths: &[Vec<String>], change: &Change, since: &AnyObject) -> Vec<Vec<String>> {
    let (Some(old), Some(new)) = (&change.old, &change.new) else {
        return paths.to_vec();
    };
    let (old, new, since) = (old.to_json(), new.to_json(), since.to_json());
    let mut parts = Vec::new();
    for path in paths {
        let value = |object: &Value| -> Value {
            let mut at = object;
            for part in path {
                at = &at[part];
            }
            at.clone()
        };
        let (before, after, present) = (value(&old), value(&new), value(&since));
        if path.last().is_none_or(|last| last != "conditions") {
            if after == present {
                parts.push(path.clone());
            }
            continue;
        }
        let all = |list: &Value| list.as_array().cloned().unwrap_or_default();
        for condition in all(&before).iter().chain(&all(&after)) {
            let kind = text(condition, "type");
            let of = |list: &Value| all(list).into_iter().find(|one| text(one, "type") == kind);
            let part = format!("k:{}", serde_json::json!({"type": kind}));
            let path = [path.as_slice(), &[part]].concat();
            let remains = of(&before) != of(&after) && of(&after) == of(&present);
            if remains && !parts.contains(&path) {
                parts.push(path);
            }
        }
    }
    parts
}

/// Whether the manager in charge owns one of these fields: it has written it last.
pub fn has_written(object: &Value, paths: &[Vec<String>]) -> bool {
    entries(object)
        .filter(|entry| is_manager(entry))
        .any(|entry| paths.iter().any(|path| owns(&entry["fieldsV1"], path)))
}

fn entries(object: &Value) -> impl Iterator<Item = &Value> {
    let entries = object["metadata"]["managedFields"].as_array();
    entries.into_iter().flatten()
}

fn is_manager(entry: &Value) -> bool {
    text(entry, "manager") == MANAGER
}

fn text<'a>(entry: &'a Value, field: &str) -> &'a str {
    entry[field].as_str().unwrap_or_default()
}

/// Whether a set of fields has a path. A map of which others have taken over all fields stays behind as an
/// empty one, so that what is below an empty one is nobody's: of a map that is set as a whole it can't be
/// known.
fn owns(fields: &Value, path: &[String]) -> bool {
    let mut at = fields;
    path.iter().all(|part| {
        let name = match part.starts_with("k:") {
            true => part.clone(),
            false => format!("f:{part}"),
        };
        match at.get(name) {
            Some(below) => {
                at = below;
                true
            }
            None => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use controllers_kit::testing::{PodBuild, pod};
    use serde_json::json;

    use super::*;

    #[test]
    fn what_has_been_set_again_says_nothing_of_a_change() {
        let with = |phase: &str, reason: &str, conditions: [(&str, &str); 2]| -> AnyObject {
            let mut pod = pod("a").phase(phase);
            for (kind, value) in conditions {
                pod = pod.condition(kind, value, "10:00:00");
            }
            pod.status.get_or_insert_default().reason = reason.into();
            Arc::new(pod)
        };
        let change = Change {
            old: Some(with("Pending", "", [("Ready", "False"), ("Seen", "False")])),
            new: Some(with("Running", "x", [("Ready", "True"), ("Seen", "True")])),
            version: 2,
        };
        let since = with("Failed", "x", [("Ready", "True"), ("Seen", "False")]);
        let path = |parts: &[&str]| -> Vec<String> {
            parts.iter().map(|part| (*part).to_owned()).collect()
        };
        let paths = ["phase", "reason", "conditions"].map(|field| path(&["status", field]));
        assert_eq!(
            parts(&paths, &change, &since),
            [
                path(&["status", "reason"]),
                path(&["status", "conditions", "k:{\"type\":\"Ready\"}"]),
            ]
        );
    }

    #[test]
    fn the_owner_of_a_field_has_written_it() {
        let object = json!({"metadata": {"managedFields": [
            {"manager": "kubectl-create", "operation": "Update", "fieldsV1": {"f:spec": {"f:replicas": {}, "f:template": {"f:spec": {}}}}},
            {"manager": "kube-controller-manager", "operation": "Update", "subresource": "status",
             "fieldsV1": {"f:status": {"f:replicas": {}, "f:conditions": {".": {}, "k:{\"type\":\"Ready\"}": {}}}}},
            {"manager": "kube-controller-manager", "operation": "Update",
             "fieldsV1": {"f:metadata": {"f:annotations": {".": {}, "f:deployment.kubernetes.io/revision": {}},
                                              "f:labels": {".": {}}}}},
        ]}});
        let path = |parts: &[&str]| vec![parts.iter().map(|part| (*part).to_owned()).collect()];
        for (parts, written) in [
            (&["spec", "replicas"][..], false),
            (&["status", "replicas"], true),
            (&["status", "conditions"], true),
            (&["status", "conditions", "k:{\"type\":\"Ready\"}"], true),
            (
                &["status", "conditions", "k:{\"type\":\"Approved\"}"],
                false,
            ),
            (&["status", "readyReplicas"], false),
            (
                &[
                    "metadata",
                    "annotations",
                    "deployment.kubernetes.io/revision",
                ],
                true,
            ),
            (&["metadata", "annotations", "other"], false),
            // It has made the map, of which others have set this.
            (&["metadata", "labels", "app"], false),
            (&["status", "replicas", "deeper"], false),
        ] {
            assert_eq!(has_written(&object, &path(parts)), written, "{parts:?}");
        }
        assert!(!has_made(&object), "kubectl owns its spec");
        let made = json!({"metadata": {"managedFields": [
            {"manager": "kube-controller-manager", "fieldsV1": {"f:spec": {}}},
            {"manager": "kubelet", "subresource": "status", "fieldsV1": {}},
        ]}});
        assert!(has_made(&made));
        assert!(!has_made(&json!({})));
    }
}
