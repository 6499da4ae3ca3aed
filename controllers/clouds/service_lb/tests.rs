use std::{cell::RefCell, sync::Arc, time::Duration};

use controllers_kit::{
    Action, Factory, Plan, Requeue, Verb,
    cloud::{Call, Outcome as CloudOutcome, Refused},
    testing::{Common, NodeBuild, World, at, service},
};
use kubernetes_proto::core::{LoadBalancerStatus, Node, Service};

use super::{facts::*, *};
use crate::tests::{Bed, answer, balanced, events, healthy, ingress, machine, start};

const KEY: &str = "default/web";

fn held() -> Service {
    balanced("web").finalizer(FINALIZER)
}

fn refused(reason: Reason) -> CloudOutcome {
    Err(Refused::new(reason, "why"))
}

/// A provider that fails one call.
fn failing(name: &'static str, outcome: CloudOutcome) -> impl Fn(&Call) -> CloudOutcome {
    move |call| match call.deed.name() == name {
        true => outcome.clone(),
        false => healthy(call),
    }
}

fn bed(world: World) -> Bed<ServiceLb> {
    Bed::new(world, KEY)
}

/// Steps until a plan does something else than plan again at once; all events on the way.
fn until_it_waits(
    bed: &mut Bed<ServiceLb>,
    provider: impl Fn(&Call) -> CloudOutcome,
) -> (Plan, Vec<String>) {
    let mut reported = Vec::new();
    for _ in 0..10 {
        let plan = bed.step(&provider).unwrap();
        reported.extend(events(&plan));
        if plan.requeue != Requeue::Now || plan.actions().next().is_some() {
            return (plan, reported);
        }
    }
    panic!("it never waits");
}

/// A bed whose load balancer is made.
fn made(world: World) -> Bed<ServiceLb> {
    let mut bed = bed(world);
    let (plan, _) = until_it_waits(&mut bed, healthy);
    assert!(bed.memory.made.is_some());
    let action = plan.actions().next().unwrap();
    assert_eq!(action.rbac_resource(), "services/status");
    bed.world.change::<Service>(KEY, |service| {
        service.status.get_or_insert_default().load_balancer = Some(LoadBalancerStatus {
            ingress: vec![ingress("192.0.2.1")],
        });
    });
    // The status is another version of the Service, and no reason to ask again.
    assert_eq!(bed.step(healthy).unwrap(), Plan::nothing());
    bed.calls.clear();
    bed
}

