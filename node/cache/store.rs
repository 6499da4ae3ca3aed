//! What one resource's watch has brought: the objects by namespace and name, the indexes over them, and how
//! far the watch has come.
//!
//! One task writes, any number of threads read. The lock is held for one change or one lookup, never while
//! somebody is called back, and a relist is put together outside it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Mutex, RwLock, RwLockReadGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use controllers_kit::{Index, guard::guarded};
use kubernetes_proto::{AnyObject, DynObject, Resource, Str, TextHash};
use smallvec::SmallVec;
use tokio::sync::oneshot;

use crate::unpoisoned;

/// One change to be handed to subscribers: before and after.
pub(crate) type Pending = (Option<AnyObject>, Option<AnyObject>);

/// An object's place among [`Content::objects`].
type At = u32;

/// The objects of one resource with the indexes over them. Each object lies in one place, to which names and
/// lists point: a change of an object touches no list, unless its values change.
#[derive(Default)]
pub(crate) struct Content {
    objects: Vec<Option<AnyObject>>,
    /// Places that nothing lies in.
    free: Vec<At>,
    names: BTreeMap<Str, BTreeMap<Str, At>>,
    /// In the order of the declared indexes. Each list is sorted by namespace and name.
    indexes: Vec<Lists>,
}

/// The objects under each value of an index.
type Lists = HashMap<Str, Vec<At>, TextHash>;

/// The values of an object in an index: one, as a rule.
type Values = SmallVec<[Str; 1]>;

