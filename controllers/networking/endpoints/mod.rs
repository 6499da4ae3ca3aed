//! Keeps an Endpoints object for every Service with a selector, with the addresses of the pods that it
//! selects.
//!
//! Watches services, pods and endpoints; creates, patches and deletes endpoints; a key per Service.
//! Remembers only what waits for the end of a batching period. An Endpoints object holds 1000 addresses at
//! most; one that is truncated says so by an annotation.
//!
//! A deleted Service takes its Endpoints along, even those created by hand. Endpoints that never had a
//! Service are left alone: a key is woken by a Service, by Endpoints that this controller has created, or
//! by the deletion of Endpoints, never by Endpoints created by hand. Endpoints that a Service left behind
//! while nobody owned its key are found by this controller's label.

use std::{collections::HashMap, net::IpAddr, time::Duration};

use controllers_kit::{
    Change, Controller, Descriptor, Event, FlagDefault, Flags, Key, Only, Plan, Propagation,
    Reader, Refusal, Sharding, Snapshot, StatusWrite, Timestamp, Watches, pods,
    selectors::Selector,
};
use kubernetes_proto::{
    Object, Str,
    core::{EndpointAddress, EndpointPort, EndpointSubset, Endpoints, Pod, Service, ServicePort},
    meta::{self, Entry},
};

use crate::{
    batching::Batch,
    services::{self, HEADLESS, LEADER},
    subsets,
};

/// The most addresses of one Endpoints object: upstream's bound, which keeps the object below etcd's size
/// limit.
const ADDRESSES_MAX: usize = 1000;
/// The annotation of Endpoints that were truncated to it, and its value.
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
const TRUNCATED: &str = "truncated";
/// The label of Endpoints of this controller, and its value.
const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const MANAGER: &str = "endpoint-controller";

/// The controller.
pub struct EndpointsOfServices {
    period: Duration,
}

impl Controller for EndpointsOfServices {
    type Memory = Batch;

    fn describe() -> Descriptor {
        Descriptor::new("endpoints-controller", Sharding::ByObject)
            .aliases(&["endpoint"])
            .service_account("endpoint-controller")
            .event_source("endpoint-controller")
            .queue("endpoint")
            .min_sync_interval(Duration::from_millis(500))
            .workers(
                "concurrent-endpoint-syncs",
                5,
                "The number of Services whose Endpoints each replica handles concurrently.",
            )
            .flag(
                "endpoint-updates-batch-period",
                FlagDefault::Duration(Duration::ZERO),
                "How long changes of pods are batched before Endpoints are written: fewer but later writes.",
            )
            .reads_live::<Service>()
            .reads_live::<Pod>()
            .rule("", "endpoints", &["get", "list", "watch", "create", "patch", "delete"])
            // Only a client with this permission can write addresses of the pod network.
            .rule("", "endpoints/restricted", &["create"])
            .differences(include_str!("differences.md"))
    }

    fn new(flags: &Flags) -> Self {
        Self {
            period: flags.duration("endpoint-updates-batch-period"),
        }
    }

