//! Calls to a cloud provider, as data: requests and answers.
//!
//! The node executes a call with a deadline (`node/cloud`), over the protocol of `proto/cloud`. Calls that
//! change something at the provider are idempotent. Immediately before such a call the node reads the
//! object that the call is about ([`Guard`]), so that no call rests on a stale cache, and checks the gate
//! of the range.
//!
//! A call that is abandoned (a handoff, a crash) may still be executed by the provider. A controller that
//! remembers the provider's state must therefore forget it before it asks for a call that changes it, in a
//! plan of its own: [`crate::Controller::ask`] cannot write the memory.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use kubernetes_proto::{Object, Resource, Str, core};
use serde::{Deserialize, Serialize};

use crate::{Answer, Key};

/// A call to the cloud provider, with its precondition.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Call {
    /// What must be true of the API server's objects immediately before the call.
    pub guard: Guard,
    /// The operation.
    pub deed: Deed,
}

impl Call {
    /// A call that only reads.
    pub fn read(deed: Deed) -> Self {
        Self {
            guard: Guard::Nothing,
            deed,
        }
    }
}

/// The precondition that the node verifies by a consistent read before a call. Where it does not hold, the
/// call is not made and the answer is [`Reason::Stale`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Guard {
    /// No precondition.
    Nothing,
    /// The object has this uid and resourceVersion. It is sent to the provider as it was read.
    Unchanged {
        /// The object's resource.
        resource: &'static Resource,
        /// The object's key.
        key: Key,
        /// The uid that it must have.
        uid: Str,
        /// The resourceVersion that it must have.
        version: u64,
    },
    /// No Node of this name has this CIDR among its podCIDRs with these addresses.
    NotRouted {
        /// The Node's name; without one nothing is verified.
        node: String,
        /// The CIDR in the route's spelling.
        cidr: String,
        /// For a route that is replaced because the Node has other addresses: the route's addresses.
        addresses: Option<Vec<Address>>,
    },
}

impl Guard {
    /// The precondition that an object is unchanged since it was seen.
    pub fn unchanged<T: Object>(object: &T) -> Self {
        let meta = object.metadata();
        Self::Unchanged {
            resource: T::resource(),
            key: Key::of(object),
            uid: meta.uid.clone(),
            version: meta.resource_version,
        }
    }
}

/// An operation of the provider.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Deed {
    /// Reads the provider's capabilities: [`Reply::Provider`]. The node remembers them for each connection.
    Describe,
    /// Whether the load balancer of the guard's Service exists: [`Reply::LoadBalancer`].
    GetLoadBalancer,
    /// Creates or updates it: [`Reply::LoadBalancer`] with its status.
    EnsureLoadBalancer {
        /// The target nodes.
        nodes: Vec<Node>,
    },
    /// Replaces the target nodes: [`Reply::Done`].
    UpdateLoadBalancer {
        /// The target nodes.
        nodes: Vec<Node>,
    },
    /// Deletes the load balancer: [`Reply::Done`].
    EnsureLoadBalancerDeleted,
    /// Whether a machine exists: [`Reply::Is`].
    InstanceExists(Box<Node>),
    /// Whether it is shut down: [`Reply::Is`].
    InstanceShutdown(Box<Node>),
    /// Lists the cluster's routes: [`Reply::Routes`].
    ListRoutes,
    /// Creates a route: [`Reply::Done`].
    CreateRoute {
        /// The Node's uid, by which a provider may name the route.
        hint: String,
        /// The route, without a name.
        route: Route,
    },
    /// Deletes a route: [`Reply::Done`].
    DeleteRoute {
        /// The route as it was listed.
        route: Route,
    },
}

impl Deed {
    /// Whether the provider changes anything for it.
    pub fn changes(&self) -> bool {
        match self {
            Self::EnsureLoadBalancer { .. }
            | Self::UpdateLoadBalancer { .. }
            | Self::EnsureLoadBalancerDeleted
            | Self::CreateRoute { .. }
            | Self::DeleteRoute { .. } => true,
            Self::Describe
            | Self::GetLoadBalancer
            | Self::InstanceExists(_)
            | Self::InstanceShutdown(_)
            | Self::ListRoutes => false,
        }
    }

    /// The call's name in metrics and logs, that of upstream's interface.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Describe => "Describe",
            Self::GetLoadBalancer => "GetLoadBalancer",
            Self::EnsureLoadBalancer { .. } => "EnsureLoadBalancer",
            Self::UpdateLoadBalancer { .. } => "UpdateLoadBalancer",
            Self::EnsureLoadBalancerDeleted => "EnsureLoadBalancerDeleted",
            Self::InstanceExists(_) => "InstanceExists",
            Self::InstanceShutdown(_) => "InstanceShutdown",
            Self::ListRoutes => "ListRoutes",
            Self::CreateRoute { .. } => "CreateRoute",
            Self::DeleteRoute { .. } => "DeleteRoute",
        }
    }
}

/// An address of a Node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Address {
    /// As in `InternalIP`.
    pub r#type: String,
    /// The address.
    pub address: String,
}

/// A Node as the provider gets it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// `spec.providerID`.
    pub provider_id: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// `status.addresses`.
    pub addresses: Vec<Address>,
    /// `spec.podCIDRs`.
    pub pod_cidrs: Vec<String>,
}

