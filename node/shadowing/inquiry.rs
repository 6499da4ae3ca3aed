//! Of a change that no plan explains: would a controller here have made it in one of the moments before it?
//! If not, has the manager in charge made it?

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use controllers_kit::{
    Answers, AnyObject, Descriptor, DynChange, Key, Reader, Resource, Snapshot, Timestamp,
    guard::guarded,
};
use kubernetes_proto::{Object, core::Pod};
use serde_json::Value;
use shadow::{
    Answer, Candidate, Change, Deed, Moments, Objects, Unwanted, Want, changed_fields, nearest,
    present_without, standing_fields, would_make,
};

use crate::{
    ask,
    gate::Gate,
    server::Sender,
    shared::{Shared, Unit},
};

use super::{
    Shadow, by_unknown,
    past::{self, Past},
    who,
};

/// Keys of a change that are planned.
const KEYS_MAX: usize = 16;
/// A plan whose queries have no answer by then explains nothing this time.
const ANSWERS_TIMEOUT: Duration = Duration::from_secs(5);
/// A question that comes later than the change by this is also about the present: a timer may have ended.
const LATER: Duration = Duration::from_secs(1);
/// Fields of a pod's status that kubelets alone write, with all that they write beside them.
const KUBELETS: [&str; 5] = [
    "containerStatuses",
    "ephemeralContainerStatuses",
    "initContainerStatuses",
    "podIPs",
    "startTime",
];
/// Pods that a plan would delete instead of one, each compared with it.
const EQUALS_MAX: usize = 4;
/// A read of who has written an object.
const WHO_TIMEOUT: Duration = Duration::from_secs(5);
/// Conditions of a pod by which somebody else than a controller deletes it.
const OTHERS: [&str; 3] = [
    "EvictionByEvictionAPI",
    "PreemptionByScheduler",
    "TerminationByKubelet",
];

/// What a change does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Creates,
    Deletes,
    Updates,
    /// Metadata, and no more than the status beside it: a write of the status may change both.
    UpdatesMetadata,
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
            let all_of = |parts: &[&str]| {
                let mut firsts = paths.iter().map(|path| path.first());
                firsts.all(|first| first.is_some_and(|first| parts.contains(&&**first)))
            };
            match () {
                () if paths.is_empty() => None,
                () if all_of(&["status"]) => Some((Act::UpdatesStatus, paths)),
                () if all_of(&["metadata", "status"]) => Some((Act::UpdatesMetadata, paths)),
                () => Some((Act::Updates, paths)),
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
        (Act::UpdatesStatus, "pods" | "nodes") => {
            let fields = || paths.iter().filter_map(|path| path.get(1));
            fields().any(|field| {
                matches!(
                    field.as_str(),
                    "conditions" | "resourceClaimStatuses" | "volumesAttached" | "phase"
                )
            }) && !fields().any(|field| KUBELETS.contains(&field.as_str()))
        }
        // Kubelets and providers register nodes.
        (Act::Creates, "nodes") => false,
        _ => true,
    }
}

/// Whether a controller's role allows such a write.
fn may(descriptor: &Descriptor, act: Act, resource: &Resource) -> bool {
    let (verbs, parts): (&[&str], &[&str]) = match act {
        Act::Creates => (&["create"], &[""]),
        Act::Deletes => (&["delete", "deletecollection"], &[""]),
        Act::Updates => (&["patch", "update"], &[""]),
        Act::UpdatesMetadata => (&["patch", "update"], &["", "status"]),
        Act::UpdatesStatus => (&["patch", "update"], &["status"]),
    };
    descriptor.rules.iter().any(|rule| {
        let (plural, of) = rule.resource.split_once('/').unwrap_or((rule.resource, ""));
        let is_all = rule.resource == "*";
        (is_all || rule.group == resource.group)
            // A rule for everything is that of the garbage collector and its like, which write no status.
            && (plural == resource.plural || (is_all && act != Act::UpdatesStatus))
            && (is_all
                || parts.contains(&of)
                || (parts.contains(&"") && of == "scale")
                || (parts.contains(&"status") && of == "approval"))
            && rule.verbs.iter().any(|verb| verbs.contains(verb))
    })
}

