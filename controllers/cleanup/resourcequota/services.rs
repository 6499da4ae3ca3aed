//! What Services are charged for.

use kubernetes_proto::{core::Service, quantity::Exact};

/// Whether a limit is about Services.
pub(super) fn is_limit(limit: &str) -> bool {
    matches!(
        limit,
        "services" | "count/services" | "services.nodeports" | "services.loadbalancers"
    )
}

/// What a Service is charged.
pub(super) fn usage(service: &Service, limit: &str) -> Exact {
    Exact::of_count(match limit {
        "services.nodeports" => node_ports(service),
        "services.loadbalancers" => i64::from(is_balanced(service)),
        _ => 1,
    })
}

/// Whether a change of a Service lowers what it is charged.
pub(super) fn frees(old: &Service, new: &Service) -> bool {
    node_ports(old) != node_ports(new) || is_balanced(old) != is_balanced(new)
}

fn is_balanced(service: &Service) -> bool {
    service
        .spec
        .as_ref()
        .is_some_and(|spec| spec.r#type == "LoadBalancer")
}

/// The number of node ports of a Service. Ports that it will get count already: the request decides.
fn node_ports(service: &Service) -> i64 {
    let Some(spec) = &service.spec else {
        return 0;
    };
    let given = spec.ports.iter().filter(|port| port.node_port != 0).count();
    let ports = match &*spec.r#type {
        "NodePort" => spec.ports.len(),
        "LoadBalancer" if spec.allocate_load_balancer_node_ports == Some(false) => given,
        "LoadBalancer" => spec.ports.len(),
        _ => 0,
    };
    i64::try_from(ports).unwrap_or(i64::MAX)
}
