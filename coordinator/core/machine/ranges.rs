//! Range Leases: what they say, what is claimed, and what follows for what is held.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    Core, SHORT_PARTS,
    handoff::{Held, Kept, Phase, swap},
    planning::Placement,
};
use crate::{
    event::{Effect, Happening},
    lease::{
        EPOCH_END, Epoch, Follows, Holder, NoAnswer, RangeId, RangeLease, Time, Version, Written,
        next_epoch,
    },
    mutation::broken,
    reachable::reachable,
    ring::Ring,
};

/// This number of retry periods lies between two lists of the range Leases while nothing calls for one. The
/// watch brings what changes; this is for the day on which it does not.
const RANGES_PERIODS: u32 = 30;

/// The newest placement, and what it was made from beside the ring.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    pub(super) owners: Vec<Option<u16>>,
    pub(super) most: Vec<Option<u16>>,
    pub(super) follows: Follows,
    pub(super) placement: Placement,
}

/// What follows from the rest of a state, kept to save time: no part of it when states are compared.
#[derive(Clone, Debug)]
pub(super) struct Memo<T>(pub(super) Option<T>);

impl<T> Default for Memo<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> PartialEq for Memo<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<T> Eq for Memo<T> {}

impl<T> std::hash::Hash for Memo<T> {
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
}

/// Our name written, or on its way, into a range Lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Claim {
    pub(super) epoch: Epoch,
    pub(super) version: Option<Version>,
    pub(super) from: Option<Holder>,
    /// `None` while an answer is awaited.
    pub(super) retry_at: Option<Time>,
    /// The Lease is there, and no list or watch shows it: somebody has taken its labels away.
    pub(super) hidden: bool,
}

/// A range Lease whose epoch no replica can have written. It is deleted on its version; then the range has no
/// Lease, which the usual rules repair.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Damaged {
    pub(super) version: Version,
    pub(super) epoch: Epoch,
    /// When the deletion is due; `None` while its answer is awaited.
    pub(super) delete_at: Option<Time>,
}

/// The range Leases as they were seen, and what is on its way to them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Ranges {
    pub(super) leases: BTreeMap<RangeId, RangeLease>,
    /// Of deleted Leases: an older version that comes later counts for nothing.
    pub(super) ends: BTreeMap<RangeId, Version>,
    /// The highest epoch seen of each range.
    pub(super) highest: BTreeMap<RangeId, Epoch>,
    /// Range Leases with an impossible epoch; they are not in `leases`.
    pub(super) damaged: BTreeMap<RangeId, Damaged>,
    /// The newest list of all range Leases was started then.
    pub(super) read: Option<Time>,
    pub(super) reading: bool,
    pub(super) next_read: Time,
    /// Everything that happened to range Leases up to this version has been seen.
    pub(super) as_of: Version,
    pub(super) claims: BTreeMap<RangeId, Claim>,
    /// A claim has just failed: the range is not claimed again before then.
    pub(super) claim_pauses: BTreeMap<RangeId, Time>,
    pub(super) ring: Option<Ring>,
    pub(super) placed: Memo<Placed>,
}

impl Ranges {
    /// A list had no answer: the next is due then.
    pub(super) fn failed(&mut self, retry_at: Time) {
        self.reading = false;
        self.next_read = retry_at;
    }

    pub(super) fn wakes(&self, mut sooner: impl FnMut(Time)) {
        sooner(self.next_read);
        self.claim_pauses.values().copied().for_each(&mut sooner);
        let damaged = self.damaged.values();
        damaged
            .filter_map(|damaged| damaged.delete_at)
            .for_each(&mut sooner);
        let claims = self.claims.values();
        claims
            .filter_map(|claim| claim.retry_at)
            .for_each(&mut sooner);
    }
}

