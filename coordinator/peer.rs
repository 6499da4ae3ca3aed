//! How replicas reach each other: the gRPC client and server, with their limits.
//!
//! What comes in is bounded and typed, comes from a live member that has proven who it is, and is a hint: the
//! core compares it with the Leases.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use coordinator_core::{Epoch, Holder, Member, NotSent, Offer, Pin, RangeId, View};
use futures::{FutureExt, future::BoxFuture};
use hyper_util::rt::TokioIo;
use peer_proto::{
    ControllerState, HandoffAck, HandoffChunk, HandoffHeader, HoldsRequest, HoldsResponse,
    InspectRequest, InspectResponse, RangeEpoch, RangeState, ReleasedRequest, ReleasedResponse,
    Sight, SightsRequest, SightsResponse, peer_client::PeerClient, peer_server::Peer,
};
use prost::Message as _;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
    time::timeout,
};
use tonic::{
    Request, Response, Status, Streaming,
    metadata::MetadataValue,
    transport::{Channel, Endpoint, server::Connected},
};

use crate::{
    admission::{Admission, PeerRefusal, Refusals},
    tls::{Tls, WrongKey},
    trace::{PeerCall, PeerSpan, Tracer},
    trust::{self, Caller},
};

/// A chunk of a handoff is cut at about this size …
const CHUNK_BYTES: usize = 1 << 20;
/// … and no message may be larger than this: one key's state may overhang a chunk.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// All that one range may bring. 256 ranges of a cluster with 1,000,000 keys hold 4,000 keys each, at 2 kB.
pub(crate) const STATE_BYTES_MAX: usize = 32 << 20;
/// At most 8 handoffs from each of a few senders, and small calls.
const STREAMS_MAX: u32 = 64;
/// TCP and TLS between two replicas take milliseconds; a silent address must not hold a frozen range.
const CONNECT_DEADLINE: Duration = Duration::from_millis(500);
/// A handshake that was cut off is tried again after so long: newer ones may have displaced it.
const CONNECT_PAUSE: Duration = Duration::from_millis(20);
/// Attempts in all.
const CONNECTS_MAX: u32 = 5;
/// A caller's Lease may still be on its way here when the caller is: so long is it waited for.
const LEASE_PATIENCE: Duration = Duration::from_millis(300);
/// For one whole handoff, below the renew deadline's default: a range stays frozen no longer.
pub const HANDOFF_DEADLINE: Duration = Duration::from_secs(2);
/// For everything small.
pub const CALL_DEADLINE: Duration = Duration::from_secs(1);
/// Whether a peer answers at all: nothing is frozen for the answer, so this has room for a connection to
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
/// For an answer that a person waits for: below [`SERVER_DEADLINE`].
const INSPECT_DEADLINE: Duration = Duration::from_secs(3);
/// Bytes of such an answer; a larger one is refused by its sender, who says so.
const INSPECT_BYTES_MAX: usize = 2 << 20;
/// Such questions that are answered at once, from all peers: beyond it a caller is refused.
const INSPECTIONS_MAX: usize = 8;
/// Keys in one question.
const INSPECTED_KEYS_MAX: usize = 256;
/// Resources of which a peer is believed something: more than any replica watches.
const SIGHTS_MAX: usize = 1000;
/// Connections that wait for the server to see them.
const ACCEPTED_MAX: usize = 32;

/// The metadata in which W3C Trace Context carries the caller's span.
const TRACEPARENT: &str = "traceparent";

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
    fn swap_announced(
        &self,
        from: Holder,
        range: RangeId,
        epoch: Epoch,
    ) -> impl Future<Output = ()> + Send;
    fn holds(
        &self,
        ranges: Vec<RangeId>,
    ) -> impl Future<Output = Option<(String, Holdings)>> + Send;
    /// How far the watches have come here.
    fn sights(&self) -> Vec<Sight>;
    /// The fleet as it is seen here.
    fn view(&self) -> watch::Receiver<Arc<View>>;
    /// What happens inside the node.
    fn inspect(
        &self,
        asked: InspectRequest,
    ) -> impl Future<Output = Result<Vec<u8>, String>> + Send;
}

// ---- client ----

/// An open call to a peer.
pub type Call<'a, T> = BoxFuture<'a, T>;

