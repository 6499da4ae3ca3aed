//! Generated names that were given twice within an hour.
//!
//! One that waits until a pod of that name is not found would wait for ever, and logs that are keyed by name
//! would mix two pods. StatefulSets' pods are named by the API itself, and so are Jobs of CronJobs: only pods
//! and EndpointSlices of the other controllers count.

use std::collections::BTreeMap;

use harness::AuditRecord;
use jiff::{SignedDuration, Timestamp};

use super::{is_dry_run, name_of};

/// For how long a name is not given again.
const REUSE_AFTER: SignedDuration = SignedDuration::from_hours(1);

/// Its pods have the names that the API fixes.
const FIXED: &str = "statefulset-controller";

/// Reads a log; see the module.
#[derive(Debug, Default)]
pub struct Names {
    /// By resource, namespace and name: when it was answered, and who had asked.
    made: BTreeMap<(String, String, String), Vec<(Timestamp, String)>>,
}

impl Names {
    /// Takes in one record.
    pub fn read(&mut self, record: &AuditRecord) {
        let granted = record.code().is_some_and(|code| (200..300).contains(&code));
        if record.stage != "ResponseComplete"
            || record.verb != "create"
            || !granted
            || is_dry_run(record)
        {
            return;
        }
        let resource = record.resource();
        let agent = record.agent().filter(|agent| {
            let controller = agent.controller.as_deref();
            controller.is_some_and(|controller| controller != FIXED)
        });
        let Some(agent) = agent.filter(|_| matches!(&*resource, "pods" | "endpointslices")) else {
            return;
        };
        let object = record.object();
        let name = name_of(&object.name, record.response_object.as_ref());
        let made = self.made.entry((resource, object.namespace, name));
        let by = format!(
            "{} of {}",
            agent.controller.unwrap_or_default(),
            agent.replica
        );
        made.or_default().push((record.stage_timestamp, by));
    }

    /// Broken promises, a line each.
    pub fn complaints(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        for ((resource, namespace, name), made) in &self.made {
            let mut made: Vec<_> = made.iter().collect();
            made.sort();
            for pair in made.windows(2) {
                let [(before, first), (after, second)] = pair else {
                    continue;
                };
                if after.duration_since(*before) < REUSE_AFTER {
                    complaints.push(format!(
                        "{resource} {namespace}/{name} was made by {first} at {before} and again by {second} at {after}"
                    ));
                }
            }
        }
        complaints
    }

    /// How many names were given.
    pub fn count(&self) -> usize {
        self.made.len()
    }
}
