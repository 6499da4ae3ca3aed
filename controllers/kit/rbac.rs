//! The ClusterRoles of `deploy/rbac/controllers.yaml`, generated from the controllers' descriptors.
//!
//! Every cluster has upstream's role for each controller, bound to the controller's service account. Ours
//! add what upstream's controllers do not need: mostly `patch` where they `update`. Read verbs are left out
//! where the manager's own identity reads, which may list and watch everything.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use crate::{Factory, Rule};

/// The grants of upstream's role for a service account, without lists and watches: group, resource, verbs.
/// From Kubernetes 1.36; a role that gains verbs makes ours needlessly wide, never too narrow.
type Granted = &'static [(&'static str, &'static str, &'static [&'static str])];

/// By service account, for the controllers that are built.
const UPSTREAM: &[(&str, Granted)] = &[
    (
        "deployment-controller",
        &[
            ("apps", "deployments", &["get", "update"]),
            ("apps", "deployments/status", &["update"]),
            ("apps", "deployments/finalizers", &["update"]),
            (
                "apps",
                "replicasets",
                &["get", "create", "update", "patch", "delete"],
            ),
            ("", "pods", &["get", "update"]),
        ],
    ),
    (
        "replicaset-controller",
        &[
            ("apps", "replicasets", &["get", "update"]),
            ("apps", "replicasets/status", &["update"]),
            ("apps", "replicasets/finalizers", &["update"]),
            ("", "pods", &["patch", "create", "delete"]),
        ],
    ),
    (
        "statefulset-controller",
        &[
            ("apps", "statefulsets", &["get"]),
            ("apps", "statefulsets/status", &["update"]),
            ("apps", "statefulsets/finalizers", &["update"]),
            ("", "pods", &["get", "create", "delete", "update", "patch"]),
            ("", "pods/finalizers", &["update"]),
            (
                "",
                "persistentvolumeclaims",
                &["get", "create", "update", "delete"],
            ),
            (
                "apps",
                "controllerrevisions",
                &["get", "create", "delete", "update", "patch"],
            ),
        ],
    ),
    (
        "daemon-set-controller",
        &[
            ("apps", "daemonsets", &["get"]),
            ("apps", "daemonsets/status", &["update"]),
            ("apps", "daemonsets/finalizers", &["update"]),
            ("", "pods", &["create", "delete", "patch"]),
            (
                "apps",
                "controllerrevisions",
                &["get", "create", "delete", "update", "patch"],
            ),
        ],
    ),
    (
        "replication-controller",
        &[
            ("", "replicationcontrollers", &["get", "update"]),
            ("", "replicationcontrollers/status", &["update"]),
            ("", "replicationcontrollers/finalizers", &["update"]),
            ("", "pods", &["patch", "create", "delete"]),
        ],
    ),
    ("route-controller", &[("", "nodes/status", &["patch"])]),
    (
        "service-account-controller",
        &[("", "serviceaccounts", &["create"])],
    ),
    (
        "service-controller",
        &[
            ("", "services", &["get"]),
            ("", "services/status", &["patch", "update"]),
        ],
    ),
    (
        "ttl-after-finished-controller",
        &[("batch", "jobs", &["get", "delete"])],
    ),
    (
        "pod-garbage-collector",
        &[
            ("", "pods", &["delete"]),
            ("", "pods/status", &["patch"]),
            ("", "nodes", &["get"]),
        ],
    ),
    (
        "generic-garbage-collector",
        &[("*", "*", &["get", "patch", "update", "delete"])],
    ),
    (
        "namespace-controller",
        &[
            ("", "namespaces", &["get", "delete"]),
            ("", "namespaces/finalize", &["update"]),
            ("", "namespaces/status", &["update"]),
            ("*", "*", &["get", "delete", "deletecollection"]),
        ],
    ),
    (
        "disruption-controller",
        &[
            ("apps", "deployments", &["get"]),
            ("apps", "replicasets", &["get"]),
            ("apps", "statefulsets", &["get"]),
            ("", "replicationcontrollers", &["get"]),
            ("policy", "poddisruptionbudgets", &["get"]),
            ("policy", "poddisruptionbudgets/status", &["update"]),
            ("", "pods/status", &["patch", "update"]),
            ("*", "*/scale", &["get"]),
        ],
    ),
    (
        "horizontal-pod-autoscaler",
        &[
            ("autoscaling", "horizontalpodautoscalers", &["get"]),
            (
                "autoscaling",
                "horizontalpodautoscalers/status",
                &["update"],
            ),
            ("*", "*/scale", &["get", "update"]),
            ("custom.metrics.k8s.io", "*", &["get"]),
            ("external.metrics.k8s.io", "*", &["get"]),
        ],
    ),
    (
        "node-controller",
        &[
            ("", "nodes", &["get", "update", "delete", "patch"]),
            ("", "nodes/status", &["patch", "update"]),
            ("", "pods/status", &["patch", "update"]),
            ("", "pods", &["get", "delete"]),
        ],
    ),
    (
        "service-cidrs-controller",
        &[
            (
                "networking.k8s.io",
                "servicecidrs",
                &["get", "patch", "update"],
            ),
            (
                "networking.k8s.io",
                "servicecidrs/finalizers",
                &["patch", "update"],
            ),
            (
                "networking.k8s.io",
                "servicecidrs/status",
                &["patch", "update"],
            ),
            ("networking.k8s.io", "ipaddresses", &["get"]),
        ],
    ),
    ("ttl-controller", &[("", "nodes", &["update", "patch"])]),
    // Those of DeviceTaintRules and of pool status requests where the API server has their gates on.
    (
        "device-taint-eviction-controller",
        &[
            ("", "pods", &["get", "delete"]),
            ("", "pods/status", &["update", "patch"]),
            ("resource.k8s.io", "resourceclaims", &["get"]),
            ("resource.k8s.io", "resourceslices", &["get"]),
            ("resource.k8s.io", "deviceclasses", &["get"]),
            ("resource.k8s.io", "devicetaintrules", &["get"]),
            (
                "resource.k8s.io",
                "devicetaintrules/status",
                &["update", "patch"],
            ),
        ],
    ),
    (
        "resourcepoolstatusrequest-controller",
        &[
            (
                "resource.k8s.io",
                "resourcepoolstatusrequests",
                &["get", "delete"],
            ),
            (
                "resource.k8s.io",
                "resourcepoolstatusrequests/status",
                &["update", "patch"],
            ),
            ("resource.k8s.io", "resourceslices", &["get"]),
            ("resource.k8s.io", "resourceclaims", &["get"]),
        ],
    ),
    (
        "ephemeral-volume-controller",
        &[
            ("", "pods", &["get"]),
            ("", "pods/finalizers", &["update"]),
            ("", "persistentvolumeclaims", &["get", "create"]),
        ],
    ),
    (
        "expand-controller",
        &[
            ("", "persistentvolumes", &["get", "update", "patch"]),
            ("", "persistentvolumeclaims/status", &["update", "patch"]),
            ("", "persistentvolumeclaims", &["get"]),
        ],
    ),
    // Those of PodGroups where the API server has the gates of PodGroups on.
    (
        "podgroup-protection-controller",
        &[
            ("scheduling.k8s.io", "podgroups", &["get", "update"]),
            ("", "pods", &["get"]),
        ],
    ),
    (
        "pv-protection-controller",
        &[("", "persistentvolumes", &["get", "update"])],
    ),
    (
        "pvc-protection-controller",
        &[
            ("", "persistentvolumeclaims", &["get", "update"]),
            ("", "persistentvolumeclaims/status", &["update"]),
            ("", "pods", &["get"]),
        ],
    ),
    (
        "selinux-warning-controller",
        &[
            ("", "persistentvolumes", &["get"]),
            ("", "persistentvolumeclaims", &["get"]),
            ("", "pods", &["get"]),
            ("storage.k8s.io", "csidrivers", &["get"]),
        ],
    ),
    (
        "volumeattributesclass-protection-controller",
        &[
            ("", "persistentvolumeclaims", &["get"]),
            ("", "persistentvolumes", &["get"]),
            (
                "storage.k8s.io",
                "volumeattributesclasses",
                &["get", "update"],
            ),
        ],
    ),
    (
        "persistent-volume-binder",
        &[
            (
                "",
                "persistentvolumes",
                &["get", "update", "create", "delete"],
            ),
            ("", "persistentvolumes/status", &["update"]),
            ("", "persistentvolumeclaims", &["get", "update"]),
            ("", "persistentvolumeclaims/status", &["update"]),
            ("", "pods", &["get", "create", "delete"]),
        ],
    ),
    (
        "resource-claim-controller",
        &[
            ("", "pods", &["get"]),
            ("", "pods/finalizers", &["update"]),
            ("", "pods/status", &["update", "patch"]),
            (
                "resource.k8s.io",
                "resourceclaims",
                &["get", "create", "delete", "update", "patch"],
            ),
            (
                "resource.k8s.io",
                "resourceclaims/status",
                &["update", "patch"],
            ),
            (
                "resource.k8s.io",
                "resourceclaims/binding",
                &["update", "patch"],
            ),
            ("scheduling.k8s.io", "podgroups", &["get"]),
            (
                "scheduling.k8s.io",
                "podgroups/status",
                &["update", "patch"],
            ),
        ],
    ),
    (
        "root-ca-cert-publisher",
        &[("", "configmaps", &["create", "update"])],
    ),
    (
        "clusterrole-aggregation-controller",
        &[(
            "rbac.authorization.k8s.io",
            "clusterroles",
            &["escalate", "get", "update", "patch"],
        )],
    ),
    (
        "certificate-controller",
        &[
            (
                "certificates.k8s.io",
                "certificatesigningrequests",
                &["get", "delete"],
            ),
            (
                "certificates.k8s.io",
                "certificatesigningrequests/status",
                &["update"],
            ),
            (
                "certificates.k8s.io",
                "certificatesigningrequests/approval",
                &["update"],
            ),
            ("certificates.k8s.io", "signers", &["approve", "sign"]),
            ("authorization.k8s.io", "subjectaccessreviews", &["create"]),
        ],
    ),
    (
        "podcertificaterequestcleaner",
        &[(
            "certificates.k8s.io",
            "podcertificaterequests",
            &["get", "delete"],
        )],
    ),
    (
        "kube-apiserver-serving-clustertrustbundle-publisher",
        &[
            ("certificates.k8s.io", "signers", &["attest"]),
            (
                "certificates.k8s.io",
                "clustertrustbundles",
                &["create", "update", "delete"],
            ),
        ],
    ),
    (
        "storage-version-garbage-collector",
        &[
            ("coordination.k8s.io", "leases", &["get"]),
            (
                "internal.apiserver.k8s.io",
                "storageversions",
                &["get", "patch", "update", "delete"],
            ),
            (
                "internal.apiserver.k8s.io",
                "storageversions/status",
                &["get", "patch", "update"],
            ),
        ],
    ),
    // It lists by its own account.
    (
        "storage-version-migrator-controller",
        &[
            ("*", "*", &["list", "create", "patch"]),
            (
                "apiextensions.k8s.io",
                "customresourcedefinitions",
                &["get"],
            ),
        ],
    ),
    (
        "legacy-service-account-token-cleaner",
        &[
            ("", "configmaps", &["get"]),
            ("", "secrets", &["patch", "delete"]),
        ],
    ),
    // These two have roles in kube-public and kube-system alone.
    (
        "bootstrap-signer",
        &[
            ("", "configmaps", &["get", "update"]),
            ("", "secrets", &["get"]),
        ],
    ),
    ("token-cleaner", &[("", "secrets", &["get", "delete"])]),
];

/// The namespace of the controllers' service accounts.
const NAMESPACE: &str = "kube-system";

/// The head of the generated file.
const HEAD: &str = "\
# Made from the controllers' descriptors; do not edit.
# What each controller's service account needs beyond the role that every cluster has for it.
";

/// Whether upstream's role for a service account, which every cluster has, grants a verb of a rule.
pub fn is_upstreams(service_account: &str, rule: &Rule, verb: &str) -> bool {
    rule.verbs.contains(&verb) && !missing(service_account, rule).contains(&verb)
}

/// The verbs of a rule that upstream's role for a service account lacks.
fn missing(service_account: &str, rule: &Rule) -> Vec<&'static str> {
    let granted = UPSTREAM
        .iter()
        .find(|(name, _)| *name == service_account)
        .map_or(&[][..], |(_, granted)| granted);
    rule.verbs
        .iter()
        .copied()
        .filter(|verb| {
            (rule.live || !matches!(*verb, "list" | "watch"))
                && !granted.iter().any(|(group, resource, verbs)| {
                    (*group == "*" || *group == rule.group)
                        && (*resource == "*" || *resource == rule.resource)
                        && verbs.contains(verb)
                })
        })
        .collect()
}

