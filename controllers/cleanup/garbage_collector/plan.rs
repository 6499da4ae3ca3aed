//! What becomes of one object: deleted for want of owners, freed of owners that are gone, or, being deleted
//! itself, released when its dependents are gone or orphaned.

use controllers_kit::{
    Answer, AnyObject, Event, EventType, Key, ObjectRef, Only, Plan, Propagation, Query, Reader,
    Refusal, Snapshot, Standing, Str, catalogue::Catalogue,
};
use kubernetes_proto::{
    Shared,
    meta::{ObjectMeta, OwnerReference},
};
use serde_json::{Value, json};

use super::graph::{self, FOREGROUND, ORPHAN, Place};

/// The live reads that decide about an object: of owners that are not in the caches and were not seen to be
/// deleted, and of itself where its deletion was refused.
pub(super) fn ask(object: &AnyObject, seen: &Snapshot<'_>, was_refused: bool) -> Vec<Query> {
    let meta = object.metadata();
    if meta.is_terminating() || meta.owner_references.is_empty() {
        return Vec::new();
    }
    let (reader, catalogue) = (seen.reader(), seen.catalogue());
    let mut queries: Vec<Query> = meta
        .owner_references
        .iter()
        .filter(|reference| {
            !reader.gone(&reference.uid)
                && graph::owner(reader, &catalogue, reference, meta).is_none()
        })
        .filter_map(
            |reference| match graph::place(&catalogue, reference, meta) {
                Place::At(resource, key) => Some(Query::Live { resource, key }),
                Place::Unknown | Place::Impossible => None,
            },
        )
        .collect();
    queries.extend(was_refused.then(|| itself(object)));
    queries.sort();
    queries.dedup();
    queries
}

fn itself(object: &AnyObject) -> Query {
    Query::Live {
        resource: object.resource(),
        key: Key::of_meta(object.metadata()),
    }
}

/// The state that a deletion is based on.
struct Ground {
    /// The resourceVersion that is its precondition.
    version: u64,
    /// The propagation that the object's finalizers ask for.
    propagation: Propagation,
}

/// The precondition of a deletion is the version seen. Where that was refused, something else has been
/// written, and an object that is written to all the time would never go; then the precondition is the
/// version that the API server has, if the owners are those that were decided about, and the finalizers of
/// that version apply.
fn ground(object: &AnyObject, seen: &Snapshot<'_>, was_refused: bool) -> Result<Ground, Refusal> {
    let meta = object.metadata();
    let propagation = |has: &dyn Fn(&str) -> bool| {
        if has(ORPHAN) {
            Propagation::Orphan
        } else if has(FOREGROUND) {
            Propagation::Foreground
        } else {
            Propagation::Background
        }
    };
    if !was_refused {
        return Ok(Ground {
            version: meta.resource_version,
            propagation: propagation(&|finalizer| graph::has(meta, finalizer)),
        });
    }
    match seen.answer(&itself(object)) {
        Some(Answer::Object(live)) if is_as_seen(&live["metadata"], meta) => {
            let live = &live["metadata"];
            let version = live["resourceVersion"].as_str();
            Ok(Ground {
                version: version
                    .and_then(|version| version.parse().ok())
                    .unwrap_or(meta.resource_version),
                propagation: propagation(&|finalizer| {
                    let mut held = live["finalizers"].as_array().into_iter().flatten();
                    held.any(|held| held == finalizer)
                }),
            })
        }
        Some(Answer::Object(_) | Answer::Missing | Answer::NotFound(_)) => {
            Err(Refusal::Wait(format!(
                "{} {} has changed: the cache does not show it yet",
                object.resource().kind,
                meta.name
            )))
        }
        Some(Answer::Failed(why)) => Err(Refusal::Retry(format!(
            "{} {} can't be read: {why}",
            object.resource().kind,
            meta.name
        ))),
        None => Err(Refusal::Retry(format!(
            "{} {} was not read",
            object.resource().kind,
            meta.name
        ))),
    }
}

