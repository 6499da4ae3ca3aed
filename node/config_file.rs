//! The file of `--config` while the process runs: what may change takes effect, all else waits for a restart
//! and is named.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use controllers_kit::Descriptor;
use node_options::{
    InForce, Invalid, Options, Surroundings,
    args::{Field, Spec, Values},
    config::{self, File, Wrong},
};
use node_telemetry::metrics::Metrics;
use tokio::sync::mpsc;

use crate::pod_events::Notice;

/// How often the file is read again, as certificates are.
const READ_EVERY: Duration = Duration::from_secs(10);

/// Of what an event at the own Pod says, in characters; the log has all of it.
const NOTICE_MAX: usize = 800;

/// What the options of this process are made from, at its start and when its file has changed.
#[derive(Debug)]
pub struct Maker {
    flags: Values,
    descriptors: Vec<Descriptor>,
    surroundings: Surroundings,
}

/// What a file held.
type Content = Result<Vec<u8>, String>;

impl Maker {
    /// From a command line.
    pub fn new(flags: Values, descriptors: Vec<Descriptor>, surroundings: Surroundings) -> Self {
        Self {
            flags,
            descriptors,
            surroundings,
        }
    }

    /// The file of `--config`, where one is given.
    fn path(&self) -> Option<PathBuf> {
        self.flags.some("config").map(PathBuf::from)
    }

    /// The options, and what the file held of which they were made.
    ///
    /// # Errors
    /// With all that is wrong with the command line or the file.
    pub fn start(&self) -> Result<(Options, Option<Vec<u8>>), Wrong> {
        let Some(path) = self.path() else {
            let options = self.options(self.flags.clone());
            return Ok((options.map_err(|invalid| Wrong(invalid.0))?, None));
        };
        let content = config::content(&path)?;
        let options = self.made_of(&path.display().to_string(), content.clone())?;
        Ok((options, Some(content)))
    }

    fn options(&self, values: Values) -> Result<Options, Invalid> {
        Options::new(values, &self.descriptors, &self.surroundings)
    }

    /// The options with a file of this name and content.
    fn made_of(&self, name: &str, content: Vec<u8>) -> Result<Options, Wrong> {
        let file = File::parse(name, content, self.flags.specs())?;
        let mut values = self.flags.clone();
        values.beneath(file.settings().iter().cloned());
        self.options(values.clone())
            .map_err(|invalid| file.place(&values, &invalid))
    }
}

/// What came of a change of the file.
#[derive(Debug, Default, PartialEq, Eq)]
struct Change {
    /// Fields that take effect.
    applied: Vec<&'static str>,
    /// Fields that need a restart.
    pending: Vec<&'static str>,
    /// Flags that go before a field of the file.
    overriding: Vec<&'static str>,
}

/// The options that are in force from now on, and what the difference is. `wanted` are those that a process
/// would start with.
///
/// # Errors
/// Where what takes effect does not fit with what needs a restart.
fn change(
    in_force: &Options,
    wanted: &Options,
    make: impl Fn(Values) -> Result<Options, Invalid>,
) -> Result<(Options, Change), Invalid> {
    let (from, to) = (in_force.values(), wanted.values());
    let (live, rest): (Vec<&Spec>, Vec<&Spec>) = to.differing(from).partition(|spec| spec.live);
    let change = Change {
        applied: live.iter().map(|spec| field(spec)).collect(),
        pending: rest.iter().map(|spec| field(spec)).collect(),
        overriding: to.overriding(),
    };
    let values = from.with(live.iter().map(|spec| spec.name), to);
    Ok((make(values)?, change))
}

/// What a flag is called in the file.
fn field(spec: &Spec) -> &'static str {
    match spec.field {
        Field::In(field) | Field::Halves(field, _) => field,
        Field::FlagOnly(_) => spec.name,
    }
}

/// How the file differs from what is in force, for `/readyz?verbose`.
#[derive(Debug, Default)]
pub struct FileState(Mutex<Vec<String>>);

impl FileState {
    /// A line for each thing that is not as the file has it.
    pub fn lines(&self) -> Vec<String> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn set(&self, line: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = line.into_iter().collect();
    }
}

/// Has new options take effect; the old ones first. Says what does not, a sentence each.
pub type Apply = dyn Fn(&Options, &Options) -> Vec<String>;

