//! The fleet: versions, Leases, peers, clocks.

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, rights, server::CLOCK_SECONDS_MAX, some};
use crate::{
    facts::{Facts, Fleet, Replica},
    rights::Source,
};

const NO_FLEET: &str = "there is no fleet";

/// The command that restarts one replica, or all.
pub(super) fn restart(facts: &Facts, replica: Option<&str>) -> String {
    let namespace = facts.namespace();
    let pod = replica.and_then(|name| {
        facts
            .own_pods()
            .find(|pod| pod.name == name || pod.node == name)
    });
    match (replica, pod) {
        (None, _) => format!("kubectl -n {namespace} rollout restart statefulset/manifold"),
        (Some(_), Some(pod)) if pod.is_static => format!(
            "# on {}: mv /etc/kubernetes/manifests/manifold.yaml /tmp && sleep 20 && mv /tmp/manifold.yaml /etc/kubernetes/manifests/",
            pod.node
        ),
        (Some(_), Some(pod)) => format!("kubectl -n {} delete pod {}", pod.namespace, pod.name),
        (Some(name), None) => format!("# start the replica {name} again where it runs"),
    }
}

pub(super) fn exists(facts: &Facts) -> Finding {
    let fleets = match &facts.fleets {
        Ok(fleets) => fleets,
        Err(unknown) => return Finding::unknown(unknown),
    };
    match facts.fleet() {
        Some(fleet) if fleet.live().next().is_some() => {
            let members: Vec<String> = fleet.live().map(|one| one.said.name.clone()).collect();
            Finding::passed(format!(
                "{}/{}: {}",
                fleet.namespace,
                fleet.name,
                some(&members)
            ))
        }
        Some(fleet) => Finding::failed(
            format!("no replica of {}/{} is alive", fleet.namespace, fleet.name),
            [restart(facts, None)],
        ),
        None => {
            let others: Vec<String> = fleets
                .iter()
                .map(|fleet| format!("{}/{}", fleet.namespace, fleet.name))
                .collect();
            let why = match others.is_empty() {
                true => "there are no replica Leases".to_owned(),
                false => format!(
                    "there is no such fleet; there are {}: give --fleet-namespace and --fleet-name",
                    some(&others)
                ),
            };
            Finding::failed(why, ["kubectl apply -k deploy/base"])
        }
    }
}

