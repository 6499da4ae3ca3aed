//! What members are asked before a range is claimed whose Lease is missing or not to be trusted, and what is
//! answered to them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{Config, Core, SHORT_PARTS, members::REPLICAS_MAX};
use crate::{
    event::{Effect, Happening},
    lease::{Epoch, Holder, NoAnswer, RangeId, Time},
    mutation::broken,
    questions::{Question, Replies},
    reachable::reachable,
};

/// What is doubtful for a lease duration is reported, and again after each this many retry periods.
const DOUBT_REPORT_PERIODS: u32 = 60;

/// Does any live member hold these? Asked of all before a range without a trustworthy Lease is taken.
///
/// An answer counts for as long as the inquiry lasts, however long others take to answer. A member that
/// holds nothing of a range when it answers can come to hold it by a write to its Lease alone. If the Lease
/// is there, the claim is a compare-and-swap on what stood there before the question; if not, a Lease that
/// appears meanwhile is seen. In both cases the range is asked for again, under another number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Inquiry {
    pub(super) id: u64,
    /// What is left of what was asked for.
    pub(super) ranges: BTreeSet<RangeId>,
    /// Who has not answered yet.
    pub(super) waiting: BTreeMap<Holder, Asked>,
    /// As written into the own Lease while somebody is waited for.
    pub(super) question: Arc<Question>,
    /// Whether it is there: somebody did not answer by gRPC, or takes its time.
    pub(super) published: bool,
    pub(super) since: Time,
    /// Since when some range has been asked for, under this number and those before.
    pub(super) doubtful_since: Time,
    pub(super) report_at: Time,
}

/// A member that is waited for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Asked {
    /// When it is asked again by gRPC; `None` while an answer is awaited.
    pub(super) retry_at: Option<Time>,
}

/// Questions to others and from them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Inquiries {
    pub(super) current: Option<Inquiry>,
    pub(super) count: u64,
    pub(super) next_at: Time,
    /// What is said of the questions in other members' Leases.
    pub(super) replies: Option<Arc<Replies>>,
}

impl Inquiries {
    pub(super) fn wakes(&self, config: &Config, mut sooner: impl FnMut(Time)) {
        sooner(self.next_at);
        if let Some(inquiry) = &self.current {
            sooner(inquiry.since + config.retry_period);
            let waiting = inquiry.waiting.values();
            waiting
                .filter_map(|asked| asked.retry_at)
                .for_each(&mut sooner);
        }
    }
}

impl Core {
    /// Something has happened to the range's Lease: what members answered before counts for nothing.
    pub(super) fn ask_again(&mut self, range: RangeId) {
        if let Some(inquiry) = &mut self.inquiries.current {
            inquiry.ranges.remove(&range);
        }
    }

    /// A member asks which of these ranges this replica holds.
    pub(super) fn holds_asked(
        &mut self,
        now: Time,
        id: u64,
        ranges: Vec<RangeId>,
        out: &mut Vec<Effect>,
    ) {
        let known = ranges
            .into_iter()
            .filter(|range| *range < self.config.ranges);
        let answer: BTreeMap<RangeId, (bool, Epoch)> = known
            .map(|range| {
                let epoch = self.ranges.highest.get(&range).copied().unwrap_or(0);
                (range, (self.may_hold(range), epoch))
            })
            .collect();
        if answer.values().any(|(held, _)| *held) {
            // Somebody sees a Lease that does not name us: read it too.
            self.ranges.next_read = self.ranges.next_read.min(now);
        }
        out.push(Effect::AnswerHolds { id, answer });
    }

    pub(super) fn holds_answered(
        &mut self,
        now: Time,
        id: u64,
        from: &Holder,
        result: Result<BTreeMap<RangeId, (bool, Epoch)>, NoAnswer>,
    ) {
        if let Some(contact) = self.handoff.contacts.get_mut(from) {
            match result {
                Ok(_) => contact.answered(now),
                Err(NoAnswer) => contact.unanswered(now, self.config.retry_period),
            }
        }
        let retry_at = now + self.config.retry_period;
        let Some(inquiry) = self
            .inquiries
            .current
            .as_mut()
            .filter(|inquiry| inquiry.id == id)
        else {
            return;
        };
        match result {
            Ok(answer)
                if inquiry
                    .ranges
                    .iter()
                    .all(|range| answer.contains_key(range)) =>
            {
                inquiry.waiting.remove(from);
                for (range, (held, _)) in &answer {
                    if *held {
                        reachable!(DoubtfulIsHeld);
                        inquiry.ranges.remove(range);
                    }
                }
                for (range, (_, epoch)) in answer {
                    if range < self.config.ranges {
                        self.raise(range, epoch);
                    }
                }
            }
            _ => {
                if let Some(asked) = inquiry.waiting.get_mut(from) {
                    asked.retry_at = Some(retry_at);
                    inquiry.published = true;
                }
            }
        }
    }

    /// A member that takes longer than a retry period to answer by gRPC may never do so.
    pub(super) fn published_question(&self, now: Time) -> Option<Arc<Question>> {
        let period = self.config.retry_period;
        let inquiry = self.inquiries.current.as_ref()?;
        let published = inquiry.published || now >= inquiry.since + period;
        (published && !inquiry.waiting.is_empty()).then(|| Arc::clone(&inquiry.question))
    }