/// How a coordinator reaches its peers: by gRPC, or as a simulation has it. No call may take longer than
/// [`HANDOFF_DEADLINE`], the small ones than [`CALL_DEADLINE`].
pub trait Calls: Send + Sync + 'static {
    /// Forgets what is kept for others than these members as they are now.
    fn keep(&self, members: &[Member]);
    /// Gives a range's state to its next owner.
    fn handoff<'a>(
        &'a self,
        incarnation: &'a str,
        to: &'a Holder,
        address: &'a str,
        what: (RangeId, Epoch, u64),
        state: RangeState,
    ) -> Call<'a, Result<(), NotSent>>;
    /// Notifies the next owner that the range's Lease names it.
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
    /// Asks what happens inside a peer: JSON.
    fn inspect<'a>(
        &'a self,
        _to: &'a Holder,
        _address: &'a str,
        _asked: InspectRequest,
    ) -> Call<'a, Result<Vec<u8>, String>> {
        std::future::ready(Err("peers can't be asked here".to_owned())).boxed()
    }
    /// Asks how far a peer's watches have come.
    fn sights<'a>(
        &'a self,
        _to: &'a Holder,
        _address: &'a str,
    ) -> Call<'a, Result<Vec<Sight>, String>> {
        std::future::ready(Ok(Vec::new())).boxed()
    }
}

impl Calls for Peers {
    fn keep(&self, members: &[Member]) {
        let is_it = |(name, address, pin): &Callee| {
            let is_it = |one: &Member| (&one.name, &one.address, one.pin) == (name, address, *pin);
            members.iter().any(is_it)
        };
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        channels.retain(|callee, _| is_it(callee));
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
    fn inspect<'a>(
        &'a self,
        to: &'a Holder,
        address: &'a str,
        asked: InspectRequest,
    ) -> Call<'a, Result<Vec<u8>, String>> {
        Self::inspect(self, to, address, asked).boxed()
    }
    fn sights<'a>(
        &'a self,
        to: &'a Holder,
        address: &'a str,
    ) -> Call<'a, Result<Vec<Sight>, String>> {
        Self::sights(self, to, address).boxed()
    }
}

/// Name, address and key: a process that restarts has another key, and so another channel.
type Callee = (String, String, Option<Pin>);

/// Channels to peers, kept while they are members.
pub(crate) struct Peers {
    fleet: String,
    own: String,
    build: String,
    tls: Option<Arc<Tls>>,
    view: watch::Receiver<Arc<View>>,
    refusals: Arc<Refusals>,
    tracer: Option<Arc<dyn Tracer>>,
    channels: Mutex<BTreeMap<Callee, Channel>>,
}

impl Peers {
    pub(crate) fn new(
        fleet: String,
        own: String,
        build: String,
        tls: Option<Arc<Tls>>,
        view: watch::Receiver<Arc<View>>,
        refusals: Arc<Refusals>,
        tracer: Option<Arc<dyn Tracer>>,
    ) -> Self {
        Self {
            fleet,
            own,
            build,
            tls,
            view,
            refusals,
            tracer,
            channels: Mutex::default(),
        }
    }

    #[cfg(test)]
    pub(crate) fn open_channels(&self) -> Vec<Callee> {
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
        let mut client = self.client(to, address).map_err(NotSent::Unreachable)?;
        let (span, request) = self.traced(
            PeerCall {
                method: "Handoff",
                is_client: true,
                peer: &to.name,
                from: incarnation,
                range,
                epoch: epoch + 1,
                parent: None,
            },
            tokio_stream::iter(chunks),
        );
        let sent = match timeout(HANDOFF_DEADLINE, client.handoff(request)).await {
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
        };
        let why = |error: &NotSent| match error {
            NotSent::Refused(why) | NotSent::Unreachable(why) | NotSent::TooLarge(why) => {
                why.clone()
            }
        };
        end(span, &sent.as_ref().copied().map_err(why));
        sent
    }

