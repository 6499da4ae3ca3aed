//! What must hold all along, judged by what the server holds: who wrote under which epoch, and whether
//! anybody asked for what was made or deleted.
//!
//! `clearing.rs`, `scaling.rs`, `nodes.rs`, `protection.rs`, `claims.rs`, `devices.rs`, `storage.rs` and
//! `identity.rs` judge those who delete for others, those who set others' sizes, those who decide about
//! nodes, those who keep what is used, those who reserve devices and evict from them, those who bind volumes,
//! and those who sign and grant.
//!
//! A controller acts on what it sees, and may see late: a child is beyond what its parent wanted only if that
//! was wanted at no time that the writer's watch may have shown within [`ON_THE_WAY`]. For requests that were
//! given up or whose process stood still, whatever was ever wanted counts. A child that a process makes whose
//! epoch is over, which the server's fence would refuse, counts for the owner after it from when its watch
//! reports of it.

use std::{borrow::Cow, collections::BTreeMap, fmt, sync::Arc, time::Duration};

use controllers_kit::{Key, Propagation, Reader, testing};
use coordinator::{EPOCH_END, RangeId};
use kubernetes_proto::{
    AnyObject, Object, Resource,
    apps::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet},
    batch::{CronJob, Job},
    cast,
    core::{Node, Pod, ReplicationController},
    resource::ResourceClaim,
    storage::VolumeAttachment,
};
use tokio::time::Instant;

use crate::{
    attachments::Attachments,
    claims,
    clearing::Clearing,
    devices::Devices,
    hub::{Seen, Sent},
    identity::Identity,
    names::Names,
    nodes::Nodes,
    protection::Protection,
    scaling::Scaling,
    server::{Change, Log, Server},
    storage::Storage,
};

/// From what a watch brings to the arrival of the writes that follow from it: longer than a process is
/// suspended still.
const ON_THE_WAY: Duration = Duration::from_secs(20);
/// From a report that an owner has ended to the next one: 2 s for what it had sent, and the move.
const BELIEVED: Duration = Duration::from_secs(4);
/// How long ago a pod may have been taken away by somebody else for a controller not to know of it.
const UNSEEN: Duration = Duration::from_secs(150);

/// Who wrote, as the User-Agent says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Writer {
    /// The replica's name.
    pub replica: String,
    /// The range.
    pub range: RangeId,
    /// The epoch.
    pub epoch: u64,
    /// The controller.
    pub controller: String,
}

impl Writer {
    /// From `manifold/0.1.0 (replica=…; range=…; epoch=…; controller=…)`.
    pub fn parse(user_agent: &str) -> Self {
        let mut writer = Self::default();
        let inner = user_agent
            .split_once('(')
            .and_then(|(_, rest)| rest.rsplit_once(')'))
            .map_or("", |(inner, _)| inner);
        for (name, value) in inner.split("; ").filter_map(|part| part.split_once('=')) {
            match name {
                "replica" => writer.replica = value.to_owned(),
                "range" => writer.range = value.parse().unwrap_or(RangeId::MAX),
                "epoch" => writer.epoch = value.parse().unwrap_or(0),
                "controller" => writer.controller = value.to_owned(),
                _ => {}
            }
        }
        writer
    }
}

impl fmt::Display for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}@{}", self.controller, self.range, self.epoch)
    }
}

/// A writer and what it sees.
pub struct By<'a> {
    /// Who.
    pub writer: &'a Writer,
    /// How far its watches have come; `None` where it may have acted on whatever was before.
    pub shown: Option<&'a BTreeMap<Log, Vec<(Instant, Instant)>>>,
    /// When it was sent.
    pub sent: Instant,
    /// Whether its epoch is over: what it does is made good by the new owner.
    pub stale: bool,
}

impl By<'_> {
    /// Whether the writer's watch had reported what happened to a resource at an instant when it wrote.
    pub(crate) fn had_seen(&self, resource: &'static Resource, at: Instant) -> bool {
        let reported = self.shown.and_then(|shown| shown.get(&Log::Of(resource)));
        reported
            .into_iter()
            .flatten()
            .any(|(shown, until)| *shown <= self.sent && *until >= at)
    }
}

