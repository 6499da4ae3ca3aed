//! Orders of operators ([`steering`]) in a running replica: read from the fleet's object, carried out by
//! ranges and the coordinator. This file is the shell; what holds when and what follows from it is pure.
//!
//! * A paused key is set aside when its turn in the queue comes, as often as something wakes it; it is
//!   enqueued at once when the pause ends. Ownership, handoffs and Leases know nothing of it: a next owner
//!   reads the same object, and is given what waits with the range.
//! * A drained replica says in its Lease that it is not current, as one whose watches are stuck does
//!   (docs/decisions/079): placement leaves it out, and it hands over what it has.
//! * A setting changes the workers or the rate of writes of a controller, in each replica.

pub mod in_force;
#[cfg(test)]
mod tests;
pub mod waiting;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, atomic::AtomicBool, atomic::Ordering},
    time::Duration,
};

use arc_swap::{ArcSwap, Guard};
use controllers_kit::{Descriptor, Key, ObjectRef, Str, Timestamp, selection};
use coordinator::Handle;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, Patch, PatchParams, WatchEvent, WatchParams},
    client::Body,
};
use node_connection::components::causes;
use steering::{Amount, Edit, Order, Orders, Setting, Target};
use tokio::{sync::mpsc, time::Instant};

use crate::{
    actors::range::Steered,
    pod_events::Notice,
    shared::{Shared, Unit},
};
use in_force::{Change, InForce, What, changes, held};

/// Between two attempts to read the object, doubled after each failure …
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// … up to this.
const AGAIN_AFTER_MAX: Duration = Duration::from_secs(30);
/// How long the server is asked to keep the watch: an order that a watch has lost is found by the list after
/// it.
const WATCH_SECONDS: u32 = 60;
/// A watch that has not ended by then never will.
const WATCH_MAX: Duration = Duration::from_secs(70);
/// A watch that ends earlier has not ended as asked.
const WATCHED_FOR: Duration = Duration::from_secs(10);
/// One request.
const REQUEST_MAX: Duration = Duration::from_secs(10);
/// One request of the removal of expired orders: new ones are not seen meanwhile.
const REMOVAL_MAX: Duration = Duration::from_secs(2);
/// Orders that could not be read for so long count as unread. A refusal counts at once.
const UNREAD_AFTER: Duration = Duration::from_secs(30);
/// While there are orders, they are compared with the clock so often at least: a machine that was suspended
/// has timers that were, too.
const COMPARED_EVERY: Duration = Duration::from_secs(30);
/// Without orders nothing ends.
const NEVER: Duration = Duration::from_secs(24 * 3600);
/// The one of several replicas that removes what has expired is the owner of this range; it also says at the
/// object what concerns a whole controller.
pub const SPEAKER: u16 = 0;
const FIELD_MANAGER: &str = "manifold-steering";

/// What the actors of a process know of the fleet's orders.
#[derive(Default)]
pub struct Steering {
    in_force: ArcSwap<InForce>,
    orders: ArcSwap<Orders>,
    /// Namespace and name of the object; none before it is followed.
    object: OnceLock<(String, String)>,
    /// Whether this replica leaves its ranges to others.
    steps_back: AtomicBool,
    /// What was read last.
    read: Mutex<Read>,
    /// Whether the first answer is still waited for.
    awaited: AtomicBool,
}

#[derive(Default)]
struct Read {
    /// The object's version; empty where there is none.
    version: String,
    /// Why the object can't be read, where it can't.
    unread: Option<String>,
}

impl Steering {
    /// The orders that hold.
    pub fn in_force(&self) -> Guard<Arc<InForce>> {
        self.in_force.load()
    }

    /// From now on these hold.
    pub fn set(&self, in_force: InForce) {
        self.in_force.store(Arc::new(in_force));
    }

    fn read(&self) -> MutexGuard<'_, Read> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing is owned before it is known what is paused, or that nobody can say.
    pub fn wait_for_first(&self) {
        self.awaited.store(true, Ordering::Release);
    }

    /// Whether the first answer has come, or is not waited for.
    pub fn is_known(&self) -> bool {
        !self.awaited.load(Ordering::Acquire)
    }

