//! Of a change that no plan explains: would a controller here make it, had it not been made? If not, has the
//! manager in charge made it?

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use controllers_kit::{
    Answers, AnyObject, DynChange, Key, Reader, Resource, Snapshot, guard::guarded,
};
use serde_json::Value;
use shadow::{
    Answer, Change, Unwanted, Want, changed_fields, explains, nearest, satisfied, sets,
    standing_fields, touches,
};

use crate::{
    ask,
    gate::Gate,
    server::Sender,
    shared::{Shared, Unit},
};

use super::{
    Shadow, by_unknown,
    undone::{self, Undone},
    who,
};

/// Keys of a change that are planned.
const KEYS_MAX: usize = 16;
/// A plan whose queries have no answer by then explains nothing this time.
const ANSWERS_TIMEOUT: Duration = Duration::from_secs(5);
/// A read of who has written an object.
const WHO_TIMEOUT: Duration = Duration::from_secs(5);
/// Conditions of a pod by which somebody else than a controller deletes it.
const OTHERS: [&str; 3] = [
    "EvictionByEvictionAPI",
    "PreemptionByScheduler",
    "TerminationByKubelet",
];

/// What a change does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Act {
    Creates,
    Deletes,
    Updates,
    UpdatesStatus,
}

/// What a change does, and which fields it changes; `None` where it is no write that a controller might make.
fn act(change: &Change) -> Option<(Act, Vec<Vec<String>>)> {
    match (&change.old, &change.new) {
        (None, Some(_)) => Some((Act::Creates, Vec::new())),
        (Some(old), None) => {
            // What was on its way out goes by what held it.
            (!old.metadata().is_terminating()).then(|| (Act::Deletes, Vec::new()))
        }
        (Some(old), Some(new)) => {
            if old.metadata().uid != new.metadata().uid {
                return Some((Act::Creates, Vec::new()));
            }
            if new.metadata().is_terminating() && !old.metadata().is_terminating() {
                return Some((Act::Deletes, Vec::new()));
            }
            let mut paths = changed_fields(old, new);
            paths.retain(|path| {
                let deletion =
                    path.len() == 2 && path[0] == "metadata" && path[1].starts_with("deletion");
                !deletion
            });
            let of_status = |path: &Vec<String>| path.first().is_some_and(|part| part == "status");
            match paths.iter().all(of_status) {
                _ if paths.is_empty() => None,
                true => Some((Act::UpdatesStatus, paths)),
                false => Some((Act::Updates, paths)),
            }
        }
        (None, None) => None,
    }
}

/// Whether a controller might have made a change: one of those here, or one that runs with the manager in
/// charge alone.
pub(super) fn concerns(shared: &Shared, change: &Change) -> bool {
    let (Some(newest), Some((act, paths))) = (change.newest(), act(change)) else {
        return false;
    };
    let (resource, meta) = (newest.resource(), newest.metadata());
    match (act, resource.plural) {
        // Who deletes is recorded nowhere: only what has an owner is expected to go by a controller.
        (Act::Deletes, _) => {
            !(meta.owner_references.is_empty()
                || is_ending(shared, &meta.namespace)
                || is_deleted_by_others(newest))
        }
        // Kubelets write these all the time. Controllers say by conditions alone what they do.
        (Act::UpdatesStatus, "pods" | "nodes") => paths.iter().any(|path| {
            matches!(
                path.get(1).map(String::as_str),
                Some("conditions" | "resourceClaimStatuses" | "volumesAttached" | "phase")
            )
        }),
        _ => true,
    }
}

/// Whether a controller's role allows such a write.
fn may(unit: &Unit, act: Act, resource: &Resource) -> bool {
    let (verbs, part): (&[&str], &str) = match act {
        Act::Creates => (&["create"], ""),
        Act::Deletes => (&["delete", "deletecollection"], ""),
        Act::Updates => (&["patch", "update"], ""),
        Act::UpdatesStatus => (&["patch", "update"], "status"),
    };
    unit.controller.descriptor().rules.iter().any(|rule| {
        let (plural, of) = rule.resource.split_once('/').unwrap_or((rule.resource, ""));
        let is_all = rule.resource == "*";
        (is_all || rule.group == resource.group)
            // A rule for everything is that of the garbage collector and its like, which write no status.
            && (plural == resource.plural || (is_all && act != Act::UpdatesStatus))
            && (is_all || of == part || (part.is_empty() && of == "scale"))
            && rule.verbs.iter().any(|verb| verbs.contains(verb))
    })
}