/// What is thought of a write's epoch.
pub enum Verdict {
    /// All is well.
    Fine,
    /// Of an older epoch, by a process that was stopped between its check and the send: the server's fence is
    /// against that; here the preconditions must hold.
    Stale,
    /// It must not have been.
    Wrong(String),
}

/// What a parent wants.
#[derive(Clone, Copy, Debug)]
struct Want {
    least: i64,
    most: i64,
}

/// All that is remembered for judging.
pub struct Judge {
    /// Each range's epochs: since when, which, whose.
    ranges: BTreeMap<RangeId, Vec<(Instant, u64, String)>>,
    /// The epochs of Leases that somebody has deleted by hand: until one is made again, nobody else than the
    /// last of their holders may own.
    deleted: BTreeMap<RangeId, Vec<(Instant, u64, String)>>,
    wants: BTreeMap<String, Vec<(Instant, Want)>>,
    /// When pods of an owner were taken away by somebody else than its controller.
    taken: BTreeMap<String, Vec<Instant>>,
    /// When each child was made that a process made whose epoch was over, by its uid.
    late: BTreeMap<String, Instant>,
    /// The claims to devices among them: nobody makes good that an entry has two, and they go with their pod.
    late_claims: Vec<Key>,
    /// And the pods: one that came after its Job had all its completions stays, as upstream leaves it.
    late_pods: Vec<Key>,
    /// Of attached volumes.
    pub attachments: Attachments,
    clearing: Clearing,
    /// Of devices with taints.
    pub devices: Devices,
    identity: Identity,
    names: Names,
    nodes: Nodes,
    protection: Protection,
    /// Of autoscaling.
    pub scaling: Scaling,
    storage: Storage,
}

impl Judge {
    /// Of a cluster as it is.
    pub fn new(server: &Server) -> Self {
        let mut judge = Self {
            ranges: BTreeMap::new(),
            deleted: BTreeMap::new(),
            wants: BTreeMap::new(),
            taken: BTreeMap::new(),
            late: BTreeMap::new(),
            late_claims: Vec::new(),
            late_pods: Vec::new(),
            attachments: Attachments::default(),
            clearing: Clearing::new(server),
            devices: Devices::new(server),
            identity: Identity::new(server),
            names: Names::default(),
            nodes: Nodes::default(),
            protection: Protection::new(server),
            scaling: Scaling::default(),
            storage: Storage::new(server),
        };
        for object in server.world.objects() {
            judge.want(object);
            let there = Change {
                old: None,
                new: Some(Arc::clone(object)),
            };
            judge.nodes.after(server, &there, None);
        }
        judge
    }

    /// Somebody is about to set the epoch of a range back by hand: it begins again, as one does that was
    /// deleted.
    pub fn set_back(&mut self, range: RangeId) {
        if let Some(known) = self.ranges.remove(&range) {
            self.deleted.insert(range, known);
        }
    }

    /// Examines the range Leases; what has changed, in words.
    pub fn leases_changed(&mut self, server: &Server) -> Vec<String> {
        let mut lines = Vec::new();
        // One that somebody deletes by hand begins again, at a lower epoch if nobody is left who remembers.
        let deleted = &mut self.deleted;
        self.ranges.retain(|range, known| {
            let ending = format!("-range-{range:03}");
            let is_there = server.leases().any(|(name, _)| name.ends_with(&ending));
            if !known.is_empty() && !is_there {
                deleted.insert(*range, std::mem::take(known));
            }
            is_there
        });
        for (name, lease) in server.leases() {
            let Some(range) = name
                .rsplit_once("-range-")
                .and_then(|(_, number)| number.parse().ok())
            else {
                continue;
            };
            let epoch = lease["spec"]["leaseTransitions"].as_u64().unwrap_or(0);
            let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
            // Set by hand: the Lease says nothing until replicas have deleted it and made it again.
            if epoch >= EPOCH_END {
                continue;
            }
            let known = self.ranges.entry(range).or_default();
            if known
                .last()
                .is_none_or(|(_, last, whose)| *last != epoch || whose != holder)
            {
                lines.push(format!("range {range} epoch {epoch} is {holder}'s"));
                known.push((Instant::now(), epoch, holder.to_owned()));
            }
        }
        lines
    }

