//! The plan: one slice for each subset's addresses of one type.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::Arc,
};

use controllers_kit::{Event, Key, Only, Plan, Propagation, Snapshot};
use kubernetes_proto::{
    Object,
    core::{EndpointAddress, Endpoints},
    discovery::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice},
    meta::{self, Entry},
};

use super::{MANAGER, Memory, MirroredSlices};
use crate::{
    services::{self, LAST_APPLIED, TRIGGER_TIME},
    slices::{self, Changed, SliceMetrics, Slices},
    subsets,
};

pub const ADDED: &str = "endpoint_slice_mirroring_controller_endpoints_added_per_sync";
pub const UPDATED: &str = "endpoint_slice_mirroring_controller_endpoints_updated_per_sync";
pub const REMOVED: &str = "endpoint_slice_mirroring_controller_endpoints_removed_per_sync";
pub const SKIPPED: &str = "endpoint_slice_mirroring_controller_addresses_skipped_per_sync";
pub const DESIRED: &str = "endpoint_slice_mirroring_controller_endpoints_desired";
pub const SLICES: &str = "endpoint_slice_mirroring_controller_num_endpoint_slices";
pub const DESIRED_SLICES: &str = "endpoint_slice_mirroring_controller_desired_endpoint_slices";
pub const CHANGES: &str = "endpoint_slice_mirroring_controller_changes";

const IPV4: &str = "IPv4";
const IPV6: &str = "IPv6";

/// Address type and ports, by which slices are found again.
type Place = (
    String,
    Vec<(Option<String>, Option<String>, Option<i32>, Option<String>)>,
);

fn place(address_type: &str, ports: &[EndpointPort]) -> Place {
    let ports = slices::sorted(ports.to_vec()).into_iter();
    let ports = ports.map(|port| (port.name, port.protocol, port.port, port.app_protocol));
    (address_type.to_owned(), ports.collect())
}

/// What the Endpoints ask for.
#[derive(Default)]
struct Wanted {
    /// The ports as they are written, and the endpoints.
    groups: BTreeMap<Place, (Vec<EndpointPort>, Vec<Endpoint>)>,
    invalid: usize,
    skipped: usize,
}

fn wanted(endpoints: &Endpoints, most: usize) -> Wanted {
    let mut wanted = Wanted::default();
    for subset in subsets::repack(&endpoints.subsets) {
        let ports: Vec<EndpointPort> = subset
            .ports
            .iter()
            .map(|port| EndpointPort {
                name: Some(port.name.clone()),
                protocol: Some(port.protocol.clone()),
                port: Some(port.port),
                app_protocol: port.app_protocol.clone(),
            })
            .collect();
        for address_type in [IPV4, IPV6] {
            wanted
                .groups
                .entry(place(address_type, &ports))
                .or_insert_with(|| (ports.clone(), Vec::new()));
        }
        let mut mirrored = 0;
        for (address, ready) in subsets::both(&subset) {
            if mirrored >= most {
                break;
            }
            let Some(ip) = services::parse_ip(&address.ip) else {
                wanted.invalid += 1;
                continue;
            };
            mirrored += 1;
            let address_type = if ip.is_ipv6() { IPV6 } else { IPV4 };
            if let Some((_, endpoints)) = wanted.groups.get_mut(&place(address_type, &ports)) {
                endpoints.push(of_address(address, ip, ready));
            }
        }
        wanted.skipped += subsets::count(std::slice::from_ref(&subset)) - mirrored;
    }
    for (_, endpoints) in wanted.groups.values_mut() {
        keep_last(endpoints);
    }
    wanted
}

/// One endpoint of each identity: an address may belong to two pods of one name, one after the other.
fn keep_last(endpoints: &mut Vec<Endpoint>) {
    let last: HashMap<slices::Identity<'_>, usize> = endpoints
        .iter()
        .enumerate()
        .map(|(place, endpoint)| (slices::identity(endpoint), place))
        .collect();
    if last.len() == endpoints.len() {
        return;
    }
    let mut places: Vec<usize> = last.into_values().collect();
    places.sort_unstable();
    *endpoints = places
        .into_iter()
        .map(|place| endpoints[place].clone())
        .collect();
}