fn is_ending(shared: &Shared, namespace: &str) -> bool {
    use controllers_kit::Object as _;
    let resource = kubernetes_proto::core::Namespace::resource();
    !namespace.is_empty()
        && shared
            .view
            .get(resource, "", namespace)
            .is_some_and(|object| object.metadata().is_terminating())
}

fn is_deleted_by_others(object: &AnyObject) -> bool {
    if object.resource().plural != "pods" {
        return false;
    }
    let json = object.to_json();
    let conditions = json["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|condition| {
        condition["type"] == "DisruptionTarget"
            && condition["reason"]
                .as_str()
                .is_some_and(|reason| OTHERS.contains(&reason))
    })
}

/// The keys that a change concerns, of the controllers that might have made it.
fn keys<'a>(shared: &'a Shared, act: Act, change: &Change) -> Vec<(&'a Unit, Key)> {
    let Some(newest) = change.newest() else {
        return Vec::new();
    };
    let resource = newest.resource();
    let version = newest.metadata().resource_version;
    // A deletion concerns, too, the keys that its creation woke: the garbage
    // collector's key of a dependent is woken by its existence.
    let mut ways = vec![(change.old.as_ref(), change.new.as_ref())];
    if act == Act::Deletes {
        ways.push((None, change.old.as_ref()));
    }
    let mut found = Vec::new();
    for unit in shared.units.iter().filter(|unit| may(unit, act, resource)) {
        let mut keys = BTreeSet::new();
        let mut add = |key: Key| {
            keys.insert(key);
        };
        let view: &dyn Reader = &*shared.view;
        // A panic is the same as no key: it is reported where the change wakes keys.
        let _reported = guarded(|| {
            for one in &unit.subscriptions {
                let of = one.resource;
                let same = (of.group, of.plural) == (resource.group, resource.plural);
                for (old, new) in ways.iter().copied() {
                    if same && std::ptr::eq(of, resource) {
                        (one.wake)(DynChange { old, new, version }, view, &mut add);
                    }
                }
            }
            let catalogue = view.catalogue();
            let entry = catalogue.all().iter().find(|entry| {
                (entry.resource.group, entry.resource.plural) == (resource.group, resource.plural)
                    && entry.preferred
            });
            for one in &unit.discovered {
                if let Some(entry) = entry.filter(|entry| (one.wanted)(entry)) {
                    let partial = |object: &AnyObject| -> AnyObject {
                        Arc::new(kubernetes_proto::Partial::new(
                            entry.resource,
                            object.metadata().clone(),
                        ))
                    };
                    for (old, new) in ways.iter().copied() {
                        let (old, new) = (old.map(partial), new.map(partial));
                        let (old, new) = (old.as_ref(), new.as_ref());
                        (one.wake)(DynChange { old, new, version }, view, &mut add);
                    }
                }
            }
        });
        // A child may wake nobody, and be its owner's all the same.
        if let (Some(owner), Some(primary)) = (newest.metadata().controller(), unit.primary())
            && owner.kind == *primary.kind
        {
            let namespace = newest.metadata().namespace.clone();
            keys.insert(Key::new(namespace, owner.name.clone()));
        }
        found.extend(keys.into_iter().take(KEYS_MAX).map(|key| (unit, key)));
    }
    found.truncate(KEYS_MAX);
    found
}

