//! Why a write failed, and what each failure means for who planned it: one table.

/// Why a write did not happen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The object has changed since it was seen, or another has its name. Not an error: the cache will
    /// catch up.
    #[error("{0}")]
    Conflict(String),
    /// An object of that name exists already.
    #[error("{0}")]
    AlreadyExists(String),
    /// There is no such object (any more).
    #[error("{0}")]
    NotFound(String),
    /// The namespace is being deleted: no create can succeed there.
    #[error("{0}")]
    NamespaceTerminating(String),
    /// Forbidden: quota, policy, RBAC.
    #[error("{0}")]
    Forbidden(String),
    /// Invalid: a retry can't help before a change.
    #[error("{0}")]
    Invalid(String),
    /// The server does not support the method for this resource (405), whatever discovery says.
    #[error("{0}")]
    NotSupported(String),
    /// The answer was lost: the write may have been executed or not.
    #[error("{0}")]
    Timeout(String),
    /// Any other error.
    #[error("{0}")]
    Other(String),
    /// An earlier batch or stage failed: it was not tried.
    #[error("not tried: an earlier write of the same plan failed")]
    Skipped,
    /// Abandoned in flight, since the range may have another owner by now: it may still be executed.
    #[error("given up on its way: the range may have another owner")]
    Fenced,
}

/// How severe a failure is for its plan; of several in one plan the greatest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// It only follows from another failure, or from a lost range.
    NotTried,
    /// Another writer was first. Common: the next plan sees what changed, after a back-off that does not
    /// count as an error.
    Race,
    /// The server refused the write or did not answer: the reconcile has failed, and the key backs off.
    Error,
    /// Nothing can be created in the namespace any more. The key waits for the next change, as a retry can't
    /// help.
    Terminating,
}

/// Whether a write that failed may have been executed all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Landed {
    /// It was not executed.
    No,
    /// It may have been, but is not in flight any more: an answer came that is no refusal.
    Unknown,
    /// It may have been, or may still be in flight: there was no answer.
    InFlight,
}

/// How a failure is handled, labelled and logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// The `result` label of `manifold_writes_total`, and the word for it in messages.
    pub label: &'static str,
    /// The corresponding HTTP status, for syncs that upstream labels by status.
    pub code: u16,
    /// How much it says about its plan.
    pub severity: Severity,
    /// Whether the write may have been executed.
    pub landed: Landed,
    /// Whether the events and metrics that a controller has attached to the failure are recorded. Not for
    /// races, which are common, nor where nothing was tried or nothing can be done.
    pub is_reported: bool,
}

impl Failure {
    /// Its class, for the node and for [`crate::Controller::learn`].
    pub fn class(&self) -> Class {
        use Landed::{InFlight, No, Unknown};
        use Severity::{Error, NotTried, Race, Terminating};
        let row = |label, code, severity, landed, is_reported| Class {
            label,
            code,
            severity,
            landed,
            is_reported,
        };
        match self {
            //                               label           code  severity  landed    is_reported
            Self::Conflict(_) => row("conflict", 409, Race, No, false),
            Self::AlreadyExists(_) => row("already_exists", 409, Race, No, false),
            Self::NotFound(_) => row("not_found", 404, Race, No, true),
            Self::NamespaceTerminating(_) => {
                row("namespace_terminating", 403, Terminating, No, false)
            }
            Self::Forbidden(_) => row("forbidden", 403, Error, No, true),
            Self::Invalid(_) => row("invalid", 422, Error, No, true),
            Self::NotSupported(_) => row("not_supported", 405, Error, No, true),
            Self::Timeout(_) => row("timeout", 504, Error, InFlight, true),
            Self::Other(_) => row("error", 500, Error, Unknown, true),
            Self::Skipped => row("skipped", 500, NotTried, No, false),
            Self::Fenced => row("fenced", 500, NotTried, InFlight, false),
        }
    }

    /// Whether it says nothing about the write itself: the cache will show the truth, or the range has
    /// another owner. A controller keeps what it knew.
    pub fn is_inconclusive(&self) -> bool {
        let class = self.class();
        class.severity < Severity::Error && !class.is_reported
    }

    /// The same failure with a changed text.
    #[must_use]
    pub fn map_text(self, change: impl FnOnce(String) -> String) -> Self {
        match self {
            Self::Conflict(text) => Self::Conflict(change(text)),
            Self::AlreadyExists(text) => Self::AlreadyExists(change(text)),
            Self::NotFound(text) => Self::NotFound(change(text)),
            Self::NamespaceTerminating(text) => Self::NamespaceTerminating(change(text)),
            Self::Forbidden(text) => Self::Forbidden(change(text)),
            Self::Invalid(text) => Self::Invalid(change(text)),
            Self::NotSupported(text) => Self::NotSupported(change(text)),
            Self::Timeout(text) => Self::Timeout(change(text)),
            Self::Other(text) => Self::Other(change(text)),
            Self::Skipped => Self::Skipped,
            Self::Fenced => Self::Fenced,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Failure, Landed, Severity};

    #[test]
    fn a_failure_s_class_decides_back_off_status_doubt_and_reports() {
        let why = || "why".to_owned();
        let table = [
            (Failure::Conflict(why()), true),
            (Failure::AlreadyExists(why()), true),
            (Failure::NotFound(why()), false),
            (Failure::NamespaceTerminating(why()), false),
            (Failure::Forbidden(why()), false),
            (Failure::Invalid(why()), false),
            (Failure::NotSupported(why()), false),
            (Failure::Timeout(why()), false),
            (Failure::Other(why()), false),
            (Failure::Skipped, true),
            (Failure::Fenced, true),
        ];
        let mut labels = std::collections::BTreeSet::new();
        for (failure, is_inconclusive) in table {
            assert_eq!(failure.is_inconclusive(), is_inconclusive, "{failure:?}");
            let class = failure.class();
            assert!(labels.insert(class.label), "{} twice", class.label);
            let unanswered = matches!(failure, Failure::Timeout(_) | Failure::Fenced);
            assert_eq!(class.landed == Landed::InFlight, unanswered, "{failure:?}");
            let refused = (400..500).contains(&class.code);
            assert_eq!(
                refused,
                class.landed == Landed::No && failure != Failure::Skipped
            );
        }
        assert!(Severity::Race < Severity::Error && Severity::Error < Severity::Terminating);
    }
}
