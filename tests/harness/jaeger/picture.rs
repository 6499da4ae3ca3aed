//! One trace as a picture (SVG): a row for each span, indented below its parent, coloured by replica, red
//! where it failed; lines lead from a write to the reconciles that link to it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::{Span, Trace};

/// Rows; what comes later is counted in the last one.
const ROWS_MAX: usize = 64;
const ROW: f64 = 16.0;
const NAMES: f64 = 430.0;
const CHART: f64 = 620.0;
const TOP: f64 = 44.0;
const COLORS: [&str; 6] = [
    "#4878d0", "#ee854a", "#6acc64", "#956cb4", "#8c613c", "#82c6e2",
];
const ERROR: &str = "#d62728";

/// Spans in the order of the picture, with their depths.
fn rows(trace: &Trace) -> Vec<(usize, &Span)> {
    let known: BTreeSet<&str> = trace.spans.iter().map(|span| &*span.id).collect();
    let mut below: BTreeMap<String, Vec<&Span>> = BTreeMap::new();
    for span in &trace.spans {
        let parent = span.parent().map(|(_, id)| id);
        let parent = parent
            .filter(|id| known.contains(&**id))
            .unwrap_or_default();
        below.entry(parent).or_default().push(span);
    }
    for spans in below.values_mut() {
        spans.sort_by(|a, b| (a.start_time, &a.name, &a.id).cmp(&(b.start_time, &b.name, &b.id)));
    }
    let mut rows = Vec::new();
    let mut open: Vec<(usize, &Span)> = Vec::new();
    let push = |open: &mut Vec<(usize, _)>, depth: usize, of: &str| {
        let spans = below.get(of).into_iter().flatten().rev();
        open.extend(spans.map(|span| (depth, *span)));
    };
    push(&mut open, 0, "");
    while let Some((depth, span)) = open.pop() {
        rows.push((depth, span));
        push(&mut open, depth + 1, &span.id);
    }
    rows
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// What a row says of its span.
fn label(span: &Span) -> String {
    let detail = match span.tag("span.kind").as_str() {
        "consumer" => span.tag("key"),
        "client" => {
            let code = span.tag("http.response.status_code");
            format!("{} {code}", span.tag("k8s.object.name"))
        }
        "producer" => span.tag("k8s.object"),
        _ => String::new(),
    };
    format!("{} {detail}", span.name).trim_end().to_owned()
}

/// Draws a trace.
pub fn draw(trace: &Trace, title: &str) -> String {
    let all = rows(trace);
    let shown = &all[..all.len().min(ROWS_MAX)];
    let begin = shown
        .iter()
        .map(|(_, span)| span.start_time)
        .min()
        .unwrap_or(0);
    let ends = shown
        .iter()
        .map(|(_, span)| span.start_time + span.duration);
    let whole = ends.max().unwrap_or(1).saturating_sub(begin).max(1);
    #[allow(clippy::cast_precision_loss)] // Microseconds of a test.
    let x = |at: u64| NAMES + at.saturating_sub(begin) as f64 / whole as f64 * CHART;
    let replicas: BTreeSet<String> = trace.spans.iter().map(|span| trace.replica(span)).collect();
    let color = |span: &Span| {
        let replica = trace.replica(span);
        let at = replicas.iter().position(|one| *one == replica).unwrap_or(0);
        COLORS[at % COLORS.len()]
    };
    #[allow(clippy::cast_precision_loss)] // Few rows.
    let y = |row: usize| TOP + row as f64 * ROW;
    let (width, height) = (NAMES + CHART + 20.0, y(shown.len()) + 24.0);
    let mut svg = String::new();
    // Writing into a String can't fail.
    let _ = writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"8\" y=\"16\" font-size=\"13\">{}</text>",
        escaped(title)
    );
    for (at, replica) in (0_u8..).zip(&replicas) {
        let left = 8.0 + f64::from(at) * 130.0;
        let fill = COLORS[usize::from(at) % COLORS.len()];
        let _ = writeln!(
            svg,
            "<rect x=\"{left:.0}\" y=\"24\" width=\"10\" height=\"10\" fill=\"{fill}\"/>\
             <text x=\"{:.0}\" y=\"33\">{}</text>",
            left + 14.0,
            escaped(replica)
        );
    }
    let places: BTreeMap<&str, usize> = (0..)
        .zip(shown)
        .map(|(row, (_, span))| (&*span.id, row))
        .collect();
    for (row, (depth, span)) in shown.iter().enumerate() {
        let fill = if span.is_error() { ERROR } else { color(span) };
        #[allow(clippy::cast_precision_loss)] // Few levels.
        let indent = 8.0 + *depth as f64 * 12.0;
        let (left, right) = (x(span.start_time), x(span.start_time + span.duration));
        #[allow(clippy::cast_precision_loss)] // Microseconds of a test.
        let millis = span.duration as f64 / 1000.0;
        let _ = writeln!(
            svg,
            "<text x=\"{indent:.0}\" y=\"{:.0}\" fill=\"{}\">{}</text>\
             <rect x=\"{left:.1}\" y=\"{:.0}\" width=\"{:.1}\" height=\"10\" fill=\"{fill}\">\
             <title>{} {millis:.2} ms, {}</title></rect>",
            y(row) + 10.0,
            if span.is_error() { ERROR } else { "#222" },
            escaped(&label(span)),
            y(row) + 1.0,
            (right - left).max(1.5),
            escaped(&span.name),
            escaped(&trace.replica(span)),
        );
        for (_, linked) in span.links() {
            let Some(from) = places.get(&*linked) else {
                continue;
            };
            let (_, of) = shown[*from];
            let _ = writeln!(
                svg,
                "<path d=\"M{:.1} {:.0} L{left:.1} {:.0}\" stroke=\"#999\" stroke-width=\"0.7\" fill=\"none\"/>",
                x(of.start_time + of.duration),
                y(*from) + 6.0,
                y(row) + 6.0
            );
        }
    }
    #[allow(clippy::cast_precision_loss)] // Microseconds of a test.
    let whole = whole as f64 / 1000.0;
    let more = match all.len() - shown.len() {
        0 => String::new(),
        more => format!(", {more} more spans"),
    };
    let _ = writeln!(
        svg,
        "<text x=\"{NAMES:.0}\" y=\"{:.0}\" fill=\"#666\">0 to {whole:.1} ms{more}</text>\n</svg>",
        height - 8.0
    );
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_follow_their_parents_links_are_lines_and_failures_red() {
        let span = |id: &str, parent: &str, kind: &str, start: u64, error: bool| {
            let reference =
                |kind| serde_json::json!({"refType": kind, "traceID": "t", "spanID": parent});
            let references = match parent {
                "" => vec![],
                _ if kind == "consumer" => vec![reference("FOLLOWS_FROM")],
                _ => vec![reference("CHILD_OF")],
            };
            serde_json::json!({
                "traceID": "t", "spanID": id, "operationName": format!("span {id}"), "references": references,
                "startTime": start, "duration": 1000, "processID": "p1",
                "tags": [{"key": "span.kind", "value": kind}, {"key": "error", "value": error}],
            })
        };
        let trace: Trace = serde_json::from_value(serde_json::json!({
            "spans": [
                span("c", "b", "consumer", 4000, true),
                span("b", "a", "producer", 2000, false),
                span("a", "", "consumer", 1000, false),
            ],
            "processes": {"p1": {"serviceName": "manifold", "tags": [
                {"key": "service.instance.id", "value": "manifold-0"}
            ]}},
        }))
        .unwrap();
        let order: Vec<(usize, &str)> = rows(&trace)
            .into_iter()
            .map(|(depth, span)| (depth, &*span.id))
            .collect();
        assert_eq!(order, [(0, "a"), (1, "b"), (0, "c")]);
        let svg = draw(&trace, "a < b");
        assert_eq!(
            svg,
            draw(&trace, "a < b"),
            "the same picture of the same trace"
        );
        assert!(svg.contains("a &lt; b") && svg.contains("manifold-0") && svg.contains(ERROR));
        assert_eq!(svg.matches("<path").count(), 1, "{svg}");
    }
}
