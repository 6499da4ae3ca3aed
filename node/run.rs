//! The whole process, from options to the end: what is started in which order, and how it is taken down.

use std::{sync::Arc, time::Duration};

use controllers_kit::Factory;
use coordinator::{Config, Handle, Happening, RangeHost};
use node_cache::{Api, Observe, Purpose};

use crate::{
    actors::host::LateFence,
    api_server::ApiServer,
    credentials::Credentials,
    metrics::{Direction, Metrics},
    node::{Node, Parts},
    options::{FleetOptions, Options, PeerTransport},
    registry,
};

/// How often gauges that nobody pushes are looked at.
const GAUGES: Duration = Duration::from_secs(1);
/// How often it is looked whether all caches are complete.
const READY_POLL: Duration = Duration::from_millis(20);

/// Why the process ends with an error: what, and the remedy, in one line.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub String);

/// Says an error with all its causes in one line.
fn chain(error: &dyn std::error::Error) -> Error {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    Error(text)
}

/// The controllers that the options name.
fn enabled(options: &Options) -> Vec<Factory> {
    registry::all()
        .into_iter()
        .filter(|factory| options.controllers.contains(&(factory.describe)().name))
        .collect()
}

fn coordinator_config(fleet: &FleetOptions) -> Config {
    let mut config = Config {
        replica_name: fleet.replica.clone(),
        fleet_name: fleet.fleet.clone(),
        fleet_namespace: fleet.namespace.clone(),
        ranges: fleet.ranges,
        lease_duration: fleet.lease_duration,
        lease_renew_deadline: fleet.renew_deadline,
        lease_retry_period: fleet.retry_period,
        settle_time: fleet.settle_time,
        expected_replicas: fleet
            .expected_replicas
            .map(|count| u16::try_from(count).unwrap_or(u16::MAX)),
        peer_bind_address: fleet.peer_address.ip(),
        peer_port: fleet.peer_address.port(),
        peer_advertise_address: fleet.peer_advertised.clone(),
        ..Config::default()
    };
    match &fleet.peer_transport {
        PeerTransport::Tls {
            cert_file,
            key_file,
            ca_file,
        } => {
            config.peer_tls_cert_file = Some(cert_file.clone());
            config.peer_tls_private_key_file = Some(key_file.clone());
            config.peer_ca_file = Some(ca_file.clone());
        }
        PeerTransport::Insecure => config.peer_insecure = true,
        PeerTransport::Off => {
            // Nobody is to reach this replica: it listens to itself alone, and handoffs to it fail.
            config.peer_insecure = true;
            config.peer_bind_address = std::net::Ipv4Addr::LOCALHOST.into();
            config.peer_port = 0;
            config.peer_advertise_address = String::new();
        }
    }
    config
}

/// Follows what happens to ownership: one log line and the metrics for each.
async fn follow(handle: Handle, metrics: Arc<Metrics>) {
    let mut happenings = handle.happenings();
    loop {
        match happenings.recv().await {
            Ok(happening) => tell(&happening, &metrics),
            Err(tokio::sync::broadcast::error::RecvError::Lagged(missed)) => {
                tracing::warn!(
                    missed,
                    "too many changes of ownership at once to tell of each"
                );
            }
            Err(tokio::sync::broadcast::error::RecvError::Closed) => return,
        }
    }
}

