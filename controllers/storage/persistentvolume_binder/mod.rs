//! Binds claims and volumes to each other, follows volumes to their end, and asks provisioners for new ones.
//!
//! A volume that points at a claim (`spec.claimRef`) is planned in that claim's key, `namespace/name`, so
//! that both sides of a binding are decided in one place; one that points at none in its own key, its name.
//! Watches persistentvolumes, persistentvolumeclaims, storageclasses and pods; patches volumes and claims and
//! their status, deletes hostPath volumes, makes and deletes the pods that empty volumes of policy Recycle.
//!
//! The write that makes a volume point at a claim carries the volume's version and is the lock: of two
//! claims that want one volume the second conflicts and chooses again. Writes that external provisioners
//! act upon (phase Released) rest on a live read of the claim, and so does emptying or deleting a volume;
//! `Lost` rests on a live read of the volume.
//!
//! Remembers which events were recorded, so that they are not repeated while their reason lasts; the
//! recycler pod that it has created, whose success alone makes a volume available; and since when
//! provisioners are at work, for metrics.

mod claim;
mod facts;
mod matching;
mod plugins;
mod recycle;
mod volume;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use controllers_kit::{
    Answer, Change, Controller, Descriptor, Event, Failure, FlagDefault, Flags, Key, MetricKind,
    Outcome, Plan, Query, Reader, Refusal, Sharding, SignedDuration, Snapshot, Timestamp, Verb,
    Watches, cast,
};
use kubernetes_proto::{
    Object, Str,
    core::{PersistentVolume, PersistentVolumeClaim, Pod},
    storage::StorageClass,
};

use crate::claims;
use serde::{Deserialize, Serialize};

use facts::{claim_class, claim_ref, claim_spec, is_over, key_of, named_class};
pub use recycle::Recycling;

/// Volumes that refer to a claim, by that claim's key.
const BY_CLAIM: &str = "binder: volumes of a claim";
/// Volumes that point at none, by class.
const FREE: &str = "binder: free volumes";
/// Claims that name a volume, by that name.
const BY_VOLUME: &str = "binder: claims of a volume";
/// Claims without a volume, by class: see [`class_place`].
const UNBOUND: &str = "binder: unbound claims";

/// Claims that a volume wakes when it becomes available to them; one of them gets it, and the others are
/// requeued within a sync period.
const WOKEN_MAX: usize = 16;
/// Upstream's bound for the back-off of operations on volumes.
const RETRY_MAX: Duration = Duration::from_secs(122);
/// An event is recorded again after this time while its reason lasts: half of the API server's default
/// `--event-ttl`, so that `kubectl describe` never shows a pending claim without its reason.
const EVENT_INTERVAL: SignedDuration = SignedDuration::from_mins(30);

const SECONDS: &[f64] = &[
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0,
];
const TOTAL_VOLUMES: &str = "pv_collector_total_pv_count";
const BOUND_VOLUMES: &str = "pv_collector_bound_pv_count";
const UNBOUND_VOLUMES: &str = "pv_collector_unbound_pv_count";
const BOUND_CLAIMS: &str = "pv_collector_bound_pvc_count";
const UNBOUND_CLAIMS: &str = "pv_collector_unbound_pvc_count";
const OPERATION: &str = "volume_operation_total_seconds";
const ERRORS: [&str; 2] = [
    "volume_operation_errors_total",
    "volume_operation_total_errors",
];
const RETROACTIVE: &str = "retroactive_storageclass_total";
const RETROACTIVE_ERRORS: &str = "retroactive_storageclass_errors_total";

/// The controller.
pub struct PersistentVolumeBinder {
    /// `None` where the flags are wrong: then it does not run.
    recyclers: Option<recycle::Recyclers>,
    period: SignedDuration,
    provisions: bool,
}

/// Since when somebody else is at work for us.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Began {
    /// Unix milliseconds.
    at: i64,
    /// Who it is, as metrics name it.
    plugin: String,
}

/// An event that was recorded and whose reason lasts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Recorded {
    /// The object's uid, the reason and the message.
    text: String,
    /// When; Unix milliseconds.
    at: i64,
}

/// What outlasts a plan.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// Events that were recorded and whose reason lasts, by their subject.
    recorded: BTreeMap<String, Recorded>,
    /// Volumes that are being emptied, by name.
    recycling: BTreeMap<String, Recycling>,
    /// A provisioner was asked for a volume.
    provisioning: Option<Began>,
    /// Volumes that somebody else deletes, by name.
    deleting: BTreeMap<String, Began>,
}

