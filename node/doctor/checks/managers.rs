//! Manifold and kube-controller-manager: that one of them writes, or that each has controllers of its own.

use std::collections::BTreeSet;

use controllers_kit::selection::{Selection, is_in_star, with_star};

use super::{Finding, fleet::restart, rights, some};
use crate::facts::{
    Facts, Fleet, GUARD, GUARD_COMPANION, GUARD_HOLDER, GUARD_NAMESPACE, ManagerPod,
};

/// Controllers that kube-controller-manager has the names of and never runs: a cloud controller manager does.
pub(crate) const CLOUD: &[&str] = &[
    "cloud-node-lifecycle-controller",
    "node-route-controller",
    "service-lb-controller",
];
/// Runs where a manager has the key, whatever its `--controllers` says.
pub(crate) const TOKENS: &str = "serviceaccount-token-controller";
/// The flag with that key.
const TOKENS_FLAG: &str = "service-account-private-key-file";

fn holder_of(fleet: &Fleet) -> String {
    format!("{GUARD_HOLDER}{}/{}", fleet.namespace, fleet.name)
}

/// Stops a kube-controller-manager.
const STOP_KCM: &str = "# on its host: mv /etc/kubernetes/manifests/kube-controller-manager.yaml /etc/kubernetes/   (or run both: manifold companion --help)";

pub(super) fn guard(facts: &Facts) -> Finding {
    let name = match facts.is_companion() {
        true => GUARD_COMPANION,
        false => GUARD,
    };
    let lease = match facts.guards.get(name) {
        Some(Ok(lease)) => lease.as_ref(),
        Some(Err(unknown)) => return Finding::unknown(unknown),
        None => None,
    };
    let held = lease.filter(|lease| lease.fresh && !lease.holder.is_empty());
    if facts.asked.pre {
        return match held {
            None => Finding::passed(format!("nobody holds the Lease {GUARD_NAMESPACE}/{name}")),
            Some(lease) => Finding::passed(format!(
                "{} holds the Lease {GUARD_NAMESPACE}/{name}: a fleet waits until it ends, or works beside it \
                 (manifold companion)",
                lease.holder
            )),
        };
    }
    let Some(fleet) = facts.fleet().filter(|fleet| fleet.live().next().is_some()) else {
        return Finding::Skipped("there is no fleet".to_owned());
    };
    if fleet.is_shadow() {
        return match held {
            Some(lease) => Finding::passed(format!(
                "the fleet is a shadow of {}, which holds {GUARD_NAMESPACE}/{name}",
                lease.holder
            )),
            None => Finding::warning(
                format!(
                    "the fleet is a shadow, and nobody holds the Lease {GUARD_NAMESPACE}/{name}: it compares nothing"
                ),
                ["# start the manager that is to be compared with"],
            ),
        };
    }
    let own = holder_of(fleet);
    match held {
        Some(lease) if lease.holder == own => {
            Finding::passed(format!("{own} holds {GUARD_NAMESPACE}/{name}"))
        }
        Some(lease) if lease.holder.starts_with(GUARD_HOLDER) => Finding::failed(
            format!(
                "another fleet, {}, holds the Lease {GUARD_NAMESPACE}/{name}: {own} does not write",
                lease.holder
            ),
            [format!(
                "kubectl -n {} scale statefulset manifold --replicas=0   # stops the other one, or stop this one",
                lease.holder[GUARD_HOLDER.len()..]
                    .split('/')
                    .next()
                    .unwrap_or_default()
            )],
        ),
        Some(lease) => Finding::failed(
            format!(
                "{} holds the Lease {GUARD_NAMESPACE}/{name} and renews it: a second manager is at work",
                lease.holder
            ),
            [STOP_KCM],
        ),
        None => not_held(facts, name),
    }
}

