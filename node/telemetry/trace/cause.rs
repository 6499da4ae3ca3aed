//! Why a key was woken: which object at which version, and which of the fleet's writes made it so.

use std::{collections::HashMap, time::SystemTime};

use controllers_kit::{AnyObject, DynChange, Key, Reader, Resource, Str, Timestamp};
use kubernetes_proto::meta::OwnerReference;
use opentelemetry::trace::{SpanContext, SpanId};

use super::ids;

/// Changes of one wake-up that are linked to; further ones are counted.
pub const CAUSES_MAX: usize = 8;
/// Owners above owners: a pod of a ReplicaSet of a Deployment has two, a Job of a CronJob one.
const OWNERS_MAX: usize = 5;
/// An object that appears and is older was listed and not created: its version says nothing of its creation.
const FRESH_SECONDS: i64 = 60;
/// Their status is written by kubelets.
const OF_KUBELETS: [&str; 2] = ["pods", "nodes"];

/// What has happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// It was created.
    Created,
    /// It was deleted, or its deletion has begun.
    Deleted,
    /// Its generation has grown.
    Spec,
    /// Something else of it has changed.
    Status,
}

/// One change that woke a key.
pub struct Cause {
    resource: &'static Resource,
    object: AnyObject,
    how: How,
    at: SystemTime,
}

impl std::fmt::Debug for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {} {}", self.how, self.label(), self.version())
    }
}

impl PartialEq for Cause {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Cause {}

impl Cause {
    /// Of a change; `None` where nothing has happened, as when keys are woken once more.
    pub fn of(resource: &'static Resource, change: DynChange<'_>, now: Timestamp) -> Option<Self> {
        if change.version == 0 {
            return None;
        }
        let object = change.new.or(change.old)?;
        let ends = |object: &AnyObject| object.metadata().is_terminating();
        let how = match (change.old, change.new) {
            (_, None) => How::Deleted,
            (Some(old), Some(new)) if ends(new) && !ends(old) => How::Deleted,
            (Some(old), Some(new)) if new.metadata().generation > old.metadata().generation => {
                How::Spec
            }
            (Some(_), Some(_)) => How::Status,
            (None, Some(new)) => match is_fresh(new, now.as_second()) {
                true => How::Created,
                false => How::Status,
            },
        };
        Some(Self {
            resource,
            object: object.clone(),
            how,
            at: SystemTime::now(),
        })
    }

    /// The creation of an object that no change has shown to its key's owner: it was in the cache before the
    /// range was gained. `None` where it was not created just now.
    pub fn of_found(object: AnyObject, now: i64) -> Option<Self> {
        is_fresh(&object, now).then(|| Self {
            resource: object.resource(),
            object,
            how: How::Created,
            at: SystemTime::now(),
        })
    }

    /// When it was seen.
    pub fn at(&self) -> SystemTime {
        self.at
    }

    /// As in `replicasets.apps shop/web-7d4`.
    pub fn label(&self) -> String {
        let key = Key::of_meta(self.object.metadata());
        format!("{} {key}", self.resource.id())
    }

    /// The version that was seen.
    pub fn version(&self) -> u64 {
        self.object.metadata().resource_version
    }

    /// The object itself, where it is the one that a key is about.
    pub fn is_about(&self, primary: &'static Resource, key: &Key) -> Option<&AnyObject> {
        let is_it =
            std::ptr::eq(primary, self.resource) && Key::of_meta(self.object.metadata()) == *key;
        is_it.then_some(&self.object)
    }

    /// The write of the fleet by which it came about.
    pub fn written_by(&self, owners: &Owners, view: &dyn Reader, now: i64) -> Option<SpanContext> {
        let meta = self.object.metadata();
        let span = span_of(
            self.how,
            self.resource.plural,
            meta.controller().is_some(),
            (&meta.uid, meta.resource_version),
        )?;
        let trace = owners.root(view, &self.object).trace(now);
        Some(ids::sampled(trace, span))
    }
}

/// Whether an object was created just now.
fn is_fresh(object: &AnyObject, now: i64) -> bool {
    let created = object.metadata().creation_timestamp;
    created.is_some_and(|at| now - at.timestamp().as_second() <= FRESH_SECONDS)
}

/// Which span of the fleet a change may come from; `None` where it is more likely somebody else's write.
/// What has a managing owner is created, changed and deleted by that owner's controller; a status is written
/// by the controller of the resource, except those of kubelets.
fn span_of(how: How, plural: &str, is_owned: bool, (uid, version): (&str, u64)) -> Option<SpanId> {
    match how {
        How::Created | How::Spec if is_owned => Some(ids::of_version(uid, version)),
        How::Deleted if is_owned => Some(ids::of_deletion(uid)),
        How::Status if !OF_KUBELETS.contains(&plural) => Some(ids::of_version(uid, version)),
        _ => None,
    }
}

/// The changes that woke a key, and how long it waited for the cache before it was reconciled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Woken {
    /// The first of them. Bound: [`CAUSES_MAX`].
    pub causes: Vec<std::sync::Arc<Cause>>,
    /// All of them.
    pub count: u32,
    /// The wait for the cache to pass the key's marks.
    pub parked: Option<Parked>,
}

