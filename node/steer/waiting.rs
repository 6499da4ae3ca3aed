//! Keys of a range that something has happened to while they were paused. Pure.

use std::collections::{BTreeMap, HashMap};

use controllers_kit::Key;

use crate::queue::Monotonic;

/// Paused keys of a controller that a range remembers. Beyond it, all of the controller's keys in the range
/// are enqueued when the pause ends: objects that are gone by then would otherwise add up.
pub const WAITING_MAX: usize = 10_000;

/// Paused keys of a range. Bound: [`WAITING_MAX`] for each controller.
#[derive(Debug, Default)]
pub struct Waiting {
    controllers: BTreeMap<u16, HashMap<Key, Monotonic>>,
}

impl Waiting {
    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.controllers.is_empty()
    }

    /// A paused key is to be reconciled once it is paused no more, and waits since then. False where there
    /// is no room: then every key is to be enqueued when the pause ends.
    pub fn put(&mut self, unit: u16, key: Key, since: Monotonic) -> bool {
        let keys = self.controllers.entry(unit).or_default();
        if keys.len() >= WAITING_MAX && !keys.contains_key(&key) {
            return false;
        }
        let known = keys.entry(key).or_insert(since);
        *known = since.min(*known);
        true
    }

    /// Takes the keys that are paused no more.
    pub fn take(&mut self, is_paused: impl Fn(u16, &Key) -> bool) -> Vec<(u16, Key)> {
        let mut free = Vec::new();
        self.controllers.retain(|unit, keys| {
            let taken = keys.extract_if(|key, _| !is_paused(*unit, key));
            free.extend(taken.map(|(key, _)| (*unit, key)));
            !keys.is_empty()
        });
        free.sort_unstable();
        free
    }

    /// Since when a key waits.
    pub fn since(&self, unit: u16, key: &Key) -> Option<Monotonic> {
        self.controllers.get(&unit)?.get(key).copied()
    }

    /// The keys of a controller that wait.
    pub fn keys(&self, unit: u16) -> impl Iterator<Item = &Key> {
        self.controllers
            .get(&unit)
            .into_iter()
            .flat_map(HashMap::keys)
    }

    /// How many keys of a controller wait.
    pub fn count(&self, unit: u16) -> usize {
        self.controllers.get(&unit).map_or(0, HashMap::len)
    }
}