/// The fleet lives, and the Lease by which managers know of each other is nobody's. It is meant so where its
/// pods say so.
fn not_held(facts: &Facts, name: &str) -> Finding {
    let start = "# start every replica without --leader-elect=false, then:".to_owned();
    let all_say = |wanted: &dyn Fn(&ManagerPod) -> bool| {
        facts.own_pods().next().is_some() && facts.own_pods().all(wanted)
    };
    let lock = |pod: &ManagerPod| {
        let given = |flag, default: &str| pod.flag(flag).unwrap_or(default).to_owned();
        let namespace = given("leader-elect-resource-namespace", GUARD_NAMESPACE);
        format!("{namespace}/{}", given("leader-elect-resource-name", GUARD))
    };
    let expected = format!("{GUARD_NAMESPACE}/{name}");
    if all_say(&|pod| pod.flag("leader-elect") == Some("false")) {
        return Finding::warning(
            format!(
                "nobody holds the Lease {expected}, as --leader-elect=false has it: a kube-controller-manager that is \
                 started would write beside the fleet"
            ),
            [start, restart(facts, None)],
        );
    }
    if all_say(&|pod| lock(pod) != expected) {
        let locks: BTreeSet<String> = facts.own_pods().map(lock).collect();
        return Finding::warning(
            format!(
                "the fleet holds {} and nobody {expected}: nothing keeps its controllers and those of a \
                 kube-controller-manager apart but their lists",
                some(&locks.into_iter().collect::<Vec<_>>())
            ),
            ["manifold companion --help   # both lists from one"],
        );
    }
    let in_file =
        |pod: &&ManagerPod| pod.flag("config").is_some() && pod.flag("leader-elect").is_none();
    if let Some(pod) = facts.own_pods().find(in_file) {
        return Finding::warning(
            format!(
                "nobody holds the Lease {expected}, or renews it. Whether it is meant so can't be seen: {}/{} has its \
                 settings from a file (--config). Where Generic.LeaderElection.leaderElect is true there, the fleet \
                 writes nothing until it holds the Lease (check leaderElection of `/readyz?verbose` has the reason)",
                pod.namespace, pod.name
            ),
            [
                "# compare with what runs: kubectl manifold dump has each replica's /configz"
                    .to_owned(),
                restart(facts, None),
            ],
        );
    }
    Finding::failed(
        format!(
            "nobody holds the Lease {expected}, or renews it: the fleet writes nothing until it does (check \
             leaderElection of `/readyz?verbose` has the reason), or runs with --leader-elect=false, and a \
             kube-controller-manager that is started would write beside it"
        ),
        [rights::INSTALL.to_owned(), start, restart(facts, None)],
    )
}

pub(super) fn standbys(facts: &Facts) -> Finding {
    if let Err(unknown) = &facts.pods {
        return Finding::unknown(unknown);
    }
    if facts.is_companion() {
        return Finding::Skipped("kube-controller-manager works beside the fleet".to_owned());
    }
    let pods: Vec<String> = facts
        .kcm_pods()
        .map(|pod| format!("{}/{}", pod.namespace, pod.name))
        .collect();
    match pods.is_empty() {
        true => Finding::passed(""),
        false => Finding::warning(
            format!("{} would take over when the fleet ends", some(&pods)),
            [STOP_KCM],
        ),
    }
}

pub(super) fn agree(facts: &Facts) -> Finding {
    let Some(fleet) = facts.fleet() else {
        return Finding::Skipped("there is no fleet".to_owned());
    };
    let lists = fleet.selections();
    match lists.len() {
        0 => Finding::Skipped("no member publishes its controllers".to_owned()),
        1 => Finding::passed(lists.keys().copied().collect::<String>().replace(' ', ",")),
        _ => {
            let shown: Vec<String> = lists
                .iter()
                .map(|(list, members)| {
                    format!("{} at {}", list.replace(' ', ","), members.join(", "))
                })
                .collect();
            Finding::failed(
                format!(
                    "the members have different --controllers: {}; what only some run is missing for the keys of the \
                     others' ranges",
                    shown.join("; ")
                ),
                [
                    "# give every replica the same --controllers, then:".to_owned(),
                    restart(facts, None),
                ],
            )
        }
    }
}

/// What the fleet runs: what all of its members select.
fn of_fleet(facts: &Facts) -> Option<BTreeSet<&'static str>> {
    let fleet = facts.fleet()?;
    let mut sets = fleet.selections().into_keys().filter_map(|list| {
        // A name that this program does not know is a newer build's.
        let known = |name: &str| {
            controllers_kit::selection::canonical(name.trim_start_matches('-'), &facts.descriptors)
                .is_some()
        };
        let entries = list
            .split(' ')
            .filter(|entry| *entry == "*" || known(entry));
        Some(
            Selection::of(entries, &facts.descriptors)
                .ok()?
                .names(&facts.descriptors),
        )
    });
    let first = sets.next()?;
    Some(sets.fold(first, |all, next| {
        all.intersection(&next).copied().collect()
    }))
}

/// What kube-controller-manager runs.
enum Kcm {
    /// It does not run.
    Absent,
    /// It runs, and these.
    Runs(BTreeSet<&'static str>),
    /// It runs, and what is not known.
    Unknown(String),
}

/// The controllers that a kube-controller-manager's `--controllers` selects.
fn selected(facts: &Facts, list: &[&str], has_key: bool) -> Result<BTreeSet<&'static str>, String> {
    let selection = Selection::of(list.iter().copied(), &facts.descriptors).map_err(|unknown| {
        format!(
            "its --controllers names {}, which this build does not know",
            unknown.join(", ")
        )
    })?;
    let mut names = selection.names(&facts.descriptors);
    names.remove(TOKENS);
    if has_key {
        names.insert(TOKENS);
    }
    names.retain(|name| !CLOUD.contains(name));
    Ok(names)
}

fn of_pod(facts: &Facts, pod: &ManagerPod) -> Result<BTreeSet<&'static str>, String> {
    let list: Vec<&str> = pod.flag("controllers").unwrap_or("*").split(',').collect();
    let has_key = pod.flag(TOKENS_FLAG).is_some_and(|path| !path.is_empty());
    selected(facts, &list, has_key)
}

