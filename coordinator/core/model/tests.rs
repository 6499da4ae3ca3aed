use std::time::{Duration, Instant};

use stateright::{Checker, Model};

use super::{
    Fleet,
    world::{Bounds, Start, Wrong},
};
use crate::mutation::Mutation;

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
            .filter_map(|(state, action)| match action {
                Some(super::Action::Fault(fault)) => Some(format!(
                    "tick {}: {fault:?} of {:?}",
                    state.now,
                    state.queue.front()
                )),
                _ => None,
            })
            .collect();
        let last = path.last_state();
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
    for b in [
        bounds(3, 4, Start::Cold, 0, 0),
        bounds(3, 4, Start::Join, 1, 8),
        bounds(3, 4, Start::Rest, 1, 3),
        bounds(3, 4, Start::Drain, 1, 8),
        bounds(2, 8, Start::Join, 1, 8),
        bounds(2, 2, Start::Join, 1, 8),
        bounds(2, 2, Start::Cold, 1, 12),
    ] {
        let begun = Instant::now();
        let explored = explore(&b, None, Duration::from_secs(60));
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
