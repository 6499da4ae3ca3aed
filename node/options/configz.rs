//! `/configz`: upstream's document, filled from the flags, and our own part beside it.

use serde_json::{Map, Value as Json, json};

use super::{Options, PeerTransport};
use crate::args::{self, Tree, Value};

/// Under upstream's group name its KubeControllerManagerConfiguration, as its `/configz` has it. Under
/// `manifold` the fields that only our configuration file has, and `effective`: what came of them on this
/// host.
pub(super) fn configz(options: &Options) -> Json {
    let values = options.values();
    let shape = args::shape(values.specs());
    let tree = shape.write(
        &|spec| {
            let value = values.get(spec.name);
            Some(match (spec.name, value) {
                ("controllers", Value::List(entries)) => {
                    let name = |entry: &String| args::canonical_entry(entry);
                    Value::List(entries.iter().map(name).collect())
                }
                _ => value.clone(),
            })
        },
        true,
    );
    let (mut upstream, mut ours) = (Map::new(), Map::new());
    if let Tree::Section(fields) = tree {
        for (name, field) in fields {
            let is_upstreams =
                name.starts_with(char::is_uppercase) || ["apiVersion", "kind"].contains(&name);
            let part = if is_upstreams {
                &mut upstream
            } else {
                &mut ours
            };
            part.insert(name.to_owned(), json!(field));
        }
    }
    ours.insert("effective".to_owned(), effective(options));
    json!({
        "kubecontrollermanager.config.k8s.io": upstream,
        "manifold": ours,
    })
}

fn effective(options: &Options) -> Json {
    let fleet = &options.fleet;
    json!({
        "replica": fleet.replica,
        "expectedReplicas": fleet.expected_replicas,
        "peer": {
            "address": fleet.peer_address.to_string(),
            "advertised": fleet.peer_advertised,
            "trust": match fleet.peer_transport {
                PeerTransport::Pins => "pins",
                PeerTransport::Files { pins: false, .. } => "files",
                PeerTransport::Files { pins: true, .. } => "both",
                PeerTransport::Insecure => "insecure",
            },
        },
        "controllers": options.controllers,
        "featureGates": options.feature_gates,
    })
}
