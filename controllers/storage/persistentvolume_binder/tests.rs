use controllers_kit::{FlagValue, Plan, Runs, testing::*};
use kubernetes_proto::{
    Object, cast,
    core::{
        Amount, CsiPersistentVolumeSource, HostPathVolumeSource, NfsVolumeSource, ObjectReference,
        PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec,
        PersistentVolumeClaimStatus, PersistentVolumeClaimVolumeSource, PersistentVolumeSource,
        PersistentVolumeSpec, PersistentVolumeStatus, Pod, Volume, VolumeResourceRequirements,
        VolumeSource,
    },
    meta::{LabelSelector, Time},
    quantity::Quantity,
    storage::StorageClass,
};

use super::{PersistentVolumeBinder as Binder, facts::*};

fn storage_of(size: &str) -> Vec<Amount> {
    vec![Amount {
        key: "storage".into(),
        value: Some(Quantity::text(size)),
    }]
}

/// A volume on some CSI driver that nobody has.
pub(crate) fn volume(name: &str, size: &str) -> PersistentVolume {
    let mut one = PersistentVolume {
        spec: Some(PersistentVolumeSpec {
            capacity: storage_of(size),
            access_modes: vec!["ReadWriteOnce".to_owned()],
            persistent_volume_reclaim_policy: "Retain".to_owned(),
            volume_mode: Some("Filesystem".to_owned()),
            persistent_volume_source: Some(PersistentVolumeSource {
                csi: Some(Box::new(CsiPersistentVolumeSource {
                    driver: "csi.example.com".to_owned(),
                    volume_handle: name.to_owned(),
                    ..Default::default()
                })),
                ..Default::default()
            }),
            ..Default::default()
        }),
        status: Some(PersistentVolumeStatus {
            phase: AVAILABLE.to_owned(),
            ..Default::default()
        }),
        ..Default::default()
    };
    one.metadata_mut().name = name.into();
    one
}

/// A claim that waits for a volume.
pub(crate) fn claim(name: &str, size: &str) -> PersistentVolumeClaim {
    let mut one = PersistentVolumeClaim {
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: vec!["ReadWriteOnce".to_owned()],
            resources: Some(VolumeResourceRequirements {
                requests: storage_of(size),
            }),
            storage_class_name: Some(String::new()),
            ..Default::default()
        }),
        status: Some(PersistentVolumeClaimStatus {
            phase: PENDING.to_owned(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let meta = one.metadata_mut();
    meta.name = name.into();
    meta.namespace = "default".into();
    meta.uid = format!("u-{name}").into();
    one
}

trait VolumeBuild: Sized {
    fn change(self, change: impl FnOnce(&mut PersistentVolumeSpec)) -> Self;
    fn phase(self, phase: &str) -> Self;
    fn note(self, name: &str, value: &str) -> Self;
    /// Points at a claim of the namespace default; an empty uid is none.
    fn of(self, name: &str, uid: &str) -> Self {
        self.change(|spec| {
            spec.claim_ref = Some(ObjectReference {
                namespace: "default".to_owned(),
                name: name.to_owned(),
                uid: uid.to_owned(),
                ..Default::default()
            });
        })
    }
    fn by_us(self) -> Self {
        self.note(BOUND_BY_CONTROLLER, "yes")
    }
    fn class(self, class: &str) -> Self {
        self.change(|spec| spec.storage_class_name = class.to_owned())
    }
    fn policy(self, policy: &str) -> Self {
        self.change(|spec| spec.persistent_volume_reclaim_policy = policy.to_owned())
    }
    fn block(self) -> Self {
        self.change(|spec| spec.volume_mode = Some("Block".to_owned()))
    }
    fn host_path(self, path: &str) -> Self {
        self.change(|spec| {
            spec.persistent_volume_source = Some(PersistentVolumeSource {
                host_path: Some(Box::new(HostPathVolumeSource {
                    path: path.to_owned(),
                    r#type: None,
                })),
                ..Default::default()
            });
        })
    }
    fn nfs(self) -> Self {
        self.change(|spec| {
            spec.persistent_volume_source = Some(PersistentVolumeSource {
                nfs: Some(Box::new(NfsVolumeSource {
                    server: "nfs.example.com".to_owned(),
                    path: "/a".to_owned(),
                    read_only: false,
                })),
                ..Default::default()
            });
        })
    }
}

impl VolumeBuild for PersistentVolume {
    fn change(mut self, change: impl FnOnce(&mut PersistentVolumeSpec)) -> Self {
        change(self.spec.get_or_insert_default());
        self
    }
    fn phase(mut self, phase: &str) -> Self {
        self.status.get_or_insert_default().phase = phase.to_owned();
        self
    }
    fn note(mut self, name: &str, value: &str) -> Self {
        self.metadata_mut().set_annotation(name, value);
        self
    }
}

trait ClaimBuild: Sized {
    fn with(self, change: impl FnOnce(&mut PersistentVolumeClaimSpec)) -> Self;
    fn phase(self, phase: &str) -> Self;
    fn note(self, name: &str, value: &str) -> Self;
    fn naming(self, volume: &str) -> Self {
        self.with(|spec| spec.volume_name = volume.to_owned())
    }
    /// As the controller leaves it when it has bound it.
    fn bound(self, volume: &str) -> Self {
        self.naming(volume)
            .note(BOUND_BY_CONTROLLER, "yes")
            .note(BIND_COMPLETED, "yes")
    }
    fn of_class(self, class: Option<&str>) -> Self {
        self.with(|spec| spec.storage_class_name = class.map(str::to_owned))
    }
    fn block(self) -> Self {
        self.with(|spec| spec.volume_mode = Some("Block".to_owned()))
    }
    fn attributes(self, class: &str) -> Self {
        self.with(|spec| spec.volume_attributes_class_name = Some(class.to_owned()))
    }
}

impl ClaimBuild for PersistentVolumeClaim {
    fn with(mut self, change: impl FnOnce(&mut PersistentVolumeClaimSpec)) -> Self {
        change(self.spec.get_or_insert_default());
        self
    }
    fn phase(mut self, phase: &str) -> Self {
        let status = self.status.get_or_insert_default();
        status.phase = phase.to_owned();
        if phase == BOUND {
            status.access_modes = vec!["ReadWriteOnce".to_owned()];
            status.capacity = storage_of("1Gi");
        }
        self
    }
    fn note(mut self, name: &str, value: &str) -> Self {
        self.metadata_mut().set_annotation(name, value);
        self
    }
}

fn class(name: &str, provisioner: &str, mode: &str) -> StorageClass {
    let mut one = StorageClass {
        provisioner: provisioner.to_owned(),
        volume_binding_mode: Some(mode.to_owned()),
        ..Default::default()
    };
    one.metadata_mut().name = name.into();
    one
}

fn default_since(name: &str, time: &str) -> StorageClass {
    let mut one = class(name, "csi.example.com", "Immediate");
    let meta = one.metadata_mut();
    meta.set_annotation("storageclass.kubernetes.io/is-default-class", "true");
    meta.creation_timestamp = Some(Time::from(at(time)));
    one
}

/// A pod that uses a claim.
fn user(name: &str, claim: &str) -> Pod {
    let mut one = pod(name);
    one.spec.get_or_insert_default().volumes = vec![Volume {
        name: "data".into(),
        volume_source: Some(VolumeSource {
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim.into(),
                read_only: false,
            }),
            ..Default::default()
        }),
    }];
    one
}

fn start() -> World {
    World::at("12:00:00").with(namespace("default"))
}

/// All volumes and claims in a line each: `volume phase claim:uid [by-us]`, `claim phase volume [by-us]
/// [done]`.
fn lines(world: &World) -> Vec<String> {
    let yes = |is: bool, text: &str| {
        if is {
            format!(" {text}")
        } else {
            String::new()
        }
    };
    let volumes = world.all::<PersistentVolume>().into_iter().map(|one| {
        let to = claim_ref(&one).map_or("-".to_owned(), |to| format!("{}:{}", to.name, to.uid));
        let by = yes(has(&*one, BOUND_BY_CONTROLLER), "by-us");
        let name = &Object::metadata(&*one).name;
        format!("{name} {} {to}{by}", volume_phase(&one))
    });
    let claims = world.all::<PersistentVolumeClaim>().into_iter().map(|one| {
        let to = match &*claim_spec(&one).volume_name {
            "" => "-",
            name => name,
        };
        let by = yes(has(&*one, BOUND_BY_CONTROLLER), "by-us");
        let done = yes(has(&*one, BIND_COMPLETED), "done");
        let name = &Object::metadata(&*one).name;
        format!("{name} {} {to}{by}{done}", claim_phase(&one))
    });
    volumes.chain(claims).collect()
}

