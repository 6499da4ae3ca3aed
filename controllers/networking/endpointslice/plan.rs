//! The plan: for each address type and each set of ports, which endpoints there should be, packed into
//! slices, with hints.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use controllers_kit::{Event, EventType, Key, Plan, Snapshot, Timestamp, pods};
use kubernetes_proto::{
    Object,
    core::{Node, Pod, Service},
    discovery::{Endpoint, EndpointPort, EndpointSlice},
    meta::{self, Entry},
};

use super::{MANAGER, Memory, SlicesOfServices, endpoint, hints, packing, traffic};
use crate::{
    services::{self, HEADLESS},
    slices::{self, SliceMetrics, Slices},
};

pub const ADDED: &str = "endpoint_slice_controller_endpoints_added_per_sync";
pub const REMOVED: &str = "endpoint_slice_controller_endpoints_removed_per_sync";
pub const CHANGES: &str = "endpoint_slice_controller_changes";
pub const CHANGED: &str = "endpoint_slice_controller_endpointslices_changed_per_sync";
pub const DESIRED: &str = "endpoint_slice_controller_endpoints_desired";
pub const SLICES: &str = "endpoint_slice_controller_num_endpoint_slices";
pub const DESIRED_SLICES: &str = "endpoint_slice_controller_desired_endpoint_slices";
pub const TRAFFIC: &str = "endpoint_slice_controller_services_count_by_traffic_distribution";
pub const SYNCS: &str = "endpoint_slice_controller_syncs";

/// The reason of the event for a failed update of slices.
const FAILED: &str = "FailedToUpdateEndpointSlices";

/// Endpoints by the ports at which they serve, in the order in which ports are compared.
type Groups = BTreeMap<Ports, (Vec<EndpointPort>, Vec<Endpoint>)>;

/// A set of ports, to be compared.
type Ports = Vec<(String, String, i32, Option<String>)>;

fn ports_key(ports: &[EndpointPort]) -> Ports {
    ports
        .iter()
        .map(|port| {
            (
                port.name.clone().unwrap_or_default(),
                port.protocol.clone().unwrap_or_default(),
                port.port.unwrap_or_default(),
                port.app_protocol.clone(),
            )
        })
        .collect()
}

struct SliceSync<'a> {
    service: &'a Service,
    /// The reachable pods, each with its node. A pod whose node does not exist is left out, unless the
    /// Service publishes unready addresses.
    backends: Vec<(Arc<Pod>, Option<Arc<Node>>)>,
    labels: Vec<Entry>,
    most: usize,
}

/// Plans a Service that has a selector.
pub fn plan(
    controller: &SlicesOfServices,
    service: &Service,
    seen: &Snapshot<'_>,
    memory: &mut Memory,
) -> Plan {
    let key = Key::of(service);
    let held = slices::held(&key, MANAGER, seen);
    let pods = services::selected(service, seen).into_iter();
    let (backends, homeless) = pods
        .filter(|pod| services::is_reachable(pod))
        .map(|pod| {
            let node = seen.get::<Node>(&Key::cluster(pods::node_name(&pod)));
            (pod, node)
        })
        .partition::<Vec<_>, _>(|(_, node)| {
            node.is_some() || services::publishes_not_ready(service)
        });
    let sync = SliceSync {
        service,
        backends,
        labels: labels(service),
        most: controller.most_per_slice,
    };
    let traffic =
        traffic::wanted(service, controller.prefers_same).filter(|_| !hints::are_wanted(service));
    let types = endpoint::address_types(service);

    let mut plan = Plan::nothing();
    let mut remembered = memory.clone();
    let mut all = Slices::default();
    let (mut endpoints, mut desired_slices) = (0, 0);
    // Of each family: endpoints added and removed, slices changed.
    let mut syncs = Vec::new();
    let mut waiting = 0;
    for slice in held.iter().filter(|slice| !slice.is_terminating()) {
        // The Service has given up that family.
        if !types.contains(&slice.address_type.as_str()) {
            all.delete.push(Arc::clone(slice));
        }
    }
    for address_type in types {
        let existing: Vec<Arc<EndpointSlice>> = held
            .iter()
            .filter(|slice| !slice.is_terminating() && slice.address_type == address_type)
            .cloned()
            .collect();
        let mut packed = sync.pack(&existing, address_type);
        let had = existing.iter().flat_map(|slice| &slice.endpoints);
        let had_hints = had.into_iter().any(hints::has_zones);
        hint(
            &mut plan,
            &mut packed.slices,
            &mut remembered,
            (service, seen),
            (address_type, had_hints, traffic),
        );
        endpoints += packed.slices.endpoints().count();
        desired_slices += packed.desired_slices;
        waiting += packed.waiting;
        // Slices of another family can't be reused for these.
        packed.slices.recycle(|slice| is_owned(slice, service));
        if service.is_terminating() {
            // A terminating Service gets no new slices: the garbage collector deletes those it has.
            packed.slices.create.clear();
        }
        syncs.push((packed.added, packed.removed, packed.slices.changed()));
        all.append(packed.slices);
    }
    report_homeless(&mut plan, service, &homeless, &mut remembered);

    let version = service.metadata().resource_version;
    if !all.are_changed() {
        remembered.batch.rest(controller.period, version);
    } else if let Some(due) = remembered.batch.wait(controller.period, version, seen.now) {
        memory.batch = remembered.batch;
        return Plan::nothing().requeued_at(due);
    }
    *memory = remembered;

    let trigger = trigger(service, &sync.backends, &held, &all);
    annotate(&mut all, trigger);
    slices::counted(&mut plan, &key, MANAGER, &all);
    let failure = |what: &'static str, slice: &str| {
        let which = if what == "create" { "" } else { slice };
        let space = if which.is_empty() { "" } else { " " };
        Some(Event::warning(
            service,
            FAILED,
            format!(
                "Error updating Endpoint Slices for Service {key}: failed to {what}{space}{which} EndpointSlice for Service {key}: "
            ),
        ))
    };
    let metrics = SliceMetrics {
        changes: CHANGES,
        syncs: Some(SYNCS),
        failure: &failure,
    };
    slices::write(&mut plan, service, &held, &all, seen.reader(), &metrics);
    if waiting > 0 {
        plan.requeue_now();
    }

    let topology = if hints::are_wanted(service) {
        "Auto"
    } else {
        "Disabled"
    };
    for (added, removed, changed) in syncs {
        plan.measure(ADDED, &[], added as f64);
        plan.measure(REMOVED, &[], removed as f64);
        plan.measure(
            CHANGED,
            &[topology, traffic.unwrap_or_default()],
            changed as f64,
        );
    }
    plan.measure(SYNCS, &["success"], 1.0);
    plan.measure(DESIRED, &[], endpoints as f64);
    let there = all.create.len() + all.update.len() + all.unchanged.len();
    plan.measure(SLICES, &[], there as f64);
    plan.measure(DESIRED_SLICES, &[], desired_slices.max(1) as f64);
    if let Some(traffic) = traffic {
        plan.measure(TRAFFIC, &[traffic], 1.0);
    }
    plan
}

