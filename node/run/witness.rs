//! `manifold witness`: runs beside a replica in a container of its own, and takes its Lease away as soon as
//! its process has ended. What ends a process at once, an out-of-memory kill among it, leaves its Lease;
//! the others wait for --lease-duration, or for the next process in its place, which the kubelet may hold
//! back for minutes.

use std::{
    convert::Infallible,
    path::{Path, PathBuf},
    time::Duration,
};

use coordinator::Witnessed;
use node_cache::Purpose;
use node_connection::{components::Source, rotation::Followed};
use node_options::{FleetOptions, Options};
use tokio::sync::oneshot;

use super::{
    Error,
    connections::user_agent,
    coordination::{coordinator_config, gone},
    signals::Signals,
    wrong,
};
use crate::lock::{self, Left};

/// The first word of its command line.
pub const WORD: &str = "witness";

/// What `--help` prints.
pub const HELP: &str = "\
Runs beside a replica in a container of its own and waits for the end of the replica's process: by the lock in
--lock-dir, which the kernel takes away then and at no other time. It then takes the replica's Lease away, so that the
others need not wait for --lease-duration. While the process lives it asks nothing of the API server.

Usage: manifold witness [flags of manifold]

Takes each flag that manifold takes, and needs those of the replica for these:
  --lock-dir             a directory that both containers have mounted, in memory if possible; required
  --replica-name, --fleet-name, --fleet-namespace
  --kubeconfig, --master
  --config               where these are given in a file

Exit codes: 0 it was asked to end, 1 a flag, the directory or the kubeconfig is wrong.
";

/// While no process has the lock, one that has taken it is found after so long.
const POLL: Duration = Duration::from_millis(250);

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// With one line that says what is wrong and what to do.
pub async fn run(options: &Options) -> Result<(), Error> {
    let mut signals = Signals::listen()?;
    let Some(directory) = options.fleet.lock_dir.clone() else {
        return Err(Error(
            "--lock-dir is required: give the directory that the replica beside it has been given"
                .to_owned(),
        ));
    };
    // What is wrong with the credentials is said now, not when they are needed.
    connect(options).await?;
    tokio::select! {
        () = signals.next() => Ok(()),
        ended = watch_over(options, directory) => ended.map(|never| match never {}),
    }
}

/// A client with the credentials as they are now.
async fn connect(options: &Options) -> Result<kube::Client, Error> {
    let fleet = &options.fleet;
    let source = Source {
        flag: "kubeconfig",
        kubeconfig: options.client.kubeconfig.clone(),
        master: options.client.master.clone(),
    };
    let purpose = Purpose::Leases {
        period: fleet.retry_period,
        deadline: fleet.renew_deadline,
    };
    let followed = Followed::load(source, Some(user_agent(&fleet.replica)));
    let followed = followed.await.map_err(|error| wrong(&error))?;
    let api = followed.connect(purpose, None);
    Ok(api.map_err(|error| wrong(&error))?.kube_here())
}

async fn watch_over(options: &Options, directory: PathBuf) -> Result<Infallible, Error> {
    let config = coordinator_config(&options.fleet);
    let replica = &options.fleet.replica;
    tracing::info!(replica, "waits for the end of the replica's process");
    let mut over = None;
    loop {
        let left = ended(&directory, &options.fleet).await?;
        let newest = left.processes.last().cloned();
        if newest.is_none() || newest == over {
            tokio::time::sleep(POLL).await;
            continue;
        }
        tracing::info!(
            replica,
            in_flight = !left.still,
            "the replica's process has ended"
        );
        let gone = gone(left, &config);
        let second = jiff::Timestamp::now().as_second();
        match connect(options).await {
            Ok(client) => {
                match coordinator::witness(&config, client, gone, second).await {
                    Witnessed::Evicted(incarnation) => {
                        tracing::info!(
                            replica,
                            incarnation,
                            "took its Lease away: others take its ranges"
                        );
                    }
                    Witnessed::Released => tracing::info!(replica, "its Lease was free already"),
                    Witnessed::Lives => tracing::error!(
                        replica,
                        "it renews its Lease although its lock is free: --lock-dir must be a directory that no other machine has"
                    ),
                }
                over = newest;
            }
            Err(error) => {
                tracing::error!(%error, "its Lease can't be taken away");
                tokio::time::sleep(config.lease_retry_period).await;
            }
        }
    }
}

/// Waits on a thread of its own: nothing but the end of the process ends the wait.
async fn ended(directory: &Path, fleet: &FleetOptions) -> Result<Left, Error> {
    let (directory, name, replica) = (
        directory.to_owned(),
        fleet.fleet.clone(),
        fleet.replica.clone(),
    );
    let (send, receive) = oneshot::channel();
    let wait = move || {
        let _nobody_waits_any_more = send.send(lock::await_end(&directory, &name, &replica));
    };
    let thread = std::thread::Builder::new().name("manifold-lock".to_owned());
    thread
        .spawn(wait)
        .map_err(|error| Error(format!("no thread can be started: {error}")))?;
    let left = receive.await;
    left.map_err(|_| Error("the thread that waited for the lock has ended".to_owned()))?
        .map_err(Error)
}
