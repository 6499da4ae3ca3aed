//! Events as `kubectl describe` shows them: alike ones are counted up, floods are folded and then cut off, by
//! the rules and figures of client-go's event correlator. Pure: the clock is an argument; `apply.rs` sends
//! what comes out.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
    time::Duration,
};

use controllers_kit::{Event, EventType, Key, ObjectRef, Timestamp};
use serde_json::{Value, json};
use xxhash_rust::xxh3::Xxh3;

use crate::queue::Monotonic;

pub mod outbox;
#[cfg(test)]
mod tests;

/// As many different messages of one object and reason within [`FOLD_INTERVAL`] are distinguished; further
/// ones are folded.
pub const FOLD_AFTER: usize = 10;
/// How long an event counts as similar to the one before.
pub const FOLD_INTERVAL: Duration = Duration::from_secs(600);
/// Events about one object that one controller may send at once.
pub const SPAM_BURST: f64 = 25.0;
/// Seconds until one more may be sent.
pub const SPAM_REFILL_SECS: f64 = 300.0;
/// Entries of each memory; the one not used for longest goes first.
pub const REMEMBERED_MAX: usize = 4096;

/// What is remembered by: a hash of all that distinguishes events, instead of their texts, which would be
/// most of a busy fleet's memory of events. That two meet in 128 bits is not to be expected in the life of a
/// cluster; the one would then be counted up as the other.
type Id = u128;

fn id(of: &impl Hash) -> Id {
    let mut hasher = Xxh3::new();
    of.hash(&mut hasher);
    hasher.digest128()
}

/// A map that forgets what was not used for longest.
#[derive(Debug)]
struct Recent<V> {
    entries: HashMap<Id, (u64, V)>,
    order: BTreeMap<u64, Id>,
    tick: u64,
}

impl<V> Recent<V> {
    fn new() -> Self {
        Self {
            entries: HashMap::new(),
            order: BTreeMap::new(),
            tick: 0,
        }
    }

    fn get_or_insert_with(&mut self, id: Id, make: impl FnOnce() -> V) -> &mut V {
        self.tick += 1;
        if let Some((used, _)) = self.entries.get(&id) {
            self.order.remove(used);
        } else if self.entries.len() >= REMEMBERED_MAX
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.entries.remove(&oldest);
        }
        self.order.insert(self.tick, id);
        let entry = self.entries.entry(id).or_insert_with(|| (0, make()));
        entry.0 = self.tick;
        &mut entry.1
    }

    fn get(&self, id: Id) -> Option<&V> {
        self.entries.get(&id).map(|(_, value)| value)
    }
}

#[derive(Debug, Default)]
struct Fold {
    /// At most [`FOLD_AFTER`].
    messages: Vec<Id>,
    last: Monotonic,
}

#[derive(Clone, Debug)]
struct Series {
    count: i32,
    first: Timestamp,
    /// What its name ends with.
    stamp: i128,
}

#[derive(Debug)]
struct Allowance {
    tokens: f64,
    at: Monotonic,
}

/// What is to be sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Send {
    /// Where the Event lives.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The whole Event, for a creation.
    pub body: Value,
    /// How it continues one sent before; `None` for a new one. Answered by "not found", the body is created.
    pub patch: Option<Value>,
}

/// The memory of what was sent. One for each controller of a process, as upstream has one broadcaster for
/// each.
#[derive(Debug)]
pub struct Correlator {
    source: &'static str,
    folds: Recent<Fold>,
    series: Recent<Series>,
    allowances: Recent<Allowance>,
    /// Nanoseconds in the name of the last new event: the next one's differ, however coarse the clock.
    stamp: i128,
}

impl Correlator {
    /// For the events of one source component.
    pub fn new(source: &'static str) -> Self {
        Self {
            source,
            folds: Recent::new(),
            series: Recent::new(),
            allowances: Recent::new(),
            stamp: 0,
        }
    }

    /// What is to be sent for an event; `None` where its object has had more than its share.
    pub fn correlate(
        &mut self,
        event: &Event,
        now: Timestamp,
        monotonic: Monotonic,
    ) -> Option<Send> {
        let about = identity(&event.about);
        let similar = (about, event.r#type, &event.reason);
        let fold = self.folds.get_or_insert_with(id(&similar), Fold::default);
        if monotonic.saturating_sub(fold.last) > FOLD_INTERVAL {
            fold.messages.clear();
        }
        fold.last = monotonic;
        let reported = id(&event.message);
        if !fold.messages.contains(&reported) {
            fold.messages.push(reported);
        }
        let folded = fold.messages.len() >= FOLD_AFTER;
        let (same, message) = if folded {
            // The set does not grow, and what it still holds is distinguished when it recurs. Upstream leaves
            // it to chance which one goes; here it is the oldest.
            fold.messages.remove(0);
            (
                id(&(similar, None::<&str>)),
                format!("(combined from similar events): {}", event.message),
            )
        } else {
            (id(&(similar, Some(&*event.message))), event.message.clone())
        };

        let before = self.series.get(same).cloned();
        self.stamp = now.as_nanosecond().max(self.stamp + 1);
        let series = Series {
            count: before
                .as_ref()
                .map_or(1, |series| series.count.saturating_add(1)),
            first: before.as_ref().map_or(now, |series| series.first),
            stamp: before.as_ref().map_or(self.stamp, |series| series.stamp),
        };
        *self.series.get_or_insert_with(same, || series.clone()) = series.clone();

        let allowance = self
            .allowances
            .get_or_insert_with(id(&about), || Allowance {
                tokens: SPAM_BURST,
                at: monotonic,
            });
        let refill = monotonic.saturating_sub(allowance.at).as_secs_f64() / SPAM_REFILL_SECS;
        allowance.tokens = (allowance.tokens + refill).min(SPAM_BURST);
        allowance.at = monotonic;
        if allowance.tokens < 1.0 {
            return None;
        }
        allowance.tokens -= 1.0;
        Some(self.send(event, &message, &series, before.is_some(), now))
    }

    fn send(
        &self,
        event: &Event,
        message: &str,
        series: &Series,
        known: bool,
        now: Timestamp,
    ) -> Send {
        // Events about what has no namespace live in "default".
        let namespace = if event.about.key.namespace.is_empty() {
            "default".to_owned()
        } else {
            event.about.key.namespace.to_string()
        };
        let name = format!("{}.{:x}", event.about.key.name, series.stamp);
        let seconds = |at: Timestamp| {
            Timestamp::from_second(at.as_second())
                .map_or_else(|_| at.to_string(), |whole| whole.to_string())
        };
        let body = json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": event.about.api_version,
                "kind": event.about.kind,
                "namespace": event.about.key.namespace,
                "name": event.about.key.name,
                "uid": event.about.uid,
                "resourceVersion": event.about.resource_version.to_string(),
            },
            "type": match event.r#type {
                EventType::Normal => "Normal",
                EventType::Warning => "Warning",
            },
            "reason": event.reason,
            "message": message,
            "source": {"component": self.source},
            "reportingComponent": self.source,
            "reportingInstance": "",
            "count": series.count,
            "firstTimestamp": seconds(series.first),
            "lastTimestamp": seconds(now),
        });
        let patch = known.then(
            || json!({"count": series.count, "lastTimestamp": seconds(now), "message": message}),
        );
        Send {
            namespace,
            name,
            body,
            patch,
        }
    }
}

/// The object that an event is about.
fn identity(about: &ObjectRef) -> (&str, &str, &Key, &str) {
    (&about.api_version, &about.kind, &about.key, &about.uid)
}
