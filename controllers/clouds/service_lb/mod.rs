//! Keeps the load balancer of each Service of type LoadBalancer in line with the Service and the Nodes.
//!
//! Watches services and nodes; patches the finalizer and the status of Services; a key per Service; remembers
//! of what the load balancer was made, by hash, and which call comes next. Invariants:
//! - the finalizer is there before the provider is asked for a load balancer, and goes, by the version seen,
//!   only after the provider has said that there is none or that it is removed;
//! - what is remembered of the load balancer is forgotten, in a plan of its own, before the provider is asked
//!   to change it: a call that is given up half-way leaves no wrong memory. Without memory the load balancer
//!   is ensured once, which is idempotent;
//! - a provider that does not answer removes nothing.

mod facts;

use std::time::Duration;

use controllers_kit::{
    Controller, Descriptor, Event, Failure, Flags, Key, MetricKind, Outcome, PatchKind, Plan,
    Query, Refusal, Requeue, Sharding, Snapshot, StatusWrite, Verb, Watches,
    cloud::{Answered, Call, Deed, Guard, Reason, Refused, Reply},
};
use kubernetes_proto::{
    Object, Str,
    core::{LoadBalancerIngress, Node, Service},
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::flags::{self, UNSUPPORTED_RETRY};
use facts::{BY_WISH, FINALIZER, Wish};

const SYNCS: &str = "service_controller_loadbalancer_sync_total";
const NODE_ERRORS: &str = "service_controller_nodesync_error_total";
const NODE_SECONDS: &str = "service_controller_nodesync_latency_seconds";
const HOST_SECONDS: &str = "service_controller_update_loadbalancer_host_latency_seconds";

/// The controller.
pub struct ServiceLb;

/// What outlasts a plan.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Of the Service that the rest is about.
    uid: String,
    /// The inputs of the provider's load balancer; `None` where they are unknown.
    made: Option<Made>,
    /// The provider's next call, or one that was made without an answer.
    next: Option<Step>,
}

/// What a load balancer was made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Made {
    /// A hash of the Service's part.
    spec: u64,
    /// A hash of the Nodes' names and provider ids.
    nodes: u64,
}

/// A call to the provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Step {
    /// Make or update the load balancer.
    Ensure,
    /// Replace its nodes.
    Update,
    /// Check whether it still exists, after its nodes could not be replaced.
    Recheck {
        /// What the provider was asked for.
        made: Made,
        /// The Nodes' names for the event.
        names: String,
        /// Why that failed.
        error: String,
    },
    /// See whether there is one to be removed.
    Find,
    /// Remove it.
    Delete,
}

impl Step {
    /// Whether it serves the wish.
    fn serves(&self, wish: Wish) -> bool {
        match self {
            Self::Ensure | Self::Update | Self::Recheck { .. } => wish == Wish::Balance,
            Self::Find | Self::Delete => wish == Wish::Clean,
        }
    }
}

/// One Service with what is remembered of it.
struct Context<'a> {
    service: &'a Service,
    seen: &'a Snapshot<'a>,
    wish: Wish,
}

impl Memory {
    /// The wanted state; the memory of another Service of this name does not count.
    fn wish(&self, service: &Service) -> Wish {
        let mine = *self.uid == *service.metadata().uid;
        let dealt =
            mine && (self.made.is_some() || matches!(self.next, Some(Step::Find | Step::Delete)));
        facts::wish(service, dealt)
    }

    /// The next call, if it is for this Service and its wanted state.
    fn step(&self, service: &Service, wish: Wish) -> Option<&Step> {
        let mine = *self.uid == *service.metadata().uid;
        let step = self
            .next
            .as_ref()
            .filter(|step| mine && step.serves(wish))?;
        // Without the finalizer nothing is created that nobody would remove.
        let held = wish == Wish::Clean || facts::is_held(service);
        held.then_some(step)
    }

    fn made(&self, service: &Service) -> Option<Made> {
        self.made.filter(|_| *self.uid == *service.metadata().uid)
    }
}

impl Controller for ServiceLb {
    type Memory = Memory;

