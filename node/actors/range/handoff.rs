//! A range's state on its way to its next owner, and from the one before.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use actix::{ActorFutureExt, AsyncContext, Context, Handler, Message, SpawnHandle, WrapFuture};
use controllers_kit::{Key, Resource, SignedDuration};
use coordinator::Frozen;
use inspect::Attempt;
use peer_proto::{ControllerState, KeyState, RangeState};
use tokio::sync::oneshot;

use super::Range;
use super::known::{Known, Lane};
use super::marks::{Horizon, is_plausible, reached};
use super::work::EVENTS_GRACE;
use crate::arbiters;
use crate::attempts::ATTEMPTS_MAX;
use crate::queue::{Monotonic, Place, Priority};
use crate::reconcile::Mark;
use crate::shared::{Shared, Unit};

pub(super) struct Freezing {
    pub(super) reply: oneshot::Sender<Frozen>,
    pub(super) force: bool,
    pub(super) deadline: SpawnHandle,
}

/// Start no key, let writes in flight end, and give out all that is known.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Freeze {
    /// How long writes in flight may take.
    pub budget: Duration,
    /// Whether the state is given out even if they have not ended.
    pub force: bool,
    /// Where the answer goes.
    pub reply: oneshot::Sender<Frozen>,
}

/// The move did not happen.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Resume;

impl Handler<Freeze> for Range {
    type Result = ();
    fn handle(&mut self, freeze: Freeze, ctx: &mut Context<Self>) {
        arbiters::hurry();
        self.gate.freeze();
        self.stats.frozen.store(true, Ordering::Relaxed);
        let deadline = ctx.run_later(freeze.budget, |range, ctx| {
            let Some(freezing) = range.freezing.take() else {
                return;
            };
            let keys = range
                .working
                .iter()
                .map(|(lane, key)| format!("{} {key}", range.unit(*lane).name()))
                .collect();
            let state = if freezing.force {
                range.pack()
            } else {
                RangeState::default()
            };
            let _gone = freezing.reply.send(Frozen::Busy { keys, state });
            if !freezing.force {
                range.thaw(ctx);
            }
        });
        self.freezing = Some(Freezing {
            reply: freeze.reply,
            force: freeze.force,
            deadline,
        });
        self.proceed(ctx);
    }
}

impl Handler<Resume> for Range {
    type Result = ();
    fn handle(&mut self, _: Resume, ctx: &mut Context<Self>) {
        if let Some(freezing) = self.freezing.take() {
            ctx.cancel_future(freezing.deadline);
        }
        self.thaw(ctx);
    }
}

fn pack_mark(mark: &Mark) -> peer_proto::Mark {
    match mark {
        Mark::Version(resource, version) => peer_proto::Mark {
            resource: resource.id(),
            resource_version: *version,
            ..peer_proto::Mark::default()
        },
        Mark::Gone(resource, key, uid) | Mark::Removed(resource, key, uid) => peer_proto::Mark {
            resource: resource.id(),
            resource_version: 0,
            gone_namespace: key.namespace.to_string(),
            gone_name: key.name.to_string(),
            gone_uid: uid.to_string(),
            removed: matches!(mark, Mark::Removed(..)),
        },
    }
}

pub(in crate::actors) fn unpack_mark(shared: &Shared, mark: &peer_proto::Mark) -> Option<Mark> {
    let resource: &'static Resource = shared
        .units
        .iter()
        .flat_map(Unit::resources)
        .find(|resource| resource.is(&mark.resource))
        .or_else(|| {
            let catalogue = shared.view.catalogue();
            let mut found = catalogue.all().iter().filter(|entry| entry.preferred);
            found
                .find(|entry| entry.resource.is(&mark.resource))
                .map(|entry| entry.resource)
        })?;
    Some(if mark.gone_uid.is_empty() {
        Mark::Version(resource, mark.resource_version)
    } else {
        let key = Key::new(mark.gone_namespace.as_str(), mark.gone_name.as_str());
        let uid = mark.gone_uid.as_str().into();
        match mark.removed {
            true => Mark::Removed(resource, key, uid),
            false => Mark::Gone(resource, key, uid),
        }
    })
}

