//! Keys that are due go to workers, and what becomes of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use actix::{ActorFutureExt, AsyncContext, Context, WrapFuture};
use controllers_kit::{Key, ObjectRef, Str};
use coordinator::Care;
use inspect::Attempt;
use tokio::sync::OwnedSemaphorePermit;

use super::Range;
use super::explain::{blocker_of, millis};
use super::held_back::Alone;
use super::known::Last;
use super::marks::{is_gone, reached};
use crate::actors::pacing::{REPORTS_QUIET, plan_spacing, report_from};
use crate::gate::Stopped;
use crate::history::heat::Heat;
use crate::queue::{Monotonic, Priority, Taken};
use crate::reconcile::{Done, Job, Next, reconcile_with};
use crate::shared::{Shared, Unit};

/// A wait in the queue counts as work of the range up to this: what waits longer waits for others.
const WAIT_COUNTED_MAX: Duration = Duration::from_secs(1);

/// How long a handoff waits for events that are on their way.
pub(super) const EVENTS_GRACE: Duration = Duration::from_millis(50);

/// How often a closed fence is examined again by a range that has work.
const FENCE_POLL: Duration = Duration::from_millis(50);

/// The object under a controller's key, if the cache has it.
pub(super) fn object_of(shared: &Shared, unit: &Unit, key: &Key) -> Option<ObjectRef> {
    let primary = unit.primary()?;
    let object = shared.view.get(primary, &key.namespace, &key.name)?;
    Some(ObjectRef {
        api_version: Str::interned(&primary.api_version()),
        kind: Str::interned(primary.kind),
        key: key.clone(),
        uid: object.metadata().uid.clone(),
        resource_version: object.metadata().resource_version,
    })
}

impl Range {
    /// Asks for a permit to work where keys wait. One at a time: one that gets it takes the most urgent key
    /// then.
    pub(super) fn dispatch(&mut self, lane: u16, ctx: &mut Context<Self>) {
        // Most controllers have nothing to do at a time.
        if self
            .lanes
            .get(lane)
            .is_none_or(|lane| lane.queue.is_at_rest())
        {
            return;
        }
        if self.gate.is_frozen()
            || self.alone.is_some()
            || !self.unit(lane).ready.load(Ordering::Acquire)
        {
            return;
        }
        let now = self.now();
        let part = self.lanes.at(lane);
        let before = part.queue.pending();
        part.queue.ripen(now);
        let ripened = part.queue.pending() - before;
        let idle = part.queue.depth() == 0 || part.asking;
        for _ in 0..ripened {
            self.unit(lane).queue_metrics.added();
        }
        if idle {
            return;
        }
        if self.gate.admit() == Err(Stopped::Fenced) {
            // The queue is kept; it continues when the fence is open again, or is dropped with the range.
            self.lanes.at(lane).asking = true;
            ctx.run_later(FENCE_POLL, move |range, ctx| {
                range.lanes.at(lane).asking = false;
                range.proceed(ctx);
            });
            return;
        }
        self.lanes.at(lane).asking = true;
        let workers = Arc::clone(&self.unit(lane).workers);
        ctx.spawn(
            workers
                .acquire()
                .into_actor(self)
                .map(move |permit, range, ctx| {
                    range.lanes.at(lane).asking = false;
                    if let Some(permit) = permit {
                        range.start_one(lane, permit, ctx);
                    }
                    range.proceed(ctx);
                }),
        );
    }

    /// Takes the most urgent key whose marks the cache has reached.
    fn start_one(&mut self, lane: u16, permit: OwnedSemaphorePermit, ctx: &mut Context<Self>) {
        if self.gate.admit().is_err() || self.alone.is_some() {
            return;
        }
        let now = self.now();
        let care = match self
            .shared
            .watchlist
            .list()
            .careful
            .contains(&self.gate.range)
        {
            true => Care::Announced,
            false => Care::None,
        };
        let mut permit = Some(permit);
        while let Some(taken) = self.lanes.at(lane).queue.take(now) {
            if self.pauses(lane, &taken, now) || self.holds_back(lane, &taken.key, now) {
                self.lanes.at(lane).queue.done(&taken.key);
            } else if self.start(lane, taken, care, &mut permit, ctx) {
                return;
            }
        }
    }

