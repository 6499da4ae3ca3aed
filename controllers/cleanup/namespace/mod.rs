//! Empties a namespace that is being deleted, and then removes its finalizer.
//!
//! Watches namespaces and, to notice the last one, pods; reads what a namespace holds live, resource by
//! resource as discovery shows them; deletes pods first and everything else when they are gone; writes the
//! namespace's conditions and its finalizers; a key per namespace. Nothing is done in the first five
//! seconds, in which API servers that have not seen the deletion may still admit objects. A resource that
//! was seen empty is not read again until everything is; where that took longer than [`EMPTY_FOR`],
//! everything is read once more before the namespace goes, since an aggregated API may have admitted
//! objects meanwhile. Remembers that progress and the failures.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use controllers_kit::{
    Controller, Descriptor, Failure, FlagDefault, Flags, Key, Outcome, Plan, Query, Refusal,
    Severity, Sharding, SignedDuration, Snapshot, Timestamp, Verb, Watches,
};
use kubernetes_proto::{
    Object,
    core::{Namespace, Pod},
};
use serde::{Deserialize, Serialize};

mod plan;
mod status;

/// How long API servers that have not seen the deletion may still admit objects.
const ADMISSION_GRACE: SignedDuration = SignedDuration::from_secs(5);
/// How long a resource that was seen empty is assumed to stay so. Within it, the first one is as certain to
/// be empty at the end as in one pass of upstream's.
const EMPTY_FOR: SignedDuration = SignedDuration::from_secs(10);
/// The longest back-off of a namespace.
const RETRY_MAX: Duration = Duration::from_secs(60);
/// The finalizer that this controller removes.
const FINALIZER: &str = "kubernetes";
const ORDERED: &str = "OrderedNamespaceDeletion";

/// The controller.
pub struct Namespaces {
    ordered: bool,
    resync: SignedDuration,
}

/// The progress of emptying one namespace.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The namespace's uid: a later one of its name starts over.
    uid: String,
    /// Since when it is known to be ending.
    since: Option<Timestamp>,
    /// Resources that were seen empty, as in `pods` and `deployments.apps`. Bound: the resources that are
    /// served.
    emptied: BTreeSet<String>,
    /// When the first of `emptied` was seen so.
    #[serde(default)]
    emptied_since: Option<Timestamp>,
    /// Whether everything is being read once more, after all of it had been seen empty.
    #[serde(default)]
    confirming: bool,
    /// Resources whose `deletecollection` the server does not support, whatever discovery says: their objects
    /// are deleted one by one.
    #[serde(default)]
    one_by_one: BTreeSet<String>,
    /// Resources whose content was deleted, as far as the server has accepted it.
    #[serde(rename = "told")]
    deletion_requested: BTreeSet<String>,
    /// Why the content of a resource could not be deleted.
    errors: BTreeMap<String, String>,
    /// Failures in a row.
    tries: u32,
}

/// A namespace that this controller has something to do for.
fn is_ending(namespace: &Namespace) -> bool {
    let finalizers = namespace.spec.iter().flat_map(|spec| &spec.finalizers);
    namespace.is_terminating() && finalizers.into_iter().any(|name| name == FINALIZER)
}

impl Controller for Namespaces {
    type Memory = Progress;

    fn describe() -> Descriptor {
        Descriptor::new("namespace-controller", Sharding::ByObject)
            .aliases(&["namespace"])
            .service_account("namespace-controller")
            .queue("namespace")
            .retry_max(RETRY_MAX)
            .workers(
                "concurrent-namespace-syncs",
                10,
                "The number of terminating namespaces that each replica handles concurrently.",
            )
            .flag(
                "namespace-sync-period",
                FlagDefault::Duration(Duration::from_secs(300)),
                "The resync period of a terminating namespace.",
            )
            .gate(ORDERED, true)
            .rule("", "namespaces", &["get", "list", "watch", "delete"])
            .rule("", "namespaces/finalize", &["update"])
            .writes_status::<Namespace>()
            .rule("*", "*", &["get", "list", "delete", "deletecollection"])
            .differences(include_str!("differences.md"))
    }

    fn new(flags: &Flags) -> Self {
        Self {
            ordered: flags.bool(ORDERED),
            resync: flags
                .duration("namespace-sync-period")
                .try_into()
                .unwrap_or(SignedDuration::MAX),
        }
    }

    fn watch(&self, on: &mut Watches) {
        on.kind::<Namespace>().wakes(|change, _| match change.new {
            Some(namespace) if namespace.is_terminating() => vec![Key::of(namespace)],
            _ => Vec::new(),
        });
        on.kind::<Pod>().wakes(|change, reader| {
            let (Some(pod), None) = (change.old, change.new) else {
                return Vec::new();
            };
            let name = &Object::metadata(pod).namespace;
            let ending = reader
                .get(Namespace::resource(), "", name)
                .is_some_and(|namespace| namespace.metadata().is_terminating());
            if ending && reader.list(Pod::resource(), Some(name)).is_empty() {
                vec![Key::cluster(name.clone())]
            } else {
                Vec::new()
            }
        });
        on.catalogue();
    }

    fn ask(&self, key: &Key, seen: &Snapshot<'_>, progress: &Progress) -> Vec<Query> {
        match seen
            .get::<Namespace>(key)
            .filter(|namespace| is_ending(namespace))
        {
            Some(namespace) => plan::ask(&namespace, seen, progress, self.ordered),
            None => Vec::new(),
        }
    }

    fn plan(
        &self,
        key: &Key,
        seen: &Snapshot<'_>,
        progress: &mut Progress,
    ) -> Result<Plan, Refusal> {
        let Some(namespace) = seen
            .get::<Namespace>(key)
            .filter(|namespace| is_ending(namespace))
        else {
            *progress = Progress::default();
            return Ok(Plan::nothing());
        };
        if *progress.uid != *Object::metadata(&*namespace).uid {
            *progress = Progress {
                uid: Object::metadata(&*namespace).uid.to_string(),
                since: Some(seen.now),
                ..Progress::default()
            };
        }
        let begins = progress.since.unwrap_or(seen.now) + ADMISSION_GRACE;
        if seen.now < begins {
            return Ok(Plan::nothing().requeued_at(begins));
        }
        let mut plan = plan::plan(&namespace, seen, progress, self.ordered)?;
        plan.requeue_at(seen.now + self.resync);
        Ok(plan)
    }

    fn learn(&self, outcome: &Outcome<'_>, progress: &mut Progress) {
        if !matches!(
            outcome.action.verb,
            Verb::Delete { .. } | Verb::DeleteCollection { .. }
        ) {
            return;
        }
        let resource = outcome.action.resource.id();
        let collection = matches!(outcome.action.verb, Verb::DeleteCollection { .. });
        match outcome.result {
            Err(Failure::NotSupported(_) | Failure::NotFound(_)) if collection => {
                progress.one_by_one.insert(resource);
            }
            // As upstream, an object that can't be deleted alone counts as deleted; the next list shows what
            // became of it.
            Ok(_) | Err(Failure::NotSupported(_) | Failure::NotFound(_) | Failure::Conflict(_)) => {
                progress.deletion_requested.insert(resource);
            }
            Err(failure) if failure.class().severity == Severity::NotTried => {}
            Err(failure) => {
                progress.errors.insert(resource, failure.to_string());
            }
        }
    }
}

#[cfg(test)]
mod tests;