    fn describe() -> Descriptor {
        Descriptor::new("service-lb-controller", Sharding::ByObject)
            .aliases(&["service"])
            .service_account("service-controller")
            .event_source("service-controller")
            .queue("service")
            .workers(
                "concurrent-service-syncs",
                1,
                "The number of Services that each replica handles concurrently.",
            )
            .retry_first(Duration::from_secs(5))
            .retry_max(Duration::from_secs(300))
            .with_flags(flags::PROVIDER)
            .runs_where(flags::runs)
            .metric(
                SYNCS,
                MetricKind::Counter,
                &[],
                "A metric counting the amount of times any load balancer has been configured, as an effect of service/node changes on the cluster",
            )
            .metric(
                NODE_ERRORS,
                MetricKind::Counter,
                &[],
                "A metric counting the amount of times any load balancer has been configured and errored, as an effect of node changes on the cluster",
            )
            .metric(
                NODE_SECONDS,
                MetricKind::Histogram(1.0, 2.0, 15),
                &[],
                "A metric measuring the latency for nodesync which updates loadbalancer hosts on cluster node updates.",
            )
            .metric(
                HOST_SECONDS,
                MetricKind::Histogram(1.0, 2.0, 15),
                &[],
                "A metric measuring the latency for updating each load balancer hosts.",
            )
            .rule("", "services", &["get", "list", "watch"])
            .rule("", "services/status", &["patch"])
            .rule("", "nodes", &["list", "watch"])
            .differences(include_str!("differences.md"))
    }

    fn new(_: &Flags) -> Self {
        Self
    }

    fn watch(&self, on: &mut Watches) {
        on.kind::<Service>()
            .indexed_by(BY_WISH, facts::index)
            .wakes(|change, _| {
                let concerns = change.both().any(facts::concerns);
                let keys = change.new.filter(|_| concerns).map(Key::of);
                // A deleted Service wakes its key too, so that its memory is dropped.
                let gone = change.old.filter(|_| concerns && change.new.is_none());
                keys.into_iter().chain(gone.map(Key::of)).collect()
            });
        on.kind::<Node>().wakes(|change, reader| {
            if !facts::node_matters(change.old, change.new) {
                return Vec::new();
            }
            reader
                .indexed(Service::resource(), BY_WISH, facts::ALL)
                .iter()
                .map(|service| Key::of_meta(service.metadata()))
                .collect()
        });
    }

    fn ask(&self, key: &Key, seen: &Snapshot<'_>, memory: &Memory) -> Vec<Query> {
        let Some(service) = seen.get::<Service>(key) else {
            return Vec::new();
        };
        let wish = memory.wish(&service);
        if wish == Wish::Nothing || is_at_rest(&service, seen, memory, wish) {
            return Vec::new();
        }
        let deed = match memory.step(&service, wish) {
            None => return vec![Query::Cloud(Call::read(Deed::Describe))],
            Some(Step::Ensure) => Deed::EnsureLoadBalancer {
                nodes: facts::machines(seen),
            },
            Some(Step::Update) => Deed::UpdateLoadBalancer {
                nodes: facts::machines(seen),
            },
            Some(Step::Recheck { .. } | Step::Find) => Deed::GetLoadBalancer,
            Some(Step::Delete) => Deed::EnsureLoadBalancerDeleted,
        };
        vec![Query::Cloud(Call {
            guard: Guard::unchanged(&*service),
            deed,
        })]
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, memory: &mut Memory) -> Result<Plan, Refusal> {
        let Some(service) = seen.get::<Service>(key) else {
            *memory = Memory::default();
            return Ok(Plan::nothing());
        };
        let wish = memory.wish(&service);
        if wish == Wish::Nothing {
            *memory = Memory::default();
            return Ok(Plan::nothing());
        }
        if is_at_rest(&service, seen, memory, wish) {
            return Ok(Plan::nothing());
        }
        // The calls were made for the Service as it was then: the uid is compared first.
        if *memory.uid != *service.metadata().uid {
            *memory = Memory {
                uid: service.metadata().uid.to_string(),
                ..Memory::default()
            };
        }
        let context = Context {
            service: &service,
            seen,
            wish,
        };
        match seen.cloud().next() {
            None => Ok(Plan::nothing().requeued_at(seen.now)),
            Some((call, answered)) => Ok(context.hear(call, answered, memory)),
        }
    }

