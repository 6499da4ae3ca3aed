//! The cache as the node sees it: built from what the controllers watch, read by their plans, run by the
//! Watch actors.

use std::{
    collections::HashMap,
    convert::Infallible,
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use arc_swap::ArcSwap;
use controllers_kit::{Catalogue, DynChange, Index, Key, Reader, Standing, Watches};
use kubernetes_proto::{AnyObject, Object as _, Resource, Str, coordination::Lease};
use tokio::sync::oneshot;

use crate::{
    Api, Settings,
    ages::{self, Ages},
    history::History,
    slot::{Gone, NOT_SERVED, Order, Records, Sight, Slot, State, Stats, Subscriber},
    store, unpoisoned, watch,
};

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
