//! What lies between the replicas, and between them and the API server: delays, losses, doubles, and watches
//! that lag.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use coordinator::{
    CALL_DEADLINE, Call, Calls, Door, Epoch, HANDOFF_DEADLINE, Holder, Holdings, Member, NotSent,
    Offer, RangeId,
};
use futures::{FutureExt, StreamExt};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use kube::client::Body;
use kubernetes_proto::AnyObject;
use node_cache::api::{AnswerBody, NoAnswer, Service};
use peer_proto::RangeState;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tower::{BoxError, util::BoxCloneSyncService};

use crate::{
    hub::{Edit, Fate, Hub, Road, Sent},
    server::{Answer, Log, Opened, Request},
};

/// Of a thousand ranges on their way.
const EDITED_ON_THE_WAY: usize = 30;
/// Between two bookmarks of a watch; a real server takes a minute.
const BOOKMARKS: Duration = Duration::from_secs(8);

/// The way of one start of a replica to the API server.
pub fn service(hub: &Arc<Hub>, replica: usize, life: u32) -> Service {
    let hub = Arc::clone(hub);
    BoxCloneSyncService::new(tower::service_fn(move |request: http::Request<Body>| {
        let hub = Arc::clone(&hub);
        async move { exchange(hub, replica, life, request).await }
    }))
}

fn no_answer(reason: &str, before_sending: bool) -> BoxError {
    Box::new(NoAnswer {
        reason: reason.to_owned(),
        before_sending,
    })
}

/// Reads a request as the server does.
pub async fn read(request: http::Request<Body>) -> Result<Request, BoxError> {
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let header = |name: &str| {
        head.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
            .to_owned()
    };
    Ok(Request {
        method: head.method.clone(),
        path: head.uri.path().to_owned(),
        query: head
            .uri
            .query()
            .unwrap_or_default()
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(key, value)| (key.to_owned(), unescaped(value)))
            .collect(),
        content_type: header("content-type"),
        accept: header("accept"),
        user_agent: header("user-agent"),
        body,
    })
}

fn unescaped(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let digits: Vec<u8> = rest.by_ref().take(2).collect();
                let code = std::str::from_utf8(&digits)
                    .ok()
                    .and_then(|digits| u8::from_str_radix(digits, 16).ok());
                bytes.extend(code);
            }
            b'+' => bytes.push(b' '),
            other => bytes.push(other),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

async fn exchange(
    hub: Arc<Hub>,
    replica: usize,
    life: u32,
    request: http::Request<Body>,
) -> Result<http::Response<AnswerBody>, BoxError> {
    let request = read(request).await?;
    let dies = hub.with(|state| {
        let dies = state.poison.kills(&request);
        if dies {
            state.dies_of_poison(replica);
        }
        dies
    });
    if dies {
        hub.waker.wake();
        return std::future::pending().await;
    }
    let road = hub.with(|state| state.road(replica, &request));
    match road.fate {
        Fate::Refused => {
            tokio::time::sleep(road.out).await;
            return Err(no_answer("connection refused", true));
        }
        Fate::Silent(until) => {
            tokio::time::sleep_until(until + road.out).await;
            return Err(no_answer("connection reset", false));
        }
        Fate::Lost => {
            tokio::time::sleep(road.out + road.back).await;
            return Err(no_answer("connection reset", false));
        }
        Fate::Fine | Fate::AnswerLost => {}
    }
    if let Some(length) = road.held {
        hub.pause(replica, length);
    }
    let sent = Sent {
        replica,
        life,
        at: Instant::now(),
        held: road.held.is_some(),
        aborted: false,
    };
    let (reply, answer) = oneshot::channel();
    // A task of nobody: what has left a process arrives, whatever becomes of the process.
    tokio::spawn(carry(hub, sent, request, road, reply));
    match answer.await {
        Ok(answer) => answer,
        Err(_) => Err(no_answer("connection reset", false)),
    }
}

type Reply = oneshot::Sender<Result<http::Response<AnswerBody>, BoxError>>;

