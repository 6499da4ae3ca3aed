//! The queue of one controller in one range: delay, back-off and one entry per key. Pure: the clock is an
//! argument.
//!
//! A key is waiting at most once and worked on at most once. What is added while it is worked on is
//! remembered and waits again when the work is done. What a user changed goes ahead of what was queued
//! because a range was gained.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    time::Duration,
};

use controllers_kit::{Backoff, Key};

#[cfg(test)]
mod tests;

/// Time since the process started: all that the queue knows of clocks.
pub type Monotonic = Duration;

/// Who waits for the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Nobody changed anything: the range was gained, or a cache was listed again.
    Low,
    /// Something changed.
    High,
}

/// An attempt that ended in a conflict makes its key wait no longer than this, however slow the server is.
const CONFLICT_MAX: Duration = Duration::from_secs(1);

/// A table below this size keeps its room.
const KEPT: usize = 16;

/// Gives back the room of a table that holds an eighth of what it has room for: when a range is gained every
/// key waits once, and then hardly any.
pub(crate) fn give_back<T>(table: &mut HashMap<Key, T>) {
    if is_roomy(table.len(), table.capacity()) {
        table.shrink_to(2 * table.len());
    }
}

fn is_roomy(len: usize, capacity: usize) -> bool {
    capacity > KEPT && len < capacity / 8
}

#[derive(Debug, Default)]
struct Entry {
    /// Since when it waits to be taken, and how urgently.
    waiting: Option<(Monotonic, Priority)>,
    /// When it is due by itself.
    due: Option<Monotonic>,
    /// Whether it is being worked on.
    working: bool,
    /// Added while it was worked on.
    again: Option<(Monotonic, Priority)>,
    /// Failures in a row.
    failures: u32,
}

impl Entry {
    fn is_idle(&self) -> bool {
        self.waiting.is_none()
            && self.due.is_none()
            && !self.working
            && self.again.is_none()
            && self.failures == 0
    }
}

/// A key taken to be worked on.
#[derive(Debug, PartialEq, Eq)]
pub struct Taken {
    /// The key.
    pub key: Key,
    /// How long it has waited.
    pub waited: Duration,
    /// How urgent it was.
    pub priority: Priority,
}

/// One key's place in the queue, as it is handed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The key.
    pub key: Key,
    /// How long it has waited to be taken, if it waits.
    pub waited: Option<(Duration, Priority)>,
    /// In how long it is due by itself.
    pub due_in: Option<Duration>,
    /// Failures in a row.
    pub failures: u32,
}

/// The queue. Bound: one entry per key that exists or was just deleted.
#[derive(Debug)]
pub struct Queue {
    backoff: Backoff,
    entries: HashMap<Key, Entry>,
    high: VecDeque<Key>,
    low: VecDeque<Key>,
    due: BTreeSet<(Monotonic, Key)>,
    waiting: usize,
    /// Keys that are worked on and were added again.
    again: usize,
}

impl Default for Queue {
    fn default() -> Self {
        Self::new(Backoff::DEFAULT)
    }
}

impl Queue {
    /// With a controller's back-off.
    pub fn new(backoff: Backoff) -> Self {
        Self {
            backoff,
            entries: HashMap::new(),
            high: VecDeque::new(),
            low: VecDeque::new(),
            due: BTreeSet::new(),
            waiting: 0,
            again: 0,
        }
    }

    /// Adds a key; whether it was not waiting already.
    pub fn add(&mut self, key: &Key, priority: Priority, now: Monotonic) -> bool {
        let entry = self.entries.entry(key.clone()).or_default();
        if entry.working {
            let new = entry.again.is_none();
            let (since, before) = entry.again.unwrap_or((now, priority));
            entry.again = Some((since, before.max(priority)));
            self.again += usize::from(new);
            return new;
        }
        match entry.waiting {
            None => {
                entry.waiting = Some((now, priority));
                self.waiting += 1;
                self.line(priority).push_back(key.clone());
                true
            }
            Some((since, Priority::Low)) if priority == Priority::High => {
                // Its place in the low line is skipped when it is reached.
                entry.waiting = Some((since, Priority::High));
                self.high.push_back(key.clone());
                false
            }
            Some(_) => false,
        }
    }

    /// Adds a key when `due` has come; an earlier time counts.
    pub fn add_at(&mut self, key: &Key, due: Monotonic) {
        let entry = self.entries.entry(key.clone()).or_default();
        match entry.due {
            Some(earlier) if earlier <= due => return,
            Some(later) => {
                self.due.remove(&(later, key.clone()));
            }
            None => {}
        }
        entry.due = Some(due);
        self.due.insert((due, key.clone()));
    }

    /// Counts a failure and adds the key after the back-off that follows from it, which is returned.
    pub fn add_after_failure(&mut self, key: &Key, now: Monotonic) -> Duration {
        self.add_after(key, self.backoff, Duration::ZERO, now)
    }

