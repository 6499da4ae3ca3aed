//! What is to be read of a namespace that is ending, and what follows from it.

use std::collections::BTreeMap;

use controllers_kit::{
    Answer, Backoff, Entry, Plan, Propagation, Query, Refusal, SignedDuration, Snapshot, Timestamp,
    catalogue::Catalogue, pods,
};
use kubernetes_proto::{
    Object,
    core::{Namespace, Pod},
    meta::ObjectMeta,
};
use serde_json::Value;

use super::{
    ADMISSION_GRACE, EMPTY_FOR, FINALIZER, Progress, RETRY_MAX,
    status::{self, Findings},
};

/// How long finalizers are expected to take.
const FINALIZER_SECONDS: i64 = 15;
/// The wait after failures in a row.
const BACKOFF: Backoff = Backoff {
    max: RETRY_MAX,
    ..Backoff::DEFAULT
};

fn is_pods(entry: &Entry) -> bool {
    entry.resource == Pod::resource()
}

/// The resources of which something may be left.
fn left<'a>(
    catalogue: &'a Catalogue,
    progress: &'a Progress,
    ordered: bool,
) -> impl Iterator<Item = &'a Entry> {
    let left = move |entry: &&Entry| {
        entry.can(&["delete", "list"]) && !progress.emptied.contains(&entry.resource.id())
    };
    let pods_first = ordered
        && catalogue
            .namespaced()
            .any(|entry| is_pods(entry) && left(&entry));
    catalogue
        .namespaced()
        .filter(left)
        .filter(move |entry| !pods_first || is_pods(entry))
}

fn live(namespace: &Namespace) -> Query {
    Query::Live {
        resource: Namespace::resource(),
        key: controllers_kit::Key::of(namespace),
    }
}

fn content(entry: &Entry, namespace: &Namespace) -> Query {
    Query::Content {
        resource: entry.resource,
        namespace: Object::metadata(namespace).name.clone(),
    }
}

/// The namespace itself, and what it still holds.
pub(super) fn ask(
    namespace: &Namespace,
    seen: &Snapshot<'_>,
    progress: &Progress,
    ordered: bool,
) -> Vec<Query> {
    let same = *progress.uid == *Object::metadata(namespace).uid;
    let begins = progress.since.map(|since| since + ADMISSION_GRACE);
    let catalogue = seen.catalogue();
    if !same || begins.is_none_or(|begins| seen.now < begins) || !catalogue.is_known() {
        return Vec::new();
    }
    let mut queries: Vec<Query> = left(&catalogue, progress, ordered)
        .map(|entry| content(entry, namespace))
        .collect();
    queries.push(live(namespace));
    queries
}

/// One reconcile of a namespace that is being deleted.
pub(super) fn plan(
    namespace: &Namespace,
    seen: &Snapshot<'_>,
    progress: &mut Progress,
    ordered: bool,
) -> Result<Plan, Refusal> {
    let catalogue = seen.catalogue();
    if !catalogue.is_known() {
        return Err(Refusal::Retry("discovery was not read yet".to_owned()));
    }
    let object = match seen.answer(&live(namespace)) {
        Some(Answer::Object(object)) => object,
        Some(Answer::Missing | Answer::NotFound(_)) => return Ok(Plan::nothing()),
        Some(Answer::Failed(why)) => {
            return Err(Refusal::Retry(format!(
                "the namespace can't be read: {why}"
            )));
        }
        // The first five seconds ended after the queries were made.
        None => return Ok(Plan::nothing().requeued_at(seen.now)),
    };
    if object["metadata"]["uid"] != *progress.uid {
        return Ok(Plan::nothing());
    }

    let mut context = SyncContext {
        namespace,
        now: seen.now,
        plan: Plan::nothing(),
        findings: Findings::default(),
        estimate: 0,
        issued_deletes: false,
        pods_left: false,
        not_served: 0,
    };
    context.findings.outdated = catalogue.outdated.as_ref().map(ToString::to_string);
    context.findings.discovery = catalogue
        .failures
        .iter()
        .map(|(group_version, why)| format!("{group_version}: {why}"))
        .collect();
    let unfinished: Vec<Entry> = left(&catalogue, progress, ordered).cloned().collect();
    for entry in &unfinished {
        let query = content(entry, namespace);
        if seen.answer(&query) == Some(&Answer::Missing) && !is_pods(entry) {
            // It has nothing now. That is not remembered: an API that is being registered again gives the
            // same answer.
            context.not_served += 1;
            progress.deletion_requested.remove(&entry.resource.id());
            continue;
        }
        context.at(entry, seen.content(&query), progress);
    }
    let errors = std::mem::take(&mut progress.errors);
    context.findings.content_errors.extend(errors.into_values());
    if ordered && context.pods_left {
        context.findings.remaining.clear();
        context.findings.finalizers.clear();
    }
    let left = left(&catalogue, progress, ordered).count() - context.not_served;
    Ok(context.conclude(object, progress, left))
}

/// One reconcile of a namespace, with the plan and findings in the making.
struct SyncContext<'a> {
    namespace: &'a Namespace,
    now: Timestamp,
    plan: Plan,
    findings: Findings,
    /// The estimated seconds until the remaining content is gone; 0 for unknown.
    estimate: i64,
    /// Whether the plan deletes content of a resource for the first time.
    issued_deletes: bool,
    pods_left: bool,
    /// How many resources the server did not find.
    not_served: usize,
}

