//! All that is kept of one resource: its store, how far its watch has come, and what hinders it.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use controllers_kit::{DynChange, Index, Key};
use kubernetes_proto::{AnyObject, Resource, Str, meta::NOT_COMPARABLE};
use tokio::sync::Notify;

use crate::{
    Settings,
    ages::{self, Ages},
    digest::Digest,
    history::{self, History},
    store::{Departures, Pending, Progress, Store},
    unpoisoned,
};

pub(super) type Subscriber = Arc<dyn Fn(DynChange<'_>) + Send + Sync>;

/// Objects that do not decode, or over which an index panics, are logged once each; this many are remembered
/// for that, and beyond it they are counted only.
const TROUBLED_MAX: usize = 1000;

/// All that is kept of one resource.
pub(crate) struct Slot {
    pub(crate) resource: &'static Resource,
    pub(crate) only_name: Option<&'static str>,
    /// Whether there are none of it where the server does not have the resource.
    pub(crate) where_served: bool,
    pub(crate) settings: Settings,
    pub(crate) store: Store,
    pub(crate) progress: Progress,
    /// The newest version of an object that has come.
    pub(super) newest: AtomicU64,
    /// Held by the one run that writes to this slot.
    pub(crate) turn: tokio::sync::Mutex<()>,
    pub(super) subscribers: ArcSwap<Vec<Subscriber>>,
    /// Changes of a relist that subscribers have not been notified of yet. They lie here, not in the task, so
    /// that a watch which is stopped meanwhile and started again loses none.
    pending: Mutex<Vec<Pending>>,
    decode_errors: AtomicU64,
    /// What can't be used, and why.
    pub(super) troubled: Mutex<HashMap<Key, String>>,
    pub(super) condition: Mutex<Condition>,
    /// Where the uids of what was deleted are kept, if anybody asks for them.
    gone: Option<Arc<Gone>>,
    /// Which names of generated children were used lately.
    pub(crate) history: Arc<History>,
    /// Who waits for objects to go.
    pub(super) departures: Departures,
    /// How old heartbeats are, if anybody asks for it and this resource has them.
    ages: Option<Arc<Ages>>,
    made: Instant,
    /// Milliseconds from `made` to the last sign of life, and one more; 0 before the first.
    heard: AtomicU64,
    pub(super) orders: Orders,
    pub(super) digest: Mutex<Digest>,
}

/// What a watch is ordered to do that is stuck by what others know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// To ask for changes again, from where it is.
    Reopen,
    /// To list.
    List,
}

/// The order that a watch has not carried out yet: a list counts for more.
#[derive(Default)]
pub(super) struct Orders {
    waiting: AtomicU8,
    bell: Notify,
}

impl Orders {
    pub(super) fn give(&self, order: Order) {
        let level = match order {
            Order::Reopen => 1,
            Order::List => 2,
        };
        self.waiting.fetch_max(level, Ordering::AcqRel);
        self.bell.notify_one();
    }

    async fn taken(&self) -> Order {
        loop {
            match self.waiting.swap(0, Ordering::AcqRel) {
                0 => self.bell.notified().await,
                1 => return Order::Reopen,
                _ => return Order::List,
            }
        }
    }
}

/// How far a resource's watch has come, and how far it should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sight {
    /// The version up to which everything is shown.
    pub reached: u64,
    /// The lowest version that is known to exist, is not shown and is waited for.
    pub wanted: Option<u64>,
    /// The newest version of an object that was seen: every watch of the resource must bring it.
    pub newest: u64,
    /// What is held; `None` where some objects can't be used, of which replicas may hold different versions.
    pub digest: Option<Digest>,
}

#[derive(Default)]
pub(super) struct Condition {
    pub(super) blocked: Option<(&'static str, String)>,
    pub(super) trouble: Option<String>,
    pub(super) failing: Option<Failing>,
    lists: u64,
    watches: u64,
}

/// A resource that the server has answered with nothing but errors for so long can't be read: the fault lies
/// in it, not in a moment.
const REFUSED_FOR: Duration = Duration::from_secs(2);
/// Without an answer nobody knows whose fault it is. Upstream's garbage collector waits so long for what it
/// can't list before it continues without it.
const UNANSWERED_FOR: Duration = Duration::from_secs(30);

/// Since when a resource could not be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failing {
    since: tokio::time::Instant,
    /// Since when every answer was an error.
    refused_since: Option<tokio::time::Instant>,
}

