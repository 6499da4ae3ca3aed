//! Bars beside each other, as SVG. Each step has a scale of its own: steps differ by more than any bar could show.

use std::fmt::Write as _;

use crate::report::{Results, Spread};
use crate::step::Step;

const WIDTH: f64 = 860.0;
/// Where the bars begin, and how long the longest is.
const LEFT: f64 = 220.0;
const LONGEST: f64 = 480.0;
const BAR: f64 = 15.0;
const GAP: f64 = 12.0;
const TOP: f64 = 44.0;
/// One for each peer, in their order; legible on white and on black, and told apart without red and green.
const COLOURS: [&str; 6] = [
    "#e69f00", "#0072b2", "#56b4e9", "#009e73", "#cc79a7", "#999999",
];

/// One figure over all steps that have it; `None` where no step has.
pub(crate) fn bars(results: &Results, qps: &str, figure: &str, title: &str) -> Option<String> {
    let peers = results.peers();
    let steps: Vec<(Step, Vec<(usize, Spread)>)> = Step::ALL
        .into_iter()
        .map(|step| {
            let spreads = peers
                .iter()
                .enumerate()
                .filter_map(|(at, peer)| Some((at, results.spread(qps, peer, step, figure)?)));
            (step, spreads.collect())
        })
        .filter(|(_, spreads): &(Step, Vec<_>)| !spreads.is_empty())
        .collect();
    if steps.is_empty() {
        return None;
    }
    let mut body = String::new();
    let mut y = TOP;
    for (step, spreads) in &steps {
        let most = spreads
            .iter()
            .map(|(_, spread)| spread.most)
            .fold(f64::MIN_POSITIVE, f64::max);
        let middle = y + BAR * spreads.len() as f64 / 2.0 + 4.0;
        text(&mut body, 12.0, middle, "start", &step.to_string());
        for (at, spread) in spreads {
            let length = |value: f64| (value / most * LONGEST).max(1.0);
            let colour = COLOURS[at % COLOURS.len()];
            line(
                &mut body,
                &format!(
                    r#"<rect x="{LEFT}" y="{y:.1}" width="{:.1}" height="{:.1}" fill="{colour}"/>"#,
                    length(spread.median),
                    BAR - 2.0,
                ),
            );
            let (from, to, across) = (
                LEFT + length(spread.least),
                LEFT + length(spread.most),
                y + BAR / 2.0 - 1.0,
            );
            line(
                &mut body,
                &format!(
                    r##"<line x1="{from:.1}" y1="{across:.1}" x2="{to:.1}" y2="{across:.1}" stroke="#777"/>"##
                ),
            );
            let words = format!("{} {}", peers[*at], rounded(spread.median));
            text(&mut body, to + 6.0, y + BAR - 4.0, "start", &words);
            y += BAR;
        }
        y += GAP;
    }
    let mut svg = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}" font-family="sans-serif" font-size="12">"#
    );
    svg.push('\n');
    line(
        &mut svg,
        &format!(r#"<rect width="{WIDTH}" height="{y}" fill="white"/>"#),
    );
    text(&mut svg, 12.0, 22.0, "start", title);
    svg.push_str(&body);
    svg.push_str("</svg>\n");
    Some(svg)
}

fn line(to: &mut String, element: &str) {
    to.push_str(element);
    to.push('\n');
}

/// What is written holds names of ours and figures: nothing that XML would read otherwise.
fn text(to: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(
        to,
        r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{words}</text>"#
    );
}

/// Three digits.
fn rounded(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value if value >= 1.0 => format!("{value:.2}"),
        value => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::results;

    #[test]
    fn a_plot_has_a_bar_for_each_peer_of_each_step_and_ends_where_it_says() {
        let svg = bars(&results(), "lifted", "seconds", "until converged, s").unwrap();
        assert_eq!(svg.matches("<rect").count(), 3);
        assert!(svg.contains("kcm 11.0") && svg.contains("n1 12.0"), "{svg}");
        assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
        // The longest value of the step, 14 s, reaches the whole length.
        assert!(
            svg.contains(&format!(r#"x2="{:.1}""#, LEFT + LONGEST)),
            "{svg}"
        );
        assert_eq!(bars(&results(), "lifted", "stall_p99_hit_s", "none"), None);
        assert_eq!(bars(&results(), "default", "seconds", "none"), None);
    }
}
