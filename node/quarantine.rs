//! Keys that may end the process which reconciles them: what this process has in flight, which keys and
//! ranges are treated with care, and when a quarantined key's turn has come. The decisions are pure;
//! `actors/range.rs` acts on them.
//!
//! Which keys are suspected follows from Leases ([`coordinator_core::Quarantine`]). What a suspected key
//! meets here:
//! * It is reconciled *alone*: nothing else of its range is in flight, no other suspected key of the process
//!   is, and the replica's Lease names it before it begins.
//! * It is reconciled *last*: when its range's queues are empty, or after [`LAST_PATIENCE`].
//! * If it has killed while alone, it is *held back* ([`hold_back`]), unless its object changes.
//! * It is *released* after it was reconciled alone [`PASSES`] times, and in any case when the deaths are too
//!   long ago.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use arc_swap::{ArcSwap, Guard};
use controllers_kit::Key;
use coordinator::{Care, Quarantine, Suspicion, WORKING_MAX, Work};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::queue::{Monotonic, Priority, Taken};

/// Keys of ranges that want care that this process has in flight at once: as many are quarantined if it dies.
pub const ANNOUNCED_MAX: usize = 8;

/// A key that is in flight for less time is not named in the Lease, unless it was announced.
pub const SUSPECT_AFTER: Duration = Duration::from_millis(200);

/// A quarantined key is released after it was reconciled so often without a death.
pub const PASSES: u32 = 2;

/// Between two reconciles of a quarantined key that nothing else wakes: what it sets off has time to end the
/// process.
pub const PASS_SPACING: Duration = Duration::from_secs(10);

/// Keys that keep coming into the range's queues delay a quarantined key by no more than this.
pub const LAST_PATIENCE: Duration = Duration::from_secs(30);

/// After the first death alone a key is held back for this many seconds, after each further one for
/// [`HOLD_BACK_FACTOR`] times as long.
const HOLD_BACK: i64 = 60;
const HOLD_BACK_FACTOR: i64 = 4;
/// Upper bound of that, in seconds.
const HOLD_BACK_MAX: i64 = 600;

/// For how many seconds after the last death a key is held back that has killed so often while it was
/// reconciled alone.
pub fn hold_back(alone: u32) -> i64 {
    match alone {
        0 => 0,
        more => HOLD_BACK_FACTOR
            .checked_pow(more - 1)
            .and_then(|factor| HOLD_BACK.checked_mul(factor))
            .map_or(HOLD_BACK_MAX, |seconds| seconds.min(HOLD_BACK_MAX)),
    }
}

/// What the ranges of a process share of it.
pub struct Watchlist {
    list: ArcSwap<Quarantine>,
    flights: Mutex<Flights>,
    /// [`ANNOUNCED_MAX`] permits.
    pub announced: Arc<Semaphore>,
    /// One permit, for the key that is reconciled alone.
    pub alone: Arc<Semaphore>,
}

/// Keys in flight, in the order in which they began. Bound: the workers of all controllers.
#[derive(Default)]
struct Flights {
    next: u64,
    all: BTreeMap<u64, Flying>,
}

struct Flying {
    controller: &'static str,
    key: Key,
    care: Care,
    since: Monotonic,
}

impl Default for Watchlist {
    fn default() -> Self {
        Self {
            list: ArcSwap::default(),
            flights: Mutex::default(),
            announced: Arc::new(Semaphore::new(ANNOUNCED_MAX)),
            alone: Arc::new(Semaphore::new(1)),
        }
    }
}

impl Watchlist {
    /// What Leases say at present.
    pub fn list(&self) -> Guard<Arc<Quarantine>> {
        self.list.load()
    }

    /// What Leases say from now on.
    pub fn set(&self, quarantine: Quarantine) {
        self.list.store(Arc::new(quarantine));
    }

    /// A key is in flight until the guard is dropped.
    pub fn enter(
        self: &Arc<Self>,
        controller: &'static str,
        key: Key,
        care: Care,
        since: Monotonic,
    ) -> Flight {
        let mut flights = self.flights.lock().unwrap_or_else(PoisonError::into_inner);
        let id = flights.next;
        flights.next += 1;
        let flying = Flying {
            controller,
            key,
            care,
            since,
        };
        flights.all.insert(id, flying);
        Flight {
            list: Arc::clone(self),
            id,
        }
    }

