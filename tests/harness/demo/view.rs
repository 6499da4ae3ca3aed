//! What is shown while the demo runs: in place on a terminal, as plain lines elsewhere.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Between two plain status lines.
const PLAIN_EVERY: Duration = Duration::from_secs(5);

/// One replica, as shown.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) state: State,
    /// Known while it answers.
    pub(crate) figures: Option<Figures>,
}

/// What a replica says of itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Figures {
    pub(crate) ranges: usize,
    pub(crate) keys: u64,
    pub(crate) reconciles_per_second: f64,
    pub(crate) queued: u64,
}

/// What the demo has done with a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Starting,
    Ready,
    Stopping,
    Killed,
    Stopped,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Stopping => "stopping",
            Self::Killed => "killed",
            Self::Stopped => "stopped",
        }
    }
}

/// Pods of the workload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Pods {
    pub(crate) wanted: usize,
    pub(crate) created: usize,
    pub(crate) ready: usize,
}

/// One picture of everything, a string per line.
pub(crate) fn frame(phase: &str, since: Duration, rows: &[Row], pods: Pods) -> Vec<String> {
    let name_width = rows
        .iter()
        .map(|row| row.name.len())
        .max()
        .unwrap_or(0)
        .max(10);
    let mut lines = vec![
        format!("{:>5.1} s  {phase}", since.as_secs_f64()),
        format!(
            "{:name_width$}  {:8}  {:>6}  {:>6}  {:>12}  {:>6}",
            "replica", "state", "ranges", "keys", "reconciles/s", "queued"
        ),
    ];
    for Row {
        name,
        state,
        figures,
    } in rows
    {
        let state = state.name();
        lines.push(match figures {
            Some(Figures { ranges, keys, reconciles_per_second, queued }) => format!(
                "{name:name_width$}  {state:8}  {ranges:>6}  {keys:>6}  {reconciles_per_second:>12.1}  {queued:>6}"
            ),
            None => format!("{name:name_width$}  {state:8}  {:>6}  {:>6}  {:>12}  {:>6}", "-", "-", "-", "-"),
        });
    }
    lines.push(format!(
        "pods  wanted {}  created {}  ready {}",
        pods.wanted, pods.created, pods.ready
    ));
    lines
}

/// The same in one line.
pub(crate) fn status_line(rows: &[Row], pods: Pods) -> String {
    let replicas: Vec<String> = rows
        .iter()
        .map(
            |Row {
                 name,
                 state,
                 figures,
             }| match figures {
                Some(f) => format!(
                    "{name} {} ranges {} keys {:.1}/s {} queued",
                    f.ranges, f.keys, f.reconciles_per_second, f.queued
                ),
                None => format!("{name} {}", state.name()),
            },
        )
        .collect();
    format!(
        "pods {} wanted {} created {} ready; {}",
        pods.wanted,
        pods.created,
        pods.ready,
        replicas.join("; ")
    )
}

/// Where it is shown.
pub(crate) struct View {
    started: Instant,
    live: Option<Live>,
    last_plain: Option<Instant>,
}

struct Live {
    bars: MultiProgress,
    lines: Vec<ProgressBar>,
}

impl View {
    pub(crate) fn new() -> Self {
        let live = std::io::stdout().is_terminal().then(|| Live {
            bars: MultiProgress::with_draw_target(ProgressDrawTarget::stdout()),
            lines: Vec::new(),
        });
        Self {
            started: Instant::now(),
            live,
            last_plain: None,
        }
    }

    /// A line that stays.
    pub(crate) fn say(&mut self, line: &str) {
        let line = format!("{:>5.1} s  {line}", self.started.elapsed().as_secs_f64());
        let shown = match &self.live {
            Some(live) => live.bars.println(&line),
            None => writeln!(std::io::stdout(), "{line}"),
        };
        // Who reads may have gone; the work and its exit code continue.
        drop(shown);
    }

    /// The present picture.
    pub(crate) fn show(&mut self, phase: &str, rows: &[Row], pods: Pods) {
        let since = self.started.elapsed();
        if let Some(live) = &mut self.live {
            live.show(&frame(phase, since, rows, pods));
        } else if self
            .last_plain
            .is_none_or(|last| last.elapsed() >= PLAIN_EVERY)
        {
            self.last_plain = Some(Instant::now());
            self.say(&status_line(rows, pods));
        }
    }

    /// The picture goes, what was said stays.
    pub(crate) fn end(&mut self) {
        if let Some(live) = self.live.take() {
            for line in live.lines {
                line.finish_and_clear();
            }
        }
    }
}

impl Live {
    fn show(&mut self, frame: &[String]) {
        while self.lines.len() < frame.len() {
            let bar = self.bars.add(ProgressBar::new_spinner());
            // Cut at the terminal's width: a line that wraps would break the picture.
            if let Ok(style) = ProgressStyle::with_template("{wide_msg}") {
                bar.set_style(style);
            }
            self.lines.push(bar);
        }
        for (bar, line) in self.lines.iter().zip(frame) {
            bar.set_message(line.clone());
            bar.tick();
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.end();
    }
}
