//! Which taints apply to the devices of claims, and until when pods that use these devices may stay.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use controllers_kit::{Key, Reader, SignedDuration, Timestamp, cast};
use kubernetes_proto::{
    Object, Str,
    core::Pod,
    resource::{
        Device, DeviceRequestAllocationResult, DeviceTaint, DeviceTaintRule, DeviceToleration,
        ResourceClaim, ResourceClaimConsumerReference, ResourceSlice,
    },
};

/// The effect that evicts.
pub(super) const NO_EXECUTE: &str = "NoExecute";
/// The index of slices by their pool.
pub(super) const BY_POOL: &str = "device pool";
/// The index of allocated claims by each of their devices.
pub(super) const BY_DEVICE: &str = "allocated device";
/// The index of pods by their scheduling group.
pub(super) const BY_GROUP: &str = "scheduling group";
/// The API group of scheduling groups.
const SCHEDULING: &str = "scheduling.k8s.io";

/// The value of [`BY_POOL`]. Drivers are DNS subdomains, so they have no slash.
pub(super) fn pool_id(driver: &str, pool: &str) -> Str {
    Str::from(format!("{driver}/{pool}"))
}

/// The value of [`BY_DEVICE`]. Devices are DNS labels, so they have no slash.
pub(super) fn device_id(driver: &str, pool: &str, device: &str) -> Str {
    Str::from(format!("{driver}/{pool}/{device}"))
}

/// Driver, name and generation of a slice's pool.
pub(super) fn pool_of(slice: &ResourceSlice) -> (&str, &str, i64) {
    let Some(spec) = &slice.spec else {
        return ("", "", 0);
    };
    let (name, generation) = spec
        .pool
        .as_ref()
        .map_or(("", 0), |pool| (pool.name.as_str(), pool.generation));
    (&spec.driver, name, generation)
}

/// The devices of a slice.
pub(super) fn devices_of(slice: &ResourceSlice) -> &[Device] {
    slice.spec.as_ref().map_or(&[], |spec| &spec.devices)
}

/// The taints of a device that evict.
pub(super) fn evicting(device: &Device) -> impl Iterator<Item = &DeviceTaint> {
    device
        .taints
        .iter()
        .filter(|taint| taint.effect == NO_EXECUTE)
}

/// The devices of a claim; `None` where it is not allocated.
pub(super) fn allocated(claim: &ResourceClaim) -> Option<&[DeviceRequestAllocationResult]> {
    let allocation = claim.status.as_ref()?.allocation.as_ref()?;
    let devices = allocation.devices.as_ref();
    Some(devices.map_or(&[], |devices| &devices.results))
}

/// For whom a claim is reserved.
pub(super) fn consumers(claim: &ResourceClaim) -> &[ResourceClaimConsumerReference] {
    claim
        .status
        .as_ref()
        .map_or(&[], |status| &status.reserved_for)
}

/// The values of [`BY_DEVICE`].
pub(super) fn by_device(claim: &ResourceClaim) -> Vec<Str> {
    let results = allocated(claim).unwrap_or_default().iter();
    let mut ids: Vec<Str> = results
        .map(|result| device_id(&result.driver, &result.pool, &result.device))
        .collect();
    ids.sort();
    ids.dedup();
    ids
}

/// The values of [`BY_POOL`].
pub(super) fn by_pool(slice: &ResourceSlice) -> Vec<Str> {
    let (driver, pool, _) = pool_of(slice);
    vec![pool_id(driver, pool)]
}

/// The scheduling group of a pod.
fn group_of(pod: &Pod) -> Option<&Str> {
    let group = pod.spec.as_ref()?.scheduling_group.as_ref()?;
    Some(&group.pod_group_name).filter(|name| !name.is_empty())
}

fn group_id(namespace: &str, group: &str) -> Str {
    Str::from(format!("{namespace}/{group}"))
}

/// The values of [`BY_GROUP`].
pub(super) fn by_group(pod: &Pod) -> Vec<Str> {
    let namespace = &Object::metadata(pod).namespace;
    let group = group_of(pod);
    group
        .map(|group| group_id(namespace, group))
        .into_iter()
        .collect()
}

/// The node that a pod is bound to; empty before.
pub(super) fn node_of(pod: &Pod) -> &str {
    pod.spec.as_ref().map_or("", |spec| &spec.node_name)
}