/// The objects at the start, what they come to, and the reasons of events.
type Case<'a> = (
    &'a str,
    Vec<PersistentVolume>,
    Vec<PersistentVolumeClaim>,
    &'a [&'a str],
    &'a [&'a str],
);

fn check(cases: Vec<Case<'_>>, base: &World) {
    for (number, volumes, claims, expected, events) in cases {
        let mut world = base.clone();
        volumes.into_iter().for_each(|one| world.put(one));
        claims.into_iter().for_each(|one| world.put(one));
        world.run::<Binder>();
        assert_eq!(lines(&world), expected, "{number}");
        let recorded = world.events();
        assert_eq!(recorded.len(), events.len(), "{number}: {recorded:?}");
        for (event, reason) in recorded.iter().zip(events) {
            assert!(event.contains(reason), "{number}: {recorded:?}");
        }
    }
}

#[test]
fn a_claim_without_a_volume_gets_the_one_that_suits_best() {
    let labelled = |name: &str, size: &str| {
        let mut one = volume(name, size);
        one.metadata_mut().set_label("foo", "true");
        one
    };
    let choosing = |name: &str, size: &str| {
        claim(name, size).with(|spec| {
            spec.selector = Some(Box::new(LabelSelector {
                match_labels: vec![kubernetes_proto::meta::Entry {
                    key: "foo".into(),
                    value: "true".into(),
                }],
                ..Default::default()
            }));
        })
    };
    let modes = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        move |spec: &mut PersistentVolumeSpec| spec.access_modes = names
    };
    let bound: &[&str] = &["v Bound c:u-c by-us", "c Bound v by-us done"];
    let late = class("late", "csi.example.com", "WaitForFirstConsumer");
    let base = start().with(late);
    check(
        vec![
            (
                "1-1",
                vec![volume("v", "1Gi")],
                vec![claim("c", "1Gi")],
                bound,
                &[],
            ),
            (
                "1-2",
                vec![volume("v", "1Gi")],
                vec![claim("c", "10Gi")],
                &["v Available -", "c Pending -"],
                &["FailedBinding"],
            ),
            (
                "1-3",
                vec![],
                vec![ClaimBuild::phase(claim("c", "1Gi"), BOUND)],
                &["c Pending -"],
                &["FailedBinding"],
            ),
            (
                "1-4",
                vec![volume("a", "10Gi"), volume("b", "2Gi"), volume("c", "5Gi")],
                vec![claim("c", "1Gi")],
                &[
                    "a Available -",
                    "b Bound c:u-c by-us",
                    "c Available -",
                    "c Bound b by-us done",
                ],
                &[],
            ),
            (
                "1-5 reserved by name goes before a smaller one",
                vec![volume("a", "10Gi").of("c", ""), volume("b", "1Gi")],
                vec![claim("c", "1Gi")],
                &["a Bound c:u-c", "b Available -", "c Bound a by-us done"],
                &[],
            ),
            (
                "1-6 reserved by uid",
                vec![volume("a", "10Gi").of("c", "u-c"), volume("b", "1Gi")],
                vec![claim("c", "1Gi")],
                &["a Bound c:u-c", "b Available -", "c Bound a by-us done"],
                &[],
            ),
            (
                "1-7 reserved for another",
                vec![volume("v", "10Gi").of("other", "")],
                vec![claim("c", "1Gi")],
                &["v Available other:", "c Pending -"],
                &["FailedBinding"],
            ),
            (
                "1-8 after a crash: claimRef is written",
                vec![volume("v", "1Gi").of("c", "u-c").by_us()],
                vec![claim("c", "1Gi")],
                bound,
                &[],
            ),
            (
                "1-9 after a crash: and its phase",
                vec![VolumeBuild::phase(
                    volume("v", "1Gi").of("c", "u-c").by_us(),
                    BOUND,
                )],
                vec![claim("c", "1Gi")],
                bound,
                &[],
            ),
            (
                "1-10 after a crash: and the claim's spec",
                vec![VolumeBuild::phase(
                    volume("v", "1Gi").of("c", "u-c").by_us(),
                    BOUND,
                )],
                vec![claim("c", "1Gi").bound("v")],
                bound,
                &[],
            ),
            (
                "1-11",
                vec![volume("a", "1Gi"), labelled("b", "5Gi")],
                vec![choosing("c", "1Gi")],
                &[
                    "a Available -",
                    "b Bound c:u-c by-us",
                    "c Bound b by-us done",
                ],
                &[],
            ),
            (
                "1-12",
                vec![volume("a", "1Gi")],
                vec![choosing("c", "1Gi")],
                &["a Available -", "c Pending -"],
                &["FailedBinding"],
            ),
            (
                "1-13",
                vec![volume("v", "1Gi").class("late")],
                vec![claim("c", "1Gi").of_class(Some("late"))],
                &["v Available -", "c Pending -"],
                &["WaitForFirstConsumer"],
            ),
            (
                "1-14",
                vec![volume("v", "1Gi").class("late").of("c", "")],
                vec![claim("c", "1Gi").of_class(Some("late"))],
                &["v Bound c:u-c", "c Bound v by-us done"],
                &[],
            ),
            (
                "1-15",
                vec![volume("v", "1Gi").class("late")],
                vec![claim("c", "1Gi").of_class(Some("late")).naming("v")],
                &["v Bound c:u-c by-us", "c Bound v done"],
                &[],
            ),
            (
                "1-16",
                vec![VolumeBuild::phase(
                    volume("v", "1Gi").class("late").of("c", "u-c").by_us(),
                    BOUND,
                )],
                vec![claim("c", "1Gi").of_class(Some("late")).bound("v")],
                bound,
                &[],
            ),
            (
                "1-18",
                vec![volume("v", "1Gi").class("late").of("c", "u-c")],
                vec![
                    claim("c", "1Gi")
                        .of_class(Some("late"))
                        .note(SELECTED_NODE, "node-1"),
                ],
                &["v Bound c:u-c", "c Bound v by-us done"],
                &[],
            ),
            (
                "13-1 the class goes before the size",
                vec![volume("a", "1Gi"), volume("b", "9Gi").class("gold")],
                vec![claim("c", "1Gi").of_class(Some("gold"))],
                &[
                    "a Available -",
                    "b Bound c:u-c by-us",
                    "c Bound b by-us done",
                ],
                &[],
            ),
            (
                "13-2 no class is one too",
                vec![volume("a", "1Gi").class("gold"), volume("b", "9Gi")],
                vec![claim("c", "1Gi").of_class(None)],
                &[
                    "a Available -",
                    "b Bound c:u-c by-us",
                    "c Bound b by-us done",
                ],
                &[],
            ),
            (
                "13-3",
                vec![
                    volume("a", "1Gi").class("silver"),
                    volume("b", "9Gi").class("gold"),
                ],
                vec![claim("c", "1Gi").of_class(Some("gold"))],
                &[
                    "a Available -",
                    "b Bound c:u-c by-us",
                    "c Bound b by-us done",
                ],
                &[],
            ),
            (
                "13-5",
                vec![volume("v", "1Gi")],
                vec![claim("c", "1Gi").of_class(None)],
                bound,
                &[],
            ),
            (
                "14-5-1",
                vec![volume("v", "1Gi").class("gold")],
                vec![claim("c", "1Gi").of_class(Some("silver"))],
                &["v Available -", "c Pending -"],
                &["ProvisioningFailed"],
            ),
            (
                "14-7",
                vec![volume("v", "1Gi").block().of("c", "")],
                vec![ClaimBuild::block(claim("c", "1Gi"))],
                &["v Bound c:u-c", "c Bound v by-us done"],
                &[],
            ),
            (
                "11-24 a node was chosen, and the volume is somebody else's to provision",
                vec![volume("v", "1Gi").class("late")],
                vec![
                    claim("c", "1Gi")
                        .of_class(Some("late"))
                        .note(SELECTED_NODE, "node-1"),
                ],
                &["v Available -", "c Pending -"],
                &["ExternalProvisioning"],
            ),
            (
                "a volume that is reserved and too small",
                vec![volume("v", "1Gi").of("c", "")],
                vec![claim("c", "2Gi")],
                &["v Available c:", "c Pending -"],
                &["FailedBinding"],
            ),
            (
                "two modes where one is asked for, and one of one mode that is larger",
                vec![
                    volume("a", "1Gi").change(modes(&["ReadWriteOnce", "ReadOnlyMany"])),
                    volume("b", "5Gi"),
                    volume("c", "1Gi").change(modes(&["ReadOnlyMany"])),
                ],
                vec![claim("c", "1Gi")],
                &[
                    "a Available -",
                    "b Bound c:u-c by-us",
                    "c Available -",
                    "c Bound b by-us done",
                ],
                &[],
            ),
            (
                "one that is being deleted",
                vec![
                    VolumeBuild::phase(volume("v", "1Gi"), AVAILABLE)
                        .finalizer("a/b")
                        .terminating("11:00:00"),
                ],
                vec![claim("c", "1Gi")],
                &["v Available -", "c Pending -"],
                &["FailedBinding"],
            ),
            (
                "14-1",
                vec![volume("v", "1Gi").block()],
                vec![ClaimBuild::block(claim("c", "1Gi"))],
                bound,
                &[],
            ),
            (
                "14-3",
                vec![volume("v", "1Gi")],
                vec![ClaimBuild::block(claim("c", "1Gi"))],
                &["v Available -", "c Pending -"],
                &["FailedBinding"],
            ),
            (
                "14-4",
                vec![volume("v", "1Gi").block()],
                vec![claim("c", "1Gi")],
                &["v Available -", "c Pending -"],
                &["FailedBinding"],
            ),
            (
                "attributes differ",
                vec![volume("v", "1Gi")],
                vec![claim("c", "1Gi").attributes("gold")],
                &["v Available -", "c Pending -"],
                &["FailedBinding"],
            ),
        ],
        &base,
    );
}

