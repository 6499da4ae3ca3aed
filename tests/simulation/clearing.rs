//! What must hold of those who delete for others: the garbage collector deletes nothing that has an owner,
//! and lets an owner go only after what it waits for; the namespace controller deletes only in namespaces
//! that end, pods first, and lets a namespace go only when it is empty.
//!
//! None of this allows for late watches: an owner that has gone never comes back, what is decided is written
//! on the version that was seen, and nothing can be made in a namespace that ends.

use std::collections::BTreeMap;

use controllers_kit::{Key, Reader};
use kubernetes_proto::{
    AnyObject, Object, Resource, Str,
    core::{Namespace, Pod},
    meta::ObjectMeta,
};

use crate::server::{Change, Server};

const COLLECTOR: &str = "garbage-collector-controller";
const NAMESPACES: &str = "namespace-controller";
const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

/// Since which version an object names an owner: by the dependent's uid, then the owner's.
#[derive(Default)]
pub struct Clearing {
    named: BTreeMap<(Str, Str), u64>,
}

impl Clearing {
    /// Of a cluster as it is.
    pub fn new(server: &Server) -> Self {
        let mut clearing = Self::default();
        for object in server.world.objects() {
            clearing.note(object.metadata());
        }
        clearing
    }

    fn note(&mut self, meta: &ObjectMeta) {
        for owner in &meta.owner_references {
            self.named
                .entry((meta.uid.clone(), owner.uid.clone()))
                .or_insert(meta.resource_version);
        }
    }

    /// Judges a change, made by a controller if one is named.
    pub fn after(
        &mut self,
        server: &Server,
        change: &Change,
        controller: Option<&str>,
    ) -> Option<String> {
        if let Some(new) = &change.new {
            self.note(new.metadata());
        }
        let wrong = match controller {
            Some(COLLECTOR) => self.collected(server, change),
            Some(NAMESPACES) => cleared(server, change),
            _ => None,
        };
        if change.new.is_none() {
            let uid = &change.object().metadata().uid;
            self.named.retain(|(dependent, _), _| dependent != uid);
        }
        wrong.map(|what| format!("{}: {what}", controller.unwrap_or_default()))
    }

    fn collected(&self, server: &Server, change: &Change) -> Option<String> {
        let old = change.old.as_ref()?;
        if is_deletion(change) {
            let meta = old.metadata();
            if meta.owner_references.is_empty() {
                return Some(format!("deleted {}, which nobody ever owned", name(old)));
            }
            let owner = living_owner(server, old)?;
            return Some(format!(
                "deleted {}, which {} owns",
                name(old),
                name(&owner)
            ));
        }
        self.let_go(server, change, FOREGROUND, true)
            .or_else(|| self.let_go(server, change, ORPHAN, false))
    }

    /// An owner whose finalizer is taken away: what had named it before the version that was decided on must
    /// have gone, or name it no more.
    fn let_go(
        &self,
        server: &Server,
        change: &Change,
        finalizer: &str,
        only_blocking: bool,
    ) -> Option<String> {
        let old = change.old.as_ref()?;
        let is_held = |object: &AnyObject| {
            let held = &object.metadata().finalizers;
            held.iter().any(|name| **name == *finalizer)
        };
        if !is_held(old) || change.new.as_ref().is_some_and(is_held) {
            return None;
        }
        let owner = old.metadata();
        let left = server.world.objects().find(|object| {
            let meta = object.metadata();
            let since = self.named.get(&(meta.uid.clone(), owner.uid.clone()));
            since.is_some_and(|since| *since <= owner.resource_version)
                && meta.owner_references.iter().any(|reference| {
                    reference.uid == owner.uid
                        && (!only_blocking || reference.block_owner_deletion == Some(true))
                })
        })?;
        Some(format!(
            "let {} go ({finalizer}) while {} still names it",
            name(old),
            name(left)
        ))
    }
}

fn name(object: &AnyObject) -> String {
    let meta = object.metadata();
    format!("{:?} {}/{}", object.resource(), meta.namespace, meta.name)
}

