//! Evicts pods whose devices have a taint of effect `NoExecute` that their claim does not tolerate, or only
//! for some time.
//!
//! Watches pods, resourceclaims, resourceslices and, with the gate DRADeviceTaintRules, devicetaintrules.
//! A key per pod: sets the condition `DisruptionTarget` of the pod, then deletes it by uid. A key per rule,
//! which has no namespace: applies the condition `EvictionInProgress`. When a pod is due follows from times
//! in the API alone, so a pod's key remembers only that its eviction is planned, for the event that cancels
//! it. A rule's key remembers which pods it evicts and how many it has evicted; after a crash these numbers
//! start again, as upstream's do at each start.
//!
//! Invariants: no pod is deleted before its taint's time plus its toleration; after a takeover no pod is
//! deleted on a cache that is behind; a rule's condition is that of its generation before its pods are
//! deleted, or has failed to do so for 3 s.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use controllers_kit::{
    Change, Controller, Descriptor, Event, Flags, Key, MetricKind, Only, PatchKind, Plan,
    Propagation, Reader, Refusal, Runs, Sharding, SignedDuration, Snapshot, StatusWrite, Timestamp,
    Watches, conditions, selectors::Selector,
};
use kubernetes_proto::{
    Object, Str,
    core::Pod,
    resource::{DeviceTaint, DeviceTaintRule, ResourceClaim, ResourceSlice},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

mod rule;
mod taints;

use taints::{
    BY_DEVICE, BY_GROUP, BY_POOL, Devices, Eviction, NO_EXECUTE, allocated, allocated_claims,
    by_device, by_group, by_pool, claims_of, claims_with, consumers, device_id, devices_of,
    effect_of, evicting, evicting_rules, names_claims, node_of, pods_of, pods_of_groups, pool_id,
    pool_of, selects_any, slices_of,
};

const NAME: &str = "device-taint-eviction-controller";
const WORKERS: &str = "concurrent-device-taint-eviction-syncs";
const TAINTS: &str = "DRADeviceTaints";
const RULES: &str = "DRADeviceTaintRules";
const GROUPS: &str = "DRAWorkloadResourceClaims";

const DISRUPTION: &str = "DisruptionTarget";
const REASON: &str = "DeletionByDeviceTaintManager";
const MESSAGE: &str = "Device Taint manager: deleting due to NoExecute taint";
const EVENT: &str = "DeviceTaintManagerEviction";

const DELETIONS: &str = "device_taint_eviction_controller_pod_deletions_total";
const LATENCY: &str = "device_taint_eviction_controller_pod_deletion_duration_seconds";

/// How long a due pod waits for the status of the rule that evicts it, so that the published number
/// includes it. It does not wait for a status that can't be written.
const STATUS_WAIT: SignedDuration = SignedDuration::from_secs(3);

/// The controller.
pub struct DeviceTaintEviction {
    rules: bool,
    groups: bool,
}

/// What outlasts a plan.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Memory of a pod's key: the uid of the pod whose eviction is planned.
    pending: Option<String>,
    /// Of a rule's key.
    rule: Option<Box<rule::Memory>>,
}

/// An event of a pod, without a version, as upstream refers to it.
fn event(pod: &Pod, message: &str) -> Event {
    let mut event = Event::normal(pod, EVENT, message);
    event.about.resource_version = 0;
    event
}

/// The parts of a pod that its eviction depends on, besides its claims.
fn place(pod: &Pod) -> (&Str, &str, Vec<(&str, bool)>, bool) {
    let uid = &Object::metadata(pod).uid;
    let claims = claims_of(pod).collect();
    (uid, node_of(pod), claims, pod.is_terminating())
}

/// Pods change often; few changes matter here.
fn wake_pod(change: &Change<'_, Pod>, _: &dyn Reader) -> Vec<Key> {
    let moved = match (change.old, change.new) {
        (Some(old), Some(new)) => place(old) != place(new),
        _ => true,
    };
    let matters = moved && change.both().any(names_claims);
    matters
        .then(|| Key::of(change.newest()))
        .into_iter()
        .collect()
}

