//! Ranges on their way from one member to another: freeze, send, swap the Lease, let go.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{Config, Core, SHORT_PARTS, members::Seen};
use crate::{
    event::{Effect, Happening, NotSent, Offer, Refused},
    lease::{Epoch, Holder, RangeId, RangeLease, Time, Written, next_epoch},
    mutation::broken,
    reachable::reachable,
};

/// A replica that leaves waits this number of retry periods for the Lease of a range whose state it has
/// acknowledged: with it gone, the state would be nobody's. The owner may also have thought better of it and
/// never says so.
const KEPT_PERIODS: u32 = 4;

/// A replica that is not current gives its ranges away once others have been current for this many retry
/// periods: where all see the same late, some notice it a moment before the others.
const STALE_PERIODS: u32 = 2;

/// The same once nobody was current: they all come back, and some notice that a while before the others.
const STALE_TOGETHER_PERIODS: u32 = 10;

/// A member that answered within this many retry periods is reachable: a range may be frozen for a move to
/// it. Any other is asked first, with nothing frozen.
const CONTACT_PERIODS: u32 = 5;

/// Upper bound of the back-off for a member that cannot be reached or refuses ranges, in retry periods. The
/// lower bound is one.
const CONTACT_BACKOFF_MAX_PERIODS: u32 = 60;

/// A member has not answered three times in a row when its back-off has come to this many retry periods.
const SILENT_BACKOFF_PERIODS: u32 = 4;

/// A range whose state is too large for a handoff is tried again after this many retry periods: it may have
/// shrunk.
const OVERSIZED_PERIODS: u32 = 300;

/// The number of the question that only asks whether a member answers. Inquiries count from 1.
const CONTACT_INQUIRY: u64 = 0;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Held {
    pub(super) epoch: Epoch,
    pub(super) phase: Phase,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    Serving,
    Freezing {
        to: Holder,
        since: Time,
    },
    Streaming {
        to: Holder,
        since: Time,
        attempt: u64,
    },
    Swapping {
        to: Holder,
        since: Time,
        retry_at: Option<Time>,
        /// A swap had no answer: it may have landed.
        unanswered: bool,
        /// The other has acknowledged the state.
        with_state: bool,
    },
}