/// Whether the live object is the one that was seen, with the same owner references.
fn is_as_seen(live: &Value, meta: &ObjectMeta) -> bool {
    live["uid"] == *meta.uid
        && live["deletionTimestamp"].is_null()
        && live["ownerReferences"] == references(meta.owner_references.iter())
}

/// Plans the fate of an object.
pub(super) fn plan(
    object: &AnyObject,
    seen: &Snapshot<'_>,
    was_refused: bool,
) -> Result<Plan, Refusal> {
    let meta = object.metadata();
    let catalogue = seen.catalogue();
    if meta.is_terminating() {
        return if graph::has(meta, ORPHAN) {
            orphan(object, seen, &catalogue)
        } else if graph::has(meta, FOREGROUND) {
            release(object, seen, &catalogue)
        } else {
            Ok(Plan::nothing())
        };
    }
    if meta.owner_references.is_empty() {
        return Ok(Plan::nothing());
    }
    let Some(owners) = classify(meta, seen, &catalogue)? else {
        return Ok(Plan::nothing());
    };
    let mut plan = Plan::nothing();
    if owners.solid > 0 {
        let unwanted: Vec<&Str> = owners.dangling.iter().chain(&owners.waiting).collect();
        if unwanted.is_empty() {
            // It may go before any watch shows that it was there, and then nothing wakes its dependents.
            return match owners.unseen {
                Some(name) => Err(Refusal::Expected(format!(
                    "owner {name} exists, and no watch shows it yet: it is read again"
                ))),
                None => Ok(plan),
            };
        }
        // An owner that waits would wait forever for an object that another one keeps.
        let kept = meta
            .owner_references
            .iter()
            .filter(|reference| !unwanted.contains(&&reference.uid));
        plan.patch_metadata(object, &json!({"ownerReferences": references(kept)}));
        report_wrong_namespaces(&mut plan, object, &owners, seen.reader(), &catalogue);
        return Ok(plan);
    }
    let mut foreground = false;
    if !owners.waiting.is_empty() {
        let dependents = graph::dependents(seen.reader(), &catalogue, &meta.uid);
        if !dependents.is_empty() {
            let in_circle = dependents
                .iter()
                .any(|dependent| graph::waits_for_dependents(dependent.metadata()));
            let blocks = meta.owner_references.iter().any(|one| graph::blocks(one));
            if in_circle && blocks {
                // Objects that wait for this one would be waited for by it: it must not block its owners.
                plan.patch_metadata(object, &unblocked(meta));
                plan.requeue_now();
                return Ok(plan);
            }
            foreground = true;
        }
    }
    let ground = ground(object, seen, was_refused)?;
    let propagation = match foreground {
        true => Propagation::Foreground,
        false => ground.propagation,
    };
    plan.delete_any(object, Only::ThisVersion, propagation)
        .resource_version = ground.version;
    report_wrong_namespaces(&mut plan, object, &owners, seen.reader(), &catalogue);
    Ok(plan)
}

/// An object's owners.
struct Owners {
    /// Owners that exist and are not being deleted.
    solid: usize,
    /// The uids of those that are gone, or never existed.
    dangling: Vec<Str>,
    /// The uids of those that wait for their dependents to go.
    waiting: Vec<Str>,
    /// One that the API server alone has shown.
    unseen: Option<Str>,
}

