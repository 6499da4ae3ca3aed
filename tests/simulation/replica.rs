//! One replica: the real node and the real coordinator, as tasks of one set, which is polled while the
//! replica runs, not polled while it is stuck, and dropped when it crashes.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    convert::Infallible,
    future::Future,
    pin::Pin,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use controllers_kit::{Factory, FlagValue, Flags, Issue, Runs, Timestamp};
use coordinator::{
    Config, Gone, Handle, InFlightMark, Outside, RangeHost, ServerFence, ServerFenceMode,
};
use futures::FutureExt as _;
use node::{
    actors::host::LateFence,
    clock::Clock,
    keys::Keys,
    node::{Node, Parts, Threads},
    queue::Monotonic,
    server::api_server::ApiServer,
    shared::Shared,
    view::View,
};
use node_cache::Api;
use node_telemetry::metrics::Metrics;
use tokio::{sync::mpsc, task::LocalSet, time::Instant};

use crate::{
    devices, dice,
    hub::Hub,
    identity, mistakes,
    mutants::{Gatekeeper, Mutant},
    network::{self, Peers},
    nodes, scaling,
};

/// Ranges of a simulated fleet: few, so that they move often.
pub const RANGES: u16 = 8;
/// How often it is checked whether all caches are complete.
const READY_POLL: Duration = Duration::from_millis(10);
/// How often a replica finds out whether it sees what happens.
const WATCHED_EVERY: Duration = Duration::from_millis(250);
/// How long a replica that is asked to leave may take to hand over.
const DRAIN: Duration = Duration::from_secs(8);
/// A kubelet says within this number of milliseconds that a process has ended.
const KUBELET_MS_MAX: usize = 2000;
/// The build that all replicas say they are.
const BUILD: &str = "0.1.0";

/// The clocks of one start of a replica.
struct SimulatedClock {
    hub: Arc<Hub>,
    start: Instant,
}

impl Clock for SimulatedClock {
    fn monotonic(&self) -> Monotonic {
        self.start.elapsed()
    }

    fn now(&self) -> Timestamp {
        self.hub.with(|state| state.now())
    }
}

/// How a replica ends that is asked to.
#[derive(Clone, Copy, Debug)]
enum Ends {
    /// It hands over.
    Leaves,
    /// As after an error that it cannot live with: it releases its Lease, and is gone.
    Fails,
}

/// A replica's process, as far as it exists.
struct Process {
    life: u32,
    set: Pin<Box<LocalSet>>,
    leave: mpsc::UnboundedSender<Ends>,
    shared: Rc<RefCell<Option<Arc<Shared>>>>,
}

/// All replicas of a run.
pub struct Fleet {
    hub: Arc<Hub>,
    processes: RefCell<BTreeMap<usize, Process>>,
    /// To be done when nobody is being polled.
    errands: RefCell<Vec<Errand>>,
    lives: RefCell<BTreeMap<usize, u32>>,
    appointments: RefCell<Vec<Appointment>>,
}

type Appointment = (Pin<Box<tokio::time::Sleep>>, Box<dyn FnOnce()>);

#[derive(Clone, Copy)]
enum Errand {
    Start(usize),
    Crash(usize),
}

impl Fleet {
    /// None yet.
    pub fn new(hub: &Arc<Hub>) -> Rc<Self> {
        Rc::new(Self {
            hub: Arc::clone(hub),
            processes: RefCell::default(),
            errands: RefCell::default(),
            lives: RefCell::default(),
            appointments: RefCell::default(),
        })
    }

    /// Starts a replica, if it does not run.
    pub fn start(&self, replica: usize) {
        self.errands.borrow_mut().push(Errand::Start(replica));
        self.hub.waker.wake();
    }

    /// Ends a replica where it is.
    pub fn crash(&self, replica: usize) {
        self.errands.borrow_mut().push(Errand::Crash(replica));
        self.hub.waker.wake();
    }

    /// Asks a replica to hand over and end.
    pub fn leave(&self, replica: usize) {
        self.ask(replica, Ends::Leaves);
    }