/// A wait for the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parked {
    /// When the key was queued before it.
    pub queued: SystemTime,
    /// Its begin.
    pub from: SystemTime,
    /// Its end.
    pub to: Option<SystemTime>,
}

impl Woken {
    /// Notes one more change.
    pub fn by(&mut self, cause: std::sync::Arc<Cause>) {
        self.count = self.count.saturating_add(1);
        if self.causes.len() < CAUSES_MAX {
            self.causes.push(cause);
        }
    }

    /// The key was taken from its queue and waits for the cache.
    pub fn park(&mut self, waited: std::time::Duration) {
        let from = SystemTime::now();
        self.parked.get_or_insert(Parked {
            queued: from.checked_sub(waited).unwrap_or(from),
            from,
            to: None,
        });
    }

    /// It waits for the cache no more.
    pub fn unpark(&mut self) {
        if let Some(parked) = &mut self.parked {
            parked.to = Some(SystemTime::now());
        }
    }

    /// Notes the changes of another wake-up.
    pub fn merge(&mut self, other: Self) {
        let more = other.count;
        let room = CAUSES_MAX.saturating_sub(self.causes.len());
        self.causes.extend(other.causes.into_iter().take(room));
        self.count = self.count.saturating_add(more);
    }
}

/// The topmost of an object's owners.
pub enum Root {
    /// In the cache.
    Object(AnyObject),
    /// Named by what belongs to it, and not in the cache.
    Named(OwnerReference),
}

impl Root {
    fn identity(&self) -> (&Str, i64) {
        match self {
            Self::Object(object) => {
                let meta = object.metadata();
                (&meta.uid, meta.generation)
            }
            Self::Named(owner) => (&owner.uid, 0),
        }
    }

    /// The trace of all that is done for it now.
    pub fn trace(&self, now: i64) -> opentelemetry::trace::TraceId {
        let (uid, generation) = self.identity();
        ids::of_root(uid, generation, now)
    }

    /// Its generation.
    pub fn generation(&self) -> i64 {
        self.identity().1
    }

    /// As in `Deployment shop/web`.
    pub fn label(&self) -> String {
        match self {
            Self::Object(object) => {
                let key = Key::of_meta(object.metadata());
                format!("{} {key}", object.resource().kind)
            }
            Self::Named(owner) => format!("{} {}", owner.kind, owner.name),
        }
    }
}

/// Finds owners: the resources that are read, by kind.
#[derive(Debug, Default)]
pub struct Owners(HashMap<&'static str, Vec<&'static Resource>>);

impl Owners {
    /// Among these resources.
    pub fn among(resources: impl Iterator<Item = &'static Resource>) -> Self {
        let mut by_kind: HashMap<_, Vec<&'static Resource>> = HashMap::new();
        for resource in resources {
            let same = by_kind.entry(resource.kind).or_default();
            if !same.iter().any(|known| std::ptr::eq(*known, resource)) {
                same.push(resource);
            }
        }
        Self(by_kind)
    }

    /// What an object belongs to in the end; the object itself where it has no managing owner.
    pub fn root(&self, view: &dyn Reader, object: &AnyObject) -> Root {
        let mut top = object.clone();
        for _ in 0..OWNERS_MAX {
            let meta = top.metadata();
            let Some(owner) = meta.controller() else {
                break;
            };
            match self.find(view, &meta.namespace, owner) {
                Some(above) => top = above,
                None => return Root::Named(owner.clone()),
            }
        }
        Root::Object(top)
    }

    fn find(
        &self,
        view: &dyn Reader,
        namespace: &str,
        owner: &OwnerReference,
    ) -> Option<AnyObject> {
        let resources = self.0.get(&*owner.kind)?.iter().copied();
        let group = owner
            .api_version
            .rsplit_once('/')
            .map_or("", |(group, _)| group);
        let mut of_group = resources.filter(|resource| resource.group == group);
        of_group.find_map(|resource| {
            let namespace = if resource.namespaced { namespace } else { "" };
            let object = view.get(resource, namespace, &owner.name)?;
            (object.metadata().uid == owner.uid).then_some(object)
        })
    }
}
