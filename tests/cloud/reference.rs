//! The reference provider: machines, load balancers and routes in memory, with faults on demand.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use cloud_proto::{
    CreateRouteRequest, DeleteRouteRequest, DescribeRequest, DescribeResponse, Done, DoneResponse,
    EnsureLoadBalancerDeletedRequest, EnsureLoadBalancerRequest, EnsureLoadBalancerResponse,
    GetLoadBalancerNameResponse, GetLoadBalancerRequest, GetLoadBalancerResponse,
    InstanceExistsResponse, InstanceMetadata, InstanceMetadataResponse, InstanceRequest,
    InstanceShutdownResponse, ListRoutesRequest, ListRoutesResponse, LoadBalancerIngress,
    LoadBalancerStatus, MESSAGE_BYTES_MAX, Node, Operation, Refusal, Route, RouteList, Service,
    UpdateLoadBalancerRequest,
    describe_response::Capability,
    done_response, ensure_load_balancer_response, get_load_balancer_name_response,
    get_load_balancer_response,
    instance_exists_response::{self, Existence},
    instance_metadata_response, instance_shutdown_response,
    instances_server::{Instances, InstancesServer},
    list_routes_response,
    load_balancers_server::{LoadBalancers, LoadBalancersServer},
    provider_server::{Provider, ProviderServer},
    refusal::Reason,
    routes_server::{Routes, RoutesServer},
};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{UnixListener, UnixStream},
    sync::oneshot,
};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{
    Request, Response, Status,
    transport::{Channel, Endpoint, Server},
};

/// What goes wrong with calls of a name, as in `EnsureLoadBalancer`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// gRPC's UNAVAILABLE: nothing is done.
    Down,
    /// It is done after this time.
    Slow(Duration),
    /// Nothing is done, for this reason.
    Refuse(Reason, String),
    /// Nothing is done; the caller is to come back after this time.
    RetryAfter(Duration),
    /// It is done, and the answer is lost.
    LostAnswer,
    /// It is not done, and the response has no answer in it.
    Empty,
}

/// A load balancer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Balancer {
    /// `namespace/name` of its Service.
    pub service: String,
    /// Names of the nodes behind it.
    pub nodes: BTreeSet<String>,
    /// Its address.
    pub ip: String,
    /// The Service's ports.
    pub ports: Vec<i64>,
}

/// A call as it came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Called {
    /// As in `EnsureLoadBalancer`.
    pub call: &'static str,
    /// The load balancer's Service, the node, or the route's node and destination.
    pub about: String,
    /// The epoch that it carried.
    pub epoch: u64,
}

#[derive(Default)]
struct State {
    /// By node name: whether it is shut down.
    machines: BTreeMap<String, bool>,
    /// By uid of the Service.
    balancers: BTreeMap<String, Balancer>,
    /// By node and destination, in each cluster.
    routes: BTreeMap<(String, String, String), Route>,
    /// The highest epoch for each object in a range: those of different ranges are not compared.
    epochs: BTreeMap<(String, u32), u64>,
    faults: BTreeMap<&'static str, Vec<(Fault, Option<usize>)>>,
    calls: Vec<Called>,
    unsupported: BTreeSet<i32>,
    made: u32,
    /// Load balancers and routes that were made twice: a broken rule of the caller or of this provider.
    doubles: Vec<String>,
}

/// Remembered calls; beyond it the oldest are forgotten.
const CALLS_MAX: usize = 100_000;

/// A cloud in memory. Clones are of the same cloud.
#[derive(Clone, Default)]
pub struct Reference {
    state: Arc<Mutex<State>>,
}

/// What a call is to go through before and after it is done.
struct Course {
    lost: bool,
}