impl Content {
    pub(crate) fn new(indexes: &[Index]) -> Self {
        Self {
            indexes: indexes.iter().map(|_| Lists::default()).collect(),
            ..Self::default()
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.objects.len() - self.free.len()
    }

    pub(crate) fn get(&self, namespace: &str, name: &str) -> Option<&AnyObject> {
        let at = self.names.get(namespace)?.get(name)?;
        Some(lying(&self.objects, *at))
    }

    /// All objects, in order of namespace and name.
    pub(crate) fn all(&self) -> impl Iterator<Item = &AnyObject> {
        let places = self.names.values().flat_map(BTreeMap::values);
        places.map(|at| lying(&self.objects, *at))
    }

    fn of_namespace(&self, namespace: &str) -> Vec<AnyObject> {
        let places = self.names.get(namespace).into_iter();
        let places = places.flat_map(BTreeMap::values);
        places.map(|at| lying(&self.objects, *at).clone()).collect()
    }

    fn listed(&self, index: usize, value: &str) -> Vec<AnyObject> {
        let places = self.indexes[index].get(value).into_iter().flatten();
        places.map(|at| lying(&self.objects, *at).clone()).collect()
    }

    /// Puts an object into its place; the one that it replaces.
    ///
    /// # Errors
    /// Where an index panics over it; nothing has changed then.
    pub(crate) fn put(
        &mut self,
        object: &AnyObject,
        indexes: &[Index],
    ) -> Result<Option<AnyObject>, String> {
        let meta = object.metadata();
        let known = self.names.get(&*meta.namespace);
        let Some(at) = known.and_then(|names| names.get(&*meta.name)).copied() else {
            let values = guarded(|| all_values(indexes, object))?;
            self.add(object, &values);
            return Ok(None);
        };
        let old = lying(&self.objects, at).clone();
        let moves = guarded(|| moves(indexes, &old, object))?;
        self.objects[at as usize] = Some(object.clone());
        for (index, before, after) in moves {
            let lists = &mut self.indexes[index];
            for gone in before.iter().filter(|value| !after.contains(value)) {
                unlist(lists, gone, at, &self.objects);
            }
            for come in after.iter().filter(|value| !before.contains(value)) {
                list(lists, come, at, &self.objects);
            }
        }
        Ok(Some(old))
    }

    fn add(&mut self, object: &AnyObject, values: &ValuesOfAll) {
        let at = self.free.pop().unwrap_or_else(|| {
            grow_by_a_quarter(&mut self.objects);
            self.objects.push(None);
            At::try_from(self.objects.len() - 1).expect("there are fewer objects than addresses")
        });
        self.objects[at as usize] = Some(object.clone());
        let meta = object.metadata();
        let name = meta.name.clone();
        match self.names.get_mut(&*meta.namespace) {
            Some(names) => names.insert(name, at),
            None => {
                let names = self.names.entry(meta.namespace.clone());
                names.or_default().insert(name, at)
            }
        };
        for (values, lists) in values.iter().zip(&mut self.indexes) {
            for value in values {
                list(lists, value, at, &self.objects);
            }
        }
    }

    /// Takes an object away.
    pub(crate) fn remove(
        &mut self,
        namespace: &str,
        name: &str,
        indexes: &[Index],
    ) -> Option<AnyObject> {
        let names = self.names.get_mut(namespace)?;
        let at = names.remove(name)?;
        if names.is_empty() {
            self.names.remove(namespace);
        }
        match guarded(|| all_values(indexes, lying(&self.objects, at))) {
            Ok(values) => {
                for (values, lists) in values.iter().zip(&mut self.indexes) {
                    for gone in values {
                        unlist(lists, gone, at, &self.objects);
                    }
                }
            }
            // It had values when it came: no list may continue pointing to it.
            Err(_) => self.indexes.iter_mut().for_each(|lists| {
                lists.retain(|_, places| {
                    places.retain(|other| *other != at);
                    !places.is_empty()
                });
            }),
        }
        let old = self.objects[at as usize].take();
        self.free.push(at);
        if self.free.len() == self.objects.len() {
            self.objects = Vec::new();
            self.free = Vec::new();
        }
        old
    }

    /// As few nodes as hold everything: what comes one after the other leaves a tree's nodes half empty.
    pub(crate) fn compact(&mut self) {
        for names in self.names.values_mut() {
            *names = std::mem::take(names).into_iter().collect();
        }
        self.objects.shrink_to_fit();
    }

    /// What a reader sees differently when `new` takes the place of this content.
    pub(crate) fn differences(&self, new: &Self) -> Vec<Pending> {
        let mut differences = Vec::new();
        for old in self.all() {
            let meta = old.metadata();
            if new.get(&meta.namespace, &meta.name).is_none() {
                differences.push((Some(old.clone()), None));
            }
        }
        for object in new.all() {
            let meta = object.metadata();
            match self.get(&meta.namespace, &meta.name) {
                Some(old)
                    if old.metadata().resource_version == meta.resource_version
                        && old.metadata().uid == meta.uid => {}
                old => differences.push((old.cloned(), Some(object.clone()))),
            }
        }
        differences
    }
}

/// The values of an object in each index.
type ValuesOfAll = SmallVec<[Values; 8]>;

fn all_values(indexes: &[Index], object: &AnyObject) -> ValuesOfAll {
    indexes.iter().map(|index| values(index, object)).collect()
}

/// The indexes in which an object's values may have changed, with its values before and after.
fn moves(
    indexes: &[Index],
    old: &AnyObject,
    new: &AnyObject,
) -> SmallVec<[(usize, Values, Values); 4]> {
    let changed = indexes.iter().enumerate();
    changed
        .filter(|(_, index)| !is_indexed_alike(index, old, new))
        .map(|(place, index)| (place, values(index, old), values(index, new)))
        .collect()
}

/// The owner index, which every object of every resource is in, is spared a list for its one value.
fn values(index: &Index, object: &AnyObject) -> Values {
    if index.name == Index::OWNER {
        owner(object.as_ref()).collect()
    } else if index.name == Index::DEPENDENTS {
        let owners = &object.metadata().owner_references;
        owners.iter().map(|owner| owner.uid.clone()).collect()
    } else {
        Values::from_vec((index.values)(object.as_ref()))
    }
}

fn owner(object: &dyn DynObject) -> impl Iterator<Item = Str> {
    object
        .metadata()
        .controller()
        .map(|owner| owner.uid.clone())
        .into_iter()
}

/// Whether an object surely has the values that it had: what no index can distinguish is not examined twice.
fn is_indexed_alike(index: &Index, old: &AnyObject, new: &AnyObject) -> bool {
    let (old, new) = (old.metadata(), new.metadata());
    if index.name == Index::OWNER || index.name == Index::DEPENDENTS {
        old.owner_references == new.owner_references
    } else {
        index.of_labels && old.labels == new.labels
    }
}

fn lying(objects: &[Option<AnyObject>], at: At) -> &AnyObject {
    let object = objects[at as usize].as_ref();
    object.expect("what is pointed to lies there")
}

fn place(list: &[At], at: At, objects: &[Option<AnyObject>]) -> Result<usize, usize> {
    let meta = lying(objects, at).metadata();
    list.binary_search_by(|other| {
        let other = lying(objects, *other).metadata();
        (&*other.namespace, &*other.name).cmp(&(&*meta.namespace, &*meta.name))
    })
}

fn list(lists: &mut Lists, value: &Str, at: At, objects: &[Option<AnyObject>]) {
    let list = match lists.get_mut(value) {
        Some(list) => list,
        None => lists.entry(value.clone()).or_default(),
    };
    if let Err(place) = place(list, at, objects) {
        grow_by_a_quarter(list);
        list.insert(place, at);
    }
}

/// Most lists stay short, and there are many: not to the double, as a vector would by itself.
fn grow_by_a_quarter<T>(list: &mut Vec<T>) {
    if list.len() == list.capacity() {
        list.reserve_exact((list.len() / 4).max(1));
    }
}

fn unlist(lists: &mut Lists, value: &Str, at: At, objects: &[Option<AnyObject>]) {
    if let Some(list) = lists.get_mut(value) {
        if let Ok(place) = place(list, at, objects) {
            list.remove(place);
        }
        if list.is_empty() {
            lists.remove(value);
        }
    }
}

/// The store of one resource.
pub(crate) struct Store {
    content: RwLock<Content>,
    /// The owner index first, then the declared ones.
    pub(crate) indexes: Vec<Index>,
}

impl Store {
    pub(crate) fn new(indexes: Vec<Index>) -> Self {
        Self {
            content: RwLock::new(Content::new(&indexes)),
            indexes,
        }
    }

