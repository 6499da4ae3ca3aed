//! What the actors of one process share.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, btree_map, hash_map::Entry},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use actix::Addr;
use arc_swap::ArcSwapOption;
use controllers_kit::{
    AnyObject, Backoff, Discovered, DynChange, DynController, Key, Memory, Reader, Resource,
    SignedDuration, Subscription, guard::guarded,
};
use coordinator::{Epoch, RangeId};
use node_cache::Cache;
use node_telemetry::{
    metrics::{ControllerMetrics, Metrics, QueueMetrics},
    trace::{Cause, Traces, Woken},
};

use crate::{
    actors::range::{Poll, Range},
    apply::Writer,
    attempts::Attempts,
    clock::Clock,
    cloud::Cloud,
    gate,
    history::{History, Tally, micros},
    keys::Keys,
    quarantine::Watchlist,
    queue::Priority,
    shadowing::Shadow,
    steer::{Steering, Unscanned},
    view::View,
    workers::Workers,
};

/// One enabled controller.
pub struct Unit {
    /// Its place in [`Shared::units`].
    pub index: u16,
    /// The controller.
    pub controller: Box<dyn DynController>,
    /// What it watches.
    pub subscriptions: Vec<Subscription>,
    /// What it watches of whatever the API serves.
    pub discovered: Vec<Discovered>,
    /// How many keys this replica works on at once, over all ranges.
    pub workers: Arc<Workers>,
    /// The back-off of its keys after failures.
    pub backoff: Backoff,
    /// `workqueue_*`.
    pub queue_metrics: Arc<QueueMetrics>,
    /// `manifold_*{controller}`.
    pub metrics: Arc<ControllerMetrics>,
    /// Whether the caches that it reads are complete: set once by its Controller actor.
    pub ready: AtomicBool,
    /// Keys that are being worked on.
    pub working: AtomicUsize,
    /// Keys reconciled since the start.
    pub reconciles: AtomicU64,
    /// Keys that wait for the end of a pause.
    pub paused: AtomicUsize,
}

impl Unit {
    /// Upstream's canonical name.
    pub fn name(&self) -> &'static str {
        self.controller.descriptor().name
    }

    /// The resources that it reads.
    pub fn resources(&self) -> impl Iterator<Item = &'static Resource> {
        self.subscriptions
            .iter()
            .map(|subscription| subscription.resource)
    }

    /// A memory for the next owner. One that can't be packed is dropped: losing it is safe.
    pub fn pack(&self, key: &Key, memory: &Memory) -> Option<Vec<u8>> {
        guarded(|| self.controller.pack(memory)).unwrap_or_else(|panic| {
            self.memory_panicked(key, "packed", &panic);
            None
        })
    }

    /// A memory from the owner before, its instants moved by how far the two clocks differ; a fresh one where
    /// it can't be had.
    pub fn unpack(&self, key: &Key, packed: &[u8], by: SignedDuration) -> Memory {
        let unpacked = guarded(|| {
            let mut memory = self.controller.unpack(packed);
            if !by.is_zero() {
                self.controller.shift(&mut memory, by);
            }
            memory
        });
        unpacked.unwrap_or_else(|panic| {
            self.memory_panicked(key, "unpacked", &panic);
            self.controller.new_memory()
        })
    }

    fn memory_panicked(&self, key: &Key, done: &str, panic: &str) {
        self.metrics.panicked();
        tracing::error!(controller = self.name(), %key, %panic, "a key's memory could not be {done} and is dropped");
    }

    /// The resource whose objects are its keys: the first that it declares.
    pub fn primary(&self) -> Option<&'static Resource> {
        self.subscriptions
            .first()
            .map(|subscription| subscription.resource)
    }
}

/// Keys woken from outside that a range has not queued yet. Bound: each key is in it once.
#[derive(Default)]
pub struct Inbox {
    wakes: Mutex<Wakes>,
    polled: AtomicBool,
}

/// A key that something has happened to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wake {
    /// The controller's place in [`Shared::units`].
    pub unit: u16,
    /// The key.
    pub key: Key,
    /// How urgent it is.
    pub priority: Priority,
    /// The newest version of what has happened; 0 where nothing has.
    pub evidence: u64,
    /// What has happened, where that is traced.
    pub woken: Option<Box<Woken>>,
    /// The object by which it was woken first; none where nothing has changed.
    pub origin: Option<Box<Origin>>,
}

