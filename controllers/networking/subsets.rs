//! The canonical form of Endpoints: each set of addresses once, with all ports that it serves.
//!
//! Upstream has the same form in another order (that of a hash over Go's memory layout), so what it has
//! written is compared after being brought into this one.

use std::collections::{BTreeMap, HashMap};

use kubernetes_proto::core::{EndpointAddress, EndpointPort, EndpointSubset};

/// The identity of an address: its IP and the uid of its target.
type Identity<'a> = (&'a str, Option<&'a str>);

fn identity(address: &EndpointAddress) -> Identity<'_> {
    let uid = address
        .target_ref
        .as_ref()
        .map(|target| target.uid.as_str());
    (&address.ip, uid)
}

/// A port as it sorts; `None` for addresses without any.
type Port<'a> = Option<(&'a str, i32, &'a str, Option<&'a str>)>;

fn port(port: &EndpointPort) -> Port<'_> {
    Some((
        &port.name,
        port.port,
        &port.protocol,
        port.app_protocol.as_deref(),
    ))
}

/// Brings subsets into the canonical form. An address that is ready in one place and not ready in another,
/// for the same port, is not ready.
pub fn repack(subsets: &[EndpointSubset]) -> Vec<EndpointSubset> {
    // Each address counts once, as first seen; addresses are numbered in their final order.
    let mut first = BTreeMap::<Identity<'_>, &EndpointAddress>::new();
    for address in subsets.iter().flat_map(both) {
        first.entry(identity(address.0)).or_insert(address.0);
    }
    let numbers: HashMap<Identity<'_>, usize> = first
        .keys()
        .enumerate()
        .map(|(number, identity)| (*identity, number))
        .collect();
    let addresses: Vec<&EndpointAddress> = first.into_values().collect();

    let mut by_port = BTreeMap::<Port<'_>, (Option<&EndpointPort>, BTreeMap<usize, bool>)>::new();
    for subset in subsets {
        let ports: Vec<Option<&EndpointPort>> = if subset.ports.is_empty() {
            vec![None]
        } else {
            subset.ports.iter().map(Some).collect()
        };
        for of in ports {
            let (_, ready) = by_port
                .entry(of.and_then(port))
                .or_insert_with(|| (of, BTreeMap::new()));
            for (address, is_ready) in both(subset) {
                ready
                    .entry(numbers[&identity(address)])
                    .and_modify(|before| *before &= is_ready)
                    .or_insert(is_ready);
            }
        }
    }

    // Ports are visited in order, so the sets are in the order of their first port.
    let mut sets = Vec::<(Vec<(usize, bool)>, Vec<EndpointPort>)>::new();
    let mut places = HashMap::<Vec<(usize, bool)>, usize>::new();
    for (of, ready) in by_port.into_values() {
        let set: Vec<(usize, bool)> = ready.into_iter().collect();
        let place = *places.entry(set.clone()).or_insert_with(|| {
            sets.push((set, Vec::new()));
            sets.len() - 1
        });
        sets[place].1.extend(of.cloned());
    }
    sets.into_iter()
        .map(|(set, ports)| {
            let of = |wanted: bool| {
                set.iter()
                    .filter(|(_, ready)| *ready == wanted)
                    .map(|(number, _)| addresses[*number].clone())
                    .collect()
            };
            EndpointSubset {
                addresses: of(true),
                not_ready_addresses: of(false),
                ports,
            }
        })
        .collect()
}

/// The addresses of a subset, and whether each is ready.
pub fn both(subset: &EndpointSubset) -> impl Iterator<Item = (&EndpointAddress, bool)> {
    let ready = subset.addresses.iter().map(|address| (address, true));
    let others = subset.not_ready_addresses.iter();
    ready.chain(others.map(|address| (address, false)))
}

/// Whether two canonical forms are equal; the version of the pod that an address was made from does not
/// count.
pub fn equal(one: &[EndpointSubset], other: &[EndpointSubset]) -> bool {
    let version_apart = |one: &EndpointAddress, other: &EndpointAddress| {
        one == other || {
            let mut one = one.clone();
            if let (Some(target), Some(theirs)) = (&mut one.target_ref, &other.target_ref) {
                target.resource_version.clone_from(&theirs.resource_version);
            }
            one == *other
        }
    };
    let addresses = |one: &[EndpointAddress], other: &[EndpointAddress]| {
        one.len() == other.len()
            && one
                .iter()
                .zip(other)
                .all(|(one, other)| version_apart(one, other))
    };
    one.len() == other.len()
        && one.iter().zip(other).all(|(one, other)| {
            one.ports == other.ports
                && addresses(&one.addresses, &other.addresses)
                && addresses(&one.not_ready_addresses, &other.not_ready_addresses)
        })
}

/// How many addresses there are.
pub fn count(subsets: &[EndpointSubset]) -> usize {
    subsets
        .iter()
        .map(|subset| subset.addresses.len() + subset.not_ready_addresses.len())
        .sum()
}

/// Truncates subsets to `most` addresses; whether there were more. Addresses that are not ready are dropped
/// first; the rest is distributed in proportion, rounded up, so the last subset may get less.
pub fn truncate(subsets: &mut [EndpointSubset], most: usize) -> bool {
    let ready: usize = subsets.iter().map(|subset| subset.addresses.len()).sum();
    let total = count(subsets);
    if total <= most {
        return false;
    }
    let cuts_ready = ready > most;
    let (room, of) = if cuts_ready {
        (most, ready)
    } else {
        (most - ready, total - ready)
    };
    let mut left = room;
    for subset in subsets {
        let held = if cuts_ready {
            subset.not_ready_addresses.clear();
            &mut subset.addresses
        } else {
            &mut subset.not_ready_addresses
        };
        let share = (held.len() * room).div_ceil(of).min(left);
        held.truncate(share);
        left -= held.len();
    }
    true
}
