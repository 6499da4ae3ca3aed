use controllers_kit::{
    Answer, AnyObject, Query, Refusal,
    testing::{PodBuild as _, *},
};
use kubernetes_proto::{
    Object,
    core::{
        ContainerState, ContainerStatus, PersistentVolumeClaim, PersistentVolumeClaimCondition, Pod,
    },
    meta::Time,
};

use super::{ClaimProtection, FINALIZER, UNUSED, UNUSED_SINCE};
use crate::builders::{Volumes as _, any, gated, leaving, protected};

/// A pod on a node that has not started yet.
fn on_a_node(name: &str) -> Pod {
    pod(name).on("node-1")
}

/// A claim with the condition as upstream writes it, since an hour.
pub(crate) fn with_unused(mut claim: PersistentVolumeClaim, status: &str) -> PersistentVolumeClaim {
    let (reason, message) = match status {
        "True" => (
            "NoPodsUsingPVC",
            "No pods are currently referencing this PVC",
        ),
        _ => ("PodUsingPVC", "A pod is currently referencing this PVC"),
    };
    let status = PersistentVolumeClaimCondition {
        r#type: UNUSED.to_owned(),
        status: status.to_owned(),
        last_transition_time: Some(Time::from(at("11:00:00"))),
        reason: reason.to_owned(),
        message: message.to_owned(),
        ..Default::default()
    };
    claim.status.get_or_insert_default().conditions.push(status);
    claim
}

fn finalizers(world: &World, claim: &str) -> Option<Vec<String>> {
    let claim = world.find::<PersistentVolumeClaim>(claim)?;
    let held = &claim.metadata().finalizers;
    Some(held.iter().map(ToString::to_string).collect())
}