impl Core {
    /// A list of all range Leases that was started then, as of this version.
    pub(super) fn ranges_read(
        &mut self,
        now: Time,
        started: Time,
        version: Version,
        leases: Vec<RangeLease>,
    ) {
        self.ranges.reading = false;
        self.ranges.next_read = now + self.config.retry_period * RANGES_PERIODS;
        self.ranges.read = self.ranges.read.max(Some(started));
        self.ranges.as_of = self.ranges.as_of.max(version);
        let listed: BTreeSet<RangeId> = leases.iter().map(|lease| lease.range).collect();
        for lease in leases {
            self.see_range(lease);
        }
        let gone = |lease: &RangeLease| !listed.contains(&lease.range) && lease.version <= version;
        let known = self.ranges.leases.values();
        let gone: Vec<RangeId> = known
            .filter(|lease| gone(lease))
            .map(|lease| lease.range)
            .collect();
        for range in gone {
            self.ranges.leases.remove(&range);
            self.ask_again(range);
        }
        let damaged = &mut self.ranges.damaged;
        damaged.retain(|range, lease| listed.contains(range) || lease.version > version);
        self.ranges.ends.retain(|_, end| *end > version);
    }

    /// A range Lease of at most this version was deleted.
    pub(super) fn range_deleted(&mut self, range: RangeId, version: Version) {
        if range >= self.config.ranges {
            return;
        }
        self.ask_again(range);
        self.ranges.ends.insert(range, version);
        let lease = self.ranges.leases.get(&range);
        if lease.is_some_and(|lease| lease.version <= version) {
            self.ranges.leases.remove(&range);
        }
        let damaged = self.ranges.damaged.get(&range);
        if damaged.is_some_and(|damaged| damaged.version <= version) {
            self.ranges.damaged.remove(&range);
        }
    }

    pub(super) fn see_range(&mut self, lease: RangeLease) {
        let RangeLease {
            range,
            version,
            epoch,
            ..
        } = lease;
        if range >= self.config.ranges
            || self
                .ranges
                .leases
                .get(&range)
                .is_some_and(|before| before.version >= version)
            || self
                .ranges
                .damaged
                .get(&range)
                .is_some_and(|before| before.version >= version)
            || self
                .ranges
                .ends
                .get(&range)
                .is_some_and(|end| *end >= version)
        {
            return;
        }
        self.ranges.ends.remove(&range);
        self.ask_again(range);
        if epoch >= EPOCH_END && !broken!(BelievesAnyEpoch) {
            self.ranges.leases.remove(&range);
            reachable!(LeaseDamaged);
            let damaged = Damaged {
                version,
                epoch,
                delete_at: Some(Time::ZERO),
            };
            self.ranges.damaged.insert(range, damaged);
            return;
        }
        self.ranges.damaged.remove(&range);
        self.raise(range, epoch);
        self.ranges.leases.insert(range, lease);
    }

    /// Remembers an epoch that was seen. One that no replica can have written, by hand or from a peer, counts
    /// for nothing.
    pub(super) fn raise(&mut self, range: RangeId, epoch: Epoch) {
        if epoch < EPOCH_END || broken!(BelievesAnyEpoch) {
            let highest = self.ranges.highest.entry(range).or_insert(0);
            *highest = epoch.max(*highest);
        }
    }

    /// What came of deleting a range Lease on its version: deleted, or another version was there or nothing,
    /// or no answer.
    pub(super) fn deletion_ended(
        &mut self,
        now: Time,
        range: RangeId,
        version: Version,
        result: Result<bool, NoAnswer>,
    ) {
        let same = self
            .ranges
            .damaged
            .get(&range)
            .is_some_and(|damaged| damaged.version == version);
        if !same {
            return;
        }
        match result {
            Ok(true) => {
                reachable!(DamagedDeleted);
                self.ranges.damaged.remove(&range);
                let end = self.ranges.ends.entry(range).or_insert(0);
                *end = version.max(*end);
            }
            Ok(false) | Err(NoAnswer) => {
                reachable!(DamagedDeletionFailed);
                if let Some(damaged) = self.ranges.damaged.get_mut(&range) {
                    damaged.delete_at = Some(now + self.config.retry_period);
                }
                self.ranges.next_read = self.ranges.next_read.min(now + self.config.retry_period);
            }
        }
    }

