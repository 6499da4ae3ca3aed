//! Gives each Node a block of the cluster's pod addresses, one of each address family.
//!
//! Watches nodes; patches `spec.podCIDRs` of those without; one key for the cluster, since the API does not
//! keep two nodes from having one block. Which blocks are taken follows from the nodes, so that nothing
//! must be handed over; remembers where the search continues, so that a block that has become free is not
//! given again at once. Each plan that gives blocks rests on a consistent read of all nodes, and each patch
//! on the version of its node.

mod ranges;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use controllers_kit::{
    Controller, Descriptor, Event, Failure, Flags, Key, MetricKind, MetricSpec, Outcome, PatchKind,
    Plan, Query, Refusal, Runs, Sharding, SignedDuration, Snapshot, StatusWrite, Verb, Watches,
    cidr::Cidr,
};
use kubernetes_proto::{Object, core::Node};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{events, flags, retries::Retries};
use ranges::{Ranges, Taken};

/// Nodes that get their blocks in one plan: as many as the node sends writes at once. Each plan costs a
/// consistent read of all nodes, so more are cheaper.
const AT_ONCE: usize = 100;

const ALLOCATIONS: &str = "node_ipam_controller_cidrset_cidrs_allocations_total";
const RELEASES: &str = "node_ipam_controller_cidrset_cidrs_releases_total";
const USAGE: &str = "node_ipam_controller_cidrset_usage_cidrs";
const MAX: &str = "node_ipam_controller_cirdset_max_cidrs";
const TRIES: &str = "node_ipam_controller_cidrset_allocation_tries_per_request";

/// The controller.
pub struct NodeIpam {
    ranges: Ranges,
}

/// What outlasts a plan.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Where the search for a free block continues, for each range.
    next: Vec<u32>,
    /// How many blocks were taken by the last count, for each range.
    taken: Vec<u32>,
    /// The uids of nodes for which an event was recorded, while its reason lasts.
    #[serde(rename = "told")]
    reported: BTreeSet<String>,
    /// Nodes that refused their blocks.
    #[serde(default)]
    retries: Retries,
}

fn only_key() -> Key {
    Key::cluster("nodes")
}

/// A node's blocks as its spec has them.
fn blocks_of(node: &Node) -> &[String] {
    node.spec.as_ref().map_or(&[], |spec| &spec.pod_cid_rs)
}

fn lacks(node: &Node) -> bool {
    blocks_of(node).is_empty() && !node.is_terminating()
}

/// The taken blocks of each range, and the nodes whose block an older node has too.
struct Count {
    taken: Vec<Taken>,
    twice: Vec<(Arc<Node>, Cidr, String)>,
}

impl NodeIpam {
    fn count(&self, nodes: &[Arc<Node>]) -> Count {
        let mut taken = vec![Taken::default(); self.ranges.cluster.len()];
        let mut holders: BTreeMap<Cidr, &Arc<Node>> = BTreeMap::new();
        let mut twice = Vec::new();
        let mut take = |cidr: Cidr| {
            for (range, taken) in self.ranges.cluster.iter().zip(&mut taken) {
                if let Some((first, last)) = range.cluster.blocks_of(range.mask, cidr) {
                    taken.take(first, last);
                }
            }
        };
        self.ranges.services.iter().copied().for_each(&mut take);
        for node in nodes {
            for cidr in blocks_of(node).iter().filter_map(|text| Cidr::parse(text)) {
                take(cidr);
                if let Some(older) = holders.get(&cidr) {
                    let name = Object::metadata(&***older).name.to_string();
                    twice.push((Arc::clone(node), cidr, name));
                } else {
                    holders.insert(cidr, node);
                }
            }
        }
        Count { taken, twice }
    }

    /// Takes a block of each range; nothing is taken where one of them is exhausted.
    fn allocate(&self, taken: &mut [Taken], next: &mut [u32]) -> Option<Vec<(Cidr, u32)>> {
        let found: Vec<(u32, u32)> = self
            .ranges
            .cluster
            .iter()
            .zip(&*taken)
            .zip(&*next)
            .map(|((range, taken), next)| taken.free(*next, range.blocks))
            .collect::<Option<_>>()?;
        let mut blocks = Vec::new();
        for (index, (place, tries)) in found.into_iter().enumerate() {
            let range = self.ranges.cluster[index];
            taken[index].take(place, place);
            next[index] = place + 1;
            blocks.push((range.cluster.block(range.mask, place)?, tries));
        }
        Some(blocks)
    }

