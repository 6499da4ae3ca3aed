//! Services and the pods that they select: which Service a pod wakes, at which addresses and ports a pod is
//! reached, and since when.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

use controllers_kit::{
    Change, Key, Reader, Snapshot, Timestamp, conditions,
    pods::{self, instant},
};
use kubernetes_proto::{
    Object, Str, cast,
    core::{ObjectReference, Pod, Service, ServicePort},
    meta::{self, Entry},
};

/// The label of objects of a headless Service.
pub const HEADLESS: &str = "service.kubernetes.io/headless";
/// The annotation with the time of the pod or Service change that led to a write.
pub const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";
/// The annotation of Endpoints that serve as a lock, without a Service.
pub const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
/// What kubectl notes; no business of a copy.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The index of Services by one entry of their selector: by it a pod finds the Services that select it.
pub const SELECTING: &str = "selecting";

/// The value of [`SELECTING`] for a Service: the entry that sorts first.
pub fn selecting(service: &Service) -> Vec<Str> {
    selector(service)
        .first()
        .map(|entry| selecting_value(&service.metadata().namespace, entry))
        .into_iter()
        .collect()
}

fn selecting_value(namespace: &str, entry: &Entry) -> Str {
    Str::from(format!("{namespace}/{}={}", entry.key, entry.value))
}

/// A Service's selector; empty for one whose endpoints are maintained by others.
pub fn selector(service: &Service) -> &[Entry] {
    service
        .spec
        .as_ref()
        .map_or(&[], |spec| spec.selector.as_slice())
}

/// Whether its endpoints are maintained here: it has a selector and is not an ExternalName.
pub fn has_endpoints(service: &Service) -> bool {
    let is_alias = service
        .spec
        .as_ref()
        .is_some_and(|spec| spec.r#type == "ExternalName");
    !is_alias && !selector(service).is_empty()
}

fn selects(service: &Service, labels: &[Entry]) -> bool {
    let wanted = selector(service);
    !wanted.is_empty()
        && wanted
            .iter()
            .all(|entry| meta::get(labels, &entry.key) == Some(&entry.value))
}

/// Whether it has an address of its own.
pub fn has_cluster_ip(service: &Service) -> bool {
    !matches!(cluster_ip(service), "" | "None")
}

/// Its address; `None` for a headless one, empty for one without.
pub fn cluster_ip(service: &Service) -> &str {
    service
        .spec
        .as_ref()
        .map_or("", |spec| spec.cluster_ip.as_str())
}

/// Whether pods that are not ready are published as if they were.
pub fn publishes_not_ready(service: &Service) -> bool {
    service
        .spec
        .as_ref()
        .is_some_and(|spec| spec.publish_not_ready_addresses)
}

/// Its ports.
pub fn ports(service: &Service) -> &[ServicePort] {
    service
        .spec
        .as_ref()
        .map_or(&[], |spec| spec.ports.as_slice())
}

/// The pods that it selects, in order of names.
pub fn selected(service: &Service, seen: &Snapshot<'_>) -> Vec<Arc<Pod>> {
    let mut pods = seen.list::<Pod>(&service.metadata().namespace);
    pods.retain(|pod| selects(service, &Object::metadata(&**pod).labels));
    pods
}

/// The Services that select a pod.
pub fn of_pod(pod: &Pod, reader: &dyn Reader) -> BTreeSet<Key> {
    let meta = Object::metadata(pod);
    meta.labels
        .iter()
        .flat_map(|entry| {
            let value = selecting_value(&meta.namespace, entry);
            reader.indexed(Service::resource(), SELECTING, &value)
        })
        .filter_map(cast::<Service>)
        .filter(|service| selects(service, &meta.labels))
        .map(|service| Key::of(&*service))
        .collect()
}

/// The Services that a change of a pod wakes: all that select it now or did before, when something changed
/// that they publish; where only its labels changed, those whose selection of it changed.
pub fn woken_by_pod(change: &Change<'_, Pod>, reader: &dyn Reader) -> Vec<Key> {
    let (Some(old), Some(new)) = (change.old, change.new) else {
        return of_pod(change.newest(), reader).into_iter().collect();
    };
    let relabelled = Object::metadata(old).labels != Object::metadata(new).labels;
    let keys = match (published(old) != published(new), relabelled) {
        (false, false) => return Vec::new(),
        (true, false) => of_pod(new, reader),
        (true, true) => &of_pod(old, reader) | &of_pod(new, reader),
        (false, true) => &of_pod(old, reader) ^ &of_pod(new, reader),
    };
    keys.into_iter().collect()
}

/// All of a pod that reaches an endpoint.
fn published(pod: &Pod) -> impl PartialEq {
    let (hostname, subdomain) = pod.spec.as_ref().map_or(("", ""), |spec| {
        (spec.hostname.as_str(), spec.subdomain.as_str())
    });
    (
        (Object::metadata(pod).uid.as_str(), pod.is_terminating()),
        (pods::is_ready(pod), pods::has_finished(pod)),
        (pods::node_name(pod), hostname, subdomain),
        pod.status.as_ref().map(|status| status.pod_ips.as_slice()),
    )
}

/// Whether a pod is reachable: it has an address and has not ended.
pub fn is_reachable(pod: &Pod) -> bool {
    !pods::has_finished(pod)
        && pod
            .status
            .as_ref()
            .is_some_and(|status| !status.pod_ips.is_empty())
}

/// Its addresses, in its order.
pub fn addresses(pod: &Pod) -> impl Iterator<Item = IpAddr> {
    pod.status
        .iter()
        .flat_map(|status| &status.pod_ips)
        .filter_map(|address| parse_ip(&address.ip))
}

/// Parses an address as leniently as the API reads those of old clients: numbers may have leading zeros.
/// IPv4-mapped IPv6 addresses are IPv4.
pub fn parse_ip(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address.to_canonical());
    }
    let mut octets = [0_u8; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        *octet = is_number.then(|| part.parse().ok()).flatten()?;
    }
    parts
        .next()
        .is_none()
        .then_some(IpAddr::V4(Ipv4Addr::from(octets)))
}

