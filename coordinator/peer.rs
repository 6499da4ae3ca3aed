//! How replicas reach each other: the gRPC client and server, with their limits.
//!
//! What comes in is bounded and typed, comes from a certificate that names a live member, and is a hint: the
//! core compares it with the Leases.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use coordinator_core::{Epoch, Holder, NotSent, Offer, REPLICAS_MAX, RangeId};
use futures::{FutureExt, future::BoxFuture};
use hyper_util::rt::TokioIo;
use peer_proto::{
    ControllerState, HandoffAck, HandoffChunk, HandoffHeader, HoldsRequest, HoldsResponse,
    RangeEpoch, RangeState, ReleasedRequest, ReleasedResponse, peer_client::PeerClient,
    peer_server::Peer,
};
use prost::Message as _;
use rustls::pki_types::ServerName;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
    time::{Instant, timeout},
};
use tonic::{
    Request, Response, Status, Streaming,
    metadata::MetadataValue,
    transport::{Channel, Endpoint, server::Connected},
};

use crate::{
    admission::{Handshakes, RefusalLog},
    config::TraceParent,
    tls::{Tls, dns_names},
};

/// A chunk of a handoff is cut at about this size …
const CHUNK_BYTES: usize = 1 << 20;
/// … and no message may be larger than this: one key's state may overhang a chunk.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// All that one range may bring. 256 ranges of a cluster with 1,000,000 keys hold 4,000 keys each, at 2 kB.
pub(crate) const STATE_BYTES_MAX: usize = 32 << 20;
/// Each replica of a fleet has one connection, and one that ends.
const CONNECTIONS_MAX: usize = 2 * REPLICAS_MAX;
/// At most 8 handoffs from each of a few senders, and small calls.
const STREAMS_MAX: u32 = 64;
/// TCP and TLS between two replicas take milliseconds; a silent address must not hold a frozen range.
const CONNECT_DEADLINE: Duration = Duration::from_millis(500);
/// For one whole handoff, below the renew deadline's default: a range stays frozen no longer.
pub const HANDOFF_DEADLINE: Duration = Duration::from_secs(2);
/// For everything small.
pub const CALL_DEADLINE: Duration = Duration::from_secs(1);
/// Whether a peer answers at all: nothing stands still for the answer, so this has room for a connection to
/// be made.
pub const CONTACT_DEADLINE: Duration = Duration::from_millis(600);
/// The server ends calls that outlive their clients' deadlines.
const SERVER_DEADLINE: Duration = Duration::from_secs(5);
/// All that handoffs may take which are being received. Beyond it their senders wait for a moment, then try
/// again later.
const RECEIVED_BYTES_MAX: usize = 128 << 20;
/// How long a handoff waits for its part of that.
const RECEIVE_PATIENCE: Duration = Duration::from_secs(1);
/// What a key takes in memory besides its bytes on the wire, where an empty one takes two.
const KEY_COST: usize = 256;
/// What one range's state may take in memory. [`STATE_BYTES_MAX`] of keys of a few hundred bytes fit.
const STATE_COST_MAX: usize = 2 * STATE_BYTES_MAX;
/// The unit of permits for memory: a semaphore counts in 32 bits.
const PERMIT_BYTES: usize = 1 << 10;
/// Connections that wait for the server to see them.
const ACCEPTED_MAX: usize = 32;

/// By range: whether it is held there, and the highest epoch known there.
pub type Holdings = BTreeMap<RangeId, (bool, Epoch)>;

/// What the server asks of the coordinator.
pub(crate) trait Answers: Send + Sync + 'static {
    fn offered(
        &self,
        offer: Offer,
        state: RangeState,
        bytes: usize,
    ) -> impl Future<Output = Result<(), String>> + Send;
    fn told(&self, from: Holder, range: RangeId, epoch: Epoch) -> impl Future<Output = ()> + Send;
    fn holds(
        &self,
        ranges: Vec<RangeId>,
    ) -> impl Future<Output = Option<(String, Holdings)>> + Send;
    fn is_member(&self, name: &str) -> bool;
    /// Whether a replica Lease names this address.
    fn is_peer_address(&self, address: IpAddr) -> bool;
}

