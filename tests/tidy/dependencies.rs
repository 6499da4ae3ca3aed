//! Who may depend on whom.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, Metadata};

const PURE: &[&str] = &[
    "tokio",
    "kube",
    "kube-client",
    "kube-core",
    "tonic",
    "actix",
];
const GROUP: &[&str] = &[
    "tokio",
    "kube",
    "kube-client",
    "kube-core",
    "k8s-openapi",
    "tonic",
    "actix",
];

/// What one crate may use.
struct Row {
    name: &'static str,
    /// Of our own crates, directly and for whatever purpose; `None` is any.
    ours: Option<&'static [&'static str]>,
    /// Of others, directly in what is shipped; `None` is any.
    only: Option<&'static [&'static str]>,
    /// Nowhere below it in what is shipped.
    never: &'static [&'static str],
}

const TABLE: &[Row] = &[
    Row {
        name: "kubernetes-proto",
        ours: Some(&[]),
        // serde: a plan's patches are the JSON difference of two projections.
        // base64: the API's JSON has bytes so.
        only: Some(&["base64", "prost", "serde", "serde_json", "jiff"]),
        never: GROUP,
    },
    Row {
        name: "cloud-proto",
        ours: Some(&[]),
        only: Some(&["prost", "tonic", "tonic-prost"]),
        never: &["kube", "k8s-openapi", "actix"],
    },
    // Providers in Rust may take it as an example: it needs nothing of ours but the protocol.
    Row {
        name: "cloud-provider",
        ours: Some(&["cloud-proto"]),
        only: None,
        never: &["kube", "k8s-openapi", "actix"],
    },
    Row {
        name: "peer-proto",
        ours: Some(&[]),
        only: Some(&["prost", "tonic", "tonic-prost"]),
        never: &["kube", "k8s-openapi", "actix"],
    },
    Row {
        name: "coordinator-core",
        ours: Some(&[]),
        only: None,
        never: PURE,
    },
    Row {
        name: "controllers-kit",
        ours: Some(&["kubernetes-proto"]),
        only: None,
        never: GROUP,
    },
    Row {
        name: "reload",
        ours: Some(&[]),
        only: Some(&["arc-swap", "thiserror", "tokio", "tracing"]),
        never: &["kube", "k8s-openapi", "tonic", "actix"],
    },
    Row {
        name: "coordinator",
        ours: Some(&["coordinator-core", "peer-proto", "reload"]),
        only: None,
        never: &[],
    },
    Row {
        name: "node-cache",
        ours: Some(&["controllers-kit", "kubernetes-proto", "reload"]),
        only: None,
        never: &["coordinator", "coordinator-core", "peer-proto"],
    },
    // The subcommands: they know Leases, orders and descriptors, nothing of a running node.
    Row {
        name: "doctor",
        ours: Some(&["controllers-kit", "coordinator", "steering"]),
        only: None,
        never: &["node-cache", "harness"],
    },
    Row {
        name: "audit-log",
        ours: Some(&[]),
        only: Some(&["anyhow", "jiff", "serde", "serde_json"]),
        never: GROUP,
    },
    // What replicas say of their inside: shared with the plugin, so it knows nothing of either.
    Row {
        name: "inspect",
        ours: Some(&[]),
        only: Some(&["serde", "serde_json"]),
        never: GROUP,
    },
    // What a shadow makes of plans and changes: the time is an argument.
    Row {
        name: "shadow",
        ours: Some(&["controllers-kit", "inspect", "kubernetes-proto"]),
        only: Some(&["serde_json"]),
        never: GROUP,
    },
    // The form of operators' orders: shared with the plugin and the examination, too.
    Row {
        name: "steering",
        ours: Some(&[]),
        only: Some(&[
            "jiff",
            "serde",
            "serde_json",
            "strsim",
            "thiserror",
            "xxhash-rust",
        ]),
        never: GROUP,
    },
    // What the build has and how it is set: nothing of a running node.
    Row {
        name: "node-registry",
        ours: Some(&[
            "controllers-apiserver",
            "controllers-apps",
            "controllers-autoscaling",
            "controllers-batch",
            "controllers-cleanup",
            "controllers-clouds",
            "controllers-devices",
            "controllers-identity",
            "controllers-kit",
            "controllers-networking",
            "controllers-nodes",
            "controllers-storage",
        ]),
        only: Some(&[]),
        never: GROUP,
    },
    Row {
        name: "node-options",
        ours: Some(&[
            "controllers-clouds",
            "controllers-kit",
            "coordinator",
            "doctor",
            "node-registry",
            "reload",
        ]),
        only: None,
        never: &["node-cache", "node-registry", "harness"],
    },
    // What a process says of itself: counted and recorded by others.
    Row {
        name: "node-telemetry",
        ours: Some(&[
            "controllers-kit",
            "coordinator",
            "kubernetes-proto",
            "node-cache",
            "node-options",
            "node-registry",
            "shadow",
        ]),
        only: None,
        never: &["node-registry", "harness"],
    },
    // The way to the API server; nothing of what is asked on it.
    Row {
        name: "node-connection",
        ours: Some(&["node-cache", "node-telemetry", "reload"]),
        only: None,
        never: &["node-registry", "harness"],
    },
    // HTTP never touches a queue, a range or a write.
    Row {
        name: "node-serving",
        ours: Some(&[
            "controllers-kit",
            "coordinator",
            "kubernetes-proto",
            "node-cache",
            "node-connection",
            "node-options",
            "node-registry",
            "node-telemetry",
            "reload",
        ]),
        only: None,
        never: &["node-registry", "harness"],
    },
    Row {
        name: "kubectl-manifold",
        ours: Some(&[
            "audit-log",
            "controllers-kit",
            "doctor",
            "inspect",
            "node",
            "node-registry",
            "steering",
        ]),
        only: None,
        never: &["harness", "tests", "bench"],
    },
    Row {
        name: "node",
        ours: None,
        only: None,
        never: &["harness", "tests", "bench"],
    },
    Row {
        name: "harness",
        ours: Some(&["audit-log"]),
        only: None,
        never: &[],
    },
    Row {
        name: "simulation",
        ours: None,
        only: None,
        never: &["tests", "bench"],
    },
    Row {
        name: "tests",
        ours: None,
        only: None,
        never: &[],
    },
    Row {
        name: "bench",
        ours: None,
        only: None,
        never: &["tests"],
    },
];

