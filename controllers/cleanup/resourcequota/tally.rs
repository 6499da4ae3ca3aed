//! What a namespace uses of what a quota limits.

use std::collections::BTreeMap;

use controllers_kit::{Resource, SignedDuration, Snapshot, Standing, Timestamp};
use kubernetes_proto::{
    Object, Str,
    core::{Amount, PersistentVolumeClaim, Pod, ResourceQuota, Service},
    quantity::Exact,
    resource::ResourceClaim,
};

use super::{Gates, context::Scope, devices, names, pods, services, volumes};

/// How soon a quota is recalculated whose resource could not be listed: no event says when it can be.
const RETRY_AFTER: SignedDuration = SignedDuration::from_secs(10);

/// The calculated usage of a quota.
#[derive(Default)]
pub(super) struct Tally {
    /// Usage by limit, without limits that could not be calculated.
    pub(super) used: BTreeMap<Str, Exact>,
    /// What was read, and for which limits.
    pub(super) read: Vec<(&'static Resource, Vec<Str>)>,
    /// When the usage changes, or could be calculated better, without an event.
    pub(super) requeue: Option<Timestamp>,
}

impl Tally {
    /// Limits on a resource start at zero.
    fn begin(&mut self, resource: &'static Resource, limits: Vec<Str>) {
        for limit in &limits {
            self.used.entry(limit.clone()).or_default();
        }
        self.read.push((resource, limits));
    }

    fn add(&mut self, limit: &Str, amount: Exact) {
        if let Some(sum) = self.used.get_mut(limit) {
            *sum = sum.plus(amount);
        }
    }

    fn requeue_at(&mut self, at: Timestamp) {
        self.requeue = Some(self.requeue.map_or(at, |earlier| earlier.min(at)));
    }
}

/// The conditions of a quota.
fn scopes(quota: &ResourceQuota) -> Vec<Scope<'_>> {
    let Some(spec) = &quota.spec else {
        return Vec::new();
    };
    let listed = spec.scopes.iter().map(|name| Scope {
        name,
        operator: "Exists",
        values: &[],
    });
    let selected = spec
        .scope_selector
        .iter()
        .flat_map(|selector| &selector.match_expressions)
        .map(|expression| Scope {
            name: &expression.scope_name,
            operator: &expression.operator,
            values: &expression.values,
        });
    listed.chain(selected).collect()
}

/// Reckons what is used of a quota's limits.
pub(super) fn of(
    quota: &ResourceQuota,
    hard: &[Amount],
    seen: &Snapshot<'_>,
    gates: Gates,
) -> Tally {
    let mut tally = Tally::default();
    let limits: Vec<&Str> = hard.iter().map(|amount| &amount.key).collect();
    let named = |of: &dyn Fn(&str) -> bool| -> Vec<Str> {
        let chosen = limits.iter().filter(|limit| of(limit));
        chosen.map(|limit| (*limit).clone()).collect()
    };
    let scopes = scopes(quota);
    let namespace = &Object::metadata(quota).namespace;

    let of_pods = named(&|limit| pods::charge(limit).is_some());
    let of_services = named(&|limit| services::is_limit(limit));
    let of_volumes = named(&|limit| volumes::is_limit(limit));
    let classes = devices::Classes::read(&limits, seen, gates);
    let of_devices = named(&|limit| classes.is_limit(limit));
    let of_objects = named(&|limit| names::counted(limit).is_some());

    if !of_pods.is_empty() {
        tally.begin(Pod::resource(), of_pods.clone());
    }
    if !of_devices.is_empty() {
        tally.begin(ResourceClaim::resource(), of_devices.clone());
    }
    add_pods(&mut tally, &of_pods, namespace, &scopes, seen, gates);
    if !of_services.is_empty() {
        tally.begin(Service::resource(), of_services.clone());
        // Scopes apply to pods and claims: nothing else matches them.
        if scopes.is_empty() {
            for service in seen.list::<Service>(namespace) {
                for limit in &of_services {
                    tally.add(limit, services::usage(&service, limit));
                }
            }
        }
    }
    if !of_volumes.is_empty() {
        tally.begin(PersistentVolumeClaim::resource(), of_volumes.clone());
        for claim in seen.list::<PersistentVolumeClaim>(namespace) {
            if scopes.iter().all(|scope| volumes::matches(&claim, scope)) {
                for limit in &of_volumes {
                    tally.add(limit, volumes::usage(&claim, limit));
                }
            }
        }
    }
    if !of_devices.is_empty() && scopes.is_empty() {
        for claim in seen.list::<ResourceClaim>(namespace) {
            for (limit, amount) in classes.usage(&claim, seen, gates) {
                tally.add(&limit, amount);
            }
        }
    }
    for limit in &of_objects {
        count_objects(&mut tally, limit, namespace, &scopes, seen);
    }
    tally
}

fn add_pods(
    tally: &mut Tally,
    limits: &[Str],
    namespace: &str,
    scopes: &[Scope<'_>],
    seen: &Snapshot<'_>,
    gates: Gates,
) {
    let charges: Vec<(&Str, pods::Charge<'_>)> = limits
        .iter()
        .filter_map(|limit| Some((limit, pods::charge(limit)?)))
        .collect();
    if charges.is_empty() {
        return;
    }
    for pod in seen.list::<Pod>(namespace) {
        if !scopes.iter().all(|scope| pods::matches(&pod, scope, gates)) {
            continue;
        }
        let lives = pods::lives(&pod, seen.now);
        if lives && let Some(until) = pods::lives_until(&pod) {
            tally.requeue_at(until);
        }
        for (limit, charge) in &charges {
            if lives || *charge == pods::Charge::Object {
                tally.add(limit, pods::usage(&pod, charge, gates));
            }
        }
    }
}

/// Counts objects of whatever resource a limit names. One that is not served is not reported.
fn count_objects(
    tally: &mut Tally,
    limit: &Str,
    namespace: &str,
    scopes: &[Scope<'_>],
    seen: &Snapshot<'_>,
) {
    let Some((group, plural)) = names::counted(limit) else {
        return;
    };
    let catalogue = seen.catalogue();
    let Some(entry) = names::find(&catalogue, group, plural) else {
        // A resource that is served, or should be, is reported when discovery has shown it.
        if names::is_always_known(group, plural) && catalogue.is_known() {
            tally.requeue_at(seen.now + RETRY_AFTER);
        }
        return;
    };
    let resource = entry.resource;
    match seen.reader().standing(resource) {
        Standing::Complete => {}
        // All quotas are woken when the list is there.
        Standing::Listing => return,
        Standing::Failing | Standing::Unwatched => {
            tally.requeue_at(seen.now + RETRY_AFTER);
            return;
        }
    }
    tally.begin(resource, vec![limit.clone()]);
    if scopes.is_empty() {
        let count = seen.reader().list(resource, Some(namespace)).len();
        tally.add(
            limit,
            Exact::of_count(i64::try_from(count).unwrap_or(i64::MAX)),
        );
    }
}
