//! Load-aware placement: the newest plan, pins of operators, and, in the first member, the next plan.
//!
//! Nothing here says who owns a range. A plan and a pin change which member [`Core::placement`] names, and so
//! who claims an orphan and to whom an owner offers a range; claims, swaps, fences and bars are as without.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde::Serialize;

use super::{Core, handoff::Phase};
use crate::{
    event::{Effect, Happening, Input},
    lease::{Follows, RangeId, Time, Version, Written},
    load::load_of,
    placement::place_within,
    plan::{Plan, PlanLease, place_planned},
    planner::{Planner, Shift, Work, spread},
    ring::Ring,
};

/// The planner reads the loads this often.
const READS_EVERY: Duration = Duration::from_secs(2);

/// A plan that names other members than there are is written again for those that there are after so long:
/// most of them come back.
const REWRITTEN_AFTER: Duration = Duration::from_secs(60);

/// A plan whose write had no answer may still land: the next one waits for so long.
const UNKNOWN_FOR: Duration = Duration::from_secs(10);

/// A range that is pinned no more is placed at home for so long, or until it is there.
const RETURNS_FOR: Duration = Duration::from_secs(20);

/// A planned move that is not carried out in so long is given up: most take a second.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(60);

/// Plans are counted in an int32.
const NUMBERS: u64 = 1 << 31;

/// Where an operator wants a range.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pin {
    /// Whose it is to be.
    pub to: String,
    /// Whose it was when it was pinned, and will be again.
    pub home: Option<String>,
}

/// What a core knows of plans.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Planning {
    /// The Lease as last seen.
    lease: Option<PlanLease>,
    /// It was seen up to this version.
    version: Version,
    /// Whether a list or the watch has shown it, or that there is none.
    is_known: bool,
    plan: Option<Arc<Plan>>,
    /// What operators want where.
    pins: Arc<BTreeMap<RangeId, Pin>>,
    /// Ranges that were pinned, the members that they go home to, and until when they may take for it.
    returning: BTreeMap<RangeId, (String, Time)>,
    planner: Planner,
    next_read: Time,
    is_writing: bool,
    /// Since when the plan names others than there are.
    outdated_since: Option<Time>,
    /// Of the planner: the ranges that are not where they are to be, and since when it is these.
    displaced: Option<(Time, Vec<RangeId>)>,
    /// Of the planner: the busiest member's load and the mean.
    spread: Option<(u64, u64)>,
}

/// A placement, and where each range would be without pins.
#[derive(Clone, Debug)]
pub(super) struct Placement {
    pub(super) homes: Arc<[u16]>,
    pub(super) placed: Arc<[u16]>,
}

/// What a replica knows of the fleet's plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Planned {
    /// Whether all members follow plans, so that one counts.
    pub followed: bool,
    /// The number of the newest one.
    pub number: u64,
    /// Whether there is one that counts.
    pub in_force: bool,
    /// Who plans; empty where nobody does.
    pub planner: String,
    /// Of the planner: the load of the busiest member and the mean, in microseconds a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<(u64, u64)>,
    /// What operators have moved.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pins: Vec<Pinned>,
}

/// A range that an operator wants to be a member's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pinned {
    /// The range.
    pub range: RangeId,
    /// Whose it is to be.
    pub to: String,
    /// Whose it is otherwise; `None` where that is not known.
    pub home: Option<String>,
    /// Whether it counts: there is such a member, and all members follow pins.
    pub counts: bool,
}

impl Planning {
    /// This replica plans nothing now. When it does again, loads have to be uneven for as long as ever.
    pub(super) fn pauses(&mut self) {
        self.planner.pauses();
        (self.spread, self.outdated_since) = (None, None);
        self.displaced = None;
    }
}

impl Core {
    /// Takes in what concerns plans and pins.
    pub(super) fn absorb_plan(&mut self, now: Time, input: Input, out: &mut Vec<Effect>) {
        match input {
            Input::Plan(lease) => self.see_plan(now, lease, out),
            Input::PlanGone(version) => {
                self.planning.is_known = true;
                if self.planning.version < version {
                    self.planning.version = version;
                    self.forget_the_plan();
                }
            }
            Input::PlanWritten(result) => {
                self.planning.is_writing = false;
                match result {
                    Written::Done(lease) | Written::Conflict(Some(lease)) => {
                        self.see_plan(now, lease, out);
                    }
                    Written::Conflict(None) => self.forget_the_plan(),
                    Written::Unknown => self.planning.next_read = now + UNKNOWN_FOR,
                }
            }
            Input::Pins(pins) => self.see_pins(now, pins),
            _ => {}
        }
    }