    /// What the Lease is to name: announced keys, then those in flight for long, the oldest first.
    pub fn working(&self, now: Monotonic) -> Vec<Work> {
        let flights = self.flights.lock().unwrap_or_else(PoisonError::into_inner);
        let mut named = Vec::new();
        for care in [Care::Alone, Care::Announced, Care::None] {
            let of_care = flights.all.values().filter(|flying| {
                flying.care == care && (care != Care::None || now >= flying.since + SUSPECT_AFTER)
            });
            let room = WORKING_MAX.saturating_sub(named.len());
            named.extend(
                of_care
                    .take(room)
                    .map(|flying| Work::new(flying.controller, &flying.key, care)),
            );
        }
        named
    }
}

/// A key in flight.
pub struct Flight {
    list: Arc<Watchlist>,
    id: u64,
}

impl Drop for Flight {
    fn drop(&mut self) {
        let mut flights = self
            .list
            .flights
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        flights.all.remove(&self.id);
    }
}

/// A controller's place and a key of it.
pub type Place = (u16, Key);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Suspect {
    suspicion: Suspicion,
    /// Reconciles alone that nobody died of, since the last death.
    passes: u32,
    /// Since when it waits for its turn.
    waiting: Option<Monotonic>,
    /// Its object when it began to wait: its generation, or its resourceVersion where it has none.
    version: Option<u64>,
}

impl Suspect {
    fn is_released(&self) -> bool {
        self.passes >= PASSES
    }

    /// New deaths begin everything again.
    fn update(&mut self, suspicion: Suspicion) {
        if self.suspicion.deaths != suspicion.deaths {
            self.passes = 0;
            self.version = None;
        }
        self.suspicion = suspicion;
    }

    fn due_at(&self) -> i64 {
        self.suspicion.last + hold_back(self.suspicion.alone)
    }
}

/// What becomes of a key that was taken from its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is reconciled as any other.
    Free,
    /// It waits for its turn; `first` is said once.
    HeldBack {
        /// Whether it was not quarantined here before.
        first: bool,
    },
}

/// The suspected keys of one range. Bound: the keys that Leases name, see [`Quarantine::keys`].
#[derive(Debug, Default)]
pub struct Isolation {
    suspects: BTreeMap<Place, Suspect>,
}

impl Isolation {
    /// Whether no key of the range is suspected.
    pub fn is_empty(&self) -> bool {
        self.suspects.is_empty()
    }

    /// A key was taken from its queue of which this is suspected; `version` is its object's.
    pub fn judge(
        &mut self,
        place: &Place,
        suspicion: Option<Suspicion>,
        version: Option<u64>,
        now: Monotonic,
    ) -> Verdict {
        let Some(suspicion) = suspicion else {
            self.suspects.remove(place);
            return Verdict::Free;
        };
        let (suspect, first) = match self.suspects.entry(place.clone()) {
            Entry::Occupied(entry) => (entry.into_mut(), false),
            Entry::Vacant(entry) => (entry.insert(Suspect::default()), true),
        };
        suspect.update(suspicion);
        if suspect.is_released() {
            return Verdict::Free;
        }
        suspect.waiting.get_or_insert(now);
        if suspect.version.is_none() {
            suspect.version = version;
        }
        Verdict::HeldBack { first }
    }

    /// Compares with what is suspected by now; gives the keys that were waiting and are free.
    pub fn review(&mut self, suspicion: impl Fn(&Place) -> Option<Suspicion>) -> Vec<Place> {
        let mut free = Vec::new();
        self.suspects
            .retain(|place, suspect| match suspicion(place) {
                Some(suspicion) => {
                    suspect.update(suspicion);
                    true
                }
                None => {
                    free.extend(suspect.waiting.map(|_| place.clone()));
                    false
                }
            });
        free
    }

    /// Whose turn has come, as of a Unix second: the one that waits for longest. `quiet` says that no other
    /// key of the range waits; `is_free` that a key is not paused; `version` gives what an object is by now,
    /// `None` where there is none.
    pub fn next(
        &self,
        (second, now): (i64, Monotonic),
        quiet: bool,
        is_free: impl Fn(&Place) -> bool,
        version: impl Fn(&Place) -> Option<u64>,
    ) -> Option<Place> {
        let is_due = |(place, suspect): &(&Place, &Suspect)| {
            let Some(since) = suspect.waiting else {
                return false;
            };
            is_free(place)
                && (quiet || now >= since + LAST_PATIENCE)
                && (second >= suspect.due_at() || version(place) != suspect.version)
        };
        let due = self.suspects.iter().filter(is_due);
        let first = due.min_by_key(|(_, suspect)| suspect.waiting);
        first.map(|(place, _)| place.clone())
    }

    /// Its turn has come: it is taken as from a queue.
    pub fn take(&mut self, place: &Place, now: Monotonic) -> Option<Taken> {
        let since = self.suspects.get_mut(place)?.waiting.take()?;
        Some(Taken {
            key: place.1.clone(),
            waited: now.saturating_sub(since),
            priority: Priority::Low,
        })
    }

