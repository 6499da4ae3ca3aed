//! Which resources a controller watches, and which of its keys a change wakes.

use std::{any::type_name, marker::PhantomData, sync::Arc};

use kubernetes_proto::{AnyObject, DynObject, Object, Resource, Str};

use crate::{Entry, Key, Reader};

/// A change of one object: created (`old` is none), changed, or deleted (`new` is none).
pub struct Change<'a, T> {
    /// The object before; `None` where it was created.
    pub old: Option<&'a T>,
    /// The object after; `None` where it was deleted.
    pub new: Option<&'a T>,
}

impl<'a, T> Change<'a, T> {
    /// The newest that is known of the object.
    pub fn newest(&self) -> &'a T {
        self.new
            .or(self.old)
            .expect("a change has a before or an after")
    }

    /// Before and after, as far as they exist.
    pub fn both(&self) -> impl Iterator<Item = &'a T> {
        self.old.into_iter().chain(self.new)
    }
}

/// A change whose kind is known at run time only.
#[derive(Clone, Copy)]
pub struct DynChange<'a> {
    /// The object before; `None` where it was created.
    pub old: Option<&'a AnyObject>,
    /// The object after; `None` where it was deleted.
    pub new: Option<&'a AnyObject>,
    /// The resourceVersion that the watch reached with it; 0 without a change, as when keys are woken once
    /// more.
    pub version: u64,
}

