use std::sync::Arc;

use controllers_kit::{
    AnyObject, Factory, Failure, FlagValue, Plan, Requeue,
    testing::{
        Common, DaemonSetBuild, NodeBuild, PodBuild, World, at, contract, controller_revision,
        daemon_set, node, pod, pod_spec_bytes,
    },
};
use kubernetes_proto::{
    Object,
    apps::{ControllerRevision, DaemonSet},
    core::{
        Affinity, Node, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod,
        PodPlacement, Toleration,
    },
};
use prost::Message;

use super::{
    COMPARISONS, DaemonSets, Memory,
    nodes::{Fit, Placement, target},
};
use crate::revisions::REVISION_LABEL;

const FACTORY: Factory = Factory::of::<DaemonSets>();

fn world() -> World {
    World::at("12:00:00")
        .with(node("node-1"))
        .with(node("node-2"))
        .with(node("node-3"))
}

fn settled(set: DaemonSet) -> World {
    let mut world = world().with(set);
    world.settle_for(600, &[FACTORY]);
    world
}

fn image(image: &str) -> impl FnOnce(&mut DaemonSet) {
    move |set| {
        set.spec.as_mut().unwrap().template.as_mut().unwrap().spec = pod_spec_bytes(image);
    }
}

fn status(world: &World) -> kubernetes_proto::apps::DaemonSetStatus {
    world.get::<DaemonSet>("web").status.unwrap()
}

fn pods(world: &World) -> Vec<(String, String)> {
    let mut pods: Vec<_> = world
        .all::<Pod>()
        .iter()
        .map(|pod| {
            let label = pod.metadata().label(REVISION_LABEL).unwrap_or_default();
            (target(pod).unwrap_or_default().to_owned(), label.to_owned())
        })
        .collect();
    pods.sort();
    pods
}

fn names<T: Object>(world: &World) -> Vec<String> {
    world
        .all::<T>()
        .iter()
        .map(|object| object.metadata().name.to_string())
        .collect()
}

/// A set with its revision, and the pods that a text describes: `1Rc 2Uo` are pods on node-1, ready and of
/// the present revision, and on node-2, not ready and of another. Each is named by its place in the text.
fn with_pods(set: DaemonSet, pods: &str) -> World {
    let mut world = World::at("12:00:00").with(set);
    world.settle(&[FACTORY]);
    let revision = names::<ControllerRevision>(&world).remove(0);
    let hash = revision.strip_prefix("web-").unwrap().to_owned();
    for name in ["node-1", "node-2", "node-3"] {
        world.put(node(name));
    }
    let set = DaemonSet::clone(&world.get::<DaemonSet>("web"));
    for (place, text) in pods.split_whitespace().enumerate() {
        let letters = text.as_bytes();
        let child = pod(&format!("p{place}"))
            .label("app", "web")
            .owned_by(&set)
            .created(&format!("10:00:{place:02}"))
            .on(&format!("node-{}", letters[0] as char));
        let child = match letters[1] {
            b'R' => child.ready("11:00:00"),
            b'r' => child.ready("11:59:55"),
            b'U' => child.running(),
            b'F' => child.phase("Failed"),
            b'S' => child.phase("Succeeded"),
            b'T' => child.ready("11:00:00").terminating("11:59:00"),
            b'f' => child.phase("Failed").terminating("11:59:00"),
            other => panic!("{other} is no state of a pod"),
        };
        let label = match letters.get(2) {
            Some(b'o') => "old",
            _ => &hash,
        };
        world.put(child.label(REVISION_LABEL, label));
    }
    world
}

/// The nodes that get a pod, and the pods that go.
fn changes(plan: &Plan) -> (Vec<String>, Vec<String>) {
    let of = |verb: &str| {
        plan.actions()
            .filter(move |action| action.verb.name() == verb)
            .collect::<Vec<_>>()
    };
    let created = of("create")
        .into_iter()
        .filter_map(|action| match &action.verb {
            controllers_kit::Verb::Create { body } if action.resource == Pod::resource() => Some(
                target(&Pod::decode(body.as_slice()).unwrap())
                    .unwrap()
                    .to_owned(),
            ),
            _ => None,
        })
        .collect();
    let deleted = of("delete")
        .into_iter()
        .filter(|action| action.resource == Pod::resource());
    (
        created,
        deleted.map(|action| action.key.name.to_string()).collect(),
    )
}

fn check(set: &DaemonSet, pods: &str, created: &[&str], deleted: &[&str]) {
    let plan = with_pods(set.clone(), pods).plan::<DaemonSets>("web");
    let (has_created, has_deleted) = changes(&plan);
    assert_eq!(has_created, created, "made for pods {pods:?}");
    assert_eq!(has_deleted, deleted, "removed of pods {pods:?}");
}

#[test]
fn daemon_sets_keep_the_contract() {
    let web = daemon_set("web");
    let child = |name: &str| pod(name).label("app", "web").owned_by(&web);
    contract::Contract::of(&FACTORY).seeds(16).check([
        world().with(web.clone()),
        world().with(web.clone().min_ready(20)),
        world()
            .with(node("node-4").taint("broken", "", "NoExecute"))
            .with(web.clone()),
        settled(web.clone()).changed("web", image("app:2")),
        settled(web.clone().rolling("0", "1")).changed("web", image("app:2")),
        settled(web.clone().on_delete()).changed("web", image("app:2")),
        world()
            .with(web.clone())
            .with(child("web-a").on("node-1").phase("Failed"))
            .with(child("web-b").on("node-2").phase("Succeeded"))
            .with(child("web-c").on("node-3").ready("11:00:00"))
            .with(child("web-d").on("node-3").ready("11:30:00")),
        world()
            .with(web.clone())
            .with(pod("orphan").label("app", "web").on("node-1")),
    ]);
}