    /// It was reconciled alone and nobody died; whether it is released now.
    pub fn passed(&mut self, place: &Place) -> bool {
        let Some(suspect) = self.suspects.get_mut(place) else {
            return true;
        };
        suspect.passes = suspect.passes.saturating_add(1);
        suspect.is_released()
    }

    /// The quarantined keys of a controller; of all with `None`.
    pub fn count(&self, lane: Option<u16>) -> usize {
        let all = self.suspects.iter();
        all.filter(|((of, _), suspect)| {
            lane.is_none_or(|lane| lane == *of) && !suspect.is_released()
        })
        .count()
    }

    /// Whether any key waits for its turn.
    pub fn has_waiting(&self) -> bool {
        let mut all = self.suspects.values();
        all.any(|suspect| suspect.waiting.is_some())
    }

    /// The suspected keys of a controller, released ones included.
    pub fn keys(&self, lane: u16) -> impl Iterator<Item = &Key> {
        let all = self.suspects.keys();
        all.filter(move |(of, _)| *of == lane).map(|(_, key)| key)
    }

    /// For a handoff: whether the key waits for its turn, how often it has passed, and since how many deaths.
    pub fn pack(&self, place: &Place) -> (bool, u32, u32) {
        self.suspects.get(place).map_or((false, 0, 0), |suspect| {
            let deaths = suspect.suspicion.deaths;
            (suspect.waiting.is_some(), suspect.passes, deaths)
        })
    }

    /// What the owner before had seen.
    pub fn restore(&mut self, place: Place, passes: u32, deaths: u32) {
        let suspicion = Suspicion {
            deaths,
            ..Suspicion::default()
        };
        let suspect = Suspect {
            suspicion,
            passes,
            ..Suspect::default()
        };
        self.suspects.insert(place, suspect);
    }