    fn learn(&self, outcome: &Outcome<'_>, memory: &mut Memory) {
        let failed = match &outcome.result {
            Ok(_) | Err(Failure::NotFound(_)) => false,
            Err(_) => true,
        };
        // A status that could not be written is written with the next answer of the provider, as in
        // upstream.
        let status = matches!(&outcome.action.verb, Verb::Patch { patch, .. } if patch.get("status").is_some());
        if failed && status {
            memory.made = None;
        }
    }
}

/// Whether the load balancer was made of the present inputs.
fn is_at_rest(service: &Service, seen: &Snapshot<'_>, memory: &Memory, wish: Wish) -> bool {
    let Some(made) = memory.made(service) else {
        return false;
    };
    wish == Wish::Balance
        && memory.next.is_none()
        && facts::is_held(service)
        && made.spec == facts::spec_hash(service)
        && made.nodes == facts::nodes_hash(facts::hosts(seen).iter().map(|node| facts::host(node)))
}

impl Context<'_> {
    /// What follows from an answer of the provider.
    fn hear(&self, call: &Call, answered: Answered, memory: &mut Memory) -> Plan {
        let outcome = answered.outcome;
        if let Err(refused) = &outcome {
            match refused.reason {
                // The missing change wakes the key; the step stays.
                Reason::Stale => {
                    return Plan::nothing().requeued_at(self.seen.now + facts::STALE_RETRY);
                }
                Reason::NotSupported => {
                    memory.next = None;
                    return Plan::nothing().requeued_at(self.seen.now + UNSUPPORTED_RETRY);
                }
                _ => {}
            }
        }
        match (&call.deed, memory.next.take()) {
            (Deed::Describe, _) => self.begin(outcome, memory),
            (Deed::EnsureLoadBalancer { nodes }, Some(Step::Ensure)) => {
                let nodes =
                    facts::nodes_hash(nodes.iter().map(|node| (&*node.name, &*node.provider_id)));
                self.ensured(call, outcome, nodes, memory)
            }
            (Deed::UpdateLoadBalancer { nodes }, Some(Step::Update)) => {
                let made = self.made_by(
                    call,
                    facts::nodes_hash(nodes.iter().map(|node| (&*node.name, &*node.provider_id))),
                );
                let names = facts::loggable(nodes.iter().map(|node| &*node.name));
                self.updated(outcome, made, names, nodes.len(), memory)
            }
            (Deed::GetLoadBalancer, Some(Step::Recheck { made, names, error })) => {
                self.rechecked(&outcome, made, &names, &error, memory)
            }
            (Deed::GetLoadBalancer, Some(Step::Find)) => self.found(outcome, memory),
            (Deed::EnsureLoadBalancerDeleted, Some(Step::Delete)) => self.deleted(outcome, memory),
            // The memory has changed between queries and plan.
            (_, next) => {
                memory.next = next;
                Plan::nothing().requeued_at(self.seen.now)
            }
        }
    }

    /// The inputs of a call's load balancer; `None` where the Service has been replaced.
    fn made_by(&self, call: &Call, nodes: u64) -> Option<Made> {
        let unchanged = Guard::unchanged(self.service) == call.guard;
        unchanged.then(|| Made {
            spec: facts::spec_hash(self.service),
            nodes,
        })
    }

    /// The provider is available: records the next call, and forgets the state that it will change.
    fn begin(&self, outcome: Result<Reply, Refused>, memory: &mut Memory) -> Plan {
        let mut plan = Plan::nothing();
        match outcome {
            Ok(Reply::Provider {
                load_balancers: true,
                ..
            }) => {}
            Ok(_) => return plan.requeued_at(self.seen.now + UNSUPPORTED_RETRY),
            Err(refused) => {
                let doing = match self.wish {
                    Wish::Clean => "failed to check if load balancer exists before cleanup",
                    _ => "failed to ensure load balancer",
                };
                return self.failed(doing, &refused);
            }
        }
        let made = memory.made.take();
        if self.wish == Wish::Clean {
            memory.next = Some(Step::Find);
            plan.requeue = Requeue::Now;
            return plan;
        }
        let held = facts::is_held(self.service);
        if held && made.is_some_and(|made| made.spec == facts::spec_hash(self.service)) {
            memory.next = Some(Step::Update);
            plan.requeue = Requeue::Now;
            return plan;
        }
        self.ensure_next(&mut plan, memory);
        if !held {
            let mut finalizers = self.service.metadata().finalizers.clone();
            finalizers.push(FINALIZER.into());
            plan.patch(
                self.service,
                "status",
                PatchKind::Merge,
                json!({"metadata": {"finalizers": finalizers}}),
                StatusWrite::No,
            );
        }
        plan
    }

    fn ensure_next(&self, plan: &mut Plan, memory: &mut Memory) {
        plan.event(Event::normal(
            self.service,
            "EnsuringLoadBalancer",
            "Ensuring load balancer",
        ));
        if facts::hosts(self.seen).is_empty() {
            plan.event(self.no_hosts());
        }
        memory.next = Some(Step::Ensure);
        plan.requeue = Requeue::Now;
    }

    fn no_hosts(&self) -> Event {
        Event::warning(
            self.service,
            "UnAvailableLoadBalancer",
            "There are no available nodes for LoadBalancer",
        )
    }

    fn ensured(
        &self,
        call: &Call,
        outcome: Result<Reply, Refused>,
        nodes: u64,
        memory: &mut Memory,
    ) -> Plan {
        let mut plan = Plan::nothing();
        match outcome {
            Ok(Reply::LoadBalancer(Some(ingress))) => {
                memory.made = self.made_by(call, nodes);
                plan.event(Event::normal(
                    self.service,
                    "EnsuredLoadBalancer",
                    "Ensured load balancer",
                ));
                self.write_status(&mut plan, &ingress);
            }
            Err(refused) if refused.reason == Reason::ImplementedElsewhere => {
                memory.made = self.made_by(call, nodes);
            }
            Err(refused) => return self.failed("failed to ensure load balancer", &refused),
            Ok(_) => {
                let nil = "service status returned by EnsureLoadBalancer is nil";
                return self.failed_as(nil, None);
            }
        }
        if memory.made.is_none() {
            plan.requeue = Requeue::Now;
        }
        plan
    }

    fn write_status(&self, plan: &mut Plan, ingress: &[LoadBalancerIngress]) {
        if facts::ingress(self.service) == ingress {
            return;
        }
        // The provider's answer is right whatever else has changed.
        plan.patch(
            self.service,
            "status",
            PatchKind::Merge,
            json!({"status": {"loadBalancer": {"ingress": ingress}}}),
            StatusWrite::No,
        )
        .whatever_version();
    }

    fn updated(
        &self,
        outcome: Result<Reply, Refused>,
        made: Option<Made>,
        names: String,
        count: usize,
        memory: &mut Memory,
    ) -> Plan {
        let mut plan = Plan::nothing();
        plan.measure(SYNCS, &[], 1.0);
        plan.time(NODE_SECONDS, &[]);
        plan.time(HOST_SECONDS, &[]);
        let error = match outcome {
            Ok(Reply::Done) => {
                plan.event(match count {
                    0 => self.no_hosts(),
                    _ => Event::normal(
                        self.service,
                        "UpdatedLoadBalancer",
                        "Updated load balancer with new hosts",
                    ),
                });
                None
            }
            Err(refused) if refused.reason == Reason::ImplementedElsewhere => None,
            Err(refused) => Some(refused.message),
            Ok(other) => Some(format!("the provider answered something else: {other:?}")),
        };
        memory.next = match (error, made) {
            (Some(error), Some(made)) => Some(Step::Recheck { made, names, error }),
            _ => None,
        };
        memory.made = made.filter(|_| memory.next.is_none());
        if memory.made.is_none() {
            plan.requeue = Requeue::Now;
        }
        plan
    }

    /// An update has failed, which matters only if the load balancer still exists.
    fn rechecked(
        &self,
        outcome: &Result<Reply, Refused>,
        made: Made,
        names: &str,
        error: &str,
        memory: &mut Memory,
    ) -> Plan {
        let mut plan = Plan::nothing();
        if *outcome == Ok(Reply::LoadBalancer(None)) {
            memory.made = Some(made);
            return plan;
        }
        plan.measure(NODE_ERRORS, &[], 1.0);
        plan.event(Event::warning(
            self.service,
            "UpdateLoadBalancerFailed",
            format!("Error updating load balancer with new hosts {names}, error: {error}"),
        ));
        // As upstream, which queues the Service after this delay.
        self.ensure_next(&mut plan, memory);
        plan
    }

    fn found(&self, outcome: Result<Reply, Refused>, memory: &mut Memory) -> Plan {
        match outcome {
            Ok(Reply::LoadBalancer(None)) => self.release(),
            Ok(Reply::LoadBalancer(Some(_))) => {
                let mut plan = Plan::nothing();
                plan.event(Event::normal(
                    self.service,
                    "DeletingLoadBalancer",
                    "Deleting load balancer",
                ));
                memory.next = Some(Step::Delete);
                plan.requeue = Requeue::Now;
                plan
            }
            other => {
                // Without the finalizer this step alone records that something is to be removed.
                memory.next = Some(Step::Find);
                self.failed(
                    "failed to check if load balancer exists before cleanup",
                    &refusal_of(other),
                )
            }
        }
    }

    fn deleted(&self, outcome: Result<Reply, Refused>, memory: &mut Memory) -> Plan {
        match outcome {
            Ok(Reply::Done) => {}
            Err(refused) if refused.reason == Reason::ImplementedElsewhere => {}
            other => {
                memory.next = Some(Step::Find);
                return self.failed("failed to delete load balancer", &refusal_of(other));
            }
        }
        self.release()
    }

    /// There is no load balancer any more: removes the finalizer and empties the status.
    ///
    /// Irreversible. Verified immediately before: the provider has said of this uid, as a consistent read
    /// had it, that there is no load balancer or that it is removed. The version is the patch's
    /// precondition.
    fn release(&self) -> Plan {
        let mut plan = Plan::nothing();
        let mut patch = json!({});
        if facts::is_held(self.service) {
            let mut finalizers: Vec<Str> = self.service.metadata().finalizers.clone();
            finalizers.retain(|held| **held != *FINALIZER);
            patch["metadata"] = json!({"finalizers": finalizers});
        }
        if !facts::ingress(self.service).is_empty() {
            patch["status"] = json!({"loadBalancer": {"ingress": null}});
        }
        let gone = Event::normal(self.service, "DeletedLoadBalancer", "Deleted load balancer");
        if patch == json!({}) {
            plan.event(gone);
            return plan;
        }
        plan.patch(
            self.service,
            "status",
            PatchKind::Merge,
            patch,
            StatusWrite::No,
        )
        .announce(gone);
        plan
    }

    fn failed(&self, doing: &str, refused: &Refused) -> Plan {
        let at = flags::retry_at(refused, self.seen.now);
        self.failed_as(&format!("{doing}: {}", refused.message), at)
    }

    /// Retries after the provider's delay, or with back-off.
    fn failed_as(&self, why: &str, at: Option<controllers_kit::Timestamp>) -> Plan {
        let mut plan = Plan::nothing();
        plan.event(Event::warning(
            self.service,
            "SyncLoadBalancerFailed",
            format!("Error syncing load balancer: {why}"),
        ));
        match at {
            Some(at) => plan.requeue = Requeue::At(at),
            None => plan.fail(why),
        }
        plan
    }
}

/// The refusal in an unexpected answer.
fn refusal_of(outcome: Result<Reply, Refused>) -> Refused {
    match outcome {
        Err(refused) => refused,
        Ok(other) => Refused::new(
            Reason::Failed,
            format!("the provider answered something else: {other:?}"),
        ),
    }
}

#[cfg(test)]
mod tests;
