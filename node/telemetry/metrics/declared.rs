//! Metrics that controllers declare in their descriptors and that their plans measure.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::atomic::AtomicU64,
    time::Duration,
};

use controllers_kit::{Descriptor, Key, Measure, MetricKind, MetricSpec};
use prometheus_client::metrics::{
    counter::Counter,
    family::{Family, MetricConstructor},
    gauge::Gauge,
};

use super::{
    families::{Registering, Text},
    histogram::{Histogram, exponential},
    seconds,
};

/// Series that one declared metric may have; a further one is not recorded. Upstream's labels come from fixed
/// sets, a namespace or an object's name in a few cases.
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

/// What a key adds to a sum, or shows in a gauge.
#[derive(Clone, Debug)]
struct Share {
    measure: Measure,
    /// Whether there was room for its series.
    recorded: bool,
}

/// What the keys of each range add to one controller's sums and show in its gauges.
type Shares = HashMap<u16, HashMap<Key, Vec<Share>>>;

/// The series of one metric, and how many keys show each in a gauge; 0 for other kinds. A gauge's series goes
/// with the last of its keys, so that objects that are gone or another replica's leave room for others.
type SeriesKeys = BTreeMap<Vec<String>, usize>;

/// The declared metrics of all controllers.
#[derive(Debug, Default)]
pub(super) struct Declared {
    by_name: BTreeMap<&'static str, (MetricSpec, Series)>,
    seen: std::sync::Mutex<BTreeMap<&'static str, SeriesKeys>>,
    syncs: BTreeMap<&'static str, Syncs>,
    sync_seconds: BTreeMap<&'static str, Family<Labels, Histogram, Buckets>>,
    /// Counters that are served without a `_total`.
    pub(super) bare: BTreeSet<&'static str>,
    /// What each key adds to the sums and shows in gauges, by controller and range. Bound: an entry for each
    /// key that this replica owns.
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

fn texts(measure: &Measure) -> Vec<String> {
    measure.labels.iter().map(ToString::to_string).collect()
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
            // As Go's metrics without labels: there from the start, so that a rate over the first event is
            // seen.
            if spec.labels.is_empty() {
                match &series {
                    Series::Counter(family) => drop(family.get_or_create(&Vec::new())),
                    Series::Histogram(family) => drop(family.get_or_create(&Vec::new())),
                    Series::Gauge(_) | Series::Sum(_) => {}
                }
            }
            declared.by_name.insert(spec.name, (spec.clone(), series));
        }
        for descriptor in descriptors {
            if let Some(name) = descriptor.sync_seconds {
                let buckets = Family::new_with_constructor(Buckets(sync_seconds()));
                let seconds = on.add(name, "How long a sync takes.", buckets);
                declared.sync_seconds.insert(descriptor.name, seconds);
            }
            let by_key = descriptor
                .metrics
                .iter()
                .any(|spec| matches!(spec.kind, MetricKind::Sum | MetricKind::Gauge));
            if by_key {
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

    /// Records a value. One of a metric that was not declared, or with another number of labels, is a mistake
    /// of the controller's author: it is logged and left out.
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
            Series::Histogram(family) => family.get_or_create(&labels).observe(measure.value),
            // Kept by key.
            Series::Gauge(_) | Series::Sum(_) => {}
        }
    }

    /// What a key adds to the sums, in place of what it added before, and shows in gauges: one that it does
    /// not measure stays as it was. A key that measures nothing at all is gone from both.
    pub(super) fn add_up(&self, controller: &str, range: u16, key: &Key, measures: &[Measure]) {
        let mut shares = self
            .shares
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let Some(of_controller) = shares.get_mut(controller) else {
            return;
        };
        let is_by_key = |measure: &&Measure| {
            matches!(
                self.by_name.get(measure.name),
                Some((spec, Series::Sum(_) | Series::Gauge(_)))
                    if spec.labels.len() == measure.labels.len()
            )
        };
        let of_range = of_controller.entry(range).or_default();
        let old = of_range.remove(key).unwrap_or_default();
        let mut new: Vec<Share> = measures
            .iter()
            .filter(is_by_key)
            .map(|measure| Share {
                measure: measure.clone(),
                recorded: self.add(measure),
            })
            .collect();
        for share in old {
            let stays = !measures.is_empty()
                && matches!(
                    self.by_name.get(share.measure.name),
                    Some((_, Series::Gauge(_)))
                )
                && measures.iter().all(|new| new.name != share.measure.name);
            match stays {
                true => new.push(share),
                false => self.take_away(&share),
            }
        }
        if !new.is_empty() {
            of_range.insert(key.clone(), new);
        }
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
        for share in of_range
            .into_iter()
            .flat_map(HashMap::into_values)
            .flatten()
        {
            self.take_away(&share);
        }
    }

    /// Adds to a sum or sets a gauge; whether there was room for the series.
    fn add(&self, measure: &Measure) -> bool {
        let Some((spec, series)) = self.by_name.get(measure.name) else {
            return false;
        };
        if !self.has_room(measure) {
            return false;
        }
        let labels = labels(spec, measure);
        match series {
            Series::Sum(family) => {
                family.get_or_create(&labels).inc_by(measure.value);
            }
            Series::Gauge(family) => {
                let mut seen = self.seen();
                if let Some(keys) = seen
                    .get_mut(measure.name)
                    .and_then(|series| series.get_mut(&texts(measure)))
                {
                    *keys += 1;
                }
                family.get_or_create(&labels).set(measure.value);
            }
            Series::Counter(_) | Series::Histogram(_) => {}
        }
        true
    }

    fn take_away(&self, share: &Share) {
        let measure = &share.measure;
        let Some((spec, series)) = self.by_name.get(measure.name).filter(|_| share.recorded) else {
            return;
        };
        let labels = labels(spec, measure);
        match series {
            Series::Sum(family) => {
                family.get_or_create(&labels).dec_by(measure.value);
            }
            Series::Gauge(family) => {
                let mut seen = self.seen();
                let Some(of_metric) = seen.get_mut(measure.name) else {
                    return;
                };
                let texts = texts(measure);
                let Some(keys) = of_metric.get_mut(&texts) else {
                    return;
                };
                *keys = keys.saturating_sub(1);
                if *keys == 0 {
                    of_metric.remove(&texts);
                    family.remove(&labels);
                }
            }
            Series::Counter(_) | Series::Histogram(_) => {}
        }
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, BTreeMap<&'static str, SeriesKeys>> {
        self.seen
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn has_room(&self, measure: &Measure) -> bool {
        let mut seen = self.seen();
        let series = seen.entry(measure.name).or_default();
        let texts = texts(measure);
        if series.contains_key(&texts) {
            return true;
        }
        let room = series.len() < SERIES_MAX;
        if room {
            series.insert(texts, 0);
        }
        room
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