/// An object whose change has woken a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Its resource.
    pub resource: &'static Resource,
    /// The object.
    pub object: Key,
    /// Whether it is gone.
    pub gone: bool,
}

impl Origin {
    fn of((resource, change): (&'static Resource, DynChange<'_>)) -> Option<Box<Self>> {
        if change.version == 0 {
            return None;
        }
        let object = change.new.or(change.old)?;
        Some(Box::new(Self {
            resource,
            object: Key::of_meta(object.metadata()),
            gone: change.new.is_none(),
        }))
    }
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = match self.gone {
            true => "deletion",
            false => "change",
        };
        write!(f, "{what} of {} {}", self.resource.type_id(), self.object)
    }
}

/// A change of an object of a resource.
type ChangeOf<'a> = (&'static Resource, DynChange<'a>);

#[derive(Default)]
struct Wakes {
    order: Vec<Wake>,
    /// Where a key is in `order`.
    known: HashMap<(u16, Key), usize>,
}

impl Inbox {
    fn push(
        &self,
        unit: u16,
        key: Key,
        priority: Priority,
        evidence: u64,
        cause: Option<&Arc<Cause>>,
        change: Option<ChangeOf<'_>>,
    ) {
        let mut wakes = self
            .wakes
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let Wakes { order, known } = &mut *wakes;
        match known.entry((unit, key)) {
            Entry::Occupied(place) => {
                let wake = &mut order[*place.get()];
                wake.priority = wake.priority.max(priority);
                wake.evidence = wake.evidence.max(evidence);
                if let Some(cause) = cause {
                    wake.woken.get_or_insert_default().by(Arc::clone(cause));
                }
            }
            Entry::Vacant(place) => {
                let woken = cause.map(|cause| {
                    let mut woken = Box::<Woken>::default();
                    woken.by(Arc::clone(cause));
                    woken
                });
                order.push(Wake {
                    unit,
                    key: place.key().1.clone(),
                    priority,
                    evidence,
                    woken,
                    origin: change.and_then(Origin::of),
                });
                place.insert(order.len() - 1);
            }
        }
    }

    /// Takes all.
    pub fn drain(&self) -> Vec<Wake> {
        self.polled.store(false, Ordering::Release);
        let mut wakes = self
            .wakes
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        wakes.known.clear();
        std::mem::take(&mut wakes.order)
    }
}

/// What a range reports of itself without being asked.
#[derive(Default)]
pub struct RangeStats {
    /// Keys that it knows.
    pub keys: AtomicUsize,
    /// Keys that wait.
    pub queued: AtomicUsize,
    /// Keys reconciled.
    pub reconciles: AtomicU64,
    /// Work and waits since they were recorded last.
    pub tally: Tally,
    /// Whether it is frozen for a handoff.
    pub frozen: AtomicBool,
    /// What its reconciles have taken so far, in microseconds: planning, requests, and the wait before.
    pub busy_micros: AtomicU64,
    /// Keys that are quarantined.
    pub quarantined: AtomicUsize,
    /// Controllers all of whose keys are enqueued when they are paused no more.
    pub unscanned: Unscanned,
}

impl RangeStats {
    /// Something has taken so long.
    pub fn was_busy(&self, took: Duration) {
        self.busy_micros.fetch_add(micros(took), Ordering::Relaxed);
    }

    /// What its reconciles have taken so far.
    pub fn busy(&self) -> Duration {
        Duration::from_micros(self.busy_micros.load(Ordering::Relaxed))
    }
}

/// One owned range.
pub struct Slot {
    /// The epoch under which it is owned.
    pub epoch: Epoch,
    /// Its actor.
    pub addr: Addr<Range>,
    /// Its inbox.
    pub inbox: Arc<Inbox>,
    /// Its figures.
    pub stats: Arc<RangeStats>,
}

