//! A pod as an endpoint, and a Service's ports as that pod serves them.

use kubernetes_proto::{
    Object,
    core::{Node, Pod, Service},
    discovery::{Endpoint, EndpointConditions, EndpointPort},
};

use controllers_kit::pods;

use crate::{services, slices};

/// The address types, in the order in which a Service's slices are planned.
pub const IPV4: &str = "IPv4";
/// As [`IPV4`].
pub const IPV6: &str = "IPv6";

/// The label of a node's zone.
const ZONE: &str = "topology.kubernetes.io/zone";

/// A node's zone.
pub fn zone(node: &Node) -> Option<&str> {
    node.metadata().label(ZONE).filter(|zone| !zone.is_empty())
}

/// The address types of a Service: its families. A Service from before those were set has the family of its
/// address; a headless one may have both.
pub fn address_types(service: &Service) -> Vec<&'static str> {
    let families = service
        .spec
        .as_ref()
        .map_or(&[][..], |spec| spec.ip_families.as_slice());
    let named: Vec<&'static str> = [IPV4, IPV6]
        .into_iter()
        .filter(|one| families.iter().any(|family| family == one))
        .collect();
    if !named.is_empty() {
        return named;
    }
    if !services::has_cluster_ip(service) {
        return vec![IPV4, IPV6];
    }
    let is_v6 = services::parse_ip(services::cluster_ip(service)).is_some_and(|ip| ip.is_ipv6());
    vec![if is_v6 { IPV6 } else { IPV4 }]
}

/// A pod's endpoint; `None` where it has no address of that type.
pub fn of_pod(
    pod: &Pod,
    node: Option<&Node>,
    service: &Service,
    address_type: &str,
) -> Option<Endpoint> {
    let mut addresses: Vec<String> = services::addresses(pod)
        .filter(|ip| ip.is_ipv6() == (address_type == IPV6))
        .map(|ip| ip.to_string())
        .collect();
    if addresses.is_empty() {
        return None;
    }
    addresses.sort_unstable();
    let serving = pods::is_ready(pod);
    let terminating = pod.is_terminating();
    // A terminating pod is not ready, unless the Service publishes unready addresses.
    let ready = services::publishes_not_ready(service) || (serving && !terminating);
    let node_name = pods::node_name(pod);
    Some(Endpoint {
        addresses,
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hostname: services::hostname(pod, service).map(str::to_owned),
        target_ref: Some(services::reference(pod)),
        deprecated_topology: Vec::new(),
        node_name: (!node_name.is_empty()).then(|| node_name.to_owned()),
        zone: node.and_then(zone).map(str::to_owned),
        hints: None,
    })
}

/// The ports at which a pod serves a Service, in the order in which they are compared; named ports that it
/// lacks are left out.
pub fn ports(pod: &Pod, service: &Service) -> Vec<EndpointPort> {
    let ports = services::ports(service).iter().filter_map(|port| {
        Some(EndpointPort {
            name: Some(port.name.clone()),
            protocol: Some(port.protocol.clone()),
            port: Some(services::find_port(pod, port)?),
            app_protocol: port.app_protocol.clone(),
        })
    });
    slices::sorted(ports.collect())
}