/// The labels of a Service's slices: its own, except for the reserved ones.
fn labels(service: &Service) -> Vec<Entry> {
    let mut labels = service.metadata().labels.clone();
    labels.retain(|entry| !packing::is_reserved(&entry.key));
    if !services::has_cluster_ip(service) {
        meta::set(&mut labels, HEADLESS, "");
    }
    meta::set(&mut labels, slices::SERVICE_NAME, &service.metadata().name);
    meta::set(&mut labels, slices::MANAGED_BY, MANAGER);
    labels
}

fn is_owned(slice: &EndpointSlice, service: &Service) -> bool {
    slice.metadata().owner_references.iter().any(|owner| {
        owner.uid == service.metadata().uid
            && owner.kind == *"Service"
            && owner.api_version == *"v1"
    })
}

impl SliceSync<'_> {
    /// The slices of one address type, without hints.
    fn pack(&self, existing: &[Arc<EndpointSlice>], address_type: &str) -> packing::Packed {
        let mut packed = packing::Packed::default();
        let mut by_ports = BTreeMap::<Ports, Vec<Arc<EndpointSlice>>>::new();
        for slice in existing {
            if is_owned(slice, self.service) {
                let ports = ports_key(&slices::sorted(slice.ports.clone()));
                by_ports.entry(ports).or_default().push(Arc::clone(slice));
            } else {
                packed.slices.delete.push(Arc::clone(slice));
            }
        }
        for (ports, (list, wanted)) in self.wanted(address_type) {
            let held = by_ports.remove(&ports).unwrap_or_default();
            let like = slices::empty(self.service, address_type, list, self.labels.clone());
            let group = packing::pack(&held, &wanted, &like, self.most);
            packed.added += group.added;
            packed.removed += group.removed;
            packed.waiting += group.waiting;
            packed.desired_slices += wanted.len().div_ceil(self.most);
            packed.slices.append(group.slices);
        }
        // Sets of ports that nobody serves any more.
        packed
            .slices
            .delete
            .extend(by_ports.into_values().flatten());
        self.keep_one(&mut packed.slices, existing, address_type);
        packed
    }

    /// Where there would be no slice at all, the Service keeps an empty one.
    fn keep_one(&self, slices: &mut Slices, existing: &[Arc<EndpointSlice>], address_type: &str) {
        if slices.delete.len() != existing.len() || !slices.create.is_empty() {
            return;
        }
        let empty = slices::empty(self.service, address_type, Vec::new(), self.labels.clone());
        match slices.delete.as_slice() {
            [only]
                if only.endpoints.is_empty()
                    && only.ports.is_empty()
                    && only.metadata().labels == empty.metadata().labels =>
            {
                slices.unchanged.append(&mut slices.delete);
            }
            _ => slices.create.push(empty),
        }
    }

    /// The endpoints of one address type.
    fn wanted(&self, address_type: &str) -> Groups {
        let mut groups = Groups::new();
        for (pod, node) in &self.backends {
            let ports = endpoint::ports(pod, self.service);
            let (_, endpoints) = groups
                .entry(ports_key(&ports))
                .or_insert_with(|| (ports, Vec::new()));
            let node = node.as_deref();
            endpoints.extend(endpoint::of_pod(pod, node, self.service, address_type));
        }
        groups
    }
}