    /// Judges a write's epoch.
    pub fn fence(&self, replicas: &BTreeMap<usize, Seen>, sent: &Sent, by: &Writer) -> Verdict {
        let none = Vec::new();
        let epochs = self.ranges.get(&by.range).unwrap_or(&none);
        // An owner that writes over what hands have edited has a higher epoch before it knows.
        let own = epochs.iter().find(|(_, epoch, _)| *epoch == by.epoch);
        let own = own.map(|(_, _, holder)| holder);
        let newer = epochs
            .iter()
            .find(|(_, epoch, holder)| *epoch > by.epoch && own != Some(holder));
        // One that makes again what somebody has deleted by hand has owned it all the time: its requests on
        // the way name the epoch before.
        let deleted = self.deleted.get(&by.range).unwrap_or(&none);
        let made_again = |holder: &str| {
            let before = deleted.last();
            before.is_some_and(|(_, epoch, before)| *epoch == by.epoch && before == holder)
        };
        if let Some((since, epoch, holder)) = newer.filter(|(_, _, holder)| !made_again(holder)) {
            // A process that runs and was said to have ended is given 2 s from there on, not from the end of
            // its fence: what was on its way then is the server's fence's to refuse.
            let seen = replicas.get(&sent.replica);
            let misjudged = seen
                .and_then(|seen| seen.misjudged)
                .is_some_and(|(from, until)| (from..=until + BELIEVED).contains(since));
            // While it is paused, it can't give up what it had sent before.
            let is_paused =
                seen.is_some_and(|seen| seen.paused_until.is_some()) && sent.at <= *since;
            if sent.held || ((sent.aborted || is_paused) && misjudged) {
                return Verdict::Stale;
            }
            if sent.at > *since {
                return Verdict::Wrong(format!(
                    "{} sent a write ({by}) after epoch {epoch} of {holder} had begun",
                    by.replica
                ));
            }
            if !sent.aborted {
                return Verdict::Wrong(format!(
                    "{} waits for a write ({by}) while epoch {epoch} of {holder} has begun",
                    by.replica
                ));
            }
            return Verdict::Fine;
        }
        // A later epoch had begun, and its Lease was deleted by hand since; or this one's was, and another
        // has begun again.
        let others = epochs
            .last()
            .is_some_and(|(_, _, holder)| !made_again(holder));
        let superseded = |epoch: u64| epoch > by.epoch || (epoch == by.epoch && others);
        let last = deleted.last();
        if sent.held && last.is_some_and(|(_, epoch, _)| superseded(*epoch)) {
            return Verdict::Stale;
        }
        // It was on its way when the later one began, and nobody waits for it.
        let later = deleted.iter().find(|(_, epoch, _)| *epoch > by.epoch);
        if sent.aborted && later.is_some_and(|(since, _, _)| sent.at <= *since) {
            return Verdict::Fine;
        }
        match epochs.last() {
            Some((_, _, holder)) if made_again(holder) => {}
            Some((_, epoch, holder)) if *epoch == by.epoch || own == Some(holder) => {
                if !holder.starts_with(&format!("{}_", by.replica)) {
                    return Verdict::Wrong(format!(
                        "{} writes ({by}), but that epoch is {holder}'s",
                        by.replica
                    ));
                }
            }
            None if last.is_some_and(|(_, epoch, holder)| {
                *epoch == by.epoch && holder.starts_with(&format!("{}_", by.replica))
            }) => {}
            last => {
                return Verdict::Wrong(format!(
                    "{} writes ({by}), but the Lease says {last:?}",
                    by.replica
                ));
            }
        }
        for (number, seen) in replicas {
            let other = *number != sent.replica && seen.alive && seen.paused_until.is_none();
            if let Some(fence) = seen
                .fence
                .as_ref()
                .filter(|_| other && !sent.aborted && !sent.held)
                && let Some(epoch) = fence.epoch(by.range)
                && fence.check(by.range, epoch).is_ok()
            {
                return Verdict::Wrong(format!(
                    "two open fences for range {}: {} writes ({by}), r-{number} holds it by epoch {epoch}",
                    by.range, by.replica
                ));
            }
        }
        Verdict::Fine
    }