type WakeFn = Box<dyn Fn(DynChange<'_>, &dyn Reader, &mut dyn FnMut(Key)) + Send + Sync>;
type IndexFn = Arc<dyn Fn(&dyn DynObject) -> Vec<Str> + Send + Sync>;

/// An index over one resource: the values under which an object is listed.
#[derive(Clone)]
pub struct Index {
    /// The resource.
    pub resource: &'static Resource,
    /// Its name; two controllers that declare the same name mean the same index.
    pub name: &'static str,
    /// Whether the values follow from an object's labels and namespace alone, so that they change only with
    /// these.
    pub of_labels: bool,
    /// Computes an object's values.
    pub values: IndexFn,
}

impl Index {
    /// The index that every resource has: the uid of the managing controller.
    pub const OWNER: &'static str = "owner";
    /// The index that every resource has where a controller watches what discovery shows: the uids of all
    /// owners.
    pub const DEPENDENTS: &'static str = "dependents";
}

/// One controller's interest in one resource.
pub struct Subscription {
    /// The resource.
    pub resource: &'static Resource,
    /// Names the keys that a change wakes. Run on every replica: who owns a key is decided afterwards.
    pub wake: WakeFn,
    /// Whether only objects of this one name are wanted.
    pub only_name: Option<&'static str>,
    /// Whether the controller also runs on servers without the resource: there are no objects of it then.
    pub where_served: bool,
}

type WantedFn = Arc<dyn Fn(&Entry) -> bool + Send + Sync>;

/// One controller's interest in whatever the API serves.
#[derive(Clone)]
pub struct Discovered {
    /// Selects the resources.
    pub wanted: WantedFn,
    /// Names the keys that a change of any of them wakes.
    pub wake: fn(DynChange<'_>, &dyn Reader, &mut dyn FnMut(Key)),
    /// The controller's counter of discoveries and first lists that fail, if it has one.
    pub troubles: Option<&'static str>,
}

/// What a controller watches.
#[derive(Default)]
pub struct Watches {
    /// In the order of declaration.
    pub subscriptions: Vec<Subscription>,
    /// The indexes that it declares.
    pub indexes: Vec<Index>,
    /// Resources found by discovery, which come and go at run time.
    pub discovered: Vec<Discovered>,
    /// Whether the controller reads the catalogue of the API.
    pub catalogued: bool,
    /// Whether the controller reads ages: of heartbeats, and of exposures to taints.
    pub ages: bool,
}

impl Watches {
    /// The controller reads the catalogue.
    pub fn catalogue(&mut self) {
        self.catalogued = true;
    }

    /// The controller asks for ages ([`Reader::heartbeat_age`], [`Reader::exposure_age`]). Leases are
    /// watched for it: they show whether the watches are live, since each replica renews one every second
    /// or so.
    pub fn ages(&mut self) {
        self.ages = true;
    }

    /// Watches every wanted resource of the catalogue, as long as it is served. The controller's start does
    /// not wait for them: [`Reader::standing`] says how reliable each is. All can be read by
    /// [`Index::DEPENDENTS`].
    pub fn discovered(
        &mut self,
        wanted: impl Fn(&Entry) -> bool + Send + Sync + 'static,
        wake: fn(DynChange<'_>, &dyn Reader, &mut dyn FnMut(Key)),
        troubles: Option<&'static str>,
    ) {
        self.catalogued = true;
        self.discovered.push(Discovered {
            wanted: Arc::new(wanted),
            wake,
            troubles,
        });
    }

    /// Wakes keys that stand for no object, once when the controller starts: by the namespace kube-system,
    /// which every cluster has. The plan itself requeues the key.
    pub fn always(&mut self, wake: fn() -> Vec<Key>) {
        self.subscriptions.push(Subscription {
            resource: <kubernetes_proto::core::Namespace as Object>::resource(),
            wake: Box::new(move |_, _, name| wake().into_iter().for_each(name)),
            only_name: Some("kube-system"),
            where_served: false,
        });
    }

    /// Watches a kind.
    pub fn kind<T: Object>(&mut self) -> Kind<'_, T> {
        self.subscriptions.push(Subscription {
            resource: T::resource(),
            wake: Box::new(|_, _, _| {}),
            only_name: None,
            where_served: false,
        });
        Kind {
            watches: self,
            kind: PhantomData,
        }
    }
}

/// The declaration of a watched kind.
pub struct Kind<'a, T> {
    watches: &'a mut Watches,
    kind: PhantomData<T>,
}

fn typed<T: Object>(object: Option<&AnyObject>) -> Option<&T> {
    object.map(|object| {
        object
            .as_any()
            .downcast_ref()
            .unwrap_or_else(|| panic!("a store of {} holds {object:?}", type_name::<T>()))
    })
}

impl<T: Object> Kind<'_, T> {
    fn subscription(&mut self) -> &mut Subscription {
        self.watches
            .subscriptions
            .last_mut()
            .expect("kind() has pushed one")
    }

    /// Wakes the keys that this function names; several `wakes` of one kind add up.
    pub fn wakes(mut self, wake: fn(&Change<'_, T>, &dyn Reader) -> Vec<Key>) -> Self {
        let subscription = self.subscription();
        let before = std::mem::replace(&mut subscription.wake, Box::new(|_, _, _| {}));
        subscription.wake = Box::new(move |change, reader, name| {
            before(change, reader, name);
            let change = Change {
                old: typed::<T>(change.old),
                new: typed::<T>(change.new),
            };
            wake(&change, reader).into_iter().for_each(name);
        });
        self
    }

    /// A change wakes the object's own key.
    pub fn wakes_itself(self) -> Self {
        self.wakes(|change, _| vec![Key::of(change.newest())])
    }

    /// Wakes the managing controller where that is of kind `O`; both of them if it changed.
    pub fn wakes_controller<O: Object>(self) -> Self {
        self.wakes(|change, _| controllers::<O, T>(change))
    }

    /// As [`Self::wakes_controller`], but a creation wakes nobody: for children that their controller
    /// creates by name and need not observe.
    pub fn wakes_controller_on_change<O: Object>(self) -> Self {
        self.wakes(|change, _| match (change.old, change.new) {
            (None, Some(new)) if !new.is_terminating() => Vec::new(),
            _ => controllers::<O, T>(change),
        })
    }

    /// Declares an index that the controller reads this kind by.
    pub fn indexed_by(self, name: &'static str, values: fn(&T) -> Vec<Str>) -> Self {
        self.indexed(name, false, values)
    }

    /// Declares an index whose values follow from labels and namespace alone.
    pub fn indexed_by_labels(self, name: &'static str, values: fn(&T) -> Vec<Str>) -> Self {
        self.indexed(name, true, values)
    }

    fn indexed(self, name: &'static str, of_labels: bool, values: fn(&T) -> Vec<Str>) -> Self {
        self.watches.indexes.push(Index {
            resource: T::resource(),
            name,
            of_labels,
            values: Arc::new(move |object| {
                object
                    .as_any()
                    .downcast_ref::<T>()
                    .map(values)
                    .unwrap_or_default()
            }),
        });
        self
    }

    /// The server may have the kind disabled, and then there are no objects: the controller works all the
    /// same, and sees them when the kind is enabled. Without this it waits for the kind to be served.
    pub fn where_served(mut self) -> Self {
        self.subscription().where_served = true;
        self
    }

    /// Restricts the watch to objects of this name, unless another controller watches more.
    pub fn only_named(mut self, name: &'static str) -> Self {
        self.subscription().only_name = Some(name);
        self
    }
}

/// The managing controllers of kind `O` that an object has and had.
fn controllers<O: Object, T: Object>(change: &Change<'_, T>) -> Vec<Key> {
    let wanted = O::resource();
    let mut keys: Vec<Key> = change
        .both()
        .filter_map(|object| {
            let meta = object.metadata();
            let owner = meta.controller()?;
            (owner.kind == *wanted.kind && group(&owner.api_version) == wanted.group)
                .then(|| Key::new(meta.namespace.clone(), owner.name.clone()))
        })
        .collect();
    keys.dedup();
    keys
}

/// The group of an `apiVersion`: an owner may be named by an older version.
fn group(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}
