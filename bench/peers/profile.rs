//! Where processor time goes: `perf` samples the managers during a step, and its samples become a flame
//! graph.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use harness::process::{Process, Spec};
use harness::toolchain;
use inferno::collapse::Collapse;
use inferno::collapse::perf::Folder;
use inferno::flamegraph;

/// Samples per second of processor time. Not a round number, so that it does not keep step with timers.
const FREQUENCY: u32 = 997;
/// Bytes of the stack that each sample carries, from which it is unwound: futures lie deep.
const STACK: u32 = 32_768;
/// For perf to write down what it has.
const WRITES_WITHIN: Duration = Duration::from_secs(60);
/// How the names of the pictures begin, before step and peer, and end.
const PREFIX: &str = "profile-";
const SUFFIX: &str = ".svg";

/// `perf` at work.
#[derive(Debug)]
pub(crate) struct Recording {
    perf: Process,
    data: PathBuf,
}

/// Where `perf` is.
pub(crate) fn perf() -> Result<PathBuf> {
    toolchain::on_path("perf")
        .context("--profile needs perf on the PATH: install your distribution's linux-perf")
}

impl Recording {
    /// Starts sampling these processes; the samples go to `directory`.
    pub(crate) fn begin(pids: &[u32], directory: &Path) -> Result<Self> {
        let data = directory.join("perf.data");
        let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
        let perf = Process::spawn(&Spec {
            name: "perf record".to_owned(),
            program: perf()?,
            args: vec![
                "record".to_owned(),
                // Machines without counters, as most that are virtual, have this clock.
                "--event=cpu-clock".to_owned(),
                format!("--freq={FREQUENCY}"),
                format!("--call-graph=dwarf,{STACK}"),
                format!("--pid={}", pids.join(",")),
                format!("--output={}", data.display()),
            ],
            env: Vec::new(),
            log: directory.join("perf.log"),
        })?;
        Ok(Self { perf, data })
    }

    /// Ends it, and draws what was seen.
    pub(crate) async fn end(mut self, title: &str) -> Result<Vec<u8>> {
        self.perf.check()?;
        self.perf.terminate(WRITES_WITHIN).await?;
        ensure!(
            self.data.is_file(),
            "perf has kept nothing; the end of its log:\n{}",
            self.perf.log_tail()
        );
        let (data, title) = (self.data, title.to_owned());
        tokio::task::spawn_blocking(move || draw(&data, &title))
            .await
            .context("drawing the flame graph")?
    }
}

fn draw(data: &Path, title: &str) -> Result<Vec<u8>> {
    let mut script = Command::new(perf()?)
        .args(["script", "--no-inline", "--input"])
        .arg(data)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("starting perf script")?;
    let seen = script.stdout.take().context("perf script says nothing")?;
    let mut folded = Vec::new();
    Folder::default()
        .collapse(std::io::BufReader::new(seen), &mut folded)
        .context("reading what perf has seen")?;
    let status = script.wait().context("perf script")?;
    ensure!(status.success(), "perf script ended with {status}");
    let folded = String::from_utf8(folded).context("perf script writes no UTF-8")?;
    if folded.is_empty() {
        bail!("perf has seen the managers do nothing");
    }
    let mut options = flamegraph::Options::default();
    title.clone_into(&mut options.title);
    // perf says how much time each sample represents.
    "ns".clone_into(&mut options.count_name);
    // A picture, not a program.
    options.no_javascript = true;
    // The same colours each time it is drawn.
    options.deterministic = true;
    let mut svg = Vec::new();
    flamegraph::from_lines(&mut options, folded.lines(), &mut svg)
        .context("drawing the flame graph")?;
    Ok(svg)
}

/// What a picture is called.
pub(crate) fn file_name(step: &str, peer: &str) -> String {
    format!("{PREFIX}{step}-{peer}{SUFFIX}")
}

/// What a picture shows, by its name.
pub(crate) fn title(name: &str) -> &str {
    let name = name.strip_prefix(PREFIX).unwrap_or(name);
    name.strip_suffix(SUFFIX).unwrap_or(name)
}

/// Of these files, the pictures that were drawn here, in their order.
pub(crate) fn pictures(mut names: Vec<String>) -> Vec<String> {
    names.retain(|name| name.starts_with(PREFIX) && name.ends_with(SUFFIX));
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_distinguished_from_other_files() {
        let names = ["seconds.svg", "profile-job-n1.svg", "profile-create-n1.svg"];
        assert_eq!(
            pictures(names.map(str::to_owned).into()),
            [file_name("create", "n1"), file_name("job", "n1")]
        );
        assert_eq!(title(&file_name("job", "n1")), "job-n1");
    }
}
