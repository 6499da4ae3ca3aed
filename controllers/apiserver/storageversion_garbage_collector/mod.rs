//! Removes API servers that are gone from StorageVersions, in which each server reports how it encodes
//! objects.
//!
//! Watches storageversions and Leases; patches the status of storageversions, deletes those without a
//! server; a key per StorageVersion; remembers nothing. A server is gone when the Lease of its identity
//! does not exist: where the cache does not show the Lease, it is read live, and an entry stays where that
//! read fails.

use controllers_kit::{
    Answer, Change, Controller, Descriptor, Flags, Key, Only, Plan, Propagation, Query, Reader,
    Refusal, Runs, Sharding, Snapshot, StatusWrite, Str, Watches,
};
use kubernetes_proto::{
    Object,
    apiserverinternal::{StorageVersion, StorageVersionCondition, StorageVersionStatus},
    coordination::Lease,
    meta::Time,
};

const IDENTITY_GATE: &str = "APIServerIdentity";
const API_GATE: &str = "StorageVersionAPI";
/// The namespace of the API servers' identity Leases.
const NAMESPACE: &str = "kube-system";
/// The label of such a Lease, and its value.
const IDENTITY: (&str, &str) = ("apiserver.kubernetes.io/identity", "kube-apiserver");
/// The index of StorageVersions by the servers that they name.
const BY_SERVER: &str = "servers of a storage version";
const ALL_EQUAL: &str = "AllEncodingVersionsEqual";

/// The controller.
pub struct StorageVersionGarbageCollector;

/// Whether a Lease is an API server's identity.
fn is_identity(lease: &Lease) -> bool {
    let meta = Object::metadata(lease);
    *meta.namespace == *NAMESPACE && meta.label(IDENTITY.0) == Some(IDENTITY.1)
}

/// The servers that a StorageVersion names, each once.
fn servers(version: &StorageVersion) -> Vec<Str> {
    let entries = version.status.iter().flat_map(|of| &of.storage_versions);
    let mut ids: Vec<Str> = entries
        .map(|entry| Str::from(&*entry.api_server_id))
        .collect();
    ids.sort();
    ids.dedup();
    ids
}

/// The StorageVersions that name a server whose identity has gone.
fn wakes(change: &Change<'_, Lease>, reader: &dyn Reader) -> Vec<Key> {
    let was = change.old.is_some_and(is_identity);
    if !was || change.new.is_some_and(is_identity) {
        return Vec::new();
    }
    let server = &Object::metadata(change.newest()).name;
    let versions = reader.indexed(StorageVersion::resource(), BY_SERVER, server);
    let metas = versions.iter().map(|version| version.metadata());
    metas.map(Key::of_meta).collect()
}

fn live(server: &str) -> Query {
    Query::Live {
        resource: Lease::resource(),
        key: Key::new(NAMESPACE, server),
    }
}

/// The servers for which the cache has no identity.
fn doubtful(version: &StorageVersion, seen: &Snapshot<'_>) -> Vec<Str> {
    let mut ids = servers(version);
    ids.retain(|id| {
        let lease = seen.get::<Lease>(&Key::new(NAMESPACE, id.clone()));
        !lease.is_some_and(|lease| is_identity(&lease))
    });
    ids
}

impl Controller for StorageVersionGarbageCollector {
    type Memory = ();

    fn describe() -> Descriptor {
        Descriptor::new(
            "storageversion-garbage-collector-controller",
            Sharding::ByObject,
        )
        .aliases(&["storage-version-gc"])
        .service_account("storage-version-garbage-collector")
        .queue("storage_version_garbage_collector_storageversions")
        .one_by_one()
        .gate(IDENTITY_GATE, true)
        .gate(API_GATE, false)
        .runs_where(
            |flags| match (flags.bool(IDENTITY_GATE), flags.bool(API_GATE)) {
                (true, true) => Runs::Yes,
                (false, _) => Runs::No("the feature gate APIServerIdentity is off"),
                (_, false) => Runs::No("the feature gate StorageVersionAPI is off"),
            },
        )
        .rule("coordination.k8s.io", "leases", &["get", "list", "watch"])
        .rule(
            "internal.apiserver.k8s.io",
            "storageversions",
            &["get", "list", "watch", "delete"],
        )
        .rule(
            "internal.apiserver.k8s.io",
            "storageversions/status",
            &["patch"],
        )
        .differences(include_str!("differences.md"))
    }

