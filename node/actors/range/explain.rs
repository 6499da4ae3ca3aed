//! What a range answers to `/debug` and to metrics.

use std::time::Duration;

use actix::{Context, Handler, Message, MessageResult};
use controllers_kit::Key;
use node_telemetry::trace;
use serde_json::{Value, json};

use super::Range;
use crate::gate::Stopped;
use crate::history::heat::Rate;
use crate::reconcile::{Next, Trouble};

/// What is busy?
#[derive(Message)]
#[rtype(result = "Survey")]
pub struct Sample {
    /// The busiest keys that are named, at most.
    pub keys_max: usize,
    /// Keys of this namespace alone; empty for all.
    pub namespace: String,
}

/// What is busy in a range.
#[derive(Debug, Default)]
pub struct Survey {
    /// By controller's place.
    pub controllers: Vec<(u16, Busy)>,
    /// The busiest keys.
    pub keys: Vec<(u16, Key, u32, Rate)>,
}

/// How busy a controller is in a range.
#[derive(Clone, Copy, Debug, Default)]
pub struct Busy {
    /// Keys known.
    pub keys: usize,
    /// Keys that wait.
    pub queued: usize,
    /// Keys that failed when they were last reconciled.
    pub failing: usize,
    /// Of all its keys.
    pub rate: Rate,
}

/// Why does this key not move?
#[derive(Message)]
#[rtype(result = "Option<Value>")]
pub struct Explain {
    /// The controller's place in [`Shared::units`].
    pub unit: u16,
    /// The key.
    pub key: Key,
}

pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// What the API server's refusal says of what blocks a key.
pub(super) fn blocker_of(trouble: &Trouble, key: &Key) -> Option<inspect::Blocker> {
    inspect::blocker(trouble.code.unwrap_or(0), &trouble.why, &key.namespace)
}

impl Handler<Sample> for Range {
    type Result = MessageResult<Sample>;
    fn handle(&mut self, sample: Sample, _: &mut Context<Self>) -> Self::Result {
        MessageResult(self.survey(&sample))
    }
}

impl Handler<Explain> for Range {
    type Result = MessageResult<Explain>;
    fn handle(&mut self, explain: Explain, _: &mut Context<Self>) -> Self::Result {
        MessageResult(self.explain(explain.unit, &explain.key))
    }
}

impl Range {
    /// What is busy.
    fn survey(&self, sample: &Sample) -> Survey {
        let now = self.now();
        let wanted = |key: &Key| sample.namespace.is_empty() || key.namespace == *sample.namespace;
        let mut survey = Survey::default();
        for (at, lane) in self.lanes.iter() {
            let mut busy = Busy {
                keys: lane.known.len(),
                queued: lane.queue.depth(),
                ..Busy::default()
            };
            for (key, known) in &lane.known {
                let Some(last) = &known.last else { continue };
                let rate = last.heat.rate(now);
                busy.rate += rate;
                busy.failing += usize::from(known.unhappy);
                if wanted(key) {
                    let failures = lane.queue.failures(key);
                    survey.keys.push((at, key.clone(), failures, rate));
                }
            }
            survey.controllers.push((at, busy));
        }
        survey
            .keys
            .sort_by(|(.., one), (.., other)| other.rate.total_cmp(&one.rate));
        survey.keys.truncate(sample.keys_max);
        survey
    }

    pub(super) fn explain(&self, lane: u16, key: &Key) -> Option<Value> {
        let part = self.lanes.get(lane)?;
        let known = part.known.get(key);
        let place = part.queue.place(key, self.now());
        let working = self
            .working
            .iter()
            .any(|(at, working)| *at == lane && working == key);
        let second = self.shared.clock.now().as_second();
        let quarantine = self.isolation.explain(&(lane, key.clone()), second);
        let paused = self.waiting.since(lane, key);
        if known.is_none() && place.is_none() && quarantine.is_none() && paused.is_none() {
            return None;
        }
        let list = self.shared.watchlist.list();
        let last = known.and_then(|known| known.last.as_ref());
        let memory = known
            .and_then(|known| known.memory.as_ref())
            .and_then(|memory| self.unit(lane).pack(key, memory))
            .and_then(|packed| serde_json::from_slice::<Value>(&packed).ok());
        Some(json!({
            "state": if working {
                "working"
            } else if known.is_some_and(|known| known.parked) {
                "waiting for the cache"
            } else if place.as_ref().is_some_and(|place| place.waited.is_some()) {
                if self.gate.admit() == Err(Stopped::Fenced) { "fenced" } else { "queued" }
            } else if place.as_ref().is_some_and(|place| place.due_in.is_some()) {
                "delayed"
            } else if paused.is_some() {
                "paused"
            } else if self.isolation.pack(&(lane, key.clone())).0 {
                "quarantined"
            } else {
                "at rest"
            },
            "quarantine": quarantine,
            "announced": list.careful.contains(&self.gate.range),
            "blocker": last
                .and_then(|last| last.trouble.as_ref())
                .and_then(|trouble| blocker_of(trouble, key)),
            "waited_ms": place
                .as_ref()
                .and_then(|place| Some(place.waited?.0))
                .or_else(|| Some(self.now().saturating_sub(paused?)))
                .map(|waited| waited.as_millis()),
            "next_in_ms": place.as_ref().and_then(|place| place.due_in).map(|due| due.as_millis()),
            "failures": place.as_ref().map_or(0, |place| place.failures),
            "late_write_ms": known.map(|known| self.late_write_until(Some(known)).saturating_sub(self.now()).as_millis()),
            "marks": known.map(|known| known.marks.iter().map(|mark| format!("{mark:?}")).collect::<Vec<_>>()),
            "proven": !self.unproven || known.is_some_and(|known| known.proven),
            "memory": memory,
            "last": last.map(|last| json!({
                "at": last.at.to_string(),
                "waited_ms": millis(last.waited),
                "took_ms": last.took.as_secs_f64() * 1000.0,
                "result": match &last.next {
                    Next::Change => "done".to_owned(),
                    Next::Now => "done, again at once".to_owned(),
                    Next::Replan => "compared with the server, again at once".to_owned(),
                    Next::After(delay) => format!("done, again in {:.1}s", delay.as_secs_f64()),
                    Next::Postponed(delay) => format!("status written too recently, again in {delay:?}"),
                    Next::Backoff { why, .. } => why.clone(),
                    Next::Stopped(stopped) => format!("stopped: {stopped:?}"),
                },
                "error": last.trouble.as_ref().map(|trouble| &trouble.why),
                "code": last.trouble.as_ref().and_then(|trouble| trouble.code),
                "waits_for": last.waits,
                "plan": last.plan,
                "objects": last.objects,
                "trace": last.trace.as_deref().and_then(trace::trace_id),
            })),
        }))
    }
}