    /// Whose a range is without pins, by the newest placement.
    fn home_of(&self, range: RangeId) -> Option<String> {
        let homes = &self.ranges.placed.0.as_ref()?.placement.homes;
        let at = homes.get(usize::from(range))?;
        self.ranges
            .ring
            .as_ref()?
            .members()
            .get(usize::from(*at))
            .cloned()
    }

    fn see_pins(&mut self, now: Time, pins: BTreeMap<RangeId, Pin>) {
        let before = Arc::clone(&self.planning.pins);
        for (range, pin) in before.iter() {
            let lifted = !pins.contains_key(range);
            let home = self.home_of(*range).or_else(|| pin.home.clone());
            if let Some(home) = home.filter(|_| lifted) {
                let returning = (home, now + RETURNS_FOR);
                self.planning.returning.insert(*range, returning);
            }
        }
        let returning = &mut self.planning.returning;
        returning.retain(|range, _| !pins.contains_key(range));
        self.planning.pins = Arc::new(pins);
        self.ranges.placed.0 = None;
    }

    /// Drops of the ranges that return those that have, and those that take too long.
    pub(super) fn forget_who_is_home(&mut self, now: Time) {
        let ranges = &self.ranges.leases;
        let is_home = |range: &RangeId, home: &String| {
            let holder = ranges.get(range).and_then(|lease| lease.holder.as_ref());
            holder.is_some_and(|holder| holder.name == *home)
        };
        let returning = &mut self.planning.returning;
        returning.retain(|range, (home, until)| now < *until && !is_home(range, home));
    }

    /// Pinned ranges count as their homes', whose places are kept free, and so do those that return.
    pub(super) fn count_at_home(
        &self,
        ring: &Ring,
        pinned: &BTreeMap<RangeId, u16>,
        owners: &mut [Option<u16>],
    ) {
        let index = |name: &String| {
            let at = ring.members().binary_search(name).ok()?;
            u16::try_from(at).ok()
        };
        for range in pinned.keys() {
            let pin = self.planning.pins.get(range);
            let home = pin.and_then(|pin| pin.home.as_ref());
            if let Some(owner) = owners.get_mut(usize::from(*range)) {
                *owner = home.and_then(index);
            }
        }
        for (range, (home, _)) in &self.planning.returning {
            if let (Some(owner), Some(home)) = (owners.get_mut(usize::from(*range)), index(home)) {
                *owner = Some(home);
            }
        }
    }

    fn forget_the_plan(&mut self) {
        (self.planning.lease, self.planning.plan) = (None, None);
        self.ranges.placed.0 = None;
    }

    fn see_plan(&mut self, now: Time, lease: PlanLease, out: &mut Vec<Effect>) {
        if lease.version <= self.planning.version {
            return;
        }
        let plan = match lease.text.is_empty() {
            true => None,
            false => match Plan::parse(&lease.text, self.config.ranges) {
                Ok(plan) => Some(Arc::new(plan)),
                Err(why) => {
                    let (number, why) = (lease.number, why.to_string());
                    out.push(Effect::Happened(Happening::BadPlan { number, why }));
                    None
                }
            },
        };
        if plan.is_some() && !self.planning.is_known {
            self.planning.planner.begins_with_a_plan(now);
        }
        let moves = plan.as_deref().map(|plan| self.moves_of(plan));
        let moves = moves.unwrap_or_default();
        self.planning.planner.saw_moves(now, moves);
        self.planning.is_known = true;
        self.planning.version = lease.version;
        self.planning.lease = Some(lease);
        self.planning.plan = plan;
        self.ranges.placed.0 = None;
    }

    /// The ranges that a plan gives to others than they are placed with now.
    fn moves_of(&self, plan: &Plan) -> Vec<RangeId> {
        let (Some(placed), Some(ring)) = (&self.ranges.placed.0, &self.ranges.ring) else {
            return Vec::new();
        };
        let homes = &placed.placement.homes;
        let after = place_planned(ring, plan, &[]);
        (0..)
            .zip(homes.iter().zip(&after))
            .filter(|(_, (before, after))| before != after)
            .map(|(range, _)| range)
            .collect()
    }

    /// What all of these members follow: a plan that one of them does not know would have ranges go to and
    /// fro.
    pub(super) fn followed_by(&self, ring: &Ring) -> Follows {
        let of = |name: &String| {
            let seen = self.members.seen.get(name);
            seen.map(|seen| seen.lease.status.follows)
                .unwrap_or_default()
        };
        let all = ring.members().iter().map(of);
        let all = all.reduce(|one, other| Follows {
            pins: one.pins && other.pins,
            plans: one.plans && other.plans,
        });
        let all = all.unwrap_or_default();
        Follows {
            plans: all.plans && self.config.plans,
            ..all
        }
    }

