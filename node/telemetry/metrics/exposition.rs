//! From OpenMetrics, which prometheus-client writes, to the older Prometheus text format, which upstream
//! serves.
//!
//! The two differ in what dashboards and alerts read: a counter's family is named with its `_total`, no full
//! stop is added to the help text, `le` is the last label and reads as Go writes numbers (`1`, `1e-08`),
//! there are no units and no end mark. Series come sorted, so that two scrapes can be compared line by line.

use std::{collections::BTreeSet, fmt::Write};

/// The content type that upstream answers with.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";

/// One labelled series of a family: its label text without `le`, and its lines.
#[derive(Default)]
struct Series {
    labels: String,
    buckets: Vec<String>,
    values: Vec<String>,
}

/// Rewrites what prometheus-client has encoded.
///
/// `bare` are the counters that upstream serves without a `_total`.
pub(super) fn classic(open: &str, disabled: &[String], bare: &BTreeSet<&str>) -> String {
    let mut text = String::with_capacity(open.len());
    let mut families = Vec::<(String, Vec<Series>)>::new();
    let (mut help, mut is_bare) = ("", false);
    for line in open.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest;
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            is_bare = rest
                .split_once(' ')
                .is_some_and(|(name, _)| bare.contains(name));
            families.push((heading(help, rest, is_bare), Vec::new()));
        } else if let (Some((_, series)), false) = (families.last_mut(), line.starts_with('#')) {
            sample(line, series, is_bare);
        }
    }
    let is_disabled = |heading: &str| {
        let name = heading.split(' ').nth(2).unwrap_or_default();
        disabled.iter().any(|one| one == name)
    };
    families.retain(|(heading, _)| !is_disabled(heading));
    families.sort_by(|left, right| left.0.cmp(&right.0));
    for (heading, mut series) in families {
        text.push_str(&heading);
        series.sort_by(|left, right| left.labels.cmp(&right.labels));
        for line in series
            .iter()
            .flat_map(|one| one.buckets.iter().chain(&one.values))
        {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

/// The two lines above a family.
fn heading(help: &str, kind: &str, is_bare: bool) -> String {
    let (name, kind) = kind.split_once(' ').unwrap_or((kind, "untyped"));
    let suffix = if kind == "counter" && !is_bare {
        "_total"
    } else {
        ""
    };
    let help = help.strip_prefix(name).unwrap_or(help).trim_start();
    // The registry has added a full stop of its own.
    let help = help.strip_suffix('.').unwrap_or(help);
    format!("# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}\n")
}

/// Adds one line to the series that it belongs to.
fn sample(line: &str, series: &mut Vec<Series>, is_bare: bool) {
    let (name, labels, value) = parts(line);
    let name = match name.strip_suffix("_total") {
        Some(bare) if is_bare => bare,
        _ => name,
    };
    let (bound, labels) = match labels.strip_prefix("le=\"") {
        Some(rest) => {
            let (bound, others) = rest.split_once('"').unwrap_or((rest, ""));
            (Some(bound), others.trim_start_matches(','))
        }
        None => (None, labels),
    };
    // The lines of one series follow each other.
    if series.last().is_none_or(|last| last.labels != labels) {
        series.push(Series {
            labels: labels.to_owned(),
            ..Series::default()
        });
    }
    let Some(last) = series.last_mut() else {
        return;
    };
    match bound {
        Some(bound) => {
            let comma = if labels.is_empty() { "" } else { "," };
            let bound = number(bound);
            last.buckets
                .push(format!("{name}{{{labels}{comma}le=\"{bound}\"}} {value}"));
        }
        None if labels.is_empty() => last.values.push(format!("{name} {}", number(value))),
        None => {
            last.values
                .push(format!("{name}{{{labels}}} {}", number(value)));
        }
    }
}

/// Name, labels without braces, value.
fn parts(line: &str) -> (&str, &str, &str) {
    let (rest, value) = line.rsplit_once(' ').unwrap_or((line, ""));
    match rest.split_once('{') {
        Some((name, labels)) => (name, labels.strip_suffix('}').unwrap_or(labels), value),
        None => (rest, "", value),
    }
}

/// A number as Go's shortest form: an exponent below 1e-4 and from 1e+06 up, with two digits at least.
fn number(text: &str) -> String {
    if text == "+Inf" {
        return text.to_owned();
    }
    let Ok(value) = text.parse::<f64>() else {
        return text.to_owned();
    };
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if value != 0.0 && !(-4..6).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        let mut out = digits.to_owned();
        // Writing into a String can't fail.
        let _ = write!(out, "e{sign}{:02}", exponent.abs());
        return out;
    }
    format!("{value}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_as_go_writes_them() {
        for (given, wanted) in [
            ("1.0", "1"),
            ("0.0", "0"),
            ("1e-8", "1e-08"),
            ("9.999999999999999e-6", "9.999999999999999e-06"),
            ("0.001", "0.001"),
            ("0.0001", "0.0001"),
            ("65536.0", "65536"),
            ("262144.0", "262144"),
            ("1048576.0", "1.048576e+06"),
            ("109613056", "1.09613056e+08"),
            ("18446744073709552000.0", "1.8446744073709552e+19"),
            ("NaN", "NaN"),
            ("inf", "+Inf"),
            ("-inf", "-Inf"),
            ("+Inf", "+Inf"),
        ] {
            assert_eq!(number(given), wanted, "{given}");
        }
    }

    #[test]
    fn a_histogram_is_put_into_upstreams_order() {
        let open = "# HELP wait_seconds How long.\n# TYPE wait_seconds histogram\n\
                    wait_seconds_sum{name=\"b, } x\"} 0.5\nwait_seconds_count{name=\"b, } x\"} 1\n\
                    wait_seconds_bucket{le=\"1.0\",name=\"b, } x\"} 1\n\
                    wait_seconds_bucket{le=\"+Inf\",name=\"b, } x\"} 1\n\
                    wait_seconds_sum{name=\"a\"} 0.0\nwait_seconds_count{name=\"a\"} 0\n\
                    wait_seconds_bucket{le=\"1.0\",name=\"a\"} 0\n\
                    wait_seconds_bucket{le=\"+Inf\",name=\"a\"} 0\n# EOF\n";
        assert_eq!(
            classic(open, &[], &BTreeSet::new()),
            "# HELP wait_seconds How long\n# TYPE wait_seconds histogram\n\
             wait_seconds_bucket{name=\"a\",le=\"1\"} 0\nwait_seconds_bucket{name=\"a\",le=\"+Inf\"} 0\n\
             wait_seconds_sum{name=\"a\"} 0\nwait_seconds_count{name=\"a\"} 0\n\
             wait_seconds_bucket{name=\"b, } x\",le=\"1\"} 1\nwait_seconds_bucket{name=\"b, } x\",le=\"+Inf\"} 1\n\
             wait_seconds_sum{name=\"b, } x\"} 0.5\nwait_seconds_count{name=\"b, } x\"} 1\n"
        );
    }

    #[test]
    fn a_disabled_family_is_left_out() {
        let open =
            "# HELP a A.\n# TYPE a counter\na_total 3\n# HELP b B.\n# TYPE b gauge\nb 1\n# EOF\n";
        assert_eq!(
            classic(open, &["a_total".to_owned()], &BTreeSet::new()),
            "# HELP b B\n# TYPE b gauge\nb 1\n"
        );
    }

    #[test]
    fn a_counter_is_named_with_its_total() {
        let open = "# HELP adds Adds handled.\n# TYPE adds counter\nadds_total 3\n# EOF\n";
        assert_eq!(
            classic(open, &[], &BTreeSet::new()),
            "# HELP adds_total Adds handled\n# TYPE adds_total counter\nadds_total 3\n"
        );
    }
}