/// Whether a pod names claims.
pub(super) fn names_claims(pod: &Pod) -> bool {
    let claims = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.resource_claims.as_ref());
    claims.is_some_and(|claims| !claims.is_empty())
}

/// The names of a pod's claims, and whether each was created for the pod from a template. Entries whose
/// claim does not exist yet, or that need none, are left out.
pub(super) fn claims_of(pod: &Pod) -> impl Iterator<Item = (&str, bool)> {
    let entries = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.resource_claims.as_deref());
    let made = pod
        .status
        .as_ref()
        .and_then(|status| status.resource_claim_statuses.as_deref());
    entries.into_iter().flatten().filter_map(move |entry| {
        if !entry.resource_claim_name.is_empty() {
            return Some((&*entry.resource_claim_name, false));
        }
        if entry.resource_claim_template_name.is_empty() {
            return None;
        }
        let mut made = made.into_iter().flatten();
        let made = made.find(|made| *made.name == *entry.name)?;
        let name: &str = &made.resource_claim_name;
        (!name.is_empty()).then_some((name, true))
    })
}

/// Whether a toleration tolerates a taint of effect `NoExecute`. One without an effect does not, as in
/// upstream.
fn tolerates(toleration: &DeviceToleration, taint: &DeviceTaint) -> bool {
    toleration.effect == NO_EXECUTE
        && (toleration.key.is_empty() || toleration.key == taint.key)
        && match toleration.operator.as_str() {
            "" | "Equal" => toleration.value == taint.value,
            "Exists" => true,
            _ => false,
        }
}

/// Until when a device with a taint may be used; `None` forever. Of several tolerations the shortest
/// counts, and one without seconds is forever. A taint without a time, which the API server would have set,
/// evicts nobody.
pub(super) fn until(taint: &DeviceTaint, tolerations: &[DeviceToleration]) -> Option<Timestamp> {
    let since = taint.time_added.filter(|time| !time.is_zero())?;
    let mut least: Option<i64> = None;
    for toleration in tolerations
        .iter()
        .filter(|toleration| tolerates(toleration, taint))
    {
        let seconds = toleration.toleration_seconds?.max(0);
        least = Some(least.map_or(seconds, |least| least.min(seconds)));
    }
    let since = since.timestamp();
    match least {
        None => Some(since),
        Some(seconds) => Some(
            since
                .checked_add(SignedDuration::from_secs(seconds))
                .unwrap_or(Timestamp::MAX),
        ),
    }
}

/// The taint that a rule gives.
pub(super) fn taint_of(rule: &DeviceTaintRule) -> Option<&DeviceTaint> {
    rule.spec.as_ref()?.taint.as_ref()
}

/// The effect of a rule.
pub(super) fn effect_of(rule: &DeviceTaintRule) -> &str {
    taint_of(rule).map_or("", |taint| &taint.effect)
}

/// Whether a rule selects a device. A rule without a selector selects none; an absent field of the selector
/// selects all.
pub(super) fn selects(rule: &DeviceTaintRule, driver: &str, pool: &str, device: &str) -> bool {
    let selector = rule
        .spec
        .as_ref()
        .and_then(|spec| spec.device_selector.as_ref());
    let fits = |wanted: &Option<String>, value| wanted.as_deref().is_none_or(|name| name == value);
    selector.is_some_and(|selector| {
        fits(&selector.driver, driver)
            && fits(&selector.pool, pool)
            && fits(&selector.device, device)
    })
}

/// Whether a rule selects any of the devices of an allocated claim.
pub(super) fn selects_any(rule: &DeviceTaintRule, claim: &ResourceClaim) -> bool {
    let mut results = allocated(claim).unwrap_or_default().iter();
    results.any(|result| selects(rule, &result.driver, &result.pool, &result.device))
}

/// All rules that evict.
pub(super) fn evicting_rules(reader: &dyn Reader) -> Vec<Arc<DeviceTaintRule>> {
    let rules = reader.list(DeviceTaintRule::resource(), None);
    let rules = rules.into_iter().filter_map(cast::<DeviceTaintRule>);
    rules.filter(|rule| effect_of(rule) == NO_EXECUTE).collect()
}