/// Of a change that no plan explains yet.
pub(super) async fn ask(shared: &Arc<Shared>, shadow: &Shadow, change: &Change) -> Answer {
    let (Some(newest), Some((act, paths))) = (change.newest(), act(change)) else {
        return Answer::NotTheirs;
    };
    let keys = keys(shared, act, change);
    // One replica judges each change.
    let range = match keys.first() {
        Some((unit, key)) => shared.range_of(unit, key),
        None => {
            let place = Key::of_meta(newest.metadata()).to_string();
            coordinator_core::range_of(place.as_bytes(), shared.ranges)
        }
    };
    let Some(slot) = shared.slot(range) else {
        return Answer::NotTheirs;
    };
    let gate = Gate::new(range, slot.epoch, Arc::clone(&shared.fence));
    let since = since(shared, change);
    let standing = match (&change.old, &change.new, &since) {
        (Some(old), Some(new), Some(since)) => Some(standing_fields(old, new, since)),
        _ => None,
    };
    if standing.as_ref().is_some_and(Vec::is_empty) && act != Act::Deletes {
        return Answer::Overtaken;
    }
    let mut unwanted = by_unknown("kube-controller-manager");
    for (unit, key) in &keys {
        let descriptor = unit.controller.descriptor();
        let metrics = Arc::clone(&unit.metrics);
        let sender = Sender::new(&shared.replica, descriptor, metrics, &gate).as_replica();
        let wants = planned(shared, shadow, (unit, key), change, &sender).await;
        let slack = shadow.options.patience;
        // Also what has become of the object since: the manager in charge may have gone in several steps
        // where a plan of today goes in one.
        let is_wanted = |want: &Want| {
            let old = change.old.as_ref();
            let fields = standing.as_deref().zip(since.as_ref());
            let new = change.new.as_ref();
            explains(want, old, new, slack)
                || (touches(want, old, new) && satisfied(want, old, since.as_ref(), slack))
                || (old.is_none() && satisfied(want, old, since.as_ref(), slack))
                || fields.is_some_and(|(paths, since)| sets(want, paths, since, slack))
        };
        if wants.iter().any(is_wanted) {
            return Answer::Wanted(unit.name());
        }
        let places: Vec<_> = shadow::Place::of_object(newest)
            .into_iter()
            .flatten()
            .collect();
        let near = wants.iter().find(|want| places.contains(&want.place()));
        let is_nearer = unwanted.controller == shadow::UNKNOWN
            || (near.is_some() && unwanted.instead.is_none());
        if is_nearer {
            unwanted = Unwanted {
                controller: unit.name(),
                key: key.to_string(),
                instead: near.and_then(|want| nearest(want, newest, slack)),
                by: unwanted.by,
            };
        }
    }
    if act == Act::Deletes {
        unwanted.by =
            "the manager in charge, or anybody else: the API server does not say who deletes";
        return Answer::Unwanted(Box::new(unwanted));
    }
    match is_theirs(shared, &gate, newest, act, &paths).await {
        true => Answer::Unwanted(Box::new(unwanted)),
        false => Answer::NotTheirs,
    }
}

/// The object of a change as it is now; as the change has left it where another has its name.
fn since(shared: &Shared, change: &Change) -> Option<AnyObject> {
    let newest = change.new.as_ref()?;
    let meta = newest.metadata();
    let view = &shared.view;
    let current = view.get(newest.resource(), &meta.namespace, &meta.name);
    let current = current.filter(|current| current.metadata().uid == meta.uid);
    current.or_else(|| Some(Arc::clone(newest)))
}

/// What a controller would write had a change not been made.
async fn planned(
    shared: &Shared,
    shadow: &Shadow,
    (unit, key): (&Unit, &Key),
    change: &Change,
    sender: &Sender,
) -> Vec<Want> {
    let view = Undone::new(&*shared.view, change, &shadow.indexes);
    let now = shared.clock.now();
    let controller = &unit.controller;
    let mut memory = shadow.memory(unit, key);
    let none = Answers::new();
    let queries = guarded(|| controller.ask(key, &Snapshot::new(&view, &none, now), &memory));
    let queries = queries.unwrap_or_default();
    let answers = match queries.is_empty() {
        true => none,
        false => {
            let asked = ask::ask(
                shared.writer.server(),
                &*shared.keys,
                &*shared.cloud,
                now,
                sender,
                queries,
            );
            match tokio::time::timeout(ANSWERS_TIMEOUT, asked).await {
                Ok(answers) => undone::answers(answers, change),
                Err(_) => return Vec::new(),
            }
        }
    };
    let plan = guarded(|| {
        let snapshot = Snapshot::new(&view, &answers, now);
        controller.plan(key, &snapshot, &mut memory)
    });
    match plan {
        Ok(Ok(plan)) => plan.actions().map(Want::of).collect(),
        _ => Vec::new(),
    }
}

/// Whether the manager in charge has made a change, as far as the object says.
async fn is_theirs(
    shared: &Shared,
    gate: &Arc<Gate>,
    object: &AnyObject,
    act: Act,
    paths: &[Vec<String>],
) -> bool {
    let Some(unit) = shared.units.first() else {
        return false;
    };
    let descriptor = unit.controller.descriptor();
    let metrics = Arc::clone(&unit.metrics);
    let sender = Sender::new(&shared.replica, descriptor, metrics, gate).as_replica();
    let meta = object.metadata();
    let path = object.resource().path(&meta.namespace, &meta.name);
    let read = shared.writer.server().read(&sender, &path);
    let found: Option<Value> = match tokio::time::timeout(WHO_TIMEOUT, read).await {
        Ok(Ok(found)) => found,
        _ => None,
    };
    found.is_some_and(|found| {
        found["metadata"]["uid"].as_str() == Some(&*meta.uid)
            && match act {
                Act::Creates => who::has_made(&found),
                _ => who::has_written(&found, paths),
            }
    })
}