#[test]
fn a_claim_that_names_a_volume_gets_that_or_none() {
    let refused: &[&str] = &["v Available -", "c Pending v"];
    let bound: &[&str] = &["v Bound c:u-c by-us", "c Bound v done"];
    let gold = |one: PersistentVolume| {
        one.change(|spec| spec.volume_attributes_class_name = Some("gold".to_owned()))
    };
    check(
        vec![
            (
                "2-1",
                vec![],
                vec![claim("c", "1Gi").naming("v")],
                &["c Pending v"],
                &[],
            ),
            (
                "2-2",
                vec![],
                vec![ClaimBuild::phase(claim("c", "1Gi").naming("v"), BOUND)],
                &["c Pending v"],
                &[],
            ),
            (
                "2-3",
                vec![volume("v", "1Gi")],
                vec![claim("c", "1Gi").naming("v")],
                bound,
                &[],
            ),
            (
                "2-4",
                vec![volume("v", "1Gi").of("c", "")],
                vec![claim("c", "1Gi").naming("v")],
                &["v Bound c:u-c", "c Bound v done"],
                &[],
            ),
            (
                "2-5",
                vec![volume("v", "1Gi").of("c", "u-c")],
                vec![claim("c", "1Gi").naming("v")],
                &["v Bound c:u-c", "c Bound v done"],
                &[],
            ),
            (
                "2-6",
                vec![VolumeBuild::phase(
                    volume("v", "1Gi").of("other", "u-other"),
                    BOUND,
                )],
                vec![
                    ClaimBuild::phase(claim("other", "1Gi").bound("v"), BOUND),
                    claim("c", "1Gi").naming("v"),
                ],
                &[
                    "v Bound other:u-other",
                    "c Pending v",
                    "other Bound v by-us done",
                ],
                &["FailedBinding"],
            ),
            (
                "2-9",
                vec![volume("v", "1Gi")],
                vec![claim("c", "2Gi").naming("v")],
                refused,
                &["requested PV is too small"],
            ),
            (
                "2-10",
                vec![volume("v", "1Gi").class("gold")],
                vec![claim("c", "1Gi").naming("v")],
                refused,
                &["storageClassName does not match"],
            ),
            (
                "2-11",
                vec![gold(volume("v", "1Gi"))],
                vec![claim("c", "1Gi").naming("v")],
                refused,
                &["volumeAttributesClassName does not match"],
            ),
            (
                "2-12",
                vec![gold(volume("v", "1Gi"))],
                vec![claim("c", "1Gi").naming("v").attributes("gold")],
                bound,
                &[],
            ),
            (
                "14-8",
                vec![volume("v", "1Gi").block()],
                vec![claim("c", "1Gi").naming("v")],
                refused,
                &["incompatible volumeMode"],
            ),
            (
                "14-5-2",
                vec![volume("v", "1Gi").class("gold")],
                vec![claim("c", "1Gi").naming("v").of_class(Some("silver"))],
                refused,
                &["storageClassName does not match"],
            ),
            (
                "14-9",
                vec![volume("v", "1Gi").block()],
                vec![ClaimBuild::block(claim("c", "1Gi").naming("v"))],
                bound,
                &[],
            ),
            (
                "one that is being deleted",
                vec![volume("v", "1Gi").finalizer("a/b").terminating("11:00:00")],
                vec![claim("c", "1Gi").naming("v")],
                refused,
                &["the volume is marked for deletion \"v\""],
            ),
            (
                "other modes of access",
                vec![
                    volume("v", "1Gi")
                        .change(|spec| spec.access_modes = vec!["ReadOnlyMany".to_owned()]),
                ],
                vec![claim("c", "1Gi").naming("v")],
                refused,
                &["Cannot bind to requested volume \"v\": incompatible accessMode"],
            ),
            (
                "2-8 the selector is ignored",
                vec![volume("v", "1Gi")],
                vec![claim("c", "1Gi").naming("v").with(|spec| {
                    spec.selector = Some(Box::new(LabelSelector {
                        match_labels: vec![kubernetes_proto::meta::Entry {
                            key: "a".into(),
                            value: "b".into(),
                        }],
                        ..Default::default()
                    }));
                })],
                bound,
                &[],
            ),
        ],
        &start(),
    );
}

#[test]
fn a_claim_that_was_bound_is_repaired_or_lost() {
    let done = |one: PersistentVolumeClaim| ClaimBuild::phase(one, BOUND);
    check(
        vec![
            (
                "3-1",
                vec![],
                vec![done(claim("c", "1Gi").note(BIND_COMPLETED, "yes"))],
                &["c Lost - done"],
                &["ClaimLost"],
            ),
            (
                "3-2",
                vec![],
                vec![done(claim("c", "1Gi").bound("v"))],
                &["c Lost v by-us done"],
                &["ClaimLost"],
            ),
            (
                "3-3",
                vec![volume("v", "1Gi")],
                vec![claim("c", "1Gi").bound("v")],
                &["v Bound c:u-c by-us", "c Bound v by-us done"],
                &[],
            ),
            (
                "3-4",
                vec![volume("v", "1Gi").of("c", "u-c")],
                vec![claim("c", "1Gi").bound("v")],
                &["v Bound c:u-c", "c Bound v by-us done"],
                &[],
            ),
            (
                "3-5",
                vec![volume("v", "10Gi").of("c", "u-c")],
                vec![claim("c", "10Gi").naming("v").note(BIND_COMPLETED, "yes")],
                &["v Bound c:u-c", "c Bound v done"],
                &[],
            ),
            (
                "3-7 the selector is ignored",
                vec![volume("v", "1Gi")],
                vec![claim("c", "1Gi").bound("v").with(|spec| {
                    spec.selector = Some(Box::new(LabelSelector {
                        match_labels: vec![kubernetes_proto::meta::Entry {
                            key: "a".into(),
                            value: "b".into(),
                        }],
                        ..Default::default()
                    }));
                })],
                &["v Bound c:u-c by-us", "c Bound v by-us done"],
                &[],
            ),
            (
                "a lost claim whose volume has come back",
                vec![VolumeBuild::phase(
                    volume("v", "1Gi").of("c", "u-c").by_us(),
                    BOUND,
                )],
                vec![ClaimBuild::phase(claim("c", "1Gi").bound("v"), LOST)],
                &["v Bound c:u-c by-us", "c Bound v by-us done"],
                &[],
            ),
            (
                "3-6",
                vec![VolumeBuild::phase(
                    volume("v", "1Gi").of("other", "u-other"),
                    BOUND,
                )],
                vec![
                    done(claim("c", "1Gi").bound("v")),
                    done(claim("other", "1Gi").bound("v")),
                ],
                &[
                    "v Bound other:u-other",
                    "c Lost v by-us done",
                    "other Bound v by-us done",
                ],
                &["ClaimMisbound"],
            ),
        ],
        &start(),
    );
}

