//! Starting a coordinator, and what the node holds of it.

mod answers;
mod assembled;
mod wiring;

use std::{collections::BTreeMap, io, net::SocketAddr, sync::Arc, thread, time::Duration};

use actix::Addr;
use coordinator_core::{
    Fatal, Happening, Holder, Input, Member, OwnLease, OwnPhase, RangeId, RangePin, View,
};
use futures::StreamExt;
use peer_proto::InspectRequest;
use tokio::{
    net::TcpListener,
    sync::{broadcast, oneshot, watch},
    time::timeout,
};

use crate::{
    ClientFactory, Config, ConfigError, Fence, HoldState, LeaseError, PeerRefusal, RangeHost,
    TlsError,
    actor::{Beat, Coordinator, Feed, Shared},
    fence::EndCause,
    lease::{Found, Kind, Leases, Step},
    peer::{Calls, PeerService, Peers, serve},
    pulse::{BEATS_EVERY, Pulse},
    reach, renewal,
    server_fence::Barrier,
    tls::{RELOAD_PERIOD, Tls},
};

use answers::ActorAnswers;
pub use assembled::{Assembled, Door, Outside, assemble};
pub(crate) use wiring::began;
use wiring::{DRAIN_BUDGET, Wiring, own_renewal, own_status};

/// An API server that says nothing for so long at the start is a wrong address.
const START_DEADLINE: Duration = Duration::from_secs(10);

/// After a drain's deadline: for the release of the replica Lease itself.
const RELEASE_GRACE: Duration = Duration::from_secs(2);

/// Between two checks whether the last writes have ended.
const IN_FLIGHT_POLL: Duration = Duration::from_millis(5);

/// A watch in which no renewal shows for this number of retry periods does not flow: our own comes every
/// period.
const SILENT_PERIODS: u32 = 3;

/// Why a coordinator did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A flag cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Peers' keys or certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The peer port is not free.
    #[error(
        "cannot listen for peers on {address}; choose another --peer-port or --peer-bind-address"
    )]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The Leases cannot be read.
    #[error(
        "cannot list Leases in namespace {namespace:?}; is the API server there, and the Role of deploy/rbac bound?"
    )]
    Leases {
        /// Where.
        namespace: String,
        /// Why.
        #[source]
        source: LeaseError,
    },
    /// `--server-fence=on`, and there is none.
    #[error(
        "--server-fence=on, but the API server does not fence: {0}; apply deploy/fence and let this user impersonate, or \
         use --server-fence=auto"
    )]
    ServerFence(String),
    /// This replica cannot take part.
    #[error(transparent)]
    Fatal(#[from] FatalError),
    /// No thread.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
}

/// Why a coordinator ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FatalError {
    /// The fleet refuses this replica.
    #[error(transparent)]
    Refused(#[from] Fatal),
    /// It broke, and its fence is closed.
    #[error("the coordinator has stopped unexpectedly; its fence is closed")]
    Broken,
}

/// How a drain ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drained {
    /// The replica Lease is released; else others wait for it to expire.
    pub released: bool,
    /// Ranges that were dropped because the time was over or nobody was there.
    pub dropped: Vec<RangeId>,
}

struct Inner {
    fence: Arc<Fence>,
    shared: Shared,
    own: watch::Receiver<OwnLease>,
    hold: Option<watch::Receiver<HoldState>>,
    actor: Addr<Coordinator>,
    peers: Arc<dyn Calls>,
    /// Where the peers' connections live.
    runtime: tokio::runtime::Handle,
    peer_address: SocketAddr,
    broken: watch::Receiver<bool>,
    // Dropped with the last handle, which ends the threads.
    _stop: watch::Sender<bool>,
}

/// A running coordinator. When the last clone goes, it stops without releasing anything, as a crash would;
/// `drain` first.
#[derive(Clone)]
pub struct Handle(Arc<Inner>);

