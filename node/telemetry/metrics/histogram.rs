//! A histogram without locks: each key's work is observed several times, on every core at once.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder, NoLabelSet},
    metrics::{MetricType, TypedMetric},
};

/// Buckets that grow by a factor, as upstream writes them down.
pub(super) fn exponential(start: f64, factor: f64, count: usize) -> Vec<f64> {
    std::iter::successors(Some(start), |bound| Some(bound * factor))
        .take(count)
        .collect()
}

/// Counts by upper bound, and the sum.
#[derive(Clone, Debug)]
pub(super) struct Histogram {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    bounds: Vec<f64>,
    /// One for each bound, then the one that has none.
    counts: Vec<AtomicU64>,
    /// The bits of an f64.
    sum: AtomicU64,
}

impl Histogram {
    pub(super) fn new(bounds: Vec<f64>) -> Self {
        let counts = std::iter::repeat_with(AtomicU64::default)
            .take(bounds.len() + 1)
            .collect();
        Self {
            inner: Arc::new(Inner {
                bounds,
                counts,
                sum: AtomicU64::new(0f64.to_bits()),
            }),
        }
    }

    pub(super) fn observe(&self, value: f64) {
        let inner = &*self.inner;
        let place = inner.bounds.partition_point(|bound| *bound < value);
        inner.counts[place].fetch_add(1, Ordering::Relaxed);
        let add = |sum: u64| Some((f64::from_bits(sum) + value).to_bits());
        // `add` never refuses, so neither does the update.
        let _ = inner
            .sum
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }
}

impl TypedMetric for Histogram {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for Histogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        let inner = &*self.inner;
        let bounds = inner.bounds.iter().copied().chain([f64::INFINITY]);
        // The total is summed from what is shown, so that it never disagrees with the buckets.
        let buckets: Vec<(f64, u64)> = bounds
            .zip(
                inner
                    .counts
                    .iter()
                    .map(|count| count.load(Ordering::Relaxed)),
            )
            .collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = f64::from_bits(inner.sum.load(Ordering::Relaxed));
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}
