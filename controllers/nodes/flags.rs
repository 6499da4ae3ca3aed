//! The flags of this group, in upstream's order: those of nodes' health and those of their addresses.

use std::time::Duration;

use controllers_kit::{Flag, FlagDefault};

const fn flag(name: &'static str, default: FlagDefault, help: &'static str) -> Flag {
    Flag {
        name,
        default,
        help,
    }
}

/// How the health of nodes is judged, and how fast pods of unhealthy ones are evicted.
pub(crate) const HEALTH: [Flag; 7] = [
    flag(
        "node-monitor-period",
        FlagDefault::Duration(Duration::from_secs(5)),
        "A Node that is nearly due is looked at again after a tenth of it; a Node whose writes fail is retried at least that often.",
    ),
    flag(
        "node-monitor-grace-period",
        FlagDefault::Duration(Duration::from_secs(50)),
        "How long a Node may be silent before it is unhealthy; several times the kubelet's nodeStatusUpdateFrequency.",
    ),
    flag(
        "node-startup-grace-period",
        FlagDefault::Duration(Duration::from_mins(1)),
        "How long a Node may take to say how it is for the first time.",
    ),
    flag(
        "node-eviction-rate",
        FlagDefault::Float(0.1),
        "Nodes a second whose pods are driven away in a zone that is healthy, or wholly ill while others are not.",
    ),
    flag(
        "secondary-node-eviction-rate",
        FlagDefault::Float(0.01),
        "The same in a zone that is partly ill; none in one of at most --large-cluster-size-threshold Nodes.",
    ),
    flag(
        "large-cluster-size-threshold",
        FlagDefault::Int(50),
        "A zone of more Nodes is large: see --secondary-node-eviction-rate.",
    ),
    flag(
        "unhealthy-zone-threshold",
        FlagDefault::Float(0.55),
        "Which part of a zone's Nodes (and at least 3) must be ill for the zone to be partly ill.",
    ),
];

/// Which ranges of addresses nodes get, and of which size.
pub(crate) const ADDRESSES: [Flag; 7] = [
    flag(
        "allocate-node-cidrs",
        FlagDefault::Bool(false),
        "Give each Node a range of pod addresses; needs --cluster-cidr.",
    ),
    flag(
        "cidr-allocator-type",
        FlagDefault::Text("RangeAllocator"),
        "Which allocator gives out the Nodes' ranges: RangeAllocator.",
    ),
    flag(
        "cluster-cidr",
        FlagDefault::Text(""),
        "The pods' address range, or one of each family; used with --allocate-node-cidrs.",
    ),
    flag(
        "service-cluster-ip-range",
        FlagDefault::Text(""),
        "The Services' address range, or one of each family: no Node gets any of it. Used with --allocate-node-cidrs.",
    ),
    flag(
        "node-cidr-mask-size",
        FlagDefault::Int(0),
        "Mask size of a Node's range where there is one family: 24 for IPv4 and 64 for IPv6 where it is 0.",
    ),
    flag(
        "node-cidr-mask-size-ipv4",
        FlagDefault::Int(0),
        "Mask size of a Node's IPv4 range; 24 where it is 0.",
    ),
    flag(
        "node-cidr-mask-size-ipv6",
        FlagDefault::Int(0),
        "Mask size of a Node's IPv6 range; 64 where it is 0.",
    ),
];
