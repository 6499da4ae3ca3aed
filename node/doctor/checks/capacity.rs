//! Whether there are enough members, and whether each has enough memory.

use super::{Finding, some};
use crate::facts::Facts;

/// Of a replica with empty caches; bench/README.md has the measurements.
const MEMORY_EMPTY: u64 = 27 << 20;
/// For each pod of the cluster: its projection, its keys, its share of ReplicaSets, EndpointSlices and
/// events. Measured: 22.5 MiB for 10,000 pods.
const MEMORY_EACH_POD: u64 = 2_400;
/// While caches are read again, old and new objects are in memory, and a takeover brings queues.
const MEMORY_PEAK: u64 = 2;
/// A limit below this multiple of the peak is warned of.
const MEMORY_ROOM: (u64, u64) = (5, 4);

const MIB: u64 = 1 << 20;

/// What a replica takes at its peak in a cluster of this size.
pub(super) fn needed_memory(pods: u64) -> u64 {
    MEMORY_PEAK * (MEMORY_EMPTY + pods.saturating_mul(MEMORY_EACH_POD))
}

fn in_mib(bytes: u64) -> u64 {
    bytes.div_ceil(MIB)
}

pub(super) fn members(facts: &Facts) -> Finding {
    let Some(fleet) = facts.fleet() else {
        return Finding::Skipped("there is no fleet".to_owned());
    };
    let live: Vec<&str> = fleet.live().map(|one| one.said.name.as_str()).collect();
    let statics = facts.own_pods().filter(|pod| pod.is_static).count();
    let wanted = match (facts.asked.expected, &facts.stateful_set) {
        (Some(given), _) => Some(given),
        (None, Ok(Some(replicas))) => Some(replicas + statics),
        (None, _) => Some(statics).filter(|count| *count > 0),
    };
    let namespace = facts.namespace();
    let waiting: Vec<String> = facts
        .own_pods()
        .filter(|pod| !pod.ready)
        .map(|pod| format!("{}/{}", pod.namespace, pod.name))
        .collect();
    match wanted {
        Some(wanted) if live.len() < wanted => {
            let pods = match waiting.is_empty() {
                true => String::new(),
                false => format!("; not ready: {}", some(&waiting)),
            };
            let remedy = match facts.own_pods().find(|pod| !pod.ready) {
                Some(pod) if !pod.is_static => {
                    format!("kubectl -n {} delete pod {}", pod.namespace, pod.name)
                }
                _ => "# start the missing replicas where they run".to_owned(),
            };
            Finding::failed(
                format!(
                    "{} of {wanted} members work: {}{pods}",
                    live.len(),
                    live.join(", ")
                ),
                [
                    remedy,
                    format!(
                        "kubectl -n {namespace} describe pods -l app.kubernetes.io/name=manifold"
                    ),
                ],
            )
        }
        _ if live.len() == 1 => Finding::warning(
            "there is one member: when it dies, every key waits until another is started",
            [format!(
                "kubectl -n {namespace} scale statefulset manifold --replicas=3"
            )],
        ),
        _ => Finding::passed(format!("{} members", live.len())),
    }
}

pub(super) fn memory(facts: &Facts) -> Finding {
    let pods = match &facts.cluster_pods {
        Ok(pods) => *pods,
        Err(unknown) => return Finding::unknown(unknown),
    };
    let needed = needed_memory(pods);
    let least = facts
        .own_pods()
        .filter_map(|pod| Some((pod.memory_limit?, pod)))
        .min_by_key(|(limit, _)| *limit);
    let show = format!("{pods} pods take {} MiB at the peak", in_mib(needed));
    let Some((limit, pod)) = least else {
        return Finding::passed(format!("{show}; no limit"));
    };
    let (times, by) = MEMORY_ROOM;
    // A limit that is divisible by 64 MiB, half above what is needed.
    let better = (in_mib(needed) * 3 / 2).div_ceil(64) * 64;
    let remedy = match pod.is_static {
        true => format!(
            "# on {}: set resources.limits.memory to {better}Mi in its manifest",
            pod.node
        ),
        false => format!(
            "kubectl -n {} set resources statefulset manifold --limits=memory={better}Mi",
            pod.namespace
        ),
    };
    let why = format!(
        "{show}; the limit of {}/{} is {} MiB",
        pod.namespace,
        pod.name,
        in_mib(limit)
    );
    if limit < needed {
        Finding::failed(why, [remedy])
    } else if limit < needed * times / by {
        Finding::warning(why, [remedy])
    } else {
        Finding::passed(why)
    }
}