    /// The members that pinned ranges are to have. A pin to somebody who is not there has no effect.
    pub(super) fn pinned(&self, ring: &Ring, follows: Follows) -> BTreeMap<RangeId, u16> {
        let of = |(range, pin): (&RangeId, &Pin)| {
            let at = ring.members().binary_search(&pin.to).ok()?;
            (*range < self.config.ranges).then_some((*range, u16::try_from(at).ok()?))
        };
        match follows.pins {
            true => self.planning.pins.iter().filter_map(of).collect(),
            false => BTreeMap::new(),
        }
    }

    /// The placement by plan, or by equal numbers.
    pub(super) fn place(
        &self,
        ring: &Ring,
        (owners, most): (&[Option<u16>], &[Option<u16>]),
        follows: Follows,
        pinned: &BTreeMap<RangeId, u16>,
    ) -> Placement {
        let homes = match &self.planning.plan {
            Some(plan) if follows.plans => place_planned(ring, plan, most),
            _ => place_within(ring, owners, most),
        };
        let mut placed = homes.clone();
        for (range, to) in pinned {
            if let Some(owner) = placed.get_mut(usize::from(*range)) {
                *owner = *to;
            }
        }
        Placement {
            homes: homes.into(),
            placed: placed.into(),
        }
    }

    /// The first member writes the next plan, where loads have been uneven for a while.
    pub(super) fn plan_ahead(&mut self, now: Time, out: &mut Vec<Effect>) {
        let may_plan = self.config.plans && self.planning.is_known && !self.planning.is_writing;
        if !may_plan || now < self.planning.next_read {
            return;
        }
        self.planning.next_read = now + READS_EVERY;
        let Some(ring) = self
            .ranges
            .ring
            .as_ref()
            .filter(|ring| self.plans_for(ring))
        else {
            self.planning.pauses();
            return;
        };
        let members = ring.members().to_vec();
        let (Some(placed), Some(displaced)) = (&self.ranges.placed.0, self.displaced(ring)) else {
            self.planning.displaced = None;
            return;
        };
        let homes = placed.placement.homes.to_vec();
        let mut owners = placed.placement.placed.to_vec();
        if !self.continues_without(now, &displaced) {
            return;
        }
        let unplanned: BTreeMap<RangeId, u16> = displaced
            .iter()
            .copied()
            .filter(|(range, _)| !self.planning.pins.contains_key(range))
            .collect();
        if !unplanned.is_empty() {
            return self.give_up(now, members, homes, unplanned, out);
        }
        for (range, owner) in displaced {
            owners[usize::from(range)] = owner;
        }
        let reported = |range: RangeId, owner: u16| {
            let name = members.get(usize::from(owner));
            let seen = name.and_then(|name| self.members.seen.get(name));
            seen.map_or(0, |seen| load_of(seen.lease.loads.level(range)))
        };
        let mut planner = std::mem::take(&mut self.planning.planner);
        let loads = planner.loads(now, &owners, reported);
        let work = Work {
            members: members.len(),
            owners: &owners,
            loads: &loads,
        };
        self.planning.spread = Some(spread(work));
        let pins = Arc::clone(&self.planning.pins);
        let shift = planner.next(now, &members, work, &|range| pins.contains_key(&range));
        self.planning.planner = planner;
        self.write_plan(now, members, homes, shift, out);
    }

    /// Whether this replica is the one that plans: the first member, where all follow.
    fn plans_for(&self, ring: &Ring) -> bool {
        ring.members().first() == Some(&self.config.name)
            && ring.members().len() > 1
            && self.own.drain_until.is_none()
            && self.followed_by(ring).plans
    }

    /// The ranges that members hold for whom they are not placed, and the indices of these members. `None`
    /// while a range has no member for an owner, is about to be handed over, or slow start bounds a member.
    fn displaced(&self, ring: &Ring) -> Option<Vec<(RangeId, u16)>> {
        let placed = self.ranges.placed.0.as_ref()?;
        if !placed.most.iter().all(Option::is_none) {
            return None;
        }
        let mut displaced = Vec::new();
        for (range, at) in (0..).zip(placed.placement.placed.iter()) {
            let holder = self.ranges.leases.get(&range)?.holder.as_ref()?;
            let owner = ring.members().binary_search(&holder.name).ok()?;
            let owner = u16::try_from(owner).ok()?;
            if !self.is_live(holder) {
                return None;
            }
            if owner != *at {
                displaced.push((range, owner));
            }
        }
        let mut held = self.handoff.held.values();
        let rests = held.all(|held| held.phase == Phase::Serving);
        (rests || !displaced.is_empty()).then_some(displaced)
    }

