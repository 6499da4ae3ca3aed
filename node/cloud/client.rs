//! The client of `manifold.cloud.v1`: connection, deadlines, bounds, and the answers' meaning.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use cloud_proto::{
    self as proto, MESSAGE_BYTES_MAX, ROUTES_MAX, describe_response::Capability,
    instances_client::InstancesClient, load_balancers_client::LoadBalancersClient,
    provider_client::ProviderClient, refusal, routes_client::RoutesClient,
};
use controllers_clouds::flags::{
    self, CA_FILE, CERT_FILE, CLUSTER_NAME, ENDPOINT, Endpoint as Address, KEY_FILE, TIMEOUT,
};
use controllers_kit::{
    Flags,
    cloud::{self, Deed, Outcome, Reason, Refused, Reply},
};
use futures::{FutureExt as _, future::BoxFuture};
use hyper_util::rt::TokioIo;
use kubernetes_proto::core;
use prost::Message;
use reload::Complaint;
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
    sync::Semaphore,
    time::{Instant, timeout},
};
use tonic::{
    Code, Response, Status,
    transport::{Channel, Endpoint},
};
use xxhash_rust::xxh3::xxh3_128;

use super::{Cloud, Request, breaker::Breaker, tls::Tls};

/// TCP and TLS, or a Unix socket, take milliseconds.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);
/// A call that only reads takes no longer.
const READ_DEADLINE: Duration = Duration::from_secs(30);
/// Calls of this replica that are under way at once: as many as upstream has for routes.
const CALLS_AT_ONCE: usize = 200;
/// Characters of a provider's message that are kept: it is shown in events and logs.
const TEXT_MAX: usize = 1024;
/// The files are read again this long after the last time, when a call is made.
const REFRESH_PERIOD: Duration = Duration::from_secs(5);

/// A provider behind a socket or a TLS connection. Connected when it is first asked.
pub struct Provider {
    address: Address,
    cluster: String,
    deadline: Duration,
    tls: Option<Arc<Tls>>,
    places: Semaphore,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    channel: Option<Channel>,
    /// What the provider says of itself, since the channel was last found to be broken.
    described: Option<Reply>,
    breaker: Breaker,
    refreshed_at: Option<Instant>,
    complaint: Complaint,
}

