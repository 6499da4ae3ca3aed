//! The end of other replicas: who is silent, proven to have ended or gone, and what is done about it before
//! anything of theirs is taken.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{Config, Core, SHORT_PARTS, members::Seen};
use crate::{
    deaths::{Deaths, Quarantine, with_dead_owner},
    event::{Effect, Happening},
    lease::{Holder, RangeId, ReplicaLease, Time, Version, Written},
    mutation::broken,
    reachable::reachable,
    renewal::RENEWALS_OF_THE_LIVING,
};

/// Who has not renewed for a retry period and this part of another is late: it may have ended.
const LATE_PARTS: u32 = 3;

/// Between two questions whether it has lies this part of a retry period …
const POD_PARTS: u32 = 4;

/// … and this number of members ask: one that hears of the end is enough, and a fleet of 50 is not to ask at
/// once.
const POD_READERS_MAX: usize = 3;

/// Pods that one member asks for in a while. Where more replicas than this are late at once, it is no crash
/// of a process but a zone or a network.
const PODS_ASKED_MAX: usize = 8;

/// An eviction on its way. The watch may bring what it wrote before its answer comes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Evicting {
    pub(super) holder: Holder,
    /// Since when the holder was silent.
    pub(super) since: Time,
    /// Its process was proven to have ended.
    pub(super) proven: bool,
    /// Far away while an answer is awaited.
    pub(super) retry_at: Time,
}

/// Something else than silence says that a replica's process has ended.
///
/// It does not make the process dead at once: what it had sent may still be executed. That wait also finds
/// out proofs that are none, since a process that runs renews its Lease meanwhile.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct DeathProof {
    pub(super) since: Time,
    /// The version of the replica's Lease then.
    pub(super) version: Version,
}

/// Replicas that have ended or may have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Takeover {
    /// Named by a range Lease and known to have ended: at which version of its replica Lease this was seen
    /// first, and when. Its last handoffs may be on their way to us: they count before its ranges are called
    /// orphans.
    pub(super) ended: BTreeMap<Holder, (Version, Time)>,
    /// Named by a range Lease, not known to have ended, not in its replica Lease: since when.
    pub(super) unproven: BTreeMap<Holder, Time>,
    /// The dead among both, whom the API server was asked to refuse: whether it has been answered.
    pub(super) barred: BTreeMap<Holder, bool>,
    /// Lost its replica Lease otherwise than by compare-and-swap: it may live on and hold what no Lease shows
    /// any more. Nothing without a Lease is taken until they have had a lease duration to notice.
    pub(super) vanished: BTreeMap<Holder, Time>,
    /// Holders of whom something else than silence says that they have ended.
    pub(super) proven_dead: BTreeMap<Holder, DeathProof>,
    /// Those whose Lease changed after that, how often. A renewal may have been under way when the process
    /// ended: it is asked for again. With the second one it is alive, and no proof counts.
    pub(super) disproven: BTreeMap<Holder, u32>,
    /// Holders that are late, whose pods were asked for: when the next question is due, `None` while an
    /// answer is awaited.
    pub(super) pods_asked: BTreeMap<Holder, Option<Time>>,
    pub(super) evicting: BTreeMap<String, Evicting>,
}

impl Takeover {
    /// Nobody who was a member is gone or was said to be.
    pub(super) fn is_empty(&self) -> bool {
        self.ended.is_empty()
            && self.unproven.is_empty()
            && self.vanished.is_empty()
            && self.proven_dead.is_empty()
            && self.pods_asked.is_empty()
            && self.evicting.is_empty()
    }

    pub(super) fn wakes(&self, config: &Config, mut sooner: impl FnMut(Time)) {
        let asked = self.pods_asked.values().flatten();
        asked.copied().for_each(&mut sooner);
        for proof in self.proven_dead.values() {
            sooner(proof.since + config.late_write_max);
        }
        let grace = config.retry_period / SHORT_PARTS;
        for (_, since) in self.ended.values() {
            sooner(*since + grace);
        }
        for since in self.vanished.values().chain(self.unproven.values()) {
            sooner(*since + config.lease_duration);
        }
        for evicting in self.evicting.values() {
            sooner(evicting.retry_at);
        }
    }
}

