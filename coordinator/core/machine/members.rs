//! Replica Leases: who is a member, who counts as one, and how well that is known.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{Config, Core, handoff::compatible, takeover::late_after};
use crate::{
    event::{Effect, Fatal, Happening},
    lease::{Follows, Holder, ReplicaLease, Status, Time, Version},
    mutation::broken,
    reachable::reachable,
    renewal::{OwnLease, OwnPhase},
    slow_start::Crashes,
};

/// At most this number of retry periods may lie between two good reads of the replica Leases; with more,
/// silence proves nothing and every wait begins again. One for the pause, one for the read itself, one for a
/// busy machine.
const READ_GAP_PERIODS: u32 = 3;

/// Retry periods between two lists of the replica Leases while nobody is silent or going and the watch has
/// everything up to the own renewals: that is what a list would show. It is still asked for now and then,
/// since only a list shows that the server's storage went back.
const REPLICAS_PERIODS: u32 = 15;

/// Retry periods without a renewal after which a member is silent: what follows from that rests on lists.
const SILENT_PERIODS: u32 = 2;

/// Upper bound of replicas in a fleet: connections between peers and their buffers are dimensioned for it.
pub const REPLICAS_MAX: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Seen {
    pub(super) lease: ReplicaLease,
    /// This version was seen first then, or the reads were bad until then.
    pub(super) since: Time,
    /// The holder has renewed before our eyes.
    pub(super) renews: bool,
}

impl Seen {
    pub(super) fn holds(&self, holder: &Holder) -> bool {
        self.lease.incarnation.as_ref() == Some(&holder.incarnation)
    }
}

/// What the replica knows of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Own {
    /// Its Lease.
    pub(super) lease: Option<OwnLease>,
    pub(super) joined: bool,
    /// Since when this life holds its Lease.
    pub(super) held_since: Option<Time>,
    pub(super) fenced_since: Option<Time>,
    /// What its Lease says of it, as handed to the shell last.
    pub(super) published: Option<Status>,
    pub(super) host_ready: bool,
    /// Since when what the node sees is not current.
    pub(super) stale_since: Option<Time>,
    /// Since when that is so while others are current.
    pub(super) outdated_since: Option<Time>,
    /// Whether nobody of several was current since it is stale.
    pub(super) stale_together: bool,
    pub(super) server_fenced: bool,
    pub(super) fingerprints: Arc<str>,
    pub(super) unreachable: Arc<str>,
    pub(super) demand: Option<u8>,
    pub(super) drain_until: Option<Time>,
    pub(super) left: bool,
}

/// The replica Leases as they were seen, and how well.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Members {
    pub(super) seen: BTreeMap<String, Seen>,
    /// A list has been answered.
    pub(super) known: bool,
    /// Membership has not changed since then.
    pub(super) still_since: Time,
    /// By the newest good read all was seen that happened to replica Leases: by a list, or by a watch that
    /// has brought the own renewal.
    pub(super) last_read: Option<Time>,
    pub(super) reading: bool,
    pub(super) next_read: Time,
    /// When the newest good list was answered.
    pub(super) listed: Option<Time>,
    /// Everything that happened to replica Leases up to this version has been seen.
    pub(super) watched: Version,
    /// Of the newest renewal of its own that the watch has brought.
    pub(super) counted: Version,
    /// When the watch has brought one that is as good as a list.
    pub(super) brought: Option<Time>,
    /// The newest version that was seen when the newest list of the replica Leases was asked for, and when
    /// that was: a consistent list that starts later is not older, unless the server's storage went back.
    pub(super) floor: (Time, Version),
}

impl Members {
    /// A list had no answer: from here on no silence counts.
    pub(super) fn failed(&mut self) {
        self.reading = broken!(StopsReadingAfterAFailure);
        (self.last_read, self.listed) = (None, None);
    }

    pub(super) fn wakes(&self, config: &Config, mut sooner: impl FnMut(Time)) {
        sooner(self.next_read);
        sooner(self.still_since + config.settle_time);
        let late = late_after(config);
        for seen in self.seen.values() {
            sooner(seen.since + config.lease_duration);
            if !seen.lease.status.pod.is_empty() {
                sooner(seen.since + late);
            }
        }
    }
}

