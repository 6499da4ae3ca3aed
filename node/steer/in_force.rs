//! The orders that hold at present, as the ranges and the coordinator ask for them. Pure.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use controllers_kit::{Key, Timestamp};
use coordinator_core::{Member, RangePin};
use inspect::{Blocker, BlockerKind};
use steering::{Amount, Order, Orders, Setting, Target};

/// The orders that hold at present. Bound: [`steering::ORDERS_MAX`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InForce {
    /// Paused controllers, by their places.
    controllers: HashMap<u16, Arc<Order>>,
    /// Paused keys.
    keys: HashMap<(u16, Key), Arc<Order>>,
    /// Values of controllers' settings.
    settings: HashMap<(u16, Setting), Arc<Order>>,
    /// Drained replicas.
    drains: Vec<Arc<Order>>,
    /// Ranges that are to be another replica's.
    moves: BTreeMap<u16, RangePin>,
    /// How often that has changed.
    pub generation: u64,
}

impl InForce {
    /// The orders that hold. `place` gives a controller's, if it runs here.
    pub fn of(
        orders: &BTreeMap<&Target, &Order>,
        place: &dyn Fn(&str) -> Option<u16>,
        generation: u64,
    ) -> Self {
        let mut found = Self {
            generation,
            ..Self::default()
        };
        for (target, order) in orders {
            let order = Arc::new((*order).clone());
            match target {
                Target::Controller(controller) => {
                    if let Some(place) = place(controller) {
                        found.controllers.insert(place, order);
                    }
                }
                Target::Key { controller, key } => {
                    if let Some(place) = place(controller) {
                        found.keys.insert((place, Key::parse(key)), order);
                    }
                }
                Target::Setting {
                    controller,
                    setting,
                } => {
                    if let Some(place) = place(controller) {
                        found.settings.insert((place, *setting), order);
                    }
                }
                Target::Replica(_) => found.drains.push(order),
                Target::Range(range) => {
                    if let Some(to) = &order.to {
                        let (to, home) = (to.clone(), order.home.clone());
                        found.moves.insert(*range, RangePin { to, home });
                    }
                }
            }
        }
        found
    }

    /// How many drains hold.
    pub fn drains(&self) -> usize {
        self.drains.len()
    }

    /// The replicas that ranges are to have, by the ranges' numbers.
    pub fn moves(&self) -> &BTreeMap<u16, RangePin> {
        &self.moves
    }

    /// The value that is set of a controller.
    pub fn setting(&self, unit: u16, setting: Setting) -> Option<Amount> {
        self.settings.get(&(unit, setting))?.amount
    }

    /// Whether all keys of a controller are paused.
    pub fn pauses_all_of(&self, unit: u16) -> bool {
        self.controllers.contains_key(&unit)
    }

    /// The order by which a key is paused: of its controller and its own the one that ends later.
    pub fn pause(&self, unit: u16, key: &Key) -> Option<&Arc<Order>> {
        let own = match self.keys.is_empty() {
            true => None,
            false => self.keys.get(&(unit, key.clone())),
        };
        let both = self.controllers.get(&unit).into_iter().chain(own);
        both.max_by_key(|order| order.until)
    }

    /// How many orders pause a controller, and how many one of its keys.
    pub fn counts(&self, unit: u16) -> (usize, usize) {
        let keys = self.keys.keys().filter(|(of, _)| *of == unit).count();
        (usize::from(self.pauses_all_of(unit)), keys)
    }

    /// The order by which this start of a replica is drained.
    pub fn drain(&self, name: &str, incarnation: &str) -> Option<&Arc<Order>> {
        let is_its = |order: &&Arc<Order>| {
            order.target == Target::Replica(name.to_owned())
                && order.incarnation.as_deref() == Some(incarnation)
        };
        self.drains.iter().find(is_its)
    }