/// When a pod is evicted, and because of which rules.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Eviction {
    /// The earliest time of all taints.
    pub when: Timestamp,
    /// Rules among the reasons, by uid; none where only taints in slices are.
    pub rules: BTreeMap<Str, Arc<DeviceTaintRule>>,
}

impl Eviction {
    fn join(held: &mut Option<Self>, other: Self) {
        match held {
            None => *held = Some(other),
            Some(held) => {
                held.when = held.when.min(other.when);
                held.rules.extend(other.rules);
            }
        }
    }
}

/// The devices of one pool by name, as its newest generation has them.
type Pool = HashMap<String, (Arc<ResourceSlice>, usize)>;

/// Evictions from one state of the cache. Results are cached, so it lives for one plan.
pub(super) struct Devices<'a> {
    reader: &'a dyn Reader,
    rules: Vec<Arc<DeviceTaintRule>>,
    groups: bool,
    pools: HashMap<Str, Pool>,
    claims: HashMap<Key, Option<Eviction>>,
}

impl<'a> Devices<'a> {
    /// With these rules; `groups` says whether claims may be reserved for scheduling groups.
    pub(super) fn new(
        reader: &'a dyn Reader,
        rules: Vec<Arc<DeviceTaintRule>>,
        groups: bool,
    ) -> Self {
        Self {
            reader,
            rules,
            groups,
            pools: HashMap::new(),
            claims: HashMap::new(),
        }
    }

    /// When a pod is evicted; `None` where it may stay.
    pub(super) fn eviction(&mut self, pod: &Pod) -> Option<Eviction> {
        if node_of(pod).is_empty() {
            return None;
        }
        let mut eviction = None;
        let namespace = &Object::metadata(pod).namespace;
        for (name, made) in claims_of(pod) {
            let claim = self
                .reader
                .get(ResourceClaim::resource(), namespace, name)
                .and_then(cast::<ResourceClaim>);
            let Some(claim) = claim else {
                continue;
            };
            if (!made || self.is_made_for(&claim, pod))
                && self.is_reserved_for(&claim, pod)
                && let Some(one) = self.claim_eviction(&claim)
            {
                Eviction::join(&mut eviction, one);
            }
        }
        eviction
    }

    /// Whether a claim was created for a pod, or for its group.
    fn is_made_for(&self, claim: &ResourceClaim, pod: &Pod) -> bool {
        let Some(owner) = Object::metadata(claim).controller() else {
            return false;
        };
        if owner.uid == Object::metadata(pod).uid {
            return true;
        }
        let of_scheduling = || {
            let group = owner.api_version.split_once('/');
            group.is_some_and(|(group, _)| group == SCHEDULING)
        };
        self.groups
            && group_of(pod).is_some_and(|group| *group == owner.name)
            && *owner.kind == *"PodGroup"
            && of_scheduling()
    }

    /// Whether a claim is reserved for a pod, or for its group.
    fn is_reserved_for(&self, claim: &ResourceClaim, pod: &Pod) -> bool {
        let uid = &Object::metadata(pod).uid;
        let group = group_of(pod).filter(|_| self.groups);
        consumers(claim).iter().any(|consumer| {
            *consumer.uid == **uid
                || (is_group(consumer) && group.is_some_and(|group| *consumer.name == **group))
        })
    }

    /// When pods that use a claim are to be evicted.
    fn claim_eviction(&mut self, claim: &ResourceClaim) -> Option<Eviction> {
        let key = Key::of(claim);
        if let Some(known) = self.claims.get(&key) {
            return known.clone();
        }
        let mut eviction = None;
        for result in allocated(claim).unwrap_or_default() {
            for taint in self.taints(result) {
                if let Some(when) = until(&taint, &result.tolerations) {
                    let rules = BTreeMap::new();
                    Eviction::join(&mut eviction, Eviction { when, rules });
                }
            }
            for rule in &self.rules {
                if selects(rule, &result.driver, &result.pool, &result.device)
                    && let Some(taint) = taint_of(rule)
                    && let Some(when) = until(taint, &result.tolerations)
                {
                    let uid = Object::metadata(&**rule).uid.clone();
                    let rules = BTreeMap::from([(uid, Arc::clone(rule))]);
                    Eviction::join(&mut eviction, Eviction { when, rules });
                }
            }
        }
        self.claims.insert(key, eviction.clone());
        eviction
    }

