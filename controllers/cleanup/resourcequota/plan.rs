//! The status that a quota should have.

use std::collections::BTreeMap;

use controllers_kit::{Plan, SignedDuration, Snapshot};
use kubernetes_proto::{
    Object, Str,
    core::{Amount, ResourceQuota},
    quantity::Exact,
};

use super::{Gates, context::exact, tally};

/// How soon usage that was lowered, or reported for the first time, is calculated once more: objects that
/// were still being created, charged by admission or admitted before the limit, exist by then.
const MADE_BY_THEN: SignedDuration = SignedDuration::from_secs(1);

/// Recalculates a quota.
pub(super) fn plan(quota: &ResourceQuota, seen: &Snapshot<'_>, gates: Gates) -> Plan {
    let mut plan = Plan::nothing();
    let spec = quota.spec.as_ref();
    let hard = spec.map_or(&[][..], |spec| &spec.hard);
    let status = quota.status.clone().unwrap_or_default();
    let tally = tally::of(quota, hard, seen, gates);
    if let Some(at) = tally.requeue {
        plan.requeue_at(at);
    }

    // A limit that can't be calculated keeps its reported usage; a removed limit is no longer reported.
    let reported = by_name(&status.used);
    let mut used: BTreeMap<&Str, Amount> = BTreeMap::new();
    for limit in hard {
        let name = &limit.key;
        if let Some(now) = tally.used.get(name) {
            used.insert(
                name,
                Amount {
                    key: name.clone(),
                    value: Some(now.quantity()),
                },
            );
        } else if let Some(kept) = status.used.iter().find(|amount| amount.key == *name) {
            used.insert(name, kept.clone());
        }
    }
    let used: Vec<Amount> = used.into_values().collect();

    if equal(hard, &status.hard) && equal(&used, &status.used) {
        return plan;
    }

    // Admission trusts the reported usage: it must not be lowered from a cache that lags behind what
    // admission has let in, nor begin without objects that are older than the limit, which nobody charged.
    let meta = Object::metadata(quota);
    for (resource, names) in &tally.read {
        let trusted = names.iter().any(|name| {
            let now = tally.used.get(name);
            now.is_some_and(|now| match reported.get(name) {
                Some(before) => before.exceeds(*now),
                None => true,
            })
        });
        if trusted {
            plan.rests_on(resource, &meta.namespace, meta.resource_version);
            plan.requeue_at(seen.now + MADE_BY_THEN);
        }
    }
    let mut new = quota.clone();
    let status = new.status.get_or_insert_default();
    status.hard = hard.to_vec();
    status.used = used;
    plan.update_status(quota, &new);
    plan
}

fn by_name(amounts: &[Amount]) -> BTreeMap<&Str, Exact> {
    amounts
        .iter()
        .filter_map(|amount| Some((&amount.key, exact(amount)?)))
        .collect()
}

/// Whether two lists have equal amounts, however written.
pub(super) fn equal(one: &[Amount], other: &[Amount]) -> bool {
    let (one, other) = (by_name(one), by_name(other));
    one.len() == other.len()
        && one.iter().all(|(name, amount)| {
            other
                .get(name)
                .is_some_and(|other_amount| amount.equals(*other_amount))
        })
}