// ---- client ----

/// An open call to a peer.
pub type Call<'a, T> = BoxFuture<'a, T>;

/// How a coordinator reaches its peers: by gRPC, or as a simulation has it. No call may take longer than
/// [`HANDOFF_DEADLINE`], the small ones than [`CALL_DEADLINE`].
pub trait Calls: Send + Sync + 'static {
    /// Forgets what is kept for names and addresses that are no member's.
    fn keep(&self, is_member: &dyn Fn(&str, &str) -> bool);
    /// Gives a range's state to its next owner.
    fn handoff<'a>(
        &'a self,
        incarnation: &'a str,
        to: &'a Holder,
        address: &'a str,
        what: (RangeId, Epoch, u64),
        state: RangeState,
    ) -> Call<'a, Result<(), NotSent>>;
    /// Tells the next owner that the range's Lease names it.
    fn released<'a>(
        &'a self,
        incarnation: &'a str,
        to: &'a Holder,
        address: &'a str,
        range: RangeId,
        epoch: Epoch,
    ) -> Call<'a, Result<(), String>>;
    /// Asks which ranges a peer holds.
    fn holds<'a>(
        &'a self,
        to: &'a Holder,
        address: &'a str,
        ranges: &'a [RangeId],
    ) -> Call<'a, Result<Holdings, String>>;
}

impl Calls for Peers {
    fn keep(&self, is_member: &dyn Fn(&str, &str) -> bool) {
        Self::keep(self, is_member);
    }
    fn handoff<'a>(
        &'a self,
        incarnation: &'a str,
        to: &'a Holder,
        address: &'a str,
        what: (RangeId, Epoch, u64),
        state: RangeState,
    ) -> Call<'a, Result<(), NotSent>> {
        Self::handoff(self, incarnation, to, address, what, state).boxed()
    }
    fn released<'a>(
        &'a self,
        incarnation: &'a str,
        to: &'a Holder,
        address: &'a str,
        range: RangeId,
        epoch: Epoch,
    ) -> Call<'a, Result<(), String>> {
        Self::released(self, incarnation, to, address, range, epoch).boxed()
    }
    fn holds<'a>(
        &'a self,
        to: &'a Holder,
        address: &'a str,
        ranges: &'a [RangeId],
    ) -> Call<'a, Result<Holdings, String>> {
        Self::holds(self, to, address, ranges).boxed()
    }
}

/// Channels to peers, kept while they are members.
pub(crate) struct Peers {
    fleet: String,
    own: String,
    build: String,
    tls: Option<Arc<Tls>>,
    traceparent: Option<TraceParent>,
    channels: Mutex<BTreeMap<(String, String), Channel>>,
}

impl Peers {
    pub(crate) fn new(
        fleet: String,
        own: String,
        build: String,
        tls: Option<Arc<Tls>>,
        traceparent: Option<TraceParent>,
    ) -> Self {
        Self {
            fleet,
            own,
            build,
            tls,
            traceparent,
            channels: Mutex::default(),
        }
    }