    fn want(&mut self, object: &AnyObject) {
        let Some(want) = want_of(object) else { return };
        self.wants
            .entry(object.metadata().uid.to_string())
            .or_default()
            .push((Instant::now(), want));
    }

    /// What an owner may be thought to want by somebody who writes now.
    fn wanted(&self, server: &Server, owner: &Owner, by: &By<'_>) -> Want {
        let all = self.wants.get(&owner.uid).map_or(&[][..], Vec::as_slice);
        let mut want = Want {
            least: i64::MAX,
            most: 0,
        };
        let mut join = |other: &Want| {
            want.least = want.least.min(other.least);
            want.most = want.most.max(other.most);
        };
        // The state that the watch had shown so long ago, and all that came after it.
        let since = by
            .shown
            .zip(owner.resource())
            .and_then(|(shown, resource)| {
                let shown = shown.get(&Log::Of(resource))?;
                let place = shown.partition_point(|(sent, _)| sent.elapsed() > ON_THE_WAY);
                Some(shown.get(place.checked_sub(1)?)?.1)
            });
        let first = since.map_or(0, |since| {
            all.partition_point(|(at, _)| *at <= since)
                .saturating_sub(1)
        });
        all[first.min(all.len())..]
            .iter()
            .for_each(|(_, want)| join(want));
        if owner.find(server).is_none() {
            // It has gone: nothing is wanted any more.
            want.least = 0;
        }
        want
    }