    pub(crate) async fn released(
        &self,
        incarnation: &str,
        to: &Holder,
        address: &str,
        range: RangeId,
        epoch: Epoch,
    ) -> Result<(), String> {
        let mut client = self.client(to, address)?;
        let (span, request) = self.traced(
            PeerCall {
                method: "Released",
                is_client: true,
                peer: &to.name,
                from: incarnation,
                range,
                epoch,
                parent: None,
            },
            ReleasedRequest {
                from: self.own.clone(),
                from_incarnation: incarnation.to_owned(),
                range: u32::from(range),
                epoch,
            },
        );
        let sent = match timeout(CALL_DEADLINE, client.released(request)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(status)) => Err(said(&status)),
            Err(_) => Err(format!("no answer within {CALL_DEADLINE:?}")),
        };
        end(span, &sent);
        sent
    }

    pub(crate) async fn holds(
        &self,
        to: &Holder,
        address: &str,
        ranges: &[RangeId],
    ) -> Result<Holdings, String> {
        let mut client = self.client(to, address)?;
        let request = HoldsRequest {
            ranges: ranges.iter().copied().map(u32::from).collect(),
        };
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

    pub(crate) async fn inspect(
        &self,
        to: &Holder,
        address: &str,
        asked: InspectRequest,
    ) -> Result<Vec<u8>, String> {
        let mut client = self.client(to, address)?;
        match timeout(INSPECT_DEADLINE, client.inspect(asked)).await {
            Ok(Ok(answer)) => Ok(answer.into_inner().answer),
            Ok(Err(status)) if status.code() == tonic::Code::Unimplemented => {
                Err("its build does not answer for others yet: ask it itself".to_owned())
            }
            Ok(Err(status)) => Err(said(&status)),
            Err(_) => Err(format!("no answer within {INSPECT_DEADLINE:?}")),
        }
    }

    pub(crate) async fn sights(&self, to: &Holder, address: &str) -> Result<Vec<Sight>, String> {
        let mut client = self.client(to, address)?;
        let mut sights = match timeout(CONTACT_DEADLINE, client.sights(SightsRequest {})).await {
            Ok(Ok(answer)) => answer.into_inner().sights,
            Ok(Err(status)) => return Err(said(&status)),
            Err(_) => return Err(format!("no answer within {CONTACT_DEADLINE:?}")),
        };
        sights.truncate(SIGHTS_MAX);
        Ok(sights)
    }

    /// A request that carries its span, where calls are traced.
    fn traced<T>(&self, call: PeerCall<'_>, message: T) -> (Option<Box<dyn PeerSpan>>, Request<T>) {
        let span = self.tracer.as_ref().and_then(|tracer| tracer.begin(&call));
        let mut request = Request::new(message);
        let parent = span.as_ref().and_then(|span| span.traceparent());
        if let Some(parent) = parent.and_then(|parent| MetadataValue::try_from(parent).ok()) {
            request.metadata_mut().insert(TRACEPARENT, parent);
        }
        (span, request)
    }

    fn client(&self, to: &Holder, address: &str) -> Result<PeerClient<Channel>, String> {
        let pin = match self.tls {
            Some(_) => trust::pin_of(&self.view.borrow(), to)?,
            None => None,
        };
        let callee = (to.name.clone(), address.to_owned(), pin);
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        if !channels.contains_key(&callee) {
            let channel = self.channel(&callee)?;
            channels.insert(callee.clone(), channel);
        }
        let channel = channels.get(&callee).cloned().ok_or("no channel")?;
        Ok(PeerClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX))
    }

    fn channel(&self, (name, address, pin): &Callee) -> Result<Channel, String> {
        // TLS is the connector's; to tonic the address is plain.
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|error| format!("peer address {address:?}: {error}"))?
            .tcp_nodelay(true)
            .http2_keep_alive_interval(Duration::from_secs(2))
            .keep_alive_timeout(Duration::from_secs(2))
            .keep_alive_while_idle(true);
        if let Some(tls) = &self.tls {
            tls.client(name, *pin)?;
        }
        let tls = self.tls.clone();
        let (name, address, pin) = (name.clone(), address.clone(), *pin);
        let refusals = Arc::clone(&self.refusals);
        Ok(
            endpoint.connect_with_connector_lazy(tower::service_fn(move |_: http::Uri| {
                let (tls, name, address) = (tls.clone(), name.clone(), address.clone());
                let refusals = Arc::clone(&refusals);
                async move {
                    let connect = async {
                        let mut tries = 1;
                        loop {
                            match connect(tls.as_deref(), &name, pin, &address).await {
                                Err(error) if tries < CONNECTS_MAX && was_cut_off(&error) => {
                                    tries += 1;
                                    tokio::time::sleep(CONNECT_PAUSE).await;
                                }
                                ended => return ended,
                            }
                        }
                    };
                    let connected = timeout(CONNECT_DEADLINE, connect).await;
                    let error = match connected {
                        Ok(Ok(wire)) => return Ok(TokioIo::new(wire)),
                        Ok(Err(error)) => error,
                        Err(_) => io::Error::new(
                            io::ErrorKind::TimedOut,
                            format!("no connection within {CONNECT_DEADLINE:?}"),
                        ),
                    };
                    let Some(why) = WrongKey::in_error(&error) else {
                        return Err(error);
                    };
                    let text = why.to_string();
                    refusals.refuse(
                        PeerRefusal::WrongKey,
                        &format!("{name} at {address}"),
                        &text,
                    );
                    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
                }
            })),
        )
    }
}

