//! Runs a Job's pods to completion: the wanted number of successes, bounded parallelism, no failure counted
//! twice.
//!
//! Watches jobs and pods and, with the gate WorkloadWithJob, workloads and podgroups. Adopts orphan pods that
//! a Job selects and releases those that it no longer selects; creates and deletes pods; takes the finalizer
//! `batch.kubernetes.io/job-tracking` off pods that are counted, and off those whose Job is gone, has
//! finished, or that have no owner at all; writes the Job's status. A key per Job, and one per pod without an
//! owner that still carries the finalizer.
//!
//! **Counting is a transaction over several objects.** A pod that has ended is counted in three writes,
//! each of which waits for the one before: its uid goes to `status.uncountedTerminatedPods`; its finalizer
//! goes; its uid leaves the list and the counter grows by one. A replica that stops in between leaves a
//! state from which any other can continue. The third write belongs to the next plan, which is not made
//! before the cache has seen the second: a pod without finalizer is then the proof that the second has
//! happened.
//!
//! The hazard is a fresh Job beside old pods: a pod that was counted long ago would appear uncounted. The
//! controller knows its view to be complete while nothing has ever been counted, or while it has itself
//! written the counters that it sees ([`Memory::counters`]): nobody else can have removed a finalizer
//! without changing them. In every other case each pod that would be counted again is read live first.
//!
//! Within a plan pods are created or deleted first, so that the status can say how many there are, then the
//! status is written, then finalizers are removed. Where a creation or deletion failed the last time, it
//! comes last: a quota must not keep ended pods from being counted.
//!
//! Remembers the failures since the last success, for the back-off, what proves its view, and how many pods
//! there were, to notice that some were deleted. All travel with the key.

mod backoff;
mod context;
mod indexes;
mod losses;
mod manage;
mod orphans;
mod plan;
mod policies;
mod track;
mod workload;

use std::time::Duration;

use controllers_kit::{
    Controller, Descriptor, Flags, Key, MetricKind, MetricSpec, Outcome, Plan, Query, Refusal,
    Sharding, SignedDuration, Snapshot, Timestamp, Verb, Watches, owners,
};
use kubernetes_proto::{
    Object,
    batch::Job,
    core::Pod,
    scheduling::{PodGroup, Workload},
};
use serde::{Deserialize, Serialize};

/// What keeps a pod until it is counted.
pub(crate) const TRACKING: &str = "batch.kubernetes.io/job-tracking";

/// Delay after the first failed sync of a Job: upstream's `DefaultJobApiBackOff`.
const RETRY_FIRST: Duration = Duration::from_secs(1);
/// Longest delay after failed syncs: upstream's `MaxJobApiBackOff`. Nothing else wakes a Job when a quota
/// is raised.
const RETRY_MAX: Duration = Duration::from_mins(1);

/// The job controller.
#[derive(Default)]
pub struct Jobs {
    gates: Gates,
}

/// Feature gates that upstream's controller reads and does not lock.
#[derive(Clone, Copy, Debug)]
struct Gates {
    /// Whether suspending a Job resets `status.startTime`, so that its scheduling directives can be changed.
    mutable_scheduling_directives: bool,
    /// Whether Jobs whose pods are scheduled all or none get a Workload and a PodGroup.
    workload: bool,
}

impl Default for Gates {
    fn default() -> Self {
        Self {
            mutable_scheduling_directives: true,
            workload: false,
        }
    }
}

/// The API group of Workloads and PodGroups.
const SCHEDULING: &str = "scheduling.k8s.io";
const MUTABLE_SCHEDULING_DIRECTIVES: &str = "MutableSchedulingDirectivesForSuspendedJobs";

/// The counters of a status, by which another writer's counting is noticed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// `status.succeeded`.
    pub succeeded: i32,
    /// `status.failed`.
    pub failed: i32,
    /// The uids of those not counted yet, hashed.
    pub uncounted: u64,
}

/// What the controller remembers of one Job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// The counters that this controller has written, with all their predecessors.
    pub counters: Option<Counters>,
    /// Those that the present plan writes.
    pub counters_pending: Option<Counters>,
    /// Failures since the last success; `None`: to be derived from the pods that are left.
    pub backoff: Option<backoff::Record>,
    /// Those that the present plan counts in.
    pub backoff_pending: Option<backoff::Record>,
    /// When pods were last counted.
    pub counted_at: Option<Timestamp>,
    /// Pods that were deleted: their replacement waits a second.
    pub losses: losses::Losses,
    /// Whether the last creation or deletion of pods has failed.
    pub manage_failed: bool,
    /// Whether an event or metric has reported why nothing is done.
    #[serde(rename = "told")]
    pub reported: bool,
}

