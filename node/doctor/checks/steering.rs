//! The orders of operators to the fleet.

use coordinator::ReplicaLease;
use serde_json::{Map, Value, json};
use steering::{Order, Orders, Target};

use super::{Finding, rights::INSTALL, some};
use crate::facts::Facts;

pub(super) fn orders(facts: &Facts) -> Finding {
    let (namespace, name) = (facts.namespace(), steering::object_name(facts.fleet_name()));
    let orders = match &facts.orders {
        Ok(Some(orders)) => orders,
        Ok(None) => {
            return Finding::warning(
                format!(
                    "there is no ConfigMap {namespace}/{name}: nobody can pause a controller or drain a replica who may not \
                     create it"
                ),
                [INSTALL],
            );
        }
        Err(unknown) => return Finding::unknown(unknown),
    };
    if !orders.faults.is_empty() {
        // What is no order has no effect, so nothing is lost with it.
        let removed: Map<String, Value> = orders
            .faults
            .iter()
            .map(|fault| (fault.field.clone(), Value::Null))
            .collect();
        return Finding::warning(
            format!(
                "{} fields of the ConfigMap {namespace}/{name} have no effect: {}",
                orders.faults_count(),
                some(&orders.faults_in_words())
            ),
            [format!(
                "kubectl -n {namespace} patch configmap {name} --type=merge --patch='{}'",
                json!({"data": removed})
            )],
        );
    }
    let gone = targets_gone(facts, orders);
    if !gone.is_empty() {
        return Finding::warning(
            format!(
                "moves have no effect, since no ready replica is called so: {}",
                some(&gone)
            ),
            ["kubectl manifold unmove RANGE, or move it to a replica that is there"],
        );
    }
    let held: Vec<String> = orders
        .in_force(facts.now)
        .into_values()
        .map(shown)
        .collect();
    Finding::passed(match held.is_empty() {
        true => "none".to_owned(),
        false => some(&held),
    })
}

/// Moves to replicas that are not there, as `range 7 to manifold-9`.
fn targets_gone(facts: &Facts, orders: &Orders) -> Vec<String> {
    let Some(fleet) = facts.fleet() else {
        return Vec::new();
    };
    let takes = |name: &str| {
        let mut replicas = fleet.replicas.iter();
        let takes = |said: &ReplicaLease| {
            let status = &said.status;
            status.ready && !status.draining && !status.stale
        };
        replicas.any(|one| one.said.name == name && one.is_live() && takes(&one.said))
    };
    let moves = orders
        .in_force(facts.now)
        .into_values()
        .filter_map(|order| {
            let to = order.to.as_deref()?;
            (!takes(to)).then(|| format!("{} to {to}", order.target))
        });
    moves.collect()
}

fn shown(order: &Order) -> String {
    let what = match (&order.target, order.amount) {
        (Target::Range(_), _) => format!("moved to {}", order.to.as_deref().unwrap_or_default()),
        (Target::Controller(_) | Target::Key { .. }, _) => "paused".to_owned(),
        (Target::Replica(_), _) => "drained".to_owned(),
        (Target::Setting { .. }, None) => "set".to_owned(),
        (Target::Setting { .. }, Some(amount)) => format!("set to {amount}"),
    };
    format!("{} {what} until {}", order.target, order.until)
}
