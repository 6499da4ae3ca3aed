//! `manifold`: reads the command line, sets up logs, runs.

use std::{process::ExitCode, sync::Arc};

use futures::future::BoxFuture;
use node::{
    args::{self, Parsed},
    http::{Debug, Health},
    metrics::Metrics,
    options::{Options, Surroundings},
    serving::{self, Parts},
    telemetry,
};
use tokio_util::sync::CancellationToken;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("manifold: {}", why.replace('\n', " "));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let descriptors = Vec::new();
    let values = match args::parse(args::flags(&descriptors), std::env::args().skip(1)) {
        Ok(Parsed::Run(values)) => values,
        Ok(Parsed::Print(text)) => {
            print!("{text}");
            return Ok(());
        }
        Err(why) => return Err(format!("{why}: see manifold --help")),
    };
    let options =
        Options::new(values, &descriptors, &Surroundings::now()).map_err(|why| why.to_string())?;
    // Only the first call in a process can succeed, and this is it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Runtime::new()
        .map_err(|why| format!("no threads can be started: {why}"))?;
    let telemetry =
        runtime.block_on(async { telemetry::start(&options.logging, &options.fleet.replica) })?;
    let result = runtime.block_on(serve(options, &telemetry));
    telemetry.flush();
    result
}

/// Serves with nothing inside, until told to end.
async fn serve(options: Options, telemetry: &telemetry::Telemetry) -> Result<(), String> {
    struct Nothing;
    impl Debug for Nothing {
        fn shards(&self) -> serde_json::Value {
            serde_json::json!({})
        }
        fn explain(
            &self,
            controller: String,
            _: String,
        ) -> BoxFuture<'static, Result<serde_json::Value, String>> {
            Box::pin(async move { Err(format!("there is no controller {controller:?}")) })
        }
    }
    if let Some(warning) = &options.warning {
        tracing::warn!("{warning}");
    }
    let metrics = Metrics::new();
    let parts = Parts {
        health: Health::new(metrics.clone()),
        options: Arc::new(options),
        debug: Arc::new(Nothing),
        verbosity: telemetry.verbosity.clone(),
        metrics,
    };
    let stop = CancellationToken::new();
    let opened = serving::open(parts, stop.clone())
        .await
        .map_err(|why| why.to_string())?;
    let mut end = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
        .map_err(|why| format!("SIGTERM can't be awaited: {why}"))?;
    tokio::select! {
        _ = end.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    stop.cancel();
    match opened.serving.await {
        Ok(result) => result.map_err(|why| why.to_string()),
        Err(why) => Err(format!("the secure port has failed: {why}")),
    }
}
