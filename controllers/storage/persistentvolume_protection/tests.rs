use controllers_kit::testing::*;
use kubernetes_proto::{
    Object,
    core::{ObjectReference, PersistentVolume},
};

use super::{FINALIZER, VolumeProtection};
use crate::builders::{any, volume};

fn finalizers(world: &World, name: &str) -> Option<Vec<String>> {
    let volume = world.find::<PersistentVolume>(name)?;
    let held = &volume.metadata().finalizers;
    Some(held.iter().map(ToString::to_string).collect())
}

fn leaving(phase: &str) -> PersistentVolume {
    volume("pv1", phase)
        .finalizer(FINALIZER)
        .terminating("11:00:00")
}

#[test]
fn a_volume_gets_the_finalizer_once_and_keeps_those_of_others() {
    let mut world = World::at("12:00:00")
        .with(volume("pv1", "Available").finalizer("other/one"))
        .with(volume("pv2", "Bound").finalizer(FINALIZER));
    assert_eq!(world.run::<VolumeProtection>().len(), 1);
    assert_eq!(finalizers(&world, "pv1").unwrap(), ["other/one", FINALIZER]);
    assert!(world.plan::<VolumeProtection>("pv1").is_nothing());
}

#[test]
fn a_volume_that_is_being_deleted_stays_while_it_is_bound() {
    for (phase, goes) in [
        ("Bound", false),
        ("Available", true),
        ("Pending", true),
        ("Released", true),
        ("Failed", true),
        ("", true),
    ] {
        let mut world = World::at("12:00:00").with(leaving(phase));
        world.run::<VolumeProtection>();
        assert_eq!(finalizers(&world, "pv1").is_none(), goes, "{phase}");
    }
    let mut none = volume("pv1", "")
        .finalizer(FINALIZER)
        .terminating("11:00:00");
    none.status = None;
    let mut world = World::at("12:00:00").with(none);
    world.run::<VolumeProtection>();
    assert!(finalizers(&world, "pv1").is_none(), "without a status");
}

/// The binder lets a volume point at its claim, then the claim name the volume, and only then the volume's
/// phase say so: one that was deleted in between went, and the claim was lost.
#[test]
fn a_volume_that_is_being_bound_stays_until_the_binder_has_said_what_came_of_it() {
    for (uid, phase, goes) in [
        ("uid-claim", "Available", false),
        ("uid-claim", "Pending", false),
        ("uid-claim", "", false),
        ("uid-claim", "Bound", false),
        ("uid-claim", "Released", true),
        ("uid-claim", "Failed", true),
        // Reserved by a user, for a claim that has not come.
        ("", "Available", true),
    ] {
        let mut volume = leaving(phase);
        volume.spec.get_or_insert_default().claim_ref = Some(ObjectReference {
            namespace: "default".to_owned(),
            name: "data".to_owned(),
            uid: uid.to_owned(),
            ..ObjectReference::default()
        });
        let mut world = World::at("12:00:00").with(volume);
        world.run::<VolumeProtection>();
        assert_eq!(finalizers(&world, "pv1").is_none(), goes, "{uid:?} {phase}");
    }
}

#[test]
fn a_volume_goes_once_it_is_released() {
    let mut world = World::at("12:00:00").with(leaving("Bound").finalizer("other/one"));
    assert!(world.run::<VolumeProtection>().is_empty());
    world.change::<PersistentVolume>("pv1", |volume| {
        volume.status.get_or_insert_default().phase = "Released".to_owned();
    });
    world.run::<VolumeProtection>();
    assert_eq!(finalizers(&world, "pv1").unwrap(), ["other/one"]);
}

/// A binding that comes between the read and the write makes the write fail.
#[test]
fn the_finalizer_is_removed_from_the_version_that_was_seen_alone() {
    let world = World::at("12:00:00").with(leaving("Released"));
    let plan = world.plan::<VolumeProtection>("pv1");
    let action = plan.actions().next().unwrap();
    let seen = world.get::<PersistentVolume>("pv1");
    assert_eq!(action.resource_version, seen.metadata().resource_version);
    assert_eq!(action.uid, seen.metadata().uid);
}

#[test]
fn volumes_that_are_as_they_should_be_wake_nobody() {
    let world = World::at("12:00:00");
    let woken =
        |volume: PersistentVolume| world.woken::<VolumeProtection>(None, Some(&any(volume)));
    assert!(woken(volume("pv1", "Bound").finalizer(FINALIZER)).is_empty());
    assert_eq!(woken(volume("pv1", "Bound")), ["pv1"]);
    assert_eq!(woken(leaving("Bound")), ["pv1"]);
    assert!(woken(volume("pv1", "").terminating("11:00:00")).is_empty());
}
