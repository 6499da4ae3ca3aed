//! How busy the machine was while a fault lasted: a wait tells of Manifold only where the machine did not make everybody
//! wait.

use std::fmt;
use std::fs;
use std::time::{Duration, Instant};

/// Clock ticks of /proc/stat: a constant of Linux' interface to programs.
const TICKS_PER_SECOND: u64 = 100;
/// Where `steal` stands in the first line of /proc/stat, behind `cpu`.
const STEAL: usize = 7;

/// For how long, since the machine began.
#[derive(Debug, Clone, Copy)]
struct Total {
    /// Some task waited for a processor.
    processor: Option<Duration>,
    /// Some task waited for the disk.
    disk: Option<Duration>,
    /// The host gave a processor's time to others.
    stolen: Option<Duration>,
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The first line of /proc/pressure/…: `some avg10=… total=<microseconds>`.
fn parse_pressure(text: &str) -> Option<Duration> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let total = some.split_whitespace().last()?.strip_prefix("total=")?;
    Some(Duration::from_micros(total.parse().ok()?))
}

fn parse_stolen(stat: &str) -> Option<Duration> {
    let all = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: u64 = all.split_whitespace().nth(STEAL)?.parse().ok()?;
    Some(Duration::from_millis(ticks * 1_000 / TICKS_PER_SECOND))
}

impl Total {
    fn now() -> Self {
        Self {
            processor: parse_pressure(&read("/proc/pressure/cpu")),
            disk: parse_pressure(&read("/proc/pressure/io")),
            stolen: parse_stolen(&read("/proc/stat")),
        }
    }
}

/// From a moment on.
#[derive(Debug)]
pub(super) struct Strain {
    since: Instant,
    before: Total,
}

impl Strain {
    pub(super) fn begin() -> Self {
        Self {
            since: Instant::now(),
            before: Total::now(),
        }
    }

    /// What it was until now, as shares of the time.
    pub(super) fn end(&self) -> Shares {
        let now = Total::now();
        let share = |before: Option<Duration>, now: Option<Duration>| {
            let more = now?.saturating_sub(before?);
            Some(more.div_duration_f64(self.since.elapsed()))
        };
        Shares {
            processor: share(self.before.processor, now.processor),
            disk: share(self.before.disk, now.disk),
            stolen: share(self.before.stolen, now.stolen),
        }
    }
}

/// Of the time, how much somebody waited for what; what the kernel does not tell is left out.
#[derive(Debug)]
pub(super) struct Shares {
    processor: Option<f64>,
    disk: Option<f64>,
    stolen: Option<f64>,
}

impl fmt::Display for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = [
            (self.processor, "waits for a processor"),
            (self.disk, "waits for the disk"),
            (self.stolen, "taken by the host"),
        ];
        let words: Vec<String> = said
            .iter()
            .filter_map(|(share, what)| Some(format!("{:.0} % {what}", (*share)? * 100.0)))
            .collect();
        f.write_str(&words.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_tells_is_read() {
        let text = "some avg10=0.12 avg60=3.00 avg300=1.00 total=2500000\nfull avg10=0 total=9\n";
        assert_eq!(parse_pressure(text), Some(Duration::from_millis(2_500)));
        let stat = "cpu  832277 0 89044 377765 9599 0 9740 150 0 0\ncpu0 1 2 3\n";
        assert_eq!(parse_stolen(stat), Some(Duration::from_millis(1_500)));
        for nothing in ["", "some\n", "cpu  1 2\n"] {
            assert_eq!(parse_pressure(nothing), None, "{nothing:?}");
            assert_eq!(parse_stolen(nothing), None, "{nothing:?}");
        }
    }

    #[test]
    fn what_is_not_told_is_left_out() {
        let shares = Shares {
            processor: Some(0.34),
            disk: None,
            stolen: Some(0.0),
        };
        assert_eq!(
            shares.to_string(),
            "34 % waits for a processor, 0 % taken by the host"
        );
    }
}