    /// Has a replica end by itself, without handing over.
    pub fn fail(&self, replica: usize) {
        self.ask(replica, Ends::Fails);
    }

    fn ask(&self, replica: usize, ends: Ends) {
        if let Some(process) = self.processes.borrow().get(&replica) {
            let _gone = process.leave.send(ends);
        }
    }

    /// Does something in a while, between two polls.
    pub fn later(&self, after: Duration, run: Box<dyn FnOnce()>) {
        let due = Box::pin(tokio::time::sleep(after));
        self.appointments.borrow_mut().push((due, run));
        self.hub.waker.wake();
    }

    /// Those that run.
    pub fn running(&self) -> Vec<usize> {
        self.processes.borrow().keys().copied().collect()
    }

    /// What the replicas' actors share, of those that have come so far.
    pub fn shared(&self) -> Vec<Arc<Shared>> {
        self.processes
            .borrow()
            .values()
            .filter_map(|process| process.shared.borrow().clone())
            .collect()
    }

    /// How many keys are quarantined: after several deaths with it in flight a key waits for minutes.
    pub fn quarantined(&self) -> usize {
        let ranges = |shared: &Arc<Shared>| -> usize {
            (0..shared.ranges)
                .filter_map(|range| shared.slot(range))
                .map(|slot| slot.stats.quarantined.load(Ordering::Relaxed))
                .sum()
        };
        self.shared().iter().map(ranges).sum()
    }

    /// Has every owned key examined again.
    pub fn wake_all(&self) {
        for shared in self.shared() {
            shared.wake_all(&|_| true, &|_| true);
        }
    }

    /// Lets every replica that runs continue.
    pub fn poll(&self, context: &mut Context<'_>) {
        self.hub.waker.register(context.waker());
        let mut due = Vec::new();
        self.appointments.borrow_mut().retain_mut(|(sleep, run)| {
            let is_due = sleep.as_mut().poll(context).is_ready();
            if is_due {
                due.push(std::mem::replace(run, Box::new(|| {})));
            }
            !is_due
        });
        due.into_iter().for_each(|run| run());
        loop {
            let errands = std::mem::take(&mut *self.errands.borrow_mut());
            if errands.is_empty() {
                break;
            }
            for errand in errands {
                self.run(errand);
            }
        }
        let mut ended = Vec::new();
        for (replica, process) in &mut *self.processes.borrow_mut() {
            if self.hub.is_paused(*replica) {
                continue;
            }
            if process.set.as_mut().poll(context).is_ready() {
                ended.push(*replica);
            }
        }
        for replica in ended {
            self.end(replica, "has ended");
        }
        if !self.errands.borrow().is_empty() {
            context.waker().wake_by_ref();
        }
    }

    fn run(&self, errand: Errand) {
        match errand {
            Errand::Start(replica) => {
                if self.processes.borrow().contains_key(&replica) {
                    return;
                }
                let life = {
                    let mut lives = self.lives.borrow_mut();
                    let life = lives.entry(replica).or_default();
                    *life += 1;
                    *life
                };
                self.hub.with(|state| {
                    let seen = state.replicas.entry(replica).or_default();
                    seen.life = life;
                    seen.alive = true;
                    seen.shown.clear();
                    state.log(format_args!("r-{replica}/{life} starts"));
                });
                let set = Box::pin(LocalSet::new());
                let (leave, left) = mpsc::unbounded_channel();
                let shared = Rc::<RefCell<Option<Arc<Shared>>>>::default();
                // The set has actors that never end; the process ends when this task has.
                let end = Rc::clone(&shared);
                let hub = Arc::clone(&self.hub);
                set.spawn_local(live(hub, replica, life, left, end));
                self.processes.borrow_mut().insert(
                    replica,
                    Process {
                        life,
                        set,
                        leave,
                        shared,
                    },
                );
            }
            Errand::Crash(replica) => self.end(replica, "crashes"),
        }
    }

