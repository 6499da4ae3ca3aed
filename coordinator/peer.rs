//! How replicas reach each other: the gRPC client and server, with their limits.
//!
//! What comes in is bounded and typed, comes from a live member that has proven who it is, and is a hint: the
//! core compares it with the Leases.

mod server;
mod wire;

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use coordinator_core::{Epoch, Holder, Member, NotSent, Offer, Pin, RangeId};
use futures::{FutureExt, future::BoxFuture};
use hyper_util::rt::TokioIo;
use peer_proto::{
    ControllerState, HandoffAck, HandoffChunk, HandoffHeader, HoldsRequest, InspectRequest,
    RangeState, ReleasedRequest, Sight, SightsRequest, peer_client::PeerClient,
};
use prost::Message as _;
use tokio::{net::TcpStream, sync::watch, time::timeout};
use tonic::{
    Request, Status,
    metadata::MetadataValue,
    transport::{Channel, Endpoint},
};

use crate::{
    admission::{PeerRefusal, Refusals},
    tls::{Tls, WrongKey},
    trace::{PeerCall, PeerSpan, Tracer},
    trust,
};
pub(crate) use server::{PeerService, serve};
use wire::Wire;

/// A chunk of a handoff is cut at about this size …
const CHUNK_BYTES: usize = 1 << 20;
/// … and no message may be larger than this: one key's state may overhang a chunk.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// All that one range may bring. 256 ranges of a cluster with 1,000,000 keys hold 4,000 keys each, at 2 kB.
pub(crate) const STATE_BYTES_MAX: usize = 32 << 20;
/// TCP and TLS between two replicas take milliseconds; a silent address must not hold a frozen range.
const CONNECT_DEADLINE: Duration = Duration::from_millis(500);
/// A handshake that was cut off is tried again after so long: newer ones may have displaced it.
const CONNECT_PAUSE: Duration = Duration::from_millis(20);
/// Attempts in all.
const CONNECTS_MAX: u32 = 5;
/// For one whole handoff, below the renew deadline's default: a range stays frozen no longer.
pub const HANDOFF_DEADLINE: Duration = Duration::from_secs(2);
/// For everything small.
pub const CALL_DEADLINE: Duration = Duration::from_secs(1);
/// Whether a peer answers at all: nothing is frozen for the answer, so this has room for a connection to
/// be made.
pub const CONTACT_DEADLINE: Duration = Duration::from_millis(600);
/// What a key takes in memory besides its bytes on the wire, where an empty one takes two.
const KEY_COST: usize = 256;
/// What one range's state may take in memory. [`STATE_BYTES_MAX`] of keys of a few hundred bytes fit.
const STATE_COST_MAX: usize = 2 * STATE_BYTES_MAX;
/// For an answer that a person waits for: below [`SERVER_DEADLINE`].
const INSPECT_DEADLINE: Duration = Duration::from_secs(3);
/// Bytes of such an answer; a larger one is refused by its sender, who says so.
const INSPECT_BYTES_MAX: usize = 2 << 20;
/// Keys in one question.
const INSPECTED_KEYS_MAX: usize = 256;
/// Resources of which a peer is believed something: more than any replica watches.
const SIGHTS_MAX: usize = 1000;

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
    /// The members as they are seen here; wakes where one is another than before.
    fn members(&self) -> watch::Receiver<Vec<Member>>;
    /// What happens inside the node.
    fn inspect(
        &self,
        asked: InspectRequest,
    ) -> impl Future<Output = Result<Vec<u8>, String>> + Send;
}

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
    members: watch::Receiver<Vec<Member>>,
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
        members: watch::Receiver<Vec<Member>>,
        refusals: Arc<Refusals>,
        tracer: Option<Arc<dyn Tracer>>,
    ) -> Self {
        Self {
            fleet,
            own,
            build,
            tls,
            members,
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
            Some(_) => trust::pin_of(&self.members.borrow(), to)?,
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
            .tcp_nodelay(true);
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
    wire::give_up_the_lost(&tcp);
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
