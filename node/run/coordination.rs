//! How the process takes part in its fleet.

use std::sync::OnceLock;

use coordinator::{Config, Gone, InFlightMark};
use node_options::{FleetOptions, PeerTransport};

use crate::{
    ending,
    lock::{self, Left, Note, Taken},
    termination,
};

/// How this process takes part, and what others and its successor will know it by: its container's
/// termination message, and the lock.
pub(super) fn coordination(fleet: &FleetOptions) -> Config {
    let mut config = coordinator_config(fleet);
    let path = &fleet.termination_message;
    if let Err(error) = termination::begin(path, std::process::id(), &config.process) {
        tracing::warn!(
            path = %path.display(), %error,
            "no termination message can be written: should this process crash, others wait for --lease-duration"
        );
    }
    if let Some(directory) = &fleet.lock_dir {
        let (late, process) = (config.late_write_max(), &config.process);
        match lock::take(directory, &fleet.fleet, &fleet.replica, process, late) {
            Ok(Some(Taken { left, note })) => {
                config.gone = Some(gone(left, &config));
                config.mark = note.map(mark);
            }
            Err(why) => tracing::warn!(
                "{why}; until then, should this process crash, the next one waits for --lease-duration"
            ),
            Ok(None) => tracing::warn!(
                replica = fleet.replica,
                directory = %directory.display(),
                "another process has this replica's lock: if it ends, its Lease is waited for as any other"
            ),
        }
    }
    config
}

/// Processes that have ended by now, as a lock says.
pub(super) fn gone(left: Left, config: &Config) -> Gone {
    Gone {
        processes: left.processes,
        by: config.clock.now(),
        still: left.still,
        late: left.late.max(config.late_write_max()),
    }
}

/// Notes in the lock file whether anything of this process is in flight.
fn mark(note: Note) -> InFlightMark {
    let failed = OnceLock::new();
    InFlightMark::new(move |in_flight| {
        let noted = note.set(in_flight);
        if let Err(error) = &noted
            && failed.set(()).is_ok()
        {
            tracing::error!(%error, "--lock-dir: the lock file cannot be written any more");
        }
        noted.is_ok()
    })
}

pub(super) fn coordinator_config(fleet: &FleetOptions) -> Config {
    let mut config = Config {
        replica_name: fleet.replica.clone(),
        fleet_name: fleet.fleet.clone(),
        fleet_namespace: fleet.namespace.clone(),
        ranges: fleet.ranges,
        lease_duration: fleet.lease_duration,
        lease_renew_deadline: fleet.renew_deadline,
        lease_retry_period: fleet.retry_period,
        settle_time: fleet.settle_time,
        slow_start_period: fleet.slow_start_period,
        load_aware_placement: fleet.load_aware_placement,
        pod: fleet.pod.clone(),
        abort: ending::abort,
        interlock: fleet.interlock.clone(),
        expected_replicas: fleet
            .expected_replicas
            .map(|count| u16::try_from(count).unwrap_or(u16::MAX)),
        peer_bind_address: fleet.peer_address.ip(),
        peer_port: fleet.peer_address.port(),
        peer_port_is_default: fleet.peer_port_is_default,
        peer_advertise_address: fleet.peer_advertised.clone(),
        ..Config::default()
    };
    match &fleet.peer_transport {
        PeerTransport::Pins => {}
        PeerTransport::Files {
            cert_file,
            key_file,
            ca_file,
            pins,
        } => {
            config.peer_pins = *pins;
            config.peer_tls_cert_file = Some(cert_file.clone());
            config.peer_tls_private_key_file = Some(key_file.clone());
            config.peer_ca_file = Some(ca_file.clone());
        }
        PeerTransport::Insecure => config.peer_insecure = true,
    }
    config
}