#[test]
fn a_volume_follows_the_claim_that_it_points_at() {
    let done = |one: PersistentVolumeClaim| ClaimBuild::phase(one, BOUND);
    let pending = |one: PersistentVolume| VolumeBuild::phase(one, PENDING);
    let bound = |one: PersistentVolume| VolumeBuild::phase(one, BOUND);
    let settled = || vec![done(claim("c", "1Gi").bound("w"))];
    let w = || bound(volume("w", "1Gi").of("c", "u-c").by_us());
    check(
        vec![
            (
                "4-1",
                vec![pending(volume("v", "1Gi"))],
                vec![],
                &["v Available -"],
                &[],
            ),
            (
                "4-2",
                vec![pending(volume("v", "1Gi").of("c", ""))],
                vec![],
                &["v Available c:"],
                &[],
            ),
            (
                "4-3",
                vec![bound(volume("v", "1Gi").of("c", "u-c"))],
                vec![],
                &["v Released c:u-c"],
                &[],
            ),
            (
                "4-4",
                vec![bound(volume("v", "1Gi").of("c", "u-old"))],
                vec![claim("c", "100Gi")],
                &["v Released c:u-old", "c Pending -"],
                &["FailedBinding"],
            ),
            (
                "4-9",
                vec![volume("v", "10Gi").of("c", "u-c").policy("Delete")],
                vec![done(claim("c", "10Gi").naming("v"))],
                &["v Bound c:u-c", "c Bound v done"],
                &[],
            ),
            (
                "4-10",
                vec![
                    volume("v", "10Gi")
                        .of("c", "u-c")
                        .policy("Delete")
                        .change(|spec| {
                            spec.persistent_volume_source = Some(PersistentVolumeSource::default());
                        }),
                ],
                vec![],
                &["v Failed c:u-c"],
                &["error getting deleter volume plugin for volume \"v\": no volume plugin matched"],
            ),
            (
                "4-6",
                vec![VolumeBuild::phase(
                    volume("v", "1Gi").of("c", "u-c").by_us(),
                    AVAILABLE,
                )],
                vec![done(claim("c", "1Gi").bound("v"))],
                &["v Bound c:u-c by-us", "c Bound v by-us done"],
                &[],
            ),
            (
                "4-7",
                vec![w(), bound(volume("v", "1Gi").of("c", "u-c").by_us())],
                settled(),
                &[
                    "v Available -",
                    "w Bound c:u-c by-us",
                    "c Bound w by-us done",
                ],
                &[],
            ),
            (
                "4-8",
                vec![w(), bound(volume("v", "1Gi").of("c", "u-c"))],
                settled(),
                &[
                    "v Available c:",
                    "w Bound c:u-c by-us",
                    "c Bound w by-us done",
                ],
                &[],
            ),
            (
                "8-12 of two that were provisioned one is not needed",
                vec![
                    w(),
                    bound(
                        volume("v", "1Gi")
                            .of("c", "u-c")
                            .by_us()
                            .policy("Delete")
                            .note(PROVISIONED_BY, "csi.example.com"),
                    ),
                ],
                settled(),
                &[
                    "v Released c:u-c by-us",
                    "w Bound c:u-c by-us",
                    "c Bound w by-us done",
                ],
                &[],
            ),
            (
                "6-10",
                vec![VolumeBuild::phase(
                    volume("v", "1Gi").of("c", "u-c").policy("Unknown"),
                    BOUND,
                )],
                vec![],
                &["v Failed c:u-c"],
                &["Volume has unrecognized PersistentVolumeReclaimPolicy"],
            ),
            (
                "8-10-2 a volume provided by hand is left to be deleted by hand",
                vec![bound(volume("v", "1Gi").of("c", "u-c").policy("Delete"))],
                vec![],
                &["v Released c:u-c"],
                &[],
            ),
            (
                "8-2",
                vec![bound(
                    volume("v", "1Gi")
                        .of("c", "u-c")
                        .by_us()
                        .policy("Delete")
                        .host_path("/tmp/a"),
                )],
                vec![],
                &[],
                &[],
            ),
            (
                "8-9",
                vec![bound(
                    volume("v", "1Gi")
                        .of("c", "u-old")
                        .policy("Delete")
                        .host_path("/tmp/a"),
                )],
                vec![claim("c", "10Gi")],
                &["c Pending -"],
                &["FailedBinding"],
            ),
            (
                "8-10-1",
                vec![bound(
                    volume("v", "1Gi")
                        .of("c", "u-c")
                        .by_us()
                        .policy("Delete")
                        .nfs()
                        .note(PROVISIONED_BY, "external.io/test"),
                )],
                vec![],
                &["v Released c:u-c by-us"],
                &[],
            ),
            (
                "8-13",
                vec![bound(
                    volume("v", "1Gi")
                        .of("c", "u-c")
                        .by_us()
                        .policy("Delete")
                        .host_path("/tmp/a")
                        .finalizer("kubernetes.io/pv-controller")
                        .terminating("11:00:00"),
                )],
                vec![],
                &[],
                &[],
            ),
            (
                "8-3",
                vec![bound(
                    volume("v", "1Gi").of("c", "u-c").policy("Delete").nfs(),
                )],
                vec![],
                &["v Failed c:u-c"],
                &["no deletable volume plugin matched"],
            ),
            (
                "8-1",
                vec![bound(
                    volume("v", "1Gi")
                        .of("c", "u-c")
                        .policy("Delete")
                        .host_path("/tmp/a"),
                )],
                vec![],
                &[],
                &[],
            ),
            (
                "8-4",
                vec![bound(
                    volume("v", "1Gi")
                        .of("c", "u-c")
                        .policy("Delete")
                        .host_path("/var/a"),
                )],
                vec![],
                &["v Failed c:u-c"],
                &["host_path deleter only supports /tmp/.+ but received provided /var/a"],
            ),
            (
                "6-3",
                vec![bound(volume("v", "1Gi").of("c", "u-c").policy("Recycle"))],
                vec![],
                &["v Failed c:u-c"],
                &["No recycler plugin found for the volume!"],
            ),
            (
                "14-13",
                vec![bound(volume("v", "1Gi").of("c", "u-c").by_us().block())],
                vec![claim("c", "1Gi")],
                &["v Bound c:u-c by-us", "c Pending -"],
                &["FailedBinding", "VolumeMismatch", "VolumeMismatch"],
            ),
            (
                "14-13-1",
                vec![bound(volume("v", "1Gi").of("c", "u-c").by_us())],
                vec![ClaimBuild::block(claim("c", "1Gi"))],
                &["v Bound c:u-c by-us", "c Pending -"],
                &["FailedBinding", "VolumeMismatch", "VolumeMismatch"],
            ),
        ],
        &start(),
    );
}

