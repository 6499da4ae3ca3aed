//! Revisions and the annotations that carry them.

use kubernetes_proto::{
    Object,
    meta::{self, Entry, ObjectMeta},
};

use super::context::{Rollout, Set};

/// The number of the rollout that a ReplicaSet belongs to.
pub(super) const REVISION: &str = "deployment.kubernetes.io/revision";
/// The numbers that it had before, when the Deployment was rolled back to it.
pub(super) const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
/// The replicas that the Deployment asked for when the ReplicaSet was last scaled: distinguishes scaling
/// from a rollout.
pub(super) const DESIRED_REPLICAS: &str = "deployment.kubernetes.io/desired-replicas";
/// The most pods then, surge included: the basis of proportions.
pub(super) const MAX_REPLICAS: &str = "deployment.kubernetes.io/max-replicas";
/// Asks for a rollback, as the field of old API versions did.
pub(super) const ROLLBACK_TO: &str = "deprecated.deployment.rollback.to";

/// Longest history: about a hundred revisions.
const REVISION_HISTORY_LENGTH_MAX: usize = 2000;

/// Annotations that describe one object alone and are not copied between a Deployment and its ReplicaSets.
fn is_private(key: &str) -> bool {
    matches!(
        key,
        "kubectl.kubernetes.io/last-applied-configuration"
            | REVISION
            | REVISION_HISTORY
            | DESIRED_REPLICAS
            | MAX_REPLICAS
            | ROLLBACK_TO
    )
}

/// A ReplicaSet's revision: 0 if it has none, `None` if it is no number.
pub(super) fn of(meta: &ObjectMeta) -> Option<i64> {
    match meta.annotation(REVISION) {
        None => Some(0),
        Some(text) => text.parse().ok(),
    }
}

/// The highest of some ReplicaSets' revisions.
pub(super) fn highest<'a>(sets: impl Iterator<Item = &'a Set>) -> i64 {
    sets.filter_map(|set| of(set.wanted.metadata.as_ref()?))
        .max()
        .unwrap_or(0)
        .max(0)
}

/// The second highest: the target of a rollback that names none. 0 if there is none.
pub(super) fn last_but_one<'a>(sets: impl Iterator<Item = &'a Set>) -> i64 {
    let (mut highest, mut second) = (0, 0);
    for revision in sets.filter_map(|set| of(set.wanted.metadata.as_ref()?)) {
        if revision >= highest {
            second = highest;
            highest = revision;
        } else if revision > second {
            second = revision;
        }
    }
    second
}

/// Brings the annotations of the new ReplicaSet up to date: the Deployment's are copied, the revision rises
/// to at least `revision`, and one that it had before goes into its history.
pub(super) fn annotate_new(set: &mut ObjectMeta, deployment: &ObjectMeta, revision: i64) {
    let before = set.annotation(REVISION).map(str::to_owned);
    let number = match before.as_deref() {
        None | Some("") => 0,
        Some(text) => match text.parse::<i64>() {
            Ok(number) => number,
            // Somebody else's: nothing is touched.
            Err(_) => return,
        },
    };
    for annotation in &deployment.annotations {
        if !is_private(&annotation.key) {
            set.set_annotation(&annotation.key, &annotation.value);
        }
    }
    if number >= revision {
        return;
    }
    set.set_annotation(REVISION, &revision.to_string());
    if let Some(before) = before {
        remember(set, &before);
    }
}

/// Adds a revision to the history, which loses its oldest where it grows too long.
fn remember(set: &mut ObjectMeta, revision: &str) {
    let history = set
        .annotation(REVISION_HISTORY)
        .unwrap_or_default()
        .to_owned();
    if history.starts_with(',') || history.is_empty() {
        set.set_annotation(REVISION_HISTORY, revision);
        return;
    }
    let revisions: Vec<&str> = history.split(',').collect();
    let mut length = history.len() + revision.len() + 1;
    let mut start = 0;
    while length > REVISION_HISTORY_LENGTH_MAX && start < revisions.len() {
        length -= revisions[start].len() + 1;
        start += 1;
    }
    if length <= REVISION_HISTORY_LENGTH_MAX {
        let mut kept = revisions[start..].to_vec();
        kept.push(revision);
        set.set_annotation(REVISION_HISTORY, &kept.join(","));
    }
}

/// Records the Deployment's size, and the most pods with surge.
pub(super) fn annotate_replicas(set: &mut ObjectMeta, desired: i32, most: i32) {
    set.set_annotation(DESIRED_REPLICAS, &desired.to_string());
    set.set_annotation(MAX_REPLICAS, &most.to_string());
}

/// A number recorded on a ReplicaSet; `None` where it is missing or invalid.
pub(super) fn noted(meta: &ObjectMeta, key: &str) -> Option<i32> {
    let text = meta.annotation(key)?;
    // A sign is none of ours.
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())
        .flatten()
}

/// The Deployment's annotations after a rollback to a ReplicaSet: its own private ones and the others of the
/// ReplicaSet, so that a change-cause goes with its template.
pub(super) fn annotations_of_rollback(
    deployment: &ObjectMeta,
    set: Option<&ObjectMeta>,
) -> Vec<Entry> {
    let mut annotations = deployment.annotations.clone();
    if let Some(set) = set {
        annotations.retain(|annotation| is_private(&annotation.key));
        for annotation in &set.annotations {
            if !is_private(&annotation.key) {
                meta::set(&mut annotations, &annotation.key, &annotation.value);
            }
        }
    }
    meta::remove(&mut annotations, ROLLBACK_TO);
    annotations
}

impl Rollout {
    /// The revision of the new ReplicaSet: one more than the highest of the old ones.
    pub fn next_revision(&self) -> i64 {
        highest(self.old().map(|index| &self.sets[index])).saturating_add(1)
    }

    /// The Deployment takes its new ReplicaSet's revision.
    pub fn take_revision(&mut self, revision: &str) {
        let before = self.deployment.metadata().annotation(REVISION);
        self.revision = (before.unwrap_or_default() != revision).then(|| revision.to_owned());
    }
}
