//! Keeps a route in the cloud for each block of pod addresses of each Node.
//!
//! Watches nodes; patches the condition NetworkUnavailable of Nodes; one key for the cluster, since two
//! concurrent lists would create a route twice; remembers the calls of a round: the routes to delete and
//! create, and those that are done. Each round begins with a list of the provider's routes and ends when
//! nothing is left to do. Invariants: a route is deleted only after a consistent read has shown that no
//! Node of its name has its block, and all deletions of a step come before its creations; nothing is
//! deleted where the provider's list was incomplete.

mod routes;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use controllers_kit::{
    Controller, Descriptor, Event, EventType, Flags, Key, MetricKind, ObjectRef, PatchKind, Plan,
    Query, Refusal, Requeue, Runs, Sharding, SignedDuration, Snapshot, StatusWrite, Timestamp,
    Watches,
    cidr::Cidr,
    cloud::{Answered, Call, Deed, Guard, Reason, Reply, Route},
};
use kubernetes_proto::{Object, Str, core::Node};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::flags::{self, UNSUPPORTED_RETRY};
use routes::{Creation, Decision, Tried};

/// Calls of one step: as many as upstream has in flight at once.
const AT_ONCE: usize = 200;
/// Conditions that are written in one plan.
const CONDITIONS_AT_ONCE: usize = 200;
/// A decision older than this, from before a handoff, is made again.
const STEP_TTL: SignedDuration = SignedDuration::from_secs(30);

const SYNCS: &str = "route_controller_route_sync_total";
const CONDITION: &str = "NetworkUnavailable";

/// The controller.
pub struct NodeRoute {
    period: Duration,
    clusters: Vec<Cidr>,
}

/// What outlasts a plan.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Calls to make, or made without an answer.
    step: Option<Step>,
    /// What this round has done.
    round: Option<Round>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Step {
    decided: Timestamp,
    deletions: Vec<Deletion>,
    creations: Vec<Creation>,
}

/// A route to delete, with the addresses of its Node where these are the reason.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Deletion {
    route: Route,
    replaced: bool,
}

/// From a list until nothing is left to be done.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Round {
    tried: Tried,
    /// The first failure, for the log.
    trouble: Option<String>,
}

fn only_key() -> Key {
    Key::cluster("routes")
}

impl Deletion {
    fn call(&self) -> Call {
        Call {
            guard: Guard::NotRouted {
                node: self.route.target_node.clone(),
                // A blackhole leads nowhere, whatever addresses its Node has.
                cidr: match self.route.blackhole {
                    true => String::new(),
                    false => self.route.destination.clone(),
                },
                addresses: self.replaced.then(|| self.route.target_addresses.clone()),
            },
            deed: Deed::DeleteRoute {
                route: self.route.clone(),
            },
        }
    }
}

/// Of a Node, as upstream refers to it.
fn event(node: &str, uid: &str, message: String) -> Event {
    Event {
        about: ObjectRef {
            api_version: Str::interned("v1"),
            kind: Str::interned("Node"),
            key: Key::cluster(node),
            uid: uid.into(),
            resource_version: 0,
        },
        r#type: EventType::Warning,
        reason: Str::interned("FailedToCreateRoute"),
        message,
    }
}

impl Controller for NodeRoute {
    type Memory = Memory;

    fn describe() -> Descriptor {
        Descriptor::new("node-route-controller", Sharding::Single)
            .aliases(&["route"])
            .service_account("route-controller")
            .event_source("route_controller")
            .queue("Routes")
            .retry_first(Duration::from_secs(1))
            .retry_max_flag("route-reconciliation-period")
            .with_flags(flags::ROUTES)
            .with_flags(flags::PROVIDER)
            .runs_where(|flags| {
                match flags::runs(flags) {
                    Runs::Yes => {}
                    other => return other,
                }
                if !flags.bool("configure-cloud-routes") {
                    return Runs::No(
                        "Will not configure cloud provider routes, --configure-cloud-routes: false",
                    );
                }
                match routes::clusters(flags.text("cluster-cidr")) {
                    Ok(ranges) if ranges.is_empty() => Runs::No(
                        "Will not configure cloud provider routes: --cluster-cidr is not given",
                    ),
                    Ok(_) => Runs::Yes,
                    Err(why) => Runs::Wrong(why),
                }
            })
            .metric(
                SYNCS,
                MetricKind::Counter,
                &[],
                "A metric counting the amount of times routes have been synced with the cloud provider.",
            )
            .rule("", "nodes", &["get", "list", "watch"])
            .rule("", "nodes/status", &["patch"])
            .differences(include_str!("differences.md"))
    }

