//! The gRPC server: what peers ask of this replica.

use std::{io, sync::Arc, time::Duration};

use coordinator_core::{Holder, Member, Offer, RangeId};
use peer_proto::{
    HandoffAck, HandoffChunk, HoldsRequest, HoldsResponse, InspectRequest, InspectResponse,
    RangeEpoch, RangeState, ReleasedRequest, ReleasedResponse, SightsRequest, SightsResponse,
    peer_server::Peer,
};
use prost::Message as _;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
    time::timeout,
};
use tonic::{Request, Response, Status, Streaming};

use super::{
    Answers, CONNECT_DEADLINE, INSPECT_BYTES_MAX, INSPECTED_KEYS_MAX, MESSAGE_BYTES_MAX,
    STATE_BYTES_MAX, STATE_COST_MAX, TRACEPARENT, cost, end,
    wire::{self, Wire},
};
use crate::{
    admission::{Admission, PeerRefusal, Refusals},
    tls::Tls,
    trace::{PeerCall, PeerSpan, Tracer},
    trust::{self, Caller},
};
/// At most 8 handoffs from each of a few senders, and small calls.
const STREAMS_MAX: u32 = 64;
/// A caller's Lease may still be on its way here when the caller is: so long is it waited for.
const LEASE_PATIENCE: Duration = Duration::from_millis(300);
/// The server ends calls that outlive their clients' deadlines.
const SERVER_DEADLINE: Duration = Duration::from_secs(5);
/// All that handoffs may take which are being received. Beyond it their senders wait for a moment, then try
/// again later.
const RECEIVED_BYTES_MAX: usize = 128 << 20;
/// How long a handoff waits for its part of that.
const RECEIVE_PATIENCE: Duration = Duration::from_secs(1);
/// The unit of permits for memory: a semaphore counts in 32 bits.
const PERMIT_BYTES: usize = 1 << 10;
/// Such questions that are answered at once, from all peers: beyond it a caller is refused.
const INSPECTIONS_MAX: usize = 8;
/// Connections that wait for the server to see them.
const ACCEPTED_MAX: usize = 32;

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
        if caller.is_member(&self.answers.members().borrow()) || caller == Caller::Unproven {
            return Ok(caller);
        }
        let who = caller.describe();
        self.refusals.refuse(PeerRefusal::Unknown, &who, NO_MEMBER);
        Err(Status::permission_denied(format!("{who}: {NO_MEMBER}")))
    }

    fn speaks_for(&self, caller: &Caller, from: &str) -> Result<(), Status> {
        let speaks = *caller == Caller::Unproven
            || caller
                .members(&self.answers.members().borrow())
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
    let members = service.answers.members();
    let refusals = Arc::clone(&service.refusals);
    let accepting = tokio::spawn(accept(listener, tls, members, refusals, accepted));
    let service = peer_proto::peer_server::PeerServer::new(service)
        .max_decoding_message_size(MESSAGE_BYTES_MAX);
    let mut stop = stop;
    let served = tonic::transport::Server::builder()
        .max_concurrent_streams(STREAMS_MAX)
        .concurrency_limit_per_connection(STREAMS_MAX as usize)
        .timeout(SERVER_DEADLINE)
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
    members: watch::Receiver<Vec<Member>>,
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
        let known = trust::is_peer_address(&members.borrow(), from.ip());
        let mut place = admission.handshake(from.ip(), known);
        let (admission, tls, members) = (Arc::clone(&admission), tls.clone(), members.clone());
        let (refusals, accepted) = (Arc::clone(&refusals), accepted.clone());
        tokio::spawn(async move {
            let admitted = tokio::select! {
                biased;
                admitted = admit(tcp, tls.as_deref(), members, &admission) => admitted,
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
    mut members: watch::Receiver<Vec<Member>>,
    admission: &Admission,
) -> Result<Wire, (PeerRefusal, String)> {
    let _ = tcp.set_nodelay(true);
    wire::give_up_the_lost(&tcp);
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
    let known = members.wait_for(|members| caller.is_member(members));
    if !matches!(timeout(LEASE_PATIENCE, known).await, Ok(Ok(_))) {
        let text = format!("{}: {NO_MEMBER}", caller.describe());
        return Err((PeerRefusal::Unknown, text));
    }
    let name = caller
        .members(&members.borrow())
        .next()
        .unwrap_or_default()
        .to_owned();
    let mut place = admission.connection(Some(&name));
    let proven = caller.clone();
    let ends = async move {
        tokio::select! {
            () = place.displaced() => {}
            _ = members.wait_for(|members| !proven.is_member(members)) => {}
        }
    };
    Ok(Wire::tls(stream.into()).of(caller).ending_with(ends))
}
