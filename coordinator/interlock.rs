//! What drives the fleet's hold of the manager's Lease: requests, clocks, the fence. It decides nothing.
//!
//! It runs beside the renewal, on its thread and with its client.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use coordinator_core::{
    Hold, HoldWrite, Holds, Interlock, InterlockConfig, InterlockEffect, InterlockInput, NoAnswer,
    OwnLease, OwnPhase, Record, Version, Written,
};
use futures::{
    FutureExt as _, StreamExt as _, TryStreamExt as _,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        coordination::v1::{Lease, LeaseSpec},
        core::v1::{Event, EventSource, ObjectReference},
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, Time as WallTime},
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams, WatchEvent, WatchParams},
};
use tokio::sync::watch;

use crate::{
    Fence, RangeHost,
    config::{Config, InterlockOptions},
    lease::{FIELD_MANAGER, Kind, LeaseError, Leases, WATCH_SECONDS, version_of},
};

/// How often it is asked whether the node's caches are complete, and whether what was in flight has ended.
const POLL: Duration = Duration::from_millis(20);

/// Shortly after the server ends a watch it is ended here: its connection may be dead.
const WATCH_MAX: Duration = Duration::from_secs(300);

/// A watch that has failed is tried again after so long; meanwhile the Lease is read.
const WATCH_AGAIN: Duration = Duration::from_secs(10);

/// Own renewals that are remembered, by which a watch's events are dated.
const RENEWALS_MAX: usize = 32;

/// Objects that are remembered: what is written is one of them with another spec.
const OBJECTS_MAX: usize = 4;

/// `source.component` of the events, and the name of the manager that they speak for.
const COMPONENT: &str = "kube-controller-manager";

/// The hold, for people too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HoldState {
    /// As the machine has it.
    pub hold: Hold,
    /// Why the Lease could not be read or written last; `None` where it could.
    pub trouble: Option<String>,
}

/// The hold of one replica, and what it needs.
pub(crate) struct Keeper {
    options: InterlockOptions,
    identity: String,
    machine: Interlock,
    fence: Arc<Fence>,
    host: Arc<dyn RangeHost>,
    own: watch::Receiver<OwnLease>,
    publish: watch::Sender<HoldState>,
}

/// One that has read nothing yet, and where it publishes the hold.
pub(crate) fn keeper(
    config: &Config,
    options: &InterlockOptions,
    fence: &Arc<Fence>,
    host: &Arc<dyn RangeHost>,
    own: watch::Receiver<OwnLease>,
) -> (Keeper, watch::Receiver<HoldState>) {
    // Nothing goes out before the fleet holds the Lease.
    fence.set_hold(None, None);
    let machine = Interlock::new(InterlockConfig {
        identity: config.fleet_identity(),
        lease_duration: Duration::from_secs(options.lease_duration.as_secs()),
        renew_deadline: options.renew_deadline,
        retry_period: options.retry_period,
        late_write_max: config.late_write_max(),
        stagger: stagger(&config.replica_name, options.retry_period),
    });
    let (publish, state) = watch::channel(HoldState::default());
    let keeper = Keeper {
        options: options.clone(),
        identity: config.fleet_identity(),
        machine,
        fence: Arc::clone(fence),
        host: Arc::clone(host),
        own,
        publish,
    };
    (keeper, state)
}

/// Up to half a retry period, by the replica's name.
fn stagger(replica: &str, period: Duration) -> Duration {
    const PARTS: u16 = 256;
    let part = coordinator_core::range_of(replica.as_bytes(), PARTS);
    period / 2 * u32::from(part) / u32::from(PARTS)
}

