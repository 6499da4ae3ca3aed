//! What the identities of a fleet must be allowed to do, and what the user of this program must be.

use std::collections::BTreeSet;

use controllers_kit::{Descriptor, rbac};

use crate::facts::{GUARD, GUARD_COMPANION, GUARD_NAMESPACE};

/// Who needs a right.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// The user of this program.
    Own,
    /// The user of the manager's certificate.
    User(String),
    /// A service account.
    Account {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
}

impl Who {
    /// As the API server names the user.
    pub fn user(&self) -> String {
        match self {
            Self::Own => String::new(),
            Self::User(name) => name.clone(),
            Self::Account { namespace, name } => {
                format!("system:serviceaccount:{namespace}:{name}")
            }
        }
    }

    /// The groups that authentication gives it.
    pub fn groups(&self) -> Vec<String> {
        let mut groups = vec!["system:authenticated".to_owned()];
        if let Self::Account { namespace, .. } = self {
            groups.push("system:serviceaccounts".to_owned());
            groups.push(format!("system:serviceaccounts:{namespace}"));
        }
        groups
    }
}

/// Where a right comes from, which decides how it is restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// A default role, which the API server restores when it starts.
    Default,
    /// `deploy/rbac`.
    Rbac,
    /// `deploy/rbac`, for its policy of the fleet's Leases.
    Guard,
    /// `deploy/fence`.
    Fence,
    /// The user's own.
    Own,
}

/// One right.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    /// Who needs it.
    pub who: Who,
    /// Verb.
    pub verb: String,
    /// API group; empty for the core group.
    pub group: String,
    /// Resource.
    pub resource: String,
    /// Subresource, or empty.
    pub subresource: String,
    /// Namespace, or empty for all.
    pub namespace: String,
    /// Name, or empty for all.
    pub name: String,
    /// Where it comes from.
    pub source: Source,
}

impl Right {
    fn new(who: &Who, source: Source, verb: &str, group: &str, resource: &str) -> Self {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        Self {
            who: who.clone(),
            verb: verb.to_owned(),
            group: group.to_owned(),
            resource: resource.to_owned(),
            subresource: subresource.to_owned(),
            namespace: String::new(),
            name: String::new(),
            source,
        }
    }

    fn within(mut self, namespace: &str) -> Self {
        namespace.clone_into(&mut self.namespace);
        self
    }

    fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// Whether discovery does not show the resource: all of them, or a name that only authorization knows.
    pub fn is_virtual(&self) -> bool {
        let names = [FLEET_LEASES, "signers", "userextras"];
        self.resource == "*" || names.contains(&self.resource.as_str())
    }

    /// As in `patch deployments.apps/status in kube-system`.
    pub fn show(&self) -> String {
        let mut text = format!("{} {}", self.verb, self.resource);
        if !self.group.is_empty() {
            text = format!("{text}.{}", self.group);
        }
        if !self.subresource.is_empty() {
            text = format!("{text}/{}", self.subresource);
        }
        if !self.name.is_empty() {
            text = format!("{text} {:?}", self.name);
        }
        if !self.namespace.is_empty() {
            text = format!("{text} in {}", self.namespace);
        }
        text
    }
}

/// What the policy `manifold-guard` asks for before a Lease of a fleet is written; no server serves it.
const FLEET_LEASES: &str = "fleetleases";

/// The namespace of the controllers' service accounts.
const ACCOUNTS_NAMESPACE: &str = "kube-system";

/// What the service accounts of these controllers need: every verb that the descriptors declare, reads left
/// out where they go by the manager's own identity.
pub fn of_controllers(descriptors: &[Descriptor], running: &BTreeSet<&str>) -> BTreeSet<Right> {
    let mut rights = BTreeSet::new();
    for descriptor in descriptors.iter().filter(|one| running.contains(one.name)) {
        let who = Who::Account {
            namespace: ACCOUNTS_NAMESPACE.to_owned(),
            name: descriptor.service_account.to_owned(),
        };
        for rule in &descriptor.rules {
            for verb in rule.verbs {
                if matches!(*verb, "list" | "watch") && !rule.live {
                    continue;
                }
                let source = match rbac::is_upstreams(descriptor.service_account, rule, verb) {
                    true => Source::Default,
                    false => Source::Rbac,
                };
                let right = Right::new(&who, source, verb, rule.group, rule.resource)
                    .within(rule.namespace);
                // A name that does not exist yet can't be asked for.
                if rule.names.is_empty() || *verb == "create" {
                    rights.insert(right);
                } else {
                    rights.extend(rule.names.iter().map(|name| right.clone().named(name)));
                }
            }
        }
    }
    rights
}

