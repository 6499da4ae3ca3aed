//! What every provider must keep, as checks over the protocol alone.

use anyhow::{Context as _, Result, bail, ensure};
use cloud_proto::{
    CreateRouteRequest, DeleteRouteRequest, DescribeRequest, DoneResponse,
    EnsureLoadBalancerDeletedRequest, EnsureLoadBalancerRequest, GetLoadBalancerRequest,
    InstanceRequest, ListRoutesRequest, Node, NodeAddress, Operation, Refusal, Route, Service,
    UpdateLoadBalancerRequest, done_response, ensure_load_balancer_response,
    get_load_balancer_name_response, get_load_balancer_response,
    instance_exists_response::{self, Existence},
    instance_metadata_response, instance_shutdown_response,
    instances_client::InstancesClient,
    list_routes_response,
    load_balancers_client::LoadBalancersClient,
    provider_client::ProviderClient,
    refusal::Reason,
    routes_client::RoutesClient,
};
use serde_json::json;
use tonic::{Code, Response, Status, transport::Channel};

/// A machine that exists.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The name of its node.
    pub name: String,
    /// Its providerID.
    pub provider_id: String,
}

/// What a check has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The rule is kept.
    Kept,
    /// The provider says that it does not have this.
    NotSupported,
}

/// The cluster whose load balancers and routes are made and removed.
const CLUSTER: &str = "manifold-conformance";
/// Epochs: the highest that a check has used is above that of the check before.
const EPOCH: u64 = 10;

type Checked = Result<Verdict>;

/// Runs all checks, one after the other; each with the rule in a sentence.
pub async fn check(channel: Channel, machine: Option<Machine>) -> Vec<(&'static str, Checked)> {
    let suite = Suite { channel };
    let mut results = vec![
        (
            "Describe names the provider and what it supports",
            suite.describes().await,
        ),
        (
            "a load balancer is made once, however often it is ensured",
            suite.ensures().await,
        ),
        (
            "the same load balancer ensured by calls at once is made once",
            suite.ensures_at_once().await,
        ),
        (
            "a load balancer's nodes are replaced, and it keeps its address",
            suite.updates().await,
        ),
        (
            "a load balancer that does not exist is absent, and its removal is done",
            suite.deletes().await,
        ),
        (
            "a load balancer's name is the same each time",
            suite.names().await,
        ),
        (
            "a call of a former owner is refused or changes nothing",
            suite.refuses_former_owners().await,
        ),
        (
            "a route is created once, listed with its node and destination, and deleted",
            suite.routes().await,
        ),
        (
            "the deletion of a route that does not exist is done",
            suite.deletes_routes().await,
        ),
        (
            "a machine that does not exist is denied, and not shut down",
            suite.denies_machines().await,
        ),
    ];
    if let Some(machine) = machine {
        results.push((
            "a machine that exists is confirmed, with its metadata",
            suite.confirms(&machine).await,
        ));
    }
    results
}

struct Suite {
    channel: Channel,
}

/// A Service of this name; its uid is derived from the name.
fn service(name: &str) -> Service {
    let uid = format!("00000000-0000-4000-8000-{:0>12}", name.len());
    let json = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": "conformance", "name": name, "uid": uid, "resourceVersion": "1"},
        "spec": {
            "type": "LoadBalancer",
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080, "nodePort": 30080}],
            "sessionAffinity": "None",
            "externalTrafficPolicy": "Cluster",
        },
    });
    Service {
        namespace: "conformance".to_owned(),
        name: name.to_owned(),
        uid,
        json: json.to_string().into_bytes(),
    }
}

fn node(name: &str) -> Node {
    Node {
        name: name.to_owned(),
        uid: format!("uid-of-{name}"),
        addresses: vec![NodeAddress {
            r#type: "InternalIP".to_owned(),
            address: "10.0.0.1".to_owned(),
        }],
        ..Node::default()
    }
}