    /// Why the orders can't be read, where they can't.
    pub fn unread(&self) -> Option<String> {
        self.read().unread.clone()
    }

    /// What this replica has read, for `/debug/shards`.
    pub fn seen(&self, now: Timestamp) -> inspect::OrdersRead {
        let read = self.read();
        inspect::OrdersRead {
            version: read.version.clone(),
            in_force: self.orders.load().in_force(now).len(),
            unread: read.unread.clone().unwrap_or_default(),
        }
    }

    /// Whether this replica leaves its ranges to others, as it has said last.
    pub fn has_stepped_back(&self) -> bool {
        self.steps_back.load(Ordering::Relaxed)
    }

    /// Whether this replica leaves its ranges to others from now on.
    pub fn steps_back(&self, handle: &Handle) -> bool {
        let in_force = self.in_force();
        // The view of a fleet is large: it is read where there are such orders alone.
        let steps_back = in_force.drains() > 0 && {
            let view = handle.view();
            in_force.steps_back(&view.replica, &view.members)
        };
        self.steps_back.store(steps_back, Ordering::Relaxed);
        steps_back
    }

    /// For `/debug/shards`.
    pub fn report(&self, now: Timestamp) -> inspect::Steering {
        let orders = self.orders.load();
        let object = self.object.get();
        let mut report = inspect::Steering {
            object: object.map_or_else(String::new, |(namespace, name)| {
                format!("{namespace}/{name}")
            }),
            ..inspect::Steering::default()
        };
        for (target, order) in orders.in_force(now) {
            let (since, until) = (order.since.to_string(), order.until.to_string());
            let (reason, by) = (order.reason.clone(), order.by.clone());
            let (controller, key) = match target {
                Target::Controller(controller) => (controller.clone(), String::new()),
                Target::Key { controller, key } => (controller.clone(), key.clone()),
                Target::Replica(replica) => {
                    report.drains.push(inspect::Drain {
                        replica: replica.clone(),
                        incarnation: order.incarnation.clone().unwrap_or_default(),
                        since,
                        until,
                        reason,
                        by,
                    });
                    continue;
                }
                Target::Range(range) => {
                    report.moves.push(inspect::Moved {
                        range: *range,
                        to: order.to.clone().unwrap_or_default(),
                        since,
                        until,
                        reason,
                        by,
                        ..inspect::Moved::default()
                    });
                    continue;
                }
                Target::Setting {
                    controller,
                    setting,
                } => {
                    report.settings.push(inspect::Setting {
                        controller: controller.clone(),
                        setting: setting.name().to_owned(),
                        value: order.amount.map_or(0.0, Amount::value),
                        since,
                        until,
                        reason,
                        by,
                    });
                    continue;
                }
            };
            report.pauses.push(inspect::Pause {
                controller,
                key,
                since,
                until,
                reason,
                by,
            });
        }
        report.faults = orders.faults_in_words();
        report
    }
}

/// The canonical name of a controller, whether it runs here or not; otherwise the one that is called alike.
///
/// # Errors
/// The name of a controller that is called alike, if there is one.
pub fn canonical(descriptors: &[Descriptor], name: &str) -> Result<String, Option<String>> {
    let names = descriptors.iter().map(|one| one.name);
    steering::known(name, selection::canonical(name, descriptors), names)
}

/// What is followed, and for whom.
pub struct Parts {
    /// In the manager's own name.
    pub client: Client,
    /// The fleet's namespace.
    pub namespace: String,
    /// The fleet's name.
    pub fleet: String,
    /// What the actors share.
    pub shared: Arc<Shared>,
    /// Knows the members and the own ranges.
    pub handle: Handle,
    /// Where events at the own Pod go, if there is one.
    pub notices: Option<mpsc::Sender<Notice>>,
}