    pub(super) fn claim_ended(&mut self, now: Time, range: RangeId, result: Written<RangeLease>) {
        let retry_at = now + self.config.retry_period;
        match result {
            Written::Done(lease) | Written::Conflict(Some(lease)) => {
                let (version, epoch) = (lease.version, lease.epoch);
                if self.is_hidden(&lease) {
                    self.raise(range, epoch);
                } else {
                    self.see_range(lease);
                }
                let me = self.me();
                match (
                    self.ranges.claims.get_mut(&range),
                    self.ranges.leases.get(&range),
                ) {
                    // A conflict may be with our own write that had no answer; if it is another's, ours is
                    // over.
                    (Some(claim), Some(lease))
                        if lease.epoch != claim.epoch || lease.holder != me =>
                    {
                        reachable!(ClaimLost);
                        self.give_up_the_claim(now, range);
                    }
                    (Some(_), None) if self.ranges.damaged.contains_key(&range) => {
                        self.give_up_the_claim(now, range);
                    }
                    // It was to be made, and is there at a version at which no list or watch shows it.
                    (Some(claim), None) => {
                        reachable!(ClaimHidden);
                        claim.hidden = true;
                        claim.version = Some(version);
                        if epoch < EPOCH_END {
                            claim.epoch = claim.epoch.max(next_epoch(epoch));
                        }
                        claim.retry_at = Some(retry_at);
                    }
                    _ => {}
                }
            }
            Written::Conflict(None) => {
                reachable!(ClaimedLeaseDeleted);
                self.ranges.leases.remove(&range);
                self.ranges.damaged.remove(&range);
                self.give_up_the_claim(now, range);
            }
            Written::Unknown if broken!(ForgetsUnansweredClaims) => {}
            Written::Unknown => {
                reachable!(ClaimUnanswered);
                if let Some(claim) = self.ranges.claims.get_mut(&range) {
                    claim.retry_at = Some(retry_at);
                }
            }
        }
    }

    /// Whether a Lease that was read by its name is of a version that lists and watches have passed without
    /// showing it.
    fn is_hidden(&self, lease: &RangeLease) -> bool {
        lease.version <= self.ranges.as_of
            && !self.ranges.leases.contains_key(&lease.range)
            && !self.ranges.damaged.contains_key(&lease.range)
    }

    /// A claim that did not make the range ours is not repeated at once: the obstacle may still be there.
    fn give_up_the_claim(&mut self, now: Time, range: RangeId) {
        if self.ranges.claims.remove(&range).is_some() {
            self.ranges
                .claim_pauses
                .insert(range, now + self.config.retry_period);
        }
    }

    pub(super) fn may_claim(&self, now: Time, range: RangeId) -> bool {
        !self.ranges.damaged.contains_key(&range)
            && !self.ranges.claims.contains_key(&range)
            && self
                .ranges
                .claim_pauses
                .get(&range)
                .is_none_or(|at| *at <= now)
    }

    /// Orphans wait for the watch to pass their owner's end. If it takes its time, a list does it.
    pub(super) fn read_ranges_if_the_watch_lags(&mut self, now: Time, out: &mut Vec<Effect>) {
        let grace = self.config.retry_period / SHORT_PARTS;
        let lags = self
            .takeover
            .ended
            .values()
            .any(|(version, since)| *version > self.ranges.as_of && *since + grace <= now);
        if lags && self.ranges.next_read > now + self.config.retry_period {
            reachable!(ViewLagsBehindAnEnd);
            self.ranges.next_read = now;
            self.read_on_time(now, out);
        }
    }

