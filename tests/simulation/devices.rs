//! What must hold of evictions from devices with taints: no pod goes before its taint's time plus its
//! toleration, nor without a taint; and what is published of a rule is no more than what has happened, and at
//! the end of an undisturbed run as much. (After a crash the numbers start again, as upstream's do.)
//!
//! And of pods in groups: the protection of a group stays on it while a pod of it may run that there was when
//! the group was deleted.
//!
//! A taint counts for as long after it has gone as a write may be on its way.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use controllers_kit::{Reader as _, Timestamp};
use kubernetes_proto::{
    AnyObject, Object, Str, cast,
    core::Pod,
    resource::{
        DeviceRequestAllocationResult, DeviceTaint, DeviceTaintRule, ResourceClaim, ResourceSlice,
    },
    scheduling::PodGroup,
};
use tokio::time::Instant;

use crate::{
    judge::By,
    server::{Change, Server},
};

/// Who evicts.
pub const CONTROLLER: &str = "device-taint-eviction-controller";
/// The gate of rules.
pub const RULES: &str = "DRADeviceTaintRules";
/// No pod is evicted before its time.
pub const EARLY: &str = "evicted-in-time";
/// What is published of a rule has happened.
pub const PUBLISHED: &str = "published-as-it-was";

/// Who protects groups of pods.
pub const GROUPS: &str = "podgroup-protection-controller";
/// The gate of groups.
pub const GROUPS_GATE: &str = "GenericWorkload";
/// The protection of a group of pods stays while a pod of it may run.
pub const GROUP_KEPT: &str = "group-kept";
/// That protection.
pub const GROUP_FINALIZER: &str = "scheduling.k8s.io/podgroup-protection";

const ON_THE_WAY: Duration = Duration::from_secs(20);
const EVICTS: &str = "NoExecute";

/// A taint, what has it, and when it went.
struct Tainted {
    /// uid of the slice or of the rule.
    by: String,
    driver: Option<String>,
    pool: Option<String>,
    device: Option<String>,
    taint: DeviceTaint,
    until: Option<Instant>,
}

/// All that is remembered.
#[derive(Default)]
pub struct Devices {
    tainted: Vec<Tainted>,
    /// Pods that were evicted because of each rule, by its uid.
    evicted: BTreeMap<String, BTreeSet<String>>,
    /// At which version a group of pods was deleted, by uid.
    doomed: BTreeMap<Str, u64>,
    /// At which version each pod of a group came, by uid.
    members: BTreeMap<Str, u64>,
}

/// The group of a pod that may run.
fn group_of(pod: &Pod) -> Option<&Str> {
    let group = pod.spec.as_ref()?.scheduling_group.as_ref()?;
    (!controllers_kit::pods::has_finished(pod)).then_some(&group.pod_group_name)
}

/// The taints of an object that evict.
fn taints(object: &AnyObject) -> Vec<Tainted> {
    let by = object.metadata().uid.to_string();
    let tainted = |driver, pool, device, taint: &DeviceTaint| Tainted {
        by: by.clone(),
        driver,
        pool,
        device,
        taint: taint.clone(),
        until: None,
    };
    if let Some(slice) = object.as_any().downcast_ref::<ResourceSlice>() {
        let spec = slice.spec.clone().unwrap_or_default();
        let pool = spec.pool.unwrap_or_default().name;
        let of_device = |device: &kubernetes_proto::resource::Device| {
            let all = device.taints.iter().filter(|taint| taint.effect == EVICTS);
            let named = |taint| {
                let (driver, pool) = (spec.driver.clone(), pool.clone());
                tainted(Some(driver), Some(pool), Some(device.name.clone()), taint)
            };
            all.map(named).collect::<Vec<_>>()
        };
        return spec.devices.iter().flat_map(of_device).collect();
    }
    let rule = object.as_any().downcast_ref::<DeviceTaintRule>();
    let Some(spec) = rule.and_then(|rule| rule.spec.clone()) else {
        return Vec::new();
    };
    let (Some(of), Some(taint)) = (spec.device_selector, spec.taint) else {
        return Vec::new();
    };
    let evicts = taint.effect == EVICTS;
    let one = tainted(of.driver, of.pool, of.device, &taint);
    evicts.then_some(one).into_iter().collect()
}