/// The pod's name in the Service's domain: the pod must name the Service as its subdomain.
pub fn hostname<'a>(pod: &'a Pod, service: &Service) -> Option<&'a str> {
    let spec = pod.spec.as_ref()?;
    let asks = !spec.hostname.is_empty() && service.metadata().name == *spec.subdomain;
    asks.then_some(&spec.hostname)
}

/// The pod's port for a Service's port: the number, or the port of that name and protocol among its
/// containers and sidecars.
pub fn find_port(pod: &Pod, port: &ServicePort) -> Option<i32> {
    let Some(target) = &port.target_port else {
        return Some(0);
    };
    if target.r#type != 1 {
        return Some(target.int_val);
    }
    let spec = pod.spec.as_ref()?;
    let regular = spec
        .containers
        .iter()
        .flat_map(|container| &container.ports);
    let sidecars = spec
        .init_containers
        .iter()
        .filter(|container| container.restart_policy == "Always")
        .flat_map(|container| &container.ports);
    regular
        .chain(sidecars)
        .find(|candidate| candidate.name == target.str_val && candidate.protocol == port.protocol)
        .map(|found| found.container_port)
}

/// What an endpoint says of the pod behind it.
pub fn reference(pod: &Pod) -> ObjectReference {
    let meta = Object::metadata(pod);
    ObjectReference {
        kind: "Pod".to_owned(),
        namespace: meta.namespace.to_string(),
        name: meta.name.to_string(),
        uid: meta.uid.to_string(),
        ..ObjectReference::default()
    }
}

/// When a pod's readiness last changed: the trigger time of its endpoint's change.
pub fn readiness_changed(pod: &Pod) -> Option<Timestamp> {
    let condition = conditions::find(&pod.status.as_ref()?.conditions, "Ready")?;
    instant(condition.last_transition_time)
}

/// When a Service was made.
pub fn created(service: &Service) -> Option<Timestamp> {
    instant(service.metadata().creation_timestamp)
}

/// Sets the annotation, or removes it where the time is unknown.
pub fn set_trigger_time(annotations: &mut Vec<Entry>, trigger: Option<Timestamp>) {
    match trigger {
        Some(at) => meta::set(annotations, TRIGGER_TIME, &at.to_string()),
        None => annotations.retain(|entry| entry.key != *TRIGGER_TIME),
    }
}
