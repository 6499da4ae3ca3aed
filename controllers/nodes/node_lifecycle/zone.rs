//! One zone: how ill it is, and at which pace its nodes' pods are driven away.

use std::{sync::Arc, time::Duration};

use controllers_kit::{Plan, SignedDuration, Snapshot, Timestamp, heartbeat::ready};
use kubernetes_proto::{Object, core::Node};
use serde::{Deserialize, Serialize};

use super::{
    EVICTIONS, HEALTH, Pace, SIZE, UNHEALTHY, UPDATE_ALL,
    facts::{Zone, all_down, by_status, counts, has_no_execute, is_ready, taint},
};

/// When the zone's rate allows the next node. Losing it costs one interval: the time of the last taint is
/// not known then, and the taint's own time is that of another machine.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Turn {
    /// Since when the present interval runs.
    since: Option<Timestamp>,
    /// Its value before the last taint, which may turn out not to have been added.
    before: Option<Timestamp>,
    /// The interval, in nanoseconds; 0 for never.
    interval: u64,
}

/// How ill a zone is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Normal,
    Partial,
    Full,
}

/// The state of a zone by its ready and unready nodes.
pub(super) fn state(ready: usize, unready: usize, threshold: f64) -> State {
    #[allow(clippy::cast_precision_loss)] // there are no 2^52 nodes
    let part = unready as f64 / (ready + unready).max(1) as f64;
    match (ready, unready) {
        (0, 1..) => State::Full,
        // Upstream compares numbers of 32 bits.
        #[allow(clippy::cast_possible_truncation)]
        (_, 3..) if part as f32 >= threshold as f32 => State::Partial,
        _ => State::Normal,
    }
}

impl Pace {
    /// Nodes a second in a zone of that state and size.
    pub(super) fn rate(&self, state: State, nodes: usize) -> f64 {
        let nodes = i64::try_from(nodes).unwrap_or(i64::MAX);
        match state {
            State::Normal | State::Full => self.normal,
            State::Partial if nodes > self.large => self.secondary,
            State::Partial => 0.0,
        }
    }
}

/// The interval between two nodes, at least 1 ns; 0 for never.
fn interval(rate: f64) -> u64 {
    let interval = Duration::try_from_secs_f64(1.0 / rate);
    match interval {
        Ok(interval) if rate > 0.0 => {
            u64::try_from(interval.as_nanos()).map_or(u64::MAX, |nanos| nanos.max(1))
        }
        // So slow that no Duration holds it.
        Err(_) if rate > 0.0 => u64::MAX,
        _ => 0,
    }
}

impl Turn {
    fn due(&self) -> Timestamp {
        let interval = i64::try_from(self.interval).unwrap_or(i64::MAX);
        let since = self.since.unwrap_or(Timestamp::MIN);
        since
            .checked_add(SignedDuration::from_nanos(interval))
            .unwrap_or(Timestamp::MAX)
    }

    /// Adopts a rate. A change of rate while the next node is still waited for restarts the interval, as
    /// upstream's does.
    fn adopt(&mut self, interval: u64, now: Timestamp) {
        if self.since.is_none() {
            self.since = Some(now);
        } else if self.interval != interval && (self.interval == 0 || now < self.due()) {
            self.since = Some(self.since.map_or(now, |since| since.max(now)));
        }
        self.interval = interval;
    }

    /// The last taint was not added after all.
    pub(super) fn give_back(&mut self) {
        if let Some(before) = self.before.take() {
            self.since = Some(before);
        }
    }

    pub(super) fn shift(&mut self, by: SignedDuration) {
        for at in [&mut self.since, &mut self.before].into_iter().flatten() {
            *at = at.checked_add(by).unwrap_or(*at);
        }
    }
}

/// Nodes that need the taint and have neither it nor its opposite, which the node's own key replaces, in
/// the order of their failures.
fn waiting(nodes: &[Arc<Node>]) -> Vec<(&Arc<Node>, &'static str)> {
    let mut waiting: Vec<(&Arc<Node>, &'static str)> = nodes
        .iter()
        .filter_map(|node| {
            let (wanted, opposite) = by_status(node)?;
            let has = has_no_execute(node, wanted) || has_no_execute(node, opposite);
            (!has).then_some((node, wanted))
        })
        .collect();
    waiting.sort_by_cached_key(|(node, _)| {
        let since = ready(node).and_then(|condition| condition.last_transition_time);
        (since, Object::metadata(&***node).name.clone())
    });
    waiting
}

/// Plans one zone.
pub(super) fn plan(pace: &Pace, zone: &Zone, seen: &Snapshot<'_>, turn: &mut Turn) -> Plan {
    let mut plan = Plan::nothing();
    let nodes = seen.indexed::<Node>(super::BY_ZONE, &zone.text());
    if nodes.is_empty() {
        *turn = Turn::default();
        return plan;
    }
    let counted = || nodes.iter().filter(|node| counts(node));
    let size = counted().count();
    let healthy = counted().filter(|node| is_ready(node)).count();
    let unhealthy = size - healthy;
    let label = zone.label();
    let labels: [&str; 1] = [&label];
    if size > 0 {
        #[allow(clippy::cast_precision_loss)] // there are no 2^52 nodes
        for (name, value) in [
            (SIZE, size as f64),
            (HEALTH, 100.0 * healthy as f64 / size as f64),
            (UNHEALTHY, unhealthy as f64),
        ] {
            plan.measure(name, &labels, value);
        }
    }
    plan.measure(EVICTIONS, &labels, 0.0);
    plan.time(UPDATE_ALL, &[]);
    let state = state(healthy, unhealthy, pace.threshold);
    let waiting = waiting(&nodes);
    let rate = match !waiting.is_empty() && all_down(&seen.all::<Node>()) {
        true => 0.0,
        false => pace.rate(state, size),
    };
    turn.adopt(interval(rate), seen.now);
    let Some((node, wanted)) = waiting.first().filter(|_| turn.interval > 0) else {
        return plan;
    };
    if seen.now < turn.due() {
        plan.requeue_at(turn.due());
        return plan;
    }
    let mut new = Node::clone(node);
    let spec = new.spec.get_or_insert_default();
    spec.taints.push(taint(wanted, "NoExecute", seen.now));
    if let Some(action) = plan.update(&***node, &new) {
        action.measure(EVICTIONS, &labels, 1.0);
    }
    turn.before = turn.since;
    turn.since = Some(seen.now);
    if waiting.len() > 1 {
        plan.requeue_at(turn.due());
    }
    plan
}