    fn end(&self, replica: usize, how: &str) {
        let Some(process) = self.processes.borrow_mut().remove(&replica) else {
            return;
        };
        self.hub.with(|state| {
            let said = state.dice.millis(10, KUBELET_MS_MAX);
            let seen = state.replicas.entry(replica).or_default();
            seen.alive = false;
            seen.still = !seen.in_flight.load(Ordering::SeqCst);
            seen.mourned_at = Some(Instant::now() + said);
            seen.paused_until = None;
            seen.door = None;
            seen.fence = None;
            seen.view = None;
            state.log(format_args!("r-{replica}/{} {how}", process.life));
        });
        // Where no lock proves anything to the next process, one proves it to a witness.
        let is_there = self.hub.with(|state| state.dice.chance(500));
        if !replica.is_multiple_of(2) && is_there {
            tokio::spawn(witness(Arc::clone(&self.hub), replica, process.life));
        }
        drop(process);
    }
}

/// Controllers that the simulation leaves out, each with what it would take. Those that the flags of a
/// simulated replica do not start are not named here.
const LEFT_OUT: [(&str, &str); 2] = [
    (
        "selinux-warning-controller",
        "writes nothing: it records events and measures",
    ),
    (
        "validatingadmissionpolicy-status-controller",
        "asks for OpenAPI documents of every kind, of which the server has projections alone",
    ),
];

/// The controllers of a simulated replica: those that run with the flags, less those left out.
pub fn simulated() -> Vec<Factory> {
    let flags = flags();
    let mut all = node_registry::all();
    all.retain(|factory| {
        let descriptor = (factory.describe)();
        let is_left_out = LEFT_OUT.iter().any(|(name, _)| *name == descriptor.name);
        (descriptor.runs)(&flags) == Runs::Yes && !is_left_out
    });
    all
}

/// The flags that the controllers are built with.
pub fn flags() -> Flags {
    let descriptors = node_registry::descriptors();
    let mut flags = Flags::defaults(&descriptors);
    let set = [
        (
            "root-ca-file",
            FlagValue::File(Some(b"authorities".to_vec())),
        ),
        (
            "horizontal-pod-autoscaler-sync-period",
            FlagValue::Duration(scaling::PERIOD),
        ),
        (
            "horizontal-pod-autoscaler-downscale-stabilization",
            FlagValue::Duration(scaling::WINDOW),
        ),
        (
            "node-monitor-grace-period",
            FlagValue::Duration(nodes::GRACE),
        ),
        ("node-eviction-rate", FlagValue::Float(nodes::RATE)),
        ("allocate-node-cidrs", FlagValue::Bool(true)),
        // What it names is never read: see [`Signer`].
        (
            "service-account-private-key-file",
            FlagValue::Text("simulated".to_owned()),
        ),
        (
            "cluster-signing-cert-file",
            FlagValue::Text("simulated".to_owned()),
        ),
        (
            "cluster-signing-key-file",
            FlagValue::Text("simulated".to_owned()),
        ),
        (
            "legacy-service-account-token-clean-up-period",
            FlagValue::Duration(Duration::from_secs(30 * 24 * 3600)),
        ),
        (devices::RULES, FlagValue::Bool(true)),
        (devices::GROUPS_GATE, FlagValue::Bool(true)),
        (identity::POD_REQUESTS, FlagValue::Bool(true)),
        ("cluster-cidr", FlagValue::Text(nodes::CLUSTER.to_owned())),
    ];
    for (name, value) in set {
        flags.set(name, value);
    }
    flags
}

/// Signs whatever it is given, the same each time.
struct Signer;

impl Keys for Signer {
    fn certificate(&self, issue: &Issue, _: Timestamp) -> Result<String, String> {
        Ok(format!("a certificate by {}", issue.signer))
    }

    fn token(&self, claims: &str) -> Result<String, String> {
        Ok(format!("signed: {claims}"))
    }
}

/// A witness, once this life of a replica's process has ended.
async fn witness(hub: Arc<Hub>, replica: usize, life: u32) {
    let clock = hub.clock(replica);
    let still = hub.with(|state| state.replicas.entry(replica).or_default().still);
    let config = Config {
        replica_name: format!("r-{replica}"),
        clock: clock.clone(),
        ..Config::default()
    };
    let gone = Gone {
        processes: (1..=life).map(process_of).collect(),
        by: clock.now(),
        still,
        late: config.late_write_max(),
    };
    let api = Api::over(network::service(&hub, replica, life), "simulation");
    let second = hub.with(|state| state.now()).as_second();
    let seen = coordinator::witness(&config, api.kube(), gone, second).await;
    hub.with(|state| state.log(format_args!("the witness of r-{replica}/{life}: {seen:?}")));
}