fn operation(key: &str, epoch: u64) -> Option<Operation> {
    Some(Operation {
        idempotency_key: key.to_owned(),
        range: 7,
        epoch,
    })
}

/// Why nothing could be checked: it is not there, or broken.
enum Stopped {
    NotSupported,
    Broken(anyhow::Error),
}

impl From<Status> for Stopped {
    fn from(status: Status) -> Self {
        match status.code() {
            Code::Unimplemented => Self::NotSupported,
            _ => Self::Broken(anyhow::anyhow!(
                "gRPC status instead of an answer: {status}"
            )),
        }
    }
}

impl From<Refusal> for Stopped {
    fn from(refusal: Refusal) -> Self {
        match refusal.reason() {
            Reason::NotSupported => Self::NotSupported,
            reason => Self::Broken(anyhow::anyhow!("refused ({reason:?}): {}", refusal.message)),
        }
    }
}

impl From<anyhow::Error> for Stopped {
    fn from(error: anyhow::Error) -> Self {
        Self::Broken(error)
    }
}

fn verdict(result: Result<(), Stopped>) -> Checked {
    match result {
        Ok(()) => Ok(Verdict::Kept),
        Err(Stopped::NotSupported) => Ok(Verdict::NotSupported),
        Err(Stopped::Broken(why)) => Err(why),
    }
}

fn unanswered() -> Stopped {
    Stopped::Broken(anyhow::anyhow!("a response without an answer"))
}

fn done(response: Response<DoneResponse>) -> Result<(), Stopped> {
    match response.into_inner().answer {
        Some(done_response::Answer::Done(_)) => Ok(()),
        Some(done_response::Answer::Refusal(refusal)) => Err(refusal.into()),
        None => Err(unanswered()),
    }
}

impl Suite {
    fn balancers(&self) -> LoadBalancersClient<Channel> {
        LoadBalancersClient::new(self.channel.clone())
    }

    async fn describes(&self) -> Checked {
        let mut client = ProviderClient::new(self.channel.clone());
        let request = DescribeRequest {
            client: "conformance".to_owned(),
        };
        let said = client.describe(request).await?.into_inner();
        ensure!(!said.name.is_empty(), "it has no name");
        ensure!(!said.name.contains("://"), "its name is a providerID");
        ensure!(!said.capabilities.is_empty(), "it supports nothing");
        Ok(Verdict::Kept)
    }

    /// The addresses of the load balancer, as texts.
    async fn ensure(&self, name: &str, nodes: &[&str], epoch: u64) -> Result<Vec<String>, Stopped> {
        let request = EnsureLoadBalancerRequest {
            operation: operation(&format!("ensure {name} {nodes:?}"), epoch),
            cluster_name: CLUSTER.to_owned(),
            service: Some(service(name)),
            nodes: nodes.iter().map(|name| node(name)).collect(),
        };
        let response = self.balancers().ensure_load_balancer(request).await?;
        match response.into_inner().answer {
            Some(ensure_load_balancer_response::Answer::Status(status)) => Ok(status
                .ingress
                .iter()
                .map(|one| format!("{}{}", one.ip, one.hostname))
                .collect()),
            Some(ensure_load_balancer_response::Answer::Refusal(refusal)) => Err(refusal.into()),
            None => Err(unanswered()),
        }
    }

    async fn exists(&self, name: &str) -> Result<bool, Stopped> {
        let request = GetLoadBalancerRequest {
            cluster_name: CLUSTER.to_owned(),
            service: Some(service(name)),
        };
        let response = self.balancers().get_load_balancer(request).await?;
        match response.into_inner().answer {
            Some(get_load_balancer_response::Answer::Exists(_)) => Ok(true),
            Some(get_load_balancer_response::Answer::Absent(_)) => Ok(false),
            Some(get_load_balancer_response::Answer::Refusal(refusal)) => Err(refusal.into()),
            None => Err(unanswered()),
        }
    }

