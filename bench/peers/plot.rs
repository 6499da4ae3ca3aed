//! Bars beside each other, as SVG. Each step has a scale of its own: steps differ by more than any bar could
//! show.

use anyhow::Result;
use plotters::coord::Shift;
use plotters::drawing::DrawingArea;
use plotters::prelude::{
    Color, DrawingBackend, IntoDrawingArea, IntoFont, PathElement, RGBColor, Rectangle, SVGBackend,
    Text, WHITE,
};

use crate::report::{Results, Spread};
use crate::step::Step;

const WIDTH: i32 = 860;
/// Where the bars begin, and how long the longest is.
const LEFT: i32 = 220;
const LONGEST: i32 = 480;
const BAR: i32 = 15;
const GAP: i32 = 12;
const TOP: i32 = 44;
const MARGIN: i32 = 12;
const FONT: (&str, i32) = ("sans-serif", 12);
/// One for each peer, in their order; legible on white and on black, and distinguishable without red and
/// green.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x99, 0x99, 0x99),
];
const LINE: RGBColor = RGBColor(0x77, 0x77, 0x77);

/// One figure over all steps that have it; `None` where no step has.
pub(crate) fn bars(
    results: &Results,
    qps: &str,
    figure: &str,
    title: &str,
) -> Result<Option<String>> {
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
        return Ok(None);
    }
    let heights = steps
        .iter()
        .map(|(_, spreads)| BAR * spreads.len() as i32 + GAP);
    let size = (
        WIDTH.unsigned_abs(),
        (TOP + heights.sum::<i32>()).unsigned_abs(),
    );
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        area.fill(&WHITE)?;
        area.draw(&Text::new(title, (MARGIN, MARGIN), FONT.into_font()))?;
        let mut y = TOP;
        for (step, spreads) in &steps {
            let middle = y + (BAR * spreads.len() as i32 - FONT.1) / 2;
            area.draw(&Text::new(
                step.to_string(),
                (MARGIN, middle),
                FONT.into_font(),
            ))?;
            let most = spreads
                .iter()
                .map(|(_, spread)| spread.most)
                .fold(f64::MIN_POSITIVE, f64::max);
            for (at, spread) in spreads {
                bar(&area, y, (*at, peers[*at]), spread, most)?;
                y += BAR;
            }
            y += GAP;
        }
        area.present()?;
    }
    Ok(Some(svg))
}

/// The median as a bar, a line from the least to the most, and the figure.
fn bar<B>(
    area: &DrawingArea<B, Shift>,
    y: i32,
    (at, peer): (usize, &str),
    spread: &Spread,
    most: f64,
) -> Result<()>
where
    B: DrawingBackend,
    B::ErrorType: 'static,
{
    let x = |value: f64| LEFT + ((value / most * f64::from(LONGEST)) as i32).max(1);
    let corners = [(LEFT, y), (x(spread.median), y + BAR - 2)];
    area.draw(&Rectangle::new(
        corners,
        COLOURS[at % COLOURS.len()].filled(),
    ))?;
    let across = y + BAR / 2 - 1;
    let ends = [(x(spread.least), across), (x(spread.most), across)];
    area.draw(&PathElement::new(ends, LINE))?;
    let words = format!("{peer} {}", rounded(spread.median));
    area.draw(&Text::new(words, (x(spread.most) + 6, y), FONT.into_font()))?;
    Ok(())
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
        let drawn = |qps, figure| bars(&results(), qps, figure, "a title").unwrap();
        let svg = drawn("lifted", "seconds").unwrap();
        // The ground, and the bars of two peers.
        assert_eq!(svg.matches("<rect").count(), 3);
        assert!(svg.contains("kcm 11.0") && svg.contains("n1 12.0"), "{svg}");
        assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
        // The longest value of the step, 14 s, reaches the whole length.
        assert!(svg.contains(&format!("{},", LEFT + LONGEST)), "{svg}");
        assert_eq!(drawn("lifted", "stall_p99_hit_s"), None);
        assert_eq!(drawn("default", "seconds"), None);
    }
}