    /// Content of the same indexes, empty.
    pub(crate) fn fresh(&self) -> Content {
        Content::new(&self.indexes)
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Content> {
        unpoisoned(self.content.read())
    }

    pub(crate) fn put(&self, object: &AnyObject) -> Result<Option<AnyObject>, String> {
        unpoisoned(self.content.write()).put(object, &self.indexes)
    }

    pub(crate) fn remove(&self, namespace: &str, name: &str) -> Option<AnyObject> {
        unpoisoned(self.content.write()).remove(namespace, name, &self.indexes)
    }

    /// Puts new content into the place of all that there is. What was there is freed outside the lock.
    pub(crate) fn replace(&self, mut new: Content) {
        std::mem::swap(&mut *unpoisoned(self.content.write()), &mut new);
    }

    pub(crate) fn get(&self, namespace: &str, name: &str) -> Option<AnyObject> {
        self.read().get(namespace, name).cloned()
    }

    pub(crate) fn list(&self, namespace: Option<&str>) -> Vec<AnyObject> {
        let content = self.read();
        match namespace {
            Some(namespace) => content.of_namespace(namespace),
            None => {
                let mut all = Vec::with_capacity(content.len());
                all.extend(content.all().cloned());
                all
            }
        }
    }

    /// Those newer than a version, in no order.
    pub(crate) fn newer(&self, version: u64) -> Vec<AnyObject> {
        let content = self.read();
        let objects = content.objects.iter().flatten();
        objects
            .filter(|object| object.metadata().resource_version > version)
            .cloned()
            .collect()
    }

    /// `None` where no such index is declared.
    pub(crate) fn indexed(&self, index: &str, value: &str) -> Option<Vec<AnyObject>> {
        let place = self.indexes.iter().position(|known| known.name == index)?;
        Some(self.read().listed(place, value))
    }

    /// About how many bytes the objects take, measured on a sample.
    pub(crate) fn approximate_bytes(&self) -> usize {
        let (count, sample): (usize, Vec<AnyObject>) = {
            let content = self.read();
            let step = content.len().div_ceil(SAMPLE).max(1);
            let sample = content.all().step_by(step).cloned().collect();
            (content.len(), sample)
        };
        let bytes: usize = sample
            .iter()
            .map(|object| object.approximate_bytes() + ENTRY_BYTES)
            .sum();
        bytes * count / sample.len().max(1)
    }
}

/// Objects that are measured for the size of a store.
const SAMPLE: usize = 500;

/// What the place of an object takes in the store and in the owner index: keys and pointers, nodes not quite
/// full.
const ENTRY_BYTES: usize = 64;

/// The index that every resource has: the uid of the managing controller.
pub(crate) fn owner_index(resource: &'static Resource) -> Index {
    Index {
        resource,
        name: Index::OWNER,
        of_labels: false,
        values: std::sync::Arc::new(|object| owner(object).collect()),
    }
}

/// The index of all owners' uids, where a controller needs the graph.
pub(crate) fn dependents_index(resource: &'static Resource) -> Index {
    Index {
        resource,
        name: Index::DEPENDENTS,
        of_labels: false,
        values: std::sync::Arc::new(|object| {
            let owners = &object.metadata().owner_references;
            owners.iter().map(|owner| owner.uid.clone()).collect()
        }),
    }
}

/// How far a watch has come, and who waits for it to come further.
pub(crate) struct Progress {
    version: AtomicU64,
    /// The lowest version that somebody waits for: spares the watch the lock below at each event.
    lowest_wanted: AtomicU64,
    waiters: Mutex<Waiters>,
}

#[derive(Default)]
struct Waiters {
    next: u64,
    waiting: BTreeMap<(u64, u64), oneshot::Sender<()>>,
}

impl Waiters {
    fn lowest(&self) -> u64 {
        self.waiting
            .first_key_value()
            .map_or(u64::MAX, |((version, _), _)| *version)
    }
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self {
            version: AtomicU64::new(0),
            lowest_wanted: AtomicU64::new(u64::MAX),
            waiters: Mutex::default(),
        }
    }

