//! Controllers of batch work.

use controllers_kit::Factory;

pub mod cronjob;
pub mod job;
pub mod ttl_after_finished;

/// All controllers of this group.
pub const REGISTRY: &[Factory] = &[
    Factory::of::<ttl_after_finished::TtlAfterFinished>(),
    Factory::of::<job::Jobs>(),
    Factory::of::<cronjob::CronJobs>(),
];
