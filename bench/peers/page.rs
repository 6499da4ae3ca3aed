//! bench/README.md and its plots, made from the newest results: one screen of them, the method, then
//! everything.

use std::fs;

use anyhow::{Context, Result};

use crate::plot;
use crate::profile;
use crate::report::{self, FIGURES, Results};
use crate::scale_out;
use crate::step::Step;

const INTRODUCTION: &str = include_str!("introduction.md");
const METHOD: &str = include_str!("method.md");
const PROFILES: &str = include_str!("profiles.md");

/// What the first screen shows, under lifted limits: step and figure.
const HEADLINES: [(Step, &str); 13] = [
    (Step::Create, "seconds"),
    (Step::Create, "cpu_s"),
    (Step::RollOut, "seconds"),
    (Step::RollOut, "cpu_s"),
    (Step::Job, "cpu_s"),
    (Step::Hold, "rss_rest_mib"),
    (Step::Hold, "status_writes"),
    (Step::Hold, "conflicts"),
    (Step::Rest, "cpu_per_s_of_the_busiest"),
    (Step::Start, "first_served_s"),
    (Step::Killed, "stall_p99_hit_s"),
    (Step::Stopped, "stall_p99_hit_s"),
    (Step::Added, "stall_p99_hit_s"),
];
/// The peer that is no manager of its own: it is left out of the first screen.
const WATCHER: &str = "watcher";

/// Figures that are drawn.
const DRAWN: [&str; 5] = [
    "seconds",
    "cpu_s",
    "rss_rest_mib",
    "status_writes",
    "stall_p99_hit_s",
];

/// Writes the page and its plots.
pub(crate) fn renew() -> Result<()> {
    let Some(results) = Results::newest()? else {
        anyhow::bail!("bench/results holds no results: run `cargo bench-peers` first");
    };
    let plots = plots(&results)?;
    for (name, svg) in &plots {
        report::draw(name, svg)?;
    }
    let path = harness::workspace_root().join("bench/README.md");
    fs::write(&path, page(&results, &Besides::kept()?, &plots))
        .with_context(|| format!("writing {}", path.display()))
}

/// What the page shows besides the comparison with the peer.
#[derive(Default)]
struct Besides {
    scaled_out: Vec<scale_out::Results>,
    fenced: Option<Results>,
    all: Option<Results>,
    /// Files of the flame graphs.
    profiles: Vec<String>,
}

impl Besides {
    /// The newest of each.
    fn kept() -> Result<Self> {
        Ok(Self {
            scaled_out: scale_out::newest(report::kept("scale-out-")?),
            fenced: Results::newest_fenced()?,
            all: Results::newest_all()?,
            profiles: profile::pictures(report::names()),
        })
    }
}

/// Name of the file and what is drawn.
fn plots(results: &Results) -> Result<Vec<(String, String)>> {
    let mut plots = Vec::new();
    for figure in FIGURES.iter().filter(|figure| DRAWN.contains(&figure.name)) {
        let title = format!(
            "{} (median; line from least to most; QPS lifted)",
            figure.words
        );
        if let Some(svg) = plot::bars(results, "lifted", figure.name, &title)? {
            plots.push((format!("{}.svg", figure.name), svg));
        }
    }
    Ok(plots)
}

fn markdown(heads: &[String], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let rule: Vec<String> = heads
        .iter()
        .enumerate()
        .map(|(column, _)| if column < 2 { "---" } else { "---:" }.to_owned())
        .collect();
    let mut table = line(heads) + &line(&rule);
    for row in rows {
        table += &line(row);
    }
    table
}

/// A table for each rig.
fn scale_out_section(kept: &[scale_out::Results]) -> String {
    let mut section = "\n### More replicas\n".to_owned();
    for results in kept {
        section += &format!(
            "\n{} keys, {} worker{} for each controller and replica, {} ms added to every call; {} ({}).\n\n",
            results.keys,
            results.workers,
            if results.workers == 1 { "" } else { "s" },
            results.delay_ms,
            results.date.strftime("%Y-%m-%d"),
            results.machine.commit,
        );
        let (heads, rows) = results.table();
        section += &markdown(&heads, &rows);
    }
    section
}