    fn give(&self, plan: &mut Plan, node: &Node, blocks: &[(Cidr, u32)]) {
        let texts: Vec<String> = blocks.iter().map(|(cidr, _)| cidr.to_string()).collect();
        let patch = json!({"spec": {"podCIDR": texts[0], "podCIDRs": texts}});
        let action = plan.patch(node, "", PatchKind::Strategic, patch, StatusWrite::No);
        action.announce_failure_as_is(events::status(node, "CIDRAssignmentFailed"));
        for (range, (_, tries)) in self.ranges.cluster.iter().zip(blocks) {
            let label = range.cluster.to_string();
            action.measure(TRIES, &[&label], f64::from(*tries));
        }
    }

    /// Gauges: the number of blocks, and the fraction that is taken.
    fn gauge(&self, plan: &mut Plan, count: &Count) {
        for (range, taken) in self.ranges.cluster.iter().zip(&count.taken) {
            let label = range.cluster.to_string();
            let max = f64::from(range.blocks);
            plan.measure(MAX, &[&label], max);
            plan.measure(USAGE, &[&label], f64::from(taken.count()) / max);
        }
    }

    /// Counters: the changes since the last count.
    fn measure(&self, plan: &mut Plan, count: &Count, memory: &mut Memory) {
        memory.taken.resize(self.ranges.cluster.len(), 0);
        let ranges = self.ranges.cluster.iter().zip(&count.taken);
        for ((range, taken), before) in ranges.zip(&mut memory.taken) {
            let label = range.cluster.to_string();
            let now = taken.count();
            if now > *before {
                plan.measure(ALLOCATIONS, &[&label], f64::from(now - *before));
            } else if now < *before {
                plan.measure(RELEASES, &[&label], f64::from(*before - now));
            }
            *before = now;
        }
    }
}

/// By which range of the cluster.
const LABELS: &[&str] = &["clusterCIDR"];

/// Its metrics, named as upstream names them.
const METRICS: &[MetricSpec] = &[
    MetricSpec::new(
        ALLOCATIONS,
        MetricKind::Counter,
        LABELS,
        "Blocks of the cluster's range that were allocated.",
    ),
    MetricSpec::new(
        RELEASES,
        MetricKind::Counter,
        LABELS,
        "Blocks of the cluster's range that were released.",
    ),
    MetricSpec::new(
        USAGE,
        MetricKind::Sum,
        LABELS,
        "Allocated fraction of the blocks of the cluster's range.",
    ),
    MetricSpec::new(
        MAX,
        MetricKind::Sum,
        LABELS,
        "Number of blocks in the cluster's range.",
    ),
    MetricSpec::new(
        TRIES,
        MetricKind::Histogram(1.0, 5.0, 5),
        LABELS,
        "Allocated blocks that the search passed before a free one.",
    ),
];

impl Controller for NodeIpam {
    type Memory = Memory;

    fn describe() -> Descriptor {
        Descriptor::new("node-ipam-controller", Sharding::Single)
            .aliases(&["nodeipam"])
            .service_account("node-controller")
            .event_source("cidrAllocator")
            .queue("cidrallocator_node")
            .with_flags(flags::ADDRESSES)
            .runs_where(|flags| {
                if Ranges::too_many_services(flags) {
                    return Runs::Wrong(
                        "--service-cluster-ip-range can not contain more than two entries"
                            .to_owned(),
                    );
                }
                if !flags.bool("allocate-node-cidrs") {
                    return Runs::No("--allocate-node-cidrs is not given");
                }
                match Ranges::of(flags) {
                    Ok(_) => Runs::Yes,
                    Err(fault) => Runs::Wrong(fault),
                }
            })
            .metrics(METRICS)
            .writes::<Node>(&["patch"])
            .differences(include_str!("differences.md"))
    }

    fn new(flags: &Flags) -> Self {
        Self {
            ranges: Ranges::of(flags).unwrap_or_default(),
        }
    }

    fn watch(&self, on: &mut Watches) {
        // Most changes of a node are heartbeats.
        on.kind::<Node>().wakes(|change, _| {
            let matters = match (change.old, change.new) {
                (Some(old), Some(new)) => {
                    blocks_of(old) != blocks_of(new) || lacks(new) != lacks(old)
                }
                _ => true,
            };
            matters.then(only_key).into_iter().collect()
        });
    }