    /// Compares what is held with what the Leases say.
    pub(super) fn settle_claims(&mut self, now: Time, out: &mut Vec<Effect>) {
        if self.own.left || self.ranges.read.is_none() {
            return;
        }
        let Some(me) = self.me() else { return };
        for range in 0..self.config.ranges {
            let mine = self
                .ranges
                .leases
                .get(&range)
                .filter(|lease| lease.holder.as_ref() == Some(&me));
            let held = self.handoff.held.get(&range);
            if mine.map(|lease| lease.epoch) == held.map(|held| held.epoch)
                && !self.ranges.claims.contains_key(&range)
            {
                // As it should be: ours on both sides, or on neither.
                continue;
            }
            match (self.ranges.leases.get(&range).cloned(), held.cloned()) {
                (Some(lease), Some(held)) if lease.holder.as_ref() == Some(&me) => {
                    if lease.epoch == held.epoch {
                        continue;
                    }
                    if lease.epoch < held.epoch {
                        // Edited by hand. Epochs never fall: write a higher one.
                        reachable!(EpochFell);
                        self.claim(now, range, Some(lease.version), Some(me.clone()), out);
                    } else {
                        reachable!(EpochRose);
                        self.let_go(range, out);
                        self.gain(range, lease.epoch, Some(me.clone()), out);
                    }
                }
                (Some(lease), None) if lease.holder.as_ref() == Some(&me) => {
                    let claimed = self
                        .ranges
                        .claims
                        .get(&range)
                        .filter(|claim| claim.epoch == lease.epoch)
                        .cloned();
                    if let Some(claim) = claimed {
                        self.gain(range, lease.epoch, claim.from, out);
                    } else if self
                        .handoff
                        .kept
                        .get(&range)
                        .is_some_and(|kept| kept.epoch == lease.epoch)
                    {
                        self.receive(range, out);
                    }
                    // Else the Lease names us and nobody knows why: `inquire` sees to it.
                }
                // The swap may have landed before the Lease went: the receiver may own the range by now.
                (
                    None,
                    Some(Held {
                        phase: Phase::Swapping { .. },
                        ..
                    }),
                ) => {
                    reachable!(SwappingLeaseGone);
                    self.deprived(range, None, out);
                }
                (None, Some(_)) => {
                    reachable!(HeldLeaseGone);
                    self.claim(now, range, None, Some(me.clone()), out);
                }
                (Some(lease), Some(held)) => {
                    match held.phase {
                        Phase::Swapping {
                            to,
                            with_state: false,
                            ..
                        } if lease.holder.as_ref() == Some(&to) => {
                            reachable!(Relinquished);
                            self.let_go(range, out);
                            let epoch = lease.epoch;
                            out.push(Effect::Happened(Happening::Relinquished {
                                range,
                                epoch,
                                to,
                            }));
                        }
                        Phase::Swapping { to, since, .. } if lease.holder.as_ref() == Some(&to) => {
                            let took = now.saturating_sub(since);
                            let epoch = lease.epoch;
                            self.let_go(range, out);
                            if let Some(seen) = self.members.seen.get(&to.name) {
                                let address = seen.lease.status.address.clone();
                                out.push(Effect::AnnounceSwap {
                                    range,
                                    epoch,
                                    to: to.clone(),
                                    address,
                                });
                            }
                            out.push(Effect::Happened(Happening::HandedOver {
                                range,
                                epoch,
                                to,
                                took,
                            }));
                        }
                        _ if broken!(NewLifeKeepsRanges) => {}
                        _ => {
                            reachable!(Deprived);
                            self.deprived(range, lease.holder.clone(), out);
                        }
                    }
                    self.ranges.claims.remove(&range);
                }
                (lease, None) => {
                    let version = lease.map(|lease| lease.version);
                    let overtaken = |claim: &Claim| {
                        claim.retry_at.is_some() && claim.version != version && !claim.hidden
                    };
                    if self.ranges.claims.get(&range).is_some_and(overtaken) {
                        reachable!(ClaimOvertaken);
                        self.give_up_the_claim(now, range);
                    }
                }
            }
        }
    }

    fn let_go(&mut self, range: RangeId, out: &mut Vec<Effect>) {
        self.handoff.held.remove(&range);
        self.handoff.put_off.remove(&range);
        self.handoff.oversized.remove(&range);
        out.push(Effect::Lost(range));
    }

    fn gain(&mut self, range: RangeId, epoch: Epoch, from: Option<Holder>, out: &mut Vec<Effect>) {
        if self.handoff.kept.remove(&range).is_some() {
            out.push(Effect::Forget(range));
        }
        self.serve(range, epoch, false, out);
        out.push(Effect::Happened(Happening::TookOver { range, epoch, from }));
    }

    pub(super) fn receive(&mut self, range: RangeId, out: &mut Vec<Effect>) {
        if let Some(Kept { from, epoch, .. }) = self.handoff.kept.remove(&range) {
            self.serve(range, epoch, true, out);
            out.push(Effect::Happened(Happening::Received { range, epoch, from }));
        }
    }

    /// The range is held here from now on; `kept` with the state that the owner before handed over.
    fn serve(&mut self, range: RangeId, epoch: Epoch, kept: bool, out: &mut Vec<Effect>) {
        self.ranges.claims.remove(&range);
        let phase = Phase::Serving;
        self.handoff.held.insert(range, Held { epoch, phase });
        out.push(Effect::Gained { range, epoch, kept });
    }

