//! Which endpoint goes into which slice, so that few slices are written.
//!
//! 1. An endpoint that is in a slice stays there; slices lose what is not wanted any more and take up what changed. A
//!    slice that is left empty goes.
//! 2. Slices that are written anyway are filled up with what is new, the fullest first.
//! 3. What is left then goes, if it fits, into the one unchanged slice that it fills best; otherwise into new slices.

use std::{collections::HashMap, sync::Arc};

use kubernetes_proto::{
    Object, TextHash,
    discovery::{Endpoint, EndpointSlice},
    meta::Entry,
};

use crate::slices::{self, Changed, Slices};

/// What became of one group of slices: those of one address type and one set of ports.
#[derive(Debug, Default, PartialEq)]
pub struct Packed {
    /// The slices.
    pub slices: Slices,
    /// Endpoints that were in none.
    pub added: usize,
    /// Endpoints that are in none any more.
    pub removed: usize,
    /// How many slices would do.
    pub fewest: usize,
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

    for slice in existing {
        let mut changed = false;
        let mut kept = Vec::with_capacity(slice.endpoints.len());
        for endpoint in &slice.endpoints {
            // Once it has been found, a second one of the kind is one too many.
            if let Some(place) = left.remove(&slices::identity(endpoint)) {
                changed |= !slices::same(&wanted[place], endpoint);
                kept.push(place);
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
            packed.slices.update.push(Changed {
                old: Arc::clone(slice),
                new,
            });
        } else {
            packed.slices.unchanged.push(Arc::clone(slice));
        }
    }

    let mut fresh: Vec<usize> = left.into_values().collect();
    fresh.sort_unstable();
    packed.added = fresh.len();
    let mut fresh = fresh.into_iter().map(|place| wanted[place].clone());
    fill_written(&mut packed.slices, &mut fresh, most);
    place_rest(&mut packed.slices, fresh.collect(), like, most);
    packed
}

/// Step 2.
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

/// Step 3.
fn place_rest(slices: &mut Slices, mut rest: Vec<Endpoint>, like: &EndpointSlice, most: usize) {
    while !rest.is_empty() {
        let best = (rest.len() < most)
            .then(|| best_fit(&slices.unchanged, rest.len(), most))
            .flatten();
        if let Some(place) = best {
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

/// The slice that is closest to full with so many more; an empty one is none.
fn best_fit(slices: &[Arc<EndpointSlice>], more: usize, most: usize) -> Option<usize> {
    slices
        .iter()
        .enumerate()
        .filter_map(|(place, slice)| {
            let free = most.checked_sub(more + slice.endpoints.len())?;
            (free < most).then_some((free, place))
        })
        .min()
        .map(|(_, place)| place)
}

/// Whether labels are the Service's, but for those that are the controller's own.
fn are_labelled(held: &[Entry], wanted: &[Entry]) -> bool {
    let others = |labels: &[Entry]| -> Vec<Entry> {
        let mut others = labels.to_vec();
        others.retain(|entry| !is_reserved(&entry.key));
        others
    };
    held == wanted || others(held) == others(wanted)
}

/// Labels of slices that no Service's label replaces.
pub fn is_reserved(label: &str) -> bool {
    matches!(
        label,
        slices::SERVICE_NAME | slices::MANAGED_BY | crate::services::HEADLESS
    )
}