impl Phase {
    pub(super) fn target(&self) -> Option<&Holder> {
        match self {
            Self::Serving => None,
            Self::Freezing { to, .. } | Self::Streaming { to, .. } | Self::Swapping { to, .. } => {
                Some(to)
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Kept {
    pub(super) from: Holder,
    /// The epoch at which the Lease must name us.
    pub(super) epoch: Epoch,
    pub(super) attempt: u64,
    /// When it was acknowledged.
    pub(super) since: Time,
}

/// Exponential back-off towards one member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Backoff {
    pub(super) delay: Duration,
    pub(super) since: Time,
}

impl Backoff {
    /// Failures that come together count once: several ranges may be on their way to one member.
    pub(super) fn fail(&mut self, now: Time, period: Duration) {
        if now >= self.since + self.delay {
            let delay = self.delay.saturating_mul(2);
            self.delay = delay.clamp(period, period * CONTACT_BACKOFF_MAX_PERIODS);
        }
        self.since = now;
    }

    /// A replica that leaves has no time to wait: for it the delay is bounded by `most`.
    pub(super) fn until(&self, most: Duration) -> Time {
        self.since.saturating_add(self.delay.min(most))
    }
}

/// What is known of the way to a member. Forgotten once it says nothing any more, so it holds only members to
/// which something was to be moved lately.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Contact {
    /// When the newest answer came.
    pub(super) answered: Option<Time>,
    /// A question is under way.
    pub(super) asking: bool,
    /// It did not answer.
    pub(super) unreachable: Backoff,
    /// It answered, and refused a range.
    pub(super) refuses: Backoff,
    /// Since when it has not answered.
    pub(super) silent_since: Option<Time>,
}

impl Contact {
    pub(super) fn answered(&mut self, now: Time) {
        self.answered = Some(now);
        self.asking = false;
        self.unreachable = Backoff::default();
        self.silent_since = None;
    }

    pub(super) fn unanswered(&mut self, now: Time, period: Duration) {
        self.answered = None;
        self.asking = false;
        self.unreachable.fail(now, period);
        self.silent_since.get_or_insert(now);
    }

    /// It has not answered for so long, nor to several questions in a row: a lost message or two are no
    /// silence.
    pub(super) fn is_silent(&self, now: Time, patience: Duration, period: Duration) -> bool {
        let long = |since| now.saturating_sub(since) >= patience;
        self.unreachable.delay >= period * SILENT_BACKOFF_PERIODS
            && self.silent_since.is_some_and(long)
    }

    fn is_fresh(&self, now: Time, period: Duration) -> bool {
        self.answered
            .is_some_and(|at| now <= at + period * CONTACT_PERIODS)
    }
}

/// What is held, and what is on its way from and to here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Handoff {
    pub(super) held: BTreeMap<RangeId, Held>,
    /// Acknowledged states of ranges whose Leases do not name us yet.
    pub(super) kept: BTreeMap<RangeId, Kept>,
    /// Not tried again before then.
    pub(super) put_off: BTreeMap<RangeId, Time>,
    /// Held here with a state that is too large for a handoff, as of the last attempt.
    pub(super) oversized: BTreeSet<RangeId>,
    /// Held here, and wanted elsewhere by an operator.
    pub(super) wished: BTreeMap<RangeId, String>,
    /// Members that ranges are to be moved to.
    pub(super) contacts: BTreeMap<Holder, Contact>,
    pub(super) attempts: u64,
}

impl Handoff {
    pub(super) fn wakes(
        &self,
        config: &Config,
        drain_until: Option<Time>,
        mut sooner: impl FnMut(Time),
    ) {
        let patience = match drain_until {
            Some(_) => config.retry_period,
            None => Duration::MAX,
        };
        for contact in self.contacts.values() {
            sooner(contact.unreachable.until(patience));
            sooner(contact.refuses.until(patience));
        }
        self.put_off.values().copied().for_each(&mut sooner);
        if drain_until.is_some() {
            for kept in self.kept.values() {
                sooner(kept.since + config.retry_period * KEPT_PERIODS);
            }
        }
        for held in self.held.values() {
            if let Phase::Swapping {
                retry_at: Some(retry_at),
                ..
            } = held.phase
            {
                sooner(retry_at);
            }
        }
    }
}

impl Core {
    pub(super) fn frozen(
        &mut self,
        now: Time,
        range: RangeId,
        epoch: Epoch,
        busy: bool,
        out: &mut Vec<Effect>,
    ) {
        let open = self.is_open(now);
        let draining = self.own.drain_until.is_some();
        let retry_at = now + self.config.retry_period;
        let Some(held) = self
            .handoff
            .held
            .get_mut(&range)
            .filter(|held| held.epoch == epoch)
        else {
            return;
        };
        let Phase::Freezing { to, since } = held.phase.clone() else {
            return;
        };
        if busy {
            reachable!(FreezeBusy);
            held.phase = Phase::Serving;
            self.handoff
                .put_off
                .insert(range, if draining { now } else { retry_at });
            let why = "writes were still under way".to_owned();
            out.push(Effect::Happened(Happening::HandoffFailed {
                range,
                to,
                why,
            }));
            return;
        }
        let (patience, period) = (self.config.lease_duration, self.config.retry_period);
        let is_silent = |contact: &Contact| contact.is_silent(now, patience, period);
        let relinquishes = !draining && self.handoff.contacts.get(&to).is_some_and(is_silent);
        if relinquishes && self.is_live(&to) {
            return self.relinquish(now, range, to, since, out);
        }
        let Some(held) = self.handoff.held.get_mut(&range) else {
            return;
        };
        let address = self
            .members
            .seen
            .get(&to.name)
            .filter(|seen| seen.lease.holder().as_ref() == Some(&to));
        match address.map(|seen| seen.lease.status.address.clone()) {
            Some(address) if open => {
                self.handoff.attempts += 1;
                let attempt = self.handoff.attempts;
                held.phase = Phase::Streaming {
                    to: to.clone(),
                    since,
                    attempt,
                };
                if !broken!(StreamsWithoutFreezing) {
                    out.push(Effect::CloseRange(range));
                }
                out.push(Effect::Send {
                    range,
                    epoch,
                    attempt,
                    to,
                    address,
                });
                if broken!(SwapsBeforeTheAnswer) {
                    self.sent(now, range, attempt, Ok(()), out);
                }
            }
            Some(_) => self.resume(now, range, "the fence has closed".to_owned(), out),
            None => {
                reachable!(ReceiverGone);
                self.resume(now, range, "its replica Lease is gone".to_owned(), out);
            }
        }
    }

