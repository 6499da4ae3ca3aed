//! `cargo chaos`: two hundred faults of mixed kinds on the real thing, in at most half an hour.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tests::chaos::{Fault, Settings, run};

/// Lets things go wrong and judges what came of it.
#[derive(Debug, Parser)]
#[command(name = "cargo chaos", bin_name = "cargo chaos")]
struct Args {
    /// Chooses faults and workload; another one each time where it is not given
    #[arg(long)]
    seed: Option<u64>,
    /// How many faults
    #[arg(long, default_value_t = 200)]
    faults: usize,
    /// Of these kinds alone, as in freeze-watches,join-and-leave
    #[arg(long, value_delimiter = ',')]
    only: Vec<Fault>,
    /// In how many minutes
    #[arg(long, default_value_t = 30)]
    minutes: u64,
    /// For how many seconds watches stand still when they do
    #[arg(long, default_value_t = 120)]
    frozen_seconds: u64,
    /// How much longer than promised keys may wait, on a machine that is busy with other things
    #[arg(long, default_value_t = 1.0)]
    slack: f64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let settings = Settings {
        seed: args.seed.unwrap_or_else(rand::random),
        faults: args.faults,
        only: args.only,
        limit: Duration::from_secs(60 * args.minutes),
        slack: args.slack,
        latencies: true,
        frozen: Duration::from_secs(args.frozen_seconds),
    };
    // Where it fails, the control plane's directory is kept and its place reported.
    let ended = std::panic::catch_unwind(|| {
        harness::run_test(run(&settings));
    });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        // The panic has reported what and where.
        Err(_) => ExitCode::FAILURE,
    }
}
