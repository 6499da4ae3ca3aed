//! How long a Job waits after failures before it makes pods again.

use std::time::Duration;

use controllers_kit::{Backoff, Object, SignedDuration, Timestamp, conditions, pods};
use kubernetes_proto::core::Pod;
use serde::{Deserialize, Serialize};

/// The wait after failures in a row.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(10),
    max: Duration::from_secs(600),
};

/// Failures since the last success.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// How many.
    pub failures: i32,
    /// When the last of them ended, by the API's own times: an age with the same meaning for every owner.
    pub last: Option<Timestamp>,
}

impl Record {
    /// With pods that have ended since.
    pub(super) fn with<'a>(
        &self,
        succeeded: impl Iterator<Item = &'a Pod>,
        failed: impl Iterator<Item = &'a Pod>,
    ) -> Self {
        let success = succeeded.map(ended_at).max();
        let mut failed: Vec<Timestamp> = failed.map(ended_at).collect();
        failed.sort_unstable();
        match success {
            None if failed.is_empty() => self.clone(),
            None => Self {
                failures: self.failures.saturating_add(number(failed.len())),
                last: failed.last().copied(),
            },
            Some(success) => {
                failed.retain(|at| *at > success);
                Self {
                    failures: number(failed.len()),
                    last: failed.last().copied(),
                }
            }
        }
    }

    /// When pods may be made again; `None` if now.
    pub(super) fn until(&self, now: Timestamp) -> Option<Timestamp> {
        until(self.failures, self.last?, now)
    }
}

fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// When the back-off after `failures` failures ends; `None` if it has.
pub(super) fn until(failures: i32, last: Timestamp, now: Timestamp) -> Option<Timestamp> {
    let failures = u32::try_from(failures).ok().filter(|count| *count > 0)?;
    let end = last
        .checked_add(BACKOFF.after(failures))
        .unwrap_or(Timestamp::MAX);
    // Upstream waits out the very last instant too.
    (end > now).then_some(end)
}

/// When a pod ended: by its containers, else by the end of its readiness, else by its deletion.
pub(super) fn ended_at(pod: &Pod) -> Timestamp {
    let meta = Object::metadata(pod);
    containers_ended_at(pod)
        .or_else(|| {
            let ready = conditions::find(&pod.status.as_ref()?.conditions, "Ready")?;
            (ready.status == "False")
                .then(|| pods::instant(ready.last_transition_time))
                .flatten()
        })
        .or_else(|| {
            let grace = meta.deletion_grace_period_seconds.unwrap_or(0);
            let at = meta.deletion_timestamp?.timestamp();
            at.checked_sub(SignedDuration::from_secs(grace)).ok()
        })
        .or_else(|| pods::instant(meta.creation_timestamp))
        .unwrap_or(Timestamp::UNIX_EPOCH)
}

/// The last end of all regular containers and sidecars; `None` while one has not ended.
fn containers_ended_at(pod: &Pod) -> Option<Timestamp> {
    let status = pod.status.as_ref()?;
    let is_sidecar = |name: &str| {
        pod.spec.as_ref().is_some_and(|spec| {
            spec.init_containers
                .iter()
                .any(|container| container.name == name && container.restart_policy == "Always")
        })
    };
    let sidecars = status
        .init_container_statuses
        .iter()
        .filter(|container| is_sidecar(&container.name));
    let mut last = None;
    for container in status.container_statuses.iter().chain(sidecars) {
        let ended = container.state.as_ref()?.terminated.as_ref()?.finished_at;
        last = last.max(Some(pods::instant(ended)?));
    }
    last
}
