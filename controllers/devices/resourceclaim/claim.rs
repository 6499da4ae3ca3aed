//! The plan of a claim: reservations of those who need it no more are dropped, the last of them with the
//! allocation, then the finalizer; a claim that was made for a pod which is done is deleted.

use controllers_kit::{
    Action, Key, MetricKind, Only, PatchKind, Plan, Propagation, Query, Refusal, Resource,
    SignedDuration, Snapshot, StatusWrite, Str, Timestamp, Verb, Written, finalizers,
    selectors::Selector,
};
use kubernetes_proto::{
    Object,
    core::Pod,
    resource::{ResourceClaim, ResourceClaimConsumerReference},
    scheduling::PodGroup,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    CLAIMS, Features,
    facts::{self, FINALIZER},
    make::{self, Live},
};

/// How the claims are counted.
pub(super) const COUNTED: (&str, MetricKind, &[&str]) = (
    CLAIMS,
    MetricKind::Sum,
    &["allocated", "admin_access", "source"],
);

/// After this time the finalizer of an unallocated, unreserved claim is a leftover: an allocator adds it
/// milliseconds before, and a deallocation removes it immediately after.
const LEFT_OVER_AFTER: SignedDuration = SignedDuration::from_secs(60);

/// What is remembered of a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// The version that this key's own deallocation has written; 0 for none. The finalizer is removed next.
    deallocated: u64,
    /// Since when a version without allocation and reservation has had the finalizer: version, and Unix
    /// milliseconds.
    left_over: Option<(u64, i64)>,
}

impl Memory {
    /// Hears that an action has succeeded.
    pub(super) fn learn(&mut self, action: &Action, written: &Written) {
        if action.resource == ResourceClaim::resource()
            && let Verb::Patch { patch, .. } = &action.verb
            && patch["status"].get("allocation") == Some(&Value::Null)
        {
            self.deallocated = written.resource_version;
        }
    }

    /// Moves what was noted by another clock.
    pub(super) fn shift(&mut self, by: SignedDuration) {
        if let Some((_, since)) = &mut self.left_over {
            let by = i64::try_from(by.as_millis()).unwrap_or_default();
            *since = since.saturating_add(by);
        }
    }
}

/// What has become of a consumer.
enum Consumer {
    /// It may need the claim, or is of an unknown kind.
    Stays,
    /// It needs the claim no more.
    Gone,
    /// The cache does not show it: the API server decides.
    Unseen(Query),
}

fn live(resource: &'static Resource, namespace: &Str, name: &str) -> Query {
    Query::Live {
        resource,
        key: Key::new(namespace.clone(), name),
    }
}

/// A consumer's state in the cache. One that it does not show may have been created since, and one whose
/// name another has may have replaced it: neither is proof.
fn cached(
    of: &ResourceClaimConsumerReference,
    namespace: &Str,
    features: Features,
    seen: &Snapshot<'_>,
) -> Consumer {
    let is_group = features.groups && facts::is_of_group(of);
    if !facts::is_of_pod(of) && !is_group {
        return Consumer::Stays;
    }
    if seen.reader().gone(&of.uid) {
        return Consumer::Gone;
    }
    let key = Key::new(namespace.clone(), of.name.as_str());
    if is_group {
        let group = seen.get::<PodGroup>(&key);
        return match group.is_some_and(|group| *Object::metadata(&*group).uid == *of.uid) {
            true => Consumer::Stays,
            false => Consumer::Unseen(live(PodGroup::resource(), namespace, &of.name)),
        };
    }
    let pod = seen.get::<Pod>(&key);
    match pod.filter(|pod| *Object::metadata(&**pod).uid == *of.uid) {
        Some(pod) if facts::is_done(&pod) => Consumer::Gone,
        Some(_) => Consumer::Stays,
        None => Consumer::Unseen(live(Pod::resource(), namespace, &of.name)),
    }
}

/// The state of the pod that a claim was created for.
enum Owner {
    /// It is none, or does not exist: left to the garbage collector.
    None,
    /// It may need the claim.
    Stays,
    /// It has finished, or will never run.
    Done,
    /// Another has its name, or so the cache says.
    Replaced(Query),
}

fn owner(claim: &ResourceClaim, seen: &Snapshot<'_>) -> Owner {
    let Some(owner) = facts::owning_pod(claim) else {
        return Owner::None;
    };
    let namespace = &claim.metadata().namespace;
    let Some(pod) = seen.get::<Pod>(&Key::new(namespace.clone(), owner.name.clone())) else {
        return Owner::None;
    };
    if Object::metadata(&*pod).uid == owner.uid {
        return match facts::is_done(&pod) {
            true => Owner::Done,
            false => Owner::Stays,
        };
    }
    match seen.reader().gone(&owner.uid) {
        true => Owner::Done,
        false => Owner::Replaced(live(Pod::resource(), namespace, &owner.name)),
    }
}

