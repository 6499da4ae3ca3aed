//! Hints by a Service's `trafficDistribution`: each ready endpoint is meant for its own zone and, where that
//! is asked for, its own node.

use kubernetes_proto::{
    core::Service,
    discovery::{Endpoint, EndpointHints, ForNode, ForZone},
};

use crate::slices::{self, Slices};

const CLOSE: &str = "PreferClose";
const SAME_ZONE: &str = "PreferSameZone";
const SAME_NODE: &str = "PreferSameNode";

/// What a Service asks for, if it is known here.
pub fn wanted(service: &Service, prefers_same: bool) -> Option<&str> {
    let wanted = service.spec.as_ref()?.traffic_distribution.as_deref()?;
    let known = match wanted {
        CLOSE => true,
        SAME_ZONE | SAME_NODE => prefers_same,
        _ => false,
    };
    known.then_some(wanted)
}

/// Sets the hints of a traffic distribution.
pub fn hint(slices: &mut Slices, wanted: &str) {
    let nodes = wanted == SAME_NODE;
    slices.touch(|slice| {
        slice.endpoints.iter().any(|one| {
            slices::is_ready(one) && one.hints.clone().unwrap_or_default() != of(one, nodes)
        })
    });
    for endpoint in slices.written().filter(|one| slices::is_ready(one)) {
        let hints = of(endpoint, nodes);
        endpoint.hints = (hints != EndpointHints::default()).then_some(hints);
    }
}

fn of(endpoint: &Endpoint, nodes: bool) -> EndpointHints {
    let for_zones = endpoint
        .zone
        .iter()
        .map(|zone| ForZone { name: zone.clone() });
    let node = endpoint.node_name.iter().filter(|_| nodes);
    EndpointHints {
        for_zones: for_zones.collect(),
        for_nodes: node.map(|node| ForNode { name: node.clone() }).collect(),
    }
}
