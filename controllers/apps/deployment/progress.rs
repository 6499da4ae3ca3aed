//! Whether a rollout gets on, and since when it does not.

use controllers_kit::{
    Plan, SignedDuration, Timestamp,
    conditions::{self, Policy},
    pods,
};
use kubernetes_proto::apps::{DeploymentCondition, DeploymentStatus};

use super::context::{Rollout, Set};

pub(super) const PROGRESSING: &str = "Progressing";
const REPLICA_FAILURE: &str = "ReplicaFailure";

const NEW_AVAILABLE: &str = "NewReplicaSetAvailable";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
const PAUSED: &str = "DeploymentPaused";
const RESUMED: &str = "DeploymentResumed";
pub(super) const CREATE_FAILED: &str = "ReplicaSetCreateError";

/// A condition as of now.
pub(super) fn new_condition(
    r#type: &str,
    status: &str,
    reason: &str,
    message: impl Into<String>,
    now: Timestamp,
) -> DeploymentCondition {
    DeploymentCondition {
        r#type: r#type.to_owned(),
        status: status.to_owned(),
        last_update_time: Some(now.into()),
        last_transition_time: Some(now.into()),
        reason: reason.to_owned(),
        message: message.into(),
    }
}

/// The condition of a type.
pub(super) fn condition<'a>(
    status: &'a DeploymentStatus,
    r#type: &str,
) -> Option<&'a DeploymentCondition> {
    conditions::find(&status.conditions, r#type)
}

/// Sets a condition as upstream's `SetDeploymentCondition` does.
pub(super) fn set_condition(
    conditions: &mut Vec<DeploymentCondition>,
    condition: DeploymentCondition,
) {
    conditions::set(conditions, condition, Policy::Replace);
}

impl Rollout {
    /// Reports pause and resumption, so that a paused time does not count as lack of progress. A rollout
    /// that was reported as timed out stays so.
    pub fn note_pause(&mut self) {
        let reason = condition(&self.status, PROGRESSING).map(|condition| &*condition.reason);
        if self.progress_deadline_seconds().is_none() || reason == Some(TIMED_OUT) {
            return;
        }
        let was_paused = reason == Some(PAUSED);
        let (reason, message) = match (self.spec().paused, was_paused) {
            (true, false) => (PAUSED, "Deployment is paused"),
            (false, true) => (RESUMED, "Deployment is resumed"),
            (true, true) | (false, false) => return,
        };
        let condition = new_condition(PROGRESSING, "Unknown", reason, message, self.now);
        set_condition(&mut self.status.conditions, condition);
    }

    /// The status after a failed creation of the new ReplicaSet: `None` where that is reported already, or
    /// without a progress deadline.
    pub fn status_of_failed_create(&self, name: &str, message: &str) -> Option<DeploymentStatus> {
        self.progress_deadline_seconds()?;
        let mut status = self.deployment.status.clone().unwrap_or_default();
        let is_reported = condition(&status, PROGRESSING)
            .is_some_and(|condition| condition.reason == CREATE_FAILED);
        let condition = new_condition(
            PROGRESSING,
            "False",
            CREATE_FAILED,
            format!("Failed to create new replica set {name:?}: {message}"),
            self.now,
        );
        set_condition(&mut status.conditions, condition);
        (!is_reported).then_some(status)
    }

    /// The status of a rollout, with an estimate of its progress.
    pub fn rollout_status(&self) -> DeploymentStatus {
        let mut status = self.counted_status();
        if self.progress_deadline_seconds().is_none() {
            conditions::remove(&mut status.conditions, PROGRESSING);
        }
        let current = condition(&self.status, PROGRESSING).cloned();
        // A complete rollout is not estimated again: this is a resync, or scaling.
        let is_through = status.replicas == status.updated_replicas
            && current
                .as_ref()
                .is_some_and(|condition| condition.reason == NEW_AVAILABLE);
        if self.progress_deadline_seconds().is_some() && !is_through {
            self.estimate(&mut status, current);
        }
        match self.replica_failure() {
            Some(failure) => set_condition(&mut status.conditions, failure),
            None => {
                conditions::remove(&mut status.conditions, REPLICA_FAILURE);
            }
        }
        status
    }