#[test]
fn every_node_has_one_pod() {
    let web = daemon_set("web");
    let table: &[(&str, &[&str], &[&str])] = &[
        ("", &["node-1", "node-2", "node-3"], &[]),
        ("1R", &["node-2", "node-3"], &[]),
        ("1R 2R 3R", &[], &[]),
        ("1U 2U 3U", &[], &[]),
        ("1T 2R 3R", &[], &[]),
        ("1f 2R 3R", &["node-1"], &[]),
        ("1F 2R 3R", &[], &["p0"]),
        ("1S 2R 3R", &[], &["p0"]),
        ("1R 1R 2R 3R", &[], &["p1"]),
        ("1R 1R 1R 2R 3R", &[], &["p1", "p2"]),
        ("1R 1T 2R 3R", &[], &[]),
        ("1R 1F 2R 3R", &[], &["p1"]),
        ("1F 1F 2R 3R", &[], &["p0"]),
        ("1R 2R 3R 9R", &[], &[]),
    ];
    for (pods, created, deleted) in table {
        check(&web, pods, created, deleted);
    }
}

#[test]
fn a_rollout_replaces_pods_within_max_unavailable() {
    let set = |most: &str| daemon_set("web").rolling(most, "0");
    let table: &[(&str, &str, &[&str])] = &[
        ("1", "1Ro 2Ro 3Ro", &["p0"]),
        ("1", "1Rc 2Ro 3Ro", &["p1"]),
        ("1", "1Uc 2Ro 3Ro", &[]),
        ("1", "1To 2Ro 3Ro", &[]),
        ("1", "1Uo 2Ro 3Ro", &["p0"]),
        ("1", "1Uo 2Uo 3Ro", &["p0", "p1"]),
        ("2", "1Ro 2Ro 3Ro", &["p0", "p1"]),
        ("2", "1Uc 2Ro 3Ro", &["p1"]),
        ("2", "1Uo 2Ro 3Ro", &["p0", "p1"]),
        ("50%", "1Ro 2Ro 3Ro", &["p0", "p1"]),
        ("10%", "1Ro 2Ro 3Ro", &["p0"]),
        ("100%", "1Ro 2Ro 3Ro", &["p0", "p1", "p2"]),
        ("0", "1Ro 2Ro 3Ro", &["p0"]),
        ("1", "1Rc 2Rc 3Rc", &[]),
    ];
    for (most, pods, deleted) in table {
        check(&set(most), pods, &[], deleted);
    }
    check(&set("1").on_delete(), "1Ro 2Ro 3Ro", &[], &[]);
    check(&set("1").min_ready(30), "1rc 2Ro 3Ro", &[], &[]);
    check(&set("1").min_ready(30), "1ro 2Ro 3Ro", &[], &["p0"]);
}

#[test]
fn a_surge_makes_the_new_one_first() {
    let set = |most: &str| daemon_set("web").rolling("0", most);
    let table: &[(&str, &str, &[&str], &[&str])] = &[
        ("1", "1Ro 2Ro 3Ro", &["node-1"], &[]),
        ("2", "1Ro 2Ro 3Ro", &["node-1", "node-2"], &[]),
        ("100%", "1Ro 2Ro 3Ro", &["node-1", "node-2", "node-3"], &[]),
        ("1", "1Ro 1Uc 2Ro 3Ro", &[], &[]),
        ("1", "1Ro 1Rc 2Ro 3Ro", &[], &["p0"]),
        ("1", "1Uo 2Ro 3Ro", &["node-1", "node-2"], &[]),
        ("1", "1Uo 1Uc 2Ro 3Ro", &[], &["p0"]),
        ("1", "1Rc 2Rc 3Rc", &[], &[]),
        ("1", "1To 2Rc 3Rc", &["node-1"], &[]),
        ("1", "1Ro 1Ro 2Rc 3Rc", &[], &["p1"]),
        ("1", "1Rc 1Rc 2Rc 3Rc", &[], &["p1"]),
        ("1", "", &["node-1", "node-2", "node-3"], &[]),
    ];
    for (most, pods, created, deleted) in table {
        check(&set(most), pods, created, deleted);
    }
    check(&set("1").min_ready(30), "1Ro 1rc 2Ro 3Ro", &[], &[]);
}

#[test]
fn a_surging_set_that_moved_keeps_an_old_pod_until_one_more_is_available() {
    let elsewhere = |pods: &str| {
        let mut world = with_pods(daemon_set("web").rolling("0", "1"), pods);
        world.change("node-1", |node: &mut Node| {
            *node = node.clone().taint("own", "", "NoSchedule");
        });
        changes(&world.plan::<DaemonSets>("web")).1
    };
    assert_eq!(elsewhere("1Ro 2Rc 3Uc"), [""; 0]);
    assert_eq!(elsewhere("1Ro 2Rc 3Rc"), ["p0"]);
    assert_eq!(elsewhere("1Uo 2Rc 3Uc"), ["p0"]);
}