    /// Lets go of a range that was not handed over.
    pub(super) fn deprived(&mut self, range: RangeId, by: Option<Holder>, out: &mut Vec<Effect>) {
        if let Some(epoch) = self.handoff.held.get(&range).map(|held| held.epoch) {
            self.let_go(range, out);
            out.push(Effect::Happened(Happening::Deprived { range, epoch, by }));
        }
    }

    /// Writes our name, above every epoch seen. What was kept for the range is void: the one who sent it may
    /// have gone on. Behind a closed fence the claim waits until it opens. Nothing happens while a claim is
    /// under way, shortly after one has failed, and where a damaged Lease has to be deleted first.
    pub(super) fn claim(
        &mut self,
        now: Time,
        range: RangeId,
        version: Option<Version>,
        from: Option<Holder>,
        out: &mut Vec<Effect>,
    ) {
        if !self.may_claim(now, range) {
            return;
        }
        self.ranges.claim_pauses.remove(&range);
        if self.handoff.kept.remove(&range).is_some() {
            out.push(Effect::Forget(range));
        }
        let highest = self.ranges.highest.get(&range).copied().unwrap_or(0);
        let epoch = match broken!(EpochStays) {
            true => highest,
            false => next_epoch(highest),
        };
        let open = self.is_open(now);
        self.ranges.claims.insert(
            range,
            Claim {
                epoch,
                version,
                from,
                retry_at: (!open).then_some(now),
                hidden: false,
            },
        );
        if open {
            out.push(self.claim_effect(range, epoch, version));
        }
    }

    fn claim_effect(&self, range: RangeId, epoch: Epoch, version: Option<Version>) -> Effect {
        Effect::Claim {
            version,
            lease: RangeLease {
                range,
                version: 0,
                holder: self.me(),
                epoch,
                dead: self.dead_owners(range),
            },
        }
    }

    pub(super) fn open_the_fence_after_reading(&mut self, now: Time, out: &mut Vec<Effect>) {
        if self.is_open(now) || self.own.left {
            return;
        }
        let Some(regained) = self.own.lease.as_ref().and_then(|own| own.regained.clone()) else {
            return;
        };
        if self.ranges.read.is_some_and(|read| read >= regained.seen) {
            out.push(Effect::Reopen(regained));
        } else if !self.ranges.reading && self.ranges.next_read > now {
            // After a failure the pause is kept; anything else is read at once.
            if self.ranges.next_read > now + self.config.retry_period {
                self.ranges.next_read = now;
                self.read_on_time(now, out);
            }
        }
    }

    /// Not behind a closed fence: what is sent then may land after others have called this replica dead.
    pub(super) fn retry_what_had_no_answer(&mut self, now: Time, out: &mut Vec<Effect>) {
        if self.own.left || !(self.is_open(now) || broken!(RetriesBehindAClosedFence)) {
            return;
        }
        let due: Vec<RangeId> = self
            .ranges
            .claims
            .iter()
            .filter(|(_, claim)| claim.retry_at.is_some_and(|at| at <= now))
            .map(|(range, _)| *range)
            .collect();
        for range in due {
            if let Some(claim) = self.ranges.claims.get_mut(&range) {
                reachable!(ClaimSentAgain);
                claim.retry_at = None;
                let (epoch, version) = (claim.epoch, claim.version);
                out.push(self.claim_effect(range, epoch, version));
            }
        }
        let me = self.me();
        for (range, held) in &mut self.handoff.held {
            if let Phase::Swapping {
                to,
                retry_at,
                with_state,
                ..
            } = &mut held.phase
                && retry_at.is_some_and(|at| at <= now)
                && let Some(lease) = self
                    .ranges
                    .leases
                    .get(range)
                    .filter(|lease| lease.holder == me)
            {
                *retry_at = None;
                out.push(swap(lease, to.clone(), *with_state));
            }
        }
    }