/// Follows the object for as long as the process lives. While it can't be read, what was read holds, each
/// order until its end.
pub async fn follow(parts: Parts) {
    let name = steering::object_name(&parts.fleet);
    let steering = &parts.shared.steering;
    steering
        .object
        .get_or_init(|| (parts.namespace.clone(), name.clone()));
    let api: Api<ConfigMap> = Api::namespaced(parts.client.clone(), &parts.namespace);
    let mut follower = Follower {
        shared: Arc::clone(&parts.shared),
        handle: parts.handle,
        notices: parts.notices,
        descriptors: node_registry::descriptors(),
        client: parts.client,
        api,
        name,
        namespace: parts.namespace,
        object: None,
        before: None,
        warned: BTreeSet::new(),
        measured: BTreeSet::new(),
        read_at: Instant::now(),
        refused: String::new(),
        is_ahead: false,
        may_not_remove: false,
    };
    let mut pause = AGAIN_AFTER;
    loop {
        let ended = match follower.list().await {
            Ok(version) => {
                let begun = Instant::now();
                let ended = follower.watch(version).await;
                if begun.elapsed() >= WATCHED_FOR {
                    pause = AGAIN_AFTER;
                    if matches!(ended, Ended::Over) {
                        // As each does: nothing is missed meanwhile for longer than a list takes.
                        continue;
                    }
                }
                ended
            }
            Err(why) => {
                follower.could_not_read(&why);
                why
            }
        };
        follower.warn_of_refusal(&ended);
        follower.sleep(pause).await;
        pause = (pause * 2).min(AGAIN_AFTER_MAX);
    }
}

enum Ended {
    /// The watch is over, as each is after a while, or no answer has come.
    Over,
    Failed(Box<kube::Error>),
}

impl Ended {
    /// Why the API server refuses, where it does.
    fn refusal(&self) -> Option<String> {
        match self {
            Self::Failed(why) => match &**why {
                kube::Error::Api(status) if matches!(status.code, 401 | 403) => {
                    Some(status.message.clone())
                }
                _ => None,
            },
            Self::Over => None,
        }
    }

    fn in_words(&self) -> String {
        match self {
            Self::Over => format!("no answer within {} s", REQUEST_MAX.as_secs()),
            Self::Failed(why) => causes(&**why),
        }
    }
}

struct Follower {
    shared: Arc<Shared>,
    handle: Handle,
    notices: Option<mpsc::Sender<Notice>>,
    descriptors: Vec<Descriptor>,
    client: Client,
    api: Api<ConfigMap>,
    namespace: String,
    name: String,
    /// The object, as it was seen last.
    object: Option<ConfigMap>,
    /// What held when that was compared with the clock last; `None` before the first time.
    before: Option<BTreeMap<Target, Order>>,
    /// Faults that were logged. Bound: the fields of one object.
    warned: BTreeSet<String>,
    /// Controllers whose orders are in the metrics.
    measured: BTreeSet<u16>,
    /// When the object was read last; before the first time the start.
    read_at: Instant,
    /// The refusal that was logged.
    refused: String,
    /// Whether it was logged that the own clock is ahead.
    is_ahead: bool,
    /// Whether it was logged that expired orders can't be removed.
    may_not_remove: bool,
}

impl Follower {
    fn fields(&self) -> String {
        format!("metadata.name={}", self.name)
    }

    async fn list(&mut self) -> Result<String, Ended> {
        let params = ListParams::default().fields(&self.fields());
        let list = match tokio::time::timeout(REQUEST_MAX, self.api.list(&params)).await {
            Ok(list) => list.map_err(|why| Ended::Failed(why.into()))?,
            Err(_) => return Err(Ended::Over),
        };
        let version = list.metadata.resource_version.unwrap_or_default();
        self.saw(list.items.into_iter().next()).await;
        Ok(version)
    }

    /// The object could not be read: that counts once it was refused, or has lasted for a while.
    fn could_not_read(&self, why: &Ended) {
        if why.refusal().is_none() && self.read_at.elapsed() < UNREAD_AFTER {
            return;
        }
        let steering = &self.shared.steering;
        steering.read().unread = Some(why.in_words());
        steering.awaited.store(false, Ordering::Release);
        self.shared.metrics.steering_unread(true);
    }

    /// Logs a refusal, once.
    fn warn_of_refusal(&mut self, ended: &Ended) {
        let Some(why) = ended.refusal().filter(|why| *why != self.refused) else {
            return;
        };
        tracing::warn!(
            namespace = self.namespace,
            name = self.name,
            why,
            "the ConfigMap of the fleet's orders can't be read, so pauses, settings and drains have no effect here or a \
             late one: bind the Role manifold:fleet of deploy/rbac"
        );
        self.refused = why;
    }