impl Keeper {
    /// Keeps the hold for as long as it is polled.
    pub(crate) async fn run(mut self, client: Client, leases: Leases) {
        let lock = Lock {
            api: Api::namespaced(client.clone(), &self.options.namespace),
            events: Api::namespaced(client, &self.options.namespace),
            name: self.options.name.clone(),
            deadline: self.options.retry_period,
            leases,
        };
        let mut objects = Objects::default();
        let mut renewals = Renewals::default();
        let mut watch: Option<BoxStream<'static, Result<Lease, LeaseError>>> = None;
        let mut watch_at = Duration::ZERO;
        let mut request = None;
        let mut trouble: Option<String> = None;
        let mut write_failed = false;
        let mut ready = false;
        let mut input = InterlockInput::Tick;
        loop {
            ready |= self.host.ready();
            let own = self.own.borrow_and_update().clone();
            renewals.landed(own.landed);
            let member = (ready && own.phase == OwnPhase::Held).then_some(own.incarnation);
            let released = own.phase == OwnPhase::Released;
            let leaves = released && self.fence.is_still();
            let inputs = [
                Some(input),
                Some(InterlockInput::Member(member)),
                leaves.then_some(InterlockInput::Leave),
            ];
            for input in inputs.into_iter().flatten() {
                let effect = self.machine.step(self.fence.now(), input);
                request = match effect {
                    Some(effect) => Some(self.perform(&lock, effect, &objects)),
                    None => request,
                };
            }
            self.say(trouble.clone());
            if watch.is_none()
                && self.fence.now() >= watch_at
                && let Some(newest) = objects.newest()
            {
                watch = Some(lock.watch(version_of(newest)));
            }
            let wake = self.machine.wake_at();
            // What sends no notification is polled.
            let poll = (!ready || (released && !leaves)).then_some(POLL);
            let rest = wake.map(|at| at.saturating_sub(self.fence.now()));
            let sleep = async {
                match [rest, poll].into_iter().flatten().min() {
                    Some(rest) => tokio::time::sleep(rest.max(Duration::from_millis(1))).await,
                    None => std::future::pending().await,
                }
            };
            // In this order, so that a run can be repeated.
            input = tokio::select! {
                biased;
                changed = self.own.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    InterlockInput::Tick
                }
                done = async {
                    match request.as_mut() {
                        Some(request) => request.await,
                        None => std::future::pending().await,
                    }
                } => {
                    let Done { input, lease, trouble: met } = done;
                    request = None;
                    // A read that succeeds says nothing of a write that is refused.
                    let wrote = matches!(input, InterlockInput::Written { .. });
                    if wrote || met.is_some() || !write_failed {
                        write_failed = wrote && met.is_some();
                        trouble = met;
                    }
                    objects.saw(lease);
                    input
                }
                event = async {
                    match watch.as_mut() {
                        Some(watch) => watch.next().await,
                        None => std::future::pending().await,
                    }
                } => match event {
                    Some(Ok(lease)) => {
                        let record = decode(&lease);
                        let after = renewals.before(record.version);
                        objects.saw(Some(lease));
                        InterlockInput::Watched { record, after }
                    }
                    ended => {
                        if let Some(Err(error)) = ended {
                            tracing::debug!(%error, "the manager's Lease can't be watched, it is read");
                        }
                        watch = None;
                        watch_at = self.fence.now() + WATCH_AGAIN;
                        InterlockInput::Tick
                    }
                },
                () = sleep => InterlockInput::Tick,
            };
        }
    }

    fn perform(
        &self,
        lock: &Lock,
        effect: InterlockEffect,
        objects: &Objects,
    ) -> BoxFuture<'static, Done> {
        let (lock, started) = (lock.clone(), self.fence.now());
        match effect {
            InterlockEffect::Read => lock.read(started).boxed(),
            InterlockEffect::CountMembers => lock.count_members().boxed(),
            InterlockEffect::Write { what, before } => {
                let wall = Timestamp::now().as_microsecond();
                let record = self.machine.record(what, before.as_ref(), wall);
                let identity = self.identity.clone();
                let object = before.and_then(|before| objects.of(before.version));
                async move { lock.hold(started, what, record, identity, object).await }.boxed()
            }
        }
    }

    /// The fence first: a subscriber that reads the end of a hold finds it closed.
    fn say(&self, trouble: Option<String>) {
        let hold = self.machine.hold(self.fence.now());
        self.fence.set_hold(hold.term, hold.open_until);
        let state = HoldState { hold, trouble };
        let before = self.publish.borrow().clone();
        if before == state {
            return;
        }
        let lease = || format!("{}/{}", self.options.namespace, self.options.name);
        if before.trouble != state.trouble
            && let Some(why) = &state.trouble
        {
            tracing::warn!(lease = lease(), why, "the manager's Lease can't be kept");
        }
        if before.hold.holds != state.hold.holds {
            match &state.hold.holds {
                Holds::Other(holder) => tracing::info!(
                    lease = lease(),
                    holder,
                    "standing by: another manager holds the Lease; nothing is written until it is released or expires"
                ),
                Holds::Fleet => tracing::info!(lease = lease(), "the fleet holds the Lease"),
                Holds::Nobody | Holds::Unknown => {}
            }
        }
        let closed =
            |state: &HoldState| state.hold.holds == Holds::Fleet && state.hold.open_until.is_none();
        if before.hold.open_until.is_some() && closed(&state) && !state.hold.left {
            tracing::warn!(
                lease = lease(),
                "no renewal of the Lease was seen within the deadline; nothing is written until one is"
            );
        }
        self.publish.send_replace(state);
    }
}