/// Every controller group: its name begins so, and it lies in `controllers/`.
const GROUP_PREFIX: &str = "controllers-";
const GROUP_ROW: Row = Row {
    name: "controllers-*",
    ours: Some(&["controllers-kit", "kubernetes-proto"]),
    only: None,
    never: GROUP,
};

/// What cargo knows of the dependencies.
#[derive(Default)]
pub(crate) struct Crates {
    /// Our crates, and what each names itself: for what is shipped, and for all purposes.
    members: BTreeMap<String, (BTreeSet<String>, BTreeSet<String>)>,
    /// All crates, and what each needs in what is shipped.
    shipped: BTreeMap<String, BTreeSet<String>>,
}

impl Crates {
    pub(crate) fn read(metadata: &Metadata) -> Self {
        let name_of = |id: &cargo_metadata::PackageId| metadata[id].name.to_string();
        let mut crates = Self::default();
        for package in metadata.workspace_packages() {
            let direct = |shipped: bool| -> BTreeSet<String> {
                package
                    .dependencies
                    .iter()
                    .filter(|dependency| !shipped || dependency.kind == DependencyKind::Normal)
                    .map(|dependency| dependency.name.clone())
                    .collect()
            };
            crates
                .members
                .insert(package.name.to_string(), (direct(true), direct(false)));
        }
        for node in metadata.resolve.iter().flat_map(|resolve| &resolve.nodes) {
            let needed = node
                .deps
                .iter()
                .filter(|dep| {
                    dep.dep_kinds
                        .iter()
                        .any(|info| info.kind == DependencyKind::Normal)
                })
                .map(|dep| name_of(&dep.pkg));
            // Two versions of one crate are one name here: what either needs counts.
            crates
                .shipped
                .entry(name_of(&node.id))
                .or_default()
                .extend(needed);
        }
        crates
    }