/// The queries before a claim is planned: at most one read for each of the 256 consumers that the API
/// allows, and one for the owner.
pub(super) fn ask(claim: &ResourceClaim, features: Features, seen: &Snapshot<'_>) -> Vec<Query> {
    let namespace = &claim.metadata().namespace;
    let consumers = facts::consumers(claim).iter();
    let mut queries: Vec<Query> = consumers
        .filter_map(|of| match cached(of, namespace, features, seen) {
            Consumer::Unseen(query) => Some(query),
            Consumer::Stays | Consumer::Gone => None,
        })
        .collect();
    if facts::consumers(claim).is_empty()
        && !claim.is_terminating()
        && let Owner::Replaced(query) = owner(claim, seen)
    {
        queries.push(query);
    }
    queries.sort();
    queries.dedup();
    queries
}

/// Whether an object of a uid exists, by a live read.
fn is_there(
    uid: &str,
    query: &Query,
    plan: &mut Plan,
    seen: &Snapshot<'_>,
) -> Result<bool, Refusal> {
    Ok(match make::live(seen, query)? {
        Live::Uid(found) => found == uid,
        Live::Missing => false,
        Live::NotAsked => {
            plan.requeue_now();
            true
        }
    })
}

/// The labels of the claim in the metric of all claims.
fn labels(claim: &ResourceClaim) -> [&'static str; 3] {
    let truth = |is: bool| if is { "true" } else { "false" };
    let meta = claim.metadata();
    let source = if meta.annotation(facts::OF_EXTENDED) == Some("true") {
        "extended_resource"
    } else if meta
        .annotation(facts::OF_ENTRY)
        .is_some_and(|entry| !entry.is_empty())
    {
        "resource_claim_template"
    } else {
        ""
    };
    [
        truth(facts::is_allocated(claim)),
        truth(facts::has_admin_access(claim.spec.as_ref())),
        source,
    ]
}

/// A change of the status of the version seen.
fn write_status(plan: &mut Plan, claim: &ResourceClaim, status: &Value) {
    let patch = json!({ "status": status });
    plan.patch(claim, "status", PatchKind::Merge, patch, StatusWrite::No);
}

/// The plan of a claim: one write at a time, since each needs the version that the previous one creates.
///
/// # Errors
/// Where an object that the cache does not show can't be read.
pub(super) fn plan(
    claim: &ResourceClaim,
    features: Features,
    seen: &Snapshot<'_>,
    memory: &mut Memory,
) -> Result<Plan, Refusal> {
    let mut plan = Plan::nothing();
    let counted = labels(claim);
    plan.measure(CLAIMS, &counted, 1.0);
    plan.measure_on_failure(CLAIMS, &counted, 1.0);
    let meta = claim.metadata();
    let version = meta.resource_version;
    if memory.deallocated != version {
        memory.deallocated = 0;
    }

    let reserved = facts::consumers(claim);
    let mut remaining = Vec::with_capacity(reserved.len());
    for of in reserved {
        let stays = match cached(of, &meta.namespace, features, seen) {
            Consumer::Stays => true,
            Consumer::Gone => false,
            Consumer::Unseen(query) => is_there(&of.uid, &query, &mut plan, seen)?,
        };
        if stays {
            remaining.push(of);
        }
    }
    let (is_allocated, is_protected) = (facts::is_allocated(claim), facts::is_protected(claim));
    if remaining.len() < reserved.len() {
        let mut status = json!({ "reservedFor": remaining });
        // With the last consumer the allocation is dropped, so that the next one may get other devices. A
        // claim without the finalizer belongs to another allocator.
        if remaining.is_empty() {
            status["reservedFor"] = Value::Null;
            if is_protected {
                status["allocation"] = Value::Null;
            }
        }
        write_status(&mut plan, claim, &status);
        return Ok(plan);
    }
    let is_idle = remaining.is_empty() && is_protected && !is_allocated;
    if !is_idle || memory.left_over.is_some_and(|(of, _)| of != version) {
        memory.left_over = None;
    }
    if !remaining.is_empty() {
        return Ok(plan);
    }
    if claim.is_terminating() {
        if is_protected && is_allocated {
            write_status(&mut plan, claim, &json!({ "allocation": null }));
        } else if is_protected {
            finalizers::remove(&mut plan, claim, FINALIZER);
        }
        return Ok(plan);
    }
    if is_idle && memory.deallocated == version {
        finalizers::remove(&mut plan, claim, FINALIZER);
        return Ok(plan);
    }
    let goes = match owner(claim, seen) {
        Owner::None | Owner::Stays => false,
        Owner::Done => true,
        Owner::Replaced(query) => {
            let uid = facts::owning_pod(claim).map_or("", |owner| &owner.uid);
            !is_there(uid, &query, &mut plan, seen)?
        }
    };
    if goes {
        // It is unreserved in the version seen, which is the precondition of the deletion.
        plan.counted::<ResourceClaim>(&meta.namespace, &Selector::of_labels(&[]));
        plan.delete(claim, Only::ThisVersion, Propagation::Background);
    } else if is_idle {
        // Its writer died between two writes, or lost its memory.
        let now = seen.now.as_millisecond();
        let (_, since) = *memory.left_over.get_or_insert((version, now));
        let due = Timestamp::from_millisecond(since).unwrap_or(seen.now) + LEFT_OVER_AFTER;
        match seen.now < due {
            true => plan.requeue_at(due),
            false => finalizers::remove(&mut plan, claim, FINALIZER),
        }
    }
    Ok(plan)
}