/// The API server's state of an object that the cache does not show as expected.
enum Live {
    /// There is none.
    Missing,
    /// It is there.
    There {
        uid: String,
        json: Arc<serde_json::Value>,
    },
    /// It could not be read; the text says why.
    Unknown(String),
}

/// One plan in the making.
struct Pass<'a> {
    binder: &'a PersistentVolumeBinder,
    key: &'a Key,
    seen: &'a Snapshot<'a>,
    plan: Plan,
    memory: &'a mut Memory,
    /// Events whose reason lasts in this plan.
    recorded: BTreeMap<String, Recorded>,
    /// Volumes that the claim's part of the plan writes.
    touched: Vec<Str>,
}

/// The index value of a claim without a volume: its class, or that it names none.
fn class_place(class: Option<&str>) -> Str {
    match class {
        Some(class) => format!("={class}").into(),
        None => "none named".into(),
    }
}

fn claims_at(
    reader: &dyn Reader,
    index: &'static str,
    value: &str,
) -> Vec<Arc<PersistentVolumeClaim>> {
    let found = reader.indexed(PersistentVolumeClaim::resource(), index, value);
    found.into_iter().filter_map(cast).collect()
}

/// The claims that a newly available volume may suit.
fn suitors(volume: &PersistentVolume, reader: &dyn Reader) -> Vec<Key> {
    let class = facts::volume_class(volume);
    let mut places = vec![class_place(Some(class))];
    if class.is_empty() {
        places.push(class_place(None));
    }
    let all = places
        .iter()
        .flat_map(|place| claims_at(reader, UNBOUND, place));
    let suited =
        all.filter(|claim| matching::Wanted::by(claim).is_ok_and(|wanted| wanted.suits(volume)));
    suited
        .take(WOKEN_MAX)
        .map(|claim| Key::of(&*claim))
        .collect()
}

fn woken_by_volume(change: &Change<'_, PersistentVolume>, reader: &dyn Reader) -> Vec<Key> {
    let mut keys: Vec<Key> = change.both().map(key_of).collect();
    let name = &Object::metadata(change.newest()).name;
    let named = claims_at(reader, BY_VOLUME, name);
    keys.extend(named.iter().map(|claim| Key::of(&**claim)));
    let is_free = |volume: &PersistentVolume| {
        claim_ref(volume).is_none() && facts::volume_phase(volume) == facts::AVAILABLE
    };
    if let Some(new) = change.new.filter(|new| is_free(new)) {
        keys.extend(suitors(new, reader));
    }
    keys.sort();
    keys.dedup();
    keys
}

fn woken_by_class(change: &Change<'_, StorageClass>, reader: &dyn Reader) -> Vec<Key> {
    let Some(class) = change.new else {
        return Vec::new();
    };
    let places = [
        class_place(Some(&Object::metadata(class).name)),
        class_place(None),
    ];
    let all = places
        .iter()
        .flat_map(|place| claims_at(reader, UNBOUND, place));
    all.map(|claim| Key::of(&*claim)).collect()
}

/// The claims of a pod that is created, deleted, bound to a node or has ended; and the claim of the volume
/// that it empties.
fn woken_by_pod(change: &Change<'_, Pod>, reader: &dyn Reader) -> Vec<Key> {
    let pod = change.newest();
    let facts_of = |pod: &Pod| {
        let node = pod
            .spec
            .as_ref()
            .is_some_and(|spec| !spec.node_name.is_empty());
        (node, claims::is_terminated(pod))
    };
    let mut keys = Vec::new();
    if change.old.map(facts_of) != change.new.map(facts_of) {
        keys.extend(claims::of(pod));
    }
    let name = &Object::metadata(pod).name;
    if let Some(volume) = name.strip_prefix(recycle::POD_PREFIX) {
        let found = reader.get(PersistentVolume::resource(), "", volume);
        let found = found.and_then(cast::<PersistentVolume>);
        keys.extend(found.map(|volume| key_of(&volume)));
    }
    keys
}

impl Controller for PersistentVolumeBinder {
    type Memory = Memory;