/// Starts a coordinator and waits until its replica Lease is held.
///
/// Its threads make clients of their own through `clients`, each inside the runtime that will use it. Waits
/// at most a lease duration longer than the API server takes, if an older process of this name has to expire.
pub async fn start(
    config: Config,
    host: Arc<dyn RangeHost>,
    clients: ClientFactory,
) -> Result<Handle, StartError> {
    config.validate()?;
    let tls = match (
        &config.peer_tls_cert_file,
        &config.peer_tls_private_key_file,
        &config.peer_ca_file,
    ) {
        (Some(cert), Some(key), Some(ca)) if !config.peer_insecure => {
            Some(Arc::new(Tls::load(cert, key, ca, config.peer_pins)?))
        }
        _ if config.peer_insecure => None,
        _ => Some(Arc::new(Tls::pinned()?)),
    };
    let address = SocketAddr::from((config.peer_bind_address, config.peer_port));
    let refused = |source| StartError::Listen { address, source };
    let listener = match crate::listen(address, false) {
        Err(why) if why.kind() == io::ErrorKind::AddrInUse && config.peer_port_is_default => {
            // As on a host with a cloud-controller-manager, whose port it is.
            let any = SocketAddr::from((config.peer_bind_address, 0));
            let listener = crate::listen(any, false).map_err(refused)?;
            tracing::warn!(
                taken = %address,
                "the default of --peer-port is taken by another process: peers are heard on a free port, which the \
                 replica Lease names them"
            );
            listener
        }
        listener => listener.map_err(refused)?,
    };
    let peer_address = listener.local_addr().map_err(refused)?;

    let fence = Arc::new(fence_of(&config));
    let shared = Shared::new(config.ranges);
    let (stop, stopped) = watch::channel(false);
    let (break_tx, broken) = watch::channel(false);
    let (started, start) = oneshot::channel();
    let parts = Parts {
        config,
        host,
        clients,
        tls,
        listener,
        peer_address,
    };
    let (run_fence, run_shared) = (Arc::clone(&fence), shared.clone());
    thread::Builder::new()
        .name("manifold-coordinator".to_owned())
        .spawn(move || {
            // Dropped last and on a panic: nothing goes out behind a coordinator that has ended.
            let _closes = CloseAtEnd(Arc::clone(&run_fence), break_tx);
            let system = actix::System::new();
            system.block_on(run(parts, run_fence, run_shared, stopped, started));
        })
        .map_err(StartError::Thread)?;

    let Running {
        actor,
        own,
        hold,
        peers,
        runtime,
    } = start
        .await
        .map_err(|_| StartError::Fatal(FatalError::Broken))??;
    let handle = Handle(Arc::new(Inner {
        fence,
        shared,
        own,
        hold,
        actor,
        peers,
        runtime,
        peer_address,
        broken,
        _stop: stop,
    }));
    handle.joined().await?;
    Ok(handle)
}

fn fence_of(config: &Config) -> Fence {
    let fence = Fence::by(config.clock.clone(), config.ranges, config.late_write_max());
    match config.mark.clone() {
        Some(mark) => fence.with_mark(mark),
        None => fence,
    }
}

struct CloseAtEnd(Arc<Fence>, watch::Sender<bool>);

impl Drop for CloseAtEnd {
    fn drop(&mut self) {
        self.0.close();
        self.1.send_replace(true);
    }
}

struct Parts {
    config: Config,
    host: Arc<dyn RangeHost>,
    clients: ClientFactory,
    tls: Option<Arc<Tls>>,
    listener: std::net::TcpListener,
    peer_address: SocketAddr,
}

/// What the coordinator's thread gives to its handle.
struct Running {
    actor: Addr<Coordinator>,
    own: watch::Receiver<OwnLease>,
    hold: Option<watch::Receiver<HoldState>>,
    peers: Arc<dyn Calls>,
    runtime: tokio::runtime::Handle,
}

type Started = Result<Running, StartError>;

