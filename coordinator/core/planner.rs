//! Which range is moved next, so that replicas have equal work: pure functions of the loads, and the pauses
//! that keep moves few. Only the planner of a fleet acts by it; README.md of the coordinator has the rules.
//!
//! Kept true:
//! * Equal loads move nothing, and nothing moves but by a load that is above a member's fair share by a fifth
//!   ([`UNEVEN_PARTS`]) for a while ([`UNEVEN_FOR`]).
//! * A range that is more work than a fair share cannot be split, so its owner is relieved of others, and the
//!   range stays: it is moved only from an owner that has another such range, to one that has none.
//! * With loads that do not change, moves come to an end, and no range moves back.

use std::{cmp::Reverse, collections::BTreeMap, time::Duration};

use crate::lease::{RangeId, Time};

/// A member's load is uneven where it is above its fair share by this part of it.
const UNEVEN_PARTS: u64 = 5;

/// … and by this, in microseconds a second: nobody gains by moving less.
const UNEVEN_LEAST: u64 = 50_000;

/// A move must take this part of a fair share off the worse of both.
const GAIN_PARTS: i64 = 20;

/// Moves begin when loads have been uneven for so long.
pub const UNEVEN_FOR: Duration = Duration::from_secs(60);

/// Between two moves.
pub const MOVES_APART: Duration = Duration::from_secs(10);

/// A range that was moved stays for so long, and a member that has not taken one is planned none for so long.
pub const RESTS_FOR: Duration = Duration::from_secs(300);

/// What a new owner says of a range's load counts after so long: its average begins with it.
const AVERAGE_AFTER: Duration = Duration::from_secs(60);

/// What is known of a fleet that is to be even.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// How many members there are.
    pub members: usize,
    /// For each range the index of its owner.
    pub owners: &'a [u16],
    /// For each range its load, in microseconds a second.
    pub loads: &'a [u64],
}

/// A move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shift {
    /// The range.
    pub range: RangeId,
    /// The index of its owner.
    pub from: u16,
    /// The index of the next one.
    pub to: u16,
}

/// How the work is shared.
#[derive(Debug)]
struct Shares {
    /// By member.
    load: Vec<u64>,
    /// By member: the range that is more than a fair share of what smaller ranges leave.
    hot: Vec<Option<usize>>,
    /// Such ranges whose owner has another.
    surplus: Vec<usize>,
    /// What is fair for a member without such a range.
    fair: u64,
}

impl Shares {
    /// The largest ranges come first: each that is above the mean of what is left takes a member for itself,
    /// and the mean of the others sinks.
    fn of(work: Work<'_>) -> Self {
        let mut load = vec![0; work.members];
        for (owner, one) in work.owners.iter().zip(work.loads) {
            load[usize::from(*owner)] += one;
        }
        let mut busy: Vec<usize> = (0..work.owners.len())
            .filter(|range| work.loads.get(*range).is_some_and(|load| *load > 0))
            .collect();
        busy.sort_by_key(|range| (Reverse(work.loads[*range]), *range));
        let (mut left, mut members) = (load.iter().sum::<u64>(), work.members as u64);
        let (mut hot, mut surplus) = (vec![None; work.members], Vec::new());
        for range in busy {
            if members <= 1 || work.loads[range] <= left / members {
                break;
            }
            left -= work.loads[range];
            members -= 1;
            match &mut hot[usize::from(work.owners[range])] {
                own @ None => *own = Some(range),
                Some(_) => surplus.push(range),
            }
        }
        let fair = left / members.max(1);
        Self {
            load,
            hot,
            surplus,
            fair,
        }
    }

    /// What a member has that it should not: of an owner of a hot range all the rest.
    fn excess(&self, member: usize, work: Work<'_>) -> u64 {
        match self.hot[member] {
            Some(range) => self.load[member] - work.loads[range],
            None => self.load[member].saturating_sub(self.fair),
        }
    }

    /// The member with the least work of those without a hot range that may take one, other than this one.
    fn idlest(&self, but: usize, may_take: &dyn Fn(usize) -> bool) -> Option<usize> {
        let others = (0..self.load.len()).filter(|at| *at != but && self.hot[*at].is_none());
        let others = others.filter(|at| may_take(*at));
        others.min_by_key(|at| (self.load[*at], *at))
    }
}

/// The busiest member's load and the mean, in microseconds a second.
pub fn spread(work: Work<'_>) -> (u64, u64) {
    let load = Shares::of(work).load;
    let total: u64 = load.iter().sum();
    let most = load.iter().max().copied().unwrap_or(0);
    (most, total / (work.members.max(1) as u64))
}

