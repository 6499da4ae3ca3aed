//! Calls to a cloud provider, as data: what a controller asks for and what it is answered.
//!
//! The node carries a call out with a deadline (`node/cloud`), over the protocol of `proto/cloud`. Calls that
//! change something at the provider are idempotent. Right before such a call the node reads the object that
//! the call is about ([`Guard`]), so that no call rests on a stale cache, and asks the gate of the range.
//!
//! A call that is given up half-way (a handoff, a crash) may still be carried out by the provider. A
//! controller that remembers what the provider has must therefore note that it no longer knows before it asks
//! for a call that changes it, in a plan of its own: [`crate::Controller::ask`] cannot write the memory.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use kubernetes_proto::{Object, Resource, Str, core};
use serde::{Deserialize, Serialize};

use crate::{Answer, Key};

/// A call.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Call {
    /// What must be true of the API server's objects right before it.
    pub guard: Guard,
    /// What is to be done.
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

/// What the node verifies by a consistent read before a call. Where it is not so, the call is not made and
/// the answer is [`Reason::Stale`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Guard {
    /// Nothing.
    Nothing,
    /// The object has this uid and resourceVersion. It is sent to the provider as it was read.
    Unchanged {
        /// Its resource.
        resource: &'static Resource,
        /// Its key.
        key: Key,
        /// Its uid.
        uid: Str,
        /// Its resourceVersion.
        version: u64,
    },
    /// No Node of this name has this CIDR among its podCIDRs with these addresses.
    NotRouted {
        /// The Node's name; without one nothing is verified.
        node: String,
        /// The CIDR as the route has it.
        cidr: String,
        /// Of a route that is replaced because the Node has other addresses: those of the route.
        addresses: Option<Vec<Address>>,
    },
}

impl Guard {
    /// That an object is as it was seen.
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

/// What a provider does.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Deed {
    /// Says what it supports: [`Reply::Provider`]. The node remembers it for each connection.
    Describe,
    /// Whether the load balancer of the guard's Service exists: [`Reply::LoadBalancer`].
    GetLoadBalancer,
    /// Makes or updates it: [`Reply::LoadBalancer`] with its status.
    EnsureLoadBalancer {
        /// The nodes behind it.
        nodes: Vec<Node>,
    },
    /// Replaces the nodes behind it: [`Reply::Done`].
    UpdateLoadBalancer {
        /// The nodes behind it.
        nodes: Vec<Node>,
    },
    /// Removes it: [`Reply::Done`].
    EnsureLoadBalancerDeleted,
    /// Whether a machine exists: [`Reply::Is`].
    InstanceExists(Box<Node>),
    /// Whether it is shut down: [`Reply::Is`].
    InstanceShutdown(Box<Node>),
    /// [`Reply::Routes`].
    ListRoutes,
    /// [`Reply::Done`].
    CreateRoute {
        /// The Node's uid.
        hint: String,
        /// The route; without a name.
        route: Route,
    },
    /// [`Reply::Done`].
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

    /// For metrics and logs, in the words of upstream's interface.
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

/// What a provider gets of a Node.
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
    /// The provider's name of it.
    pub name: String,
    /// The Node that it leads to.
    pub target_node: String,
    /// Whether its addresses must be those of the Node.
    pub compare_addresses: bool,
    /// Its addresses.
    pub target_addresses: Vec<Address>,
    /// As in `10.0.1.0/24`.
    pub destination: String,
    /// It leads nowhere.
    pub blackhole: bool,
}

/// What a provider answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// Which groups of calls it supports.
    Provider {
        /// Its name.
        name: String,
        /// Machines of nodes.
        instances: bool,
        /// Load balancers.
        load_balancers: bool,
        /// Routes.
        routes: bool,
    },
    /// The status of a load balancer; `None` where it certainly does not exist.
    LoadBalancer(Option<Vec<core::LoadBalancerIngress>>),
    /// It is done.
    Done,
    /// A definite yes or no.
    Is(bool),
    /// All routes of the cluster.
    Routes(Vec<Route>),
}

/// Why a call was not carried out, or nothing is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// The provider has failed, can't be reached, or has not answered: the call may have been carried out.
    Failed,
    /// The provider does not have it.
    NotSupported,
    /// Another controller does it.
    ImplementedElsewhere,
    /// There is no such machine.
    InstanceNotFound,
    /// The cache is behind the API server ([`Guard`]), or the range has another owner.
    Stale,
}

/// A call that was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Why.
    pub reason: Reason,
    /// The provider's words, or ours where it could not be asked.
    pub message: String,
    /// When to repeat it, where the provider says so.
    pub retry_after: Option<Duration>,
}

impl Refused {
    /// Without a time of its own for the next attempt.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            retry_after: None,
        }
    }
}

/// What came of a call.
pub type Outcome = Result<Reply, Refused>;

/// What came of a call, and how long it took.
#[derive(Clone, Debug, PartialEq)]
pub struct Answered {
    /// What came of it.
    pub outcome: Outcome,
    /// From its begin to its end.
    pub took: Duration,
}

#[derive(Serialize, Deserialize)]
struct Wire {
    outcome: Outcome,
    took: Duration,
}

/// As an answer to a query.
pub fn answer(outcome: Outcome, took: Duration) -> Answer {
    match serde_json::to_value(Wire { outcome, took }) {
        Ok(json) => Answer::Object(Arc::new(json)),
        Err(why) => Answer::Failed(why.to_string()),
    }
}

/// What an answer says. One that was not made by [`answer`] says that the call failed.
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
    fn what_is_no_answer_of_a_provider_says_nothing_of_the_cloud() {
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