    /// Whether the next move may be planned: each range is where it is to be, or has not got there for so
    /// long that others do not wait for it.
    fn continues_without(&mut self, now: Time, displaced: &[(RangeId, u16)]) -> bool {
        // Equal numbers are aimed at for as long as it takes: that they are not reached counts for nothing.
        let is_ordered = self.planning.plan.is_some() || !self.planning.pins.is_empty();
        if displaced.is_empty() || !is_ordered {
            self.planning.displaced = None;
            return displaced.is_empty();
        }
        let ranges: Vec<RangeId> = displaced.iter().map(|(range, _)| *range).collect();
        match &self.planning.displaced {
            Some((since, same)) if *same == ranges => now >= *since + GIVEN_UP_AFTER,
            _ => {
                self.planning.displaced = Some((now, ranges));
                false
            }
        }
    }

    /// Has a plan leave ranges with their owners that those for whom they were planned have not taken: one
    /// that is never taken, because its state is too large to be handed over, would hold up every other move.
    /// Equal numbers, which no plan makes, are aimed at all the same.
    fn give_up(
        &mut self,
        now: Time,
        members: Vec<String>,
        mut homes: Vec<u16>,
        unplanned: BTreeMap<RangeId, u16>,
        out: &mut Vec<Effect>,
    ) {
        let is_planned = |plan: &Arc<Plan>| plan.members() == members;
        if !self.planning.plan.as_ref().is_some_and(is_planned) {
            return;
        }
        let ranges = unplanned.keys().copied().collect();
        for (range, owner) in unplanned {
            let home = &mut homes[usize::from(range)];
            if let Some(member) = members.get(usize::from(*home)) {
                let member = member.clone();
                self.planning.planner.saw_no_taker(now, member);
            }
            *home = owner;
        }
        let Ok(plan) = Plan::new(members, homes) else {
            return;
        };
        let number = self.next_number();
        out.push(Effect::Happened(Happening::MovesGivenUp { number, ranges }));
        self.planning.displaced = None;
        self.send_plan(number, plan.to_string(), out);
    }

    /// The number of the next plan.
    fn next_number(&self) -> u64 {
        let before = self.planning.lease.as_ref();
        before.map_or(0, |lease| lease.number) % (NUMBERS - 1) + 1
    }

    fn send_plan(&mut self, number: u64, text: String, out: &mut Vec<Effect>) {
        self.planning.outdated_since = None;
        self.planning.is_writing = true;
        out.push(Effect::WritePlan {
            version: self.planning.lease.as_ref().map(|lease| lease.version),
            lease: PlanLease {
                version: 0,
                number,
                text,
                planner: self.config.name.clone(),
            },
        });
    }

    fn write_plan(
        &mut self,
        now: Time,
        members: Vec<String>,
        mut homes: Vec<u16>,
        shift: Option<Shift>,
        out: &mut Vec<Effect>,
    ) {
        if let Some(shift) = shift {
            homes[usize::from(shift.range)] = shift.to;
        }
        let Ok(plan) = Plan::new(members, homes) else {
            return;
        };
        let name = |at: u16| {
            plan.members()
                .get(usize::from(at))
                .cloned()
                .unwrap_or_default()
        };
        let text = match (&self.planning.plan, shift) {
            (_, Some(_)) => plan.to_string(),
            (None, None) => return,
            // What it says would be so without it.
            (Some(_), None) if plan.is_even() => String::new(),
            (Some(before), None) => {
                let is_current = before.members() == plan.members();
                let since = match is_current {
                    true => None,
                    false => self.planning.outdated_since.or(Some(now)),
                };
                self.planning.outdated_since = since;
                if since.is_none_or(|since| now < since + REWRITTEN_AFTER) {
                    return;
                }
                plan.to_string()
            }
        };
        let number = self.next_number();
        if let Some(Shift { range, from, to }) = shift {
            out.push(Effect::Happened(Happening::Planned {
                number,
                range,
                from: name(from),
                to: name(to),
            }));
        }
        self.send_plan(number, text, out);
    }

    /// What is said of plans and pins.
    pub(super) fn planned(&self) -> Planned {
        let Some(ring) = &self.ranges.ring else {
            return Planned::default();
        };
        let follows = self.followed_by(ring);
        let plans = follows.plans && ring.members().len() > 1;
        Planned {
            followed: follows.plans,
            number: self.planning.lease.as_ref().map_or(0, |lease| lease.number),
            in_force: follows.plans && self.planning.plan.is_some(),
            planner: ring
                .members()
                .first()
                .filter(|_| plans)
                .cloned()
                .unwrap_or_default(),
            spread: self.planning.spread,
            pins: self
                .planning
                .pins
                .iter()
                .map(|(range, Pin { to, .. })| Pinned {
                    range: *range,
                    to: to.clone(),
                    home: self.home_of(*range),
                    counts: follows.pins
                        && *range < self.config.ranges
                        && ring.members().binary_search(to).is_ok(),
                })
                .collect(),
        }
    }
}