/// 4-12, and a case that upstream does not test: caches that lag behind.
#[test]
fn a_claim_or_volume_is_not_lost_or_released_by_the_cache_alone() {
    fn lives(query: &controllers_kit::Query) -> Option<controllers_kit::Answer> {
        let controllers_kit::Query::Live { resource, .. } = query else {
            return None;
        };
        let json = match resource.plural {
            "persistentvolumeclaims" => serde_json::json!({"metadata": {"uid": "u-c"}, "spec": {}}),
            "persistentvolumes" => serde_json::json!({
                "metadata": {"uid": "v"}, "spec": {"claimRef": {"uid": "u-c"}},
            }),
            _ => return None,
        };
        Some(controllers_kit::Answer::Object(json.into()))
    }
    let of_cache = || VolumeBuild::phase(volume("v", "1Gi").of("c", "u-c"), BOUND);
    let older = {
        let mut older = claim("c", "100Gi");
        older.metadata_mut().uid = "u-before".into();
        older
    };
    let lost = ClaimBuild::phase(claim("c", "1Gi").bound("v"), BOUND);
    let misbound = VolumeBuild::phase(volume("v", "1Gi").of("other", "u-x"), BOUND);
    let worlds = [
        ("the claim is missing", start().with(of_cache())),
        (
            "the claim is an older one",
            start().with(of_cache()).with(older),
        ),
        ("the volume is missing", start().with(lost.clone())),
        (
            "the volume has another claim",
            start().with(lost).with(misbound),
        ),
    ];
    for (name, world) in worlds {
        let plan = world.clone().answering(lives).plan::<Binder>("default/c");
        let touched = |plan: &Plan| {
            let verbs = plan.verbs();
            verbs.iter().any(|verb| {
                verb.starts_with("patch persistentvolumes/v/status")
                    || verb.starts_with("patch persistentvolumeclaims/c/status")
            })
        };
        let harmless = plan
            .verbs()
            .iter()
            .all(|verb| verb == "patch persistentvolumeclaims/c/status");
        assert!(
            !touched(&plan) || (name.contains("older") && harmless),
            "{name}: {:?}",
            plan.verbs()
        );
        let failed = world.clone().answering(|query| {
            matches!(query, controllers_kit::Query::Live { .. })
                .then(|| controllers_kit::Answer::Failed("no answer".to_owned()))
        });
        let said = match failed.try_plan::<Binder>("default/c") {
            Ok(plan) => plan.failure.unwrap_or_default(),
            Err(refusal) => refusal.to_string(),
        };
        assert!(
            said.contains("could not be read: no answer"),
            "{name}: {said}"
        );
        let at_last = world.plan::<Binder>("default/c");
        assert!(touched(&at_last), "{name}: {:?}", at_last.verbs());
    }
}

#[test]
fn every_write_of_a_binding_names_the_version_seen() {
    let world = start().with(volume("v", "1Gi")).with(claim("c", "1Gi"));
    let plan = world.plan::<Binder>("default/c");
    assert_eq!(
        plan.verbs(),
        [
            "patch persistentvolumes/v",
            "patch persistentvolumeclaims/c"
        ]
    );
    assert_eq!(plan.stages.len(), 2, "the claim follows the volume");
    assert!(plan.actions().all(|action| action.resource_version > 0));
    // 10-2: somebody else has taken the volume meanwhile.
    let mut taken = world;
    taken.change::<PersistentVolume>("v", |one| {
        *one = one.clone().of("other", "u-other");
    });
    let applied = taken.apply(&plan);
    assert_eq!(applied.failures().len(), 2);
    assert_eq!(lines(&taken)[1], "c Pending -");
}

#[test]
fn a_bound_claim_says_what_its_volume_has_when_it_becomes_bound_and_not_later() {
    let gold = |one: PersistentVolume| {
        one.change(|spec| spec.volume_attributes_class_name = Some("gold".to_owned()))
    };
    let mut world = start()
        .with(gold(volume("v", "3Gi")))
        .with(claim("c", "1Gi").attributes("gold"));
    world.run::<Binder>();
    let status = world
        .get::<PersistentVolumeClaim>("c")
        .status
        .clone()
        .unwrap();
    assert_eq!(status.capacity, storage_of("3Gi"));
    assert_eq!(status.access_modes, ["ReadWriteOnce"]);
    assert_eq!(
        status.current_volume_attributes_class_name.as_deref(),
        Some("gold")
    );
    world.change::<PersistentVolume>("v", |one| {
        *one = one.clone().change(|spec| spec.capacity = storage_of("9Gi"));
    });
    world.run::<Binder>();
    let status = world
        .get::<PersistentVolumeClaim>("c")
        .status
        .clone()
        .unwrap();
    assert_eq!(status.capacity, storage_of("3Gi"));

    let resized = volume("v", "5Gi").note(PRE_RESIZE, "2Gi");
    let mut world = start().with(resized).with(claim("c", "1Gi"));
    world.run::<Binder>();
    let status = world
        .get::<PersistentVolumeClaim>("c")
        .status
        .clone()
        .unwrap();
    assert_eq!(status.capacity, storage_of("2Gi"));

    let empty = volume("v", "1Gi").change(|spec| spec.capacity.clear());
    let world = start()
        .with(VolumeBuild::phase(empty.of("c", "u-c"), BOUND))
        .with(claim("c", "1Gi").bound("v"));
    let plan = world.plan::<Binder>("default/c");
    assert_eq!(
        plan.failure.as_deref(),
        Some("PersistentVolume \"v\" is without a storage capacity")
    );
}

#[test]
fn a_provisioner_is_asked_for_a_volume() {
    let external = "ExternalProvisioning Waiting for a volume to be created either by the external provisioner 'csi.example.com' or manually by the system administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered.";
    let ebs = "ExternalProvisioning Waiting for a volume to be created either by the external provisioner 'ebs.csi.aws.com'";
    let disabled = "Failed to create provisioner: provisioning in volume plugin \"kubernetes.io/host-path\" is disabled";
    for (number, provisioner, annotation, event) in [
        (
            "11-17",
            "csi.example.com",
            Some("csi.example.com"),
            external,
        ),
        (
            "11-21",
            "kubernetes.io/aws-ebs",
            Some("ebs.csi.aws.com"),
            ebs,
        ),
        (
            "11-18",
            "kubernetes.io/unknown",
            None,
            "ProvisioningFailed no volume plugin matched name: kubernetes.io/unknown",
        ),
        (
            "local volumes",
            "kubernetes.io/no-provisioner",
            None,
            "no volume plugin matched name: kubernetes.io/no-provisioner",
        ),
        (
            "paths of hosts",
            "kubernetes.io/host-path",
            Some("kubernetes.io/host-path"),
            disabled,
        ),
        (
            "no class",
            "",
            None,
            "ProvisioningFailed storageclass.storage.k8s.io \"gold\" not found",
        ),
    ] {
        let mut world = start().with(claim("c", "1Gi").of_class(Some("gold")));
        if !provisioner.is_empty() {
            world.put(class("gold", provisioner, "Immediate"));
        }
        world.run::<Binder>();
        let one = world.get::<PersistentVolumeClaim>("c");
        assert_eq!(
            super::facts::annotation(&*one, PROVISIONER),
            annotation,
            "{number}"
        );
        assert_eq!(
            super::facts::annotation(&*one, BETA_PROVISIONER),
            annotation,
            "{number}"
        );
        assert_eq!(world.events().len(), 1, "{number}: {:?}", world.events());
        assert!(
            world.events()[0].contains(event.split_once(' ').map_or(event, |(_, text)| text)),
            "{number}: {:?}",
            world.events()
        );
    }
    // Nobody is asked where that is switched off, and a delayed claim is provisioned for the node that was
    // chosen.
    let asking = |node: Option<&str>| {
        let one = claim("c", "1Gi").of_class(Some("gold"));
        let one = node.map_or(one.clone(), |node| one.note(SELECTED_NODE, node));
        start()
            .with(class("gold", "csi.example.com", "WaitForFirstConsumer"))
            .with(one)
    };
    assert!(asking(None).plan::<Binder>("default/c").actions().count() == 0);
    assert_eq!(
        asking(Some("a")).plan::<Binder>("default/c").verbs(),
        ["patch persistentvolumeclaims/c"]
    );
    let off = asking(Some("a")).flag("enable-dynamic-provisioning", FlagValue::Bool(false));
    assert!(off.plan::<Binder>("default/c").is_nothing());
}

#[test]
fn a_claim_that_waits_for_its_pod_says_which() {
    let world = start()
        .with(class("late", "csi.example.com", "WaitForFirstConsumer"))
        .with(claim("c", "1Gi").of_class(Some("late")));
    let said = |world: &World| {
        let plan = world.plan::<Binder>("default/c");
        plan.events
            .iter()
            .map(|event| format!("{} {}", event.reason, event.message))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        said(&world),
        ["WaitForFirstConsumer waiting for first consumer to be created before binding"]
    );
    let one = world.with(user("a", "c"));
    assert_eq!(
        said(&one),
        ["WaitForPodScheduled waiting for pod a to be scheduled"]
    );
    let two = one
        .with(user("b", "c"))
        .with(user("x", "other"))
        .with(user("on", "c").on("n"));
    assert_eq!(
        said(&two),
        ["WaitForPodScheduled waiting for pods a,b to be scheduled"]
    );
    let pod = cast::<Pod>(two.find_any(Pod::resource(), "default/a").unwrap()).unwrap();
    let pod = pod as kubernetes_proto::AnyObject;
    assert_eq!(two.woken::<Binder>(None, Some(&pod)), ["default/c"]);
}