/// The last objects that were seen: the machine decides which of them is replaced.
#[derive(Default)]
struct Objects(VecDeque<Lease>);

impl Objects {
    fn saw(&mut self, lease: Option<Lease>) {
        let Some(lease) = lease else { return };
        self.0.truncate(OBJECTS_MAX - 1);
        self.0.push_front(lease);
    }

    fn newest(&self) -> Option<&Lease> {
        self.0.front()
    }

    /// Of this version; where it is forgotten the newest, which the API server then refuses to replace.
    fn of(&self, version: Version) -> Option<Lease> {
        let exact = self.0.iter().find(|lease| version_of(lease) == version);
        exact.or(self.newest()).cloned()
    }
}

/// The last renewals of the replica Lease: their starts, and versions that it has had since.
#[derive(Default)]
struct Renewals(VecDeque<(Duration, Version)>);

impl Renewals {
    fn landed(&mut self, landed: Option<(Duration, Version)>) {
        let Some(landed) = landed.filter(|landed| self.0.front() != Some(landed)) else {
            return;
        };
        self.0.truncate(RENEWALS_MAX - 1);
        self.0.push_front(landed);
    }

    /// When the newest was started that is stored at a lower version. Both are Leases, so they are in one
    /// store and their versions have one order.
    fn before(&self, version: Version) -> Option<Duration> {
        let lower = self.0.iter().filter(|(_, stored)| *stored < version);
        lower.map(|(started, _)| *started).max()
    }
}

/// What came of a request.
struct Done {
    input: InterlockInput,
    /// The object as read or written; `None` where there is none.
    lease: Option<Lease>,
    trouble: Option<String>,
}

/// The Lease in the API.
#[derive(Clone)]
struct Lock {
    api: Api<Lease>,
    events: Api<Event>,
    name: String,
    deadline: Duration,
    leases: Leases,
}

impl Lock {
    async fn read(self, started: Duration) -> Done {
        let lease = self.in_time(self.api.get_opt(&self.name)).await;
        let trouble = lease.as_ref().err().map(|error| why("read", error));
        let found = lease.as_ref().map(|lease| lease.as_ref().map(decode));
        Done {
            input: InterlockInput::Read {
                started,
                result: found.map_err(|_| NoAnswer),
            },
            lease: lease.ok().flatten(),
            trouble,
        }
    }