    async fn remove(&self, name: &str, epoch: u64) -> Result<(), Stopped> {
        let request = EnsureLoadBalancerDeletedRequest {
            operation: operation(&format!("delete {name}"), epoch),
            cluster_name: CLUSTER.to_owned(),
            service: Some(service(name)),
        };
        done(
            self.balancers()
                .ensure_load_balancer_deleted(request)
                .await?,
        )
    }

    async fn ensures(&self) -> Checked {
        verdict(
            async {
                let first = self.ensure("a", &["n1"], EPOCH).await?;
                let again = self.ensure("a", &["n1"], EPOCH).await?;
                let later = self.ensure("a", &["n1", "n2"], EPOCH + 1).await?;
                let exists = self.exists("a").await?;
                self.remove("a", EPOCH + 1).await?;
                let same = first == again && first == later;
                check_that(same, format!("addresses {first:?}, {again:?}, {later:?}"))?;
                check_that(exists, "it does not exist after it was ensured")
            }
            .await,
        )
    }

    async fn ensures_at_once(&self) -> Checked {
        verdict(
            async {
                let (one, two, three) = tokio::join!(
                    self.ensure("bb", &["n1"], EPOCH),
                    self.ensure("bb", &["n1"], EPOCH),
                    self.ensure("bb", &["n1"], EPOCH),
                );
                let (one, two, three) = (one?, two?, three?);
                self.remove("bb", EPOCH).await?;
                let gone = !self.exists("bb").await?;
                let same = one == two && two == three;
                check_that(same, format!("addresses {one:?}, {two:?}, {three:?}"))?;
                check_that(gone, "one removal has not removed all")
            }
            .await,
        )
    }

    async fn updates(&self) -> Checked {
        verdict(
            async {
                let first = self.ensure("ccc", &["n1"], EPOCH).await?;
                let request = UpdateLoadBalancerRequest {
                    operation: operation("update ccc", EPOCH),
                    cluster_name: CLUSTER.to_owned(),
                    service: Some(service("ccc")),
                    nodes: vec![node("n2")],
                };
                done(self.balancers().update_load_balancer(request).await?)?;
                let later = self.ensure("ccc", &["n2"], EPOCH).await?;
                self.remove("ccc", EPOCH).await?;
                check_that(first == later, format!("addresses {first:?}, {later:?}"))
            }
            .await,
        )
    }

    async fn deletes(&self) -> Checked {
        verdict(
            async {
                check_that(!self.exists("dddd").await?, "it exists before it was made")?;
                self.remove("dddd", EPOCH).await?;
                self.ensure("dddd", &["n1"], EPOCH).await?;
                self.remove("dddd", EPOCH).await?;
                check_that(!self.exists("dddd").await?, "it exists after its removal")?;
                self.remove("dddd", EPOCH).await
            }
            .await,
        )
    }

    async fn names(&self) -> Checked {
        verdict(
            async {
                let mut names = Vec::new();
                for _ in 0..2 {
                    let request = GetLoadBalancerRequest {
                        cluster_name: CLUSTER.to_owned(),
                        service: Some(service("eeeee")),
                    };
                    let response = self.balancers().get_load_balancer_name(request).await?;
                    names.push(match response.into_inner().answer {
                        Some(get_load_balancer_name_response::Answer::Name(name)) => name,
                        Some(get_load_balancer_name_response::Answer::Refusal(refusal)) => {
                            return Err(refusal.into());
                        }
                        None => return Err(unanswered()),
                    });
                }
                let same = names[0] == names[1] && !names[0].is_empty();
                check_that(same, format!("{names:?}"))
            }
            .await,
        )
    }

    async fn refuses_former_owners(&self) -> Checked {
        verdict(
            async {
                self.ensure("ffffff", &["n1"], EPOCH + 5).await?;
                let late = self.remove("ffffff", EPOCH + 4).await;
                let exists = self.exists("ffffff").await?;
                self.remove("ffffff", EPOCH + 5).await?;
                match late {
                    // A provider without memory of epochs is allowed: this one call is then carried out.
                    Ok(()) => Ok(()),
                    Err(_) => check_that(exists, "it was refused and carried out"),
                }
            }
            .await,
        )
    }

