//! Reports what is being built or awaited: a bar on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// A known number of steps, one after the other.
#[derive(Debug)]
pub struct Steps {
    title: String,
    bar: Option<ProgressBar>,
    total: u64,
    begun: u64,
    since: Instant,
}

impl Steps {
    /// Nothing is shown before the first step begins, so that a step list which turns out to be
    /// empty stays silent.
    pub fn new(title: impl Into<String>, total: u64) -> Self {
        Self {
            title: title.into(),
            bar: None,
            total,
            begun: 0,
            since: Instant::now(),
        }
    }

    /// The next step, in words that continue from the title: "building", "etcd".
    pub fn begin(&mut self, what: &str) {
        if !std::io::stderr().is_terminal() {
            self.begun += 1;
            eprintln!("{} [{}/{}] {what}", self.title, self.begun, self.total);
            return;
        }
        let (title, total) = (&self.title, self.total);
        let bar = self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::new(total);
            bar.set_prefix(title.clone());
            // The template is a constant; a mistake in it would fall back to the plain style.
            if let Ok(style) = ProgressStyle::with_template(
                "{spinner} {prefix} [{bar:24}] {pos}/{len} {elapsed} {wide_msg}",
            ) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        bar.set_position(self.begun);
        self.begun += 1;
        bar.set_message(what.to_owned());
    }

    /// What the present step is busy with; shown on a terminal only.
    pub fn detail(&self, what: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(what.to_owned());
        }
    }

    /// All done: the bar goes, one line with the time stays if anything was shown.
    pub fn finish(self, what: &str) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        if self.begun > 0 {
            eprintln!(
                "{}: {what} ({:.1} s)",
                self.title,
                self.since.elapsed().as_secs_f64()
            );
        }
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