async fn carry(hub: Arc<Hub>, mut sent: Sent, request: Request, road: Road, reply: Reply) {
    let counts = usize::from(request.writes() && !request.about_leases());
    hub.with(|state| state.under_way += counts);
    if let Some(length) = road.held {
        // What its process had in its buffers goes out when that continues.
        tokio::select! {
            biased;
            () = hub.healed.notified() => {}
            () = tokio::time::sleep(length) => {}
        }
    }
    tokio::time::sleep(road.out).await;
    sent.aborted = reply.is_closed();
    let answer = hub.with(|state| {
        state.under_way -= counts;
        // Of the requests that were given up, some had left and some had not. What a stopped process had on
        // its lips goes out when it continues.
        let left = !sent.aborted || sent.held || state.dice.chance(500);
        left.then(|| state.arrive(sent, &request))
    });
    let Some(answer) = answer else { return };
    tokio::time::sleep(road.back).await;
    if road.fate == Fate::AnswerLost {
        let _gone = reply.send(Err(no_answer("connection reset", false)));
        return;
    }
    let response = match answer {
        Answer::Whole {
            code,
            content_type,
            body,
        } => {
            if !reply.is_closed() {
                hub.with(|state| state.judge.scaling.reported(&request, &body));
            }
            respond(
                code,
                content_type,
                Full::new(Bytes::from(body))
                    .map_err(|never| match never {})
                    .boxed_unsync(),
            )
        }
        Answer::Watch(opened) => {
            let content_type = match opened.of {
                Log::Of(_) => "application/vnd.kubernetes.protobuf;stream=watch",
                Log::Leases => "application/json",
            };
            let (frames, receiver) = mpsc::unbounded_channel();
            tokio::spawn(follow(hub, sent.replica, opened, frames));
            let stream =
                UnboundedReceiverStream::new(receiver).map(|part: Result<Vec<u8>, BoxError>| {
                    part.map(|bytes| Frame::data(Bytes::from(bytes)))
                });
            respond(200, content_type, StreamBody::new(stream).boxed_unsync())
        }
    };
    let _gone = reply.send(Ok(response));
}

fn respond(code: u16, content_type: &'static str, body: AnswerBody) -> http::Response<AnswerBody> {
    http::Response::builder()
        .status(code)
        .header("content-type", content_type)
        .body(body)
        .expect("a status and a content type are valid")
}

/// Sends a watch's changes, late and in parts.
async fn follow(
    hub: Arc<Hub>,
    replica: usize,
    mut watch: Opened,
    frames: mpsc::UnboundedSender<Result<Vec<u8>, BoxError>>,
) {
    let lists = watch.first.len() > 1 || watch.at != usize::MAX && !watch.first.is_empty();
    if lists {
        hub.with(|state| state.show(replica, watch.of, None));
    }
    for frame in std::mem::take(&mut watch.first) {
        if frames.send(Ok(frame)).is_err() {
            return;
        }
    }
    if watch.at == usize::MAX {
        return;
    }
    let broken = hub.with(|state| state.replicas.entry(replica).or_default().watches_broken);
    let mut bookmark = Instant::now() + BOOKMARKS;
    loop {
        let grows = Arc::clone(&watch.grows);
        let grown = grows.notified();
        if watch.at >= hub.with(|state| state.server.length(watch.of)) {
            tokio::select! {
                biased;
                () = frames.closed() => return,
                () = grown => {}
                () = tokio::time::sleep_until(bookmark) => {
                    bookmark = Instant::now() + BOOKMARKS;
                    let mark = hub.with(|state| {
                        let seen = state.replicas.entry(replica).or_default();
                        let flows = seen.frozen_until(watch.of).is_none();
                        (flows && watch.at >= state.server.length(watch.of)).then(|| state.server.bookmark(watch.of))
                    });
                    if let Some(mark) = mark {
                        let _gone = frames.send(Ok(mark));
                    }
                    continue;
                }
            }
        }
        let wait = hub.with(|state| {
            let faulty = state.faulty;
            let dice = &mut state.dice;
            let lag = if faulty && dice.chance(60) {
                dice.millis(100, 3000)
            } else {
                dice.millis(1, 20)
            };
            let seen = state.replicas.entry(replica).or_default();
            let now = Instant::now();
            let frozen = seen
                .frozen_until(watch.of)
                .map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
            let outage = seen.outage.map_or(Duration::ZERO, |(until, _)| {
                until.saturating_duration_since(now)
            });
            lag.max(frozen).max(outage)
        });
        tokio::select! {
            biased;
            () = frames.closed() => return,
            () = tokio::time::sleep(wait) => {}
        }
        let part = hub.with(|state| {
            let seen = state.replicas.entry(replica).or_default();
            if seen.watches_broken != broken {
                return None;
            }
            let (most, skip) = match state.faulty {
                true => (1 + state.dice.below(8), state.dice.chance(300)),
                false => (usize::MAX, false),
            };
            let mutant = state.mutant;
            let hides = |kind: &str, object: Option<&AnyObject>| {
                mutant.is_some_and(|mutant| mutant.hides(kind, object))
            };
            Some(state.server.frames(&watch, most, skip, &hides))
        });
        let Some((part, at)) = part else {
            let _gone = frames.send(Err(no_answer("connection reset", false)));
            return;
        };
        watch.at = at;
        hub.with(|state| state.show(replica, watch.of, Some(at)));
        for frame in part {
            if frames.send(Ok(frame)).is_err() {
                return;
            }
        }
    }
}