/// A service account, and the namespace of its role; an empty one means a ClusterRole.
type Place = (&'static str, &'static str);

/// The file: a ClusterRole and its binding for each service account that needs more, in order of names.
/// Several controllers of one account share a role.
pub fn manifest(registry: &[Factory]) -> String {
    let mut roles: BTreeMap<Place, Vec<(Rule, Vec<&str>)>> = BTreeMap::new();
    for factory in registry {
        let descriptor = (factory.describe)();
        for rule in descriptor.rules {
            let verbs = missing(descriptor.service_account, &rule);
            let role = roles
                .entry((descriptor.service_account, rule.namespace))
                .or_default();
            let new = (rule, verbs);
            if !new.1.is_empty() && !role.contains(&new) {
                role.push(new);
            }
        }
    }
    let mut text = HEAD.to_owned();
    for ((account, namespace), rules) in roles {
        if !rules.is_empty() {
            write_role(&mut text, account, namespace, &rules).expect("a String takes all");
        }
    }
    text
}

/// What begins the file of [`impersonated`].
const IMPERSONATED_HEAD: &str = "\
# Made from the controllers' descriptors; do not edit. The accounts in whose names replicas write where the
# API server fences, and the one in whose name they try the fence.
";

/// The Role of `deploy/fence/accounts.yaml`: the service accounts of the registered controllers and `more`
/// may be impersonated, and no other.
pub fn impersonated(registry: &[Factory], more: &str) -> String {
    let accounts = registry
        .iter()
        .map(|factory| (factory.describe)().service_account);
    let accounts: BTreeSet<&str> = accounts.chain([more]).collect();
    let names: String = accounts
        .iter()
        .map(|name| format!("      - {name}\n"))
        .collect();
    format!(
        "{IMPERSONATED_HEAD}apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata:\n  \
         name: manifold:fence-accounts\n  namespace: {NAMESPACE}\n  labels:\n    app.kubernetes.io/name: manifold\n\
         rules:\n  - apiGroups: [\"\"]\n    resources: [serviceaccounts]\n    resourceNames:\n{names}    verbs: [impersonate]\n"
    )
}

