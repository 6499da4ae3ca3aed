//! Keeps a ServiceCIDR until no Service needs it any more, and sets the condition `Ready` of the others.
//!
//! Watches servicecidrs and ipaddresses; patches the finalizer and the `Ready` condition of servicecidrs; one
//! key for the cluster, so that of two equal ranges that are deleted together one stays as long as it is
//! needed; remembers nothing. A finalizer is removed only 10 s after the deletion, and when the cache is
//! proven to hold every IPAddress and ServiceCIDR that there was when this was decided.

use std::{net::IpAddr, sync::Arc};

use controllers_kit::{
    Controller, Descriptor, Event, Flags, Key, PatchKind, Plan, Query, Refusal, Resource, Sharding,
    SignedDuration, Snapshot, StatusWrite, Timestamp, Watches, cast,
    cidr::Cidr,
    conditions::{self, Policy},
};
use kubernetes_proto::{
    Object,
    meta::{Condition, Time},
    networking::{IpAddress, ServiceCidr},
};
use serde_json::json;

const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";
const READY: &str = "Ready";
/// Until then an API server may not have seen the deletion, and allocate one more address.
const GRACE: SignedDuration = SignedDuration::from_secs(10);
/// Who makes the IPAddresses of Services.
const MANAGED_BY: (&str, &str) = ("ipaddress.kubernetes.io/managed-by", "ipallocator.k8s.io");

/// The controller.
pub struct ServiceCidrs;

fn only_key() -> Key {
    Key::cluster("servicecidrs")
}

fn ranges(of: &ServiceCidr) -> impl Iterator<Item = Cidr> {
    let texts = of.spec.iter().flat_map(|spec| &spec.cidrs);
    texts.filter_map(|text| Cidr::parse(text))
}

/// Whether a Service may have this address of a range: the network address and, in IPv4, the broadcast
/// address are not allocated.
fn gives(range: Cidr, address: IpAddr) -> bool {
    let broadcast = address.is_ipv4() && address == range.last();
    range.contains(address) && address != range.first() && !broadcast
}

/// Whether a ServiceCIDR is being deleted and still has our finalizer.
fn is_leaving(of: &ServiceCidr) -> bool {
    let held = Object::metadata(of).finalizers.iter();
    of.is_terminating() && held.into_iter().any(|name| *name == *FINALIZER)
}

/// The earliest instant at which a terminating ServiceCIDR may be released.
fn grace_end(of: &ServiceCidr) -> Timestamp {
    let since = Object::metadata(of).deletion_timestamp;
    since.map_or(Timestamp::MIN, |since| since.timestamp() + GRACE)
}

/// The address of an IPAddress that a Service has.
fn of_service(object: &IpAddress) -> Option<IpAddr> {
    let meta = Object::metadata(object);
    let managed = meta.label(MANAGED_BY.0) == Some(MANAGED_BY.1);
    meta.name.parse().ok().filter(|_| managed)
}

/// The reads that a plan rests on where it releases a ServiceCIDR.
fn barriers() -> [&'static Resource; 2] {
    [IpAddress::resource(), ServiceCidr::resource()]
}

impl Controller for ServiceCidrs {
    type Memory = ();

    fn describe() -> Descriptor {
        Descriptor::new("service-cidr-controller", Sharding::Single)
            .service_account("service-cidrs-controller")
            .queue("ipaddresses")
            .writes::<ServiceCidr>(&["patch"])
            .writes_status::<ServiceCidr>()
            .reads::<IpAddress>()
            .differences(include_str!("differences.md"))
    }

    fn new(_: &Flags) -> Self {
        Self
    }

    fn watch(&self, on: &mut Watches) {
        on.kind::<ServiceCidr>().wakes(|_, _| vec![only_key()]);
        // Addresses matter to terminating ranges, and thousands come and go while there is none.
        on.kind::<IpAddress>().wakes(|change, reader| {
            let moved = change.old.is_none() || change.new.is_none();
            let ranges = || reader.list(ServiceCidr::resource(), None);
            let ending =
                |object| cast::<ServiceCidr>(object).is_some_and(|one| one.is_terminating());
            let matters = moved && ranges().into_iter().any(ending);
            matters.then(only_key).into_iter().collect()
        });
    }