impl Failing {
    /// One failure more; `answered` if the server said so.
    pub(crate) fn again(before: Option<Self>, answered: bool, now: tokio::time::Instant) -> Self {
        let refused_since = before.and_then(|before| before.refused_since);
        Self {
            since: before.map_or(now, |before| before.since),
            refused_since: answered.then(|| refused_since.unwrap_or(now)),
        }
    }

    pub(crate) fn is_hopeless(self, now: tokio::time::Instant) -> bool {
        let for_long = |since: tokio::time::Instant, long| now.duration_since(since) >= long;
        for_long(self.since, UNANSWERED_FOR)
            || self
                .refused_since
                .is_some_and(|since| for_long(since, REFUSED_FOR))
    }
}

/// How far the watch of a resource has come that the server does not have: no list is so old.
pub(crate) const NOT_SERVED: u64 = 1;

/// What the slots of one cache record changes in.
pub(super) struct Records {
    pub(super) gone: Option<Arc<Gone>>,
    pub(super) history: Arc<History>,
    pub(super) ages: Option<Arc<Ages>>,
}

impl Slot {
    pub(super) fn new(
        resource: &'static Resource,
        only_name: Option<&'static str>,
        where_served: bool,
        indexes: Vec<Index>,
        settings: Settings,
        records: Records,
    ) -> Self {
        Self {
            gone: records.gone,
            history: records.history,
            ages: records.ages,
            resource,
            only_name,
            where_served,
            settings,
            store: Store::new(indexes),
            progress: Progress::new(),
            newest: AtomicU64::new(0),
            turn: tokio::sync::Mutex::new(()),
            subscribers: ArcSwap::default(),
            pending: Mutex::default(),
            decode_errors: AtomicU64::new(0),
            troubled: Mutex::default(),
            condition: Mutex::default(),
            departures: Departures::default(),
            made: Instant::now(),
            heard: AtomicU64::new(0),
            orders: Orders::default(),
            digest: Mutex::default(),
        }
    }

    /// Notifies all subscribers of a change that the store has applied, and of the version that the watch has
    /// come to with it.
    pub(crate) fn publish(&self, old: Option<&AnyObject>, new: Option<&AnyObject>, version: u64) {
        let another = another(old, new);
        if let (Some(gone), Some(old)) = (&self.gone, old)
            && (another || new.is_none())
        {
            gone.add(&old.metadata().uid);
        }
        if let Some(old) = old {
            let goes = |new: &AnyObject| new.metadata().is_terminating();
            if another || new.is_none_or(goes) {
                self.departures.notice(&old.metadata().uid);
            }
        }
        if let Some(ages) = &self.ages
            && let Some(object) = new.or(old)
        {
            let key = Key::of_meta(object.metadata());
            ages.changed(self.resource, key, old, new, tokio::time::Instant::now());
        }
        self.notify(old, new, version, another);
    }

    pub(super) fn notify(
        &self,
        old: Option<&AnyObject>,
        new: Option<&AnyObject>,
        version: u64,
        another: bool,
    ) {
        // What is no number says nothing of what came before it.
        let version = if version == NOT_COMPARABLE {
            0
        } else {
            version
        };
        let change = |old, new| DynChange { old, new, version };
        let subscribers = self.subscribers.load();
        for subscriber in subscribers.iter() {
            if another {
                // The object was deleted and made again while nobody watched: that is two changes, not one.
                subscriber(change(old, None));
                subscriber(change(None, new));
            } else {
                subscriber(change(old, new));
            }
        }
    }

    /// An object has taken its place that was not there before, or another of its name.
    pub(crate) fn trace(&self, old: Option<&AnyObject>, new: &AnyObject, version: u64) {
        if history::is_traced(self.resource) && (old.is_none() || another(old, Some(new))) {
            self.history.made(new, version);
        }
    }

    /// The object of a name is about to be taken away.
    pub(crate) fn remember(&self, namespace: &str, name: &str) {
        if history::is_remembered(self.resource) {
            self.history.removed(self.resource, namespace, name);
        }
    }

    /// Everything is listed at a version; the changes are those from what was there before.
    pub(crate) fn begin_history(&self, version: u64, changes: &[Pending]) {
        if !history::is_remembered(self.resource) {
            return;
        }
        for (old, _) in changes.iter().filter(|(_, new)| new.is_none()) {
            if let Some(old) = old {
                let meta = old.metadata();
                self.remember(&meta.namespace, &meta.name);
            }
        }
        self.history.begin(version);
    }

