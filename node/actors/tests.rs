//! The actors over a world in memory: real queue, gate, writer and controllers; the API server's part is
//! kit's `World`.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use actix::System;
use arc_swap::ArcSwapOption;
use controllers_kit::{
    Action, AnyObject, Controller, Descriptor, DynChange, Factory, Failure, Flags, Key, MetricKind,
    Only, PatchKind, Plan, Propagation, Reader, Refusal, Resource, Sharding, Snapshot, StatusWrite,
    Watches, Written,
    testing::{World, namespace},
};
use coordinator::{Care, Frozen, Gained, Quarantine, RangeHost as _, Suspicion, Work};
use futures::{FutureExt, future::BoxFuture};
use kubernetes_proto::{
    Object,
    core::{Namespace, Pod, ServiceAccount},
    meta::ObjectMeta,
};
use node_telemetry::metrics::Metrics;
use peer_proto::{ControllerState, KeyState, RangeState};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::{
    actors::{
        host::Host,
        pacing::{REPORT_SPACING, REPORT_SPACING_STEADY, REPORTS_DENSE, plan_spacing, report_from},
        range::{Explain, Steered},
    },
    apply::Writer,
    clock::{Clock, SystemClock},
    events,
    gate::Fence,
    reconcile::ReportFrom,
    server::{Live, LiveItem, Refused, Sender, Server},
    shared::{Aside, Shared, Unit, Unwoken},
    steer::in_force::{Change, InForce, What},
    view::View,
    workers::Workers,
};
use steering::{Order, Target};

const RANGES: u16 = 4;
/// Long enough for a loaded machine; what waits for something to happen ends as soon as it has.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a write that was given up may be in the server's hands.
const LATE_WRITE_MAX: Duration = Duration::from_millis(300);

/// A fence that a test opens and closes, how far the server has come, and what lets announcements land;
/// without it they land at once.
#[derive(Default)]
struct Door(
    AtomicBool,
    AtomicU64,
    Mutex<Option<Arc<tokio::sync::Semaphore>>>,
);

impl Fence for Door {
    fn open(&self, _: u16, _: u64) -> bool {
        self.0.load(Ordering::Acquire)
    }
    fn closed(&self, _: u16, _: u64) -> BoxFuture<'static, ()> {
        std::future::pending().boxed()
    }
    fn settled(&self) -> u64 {
        self.1.load(Ordering::Acquire)
    }
    fn renewed(&self) -> Option<(u64, tokio::time::Instant)> {
        None
    }

    fn late_write_max(&self) -> Duration {
        LATE_WRITE_MAX
    }
    fn announced(&self) -> BoxFuture<'static, ()> {
        let lands = self.2.lock().unwrap().clone();
        async move {
            if let Some(lands) = lands {
                lands.acquire().await.unwrap().forget();
            }
        }
        .boxed()
    }
}

/// The cluster, the cache that follows it, and what the test holds back of it.
struct Sim {
    world: Mutex<World>,
    shared: Mutex<Option<Arc<Shared>>>,
    /// The cache stays as it is while a test holds it back.
    stale: Mutex<Option<World>>,
    /// Changed when the cache comes back to the present, or is notified of something.
    reported: tokio::sync::watch::Sender<()>,
    /// How often an object was fetched.
    lookups: AtomicUsize,
    /// How often somebody began to wait for a version.
    waits: AtomicUsize,
    writes: Mutex<Vec<String>>,
    refuse: Mutex<BTreeSet<String>>,
    /// What is refused so says not whether it was executed.
    breaks: AtomicBool,
    /// While it is there, writes get no answer and stay in it.
    late_write: Mutex<Option<Vec<Action>>>,
    lists: AtomicUsize,
    heads: AtomicUsize,
    /// Reasons and names of the events recorded.
    events: Mutex<Vec<String>>,
}

impl Sim {
    fn reader<R>(&self, read: impl FnOnce(&World) -> R) -> R {
        let stale = self.stale.lock().unwrap();
        match &*stale {
            Some(world) => read(world),
            None => read(&self.world.lock().unwrap()),
        }
    }

    fn notify(
        &self,
        resource: &'static Resource,
        old: Option<&AnyObject>,
        new: Option<&AnyObject>,
    ) {
        let shared = self.shared.lock().unwrap().clone();
        if let Some(shared) = shared {
            let version = new
                .or(old)
                .map_or(0, |object| object.metadata().resource_version);
            shared.changed(resource, DynChange { old, new, version });
        }
        self.reported.send_replace(());
    }

    /// The cache shows the present again.
    fn catch_up(&self) {
        *self.stale.lock().unwrap() = None;
        self.reported.send_replace(());
    }

    /// Carries a write out.
    fn land(&self, action: &Action) -> Result<Written, Failure> {
        let key = &action.key;
        let get = |world: &World| Reader::get(world, action.resource, &key.namespace, &key.name);
        let (old, new, result) = {
            let mut world = self.world.lock().unwrap();
            let old = get(&world);
            let plan = Plan {
                stages: vec![vec![action.clone()]],
                ..Plan::default()
            };
            let mut applied = world.apply(&plan);
            (old, get(&world), applied.0.remove(0).1)
        };
        self.notify(action.resource, old.as_ref(), new.as_ref());
        result
    }

    /// Answers writes again; what it had in flight.
    fn answer_again(&self) -> Vec<Action> {
        self.late_write.lock().unwrap().take().unwrap_or_default()
    }

    fn written(&self) -> Vec<String> {
        self.writes.lock().unwrap().clone()
    }
}

impl Reader for Sim {
    fn get(&self, resource: &'static Resource, namespace: &str, name: &str) -> Option<AnyObject> {
        self.lookups.fetch_add(1, Ordering::Relaxed);
        self.reader(|world| Reader::get(world, resource, namespace, name))
    }
    fn list(&self, resource: &'static Resource, namespace: Option<&str>) -> Vec<AnyObject> {
        self.reader(|world| world.list(resource, namespace))
    }
    fn indexed(
        &self,
        resource: &'static Resource,
        index: &'static str,
        value: &str,
    ) -> Vec<AnyObject> {
        self.reader(|world| world.indexed(resource, index, value))
    }
}

impl View for Sim {
    fn passed(&self, _: &'static Resource, _: u64) -> bool {
        self.stale.lock().unwrap().is_none()
    }
    fn wait_passed(&self, _: &'static Resource, _: u64) -> BoxFuture<'static, ()> {
        self.waits.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(5)).boxed()
    }
    fn wait_departed(&self, _: &'static Resource, _: &str) -> BoxFuture<'static, ()> {
        let mut reported = self.reported.subscribe();
        async move {
            let _ = reported.changed().await;
        }
        .boxed()
    }
    fn newest(&self, _: &'static Resource) -> u64 {
        self.reader(World::version)
    }
    fn complete(&self, _: &'static Resource) -> bool {
        true
    }
}

impl Server for Sim {
    fn write<'a>(
        &'a self,
        sender: &'a Sender,
        action: &'a Action,
    ) -> BoxFuture<'a, Result<Written, Refused>> {
        async move {
            tokio::task::yield_now().await;
            let text = action.to_string();
            if self.refuse.lock().unwrap().contains(&text) {
                return Err(match self.breaks.load(Ordering::Relaxed) {
                    true => Failure::Other("failed calling webhook".to_owned()).into(),
                    false => Failure::Forbidden("quota".to_owned()).into(),
                });
            }
            self.writes.lock().unwrap().push(format!(
                "{}@{} {text}",
                sender.gate.range, sender.gate.epoch
            ));
            if let Some(late_write) = &mut *self.late_write.lock().unwrap() {
                late_write.push(action.clone());
                return Err(Failure::Timeout("no answer".to_owned()).into());
            }
            self.land(action).map_err(Refused::from)
        }
        .boxed()
    }

    fn record<'a>(
        &'a self,
        sender: &'a Sender,
        event: &'a events::Send,
        _: bool,
    ) -> BoxFuture<'a, Result<Written, Refused>> {
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let body = &event.body;
        let about = word(&body["involvedObject"]["name"]);
        let by = sender.service_account.unwrap_or("the replica");
        let line = format!("{} {about} by {by}", word(&body["reason"]));
        self.events.lock().unwrap().push(line);
        async { Ok(Written::default()) }.boxed()
    }

    fn get<'a>(
        &'a self,
        _: &'a Sender,
        resource: &'static Resource,
        key: &'a Key,
    ) -> BoxFuture<'a, Result<Option<Value>, Refused>> {
        let object = Reader::get(
            &*self.world.lock().unwrap(),
            resource,
            &key.namespace,
            &key.name,
        );
        async move { Ok(object.map(|object| object.to_json())) }.boxed()
    }

    fn head<'a>(
        &'a self,
        _sender: &'a Sender,
        resource: &'static Resource,
        key: &'a Key,
    ) -> BoxFuture<'a, Result<Live<Option<LiveItem>>, Refused>> {
        let (object, version) = {
            let world = self.world.lock().unwrap();
            let object = Reader::get(&*world, resource, &key.namespace, &key.name);
            (object, world.version())
        };
        self.heads.fetch_add(1, Ordering::Relaxed);
        let item = object.map(|object| LiveItem {
            key: key.clone(),
            uid: object.metadata().uid.clone(),
            resource_version: object.metadata().resource_version,
        });
        async move {
            Ok(Live {
                version,
                found: item,
            })
        }
        .boxed()
    }

    fn list<'a>(
        &'a self,
        _: &'a Sender,
        resource: &'static Resource,
        namespace: &'a str,
        _: &'a str,
    ) -> BoxFuture<'a, Result<Live<Vec<LiveItem>>, Refused>> {
        self.lists.fetch_add(1, Ordering::Relaxed);
        let world = self.world.lock().unwrap();
        let version = world.version();
        let items = world
            .list(resource, Some(namespace))
            .iter()
            .map(|object| LiveItem {
                key: Key::of_meta(object.metadata()),
                uid: object.metadata().uid.clone(),
                resource_version: object.metadata().resource_version,
            })
            .collect();
        async move {
            Ok(Live {
                version,
                found: items,
            })
        }
        .boxed()
    }
}

