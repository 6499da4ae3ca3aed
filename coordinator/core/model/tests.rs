use std::{
    env,
    time::{Duration, Instant},
};

use stateright::{Checker, Model};

use super::{
    Action, Fleet,
    world::{Bounds, Fault, Start, TRACE, What, World, Wrong},
};
use crate::{
    Input,
    mutation::{self, Mutation},
};

/// One exploration of the quick run generates no more states, those met again included; if it does, the
/// bounds are too wide for it. Counted, not timed: in `cargo verify` it takes what time the other suites
/// leave.
const STATES_MAX: usize = 3_000_000;

/// How far an exploration may go.
#[derive(Clone, Copy)]
enum Limit {
    /// To this number of generated states.
    States(usize),
    Time(Duration),
}

struct Explored {
    states: usize,
    /// Those met again included.
    generated: usize,
    depth: usize,
    took: Duration,
    /// Whether no state is left.
    to_its_end: bool,
    /// What went wrong, and the faults on the way to it.
    wrong: Option<(Wrong, String)>,
}

/// `TRACE=1` shows what happens on the way to what went wrong.
fn explore(bounds: &Bounds, mutation: Option<Mutation>, limit: Limit) -> Explored {
    let begun = Instant::now();
    let fleet = Fleet {
        bounds: bounds.clone(),
        mutation,
    };
    // With one thread the order is always the same, and with it what a mutant is caught by.
    let threads = if mutation.is_some() { 1 } else { 2 };
    let checker = fleet.checker().threads(threads);
    let checker = match limit {
        Limit::States(most) => checker.target_state_count(most),
        Limit::Time(longest) => checker.timeout(longest),
    };
    let checker = checker.spawn_dfs().join();
    let wrong = checker.discovery(super::SOUND).map(|path| {
        let last = path.last_state().clone();
        if env::var_os("TRACE").is_some() {
            replay(bounds, mutation, path.clone().into_actions());
        }
        let faults: Vec<String> = path
            .into_vec()
            .into_iter()
            .filter_map(|(state, action): (World, Option<Action>)| match action {
                Some(Action::Fault(fault)) => Some(format!("{fault:?} at tick {}", state.now)),
                _ => None,
            })
            .collect();
        let wrong = last.wrong.unwrap_or(Wrong::NoRest);
        (
            wrong,
            format!("[{}], seen at tick {}", faults.join(", "), last.now),
        )
    });
    let (generated, took) = (checker.state_count(), begun.elapsed());
    Explored {
        states: checker.unique_state_count(),
        generated,
        depth: checker.max_depth(),
        took,
        to_its_end: match limit {
            Limit::States(most) => generated < most,
            Limit::Time(longest) => took < longest,
        },
        wrong,
    }
}

/// Replays a way and shows what every machine hears and wants.
fn replay(bounds: &Bounds, mutation: Option<Mutation>, actions: Vec<Action>) {
    mutation::set(mutation);
    let mut world = World::start(bounds);
    TRACE.set(true);
    for action in actions {
        if let Action::Fault(fault) = action {
            eprintln!("**** {fault:?} of {:?}", world.queue.front());
        }
        world = world.after(action);
    }
    TRACE.set(false);
}

fn bounds(replicas: usize, ranges: u16, start: Start, faults: u8, window: u32) -> Bounds {
    Bounds {
        replicas,
        ranges,
        start,
        faults,
        window,
        // A lie shows in two faults together with much else: `cargo model` explores that.
        lies: faults < 2,
    }
}

/// The same, with lies.
fn lying(bounds: &Bounds) -> Bounds {
    Bounds {
        lies: true,
        ..bounds.clone()
    }
}

fn explore_all(scenarios: &[Bounds], limit: Limit, remedy: &str) {
    let mut sum = 0;
    for scenario in scenarios {
        let explored = explore(scenario, None, limit);
        let Bounds {
            replicas,
            ranges,
            start,
            faults,
            window,
            lies,
        } = scenario;
        eprintln!(
            "{replicas} replicas x {ranges} ranges, {start:?}, {faults} faults within {window} ticks (lies: {lies}): {} \
             states of {} generated, depth {}, {:.1} s",
            explored.states,
            explored.generated,
            explored.depth,
            explored.took.as_secs_f64()
        );
        if let Some((wrong, way)) = explored.wrong {
            panic!("{scenario:?}: {wrong:?} after {way}; TRACE=1 shows more");
        }
        assert!(
            explored.to_its_end,
            "{scenario:?} was not explored to its end; {remedy}"
        );
        sum += explored.states;
    }
    eprintln!("{sum} states, nothing wrong");
}