fn of_kcm(facts: &Facts) -> Kcm {
    let guard = facts.guard(GUARD);
    let works = guard.is_some_and(|guard| {
        guard.fresh && !guard.holder.starts_with(GUARD_HOLDER) && !guard.holder.is_empty()
    });
    if let Some(list) = &facts.asked.kcm_controllers {
        let list: Vec<&str> = list.iter().map(String::as_str).collect();
        // Its key is not known here: what the list names counts.
        let has_key = list.contains(&TOKENS) || list.contains(&"serviceaccount-token");
        return match selected(facts, &list, has_key) {
            Ok(names) => Kcm::Runs(names),
            Err(why) => Kcm::Unknown(why),
        };
    }
    if !works {
        return Kcm::Absent;
    }
    let holder = guard.map(|guard| guard.holder.as_str()).unwrap_or_default();
    // Its identity is its host's name, `_` and a random part.
    let host = holder.rsplit_once('_').map_or(holder, |(host, _)| host);
    let active = facts
        .kcm_pods()
        .find(|pod| pod.node == host || pod.name == host)
        .or_else(|| facts.kcm_pods().next());
    match active.map(|pod| of_pod(facts, pod)) {
        Some(Ok(names)) => Kcm::Runs(names),
        Some(Err(why)) => Kcm::Unknown(why),
        None => Kcm::Unknown(format!(
            "{holder} is at work and no pod of it is to be seen: give --kcm-controllers with its --controllers"
        )),
    }
}

/// The command that prints the division for what the fleet runs now.
fn companion(facts: &Facts, fleet: &BTreeSet<&'static str>) -> String {
    let list = controllers_kit::selection::shortest(fleet, &facts.descriptors);
    format!("manifold companion --controllers='{}'", list.join(","))
}

pub(super) fn complete(facts: &Facts) -> Finding {
    let Some(fleet) = of_fleet(facts) else {
        return Finding::Skipped("no member publishes its controllers".to_owned());
    };
    let kcm = match of_kcm(facts) {
        Kcm::Absent => BTreeSet::new(),
        Kcm::Runs(names) => names,
        Kcm::Unknown(why) => {
            return Finding::warning(
                format!("not known: {why}"),
                ["manifold doctor --kcm-controllers=LIST"],
            );
        }
    };
    let missing: Vec<String> = facts
        .descriptors
        .iter()
        .filter(|one| is_in_star(one) || one.name == TOKENS)
        .map(|one| one.name)
        .filter(|name| !CLOUD.contains(name) && !fleet.contains(name) && !kcm.contains(name))
        .map(str::to_owned)
        .collect();
    if missing.is_empty() {
        return Finding::passed(format!(
            "{} in the fleet, {} in kube-controller-manager",
            fleet.len(),
            kcm.len()
        ));
    }
    let only_tokens = missing == [TOKENS];
    let why = format!("no manager runs {}", some(&missing));
    if only_tokens {
        return Finding::warning(
            format!(
                "{why}: it runs where --{TOKENS_FLAG} is given; without it Secrets of service accounts get no tokens"
            ),
            [format!(
                "# give --{TOKENS_FLAG} to every replica, or to kube-controller-manager"
            )],
        );
    }
    let remedy = match facts.is_companion() || !kcm.is_empty() {
        true => vec![
            "# give kube-controller-manager the flag that this prints:".to_owned(),
            companion(facts, &fleet),
        ],
        false => {
            let mut all = fleet.clone();
            all.extend(
                facts
                    .descriptors
                    .iter()
                    .filter(|one| is_in_star(one))
                    .map(|one| one.name),
            );
            all.remove(TOKENS);
            vec![format!(
                "# give every replica --controllers={}",
                with_star(&all, &facts.descriptors).join(",")
            )]
        }
    };
    match facts.is_companion() || !kcm.is_empty() {
        true => Finding::failed(why, remedy),
        // Somebody may have switched them off on purpose.
        false => Finding::warning(why, remedy),
    }
}

pub(super) fn disjoint(facts: &Facts) -> Finding {
    let Some(fleet) = of_fleet(facts) else {
        return Finding::Skipped("no member publishes its controllers".to_owned());
    };
    let kcm = match of_kcm(facts) {
        Kcm::Absent => return Finding::passed("kube-controller-manager is not at work"),
        Kcm::Runs(names) => names,
        Kcm::Unknown(why) => {
            return Finding::warning(
                format!("not known: {why}"),
                ["manifold doctor --kcm-controllers=LIST"],
            );
        }
    };
    let both: Vec<String> = fleet
        .intersection(&kcm)
        .map(|name| (*name).to_owned())
        .collect();
    match both.is_empty() {
        true => Finding::passed(""),
        false => Finding::failed(
            format!(
                "both the fleet and kube-controller-manager run {}: two writers",
                some(&both)
            ),
            [
                "# give kube-controller-manager the flag that this prints:".to_owned(),
                companion(facts, &fleet),
            ],
        ),
    }
}
