use controllers_kit::{Answer, Event, EventType, Plan, Query, Refusal, testing::*};
use kubernetes_proto::{
    Object,
    core::{
        Amount, AwsElasticBlockStoreVolumeSource, AzureDiskVolumeSource,
        AzureFilePersistentVolumeSource, CinderPersistentVolumeSource, CsiPersistentVolumeSource,
        FlexPersistentVolumeSource, GcePersistentDiskVolumeSource, ObjectReference,
        PersistentVolume, PersistentVolumeClaim, PersistentVolumeSource, PortworxVolumeSource,
        VsphereVirtualDiskVolumeSource,
    },
    meta::Quantity,
};

use super::{EXPANDING, PRE_RESIZE, RESIZER, Recorded, VolumeExpander};
use crate::builders::{any, volume};

fn amounts(size: &str) -> Vec<Amount> {
    vec![Amount {
        key: "storage".into(),
        value: Some(Quantity::text(size)),
    }]
}

/// A bound claim of volume `pv`.
pub(crate) fn bound(name: &str, asked: &str, held: &str) -> PersistentVolumeClaim {
    let mut claim = claim(name);
    let spec = claim.spec.get_or_insert_default();
    spec.volume_name = format!("pv-{name}");
    spec.resources.get_or_insert_default().requests = amounts(asked);
    let status = claim.status.get_or_insert_default();
    status.phase = "Bound".to_owned();
    status.capacity = amounts(held);
    claim
}

/// The volume of a claim.
pub(crate) fn volume_of(
    claim: &PersistentVolumeClaim,
    source: PersistentVolumeSource,
) -> PersistentVolume {
    let meta = claim.metadata();
    let mut volume = volume(&format!("pv-{}", meta.name), "Bound");
    let spec = volume.spec.get_or_insert_default();
    spec.persistent_volume_source = Some(source);
    spec.claim_ref = Some(ObjectReference {
        namespace: meta.namespace.to_string(),
        name: meta.name.to_string(),
        uid: meta.uid.to_string(),
        ..ObjectReference::default()
    });
    volume
}

pub(crate) fn csi() -> PersistentVolumeSource {
    PersistentVolumeSource {
        csi: Some(Box::new(CsiPersistentVolumeSource {
            driver: "com.csi.ceph".to_owned(),
            ..Default::default()
        })),
        ..Default::default()
    }
}

pub(crate) fn ebs() -> PersistentVolumeSource {
    PersistentVolumeSource {
        aws_elastic_block_store: Some(Box::new(AwsElasticBlockStoreVolumeSource::default())),
        ..Default::default()
    }
}

fn world(claim: PersistentVolumeClaim, source: PersistentVolumeSource) -> World {
    let volume = volume_of(&claim, source);
    World::at("12:00:00").with(claim).with(volume)
}

fn recorded(plan: &Plan) -> Vec<&str> {
    let of = |event: &Event| event.r#type == EventType::Normal && event.reason == *EXPANDING;
    assert!(plan.events.iter().all(of));
    plan.events.iter().map(|event| &*event.message).collect()
}

const EXTERNAL: &str = "waiting for an external controller to expand this PVC";

#[test]
fn a_claim_of_a_csi_driver_waits_with_an_event() {
    let plan = world(bound("web", "2Gi", "1Gi"), csi()).plan::<VolumeExpander>("web");
    assert_eq!(recorded(&plan), [EXTERNAL]);
    assert!(plan.verbs().is_empty());
}

