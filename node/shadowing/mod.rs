//! A shadow: what is planned here is not sent, and compared with what the manager in charge does
//! (docs/shadow.md).
//!
//! [`Shadow::planned`] takes a plan in the place of the writer, [`Shadow::saw`] the changes of the caches;
//! [`follow`] feeds both to the crate `shadow`, which decides, and asks of a change that no plan explains
//! whether a controller would make it had it not been made (`inquiry.rs`). Where every request is refused
//! that would write, is `node_cache::refuse_all_but`.

mod inquiry;
mod past;
mod report;
mod who;

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use controllers_kit::{
    AnyObject, DynChange, Index, Key, Memory, Plan, Requeue, Resource, Standing, Str,
};
use futures::{StreamExt as _, stream::FuturesUnordered};
use inspect::{SHADOW_SCHEMA, ShadowDifference};
use node_options::ShadowOptions;
use node_telemetry::metrics::Metrics;
use shadow::{Answer, Candidate, Change, Comparison, Config, History, Unwanted, Verdict, Want};
use tokio::sync::mpsc;

use crate::{
    queue::Monotonic,
    shared::{Shared, Unit},
};

pub use report::{Lease, publish};

/// A key whose plan writes is planned again after so long: whether it still wants that, counts.
pub const PLANNED_AGAIN: Duration = Duration::from_secs(5);
/// The same of a plan that asks for the next one at once, which would follow what this one has written.
const AT_ONCE: Duration = Duration::from_secs(1);
/// Changes that wait for being compared. One too many is dropped and counted.
const CHANGES_MAX: usize = 50_000;
/// Changes that are compared in a row.
const CHANGES_AT_ONCE: usize = 256;
/// Memories of keys that are kept for plans of changes undone.
const MEMORIES_MAX: usize = 20_000;
/// Of them of one key, each of a time of its own.
const MEMORIES_OF_KEY_MAX: usize = 6;
/// Planned writes of resources that are not watched, each counted once.
const UNCOMPARED_MAX: usize = 1_000;
/// Changes that are asked about at once.
const INQUIRIES_AT_ONCE: usize = 8;
/// How often time passes for what is compared.
const TICK: Duration = Duration::from_millis(500);
/// A planned write that the manager in charge does so much later was planned early.
const EARLY: Duration = Duration::from_secs(15);
/// Controllers that act by timers of their own; and by how much longer they are waited for.
const SLOW: (&[&str], u32) = (
    &[
        "bootstrap-signer-controller",
        "certificatesigningrequest-cleaner-controller",
        "cronjob-controller",
        "garbage-collector-controller",
        "horizontal-pod-autoscaler-controller",
        "job-controller",
        "legacy-serviceaccount-token-cleaner-controller",
        "node-lifecycle-controller",
        "persistentvolume-attach-detach-controller",
        "persistentvolume-binder-controller",
        "pod-garbage-collector-controller",
        "resourcequota-controller",
        "storage-version-migrator-controller",
        "storageversion-garbage-collector-controller",
        "token-cleaner-controller",
        "ttl-after-finished-controller",
        "validatingadmissionpolicy-status-controller",
    ],
    5,
);

/// Changes that are remembered, so that one that several stores of a resource show counts once.
const SEEN_MAX: usize = 4_096;

/// A key's memories, packed, and since when it has had each.
type Memories = VecDeque<(Monotonic, Option<Vec<u8>>)>;

/// The last changes, by the object's uid and the version of the change.
#[derive(Default)]
struct Seen {
    known: HashSet<(Str, u64)>,
    order: VecDeque<(Str, u64)>,
}

impl Seen {
    /// Whether it is a new one.
    fn insert(&mut self, uid: &Str, version: u64) -> bool {
        let change = (uid.clone(), version);
        if !self.known.insert(change.clone()) {
            return false;
        }
        if self.order.len() >= SEEN_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        self.order.push_back(change);
        true
    }
}

