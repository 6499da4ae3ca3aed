//! `cargo simulate`: runs seeds on and on, and says how to do a run again that went wrong.

use std::{
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use clap::Parser;
use coordinator::{Branch, branches_taken};
use indicatif::{ProgressBar, ProgressStyle};
use simulation::{
    mutants::Mutant,
    run::{Options, Report, controllers, run},
    stories,
};

/// Runs the fleet on simulated time, from seeds.
#[derive(Debug, Parser)]
#[command(name = "cargo simulate", bin_name = "cargo simulate")]
struct Args {
    /// How many seeds, from --from on
    #[arg(long, default_value_t = 300)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// This seed alone, with its record
    #[arg(long)]
    seed: Option<u64>,
    /// The workload of this controller alone
    #[arg(long, value_name = "NAME")]
    controller: Option<String>,
    /// With a deliberate fault, which must be caught
    #[arg(long)]
    mutant: Option<Mutant>,
    /// Runs at once; one for each core where none is named
    #[arg(long)]
    threads: Option<usize>,
    /// Plays this story and prints it
    #[arg(long, value_name = "NAME")]
    story: Option<String>,
    /// Continue after this many violations
    #[arg(long, default_value_t = 5)]
    violations: usize,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(name) = &args.controller
        && !controllers().contains(&name.as_str())
    {
        eprintln!(
            "no controller is named {name:?}; there are: {}",
            controllers().join(", ")
        );
        return ExitCode::from(2);
    }
    if let Some(name) = &args.story {
        return story(name);
    }
    match args.seed {
        Some(seed) => one(&args, seed),
        None => many(&args),
    }
}

fn story(name: &str) -> ExitCode {
    let Some(story) = stories::ALL.iter().find(|story| story.name == name) else {
        let names: Vec<&str> = stories::ALL.iter().map(|story| story.name).collect();
        eprintln!(
            "no story is named {name:?}; there are: {}",
            names.join(", ")
        );
        return ExitCode::from(2);
    };
    print!("{}", story.play());
    ExitCode::SUCCESS
}

fn options(args: &Args, seed: u64) -> Options {
    Options {
        controller: args.controller.clone(),
        mutant: args.mutant,
        ..Options::seed(seed)
    }
}

fn one(args: &Args, seed: u64) -> ExitCode {
    // RUST_LOG=node=debug,coordinator=debug reports the replicas' own side.
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .without_time()
        .init();
    let report = run(&Options {
        loud: true,
        ..options(args, seed)
    });
    println!(
        "seed {seed}, {}: {:?}, {} s of the cluster's time, trace {:016x}",
        report.controller,
        report.counts,
        report.lasted.as_secs(),
        report.hash
    );
    match &report.violation {
        None => ExitCode::SUCCESS,
        Some(violation) => {
            println!("VIOLATION: {violation}");
            ExitCode::FAILURE
        }
    }
}

/// Of rare branches that were taken.
const RAREST_SHOWN: usize = 8;

/// A run of this number of seeds takes each rare branch of the protocol, or fails.
const SEEDS_THAT_TAKE_ALL: u64 = 20_000;

#[derive(Default)]
struct Sum {
    writes: u64,
    stale: u64,
    faults: u64,
    moves: u64,
    seconds: u64,
    wrong: Vec<Report>,
}

fn many(args: &Args) -> ExitCode {
    let threads = args
        .threads
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let bar = ProgressBar::new(args.seeds).with_style(
        ProgressStyle::with_template("{bar:40} {pos}/{len} seeds, {per_sec}, {elapsed}, {msg}")
            .expect("the template is a constant"),
    );
    let next = AtomicU64::new(args.from);
    let end = args.from.saturating_add(args.seeds);
    let sum = Mutex::new(Sum::default());
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        break;
                    }
                    let report = run(&options(args, seed));
                    let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
                    sum.writes += report.counts.writes;
                    sum.stale += report.counts.stale;
                    sum.faults += report.counts.faults;
                    sum.moves += report.counts.moves;
                    sum.seconds += report.lasted.as_secs();
                    if let Some(violation) = &report.violation {
                        bar.suspend(|| {
                            println!(
                                "seed {seed}, {}: {violation}\n  replay: {}",
                                report.controller,
                                report.replay()
                            );
                        });
                        sum.wrong.push(report);
                        if sum.wrong.len() >= args.violations {
                            next.store(end, Ordering::Relaxed);
                        }
                    }
                    bar.set_message(format!("{} violations", sum.wrong.len()));
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    let sum = sum.into_inner().unwrap_or_else(PoisonError::into_inner);
    let took = began.elapsed().as_secs_f64();
    let done = bar.position();
    println!(
        "{done} seeds from {} in {took:.1} s ({:.2} a second): {} writes, {} faults, {} changes of range Leases, {} s of \
         the cluster's time, {} writes of stopped processes that the server's fence would refuse; {} violations",
        args.from,
        done as f64 / took,
        sum.writes,
        sum.faults,
        sum.moves,
        sum.seconds,
        sum.stale,
        sum.wrong.len()
    );
    for report in &sum.wrong {
        println!("  seed {}: {}", report.seed, report.replay());
    }
    let all_taken = rare_branches() || args.mutant.is_some() || done < SEEDS_THAT_TAKE_ALL;
    match sum.wrong.is_empty() && all_taken {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Prints how often the rare branches of the protocol were taken, the rarest of them by name: whether each
/// was.
fn rare_branches() -> bool {
    let mut taken: Vec<(Branch, u64)> = branches_taken().collect();
    taken.sort_by_key(|(_, times)| *times);
    let never = taken.iter().take_while(|(_, times)| *times == 0).count();
    let rarest: Vec<String> = taken
        .iter()
        .take(never.max(RAREST_SHOWN))
        .map(|(branch, times)| format!("{branch:?} {times}"))
        .collect();
    println!(
        "{} of {} rare branches taken; the rarest: {}",
        taken.len() - never,
        taken.len(),
        rarest.join(", ")
    );
    never == 0
}
