//! Which routes are to be deleted and created, from the provider's list and the Nodes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use controllers_kit::{
    cidr::Cidr,
    cloud::{self, Address, Call, Deed, Guard, Route},
};
use kubernetes_proto::{Object, core::Node};
use serde::{Deserialize, Serialize};

/// The ranges of `--cluster-cidr`; none where it is empty.
///
/// # Errors
/// Where a range can't be read, or there are more than one of each family.
pub(super) fn clusters(text: &str) -> Result<Vec<Cidr>, String> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let mut ranges = Vec::new();
    for part in text.trim().split(',') {
        match Cidr::parse(part.trim()) {
            Some(range) => ranges.push(range),
            None => return Err(format!("--cluster-cidr: invalid CIDR address: {part}")),
        }
    }
    if ranges.len() > 2 {
        return Err(format!(
            "length of clusterCIDRs is:{} more than max allowed of 2",
            ranges.len()
        ));
    }
    if let [one, other] = ranges[..]
        && one.is_v6() == other.is_v6()
    {
        return Err(
            "len of ClusterCIDRs==2 and they are not configured as dual stack (at least one from each IPFamily"
                .to_owned(),
        );
    }
    Ok(ranges)
}

/// A route that is to be created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Creation {
    pub(super) node: String,
    pub(super) uid: String,
    pub(super) cidr: String,
    pub(super) addresses: Vec<Address>,
}

impl Creation {
    pub(super) fn route(&self) -> Route {
        Route {
            target_node: self.node.clone(),
            target_addresses: self.addresses.clone(),
            destination: self.cidr.clone(),
            ..Route::default()
        }
    }

    pub(super) fn call(&self) -> Call {
        Call {
            // A route to a Node that was deleted meanwhile is foreign to the next round.
            guard: Guard::Nothing,
            deed: Deed::CreateRoute {
                hint: self.uid.clone(),
                route: self.route(),
            },
        }
    }
}

/// The attempts of a round. A list that does not show their effect yet is no reason to repeat them.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tried {
    /// By node and destination: whether it was created.
    created: BTreeMap<String, BTreeMap<String, bool>>,
    /// By name, node and destination.
    deleted: BTreeSet<(String, String, String)>,
}

impl Tried {
    pub(super) fn created(&mut self, route: &Route, done: bool) {
        let of_node = self.created.entry(route.target_node.clone()).or_default();
        of_node.insert(route.destination.clone(), done);
    }

    pub(super) fn deleted(&mut self, route: &Route, _done: bool) {
        self.deleted.insert(identity(route));
    }

    fn creation(&self, node: &str, cidr: &str) -> Option<bool> {
        self.created.get(node)?.get(cidr).copied()
    }
}

fn identity(route: &Route) -> (String, String, String) {
    (
        route.name.clone(),
        route.target_node.clone(),
        route.destination.clone(),
    )
}

/// What is to be done.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Decision {
    /// Each with whether a route with other addresses replaces it.
    pub(super) deletions: Vec<(Route, bool)>,
    pub(super) creations: Vec<Creation>,
    /// By Node: whether all of its routes exist. Nodes with a route that was not tried yet are left out.
    pub(super) conditions: BTreeMap<String, bool>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    Keep,
    Add,
    Update,
}

/// Whether a route lies in the cluster's ranges. A route with an unreadable destination is foreign.
pub(super) fn is_ours(route: &Route, clusters: &[Cidr]) -> bool {
    Cidr::parse(&route.destination).is_some_and(|range| {
        clusters
            .iter()
            .any(|cluster| cluster.contains(range.first()) || cluster.contains(range.last()))
    })
}

fn same(one: &[Address], other: &[Address]) -> bool {
    one.len() == other.len() && one.iter().all(|address| other.contains(address))
}

fn action(routes: &[&Route], cidr: &str, addresses: &[Address]) -> Action {
    let found = routes.iter().find(|route| route.destination == *cidr);
    match found {
        None => Action::Add,
        Some(route) if !route.compare_addresses || same(addresses, &route.target_addresses) => {
            Action::Keep
        }
        Some(_) => Action::Update,
    }
}

/// Compares the list with the Nodes.
pub(super) fn decide(
    nodes: &[Arc<Node>],
    listed: &[Route],
    clusters: &[Cidr],
    tried: &Tried,
) -> Decision {
    let mut by_node: BTreeMap<&str, Vec<&Route>> = BTreeMap::new();
    for route in listed.iter().filter(|route| !route.target_node.is_empty()) {
        by_node.entry(&route.target_node).or_default().push(route);
    }
    let mut decision = Decision::default();
    let mut actions: BTreeMap<(&str, &str), Action> = BTreeMap::new();
    for node in nodes {
        let meta = Object::metadata(&**node);
        let name = meta.name.as_str();
        let cidrs = node.spec.as_ref().map_or(&[][..], |spec| &spec.pod_cid_rs);
        let routes = by_node.get(name).map_or(&[][..], Vec::as_slice);
        if cidrs.is_empty() {
            // Routes lead to it that are not its own.
            if !routes.is_empty() {
                decision.conditions.insert(name.to_owned(), false);
            }
            continue;
        }
        let addresses = cloud::addresses(node);
        let mut state = Some(true);
        for cidr in cidrs {
            let action = action(routes, cidr, &addresses);
            if actions.insert((name, cidr), action).is_some() || action == Action::Keep {
                continue;
            }
            match tried.creation(name, cidr) {
                Some(true) => {}
                Some(false) => state = state.map(|_| false),
                None => {
                    state = None;
                    decision.creations.push(Creation {
                        node: name.to_owned(),
                        uid: meta.uid.to_string(),
                        cidr: cidr.clone(),
                        addresses: addresses.clone(),
                    });
                }
            }
        }
        if let Some(created) = state {
            decision.conditions.insert(name.to_owned(), created);
        }
    }
    for route in listed {
        if !is_ours(route, clusters) || tried.deleted.contains(&identity(route)) {
            continue;
        }
        let action = actions.get(&(route.target_node.as_str(), route.destination.as_str()));
        let replaced = action == Some(&Action::Update);
        // A route that was replaced in this round is shown with the Node's addresses.
        let was_replaced =
            replaced && tried.creation(&route.target_node, &route.destination) == Some(true);
        if route.blackhole || action.is_none() || replaced && !was_replaced {
            decision
                .deletions
                .push((route.clone(), replaced && !route.blackhole));
        }
    }
    decision
}

/// A duration as Go writes it, to the microsecond.
pub(super) fn go_duration(took: Duration) -> String {
    let micros = took.as_micros();
    match micros {
        0 => "0s".to_owned(),
        1..1_000 => format!("{micros}µs"),
        1_000..1_000_000 => format!("{}ms", micros as f64 / 1e3),
        _ => format!("{}s", micros as f64 / 1e6),
    }
}
