use controllers_kit::{
    Answer, AnyObject, Factory, FlagValue, Query, Refusal, Runs,
    testing::{PodBuild as _, *},
};
use kubernetes_proto::{
    Object,
    core::{Pod, PodSchedulingGroup},
    scheduling::PodGroup,
};
use std::sync::Arc;

use super::{FINALIZER, GATE, PodGroupProtection};

pub(crate) fn group(name: &str) -> PodGroup {
    let mut group = PodGroup::default();
    let meta = group.metadata_mut();
    meta.name = name.into();
    meta.namespace = "default".into();
    meta.uid = format!("uid-podgroups-{name}").as_str().into();
    group
}

pub(crate) fn leaving(name: &str) -> PodGroup {
    group(name).finalizer(FINALIZER).terminating("11:00:00")
}

/// A pod of a group.
pub(crate) fn member(name: &str, group: &str) -> Pod {
    let mut pod = pod(name).on("node-1").phase("Running");
    let spec = pod.spec.get_or_insert_default();
    spec.scheduling_group = Some(
        PodSchedulingGroup {
            pod_group_name: group.into(),
        }
        .into(),
    );
    pod
}

fn finalizers(world: &World, name: &str) -> Option<Vec<String>> {
    let group = world.find::<PodGroup>(name)?;
    let held = &group.metadata().finalizers;
    Some(held.iter().map(ToString::to_string).collect())
}

/// Upstream's cases: whether the group has the finalizer, is being deleted, and which pods there are; whether
/// it is left with the finalizer.
#[test]
fn a_group_that_is_being_deleted_goes_when_no_pod_of_it_may_run() {
    let running = || member("pod-1", "workers");
    let succeeded = || member("pod-1", "workers").phase("Succeeded");
    let failed = || member("pod-1", "workers").phase("Failed");
    let cases: Vec<(&str, PodGroup, Vec<Pod>, Option<bool>)> = vec![
        (
            "new, without finalizer",
            group("workers"),
            vec![],
            Some(false),
        ),
        (
            "without finalizer, used",
            group("workers"),
            vec![running()],
            Some(false),
        ),
        (
            "kept",
            group("workers").finalizer(FINALIZER),
            vec![],
            Some(true),
        ),
        ("deleted, unused", leaving("workers"), vec![], None),
        (
            "deleted, used",
            leaving("workers"),
            vec![running()],
            Some(true),
        ),
        (
            "deleted, succeeded",
            leaving("workers"),
            vec![succeeded()],
            None,
        ),
        ("deleted, failed", leaving("workers"), vec![failed()], None),
        (
            "deleted, one of two has finished",
            leaving("workers"),
            vec![running(), member("pod-2", "workers").phase("Succeeded")],
            Some(true),
        ),
        (
            "deleted, held by another",
            group("workers")
                .finalizer("other/one")
                .terminating("11:00:00"),
            vec![running()],
            Some(false),
        ),
        (
            "deleted, a pod that is not bound yet",
            leaving("workers"),
            vec![member("pod-1", "workers").on("").phase("Pending")],
            Some(true),
        ),
        (
            "deleted, a pod of another group",
            leaving("workers"),
            vec![member("pod-1", "others")],
            None,
        ),
        (
            "deleted, a pod of none",
            leaving("workers"),
            vec![pod("pod-1").ready("11:00:00")],
            None,
        ),
        (
            "deleted, a pod of another namespace",
            leaving("workers"),
            vec![member("pod-1", "workers").in_namespace("shop")],
            None,
        ),
        (
            "deleted, a pod that is going itself",
            leaving("workers"),
            vec![running().terminating("11:00:00")],
            Some(true),
        ),
    ];
    for (name, group, pods, expected) in cases {
        let mut world = World::at("12:00:00").with(group);
        for pod in pods {
            world.put(pod);
        }
        world.run::<PodGroupProtection>();
        let left = finalizers(&world, "workers");
        let is_held = left.map(|held| held.contains(&FINALIZER.to_owned()));
        assert_eq!(is_held, expected, "{name}");
    }
}

