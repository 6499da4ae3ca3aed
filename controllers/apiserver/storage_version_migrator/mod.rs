//! Has every object of a resource stored again, so that all of them are in the API server's present storage
//! version and encryption.
//!
//! Watches storageversionmigrations; patches their status, and the status of the customresourcedefinition
//! of the migrated resource; applies an empty patch to every object of it ([`PatchKind::Rewrite`]). A key
//! per resource, since one migration of a resource runs at a time: the oldest. Steps: the condition
//! `Running`, the resourceVersion of the resource, all pages of a live list that is at least as new, the
//! condition `Succeeded` or `Failed`, and finally `Running` becomes false.
//!
//! Invariant: `Succeeded` is written only when each object that a list of the whole resource has shown, not
//! newer than the recorded resourceVersion, was stored again, has changed meanwhile or is gone. The list is
//! read page by page from the API server, the first page consistently. What was written after the recorded
//! version was stored in the new form.
//!
//! Remembers the page and the progress within it. Without that memory the list starts over: objects that
//! were already rewritten are newer by then, and an empty apply changes nothing in an object that is in the
//! new form.
//!
//! [`PatchKind::Rewrite`]: controllers_kit::PatchKind::Rewrite

use controllers_kit::{
    Change, Controller, Descriptor, Failure, FlagDefault, Flags, Key, Outcome, Plan, Query,
    Refusal, Runs, Sharding, Snapshot, Str, Watches,
};
use kubernetes_proto::storagemigration::{GroupResource, StorageVersionMigration};
use serde::{Deserialize, Serialize};

mod definition;
mod plan;
mod status;

const GATE: &str = "StorageVersionMigrator";
const INFORMER_GATE: &str = "InformerResourceVersion";
/// The garbage collector's flag, which upstream requires.
const COLLECTOR: &str = "enable-garbage-collector";
/// In whose name objects are stored again.
const MANAGER: &str = "storage-version-migrator-controller";
/// The kind of its keys, which are named `<resource>.<group>`.
const KIND: &str = "resource";
/// The index of migrations by what they migrate.
const BY_RESOURCE: &str = "migrated resource";
/// The most characters of a failure's reason that are kept.
const FAILURE_CHARS_MAX: usize = 4096;

/// The controller.
pub struct StorageVersionMigrator;

/// How far the migration of a resource has come.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Progress {
    /// The migration's uid: another one starts with the first page.
    migration: String,
    /// The token of the page that is worked on; empty for the first.
    token: String,
    /// What is known of that page, once it was read.
    page: Option<Opened>,
    /// Why the migration can't succeed.
    failure: Option<String>,
}

/// A page that was read.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Opened {
    /// The token of the next page; empty for none.
    next: String,
    /// Objects of the page that must still be rewritten.
    left: usize,
}

/// Where a migration is to continue.
#[derive(Debug, PartialEq, Eq)]
enum Place<'a> {
    /// At the page of a token.
    Page(&'a str),
    /// Behind the last page.
    End,
    /// Nowhere: it has failed.
    Failed(&'a str),
}

impl Progress {
    fn place(&self, migration: &str) -> Place<'_> {
        if *self.migration != *migration {
            return Place::Page("");
        }
        if let Some(why) = &self.failure {
            return Place::Failed(why);
        }
        match &self.page {
            Some(page) if page.left == 0 && page.next.is_empty() => Place::End,
            Some(page) if page.left == 0 => Place::Page(&page.next),
            // An unfinished page is repeated from its start.
            Some(_) | None => Place::Page(&self.token),
        }
    }

    fn begin(&mut self, migration: &str) {
        *self = Self {
            migration: migration.to_owned(),
            ..Self::default()
        };
    }
}

/// The name of a resource's key.
fn name_of(resource: &GroupResource) -> String {
    match resource.group.is_empty() {
        true => resource.resource.clone(),
        false => format!("{}.{}", resource.resource, resource.group),
    }
}

