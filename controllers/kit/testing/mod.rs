//! Test support for controllers: a cluster in memory, builders for its objects, and the contract of every
//! controller.
//!
//! [`World`] holds objects at an instant, answers writes as the API server does (`server.rs`), lets the rest
//! of the cluster act (`environment.rs`), and runs controllers until nothing is left to do (`engine.rs`).
//! [`contract`] runs them in many ways that must all come to the same rest.

use std::{collections::BTreeMap, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use kubernetes_proto::{
    AnyObject, Object, Partial, Resource, Str, cast,
    core::{Namespace, Node, Pod},
    meta::{ObjectMeta, Time},
};

use crate::cloud;
use crate::{
    Answers, Catalogue, Controller, DynController, Entry, Event, EventType, Factory, FlagValue,
    Flags, Index, Key, NOT_FOUND, Plan, Query, Reader, Refusal, Sharding, Snapshot, Standing,
};

pub mod builders;
pub mod contract;
mod engine;
mod environment;
mod extremes;
pub mod identity;
mod server;

pub use builders::*;
pub use server::Applied;

/// The day on which all tests play.
const DAY: &str = "2026-03-02";

/// An instant of the tests' day (`12:00:00`), or any other in RFC 3339.
pub fn at(time: &str) -> Timestamp {
    let text = if time.contains('T') {
        time.to_owned()
    } else {
        format!("{DAY}T{time}Z")
    };
    text.parse()
        .unwrap_or_else(|error| panic!("{time:?} is no time as in 12:00:00: {error}"))
}

type Place = (&'static Resource, Key);

/// What can be done with a resource.
fn entry(resource: &'static Resource) -> Entry {
    const VERBS: [&str; 8] = [
        "create",
        "delete",
        "deletecollection",
        "get",
        "list",
        "patch",
        "update",
        "watch",
    ];
    Entry {
        resource,
        verbs: VERBS
            .iter()
            .filter(|verb| resource.id() != "namespaces" || **verb != "deletecollection")
            .map(|verb| Str::interned(verb))
            .collect(),
        subresources: match resource.plural {
            "deployments" | "replicasets" | "statefulsets" | "replicationcontrollers" => {
                vec![Str::interned("scale"), Str::interned("status")]
            }
            "certificatesigningrequests" => {
                vec![Str::interned("approval"), Str::interned("status")]
            }
            _ => vec![Str::interned("status")],
        },
        preferred: true,
    }
}

/// The catalogue of all kinds that have a projection.
fn registered() -> Arc<Catalogue> {
    let entries = kubernetes_proto::kinds().into_iter().map(entry).collect();
    Arc::new(Catalogue::new(entries, BTreeMap::new(), 1))
}

/// A cluster in memory, at an instant. A copy is a snapshot: objects are shared and never changed in place.
#[derive(Clone)]
pub struct World {
    now: Timestamp,
    objects: BTreeMap<Place, AnyObject>,
    /// The newest resourceVersion given out; one counter for all resources, as in etcd.
    resource_version: u64,
    /// How many uids were given out.
    uids: u64,
    flags: Vec<(&'static str, FlagValue)>,
    local_zone: Option<jiff::tz::TimeZone>,
    /// Whether pods are started and stopped.
    kubelets: bool,
    /// Whether somebody else collects garbage.
    collector: bool,
    events: Vec<Event>,
    /// Answers under paths, besides objects and their scales.
    served: BTreeMap<String, crate::Answer>,
    catalogue: Arc<Catalogue>,
    /// Answers what the world itself can't: reviews, certificates, tokens.
    answering: fn(&Query) -> Option<crate::Answer>,
    /// Of resources that have not been listed.
    standings: BTreeMap<&'static Resource, Standing>,
    /// When objects with generated names were removed, and the version of it. Shared by snapshots.
    removed: Arc<BTreeMap<Place, (Timestamp, u64)>>,
    /// Since when changes are followed; `None` for always.
    follows: Option<Follows>,
    /// Heartbeats, and when they were seen first.
    heartbeats: BTreeMap<Place, ((i64, i32), Timestamp)>,
    /// Values of taints with effect `NoExecute` by node and key, and when they were seen first.
    taints: BTreeMap<(String, String), (String, Timestamp)>,
    /// On which node pods were seen first, by uid, and when.
    arrivals: BTreeMap<(Key, Str), (String, Timestamp)>,
    /// Nodes whose heart beats all the time.
    living: std::collections::BTreeSet<String>,
}

/// From where on a store has seen all changes.
#[derive(Clone, Copy, Debug)]
struct Follows {
    at: Timestamp,
    version: u64,
    /// How many uids had been given out.
    uids: u64,
}

/// How long removals are remembered.
const REUSE_AFTER: SignedDuration =
    SignedDuration::from_secs(crate::names::REUSE_AFTER_SECONDS.cast_signed());

impl World {
    /// An empty cluster at an instant of the tests' day.
    pub fn at(time: &str) -> Self {
        Self {
            now: at(time),
            objects: BTreeMap::new(),
            resource_version: 1000,
            uids: 0,
            flags: Vec::new(),
            local_zone: None,
            kubelets: true,
            collector: true,
            events: Vec::new(),
            served: BTreeMap::new(),
            catalogue: registered(),
            answering: |_| None,
            standings: BTreeMap::new(),
            removed: Arc::default(),
            follows: None,
            heartbeats: BTreeMap::new(),
            taints: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            living: std::collections::BTreeSet::new(),
        }
    }

    /// The same as a store sees it that has just listed everything: it knows nothing of earlier removals.
    #[must_use]
    pub fn listed(&self) -> Self {
        let mut listed = self.clone();
        listed.follows = Some(Follows {
            at: self.now,
            version: self.resource_version,
            uids: self.uids,
        });
        listed
    }

    /// Removes an object, at the present version.
    fn take(&mut self, place: &Place) -> Option<AnyObject> {
        let object = self.objects.remove(place)?;
        if crate::names::has_generated(place.0) {
            let (now, version) = (self.now, self.resource_version);
            let removed = Arc::make_mut(&mut self.removed);
            removed.retain(|_, (at, _)| now.duration_since(*at) < REUSE_AFTER);
            removed.insert(place.clone(), (now, version));
        }
        Some(object)
    }

    /// With a resource whose watch has this state.
    #[must_use]
    pub fn standing_at(mut self, resource: &'static Resource, standing: Standing) -> Self {
        self.standings.insert(resource, standing);
        self
    }

    /// With another catalogue than that of all kinds that have a projection.
    #[must_use]
    pub fn with_catalogue(mut self, catalogue: Catalogue) -> Self {
        self.catalogue = Arc::new(catalogue);
        self
    }

    /// With a node whose heartbeats never end: its Lease's age is always 0.
    #[must_use]
    pub fn living(mut self, node: &str) -> Self {
        self.live(node);
        self
    }

    /// As [`World::living`], in place.
    pub fn live(&mut self, node: &str) {
        self.living.insert(node.to_owned());
    }

    /// A node's heartbeats end now.
    pub fn fall_silent(&mut self, node: &str) {
        self.living.remove(node);
        let now = self.now;
        let of_node = self.heartbeats.iter_mut();
        for (_, (_, since)) in of_node.filter(|((_, key), _)| key.name == *node) {
            *since = now;
        }
    }

    /// Records whether an object's heartbeat has changed.
    fn note_heartbeat(&mut self, place: &Place, object: &AnyObject) {
        if let Some(beat) = crate::heartbeat::of(&**object)
            && self.heartbeats.get(place).is_none_or(|held| held.0 != beat)
        {
            self.heartbeats.insert(place.clone(), (beat, self.now));
        }
        let now = self.now;
        if let Some(node) = object.as_any().downcast_ref::<Node>() {
            let name = place.1.name.to_string();
            let mut held: BTreeMap<_, _> = crate::heartbeat::no_execute(node)
                .map(|taint| (taint.key.clone(), taint.value.clone()))
                .collect();
            self.taints.retain(|(of, key), (value, _)| {
                *of != name || (held.get(key) == Some(value) && held.remove(key).is_some())
            });
            for (key, value) in held {
                self.taints.insert((name.clone(), key), (value, now));
            }
        }
        if let Some(pod) = object.as_any().downcast_ref::<Pod>()
            && let Some(node) = pod.spec.as_ref().map(|spec| spec.node_name.to_string())
            && !node.is_empty()
        {
            let place = (place.1.clone(), object.metadata().uid.clone());
            self.arrivals.entry(place).or_insert((node, now));
        }
    }

    /// With an object of a resource that has no projection, by its metadata; what the server would have set
    /// is set where it is missing.
    #[must_use]
    pub fn with_partial(mut self, resource: &'static Resource, meta: ObjectMeta) -> Self {
        self.put_partial(resource, meta);
        self
    }

    /// As [`World::with_partial`], in place.
    pub fn put_partial(&mut self, resource: &'static Resource, mut meta: ObjectMeta) {
        if !meta.namespace.is_empty() {
            let place = (Namespace::resource(), Key::cluster(meta.namespace.clone()));
            if !self.objects.contains_key(&place) {
                let name = meta.namespace.to_string();
                self.put(builders::namespace(&name));
            }
        }
        self.resource_version += 1;
        meta.resource_version = self.resource_version;
        meta.creation_timestamp.get_or_insert(Time::from(self.now));
        if meta.uid.is_empty() {
            self.uids += 1;
            meta.uid = Str::from(format!("uid-{}", self.uids));
        }
        let key = Key::of_meta(&meta);
        let object = Arc::new(Partial::new(resource, meta)) as AnyObject;
        self.objects.insert((resource, key), object);
    }

    /// Serves one more kind from now on, in its preferred version.
    pub fn serve_kind(&mut self, resource: &'static Resource) {
        let mut entries = self.catalogue.all().to_vec();
        entries.push(entry(resource));
        let failures = self.catalogue.failures.clone();
        let generation = self.catalogue.generation + 1;
        let catalogue = Catalogue::new(entries, failures, generation);
        let group_versions = self.catalogue.group_versions().to_vec();
        self.catalogue = Arc::new(catalogue.with_group_versions(group_versions));
    }

    /// With these group versions served, in this order, whose resources discovery does not show.
    #[must_use]
    pub fn with_group_versions(mut self, names: &[&str]) -> Self {
        let catalogue = Catalogue::clone(&self.catalogue);
        let names = names.iter().map(|name| Str::from(*name)).collect();
        self.catalogue = Arc::new(catalogue.with_group_versions(names));
        self
    }

    /// An object of any resource by `namespace/name`, or the name alone of what is cluster-scoped.
    pub fn find_any(&self, resource: &'static Resource, key: &str) -> Option<AnyObject> {
        self.objects.get(&(resource, Key::parse(key))).cloned()
    }

    /// With an object exactly as given, status included. Its namespace is made where it is missing; what the
    /// server would have set (uid, version, times) is set where it is missing.
    #[must_use]
    pub fn with<T: Object>(mut self, object: T) -> Self {
        self.put(object);
        self
    }

    /// As [`World::with`], in place.
    pub fn put<T: Object>(&mut self, mut object: T) {
        let meta = object.metadata_mut();
        if !meta.namespace.is_empty() {
            let place = (Namespace::resource(), Key::cluster(meta.namespace.clone()));
            if !self.objects.contains_key(&place) {
                let name = meta.namespace.to_string();
                self.put(builders::namespace(&name));
            }
        }
        self.resource_version += 1;
        let now = self.now;
        let meta = object.metadata_mut();
        assert!(
            !meta.name.is_empty(),
            "an object without a name can't be stored"
        );
        meta.resource_version = self.resource_version;
        meta.creation_timestamp.get_or_insert(Time::from(now));
        if meta.uid.is_empty() {
            self.uids += 1;
            meta.uid = Str::from(format!("uid-{}", self.uids));
        }
        if meta.generation == 0 && server::has_generation(T::resource()) {
            meta.generation = 1;
        }
        let place = (T::resource(), Key::of(&object));
        let object = Arc::new(object) as AnyObject;
        self.note_heartbeat(&place, &object);
        self.objects.insert(place, object);
    }

    /// With a flag's value, for the controllers that declare it.
    #[must_use]
    pub fn flag(mut self, name: &'static str, value: FlagValue) -> Self {
        self.flags.push((name, value));
        self
    }

    /// The time zone of the host that controllers are built on; UTC without.
    #[must_use]
    pub fn local_zone(mut self, zone: jiff::tz::TimeZone) -> Self {
        self.local_zone = Some(zone);
        self
    }

    /// Without kubelets: pods stay as they are.
    #[must_use]
    pub fn without_kubelets(mut self) -> Self {
        self.kubelets = false;
        self
    }

    /// Switches the garbage collector and the emptying of namespaces off: for the tests of those
    /// controllers.
    #[must_use]
    pub fn without_collector(mut self) -> Self {
        self.collector = false;
        self
    }

    /// Serves an answer under a path (its query included, as the controller writes it) from now on.
    pub fn serve(&mut self, path: &str, answer: crate::Answer) {
        self.served.insert(path.to_owned(), answer);
    }

    /// As [`World::serve`], for builders.
    #[must_use]
    pub fn serving(mut self, path: &str, json: serde_json::Value) -> Self {
        self.serve(path, crate::Answer::Object(Arc::new(json)));
        self
    }

    /// Answers queries by a function first: reviews, certificates and tokens are Missing without one.
    #[must_use]
    pub fn answering(mut self, answer: fn(&Query) -> Option<crate::Answer>) -> Self {
        self.answering = answer;
        self
    }

    /// The same some seconds later.
    #[must_use]
    pub fn later(&self, seconds: i64) -> Self {
        let mut world = self.clone();
        world.now += SignedDuration::from_secs(seconds);
        world
    }

    /// Moves the clock on, never back.
    pub fn advance_to(&mut self, at: Timestamp) {
        self.now = self.now.max(at);
    }

    /// The newest resourceVersion given out.
    pub fn version(&self) -> u64 {
        self.resource_version
    }

    /// Every object, in order of resource, namespace and name.
    pub fn objects(&self) -> impl Iterator<Item = &AnyObject> {
        self.objects.values()
    }

    /// The present.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// An object by `namespace/name`; `default` where no namespace is named.
    pub fn find<T: Object>(&self, key: &str) -> Option<Arc<T>> {
        self.objects
            .get(&(T::resource(), object_key::<T>(key)))
            .cloned()
            .and_then(cast)
    }

    /// As [`World::find`]; panics where there is none.
    pub fn get<T: Object>(&self, key: &str) -> Arc<T> {
        self.find(key).unwrap_or_else(|| {
            panic!(
                "no {} {key} in {:?}",
                T::resource().kind,
                self.objects.keys().collect::<Vec<_>>()
            )
        })
    }

    /// All objects of a kind, in order of namespace and name.
    pub fn all<T: Object>(&self) -> Vec<Arc<T>> {
        self.list(T::resource(), None)
            .into_iter()
            .filter_map(cast)
            .collect()
    }

    /// Changes an object as another client does, by the server's rules: spec, status and metadata at once,
    /// a changed spec counts as a new generation.
    pub fn change<T: Object>(&mut self, key: &str, change: impl FnOnce(&mut T)) {
        let old = self.get::<T>(key);
        let mut new = T::clone(&old);
        change(&mut new);
        self.replace_as_user(&*old, &new);
    }

    /// As [`World::change`], for builders.
    #[must_use]
    pub fn changed<T: Object>(mut self, key: &str, change: impl FnOnce(&mut T)) -> Self {
        self.change(key, change);
        self
    }

    /// Deletes an object as another client does, in the background.
    pub fn delete<T: Object>(&mut self, key: &str) {
        let object = self.get::<T>(key);
        let mut plan = Plan::nothing();
        plan.delete(
            &*object,
            crate::Only::ThisUid,
            crate::Propagation::Background,
        );
        self.apply(&plan).expect_success();
    }

    /// Deletes an object of any resource as another client does; nothing where it does not exist.
    pub fn delete_how(
        &mut self,
        resource: &'static Resource,
        key: &str,
        propagation: crate::Propagation,
    ) {
        if let Some(object) = self.find_any(resource, key) {
            let mut plan = Plan::nothing();
            plan.delete_any(&object, crate::Only::ThisUid, propagation);
            self.apply(&plan).expect_success();
        }
    }

    /// Changes the metadata of an object of any resource as another client does; nothing where it does not
    /// exist.
    pub fn change_meta(
        &mut self,
        resource: &'static Resource,
        key: &str,
        change: impl FnOnce(&mut ObjectMeta),
    ) {
        if let Some(object) = self.find_any(resource, key) {
            self.edit(&object, change);
        }
    }

    /// The answer under a path, besides objects and their scales.
    pub fn served(&self, path: &str) -> Option<&crate::Answer> {
        self.served.get(path)
    }

    /// Removes an object at once, whatever finalizers it has.
    pub fn vanish<T: Object>(&mut self, key: &str) {
        self.resource_version += 1;
        let key = object_key::<T>(key);
        assert!(
            self.take(&(T::resource(), key.clone())).is_some(),
            "there is no {} {key} to take away",
            T::resource().kind
        );
    }

    /// Whether an object of a resource with generated names, and of this name, was removed within the last
    /// hour.
    pub fn was_removed(&self, resource: &'static Resource, namespace: &str, name: &str) -> bool {
        let removed = self.removed.get(&(resource, Key::new(namespace, name)));
        removed.is_some_and(|(at, version)| {
            *version > self.history_since() && self.now.duration_since(*at) < REUSE_AFTER
        })
    }

    /// The events recorded so far, as in `Normal SuccessfulCreate Created pod: web-1`.
    pub fn events(&self) -> Vec<String> {
        self.events
            .iter()
            .map(|event| {
                let kind = match event.r#type {
                    EventType::Normal => "Normal",
                    EventType::Warning => "Warning",
                };
                format!("{kind} {} {}", event.reason, event.message)
            })
            .collect()
    }

    /// The flags of some controllers, with this world's values.
    pub fn flags<'a>(&self, descriptors: impl IntoIterator<Item = &'a crate::Descriptor>) -> Flags {
        let mut flags = Flags::defaults(descriptors);
        for (name, value) in &self.flags {
            flags.set(name, value.clone());
        }
        if let Some(zone) = &self.local_zone {
            flags.set_local_zone(zone.clone());
        }
        flags
    }

    /// A controller with this world's flags.
    pub(crate) fn build(&self, factory: &Factory) -> Box<dyn DynController> {
        (factory.build)(&self.flags([&(factory.describe)()]))
    }

    /// A controller's plan for a key, with an empty memory. A key without a namespace is one of namespace
    /// `default` where the controller's keys have namespaces; `/name` has none. Panics where the controller
    /// refuses.
    pub fn plan<C: Controller>(&self, key: &str) -> Plan {
        self.try_plan::<C>(key)
            .unwrap_or_else(|refusal| panic!("{key} can't be planned: {refusal}"))
    }

    /// The world as a controller's cache shows it: what it watches, by the indexes that it declares.
    pub fn with_indexes_of<C: Controller>(&self) -> View<'_> {
        self.as_cached_for(&C::new(&self.flags([&C::describe()])))
    }

    fn as_cached_for<C: Controller>(&self, controller: &C) -> View<'_> {
        let mut watches = crate::Watches::default();
        controller.watch(&mut watches);
        View {
            world: self,
            watches: Some(Arc::new(watches)),
        }
    }

    /// Why a controller can't plan a key. Panics where it can.
    pub fn refusal<C: Controller>(&self, key: &str) -> Refusal {
        match self.try_plan::<C>(key) {
            Ok(plan) => panic!("{key} was planned: {:?}", plan.verbs()),
            Err(refusal) => refusal,
        }
    }

    /// As [`World::plan`], or the refusal.
    ///
    /// # Errors
    /// The controller's.
    pub fn try_plan<C: Controller>(&self, key: &str) -> Result<Plan, Refusal> {
        self.plan_with::<C>(key, &mut C::Memory::default())
    }

    /// As [`World::try_plan`], with a memory.
    ///
    /// # Errors
    /// The controller's.
    pub fn plan_with<C: Controller>(
        &self,
        key: &str,
        memory: &mut C::Memory,
    ) -> Result<Plan, Refusal> {
        let descriptor = C::describe();
        let controller = C::new(&self.flags([&descriptor]));
        let view = self.as_cached_for(&controller);
        let key = match &view.watches {
            Some(watches) => controller_key(&descriptor, watches, key),
            None => Key::parse(key),
        };
        let none = Answers::new();
        let queries = controller.ask(&key, &Snapshot::new(&view, &none, self.now), memory);
        let answers = self.answer(queries);
        controller.plan(&key, &Snapshot::new(&view, &answers, self.now), memory)
    }

    /// Runs one controller, fed by its watches, until it has nothing left to do at this instant; nobody else
    /// acts. Returns the plans that wrote something. Panics where it does not come to rest, and where its
    /// plans break the contract.
    pub fn run<C: Controller>(&mut self) -> Vec<Plan> {
        self.run_all(&[Factory::of::<C>()])
    }

    /// As [`World::run`], for several controllers side by side.
    pub fn run_all(&mut self, factories: &[Factory]) -> Vec<Plan> {
        let built = self.build_all(factories);
        engine::Engine::new(&built, self.clone(), engine::Ways::alone())
            .run(self, None)
            .plans
    }

    /// Runs controllers and the rest of the cluster (kubelets, garbage collector) until nobody has anything
    /// left to do at this instant. Returns the controllers' plans.
    pub fn settle(&mut self, factories: &[Factory]) -> Vec<Plan> {
        let built = self.build_all(factories);
        engine::Engine::new(&built, self.clone(), engine::Ways::together())
            .run(self, None)
            .plans
    }

    /// As [`World::settle`], and then through time: whenever all are at rest, it advances to the next
    /// instant that a controller requeued a key for, until `seconds` have passed.
    pub fn settle_for(&mut self, seconds: i64, factories: &[Factory]) -> Vec<Plan> {
        let until = self.now + SignedDuration::from_secs(seconds);
        let built = self.build_all(factories);
        engine::Engine::new(&built, self.clone(), engine::Ways::together())
            .run(self, Some(until))
            .plans
    }

    /// The keys of a controller that a change of an object wakes, in order.
    pub fn woken<C: Controller>(
        &self,
        old: Option<&AnyObject>,
        new: Option<&AnyObject>,
    ) -> Vec<String> {
        let built = engine::Built::new(self, &Factory::of::<C>());
        let keys = built.woken(old, new, self);
        keys.iter().map(ToString::to_string).collect()
    }

    fn build_all(&self, factories: &[Factory]) -> Vec<engine::Built> {
        factories
            .iter()
            .map(|factory| engine::Built::new(self, factory))
            .collect()
    }

    /// A page of a resource: a token is the last key of the page before.
    fn page(&self, resource: &'static Resource, limit: usize, token: &str) -> crate::Page {
        let objects = self.list(resource, None);
        let mut left = objects
            .iter()
            .map(|object| object.metadata().clone())
            .filter(|meta| token.is_empty() || Key::of_meta(meta) > Key::parse(token));
        let metas: Vec<_> = left.by_ref().take(limit).collect();
        let more = left.next().is_some();
        let last = metas.last().filter(|_| more);
        crate::Page {
            version: self.resource_version,
            next: last.map_or_else(String::new, |meta| Key::of_meta(meta).to_string()),
            metas,
        }
    }

    /// Whether the precondition of a call to the cloud holds, as the node verifies it.
    fn holds(&self, guard: &cloud::Guard) -> bool {
        match guard {
            cloud::Guard::Nothing => true,
            cloud::Guard::Unchanged {
                resource,
                key,
                uid,
                version,
            } => self
                .objects
                .get(&(*resource, key.clone()))
                .is_some_and(|object| {
                    let meta = object.metadata();
                    meta.uid == *uid && meta.resource_version == *version
                }),
            cloud::Guard::NotRouted {
                node,
                cidr,
                addresses,
            } => self
                .find::<kubernetes_proto::core::Node>(node)
                .is_none_or(|node| {
                    let node = cloud::Node::of(&node);
                    let same = addresses.as_ref().is_none_or(|all| *all == node.addresses);
                    !(node.pod_cidrs.contains(cidr) && same)
                }),
        }
    }

    /// Live reads: the server's object, with kind and apiVersion.
    pub fn answer(&self, queries: Vec<Query>) -> Answers {
        queries
            .into_iter()
            .map(|query| {
                if let Query::Cloud(call) = &query
                    && !self.holds(&call.guard)
                {
                    let stale = cloud::Refused::new(cloud::Reason::Stale, "it has changed");
                    let answer = cloud::answer(Err(stale), std::time::Duration::ZERO);
                    return (query, answer);
                }
                if let Some(answer) = (self.answering)(&query) {
                    return (query, answer);
                }
                let answer = match &query {
                    Query::Picked {
                        resource,
                        namespace,
                        pick,
                    } => {
                        let list = match self.served.get(&resource.path(namespace, "")) {
                            Some(crate::Answer::Object(list)) => list["items"].clone(),
                            _ => serde_json::json!([]),
                        };
                        let items = list.as_array().into_iter().flatten();
                        let picked: std::collections::BTreeSet<String> =
                            items.flat_map(|item| pick.from(item)).collect();
                        crate::Answer::Object(Arc::new(serde_json::json!(picked)))
                    }
                    // A document that is served under its path, as the API server serves it.
                    Query::Schema {
                        group,
                        version,
                        kind,
                    } => match self.served.get(&crate::openapi::path(group, version)) {
                        Some(crate::Answer::Object(document)) => {
                            crate::openapi::answer((**document).clone(), group, version, kind)
                        }
                        Some(other) => other.clone(),
                        None => crate::Answer::Missing,
                    },
                    Query::Review { .. }
                    | Query::Certificate(_)
                    | Query::Token { .. }
                    | Query::Cloud(_) => crate::Answer::Missing,
                    Query::Content {
                        resource,
                        namespace,
                    } if let Some(answer) = self.served.get(&resource.path(namespace, "")) => {
                        answer.clone()
                    }
                    Query::Content {
                        resource,
                        namespace,
                    } => {
                        let content = self.list(resource, Some(namespace));
                        let metas = content.iter().map(|object| object.metadata().clone());
                        crate::Answer::content(&metas.collect::<Vec<_>>())
                    }
                    Query::Live { resource, key } => {
                        match self.objects.get(&(*resource, key.clone())) {
                            None => crate::Answer::Missing,
                            Some(object) => {
                                let mut json = object.to_json();
                                json["kind"] = resource.kind.into();
                                json["apiVersion"] = resource.api_version().into();
                                crate::Answer::Object(Arc::new(json))
                            }
                        }
                    }
                    Query::Page {
                        resource,
                        limit,
                        token,
                    } => crate::Answer::page(&self.page(resource, *limit, token)),
                    Query::Present { .. } => crate::Answer::present(self.resource_version),
                    Query::Path { path, .. } => self
                        .served
                        .get(path)
                        .cloned()
                        .or_else(|| self.scale(path).map(crate::Answer::Object))
                        .unwrap_or_else(|| crate::Answer::NotFound(NOT_FOUND.to_owned())),
                };
                (query, answer)
            })
            .collect()
    }
}