/// Sorts an object's owners; `None` where an owner is impossible, which nothing can mend.
fn classify(
    meta: &ObjectMeta,
    seen: &Snapshot<'_>,
    catalogue: &Catalogue,
) -> Result<Option<Owners>, Refusal> {
    let reader = seen.reader();
    let mut owners = Owners {
        solid: 0,
        dangling: Vec::new(),
        waiting: Vec::new(),
        unseen: None,
    };
    for reference in &meta.owner_references {
        let uid = reference.uid.clone();
        if let Some(owner) = graph::owner(reader, catalogue, reference, meta) {
            if graph::waits_for_dependents(owner.metadata()) {
                owners.waiting.push(uid);
            } else {
                owners.solid += 1;
            }
            continue;
        }
        if reader.gone(&uid) {
            owners.dangling.push(uid);
            continue;
        }
        let (resource, key) = match graph::place(catalogue, reference, meta) {
            Place::At(resource, key) => (resource, key),
            Place::Impossible => return Ok(None),
            Place::Unknown => {
                return Err(Refusal::Retry(format!(
                    "no resource of kind {} in {} is known, which owner {} is of: the search is retried",
                    reference.kind, reference.api_version, reference.name
                )));
            }
        };
        let query = Query::Live { resource, key };
        match seen.answer(&query) {
            Some(Answer::Missing | Answer::NotFound(_)) => owners.dangling.push(uid),
            Some(Answer::Object(owner)) => match live(owner, &uid) {
                Live::Another => owners.dangling.push(uid),
                Live::Waits => owners.waiting.push(uid),
                Live::Solid => {
                    owners.solid += 1;
                    owners.unseen = Some(reference.name.clone());
                }
            },
            Some(Answer::Failed(why)) => {
                return Err(Refusal::Retry(format!(
                    "owner {} {} can't be read: {why}",
                    reference.kind, reference.name
                )));
            }
            // It was in the cache when the queries were made, and is not now.
            None => {
                return Err(Refusal::Retry(format!(
                    "owner {} {} has just gone",
                    reference.kind, reference.name
                )));
            }
        }
    }
    Ok(Some(owners))
}

/// What the API server says of an owner.
enum Live {
    /// Another object has the name.
    Another,
    /// It exists and waits for its dependents.
    Waits,
    /// It exists.
    Solid,
}

fn live(owner: &Value, uid: &str) -> Live {
    let meta = &owner["metadata"];
    let finalizer = |name: &str| {
        let mut held = meta["finalizers"].as_array().into_iter().flatten();
        held.any(|finalizer| finalizer == name)
    };
    if meta["uid"] != uid {
        Live::Another
    } else if !meta["deletionTimestamp"].is_null() && finalizer(FOREGROUND) && !finalizer(ORPHAN) {
        Live::Waits
    } else {
        Live::Solid
    }
}

fn references<'a>(kept: impl Iterator<Item = &'a Shared<OwnerReference>>) -> Value {
    let kept: Vec<Value> = kept
        .map(|reference| serde_json::to_value(reference).expect("a reference has only string keys"))
        .collect();
    // An empty list is no list.
    if kept.is_empty() {
        Value::Null
    } else {
        Value::Array(kept)
    }
}

fn unblocked(meta: &ObjectMeta) -> Value {
    let changed: Vec<Shared<OwnerReference>> = meta
        .owner_references
        .iter()
        .cloned()
        .map(|mut reference| {
            if graph::blocks(&reference) {
                reference.block_owner_deletion = Some(false);
            }
            reference
        })
        .collect();
    json!({"ownerReferences": references(changed.iter())})
}

fn without(meta: &ObjectMeta, finalizer: &str) -> Value {
    let kept: Vec<&Str> = meta
        .finalizers
        .iter()
        .filter(|held| ***held != *finalizer)
        .collect();
    let kept = if kept.is_empty() {
        Value::Null
    } else {
        json!(kept)
    };
    json!({ "finalizers": kept })
}

/// A deletion that waits for dependents ends when no blocking one is left. The others have keys of their
/// own, woken when the deletion began.
///
/// # Errors
/// Where one that blocks can't be deleted yet, since the discovery of its group fails.
fn release(
    object: &AnyObject,
    seen: &Snapshot<'_>,
    catalogue: &Catalogue,
) -> Result<Plan, Refusal> {
    let meta = object.metadata();
    let dependents = graph::dependents(seen.reader(), catalogue, &meta.uid);
    let mut plan = Plan::nothing();
    let mut blocking = dependents
        .iter()
        .filter(|dependent| graph::keeps(dependent, &meta.uid))
        .peekable();
    if blocking.peek().is_some() {
        blocking.try_for_each(|dependent| writable(dependent, catalogue))?;
        return Ok(plan);
    }
    rest_on_all(&mut plan, meta, seen.reader(), catalogue)?;
    plan.patch_metadata(object, &without(meta, FOREGROUND));
    Ok(plan)
}

