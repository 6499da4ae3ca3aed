//! What is known of a cluster at one moment: plain data, from which the checks decide.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use controllers_kit::Descriptor;
use coordinator::{RangeLease, ReplicaLease};
use jiff::Timestamp;

use crate::{certificates::Certificate, rights::Right};

/// Why something is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// One sentence.
    pub why: String,
    /// The credentials do not allow to read it.
    pub forbidden: bool,
}

/// What was read, or why it was not.
pub type Known<T> = Result<T, Unknown>;

/// What the command line asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Before the installation.
    pub pre: bool,
    /// `--fleet-name`, where given.
    pub fleet: Option<String>,
    /// `--fleet-namespace`, where given.
    pub namespace: Option<String>,
    /// `--expected-replicas`, where given.
    pub expected: Option<usize>,
    /// `--kcm-controllers`, where given.
    pub kcm_controllers: Option<Vec<String>>,
    /// The peers' certificate files, where given.
    pub peer_files: Option<PeerFiles>,
}

/// The files of one replica's peer certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerFiles {
    /// `--peer-tls-cert-file`
    pub certificate: String,
    /// `--peer-tls-private-key-file`
    pub key: String,
    /// `--peer-ca-file`
    pub authority: String,
}

/// How the kubeconfig identifies the client, and the server to it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Credentials {
    /// The API server's address.
    pub server: String,
    /// Name of the cluster in the kubeconfig; empty in a pod.
    pub cluster: String,
    /// The kubeconfig's path; empty in a pod.
    pub kubeconfig: String,
    /// The client certificate, where there is one.
    pub client: Option<Known<Certificate>>,
    /// The authorities that the server is known by.
    pub authorities: Vec<Known<Certificate>>,
    /// `insecure-skip-tls-verify`.
    pub insecure: bool,
}

/// The API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// As in `v1.36.3`.
    pub version: String,
    /// Major and minor version.
    pub minor: (u32, u32),
    /// How far the local clock is ahead of the server's, as the `Date` header shows it; `None` without
    /// header.
    pub clock_ahead: Option<jiff::SignedDuration>,
}

/// Why the API server can't be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// No connection, or no answer.
    Unreachable(String),
    /// The server's certificate is not signed by the known authorities, or is for another name.
    Untrusted(String),
    /// 401: it does not accept the credentials.
    Unauthenticated(String),
    /// It answers with an error.
    Failing(String),
}

/// What the API server serves, as discovery shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Group versions, as in `apps/v1`.
    pub versions: BTreeSet<String>,
    /// Groups and plurals.
    pub resources: BTreeSet<(String, String)>,
}

impl Served {
    /// Whether a resource is served in any version.
    pub fn has(&self, group: &str, resource: &str) -> bool {
        self.resources
            .contains(&(group.to_owned(), resource.to_owned()))
    }
}

/// One fleet, by its Leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fleet {
    /// Namespace of its Leases.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its replicas.
    pub replicas: Vec<Replica>,
    /// Its range Leases.
    pub ranges: Vec<RangeLease>,
}

/// One replica, by its Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Name of the Lease.
    pub lease: String,
    /// What it says.
    pub said: ReplicaLease,
    /// Whether it was renewed between two reads a lease duration apart.
    pub renewed: bool,
    /// When it was renewed by the replica's clock, and when it was read by the API server's.
    pub clocks: Option<(Timestamp, Timestamp)>,
}

impl Replica {
    /// Whether it is a member: its Lease is held and was renewed.
    pub fn is_live(&self) -> bool {
        self.renewed && self.said.incarnation.is_some()
    }
}

/// What the names of shadows' fleets end with, and no others.
const SHADOW_ENDING: &str = "-shadow";

impl Fleet {
    /// Whether it is a shadow: it compares what it plans, and writes nothing.
    pub fn is_shadow(&self) -> bool {
        self.name.ends_with(SHADOW_ENDING)
    }

    /// The replicas whose Leases are held and renewed.
    pub fn live(&self) -> impl Iterator<Item = &Replica> {
        self.replicas.iter().filter(|replica| replica.is_live())
    }

