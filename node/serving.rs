//! Opens the secure port in the order that upstream keeps: files first, then the port, then the API server, so that
//! whatever is wrong is told before anything is owned.

use std::sync::Arc;

use kube::{Client, Config};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::{
    auth::{self, Auth},
    components,
    http::{self, Debug, Health, Server, Sources},
    metrics::Metrics,
    options::Options,
    telemetry::Verbosity,
};

/// Why the start is given up: one line with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server, or the way to it.
    #[error(transparent)]
    Server(#[from] components::Error),
    /// The port.
    #[error(transparent)]
    Port(#[from] http::Error),
    /// Who may ask there.
    #[error(transparent)]
    Auth(#[from] auth::Error),
}

/// What is there before anything is owned.
#[derive(Debug)]
pub struct Opened {
    /// How to reach the API server.
    pub config: Config,
    /// The port's task; ends when it is told to stop.
    pub serving: JoinHandle<Result<(), http::Error>>,
}

/// What the port is opened with.
#[derive(Clone)]
pub struct Parts {
    /// The options.
    pub options: Arc<Options>,
    /// For `/metrics`.
    pub metrics: Arc<Metrics>,
    /// For `/readyz` and its like.
    pub health: Arc<Health>,
    /// For `/debug/shards` and `/debug/explain`.
    pub debug: Arc<dyn Debug>,
    /// For `/debug/flags/v`.
    pub verbosity: Arc<Verbosity>,
}

/// Loads the kubeconfig, opens the port, waits for the API server, and serves.
///
/// # Errors
/// The first thing that is wrong; then nothing is left behind.
pub async fn open(parts: Parts, stop: CancellationToken) -> Result<Opened, Error> {
    let options = &parts.options;
    let client = &options.client;
    let config = components::config(client.kubeconfig.as_deref(), client.master.as_deref()).await?;
    let server = Server::bind(&options.serving)?;
    wait(&config).await?;
    let auth = Auth::new(&options.authentication, &options.authorization).await?;
    let sources = Sources {
        metrics: parts.metrics,
        health: parts.health,
        options: parts.options,
        verbosity: parts.verbosity,
        debug: parts.debug,
        auth,
    };
    let serving = tokio::spawn(server.serve(sources, stop));
    Ok(Opened { config, serving })
}

async fn wait(config: &Config) -> Result<(), components::Error> {
    let client: Client = components::client(config.clone(), "the API server's configuration")?;
    components::wait_for_server(&client, &config.cluster_url.to_string()).await
}
