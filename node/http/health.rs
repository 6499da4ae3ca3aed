//! `/healthz`, `/livez`, `/readyz`: named checks, with what is wrong told.

use std::{
    fmt::{self, Write},
    sync::{Arc, PoisonError, RwLock},
};

use http::StatusCode;

use crate::metrics::Metrics;

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

/// Tells what is wrong, if anything is. Called at each request: it must be quick.
pub type Check = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

struct Named {
    name: String,
    check: Arc<dyn Fn() -> Result<(), String> + Send + Sync>,
    kinds: Vec<Kind>,
}

/// Lines of what is wrong without harm to the whole.
pub type Note = Box<dyn Fn() -> Vec<String> + Send + Sync>;

/// All checks.
pub struct Health {
    checks: RwLock<Vec<Named>>,
    notes: RwLock<Vec<(Kind, Note)>>,
    metrics: Arc<Metrics>,
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Health")
    }
}

/// An answer: status and text.
pub(super) type Answer = (StatusCode, String);

impl Health {
    /// Without any check.
    pub fn new(metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            checks: RwLock::default(),
            notes: RwLock::default(),
            metrics,
        })
    }

    /// Adds a check to some paths; one of the same name is replaced.
    pub fn register(&self, name: impl Into<String>, check: Check, kinds: &[Kind]) {
        let named = Named {
            name: name.into(),
            check: check.into(),
            kinds: kinds.to_vec(),
        };
        let mut checks = self.checks.write().unwrap_or_else(PoisonError::into_inner);
        match checks.iter_mut().find(|one| one.name == named.name) {
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
        run.filter_map(|(name, result)| Some((name, result.err()?)))
            .collect()
    }

    /// Runs the checks of a path. They are called outside the lock.
    fn run(&self, kind: Kind) -> Vec<(String, Result<(), String>)> {
        let checks: Vec<_> = {
            let checks = self.checks.read().unwrap_or_else(PoisonError::into_inner);
            let of_kind = checks.iter().filter(|one| one.kinds.contains(&kind));
            of_kind
                .map(|one| (one.name.clone(), one.check.clone()))
                .collect()
        };
        checks
            .into_iter()
            .map(|(name, check)| (name, check()))
            .collect()
    }

    /// The whole path.
    pub(super) fn all(&self, kind: Kind, verbose: bool, excluded: &[String]) -> Answer {
        let mut text = String::new();
        let mut healthy = true;
        let mut unknown: Vec<&String> = excluded.iter().collect();
        // Writing into a String can't fail.
        for (name, result) in self.run(kind) {
            unknown.retain(|given| **given != name);
            self.metrics
                .health_checked(&name, kind.name(), result.is_ok());
            let _ = match result {
                _ if excluded.contains(&name) => writeln!(text, "[+]{name} excluded: ok"),
                Ok(()) => writeln!(text, "[+]{name} ok"),
                Err(why) => {
                    healthy = false;
                    tracing::info!(check = name, why, "{} check failed", kind.name());
                    writeln!(text, "[-]{name} failed: {}", why.replace('\n', " "))
                }
            };
        }
        {
            let notes = self.notes.read().unwrap_or_else(PoisonError::into_inner);
            for line in notes
                .iter()
                .filter(|(of, _)| *of == kind)
                .flat_map(|(_, note)| note())
            {
                let _ = writeln!(text, "[~]{}", line.replace('\n', " "));
            }
        }
        if !unknown.is_empty() {
            let names: Vec<String> = unknown.iter().map(|name| format!("{name:?}")).collect();
            let _ = writeln!(
                text,
                "warn: some health checks cannot be excluded: no matches for {}",
                names.join(",")
            );
        }
        let kind = kind.name();
        match (healthy, verbose) {
            (true, false) => (StatusCode::OK, "ok".to_owned()),
            (true, true) => (StatusCode::OK, format!("{text}{kind} check passed\n")),
            (false, _) => (
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("{text}{kind} check failed\n"),
            ),
        }
    }

    /// One check; `None` where there is none of that name.
    pub(super) fn one(&self, kind: Kind, name: &str) -> Option<Answer> {
        let (_, result) = self
            .run(kind)
            .into_iter()
            .find(|(known, _)| known == name)?;
        Some(match result {
            Ok(()) => (StatusCode::OK, "ok".to_owned()),
            Err(why) => (
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("internal server error: {why}\n"),
            ),
        })
    }
}
