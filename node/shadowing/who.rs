//! Who has written the fields that a change has changed, by the object's `managedFields`.

use serde_json::Value;

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

/// Whether a set of fields has a path, or ends above it: what is owned as a whole is not taken apart.
fn owns(fields: &Value, path: &[String]) -> bool {
    let mut at = fields;
    for (depth, part) in path.iter().enumerate() {
        match at.get(format!("f:{part}")) {
            Some(below) => at = below,
            None => {
                let is_leaf = at
                    .as_object()
                    .is_some_and(|below| below.keys().all(|key| key == "."));
                return depth > 0 && is_leaf;
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_owner_of_a_field_has_written_it() {
        let object = json!({"metadata": {"managedFields": [
            {"manager": "kubectl-create", "operation": "Update", "fieldsV1": {"f:spec": {"f:replicas": {}, "f:template": {"f:spec": {}}}}},
            {"manager": "kube-controller-manager", "operation": "Update", "subresource": "status",
             "fieldsV1": {"f:status": {"f:replicas": {}, "f:conditions": {".": {}, "k:{\"type\":\"Ready\"}": {}}}}},
            {"manager": "kube-controller-manager", "operation": "Update",
             "fieldsV1": {"f:metadata": {"f:annotations": {".": {}, "f:deployment.kubernetes.io/revision": {}}}}},
        ]}});
        let path = |parts: &[&str]| vec![parts.iter().map(|part| (*part).to_owned()).collect()];
        for (parts, written) in [
            (&["spec", "replicas"][..], false),
            (&["status", "replicas"], true),
            (&["status", "conditions"], true),
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
            (&["status", "replicas", "deeper"], true),
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