impl SyncContext<'_> {
    /// What one resource has left in the namespace.
    fn at(
        &mut self,
        entry: &Entry,
        content: Option<Result<Vec<ObjectMeta>, String>>,
        progress: &mut Progress,
    ) {
        let resource = entry.resource;
        let metas = match content {
            Some(Ok(metas)) if metas.is_empty() => {
                progress.deletion_requested.remove(&resource.id());
                progress.emptied.insert(resource.id());
                progress.emptied_since.get_or_insert(self.now);
                return;
            }
            Some(Ok(metas)) => metas,
            Some(Err(why)) => {
                self.findings.content_errors.push(why);
                return;
            }
            // Discovery has shown it since the queries were made.
            None => {
                self.plan.requeue_now();
                return;
            }
        };
        self.pods_left |= is_pods(entry);
        let requested = progress.deletion_requested.contains(&resource.id());
        if metas.iter().any(|meta| !meta.is_terminating()) {
            let one_by_one = progress.one_by_one.contains(&resource.id());
            self.delete_content(entry, &metas, one_by_one);
            self.issued_deletes |= !requested;
        }
        let mut estimate = if is_pods(entry) {
            self.grace(&metas)
        } else {
            0
        };
        let mut finalizers: BTreeMap<&str, usize> = BTreeMap::new();
        for finalizer in metas.iter().flat_map(|meta| &meta.finalizers) {
            *finalizers.entry(finalizer).or_default() += 1;
        }
        if estimate == 0 && !finalizers.is_empty() {
            estimate = FINALIZER_SECONDS;
        } else if estimate == 0 && requested {
            self.findings.content_errors.push(format!(
                "unexpected items still remain in namespace: {} for gvr: {}/{}, Resource={}",
                Object::metadata(self.namespace).name,
                resource.group,
                resource.version,
                resource.plural
            ));
        }
        self.estimate = self.estimate.max(estimate);
        self.findings.remaining.push(format!(
            "{}.{} has {} resource instances",
            resource.plural,
            resource.group,
            metas.len()
        ));
        for (finalizer, count) in finalizers {
            *self
                .findings
                .finalizers
                .entry(finalizer.to_owned())
                .or_default() += count;
        }
    }

    /// Deletes the resource's objects: as a collection, or those that are not terminating one by one.
    fn delete_content(&mut self, entry: &Entry, metas: &[ObjectMeta], one_by_one: bool) {
        let name = &Object::metadata(self.namespace).name;
        if entry.can(&["deletecollection"]) && !one_by_one {
            self.plan
                .delete_collection(entry.resource, name, Propagation::Background);
            return;
        }
        for meta in metas.iter().filter(|meta| !meta.is_terminating()) {
            self.plan
                .delete_by_meta(entry.resource, meta, Propagation::Background);
        }
    }

    /// How long pods may still take, 0 after that time.
    fn grace(&self, metas: &[ObjectMeta]) -> i64 {
        let grace = metas
            .iter()
            .filter_map(|meta| meta.deletion_grace_period_seconds)
            .max()
            .unwrap_or(0);
        let deleted = Object::metadata(self.namespace).deletion_timestamp;
        let over = deleted.is_none_or(|deleted| {
            self.now >= pods::after(deleted.timestamp(), SignedDuration::from_secs(grace))
        });
        if over { 0 } else { grace }
    }

    /// Removes the finalizer, or reports what keeps the namespace and requeues it. `left` resources were
    /// not seen empty.
    fn conclude(mut self, live: &Value, progress: &mut Progress, left: usize) -> Plan {
        let failed = !self.findings.content_errors.is_empty()
            || !self.findings.discovery.is_empty()
            || self.findings.outdated.is_some();
        if !self.findings.remaining.is_empty() {
            progress.confirming = false;
        }
        if self.issued_deletes {
            progress.tries = 0;
            self.plan.requeue_now();
            return self.plan;
        }
        if failed {
            self.write_status();
            progress.tries = progress.tries.saturating_add(1);
            self.plan
                .requeue_at(self.now + BACKOFF.after(progress.tries));
            return self.plan;
        }
        progress.tries = 0;
        let is_fresh = progress
            .emptied_since
            .map_or(progress.emptied.is_empty(), |since| {
                self.now <= since + EMPTY_FOR
            });
        if left == 0 && (is_fresh || progress.confirming) {
            self.finalize(live);
        } else if left == 0 {
            progress.emptied.clear();
            progress.emptied_since = None;
            progress.confirming = true;
            self.plan.requeue_now();
        } else if self.findings.remaining.is_empty() && !self.pods_left {
            // The pods have gone: now the rest.
            self.plan.requeue_now();
        } else {
            self.write_status();
            let wait = SignedDuration::from_secs(self.estimate / 2 + 1);
            self.plan.requeue_at(pods::after(self.now, wait));
        }
        self.plan
    }

    fn write_status(&mut self) {
        let new = status::of(self.namespace, &self.findings, self.now);
        self.plan.update_status(self.namespace, &new);
    }

    /// Removes this controller's finalizer: with the last one the API server removes the namespace.
    fn finalize(&mut self, live: &Value) {
        let mut body = live.clone();
        if let Some(finalizers) = body["spec"]["finalizers"].as_array_mut() {
            finalizers.retain(|finalizer| finalizer != FINALIZER);
        }
        let others = body["spec"]["finalizers"]
            .as_array()
            .is_some_and(|finalizers| !finalizers.is_empty());
        if others || !Object::metadata(self.namespace).finalizers.is_empty() {
            // It stays for a while: its status has to show that this part is done.
            self.plan.replace(self.namespace, "finalize", body);
            self.plan.then();
            let new = status::of(self.namespace, &self.findings, self.now);
            if let Some(action) = self.plan.update_status(self.namespace, &new) {
                action.whatever_version();
            }
        } else {
            self.plan.replace(self.namespace, "finalize", body);
        }
    }
}
