//! `cargo bench-peers`: Manifold beside the real kube-controller-manager.
//!
//! Each peer goes through the same steps on a fresh control plane: kube-controller-manager, one replica of
//! Manifold, three of them, in turn and in alternating order. README.md beside this folder says what the
//! figures mean; it is made here, from the newest results.

mod machine;
mod meter;
mod page;
mod peer;
mod plot;
mod profile;
mod report;
mod run;
mod scale_out;
mod stall;
mod step;
mod workload;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use harness::fleet::{self, Profile};
use harness::programs::Programs;
use harness::progress::Steps;
use harness::toolchain;
use tokio::signal::unix::{SignalKind, signal};

use crate::machine::Machine;
use crate::peer::{Peer, Qps};
use crate::report::Results;
use crate::run::{How, Which};
use crate::scale_out::Rig;
use crate::step::{Sizes, Step};

/// As a shell reports a process that Ctrl-C has ended.
const INTERRUPTED: u8 = 130;
/// As clap reports what it cannot read.
const USAGE: u8 = 2;
/// The largest fleet of --scale-out.
const REPLICAS_MAX: usize = 5;
/// More is a mistake: at this scale 100,000 pods would be held.
const SCALE_MAX: f64 = 10.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Limits {
    Lifted,
    Default,
    Both,
}

/// Measures Manifold beside kube-controller-manager
#[derive(Debug, Parser)]
#[command(name = "cargo bench-peers", bin_name = "cargo bench-peers")]
struct Args {
    /// How often each peer goes through all steps
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=99))]
    rounds: u16,
    /// Only these steps, separated by commas
    #[arg(long, value_delimiter = ',')]
    steps: Vec<Step>,
    /// Who is measured: kcm, and n1, n2, … for that number of replicas of Manifold; n1-fenced where the API
    /// server also refuses the writes of dead replicas, to measure the cost of that; kcm-all, n1-all, …
    /// with every controller on; watcher for a replica that only watches another
    #[arg(long, value_delimiter = ',', default_value = "kcm,n1,n3,watcher")]
    peers: Vec<Peer>,
    /// Requests a second that each process may send: as many as it can, or 20 with bursts of 30
    #[arg(long, value_enum, default_value_t = Limits::Both)]
    qps: Limits,
    /// Size of the workloads; less than 1 for trials
    #[arg(long, default_value_t = 1.0, value_parser = scale)]
    scale: f64,
    /// Print, and keep no results
    #[arg(long)]
    no_results: bool,
    /// Draw where the managers' processor time goes in each step that does work (not rest, start, killed,
    /// stopped and added), as flame graphs in bench/results; keeps no figures, since perf takes time too
    #[arg(long, conflicts_with_all = ["scale_out", "page", "no_results"])]
    profile: bool,
    /// Measure instead how a fleet's work grows from one replica to five, each call held up
    #[arg(long, conflicts_with_all = ["steps", "peers", "qps", "page"])]
    scale_out: bool,
    /// Workers of each controller and replica, with --scale-out; fewer where the machine is the limit
    #[arg(long, default_value_t = 5, requires = "scale_out", value_parser = clap::value_parser!(u16).range(1..=50))]
    workers: u16,
    /// Milliseconds by which each call is held up, with --scale-out; more where the machine is the limit
    #[arg(long, default_value_t = 25, requires = "scale_out", value_parser = clap::value_parser!(u16).range(1..=1000))]
    delay_ms: u16,
    /// Measure nothing: make README.md and the plots again from the newest results
    #[arg(long, conflicts_with_all = ["steps", "scale", "qps", "rounds", "no_results"])]
    page: bool,
}

fn scale(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|scale| *scale > 0.0 && *scale <= SCALE_MAX)
        .ok_or_else(|| format!("a scale is a number above 0, at most {SCALE_MAX}"))
}

impl Args {
    fn qps(&self) -> &'static [Qps] {
        match self.qps {
            Limits::Lifted => &[Qps::Lifted],
            Limits::Default => &[Qps::Default],
            Limits::Both => &[Qps::Lifted, Qps::Default],
        }
    }

    /// What is asked for, those steps left out whose controllers are not built.
    fn steps(&self, qps: Qps, built: &[&str]) -> Vec<Step> {
        Step::ALL
            .into_iter()
            .filter(|step| step.lacks(built).is_none())
            .filter(|step| match self.steps.as_slice() {
                [] => step.is_usual(qps),
                named => named.contains(step),
            })
            .collect()
    }
}