    /// The Lease from a version on. Its role names it, so it is selected by its name.
    fn watch(&self, version: Version) -> BoxStream<'static, Result<Lease, LeaseError>> {
        let params = WatchParams::default()
            .fields(&format!("metadata.name={}", self.name))
            .timeout(WATCH_SECONDS);
        let lock = self.clone();
        let begun = async move {
            let version = version.to_string();
            let events = lock.in_time(lock.api.watch(&params, &version)).await?;
            Ok::<_, LeaseError>(events.map(|event| match event? {
                WatchEvent::Error(status) => Err(LeaseError::Api(status)),
                event => Ok(event),
            }))
        };
        let name = self.name.clone();
        stream::once(begun)
            .try_flatten()
            .try_filter_map(move |event| {
                let lease = match event {
                    WatchEvent::Added(lease) | WatchEvent::Modified(lease) => Some(lease),
                    // What is gone is found by a read, after the patience with a silent watch.
                    _ => None,
                };
                let is_it = |lease: &Lease| lease.metadata.name.as_ref() == Some(&name);
                std::future::ready(Ok(lease.filter(is_it)))
            })
            .take_until(tokio::time::sleep(WATCH_MAX))
            .boxed()
    }

    async fn count_members(self) -> Done {
        let listed = self.leases.list(Kind::Replica, self.deadline).await;
        let trouble = listed.as_ref().err();
        let trouble = trouble.map(|error| format!("its members can't be counted: {error}"));
        let held = listed.map(|listed| {
            let replicas = listed.replicas.iter();
            replicas.filter(|lease| lease.incarnation.is_some()).count()
        });
        Done {
            input: InterlockInput::Members(held.map_err(|_| NoAnswer)),
            lease: None,
            trouble,
        }
    }

    async fn hold(
        self,
        started: Duration,
        what: HoldWrite,
        record: Record,
        identity: String,
        object: Option<Lease>,
    ) -> Done {
        let creates = object.is_none();
        let (result, lease, trouble) = match self.write(&record, object).await {
            Ok(lease) => {
                match what {
                    HoldWrite::Acquire => {
                        tokio::spawn(
                            self.record_event(&lease, format!("{identity} became leader")),
                        );
                    }
                    // The process ends after this.
                    HoldWrite::Release => {
                        self.record_event(&lease, format!("{identity} stopped leading"))
                            .await;
                    }
                    HoldWrite::Renew => {}
                }
                (Written::Done(decode(&lease)), Some(lease), None)
            }
            // A creation is refused with 404 where there is no such namespace.
            Err(LeaseError::Api(status))
                if status.code == 409 || (status.code == 404 && !creates) =>
            {
                (Written::Conflict(None), None, None)
            }
            Err(error) => (Written::Unknown, None, Some(why("written", &error))),
        };
        Done {
            input: InterlockInput::Written { started, result },
            lease,
            trouble,
        }
    }

    /// As upstream: a PUT on the version read, or a POST, which the role of every manager allows for this
    /// name.
    async fn write(&self, record: &Record, object: Option<Lease>) -> Result<Lease, LeaseError> {
        let params = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let spec = Some(encode(record));
        match object {
            Some(lease) => {
                let lease = Lease { spec, ..lease };
                let replace = self.api.replace(&self.name, &params, &lease);
                self.in_time(replace).await
            }
            None => {
                let lease = Lease {
                    metadata: ObjectMeta {
                        name: Some(self.name.clone()),
                        ..ObjectMeta::default()
                    },
                    spec,
                };
                self.in_time(self.api.create(&params, &lease)).await
            }
        }
    }

    async fn in_time<T>(
        &self,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, LeaseError> {
        match tokio::time::timeout(self.deadline, request).await {
            Ok(result) => Ok(result?),
            Err(_) => Err(LeaseError::Slow(self.deadline)),
        }
    }

    /// The event at the Lease that users of upstream's leader election know.
    fn record_event(
        &self,
        lease: &Lease,
        message: String,
    ) -> impl Future<Output = ()> + Send + use<> {
        let now = Timestamp::now();
        let namespace = lease.metadata.namespace.clone();
        let event = Event {
            metadata: ObjectMeta {
                name: Some(format!("{}.{:x}", self.name, now.as_nanosecond())),
                namespace: namespace.clone(),
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference {
                api_version: Some("coordination.k8s.io/v1".to_owned()),
                kind: Some("Lease".to_owned()),
                name: Some(self.name.clone()),
                namespace,
                uid: lease.metadata.uid.clone(),
                resource_version: lease.metadata.resource_version.clone(),
                ..ObjectReference::default()
            },
            type_: Some("Normal".to_owned()),
            reason: Some("LeaderElection".to_owned()),
            message: Some(message),
            count: Some(1),
            first_timestamp: Some(WallTime(now)),
            last_timestamp: Some(WallTime(now)),
            source: Some(EventSource {
                component: Some(COMPONENT.to_owned()),
                ..EventSource::default()
            }),
            reporting_component: Some(COMPONENT.to_owned()),
            ..Event::default()
        };
        let (events, deadline) = (self.events.clone(), self.deadline);
        async move {
            let params = PostParams::default();
            match tokio::time::timeout(deadline, events.create(&params, &event)).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => tracing::warn!(%error, "the event at the Lease was not recorded"),
                Err(_) => tracing::warn!("the event at the Lease was not recorded in time"),
            }
        }
    }
}

/// In words, with the remedy where one is known.
fn why(what: &str, error: &LeaseError) -> String {
    match error {
        LeaseError::Api(status) if status.code == 403 => format!(
            "it can't be {what}: {}: apply deploy/rbac, or give another --leader-elect-resource-name",
            status.message
        ),
        error => format!("it can't be {what}: {error}"),
    }
}

