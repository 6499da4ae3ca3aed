//! The API server's audit log: who asked for what, in the order of arrival.

use std::collections::BTreeMap;

pub use audit_log::{Agent, AuditLog, AuditRecord};
use jiff::Timestamp;

/// What the audit log proves of ownership and of creations; fed with every record, asked at the end.
#[derive(Debug, Default)]
pub struct Proof {
    /// By range: when a request arrived, for which epoch, from whom.
    ranges: BTreeMap<u32, Vec<(Timestamp, u64, String)>>,
    /// Granted creations by resource, namespace and name.
    created: BTreeMap<(String, String, String), u64>,
    /// Granted deletions, after which a name may be used again.
    deleted: BTreeMap<(String, String, String), u64>,
}

impl Proof {
    /// Takes in one record.
    pub fn read(&mut self, record: &AuditRecord) {
        if record.stage != "ResponseComplete" || !record.is_write() {
            return;
        }
        if let Some(agent) = record.agent()
            && let (Some(range), Some(epoch)) = (agent.range, agent.epoch)
        {
            let arrived = record.request_received_timestamp;
            self.ranges
                .entry(range)
                .or_default()
                .push((arrived, epoch, agent.replica));
        }
        let object = record.object();
        let granted = record.code().is_some_and(|code| (200..300).contains(&code));
        if granted && !object.name.is_empty() && object.subresource.is_empty() {
            let key = (object.resource, object.namespace, object.name);
            match record.verb.as_str() {
                "create" => *self.created.entry(key).or_default() += 1,
                "delete" => *self.deleted.entry(key).or_default() += 1,
                _ => {}
            }
        }
    }

    /// Requests of an older epoch of a range after the first of a newer one, two replicas in one
    /// epoch, and objects that were created twice without having been deleted between.
    pub fn complaints(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        for (range, requests) in &self.ranges {
            let mut requests: Vec<_> = requests.iter().collect();
            // The log is written when requests end; what counts is when they arrived.
            requests.sort_by_key(|(arrived, ..)| *arrived);
            for pair in requests.windows(2) {
                let [(_, epoch, replica), (arrived, later, other)] = pair else {
                    continue;
                };
                if later < epoch {
                    complaints.push(format!(
                        "range {range}: {other} wrote with epoch {later} at {arrived}, after {replica} with epoch {epoch}"
                    ));
                } else if later == epoch && replica != other {
                    complaints.push(format!(
                        "range {range}: {replica} and {other} both wrote with epoch {epoch}"
                    ));
                }
            }
        }
        for (key, count) in &self.created {
            let deleted = self.deleted.get(key).copied().unwrap_or(0);
            if *count > deleted + 1 {
                let (resource, namespace, name) = key;
                complaints.push(format!(
                    "{resource} {namespace}/{name} was created {count} times"
                ));
            }
        }
        complaints
    }

    /// Writes that reported their range and epoch.
    pub fn writes(&self) -> usize {
        self.ranges.values().map(Vec::len).sum()
    }
}