/// Status, reason, message and time of the condition.
fn condition(world: &World, claim: &str) -> Option<(String, String, String, Option<Time>)> {
    let claim = world.get::<PersistentVolumeClaim>(claim);
    let conditions = &claim.status.as_ref()?.conditions;
    let unused = conditions.iter().find(|one| one.r#type == UNUSED)?;
    Some((
        unused.status.clone(),
        unused.reason.clone(),
        unused.message.clone(),
        unused.last_transition_time,
    ))
}

#[test]
fn a_claim_gets_the_finalizer_and_keeps_those_of_others() {
    let mut world = World::at("12:00:00")
        .with(claim("a").finalizer("other/one"))
        .with(claim("b").in_namespace("shop"))
        .with(protected("c"));
    let plans = world.run::<ClaimProtection>();
    assert_eq!(plans.len(), 2);
    assert_eq!(
        finalizers(&world, "a").unwrap(),
        ["other/one", "kubernetes.io/pvc-protection"]
    );
    assert_eq!(finalizers(&world, "shop/b").unwrap(), [FINALIZER]);
    assert!(world.plan::<ClaimProtection>("a").is_nothing(), "at rest");
}

/// Upstream's cases of claims that are being deleted: pods, and whether the claim `pvc1` goes.
#[test]
fn a_claim_that_is_being_deleted_goes_when_no_pod_uses_it() {
    let owned = |pod: &Pod| leaving("web-data").owned_by(pod);
    let ephemeral = || pod("web").on("node-1").ephemeral("data", b"");
    let over = |pod: Pod, seconds: i64| {
        let mut pod = pod.terminating("11:58:00");
        pod.metadata_mut().deletion_grace_period_seconds = Some(seconds);
        pod
    };
    let pvc = || leaving("pvc1");
    let cases: Vec<(&str, Vec<Pod>, PersistentVolumeClaim, bool)> = vec![
        ("no pods", vec![], pvc(), true),
        (
            "a pod on a node",
            vec![on_a_node("a").uses("pvc1")],
            pvc(),
            false,
        ),
        (
            "a running pod",
            vec![on_a_node("a").uses("pvc1").ready("11:00:00")],
            pvc(),
            false,
        ),
        (
            "a pod of another claim",
            vec![on_a_node("a").uses("other")],
            pvc(),
            true,
        ),
        (
            "a pod of two claims",
            vec![on_a_node("a").uses("other").uses("pvc1")],
            pvc(),
            false,
        ),
        (
            "a pod of another namespace",
            vec![on_a_node("a").uses("pvc1").in_namespace("shop")],
            pvc(),
            true,
        ),
        (
            "a failed pod that is not deleted",
            vec![on_a_node("a").uses("pvc1").phase("Failed")],
            pvc(),
            false,
        ),
        (
            "a succeeded pod that is not deleted",
            vec![on_a_node("a").uses("pvc1").phase("Succeeded")],
            pvc(),
            false,
        ),
        (
            "a pod that is being deleted, even without grace",
            vec![over(on_a_node("a").uses("pvc1"), 0)],
            pvc(),
            false,
        ),
        (
            "a pod without a node",
            vec![pod("a").uses("pvc1")],
            pvc(),
            true,
        ),
        (
            "a pod without a node and one with",
            vec![pod("a").uses("pvc1"), on_a_node("b").uses("pvc1")],
            pvc(),
            false,
        ),
        (
            "the pod of an ephemeral volume",
            vec![ephemeral()],
            owned(&ephemeral()),
            false,
        ),
        (
            "an ephemeral volume whose pod goes, with grace",
            vec![over(ephemeral(), 30)],
            owned(&ephemeral()),
            false,
        ),
        (
            "an ephemeral volume whose pod is shut down",
            vec![over(ephemeral(), 0)],
            owned(&ephemeral()),
            true,
        ),
        (
            "an ephemeral volume of a pod that does not own the claim",
            vec![ephemeral()],
            leaving("web-data"),
            true,
        ),
        (
            "an ephemeral volume of a pod of that name before",
            vec![ephemeral()],
            owned(&ephemeral().uid("before")),
            true,
        ),
        (
            "an ephemeral volume of a pod without a node",
            vec![pod("web").ephemeral("data", b"")],
            owned(&ephemeral()),
            true,
        ),
    ];
    for (name, pods, claim, goes) in cases {
        let claim_name = claim.metadata().name.to_string();
        let mut world = World::at("12:00:00").with(claim).without_kubelets();
        for pod in pods {
            world.put(pod);
        }
        world.run::<ClaimProtection>();
        assert_eq!(finalizers(&world, &claim_name).is_none(), goes, "{name}");
    }
}

#[test]
fn several_claims_are_judged_each_by_its_own_pods() {
    let mut world = World::at("12:00:00")
        .without_kubelets()
        .with(leaving("pvc1"))
        .with(leaving("pvc2"))
        .with(leaving("pvc3").in_namespace("shop"))
        .with(on_a_node("a").uses("pvc1"))
        .with(on_a_node("b").uses("pvc3").in_namespace("shop"));
    world.run::<ClaimProtection>();
    assert!(finalizers(&world, "pvc1").is_some());
    assert!(finalizers(&world, "pvc2").is_none());
    assert!(finalizers(&world, "shop/pvc3").is_some());
}

#[test]
fn a_claim_that_waits_for_another_finalizer_too_keeps_that_one() {
    let mut world = World::at("12:00:00").with(leaving("pvc1").finalizer("other/one"));
    world.run::<ClaimProtection>();
    assert_eq!(finalizers(&world, "pvc1").unwrap(), ["other/one"]);
    assert!(world.plan::<ClaimProtection>("pvc1").is_nothing());
}

/// A pod that the cache lacks would be lost with its data.
#[test]
fn the_removal_rests_strictly_on_the_pods_that_there_are_by_now() {
    let world = World::at("12:00:00").with(leaving("pvc1"));
    let plan = world.plan::<ClaimProtection>("pvc1");
    assert_eq!(plan.verbs(), ["patch persistentvolumeclaims/pvc1"]);
    let [set] = &plan.counted[..] else {
        panic!("{:?}", plan.counted)
    };
    assert_eq!(set.resource, Pod::resource());
    assert_eq!((&*set.namespace, set.strict), ("default", true));
    assert_eq!(set.since, world.version());
    assert_eq!(
        set.selector,
        controllers_kit::selectors::Selector::of_labels(&[])
    );
    let action = plan.actions().next().unwrap();
    let claim = world.get::<PersistentVolumeClaim>("pvc1");
    assert_eq!(action.uid, claim.metadata().uid);
    assert_eq!(action.resource_version, claim.metadata().resource_version);
}

#[test]
fn a_claim_stays_and_is_tried_again_while_the_pods_can_t_be_asked_for() {
    fn failing(query: &Query) -> Option<Answer> {
        matches!(query, Query::Present { .. }).then(|| Answer::Failed("forbidden".to_owned()))
    }
    fn unserved(query: &Query) -> Option<Answer> {
        matches!(query, Query::Present { .. }).then_some(Answer::Missing)
    }
    let world = World::at("12:00:00").with(leaving("pvc1"));
    let refusal = world
        .clone()
        .answering(failing)
        .refusal::<ClaimProtection>("pvc1");
    assert_eq!(
        refusal,
        Refusal::Retry("pods could not be asked: forbidden".to_owned())
    );
    let refusal = world.answering(unserved).refusal::<ClaimProtection>("pvc1");
    assert!(matches!(refusal, Refusal::Retry(_)));
}

/// Nobody asks the API server about a claim that a pod of the cache keeps.
#[test]
fn claims_that_the_cache_shows_in_use_are_not_queried() {
    let world = World::at("12:00:00")
        .answering(|query| panic!("asked {query:?}"))
        .with(leaving("pvc1"))
        .with(on_a_node("a").uses("pvc1"))
        .with(protected("pvc2"));
    for claim in ["pvc1", "pvc2", "none"] {
        assert!(world.plan::<ClaimProtection>(claim).is_nothing());
    }
}

/// Upstream's pod events: what was before, what is after, and the claims that are woken.
#[test]
fn pods_that_may_have_been_the_last_wake_their_claims() {
    let some = |pod: Pod| Some(any(pod));
    let used = || on_a_node("a").uses("pvc1").ephemeral("data", b"");
    let running = || {
        let mut pod = used().running();
        pod.status.get_or_insert_default().container_statuses = vec![ContainerStatus::default()];
        pod
    };
    let both: &[&str] = &["default/a-data", "default/pvc1"];
    type Case<'a> = (&'a str, Option<AnyObject>, Option<AnyObject>, &'a [&'a str]);
    let cases: Vec<Case<'_>> = vec![
        ("a pod on a node comes", None, some(used()), &[]),
        ("it runs", some(used()), some(used().running()), &[]),
        (
            "it ends",
            some(used().running()),
            some(used().phase("Succeeded")),
            both,
        ),
        ("it is deleted", some(used().running()), None, both),
        (
            "a pod without a node comes",
            None,
            some(pod("a").uses("pvc1")),
            &["default/pvc1"],
        ),
        (
            "a pod gets its node",
            some(pod("a").uses("pvc1")),
            some(on_a_node("a").uses("pvc1")),
            &[],
        ),
        (
            "a pod of its name replaces it",
            some(used()),
            some(on_a_node("a").uid("other").uses("pvc2")),
            both,
        ),
        (
            "it is forced to go",
            some(running()),
            some(running().terminating("11:59:00")),
            both,
        ),
        ("a pod without claims goes", some(on_a_node("a")), None, &[]),
    ];
    let world = World::at("12:00:00");
    for (name, old, new, expected) in cases {
        let woken = world.woken::<ClaimProtection>(old.as_ref(), new.as_ref());
        assert_eq!(woken, expected, "{name}");
    }
    // With the condition every pod matters.
    let world = gated(UNUSED_SINCE);
    let woken = world.woken::<ClaimProtection>(None, some(used()).as_ref());
    assert_eq!(woken, both);
}

