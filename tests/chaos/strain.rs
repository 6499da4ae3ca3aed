//! How busy the machine was while a fault lasted: a wait is Manifold's only where the machine did not
//! make everybody wait.

use std::fs;
use std::time::{Duration, Instant};

/// Clock ticks of /proc/stat: a constant of Linux' interface to programs.
const TICKS_PER_SECOND: u64 = 100;
/// Where `steal` is in the first line of /proc/stat, behind `cpu`.
const STEAL: usize = 7;
/// What is read, where from, and how it is called.
const TOTALS: [(&str, Parse, &str); 3] = [
    (
        "/proc/pressure/cpu",
        parse_pressure,
        "waits for a processor",
    ),
    ("/proc/pressure/io", parse_pressure, "waits for the disk"),
    ("/proc/stat", parse_stolen, "taken by the host"),
];

/// How long it was since the machine began; `None` where the kernel does not say.
type Parse = fn(&str) -> Option<Duration>;

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

fn totals() -> [Option<Duration>; 3] {
    TOTALS.map(|(path, parse, _)| parse(&fs::read_to_string(path).unwrap_or_default()))
}

/// From a moment on.
#[derive(Debug)]
pub(super) struct Strain {
    since: Instant,
    before: [Option<Duration>; 3],
}

impl Strain {
    pub(super) fn begin() -> Self {
        Self {
            since: Instant::now(),
            before: totals(),
        }
    }

    /// What it was until now, in words.
    pub(super) fn end(&self) -> String {
        words(self.since.elapsed(), self.before, totals())
    }
}

/// As shares of the time; what the kernel does not say is left out.
fn words(lasted: Duration, before: [Option<Duration>; 3], now: [Option<Duration>; 3]) -> String {
    let said: Vec<String> = TOTALS
        .iter()
        .zip(before.into_iter().zip(now))
        .filter_map(|((_, _, what), (before, now))| {
            let share = now?.saturating_sub(before?).div_duration_f64(lasted);
            Some(format!("{:.0} % {what}", share * 100.0))
        })
        .collect();
    said.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_shows_is_read() {
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
    fn what_is_not_reported_is_left_out() {
        let ms = |ms| Some(Duration::from_millis(ms));
        let said = words(
            Duration::from_secs(2),
            [ms(10), None, ms(500)],
            [ms(690), ms(7), ms(500)],
        );
        assert_eq!(said, "34 % waits for a processor, 0 % taken by the host");
    }
}
