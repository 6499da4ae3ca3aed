//! A Job as one sync sees it: its spec with the API's defaults, its pods, and how it ends.

use std::{collections::BTreeSet, sync::Arc};

use controllers_kit::{Timestamp, conditions, names};
use kubernetes_proto::{
    Object, Str,
    batch::{Job, JobCondition, JobSpec, JobStatus},
    core::Pod,
};

use super::{
    Counters,
    backoff::Record,
    indexes::{self, Indexes},
    orphans, policies,
};

pub(super) const INDEXED: &str = "Indexed";

pub(super) const NON_INDEXED: &str = "NonIndexed";

/// A Job's spec with the API's defaults.
pub(super) struct Wanted<'a> {
    pub spec: &'a JobSpec,
    pub parallelism: i64,
    pub completions: Option<i32>,
    pub backoff_limit: i32,
    /// `backoffLimitPerIndex`, of indexed Jobs.
    pub per_index: Option<i32>,
    pub indexed: bool,
    pub suspended: bool,
    /// Pods are replaced when they have ended, not when they begin to terminate.
    pub only_failed: bool,
}

impl<'a> Wanted<'a> {
    pub(super) fn of(spec: &'a JobSpec) -> Self {
        Self {
            spec,
            parallelism: i64::from(spec.parallelism.unwrap_or(1)),
            completions: spec.completions,
            backoff_limit: spec.backoff_limit.unwrap_or(6),
            per_index: spec.backoff_limit_per_index,
            indexed: spec.completion_mode.as_deref() == Some(INDEXED),
            suspended: spec.suspend == Some(true),
            only_failed: spec.pod_replacement_policy.as_deref() == Some("Failed")
                || spec.pod_failure_policy.is_some(),
        }
    }

    /// As metrics name it.
    pub(super) fn mode(&self) -> &'static str {
        if self.indexed { INDEXED } else { NON_INDEXED }
    }

    /// Completions of an indexed Job, which always has a number of them.
    pub(super) fn index_count(&self) -> i32 {
        self.completions.unwrap_or(0)
    }

    /// Whether a pod counts as failed.
    pub(super) fn has_failed(&self, pod: &Pod) -> bool {
        match phase(pod) {
            "Failed" => true,
            "Succeeded" => false,
            // A terminating pod may never report that it has failed.
            _ => !self.only_failed && pod.is_terminating(),
        }
    }

    /// Whether a failed pod counts against the limit.
    pub(super) fn verdict(&self, pod: &Pod) -> policies::Verdict {
        policies::judge(self.spec.pod_failure_policy.as_ref(), pod)
    }
}

pub(super) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().map_or("", |status| &status.phase)
}

/// Why a Job is finished, and whether it succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finish {
    pub success: bool,
    pub reason: String,
    pub message: String,
    /// Whether the status already has the interim condition.
    pub reported: bool,
}

impl Finish {
    pub(super) fn failure(reason: &str, message: impl Into<String>) -> Self {
        Self {
            success: false,
            reason: reason.to_owned(),
            message: message.into(),
            reported: false,
        }
    }
}

/// A Job, its pods, and what is made of them.
pub(super) struct JobSync<'a> {
    pub job: &'a Job,
    pub wanted: Wanted<'a>,
    pub now: Timestamp,
    /// All pods that it owns and selects, in order of index and name.
    pub pods: Vec<Arc<Pod>>,
    pub active: Vec<Arc<Pod>>,
    /// Uids that were counted before, by a live read.
    pub settled: BTreeSet<Str>,
    /// The status as it is, the list of uncounted pods never none.
    pub before: JobStatus,
    pub succeeded: i64,
    pub failed: i64,
    pub succeeded_before: Indexes,
    pub succeeded_indexes: Indexes,
    /// Of Jobs with a limit per index.
    pub failed_indexes: Option<Indexes>,
    /// For each index the failed pod that is kept until it is replaced, because it records how often the
    /// index has failed.
    pub kept: std::collections::BTreeMap<i64, Arc<Pod>>,
    pub backoff: Record,
    /// The PodGroup that new pods are scheduled with.
    pub group: Option<Str>,
    /// Until when deleted pods are not replaced.
    pub losses_until: Option<Timestamp>,
    pub terminating: i64,
    pub ready: i64,
}

impl JobSync<'_> {
    /// Whether a pod waits to be counted.
    pub(super) fn is_tracked(&self, pod: &Pod) -> bool {
        orphans::is_tracked(pod) && !self.settled.contains(&Object::metadata(pod).uid)
    }

    /// Whether a pod is counted: an indexed Job ignores pods beyond its indexes.
    pub(super) fn is_valid(&self, pod: &Pod) -> bool {
        !self.wanted.indexed || indexes::valid(pod, self.wanted.index_count()).is_some()
    }
}

/// The counters of a status.
pub(super) fn counters(status: &JobStatus) -> Counters {
    let mut text = String::new();
    if let Some(uncounted) = &status.uncounted_terminated_pods {
        let lists = [(&uncounted.succeeded, "+"), (&uncounted.failed, "-")];
        for (uids, sign) in lists {
            for uid in uids {
                text.push_str(sign);
                text.push_str(uid);
            }
        }
    }
    Counters {
        succeeded: status.succeeded,
        failed: status.failed,
        uncounted: if text.is_empty() {
            0
        } else {
            names::hash(text.as_bytes())
        },
    }
}

pub(super) fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Sets a condition in place; a false one is not added where there is none. Whether the list has changed.
pub(super) fn ensure(conditions: &mut Vec<JobCondition>, new: JobCondition) -> bool {
    let is_first = conditions::find(conditions, &new.r#type).is_none();
    if is_first && new.status == "False" {
        return false;
    }
    conditions::set(conditions, new, conditions::Policy::Restamp)
}