const SYNCS: &str = "accounts_syncs_total";

/// Gives every namespace ServiceAccounts `a-1` … `a-n`, n from a label; counts how often it has planned in
/// its memory.
struct Accounts;

#[derive(Default, PartialEq, Serialize, Deserialize)]
struct Planned(u32);

impl Controller for Accounts {
    type Memory = Planned;

    fn describe() -> Descriptor {
        Descriptor::new("accounts-controller", Sharding::ByNamespace)
            .workers_fixed(4)
            .min_sync_interval(Duration::from_millis(500))
            .rule("", "serviceaccounts", &["create"])
            .rule("", "namespaces/status", &["patch"])
            .metric(SYNCS, MetricKind::Counter, &["result"], "Syncs, by result")
    }
    fn new(_: &Flags) -> Self {
        Self
    }
    fn watch(&self, on: &mut Watches) {
        on.kind::<Namespace>().wakes_itself();
        on.kind::<ServiceAccount>().wakes(|change, _| {
            let meta = change.newest().metadata();
            assert!(
                meta.label("bad").is_none(),
                "this account makes the wake panic"
            );
            vec![Key::cluster(meta.namespace.clone())]
        });
    }
    fn plan(&self, key: &Key, seen: &Snapshot<'_>, memory: &mut Planned) -> Result<Plan, Refusal> {
        memory.0 += 1;
        let mut plan = Plan::nothing();
        let Some(namespace) = seen.get::<Namespace>(key) else {
            return Ok(plan);
        };
        if namespace.metadata().label("report").is_some() {
            let mut reported = Namespace::clone(&namespace);
            reported.status.get_or_insert_default().phase = "Terminating".to_owned();
            plan.update_status(&*namespace, &reported);
        }
        let wanted = namespace.metadata().label("accounts").unwrap_or("0");
        assert!(wanted != "panic", "this namespace makes the plan panic");
        if wanted == "breach" {
            let mut pod = Pod::default();
            pod.metadata_mut().namespace = key.name.clone();
            pod.metadata_mut().name = "undeclared".into();
            plan.create(&pod);
            return Ok(plan);
        }
        plan.measure(SYNCS, &["success"], 1.0);
        plan.measure_on_failure(SYNCS, &["error"], 1.0);
        if wanted == "unwanted" {
            return Err(Refusal::Expected("nobody may have this".to_owned()));
        }
        if wanted == "fails" {
            plan.fail("this namespace makes the plan fail");
            return Ok(plan);
        }
        let wanted: usize = wanted
            .parse()
            .map_err(|_| Refusal::Retry(format!("{wanted:?} is no number")))?;
        let there = seen.list::<ServiceAccount>(&key.name);
        let selector = controllers_kit::selectors::Selector::of_labels(&[]);
        plan.counted::<ServiceAccount>(&key.name, &selector);
        for number in there.len()..wanted {
            let mut account = ServiceAccount::default();
            account.metadata_mut().namespace = key.name.clone();
            account.metadata_mut().name = format!("a-{number}").into();
            plan.create(&account);
        }
        Ok(plan)
    }
}

/// Deletes every ServiceAccount that has a label for it, and examines none that is gone.
struct Sweeper;

impl Controller for Sweeper {
    type Memory = ();

    fn describe() -> Descriptor {
        Descriptor::new("sweeper-controller", Sharding::ByNamespace)
            .workers_fixed(4)
            .rule("", "serviceaccounts", &["delete"])
    }
    fn new(_: &Flags) -> Self {
        Self
    }
    fn watch(&self, on: &mut Watches) {
        on.kind::<ServiceAccount>().wakes(|change, _| {
            let meta = change.new.map(|account| account.metadata());
            // No account is found under such a key, as none is under the garbage collector's.
            let key = |meta: &ObjectMeta| Key::new(format!("{}/x", meta.namespace), &*meta.name);
            meta.map(key).into_iter().collect()
        });
    }
    fn plan(&self, key: &Key, seen: &Snapshot<'_>, (): &mut ()) -> Result<Plan, Refusal> {
        let mut plan = Plan::nothing();
        let namespace = key.namespace.trim_end_matches("/x");
        if let Some(account) = seen.get::<ServiceAccount>(&Key::new(namespace, &*key.name))
            && account.metadata().label("sweep").is_some()
        {
            plan.delete(&*account, Only::ThisUid, Propagation::Background);
        }
        Ok(plan)
    }
}

/// Keeps a memory that can neither be packed nor unpacked.
struct Brittle;

#[derive(Default, PartialEq)]
struct Unpackable(bool);

impl Serialize for Unpackable {
    fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        panic!("this memory makes packing panic")
    }
}

impl<'de> Deserialize<'de> for Unpackable {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        panic!("these bytes make unpacking panic")
    }
}

impl Controller for Brittle {
    type Memory = Unpackable;

    fn describe() -> Descriptor {
        Descriptor::new("brittle-controller", Sharding::ByNamespace).workers_fixed(4)
    }
    fn new(_: &Flags) -> Self {
        Self
    }
    fn watch(&self, on: &mut Watches) {
        on.kind::<Namespace>().wakes_itself();
    }
    fn plan(&self, _: &Key, _: &Snapshot<'_>, memory: &mut Unpackable) -> Result<Plan, Refusal> {
        memory.0 = true;
        Ok(Plan::nothing())
    }
}

struct Rig {
    sim: Arc<Sim>,
    host: Host,
    shared: Arc<Shared>,
    door: Arc<Door>,
}

impl Rig {
    fn new(world: World) -> Self {
        Self::of(Factory::of::<Accounts>(), world)
    }

    fn of(factory: Factory, world: World) -> Self {
        let sim = Arc::new(Sim {
            world: Mutex::new(world),
            shared: Mutex::default(),
            stale: Mutex::default(),
            reported: tokio::sync::watch::Sender::new(()),
            lookups: AtomicUsize::new(0),
            waits: AtomicUsize::new(0),
            writes: Mutex::default(),
            refuse: Mutex::default(),
            breaks: AtomicBool::default(),
            late_write: Mutex::default(),
            lists: AtomicUsize::new(0),
            heads: AtomicUsize::new(0),
            events: Mutex::default(),
        });
        let (shared, door) = process(factory, &sim, "one");
        *sim.shared.lock().unwrap() = Some(Arc::clone(&shared));
        Self {
            host: host(&shared),
            sim,
            shared,
            door,
        }
    }

    fn gain(&self, range: u16, epoch: u64, how: &Gained) {
        self.host.gained(range, epoch, how.clone());
    }

    fn gain_all(&self) {
        for range in 0..RANGES {
            self.gain(range, 1, &Gained::Handoff(RangeState::default()));
        }
    }

    /// What is known of a range in which nothing is under way; it stays frozen.
    async fn frozen(&self, range: u16) -> RangeState {
        match self.host.freeze(range, Duration::from_secs(2), false).await {
            Frozen::Still(state) => state,
            Frozen::Busy { keys, .. } => panic!("{keys:?} were under way"),
        }
    }

    fn accounts(&self, namespace: &str) -> usize {
        self.sim
            .world
            .lock()
            .unwrap()
            .list(ServiceAccount::resource(), Some(namespace))
            .len()
    }

    /// A namespace as the cache has it.
    fn seen(&self, namespace: &str) -> Option<AnyObject> {
        Reader::get(&*self.sim, Namespace::resource(), "", namespace)
    }

    fn label(&self, namespace: &str, accounts: &str) {
        let (old, new) = {
            let mut world = self.sim.world.lock().unwrap();
            let get = |world: &World| Reader::get(world, Namespace::resource(), "", namespace);
            let old = get(&world);
            world.change::<Namespace>(namespace, |object| {
                object.metadata_mut().set_label("accounts", accounts);
            });
            (old, get(&world))
        };
        self.sim
            .notify(Namespace::resource(), old.as_ref(), new.as_ref());
    }

    fn range_without(&self, namespace: &str) -> u16 {
        let mut ranges = 0..RANGES;
        ranges
            .find(|range| *range != self.range_of(namespace))
            .expect("there is more than one")
    }

    fn range_of(&self, namespace: &str) -> u16 {
        self.shared
            .range_of(&self.shared.units[0], &Key::cluster(namespace))
    }
}

