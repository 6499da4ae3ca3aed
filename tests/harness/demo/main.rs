//! `cargo demo`: Manifold at work, to be watched.
//!
//! Starts a real control plane and some replicas, gives them a workload, and then by itself scales
//! out, rolls a Deployment out, lets a node die, kills one replica and stops another. It ends with a
//! summary, and with an exit code that reports whether what must hold has held.

mod cluster;
mod scenario;
mod summary;
#[cfg(test)]
mod tests;
mod view;
mod workload;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use cluster::Cluster;
use harness::Jaeger;
use harness::fleet::{self, Profile};
use harness::toolchain;
use kube::Client;
use scenario::Scenario;
use summary::Summary;
use tokio::signal::unix::{Signal, SignalKind, signal};
use workload::Workload;

/// Probes: with four replicas about 16 for each, so that every owner has some with certainty enough.
const PROBES: usize = 64;
/// As a shell reports a process that Ctrl-C has ended.
const INTERRUPTED: u8 = 130;
/// Taking the demo's objects out of a cluster that stays.
const REMOVAL_LIMIT: Duration = Duration::from_secs(60);

/// Shows Manifold at work on a real control plane.
#[derive(Debug, Parser)]
#[command(name = "cargo demo", bin_name = "cargo demo")]
struct Args {
    /// Replicas at the beginning; one more joins, one is killed and one is stopped
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(2..=32))]
    replicas: u16,
    /// Deployments, spread over three namespaces
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=5000))]
    deployments: u16,
    /// Pods of each Deployment
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=5000))]
    pods: u16,
    /// Leave everything running at the end, until Ctrl-C, and print where it is
    #[arg(long)]
    keep: bool,
    /// Start a Jaeger beside it, to which all reconciles are exported; with --keep its search is printed
    #[arg(long)]
    jaeger: bool,
    /// Use this cluster instead of a control plane of our own; no kube-controller-manager may work in it
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let result = runtime
        .context("starting the demo's runtime")
        .and_then(|runtime| {
            // What blocks (a build) continues until its process is gone; nobody waits for it here.
            let result = runtime.block_on(run(&args));
            runtime.shutdown_background();
            result
        });
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: &Args) -> Result<ExitCode> {
    let mut interrupt = Interrupt::listen()?;
    let stage = tokio::select! {
        stage = Stage::set(args) => stage?,
        () = interrupt.comes() => return Ok(taking_down()),
    };
    stage.play(args, &mut interrupt).await
}

fn taking_down() -> ExitCode {
    eprintln!("demo: interrupted, everything is taken down");
    ExitCode::from(INTERRUPTED)
}

/// Ctrl-C, or SIGTERM from the parent.
struct Interrupt {
    ctrl_c: Signal,
    terminate: Signal,
}

impl Interrupt {
    fn listen() -> Result<Self> {
        Ok(Self {
            ctrl_c: signal(SignalKind::interrupt()).context("listening for Ctrl-C")?,
            terminate: signal(SignalKind::terminate()).context("listening for SIGTERM")?,
        })
    }

    async fn comes(&mut self) {
        tokio::select! {
            _ = self.ctrl_c.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Everything that is there before the first replica starts.
struct Stage {
    /// Dropped, and with it the replicas, before the cluster is.
    scenario: Scenario,
    cluster: Cluster,
    client: Client,
    workload: Workload,
    jaeger: Option<Jaeger>,
}

impl Stage {
    async fn set(args: &Args) -> Result<Self> {
        let workload = Workload {
            id: match args.kubeconfig {
                Some(_) => format!("demo-{:08x}", rand::random::<u32>()),
                None => "demo".to_owned(),
            },
            deployments: args.deployments.into(),
            pods: args.pods.into(),
            probes: PROBES,
        };
        toolchain::rust()?;
        toolchain::c_compiler()?;
        // A cluster that must not be used is refused before anything is built.
        let existing = match &args.kubeconfig {
            Some(path) => Some(Cluster::existing(path).await?),
            None => {
                toolchain::go()?;
                None
            }
        };
        let binary = tokio::task::spawn_blocking(|| fleet::binary(Profile::of_this_build()))
            .await
            .context("building manifold")??;
        let cluster = match existing {
            Some(cluster) => cluster,
            None => Cluster::own(workload.wanted()).await?,
        };
        let jaeger = match args.jaeger {
            true => Some(Jaeger::start(cluster.dir()).await?),
            false => None,
        };
        let mut fleet = cluster.fleet().await?.binary(binary);
        if let Some(jaeger) = &jaeger {
            fleet = fleet
                .env("OTEL_EXPORTER_OTLP_ENDPOINT", jaeger.grpc())
                .env("OTEL_TRACES_SAMPLER", "always_on")
                .env("OTEL_BSP_MAX_QUEUE_SIZE", "65536")
                .env("OTEL_BSP_SCHEDULE_DELAY", "1000");
        }
        let fleet = fleet.build().await?;
        let client = cluster.client().await?;
        Ok(Self {
            scenario: Scenario::new(&client, fleet, workload.clone()),
            cluster,
            client,
            workload,
            jaeger,
        })
    }

    async fn play(mut self, args: &Args, interrupt: &mut Interrupt) -> Result<ExitCode> {
        let outcome = tokio::select! {
            outcome = self.scenario.play(&mut self.cluster, args.replicas.into()) => Some(outcome),
            () = interrupt.comes() => None,
        };
        self.scenario.end_view();
        let code = match outcome {
            None => taking_down(),
            Some(outcome) => {
                let code = report(outcome);
                if code != ExitCode::SUCCESS {
                    self.cluster.keep_files()?;
                }
                if args.keep {
                    self.show_places();
                    interrupt.comes().await;
                }
                code
            }
        };
        if let Cluster::Existing { .. } = self.cluster {
            // The replicas go first, or they would make again what is taken away.
            drop(self.scenario);
            let removed =
                tokio::time::timeout(REMOVAL_LIMIT, self.workload.remove(&self.client)).await;
            removed
                .unwrap_or_else(|_| Err(anyhow::anyhow!("not done after {REMOVAL_LIMIT:?}")))
                .with_context(|| {
                    format!(
                        "taking away the namespaces labelled {}",
                        self.workload.selector()
                    )
                })?;
        }
        Ok(code)
    }

    fn show_places(&self) {
        println!("\nkubeconfig  {}", self.cluster.kubeconfig().display());
        if let Cluster::Own(control_plane) = &self.cluster {
            println!("API server  {}", control_plane.url());
            println!("logs        {}", control_plane.dir().path().display());
        }
        for (name, url) in self.scenario.urls() {
            println!("{name:10}  {url}/debug/shards");
        }
        if let Some(jaeger) = &self.jaeger {
            let rollouts = jaeger.search_url("manifold", "reconcile deployment-controller", &[]);
            println!("Jaeger      {rollouts}");
        }
        println!("Everything keeps running; Ctrl-C takes it down.");
    }
}

/// Prints what came of it.
fn report(outcome: Result<Summary>) -> ExitCode {
    let failures = match outcome {
        Ok(summary) => {
            summary.lines().iter().for_each(|line| println!("{line}"));
            summary.failures()
        }
        Err(error) => vec![format!("{error:#}")],
    };
    failures
        .iter()
        .for_each(|failure| eprintln!("demo: FAILED: {failure}"));
    if failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
