use controllers_kit::{Answer, Query, Refusal, testing::*};
use kubernetes_proto::{
    Object,
    core::{ModifyVolumeStatus, PersistentVolume, PersistentVolumeClaim},
    storage::VolumeAttributesClass,
};

use super::{ClassProtection, FINALIZER};
use crate::builders::{any, volume};

pub(crate) fn class(name: &str) -> VolumeAttributesClass {
    let mut class = VolumeAttributesClass::default();
    let meta = class.metadata_mut();
    meta.name = name.into();
    meta.uid = format!("uid-volumeattributesclasses-{name}")
        .as_str()
        .into();
    class.driver_name = "csi.example.com".to_owned();
    class
}

pub(crate) fn leaving(name: &str) -> VolumeAttributesClass {
    class(name).finalizer(FINALIZER).terminating("11:00:00")
}

/// A volume of a class.
pub(crate) fn pv(name: &str, class: &str) -> PersistentVolume {
    let mut volume = volume(name, "Bound");
    volume
        .spec
        .get_or_insert_default()
        .volume_attributes_class_name = Some(class.to_owned());
    volume
}

/// A claim that asks for a class, has one and changes to one; empty for none.
pub(crate) fn pvc(name: &str, asked: &str, current: &str, target: &str) -> PersistentVolumeClaim {
    let some = |class: &str| (!class.is_empty()).then(|| class.to_owned());
    let mut claim = claim(name);
    claim
        .spec
        .get_or_insert_default()
        .volume_attributes_class_name = some(asked);
    let status = claim.status.get_or_insert_default();
    status.current_volume_attributes_class_name = some(current);
    status.modify_volume_status = some(target).map(|target| ModifyVolumeStatus {
        target_volume_attributes_class_name: target,
        status: "InProgress".to_owned(),
    });
    claim
}

fn finalizers(world: &World, name: &str) -> Option<Vec<String>> {
    let class = world.find::<VolumeAttributesClass>(name)?;
    let held = &class.metadata().finalizers;
    Some(held.iter().map(ToString::to_string).collect())
}

#[test]
fn a_class_gets_the_finalizer_once_and_keeps_those_of_others() {
    let mut world = World::at("12:00:00")
        .with(class("vac1").finalizer("other/one"))
        .with(class("vac2").finalizer(FINALIZER));
    assert_eq!(world.run::<ClassProtection>().len(), 1);
    assert_eq!(
        finalizers(&world, "vac1").unwrap(),
        ["other/one", FINALIZER]
    );
    assert!(world.plan::<ClassProtection>("vac1").is_nothing());
}

/// Upstream's cases of a class that is being deleted: who names which classes, and whether it goes.
#[test]
fn a_class_that_is_being_deleted_goes_when_nothing_names_it() {
    let pvc = |asked, current, target| pvc("pvc1", asked, current, target);
    let cases: Vec<(
        &str,
        Vec<PersistentVolume>,
        Vec<PersistentVolumeClaim>,
        bool,
    )> = vec![
        ("nothing", vec![], vec![], true),
        ("a volume", vec![pv("pv1", "vac1")], vec![], false),
        ("a claim", vec![], vec![pvc("vac1", "", "")], false),
        ("a volume of another", vec![pv("pv1", "vac2")], vec![], true),
        (
            "a volume of none",
            vec![volume("pv1", "Bound")],
            vec![],
            true,
        ),
        (
            "one of two volumes",
            vec![pv("pv1", "vac2"), pv("pv2", "vac1")],
            vec![],
            false,
        ),
        (
            "a claim of another",
            vec![],
            vec![pvc("vac2", "vac2", "")],
            true,
        ),
        (
            "a claim that still has it",
            vec![],
            vec![pvc("vac2", "vac1", "")],
            false,
        ),
        (
            "a claim that changes to it",
            vec![],
            vec![pvc("vac2", "", "vac1")],
            false,
        ),
        (
            "a claim of another and a volume",
            vec![pv("pv1", "vac1")],
            vec![pvc("vac2", "", "")],
            false,
        ),
        (
            "a volume of another and a claim",
            vec![pv("pv1", "vac2")],
            vec![pvc("vac1", "vac1", "vac1")],
            false,
        ),
    ];
    for (name, volumes, claims, goes) in cases {
        let mut world = World::at("12:00:00").with(leaving("vac1"));
        for volume in volumes {
            world.put(volume);
        }
        for claim in claims {
            world.put(claim);
        }
        world.run::<ClassProtection>();
        assert_eq!(finalizers(&world, "vac1").is_none(), goes, "{name}");
    }
}

#[test]
fn the_removal_rests_strictly_on_all_volumes_and_claims() {
    let world = World::at("12:00:00").with(leaving("vac1"));
    let plan = world.plan::<ClassProtection>("vac1");
    let sets: Vec<_> = plan
        .counted
        .iter()
        .map(|set| (set.resource, &*set.namespace, set.since, set.strict))
        .collect();
    let version = world.version();
    assert_eq!(
        sets,
        [
            (PersistentVolume::resource(), "", version, true),
            (PersistentVolumeClaim::resource(), "", version, true)
        ]
    );
    let action = plan.actions().next().unwrap();
    let seen = world.get::<VolumeAttributesClass>("vac1");
    assert_eq!(action.resource_version, seen.metadata().resource_version);

    fn failing(query: &Query) -> Option<Answer> {
        matches!(query, Query::Present { resource } if resource.plural == "persistentvolumeclaims")
            .then(|| Answer::Failed("timed out".to_owned()))
    }
    let refusal = world.answering(failing).refusal::<ClassProtection>("vac1");
    assert_eq!(
        refusal,
        Refusal::Retry("persistentvolumeclaims could not be asked: timed out".to_owned())
    );
}

#[test]
fn classes_wake_when_they_need_it_and_when_something_no_longer_names_them() {
    let world = World::at("12:00:00");
    let woken =
        |old, new| world.woken::<ClassProtection>(Option::as_ref(&old), Option::as_ref(&new));
    assert_eq!(woken(None, Some(any(class("vac1")))), ["vac1"]);
    assert_eq!(woken(None, Some(any(leaving("vac1")))), ["vac1"]);
    assert!(woken(None, Some(any(class("vac1").finalizer(FINALIZER)))).is_empty());
    let volume = |class| Some(any(pv("pv1", class)));
    assert!(woken(None, volume("vac1")).is_empty());
    assert_eq!(woken(volume("vac1"), volume("vac2")), ["vac1"]);
    assert_eq!(woken(volume("vac1"), None), ["vac1"]);
    assert!(woken(volume("vac1"), volume("vac1")).is_empty());
    let claim = |asked, current, target| Some(any(pvc("pvc1", asked, current, target)));
    assert!(woken(None, claim("a", "b", "c")).is_empty());
    assert_eq!(woken(claim("a", "b", "c"), None), ["a", "b", "c"]);
    assert_eq!(woken(claim("a", "a", ""), claim("b", "a", "b")), [""; 0]);
    assert_eq!(woken(claim("b", "a", "b"), claim("b", "b", "")), ["a"]);
}