#[test]
fn a_group_goes_with_its_last_pod_and_keeps_foreign_finalizers() {
    let mut world = World::at("12:00:00")
        .with(leaving("workers").finalizer("other/one"))
        .with(member("pod-1", "workers"));
    assert!(world.run::<PodGroupProtection>().is_empty());
    world.vanish::<Pod>("pod-1");
    world.run::<PodGroupProtection>();
    assert_eq!(finalizers(&world, "workers").unwrap(), ["other/one"]);
}

#[test]
fn the_removal_rests_strictly_on_all_pods_of_the_namespace() {
    let world = World::at("12:00:00").with(leaving("workers"));
    let plan = world.plan::<PodGroupProtection>("workers");
    let sets: Vec<_> = plan
        .counted
        .iter()
        .map(|set| (set.resource, &*set.namespace, set.since, set.strict))
        .collect();
    assert_eq!(sets, [(Pod::resource(), "default", world.version(), true)]);
    let action = plan.actions().next().unwrap();
    let seen = world.get::<PodGroup>("workers");
    assert_eq!(action.resource_version, seen.metadata().resource_version);

    fn failing(query: &Query) -> Option<Answer> {
        matches!(query, Query::Present { .. }).then(|| Answer::Failed("timed out".to_owned()))
    }
    let refusal = world
        .answering(failing)
        .refusal::<PodGroupProtection>("workers");
    assert_eq!(
        refusal,
        Refusal::Retry("pods could not be asked: timed out".to_owned())
    );
}

/// Upstream's cases of changes of pods, and of PodGroups.
#[test]
fn groups_wake_when_they_are_to_go_and_when_a_pod_may_have_freed_them() {
    let world = World::at("12:00:00");
    let woken =
        |old, new| world.woken::<PodGroupProtection>(Option::as_ref(&old), Option::as_ref(&new));
    let any = |pod: Pod| Some(Arc::new(pod) as AnyObject);
    let of = |group: &str, uid: &str, phase: &str| any(member("p", group).uid(uid).phase(phase));
    let none: [&str; 0] = [];
    let running = || of("a", "1", "Running");
    for (what, old, new, expected) in [
        ("gone", running(), None, &["default/a"][..]),
        (
            "finished",
            running(),
            of("a", "1", "Succeeded"),
            &["default/a"],
        ),
        ("come", None, running(), &none),
        (
            "come finished",
            None,
            of("a", "1", "Failed"),
            &["default/a"],
        ),
        (
            "gone, of none",
            any(pod("p").ready("11:00:00")),
            None,
            &none,
        ),
        (
            "gone, of an empty name",
            of("", "1", "Running"),
            None,
            &none,
        ),
        (
            "replaced",
            running(),
            of("a", "2", "Succeeded"),
            &["default/a"],
        ),
        (
            "replaced by another's",
            running(),
            of("b", "2", "Failed"),
            &["default/a", "default/b"],
        ),
        (
            "replaced by one that runs",
            running(),
            of("a", "2", "Pending"),
            &["default/a"],
        ),
        ("changed", running(), running(), &none),
    ] {
        assert_eq!(woken(old, new), expected, "{what}");
    }
    let any = |group: PodGroup| Some(Arc::new(group) as AnyObject);
    assert!(woken(None, any(group("a").finalizer(FINALIZER))).is_empty());
    assert!(woken(None, any(group("a").terminating("11:00:00"))).is_empty());
    assert_eq!(woken(None, any(leaving("a"))), ["default/a"]);
    assert!(woken(any(leaving("a")), None).is_empty());
}

#[test]
fn the_controller_runs_where_its_gate_is_on() {
    let descriptor = (Factory::of::<PodGroupProtection>().describe)();
    let mut flags = controllers_kit::Flags::defaults([&descriptor]);
    assert!(matches!((descriptor.runs)(&flags), Runs::No(_)));
    flags.set(GATE, FlagValue::Bool(true));
    assert_eq!((descriptor.runs)(&flags), Runs::Yes);
}