/// Gives or takes away hints, and records an event once.
fn hint(
    plan: &mut Plan,
    slices: &mut Slices,
    memory: &mut Memory,
    (service, seen): (&Service, &Snapshot<'_>),
    (address_type, had_hints, traffic): (&str, bool, Option<&str>),
) {
    let event = |reason: &'static str, r#type: EventType, text: &str| Event {
        r#type,
        ..Event::normal(
            service,
            reason,
            format!("{text}, addressType: {address_type}"),
        )
    };
    if hints::are_wanted(service) {
        let shares = hints::shares(&seen.all::<Node>());
        let given = hints::give(slices, &shares);
        let before = memory.hints.get(address_type).cloned();
        let now = given.err().unwrap_or_default();
        let news = match &before {
            // No memory, but existing hints: another owner has reported them.
            None => !(now.is_empty() && had_hints),
            Some(before) => *before != now,
        };
        if news && now.is_empty() {
            let reported = memory.hints.values().any(String::is_empty);
            if !reported {
                plan.event(event(
                    "TopologyAwareHintsEnabled",
                    EventType::Normal,
                    hints::ENABLED,
                ));
            }
        } else if news {
            plan.event(event(
                "TopologyAwareHintsDisabled",
                EventType::Warning,
                &now,
            ));
        }
        memory.hints.insert(address_type.to_owned(), now);
        return;
    }
    if memory.hints.values().any(String::is_empty) {
        plan.event(event(
            "TopologyAwareHintsDisabled",
            EventType::Warning,
            hints::DISABLED,
        ));
    }
    memory.hints.clear();
    match traffic {
        Some(traffic) => traffic::hint(slices, traffic),
        None => hints::remove(slices),
    }
}

/// Pods whose node does not exist are left out; an event is recorded when their set changes.
fn report_homeless(
    plan: &mut Plan,
    service: &Service,
    homeless: &[(Arc<Pod>, Option<Arc<Node>>)],
    memory: &mut Memory,
) {
    let key = Key::of(service);
    let skipped: Vec<String> = homeless
        .iter()
        .map(|(pod, _)| {
            let (name, node) = (&Object::metadata(&**pod).name, pods::node_name(pod));
            format!("skipping Pod {name} for Service {key}: Node {node} Not Found")
        })
        .collect();
    let error = match skipped.as_slice() {
        [] => String::new(),
        [one] => one.clone(),
        more => format!("[{}]", more.join(", ")),
    };
    if !error.is_empty() {
        let message = format!("Error updating Endpoint Slices for Service {key}: {error}");
        let event = Event::warning(service, FAILED, message);
        plan.event_once(&mut memory.said, event);
    }
    memory.said.settle();
}

/// The earliest change of readiness among the endpoints that are added or changed; for a Service's first
/// slices, its creation.
fn trigger(
    service: &Service,
    backends: &[(Arc<Pod>, Option<Arc<Node>>)],
    held: &[Arc<EndpointSlice>],
    slices: &Slices,
) -> Option<Timestamp> {
    if !slices.are_changed() {
        return None;
    }
    if held.is_empty() {
        return services::created(service);
    }
    // Termination is no change of readiness.
    let serving = |endpoint: &Endpoint| endpoint.conditions.unwrap_or_default().serving;
    let before: HashMap<&str, Option<bool>> = held
        .iter()
        .flat_map(|slice| &slice.endpoints)
        .filter_map(|one| Some((one.target_ref.as_ref()?.uid.as_str(), serving(one))))
        .collect();
    let by_uid: HashMap<&str, &Arc<Pod>> = backends
        .iter()
        .map(|(pod, _)| (&*Object::metadata(&**pod).uid, pod))
        .collect();
    let create = slices.create.iter();
    let update = slices.update.iter().map(|changed| &changed.new);
    create
        .chain(update)
        .flat_map(|slice| &slice.endpoints)
        .filter_map(|one| {
            let uid = one.target_ref.as_ref()?.uid.as_str();
            let news = before.get(uid) != Some(&serving(one));
            news.then(|| by_uid.get(uid)).flatten()
        })
        .filter_map(|pod| services::readiness_changed(pod))
        .min()
}

/// Sets the trigger time of all slices that are written.
fn annotate(slices: &mut Slices, trigger: Option<Timestamp>) {
    for slice in &mut slices.create {
        services::set_trigger_time(&mut slice.metadata_mut().annotations, trigger);
    }
    for changed in &mut slices.update {
        if *changed.old != changed.new {
            services::set_trigger_time(&mut changed.new.metadata_mut().annotations, trigger);
        }
    }
}