    /// Who should own what, as this replica sees it; `None` while it may not act on it.
    pub(super) fn placement(&mut self, now: Time) -> Option<Arc<[u16]>> {
        if self.ranges.read.is_none() || !self.members.known {
            return None;
        }
        self.forget_who_is_home(now);
        let names = self.member_names();
        if self
            .ranges
            .ring
            .as_ref()
            .is_none_or(|ring| !ring.members().iter().eq(names.iter()))
        {
            self.ranges.ring = Some(Ring::new(names, self.config.ranges));
            self.ranges.placed = Memo::default();
        }
        let ring = self.ranges.ring.as_ref()?;
        if ring.members().is_empty() || (self.is_cold() && !self.is_settled(now)) {
            return None;
        }
        let index: BTreeMap<&str, u16> = (0..)
            .zip(ring.members())
            .map(|(at, name)| (name.as_str(), at))
            .collect();
        let of = |holder: &Holder| {
            let current = self.is_live(holder);
            current
                .then(|| index.get(holder.name.as_str()).copied())
                .flatten()
        };
        let me = self.me();
        let follows = self.followed_by(ring);
        let pinned = self.pinned(ring, follows);
        let mut owners: Vec<Option<u16>> = (0..self.config.ranges)
            .map(|range| {
                let moving = self
                    .handoff
                    .held
                    .get(&range)
                    .and_then(|held| held.phase.target());
                let claimed = me
                    .as_ref()
                    .filter(|_| self.ranges.claims.contains_key(&range));
                let of_lease = || self.ranges.leases.get(&range)?.holder.as_ref();
                moving.or(claimed).or_else(of_lease).and_then(of)
            })
            .collect();
        self.count_at_home(ring, &pinned, &mut owners);
        let share = |name: &String| self.members.seen.get(name)?.lease.status.share;
        let most: Vec<Option<u16>> = ring.members().iter().map(share).collect();
        if let Some(before) = &self.ranges.placed.0
            && before.owners == owners
            && (&before.most, before.follows) == (&most, follows)
        {
            return Some(Arc::clone(&before.placement.placed));
        }
        let placement = self.place(ring, (&owners, &most), follows, &pinned);
        let placed = Arc::clone(&placement.placed);
        self.ranges.placed = Memo(Some(Placed {
            owners,
            most,
            follows,
            placement,
        }));
        Some(placed)
    }

    pub(super) fn is_placed_here(&self, range: RangeId, placed: Option<&[u16]>) -> bool {
        let (Some(placed), Some(ring)) = (placed, &self.ranges.ring) else {
            return false;
        };
        placed
            .get(usize::from(range))
            .and_then(|at| ring.members().get(usize::from(*at)))
            == Some(&self.config.name)
    }

    /// Nobody alive owns anything.
    fn is_cold(&self) -> bool {
        self.handoff.held.is_empty()
            && !self.ranges.leases.values().any(|lease| {
                lease
                    .holder
                    .as_ref()
                    .is_some_and(|holder| self.is_live(holder))
            })
    }

    /// A Lease with an impossible epoch is deleted on its version by the replica that holds its range or is
    /// to have it. Afterwards the range has no Lease, as if a hand had deleted it.
    pub(super) fn delete_the_damaged(
        &mut self,
        now: Time,
        placed: Option<&[u16]>,
        out: &mut Vec<Effect>,
    ) {
        let due: Vec<RangeId> = self
            .ranges
            .damaged
            .iter()
            .filter(|(range, damaged)| {
                damaged.delete_at.is_some_and(|at| at <= now)
                    && (self.handoff.held.contains_key(range)
                        || self.is_placed_here(**range, placed))
            })
            .map(|(range, _)| *range)
            .collect();
        for range in due {
            if let Some(damaged) = self.ranges.damaged.get_mut(&range) {
                damaged.delete_at = None;
                let (version, epoch) = (damaged.version, damaged.epoch);
                out.push(Effect::DeleteRange { range, version });
                out.push(Effect::Happened(Happening::Damaged { range, epoch }));
            }
        }
    }

    /// As if this replica had claimed the range under this epoch and waited for the answer.
    #[cfg(test)]
    pub(crate) fn seed_claim(&mut self, range: RangeId, epoch: Epoch) {
        self.ranges.claims.insert(
            range,
            Claim {
                epoch,
                version: None,
                from: None,
                retry_at: None,
                hidden: false,
            },
        );
    }
}
