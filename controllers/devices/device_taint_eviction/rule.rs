//! The status of a DeviceTaintRule: how many pods it evicts, how many it has evicted.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use controllers_kit::{
    Key, PatchKind, Plan, Reader, SignedDuration, StatusWrite, Timestamp, cast, conditions,
};
use kubernetes_proto::{
    Object, Str,
    core::Pod,
    meta::{Condition, Time},
    resource::{DeviceTaintRule, ResourceSlice},
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{
    DISRUPTION, NAME, REASON,
    taints::{
        Devices, NO_EXECUTE, allocated, devices_of, effect_of, pool_of, selects, selects_any,
    },
};

/// The condition of a rule.
const CONDITION: &str = "EvictionInProgress";
/// The shortest interval between changes of a condition that follow from no change of the rule.
const PERIOD: SignedDuration = SignedDuration::from_secs(10);
/// The interval of counting for a rule with more pods than [`MANY`]: each deleted pod wakes it.
const COUNTED_EACH: SignedDuration = SignedDuration::from_secs(1);
/// The number of pods that can be counted within a few milliseconds.
const MANY: usize = 1000;
/// The most pods that a rule's memory tracks. Beyond it, pods that the API server deletes at once may be
/// missing from the number of evicted ones.
const FOLLOWED_MAX: usize = 10_000;

/// What outlasts a plan of a rule.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// The rule's uid: another rule of the same name starts over.
    uid: String,
    /// Pods that were evicted because of it since this memory began.
    evicted: u64,
    /// Pods that it evicts, by uid.
    pods: BTreeMap<String, Followed>,
    /// Since when the condition is out of date.
    stale_since: Option<Timestamp>,
    /// When pods were last counted, where there are many.
    counted_at: Option<Timestamp>,
}

/// A pod that a rule evicts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Followed {
    namespace: String,
    name: String,
    /// When it is due, in the API's time; `None` once it is counted as evicted.
    due: Option<Timestamp>,
}

/// Pods that a rule evicts, found in the cache.
struct Affected {
    /// With the time of each.
    pods: BTreeMap<Str, (Arc<Pod>, Timestamp)>,
}

impl Affected {
    /// Those whose reasons include a rule with this uid.
    fn by(devices: &mut Devices<'_>, rule: &DeviceTaintRule) -> Self {
        let uid = &Object::metadata(rule).uid;
        let mut pods = BTreeMap::new();
        for claim in devices.allocated_claims() {
            if !selects_any(rule, &claim) {
                continue;
            }
            for pod in devices.pods(&claim) {
                let pod_uid = Object::metadata(&*pod).uid.clone();
                if pods.contains_key(&pod_uid) {
                    continue;
                }
                if let Some(eviction) = devices.eviction(&pod)
                    && eviction.rules.contains_key(uid)
                {
                    pods.insert(pod_uid, (pod, eviction.when));
                }
            }
        }
        Self { pods }
    }

    /// Pods that are not being deleted, and the number of their namespaces.
    fn pending(&self) -> (usize, usize) {
        let pending = || {
            let pods = self.pods.values().map(|(pod, _)| pod);
            pods.filter(|pod| !pod.is_terminating())
        };
        let namespaces: BTreeSet<&Str> = pending()
            .map(|pod| &Object::metadata(&**pod).namespace)
            .collect();
        (pending().count(), namespaces.len())
    }
}

/// Whether a pod has the condition that this controller sets before it deletes the pod.
pub(super) fn is_marked(pod: &Pod) -> bool {
    let held = pod
        .status
        .as_ref()
        .and_then(|status| conditions::find(&status.conditions, DISRUPTION));
    held.is_some_and(|held| held.status == "True" && held.reason == REASON)
}