    /// The cluster without what the server's fence would have refused and nobody takes away. Whether a pod
    /// among it is too many shows at the end alone, so there may be two answers, of which one
    /// has to be right.
    pub fn without_late<'a>(
        &self,
        server: &'a Server,
    ) -> impl Iterator<Item = Cow<'a, testing::World>> {
        let mut world = Cow::Borrowed(&server.world);
        // One that its pod names since is no other's double.
        let unnamed = |claim: &&Key| !claims::is_named(&server.world, claim);
        let late_claims: Vec<Key> = self.late_claims.iter().filter(unnamed).cloned().collect();
        remove(&mut world, ResourceClaim::resource(), &late_claims);
        for attachment in self.storage.left_over(&server.world) {
            world.to_mut().vanish::<VolumeAttachment>(&attachment);
        }
        let without = (!self.late_pods.is_empty()).then(|| {
            let mut world = world.clone();
            uncount(&mut world, &self.late_pods);
            remove(&mut world, Pod::resource(), &self.late_pods);
            world
        });
        [Some(world), without].into_iter().flatten()
    }

    /// Judges what a write, or somebody else, has changed.
    pub fn after(
        &mut self,
        server: &Server,
        changes: &[Change],
        by: Option<&By<'_>>,
    ) -> Vec<String> {
        let mut wrong = Vec::new();
        for change in changes {
            if let Some(new) = &change.new {
                self.want(new);
            }
            if by.is_some_and(|by| by.stale) && claims::is_made(change) {
                self.late_claims
                    .push(Key::of_meta(change.object().metadata()));
            }
            let controller = by.map(|by| by.writer.controller.as_str());
            if by.is_some_and(|by| by.stale) {
                self.attachments.spoiled(server, change);
                self.storage.late(change);
            }
            wrong.extend(self.attachments.after(server, change, controller));
            wrong.extend(self.clearing.after(server, change, controller));
            wrong.extend(self.protection.after(server, change, controller));
            wrong.extend(claims::after(server, change, by));
            wrong.extend(self.storage.after(server, change, controller));
            wrong.extend(self.identity.after(server, change, by));
            wrong.extend(self.devices.after(server, change, by));
            let sent = by.map_or_else(Instant::now, |by| by.sent);
            wrong.extend(self.scaling.after(server, change, controller, sent));
            wrong.extend(self.nodes.after(server, change, by));
            wrong.extend(self.names.after(server, change, by));
            let was = change.old.as_ref().is_some_and(is_active);
            let is = change.new.as_ref().is_some_and(is_active);
            let Some(owner) = Owner::of(change.object()) else {
                continue;
            };
            match by {
                Some(by) if !was && is => {
                    if by.stale {
                        let meta = change.object().metadata();
                        self.late.insert(meta.uid.to_string(), Instant::now());
                        if owner.kind.as_str() == "Job" {
                            self.late_pods.push(Key::of_meta(meta));
                        }
                    }
                    wrong.extend(self.made(server, change.object(), &owner, by));
                }
                Some(by) if was && !is => {
                    wrong.extend(self.deleted(server, change, &owner, by));
                    // Another controller's deletion may not be known to the owner's.
                    if !owner.is_minded_by(&by.writer.controller) {
                        self.taken
                            .entry(owner.uid)
                            .or_default()
                            .push(Instant::now());
                    }
                }
                None if was && !is => {
                    self.taken
                        .entry(owner.uid)
                        .or_default()
                        .push(Instant::now());
                }
                _ => {}
            }
            if let (Some(by), Some(_)) = (by, cast::<ReplicaSet>(Arc::clone(change.object()))) {
                wrong.extend(self.scaled(server, change, by));
            }
        }
        wrong
    }

    fn taken_lately(&self, owner: &Owner) -> i64 {
        let since = |at: &&Instant| at.elapsed() < UNSEEN;
        let count = self
            .taken
            .get(&owner.uid)
            .map_or(0, |taken| taken.iter().filter(since).count());
        i64::try_from(count).unwrap_or(i64::MAX)
    }

    /// A child was made.
    fn made(
        &self,
        server: &Server,
        child: &AnyObject,
        owner: &Owner,
        by: &By<'_>,
    ) -> Option<String> {
        let mut siblings = owner.active(server, child.resource());
        // Nobody counts what came late from the owner before and was not reported yet.
        siblings.retain(|sibling| {
            let late = self.late.get(&*sibling.metadata().uid);
            late.is_none_or(|at| by.had_seen(child.resource(), *at))
        });
        let name = &child.metadata().name;
        let who = format!("{} made {:?} {name}", by.writer, child.resource());
        let pod = cast::<Pod>(Arc::clone(child));
        match owner.kind.as_str() {
            "ReplicaSet" | "ReplicationController" | "Job" => {
                let most = self.wanted(server, owner, by).most;
                let count = i64::try_from(siblings.len()).unwrap_or(i64::MAX);
                if count > most {
                    return Some(format!(
                        "{who}: {} has {count} active pods, wanted {most}",
                        owner.name
                    ));
                }
                let index = pod.as_ref().and_then(|pod| index(pod))?;
                let same = siblings
                    .iter()
                    .filter_map(|sibling| cast::<Pod>(Arc::clone(sibling)))
                    .filter(|sibling| self::index(sibling).as_ref() == Some(&index))
                    .count();
                (same > 1).then(|| format!("{who}: index {index} is there {same} times"))
            }
            "StatefulSet" if pod.is_some() => {
                let most = self.wanted(server, owner, by).most;
                let ordinal: i64 = name.rsplit_once('-')?.1.parse().ok()?;
                let same = siblings
                    .iter()
                    .filter(|sibling| sibling.metadata().name.ends_with(&format!("-{ordinal}")))
                    .count();
                if same > 1 {
                    return Some(format!("{who}: ordinal {ordinal} is there {same} times"));
                }
                (ordinal >= most).then(|| format!("{who}: {} wanted {most} pods", owner.name))
            }
            "DaemonSet" if pod.is_some() => {
                let node = pinned(pod.as_deref()?)?;
                let same = siblings
                    .iter()
                    .filter_map(|sibling| cast::<Pod>(Arc::clone(sibling)))
                    .filter(|sibling| pinned(sibling).as_ref() == Some(&node))
                    .count();
                (same > 1).then(|| format!("{who}: {same} pods of {} on {node}", owner.name))
            }
            "CronJob" => {
                let cron = cast::<CronJob>(owner.find(server)?)?;
                let policy = &cron.spec.as_ref()?.concurrency_policy;
                (policy == "Forbid" && siblings.len() > 1).then(|| {
                    format!(
                        "{who}: {} jobs of {} run at once, which it forbids",
                        siblings.len(),
                        owner.name
                    )
                })
            }
            _ => None,
        }
    }

    /// A child was deleted, or set going.
    fn deleted(
        &self,
        server: &Server,
        change: &Change,
        owner: &Owner,
        by: &By<'_>,
    ) -> Option<String> {
        let child = change.old.as_ref()?;
        let name = &child.metadata().name;
        let who = format!("{} deleted {:?} {name}", by.writer, child.resource());
        if !owner.is_minded_by(&by.writer.controller) {
            return None;
        }
        let parent = owner.find(server)?;
        if parent.metadata().is_terminating() {
            return None;
        }
        let before = i64::try_from(owner.active(server, child.resource()).len()).unwrap_or(0) + 1;
        let least = self.wanted(server, owner, by).least;
        let surplus = before + self.taken_lately(owner) > least;
        let nobody = |why: String| Some(format!("{who}, which nobody asked for: {why}"));
        let pod = cast::<Pod>(Arc::clone(child));
        match owner.kind.as_str() {
            "ReplicaSet" | "ReplicationController" if !surplus => nobody(format!(
                "{} has {before} active pods and wants {least}",
                owner.name
            )),
            "StatefulSet" if pod.is_some() => {
                let set = cast::<StatefulSet>(parent)?;
                let ordinal: i64 = name.rsplit_once('-')?.1.parse().ok()?;
                let revision = child
                    .metadata()
                    .label("controller-revision-hash")
                    .unwrap_or("");
                let status = set.status.as_ref()?;
                let settled = status.update_revision == status.current_revision
                    && status.observed_generation == Object::metadata(&*set).generation;
                let stale = !settled || revision != status.update_revision;
                if ordinal < least && !stale {
                    return nobody(format!(
                        "{} wants {least} pods of revision {revision}",
                        owner.name
                    ));
                }
                None
            }
            "DaemonSet" if pod.is_some() => {
                let node = pinned(pod.as_deref()?)?;
                let alone = !owner
                    .active(server, child.resource())
                    .iter()
                    .filter_map(|sibling| cast::<Pod>(Arc::clone(sibling)))
                    .any(|sibling| pinned(&sibling).as_ref() == Some(&node));
                let newest = Reader::list(
                    &server.world,
                    ControllerRevision::resource(),
                    Some(&owner.namespace),
                )
                .into_iter()
                .filter(|revision| Owner::of(revision).is_some_and(|of| of.uid == owner.uid))
                .filter_map(cast::<ControllerRevision>)
                .max_by_key(|revision| revision.revision)?;
                let hash = |object: &AnyObject| {
                    object
                        .metadata()
                        .label("controller-revision-hash")
                        .map(str::to_owned)
                };
                let newest: AnyObject = newest;
                let node = cast::<Node>(Reader::get(&server.world, Node::resource(), "", &node)?)?;
                let welcome = node.spec.as_ref().is_none_or(|spec| spec.taints.is_empty());
                let set = cast::<DaemonSet>(parent)?;
                let settled = set.status.as_ref().is_some_and(|status| {
                    status.observed_generation == Object::metadata(&*set).generation
                });
                (alone
                    && welcome
                    && settled
                    && hash(child) == hash(&newest)
                    && self.taken_lately(owner) == 0)
                    .then(|| {
                        format!(
                            "{who}, which nobody asked for: it is {}'s only one on its node",
                            owner.name
                        )
                    })
            }
            "Job" if pod.is_some() => {
                let job = cast::<Job>(parent)?;
                let status = job.status.clone().unwrap_or_default();
                let over = status.conditions.iter().any(|condition| {
                    matches!(
                        &*condition.r#type,
                        "Complete" | "Failed" | "FailureTarget" | "SuccessCriteriaMet"
                    ) && &*condition.status == "True"
                });
                let suspended = job
                    .spec
                    .as_ref()
                    .is_some_and(|spec| spec.suspend == Some(true));
                let left = job
                    .spec
                    .as_ref()
                    .and_then(|spec| spec.completions)
                    .map_or(i64::MAX, |all| i64::from(all) - i64::from(status.succeeded));
                (!over && !suspended && !surplus && before <= left)
                    .then(|| format!("{who}, which nobody asked for: {before} active of {least}"))
            }
            "CronJob" => {
                let cron = cast::<CronJob>(parent)?;
                let replaces = cron
                    .spec
                    .as_ref()
                    .is_some_and(|spec| spec.concurrency_policy == "Replace");
                // `was active` says that the Job was not over.
                (!replaces).then(|| format!("{who}, which nobody asked for: it runs"))
            }
            _ => None,
        }
    }

    /// A ReplicaSet of a Deployment was made or scaled.
    fn scaled(&self, server: &Server, change: &Change, by: &By<'_>) -> Option<String> {
        let owner = Owner::of(change.object()).filter(|owner| owner.kind == "Deployment")?;
        let size = |object: &AnyObject| {
            cast::<ReplicaSet>(Arc::clone(object))
                .and_then(|set| {
                    set.spec
                        .as_ref()
                        .map(|spec| i64::from(spec.replicas.unwrap_or(1)))
                })
                .unwrap_or(0)
        };
        let (old, new) = (
            change.old.as_ref().map_or(0, size),
            change.new.as_ref().map_or(0, size),
        );
        if new <= old {
            return None;
        }
        let sum: i64 = Reader::list(
            &server.world,
            ReplicaSet::resource(),
            Some(&owner.namespace),
        )
        .iter()
        .filter(|set| Owner::of(set).is_some_and(|of| of.uid == owner.uid))
        .map(size)
        .sum();
        let most = self.wanted(server, &owner, by).most;
        (sum > most).then(|| {
            format!(
                "{} scaled {} from {old} to {new}: {sum} pods of {} are wanted at once, {most} may be",
                by.writer,
                change.object().metadata().name,
                owner.name
            )
        })
    }
}

