//! Hints by topology, for Services that ask for them by annotation: each zone gets a share of the endpoints
//! in proportion to its share of the cluster's processors, so that traffic can stay in its zone without
//! overload.
//!
//! Endpoints serve their own zone first; zones with more than their share then give some to zones with
//! less. No hints are given where, for lack of endpoints, a zone would fall below its share by more than
//! the threshold.

use std::{collections::BTreeMap, sync::Arc};

use controllers_kit::heartbeat;
use kubernetes_proto::{
    Object,
    core::{Node, Service},
    discovery::{Endpoint, EndpointHints, EndpointSlice, ForZone},
};

use super::endpoint;
use crate::slices::{self, Slices};

/// The annotation that asks for hints, and its older name, which takes precedence.
const MODE: &str = "service.kubernetes.io/topology-mode";
const MODE_BEFORE: &str = "service.kubernetes.io/topology-aware-hints";

/// The tolerated overload of a zone's endpoints.
const OVERLOAD_MAX: f64 = 0.2;

/// Nodes with one of these labels run no ordinary workload.
const CONTROL_PLANE: [&str; 2] = [
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/master",
];

/// Upstream's texts of events.
pub const ENABLED: &str = "Topology Aware Hints has been enabled";
/// As [`ENABLED`].
pub const DISABLED: &str = "Topology Aware Hints has been disabled";
const NO_ZONE: &str = "One or more endpoints do not have a zone specified";
const NOTHING_ALLOCATED: &str = "No hints allocated for zones";
const NODES_UNKNOWN: &str =
    "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes";
const ONE_ZONE: &str = "Nodes only ready in one zone";
const TOO_FEW: &str = "Insufficient number of endpoints";
const TOO_UNEVEN: &str = "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold";

/// Whether a Service asks for hints.
pub fn are_wanted(service: &Service) -> bool {
    let meta = service.metadata();
    let mode = meta
        .annotation(MODE_BEFORE)
        .or_else(|| meta.annotation(MODE));
    matches!(mode, Some("Auto" | "auto"))
}

/// A node's contribution to its zone: the zone and thousandths of processors. `None` for one that does not
/// count.
pub fn capacity(node: &Node) -> Option<(Option<&str>, i64)> {
    let meta = node.metadata();
    if CONTROL_PLANE
        .iter()
        .any(|label| meta.label(label).is_some())
        || !is_node_ready(node)
    {
        return None;
    }
    let processors = node
        .status
        .iter()
        .flat_map(|status| &status.allocatable)
        .find(|amount| amount.key == "cpu")
        .and_then(|amount| amount.value.as_ref()?.milli())
        .unwrap_or(0);
    Some((endpoint::zone(node), processors))
}

fn is_node_ready(node: &Node) -> bool {
    heartbeat::ready(node).is_some_and(|condition| condition.status == "True")
}

/// Each zone's share of the cluster's processors.
///
/// # Errors
/// Where the shares are unknown; the text is upstream's.
pub fn shares(nodes: &[Arc<Node>]) -> Result<BTreeMap<String, f64>, String> {
    if nodes.is_empty() {
        return Err(ONE_ZONE.to_owned());
    }
    let unknown = || NODES_UNKNOWN.to_owned();
    let mut by_zone = BTreeMap::<String, i64>::new();
    for (zone, processors) in nodes.iter().filter_map(|node| capacity(node)) {
        let zone = zone.filter(|_| processors != 0).ok_or_else(unknown)?;
        *by_zone.entry(zone.to_owned()).or_default() += processors;
    }
    let total: i64 = by_zone.values().sum();
    if total == 0 || by_zone.len() < 2 {
        return Err(unknown());
    }
    Ok(by_zone
        .into_iter()
        .map(|(zone, processors)| (zone, processors as f64 / total as f64))
        .collect())
}

/// How many endpoints a zone should have.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Allocation {
    most: usize,
    desired: f64,
}

fn allocations(
    shares: &BTreeMap<String, f64>,
    endpoints: usize,
) -> Result<BTreeMap<String, Allocation>, String> {
    let zones = shares.len();
    let refused = |why: &str| Err(format!("{why} ({endpoints} endpoints, {zones} zones)"));
    if zones > endpoints {
        return refused(TOO_FEW);
    }
    let least = |share: f64| (share * endpoints as f64 / (1.0 + OVERLOAD_MAX)).ceil() as usize;
    let sum: usize = shares.values().map(|share| least(*share)).sum();
    if sum > endpoints {
        return refused(TOO_UNEVEN);
    }
    Ok(shares
        .iter()
        .map(|(zone, share)| {
            let least = least(*share);
            let allocation = Allocation {
                most: least + endpoints - sum,
                desired: (share * endpoints as f64).max(least as f64),
            };
            (zone.clone(), allocation)
        })
        .collect())
}

/// Sets hints, or removes all where none can be given.
///
/// # Errors
/// Why none can be given; the text is upstream's.
pub fn give(
    slices: &mut Slices,
    shares: &Result<BTreeMap<String, f64>, String>,
) -> Result<(), String> {
    let given = shares
        .as_ref()
        .map_err(Clone::clone)
        .and_then(|shares| try_give(slices, shares));
    if given.is_err() {
        remove(slices);
    }
    given
}

