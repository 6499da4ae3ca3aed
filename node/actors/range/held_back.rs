//! Keys that do not begin though they are due: paused ones and quarantined ones.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use actix::{ActorFutureExt, AsyncContext, Context, WrapFuture};
use controllers_kit::{Event, EventType, Key, ObjectRef, Str};
use coordinator::{Care, Suspicion, Work};
use tokio::sync::OwnedSemaphorePermit;

use super::Range;
use super::marks::version_of;
use super::work::object_of;
use crate::quarantine;
use crate::quarantine::{PASS_SPACING, Verdict};
use crate::queue::{Monotonic, Priority, Taken};
use crate::shared::Unit;
use crate::steer::SPEAKER;
use crate::steer::in_force::Change;

/// How often it is checked whose turn has come of the quarantined keys, while any waits …
const ISOLATION_CHECK: Duration = Duration::from_secs(1);

/// … and while none does, whether they are still suspected.
const ISOLATION_CHECK_IDLE: Duration = Duration::from_secs(10);

/// The reason of the event at the object of a quarantined key.
const QUARANTINED: &str = "ReconcileQuarantined";

/// A quarantined key whose turn it is.
pub(super) struct Alone {
    pub(super) place: quarantine::Place,
    /// A permit of its controller is waited for, or it is being reconciled.
    pub(super) begun: bool,
    /// No other quarantined key of this process has its turn meanwhile.
    pub(super) _turn: OwnedSemaphorePermit,
}

impl Range {
    /// Whether a key that was taken from its queue is paused: it waits for the end of the pause then.
    pub(super) fn pauses(&mut self, lane: u16, taken: &Taken, now: Monotonic) -> bool {
        let shared = Arc::clone(&self.shared);
        if shared.steering.in_force().pause(lane, &taken.key).is_none() {
            return false;
        }
        let since = now.saturating_sub(taken.waited);
        if self.waiting.put(lane, taken.key.clone(), since) {
            return true;
        }
        self.stats.unscanned.insert(lane);
        // The pause may have ended since it was asked for, and the controller been scanned before this range
        // had noted that it must be.
        shared.steering.in_force().pause(lane, &taken.key).is_some()
    }

    /// Enqueues the keys that are paused no more, where the orders have changed.
    pub(super) fn end_pauses(&mut self) {
        let shared = Arc::clone(&self.shared);
        let in_force = shared.steering.in_force();
        if self.compared != in_force.generation {
            self.compared = in_force.generation;
            let is_paused = |lane: u16, key: &Key| in_force.pause(lane, key).is_some();
            for (lane, key) in self.waiting.take(is_paused) {
                self.add(lane, &key, Priority::High);
            }
        }
        if self.waiting.is_empty() && self.waiting_counted.is_empty() {
            return;
        }
        self.count_waiting();
    }

    /// Has metrics say how many keys wait for the end of a pause.
    pub(super) fn count_waiting(&mut self) {
        self.waiting_counted.resize(self.shared.units.len(), 0);
        for (unit, counted) in self.shared.units.iter().zip(&mut self.waiting_counted) {
            let count = self.waiting.count(unit.index);
            if count != *counted {
                let more = i64::try_from(count).unwrap_or(0) - i64::try_from(*counted).unwrap_or(0);
                unit.metrics.paused_waiting(more);
                match count > *counted {
                    true => unit.paused.fetch_add(count - *counted, Ordering::Relaxed),
                    false => unit.paused.fetch_sub(*counted - count, Ordering::Relaxed),
                };
                *counted = count;
            }
        }
        if self.waiting.is_empty() {
            self.waiting_counted = Vec::new();
        }
    }