    pub(crate) fn put_aside(&self, changes: Vec<Pending>) {
        let mut pending = unpoisoned(self.pending.lock());
        if pending.is_empty() {
            *pending = changes;
            pending.reverse();
        } else {
            // Those of an earlier list that was interrupted come first.
            let earlier = std::mem::replace(&mut *pending, changes);
            pending.reverse();
            pending.extend(earlier);
        }
    }

    /// Notifies subscribers of the next few changes that were put aside; whether there are more.
    pub(crate) fn notify_some(&self, count: usize) -> bool {
        let (some, more) = {
            let mut pending = unpoisoned(self.pending.lock());
            let rest = pending.len().saturating_sub(count);
            let some = pending.split_off(rest);
            if pending.is_empty() {
                *pending = Vec::new();
            }
            (some, rest > 0)
        };
        for (old, new) in some.iter().rev() {
            self.publish(old.as_ref(), new.as_ref(), self.progress.version());
        }
        more
    }

    /// Counts an object that does not decode; logs it the first time.
    pub(crate) fn trouble(&self, key: &Key, reason: &dyn fmt::Display) {
        self.decode_errors.fetch_add(1, Ordering::Relaxed);
        let first = {
            let mut troubled = unpoisoned(self.troubled.lock());
            let is_known = troubled.contains_key(key);
            if is_known || troubled.len() < TROUBLED_MAX {
                troubled.insert(key.clone(), reason.to_string());
            }
            !is_known && troubled.contains_key(key)
        };
        if first {
            tracing::error!(
                resource = %self.resource.id(),
                object = %if key.name.is_empty() { "unknown".to_owned() } else { key.to_string() },
                "an object can't be used and is left alone: {reason}"
            );
        }
    }

    /// An object that decodes again is logged again should it fail again.
    pub(crate) fn no_trouble(&self, key: impl FnOnce() -> Key) {
        if self.decode_errors.load(Ordering::Relaxed) > 0 {
            unpoisoned(self.troubled.lock()).remove(&key());
        }
    }

    /// What the store holds has changed to this.
    pub(crate) fn digest(&self, change: impl FnOnce(&mut Digest)) {
        let mut digest = unpoisoned(self.digest.lock());
        change(&mut digest);
    }

    /// An object of this version has come.
    pub(crate) fn came(&self, version: u64) {
        if version != NOT_COMPARABLE {
            self.newest.fetch_max(version, Ordering::AcqRel);
        }
    }

    /// Resolves with the next order; dropping it loses none.
    pub(crate) async fn ordered(&self) -> Order {
        self.orders.taken().await
    }