/// Who minds a child.
struct Owner {
    uid: String,
    kind: String,
    namespace: String,
    name: String,
}

impl Owner {
    fn of(object: &AnyObject) -> Option<Self> {
        let meta = object.metadata();
        let owner = meta.controller()?;
        Some(Self {
            uid: owner.uid.to_string(),
            kind: owner.kind.to_string(),
            namespace: meta.namespace.to_string(),
            name: owner.name.to_string(),
        })
    }

    fn resource(&self) -> Option<&'static Resource> {
        Some(match self.kind.as_str() {
            "ReplicaSet" => ReplicaSet::resource(),
            "ReplicationController" => ReplicationController::resource(),
            "Deployment" => Deployment::resource(),
            "StatefulSet" => StatefulSet::resource(),
            "DaemonSet" => DaemonSet::resource(),
            "Job" => Job::resource(),
            "CronJob" => CronJob::resource(),
            _ => return None,
        })
    }

    /// Whether a controller is the one that makes and deletes its children.
    fn is_minded_by(&self, controller: &str) -> bool {
        controller == format!("{}-controller", self.kind.to_lowercase())
    }

    fn find(&self, server: &Server) -> Option<AnyObject> {
        let key = Key::new(self.namespace.as_str(), self.name.as_str());
        Reader::get(&server.world, self.resource()?, &key.namespace, &key.name)
            .filter(|object| object.metadata().uid == *self.uid)
    }

    /// Its children that are at work.
    fn active(&self, server: &Server, resource: &'static Resource) -> Vec<AnyObject> {
        let mut children = Reader::list(&server.world, resource, Some(&self.namespace));
        children.retain(|child| {
            is_active(child) && Self::of(child).is_some_and(|owner| owner.uid == self.uid)
        });
        children
    }
}