impl Core {
    pub(super) fn own_changed(&mut self, now: Time, own: OwnLease, out: &mut Vec<Effect>) {
        let before = self.own.lease.replace(own.clone());
        self.count_own_renewal(now);
        let lived = before
            .as_ref()
            .filter(|before| before.phase == OwnPhase::Held);
        if let Some(lived) = lived
            && (lived.incarnation != own.incarnation
                || matches!(own.phase, OwnPhase::Released | OwnPhase::NameTaken(_)))
            && !self.own.left
        {
            let ranges = if broken!(NewLifeKeepsRanges) {
                Vec::new()
            } else {
                self.drop_everything(out)
            };
            out.push(Effect::Happened(Happening::SelfEvicted {
                incarnation: lived.incarnation.clone(),
                ranges,
            }));
            self.own.fenced_since = None;
            self.own.published = None;
        }
        if own.phase == OwnPhase::Held {
            if lived.is_none_or(|lived| lived.incarnation != own.incarnation) {
                out.push(Effect::Happened(Happening::Joined {
                    incarnation: own.incarnation,
                }));
                self.members.still_since = now;
                self.own.held_since = Some(now);
                // The renewal has said for itself how little it takes; from here on it is published.
                self.own.published = None;
            } else if !self.own.left {
                let was_open = lived.is_some_and(|lived| lived.open_until.is_some());
                if was_open && own.open_until.is_none() {
                    self.own.fenced_since = Some(now);
                    out.push(Effect::Happened(Happening::Fenced));
                }
            }
            if own.open_until.is_some()
                && let Some(since) = self.own.fenced_since.take()
            {
                out.push(Effect::Happened(Happening::Reopened {
                    closed: now.saturating_sub(since),
                }));
            }
        }
        if let OwnPhase::NameTaken(incarnation) = own.phase {
            self.fail(
                Fatal::NameTaken {
                    name: self.config.name.clone(),
                    incarnation,
                },
                out,
            );
        }
    }

    pub(super) fn replicas_read(
        &mut self,
        now: Time,
        started: Time,
        version: Version,
        leases: Vec<ReplicaLease>,
    ) {
        self.members.reading = false;
        let (slow, in_time) = (self.is_slow(now, started), self.is_in_time(started));
        let listed: BTreeSet<String> = leases.iter().map(|lease| lease.name.clone()).collect();
        for lease in leases {
            self.see_replica(now, lease);
        }
        let gone = |(name, seen): &(&String, &Seen)| {
            !listed.contains(*name) && seen.lease.version <= version
        };
        let gone: Vec<String> = self
            .members
            .seen
            .iter()
            .filter(gone)
            .map(|(name, _)| name.clone())
            .collect();
        for name in gone {
            self.replica_is_gone(now, &name);
        }
        if (slow || !in_time) && !broken!(BadReadsCount) {
            reachable!(WaitsBeginAgain);
            for seen in self.members.seen.values_mut() {
                seen.since = now;
            }
            for since in self
                .takeover
                .unproven
                .values_mut()
                .chain(self.takeover.vanished.values_mut())
            {
                *since = now;
            }
        }
        self.members.last_read = (!slow || broken!(BadReadsCount)).then_some(now);
        self.members.listed = self.members.last_read;
        self.members.watched = self.members.watched.max(version);
        self.members.known = true;
    }

    /// The own renewal was started, then landed; a watch that has brought it has brought whatever happened to
    /// replica Leases before it was started. So this is a consistent list that was started then, and is as
    /// good as one: one that is slow, or comes after a gap, proves nothing and is left to a list.
    fn count_own_renewal(&mut self, now: Time) {
        let landed = self.own.lease.as_ref().and_then(|own| own.landed);
        let news = landed.filter(|(_, version)| *version > self.members.counted);
        let Some((started, version)) = news.filter(|(_, version)| *version <= self.members.watched)
        else {
            return;
        };
        self.members.counted = version;
        if self.is_in_time(started) && !self.is_slow(now, started) {
            (self.members.last_read, self.members.brought) = (Some(now), Some(now));
        }
    }

