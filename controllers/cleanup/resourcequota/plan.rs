//! The status that a quota should have.

use std::collections::BTreeMap;

use controllers_kit::{Plan, Seen, SignedDuration};
use kubernetes_proto::{
    Object, Str,
    core::{Amount, ResourceQuota},
    quantity::Exact,
};

use super::{Gates, context::exact, tally};

/// How soon usage that was lowered is reckoned once more: what admission had charged for and was only being
/// made is there by then.
const MADE_BY_THEN: SignedDuration = SignedDuration::from_secs(1);

/// Reckons a quota again.
pub(super) fn plan(quota: &ResourceQuota, seen: &Seen<'_>, gates: Gates) -> Plan {
    let mut plan = Plan::nothing();
    let spec = quota.spec.as_ref();
    let hard = spec.map_or(&[][..], |spec| &spec.hard);
    let status = quota.status.clone().unwrap_or_default();
    let tally = tally::of(quota, hard, seen, gates);
    if let Some(at) = tally.again {
        plan.look_again_at(at);
    }

    // What can't be reckoned keeps what was told of it; what has no limit any more is told no longer.
    let told = by_name(&status.used);
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
        } else if let Some(told) = status.used.iter().find(|told| told.key == *name) {
            used.insert(name, told.clone());
        }
    }
    let used: Vec<Amount> = used.into_values().collect();

    if equal(hard, &status.hard) && equal(&used, &status.used) {
        return plan;
    }

    // Admission trusts what is told: less must not be told from a cache that lags behind what admission has
    // let in.
    let meta = Object::metadata(quota);
    for (resource, names) in &tally.read {
        let lowered = names.iter().any(|name| {
            let before = told.get(name).copied().unwrap_or_default();
            tally.used.get(name).is_some_and(|now| before.exceeds(*now))
        });
        if lowered {
            plan.rests_on(resource, &meta.namespace, meta.resource_version);
            plan.look_again_at(seen.now + MADE_BY_THEN);
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

/// Whether two lists say the same, however written.
pub(super) fn equal(one: &[Amount], other: &[Amount]) -> bool {
    let (one, other) = (by_name(one), by_name(other));
    one.len() == other.len()
        && one.iter().all(|(name, amount)| {
            other
                .get(name)
                .is_some_and(|other_amount| amount.equals(*other_amount))
        })
}