/// What [`follow`] needs.
pub struct Parts {
    /// What the options are made from.
    pub maker: Arc<Maker>,
    /// What the file held at the start.
    pub content: Vec<u8>,
    /// The options in force.
    pub in_force: Arc<InForce>,
    /// How the file differs from them.
    pub state: Arc<FileState>,
    /// For the metrics of reloads.
    pub metrics: Arc<Metrics>,
    /// Where events at the own Pod go, if there is one.
    pub notices: Option<mpsc::Sender<Notice>>,
    /// Has new options take effect.
    pub apply: Box<Apply>,
}

/// Reads the file again and again. Never returns.
pub async fn follow(parts: Parts) {
    let Some(path) = parts.maker.path() else {
        return;
    };
    let name = path.display().to_string();
    let mut held: Content = Ok(parts.content.clone());
    loop {
        tokio::time::sleep(READ_EVERY).await;
        let from = path.clone();
        // A file may lie on a volume that hangs.
        let read = tokio::task::spawn_blocking(move || {
            reload::read(&from).map_err(|why| format!("can't be read: {why}"))
        });
        let Ok(content) = read.await else {
            continue;
        };
        if content == held {
            continue;
        }
        held.clone_from(&content);
        let result = match content {
            Ok(content) => {
                let (maker, name) = (Arc::clone(&parts.maker), name.clone());
                let made = tokio::task::spawn_blocking(move || maker.made_of(&name, content));
                match made.await {
                    Ok(made) => made.map_err(|wrong| wrong.to_string()),
                    Err(panic) => Err(panic.to_string()),
                }
            }
            Err(why) => Err(format!("{name} {why}")),
        };
        let result = result.and_then(|wanted| {
            let in_force = parts.in_force.load_full();
            let make = |values| parts.maker.options(values);
            change(&in_force, &wanted, make).map_err(|invalid| invalid.to_string())
        });
        match result {
            Ok((options, change)) => taken(&parts, &name, options, &change),
            Err(why) => refused(&parts, &name, &why),
        }
    }
}

/// Says something at the own Pod, if there is one. With the queue full the log has it alone.
fn note(
    parts: &Parts,
    notice: fn(&'static str, String) -> Notice,
    reason: &'static str,
    line: &str,
) {
    let message = match line.char_indices().nth(NOTICE_MAX) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line.to_owned(),
    };
    let _full = parts
        .notices
        .as_ref()
        .map(|pod| pod.try_send(notice(reason, message)));
}

fn taken(parts: &Parts, name: &str, options: Options, change: &Change) {
    let before = parts.in_force.load_full();
    let now = Arc::new(options);
    parts.in_force.store(Arc::clone(&now));
    for why in (parts.apply)(&before, &now) {
        tracing::warn!("the configuration file {name}: {why}");
    }
    let Change {
        applied,
        pending,
        overriding,
    } = change;
    if !applied.is_empty() {
        let line = format!(
            "the configuration file {name} has changed, in force now: {}",
            applied.join(", ")
        );
        tracing::info!("{line}");
        note(parts, Notice::normal, "ConfigurationChanged", &line);
    }
    let waits = (!pending.is_empty()).then(|| {
        format!(
            "the configuration file {name} has changed, these fields need a restart: {}",
            pending.join(", ")
        )
    });
    match &waits {
        Some(line) => {
            tracing::warn!("{line}");
            note(parts, Notice::warning, "ConfigurationNeedsRestart", line);
        }
        None if applied.is_empty() => {
            let because = match overriding.is_empty() {
                true => String::new(),
                false => format!("; these flags go before it: --{}", overriding.join(", --")),
            };
            tracing::info!(
                "the configuration file {name} has changed, and says nothing other than what is in force{because}"
            );
        }
        None => {}
    }
    parts.state.set(waits);
    parts.metrics.config_read(true, pending.len());
}

fn refused(parts: &Parts, name: &str, why: &str) {
    let line = format!(
        "the configuration file {name} is refused, what was read before stays in force: {why}"
    );
    tracing::error!("{line}");
    note(parts, Notice::warning, "ConfigurationRefused", &line);
    parts.state.set(Some(line));
    parts.metrics.config_read(false, 0);
}

#[cfg(test)]
mod tests;