    /// Gives a range to a member that lives and cannot be reached, by its Lease alone. The other then knows
    /// nothing of it, and takes it as any range that is named its own by nobody it has heard: after it has
    /// asked all members.
    fn relinquish(
        &mut self,
        now: Time,
        range: RangeId,
        to: Holder,
        since: Time,
        out: &mut Vec<Effect>,
    ) {
        let (open, me) = (self.is_open(now), self.me());
        let Some(held) = self.handoff.held.get_mut(&range) else {
            return;
        };
        let lease = self
            .ranges
            .leases
            .get(&range)
            .filter(|lease| lease.holder == me && lease.epoch == held.epoch);
        match lease {
            Some(lease) if open => {
                held.phase = Phase::Swapping {
                    to: to.clone(),
                    since,
                    retry_at: None,
                    unanswered: false,
                    with_state: false,
                };
                out.push(Effect::CloseRange(range));
                out.push(swap(lease, to, false));
            }
            Some(_) => self.resume(now, range, "the fence has closed".to_owned(), out),
            None => self.resume(now, range, "its Lease has changed".to_owned(), out),
        }
    }

    pub(super) fn sent(
        &mut self,
        now: Time,
        range: RangeId,
        attempt: u64,
        result: Result<(), NotSent>,
        out: &mut Vec<Effect>,
    ) {
        let open = self.is_open(now);
        let me = self.me();
        let Some(held) = self.handoff.held.get_mut(&range) else {
            return;
        };
        let (to, since) = match &held.phase {
            Phase::Streaming {
                to,
                since,
                attempt: awaited,
            } if *awaited == attempt || broken!(AnyAnswerCounts) => (to.clone(), *since),
            _ => {
                reachable!(AnswerToAnOlderAttempt);
                return;
            }
        };
        let lease = self
            .ranges
            .leases
            .get(&range)
            .filter(|lease| lease.holder == me && lease.epoch == held.epoch);
        let result = match result {
            Err(NotSent::Refused(_)) if broken!(RefusalIsTakenForConsent) => Ok(()),
            result => result,
        };
        let period = self.config.retry_period;
        let contact = self.handoff.contacts.entry(to.clone()).or_default();
        match &result {
            Ok(()) => {
                contact.answered(now);
                contact.refuses = Backoff::default();
            }
            Err(NotSent::Refused(_)) => {
                reachable!(OfferRefused);
                contact.answered(now);
                contact.refuses.fail(now, period);
            }
            Err(NotSent::Unreachable(_)) => {
                reachable!(OfferUnanswered);
                contact.unanswered(now, period);
            }
            // Found out here, before anything was sent.
            Err(NotSent::TooLarge(_)) => {}
        }
        match (result, lease) {
            (Ok(()), Some(lease)) if open => {
                held.phase = Phase::Swapping {
                    to: to.clone(),
                    since,
                    retry_at: None,
                    unanswered: false,
                    with_state: true,
                };
                out.push(swap(lease, to, true));
            }
            (Ok(()), Some(_)) => {
                reachable!(FenceClosedInHandoff);
                self.resume(now, range, "the fence has closed".to_owned(), out);
            }
            (Ok(()), None) => {
                reachable!(LeaseChangedInHandoff);
                self.resume(now, range, "its Lease has changed".to_owned(), out);
            }
            (Err(NotSent::Refused(why) | NotSent::Unreachable(why)), _) => {
                self.resume(now, range, why, out);
            }
            (Err(NotSent::TooLarge(why)), _) => {
                self.resume(now, range, why, out);
                self.handoff
                    .put_off
                    .insert(range, now + period * OVERSIZED_PERIODS);
                self.handoff.oversized.insert(range);
            }
        }
    }