/// An object's key from `namespace/name` or `name`.
fn object_key<T: Object>(text: &str) -> Key {
    let key = Key::parse(text);
    if key.namespace.is_empty() && T::resource().namespaced {
        Key::new("default", key.name)
    } else {
        key
    }
}

/// A controller's key from `namespace/name` or `name`; `/name` for one without a namespace whatever the
/// others have.
fn controller_key(descriptor: &crate::Descriptor, watches: &crate::Watches, text: &str) -> Key {
    let key = Key::parse(text);
    let namespaced = descriptor.sharding == Sharding::ByObject
        && watches
            .subscriptions
            .first()
            .is_some_and(|subscription| subscription.resource.namespaced);
    if key.namespace.is_empty() && namespaced && !text.starts_with('/') {
        Key::new("default", key.name)
    } else {
        key
    }
}

/// A world as a controller reads it: only what it watches, only by indexes that it declared. Other reads
/// panic. [`World::with_indexes_of`] makes one.
pub struct View<'a> {
    world: &'a World,
    /// What may be read; `None` for everything, by the owner indexes alone.
    watches: Option<Arc<crate::Watches>>,
}

impl View<'_> {
    fn check(&self, resource: &'static Resource) {
        if let Some(watches) = self.watches.as_deref() {
            assert!(
                watches
                    .subscriptions
                    .iter()
                    .any(|subscription| subscription.resource == resource)
                    || self.discovered(watches, resource),
                "the controller reads {resource:?} without watching them"
            );
        }
    }

    fn discovered(&self, watches: &crate::Watches, resource: &'static Resource) -> bool {
        let catalogue = &self.world.catalogue;
        // What was watched when discovery of its group began to fail stays watched.
        let stale = || {
            let mut stale = catalogue.stale().iter();
            stale.find(|entry| entry.resource == resource)
        };
        catalogue
            .preferred(resource)
            .or_else(stale)
            .is_some_and(|entry| {
                watches
                    .discovered
                    .iter()
                    .any(|discovered| (discovered.wanted)(entry))
            })
    }

    /// Whether the controller's cache has the object: a watch for one name has no others.
    fn holds(&self, resource: &'static Resource, name: &str) -> bool {
        self.watches.as_deref().is_none_or(|watches| {
            watches.subscriptions.iter().any(|subscription| {
                subscription.resource == resource
                    && subscription.only_name.is_none_or(|only| only == name)
            }) || self.discovered(watches, resource)
        })
    }
}