/// Whether an object that was to stay has gone or is going.
fn is_deletion(change: &Change) -> bool {
    let Some(old) = &change.old else { return false };
    let goes = change
        .new
        .as_ref()
        .is_none_or(|new| new.metadata().is_terminating());
    !old.metadata().is_terminating() && goes
}

/// An owner that is there and does not wait for its dependents to go.
fn living_owner(server: &Server, object: &AnyObject) -> Option<AnyObject> {
    let meta = object.metadata();
    let waits = |owner: &ObjectMeta| {
        let has = |finalizer: &str| owner.finalizers.iter().any(|held| **held == *finalizer);
        owner.is_terminating() && has(FOREGROUND) && !has(ORPHAN)
    };
    server
        .world
        .objects()
        .find(|other| {
            let owner = other.metadata();
            let in_reach = owner.namespace.is_empty() || owner.namespace == meta.namespace;
            in_reach
                && !waits(owner)
                && meta
                    .owner_references
                    .iter()
                    .any(|reference| reference.uid == owner.uid)
        })
        .cloned()
}

fn cleared(server: &Server, change: &Change) -> Option<String> {
    let old = change.old.as_ref()?;
    if let Some(namespace) = old.as_any().downcast_ref::<Namespace>() {
        return finalized(server, namespace, change);
    }
    if !is_deletion(change) {
        return None;
    }
    let within = &old.metadata().namespace;
    let namespace = Reader::get(&server.world, Namespace::resource(), "", within);
    if namespace.is_some_and(|namespace| !namespace.metadata().is_terminating()) {
        return Some(format!(
            "deleted {}, whose namespace is there to stay",
            name(old)
        ));
    }
    let pods = Reader::list(&server.world, Pod::resource(), Some(within));
    let is_pod = old.resource() == Pod::resource();
    (!is_pod && !pods.is_empty())
        .then(|| format!("deleted {} before {}", name(old), name(&pods[0])))
}

fn finalized(server: &Server, namespace: &Namespace, change: &Change) -> Option<String> {
    let held = |namespace: &Namespace| {
        let mut held = namespace.spec.iter().flat_map(|spec| &spec.finalizers);
        held.any(|finalizer| finalizer == "kubernetes")
    };
    let still = change
        .new
        .as_ref()
        .and_then(|new| new.as_any().downcast_ref::<Namespace>())
        .is_some_and(held);
    if !held(namespace) || still {
        return None;
    }
    let meta = Object::metadata(namespace);
    let left = server
        .world
        .objects()
        .find(|object| object.metadata().namespace == meta.name)?;
    Some(format!(
        "let namespace {} go while it holds {}",
        meta.name,
        name(left)
    ))
}

/// What nobody would ever clear away: dependents without any owner, deletions that wait for nothing.
pub fn leftovers(server: &Server) -> Vec<String> {
    let mut lines = Vec::new();
    for object in server.world.objects() {
        let meta = object.metadata();
        let owners = &meta.owner_references;
        let dangles = |resource: &'static Resource, key: &Key, uid: &Str| {
            Reader::get(&server.world, resource, &key.namespace, &key.name)
                .is_none_or(|owner| owner.metadata().uid != *uid)
        };
        let catalogue = server.world.catalogue();
        let orphaned = !owners.is_empty()
            && owners.iter().all(|reference| {
                let entry = catalogue.by_kind(&reference.api_version, &reference.kind);
                entry.is_some_and(|entry| {
                    let namespace = match entry.resource.namespaced {
                        true => meta.namespace.clone(),
                        false => Str::default(),
                    };
                    let key = Key::new(namespace, reference.name.clone());
                    dangles(entry.resource, &key, &reference.uid)
                })
            });
        let cleared = |finalizer: &Str| matches!(&**finalizer, FOREGROUND | ORPHAN);
        if orphaned && !meta.is_terminating() {
            lines.push(format!("{} is left without an owner", name(object)));
        } else if meta.is_terminating() && meta.finalizers.iter().all(cleared) {
            lines.push(format!("{} is on its way out for ever", name(object)));
        }
    }
    lines
}