    /// The move did not happen, and no swap of ours can land any more.
    fn resume(&mut self, now: Time, range: RangeId, why: String, out: &mut Vec<Effect>) {
        let Some(held) = self.handoff.held.get_mut(&range) else {
            return;
        };
        let phase = std::mem::replace(&mut held.phase, Phase::Serving);
        self.handoff
            .put_off
            .insert(range, now + self.config.retry_period);
        out.push(Effect::Resume {
            range,
            epoch: held.epoch,
        });
        if let Some(to) = phase.target().cloned() {
            out.push(Effect::Happened(Happening::HandoffFailed {
                range,
                to,
                why,
            }));
        }
    }

    pub(super) fn swap_ended(
        &mut self,
        now: Time,
        range: RangeId,
        result: Written<RangeLease>,
        out: &mut Vec<Effect>,
    ) {
        let me = self.me();
        let soon = now + self.config.retry_period / SHORT_PARTS;
        let conflict = match result {
            Written::Done(lease) => {
                self.see_range(lease);
                false
            }
            Written::Conflict(Some(lease)) => {
                self.see_range(lease);
                if self.ranges.damaged.contains_key(&range) {
                    let why = "its Lease has an impossible epoch".to_owned();
                    self.resume_or_let_go(now, range, why, out);
                    return;
                }
                true
            }
            Written::Conflict(None) => {
                reachable!(SwapLeaseDeleted);
                self.ranges.leases.remove(&range);
                self.resume_or_let_go(now, range, "its Lease was deleted".to_owned(), out);
                return;
            }
            Written::Unknown if broken!(ResumesWithASwapUnderWay) => {
                self.resume(now, range, "no answer".to_owned(), out);
                return;
            }
            Written::Unknown => {
                reachable!(SwapUnanswered);
                if let Some(Held {
                    phase:
                        Phase::Swapping {
                            retry_at,
                            unanswered,
                            ..
                        },
                    ..
                }) = self.handoff.held.get_mut(&range)
                {
                    *retry_at = Some(soon);
                    *unanswered = true;
                }
                return;
            }
        };
        if !conflict {
            return;
        }
        // Somebody touched the Lease and left us in it: again, on the new version. The older swap cannot land
        // any more.
        if let Some(Held {
            epoch,
            phase: Phase::Swapping { retry_at, .. },
        }) = self.handoff.held.get_mut(&range)
            && self
                .ranges
                .leases
                .get(&range)
                .is_some_and(|lease| lease.holder == me && lease.epoch == *epoch)
        {
            reachable!(SwapSentAgain);
            *retry_at = Some(now);
        }
    }

    /// There is no Lease to swap any more. If an earlier swap had no answer, it may have landed before, and
    /// the receiver may own the range: then it is let go, and its next owner asks all members first.
    fn resume_or_let_go(&mut self, now: Time, range: RangeId, why: String, out: &mut Vec<Effect>) {
        let unanswered = self.handoff.held.get(&range).is_some_and(|held| {
            matches!(
                held.phase,
                Phase::Swapping {
                    unanswered: true,
                    ..
                }
            )
        });
        if unanswered {
            reachable!(UnansweredSwapLetGo);
            self.deprived(range, None, out);
        } else {
            self.resume(now, range, why, out);
        }
    }

