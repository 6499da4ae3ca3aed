//! What more than one owner, old views and lost memories could do.

use std::collections::BTreeSet;

use controllers_kit::FlagValue;
use controllers_kit::{
    Key, Requeue,
    testing::{Common, PodBuild, ServiceBuild, World, service},
};
use kubernetes_proto::{
    core::{Pod, Service},
    discovery::EndpointSlice,
};

use super::*;

#[test]
fn two_owners_that_plan_from_one_view_make_one_slice() {
    let mut world = cluster(service("web"), 5);
    let one = world.plan::<SlicesOfServices>("web");
    let other = world.plan::<SlicesOfServices>("web");
    assert_eq!(one, other);
    world.apply(&one).expect_success();
    let failed = world.apply(&other);
    assert_eq!(failed.failures().len(), 1);
    assert_eq!(slices(&world).len(), 1);
}

#[test]
fn an_owner_with_an_older_view_puts_no_endpoint_into_a_second_slice() {
    let world =
        |pods| cluster(service("web"), pods).flag("max-endpoints-per-slice", FlagValue::Int(3));
    // The old view lacks pods; the new one has them, and packs them otherwise.
    for (old, new) in [(1, 4), (4, 9), (3, 10), (2, 7)] {
        let before = world(old);
        let stale = before.plan::<SlicesOfServices>("web");
        let mut now = before;
        for number in old..new {
            now.put(backend(number));
        }
        let fresh = now.plan::<SlicesOfServices>("web");
        for (first, second) in [(&fresh, &stale), (&stale, &fresh)] {
            let mut world = now.clone();
            world.apply(first).expect_success();
            assert!(!world.apply(second).failures().is_empty());
            let held = published(&world);
            assert_eq!(
                held.iter().collect::<BTreeSet<_>>().len(),
                held.len(),
                "{held:?}"
            );
            run(&mut world);
            assert_eq!(published(&world).len(), new);
        }
    }
}

#[test]
fn a_change_of_an_old_view_fails_before_anything_is_made() {
    let mut world = cluster(service("web"), 2).flag("max-endpoints-per-slice", FlagValue::Int(3));
    run(&mut world);
    for number in 2..5 {
        world.put(backend(number));
    }
    world.change::<Pod>("web-0", |pod| {
        *pod = pod.clone().condition("Ready", "False", "11:59:00");
    });
    // Another owner, whose view lacks two of the new pods, has put the third into the slice that has room.
    let stale = world.plan::<SlicesOfServices>("web");
    assert!(stale.verbs()[0].starts_with("patch ") && stale.verbs()[1].starts_with("create "));
    let mut others = world.clone();
    others.vanish::<Pod>("web-2");
    others.vanish::<Pod>("web-4");
    world
        .apply(&others.plan::<SlicesOfServices>("web"))
        .expect_success();
    assert_eq!(world.apply(&stale).failures().len(), 2);
    assert_eq!(published(&world), ["web-0", "web-1", "web-3"]);
    run(&mut world);
    assert_eq!(published(&world).len(), 5);
}

#[test]
fn an_endpoint_that_two_owners_have_placed_leaves_one_slice_at_the_next_sync() {
    let mut world = cluster(service("web"), 2).flag("max-endpoints-per-slice", FlagValue::Int(3));
    run(&mut world);
    for number in 2..5 {
        world.put(backend(number));
    }
    // Nothing of the stale plan touches the slice that the other owner has filled up.
    let stale = world.plan::<SlicesOfServices>("web");
    let mut others = world.clone();
    others.vanish::<Pod>("web-2");
    others.vanish::<Pod>("web-4");
    world
        .apply(&others.plan::<SlicesOfServices>("web"))
        .expect_success();
    world.apply(&stale).expect_success();
    // After a takeover the node would have refused it, for this is what it rests on.
    assert_eq!(stale.counted.len(), 1);
    run(&mut world);
    assert_eq!(
        published(&world),
        ["web-0", "web-1", "web-2", "web-3", "web-4"]
    );
}

