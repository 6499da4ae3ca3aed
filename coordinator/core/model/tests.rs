use std::time::{Duration, Instant};

use stateright::{Checker, Model};

use super::{
    Action, Fleet,
    world::{Bounds, Start, TRACE, World, Wrong},
};
use crate::mutation::{self, Mutation};

struct Explored {
    states: usize,
    depth: usize,
    complete: bool,
    wrong: Option<(Wrong, String)>,
}

fn explore(bounds: &Bounds, mutation: Option<Mutation>, limit: Duration) -> Explored {
    let fleet = Fleet {
        bounds: bounds.clone(),
        mutation,
    };
    let threads = if mutation.is_some() { 1 } else { 2 };
    let checker = fleet
        .checker()
        .threads(threads)
        .timeout(limit)
        .spawn_dfs()
        .join();
    let wrong = checker.discovery("nothing goes wrong").map(|path| {
        let trace: Vec<String> = path
            .clone()
            .into_vec()
            .into_iter()
            .filter_map(|(state, action): (World, Option<Action>)| match action {
                Some(super::Action::Fault(fault)) => Some(format!(
                    "tick {}: {fault:?} of {:?}",
                    state.now,
                    state.queue.front()
                )),
                _ => None,
            })
            .collect();
        let last = path.last_state();
        if std::env::var_os("TRACE").is_some() {
            tell(bounds, mutation, path.clone().into_actions());
        }
        let wrong = last.wrong.unwrap_or(Wrong::NoRest);
        (wrong, format!("{} at tick {}", trace.join("\n"), last.now))
    });
    Explored {
        states: checker.unique_state_count(),
        depth: checker.max_depth(),
        complete: checker.is_done(),
        wrong,
    }
}

/// Goes a way again and tells what happens on it.
fn tell(bounds: &Bounds, mutation: Option<Mutation>, actions: Vec<Action>) {
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
    }
}

#[test]
fn probe() {
    let secs = std::env::var("S").ok().and_then(|s| s.parse().ok()).unwrap_or(60);
    let faults = std::env::var("K").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    for b in [
        bounds(3, 4, Start::Cold, faults, 8),
        bounds(3, 4, Start::Join, faults, 8),
        bounds(3, 4, Start::Rest, faults, 3),
        bounds(3, 4, Start::Drain, faults, 8),
        bounds(2, 8, Start::Join, faults, 8),
        bounds(2, 2, Start::Join, faults, 8),
        bounds(2, 2, Start::Drain, faults, 8),
        bounds(2, 2, Start::Cold, faults, 12),
    ] {
        if std::env::var("ONLY").is_ok_and(|only| !format!("{b:?}").contains(&only)) {
            continue;
        }
        let begun = Instant::now();
        let explored = explore(&b, None, Duration::from_secs(secs));
        eprintln!(
            "{b:?}: {} states, depth {}, complete {}, {:?}",
            explored.states,
            explored.depth,
            explored.complete,
            begun.elapsed()
        );
        if let Some((wrong, trace)) = explored.wrong {
            eprintln!("WRONG {wrong:?}\n{trace}");
        }
    }
}

#[test]
fn mutants() {
    for mutation in Mutation::ALL {
        let begun = Instant::now();
        let mut caught = None;
        let mut states = 0;
        for faults in [1, 2] {
            for b in [
                bounds(2, 2, Start::Join, faults, 8),
                bounds(3, 3, Start::Join, faults, 8),
                bounds(2, 2, Start::Rest, faults, 3),
                bounds(2, 2, Start::Drain, faults, 8),
                bounds(3, 4, Start::Join, faults, 8),
                bounds(3, 4, Start::Rest, faults, 3),
            ] {
                if caught.is_some() {
                    break;
                }
                let explored = explore(&b, Some(*mutation), Duration::from_secs(40));
                states += explored.states;
                caught = explored.wrong.map(|(wrong, trace)| (wrong, trace, b.clone()));
            }
        }
        match caught {
            Some((wrong, trace, b)) => eprintln!(
                "{mutation:?}: {wrong:?}, {} x {} {:?} K={}, {states} states, {:?}\n    {}",
                b.replicas, b.ranges, b.start, b.faults, begun.elapsed(),
                trace.lines().map(|l| l.chars().take(60).collect::<String>()).collect::<Vec<_>>().join(" / ")
            ),
            None => eprintln!("{mutation:?}: SURVIVES, {states} states, {:?}", begun.elapsed()),
        }
    }
}