fn toleration(key: &str, operator: &str, value: &str, effect: &str) -> Toleration {
    Toleration {
        key: key.to_owned(),
        operator: operator.to_owned(),
        value: value.to_owned(),
        effect: effect.to_owned(),
        toleration_seconds: None,
    }
}

fn judge(placement: &PodPlacement, node: &Node, comparisons: bool) -> Fit {
    let set = daemon_set("web").pod_spec(placement.encode_to_vec());
    Placement::of(&set, comparisons).unwrap().judge(node)
}

const RUNS: Fit = Fit {
    runs: true,
    stays: true,
};
const STAYS: Fit = Fit {
    runs: false,
    stays: true,
};
const GOES: Fit = Fit {
    runs: false,
    stays: false,
};

#[test]
fn taints_are_judged_as_the_scheduler_does() {
    let of = |key: &str, value: &str, effect: &str| node("n").taint(key, value, effect);
    let none: Vec<Toleration> = Vec::new();
    let system = |name: &str| format!("node.kubernetes.io/{name}");
    let table = [
        (node("n"), none.clone(), RUNS),
        (of("a", "", "NoSchedule"), none.clone(), STAYS),
        (of("a", "", "NoExecute"), none.clone(), GOES),
        (of("a", "", "PreferNoSchedule"), none.clone(), RUNS),
        (
            of(&system("not-ready"), "", "NoExecute"),
            none.clone(),
            RUNS,
        ),
        (
            of(&system("not-ready"), "", "NoSchedule"),
            none.clone(),
            STAYS,
        ),
        (
            of(&system("unreachable"), "", "NoExecute"),
            none.clone(),
            RUNS,
        ),
        (
            of(&system("disk-pressure"), "", "NoSchedule"),
            none.clone(),
            RUNS,
        ),
        (
            of(&system("memory-pressure"), "", "NoSchedule"),
            none.clone(),
            RUNS,
        ),
        (
            of(&system("pid-pressure"), "", "NoSchedule"),
            none.clone(),
            RUNS,
        ),
        (
            of(&system("unschedulable"), "", "NoSchedule"),
            none.clone(),
            RUNS,
        ),
        (
            of(&system("network-unavailable"), "", "NoSchedule"),
            none,
            STAYS,
        ),
        (
            of("a", "1", "NoSchedule"),
            vec![toleration("a", "Equal", "1", "")],
            RUNS,
        ),
        (
            of("a", "1", "NoSchedule"),
            vec![toleration("a", "", "1", "")],
            RUNS,
        ),
        (
            of("a", "1", "NoSchedule"),
            vec![toleration("a", "Equal", "2", "")],
            STAYS,
        ),
        (
            of("a", "1", "NoSchedule"),
            vec![toleration("a", "Exists", "", "")],
            RUNS,
        ),
        (
            of("a", "1", "NoSchedule"),
            vec![toleration("", "Exists", "", "")],
            RUNS,
        ),
        (
            of("a", "1", "NoSchedule"),
            vec![toleration("a", "Exists", "", "NoExecute")],
            STAYS,
        ),
        (
            of("a", "1", "NoExecute"),
            vec![toleration("a", "Exists", "", "NoExecute")],
            RUNS,
        ),
        (
            of("a", "1", "NoSchedule"),
            vec![toleration("b", "Exists", "", "")],
            STAYS,
        ),
        (
            of("a", "5", "NoSchedule"),
            vec![toleration("a", "Gt", "3", "")],
            STAYS,
        ),
        (
            of("a", "", "NoSchedule").taint("b", "", "NoExecute"),
            vec![toleration("a", "Exists", "", "")],
            GOES,
        ),
    ];
    for (node, tolerations, fit) in table {
        let placement = PodPlacement {
            tolerations: tolerations.clone(),
            ..Default::default()
        };
        assert_eq!(
            judge(&placement, &node, false),
            fit,
            "{:?}, {tolerations:?}",
            node.spec
        );
    }
    let host = PodPlacement {
        host_network: true,
        ..Default::default()
    };
    let tainted = of(&system("network-unavailable"), "", "NoSchedule");
    assert_eq!(judge(&host, &tainted, false), RUNS);
}

#[test]
fn with_the_gate_tolerations_compare_numbers() {
    let table = [
        ("5", "Gt", "3", RUNS),
        ("3", "Gt", "3", STAYS),
        ("2", "Lt", "3", RUNS),
        ("3", "Lt", "3", STAYS),
        ("-4", "Lt", "-3", RUNS),
        ("05", "Gt", "3", STAYS),
        ("5", "Gt", "+3", STAYS),
        ("x", "Gt", "3", STAYS),
        ("5", "Gt", "", STAYS),
    ];
    for (taint, operator, value, fit) in table {
        let placement = PodPlacement {
            tolerations: vec![toleration("a", operator, value, "")],
            ..Default::default()
        };
        let node = node("n").taint("a", taint, "NoSchedule");
        assert_eq!(
            judge(&placement, &node, true),
            fit,
            "{taint} {operator} {value}"
        );
    }
    let mut spec = pod_spec_bytes("app:1");
    PodPlacement {
        tolerations: vec![toleration("a", "Gt", "3", "")],
        ..Default::default()
    }
    .encode(&mut spec)
    .unwrap();
    let world = World::at("12:00:00")
        .with(node("node-1").taint("a", "5", "NoSchedule"))
        .with(daemon_set("web").pod_spec(spec));
    assert!(changes(&world.plan::<DaemonSets>("web")).0.is_empty());
    let world = world.flag(COMPARISONS, FlagValue::Bool(true));
    assert_eq!(changes(&world.plan::<DaemonSets>("web")).0, ["node-1"]);
}

