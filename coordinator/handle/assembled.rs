//! A coordinator whose clock, sockets and threads are its caller's: in the seeded simulation.

use std::{net::SocketAddr, sync::Arc};

use coordinator_core::{Epoch, Holder, Offer, RangeId};
use futures::future::BoxFuture;
use peer_proto::RangeState;
use tokio::sync::watch;

use super::{ActorAnswers, Handle, Inner, Wiring, began, fence_of, own_renewal, own_status};
use crate::{
    Config, ConfigError, RangeHost,
    actor::Shared,
    lease::Leases,
    peer::{Answers, Calls, Holdings},
    renewal,
    server_fence::Barrier,
};

/// What a coordinator has from outside where [`super::start`] does not see to it: in the seeded simulation.
pub struct Outside {
    /// The incarnation's name; random elsewhere.
    pub incarnation: String,
    /// For Leases.
    pub client: kube::Client,
    /// For the renewal of the replica Lease alone.
    pub renewal_client: kube::Client,
    /// The way to its peers.
    pub peers: Arc<dyn Calls>,
    /// Where its peers find it.
    pub address: SocketAddr,
    /// The Unix second at its start.
    pub second: i64,
}

/// A coordinator on its caller's thread: the same parts as [`super::start`] makes, without sockets and
/// threads.
pub struct Assembled {
    /// As of [`super::start`]; the replica Lease is not held yet, see [`Handle::joined`].
    pub handle: Handle,
    /// What peers say goes in here.
    pub door: Door,
    /// The renewal, to be run.
    pub renewal: BoxFuture<'static, ()>,
}

/// Makes one. To be called where actors can be spawned.
///
/// # Errors
/// Where the configuration cannot work.
pub fn assemble(
    config: &Config,
    host: Arc<dyn RangeHost>,
    outside: Outside,
) -> Result<Assembled, ConfigError> {
    config.validate()?;
    let fence = Arc::new(fence_of(config));
    let shared = Shared::new(config.ranges);
    let barrier = Barrier::new(
        outside.client.clone(),
        &config.replica_name,
        Arc::clone(&config.server_fence),
    );
    let leases = Leases::new(
        outside.client,
        &config.fleet_namespace,
        &config.fleet_name,
        config.lease_duration,
        config.lease_retry_period,
    );
    let status = own_status(config, &*host, outside.address.to_string(), None);
    // The clock may have begun long before this replica.
    let began = began(outside.second, config.clock.now());
    let renewal = own_renewal(config, outside.incarnation, began, status.clone());
    let (thread, task) = renewal::prepare(
        config,
        renewal,
        status.clone(),
        Arc::clone(&fence),
        Arc::clone(&host),
    );
    let (own, hold) = (thread.own.clone(), thread.hold.clone());
    // It never breaks by itself: a simulation drops all of it at once.
    let (stop, broken) = watch::channel(false);
    let peers = Arc::clone(&outside.peers);
    let wiring = Wiring {
        status,
        leases,
        barrier,
        fence: Arc::clone(&fence),
        host,
        peers: outside.peers,
        thread,
        shared: shared.clone(),
        began,
    };
    let (answers, _ended) = wiring.start(config);
    Ok(Assembled {
        handle: Handle(Arc::new(Inner {
            fence,
            shared,
            own,
            hold,
            actor: answers.actor.clone(),
            peers,
            runtime: tokio::runtime::Handle::current(),
            peer_address: outside.address,
            broken,
            _stop: stop,
        })),
        door: Door(answers),
        renewal: task(outside.renewal_client),
    })
}

/// The side of a coordinator that peers speak to, without the wire.
#[derive(Clone)]
pub struct Door(Arc<ActorAnswers>);

impl Door {
    /// A range is offered with its state.
    ///
    /// # Errors
    /// Why it is not taken.
    pub async fn offered(&self, offer: Offer, state: RangeState) -> Result<(), String> {
        let bytes = state
            .controllers
            .iter()
            .map(prost::Message::encoded_len)
            .sum();
        self.0.offered(offer, state, bytes).await
    }

    /// A range's Lease names this replica, says the one before.
    pub async fn swap_announced(&self, from: Holder, range: RangeId, epoch: Epoch) {
        self.0.swap_announced(from, range, epoch).await;
    }

    /// Which of these ranges are held here, and by which incarnation.
    pub async fn holds(&self, ranges: Vec<RangeId>) -> Option<(String, Holdings)> {
        self.0.holds(ranges).await
    }
}
