//! The revision of the present template: found, numbered, made; and the old ones.

use std::sync::Arc;

use controllers_kit::{
    Key, Only, PatchKind, Plan, Propagation, Refusal, Snapshot, StatusWrite, names,
    selectors::Selector,
};
use kubernetes_proto::{
    Object,
    apps::{ControllerRevision, DaemonSet},
    core::Pod,
    meta,
};
use serde_json::json;

use super::context::spec;
use crate::revisions::{self, Known, REVISION_LABEL};

/// The result of comparing the template with the ControllerRevisions.
pub(super) struct History {
    /// The label of pods of the present template.
    pub hash: String,
    /// Revisions of other templates.
    pub old: Vec<Arc<ControllerRevision>>,
    /// How often names have collided; `None` where that has not changed.
    pub collisions: Option<i32>,
}

/// Whether the present template's data is known without a live read: only from memory of these very bytes.
/// A revision's number does not make it the present one: the highest may be an older one whose successor
/// was deleted, or one that was adopted later.
pub(super) fn is_known(
    set: &DaemonSet,
    revisions: &[Arc<ControllerRevision>],
    known: &Known,
) -> bool {
    known.template == revisions::template_hash(spec(set).template.as_ref())
        && revisions.iter().any(|revision| is_current(revision, known))
}

fn is_current(revision: &ControllerRevision, known: &Known) -> bool {
    names::hash(revisions::data(revision)) == known.data
        || *revision.metadata().uid == *known.equivalent
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
    seen: &Snapshot<'_>,
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
    let (current, old): (Vec<_>, Vec<_>) = revisions
        .iter()
        .cloned()
        .partition(|revision| is_current(revision, known));
    let number = old
        .iter()
        .map(|revision| revision.revision)
        .max()
        .unwrap_or(0)
        .saturating_add(1);
    let Some(kept) = current.last() else {
        let data = live.expect("a template without a revision was read live");
        let lost = lost_hash(set, revisions, pods);
        let (hash, collisions) = create(plan, set, selector, data, (number, lost), seen);
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
                plan.patch(pod.as_ref(), "", PatchKind::Merge, patch, StatusWrite::No);
            }
        }
        // Only when every pod has the label of the revision that stays.
        plan.then();
        for twin in &current[..current.len() - 1] {
            plan.counted::<ControllerRevision>(&set.metadata().namespace, selector);
            plan.delete(twin.as_ref(), Only::ThisUid, Propagation::Background);
        }
    }
    if kept.revision < number {
        let patch = json!({"revision": number});
        plan.patch(kept.as_ref(), "", PatchKind::Merge, patch, StatusWrite::No);
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

/// Revisions from before the label existed get it.
fn label(plan: &mut Plan, revisions: &[Arc<ControllerRevision>]) {
    for revision in revisions {
        let meta = revision.metadata();
        if meta.label(REVISION_LABEL).is_none() {
            let patch = json!({"metadata": {"labels": {REVISION_LABEL: meta.name}}});
            // The plan's other writes to it must not conflict with that.
            plan.patch(
                revision.as_ref(),
                "",
                PatchKind::Merge,
                patch,
                StatusWrite::No,
            )
            .whatever_version();
        }
    }
}

/// The hash of the present template's revision where that was deleted: the one that living pods carry and
/// no revision has, provided that the status counts updated pods of the present generation. The revision is
/// recreated under its former hash, whichever implementation computed it, so no pod is mistaken for an
/// outdated one.
fn lost_hash(
    set: &DaemonSet,
    revisions: &[Arc<ControllerRevision>],
    pods: &[Arc<Pod>],
) -> Option<String> {
    let status = set.status.as_ref()?;
    let generation = set.metadata().generation;
    if generation == 0
        || status.observed_generation != generation
        || status.updated_number_scheduled <= 0
    {
        return None;
    }
    let mut hashes: Vec<&str> = pods
        .iter()
        .filter(|pod| !pod.is_terminating())
        .filter_map(|pod| pod.metadata().label(REVISION_LABEL))
        .filter(|hash| {
            revisions
                .iter()
                .all(|revision| hash_of(revision) != *hash && *revision.metadata().name != **hash)
        })
        .collect();
    hashes.sort_unstable();
    hashes.dedup();
    // With several candidates none can be chosen. A label may hold what no name can.
    match hashes[..] {
        [one] if fits_a_name(one) => Some(one.to_owned()),
        _ => None,
    }
}

/// Whether a label's value may end an object's name.
fn fits_a_name(value: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    value.bytes().all(|byte| is_plain(byte) || byte == b'-')
        && value.bytes().next().is_some_and(is_plain)
        && value.bytes().last().is_some_and(is_plain)
}

/// Plans the creation of the present template's revision, under `lost`, the hash that it had, if it is known.
fn create(
    plan: &mut Plan,
    set: &DaemonSet,
    selector: &Selector,
    data: Vec<u8>,
    (number, mut lost): (i64, Option<String>),
    seen: &Snapshot<'_>,
) -> (String, Option<i32>) {
    let meta = set.metadata();
    let before = set
        .status
        .as_ref()
        .and_then(|status| status.collision_count);
    let mut collisions = before;
    loop {
        let is_lost = lost.is_some();
        let hash = lost
            .take()
            .unwrap_or_else(|| revisions::name_hash(&data, collisions.unwrap_or(0)));
        let name = names::with_hash(&meta.name, &hash);
        let key = Key::new(meta.namespace.clone(), name.as_str());
        // It is not one of the set's own, or it would have been found.
        if seen.get::<ControllerRevision>(&key).is_some() {
            if !is_lost {
                collisions = Some(collisions.unwrap_or(0).wrapping_add(1));
            }
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

/// Deletes revisions that no pod has, oldest first, down to the history limit.
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