/// The condition of a rule.
fn condition_of(rule: &DeviceTaintRule) -> Option<&Condition> {
    let status = rule.status.as_ref()?;
    let mut conditions = status.conditions.iter();
    conditions.find(|condition| condition.r#type == CONDITION)
}

/// Whether a rule's status is that of the rule's generation.
pub(super) fn is_current(rule: &DeviceTaintRule) -> bool {
    let generation = Object::metadata(rule).generation;
    condition_of(rule).is_some_and(|condition| condition.observed_generation == generation)
}

impl Memory {
    /// Counts pods as evicted that have gone since the last plan, and tracks those that are due.
    ///
    /// A pod that is being deleted with this controller's condition was evicted. One that is gone was evicted
    /// if its time had come: it was due and has not been seen to be deleted by anybody else.
    fn follow(&mut self, affected: &Affected, reader: &dyn Reader, now: Timestamp) {
        let mut evicted = 0;
        self.pods.retain(|uid, followed| {
            let pod = reader.get(Pod::resource(), &followed.namespace, &followed.name);
            let pod = pod
                .and_then(cast::<Pod>)
                .filter(|pod| *Object::metadata(&**pod).uid == **uid);
            let Some(pod) = pod else {
                evicted += u64::from(followed.due.is_some_and(|due| due <= now));
                return false;
            };
            if followed.due.is_none() {
                return true;
            }
            if pod.is_terminating() {
                followed.due = None;
                let marked = is_marked(&pod);
                evicted += u64::from(marked);
                return marked;
            }
            affected.pods.contains_key(&**uid)
        });
        for (uid, (pod, due)) in &affected.pods {
            if let Some(followed) = self.pods.get_mut(&**uid) {
                if followed.due.is_some() {
                    followed.due = Some(*due);
                }
                continue;
            }
            let marked = is_marked(pod);
            if self.pods.len() >= FOLLOWED_MAX || (pod.is_terminating() && !marked) {
                continue;
            }
            // Evicted before it was seen here.
            evicted += u64::from(pod.is_terminating());
            let meta = Object::metadata(&**pod);
            let followed = Followed {
                namespace: meta.namespace.to_string(),
                name: meta.name.to_string(),
                due: (!pod.is_terminating()).then_some(*due),
            };
            self.pods.insert(uid.to_string(), followed);
        }
        self.evicted += evicted;
    }

    /// Moves the instants of this replica's clock.
    pub(super) fn shift(&mut self, by: SignedDuration) {
        for at in [&mut self.stale_since, &mut self.counted_at] {
            *at = at.map(|at| at.checked_add(by).unwrap_or(at));
        }
    }

    fn evicted_text(&self) -> Option<String> {
        (self.evicted > 0).then(|| {
            let pods = count(self.evicted, "1 pod", "pods");
            format!("{pods} evicted since starting the controller.")
        })
    }
}

/// `one` for 1, else the number and `many`.
fn count(number: impl TryInto<u64>, one: &str, many: &str) -> String {
    match number.try_into().unwrap_or(u64::MAX) {
        1 => one.to_owned(),
        number => format!("{number} {many}"),
    }
}

/// What a condition says.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    status: &'static str,
    reason: &'static str,
    message: String,
}

/// The message for a rule with effect `NoExecute`.
fn executing(affected: &Affected, memory: &Memory) -> Said {
    let (pods, namespaces) = affected.pending();
    let (status, reason) = match (pods, memory.evicted) {
        (1.., _) => ("True", "PodsPendingEviction"),
        (0, 1..) => ("False", "Completed"),
        (0, 0) => ("False", "NotStarted"),
    };
    let pending = (pods > 0).then(|| {
        format!(
            "{} to be evicted in {}.",
            count(pods, "1 pod needs", "pods need"),
            count(namespaces, "1 namespace", "different namespaces"),
        )
    });
    let parts: Vec<String> = [pending, memory.evicted_text()]
        .into_iter()
        .flatten()
        .collect();
    Said {
        status,
        reason,
        message: parts.join(" "),
    }
}

/// The message for a rule with effect `None`: what it would do with effect `NoExecute`.
fn simulated(rule: &DeviceTaintRule, reader: &dyn Reader, groups: bool, memory: &Memory) -> Said {
    let mut evicting = rule.clone();
    if let Some(taint) = evicting.spec.as_mut().and_then(|spec| spec.taint.as_mut()) {
        NO_EXECUTE.clone_into(&mut taint.effect);
    }
    let mut devices = Devices::new(reader, vec![Arc::new(evicting)], groups);
    let (pods, namespaces) = Affected::by(&mut devices, rule).pending();
    let (published, given) = selected(rule, &devices, reader);
    let mut message = format!(
        "{} selected. {} selected. {} would be evicted in {} if the effect was NoExecute. This information will not be updated again. Recreate the DeviceTaintRule to trigger an update.",
        count(published, "1 published device", "published devices"),
        count(given, "1 allocated device", "allocated devices"),
        count(pods, "1 pod", "pods"),
        count(namespaces, "1 namespace", "different namespaces"),
    );
    if let Some(evicted) = memory.evicted_text() {
        message = format!("{message} {evicted}");
    }
    Said {
        status: "False",
        reason: "NoEffect",
        message,
    }
}

