//! What a range remembers of its keys.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use controllers_kit::{Key, Memory, Timestamp};
use node_telemetry::{metrics::QueueMetrics, trace::Woken};

use crate::gate::Gate;
use crate::history::heat::Heat;
use crate::queue;
use crate::queue::{Monotonic, Queue};
use crate::reconcile::{Mark, Next, ReportFrom, Trouble};
use crate::server::Sender;
use crate::shared::{Origin, Shared, Unit};

/// What is remembered of a key between two reconciles.
#[derive(Default)]
pub(super) struct Known {
    pub(super) marks: Vec<Mark>,
    pub(super) memory: Option<Memory>,
    /// What it counts was checked against the API server since the range was taken over.
    pub(super) proven: bool,
    /// The object that it is about, too.
    pub(super) head_proven: bool,
    /// The newest version of what has happened to it.
    pub(super) evidence: u64,
    /// It is unknown whether a write of it happened: what it counts is checked against the API server.
    pub(super) doubtful: bool,
    /// Until when a write of it may still land that was given up: what is examined before proves nothing.
    pub(super) late_write_until: Monotonic,
    pub(super) report_from: Option<ReportFrom>,
    /// How often it has reported in a row.
    pub(super) row: u32,
    /// When it may be planned again, where its last plan was expensive.
    pub(super) plan_from: Monotonic,
    pub(super) last: Option<Box<Last>>,
    /// Waits for its marks; the task that waits wakes it.
    pub(super) parked: bool,
    /// What has woken it since its last reconcile, where that is traced.
    pub(super) woken: Option<Box<Woken>>,
    /// The object by which it was woken first since then.
    pub(super) origin: Option<Box<Origin>>,
    /// Its last attempts are kept, since it fails.
    pub(super) unhappy: bool,
    /// The trace of the owner before, or of the attempt that this one follows from.
    pub(super) link: Option<Arc<str>>,
    /// A plan of it was carried out since the range was gained, and nobody died of it.
    pub(super) survived: bool,
}

/// The last attempt, for `/debug/explain`.
pub(super) struct Last {
    pub(super) at: Timestamp,
    pub(super) took: Duration,
    pub(super) waited: Duration,
    pub(super) next: Next,
    pub(super) plan: Vec<String>,
    pub(super) objects: usize,
    pub(super) trace: Option<Arc<str>>,
    pub(super) trouble: Option<Trouble>,
    pub(super) waits: Option<String>,
    pub(super) heat: Heat,
}

/// One controller's part of the range.
pub(super) struct Lane {
    pub(super) queue: Queue,
    pub(super) known: HashMap<Key, Known>,
    pub(super) sender: Sender,
    /// A permit is being waited for.
    pub(super) asking: bool,
    /// The share of this queue in the depth that the metrics of its controller's queue show.
    reported: usize,
}

impl Lane {
    pub(super) fn new(shared: &Shared, gate: &Arc<Gate>, unit: &Unit) -> Self {
        let descriptor = unit.controller.descriptor();
        Self {
            queue: Queue::new(unit.backoff),
            known: HashMap::new(),
            sender: Sender::new(&shared.replica, descriptor, Arc::clone(&unit.metrics), gate),
            asking: false,
            reported: 0,
        }
    }

    fn report(&mut self, depth: usize, metrics: &QueueMetrics) {
        let signed = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        if depth != self.reported {
            metrics.depth(signed(depth) - signed(self.reported));
            self.reported = depth;
        }
    }

    pub(super) fn forget(&mut self, key: &Key) {
        self.known.remove(key);
        queue::give_back(&mut self.known);
    }
}

/// The lanes of all controllers, each made when it is first needed: most ranges have keys of few controllers.
pub(super) struct Lanes {
    pub(super) shared: Arc<Shared>,
    pub(super) gate: Arc<Gate>,
    pub(super) all: Vec<Option<Box<Lane>>>,
}

impl Lanes {
    pub(super) fn new(shared: &Arc<Shared>, gate: &Arc<Gate>) -> Self {
        Self {
            shared: Arc::clone(shared),
            gate: Arc::clone(gate),
            all: shared.units.iter().map(|_| None).collect(),
        }
    }

    pub(super) fn at(&mut self, lane: u16) -> &mut Lane {
        let Self { shared, gate, all } = self;
        let at = usize::from(lane);
        all[at].get_or_insert_with(|| Box::new(Lane::new(shared, gate, &shared.units[at])))
    }

    /// Brings the depths of the queues up to date in the metrics; `ends`: this range has none any more.
    pub(super) fn report_depths(&mut self, ends: bool) {
        for (unit, lane) in self.shared.units.iter().zip(&mut self.all) {
            if let Some(lane) = lane {
                let depth = if ends { 0 } else { lane.queue.pending() };
                lane.report(depth, &unit.queue_metrics);
            }
        }
    }

    pub(super) fn get(&self, lane: u16) -> Option<&Lane> {
        self.all[usize::from(lane)].as_deref()
    }

    /// Those that were made, with their places.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u16, &Lane)> {
        (0..)
            .zip(&self.all)
            .filter_map(|(at, lane)| Some((at, lane.as_deref()?)))
    }
}