    /// A member offers a range with its state.
    pub(super) fn offered(&mut self, now: Time, offer: Offer, out: &mut Vec<Effect>) {
        let refused = self.refusal(now, &offer);
        let range = offer.range;
        if refused.is_none() {
            let kept = Kept {
                from: offer.from,
                epoch: next_epoch(offer.epoch),
                attempt: offer.attempt,
                since: now,
            };
            self.handoff.kept.insert(range, kept);
        }
        out.push(Effect::Answer {
            id: offer.id,
            range,
            refused,
        });
        if broken!(OwnsByOffer) {
            self.receive(range, out);
        }
    }

    /// A member says that it has swapped a Lease to us. Only the Lease counts, so it is read.
    pub(super) fn swap_announced(
        &mut self,
        from: &Holder,
        range: RangeId,
        epoch: Epoch,
        out: &mut Vec<Effect>,
    ) {
        let kept = self.handoff.kept.get(&range);
        let awaited = kept.is_some_and(|kept| kept.from == *from && kept.epoch == epoch);
        let lease = self.ranges.leases.get(&range);
        if awaited && lease.is_none_or(|lease| lease.epoch < epoch) {
            out.push(Effect::ReadRange(range));
        }
        if broken!(OwnsByWord) {
            self.receive(range, out);
        }
    }

    /// Why an offer is not taken; `None` takes it.
    fn refusal(&self, now: Time, offer: &Offer) -> Option<Refused> {
        let Some(own) = self.own.lease.as_ref() else {
            return Some(Refused::NotTaking);
        };
        if offer.to_incarnation != own.incarnation {
            reachable!(OfferForAnotherLife);
            return Some(Refused::OtherIncarnation(own.incarnation.clone()));
        }
        let refuses = self.own.stale_since.is_some() && !self.counts_me() && !broken!(StaleTakes);
        if !self.own.host_ready
            || refuses
            || self.own.drain_until.is_some()
            || !self.is_held()
            || !self.is_open(now)
            || self.manager_lease.term.is_none()
        {
            return Some(Refused::NotTaking);
        }
        if !compatible(&self.config.build, &offer.build) {
            return Some(Refused::Incompatible(
                self.config.build.clone(),
                offer.build.clone(),
            ));
        }
        if self
            .members
            .seen
            .get(&offer.from.name)
            .and_then(|seen| seen.lease.holder())
            .as_ref()
            != Some(&offer.from)
        {
            reachable!(OfferOfNoMember);
            return Some(Refused::NoMember(offer.from.clone()));
        }
        let lease = self.ranges.leases.get(&offer.range);
        if !lease.is_some_and(|lease| {
            lease.holder.as_ref() == Some(&offer.from) && lease.epoch == offer.epoch
        }) {
            reachable!(OfferOfNoOwner);
            return Some(Refused::NotTheOwner {
                range: offer.range,
                from: offer.from.clone(),
                epoch: offer.epoch,
            });
        }
        let newer = self.handoff.kept.get(&offer.range).is_some_and(|kept| {
            kept.from == offer.from
                && kept.epoch == next_epoch(offer.epoch)
                && kept.attempt >= offer.attempt
        });
        if newer && !broken!(OlderAttemptReplaces) {
            reachable!(OfferSuperseded);
            return Some(Refused::Superseded);
        }
        None
    }

