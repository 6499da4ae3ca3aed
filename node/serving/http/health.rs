//! `/healthz`, `/livez`, `/readyz`: named checks, with what is wrong reported.

use std::{
    collections::HashSet,
    fmt::{self, Write},
    sync::{Arc, Mutex, PoisonError, RwLock},
};

use http::StatusCode;
use node_telemetry::metrics::Metrics;

/// Which of the three paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// What upstream has.
    Healthz,
    /// Fails where only a restart helps.
    Livez,
    /// Fails while this replica does no work.
    Readyz,
}

impl Kind {
    /// The path without its slash.
    pub fn name(self) -> &'static str {
        match self {
            Self::Healthz => "healthz",
            Self::Livez => "livez",
            Self::Readyz => "readyz",
        }
    }
}

/// Reports what is wrong, if anything is. Called at each request: it must be quick.
pub type Check = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

struct Named {
    name: String,
    /// Reported in `?verbose` where the check has passed.
    says: Option<Says>,
    check: Arc<dyn Fn() -> Result<(), String> + Send + Sync>,
    kinds: Vec<Kind>,
}

/// A state that is neither well nor ill.
pub type Says = Arc<dyn Fn() -> String + Send + Sync>;
/// Lines of what is wrong without harm to the whole.
pub type Note = Box<dyn Fn() -> Vec<String> + Send + Sync>;

/// All checks.
pub struct Health {
    checks: RwLock<Vec<Named>>,
    notes: RwLock<Vec<(Kind, Note)>>,
    /// Checks that failed at the last check. Bound: as many as there are checks and paths.
    failed: Mutex<HashSet<(&'static str, String)>>,
    metrics: Arc<Metrics>,
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Health")
    }
}

/// An answer: status and text.
pub(super) type Answer = (StatusCode, String);

/// A line of a verbose answer.
enum Line {
    /// What all may see, and what is said besides.
    Check(String, String),
    /// A check's name and why it failed.
    Failed(String, String),
    /// What is wrong without harm to the whole.
    Note(String),
}

/// What the checks of a path have found.
pub(super) struct Report {
    kind: Kind,
    healthy: bool,
    lines: Vec<Line>,
}

impl Report {
    pub(super) fn code(&self) -> StatusCode {
        match self.healthy {
            true => StatusCode::OK,
            false => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Whether `ok` is all there is to say: a failure is always reported at length.
    pub(super) fn is_brief(&self, verbose: bool) -> bool {
        self.healthy && !verbose
    }

    pub(super) fn brief(&self) -> String {
        "ok".to_owned()
    }

    /// For who may see them.
    pub(super) fn with_reasons(&self) -> String {
        self.written(true)
    }

    /// For everybody: which checks fail, and not why. Upstream's words.
    pub(super) fn without_reasons(&self) -> String {
        self.written(false)
    }

    fn written(&self, reasons: bool) -> String {
        let mut text = String::new();
        for line in &self.lines {
            // Writing into a String can't fail.
            let _ = match (line, reasons) {
                (Line::Check(check, said), true) => writeln!(text, "{check}{said}"),
                (Line::Check(check, _), false) => writeln!(text, "{check}"),
                (Line::Failed(name, why), true) => writeln!(text, "[-]{name} failed: {why}"),
                (Line::Failed(name, _), false) => {
                    writeln!(text, "[-]{name} failed: reason withheld")
                }
                (Line::Note(note), true) => writeln!(text, "[~]{note}"),
                (Line::Note(_), false) => Ok(()),
            };
        }
        let outcome = match self.healthy {
            true => "passed",
            false => "failed",
        };
        format!("{text}{} check {outcome}\n", self.kind.name())
    }
}

impl Health {
    /// Without any check.
    pub fn new(metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            checks: RwLock::default(),
            notes: RwLock::default(),
            failed: Mutex::default(),
            metrics,
        })
    }

    /// Adds a check to some paths; one of the same name is replaced.
    pub fn register(&self, name: impl Into<String>, check: Check, kinds: &[Kind]) {
        self.add(Named {
            name: name.into(),
            says: None,
            check: check.into(),
            kinds: kinds.to_vec(),
        });
    }

    /// Adds a line to what `?verbose` reports on some paths; it never fails.
    pub fn describe(
        &self,
        name: impl Into<String>,
        says: Box<dyn Fn() -> String + Send + Sync>,
        kinds: &[Kind],
    ) {
        self.add(Named {
            name: name.into(),
            says: Some(says.into()),
            check: Arc::new(|| Ok(())),
            kinds: kinds.to_vec(),
        });
    }

