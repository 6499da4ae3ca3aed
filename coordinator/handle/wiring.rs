//! A coordinator's parts, put together: on a thread of its own in the product, on its caller's in the seeded
//! simulation.

use std::{sync::Arc, time::Duration};

use actix::Actor;
use coordinator_core::{Core, Pin, Renewal, RenewalConfig, Status};
use tokio::sync::oneshot;

use super::{ActorAnswers, watch_leases};
use crate::{
    Config, Fence, RangeHost, ServerFenceMode,
    actor::{Coordinator, Shared},
    lease::Leases,
    peer::Calls,
    renewal::RenewalThread,
    server_fence::Barrier,
    sweep,
};

/// Handoffs under way at once, in each direction a replica may send.
const MOVES_AT_ONCE: usize = 8;

/// How long writes in flight may take when a range is frozen.
const FREEZE_BUDGET: Duration = Duration::from_secs(2);

/// The same while the replica leaves, after which the range goes with the writes named: a write takes a few
/// milliseconds, some hundred on a busy server, and one that a webhook holds up must not hold up the range's
/// other keys.
pub(super) const DRAIN_BUDGET: Duration = Duration::from_millis(500);

/// What a replica says of itself when it starts.
pub(super) fn own_status(
    config: &Config,
    host: &dyn RangeHost,
    address: String,
    pin: Option<Pin>,
) -> Status {
    Status {
        address,
        pin,
        build: config.version.clone(),
        ready: host.ready(),
        draining: false,
        stale: false,
        ranges: config.ranges,
        server_fenced: config.server_fence.announces(),
        pod: config.pod.as_str().into(),
        follows: config.follows(),
        ..Status::default()
    }
}

/// The second since 1970 in which a clock began that shows `now`.
pub(crate) fn began(second: i64, now: Duration) -> i64 {
    second.saturating_sub(i64::try_from(now.as_secs()).unwrap_or(0))
}

/// The renewal of the replica's own Lease; `began` as by [`began`].
pub(super) fn own_renewal(
    config: &Config,
    incarnation: String,
    began: i64,
    status: Status,
) -> Renewal {
    let config = RenewalConfig {
        name: config.replica_name.clone(),
        incarnation,
        lease_duration: config.lease_duration,
        renew_deadline: config.lease_renew_deadline,
        retry_period: config.lease_retry_period,
        epoch_second: config.slow_start_from(began),
        deaths_from: Some(began),
        gone: config.gone.clone(),
    };
    Renewal::new(config, status)
}

/// The parts of one coordinator.
pub(super) struct Wiring {
    /// As the replica has announced itself.
    pub(super) status: Status,
    pub(super) leases: Leases,
    pub(super) barrier: Barrier,
    pub(super) fence: Arc<Fence>,
    pub(super) host: Arc<dyn RangeHost>,
    pub(super) peers: Arc<dyn Calls>,
    pub(super) thread: RenewalThread,
    pub(super) shared: Shared,
    /// The second since 1970 in which the fence's clock began.
    pub(super) began: i64,
}

impl Wiring {
    /// The core, the actor that drives it and the watch of Leases, on the caller's thread. The receiver ends
    /// with the actor.
    pub(super) fn start(self, config: &Config) -> (Arc<ActorAnswers>, oneshot::Receiver<()>) {
        let core = Core::new(coordinator_core::Config {
            name: config.replica_name.clone(),
            address: self.status.address,
            pin: self.status.pin,
            pod: config.pod.as_str().into(),
            build: config.version.clone(),
            ranges: config.ranges,
            lease_duration: config.lease_duration,
            late_write_max: config.late_write_max(),
            retry_period: config.lease_retry_period,
            settle_time: config.settle_time,
            expected_replicas: config.expected_replicas,
            moves_at_once: MOVES_AT_ONCE,
            freeze_budget: FREEZE_BUDGET,
            drain_budget: DRAIN_BUDGET,
            bars: config.server_fence.mode() != ServerFenceMode::Off,
            slow_start: config.slow_start_period,
            epoch_second: self.began,
            records_deaths: true,
            plans: config.load_aware_placement,
        });
        let (fence, shared) = (self.fence, self.shared);
        let own = self.thread.own.clone();
        let asked = Arc::clone(&self.host);
        let (alive, ended) = oneshot::channel();
        let actor = Coordinator::new(
            core,
            self.leases.clone(),
            self.barrier.clone(),
            Arc::clone(&fence),
            self.host,
            self.peers,
            self.thread,
            shared.clone(),
            alive,
        )
        .start();
        let clock = Arc::clone(&fence);
        actix::spawn(self.barrier.keep(move || clock.now()));
        let clock = Arc::clone(&fence);
        actix::spawn(sweep::sweep(self.leases.clone(), move || clock.now()));
        actix::spawn(watch_leases(
            self.leases,
            actor.clone(),
            fence,
            config.lease_retry_period,
        ));
        let answers = Arc::new(ActorAnswers {
            actor,
            host: asked,
            shared,
            own,
        });
        (answers, ended)
    }
}