/// Whether it is neither going nor over.
fn is_active(object: &AnyObject) -> bool {
    if object.metadata().is_terminating() {
        return false;
    }
    if let Some(pod) = object.as_any().downcast_ref::<Pod>() {
        let phase = pod.status.as_ref().map_or("", |status| &status.phase);
        return !matches!(phase, "Succeeded" | "Failed");
    }
    if let Some(job) = object.as_any().downcast_ref::<Job>() {
        let over = |condition: &_| is_true(condition, "Complete") || is_true(condition, "Failed");
        return !job
            .status
            .as_ref()
            .is_some_and(|status| status.conditions.iter().any(over));
    }
    true
}

fn is_true(condition: &kubernetes_proto::batch::JobCondition, kind: &str) -> bool {
    &*condition.r#type == kind && &*condition.status == "True"
}

fn index(pod: &Pod) -> Option<String> {
    Object::metadata(pod)
        .annotation("batch.kubernetes.io/job-completion-index")
        .map(str::to_owned)
}

/// The node that a DaemonSet's pod is for.
fn pinned(pod: &Pod) -> Option<String> {
    let affinity = pod.spec.as_ref()?.affinity.as_ref()?;
    let required = affinity
        .node_affinity
        .as_ref()?
        .required_during_scheduling_ignored_during_execution
        .as_ref()?;
    required
        .node_selector_terms
        .iter()
        .flat_map(|term| &term.match_fields)
        .find(|field| field.key == "metadata.name")?
        .values
        .first()
        .map(ToString::to_string)
}