    fn watch(&self, on: &mut Watches) {
        on.kind::<Service>()
            .wakes_itself()
            .indexed_by(services::SELECTING, services::selecting);
        on.kind::<Pod>().wakes(services::woken_by_pod);
        on.kind::<Endpoints>().wakes(woken_by_endpoints);
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, memory: &mut Batch) -> Result<Plan, Refusal> {
        let mut plan = Plan::nothing();
        let held = seen.get::<Endpoints>(key);
        let Some(service) = seen.get::<Service>(key) else {
            *memory = Batch::default();
            if let Some(left) = held.filter(|held| !held.is_terminating()) {
                plan.delete(&*left, Only::ThisUid, Propagation::Background);
                plan.counted::<Service>(&key.namespace, &Selector::of_labels(&[]));
            }
            return Ok(plan);
        };
        if !services::has_endpoints(&service) {
            *memory = Batch::default();
            return Ok(plan);
        }
        let pods = services::selected(&service, seen);
        // A Service that publishes unready addresses gets terminating pods too.
        let all = services::publishes_not_ready(&service);
        let pods = pods
            .iter()
            .filter(|pod| services::is_reachable(pod) && (all || !pod.is_terminating()));
        let backends: Vec<Backend<'_>> =
            pods.filter_map(|pod| Backend::of(pod, &service)).collect();
        let wanted = subsets::repack(&expanded(&backends, &service));

        let version = service.metadata().resource_version;
        if let Some(held) = &held
            && is_current(held, &wanted, &service)
        {
            memory.rest(self.period, version);
            return Ok(plan);
        }
        if let Some(due) = memory.wait(self.period, version, seen.now) {
            return Ok(plan.requeued_at(due));
        }
        let new = written(held.as_deref(), wanted, &backends, &service);
        let name = Key::of(&*service);
        match &held {
            None => {
                let message = format!("Failed to create endpoint for service {name}: ");
                let event = Event::warning(&new, "FailedToCreateEndpoint", message);
                plan.create(&new).announce_failure(event);
            }
            Some(old) => {
                let message = format!("Failed to update endpoint {name}: ");
                let event = Event::warning(&new, "FailedToUpdateEndpoint", message);
                if let Some(action) = plan.update(&**old, &new) {
                    action
                        .reports(StatusWrite::Observed)
                        .announce_failure(event);
                }
            }
        }
        Ok(plan)
    }
}

/// Deleted Endpoints are recreated; Endpoints of this controller may have lost their Service. A lock never
/// was a Service's.
fn woken_by_endpoints(change: &Change<'_, Endpoints>, _: &dyn Reader) -> Vec<Key> {
    let wakes = match change.new {
        None => true,
        Some(new) => {
            let ours =
                |endpoints: &Endpoints| endpoints.metadata().label(MANAGED_BY) == Some(MANAGER);
            (ours(new) || change.old.is_some_and(ours))
                && new.metadata().annotation(LEADER).is_none()
        }
    };
    wakes
        .then(|| Key::of(change.newest()))
        .into_iter()
        .collect()
}

/// A pod as an address of a Service.
struct Backend<'a> {
    pod: &'a Pod,
    address: EndpointAddress,
    ready: bool,
}

impl<'a> Backend<'a> {
    /// `None` where the pod has no address of the Service's first family: some nodes of a cluster may have
    /// one family only.
    fn of(pod: &'a Pod, service: &Service) -> Option<Self> {
        let wants_v6 = first_family_is_v6(service, pod);
        let ip = services::addresses(pod).find(|ip| ip.is_ipv6() == wants_v6)?;
        Some(Self {
            pod,
            address: EndpointAddress {
                ip: ip.to_string(),
                target_ref: Some(services::reference(pod)),
                hostname: services::hostname(pod, service)
                    .unwrap_or_default()
                    .to_owned(),
                node_name: Some(pods::node_name(pod).to_owned()),
            },
            ready: services::publishes_not_ready(service) || pods::is_ready(pod),
        })
    }

    fn subset(&self, port: Option<EndpointPort>) -> EndpointSubset {
        let mut subset = EndpointSubset {
            ports: port.into_iter().collect(),
            ..EndpointSubset::default()
        };
        if self.ready {
            subset.addresses.push(self.address.clone());
        } else {
            subset.not_ready_addresses.push(self.address.clone());
        }
        subset
    }
}

/// The Service's first family; where it has none, that of its own address or, without one, of the pod's.
fn first_family_is_v6(service: &Service, pod: &Pod) -> bool {
    let families = service.spec.as_ref().map(|spec| &spec.ip_families);
    if let Some(family) = families.and_then(|families| families.first()) {
        return family == "IPv6";
    }
    if services::has_cluster_ip(service) {
        return services::parse_ip(services::cluster_ip(service)).is_some_and(|ip| ip.is_ipv6());
    }
    services::addresses(pod)
        .next()
        .is_some_and(|ip: IpAddr| ip.is_ipv6())
}