    /// Says at an object, or at the one that has the orders, which order about it has changed.
    pub(super) fn record_order(&mut self, change: &Change, orders: Option<&ObjectRef>) {
        let shared = Arc::clone(&self.shared);
        let (controller, key) = match &change.order.target {
            steering::Target::Controller(controller)
            | steering::Target::Setting { controller, .. } => (Some(controller), None),
            steering::Target::Key { controller, key } => (Some(controller), Some(Key::parse(key))),
            // Of no controller: any of them lends its sender.
            steering::Target::Range(_) => (None, None),
            steering::Target::Replica(_) => return,
        };
        let is_named = |unit: &&Unit| controller.is_none_or(|name| unit.name() == name);
        let Some(unit) = shared.units.iter().find(is_named) else {
            return;
        };
        let range = key
            .as_ref()
            .map_or(SPEAKER, |key| shared.range_of(unit, key));
        if range != self.gate.range {
            return;
        }
        let own = key.as_ref().and_then(|key| object_of(&shared, unit, key));
        let Some(about) = own.or_else(|| orders.cloned()) else {
            return;
        };
        let (reason, message) = change.event();
        let event = Event {
            about,
            r#type: EventType::Normal,
            reason: Str::interned(reason),
            message,
        };
        let sender = self.lanes.at(unit.index).sender.as_replica();
        shared.writer.record(&sender, &event);
    }

    /// Whether a key that was taken from its queue is quarantined: it waits for its turn then.
    pub(super) fn holds_back(&mut self, lane: u16, key: &Key, now: Monotonic) -> bool {
        let shared = Arc::clone(&self.shared);
        let list = shared.watchlist.list();
        if list.keys.is_empty() && self.isolation.is_empty() {
            return false;
        }
        let unit = &shared.units[usize::from(lane)];
        let suspicion = list.keys.get(&Work::name(unit.name(), key)).copied();
        let version = version_of(&shared, unit, key);
        let place = (lane, key.clone());
        let verdict = self.isolation.judge(&place, suspicion, version, now);
        if let (Verdict::HeldBack { first: true }, Some(suspicion)) = (verdict, suspicion) {
            self.report_quarantine(lane, key, suspicion);
        }
        verdict != Verdict::Free
    }

    fn report_quarantine(&mut self, lane: u16, key: &Key, suspicion: Suspicion) {
        let shared = Arc::clone(&self.shared);
        let unit = &shared.units[usize::from(lane)];
        let Suspicion { deaths, alone, .. } = suspicion;
        let held_back = quarantine::hold_back(alone);
        tracing::warn!(
            controller = unit.name(),
            %key,
            deaths,
            alone,
            held_back_seconds = held_back,
            "a key is quarantined, since replicas died while they reconciled it: it is reconciled alone and last"
        );
        let Some(about) = object_of(&shared, unit, key) else {
            return;
        };
        let event = Event {
            about,
            r#type: EventType::Warning,
            reason: Str::interned(QUARANTINED),
            message: format!(
                "{deaths} replicas ended while they reconciled this object; {} reconciles it alone, after all others{}",
                unit.name(),
                match held_back {
                    0 => String::new(),
                    seconds => format!(", {seconds}s after the last of them or when it changes"),
                }
            ),
        };
        let sender = self.lanes.at(lane).sender.as_replica();
        shared.writer.record(&sender, &event);
    }