/// What the manager's own identity needs: reads for the caches, the fleet's Leases and the orders to it,
/// tokens of the controllers' accounts, reviews of the secure port's callers, the Leases that keep managers
/// apart.
pub fn of_manager(
    who: &Who,
    (fleet_namespace, fleet): (&str, &str),
    descriptors: &[Descriptor],
    running: &BTreeSet<&str>,
) -> BTreeSet<Right> {
    let mut rights = BTreeSet::new();
    for descriptor in descriptors.iter().filter(|one| running.contains(one.name)) {
        for rule in &descriptor.rules {
            for verb in rule.verbs {
                if matches!(*verb, "list" | "watch") && !rule.live {
                    rights.insert(Right::new(
                        who,
                        Source::Default,
                        verb,
                        rule.group,
                        rule.resource,
                    ));
                }
            }
        }
    }
    for verb in [
        "get", "list", "watch", "create", "update", "patch", "delete",
    ] {
        let right = Right::new(who, Source::Rbac, verb, "coordination.k8s.io", "leases");
        rights.insert(right.within(fleet_namespace));
    }
    // A list and a watch of one name need a right on that name alone.
    for verb in ["list", "watch", "patch"] {
        let right = Right::new(who, Source::Rbac, verb, "", "configmaps");
        let orders = steering::object_name(fleet);
        rights.insert(right.within(fleet_namespace).named(&orders));
    }
    for verb in ["create", "update", "delete"] {
        let right = Right::new(who, Source::Guard, verb, "manifold.dev", FLEET_LEASES);
        rights.insert(right.within(fleet_namespace));
    }
    let acquires = Right::new(
        who,
        Source::Default,
        "create",
        "coordination.k8s.io",
        "leases",
    );
    rights.insert(acquires.within(GUARD_NAMESPACE));
    for (verb, group, resource) in [
        ("create", "", "serviceaccounts/token"),
        ("create", "authentication.k8s.io", "tokenreviews"),
        ("create", "authorization.k8s.io", "subjectaccessreviews"),
    ] {
        rights.insert(Right::new(who, Source::Default, verb, group, resource));
    }
    for verb in ["get", "update"] {
        let guard = Right::new(who, Source::Default, verb, "coordination.k8s.io", "leases");
        rights.insert(guard.within(GUARD_NAMESPACE).named(GUARD));
    }
    rights
}

/// What the manager's own identity needs besides, where kube-controller-manager works beside the fleet.
pub fn of_companion(who: &Who) -> BTreeSet<Right> {
    ["get", "update"]
        .into_iter()
        .map(|verb| {
            Right::new(who, Source::Rbac, verb, "coordination.k8s.io", "leases")
                .within(GUARD_NAMESPACE)
                .named(GUARD_COMPANION)
        })
        .collect()
}

/// What the manager's own identity needs for the server's fence.
pub fn of_fence(
    who: &Who,
    descriptors: &[Descriptor],
    running: &BTreeSet<&str>,
) -> BTreeSet<Right> {
    let accounts: BTreeSet<&str> = descriptors
        .iter()
        .filter(|one| running.contains(one.name))
        .map(|one| one.service_account)
        .chain([coordinator::PROBE_ACCOUNT])
        .collect();
    let accounts = accounts.into_iter().map(|account| {
        Right::new(who, Source::Fence, "impersonate", "", "serviceaccounts")
            .within(ACCOUNTS_NAMESPACE)
            .named(account)
    });
    let mut rights: BTreeSet<Right> = accounts.collect();
    rights.insert(Right::new(
        who,
        Source::Fence,
        "impersonate",
        "authentication.k8s.io",
        "userextras/manifold.dev/incarnation",
    ));
    for verb in ["get", "patch"] {
        let fences = Right::new(who, Source::Fence, verb, "manifold.dev", "fences");
        rights.insert(fences.named("manifold-fence"));
    }
    rights
}

/// What the user of this program needs for the examination of a fleet.
pub fn to_examine(namespace: &str, fleet: &str) -> Vec<Right> {
    let orders = Right::new(&Who::Own, Source::Own, "get", "", "configmaps");
    let orders = orders
        .within(namespace)
        .named(&steering::object_name(fleet));
    [
        ("list", "coordination.k8s.io", "leases"),
        ("list", "", "pods"),
        ("get", "apps", "statefulsets"),
        ("get", "apiextensions.k8s.io", "customresourcedefinitions"),
        (
            "get",
            "admissionregistration.k8s.io",
            "validatingadmissionpolicies",
        ),
        (
            "get",
            "admissionregistration.k8s.io",
            "validatingadmissionpolicybindings",
        ),
        ("get", "flowcontrol.apiserver.k8s.io", "flowschemas"),
        ("create", "authorization.k8s.io", "subjectaccessreviews"),
    ]
    .into_iter()
    .map(|(verb, group, resource)| Right::new(&Who::Own, Source::Own, verb, group, resource))
    .chain([orders])
    .collect()
}

/// What the user of this program needs for the installation.
pub fn to_install(namespace: &str) -> Vec<Right> {
    let cluster = [
        ("create", "rbac.authorization.k8s.io", "clusterroles"),
        ("create", "rbac.authorization.k8s.io", "clusterrolebindings"),
        ("escalate", "rbac.authorization.k8s.io", "clusterroles"),
        ("bind", "rbac.authorization.k8s.io", "clusterroles"),
        ("create", "flowcontrol.apiserver.k8s.io", "flowschemas"),
        (
            "create",
            "apiextensions.k8s.io",
            "customresourcedefinitions",
        ),
        (
            "create",
            "admissionregistration.k8s.io",
            "validatingadmissionpolicies",
        ),
        (
            "create",
            "admissionregistration.k8s.io",
            "validatingadmissionpolicybindings",
        ),
    ];
    let in_namespace = [
        ("create", "apps", "statefulsets"),
        ("create", "", "serviceaccounts"),
        ("create", "", "services"),
        ("create", "rbac.authorization.k8s.io", "roles"),
        ("create", "rbac.authorization.k8s.io", "rolebindings"),
        ("create", "networking.k8s.io", "networkpolicies"),
        ("create", "policy", "poddisruptionbudgets"),
    ];
    let right = |(verb, group, resource): (&str, &str, &str)| {
        Right::new(&Who::Own, Source::Own, verb, group, resource)
    };
    let in_namespace = in_namespace
        .into_iter()
        .map(|parts| right(parts).within(namespace));
    cluster.into_iter().map(right).chain(in_namespace).collect()
}