#[test]
fn wherever_faults_fall_the_promises_hold_and_the_fleet_comes_to_rest() {
    explore_all(
        &[
            bounds(3, 4, Start::Cold, 1, 8),
            bounds(3, 4, Start::Join, 1, 8),
            bounds(3, 4, Start::Rest, 1, 3),
            bounds(3, 4, Start::Drain, 1, 8),
            bounds(3, 4, Start::Alone, 1, 8),
            bounds(2, 8, Start::Cold, 1, 8),
            bounds(2, 8, Start::Join, 1, 8),
            bounds(2, 8, Start::Drain, 1, 8),
            bounds(3, 4, Start::Parted, 1, 8),
            bounds(2, 2, Start::Join, 2, 8),
            bounds(2, 2, Start::Drain, 2, 8),
        ],
        Limit::States(STATES_MAX),
        "its bounds are for `cargo model`",
    );
}

#[test]
#[ignore = "half an hour or more: `cargo model` runs it; MODEL_SECONDS bounds each scenario"]
fn wherever_two_faults_fall_in_the_larger_fleets() {
    let seconds = env::var("MODEL_SECONDS")
        .ok()
        .and_then(|seconds| seconds.parse().ok())
        .unwrap_or(7200);
    explore_all(
        &[
            bounds(3, 4, Start::Rest, 2, 3),
            bounds(2, 2, Start::Cold, 2, 12),
            bounds(2, 2, Start::Alone, 2, 8),
            bounds(2, 2, Start::Parted, 2, 8),
            lying(&bounds(2, 2, Start::Join, 2, 8)),
            lying(&bounds(2, 2, Start::Drain, 2, 8)),
            bounds(3, 4, Start::Drain, 2, 8),
            bounds(2, 8, Start::Join, 2, 8),
            bounds(3, 4, Start::Join, 2, 8),
            bounds(3, 4, Start::Cold, 2, 8),
        ],
        Limit::Time(Duration::from_secs(seconds)),
        &format!("MODEL_SECONDS=<n> gives each more than {seconds} s"),
    );
}

/// Where mutants are searched for, the quickest first.
fn hunting_grounds() -> [Bounds; 8] {
    [
        bounds(2, 2, Start::Join, 1, 8),
        bounds(2, 2, Start::Drain, 1, 8),
        bounds(3, 3, Start::Join, 1, 8),
        bounds(3, 4, Start::Drain, 1, 8),
        bounds(2, 2, Start::Parted, 2, 3),
        // Three mutants take two faults while the first ranges move; in the longer window each took a million
        // states and three minutes.
        bounds(2, 2, Start::Join, 2, 4),
        bounds(2, 2, Start::Join, 2, 8),
        bounds(2, 2, Start::Drain, 2, 8),
    ]
}

/// Says what caught it, `Err` if nothing did.
fn hunt(mutation: Mutation) -> Result<String, String> {
    let mut states = 0;
    let begun = Instant::now();
    for scenario in hunting_grounds() {
        let explored = explore(&scenario, Some(mutation), Limit::States(STATES_MAX));
        states += explored.states;
        if let Some((wrong, way)) = explored.wrong {
            return Ok(format!(
                "{mutation:?}: {wrong:?}, {} x {} {:?}, {way}, {states} states, {:.1} s",
                scenario.replicas,
                scenario.ranges,
                scenario.start,
                begun.elapsed().as_secs_f64()
            ));
        }
    }
    Err(format!("{mutation:?} survives {states} states"))
}