    /// Starts a key that was taken from its queue, unless it has to wait for its marks or its time; whether
    /// it has begun.
    pub(super) fn start(
        &mut self,
        lane: u16,
        taken: Taken,
        care: Care,
        permit: &mut Option<OwnedSemaphorePermit>,
        ctx: &mut Context<Self>,
    ) -> bool {
        let now = self.now();
        let shared = Arc::clone(&self.shared);
        let part = self.lanes.at(lane);
        let known = part.known.entry(taken.key.clone()).or_default();
        if known.parked {
            // The task that waits for its marks wakes it.
            part.queue.done(&taken.key);
            return false;
        }
        // One that takes the range next announces it again: a change that makes it kill costs one more death.
        let care = match care {
            Care::Announced if known.survived => Care::None,
            care => care,
        };
        let descriptor = shared.units[usize::from(lane)].controller.descriptor();
        let spaced = known
            .report_from
            .filter(|_| descriptor.min_sync_interval.is_some());
        let from = spaced
            .unwrap_or_default()
            .seen
            .max(known.late_write_until)
            .max(self.begins)
            .max(known.plan_from);
        if now < from {
            part.queue.done(&taken.key);
            part.queue.add_at(&taken.key, from);
            return false;
        }
        known.marks.retain(|mark| !reached(&shared, mark));
        let marks = known.marks.clone();
        if let Some(horizon) = self.horizons.get_mut(&lane) {
            horizon.marks.retain(|mark| !reached(&shared, mark));
            if horizon.marks.is_empty() {
                self.horizons.remove(&lane);
            }
        }
        let horizon = self
            .horizons
            .get(&lane)
            .map(|horizon| horizon.reached.clone());
        if !marks.is_empty() || horizon.is_some() {
            known.parked = true;
            if shared.traces.is_some() {
                known.woken.get_or_insert_default().park(taken.waited);
            }
            part.queue.done(&taken.key);
            self.park(lane, taken.key, marks, horizon, taken.priority, ctx);
            return false;
        }
        let failures = match shared.traces {
            Some(_) => part.queue.failures(&taken.key),
            None => 0,
        };
        let memory = known
            .memory
            .take()
            .unwrap_or_else(|| shared.units[usize::from(lane)].controller.new_memory());
        let job = Job {
            unit: lane,
            key: taken.key.clone(),
            memory,
            sender: part.sender.clone(),
            unproven: known.doubtful || (self.unproven && !known.proven),
            head_unproven: self.unproven && !known.head_proven,
            settled: (!known.doubtful).then_some(self.settled),
            evidence: known.evidence,
            report_from: known.report_from.unwrap_or_default(),
            waited: taken.waited,
            low_priority: taken.priority == Priority::Low,
            failures,
            woken: known.woken.take(),
            link: known.link.take(),
            is_first: known
                .last
                .as_ref()
                .is_none_or(|last| matches!(last.next, Next::Stopped(_))),
            origin: known.origin.take(),
            permit: permit.take(),
        };
        self.stats.tally.waited(job.waited);
        // Keys of a range that was gained wait behind all others: that says nothing of its work.
        if taken.priority == Priority::High {
            self.stats.was_busy(taken.waited.min(WAIT_COUNTED_MAX));
        }
        self.working.push((lane, taken.key));
        ctx.spawn(reconcile_with(shared, job, care).into_actor(self).map(
            move |done, range, ctx| {
                range.finished(done);
                range.proceed(ctx);
            },
        ));
        true
    }

    // A function of its own in each build: suites have a thread panic where it is entered.
    #[inline(never)]
    fn finished(&mut self, mut done: Done) {
        let now = self.now();
        self.working
            .retain(|(lane, key)| *lane != done.unit || *key != done.key);
        self.stats.reconciles.fetch_add(1, Ordering::Relaxed);
        self.stats.tally.worked(done.took);
        self.shared.writes.fetch_add(done.writes, Ordering::Relaxed);
        let shared = Arc::clone(&self.shared);
        let unit = &shared.units[usize::from(done.unit)];
        let part = self.lanes.at(done.unit);
        let known = part.known.entry(done.key.clone()).or_default();
        known.marks.append(&mut done.marks);
        known.doubtful = done.doubtful || (known.doubtful && !done.proven);
        if done.late_write {
            known.late_write_until = now + shared.fence.late_write_max();
        }
        let stopped = matches!(done.next, Next::Stopped(_));
        let carried_out = !stopped && !done.dropped;
        known.survived |= carried_out;
        known.proven |= done.proven;
        known.head_proven |= done.head_proven;
        let min_sync_interval = unit.controller.descriptor().min_sync_interval;
        if done.reported {
            known.row = match known.report_from {
                Some(from) if now < from.seen + REPORTS_QUIET => known.row.saturating_add(1),
                _ => 1,
            };
            known.report_from = Some(report_from(
                min_sync_interval,
                known.row,
                done.writes,
                done.objects,
                (done.since, now),
            ));
        }
        if !stopped && !matches!(done.next, Next::Now | Next::Replan) {
            known.plan_from = done.since + plan_spacing(min_sync_interval, done.objects);
        }
        // What follows from this attempt, and from no change, is linked to it.
        if stopped || matches!(done.next, Next::Now | Next::Replan | Next::Backoff { .. }) {
            known.link.clone_from(&done.trace);
        }
        match &done.next {
            Next::Change => part.queue.forget(&done.key),
            Next::After(delay) => {
                part.queue.forget(&done.key);
                part.queue.add_at(&done.key, now + *delay);
            }
            Next::Postponed(delay) => part.queue.add_at(&done.key, now + *delay),
            Next::Now | Next::Replan | Next::Stopped(_) => {
                if done.next == Next::Now {
                    part.queue.forget(&done.key);
                }
                part.queue.add(&done.key, Priority::High, now);
                unit.queue_metrics.added();
            }
            Next::Backoff { error, .. } => {
                match error {
                    true => part.queue.add_after_failure(&done.key, now),
                    false => part.queue.add_after_conflict(
                        &done.key,
                        now.saturating_sub(done.since),
                        now,
                    ),
                };
                unit.queue_metrics.retried();
            }
        }
        part.queue.done(&done.key);

        let own = |alone: &Alone| alone.place.0 == done.unit && alone.place.1 == done.key;
        if self.alone.as_ref().is_some_and(own) {
            self.finished_alone(carried_out);
        }
        self.note_attempt(&done, now);
        let part = self.lanes.at(done.unit);
        let known = part.known.entry(done.key.clone()).or_default();

        let fresh = unit.controller.is_fresh(&done.memory);
        // The object is gone and nothing is left to do or to remember, but for what the cache has still to
        // see.
        if fresh && !part.queue.knows(&done.key) && is_gone(&shared, unit, &done.key) {
            known.marks.retain(|mark| !reached(&shared, mark));
            if known.marks.is_empty() {
                part.forget(&done.key);
                return;
            }
            self.leaving.push((done.unit, done.key));
        }
        known.memory = (!fresh).then_some(done.memory);
        let mut heat = known
            .last
            .take()
            .map_or_else(Heat::default, |last| last.heat);
        heat.add(now, done.took);
        self.stats.was_busy(now.saturating_sub(done.since));
        known.last = Some(Box::new(Last {
            trouble: done.trouble,
            waits: done.waits,
            heat,
            at: done.began,
            took: done.took,
            waited: done.waited,
            next: done.next,
            plan: done.plan,
            objects: done.objects,
            trace: done.trace,
        }));
    }

