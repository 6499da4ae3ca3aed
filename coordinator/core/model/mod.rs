//! The protocol, explored exhaustively: every placement of a bounded number of faults in a bounded window,
//! each followed until the fleet rests.

mod tests;
mod world;

use stateright::{Model, Property};

use crate::mutation::{self, Mutation};
use world::{Bounds, Fault, World};

/// The one property: the state says which promise was broken.
const SOUND: &str = "every promise is kept";

/// What is explored, and with which mutation of the protocol.
#[derive(Clone, Debug)]
struct Fleet {
    bounds: Bounds,
    mutation: Option<Mutation>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    /// The schedule continues by one message.
    Step,
    /// No more faults: it continues to the next tick.
    Tick,
    /// It is departed from.
    Fault(Fault),
}

impl World {
    fn after(&self, action: Action) -> Self {
        let mut next = self.clone();
        match action {
            Action::Step => next.step(),
            Action::Tick => next.tick(),
            Action::Fault(fault) => next.fault(fault),
        }
        next
    }
}

impl Model for Fleet {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        mutation::set(self.mutation);
        vec![World::start(&self.bounds)]
    }

    fn actions(&self, state: &World, actions: &mut Vec<Action>) {
        if state.is_over() {
            return;
        }
        let mut faults = Vec::new();
        state.possible(&mut faults);
        actions.extend(faults.into_iter().map(Action::Fault));
        actions.push(if state.may_fail() {
            Action::Step
        } else {
            Action::Tick
        });
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        mutation::set(self.mutation);
        Some(last.after(action))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always(SOUND, |_, state: &World| {
            state.wrong.is_none()
        })]
    }
}