    fn new(_: &Flags) -> Self {
        Self
    }

    fn watch(&self, on: &mut Watches) {
        on.kind::<StorageVersion>()
            .where_served()
            .indexed_by(BY_SERVER, servers)
            .wakes_itself();
        on.kind::<Lease>().wakes(wakes);
    }

    fn ask(&self, key: &Key, seen: &Snapshot<'_>, (): &()) -> Vec<Query> {
        match seen.get::<StorageVersion>(key) {
            Some(version) => doubtful(&version, seen).iter().map(|id| live(id)).collect(),
            None => Vec::new(),
        }
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, (): &mut ()) -> Result<Plan, Refusal> {
        let Some(version) = seen.get::<StorageVersion>(key) else {
            return Ok(Plan::nothing());
        };
        let mut gone = Vec::new();
        for id in doubtful(&version, seen) {
            match seen.answer(&live(&id)) {
                Some(Answer::Object(lease))
                    if lease["metadata"]["labels"][IDENTITY.0] == IDENTITY.1 => {}
                Some(Answer::Object(_) | Answer::Missing) => gone.push(id),
                Some(Answer::NotFound(why) | Answer::Failed(why)) => {
                    return Err(Refusal::Retry(format!(
                        "the Lease {NAMESPACE}/{id} can't be read: {why}"
                    )));
                }
                // It has left the cache since the queries were made.
                None => return Ok(Plan::nothing().requeued_at(seen.now)),
            }
        }
        let mut plan = Plan::nothing();
        if gone.is_empty() {
            return Ok(plan);
        }
        let mut new = (*version).clone();
        let status = new.status.get_or_insert_default();
        let left = &mut status.storage_versions;
        left.retain(|entry| !gone.iter().any(|id| **id == *entry.api_server_id));
        if left.is_empty() {
            plan.delete(&*version, Only::ThisVersion, Propagation::Background);
        } else {
            let generation = Object::metadata(&*version).generation;
            agree(status, generation, Time::from(seen.now));
            if let Some(action) = plan.update_status(&*version, &new) {
                action.reports(StatusWrite::No);
            }
        }
        Ok(plan)
    }
}

/// Sets the common encoding version of all servers, and the condition that shows whether there is one.
fn agree(status: &mut StorageVersionStatus, generation: i64, now: Time) {
    let mut encodings = status
        .storage_versions
        .iter()
        .map(|of| &of.encoding_version);
    let common = encodings.next().cloned();
    let common = common.filter(|first| encodings.all(|other| other == first));
    let before = std::mem::replace(&mut status.common_encoding_version, common.clone());
    let (value, reason, message) = match common {
        Some(_) => (
            "True",
            "CommonEncodingVersionSet",
            "Common encoding version set",
        ),
        None => (
            "False",
            "CommonEncodingVersionUnset",
            "Common encoding version unset",
        ),
    };
    // Another common version is a transition, too.
    let another = before.is_some() && common.is_some() && before != common;
    let mut wanted = StorageVersionCondition {
        r#type: ALL_EQUAL.to_owned(),
        status: value.to_owned(),
        observed_generation: generation,
        last_transition_time: Some(now),
        reason: reason.to_owned(),
        message: message.to_owned(),
    };
    let held = status
        .conditions
        .iter_mut()
        .find(|condition| condition.r#type == ALL_EQUAL);
    match held {
        Some(held) => {
            if held.status == wanted.status && !another {
                wanted.last_transition_time = held.last_transition_time;
            }
            *held = wanted;
        }
        None => status.conditions.push(wanted),
    }
}

#[cfg(test)]
pub(crate) mod tests;