fn requirement(key: &str, operator: &str, values: &[&str]) -> NodeSelectorRequirement {
    NodeSelectorRequirement {
        key: key.to_owned(),
        operator: operator.to_owned(),
        values: values.iter().map(|value| (*value).to_owned()).collect(),
    }
}

fn requiring(terms: Vec<NodeSelectorTerm>) -> PodPlacement {
    PodPlacement {
        affinity: Some(Affinity {
            node_affinity: Some(NodeAffinity {
                required_during_scheduling_ignored_during_execution: Some(NodeSelector {
                    node_selector_terms: terms,
                }),
            }),
            ..Affinity::default()
        }),
        ..Default::default()
    }
}

#[test]
fn node_affinity_is_judged_as_the_scheduler_does() {
    let labelled = node("node-1").label("zone", "a").label("cores", "8");
    let expression = |requirement| NodeSelectorTerm {
        match_expressions: vec![requirement],
        match_fields: Vec::new(),
    };
    let field = |requirement| NodeSelectorTerm {
        match_expressions: Vec::new(),
        match_fields: vec![requirement],
    };
    let table = [
        (expression(requirement("zone", "In", &["a", "b"])), true),
        (expression(requirement("zone", "In", &["b"])), false),
        (expression(requirement("zone", "In", &[])), false),
        (expression(requirement("none", "In", &["a"])), false),
        (expression(requirement("zone", "NotIn", &["b"])), true),
        (expression(requirement("zone", "NotIn", &["a"])), false),
        (expression(requirement("none", "NotIn", &["a"])), true),
        (expression(requirement("zone", "Exists", &[])), true),
        (expression(requirement("none", "Exists", &[])), false),
        (expression(requirement("zone", "Exists", &["a"])), false),
        (expression(requirement("none", "DoesNotExist", &[])), true),
        (expression(requirement("zone", "DoesNotExist", &[])), false),
        (expression(requirement("cores", "Gt", &["7"])), true),
        (expression(requirement("cores", "Gt", &["8"])), false),
        (expression(requirement("cores", "Lt", &["9"])), true),
        (expression(requirement("cores", "Lt", &["x"])), false),
        (expression(requirement("zone", "Gt", &["1"])), false),
        (expression(requirement("zone", "Near", &["a"])), false),
        (field(requirement("metadata.name", "In", &["node-1"])), true),
        (
            field(requirement("metadata.name", "In", &["node-2"])),
            false,
        ),
        (
            field(requirement("metadata.name", "NotIn", &["node-2"])),
            true,
        ),
        (
            field(requirement("metadata.name", "NotIn", &["node-1"])),
            false,
        ),
        (
            field(requirement("metadata.name", "In", &["node-1", "node-2"])),
            false,
        ),
        (field(requirement("metadata.name", "Exists", &[])), false),
        (NodeSelectorTerm::default(), false),
    ];
    for (term, fits) in table {
        let fit = judge(&requiring(vec![term.clone()]), &labelled, false);
        assert_eq!(fit, if fits { RUNS } else { GOES }, "{term:?}");
    }
    // One of several terms is enough; none of none.
    let good = expression(requirement("zone", "Exists", &[]));
    let bad = expression(requirement("zone", "Near", &[]));
    assert_eq!(judge(&requiring(vec![bad, good]), &labelled, false), RUNS);
    assert_eq!(judge(&requiring(Vec::new()), &labelled, false), GOES);
}

#[test]
fn node_selector_and_node_name_restrict_too() {
    let mut placement = PodPlacement::default();
    placement.node_selector.insert("zone".into(), "a".into());
    assert_eq!(
        judge(&placement, &node("n").label("zone", "a"), false),
        RUNS
    );
    assert_eq!(
        judge(&placement, &node("n").label("zone", "b"), false),
        GOES
    );
    assert_eq!(judge(&placement, &node("n"), false), GOES);
    let named = PodPlacement {
        node_name: "node-1".into(),
        ..Default::default()
    };
    assert_eq!(judge(&named, &node("node-1"), false), RUNS);
    assert_eq!(judge(&named, &node("node-2"), false), GOES);
}

#[test]
fn a_node_that_fits_no_more_loses_its_pod_or_keeps_it() {
    let tainted = |effect: &'static str| {
        let mut world = with_pods(daemon_set("web"), "1R 2R 3R");
        world.change("node-2", |node: &mut Node| {
            *node = node.clone().taint("a", "", effect);
        });
        let plan = world.plan::<DaemonSets>("web");
        world.apply(&plan);
        (changes(&plan), status(&world))
    };
    let (keeps, status) = tainted("NoSchedule");
    assert!(keeps.0.is_empty() && keeps.1.is_empty());
    assert_eq!(
        (status.desired_number_scheduled, status.number_misscheduled),
        (2, 1)
    );
    let (loses, status) = tainted("NoExecute");
    assert_eq!(loses.1, ["p1"]);
    assert_eq!(
        (status.desired_number_scheduled, status.number_misscheduled),
        (2, 1)
    );
}