/// What the actors of one process share of the comparison.
pub struct Shadow {
    /// As the flags say.
    pub options: ShadowOptions,
    comparison: Mutex<Comparison>,
    history: Mutex<History>,
    memories: Mutex<HashMap<(u16, Key), Memories>>,
    /// After which no question about a change comes.
    asked_within: Duration,
    changes: mpsc::Sender<Change>,
    seen: Mutex<Seen>,
    waiting: Mutex<Option<mpsc::Receiver<Change>>>,
    /// The manager in charge.
    manager: Mutex<Option<String>>,
    uncompared: Mutex<BTreeSet<String>>,
    overflowed: AtomicU64,
    since: String,
    metrics: Arc<Metrics>,
    /// Resources of which whole objects are watched: other stores of them add nothing.
    whole: HashSet<(&'static str, &'static str)>,
    /// What the controllers' indexes say of an object.
    indexes: Vec<Index>,
}

/// A lock also after its last holder has panicked: what is guarded is counted, and a count may be one off.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shadow {
    /// For the controllers of a process; `resources` are those that are watched from the start.
    pub fn new(
        options: ShadowOptions,
        units: &[Unit],
        resources: impl Iterator<Item = &'static Resource>,
        since: String,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        let (changes, waiting) = mpsc::channel(CHANGES_MAX);
        let config = Config {
            patience: options.patience,
            slow: SLOW,
            early: EARLY.min(options.patience / 2),
        };
        metrics.is_shadow();
        let asked_within = config.patience_max();
        Arc::new(Self {
            comparison: Mutex::new(Comparison::new(config)),
            history: Mutex::new(History::new(asked_within)),
            asked_within,
            memories: Mutex::default(),
            changes,
            seen: Mutex::default(),
            waiting: Mutex::new(Some(waiting)),
            manager: Mutex::default(),
            uncompared: Mutex::default(),
            overflowed: AtomicU64::new(0),
            since,
            metrics,
            whole: resources
                .filter(|resource| !resource.metadata_only && resource.selection.is_none())
                .map(|resource| (resource.group, resource.plural))
                .collect(),
            indexes: units
                .iter()
                .flat_map(|unit| unit.controller.watches().indexes)
                .collect(),
            options,
        })
    }

    /// A key was planned, and nothing of it is sent. When it is planned again, beside when the plan asks for
    /// it.
    pub fn planned(
        &self,
        shared: &Shared,
        unit: &Unit,
        key: &Key,
        plan: &Plan,
    ) -> Option<Duration> {
        let mut wants = Vec::new();
        for action in plan.actions() {
            match shared.view.standing(action.resource) {
                Standing::Unwatched => {
                    let mut uncompared = locked(&self.uncompared);
                    if uncompared.len() < UNCOMPARED_MAX {
                        uncompared.insert(format!("{} {action}", action.key.namespace));
                    }
                }
                Standing::Complete | Standing::Listing | Standing::Failing => {
                    wants.push(Want::of(action));
                }
            }
        }
        let writes = plan.actions().next().is_some();
        let now = shared.clock.monotonic();
        let verdicts = locked(&self.comparison).planned(unit.name(), key, wants, now);
        self.count(&verdicts);
        match (writes || plan.failure.is_some(), plan.requeue) {
            (true, Requeue::Now) => Some(AT_ONCE),
            (true, _) => Some(PLANNED_AGAIN),
            (false, _) => None,
        }
    }

    /// Whether a plan leaves the key's memory as it was before: nothing was written, so nothing may be
    /// remembered as written. What was observed is remembered: a plan that only reports changes nothing that
    /// its controller goes by, and some remember nothing else.
    pub fn forgets(unit: &Unit, plan: &Plan) -> bool {
        !unit.controller.descriptor().remembers_what_it_sees
            && plan
                .actions()
                .any(|action| !crate::apply::is_report(action))
    }

    /// A key's memory as its next plan will find it.
    pub fn remember(&self, (unit, key): (&Unit, &Key), memory: &Memory, now: Monotonic) {
        let packed = unit.pack(key, memory);
        let place = (unit.index, key.clone());
        let mut memories = locked(&self.memories);
        let has_none = packed.is_none() || memories.len() >= MEMORIES_MAX;
        if has_none && !memories.contains_key(&place) {
            return;
        }
        let of_key = memories
            .entry(place.clone())
            .or_insert_with(|| Memories::from([(Monotonic::ZERO, None)]));
        if of_key.back().map(|(_, last)| last) != Some(&packed) {
            of_key.push_back((now, packed));
        }
        // As of its first question the oldest change is asked about.
        let is_old = |at: &Monotonic| *at + self.asked_within < now;
        while of_key.len() > MEMORIES_OF_KEY_MAX || (of_key.len() > 1 && is_old(&of_key[1].0)) {
            of_key.pop_front();
        }
        if of_key.iter().all(|(_, memory)| memory.is_none()) {
            memories.remove(&place);
        }
    }

    /// A key's memory as it was then.
    fn memory(&self, (unit, key): (&Unit, &Key), then: Monotonic) -> Memory {
        let packed = {
            let memories = locked(&self.memories);
            let of_key = memories.get(&(unit.index, key.clone()));
            of_key.and_then(|of_key| {
                let before = of_key.iter().rev().find(|(at, _)| *at <= then);
                before.or(of_key.front())?.1.clone()
            })
        };
        packed.map_or_else(
            || unit.controller.new_memory(),
            |packed| unit.unpack(key, &packed, controllers_kit::SignedDuration::ZERO),
        )
    }

    /// A cache has changed. What was there before the watch began is no change.
    pub fn saw(&self, resource: &'static Resource, change: DynChange<'_>) {
        let is_partial = resource.metadata_only || resource.selection.is_some();
        if change.version == 0
            || matches!(resource.plural, "leases" | "events")
            || (is_partial && self.whole.contains(&(resource.group, resource.plural)))
        {
            return;
        }
        let listed = change
            .new
            .is_some_and(|new| new.metadata().resource_version != change.version);
        if change.old.is_none() && listed {
            return;
        }
        let newest = change.new.or(change.old);
        let uid = newest.map(|object| object.metadata().uid.clone());
        if !locked(&self.seen).insert(&uid.unwrap_or_default(), change.version) {
            return;
        }
        let change = Change {
            old: change.old.cloned(),
            new: change.new.cloned(),
            version: change.version,
        };
        locked(&self.history).add(change.clone());
        if self.changes.try_send(change).is_err() {
            self.overflowed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The manager in charge.
    pub fn manager(&self) -> Option<String> {
        locked(&self.manager).clone()
    }

    fn led_by(&self, manager: Option<String>) {
        let mut before = locked(&self.manager);
        if *before == manager {
            return;
        }
        match &manager {
            Some(name) => tracing::info!(
                manager = name,
                "what it does is compared with what is planned here"
            ),
            None => tracing::warn!(
                "nobody is in charge: nothing is compared until somebody holds the managers' Lease"
            ),
        }
        *before = manager;
    }

    /// What this replica has found.
    pub fn report(&self, replica: &str) -> inspect::Shadow {
        let comparison = locked(&self.comparison);
        let (differences, omitted) = comparison.differences();
        inspect::Shadow {
            schema: SHADOW_SCHEMA.to_owned(),
            replicas: vec![replica.to_owned()],
            since: self.since.clone(),
            manager: self.manager().filter(|_| comparison.is_led()),
            controllers: comparison.counts(),
            differences: differences.to_vec(),
            omitted,
            unexplained: comparison.unexplained() as u64,
            uncompared: locked(&self.uncompared).len() as u64,
            dropped: comparison.dropped() + self.overflowed.load(Ordering::Relaxed),
            ..inspect::Shadow::default()
        }
    }

    /// The first differences alone: what they are about.
    pub fn differences(&self) -> Vec<ShadowDifference> {
        locked(&self.comparison).differences().0.to_vec()
    }

    fn count(&self, verdicts: &[Verdict]) {
        for verdict in verdicts {
            self.metrics
                .shadow_verdict(verdict.controller, verdict.kind);
        }
    }

    fn measure(&self) {
        let (pending, dropped) = {
            let comparison = locked(&self.comparison);
            (comparison.pending(), comparison.dropped())
        };
        for (controller, count) in pending {
            self.metrics.shadow_pending(controller, count);
        }
        let dropped = dropped + self.overflowed.load(Ordering::Relaxed);
        self.metrics.shadow_dropped(dropped);
    }
}

/// Compares for as long as it is polled.
pub async fn follow(shared: Arc<Shared>) {
    let Some(shadow) = shared.shadow.clone() else {
        return;
    };
    let Some(mut changes) = locked(&shadow.waiting).take() else {
        return;
    };
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut under_way = FuturesUnordered::new();
    let mut due: Vec<Candidate> = Vec::new();
    loop {
        while under_way.len() < INQUIRIES_AT_ONCE
            && let Some(candidate) = due.pop()
        {
            under_way.push(asked(&shared, &shadow, candidate));
        }
        tokio::select! {
            biased;
            Some((candidate, answer)) = under_way.next() => {
                let at = shared.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
                let verdict = locked(&shadow.comparison).answered(&candidate, answer, &at);
                shadow.count(verdict.as_slice());
            }
            change = changes.recv() => {
                let Some(change) = change else { return };
                let more = std::iter::from_fn(|| changes.try_recv().ok());
                let now = shared.clock.monotonic();
                for change in std::iter::once(change).chain(more).take(CHANGES_AT_ONCE) {
                    let concerns = inquiry::concerns(&shared, &change);
                    let verdicts = locked(&shadow.comparison).observed(change, concerns, now);
                    shadow.count(&verdicts);
                }
                due.extend(newly_due(&shadow, now, &due));
            }
            _ = ticks.tick() => {
                let now = shared.clock.monotonic();
                locked(&shadow.history).tick(now);
                tick(&shared, &shadow, now);
                due.extend(newly_due(&shadow, now, &due));
            }
        }
    }
}

/// Those that are not waiting for their turn already.
fn newly_due(shadow: &Shadow, now: Monotonic, waiting: &[Candidate]) -> Vec<Candidate> {
    let mut due = locked(&shadow.comparison).to_ask(now);
    due.retain(|one| waiting.iter().all(|other| other.id != one.id));
    // Taken from the end: the oldest first.
    due.reverse();
    due
}

async fn asked(
    shared: &Arc<Shared>,
    shadow: &Arc<Shadow>,
    candidate: Candidate,
) -> (Candidate, Answer) {
    let answer = inquiry::ask(shared, shadow, &candidate).await;
    (candidate, answer)
}

fn tick(shared: &Shared, shadow: &Shadow, now: Monotonic) {
    let at = shared
        .clock
        .now()
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string();
    let is_led = shadow.manager().is_some();
    let current = |want: &Want| -> Option<AnyObject> {
        shared
            .view
            .get(want.resource, &want.key.namespace, &want.key.name)
    };
    let unit_of = |controller: &str| shared.units.iter().find(|unit| unit.name() == controller);
    let mut comparison = locked(&shadow.comparison);
    comparison.forget_keys(&|controller, key| {
        unit_of(controller).is_none_or(|unit| shared.slot(shared.range_of(unit, key)).is_none())
    });
    let verdicts = comparison.tick(now, is_led, &at, &current);
    drop(comparison);
    shadow.count(&verdicts);
    shadow.measure();
}

/// An answer that names no controller.
fn by_unknown(by: &'static str) -> Unwanted {
    Unwanted {
        controller: shadow::UNKNOWN,
        by,
        ..Unwanted::default()
    }
}
