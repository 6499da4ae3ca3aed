//! Metrics that controllers declare in their descriptors and that their plans measure.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use controllers_kit::{Descriptor, Key, Measure, MetricKind, MetricSpec};
use prometheus_client::metrics::{
    counter::Counter,
    family::{Family, MetricConstructor},
    gauge::Gauge,
};

use super::{
    AtomicU64, Registering, Text,
    histogram::{Histogram, exponential},
    seconds,
};

/// Series that one declared metric may have; a further one is not recorded. Upstream's labels come from fixed sets, a
/// namespace or an object's name in a few cases.
const SERIES_MAX: usize = 10_000;

type Labels = Vec<(&'static str, Text)>;

#[derive(Clone, Debug)]
struct Buckets(Vec<f64>);

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(self.0.clone())
    }
}

#[derive(Debug)]
enum Series {
    Counter(Family<Labels, Counter<f64, AtomicU64>>),
    Gauge(Family<Labels, Gauge<f64, AtomicU64>>),
    Sum(Family<Labels, Gauge<f64, AtomicU64>>),
    Histogram(Family<Labels, Histogram, Buckets>),
}

/// What the keys of each range add to one controller's sums.
type Shares = HashMap<u16, HashMap<Key, Vec<Measure>>>;

/// The declared metrics of all controllers.
#[derive(Debug, Default)]
pub(super) struct Declared {
    by_name: BTreeMap<&'static str, (MetricSpec, Series)>,
    seen: std::sync::Mutex<BTreeMap<&'static str, BTreeSet<Vec<String>>>>,
    syncs: BTreeMap<&'static str, Syncs>,
    sync_seconds: BTreeMap<&'static str, Family<Labels, Histogram, Buckets>>,
    /// Counters that are served without a `_total`.
    pub(super) bare: BTreeSet<&'static str>,
    /// What each key adds to the sums, by controller and range. Bound: an entry for each key that this replica owns.
    shares: std::sync::Mutex<BTreeMap<&'static str, Shares>>,
}

#[derive(Debug)]
struct Syncs {
    total: Family<Labels, Counter>,
    seconds: Family<Labels, Histogram, Buckets>,
}

/// 1 ms to 16 s: upstream's bounds for syncs.
fn sync_seconds() -> Vec<f64> {
    exponential(0.001, 2.0, 15)
}

fn labels(spec: &MetricSpec, measure: &Measure) -> Labels {
    spec.labels
        .iter()
        .zip(&measure.labels)
        .map(|(name, value)| (*name, Text::from(value.to_string())))
        .collect()
}

impl Declared {
    /// Registers them all. Two controllers may share a metric.
    pub(super) fn register(on: &mut Registering, descriptors: &[Descriptor]) -> Self {
        let mut declared = Self::default();
        for spec in descriptors
            .iter()
            .flat_map(|descriptor| &descriptor.metrics)
        {
            if declared.by_name.contains_key(spec.name) {
                continue;
            }
            let series = match spec.kind {
                MetricKind::Counter => {
                    // The encoding appends what the name ends with.
                    let bare = spec.name.strip_suffix("_total").unwrap_or(spec.name);
                    if bare == spec.name {
                        declared.bare.insert(bare);
                    }
                    Series::Counter(on.add(bare, spec.help, Family::default()))
                }
                MetricKind::Gauge => Series::Gauge(on.add(spec.name, spec.help, Family::default())),
                MetricKind::Sum => Series::Sum(on.add(spec.name, spec.help, Family::default())),
                MetricKind::Histogram(..) | MetricKind::Buckets(_) => {
                    let buckets = Buckets(match spec.kind {
                        MetricKind::Histogram(start, factor, count) => {
                            exponential(start, factor, usize::from(count))
                        }
                        MetricKind::Buckets(bounds) => bounds.to_vec(),
                        _ => Vec::new(),
                    });
                    Series::Histogram(on.add(
                        spec.name,
                        spec.help,
                        Family::new_with_constructor(buckets),
                    ))
                }
            };
            declared.by_name.insert(spec.name, (spec.clone(), series));
        }
        for descriptor in descriptors {
            if let Some(name) = descriptor.sync_seconds {
                let buckets = Family::new_with_constructor(Buckets(sync_seconds()));
                let seconds = on.add(name, "How long a sync takes.", buckets);
                declared.sync_seconds.insert(descriptor.name, seconds);
            }
            let sums = descriptor
                .metrics
                .iter()
                .any(|spec| spec.kind == MetricKind::Sum);
            if sums {
                let shares = declared
                    .shares
                    .get_mut()
                    .unwrap_or_else(std::sync::PoisonError::into_inner);
                shares.insert(descriptor.name, HashMap::new());
            }
            let Some(prefix) = descriptor.sync_metrics else {
                continue;
            };
            let buckets = Buckets(sync_seconds());
            let syncs = Syncs {
                total: on.add(prefix, "Syncs, by status code.", Family::default()),
                seconds: on.add(
                    &format!("{prefix}_duration_seconds"),
                    "How long a sync takes, by status code.",
                    Family::new_with_constructor(buckets),
                ),
            };
            declared.syncs.insert(descriptor.name, syncs);
        }
        declared
    }