impl Reader for View<'_> {
    fn get(&self, resource: &'static Resource, namespace: &str, name: &str) -> Option<AnyObject> {
        self.check(resource);
        self.world
            .get_any(resource, namespace, name)
            .filter(|_| self.holds(resource, name))
    }

    fn list(&self, resource: &'static Resource, namespace: Option<&str>) -> Vec<AnyObject> {
        self.check(resource);
        let mut objects = self.world.list(resource, namespace);
        objects.retain(|object| self.holds(resource, &object.metadata().name));
        objects
    }

    fn indexed(
        &self,
        resource: &'static Resource,
        index: &'static str,
        value: &str,
    ) -> Vec<AnyObject> {
        if index == Index::OWNER {
            let mut objects = self.list(resource, None);
            objects.retain(|object| {
                object
                    .metadata()
                    .controller()
                    .is_some_and(|owner| owner.uid == *value)
            });
            return objects;
        }
        if index == Index::DEPENDENTS {
            let mut objects = self.list(resource, None);
            objects.retain(|object| {
                let owners = &object.metadata().owner_references;
                owners.iter().any(|owner| owner.uid == *value)
            });
            return objects;
        }
        let indexes = self.watches.iter().flat_map(|watches| &watches.indexes);
        let declared = indexes
            .into_iter()
            .find(|declared| declared.resource == resource && declared.name == index)
            .unwrap_or_else(|| {
                panic!("the controller reads {resource:?} by {index} without having declared that index")
            });
        let mut objects = self.list(resource, None);
        objects.retain(|object| {
            (declared.values)(&**object)
                .iter()
                .any(|held| held == value)
        });
        objects
    }

    fn heartbeat_age(
        &self,
        resource: &'static Resource,
        namespace: &str,
        name: &str,
    ) -> Option<std::time::Duration> {
        self.check(resource);
        assert!(
            self.watches.as_deref().is_none_or(|watches| watches.ages),
            "the controller asks for ages of heartbeats without having declared it"
        );
        Reader::heartbeat_age(self.world, resource, namespace, name)
    }

    fn exposure_age(&self, node: &str, taint: &str, pod: &Key) -> Option<std::time::Duration> {
        assert!(
            self.watches.as_deref().is_none_or(|watches| watches.ages),
            "the controller asks for ages of taints without having declared it"
        );
        Reader::exposure_age(self.world, node, taint, pod)
    }

    fn catalogue(&self) -> Arc<Catalogue> {
        match self.watches.as_deref() {
            Some(watches) if !watches.catalogued => Arc::default(),
            _ => Arc::clone(&self.world.catalogue),
        }
    }

    fn name_used(&self, resource: &'static Resource, namespace: &str, name: &str) -> bool {
        self.check(resource);
        self.world.name_used(resource, namespace, name)
    }

    fn history_covers(&self, uid: &str) -> bool {
        self.world.history_covers(uid)
    }

    fn history_since(&self) -> u64 {
        self.world.history_since()
    }

    fn standing(&self, resource: &'static Resource) -> Standing {
        match self.watches.as_deref() {
            Some(watches)
                if !self.discovered(watches, resource)
                    && !watches
                        .subscriptions
                        .iter()
                        .any(|subscription| subscription.resource == resource) =>
            {
                Standing::Unwatched
            }
            _ => Reader::standing(self.world, resource),
        }
    }
}

