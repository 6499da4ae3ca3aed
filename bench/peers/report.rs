//! What was measured, as a file, as a table, and beside what was promised.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use comfy_table::CellAlignment;
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::meter::Figures;
use crate::peer::Peer;
use crate::step::{Sizes, Step};

/// The peer that the others are compared with, and the same with every controller on.
const PEER: &str = "kcm";
const PEER_ALL: &str = "kcm-all";
const LIFTED: &str = "lifted";
const DEFAULT: &str = "default";
/// How the names of the results' files begin.
const PEERS: &str = "peers-";
const FENCES: &str = "fence-";
const ALL: &str = "all-";

/// One step of one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) round: usize,
    pub(crate) qps: String,
    pub(crate) peer: String,
    pub(crate) step: Step,
    pub(crate) figures: Figures,
    /// What the API server was asked for, by whomever: verb and resource.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) requests: BTreeMap<String, f64>,
}

/// One use of the bench.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) date: Timestamp,
    pub(crate) scale: f64,
    pub(crate) machine: Machine,
    /// Each step in words, at this scale.
    pub(crate) steps: BTreeMap<Step, String>,
    pub(crate) runs: Vec<Measured>,
}

/// `bench/results` of the tree.
pub(crate) fn folder() -> PathBuf {
    harness::workspace_root().join("bench/results")
}

/// Writes results to a file of the tree.
pub(crate) fn keep(file_name: &str, results: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(results)? + "\n";
    write(&harness::workspace_root().join(file_name), text)
}

/// Writes a picture beside the results.
pub(crate) fn draw(name: &str, svg: impl AsRef<[u8]>) -> Result<()> {
    write(&folder().join(name), svg)
}

fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    fs::create_dir_all(folder()).context("making bench/results")?;
    fs::write(path, content).with_context(|| format!("writing {}", path.display()))
}

/// Names of the files beside the results.
pub(crate) fn names() -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder()) else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort_unstable();
    names
}

/// All results whose file begins so, in the order of their names.
pub(crate) fn kept<R: DeserializeOwned>(prefix: &str) -> Result<Vec<R>> {
    names()
        .into_iter()
        .filter(|name| name.starts_with(prefix) && name.ends_with(".json"))
        .map(|name| {
            let text = fs::read_to_string(folder().join(&name))?;
            serde_json::from_str(&text)
                .with_context(|| format!("bench/results/{name} is no result of this bench"))
        })
        .collect()
}

impl Results {
    pub(crate) fn new(machine: Machine, sizes: &Sizes) -> Self {
        Self {
            date: Timestamp::now(),
            scale: sizes.scale(),
            machine,
            steps: Step::ALL
                .into_iter()
                .map(|step| (step, step.words(sizes)))
                .collect(),
            runs: Vec::new(),
        }
    }

    /// By date, so that the newest is the last. The cost of the API server's fence is a separate question
    /// from the comparison with the peer, and so is that of every controller: they have files of their own.
    /// `peers` are those that are asked about.
    pub(crate) fn file_name(&self, peers: &[Peer]) -> String {
        let prefix = if peers.iter().any(Peer::is_fenced) {
            FENCES
        } else if peers.iter().any(Peer::has_all) {
            ALL
        } else {
            PEERS
        };
        format!(
            "bench/results/{prefix}{}.json",
            self.date.strftime("%Y%m%dT%H%M%SZ")
        )
    }

    /// The newest of those beside the peer.
    pub(crate) fn newest() -> Result<Option<Self>> {
        Self::newest_of(PEERS)
    }

    /// The newest of those with and without the API server's fence.
    pub(crate) fn newest_fenced() -> Result<Option<Self>> {
        Self::newest_of(FENCES)
    }

    /// The newest of those with every controller on.
    pub(crate) fn newest_all() -> Result<Option<Self>> {
        Self::newest_of(ALL)
    }

    /// Of those at the largest scale; trials do not hide what was measured in full.
    fn newest_of(prefix: &str) -> Result<Option<Self>> {
        let order = |results: &Self| (results.scale.min(1.0), results.date);
        let before = |a: &Self, b: &Self| order(a).partial_cmp(&order(b));
        let mut all: Vec<Self> = kept(prefix)?;
        all.sort_by(|a, b| before(a, b).unwrap_or(Ordering::Equal));
        let newest = all.pop();
        Ok(newest.map(|newest| newest.with(all)))
    }