#[test]
fn a_pod_that_waits_for_a_node_that_is_gone_goes() {
    let set = daemon_set("web");
    let mut world = with_pods(set, "1R 2R 3R");
    let set = DaemonSet::clone(&world.get::<DaemonSet>("web"));
    let mut waiting = pod("waiting").label("app", "web").owned_by(&set);
    let term = NodeSelectorTerm {
        match_expressions: Vec::new(),
        match_fields: vec![requirement("metadata.name", "In", &["node-9"])],
    };
    waiting.spec.as_mut().unwrap().affinity = requiring(vec![term]).affinity.map(Into::into);
    world.put(waiting);
    assert_eq!(changes(&world.plan::<DaemonSets>("web")).1, ["waiting"]);
}

#[test]
fn a_pod_is_pinned_and_tolerates_and_keeps_the_template_s_bytes() {
    let mut spec = pod_spec_bytes("app:1");
    spec.extend_from_slice(b"\x9a\x06\x03new");
    let mut set = daemon_set("web").pod_spec(spec.clone());
    set.metadata_mut()
        .set_annotation("deprecated.daemonset.template.generation", "7");
    let plan = World::at("12:00:00")
        .with(node("node-1"))
        .with(set)
        .plan::<DaemonSets>("web");
    let action = plan
        .actions()
        .find(|action| action.resource == <Pod as Object>::resource())
        .unwrap();
    let controllers_kit::Verb::Create { body } = &action.verb else {
        panic!("{action}")
    };
    let made = kubernetes_proto::core::PodFromTemplate::decode(body.as_slice()).unwrap();
    assert!(made.spec.starts_with(&spec));
    let placement = PodPlacement::decode(made.spec.as_slice()).unwrap();
    assert_eq!(placement.tolerations.len(), 6);
    let pod = Pod::decode(body.as_slice()).unwrap();
    assert_eq!(target(&pod), Some("node-1"));
    let meta = Object::metadata(&pod);
    assert_eq!(meta.label("pod-template-generation"), Some("7"));
    assert_eq!(meta.generate_name, "web-");
    assert!(meta.label(REVISION_LABEL).is_some());
    assert!(meta.name.starts_with("web-") && meta.name.len() == 9);
}

#[test]
fn failed_pods_are_left_alone_for_longer_and_longer() {
    let mut world = with_pods(daemon_set("web"), "1F 2R 3R").without_kubelets();
    let mut memory = Memory::default();
    let mut waits = Vec::new();
    for _ in 0..12 {
        let plan = world.plan_with::<DaemonSets>("web", &mut memory).unwrap();
        assert_eq!(changes(&plan).1, ["p0"]);
        assert!(
            plan.events[0]
                .message
                .starts_with("Found failed daemon pod default/p0 on node node-1, will try")
        );
        // It fails again at once: the time until it is deleted once more is the back-off.
        let plan = world.plan_with::<DaemonSets>("web", &mut memory).unwrap();
        assert!(changes(&plan).1.is_empty());
        let Requeue::At(next) = plan.requeue else {
            panic!("the key is requeued")
        };
        let wait = next.duration_since(world.now()).as_secs();
        waits.push(wait);
        world = world.later(wait);
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900]);
    // Half an hour of peace, and it is forgotten.
    let later = world.later(3600);
    later.plan_with::<DaemonSets>("web", &mut memory).unwrap();
    assert_eq!(memory.backoffs["node-1"].seconds, 1);
}

#[test]
fn hazard_back_off_survives_a_handoff_and_not_a_new_generation() {
    let world = with_pods(daemon_set("web"), "1F 2R 3R");
    let mut memory = Memory::default();
    world.plan_with::<DaemonSets>("web", &mut memory).unwrap();
    let packed = serde_json::to_vec(&memory).unwrap();
    let mut unpacked: Memory = serde_json::from_slice(&packed).unwrap();
    let plan = world.plan_with::<DaemonSets>("web", &mut unpacked).unwrap();
    assert!(changes(&plan).1.is_empty());
    assert_eq!(plan.requeue, Requeue::At(at("12:00:01")));
    let mut observed = world;
    observed.change("web", |set: &mut DaemonSet| {
        set.status.as_mut().unwrap().observed_generation += 1;
    });
    let plan = observed
        .plan_with::<DaemonSets>("web", &mut unpacked)
        .unwrap();
    assert_eq!(changes(&plan).1, ["p0"]);
}

#[test]
fn hazard_two_owners_do_not_put_two_pods_on_a_node() {
    let mut world = world().with(daemon_set("web"));
    let first = world.plan::<DaemonSets>("web");
    let second = world.plan::<DaemonSets>("web");
    world.apply(&first).expect_success();
    let applied = world.apply(&second);
    assert!(applied.failures().iter().all(|(_, failure)| matches!(
        failure,
        Failure::AlreadyExists(_) | Failure::Conflict(_) | Failure::Skipped
    )));
    assert_eq!(names::<Pod>(&world).len(), 3);
}