fn of_address(address: &EndpointAddress, ip: IpAddr, ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![ip.to_string()],
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            ..EndpointConditions::default()
        }),
        hostname: (!address.hostname.is_empty()).then(|| address.hostname.clone()),
        target_ref: address.target_ref.clone(),
        node_name: address.node_name.clone(),
        ..Endpoint::default()
    }
}

/// How many endpoints come, change and go.
#[derive(Default)]
struct Totals {
    added: usize,
    updated: usize,
    removed: usize,
}

/// Nothing is to be mirrored: existing slices are deleted.
pub fn clear(key: &Key, held: Vec<Arc<EndpointSlice>>) -> Plan {
    let mut plan = Plan::nothing();
    let slices = Slices {
        delete: held
            .into_iter()
            .filter(|slice| !slice.is_terminating())
            .collect(),
        ..Slices::default()
    };
    for slice in &slices.delete {
        plan.delete(&**slice, Only::ThisVersion, Propagation::Background);
    }
    slices::counted(&mut plan, key, MANAGER, &slices);
    plan
}

/// Plans Endpoints that are to be mirrored.
pub fn plan(
    controller: &MirroredSlices,
    endpoints: &Endpoints,
    held: &[Arc<EndpointSlice>],
    seen: &Snapshot<'_>,
    memory: &mut Memory,
) -> Plan {
    let key = Key::of(endpoints);
    let wanted = wanted(endpoints, controller.most);
    let mut by_place = BTreeMap::<Place, Vec<Arc<EndpointSlice>>>::new();
    for slice in held.iter().filter(|slice| !slice.is_terminating()) {
        by_place
            .entry(place(&slice.address_type, &slice.ports))
            .or_default()
            .push(Arc::clone(slice));
    }
    let mut all = Slices::default();
    let mut totals = Totals::default();
    let desired_slices: usize = wanted
        .groups
        .values()
        .map(|(_, endpoints)| endpoints.len().div_ceil(controller.most))
        .sum();
    for (of, (ports, endpoints_wanted)) in wanted.groups {
        let existing = by_place.remove(&of).unwrap_or_default();
        let mut like = slices::empty(endpoints, &of.0, ports, labels(endpoints));
        like.metadata_mut().annotations = annotations(endpoints);
        mirror(
            &mut all,
            &mut totals,
            existing,
            endpoints_wanted,
            like,
            endpoints,
        );
    }
    all.delete.extend(by_place.into_values().flatten());
    all.recycle(|_| true);
    if endpoints.is_terminating() {
        all.create.clear();
    }

    let mut plan = Plan::nothing();
    let version = endpoints.metadata().resource_version;
    if !all.are_changed() {
        memory.batch.rest(controller.period, version);
    } else if let Some(due) = memory.batch.wait(controller.period, version, seen.now) {
        return plan.requeued_at(due);
    }
    report_skipped(
        &mut plan,
        endpoints,
        (wanted.invalid, wanted.skipped),
        controller,
        memory,
    );
    slices::counted(&mut plan, &key, MANAGER, &all);
    let metrics = SliceMetrics {
        changes: CHANGES,
        syncs: None,
        failure: &|_, _| None,
    };
    slices::write(&mut plan, endpoints, held, &all, seen.reader(), &metrics);
    plan.measure(ADDED, &[], totals.added as f64);
    plan.measure(UPDATED, &[], totals.updated as f64);
    plan.measure(REMOVED, &[], totals.removed as f64);
    plan.measure(SKIPPED, &[], wanted.skipped as f64);
    plan.measure(DESIRED, &[], all.endpoints().count() as f64);
    let there = all.create.len() + all.update.len() + all.unchanged.len();
    plan.measure(SLICES, &[], there as f64);
    plan.measure(DESIRED_SLICES, &[], desired_slices as f64);
    plan
}