#[test]
fn a_slice_is_deleted_only_as_it_was_seen() {
    let mut world = cluster(service("web"), 4).flag("max-endpoints-per-slice", FlagValue::Int(2));
    run(&mut world);
    let mut stale = world.clone();
    let doomed = slices(&world)
        .into_iter()
        .find(|slice| slice.endpoints.iter().any(|one| pod_of(one) == "web-3"))
        .unwrap();
    for one in &doomed.endpoints {
        stale.vanish::<Pod>(pod_of(one));
    }
    let plan = stale.plan::<SlicesOfServices>("web");
    assert_eq!(
        plan.verbs(),
        [format!("delete endpointslices/{}", name(&doomed))]
    );
    // Meanwhile another owner has made use of it.
    world.change::<EndpointSlice>(name(&doomed), |slice| slice.endpoints.truncate(1));
    assert_eq!(world.apply(&plan).failures().len(), 1);
    assert!(world.find::<EndpointSlice>(name(&doomed)).is_some());
}

#[test]
fn a_returning_owner_s_memory_does_no_harm() {
    let mut world = cluster(service("web"), 2);
    let mut memory = fresh();
    let plan = world
        .plan_with::<SlicesOfServices>("web", &mut memory)
        .unwrap();
    world.apply(&plan).expect_success();
    // While another owns the key, the slices are replaced and the pods change.
    for slice in slices(&world) {
        world.vanish::<EndpointSlice>(name(&slice));
    }
    world.vanish::<Pod>("web-1");
    run(&mut world);
    world.put(backend(5));
    let plan = world
        .plan_with::<SlicesOfServices>("web", &mut memory)
        .unwrap();
    world.apply(&plan).expect_success();
    assert_eq!(published(&world), ["web-0", "web-5"]);
}

#[test]
fn a_change_that_waits_for_a_period_keeps_waiting_under_the_next_owner() {
    let period = FlagValue::Duration(std::time::Duration::from_secs(10));
    let mut world = cluster(service("web"), 1).flag("endpointslice-updates-batch-period", period);
    let mut memory = fresh();
    let plan = world
        .plan_with::<SlicesOfServices>("web", &mut memory)
        .unwrap();
    world.apply(&plan).expect_success();
    let _ = world.plan_with::<SlicesOfServices>("web", &mut memory);
    world.put(backend(1));
    let _ = world.plan_with::<SlicesOfServices>("web", &mut memory);
    let mut handed: Memory = serde_json::from_slice(&serde_json::to_vec(&memory).unwrap()).unwrap();
    let plan = world
        .later(7)
        .plan_with::<SlicesOfServices>("web", &mut handed)
        .unwrap();
    assert_eq!(
        plan.requeue,
        Requeue::At(controllers_kit::testing::at("12:00:10"))
    );
}

#[test]
fn created_and_deleted_slices_were_counted() {
    let mut world = cluster(service("web"), 1);
    let plan = world.plan::<SlicesOfServices>("web");
    let text = plan.counted[0].selector.text().unwrap();
    assert_eq!(
        text,
        "endpointslice.kubernetes.io/managed-by=endpointslice-controller.k8s.io,kubernetes.io/service-name=web"
    );
    run(&mut world);
    world.put(backend(1));
    assert!(
        world.plan::<SlicesOfServices>("web").counted.is_empty(),
        "a patch insists on the version seen"
    );
}

#[test]
fn a_pod_wakes_every_service_that_selects_it() {
    let wide = {
        let mut wide = service("wide");
        wide.spec.as_mut().unwrap().selector = service("web").spec.unwrap().selector;
        wide
    };
    let narrow = {
        let mut narrow = service("narrow");
        let selector = &mut narrow.spec.as_mut().unwrap().selector;
        *selector = service("web").spec.unwrap().selector;
        kubernetes_proto::meta::set(selector, "tier", "front");
        narrow
    };
    let mut world = cluster(service("web"), 0)
        .with(wide)
        .with(narrow)
        .with(service("other"))
        .with(service("web").in_namespace("elsewhere"));
    run(&mut world);
    let of = |world: &World, label: &str| -> Vec<String> {
        slices(world)
            .iter()
            .filter(|slice| slice.metadata().label("kubernetes.io/service-name") == Some(label))
            .flat_map(|slice| slice.endpoints.iter().map(|one| pod_of(one).to_owned()))
            .collect()
    };
    world.put(backend(0));
    run(&mut world);
    assert_eq!(
        (
            of(&world, "web").len(),
            of(&world, "wide").len(),
            of(&world, "narrow").len()
        ),
        (1, 1, 0)
    );
    // Labels alone bring it in and out.
    world.change::<Pod>("web-0", |pod| pod.metadata_mut().set_label("tier", "front"));
    run(&mut world);
    assert_eq!(of(&world, "narrow"), ["web-0"]);
    world.change::<Pod>("web-0", |pod| pod.metadata_mut().set_label("app", "other"));
    run(&mut world);
    assert_eq!(
        (
            of(&world, "web").len(),
            of(&world, "narrow").len(),
            of(&world, "other").len()
        ),
        (0, 0, 1)
    );
}

