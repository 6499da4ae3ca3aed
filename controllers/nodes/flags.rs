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

/// Flags for the health of nodes, and for the rate at which pods of unhealthy ones are evicted.
pub(crate) const HEALTH: [Flag; 7] = [
    flag(
        "node-monitor-period",
        FlagDefault::Duration(Duration::from_secs(5)),
        "A Node that is nearly due is checked again after a tenth of it; a Node whose writes fail is retried at least that often.",
    ),
    flag(
        "node-monitor-grace-period",
        FlagDefault::Duration(Duration::from_secs(50)),
        "How long a Node may be silent before it is unhealthy; several times the kubelet's nodeStatusUpdateFrequency.",
    ),
    flag(
        "node-startup-grace-period",
        FlagDefault::Duration(Duration::from_mins(1)),
        "How long a Node may take to post its first status.",
    ),
    flag(
        "node-eviction-rate",
        FlagDefault::Float(0.1),
        "Nodes per second whose pods are evicted in a healthy zone, or in a wholly unhealthy one while others are healthy.",
    ),
    flag(
        "secondary-node-eviction-rate",
        FlagDefault::Float(0.01),
        "Nodes per second whose pods are evicted in a partly unhealthy zone; none in one of at most --large-cluster-size-threshold Nodes.",
    ),
    flag(
        "large-cluster-size-threshold",
        FlagDefault::Int(50),
        "A zone with more Nodes counts as large: see --secondary-node-eviction-rate.",
    ),
    flag(
        "unhealthy-zone-threshold",
        FlagDefault::Float(0.55),
        "The fraction of a zone's Nodes (and at least 3) that must be not ready for the zone to be partly unhealthy.",
    ),
];

/// Flags for the address ranges of nodes, and their sizes.
pub(crate) const ADDRESSES: [Flag; 7] = [
    flag(
        "allocate-node-cidrs",
        FlagDefault::Bool(false),
        "Give each Node a range of pod addresses; requires --cluster-cidr.",
    ),
    flag(
        "cidr-allocator-type",
        FlagDefault::Text("RangeAllocator"),
        "The allocator of the Nodes' ranges: RangeAllocator.",
    ),
    flag(
        "cluster-cidr",
        FlagDefault::Text(""),
        "The pods' address range, or one of each address family; used with --allocate-node-cidrs.",
    ),
    flag(
        "service-cluster-ip-range",
        FlagDefault::Text(""),
        "The Services' address range, or one of each address family, which is excluded from the Nodes' ranges. Used with --allocate-node-cidrs.",
    ),
    flag(
        "node-cidr-mask-size",
        FlagDefault::Int(0),
        "Mask size of a Node's range in a single-stack cluster; 0 for 24 (IPv4) or 64 (IPv6).",
    ),
    flag(
        "node-cidr-mask-size-ipv4",
        FlagDefault::Int(0),
        "Mask size of a Node's IPv4 range; 0 for 24.",
    ),
    flag(
        "node-cidr-mask-size-ipv6",
        FlagDefault::Int(0),
        "Mask size of a Node's IPv6 range; 0 for 64.",
    ),
];
