//! What a Node shows of itself: its zone, its conditions, its taints.

use std::sync::Arc;

use controllers_kit::{Key, Timestamp, heartbeat::ready};
use kubernetes_proto::{
    Object,
    core::{Node, NodeCondition, Taint},
    meta::Time,
};

/// The kind of zones' keys.
const ZONE: &str = "zone";

/// The taint of a node whose kubelet reports it as not ready.
pub(super) const NOT_READY: &str = "node.kubernetes.io/not-ready";
/// Of a node whose kubelet says nothing.
pub(super) const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
/// The label of nodes that do not count for the state of their zone.
const EXCLUDED: &str = "node.kubernetes.io/exclude-disruption";

/// Conditions, their status, and the corresponding taint.
const TAINTS: [(&str, &str, &str); 6] = [
    ("Ready", "False", NOT_READY),
    ("Ready", "Unknown", UNREACHABLE),
    (
        "MemoryPressure",
        "True",
        "node.kubernetes.io/memory-pressure",
    ),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    (
        "NetworkUnavailable",
        "True",
        "node.kubernetes.io/network-unavailable",
    ),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
];

/// Deprecated labels, and the labels that they follow.
const LABELS: [(&str, &str); 2] = [
    ("kubernetes.io/os", "beta.kubernetes.io/os"),
    ("kubernetes.io/arch", "beta.kubernetes.io/arch"),
];

/// A zone: nodes that fail together.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Zone {
    region: String,
    zone: String,
}

impl Zone {
    pub(super) fn of(node: &Node) -> Self {
        let meta = Object::metadata(node);
        let label = |old: &str, new: &str| {
            let value = meta.label(old).or_else(|| meta.label(new));
            value.unwrap_or_default().to_owned()
        };
        Self {
            region: label(
                "failure-domain.beta.kubernetes.io/region",
                "topology.kubernetes.io/region",
            ),
            zone: label(
                "failure-domain.beta.kubernetes.io/zone",
                "topology.kubernetes.io/zone",
            ),
        }
    }

    /// The zone in the index and in keys. No label's value has a colon.
    pub(super) fn text(&self) -> String {
        format!("{}:{}", self.region, self.zone)
    }

    pub(super) fn key(&self) -> Key {
        Key::composite(ZONE, self.text())
    }

    /// The zone of a key; `None` for a node's.
    pub(super) fn of_key(key: &Key) -> Option<Self> {
        let (region, zone) = key.of_kind(ZONE)?.split_once(':')?;
        Some(Self {
            region: region.to_owned(),
            zone: zone.to_owned(),
        })
    }

    /// The value of upstream's label.
    pub(super) fn label(&self) -> String {
        match (&*self.region, &*self.zone) {
            ("", "") => String::new(),
            (region, zone) => format!("{region}:\0:{zone}"),
        }
    }
}

/// The status of the condition Ready; `None` where there is none.
pub(super) fn status(node: &Node) -> Option<&str> {
    ready(node).map(|condition| condition.status.as_str())
}

pub(super) fn is_ready(node: &Node) -> bool {
    status(node) == Some("True")
}

/// Whether a node says something of its zone.
pub(super) fn counts(node: &Node) -> bool {
    Object::metadata(node).label(EXCLUDED).is_none()
}

/// Whether no zone has a ready node any more: then more likely this side is cut off.
pub(super) fn all_down<'a>(nodes: impl IntoIterator<Item = &'a Arc<Node>>) -> bool {
    let mut any = false;
    for node in nodes.into_iter().filter(|node| counts(node)) {
        if is_ready(node) {
            return false;
        }
        any = true;
    }
    any
}

pub(super) fn taints(node: &Node) -> &[Taint] {
    node.spec.as_ref().map_or(&[], |spec| &spec.taints)
}

pub(super) fn has_no_execute(node: &Node, key: &str) -> bool {
    taints(node)
        .iter()
        .any(|taint| taint.key == key && taint.effect == "NoExecute")
}

pub(super) fn taint(key: &str, effect: &str, now: Timestamp) -> Taint {
    Taint {
        key: key.to_owned(),
        value: String::new(),
        effect: effect.to_owned(),
        time_added: Some(Time::from(now)),
    }
}

/// The taint that the condition Ready calls for, and its opposite; `None` for a node that is ready or has
/// no such condition.
pub(super) fn by_status(node: &Node) -> Option<(&'static str, &'static str)> {
    match status(node)? {
        "False" => Some((NOT_READY, UNREACHABLE)),
        "Unknown" => Some((UNREACHABLE, NOT_READY)),
        _ => None,
    }
}

/// Brings the taints with effect `NoSchedule` into line with the conditions.
pub(super) fn follow_conditions(node: &mut Node, now: Timestamp) {
    let conditions = node.status.iter().flat_map(|status| &status.conditions);
    let mut wanted: Vec<&str> = conditions
        .filter_map(|condition| {
            let of = |(kind, status, _): &&(&str, &str, &str)| {
                *kind == condition.r#type && *status == condition.status
            };
            TAINTS.iter().find(of).map(|(_, _, key)| *key)
        })
        .collect();
    let spec = node.spec.get_or_insert_default();
    if spec.unschedulable {
        wanted.push(UNSCHEDULABLE);
    }
    let ours = |key: &str| key == UNSCHEDULABLE || TAINTS.iter().any(|(_, _, of)| *of == key);
    spec.taints.retain(|taint| {
        taint.effect != "NoSchedule" || !ours(&taint.key) || wanted.contains(&taint.key.as_str())
    });
    for key in wanted {
        let has = |taint: &Taint| taint.key == key && taint.effect == "NoSchedule";
        if !spec.taints.iter().any(has) {
            spec.taints.push(taint(key, "NoSchedule", now));
        }
    }
}

/// Brings deprecated labels into line with their successors.
pub(super) fn follow_labels(node: &mut Node) {
    for (label, old) in LABELS {
        let meta = node.metadata_mut();
        if let Some(value) = meta.label(label).map(str::to_owned)
            && meta.label(old) != Some(value.as_str())
        {
            meta.set_label(old, &value);
        }
    }
}

/// What a silent kubelet's conditions become. Upstream reads Ready alone to decide whether that must be
/// written.
pub(super) fn silenced(node: &Node, now: Timestamp) -> Option<Node> {
    if status(node) == Some("Unknown") {
        return None;
    }
    let mut new = node.clone();
    let created = Object::metadata(node).creation_timestamp;
    let conditions = &mut new.status.get_or_insert_default().conditions;
    // NetworkUnavailable is not the kubelet's.
    for kind in ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"] {
        match conditions.iter_mut().find(|one| one.r#type == kind) {
            None => conditions.push(NodeCondition {
                r#type: kind.to_owned(),
                status: "Unknown".to_owned(),
                last_heartbeat_time: created,
                last_transition_time: Some(Time::from(now)),
                reason: "NodeStatusNeverUpdated".to_owned(),
                message: "Kubelet never posted node status.".to_owned(),
            }),
            Some(held) if held.status != "Unknown" => {
                "Unknown".clone_into(&mut held.status);
                "NodeStatusUnknown".clone_into(&mut held.reason);
                "Kubelet stopped posting node status.".clone_into(&mut held.message);
                held.last_transition_time = Some(Time::from(now));
            }
            Some(_) => {}
        }
    }
    Some(new)
}