/// A dependent can't be patched or deleted while the discovery of its group fails. Its owner stays until
/// then: with the owner gone, the dependent would be deleted as soon as the group is back, though it should
/// have been kept.
fn writable(dependent: &AnyObject, catalogue: &Catalogue) -> Result<(), Refusal> {
    let resource = dependent.resource();
    match graph::unwritable(catalogue, resource) {
        None => Ok(()),
        Some(why) => Err(Refusal::Retry(format!(
            "dependent {} {} can't be changed, discovery of {} fails: {why}",
            resource.kind,
            dependent.metadata().name,
            resource.api_version()
        ))),
    }
}

/// A deletion that orphans dependents ends when none names the owner any more.
///
/// # Errors
/// Where a dependent can't be orphaned yet, since the discovery of its group fails.
fn orphan(object: &AnyObject, seen: &Snapshot<'_>, catalogue: &Catalogue) -> Result<Plan, Refusal> {
    let meta = object.metadata();
    let mut plan = Plan::nothing();
    rest_on_all(&mut plan, meta, seen.reader(), catalogue)?;
    for dependent in graph::dependents(seen.reader(), catalogue, &meta.uid) {
        writable(&dependent, catalogue)?;
        let owners = &dependent.metadata().owner_references;
        let kept = owners.iter().filter(|reference| reference.uid != meta.uid);
        plan.patch_metadata(&dependent, &json!({"ownerReferences": references(kept)}));
    }
    plan.then();
    plan.patch_metadata(object, &without(meta, ORPHAN));
    Ok(plan)
}

/// Rests the plan on the caches showing all dependents of an owner: the node proves it for every resource
/// whose watch is behind. A resource that can't be read for long holds back nobody.
fn rest_on_all(
    plan: &mut Plan,
    owner: &ObjectMeta,
    reader: &dyn Reader,
    catalogue: &Catalogue,
) -> Result<(), Refusal> {
    for resource in graph::resources(catalogue) {
        if !owner.namespace.is_empty() && !resource.namespaced {
            continue;
        }
        match reader.standing(resource) {
            Standing::Complete | Standing::Failing => {
                plan.rests_on(resource, &owner.namespace, owner.resource_version);
            }
            Standing::Listing | Standing::Unwatched => {
                return Err(Refusal::Retry(format!(
                    "{} are not listed yet",
                    resource.id()
                )));
            }
        }
    }
    Ok(())
}

/// Records an event for owners that exist, but in another namespace.
fn report_wrong_namespaces(
    plan: &mut Plan,
    object: &AnyObject,
    owners: &Owners,
    reader: &dyn Reader,
    catalogue: &Catalogue,
) {
    let meta = object.metadata();
    for reference in &meta.owner_references {
        if !owners.dangling.contains(&reference.uid) || reader.gone(&reference.uid) {
            continue;
        }
        let Place::At(resource, _) = graph::place(catalogue, reference, meta) else {
            continue;
        };
        let elsewhere = resource.namespaced
            && catalogue.find(resource.group, resource.plural).is_some()
            && reader.list(resource, None).iter().any(|other| {
                other.metadata().uid == reference.uid && !graph::in_reach(other.metadata(), meta)
            });
        if elsewhere {
            plan.event(wrong_namespace(object, reference));
        }
    }
}

fn wrong_namespace(object: &AnyObject, reference: &OwnerReference) -> Event {
    let (resource, meta) = (object.resource(), object.metadata());
    Event {
        about: ObjectRef {
            api_version: Str::interned(&resource.api_version()),
            kind: Str::interned(resource.kind),
            key: Key::of_meta(meta),
            uid: meta.uid.clone(),
            resource_version: 0,
        },
        r#type: EventType::Warning,
        reason: Str::interned("OwnerRefInvalidNamespace"),
        message: format!(
            "ownerRef [{}/{}, namespace: {}, name: {}, uid: {}] does not exist in namespace {:?}",
            reference.api_version,
            reference.kind,
            meta.namespace,
            reference.name,
            reference.uid,
            &*meta.namespace
        ),
    }
}
