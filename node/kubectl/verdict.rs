//! Whether a fleet is well, by what its replicas say: pure.

use inspect::{FleetShards, Unhappy};

/// What is wrong, a line each; empty where nothing is. Keys that fail are their objects' trouble, not the
/// fleet's: they are counted elsewhere.
pub fn problems(shards: &FleetShards) -> Vec<String> {
    let mut problems = Vec::new();
    let unowned: Vec<String> = shards
        .ranges
        .iter()
        .filter(|range| range.owner.is_none())
        .map(|range| range.range.to_string())
        .collect();
    let without_lease = usize::try_from(shards.ranges_total)
        .unwrap_or(usize::MAX)
        .saturating_sub(shards.ranges.len());
    if !unowned.is_empty() || without_lease > 0 {
        let named = match unowned.len() {
            0 => String::new(),
            1..=10 => format!(" ({})", unowned.join(", ")),
            _ => format!(" ({}, …)", unowned[..10].join(", ")),
        };
        let count = unowned.len() + without_lease;
        problems.push(format!(
            "{count} of {} ranges have no owner{named}: their keys wait",
            shards.ranges_total
        ));
    }
    if shards.members.is_empty() {
        problems.push("no replica has a Lease".to_owned());
    }
    for member in &shards.members {
        if member.draining {
            problems.push(format!("{} is draining", member.name));
        } else if !member.ready {
            problems.push(format!("{} is not ready: its caches fill", member.name));
        }
        if !member.unreachable.is_empty() {
            problems.push(format!(
                "{} does not reach its peers {}",
                member.name, member.unreachable
            ));
        }
    }
    for replica in &shards.replicas {
        let owns = !replica.owned.is_empty();
        if !replica.fence.open && owns {
            problems.push(format!("{} is fenced: it writes nothing", replica.replica));
        }
        let waits: Vec<&str> = replica
            .controllers
            .iter()
            .filter(|controller| !controller.ready)
            .map(|controller| &*controller.name)
            .collect();
        if !waits.is_empty() {
            problems.push(format!(
                "{}: {} wait for their caches: see /readyz?verbose",
                replica.replica,
                waits.join(", ")
            ));
        }
        for one in &replica.set_aside {
            problems.push(format!(
                "{}: {} {} can't be used: {}",
                replica.replica, one.resource, one.object, one.why
            ));
        }
    }
    let mut suspected: Vec<&inspect::Suspected> = shards
        .replicas
        .iter()
        .flat_map(|one| &one.suspected)
        .collect();
    suspected.sort_by(|one, other| one.key.cmp(&other.key));
    suspected.dedup_by(|one, other| one.key == other.key);
    for one in suspected {
        problems.push(format!(
            "{} is quarantined: {} replicas died while they reconciled it",
            one.key, one.deaths
        ));
    }
    for fault in &shards.steering.faults {
        problems.push(format!(
            "an order has no effect: {fault}: correct or remove it in the ConfigMap {}",
            shards.steering.object
        ));
    }
    for one in shards
        .steering
        .moves
        .iter()
        .filter(|one| one.without_effect)
    {
        problems.push(format!(
            "range {} can't be moved to {}: no ready replica is called so, or one is of a build that knows no moves: kubectl \
             manifold unmove {0}",
            one.range, one.to
        ));
    }
    problems.extend(orders(shards));
    for one in &shards.missing {
        problems.push(format!("{} does not answer: {}", one.replica, one.why));
    }
    problems
}

/// Replicas that do not go by the fleet's orders as the one that was asked does.
fn orders(shards: &FleetShards) -> Vec<String> {
    let steering = &shards.steering;
    let held = steering.pauses.len()
        + steering.drains.len()
        + steering.settings.len()
        + steering.moves.len();
    let asked = shards
        .replicas
        .iter()
        .find(|one| one.replica == shards.replica);
    let asked = asked.and_then(|one| one.orders.as_ref());
    let say = |replica: &inspect::ReplicaShards| {
        let name = &replica.replica;
        match &replica.orders {
            // Of an older build.
            None if held == 0 => None,
            None => Some(format!("{name} knows nothing of orders: update it")),
            Some(orders) if !orders.unread.is_empty() => Some(format!(
                "{name} can't read the orders in the ConfigMap {}: {}",
                steering.object, orders.unread
            )),
            Some(orders) => {
                let asked = asked.filter(|asked| asked.unread.is_empty())?;
                let differs = orders.version == asked.version && orders.in_force != asked.in_force;
                differs.then(|| {
                    format!(
                        "{name} goes by {} orders and {} by {}: their clocks differ, see kubectl manifold doctor",
                        orders.in_force, shards.replica, asked.in_force
                    )
                })
            }
        }
    };
    shards.replicas.iter().filter_map(say).collect()
}

/// How many keys fail now.
pub fn failing(unhappy: &Unhappy) -> usize {
    let fails = |key: &&inspect::UnhappyKey| key.failures > 0;
    unhappy.keys.iter().filter(fails).count() + unhappy.hidden + unhappy.omitted
}

#[cfg(test)]
mod tests {
    use inspect::{
        ControllerState, Drain, Fence, Member, Missing, OrdersRead, OwnedRange, RangeOwner,
        ReplicaShards, SetAside, Suspected,
    };