fn report_skipped(
    plan: &mut Plan,
    endpoints: &Endpoints,
    (invalid, skipped): (usize, usize),
    controller: &MirroredSlices,
    memory: &mut Memory,
) {
    let counts = format!("{invalid}/{skipped}");
    let mut warn = |reason, message| {
        let event = Event::warning(endpoints, reason, message);
        plan.event_once_for(&mut memory.said, event, &counts);
    };
    if invalid > 0 {
        warn(
            "InvalidIPAddress",
            format!("Skipped {invalid} invalid IP addresses when mirroring to EndpointSlices"),
        );
    }
    if skipped > invalid {
        warn(
            "TooManyAddressesToMirror",
            format!(
                "A max of {} addresses can be mirrored to EndpointSlices per Endpoints subset. {skipped} addresses were skipped",
                controller.most
            ),
        );
    }
    memory.said.settle();
}

/// One group: its first slice holds all endpoints, the others are deleted.
fn mirror(
    all: &mut Slices,
    totals: &mut Totals,
    existing: Vec<Arc<EndpointSlice>>,
    wanted: Vec<Endpoint>,
    like: EndpointSlice,
    endpoints: &Endpoints,
) {
    if wanted.is_empty() {
        let lost = existing.iter().map(|slice| slice.endpoints.len());
        totals.removed += lost.sum::<usize>();
        all.delete.extend(existing);
        return;
    }
    let mut existing = existing.into_iter();
    let Some(old) = existing.next() else {
        totals.added += wanted.len();
        all.create.push(EndpointSlice {
            endpoints: wanted,
            ..like
        });
        return;
    };
    all.delete.extend(existing);
    let before = (totals.added, totals.updated, totals.removed);
    compare(totals, &old, &wanted);
    let same = before == (totals.added, totals.updated, totals.removed)
        && old.metadata().labels == like.metadata().labels
        && old.metadata().annotations == like.metadata().annotations
        && !is_of_earlier(&old, endpoints);
    if same {
        all.unchanged.push(old);
        return;
    }
    let mut new = EndpointSlice::clone(&old);
    new.endpoints = wanted;
    let meta = new.metadata_mut();
    meta.labels.clone_from(&like.metadata().labels);
    meta.annotations.clone_from(&like.metadata().annotations);
    meta.owner_references
        .clone_from(&like.metadata().owner_references);
    all.update.push(Changed { old, new });
}

fn compare(totals: &mut Totals, slice: &EndpointSlice, wanted: &[Endpoint]) {
    let by_identity: HashMap<_, _> = wanted
        .iter()
        .map(|endpoint| (slices::identity(endpoint), endpoint))
        .collect();
    let mut matched = 0;
    for endpoint in &slice.endpoints {
        match by_identity.get(&slices::identity(endpoint)) {
            None => totals.removed += 1,
            Some(wanted) => {
                matched += 1;
                totals.updated += usize::from(!slices::same(wanted, endpoint));
            }
        }
    }
    totals.added += by_identity.len().saturating_sub(matched);
}

/// Whether a slice belongs to deleted Endpoints of the same name: the garbage collector would delete it.
fn is_of_earlier(slice: &EndpointSlice, endpoints: &Endpoints) -> bool {
    let meta = endpoints.metadata();
    slice
        .metadata()
        .owner_references
        .iter()
        .any(|owner| owner.kind == *"Endpoints" && owner.name == meta.name && owner.uid != meta.uid)
}

fn labels(endpoints: &Endpoints) -> Vec<Entry> {
    let mut labels = endpoints.metadata().labels.clone();
    meta::set(
        &mut labels,
        slices::SERVICE_NAME,
        &endpoints.metadata().name,
    );
    meta::set(&mut labels, slices::MANAGED_BY, MANAGER);
    labels
}

fn annotations(endpoints: &Endpoints) -> Vec<Entry> {
    let mut annotations = endpoints.metadata().annotations.clone();
    annotations.retain(|entry| entry.key != *TRIGGER_TIME && entry.key != *LAST_APPLIED);
    annotations
}