    /// Gives a quarantined key its turn when it has come, and lets go those that are suspected no more.
    pub(super) fn isolate(&mut self, ctx: &mut Context<Self>) {
        if self.isolation.is_empty() {
            if self.stats.quarantined.load(Ordering::Relaxed) > 0 {
                self.count_quarantined();
            }
            return;
        }
        let shared = Arc::clone(&self.shared);
        let list = shared.watchlist.list();
        let unit = |lane: u16| &shared.units[usize::from(lane)];
        let free = self.isolation.review(|(lane, key)| {
            let name = Work::name(unit(*lane).name(), key);
            list.keys.get(&name).copied()
        });
        for (lane, key) in free {
            tracing::info!(controller = unit(lane).name(), %key, "a key is quarantined no more: the deaths are long ago");
            self.add(lane, &key, Priority::Low);
            self.dispatch(lane, ctx);
        }
        if self.alone.is_none() && self.gate.admit().is_ok() {
            let quiet = self.working.is_empty()
                && self.lanes.iter().all(|(_, lane)| lane.queue.depth() == 0);
            let at = (shared.clock.now().as_second(), self.now());
            let in_force = shared.steering.in_force();
            let is_free = |(lane, key): &quarantine::Place| in_force.pause(*lane, key).is_none();
            let next = self.isolation.next(at, quiet, is_free, |(lane, key)| {
                version_of(&shared, unit(*lane), key)
            });
            let turn = Arc::clone(&shared.watchlist.alone);
            if let Some(place) = next
                && unit(place.0).ready.load(Ordering::Acquire)
                && let Ok(turn) = turn.try_acquire_owned()
            {
                self.alone = Some(Alone {
                    place,
                    begun: false,
                    _turn: turn,
                });
            }
        }
        self.begin_alone(ctx);
        self.count_quarantined();
        if !self.checks_isolation && !self.isolation.is_empty() {
            self.checks_isolation = true;
            let pause = match self.isolation.has_waiting() {
                true => ISOLATION_CHECK,
                false => ISOLATION_CHECK_IDLE,
            };
            ctx.run_later(pause, |range, ctx| {
                range.checks_isolation = false;
                range.proceed(ctx);
            });
        }
    }

    /// Begins with the key whose turn it is, once nothing else of the range is in flight.
    fn begin_alone(&mut self, ctx: &mut Context<Self>) {
        let still = self.working.is_empty();
        let Some(alone) = self.alone.as_mut().filter(|alone| still && !alone.begun) else {
            return;
        };
        alone.begun = true;
        let (lane, key) = alone.place.clone();
        let workers = Arc::clone(&self.unit(lane).workers);
        ctx.spawn(
            workers
                .acquire()
                .into_actor(self)
                .map(move |permit, range, ctx| {
                    let begun = permit.is_some_and(|permit| {
                        range.gate.admit().is_ok() && range.start_alone(lane, &key, permit, ctx)
                    });
                    if !begun {
                        range.alone = None;
                    }
                    range.proceed(ctx);
                }),
        );
    }

    fn start_alone(
        &mut self,
        lane: u16,
        key: &Key,
        permit: OwnedSemaphorePermit,
        ctx: &mut Context<Self>,
    ) -> bool {
        let place = (lane, key.clone());
        let now = self.now();
        let Some(taken) = self.isolation.take(&place, now) else {
            return false;
        };
        self.lanes.at(lane).queue.start(key);
        tracing::info!(controller = self.unit(lane).name(), %key, "a quarantined key has its turn");
        self.start(lane, taken, Care::Alone, &mut Some(permit), ctx)
    }

    /// A key was reconciled alone; only a plan that was carried out shows that nobody dies of it.
    pub(super) fn finished_alone(&mut self, carried_out: bool) {
        let Some(Alone { place, .. }) = self.alone.take() else {
            return;
        };
        let now = self.now();
        if !carried_out {
            return;
        }
        let (lane, key) = &place;
        if self.isolation.passed(&place) {
            tracing::info!(
                controller = self.unit(*lane).name(),
                %key,
                "a key is quarantined no more: it was reconciled alone and nobody died"
            );
        } else {
            self.lanes.at(*lane).queue.add_at(key, now + PASS_SPACING);
        }
    }

    /// Has metrics say how many keys are quarantined.
    pub(super) fn count_quarantined(&mut self) {
        let all = self.isolation.count(None);
        self.stats.quarantined.store(all, Ordering::Relaxed);
        self.quarantined.resize(self.shared.units.len(), 0);
        for (lane, reported) in (0..).zip(&mut self.quarantined) {
            let count = match all {
                0 => 0,
                _ => self.isolation.count(Some(lane)),
            };
            if count != *reported {
                let more =
                    i64::try_from(count).unwrap_or(0) - i64::try_from(*reported).unwrap_or(0);
                self.shared.units[usize::from(lane)]
                    .metrics
                    .quarantined(more);
                *reported = count;
            }
        }
    }
}