/// One life of a replica, as `node::run` has it: start the node, take part, hand over when asked to.
async fn live(
    hub: Arc<Hub>,
    replica: usize,
    life: u32,
    mut leave: mpsc::UnboundedReceiver<Ends>,
    known: Rc<RefCell<Option<Arc<Shared>>>>,
) {
    let name = format!("r-{replica}");
    let mutant: Option<Mutant> = hub.with(|state| state.mutant);
    let api = Api::over(network::service(&hub, replica, life), "simulation");
    let leases = Api::over(network::service(&hub, replica, life), "simulation");
    let renewals = Api::over(network::service(&hub, replica, life), "simulation");
    let fence = Arc::new(LateFence::default());
    let clock = Arc::new(SimulatedClock {
        hub: Arc::clone(&hub),
        start: Instant::now(),
    });
    let mut flags = flags();
    if let Some(mutant) = mutant {
        mutant.flags(&mut flags);
    }
    for (name, value) in hub.with(|state| state.flags.clone()) {
        flags.set(name, value);
    }
    let node = Node::start(Parts {
        adapts: Box::new(|_| false),
        replica: name.clone(),
        ranges: RANGES,
        controllers: mistakes::mistaken(simulated()),
        flags,
        watches: api.clone(),
        // The simulated server knows no policies: what time alone promises is what is tried here.
        server: Arc::new(ApiServer::new(
            api.clone(),
            api,
            None,
            ServerFence::new(ServerFenceMode::Off),
        )),
        keys: Arc::new(Signer),
        cloud: Arc::new(node::cloud::NoCloud),
        host: "simulation".to_owned(),
        rate: (0.0, 1),
        fence: Arc::new(Gatekeeper {
            fence: Arc::clone(&fence),
            mutant,
        }),
        metrics: Metrics::new(&node_registry::descriptors()),
        clock,
        watching: node_cache::Settings {
            random: dice::of_thread,
            ..node_cache::Settings::default()
        },
        threads: Threads::One,
        traces: None,
        shadow: None,
    });
    *known.borrow_mut() = Some(Arc::clone(&node.shared));
    let in_flight = Arc::new(AtomicBool::new(true));
    let still = hub.with(|state| {
        let seen = state.replicas.entry(replica).or_default();
        seen.in_flight = Arc::clone(&in_flight);
        seen.still
    });
    let config = Config {
        replica_name: name.clone(),
        ranges: RANGES,
        version: BUILD.to_owned(),
        peer_insecure: true,
        peer_bind_address: std::net::IpAddr::from([127, 0, 0, 1]),
        pod: format!("simulation/{replica}"),
        // Where there is a lock, the kernel says that all before have ended.
        gone: replica.is_multiple_of(2).then(|| Gone {
            processes: (1..life).map(process_of).collect(),
            by: hub.clock(replica).now(),
            still,
            late: Config::default().late_write_max(),
        }),
        mark: Some(InFlightMark::new(move |is| {
            in_flight.store(is, Ordering::SeqCst);
            true
        })),
        clock: hub.clock(replica),
        ..Config::default()
    };
    let outside = Outside {
        incarnation: process_of(life),
        client: leases.kube(),
        renewal_client: renewals.kube(),
        peers: Arc::new(Peers {
            hub: Arc::clone(&hub),
            replica,
            name,
            build: BUILD.to_owned(),
        }),
        address: network::address(replica),
        second: hub.with(|state| state.now()).as_second(),
    };
    let kubelets = Arc::clone(&hub);
    node.host.ask_pods(Box::new(move |pod, process| {
        let replica = pod
            .rsplit('/')
            .next()
            .and_then(|number| number.parse().ok());
        let life = process
            .strip_prefix("life")
            .and_then(|life| life.parse().ok());
        let asked = replica.zip(life);
        let said = asked.is_some_and(|(replica, life)| kubelets.is_mourned(replica, life));
        std::future::ready(said).boxed()
    }));
    let host = Arc::clone(&node.host) as Arc<dyn RangeHost>;
    let assembled = match coordinator::assemble(&config, host, outside) {
        Ok(assembled) => assembled,
        Err(error) => panic!("the simulation's own configuration is refused: {error}"),
    };
    let handle = assembled.handle;
    actix::spawn(assembled.renewal);
    hub.with(|state| {
        let seen = state.replicas.entry(replica).or_default();
        seen.door = Some(assembled.door);
        seen.fence = Some(handle.fence());
        seen.view = Some(Arc::clone(&node.shared.view) as Arc<dyn View>);
    });
    while !node.is_ready_now() {
        tokio::time::sleep(READY_POLL).await;
    }
    let fatal = tokio::select! {
        biased;
        _ = leave.recv() => return end(&hub, replica, "leaves before it has joined"),
        joined = glancing(handle.joined()) => joined.err(),
    };
    if let Some(fatal) = fatal {
        return end(&hub, replica, &format!("can't take part: {fatal}"));
    }
    fence.set(handle.fence());
    hub.with(|state| state.log(format_args!("r-{replica}/{life} has joined")));
    tokio::select! {
        biased;
        never = watch_the_watches(&hub, replica, &handle) => match never {},
        fatal = glancing(handle.fatal()) => end(&hub, replica, &format!("can't take part: {fatal}")),
        ends = leave.recv() => match ends {
            Some(Ends::Fails) => {
                let released = glancing(handle.end("it has failed".to_owned())).await;
                end(&hub, replica, &format!("fails, its Lease released: {released}"));
            }
            Some(Ends::Leaves) | None => {
                hub.with(|state| state.log(format_args!("r-{replica}/{life} leaves")));
                let drained = glancing(handle.drain(DRAIN)).await;
                end(&hub, replica, &format!("has left: {drained:?}"));
            }
        },
    }
}