    fn describe() -> Descriptor {
        let mut it = Descriptor::new("persistentvolume-binder-controller", Sharding::ByObject)
            .aliases(&["persistentvolume-binder"])
            .service_account("persistent-volume-binder")
            .event_source("persistentvolume-controller")
            .queue("claims")
            .workers_fixed(10)
            .flag(
                "pvclaimbinder-sync-period",
                FlagDefault::Duration(Duration::from_secs(15)),
                "How often a claim without a volume searches for one when nothing has changed.",
            )
            .flag(
                "enable-dynamic-provisioning",
                FlagDefault::Bool(true),
                "Ask provisioners for volumes of claims that name a class and have no volume.",
            )
            .flag(
                "enable-hostpath-provisioner",
                FlagDefault::Bool(false),
                "Not supported, since directories of one replica's host do not exist on the others. true is an error.",
            )
            .flag(
                "flex-volume-plugin-dir",
                FlagDefault::Text("/usr/libexec/kubernetes/kubelet-plugins/volume/exec/"),
                "FlexVolume drivers are not run by the manager; a warning at the start names those in this directory.",
            );
        for (name, default, help) in recycle::FLAGS {
            it = it.flag(name, default, help);
        }
        for name in recycle::NUMBERS {
            it = it.bound(name, 0, i64::from(i32::MAX));
        }
        let operation = &["plugin_name", "operation_name"];
        let claims = &["namespace", "storage_class", "volume_attributes_class"];
        it.runs_where(recycle::runs)
            .rule(
                "",
                "persistentvolumes",
                &["get", "list", "watch", "patch", "delete"],
            )
            .rule("", "persistentvolumes/status", &["patch"])
            .rule(
                "",
                "persistentvolumeclaims",
                &["get", "list", "watch", "patch"],
            )
            .rule("", "persistentvolumeclaims/status", &["patch"])
            .rule("", "pods", &["get", "list", "watch", "create", "delete"])
            .rule("storage.k8s.io", "storageclasses", &["list", "watch"])
            .metric(
                TOTAL_VOLUMES,
                MetricKind::Sum,
                &["plugin_name", "volume_mode"],
                "Persistent volumes.",
            )
            .metric(
                BOUND_VOLUMES,
                MetricKind::Sum,
                &["storage_class"],
                "Persistent volumes that are bound.",
            )
            .metric(
                UNBOUND_VOLUMES,
                MetricKind::Sum,
                &["storage_class"],
                "Persistent volumes that are not bound.",
            )
            .metric(
                BOUND_CLAIMS,
                MetricKind::Sum,
                claims,
                "Persistent volume claims that are bound.",
            )
            .metric(
                UNBOUND_CLAIMS,
                MetricKind::Sum,
                claims,
                "Persistent volume claims that are not bound.",
            )
            .metric(
                OPERATION,
                MetricKind::Buckets(SECONDS),
                operation,
                "Seconds from asking for a volume to its binding, and from its release to its end.",
            )
            .metric(
                ERRORS[0],
                MetricKind::Counter,
                operation,
                "Operations on volumes that failed.",
            )
            .metric(
                ERRORS[1],
                MetricKind::Counter,
                operation,
                "Operations on volumes that failed; deprecated since 1.36.",
            )
            .metric(
                RETROACTIVE,
                MetricKind::Counter,
                &[],
                "Claims that were given the default class after their creation.",
            )
            .metric(
                RETROACTIVE_ERRORS,
                MetricKind::Counter,
                &[],
                "Claims that could not be given the default class after their creation.",
            )
            .differences(include_str!("differences.md"))
    }

    fn new(flags: &Flags) -> Self {
        let period = flags.duration("pvclaimbinder-sync-period");
        Self {
            recyclers: recycle::Recyclers::of(flags).ok(),
            period: SignedDuration::try_from(period.max(Duration::from_secs(1)))
                .unwrap_or(SignedDuration::MAX),
            provisions: flags.bool("enable-dynamic-provisioning"),
        }
    }

    fn watch(&self, on: &mut Watches) {
        on.kind::<PersistentVolumeClaim>()
            .indexed_by(BY_VOLUME, |claim| {
                let name = &claim_spec(claim).volume_name;
                let named = (!name.is_empty()).then(|| Str::from(name));
                named.into_iter().collect()
            })
            .indexed_by(UNBOUND, |claim| {
                let place = facts::is_unbound(claim).then(|| class_place(named_class(claim)));
                place.into_iter().collect()
            })
            .wakes_itself();
        on.kind::<PersistentVolume>()
            .indexed_by(BY_CLAIM, |volume| match claim_ref(volume) {
                Some(_) => vec![key_of(volume).to_string().into()],
                None => Vec::new(),
            })
            .indexed_by(FREE, |volume| match claim_ref(volume) {
                Some(_) => Vec::new(),
                None => vec![class_place(Some(facts::volume_class(volume)))],
            })
            .wakes(woken_by_volume);
        on.kind::<StorageClass>().wakes(woken_by_class);
        on.kind::<Pod>()
            .indexed_by(claims::BY_CLAIM, claims::keys)
            .wakes(woken_by_pod);
    }