    /// Whether a list of the replica Leases would show what is not seen without it.
    fn needs_list(&self, now: Time) -> bool {
        let period = self.config.retry_period;
        let before = |at: Option<Time>, most: Duration| at.is_none_or(|at| now >= at + most);
        let is_silent = |seen: &Seen| {
            seen.lease.incarnation.is_some() && now >= seen.since + period * SILENT_PERIODS
        };
        before(self.members.listed, period * REPLICAS_PERIODS)
            || before(self.members.brought, period + period / 2)
            || !self.nobody_is_going()
            || self.members.seen.values().any(is_silent)
    }

    /// Nobody who was a member is gone or was said to be, and no member is asked what it holds.
    pub(super) fn nobody_is_going(&self) -> bool {
        self.takeover.is_empty() && self.inquiries.current.is_none()
    }

    pub(super) fn replica_is_gone(&mut self, now: Time, name: &str) {
        if let Some(holder) = self
            .members
            .seen
            .remove(name)
            .and_then(|seen| seen.lease.holder())
        {
            reachable!(ReplicaLeaseDeleted);
            self.takeover.vanished.insert(holder, now);
        }
        self.members.still_since = now;
    }

    /// Everything has been seen that happened to Leases up to this version.
    pub(super) fn watched_to(&mut self, now: Time, version: Version) {
        self.ranges.as_of = self.ranges.as_of.max(version);
        self.members.watched = self.members.watched.max(version);
        self.count_own_renewal(now);
    }

    /// A replica Lease of at most this version was deleted.
    pub(super) fn replica_deleted(&mut self, now: Time, name: &str, version: Version) {
        let seen = self.members.seen.get(name);
        if seen.is_some_and(|seen| seen.lease.version <= version) {
            self.replica_is_gone(now, name);
        }
    }

    pub(super) fn see_replica(&mut self, now: Time, lease: ReplicaLease) {
        let before = self.members.seen.get(&lease.name);
        if before.is_some_and(|before| before.lease.version >= lease.version) {
            return;
        }
        let same = before.is_some_and(|before| before.lease.incarnation == lease.incarnation);
        if !same || before.is_none_or(|before| !before.lease.status.is_same_member(&lease.status)) {
            self.members.still_since = now;
        }
        let replaced = before.and_then(|before| before.lease.holder());
        if let Some(replaced) =
            replaced.filter(|before| !same && !lease.ended.contains(&before.incarnation))
        {
            reachable!(HolderReplacedUnlisted);
            self.takeover.vanished.insert(replaced, now);
        }
        self.members.seen.insert(
            lease.name.clone(),
            Seen {
                lease,
                since: now,
                renews: same,
            },
        );
    }

    /// The Lease as it was seen before, renewed; what is in flight decides nothing while its holder lives.
    pub(super) fn is_renewal(&self, lease: &ReplicaLease) -> bool {
        self.members.seen.get(&lease.name).is_some_and(|seen| {
            let ReplicaLease {
                name: _,
                version: _,
                incarnation,
                status,
                ended,
                working: _,
                loads: _,
                deaths,
            } = &seen.lease;
            seen.renews
                && incarnation.is_some()
                && (incarnation, status, ended, deaths)
                    == (
                        &lease.incarnation,
                        &lease.status,
                        &lease.ended,
                        &lease.deaths,
                    )
        })
    }

    pub(super) fn note_who_is_current(&mut self, now: Time) {
        if self.own.stale_since.is_none() {
            (self.own.outdated_since, self.own.stale_together) = (None, false);
            return;
        }
        let members = self.member_names();
        match members.contains(&self.config.name) {
            // It counts though it is stale: nobody is current.
            true => {
                self.own.outdated_since = None;
                if members.len() > 1 && !self.own.stale_together {
                    reachable!(StaleTogether);
                    self.own.stale_together = true;
                }
            }
            false => {
                self.own.outdated_since.get_or_insert_with(|| {
                    reachable!(StaleAmongCurrent);
                    now
                });
            }
        }
    }