    use super::*;

    fn well() -> FleetShards {
        FleetShards {
            members: vec![Member {
                name: "a".to_owned(),
                ready: true,
                ..Member::default()
            }],
            ranges: vec![RangeOwner {
                range: 0,
                owner: Some("a".to_owned()),
                epoch: 1,
                load: 0.0,
            }],
            ranges_total: 1,
            replicas: vec![ReplicaShards {
                replica: "a".to_owned(),
                fence: Fence { open: true },
                owned: vec![OwnedRange::default()],
                ..ReplicaShards::default()
            }],
            ..FleetShards::default()
        }
    }

    #[test]
    fn each_trouble_of_a_fleet_is_found() {
        type Break = fn(&mut FleetShards);
        let breaks: [(Break, &str); 12] = [
            (
                |fleet| {
                    let fault = "pause.x: it is no order".to_owned();
                    fleet.steering.faults.push(fault);
                },
                "an order has no effect: pause.x: it is no order",
            ),
            (
                |fleet| {
                    fleet.steering.moves.push(inspect::Moved {
                        range: 7,
                        to: "b".to_owned(),
                        without_effect: true,
                        ..inspect::Moved::default()
                    });
                    // It has read the order.
                    fleet.replicas[0].orders = Some(OrdersRead::default());
                },
                "range 7 can't be moved to b:",
            ),
            (
                |fleet| fleet.ranges[0].owner = None,
                "1 of 1 ranges have no owner (0)",
            ),
            (|fleet| fleet.ranges.clear(), "1 of 1 ranges have no owner:"),
            (|fleet| fleet.members.clear(), "no replica has a Lease"),
            (|fleet| fleet.members[0].ready = false, "a is not ready"),
            (|fleet| fleet.members[0].draining = true, "a is draining"),
            (
                |fleet| "b".clone_into(&mut fleet.members[0].unreachable),
                "a does not reach its peers b",
            ),
            (|fleet| fleet.replicas[0].fence.open = false, "a is fenced"),
            (
                |fleet| {
                    fleet.replicas[0].controllers.push(ControllerState {
                        name: "job-controller".to_owned(),
                        ..ControllerState::default()
                    });
                },
                "job-controller wait for their caches",
            ),
            (
                |fleet| {
                    fleet.replicas[0].set_aside.push(SetAside {
                        resource: "pods".to_owned(),
                        object: "shop/web".to_owned(),
                        ..SetAside::default()
                    });
                },
                "pods shop/web can't be used",
            ),
            (
                |fleet| {
                    fleet.missing.push(Missing {
                        replica: "b".to_owned(),
                        why: "no answer within 3s".to_owned(),
                    });
                },
                "b does not answer: no answer within 3s",
            ),
        ];
        assert_eq!(problems(&well()), Vec::<String>::new());
        for (make, expected) in breaks {
            let mut fleet = well();
            make(&mut fleet);
            let found = problems(&fleet);
            assert!(
                found.len() == 1 && found[0].contains(expected),
                "{expected}: {found:?}"
            );
        }
        let mut fleet = well();
        for _ in 0..2 {
            fleet.replicas[0].suspected.push(Suspected {
                key: "job-controller shop/pi".to_owned(),
                deaths: 2,
            });
        }
        assert_eq!(problems(&fleet).len(), 1);
    }

    #[test]
    fn a_replica_that_goes_by_other_orders_is_named() {
        let read = |version: &str, in_force, unread: &str| {
            Some(OrdersRead {
                version: version.to_owned(),
                in_force,
                unread: unread.to_owned(),
            })
        };
        for (case, drains, asked, other, expected) in [
            ("nobody knows of orders", 0, None, None, None),
            (
                "an older build, nothing is ordered",
                0,
                read("7", 0, ""),
                None,
                None,
            ),
            (
                "an older build",
                1,
                read("7", 1, ""),
                None,
                Some("b knows nothing of orders: update it"),
            ),
            (
                "no right",
                0,
                read("7", 0, ""),
                read("", 0, "forbidden"),
                Some("b can't read the orders in the ConfigMap fleet/orders: forbidden"),
            ),
            ("as the other", 1, read("7", 1, ""), read("7", 1, ""), None),
            // It is about to see it.
            (
                "a version behind",
                1,
                read("7", 1, ""),
                read("6", 0, ""),
                None,
            ),
            (
                "the clocks differ",
                1,
                read("7", 1, ""),
                read("7", 0, ""),
                Some("b goes by 0 orders and a by 1: their clocks differ"),
            ),
        ] {
            let mut fleet = well();
            fleet.replica = "a".to_owned();
            fleet.steering.object = "fleet/orders".to_owned();
            fleet.steering.drains = vec![Drain::default(); drains];
            fleet.replicas[0].orders = asked;
            let mut another = fleet.replicas[0].clone();
            (another.replica, another.orders) = ("b".to_owned(), other);
            fleet.replicas.push(another);
            let found = problems(&fleet);
            match expected {
                None => assert!(found.is_empty(), "{case}: {found:?}"),
                Some(part) => assert!(
                    found.len() == 1 && found[0].contains(part),
                    "{case}: {found:?}"
                ),
            }
        }
    }
}