    fn ask(&self, key: &Key, seen: &Snapshot<'_>, memory: &Memory) -> Vec<Query> {
        let mut queries = Vec::new();
        let mut ask = |query: Query| {
            if !queries.contains(&query) {
                queries.push(query);
            }
        };
        let claim = claim_at(seen, key);
        if let Some(claim) = claim
            .as_deref()
            .filter(|claim| claim::seems_lost(claim, seen))
        {
            ask(live_volume(&claim_spec(claim).volume_name));
        }
        for volume in volumes_at(seen, key) {
            let volume = &*volume;
            if !volume::seems_released(volume, claim.as_deref()) {
                continue;
            }
            let acts = volume::acts(volume);
            if (!is_over(volume) || acts) && !key.namespace.is_empty() {
                ask(live_claim(key));
            }
            let name = &Object::metadata(volume).name;
            if acts && is_over(volume) {
                ask(live_volume(name));
            }
            let made = memory.recycling.get(name.as_str());
            if let Some(pod) = made.and_then(|made| self.failed_pod(volume, made, seen)) {
                ask(Query::Live {
                    resource: Pod::resource(),
                    key: pod,
                });
            }
        }
        queries
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, memory: &mut Memory) -> Result<Plan, Refusal> {
        let mut pass = Pass {
            binder: self,
            key,
            seen,
            plan: Plan::nothing(),
            memory,
            recorded: BTreeMap::new(),
            touched: Vec::new(),
        };
        let claim = claim_at(seen, key);
        let volumes = volumes_at(seen, key);
        // A waiting one must not hold back the others.
        let mut refused = None;
        if let Some(claim) = &claim {
            refused = pass.sync_claim(claim).err();
        } else {
            pass.memory.provisioning = None;
        }
        for volume in &volumes {
            if pass.touched.contains(&Object::metadata(&**volume).name) {
                continue;
            }
            if let Err(refusal) = pass.sync_volume(volume, claim.as_deref()) {
                refused.get_or_insert(refusal);
            }
        }
        pass.clear_recyclers(&volumes);
        pass.measure(claim.as_deref(), &volumes);
        let Pass {
            mut plan, recorded, ..
        } = pass;
        match refused {
            Some(refusal) if plan.is_nothing() => return Err(refusal),
            Some(refusal) => plan.fail(refusal.to_string()),
            None => {}
        }
        memory.recorded = recorded;
        Ok(plan)
    }

    fn learn(&self, outcome: &Outcome<'_>, memory: &mut Memory) {
        let action = outcome.action;
        if outcome.result.is_err() {
            // Events that were to follow a write were not recorded.
            memory.recorded.remove(claim::ABOUT);
        }
        let volume = action.key.name.strip_prefix(recycle::POD_PREFIX);
        let (Verb::Create { .. }, Some(volume)) = (&action.verb, volume) else {
            return;
        };
        let entry = memory.recycling.entry(volume.to_owned()).or_default();
        match &outcome.result {
            Ok(written) => entry.pod = written.uid.to_string(),
            Err(
                Failure::Forbidden(why)
                | Failure::Invalid(why)
                | Failure::NotFound(why)
                | Failure::NamespaceTerminating(why)
                | Failure::NotSupported(why)
                | Failure::Other(why),
            ) => entry.refused.clone_from(why),
            Err(_) => {}
        }
    }

    fn shift(&self, memory: &mut Memory, by: SignedDuration) {
        let by = i64::try_from(by.as_millis()).unwrap_or_default();
        let instants = memory
            .recycling
            .values_mut()
            .map(|one| &mut one.retry_at)
            .chain(memory.recorded.values_mut().map(|one| &mut one.at))
            .chain(memory.deleting.values_mut().map(|one| &mut one.at))
            .chain(memory.provisioning.as_mut().map(|one| &mut one.at));
        for instant in instants.filter(|instant| **instant != 0) {
            *instant = instant.saturating_add(by);
        }
    }
}

fn claim_at(seen: &Snapshot<'_>, key: &Key) -> Option<Arc<PersistentVolumeClaim>> {
    (!key.namespace.is_empty())
        .then(|| seen.get::<PersistentVolumeClaim>(key))
        .flatten()
}

/// The volumes that are planned in a key.
fn volumes_at(seen: &Snapshot<'_>, key: &Key) -> Vec<Arc<PersistentVolume>> {
    let own = seen.get::<PersistentVolume>(key);
    match key.namespace.is_empty() {
        true => own.into_iter().filter(|own| key_of(own) == *key).collect(),
        false => seen.indexed::<PersistentVolume>(BY_CLAIM, &key.to_string()),
    }
}