/// The coordinator's thread: makes everything, then waits for the end.
async fn run(
    parts: Parts,
    fence: Arc<Fence>,
    shared: Shared,
    mut stopped: watch::Receiver<bool>,
    started: oneshot::Sender<Started>,
) {
    let Parts {
        config,
        host,
        clients,
        tls,
        listener,
        peer_address,
    } = parts;
    let client = clients();
    let leases = Leases::new(
        client.clone(),
        &config.fleet_namespace,
        &config.fleet_name,
        config.lease_duration,
        config.lease_retry_period,
    );
    if let Err(source) = first_read(&leases, config.lease_retry_period).await {
        let _ = started.send(Err(StartError::Leases {
            namespace: config.fleet_namespace,
            source,
        }));
        return;
    }
    let barrier = Barrier::new(
        client,
        &config.replica_name,
        Arc::clone(&config.server_fence),
    );
    if let Err(why) = barrier.begin().await {
        let _ = started.send(Err(StartError::ServerFence(why)));
        return;
    }
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(source) => {
            let _ = started.send(Err(StartError::Listen {
                address: peer_address,
                source,
            }));
            return;
        }
    };
    let address = config.advertised(peer_address.port());
    let pin = tls.as_ref().and_then(|tls| tls.pin());
    let status = own_status(&config, &*host, address, pin);
    let began = began(jiff::Timestamp::now().as_second(), fence.now());
    let renewal = own_renewal(&config, config.process.clone(), began, status.clone());
    let thread = match renewal::spawn(
        &config,
        renewal,
        status.clone(),
        Arc::clone(&fence),
        Arc::clone(&host),
        Arc::clone(&clients),
    ) {
        Ok(thread) => thread,
        Err(source) => {
            let _ = started.send(Err(StartError::Thread(source)));
            return;
        }
    };
    let (own, hold) = (thread.own.clone(), thread.hold.clone());
    let peers = Arc::new(Peers::new(
        config.fleet_name.clone(),
        config.replica_name.clone(),
        config.version.clone(),
        tls.clone(),
        shared.members.subscribe(),
        Arc::clone(&shared.refusals),
        config.tracer.clone(),
    ));
    let refusals = Arc::clone(&shared.refusals);
    let asked = Arc::clone(&peers);
    let calls = Arc::clone(&peers) as Arc<dyn Calls>;
    let view = Arc::clone(&shared.view);
    let sees = Arc::clone(&host);
    let wiring = Wiring {
        status,
        leases,
        barrier,
        fence: Arc::clone(&fence),
        host,
        peers,
        thread,
        shared,
        began,
    };
    let (answers, mut ended) = wiring.start(&config);
    let actor = answers.actor.clone();
    actix::spawn(reach::compare(
        Arc::clone(&asked) as Arc<dyn Calls>,
        Arc::clone(&view),
        sees,
    ));
    actix::spawn(reach::follow(asked, view, actor.clone()));
    let service = PeerService::new(
        config.fleet_name.clone(),
        config.ranges,
        answers,
        refusals,
        config.tracer.clone(),
    );
    let mut serving = tokio::spawn(serve(listener, tls.clone(), service, stopped.clone()));
    if let Some(tls) = tls {
        actix::spawn(async move {
            reload::follow("peers' certificates", RELOAD_PERIOD, || tls.reload()).await;
        });
    }
    // By its mailbox: an actor that takes no message is as good as dead.
    let beaten = actor.clone();
    actix::spawn(async move {
        while beaten.send(Beat).await.is_ok() {
            tokio::time::sleep(BEATS_EVERY).await;
        }
    });
    let _ = started.send(Ok(Running {
        actor,
        own,
        hold,
        peers: calls,
        runtime: tokio::runtime::Handle::current(),
    }));
    let broken = tokio::select! {
        _ = stopped.wait_for(|stop| *stop) => return,
        _ = &mut ended => "the coordinator's actor has ended".to_owned(),
        served = &mut serving => format!("the peer server has ended: {served:?}"),
    };
    // Before the actor and what it holds of the renewal are dropped.
    fence.end(EndCause::Other, broken);
}

/// Lists Leases once. A busy server gets its time; a refusal counts at once.
async fn first_read(leases: &Leases, pause: Duration) -> Result<(), LeaseError> {
    let mut last = LeaseError::Slow(START_DEADLINE);
    let read = timeout(START_DEADLINE, async {
        loop {
            match leases.list(Kind::Replica, START_DEADLINE).await {
                Ok(_) => return Ok(()),
                Err(LeaseError::Api(status)) if status.code < 429 => {
                    return Err(LeaseError::Api(status));
                }
                Err(error) => last = error,
            }
            tokio::time::sleep(pause).await;
        }
    });
    match read.await {
        Ok(read) => read,
        Err(_) => Err(last),
    }
}

fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Lists, then watches all Leases of the fleet, for as long as the actor lives. While all members renew, it
/// takes the place of lists; what is decided about one that may be gone rests on consistent reads and
/// compare-and-swap.
async fn watch_leases(
    leases: Leases,
    actor: Addr<Coordinator>,
    fence: Arc<Fence>,
    period: Duration,
) {
    loop {
        let started = fence.now();
        match leases.list(Kind::Both, START_DEADLINE).await {
            Ok(listed) => {
                let version = listed.version;
                let inputs = vec![
                    Input::Replicas {
                        started,
                        version,
                        leases: listed.replicas,
                    },
                    Input::Ranges {
                        started,
                        version,
                        leases: listed.ranges,
                    },
                    listed.plan.map_or(Input::PlanGone(version), Input::Plan),
                ];
                if actor.send(Feed(inputs)).await.is_err() {
                    return;
                }
                if let Err(error) = follow(&leases, &actor, version, period * SILENT_PERIODS).await
                {
                    tracing::warn!(error = %causes(&error), "the watch of Leases starts again");
                }
            }
            Err(error) => tracing::warn!(error = %causes(&error), "listing Leases failed"),
        }
        if !actor.connected() {
            return;
        }
        tokio::time::sleep(period).await;
    }
}

async fn follow(
    leases: &Leases,
    actor: &Addr<Coordinator>,
    mut version: u64,
    silent: Duration,
) -> Result<(), LeaseError> {
    loop {
        let mut stream = std::pin::pin!(leases.watch(version).await?);
        // The server ends it now and then: on from where it stood.
        while let Some(step) = timeout(silent, stream.next())
            .await
            .map_err(|_| LeaseError::Slow(silent))?
        {
            let mut inputs = Vec::new();
            let at = match step? {
                Step::Is(at, found) => {
                    inputs.extend(found.map(|found| match found {
                        Found::Replica(lease) => Input::Replica(lease),
                        Found::Range(lease) => Input::Range(lease),
                        Found::Plan(lease) => Input::Plan(lease),
                    }));
                    at
                }
                Step::Gone(at, found) => {
                    inputs.extend(found.map(|found| match found {
                        Found::Replica(lease) => Input::ReplicaGone {
                            name: lease.name,
                            version: at,
                        },
                        Found::Range(lease) => Input::RangeGone {
                            range: lease.range,
                            version: at,
                        },
                        Found::Plan(_) => Input::PlanGone(at),
                    }));
                    at
                }
                Step::Bookmark(at) => at,
            };
            version = version.max(at);
            inputs.push(Input::WatchedTo(version));
            if actor.send(Feed(inputs)).await.is_err() {
                return Ok(());
            }
        }
    }
}

impl Handle {
    /// The fence: check before each request, race `closed` against it.
    pub fn fence(&self) -> Arc<Fence> {
        Arc::clone(&self.0.fence)
    }

    /// The fleet as this replica sees it, with the fence as of now.
    pub fn view(&self) -> View {
        let mut view = self.0.shared.view.borrow().as_ref().clone();
        let remaining = self.0.fence.remaining();
        view.fence.open = !remaining.is_zero();
        view.fence.remaining_ms = u64::try_from(remaining.as_millis()).unwrap_or(u64::MAX);
        view
    }