/// What clap has to say of an argument in one line, without its words on usage.
fn usage_error(error: &clap::Error) -> String {
    let text = error.to_string();
    let lines: Vec<&str> = text
        .lines()
        .take_while(|line| !line.is_empty())
        .map(str::trim)
        .collect();
    lines.join(" ").trim_start_matches("error: ").to_owned()
}

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) if error.use_stderr() => {
            let reason = usage_error(&error);
            eprintln!("bench-peers: {reason}; see --help");
            return ExitCode::from(USAGE);
        }
        Err(help) => {
            print!("{help}");
            return ExitCode::SUCCESS;
        }
    };
    if args.page {
        return exit_code(page::renew());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let result = runtime
        .context("starting the bench's runtime")
        .and_then(|runtime| {
            // What blocks (a build) continues until its process is gone; nobody waits for it here.
            let result = runtime.block_on(interruptible(&args));
            runtime.shutdown_background();
            result
        });
    match result {
        Ok(code) => code,
        Err(error) => exit_code(Err(error)),
    }
}

fn exit_code(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-peers: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whatever runs is dropped, and so taken down, when Ctrl-C or SIGTERM comes.
async fn interruptible(args: &Args) -> Result<ExitCode> {
    let mut ctrl_c = signal(SignalKind::interrupt()).context("listening for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    tokio::select! {
        done = measure(args) => done.map(|()| ExitCode::SUCCESS),
        _ = ctrl_c.recv() => Ok(interrupted()),
        _ = terminate.recv() => Ok(interrupted()),
    }
}

fn interrupted() -> ExitCode {
    eprintln!("bench-peers: interrupted, everything is taken down");
    ExitCode::from(INTERRUPTED)
}

async fn measure(args: &Args) -> Result<()> {
    ensure!(
        !args.peers.is_empty(),
        "nobody to measure: --peers takes kcm, n1, n3, n1-fenced, n1-all"
    );
    let descriptors = node_registry::descriptors();
    let built: Vec<&str> = descriptors.iter().map(|found| found.name).collect();
    for step in Step::ALL {
        if let Some(missing) = step.lacks(&built) {
            eprintln!("{step} is left out: {missing} is not built");
        }
    }
    if args.profile {
        profile::perf()?;
    }
    let (binary, programs) = programs().await?;
    let machine = Machine::detect(programs.version());
    if args.scale_out {
        return scale_out(args, machine, &binary).await;
    }
    let sizes = Sizes::at(args.scale);
    let mut results = Results::new(machine, &sizes);
    let runs = runs(args);
    let work: Vec<(Which, Vec<Step>)> = runs
        .into_iter()
        .map(|which| (which, fitting(which, args.steps(which.qps, &built))))
        .filter(|(_, steps)| !steps.is_empty())
        .collect();
    ensure!(
        !work.is_empty(),
        "nothing to measure: none of these steps applies to these peers"
    );
    let total = work.iter().map(|(_, steps)| steps.len() as u64).sum();
    let mut progress = Steps::new("bench-peers", total);
    for (which, steps) in work {
        let Which { round, qps, peer } = which;
        let how = How {
            sizes: &sizes,
            binary: &binary,
            profile: args.profile,
        };
        let measured = &mut results.runs;
        let run = Box::pin(run::run(which, &steps, how, measured, &mut progress)).await;
        // What was measured is kept even if this run failed on its way, or a later one does.
        if !args.no_results && !args.profile && !results.runs.is_empty() {
            report::keep(&results.file_name(&args.peers), &results)?;
        }
        run.with_context(|| format!("round {round}, QPS {qps}, {peer}"))?;
    }
    progress.finish("measured");
    println!("{}", report::text(&results));
    if !args.no_results {
        page::renew()?;
        let file = results.file_name(&args.peers);
        println!(
            "kept in {}",
            if args.profile { "bench/results" } else { &file }
        );
    }
    Ok(())
}

/// Manifold and the control plane, built if need be.
async fn programs() -> Result<(PathBuf, Programs)> {
    toolchain::rust()?;
    toolchain::go()?;
    let binary = tokio::task::spawn_blocking(|| fleet::binary(Profile::Dist))
        .await
        .context("building manifold")??;
    let programs = tokio::task::spawn_blocking(Programs::obtain)
        .await
        .context("building the control plane")??;
    Ok((binary, programs))
}

async fn scale_out(args: &Args, machine: Machine, binary: &Path) -> Result<()> {
    let scaled = |count: f64| (count * args.scale).round().max(1.0);
    let rig = Rig {
        replicas_max: REPLICAS_MAX,
        keys: scaled(2_000.0).max(100.0) as usize,
        workers: args.workers.into(),
        delay: Duration::from_millis(args.delay_ms.into()),
        window: Duration::from_secs_f64(scaled(30.0).max(5.0)),
    };
    let mut results = scale_out::Results::new(machine, &rig);
    let total = u64::from(args.rounds) * (1 + REPLICAS_MAX as u64);
    let mut progress = Steps::new("bench-peers", total);
    for round in 1..=usize::from(args.rounds) {
        let grown = scale_out::run(round, &rig, binary, &mut progress)
            .await
            .with_context(|| format!("round {round}"))?;
        results.runs.extend(grown);
        if !args.no_results {
            report::keep(&results.file_name(), &results)?;
        }
    }
    progress.finish("measured");
    let (heads, rows) = results.table();
    println!("{}", report::aligned(&heads, &rows));
    if !args.no_results {
        println!("kept in {}", results.file_name());
        page::renew()?;
    }
    Ok(())
}

/// Every peer in each round; every other round the other way round.
fn runs(args: &Args) -> Vec<Which> {
    let mut peers = args.peers.clone();
    peers.sort_unstable();
    peers.dedup();
    let mut runs = Vec::new();
    for round in 1..=usize::from(args.rounds) {
        for qps in args.qps() {
            runs.extend(peers.iter().map(|peer| Which {
                round,
                qps: *qps,
                peer: *peer,
            }));
        }
        peers.reverse();
    }
    runs
}

/// The steps that apply to this peer; the others are named once.
fn fitting(which: Which, steps: Vec<Step>) -> Vec<Step> {
    let Which { round, peer, .. } = which;
    steps
        .into_iter()
        .filter(|step| match step.unfit(peer) {
            Some(why) if round == 1 => {
                eprintln!("{step} is left out for {peer}: {why}");
                false
            }
            unfit => unfit.is_none(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(words: &[&str]) -> Result<Args, clap::Error> {
        Args::try_parse_from([&["bench-peers"], words].concat())
    }

    #[test]
    fn invalid_arguments_are_reported_in_one_line_with_the_remedy() {
        for (words, expected) in [
            (
                ["--steps=creat"].as_slice(),
                "the steps are empty, create, roll-out",
            ),
            (&["--peers=n0"], "a peer is kcm, or n1 to n9"),
            (&["--peers=kcm-fenced"], "a peer is kcm, or n1 to n9"),
            (&["--scale=0"], "a number above 0"),
            (&["--scale=NaN"], "a number above 0"),
            (&["--qps=none"], "invalid value 'none' for '--qps <QPS>'"),
            (&["--rounds=0"], "0 is not in 1..=99"),
            (&["--page", "--rounds=2"], "cannot be used with"),
            (&["--profile", "--scale-out"], "cannot be used with"),
            (&["--workers=2"], "were not provided: --scale-out"),
            (&["--delay-ms=5"], "were not provided: --scale-out"),
        ] {
            let line = usage_error(&args(words).unwrap_err());
            assert!(line.contains(expected), "{words:?}: {line}");
            assert!(!line.contains('\n'), "{words:?}: {line}");
        }
    }

    #[test]
    fn peers_go_in_turn_and_every_other_round_the_other_way() {
        let args = args(&["--rounds=2", "--peers=n3,kcm,n1", "--qps=lifted"]).unwrap();
        let order: Vec<String> = runs(&args)
            .iter()
            .map(|which| which.peer.to_string())
            .collect();
        assert_eq!(order, ["kcm", "n1", "n3", "n3", "n1", "kcm"]);
    }

    #[test]
    fn steps_run_in_their_own_order_and_the_long_ones_only_with_lifted_limits() {
        let descriptors = node_registry::descriptors();
        let built: Vec<&str> = descriptors.iter().map(|found| found.name).collect();
        let all = args(&[]).unwrap();
        assert_eq!(all.steps(Qps::Lifted, &built), Step::ALL);
        assert_eq!(
            all.steps(Qps::Default, &built),
            [Step::Create, Step::RollOut, Step::ScaleDown]
        );
        let some = args(&["--steps=rest,job"]).unwrap();
        assert_eq!(some.steps(Qps::Default, &built), [Step::Job, Step::Rest]);
        assert_eq!(some.steps(Qps::Default, &[]), []);
        let which = Which {
            round: 2,
            qps: Qps::Lifted,
            peer: "n1".parse().unwrap(),
        };
        assert_eq!(
            fitting(which, vec![Step::Killed, Step::Added]),
            [Step::Added]
        );
    }
}