async fn connect(
    tls: Option<&Tls>,
    name: &str,
    pin: Option<Pin>,
    address: &str,
) -> io::Result<Wire> {
    let tcp = TcpStream::connect(address).await?;
    tcp.set_nodelay(true)?;
    let Some(tls) = tls else {
        return Ok(Wire::plain(tcp));
    };
    let (config, server) = tls.client(name, pin).map_err(io::Error::other)?;
    let connector = tokio_rustls::TlsConnector::from(config);
    Ok(Wire::tls(connector.connect(server, tcp).await?.into()))
}

fn was_cut_off(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// Ends the span of a call.
fn end<E: std::fmt::Display>(span: Option<Box<dyn PeerSpan>>, result: &Result<(), E>) {
    if let Some(span) = span {
        span.end(result.as_ref().err().map(ToString::to_string));
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
    answers: Arc<A>,
    /// Memory for handoffs that are being received, in units of [`PERMIT_BYTES`].
    memory: Arc<Semaphore>,
    inspections: Semaphore,
    refusals: Arc<Refusals>,
    tracer: Option<Arc<dyn Tracer>>,
}

/// The span of a caller.
fn parent_of<T>(request: &Request<T>) -> Option<String> {
    let text = request.metadata().get(TRACEPARENT)?.to_str().ok()?;
    Some(text.to_owned())
}

impl<A: Answers> PeerService<A> {
    pub(crate) fn new(
        fleet: String,
        ranges: u16,
        answers: Arc<A>,
        refusals: Arc<Refusals>,
        tracer: Option<Arc<dyn Tracer>>,
    ) -> Self {
        Self {
            tracer,
            fleet,
            ranges,
            answers,
            memory: Arc::new(Semaphore::new(RECEIVED_BYTES_MAX / PERMIT_BYTES)),
            inspections: Semaphore::new(INSPECTIONS_MAX),
            refusals,
        }
    }

    fn begin(&self, call: &PeerCall<'_>) -> Option<Box<dyn PeerSpan>> {
        self.tracer.as_ref()?.begin(call)
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

    /// Who calls: a live member, as it was when the connection was made.
    fn caller<T>(&self, request: &Request<T>) -> Result<Caller, Status> {
        let caller = request.extensions().get::<Caller>().cloned();
        let caller = caller.unwrap_or(Caller::Named(Vec::new()));
        if caller.is_member(&self.answers.view().borrow()) || caller == Caller::Unproven {
            return Ok(caller);
        }
        let who = caller.describe();
        self.refusals.refuse(PeerRefusal::Unknown, &who, NO_MEMBER);
        Err(Status::permission_denied(format!("{who}: {NO_MEMBER}")))
    }

    fn speaks_for(&self, caller: &Caller, from: &str) -> Result<(), Status> {
        let speaks = *caller == Caller::Unproven
            || caller
                .members(&self.answers.view().borrow())
                .any(|name| name == from);
        if speaks {
            return Ok(());
        }
        let text = format!("it speaks in the name of {from:?}, which is not its own");
        let who = caller.describe();
        self.refusals.refuse(PeerRefusal::OtherName, &who, &text);
        Err(Status::permission_denied(format!("{who}: {text}")))
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
        let caller = self.caller(&request)?;
        let parent = parent_of(&request);
        let mut span = None;
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
                    self.speaks_for(&caller, &given.from)?;
                    if given.fleet != self.fleet {
                        return Err(Status::invalid_argument(format!(
                            "this fleet is {:?}",
                            self.fleet
                        )));
                    }
                    let range = self.range(given.range)?;
                    span = self.begin(&PeerCall {
                        method: "Handoff",
                        is_client: false,
                        peer: &given.from,
                        from: &given.from_incarnation,
                        range,
                        epoch: given.epoch.saturating_add(1),
                        parent: parent.as_deref(),
                    });
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
        let offered = self.answers.offered(offer, state, cost(bytes, keys)).await;
        end(span, &offered);
        Ok(Response::new(match offered {
            Ok(()) => HandoffAck {
                accepted: true,
                reason: String::new(),
            },
            Err(reason) => HandoffAck {
                accepted: false,
                reason,
            },
        }))
    }

    async fn released(
        &self,
        request: Request<ReleasedRequest>,
    ) -> Result<Response<ReleasedResponse>, Status> {
        let caller = self.caller(&request)?;
        let parent = parent_of(&request);
        let notice = request.into_inner();
        self.speaks_for(&caller, &notice.from)?;
        let range = self.range(notice.range)?;
        let (from, epoch) = (
            Holder::new(notice.from, notice.from_incarnation),
            notice.epoch,
        );
        let span = self.begin(&PeerCall {
            method: "Released",
            is_client: false,
            peer: &from.name,
            from: &from.incarnation,
            range,
            epoch,
            parent: parent.as_deref(),
        });
        self.answers.swap_announced(from, range, epoch).await;
        end::<String>(span, &Ok(()));
        Ok(Response::new(ReleasedResponse {}))
    }

    async fn sights(
        &self,
        request: Request<SightsRequest>,
    ) -> Result<Response<SightsResponse>, Status> {
        self.caller(&request)?;
        let sights = self.answers.sights();
        Ok(Response::new(SightsResponse { sights }))
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

    async fn inspect(
        &self,
        request: Request<InspectRequest>,
    ) -> Result<Response<InspectResponse>, Status> {
        // Who has proven nothing may be anybody, and nobody has asked for that caller's rights.
        if self.caller(&request)? == Caller::Unproven {
            return Err(Status::permission_denied(
                "with --peer-insecure replicas answer for themselves alone: ask each of them",
            ));
        }
        let asked = request.into_inner();
        if asked.keys.len() > INSPECTED_KEYS_MAX {
            return Err(Status::invalid_argument(format!(
                "more than {INSPECTED_KEYS_MAX} keys"
            )));
        }
        let Ok(_place) = self.inspections.try_acquire() else {
            return Err(Status::resource_exhausted(format!(
                "{INSPECTIONS_MAX} such questions are being answered here already"
            )));
        };
        let answer = self.answers.inspect(asked).await;
        let answer = answer.map_err(Status::unavailable)?;
        if answer.len() > INSPECT_BYTES_MAX {
            return Err(Status::resource_exhausted(format!(
                "the answer of {} bytes is over the limit of {INSPECT_BYTES_MAX}: ask for fewer keys",
                answer.len()
            )));
        }
        Ok(Response::new(InspectResponse { answer }))
    }
}

/// Why a caller is refused.
const NO_MEMBER: &str =
    "no live member of the fleet is known by it, by the replica Leases as seen here";

/// Serves until `stop` is dropped or says so.
pub(crate) async fn serve<A: Answers>(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    service: PeerService<A>,
    stop: watch::Receiver<bool>,
) -> Result<(), tonic::transport::Error> {
    let (accepted, incoming) = mpsc::channel::<Result<Wire, io::Error>>(ACCEPTED_MAX);
    let view = service.answers.view();
    let refusals = Arc::clone(&service.refusals);
    let accepting = tokio::spawn(accept(listener, tls, view, refusals, accepted));
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

async fn accept(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    view: watch::Receiver<Arc<View>>,
    refusals: Arc<Refusals>,
    accepted: mpsc::Sender<Result<Wire, io::Error>>,
) {
    let admission = Arc::new(Admission::default());
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
        let known = trust::is_peer_address(&view.borrow(), from.ip());
        let mut place = admission.handshake(from.ip(), known);
        let (admission, tls, view) = (Arc::clone(&admission), tls.clone(), view.clone());
        let (refusals, accepted) = (Arc::clone(&refusals), accepted.clone());
        tokio::spawn(async move {
            let admitted = tokio::select! {
                biased;
                admitted = admit(tcp, tls.as_deref(), view, &admission) => admitted,
                () = place.displaced() => {
                    Err((PeerRefusal::Displaced, "newer handshakes took its place".to_owned()))
                }
            };
            drop(place);
            match admitted {
                Ok(wire) => {
                    let _ = accepted.send(Ok(wire)).await;
                }
                Err((why, text)) => refusals.refuse(why, &from.to_string(), &text),
            }
        });
    }
}

/// Finds out who has connected, and refuses a caller that is no live member. The connection ends when it is
/// one no more: with the Lease of a life that is over ends what was said in its name.
async fn admit(
    tcp: TcpStream,
    tls: Option<&Tls>,
    mut view: watch::Receiver<Arc<View>>,
    admission: &Admission,
) -> Result<Wire, (PeerRefusal, String)> {
    let _ = tcp.set_nodelay(true);
    let Some(tls) = tls else {
        let mut place = admission.connection(None);
        let ends = async move { place.displaced().await };
        return Ok(Wire::plain(tcp).ending_with(ends));
    };
    let acceptor = tokio_rustls::TlsAcceptor::from(tls.server());
    let stream = match timeout(CONNECT_DEADLINE, acceptor.accept(tcp)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err((PeerRefusal::Handshake, error.to_string())),
        Err(_) => {
            let text = format!("no TLS handshake within {CONNECT_DEADLINE:?}");
            return Err((PeerRefusal::Handshake, text));
        }
    };
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let caller = tls.caller(chain);
    let known = view.wait_for(|view| caller.is_member(view));
    if !matches!(timeout(LEASE_PATIENCE, known).await, Ok(Ok(_))) {
        let text = format!("{}: {NO_MEMBER}", caller.describe());
        return Err((PeerRefusal::Unknown, text));
    }
    let name = caller
        .members(&view.borrow())
        .next()
        .unwrap_or_default()
        .to_owned();
    let mut place = admission.connection(Some(&name));
    let proven = caller.clone();
    let ends = async move {
        tokio::select! {
            () = place.displaced() => {}
            _ = view.wait_for(|view| !proven.is_member(view)) => {}
        }
    };
    Ok(Wire::tls(stream.into()).of(caller).ending_with(ends))
}

use wire::Wire;

mod wire {
    //! A connection, with TLS or without.

    use std::{
        io,
        pin::Pin,
        task::{Context, Poll},
    };

    use futures::{FutureExt, future::BoxFuture};
    use tokio::{
        io::{AsyncRead, AsyncWrite, ReadBuf},
        net::TcpStream,
    };

    use super::{Caller, Connected};

    enum Stream {
        Plain(TcpStream),
        Tls(Box<tokio_rustls::TlsStream<TcpStream>>),
    }

    pub(super) struct Wire {
        stream: Stream,
        caller: Caller,
        /// The connection is cut off when this ends; `None` afterwards, and where it ends by itself alone.
        ends: Option<BoxFuture<'static, ()>>,
        cut_off: bool,
    }

    impl Wire {
        fn new(stream: Stream, caller: Caller) -> Self {
            Self {
                stream,
                caller,
                ends: None,
                cut_off: false,
            }
        }

        pub(super) fn plain(tcp: TcpStream) -> Self {
            Self::new(Stream::Plain(tcp), Caller::Unproven)
        }

        pub(super) fn tls(stream: tokio_rustls::TlsStream<TcpStream>) -> Self {
            Self::new(Stream::Tls(Box::new(stream)), Caller::Named(Vec::new()))
        }

        /// Whose it is.
        pub(super) fn of(self, caller: Caller) -> Self {
            Self { caller, ..self }
        }

        /// Cuts it off when this ends.
        pub(super) fn ending_with(self, ends: impl Future<Output = ()> + Send + 'static) -> Self {
            Self {
                ends: Some(ends.boxed()),
                ..self
            }
        }

        fn over(&mut self, cx: &mut Context<'_>) -> bool {
            if let Some(ends) = &mut self.ends
                && ends.poll_unpin(cx).is_ready()
            {
                self.ends = None;
                self.cut_off = true;
            }
            self.cut_off
        }
    }

    impl Connected for Wire {
        type ConnectInfo = Caller;

        fn connect_info(&self) -> Caller {
            self.caller.clone()
        }
    }

    impl AsyncRead for Wire {
        fn poll_read(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let this = self.get_mut();
            if this.over(cx) {
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
            match &mut this.stream {
                Stream::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
                Stream::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
            }
        }
    }

    impl AsyncWrite for Wire {
        fn poll_write(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buf: &[u8],
        ) -> Poll<io::Result<usize>> {
            match &mut self.get_mut().stream {
                Stream::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
                Stream::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
            }
        }

        fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            match &mut self.get_mut().stream {
                Stream::Plain(stream) => Pin::new(stream).poll_flush(cx),
                Stream::Tls(stream) => Pin::new(stream).poll_flush(cx),
            }
        }

        fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            match &mut self.get_mut().stream {
                Stream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
                Stream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            }
        }
    }
}
