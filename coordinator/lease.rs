//! Lease objects: how the core's Leases are written in the API, and how they are read and swapped.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use coordinator_core::{
    Crashes, Deaths, Follows, Holder, Loads, PlanLease, Question, RangeId, RangeLease,
    ReplicaLease, Replies, Status, Version, Work, Written, parse_dead_owners,
};
use futures::{Stream, StreamExt};
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client,
    api::{
        DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions,
        WatchEvent, WatchParams,
    },
};

/// The label of every Lease of a fleet; its value is the fleet's name.
pub const LABEL_FLEET: &str = "manifold.dev/fleet";
/// `replica` or `range`: a list of replica Leases, once a second, must not carry every range Lease.
const LABEL_KIND: &str = "manifold.dev/lease";
const PEER_ADDRESS: &str = "manifold.dev/peer-address";
/// The key by which peers know the replica, as `<incarnation> sha256:<hex>`. Builds from before keep it when
/// they write a Lease, so it counts for the incarnation that it names alone.
pub(crate) const PEER_PIN: &str = "manifold.dev/peer-pin";
const VERSION: &str = "manifold.dev/version";
const READY: &str = "manifold.dev/ready";
const DRAINING: &str = "manifold.dev/draining";
const STALE: &str = "manifold.dev/stale";
const RANGES: &str = "manifold.dev/ranges";
/// How many ranges it takes at most; empty for a full share.
const SHARE: &str = "manifold.dev/share";
/// When its last lives ended that did not leave: Unix seconds, separated by commas.
const CRASHES: &str = "manifold.dev/crashes";
/// `true` where each write of the replica carries its incarnation, so that the API server can refuse them by
/// it.
const FENCED: &str = "manifold.dev/fenced";
/// Fingerprints of what every replica must have the same of, as `name=hash` with commas between them.
const FINGERPRINTS: &str = "manifold.dev/fingerprints";
/// Names of the members that do not answer this replica, separated by commas.
const UNREACHABLE: &str = "manifold.dev/unreachable";
/// What the replica would write, as a class of the node's on a logarithmic scale; empty or absent where the
/// build says nothing.
const DEMAND: &str = "manifold.dev/demand";
/// The pod that the replica runs in, as `<namespace>/<name>`; empty where it runs in none.
const POD: &str = "manifold.dev/pod";
/// What it asks all members, as `<incarnation> <number> <ranges>`; empty without a question.
const QUESTION: &str = "manifold.dev/question";
/// What it knows of the questions of others, as `<incarnation> <holder>=<number>,… <ranges held>
/// <range>=<epoch>,…`; the incarnation alone where nobody asks, empty or absent where the build reads none.
const REPLIES: &str = "manifold.dev/replies";
const INCARNATION: &str = "manifold.dev/incarnation";
/// Incarnations that have lost the Lease by compare-and-swap, separated by commas.
const ENDED: &str = "manifold.dev/ended";

/// The keys that were in flight for a while when it was renewed, one a line.
const WORKING: &str = "manifold.dev/working";
/// The last deaths of the replica, each with the keys that were in flight then.
const DEATHS: &str = "manifold.dev/deaths";
/// What the replica lets its placement depend on beside members and ranges: `pins`, `plans`.
const FOLLOWS: &str = "manifold.dev/follows";
/// The work of its ranges, as [`Loads`] is written.
const LOADS: &str = "manifold.dev/loads";
/// In the plan's Lease: the plan.
const PLAN: &str = "manifold.dev/plan";
/// In a range Lease: the last owners that died, `<name>_<incarnation>` separated by commas.
const LAST_OWNERS: &str = "manifold.dev/last-owners";

pub(crate) const FIELD_MANAGER: &str = "manifold-coordinator";

/// The name of the plan's Lease, after the fleet's.
const PLAN_SUFFIX: &str = "-plan";