    fn estimate(&self, status: &mut DeploymentStatus, current: Option<DeploymentCondition>) {
        let subject = match self.new_set() {
            Some(set) => format!("ReplicaSet {:?}", set.name()),
            None => format!("Deployment {:?}", self.name()),
        };
        if self.is_complete(Some(status)) {
            let condition = new_condition(
                PROGRESSING,
                "True",
                NEW_AVAILABLE,
                format!("{subject} has successfully progressed."),
                self.now,
            );
            set_condition(&mut status.conditions, condition);
        } else if self.has_progressed(status) {
            let mut condition = new_condition(
                PROGRESSING,
                "True",
                "ReplicaSetUpdated",
                format!("{subject} is progressing."),
                self.now,
            );
            // Written again even with an unchanged reason: the deadline counts from its update.
            if let Some(current) = current
                && current.status == "True"
            {
                condition.last_transition_time = current.last_transition_time;
            }
            conditions::remove(&mut status.conditions, PROGRESSING);
            status.conditions.push(condition);
        } else if self.has_timed_out(status) {
            let condition = new_condition(
                PROGRESSING,
                "False",
                TIMED_OUT,
                format!("{subject} has timed out progressing."),
                self.now,
            );
            set_condition(&mut status.conditions, condition);
        }
    }

    /// More pods updated, ready or available than last reported, or fewer old ones.
    pub fn has_progressed(&self, status: &DeploymentStatus) -> bool {
        let before = &self.status;
        let old =
            |status: &DeploymentStatus| status.replicas.saturating_sub(status.updated_replicas);
        status.updated_replicas > before.updated_replicas
            || old(status) < old(before)
            || status.ready_replicas > before.ready_replicas
            || status.available_replicas > before.available_replicas
    }

    /// Whether the deadline has passed since the last progress.
    pub fn has_timed_out(&self, status: &DeploymentStatus) -> bool {
        let Some(deadline) = self.deadline(status) else {
            return false;
        };
        condition(status, PROGRESSING).is_some_and(|condition| match &*condition.reason {
            // The last rollout went well; the next one will set the condition.
            NEW_AVAILABLE => false,
            TIMED_OUT => true,
            _ => deadline < self.now,
        })
    }

    /// When a rollout without further progress times out.
    fn deadline(&self, status: &DeploymentStatus) -> Option<Timestamp> {
        let seconds = self.progress_deadline_seconds()?;
        let last = pods::instant(condition(status, PROGRESSING)?.last_update_time)
            .unwrap_or(Timestamp::UNIX_EPOCH);
        last.checked_add(SignedDuration::from_secs(seconds.into()))
            .ok()
    }

    /// Requeues a rollout that is in progress for its deadline: nothing else may wake the key then.
    pub fn requeue_at_deadline(&self, plan: &mut Plan, status: &DeploymentStatus) {
        let is_open = condition(status, PROGRESSING)
            .is_some_and(|condition| !matches!(&*condition.reason, TIMED_OUT | NEW_AVAILABLE));
        if !is_open || self.is_complete(Some(status)) {
            return;
        }
        // One second more: the deadline must have passed, not just been reached.
        if let Some(at) = self
            .deadline(status)
            .and_then(|deadline| deadline.checked_add(SignedDuration::from_secs(1)).ok())
            .filter(|at| *at > self.now)
        {
            plan.requeue_at(at);
        }
    }

    /// The failure of the new ReplicaSet to create its pods, else that of an old one.
    fn replica_failure(&self) -> Option<DeploymentCondition> {
        let failure =
            |set: &Set| conditions::find(&set.status().conditions, REPLICA_FAILURE).cloned();
        let failure = self
            .new_set()
            .and_then(failure)
            .or_else(|| self.sets.iter().find_map(failure))?;
        Some(DeploymentCondition {
            r#type: failure.r#type,
            status: failure.status,
            last_update_time: failure.last_transition_time,
            last_transition_time: failure.last_transition_time,
            reason: failure.reason,
            message: failure.message,
        })
    }
}
