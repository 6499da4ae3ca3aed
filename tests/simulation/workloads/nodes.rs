//! Nodes: some fall silent and come back, some are tainted by hand, some come and go.

use std::time::Duration;

use controllers_kit::testing::{Common, NodeBuild, PodBuild, World, node, pod};
use kubernetes_proto::{
    Object as _,
    core::{Node, NodeCondition, Pod, Toleration},
};

use super::Making;
use crate::heartbeats::SILENT;

const ZONE: &str = "topology.kubernetes.io/zone";
const TAINT: &str = "example.com/out";

/// A node of a zone whose kubelet has said that it is ready.
pub fn ready(name: &str, zone: &str) -> Node {
    let mut node = node(name).label(ZONE, zone);
    let condition = |kind: &str, status: &str| NodeCondition {
        r#type: kind.to_owned(),
        status: status.to_owned(),
        ..NodeCondition::default()
    };
    node.status.get_or_insert_default().conditions = [
        ("MemoryPressure", "False"),
        ("DiskPressure", "False"),
        ("PIDPressure", "False"),
        ("Ready", "True"),
    ]
    .map(|(kind, status)| condition(kind, status))
    .to_vec();
    node
}

fn bearing(mut pod: Pod, key: &str, seconds: Option<i64>) -> Pod {
    let toleration = Toleration {
        key: key.to_owned(),
        operator: "Exists".to_owned(),
        effect: "NoExecute".to_owned(),
        toleration_seconds: seconds,
        ..Toleration::default()
    };
    let spec = pod.spec.get_or_insert_default();
    spec.tolerations.push(toleration.into());
    pod
}

fn silence(world: &mut World, name: &str, silent: bool) {
    world.change::<Node>(name, |node| {
        let labels = &mut node.metadata_mut().labels;
        labels.retain(|label| *label.key != *SILENT);
        if silent {
            node.metadata_mut().set_label(SILENT, "true");
        }
    });
}

pub(super) fn silent(making: &mut Making) {
    making.workload.pods_may_go = false;
    making.workload.faults = Duration::from_secs(60);
    let zone_a: Vec<String> = (0..7).map(|number| format!("a-{number}")).collect();
    for name in &zone_a {
        making.put(ready(name, "a"));
    }
    for name in ["b-0", "b-1"] {
        making.put(ready(name, "b"));
    }
    making.put(bearing(pod("stays").on("a-0").ready("11:00:00"), "", None));
    making.put(pod("leaves").on("a-1").ready("11:00:00"));
    making.put(bearing(
        pod("later").on("a-2").ready("11:00:00"),
        "node.kubernetes.io/unreachable",
        Some(6),
    ));
    // Three of seven at once, and a fourth that comes back before its time is over.
    for number in 0..3 {
        making.then_soon(move |world| silence(world, &format!("a-{number}"), true));
    }
    making.then_soon(|world| silence(world, "a-3", true));
    making.then(|world| silence(world, "a-3", false));
    if making.dice.chance(500) {
        // Everybody falls silent for a while: then nobody is driven away.
        let rest: Vec<String> = zone_a[3..]
            .iter()
            .cloned()
            .chain(["b-0".to_owned(), "b-1".to_owned()])
            .collect();
        making.at += Duration::from_secs(35);
        for name in rest.clone() {
            making.then_soon(move |world| silence(world, &name, true));
        }
        making.at += Duration::from_secs(30);
        for name in rest {
            making.then_soon(move |world| silence(world, &name, false));
        }
        // Watches of Leases rest between two checks: until all have heard of the renewals, one may still be
        // called silent.
        making.at += Duration::from_secs(20);
        making.then(|_| {});
    }
    if making.dice.chance(500) {
        // Long after its pod has been driven away.
        making.at += Duration::from_secs(100);
        making.then(|world| silence(world, "a-1", false));
    }
}

pub(super) fn tainted(making: &mut Making) {
    making.workload.pods_may_go = false;
    making.put(ready("n-0", "a"));
    making.put(ready("n-1", "a").taint(TAINT, "", "NoExecute"));
    let seconds = [Some(3), Some(9), Some(20), Some(40), None];
    for (number, seconds) in seconds.into_iter().enumerate() {
        let name = format!("bears-{number}");
        making.put(bearing(
            pod(&name).on("n-0").ready("11:00:00"),
            TAINT,
            seconds,
        ));
    }
    making.put(pod("bears-nothing").on("n-0").ready("11:00:00"));
    making.put(bearing(pod("elsewhere").on("node-1"), TAINT, Some(5)));
    making.then(|world| {
        world.change::<Node>("n-0", |node| {
            *node = node.clone().taint(TAINT, "", "NoExecute");
        });
    });
    // Two that come to a node that has long been tainted.
    let seconds = i64::from(making.count(4, 12));
    making.then(move |world| {
        world.put(bearing(
            pod("late").on("n-1").ready("12:00:00"),
            TAINT,
            Some(seconds),
        ));
    });
    making.then(|world| world.put(pod("late-without").on("n-1").ready("12:00:00")));
    // Long enough for those that have to go, too short for those that bear it for 40 s.
    making.at += Duration::from_secs(60);
    making.then(|world| {
        world.change::<Node>("n-1", |node| {
            node.spec.get_or_insert_default().taints.clear();
        });
    });
    // One that comes after the taint has gone stays, once everybody may have seen that it has.
    making.at += Duration::from_secs(30);
    making.then(|world| world.put(pod("after").on("n-1").ready("12:01:00")));
}

pub(super) fn addresses(making: &mut Making) {
    for number in 0..3 {
        making.put(node(&format!("n-{number}")));
    }
    let mut cloud = node("cloud");
    let spec = cloud.spec.get_or_insert_default();
    spec.pod_cidr = "10.9.9.0/24".to_owned();
    spec.pod_cid_rs = vec![spec.pod_cidr.clone()];
    making.put(cloud);
    for number in 3..9 {
        let name = format!("n-{number}");
        making.then_soon(move |world| world.put(node(&name)));
        if number % 2 == 0 {
            making.then(|_| {});
        }
    }
    for number in [1, 4] {
        making.then(move |world| world.delete::<Node>(&format!("n-{number}")));
    }
    for number in 9..12 {
        let name = format!("n-{number}");
        making.then_soon(move |world| world.put(node(&name)));
    }
}

pub(super) fn annotated(making: &mut Making) {
    const TTL: &str = "node.alpha.kubernetes.io/ttl";
    making.put(node("n-0"));
    making.then(|world| world.put(node("n-1")));
    for value in ["300", "soon", "15"] {
        making.then(move |world| {
            world.change::<Node>("n-0", |node| {
                node.metadata_mut().set_annotation(TTL, value);
            });
        });
    }
    making.then(|world| world.delete::<Node>("n-1"));
}