impl Node {
    /// Of the API's Node.
    pub fn of(node: &core::Node) -> Self {
        let meta = Object::metadata(node);
        let entries = |list: &[kubernetes_proto::meta::Entry]| {
            list.iter()
                .map(|entry| (entry.key.to_string(), entry.value.to_string()))
                .collect()
        };
        let spec = node.spec.as_ref();
        Self {
            name: meta.name.to_string(),
            uid: meta.uid.to_string(),
            provider_id: spec.map_or_else(String::new, |spec| spec.provider_id.clone()),
            labels: entries(&meta.labels),
            annotations: entries(&meta.annotations),
            addresses: addresses(node),
            pod_cidrs: spec.map_or_else(Vec::new, |spec| spec.pod_cid_rs.clone()),
        }
    }
}

/// The addresses of a Node.
pub fn addresses(node: &core::Node) -> Vec<Address> {
    let status = node.status.as_ref();
    let addresses = status.map_or(&[][..], |status| &status.addresses);
    addresses
        .iter()
        .map(|one| Address {
            r#type: one.r#type.clone(),
            address: one.address.clone(),
        })
        .collect()
}

/// A route.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Route {
    /// The provider's name for the route.
    pub name: String,
    /// The Node that it leads to.
    pub target_node: String,
    /// Whether its addresses must be those of the Node.
    pub compare_addresses: bool,
    /// Its addresses.
    pub target_addresses: Vec<Address>,
    /// As in `10.0.1.0/24`.
    pub destination: String,
    /// Whether its target no longer exists.
    pub blackhole: bool,
}

/// A provider's answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// Which groups of calls it supports.
    Provider {
        /// The provider's name.
        name: String,
        /// Whether it supports calls for instances.
        instances: bool,
        /// Whether it supports load balancers.
        load_balancers: bool,
        /// Whether it supports routes.
        routes: bool,
    },
    /// The status of a load balancer; `None` where it certainly does not exist.
    LoadBalancer(Option<Vec<core::LoadBalancerIngress>>),
    /// The operation has completed.
    Done,
    /// A definite yes or no.
    Is(bool),
    /// All routes of the cluster.
    Routes(Vec<Route>),
}

/// Why a call was not carried out, or its result is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// The provider has failed, can't be reached, or has not answered: the call may have been carried out.
    Failed,
    /// The provider does not support the operation.
    NotSupported,
    /// Another controller implements it.
    ImplementedElsewhere,
    /// The provider has no such instance.
    InstanceNotFound,
    /// The cache is behind the API server ([`Guard`]), or the range has another owner.
    Stale,
}

/// A call that failed or was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// The class of the failure.
    pub reason: Reason,
    /// The provider's message, or ours where it could not be reached.
    pub message: String,
    /// The delay of the next attempt, where the provider names one.
    pub retry_after: Option<Duration>,
}

impl Refused {
    /// A refusal without a delay for the next attempt.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            retry_after: None,
        }
    }
}

/// The result of a call.
pub type Outcome = Result<Reply, Refused>;

/// The result of a call with its duration.
#[derive(Clone, Debug, PartialEq)]
pub struct Answered {
    /// The result.
    pub outcome: Outcome,
    /// The time from the call to its answer.
    pub took: Duration,
}

#[derive(Serialize, Deserialize)]
struct Wire {
    outcome: Outcome,
    took: Duration,
}

/// Encodes a call's result as an answer to a query.
pub fn answer(outcome: Outcome, took: Duration) -> Answer {
    match serde_json::to_value(Wire { outcome, took }) {
        Ok(json) => Answer::Object(Arc::new(json)),
        Err(why) => Answer::Failed(why.to_string()),
    }
}

/// Decodes an answer of [`answer`]; any other counts as a failed call.
pub fn read(answer: &Answer) -> Answered {
    let failed = |why: String| Answered {
        outcome: Err(Refused::new(Reason::Failed, why)),
        took: Duration::ZERO,
    };
    match answer {
        Answer::Object(json) => match Wire::deserialize(&**json) {
            Ok(Wire { outcome, took }) => Answered { outcome, took },
            Err(why) => failed(why.to_string()),
        },
        Answer::Missing => failed("no cloud provider is configured".to_owned()),
        Answer::NotFound(why) | Answer::Failed(why) => failed(why.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_as_it_was_given() {
        let ingress = core::LoadBalancerIngress {
            ip: "192.0.2.1".to_owned(),
            ..Default::default()
        };
        let refused = Refused {
            retry_after: Some(Duration::from_millis(1500)),
            ..Refused::new(Reason::ImplementedElsewhere, "elsewhere")
        };
        for outcome in [
            Ok(Reply::Done),
            Ok(Reply::Is(false)),
            Ok(Reply::LoadBalancer(None)),
            Ok(Reply::LoadBalancer(Some(vec![ingress]))),
            Ok(Reply::Routes(vec![Route::default()])),
            Err(refused),
        ] {
            let took = Duration::from_micros(1234);
            let read = read(&answer(outcome.clone(), took));
            assert_eq!(read, Answered { outcome, took });
        }
    }

    #[test]
    fn a_missing_provider_answer_says_nothing_about_the_cloud() {
        for answer in [
            Answer::Missing,
            Answer::NotFound("gone".to_owned()),
            Answer::Failed("down".to_owned()),
            Answer::Object(Arc::new(
                serde_json::json!({"outcome": {"Ok": {"Is": "maybe"}}}),
            )),
        ] {
            let outcome = read(&answer).outcome;
            assert_eq!(outcome.unwrap_err().reason, Reason::Failed, "{answer:?}");
        }
    }
}