/// The way of one start of a replica to its peers.
pub struct Peers {
    /// What the run shares.
    pub hub: Arc<Hub>,
    /// Which replica this is.
    pub replica: usize,
    /// Its name.
    pub name: String,
    /// Its build.
    pub build: String,
}

struct Way {
    door: Door,
    out: Duration,
    back: Duration,
    lost: bool,
    answer_lost: bool,
    doubled: Option<Duration>,
}

impl Peers {
    /// The way to the peer at an address, if there is one.
    fn way(&self, address: &str) -> Option<Way> {
        let other = replica_at(address)?;
        self.hub.with(|state| {
            let now = Instant::now();
            let cut = |seen: &crate::hub::Seen| seen.cut_off_until.is_some_and(|until| now < until);
            if [self.replica, other]
                .iter()
                .any(|one| state.replicas.get(one).is_none_or(cut))
            {
                return None;
            }
            let door = state.replicas.get(&other)?.door.clone()?;
            let faulty = state.faulty;
            let dice = &mut state.dice;
            let mut chance = |per_mille| faulty && dice.chance(per_mille);
            let (lost, answer_lost, doubled, slow) =
                (chance(40), chance(40), chance(60), chance(60));
            Some(Way {
                door,
                out: if slow {
                    dice.millis(50, 2500)
                } else {
                    dice.millis(1, 10)
                },
                back: dice.millis(1, 10),
                lost,
                answer_lost,
                doubled: doubled.then(|| dice.millis(1, 4000)),
            })
        })
    }

    /// Has something done at the other end of a way, perhaps twice, perhaps without an answer.
    async fn call<T: Send + 'static>(
        &self,
        way: Way,
        deadline: Duration,
        done: impl Fn(Door) -> futures::future::BoxFuture<'static, T> + Send + 'static,
    ) -> Result<T, String> {
        if way.lost {
            tokio::time::sleep(deadline).await;
            return Err("no answer: the message was lost".to_owned());
        }
        let (reply, answer) = oneshot::channel();
        tokio::spawn(async move {
            tokio::time::sleep(way.out).await;
            if let Some(later) = way.doubled {
                let again = done(way.door.clone());
                tokio::spawn(async move {
                    tokio::time::sleep(later).await;
                    again.await;
                });
            }
            let result = done(way.door).await;
            tokio::time::sleep(way.back).await;
            if !way.answer_lost {
                let _gone = reply.send(result);
            } else {
                tokio::time::sleep(deadline * 2).await;
            }
        });
        match tokio::time::timeout(deadline, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err("the peer has ended".to_owned()),
            Err(_) => Err(format!("no answer within {deadline:?}")),
        }
    }
}

/// Where a replica listens.
pub fn address(replica: usize) -> std::net::SocketAddr {
    let last = u8::try_from(replica + 1).expect("fleets are small");
    std::net::SocketAddr::from(([10, 0, 0, last], 10258))
}

