//! Searching for the keys of ranges that were gained, in the caches: a pure note of what is still to be read
//! for, and the threads that do it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering},
    time::Duration,
};

use controllers_kit::Resource;
use coordinator::RangeId;
use peer_proto::RangeState;

use crate::{
    actors::range::unpack_mark,
    reconcile::Mark,
    shared::{Shared, Unit},
};

/// Ranges gained within this time are scanned for keys together: a cold start gains them all at once.
const BATCH: Duration = Duration::from_millis(5);
/// After a scan the next one waits for this many times what it took …
const REST: u32 = 3;
/// … and no longer than this: claims come back one by one for some tenths of a second, each scan examines
/// everything that there is, however few ranges it is for, and one after the other they took a core from the
/// keys.
const REST_MAX: Duration = Duration::from_millis(150);
/// Ranges handed over within this time are. What their owner knew came with them and what has changed since
/// is searched for at once, so a scan finds only what neither shows: a deletion seen before the one and not
/// after the other.
const HANDED_BATCH: Duration = Duration::from_millis(500);

/// The newest versions that the owners before had seen.
type Seen = BTreeMap<&'static Resource, u64>;

/// What is still to be searched for. Bound: the fleet's number of ranges, since each check takes all.
#[derive(Default)]
struct Unscanned {
    /// To be scanned as soon as no other scan runs: side by side they would take both cores from the keys.
    due: BTreeSet<RangeId>,
    scanning: bool,
    /// Handed over, to be scanned together.
    handed: BTreeSet<RangeId>,
    /// Handed over, and not yet searched for in what has changed since.
    fresh: BTreeSet<RangeId>,
    seen: Seen,
    looking: bool,
}

/// The scans of one replica.
#[derive(Clone)]
pub(super) struct Scans {
    shared: Arc<Shared>,
    unscanned: Arc<Mutex<Unscanned>>,
}

impl Scans {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            unscanned: Arc::default(),
        }
    }

    fn unscanned(&self) -> MutexGuard<'_, Unscanned> {
        self.unscanned
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues every key of a range of which nothing is known, together with those gained since the last scan.
    pub(super) fn taken(&self, range: RangeId) {
        let mut unscanned = self.unscanned();
        unscanned.due.insert(range);
        if !std::mem::replace(&mut unscanned.scanning, true) {
            let scans = self.clone();
            self.shared.aside.run(BATCH, move || scans.scan());
        }
    }

    /// Queues the keys of a range that was handed over: at once those of what has changed since its owner
    /// read last, and all of them a little later. One whose owner does not say how far it had seen counts
    /// as taken.
    pub(super) fn handed(&self, range: RangeId, state: &RangeState) {
        let seen = seen(&self.shared, state);
        if seen.is_empty() {
            return self.taken(range);
        }
        let mut unscanned = self.unscanned();
        unscanned.fresh.insert(range);
        for (resource, version) in seen {
            lower(&mut unscanned.seen, resource, version);
        }
        if !std::mem::replace(&mut unscanned.looking, true) {
            let scans = self.clone();
            self.shared.aside.run(BATCH, move || scans.read());
        }
        if unscanned.handed.is_empty() {
            let scans = self.clone();
            self.shared.aside.run(HANDED_BATCH, move || {
                let mut unscanned = scans.unscanned();
                let handed = std::mem::take(&mut unscanned.handed);
                unscanned.due.extend(handed);
                let scanning = std::mem::replace(&mut unscanned.scanning, true);
                drop(unscanned);
                if !scanning {
                    scans.scan();
                }
            });
        }
        unscanned.handed.insert(range);
    }

    /// Scans what is due, and again after a while, until nothing is.
    fn scan(&self) {
        let mut unscanned = self.unscanned();
        let ranges = std::mem::take(&mut unscanned.due);
        unscanned.scanning = !ranges.is_empty();
        drop(unscanned);
        if ranges.is_empty() {
            return;
        }
        let clock = &self.shared.clock;
        let began = clock.monotonic();
        self.shared
            .wake_all(&is_ready, &|range| ranges.contains(&range));
        let took = clock.monotonic().saturating_sub(began);
        tracing::debug!(
            ranges = ranges.len(),
            ?took,
            "searched for the keys of ranges"
        );
        let scans = self.clone();
        self.shared
            .aside
            .run(rest_after(took), move || scans.scan());
    }

    /// Examines what has changed until nothing is fresh.
    fn read(&self) {
        loop {
            let mut unscanned = self.unscanned();
            let ranges = std::mem::take(&mut unscanned.fresh);
            let seen = std::mem::take(&mut unscanned.seen);
            unscanned.looking = !ranges.is_empty();
            drop(unscanned);
            if ranges.is_empty() {
                return;
            }
            self.shared
                .wake_newer(&seen, &is_ready, &|range| ranges.contains(&range));
        }
    }
}

/// How long the next scan waits for one that took so long.
fn rest_after(took: Duration) -> Duration {
    (took * REST).clamp(BATCH, REST_MAX)
}

/// A controller whose caches are not complete is scanned when they are.
fn is_ready(unit: &Unit) -> bool {
    unit.ready.load(Ordering::Acquire)
}

/// How far the owner before had seen each resource; of two for one, the lesser.
fn seen(shared: &Shared, state: &RangeState) -> Seen {
    let mut seen = Seen::new();
    let marks = state.controllers.iter().flat_map(|part| &part.seen);
    for mark in marks.filter_map(|mark| unpack_mark(shared, mark)) {
        if let Mark::Version(resource, version) = mark {
            lower(&mut seen, resource, version);
        }
    }
    seen
}

fn lower(seen: &mut Seen, resource: &'static Resource, version: u64) {
    let least = seen.entry(resource).or_insert(version);
    *least = version.min(*least);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_leaves_the_keys_three_quarters_of_the_time_and_none_waits_for_long() {
        let of = |millis| rest_after(Duration::from_millis(millis)).as_millis();
        assert_eq!([of(0), of(10), of(40), of(400)], [5, 30, 120, 150]);
    }
}