fn tell(happening: &Happening, metrics: &Metrics) {
    match happening {
        Happening::Joined { incarnation } => tracing::info!(%incarnation, "joined the fleet"),
        Happening::Fenced => {
            tracing::warn!(
                "the own Lease could not be renewed in time: nothing is written until it is"
            );
        }
        Happening::Reopened { closed } => {
            tracing::info!(?closed, "the own Lease is renewed: writing again")
        }
        Happening::SelfEvicted {
            incarnation,
            ranges,
        } => tracing::warn!(
            %incarnation,
            ranges = ranges.len(),
            "this replica was evicted or its Lease deleted; it comes back with nothing"
        ),
        Happening::Evicted { holder, silent } => {
            tracing::warn!(replica = ?holder, ?silent, "evicted a replica that has not renewed");
            metrics.taken_over(*silent);
        }
        Happening::TookOver { range, epoch, from } => {
            tracing::info!(range, epoch, from = ?from, "took a range over");
        }
        Happening::Received { range, epoch, from } => {
            tracing::debug!(range, epoch, ?from, "received a range");
        }
        Happening::HandedOver {
            range,
            epoch,
            to,
            took,
        } => {
            tracing::debug!(range, epoch, ?to, ?took, "handed a range over");
            metrics.handed_off(Direction::Out, *took);
        }
        Happening::HandoffFailed { range, to, why } => {
            tracing::warn!(
                range,
                ?to,
                why,
                "a handoff did not happen; the range goes on here"
            );
        }
        Happening::Deprived { range, epoch, by } => {
            tracing::warn!(
                range,
                epoch,
                ?by,
                "a range Lease names another without a handoff; it is dropped here"
            );
        }
        Happening::Dropped { ranges } => tracing::warn!(
            ranges = ranges.len(),
            "the time to leave was over; what could not be handed over is left to the others"
        ),
    }
}

async fn gauges(node: Arc<Node>, handle: Handle) {
    let mut tick = tokio::time::interval(GAUGES);
    loop {
        tick.tick().await;
        let metrics = &node.shared.metrics;
        metrics.fence_open(!handle.fence().remaining().is_zero());
        for (resource, stats) in node.cache.all_stats() {
            let cache = metrics.cache(&resource.id());
            cache.objects(stats.objects);
            cache.bytes(stats.approximate_bytes);
            if let Some(age) = stats.age {
                cache.lag(age);
            }
        }
    }
}

/// Runs until SIGTERM, SIGINT or a fatal error. To be called within an actix system.
///
/// # Errors
/// With one line that says what is wrong and what to do.
pub async fn run(options: Options, config: kube::Config) -> Result<(), Error> {
    let metrics = Metrics::new(&registry::descriptors());
    let observe: Option<Arc<dyn Observe>> = None;
    let connect =
        |purpose| Api::connect(&config, purpose, observe.clone()).map_err(|error| chain(&error));
    let writes = connect(Purpose::Writes)?;
    let watches = connect(Purpose::Watches)?;
    connect(Purpose::Leases)?;
    let anonymous = Api::connect_anonymous(&config, Purpose::Writes, observe.clone())
        .map_err(|error| chain(&error))?;
    let fence = Arc::new(LateFence::default());
    let node = Arc::new(Node::start(Parts {
        replica: options.fleet.replica.clone(),
        ranges: options.fleet.ranges,
        controllers: enabled(&options),
        flags: options.flags.clone(),
        watches,
        server: Arc::new(ApiServer::new(writes, anonymous, Arc::new(Credentials))),
        rate: (options.client.qps.unwrap_or(0.0), options.client.burst),
        fence: Arc::clone(&fence) as Arc<dyn crate::gate::Fence>,
        metrics: Arc::clone(&metrics),
    }));

    let leases = config.clone();
    let clients = Arc::new(move || {
        Api::connect(&leases, Purpose::Leases, None)
            .expect("the same configuration connected before")
            .kube()
    });
    let host = Arc::clone(&node.host) as Arc<dyn RangeHost>;
    let handle = coordinator::start(coordinator_config(&options.fleet), host, clients)
        .await
        .map_err(|error| chain(&error))?;
    fence.set(handle.fence());
    actix::spawn(follow(handle.clone(), Arc::clone(&metrics)));
    actix::spawn(gauges(Arc::clone(&node), handle.clone()));
    let looking = Arc::clone(&node);
    actix::spawn(async move {
        while !looking.look_if_ready() {
            tokio::time::sleep(READY_POLL).await;
        }
    });

    let ended = tokio::select! {
        fatal = handle.fatal() => Err(chain(&fatal)),
        () = signalled() => Ok(()),
    };
    if ended.is_ok() {
        tracing::info!("asked to end: handing over");
        let drained = handle.drain(options.controller_shutdown_timeout).await;
        tracing::info!(
            released = drained.released,
            dropped = drained.dropped.len(),
            "handed over"
        );
    }
    ended
}

/// SIGTERM or SIGINT.
async fn signalled() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut term), Ok(mut int)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        tracing::error!("signals can't be listened to; the process ends only by being killed");
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}
