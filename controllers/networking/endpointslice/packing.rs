//! Which endpoint goes into which slice, so that few slices are written.
//!
//! 1. An endpoint that is in a slice stays there; slices lose endpoints that are no longer wanted and take
//!    up changes. A slice that becomes empty is deleted.
//! 2. Slices that are written anyway are filled with new endpoints, the fullest first.
//! 3. The rest goes, if it fits, into the one slice that it fills best, one that waits before one that is
//!    unchanged; otherwise into new slices.
//!
//! A change by which nothing becomes ready may wait for its slice's turn ([`IN_TURN`]), and no pod is in two
//! slices meanwhile.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use kubernetes_proto::{
    Object, TextHash,
    discovery::{Endpoint, EndpointSlice},
    meta::Entry,
};

use crate::slices::{self, Changed, Slices};

/// The maximum number of slices written at a time that only lose endpoints, or whose endpoints only cease
/// to be ready. While thousands of pods are rolled out, each second touches nearly every slice: all of them
/// would be written for one or two endpoints each. With 5,000 pods in 60 slices and half a second between
/// two plans each has its turn within 8 s, as late as upstream comes to its last hundredth there.
pub const IN_TURN: usize = 4;

/// The result for one group of slices: those of one address type and one set of ports.
#[derive(Debug, Default, PartialEq)]
pub struct Packed {
    /// The slices after packing.
    pub slices: Slices,
    /// Endpoints that were in no slice before.
    pub added: usize,
    /// Endpoints that are in none any more.
    pub removed: usize,
    /// The least number of slices that could hold all endpoints.
    pub desired_slices: usize,
    /// How many slices wait for their turn.
    pub waiting: usize,
}

/// Packs the wanted endpoints. `like` is an empty slice with the labels that all should have.
pub fn pack(
    existing: &[Arc<EndpointSlice>],
    wanted: &[Endpoint],
    like: &EndpointSlice,
    most: usize,
) -> Packed {
    let mut packed = Packed::default();
    let mut left: HashMap<slices::Identity<'_>, usize, TextHash> = wanted
        .iter()
        .enumerate()
        .map(|(place, endpoint)| (slices::identity(endpoint), place))
        .collect();

    let names: HashSet<&str> = wanted.iter().filter_map(target).collect();
    let mut changes = Vec::new();
    for slice in existing {
        let (mut changed, mut urgent) = (false, false);
        let mut kept = Vec::with_capacity(slice.endpoints.len());
        for endpoint in &slice.endpoints {
            // Once it has been found, a second one of the same identity is a duplicate.
            if let Some(place) = left.remove(&slices::identity(endpoint)) {
                changed |= !slices::same(&wanted[place], endpoint);
                urgent |= slices::is_ready(&wanted[place]) && !slices::is_ready(endpoint);
                kept.push(place);
            } else {
                urgent |= target(endpoint).is_some_and(|name| names.contains(name));
            }
        }
        let lost = slice.endpoints.len() - kept.len();
        packed.removed += lost;
        let relabelled = !are_labelled(&slice.metadata().labels, &like.metadata().labels);
        if (lost > 0 || changed) && kept.is_empty() {
            packed.slices.delete.push(Arc::clone(slice));
        } else if lost > 0 || changed || relabelled {
            let mut new = EndpointSlice::clone(slice);
            new.metadata_mut()
                .labels
                .clone_from(&like.metadata().labels);
            if lost > 0 || changed {
                new.endpoints = kept.iter().map(|place| wanted[*place].clone()).collect();
            }
            let old = Arc::clone(slice);
            let change = Changed { old, new };
            changes.push((change, urgent || relabelled));
        } else {
            packed.slices.unchanged.push(Arc::clone(slice));
        }
    }
    let mut waiting = take_turns(changes, &mut packed.slices.update);

    let mut fresh: Vec<usize> = left.into_values().collect();
    fresh.sort_unstable();
    packed.added = fresh.len();
    let mut fresh = fresh.into_iter().map(|place| wanted[place].clone());
    fill_written(&mut packed.slices, &mut fresh, most);
    place_rest(
        &mut packed.slices,
        &mut waiting,
        fresh.collect(),
        like,
        most,
    );
    packed.waiting = waiting.len();
    for Changed { old, new } in waiting {
        packed.removed -= old.endpoints.len() - new.endpoints.len();
        packed.slices.unchanged.push(old);
    }
    packed
}