    /// With what was measured before of the same build, on the same machine and at the same scale, as further
    /// rounds: hours of measuring need not be one go. `earlier` is in order of date.
    fn with(mut self, mut earlier: Vec<Self>) -> Self {
        earlier.retain(|one| one.machine == self.machine && one.scale == self.scale);
        let group = |run: &Measured| (run.qps.clone(), run.peer.clone(), run.step);
        let mut rounds = BTreeMap::new();
        for run in &self.runs {
            let known = rounds.entry(group(run)).or_insert(0);
            *known = run.round.max(*known);
        }
        while let Some(one) = earlier.pop() {
            let before = rounds.clone();
            for mut run in one.runs {
                run.round += before.get(&group(&run)).copied().unwrap_or(0);
                let known = rounds.entry(group(&run)).or_insert(0);
                *known = run.round.max(*known);
                self.runs.push(run);
            }
            self.steps.extend(one.steps);
        }
        self
    }

    /// Limits of requests and peers, in the order of the table.
    pub(crate) fn limits(&self) -> Vec<&str> {
        let all: BTreeSet<&str> = self.runs.iter().map(|run| run.qps.as_str()).collect();
        all.into_iter().rev().collect()
    }

    pub(crate) fn peers(&self) -> Vec<&str> {
        let all: BTreeSet<&str> = self.runs.iter().map(|run| run.peer.as_str()).collect();
        all.into_iter().collect()
    }

    pub(crate) fn rounds(&self) -> usize {
        self.runs.iter().map(|run| run.round).max().unwrap_or(0)
    }

    /// A figure over all rounds.
    pub(crate) fn spread(&self, qps: &str, peer: &str, step: Step, figure: &str) -> Option<Spread> {
        let runs = self
            .runs
            .iter()
            .filter(|run| run.qps == qps && run.peer == peer && run.step == step);
        let present: Vec<&Measured> = runs.collect();
        let values: Vec<f64> = present
            .iter()
            .filter_map(|run| run.figures.get(figure).copied())
            .collect();
        if values.is_empty() {
            return None;
        }
        // Counters that did not move are not written down: they are zero in that round.
        let zeros = present.len() - values.len();
        Some(Spread::of(values.into_iter().chain(vec![0.0; zeros])))
    }
}

/// Median, least and most.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Spread {
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (least, most) = (
            values.first().copied().unwrap_or(0.0),
            values.last().copied().unwrap_or(0.0),
        );
        let middle = values.len() / 2;
        let median = match values.len() {
            0 => 0.0,
            count if count % 2 == 1 => values[middle],
            _ => f64::midpoint(values[middle - 1], values[middle]),
        };
        Self {
            median,
            least,
            most,
        }
    }
}

/// A figure, in words and with a fixed number of digits after the point.
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    pub(crate) words: &'static str,
    digits: usize,
}

const fn figure(name: &'static str, words: &'static str, digits: usize) -> Figure {
    Figure {
        name,
        words,
        digits,
    }
}

/// In the order of the table.
pub(crate) const FIGURES: [Figure; 33] = [
    figure("seconds", "until converged, s", 2),
    figure("first_served_s", "until the first key is served, s", 2),
    figure("all_served_s", "until all that waited are served, s", 2),
    figure("ready_s", "until ready, s", 2),
    figure("ended_after_s", "until the process is gone, s", 2),
    figure("joined_after_s", "until it shares the work, s", 2),
    figure("stall_p50_hit_s", "wait of its keys, p50, s", 3),
    figure("stall_p99_hit_s", "wait of its keys, p99, s", 3),
    figure("stall_longest_hit_s", "wait of its keys, longest, s", 3),
    figure("stall_p50_others_s", "wait of other keys, p50, s", 3),
    figure("stall_p99_others_s", "wait of other keys, p99, s", 3),
    figure(
        "stall_longest_others_s",
        "wait of other keys, longest, s",
        3,
    ),
    figure("stall_p99_undisturbed_s", "wait before, p99, s", 3),
    figure("cpu_s", "processor, all processes, s", 2),
    figure("cpu_s_of_the_busiest", "processor, busiest process, s", 2),
    figure(
        "cpu_per_s_of_the_busiest",
        "processor, busiest process, s/s",
        4,
    ),
    figure("rss_before_mib", "memory before, largest process, MiB", 1),
    figure(
        "rss_peak_mib",
        "memory at its peak, largest process, MiB",
        1,
    ),
    figure("rss_rest_mib", "memory at rest, largest process, MiB", 1),
    figure(
        "rss_rest_mib_of_all",
        "memory at rest, all processes, MiB",
        1,
    ),
    figure("requests_get", "requests GET", 0),
    figure("requests_post", "requests POST", 0),
    figure("requests_put", "requests PUT", 0),
    figure("requests_patch", "requests PATCH", 0),
    figure("requests_delete", "requests DELETE", 0),
    figure("pods_created", "pods created", 0),
    figure("status_writes", "status writes", 0),
    figure("event_writes", "event writes", 0),
    figure("conflicts", "conflicts of status writes", 0),
    figure("refused_409", "answers 409 to any request", 0),
    figure("received_mib", "received, MiB", 2),
    figure("writes", "writes but Leases", 0),
    figure("not_at_rest", "not at rest after a minute, runs", 0),
];

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) step: Step,
    pub(crate) cells: Vec<String>,
}