fn fence_section(results: &Results) -> String {
    let mut section = "\n### The fence at the API server\n\n".to_owned();
    section += &format!(
        "The same replica without and with `deploy/fence`: each write impersonates its controller's service account, and \
         the server asks a policy. QPS lifted, {} rounds at a scale of {}; {} ({}).\n\n",
        results.rounds(),
        results.scale,
        results.date.strftime("%Y-%m-%d"),
        results.machine.commit,
    );
    section + &figures(results, "lifted")
}

/// What was promised of a manager that runs every controller, and all that was measured of it.
fn all_section(results: &Results) -> String {
    let machine = &results.machine;
    let mut section = "\n### Every controller on\n\n".to_owned();
    section += &format!(
        "Both with all controllers but those of clouds, and the feature gates that these need; the API server serves what \
         they are for. QPS lifted, {} round{} at a scale of {}; {} ({}).\n\n",
        results.rounds(),
        if results.rounds() == 1 { "" } else { "s" },
        results.scale,
        results.date.strftime("%Y-%m-%d"),
        machine.commit,
    );
    section += &(steps(results) + "\n");
    section += &promised(&promises(results));
    section + "\n" + &figures(results, "lifted")
}

/// The flame graphs, and what they have taught.
fn profiles_section(names: &[String]) -> String {
    let mut section = format!("\n{PROFILES}");
    for name in names {
        let title = profile::title(name);
        section += &format!("\n{title}:\n\n![{title}](results/{name})\n");
    }
    section
}

/// The table of everything that was measured under a limit.
fn figures(results: &Results, qps: &str) -> String {
    let (heads, rows) = report::table(results, qps);
    let cells: Vec<Vec<String>> = rows.into_iter().map(|row| row.cells).collect();
    markdown(&heads, &cells)
}

/// The first screen: the rows of [`HEADLINES`] that were measured.
fn headlines(results: &Results) -> String {
    let (heads, rows) = report::table(results, "lifted");
    let columns: Vec<usize> = (0..heads.len())
        .filter(|column| !heads[*column].starts_with(WATCHER))
        .collect();
    let pick = |cells: &[String]| -> Vec<String> {
        columns
            .iter()
            .map(|column| cells[*column].clone())
            .collect()
    };
    let words = |name: &str| FIGURES.iter().find(|figure| figure.name == name);
    let shown: Vec<Vec<String>> = HEADLINES
        .iter()
        .filter_map(|(step, figure)| {
            let words = words(figure)?.words;
            let row = rows
                .iter()
                .find(|row| row.step == *step && row.cells[1] == words)?;
            Some(pick(&row.cells))
        })
        .collect();
    markdown(&pick(&heads), &shown)
}

/// How many promises are kept, and which are not.
fn kept(promises: &[Vec<String>]) -> String {
    let missed: Vec<&str> = promises
        .iter()
        .filter(|line| line[3] == "missed")
        .map(|line| line[0].as_str())
        .collect();
    let kept = promises.len() - missed.len();
    let mut text = format!("\n{kept} of {} promised bounds are kept.", promises.len());
    if !missed.is_empty() {
        text += &format!(" Missed: {}.", missed.join("; "));
    }
    text + "\n"
}

fn promises(results: &Results) -> Vec<Vec<String>> {
    report::promises(results)
        .into_iter()
        .map(Vec::from)
        .collect()
}

/// The steps that were measured, in words.
fn steps(results: &Results) -> String {
    let mut table = "| step | what happens |\n|---|---|\n".to_owned();
    let measured = |step: Step| results.runs.iter().any(|run| run.step == step);
    for (step, words) in results.steps.iter().filter(|(step, _)| measured(**step)) {
        table += &format!("| {step} | {words} |\n");
    }
    table
}