fn encode(record: &Record) -> LeaseSpec {
    let time = |at: i64| Timestamp::from_microsecond(at).ok().map(MicroTime);
    LeaseSpec {
        // As upstream releases: an identity without letters.
        holder_identity: Some(record.holder.clone().unwrap_or_default()),
        lease_duration_seconds: i32::try_from(record.duration.as_secs()).ok(),
        acquire_time: time(record.acquired),
        renew_time: time(record.renewed),
        lease_transitions: i32::try_from(record.transitions).ok(),
        ..LeaseSpec::default()
    }
}

/// Whatever is missing or makes no sense counts as nothing, as upstream takes it.
fn decode(lease: &Lease) -> Record {
    let spec = lease.spec.clone().unwrap_or_default();
    let time = |at: Option<MicroTime>| at.map_or(0, |at| at.0.as_microsecond());
    let version: Version = version_of(lease);
    Record {
        version,
        holder: spec.holder_identity.filter(|holder| !holder.is_empty()),
        duration: spec
            .lease_duration_seconds
            .and_then(|seconds| u64::try_from(seconds).ok())
            .map_or(Duration::ZERO, Duration::from_secs),
        acquired: time(spec.acquire_time),
        renewed: time(spec.renew_time),
        transitions: spec
            .lease_transitions
            .and_then(|count| u32::try_from(count).ok())
            .unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_of_any_shape_is_a_record_and_a_record_is_a_lease() {
        let lease = |spec: serde_json::Value| -> Lease {
            let metadata = serde_json::json!({"resourceVersion": "17"});
            serde_json::from_value(serde_json::json!({"metadata": metadata, "spec": spec})).unwrap()
        };
        let empty = decode(&Lease::default());
        assert_eq!((empty.version, empty.holder), (0, None));
        let garbage = decode(&lease(serde_json::json!({
            "holderIdentity": "", "leaseDurationSeconds": -3, "leaseTransitions": -1
        })));
        assert_eq!(
            (
                garbage.version,
                garbage.holder,
                garbage.duration,
                garbage.transitions
            ),
            (17, None, Duration::ZERO, 0)
        );
        let record = Record {
            version: 17,
            holder: Some("manifold:kube-system/manifold".to_owned()),
            duration: Duration::from_secs(15),
            acquired: 1_764_000_000_000_001,
            renewed: 1_764_000_002_000_000,
            transitions: 4,
        };
        let text = serde_json::to_value(encode(&record)).unwrap();
        assert_eq!(decode(&lease(text)), record, "microseconds survive");
        let released = Record {
            holder: None,
            ..record
        };
        let text = serde_json::to_value(encode(&released)).unwrap();
        assert_eq!(text["holderIdentity"], "", "as upstream writes it");
        assert_eq!(decode(&lease(text)), released);
    }

    #[test]
    fn an_event_is_dated_by_the_newest_renewal_that_is_stored_before_it() {
        let second = Duration::from_secs;
        let mut renewals = Renewals::default();
        assert_eq!(renewals.before(9), None);
        for (started, version) in [(1, 10), (2, 14), (3, 19)] {
            renewals.landed(Some((second(started), version)));
            renewals.landed(None);
        }
        for (version, after) in [
            (10, None),
            (11, Some(1)),
            (14, Some(1)),
            (16, Some(2)),
            (99, Some(3)),
        ] {
            assert_eq!(renewals.before(version), after.map(second), "{version}");
        }
        for started in 4..100 {
            renewals.landed(Some((second(started), 100 + started)));
        }
        assert_eq!(renewals.0.len(), RENEWALS_MAX);
        assert_eq!(renewals.before(150), None, "those before are forgotten");
    }

    #[test]
    fn replicas_do_not_all_renew_at_the_same_time() {
        let period = Duration::from_secs(2);
        let parts: Vec<Duration> = (0..3)
            .map(|ordinal| stagger(&format!("manifold-{ordinal}"), period))
            .collect();
        assert!(parts.iter().all(|part| *part < period / 2), "{parts:?}");
        assert!(parts[0] != parts[1] && parts[1] != parts[2], "{parts:?}");
    }
}
