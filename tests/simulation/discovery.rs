//! Discovery, in its aggregated form: what the world's catalogue has.

use std::collections::BTreeMap;

use controllers_kit::Catalogue;
use serde_json::{Value, json};

/// The document of the core group, or of all others.
pub fn document(catalogue: &Catalogue, core: bool) -> Value {
    let mut groups: BTreeMap<(&str, &str), Vec<Value>> = BTreeMap::new();
    for entry in catalogue.all() {
        let resource = entry.resource;
        // Leases are served for the coordinators alone, not by namespace: nobody may find them to clear up.
        if resource.group.is_empty() != core || resource.plural == "leases" {
            continue;
        }
        let subresources: Vec<Value> = entry
            .subresources
            .iter()
            .map(|name| json!({"subresource": &**name, "verbs": ["get", "patch", "update"]}))
            .collect();
        let verbs: Vec<&str> = entry.verbs.iter().map(|verb| &**verb).collect();
        groups
            .entry((resource.group, resource.version))
            .or_default()
            .push(json!({
                "resource": resource.plural,
                "responseKind": {
                    "group": resource.group,
                    "version": resource.version,
                    "kind": resource.kind,
                },
                "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
                "verbs": verbs,
                "subresources": subresources,
            }));
    }
    let items: Vec<Value> = groups
        .into_iter()
        .map(|((group, version), resources)| {
            json!({
                "metadata": {"name": group},
                "versions": [{"version": version, "freshness": "Current", "resources": resources}],
            })
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    })
}