    /// The way from a crate down to a forbidden one.
    fn way(&self, from: &str, to: &str) -> Option<Vec<String>> {
        let mut ways = vec![vec![from.to_owned()]];
        let mut seen = BTreeSet::new();
        while let Some(way) = ways.pop() {
            let last = way.last()?.clone();
            if last == to && way.len() > 1 {
                return Some(way);
            }
            for next in self.shipped.get(&last).into_iter().flatten() {
                if seen.insert(next.clone()) {
                    ways.push(way.iter().cloned().chain([next.clone()]).collect());
                }
            }
        }
        None
    }
}

pub(crate) fn complaints(crates: &Crates) -> Vec<String> {
    let mut complaints = Vec::new();
    for (name, (shipped, all)) in &crates.members {
        let row = TABLE
            .iter()
            .find(|row| row.name == name)
            .or_else(|| name.starts_with(GROUP_PREFIX).then_some(&GROUP_ROW));
        let Some(row) = row else {
            complaints.push(format!(
                "{name}: is in no row of tests/tidy/dependencies.rs"
            ));
            continue;
        };
        for dependency in all
            .iter()
            .filter(|dependency| crates.members.contains_key(*dependency))
        {
            if row
                .ours
                .is_some_and(|allowed| !allowed.contains(&dependency.as_str()))
            {
                complaints.push(format!("{name}: may not depend on {dependency}"));
            }
        }
        for dependency in shipped
            .iter()
            .filter(|dependency| !crates.members.contains_key(*dependency))
        {
            if row
                .only
                .is_some_and(|allowed| !allowed.contains(&dependency.as_str()))
            {
                complaints.push(format!(
                    "{name}: may use {} alone, not {dependency}",
                    row.only.unwrap_or_default().join(", ")
                ));
            }
        }
        for forbidden in row.never {
            if let Some(way) = crates.way(name, forbidden) {
                complaints.push(format!(
                    "{name}: must never need {forbidden} ({})",
                    way.join(" -> ")
                ));
            }
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crates(members: &[(&str, &[&str])], others: &[(&str, &[&str])]) -> Crates {
        let set = |names: &[&str]| {
            names
                .iter()
                .map(|name| (*name).to_owned())
                .collect::<BTreeSet<_>>()
        };
        Crates {
            members: members
                .iter()
                .map(|(name, needs)| ((*name).to_owned(), (set(needs), set(needs))))
                .collect(),
            shipped: members
                .iter()
                .chain(others)
                .map(|(name, needs)| ((*name).to_owned(), set(needs)))
                .collect(),
        }
    }

    #[test]
    fn what_the_table_allows_passes() {
        let tree = crates(
            &[
                ("kubernetes-proto", &["prost", "jiff"]),
                ("controllers-kit", &["kubernetes-proto", "bytes"]),
                ("controllers-apps", &["controllers-kit", "kubernetes-proto"]),
                ("node", &["controllers-apps", "tokio"]),
            ],
            &[("bytes", &[]), ("tokio", &["bytes"])],
        );
        assert_eq!(complaints(&tree), Vec::<String>::new());
    }

    #[test]
    fn each_kind_of_breach_is_named() {
        let tree = crates(
            &[
                ("kubernetes-proto", &["prost", "anyhow"]),
                ("controllers-kit", &["helpful"]),
                ("controllers-apps", &["controllers-batch"]),
                ("controllers-batch", &["k8s-openapi"]),
                ("coordinator", &["controllers-apps"]),
                ("newcomer", &[]),
            ],
            &[("helpful", &["deep"]), ("deep", &["tokio"])],
        );
        let found = complaints(&tree);
        for expected in [
            "kubernetes-proto: may use base64, prost, serde, serde_json, jiff alone, not anyhow",
            "controllers-kit: must never need tokio (controllers-kit -> helpful -> deep -> tokio)",
            "controllers-apps: may not depend on controllers-batch",
            "controllers-batch: must never need k8s-openapi (controllers-batch -> k8s-openapi)",
            "coordinator: may not depend on controllers-apps",
            "newcomer: is in no row of tests/tidy/dependencies.rs",
        ] {
            assert!(
                found.iter().any(|line| line == expected),
                "{expected}\nnot in {found:#?}"
            );
        }
    }
}