/// Major and minor version of a build.
fn minor(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.trim_start_matches('v').split(['.', '-', '+']);
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

pub(super) fn versions(facts: &Facts) -> Finding {
    let Some(fleet) = facts.fleet() else {
        return Finding::Skipped(NO_FLEET.to_owned());
    };
    let mut by_version: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for replica in fleet.live() {
        by_version
            .entry(&replica.said.status.build)
            .or_default()
            .push(&replica.said.name);
    }
    let shown: Vec<String> = by_version
        .iter()
        .map(|(version, members)| format!("{version} at {}", members.join(", ")))
        .collect();
    let minors: Vec<Option<(u32, u32)>> = by_version.keys().map(|version| minor(version)).collect();
    let apart = match (minors.iter().flatten().min(), minors.iter().flatten().max()) {
        (Some(oldest), Some(newest)) if minors.iter().all(Option::is_some) => {
            oldest.0 != newest.0 || newest.1 - oldest.1 > 1
        }
        _ => by_version.len() > 1,
    };
    let remedy = format!(
        "kubectl -n {} rollout status statefulset/manifold",
        facts.namespace()
    );
    match (by_version.len(), apart) {
        (0, _) => Finding::Skipped(NO_FLEET.to_owned()),
        (1, _) => match by_version.contains_key(facts.build.as_str()) {
            true => Finding::passed(facts.build.clone()),
            false => Finding::passed(format!(
                "{}; this program is {}",
                shown.join("; "),
                facts.build
            )),
        },
        (_, false) => Finding::warning(
            format!("{}: as while an update is rolled out", shown.join("; ")),
            [remedy],
        ),
        (_, true) => Finding::failed(
            format!(
                "{}: more than one minor version apart, they hand nothing over to each other",
                shown.join("; ")
            ),
            [format!(
                "kubectl -n {} set image statefulset/manifold manifold=localhost/manifold:{}",
                facts.namespace(),
                facts.build
            )],
        ),
    }
}

pub(super) fn renewed(facts: &Facts) -> Finding {
    let Some(fleet) = facts.fleet() else {
        return Finding::Skipped(NO_FLEET.to_owned());
    };
    let silent: Vec<&Replica> = fleet
        .replicas
        .iter()
        .filter(|replica| replica.said.incarnation.is_some() && !replica.renewed)
        .collect();
    let not_ready: Vec<String> = fleet
        .live()
        .filter(|replica| !replica.said.status.ready)
        .map(|replica| replica.said.name.clone())
        .collect();
    if !silent.is_empty() {
        let names: Vec<String> = silent.iter().map(|one| one.said.name.clone()).collect();
        return Finding::failed(
            format!("not renewed for a whole lease duration: {}", some(&names)),
            names.iter().map(|name| restart(facts, Some(name))),
        );
    }
    if !not_ready.is_empty() {
        return Finding::warning(
            format!(
                "{} are not ready: their caches are not complete, `/readyz?verbose` of each names the resource",
                some(&not_ready)
            ),
            [rights::INSTALL],
        );
    }
    // A drained replica says the same as one that sees changes late.
    let (drained, stale): (Vec<&Replica>, Vec<&Replica>) = fleet
        .live()
        .filter(|replica| replica.said.status.stale)
        .partition(|replica| facts.is_drained(replica));
    let names = |replicas: &[&Replica]| -> Vec<String> {
        let names = replicas.iter().map(|one| one.said.name.clone());
        names.collect()
    };
    if !stale.is_empty() {
        let stale = names(&stale);
        let or_drained = match facts.orders {
            Ok(_) => "",
            Err(_) => ", or were drained (`kubectl manifold status`)",
        };
        return Finding::warning(
            format!(
                "{} see changes late and own nothing while others see more{or_drained}: `/readyz?verbose` of each names what is \
                 stuck; is there a balancer or proxy before the API server that keeps connections and passes nothing on?",
                some(&stale)
            ),
            stale.iter().map(|name| restart(facts, Some(name))),
        );
    }
    let members = format!("{} members", fleet.live().count());
    Finding::passed(match drained.is_empty() {
        true => members,
        false => format!("{members}, of them drained: {}", some(&names(&drained))),
    })
}

/// How many ranges the fleet has: what its members say.
fn wanted_ranges(fleet: &Fleet) -> BTreeSet<u16> {
    fleet
        .live()
        .map(|replica| replica.said.status.ranges)
        .collect()
}

pub(super) fn ranges(facts: &Facts) -> Finding {
    let Some(fleet) = facts.fleet().filter(|fleet| fleet.live().next().is_some()) else {
        return Finding::Skipped(NO_FLEET.to_owned());
    };
    let counts = wanted_ranges(fleet);
    let Some(count) = counts.iter().max().copied().filter(|_| counts.len() == 1) else {
        return Finding::failed(
            format!("the members were started with different --ranges: {counts:?}"),
            [
                "# give every replica the same --ranges, then:".to_owned(),
                restart(facts, None),
            ],
        );
    };
    let live: BTreeSet<_> = fleet.live().filter_map(|one| one.said.holder()).collect();
    let owned: BTreeSet<u16> = fleet
        .ranges
        .iter()
        .filter(|lease| {
            lease
                .holder
                .as_ref()
                .is_some_and(|holder| live.contains(holder))
        })
        .map(|lease| lease.range)
        .collect();
    let known: BTreeSet<u16> = fleet.ranges.iter().map(|lease| lease.range).collect();
    let missing: Vec<String> = (0..count)
        .filter(|range| !known.contains(range))
        .map(|range| range.to_string())
        .collect();
    let unowned: Vec<u16> = (0..count)
        .filter(|range| known.contains(range) && !owned.contains(range))
        .collect();
    if missing.is_empty() && unowned.is_empty() {
        return Finding::passed(format!("{count} ranges, {} members", live.len()));
    }
    let mut why = Vec::new();
    let mut remedy = Vec::new();
    if !missing.is_empty() {
        why.push(format!("without Lease: {}", some(&missing)));
        remedy.push(format!(
            "# their owners recreate them within seconds; if they do not: {}",
            restart(facts, None)
        ));
    }
    if !unowned.is_empty() {
        let names: Vec<String> = unowned.iter().map(u16::to_string).collect();
        why.push(format!("without live owner: {}", some(&names)));
        // Members recreate a Lease that is gone, after every one of them has said that it does not hold the
        // range.
        let leases: Vec<String> = unowned
            .iter()
            .map(|range| format!("{}-range-{range:03}", fleet.name))
            .collect();
        remedy.push(format!(
            "kubectl -n {} delete lease {}",
            fleet.namespace,
            leases.join(" ")
        ));
    }
    Finding::failed(format!("ranges {}", why.join("; ")), remedy)
}

pub(super) fn only_one(facts: &Facts) -> Finding {
    let fleets = match &facts.fleets {
        Ok(fleets) => fleets,
        Err(unknown) => return Finding::unknown(unknown),
    };
    let own = facts.fleet().map(|fleet| (&fleet.namespace, &fleet.name));
    let others: Vec<&Fleet> = fleets
        .iter()
        .filter(|fleet| Some((&fleet.namespace, &fleet.name)) != own && !fleet.is_shadow())
        .collect();
    let show = |fleet: &&Fleet| format!("{}/{}", fleet.namespace, fleet.name);
    let live: Vec<&Fleet> = others
        .iter()
        .copied()
        .filter(|fleet| fleet.live().next().is_some())
        .collect();
    if facts.asked.pre && own.is_some() {
        return Finding::warning(
            format!(
                "{}/{} is there already",
                facts.namespace(),
                own.map(|(_, name)| name.as_str()).unwrap_or_default()
            ),
            ["manifold doctor   # examines it"],
        );
    }
    if !live.is_empty() {
        let names: Vec<String> = live.iter().map(show).collect();
        let stop = live.iter().map(|fleet| {
            format!(
                "kubectl -n {} scale statefulset manifold --replicas=0",
                fleet.namespace
            )
        });
        return Finding::failed(
            format!("{} works on the same objects", some(&names)),
            stop.collect::<Vec<_>>(),
        );
    }
    if !others.is_empty() {
        let names: Vec<String> = others.iter().map(show).collect();
        let clear = others.iter().map(|fleet| {
            format!(
                "kubectl -n {} delete lease -l {}={}",
                fleet.namespace,
                coordinator::LABEL_FLEET,
                fleet.name
            )
        });
        return Finding::warning(
            format!(
                "Leases are left of {}, which has no live replica",
                some(&names)
            ),
            clear.collect::<Vec<_>>(),
        );
    }
    Finding::passed("")
}

pub(super) fn priority(facts: &Facts) -> Finding {
    match &facts.flow_schema {
        Ok(true) => Finding::passed(""),
        Ok(false) => Finding::warning(
            "the FlowSchema manifold-leases is missing: under load renewals wait behind the fleet's own writes",
            [rights::INSTALL],
        ),
        Err(unknown) => Finding::unknown(unknown),
    }
}

/// Whether the API server asks more of who writes the fleet's Leases than the right to write Leases.
pub(super) fn guard(facts: &Facts) -> Finding {
    const OPEN: &str = "anybody who may write Leases there may take ranges from their owners";
    let Some(fleet) = facts.fleet() else {
        return Finding::Skipped(NO_FLEET.to_owned());
    };
    let namespace = &fleet.namespace;
    let (policy, binding) = match (&facts.lease_guard.policy, &facts.lease_guard.binding) {
        (Ok(policy), Ok(binding)) => (policy, binding),
        (Err(unknown), _) | (_, Err(unknown)) => return Finding::unknown(unknown),
    };
    let Some(covered) = policy else {
        return Finding::warning(
            format!(
                "the ValidatingAdmissionPolicy manifold-guard is missing, for {namespace}: {OPEN}"
            ),
            [rights::INSTALL],
        );
    };
    let denies = |actions: &Vec<String>| actions.iter().any(|action| action == "Deny");
    if !binding.as_ref().is_some_and(denies) {
        return Finding::warning(
            format!(
                "no ValidatingAdmissionPolicyBinding manifold-guard denies anything in {namespace}: {OPEN}"
            ),
            [rights::INSTALL],
        );
    }
    match covered.holds_for(namespace) {
        true => Finding::passed(""),
        false => Finding::warning(
            format!(
                "the ValidatingAdmissionPolicy manifold-guard does not name {namespace}: {OPEN}"
            ),
            [
                format!(
                    "# first let the fleet's identities create, update and delete fleetleases.manifold.dev in {namespace}, \
                     as in deploy/rbac/fleet.yaml, then:"
                ),
                format!(
                    "kubectl patch validatingadmissionpolicy manifold-guard --type=json -p '[{{\"op\":\"add\",\"path\":\
                     \"/spec/matchConstraints/namespaceSelector/matchExpressions/0/values/-\",\"value\":\"{namespace}\"}}]'"
                ),
            ],
        ),
    }
}

/// Whether the fleet itself may write its Leases past that.
pub(super) fn guard_rights(facts: &Facts) -> Finding {
    let Some(fleet) = facts.fleet() else {
        return Finding::Skipped(NO_FLEET.to_owned());
    };
    let policy = match &facts.lease_guard.policy {
        Ok(policy) => policy.as_ref(),
        Err(unknown) => return Finding::unknown(unknown),
    };
    match policy.is_some_and(|policy| policy.holds_for(&fleet.namespace)) {
        true => rights::of(facts, |right| right.source == Source::Guard),
        false => Finding::Skipped("no policy asks for them".to_owned()),
    }
}

pub(super) fn peers(facts: &Facts) -> Finding {
    let Some(fleet) = facts.fleet() else {
        return Finding::Skipped(NO_FLEET.to_owned());
    };
    let live: BTreeSet<&str> = fleet.live().map(|one| one.said.name.as_str()).collect();
    let mut pairs = Vec::new();
    let mut silent = BTreeSet::new();
    for replica in fleet.live() {
        let unreachable = replica.said.status.unreachable.split(',');
        let unreachable: Vec<&str> = unreachable.filter(|name| live.contains(name)).collect();
        if !unreachable.is_empty() {
            pairs.push(format!(
                "{} does not reach {}",
                replica.said.name,
                unreachable.join(", ")
            ));
            silent.extend(unreachable);
        }
    }
    match (live.len(), pairs.is_empty()) {
        (0, _) => Finding::Skipped(NO_FLEET.to_owned()),
        (1, _) => Finding::Skipped("there is one member".to_owned()),
        (count, true) => Finding::passed(format!("{} pairs", count * (count - 1))),
        (_, false) => Finding::failed(
            format!("{}: ranges move between them as after a crash", some(&pairs)),
            ["kubectl apply -k deploy/base   # its NetworkPolicy opens the peer port between replicas".to_owned()]
                .into_iter()
                .chain(silent.into_iter().map(|name| restart(facts, Some(name)))),
        ),
    }
}

pub(super) fn addresses(facts: &Facts) -> Finding {
    let Some(fleet) = facts.fleet() else {
        return Finding::Skipped(NO_FLEET.to_owned());
    };
    let mut by_address: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for replica in fleet.live() {
        by_address
            .entry(&replica.said.status.address)
            .or_default()
            .push(&replica.said.name);
    }
    let shared: Vec<String> = by_address
        .iter()
        .filter(|(_, members)| members.len() > 1)
        .map(|(address, members)| format!("{} all advertise {address}", members.join(" and ")))
        .collect();
    match (by_address.is_empty(), shared.is_empty()) {
        (true, _) => Finding::Skipped(NO_FLEET.to_owned()),
        (_, true) => Finding::passed(""),
        (_, false) => Finding::failed(
            some(&shared),
            [
                "# give each replica its own --peer-advertise-address, in a pod $(POD_IP)"
                    .to_owned(),
                restart(facts, None),
            ],
        ),
    }
}

pub(super) fn clocks(facts: &Facts) -> Finding {
    let Some(fleet) = facts.fleet() else {
        return Finding::Skipped(NO_FLEET.to_owned());
    };
    let valid = |replica: &Replica| -> Option<(String, i64)> {
        let (renewed, read) = replica.clocks?;
        let ahead = renewed.duration_since(read).as_secs();
        Some((replica.said.name.clone(), ahead))
    };
    // A renewal may be as old as a retry period and the pause between two reads: the bound has room for it.
    let off: Vec<String> = fleet
        .live()
        .filter_map(valid)
        .filter(|(_, ahead)| ahead.abs() > 2 * CLOCK_SECONDS_MAX)
        .map(|(name, ahead)| {
            let side = if ahead < 0 { "behind" } else { "ahead" };
            format!("{name} {} s {side}", ahead.abs())
        })
        .collect();
    match off.is_empty() {
        true => Finding::passed(""),
        false => Finding::warning(
            format!(
                "{}: ownership does not depend on it, but timestamps in statuses and events, and when CronJobs start",
                some(&off)
            ),
            ["sudo chronyc makestep   # on the host of each"],
        ),
    }
}
