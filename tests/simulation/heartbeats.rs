//! Signs of life of nodes: their Leases, which kubelets renew, and the fleet's own Leases as those see them
//! who watch all namespaces. They are no objects of the world, so that a cluster at rest writes nothing that
//! counts.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use controllers_kit::{Key, Timestamp, heartbeat::NODE_LEASES};
use kubernetes_proto::{
    AnyObject, Object as _,
    coordination::{Lease, LeaseSpec},
    meta::Time,
};
use serde_json::Value;
use tokio::time::Instant;

/// How often a kubelet renews its Lease.
pub const RENEWED_EVERY: Duration = Duration::from_secs(3);
/// A node with this label has no kubelet any more, or none for now.
pub const SILENT: &str = "simulation.example.com/silent";
/// Renewals that are remembered of each node: more than a minute's.
const REMEMBERED: usize = 32;

/// All of it.
#[derive(Default)]
pub struct Heartbeats {
    leases: BTreeMap<Key, AnyObject>,
    renewals: BTreeMap<String, VecDeque<Instant>>,
}

fn lease(key: &Key, uid: &str, version: u64, renewed: Option<Time>) -> AnyObject {
    let mut lease = Lease {
        spec: Some(LeaseSpec {
            renew_time: renewed,
        }),
        ..Lease::default()
    };
    let meta = lease.metadata_mut();
    meta.name = key.name.clone();
    meta.namespace = key.namespace.clone();
    meta.uid = uid.into();
    meta.resource_version = version;
    Arc::new(lease)
}

impl Heartbeats {
    /// All Leases there are.
    pub fn leases(&self) -> Vec<AnyObject> {
        self.leases.values().cloned().collect()
    }

    /// A kubelet's renewal, and whether it is the first.
    pub fn renew(&mut self, node: &str, version: u64, now: Timestamp) -> (&'static str, AnyObject) {
        let key = Key::new(NODE_LEASES, node);
        let lease = lease(
            &key,
            &format!("node-lease-{node}"),
            version,
            Some(now.into()),
        );
        let known = self.leases.insert(key, Arc::clone(&lease));
        let renewals = self.renewals.entry(node.to_owned()).or_default();
        if renewals.len() == REMEMBERED {
            renewals.pop_front();
        }
        renewals.push_back(Instant::now());
        (if known.is_some() { "MODIFIED" } else { "ADDED" }, lease)
    }

    /// One of the fleet's Leases has changed.
    pub fn of_fleet(&mut self, kind: &str, version: u64, json: &Value) -> AnyObject {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let meta = &json["metadata"];
        let key = Key::new(
            text(&meta["namespace"]).as_str(),
            text(&meta["name"]).as_str(),
        );
        let renewed = json["spec"]["renewTime"].as_str();
        let renewed = renewed.and_then(|text| text.parse::<Timestamp>().ok());
        let object = lease(&key, &text(&meta["uid"]), version, renewed.map(Time::from));
        match kind {
            "DELETED" => self.leases.remove(&key),
            _ => self.leases.insert(key, Arc::clone(&object)),
        };
        object
    }

    /// The longest time within `window` before an instant in which a node gave no sign of life.
    pub fn longest_silence(&self, node: &str, until: Instant, window: Duration) -> Duration {
        let Some(renewals) = self.renewals.get(node) else {
            return Duration::MAX;
        };
        let mut longest = Duration::ZERO;
        let mut last: Option<Instant> = None;
        for at in renewals
            .iter()
            .copied()
            .filter(|at| *at <= until)
            .chain([until])
        {
            let gap = last.map_or(Duration::ZERO, |last| at - last);
            if until - at <= window {
                longest = longest.max(gap);
            }
            last = Some(at);
        }
        longest
    }
}