    /// As [`Queue::add_after_failure`], for a plan that was made from a stale view: the attempt took this
    /// long. The back-off begins at the default one, since no server has to be spared, but no delay is
    /// shorter than the attempt. A server that takes long to answer is as slow with its watches: a retry
    /// before they have caught up would be another conflict. The two are not multiplied: what was missing may
    /// wake other keys only, and after eight attempts of a second each this one would wait for minutes.
    pub fn add_after_conflict(&mut self, key: &Key, took: Duration, now: Monotonic) -> Duration {
        let backoff = Backoff {
            first: self.backoff.first.min(Backoff::DEFAULT.first),
            ..self.backoff
        };
        self.add_after(key, backoff, took.min(CONFLICT_MAX), now)
    }

    fn add_after(
        &mut self,
        key: &Key,
        backoff: Backoff,
        least: Duration,
        now: Monotonic,
    ) -> Duration {
        let entry = self.entries.entry(key.clone()).or_default();
        entry.failures = entry.failures.saturating_add(1);
        let delay = backoff.after(entry.failures).max(least);
        self.add_at(key, now + delay);
        delay
    }

    /// Forgets the failures of a key.
    pub fn forget(&mut self, key: &Key) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.failures = 0;
        }
    }

    /// Takes the most urgent waiting key.
    pub fn take(&mut self, now: Monotonic) -> Option<Taken> {
        self.ripen(now);
        for (line, priority) in [
            (&mut self.high, Priority::High),
            (&mut self.low, Priority::Low),
        ] {
            while let Some(key) = line.pop_front() {
                if is_roomy(line.len(), line.capacity()) {
                    line.shrink_to(2 * line.len());
                }
                let Some(entry) = self.entries.get_mut(&key) else {
                    continue;
                };
                match entry.waiting {
                    Some((since, waiting)) if waiting == priority => {
                        entry.waiting = None;
                        entry.working = true;
                        self.waiting -= 1;
                        return Some(Taken {
                            key,
                            waited: now.saturating_sub(since),
                            priority,
                        });
                    }
                    // Promoted to the high line, or taken there.
                    _ => {}
                }
            }
        }
        None
    }

    /// Begins to work on a key that may wait here or not.
    pub fn start(&mut self, key: &Key) {
        let entry = self.entries.entry(key.clone()).or_default();
        entry.working = true;
        // Its place in the line is skipped when it is reached.
        let waited = entry.waiting.take().is_some();
        self.waiting -= usize::from(waited);
    }

    /// The work on a key is done; what was added meanwhile waits now.
    pub fn done(&mut self, key: &Key) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        entry.working = false;
        if let Some((since, priority)) = entry.again.take() {
            entry.waiting = Some((since, priority));
            self.again -= 1;
            self.waiting += 1;
            self.line(priority).push_back(key.clone());
        } else if entry.is_idle() {
            self.entries.remove(key);
            give_back(&mut self.entries);
        }
    }

    /// Moves what is due to the waiting keys; whether there was any.
    pub fn ripen(&mut self, now: Monotonic) -> bool {
        let mut any = false;
        while let Some((due, _)) = self.due.first() {
            if *due > now {
                break;
            }
            let (due, key) = self.due.pop_first().expect("there is a first one");
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.due = None;
            }
            self.add(&key, Priority::High, due);
            any = true;
        }
        any
    }

    /// When the next key is due by itself.
    pub fn next_due(&self) -> Option<Monotonic> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Whether no key waits or is due.
    pub fn is_at_rest(&self) -> bool {
        self.waiting == 0 && self.due.is_empty()
    }

    /// How many keys wait to be taken.
    pub fn depth(&self) -> usize {
        self.waiting
    }

    /// The same with the keys that are worked on and were added again, as upstream counts a queue's depth.
    pub fn pending(&self) -> usize {
        self.waiting + self.again
    }

    /// Whether a key waits, is due, is worked on or has failed.
    pub fn knows(&self, key: &Key) -> bool {
        self.entries.contains_key(key)
    }

    /// Failures in a row of a key.
    pub fn failures(&self, key: &Key) -> u32 {
        self.entries.get(key).map_or(0, |entry| entry.failures)
    }

    /// A key's place: for the handoff and for `/debug/explain`.
    pub fn place(&self, key: &Key, now: Monotonic) -> Option<Place> {
        let entry = self.entries.get(key)?;
        let waiting = entry.waiting.or(entry.again);
        Some(Place {
            key: key.clone(),
            waited: waiting.map(|(since, priority)| (now.saturating_sub(since), priority)),
            due_in: entry.due.map(|due| due.saturating_sub(now)),
            failures: entry.failures,
        })
    }

    /// The places of all keys.
    pub fn places(&self, now: Monotonic) -> Vec<Place> {
        self.entries
            .keys()
            .filter_map(|key| self.place(key, now))
            .collect()
    }

    /// Takes over a place from another replica.
    pub fn restore(&mut self, place: &Place, now: Monotonic) {
        let entry = self.entries.entry(place.key.clone()).or_default();
        entry.failures = entry.failures.max(place.failures);
        if let Some((waited, priority)) = place.waited {
            self.add(&place.key, priority, now.saturating_sub(waited));
        }
        if let Some(due_in) = place.due_in {
            self.add_at(&place.key, now + due_in);
        }
        if self.entries.get(&place.key).is_some_and(Entry::is_idle) {
            self.entries.remove(&place.key);
        }
    }

    fn line(&mut self, priority: Priority) -> &mut VecDeque<Key> {
        match priority {
            Priority::High => &mut self.high,
            Priority::Low => &mut self.low,
        }
    }
}