    /// What others ask in their Leases is answered once for each set of questions, so that a move meanwhile
    /// costs no write. Each answer is found out after all of the questions were read.
    pub(super) fn reply_to_questions(&mut self, now: Time) {
        let Some(me) = self.me() else {
            self.inquiries.replies = None;
            return;
        };
        let (mut to, mut asked) = (BTreeMap::new(), BTreeSet::new());
        for seen in self.members.seen.values().take(REPLICAS_MAX + 1) {
            let (Some(holder), Some(question)) =
                (seen.lease.holder(), seen.lease.status.question.as_ref())
            else {
                continue;
            };
            if holder.name != me.name && holder.incarnation == question.by {
                to.insert(holder, question.number);
                asked.extend(&question.ranges);
            }
        }
        let before = self
            .inquiries
            .replies
            .as_ref()
            .filter(|replies| replies.by == me.incarnation);
        if before.is_some_and(|replies| replies.to == to) {
            return;
        }
        let known = |range: &RangeId| Some((*range, self.ranges.highest.get(range).copied()?));
        let (held, epochs) = match before {
            Some(replies) if broken!(RepliesFromMemory) => {
                (replies.held.clone(), replies.epochs.clone())
            }
            _ => (
                asked
                    .iter()
                    .copied()
                    .filter(|range| self.may_hold(*range))
                    .collect::<BTreeSet<RangeId>>(),
                asked.iter().filter_map(known).collect(),
            ),
        };
        if !held.is_empty() {
            // Somebody sees a Lease that does not name us: read it too.
            self.ranges.next_read = self.ranges.next_read.min(now);
        }
        self.inquiries.replies = Some(Arc::new(Replies {
            by: me.incarnation,
            to,
            held,
            epochs,
        }));
    }

    /// Whether it holds the range, or may without another word: by a claim that is under way, or by what it
    /// has acknowledged.
    fn may_hold(&self, range: RangeId) -> bool {
        let held = self.handoff.held.contains_key(&range);
        let claimed = self.ranges.claims.contains_key(&range) && !broken!(ForgetsItsClaims);
        (held || claimed || self.handoff.kept.contains_key(&range)) && !broken!(DeniesWhatItHolds)
    }

    /// Ranges whose Lease is missing or not to be trusted: before we claim one, every live member says that
    /// it does not hold it, by gRPC or in its Lease.
    pub(super) fn inquire(&mut self, now: Time, placed: Option<&[u16]>, out: &mut Vec<Effect>) {
        // One that takes long does not keep others waiting which have become doubtful meanwhile.
        let may_begin = match &self.inquiries.current {
            Some(inquiry) => now >= inquiry.since + self.config.lease_duration,
            None => self.inquiries.next_at <= now,
        };
        if may_begin {
            let ranges: BTreeSet<RangeId> = (0..self.config.ranges)
                .filter(|range| self.is_doubtful(now, *range, placed))
                .collect();
            let asked = |inquiry: &Inquiry| ranges.is_subset(&inquiry.ranges);
            if !self.inquiries.current.as_ref().is_some_and(asked) {
                let before = self.inquiries.current.take();
                if before.is_some() {
                    reachable!(InquiryReplaced);
                }
                if !ranges.is_empty() {
                    self.ask_all(now, ranges, before.as_ref(), out);
                }
            }
        }
        let noticed = |since: &Time| now.saturating_sub(*since) >= self.config.lease_duration;
        let (reads_good, name) = (self.reads_good(now), &self.config.name);
        let replicas = &self.members.seen;
        let ended = |holder: &Holder| {
            let seen = replicas.get(&holder.name);
            seen.is_some_and(|seen| seen.lease.ended.contains(&holder.incarnation))
        };
        self.takeover.vanished.retain(|holder, since| {
            holder.name != *name && !ended(holder) && !(reads_good && noticed(since))
        });
        let Some(mut inquiry) = self.inquiries.current.take() else {
            return;
        };
        self.read_replies(now, &mut inquiry);
        if broken!(ClaimsWithoutAsking) {
            inquiry.waiting.clear();
        }
        if broken!(VanishedAreNotWaitedFor) {
            self.takeover.vanished.clear();
        }
        if inquiry.ranges.is_empty() {
            // All of them are held, or somebody wrote their Leases: if not, they are asked for again.
            self.inquiries.next_at = now + self.config.retry_period;
            return;
        }
        if !inquiry.waiting.is_empty() || !self.takeover.vanished.is_empty() {
            if inquiry.waiting.is_empty() {
                reachable!(VanishedWaitedFor);
            }
            self.remind(now, &mut inquiry, out);
            self.inquiries.current = Some(inquiry);
            return;
        }
        let is_doubtful = |range: &RangeId| self.is_doubtful(now, *range, placed);
        if placed.is_none() && !inquiry.ranges.iter().any(is_doubtful) {
            // Whose they are is open for a moment: the answers count afterwards as well.
            self.inquiries.current = Some(inquiry);
            return;
        }
        for range in inquiry.ranges {
            if self.is_doubtful(now, range, placed) {
                let lease = self.ranges.leases.get(&range);
                let (version, from) = (
                    lease.map(|lease| lease.version),
                    lease.and_then(|lease| lease.holder.clone()),
                );
                reachable!(DoubtfulClaimed);
                self.claim(now, range, version, from, out);
            }
        }
    }