fn is_ending(shared: &Shared, namespace: &str) -> bool {
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
fn keys<'a>(
    shared: &'a Shared,
    shadow: &Shadow,
    act: Act,
    change: &Change,
) -> Vec<(&'a Unit, Key)> {
    let Some(newest) = change.newest() else {
        return Vec::new();
    };
    let resource = newest.resource();
    let version = newest.metadata().resource_version;
    // A change concerns, too, the keys that the object's creation woke: the garbage collector's key of a
    // dependent is woken by its existence, and a zone's by its nodes. One that is being deleted may wake
    // nobody any more, so it counts as it was, too.
    let (old, new) = (change.old.as_ref(), change.new.as_ref());
    let as_it_was = old.filter(|_| new.is_some());
    let ways: Vec<_> = [(old, new), (None, Some(newest))]
        .into_iter()
        .chain(as_it_was.map(|old| (None, Some(old))))
        .collect();
    // Also as it was without the change: a pod whose claim is reserved needs nothing any more.
    let before = present_without(change);
    let before = Past::new(&*shared.view, &before, &shadow.indexes);
    let views: [&dyn Reader; 2] = [&*shared.view, &before];
    let (mut found, mut alone) = (Vec::new(), Vec::new());
    let may = |unit: &&Unit| may(unit.controller.descriptor(), act, resource);
    for unit in shared.units.iter().filter(may) {
        let mut keys = BTreeSet::new();
        let mut add = |key: Key| {
            keys.insert(key);
        };
        // A panic is the same as no key: it is reported where the change wakes keys.
        let _reported = guarded(|| {
            for view in views {
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
                    (entry.resource.group, entry.resource.plural)
                        == (resource.group, resource.plural)
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
            }
        });
        // Neither its own status nor a child has to wake anybody.
        if unit.primary().is_some_and(|primary| {
            (primary.group, primary.plural) == (resource.group, resource.plural)
        }) {
            keys.insert(Key::of_meta(newest.metadata()));
        }
        if let (Some(owner), Some(primary)) = (newest.metadata().controller(), unit.primary())
            && owner.kind == *primary.kind
        {
            let namespace = newest.metadata().namespace.clone();
            keys.insert(Key::new(namespace, owner.name.clone()));
        }
        found.extend(keys.into_iter().take(KEYS_MAX).map(|key| (unit, key)));
        alone.extend(keys_of_no_object(shared, unit).map(|key| (unit, key)));
    }
    // First those whose memory counts, which their own replica alone has.
    alone.extend(found);
    alone.truncate(KEYS_MAX);
    alone
}

/// Keys that exist always: one that goes through all pods is woken by none of them.
fn keys_of_no_object(shared: &Shared, unit: &Unit) -> impl Iterator<Item = Key> {
    let mut keys = BTreeSet::new();
    let of_start = unit
        .subscriptions
        .iter()
        .filter_map(|one| Some((one, one.only_name?)));
    for (one, name) in of_start {
        if let Some(object) = shared.view.get(one.resource, "", name) {
            let change = DynChange {
                old: None,
                new: Some(&object),
                version: object.metadata().resource_version,
            };
            let _reported = guarded(|| {
                (one.wake)(change, &*shared.view, &mut |key| {
                    keys.insert(key);
                });
            });
        }
    }
    keys.into_iter()
}