/// Each pair of address and port. Only a headless Service may be without ports.
fn expanded(backends: &[Backend<'_>], service: &Service) -> Vec<EndpointSubset> {
    let ports = services::ports(service);
    if ports.is_empty() {
        let headless = services::cluster_ip(service) == "None";
        let backends = backends.iter().filter(|_| headless);
        return backends.map(|backend| backend.subset(None)).collect();
    }
    backends
        .iter()
        .flat_map(|backend| {
            ports.iter().filter_map(|port| {
                let number = services::find_port(backend.pod, port)?;
                Some(backend.subset(Some(endpoint_port(port, number))))
            })
        })
        .collect()
}

fn endpoint_port(port: &ServicePort, number: i32) -> EndpointPort {
    EndpointPort {
        name: port.name.clone(),
        port: number,
        protocol: port.protocol.clone(),
        app_protocol: port.app_protocol.clone(),
    }
}

/// Whether nothing is to be written. Upstream writes addresses in another order.
fn is_current(held: &Endpoints, wanted: &[EndpointSubset], service: &Service) -> bool {
    let over = subsets::count(wanted) > ADDRESSES_MAX;
    let marked = held.metadata().annotation(OVER_CAPACITY);
    let mut cut;
    let wanted = if over {
        cut = wanted.to_vec();
        subsets::truncate(&mut cut, ADDRESSES_MAX);
        &cut
    } else {
        wanted
    };
    (marked == over.then_some(TRUNCATED))
        && are_labelled(&held.metadata().labels, &service.metadata().labels)
        && (subsets::equal(&held.subsets, wanted)
            || subsets::equal(&subsets::repack(&held.subsets), wanted))
}

/// Whether labels are the Service's, except for the controller's own.
fn are_labelled(held: &[Entry], service: &[Entry]) -> bool {
    let ours = |entry: &&Entry| entry.key == *HEADLESS || entry.key == *MANAGED_BY;
    let others = held.iter().filter(|entry| !ours(entry));
    meta::get(held, MANAGED_BY) == Some(MANAGER)
        && others.clone().count() == service.len()
        && others
            .into_iter()
            .all(|entry| meta::get(service, &entry.key) == Some(&entry.value))
}

/// The Endpoints as they should be.
fn written(
    held: Option<&Endpoints>,
    wanted: Vec<EndpointSubset>,
    backends: &[Backend<'_>],
    service: &Service,
) -> Endpoints {
    let mut new = held.cloned().unwrap_or_default();
    new.subsets = wanted;
    let cut = subsets::truncate(&mut new.subsets, ADDRESSES_MAX);
    let meta = new.metadata_mut();
    meta.name = service.metadata().name.clone();
    meta.namespace = service.metadata().namespace.clone();
    meta.labels.clone_from(&service.metadata().labels);
    meta.labels.retain(|entry| entry.key != *HEADLESS);
    if !services::has_cluster_ip(service) {
        meta.set_label(HEADLESS, "");
    }
    meta.set_label(MANAGED_BY, MANAGER);
    services::set_trigger_time(&mut meta.annotations, trigger(held, backends, service));
    if cut {
        meta.set_annotation(OVER_CAPACITY, TRUNCATED);
    } else {
        meta.annotations
            .retain(|entry| entry.key != *Str::interned(OVER_CAPACITY));
    }
    new
}

/// The earliest change of readiness among the addresses that are added or changed; for new Endpoints, the
/// Service's creation.
fn trigger(
    held: Option<&Endpoints>,
    backends: &[Backend<'_>],
    service: &Service,
) -> Option<Timestamp> {
    let Some(held) = held else {
        return services::created(service);
    };
    let before: HashMap<&str, bool> = held
        .subsets
        .iter()
        .flat_map(subsets::both)
        .filter_map(|(address, ready)| Some((address.target_ref.as_ref()?.uid.as_str(), ready)))
        .collect();
    backends
        .iter()
        .filter(|backend| before.get(&*Object::metadata(backend.pod).uid) != Some(&backend.ready))
        .filter_map(|backend| services::readiness_changed(backend.pod))
        .min()
}

#[cfg(test)]
mod tests;