    /// Takes the answers that stand in replica Leases. One counts when everything has been seen that happened
    /// to range Leases before it was written; the same holds for a member's end.
    fn read_replies(&mut self, now: Time, inquiry: &mut Inquiry) {
        let Some(me) = self.me() else { return };
        let mut read = Vec::new();
        let mut late = false;
        for holder in inquiry.waiting.keys() {
            let seen = self.members.seen.get(&holder.name).map(|seen| &seen.lease);
            let Some(lease) = seen else {
                // Deleted by hand: it is waited for as one that has vanished.
                read.push((holder.clone(), None));
                continue;
            };
            let replies = match lease.incarnation == Some(holder.incarnation.clone()) {
                true => {
                    let replies = lease.status.replies.as_ref();
                    let answered = |replies: &&Arc<Replies>| {
                        let number = replies.to.get(&me);
                        replies.by == holder.incarnation
                            && (number == Some(&inquiry.id)
                                || number.is_some() && broken!(AnyReplyCounts))
                    };
                    let Some(replies) = replies.filter(answered) else {
                        continue;
                    };
                    Some(Arc::clone(replies))
                }
                false => None,
            };
            match lease.version <= self.ranges.as_of {
                true => read.push((holder.clone(), replies)),
                false => late = true,
            }
        }
        if late {
            let grace = self.config.retry_period / SHORT_PARTS;
            self.ranges.next_read = self.ranges.next_read.min(now + grace);
        }
        for (holder, replies) in read {
            inquiry.waiting.remove(&holder);
            let Some(replies) = replies else { continue };
            reachable!(ReplyInLease);
            inquiry.ranges.retain(|range| !replies.held.contains(range));
            for (range, epoch) in &replies.epochs {
                if *range < self.config.ranges {
                    self.raise(*range, *epoch);
                }
            }
        }
    }

    /// Asks those again who did not answer, and says for whom it waits.
    fn remind(&mut self, now: Time, inquiry: &mut Inquiry, out: &mut Vec<Effect>) {
        for (to, asked) in &mut inquiry.waiting {
            if asked.retry_at.is_some_and(|at| at <= now)
                && let Some(seen) = self.members.seen.get(&to.name)
            {
                asked.retry_at = None;
                out.push(Effect::AskHolds {
                    inquiry: inquiry.id,
                    to: to.clone(),
                    address: seen.lease.status.address.clone(),
                    ranges: inquiry.ranges.iter().copied().collect(),
                });
            }
        }
        if inquiry.report_at <= now {
            inquiry.report_at = now + self.config.retry_period * DOUBT_REPORT_PERIODS;
            let vanished = self.takeover.vanished.keys().cloned();
            out.push(Effect::Happened(Happening::Doubtful {
                ranges: inquiry.ranges.clone(),
                asked: now.saturating_sub(inquiry.doubtful_since),
                waiting: inquiry.waiting.keys().cloned().chain(vanished).collect(),
            }));
        }
    }

    fn is_doubtful(&self, now: Time, range: RangeId, placed: Option<&[u16]>) -> bool {
        if self.handoff.held.contains_key(&range) || !self.may_claim(now, range) {
            return false;
        }
        match self.ranges.leases.get(&range).map(|lease| &lease.holder) {
            Some(Some(holder)) => Some(holder) == self.me().as_ref(),
            Some(None) | None => self.is_placed_here(range, placed),
        }
    }

    fn ask_all(
        &mut self,
        now: Time,
        ranges: BTreeSet<RangeId>,
        before: Option<&Inquiry>,
        out: &mut Vec<Effect>,
    ) {
        let Some(me) = self.me() else { return };
        self.inquiries.count += 1;
        let others: Vec<(Holder, String)> = self
            .members
            .seen
            .values()
            .filter_map(|seen| Some((seen.lease.holder()?, seen.lease.status.address.clone())))
            .filter(|(holder, _)| holder.name != self.config.name)
            .collect();
        for (to, address) in &others {
            out.push(Effect::AskHolds {
                inquiry: self.inquiries.count,
                to: to.clone(),
                address: address.clone(),
                ranges: ranges.iter().copied().collect(),
            });
        }
        let waiting = others.into_iter();
        let question = Question {
            by: me.incarnation,
            number: self.inquiries.count,
            ranges: ranges.clone(),
        };
        self.inquiries.current = Some(Inquiry {
            id: self.inquiries.count,
            ranges,
            waiting: waiting
                .map(|(holder, _)| (holder, Asked { retry_at: None }))
                .collect(),
            question: Arc::new(question),
            published: false,
            since: now,
            doubtful_since: before.map_or(now, |before| before.doubtful_since),
            report_at: before.map_or(now + self.config.lease_duration, |before| before.report_at),
        });
    }
}
