//! What came of it, and whether that is good enough.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::view::Pods;

/// A killed replica's keys are served again within this: a lease of 5 s that may just have been
/// renewed, and the taking over.
pub(crate) const TAKEOVER_LIMIT: Duration = Duration::from_secs(7);

/// Something that was done to the fleet or the workload.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub(crate) name: String,
    /// Ranges whose owner is another afterwards.
    pub(crate) moved: usize,
    /// Until everything was settled again.
    pub(crate) settled: Duration,
    /// Longest time that a key was not served.
    pub(crate) longest: Duration,
    /// The longest that is allowed, where something is promised.
    pub(crate) limit: Option<Duration>,
}

/// Everything the demo found out.
#[derive(Debug, Clone, Default)]
pub(crate) struct Summary {
    pub(crate) pods: Pods,
    /// Pods that were ever made.
    pub(crate) ever_created: usize,
    /// Those that nobody wanted.
    pub(crate) beyond_wanted: usize,
    pub(crate) events: Vec<Event>,
    /// Writes, Leases apart, by replica.
    pub(crate) writes: BTreeMap<String, u64>,
    /// Where they were counted.
    pub(crate) writes_from: &'static str,
    /// Pod creations that the API server granted, where the audit log can be read.
    pub(crate) granted: Option<u64>,
    /// Where the audit log shows two owners at once, or something made twice.
    pub(crate) breaches: Vec<String>,
    /// Probes, and those that were ever served.
    pub(crate) probes: (usize, usize),
}

impl Summary {
    pub(crate) fn lines(&self) -> Vec<String> {
        let Pods { wanted, ready, .. } = self.pods;
        let mut lines = vec![
            String::new(),
            format!(
                "pods     {wanted} wanted, {ready} ready; {} ever created, {} beyond what was wanted",
                self.ever_created, self.beyond_wanted
            ),
            String::new(),
            format!(
                "{:34}  {:>12}  {:>13}  {:>25}",
                "event", "ranges moved", "settled after", "longest a key waited"
            ),
        ];
        for event in &self.events {
            lines.push(format!(
                "{:34}  {:>12}  {:>11.1} s  {:>23.2} s",
                event.name,
                event.moved,
                event.settled.as_secs_f64(),
                event.longest.as_secs_f64()
            ));
        }
        lines.push(String::new());
        lines.push(format!(
            "writes by replica, Leases apart ({})",
            self.writes_from
        ));
        for (replica, count) in &self.writes {
            lines.push(format!("{replica:34}  {count:>12}"));
        }
        lines
    }

    /// What is not as it must be.
    pub(crate) fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        if self.pods.ready != self.pods.wanted {
            failures.push(format!(
                "{} pods are ready, {} are wanted",
                self.pods.ready, self.pods.wanted
            ));
        }
        if self.pods.created != self.pods.wanted {
            failures.push(format!(
                "{} pods are there, {} are wanted",
                self.pods.created, self.pods.wanted
            ));
        }
        if self.beyond_wanted > 0 {
            failures.push(format!(
                "{} pods were created beyond what was wanted",
                self.beyond_wanted
            ));
        }
        if let Some(granted) = self.granted
            && granted != self.ever_created as u64
        {
            failures.push(format!(
                "the audit log holds {granted} granted pod creations, {} pods were seen",
                self.ever_created
            ));
        }
        failures.extend(
            self.breaches
                .iter()
                .map(|breach| format!("audit log: {breach}")),
        );
        let (probes, served) = self.probes;
        if served < probes {
            failures.push(format!(
                "{served} of {probes} probes were ever served: waits are not measured everywhere"
            ));
        }
        for event in &self.events {
            if event.limit.is_some_and(|limit| event.longest > limit) {
                failures.push(format!(
                    "{}: a key waited {:.2} s, at most {:.0} s is promised",
                    event.name,
                    event.longest.as_secs_f64(),
                    event.limit.unwrap_or_default().as_secs_f64()
                ));
            }
        }
        failures
    }
}