    fn new(flags: &Flags) -> Self {
        Self {
            period: flags.duration("route-reconciliation-period"),
            clusters: routes::clusters(flags.text("cluster-cidr")).unwrap_or_default(),
        }
    }

    fn watch(&self, on: &mut Watches) {
        on.kind::<Node>();
        on.always(|| vec![only_key()]);
    }

    fn ask(&self, key: &Key, seen: &Snapshot<'_>, memory: &Memory) -> Vec<Query> {
        if *key != only_key() || self.clusters.is_empty() {
            return Vec::new();
        }
        let calls: Vec<Call> = match current(memory, seen.now) {
            None => vec![Call::read(Deed::ListRoutes)],
            Some(step) if !step.deletions.is_empty() => {
                step.deletions.iter().map(Deletion::call).collect()
            }
            Some(step) => step.creations.iter().map(Creation::call).collect(),
        };
        calls.into_iter().map(Query::Cloud).collect()
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, memory: &mut Memory) -> Result<Plan, Refusal> {
        if *key != only_key() || self.clusters.is_empty() {
            return Ok(Plan::nothing());
        }
        if current(memory, seen.now).is_none() {
            memory.step = None;
        }
        let mut answers = seen.cloud().peekable();
        match answers.peek() {
            None => Ok(Plan::nothing().requeued_at(seen.now)),
            Some((call, _)) if call.deed == Deed::ListRoutes => match answers.next() {
                Some((_, answered)) => self.listed(seen, answered, memory),
                None => Ok(Plan::nothing().requeued_at(seen.now)),
            },
            Some(_) => {
                let mut plan = Plan::nothing();
                for (call, answered) in answers {
                    hear(&mut plan, call, &answered, memory);
                }
                if memory.step.as_ref().is_some_and(Step::is_done) {
                    memory.step = None;
                }
                plan.requeue = Requeue::Now;
                Ok(plan)
            }
        }
    }

    fn shift(&self, memory: &mut Memory, by: SignedDuration) {
        if let Some(step) = &mut memory.step
            && let Ok(shifted) = step.decided.checked_add(by)
        {
            step.decided = shifted;
        }
    }
}

/// The step in progress, unless it is too old.
fn current(memory: &Memory, now: Timestamp) -> Option<&Step> {
    let step = memory.step.as_ref()?;
    let age = now.duration_since(step.decided);
    (age < STEP_TTL && age > -STEP_TTL && !step.is_done()).then_some(step)
}

impl Step {
    fn is_done(&self) -> bool {
        self.deletions.is_empty() && self.creations.is_empty()
    }
}

/// Notes what came of a deletion or creation.
fn hear(plan: &mut Plan, call: &Call, answered: &Answered, memory: &mut Memory) {
    let round = memory.round.get_or_insert_default();
    let done = answered.outcome == Ok(Reply::Done);
    let why = match &answered.outcome {
        Ok(Reply::Done) => None,
        Ok(other) => Some(format!("the provider answered something else: {other:?}")),
        Err(refused) => Some(refused.message.clone()),
    };
    match &call.deed {
        Deed::DeleteRoute { route } => {
            if let Some(step) = &mut memory.step {
                step.deletions.retain(|deletion| deletion.route != *route);
            }
            round.tried.deleted(route, done);
            if let Some(why) = why {
                let text = format!(
                    "Could not delete route {} {}: {why}",
                    route.name, route.destination
                );
                round.trouble.get_or_insert(text);
            }
        }
        Deed::CreateRoute { hint, route } => {
            if let Some(step) = &mut memory.step {
                step.creations.retain(|one| one.route() != *route);
            }
            round.tried.created(route, done);
            if let Some(why) = why {
                let text = format!(
                    "Could not create route {hint} {} for node {} after {}: {why}",
                    route.destination,
                    route.target_node,
                    routes::go_duration(answered.took)
                );
                plan.event(event(&route.target_node, hint, text.clone()));
                round.trouble.get_or_insert(text);
            }
        }
        _ => {}
    }
}