    pub(super) fn forget_what_was_kept_in_vain(&mut self, now: Time, out: &mut Vec<Effect>) {
        let vain: Vec<RangeId> = self
            .handoff
            .kept
            .iter()
            .filter(|(range, kept)| {
                broken!(ForgetsWhatItAcknowledged)
                    || self.is_dead(now, &kept.from)
                    || self
                        .ranges
                        .leases
                        .get(range)
                        .is_none_or(|lease| lease.epoch >= kept.epoch)
            })
            .map(|(range, _)| *range)
            .collect();
        for range in vain {
            // If the Lease names us at this epoch, the range has been received before this rule runs.
            reachable!(KeptInVain);
            self.handoff.kept.remove(&range);
            out.push(Effect::Forget(range));
        }
    }

    pub(super) fn hand_over(&mut self, now: Time, placed: Option<&[u16]>, out: &mut Vec<Effect>) {
        let (Some(placed), Some(ring)) = (placed, &self.ranges.ring) else {
            return;
        };
        // Without a Lease of our own in the view something is wrong, and the renewal will say what. A stale
        // replica is no member and hands over all the same, but not at once: where everybody becomes stale at
        // about the same time, it is the API server that is stuck, and nothing is to move.
        let stale = self.own.outdated_since.filter(|_| !broken!(StaleKeepsAll));
        let periods = match self.own.stale_together {
            true => STALE_TOGETHER_PERIODS,
            false => STALE_PERIODS,
        };
        let settled = |since: Time| {
            now.saturating_sub(since) >= self.config.retry_period * periods
                || broken!(StaleMovesAtOnce)
        };
        if self.own.drain_until.is_none()
            && !ring.members().contains(&self.config.name)
            && !stale.is_some_and(settled)
        {
            return;
        }
        self.handoff.put_off.retain(|_, until| *until > now);
        let held = &self.handoff.held;
        self.handoff
            .wished
            .retain(|range, to| held.contains_key(range) && ring.members().contains(to));
        let moving = self
            .handoff
            .held
            .values()
            .filter(|held| held.phase != Phase::Serving)
            .count();
        let mut room = self.config.moves_at_once.saturating_sub(moving);
        if broken!(NeverHandsOver) {
            room = 0;
        }
        let force = self.own.drain_until.is_some();
        let mut unfrozen = Vec::new();
        // A member that gets a range by its Lease alone asks all others first: each of them must be able to
        // answer.
        let reads_questions = |seen: &Seen| {
            let lease = &seen.lease;
            let by = lease.status.replies.as_ref().map(|replies| &replies.by);
            lease.incarnation.is_none() || by == lease.incarnation.as_ref()
        };
        let relinquishes = !force && self.members.seen.values().all(reads_questions);
        let patience_for_silence = self.config.lease_duration;
        let period = self.config.retry_period;
        let patience = match force {
            true => period,
            false => Duration::MAX,
        };
        for (range, held) in &mut self.handoff.held {
            if room == 0 {
                break;
            }
            let target = self.handoff.wished.get(range).or_else(|| {
                let at = placed.get(usize::from(*range))?;
                ring.members().get(usize::from(*at))
            });
            let Some(target) = target.filter(|target| **target != self.config.name) else {
                continue;
            };
            let seen = self.members.seen.get(target);
            let to = seen.and_then(|seen| seen.lease.holder());
            let quiet = held.phase == Phase::Serving
                && !self.handoff.put_off.contains_key(range)
                && !self.ranges.claims.contains_key(range)
                && self.ranges.leases.contains_key(range);
            if let (Some(to), Some(seen)) = (to.filter(|_| quiet), seen) {
                let contact = self.handoff.contacts.entry(to.clone()).or_default();
                let relinquishes =
                    relinquishes && contact.is_silent(now, patience_for_silence, period);
                let waits = contact.unreachable.until(patience) > now
                    || contact.refuses.until(patience) > now;
                if (waits || contact.asking) && !relinquishes {
                    continue;
                }
                // Nothing is frozen for a member before it has answered.
                if !contact.is_fresh(now, period) && !relinquishes {
                    reachable!(ReceiverAskedFirst);
                    contact.asking = true;
                    out.push(Effect::AskHolds {
                        inquiry: CONTACT_INQUIRY,
                        to,
                        address: seen.lease.status.address.clone(),
                        ranges: Vec::new(),
                    });
                    continue;
                }
                room -= 1;
                self.handoff.wished.remove(range);
                held.phase = Phase::Freezing { to, since: now };
                let budget = match force {
                    true => self.config.drain_budget,
                    false => self.config.freeze_budget,
                };
                if broken!(StreamsWithoutFreezing) {
                    unfrozen.push((*range, held.epoch));
                    continue;
                }
                out.push(Effect::Freeze {
                    range: *range,
                    epoch: held.epoch,
                    budget,
                    force,
                });
            }
        }
        for (range, epoch) in unfrozen {
            self.frozen(now, range, epoch, false, out);
        }
    }

