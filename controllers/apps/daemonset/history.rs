//! The revision of the present template: found, numbered, made; and the old ones.

use std::sync::Arc;

use controllers_kit::{
    Key, Only, PatchKind, Plan, Propagation, Refusal, Report, Seen, names, selectors::Selector,
};
use kubernetes_proto::{
    Object,
    apps::{ControllerRevision, DaemonSet},
    core::Pod,
    meta,
};
use serde_json::json;

use super::plan::spec;
use crate::revisions::{self, Known, REVISION_LABEL};

/// What the history comes to.
pub(super) struct History {
    /// The label of pods of the present template.
    pub hash: String,
    /// Revisions of other templates.
    pub old: Vec<Arc<ControllerRevision>>,
    /// How often names have collided; `None` where that has not changed.
    pub collisions: Option<i32>,
}

/// Whether the present template's data is known without a live read.
pub(super) fn is_known(
    set: &DaemonSet,
    revisions: &[Arc<ControllerRevision>],
    known: &mut Known,
) -> bool {
    let template = revisions::template_hash(spec(set).template.as_ref());
    let generation = set.metadata().generation;
    let is_observed = generation != 0
        && set
            .status
            .as_ref()
            .is_some_and(|status| status.observed_generation == generation);
    // An owner that was stopped may have made one late, of an older template, under the number that was next for it, too.
    let highest = revisions.last().filter(|last| {
        let mut others = revisions.iter().rev().skip(1);
        others.all(|other| other.revision < last.revision)
    });
    if let (true, Some(last)) = (is_observed, highest) {
        // The status was written for the very template that is there now, and its revision got the highest number.
        known.template = template;
        known.data = names::hash(revisions::data(last));
        known.equivalent = last.metadata().uid.to_string();
        return true;
    }
    let is_there = |revision: &Arc<ControllerRevision>| {
        names::hash(revisions::data(revision)) == known.data
            || *revision.metadata().uid == *known.equivalent
    };
    known.template == template && revisions.iter().any(is_there)
}

/// Brings the history up to date. `revisions` stand in order.
///
/// # Errors
/// Where the DaemonSet had to be read live, and was not.
pub(super) fn settle(
    plan: &mut Plan,
    set: &DaemonSet,
    selector: &Selector,
    revisions: &[Arc<ControllerRevision>],
    pods: &[Arc<Pod>],
    known: &mut Known,
    seen: &Seen<'_>,
) -> Result<History, Refusal> {
    let mut live = None;
    if !is_known(set, revisions, known) {
        let data = revisions::live_data(set, seen)?;
        known.template = revisions::template_hash(spec(set).template.as_ref());
        known.data = names::hash(&data);
        known.equivalent.clear();
        if let Some(last) = revisions.last()
            && revisions::data(last) != data
            && revisions::are_equivalent(&data, revisions::data(last))
        {
            known.equivalent = last.metadata().uid.to_string();
        }
        live = Some(data);
    }
    label(plan, revisions);
    let (current, old): (Vec<_>, Vec<_>) = revisions.iter().cloned().partition(|revision| {
        names::hash(revisions::data(revision)) == known.data
            || *revision.metadata().uid == *known.equivalent
    });
    let number = old
        .iter()
        .map(|revision| revision.revision)
        .max()
        .unwrap_or(0)
        + 1;
    let Some(kept) = current.last() else {
        let data = live.expect("a template without a revision was read live");
        let (hash, collisions) = create(plan, set, selector, data, number, seen);
        return Ok(History {
            hash,
            old,
            collisions,
        });
    };
    let hash = hash_of(kept).to_owned();
    if current.len() > 1 {
        for pod in pods {
            if pod.metadata().label(REVISION_LABEL) != Some(&hash) {
                let patch = json!({"metadata": {"labels": {REVISION_LABEL: hash}}});
                plan.patch(pod.as_ref(), "", PatchKind::Merge, patch, Report::No);
            }
        }
        // Only when every pod has the label of the one that stays.
        plan.then();
        for twin in &current[..current.len() - 1] {
            plan.counted::<ControllerRevision>(&set.metadata().namespace, selector);
            plan.delete(twin.as_ref(), Only::ThisUid, Propagation::Background);
        }
    }
    if kept.revision < number {
        let patch = json!({"revision": number});
        plan.patch(kept.as_ref(), "", PatchKind::Merge, patch, Report::No);
    }
    Ok(History {
        hash,
        old,
        collisions: None,
    })
}

/// The label of a revision's pods: its own, or, where it has none yet, its name.
fn hash_of(revision: &ControllerRevision) -> &str {
    let meta = revision.metadata();
    meta.label(REVISION_LABEL).unwrap_or(&meta.name)
}

/// Revisions from before there was the label get it.
fn label(plan: &mut Plan, revisions: &[Arc<ControllerRevision>]) {
    for revision in revisions {
        let meta = revision.metadata();
        if meta.label(REVISION_LABEL).is_none() {
            let patch = json!({"metadata": {"labels": {REVISION_LABEL: meta.name}}});
            // What else is written to it in this plan must not be stopped by that.
            plan.patch(revision.as_ref(), "", PatchKind::Merge, patch, Report::No)
                .whatever_version();
        }
    }
}

fn create(
    plan: &mut Plan,
    set: &DaemonSet,
    selector: &Selector,
    data: Vec<u8>,
    number: i64,
    seen: &Seen<'_>,
) -> (String, Option<i32>) {
    let meta = set.metadata();
    let before = set
        .status
        .as_ref()
        .and_then(|status| status.collision_count);
    let mut collisions = before;
    loop {
        let hash = revisions::name_hash(&data, collisions.unwrap_or(0));
        let name = names::with_hash(&meta.name, &hash);
        let key = Key::new(meta.namespace.clone(), name.as_str());
        // It is not one of the set's own, or it would have been found.
        if seen.get::<ControllerRevision>(&key).is_some() {
            collisions = Some(collisions.unwrap_or(0) + 1);
            continue;
        }
        let mut new = revisions::new(set, &name, data, number);
        let template = spec(set)
            .template
            .as_ref()
            .and_then(|template| template.metadata.as_ref());
        let labels = &mut new.metadata_mut().labels;
        *labels = template.map(|meta| meta.labels.clone()).unwrap_or_default();
        meta::set(labels, REVISION_LABEL, &hash);
        plan.counted::<ControllerRevision>(&meta.namespace, selector);
        plan.create(&new);
        return (hash, collisions.filter(|_| collisions != before));
    }
}

/// Old revisions that no pod is of go, the oldest first, until only so many are left as the history may have.
pub(super) fn truncate(
    plan: &mut Plan,
    set: &DaemonSet,
    selector: &Selector,
    old: &[Arc<ControllerRevision>],
    pods: &[Arc<Pod>],
) {
    let limit = usize::try_from(spec(set).revision_history_limit.unwrap_or(10)).unwrap_or(0);
    let surplus = old.len().saturating_sub(limit);
    let is_idle = |revision: &&Arc<ControllerRevision>| {
        pods.iter()
            .all(|pod| pod.metadata().label(REVISION_LABEL) != Some(hash_of(revision)))
    };
    for revision in old.iter().filter(is_idle).take(surplus) {
        plan.counted::<ControllerRevision>(&set.metadata().namespace, selector);
        plan.delete(revision.as_ref(), Only::ThisUid, Propagation::Background);
    }
}