/// The move that helps most, where loads are uneven, of a range that may move to a member that may take it.
pub fn next_shift(
    work: Work<'_>,
    may_move: &dyn Fn(RangeId) -> bool,
    may_take: &dyn Fn(usize) -> bool,
) -> Option<Shift> {
    if work.members < 2 || work.owners.len() != work.loads.len() {
        return None;
    }
    let shares = Shares::of(work);
    let is_uneven = |excess: u64| excess > shares.fair / UNEVEN_PARTS && excess >= UNEVEN_LEAST;
    let mut uneven: Vec<usize> = (0..work.members)
        .filter(|member| is_uneven(shares.excess(*member, work)))
        .collect();
    uneven.sort_by_key(|member| (Reverse(shares.excess(*member, work)), *member));
    let shift = |range: usize, to: usize| {
        Some(Shift {
            range: RangeId::try_from(range).ok()?,
            from: work.owners[range],
            to: u16::try_from(to).ok()?,
        })
    };
    let may = |range: usize| RangeId::try_from(range).is_ok_and(may_move);
    // Two hot ranges part before anything else: each of them is more than all that follows.
    for range in shares.surplus.iter().copied().filter(|range| may(*range)) {
        let from = usize::from(work.owners[range]);
        if let Some(to) = shares.idlest(from, may_take)
            && shares.load[to] + work.loads[range] < shares.load[from]
        {
            return shift(range, to);
        }
    }
    for from in uneven {
        let Some(to) = shares.idlest(from, may_take) else {
            continue;
        };
        let excess = signed(shares.excess(from, work));
        let room = signed(shares.fair) - signed(shares.load[to]);
        // What is left too much on the worse of both.
        let after = |range: usize| {
            let load = signed(work.loads[range]);
            (excess - load).max(load - room)
        };
        let best = (0..work.owners.len())
            .filter(|range| usize::from(work.owners[*range]) == from && work.loads[*range] > 0)
            .filter(|range| shares.hot[from] != Some(*range) && !shares.surplus.contains(range))
            .filter(|range| may(*range))
            .min_by_key(|range| (after(*range), *range));
        let gain = (signed(shares.fair) / GAIN_PARTS).max(1);
        if let Some(range) = best.filter(|range| after(*range) <= excess - gain) {
            return shift(range, to);
        }
    }
    None
}

fn signed(load: u64) -> i64 {
    i64::try_from(load).unwrap_or(i64::MAX / 4)
}

/// What one range's owner has said of its load.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Said {
    by: u16,
    load: u64,
    /// Since when that owner's word counts.
    counts_from: Time,
}

/// Remembers what keeps moves few.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Planner {
    /// The members that the rest is about.
    members: Vec<String>,
    /// Since when some move would help.
    uneven_since: Option<Time>,
    /// When the newest plan was seen that moves something.
    moved_at: Option<Time>,
    /// When ranges were moved. Bound: the ranges; what is older than [`RESTS_FOR`] is dropped.
    moved: BTreeMap<RangeId, Time>,
    /// Until when members that have not taken a range are planned none. Bound: the members.
    refused: BTreeMap<String, Time>,
    /// Nothing is moved before: what was moved lately is not known.
    rests_until: Time,
    /// What was said of ranges' loads. Bound: the ranges.
    said: BTreeMap<RangeId, Said>,
}

impl Planner {
    /// A plan was there when this replica started: what it has moved lately is not known.
    pub fn begins_with_a_plan(&mut self, now: Time) {
        self.rests_until = now + RESTS_FOR;
    }

    /// The newest plan gives these ranges to others than the one before, whichever replica has written it.
    pub fn saw_moves(&mut self, now: Time, ranges: impl IntoIterator<Item = RangeId>) {
        for range in ranges {
            self.moved_at = Some(now);
            self.moved.insert(range, now);
        }
    }

    /// A member has not taken a range that was planned for it.
    pub fn saw_no_taker(&mut self, now: Time, member: String) {
        self.refused.insert(member, now + RESTS_FOR);
    }

    /// This replica does not plan now: loads are waited for again when it does.
    pub fn pauses(&mut self) {
        self.uneven_since = None;
        self.said.clear();
    }

    /// The loads as owners say them, where a new owner's word counts only after a while: its average starts
    /// over, and until then the range is as much work as it was before.
    pub fn loads(
        &mut self,
        now: Time,
        owners: &[u16],
        reported: impl Fn(RangeId, u16) -> u64,
    ) -> Vec<u64> {
        let said = &mut self.said;
        (0..)
            .zip(owners)
            .map(|(range, owner)| {
                let load = reported(range, *owner);
                let known = said.entry(range).or_insert(Said {
                    by: *owner,
                    load,
                    counts_from: now,
                });
                if known.by != *owner {
                    known.by = *owner;
                    known.counts_from = now + AVERAGE_AFTER;
                }
                if known.counts_from <= now {
                    known.load = load;
                }
                known.load
            })
            .collect()
    }

    /// The next move, if it is time for one. The owners are as the plan has them, and all of them have their
    /// ranges; pinned ranges stay.
    pub fn next(
        &mut self,
        now: Time,
        members: &[String],
        work: Work<'_>,
        is_pinned: &dyn Fn(RangeId) -> bool,
    ) -> Option<Shift> {
        if self.members != members {
            self.members = members.to_vec();
            self.pauses();
            return None;
        }
        self.moved.retain(|_, at| now < *at + RESTS_FOR);
        self.refused.retain(|_, until| now < *until);
        let Some(_) = next_shift(work, &|range| !is_pinned(range), &|_| true) else {
            self.uneven_since = None;
            return None;
        };
        let since = *self.uneven_since.get_or_insert(now);
        let is_early = self.moved_at.is_some_and(|at| now < at + MOVES_APART);
        if now < since + UNEVEN_FOR || is_early || now < self.rests_until {
            return None;
        }
        let may_move = |range: RangeId| !is_pinned(range) && !self.moved.contains_key(&range);
        let may_take = |at: usize| {
            let name = members.get(at);
            name.is_some_and(|name| !self.refused.contains_key(name))
        };
        next_shift(work, &may_move, &may_take)
    }
}

#[cfg(test)]
mod tests;