#[test]
fn claims_that_are_as_they_should_be_wake_nobody() {
    let some = |claim: PersistentVolumeClaim| Some(any(claim));
    let world = World::at("12:00:00");
    let woken = |new| world.woken::<ClaimProtection>(None, some(new).as_ref());
    assert!(woken(protected("a")).is_empty());
    assert_eq!(woken(claim("a")), ["default/a"]);
    assert_eq!(woken(leaving("a")), ["default/a"]);
    assert!(woken(claim("a").finalizer("other/one").terminating("11:00:00")).is_empty());
}

/// Upstream's cases of the gate PersistentVolumeClaimUnusedSinceTime.
#[test]
fn the_condition_says_whether_a_pod_uses_the_claim() {
    let uses = |pod: Pod| pod.uses("pvc1");
    let stopped = |mut pod: Pod, stopped: bool| {
        let status = ContainerStatus {
            state: stopped.then(|| ContainerState {
                waiting: Some(Default::default()),
                ..ContainerState::default()
            }),
            ..ContainerStatus::default()
        };
        pod.status.get_or_insert_default().container_statuses = vec![status];
        pod.terminating("11:59:00")
    };
    let debugged = |mut pod: Pod| {
        let running = vec![ContainerStatus::default()];
        pod.status
            .get_or_insert_default()
            .ephemeral_container_statuses = Some(Box::new(running));
        pod
    };
    let cases: Vec<(&str, Vec<Pod>, PersistentVolumeClaim, Option<&str>)> = vec![
        ("nobody uses it", vec![], protected("pvc1"), Some("True")),
        (
            "a running pod",
            vec![uses(pod("a").ready("11:00:00"))],
            with_unused(protected("pvc1"), "True"),
            Some("False"),
        ),
        (
            "a running pod, for the first time",
            vec![uses(pod("a").ready("11:00:00"))],
            protected("pvc1"),
            Some("False"),
        ),
        (
            "a pod without a node",
            vec![uses(pod("a"))],
            protected("pvc1"),
            Some("False"),
        ),
        (
            "a pod that has succeeded",
            vec![uses(on_a_node("a").phase("Succeeded"))],
            protected("pvc1"),
            Some("True"),
        ),
        (
            "a pod that has failed",
            vec![uses(on_a_node("a").phase("Failed"))],
            protected("pvc1"),
            Some("True"),
        ),
        (
            "a pod whose containers are stopped",
            vec![stopped(uses(on_a_node("a")), true)],
            protected("pvc1"),
            Some("True"),
        ),
        (
            "a pod that is being deleted and runs",
            vec![stopped(uses(on_a_node("a")), false)],
            protected("pvc1"),
            Some("False"),
        ),
        (
            "a pod of which a container for debugging alone still runs",
            vec![debugged(stopped(uses(on_a_node("a")), true))],
            protected("pvc1"),
            Some("False"),
        ),
        (
            "one of two pods is left",
            vec![uses(on_a_node("a")), uses(on_a_node("b").phase("Failed"))],
            protected("pvc1"),
            Some("False"),
        ),
        (
            "no longer used",
            vec![],
            with_unused(protected("pvc1"), "False"),
            Some("True"),
        ),
        (
            "without the finalizer",
            vec![uses(on_a_node("a"))],
            claim("pvc1"),
            Some("False"),
        ),
        (
            "another's condition stays",
            vec![uses(on_a_node("a"))],
            {
                let mut claim = protected("pvc1");
                let other = PersistentVolumeClaimCondition {
                    r#type: "Resizing".to_owned(),
                    status: "True".to_owned(),
                    ..Default::default()
                };
                claim.status.get_or_insert_default().conditions.push(other);
                claim
            },
            Some("False"),
        ),
    ];
    for (name, pods, claim, expected) in cases {
        let others = claim.status.as_ref().map_or(0, |status| {
            let all = status.conditions.iter();
            all.filter(|one| one.r#type != UNUSED).count()
        });
        let mut world = gated(UNUSED_SINCE).without_kubelets().with(claim);
        for pod in pods {
            world.put(pod);
        }
        world.run::<ClaimProtection>();
        let (status, reason, message, since) = condition(&world, "pvc1").expect(name);
        assert_eq!(Some(&*status), expected, "{name}");
        let words = match &*status {
            "True" => (
                "NoPodsUsingPVC",
                "No pods are currently referencing this PVC",
            ),
            _ => ("PodUsingPVC", "A pod is currently referencing this PVC"),
        };
        assert_eq!((&*reason, &*message), words, "{name}");
        assert_eq!(since, Some(Time::from(at("12:00:00"))), "{name}");
        let held = world.get::<PersistentVolumeClaim>("pvc1");
        let count = held.status.as_ref().unwrap().conditions.len();
        assert_eq!(count, 1 + others, "{name}");
        assert_eq!(finalizers(&world, "pvc1").unwrap(), [FINALIZER], "{name}");
        let at_rest = world.later(60).plan::<ClaimProtection>("pvc1");
        assert!(at_rest.is_nothing(), "{name}");
    }
}

#[test]
fn a_claim_is_reported_as_unused_once_and_on_proof() {
    let world = gated(UNUSED_SINCE).with(protected("pvc1"));
    let plan = world.plan::<ClaimProtection>("pvc1");
    assert_eq!(plan.verbs(), ["patch persistentvolumeclaims/pvc1/status"]);
    assert_eq!(plan.counted.len(), 1);
    assert!(plan.counted[0].strict);
    let world = gated(UNUSED_SINCE)
        .answering(|query| panic!("asked {query:?}"))
        .with(with_unused(protected("pvc1"), "True"));
    assert!(world.plan::<ClaimProtection>("pvc1").is_nothing());
}

#[test]
fn a_claim_that_is_being_deleted_keeps_its_condition_and_without_the_gate_there_is_none() {
    let waits = || with_unused(leaving("pvc1"), "True").finalizer("other/one");
    let mut world = gated(UNUSED_SINCE).with(waits());
    world.run::<ClaimProtection>();
    assert_eq!(finalizers(&world, "pvc1").unwrap(), ["other/one"]);
    let since = condition(&world, "pvc1").unwrap().3;
    assert_eq!(since, Some(Time::from(at("11:00:00"))));

    let mut world = gated(UNUSED_SINCE)
        .without_kubelets()
        .with(leaving("pvc1"))
        .with(on_a_node("a").uses("pvc1"));
    world.run::<ClaimProtection>();
    assert_eq!(finalizers(&world, "pvc1").unwrap(), [FINALIZER]);
    assert!(condition(&world, "pvc1").is_none());

    let mut world = World::at("12:00:00").with(protected("pvc1"));
    assert!(world.run::<ClaimProtection>().is_empty());
}

#[test]
fn the_last_pod_that_goes_lets_its_claim_go() {
    let mut world = World::at("12:00:00")
        .without_kubelets()
        .with(leaving("pvc1"))
        .with(on_a_node("a").uses("pvc1").running());
    world.run::<ClaimProtection>();
    assert!(finalizers(&world, "pvc1").is_some());
    world.vanish::<Pod>("a");
    world.run::<ClaimProtection>();
    assert!(finalizers(&world, "pvc1").is_none());
}
