//! Which Secrets a pod names.

use std::collections::BTreeSet;

use serde_json::Value;

/// Kinds of volumes that name a Secret, and where.
const VOLUMES: [(&str, &[&str]); 10] = [
    ("azureFile", &["secretName"]),
    ("cephfs", &["secretRef", "name"]),
    ("cinder", &["secretRef", "name"]),
    ("flexVolume", &["secretRef", "name"]),
    ("rbd", &["secretRef", "name"]),
    ("secret", &["secretName"]),
    ("scaleIO", &["secretRef", "name"]),
    ("iscsi", &["secretRef", "name"]),
    ("storageos", &["secretRef", "name"]),
    ("csi", &["nodePublishSecretRef", "name"]),
];

/// The names of all Secrets that a pod's spec, as JSON, names: to pull images, in environments of containers
/// of any sort, in volumes. Sorted, each once.
pub fn secrets(spec: &Value) -> Vec<String> {
    let items = |of: &Value, list: &str| of[list].as_array().cloned().unwrap_or_default();
    let mut names = BTreeSet::new();
    let mut add = |name: &Value| {
        if let Some(name) = name.as_str().filter(|name| !name.is_empty()) {
            names.insert(name.to_owned());
        }
    };
    for reference in items(spec, "imagePullSecrets") {
        add(&reference["name"]);
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for container in items(spec, list) {
            for source in items(&container, "envFrom") {
                add(&source["secretRef"]["name"]);
            }
            for variable in items(&container, "env") {
                add(&variable["valueFrom"]["secretKeyRef"]["name"]);
            }
        }
    }
    for volume in items(spec, "volumes") {
        for (kind, path) in VOLUMES {
            add(path.iter().fold(&volume[kind], |at, field| &at[*field]));
        }
        for source in items(&volume["projected"], "sources") {
            add(&source["secret"]["name"]);
        }
    }
    names.into_iter().collect()
}