/// 15-x.
#[test]
fn a_claim_that_names_no_class_gets_the_default_one_once_there_is_one() {
    let class_of = |world: &World| {
        let one = world.get::<PersistentVolumeClaim>("c");
        claim_spec(&one).storage_class_name.clone()
    };
    for (name, classes, asked, expected) in [
        ("none", vec![], None, None),
        (
            "one",
            vec![default_since("gold", "11:00:00")],
            None,
            Some("gold"),
        ),
        (
            "the newest",
            vec![
                default_since("gold", "10:00:00"),
                default_since("silver", "11:00:00"),
            ],
            None,
            Some("silver"),
        ),
        (
            "the first by name",
            vec![
                default_since("b", "11:00:00"),
                default_since("a", "11:00:00"),
            ],
            None,
            Some("a"),
        ),
        (
            "the empty one is one",
            vec![default_since("gold", "11:00:00")],
            Some(""),
            Some(""),
        ),
    ] {
        let mut world = start().with(claim("c", "1Gi").of_class(asked));
        world.run::<Binder>();
        classes.into_iter().for_each(|class| world.put(class));
        world.run::<Binder>();
        assert_eq!(class_of(&world).as_deref(), expected, "{name}");
    }
    let mut bound = start()
        .with(default_since("gold", "11:00:00"))
        .with(volume("v", "1Gi"))
        .with(claim("c", "1Gi").of_class(None));
    bound.run::<Binder>();
    assert_eq!(
        lines(&bound),
        ["v Bound c:u-c by-us", "c Bound v by-us done"]
    );
    assert_eq!(class_of(&bound), None);
}

/// 13-x of volumes: annotations and finalizers.
#[test]
fn annotations_and_finalizers_follow_the_migration() {
    let ours = "kubernetes.io/pv-controller";
    let theirs = "external-provisioner.volume.kubernetes.io/finalizer";
    let made_by = |provisioner: &str, policy: &str, held: &[&str]| {
        let mut one = volume("v", "1Gi")
            .policy(policy)
            .note(PROVISIONED_BY, provisioner);
        one.metadata_mut().finalizers = held.iter().map(|&name| name.into()).collect();
        one
    };
    for (provisioner, policy, held, after, driver) in [
        (
            "kubernetes.io/aws-ebs",
            "Delete",
            &[ours, theirs][..],
            &[theirs][..],
            Some("ebs.csi.aws.com"),
        ),
        ("kubernetes.io/other", "Delete", &[theirs], &[ours], None),
        (
            "kubernetes.io/other",
            "Retain",
            &[ours, "a/b"],
            &["a/b"],
            None,
        ),
        ("csi.example.com", "Delete", &[theirs], &[theirs], None),
        ("csi.example.com", "Delete", &[ours], &[ours], None),
    ] {
        let mut world = start().with(made_by(provisioner, policy, held));
        world.run::<Binder>();
        let one = world.get::<PersistentVolume>("v");
        assert_eq!(
            Object::metadata(&*one).finalizers,
            after,
            "{provisioner} {policy}"
        );
        assert_eq!(
            annotation(&*one, MIGRATED_TO),
            driver,
            "{provisioner} {policy}"
        );
    }
    // A volume that is bound and stays so follows too.
    let bound = |provisioner: &str, policy: &str, held: &[&str]| {
        let one = made_by(provisioner, policy, held).of("c", "u-c").by_us();
        start()
            .with(VolumeBuild::phase(one, BOUND))
            .with(ClaimBuild::phase(claim("c", "1Gi").bound("v"), BOUND))
    };
    for (provisioner, policy, held, after, driver) in [
        (
            "kubernetes.io/aws-ebs",
            "Delete",
            &[ours][..],
            &[][..],
            Some("ebs.csi.aws.com"),
        ),
        ("kubernetes.io/other", "Retain", &[ours], &[], None),
        ("kubernetes.io/other", "Delete", &[], &[ours], None),
    ] {
        let mut world = bound(provisioner, policy, held);
        world.run::<Binder>();
        let one = world.get::<PersistentVolume>("v");
        assert_eq!(
            Object::metadata(&*one).finalizers,
            after,
            "bound {provisioner} {policy}"
        );
        assert_eq!(
            annotation(&*one, MIGRATED_TO),
            driver,
            "bound {provisioner}"
        );
        assert_eq!(
            lines(&world),
            ["v Bound c:u-c by-us", "c Bound v by-us done"]
        );
    }
    let claims = [
        (
            Some("kubernetes.io/gce-pd"),
            None,
            Some("pd.csi.storage.gke.io"),
        ),
        (Some("csi.example.com"), Some("pd.csi.storage.gke.io"), None),
        (None, Some("kept.example.com"), Some("kept.example.com")),
    ];
    for (provisioner, before, after) in claims {
        let mut one = claim("c", "1Gi");
        if let Some(name) = provisioner {
            one = one.note(BETA_PROVISIONER, name);
        }
        if let Some(name) = before {
            one = one.note(MIGRATED_TO, name);
        }
        let mut world = start().with(one);
        world.run::<Binder>();
        let one = world.get::<PersistentVolumeClaim>("c");
        assert_eq!(annotation(&*one, MIGRATED_TO), after, "{provisioner:?}");
    }
    let migrated = VolumeBuild::phase(volume("v", "1Gi").of("c", "u-c"), BOUND)
        .policy("Delete")
        .note(PROVISIONED_BY, "kubernetes.io/aws-ebs")
        .note(MIGRATED_TO, "ebs.csi.aws.com");
    let mut world = start().with(migrated);
    world.run::<Binder>();
    assert_eq!(lines(&world), ["v Released c:u-c"], "8-10-3");
    assert!(world.events().is_empty());
}

fn recycled() -> World {
    let one = volume("v", "2Gi")
        .of("c", "u-c")
        .by_us()
        .policy("Recycle")
        .nfs();
    start().with(VolumeBuild::phase(one, RELEASED))
}

fn factories() -> [controllers_kit::Factory; 1] {
    [controllers_kit::Factory::of::<Binder>()]
}

#[test]
fn a_volume_of_policy_recycle_is_emptied_by_a_pod_and_available_again() {
    let world = recycled();
    let plan = world.plan::<Binder>("default/c");
    assert_eq!(plan.verbs(), ["create pods/recycler-for-v"]);
    let controllers_kit::Verb::Create { body } = &plan.actions().next().unwrap().verb else {
        panic!("it is a creation");
    };
    let pod: serde_json::Value = serde_json::from_slice(body).unwrap();
    assert_eq!(pod["metadata"]["namespace"], "default");
    assert_eq!(pod["spec"]["activeDeadlineSeconds"], 300);
    assert_eq!(pod["spec"]["restartPolicy"], "Never");
    assert_eq!(
        pod["spec"]["volumes"][0],
        serde_json::json!({
            "name": "vol", "nfs": {"server": "nfs.example.com", "path": "/a"},
        })
    );
    let mut ended = recycled();
    let mut memory = super::Memory::default();
    ended.apply(&plan).expect_success();
    let uid = Object::metadata(&*ended.get::<Pod>("recycler-for-v"))
        .uid
        .to_string();
    memory.recycling.insert(
        "v".to_owned(),
        super::Recycling {
            pod: uid,
            ..Default::default()
        },
    );
    let running = ended.plan_with::<Binder>("default/c", &mut memory).unwrap();
    assert!(running.is_nothing(), "it runs: {:?}", running.verbs());
    ended.change::<Pod>("recycler-for-v", |pod| {
        pod.status.get_or_insert_default().phase = "Succeeded".into();
    });
    // One of whose making nothing is known proves nothing: anybody may make a pod of that name.
    assert_eq!(
        ended.plan::<Binder>("default/c").verbs(),
        ["delete pods/recycler-for-v"]
    );
    let plan = ended.plan_with::<Binder>("default/c", &mut memory).unwrap();
    assert_eq!(
        plan.verbs(),
        ["patch persistentvolumes/v", "delete pods/recycler-for-v"]
    );
    ended.apply(&plan).expect_success();
    ended.run::<Binder>();
    assert_eq!(lines(&ended), ["v Available -"]);
    assert!(
        ended.events()[0].contains("Volume recycled"),
        "{:?}",
        ended.events()
    );
}

