use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use kubernetes_proto::{
    Object,
    core::{ContainerStatus, InitContainer, Pod, PodCondition, PodTemplateSpec},
    meta::{ObjectMeta, OwnerReference},
};
use prost::Message;

use super::{
    DELETION_COST, available_at, create, deletion_cost, from_template, is_active, is_available,
    is_ready, is_terminating, merge_sort, to_delete,
};
use crate::{Failure, Plan, Verb, names::Children};

fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

fn ago(seconds: i64) -> Timestamp {
    now() - SignedDuration::from_secs(seconds)
}

fn pod(name: &str) -> Pod {
    let mut pod = Pod::default();
    let meta = pod.metadata_mut();
    meta.name = name.into();
    meta.uid = name.into();
    meta.creation_timestamp = Some(ago(100_000).into());
    pod.status.get_or_insert_default().phase = "Pending".into();
    pod
}

trait Build: Sized {
    fn change(self, change: impl FnOnce(&mut Pod)) -> Self;
    fn on(self, node: &str) -> Self;
    fn phase(self, phase: &str) -> Self;
    fn ready(self, seconds_ago: i64) -> Self;
    fn running(self, node: &str, seconds_ago: i64) -> Self;
    fn created(self, seconds_ago: i64) -> Self;
    fn restarts(self, count: i32) -> Self;
    fn sidecar_restarts(self, count: i32) -> Self;
    fn cost(self, cost: &str) -> Self;
}

impl Build for Pod {
    fn change(mut self, change: impl FnOnce(&mut Pod)) -> Self {
        change(&mut self);
        self
    }
    fn on(self, node: &str) -> Self {
        self.change(|pod| pod.spec.get_or_insert_default().node_name = node.into())
    }
    fn phase(self, phase: &str) -> Self {
        self.change(|pod| pod.status.get_or_insert_default().phase = phase.into())
    }
    fn ready(self, seconds_ago: i64) -> Self {
        self.change(|pod| {
            pod.status.get_or_insert_default().conditions.push(
                PodCondition {
                    r#type: "Ready".into(),
                    status: "True".into(),
                    last_transition_time: Some(ago(seconds_ago).into()),
                    ..Default::default()
                }
                .into(),
            );
        })
    }
    fn running(self, node: &str, seconds_ago: i64) -> Self {
        self.on(node).phase("Running").ready(seconds_ago)
    }
    fn created(self, seconds_ago: i64) -> Self {
        self.change(|pod| {
            pod.metadata_mut().creation_timestamp = Some(ago(seconds_ago).into());
        })
    }
    fn restarts(self, count: i32) -> Self {
        self.change(|pod| {
            pod.status
                .get_or_insert_default()
                .container_statuses
                .push(ContainerStatus {
                    restart_count: count,
                    ..Default::default()
                });
        })
    }
    fn sidecar_restarts(self, count: i32) -> Self {
        self.change(|pod| {
            pod.spec
                .get_or_insert_default()
                .init_containers
                .push(InitContainer {
                    name: "side".into(),
                    restart_policy: "Always".into(),
                    ..InitContainer::default()
                });
            pod.status
                .get_or_insert_default()
                .init_container_statuses
                .push(ContainerStatus {
                    name: "side".into(),
                    restart_count: count,
                    ..Default::default()
                });
        })
    }
    fn cost(self, cost: &str) -> Self {
        self.change(|pod| pod.metadata_mut().set_annotation(DELETION_COST, cost))
    }
}

/// The first to go of two, tried in both orders.
fn first(one: Pod, other: Pod, siblings: &[Pod]) -> String {
    let pods: Vec<Arc<Pod>> = [one, other].into_iter().map(Arc::new).collect();
    let siblings: Vec<Arc<Pod>> = siblings
        .iter()
        .cloned()
        .map(Arc::new)
        .chain(pods.iter().cloned())
        .collect();
    let reversed: Vec<Arc<Pod>> = pods.iter().rev().cloned().collect();
    let name = |pods: &[Arc<Pod>]| {
        to_delete(pods, &siblings, 1, true, now())[0]
            .metadata()
            .name
            .clone()
    };
    assert_eq!(
        name(&pods),
        name(&reversed),
        "whatever order they are seen in"
    );
    name(&pods).to_string()
}