#[test]
fn a_claim_of_a_migrated_plugin_is_given_to_the_driver_s_resizer() {
    fn boxed<T: Default>() -> Option<Box<T>> {
        Some(Box::default())
    }
    let none = PersistentVolumeSource::default;
    let cases = [
        (ebs(), "kubernetes.io/aws-ebs", "ebs.csi.aws.com"),
        (
            PersistentVolumeSource {
                gce_persistent_disk: boxed::<GcePersistentDiskVolumeSource>(),
                ..none()
            },
            "kubernetes.io/gce-pd",
            "pd.csi.storage.gke.io",
        ),
        (
            PersistentVolumeSource {
                cinder: boxed::<CinderPersistentVolumeSource>(),
                ..none()
            },
            "kubernetes.io/cinder",
            "cinder.csi.openstack.org",
        ),
        (
            PersistentVolumeSource {
                azure_disk: boxed::<AzureDiskVolumeSource>(),
                ..none()
            },
            "kubernetes.io/azure-disk",
            "disk.csi.azure.com",
        ),
        (
            PersistentVolumeSource {
                azure_file: boxed::<AzureFilePersistentVolumeSource>(),
                ..none()
            },
            "kubernetes.io/azure-file",
            "file.csi.azure.com",
        ),
        (
            PersistentVolumeSource {
                vsphere_volume: boxed::<VsphereVirtualDiskVolumeSource>(),
                ..none()
            },
            "kubernetes.io/vsphere-volume",
            "csi.vsphere.vmware.com",
        ),
        (
            PersistentVolumeSource {
                portworx_volume: boxed::<PortworxVolumeSource>(),
                ..none()
            },
            "kubernetes.io/portworx-volume",
            "pxd.portworx.com",
        ),
    ];
    for (source, plugin, driver) in cases {
        let mut world = world(bound("web", "2Gi", "1Gi"), source);
        let plan = world.plan::<VolumeExpander>("web");
        let what = format!(
            "CSI migration enabled for {plugin}; waiting for external resizer to expand the pvc"
        );
        assert_eq!(recorded(&plan), [what]);
        assert_eq!(plan.verbs(), ["patch persistentvolumeclaims/web/status"]);
        let action = plan.actions().next().unwrap();
        let failure = action
            .announcement
            .as_ref()
            .unwrap()
            .failure
            .as_ref()
            .unwrap();
        assert_eq!(
            failure.message,
            "error setting resizer annotation to pvc default/web, with error patchPVCStatus failed to \
             patch PVC \"web\": "
        );
        assert_eq!(failure.r#type, EventType::Warning);
        world.run::<VolumeExpander>();
        let claim = world.get::<PersistentVolumeClaim>("web");
        assert_eq!(claim.metadata().annotation(RESIZER), Some(driver));
    }
}

#[test]
fn other_sources_wait_for_somebody_outside() {
    let flex = PersistentVolumeSource {
        flex_volume: Some(Box::new(FlexPersistentVolumeSource::default())),
        ..Default::default()
    };
    for source in [flex, PersistentVolumeSource::default()] {
        let plan = world(bound("web", "2Gi", "1Gi"), source).plan::<VolumeExpander>("web");
        assert_eq!(recorded(&plan), [EXTERNAL]);
    }
}

#[test]
fn a_volume_that_is_being_resized_gets_the_event_though_the_claim_has_its_size() {
    let claim = bound("web", "2Gi", "2Gi");
    let volume = volume_of(&claim, csi()).annotation(PRE_RESIZE, "1Gi");
    let world = World::at("12:00:00").with(claim).with(volume);
    assert_eq!(recorded(&world.plan::<VolumeExpander>("web")), [EXTERNAL]);
}

#[test]
fn a_claim_that_has_what_it_asks_for_is_left_alone_and_nobody_is_asked() {
    for (asked, held) in [("1Gi", "1Gi"), ("1Gi", "2Gi"), ("1024Mi", "1Gi")] {
        let world =
            world(bound("web", asked, held), ebs()).answering(|query| panic!("asked {query:?}"));
        assert!(world.plan::<VolumeExpander>("web").is_nothing());
    }
    let mut pending = bound("web", "2Gi", "1Gi");
    pending.status.as_mut().unwrap().phase = "Pending".to_owned();
    let world = world(pending, ebs()).answering(|query| panic!("asked {query:?}"));
    assert!(world.plan::<VolumeExpander>("web").is_nothing());
}

#[test]
fn a_volume_that_is_missing_or_another_s_is_an_error_that_is_tried_again() {
    let retry = |world: World| match world.refusal::<VolumeExpander>("web") {
        Refusal::Retry(why) => why,
        other => panic!("{other}"),
    };
    let claim = || bound("web", "2Gi", "1Gi");
    let alone = World::at("12:00:00").with(claim());
    assert_eq!(
        retry(alone.clone()),
        "failed to get PV \"pv-web\": persistentvolumes \"pv-web\" not found"
    );
    let mut unnamed = claim();
    unnamed.spec.as_mut().unwrap().volume_name = String::new();
    assert_eq!(
        retry(World::at("12:00:00").with(unnamed)),
        "failed to get PV \"\": resource name may not be empty"
    );
    fn refused(query: &Query) -> Option<Answer> {
        matches!(query, Query::Live { .. }).then(|| Answer::Failed("forbidden".to_owned()))
    }
    assert_eq!(
        retry(alone.clone().answering(refused)),
        "failed to get PV \"pv-web\": forbidden"
    );
    let others = [
        volume_of(&claim().uid("another"), csi()),
        volume_of(&claim().in_namespace("shop"), csi()),
        volume("pv-web", "Available"),
    ];
    for volume in others {
        assert_eq!(
            retry(alone.clone().with(volume)),
            "persistent Volume is not bound to PVC being updated : default/web"
        );
    }
}

#[test]
fn the_event_is_recorded_once_for_each_size_and_again_after_it_was_reached() {
    let mut world = world(bound("web", "2Gi", "1Gi"), csi());
    let mut memory = Recorded::default();
    let mut events = |world: &World| {
        let plan = world.plan_with::<VolumeExpander>("web", &mut memory);
        plan.unwrap().events.len()
    };
    assert_eq!((events(&world), events(&world)), (1, 0));
    let resize = |world: &mut World, asked: &str, held: &str| {
        world.change::<PersistentVolumeClaim>("web", |claim| {
            *claim = {
                let mut new = bound("web", asked, held);
                *new.metadata_mut() = claim.metadata().clone();
                new
            }
        });
    };
    resize(&mut world, "3Gi", "1Gi");
    assert_eq!((events(&world), events(&world)), (1, 0));
    resize(&mut world, "3Gi", "3Gi");
    assert_eq!(events(&world), 0);
    resize(&mut world, "3Gi", "2Gi");
    assert_eq!(events(&world), 1);
}

#[test]
fn claims_wake_when_they_come_and_when_they_grow() {
    let world = World::at("12:00:00");
    let woken = |old: Option<PersistentVolumeClaim>, new: Option<PersistentVolumeClaim>| {
        let (old, new) = (old.map(any), new.map(any));
        world
            .woken::<VolumeExpander>(old.as_ref(), new.as_ref())
            .len()
    };
    let of = |asked, held| Some(bound("web", asked, held));
    assert_eq!(woken(None, of("1Gi", "1Gi")), 1);
    assert_eq!(woken(of("1Gi", "1Gi"), of("1Gi", "1Gi")), 0);
    assert_eq!(woken(of("1Gi", "1Gi"), of("2Gi", "1Gi")), 1);
    assert_eq!(woken(of("2Gi", "1Gi"), of("2Gi", "2Gi")), 1);
    assert_eq!(woken(of("2Gi", "2Gi"), of("1Gi", "2Gi")), 0);
    assert_eq!(woken(of("2Gi", "2Gi"), None), 0);
    let replaced = bound("web", "1Gi", "1Gi").uid("next");
    assert_eq!(woken(of("1Gi", "1Gi"), Some(replaced)), 1);
    let pending = |mut claim: PersistentVolumeClaim| {
        claim.status.as_mut().unwrap().phase = "Pending".to_owned();
        Some(claim)
    };
    assert_eq!(woken(None, pending(bound("web", "2Gi", "1Gi"))), 0);
    let before = pending(bound("web", "1Gi", "0"));
    assert_eq!(woken(before, of("1Gi", "1Gi")), 1, "bound just now");
}