/// Headings, and a row for each figure of each step.
pub(crate) fn table(results: &Results, qps: &str) -> (Vec<String>, Vec<Row>) {
    let peers = results.peers();
    let upstream = |peer: &&str| [PEER, PEER_ALL].contains(peer);
    let base = peers.iter().copied().find(upstream);
    let compared: Vec<&str> = peers
        .iter()
        .copied()
        .filter(|peer| Some(*peer) != base)
        .collect();
    let mut heads = vec!["step".to_owned(), "figure".to_owned()];
    heads.extend(peers.iter().map(|peer| (*peer).to_owned()));
    if let Some(base) = base {
        heads.extend(compared.iter().map(|peer| format!("{peer} ÷ {base}")));
    }
    let mut rows = Vec::new();
    for step in Step::ALL {
        for figure in &FIGURES {
            let spreads: Vec<Option<Spread>> = peers
                .iter()
                .map(|peer| results.spread(qps, peer, step, figure.name))
                .collect();
            if spreads.iter().flatten().all(|spread| spread.most == 0.0)
                && !matches!(figure.name, "writes" | "conflicts")
                || spreads.iter().all(Option::is_none)
            {
                continue;
            }
            let mut cells = vec![step.to_string(), figure.words.to_owned()];
            cells.extend(
                spreads
                    .iter()
                    .map(|spread| cell(spread.as_ref(), figure.digits)),
            );
            if let Some(base) = base {
                cells.extend(compared.iter().map(|peer| {
                    ratio(results, qps, [peer, base], step, figure.name)
                        .map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.3}"))
                }));
            }
            rows.push(Row { step, cells });
        }
    }
    (heads, rows)
}

fn cell(spread: Option<&Spread>, digits: usize) -> String {
    let Some(Spread {
        median,
        least,
        most,
    }) = spread
    else {
        return "–".to_owned();
    };
    if least == most {
        format!("{median:.digits$}")
    } else {
        format!("{median:.digits$} ({least:.digits$}–{most:.digits$})")
    }
}

fn ratio(
    results: &Results,
    qps: &str,
    [of, to]: [&str; 2],
    step: Step,
    figure: &str,
) -> Option<f64> {
    let ours = results.spread(qps, of, step, figure)?.median;
    let theirs = results.spread(qps, to, step, figure)?.median;
    (theirs > 0.0).then(|| ours / theirs)
}

/// What was promised of a figure.
struct Promise {
    steps: &'static [Step],
    qps: &'static str,
    peer: &'static str,
    figure: &'static str,
    bound: Bound,
}