#[test]
fn the_order_in_which_surplus_pods_are_deleted() {
    let running = |name: &str| pod(name).running("n1", 1000);
    let cases: Vec<(&str, Pod, Pod)> = vec![
        (
            "not assigned before assigned",
            pod("first"),
            pod("stay").on("n1"),
        ),
        (
            "pending before unknown",
            pod("first").on("n1"),
            pod("stay").on("n1").phase("Unknown"),
        ),
        (
            "unknown before running",
            pod("first").on("n1").phase("Unknown"),
            pod("stay").on("n1").phase("Running"),
        ),
        (
            "not ready before ready",
            pod("first").on("n1").phase("Running"),
            running("stay"),
        ),
        (
            "unassigned goes before what costs less",
            pod("first").cost("100"),
            pod("stay").on("n1").cost("-100"),
        ),
        (
            "not ready goes before what costs less",
            pod("first").on("n1").phase("Running").cost("5"),
            running("stay").cost("-5"),
        ),
        (
            "a lower cost first",
            running("first").cost("-1"),
            running("stay"),
        ),
        (
            "an invalid cost is none",
            running("first").cost("-1"),
            running("stay").cost("-007x"),
        ),
        (
            "cost before age",
            running("first").cost("1"),
            pod("stay").running("n1", 1).cost("2"),
        ),
        (
            "ready for a shorter time first",
            pod("first").running("n1", 10),
            pod("stay").running("n1", 1000),
        ),
        (
            "times of one order of magnitude go by uid, not by age",
            pod("a-older").running("n1", 101),
            pod("b-younger").running("n1", 100),
        ),
        (
            "what has no ready time counts as youngest",
            pod("first").running("n1", 1).change(|pod| {
                pod.status.as_mut().unwrap().conditions[0].last_transition_time = None;
            }),
            pod("stay").running("n1", 1),
        ),
        (
            "more restarts first",
            running("first").restarts(3),
            running("stay").restarts(2),
        ),
        (
            "more restarts of a sidecar first",
            running("first").sidecar_restarts(1),
            running("stay"),
        ),
        (
            "restarts of containers count before those of sidecars",
            running("first").restarts(1),
            running("stay").sidecar_restarts(9),
        ),
        (
            "younger first",
            running("first").created(10),
            running("stay").created(100_000),
        ),
    ];
    for (what, go, stay) in cases {
        let expected = go.metadata().name.to_string();
        assert_eq!(first(go, stay, &[]), expected, "{what}");
    }
}

#[test]
fn a_pod_doubled_up_with_siblings_goes_before_a_lone_one() {
    let sibling = pod("sibling").running("crowded", 5);
    let crowded = pod("first").running("crowded", 100_000);
    let lone = pod("stay").running("empty", 1);
    assert_eq!(first(crowded.clone(), lone.clone(), &[sibling]), "first");
    // A finished sibling crowds nobody: then the younger goes.
    let finished = pod("sibling").running("crowded", 5).phase("Failed");
    assert_eq!(first(crowded, lone, &[finished]), "stay");
}

#[test]
fn as_many_go_as_are_too_many_and_all_if_all() {
    let pods: Vec<Arc<Pod>> = (0..9).map(|i| Arc::new(pod(&format!("p{i}")))).collect();
    for count in [0, 1, 5, 9, 12] {
        assert_eq!(
            to_delete(&pods, &pods, count, true, now()).len(),
            count.min(9)
        );
    }
}

#[test]
fn a_circular_order_is_sorted_without_a_panic() {
    let sorted = merge_sort((0..300).collect(), &|one: &i32, other: &i32| {
        (one - other).rem_euclid(3) == 1
    });
    let mut all = sorted;
    all.sort_unstable();
    assert_eq!(all, (0..300).collect::<Vec<_>>(), "nothing is lost");
    assert_eq!(
        merge_sort(vec![3, 1, 2, 1], &|one, other| one < other),
        [1, 1, 2, 3]
    );
}

#[test]
fn deletion_costs_are_read_as_the_api_reads_them() {
    for (text, expected) in [
        ("0", 0),
        ("-10", -10),
        ("2147483647", i32::MAX),
        ("2147483648", 0),
        ("+5", 0),
        ("008", 0),
        ("", 0),
        ("x", 0),
    ] {
        assert_eq!(deletion_cost(&pod("p").cost(text)), expected, "{text:?}");
    }
    assert_eq!(deletion_cost(&pod("p")), 0);
}

