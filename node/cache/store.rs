//! What one resource's watch has brought: the objects by namespace and name, the indexes over them, and how far the
//! watch has come.
//!
//! One task writes, any number of threads read. The lock is held for one change or one look-up, never while somebody is
//! called back, and a relist is put together outside it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Mutex, RwLock, RwLockReadGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use controllers_kit::Index;
use kubernetes_proto::{AnyObject, DynObject, Resource, Str, TextHash};
use smallvec::SmallVec;
use tokio::sync::oneshot;

use crate::unpoisoned;

/// One change to be handed to subscribers: before and after.
pub(crate) type Pending = (Option<AnyObject>, Option<AnyObject>);

/// The objects of one resource with the indexes over them.
#[derive(Default)]
pub(crate) struct Content {
    objects: BTreeMap<Str, BTreeMap<Str, AnyObject>>,
    count: usize,
    /// In the order of the declared indexes. Each list is sorted by namespace and name.
    indexes: Vec<Lists>,
}

/// The objects under each value of an index.
type Lists = HashMap<Str, Vec<AnyObject>, TextHash>;

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
        self.count
    }

    pub(crate) fn get(&self, namespace: &str, name: &str) -> Option<&AnyObject> {
        self.objects.get(namespace)?.get(name)
    }

    /// All objects, in order of namespace and name.
    pub(crate) fn all(&self) -> impl Iterator<Item = &AnyObject> {
        self.objects.values().flat_map(BTreeMap::values)
    }

    fn of_namespace(&self, namespace: &str) -> Vec<AnyObject> {
        self.objects
            .get(namespace)
            .map(|objects| objects.values().cloned().collect())
            .unwrap_or_default()
    }

    /// Puts an object into its place; the one that it replaces.
    pub(crate) fn put(&mut self, object: &AnyObject, indexes: &[Index]) -> Option<AnyObject> {
        let meta = object.metadata();
        let old = match self.objects.get_mut(&*meta.namespace) {
            Some(objects) => objects.insert(meta.name.clone(), object.clone()),
            None => self
                .objects
                .entry(meta.namespace.clone())
                .or_default()
                .insert(meta.name.clone(), object.clone()),
        };
        if old.is_none() {
            self.count += 1;
        }
        for (index, lists) in indexes.iter().zip(&mut self.indexes) {
            let values = values(index, object);
            if let Some(old) = &old {
                for gone in self::values(index, old) {
                    if !values.contains(&gone) {
                        unlist(lists, &gone, old);
                    }
                }
            }
            for value in values {
                list(lists, value, object);
            }
        }
        old
    }

    /// Takes an object away.
    pub(crate) fn remove(
        &mut self,
        namespace: &str,
        name: &str,
        indexes: &[Index],
    ) -> Option<AnyObject> {
        let objects = self.objects.get_mut(namespace)?;
        let old = objects.remove(name)?;
        if objects.is_empty() {
            self.objects.remove(namespace);
        }
        self.count -= 1;
        for (index, lists) in indexes.iter().zip(&mut self.indexes) {
            for gone in values(index, &old) {
                unlist(lists, &gone, &old);
            }
        }
        Some(old)
    }

    /// As few nodes as hold everything: what comes one after the other leaves a tree's nodes half empty.
    pub(crate) fn compact(&mut self) {
        for objects in self.objects.values_mut() {
            *objects = std::mem::take(objects).into_iter().collect();
        }
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

fn place(list: &[AnyObject], object: &AnyObject) -> Result<usize, usize> {
    let meta = object.metadata();
    list.binary_search_by(|other| {
        let other = other.metadata();
        (&*other.namespace, &*other.name).cmp(&(&*meta.namespace, &*meta.name))
    })
}

fn list(lists: &mut Lists, value: Str, object: &AnyObject) {
    let list = lists.entry(value).or_default();
    match place(list, object) {
        Ok(place) => list[place] = object.clone(),
        Err(place) => {
            // Most lists stay short: grow by a quarter, not to the double.
            if list.len() == list.capacity() {
                list.reserve_exact((list.len() / 4).max(1));
            }
            list.insert(place, object.clone());
        }
    }
}

fn unlist(lists: &mut Lists, value: &Str, object: &AnyObject) {
    if let Some(list) = lists.get_mut(value) {
        if let Ok(place) = place(list, object) {
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

    pub(crate) fn put(&self, object: &AnyObject) -> Option<AnyObject> {
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

    /// `None` where no such index is declared.
    pub(crate) fn indexed(&self, index: &str, value: &str) -> Option<Vec<AnyObject>> {
        let place = self.indexes.iter().position(|known| known.name == index)?;
        Some(
            self.read().indexes[place]
                .get(value)
                .cloned()
                .unwrap_or_default(),
        )
    }

    /// Objects, and about how many bytes they take: measured on a sample, so that it can be asked at every scrape.
    pub(crate) fn size(&self) -> (usize, usize) {
        let (count, sample) = {
            let content = self.read();
            let step = content.len().div_ceil(SAMPLE).max(1);
            (
                content.len(),
                content
                    .all()
                    .step_by(step)
                    .cloned()
                    .collect::<Vec<AnyObject>>(),
            )
        };
        if sample.is_empty() {
            return (count, 0);
        }
        let bytes: usize = sample
            .iter()
            .map(|object| object.approximate_bytes() + ENTRY_BYTES)
            .sum();
        (count, bytes * count / sample.len())
    }
}

/// Objects that are measured for the size of a store.
const SAMPLE: usize = 500;

/// What the place of an object takes in the store and in the owner index: keys and pointers, nodes not quite full.
const ENTRY_BYTES: usize = 96;

/// The index that every resource has: the uid of the managing controller.
pub(crate) fn owner_index(resource: &'static Resource) -> Index {
    Index {
        resource,
        name: Index::OWNER,
        values: std::sync::Arc::new(|object| owner(object).collect()),
    }
}

/// The index of all owners' uids, where a controller needs the graph.
pub(crate) fn dependents_index(resource: &'static Resource) -> Index {
    Index {
        resource,
        name: Index::DEPENDENTS,
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