    /// Drops what is over: pauses, and contacts that have nothing to say.
    pub(super) fn forget_what_is_over(&mut self, now: Time) {
        self.ranges.claim_pauses.retain(|_, until| *until > now);
        let period = self.config.retry_period;
        self.handoff.contacts.retain(|_, contact| {
            let over = |backoff: &Backoff| {
                // Twice: the next failure soon after the end continues from here.
                now >= backoff.since + backoff.delay + backoff.delay
            };
            contact.asking
                || contact.is_fresh(now, period)
                || !(over(&contact.unreachable) && over(&contact.refuses))
        });
    }

    pub(super) fn finish_the_drain(&mut self, now: Time, out: &mut Vec<Effect>) {
        let Some(until) = self.own.drain_until else {
            return;
        };
        if self.own.left {
            return;
        }
        let nobody = self.member_names().is_empty()
            && self
                .handoff
                .held
                .values()
                .all(|held| held.phase == Phase::Serving);
        let awaits = |kept: &Kept| now < kept.since + self.config.retry_period * KEPT_PERIODS;
        let awaits = self.handoff.kept.values().any(awaits) && !broken!(LeavesWithWhatItKept);
        // What is too large to hand over is taken over once the own Lease is released.
        let stays = |(range, held): (&RangeId, &Held)| {
            self.handoff.oversized.contains(range) && held.phase == Phase::Serving
        };
        let done =
            (self.handoff.held.iter().all(stays) && self.ranges.claims.is_empty() && !awaits)
                || broken!(DrainDropsAll);
        if done || until <= now || nobody {
            self.own.left = true;
            let ranges = self.drop_everything(out);
            if !ranges.is_empty() {
                reachable!(LeftWithRanges);
                out.push(Effect::Happened(Happening::Dropped { ranges }));
            }
            out.push(Effect::Release);
        }
    }
}

/// The Lease names the other, one epoch on. Without the state it is two: then no attempt of before fits,
/// whose state the other may have acknowledged without our hearing of it.
pub(super) fn swap(lease: &RangeLease, to: Holder, with_state: bool) -> Effect {
    let next = next_epoch(lease.epoch);
    let epoch = match with_state || broken!(RelinquishesOneEpochOn) {
        true => next,
        false => next_epoch(next),
    };
    Effect::Swap {
        version: lease.version,
        lease: RangeLease {
            range: lease.range,
            version: 0,
            holder: Some(to),
            epoch,
            dead: lease.dead.clone(),
        },
        with_state,
    }
}

/// Builds speak with each other within one minor version of one major version.
pub(super) fn compatible(ours: &str, theirs: &str) -> bool {
    let parse = |build: &str| {
        let mut parts = build
            .trim_start_matches('v')
            .split(['.', '-', '+'])
            .map(str::parse::<u32>);
        Some((parts.next()?.ok()?, parts.next()?.ok()?))
    };
    match (parse(ours), parse(theirs)) {
        (Some((major, minor)), Some((their_major, their_minor))) => {
            major == their_major && minor.abs_diff(their_minor) <= 1
        }
        _ => ours == theirs,
    }
}