    /// 0 until the first list is complete.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::SeqCst)
    }

    /// The lowest version that somebody waits for. It exists: who waits has written it, or has heard of it.
    pub(crate) fn wanted(&self) -> Option<u64> {
        let wanted = self.lowest_wanted.load(Ordering::SeqCst);
        (wanted != u64::MAX).then_some(wanted)
    }

    /// Says how far the watch has come, and wakes those who waited for it.
    pub(crate) fn reach(&self, version: u64) {
        self.version.store(version, Ordering::SeqCst);
        // Pairs with the order in `wait`: either this sees the waiter, or the waiter sees the version.
        if self.lowest_wanted.load(Ordering::SeqCst) > version {
            return;
        }
        let mut waiters = unpoisoned(self.waiters.lock());
        let later = waiters.waiting.split_off(&(version.saturating_add(1), 0));
        let reached = std::mem::replace(&mut waiters.waiting, later);
        self.lowest_wanted.store(waiters.lowest(), Ordering::SeqCst);
        drop(waiters);
        for waiter in reached.into_values() {
            // Who has given up waiting is not missed.
            let _ = waiter.send(());
        }
    }

    /// Returns when the watch has come as far as this version.
    pub(crate) async fn wait(&self, version: u64) {
        if self.version() >= version {
            return;
        }
        let (waiter, woken) = oneshot::channel();
        let key = {
            let mut waiters = unpoisoned(self.waiters.lock());
            let key = (version, waiters.next);
            waiters.next += 1;
            waiters.waiting.insert(key, waiter);
            self.lowest_wanted.store(waiters.lowest(), Ordering::SeqCst);
            key
        };
        let _given_up = Forget {
            progress: self,
            key,
        };
        if self.version() >= version {
            return;
        }
        // Only `reach` takes the sender away, and it sends.
        let _ = woken.await;
    }

    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        unpoisoned(self.waiters.lock()).waiting.len()
    }
}

/// Who waits for an object of a store to go, by its uid. Bound: the waiters, each of which is dropped with
/// its caller.
#[derive(Default)]
pub(crate) struct Departures {
    /// How many uids are waited for: examined with each change, where there are none as a rule.
    count: AtomicU64,
    waiting: Mutex<HashMap<Str, Vec<oneshot::Sender<()>>>>,
}

impl Departures {
    /// Resolves at the next departure of the object with this uid, or with an error when the store is
    /// dropped.
    pub(crate) fn next(&self, uid: &str) -> oneshot::Receiver<()> {
        let (waiter, woken) = oneshot::channel();
        let mut waiting = unpoisoned(self.waiting.lock());
        waiting.entry(uid.into()).or_default().push(waiter);
        self.count.store(waiting.len() as u64, Ordering::SeqCst);
        woken
    }

    /// Takes those away who have given up waiting for this uid.
    pub(crate) fn tidy(&self, uid: &str) {
        let mut waiting = unpoisoned(self.waiting.lock());
        if let Some(waiters) = waiting.get_mut(uid) {
            waiters.retain(|waiter| !waiter.is_closed());
            if waiters.is_empty() {
                waiting.remove(uid);
            }
        }
        self.count.store(waiting.len() as u64, Ordering::SeqCst);
    }

    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        unpoisoned(self.waiting.lock()).len()
    }

    /// An object is gone, or is on its way: the store shows that already.
    pub(crate) fn notice(&self, uid: &str) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut waiting = unpoisoned(self.waiting.lock());
        let gone = waiting.remove(uid);
        self.count.store(waiting.len() as u64, Ordering::SeqCst);
        drop(waiting);
        for waiter in gone.into_iter().flatten() {
            let _ = waiter.send(());
        }
    }
}

/// Takes a waiter away that was dropped while it waited.
struct Forget<'a> {
    progress: &'a Progress,
    key: (u64, u64),
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        let mut waiters = unpoisoned(self.progress.waiters.lock());
        if waiters.waiting.remove(&self.key).is_some() {
            self.progress
                .lowest_wanted
                .store(waiters.lowest(), Ordering::SeqCst);
        }
    }
}