    /// Keeps an attempt of a key that fails, and the one by which it recovers.
    fn note_attempt(&mut self, done: &Done, now: Monotonic) {
        let part = self.lanes.at(done.unit);
        let known = part.known.entry(done.key.clone()).or_default();
        // What was given up, dropped or put off says nothing of what failed before.
        let is_over = !matches!(
            done.next,
            Next::Stopped(_) | Next::Replan | Next::Postponed(_)
        );
        if done.trouble.is_none() && !(known.unhappy && is_over) {
            return;
        }
        let place = part.queue.place(&done.key, now);
        let failures = place.as_ref().map_or(0, |place| place.failures);
        let conflict = matches!(done.next, Next::Backoff { error: false, .. });
        // A conflict says nothing of what failed before; a refusal without back-off counts as a failure too.
        let failures = match done.trouble.is_some() || conflict {
            true => failures.max(1),
            false => 0,
        };
        known.unhappy = failures > 0;
        let attempt = Attempt {
            at: done.began.to_string(),
            waited_ms: Some(millis(done.waited)),
            took_ms: done.took.as_secs_f64() * 1000.0,
            result: done.result.to_owned(),
            error: match (&done.trouble, &done.next) {
                (Some(trouble), _) => trouble.why.clone(),
                (None, Next::Backoff { why, .. }) => why.clone(),
                (None, _) => String::new(),
            },
            code: done.trouble.as_ref().and_then(|trouble| trouble.code),
            blocker: done
                .trouble
                .as_ref()
                .and_then(|trouble| blocker_of(trouble, &done.key)),
            woken_by: match (&done.origin, failures) {
                (Some(origin), _) => origin.to_string(),
                (None, 0 | 1) => "its own timer, a start or a gained range".to_owned(),
                (None, _) => "retry after its failure".to_owned(),
            },
            next_in_ms: place.and_then(|place| place.due_in).map(millis),
        };
        let kept = (done.unit, done.key.clone());
        self.shared
            .attempts()
            .record(&kept, self.gate.range, failures, attempt, now);
    }

    /// Forgets keys of which nothing is left, the cache having come to their marks.
    pub(super) fn let_go(&mut self) {
        let shared = Arc::clone(&self.shared);
        for (lane, key) in std::mem::take(&mut self.leaving) {
            let unit = &shared.units[usize::from(lane)];
            let part = self.lanes.at(lane);
            // Whatever is still done about it ends with another check.
            let Some(known) = part
                .known
                .get_mut(&key)
                .filter(|known| !known.parked && known.memory.is_none() && !part.queue.knows(&key))
            else {
                continue;
            };
            known.marks.retain(|mark| !reached(&shared, mark));
            if !known.marks.is_empty() {
                self.leaving.push((lane, key));
            } else if is_gone(&shared, unit, &key) {
                part.forget(&key);
            }
        }
    }
}