#[test]
fn hazard_a_stale_owner_deletes_only_the_pod_that_it_saw() {
    let mut world = with_pods(daemon_set("web"), "1F 2R 3R");
    let stale = world.plan::<DaemonSets>("web");
    world.vanish::<Pod>("p0");
    world.put(pod("p0").uid("uid-of-the-next"));
    let applied = world.apply(&stale);
    assert!(matches!(applied.failures()[0].1, Failure::Conflict(_)));
    assert!(world.find::<Pod>("p0").is_some());
}

#[test]
fn hazard_a_node_wakes_the_sets_that_it_concerns_on_every_replica() {
    let selecting = |name: &str| {
        let mut placement = PodPlacement::default();
        placement.node_selector.insert("zone".into(), "a".into());
        daemon_set(name).pod_spec(placement.encode_to_vec())
    };
    let world = World::at("12:00:00")
        .with(daemon_set("all"))
        .with(selecting("some"));
    let plain = node("n");
    let in_zone = node("n").label("zone", "a");
    let tainted = node("n").taint("a", "", "NoSchedule");
    let mut heartbeat = plain.clone();
    heartbeat.status.get_or_insert_default();
    let table = [
        (None, Some(&plain), vec!["default/all", "default/some"]),
        (None, Some(&in_zone), vec!["default/all", "default/some"]),
        (Some(&plain), Some(&in_zone), vec!["default/some"]),
        (Some(&plain), Some(&tainted), vec!["default/all"]),
        (Some(&tainted), Some(&plain), vec!["default/all"]),
        (Some(&plain), Some(&heartbeat), vec![]),
        (Some(&in_zone), None, vec!["default/all", "default/some"]),
    ];
    for (old, new, woken) in table {
        let change = controllers_kit::Change { old, new };
        let keys: Vec<String> = super::of_node(&change, &world)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(keys, woken, "{old:?} to {new:?}");
    }
}

#[test]
fn hazard_twin_revisions_become_one_and_their_pods_follow() {
    let mut world = settled(daemon_set("web"));
    let first = names::<ControllerRevision>(&world).remove(0);
    let twin = ControllerRevision::clone(&world.get::<ControllerRevision>(&first));
    let mut twin = twin.uid("uid-twin");
    let meta = twin.metadata_mut();
    meta.name = "web-twin".into();
    meta.set_label(REVISION_LABEL, "twin");
    twin.revision = 2;
    world.put(twin);
    world.settle(&[FACTORY]);
    assert_eq!(names::<ControllerRevision>(&world), ["web-twin"]);
    assert!(pods(&world).iter().all(|(_, label)| label == "twin"));
}

#[test]
fn a_rollout_and_a_rollback_keep_the_history_in_order() {
    let mut world = settled(daemon_set("web"));
    let first = pods(&world)[0].1.clone();
    world.change("web", image("app:2"));
    world.settle_for(600, &[FACTORY]);
    let second = pods(&world)[0].1.clone();
    assert_ne!(first, second);
    assert!(pods(&world).iter().all(|(_, label)| *label == second));
    assert_eq!(status(&world).updated_number_scheduled, 3);
    world.change("web", image("app:1"));
    world.settle_for(600, &[FACTORY]);
    assert!(pods(&world).iter().all(|(_, label)| *label == first));
    let numbers: Vec<i64> = world
        .all::<ControllerRevision>()
        .iter()
        .map(|one| one.revision)
        .collect();
    assert_eq!((numbers.len(), numbers.iter().max()), (2, Some(&3)));
}

#[test]
fn the_history_keeps_living_revisions_and_those_within_the_limit() {
    for (limit, kept) in [(0, 1), (1, 2), (10, 4)] {
        let mut world = settled(daemon_set("web").history(limit));
        for number in 2..=4 {
            world.change("web", image(&format!("app:{number}")));
            world.settle_for(600, &[FACTORY]);
        }
        assert_eq!(
            names::<ControllerRevision>(&world).len(),
            kept,
            "limit {limit}"
        );
    }
}

#[test]
fn a_revision_without_the_label_gets_its_name_as_one() {
    let mut world = settled(daemon_set("web"));
    let name = names::<ControllerRevision>(&world).remove(0);
    world.change(&name, |revision: &mut ControllerRevision| {
        kubernetes_proto::meta::remove(&mut revision.metadata_mut().labels, REVISION_LABEL);
    });
    world.settle_for(600, &[FACTORY]);
    let revision = world.get::<ControllerRevision>(&name);
    assert_eq!(
        revision.metadata().label(REVISION_LABEL),
        Some(name.as_str())
    );
    assert!(pods(&world).iter().all(|(_, label)| *label == name));
}

#[test]
fn another_s_revision_of_the_same_name_is_a_collision() {
    let fresh = settled(daemon_set("web"));
    let name = names::<ControllerRevision>(&fresh).remove(0);
    let mut world = world().with(controller_revision(&name, 1, "{}"));
    world.put(daemon_set("web"));
    world.settle(&[FACTORY]);
    assert_eq!(status(&world).collision_count, Some(1));
    assert_eq!(names::<ControllerRevision>(&world).len(), 2);
    assert_eq!(names::<Pod>(&world).len(), 3);
}

