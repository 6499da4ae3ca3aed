//! What must hold of nodes, whatever becomes of replicas: no node is called silent that is not, pods of a
//! zone's nodes are driven away no faster than its rate, no pod goes before its toleration is over, and no
//! two nodes have one range of addresses.
//!
//! A replica sees late. So a node may be called silent that has been so lately, by as much less than its
//! grace period as a thawing watch may add to an age; and a taint counts for as long after it has gone as a
//! write may be on its way.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use controllers_kit::{Object, SignedDuration, Timestamp, heartbeat};
use kubernetes_proto::{
    AnyObject,
    core::{Node, Pod},
    meta::Time,
};
use tokio::time::Instant;

use crate::{
    judge::By,
    server::{Change, Server},
};

const LIFECYCLE: &str = "node-lifecycle-controller";
const EVICTION: &str = "taint-eviction-controller";
/// How long a node may be silent in a simulated fleet.
pub const GRACE: Duration = Duration::from_secs(20);
/// What a watch that has stood still adds to an age at once (`node_cache::Settings::pulse_max`), and a
/// little.
const THAW: Duration = Duration::from_secs(9);
/// Nodes a second whose pods are driven away, in each zone of a simulated fleet.
pub const RATE: f64 = 0.25;
/// The range that nodes' addresses are cut from.
pub const CLUSTER: &str = "10.0.0.0/20";
/// Taints say when they were decided on in whole seconds.
const SECOND: SignedDuration = SignedDuration::from_secs(1);
/// How old a taint's removal may be that a writer does not know of.
const ON_THE_WAY: Duration = Duration::from_secs(20);

/// When a taint came, and when it went.
struct Tainted {
    since: Instant,
    until: Option<Instant>,
}

/// All that is remembered.
#[derive(Default)]
pub struct Nodes {
    /// When it was decided that each zone's nodes get a taint that drives pods away. Its write may wait for a
    /// connection.
    driven: BTreeMap<String, Vec<Timestamp>>,
    /// By node and taint.
    taints: BTreeMap<(String, String), Vec<Tainted>>,
    /// When each pod was bound, by uid.
    bound: BTreeMap<String, Instant>,
}

fn node(object: Option<&AnyObject>) -> Option<&Node> {
    object?.as_any().downcast_ref()
}

fn pod(object: Option<&AnyObject>) -> Option<&Pod> {
    object?.as_any().downcast_ref()
}

fn ready(node: &Node) -> Option<&str> {
    heartbeat::ready(node).map(|ready| ready.status.as_str())
}

/// Since when the node has a taint of the lifecycle's that drives pods away.
fn driven_since(node: &Node) -> Option<Timestamp> {
    let mut taints = heartbeat::no_execute(node);
    let driving = taints.find(|taint| {
        matches!(
            taint.key.as_str(),
            "node.kubernetes.io/unreachable" | "node.kubernetes.io/not-ready"
        )
    });
    let added = driving?.time_added.map(Time::timestamp);
    Some(added.unwrap_or(Timestamp::MIN))
}

fn node_of(pod: &Pod) -> &str {
    pod.spec.as_ref().map_or("", |spec| &spec.node_name)
}

impl Nodes {
    /// Judges a change; by nobody of the fleet where there is no writer.
    pub fn after(
        &mut self,
        server: &Server,
        change: &Change,
        by: Option<&By<'_>>,
    ) -> Option<String> {
        let sent = by.map_or_else(Instant::now, |by| by.sent);
        let controller = by.map_or("", |by| by.writer.controller.as_str());
        let (old, new) = (node(change.old.as_ref()), node(change.new.as_ref()));
        if let Some(either) = new.or(old) {
            self.tainted(&Object::metadata(either).name, old, new);
            let (Some(old), Some(new)) = (old, new) else {
                return new.and_then(|new| given_twice(server, new));
            };
            let wrong = (controller == LIFECYCLE)
                .then(|| {
                    let silent = called_silent(server, old, new, by?);
                    silent.or_else(|| self.too_fast(old, new))
                })
                .flatten();
            let blocks = |node: &Node| node.spec.as_ref().map(|spec| spec.pod_cid_rs.clone());
            return wrong.or_else(|| {
                (blocks(old) != blocks(new))
                    .then(|| given_twice(server, new))
                    .flatten()
            });
        }
        let (old, new) = (pod(change.old.as_ref()), pod(change.new.as_ref()));
        if let Some(new) = new
            && !node_of(new).is_empty()
            && old.is_none_or(|old| node_of(old) != node_of(new))
        {
            let uid = Object::metadata(new).uid.to_string();
            self.bound.insert(uid, Instant::now());
        }
        let goes = new.is_none_or(Object::is_terminating);
        let old = old.filter(|old| controller == EVICTION && goes && !old.is_terminating())?;
        self.evicted(old, sent)
    }