    /// Whether a replica leaves its ranges to others: it is drained, and another takes them. That is one that
    /// sees what happens and is not drained, or was drained after it: so the last that is drained keeps all
    /// ranges where nobody is left, and of two drained ones neither waits for the other.
    pub fn steps_back(&self, name: &str, members: &[Member]) -> bool {
        if self.drains.is_empty() {
            return false;
        }
        let drained = |member: &Member| {
            let order = self.drain(&member.name, &member.incarnation)?;
            Some((order.since, member.name.clone()))
        };
        let own = members.iter().find(|member| member.name == name);
        let Some(own) = own.and_then(drained) else {
            return false;
        };
        let takes = |member: &&Member| member.ready && !member.draining && !member.stale;
        let mut others = members.iter().filter(takes);
        others.any(|member| member.name != name && drained(member).is_none_or(|its| its > own))
    }
}

/// What an order says of a key that it pauses.
pub fn blocker(order: &Order) -> Blocker {
    Blocker::new(
        BlockerKind::Paused,
        order.target.to_string(),
        order.in_words(),
        format!("kubectl manifold resume {}", order.target),
    )
}

/// The reasons of events about orders.
const PAUSED: &str = "Paused";
const RESUMED: &str = "Resumed";
const CHANGED: &str = "SettingChanged";
const RESTORED: &str = "SettingRestored";
const DRAINED: &str = "Drained";
const UNDRAINED: &str = "Undrained";
const MOVED: &str = "Moved";
const UNMOVED: &str = "Unmoved";

/// What becomes of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It holds from now on.
    Begins,
    /// It holds already and is another now: its end, its reason.
    Changes,
    /// It was taken back.
    Lifted,
    /// Its time is over.
    Expires,
}

/// An order that holds from now on, or no longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The order; the new one where it changes.
    pub order: Order,
    /// What becomes of it.
    pub what: What,
}

impl Change {
    /// Reason and message of the event that says so at the object which the order is about.
    pub fn event(&self) -> (&'static str, String) {
        let (target, order) = (&self.order.target, self.order.in_words());
        let end = match self.what {
            What::Begins | What::Changes => None,
            What::Lifted => Some("it was taken back"),
            What::Expires => Some("it has expired"),
        };
        match (target, end) {
            (Target::Controller(_) | Target::Key { .. }, None) => {
                (PAUSED, format!("{target} is paused {order}"))
            }
            (Target::Controller(_) | Target::Key { .. }, Some(end)) => {
                let message = format!("{target} is reconciled again: the pause is over, {end}");
                (RESUMED, message)
            }
            (Target::Setting { .. }, None) => {
                let amount = self.order.amount.map(|amount| amount.to_string());
                let amount = amount.unwrap_or_default();
                (CHANGED, format!("{target} set to {amount} {order}"))
            }
            (Target::Setting { .. }, Some(end)) => {
                let message = format!("{target} as configured again: the order is over, {end}");
                (RESTORED, message)
            }
            (Target::Range(_), None) => {
                let to = self.order.to.as_deref().unwrap_or_default();
                (MOVED, format!("{target} moved to {to} {order}"))
            }
            (Target::Range(_), Some(end)) => {
                let message = format!("{target} goes home: the move is over, {end}");
                (UNMOVED, message)
            }
            (Target::Replica(_), None) => (DRAINED, format!("{target} is drained {order}")),
            (Target::Replica(_), Some(end)) => (
                UNDRAINED,
                format!("{target} takes ranges again: the drain is over, {end}"),
            ),
        }
    }
}

/// What is different between the orders that held and those that hold now.
pub fn changes(
    before: &BTreeMap<Target, Order>,
    after: &BTreeMap<&Target, &Order>,
    now: Timestamp,
) -> Vec<Change> {
    let ended = before
        .values()
        .filter(|order| !after.contains_key(&order.target));
    let ended = ended.map(|order| Change {
        order: order.clone(),
        what: match order.until <= now {
            true => What::Expires,
            false => What::Lifted,
        },
    });
    let others = after.values().filter_map(|order| {
        let what = match before.get(&order.target) {
            None => What::Begins,
            Some(known) if known != *order => What::Changes,
            Some(_) => return None,
        };
        Some(Change {
            order: (*order).clone(),
            what,
        })
    });
    ended.chain(others).collect()
}

/// The orders of an object that hold, by what they are about.
pub fn held(orders: &Orders, now: Timestamp) -> BTreeMap<Target, Order> {
    let all = orders.in_force(now).into_iter();
    all.map(|(target, order)| (target.clone(), order.clone()))
        .collect()
}