#[test]
fn a_volume_that_is_used_is_not_emptied() {
    for (name, pod, claims, verbs) in [
        ("6-11", user("a", "c").on("n"), false, &[][..]),
        ("6-12", user("a", "c"), false, &[]),
        (
            "6-13",
            user("a", "c").exited(0, "11:00:00"),
            false,
            &["create pods/recycler-for-v"],
        ),
        (
            "6-14",
            user("a", "c").on("n"),
            true,
            &["create pods/recycler-for-v"],
        ),
    ] {
        let mut world = recycled().with(pod);
        if claims {
            let mut other = ClaimBuild::phase(claim("c", "1Gi").bound("w"), BOUND);
            other.metadata_mut().uid = "u-new".into();
            world.put(other);
            world.put(VolumeBuild::phase(
                volume("w", "1Gi").of("c", "u-new").by_us(),
                BOUND,
            ));
        }
        let plan = world.plan::<Binder>("default/c");
        assert_eq!(plan.verbs(), verbs, "{name}");
        if verbs.is_empty() {
            assert_eq!(
                plan.events[0].message, "Volume is used by pods: default/a",
                "{name}"
            );
        }
    }
}

#[test]
fn a_pod_that_fails_to_empty_a_volume_is_reported_and_retried_later() {
    let mut world = recycled();
    let plan = world.plan::<Binder>("default/c");
    world.apply(&plan).expect_success();
    let uid = Object::metadata(&*world.get::<Pod>("recycler-for-v"))
        .uid
        .to_string();
    let mut memory = super::Memory::default();
    memory.recycling.insert(
        "v".to_owned(),
        super::Recycling {
            pod: uid,
            ..Default::default()
        },
    );
    world.change::<Pod>("recycler-for-v", |pod| {
        pod.status.get_or_insert_default().phase = "Failed".into();
    });
    // A pod that failed after the questions were asked has a message that nobody has read.
    let unread = world.clone().answering(|query| {
        matches!(query, controllers_kit::Query::Live { resource, .. } if resource.plural == "pods")
            .then(|| controllers_kit::Answer::Failed("no answer".to_owned()))
    });
    let refusal = unread
        .plan_with::<Binder>("default/c", &mut memory)
        .unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "the recycler pod default/recycler-for-v could not be read: no answer"
    );
    let plan = world.plan_with::<Binder>("default/c", &mut memory).unwrap();
    world.apply(&plan).expect_success();
    assert_eq!(lines(&world), ["v Failed c:u-c by-us"]);
    let expected =
        "Recycle failed: failed to recycle volume: pod failed, pod.Status.Message unknown";
    assert!(world.events()[0].contains(expected), "{:?}", world.events());
    let plan = world.plan_with::<Binder>("default/c", &mut memory).unwrap();
    assert_eq!(plan.verbs(), ["delete pods/recycler-for-v"]);
    world.apply(&plan).expect_success();
    world.step();
    let plan = world.plan_with::<Binder>("default/c", &mut memory).unwrap();
    assert!(plan.is_nothing(), "{:?}", plan.verbs());
    assert_eq!(plan.requeue, controllers_kit::Requeue::At(at("12:00:15")));
    let plan = world
        .later(15)
        .plan_with::<Binder>("default/c", &mut memory)
        .unwrap();
    assert_eq!(plan.verbs(), ["create pods/recycler-for-v"]);
}

#[test]
fn a_pod_of_an_unknown_life_is_removed_when_the_volume_needs_none() {
    let mut world = recycled();
    let plan = world.plan::<Binder>("default/c");
    world.apply(&plan).expect_success();
    let uid = Object::metadata(&*world.get::<Pod>("recycler-for-v"))
        .uid
        .to_string();
    let mut memory = super::Memory::default();
    memory.recycling.insert(
        "v".to_owned(),
        super::Recycling {
            pod: uid,
            ..Default::default()
        },
    );
    world.vanish::<PersistentVolume>("v");
    let plan = world.plan_with::<Binder>("default/c", &mut memory).unwrap();
    assert_eq!(plan.verbs(), ["delete pods/recycler-for-v"]);
}

#[test]
fn an_event_is_recorded_when_its_reason_begins_and_every_half_hour() {
    let events = |seconds: i64| {
        let mut world = start().with(claim("c", "1Gi"));
        world.settle_for(seconds, &factories());
        world.events().len()
    };
    assert_eq!(events(1700), 1);
    assert_eq!(events(1900), 2, "the API server keeps events for an hour");
    let late = class("late", "csi.example.com", "WaitForFirstConsumer");
    let mut waits = start()
        .with(late)
        .with(claim("c", "1Gi").of_class(Some("late")));
    waits.settle_for(3 * 3600 + 60, &factories());
    assert_eq!(waits.events().len(), 7, "nothing else wakes such a claim");
    // Of a claim that has the name of one before it, nothing was recorded.
    let mut memory = super::Memory::default();
    let before = start().with(claim("c", "1Gi"));
    let mut after = claim("c", "1Gi");
    after.metadata_mut().uid = "u-new".into();
    for world in [before, start().with(after)] {
        let plan = world.plan_with::<Binder>("default/c", &mut memory).unwrap();
        assert_eq!(plan.events.len(), 1, "{:?}", plan.events);
        let again = world.plan_with::<Binder>("default/c", &mut memory).unwrap();
        assert!(again.events.is_empty(), "{:?}", again.events);
    }
}

/// 1-17 and 2-7, which only a single sync shows.
#[test]
fn a_claim_takes_no_volume_that_is_not_available_or_another_s() {
    let mut world = start().with(claim("c", "1Gi"));
    for phase in [PENDING, FAILED, RELEASED, ""] {
        let name = format!("v-{}", phase.to_lowercase());
        world.put(VolumeBuild::phase(volume(&name, "1Gi"), phase));
    }
    let plan = world.plan::<Binder>("default/c");
    assert!(plan.verbs().is_empty(), "1-17: {:?}", plan.verbs());
    let taken = VolumeBuild::phase(volume("v", "1Gi").of("other", "u-other"), BOUND);
    let ours = claim("c", "1Gi")
        .naming("v")
        .note(BOUND_BY_CONTROLLER, "yes");
    let world = start().with(taken).with(ClaimBuild::phase(ours, BOUND));
    let plan = world.plan::<Binder>("default/c");
    assert!(plan.verbs().is_empty(), "2-7: {:?}", plan.verbs());
    assert_eq!(
        plan.failure.as_deref(),
        Some(
            "invalid binding of claim \"default/c\" to volume \"v\": volume already claimed by \"default/other\""
        ),
        "2-7"
    );
    assert_eq!(&*plan.events[0].reason, "FailedBinding", "2-7");
}

/// Its claim may live: without a namespace or a name nobody can say. Upstream reads by what is left of the
/// reference, and takes the answer that there is no such path for a claim that is gone.
#[test]
fn a_volume_whose_claim_can_t_be_read_is_never_released() {
    let incomplete = |namespace: &str, name: &str| {
        let one = volume("v", "1Gi").policy("Delete").change(|spec| {
            spec.claim_ref = Some(ObjectReference {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                uid: "u-c".to_owned(),
                ..Default::default()
            });
        });
        start()
            .with(claim("c", "1Gi"))
            .with(VolumeBuild::phase(one, BOUND))
    };
    for (namespace, name) in [("", "c"), ("default", ""), ("", "")] {
        let mut world = incomplete(namespace, name);
        world.settle_for(60, &factories());
        assert!(
            lines(&world)[0].starts_with("v Bound"),
            "{namespace:?}/{name:?}: {:?}",
            lines(&world)
        );
    }
}