/// Of a change that no plan explains yet.
pub(super) async fn ask(shared: &Arc<Shared>, shadow: &Shadow, candidate: &Candidate) -> Answer {
    let change = &candidate.change;
    let (Some(newest), Some((act, paths))) = (change.newest(), act(change)) else {
        return Answer::NotTheirs;
    };
    let keys = keys(shared, shadow, act, change);
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
    let slack = shadow.options.patience;
    // What takes a plan of its own here, as an adoption before a creation, upstream does at once. Of a
    // deletion nobody says who has made it: where its object has been replaced, one is too many today.
    let is_made = act != Act::Deletes;
    let (moments, after) = {
        let history = super::locked(&shadow.history);
        let after = is_made.then(|| history.moments_after(change));
        (history.moments(change), after)
    };
    let today = is_made.then(|| present_without(change));
    let made = Made {
        change,
        since: since.as_ref(),
        standing: standing.as_deref().unwrap_or_default(),
    };
    let (now, clock) = (shared.clock.now(), shared.clock.monotonic());
    let age = clock.saturating_sub(candidate.seen);
    let then = now.checked_sub(age).unwrap_or(now);
    for (unit, key) in &keys {
        let descriptor = unit.controller.descriptor();
        let metrics = Arc::clone(&unit.metrics);
        let sender = Sender::new(&shared.replica, descriptor, metrics, &gate).as_replica();
        let mut of_key = OfKey {
            shared,
            shadow,
            unit,
            key,
            began: candidate.seen,
            answers: Answers::new(),
            first: Vec::new(),
        };
        for (at, objects) in moments.iter().enumerate() {
            let later = (at == 0 && age > LATER).then_some(now);
            for time in [Some(then), later].into_iter().flatten() {
                if of_key.would(&objects, time, &sender, &made).await {
                    return Answer::Wanted(unit.name());
                }
            }
        }
        for objects in after.iter().flat_map(Moments::iter) {
            if of_key.would(&objects, then, &sender, &made).await {
                return Answer::Wanted(unit.name());
            }
        }
        if let Some(objects) = &today
            && of_key.would(objects, now, &sender, &made).await
        {
            return Answer::Wanted(unit.name());
        }
        let wants = of_key.first;
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
    let paths = match &since {
        Some(since) => who::parts(&paths, change, since),
        None => paths,
    };
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

/// A key that is planned as of moments in the past.
struct OfKey<'a> {
    shared: &'a Shared,
    shadow: &'a Shadow,
    unit: &'a Unit,
    key: &'a Key,
    /// When the change was made, by the monotonic clock: the key's memory is that of then.
    began: Duration,
    /// What the API server has answered, for all moments.
    answers: Answers,
    /// What the first plan that wants anything wants.
    first: Vec<Want>,
}

/// A change, and what has become of it.
struct Made<'a> {
    change: &'a Change,
    /// The object as it is now.
    since: Option<&'a AnyObject>,
    /// The fields that are as the change has set them.
    standing: &'a [Vec<String>],
}

impl OfKey<'_> {
    /// Whether the controller would have made a change with these objects, and at this time.
    async fn would(
        &mut self,
        objects: &Objects,
        at: Timestamp,
        sender: &Sender,
        made: &Made<'_>,
    ) -> bool {
        let slack = self.shadow.options.patience;
        let planned = self.planned(objects, at, sender).await;
        let is_wanted =
            |want: &Want| would_make(want, made.change, (made.since, made.standing), slack);
        if planned.iter().any(is_wanted) {
            return true;
        }
        let equal = self.deletes_an_equal(objects, at, sender, (made.change, &planned));
        let is_equal = equal.await;
        if self.first.is_empty() {
            self.first = planned;
        }
        is_equal
    }

    /// What the controller would have written with these objects, and at this time.
    async fn planned(&mut self, objects: &Objects, at: Timestamp, sender: &Sender) -> Vec<Want> {
        let (shared, controller, key) = (self.shared, &self.unit.controller, self.key);
        let view = Past::new(&*shared.view, objects, &self.shadow.indexes);
        let mut memory = self.shadow.memory((self.unit, key), self.began);
        let none = Answers::new();
        let asked = guarded(|| controller.ask(key, &Snapshot::new(&view, &none, at), &memory));
        let asked = asked.unwrap_or_default();
        let mut new = asked.clone();
        new.retain(|query| !self.answers.contains_key(query));
        if !new.is_empty() {
            let answers = ask::ask(
                shared.writer.server(),
                &*shared.keys,
                &*shared.cloud,
                shared.clock.now(),
                sender,
                new,
            );
            match tokio::time::timeout(ANSWERS_TIMEOUT, answers).await {
                Ok(answers) => self.answers.extend(answers),
                Err(_) => return Vec::new(),
            }
        }
        let known = self.answers.iter();
        let known = known.filter(|(query, _)| asked.contains(query));
        let known = known.map(|(query, answer)| (query.clone(), answer.clone()));
        let answers = past::answers(known.collect(), objects);
        let plan = guarded(|| {
            let snapshot = Snapshot::new(&view, &answers, at);
            controller.plan(key, &snapshot, &mut memory)
        });
        match plan {
            Ok(Ok(plan)) => plan.actions().map(Want::of).collect(),
            _ => Vec::new(),
        }
    }

    /// Whether a plan would delete another pod of the same owner, and by its name alone: upstream's order
    /// leaves open which of two pods goes that are alike. They exchange names and uids: where the plan then
    /// deletes the same name, nothing else counts. In which order a DaemonSet's nodes have their turn is open
    /// as well, so its pods exchange their nodes: where the plan then deletes the other one, only the node
    /// counted.
    async fn deletes_an_equal(
        &mut self,
        objects: &Objects,
        at: Timestamp,
        sender: &Sender,
        (change, planned): (&Change, &[Want]),
    ) -> bool {
        let Some(deleted) = change.old.as_ref().and_then(pod_of) else {
            return false;
        };
        let Some(owner) = deleted.metadata().controller() else {
            return false;
        };
        let is_sibling = |pod: &&Pod| {
            let of = pod.metadata().controller();
            of.is_some_and(|of| of.uid == owner.uid)
        };
        let resource = Pod::resource();
        let place = |key: &Key| (resource.group, resource.plural, key.clone());
        let others = {
            let view = Past::new(&*self.shared.view, objects, &self.shadow.indexes);
            let others = planned
                .iter()
                .filter(|want| want.deed == Deed::Delete && std::ptr::eq(want.resource, resource));
            let found = others.filter_map(|want| {
                let key = &want.key;
                view.get(resource, &key.namespace, &key.name)
            });
            found.take(EQUALS_MAX).collect::<Vec<_>>()
        };
        for other in others {
            let Some(other) = pod_of(&other).filter(is_sibling) else {
                continue;
            };
            let [own, of_other] = [deleted, other].map(|pod| Key::of_meta(pod.metadata()));
            let is_daemon = *owner.kind == *"DaemonSet";
            let names = [as_other(other, deleted), as_other(deleted, other)];
            let nodes = is_daemon.then(|| [at_node_of(deleted, other), at_node_of(other, deleted)]);
            let ways = [(Some(names), &of_other, &own), (nodes, &own, &of_other)];
            for (exchanged, goes, stays) in ways {
                let Some([first, second]) = exchanged else {
                    continue;
                };
                let mut objects = objects.clone();
                objects.insert(place(&own), Some(first));
                objects.insert(place(&of_other), Some(second));
                let planned = self.planned(&objects, at, sender).await;
                let deletes = |key: &Key| {
                    let mut wants = planned.iter();
                    wants.any(|want| want.deed == Deed::Delete && want.key == *key)
                };
                if deletes(goes) && !deletes(stays) {
                    return true;
                }
            }
        }
        false
    }
}