    fn route(name: &str) -> Route {
        Route {
            target_node: name.to_owned(),
            target_addresses: node(name).addresses,
            destination_cidr: "10.99.1.0/24".to_owned(),
            ..Route::default()
        }
    }

    async fn list(&self, target: &str) -> Result<Vec<Route>, Stopped> {
        let mut client = RoutesClient::new(self.channel.clone());
        let request = ListRoutesRequest {
            cluster_name: CLUSTER.to_owned(),
        };
        match client.list_routes(request).await?.into_inner().answer {
            Some(list_routes_response::Answer::List(list)) => {
                let mut routes = list.routes;
                routes.retain(|route| route.target_node == target);
                Ok(routes)
            }
            Some(list_routes_response::Answer::Refusal(refusal)) => Err(refusal.into()),
            None => Err(unanswered()),
        }
    }

    async fn delete_route(&self, route: Route) -> Result<(), Stopped> {
        let mut client = RoutesClient::new(self.channel.clone());
        let request = DeleteRouteRequest {
            operation: operation("delete route", EPOCH),
            cluster_name: CLUSTER.to_owned(),
            route: Some(route),
        };
        done(client.delete_route(request).await?)
    }

    async fn routes(&self) -> Checked {
        verdict(
            async {
                let mut client = RoutesClient::new(self.channel.clone());
                for _ in 0..2 {
                    let request = CreateRouteRequest {
                        operation: operation("create route", EPOCH),
                        cluster_name: CLUSTER.to_owned(),
                        name_hint: "uid-of-n1".to_owned(),
                        route: Some(Self::route("n1")),
                    };
                    done(client.create_route(request).await?)?;
                }
                let listed = self.list("n1").await?;
                for route in &listed {
                    self.delete_route(route.clone()).await?;
                }
                let left = self.list("n1").await?;
                check_that(
                    listed.len() == 1 && listed[0].destination_cidr == "10.99.1.0/24",
                    format!("created twice, listed as {listed:?}"),
                )?;
                check_that(!listed[0].name.is_empty(), "the route has no name")?;
                check_that(
                    left.is_empty(),
                    format!("left after its deletion: {left:?}"),
                )
            }
            .await,
        )
    }

    async fn deletes_routes(&self) -> Checked {
        verdict(
            async {
                let route = Route {
                    name: "never-made".to_owned(),
                    ..Self::route("nobody")
                };
                self.delete_route(route).await
            }
            .await,
        )
    }

    async fn denies_machines(&self) -> Checked {
        verdict(
            async {
                let mut client = InstancesClient::new(self.channel.clone());
                let request = || InstanceRequest {
                    node: Some(node("no-machine-of-this-name")),
                };
                let exists = client.instance_exists(request()).await?.into_inner();
                match exists.answer {
                    Some(instance_exists_response::Answer::Existence(number)) => check_that(
                        Existence::try_from(number) == Ok(Existence::DoesNotExist),
                        "it says that a machine exists that does not",
                    )?,
                    Some(instance_exists_response::Answer::Refusal(refusal)) => {
                        return Err(refusal.into());
                    }
                    None => return Err(unanswered()),
                }
                let shutdown = client.instance_shutdown(request()).await?.into_inner();
                match shutdown.answer {
                    Some(instance_shutdown_response::Answer::Shutdown(true)) => check_that(
                        false,
                        "it says that a machine is shut down that does not exist",
                    ),
                    Some(_) => Ok(()),
                    None => Err(unanswered()),
                }
            }
            .await,
        )
    }

