//! A back-off for each object of a key that writes several: one that keeps failing delays none of the others.

use std::collections::BTreeMap;

use controllers_kit::{Backoff, Failure, Severity, SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// Objects whose last write failed, by uid. Bound: objects of the key, since [`Retries::retain`] drops
/// others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Retries(BTreeMap<String, Retry>);

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Retry {
    /// Failures in a row.
    failures: u32,
    /// When it may be retried; set by the first plan after the failure, since only plans know the time.
    at: Option<Timestamp>,
}

/// Whether a failure is a refusal of the write itself. Conflicts and consequences of another failure are
/// planned again at once.
fn counts(failure: &Failure) -> bool {
    failure.class().severity >= Severity::Error
}

impl Retries {
    /// What became of a write to an object.
    pub(crate) fn learn(&mut self, uid: &str, failure: Option<&Failure>) {
        match failure {
            None => {
                self.0.remove(uid);
            }
            Some(failure) if counts(failure) => {
                let retry = self.0.entry(uid.to_owned()).or_default();
                retry.failures = retry.failures.saturating_add(1);
                retry.at = None;
            }
            Some(_) => {}
        }
    }

    /// Until when an object waits for its retry; `None` where it may be written now.
    pub(crate) fn waits(&mut self, uid: &str, now: Timestamp) -> Option<Timestamp> {
        let retry = self.0.get_mut(uid)?;
        let failures = retry.failures;
        let at = *retry.at.get_or_insert_with(|| {
            let delay = Backoff::DEFAULT.after(failures);
            let delay = SignedDuration::try_from(delay).unwrap_or(SignedDuration::MAX);
            now.checked_add(delay).unwrap_or(Timestamp::MAX)
        });
        (at > now).then_some(at)
    }

    /// Keeps those of objects that still matter.
    pub(crate) fn retain(&mut self, mut matters: impl FnMut(&str) -> bool) {
        self.0.retain(|uid, _| matters(uid));
    }

    /// Another replica's clock.
    pub(crate) fn shift(&mut self, by: SignedDuration) {
        for at in self.0.values_mut().filter_map(|retry| retry.at.as_mut()) {
            *at = at.checked_add(by).unwrap_or(*at);
        }
    }
}