fn write_role(
    text: &mut String,
    account: &str,
    namespace: &str,
    rules: &[(Rule, Vec<&str>)],
) -> std::fmt::Result {
    let name = format!("manifold:controller:{account}");
    let (kind, place) = match namespace {
        "" => ("ClusterRole", String::new()),
        _ => ("Role", format!("\n  namespace: {namespace}")),
    };
    write!(
        text,
        "---\napiVersion: rbac.authorization.k8s.io/v1\nkind: {kind}\nmetadata:\n  name: {name}{place}\nrules:\n"
    )?;
    for (rule, verbs) in rules {
        writeln!(text, "  - apiGroups: [{:?}]", rule.group)?;
        // A star begins an alias in YAML.
        if rule.resource.starts_with('*') {
            writeln!(text, "    resources: [{:?}]", rule.resource)?;
        } else {
            writeln!(text, "    resources: [{}]", rule.resource)?;
        }
        if !rule.names.is_empty() {
            writeln!(text, "    resourceNames: [{}]", rule.names.join(", "))?;
        }
        writeln!(text, "    verbs: [{}]", verbs.join(", "))?;
    }
    write!(
        text,
        "---\napiVersion: rbac.authorization.k8s.io/v1\nkind: {kind}Binding\nmetadata:\n  name: {name}{place}\nroleRef:\n  apiGroup: rbac.authorization.k8s.io\n  kind: {kind}\n  name: {name}\nsubjects:\n  - kind: ServiceAccount\n    name: {account}\n    namespace: {NAMESPACE}\n"
    )
}

#[cfg(test)]
mod tests;
