//! Series in promtool's notation.

use std::collections::BTreeMap;
use std::fmt::Write;

/// Values of series at one scrape after the other.
#[derive(Debug, Default)]
pub(super) struct Series {
    scrapes: usize,
    /// By name and labels, as `up{job="a"}`; `None` where a scrape had no such series.
    values: BTreeMap<String, Vec<Option<f64>>>,
}

impl Series {
    /// One scrape of everything.
    pub(super) fn scraped(&mut self, values: impl IntoIterator<Item = (String, f64)>) {
        for (name, value) in values {
            let series = self.values.entry(name).or_default();
            series.resize(self.scrapes, None);
            series.push(Some(value));
        }
        self.scrapes += 1;
        for series in self.values.values_mut() {
            series.resize(self.scrapes, None);
        }
    }

    /// How many scrapes there were.
    pub(super) fn scrapes(&self) -> usize {
        self.scrapes
    }

    /// Continues for a number of scrapes as the last `over` of them were: counters grow as they did over all
    /// of them, gauges repeat what they were. One value alone says nothing of a state: at any one scrape some
    /// queue has a key and some watch awaits its next bookmark.
    pub(super) fn hold(&mut self, scrapes: usize, over: usize) {
        for (name, values) in &mut self.values {
            let Some(last) = values.last().copied().flatten() else {
                continue;
            };
            let repeated = values.len().saturating_sub(over);
            let before = repeated
                .checked_sub(1)
                .and_then(|at| values.get(at).copied().flatten());
            if is_counter(name) {
                let slope = match before {
                    Some(before) if last > before => (last - before) / over as f64,
                    _ => 0.0,
                };
                let held = (1..=scrapes).map(|step| Some(last + slope * step as f64));
                values.extend(held);
            } else {
                for step in 0..scrapes {
                    let again = values.get(repeated + step).copied().flatten();
                    values.push(again.or(Some(last)));
                }
            }
        }
        self.scrapes += scrapes;
        for values in self.values.values_mut() {
            values.resize(self.scrapes, None);
        }
    }

    /// Each series with its values.
    pub(super) fn written(&self) -> impl Iterator<Item = (&str, String)> {
        self.values
            .iter()
            .map(|(name, values)| (name.as_str(), notation(values)))
    }
}

fn is_counter(series: &str) -> bool {
    let name = series.split('{').next().unwrap_or(series);
    let ends = ["_total", "_bucket", "_count", "_sum"];
    ends.iter().any(|end| name.ends_with(end))
}

/// Runs are written as promtool has them: `a+bxN` is a and N more, each greater by b; `_xN` is nothing N
/// times. Where a series ends there is a mark, as Prometheus writes one.
fn notation(values: &[Option<f64>]) -> String {
    let mut text = String::new();
    let (mut at, mut was_there) = (0, false);
    while at < values.len() {
        if at > 0 {
            text.push(' ');
        }
        let Some(first) = values[at] else {
            let mut missing = values[at..]
                .iter()
                .take_while(|value| value.is_none())
                .count();
            at += missing;
            if was_there {
                missing -= 1;
                text.push_str("stale");
                if missing > 0 {
                    text.push(' ');
                }
            }
            if missing > 0 {
                let _ = write!(text, "_x{missing}");
            }
            was_there = false;
            continue;
        };
        was_there = true;
        let step = match values.get(at + 1) {
            Some(Some(second)) => second - first,
            _ => 0.0,
        };
        // As promtool adds up, so that rounding is the same.
        let (mut more, mut next) = (0, first + step);
        while values.get(at + 1 + more) == Some(&Some(next)) {
            more += 1;
            next += step;
        }
        let _ = match (more, step) {
            (0, _) => write!(text, "{first}"),
            (_, 0.0) => write!(text, "{first}x{more}"),
            _ => write!(text, "{first}{step:+}x{more}"),
        };
        at += more + 1;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_gaps_and_ends_are_written_as_promtool_reads_them() {
        let there =
            |values: &[f64]| -> Vec<Option<f64>> { values.iter().copied().map(Some).collect() };
        for (values, wanted) in [
            (there(&[1.0]), "1"),
            (there(&[1.0, 1.0, 1.0]), "1x2"),
            (there(&[0.0, 1.5, 3.0, 4.0]), "0+1.5x2 4"),
            (there(&[5.0, 3.0, 1.0]), "5-2x2"),
            (vec![None, None, Some(1.0), Some(1.0)], "_x2 1x1"),
            (vec![Some(1.0), None, None, Some(2.0)], "1 stale _x1 2"),
            (vec![Some(1.0), None], "1 stale"),
        ] {
            assert_eq!(notation(&values), wanted);
        }
    }

    #[test]
    fn a_state_is_held_counters_grow_and_gauges_repeat() {
        let mut series = Series::default();
        for step in 0..4 {
            series.scraped([
                ("a_total".to_owned(), f64::from(step * 10)),
                ("b".to_owned(), f64::from(step)),
            ]);
        }
        series.scraped([("a_total".to_owned(), 40.0), ("b".to_owned(), 7.0)]);
        series.hold(2, 3);
        let written: Vec<(&str, String)> = series.written().collect();
        assert_eq!(written[0], ("a_total", "0+10x6".to_owned()));
        assert_eq!(written[1], ("b", "0+1x3 7-5x1 3".to_owned()));
        assert_eq!(series.scrapes(), 7);
    }
}