#[test]
fn every_mutant_is_caught() {
    let only = env::var("MUTANT").ok();
    let mutants: Vec<Mutation> = Mutation::ALL
        .iter()
        .copied()
        .filter(|mutant| !Mutation::INTERLOCK.contains(mutant))
        .filter(|mutant| !Mutation::OF_TABLES.contains(mutant))
        .filter(|mutant| {
            only.as_ref()
                .is_none_or(|only| format!("{mutant:?}") == *only)
        })
        .collect();
    let hunters: Vec<_> = (0..2)
        .map(|hunter| {
            let mine: Vec<Mutation> = mutants.iter().copied().skip(hunter).step_by(2).collect();
            std::thread::spawn(move || {
                let line = |mutant| {
                    let result = hunt(mutant);
                    eprintln!("{}", result.as_ref().unwrap_or_else(|survivor| survivor));
                    result
                };
                mine.into_iter().map(line).collect::<Vec<_>>()
            })
        })
        .collect();
    let results: Vec<Result<String, String>> = hunters
        .into_iter()
        .flat_map(|hunter| hunter.join().expect("a hunter does not panic"))
        .collect();
    let survivors: Vec<String> = results.into_iter().filter_map(Result::err).collect();
    assert!(survivors.is_empty(), "a property is missing: {survivors:?}");
}

fn step_to_the_acknowledgement(world: &mut World) {
    let acknowledged = |world: &World| {
        world.queue.front().is_some_and(|first| {
            matches!(first.what, What::Core(Input::Sent { result: Ok(()), .. }))
        })
    };
    while !acknowledged(world) {
        world.step();
    }
}

/// B acknowledges what A knows, the acknowledgement is lost, and A knows more when it gives the range to B by
/// its Lease, since no peer reaches another any more.
fn relinquishes_what_was_acknowledged_before(mutation: Option<Mutation>) -> Option<Wrong> {
    mutation::set(mutation);
    let mut world = World::start(&bounds(2, 2, Start::Join, 2, 8));
    step_to_the_acknowledgement(&mut world);
    world.fault(Fault::Lose);
    while !world.queue.is_empty() {
        world.step();
    }
    world.fault(Fault::CutPeers);
    while !world.is_over() {
        world.tick();
    }
    mutation::set(None);
    world.wrong
}

#[test]
fn a_state_that_was_acknowledged_before_does_not_fit_what_is_given_without_it() {
    assert_eq!(relinquishes_what_was_acknowledged_before(None), None);
    assert_eq!(
        relinquishes_what_was_acknowledged_before(Some(Mutation::RelinquishesOneEpochOn)),
        Some(Wrong::StateLost),
        "this is how it would be"
    );
}

/// B acknowledges what A knows, the acknowledgement is a tick on its way, B is asked to leave and holds
/// nothing.
fn leaves_while_a_range_is_on_its_way(mutation: Option<Mutation>) -> Option<Wrong> {
    mutation::set(mutation);
    let mut world = World::start(&bounds(2, 2, Start::Join, 2, 8));
    step_to_the_acknowledgement(&mut world);
    world.fault(Fault::Hold(1));
    while !world.queue.is_empty() {
        world.step();
    }
    world.fault(Fault::Drain(1));
    while !world.is_over() {
        world.tick();
    }
    mutation::set(None);
    world.wrong
}

#[test]
fn who_leaves_waits_for_the_range_whose_state_it_has_acknowledged() {
    assert_eq!(leaves_while_a_range_is_on_its_way(None), None);
    assert_eq!(
        leaves_while_a_range_is_on_its_way(Some(Mutation::LeavesWithWhatItKept)),
        Some(Wrong::StateLost),
        "this is how it was"
    );
}

/// What comes of one fault in a fleet of two at rest.
fn comes_of(fault: Fault, mutation: Option<Mutation>) -> Option<Wrong> {
    mutation::set(mutation);
    let mut world = World::start(&bounds(2, 2, Start::Rest, 1, 3));
    world.lenient = true;
    world.fault(fault);
    while !world.is_over() {
        world.tick();
    }
    mutation::set(None);
    world.wrong
}

/// B cannot reach the API server, and its witness says that its process has ended, which is not so.
#[test]
fn a_witness_of_a_process_that_runs_makes_two_owners() {
    let cut = Fault::Cut(1, 8);
    assert_eq!(comes_of(cut, None), None);
    assert_eq!(
        comes_of(cut, Some(Mutation::WitnessOfTheLiving)),
        Some(Wrong::TwoOwners),
        "this is how it would be"
    );
}

/// B cannot reach the API server, and its pod's status says that it has ended, which is not so.
#[test]
fn a_false_proof_of_death_makes_two_owners_only_if_it_counts_at_once() {
    let mourned = Fault::Mourned(1, 8);
    assert_eq!(comes_of(mourned, None), None);
    assert_eq!(
        comes_of(mourned, Some(Mutation::ProofCountsAtOnce)),
        Some(Wrong::TwoOwners),
        "this is how it would be"
    );
}