/// How many children an object wants: at rest, and at most while it changes.
fn want_of(object: &AnyObject) -> Option<Want> {
    let any = object.as_any();
    let exactly = |count: Option<i32>| Want {
        least: i64::from(count.unwrap_or(1)),
        most: i64::from(count.unwrap_or(1)),
    };
    if let Some(set) = any.downcast_ref::<ReplicaSet>() {
        return set.spec.as_ref().map(|spec| exactly(spec.replicas));
    }
    if let Some(set) = any.downcast_ref::<ReplicationController>() {
        return set.spec.as_ref().map(|spec| exactly(spec.replicas));
    }
    if let Some(set) = any.downcast_ref::<StatefulSet>() {
        return set.spec.as_ref().map(|spec| exactly(spec.replicas));
    }
    if let Some(job) = any.downcast_ref::<Job>() {
        return job.spec.as_ref().map(|spec| exactly(spec.parallelism));
    }
    if let Some(deployment) = any.downcast_ref::<Deployment>() {
        let spec = deployment.spec.as_ref()?;
        let replicas = i64::from(spec.replicas.unwrap_or(1));
        let surge = spec
            .strategy
            .as_ref()
            .filter(|strategy| strategy.r#type != "Recreate")
            .map_or(0, |strategy| {
                let text = strategy
                    .rolling_update
                    .as_ref()
                    .and_then(|rolling| rolling.max_surge.as_ref())
                    .map_or_else(
                        || "25%".to_owned(),
                        |surge| match surge.r#type {
                            1 => surge.str_val.clone(),
                            _ => surge.int_val.to_string(),
                        },
                    );
                match text.strip_suffix('%') {
                    Some(percent) => {
                        let percent: i64 = percent.parse().unwrap_or(25);
                        (replicas * percent + 99) / 100
                    }
                    None => text.parse().unwrap_or(0),
                }
            });
        return Some(Want {
            least: replicas,
            most: replicas + surge,
        });
    }
    None
}

/// Takes off a Job's count what late pods have added beyond its completions. One that came after its Job had
/// them all is not counted.
fn uncount(world: &mut Cow<'_, testing::World>, pods: &[Key]) {
    for pod in pods {
        let Some(owner) = world.find::<Pod>(&pod.to_string()).and_then(|pod| {
            let owner = pod.metadata().controller()?;
            Some(Key::new(pod.metadata().namespace.clone(), owner.name.clone()).to_string())
        }) else {
            continue;
        };
        let is_beyond = |job: &Job| {
            let completions = job.spec.as_ref().and_then(|spec| spec.completions);
            let succeeded = job.status.as_ref().map_or(0, |status| status.succeeded);
            completions.is_some_and(|wanted| succeeded > wanted)
        };
        if world.find::<Job>(&owner).is_some_and(|job| is_beyond(&job)) {
            world.to_mut().change::<Job>(&owner, |job| {
                job.status.get_or_insert_default().succeeded -= 1;
            });
        }
    }
}

fn remove(world: &mut Cow<'_, testing::World>, resource: &'static Resource, keys: &[Key]) {
    for key in keys {
        let world = world.to_mut();
        world.delete_how(resource, &key.to_string(), Propagation::Background);
    }
}