impl Provider {
    /// The one that the flags name, if they name one.
    ///
    /// # Errors
    /// Naming the flag, what is wrong with it, and what would do.
    pub fn open(flags: &Flags) -> Result<Option<Self>, String> {
        let Some(address) = flags::endpoint(flags)? else {
            return Ok(None);
        };
        let tls = match &address {
            Address::Unix(_) => None,
            Address::Https { host, .. } => {
                if ServerName::try_from(host.clone()).is_err() {
                    return Err(format!(
                        "--{ENDPOINT}: {host:?} can't stand in a certificate: give a DNS name or an IP address"
                    ));
                }
                let paths = [CA_FILE, CERT_FILE, KEY_FILE].map(|name| flags.text(name));
                let tls =
                    Tls::load(paths).map_err(|why| node_connection::components::causes(&why))?;
                Some(Arc::new(tls))
            }
        };
        Ok(Some(Self {
            address,
            cluster: flags.text(CLUSTER_NAME).to_owned(),
            deadline: flags.duration(TIMEOUT),
            tls,
            places: Semaphore::new(CALLS_AT_ONCE),
            state: Mutex::default(),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A channel to it; another one where its certificates have changed.
    fn channel(&self, state: &mut State) -> Result<Channel, Refused> {
        let now = Instant::now();
        if let Some(tls) = &self.tls
            && state
                .refreshed_at
                .is_none_or(|refreshed_at| now - refreshed_at >= REFRESH_PERIOD)
        {
            state.refreshed_at = Some(now);
            let refreshed = tls.refresh();
            if matches!(refreshed, Ok(true)) {
                state.channel = None;
            }
            state.complaint.log("cloud provider", refreshed);
        }
        if let Some(channel) = &state.channel {
            return Ok(channel.clone());
        }
        let channel = self
            .connect()
            .map_err(|why| Refused::new(Reason::Failed, format!("--{ENDPOINT}: {why}")))?;
        Ok(state.channel.insert(channel).clone())
    }

    fn connect(&self) -> Result<Channel, tonic::transport::Error> {
        // The connector knows the address; to tonic it is plain HTTP. No keep-alive pings: servers in Go end
        // connections of clients that send them more often than every five minutes.
        let (address, tls) = (self.address.clone(), self.tls.clone());
        Ok(
            Endpoint::from_shared("http://cloud-provider")?.connect_with_connector_lazy(
                tower::service_fn(move |_: http::Uri| {
                    let (address, tls) = (address.clone(), tls.clone());
                    async move {
                        match timeout(CONNECT_DEADLINE, wire(&address, tls.as_deref())).await {
                            Ok(wire) => wire.map(TokioIo::new),
                            Err(_) => Err(io::Error::new(
                                io::ErrorKind::TimedOut,
                                format!("no connection within {CONNECT_DEADLINE:?}"),
                            )),
                        }
                    }
                }),
            ),
        )
    }

    async fn ask(&self, request: Request<'_>) -> Outcome {
        let deadline = match request.deed.changes() {
            true => self.deadline,
            false => self.deadline.min(READ_DEADLINE),
        };
        let channel = {
            let mut state = self.state();
            state
                .breaker
                .admit(Instant::now())
                .map_err(|why| Refused::new(Reason::Failed, why))?;
            if *request.deed == Deed::Describe
                && let Some(known) = &state.described
            {
                return Ok(known.clone());
            }
            self.channel(&mut state)?
        };
        let asked = async {
            let _place = self.places.acquire().await;
            Asked {
                channel,
                cluster: &self.cluster,
                deadline,
                request,
            }
            .ask()
            .await
        };
        let outcome = timeout(deadline, asked).await;
        let mut state = self.state();
        match outcome {
            Ok(Ok(outcome)) => {
                if state.breaker.reached() {
                    tracing::info!("the cloud provider answers again");
                }
                if let Ok(reply @ Reply::Provider { name, .. }) = &outcome {
                    tracing::info!(name, ?reply, "the cloud provider has said what it supports");
                    state.described = Some(reply.clone());
                }
                outcome
            }
            // The deadline that the request carries may pass a moment before ours.
            Ok(Err(status))
                if !matches!(status.code(), Code::Cancelled | Code::DeadlineExceeded) =>
            {
                Err(self.failed(&mut state, &status))
            }
            Ok(Err(_)) | Err(_) => {
                // The connection may be dead: the next call makes another.
                state.channel = None;
                let text = format!("no answer within {}s", deadline.as_secs());
                Err(Refused::new(Reason::Failed, text))
            }
        }
    }

    fn failed(&self, state: &mut State, status: &Status) -> Refused {
        let text = clipped(&said(status));
        match status.code() {
            Code::Unimplemented => {
                state.breaker.reached();
                return Refused::new(Reason::NotSupported, text);
            }
            Code::Unavailable => {
                state.described = None;
                if state.breaker.missed(Instant::now(), &text) {
                    tracing::warn!(why = text, "the cloud provider can't be reached");
                }
            }
            _ => {}
        }
        Refused::new(Reason::Failed, text)
    }
}

impl Cloud for Provider {
    fn call<'a>(&'a self, request: Request<'a>) -> BoxFuture<'a, Outcome> {
        self.ask(request).boxed()
    }
}

async fn wire(address: &Address, tls: Option<&Tls>) -> io::Result<Wire> {
    match address {
        Address::Unix(path) => UnixStream::connect(path).await.map(Wire::Unix),
        Address::Https { host, port } => {
            let tls = tls.ok_or_else(|| io::Error::other("no certificates"))?;
            let tcp = TcpStream::connect((host.as_str(), *port)).await?;
            tcp.set_nodelay(true)?;
            let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
            let connector = tokio_rustls::TlsConnector::from(tls.config());
            let stream = connector.connect(name, tcp).await?;
            Ok(Wire::Tls(Box::new(stream)))
        }
    }
}

/// What the protocol runs over.
enum Wire {
    Unix(UnixStream),
    Tls(Box<tokio_rustls::client::TlsStream<TcpStream>>),
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Unix(stream) => Pin::new(stream).poll_read(context, into),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, into),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            Self::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Unix(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

// ---- one call ----

struct Asked<'a> {
    channel: Channel,
    cluster: &'a str,
    deadline: Duration,
    request: Request<'a>,
}

macro_rules! client {
    ($client:ident, $asked:expr) => {
        $client::new($asked.channel.clone())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    };
}

impl Asked<'_> {
    async fn ask(&self) -> Result<Outcome, Status> {
        let cluster_name = self.cluster.to_owned();
        Ok(match self.request.deed {
            Deed::Describe => {
                let request = proto::DescribeRequest {
                    client: format!("manifold/{}", env!("CARGO_PKG_VERSION")),
                };
                let mut client = client!(ProviderClient, self);
                described(&said_by(client.describe(self.timed(request)).await?))
            }
            Deed::GetLoadBalancer => {
                let request = proto::GetLoadBalancerRequest {
                    cluster_name,
                    service: Some(self.service()?),
                };
                let mut client = client!(LoadBalancersClient, self);
                use proto::get_load_balancer_response::Answer;
                match said_by(client.get_load_balancer(self.timed(request)).await?).answer {
                    Some(Answer::Exists(status)) => Ok(Reply::LoadBalancer(Some(ingress(status)))),
                    Some(Answer::Absent(_)) => Ok(Reply::LoadBalancer(None)),
                    Some(Answer::Refusal(why)) => Err(refused(&why)),
                    None => Err(unanswered()),
                }
            }
            Deed::EnsureLoadBalancer { nodes } => {
                let mut request = proto::EnsureLoadBalancerRequest {
                    operation: None,
                    cluster_name,
                    service: Some(self.service()?),
                    nodes: nodes.iter().map(node).collect(),
                };
                request.operation = Some(self.operation(&request));
                let mut client = client!(LoadBalancersClient, self);
                use proto::ensure_load_balancer_response::Answer;
                match said_by(client.ensure_load_balancer(self.timed(request)).await?).answer {
                    Some(Answer::Status(status)) => Ok(Reply::LoadBalancer(Some(ingress(status)))),
                    Some(Answer::Refusal(why)) => Err(refused(&why)),
                    // The controller says in upstream's words that there is no status.
                    None => Ok(Reply::Done),
                }
            }
            Deed::UpdateLoadBalancer { nodes } => {
                let mut request = proto::UpdateLoadBalancerRequest {
                    operation: None,
                    cluster_name,
                    service: Some(self.service()?),
                    nodes: nodes.iter().map(node).collect(),
                };
                request.operation = Some(self.operation(&request));
                let mut client = client!(LoadBalancersClient, self);
                done(client.update_load_balancer(self.timed(request)).await?)
            }
            Deed::EnsureLoadBalancerDeleted => {
                let mut request = proto::EnsureLoadBalancerDeletedRequest {
                    operation: None,
                    cluster_name,
                    service: Some(self.service()?),
                };
                request.operation = Some(self.operation(&request));
                let mut client = client!(LoadBalancersClient, self);
                done(
                    client
                        .ensure_load_balancer_deleted(self.timed(request))
                        .await?,
                )
            }
            Deed::InstanceExists(machine) => {
                let request = proto::InstanceRequest {
                    node: Some(node(machine)),
                };
                let mut client = client!(InstancesClient, self);
                use proto::instance_exists_response::{Answer, Existence};
                match said_by(client.instance_exists(self.timed(request)).await?).answer {
                    Some(Answer::Existence(number)) => match Existence::try_from(number) {
                        Ok(Existence::Exists) => Ok(Reply::Is(true)),
                        Ok(Existence::DoesNotExist) => Ok(Reply::Is(false)),
                        Ok(Existence::Unspecified) | Err(_) => Err(unanswered()),
                    },
                    Some(Answer::Refusal(why)) => Err(refused(&why)),
                    None => Err(unanswered()),
                }
            }
            Deed::InstanceShutdown(machine) => {
                let request = proto::InstanceRequest {
                    node: Some(node(machine)),
                };
                let mut client = client!(InstancesClient, self);
                use proto::instance_shutdown_response::Answer;
                match said_by(client.instance_shutdown(self.timed(request)).await?).answer {
                    Some(Answer::Shutdown(truth)) => Ok(Reply::Is(truth)),
                    Some(Answer::Refusal(why)) => Err(refused(&why)),
                    None => Err(unanswered()),
                }
            }
            Deed::ListRoutes => {
                let request = proto::ListRoutesRequest { cluster_name };
                let mut client = client!(RoutesClient, self);
                use proto::list_routes_response::Answer;
                match said_by(client.list_routes(self.timed(request)).await?).answer {
                    Some(Answer::List(list)) if list.routes.len() > ROUTES_MAX => {
                        let text = format!(
                            "the provider lists {} routes: more than {ROUTES_MAX}",
                            list.routes.len()
                        );
                        Err(Refused::new(Reason::Failed, text))
                    }
                    Some(Answer::List(list)) => Ok(Reply::Routes(
                        list.routes.into_iter().map(route_of).collect(),
                    )),
                    Some(Answer::Refusal(why)) => Err(refused(&why)),
                    None => Err(unanswered()),
                }
            }
            Deed::CreateRoute { hint, route } => {
                let mut request = proto::CreateRouteRequest {
                    operation: None,
                    cluster_name,
                    name_hint: hint.clone(),
                    route: Some(route_for(route)),
                };
                request.operation = Some(self.operation(&request));
                let mut client = client!(RoutesClient, self);
                done(client.create_route(self.timed(request)).await?)
            }
            Deed::DeleteRoute { route } => {
                let mut request = proto::DeleteRouteRequest {
                    operation: None,
                    cluster_name,
                    route: Some(route_for(route)),
                };
                request.operation = Some(self.operation(&request));
                let mut client = client!(RoutesClient, self);
                done(client.delete_route(self.timed(request)).await?)
            }
        })
    }

    /// With the deadline, which the provider sees too.
    fn timed<T>(&self, message: T) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        request.set_timeout(self.deadline);
        request
    }

    /// The same for the same call of any replica.
    fn operation(&self, message: &impl Message) -> proto::Operation {
        let hash = xxh3_128(&message.encode_to_vec());
        proto::Operation {
            idempotency_key: format!("{}-{hash:032x}", self.request.deed.name()),
            range: u32::from(self.request.range),
            epoch: self.request.epoch,
        }
    }

    fn service(&self) -> Result<proto::Service, Status> {
        let object = self
            .request
            .object
            .as_ref()
            .ok_or_else(|| Status::internal("the Service was not read"))?;
        let text = |name: &str| {
            object["metadata"][name]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        Ok(proto::Service {
            namespace: text("namespace"),
            name: text("name"),
            uid: text("uid"),
            json: serde_json::to_vec(object).map_err(|why| Status::internal(why.to_string()))?,
        })
    }
}

fn said_by<T>(response: Response<T>) -> T {
    response.into_inner()
}

fn described(said: &proto::DescribeResponse) -> Outcome {
    let can = |wanted: Capability| {
        let mut all = said.capabilities.iter();
        all.any(|number| Capability::try_from(*number) == Ok(wanted))
    };
    Ok(Reply::Provider {
        instances: can(Capability::Instances),
        load_balancers: can(Capability::LoadBalancers),
        routes: can(Capability::Routes),
        name: clipped(&said.name),
    })
}

fn done(response: Response<proto::DoneResponse>) -> Outcome {
    use proto::done_response::Answer;
    match said_by(response).answer {
        Some(Answer::Done(_)) => Ok(Reply::Done),
        Some(Answer::Refusal(why)) => Err(refused(&why)),
        None => Err(unanswered()),
    }
}

fn unanswered() -> Refused {
    Refused::new(
        Reason::Failed,
        "the provider's response has no answer in it",
    )
}

fn refused(said: &proto::Refusal) -> Refused {
    use refusal::Reason as Said;
    let reason = match Said::try_from(said.reason) {
        Ok(Said::NotSupported) => Reason::NotSupported,
        Ok(Said::ImplementedElsewhere) => Reason::ImplementedElsewhere,
        Ok(Said::InstanceNotFound) => Reason::InstanceNotFound,
        Ok(Said::Superseded) => Reason::Stale,
        Ok(Said::Unspecified | Said::Failed) | Err(_) => Reason::Failed,
    };
    Refused {
        reason,
        message: clipped(&said.message),
        retry_after: (said.retry_after_ms > 0).then(|| Duration::from_millis(said.retry_after_ms)),
    }
}

fn clipped(text: &str) -> String {
    text.chars().take(TEXT_MAX).collect()
}

/// A status with its causes: tonic hides them behind "transport error".
fn said(status: &Status) -> String {
    let mut text = match status.code() {
        Code::Unknown => status.message().to_owned(),
        code => format!("{code:?}: {}", status.message()),
    };
    let mut source = std::error::Error::source(status);
    while let Some(cause) = source {
        let more = cause.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = cause.source();
    }
    text
}

fn address(one: &cloud::Address) -> proto::NodeAddress {
    proto::NodeAddress {
        r#type: one.r#type.clone(),
        address: one.address.clone(),
    }
}

fn node(node: &cloud::Node) -> proto::Node {
    let map = |entries: &std::collections::BTreeMap<String, String>| {
        entries
            .iter()
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    };
    proto::Node {
        name: node.name.clone(),
        uid: node.uid.clone(),
        provider_id: node.provider_id.clone(),
        labels: map(&node.labels),
        annotations: map(&node.annotations),
        addresses: node.addresses.iter().map(address).collect(),
        pod_cidrs: node.pod_cidrs.clone(),
    }
}

fn route_for(route: &cloud::Route) -> proto::Route {
    proto::Route {
        name: route.name.clone(),
        target_node: route.target_node.clone(),
        compare_addresses: route.compare_addresses,
        target_addresses: route.target_addresses.iter().map(address).collect(),
        destination_cidr: route.destination.clone(),
        blackhole: route.blackhole,
    }
}

fn route_of(route: proto::Route) -> cloud::Route {
    let addresses = route.target_addresses.into_iter();
    cloud::Route {
        name: route.name,
        target_node: route.target_node,
        compare_addresses: route.compare_addresses,
        target_addresses: addresses
            .map(|one| cloud::Address {
                r#type: one.r#type,
                address: one.address,
            })
            .collect(),
        destination: route.destination_cidr,
        blackhole: route.blackhole,
    }
}

fn ingress(status: proto::LoadBalancerStatus) -> Vec<core::LoadBalancerIngress> {
    let some = |text: String| (!text.is_empty()).then_some(text);
    status
        .ingress
        .into_iter()
        .map(|one| core::LoadBalancerIngress {
            ip: one.ip,
            hostname: one.hostname,
            ip_mode: some(one.ip_mode),
            ports: one
                .ports
                .into_iter()
                .map(|port| core::PortStatus {
                    port: port.port,
                    protocol: port.protocol,
                    error: some(port.error),
                })
                .collect(),
        })
        .collect()
}