/// The resource of a migration, by the name of its key.
fn migrated(migration: &StorageVersionMigration) -> Vec<Str> {
    let resource = migration
        .spec
        .as_ref()
        .and_then(|spec| spec.resource.as_ref());
    resource.map(|of| name_of(of).into()).into_iter().collect()
}

fn wakes(change: &Change<'_, StorageVersionMigration>) -> Vec<Key> {
    let mut names: Vec<Str> = change.both().flat_map(migrated).collect();
    names.dedup();
    let keys = names.into_iter().map(|name| Key::composite(KIND, name));
    keys.collect()
}

/// Whether a refusal to rewrite an object is final. Others may differ the next time.
fn is_final(failure: &Failure) -> bool {
    match failure {
        Failure::Forbidden(_)
        | Failure::Invalid(_)
        | Failure::NotFound(_)
        | Failure::NotSupported(_) => true,
        Failure::Conflict(_)
        | Failure::AlreadyExists(_)
        | Failure::NamespaceTerminating(_)
        | Failure::Timeout(_)
        | Failure::Other(_)
        | Failure::Skipped
        | Failure::Fenced => false,
    }
}

impl Controller for StorageVersionMigrator {
    type Memory = Progress;

    fn describe() -> Descriptor {
        Descriptor::new("storage-version-migrator-controller", Sharding::ByObject)
            .aliases(&["svm"])
            .one_by_one()
            .workers_fixed(5)
            .client_rate(20, 100)
            .gate(GATE, false)
            .gate(INFORMER_GATE, true)
            .flag(
                COLLECTOR,
                FlagDefault::Bool(true),
                "Whether the garbage collector runs. Must match the API server's flag of the same name.",
            )
            .runs_where(|flags| {
                if !flags.bool(GATE) {
                    Runs::No("the feature gate StorageVersionMigrator is off")
                } else if !flags.bool(INFORMER_GATE) {
                    Runs::No("the feature gate InformerResourceVersion is off")
                } else if !flags.bool(COLLECTOR) {
                    Runs::Wrong("storage version migrator requires garbage collector".to_owned())
                } else {
                    Runs::Yes
                }
            })
            .rule_live("*", "*", &["list", "create", "patch"])
            .rule(
                "apiextensions.k8s.io",
                "customresourcedefinitions",
                &["get"],
            )
            .rule(
                "apiextensions.k8s.io",
                "customresourcedefinitions/status",
                &["patch"],
            )
            .rule(
                "storagemigration.k8s.io",
                "storageversionmigrations",
                &["list", "watch"],
            )
            .rule(
                "storagemigration.k8s.io",
                "storageversionmigrations/status",
                &["patch"],
            )
            .differences(include_str!("differences.md"))
    }

    fn new(_: &Flags) -> Self {
        Self
    }

    fn watch(&self, on: &mut Watches) {
        on.kind::<StorageVersionMigration>()
            .where_served()
            .indexed_by(BY_RESOURCE, migrated)
            .wakes(|change, _| wakes(change));
        on.catalogue();
    }

    fn ask(&self, key: &Key, seen: &Snapshot<'_>, progress: &Progress) -> Vec<Query> {
        match key.of_kind(KIND) {
            Some(name) => plan::ask(name, seen, progress),
            None => Vec::new(),
        }
    }

    fn plan(
        &self,
        key: &Key,
        seen: &Snapshot<'_>,
        progress: &mut Progress,
    ) -> Result<Plan, Refusal> {
        match key.of_kind(KIND) {
            Some(name) => plan::plan(name, seen, progress),
            None => Ok(Plan::nothing()),
        }
    }

    fn learn(&self, outcome: &Outcome<'_>, progress: &mut Progress) {
        if !outcome.action.is_rewrite() {
            return;
        }
        match outcome.result {
            Ok(_) => {
                if let Some(page) = &mut progress.page {
                    page.left = page.left.saturating_sub(1);
                }
            }
            Err(failure) if is_final(failure) => {
                let why = || {
                    failure
                        .to_string()
                        .chars()
                        .take(FAILURE_CHARS_MAX)
                        .collect()
                };
                progress.failure.get_or_insert_with(why);
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