/// What the actors of one process share.
pub struct Shared {
    /// This replica's name.
    pub replica: String,
    /// The number of ranges of the fleet.
    pub ranges: u16,
    /// The cache.
    pub view: Arc<dyn View>,
    /// The one writer.
    pub writer: Arc<Writer>,
    /// What signs.
    pub keys: Arc<dyn Keys>,
    /// The cloud provider.
    pub cloud: Arc<dyn Cloud>,
    /// The clocks.
    pub clock: Arc<dyn Clock>,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// The replica's fence.
    pub fence: Arc<dyn gate::Fence>,
    /// The enabled controllers.
    pub units: Vec<Unit>,
    /// Writes that succeeded since the start.
    pub writes: AtomicU64,
    /// The owned ranges, by number.
    pub table: Vec<ArcSwapOption<Slot>>,
    /// Where what takes long is done.
    pub aside: Aside,
    /// Objects over which a controller's wake has panicked.
    pub unwoken: Unwoken,
    /// Keys in flight, and those that may kill.
    pub watchlist: Arc<Watchlist>,
    /// Orders of operators: what is paused, who is drained.
    pub steering: Arc<Steering>,
    /// The last attempts of keys that fail.
    pub attempts: Mutex<Attempts>,
    /// The last hour of the ranges, for the live page.
    pub history: Mutex<History>,
    /// Where an endpoint for them is set.
    pub traces: Option<Arc<Traces>>,
    /// What compares the plans, where none is carried out.
    pub shadow: Option<Arc<Shadow>>,
}

/// As [`Subscription::wake`].
type WakeOf<'a> = &'a dyn Fn(DynChange<'_>, &dyn Reader, &mut dyn FnMut(Key));

/// Objects over which a controller's wake has panicked are logged once each; this many are remembered, for
/// that and for `/debug/shards`. Beyond it they are counted only.
const UNWOKEN_MAX: usize = 1000;

/// Objects over which a controller's wake has panicked, by the controller's name: their changes wake none of
/// its keys.
#[derive(Default)]
pub struct Unwoken(Mutex<BTreeMap<(&'static str, &'static Resource, Key), String>>);

impl Unwoken {
    /// Remembers one; whether it is a new one, and there was room for it.
    fn insert(&self, unit: &Unit, object: &AnyObject, panic: &str) -> bool {
        let key = Key::of_meta(object.metadata());
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = known.len() < UNWOKEN_MAX;
        match known.entry((unit.name(), object.resource(), key)) {
            btree_map::Entry::Occupied(mut one) => {
                panic.clone_into(one.get_mut());
                false
            }
            btree_map::Entry::Vacant(one) if room => {
                one.insert(panic.to_owned());
                true
            }
            btree_map::Entry::Vacant(_) => false,
        }
    }

    /// All of them, with what the wake panicked with.
    pub fn all(&self) -> Vec<(&'static str, &'static Resource, Key, String)> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known
            .iter()
            .map(|((unit, resource, key), why)| (*unit, *resource, key.clone(), why.clone()))
            .collect()
    }
}

/// Where whole caches are scanned.
#[derive(Clone, Debug)]
pub enum Aside {
    /// On a runtime's blocking threads.
    Blocking(tokio::runtime::Handle),
    /// As a task of the caller's thread: in a simulation.
    Here,
}

impl Aside {
    /// Does some work after a while.
    pub fn run(&self, after: Duration, work: impl FnOnce() + Send + 'static) {
        match self {
            Self::Blocking(runtime) => {
                let work = move || {
                    std::thread::sleep(after);
                    work();
                };
                drop(runtime.spawn_blocking(work));
            }
            Self::Here => {
                actix::spawn(async move {
                    tokio::time::sleep(after).await;
                    work();
                });
            }
        }
    }

    /// Spawns a task that may outlive its caller.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        match self {
            Self::Blocking(runtime) => drop(runtime.spawn(task)),
            Self::Here => drop(actix::spawn(task)),
        }
    }
}

impl Shared {
    /// Has a resource's changes wake keys from here on.
    pub fn follow(self: &Arc<Self>, cache: &Cache, resource: &'static Resource) {
        // Not strongly: the cache is part of what is shared.
        let reported = Arc::downgrade(self);
        cache.subscribe(
            resource,
            Box::new(move |change| {
                if let Some(reported) = reported.upgrade() {
                    reported.changed(resource, change);
                }
            }),
        );
    }

    /// What a change says of how far the watch of the key's own object should have come, as a version; 0 for
    /// nothing. A change of that object is its watch's own word, unless it is late: then more may have
    /// happened to it since. After a watch that stood still, changes come that have long been overtaken, one
    /// by one.
    fn evidence(&self, unit: &Unit, resource: &'static Resource, change: DynChange<'_>) -> u64 {
        let settled = self.fence.settled();
        let late = if change.version < settled { settled } else { 0 };
        match (change.version, unit.primary()) {
            // Nothing has happened.
            (0, _) => 0,
            (_, Some(primary)) if std::ptr::eq(primary, resource) => late,
            (version, _) => version.max(late),
        }
    }