#[test]
fn availability_needs_readiness_for_long_enough() {
    for (what, pod, min_ready, available, at) in [
        ("never ready", pod("p"), 0, false, None),
        (
            "ready, nothing more asked",
            pod("p").ready(0),
            0,
            true,
            None,
        ),
        (
            "ready too short",
            pod("p").ready(10),
            30,
            false,
            Some(now() + SignedDuration::from_secs(20)),
        ),
        ("ready just long enough", pod("p").ready(30), 30, true, None),
        (
            "ready without a time",
            pod("p").ready(30).change(|pod| {
                pod.status.as_mut().unwrap().conditions[0].last_transition_time = None;
            }),
            30,
            false,
            None,
        ),
    ] {
        assert_eq!(is_available(&pod, min_ready, now()), available, "{what}");
        assert_eq!(available_at(&pod, min_ready, now()), at, "{what}");
    }
    let mut not_ready = pod("p").ready(10);
    not_ready.status.as_mut().unwrap().conditions[0].status = "False".into();
    assert!(!is_ready(&not_ready));
}

#[test]
fn finished_and_deleted_pods_are_not_active_and_only_live_ones_terminate() {
    let deleted =
        |pod: Pod| pod.change(|pod| pod.metadata_mut().deletion_timestamp = Some(now().into()));
    for (pod, active, terminating) in [
        (pod("p"), true, false),
        (pod("p").phase("Running"), true, false),
        (pod("p").phase("Succeeded"), false, false),
        (pod("p").phase("Failed"), false, false),
        (deleted(pod("p")), false, true),
        (deleted(pod("p").phase("Failed")), false, false),
    ] {
        assert_eq!(
            (is_active(&pod), is_terminating(&pod)),
            (active, terminating)
        );
    }
}

#[test]
fn a_pod_carries_its_templates_spec_byte_for_byte() {
    // Field 4000 is known to nobody: what the projection can't name must reach the pod all the same.
    let spec = [
        &[0x82, 0xfa, 0x01, 0x03][..],
        b"new",
        &[0x52, 0x02, b'n', b'1'],
    ]
    .concat();
    let mut meta = ObjectMeta::default();
    meta.set_label("app", "web");
    meta.set_annotation("note", "x");
    meta.finalizers = vec!["example.com/hold".into()];
    meta.name = "ignored".into();
    let template = PodTemplateSpec {
        metadata: Some(meta),
        spec: spec.clone(),
    };
    let children = Children::of("web", "u1");
    let name = children.name(0);
    let owner = OwnerReference {
        uid: "u1".into(),
        controller: Some(true),
        ..Default::default()
    };
    let made = from_template(
        Some(&template),
        owner.into(),
        &children,
        &"shop".into(),
        &name,
    );
    let mut plan = Plan::nothing();
    let action = create(&mut plan, &made);
    assert_eq!(action.key.to_string(), format!("shop/{name}"));
    let Verb::Create { body } = &action.verb else {
        panic!("{action}")
    };
    assert!(body.windows(spec.len()).any(|window| window == spec));
    let pod = Pod::decode(body.as_slice()).unwrap();
    let meta = pod.metadata();
    assert_eq!(meta.name.as_str(), name);
    assert_eq!(meta.generate_name, "web-");
    assert_eq!(meta.label("app"), Some("web"));
    assert_eq!(meta.annotation("note"), Some("x"));
    assert_eq!(meta.finalizers, ["example.com/hold"]);
    assert_eq!(meta.controller().unwrap().uid, "u1");
    assert_eq!(pod.spec.unwrap().node_name, "n1");
}

#[test]
fn a_refused_child_is_called_by_the_beginning_of_its_name() {
    let children = Children::of("web", "u1");
    let name = children.name(0);
    let template = PodTemplateSpec::default();
    let made = from_template(
        Some(&template),
        OwnerReference::default().into(),
        &children,
        &"shop".into(),
        &name,
    );
    let failure = |name: &str| Failure::Forbidden(format!("pods \"{name}\" is forbidden: no"));
    let mut plan = Plan::nothing();
    let action = create(&mut plan, &made);
    assert_eq!(action.reported(failure(&name)), failure(&name));
    action.reported_as(children.generate_name());
    assert_eq!(action.reported(failure(&name)), failure("web-"));
    assert_eq!(action.reported(failure("other")), failure("other"));
    assert_eq!(action.reported(Failure::Skipped), Failure::Skipped);
}