    fn tainted(&mut self, name: &str, old: Option<&Node>, new: Option<&Node>) {
        let keys = |node: Option<&Node>| -> BTreeSet<String> {
            let taints = node.into_iter().flat_map(heartbeat::no_execute);
            taints.map(|taint| taint.key.clone()).collect()
        };
        let (old, new) = (keys(old), keys(new));
        let now = Instant::now();
        for key in new.difference(&old) {
            let periods = self.taints.entry((name.to_owned(), key.clone()));
            periods.or_default().push(Tainted {
                since: now,
                until: None,
            });
        }
        for key in old.difference(&new) {
            let periods = self.taints.get_mut(&(name.to_owned(), key.clone()));
            if let Some(last) = periods.and_then(|periods| periods.last_mut()) {
                last.until = Some(now);
            }
        }
    }

    /// A zone's rate.
    fn too_fast(&mut self, old: &Node, new: &Node) -> Option<String> {
        let since = driven_since(new).filter(|_| driven_since(old).is_none())?;
        let meta = Object::metadata(new);
        let zone = meta
            .label("topology.kubernetes.io/zone")
            .unwrap_or_default();
        let driven = self.driven.entry(zone.to_owned()).or_default();
        let least = SignedDuration::from_secs_f64(1.0 / RATE) - SECOND;
        let apart = |at: &Timestamp| since.duration_since(*at).abs();
        let near = driven.iter().map(apart).find(|apart| *apart < least);
        driven.push(since);
        near.map(|apart| {
            format!(
                "{LIFECYCLE}: drives pods away from {} {apart:?} after another node of zone {zone:?}",
                meta.name
            )
        })
    }

    /// A pod was driven away.
    fn evicted(&self, pod: &Pod, sent: Instant) -> Option<String> {
        let meta = Object::metadata(pod);
        let node = node_of(pod);
        let bound = self.bound.get(&*meta.uid).copied();
        let tolerations = pod.spec.iter().flat_map(|spec| &spec.tolerations);
        let justified = self
            .taints
            .iter()
            .filter(|((of, _), _)| of == node)
            .flat_map(|((_, key), periods)| periods.iter().map(move |period| (key, period)))
            .filter(|(_, period)| period.until.is_none_or(|until| until + ON_THE_WAY >= sent))
            .any(|(key, period)| {
                let exposed = bound.map_or(period.since, |bound| bound.max(period.since));
                let mut tolerations = tolerations.clone();
                let held = tolerations.find(|one| one.key.is_empty() || one.key == *key);
                let seconds = match held.map(|one| one.toleration_seconds) {
                    None => 0,
                    Some(None) => return false,
                    Some(Some(seconds)) => u64::try_from(seconds).unwrap_or(0),
                };
                exposed + Duration::from_secs(seconds) <= sent
            });
        (!justified).then(|| {
            format!(
                "{EVICTION}: drives {} away from {node} before its time",
                meta.name
            )
        })
    }
}

/// A node that gives signs of life is called silent.
fn called_silent(server: &Server, old: &Node, new: &Node, by: &By<'_>) -> Option<String> {
    if ready(old) == Some("Unknown") || ready(new) != Some("Unknown") || by.shown.is_none() {
        return None;
    }
    let name = &Object::metadata(new).name;
    let longest = server
        .heartbeats
        .longest_silence(name, by.sent, GRACE + ON_THE_WAY);
    (longest.saturating_add(THAW) < GRACE).then(|| {
        format!(
            "{LIFECYCLE}: calls {name} silent, which has given a sign of life every {longest:?}"
        )
    })
}

/// Two nodes have one range of addresses.
fn given_twice(server: &Server, new: &Node) -> Option<String> {
    let blocks = |node: &Node| {
        node.spec
            .as_ref()
            .map_or(Vec::new(), |spec| spec.pod_cid_rs.clone())
    };
    let (meta, held) = (Object::metadata(new), blocks(new));
    let nodes = server.world.all::<Node>();
    let other = nodes.iter().find(|other| {
        Object::metadata(&***other).name != meta.name
            && blocks(other).iter().any(|block| held.contains(block))
    })?;
    Some(format!(
        "{} and {} have one range of addresses: {held:?}",
        meta.name,
        Object::metadata(&**other).name
    ))
}