    /// A change as what wakes keys, where that is traced.
    fn cause(&self, resource: &'static Resource, change: DynChange<'_>) -> Option<Arc<Cause>> {
        self.traces.as_ref()?;
        Cause::of(resource, change, self.clock.now()).map(Arc::new)
    }

    /// The range of a controller's key.
    pub fn range_of(&self, unit: &Unit, key: &Key) -> RangeId {
        let text = unit.controller.descriptor().shard_text(key);
        coordinator_core::range_of(text, self.ranges)
    }

    /// The last attempts of keys that fail.
    pub fn attempts(&self) -> MutexGuard<'_, Attempts> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last hour of the ranges.
    pub fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slot of an owned range.
    pub fn slot(&self, range: RangeId) -> Option<Arc<Slot>> {
        self.table.get(usize::from(range))?.load_full()
    }

    /// Queues a key with the range that owns it, if this replica does. `evidence` is the version of what has
    /// happened, `cause` what that is.
    fn wake(
        &self,
        unit: &Unit,
        key: Key,
        evidence: u64,
        cause: Option<&Arc<Cause>>,
        change: ChangeOf<'_>,
    ) {
        let range = self.range_of(unit, &key);
        self.wake_in(range, unit, key, evidence, cause, change);
    }

    fn wake_in(
        &self,
        range: RangeId,
        unit: &Unit,
        key: Key,
        evidence: u64,
        cause: Option<&Arc<Cause>>,
        change: ChangeOf<'_>,
    ) {
        if let Some(slot) = self.slot(range) {
            let (index, priority) = (unit.index, Priority::High);
            slot.inbox
                .push(index, key, priority, evidence, cause, Some(change));
            poll(&slot);
        }
    }

    /// Hands out the keys that a change wakes. This runs on every replica: a panic over one object must not
    /// end them all.
    fn woken(
        &self,
        unit: &Unit,
        change: DynChange<'_>,
        wake: WakeOf<'_>,
        each: &mut dyn FnMut(Key),
    ) {
        let Err(panic) = guarded(|| wake(change, &*self.view, each)) else {
            return;
        };
        unit.metrics.wake_panicked();
        if let Some(object) = change.new.or(change.old)
            && self.unwoken.insert(unit, object, &panic)
        {
            tracing::error!(
                controller = unit.name(), resource = %object.resource().id(), object = %Key::of_meta(object.metadata()), %panic,
                "the keys that an object wakes could not be reported; its changes wake none of this controller"
            );
        }
    }

    /// What a change of an object wakes.
    pub fn changed(&self, resource: &'static Resource, change: DynChange<'_>) {
        if let Some(shadow) = &self.shadow {
            shadow.saw(resource, change);
        }
        let cause = self.cause(resource, change);
        let cause = cause.as_ref();
        for unit in &self.units {
            for subscription in unit
                .subscriptions
                .iter()
                // One store may hold some objects of a resource as projections, another the metadata of all.
                .filter(|one| std::ptr::eq(one.resource, resource))
            {
                if !wanted(subscription, change) {
                    continue;
                }
                let evidence = self.evidence(unit, resource, change);
                self.woken(unit, change, &*subscription.wake, &mut |key| {
                    self.wake(unit, key, evidence, cause, (resource, change));
                });
            }
        }
        if self.units.iter().all(|unit| unit.discovered.is_empty()) {
            return;
        }
        let catalogue = self.view.catalogue();
        let entry = catalogue.preferred(resource);
        let Some(entry) = entry.filter(|entry| std::ptr::eq(entry.resource, resource)) else {
            return;
        };
        for unit in &self.units {
            for discovered in unit.discovered.iter().filter(|one| (one.wanted)(entry)) {
                let evidence = self.evidence(unit, resource, change);
                self.woken(unit, change, &discovered.wake, &mut |key| {
                    self.wake(unit, key, evidence, cause, (resource, change));
                });
            }
        }
    }