    /// Signs of life of the thread that renews the Lease, and of the coordinator.
    pub fn pulses(&self) -> [(&'static str, Pulse); 2] {
        let fence = &self.0.fence;
        [
            ("renewal", fence.renewing.clone()),
            ("coordinator", fence.coordinating.clone()),
        ]
    }

    /// Why this replica ends by itself, in words.
    pub fn ending(&self) -> Option<String> {
        self.0.fence.ending().map(|end| end.why.clone())
    }

    /// The name of the range's owner by its Lease.
    pub fn owner_of(&self, range: RangeId) -> Option<String> {
        let view = self.0.shared.view.borrow();
        let at = view
            .ranges
            .binary_search_by_key(&range, |entry| entry.range)
            .ok()?;
        view.ranges.get(at).and_then(|entry| entry.owner.clone())
    }

    /// The present incarnation.
    pub fn incarnation(&self) -> String {
        self.0.own.borrow().incarnation.clone()
    }

    /// How many peers were refused, by the name of the reason: see [`PeerRefusal`].
    pub fn peer_refusals(&self) -> [(&'static str, u64); PeerRefusal::ALL.len()] {
        self.0.shared.refusals.counts()
    }

    /// Asks what happens inside another member: JSON, as its node answers it.
    ///
    /// # Errors
    /// In words, why there is no answer.
    pub async fn inspect(&self, member: &Member, asked: InspectRequest) -> Result<Vec<u8>, String> {
        let peers = Arc::clone(&self.0.peers);
        let to = Holder::new(member.name.clone(), member.incarnation.clone());
        let address = member.address.clone();
        // On the coordinator's thread: its connections are driven there.
        let asking = self
            .0
            .runtime
            .spawn(async move { peers.inspect(&to, &address, asked).await });
        asking
            .await
            .unwrap_or_else(|_| Err("the coordinator has stopped".to_owned()))
    }

    /// Where the peer server listens.
    pub fn peer_address(&self) -> SocketAddr {
        self.0.peer_address
    }

    /// What happens from now on: takeovers, evictions, fencing, handoffs.
    pub fn happenings(&self) -> broadcast::Receiver<Happening> {
        self.0.shared.happenings.subscribe()
    }

    /// Ends when this replica cannot take part any more. The fence is closed or about to close; the process
    /// should end.
    pub async fn fatal(&self) -> FatalError {
        let mut fatal = self.0.shared.fatal.subscribe();
        let mut broken = self.0.broken.clone();
        tokio::select! {
            fatal = fatal.wait_for(Option::is_some) => match fatal.ok().and_then(|fatal| fatal.clone()) {
                Some(fatal) => FatalError::Refused(fatal),
                None => FatalError::Broken,
            },
            _ = broken.wait_for(|broken| *broken) => FatalError::Broken,
        }
    }

    /// Hands every range over, then releases the replica Lease. What is not handed over within `deadline` is
    /// dropped; others take it once the Lease is released. The handle stays usable for looking.
    pub async fn drain(&self, deadline: Duration) -> Drained {
        let mut happenings = self.happenings();
        self.let_the_last_writes_end().await;
        let until = self.0.fence.now() + deadline;
        let sent = self.0.actor.send(Feed(vec![Input::Drain(until)])).await;
        let mut own = self.0.own.clone();
        let most = deadline + self.release_max();
        let released = sent.is_ok()
            && timeout(
                most,
                own.wait_for(|own| {
                    matches!(own.phase, OwnPhase::Released | OwnPhase::NameTaken(_))
                }),
            )
            .await
            .is_ok_and(|own| own.is_ok());
        let mut dropped = Vec::new();
        loop {
            match happenings.try_recv() {
                Ok(Happening::Dropped { ranges }) => dropped = ranges,
                Ok(_) | Err(broadcast::error::TryRecvError::Lagged(_)) => {}
                Err(_) => break,
            }
        }
        if released {
            self.release_the_hold().await;
        }
        Drained { released, dropped }
    }

    /// Ends this replica without handing anything over, for what it says in words: nothing more is sent, the
    /// last answers are waited for, then the replica Lease is released, so that others take its ranges at
    /// once. Whether it was.
    pub async fn end(&self, why: String) -> bool {
        self.0.fence.end(EndCause::Other, why);
        let mut own = self.0.own.clone();
        let gone =
            |own: &OwnLease| matches!(own.phase, OwnPhase::Released | OwnPhase::NameTaken(_));
        timeout(self.0.fence.longest_end(), own.wait_for(gone))
            .await
            .is_ok_and(|own| own.is_ok())
    }

    /// For the release of a Lease: what was sent is over before it begins.
    fn release_max(&self) -> Duration {
        RELEASE_GRACE + self.0.fence.late_write_max()
    }

    /// Where nobody is left to hand ranges to, nothing new is sent, and what is in flight may end: what would
    /// be given up instead would hold the release of the manager's Lease up.
    async fn let_the_last_writes_end(&self) {
        let view = self.0.shared.view.borrow().clone();
        let stays =
            |member: &Member| member.name != view.replica && member.ready && !member.draining;
        if self.0.hold.is_none() || view.members.iter().any(stays) {
            return;
        }
        self.0.fence.pause();
        let until = self.0.fence.now() + DRAIN_BUDGET;
        while self.0.fence.in_flight() > 0 && self.0.fence.now() < until {
            tokio::time::sleep(IN_FLIGHT_POLL).await;
        }
    }

    /// Ends when the manager's Lease is released or another replica of the fleet keeps it.
    async fn release_the_hold(&self) {
        let Some(mut hold) = self.0.hold.clone() else {
            return;
        };
        let most = self.release_max();
        let left = timeout(most, hold.wait_for(|state| state.hold.left)).await;
        if !left.is_ok_and(|left| left.is_ok()) {
            tracing::warn!("the manager's Lease was not released: others wait until it expires");
        }
    }

    /// The fleet's hold of the manager's Lease; `None` where nothing depends on it.
    pub fn hold(&self) -> Option<HoldState> {
        self.0.hold.as_ref().map(|hold| hold.borrow().clone())
    }

    /// From now on the own Lease says these fingerprints of what every replica must have the same of, as
    /// `name=hash` with commas between them. Members' fingerprints are in the [`View`].
    pub async fn announce(&self, fingerprints: String) {
        let input = Input::Fingerprints(fingerprints);
        // A coordinator that has stopped announces nothing any more.
        let _ = self.0.actor.send(Feed(vec![input])).await;
    }

    /// Says whether what the node sees is current. A replica whose view is not keeps its Lease, and its
    /// ranges go to those whose is.
    pub async fn is_current(&self, current: bool) {
        let input = Input::HostCurrent(current);
        // A coordinator that has stopped owns nothing any more.
        let _ = self.0.actor.send(Feed(vec![input])).await;
    }

    /// From now on the own Lease says what the node would write, as a class of the node's. Members' classes
    /// are in the [`View`].
    pub async fn demands(&self, class: u8) {
        // A coordinator that has stopped says nothing any more.
        let _ = self.0.actor.send(Feed(vec![Input::Demand(class)])).await;
    }

    /// From now on operators want these ranges to be certain members'. One whose member is not there
    /// stays where it is.
    pub async fn pin(&self, pins: BTreeMap<RangeId, RangePin>) {
        // A coordinator that has stopped moves nothing any more.
        let _ = self.0.actor.send(Feed(vec![Input::Pins(pins)])).await;
    }

    /// Asks for a range that is held here to be handed over to a member. It is tried once and not waited for.
    ///
    /// # Errors
    /// In words, where it could not even be tried.
    pub async fn move_range(&self, range: RangeId, to: &str) -> Result<(), String> {
        let view = self.view();
        if !view.own.contains_key(&range) {
            return Err(match self.owner_of(range) {
                Some(owner) => format!("range {range} is not held here: ask {owner}"),
                None => format!("range {range} has no owner"),
            });
        }
        if to == view.replica {
            return Err(format!("range {range} is held here already"));
        }
        let members: Vec<&str> = view
            .members
            .iter()
            .filter(|member| member.ready && !member.draining && !member.stale)
            .map(|member| member.name.as_str())
            .collect();
        if !members.contains(&to) {
            return Err(format!(
                "no ready member is called {to:?}; there are {}",
                members.join(", ")
            ));
        }
        let input = Input::Move {
            range,
            to: to.to_owned(),
        };
        let sent = self.0.actor.send(Feed(vec![input])).await;
        sent.map_err(|_| "the coordinator has stopped".to_owned())
    }

    /// Ends when the replica Lease is held, or can't be.
    ///
    /// # Errors
    /// Why it can't be held.
    pub async fn joined(&self) -> Result<(), FatalError> {
        let mut own = self.0.own.clone();
        tokio::select! {
            biased;
            held = own.wait_for(|own| own.phase == OwnPhase::Held) => {
                held.map(|_| ()).map_err(|_| FatalError::Broken)
            }
            fatal = self.fatal() => Err(fatal),
        }
    }
}
