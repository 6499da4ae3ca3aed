use controllers_kit::{
    AnyObject,
    testing::{PodBuild as _, *},
};
use kubernetes_proto::{
    Object,
    core::{PersistentVolumeClaim, PersistentVolumeClaimTemplate, Pod},
    meta::ObjectMeta,
};
use prost::Message as _;

use super::{CREATES, EphemeralVolumes, FAILURES};
use crate::builders::{Volumes as _, any};

/// A spec with a field of the API that no projection has, `dataSource` (7), and one that is known.
pub(crate) const SPEC: &[u8] = &[
    10, 13, b'R', b'e', b'a', b'd', b'W', b'r', b'i', b't', b'e', b'O', b'n', b'c', b'e', 58, 3,
    18, 1, b'x',
];

fn web() -> Pod {
    pod("web").ephemeral("data", SPEC)
}

fn with_template_meta(mut pod: Pod, meta: ObjectMeta) -> Pod {
    let volume = &mut pod.spec.as_mut().unwrap().volumes[0];
    let inline = volume
        .volume_source
        .as_mut()
        .unwrap()
        .inline
        .as_mut()
        .unwrap();
    let mut source = (**inline.ephemeral.as_ref().unwrap()).clone();
    source.volume_claim_template.as_mut().unwrap().metadata = Some(meta);
    inline.ephemeral = Some(source.into());
    pod
}

#[test]
fn a_pod_gets_the_claim_of_its_template_byte_for_byte() {
    let mut meta = ObjectMeta::default();
    meta.set_label("app", "web");
    meta.set_annotation("for", "tests");
    meta.name = "ignored".into();
    meta.finalizers.push("not/copied".into());
    let world = World::at("12:00:00").with(with_template_meta(web(), meta));
    let plan = world.plan::<EphemeralVolumes>("web");
    assert_eq!(plan.verbs(), ["create persistentvolumeclaims/web-data"]);
    let action = plan.actions().next().unwrap();
    let controllers_kit::Verb::Create { body } = &action.verb else {
        panic!("{action:?}")
    };
    let made = PersistentVolumeClaimTemplate::decode(&body[..]).unwrap();
    assert_eq!(made.spec, SPEC);
    let meta = made.metadata.unwrap();
    assert_eq!((&*meta.name, &*meta.namespace), ("web-data", "default"));
    assert_eq!(meta.label("app"), Some("web"));
    assert_eq!(meta.annotation("for"), Some("tests"));
    assert!(meta.finalizers.is_empty());
    let [owner] = &meta.owner_references[..] else {
        panic!("{:?}", meta.owner_references)
    };
    let pod = world.get::<Pod>("web");
    assert_eq!((&*owner.api_version, &*owner.kind), ("v1", "Pod"));
    assert_eq!(
        (&owner.name, &owner.uid),
        (&pod.metadata().name, &pod.metadata().uid)
    );
    assert_eq!(
        (owner.controller, owner.block_owner_deletion),
        (Some(true), Some(true))
    );

    let mut world = world;
    world.run::<EphemeralVolumes>();
    let claim = world.get::<PersistentVolumeClaim>("web-data");
    assert_eq!(claim.spec.as_ref().unwrap().access_modes, ["ReadWriteOnce"]);
    assert!(world.plan::<EphemeralVolumes>("web").is_nothing());
}

/// Upstream's cases in which nothing is created.
#[test]
fn pods_that_are_gone_going_or_without_such_volumes_get_nothing() {
    let world = World::at("12:00:00")
        .with(web().terminating("11:00:00"))
        .with(pod("plain").uses("some-claim"));
    for pod in ["web", "plain", "none"] {
        assert!(world.plan::<EphemeralVolumes>(pod).is_nothing(), "{pod}");
    }
}

#[test]
fn a_claim_of_another_namespace_is_another() {
    let mut world = World::at("12:00:00")
        .with(web())
        .with(claim("web-data").in_namespace("other"));
    world.run::<EphemeralVolumes>();
    assert_eq!(world.all::<PersistentVolumeClaim>().len(), 2);
}