#[test]
fn a_late_revision_of_another_template_does_not_become_the_current_one() {
    let mut world = settled(daemon_set("web"));
    let name = names::<ControllerRevision>(&world).remove(0);
    let before = pods(&world);
    let mut late = ControllerRevision::clone(&world.get::<ControllerRevision>(&name));
    late.data = controller_revision("web-late", 1, "{\"spec\":{}}").data;
    let meta = late.metadata_mut();
    meta.name = "web-late".into();
    meta.uid = "uid-late".into();
    meta.creation_timestamp = None;
    meta.set_label(REVISION_LABEL, "late");
    let number = late.revision;
    world.put(late);
    world.settle_for(600, &[FACTORY]);
    assert_eq!(pods(&world), before, "no pod is replaced");
    let current = world.get::<ControllerRevision>(&name);
    assert_eq!(current.revision, number + 1, "nobody shares its number");
}

#[test]
fn a_newest_revision_that_is_deleted_is_made_again_and_no_pod_replaced() {
    let mut world = settled(daemon_set("web"));
    let first = names::<ControllerRevision>(&world).remove(0);
    world.change("web", image("app:2"));
    world.settle_for(600, &[FACTORY]);
    let (both, before) = (names::<ControllerRevision>(&world), names::<Pod>(&world));
    let newest = both.iter().find(|name| **name != first).unwrap();
    let labels = pods(&world);
    world.vanish::<ControllerRevision>(newest);
    world.settle_for(600, &[FACTORY]);
    assert_eq!(names::<Pod>(&world), before, "no pod is replaced");
    assert_eq!(pods(&world), labels, "no pod is relabelled");
    assert_eq!(names::<ControllerRevision>(&world), both);
    assert_eq!(status(&world).updated_number_scheduled, 3);
    // A rollback to the first one replaces them all.
    world.change("web", image("app:1"));
    world.settle_for(600, &[FACTORY]);
    let hash = first.strip_prefix("web-").unwrap();
    assert!(pods(&world).iter().all(|(_, label)| label == hash));
}

#[test]
fn a_higher_revision_of_another_template_does_not_become_the_current_one() {
    let mut world = settled(daemon_set("web"));
    let name = names::<ControllerRevision>(&world).remove(0);
    let (before, labels) = (names::<Pod>(&world), pods(&world));
    let mut other = ControllerRevision::clone(&world.get::<ControllerRevision>(&name));
    other.data = controller_revision("web-other", 1, "{\"spec\":{}}").data;
    other.revision += 1;
    let number = other.revision;
    let meta = other.metadata_mut();
    meta.name = "web-other".into();
    meta.uid = "uid-other".into();
    meta.set_label(REVISION_LABEL, "other");
    world.put(other);
    world.settle_for(600, &[FACTORY]);
    assert_eq!(names::<Pod>(&world), before, "no pod is replaced");
    assert_eq!(pods(&world), labels);
    let current = world.get::<ControllerRevision>(&name);
    assert_eq!(
        current.revision,
        number + 1,
        "the present one is the newest"
    );
}

#[test]
fn a_revision_that_upstream_made_gets_the_hash_back_that_its_pods_carry() {
    // Made by upstream, whose hash is another; then deleted by hand.
    let by_upstream = |hash: &str| {
        let mut world = settled(daemon_set("web"));
        let name = names::<ControllerRevision>(&world).remove(0);
        for pod in names::<Pod>(&world) {
            world.change(&pod, |pod: &mut Pod| {
                pod.metadata_mut().set_label(REVISION_LABEL, hash);
            });
        }
        world.vanish::<ControllerRevision>(&name);
        (world, name)
    };
    let (mut world, ours) = by_upstream("7d9f8c6b5");
    let before = names::<Pod>(&world);
    world.settle_for(600, &[FACTORY]);
    assert_eq!(names::<ControllerRevision>(&world), ["web-7d9f8c6b5"]);
    assert_eq!(names::<Pod>(&world), before, "no pod is replaced");
    assert_eq!(status(&world).updated_number_scheduled, 3);
    // What can be no name is no hash.
    let (mut world, _) = by_upstream("Not_A_Name");
    world.settle_for(600, &[FACTORY]);
    assert_eq!(
        names::<ControllerRevision>(&world),
        std::slice::from_ref(&ours)
    );
    // Nor is it known which of two hashes it was.
    let (mut world, _) = by_upstream("7d9f8c6b5");
    let pod = names::<Pod>(&world).remove(0);
    world.change(&pod, |pod: &mut Pod| {
        pod.metadata_mut().set_label(REVISION_LABEL, "another");
    });
    world.settle_for(600, &[FACTORY]);
    assert_eq!(names::<ControllerRevision>(&world), [ours]);
}

#[test]
fn a_revision_of_its_own_does_not_wake_a_set_when_it_is_created() {
    let world = settled(daemon_set("web"));
    let name = names::<ControllerRevision>(&world).remove(0);
    let owned = world.get::<ControllerRevision>(&name);
    let mut orphan = ControllerRevision::clone(&owned);
    orphan.metadata_mut().owner_references.clear();
    let mut going = ControllerRevision::clone(&owned);
    going.metadata_mut().deletion_timestamp = going.metadata().creation_timestamp;
    let mut changed = ControllerRevision::clone(&owned);
    changed.revision += 1;
    let any = |revision: &ControllerRevision| Arc::new(revision.clone()) as AnyObject;
    let (owned, orphan) = (any(&owned), any(&orphan));
    let (going, changed) = (any(&going), any(&changed));
    let web = vec!["default/web".to_owned()];
    for (what, old, new, woken) in [
        ("created", None, Some(&owned), vec![]),
        ("created as an orphan", None, Some(&orphan), web.clone()),
        ("found going", None, Some(&going), web.clone()),
        ("changed", Some(&owned), Some(&changed), web.clone()),
        ("deleted", Some(&owned), None, web),
    ] {
        assert_eq!(world.woken::<DaemonSets>(old, new), woken, "{what}");
    }
}