impl NodeRoute {
    /// What follows from the list of routes.
    fn listed(
        &self,
        seen: &Snapshot<'_>,
        answered: Answered,
        memory: &mut Memory,
    ) -> Result<Plan, Refusal> {
        let mut plan = Plan::nothing();
        if memory.round.is_none() {
            plan.measure(SYNCS, &[], 1.0);
            plan.measure_on_failure(SYNCS, &[], 1.0);
        }
        let listed = match answered.outcome {
            Ok(Reply::Routes(listed)) => listed,
            Ok(other) => {
                plan.fail(format!("error listing routes: not a list but {other:?}"));
                return Ok(plan);
            }
            Err(refused) if refused.reason == Reason::NotSupported => {
                memory.round = None;
                return Ok(plan.requeued_at(seen.now + UNSUPPORTED_RETRY));
            }
            Err(refused) => {
                match flags::retry_at(&refused, seen.now) {
                    Some(at) => plan.requeue = Requeue::At(at),
                    None => plan.fail(format!("error listing routes: {}", refused.message)),
                }
                return Ok(plan);
            }
        };
        let nodes: Vec<Arc<Node>> = seen.all::<Node>();
        let round = memory.round.get_or_insert_default();
        let Decision {
            deletions,
            creations,
            conditions,
        } = routes::decide(&nodes, &listed, &self.clusters, &round.tried);
        if !deletions.is_empty() || !creations.is_empty() {
            let deletions = deletions.into_iter().take(AT_ONCE);
            memory.step = Some(Step {
                decided: seen.now,
                deletions: deletions
                    .map(|(route, replaced)| Deletion { route, replaced })
                    .collect(),
                creations: creations.into_iter().take(AT_ONCE).collect(),
            });
            plan.requeue = Requeue::Now;
            return Ok(plan);
        }
        let left = write_conditions(&mut plan, &nodes, &conditions, seen.now);
        if left {
            plan.requeue = Requeue::Now;
            return Ok(plan);
        }
        let trouble = memory.round.take().and_then(|round| round.trouble);
        match trouble {
            Some(why) => plan.fail(why),
            None => plan.requeue = Requeue::At(flags::after(seen.now, self.period)?),
        }
        Ok(plan)
    }
}

/// Writes the condition of the Nodes whose routes were all tried; whether more are left.
fn write_conditions(
    plan: &mut Plan,
    nodes: &[Arc<Node>],
    conditions: &BTreeMap<String, bool>,
    now: Timestamp,
) -> bool {
    let mut written = BTreeSet::new();
    for node in nodes {
        let name = &Object::metadata(&**node).name;
        let Some(created) = conditions.get(name.as_str()) else {
            continue;
        };
        let (status, reason, message) = match created {
            true => ("False", "RouteCreated", "RouteController created a route"),
            false => (
                "True",
                "NoRouteCreated",
                "RouteController failed to create a route",
            ),
        };
        let held = node
            .status
            .iter()
            .flat_map(|status| &status.conditions)
            .find(|one| one.r#type == CONDITION);
        if held.is_some_and(|held| held.status == status && held.reason == reason) {
            continue;
        }
        if written.len() == CONDITIONS_AT_ONCE {
            return true;
        }
        written.insert(name.clone());
        let condition = json!({
            "type": CONDITION,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": kubernetes_proto::meta::Time::from(now),
            "lastHeartbeatTime": kubernetes_proto::meta::Time::from(now),
        });
        plan.patch(
            &**node,
            "status",
            PatchKind::Strategic,
            json!({"status": {"conditions": [condition]}}),
            StatusWrite::No,
        )
        .whatever_version();
    }
    false
}

#[cfg(test)]
mod tests;