#[test]
fn a_claim_that_is_not_the_pod_s_is_an_error_and_holds_back_what_follows() {
    let conflicts = [
        claim("web-data"),
        claim("web-data").owned_by(&web().uid("before")),
        claim("web-data").owned_by(&pod("other")),
    ];
    for conflict in conflicts {
        let pod = pod("web")
            .ephemeral("first", b"")
            .ephemeral("data", b"")
            .ephemeral("last", b"");
        let world = World::at("12:00:00").with(pod).with(conflict);
        let plan = world.plan::<EphemeralVolumes>("web");
        assert_eq!(plan.verbs(), ["create persistentvolumeclaims/web-first"]);
        let [event] = &plan.events[..] else {
            panic!("{:?}", plan.events)
        };
        let why = "ephemeral volume data: PVC default/web-data was not created for pod default/web \
                   (pod is not owner)";
        assert_eq!((&*event.reason, &*event.message), ("FailedBinding", why));
        assert_eq!(event.r#type, controllers_kit::EventType::Warning);
        assert_eq!(&*event.about.kind, "Pod");
        assert_eq!(plan.failure, Some(format!("pod default/web, {why}")));
    }
}

#[test]
fn a_claim_that_is_the_pod_s_is_left_alone_even_on_its_way_out() {
    let world = World::at("12:00:00")
        .with(web())
        .with(claim("web-data").owned_by(&web()).terminating("11:00:00"));
    assert!(world.plan::<EphemeralVolumes>("web").is_nothing());
}

#[test]
fn volumes_get_their_claims_one_after_the_other() {
    let pod = pod("web")
        .ephemeral("a", b"")
        .uses("other")
        .ephemeral("b", b"");
    let world = World::at("12:00:00").with(pod);
    let plan = world.plan::<EphemeralVolumes>("web");
    assert_eq!(plan.stages.len(), 2);
    assert_eq!(
        plan.verbs(),
        [
            "create persistentvolumeclaims/web-a",
            "create persistentvolumeclaims/web-b"
        ]
    );
}

#[test]
fn creations_and_failures_are_counted_and_failures_reported() {
    let world = World::at("12:00:00").with(web());
    let plan = world.plan::<EphemeralVolumes>("web");
    let announcement = plan.actions().next().unwrap().announcement.clone().unwrap();
    let names = |measures: &[controllers_kit::Measure]| -> Vec<&str> {
        measures.iter().map(|one| one.name).collect()
    };
    assert_eq!(names(&announcement.measures), [CREATES]);
    assert_eq!(names(&announcement.failure_measures), [CREATES, FAILURES]);
    let failure = announcement.failure.unwrap();
    assert_eq!(&*failure.reason, "FailedBinding");
    assert_eq!(
        failure.message,
        "ephemeral volume data: create PVC web-data: "
    );
    assert!(!announcement.failure_as_is && announcement.success.is_none());
}

#[test]
fn pods_wake_when_they_come_and_when_a_claim_goes() {
    let some = |pod: Pod| Some(any(pod));
    let world = World::at("12:00:00")
        .with(web())
        .with(pod("plain").uses("web-data"));
    let woken = |old: Option<AnyObject>, new: Option<AnyObject>| {
        world.woken::<EphemeralVolumes>(old.as_ref(), new.as_ref())
    };
    assert_eq!(woken(None, some(web())), ["default/web"]);
    assert!(woken(some(web()), some(web().running())).is_empty());
    assert_eq!(woken(some(web()), some(web().uid("next"))), ["default/web"]);
    assert!(woken(None, some(web().terminating("11:00:00"))).is_empty());
    assert!(woken(None, some(pod("plain").uses("a"))).is_empty());
    assert!(woken(some(web()), None).is_empty());
    let claim = |uid: &str| Some(any(claim("web-data").uid(uid)));
    assert_eq!(woken(claim("a"), None), ["default/web"]);
    assert_eq!(woken(claim("a"), claim("b")), ["default/web"]);
    assert!(woken(claim("a"), claim("a")).is_empty());
    assert!(woken(None, claim("a")).is_empty());
}

#[test]
fn a_claim_that_is_deleted_is_made_again() {
    let mut world = World::at("12:00:00").with(web());
    world.run::<EphemeralVolumes>();
    world.vanish::<PersistentVolumeClaim>("web-data");
    world.run::<EphemeralVolumes>();
    assert!(world.find::<PersistentVolumeClaim>("web-data").is_some());
}