    async fn confirms(&self, machine: &Machine) -> Checked {
        let mut client = InstancesClient::new(self.channel.clone());
        let request = || InstanceRequest {
            node: Some(Node {
                provider_id: machine.provider_id.clone(),
                ..node(&machine.name)
            }),
        };
        let said = client.instance_exists(request()).await;
        let said = said.context("InstanceExists")?.into_inner();
        match said.answer {
            Some(instance_exists_response::Answer::Existence(number)) => ensure!(
                Existence::try_from(number) == Ok(Existence::Exists),
                "it denies a machine that exists"
            ),
            other => bail!("InstanceExists: {other:?}"),
        }
        let said = client.instance_metadata(request()).await;
        match said.context("InstanceMetadata")?.into_inner().answer {
            Some(instance_metadata_response::Answer::Metadata(metadata)) => {
                ensure!(
                    metadata.provider_id.contains("://"),
                    "the providerID {:?} has no provider in front",
                    metadata.provider_id
                );
                Ok(Verdict::Kept)
            }
            other => bail!("InstanceMetadata: {other:?}"),
        }
    }
}

fn check_that(holds: bool, otherwise: impl Into<String>) -> Result<(), Stopped> {
    match holds {
        true => Ok(()),
        false => Err(Stopped::Broken(anyhow::Error::msg(otherwise.into()))),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cloud_proto::describe_response::Capability;

    use super::*;
    use crate::reference::{Fault, Reference, connect};

    async fn checked(cloud: &Reference) -> Vec<(&'static str, Checked)> {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("cloud.sock");
        let _serving = cloud.serve(&socket).unwrap();
        let machine = Machine {
            name: "n1".to_owned(),
            provider_id: "reference://n1".to_owned(),
        };
        check(connect(socket), Some(machine)).await
    }

    #[tokio::test]
    async fn the_reference_provider_keeps_every_rule() {
        let cloud = Reference::new();
        cloud.machine("n1");
        for (rule, result) in checked(&cloud).await {
            assert_eq!(result.unwrap(), Verdict::Kept, "{rule}");
        }
        assert!(cloud.balancers().is_empty() && cloud.routes().is_empty());
        assert!(cloud.doubles().is_empty());
    }

    #[tokio::test]
    async fn what_a_provider_does_not_have_breaks_no_rule() {
        let cloud = Reference::new();
        cloud.machine("n1");
        cloud.without(Capability::Routes);
        cloud.without(Capability::LoadBalancers);
        let results = checked(&cloud).await;
        let not_supported = results
            .iter()
            .filter(|(_, result)| matches!(result, Ok(Verdict::NotSupported)));
        assert_eq!(not_supported.count(), 8);
    }

    #[tokio::test]
    async fn each_fault_is_found() {
        for (call, fault, rule) in [
            ("EnsureLoadBalancer", Fault::Empty, "made once"),
            ("EnsureLoadBalancer", Fault::Down, "made once"),
            ("GetLoadBalancer", Fault::Empty, "is absent"),
            ("EnsureLoadBalancerDeleted", Fault::Empty, "its removal"),
            ("UpdateLoadBalancer", Fault::LostAnswer, "are replaced"),
            ("CreateRoute", Fault::Empty, "a route is created"),
            ("InstanceExists", Fault::Empty, "is denied"),
        ] {
            let cloud = Reference::new();
            cloud.machine("n1");
            cloud.fault(call, fault.clone(), None);
            let results = checked(&cloud).await;
            let broken = results
                .iter()
                .any(|(name, result)| name.contains(rule) && result.is_err());
            assert!(broken, "{call} with {fault:?}: {results:?}");
        }
    }

    #[tokio::test]
    async fn a_fault_passes_after_its_number_of_calls_and_a_slow_answer_is_an_answer() {
        let cloud = Reference::new();
        cloud.machine("n1");
        cloud.fault("Describe", Fault::Slow(Duration::from_millis(20)), Some(1));
        cloud.fault(
            "CreateRoute",
            Fault::Slow(Duration::from_millis(20)),
            Some(2),
        );
        for (rule, result) in checked(&cloud).await {
            assert!(result.is_ok(), "{rule}: {result:?}");
        }
    }
}
