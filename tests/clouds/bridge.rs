//! The reference provider for upstream's controllers: what Manifold asks over gRPC, the program of
//! `tests/controlplane/cloud-controllers` asks in JSON, a request and an answer for each connection. Both
//! ends are at the same calls of the same provider, faults included.

use std::{io, path::Path};

use anyhow::{Context, Result};
use cloud_proto::{
    CreateRouteRequest, DeleteRouteRequest, DoneResponse, EnsureLoadBalancerDeletedRequest,
    EnsureLoadBalancerRequest, GetLoadBalancerRequest, InstanceRequest, ListRoutesRequest,
    LoadBalancerStatus, Node, NodeAddress, Refusal, Route, Service, UpdateLoadBalancerRequest,
    done_response, ensure_load_balancer_response, get_load_balancer_response,
    instance_exists_response::{self, Existence},
    instance_shutdown_response,
    instances_server::Instances,
    list_routes_response,
    load_balancers_server::LoadBalancers,
    refusal::Reason,
    routes_server::Routes,
};
use cloud_provider::reference::Reference;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    task::JoinHandle,
};
use tonic::{Request, Status};

use super::CLUSTER;

/// What Manifold says of a response that has no answer in it: the words of the caller's side.
const UNANSWERED: &str = "the provider's response has no answer in it";

/// The server, until it is dropped.
pub(super) struct Bridge(JoinHandle<()>);

impl Drop for Bridge {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Serves a cloud on a Unix socket.
pub(super) fn serve(cloud: &Reference, socket: &Path) -> io::Result<Bridge> {
    let listener = UnixListener::bind(socket)?;
    let cloud = cloud.clone();
    Ok(Bridge(tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            let cloud = cloud.clone();
            tokio::spawn(async move {
                if let Err(error) = converse(&cloud, connection).await {
                    eprintln!("clouds: upstream's controllers: {error:#}");
                }
            });
        }
    })))
}

async fn converse(cloud: &Reference, connection: UnixStream) -> Result<()> {
    let mut connection = BufReader::new(connection);
    let mut line = String::new();
    connection.read_line(&mut line).await?;
    let request: Value = serde_json::from_str(&line).context("a request")?;
    let mut answer = answered(cloud, &request).await.to_string();
    answer.push('\n');
    // Who asked may have been stopped meanwhile.
    let _gone = connection.into_inner().write_all(answer.as_bytes()).await;
    Ok(())
}

async fn answered(cloud: &Reference, request: &Value) -> Value {
    match ask(cloud, request).await {
        Ok(answer) => answer,
        Err(status) => json!({"error": format!("{:?}: {}", status.code(), status.message())}),
    }
}

fn text(value: &Value, pointer: &str) -> String {
    let text = value.pointer(pointer).and_then(Value::as_str);
    text.unwrap_or_default().to_owned()
}

fn service_of(request: &Value) -> Option<Service> {
    let json = &request["service"];
    Some(Service {
        namespace: text(json, "/metadata/namespace"),
        name: text(json, "/metadata/name"),
        uid: text(json, "/metadata/uid"),
        json: json.to_string().into_bytes(),
    })
}

fn addresses_of(list: &Value) -> Vec<NodeAddress> {
    let list = list.as_array().into_iter().flatten();
    list.map(|one| NodeAddress {
        r#type: text(one, "/type"),
        address: text(one, "/address"),
    })
    .collect()
}

fn nodes_of(request: &Value) -> Vec<Node> {
    let nodes = request["nodes"].as_array().into_iter().flatten();
    nodes
        .map(|node| Node {
            name: text(node, "/metadata/name"),
            uid: text(node, "/metadata/uid"),
            provider_id: text(node, "/spec/providerID"),
            addresses: addresses_of(&node["status"]["addresses"]),
            ..Node::default()
        })
        .collect()
}

fn route_of(request: &Value) -> Option<Route> {
    let route = &request["route"];
    Some(Route {
        name: text(route, "/name"),
        target_node: text(route, "/targetNode"),
        compare_addresses: route["compareAddresses"] == true,
        target_addresses: addresses_of(&route["targetAddresses"]),
        destination_cidr: text(route, "/destinationCidr"),
        blackhole: route["blackhole"] == true,
    })
}