fn process(factory: Factory, sim: &Arc<Sim>, replica: &str) -> (Arc<Shared>, Arc<Door>) {
    let door = Arc::new(Door(
        AtomicBool::new(true),
        AtomicU64::new(0),
        Mutex::default(),
    ));
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let metrics = Metrics::new(&[(factory.describe)()]);
    let (writer, events) = Writer::new(
        Arc::clone(sim) as Arc<dyn Server>,
        "",
        (0.0, 1),
        Arc::clone(&clock),
        Arc::clone(&metrics),
        false,
    );
    actix::spawn(events);
    let controller = (factory.build)(&Flags::default());
    let unit = Unit {
        index: 0,
        subscriptions: controller.watches().subscriptions,
        discovered: Vec::new(),
        workers: Arc::new(Workers::new(4, false)),
        backoff: controller.descriptor().backoff,
        queue_metrics: metrics.queue("queue"),
        metrics: metrics.controller("controller"),
        ready: AtomicBool::new(true),
        working: AtomicUsize::new(0),
        reconciles: Default::default(),
        paused: Default::default(),
        controller,
    };
    let shared = Arc::new(Shared {
        replica: replica.to_owned(),
        ranges: RANGES,
        view: Arc::clone(sim) as Arc<dyn View>,
        writer,
        keys: Arc::new(crate::keys::NoKeys),
        cloud: Arc::new(crate::cloud::NoCloud),
        clock,
        metrics,
        fence: Arc::clone(&door) as Arc<dyn Fence>,
        units: vec![unit],
        writes: Default::default(),
        table: (0..RANGES).map(|_| ArcSwapOption::empty()).collect(),
        unwoken: Unwoken::default(),
        watchlist: Default::default(),
        steering: Default::default(),
        attempts: Default::default(),
        history: crate::history::History::new(RANGES).into(),
        aside: Aside::Blocking(tokio::runtime::Handle::current()),
        traces: None,
        shadow: None,
    });
    (shared, door)
}

fn host(shared: &Arc<Shared>) -> Host {
    Host::new(
        Arc::clone(shared),
        vec![actix::Arbiter::current()],
        Arc::new(AtomicBool::new(true)),
    )
}