    /// Forgets channels to peers that are gone, and to addresses that they have left: a peer that starts
    /// again may come back under another.
    pub(crate) fn keep(&self, is_member: impl Fn(&str, &str) -> bool) {
        self.channels
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|(name, address), _| is_member(name, address));
    }

    #[cfg(test)]
    pub(crate) fn open_channels(&self) -> Vec<(String, String)> {
        let channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        channels.keys().cloned().collect()
    }

    pub(crate) async fn handoff(
        &self,
        incarnation: &str,
        to: &Holder,
        address: &str,
        (range, epoch, attempt): (RangeId, Epoch, u64),
        state: RangeState,
    ) -> Result<(), NotSent> {
        let header = HandoffHeader {
            fleet: self.fleet.clone(),
            from: self.own.clone(),
            from_incarnation: incarnation.to_owned(),
            to_incarnation: to.incarnation.clone(),
            range: u32::from(range),
            epoch,
            version: self.build.clone(),
            attempt,
        };
        let bytes: usize = state
            .controllers
            .iter()
            .map(prost::Message::encoded_len)
            .sum();
        let keys = state.controllers.iter().map(|part| part.keys.len()).sum();
        if bytes > STATE_BYTES_MAX || cost(bytes, keys) > STATE_COST_MAX {
            return Err(NotSent::TooLarge(format!(
                "its state of {keys} keys and {bytes} bytes is over the limit of {STATE_BYTES_MAX} bytes; with more \
                 --ranges each is smaller"
            )));
        }
        let chunks = chunks(header, state);
        let mut client = self
            .client(&to.name, address)
            .map_err(NotSent::Unreachable)?;
        let request = self.request(tokio_stream::iter(chunks));
        match timeout(HANDOFF_DEADLINE, client.handoff(request)).await {
            Ok(Ok(answer)) => match answer.into_inner() {
                HandoffAck { accepted: true, .. } => Ok(()),
                HandoffAck { reason, .. } => Err(NotSent::Refused(reason)),
            },
            Ok(Err(status)) if status.code() == tonic::Code::ResourceExhausted => {
                Err(NotSent::Refused(said(&status)))
            }
            Ok(Err(status)) => Err(NotSent::Unreachable(said(&status))),
            Err(_) => Err(NotSent::Unreachable(format!(
                "no acknowledgement within {HANDOFF_DEADLINE:?}"
            ))),
        }
    }

    pub(crate) async fn released(
        &self,
        incarnation: &str,
        to: &Holder,
        address: &str,
        range: RangeId,
        epoch: Epoch,
    ) -> Result<(), String> {
        let mut client = self.client(&to.name, address)?;
        let request = self.request(ReleasedRequest {
            from: self.own.clone(),
            from_incarnation: incarnation.to_owned(),
            range: u32::from(range),
            epoch,
        });
        match timeout(CALL_DEADLINE, client.released(request)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(status)) => Err(said(&status)),
            Err(_) => Err(format!("no answer within {CALL_DEADLINE:?}")),
        }
    }

    pub(crate) async fn holds(
        &self,
        to: &Holder,
        address: &str,
        ranges: &[RangeId],
    ) -> Result<Holdings, String> {
        let mut client = self.client(&to.name, address)?;
        let request = self.request(HoldsRequest {
            ranges: ranges.iter().copied().map(u32::from).collect(),
        });
        let deadline = match ranges {
            [] => CONTACT_DEADLINE,
            _ => CALL_DEADLINE,
        };
        let answer = match timeout(deadline, client.holds(request)).await {
            Ok(Ok(answer)) => answer.into_inner(),
            Ok(Err(status)) => return Err(said(&status)),
            Err(_) => return Err(format!("no answer within {deadline:?}")),
        };
        if answer.incarnation != to.incarnation {
            return Err(format!("answered as incarnation {}", answer.incarnation));
        }
        let epochs: BTreeMap<u32, Epoch> = answer
            .highest
            .iter()
            .map(|entry| (entry.range, entry.epoch))
            .collect();
        Ok(ranges
            .iter()
            .filter_map(|range| {
                let number = u32::from(*range);
                Some((
                    *range,
                    (answer.held.contains(&number), *epochs.get(&number)?),
                ))
            })
            .collect())
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let parent = self
            .traceparent
            .as_ref()
            .and_then(|traceparent| traceparent());
        if let Some(parent) = parent.and_then(|parent| MetadataValue::try_from(parent).ok()) {
            request.metadata_mut().insert("traceparent", parent);
        }
        request
    }

    fn client(&self, name: &str, address: &str) -> Result<PeerClient<Channel>, String> {
        let key = (name.to_owned(), address.to_owned());
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        if !channels.contains_key(&key) {
            let channel = self.channel(name, address)?;
            channels.insert(key.clone(), channel);
        }
        let channel = channels.get(&key).cloned().ok_or("no channel")?;
        Ok(PeerClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX))
    }

    fn channel(&self, name: &str, address: &str) -> Result<Channel, String> {
        // TLS is the connector's; to tonic the address is plain.
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|error| format!("peer address {address:?}: {error}"))?
            .tcp_nodelay(true)
            .http2_keep_alive_interval(Duration::from_secs(2))
            .keep_alive_timeout(Duration::from_secs(2))
            .keep_alive_while_idle(true);
        let server_name = ServerName::try_from(name.to_owned())
            .map_err(|_| format!("replica name {name:?} cannot stand in a certificate"))?;
        let (tls, address) = (self.tls.clone(), address.to_owned());
        Ok(
            endpoint.connect_with_connector_lazy(tower::service_fn(move |_: http::Uri| {
                let (tls, server_name, address) =
                    (tls.clone(), server_name.clone(), address.clone());
                async move {
                    let connect = async {
                        let tcp = TcpStream::connect(&address).await?;
                        tcp.set_nodelay(true)?;
                        Ok::<_, io::Error>(match tls {
                            // The certificate must name the replica that the Lease names, wherever it lives.
                            Some(tls) => {
                                let connector = tokio_rustls::TlsConnector::from(tls.client());
                                Wire::Tls(Box::new(tokio_rustls::TlsStream::from(
                                    connector.connect(server_name, tcp).await?,
                                )))
                            }
                            None => Wire::Plain(tcp),
                        })
                    };
                    match timeout(CONNECT_DEADLINE, connect).await {
                        Ok(wire) => wire.map(TokioIo::new),
                        Err(_) => Err(io::Error::new(
                            io::ErrorKind::TimedOut,
                            format!("no connection within {CONNECT_DEADLINE:?}"),
                        )),
                    }
                }
            })),
        )
    }
}