    /// For `/debug/explain`, as of a Unix second.
    pub fn explain(&self, place: &Place, second: i64) -> Option<Value> {
        let suspect = self.suspects.get(place)?;
        let Suspicion {
            deaths,
            alone,
            last,
        } = suspect.suspicion;
        let why = format!(
            "{deaths} replicas died while they reconciled it, {alone} of them while they reconciled nothing else of its range"
        );
        Some(json!({
            "state": match (suspect.is_released(), suspect.waiting) {
                (true, _) => "released",
                (false, Some(_)) if second < suspect.due_at() => "held back",
                (false, Some(_)) => "waiting for its turn",
                (false, None) => "quarantined",
            },
            "why": why,
            "last_death_seconds_ago": second.saturating_sub(last),
            "held_back_seconds": suspect.due_at().saturating_sub(second).max(0),
            "passes": suspect.passes,
            "passes_needed": PASSES,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_700_000_000;

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn place(name: &str) -> Place {
        (3, Key::new("shop", name))
    }

    fn suspicion(deaths: u32, alone: u32) -> Option<Suspicion> {
        Some(Suspicion {
            deaths,
            alone,
            last: NOW,
        })
    }

    /// An isolation in which this key began to wait at ten seconds.
    fn waiting(deaths: u32, alone: u32) -> Isolation {
        let mut isolation = Isolation::default();
        let verdict = isolation.judge(&place("web"), suspicion(deaths, alone), Some(7), secs(10));
        assert_eq!(verdict, Verdict::HeldBack { first: true });
        isolation
    }

    #[test]
    fn a_key_is_held_back_the_longer_the_more_have_died_of_it_alone() {
        let holds: Vec<i64> = [0, 1, 2, 3, 4, 40, u32::MAX].map(hold_back).into();
        assert_eq!(holds, [0, 60, 240, 600, 600, 600, 600]);
    }

    #[test]
    fn a_suspected_key_has_its_turn_last_and_not_before_it_is_due() {
        for (case, alone, passed, waited, quiet, version, turn) in [
            ("others wait", 0, 0, 0, false, Some(7), false),
            ("no others wait", 0, 0, 0, true, Some(7), true),
            ("others keep coming", 0, 0, 30, false, Some(7), true),
            ("it has killed alone", 1, 59, 0, true, Some(7), false),
            ("a minute ago", 1, 60, 0, true, Some(7), true),
            ("its object has changed", 1, 5, 0, true, Some(8), true),
            ("its object is gone", 1, 5, 0, true, None, true),
            ("changed, but others wait", 1, 5, 0, false, Some(8), false),
        ] {
            let isolation = waiting(2 + alone, alone);
            let at = (NOW + passed, secs(10 + waited));
            let next = isolation.next(at, quiet, |_| true, |_| version);
            assert_eq!(next, turn.then(|| place("web")), "{case}");
            assert_eq!(
                isolation.next(at, quiet, |_| false, |_| version),
                None,
                "{case}"
            );
        }
    }

    #[test]
    fn one_that_waits_for_longest_is_next_and_is_taken_once() {
        let mut isolation = waiting(2, 0);
        isolation.judge(&place("api"), suspicion(2, 0), None, secs(12));
        let next = |isolation: &Isolation| {
            let version = |of: &Place| (of.1.name == *"web").then_some(7);
            isolation.next((NOW, secs(20)), true, |_| true, version)
        };
        assert_eq!(next(&isolation), Some(place("web")));
        let taken = isolation.take(&place("web"), secs(20)).unwrap();
        assert_eq!((taken.waited, taken.priority), (secs(10), Priority::Low));
        assert_eq!(next(&isolation), Some(place("api")));
        isolation.judge(&place("web"), suspicion(2, 0), Some(7), secs(20));
        assert_eq!(next(&isolation), Some(place("api")));
        assert_eq!(isolation.count(None), 2);
    }

    #[test]
    fn a_key_is_released_after_two_passes_until_it_kills_again() {
        let mut isolation = waiting(2, 0);
        let web = place("web");
        isolation.take(&web, secs(11));
        assert!(!isolation.passed(&web));
        let judge = |isolation: &mut Isolation, suspicion| {
            isolation.judge(&web, suspicion, Some(7), secs(20))
        };
        let held = Verdict::HeldBack { first: false };
        assert_eq!(judge(&mut isolation, suspicion(2, 0)), held);
        isolation.take(&web, secs(21));
        assert!(isolation.passed(&web));
        assert_eq!(judge(&mut isolation, suspicion(2, 0)), Verdict::Free);
        assert_eq!((isolation.count(None), isolation.is_empty()), (0, false));
        // Its next owner knows as much.
        let (waits, passes, deaths) = isolation.pack(&web);
        assert_eq!((waits, passes, deaths), (false, 2, 2));
        let mut next = Isolation::default();
        next.restore(web.clone(), passes, deaths);
        assert_eq!(judge(&mut next, suspicion(2, 0)), Verdict::Free);
        for isolation in [&mut isolation, &mut next] {
            assert_eq!(judge(isolation, suspicion(3, 1)), held, "another death");
            assert_eq!(isolation.pack(&web), (true, 0, 3));
        }
    }

    #[test]
    fn what_is_suspected_no_more_is_free_at_once() {
        let mut isolation = waiting(2, 0);
        assert!(isolation.review(|_| suspicion(2, 0)).is_empty());
        assert_eq!(isolation.review(|_| None), [place("web")]);
        assert!(isolation.is_empty());
        let judged = waiting(2, 0).judge(&place("web"), None, Some(7), secs(20));
        assert_eq!(judged, Verdict::Free);
    }

    #[test]
    fn the_lease_names_what_was_announced_and_of_the_rest_what_takes_long() {
        let list = Arc::new(Watchlist::default());
        let key = |name: &str| Key::new("shop", name);
        let enter = |name: &str, care, since| {
            list.enter(
                "job-controller",
                key(name),
                care,
                Duration::from_millis(since),
            )
        };
        let old = enter("old", Care::None, 0);
        let _fresh = enter("fresh", Care::None, 901);
        let _announced = enter("announced", Care::Announced, 1000);
        let _alone = enter("alone", Care::Alone, 1000);
        let named = || -> Vec<String> {
            let working = list.working(Duration::from_millis(1100));
            working.iter().map(ToString::to_string).collect()
        };
        assert_eq!(
            named(),
            [
                "!job-controller shop/alone",
                "~job-controller shop/announced",
                "-job-controller shop/old"
            ]
        );
        drop(old);
        assert_eq!(named().len(), 2);
        let _many: Vec<Flight> = (0..40)
            .map(|at| enter(&at.to_string(), Care::None, 0))
            .collect();
        assert_eq!(named().len(), WORKING_MAX);
    }

    #[test]
    fn explain_says_why_a_key_waits_and_for_how_long() {
        let isolation = waiting(3, 1);
        let said = isolation.explain(&place("web"), NOW + 20).unwrap();
        assert_eq!(said["state"], "held back");
        assert_eq!(said["held_back_seconds"], 40);
        assert_eq!(said["last_death_seconds_ago"], 20);
        let said = isolation.explain(&place("web"), NOW + 60).unwrap();
        assert_eq!(said["state"], "waiting for its turn");
        assert_eq!(isolation.explain(&place("api"), NOW), None);
    }
}