/// The pod of an endpoint.
fn target(endpoint: &Endpoint) -> Option<&str> {
    Some(endpoint.target_ref.as_ref()?.name.as_str())
}

/// Chooses the changes that are written now: urgent ones, and of the others [`IN_TURN`], those whose slices
/// were written longest ago first. Returns those that wait.
fn take_turns(changes: Vec<(Changed, bool)>, now: &mut Vec<Changed>) -> Vec<Changed> {
    let mut ages: Vec<u64> = changes
        .iter()
        .filter(|(_, urgent)| !urgent)
        .map(|(changed, _)| changed.old.metadata().resource_version)
        .collect();
    ages.sort_unstable();
    let (mut left, last) = (IN_TURN, ages.get(IN_TURN - 1).copied().unwrap_or(u64::MAX));
    let mut waiting = Vec::new();
    for (changed, urgent) in changes {
        let in_turn = left > 0 && changed.old.metadata().resource_version <= last;
        if urgent {
            now.push(changed);
        } else if in_turn {
            left -= 1;
            now.push(changed);
        } else {
            waiting.push(changed);
        }
    }
    waiting
}

/// Step 2: fills slices that are written anyway.
fn fill_written(slices: &mut Slices, fresh: &mut impl Iterator<Item = Endpoint>, most: usize) {
    let mut fullest: Vec<&mut EndpointSlice> = slices
        .update
        .iter_mut()
        .map(|changed| &mut changed.new)
        .collect();
    fullest.sort_by_key(|slice| std::cmp::Reverse(slice.endpoints.len()));
    for slice in fullest {
        let room = most.saturating_sub(slice.endpoints.len());
        slice.endpoints.extend(fresh.by_ref().take(room));
    }
}

/// Step 3: places what is left.
fn place_rest(
    slices: &mut Slices,
    waiting: &mut Vec<Changed>,
    mut rest: Vec<Endpoint>,
    like: &EndpointSlice,
    most: usize,
) {
    while !rest.is_empty() {
        let waits = waiting.iter().map(|changed| &changed.new);
        let stays = slices.unchanged.iter().map(|slice| &**slice);
        // A waiting slice loses its unwanted endpoints by the same write.
        if let Some(place) = best_fit(waits, rest.len(), most) {
            let mut changed = waiting.remove(place);
            changed.new.endpoints.append(&mut rest);
            slices.update.push(changed);
        } else if let Some(place) = best_fit(stays, rest.len(), most) {
            let old = slices.unchanged.remove(place);
            let mut new = EndpointSlice::clone(&old);
            new.endpoints.append(&mut rest);
            slices.update.push(Changed { old, new });
        } else {
            let later = rest.split_off(rest.len().min(most));
            slices.create.push(EndpointSlice {
                endpoints: std::mem::replace(&mut rest, later),
                ..like.clone()
            });
        }
    }
}

/// The slice that is closest to full after `more` additions; an empty one is never chosen.
fn best_fit<'a>(
    slices: impl Iterator<Item = &'a EndpointSlice>,
    more: usize,
    most: usize,
) -> Option<usize> {
    slices
        .enumerate()
        .filter_map(|(place, slice)| {
            let free = most.checked_sub(more + slice.endpoints.len())?;
            (free < most && more < most).then_some((free, place))
        })
        .min()
        .map(|(_, place)| place)
}

/// Whether labels are the Service's, except for the controller's own.
fn are_labelled(held: &[Entry], wanted: &[Entry]) -> bool {
    let others = |labels: &[Entry]| -> Vec<Entry> {
        let mut others = labels.to_vec();
        others.retain(|entry| !is_reserved(&entry.key));
        others
    };
    held == wanted || others(held) == others(wanted)
}

/// Labels of slices that a Service's labels do not override.
pub fn is_reserved(label: &str) -> bool {
    matches!(
        label,
        slices::SERVICE_NAME | slices::MANAGED_BY | crate::services::HEADLESS
    )
}