impl Range {
    pub(super) fn answer_freeze_if_still(&mut self, ctx: &mut Context<Self>) {
        if !self.working.is_empty() {
            return;
        }
        let Some(freezing) = self.freezing.take() else {
            return;
        };
        ctx.cancel_future(freezing.deadline);
        let gate = Arc::clone(&self.gate);
        let grace = async move {
            let end = tokio::time::Instant::now() + EVENTS_GRACE;
            while gate.events_pending() > 0 && tokio::time::Instant::now() < end {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        ctx.spawn(grace.into_actor(self).map(move |(), range, _| {
            range.read_inbox();
            let _gone = freezing.reply.send(Frozen::Still(range.pack()));
        }));
    }

    /// All that is known, for the next owner.
    pub(super) fn pack(&self) -> RangeState {
        let now = self.now();
        let controllers = self
            .shared
            .units
            .iter()
            .map(|unit| {
                let lane = self.lanes.get(unit.index);
                ControllerState {
                    controller: unit.name().to_owned(),
                    keys: lane.map_or_else(Vec::new, |lane| self.pack_lane(unit, lane, now)),
                    seen: self.pack_horizon(unit),
                }
            })
            .filter(|state| !state.keys.is_empty() || !state.seen.is_empty())
            .collect();
        RangeState { controllers }
    }

    /// How far this replica has seen what a controller reads. Where it knows no key, that there is none is
    /// what it has seen: one that is behind may still have one.
    fn pack_horizon(&self, unit: &Unit) -> Vec<peer_proto::Mark> {
        let mut seen: std::collections::BTreeMap<&'static Resource, u64> = self
            .horizons
            .get(&unit.index)
            .into_iter()
            .flat_map(|horizon| &horizon.marks)
            .filter_map(|mark| match mark {
                Mark::Version(resource, version) => Some((*resource, *version)),
                Mark::Gone(..) | Mark::Removed(..) => None,
            })
            .collect();
        for resource in unit.resources() {
            let version = seen.entry(resource).or_default();
            *version = (*version).max(self.shared.view.newest(resource));
        }
        seen.into_iter()
            .filter(|(_, version)| *version > 0)
            .map(|(resource, version)| pack_mark(&Mark::Version(resource, version)))
            .collect()
    }

    fn pack_lane(&self, unit: &Unit, lane: &Lane, now: Monotonic) -> Vec<KeyState> {
        let mut keys: Vec<&Key> = lane.known.keys().collect();
        let places = lane.queue.places(now);
        keys.extend(places.iter().map(|place| &place.key));
        keys.extend(self.isolation.keys(unit.index));
        keys.extend(self.waiting.keys(unit.index));
        keys.sort_unstable();
        keys.dedup();
        keys.into_iter()
            .filter_map(|key| {
                let known = lane.known.get(key);
                let place = lane.queue.place(key, now);
                let working = self
                    .working
                    .iter()
                    .any(|(lane, working)| *lane == unit.index && working == key);
                let in_flight = working || known.is_some_and(|known| known.doubtful);
                // What is under way is given up with the range.
                let late_write = match working {
                    true => self.shared.fence.late_write_max(),
                    false => self.late_write_until(known).saturating_sub(now),
                };
                let parked = known.is_some_and(|known| known.parked);
                let (held_back, passes, deaths) = self.isolation.pack(&(unit.index, key.clone()));
                let waited = place.as_ref().and_then(|place| place.waited);
                let paused = self.waiting.since(unit.index, key);
                let marks: Vec<_> = known
                    .into_iter()
                    .flat_map(|known| &known.marks)
                    .filter(|mark| !reached(&self.shared, mark))
                    .map(pack_mark)
                    .collect();
                let memory = known
                    .and_then(|known| known.memory.as_ref())
                    .and_then(|memory| unit.pack(key, memory));
                let state = KeyState {
                    namespace: key.namespace.to_string(),
                    name: key.name.to_string(),
                    queued: waited.is_some()
                        || parked
                        || in_flight
                        || held_back
                        || paused.is_some(),
                    low_priority: waited.is_some_and(|(_, priority)| priority == Priority::Low),
                    failures: place.as_ref().map_or(0, |place| place.failures),
                    due_in_ms: place
                        .as_ref()
                        .and_then(|place| place.due_in)
                        .map(|due| u64::try_from(due.as_millis()).unwrap_or(u64::MAX)),
                    waited_ms: waited
                        .map(|(waited, _)| waited)
                        .or_else(|| Some(now.saturating_sub(paused?)))
                        .map_or(0, |waited| {
                            u64::try_from(waited.as_millis()).unwrap_or(u64::MAX)
                        }),
                    marks,
                    memory,
                    packed_at_ms: self.shared.clock.now().as_millisecond(),
                    traceparent: known
                        .and_then(|known| known.last.as_ref())
                        .and_then(|last| last.trace.as_deref())
                        .unwrap_or_default()
                        .to_owned(),
                    in_flight,
                    late_write_ms: u64::try_from(late_write.as_millis()).unwrap_or(u64::MAX),
                    quarantine_passes: passes,
                    quarantine_deaths: deaths,
                    attempts: self.pack_attempts(unit, key, known),
                };
                let says_nothing = !state.queued
                    && state.failures == 0
                    && state.due_in_ms.is_none()
                    && state.marks.is_empty()
                    && state.memory.is_none()
                    && !in_flight
                    && passes == 0;
                (!says_nothing).then_some(state)
            })
            .collect()
    }

    /// The last attempts of a key that fails, as JSON; empty for all others.
    fn pack_attempts(&self, unit: &Unit, key: &Key, known: Option<&Known>) -> Vec<u8> {
        if known.is_none_or(|known| !known.unhappy) {
            return Vec::new();
        }
        let recent = self.shared.attempts().of(&(unit.index, key.clone()));
        let packed = recent.and_then(|recent| serde_json::to_vec(&recent.attempts).ok());
        packed.unwrap_or_default()
    }

    /// Keeps the attempts of the owner before; what can't be read is left out.
    fn restore_attempts(&mut self, lane: u16, key: &Key, state: &KeyState, now: Monotonic) {
        let attempts: Vec<Attempt> = serde_json::from_slice(&state.attempts).unwrap_or_default();
        let skipped = attempts.len().saturating_sub(ATTEMPTS_MAX);
        let range = self.gate.range;
        for attempt in attempts.into_iter().skip(skipped) {
            let known = self.lanes.at(lane).known.entry(key.clone()).or_default();
            known.unhappy = true;
            let place = (lane, key.clone());
            let failures = state.failures.max(1);
            self.shared
                .attempts()
                .record(&place, range, failures, attempt, now);
        }
    }

    /// Takes over what another replica knew. What it says is a hint: a controller or resource that is not
    /// known here is passed over, and its keys are queued like all others when the range is gained.
    pub(super) fn restore(&mut self, state: &RangeState) {
        let now = self.now();
        for part in &state.controllers {
            let shared = Arc::clone(&self.shared);
            let mut units = shared.units.iter();
            let Some(unit) = units.find(|unit| unit.name() == part.controller) else {
                continue;
            };
            let horizon = part
                .seen
                .iter()
                .filter_map(|mark| unpack_mark(&shared, mark))
                .filter(|mark| is_plausible(&shared, unit, mark))
                .collect();
            let horizon = Horizon::new(&shared, unit.name(), horizon);
            self.horizons.insert(unit.index, horizon);
            for key_state in &part.keys {
                let key = Key::new(key_state.namespace.as_str(), key_state.name.as_str());
                if shared.range_of(unit, &key) != self.gate.range {
                    continue;
                }
                let lane = self.lanes.at(unit.index);
                let priority = if key_state.low_priority {
                    Priority::Low
                } else {
                    Priority::High
                };
                lane.queue.restore(
                    &Place {
                        key: key.clone(),
                        waited: key_state
                            .queued
                            .then_some((Duration::from_millis(key_state.waited_ms), priority)),
                        due_in: key_state.due_in_ms.map(Duration::from_millis),
                        failures: key_state.failures,
                    },
                    now,
                );
                if key_state.quarantine_passes > 0 {
                    let place = (unit.index, key.clone());
                    let (passes, deaths) =
                        (key_state.quarantine_passes, key_state.quarantine_deaths);
                    self.isolation.restore(place, passes, deaths);
                }
                let known = lane.known.entry(key.clone()).or_default();
                // What had happened to it by then is not known here.
                known.evidence = shared.view.newest_of_all();
                known.marks = key_state
                    .marks
                    .iter()
                    .filter_map(|mark| unpack_mark(&shared, mark))
                    .collect();
                let marks = known.marks.len();
                known.marks.retain(|mark| is_plausible(&shared, unit, mark));
                // What was written for the key is not known then: it is fetched, as after a takeover.
                let believed = known.marks.len() == marks;
                known.memory = key_state.memory.as_ref().map(|bytes| {
                    // The way from one to the other counts as no time: instants end up a little late, ages
                    // right.
                    let by = match key_state.packed_at_ms {
                        0 => 0,
                        packed_at => {
                            let here = shared.clock.now().as_millisecond();
                            here.saturating_sub(packed_at)
                        }
                    };
                    unit.unpack(&key, bytes, SignedDuration::from_millis(by))
                });
                known.link = (!key_state.traceparent.is_empty())
                    .then(|| key_state.traceparent.as_str().into());
                // A write was under way: what it did is only known from the API server.
                let late_write = Duration::from_millis(key_state.late_write_ms);
                known.late_write_until = now + late_write.min(shared.fence.late_write_max());
                known.proven = !key_state.in_flight && believed;
                known.head_proven = known.proven;
                self.unproven |= !known.proven;
                if !known.marks.is_empty() && known.memory.is_none() {
                    self.leaving.push((unit.index, key.clone()));
                }
                self.restore_attempts(unit.index, &key, key_state, now);
            }
        }
    }

    fn thaw(&mut self, ctx: &mut Context<Self>) {
        self.gate.resume();
        self.stats.frozen.store(false, Ordering::Relaxed);
        self.proceed(ctx);
    }
}