    /// What the members say of something that all must have the same of, by member.
    pub fn fingerprints(&self) -> BTreeMap<&str, BTreeMap<&str, &str>> {
        self.live()
            .map(|replica| {
                let pairs = replica.said.status.fingerprints.split(',');
                let pairs = pairs.filter_map(|pair| pair.split_once('='));
                (replica.said.name.as_str(), pairs.collect())
            })
            .collect()
    }

    /// The `--controllers` selections that its members publish, each with the members that have it.
    pub fn selections(&self) -> BTreeMap<&str, Vec<&str>> {
        let mut by_list: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (member, fingerprints) in self.fingerprints() {
            if let Some(list) = fingerprints.get("controllers") {
                by_list.entry(list).or_default().push(member);
            }
        }
        by_list
    }
}

/// A Lease that managers hold to keep others from writing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// Who holds it; empty: nobody.
    pub holder: String,
    /// Whether it is renewed.
    pub fresh: bool,
    /// How long it is valid after a renewal.
    pub valid: Duration,
}

/// A pod of a manager: of this fleet, or of kube-controller-manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManagerPod {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Its node; empty where it is not bound.
    pub node: String,
    /// Whether its containers are ready.
    pub ready: bool,
    /// Manifold, or kube-controller-manager.
    pub is_manifold: bool,
    /// Command and arguments of its container.
    pub args: Vec<String>,
    /// Memory limit in bytes.
    pub memory_limit: Option<u64>,
    /// Its service account.
    pub account: String,
    /// Made by a kubelet from a file.
    pub is_static: bool,
}

impl ManagerPod {
    /// A flag's value; the last occurrence counts. Names may have `_` for `-`, as KCM accepts.
    pub fn flag(&self, name: &str) -> Option<&str> {
        let mut value = None;
        let mut args = self.args.iter().peekable();
        while let Some(arg) = args.next() {
            let Some(rest) = arg.strip_prefix("--") else {
                continue;
            };
            let (key, joined) = match rest.split_once('=') {
                Some((key, value)) => (key, Some(value)),
                None => (rest, None),
            };
            if key.replace('_', "-") == name {
                value = joined.or_else(|| args.peek().map(|next| next.as_str()));
            }
        }
        value
    }
}

/// The objects of `deploy/fence`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// Whether the kind `Fence` is established.
    pub kind: Known<bool>,
    /// The policy's `failurePolicy`, where the policy exists.
    pub policy: Known<Option<String>>,
    /// The binding's actions, where the binding exists.
    pub binding: Known<Option<Vec<String>>>,
}

/// The policy of the fleet's Leases in `deploy/rbac`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseGuard {
    /// Where it holds, where the policy exists.
    pub policy: Known<Option<Covered>>,
    /// The binding's actions, where the binding exists.
    pub binding: Known<Option<Vec<String>>>,
}

/// Namespaces that a policy names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Covered {
    /// It selects none.
    All,
    /// These alone.
    Named(BTreeSet<String>),
}

impl Covered {
    /// Whether the policy is asked there.
    pub fn holds_for(&self, namespace: &str) -> bool {
        match self {
            Self::All => true,
            Self::Named(names) => names.contains(namespace),
        }
    }
}

/// All of it.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The command line.
    pub asked: Asked,
    /// This program's version, as in `0.1.0`.
    pub build: String,
    /// The namespace of Leases where nothing else is said.
    pub default_namespace: String,
    /// The fleet's name where nothing else is said.
    pub default_fleet: String,
    /// The controllers of this build.
    pub descriptors: Vec<Descriptor>,
    /// The local clock.
    pub now: Timestamp,
    /// Credentials.
    pub credentials: Credentials,
    /// The API server.
    pub server: Result<Server, Unusable>,
    /// Who the credentials are to the API server.
    pub user: Known<String>,
    /// What is served.
    pub served: Known<Served>,
    /// What the credentials may do, of what this examination or the installation needs.
    pub own_rights: Vec<(Right, Known<bool>)>,
    /// What the identities of the fleet may do.
    pub rights: Vec<(Right, Known<bool>)>,
    /// All fleets that have Leases.
    pub fleets: Known<Vec<Fleet>>,
    /// The Leases that keep managers apart, by name in kube-system; `None`: there is none.
    pub guards: BTreeMap<&'static str, Known<Option<Guard>>>,
    /// The orders of operators to the fleet, where their ConfigMap exists.
    pub orders: Known<Option<steering::Orders>>,
    /// The pods of managers.
    pub pods: Known<Vec<ManagerPod>>,
    /// The wanted replicas of the fleet's StatefulSet, where there is one.
    pub stateful_set: Known<Option<usize>>,
    /// Whether the FlowSchema of the fleet's Leases exists.
    pub flow_schema: Known<bool>,
    /// The guard of the fleet's Leases.
    pub lease_guard: LeaseGuard,
    /// The server's fence.
    pub fence: Fence,
    /// How many pods the cluster has.
    pub cluster_pods: Known<u64>,
    /// The peers' certificate files, where given.
    pub peer_files: Option<Result<Certificate, String>>,
}

