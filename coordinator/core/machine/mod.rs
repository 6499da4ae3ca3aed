//! The replica's decisions: whom to call dead, what to take, what to hand over, what to let go.
//!
//! Kept true:
//! * A range is held only while its Lease, as last seen, names this incarnation at the epoch held, and only
//!   if this replica wrote that itself or has the state that the owner before handed over. Any other claim is
//!   checked with every live member first.
//! * A range is taken from another only after that incarnation has lost its replica Lease by
//!   compare-and-swap, or has not held it for a whole lease duration of good reads. Before, its fence has
//!   closed.
//! * Epochs written grow: each is above all that were ever seen for the range.
//!
//! Every input is absorbed into the view, then all rules run over the whole view. So the order and number of
//! inputs decide how fast something happens, never whether it does.

mod handoff;
mod inquiry;
mod members;
mod planning;
mod ranges;
mod takeover;
mod view;

use std::{sync::Arc, time::Duration};

use self::{
    handoff::Handoff,
    inquiry::Inquiries,
    members::{Members, Own},
    planning::Planning,
    ranges::Ranges,
    takeover::Takeover,
};
pub use self::{
    members::REPLICAS_MAX,
    planning::{Pin as RangePin, Pinned, Planned},
    view::{Member, Move, RangeOwner, View, ViewFence},
};
use crate::{
    deaths::unix_second,
    event::{Effect, Fatal, Happening, Input},
    lease::{Pin, RangeId, Time},
    mutation::broken,
};

/// What holds a range up is tried again after this part of a retry period: a swap without a clear answer,
/// orphans whose owner's end the watch has not passed yet.
const SHORT_PARTS: u32 = 5;

/// A replica's configuration.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// The replica's name.
    pub name: String,
    /// Where peers reach it.
    pub address: String,
    /// The key by which peers know it.
    pub pin: Option<Pin>,
    /// The pod that it runs in, `<namespace>/<name>`; empty where there is none.
    pub pod: Arc<str>,
    /// Its build, as in `0.1.0`.
    pub build: String,
    /// The fleet's number of ranges.
    pub ranges: u16,
    /// How long a replica may be silent.
    pub lease_duration: Duration,
    /// How long the API server may still execute what a process has sent that has ended since.
    pub late_write_max: Duration,
    /// Time between reads, and before anything that failed is tried again.
    pub retry_period: Duration,
    /// At a fleet's cold start no range is taken before membership has been still for so long …
    pub settle_time: Duration,
    /// … or this number of members is ready.
    pub expected_replicas: Option<u16>,
    /// Handoffs under way at once.
    pub moves_at_once: usize,
    /// How long writes in flight may take when a range is frozen.
    pub freeze_budget: Duration,
    /// The same while the replica leaves: then a range goes after it all the same, and its other keys wait no
    /// longer for one write that is slow.
    pub drain_budget: Duration,
    /// Whether the API server may be able to fence: then it is asked to before anything of the dead is taken.
    pub bars: bool,
    /// After a life that ended without leaving, a replica's share doubles in so long, from one range on; zero
    /// gives it a full share at once.
    pub slow_start: Duration,
    /// The Unix second at time 0.
    pub epoch_second: i64,
    /// Whether deaths are recorded, with the keys that were in flight.
    pub records_deaths: bool,
    /// Whether plans of placement are followed and, by the first member, made.
    pub plans: bool,
}

/// The machine: what it has seen, part by part, and the rules over all of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Core {
    config: Config,
    own: Own,
    members: Members,
    ranges: Ranges,
    takeover: Takeover,
    handoff: Handoff,
    inquiries: Inquiries,
    planning: Planning,
    manager_lease: ManagerLease,
    fatal: bool,
}

/// The fleet's hold of the manager's Lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ManagerLease {
    /// Without a term nothing is owned, and nothing that was owned in one continues in the next.
    term: Option<u64>,
    /// Whether a renewal of it was seen in time.
    fresh: bool,
    /// Who holds it instead.
    other: Option<String>,
}

impl Default for ManagerLease {
    /// As where the fleet takes no part in the manager's Lease: held in term 0.
    fn default() -> Self {
        Self {
            term: Some(0),
            fresh: true,
            other: None,
        }
    }
}