impl World {
    fn get_any(
        &self,
        resource: &'static Resource,
        namespace: &str,
        name: &str,
    ) -> Option<AnyObject> {
        self.objects
            .get(&(resource, Key::new(namespace, name)))
            .cloned()
    }
}

/// Without a controller: the owner index is there, others are not.
impl Reader for World {
    fn get(&self, resource: &'static Resource, namespace: &str, name: &str) -> Option<AnyObject> {
        self.get_any(resource, namespace, name)
    }

    fn list(&self, resource: &'static Resource, namespace: Option<&str>) -> Vec<AnyObject> {
        self.objects
            .iter()
            .filter(|((of, key), _)| {
                *of == resource && namespace.is_none_or(|namespace| key.namespace == *namespace)
            })
            .map(|(_, object)| Arc::clone(object))
            .collect()
    }

    fn indexed(
        &self,
        resource: &'static Resource,
        index: &'static str,
        value: &str,
    ) -> Vec<AnyObject> {
        let view = View {
            world: self,
            watches: None,
        };
        view.indexed(resource, index, value)
    }

    fn heartbeat_age(
        &self,
        resource: &'static Resource,
        namespace: &str,
        name: &str,
    ) -> Option<std::time::Duration> {
        let place = (resource, Key::new(namespace, name));
        let (_, since) = self.heartbeats.get(&place)?;
        if self.living.contains(name) {
            return Some(std::time::Duration::ZERO);
        }
        std::time::Duration::try_from(self.now.duration_since(*since)).ok()
    }

