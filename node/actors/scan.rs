//! Looking for the keys of ranges that were gained, in the caches: a pure note of what is still to be looked for, and
//! the threads that do it.

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
/// Ranges handed over within this time are. What their owner knew came with them and what has changed since is looked
/// for at once, so a scan finds only what neither tells of: a deletion seen before the one and not after the other.
const HANDED_BATCH: Duration = Duration::from_millis(500);

/// The newest versions that the owners before had seen.
type Seen = BTreeMap<&'static Resource, u64>;

/// What is still to be looked for. Bound: the fleet's number of ranges, since each look takes all.
#[derive(Default)]
struct Unscanned {
    /// To be scanned as soon as no other scan runs: side by side they would take both cores from the keys.
    due: BTreeSet<RangeId>,
    scanning: bool,
    /// Handed over, to be scanned together.
    handed: BTreeSet<RangeId>,
    /// Handed over, and not yet looked for in what has changed since.
    fresh: BTreeSet<RangeId>,
    seen: Seen,
    looking: bool,
}

/// The looks of one replica.
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

    /// Queues the keys of a range that was handed over: at once those of what has changed since its owner looked last,
    /// and all of them a little later. One whose owner does not say how far it had seen counts as taken.
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
            self.shared.aside.run(BATCH, move || scans.look());
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

    /// Scans until nothing is due.
    fn scan(&self) {
        loop {
            let mut unscanned = self.unscanned();
            let ranges = std::mem::take(&mut unscanned.due);
            unscanned.scanning = !ranges.is_empty();
            drop(unscanned);
            if ranges.is_empty() {
                return;
            }
            self.shared
                .wake_all(&is_ready, &|range| ranges.contains(&range));
        }
    }

    /// Looks at what has changed until nothing is fresh.
    fn look(&self) {
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

/// A controller whose caches are not complete is scanned when they are.
fn is_ready(unit: &Unit) -> bool {
    unit.ready.load(Ordering::Acquire)
}

/// How far the owner before had seen each resource; of two that tell of one, the lesser.
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
