//! Which member should own which range: a pure function of the members, the ring and the present owners.
//!
//! Every member gets a quota: ⌊R/N⌋, and one more for R mod N of them. A range stays with its owner while the
//! owner is within its quota; the rest goes, in ring preference, to members below theirs. So loads end within
//! one range of each other, and nothing moves that need not.

use std::cmp::Reverse;

use crate::{lease::RangeId, ring::Ring};

/// What each member can bear. Equal today; measured loads come later and change only the quotas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Weights {
    /// Every member the same.
    #[default]
    Equal,
}

/// For each range the index of the member that should own it; empty without members.
///
/// `owners` holds for each range the index of its present owner among `ring.members()`, `None` if that owner
/// is dead, on its way out or not ready.
pub fn place(ring: &Ring, owners: &[Option<u16>], Weights::Equal: Weights) -> Vec<u16> {
    place_within(ring, owners, &[])
}

/// As [`place`], where some members take no more than a number of ranges, by their index among
/// `ring.members()`. Where the others can't be given the rest, since there are none, nobody's bound counts: a
/// range must not be nobody's.
pub fn place_within(ring: &Ring, owners: &[Option<u16>], most: &[Option<u16>]) -> Vec<u16> {
    let members = ring.members().len();
    if members == 0 {
        return Vec::new();
    }
    debug_assert_eq!(owners.len(), usize::from(ring.ranges()));
    let mut load = vec![0usize; members];
    for owner in owners.iter().flatten() {
        load[usize::from(*owner)] += 1;
    }
    let quota = quotas(&load, owners.len(), most);
    let kept = keep_within_quota(ring, owners, &quota);
    let placed = place_the_rest(ring, kept, &quota);
    assert_at_quota(&placed, &quota);
    placed
}

/// The odd ranges stay with members that hold one too many anyway: any choice among these moves least. It
/// goes by name and not by load, so that it stays the same while moves are half done.
fn quotas(load: &[usize], ranges: usize, most: &[Option<u16>]) -> Vec<usize> {
    let mut quota: Vec<Option<usize>> = vec![None; load.len()];
    let (mut left, mut members) = (ranges, load.len());
    // A member that takes less than its part leaves more for the others, so that more of them may be below
    // theirs, never fewer.
    while let Some(member) = (0..load.len()).find(|&member| {
        let bound = most.get(member).copied().flatten();
        quota[member].is_none() && bound.is_some_and(|bound| usize::from(bound) <= left / members)
    }) {
        let bound = most[member].map_or(0, usize::from);
        quota[member] = Some(bound);
        (left, members) = (left - bound, members - 1);
        if members == 0 {
            // Theirs are all that there are.
            (quota, left, members) = (vec![None; load.len()], ranges, load.len());
            break;
        }
    }
    let (floor, odd) = (left / members, left % members);
    let mut by_claim: Vec<usize> = (0..load.len())
        .filter(|member| quota[*member].is_none())
        .collect();
    by_claim.sort_by_key(|&member| (Reverse(load[member] > floor), member));
    let mut quota: Vec<usize> = quota
        .into_iter()
        .map(|bound| bound.unwrap_or(floor))
        .collect();
    for member in by_claim.into_iter().take(odd) {
        quota[member] += 1;
    }
    quota
}

/// A member over its quota gives up the ranges that prefer it least. This order does not depend on how many
/// are left to give, so half-done moves continue as they began.
pub(crate) fn keep_within_quota(
    ring: &Ring,
    owners: &[Option<u16>],
    quota: &[usize],
) -> Vec<Option<u16>> {
    let mut of: Vec<Vec<(usize, RangeId)>> = vec![Vec::new(); quota.len()];
    for (range, owner) in (0..).zip(owners) {
        if let Some(owner) = *owner {
            let rank = ring
                .order(range)
                .iter()
                .position(|&member| member == owner)
                .unwrap_or(usize::MAX);
            of[usize::from(owner)].push((rank, range));
        }
    }
    let mut kept = vec![None; owners.len()];
    for (member, mut ranges) in (0u16..).zip(of) {
        ranges.sort_unstable();
        for (_, range) in ranges.into_iter().take(quota[usize::from(member)]) {
            kept[usize::from(range)] = Some(member);
        }
    }
    kept
}

/// Quotas add up to the number of ranges, so there is room for every range with somebody on its list.
pub(crate) fn place_the_rest(ring: &Ring, kept: Vec<Option<u16>>, quota: &[usize]) -> Vec<u16> {
    let mut room = quota.to_vec();
    for owner in kept.iter().flatten() {
        room[usize::from(*owner)] -= 1;
    }
    (0..)
        .zip(kept)
        .map(|(range, owner)| {
            owner.unwrap_or_else(|| {
                let next = ring
                    .order(range)
                    .iter()
                    .copied()
                    .find(|&member| room[usize::from(member)] > 0);
                let next = next.unwrap_or(0);
                room[usize::from(next)] = room[usize::from(next)].saturating_sub(1);
                next
            })
        })
        .collect()
}

fn assert_at_quota(placed: &[u16], quota: &[usize]) {
    let mut load = vec![0usize; quota.len()];
    for member in placed {
        load[usize::from(*member)] += 1;
    }
    assert_eq!(load, quota, "placement must end at the quotas");
}