impl Core {
    /// A replica that knows nothing yet.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            own: Own::default(),
            members: Members::default(),
            ranges: Ranges::default(),
            takeover: Takeover::default(),
            handoff: Handoff::default(),
            inquiries: Inquiries::default(),
            planning: Planning::default(),
            manager_lease: ManagerLease::default(),
            fatal: false,
        }
    }

    /// From now on it asks the API server to fence.
    #[cfg(test)]
    pub(crate) fn set_bars(&mut self) {
        self.config.bars = true;
    }

    /// From now on its share doubles in so long after a crash.
    #[cfg(test)]
    pub(crate) fn set_slow_start(&mut self, step: Duration) {
        self.config.slow_start = step;
    }

    /// Takes one input and says what is to be done.
    pub fn step(&mut self, now: Time, input: Input) -> Vec<Effect> {
        self.steps(now, [input]).unwrap_or_default()
    }

    /// Takes inputs that came together, and decides once; `None` where they change nothing: then its view,
    /// its holder and the next [`Self::wake_at`] are good as they were.
    pub fn steps(
        &mut self,
        now: Time,
        inputs: impl IntoIterator<Item = Input>,
    ) -> Option<Vec<Effect>> {
        let inputs: Vec<Input> = inputs.into_iter().collect();
        let is_quiet = self.changes_nothing(&inputs);
        let mut out = Vec::new();
        if !self.fatal {
            for input in inputs {
                self.absorb(now, input, &mut out);
            }
            if !is_quiet {
                self.decide(now, &mut out);
            }
        }
        (!is_quiet).then_some(out)
    }

    /// Whether these inputs are renewals by which no rule decides otherwise than before, nor any earlier than
    /// at the next [`Self::wake_at`]. Each member of a large fleet sees those of all others all the time.
    pub(crate) fn changes_nothing(&self, inputs: &[Input]) -> bool {
        let is_bare = |input: &Input| match input {
            Input::Replica(lease) => self.is_renewal(lease),
            // What waits for the watch waits for it because of somebody who is going.
            Input::WatchedTo(_) => true,
            _ => false,
        };
        self.nobody_is_going() && !inputs.is_empty() && inputs.iter().all(is_bare)
    }

    /// All rules, in order. Each reads the whole view.
    fn decide(&mut self, now: Time, out: &mut Vec<Effect>) {
        if self.fatal {
            return;
        }
        self.forget_what_is_over(now);
        self.weigh_the_proofs(out);
        self.note_who_is_current(now);
        self.read_on_time(now, out);
        self.join_or_refuse(now, out);
        if self.fatal {
            return;
        }
        self.reply_to_questions(now);
        self.publish_status(now, out);
        if !self.is_held() {
            return;
        }
        self.watch_the_unproven(now);
        self.read_ranges_if_the_watch_lags(now, out);
        self.settle_claims(now, out);
        self.forget_what_was_kept_in_vain(now, out);
        self.open_the_fence_after_reading(now, out);
        self.retry_what_had_no_answer(now, out);
        let acts = (self.is_open(now) || broken!(FencedDecides)) && !self.own.left;
        // Who does not see the hold renewed may not know yet that the term is over.
        let moves = acts && self.manager_lease.term.is_some() && self.manager_lease.fresh;
        if acts {
            self.ask_pods_of_the_late(now, out);
            self.evict_the_silent(now, out);
            self.bar_the_dead(now, out);
            let placed = self.placement(now);
            if self.manager_lease.term.is_some() {
                self.delete_the_damaged(now, placed.as_deref(), out);
                self.inquire(now, placed.as_deref(), out);
                self.take_orphans(now, placed.as_deref(), out);
            }
            if moves {
                self.hand_over(now, placed.as_deref(), out);
                self.plan_ahead(now, out);
            }
        }
        if !moves {
            // What keys wait for while nobody can write is no load that a move would take off anybody.
            self.planning.pauses();
        }
        self.finish_the_drain(now, out);
    }

    fn absorb(&mut self, now: Time, input: Input, out: &mut Vec<Effect>) {
        match input {
            Input::Tick => {}
            Input::Own(own) => self.own_changed(now, own, out),
            Input::Replicas {
                started,
                version,
                leases,
            } => {
                if !self.went_back(started, version, out) {
                    self.replicas_read(now, started, version, leases);
                }
            }
            Input::ReplicasFailed => self.members.failed(),
            Input::Ranges {
                started,
                version,
                leases,
            } => self.ranges_read(now, started, version, leases),
            Input::WatchedTo(version) => self.watched_to(now, version),
            Input::RangesFailed => self.ranges.failed(now + self.config.retry_period),
            Input::Replica(lease) => self.see_replica(now, lease),
            Input::ReplicaGone { name, version } => self.replica_deleted(now, &name, version),
            Input::Range(lease) => self.see_range(lease),
            Input::RangeGone { range, version } => self.range_deleted(range, version),
            Input::RangeDeleted {
                range,
                version,
                result,
            } => self.deletion_ended(now, range, version, result),
            Input::ProvenDead(holder) => self.proof_of_death(now, holder),
            Input::NotProven(holder) => self.no_proof_of_death(now, &holder),
            Input::Evicted { name, result } => self.eviction_ended(now, &name, result, out),
            Input::Claimed { range, result } => self.claim_ended(now, range, result),
            Input::Swapped { range, result } => self.swap_ended(now, range, result, out),
            // Once ready, always ready: an owner whose caches lag for a moment still serves better than a
            // move.
            Input::HostReady(ready) => self.own.host_ready |= ready,
            Input::HostCurrent(true) => self.own.stale_since = None,
            Input::HostCurrent(false) => {
                self.own.stale_since.get_or_insert(now);
            }
            Input::ServerFenced(fenced) => self.own.server_fenced = fenced,
            Input::Fingerprints(fingerprints) => self.own.fingerprints = fingerprints.into(),
            Input::Demand(class) => self.own.demand = Some(class),
            Input::Unreachable(names) => self.own.unreachable = names.into(),
            Input::Frozen { range, epoch, busy } => self.frozen(now, range, epoch, busy, out),
            Input::Sent {
                range,
                attempt,
                result,
            } => self.sent(now, range, attempt, result, out),
            Input::Offered(offer) => self.offered(now, offer, out),
            Input::SwapAnnounced { from, range, epoch } => {
                self.swap_announced(&from, range, epoch, out);
            }
            Input::HoldsAsked { id, ranges } => self.holds_asked(now, id, ranges, out),
            Input::HoldsAnswered {
                inquiry,
                from,
                result,
            } => self.holds_answered(now, inquiry, &from, result),
            Input::Barred(holder) => {
                if let Some(answered) = self.takeover.barred.get_mut(&holder) {
                    *answered = true;
                }
            }
            Input::Move { range, to } => {
                if self.handoff.held.contains_key(&range) {
                    self.handoff.wished.insert(range, to);
                }
            }
            input @ (Input::Plan(_)
            | Input::PlanGone(_)
            | Input::PlanWritten(_)
            | Input::Pins(_)) => self.absorb_plan(now, input, out),
            Input::Hold { term, fresh, other } => self.hold_changed(term, fresh, other, out),
            Input::Drain(until) => {
                let before = self.own.drain_until;
                self.own.drain_until = Some(before.map_or(until, |before| before.min(until)));
            }
        }
    }

    /// Another holder of the manager's Lease between two terms may have written: what is owned is dropped,
    /// and taken again as after a crash.
    fn hold_changed(
        &mut self,
        term: Option<u64>,
        fresh: bool,
        other: Option<String>,
        out: &mut Vec<Effect>,
    ) {
        self.manager_lease.fresh = fresh;
        let ranges = match self.manager_lease.term == term {
            true => Vec::new(),
            false => self.drop_everything(out),
        };
        if !ranges.is_empty() || (other.is_some() && self.manager_lease.other != other) {
            out.push(Effect::Happened(Happening::Standby {
                holder: other.clone(),
                ranges,
            }));
        }
        if term.is_some() && self.manager_lease.term != term {
            out.push(Effect::Happened(Happening::Holds));
        }
        self.manager_lease.other = other;
        self.manager_lease.term = term;
    }

    /// The fleet's term of the manager's Lease that everything owned belongs to.
    pub fn hold(&self) -> Option<u64> {
        self.manager_lease.term
    }

    fn drop_everything(&mut self, out: &mut Vec<Effect>) -> Vec<RangeId> {
        let ranges: Vec<RangeId> = std::mem::take(&mut self.handoff.held).into_keys().collect();
        out.extend(ranges.iter().map(|range| Effect::Lost(*range)));
        out.extend(
            std::mem::take(&mut self.handoff.kept)
                .into_keys()
                .map(Effect::Forget),
        );
        self.ranges.claims.clear();
        self.handoff.put_off.clear();
        self.handoff.oversized.clear();
        self.inquiries.current = None;
        ranges
    }

    fn fail(&mut self, fatal: Fatal, out: &mut Vec<Effect>) {
        self.fatal = true;
        out.push(Effect::Fatal(fatal));
    }

    /// The Unix second, by the clock of this machine as it was at time 0.
    fn second(&self, now: Time) -> i64 {
        unix_second(self.config.epoch_second, now)
    }

    /// When time alone may change a decision.
    pub fn wake_at(&self, now: Time) -> Time {
        let mut at = now + self.config.retry_period;
        let mut sooner = |then: Time| {
            if then > now {
                at = at.min(then);
            }
        };
        self.members.wakes(&self.config, &mut sooner);
        self.ranges.wakes(&mut sooner);
        self.takeover.wakes(&self.config, &mut sooner);
        self.handoff
            .wakes(&self.config, self.own.drain_until, &mut sooner);
        self.inquiries.wakes(&self.config, &mut sooner);
        self.own.drain_until.into_iter().for_each(&mut sooner);
        at
    }
}
