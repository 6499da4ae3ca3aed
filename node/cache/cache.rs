//! The cache as the node sees it: built from what the controllers watch, read by their plans, run by the
//! Watch actors.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    convert::Infallible,
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use controllers_kit::{Catalogue, DynChange, Index, Key, Reader, Standing, Watches};
use kubernetes_proto::{
    AnyObject, Object as _, Resource, Str, coordination::Lease, meta::NOT_COMPARABLE,
};
use tokio::sync::{Notify, oneshot};

use crate::{
    Api, Settings,
    ages::{self, Ages},
    digest::Digest,
    history::{self, History},
    store::{self, Departures, Pending, Progress, Store},
    unpoisoned, watch,
};

type Subscriber = Arc<dyn Fn(DynChange<'_>) + Send + Sync>;

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
    newest: AtomicU64,
    /// Held by the one run that writes to this slot.
    pub(crate) turn: tokio::sync::Mutex<()>,
    subscribers: ArcSwap<Vec<Subscriber>>,
    /// Changes of a relist that subscribers have not been notified of yet. They lie here, not in the task, so
    /// that a watch which is stopped meanwhile and started again loses none.
    pending: Mutex<Vec<Pending>>,
    decode_errors: AtomicU64,
    /// What can't be used, and why.
    troubled: Mutex<HashMap<Key, String>>,
    condition: Mutex<Condition>,
    /// Where the uids of what was deleted are kept, if anybody asks for them.
    gone: Option<Arc<Gone>>,
    /// Which names of generated children were used lately.
    pub(crate) history: Arc<History>,
    /// Who waits for objects to go.
    departures: Departures,
    /// How old heartbeats are, if anybody asks for it and this resource has them.
    ages: Option<Arc<Ages>>,
    made: Instant,
    /// Milliseconds from `made` to the last sign of life, and one more; 0 before the first.
    heard: AtomicU64,
    orders: Orders,
    digest: Mutex<Digest>,
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
struct Orders {
    waiting: AtomicU8,
    bell: Notify,
}

impl Orders {
    fn give(&self, order: Order) {
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
struct Condition {
    blocked: Option<(&'static str, String)>,
    trouble: Option<String>,
    failing: Option<Failing>,
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

/// Waits for an object to go. Dropped before that, it leaves nothing behind.
struct Waiter {
    next: oneshot::Receiver<()>,
    slot: Arc<Slot>,
    uid: Str,
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.next.close();
        self.slot.departures.tidy(&self.uid);
    }
}

/// What the slots of one cache record changes in.
struct Records {
    gone: Option<Arc<Gone>>,
    history: Arc<History>,
    ages: Option<Arc<Ages>>,
}

impl Slot {
    fn new(
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

    fn notify(
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

    fn state(&self) -> State {
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

    fn stats(&self) -> Stats {
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

    fn has(&self, uid: &str) -> bool {
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

/// What waiting for a version ended with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// The cache has passed the version.
    Passed,
    /// The resource is not watched: the cache will never know.
    NotWatched,
}

/// Gathers what is to be watched.
#[derive(Default)]
pub struct Builder {
    wanted: Vec<Wanted>,
    settings: Settings,
    /// Whether every resource is indexed by all owners.
    dependents: bool,
    /// Whether it is asked for ages.
    ages: bool,
}

struct Wanted {
    resource: &'static Resource,
    only_name: Option<&'static str>,
    /// Every controller that watches it can do without it.
    where_served: bool,
    indexes: Vec<Index>,
}

impl Builder {
    /// With other figures than the defaults.
    #[must_use]
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Adds what a controller watches. Its `wake` functions stay with the caller, who subscribes to the built
    /// cache.
    #[must_use]
    pub fn watches(mut self, watches: &Watches) -> Self {
        for subscription in &watches.subscriptions {
            self.want(
                subscription.resource,
                subscription.only_name,
                subscription.where_served,
            );
        }
        self.dependents |= !watches.discovered.is_empty();
        self.ages |= watches.ages;
        if watches.ages {
            self.want(Lease::resource(), None, false);
        }
        for index in &watches.indexes {
            if let Some(wanted) = self
                .wanted
                .iter_mut()
                .find(|wanted| wanted.resource == index.resource)
                && !wanted.indexes.iter().any(|known| known.name == index.name)
            {
                wanted.indexes.push(index.clone());
            }
        }
        self
    }

    /// Adds one resource, for what the node itself reads.
    #[must_use]
    pub fn resource(mut self, resource: &'static Resource) -> Self {
        self.want(resource, None, false);
        self
    }

    fn want(
        &mut self,
        resource: &'static Resource,
        only_name: Option<&'static str>,
        where_served: bool,
    ) {
        match self
            .wanted
            .iter_mut()
            .find(|wanted| wanted.resource == resource)
        {
            Some(wanted) => {
                wanted.where_served &= where_served;
                if wanted.only_name != only_name {
                    wanted.only_name = None;
                }
            }
            None => self.wanted.push(Wanted {
                resource,
                only_name,
                where_served,
                indexes: vec![store::owner_index(resource)],
            }),
        }
    }

    /// The cache, still empty: each of its resources must be [`Cache::run`].
    pub fn build(mut self) -> Arc<Cache> {
        self.wanted.sort_by_key(|wanted| wanted.resource);
        let (settings, dependents) = (self.settings, self.dependents);
        let gone = dependents.then(Arc::<Gone>::default);
        let history = Arc::<History>::default();
        let ages = self.ages.then(|| Arc::new(Ages::new(settings.pulse_max)));
        Arc::new(Cache {
            settings: settings.clone(),
            gone: gone.clone(),
            history: Arc::clone(&history),
            ages: ages.clone(),
            dependents,
            found: ArcSwap::default(),
            catalogue: ArcSwap::default(),
            slots: self
                .wanted
                .into_iter()
                .map(|mut wanted| {
                    if dependents {
                        wanted
                            .indexes
                            .push(store::dependents_index(wanted.resource));
                    }
                    Arc::new(Slot::new(
                        wanted.resource,
                        wanted.only_name,
                        wanted.where_served,
                        wanted.indexes,
                        settings.clone(),
                        Records {
                            gone: gone.clone(),
                            history: Arc::clone(&history),
                            ages: ages.clone().filter(|_| Ages::concern(wanted.resource)),
                        },
                    ))
                })
                .collect(),
        })
    }
}

/// Stores of all watched resources.
pub struct Cache {
    /// In order of group and plural.
    slots: Vec<Arc<Slot>>,
    /// What discovery has brought. Bound: what the API serves.
    found: ArcSwap<HashMap<&'static Resource, Arc<Slot>>>,
    catalogue: ArcSwap<Catalogue>,
    gone: Option<Arc<Gone>>,
    history: Arc<History>,
    ages: Option<Arc<Ages>>,
    settings: Settings,
    dependents: bool,
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.resources()).finish()
    }
}

impl Cache {
    /// Gathers what is to be watched.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn slot(&self, resource: &Resource) -> Option<Arc<Slot>> {
        // There are a few dozen, and a resource is one static: comparing addresses is quicker than any map.
        let declared = self
            .slots
            .iter()
            .find(|slot| std::ptr::eq(slot.resource, resource))
            .or_else(|| {
                // A store of one name's objects is no store of the resource.
                self.slots.iter().find(|slot| {
                    slot.resource == resource
                        && (slot.only_name.is_none() || !resource.metadata_only)
                })
            });
        match declared {
            Some(slot) => Some(Arc::clone(slot)),
            None => self.found.load().get(resource).cloned(),
        }
    }

    /// `None` for what discovery has brought and taken away again: there are none of it any more.
    fn declared(&self, resource: &Resource) -> Option<Arc<Slot>> {
        let slot = self.slot(resource);
        assert!(
            slot.is_some() || resource.metadata_only,
            // An empty answer would read as "there are none", and somebody would create or delete on it.
            "{resource:?} is read but was not declared by Controller::watch"
        );
        slot
    }

    /// The resources of which every object is held as its projection.
    pub fn whole(&self) -> Vec<&'static Resource> {
        let slots = self
            .slots
            .iter()
            .filter(|slot| slot.only_name.is_none() && slot.resource.selection.is_none());
        slots.map(|slot| slot.resource).collect()
    }

    /// Adds a resource that discovery has brought, to be [`Cache::run`]; `false` if it is watched already.
    pub fn find(&self, resource: &'static Resource) -> bool {
        if self.slot(resource).is_some() {
            return false;
        }
        let mut indexes = vec![store::owner_index(resource)];
        if self.dependents {
            indexes.push(store::dependents_index(resource));
        }
        let slot = Arc::new(Slot::new(
            resource,
            None,
            false,
            indexes,
            self.settings.clone(),
            Records {
                gone: self.gone.clone(),
                history: Arc::clone(&self.history),
                ages: None,
            },
        ));
        self.found.rcu(|found| {
            let mut more = HashMap::clone(found);
            more.insert(resource, Arc::clone(&slot));
            more
        });
        true
    }

    /// Takes away a resource that is not served any more. Its run must have been dropped. Subscribers are
    /// reported that its objects are gone.
    pub fn forget(&self, resource: &'static Resource) {
        let Some(slot) = self.found.load().get(resource).cloned() else {
            return;
        };
        self.found.rcu(|found| {
            let mut fewer = HashMap::clone(found);
            fewer.remove(resource);
            fewer
        });
        while slot.notify_some(usize::MAX) {}
        for object in slot.store.list(None) {
            let meta = object.metadata();
            slot.store.remove(&meta.namespace, &meta.name);
            // Not deleted, for all that is known: only out of sight.
            slot.notify(Some(&object), None, 0, false);
        }
    }

    /// The resources that discovery has brought.
    pub fn found(&self) -> Vec<&'static Resource> {
        let mut found: Vec<_> = self.found.load().keys().copied().collect();
        found.sort();
        found
    }

    /// What the API serves from now on.
    pub fn set_catalogue(&self, catalogue: Catalogue) {
        self.catalogue.store(Arc::new(catalogue));
    }

    /// What the API serves, without counting a reference.
    pub fn serves(&self) -> arc_swap::Guard<Arc<Catalogue>> {
        self.catalogue.load()
    }

    /// The watched resources, in order of group and plural: each is to be [`Cache::run`].
    pub fn resources(&self) -> impl Iterator<Item = &'static Resource> {
        self.slots.iter().map(|slot| slot.resource)
    }

    /// Has a function called with every change of a resource, after the store has applied it and without any
    /// lock held. It is called by the watch's task and should only note what is to be done. Subscribe before
    /// the watch runs: what was listed before is not reported again. `false` if the resource is not watched.
    pub fn subscribe(
        &self,
        resource: &Resource,
        subscriber: Box<dyn Fn(DynChange<'_>) + Send + Sync>,
    ) -> bool {
        let Some(slot) = self.slot(resource) else {
            return false;
        };
        let subscriber: Subscriber = Arc::from(subscriber);
        slot.subscribers.rcu(|subscribers| {
            let mut more = Vec::clone(subscribers);
            more.push(Arc::clone(&subscriber));
            more
        });
        true
    }

    /// Watches a resource until it is dropped; it may be run again afterwards and continues where it was. A
    /// second run at the same time waits for the first to be dropped. For a resource that is not watched it
    /// only waits.
    pub fn run(
        &self,
        resource: &'static Resource,
        api: Api,
    ) -> impl Future<Output = Infallible> + Send + 'static + use<> {
        let slot = self.slot(resource);
        async move {
            match slot {
                Some(slot) => watch::run(&slot, &api).await,
                None => std::future::pending().await,
            }
        }
    }

    /// Applies one frame of a watch (without its length) as [`Cache::run`] would: for measurements and tests
    /// without a server. Not to be mixed with a run of the same resource.
    ///
    /// # Errors
    /// Where the frame can't be read, or the resource is not watched.
    pub fn feed(&self, resource: &Resource, frame: &[u8]) -> Result<(), String> {
        match self.slot(resource) {
            Some(slot) => watch::feed(&slot, frame),
            None => Err(format!("{resource:?} is not watched")),
        }
    }

    /// Whether the cache shows everything of a resource up to this version. `false` if it is not watched.
    pub fn passed(&self, resource: &Resource, version: u64) -> bool {
        self.slot(resource)
            .is_some_and(|slot| slot.is_complete() && slot.progress.version() >= version)
    }

    /// How far the watches have come that follow changes all the time, and how far they should have. A
    /// resource that is not listed yet, that the server refuses, or that only shows that nodes are alive is
    /// left out.
    pub fn sights(&self) -> Vec<(&'static Resource, Sight)> {
        self.slots
            .iter()
            .filter(|slot| slot.progress.version() > NOT_SERVED && !ages::is_pulse(slot.resource))
            .filter(|slot| unpoisoned(slot.condition.lock()).blocked.is_none())
            .map(|slot| {
                let sight = Sight {
                    reached: slot.progress.version(),
                    wanted: slot.progress.wanted(),
                    newest: slot.newest.load(Ordering::Acquire),
                    digest: unpoisoned(slot.troubled.lock())
                        .is_empty()
                        .then(|| *unpoisoned(slot.digest.lock())),
                };
                (slot.resource, sight)
            })
            .collect()
    }

    /// Has the watch of a resource do something now, instead of what it waits for.
    pub fn order(&self, resource: &Resource, order: Order) {
        if let Some(slot) = self.slot(resource) {
            slot.orders.give(order);
        }
    }

    /// Has every watch ask for changes again from where it is.
    pub fn reopen_all(&self) {
        for slot in self.slots.iter().chain(self.found.load().values()) {
            slot.orders.give(Order::Reopen);
        }
    }

    /// Waits until [`Cache::passed`]. Cheap for many waiters; dropping it forgets it.
    pub fn wait_passed(
        &self,
        resource: &Resource,
        version: u64,
    ) -> impl Future<Output = Freshness> + Send + 'static + use<> {
        let slot = self.slot(resource);
        async move {
            match slot {
                Some(slot) => {
                    // Version 0 asks for a complete list too.
                    slot.progress.wait(version.max(1)).await;
                    Freshness::Passed
                }
                None => Freshness::NotWatched,
            }
        }
    }

    /// Resolves when the object with this uid is deleted, replaced or begins to be deleted, as the store
    /// shows then. What happened before is not heard of: call it, examine the store, and then await it. Cheap
    /// for many waiters; dropping it forgets it. For a resource that is not watched it resolves at once.
    pub fn wait_departed(
        &self,
        resource: &Resource,
        uid: &str,
    ) -> impl Future<Output = ()> + Send + 'static + use<> {
        let waiter = self.slot(resource).map(|slot| {
            let next = slot.departures.next(uid);
            let uid = uid.into();
            Waiter { next, slot, uid }
        });
        async move {
            if let Some(mut waiter) = waiter {
                // An error says that the store is gone with its resource.
                let _ = (&mut waiter.next).await;
            }
        }
    }

    /// The newest version that any watch has come to.
    pub fn newest_of_all(&self) -> u64 {
        let found = self.found.load();
        let slots = self.slots.iter().chain(found.values());
        slots.map(|slot| slot.progress.version()).max().unwrap_or(0)
    }

    /// How far a resource's watch has come; 0 before its first list or if it is not watched.
    pub fn version(&self, resource: &Resource) -> u64 {
        self.slot(resource)
            .map_or(0, |slot| slot.progress.version())
    }

    /// The newest version of an object of a resource that was listed or reported; 0 before the first.
    pub fn newest(&self, resource: &Resource) -> u64 {
        self.slot(resource)
            .map_or(0, |slot| slot.newest.load(Ordering::Acquire))
    }

    /// The objects of a resource that are newer than a version.
    pub fn newer(&self, resource: &'static Resource, version: u64) -> Vec<AnyObject> {
        self.declared(resource)
            .map(|slot| slot.store.newer(version))
            .unwrap_or_default()
    }

    /// Whether every declared resource has been listed.
    pub fn complete(&self) -> bool {
        self.slots.iter().all(|slot| slot.is_complete())
    }

    /// Whether this resource has been listed: what it shows may be old, but nothing is missing from it.
    pub fn is_complete(&self, resource: &Resource) -> bool {
        self.slot(resource).is_some_and(|slot| slot.is_complete())
    }

    /// Whether a resource can't be followed, and not for a moment only: the server has answered nothing but
    /// errors for 2 s, or nothing at all for 30 s.
    pub fn is_hopeless(&self, resource: &Resource) -> bool {
        let failing = self
            .slot(resource)
            .and_then(|slot| unpoisoned(slot.condition.lock()).failing);
        failing.is_some_and(|failing| failing.is_hopeless(tokio::time::Instant::now()))
    }

    /// What is not as it should be, a line each, for `/readyz?verbose`: resources not listed yet, and those
    /// that the server refuses, with the verb.
    pub fn missing(&self) -> Vec<(&'static Resource, String)> {
        self.slots
            .iter()
            .filter_map(|slot| {
                let what = match slot.state() {
                    State::Complete => return None,
                    State::Listing => match unpoisoned(slot.condition.lock()).trouble.as_ref() {
                        Some(trouble) => format!("not listed yet: {trouble}"),
                        None => "not listed yet".to_owned(),
                    },
                    State::Blocked { verb, reason } => format!("{verb} refused: {reason}"),
                };
                Some((slot.resource, what))
            })
            .collect()
    }

    /// Figures of one resource; `None` if it is not watched.
    pub fn stats(&self, resource: &Resource) -> Option<Stats> {
        self.slot(resource).map(|slot| slot.stats())
    }

    /// About how many bytes a resource's objects take. Hundreds of them are examined: nothing to ask each
    /// second.
    pub fn approximate_bytes(&self, resource: &Resource) -> usize {
        self.slot(resource)
            .map_or(0, |slot| slot.store.approximate_bytes())
    }

    /// The objects that can't be used, with the reason, at most a thousand of each resource: those that do
    /// not decode, and those over which an index panics.
    pub fn set_aside(&self) -> Vec<(&'static Resource, Key, String)> {
        let found = self.found.load();
        let mut aside: Vec<_> = self
            .slots
            .iter()
            .chain(found.values())
            .flat_map(|slot| {
                let troubled = unpoisoned(slot.troubled.lock());
                let items = troubled.iter();
                items
                    .map(|(key, why)| (slot.resource, key.clone(), why.clone()))
                    .collect::<Vec<_>>()
            })
            .collect();
        aside.sort();
        aside
    }

    /// Figures of the resources that discovery has brought.
    pub fn found_stats(&self) -> Vec<(&'static Resource, Stats)> {
        let found = self.found.load();
        found
            .values()
            .map(|slot| (slot.resource, slot.stats()))
            .collect()
    }

    /// Figures of all declared resources.
    pub fn all_stats(&self) -> Vec<(&'static Resource, Stats)> {
        self.slots
            .iter()
            .map(|slot| (slot.resource, slot.stats()))
            .collect()
    }
}

impl Reader for Cache {
    fn get(&self, resource: &'static Resource, namespace: &str, name: &str) -> Option<AnyObject> {
        self.declared(resource)?.store.get(namespace, name)
    }

    fn list(&self, resource: &'static Resource, namespace: Option<&str>) -> Vec<AnyObject> {
        self.declared(resource)
            .map(|slot| slot.store.list(namespace))
            .unwrap_or_default()
    }

    fn indexed(
        &self,
        resource: &'static Resource,
        index: &'static str,
        value: &str,
    ) -> Vec<AnyObject> {
        let Some(slot) = self.declared(resource) else {
            return Vec::new();
        };
        slot.store.indexed(index, value).unwrap_or_else(|| {
            panic!("{resource:?} is read by the index {index:?}, which was not declared by Controller::watch")
        })
    }

    fn catalogue(&self) -> Arc<Catalogue> {
        self.catalogue.load_full()
    }

    fn gone(&self, uid: &str) -> bool {
        self.gone.as_ref().is_some_and(|gone| gone.has(uid))
    }

    fn name_used(&self, resource: &'static Resource, namespace: &str, name: &str) -> bool {
        // In this order: what goes is noted before it is taken away.
        self.get(resource, namespace, name).is_some()
            || self.history.was_removed(resource, namespace, name)
    }

    fn history_covers(&self, uid: &str) -> bool {
        self.history.covers(uid)
    }

    fn history_since(&self) -> u64 {
        self.history.since()
    }

    fn count(&self, resource: &'static Resource) -> usize {
        self.declared(resource)
            .map_or(0, |slot| slot.store.read().len())
    }

    fn heartbeat_age(
        &self,
        resource: &'static Resource,
        namespace: &str,
        name: &str,
    ) -> Option<Duration> {
        self.ages.as_ref()?.age(resource, Key::new(namespace, name))
    }

    fn exposure_age(&self, node: &str, taint: &str, pod: &Key) -> Option<Duration> {
        self.ages.as_ref()?.exposure(node, taint, pod)
    }

    fn standing(&self, resource: &'static Resource) -> Standing {
        let Some(slot) = self.slot(resource) else {
            return Standing::Unwatched;
        };
        if slot.is_complete() {
            Standing::Complete
        } else if unpoisoned(slot.condition.lock()).trouble.is_some() {
            Standing::Failing
        } else {
            Standing::Listing
        }
    }
}