    fn exposure_age(&self, node: &str, taint: &str, pod: &Key) -> Option<std::time::Duration> {
        let (_, tainted) = self.taints.get(&(node.to_owned(), taint.to_owned()))?;
        let arrived = self.find_any(Pod::resource(), &pod.to_string())?;
        let place = (pod.clone(), arrived.metadata().uid.clone());
        let arrived = self.arrivals.get(&place).filter(|(on, _)| on == node);
        let since = arrived.map_or(*tainted, |(_, arrived)| *arrived.max(tainted));
        std::time::Duration::try_from(self.now.duration_since(since)).ok()
    }

    fn catalogue(&self) -> Arc<Catalogue> {
        Arc::clone(&self.catalogue)
    }

    fn name_used(&self, resource: &'static Resource, namespace: &str, name: &str) -> bool {
        self.get_any(resource, namespace, name).is_some()
            || self.was_removed(resource, namespace, name)
    }

    fn history_covers(&self, uid: &str) -> bool {
        self.follows.is_none_or(|follows| {
            let number = uid.strip_prefix("uid-");
            let number: Option<u64> = number.and_then(|number| number.parse().ok());
            self.now.duration_since(follows.at) >= REUSE_AFTER
                || number.is_some_and(|number| number > follows.uids)
        })
    }

    fn history_since(&self) -> u64 {
        self.follows.map_or(0, |follows| follows.version)
    }

    fn standing(&self, resource: &'static Resource) -> Standing {
        let standing = self.standings.get(resource);
        standing.copied().unwrap_or(Standing::Complete)
    }
}

#[cfg(test)]
mod tests;