enum Bound {
    /// Itself at most this.
    Most(f64),
    /// At most this of the other peer's.
    Share(&'static str, f64),
    /// At most this of another peer's and that of a third's.
    Shares([(&'static str, f64); 2]),
}

const WORK: [Step; 9] = [
    Step::Create,
    Step::RollOut,
    Step::ScaleDown,
    Step::DeleteBackground,
    Step::DeleteForeground,
    Step::Namespaces,
    Step::Job,
    Step::Deployment,
    Step::Hold,
];

/// With medians over the rounds.
const PROMISES: [Promise; 20] = [
    // Every controller on.
    promise(
        &[
            Step::Create,
            Step::RollOut,
            Step::DeleteBackground,
            Step::DeleteForeground,
        ],
        LIFTED,
        "n1-all",
        "cpu_s",
        Bound::Share(PEER_ALL, 0.2),
    ),
    promise(
        &[Step::Empty],
        LIFTED,
        "n1-all",
        "rss_rest_mib",
        Bound::Share(PEER_ALL, 0.25),
    ),
    promise(
        &[Step::Create],
        LIFTED,
        "n1-all",
        "rss_rest_mib",
        Bound::Share(PEER_ALL, 0.22),
    ),
    promise(
        &[Step::Hold],
        LIFTED,
        "n1-all",
        "rss_rest_mib",
        Bound::Share(PEER_ALL, 0.2),
    ),
    // On by default.
    promise(&WORK, LIFTED, "n1", "cpu_s", Bound::Share(PEER, 0.15)),
    promise(&WORK, LIFTED, "n1", "seconds", Bound::Share(PEER, 1.0)),
    promise(
        &[Step::Hold],
        LIFTED,
        "n1",
        "rss_rest_mib",
        Bound::Share(PEER, 0.2),
    ),
    promise(
        &WORK,
        LIFTED,
        "n3",
        "cpu_s",
        Bound::Shares([("n1", 1.15), ("watcher", 2.0)]),
    ),
    promise(
        &[Step::Hold],
        LIFTED,
        "n3",
        "rss_rest_mib",
        Bound::Share("n1", 1.05),
    ),
    promise(
        &[Step::Hold],
        LIFTED,
        "n3",
        "status_writes",
        Bound::Share(PEER, 0.3),
    ),
    promise(&[Step::Hold], LIFTED, "n3", "conflicts", Bound::Most(10.0)),
    promise(
        &[Step::Rest],
        LIFTED,
        "n3",
        "cpu_per_s_of_the_busiest",
        Bound::Most(0.002),
    ),
    promise(&[Step::Rest], LIFTED, "n3", "writes", Bound::Most(0.0)),
    promise(
        &[Step::Start],
        LIFTED,
        "n1",
        "first_served_s",
        Bound::Most(0.5),
    ),
    promise(&[Step::Start], LIFTED, "n1", "ready_s", Bound::Most(1.5)),
    promise(
        &[Step::Killed],
        LIFTED,
        "n3",
        "stall_p99_hit_s",
        Bound::Most(6.0),
    ),
    promise(
        &[Step::Killed],
        LIFTED,
        "n3",
        "stall_p99_others_s",
        Bound::Most(0.5),
    ),
    promise(
        &[Step::Stopped],
        LIFTED,
        "n3",
        "stall_p99_hit_s",
        Bound::Most(0.3),
    ),
    promise(
        &[Step::Added],
        LIFTED,
        "n3",
        "stall_p99_hit_s",
        Bound::Most(0.3),
    ),
    promise(
        &[Step::Create],
        DEFAULT,
        "n3",
        "seconds",
        Bound::Share(PEER, 0.4),
    ),
];

const fn promise(
    steps: &'static [Step],
    qps: &'static str,
    peer: &'static str,
    figure: &'static str,
    bound: Bound,
) -> Promise {
    Promise {
        steps,
        qps,
        peer,
        figure,
        bound,
    }
}

/// A line for each promise that these results cover: what was promised, what it is, whether that is kept.
pub(crate) fn promises(results: &Results) -> Vec<[String; 4]> {
    let mut lines = Vec::new();
    for promise in &PROMISES {
        let words = FIGURES
            .iter()
            .find(|figure| figure.name == promise.figure)
            .map_or(promise.figure, |figure| figure.words);
        for step in promise.steps {
            let median = |peer: &str| {
                let spread = results.spread(promise.qps, peer, *step, promise.figure);
                spread.map(|spread| spread.median)
            };
            let Some(ours) = median(promise.peer) else {
                continue;
            };
            let (value, bound, text) = match promise.bound {
                Bound::Most(most) => (Some(ours), most, format!("≤ {most}")),
                Bound::Share(peer, share) => {
                    let theirs = median(peer).filter(|theirs| *theirs > 0.0);
                    let value = theirs.map(|theirs| ours / theirs);
                    (value, share, format!("≤ {share} × {peer}"))
                }
                Bound::Shares(shares) => {
                    let parts = shares.map(|(peer, share)| Some(share * median(peer)?));
                    let bound: Option<f64> = parts.into_iter().sum();
                    let text = shares.map(|(peer, share)| format!("{share} × {peer}"));
                    let value = bound.map(|bound| ours / bound);
                    (value, 1.0, format!("≤ {}", text.join(" + ")))
                }
            };
            let Some(value) = value else { continue };
            lines.push([
                format!("{step}, {}, QPS {}: {words}", promise.peer, promise.qps),
                text,
                format!("{value:.4}"),
                if value <= bound { "kept" } else { "missed" }.to_owned(),
            ]);
        }
    }
    lines
}

/// Columns as wide as their widest cell; words to the left, figures to the right.
pub(crate) fn aligned(heads: &[String], rows: &[Vec<String>]) -> String {
    let mut table = comfy_table::Table::new();
    table
        .load_preset(comfy_table::presets::NOTHING)
        .set_header(heads)
        .add_rows(rows);
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if at >= 2 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

/// For the terminal.
pub(crate) fn text(results: &Results) -> String {
    let mut parts = Vec::new();
    for qps in results.limits() {
        let (heads, rows) = table(results, qps);
        let cells: Vec<Vec<String>> = rows.into_iter().map(|row| row.cells).collect();
        parts.push(format!("\nQPS {qps}\n{}", aligned(&heads, &cells)));
    }
    let promises: Vec<Vec<String>> = promises(results).into_iter().map(Vec::from).collect();
    if !promises.is_empty() {
        let heads = ["promised", "bound", "measured", ""].map(str::to_owned);
        parts.push(format!("\n{}", aligned(&heads, &promises)));
    }
    parts.join("\n")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn run(round: usize, peer: &str, step: Step, figures: &[(&str, f64)]) -> Measured {
        Measured {
            round,
            qps: LIFTED.to_owned(),
            peer: peer.to_owned(),
            step,
            figures: figures
                .iter()
                .map(|(name, value)| ((*name).to_owned(), *value))
                .collect(),
            requests: BTreeMap::new(),
        }
    }

    pub(crate) fn results() -> Results {
        let mut results = Results {
            date: "2026-05-04T03:02:01Z".parse().unwrap(),
            ..Results::new(Machine::default(), &Sizes::at(1.0))
        };
        results.runs = vec![
            run(
                1,
                "kcm",
                Step::Create,
                &[("seconds", 10.0), ("cpu_s", 8.0), ("conflicts", 3.0)],
            ),
            run(2, "kcm", Step::Create, &[("seconds", 14.0), ("cpu_s", 8.0)]),
            run(3, "kcm", Step::Create, &[("seconds", 11.0), ("cpu_s", 8.0)]),
            run(1, "n1", Step::Create, &[("seconds", 12.0), ("cpu_s", 1.0)]),
        ];
        results
    }

    #[test]
    fn the_table_has_medians_spreads_and_ratios() {
        let (heads, rows) = table(&results(), LIFTED);
        assert_eq!(heads, ["step", "figure", "kcm", "n1", "n1 ÷ kcm"]);
        let cells: Vec<Vec<String>> = rows.into_iter().map(|row| row.cells).collect();
        assert_eq!(
            cells,
            [
                [
                    "create",
                    "until converged, s",
                    "11.00 (10.00–14.00)",
                    "12.00",
                    "1.091"
                ],
                [
                    "create",
                    "processor, all processes, s",
                    "8.00",
                    "1.00",
                    "0.125"
                ],
                // Not written down is zero in that round, and unknown where it never was.
                ["create", "conflicts of status writes", "0 (0–3)", "–", "–"],
            ]
        );
    }

    #[test]
    fn a_median_of_an_even_number_lies_between() {
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 9.0]).median, 3.0);
        assert_eq!(Spread::of([4.0]).median, 4.0);
    }

    #[test]
    fn what_was_measured_in_several_goes_of_one_build_is_one_table() {
        let go = |date: &str, commit: &str, runs: Vec<Measured>| {
            let mut results = results();
            results.date = date.parse().unwrap();
            results.machine.commit = commit.to_owned();
            results.runs = runs;
            results
        };
        let of = |peer: &str, cpu: f64| run(1, peer, Step::Create, &[("cpu_s", cpu)]);
        let again = |run: Measured| Measured { round: 2, ..run };
        let other = go("2026-11-01T00:00:00Z", "other", vec![of("n5", 9.0)]);
        let first = go(
            "2026-11-02T00:00:00Z",
            "this",
            vec![of("kcm", 8.0), of("n1", 7.0), again(of("n1", 6.0))],
        );
        let last = go("2026-11-03T00:00:00Z", "this", vec![of("n1", 1.0)]);
        let all = last.with(vec![other, first]);
        assert_eq!(all.peers(), ["kcm", "n1"]);
        let cpu = |peer: &str| all.spread("lifted", peer, Step::Create, "cpu_s").unwrap();
        assert_eq!(cpu("kcm").median, 8.0);
        let (least, median, most) = (cpu("n1").least, cpu("n1").median, cpu("n1").most);
        assert_eq!((least, median, most), (1.0, 6.0, 7.0), "the median of all");
        let rounds: Vec<usize> = all.runs.iter().map(|run| run.round).collect();
        assert_eq!((rounds, all.rounds()), (vec![1, 1, 2, 3], 3));
    }

    #[test]
    fn promises_are_judged_where_both_sides_were_measured() {
        let lines = promises(&results());
        assert_eq!(
            lines,
            [
                [
                    "create, n1, QPS lifted: processor, all processes, s",
                    "≤ 0.15 × kcm",
                    "0.1250",
                    "kept"
                ],
                [
                    "create, n1, QPS lifted: until converged, s",
                    "≤ 1 × kcm",
                    "1.0909",
                    "missed"
                ],
            ]
        );
    }

    #[test]
    fn what_three_replicas_take_is_judged_with_what_two_more_watches_take() {
        let mut results = results();
        let cpu = |peer: &str, cpu: f64| run(1, peer, Step::Job, &[("cpu_s", cpu)]);
        results.runs = vec![cpu("n1", 2.0), cpu("n3", 4.0)];
        let of_three = |results: &Results| {
            let lines = promises(results);
            lines.into_iter().find(|line| line[0].contains("n3"))
        };
        assert_eq!(
            of_three(&results),
            None,
            "nobody knows what a watcher takes"
        );
        results.runs.push(cpu("watcher", 0.85));
        let line = of_three(&results).unwrap();
        assert_eq!(line[1..], ["≤ 1.15 × n1 + 2 × watcher", "1.0000", "kept"]);
        results.runs.push(cpu("n3", 4.4));
        assert_eq!(of_three(&results).unwrap()[3], "missed");
    }

    #[test]
    fn with_every_controller_on_both_are_compared_with_each_other() {
        let mut results = results();
        let rest = |peer: &str, mib: f64| run(1, peer, Step::Empty, &[("rss_rest_mib", mib)]);
        results.runs = vec![rest("kcm-all", 100.0), rest("n1-all", 20.0)];
        let (heads, rows) = table(&results, LIFTED);
        assert_eq!(heads[2..], ["kcm-all", "n1-all", "n1-all ÷ kcm-all"]);
        assert_eq!(rows[0].cells[4], "0.200");
        let line = &promises(&results)[0];
        assert_eq!(line[1..], ["≤ 0.25 × kcm-all", "0.2000", "kept"]);
        let name = |peers: &[&str]| {
            let peers: Vec<Peer> = peers.iter().map(|name| name.parse().unwrap()).collect();
            results.file_name(&peers)
        };
        assert_eq!(
            name(&["kcm-all", "n1-all"]),
            "bench/results/all-20260504T030201Z.json"
        );
        assert_eq!(
            name(&["n1", "n1-fenced"]),
            "bench/results/fence-20260504T030201Z.json"
        );
        assert_eq!(
            name(&["kcm", "n1"]),
            "bench/results/peers-20260504T030201Z.json"
        );
    }

    #[test]
    fn every_promise_names_a_figure_that_is_known() {
        for promise in &PROMISES {
            assert!(
                FIGURES.iter().any(|figure| figure.name == promise.figure),
                "{}",
                promise.figure
            );
        }
    }

    #[test]
    fn results_are_read_as_they_were_written() {
        let text = serde_json::to_string(&results()).unwrap();
        assert_eq!(serde_json::from_str::<Results>(&text).unwrap(), results());
    }
}