    fn ask(&self, key: &Key, seen: &Snapshot<'_>, _: &Memory) -> Vec<Query> {
        let any = *key == only_key() && seen.all::<Node>().iter().any(|node| lacks(node));
        any.then(|| Query::Present {
            resource: Node::resource(),
        })
        .into_iter()
        .collect()
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, memory: &mut Memory) -> Result<Plan, Refusal> {
        if *key != only_key() || self.ranges.cluster.is_empty() {
            return Ok(Plan::nothing());
        }
        let mut nodes = seen.all::<Node>();
        nodes.sort_by_cached_key(|node| {
            let meta = Object::metadata(&**node);
            (meta.creation_timestamp, meta.name.clone())
        });
        let mut plan = Plan::nothing();
        let count = self.count(&nodes);
        self.gauge(&mut plan, &count);
        let mut taken = count.taken.clone();
        let mut next = memory.next.clone();
        next.resize(self.ranges.cluster.len(), 0);
        let mut without = Vec::new();
        let mut given = 0;
        let lacking: Vec<_> = nodes.iter().filter(|node| lacks(node)).collect();
        let uids: BTreeSet<&str> = lacking
            .iter()
            .map(|node| &*Object::metadata(&***node).uid)
            .collect();
        memory.retries.retain(|uid| uids.contains(uid));
        for node in lacking {
            // A node that can't be patched does not keep others from their blocks.
            if let Some(at) = memory
                .retries
                .waits(&Object::metadata(&**node).uid, seen.now)
            {
                plan.requeue_at(at);
                continue;
            }
            if given == AT_ONCE {
                plan.requeue_now();
                break;
            }
            match self.allocate(&mut taken, &mut next) {
                Some(blocks) => {
                    self.give(&mut plan, node, &blocks);
                    given += 1;
                }
                None => without.push(node),
            }
        }
        if given > 0 {
            // The memory must stay the same until this is proven: usage is counted with the next plan.
            match seen.present(Node::resource()) {
                Some(Ok(version)) => plan.rests_on(Node::resource(), &"".into(), version),
                Some(Err(why)) => {
                    return Err(Refusal::Retry(format!("nodes could not be asked: {why}")));
                }
                // A node has come between asking and planning.
                None => return Ok(Plan::nothing().requeued_at(seen.now)),
            }
            return Ok(plan);
        }
        self.measure(&mut plan, &count, memory);
        let mut reported = BTreeSet::new();
        let mut report = |plan: &mut Plan, node: &Node, event: Event| {
            let uid = Object::metadata(node).uid.to_string();
            if !memory.reported.contains(&uid) {
                plan.event(event);
            }
            reported.insert(uid);
        };
        for node in without {
            report(&mut plan, node, events::status(node, "CIDRNotAvailable"));
        }
        for (node, cidr, older) in &count.twice {
            let message = format!("Node {older} has the pod CIDR {cidr} too");
            report(
                &mut plan,
                node,
                Event::warning(&**node, "CIDRNotUnique", message),
            );
        }
        memory.reported = reported;
        Ok(plan)
    }

    fn learn(&self, outcome: &Outcome<'_>, memory: &mut Memory) {
        let failure = outcome.result.as_ref().err().copied();
        // Without an answer nothing was refused: the node keeps its turn.
        if !matches!(failure, Some(Failure::Timeout(_))) {
            memory.retries.learn(&outcome.action.uid, failure);
        }
        let Verb::Patch { patch, .. } = &outcome.action.verb else {
            return;
        };
        // A patch whose answer was lost may have been executed: its blocks are skipped too.
        let refused = matches!(
            outcome.result,
            Err(Failure::Skipped | Failure::Conflict(_) | Failure::NotFound(_))
        );
        if refused {
            return;
        }
        memory.next.resize(self.ranges.cluster.len(), 0);
        let texts = patch["spec"]["podCIDRs"].as_array();
        let blocks = texts.into_iter().flatten().filter_map(|text| text.as_str());
        for ((range, next), text) in self.ranges.cluster.iter().zip(&mut memory.next).zip(blocks) {
            let place =
                Cidr::parse(text).and_then(|cidr| range.cluster.blocks_of(range.mask, cidr));
            if let Some((place, _)) = place {
                *next = (place + 1) % range.blocks;
            }
        }
    }

    fn shift(&self, memory: &mut Memory, by: SignedDuration) {
        memory.retries.shift(by);
    }
}

#[cfg(test)]
mod tests;