impl Reference {
    /// An empty cloud.
    pub fn new() -> Self {
        Self::default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A machine for a node of this name, running.
    pub fn machine(&self, name: &str) {
        self.state().machines.insert(name.to_owned(), false);
    }

    /// The machine is shut down.
    pub fn shut_down(&self, name: &str) {
        self.state().machines.insert(name.to_owned(), true);
    }

    /// The machine is gone.
    pub fn terminate(&self, name: &str) {
        self.state().machines.remove(name);
    }

    /// The provider does not have this.
    pub fn without(&self, capability: Capability) {
        self.state().unsupported.insert(capability.into());
    }

    /// From now on calls of this name fail so: this number of them, or all.
    pub fn fault(&self, call: &'static str, fault: Fault, times: Option<usize>) {
        let mut state = self.state();
        state.faults.entry(call).or_default().push((fault, times));
    }

    /// From now on these calls fail so, and no other does.
    pub fn fail(&self, calls: &[&'static str], fault: &Fault) {
        let faults = calls
            .iter()
            .map(|call| (*call, vec![(fault.clone(), None)]));
        self.state().faults = faults.collect();
    }

    /// No faults any more.
    pub fn mend(&self) {
        self.state().faults.clear();
    }

    /// All load balancers, by `namespace/name`.
    pub fn balancers(&self) -> BTreeMap<String, Balancer> {
        let state = self.state();
        let all = state.balancers.values();
        all.map(|one| (one.service.clone(), one.clone())).collect()
    }

    /// All routes as `node destination`.
    pub fn routes(&self) -> Vec<String> {
        let state = self.state();
        let all = state.routes.values();
        all.map(|route| format!("{} {}", route.target_node, route.destination_cidr))
            .collect()
    }

    /// A route that somebody has made by hand.
    pub fn put_route(&self, cluster: &str, route: Route) {
        let key = (
            cluster.to_owned(),
            route.target_node.clone(),
            route.destination_cidr.clone(),
        );
        self.state().routes.insert(key, route);
    }

    /// All calls so far.
    pub fn calls(&self) -> Vec<Called> {
        self.state().calls.clone()
    }

    /// How many calls of a name there were.
    pub fn count(&self, call: &str) -> usize {
        let state = self.state();
        state.calls.iter().filter(|one| one.call == call).count()
    }

    /// What was made twice.
    pub fn doubles(&self) -> Vec<String> {
        self.state().doubles.clone()
    }

    /// Serves it on a Unix socket until the guard is dropped.
    ///
    /// # Errors
    /// Where the socket can't be made.
    pub fn serve(&self, socket: &Path) -> io::Result<Serving> {
        let _gone = std::fs::remove_file(socket);
        let incoming = UnixListenerStream::new(UnixListener::bind(socket)?);
        let limit = MESSAGE_BYTES_MAX;
        let (stop, ends) = oneshot::channel();
        let server = Server::builder()
            .add_service(ProviderServer::new(self.clone()))
            .add_service(InstancesServer::new(self.clone()).max_decoding_message_size(limit))
            .add_service(LoadBalancersServer::new(self.clone()).max_decoding_message_size(limit))
            .add_service(RoutesServer::new(self.clone()).max_encoding_message_size(limit))
            .serve_with_incoming_shutdown(incoming, async move {
                let _dropped = ends.await;
            });
        tokio::spawn(server);
        Ok(Serving { _stop: stop })
    }

    /// Notes a call and goes through the fault that is due.
    async fn enter(
        &self,
        call: &'static str,
        about: &str,
        operation: Option<&Operation>,
    ) -> Result<Result<Course, Option<Refusal>>, Status> {
        let fault = {
            let mut state = self.state();
            if state.calls.len() >= CALLS_MAX {
                state.calls.remove(0);
            }
            let epoch = operation.map_or(0, |operation| operation.epoch);
            state.calls.push(Called {
                call,
                about: about.to_owned(),
                epoch,
            });
            let due = state.faults.get_mut(call).and_then(|faults| {
                let (fault, times) = faults.first_mut()?;
                let fault = fault.clone();
                if let Some(times) = times {
                    *times -= 1;
                    if *times == 0 {
                        faults.remove(0);
                    }
                }
                Some(fault)
            });
            if let Some(operation) = operation {
                let highest = state
                    .epochs
                    .entry((about.to_owned(), operation.range))
                    .or_default();
                if operation.epoch < *highest {
                    return Ok(Err(Some(refusal(
                        Reason::Superseded,
                        "a later owner has called",
                    ))));
                }
                *highest = operation.epoch;
            }
            due
        };
        let mut course = Course { lost: false };
        match fault {
            None => {}
            Some(Fault::Down) => return Err(Status::unavailable("injected: down")),
            Some(Fault::Slow(time)) => tokio::time::sleep(time).await,
            Some(Fault::Refuse(reason, why)) => return Ok(Err(Some(refusal(reason, &why)))),
            Some(Fault::RetryAfter(time)) => {
                return Ok(Err(Some(Refusal {
                    retry_after_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
                    ..refusal(Reason::Failed, "not ready yet")
                })));
            }
            Some(Fault::LostAnswer) => course.lost = true,
            Some(Fault::Empty) => return Ok(Err(None)),
        }
        Ok(Ok(course))
    }

    fn supports(&self, capability: Capability) -> Result<(), Status> {
        match self.state().unsupported.contains(&i32::from(capability)) {
            true => Err(Status::unimplemented("this cloud does not have it")),
            false => Ok(()),
        }
    }
}

impl Course {
    fn leave<T>(self, answer: T) -> Result<Response<T>, Status> {
        match self.lost {
            true => Err(Status::unavailable("injected: the answer is lost")),
            false => Ok(Response::new(answer)),
        }
    }
}

fn refusal(reason: Reason, message: &str) -> Refusal {
    Refusal {
        reason: reason.into(),
        message: message.to_owned(),
        retry_after_ms: 0,
    }
}

fn done(answer: Option<done_response::Answer>) -> DoneResponse {
    DoneResponse { answer }
}

/// The server, until it is dropped: then no new connection is taken, and the others end with their calls.
pub struct Serving {
    _stop: oneshot::Sender<()>,
}

/// A channel to a provider on a Unix socket; connected with the first call. Panics outside a runtime.
pub fn connect(socket: PathBuf) -> Channel {
    Endpoint::from_static("http://cloud-provider").connect_with_connector_lazy(tower::service_fn(
        move |_: http::Uri| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        },
    ))
}

#[tonic::async_trait]
impl Provider for Reference {
    async fn describe(
        &self,
        _: Request<DescribeRequest>,
    ) -> Result<Response<DescribeResponse>, Status> {
        if let Err(Some(refusal)) = self.enter("Describe", "", None).await? {
            return Err(Status::failed_precondition(refusal.message));
        }
        let state = self.state();
        let all = [
            Capability::Instances,
            Capability::LoadBalancers,
            Capability::Routes,
        ];
        Ok(Response::new(DescribeResponse {
            name: "reference".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            capabilities: all
                .into_iter()
                .map(i32::from)
                .filter(|one| !state.unsupported.contains(one))
                .collect(),
        }))
    }
}

fn node_of(request: Request<InstanceRequest>) -> Result<Node, Status> {
    let node = request.into_inner().node;
    node.ok_or_else(|| Status::invalid_argument("no node"))
}

#[tonic::async_trait]
impl Instances for Reference {
    async fn instance_exists(
        &self,
        request: Request<InstanceRequest>,
    ) -> Result<Response<InstanceExistsResponse>, Status> {
        use instance_exists_response::Answer;
        self.supports(Capability::Instances)?;
        let node = node_of(request)?;
        let (course, answer) = match self.enter("InstanceExists", &node.name, None).await? {
            Err(refusal) => (Course { lost: false }, refusal.map(Answer::Refusal)),
            Ok(course) => {
                let existence = match self.state().machines.contains_key(&node.name) {
                    true => Existence::Exists,
                    false => Existence::DoesNotExist,
                };
                (course, Some(Answer::Existence(existence.into())))
            }
        };
        course.leave(InstanceExistsResponse { answer })
    }

