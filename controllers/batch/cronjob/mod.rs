//! Starts a Job at each time that a CronJob's schedule names, and deletes old ones.
//!
//! Watches cronjobs and jobs; creates and deletes jobs; writes the CronJob's status; a key per CronJob. A
//! Job's name is the CronJob's with the minute of its time, so no time is run twice, whichever replica runs
//! it. Children are the Jobs whose controller has the CronJob's *name*, as upstream has it. `status.active`
//! is written when the Job is seen: its uid is not known before.
//!
//! A schedule that names no time zone is read in the zone of the host, as Go finds it (`$TZ`, else
//! `/etc/localtime`, else UTC): the node passes it in ([`Flags::local_zone`]). All replicas of a fleet should
//! have the same one.
//!
//! Remembers which events it has recorded, so as not to repeat them in every reconcile, and the schedule,
//! because a changed one begins with its next time and not with one that it would have missed.

mod plan;
mod schedule;

use controllers_kit::{
    Controller, Descriptor, Flags, Key, MetricKind, Plan, Query, Refusal, Said, Sharding, Snapshot,
    Timestamp, Watches,
};
use jiff::tz::TimeZone;
use kubernetes_proto::batch::{CronJob, Job};
use serde::{Deserialize, Serialize};

/// The cronjob controller.
pub struct CronJobs {
    /// The zone of schedules that name none.
    local: TimeZone,
}

/// What the controller remembers of one CronJob.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// Which events were recorded: at most one for each kind of event and each unexpected Job.
    #[serde(rename = "told")]
    pub said: Said,
    /// Schedule and zone, as last seen.
    pub schedule: Option<String>,
    /// The version of the CronJob in which its schedule was changed; 0 for none.
    pub changed_in: u64,
    /// `status.lastScheduleTime`, as last seen.
    pub last_run: Option<Timestamp>,
    /// Nothing is started before this time, because the schedule was changed.
    pub not_before: Option<Timestamp>,
}

const SKEW: &str = "cronjob_controller_job_creation_skew_duration_seconds";

impl Controller for CronJobs {
    type Memory = Memory;

    fn describe() -> Descriptor {
        Descriptor::new("cronjob-controller", Sharding::ByObject)
            .aliases(&["cronjob"])
            .queue("cronjob")
            .workers(
                "concurrent-cron-job-syncs",
                5,
                "The number of cron job objects that are allowed to sync concurrently. Larger number = more responsive \
                 jobs, but more CPU (and network) load",
            )
            .reads_live::<CronJob>()
            .writes_status::<CronJob>()
            .blocks_owner_deletion::<CronJob>()
            .rule(
                "batch",
                "jobs",
                &["get", "list", "watch", "create", "delete"],
            )
            .metric(
                SKEW,
                MetricKind::Histogram(1.0, 2.0, 10),
                &[],
                "Time between when a cronjob is scheduled to be run, and when the corresponding job is created",
            )
            .differences(include_str!("differences.md"))
    }

    fn new(flags: &Flags) -> Self {
        Self {
            local: flags.local_zone(),
        }
    }

    fn watch(&self, on: &mut Watches) {
        on.kind::<CronJob>().wakes_itself();
        on.kind::<Job>()
            .wakes_controller::<CronJob>()
            .indexed_by(plan::CHILDREN, plan::child_of);
    }

    fn ask(&self, key: &Key, seen: &Snapshot<'_>, memory: &Memory) -> Vec<Query> {
        plan::ask(key, seen, memory, &self.local)
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, memory: &mut Memory) -> Result<Plan, Refusal> {
        plan::plan(key, seen, memory, &self.local)
    }
}

#[cfg(test)]
mod tests;