fn patch_of(action: &Action) -> &serde_json::Value {
    match &action.verb {
        Verb::Patch { patch, .. } => patch,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_wanted_balancer_follows_from_type_class_finalizer_and_deletion() {
    let typed = |name: &str| {
        let mut service = service("web");
        service.spec.get_or_insert_default().r#type = name.to_owned();
        service
    };
    let classed = |mut service: Service| {
        service.spec.get_or_insert_default().load_balancer_class = Some("other".to_owned());
        service
    };
    let ending = |service: Service| service.terminating("11:59:00");
    for (service, dealt, wanted) in [
        (typed("ClusterIP"), false, Wish::Nothing),
        (typed("LoadBalancer"), false, Wish::Balance),
        (typed("LoadBalancer"), true, Wish::Balance),
        (typed("ClusterIP").finalizer(FINALIZER), false, Wish::Clean),
        (
            typed("LoadBalancer").finalizer(FINALIZER),
            false,
            Wish::Balance,
        ),
        (
            ending(typed("LoadBalancer").finalizer(FINALIZER)),
            false,
            Wish::Clean,
        ),
        (
            ending(typed("ClusterIP").finalizer(FINALIZER)),
            false,
            Wish::Clean,
        ),
        (
            ending(typed("LoadBalancer").finalizer("other/x")),
            false,
            Wish::Nothing,
        ),
        (classed(typed("LoadBalancer")), false, Wish::Nothing),
        (classed(typed("LoadBalancer")), true, Wish::Clean),
        (
            classed(typed("LoadBalancer")).finalizer(FINALIZER),
            false,
            Wish::Nothing,
        ),
        (
            ending(classed(typed("LoadBalancer")).finalizer(FINALIZER)),
            false,
            Wish::Clean,
        ),
        (typed("ClusterIP"), true, Wish::Clean),
    ] {
        assert_eq!(wish(&service, dealt), wanted, "{service:?} {dealt}");
    }
}

#[test]
fn the_load_balancer_is_ensured_again_for_what_it_is_made_of_alone() {
    type Change = fn(&mut Service);
    fn spec(service: &mut Service) -> &mut kubernetes_proto::core::ServiceSpec {
        service.spec.get_or_insert_default()
    }
    let rows: [(&str, Change, bool); 16] = [
        ("ports: number", |s| spec(s).ports[0].port = 81, true),
        (
            "ports: node port",
            |s| spec(s).ports[0].node_port = 30_001,
            true,
        ),
        (
            "ports: name",
            |s| spec(s).ports[0].name = "x".to_owned(),
            true,
        ),
        (
            "ports: appProtocol",
            |s| spec(s).ports[0].app_protocol = Some("http".to_owned()),
            true,
        ),
        (
            "external IPs",
            |s| spec(s).external_i_ps.push("192.0.2.3".to_owned()),
            true,
        ),
        (
            "source ranges",
            |s| {
                spec(s)
                    .load_balancer_source_ranges
                    .push("10.0.0.0/8".to_owned());
            },
            true,
        ),
        (
            "load balancer IP",
            |s| spec(s).load_balancer_ip = "192.0.2.4".to_owned(),
            true,
        ),
        (
            "session affinity",
            |s| spec(s).session_affinity = "ClientIP".to_owned(),
            true,
        ),
        (
            "traffic policy",
            |s| spec(s).external_traffic_policy = "Local".to_owned(),
            true,
        ),
        (
            "health check port",
            |s| spec(s).health_check_node_port = 30_002,
            true,
        ),
        (
            "families",
            |s| spec(s).ip_families.push("IPv6".to_owned()),
            true,
        ),
        (
            "families: order",
            |s| spec(s).ip_families = vec!["IPv6".to_owned()],
            false,
        ),
        (
            "annotations",
            |s| s.metadata_mut().set_annotation("a", "b"),
            true,
        ),
        ("uid", |s| s.metadata_mut().uid = "other".into(), true),
        ("labels", |s| s.metadata_mut().set_label("a", "b"), false),
        ("selector", |s| spec(s).selector.clear(), false),
    ];
    for (what, change, matters) in rows {
        let old = held();
        let mut new = held();
        change(&mut new);
        assert_eq!(spec_hash(&old) != spec_hash(&new), matters, "{what}");
    }
}

#[test]
fn which_nodes_are_behind_load_balancers() {
    let excluded = |value: &str| {
        machine("n", "True").label(
            "node.kubernetes.io/exclude-from-external-load-balancers",
            value,
        )
    };
    for (node, behind) in [
        (machine("n", "True"), true),
        (machine("n", "False"), true),
        (machine("n", "Unknown"), true),
        (excluded(""), false),
        (excluded("true"), false),
        (excluded("1"), false),
        (excluded("nonsense"), false),
        (excluded("false"), true),
        (excluded("0"), true),
        (
            machine("n", "True").taint("ToBeDeletedByClusterAutoscaler", "", "NoSchedule"),
            false,
        ),
        (machine("n", "True").taint("other", "", "NoSchedule"), true),
        (
            machine("n", "True")
                .finalizer("x/y")
                .terminating("11:59:00"),
            false,
        ),
    ] {
        let reported = format!("{node:?}");
        let world = start().with(node);
        let none = controllers_kit::Answers::new();
        let seen = Snapshot::new(&world, &none, world.now());
        assert_eq!(!hosts(&seen).is_empty(), behind, "{reported}");
    }
}

#[test]
fn which_changes_of_a_node_matter() {
    let excluded = || {
        machine("n", "True").label(
            "node.kubernetes.io/exclude-from-external-load-balancers",
            "true",
        )
    };
    let identified = |id: &str| {
        let mut node = machine("n", "True");
        node.spec.get_or_insert_default().provider_id = id.to_owned();
        node
    };
    let tainted = || machine("n", "True").taint("ToBeDeletedByClusterAutoscaler", "", "NoSchedule");
    for (old, new, matters) in [
        (
            Some(machine("n", "True")),
            Some(machine("n", "True")),
            false,
        ),
        (
            Some(machine("n", "True")),
            Some(machine("n", "False")),
            false,
        ),
        (Some(machine("n", "True")), Some(excluded()), true),
        (Some(excluded()), Some(machine("n", "True")), true),
        (Some(excluded()), Some(excluded()), false),
        (Some(machine("n", "True")), Some(tainted()), false),
        (Some(tainted()), Some(machine("n", "True")), false),
        (Some(identified("")), Some(identified("a")), true),
        (Some(identified("a")), Some(identified("")), true),
        (Some(identified("a")), Some(identified("b")), true),
        (None, Some(machine("n", "True")), true),
        (Some(machine("n", "True")), None, true),
    ] {
        assert_eq!(
            node_matters(old.as_ref(), new.as_ref()),
            matters,
            "{old:?} {new:?}"
        );
    }
}

#[test]
fn a_node_wakes_the_services_with_load_balancers() {
    let mut classed = balanced("classed");
    classed.spec.get_or_insert_default().load_balancer_class = Some("other".to_owned());
    let world = start()
        .with(balanced("a"))
        .with(balanced("b"))
        .with(service("c"))
        .with(classed);
    let new = Arc::new(machine("n", "True")) as _;
    assert_eq!(
        world.woken::<ServiceLb>(None, Some(&new)),
        ["default/a", "default/b"]
    );
    let same = world.woken::<ServiceLb>(Some(&new), Some(&new));
    assert!(same.is_empty());
}

#[test]
fn the_finalizer_comes_before_the_load_balancer() {
    let mut bed = bed(start().with(machine("n", "True")).with(balanced("web")));
    let (plan, reported) = until_it_waits(&mut bed, healthy);
    assert_eq!(bed.calls, ["Describe"]);
    assert_eq!(
        reported,
        ["Normal EnsuringLoadBalancer Ensuring load balancer"]
    );
    let action = plan.actions().next().unwrap();
    assert_eq!(action.to_string(), "patch services/web/status");
    assert_eq!(
        patch_of(action)["metadata"]["finalizers"],
        json!([FINALIZER])
    );
    assert_ne!(action.resource_version, 0);
    // The patch has failed: nothing is asked for until the finalizer is there.
    let (plan, _) = until_it_waits(&mut bed, healthy);
    assert_eq!(bed.calls, ["Describe", "Describe"]);
    assert_eq!(plan.actions().count(), 1);
    bed.world.change::<Service>(KEY, |service| {
        service.metadata_mut().finalizers.push(FINALIZER.into());
    });
    let (plan, reported) = until_it_waits(&mut bed, healthy);
    assert_eq!(bed.calls[2..], ["EnsureLoadBalancer"]);
    assert_eq!(
        reported,
        ["Normal EnsuredLoadBalancer Ensured load balancer"]
    );
    let status = &patch_of(plan.actions().next().unwrap())["status"];
    assert_eq!(status["loadBalancer"]["ingress"][0]["ip"], "192.0.2.1");
}

#[test]
fn the_provider_gets_the_service_as_it_was_seen_and_its_nodes() {
    let world = start()
        .with(held())
        .with(machine("a", "True"))
        .with(machine("b", "True").taint("ToBeDeletedByClusterAutoscaler", "", "NoSchedule"));
    let mut bed = bed(world);
    let service = bed.world.get::<Service>(KEY);
    let ensured = RefCell::new(false);
    until_it_waits(&mut bed, |call| {
        if let Deed::EnsureLoadBalancer { nodes } = &call.deed {
            assert_eq!(call.guard, Guard::unchanged(&*service));
            assert_eq!(nodes.len(), 1);
            assert_eq!(
                (&*nodes[0].name, &*nodes[0].provider_id),
                ("a", "reference://a")
            );
            *ensured.borrow_mut() = true;
        }
        healthy(call)
    });
    assert!(*ensured.borrow());
}

#[test]
#[expect(clippy::type_complexity, reason = "a table of cases")]
fn known_state_is_forgotten_in_a_plan_of_its_own_before_the_provider_changes_it() {
    let mut bed = made(start().with(machine("n", "True")).with(held()));
    let steps: [(fn(&mut World), &str); 3] = [
        (
            |world| world.put(machine("m", "True")),
            "UpdateLoadBalancer",
        ),
        (
            |world| {
                world.change::<Service>(KEY, |service| {
                    service.spec.get_or_insert_default().ports[0].port = 81;
                });
            },
            "EnsureLoadBalancer",
        ),
        (|world| world.delete::<Service>(KEY), "GetLoadBalancer"),
    ];
    for (change, call) in steps {
        change(&mut bed.world);
        let plan = bed.step(healthy).unwrap();
        assert_eq!(
            (bed.memory.made, plan.requeue),
            (None, Requeue::Now),
            "{call}"
        );
        assert_eq!(bed.calls.last(), Some(&"Describe"));
        bed.step(healthy).unwrap();
        assert_eq!(bed.calls.last(), Some(&call));
    }
}

#[test]
fn without_memory_the_load_balancer_is_ensured_once() {
    let mut bed = made(start().with(machine("n", "True")).with(held()));
    bed.memory = Memory::default();
    let (plan, _) = until_it_waits(&mut bed, healthy);
    assert_eq!(bed.calls, ["Describe", "EnsureLoadBalancer"]);
    assert_eq!(plan.actions().count(), 0, "the status is what it was");
    assert_eq!(bed.step(healthy).unwrap(), Plan::nothing());
    assert_eq!(bed.calls.len(), 2);
}

#[test]
fn a_service_that_is_another_by_the_answer_is_ensured_again() {
    let mut bed = bed(start().with(machine("n", "True")).with(held()));
    bed.step(healthy).unwrap();
    let changed = RefCell::new(bed.world.clone());
    changed.borrow_mut().change::<Service>(KEY, |service| {
        service.spec.get_or_insert_default().ports[0].port = 81;
    });
    // The answer is for the version of before, the cache shows the next.
    let none = controllers_kit::Answers::new();
    let seen = Snapshot::new(&bed.world, &none, bed.world.now());
    let queries = bed.controller().ask(&bed.key, &seen, &bed.memory);
    let answers: controllers_kit::Answers = queries
        .into_iter()
        .map(|query| {
            let Query::Cloud(call) = &query else { panic!() };
            let answer = controllers_kit::cloud::answer(healthy(call), Duration::ZERO);
            (query, answer)
        })
        .collect();
    let world = changed.into_inner();
    let seen = Snapshot::new(&world, &answers, world.now());
    let mut memory = std::mem::take(&mut bed.memory);
    let plan = ServiceLb.plan(&bed.key, &seen, &mut memory).unwrap();
    assert_eq!((memory.made, plan.requeue), (None, Requeue::Now));
}

#[test]
fn the_nodes_are_replaced_and_that_is_reported_and_measured() {
    let mut bed = made(start().with(machine("n", "True")).with(held()));
    bed.world.put(machine("m", "True"));
    let (plan, reported) = until_it_waits(&mut bed, healthy);
    assert_eq!(bed.calls, ["Describe", "UpdateLoadBalancer"]);
    assert_eq!(
        reported,
        ["Normal UpdatedLoadBalancer Updated load balancer with new hosts"]
    );
    assert_eq!(plan.measures[0].name, SYNCS);
    let timed: Vec<_> = plan.timings.iter().map(|one| one.name).collect();
    assert_eq!(timed, [NODE_SECONDS, HOST_SECONDS]);
    assert_eq!(bed.step(healthy).unwrap(), Plan::nothing());
}

#[test]
fn no_node_is_left_for_a_load_balancer() {
    let mut bed = made(start().with(machine("n", "True")).with(held()));
    bed.world.delete::<Node>("n");
    let (_, reported) = until_it_waits(&mut bed, healthy);
    let none = "Warning UnAvailableLoadBalancer There are no available nodes for LoadBalancer";
    assert_eq!(reported, [none]);
    let mut bed = super::tests::bed(start().with(held()));
    let (_, reported) = until_it_waits(&mut bed, healthy);
    assert_eq!(
        reported,
        [
            "Normal EnsuringLoadBalancer Ensuring load balancer",
            none,
            "Normal EnsuredLoadBalancer Ensured load balancer",
        ]
    );
}

#[test]
fn an_update_that_fails_matters_only_if_the_load_balancer_exists() {
    for (exists, again) in [(false, false), (true, true)] {
        let mut bed = made(start().with(machine("n", "True")).with(held()));
        bed.world.put(machine("m", "True"));
        let provider = |call: &Call| match &call.deed {
            Deed::UpdateLoadBalancer { .. } => refused(Reason::Failed),
            Deed::GetLoadBalancer => Ok(Reply::LoadBalancer(
                exists.then(|| vec![ingress("192.0.2.1")]),
            )),
            _ => healthy(call),
        };
        let (_, reported) = until_it_waits(&mut bed, provider);
        let mut wanted = vec!["Describe", "UpdateLoadBalancer", "GetLoadBalancer"];
        let mut events = Vec::new();
        if again {
            wanted.push("EnsureLoadBalancer");
            events.extend([
                "Warning UpdateLoadBalancerFailed Error updating load balancer with new hosts [m n] [node names limited, total number of nodes: 2], error: why",
                "Normal EnsuringLoadBalancer Ensuring load balancer",
                "Normal EnsuredLoadBalancer Ensured load balancer",
            ]);
        }
        assert_eq!(
            (&bed.calls, reported),
            (&wanted, events.into_iter().map(str::to_owned).collect())
        );
        assert_eq!(bed.step(healthy).unwrap(), Plan::nothing());
    }
}

#[test]
fn names_of_nodes_in_an_event_are_limited() {
    let names: Vec<String> = (0..25).map(|number| format!("n{number:02}")).collect();
    let text = loggable(names.iter().map(String::as_str));
    assert!(text.starts_with("[n00 n01 "), "{text}");
    assert!(
        text.ends_with("n19 <5 more>] [node names limited, total number of nodes: 25]"),
        "{text}"
    );
}

#[test]
fn a_load_balancer_is_removed_before_its_finalizer_and_its_status() {
    for exists in [true, false] {
        let mut bed = made(
            start()
                .with(machine("n", "True"))
                .with(held().finalizer("other/x")),
        );
        bed.world.delete::<Service>(KEY);
        let version = bed.world.get::<Service>(KEY).metadata().resource_version;
        let provider = |call: &Call| match &call.deed {
            Deed::GetLoadBalancer if !exists => Ok(Reply::LoadBalancer(None)),
            _ => healthy(call),
        };
        let (plan, reported) = until_it_waits(&mut bed, provider);
        let deleting = "Normal DeletingLoadBalancer Deleting load balancer";
        let deleted = "Normal DeletedLoadBalancer Deleted load balancer";
        match exists {
            true => {
                assert_eq!(
                    bed.calls,
                    ["Describe", "GetLoadBalancer", "EnsureLoadBalancerDeleted"]
                );
                assert_eq!(reported, [deleting, deleted]);
            }
            false => {
                assert_eq!(bed.calls, ["Describe", "GetLoadBalancer"]);
                assert_eq!(reported, [deleted]);
            }
        }
        let action = plan.actions().next().unwrap();
        assert_eq!(action.resource_version, version, "by the version seen");
        let patch = patch_of(action);
        assert_eq!(patch["metadata"]["finalizers"], json!(["other/x"]));
        assert_eq!(patch["status"]["loadBalancer"], json!({"ingress": null}));
    }
}

#[test]
fn a_provider_that_does_not_answer_removes_nothing() {
    let text = |doing: &str| {
        format!("Warning SyncLoadBalancerFailed Error syncing load balancer: {doing}: why")
    };
    let check = "failed to check if load balancer exists before cleanup";
    for (call, doing) in [
        ("Describe", check),
        ("GetLoadBalancer", check),
        (
            "EnsureLoadBalancerDeleted",
            "failed to delete load balancer",
        ),
    ] {
        for reason in [Reason::Failed, Reason::InstanceNotFound] {
            let mut bed = bed(start().with(held().terminating("11:59:00")));
            let (plan, reported) = until_it_waits(&mut bed, failing(call, refused(reason)));
            assert_eq!(reported.last(), Some(&text(doing)));
            assert_eq!(plan.actions().count(), 0);
            assert_eq!(plan.failure, Some(format!("{doing}: why")));
        }
        for reason in [Reason::Stale, Reason::NotSupported] {
            let mut bed = bed(start().with(held().terminating("11:59:00")));
            let (plan, _) = until_it_waits(&mut bed, failing(call, refused(reason)));
            assert_eq!(
                (plan.actions().count(), plan.failure),
                (0, None),
                "{call} {reason:?}"
            );
        }
    }
}

#[test]
fn a_load_balancer_whose_finalizer_was_taken_away_is_removed_though_the_provider_fails_at_first() {
    let mut bed = made(start().with(machine("n", "True")).with(held()));
    bed.world.change::<Service>(KEY, |service| {
        service.metadata_mut().finalizers.clear();
        service.spec.get_or_insert_default().r#type = "ClusterIP".to_owned();
    });
    for call in ["GetLoadBalancer", "EnsureLoadBalancerDeleted"] {
        let (plan, _) = until_it_waits(&mut bed, failing(call, refused(Reason::Failed)));
        assert!(plan.failure.is_some(), "{call}");
    }
    let (plan, reported) = until_it_waits(&mut bed, healthy);
    assert_eq!(
        reported.last().unwrap(),
        "Normal DeletedLoadBalancer Deleted load balancer"
    );
    assert_eq!(plan.verbs(), ["patch services/web/status"]);
    assert_eq!(bed.step(healthy).unwrap(), Plan::nothing());
    assert_eq!(bed.memory, Memory::default());
}

#[test]
fn a_balancer_of_another_controller_is_no_failure() {
    let elsewhere = || refused(Reason::ImplementedElsewhere);
    let mut bed = bed(start().with(machine("n", "True")).with(held()));
    let (plan, reported) = until_it_waits(&mut bed, failing("EnsureLoadBalancer", elsewhere()));
    assert_eq!(plan, Plan::nothing());
    assert_eq!(
        reported,
        ["Normal EnsuringLoadBalancer Ensuring load balancer"]
    );
    assert_eq!(bed.step(healthy).unwrap(), Plan::nothing());
    bed.world.put(machine("m", "True"));
    let (_, reported) = until_it_waits(&mut bed, failing("UpdateLoadBalancer", elsewhere()));
    assert!(reported.is_empty());
    bed.world.delete::<Service>(KEY);
    let (plan, _) = until_it_waits(&mut bed, failing("EnsureLoadBalancerDeleted", elsewhere()));
    assert_eq!(plan.verbs(), ["patch services/web/status"]);
}

#[test]
fn a_provider_without_load_balancers_touches_no_service() {
    let without = |call: &Call| match &call.deed {
        Deed::Describe => Ok(Reply::Provider {
            name: "test".to_owned(),
            instances: true,
            load_balancers: false,
            routes: true,
        }),
        other => panic!("{other:?}"),
    };
    for service in [balanced("web"), held(), held().terminating("11:59:00")] {
        let mut bed = bed(start().with(service));
        let plan = bed.step(without).unwrap();
        assert_eq!(plan, Plan::nothing().requeued_at(at("12:05:00")));
    }
}

#[test]
fn a_failure_is_reported_and_tried_again_with_back_off_or_when_the_provider_says_so() {
    let mut bed = bed(start().with(machine("n", "True")).with(held()));
    let (plan, reported) = until_it_waits(
        &mut bed,
        failing("EnsureLoadBalancer", refused(Reason::Failed)),
    );
    let failed = "failed to ensure load balancer: why";
    assert_eq!(
        reported,
        [
            "Normal EnsuringLoadBalancer Ensuring load balancer".to_owned(),
            format!("Warning SyncLoadBalancerFailed Error syncing load balancer: {failed}"),
        ]
    );
    assert_eq!(plan.failure.as_deref(), Some(failed));
    let later = Refused {
        retry_after: Some(Duration::from_secs(42)),
        ..Refused::new(Reason::Failed, "provisioning")
    };
    let (plan, reported) = until_it_waits(&mut bed, failing("EnsureLoadBalancer", Err(later)));
    assert_eq!(
        (plan.failure.clone(), plan.requeue),
        (None, Requeue::At(at("12:00:42")))
    );
    assert!(reported[1].ends_with("failed to ensure load balancer: provisioning"));
    let (plan, _) = until_it_waits(&mut bed, failing("EnsureLoadBalancer", Ok(Reply::Done)));
    let nil = "service status returned by EnsureLoadBalancer is nil";
    assert_eq!(plan.failure.as_deref(), Some(nil));
    let (_, reported) = until_it_waits(&mut bed, healthy);
    assert_eq!(
        reported.last().unwrap(),
        "Normal EnsuredLoadBalancer Ensured load balancer"
    );
}

#[test]
fn a_status_that_was_not_written_has_the_load_balancer_ensured_again() {
    for (failure, again) in [
        (Failure::Timeout("x".to_owned()), true),
        (Failure::Forbidden("x".to_owned()), true),
        (Failure::NotFound("x".to_owned()), false),
    ] {
        let mut bed = bed(start().with(machine("n", "True")).with(held()));
        let (plan, _) = until_it_waits(&mut bed, healthy);
        let outcome = Outcome {
            action: plan.actions().next().unwrap(),
            result: Err(&failure),
        };
        ServiceLb.learn(&outcome, &mut bed.memory);
        assert_eq!(bed.memory.made.is_none(), again, "{failure:?}");
    }
}

#[test]
fn load_balancers_follow_their_services() {
    let mut world = start()
        .answering(answer)
        .with(machine("n", "True"))
        .with(balanced("web"))
        .with(service("plain"));
    let all = [Factory::of::<ServiceLb>()];
    world.settle(&all);
    let web = world.get::<Service>(KEY);
    assert!(is_held(&web));
    assert_eq!(facts::ingress(&web), [ingress("192.0.2.1")]);
    assert!(!is_held(&world.get::<Service>("default/plain")));
    world.change::<Service>(KEY, |service| {
        service.spec.get_or_insert_default().r#type = "ClusterIP".to_owned();
    });
    world.settle(&all);
    let web = world.get::<Service>(KEY);
    assert!(!is_held(&web) && facts::ingress(&web).is_empty());
    world.change::<Service>(KEY, |service| {
        service.spec.get_or_insert_default().r#type = "LoadBalancer".to_owned();
    });
    world.settle(&all);
    world.delete::<Service>(KEY);
    world.settle(&all);
    assert!(world.find::<Service>(KEY).is_none());
}