fn replica_at(address: &str) -> Option<usize> {
    let address: std::net::SocketAddr = address.parse().ok()?;
    match address.ip() {
        std::net::IpAddr::V4(ip) => usize::from(ip.octets()[3]).checked_sub(1),
        std::net::IpAddr::V6(_) => None,
    }
}

/// Of few ranges that are on their way somebody edits the Lease, at once or in a while.
fn edit_on_the_way(hub: &Arc<Hub>, range: RangeId) {
    let edit = hub.with(|state| {
        let edited = state.faulty && state.dice.chance(EDITED_ON_THE_WAY);
        edited.then(|| {
            let edit = Edit::ALL[state.dice.below(Edit::ALL.len())];
            let after = match state.dice.chance(500) {
                true => Duration::ZERO,
                false => state.dice.millis(1, 1500),
            };
            (edit, after)
        })
    });
    let Some((edit, after)) = edit else { return };
    let hub = Arc::clone(hub);
    tokio::spawn(async move {
        tokio::time::sleep(after).await;
        hub.with(|state| {
            if state.faulty {
                state.edit_by_hand(&format!("manifold-range-{range:03}"), edit);
            }
        });
    });
}

impl Calls for Peers {
    fn keep(&self, _: &[Member]) {}

    fn handoff<'a>(
        &'a self,
        incarnation: &'a str,
        to: &'a Holder,
        address: &'a str,
        (range, epoch, attempt): (RangeId, Epoch, u64),
        mut state: RangeState,
    ) -> Call<'a, Result<(), NotSent>> {
        async move {
            if let Some(mutant) = self.hub.with(|state| state.mutant) {
                mutant.handoff(&mut state);
            }
            let Some(way) = self.way(address) else {
                tokio::time::sleep(Duration::from_millis(5)).await;
                return Err(NotSent::Unreachable("no connection".to_owned()));
            };
            let offer = Offer {
                id: 0,
                from: Holder::new(self.name.clone(), incarnation),
                to_incarnation: to.incarnation.clone(),
                range,
                epoch,
                attempt,
                build: self.build.clone(),
            };
            self.hub.with(|shared| {
                shared.record(|recorder| recorder.handed(self.replica, to, (range, epoch), &state));
            });
            edit_on_the_way(&self.hub, range);
            let answer = self
                .call(way, HANDOFF_DEADLINE, move |door| {
                    let (offer, state) = (offer.clone(), state.clone());
                    async move { door.offered(offer, state).await }.boxed()
                })
                .await;
            match answer {
                Ok(Ok(())) => Ok(()),
                Ok(Err(refused)) => Err(NotSent::Refused(refused)),
                Err(error) => Err(NotSent::Unreachable(error)),
            }
        }
        .boxed()
    }

    fn released<'a>(
        &'a self,
        incarnation: &'a str,
        _: &'a Holder,
        address: &'a str,
        range: RangeId,
        epoch: Epoch,
    ) -> Call<'a, Result<(), String>> {
        async move {
            let way = self.way(address).ok_or("no connection")?;
            let from = Holder::new(self.name.clone(), incarnation);
            self.call(way, CALL_DEADLINE, move |door| {
                let from = from.clone();
                async move { door.swap_announced(from, range, epoch).await }.boxed()
            })
            .await
        }
        .boxed()
    }

    fn holds<'a>(
        &'a self,
        to: &'a Holder,
        address: &'a str,
        ranges: &'a [RangeId],
    ) -> Call<'a, Result<Holdings, String>> {
        async move {
            let way = self.way(address).ok_or("no connection")?;
            let ranges = ranges.to_vec();
            let answer = self
                .call(way, CALL_DEADLINE, move |door| {
                    let ranges = ranges.clone();
                    async move { door.holds(ranges).await }.boxed()
                })
                .await?;
            match answer {
                Some((incarnation, holdings)) if incarnation == to.incarnation => Ok(holdings),
                Some((incarnation, _)) => Err(format!("answered as incarnation {incarnation}")),
                None => Err("this replica is on its way out".to_owned()),
            }
        }
        .boxed()
    }
}
