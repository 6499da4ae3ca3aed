use controllers_kit::{
    EventType, Plan,
    testing::{PodBuild as _, *},
};
use kubernetes_proto::{
    Object,
    core::{
        Container, CsiPersistentVolumeSource, EphemeralContainer, EphemeralContainerCommon,
        FcVolumeSource, InitContainer, InlineVolumeSource, IscsiPersistentVolumeSource,
        NfsVolumeSource, ObjectReference, PersistentVolume, PersistentVolumeClaim,
        PersistentVolumeSource, Pod, SeLinuxOptions, SecurityContext, Volume, VolumeMount,
        VolumeSource,
    },
    storage::CsiDriver,
};

use super::{CONFLICTS_MAX, Recorded, SeLinuxWarning, label::Label, volume};
use crate::builders::{Volumes as _, any, volume as pv};

const DRIVER: &str = "csi.example.com";
const KEY: &str = "volume:/kubernetes.io/csi/csi.example.com^handle";

fn options(label: &str) -> SeLinuxOptions {
    let mut parts = label.splitn(4, ':').map(str::to_owned);
    let mut next = || parts.next().unwrap_or_default();
    SeLinuxOptions {
        user: next(),
        role: next(),
        r#type: next(),
        level: next(),
    }
}

fn context(label: &str) -> SecurityContext {
    SecurityContext {
        se_linux_options: Some(options(label)),
    }
}

fn mounts(volume: &str) -> Vec<VolumeMount> {
    vec![VolumeMount {
        name: volume.into(),
    }]
}

/// A pod that mounts claim `data` with a label of its own security context.
pub(crate) fn mounting(name: &str, label: &str) -> Pod {
    let mut pod = with_container(pod(name).on("node-1").uses("data"), "data", None);
    let context = pod
        .spec
        .as_mut()
        .unwrap()
        .security_context
        .get_or_insert_default();
    context.se_linux_options = (!label.is_empty()).then(|| options(label));
    pod
}

fn with_container(mut pod: Pod, volume: &str, label: Option<&str>) -> Pod {
    pod.spec.as_mut().unwrap().containers.push(Container {
        name: "app".into(),
        volume_mounts: Some(Box::new(mounts(volume))),
        security_context: label.map(|label| context(label).into()),
        ..Container::default()
    });
    pod
}

fn policy(mut pod: Pod, policy: &str) -> Pod {
    let context = pod
        .spec
        .as_mut()
        .unwrap()
        .security_context
        .get_or_insert_default();
    context.se_linux_change_policy = Some(policy.to_owned());
    pod
}

fn bound_claim(namespace: &str, volume: &str) -> PersistentVolumeClaim {
    let mut claim = claim("data").in_namespace(namespace);
    claim.spec.get_or_insert_default().volume_name = volume.to_owned();
    claim.status.get_or_insert_default().phase = "Bound".to_owned();
    claim
}

fn volume_of(
    name: &str,
    claim: &PersistentVolumeClaim,
    source: PersistentVolumeSource,
) -> PersistentVolume {
    let mut volume = pv(name, "Bound");
    let spec = volume.spec.get_or_insert_default();
    let meta = claim.metadata();
    spec.persistent_volume_source = Some(source);
    spec.claim_ref = Some(ObjectReference {
        namespace: meta.namespace.to_string(),
        name: meta.name.to_string(),
        uid: meta.uid.to_string(),
        ..ObjectReference::default()
    });
    volume
}

fn csi() -> PersistentVolumeSource {
    PersistentVolumeSource {
        csi: Some(Box::new(CsiPersistentVolumeSource {
            driver: DRIVER.to_owned(),
            volume_handle: "handle".to_owned(),
            ..CsiPersistentVolumeSource::default()
        })),
        ..PersistentVolumeSource::default()
    }
}

fn driver(mounts_with_context: Option<bool>) -> CsiDriver {
    let mut driver = CsiDriver::default();
    let meta = driver.metadata_mut();
    meta.name = DRIVER.into();
    meta.uid = "uid-driver".into();
    driver.spec.get_or_insert_default().se_linux_mount = mounts_with_context;
    driver
}