#[test]
fn a_pod_that_ends_without_ever_having_been_ready_leaves() {
    let mut world =
        cluster(service("web"), 0).with(backend(0).condition("Ready", "False", "11:50:00"));
    run(&mut world);
    assert_eq!(published(&world), ["web-0"]);
    world.change::<Pod>("web-0", |pod| *pod = pod.clone().phase("Failed"));
    run(&mut world);
    assert_eq!(published(&world), [""; 0]);
}

/// xorshift, so that a failure can be replayed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % bound
    }
}

/// Pods come, go, turn and end; now and then the owner's memory is lost or a slice is taken away. At every
/// rest each reachable pod is in one slice, and no slice is too full.
#[test]
fn at_rest_every_pod_is_in_one_slice_whatever_happened() {
    const MOST: usize = 4;
    for seed in 1..=20_u64 {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut world = cluster(service("web").families(&["IPv4", "IPv6"]), 3).flag(
            "max-endpoints-per-slice",
            FlagValue::Int(i64::try_from(MOST).unwrap()),
        );
        let mut next = 3;
        for step in 0..40 {
            for _ in 0..=dice.below(5) {
                let pods = world.all::<Pod>();
                let any =
                    (!pods.is_empty()).then(|| Key::of(&*pods[dice.below(pods.len())]).to_string());
                match (dice.below(6), any) {
                    (0 | 1, _) | (_, None) => {
                        world.put(backend(next).ip(&format!("fd00::{next}")));
                        next += 1;
                    }
                    (2, Some(pod)) => world.vanish::<Pod>(&pod),
                    (3, Some(pod)) => world.change::<Pod>(&pod, |pod| {
                        let turned = if controllers_kit::pods::is_ready(pod) {
                            "False"
                        } else {
                            "True"
                        };
                        *pod = pod.clone().condition("Ready", turned, "11:59:00");
                    }),
                    (4, Some(pod)) => {
                        world.change::<Pod>(&pod, |pod| *pod = pod.clone().phase("Failed"));
                    }
                    (_, Some(_)) => {
                        let slices = slices(&world);
                        if !slices.is_empty() {
                            world.vanish::<EndpointSlice>(name(&slices[dice.below(slices.len())]));
                        }
                    }
                }
            }
            run(&mut world);
            for family in ["IPv4", "IPv6"] {
                let wants_v6 = family == "IPv6";
                let expected: BTreeSet<String> = world
                    .all::<Pod>()
                    .iter()
                    .filter(|pod| crate::services::is_reachable(pod))
                    .filter(|pod| {
                        crate::services::addresses(pod).any(|ip| ip.is_ipv6() == wants_v6)
                    })
                    .map(|pod| pod.metadata().name.to_string())
                    .collect();
                let of: Vec<_> = slices(&world)
                    .into_iter()
                    .filter(|slice| slice.address_type == family)
                    .collect();
                let held: Vec<String> = of
                    .iter()
                    .flat_map(|slice| slice.endpoints.iter().map(|one| pod_of(one).to_owned()))
                    .collect();
                assert_eq!(
                    held.len(),
                    expected.len(),
                    "seed {seed}, step {step}, {family}: {held:?}"
                );
                assert_eq!(
                    held.into_iter().collect::<BTreeSet<_>>(),
                    expected,
                    "seed {seed}, step {step}"
                );
                assert!(
                    of.iter().all(|slice| slice.endpoints.len() <= MOST),
                    "seed {seed}, step {step}"
                );
                assert!(
                    !of.is_empty(),
                    "seed {seed}, step {step}: the Service has none"
                );
            }
        }
    }
}

#[test]
fn a_service_that_goes_is_forgotten() {
    let mut world = cluster(service("web"), 1);
    let mut memory = fresh();
    memory
        .hints
        .insert("IPv4".to_owned(), "something".to_owned());
    world.vanish::<Service>("web");
    assert!(
        world
            .plan_with::<SlicesOfServices>("web", &mut memory)
            .unwrap()
            .is_nothing()
    );
    assert_eq!(memory, fresh());
}