#[test]
fn a_volume_that_can_t_be_read_does_not_hold_back_another_of_its_claim() {
    let emptied = |name: &str| {
        let one = volume(name, "1Gi").of("c", "u-c").policy("Recycle").nfs();
        VolumeBuild::phase(one, RELEASED)
    };
    let world = start()
        .with(emptied("a"))
        .with(emptied("b"))
        .answering(|query| match query {
            controllers_kit::Query::Live { key, .. } if &*key.name == "a" => {
                Some(controllers_kit::Answer::Failed("no answer".to_owned()))
            }
            _ => None,
        });
    let plan = world.plan::<Binder>("default/c");
    assert_eq!(plan.verbs(), ["create pods/recycler-for-b"]);
    assert_eq!(
        plan.failure.as_deref(),
        Some("volume \"a\" could not be read: no answer")
    );
}

/// 5-x: what happens to both sides later.
#[test]
fn a_claim_that_goes_releases_its_volume_and_a_volume_that_goes_loses_its_claim() {
    let both = || {
        let mut world = start().with(volume("v", "1Gi")).with(claim("c", "1Gi"));
        world.run::<Binder>();
        assert_eq!(
            lines(&world),
            ["v Bound c:u-c by-us", "c Bound v by-us done"],
            "5-2"
        );
        world
    };
    let mut world = both();
    world.vanish::<PersistentVolumeClaim>("c");
    world.run::<Binder>();
    assert_eq!(lines(&world), ["v Released c:u-c by-us"], "5-3");
    let mut world = both();
    world.vanish::<PersistentVolume>("v");
    world.run::<Binder>();
    assert_eq!(lines(&world), ["c Lost v by-us done"], "5-4");
    assert_eq!(world.events().len(), 1, "5-4: {:?}", world.events());
    // 5-5 and 5-8: how long a deletion takes is measured from the release to the volume's end, and a claim
    // that goes before it was bound is forgotten.
    let deleted = VolumeBuild::phase(
        volume("v", "1Gi")
            .of("c", "u-c")
            .class("gold")
            .policy("Delete"),
        RELEASED,
    );
    let mut world = start()
        .with(class("gold", "csi.example.com", "Immediate"))
        .with(deleted);
    let mut memory = super::Memory::default();
    world.plan_with::<Binder>("default/c", &mut memory).unwrap();
    assert_eq!(memory.deleting["v"].plugin, "csi.example.com", "5-6");
    world.vanish::<PersistentVolume>("v");
    let plan = world
        .later(9)
        .plan_with::<Binder>("default/c", &mut memory)
        .unwrap();
    let took = plan
        .measures
        .iter()
        .find(|one| one.name == super::OPERATION);
    assert_eq!(took.map(|one| one.value), Some(9.0), "5-5");
    assert!(memory.deleting.is_empty(), "5-5");
    let mut world = start()
        .with(class("gold", "csi.example.com", "Immediate"))
        .with(claim("c", "1Gi").of_class(Some("gold")));
    world.plan_with::<Binder>("default/c", &mut memory).unwrap();
    assert!(memory.provisioning.is_some(), "5-8");
    world.vanish::<PersistentVolumeClaim>("c");
    world.plan_with::<Binder>("default/c", &mut memory).unwrap();
    assert!(memory.provisioning.is_none(), "5-8");
}

#[test]
fn operations_that_fail_are_counted() {
    let counted = |plan: &Plan| -> Vec<String> {
        let of_actions = plan
            .actions()
            .filter_map(|action| action.announcement.as_ref())
            .flat_map(|announcement| &announcement.measures);
        let all = plan.measures.iter().chain(of_actions);
        let errors = all.filter(|one| super::ERRORS.contains(&one.name));
        errors
            .map(|one| {
                one.labels
                    .iter()
                    .map(AsRef::as_ref)
                    .collect::<Vec<&str>>()
                    .join(" ")
            })
            .collect()
    };
    let failing = VolumeBuild::phase(
        volume("v", "1Gi")
            .of("c", "u-c")
            .policy("Delete")
            .host_path("/var/a"),
        RELEASED,
    );
    let plan = start().with(failing).plan::<Binder>("default/c");
    assert_eq!(counted(&plan), ["kubernetes.io/host-path delete"; 2]);
    let refused = claim("c", "1Gi")
        .of_class(Some("host"))
        .note(PROVISIONER, "kubernetes.io/host-path");
    let plan = start()
        .with(class("host", "kubernetes.io/host-path", "Immediate"))
        .with(refused)
        .plan::<Binder>("default/c");
    assert_eq!(counted(&plan), ["kubernetes.io/host-path provision"; 2]);
}

#[test]
fn unusable_flags_are_reported_at_start() {
    let descriptor = <Binder as controllers_kit::Controller>::describe();
    let runs = |name: &'static str, value: FlagValue| {
        let flags = start().flag(name, value).flags([&descriptor]);
        (descriptor.runs)(&flags)
    };
    assert_eq!(
        runs("enable-dynamic-provisioning", FlagValue::Bool(false)),
        Runs::Yes
    );
    let Runs::Wrong(why) = runs("enable-hostpath-provisioner", FlagValue::Bool(true)) else {
        panic!("it is refused");
    };
    assert!(
        why.starts_with("--enable-hostpath-provisioner=true: "),
        "{why}"
    );
    for (file, expected) in [
        (
            "apiVersion: v1\nkind: Pod\nspec: {}\n",
            "does not contain any volume(s)",
        ),
        (
            "apiVersion: v1\nkind: Job\n",
            "is not of kind Pod, apiVersion v1",
        ),
        ("a: [", "can't be read"),
    ] {
        let name = "pv-recycler-pod-template-filepath-nfs";
        let Runs::Wrong(why) = runs(name, FlagValue::File(Some(file.as_bytes().to_vec()))) else {
            panic!("{file:?} is refused");
        };
        assert!(why.contains(expected), "{why}");
    }
    let own = "apiVersion: v1\nkind: Pod\nmetadata: {namespace: scrub}\nspec:\n  volumes: [{name: x, emptyDir: {}}]\n";
    let world = recycled().flag(
        "pv-recycler-pod-template-filepath-nfs",
        FlagValue::File(Some(own.as_bytes().to_vec())),
    );
    let plan = world.plan::<Binder>("default/c");
    assert_eq!(
        plan.actions().next().unwrap().key.to_string(),
        "scrub/recycler-for-v"
    );
}

#[test]
fn a_volume_that_becomes_free_wakes_the_claims_that_it_suits() {
    let world = start()
        .with(claim("a", "1Gi"))
        .with(claim("b", "9Gi"))
        .with(claim("n", "1Gi").of_class(None))
        .with(claim("g", "1Gi").of_class(Some("gold")))
        .with(claim("named", "1Gi").naming("v"))
        .with(volume("v", "2Gi"));
    let free = world.find_any(PersistentVolume::resource(), "v").unwrap();
    assert_eq!(
        world.woken::<Binder>(None, Some(&free)),
        ["v", "default/a", "default/n", "default/named"]
    );
}

/// Worlds for the contract: each comes to one rest alone.
pub(crate) fn worlds() -> Vec<World> {
    vec![
        start()
            .with(volume("a", "1Gi"))
            .with(volume("b", "2Gi").class("gold"))
            .with(volume("d", "4Gi").of("two", ""))
            .with(claim("one", "1Gi"))
            .with(claim("two", "3Gi"))
            .with(claim("three", "2Gi").of_class(Some("gold")))
            .with(claim("four", "9Gi"))
            .with(class("gold", "csi.example.com", "Immediate")),
        start()
            .with(default_since("gold", "11:00:00"))
            .with(claim("none", "1Gi").of_class(None))
            .with(claim("late", "1Gi").of_class(Some("late")))
            .with(class("late", "csi.example.com", "WaitForFirstConsumer"))
            .with(user("p", "late")),
        start()
            .with(VolumeBuild::phase(
                volume("gone", "1Gi").of("x", "u-x").by_us(),
                BOUND,
            ))
            .with(VolumeBuild::phase(
                volume("temporary", "1Gi")
                    .of("y", "u-y")
                    .policy("Delete")
                    .host_path("/tmp/y"),
                BOUND,
            ))
            .with(VolumeBuild::phase(
                volume("spare", "1Gi").of("one", "u-one").by_us(),
                BOUND,
            ))
            .with(VolumeBuild::phase(
                volume("own", "1Gi").of("one", "u-one").by_us(),
                BOUND,
            ))
            .with(ClaimBuild::phase(claim("one", "1Gi").bound("own"), BOUND))
            .with(ClaimBuild::phase(
                claim("lost", "1Gi").bound("nowhere"),
                BOUND,
            )),
    ]
}
