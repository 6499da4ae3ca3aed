//! When pods that were deleted may be replaced.
//!
//! Upstream reconciles a Job one second (`SyncJobBatchPeriod`) after an event of one of its pods, so a script
//! that deletes a Job's pods and then the Job sees no replacement. Here pod events are reconciled at once;
//! only the replacement of pods that were deleted waits for that second. A change of the spec ends the wait,
//! as upstream reconciles it at once.

use controllers_kit::{Object, SignedDuration, Timestamp};
use kubernetes_proto::core::Pod;
use serde::{Deserialize, Serialize};

/// Upstream's `SyncJobBatchPeriod`.
const BATCH_PERIOD: SignedDuration = SignedDuration::from_secs(1);

/// Memory of a Job's pods by which a deletion is noticed. Losing it at most shortens one wait.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Losses {
    /// The Job's generation as last seen.
    generation: Option<i64>,
    /// The last count of pods that nobody has deleted, plus those created since.
    kept: Option<u32>,
    /// When the first of the pending losses was noticed.
    noticed_at: Option<Timestamp>,
}

impl Losses {
    /// Compares the pods with those of the last plan. Further losses within the second do not extend the
    /// wait.
    pub(super) fn observe<'a>(
        &mut self,
        generation: i64,
        owned: impl Iterator<Item = &'a Pod>,
        now: Timestamp,
    ) {
        let kept = owned.filter(|pod| !pod.is_terminating()).count();
        let kept = u32::try_from(kept).unwrap_or(u32::MAX);
        let is_changed = self.generation != Some(generation);
        let is_lost = self.kept.is_some_and(|before| kept < before);
        self.generation = Some(generation);
        self.kept = Some(kept);
        if self.until(now).is_none() || is_changed {
            self.noticed_at = (is_lost && !is_changed).then_some(now);
        }
    }

    /// A pod was created: the next view has one more.
    pub(super) fn created(&mut self) {
        self.kept = self.kept.map(|count| count.saturating_add(1));
    }

    /// When replacements may be created; `None` if now.
    pub(super) fn until(&self, now: Timestamp) -> Option<Timestamp> {
        // A clock that was set back must not extend it.
        let noticed_at = self.noticed_at.filter(|at| *at <= now)?;
        let end = noticed_at.checked_add(BATCH_PERIOD).ok()?;
        (end > now).then_some(end)
    }

    /// As [`controllers_kit::Controller::shift`].
    pub(super) fn shift(&mut self, by: SignedDuration) {
        self.noticed_at = self.noticed_at.and_then(|at| at.checked_add(by).ok());
    }
}