    /// Queues, at low priority, every key of some controllers in some owned ranges: those derived from
    /// children whose owner is gone included, since every object names the keys that it wakes. A range that
    /// is gained meanwhile has a scan of its own.
    pub fn wake_all(
        &self,
        wanted_unit: &dyn Fn(&Unit) -> bool,
        wanted_range: &dyn Fn(RangeId) -> bool,
    ) {
        let slots: Vec<Option<Arc<Slot>>> = (0..self.ranges)
            .map(|range| wanted_range(range).then(|| self.slot(range)).flatten())
            .collect();
        // As at the start, when caches are complete before anything is owned.
        if slots.iter().all(Option::is_none) {
            return;
        }
        for unit in self.units.iter().filter(|unit| wanted_unit(unit)) {
            let mut touched = BTreeSet::new();
            self.keys_of_all(unit, &mut |key| {
                let range = self.range_of(unit, &key);
                if let Some(slot) = &slots[usize::from(range)] {
                    slot.inbox
                        .push(unit.index, key, Priority::Low, 0, None, None);
                    touched.insert(range);
                }
            });
            // Now, so that nobody waits for the scans of the other controllers.
            for slot in touched
                .iter()
                .filter_map(|range| slots[usize::from(*range)].as_deref())
            {
                poll(slot);
            }
        }
    }

    /// Queues the keys of some controllers in some owned ranges that a change wakes which is newer than these
    /// versions. What was deleted is not among the changes.
    pub fn wake_newer(
        &self,
        seen: &BTreeMap<&'static Resource, u64>,
        wanted_unit: &dyn Fn(&Unit) -> bool,
        wanted_range: &dyn Fn(RangeId) -> bool,
    ) {
        // By the place of a resource: its projections and its metadata lie in stores of their own.
        let mut newer: HashMap<*const Resource, Vec<AnyObject>> = HashMap::new();
        for unit in self.units.iter().filter(|unit| wanted_unit(unit)) {
            for subscription in &unit.subscriptions {
                let Some(version) = seen.get(subscription.resource) else {
                    continue;
                };
                let objects = newer
                    .entry(std::ptr::from_ref(subscription.resource))
                    .or_insert_with(|| self.view.newer(subscription.resource, *version));
                for object in &*objects {
                    let change = DynChange {
                        version: object.metadata().resource_version,
                        ..as_it_is(object)
                    };
                    if !wanted(subscription, change) {
                        continue;
                    }
                    let evidence = self.evidence(unit, subscription.resource, change);
                    let cause = self.cause(subscription.resource, change);
                    let cause = cause.as_ref();
                    self.woken(unit, change, &*subscription.wake, &mut |key| {
                        let range = self.range_of(unit, &key);
                        if wanted_range(range) {
                            let change = (subscription.resource, change);
                            self.wake_in(range, unit, key, evidence, cause, change);
                        }
                    });
                }
            }
        }
    }

    /// Every key that any object in the caches wakes.
    fn keys_of_all(&self, unit: &Unit, wake: &mut dyn FnMut(Key)) {
        let catalogue = self.view.catalogue();
        for discovered in &unit.discovered {
            let entries = catalogue.all().iter().filter(|entry| entry.preferred);
            for entry in entries.filter(|entry| (discovered.wanted)(entry)) {
                for object in self.view.list(entry.resource, None) {
                    self.woken(unit, as_it_is(&object), &discovered.wake, wake);
                }
            }
        }
        for subscription in &unit.subscriptions {
            for object in self.view.list(subscription.resource, None) {
                let change = as_it_is(&object);
                if wanted(subscription, change) {
                    self.woken(unit, change, &*subscription.wake, wake);
                }
            }
        }
    }
}

/// An object that has not changed, as a change.
fn as_it_is(object: &AnyObject) -> DynChange<'_> {
    DynChange {
        old: None,
        new: Some(object),
        version: 0,
    }
}

/// Whether a subscription asks for an object of that name: another controller's watch of the resource may be
/// wider.
fn wanted(subscription: &Subscription, change: DynChange<'_>) -> bool {
    subscription.only_name.is_none_or(|name| {
        change
            .new
            .or(change.old)
            .is_some_and(|object| object.metadata().name == *name)
    })
}

/// Notifies a range's actor of its inbox; once until it has read.
pub(crate) fn poll(slot: &Slot) {
    if !slot.inbox.polled.swap(true, Ordering::AcqRel) && slot.addr.try_send(Poll).is_err() {
        // The mailbox is full of messages, each of which reads the inbox too.
        slot.inbox.polled.store(false, Ordering::Release);
    }
}