/// Its metrics, named as upstream names them.
const METRICS: &[MetricSpec] = &[
    MetricSpec::new(
        SYNCS,
        MetricKind::Counter,
        &["completion_mode", "result", "action"],
        "The number of job syncs",
    ),
    MetricSpec::new(
        SYNC_SECONDS,
        MetricKind::Histogram(0.004, 2.0, 15),
        &["completion_mode", "result", "action"],
        "The time it took to sync a job",
    ),
    MetricSpec::new(
        JOBS_FINISHED,
        MetricKind::Counter,
        &["completion_mode", "result", "reason"],
        "The number of finished jobs",
    ),
    MetricSpec::new(
        PODS_FINISHED,
        MetricKind::Counter,
        &["completion_mode", "result"],
        "The number of finished Pods that are fully tracked",
    ),
    MetricSpec::new(
        BY_FAILURE_POLICY,
        MetricKind::Counter,
        &["action"],
        "The number of failed Pods handled by failure policy, by the action of the rule that matched",
    ),
    MetricSpec::new(
        WITH_FINALIZER,
        MetricKind::Counter,
        &["event"],
        "The number of terminated pods (phase=Failed|Succeeded) that have the finalizer \
                 batch.kubernetes.io/job-tracking; the event label is \"add\" or \"delete\"",
    ),
    MetricSpec::new(
        INDEXES_FINISHED,
        MetricKind::Counter,
        &["status", "backoffLimit"],
        "The number of finished indexes",
    ),
    MetricSpec::new(
        PODS_CREATED,
        MetricKind::Counter,
        &["reason", "status"],
        "The number of Pods created by the Job controller, by the reason for their creation",
    ),
    MetricSpec::new(
        EXTERNAL,
        MetricKind::Counter,
        &["controller_name"],
        "The number of Jobs managed by an external controller",
    ),
];

impl Controller for Jobs {
    type Memory = Memory;

    fn describe() -> Descriptor {
        Descriptor::new("job-controller", Sharding::ByObject)
            .aliases(&["job"])
            .queue("job")
            .retry_first(RETRY_FIRST)
            .retry_max(RETRY_MAX)
            .workers(
                "concurrent-job-syncs",
                5,
                "The number of job objects that are allowed to sync concurrently. Larger number = more responsive \
                 jobs, but more CPU (and network) load",
            )
            .gate(MUTABLE_SCHEDULING_DIRECTIVES, true)
            .gate(workload::GATE, false)
            .reads_live::<Job>()
            .writes_status::<Job>()
            .blocks_owner_deletion::<Job>()
            .rule(
                "",
                "pods",
                &["get", "list", "watch", "create", "patch", "delete"],
            )
            .rule(SCHEDULING, "workloads", &["list", "watch", "create"])
            .rule(SCHEDULING, "podgroups", &["list", "watch", "create"])
            .metrics(METRICS)
            .differences(include_str!("differences.md"))
    }

    fn new(flags: &Flags) -> Self {
        Self {
            gates: Gates {
                mutable_scheduling_directives: flags.bool(MUTABLE_SCHEDULING_DIRECTIVES),
                workload: flags.bool(workload::GATE),
            },
        }
    }

    fn watch(&self, on: &mut Watches) {
        on.kind::<Job>().wakes_itself().wakes(orphans::left_by);
        on.kind::<Pod>()
            .wakes_controller::<Job>()
            .wakes(orphans::itself)
            .wakes(|change, reader| {
                owners::adopters::<Job, Pod>(change, reader, |job| {
                    job.spec.as_ref()?.selector.as_ref()
                })
            })
            .indexed_by(owners::ORPHANS, owners::orphan_in)
            .indexed_by(orphans::TRACKED, orphans::tracked_for)
            .indexed_by(orphans::LOST, orphans::lost_in);
        if self.gates.workload {
            on.kind::<Workload>()
                .where_served()
                .indexed_by(workload::BY_JOB, workload::by_job)
                .wakes(workload::wakes);
            on.kind::<PodGroup>()
                .where_served()
                .indexed_by(workload::BY_WORKLOAD, workload::by_workload)
                .wakes_controller::<Job>();
        }
    }

    fn ask(&self, key: &Key, seen: &Snapshot<'_>, memory: &Memory) -> Vec<Query> {
        plan::ask(key, seen, memory)
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, memory: &mut Memory) -> Result<Plan, Refusal> {
        plan::plan(self.gates, key, seen, memory)
    }

    fn shift(&self, memory: &mut Memory, by: SignedDuration) {
        // The back-off's instants are the API's own.
        memory.counted_at = memory.counted_at.and_then(|at| at.checked_add(by).ok());
        memory.losses.shift(by);
    }

    fn learn(&self, outcome: &Outcome<'_>, memory: &mut Memory) {
        let action = outcome.action;
        match (&action.verb, &outcome.result) {
            // A delayed status was not written: its version shows that.
            (_, Ok(written)) if action.resource == Job::resource() => {
                if written.resource_version != 0 {
                    memory.counters = memory.counters_pending.take();
                    if let Some(backoff) = memory.backoff_pending.take() {
                        memory.backoff = Some(backoff);
                    }
                }
            }
            // Nothing of the Job itself was written or has failed: its Workload or PodGroup.
            _ if action.resource != Pod::resource() && action.resource != Job::resource() => {}
            (Verb::Create { .. }, Ok(_)) => memory.losses.created(),
            (Verb::Patch { .. }, _) | (_, Ok(_)) => {}
            (_, Err(failure)) => {
                memory.manage_failed |= !failure.is_inconclusive() && !action.is_done(failure);
            }
        }
    }
}

const SYNCS: &str = "job_controller_job_syncs_total";
const SYNC_SECONDS: &str = "job_controller_job_sync_duration_seconds";
const JOBS_FINISHED: &str = "job_controller_jobs_finished_total";
const PODS_FINISHED: &str = "job_controller_job_pods_finished_total";
const BY_FAILURE_POLICY: &str = "job_controller_pod_failures_handled_by_failure_policy_total";
const WITH_FINALIZER: &str = "job_controller_terminated_pods_tracking_finalizer_total";
const INDEXES_FINISHED: &str = "job_controller_job_finished_indexes_total";
const PODS_CREATED: &str = "job_controller_job_pods_creation_total";
const EXTERNAL: &str = "job_controller_jobs_by_external_controller_total";

#[cfg(test)]
mod tests;