/// The server ends a watch after so long; the loop continues at its version.
pub(crate) const WATCH_SECONDS: u32 = 290;

/// A Lease of the fleet.
#[allow(
    clippy::large_enum_variant,
    reason = "moved once, into the view that keeps it"
)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Liveness of a replica.
    Replica(ReplicaLease),
    /// Ownership of a range.
    Range(RangeLease),
    /// The plan of placement.
    Plan(PlanLease),
}

/// A step of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Is(Version, Option<Found>),
    Gone(Version, Option<Found>),
    Bookmark(Version),
}

/// A list of Leases.
pub(crate) struct Listed {
    pub version: Version,
    pub replicas: Vec<ReplicaLease>,
    pub ranges: Vec<RangeLease>,
    pub plan: Option<PlanLease>,
}

/// What is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Replica,
    Range,
    Both,
}

/// A request for Leases that failed.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The API server said no.
    #[error("{0}")]
    Api(#[source] Box<kube::core::Status>),
    /// No answer in time.
    #[error("no answer within {0:?}")]
    Slow(Duration),
    /// The watch's start is too old.
    #[error("the watch has fallen behind")]
    Behind,
    /// Anything between here and there.
    #[error("{0}")]
    Client(#[source] Box<kube::Error>),
}

impl From<kube::Error> for LeaseError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Api(status),
            other => Self::Client(Box::new(other)),
        }
    }
}

/// The fleet's Leases.
#[derive(Clone)]
pub(crate) struct Leases {
    api: Api<Lease>,
    fleet: String,
    lease_duration: Duration,
    /// No request takes longer.
    deadline: Duration,
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases")
            .field("fleet", &self.fleet)
            .finish_non_exhaustive()
    }
}