/// The rules that count a pod, which may have lost its claims already.
fn wake_rules_of_pod(change: &Change<'_, Pod>, reader: &dyn Reader) -> Vec<Key> {
    let users = || {
        let pods = change.both();
        pods.filter(|pod| names_claims(pod) && !node_of(pod).is_empty())
    };
    if users().next().is_none() {
        return Vec::new();
    }
    if let (Some(old), Some(new)) = (change.old, change.new)
        && place(old) == place(new)
        && rule::is_marked(old) == rule::is_marked(new)
    {
        return Vec::new();
    }
    let rules = evicting_rules(reader);
    if rules.is_empty() {
        return Vec::new();
    }
    let claim = |pod: &Pod, name: &str| {
        let namespace = &Object::metadata(pod).namespace;
        let claim = reader.get(ResourceClaim::resource(), namespace, name)?;
        let claim = controllers_kit::cast::<ResourceClaim>(claim)?;
        allocated(&claim).is_some().then_some(claim)
    };
    let claims: Vec<Option<Arc<ResourceClaim>>> = users()
        .flat_map(|pod| claims_of(pod).map(move |(name, _)| claim(pod, name)))
        .collect();
    let counts = |rule: &DeviceTaintRule| {
        let selected = |claim: &Option<Arc<ResourceClaim>>| {
            claim.as_ref().is_none_or(|claim| selects_any(rule, claim))
        };
        claims.iter().any(selected)
    };
    let counting = rules.iter().filter(|rule| counts(rule));
    counting.map(|rule| rule::key_of(rule)).collect()
}

/// Whether the parts of a claim that evictions depend on have changed.
fn claim_moved(change: &Change<'_, ResourceClaim>) -> bool {
    let parts = |claim: &ResourceClaim| {
        let meta = Object::metadata(claim);
        let owner = meta.controller().map(|owner| owner.uid.clone());
        (meta.uid.clone(), owner)
    };
    match (change.old, change.new) {
        (Some(old), Some(new)) => {
            parts(old) != parts(new)
                || allocated(old) != allocated(new)
                || consumers(old) != consumers(new)
        }
        _ => true,
    }
}

/// The pods that may be affected by a claim.
fn users<const GROUPS: bool>(claim: &ResourceClaim, reader: &dyn Reader) -> Vec<Key> {
    let mut keys = pods_of(claim);
    if GROUPS {
        keys.extend(pods_of_groups(claim, reader));
    }
    keys
}

fn distinct(keys: impl IntoIterator<Item = Key>) -> Vec<Key> {
    let keys: BTreeSet<Key> = keys.into_iter().collect();
    keys.into_iter().collect()
}

fn wake_users<const GROUPS: bool>(
    change: &Change<'_, ResourceClaim>,
    reader: &dyn Reader,
) -> Vec<Key> {
    let given = change.both().any(|claim| allocated(claim).is_some());
    if !given || !claim_moved(change) {
        return Vec::new();
    }
    distinct(
        change
            .both()
            .flat_map(|claim| users::<GROUPS>(claim, reader)),
    )
}

fn wake_rules_of_claim(change: &Change<'_, ResourceClaim>, reader: &dyn Reader) -> Vec<Key> {
    let given = change.both().any(|claim| allocated(claim).is_some());
    if !given || !claim_moved(change) {
        return Vec::new();
    }
    let rules = evicting_rules(reader);
    let counting = rules
        .iter()
        .filter(|rule| change.both().any(|claim| selects_any(rule, claim)));
    counting.map(|rule| rule::key_of(rule)).collect()
}

/// The taints that evict, by device.
fn tainted(slice: &ResourceSlice) -> BTreeMap<&str, Vec<&DeviceTaint>> {
    let devices = devices_of(slice).iter();
    devices
        .map(|device| (device.name.as_str(), evicting(device).collect::<Vec<_>>()))
        .filter(|(_, taints)| !taints.is_empty())
        .collect()
}

/// The users of devices whose taints have changed. Where the pool has changed, other slices of it may count
/// or no longer count.
fn wake_users_of_slice<const GROUPS: bool>(
    change: &Change<'_, ResourceSlice>,
    reader: &dyn Reader,
) -> Vec<Key> {
    let mut ids: BTreeSet<Str> = BTreeSet::new();
    let mut add = |slice: &ResourceSlice, device: &str| {
        let (driver, pool, _) = pool_of(slice);
        ids.insert(device_id(driver, pool, device));
    };
    match (change.old, change.new) {
        (Some(old), Some(new)) if pool_of(old) == pool_of(new) => {
            let (before, after) = (tainted(old), tainted(new));
            let names: BTreeSet<&&str> = before.keys().chain(after.keys()).collect();
            for name in names {
                if before.get(*name) != after.get(*name) {
                    add(new, name);
                }
            }
        }
        _ => {
            for slice in change.both() {
                for name in tainted(slice).into_keys() {
                    add(slice, name);
                }
                let (driver, pool, _) = pool_of(slice);
                for other in slices_of(reader, &pool_id(driver, pool)) {
                    for name in tainted(&other).into_keys() {
                        add(&other, name);
                    }
                }
            }
        }
    }
    distinct(ids.iter().flat_map(|id| {
        let claims = claims_with(reader, id);
        let users = claims
            .into_iter()
            .map(|claim| users::<GROUPS>(&claim, reader));
        users.flatten().collect::<Vec<_>>()
    }))
}