fn has_taints(object: &AnyObject) -> bool {
    let (slices, rules) = (ResourceSlice::resource(), DeviceTaintRule::resource());
    [slices, rules].contains(&object.resource())
}

/// The devices of the claims that a pod names.
fn devices_of(server: &Server, pod: &Pod) -> Vec<DeviceRequestAllocationResult> {
    let namespace = &Object::metadata(pod).namespace;
    let entries = pod.spec.as_ref();
    let entries = entries.and_then(|spec| spec.resource_claims.as_deref());
    let named = entries.into_iter().flatten().filter_map(|entry| {
        let key = format!("{namespace}/{}", entry.resource_claim_name);
        server.world.find::<ResourceClaim>(&key)
    });
    let given = named.filter_map(|claim| {
        let allocation = claim.status.as_ref()?.allocation.clone()?;
        Some(allocation.devices?.results)
    });
    given.flatten().collect()
}

/// When a taint evicts from a device; `None` for never.
fn due(taint: &DeviceTaint, device: &DeviceRequestAllocationResult) -> Option<Timestamp> {
    let since = taint.time_added?.timestamp();
    let mut seconds = Some(0);
    for toleration in &device.tolerations {
        let is_meant = toleration.effect == EVICTS
            && (toleration.key.is_empty() || toleration.key == taint.key)
            && (toleration.operator == "Exists" || toleration.value == taint.value);
        if is_meant {
            seconds = toleration.toleration_seconds;
        }
    }
    Some(since + controllers_kit::SignedDuration::from_secs(seconds?))
}

impl Tainted {
    fn is_on(&self, device: &DeviceRequestAllocationResult) -> bool {
        let fits =
            |wanted: &Option<String>, is: &str| wanted.as_deref().is_none_or(|one| one == is);
        fits(&self.driver, &device.driver)
            && fits(&self.pool, &device.pool)
            && fits(&self.device, &device.device)
    }
}

/// The number of evicted pods that a rule's condition reports.
fn published(rule: &DeviceTaintRule) -> Option<usize> {
    let conditions = rule.status.iter().flat_map(|status| &status.conditions);
    let mut texts = conditions.map(|condition| condition.message.as_str());
    texts.find_map(|text| {
        let before = text
            .split_once(" evicted since")
            .map(|(before, _)| before)?;
        let words: Vec<&str> = before.split(' ').collect();
        words.get(words.len().checked_sub(2)?)?.parse().ok()
    })
}

impl Devices {
    /// Of a cluster as it is.
    pub fn new(server: &Server) -> Self {
        let mut devices = Self::default();
        for object in server.world.objects() {
            devices.tainted.extend(taints(object));
            devices.note(object);
        }
        devices
    }

    fn note(&mut self, object: &AnyObject) {
        let meta = object.metadata();
        let since = (meta.uid.clone(), meta.resource_version);
        if object.resource() == PodGroup::resource() && meta.is_terminating() {
            self.doomed.entry(since.0).or_insert(since.1);
        } else if let Some(pod) = object.as_any().downcast_ref::<Pod>()
            && group_of(pod).is_some()
        {
            self.members.entry(since.0).or_insert(since.1);
        }
    }

    fn group_let_go(&self, server: &Server, change: &Change) -> Option<String> {
        let is_held = |object: &AnyObject| {
            let held = &object.metadata().finalizers;
            held.iter().any(|one| **one == *GROUP_FINALIZER)
        };
        let old = change.old.as_ref()?;
        let lets_go = old.resource() == PodGroup::resource()
            && is_held(old)
            && !change.new.as_ref().is_some_and(is_held);
        if !lets_go {
            return None;
        }
        let meta = old.metadata();
        let doomed = self.doomed.get(&meta.uid).copied().unwrap_or(u64::MAX);
        let pods = server.world.list(Pod::resource(), Some(&meta.namespace));
        let mut pods = pods.into_iter().filter_map(cast::<Pod>);
        let member = pods.find(|pod| {
            let since = self.members.get(&Object::metadata(&**pod).uid);
            group_of(pod) == Some(&meta.name) && since.is_some_and(|since| *since < doomed)
        })?;
        Some(format!(
            "{GROUP_KEPT}: {GROUPS} let {} go, of which {} is",
            meta.name,
            Object::metadata(&*member).name
        ))
    }