impl Core {
    pub(super) fn eviction_ended(
        &mut self,
        now: Time,
        name: &str,
        result: Written<ReplicaLease>,
        out: &mut Vec<Effect>,
    ) {
        match result {
            Written::Done(lease) => {
                let evicted = self.takeover.evicting.remove(name);
                self.see_replica(now, lease);
                if let Some(Evicting {
                    holder,
                    since,
                    proven,
                    ..
                }) = evicted
                {
                    match proven {
                        true => reachable!(EvictedProven),
                        false => reachable!(EvictedSilent),
                    }
                    out.push(Effect::Happened(Happening::Evicted {
                        holder,
                        silent: now.saturating_sub(since),
                        proven,
                    }));
                }
            }
            Written::Conflict(lease) => {
                reachable!(EvictionLost);
                self.takeover.evicting.remove(name);
                match lease {
                    Some(lease) if broken!(LostEvictionCounts) => {
                        self.see_replica(now, lease.vacated());
                    }
                    Some(lease) => self.see_replica(now, lease),
                    None => self.replica_is_gone(now, name),
                }
            }
            Written::Unknown if broken!(ForgetsUnansweredEvictions) => {}
            Written::Unknown => {
                reachable!(EvictionUnanswered);
                if let Some(evicting) = self.takeover.evicting.get_mut(name) {
                    evicting.retry_at = now + self.config.retry_period;
                }
            }
        }
    }

    /// A kubelet or a lock says that the holder's process has ended.
    pub(super) fn proof_of_death(&mut self, now: Time, holder: Holder) {
        // Of a Lease that has changed since it was asked for, it says nothing.
        let asked = self.takeover.pods_asked.remove(&holder) == Some(None);
        let patience = late_after(&self.config);
        let is_late = |seen: &Seen| now.saturating_sub(seen.since) >= patience;
        let version = match self.members.seen.get(&holder.name) {
            Some(seen) if asked && seen.holds(&holder) && is_late(seen) => seen.lease.version,
            _ => return,
        };
        if !self.is_proven_alive(&holder) {
            let since = now;
            let proof = DeathProof { since, version };
            self.takeover.proven_dead.entry(holder).or_insert(proof);
        }
    }

    /// Nothing says so: it is asked for again.
    pub(super) fn no_proof_of_death(&mut self, now: Time, holder: &Holder) {
        if let Some(asked) = self.takeover.pods_asked.get_mut(holder) {
            *asked = Some(now + self.config.retry_period / POD_PARTS);
        }
    }

    /// Drops proofs of death whose holders are gone, and those whose holders live on.
    pub(super) fn weigh_the_proofs(&mut self, out: &mut Vec<Effect>) {
        let replicas = &self.members.seen;
        let seen = |holder: &Holder| {
            let seen = replicas.get(&holder.name);
            seen.filter(|seen| seen.holds(holder))
        };
        self.takeover
            .disproven
            .retain(|holder, _| seen(holder).is_some());
        self.takeover
            .pods_asked
            .retain(|holder, _| seen(holder).is_some());
        let disproven = &mut self.takeover.disproven;
        self.takeover.proven_dead.retain(|holder, proof| {
            let Some(seen) = seen(holder) else {
                return false;
            };
            let is_same = seen.lease.version == proof.version || broken!(RenewalsDisproveNothing);
            if !is_same {
                reachable!(RenewedAfterItsEnd);
                let renewals = disproven.entry(holder.clone()).or_insert(0);
                *renewals += 1;
                if *renewals == RENEWALS_OF_THE_LIVING {
                    reachable!(ProofWasFalse);
                    let holder = holder.clone();
                    out.push(Effect::Happened(Happening::FalseProof { holder }));
                }
            }
            is_same
        });
    }

    fn is_proven_alive(&self, holder: &Holder) -> bool {
        let renewals = self.takeover.disproven.get(holder);
        renewals.is_some_and(|renewals| *renewals >= RENEWALS_OF_THE_LIVING)
    }

    /// Whether a holder that is proven to have ended can have nothing executed any more.
    fn is_proven_dead(&self, now: Time, holder: &Holder) -> bool {
        self.takeover.proven_dead.get(holder).is_some_and(|proof| {
            now >= proof.since + self.config.late_write_max || broken!(ProofCountsAtOnce)
        })
    }