    /// The evicting taints of an allocated device in its slice.
    fn taints(&mut self, result: &DeviceRequestAllocationResult) -> Vec<DeviceTaint> {
        let id = pool_id(&result.driver, &result.pool);
        let reader = self.reader;
        let pool = self
            .pools
            .entry(id)
            .or_insert_with_key(|id| newest(reader, id));
        let device = pool.get(&result.device);
        let device = device.and_then(|(slice, place)| devices_of(slice).get(*place));
        device.into_iter().flat_map(evicting).cloned().collect()
    }

    /// The existing pods for which a claim is reserved.
    pub(super) fn pods(&self, claim: &ResourceClaim) -> Vec<Arc<Pod>> {
        let mut keys = pods_of(claim);
        if self.groups {
            keys.extend(pods_of_groups(claim, self.reader));
        }
        let pod = |key: &Key| {
            let pod = self
                .reader
                .get(Pod::resource(), &key.namespace, &key.name)?;
            cast::<Pod>(pod)
        };
        keys.iter().filter_map(pod).collect()
    }

    /// All claims that are allocated.
    pub(super) fn allocated_claims(&self) -> Vec<Arc<ResourceClaim>> {
        allocated_claims(self.reader)
    }
}

/// All claims that are allocated.
pub(super) fn allocated_claims(reader: &dyn Reader) -> Vec<Arc<ResourceClaim>> {
    let claims = reader.list(ResourceClaim::resource(), None);
    let claims = claims.into_iter().filter_map(cast::<ResourceClaim>);
    claims.filter(|claim| allocated(claim).is_some()).collect()
}

/// The devices of a pool. Slices of older generations are outdated. Of two slices with the same device
/// name, which the API does not allow, the first by name counts.
fn newest(reader: &dyn Reader, id: &str) -> Pool {
    let slices = slices_of(reader, id);
    let generation = |slice: &Arc<ResourceSlice>| pool_of(slice).2;
    let newest = slices.iter().map(generation).max();
    let mut pool = Pool::new();
    for slice in slices
        .iter()
        .filter(|slice| Some(generation(slice)) == newest)
    {
        for (place, device) in devices_of(slice).iter().enumerate() {
            pool.entry(device.name.clone())
                .or_insert_with(|| (Arc::clone(slice), place));
        }
    }
    pool
}

/// All slices of a pool.
pub(super) fn slices_of(reader: &dyn Reader, id: &str) -> Vec<Arc<ResourceSlice>> {
    let slices = reader.indexed(ResourceSlice::resource(), BY_POOL, id);
    slices
        .into_iter()
        .filter_map(cast::<ResourceSlice>)
        .collect()
}

fn is_group(consumer: &ResourceClaimConsumerReference) -> bool {
    consumer.api_group == SCHEDULING && consumer.resource == "podgroups"
}

/// The pods that a claim is reserved for by name.
pub(super) fn pods_of(claim: &ResourceClaim) -> Vec<Key> {
    let namespace = &Object::metadata(claim).namespace;
    let pods = consumers(claim)
        .iter()
        .filter(|consumer| consumer.api_group.is_empty() && consumer.resource == "pods");
    pods.map(|pod| Key::new(namespace.clone(), pod.name.as_str()))
        .collect()
}

/// The pods of the scheduling groups that a claim is reserved for.
pub(super) fn pods_of_groups(claim: &ResourceClaim, reader: &dyn Reader) -> Vec<Key> {
    let namespace = &Object::metadata(claim).namespace;
    let groups = consumers(claim)
        .iter()
        .filter(|consumer| is_group(consumer));
    let pods = groups.flat_map(|group| {
        reader.indexed(Pod::resource(), BY_GROUP, &group_id(namespace, &group.name))
    });
    pods.map(|pod| Key::of_meta(pod.metadata())).collect()
}

/// The claims that were given a device.
pub(super) fn claims_with(reader: &dyn Reader, device: &str) -> Vec<Arc<ResourceClaim>> {
    let claims = reader.indexed(ResourceClaim::resource(), BY_DEVICE, device);
    claims
        .into_iter()
        .filter_map(cast::<ResourceClaim>)
        .collect()
}