#[test]
fn orphans_are_adopted_and_strangers_let_go() {
    let mut world = settled(daemon_set("web"));
    let owned = names::<Pod>(&world).remove(0);
    world.change(&owned, |pod: &mut Pod| {
        pod.metadata_mut().owner_references.clear();
    });
    world.settle(&[FACTORY]);
    assert!(world.get::<Pod>(&owned).metadata().controller().is_some());
    world.change(&owned, |pod: &mut Pod| {
        pod.metadata_mut().set_label("app", "other");
    });
    world.settle(&[FACTORY]);
    assert!(world.get::<Pod>(&owned).metadata().controller().is_none());
    assert_eq!(names::<Pod>(&world).len(), 4);
}

#[test]
fn a_set_that_selects_everything_gets_one_event() {
    let mut set = daemon_set("web");
    set.spec.as_mut().unwrap().selector = Some(Default::default());
    let world = world().with(set);
    let mut memory = Memory::default();
    let plan = world.plan_with::<DaemonSets>("web", &mut memory).unwrap();
    assert!(plan.verbs().is_empty());
    assert_eq!(plan.events[0].reason, "SelectingAll");
    assert!(
        world
            .plan_with::<DaemonSets>("web", &mut memory)
            .unwrap()
            .is_nothing()
    );
}

#[test]
fn a_terminating_or_missing_set_plans_nothing() {
    let set = daemon_set("web")
        .finalizer("example.com/hold")
        .terminating("11:59:00");
    assert!(world().with(set).plan::<DaemonSets>("web").is_nothing());
    assert!(world().plan::<DaemonSets>("web").is_nothing());
}

#[test]
fn a_template_that_can_not_be_read_waits_for_a_change() {
    let refusal = world()
        .with(daemon_set("web").pod_spec(vec![0x3a, 9, 1]))
        .refusal::<DaemonSets>("web");
    assert!(
        matches!(refusal, controllers_kit::Refusal::Wait(why) if why.contains("can't be read"))
    );
}

#[test]
fn one_plan_creates_a_bounded_number_of_pods() {
    let mut world = World::at("12:00:00").with(daemon_set("web"));
    for number in 0..300 {
        world.put(node(&format!("node-{number}")));
    }
    assert_eq!(changes(&world.plan::<DaemonSets>("web")).0.len(), 250);
    world.settle(&[FACTORY]);
    assert_eq!(names::<Pod>(&world).len(), 300);
}

#[test]
fn the_status_counts_what_there_is() {
    // Desired, current, misscheduled, ready, updated, available, unavailable.
    let table = [
        ("", [3, 0, 0, 0, 0, 0, 3]),
        ("1R", [3, 1, 0, 1, 1, 1, 2]),
        ("1R 2U", [3, 2, 0, 1, 2, 1, 2]),
        ("1R 2R 3R", [3, 3, 0, 3, 3, 3, 0]),
        ("1Ro 2R 3R", [3, 3, 0, 3, 2, 3, 0]),
        ("1R 9R", [3, 1, 0, 1, 1, 1, 2]),
        ("1f 2R", [3, 1, 0, 1, 1, 1, 2]),
    ];
    for (pods, expected) in table {
        let mut world = with_pods(daemon_set("web"), pods);
        let plan = world.plan::<DaemonSets>("web");
        world.apply(&plan);
        let status = status(&world);
        let counted = [
            status.desired_number_scheduled,
            status.current_number_scheduled,
            status.number_misscheduled,
            status.number_ready,
            status.updated_number_scheduled,
            status.number_available,
            status.number_unavailable,
        ];
        assert_eq!(counted, expected, "pods {pods:?}");
    }
    let plan = with_pods(daemon_set("web").min_ready(30), "1r 2R 3R").plan::<DaemonSets>("web");
    assert_eq!(plan.requeue, Requeue::At(at("12:00:25")));
}

#[test]
fn creations_and_deletions_are_recorded_as_upstream_records_them() {
    let mut world = World::at("12:00:00")
        .with(node("node-1"))
        .with(daemon_set("web"));
    world.settle(&[FACTORY]);
    let made = names::<Pod>(&world).remove(0);
    assert_eq!(
        world.events(),
        [format!("Normal SuccessfulCreate Created pod: {made}")]
    );
    world.change(&made, |pod: &mut Pod| *pod = pod.clone().phase("Succeeded"));
    world.run::<DaemonSets>();
    let recorded = [
        format!(
            "Normal SucceededDaemonPod Found succeeded daemon pod default/{made} on node node-1, will try to delete it"
        ),
        format!("Normal SuccessfulDelete Deleted pod: {made}"),
    ];
    assert_eq!(world.events()[1..3], recorded);
}