fn world(namespaces: &[(&str, &str)]) -> World {
    let mut world = World::at("12:00:00");
    for (name, accounts) in namespaces {
        let mut object = namespace(name);
        object.metadata_mut().set_label("accounts", accounts);
        world.put(object);
    }
    world
}

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = tokio::time::Instant::now() + PATIENCE;
    while !done() {
        assert!(
            tokio::time::Instant::now() < end,
            "waited in vain until {what}"
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn run(test: impl Future<Output = ()>) {
    System::new().block_on(test);
}

#[test]
fn a_gained_range_brings_its_keys_to_rest_and_follows_changes() {
    run(async {
        let rig = Rig::new(world(&[("a", "3"), ("b", "10"), ("c", "0")]));
        rig.gain_all();
        until("all accounts are there", || {
            rig.accounts("a") == 3 && rig.accounts("b") == 10
        })
        .await;
        rig.label("c", "2");
        until("the change was followed", || rig.accounts("c") == 2).await;
        assert_eq!(
            rig.sim.written().len(),
            15,
            "nothing twice: {:?}",
            rig.sim.written()
        );
        // Keys were added again while they were worked on, by what they had written.
        until("nothing waits by the metrics", || {
            let text = rig.shared.metrics.encode();
            let depth = text
                .lines()
                .find(|line| line.starts_with("workqueue_depth{"));
            depth.is_some_and(|line| line.ends_with(" 0"))
        })
        .await;
    });
}

#[test]
fn a_reconcile_that_fails_is_retried_and_measured_as_a_failure() {
    run(async {
        let rig = Rig::new(world(&[("a", "1"), ("b", "fails"), ("c", "3")]));
        let refused = "create serviceaccounts/a-2".to_owned();
        rig.sim.refuse.lock().unwrap().insert(refused);
        rig.gain_all();
        let count = |result: &str| {
            let text = rig.shared.metrics.encode();
            let series = format!("{SYNCS}{{result=\"{result}\"}} ");
            let line = text.lines().find_map(|line| line.strip_prefix(&series));
            line.map_or(0.0, |value| value.parse::<f64>().unwrap())
        };
        until("a is served", || rig.accounts("a") == 1).await;
        until("b and c are retried", || count("error") >= 6.0).await;
        assert!(count("success") >= 1.0);
        let before = count("success");
        let errors = count("error");
        until("they are retried once more", || count("error") > errors).await;
        assert_eq!(count("success"), before, "no failure is a success too");
    });
}

#[test]
fn an_expected_refusal_is_retried_and_counts_as_no_error() {
    run(async {
        let rig = Rig::new(world(&[("a", "unwanted")]));
        rig.gain_all();
        let count = |result: &str| {
            let text = rig.shared.metrics.encode();
            let wanted = format!("result=\"{result}\"");
            let line = text.lines().find(|line| {
                line.starts_with("manifold_reconciles_total{") && line.contains(&wanted)
            });
            let value = line.and_then(|line| line.rsplit(' ').next());
            value.map_or(0.0, |value| value.parse::<f64>().unwrap())
        };
        until("it is retried", || count("requeue") >= 3.0).await;
        assert_eq!(count("error"), 0.0);
        rig.label("a", "1");
        until("it is served", || rig.accounts("a") == 1).await;
    });
}

/// As when an admission webhook is down. Before, the comparison with the server that follows such an answer
/// reset the back-off, and the key was tried fifty times a second.
#[test]
fn a_write_that_may_have_landed_is_tried_ever_more_seldom() {
    run(async {
        let rig = Rig::new(world(&[("a", "1")]));
        let refused = "create serviceaccounts/a-0".to_owned();
        rig.sim.refuse.lock().unwrap().insert(refused);
        rig.sim.breaks.store(true, Ordering::Relaxed);
        rig.gain_all();
        let place = (0, Key::cluster("a"));
        let recent = || rig.shared.attempts().of(&place);
        until("it has failed six times in a row", || {
            recent().is_some_and(|recent| recent.failures >= 6)
        })
        .await;
        let attempts = recent().unwrap().attempts;
        assert!(
            attempts.iter().all(|one| one.result == "error"),
            "{attempts:?}"
        );
        assert!(
            attempts.last().unwrap().next_in_ms >= Some(100),
            "{attempts:?}"
        );
        rig.sim.refuse.lock().unwrap().clear();
        until("it is served", || rig.accounts("a") == 1).await;
    });
}

#[test]
fn a_key_of_a_range_that_is_not_owned_is_left_alone() {
    run(async {
        let rig = Rig::new(world(&[
            ("a", "1"),
            ("b", "1"),
            ("c", "1"),
            ("d", "1"),
            ("e", "1"),
        ]));
        let mine = rig.range_of("a");
        rig.gain(mine, 1, &Gained::Takeover);
        until("the owned key is served", || rig.accounts("a") == 1).await;
        for name in ["b", "c", "d", "e"]
            .into_iter()
            .filter(|name| rig.range_of(name) != mine)
        {
            rig.label(name, "2");
            assert_eq!(rig.accounts(name), 0, "{name} has another owner");
        }
    });
}

fn swept() -> World {
    let mut world = world(&[("a", "0")]);
    for number in 0..3 {
        let mut account = ServiceAccount::default();
        account.metadata_mut().namespace = "a".into();
        account.metadata_mut().name = format!("a-{number}").into();
        account.metadata_mut().set_label("sweep", "");
        world.put(account);
    }
    world
}

/// Keys that a rig's ranges know.
fn keys(shared: &Shared) -> usize {
    (0..RANGES)
        .filter_map(|range| shared.slot(range))
        .map(|slot| slot.stats.keys.load(Ordering::Relaxed))
        .sum()
}

#[test]
fn a_key_that_nothing_wakes_any_more_is_forgotten_when_its_marks_are_seen() {
    run(async {
        let rig = Rig::of(Factory::of::<Sweeper>(), swept());
        // The cache does not see yet that they are gone.
        *rig.sim.stale.lock().unwrap() = Some(swept());
        rig.gain_all();
        until("all are swept", || rig.accounts("a") == 0).await;
        until("they are known by their marks", || keys(&rig.shared) == 3).await;
        // Nor does it notify: nothing wakes the keys.
        rig.sim.catch_up();
        until("they are forgotten", || keys(&rig.shared) == 0).await;
        assert_eq!(rig.sim.written().len(), 3);
    });
}

#[test]
fn one_that_takes_over_forgets_what_nothing_wakes_any_more() {
    run(async {
        let rig = Rig::of(Factory::of::<Sweeper>(), swept());
        *rig.sim.stale.lock().unwrap() = Some(swept());
        rig.gain_all();
        until("they are known by their marks", || {
            rig.accounts("a") == 0 && keys(&rig.shared) == 3
        })
        .await;
        let (shared, _door) = process(Factory::of::<Sweeper>(), &rig.sim, "two");
        let next = host(&shared);
        for range in 0..RANGES {
            let frozen = rig.host.freeze(range, Duration::from_secs(1), false).await;
            let Frozen::Still(state) = frozen else {
                panic!("range {range} is busy");
            };
            next.gained(range, 2, Gained::Handoff(state));
        }
        rig.sim.catch_up();
        until("it knows them too", || keys(&shared) == 3).await;
        until("they are forgotten", || keys(&shared) == 0).await;
        assert_eq!(rig.sim.written().len(), 3);
    });
}

#[test]
fn a_closed_fence_holds_the_queue_and_loses_nothing() {
    run(async {
        let rig = Rig::new(world(&[("a", "2")]));
        rig.door.0.store(false, Ordering::Release);
        rig.gain_all();
        tokio::time::sleep(Duration::from_millis(120)).await;
        assert!(
            rig.sim.written().is_empty(),
            "nothing is written behind a closed fence"
        );
        rig.door.0.store(true, Ordering::Release);
        until("the queue continues", || rig.accounts("a") == 2).await;
    });
}

#[test]
fn a_panic_costs_one_key_a_backoff() {
    run(async {
        let rig = Rig::new(world(&[("bad", "panic"), ("good", "2")]));
        rig.gain_all();
        until("the other key is served", || rig.accounts("good") == 2).await;
        rig.label("bad", "1");
        until("the key that panicked is served when it is mended", || {
            rig.accounts("bad") == 1
        })
        .await;
    });
}

#[test]
fn a_plan_beyond_its_rules_is_not_applied_and_costs_the_key_a_backoff() {
    run(async {
        let rig = Rig::new(world(&[("bad", "breach"), ("good", "2")]));
        rig.gain_all();
        until("the other key is served", || rig.accounts("good") == 2).await;
        let none = r#"manifold_plan_breaches_total{controller="accounts-controller"} 0"#;
        until("the breach is counted", || {
            !rig.shared.metrics.encode().contains(none)
        })
        .await;
        assert!(
            rig.sim
                .written()
                .iter()
                .all(|write| !write.contains("pods"))
        );
        rig.label("bad", "1");
        until("the key is served when its plan is mended", || {
            rig.accounts("bad") == 1
        })
        .await;
    });
}

#[test]
fn an_object_over_which_a_wake_panics_is_set_aside_and_all_others_wake_their_keys() {
    run(async {
        let mut bad = ServiceAccount::default();
        bad.metadata_mut().namespace = "a".into();
        bad.metadata_mut().name = "bad".into();
        bad.metadata_mut().set_label("bad", "");
        let rig = Rig::new(world(&[("a", "1"), ("b", "2")]).with(bad));
        // The scan of what is gained meets it first: one range, so that it is one scan.
        rig.gain(rig.range_of("b"), 1, &Gained::Takeover);
        until("the other keys are served", || rig.accounts("b") == 2).await;
        let seen = Reader::get(&*rig.sim, ServiceAccount::resource(), "a", "bad").unwrap();
        rig.sim
            .notify(ServiceAccount::resource(), None, Some(&seen));
        let aside = rig.shared.unwoken.all();
        let [(controller, resource, key, why)] = &aside[..] else {
            panic!("reported once, not {aside:?}")
        };
        assert_eq!(
            (*controller, resource.plural, &*key.to_string()),
            ("accounts-controller", "serviceaccounts", "a/bad")
        );
        assert!(why.contains("this account makes the wake panic"), "{why}");
        let counted = rig.shared.metrics.encode();
        let line = "manifold_wake_panics_total{controller=\"controller\"} 2";
        assert!(counted.contains(line), "{counted}");
        rig.label("b", "3");
        until("changes continue waking", || rig.accounts("b") == 3).await;
    });
}

#[test]
fn a_memory_that_makes_packing_or_unpacking_panic_is_lost_and_the_range_moves() {
    run(async {
        let rig = Rig::of(Factory::of::<Brittle>(), world(&[("a", "1")]));
        let range = rig.range_of("a");
        let brittle = ControllerState {
            controller: "brittle-controller".to_owned(),
            keys: vec![KeyState {
                name: "a".to_owned(),
                queued: true,
                memory: Some(b"true".to_vec()),
                ..KeyState::default()
            }],
            ..ControllerState::default()
        };
        let state = RangeState {
            controllers: vec![brittle],
        };
        rig.gain(range, 1, &Gained::Handoff(state));
        until("the key is planned", || {
            rig.shared.units[0].reconciles.load(Ordering::Relaxed) > 0
        })
        .await;
        let state = rig.frozen(range).await;
        assert!(
            state
                .controllers
                .iter()
                .flat_map(|part| &part.keys)
                .all(|key| key.memory.is_none()),
            "{state:?}"
        );
    });
}

#[test]
fn a_refused_create_is_tried_again_with_backoff() {
    run(async {
        let rig = Rig::new(world(&[("a", "1")]));
        rig.sim
            .refuse
            .lock()
            .unwrap()
            .insert("create serviceaccounts/a-0".to_owned());
        rig.gain_all();
        let slot = || rig.shared.slot(rig.range_of("a")).unwrap();
        until("it was refused a few times", || {
            slot().stats.reconciles.load(Ordering::Relaxed) > 3
        })
        .await;
        rig.sim.refuse.lock().unwrap().clear();
        until("it is made in the end", || rig.accounts("a") == 1).await;
    });
}

/// A creation gets no answer; what is in flight at the server then.
async fn gives_up_a_write(rig: &Rig) -> Vec<Action> {
    *rig.sim.late_write.lock().unwrap() = Some(Vec::new());
    rig.gain_all();
    until("a write was given up", || !rig.sim.written().is_empty()).await;
    let late_write = rig.sim.answer_again();
    assert_eq!(late_write.len(), 1, "one creation goes ahead of the others");
    late_write
}

/// Nothing is written before it lands, and none of the accounts is tried twice then.
async fn lands_and_is_tried_but_once(rig: &Rig, late_write: &[Action], accounts: usize) {
    assert_eq!(rig.sim.written().len(), 1, "nothing more is written yet");
    for action in late_write {
        rig.sim.land(action).expect("its name is free");
    }
    until("the key is served", || rig.accounts("a") == accounts).await;
    assert_eq!(
        rig.sim.written().len(),
        accounts,
        "nothing is tried twice: {:?}",
        rig.sim.written()
    );
}

#[test]
fn nothing_is_planned_while_a_write_that_was_given_up_may_land() {
    run(async {
        let rig = Rig::new(world(&[("a", "2")]));
        let late_write = gives_up_a_write(&rig).await;
        tokio::time::sleep(LATE_WRITE_MAX / 2).await;
        rig.label("a", "3");
        tokio::time::sleep(LATE_WRITE_MAX / 6).await;
        lands_and_is_tried_but_once(&rig, &late_write, 3).await;
    });
}

#[test]
fn a_range_gained_again_waits_for_what_its_earlier_epoch_had_sent() {
    run(async {
        let rig = Rig::new(world(&[("a", "2")]));
        let late_write = gives_up_a_write(&rig).await;
        let range = rig.range_of("a");
        // Its Lease was edited by hand: the same owner writes a higher epoch.
        rig.host.lost(range);
        rig.gain(range, 2, &Gained::Takeover);
        tokio::time::sleep(LATE_WRITE_MAX / 2).await;
        lands_and_is_tried_but_once(&rig, &late_write, 2).await;
        let by: Vec<String> = rig.sim.written();
        let written = |epoch: u64| {
            let by_epoch = format!("{range}@{epoch} ");
            by.iter().filter(|line| line.starts_with(&by_epoch)).count()
        };
        assert_eq!((written(1), written(2)), (1, 1), "{by:?}");
    });
}

#[test]
fn a_range_without_keys_is_handed_over_with_how_far_its_owner_has_seen() {
    run(async {
        let rig = Rig::new(world(&[("a", "1")]));
        let empty = rig.range_without("a");
        rig.gain(empty, 1, &Gained::Takeover);
        let state = rig.frozen(empty).await;
        let [part] = &state.controllers[..] else {
            panic!("one controller: {state:?}")
        };
        assert!(part.keys.is_empty(), "{:?}", part.keys);
        let seen: Vec<&str> = part
            .seen
            .iter()
            .map(|mark| mark.resource.as_str())
            .collect();
        assert_eq!(seen, ["namespaces", "serviceaccounts"]);
    });
}

#[test]
fn what_an_owner_had_seen_is_handed_on_by_one_that_has_seen_less() {
    run(async {
        let rig = Rig::new(world(&[("a", "1")]));
        let empty = rig.range_without("a");
        rig.gain(empty, 1, &Gained::Takeover);
        let mut state = rig.frozen(empty).await;
        // The watch here has passed it, by a bookmark: no object of that version was ever seen here.
        for mark in &mut state.controllers[0].seen {
            mark.resource_version += 1000;
        }
        rig.host.lost(empty);
        rig.gain(empty, 2, &Gained::Handoff(state.clone()));
        let next = rig.frozen(empty).await;
        assert_eq!(next.controllers[0].seen, state.controllers[0].seen);
    });
}

#[test]
fn what_changed_while_a_range_was_handed_over_goes_ahead_and_what_was_deleted_is_found() {
    run(async {
        let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
        let rig = Rig::new(world(&names.map(|name| (name, "1"))));
        // By name the one that is changed comes last.
        let changed = "j";
        let range = rig.range_of(changed);
        let deleted = *names
            .iter()
            .find(|name| **name < changed && rig.range_of(name) == range)
            .expect("ten names and four ranges");
        rig.gain(range, 1, &Gained::Takeover);
        until("both are served", || {
            rig.accounts(changed) == 1 && rig.accounts(deleted) == 1
        })
        .await;
        let state = rig.frozen(range).await;
        rig.host.lost(range);
        let before = rig.sim.written().len();
        let gone = format!("{deleted}/a-0");
        rig.sim
            .world
            .lock()
            .unwrap()
            .vanish::<ServiceAccount>(&gone);
        rig.label(changed, "2");
        rig.gain(range, 2, &Gained::Handoff(state));
        until("the deletion was found too", || rig.accounts(deleted) == 1).await;
        assert_eq!(
            rig.sim.written()[before..],
            [
                format!("{range}@2 create serviceaccounts/a-1"),
                format!("{range}@2 create serviceaccounts/a-0"),
            ]
        );
    });
}

#[test]
fn one_that_takes_over_waits_too_for_what_was_given_up() {
    run(async {
        let rig = Rig::new(world(&[("a", "2")]));
        let late_write = gives_up_a_write(&rig).await;
        let range = rig.range_of("a");
        let state = rig.frozen(range).await;
        let key = &state.controllers[0].keys[0];
        assert!(key.in_flight && key.late_write_ms > 0, "{key:?}");
        rig.host.lost(range);
        rig.gain(range, 2, &Gained::Handoff(state));
        tokio::time::sleep(LATE_WRITE_MAX / 2).await;
        lands_and_is_tried_but_once(&rig, &late_write, 2).await;
    });
}

#[test]
fn a_handoff_loses_no_queue_entry_failure_or_memory() {
    run(async {
        let rig = Rig::new(world(&[("a", "1"), ("bad", "x")]));
        rig.sim
            .refuse
            .lock()
            .unwrap()
            .insert("create serviceaccounts/a-0".to_owned());
        rig.gain_all();
        let range = rig.range_of("a");
        let slot = rig.shared.slot(range).unwrap();
        let failures = || async {
            let explain = Explain {
                unit: 0,
                key: Key::cluster("a"),
            };
            let said = slot.addr.send(explain).await.unwrap();
            said.map_or(0, |said| said["failures"].as_u64().unwrap())
        };
        let end = tokio::time::Instant::now() + PATIENCE;
        while failures().await < 3 {
            assert!(
                tokio::time::Instant::now() < end,
                "the key never failed three times"
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let state = rig.frozen(range).await;
        let before = slot.stats.reconciles.load(Ordering::Relaxed);
        rig.label("a", "1");
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(
            slot.stats.reconciles.load(Ordering::Relaxed),
            before,
            "a frozen range starts nothing"
        );
        let key = state.controllers[0]
            .keys
            .iter()
            .find(|key| key.name == "a")
            .expect("the key travels")
            .clone();
        assert!(
            key.failures > 2 && (key.queued || key.due_in_ms.is_some()),
            "{key:?}"
        );
        let memory: Planned = serde_json::from_slice(key.memory.as_ref().unwrap()).unwrap();
        assert!(memory.0 > 2, "the memory travels");
        let place = (0, Key::cluster("a"));
        let recent = rig.shared.attempts().of(&place).expect("it fails");
        assert!(recent.failures >= 3, "{recent:?}");
        let first = &recent.attempts[0];
        assert!(first.error.contains("a-0"), "{first:?}");
        assert_eq!(first.result, "error");

        rig.sim.refuse.lock().unwrap().clear();
        rig.host.lost(range);
        assert_eq!(rig.shared.attempts().of(&place), None, "they are another's");
        let (other, _door) = process(Factory::of::<Accounts>(), &rig.sim, "two");
        *rig.sim.shared.lock().unwrap() = Some(Arc::clone(&other));
        let next = host(&other);
        next.gained(range, 2, Gained::Handoff(state));
        until("the next owner serves it", || rig.accounts("a") == 1).await;
        assert_eq!(
            rig.sim.written().last().unwrap(),
            &format!("{range}@2 create serviceaccounts/a-0")
        );
        until(
            "its attempts have come with it, its recovery among them",
            || {
                let recent = other.attempts().of(&place);
                recent.is_some_and(|recent| recent.failures == 0 && recent.attempts.len() > 3)
            },
        )
        .await;
    });
}

#[test]
fn a_move_that_did_not_happen_continues_as_before() {
    run(async {
        let rig = Rig::new(world(&[("a", "0")]));
        rig.gain_all();
        let range = rig.range_of("a");
        let _state = rig.host.freeze(range, Duration::from_secs(2), false).await;
        rig.label("a", "1");
        rig.host.resume(range);
        until("the change is followed", || rig.accounts("a") == 1).await;
    });
}

#[test]
fn after_a_takeover_a_stale_count_makes_nothing() {
    run(async {
        let rig = Rig::new(world(&[("a", "2")]));
        // The owner before made both; the cache has seen neither.
        *rig.sim.stale.lock().unwrap() = Some(rig.sim.world.lock().unwrap().clone());
        for name in ["x-1", "x-2"] {
            let mut account = ServiceAccount::default();
            account.metadata_mut().namespace = "a".into();
            account.metadata_mut().name = name.into();
            rig.sim.world.lock().unwrap().put(account);
        }
        let range = rig.range_of("a");
        rig.gain(range, 2, &Gained::Takeover);
        let slot = rig.shared.slot(range).unwrap();
        until("it was planned and proven stale", || {
            slot.stats.reconciles.load(Ordering::Relaxed) >= 2
        })
        .await;
        assert!(rig.sim.written().is_empty(), "{:?}", rig.sim.written());
        rig.sim.catch_up();
        rig.label("a", "3");
        until("with a fresh cache it makes what is missing", || {
            rig.accounts("a") == 3
        })
        .await;
        assert_eq!(rig.sim.written().len(), 1);
        assert!(rig.sim.lists.load(Ordering::Relaxed) >= 2);
    });
}

#[test]
fn one_live_read_after_a_takeover_proves_for_all_keys_once_the_watch_has_passed_it() {
    run(async {
        let all = [("a", "1"), ("b", "1"), ("c", "0"), ("d", "0")];
        let rig = Rig::new(world(&all));
        for range in 0..RANGES {
            rig.gain(range, 2, &Gained::Takeover);
        }
        let reads = || {
            let of = |count: &AtomicUsize| count.load(Ordering::Relaxed);
            (of(&rig.sim.heads), of(&rig.sim.lists))
        };
        until("two keys are proven each by itself", || {
            rig.accounts("a") == 1 && rig.accounts("b") == 1
        })
        .await;
        let before = reads();
        assert!(before.0 >= 1 && before.1 >= 1, "{before:?}");
        // The first after it finds that the watch has passed; it may still have been read for itself.
        rig.label("c", "1");
        until("the third is planned", || rig.accounts("c") == 1).await;
        let before = reads();
        rig.label("d", "1");
        until("the fourth is planned", || rig.accounts("d") == 1).await;
        assert_eq!(reads(), before, "nothing was read for it");

        // What was read before a range was taken proves nothing of what its owner did until then.
        let range = rig.range_of("d");
        rig.host.lost(range);
        rig.gain(range, 9, &Gained::Takeover);
        rig.label("d", "2");
        until("the key is proven again", || rig.accounts("d") == 2).await;
        assert!(reads().0 > before.0 && reads().1 > before.1);
    });
}

#[test]
fn a_plan_that_is_dropped_for_want_of_proof_is_not_remembered() {
    run(async {
        let rig = Rig::new(world(&[("a", "1")]));
        let range = rig.range_of("a");
        rig.gain(range, 2, &Gained::Takeover);
        until("the second plan makes it", || rig.accounts("a") == 1).await;
        let slot = rig.shared.slot(range).unwrap();
        let plans = || slot.stats.reconciles.load(Ordering::Relaxed);
        until("it is examined once more", || plans() >= 3).await;
        let state = rig.frozen(range).await;
        let key = state.controllers[0]
            .keys
            .iter()
            .find(|key| key.name == "a")
            .expect("the key travels");
        let memory: Planned = serde_json::from_slice(key.memory.as_ref().unwrap()).unwrap();
        assert_eq!(
            u64::from(memory.0),
            plans() - 1,
            "the first plan rested on nothing proven"
        );
    });
}

/// The account goes; whether its namespace has gone before it the cache can't know, since the watch of
/// namespaces has not come so far.
async fn seen_without_its_account(rig: &Rig) {
    until("the account is there", || rig.accounts("a") == 1).await;
    let account = {
        let world = rig.sim.world.lock().unwrap();
        let all = world.list(ServiceAccount::resource(), Some("a"));
        all.into_iter().next().expect("it was made")
    };
    let mut seen = rig.sim.world.lock().unwrap().clone();
    seen.delete::<ServiceAccount>("a/a-0");
    *rig.sim.world.lock().unwrap() = seen.clone();
    *rig.sim.stale.lock().unwrap() = Some(seen);
    rig.sim
        .notify(ServiceAccount::resource(), Some(&account), None);
}

#[test]
fn what_is_seen_to_go_is_not_made_again_for_an_owner_that_went_before_it() {
    run(async {
        let rig = Rig::new(world(&[("a", "1")]));
        rig.gain_all();
        until("it is made", || rig.accounts("a") == 1).await;
        let slot = rig.shared.slot(rig.range_of("a")).unwrap();
        let plans = || slot.stats.reconciles.load(Ordering::Relaxed);
        until("it is examined once more", || plans() >= 2).await;
        let (before, writes) = (plans(), rig.sim.written().len());
        seen_without_its_account(&rig).await;
        rig.sim.world.lock().unwrap().delete::<Namespace>("a");
        until("it was planned and the owner missed", || plans() > before).await;
        assert_eq!(rig.sim.written().len(), writes, "{:?}", rig.sim.written());
    });
}

#[test]
fn what_is_seen_to_go_is_made_again_where_its_owner_is_as_it_was() {
    run(async {
        let rig = Rig::new(world(&[("a", "1")]));
        rig.gain_all();
        seen_without_its_account(&rig).await;
        until("it is made again", || rig.accounts("a") == 1).await;
    });
}

/// The namespace comes to want an account, and that is seen late; then something else happens to it, which is
/// not seen.
async fn late_word(then: impl FnOnce(&mut World)) -> Rig {
    let rig = Rig::new(world(&[("a", "0")]));
    rig.gain_all();
    let slot = rig.shared.slot(rig.range_of("a")).unwrap();
    let plans = || slot.stats.reconciles.load(Ordering::Relaxed);
    until("it is examined", || plans() >= 1).await;
    let (before, old) = (plans(), rig.seen("a"));
    let late = {
        let mut world = rig.sim.world.lock().unwrap();
        world.change::<Namespace>("a", |object| {
            object.metadata_mut().set_label("accounts", "1");
        });
        let late = world.clone();
        then(&mut world);
        late
    };
    *rig.sim.stale.lock().unwrap() = Some(late);
    let new = rig.seen("a");
    let version = new
        .as_ref()
        .map_or(0, |one| one.metadata().resource_version);
    rig.door.1.store(version + 1, Ordering::Release);
    rig.sim
        .notify(Namespace::resource(), old.as_ref(), new.as_ref());
    until("it is planned for", || plans() > before).await;
    drop(slot);
    rig
}

#[test]
fn what_a_late_watch_brings_is_not_acted_on_where_more_has_happened() {
    run(async {
        let gone = late_word(|world| world.delete::<Namespace>("a")).await;
        assert_eq!(gone.sim.written(), [""; 0]);
        let changed = late_word(|world| {
            world.change::<Namespace>("a", |object| {
                object.metadata_mut().set_label("accounts", "0");
            });
        })
        .await;
        assert_eq!(changed.sim.written(), [""; 0]);
    });
}

#[test]
fn what_a_late_watch_brings_is_acted_on_where_it_is_so_still() {
    run(async {
        let rig = late_word(|_| ()).await;
        until("it is made", || rig.accounts("a") == 1).await;
    });
}

#[test]
fn a_key_waits_until_the_cache_has_seen_its_own_writes() {
    run(async {
        let rig = Rig::new(world(&[("a", "1")]));
        *rig.sim.stale.lock().unwrap() = Some(rig.sim.world.lock().unwrap().clone());
        rig.gain_all();
        until("it is made", || rig.accounts("a") == 1).await;
        rig.label("a", "2");
        tokio::time::sleep(Duration::from_millis(60)).await;
        assert_eq!(
            rig.sim.written().len(),
            1,
            "the cache has not seen the first one yet"
        );
        rig.sim.catch_up();
        until("then it continues", || rig.accounts("a") == 2).await;
        assert_eq!(rig.sim.written().len(), 2);
    });
}

#[test]
fn a_refused_report_backs_off_like_any_other_write() {
    run(async {
        let mut start = world(&[("a", "0")]);
        start.change::<Namespace>("a", |object| {
            object.metadata_mut().set_label("report", "yes");
        });
        let rig = Rig::new(start);
        let report = "patch namespaces/a/status".to_owned();
        rig.sim.refuse.lock().unwrap().insert(report);
        rig.gain_all();
        let slot = || rig.shared.slot(rig.range_of("a")).unwrap();
        let tries = || slot().stats.reconciles.load(Ordering::Relaxed);
        until("it was tried a few times", || tries() >= 4).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        // 5, 10, 20 … 640 ms: eight tries fill 635 ms; without back-off there would be hundreds.
        assert!(tries() <= 9, "{} tries", tries());
    });
}

#[test]
fn a_spaced_key_is_not_planned_while_its_last_report_is_fresh() {
    run(async {
        let mut start = world(&[("a", "0")]);
        start.change::<Namespace>("a", |object| {
            object.metadata_mut().set_label("report", "yes");
        });
        let rig = Rig::new(start);
        let before = std::time::Instant::now();
        rig.gain_all();
        until("the report is written", || {
            rig.sim
                .written()
                .iter()
                .any(|write| write.ends_with("/status"))
        })
        .await;
        rig.label("a", "0");
        let slot = || rig.shared.slot(rig.range_of("a")).unwrap();
        let tries = || slot().stats.reconciles.load(Ordering::Relaxed);
        until("the change is planned", || tries() >= 2).await;
        assert!(before.elapsed() >= REPORT_SPACING, "{:?}", before.elapsed());
    });
}

#[test]
fn the_more_a_spaced_key_has_written_the_longer_it_waits() {
    let (began, now) = (Duration::from_secs(1), Duration::from_millis(1_100));
    let spaced = Some(Duration::from_millis(300));
    let until = |spaced, written, objects| {
        let from = report_from(spaced, 0, written, objects, (began, now));
        from.seen.as_millis()
    };
    // Written; from the end of a cheap plan; from the beginning of an expensive one.
    let table = [
        (0, 1_300, 1_300),
        (1, 1_300, 1_300),
        (2, 1_320, 1_350),
        (5, 1_380, 1_500),
        (9, 1_460, 1_700),
        (26, 1_800, 1_700),
        (u64::MAX, 1_800, 1_700),
    ];
    for (written, cheap, expensive) in table {
        assert_eq!(until(spaced, written, 199), cheap, "{written} writes");
        assert_eq!(until(spaced, written, 5_000), expensive, "{written} writes");
        assert_eq!(until(None, written, 199), 1_300, "{written} writes");
        assert_eq!(until(None, written, 5_000), 1_300, "{written} writes");
    }
    // A plan that is just expensive enough waits no less than one that is not.
    assert_eq!(until(spaced, 1, 200), 1_200);
}

#[test]
fn a_plan_reports_as_soon_as_its_least_patient_report_may() {
    let from = ReportFrom {
        seen: Duration::from_millis(1),
        underway: Duration::from_millis(2),
    };
    let plan = |reports: &[StatusWrite]| {
        let mut plan = Plan::default();
        for report in reports {
            let pod = Pod::default();
            plan.patch(&pod, "status", PatchKind::Merge, json!({}), *report);
        }
        from.of(&plan)
    };
    assert_eq!(
        plan(&[StatusWrite::Progress, StatusWrite::No]),
        from.underway
    );
    assert_eq!(
        plan(&[StatusWrite::Progress, StatusWrite::Observed]),
        from.seen
    );
    assert_eq!(plan(&[StatusWrite::Observed]), from.seen);
}

#[test]
fn what_continues_reporting_does_so_less_often_but_within_half_a_second() {
    let (began, now) = (Duration::from_secs(1), Duration::from_secs(2));
    let from = |spaced, row| report_from(spaced, row, 1, 1, (began, now));
    let wait = |spaced, row| from(spaced, row).seen - now;
    assert_eq!(wait(None, REPORTS_DENSE), wait(None, 0));
    assert_eq!(wait(None, REPORTS_DENSE + 1), REPORT_SPACING_STEADY);
    assert!(wait(None, 0) < REPORT_SPACING_STEADY);
    assert!(REPORT_SPACING_STEADY < Duration::from_millis(500));
    let spaced = Some(Duration::from_millis(300));
    assert_eq!(wait(spaced, u32::MAX), wait(spaced, 0));
    for row in [0, REPORTS_DENSE + 1] {
        assert_eq!(
            from(None, row).underway - now,
            REPORT_SPACING_STEADY,
            "how far something has come"
        );
        assert_eq!(from(spaced, row).underway, from(spaced, row).seen);
    }
}

#[test]
fn the_more_a_plan_has_examined_the_longer_the_next_one_waits() {
    let table = [
        (0, 0, 0),
        (199, 0, 0),
        (200, 50, 50),
        (1_000, 250, 250),
        (2_000, 500, 300),
        (usize::MAX, 500, 300),
    ];
    for (objects, others, spaced) in table {
        let wait = |spaced| plan_spacing(spaced, objects).as_millis();
        let most = Some(Duration::from_millis(300));
        assert_eq!(wait(None), others, "{objects} objects");
        assert_eq!(wait(most), spaced, "{objects} objects");
    }
}

#[test]
fn a_key_whose_plan_has_examined_much_is_not_planned_for_each_change() {
    run(async {
        let mut start = world(&[("a", "0")]);
        for number in 0..1_000 {
            let mut account = ServiceAccount::default();
            account.metadata_mut().namespace = "a".into();
            account.metadata_mut().name = format!("other-{number}").into();
            start.put(account);
        }
        let rig = Rig::new(start);
        let before = std::time::Instant::now();
        rig.gain_all();
        let slot = || rig.shared.slot(rig.range_of("a")).unwrap();
        let plans = || slot().stats.reconciles.load(Ordering::Relaxed);
        until("it is planned", || plans() >= 1).await;
        until("two changes of many are planned", || {
            rig.label("a", "0");
            plans() >= 3
        })
        .await;
        assert!(
            before.elapsed() >= 2 * plan_spacing(None, 1_000),
            "{:?}",
            before.elapsed()
        );
    });
}

/// Keys of one range that its owner before has handed over, all of which wait for something.
const PARKED: usize = 5000;

/// A range that comes with `PARKED` keys, each waiting for `marks`, and with what its owner before had seen.
fn handed_over(
    rig: &Rig,
    range: u16,
    marks: &[peer_proto::Mark],
    seen: Vec<peer_proto::Mark>,
) -> RangeState {
    let names = (0..).map(|at| format!("parked-{at}"));
    let keys = names
        .filter(|name| rig.range_of(name) == range)
        .take(PARKED)
        .map(|name| peer_proto::KeyState {
            name,
            queued: true,
            marks: marks.to_vec(),
            ..Default::default()
        })
        .collect();
    let controller = rig.shared.units[0].name().to_owned();
    RangeState {
        controllers: vec![peer_proto::ControllerState {
            controller,
            keys,
            seen,
        }],
    }
}

async fn all_are_parked(rig: &Rig, range: u16) {
    let slot = rig.shared.slot(range).unwrap();
    let stats = Arc::clone(&slot.stats);
    until("all keys are taken from the queue", || {
        stats.keys.load(Ordering::Relaxed) >= PARKED && stats.queued.load(Ordering::Relaxed) == 0
    })
    .await;
}

#[test]
fn keys_that_wait_for_a_deletion_are_woken_by_it_and_by_nothing_else() {
    run(async {
        let rig = Rig::new(world(&[("a", "1")]));
        rig.gain_all();
        until("the account is there", || rig.accounts("a") == 1).await;
        let account = Reader::get(&*rig.sim, ServiceAccount::resource(), "a", "a-0").unwrap();
        let mark = peer_proto::Mark {
            resource: ServiceAccount::resource().id(),
            gone_namespace: "a".to_owned(),
            gone_name: "a-0".to_owned(),
            gone_uid: account.metadata().uid.to_string(),
            ..Default::default()
        };
        let range = (rig.range_of("a") + 1) % RANGES;
        let state = handed_over(&rig, range, &[mark], Vec::new());
        rig.host.lost(range);
        rig.gain(range, 2, &Gained::Handoff(state));
        all_are_parked(&rig, range).await;
        let before = rig.sim.lookups.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(500)).await;
        let read = rig.sim.lookups.load(Ordering::Relaxed) - before;
        println!("{PARKED} keys parked for a deletion: {read} lookups in 500 ms");
        assert!(read < 100, "{read} lookups while nothing happens");
        let slot = rig.shared.slot(range).unwrap();
        let plans = || slot.stats.reconciles.load(Ordering::Relaxed);
        assert_eq!(plans(), 0);
        rig.sim
            .world
            .lock()
            .unwrap()
            .delete::<ServiceAccount>("a/a-0");
        rig.sim
            .notify(ServiceAccount::resource(), Some(&account), None);
        until("every key is planned", || plans() >= PARKED as u64).await;
    });
}

#[test]
fn keys_that_wait_for_what_the_owner_before_had_seen_wait_together() {
    run(async {
        let rig = Rig::new(world(&[("a", "1")]));
        rig.gain_all();
        until("the account is there", || rig.accounts("a") == 1).await;
        let seen = peer_proto::Mark {
            resource: Namespace::resource().id(),
            resource_version: 7,
            ..Default::default()
        };
        let range = (rig.range_of("a") + 1) % RANGES;
        let state = handed_over(&rig, range, &[], vec![seen]);
        *rig.sim.stale.lock().unwrap() = Some(rig.sim.world.lock().unwrap().clone());
        rig.host.lost(range);
        rig.gain(range, 2, &Gained::Handoff(state));
        all_are_parked(&rig, range).await;
        let before = rig.sim.waits.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(500)).await;
        // The test's cache makes each waiter read every 5 ms.
        let waits = rig.sim.waits.load(Ordering::Relaxed) - before;
        println!("{PARKED} keys parked for a horizon: {waits} waits in 500 ms");
        assert!(waits <= 110, "{waits} waits: one for all is enough");
        let slot = rig.shared.slot(range).unwrap();
        let plans = || slot.stats.reconciles.load(Ordering::Relaxed);
        assert_eq!(plans(), 0);
        rig.sim.catch_up();
        until("every key is planned", || plans() >= PARKED as u64).await;
    });
}

#[test]
fn a_mark_far_beyond_all_that_was_seen_is_left_out_and_its_key_checked() {
    run(async {
        let rig = Rig::new(world(&[("a", "1")]));
        let range = rig.range_of("a");
        let mark = peer_proto::Mark {
            resource: Namespace::resource().id(),
            resource_version: 1 << 63,
            ..Default::default()
        };
        let controller = rig.shared.units[0].name().to_owned();
        let key = peer_proto::KeyState {
            name: "a".to_owned(),
            queued: true,
            marks: vec![mark.clone()],
            ..Default::default()
        };
        let state = RangeState {
            controllers: vec![peer_proto::ControllerState {
                controller,
                keys: vec![key],
                seen: vec![mark],
            }],
        };
        // The cache does not show the present, so that a mark that is believed holds its key up.
        rig.gain(range, 2, &Gained::Handoff(state));
        until("the key is not held up", || rig.accounts("a") == 1).await;
        let heads = rig.sim.heads.load(Ordering::Relaxed) + rig.sim.lists.load(Ordering::Relaxed);
        assert!(heads > 0, "what was written for it is fetched");
        let text = rig.shared.metrics.encode();
        assert!(
            text.contains("manifold_handoff_marks_dropped_total 2"),
            "{text}"
        );
    });
}

#[test]
fn a_rate_that_is_set_holds_the_writes_of_its_controller_until_it_is_taken_back() {
    run(async {
        let rig = Rig::new(world(&[("slow", "1")]));
        rig.gain_all();
        until("it is served", || rig.accounts("slow") == 1).await;
        let name = rig.shared.units[0].name();
        // Of a burst of two nothing is left after two accounts: the other two wait half a second each.
        rig.shared.writer.order_rates(&[(name, 2.0)].into());
        let begun = tokio::time::Instant::now();
        rig.label("slow", "5");
        until("it is served", || rig.accounts("slow") == 5).await;
        let slow = begun.elapsed();
        assert!(slow >= Duration::from_millis(900), "{slow:?}");
        // The same again is no new burst; another controller's rate is not its own.
        rig.shared.writer.order_rates(&[(name, 2.0)].into());
        let begun = tokio::time::Instant::now();
        rig.label("slow", "8");
        until("it is served", || rig.accounts("slow") == 8).await;
        let again = begun.elapsed();
        assert!(again >= Duration::from_millis(900), "{again:?}");
        // What waits for its turn at a rate that is no more has another turn at once.
        rig.shared.writer.order_rates(&[(name, 0.1)].into());
        rig.label("slow", "12");
        until("one is made", || rig.accounts("slow") == 9).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(rig.accounts("slow"), 9);
        let others = [("another-controller", 0.1)];
        rig.shared.writer.order_rates(&others.into());
        until("it is served", || rig.accounts("slow") == 12).await;
        let begun = tokio::time::Instant::now();
        rig.label("slow", "28");
        until("it is served", || rig.accounts("slow") == 28).await;
        let fast = begun.elapsed();
        assert!(fast < slow, "{fast:?}");
        println!(
            "at 2 writes a second: 4 accounts after {slow:.1?}, without a rate 20 after {fast:.1?}"
        );
    });
}

/// Suspects a namespace of having killed: replicas in all, and this many while it was reconciled alone, so
/// long ago.
fn suspect(rig: &Rig, namespace: &str, deaths: u32, alone: u32, ago: i64) {
    let last = rig.shared.clock.now().as_second() - ago;
    let suspicion = Suspicion {
        deaths,
        alone,
        last,
    };
    let name = Work::name("accounts-controller", namespace);
    rig.host.quarantine(&Quarantine {
        keys: [(name, suspicion)].into(),
        careful: BTreeSet::new(),
    });
}

async fn explained(rig: &Rig, namespace: &str) -> Value {
    let slot = rig.shared.slot(rig.range_of(namespace)).unwrap();
    let explain = Explain {
        unit: 0,
        key: Key::cluster(namespace),
    };
    slot.addr.send(explain).await.unwrap().unwrap_or_default()
}

fn quarantined(rig: &Rig) -> bool {
    let series = r#"manifold_quarantined_keys{controller="controller"} 1"#;
    rig.shared.metrics.encode().contains(series)
}

#[test]
fn a_key_that_has_killed_is_held_back_while_others_are_served_and_says_why() {
    run(async {
        let rig = Rig::new(world(&[("bad", "2"), ("good", "2")]));
        suspect(&rig, "bad", 3, 1, 0);
        rig.gain_all();
        until("the other namespace is served", || {
            rig.accounts("good") == 2
        })
        .await;
        until("the key is counted as quarantined", || quarantined(&rig)).await;
        assert_eq!(rig.accounts("bad"), 0);
        let said = explained(&rig, "bad").await;
        assert_eq!(said["state"], "quarantined");
        assert_eq!(said["quarantine"]["state"], "held back");
        assert!(said["quarantine"]["held_back_seconds"].as_i64() > Some(50));
        assert_eq!(explained(&rig, "good").await["quarantine"], Value::Null);
        until("an event says so at the object", || {
            *rig.sim.events.lock().unwrap() == ["ReconcileQuarantined bad by the replica"]
        })
        .await;
        // It was mended: it has its turn, twice, and is as any other then.
        rig.label("bad", "3");
        until("it is served", || rig.accounts("bad") == 3).await;
        until("it is released", || !quarantined(&rig)).await;
        assert_eq!(
            explained(&rig, "bad").await["quarantine"]["state"],
            "released"
        );
        assert_eq!(rig.sim.events.lock().unwrap().len(), 1);
    });
}

#[test]
fn what_a_quarantined_key_has_passed_goes_with_its_range() {
    run(async {
        let rig = Rig::new(world(&[("bad", "0")]));
        suspect(&rig, "bad", 2, 0, 0);
        rig.gain_all();
        let range = rig.range_of("bad");
        let end = tokio::time::Instant::now() + PATIENCE;
        while explained(&rig, "bad").await["quarantine"]["passes"] != 1 {
            assert!(tokio::time::Instant::now() < end, "it had no turn");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let state = rig.frozen(range).await;
        let keys: Vec<(u32, u32)> = state.controllers[0]
            .keys
            .iter()
            .map(|key| (key.quarantine_passes, key.quarantine_deaths))
            .collect();
        assert_eq!(keys, [(1, 2)]);
        rig.gain(range, 2, &Gained::Handoff(state));
        rig.label("bad", "1");
        until("its next turn is its last", || {
            rig.accounts("bad") == 1 && !quarantined(&rig)
        })
        .await;
    });
}

#[test]
fn a_suspicion_that_is_over_lets_the_key_go() {
    run(async {
        let rig = Rig::new(world(&[("bad", "2")]));
        suspect(&rig, "bad", 3, 1, 0);
        rig.gain_all();
        until("the key is counted as quarantined", || quarantined(&rig)).await;
        rig.host.quarantine(&Quarantine::default());
        until("it is served as any other", || rig.accounts("bad") == 2).await;
        until("it is counted no more", || !quarantined(&rig)).await;
    });
}

/// From now on these keys are paused; all of the controller with `None`.
fn pause(rig: &Rig, generation: u64, keys: &[Option<&str>], what: What) {
    let controller = rig.shared.units[0].name().to_owned();
    let now = rig.shared.clock.now();
    let orders: Vec<Order> = keys
        .iter()
        .map(|key| Order {
            target: match key {
                Some(key) => Target::Key {
                    controller: controller.clone(),
                    key: (*key).to_owned(),
                },
                None => Target::Controller(controller.clone()),
            },
            incarnation: None,
            amount: None,
            to: None,
            home: None,
            since: now,
            until: now + controllers_kit::SignedDuration::from_hours(1),
            reason: "a trial".to_owned(),
            by: "jo".to_owned(),
        })
        .collect();
    let held = match what {
        What::Begins => orders.iter().map(|order| (&order.target, order)).collect(),
        _ => std::collections::BTreeMap::new(),
    };
    let in_force = InForce::of(&held, &|_| Some(0), generation);
    rig.shared.steering.set(in_force);
    let changes = orders.into_iter().map(|order| Change { order, what });
    let steered = Steered(Arc::new((changes.collect(), None)));
    for slot in (0..RANGES).filter_map(|range| rig.shared.slot(range)) {
        slot.addr.try_send(steered.clone()).unwrap();
    }
}

fn paused_waiting(rig: &Rig, count: usize) -> bool {
    let series = format!(r#"manifold_paused_keys_waiting{{controller="controller"}} {count}"#);
    rig.shared.metrics.encode().contains(&series)
}

#[test]
fn a_paused_key_waits_while_its_neighbour_works_and_is_served_at_once_when_resumed() {
    run(async {
        let rig = Rig::new(world(&[("held", "1"), ("free", "1")]));
        rig.gain_all();
        until("both are served", || {
            rig.accounts("held") == 1 && rig.accounts("free") == 1
        })
        .await;
        pause(&rig, 1, &[Some("held")], What::Begins);
        rig.label("held", "2");
        rig.label("free", "2");
        until("the neighbour is served", || rig.accounts("free") == 2).await;
        until("the key waits", || paused_waiting(&rig, 1)).await;
        assert_eq!(rig.accounts("held"), 1);
        let said = explained(&rig, "held").await;
        assert_eq!(said["state"], "paused");
        assert!(said["waited_ms"].is_u64(), "{said}");
        // Another wake is no second place.
        rig.label("held", "3");
        pause(&rig, 2, &[Some("held")], What::Lifted);
        until("it is served", || rig.accounts("held") == 3).await;
        until("none waits", || paused_waiting(&rig, 0)).await;
        until("events say so at the object", || {
            *rig.sim.events.lock().unwrap()
                == ["Paused held by the replica", "Resumed held by the replica"]
        })
        .await;
    });
}

#[test]
fn what_waits_for_the_end_of_a_pause_goes_with_its_range() {
    run(async {
        let rig = Rig::new(world(&[("a", "1"), ("b", "1")]));
        pause(&rig, 1, &[None], What::Begins);
        rig.gain_all();
        until("both wait", || paused_waiting(&rig, 2)).await;
        assert!(rig.sim.written().is_empty());
        let range = rig.range_of("a");
        let state = rig.frozen(range).await;
        let queued = state.controllers[0].keys.iter();
        assert!(queued.filter(|key| key.name == "a").all(|key| key.queued));
        assert!(state.controllers[0].keys.iter().any(|key| key.name == "a"));
        rig.gain(range, 2, &Gained::Handoff(state));
        until("both wait", || paused_waiting(&rig, 2)).await;
        assert!(rig.sim.written().is_empty());
        pause(&rig, 2, &[None], What::Expires);
        until("both are served", || {
            rig.accounts("a") == 1 && rig.accounts("b") == 1
        })
        .await;
    });
}

#[test]
fn a_quarantined_key_has_no_turn_while_it_is_paused() {
    run(async {
        let rig = Rig::new(world(&[("bad", "1")]));
        suspect(&rig, "bad", 2, 0, 0);
        rig.gain_all();
        until("it has had its first turn", || rig.accounts("bad") == 1).await;
        pause(&rig, 1, &[Some("bad")], What::Begins);
        rig.label("bad", "2");
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert_eq!(rig.accounts("bad"), 1);
        pause(&rig, 2, &[Some("bad")], What::Lifted);
        until("it has its turn", || rig.accounts("bad") == 2).await;
    });
}

#[test]
fn keys_of_a_range_whose_owners_died_begin_when_the_lease_names_them() {
    run(async {
        let rig = Rig::new(world(&[("a", "2"), ("b", "2"), ("c", "2")]));
        let lands = Arc::new(Semaphore::new(0));
        *rig.door.2.lock().unwrap() = Some(Arc::clone(&lands));
        rig.host.quarantine(&Quarantine {
            careful: (0..RANGES).collect(),
            ..Quarantine::default()
        });
        rig.gain_all();
        let named = || rig.host.working();
        until("all wait to be named", || named().len() == 3).await;
        assert!(named().iter().all(|work| work.care == Care::Announced));
        assert_eq!(explained(&rig, "a").await["announced"], true);
        assert!(rig.sim.written().is_empty());
        // A handoff does not wait for them.
        let state = rig.frozen(rig.range_of("a")).await;
        assert!(state.controllers[0].keys[0].queued);
        rig.host.resume(rig.range_of("a"));
        lands.add_permits(100);
        until("all are served", || {
            ["a", "b", "c"].iter().all(|name| rig.accounts(name) == 2)
        })
        .await;
        until("none is in flight", || named().is_empty()).await;
    });
}

/// A range was taken over whose plans are compared with the server and dropped at first; one announcement
/// lands. Ends when the plan of this key was dropped.
async fn plan_is_dropped(rig: &Rig, name: &str) -> Arc<Semaphore> {
    let lands = Arc::new(Semaphore::new(0));
    *rig.door.2.lock().unwrap() = Some(Arc::clone(&lands));
    rig.gain(rig.range_of(name), 1, &Gained::Takeover);
    let is_named = || rig.host.working().len() == 1;
    until("it waits to be named", is_named).await;
    assert_eq!(rig.sim.heads.load(Ordering::Relaxed), 0);
    lands.add_permits(1);
    let end = tokio::time::Instant::now() + PATIENCE;
    while explained(rig, name).await["last"].is_null() {
        assert!(tokio::time::Instant::now() < end, "it has not ended");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(rig.sim.heads.load(Ordering::Relaxed), 1);
    until("it waits to be named once more", is_named).await;
    assert!(rig.sim.written().is_empty());
    lands
}

#[test]
fn a_plan_that_was_dropped_leaves_its_key_to_be_named_before_the_next() {
    run(async {
        let rig = Rig::new(world(&[("a", "2")]));
        rig.host.quarantine(&Quarantine {
            careful: (0..RANGES).collect(),
            ..Quarantine::default()
        });
        let lands = plan_is_dropped(&rig, "a").await;
        lands.add_permits(1);
        until("it is served", || rig.accounts("a") == 2).await;
        // A plan of it was carried out: what follows is not named before.
        rig.label("a", "3");
        until("it is served again", || rig.accounts("a") == 3).await;
    });
}

#[test]
fn a_plan_that_was_dropped_is_none_that_releases_a_quarantined_key() {
    run(async {
        let rig = Rig::new(world(&[("bad", "1")]));
        suspect(&rig, "bad", 2, 0, 0);
        let lands = plan_is_dropped(&rig, "bad").await;
        assert_eq!(explained(&rig, "bad").await["quarantine"]["passes"], 0);
        lands.add_permits(100);
        until("it is served", || rig.accounts("bad") == 1).await;
        until("it is released", || !quarantined(&rig)).await;
    });
}