impl Leases {
    pub(crate) fn new(
        client: Client,
        namespace: &str,
        fleet: &str,
        lease_duration: Duration,
        deadline: Duration,
    ) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            fleet: fleet.to_owned(),
            lease_duration,
            deadline,
        }
    }

    pub(crate) fn deadline(&self) -> Duration {
        self.deadline
    }

    pub(crate) async fn list(&self, kind: Kind, deadline: Duration) -> Result<Listed, LeaseError> {
        // Without a resourceVersion the list is consistent: not older than its start.
        let params = ListParams::default().labels(&self.selector(kind));
        let list = self.in_time(deadline, self.api.list(&params)).await?;
        let version = list
            .metadata
            .resource_version
            .as_deref()
            .and_then(|text| text.parse().ok())
            .unwrap_or(0);
        let mut listed = Listed {
            version,
            replicas: Vec::new(),
            ranges: Vec::new(),
            plan: None,
        };
        for lease in &list.items {
            match self.decode(lease) {
                Some(Found::Replica(replica)) => listed.replicas.push(replica),
                Some(Found::Range(range)) => listed.ranges.push(range),
                Some(Found::Plan(plan)) => listed.plan = Some(plan),
                None => {}
            }
        }
        Ok(listed)
    }

    pub(crate) async fn replica(&self, name: &str) -> Result<Option<ReplicaLease>, LeaseError> {
        let lease = self
            .in_time(self.deadline, self.api.get_opt(&self.replica_name(name)))
            .await?;
        Ok(match lease.as_ref().and_then(|lease| self.decode(lease)) {
            Some(Found::Replica(replica)) => Some(replica),
            _ => None,
        })
    }

    pub(crate) async fn range(&self, range: RangeId) -> Result<Option<RangeLease>, LeaseError> {
        let lease = self
            .in_time(self.deadline, self.api.get_opt(&self.range_name(range)))
            .await?;
        Ok(match lease.as_ref().and_then(|lease| self.decode(lease)) {
            Some(Found::Range(range)) => Some(range),
            _ => None,
        })
    }

    /// Writes a replica Lease that still has this version; `None` creates it. `acquired` is shown to people
    /// only.
    pub(crate) async fn write_replica(
        &self,
        version: Option<Version>,
        lease: &ReplicaLease,
        acquired: Option<MicroTime>,
    ) -> Written<ReplicaLease> {
        let object = self.encode_replica(version, lease, acquired);
        let written = self.swap(version.is_none(), object).await;
        map(written, |lease| match self.decode(lease) {
            Some(Found::Replica(replica)) => Some(replica),
            _ => None,
        })
    }

    /// Deletes a replica Lease that still has this version; false where it has another, or is gone.
    pub(crate) async fn delete_replica(
        &self,
        name: &str,
        version: Version,
    ) -> Result<bool, LeaseError> {
        let params = DeleteParams::default().preconditions(Preconditions {
            uid: None,
            resource_version: Some(version.to_string()),
        });
        self.delete(&self.replica_name(name), &params).await
    }

    /// Deletes a range Lease that still has this version; false where it has another, or is gone.
    pub(crate) async fn delete_range(
        &self,
        range: RangeId,
        version: Version,
    ) -> Result<bool, LeaseError> {
        let params = DeleteParams::default().preconditions(Preconditions {
            uid: None,
            resource_version: Some(version.to_string()),
        });
        self.delete(&self.range_name(range), &params).await
    }

    async fn delete(&self, name: &str, params: &DeleteParams) -> Result<bool, LeaseError> {
        match self
            .in_time(self.deadline, self.api.delete(name, params))
            .await
        {
            Ok(_) => Ok(true),
            Err(LeaseError::Api(status)) if matches!(status.code, 404 | 409) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Writes a range Lease that still has this version; `None` creates it.
    pub(crate) async fn write_range(
        &self,
        version: Option<Version>,
        lease: &RangeLease,
    ) -> Written<RangeLease> {
        let object = self.encode_range(version, lease);
        let written = self.swap(version.is_none(), object).await;
        map(written, |lease| match self.decode(lease) {
            Some(Found::Range(range)) => Some(range),
            _ => None,
        })
    }

    /// Writes the plan's Lease if it still has this version; `None` creates it.
    pub(crate) async fn write_plan(
        &self,
        version: Option<Version>,
        lease: &PlanLease,
    ) -> Written<PlanLease> {
        let object = self.encode_plan(version, lease);
        let written = self.swap(version.is_none(), object).await;
        map(written, |lease| match self.decode(lease) {
            Some(Found::Plan(plan)) => Some(plan),
            _ => None,
        })
    }

    pub(crate) async fn watch(
        &self,
        version: Version,
    ) -> Result<impl Stream<Item = Result<Step, LeaseError>> + use<>, LeaseError> {
        let params = WatchParams::default()
            .labels(&self.selector(Kind::Both))
            .timeout(WATCH_SECONDS);
        let stream = self
            .in_time(self.deadline, self.api.watch(&params, &version.to_string()))
            .await?;
        let leases = self.clone();
        Ok(stream.map(move |event| {
            Ok(match event? {
                WatchEvent::Added(lease) | WatchEvent::Modified(lease) => {
                    Step::Is(version_of(&lease), leases.decode(&lease))
                }
                WatchEvent::Deleted(lease) => Step::Gone(version_of(&lease), leases.decode(&lease)),
                WatchEvent::Bookmark(mark) => {
                    Step::Bookmark(mark.metadata.resource_version.parse().unwrap_or(0))
                }
                WatchEvent::Error(status) if status.code == 410 => return Err(LeaseError::Behind),
                WatchEvent::Error(status) => return Err(LeaseError::Api(status)),
            })
        }))
    }

    async fn swap(&self, create: bool, object: Lease) -> Written<Lease> {
        let name = object.metadata.name.clone().unwrap_or_default();
        let result = if create {
            let params = PostParams {
                field_manager: Some(FIELD_MANAGER.to_owned()),
                ..PostParams::default()
            };
            self.in_time(self.deadline, self.api.create(&params, &object))
                .await
        } else {
            // No PUT: to a Lease that is gone it would create it again, whatever resourceVersion it carries,
            // and a compare-and-swap must not raise the dead. A patch with a resourceVersion is refused in
            // both cases.
            let params = PatchParams {
                field_manager: Some(FIELD_MANAGER.to_owned()),
                ..PatchParams::default()
            };
            self.in_time(
                self.deadline,
                self.api.patch(&name, &params, &Patch::Merge(&object)),
            )
            .await
        };
        match result {
            Ok(lease) => Written::Done(lease),
            Err(LeaseError::Api(status)) if status.code == 404 && !create => {
                Written::Conflict(None)
            }
            Err(LeaseError::Api(status)) if status.code == 409 => {
                match self.in_time(self.deadline, self.api.get_opt(&name)).await {
                    Ok(lease) => Written::Conflict(lease),
                    Err(error) => {
                        tracing::warn!(lease = name, %error, "reading a Lease after a conflict failed");
                        Written::Unknown
                    }
                }
            }
            Err(error) => {
                tracing::warn!(lease = name, %error, "writing a Lease failed");
                Written::Unknown
            }
        }
    }

    async fn in_time<T>(
        &self,
        deadline: Duration,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, LeaseError> {
        match tokio::time::timeout(deadline, request).await {
            Ok(result) => Ok(result?),
            Err(_) => Err(LeaseError::Slow(deadline)),
        }
    }

    fn selector(&self, kind: Kind) -> String {
        let fleet = &self.fleet;
        match kind {
            Kind::Both => format!("{LABEL_FLEET}={fleet}"),
            Kind::Replica => format!("{LABEL_FLEET}={fleet},{LABEL_KIND}=replica"),
            Kind::Range => format!("{LABEL_FLEET}={fleet},{LABEL_KIND}=range"),
        }
    }

    fn replica_name(&self, name: &str) -> String {
        format!("{}-replica-{name}", self.fleet)
    }

    fn plan_name(&self) -> String {
        format!("{}{PLAN_SUFFIX}", self.fleet)
    }

    fn range_name(&self, range: RangeId) -> String {
        format!("{}-range-{range:03}", self.fleet)
    }

    fn metadata(&self, name: String, kind: &str, version: Option<Version>) -> ObjectMeta {
        let labels = [(LABEL_FLEET, self.fleet.as_str()), (LABEL_KIND, kind)];
        ObjectMeta {
            name: Some(name),
            labels: Some(
                labels
                    .map(|(key, value)| (key.to_owned(), value.to_owned()))
                    .into(),
            ),
            resource_version: version.map(|version| version.to_string()),
            ..ObjectMeta::default()
        }
    }

    pub(crate) fn encode_replica(
        &self,
        version: Option<Version>,
        lease: &ReplicaLease,
        acquired: Option<MicroTime>,
    ) -> Lease {
        let mut metadata = self.metadata(self.replica_name(&lease.name), "replica", version);
        let status = &lease.status;
        let mut annotations = BTreeMap::from([
            (PEER_ADDRESS.to_owned(), status.address.clone()),
            (
                PEER_PIN.to_owned(),
                match (status.pin, &lease.incarnation) {
                    (Some(pin), Some(incarnation)) => format!("{incarnation} {pin}"),
                    _ => String::new(),
                },
            ),
            (VERSION.to_owned(), status.build.clone()),
            (READY.to_owned(), status.ready.to_string()),
            (DRAINING.to_owned(), status.draining.to_string()),
            (STALE.to_owned(), status.stale.to_string()),
            (RANGES.to_owned(), status.ranges.to_string()),
            (
                SHARE.to_owned(),
                status
                    .share
                    .map(|share| share.to_string())
                    .unwrap_or_default(),
            ),
            (CRASHES.to_owned(), status.crashes.to_string()),
            (FENCED.to_owned(), status.server_fenced.to_string()),
            (WORKING.to_owned(), Work::write_all(&lease.working)),
            (DEATHS.to_owned(), lease.deaths.to_string()),
            (FINGERPRINTS.to_owned(), status.fingerprints.to_string()),
            (UNREACHABLE.to_owned(), status.unreachable.to_string()),
            (
                DEMAND.to_owned(),
                status
                    .demand
                    .map(|class| class.to_string())
                    .unwrap_or_default(),
            ),
            (POD.to_owned(), status.pod.to_string()),
            (QUESTION.to_owned(), text_of(status.question.as_deref())),
            (REPLIES.to_owned(), text_of(status.replies.as_deref())),
            (FOLLOWS.to_owned(), status.follows.to_string()),
            (LOADS.to_owned(), lease.loads.to_string()),
        ]);
        // A merge patch keeps what it does not name, so nothing is left out that may have been there.
        annotations.insert(
            INCARNATION.to_owned(),
            lease.incarnation.clone().unwrap_or_default(),
        );
        if !lease.ended.is_empty() {
            annotations.insert(ENDED.to_owned(), lease.ended.join(","));
        }
        metadata.annotations = Some(annotations);
        let spec = LeaseSpec {
            holder_identity: Some(
                lease
                    .holder()
                    .map(|holder| holder.to_string())
                    .unwrap_or_default(),
            ),
            lease_duration_seconds: Some(
                i32::try_from(self.lease_duration.as_secs().max(1)).unwrap_or(i32::MAX),
            ),
            // Never identical to the write before, so that each one gives a new version. Nobody decides by
            // it.
            renew_time: Some(MicroTime(jiff::Timestamp::now())),
            acquire_time: acquired,
            ..LeaseSpec::default()
        };
        Lease {
            metadata,
            spec: Some(spec),
        }
    }

    pub(crate) fn encode_range(&self, version: Option<Version>, lease: &RangeLease) -> Lease {
        let mut metadata = self.metadata(self.range_name(lease.range), "range", version);
        if !lease.dead.is_empty() {
            let owners: Vec<String> = lease.dead.iter().map(ToString::to_string).collect();
            metadata.annotations = Some([(LAST_OWNERS.to_owned(), owners.join(","))].into());
        }
        let spec = LeaseSpec {
            holder_identity: Some(
                lease
                    .holder
                    .as_ref()
                    .map(ToString::to_string)
                    .unwrap_or_default(),
            ),
            // The core writes none above `EPOCH_END`.
            lease_transitions: Some(i32::try_from(lease.epoch).unwrap_or(i32::MAX)),
            acquire_time: Some(MicroTime(jiff::Timestamp::now())),
            ..LeaseSpec::default()
        };
        Lease {
            metadata,
            spec: Some(spec),
        }
    }

    pub(crate) fn encode_plan(&self, version: Option<Version>, lease: &PlanLease) -> Lease {
        let mut metadata = self.metadata(self.plan_name(), "plan", version);
        metadata.annotations = Some([(PLAN.to_owned(), lease.text.clone())].into());
        let spec = LeaseSpec {
            holder_identity: Some(lease.planner.clone()),
            // The core counts in an int32.
            lease_transitions: Some(i32::try_from(lease.number).unwrap_or(i32::MAX)),
            acquire_time: Some(MicroTime(jiff::Timestamp::now())),
            ..LeaseSpec::default()
        };
        Lease {
            metadata,
            spec: Some(spec),
        }
    }

    pub(crate) fn decode(&self, lease: &Lease) -> Option<Found> {
        decode(&self.fleet, lease)
    }
}

/// What a Lease object of a fleet says; `None` for one that is not of this fleet or has no such name.
pub fn decode(fleet: &str, lease: &Lease) -> Option<Found> {
    let name = lease.metadata.name.as_deref()?;
    let rest = name.strip_prefix(fleet)?;
    let spec = lease.spec.as_ref();
    let identity = spec
        .and_then(|spec| spec.holder_identity.as_deref())
        .filter(|identity| !identity.is_empty());
    let version = version_of(lease);
    let annotation = |key: &str| {
        lease
            .metadata
            .annotations
            .as_ref()
            .and_then(|annotations| annotations.get(key))
            .map_or("", String::as_str)
    };
    if let Some(range) = rest.strip_prefix("-range-") {
        let epoch = spec.and_then(|spec| spec.lease_transitions).unwrap_or(0);
        return Some(Found::Range(RangeLease {
            range: range.parse().ok()?,
            version,
            // An identity of another shape names nobody: the core asks around before it takes such a
            // range.
            holder: identity.and_then(|identity| identity.parse().ok()),
            epoch: u64::try_from(epoch).unwrap_or(0),
            dead: parse_dead_owners(annotation(LAST_OWNERS)),
        }));
    }
    if rest == PLAN_SUFFIX {
        let number = spec.and_then(|spec| spec.lease_transitions).unwrap_or(0);
        return Some(Found::Plan(PlanLease {
            version,
            number: u64::try_from(number).unwrap_or(0),
            text: annotation(PLAN).to_owned(),
            planner: identity.unwrap_or_default().to_owned(),
        }));
    }
    let name = rest.strip_prefix("-replica-")?;
    // A foreign identity counts as some incarnation that has to expire.
    let incarnation = identity.map(|identity| match identity.parse::<Holder>() {
        Ok(holder) if holder.name == name => holder.incarnation,
        _ => identity.to_owned(),
    });
    Some(Found::Replica(ReplicaLease {
        name: name.to_owned(),
        version,
        status: Status {
            address: annotation(PEER_ADDRESS).to_owned(),
            pin: annotation(PEER_PIN)
                .split_once(' ')
                .filter(|(of, _)| Some(*of) == incarnation.as_deref())
                .and_then(|(_, pin)| pin.parse().ok()),
            build: annotation(VERSION).to_owned(),
            ready: annotation(READY) == "true",
            draining: annotation(DRAINING) == "true",
            stale: annotation(STALE) == "true",
            ranges: annotation(RANGES).parse().unwrap_or(0),
            // None at all is what nobody asks for.
            share: annotation(SHARE).parse().ok().filter(|share| *share > 0),
            crashes: Crashes::parse(annotation(CRASHES)),
            server_fenced: annotation(FENCED) == "true",
            fingerprints: annotation(FINGERPRINTS).into(),
            unreachable: annotation(UNREACHABLE).into(),
            demand: annotation(DEMAND).parse().ok(),
            pod: annotation(POD).into(),
            question: Question::parse(annotation(QUESTION)).map(Arc::new),
            replies: Replies::parse(annotation(REPLIES)).map(Arc::new),
            follows: Follows::parse(annotation(FOLLOWS)),
        },
        incarnation,
        ended: annotation(ENDED)
            .split(',')
            .filter(|ended| !ended.is_empty())
            .map(str::to_owned)
            .collect(),
        working: Work::parse_all(annotation(WORKING)),
        loads: Arc::new(Loads::parse(annotation(LOADS))),
        deaths: Deaths::parse(annotation(DEATHS)),
    }))
}

fn text_of(content: Option<&impl fmt::Display>) -> String {
    content.map(ToString::to_string).unwrap_or_default()
}

/// A Lease without a readable version counts as older than any.
pub(crate) fn version_of(lease: &Lease) -> Version {
    lease
        .metadata
        .resource_version
        .as_deref()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}

fn map<L>(written: Written<Lease>, decode: impl Fn(&Lease) -> Option<L>) -> Written<L> {
    match written {
        Written::Done(lease) => decode(&lease).map_or(Written::Unknown, Written::Done),
        Written::Conflict(lease) => Written::Conflict(lease.as_ref().and_then(decode)),
        Written::Unknown => Written::Unknown,
    }
}