    async fn instance_shutdown(
        &self,
        request: Request<InstanceRequest>,
    ) -> Result<Response<InstanceShutdownResponse>, Status> {
        use instance_shutdown_response::Answer;
        self.supports(Capability::Instances)?;
        let node = node_of(request)?;
        let (course, answer) = match self.enter("InstanceShutdown", &node.name, None).await? {
            Err(refusal) => (Course { lost: false }, refusal.map(Answer::Refusal)),
            Ok(course) => {
                let answer = match self.state().machines.get(&node.name) {
                    Some(shutdown) => Answer::Shutdown(*shutdown),
                    None => Answer::Refusal(refusal(Reason::InstanceNotFound, "no such machine")),
                };
                (course, Some(answer))
            }
        };
        course.leave(InstanceShutdownResponse { answer })
    }

    async fn instance_metadata(
        &self,
        request: Request<InstanceRequest>,
    ) -> Result<Response<InstanceMetadataResponse>, Status> {
        use instance_metadata_response::Answer;
        self.supports(Capability::Instances)?;
        let node = node_of(request)?;
        let (course, answer) = match self.enter("InstanceMetadata", &node.name, None).await? {
            Err(refusal) => (Course { lost: false }, refusal.map(Answer::Refusal)),
            Ok(course) => {
                let known = self.state().machines.contains_key(&node.name);
                let answer = match known {
                    true => Answer::Metadata(InstanceMetadata {
                        provider_id: format!("reference://{}", node.name),
                        instance_type: "small".to_owned(),
                        zone: "zone-a".to_owned(),
                        region: "region".to_owned(),
                        ..Default::default()
                    }),
                    false => Answer::Refusal(refusal(Reason::InstanceNotFound, "no such machine")),
                };
                (course, Some(answer))
            }
        };
        course.leave(InstanceMetadataResponse { answer })
    }
}

fn service_of(service: Option<Service>) -> Result<Service, Status> {
    service
        .filter(|service| !service.uid.is_empty())
        .ok_or_else(|| Status::invalid_argument("no service"))
}

fn ports_of(service: &Service) -> Vec<i64> {
    let json: serde_json::Value = serde_json::from_slice(&service.json).unwrap_or_default();
    let ports = json["spec"]["ports"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    ports
        .iter()
        .filter_map(|port| port["port"].as_i64())
        .collect()
}

fn key_of(service: &Service) -> String {
    format!("{}/{}", service.namespace, service.name)
}

fn status_of(balancer: &Balancer) -> LoadBalancerStatus {
    LoadBalancerStatus {
        ingress: vec![LoadBalancerIngress {
            ip: balancer.ip.clone(),
            ..Default::default()
        }],
    }
}

#[tonic::async_trait]
impl LoadBalancers for Reference {
    async fn get_load_balancer(
        &self,
        request: Request<GetLoadBalancerRequest>,
    ) -> Result<Response<GetLoadBalancerResponse>, Status> {
        use get_load_balancer_response::Answer;
        self.supports(Capability::LoadBalancers)?;
        let service = service_of(request.into_inner().service)?;
        let entered = self.enter("GetLoadBalancer", &service.uid, None).await?;
        let (course, answer) = match entered {
            Err(refusal) => (Course { lost: false }, refusal.map(Answer::Refusal)),
            Ok(course) => {
                let answer = match self.state().balancers.get(&service.uid) {
                    Some(found) => Answer::Exists(status_of(found)),
                    None => Answer::Absent(Done {}),
                };
                (course, Some(answer))
            }
        };
        course.leave(GetLoadBalancerResponse { answer })
    }

    async fn get_load_balancer_name(
        &self,
        request: Request<GetLoadBalancerRequest>,
    ) -> Result<Response<GetLoadBalancerNameResponse>, Status> {
        use get_load_balancer_name_response::Answer;
        self.supports(Capability::LoadBalancers)?;
        let service = service_of(request.into_inner().service)?;
        // As upstream's default: the uid without dashes behind an a, of at most 32 characters.
        let name: String = format!("a{}", service.uid.replace('-', ""))
            .chars()
            .take(32)
            .collect();
        Ok(Response::new(GetLoadBalancerNameResponse {
            answer: Some(Answer::Name(name)),
        }))
    }

    async fn ensure_load_balancer(
        &self,
        request: Request<EnsureLoadBalancerRequest>,
    ) -> Result<Response<EnsureLoadBalancerResponse>, Status> {
        use ensure_load_balancer_response::Answer;
        self.supports(Capability::LoadBalancers)?;
        let request = request.into_inner();
        let service = service_of(request.service)?;
        let entered = self
            .enter(
                "EnsureLoadBalancer",
                &service.uid,
                request.operation.as_ref(),
            )
            .await?;
        let (course, answer) = match entered {
            Err(refusal) => (Course { lost: false }, refusal.map(Answer::Refusal)),
            Ok(course) => {
                let mut state = self.state();
                let key = key_of(&service);
                let others = state.balancers.iter();
                let double = others
                    .filter(|(uid, one)| **uid != service.uid && one.service == key)
                    .count();
                if double > 0 {
                    state.doubles.push(format!("load balancer of {key}"));
                }
                state.made += 1;
                let ip = format!("192.0.2.{}", 1 + state.made % 250);
                let balancer = state.balancers.entry(service.uid.clone()).or_default();
                if balancer.ip.is_empty() {
                    balancer.ip = ip;
                }
                balancer.service = key;
                balancer.ports = ports_of(&service);
                balancer.nodes = request.nodes.into_iter().map(|node| node.name).collect();
                let status = status_of(balancer);
                drop(state);
                (course, Some(Answer::Status(status)))
            }
        };
        course.leave(EnsureLoadBalancerResponse { answer })
    }

    async fn update_load_balancer(
        &self,
        request: Request<UpdateLoadBalancerRequest>,
    ) -> Result<Response<DoneResponse>, Status> {
        use done_response::Answer;
        self.supports(Capability::LoadBalancers)?;
        let request = request.into_inner();
        let service = service_of(request.service)?;
        let entered = self
            .enter(
                "UpdateLoadBalancer",
                &service.uid,
                request.operation.as_ref(),
            )
            .await?;
        let (course, answer) = match entered {
            Err(refusal) => (Course { lost: false }, refusal.map(Answer::Refusal)),
            Ok(course) => {
                let nodes = request.nodes.into_iter().map(|node| node.name).collect();
                let answer = match self.state().balancers.get_mut(&service.uid) {
                    Some(balancer) => {
                        balancer.nodes = nodes;
                        Answer::Done(Done {})
                    }
                    None => Answer::Refusal(refusal(Reason::Failed, "there is no load balancer")),
                };
                (course, Some(answer))
            }
        };
        course.leave(done(answer))
    }

    async fn ensure_load_balancer_deleted(
        &self,
        request: Request<EnsureLoadBalancerDeletedRequest>,
    ) -> Result<Response<DoneResponse>, Status> {
        use done_response::Answer;
        self.supports(Capability::LoadBalancers)?;
        let request = request.into_inner();
        let service = service_of(request.service)?;
        let entered = self
            .enter(
                "EnsureLoadBalancerDeleted",
                &service.uid,
                request.operation.as_ref(),
            )
            .await?;
        let (course, answer) = match entered {
            Err(refusal) => (Course { lost: false }, refusal.map(Answer::Refusal)),
            Ok(course) => {
                self.state().balancers.remove(&service.uid);
                (course, Some(Answer::Done(Done {})))
            }
        };
        course.leave(done(answer))
    }
}

fn route_of(route: Option<Route>) -> Result<Route, Status> {
    route.ok_or_else(|| Status::invalid_argument("no route"))
}

#[tonic::async_trait]
impl Routes for Reference {
    async fn list_routes(
        &self,
        request: Request<ListRoutesRequest>,
    ) -> Result<Response<ListRoutesResponse>, Status> {
        use list_routes_response::Answer;
        self.supports(Capability::Routes)?;
        let cluster = request.into_inner().cluster_name;
        let (course, answer) = match self.enter("ListRoutes", &cluster, None).await? {
            Err(refusal) => (Course { lost: false }, refusal.map(Answer::Refusal)),
            Ok(course) => {
                let state = self.state();
                let of_cluster = state.routes.iter().filter(|(key, _)| key.0 == cluster);
                let routes = of_cluster.map(|(_, route)| route.clone()).collect();
                drop(state);
                (course, Some(Answer::List(RouteList { routes })))
            }
        };
        course.leave(ListRoutesResponse { answer })
    }

    async fn create_route(
        &self,
        request: Request<CreateRouteRequest>,
    ) -> Result<Response<DoneResponse>, Status> {
        use done_response::Answer;
        self.supports(Capability::Routes)?;
        let request = request.into_inner();
        let route = route_of(request.route)?;
        let about = format!("{} {}", route.target_node, route.destination_cidr);
        let entered = self
            .enter("CreateRoute", &about, request.operation.as_ref())
            .await?;
        let (course, answer) = match entered {
            Err(refusal) => (Course { lost: false }, refusal.map(Answer::Refusal)),
            Ok(course) => {
                let key = (
                    request.cluster_name,
                    route.target_node.clone(),
                    route.destination_cidr.clone(),
                );
                // Node and destination are its identity: a second creation finds the first.
                let name = format!("{}-{}", request.name_hint, route.destination_cidr);
                self.state().routes.entry(key).or_insert(Route {
                    name,
                    compare_addresses: true,
                    ..route
                });
                (course, Some(Answer::Done(Done {})))
            }
        };
        course.leave(done(answer))
    }

    async fn delete_route(
        &self,
        request: Request<DeleteRouteRequest>,
    ) -> Result<Response<DoneResponse>, Status> {
        use done_response::Answer;
        self.supports(Capability::Routes)?;
        let request = request.into_inner();
        let route = route_of(request.route)?;
        let about = format!("{} {}", route.target_node, route.destination_cidr);
        let entered = self
            .enter("DeleteRoute", &about, request.operation.as_ref())
            .await?;
        let (course, answer) = match entered {
            Err(refusal) => (Course { lost: false }, refusal.map(Answer::Refusal)),
            Ok(course) => {
                let key = (
                    request.cluster_name,
                    route.target_node.clone(),
                    route.destination_cidr.clone(),
                );
                self.state().routes.remove(&key);
                (course, Some(Answer::Done(Done {})))
            }
        };
        course.leave(done(answer))
    }
}