    /// Judges a change; by nobody of the fleet where there is no writer.
    pub fn after(
        &mut self,
        server: &Server,
        change: &Change,
        by: Option<&By<'_>>,
    ) -> Option<String> {
        let now = Instant::now();
        if has_taints(change.object()) {
            let uid = change.object().metadata().uid.to_string();
            let mut new = change.new.as_ref().map(taints).unwrap_or_default();
            let held = self.tainted.iter_mut().filter(|one| one.by == uid);
            for one in held.filter(|one| one.until.is_none()) {
                let same = new.iter().position(|other| {
                    other.taint == one.taint && other.device == one.device && other.pool == one.pool
                });
                match same {
                    Some(place) => {
                        new.remove(place);
                    }
                    None => one.until = Some(now),
                }
            }
            self.tainted.extend(new);
        }
        if let Some(new) = &change.new {
            self.note(new);
        }
        if by.is_some_and(|by| by.writer.controller == GROUPS) {
            return self.group_let_go(server, change);
        }
        let by = by.filter(|by| by.writer.controller == CONTROLLER)?;
        if let Some(new) = change.new.as_ref()
            && let Some(rule) = cast::<DeviceTaintRule>(Arc::clone(new))
        {
            return self.too_many(&rule);
        }
        let old = cast::<Pod>(Arc::clone(change.old.as_ref()?))?;
        let goes = change
            .new
            .as_ref()
            .is_none_or(|new| new.metadata().is_terminating());
        if !goes || old.is_terminating() {
            return None;
        }
        self.evicted(server, &old, by)
    }

    fn evicted(&mut self, server: &Server, pod: &Pod, by: &By<'_>) -> Option<String> {
        let meta = Object::metadata(pod);
        let devices = devices_of(server, pod);
        let now = server.world.now();
        let mut is_due = false;
        for one in &self.tainted {
            let lasts = one.until.is_none_or(|until| until + ON_THE_WAY >= by.sent);
            let at = devices.iter().filter(|device| one.is_on(device));
            let at = at.filter_map(|device| due(&one.taint, device)).min();
            let Some(at) = at.filter(|_| lasts) else {
                continue;
            };
            is_due |= at <= now;
            // A rule counts who goes while it evicts, be it for another reason at first.
            let evicted = self.evicted.entry(one.by.clone()).or_default();
            evicted.insert(meta.uid.to_string());
        }
        (!is_due && by.shown.is_some()).then(|| {
            format!(
                "{EARLY}: {CONTROLLER} evicted {} before its time",
                meta.name
            )
        })
    }

    fn counted(&self, rule: &DeviceTaintRule) -> (usize, usize) {
        let uid = Object::metadata(rule).uid.to_string();
        let evicted = self.evicted.get(&uid).map_or(0, BTreeSet::len);
        (published(rule).unwrap_or(0), evicted)
    }

    fn too_many(&self, rule: &DeviceTaintRule) -> Option<String> {
        let (reported, evicted) = self.counted(rule);
        (reported > evicted).then(|| {
            format!(
                "{PUBLISHED}: {CONTROLLER} reports {reported} pods evicted by {}, which were {evicted}",
                Object::metadata(rule).name
            )
        })
    }

    /// What is wrong at the end of an undisturbed run.
    pub fn at_an_undisturbed_end(&self, server: &Server) -> Option<String> {
        let rules = server.world.list(DeviceTaintRule::resource(), None);
        let rules = rules.into_iter().filter_map(cast::<DeviceTaintRule>);
        let evicts = |rule: &DeviceTaintRule| {
            let spec = rule.spec.as_ref();
            let taint = spec.and_then(|spec| spec.taint.as_ref());
            taint.is_some_and(|taint| taint.effect == EVICTS)
        };
        for rule in rules.filter(|rule| evicts(rule)) {
            let (reported, evicted) = self.counted(&rule);
            if reported != evicted {
                return Some(format!(
                    "{PUBLISHED}: at the end {} reports {reported} pods evicted, which were {evicted}",
                    Object::metadata(&*rule).name
                ));
            }
        }
        None
    }
}