/// A status with its causes: tonic hides them behind "transport error".
fn said(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut source = std::error::Error::source(status);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// What a state takes in memory, as the receiver counts it.
fn cost(bytes: usize, keys: usize) -> usize {
    keys.saturating_mul(KEY_COST).saturating_add(bytes)
}

/// Cuts a state into messages: the header first, `end` on the last.
fn chunks(header: HandoffHeader, state: RangeState) -> Vec<HandoffChunk> {
    let mut chunks = vec![HandoffChunk {
        header: Some(header),
        ..HandoffChunk::default()
    }];
    let mut room = CHUNK_BYTES;
    for ControllerState {
        controller,
        keys,
        seen,
    } in state.controllers
    {
        let mut part = ControllerState {
            controller: controller.clone(),
            keys: Vec::new(),
            seen,
        };
        for key in keys {
            let bytes = key.encoded_len();
            if bytes > room && room < CHUNK_BYTES {
                let full = std::mem::replace(
                    &mut part,
                    ControllerState {
                        controller: controller.clone(),
                        ..ControllerState::default()
                    },
                );
                if let Some(last) = chunks
                    .last_mut()
                    .filter(|_| !full.keys.is_empty() || !full.seen.is_empty())
                {
                    last.controllers.push(full);
                }
                chunks.push(HandoffChunk::default());
                room = CHUNK_BYTES;
            }
            room = room.saturating_sub(bytes);
            part.keys.push(key);
        }
        if let Some(last) = chunks.last_mut() {
            last.controllers.push(part);
        }
    }
    if let Some(last) = chunks.last_mut() {
        last.end = true;
    }
    chunks
}

// ---- server ----

/// The gRPC service.
pub(crate) struct PeerService<A> {
    fleet: String,
    ranges: u16,
    secure: bool,
    answers: Arc<A>,
    /// Memory for handoffs that are being received, in units of [`PERMIT_BYTES`].
    memory: Arc<Semaphore>,
    refusals: Mutex<RefusalLog>,
}

impl<A: Answers> PeerService<A> {
    pub(crate) fn new(fleet: String, ranges: u16, secure: bool, answers: Arc<A>) -> Self {
        Self {
            fleet,
            ranges,
            secure,
            answers,
            memory: Arc::new(Semaphore::new(RECEIVED_BYTES_MAX / PERMIT_BYTES)),
            refusals: Mutex::default(),
        }
    }

    /// Whether to log a refusal, and how many before it were not logged.
    fn log_refusal(&self) -> Option<u64> {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        refusals.count(Instant::now())
    }

    /// A part of the memory for handoffs. Waits for a moment, in which others may end.
    async fn memory(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Status> {
        let units = u32::try_from(bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX);
        let permit = Arc::clone(&self.memory).acquire_many_owned(units);
        match timeout(RECEIVE_PATIENCE, permit).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(Status::resource_exhausted(
                "too much is being received here already",
            )),
        }
    }

    /// The names in the caller's certificate, one of which is a live member's.
    fn caller<T>(&self, request: &Request<T>) -> Result<Vec<String>, Status> {
        if !self.secure {
            return Ok(Vec::new());
        }
        let names = request
            .extensions()
            .get::<PeerNames>()
            .map(|PeerNames(names)| names.to_vec())
            .unwrap_or_default();
        if !names.iter().any(|name| self.answers.is_member(name)) {
            if let Some(suppressed) = self.log_refusal() {
                tracing::warn!(
                    ?names,
                    suppressed,
                    "refused a peer whose certificate names no live member of the fleet"
                );
            }
            return Err(Status::permission_denied(format!(
                "no live member of the fleet is named by {names:?}"
            )));
        }
        Ok(names)
    }

    fn speaks_for(&self, names: &[String], from: &str) -> Result<(), Status> {
        if self.secure && !names.iter().any(|name| name == from) {
            if let Some(suppressed) = self.log_refusal() {
                tracing::warn!(
                    ?names,
                    from,
                    suppressed,
                    "refused a peer that speaks in another's name"
                );
            }
            return Err(Status::permission_denied(format!(
                "the certificate names {names:?}, not {from:?}"
            )));
        }
        Ok(())
    }

    fn range(&self, range: u32) -> Result<RangeId, Status> {
        u16::try_from(range)
            .ok()
            .filter(|range| *range < self.ranges)
            .ok_or_else(|| {
                Status::invalid_argument(format!("range {range} is not below {}", self.ranges))
            })
    }
}

#[tonic::async_trait]
impl<A: Answers> Peer for PeerService<A> {
    async fn handoff(
        &self,
        request: Request<Streaming<HandoffChunk>>,
    ) -> Result<Response<HandoffAck>, Status> {
        let names = self.caller(&request)?;
        let mut stream = request.into_inner();
        let mut header = None;
        let mut state = RangeState::default();
        let mut bytes = 0usize;
        let mut keys = 0usize;
        let mut ended = false;
        // Kept until the state is the coordinator's, which has a bound of its own.
        let mut memory: Vec<OwnedSemaphorePermit> = Vec::new();
        loop {
            // The largest message is paid for before it is read; what it did not need is given back at once.
            let mut permit = self.memory(MESSAGE_BYTES_MAX).await?;
            let Some(chunk) = stream.message().await? else {
                break;
            };
            let of_chunk: usize = chunk.controllers.iter().map(|part| part.keys.len()).sum();
            let needed = cost(chunk.encoded_len(), of_chunk);
            let unused = MESSAGE_BYTES_MAX.saturating_sub(needed) / PERMIT_BYTES;
            drop(permit.split(unused));
            memory.push(permit);
            if needed > MESSAGE_BYTES_MAX {
                memory.push(self.memory(needed - MESSAGE_BYTES_MAX).await?);
            }
            keys += of_chunk;
            if ended {
                return Err(Status::invalid_argument("a chunk after the last one"));
            }
            match (&header, &chunk.header) {
                (None, Some(given)) => {
                    self.speaks_for(&names, &given.from)?;
                    if given.fleet != self.fleet {
                        return Err(Status::invalid_argument(format!(
                            "this fleet is {:?}",
                            self.fleet
                        )));
                    }
                    self.range(given.range)?;
                    header = chunk.header.clone();
                }
                (Some(_), None) => {}
                _ => {
                    return Err(Status::invalid_argument(
                        "the header belongs into the first chunk, and there alone",
                    ));
                }
            }
            bytes += chunk.encoded_len();
            if bytes > STATE_BYTES_MAX || cost(bytes, keys) > STATE_COST_MAX {
                return Err(Status::resource_exhausted(format!(
                    "a range's state of {keys} keys and more is over the limit of {STATE_BYTES_MAX} bytes"
                )));
            }
            ended = chunk.end;
            for part in chunk.controllers {
                match state
                    .controllers
                    .iter_mut()
                    .find(|known| known.controller == part.controller)
                {
                    Some(known) => {
                        known.keys.extend(part.keys);
                        known.seen.extend(part.seen);
                    }
                    None => state.controllers.push(part),
                }
            }
        }
        let Some(header) = header.filter(|_| ended) else {
            return Err(Status::invalid_argument("the handoff has no end"));
        };
        let offer = Offer {
            id: 0,
            from: Holder::new(header.from, header.from_incarnation),
            to_incarnation: header.to_incarnation,
            range: self.range(header.range)?,
            epoch: header.epoch,
            attempt: header.attempt,
            build: header.version,
        };
        Ok(Response::new(
            match self.answers.offered(offer, state, cost(bytes, keys)).await {
                Ok(()) => HandoffAck {
                    accepted: true,
                    reason: String::new(),
                },
                Err(reason) => HandoffAck {
                    accepted: false,
                    reason,
                },
            },
        ))
    }

    async fn released(
        &self,
        request: Request<ReleasedRequest>,
    ) -> Result<Response<ReleasedResponse>, Status> {
        let names = self.caller(&request)?;
        let told = request.into_inner();
        self.speaks_for(&names, &told.from)?;
        let range = self.range(told.range)?;
        self.answers
            .told(
                Holder::new(told.from, told.from_incarnation),
                range,
                told.epoch,
            )
            .await;
        Ok(Response::new(ReleasedResponse {}))
    }

    async fn holds(
        &self,
        request: Request<HoldsRequest>,
    ) -> Result<Response<HoldsResponse>, Status> {
        self.caller(&request)?;
        let asked = request.into_inner().ranges;
        if asked.len() > usize::from(self.ranges) {
            return Err(Status::invalid_argument("more ranges than there are"));
        }
        let ranges = asked
            .into_iter()
            .map(|range| self.range(range))
            .collect::<Result<Vec<_>, _>>()?;
        let Some((incarnation, answer)) = self.answers.holds(ranges).await else {
            return Err(Status::unavailable("this replica is on its way out"));
        };
        Ok(Response::new(HoldsResponse {
            incarnation,
            held: answer
                .iter()
                .filter(|(_, (held, _))| *held)
                .map(|(range, _)| u32::from(*range))
                .collect(),
            highest: answer
                .into_iter()
                .map(|(range, (_, epoch))| RangeEpoch {
                    range: u32::from(range),
                    epoch,
                })
                .collect(),
        }))
    }
}

/// Serves until `stop` is dropped or says so.
pub(crate) async fn serve<A: Answers>(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    service: PeerService<A>,
    stop: watch::Receiver<bool>,
) -> Result<(), tonic::transport::Error> {
    let (accepted, incoming) = mpsc::channel::<Result<Wire, io::Error>>(ACCEPTED_MAX);
    let answers = Arc::clone(&service.answers);
    let accepting = tokio::spawn(accept(listener, tls, answers, accepted));
    let service = peer_proto::peer_server::PeerServer::new(service)
        .max_decoding_message_size(MESSAGE_BYTES_MAX);
    let mut stop = stop;
    let served = tonic::transport::Server::builder()
        .max_concurrent_streams(STREAMS_MAX)
        .concurrency_limit_per_connection(STREAMS_MAX as usize)
        .timeout(SERVER_DEADLINE)
        .http2_keepalive_interval(Some(Duration::from_secs(5)))
        .http2_keepalive_timeout(Some(Duration::from_secs(5)))
        .add_service(service)
        .serve_with_incoming_shutdown(
            tokio_stream::wrappers::ReceiverStream::new(incoming),
            async move {
                let _ = stop.wait_for(|stop| *stop).await;
            },
        )
        .await;
    accepting.abort();
    served
}

async fn accept<A: Answers>(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    answers: Arc<A>,
    accepted: mpsc::Sender<Result<Wire, io::Error>>,
) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let handshakes = Arc::new(Handshakes::default());
    let refusals = Arc::new(Mutex::new(RefusalLog::default()));
    loop {
        let (tcp, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file handles, as a rule: waiting a little is all that helps.
                tracing::warn!(%error, "accepting a peer failed");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        // Nobody waits for a place: whoever has none is dropped, so that the next in line may be a member.
        let member = answers.is_peer_address(from.ip());
        let place = match handshakes.enter(from.ip(), member) {
            Ok(place) => place,
            Err(why) => {
                refused(&refusals, from, why);
                continue;
            }
        };
        let _ = tcp.set_nodelay(true);
        let (tls, accepted) = (tls.clone(), accepted.clone());
        let (connections, refusals) = (Arc::clone(&connections), Arc::clone(&refusals));
        tokio::spawn(async move {
            let wire = match tls {
                None => Wire::Plain(tcp),
                Some(tls) => {
                    let acceptor = tokio_rustls::TlsAcceptor::from(tls.server());
                    match timeout(CONNECT_DEADLINE, acceptor.accept(tcp)).await {
                        Ok(Ok(stream)) => {
                            Wire::Tls(Box::new(tokio_rustls::TlsStream::from(stream)))
                        }
                        Ok(Err(error)) => return refused(&refusals, from, &error.to_string()),
                        Err(_) => return refused(&refusals, from, "no handshake in time"),
                    }
                }
            };
            drop(place);
            match connections.try_acquire_owned() {
                Ok(connection) => {
                    let _ = accepted.send(Ok(wire.counted(connection))).await;
                }
                Err(_) => refused(&refusals, from, "too many connections are open"),
            }
        });
    }
}

fn refused(refusals: &Mutex<RefusalLog>, from: SocketAddr, why: &str) {
    let mut refusals = refusals.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(suppressed) = refusals.count(Instant::now()) {
        tracing::warn!(%from, why, suppressed, "refused a peer's connection");
    }
}

use wire::{PeerNames, Wire};

mod wire {
    //! A connection, with TLS or without.

    use std::{
        io,
        pin::Pin,
        sync::Arc,
        task::{Context, Poll},
    };

    use tokio::{
        io::{AsyncRead, AsyncWrite, ReadBuf},
        net::TcpStream,
        sync::OwnedSemaphorePermit,
    };

    use super::{Connected, dns_names};

    pub(super) enum Wire {
        Plain(TcpStream),
        Tls(Box<tokio_rustls::TlsStream<TcpStream>>),
        /// One of a bounded number.
        Counted(
            Box<Wire>,
            #[allow(dead_code, reason = "held until the connection ends")] OwnedSemaphorePermit,
        ),
    }

    /// The DNS names in the caller's certificate; none without TLS.
    #[derive(Clone)]
    pub(super) struct PeerNames(pub Arc<[String]>);

    impl Wire {
        pub(super) fn counted(self, permit: OwnedSemaphorePermit) -> Self {
            Self::Counted(Box::new(self), permit)
        }
    }

    impl Connected for Wire {
        type ConnectInfo = PeerNames;

        fn connect_info(&self) -> PeerNames {
            match self {
                Self::Plain(_) => PeerNames(Arc::new([])),
                Self::Tls(stream) => {
                    let chain = stream.get_ref().1.peer_certificates();
                    PeerNames(
                        chain
                            .and_then(|chain| chain.first())
                            .map(dns_names)
                            .unwrap_or_default()
                            .into(),
                    )
                }
                Self::Counted(wire, _) => wire.connect_info(),
            }
        }
    }

    impl AsyncRead for Wire {
        fn poll_read(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            match self.get_mut() {
                Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
                Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
                Self::Counted(wire, _) => Pin::new(wire).poll_read(cx, buf),
            }
        }
    }

    impl AsyncWrite for Wire {
        fn poll_write(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buf: &[u8],
        ) -> Poll<io::Result<usize>> {
            match self.get_mut() {
                Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
                Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
                Self::Counted(wire, _) => Pin::new(wire).poll_write(cx, buf),
            }
        }

        fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            match self.get_mut() {
                Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
                Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
                Self::Counted(wire, _) => Pin::new(wire).poll_flush(cx),
            }
        }

        fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            match self.get_mut() {
                Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
                Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
                Self::Counted(wire, _) => Pin::new(wire).poll_shutdown(cx),
            }
        }
    }
}