    /// Records a value. One of a metric that was not declared, or with another number of labels, is a mistake of the
    /// controller's author: it is logged and left out.
    pub(super) fn measure(&self, measure: &Measure) {
        let Some((spec, series)) = self
            .by_name
            .get(measure.name)
            .filter(|(spec, _)| spec.labels.len() == measure.labels.len())
        else {
            tracing::error!(metric = measure.name, labels = ?measure.labels, "a controller measures what it has not declared");
            return;
        };
        if !self.has_room(measure) {
            return;
        }
        let labels = labels(spec, measure);
        match series {
            Series::Counter(family) => {
                family.get_or_create(&labels).inc_by(measure.value);
            }
            Series::Gauge(family) => {
                family.get_or_create(&labels).set(measure.value);
            }
            Series::Histogram(family) => family.get_or_create(&labels).observe(measure.value),
            // Added up by key.
            Series::Sum(_) => {}
        }
    }

    /// What a key adds to the sums, in place of what it added before.
    pub(super) fn add_up(&self, controller: &str, range: u16, key: &Key, measures: &[Measure]) {
        let mut shares = self
            .shares
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let Some(of_controller) = shares.get_mut(controller) else {
            return;
        };
        let is_sum = |measure: &&Measure| {
            matches!(self.by_name.get(measure.name), Some((_, Series::Sum(_))))
        };
        let new: Vec<Measure> = measures.iter().filter(is_sum).cloned().collect();
        let of_range = of_controller.entry(range).or_default();
        let old = if new.is_empty() {
            of_range.remove(key)
        } else {
            of_range.insert(key.clone(), new.clone())
        };
        self.shift(&new, 1.0);
        self.shift(&old.unwrap_or_default(), -1.0);
    }

    /// A range's keys add nothing any more.
    pub(super) fn forget(&self, controller: &str, range: u16) {
        let mut shares = self
            .shares
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let of_range = shares
            .get_mut(controller)
            .and_then(|ranges| ranges.remove(&range));
        for share in of_range.into_iter().flat_map(HashMap::into_values) {
            self.shift(&share, -1.0);
        }
    }

    fn shift(&self, share: &[Measure], sign: f64) {
        for measure in share {
            let Some((spec, Series::Sum(family))) = self.by_name.get(measure.name) else {
                continue;
            };
            if self.has_room(measure) {
                let labels = labels(spec, measure);
                family.get_or_create(&labels).inc_by(sign * measure.value);
            }
        }
    }

    fn has_room(&self, measure: &Measure) -> bool {
        let mut seen = self
            .seen
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let series = seen.entry(measure.name).or_default();
        let labels: Vec<String> = measure.labels.iter().map(ToString::to_string).collect();
        series.contains(&labels) || (series.len() < SERIES_MAX && series.insert(labels))
    }

    /// A sync of a controller has ended.
    pub(super) fn synced(&self, controller: &str, code: u16, took: Duration) {
        if let Some(duration) = self.sync_seconds.get(controller) {
            duration
                .get_or_create(&Labels::new())
                .observe(seconds(took));
        }
        if let Some(syncs) = self.syncs.get(controller) {
            let labels: Labels = vec![("code", Text::from(code.to_string()))];
            syncs.total.get_or_create(&labels).inc();
            syncs.seconds.get_or_create(&labels).observe(seconds(took));
        }
    }
}