fn shown(route: &Route) -> Value {
    let addresses = route.target_addresses.iter();
    let addresses: Vec<Value> = addresses
        .map(|one| json!({"type": one.r#type, "address": one.address}))
        .collect();
    json!({
        "name": route.name,
        "targetNode": route.target_node,
        "compareAddresses": route.compare_addresses,
        "targetAddresses": addresses,
        "destinationCidr": route.destination_cidr,
        "blackhole": route.blackhole,
    })
}

fn status(status: &LoadBalancerStatus) -> Value {
    let ingress: Vec<Value> = (status.ingress.iter())
        .map(|one| json!({"ip": one.ip}))
        .collect();
    json!({"status": {"ingress": ingress}})
}

fn refused(refusal: &Refusal) -> Value {
    let kind = match Reason::try_from(refusal.reason) {
        Ok(Reason::ImplementedElsewhere) => "ImplementedElsewhere",
        Ok(Reason::InstanceNotFound) => "InstanceNotFound",
        _ => "",
    };
    json!({"error": refusal.message, "kind": kind, "retryAfterMs": refusal.retry_after_ms})
}

fn unanswered() -> Value {
    json!({"error": UNANSWERED})
}

fn done(response: DoneResponse) -> Value {
    match response.answer {
        Some(done_response::Answer::Done(_)) => json!({}),
        Some(done_response::Answer::Refusal(refusal)) => refused(&refusal),
        None => unanswered(),
    }
}

async fn ask(cloud: &Reference, request: &Value) -> Result<Value, Status> {
    let cluster_name = CLUSTER.to_owned();
    let operation = None;
    Ok(match request["call"].as_str().unwrap_or_default() {
        "GetLoadBalancer" => {
            use get_load_balancer_response::Answer;
            let asked = GetLoadBalancerRequest {
                cluster_name,
                service: service_of(request),
            };
            let response = cloud.get_load_balancer(Request::new(asked)).await?;
            match response.into_inner().answer {
                Some(Answer::Exists(found)) => status(&found),
                Some(Answer::Absent(_)) => json!({}),
                Some(Answer::Refusal(refusal)) => refused(&refusal),
                None => unanswered(),
            }
        }
        "EnsureLoadBalancer" => {
            use ensure_load_balancer_response::Answer;
            let asked = EnsureLoadBalancerRequest {
                operation,
                cluster_name,
                service: service_of(request),
                nodes: nodes_of(request),
            };
            let response = cloud.ensure_load_balancer(Request::new(asked)).await?;
            match response.into_inner().answer {
                Some(Answer::Status(made)) => status(&made),
                Some(Answer::Refusal(refusal)) => refused(&refusal),
                // Neither a status nor an error, as a provider in Go can return too.
                None => json!({}),
            }
        }
        "UpdateLoadBalancer" => {
            let asked = UpdateLoadBalancerRequest {
                operation,
                cluster_name,
                service: service_of(request),
                nodes: nodes_of(request),
            };
            let response = cloud.update_load_balancer(Request::new(asked)).await?;
            done(response.into_inner())
        }
        "EnsureLoadBalancerDeleted" => {
            let asked = EnsureLoadBalancerDeletedRequest {
                operation,
                cluster_name,
                service: service_of(request),
            };
            let asked = Request::new(asked);
            done(
                cloud
                    .ensure_load_balancer_deleted(asked)
                    .await?
                    .into_inner(),
            )
        }
        "InstanceExists" => {
            use instance_exists_response::Answer;
            let node = nodes_of(request).into_iter().next();
            let response = cloud.instance_exists(Request::new(InstanceRequest { node }));
            match response.await?.into_inner().answer {
                Some(Answer::Existence(existence)) => match Existence::try_from(existence) {
                    Ok(Existence::Exists) => json!({"yes": true}),
                    Ok(Existence::DoesNotExist) => json!({"yes": false}),
                    _ => unanswered(),
                },
                Some(Answer::Refusal(refusal)) => refused(&refusal),
                None => unanswered(),
            }
        }
        "InstanceShutdown" => {
            use instance_shutdown_response::Answer;
            let node = nodes_of(request).into_iter().next();
            let response = cloud.instance_shutdown(Request::new(InstanceRequest { node }));
            match response.await?.into_inner().answer {
                Some(Answer::Shutdown(shutdown)) => json!({"yes": shutdown}),
                Some(Answer::Refusal(refusal)) => refused(&refusal),
                None => unanswered(),
            }
        }
        "ListRoutes" => {
            use list_routes_response::Answer;
            let response = cloud.list_routes(Request::new(ListRoutesRequest { cluster_name }));
            match response.await?.into_inner().answer {
                Some(Answer::List(list)) => {
                    json!({"routes": list.routes.iter().map(shown).collect::<Vec<_>>()})
                }
                Some(Answer::Refusal(refusal)) => refused(&refusal),
                None => unanswered(),
            }
        }
        "CreateRoute" => {
            let asked = CreateRouteRequest {
                operation,
                cluster_name,
                name_hint: text(request, "/nameHint"),
                route: route_of(request),
            };
            done(cloud.create_route(Request::new(asked)).await?.into_inner())
        }
        "DeleteRoute" => {
            let asked = DeleteRouteRequest {
                operation,
                cluster_name,
                route: route_of(request),
            };
            done(cloud.delete_route(Request::new(asked)).await?.into_inner())
        }
        other => return Err(Status::unimplemented(format!("the call {other:?}"))),
    })
}