    pub(super) fn read_on_time(&mut self, now: Time, out: &mut Vec<Effect>) {
        if self.own.left {
            return;
        }
        if !self.members.reading && self.members.next_read <= now {
            self.members.next_read = now + self.config.retry_period;
            if self.needs_list(now) {
                self.members.reading = true;
                self.members.floor = (now, self.newest());
                out.push(Effect::ReadReplicas);
            }
        }
        if !self.ranges.reading && self.ranges.next_read <= now {
            self.ranges.reading = true;
            out.push(Effect::ReadRanges);
        }
    }

    /// Whether a consistent list is older than what had been seen before it was asked for. Then the server's
    /// storage was restored to an older state, and nothing that this process knows can be compared with it
    /// any more.
    pub(super) fn went_back(
        &mut self,
        started: Time,
        version: Version,
        out: &mut Vec<Effect>,
    ) -> bool {
        let (asked, seen) = self.members.floor;
        // Version 0 is one that could not be read.
        if started < asked || version >= seen || version == 0 {
            return false;
        }
        self.drop_everything(out);
        let listed = version;
        self.fail(Fatal::WentBack { seen, listed }, out);
        true
    }

    /// The newest version that was seen anywhere.
    pub(super) fn newest(&self) -> Version {
        let replicas = self.members.seen.values().map(|seen| seen.lease.version);
        let ranges = self.ranges.leases.values().map(|lease| lease.version);
        replicas.chain(ranges).fold(self.ranges.as_of, Version::max)
    }

    /// Joins once it is sure that nobody alive counts ranges otherwise; later refuses to live beside such a
    /// one.
    pub(super) fn join_or_refuse(&mut self, now: Time, out: &mut Vec<Effect>) {
        if !self.members.known || self.own.left {
            return;
        }
        let mut unsure = false;
        let mut refused = None;
        for seen in self.members.seen.values() {
            let Some(holder) = seen.lease.holder() else {
                continue;
            };
            let theirs = seen.lease.status.ranges;
            if theirs == self.config.ranges || self.is_me(&holder) {
                continue;
            }
            let they_own = self
                .ranges
                .leases
                .values()
                .any(|lease| lease.holder.as_ref() == Some(&holder));
            let stronger = !self.own.joined
                || they_own
                || (self.handoff.held.is_empty() && holder.name < self.config.name);
            if seen.renews && stronger {
                refused = Some(Fatal::OtherRanges {
                    name: holder.name,
                    theirs,
                    ours: self.config.ranges,
                });
            }
            unsure |= now.saturating_sub(seen.since) < self.config.lease_duration;
        }
        let others = self
            .members
            .seen
            .values()
            .filter_map(|seen| seen.lease.holder());
        let others = others.filter(|holder| holder.name != self.config.name);
        if refused.is_none() && !self.own.joined && !unsure && others.count() >= REPLICAS_MAX {
            refused = Some(Fatal::FleetIsFull { most: REPLICAS_MAX });
        }
        if let Some(fatal) = refused {
            self.drop_everything(out);
            out.push(Effect::Release);
            self.fail(fatal, out);
        } else if !self.own.joined && !unsure {
            self.own.joined = true;
            out.push(Effect::Join);
        }
    }

    /// How many ranges this replica takes at most, after what has become of its lives before.
    pub(super) fn share(&self, now: Time) -> Option<u16> {
        let own = self.own.lease.as_ref()?;
        let lived = self
            .own
            .held_since
            .map_or(Time::ZERO, |since| now.saturating_sub(since));
        let members = u16::try_from(self.member_names().len()).unwrap_or(u16::MAX);
        let full = self.config.ranges.div_ceil(members.max(1));
        own.crashes
            .share(self.second(now), lived, full, self.config.slow_start)
    }

    pub(super) fn publish_status(&mut self, now: Time, out: &mut Vec<Effect>) {
        let status = Status {
            address: self.config.address.clone(),
            pin: self.config.pin,
            build: self.config.build.clone(),
            ready: self.own.host_ready,
            draining: self.own.drain_until.is_some(),
            stale: self.own.stale_since.is_some(),
            ranges: self.config.ranges,
            share: self.share(now),
            // The renewal knows them.
            crashes: Crashes::default(),
            server_fenced: self.own.server_fenced,
            fingerprints: Arc::clone(&self.own.fingerprints),
            unreachable: Arc::clone(&self.own.unreachable),
            demand: self.own.demand,
            pod: Arc::clone(&self.config.pod),
            question: self.published_question(now),
            replies: self.inquiries.replies.clone(),
            follows: Follows {
                pins: true,
                plans: self.config.plans,
            },
        };
        if self.own.published.as_ref() != Some(&status) {
            self.own.published = Some(status.clone());
            out.push(Effect::Status(status));
        }
    }