    async fn watch(&mut self, version: String) -> Ended {
        let params = WatchParams::default()
            .fields(&self.fields())
            .timeout(WATCH_SECONDS);
        let end = Instant::now() + WATCH_MAX;
        let api = self.api.clone();
        let begins = tokio::time::timeout(REQUEST_MAX, api.watch(&params, &version));
        let mut events = match begins.await {
            Ok(Ok(events)) => events.boxed_local(),
            Ok(Err(why)) => return Ended::Failed(why.into()),
            Err(_) => return Ended::Over,
        };
        loop {
            let event = tokio::select! {
                biased;
                event = events.next() => event,
                () = tokio::time::sleep(self.due_in()) => {
                    self.compare().await;
                    continue;
                }
                () = tokio::time::sleep_until(end) => return Ended::Over,
            };
            match event {
                None => return Ended::Over,
                Some(Err(why)) => return Ended::Failed(why.into()),
                Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                    self.saw(Some(object)).await;
                }
                Some(Ok(WatchEvent::Deleted(_))) => self.saw(None).await,
                Some(Ok(WatchEvent::Bookmark(_))) => {}
                Some(Ok(WatchEvent::Error(_))) => return Ended::Over,
            }
        }
    }

    /// Waits; orders end meanwhile.
    async fn sleep(&mut self, pause: Duration) {
        let end = Instant::now() + pause;
        loop {
            let due = Instant::now() + self.due_in();
            tokio::time::sleep_until(due.min(end)).await;
            if due >= end {
                return;
            }
            self.compare().await;
        }
    }

    /// In how long time alone changes something.
    fn due_in(&self) -> Duration {
        let orders = self.shared.steering.orders.load();
        if orders.all.is_empty() {
            return NEVER;
        }
        let now = self.shared.clock.now();
        let next = orders.next_change(now).map(|at| at.duration_since(now));
        let next = next.and_then(|next| Duration::try_from(next).ok());
        // Clocks and timers have another grain.
        next.map_or(COMPARED_EVERY, |next| next + Duration::from_millis(1))
            .min(COMPARED_EVERY)
    }

    async fn saw(&mut self, object: Option<ConfigMap>) {
        let data = object.as_ref().and_then(|object| object.data.clone());
        let orders = Orders::read(&data.unwrap_or_default(), &|name| {
            canonical(&self.descriptors, name)
        });
        let faults: BTreeSet<String> = orders.faults_in_words().into_iter().collect();
        for fault in faults.difference(&self.warned) {
            tracing::warn!(
                "an order to the fleet has no effect: field {fault}: correct or remove it in the ConfigMap {}/{}, or use \
                 kubectl manifold",
                self.namespace,
                self.name
            );
        }
        self.warned = faults;
        let metrics = &self.shared.metrics;
        metrics.steering_faults(orders.faults_count());
        metrics.steering_unread(false);
        let version = object.as_ref().and_then(ConfigMap::resource_version);
        let was = std::mem::replace(
            &mut *self.shared.steering.read(),
            Read {
                version: version.unwrap_or_default(),
                unread: None,
            },
        );
        if was.unread.is_some() {
            tracing::info!("the fleet's orders can be read");
        }
        self.read_at = Instant::now();
        self.refused.clear();
        self.object = object;
        self.shared.steering.orders.store(Arc::new(orders));
        self.compare().await;
        // Not before they are in force.
        self.shared.steering.awaited.store(false, Ordering::Release);
    }

    /// Compares the orders with the clock, and carries out what has changed.
    async fn compare(&mut self) {
        let orders = self.shared.steering.orders.load_full();
        let now = self.shared.clock.now();
        let after = orders.in_force(now);
        let known = self.before.take();
        let changed = changes(known.as_ref().unwrap_or(&BTreeMap::new()), &after, now);
        if !changed.is_empty() {
            let generation = self.shared.steering.in_force().generation + 1;
            let shared = Arc::clone(&self.shared);
            let place = |name: &str| {
                let unit = shared.units.iter().find(|unit| unit.name() == name);
                unit.map(|unit| unit.index)
            };
            let in_force = InForce::of(&after, &place, generation);
            self.measure(&in_force);
            self.set(&in_force);
            let moves = in_force.moves().clone();
            self.shared.steering.set(in_force);
            self.handle.pin(moves).await;
            for change in &changed {
                tracing::info!("{}", change.event().1);
            }
            // What holds at the start of the process was said before.
            let said = match known.is_some() {
                true => changed.clone(),
                false => Vec::new(),
            };
            for notice in said.iter().filter_map(|change| self.notice(change)) {
                // With the queue full the log has it alone.
                let _full = self.notices.as_ref().map(|pod| pod.try_send(notice));
            }
            self.notify(said);
            self.scan(&changed);
        }
        self.before = Some(held(&orders, now));
        self.prune(&orders, now).await;
    }

    fn measure(&mut self, in_force: &InForce) {
        let metrics = &self.shared.metrics;
        metrics.drains(in_force.drains());
        metrics.moves(in_force.moves().len());
        for unit in &self.shared.units {
            let (whole, keys) = in_force.counts(unit.index);
            let values =
                Setting::ALL.map(|setting| (setting, in_force.setting(unit.index, setting)));
            if whole + keys > 0 || values.iter().any(|(_, value)| value.is_some()) {
                self.measured.insert(unit.index);
            } else if !self.measured.remove(&unit.index) {
                continue;
            }
            metrics.pauses(unit.name(), whole, keys);
            for (setting, value) in values {
                let value = value.map_or(0.0, Amount::value);
                metrics.setting(unit.name(), setting.name(), value);
            }
        }
    }

    /// Gives controllers the workers and the rates of writes that are set, and all others what is configured.
    fn set(&self, in_force: &InForce) {
        let mut rates = BTreeMap::new();
        for unit in &self.shared.units {
            let workers = in_force.setting(unit.index, Setting::Workers);
            unit.workers.order(workers.map(Amount::count));
            if let Some(qps) = in_force.setting(unit.index, Setting::Qps) {
                rates.insert(unit.name(), qps.value());
            }
        }
        self.shared.writer.order_rates(&rates);
    }

    /// What is said at the own Pod of this replica's own drain, and of a range that is to come here.
    fn notice(&self, change: &Change) -> Option<Notice> {
        let is_own = match &change.order.target {
            Target::Replica(name) => *name == self.shared.replica,
            Target::Range(_) => change.order.to.as_ref() == Some(&self.shared.replica),
            Target::Controller(_) | Target::Key { .. } | Target::Setting { .. } => false,
        };
        let (reason, message) = is_own.then(|| change.event())?;
        Some(Notice::normal(reason, message))
    }

    /// Has the ranges compare what waits there with the orders, and say at objects what has changed.
    fn notify(&self, changes: Vec<Change>) {
        let object = self.object.as_ref().map(|object| ObjectRef {
            api_version: Str::interned("v1"),
            kind: Str::interned("ConfigMap"),
            key: Key::new(self.namespace.as_str(), self.name.as_str()),
            uid: object.uid().unwrap_or_default().as_str().into(),
            resource_version: object
                .resource_version()
                .and_then(|version| version.parse().ok())
                .unwrap_or(0),
        });
        let steered = Steered(Arc::new((changes, object)));
        for slot in (0..self.shared.ranges).filter_map(|range| self.shared.slot(range)) {
            // Where its mailbox is full, each of the messages in it has the orders read too.
            if slot.addr.try_send(steered.clone()).is_err() {
                let sent = slot.addr.send(steered.clone());
                self.shared.aside.spawn(async move {
                    let _gone = sent.await;
                });
            }
        }
    }

    /// Enqueues all keys of controllers that are paused no more, in ranges that had no room for what waits.
    fn scan(&self, changes: &[Change]) {
        let in_force = self.shared.steering.in_force();
        let ended = changes
            .iter()
            .filter(|change| matches!(change.what, What::Lifted | What::Expires));
        for change in ended {
            let controller = match &change.order.target {
                Target::Controller(controller) | Target::Key { controller, .. } => controller,
                Target::Replica(_) | Target::Setting { .. } | Target::Range(_) => continue,
            };
            let unit = self
                .shared
                .units
                .iter()
                .find(|unit| unit.name() == controller);
            let Some(index) = unit.map(|unit| unit.index) else {
                continue;
            };
            if in_force.pauses_all_of(index) {
                continue;
            }
            let ranges: BTreeSet<u16> = (0..self.shared.ranges)
                .filter(|range| {
                    let slot = self.shared.slot(*range);
                    slot.is_some_and(|slot| slot.stats.unscanned.remove(index))
                })
                .collect();
            if !ranges.is_empty() {
                let shared = Arc::clone(&self.shared);
                self.shared.aside.run(Duration::ZERO, move || {
                    let of_it = |unit: &Unit| unit.index == index;
                    shared.wake_all(&of_it, &|range| ranges.contains(&range));
                });
            }
        }
    }

    /// Removes what has expired, and drains of starts that are over: once for the fleet.
    async fn prune(&mut self, orders: &Orders, now: Timestamp) {
        if orders.all.is_empty() {
            return;
        }
        let view = self.handle.view();
        if !view.own.contains_key(&SPEAKER) {
            return;
        }
        let mut fields: BTreeSet<&str> = orders.expired(now).into_iter().collect();
        if !fields.is_empty() {
            // A clock that is ahead must not end orders for all.
            let Some(servers) = self.server_time().await else {
                return;
            };
            let expired = orders.expired(servers);
            fields.retain(|field| expired.contains(field));
            let is_ahead = fields.len() < orders.expired(now).len();
            if is_ahead && !self.is_ahead {
                tracing::warn!(
                    own = %now,
                    %servers,
                    "the clock is ahead of the API server's: orders end here before their time"
                );
            }
            self.is_ahead = is_ahead;
        }
        for (field, order) in &orders.all {
            if let Target::Replica(name) = &order.target {
                let member = view.members.iter().find(|member| member.name == *name);
                let is_another = member.is_some_and(|member| {
                    !member.incarnation.is_empty()
                        && order.incarnation.as_ref() != Some(&member.incarnation)
                });
                if is_another {
                    fields.insert(field);
                }
            }
        }
        let object = self.object.as_ref();
        let version = object.and_then(|object| object.metadata.resource_version.as_deref());
        if fields.is_empty() || version.is_none() {
            return;
        }
        let patch = Patch::Merge(Edit::removing(fields).patch(version));
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let sent = self.api.patch(&self.name, &params, &patch);
        match tokio::time::timeout(REMOVAL_MAX, sent).await {
            // In the second case somebody has changed it meanwhile: the watch brings that.
            Ok(Ok(_)) => {}
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => {}
            Ok(Err(kube::Error::Api(status))) if status.code == 403 => {
                if !std::mem::replace(&mut self.may_not_remove, true) {
                    tracing::warn!(
                        why = status.message,
                        "expired orders can't be removed: bind the Role manifold:fleet of deploy/rbac"
                    );
                }
            }
            Ok(Err(why)) => {
                tracing::debug!(why = causes(&why), "expired orders were not removed");
            }
            Err(_) => tracing::debug!("expired orders were not removed: no answer"),
        }
    }

    /// The API server's clock; `None` where it does not say.
    async fn server_time(&self) -> Option<Timestamp> {
        let request = http::Request::get("/version").body(Body::empty()).ok()?;
        let sent = self.client.send(request);
        let answer = tokio::time::timeout(REMOVAL_MAX, sent).await.ok()?.ok()?;
        let date = answer.headers().get(http::header::DATE)?.to_str().ok()?;
        let date = jiff::fmt::rfc2822::parse(date).ok()?;
        Some(date.timestamp())
    }
}

/// Controllers of a range of which more keys wait than it remembers. Bound: the controllers.
#[derive(Debug, Default)]
pub struct Unscanned(Mutex<BTreeSet<u16>>);

impl Unscanned {
    /// All keys of this controller are to be enqueued when it is paused no more.
    pub fn insert(&self, unit: u16) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(unit);
    }

    /// They are about to be; whether they had to.
    pub fn remove(&self, unit: u16) -> bool {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&unit)
    }
}
