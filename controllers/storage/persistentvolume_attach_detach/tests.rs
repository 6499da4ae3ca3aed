use controllers_kit::{FlagValue, Flags, Plan, Requeue, Runs, SignedDuration, testing::*};
use kubernetes_proto::{
    Object,
    core::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::{CsiDriver, VolumeAttachment},
};
use serde_json::{Value, json};

use super::{AttachDetach, MANAGED, Memory, volumes::Unique};
use controllers_kit::Controller as _;

const V: &str = "kubernetes.io/csi/d^h";
const KEY: &str = "volume/kubernetes.io/csi/d^h";

fn read<T: serde::de::DeserializeOwned>(json: Value) -> T {
    serde_json::from_value(json).unwrap()
}

/// A Ready node that the controller attaches to.
pub(crate) fn kept_node(name: &str, attached: &[&str], in_use: &[&str]) -> Node {
    let attached: Vec<Value> = attached
        .iter()
        .map(|name| json!({"name": name, "devicePath": ""}))
        .collect();
    let mut node: Node = read(json!({
        "metadata": {"name": name},
        "spec": {},
        "status": {
            "volumesAttached": attached,
            "volumesInUse": in_use,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }));
    node.metadata_mut().set_annotation(MANAGED, "true");
    node
}

fn ill(mut node: Node) -> Node {
    for condition in &mut node.status.as_mut().unwrap().conditions {
        condition.status = "Unknown".into();
    }
    node
}

/// The PersistentVolume of this handle of the driver `d`, that the claim `data` is bound to.
fn volume(handle: &str, modes: &[&str]) -> PersistentVolume {
    read(json!({
        "metadata": {"name": "pv"},
        "spec": {
            "persistentVolumeSource": {"csi": {"driver": "d", "volumeHandle": handle}},
            "accessModes": modes,
            "claimRef": {"namespace": "default", "name": "data", "uid": "claim-uid"},
        },
    }))
}

/// A bound pair of a claim and a volume, named `data`, of the handle `h` of the driver `d`.
fn bound(world: World, modes: &[&str]) -> World {
    let claim: PersistentVolumeClaim = read(json!({
        "metadata": {"name": "data", "namespace": "default", "uid": "claim-uid"},
        "spec": {"volumeName": "pv"},
        "status": {"phase": "Bound"},
    }));
    world.with(volume("h", modes)).with(claim)
}

pub(crate) fn world(modes: &[&str]) -> World {
    bound(World::at("12:00:00").without_kubelets(), modes)
}

pub(crate) fn user(name: &str, node: &str) -> Pod {
    let mut pod = pod(name).on(node).running();
    pod.spec.as_mut().unwrap().volumes = vec![read(json!({
        "name": "v",
        "volumeSource": {"persistentVolumeClaim": {"claimName": "data"}},
    }))];
    pod
}

pub(crate) fn attachment(node: &str, attached: bool) -> VolumeAttachment {
    let name = Unique::parse(V).unwrap().attachment(node).unwrap();
    read(json!({
        "metadata": {"name": name},
        "spec": {"attacher": "d", "nodeName": node, "source": {"persistentVolumeName": "pv"}},
        "status": {"attached": attached},
    }))
}

fn verbs(plan: &Plan, world: &World) -> Vec<String> {
    let nodes = ["a", "b", "c"];
    let _ = world;
    let mut verbs = plan.verbs();
    for verb in &mut verbs {
        for node in nodes {
            let name = Unique::parse(V).unwrap().attachment(node).unwrap();
            *verb = verb.replace(&name, &format!("to-{node}"));
        }
    }
    verbs
}

fn planned(world: &World) -> Vec<String> {
    verbs(&world.plan::<AttachDetach>(KEY), world)
}

fn reported(plan: &Plan) -> Vec<String> {
    let events = plan.events.iter();
    events
        .map(|event| {
            format!(
                "{} {} {}",
                event.about.key.name, event.reason, event.message
            )
        })
        .collect()
}

const ONCE: &[&str] = &["ReadWriteOnce"];
const MANY: &[&str] = &["ReadWriteMany"];

#[test]
fn a_volume_has_upstreams_names() {
    let v = Unique::parse(V).unwrap();
    // sha256 of "hdn"
    assert_eq!(v.attachment("n").unwrap(), "csi-".to_owned() + &sha("hdn"));
    for (name, plugin) in [
        (V, Some("kubernetes.io/csi:d")),
        ("kubernetes.io/csi/d^a^b", Some("kubernetes.io/csi:d")),
        (
            "kubernetes.io/fc/[50060e801049cfd1]:0",
            Some("kubernetes.io/fc"),
        ),
        (
            "kubernetes.io/iscsi/1.2.3.4:3260:iqn:0",
            Some("kubernetes.io/iscsi"),
        ),
        ("kubernetes.io/csi/no-separator", None),
        ("flexvolume-k8s/x/y", None),
    ] {
        let found = Unique::parse(name).map(|unique| unique.plugin());
        assert_eq!(found.as_deref(), plugin, "{name}");
    }
}

fn sha(text: &str) -> String {
    let hash = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    hash.as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[test]
fn a_pod_gets_its_volume_attached_then_listed() {
    let mut world = world(ONCE)
        .with(kept_node("a", &[], &[]))
        .with(user("web", "a"));
    let plan = world.plan::<AttachDetach>(KEY);
    assert_eq!(verbs(&plan, &world), ["create volumeattachments/to-a"]);
    assert!(
        plan.counted
            .iter()
            .any(|one| one.resource.id().contains("volumeattachments"))
    );
    world.apply(&plan).expect_success();
    assert_eq!(planned(&world), [""; 0], "the driver is at work");
    let name = Unique::parse(V).unwrap().attachment("a").unwrap();
    let created = world.get::<VolumeAttachment>(&name);
    assert_eq!(
        Object::metadata(&*created).annotation("manifold.dev/volume"),
        Some(V)
    );
    world.put(attachment("a", true));
    let plan = world.plan::<AttachDetach>(KEY);
    assert_eq!(verbs(&plan, &world), ["patch nodes/a/status"]);
    assert_eq!(
        reported(&plan),
        ["web SuccessfulAttachVolume AttachVolume.Attach succeeded for volume \"pv\" "]
    );
    world.apply(&plan).expect_success();
    let node = world.get::<Node>("a");
    assert_eq!(node.status.as_ref().unwrap().volumes_attached[0].name, V);
    assert!(world.plan::<AttachDetach>(KEY).is_nothing());
}

#[test]
fn a_pod_that_may_not_have_the_volume_yet_attaches_nothing() {
    let base = || world(ONCE).with(kept_node("a", &[], &[]));
    let mut unmanaged = kept_node("a", &[], &[]);
    unmanaged.metadata_mut().annotations.clear();
    let driver: CsiDriver =
        read(json!({"metadata": {"name": "d"}, "spec": {"attachRequired": false}}));
    for (why, world) in [
        ("no pod", base()),
        (
            "the pod has no node",
            base().with({
                let mut pod = user("web", "a");
                pod.spec.as_mut().unwrap().node_name = "".into();
                pod
            }),
        ),
        (
            "the pod has ended",
            base().with(user("web", "a").phase("Succeeded")),
        ),
        (
            "the claim is pending",
            base()
                .with(user("web", "a"))
                .changed::<PersistentVolumeClaim>("data", |claim| {
                    claim.status.as_mut().unwrap().phase = "Pending".into();
                }),
        ),
        (
            "the volume is another claim's",
            base()
                .with(user("web", "a"))
                .changed::<PersistentVolume>("pv", |pv| {
                    pv.spec.as_mut().unwrap().claim_ref.as_mut().unwrap().uid = "other".into();
                }),
        ),
        ("the node is gone", world(ONCE).with(user("web", "b"))),
        (
            "the node attaches itself",
            world(ONCE).with(unmanaged).with(user("web", "a")),
        ),
        (
            "the driver attaches nothing",
            base().with(user("web", "a")).with(driver),
        ),
    ] {
        assert_eq!(planned(&world), [""; 0], "{why}");
    }
}

#[test]
fn a_volume_that_no_pod_wants_leaves_the_list_and_then_its_attachment_goes() {
    let mut world = world(ONCE)
        .with(kept_node("a", &[V], &[]))
        .with(attachment("a", true));
    let plan = world.plan::<AttachDetach>(KEY);
    assert_eq!(verbs(&plan, &world), ["patch nodes/a/status"]);
    assert!(plan.actions().all(|action| action.resource_version != 0));
    world.apply(&plan).expect_success();
    let plan = world.plan::<AttachDetach>(KEY);
    assert_eq!(verbs(&plan, &world), ["delete volumeattachments/to-a"]);
    assert!(
        plan.actions()
            .all(|action| action.resource_version != 0 && !action.uid.is_empty())
    );
    world.apply(&plan).expect_success();
    assert!(world.plan::<AttachDetach>(KEY).is_nothing());
}

#[test]
fn the_attachment_stays_where_the_live_node_uses_or_lists_the_volume() {
    for field in ["volumesInUse", "volumesAttached"] {
        let world = world(ONCE)
            .with(kept_node("a", &[], &[]))
            .with(attachment("a", true));
        let world = match field {
            "volumesInUse" => world.answering(|query| match query {
                controllers_kit::Query::Live { .. } => Some(controllers_kit::Answer::Object(
                    json!({"status": {"volumesInUse": [V]}}).into(),
                )),
                _ => None,
            }),
            _ => world.answering(|query| match query {
                controllers_kit::Query::Live { .. } => Some(controllers_kit::Answer::Object(
                    json!({"status": {"volumesAttached": [{"name": V}]}}).into(),
                )),
                _ => None,
            }),
        };
        let plan = world.plan::<AttachDetach>(KEY);
        assert!(plan.is_nothing(), "{field}");
        assert!(plan.failure.is_some(), "{field} is tried again");
    }
}

#[test]
fn a_mounted_volume_is_detached_by_force_in_time_or_out_of_service_alone() {
    let minutes = |of: i64| SignedDuration::from_mins(of);
    let mounted = || kept_node("a", &[V], &[V]);
    let out = || mounted().taint("node.kubernetes.io/out-of-service", "", "NoExecute");
    for (what, node, after, no_force, forced) in [
        ("healthy", Some(mounted()), minutes(7), false, false),
        (
            "ill, too early",
            Some(ill(mounted())),
            minutes(5),
            false,
            false,
        ),
        (
            "ill, in time",
            Some(ill(mounted())),
            minutes(6),
            false,
            true,
        ),
        (
            "ill, force disabled",
            Some(ill(mounted())),
            minutes(60),
            true,
            false,
        ),
        ("out of service", Some(out()), minutes(0), true, true),
        ("gone, too early", None, minutes(5), false, false),
        ("gone, in time", None, minutes(6), false, true),
        ("gone, force disabled", None, minutes(60), true, false),
    ] {
        let gone = node.is_none();
        let mut world = world(ONCE)
            .with(attachment("a", true))
            .flag("disable-force-detach-on-timeout", FlagValue::Bool(no_force));
        if let Some(node) = node {
            world.put(node);
        }
        let mut memory = Memory::default();
        let _ = world.plan_with::<AttachDetach>(KEY, &mut memory);
        world.advance_to(world.now() + after);
        let plan = world.plan_with::<AttachDetach>(KEY, &mut memory).unwrap();
        if !forced {
            assert_eq!(verbs(&plan, &world), [""; 0], "{what}");
            continue;
        }
        if !gone {
            assert_eq!(verbs(&plan, &world), ["patch nodes/a/status"], "{what}");
            world.apply(&plan).expect_success();
        }
        let plan = world.plan_with::<AttachDetach>(KEY, &mut memory).unwrap();
        assert_eq!(
            verbs(&plan, &world),
            ["delete volumeattachments/to-a"],
            "{what}"
        );
        let counted = plan.actions().next().unwrap().announcement.as_ref();
        let counted =
            counted.is_some_and(|one| one.measures.iter().any(|one| one.name == super::FORCED));
        assert!(counted, "{what}");
    }
}

#[test]
fn the_age_of_an_unwanted_volume_travels_and_ends_when_a_pod_wants_it() {
    let mut world = world(ONCE)
        .with(ill(kept_node("a", &[V], &[V])))
        .with(attachment("a", true));
    let mut memory = Memory::default();
    let plan = world.plan_with::<AttachDetach>(KEY, &mut memory).unwrap();
    assert_eq!(
        plan.requeue,
        Requeue::At(world.now() + SignedDuration::from_mins(6))
    );
    let controller = AttachDetach {
        sync: None,
        forces: true,
    };
    controller.shift(&mut memory, SignedDuration::from_mins(-6));
    let text = serde_json::to_string(&memory).unwrap();
    let mut packed: Memory = serde_json::from_str(&text).unwrap();
    let plan = world.plan_with::<AttachDetach>(KEY, &mut packed).unwrap();
    assert_eq!(
        plan.verbs(),
        ["patch nodes/a/status"],
        "six minutes have passed elsewhere"
    );
    world.put(user("web", "a"));
    let _ = world.plan_with::<AttachDetach>(KEY, &mut memory);
    assert_eq!(memory, Memory::default());
}

#[test]
fn an_exclusive_volume_waits_while_anything_of_it_is_elsewhere() {
    for (what, other, place) in [
        (
            "attached",
            Some(attachment("b", true)),
            kept_node("b", &[V], &[V]),
        ),
        (
            "being attached",
            Some(attachment("b", false)),
            kept_node("b", &[], &[]),
        ),
        ("listed alone", None, kept_node("b", &[V], &[V])),
    ] {
        let mut world = world(ONCE)
            .with(kept_node("a", &[], &[]))
            .with(place)
            .with(user("old", "b"))
            .with(user("new", "a"));
        if let Some(other) = other {
            world.put(other);
        }
        let plan = world.plan::<AttachDetach>(KEY);
        assert_eq!(verbs(&plan, &world), [""; 0], "{what}");
        let wanted = "new FailedAttachVolume Multi-Attach error for volume \"pv\" Volume is already used by pod(s) old";
        assert_eq!(
            reported(&plan).contains(&wanted.to_owned()),
            what != "being attached",
            "{what}"
        );
    }
    let shared = world(MANY)
        .with(kept_node("a", &[], &[]))
        .with(kept_node("b", &[V], &[V]))
        .with(attachment("b", true))
        .with(user("old", "b"))
        .with(user("new", "a"));
    assert_eq!(planned(&shared), ["create volumeattachments/to-a"]);
    let unknown = world(&[])
        .with(kept_node("a", &[], &[]))
        .with(kept_node("b", &[V], &[V]));
    let unknown = unknown
        .with(attachment("b", true))
        .with(user("old", "b"))
        .with(user("new", "a"));
    assert_eq!(planned(&unknown), ["create volumeattachments/to-a"]);
}

#[test]
fn of_two_nodes_that_want_an_exclusive_volume_one_gets_it() {
    let world = world(ONCE)
        .with(kept_node("a", &[], &[]))
        .with(kept_node("b", &[], &[]))
        .with(user("one", "a"))
        .with(user("two", "b"));
    let plan = world.plan::<AttachDetach>(KEY);
    assert_eq!(plan.verbs().len(), 1, "{:?}", plan.verbs());
    assert_eq!(reported(&plan), [""; 0]);
}

#[test]
fn a_multi_attach_error_names_pods_of_the_own_namespace_and_is_reported_once() {
    let at = |name: &str, namespace: &str| {
        let mut pod = pod(name);
        pod.metadata_mut().namespace = namespace.into();
        pod
    };
    let (x, y, z) = (at("x", "default"), at("y", "default"), at("z", "else"));
    for (using, wanted) in [
        (
            vec![],
            "Volume is already exclusively attached to one node and can't be attached to another",
        ),
        (vec![&x], "Volume is already used by pod(s) x"),
        (vec![&x, &y], "Volume is already used by pod(s) x, y"),
        (
            vec![&x, &z],
            "Volume is already used by pod(s) x and 1 pod(s) in different namespaces",
        ),
        (
            vec![&z],
            "Volume is already used by 1 pod(s) in different namespaces",
        ),
    ] {
        assert_eq!(super::changes::elsewhere(&using, "default"), wanted);
    }
    let world = world(ONCE)
        .with(kept_node("a", &[], &[]))
        .with(kept_node("b", &[V], &[V]))
        .with(attachment("b", true))
        .with(user("new", "a"));
    let mut memory = Memory::default();
    let plan = world.plan_with::<AttachDetach>(KEY, &mut memory).unwrap();
    assert_eq!(
        reported(&plan),
        [
            "new FailedAttachVolume Multi-Attach error for volume \"pv\" Volume is already exclusively attached to one node and can't be attached to another"
        ]
    );
    assert_eq!(
        reported(&world.plan_with::<AttachDetach>(KEY, &mut memory).unwrap()),
        [""; 0]
    );
}

#[test]
fn failures_to_attach_are_reported_when_their_reason_begins() {
    let failing = |message: &str| {
        let mut failing = attachment("a", false);
        failing.status = Some(read(json!({"attachError": {"message": message}})));
        failing
    };
    let mut world = world(ONCE)
        .with(kept_node("a", &[], &[]))
        .with(user("web", "a"))
        .with(failing("full"));
    let mut memory = Memory::default();
    let mut reported_now =
        |world: &World| reported(&world.plan_with::<AttachDetach>(KEY, &mut memory).unwrap());
    let text = |why: &str| {
        vec![format!(
            "web FailedAttachVolume AttachVolume.Attach failed for volume \"pv\" : {why}"
        )]
    };
    assert_eq!(reported_now(&world), text("full"));
    assert_eq!(reported_now(&world), [""; 0]);
    world.put(failing("broken"));
    assert_eq!(reported_now(&world), text("broken"));
    world.put(attachment("a", false));
    world.advance_to(world.now() + SignedDuration::from_mins(3));
    assert_eq!(
        reported_now(&world),
        text("timed out waiting for external-attacher of d CSI driver to attach volume h")
    );
}

#[test]
fn a_listed_volume_whose_attachment_is_lost_is_attached_again_after_the_period() {
    for (disabled, wanted) in [(false, 1), (true, 0)] {
        let mut world = world(ONCE)
            .with(kept_node("a", &[V], &[V]))
            .with(user("web", "a"))
            .flag(
                "disable-attach-detach-reconcile-sync",
                FlagValue::Bool(disabled),
            );
        let mut memory = Memory::default();
        let plan = world.plan_with::<AttachDetach>(KEY, &mut memory).unwrap();
        assert!(plan.is_nothing());
        world.advance_to(world.now() + SignedDuration::from_mins(1));
        let plan = world.plan_with::<AttachDetach>(KEY, &mut memory).unwrap();
        assert_eq!(plan.verbs().len(), wanted, "disabled: {disabled}");
        if wanted > 0 {
            world.apply(&plan).expect_success();
            assert_eq!(planned(&world), ["create volumeattachments/to-a"]);
        }
    }
}

#[test]
fn detaches_from_a_node_share_one_write_and_attaches_take_turns() {
    let other = "kubernetes.io/csi/d^z";
    let early = "kubernetes.io/csi/d^a";
    let leaving = world(ONCE).with(kept_node("a", &[V, other, "flexvolume-k8s/x/y"], &[]));
    let mut after = leaving.clone();
    after
        .apply(&leaving.plan::<AttachDetach>(KEY))
        .expect_success();
    let node = after.get::<Node>("a");
    let listed: Vec<&str> = node
        .status
        .iter()
        .flat_map(|status| &status.volumes_attached)
        .map(|one| one.name.as_str())
        .collect();
    assert_eq!(listed, ["flexvolume-k8s/x/y"]);
    let second = world(ONCE).with(kept_node("a", &[early, V], &[]));
    let mut memory = Memory::default();
    let plan = second.plan_with::<AttachDetach>(KEY, &mut memory).unwrap();
    assert!(plan.is_nothing(), "the first in order writes first");
    let Requeue::At(due) = plan.requeue else {
        panic!("{:?}", plan.requeue)
    };
    let mut second = second;
    second.advance_to(due);
    let plan = second.plan_with::<AttachDetach>(KEY, &mut memory).unwrap();
    assert_eq!(
        plan.verbs(),
        ["patch nodes/a/status"],
        "nobody waits forever"
    );
    // One that is used, or wanted by a pod whose claim can't be followed, stays.
    let used = world(ONCE).with(kept_node("a", &[V, other], &[other]));
    let mut after = used.clone();
    after
        .apply(&used.plan::<AttachDetach>(KEY))
        .expect_success();
    assert!(super::places::lists(&after.get::<Node>("a"), other));
}

#[test]
fn a_turn_is_put_off_while_the_line_moves_and_the_next_in_line_is_woken_by_the_list() {
    let early = ["kubernetes.io/csi/d^a", "kubernetes.io/csi/d^b"];
    let in_line = |early: &[&str]| {
        let listed = [early, &[V]].concat();
        world(ONCE).with(kept_node("a", &listed, &[]))
    };
    let due = |plan: &Plan| match &plan.requeue {
        Requeue::At(due) => *due,
        other => panic!("{other:?}"),
    };
    let mut memory = Memory::default();
    let behind_two = in_line(&early);
    let plan = behind_two
        .plan_with::<AttachDetach>(KEY, &mut memory)
        .unwrap();
    assert!(plan.is_nothing());
    // One of them has written meanwhile.
    let mut behind_one = in_line(&early[1..]);
    behind_one.advance_to(due(&plan));
    let plan = behind_one
        .plan_with::<AttachDetach>(KEY, &mut memory)
        .unwrap();
    assert!(plan.is_nothing(), "the line moves");
    // The other has not.
    behind_one.advance_to(due(&plan));
    let mut stuck = memory.clone();
    let plan = behind_one
        .plan_with::<AttachDetach>(KEY, &mut stuck)
        .unwrap();
    assert_eq!(plan.verbs(), ["patch nodes/a/status"]);
    // First in line, it waits for nothing.
    let first = in_line(&[]);
    let plan = first.plan_with::<AttachDetach>(KEY, &mut memory).unwrap();
    assert_eq!(plan.verbs(), ["patch nodes/a/status"]);

    let list = |world: &World| world.find_any(Node::resource(), "a");
    let (old, new) = (list(&behind_one), list(&first));
    let woken = first.woken::<AttachDetach>(old.as_ref(), new.as_ref());
    assert_eq!(woken, ["volume/kubernetes.io/csi/d^b", KEY]);
}

#[test]
fn fibre_channel_and_iscsi_are_attached_by_the_list_alone() {
    for (source, name) in [
        (
            json!({"fc": {"targetWWNs": ["w1", "w2"], "lun": 3}}),
            "kubernetes.io/fc/[w1 w2]:3",
        ),
        (json!({"fc": {"wwids": ["i1"]}}), "kubernetes.io/fc/[i1]"),
        (
            json!({"iscsi": {"targetPortal": "1.2.3.4", "iqn": "iqn.x", "lun": 0}}),
            "kubernetes.io/iscsi/1.2.3.4:iqn.x:0",
        ),
    ] {
        let mut pod = pod("web").on("a").running();
        pod.spec.as_mut().unwrap().volumes =
            vec![read(json!({"name": "v", "volumeSource": source}))];
        let mut world = World::at("12:00:00")
            .without_kubelets()
            .with(kept_node("a", &[], &[]))
            .with(pod);
        let key = format!("volume/{name}");
        let plan = world.plan::<AttachDetach>(&key);
        assert_eq!(plan.verbs(), ["patch nodes/a/status"], "{name}");
        assert_eq!(
            reported(&plan),
            ["web SuccessfulAttachVolume AttachVolume.Attach succeeded for volume \"v\" "]
        );
        world.apply(&plan).expect_success();
        assert!(world.plan::<AttachDetach>(&key).is_nothing());
        world.delete::<Pod>("web");
        let plan = world.plan::<AttachDetach>(&key);
        assert_eq!(plan.verbs(), ["patch nodes/a/status"], "{name}");
    }
}

#[test]
fn an_in_line_volume_of_a_migrated_plugin_is_attached_with_its_specification() {
    let mut pod = pod("web").on("a").running();
    pod.spec.as_mut().unwrap().volumes = vec![read(
        json!({"name": "v", "volumeSource": {"cinder": {"volumeID": "c"}}}),
    )];
    let world = World::at("12:00:00")
        .without_kubelets()
        .with(kept_node("a", &[], &[]))
        .with(pod);
    let plan = world.plan::<AttachDetach>("volume/kubernetes.io/csi/cinder.csi.openstack.org^c");
    let controllers_kit::Verb::Create { body } = &plan.actions().next().unwrap().verb else {
        panic!("{:?}", plan.verbs())
    };
    let body: Value = serde_json::from_slice(body).unwrap();
    assert_eq!(
        body["spec"]["source"]["inlineVolumeSpec"]["csi"]["volumeHandle"],
        "c"
    );
}

#[test]
fn a_change_wakes_the_volumes_that_it_concerns() {
    let world = world(ONCE)
        .with(kept_node("a", &[V], &[]))
        .with(user("web", "a"))
        .with(attachment("a", true));
    for kind in [
        world.find_any(Pod::resource(), "default/web"),
        world.find_any(PersistentVolume::resource(), "pv"),
        world.find_any(PersistentVolumeClaim::resource(), "default/data"),
        world.find_any(Node::resource(), "a"),
        world.find_any(
            VolumeAttachment::resource(),
            &Object::metadata(&attachment("a", true)).name,
        ),
    ] {
        let kind = kind.unwrap();
        assert_eq!(
            world.woken::<AttachDetach>(None, Some(&kind)),
            [KEY],
            "{kind:?}"
        );
        assert_eq!(
            world.woken::<AttachDetach>(Some(&kind), None),
            [KEY],
            "{kind:?}"
        );
    }
}

#[test]
fn a_sync_period_below_a_second_is_refused() {
    let descriptor = AttachDetach::describe();
    let mut flags = Flags::defaults([&descriptor]);
    assert_eq!((descriptor.runs)(&flags), Runs::Yes);
    flags.set(
        super::PERIOD,
        FlagValue::Duration(std::time::Duration::from_millis(999)),
    );
    assert!(matches!((descriptor.runs)(&flags), Runs::Wrong(_)));
}

/// What is measured by a plan itself, and with its writes.
fn measured(plan: &Plan) -> Vec<String> {
    let with_writes = plan.actions().filter_map(|one| one.announcement.as_ref());
    let measures = plan
        .measures
        .iter()
        .chain(with_writes.flat_map(|one| &one.measures));
    measures
        .map(|one| format!("{} {} {}", one.name, one.labels.join(" "), one.value))
        .collect()
}

fn in_use(plan: &Plan) -> Vec<String> {
    let mut all = measured(plan);
    all.retain(|one| one.starts_with(super::IN_USE));
    all
}

#[test]
fn a_detach_continues_when_the_persistent_volume_is_gone() {
    let mut world = world(ONCE)
        .with(kept_node("a", &[V], &[]))
        .with(attachment("a", true));
    let mut memory = Memory::default();
    let plan = world.plan_with::<AttachDetach>(KEY, &mut memory).unwrap();
    world.apply(&plan).expect_success();
    world.delete::<PersistentVolume>("pv");
    let plan = world.plan_with::<AttachDetach>(KEY, &mut memory).unwrap();
    assert_eq!(verbs(&plan, &world), ["delete volumeattachments/to-a"]);
}

fn naming(mut attachment: VolumeAttachment, volume: &str) -> VolumeAttachment {
    let meta = attachment.metadata_mut();
    meta.set_annotation("manifold.dev/volume", volume);
    attachment
}

fn woken_by_attachment(world: &World) -> Vec<String> {
    let name = Unique::parse(V).unwrap().attachment("a").unwrap();
    let attachment = world.find_any(VolumeAttachment::resource(), &name).unwrap();
    world.woken::<AttachDetach>(None, Some(&attachment))
}

#[test]
fn an_attachment_that_names_its_volume_is_deleted_when_nothing_else_names_it() {
    let own = attachment("a", false);
    for (what, attachment, found) in [
        ("its own volume", naming(own.clone(), V), true),
        ("none", own.clone(), false),
        (
            "another volume",
            naming(own.clone(), "kubernetes.io/csi/d^i"),
            false,
        ),
        ("no volume", naming(own, "d^h"), false),
    ] {
        let mut world = world(ONCE).with(kept_node("a", &[], &[])).with(attachment);
        world.delete::<PersistentVolume>("pv");
        world.delete::<PersistentVolumeClaim>("data");
        let woken = woken_by_attachment(&world);
        let (deleted, wakes): (&[&str], &[&str]) = match found {
            true => (&["delete volumeattachments/to-a"], &[KEY]),
            false => (&[], &[]),
        };
        assert_eq!(planned(&world), deleted, "{what}");
        assert_eq!(woken, wakes, "{what}");
    }
}

#[test]
fn a_pod_keeps_what_is_attached_for_it_though_its_volume_is_gone() {
    let mut world = world(ONCE)
        .with(kept_node("a", &[], &[]))
        .with(user("web", "a"))
        .with(naming(attachment("a", true), V));
    world.delete::<PersistentVolume>("pv");
    assert_eq!(planned(&world), [""; 0]);
    let pod = world.find_any(Pod::resource(), "default/web").unwrap();
    world.delete::<Pod>("default/web");
    assert_eq!(world.woken::<AttachDetach>(Some(&pod), None), [KEY]);
    assert_eq!(planned(&world), ["delete volumeattachments/to-a"]);
}

#[test]
fn an_attachment_of_a_volume_with_another_s_name_goes_by_its_own() {
    let mut world = world(ONCE)
        .with(kept_node("a", &[], &[]))
        .with(naming(attachment("a", true), V));
    world.put(volume("i", ONCE));
    assert_eq!(
        woken_by_attachment(&world),
        [KEY, "volume/kubernetes.io/csi/d^i"]
    );
    assert_eq!(planned(&world), ["delete volumeattachments/to-a"]);
}

#[test]
fn an_attachment_does_not_name_a_volume_of_a_boundless_handle() {
    let handle = "h".repeat(5000);
    let mut world = world(ONCE)
        .with(kept_node("a", &[], &[]))
        .with(user("web", "a"));
    world.put(volume(&handle, ONCE));
    let unique = format!("kubernetes.io/csi/d^{handle}");
    let plan = world.plan::<AttachDetach>(&format!("volume/{unique}"));
    world.apply(&plan).expect_success();
    let name = Unique::parse(&unique).unwrap().attachment("a").unwrap();
    let created = world.get::<VolumeAttachment>(&name);
    assert_eq!(
        Object::metadata(&*created).annotation("manifold.dev/volume"),
        None
    );
}

#[test]
fn a_node_that_is_deleted_keeps_what_it_has_not_let_go() {
    for (what, listed, wanted) in [
        (
            "it had let go",
            &[][..],
            &["delete volumeattachments/to-a"][..],
        ),
        ("it listed the volume", &[V][..], &[][..]),
    ] {
        let mut world = world(ONCE)
            .with(kept_node("a", listed, &[]))
            .with(attachment("a", true))
            .flag("disable-force-detach-on-timeout", FlagValue::Bool(true));
        let mut memory = Memory::default();
        let _ = world.plan_with::<AttachDetach>(KEY, &mut memory);
        world.delete::<Node>("a");
        let plan = world.plan_with::<AttachDetach>(KEY, &mut memory).unwrap();
        assert_eq!(verbs(&plan, &world), wanted, "{what}");
    }
}

#[test]
fn a_forced_detach_ends_where_the_live_node_is_in_service_again() {
    use controllers_kit::{Answer, Query};
    let mounted = || kept_node("a", &[], &[V]);
    let out = || mounted().taint("node.kubernetes.io/out-of-service", "", "NoExecute");
    let live = |query: &Query| match query {
        Query::Live { .. } => Some(Answer::Object(
            json!({"spec": {}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
                .into(),
        )),
        _ => None,
    };
    let gone = |query: &Query| match query {
        Query::Live { .. } => Some(Answer::Missing),
        _ => None,
    };
    for (what, node, after) in [
        ("not ready", ill(mounted()), 6),
        ("out of service", out(), 0),
    ] {
        for (answering, wanted) in [(live as fn(&Query) -> _, 0), (gone, 1)] {
            let mut world = world(ONCE)
                .with(node.clone())
                .with(attachment("a", true))
                .answering(answering);
            let mut memory = Memory::default();
            let _ = world.plan_with::<AttachDetach>(KEY, &mut memory);
            world.advance_to(world.now() + SignedDuration::from_mins(after));
            let plan = world.plan_with::<AttachDetach>(KEY, &mut memory).unwrap();
            assert_eq!(plan.verbs().len(), wanted, "{what}");
            assert_eq!(plan.failure.is_some(), wanted == 0, "{what}");
        }
    }
}

#[test]
fn a_forced_detach_after_six_minutes_counts_as_a_timeout_whatever_the_taints() {
    for (after, reason) in [(0, "out-of-service"), (6, "timeout")] {
        let node =
            kept_node("a", &[], &[V]).taint("node.kubernetes.io/out-of-service", "", "NoExecute");
        let mut world = world(ONCE).with(node).with(attachment("a", true));
        let mut memory = Memory::default();
        memory.nodes.insert(
            "a".into(),
            super::Note {
                unwanted_since: Some(world.now()),
                ..super::Note::default()
            },
        );
        world.advance_to(world.now() + SignedDuration::from_mins(after));
        let plan = world.plan_with::<AttachDetach>(KEY, &mut memory).unwrap();
        let counted = format!("{} {reason} 1", super::FORCED);
        assert!(measured(&plan).contains(&counted), "{:?}", measured(&plan));
    }
}

#[test]
fn of_two_attachments_of_an_exclusive_volume_one_is_listed() {
    let both = |on_a: &[&str], on_b: &[&str]| {
        world(ONCE)
            .with(kept_node("a", on_a, &[]))
            .with(kept_node("b", on_b, &[]))
            .with(attachment("a", true))
            .with(attachment("b", true))
    };
    for (what, world, wanted) in [
        (
            "one is listed",
            both(&[V], &[]).with(user("x", "a")).with(user("y", "b")),
            &[][..],
        ),
        (
            "none is listed",
            both(&[], &[]).with(user("x", "a")).with(user("y", "b")),
            &["patch nodes/a/status"],
        ),
        (
            "the other is unwanted",
            both(&[], &[]).with(user("y", "b")),
            &["delete volumeattachments/to-a"],
        ),
    ] {
        assert_eq!(planned(&world), wanted, "{what}");
    }
    let world = both(&[V], &[]).with(user("x", "a")).with(user("y", "b"));
    assert_eq!(
        reported(&world.plan::<AttachDetach>(KEY)),
        [
            "y FailedAttachVolume Multi-Attach error for volume \"pv\" Volume is already used by pod(s) x"
        ]
    );
}

#[test]
fn an_attachment_that_somebody_else_made_is_reported_to_those_who_wait() {
    let mut other = attachment("b", true);
    other.metadata_mut().name = "by-hand".into();
    let world = world(ONCE)
        .with(kept_node("a", &[], &[]))
        .with(kept_node("b", &[], &[]))
        .with(other)
        .with(user("web", "a"));
    let plan = world.plan::<AttachDetach>(KEY);
    assert_eq!(verbs(&plan, &world), [""; 0]);
    assert_eq!(
        reported(&plan),
        [
            "web FailedAttachVolume Multi-Attach error for volume \"pv\" Volume is already exclusively attached to one node and can't be attached to another"
        ]
    );
}

#[test]
fn of_nodes_that_want_a_lost_exclusive_volume_the_one_that_uses_it_is_first() {
    let older = |pod: Pod| pod.created("10:00:00");
    let world = world(ONCE)
        .with(kept_node("a", &[], &[]))
        .with(kept_node("b", &[], &[V]))
        .with(older(user("waits", "a")))
        .with(user("runs", "b").created("11:00:00"));
    assert_eq!(planned(&world), ["create volumeattachments/to-b"]);
}

#[test]
fn a_pod_that_comes_back_during_a_detach_gets_no_event_for_two_minutes() {
    let mut world = world(ONCE)
        .with(kept_node("a", &[], &[]))
        .with(attachment("a", true));
    let mut memory = Memory::default();
    let plan = world.plan_with::<AttachDetach>(KEY, &mut memory).unwrap();
    assert_eq!(verbs(&plan, &world), ["delete volumeattachments/to-a"]);
    world.put(attachment("a", true).terminating("12:00:00"));
    world.put(user("web", "a"));
    let plan = world.plan_with::<AttachDetach>(KEY, &mut memory).unwrap();
    assert_eq!(reported(&plan), [""; 0]);
    assert_eq!(
        plan.requeue,
        Requeue::At(world.now() + SignedDuration::from_mins(2))
    );
    world.advance_to(world.now() + SignedDuration::from_mins(2));
    let plan = world.plan_with::<AttachDetach>(KEY, &mut memory).unwrap();
    let wanted = "web FailedAttachVolume AttachVolume.Attach failed for volume \"pv\" : volume attachment is being deleted";
    assert_eq!(reported(&plan), [wanted]);
}

#[test]
fn detaches_are_measured_with_their_failures() {
    let failing = |why: Option<&str>| {
        let mut failing = attachment("a", true).terminating("12:00:00");
        let error = why.map(|why| json!({"message": why}));
        failing.status = Some(read(json!({"attached": true, "detachError": error})));
        failing
    };
    let count = |plan: &Plan, status: &str| {
        let prefix = format!(
            "{} kubernetes.io/csi:d volume_detach {status} ",
            super::SECONDS
        );
        let all = measured(plan);
        all.iter().filter(|one| one.starts_with(&prefix)).count()
    };
    let mut world = world(ONCE)
        .with(kept_node("a", &[], &[]))
        .with(failing(Some("busy")));
    let mut memory = Memory::default();
    for (what, why, minutes, failures) in [
        ("an error", Some("busy"), 0, 1),
        ("the same error", Some("busy"), 0, 0),
        ("another error", Some("broken"), 0, 1),
        ("no answer yet", None, 1, 0),
        ("no answer", None, 2, 1),
    ] {
        world.put(failing(why));
        let begun = memory.nodes.get("a").and_then(|note| note.detaching_since);
        world.advance_to(begun.unwrap_or(world.now()) + SignedDuration::from_mins(minutes));
        let plan = world.plan_with::<AttachDetach>(KEY, &mut memory).unwrap();
        assert_eq!(count(&plan, "fail-unknown"), failures, "{what}");
    }
    let name = Unique::parse(V).unwrap().attachment("a").unwrap();
    world.delete::<VolumeAttachment>(&name);
    let plan = world.plan_with::<AttachDetach>(KEY, &mut memory).unwrap();
    assert_eq!(count(&plan, "success"), 1);
    assert_eq!(memory, Memory::default());
}

#[test]
fn a_detach_without_an_attachment_is_measured_when_the_entry_is_gone() {
    let name = "kubernetes.io/fc/[i1]";
    let key = format!("volume/{name}");
    let node = kept_node("a", &[name], &[name]).taint(
        "node.kubernetes.io/out-of-service",
        "",
        "NoExecute",
    );
    let mut world = World::at("12:00:00").without_kubelets().with(node);
    let mut memory = Memory::default();
    let plan = world.plan_with::<AttachDetach>(&key, &mut memory).unwrap();
    assert_eq!(plan.verbs(), ["patch nodes/a/status"]);
    assert!(measured(&plan).contains(&format!("{} out-of-service 1", super::FORCED)));
    world.apply(&plan).expect_success();
    let plan = world.plan_with::<AttachDetach>(&key, &mut memory).unwrap();
    let wanted = format!(
        "{} kubernetes.io/fc volume_detach success false 0",
        super::SECONDS
    );
    assert!(measured(&plan).contains(&wanted), "{:?}", measured(&plan));
}

#[test]
fn a_detach_of_a_migrated_volume_is_measured_as_such() {
    let name = "kubernetes.io/csi/cinder.csi.openstack.org^c";
    let key = format!("volume/{name}");
    let mut world = World::at("12:00:00")
        .without_kubelets()
        .with(kept_node("a", &[name], &[]));
    let mut memory = Memory::default();
    let plan = world.plan_with::<AttachDetach>(&key, &mut memory).unwrap();
    world.apply(&plan).expect_success();
    let plan = world.plan_with::<AttachDetach>(&key, &mut memory).unwrap();
    let wanted = format!(
        "{} kubernetes.io/csi:cinder.csi.openstack.org volume_detach success true 0",
        super::SECONDS
    );
    assert!(measured(&plan).contains(&wanted), "{:?}", measured(&plan));
}

#[test]
fn a_claim_of_a_volume_that_is_attached_nowhere_does_not_delay_the_nodes_list() {
    let other = "kubernetes.io/csi/d^z";
    let pv: PersistentVolume = read(json!({
        "metadata": {"name": "files"},
        "spec": {
            "persistentVolumeSource": {"nfs": {"server": "s", "path": "/"}},
            "claimRef": {"namespace": "default", "name": "files", "uid": "files-uid"},
        },
    }));
    let claim: PersistentVolumeClaim = read(json!({
        "metadata": {"name": "files", "namespace": "default", "uid": "files-uid"},
        "spec": {"volumeName": "files"},
        "status": {"phase": "Bound"},
    }));
    let mut reader = user("reads", "a");
    let volumes = &mut reader.spec.as_mut().unwrap().volumes;
    *volumes = vec![read(json!({
        "name": "v",
        "volumeSource": {"persistentVolumeClaim": {"claimName": "files"}},
    }))];
    let mut world = world(ONCE)
        .with(kept_node("a", &[V, other], &[]))
        .with(pv)
        .with(claim)
        .with(reader);
    let plan = world.plan::<AttachDetach>(KEY);
    world.apply(&plan).expect_success();
    assert!(!super::places::lists(&world.get::<Node>("a"), other));
}

#[test]
fn volumes_in_use_are_those_of_all_pods_of_plugins_that_attach() {
    let unattached: CsiDriver =
        read(json!({"metadata": {"name": "d"}, "spec": {"attachRequired": false}}));
    let world = world(MANY)
        .with(kept_node("a", &[], &[]))
        .with(unattached)
        .with(user("runs", "a"))
        .with(user("ended", "a").phase("Succeeded"));
    let wanted = |node: &str, driver: &str, count: usize| {
        vec![format!(
            "{} {node} kubernetes.io/csi:{driver} {count}",
            super::IN_USE
        )]
    };
    assert_eq!(
        in_use(&world.plan::<AttachDetach>(KEY)),
        wanted("a", "d", 2)
    );
    let mut scratch = pod("scratch").on("a").running();
    scratch.spec.as_mut().unwrap().volumes = ["x", "y"]
        .map(|name| read(json!({"name": name, "volumeSource": {"csi": {"driver": "s"}}})))
        .into();
    let mut world = world;
    world.put(scratch);
    let scratch = world.find_any(Pod::resource(), "default/scratch");
    let woken = world.woken::<AttachDetach>(None, scratch.as_ref());
    assert_eq!(woken, ["ephemeral/a"]);
    let plan = world.plan::<AttachDetach>("ephemeral/a");
    assert_eq!(in_use(&plan), wanted("a", "s", 2));
    assert!(plan.is_nothing());
}

#[test]
fn the_end_of_a_pod_whose_claim_is_gone_wakes_what_its_node_lists() {
    let mut world = world(ONCE)
        .with(kept_node("a", &[V], &[]))
        .with(user("web", "a"));
    world.delete::<PersistentVolumeClaim>("data");
    let pod = world.find_any(Pod::resource(), "default/web").unwrap();
    assert_eq!(world.woken::<AttachDetach>(Some(&pod), None), [KEY]);
}

#[test]
#[expect(clippy::type_complexity, reason = "a table of cases")]
fn a_volume_is_listed_only_if_the_live_attachment_is_attached() {
    use controllers_kit::{Answer, Query};
    fn answer(query: &Query, live: Answer) -> Option<Answer> {
        match query {
            Query::Live { resource, .. } if *resource == VolumeAttachment::resource() => Some(live),
            _ => None,
        }
    }
    let cases: [(&str, fn(&Query) -> Option<Answer>); 4] = [
        ("gone", |query| answer(query, Answer::Missing)),
        ("another one", |query| {
            let live = json!({"metadata": {"uid": "other"}, "status": {"attached": true}});
            answer(query, Answer::Object(live.into()))
        }),
        ("being deleted", |query| {
            let meta = json!({"uid": "uid", "deletionTimestamp": "2026-01-01T12:00:00Z"});
            let live = json!({"metadata": meta, "status": {"attached": true}});
            answer(query, Answer::Object(live.into()))
        }),
        ("detached", |query| {
            let live = json!({"metadata": {"uid": "uid"}, "status": {"attached": false}});
            answer(query, Answer::Object(live.into()))
        }),
    ];
    for (what, answering) in cases {
        let mut attached = attachment("a", true);
        attached.metadata_mut().uid = "uid".into();
        let world = world(ONCE)
            .with(kept_node("a", &[], &[]))
            .with(user("web", "a"))
            .with(attached)
            .answering(answering);
        let plan = world.plan::<AttachDetach>(KEY);
        assert_eq!(plan.verbs(), [""; 0], "{what}");
        assert!(plan.failure.is_some(), "{what}");
        assert_eq!(reported(&plan), [""; 0], "{what}");
    }
}

#[test]
fn an_attachment_is_read_live_when_the_turn_of_its_volume_has_come() {
    use controllers_kit::Query;
    let early = "kubernetes.io/csi/d^a";
    let mut world = world(ONCE)
        .with(kept_node("a", &[early], &[]))
        .with(user("web", "a"))
        .with(attachment("a", true));
    let unasked = world.clone().answering(|query| match query {
        Query::Live { key, .. } => panic!("{key} is read before its turn"),
        _ => None,
    });
    let mut memory = Memory::default();
    let plan = unasked.plan_with::<AttachDetach>(KEY, &mut memory).unwrap();
    assert_eq!(plan.verbs(), [""; 0]);
    let Requeue::At(due) = plan.requeue else {
        panic!("{:?}", plan.requeue)
    };
    world.advance_to(due);
    let plan = world.plan_with::<AttachDetach>(KEY, &mut memory).unwrap();
    assert_eq!(plan.verbs(), ["patch nodes/a/status"]);
}