    pub(super) fn me(&self) -> Option<Holder> {
        self.own
            .lease
            .as_ref()
            .map(|own| Holder::new(&self.config.name, &own.incarnation))
    }

    pub(super) fn is_me(&self, holder: &Holder) -> bool {
        holder.name == self.config.name
            && self
                .own
                .lease
                .as_ref()
                .is_some_and(|own| own.incarnation == holder.incarnation)
    }

    pub(super) fn is_held(&self) -> bool {
        self.own
            .lease
            .as_ref()
            .is_some_and(|own| matches!(own.phase, OwnPhase::Held | OwnPhase::Releasing))
    }

    pub(super) fn is_open(&self, now: Time) -> bool {
        self.own.lease.as_ref().is_some_and(|own| {
            own.phase == OwnPhase::Held && own.open_until.is_some_and(|at| at > now)
        })
    }

    fn read_gap(&self) -> Duration {
        self.config.retry_period * READ_GAP_PERIODS
    }

    /// Whether a read that was started then comes too late to prove anything.
    fn is_slow(&self, now: Time, started: Time) -> bool {
        now.saturating_sub(started) > self.config.retry_period
    }

    /// Whether a read that was started then follows the good one before without a gap.
    fn is_in_time(&self, started: Time) -> bool {
        self.members
            .last_read
            .is_some_and(|last| started <= last + self.read_gap())
    }

    pub(super) fn reads_good(&self, now: Time) -> bool {
        self.members
            .last_read
            .is_some_and(|last| now <= last + self.read_gap())
    }

    /// Its replica Lease names this incarnation.
    pub(super) fn is_live(&self, holder: &Holder) -> bool {
        self.is_me(holder)
            || self
                .members
                .seen
                .get(&holder.name)
                .and_then(|seen| seen.lease.incarnation.as_ref())
                == Some(&holder.incarnation)
    }

    /// The members that count, sorted by name: those that see what happens. Where nobody does, that is no
    /// difference between them.
    pub(super) fn member_names(&self) -> Vec<String> {
        let eligible = || {
            let leases = self.members.seen.values().map(|seen| &seen.lease);
            leases.filter(|lease| self.is_eligible(lease))
        };
        let current = |lease: &&ReplicaLease| !self.is_stale(lease) || broken!(StaleCounts);
        let nobody = !eligible().any(|lease| current(&lease)) && !broken!(NobodyIsCurrent);
        eligible()
            .filter(|lease| nobody || current(lease))
            .map(|lease| lease.name.clone())
            .collect()
    }

    /// Whether this replica is a member that counts.
    pub(super) fn counts_me(&self) -> bool {
        self.member_names().contains(&self.config.name)
    }

    /// Of itself a replica knows it first.
    fn is_stale(&self, lease: &ReplicaLease) -> bool {
        match lease.name == self.config.name {
            true => self.own.stale_since.is_some(),
            false => lease.status.stale,
        }
    }

    fn is_eligible(&self, lease: &ReplicaLease) -> bool {
        let mine = lease.name == self.config.name;
        let status = &lease.status;
        lease.incarnation.is_some()
            && (!mine || (lease.holder() == self.me() && self.own.drain_until.is_none()))
            && status.ready
            && !status.draining
            && status.ranges == self.config.ranges
            && compatible(&self.config.build, &status.build)
    }

    pub(super) fn is_settled(&self, now: Time) -> bool {
        let ready = self.member_names().len();
        let counts_otherwise = |seen: &Seen| {
            seen.lease.incarnation.is_some() && seen.lease.status.ranges != self.config.ranges
        };
        !self.members.seen.values().any(counts_otherwise)
            && (now.saturating_sub(self.members.still_since) >= self.config.settle_time
                || self
                    .config
                    .expected_replicas
                    .is_some_and(|expected| ready >= usize::from(expected)))
    }
}