    fn add(&self, named: Named) {
        let mut checks = self.checks.write().unwrap_or_else(PoisonError::into_inner);
        let same = |one: &&mut Named| one.name == named.name && one.kinds == named.kinds;
        match checks.iter_mut().find(same) {
            Some(old) => *old = named,
            None => checks.push(named),
        }
    }

    /// Adds lines to the verbose answer of a path that change nothing of its outcome.
    pub fn note(&self, kind: Kind, note: Note) {
        let mut notes = self.notes.write().unwrap_or_else(PoisonError::into_inner);
        notes.push((kind, note));
    }

    /// Takes a check away.
    pub fn remove(&self, name: &str) {
        let mut checks = self.checks.write().unwrap_or_else(PoisonError::into_inner);
        checks.retain(|one| one.name != name);
    }

    /// What is wrong now, by name of the check.
    pub fn failing(&self, kind: Kind) -> Vec<(String, String)> {
        let run = self.run(kind).into_iter();
        run.filter_map(|(name, _, result)| Some((name, result.err()?)))
            .collect()
    }

    /// Runs the checks of a path. They are called outside the lock.
    fn run(&self, kind: Kind) -> Vec<(String, String, Result<(), String>)> {
        let checks: Vec<_> = {
            let checks = self.checks.read().unwrap_or_else(PoisonError::into_inner);
            let of_kind = checks.iter().filter(|one| one.kinds.contains(&kind));
            of_kind
                .map(|one| (one.name.clone(), one.says.clone(), one.check.clone()))
                .collect()
        };
        checks
            .into_iter()
            .map(|(name, says, check)| {
                let said = says.map_or_else(String::new, |says| format!(": {}", says()));
                (name, said, check())
            })
            .collect()
    }

    /// The whole path.
    pub(super) fn all(&self, kind: Kind, excluded: &[String]) -> Report {
        let results = self.run(kind);
        let mut lines = Vec::with_capacity(results.len());
        let mut healthy = true;
        let mut unknown: Vec<&String> = excluded.iter().collect();
        for (name, said, result) in results {
            unknown.retain(|given| **given != name);
            if excluded.contains(&name) {
                lines.push(Line::Check(
                    format!("[+]{name} excluded: ok"),
                    String::new(),
                ));
                continue;
            }
            self.metrics
                .health_checked(&name, kind.name(), result.is_ok());
            self.log_change(kind, &name, result.as_ref().err());
            lines.push(match result {
                Ok(()) => Line::Check(format!("[+]{name} ok"), said),
                Err(why) => {
                    healthy = false;
                    Line::Failed(name, why.replace('\n', " "))
                }
            });
        }
        {
            let notes = self.notes.read().unwrap_or_else(PoisonError::into_inner);
            for note in notes
                .iter()
                .filter(|(of, _)| *of == kind)
                .flat_map(|(_, note)| note())
            {
                lines.push(Line::Note(note.replace('\n', " ")));
            }
        }
        if !unknown.is_empty() {
            let names: Vec<String> = unknown.iter().map(|name| format!("{name:?}")).collect();
            let warning = format!(
                "warn: some health checks cannot be excluded: no matches for {}",
                names.join(",")
            );
            lines.push(Line::Check(warning, String::new()));
        }
        Report {
            kind,
            healthy,
            lines,
        }
    }

    /// A probe comes every few seconds, and strangers may come at will: only a change is logged.
    fn log_change(&self, kind: Kind, name: &str, why: Option<&String>) {
        let mut failing = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (kind.name(), name.to_owned());
        match why {
            Some(why) if failing.insert(key.clone()) => {
                tracing::info!(check = name, why, "{} check failed", kind.name());
            }
            None if failing.remove(&key) => {
                tracing::info!(check = name, "{} check passed again", kind.name());
            }
            _ => {}
        }
    }

    /// One check; `None` where there is none of that name.
    pub(super) fn one(&self, kind: Kind, name: &str) -> Option<Answer> {
        let (_, _, result) = self
            .run(kind)
            .into_iter()
            .find(|(known, ..)| known == name)?;
        Some(match result {
            Ok(()) => (StatusCode::OK, "ok".to_owned()),
            Err(why) => (
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("internal server error: {why}\n"),
            ),
        })
    }
}
