//! Whether memory grows: the last quarter of a week beside the quarter before.

use std::time::Duration;

use anyhow::{Result, ensure};
use harness::Metrics;

/// What may be more in the last quarter than new objects explain.
const GROWTH_MAX: f64 = 0.02;
const MIB: f64 = 1024.0 * 1024.0;

/// One reads at a process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sample {
    /// Since the week began.
    pub(super) at: Duration,
    /// Resident bytes.
    pub(super) resident: f64,
    /// Bytes of cached objects, as the process estimates them; upstream's does not.
    pub(super) cached: f64,
}

impl Sample {
    pub(super) fn of(at: Duration, metrics: &Metrics) -> Option<Self> {
        Some(Self {
            at,
            resident: metrics.sum("process_resident_memory_bytes", &[])?,
            cached: metrics.sum("manifold_cache_bytes", &[]).unwrap_or(0.0),
        })
    }
}

/// The samples of one process, in their order.
#[derive(Debug, Default)]
pub(super) struct Memory(Vec<Sample>);

/// The medians of a part of the week.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Part {
    resident: f64,
    cached: f64,
}

impl Memory {
    pub(super) fn add(&mut self, sample: Sample) {
        self.0.push(sample);
    }

    /// The third and the fourth quarter.
    fn second_half(&self) -> Option<[Part; 2]> {
        let all = self.0.last()?.at;
        let part = |from: u32| {
            let within =
                |sample: &&Sample| sample.at * 4 >= all * from && sample.at * 4 <= all * (from + 1);
            let samples: Vec<Sample> = self.0.iter().filter(within).copied().collect();
            let median = |of: fn(&Sample) -> f64| {
                let mut values: Vec<f64> = samples.iter().map(of).collect();
                values.sort_by(f64::total_cmp);
                values.get(values.len() / 2).copied()
            };
            Some(Part {
                resident: median(|sample| sample.resident)?,
                cached: median(|sample| sample.cached)?,
            })
        };
        Some([part(2)?, part(3)?])
    }

    /// By how much of itself it has grown beyond what more cached objects explain.
    fn growth(&self) -> Option<f64> {
        let [before, after] = self.second_half()?;
        let explained = (after.cached - before.cached).max(0.0);
        Some((after.resident - before.resident - explained) / before.resident)
    }

    pub(super) fn summary(&self) -> String {
        let (Some([before, after]), Some(growth)) = (self.second_half(), self.growth()) else {
            return "no sample of its memory".to_owned();
        };
        let most = self.0.iter().map(|sample| sample.resident);
        format!(
            "memory {:.1} MiB in the third quarter and {:.1} in the fourth ({:+.1} % beyond its objects' {:+.2} MiB), {:.1} \
             at most, {} samples",
            before.resident / MIB,
            after.resident / MIB,
            growth * 100.0,
            (after.cached - before.cached) / MIB,
            most.fold(0.0, f64::max) / MIB,
            self.0.len()
        )
    }

    /// An error where it has grown.
    pub(super) fn judge(&self) -> Result<()> {
        let growth = self.growth().unwrap_or(f64::INFINITY);
        ensure!(
            growth <= GROWTH_MAX,
            "memory grows by {:.1} % in the second half: {}",
            growth * 100.0,
            self.summary()
        );
        Ok(())
    }
}

#[test]
fn growth_is_what_objects_do_not_explain_from_the_third_quarter_to_the_fourth() {
    let memory = |resident: &dyn Fn(u64) -> f64, cached: &dyn Fn(u64) -> f64| {
        let sample = |at: u64| Sample {
            at: Duration::from_secs(at),
            resident: resident(at),
            cached: cached(at),
        };
        Memory((0..=400).step_by(5).map(sample).collect())
    };
    let flat = |_| 50.0 * MIB;
    // A start that is worn off does not count, nor does a peak.
    let start = memory(
        &|at| if at < 200 { 10.0 * MIB } else { 50.0 * MIB },
        &|_| 0.0,
    );
    start.judge().unwrap();
    let peak = memory(
        &|at| if at == 390 { 90.0 * MIB } else { 50.0 * MIB },
        &|_| 0.0,
    );
    peak.judge().unwrap();
    let grows = |at: u64| (50.0 + at as f64 / 50.0) * MIB;
    let why = memory(&grows, &flat).judge().unwrap_err().to_string();
    assert!(why.starts_with("memory grows by 3."), "{why}");
    memory(&grows, &grows).judge().unwrap();
    assert!(Memory::default().judge().is_err());
}