    /// Who is late to renew may have ended, and the kubelet knows: the first members by name ask, again and
    /// again, until the Lease is renewed or evicted.
    pub(super) fn ask_pods_of_the_late(&mut self, now: Time, out: &mut Vec<Effect>) {
        let (me, patience) = (&self.config.name, late_after(&self.config));
        let is_late =
            |name: &String, seen: &Seen| name != me && now.saturating_sub(seen.since) >= patience;
        if self.takeover.pods_asked.is_empty()
            && !self
                .members
                .seen
                .iter()
                .any(|(name, seen)| is_late(name, seen))
        {
            return;
        }
        let in_time = self
            .members
            .seen
            .iter()
            .filter(|(name, seen)| seen.lease.incarnation.is_some() && !is_late(name, seen));
        let reads =
            self.reads_good(now) && in_time.take(POD_READERS_MAX).any(|(name, _)| name == me);
        let known = |holder: &Holder| {
            self.takeover.proven_dead.contains_key(holder) || self.is_proven_alive(holder)
        };
        let holders = self.members.seen.iter().filter_map(|(name, seen)| {
            let holder = seen.lease.holder().filter(|holder| !known(holder))?;
            Some((name, seen, holder))
        });
        let holders: Vec<_> = holders.collect();
        for (name, seen, holder) in holders {
            let pod = &seen.lease.status.pod;
            let waits = match self.takeover.pods_asked.get(&holder) {
                None => self.takeover.pods_asked.len() >= PODS_ASKED_MAX,
                Some(due) => due.is_none_or(|due| due > now),
            };
            if !is_late(name, seen) {
                // An answer that is on its way finds nothing to put off.
                self.takeover.pods_asked.remove(&holder);
            } else if reads && !pod.is_empty() && !waits {
                self.takeover.pods_asked.insert(holder.clone(), None);
                let pod = Arc::clone(pod);
                out.push(Effect::AskPod { holder, pod });
            }
        }
    }

    pub(super) fn evict_the_silent(&mut self, now: Time, out: &mut Vec<Effect>) {
        let reads_good = self.reads_good(now);
        for (name, seen) in &self.members.seen {
            let Some(holder) = seen.lease.holder() else {
                continue;
            };
            let patience = if broken!(SilenceIsCutShort) {
                self.config.retry_period * 2
            } else {
                self.config.lease_duration
            };
            let silent = reads_good && now.saturating_sub(seen.since) >= patience;
            let waits = self
                .takeover
                .evicting
                .get(name)
                .is_some_and(|evicting| evicting.retry_at > now);
            let proven = self.is_proven_dead(now, &holder);
            if *name != self.config.name && (silent || proven) && !waits {
                let evicting = Evicting {
                    holder,
                    since: seen.since,
                    proven,
                    retry_at: Time::MAX,
                };
                self.takeover.evicting.insert(name.clone(), evicting);
                let second = self.config.records_deaths.then(|| self.second(now));
                out.push(Effect::Evict(seen.lease.evicted(second)));
            }
        }
    }

    /// Once an owner is dead and before anything of it is taken, the API server is asked to refuse what it
    /// may still send: no clock stops a process that stood still between its last check and the send.
    pub(super) fn bar_the_dead(&mut self, now: Time, out: &mut Vec<Effect>) {
        if !self.config.bars {
            return;
        }
        let (ended, unproven) = (&self.takeover.ended, &self.takeover.unproven);
        self.takeover
            .barred
            .retain(|holder, _| ended.contains_key(holder) || unproven.contains_key(holder));
        let waited = unproven.keys().filter(|holder| self.is_dead(now, holder));
        let dead: Vec<Holder> = ended
            .keys()
            .chain(waited)
            .filter(|holder| !self.takeover.barred.contains_key(*holder))
            .cloned()
            .collect();
        for holder in dead {
            self.takeover.barred.insert(holder.clone(), false);
            let fenced = self.members.seen.get(&holder.name).is_some_and(|seen| {
                // A vacated Lease keeps what its last holder said.
                let lease = &seen.lease;
                let last = lease.incarnation.as_ref().or(lease.ended.last());
                last == Some(&holder.incarnation) && lease.status.server_fenced
            });
            out.push(Effect::Bar { holder, fenced });
        }
    }

    fn is_barred(&self, holder: &Holder) -> bool {
        !self.config.bars
            || self.takeover.barred.get(holder) == Some(&true)
            || broken!(TakesBeforeBarring)
    }

    /// It lost its replica Lease by compare-and-swap.
    fn has_ended(&self, holder: &Holder) -> bool {
        !self.is_me(holder)
            && self
                .members
                .seen
                .get(&holder.name)
                .is_some_and(|seen| seen.lease.ended.contains(&holder.incarnation))
    }