fn try_give(slices: &mut Slices, shares: &BTreeMap<String, f64>) -> Result<(), String> {
    let ready = slices
        .endpoints()
        .filter(|endpoint| slices::is_ready(endpoint))
        .count();
    let allocations = allocations(shares, ready)?;

    let mut given = BTreeMap::<String, usize>::new();
    slices.touch(|slice| match usable(slice, &given, &allocations) {
        Some(more) => {
            for (zone, count) in more {
                *given.entry(zone).or_default() += count;
            }
            false
        }
        None => true,
    });

    for endpoint in slices.written() {
        if !slices::is_ready(endpoint) {
            endpoint.hints = None;
            continue;
        }
        let Some(zone) = endpoint.zone.clone() else {
            return Err(NO_ZONE.to_owned());
        };
        *given.entry(zone.clone()).or_default() += 1;
        endpoint.hints = Some(for_zone(zone));
    }
    redistribute(slices, givers_and_takers(&allocations, &given));
    if given.is_empty() {
        return Err(NOTHING_ALLOCATED.to_owned());
    }
    Ok(())
}

fn for_zone(name: String) -> EndpointHints {
    EndpointHints {
        for_zones: vec![ForZone { name }],
        for_nodes: Vec::new(),
    }
}

/// The hints of a slice by zone, if it can stay as it is: `None` where a ready endpoint has none, where one
/// is for a zone that gets none, or where a zone would get so large a share that another falls below its
/// minimum.
fn usable(
    slice: &EndpointSlice,
    given: &BTreeMap<String, usize>,
    allocations: &BTreeMap<String, Allocation>,
) -> Option<BTreeMap<String, usize>> {
    let mut by_zone = BTreeMap::<String, usize>::new();
    for endpoint in slice.endpoints.iter().filter(|one| slices::is_ready(one)) {
        let zones = &endpoint.hints.as_ref()?.for_zones;
        if zones.is_empty() {
            return None;
        }
        for zone in zones {
            allocations.get(&zone.name)?;
            *by_zone.entry(zone.name.clone()).or_default() += 1;
        }
    }
    let fits = by_zone.iter().all(|(zone, count)| {
        let before = given.get(zone).copied().unwrap_or(0);
        allocations
            .get(zone)
            .is_some_and(|allocation| count + before <= allocation.most)
    });
    fits.then_some(by_zone)
}

type Counts = BTreeMap<String, usize>;

/// How many endpoints each zone gives, and how many each gets, matched from the largest surplus and the
/// largest deficit.
fn givers_and_takers(
    allocations: &BTreeMap<String, Allocation>,
    given: &Counts,
) -> (Counts, Counts) {
    let (mut surplus, mut lack) = (BTreeMap::new(), BTreeMap::new());
    for (zone, allocation) in allocations {
        let over = given.get(zone).copied().unwrap_or(0) as f64 - allocation.desired;
        if over > 0.0 {
            surplus.insert(zone.as_str(), over);
        } else if over < 0.0 {
            lack.insert(zone.as_str(), -over);
        }
    }
    let (mut givers, mut takers) = (Counts::new(), Counts::new());
    while let (Some((from, over)), Some((to, under))) = (most(&surplus), most(&lack)) {
        if (over < 1.0 && under < 1.0) || over < 0.5 || under < 0.5 {
            break;
        }
        *givers.entry(from.to_owned()).or_default() += 1;
        *takers.entry(to.to_owned()).or_default() += 1;
        surplus.insert(from, over - 1.0);
        lack.insert(to, under - 1.0);
    }
    (givers, takers)
}

/// The largest positive amount, and of equal ones the first.
fn most<'a>(zones: &BTreeMap<&'a str, f64>) -> Option<(&'a str, f64)> {
    let mut found: Option<(&'a str, f64)> = None;
    for (zone, amount) in zones {
        if *amount > found.map_or(0.0, |(_, most)| most) {
            found = Some((zone, *amount));
        }
    }
    found
}

/// Hints endpoints of giving zones for receiving ones.
fn redistribute(slices: &mut Slices, (mut givers, mut takers): (Counts, Counts)) {
    for endpoint in slices.written().filter(|one| slices::is_ready(one)) {
        let Some(zone) = &endpoint.zone else { continue };
        let Some(to_give) = givers.get_mut(zone) else {
            continue;
        };
        let Some(mut taker) = takers.first_entry() else {
            return;
        };
        endpoint.hints = Some(for_zone(taker.key().clone()));
        *to_give -= 1;
        if *to_give == 0 {
            givers.remove(zone);
        }
        *taker.get_mut() -= 1;
        if *taker.get() == 0 {
            taker.remove();
        }
    }
}

/// Whether an endpoint is meant for some zones.
pub fn has_zones(endpoint: &Endpoint) -> bool {
    endpoint
        .hints
        .as_ref()
        .is_some_and(|hints| !hints.for_zones.is_empty())
}

/// Takes all hints away.
pub fn remove(slices: &mut Slices) {
    slices.touch(|slice| slice.endpoints.iter().any(|one| one.hints.is_some()));
    for endpoint in slices.written() {
        endpoint.hints = None;
    }
}