/// The Lease of kube-controller-manager, and that of a fleet beside it.
pub const GUARD: &str = "kube-controller-manager";
/// What a fleet holds while kube-controller-manager works beside it.
pub const GUARD_COMPANION: &str = "manifold-companion";
/// The namespace of both.
pub const GUARD_NAMESPACE: &str = "kube-system";
/// The holder of a guard begins so where it is a fleet; `<namespace>/<name>` follows.
pub const GUARD_HOLDER: &str = "manifold:";

impl Facts {
    /// The fleet under examination: the one that was named, else the one with most live members.
    pub fn fleet(&self) -> Option<&Fleet> {
        let fleets = self.fleets.as_ref().ok()?;
        let wanted = |fleet: &&Fleet| {
            let named = self.asked.fleet.as_ref();
            let placed = self.asked.namespace.as_ref();
            named.is_none_or(|name| *name == fleet.name)
                && placed.is_none_or(|namespace| *namespace == fleet.namespace)
        };
        fleets
            .iter()
            .filter(wanted)
            .max_by_key(|fleet| (!fleet.is_shadow(), fleet.live().count()))
    }

    /// Whether the fleet under examination is a shadow.
    pub fn is_shadow(&self) -> bool {
        self.fleet().is_some_and(Fleet::is_shadow)
    }

    /// Namespace of the fleet's Leases, for commands.
    pub fn namespace(&self) -> &str {
        match (self.fleet(), &self.asked.namespace) {
            (Some(fleet), _) => &fleet.namespace,
            (None, Some(given)) => given,
            (None, None) => &self.default_namespace,
        }
    }

    /// The fleet's name, for commands.
    pub fn fleet_name(&self) -> &str {
        match (self.fleet(), &self.asked.fleet) {
            (Some(fleet), _) => &fleet.name,
            (None, Some(given)) => given,
            (None, None) => &self.default_fleet,
        }
    }

    /// Whether an order drains a replica that is alive.
    pub fn is_drained(&self, replica: &Replica) -> bool {
        let Ok(Some(orders)) = &self.orders else {
            return false;
        };
        let target = steering::Target::Replica(replica.said.name.clone());
        let order = orders.in_force(self.now).remove(&target);
        order.is_some_and(|order| order.incarnation == replica.said.incarnation)
    }

    /// The pods of Manifold.
    pub fn own_pods(&self) -> impl Iterator<Item = &ManagerPod> {
        self.pods.iter().flatten().filter(|pod| pod.is_manifold)
    }

    /// The pods of kube-controller-manager.
    pub fn kcm_pods(&self) -> impl Iterator<Item = &ManagerPod> {
        self.pods.iter().flatten().filter(|pod| !pod.is_manifold)
    }

    /// A guard, where it exists and could be read.
    pub fn guard(&self, name: &str) -> Option<&Guard> {
        self.guards.get(name)?.as_ref().ok()?.as_ref()
    }

    /// Whether the fleet works beside kube-controller-manager: it holds the guard of that mode, or its pods
    /// are started so.
    pub fn is_companion(&self) -> bool {
        let held = self
            .guard(GUARD_COMPANION)
            .is_some_and(|guard| guard.fresh && guard.holder.starts_with(GUARD_HOLDER));
        let started = self
            .own_pods()
            .any(|pod| pod.flag("leader-elect-resource-name") == Some(GUARD_COMPANION));
        held || started
    }
}
