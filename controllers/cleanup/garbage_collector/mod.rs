//! Deletes objects that have lost their last owner, and completes deletions that wait for their dependents
//! or orphan them.
//!
//! Watches the metadata of everything that discovery shows as deletable, except events; a key per object
//! with something to decide, by its uid, so that the work is spread evenly over all replicas. The graph is
//! what the caches hold, with one index over the owners' uids. Deletes, patches owner references and
//! finalizers of anything.
//!
//! A deleted object was seen to have no owner: each owner was seen to be deleted, or the API server was
//! asked for it. The precondition of a deletion is the version seen; where that was refused, the object is
//! read live, and the next precondition is the version found, if that has the owners that were decided
//! about. An owner is released only when the node has proven that the caches show all its dependents,
//! resource by resource; one that can't be read holds back nobody else. Where the discovery of a group
//! fails, its cached objects still count as dependents, and their owners stay. Remembers whether a key's
//! deletion was refused.

use controllers_kit::{
    Controller, Descriptor, Failure, FlagDefault, Flags, Key, MetricKind, Outcome, Plan, Query,
    Refusal, Runs, Sharding, Snapshot, Verb, Watches,
};
use serde::{Deserialize, Serialize};

mod graph;
mod key;
mod plan;

const FLAG: &str = "enable-garbage-collector";
const SYNC_ERRORS: &str = "garbagecollector_controller_resources_sync_error_total";

/// The controller.
pub struct GarbageCollector;

/// Whether the last deletion was refused because the object had changed.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Refused {
    refused: bool,
}

impl Controller for GarbageCollector {
    type Memory = Refused;

    fn describe() -> Descriptor {
        Descriptor::new("garbage-collector-controller", Sharding::ByObject)
            .aliases(&["garbagecollector"])
            .service_account("generic-garbage-collector")
            .event_source("garbage-collector-controller")
            .queue("garbage_collector_attempt_to_delete")
            .one_by_one()
            .workers(
                "concurrent-gc-syncs",
                20,
                "The number of objects that each replica handles concurrently.",
            )
            .flag(
                FLAG,
                FlagDefault::Bool(true),
                "Whether the garbage collector runs. Must match the API server's flag of the same name.",
            )
            .runs_where(|flags| match flags.bool(FLAG) {
                true => Runs::Yes,
                false => Runs::No("--enable-garbage-collector is false"),
            })
            .metric(
                SYNC_ERRORS,
                MetricKind::Counter,
                &[],
                "Failures of API discovery, whole or of one group.",
            )
            .rule("*", "*", &["get", "list", "watch", "patch", "update", "delete"])
            .differences(include_str!("differences.md"))
    }

    fn new(_: &Flags) -> Self {
        Self
    }

    fn watch(&self, on: &mut Watches) {
        on.discovered(graph::takes_part, graph::wake, Some(SYNC_ERRORS));
    }

    fn ask(&self, key: &Key, seen: &Snapshot<'_>, memory: &Refused) -> Vec<Query> {
        key::object(key, seen.reader())
            .map(|object| plan::ask(&object, seen, memory.refused))
            .unwrap_or_default()
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, memory: &mut Refused) -> Result<Plan, Refusal> {
        let Some(object) = key::object(key, seen.reader()) else {
            *memory = Refused::default();
            return Ok(Plan::nothing());
        };
        let plan = plan::plan(&object, seen, memory.refused)?;
        let deletes = plan
            .actions()
            .any(|action| matches!(action.verb, Verb::Delete { .. }));
        memory.refused &= deletes;
        Ok(plan)
    }

    fn learn(&self, outcome: &Outcome<'_>, memory: &mut Refused) {
        if matches!(outcome.action.verb, Verb::Delete { .. }) {
            memory.refused = matches!(outcome.result, Err(Failure::Conflict(_)));
        }
    }
}

#[cfg(test)]
mod tests;