    fn ask(&self, key: &Key, seen: &Snapshot<'_>, (): &()) -> Vec<Query> {
        let all = seen.all::<ServiceCidr>();
        let due = |one: &Arc<ServiceCidr>| is_leaving(one) && grace_end(one) <= seen.now;
        if *key != only_key() || !all.iter().any(due) {
            return Vec::new();
        }
        barriers()
            .map(|resource| Query::Present { resource })
            .into()
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, (): &mut ()) -> Result<Plan, Refusal> {
        let mut plan = Plan::nothing();
        if *key != only_key() {
            return Ok(plan);
        }
        let all = seen.all::<ServiceCidr>();
        for one in all.iter().filter(|one| !one.is_terminating()) {
            keep(&mut plan, one, seen.now);
        }
        // Ranges that stay: one that this plan releases is no parent of the others any more, nor is one
        // that was released and waits for another client's finalizer.
        let mut staying = all.clone();
        staying.retain(|one| !one.is_terminating() || is_leaving(one));
        let mut lets_go = false;
        for one in all.iter().filter(|one| one.is_terminating()) {
            let uid = &Object::metadata(&**one).uid;
            let mut others = staying.clone();
            others.retain(|other| Object::metadata(&**other).uid != *uid);
            if !is_needless(one, &others, seen) {
                explain(&mut plan, one, seen.now);
            } else if !is_leaving(one) {
                // Nothing of ours holds it.
            } else if seen.now < grace_end(one) {
                plan.requeue_at(grace_end(one));
            } else {
                let mut left = Object::metadata(&**one).finalizers.clone();
                left.retain(|name| *name != *FINALIZER);
                let patch = json!({"metadata": {"finalizers": left}});
                plan.patch(&**one, "", PatchKind::Merge, patch, StatusWrite::No);
                staying = others;
                lets_go = true;
            }
        }
        if lets_go {
            for resource in barriers() {
                match seen.present(resource) {
                    Some(Ok(version)) if version > 0 => {
                        plan.rests_on(resource, &"".into(), version);
                    }
                    Some(Ok(_)) => {}
                    Some(Err(why)) => {
                        let id = resource.id();
                        return Err(Refusal::Retry(format!("{id} could not be asked: {why}")));
                    }
                    // The grace period ended after the queries were made.
                    None => return Ok(Plan::nothing().requeued_at(seen.now)),
                }
            }
        }
        Ok(plan)
    }
}

/// Whether a ServiceCIDR may be released: each of its ranges lies within another's, or no Service has an
/// address that lies in it alone.
fn is_needless(one: &ServiceCidr, others: &[Arc<ServiceCidr>], seen: &Snapshot<'_>) -> bool {
    let others: Vec<Cidr> = others.iter().flat_map(|other| ranges(other)).collect();
    let covered = |range: Cidr| others.iter().any(|other| other.covers(range));
    if ranges(one).all(covered) {
        return true;
    }
    let own: Vec<Cidr> = ranges(one).collect();
    let addresses = seen.all::<IpAddress>();
    let orphaned = |address: IpAddr| {
        own.iter().any(|range| gives(*range, address))
            && !others.iter().any(|range| gives(*range, address))
    };
    !addresses
        .iter()
        .filter_map(|object| of_service(object))
        .any(orphaned)
}

/// A live ServiceCIDR: the finalizer first, then the condition Ready. One write at a time, since each needs
/// the version that the other creates.
fn keep(plan: &mut Plan, one: &ServiceCidr, now: Timestamp) {
    let finalizers = &Object::metadata(one).finalizers;
    if !finalizers.iter().any(|name| *name == *FINALIZER) {
        let mut more = finalizers.clone();
        more.push(FINALIZER.into());
        let patch = json!({"metadata": {"finalizers": more}});
        plan.patch(one, "", PatchKind::Merge, patch, StatusWrite::No);
        return;
    }
    let said = set_ready(
        plan,
        one,
        now,
        ("True", "", "Kubernetes Service CIDR is ready"),
    );
    if said {
        let failure = Event::warning(
            one,
            "KubernetesServiceCIDRError",
            "The ServiceCIDR Status can not be set to Ready=True",
        );
        if let Some(action) = plan.stages.last_mut().and_then(|stage| stage.last_mut()) {
            action.announce_failure_as_is(failure);
        }
    }
}

/// Says why one that is being deleted stays.
fn explain(plan: &mut Plan, one: &ServiceCidr, now: Timestamp) {
    let message = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR";
    set_ready(plan, one, now, ("False", "Terminating", message));
}

/// Sets the condition where it differs; whether it does.
fn set_ready(
    plan: &mut Plan,
    one: &ServiceCidr,
    now: Timestamp,
    (status, reason, message): (&str, &str, &str),
) -> bool {
    let mut new = one.clone();
    let wanted = Condition {
        r#type: READY.to_owned(),
        status: status.to_owned(),
        observed_generation: 0,
        last_transition_time: Some(Time::from(now)),
        reason: reason.to_owned(),
        message: message.to_owned(),
    };
    let status = new.status.get_or_insert_default();
    if !conditions::set(&mut status.conditions, wanted, Policy::Restamp) {
        return false;
    }
    plan.update_status(one, &new)
        .map(|action| action.reports(StatusWrite::No))
        .is_some()
}

#[cfg(test)]
pub(crate) mod tests;