/// The pods that a rule evicts or has evicted, where the rule or its published status has changed.
fn wake_users_of_rule<const GROUPS: bool>(
    change: &Change<'_, DeviceTaintRule>,
    reader: &dyn Reader,
) -> Vec<Key> {
    if let (Some(old), Some(new)) = (change.old, change.new)
        && Object::metadata(old).uid == Object::metadata(new).uid
        && old.spec == new.spec
        && rule::is_current(old) == rule::is_current(new)
    {
        return Vec::new();
    }
    let evict = |rule: &&DeviceTaintRule| effect_of(rule) == NO_EXECUTE;
    let rules: Vec<&DeviceTaintRule> = change.both().filter(evict).collect();
    if rules.is_empty() {
        return Vec::new();
    }
    let claims = allocated_claims(reader);
    let selected = claims
        .iter()
        .filter(|claim| rules.iter().any(|rule| selects_any(rule, claim)));
    distinct(selected.flat_map(|claim| users::<GROUPS>(claim, reader)))
}

/// Sets the condition that says why a pod is deleted, and deletes it. A pod that has the
/// condition already has had its event.
fn evict(plan: &mut Plan, pod: &Pod, now: Timestamp, when: Timestamp) {
    let held = pod
        .status
        .as_ref()
        .and_then(|status| conditions::find(&status.conditions, DISRUPTION));
    let marked = held.is_some_and(|held| {
        held.status == "True" && held.reason == REASON && *held.message == *MESSAGE
    });
    if !marked {
        plan.event(event(pod, "Marking for deletion"));
        let since = held
            .filter(|held| held.status == "True")
            .and_then(|held| held.last_transition_time)
            .unwrap_or_else(|| now.into());
        let condition = json!({
            "type": DISRUPTION,
            "status": "True",
            "lastTransitionTime": since,
            "reason": REASON,
            "message": MESSAGE,
        });
        // A strategic patch would otherwise put a new condition in front of the others.
        let others = pod.status.iter().flat_map(|status| &status.conditions);
        let order: Value = others
            .map(|one| one.r#type.to_string())
            .filter(|name| name != DISRUPTION)
            .chain([DISRUPTION.to_owned()])
            .map(|name| json!({ "type": name }))
            .collect();
        let status = json!({"conditions": [condition], "$setElementOrder/conditions": order});
        let status = json!({ "status": status });
        plan.patch(pod, "status", PatchKind::Strategic, status, StatusWrite::No)
            .whatever_version();
        plan.then();
    }
    let late = now.duration_since(when).as_secs_f64().max(0.0);
    plan.delete(pod, Only::ThisUid, Propagation::Background)
        .measure(DELETIONS, &[], 1.0)
        .measure(LATENCY, &[], late);
}

/// Until when an eviction waits for the status of its rules; `None` where there is nothing to wait for.
fn waits_for_status(eviction: &Eviction, now: Timestamp) -> Option<Timestamp> {
    let unpublished = eviction
        .rules
        .values()
        .filter(|rule| !rule::is_current(rule));
    let made = unpublished.map(|rule| {
        let made = Object::metadata(&**rule).creation_timestamp;
        made.map_or(Timestamp::MIN, |made| made.timestamp())
    });
    let since = made.max()?.max(eviction.when);
    let end = since.checked_add(STATUS_WAIT).unwrap_or(since);
    (now < end).then_some(end)
}

impl Controller for DeviceTaintEviction {
    type Memory = Memory;

    fn describe() -> Descriptor {
        Descriptor::new(NAME, Sharding::ByObject)
            .workers(
                WORKERS,
                8,
                "The number of pod evictions and DeviceTaintRule status updates that each replica handles concurrently.",
            )
            .bound(WORKERS, 1, i64::from(i32::MAX))
            .gate(TAINTS, true)
            .gate(RULES, false)
            .gate(GROUPS, false)
            .runs_where(|flags| match flags.bool(TAINTS) {
                true => Runs::Yes,
                false => Runs::No("the feature gate DRADeviceTaints is off"),
            })
            .metric(
                DELETIONS,
                MetricKind::Counter,
                &[],
                "Total number of Pods deleted by DeviceTaintEvictionController since its start.",
            )
            .metric(
                LATENCY,
                MetricKind::Buckets(&[
                    0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0, 120.0, 180.0, 240.0,
                ]),
                &[],
                "Latency, in seconds, between the time when a device taint effect has been activated and a Pod's deletion via DeviceTaintEvictionController.",
            )
            .rule("", "pods", &["list", "watch", "delete"])
            .rule("", "pods/status", &["patch"])
            .rule("resource.k8s.io", "resourceclaims", &["list", "watch"])
            .rule("resource.k8s.io", "resourceslices", &["list", "watch"])
            .rule("resource.k8s.io", "devicetaintrules", &["list", "watch"])
            .rule("resource.k8s.io", "devicetaintrules/status", &["patch"])
            .differences(include_str!("differences.md"))
    }

    fn new(flags: &Flags) -> Self {
        Self {
            rules: flags.bool(RULES),
            groups: flags.bool(GROUPS),
        }
    }

    fn watch(&self, on: &mut Watches) {
        let mut pods = on.kind::<Pod>().wakes(wake_pod);
        if self.groups {
            pods = pods.indexed_by(BY_GROUP, by_group);
        }
        if self.rules {
            pods.wakes(wake_rules_of_pod);
        }
        let claims = on
            .kind::<ResourceClaim>()
            .indexed_by(BY_DEVICE, by_device)
            .wakes(match self.groups {
                true => wake_users::<true>,
                false => wake_users::<false>,
            });
        if self.rules {
            claims.wakes(wake_rules_of_claim);
        }
        on.kind::<ResourceSlice>()
            .indexed_by(BY_POOL, by_pool)
            .wakes(match self.groups {
                true => wake_users_of_slice::<true>,
                false => wake_users_of_slice::<false>,
            });
        if self.rules {
            on.kind::<DeviceTaintRule>()
                .where_served()
                .wakes_itself()
                .wakes(match self.groups {
                    true => wake_users_of_rule::<true>,
                    false => wake_users_of_rule::<false>,
                });
        }
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, memory: &mut Memory) -> Result<Plan, Refusal> {
        Ok(match key.namespace.is_empty() {
            true => self.plan_rule(key, seen, memory),
            false => self.plan_pod(key, seen, memory),
        })
    }

    fn shift(&self, memory: &mut Memory, by: SignedDuration) {
        // When pods are due is the API's time.
        if let Some(rule) = &mut memory.rule {
            rule.shift(by);
        }
    }
}

impl DeviceTaintEviction {
    fn evicting_rules(&self, seen: &Snapshot<'_>) -> Vec<Arc<DeviceTaintRule>> {
        match self.rules {
            true => evicting_rules(seen.reader()),
            false => Vec::new(),
        }
    }

    fn plan_rule(&self, key: &Key, seen: &Snapshot<'_>, memory: &mut Memory) -> Plan {
        let rule = match self.rules {
            true => seen.get::<DeviceTaintRule>(key),
            false => None,
        };
        let Some(rule) = rule else {
            memory.rule = None;
            return Plan::nothing();
        };
        rule::plan(
            &rule,
            self.evicting_rules(seen),
            seen.reader(),
            self.groups,
            seen.now,
            memory.rule.get_or_insert_default(),
        )
    }

    fn plan_pod(&self, key: &Key, seen: &Snapshot<'_>, memory: &mut Memory) -> Plan {
        let mut plan = Plan::nothing();
        let pod = seen.get::<Pod>(key).filter(|pod| !pod.is_terminating());
        let Some(pod) = pod else {
            memory.pending = None;
            return plan;
        };
        let uid = &Object::metadata(&*pod).uid;
        if memory
            .pending
            .as_ref()
            .is_some_and(|pending| **pending != **uid)
        {
            memory.pending = None;
        }
        let eviction = match names_claims(&pod) {
            true => {
                let rules = self.evicting_rules(seen);
                Devices::new(seen.reader(), rules, self.groups).eviction(&pod)
            }
            false => None,
        };
        let Some(eviction) = eviction else {
            if memory.pending.take().is_some() {
                plan.event(event(&pod, "Cancelling deletion"));
            }
            return plan;
        };
        memory.pending = Some(uid.to_string());
        if seen.now < eviction.when {
            return plan.requeued_at(eviction.when);
        }
        if let Some(end) = waits_for_status(&eviction, seen.now) {
            return plan.requeued_at(end);
        }
        evict(&mut plan, &pod, seen.now, eviction.when);
        // The decision rests on other objects: a new owner verifies that it has seen all of them.
        let all = Selector::of_labels(&[]);
        plan.counted::<ResourceClaim>(&Object::metadata(&*pod).namespace, &all);
        plan.counted::<ResourceSlice>(&Str::default(), &all);
        // Rules that were not seen evict nobody.
        if !eviction.rules.is_empty() {
            plan.counted::<DeviceTaintRule>(&Str::default(), &all);
        }
        plan
    }
}

#[cfg(test)]
pub(crate) mod tests;