/// A claim `data`, bound to a volume of a driver that mounts with a context.
pub(crate) fn world() -> World {
    let claim = bound_claim("default", "pv1");
    let volume = volume_of("pv1", &claim, csi());
    World::at("12:00:00")
        .without_kubelets()
        .with(claim)
        .with(volume)
        .with(driver(Some(true)))
}

/// Events as `pod reason`, in order.
fn recorded(plan: &Plan) -> Vec<String> {
    let mut recorded: Vec<String> = plan
        .events
        .iter()
        .map(|event| format!("{} {}", event.about.key.name, event.reason))
        .collect();
    recorded.sort();
    recorded
}

fn of(world: &World) -> Plan {
    world.plan::<SeLinuxWarning>(KEY)
}

const A: &str = ":::s0:c1,c2";
const B: &str = ":::s0:c98,c99";

#[test]
fn two_labels_of_one_volume_are_reported_on_both_pods() {
    let plan = of(&world().with(mounting("a", A)).with(mounting("b", B)));
    assert_eq!(
        recorded(&plan),
        ["a SELinuxLabelConflict", "b SELinuxLabelConflict"]
    );
    assert_eq!(
        plan.events[0].message,
        "SELinuxLabel \":::s0:c1,c2\" conflicts with pod b that uses the same volume as this pod with \
         SELinuxLabel \":::s0:c98,c99\". If both pods land on the same node, only one of them may access the \
         volume."
    );
    assert!(
        plan.events
            .iter()
            .all(|event| event.r#type == EventType::Normal)
    );
    let measured: Vec<Vec<&str>> = plan
        .measures
        .iter()
        .map(|one| one.labels.iter().map(|label| &**label).collect())
        .collect();
    assert_eq!(
        measured,
        [
            ["SELinuxLabel", "default", "a", A, "default", "b", B],
            ["SELinuxLabel", "default", "b", B, "default", "a", A]
        ]
    );
    assert!(plan.verbs().is_empty());
}

/// Upstream's cases of single pods and pairs: which pod gets which event.
#[test]
fn pods_conflict_by_label_and_by_policy() {
    let both = |reason: &str| vec![format!("a {reason}"), format!("b {reason}")];
    let (label, by_policy) = ("SELinuxLabelConflict", "SELinuxChangePolicyConflict");
    let all = || {
        let mut all = both(label);
        all.extend(both(by_policy));
        all.sort();
        all
    };
    let cases: Vec<(&str, Vec<Pod>, Vec<String>)> = vec![
        ("one pod", vec![mounting("a", A)], vec![]),
        (
            "the same label",
            vec![mounting("a", A), mounting("b", A)],
            vec![],
        ),
        (
            "other levels",
            vec![mounting("a", A), mounting("b", B)],
            both(label),
        ),
        (
            "a type that one leaves open",
            vec![mounting("a", "u:r:t:s0"), mounting("b", ":::s0")],
            vec![],
        ),
        (
            "other types",
            vec![mounting("a", "u:r:t:s0"), mounting("b", ":r:x:s0")],
            both(label),
        ),
        (
            "no label, which implies Recursive",
            vec![mounting("a", A), mounting("b", "")],
            all(),
        ),
        (
            "no labels",
            vec![mounting("a", ""), mounting("b", "")],
            vec![],
        ),
        (
            "both Recursive",
            vec![
                policy(mounting("a", A), "Recursive"),
                policy(mounting("b", B), "Recursive"),
            ],
            vec![],
        ),
        (
            "one Recursive",
            vec![mounting("a", A), policy(mounting("b", A), "Recursive")],
            all(),
        ),
        (
            "one says what is the default",
            vec![mounting("a", A), policy(mounting("b", A), "MountOption")],
            vec![],
        ),
        (
            "pending and unknown pods count",
            vec![
                mounting("a", A).phase("Pending"),
                mounting("b", B).phase("Unknown"),
            ],
            both(label),
        ),
        (
            "a pod that has succeeded",
            vec![mounting("a", A), mounting("b", B).phase("Succeeded")],
            vec![],
        ),
        (
            "a pod that has failed",
            vec![mounting("a", A), mounting("b", B).phase("Failed")],
            vec![],
        ),
        (
            "a pod that does not mount its volume",
            vec![mounting("a", A), pod("b").uses("data")],
            vec![],
        ),
    ];
    for (name, pods, expected) in cases {
        let mut world = world();
        for pod in pods {
            world.put(pod);
        }
        assert_eq!(recorded(&of(&world)), expected, "{name}");
    }
}

#[test]
fn a_driver_that_does_not_mount_with_a_context_makes_all_pods_alike() {
    for other in [Some(driver(Some(false))), Some(driver(None)), None] {
        let mut world = world().with(mounting("a", A)).with(mounting("b", B));
        world.vanish::<CsiDriver>(DRIVER);
        if let Some(driver) = other {
            world.put(driver);
        }
        assert!(of(&world).is_nothing());
    }
}

#[test]
fn claims_that_are_not_bound_both_ways_are_no_users() {
    let pods = |world: World| world.with(mounting("a", A)).with(mounting("b", B));
    let mut pending = pods(world());
    pending.change::<PersistentVolumeClaim>("data", |claim| {
        claim.status.as_mut().unwrap().phase = "Pending".to_owned();
    });
    let mut other = pods(world());
    other.change::<PersistentVolume>("pv1", |volume| {
        volume
            .spec
            .as_mut()
            .unwrap()
            .claim_ref
            .as_mut()
            .unwrap()
            .uid = "other".to_owned();
    });
    let mut without = pods(world());
    without.vanish::<PersistentVolumeClaim>("data");
    for world in [pending, other, without] {
        assert!(of(&world).is_nothing());
    }
}

#[test]
fn pods_of_two_namespaces_are_not_named_to_each_other() {
    let claim = bound_claim("shop", "pv2");
    let volume = volume_of("pv2", &claim, csi());
    let world = world()
        .with(claim)
        .with(volume)
        .with(mounting("a", A))
        .with(mounting("b", B).in_namespace("shop"));
    let plan = of(&world);
    assert_eq!(plan.events.len(), 2);
    let words = "SELinuxLabel\":::s0:c1,c2\" conflicts with another pod that uses the same volume as this pod with \
                 a different SELinuxLabel. If both pods land on the same node, only one of them may access the \
                 volume.";
    assert!(plan.events.iter().any(|event| event.message == words));
}

#[test]
fn a_conflict_is_reported_once_and_forgotten_when_it_is_over() {
    let mut world = world().with(mounting("a", A)).with(mounting("b", B));
    let mut memory = Recorded::default();
    let mut counts = |world: &World| {
        let plan = world.plan_with::<SeLinuxWarning>(KEY, &mut memory).unwrap();
        (plan.events.len(), plan.measures.len())
    };
    assert_eq!(counts(&world), (2, 2));
    assert_eq!(counts(&world), (0, 2), "measured as long as it lasts");
    world.put(mounting("c", A));
    assert_eq!(counts(&world), (2, 4), "c and b");
    world.vanish::<Pod>("b");
    assert_eq!(counts(&world), (0, 0));
    assert_eq!(memory, Recorded::default());
}

#[test]
fn the_number_of_reported_conflicts_is_bounded() {
    let mut world = world();
    for number in 0..40 {
        world.put(mounting(&format!("a-{number}"), A));
        world.put(mounting(&format!("b-{number}"), B));
    }
    let plan = of(&world);
    assert_eq!(
        (plan.events.len(), plan.measures.len()),
        (CONFLICTS_MAX, CONFLICTS_MAX)
    );
}

#[test]
fn containers_of_one_pod_with_two_labels_are_reported_on_the_pod() {
    let init = |mut pod: Pod, label: &str| {
        pod.spec
            .as_mut()
            .unwrap()
            .init_containers
            .push(InitContainer {
                name: "init".into(),
                volume_mounts: Some(Box::new(mounts("data"))),
                security_context: Some(context(label).into()),
                ..InitContainer::default()
            });
        pod
    };
    let debug = |mut pod: Pod, label: &str| {
        let common = EphemeralContainerCommon {
            name: "debug".into(),
            volume_mounts: Some(Box::new(mounts("data"))),
            security_context: Some(context(label).into()),
        };
        let all = vec![EphemeralContainer {
            ephemeral_container_common: Some(common),
        }];
        pod.spec.as_mut().unwrap().ephemeral_containers = Some(Box::new(all));
        pod
    };
    let twice = [
        with_container(mounting("a", A), "data", Some(B)),
        init(mounting("a", A), B),
        debug(mounting("a", A), B),
    ];
    for pod in twice {
        let world = world().with(pod).with(mounting("b", B));
        let plan = world.plan::<SeLinuxWarning>("default/a");
        let [event] = &plan.events[..] else {
            panic!("{:?}", plan.events)
        };
        assert_eq!(event.r#type, EventType::Warning);
        assert_eq!(&*event.reason, "MultipleSELinuxLabels");
        assert_eq!(
            event.message,
            "Volume \"data\" is mounted twice with different SELinux labels inside this pod"
        );
        assert!(of(&world).is_nothing(), "its label is none");
        let mut unbound = world.clone();
        unbound.vanish::<PersistentVolume>("pv1");
        assert!(unbound.plan::<SeLinuxWarning>("default/a").is_nothing());
    }
    let same = world().with(with_container(mounting("a", A), "data", Some(A)));
    assert!(same.plan::<SeLinuxWarning>("default/a").is_nothing());
}

#[test]
fn labels_are_compared_part_by_part() {
    let label = |text: &str| -> Label {
        let pod = with_container(pod("a").uses("data"), "data", Some(text));
        super::label::effective(&pod, "data", true).unwrap().0
    };
    for (one, other, conflict) in [
        ("u:r:t:s0", "u:r:t:s0", false),
        (
            "system_u:system_r:container_t:s0:c1,c2",
            ":::s0:c1,c2",
            false,
        ),
        (
            "system_u:system_r:container_t:s0:c1,c2",
            ":::s0:c98,c99",
            true,
        ),
        (":::s0:c1,c2", "", true),
        ("u::t:s0", "u:r::s0", false),
        ("u::t:s0", "x:r::s0", true),
        ("", "", false),
        (":::", "", false),
    ] {
        assert_eq!(
            label(one).conflicts_with(&label(other)),
            conflict,
            "{one} {other}"
        );
        assert_eq!(
            label(other).conflicts_with(&label(one)),
            conflict,
            "{other} {one}"
        );
    }
    assert_eq!(label(":::").to_string(), "");
    assert_eq!(label("u::t:s0:c1").to_string(), "u::t:s0:c1");
}

#[test]
fn storage_is_identified_by_the_volume_s_source() {
    let claim = bound_claim("default", "pv1");
    let id = |source: PersistentVolumeSource| {
        volume::of_volume(&volume_of("pv1", &claim, source)).map(|storage| storage.id)
    };
    let none = PersistentVolumeSource::default;
    assert_eq!(
        id(csi()).unwrap(),
        "kubernetes.io/csi/csi.example.com^handle"
    );
    let fc = |names: &[&str], lun, ids: &[&str]| FcVolumeSource {
        target_ww_ns: names.iter().map(ToString::to_string).collect(),
        lun,
        wwids: ids.iter().map(ToString::to_string).collect(),
        ..FcVolumeSource::default()
    };
    let fibre = |source: FcVolumeSource| PersistentVolumeSource {
        fc: Some(Box::new(source)),
        ..none()
    };
    assert_eq!(
        id(fibre(fc(&["a", "b"], Some(3), &[]))).unwrap(),
        "kubernetes.io/fc/[a b]:3"
    );
    assert_eq!(
        id(fibre(fc(&[], None, &["w"]))).unwrap(),
        "kubernetes.io/fc/[w]"
    );
    assert_eq!(id(fibre(fc(&[], None, &[]))), None);
    let iscsi = PersistentVolumeSource {
        iscsi: Some(Box::new(IscsiPersistentVolumeSource {
            target_portal: "1.2.3.4:3260".to_owned(),
            iqn: "iqn".to_owned(),
            lun: 2,
            ..IscsiPersistentVolumeSource::default()
        })),
        ..none()
    };
    assert_eq!(id(iscsi).unwrap(), "kubernetes.io/iscsi/1.2.3.4:3260:iqn:2");
    let nfs = PersistentVolumeSource {
        nfs: Some(Box::new(NfsVolumeSource::default())),
        ..none()
    };
    assert_eq!((id(nfs), id(none())), (None, None));
}

/// A pod that mounts a Fibre Channel volume of its own.
fn inline(name: &str, label: &str) -> Pod {
    let source = InlineVolumeSource {
        fc: Some(
            FcVolumeSource {
                wwids: vec!["w".to_owned()],
                ..FcVolumeSource::default()
            }
            .into(),
        ),
        ..InlineVolumeSource::default()
    };
    let mut pod = pod(name);
    pod.spec.as_mut().unwrap().volumes.push(Volume {
        name: "disk".into(),
        volume_source: Some(VolumeSource {
            inline: Some(Box::new(source)),
            ..VolumeSource::default()
        }),
    });
    with_container(pod, "disk", Some(label))
}

#[test]
fn in_line_volumes_conflict_as_others_do() {
    let world = World::at("12:00:00")
        .with(inline("a", A))
        .with(inline("b", B));
    let plan = world.plan::<SeLinuxWarning>("volume:/kubernetes.io/fc/[w]");
    assert_eq!(
        recorded(&plan),
        ["a SELinuxLabelConflict", "b SELinuxLabelConflict"]
    );
}

#[test]
fn storage_wakes_by_pods_claims_volumes_and_drivers() {
    let world = world().with(mounting("a", A)).with(inline("x", A));
    let woken =
        |old, new| world.woken::<SeLinuxWarning>(Option::as_ref(&old), Option::as_ref(&new));
    let a = || Some(any(mounting("a", A)));
    assert_eq!(woken(None, a()), ["default/a", KEY]);
    assert_eq!(woken(a(), None), ["default/a", KEY]);
    assert!(woken(a(), Some(any(mounting("a", A).ready("11:00:00")))).is_empty());
    let ended = Some(any(mounting("a", A).phase("Failed")));
    assert_eq!(woken(a(), ended), ["default/a", KEY]);
    let disk = woken(None, Some(any(inline("x", A))));
    assert_eq!(disk, ["default/x", "volume:/kubernetes.io/fc/[w]"]);

    let claim = || bound_claim("default", "pv1");
    let mut unbound = claim();
    unbound.spec.as_mut().unwrap().volume_name = String::new();
    assert_eq!(
        woken(Some(any(unbound)), Some(any(claim()))),
        ["default/a", KEY]
    );
    assert!(woken(Some(any(claim())), Some(any(claim()))).is_empty());

    let bound = || volume_of("pv1", &claim(), csi());
    let mut free = bound();
    free.spec.as_mut().unwrap().claim_ref = None;
    assert_eq!(
        woken(Some(any(free)), Some(any(bound()))),
        ["default/a", KEY]
    );
    assert!(woken(Some(any(bound())), Some(any(bound()))).is_empty());

    let with = |mounts| Some(any(driver(mounts)));
    assert_eq!(woken(None, with(Some(true))), [KEY]);
    assert_eq!(woken(with(None), with(Some(true))), [KEY]);
    assert_eq!(woken(with(Some(true)), None), [KEY]);
    assert!(woken(with(None), with(Some(false))).is_empty());
}