    pub(super) fn is_dead(&self, now: Time, holder: &Holder) -> bool {
        let waited = |since: &Time| now.saturating_sub(*since) >= self.config.lease_duration;
        let ended = self.takeover.ended.get(holder).is_some_and(|(version, _)| {
            *version <= self.ranges.as_of || broken!(TakesBeforeTheViewHasPassed)
        });
        let waited = |since: &Time| waited(since) || broken!(UnprovenCountAsDead);
        !self.is_live(holder)
            && (ended
                || (self.reads_good(now) && self.takeover.unproven.get(holder).is_some_and(waited)))
    }

    /// Owners by some range Lease of whom no replica Lease speaks: counts how long that has been so.
    pub(super) fn watch_the_unproven(&mut self, now: Time) {
        let (mut unproven, mut ended) = (BTreeMap::new(), BTreeMap::new());
        for holder in self
            .ranges
            .leases
            .values()
            .filter_map(|lease| lease.holder.as_ref())
        {
            if self.is_live(holder) || unproven.contains_key(holder) || ended.contains_key(holder) {
                continue;
            }
            if self.has_ended(holder) {
                let version = self
                    .members
                    .seen
                    .get(&holder.name)
                    .map_or(0, |seen| seen.lease.version);
                ended.insert(
                    holder.clone(),
                    self.takeover
                        .ended
                        .get(holder)
                        .copied()
                        .unwrap_or((version, now)),
                );
            } else {
                unproven.insert(
                    holder.clone(),
                    self.takeover.unproven.get(holder).copied().unwrap_or(now),
                );
            }
        }
        self.takeover.unproven = unproven;
        self.takeover.ended = ended;
    }

    pub(super) fn take_orphans(
        &mut self,
        now: Time,
        placed: Option<&[u16]>,
        out: &mut Vec<Effect>,
    ) {
        let orphans: Vec<(RangeId, Version, Holder)> = self
            .ranges
            .leases
            .values()
            .filter(|lease| self.is_placed_here(lease.range, placed))
            .filter(|lease| {
                !self.handoff.held.contains_key(&lease.range)
                    && !self.ranges.claims.contains_key(&lease.range)
            })
            .filter_map(|lease| Some((lease.range, lease.version, lease.holder.clone()?)))
            .filter(|(_, _, holder)| self.is_dead(now, holder) && self.is_barred(holder))
            .collect();
        for (range, version, holder) in orphans {
            if self.takeover.unproven.contains_key(&holder) {
                reachable!(UnprovenTaken);
            }
            self.claim(now, range, Some(version), Some(holder), out);
        }
    }

    /// The dead owners that a claim lists: those known before, and whom the range is taken from if it died. A
    /// replica that released its Lease, or was evicted by a build that files no deaths, is not known to have
    /// died.
    pub(super) fn dead_owners(&self, range: RangeId) -> Vec<Holder> {
        let known = self.ranges.leases.get(&range);
        let known = known.map_or_else(Vec::new, |lease| lease.dead.clone());
        let claim = self.ranges.claims.get(&range);
        let from = claim.and_then(|claim| claim.from.clone());
        let died = |holder: &Holder| {
            let seen = self.members.seen.get(&holder.name);
            seen.is_some_and(|seen| seen.lease.deaths.names(&holder.incarnation))
        };
        match from.filter(died) {
            Some(from) => with_dead_owner(known, from),
            None => known,
        }
    }

    /// Which keys are suspected of killing their owners, and which of the ranges held here want care for it.
    pub fn quarantine(&self, now: Time) -> Quarantine {
        let leases = self.members.seen.values().map(|seen| &seen.lease);
        let deaths: BTreeMap<&str, &Deaths> = leases
            .filter(|lease| !lease.deaths.is_empty())
            .map(|lease| (&*lease.name, &lease.deaths))
            .collect();
        if deaths.is_empty() {
            return Quarantine::default();
        }
        let held = self
            .handoff
            .held
            .keys()
            .filter_map(|range| self.ranges.leases.get(range));
        let ranges = held.map(|lease| (lease.range, &*lease.dead));
        Quarantine::of(self.second(now), &deaths, ranges)
    }
}

/// Without a renewal for so long a replica is late.
pub(super) fn late_after(config: &Config) -> Duration {
    config.retry_period + config.retry_period / LATE_PARTS
}