/// Says whether the replica sees what happens: of the detectors of `node/currency`, what they find.
async fn watch_the_watches(hub: &Hub, replica: usize, handle: &Handle) -> Infallible {
    let mut current = true;
    loop {
        tokio::time::sleep(WATCHED_EVERY).await;
        let sees = hub.with(|state| !state.replicas.entry(replica).or_default().sees_nothing());
        if std::mem::replace(&mut current, sees) != sees {
            hub.with(|state| state.log(format_args!("r-{replica} is current: {sees}")));
            handle.is_current(sees).await;
        }
    }
}

/// The name of a process: the incarnation that it begins with.
fn process_of(life: u32) -> String {
    format!("life{life}")
}

/// Polls something now and then instead of when it asks for it. Several that wait at one `watch` channel are
/// woken in a random order, and a run must be the same each time.
async fn glancing<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    loop {
        let mut deaf = Context::from_waker(std::task::Waker::noop());
        if let Poll::Ready(result) = future.as_mut().poll(&mut deaf) {
            return result;
        }
        tokio::time::sleep(READY_POLL).await;
    }
}

/// Says that a process is over; the fleet drops it.
fn end(hub: &Arc<Hub>, replica: usize, why: &str) {
    hub.with(|state| {
        state.log(format_args!("r-{replica} {why}"));
        state.ended.push(replica);
    });
    hub.waker.wake();
}

/// Polls a whole run: what directs it, then every replica.
pub struct Stage<F> {
    /// What directs it.
    pub director: Pin<Box<F>>,
    /// The replicas.
    pub fleet: Rc<Fleet>,
}

impl<F: Future> Future for Stage<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        if let Poll::Ready(result) = self.director.as_mut().poll(context) {
            return Poll::Ready(result);
        }
        for replica in self
            .fleet
            .hub
            .with(|state| std::mem::take(&mut state.ended))
        {
            self.fleet.crash(replica);
        }
        self.fleet.poll(context);
        Poll::Pending
    }
}