    pub(crate) fn heard(&self) {
        let since = u64::try_from(self.made.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
        self.heard.store(since + 1, Ordering::Relaxed);
    }

    /// Time passes for ages as far as the watch of Leases is known to have come: to the newest renewal of
    /// this replica's own Lease, or to the present where none is known.
    pub(crate) fn pulse(&self) {
        let Some(ages) = self.ages.as_ref().filter(|_| ages::is_pulse(self.resource)) else {
            return;
        };
        match self.settings.renewed.newest() {
            None => ages.heard(tokio::time::Instant::now()),
            Some((version, at)) if self.progress.version() >= version => ages.heard(at),
            Some(_) => {}
        }
    }

    fn age(&self) -> Option<Duration> {
        let heard = self.heard.load(Ordering::Relaxed).checked_sub(1)?;
        Some(
            self.made
                .elapsed()
                .saturating_sub(Duration::from_millis(heard)),
        )
    }

    pub(crate) fn listed(&self) {
        unpoisoned(self.condition.lock()).lists += 1;
        self.heard();
    }

    /// A watch has been opened: nothing blocks it any more.
    pub(crate) fn opened(&self) {
        self.heard();
        let was = {
            let mut condition = unpoisoned(self.condition.lock());
            condition.watches += 1;
            let was = condition.trouble.take();
            (condition.blocked, condition.failing) = (None, None);
            was
        };
        if was.is_some() {
            tracing::info!(resource = %self.resource.id(), "watched again");
        }
    }

    /// A list or watch has failed. Logged when the reason is a new one.
    pub(crate) fn failed(&self, verb: &'static str, reason: &str, why: Why) {
        let new = {
            let mut condition = unpoisoned(self.condition.lock());
            condition.blocked = (why == Why::Blocked).then(|| (verb, reason.to_owned()));
            condition.failing = Some(Failing::again(
                condition.failing,
                why != Why::Unanswered,
                tokio::time::Instant::now(),
            ));
            let new = condition.trouble.as_deref() != Some(reason);
            condition.trouble = Some(reason.to_owned());
            new
        };
        if new {
            tracing::warn!(resource = %self.resource.id(), verb, "not watched, tried again: {reason}");
        }
    }

    /// The server does not have the resource, and nobody needs it: there are none. It is asked for again, as
    /// after any failure.
    pub(crate) fn not_served(&self) {
        let mut condition = unpoisoned(self.condition.lock());
        (condition.blocked, condition.trouble, condition.failing) = (None, None, None);
        drop(condition);
        if self.is_complete() {
            return;
        }
        tracing::info!(resource = %self.resource.id(), "the server does not have it, so there are none");
        self.progress.reach(NOT_SERVED);
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.progress.version() > 0
    }

    pub(super) fn state(&self) -> State {
        let condition = unpoisoned(self.condition.lock());
        match &condition.blocked {
            Some((verb, reason)) => State::Blocked {
                verb,
                reason: reason.clone(),
            },
            None if self.is_complete() => State::Complete,
            None => State::Listing,
        }
    }

    pub(super) fn stats(&self) -> Stats {
        let state = self.state();
        let condition = unpoisoned(self.condition.lock());
        Stats {
            objects: self.store.read().len(),
            resource_version: self.progress.version(),
            age: self.age(),
            decode_errors: self.decode_errors.load(Ordering::Relaxed),
            listed: self.is_complete(),
            state,
            trouble: condition.trouble.clone(),
            lists: condition.lists,
            watches: condition.watches,
        }
    }
}

/// Whether a change is of two objects of one name.
fn another(old: Option<&AnyObject>, new: Option<&AnyObject>) -> bool {
    match (old, new) {
        (Some(old), Some(new)) => old.metadata().uid != new.metadata().uid,
        _ => false,
    }
}

/// This many uids of deleted objects are remembered, the newest: a cascade asks for them within seconds.
const GONE_MAX: usize = 50_000;

/// The uids of objects that were seen to be deleted.
#[derive(Default)]
pub(crate) struct Gone {
    uids: Mutex<(HashSet<Str>, VecDeque<Str>)>,
}

impl Gone {
    fn add(&self, uid: &Str) {
        let (known, order) = &mut *unpoisoned(self.uids.lock());
        if known.insert(uid.clone()) {
            order.push_back(uid.clone());
            if order.len() > GONE_MAX
                && let Some(oldest) = order.pop_front()
            {
                known.remove(&oldest);
            }
        }
    }

    pub(super) fn has(&self, uid: &str) -> bool {
        unpoisoned(self.uids.lock()).0.contains(uid)
    }
}

/// How a list or watch has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// Only somebody else can help: rights are missing, or the resource is.
    Blocked,
    /// The server has answered with another error.
    Refused,
    /// There was no answer, or none that can be read.
    Unanswered,
}

/// The state of a resource's watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The first list is not complete yet.
    Listing,
    /// All objects are there, and changes are followed. While the API server can't be reached this stays: the
    /// age of the last event shows.
    Complete,
    /// The server refuses: forbidden, or there is no such resource. It is asked again now and then. What was
    /// listed before is kept.
    Blocked {
        /// `list` or `watch`.
        verb: &'static str,
        /// What the server said.
        reason: String,
    },
}

/// Figures of one resource's watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Objects held.
    pub objects: usize,
    /// How far the watch has come; 0 before the first list.
    pub resource_version: u64,
    /// Since the last sign of life: an event, a bookmark, a list. `None` before the first.
    pub age: Option<Duration>,
    /// Times that an object could not be decoded.
    pub decode_errors: u64,
    /// Whether there has been a complete list.
    pub listed: bool,
    /// The state of the watch.
    pub state: State,
    /// The last failure, until a watch is open again.
    pub trouble: Option<String>,
    /// Complete lists so far.
    pub lists: u64,
    /// Watches opened so far.
    pub watches: u64,
}