/// A pod, where an object is one of the whole pods that are watched.
fn pod_of(object: &AnyObject) -> Option<&Pod> {
    object.as_any().downcast_ref()
}

/// A pod under the name and uid of another one.
fn as_other(pod: &Pod, other: &Pod) -> AnyObject {
    let mut pod = pod.clone();
    let of = other.metadata();
    let meta = pod.metadata_mut();
    (meta.name, meta.uid) = (of.name.clone(), of.uid.clone());
    Arc::new(pod)
}

/// A pod on the node of another one.
fn at_node_of(pod: &Pod, other: &Pod) -> AnyObject {
    let mut pod = pod.clone();
    if let (Some(spec), Some(of)) = (&mut pod.spec, &other.spec) {
        spec.node_name = of.node_name.clone();
        spec.affinity.clone_from(&of.affinity);
    }
    Arc::new(pod)
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

#[cfg(test)]
mod tests {
    use controllers_kit::{
        Sharding,
        testing::{Common, PodBuild, pod},
    };

    use super::*;

    #[test]
    fn a_role_that_writes_the_status_may_change_metadata() {
        let annotated = || pod("a").annotation("a", "b");
        let running = || annotated().phase("Running");
        let rule = |resource: &'static str| {
            Descriptor::new("a", Sharding::ByObject).rule("", resource, &["patch"])
        };
        for (old, new, expected, whole, status) in [
            (pod("a"), annotated(), Act::UpdatesMetadata, true, true),
            (pod("a"), running(), Act::UpdatesMetadata, true, true),
            (annotated(), running(), Act::UpdatesStatus, false, true),
        ] {
            let change = Change {
                old: Some(Arc::new(old)),
                new: Some(Arc::new(new)),
                version: 2,
            };
            let (act, _) = act(&change).unwrap();
            assert_eq!(act, expected);
            assert_eq!(may(&rule("pods"), act, Pod::resource()), whole);
            assert_eq!(may(&rule("pods/status"), act, Pod::resource()), status);
        }
    }
}