/// The table of promises, each beside what was measured.
fn promised(promises: &[Vec<String>]) -> String {
    let heads = ["promised", "bound", "measured", "is"].map(str::to_owned);
    markdown(&heads, promises)
}

fn page(results: &Results, besides: &Besides, plots: &[(String, String)]) -> String {
    let machine = &results.machine;
    let mut page = INTRODUCTION.to_owned();
    page += "\n## The newest results\n\n";
    page += &format!(
        "{}, {}{} round{}, {} cores of {}, {} GiB, Linux {}; Kubernetes {}, Manifold {} ({}).\n",
        results.date.strftime("%Y-%m-%d"),
        if results.rounds() == 1 { "" } else { "up to " },
        results.rounds(),
        if results.rounds() == 1 { "" } else { "s" },
        machine.cores,
        machine.processor,
        machine.memory_gib,
        machine.kernel,
        machine.kubernetes,
        machine.manifold,
        machine.commit,
    );
    if results.scale < 1.0 {
        page += &format!(
            "\n**A trial at a scale of {}**: it shows that the steps work, and is no measure of what is promised.\n",
            results.scale
        );
    }
    let promises = promises(results);
    page += "\nMedian, QPS lifted.\n\n";
    page += &headlines(results);
    if !promises.is_empty() {
        page += &kept(&promises);
    }
    page += METHOD;
    page += "\n## All results\n\n";
    page += &steps(results);
    if !promises.is_empty() {
        page += "\n### Beside what is promised\n\n";
        page += &promised(&promises);
    }
    if let Some(all) = &besides.all {
        page += &all_section(all);
    }
    if !besides.scaled_out.is_empty() {
        page += &scale_out_section(&besides.scaled_out);
    }
    if let Some(fenced) = &besides.fenced {
        page += &fence_section(fenced);
    }
    if !besides.profiles.is_empty() {
        page += &profiles_section(&besides.profiles);
    }
    for (name, _) in plots {
        let title = name.trim_end_matches(".svg").to_owned();
        page += &format!("\n![{title}](results/{name})\n");
    }
    for qps in results.limits() {
        page += &format!(
            "\n### Everything, QPS {qps}\n\nMedian, with least and most where they differ.\n\n"
        );
        page += &figures(results, qps);
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::results;

    #[test]
    fn the_page_shows_every_measured_step_and_no_other() {
        let results = results();
        let page = page(&results, &Besides::default(), &plots(&results).unwrap());
        for expected in [
            "2026-05-04, up to 3 rounds",
            "| create | 40 Deployments of 50 pods are created |",
            "| create | until converged, s | 11.00 (10.00–14.00) | 12.00 | 1.091 |",
            "1 of 2 promised bounds are kept. Missed: create, n1, QPS lifted: until converged, s.",
            "![cpu_s](results/cpu_s.svg)",
            "| missed |",
        ] {
            assert!(page.contains(expected), "{expected}\nnot in\n{page}");
        }
        let place = |heading: &str| page.find(heading).unwrap();
        assert!(place("## The newest results") < place("## Method"));
        assert!(place("## Method") < place("## All results"));
        assert!(!page.contains("A trial"), "it was measured in full");
        assert!(!page.contains("namespaces of 50"), "{page}");
    }

    #[test]
    fn the_page_in_the_tree_is_of_the_newest_results() {
        let Some(results) = Results::newest().unwrap() else {
            panic!("bench/results holds no results");
        };
        let root = harness::workspace_root();
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let stale = "stale: run `cargo bench-peers --page`";
        let plots = plots(&results).unwrap();
        assert!(
            read("bench/README.md") == page(&results, &Besides::kept().unwrap(), &plots),
            "bench/README.md is {stale}"
        );
        for (name, svg) in plots {
            let path = format!("bench/results/{name}");
            assert!(read(&path) == svg, "{path} is {stale}");
        }
    }
}