fn live_claim(key: &Key) -> Query {
    Query::Live {
        resource: PersistentVolumeClaim::resource(),
        key: key.clone(),
    }
}

fn live_volume(name: &str) -> Query {
    Query::Live {
        resource: PersistentVolume::resource(),
        key: Key::cluster(name),
    }
}

impl Pass<'_> {
    fn live(&self, query: &Query) -> Live {
        match self.seen.answer(query) {
            None => Live::Unknown("it has changed while it was planned".to_owned()),
            Some(Answer::Missing | Answer::NotFound(_)) => Live::Missing,
            Some(Answer::Failed(why)) => Live::Unknown(why.clone()),
            Some(Answer::Object(json)) => Live::There {
                uid: json["metadata"]["uid"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned(),
                json: Arc::clone(json),
            },
        }
    }

    /// Records an event unless the same was recorded within [`EVENT_INTERVAL`] and its reason has lasted
    /// since; whether it was recorded.
    fn record(&mut self, about: &str, event: Event) -> bool {
        let (entry, is_due) = self.due(about, &event);
        if is_due {
            self.plan.event(event);
        }
        self.plan
            .requeue_at(Self::instant(entry.at) + EVENT_INTERVAL);
        self.recorded.insert(about.to_owned(), entry);
        is_due
    }

    /// The memory of an event, and whether the event must be recorded now.
    fn due(&self, about: &str, event: &Event) -> (Recorded, bool) {
        let text = format!("{} {}: {}", event.about.uid, event.reason, event.message);
        let before = self.memory.recorded.get(about);
        let lasting = before.filter(|before| {
            before.text == text && self.seen.now < Self::instant(before.at) + EVENT_INTERVAL
        });
        let now = || Recorded {
            text,
            at: self.seen.now.as_millisecond(),
        };
        (lasting.cloned().unwrap_or_else(now), lasting.is_none())
    }

    fn began(&self, plugin: &str) -> Began {
        Began {
            at: self.seen.now.as_millisecond(),
            plugin: plugin.to_owned(),
        }
    }

    fn took(&self, began: &Began) -> f64 {
        let millis = self.seen.now.as_millisecond().saturating_sub(began.at);
        millis.max(0) as f64 / 1000.0
    }

    /// Numbers of volumes and claims by their properties; and the durations of deletions.
    fn measure(
        &mut self,
        claim: Option<&PersistentVolumeClaim>,
        volumes: &[Arc<PersistentVolume>],
    ) {
        let mut sums: BTreeMap<(&'static str, Vec<String>), f64> = BTreeMap::new();
        let mut add = |name: &'static str, labels: Vec<String>| {
            *sums.entry((name, labels)).or_default() += 1.0;
        };
        if let Some(claim) = claim {
            let name = match facts::claim_phase(claim) {
                facts::BOUND => BOUND_CLAIMS,
                _ => UNBOUND_CLAIMS,
            };
            let labels = [
                &*Object::metadata(claim).namespace,
                claim_class(claim),
                facts::claim_attributes(claim),
            ];
            add(name, labels.map(str::to_owned).to_vec());
        }
        for volume in volumes {
            let labels = [plugins::plugin_of(volume), facts::volume_mode(volume)];
            add(TOTAL_VOLUMES, labels.map(str::to_owned).to_vec());
            let name = match facts::volume_phase(volume) {
                facts::BOUND => BOUND_VOLUMES,
                _ => UNBOUND_VOLUMES,
            };
            add(
                name,
                vec![facts::volume_spec(volume).storage_class_name.clone()],
            );
        }
        for ((name, labels), value) in sums {
            let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
            self.plan.measure(name, &labels, value);
        }
        let exists = |name: &str| {
            self.seen
                .get::<PersistentVolume>(&Key::cluster(name))
                .is_some()
        };
        let (going, gone) = std::mem::take(&mut self.memory.deleting)
            .into_iter()
            .partition(|(name, _)| exists(name));
        let gone: BTreeMap<String, Began> = gone;
        self.memory.deleting = going;
        for began in gone.values() {
            let seconds = self.took(began);
            self.plan
                .measure(OPERATION, &[&began.plugin, "delete"], seconds);
        }
    }

    fn instant(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(millis).unwrap_or(Timestamp::MAX)
    }
}

#[cfg(test)]
pub(crate) mod tests;