/// How many published devices a rule selects, and how many allocated ones.
fn selected(rule: &DeviceTaintRule, devices: &Devices<'_>, reader: &dyn Reader) -> (usize, usize) {
    let slices = reader.list(ResourceSlice::resource(), None);
    let slices: Vec<Arc<ResourceSlice>> = slices
        .into_iter()
        .filter_map(cast::<ResourceSlice>)
        .collect();
    let mut newest: HashMap<(&str, &str), i64> = HashMap::new();
    for slice in &slices {
        let (driver, pool, generation) = pool_of(slice);
        let held = newest.entry((driver, pool)).or_insert(generation);
        *held = generation.max(*held);
    }
    let published = slices.iter().flat_map(|slice| {
        let (driver, pool, generation) = pool_of(slice);
        let current = newest.get(&(driver, pool)) == Some(&generation);
        let devices = devices_of(slice).iter().filter(move |_| current);
        devices.filter(move |device| selects(rule, driver, pool, &device.name))
    });
    let given = devices.allocated_claims();
    let given = given
        .iter()
        .flat_map(|claim| allocated(claim).unwrap_or_default());
    let given = given.filter(|result| selects(rule, &result.driver, &result.pool, &result.device));
    (published.count(), given.count())
}

/// Plans a rule's status. `rules` are all evicting rules.
pub(super) fn plan(
    rule: &Arc<DeviceTaintRule>,
    rules: Vec<Arc<DeviceTaintRule>>,
    reader: &dyn Reader,
    groups: bool,
    now: Timestamp,
    memory: &mut Memory,
) -> Plan {
    let mut plan = Plan::nothing();
    let uid = &Object::metadata(&**rule).uid;
    if memory.uid != **uid {
        *memory = Memory {
            uid: uid.to_string(),
            ..Memory::default()
        };
    }
    let held = condition_of(rule);
    let current = is_current(rule);
    if let Some(counted) = memory.counted_at
        && current
        && counted <= now
        && now.duration_since(counted) < COUNTED_EACH
    {
        return plan.requeued_at(counted + COUNTED_EACH);
    }
    memory.counted_at = None;
    let said = match effect_of(rule) {
        NO_EXECUTE => {
            let mut devices = Devices::new(reader, rules, groups);
            let affected = Affected::by(&mut devices, rule);
            memory.follow(&affected, reader, now);
            memory.counted_at = (affected.pods.len() > MANY).then_some(now);
            executing(&affected, memory)
        }
        "None" => {
            // What it evicted while its effect was another.
            let none = Affected {
                pods: BTreeMap::new(),
            };
            memory.follow(&none, reader, now);
            if current && held.is_some_and(|held| held.reason == "NoEffect") {
                memory.stale_since = None;
                return plan;
            }
            simulated(rule, reader, groups, memory)
        }
        _ => {
            let mut message = "Eviction only happens for the NoExecute effect.".to_owned();
            if let Some(evicted) = memory.evicted_text() {
                message = format!("{message} {evicted}");
            }
            Said {
                status: "False",
                reason: "OtherEffect",
                message,
            }
        }
    };
    let same = held.is_some_and(|held| {
        held.status == said.status && held.reason == said.reason && held.message == said.message
    });
    if same && current {
        memory.stale_since = None;
        return plan;
    }
    if current {
        // Progress is batched: much may change in that time.
        let since = *memory.stale_since.get_or_insert(now);
        let due = since + PERIOD;
        if now < due {
            return plan.requeued_at(due);
        }
    }
    memory.stale_since = None;
    let condition = json!({
        "type": CONDITION,
        "status": said.status,
        "reason": said.reason,
        "message": said.message,
        "observedGeneration": Object::metadata(&**rule).generation,
        "lastTransitionTime": Time::from(now),
    });
    plan.patch(
        &**rule,
        "status",
        PatchKind::Apply { manager: NAME },
        json!({"status": {"conditions": [condition]}}),
        StatusWrite::No,
    );
    plan
}

/// The keys of rules.
pub(super) fn key_of(rule: &DeviceTaintRule) -> Key {
    Key::of(rule)
}
