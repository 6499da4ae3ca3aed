//! Everything that is there at the end, with what differs by nature made equal.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use harness::ControlPlane;
use serde_json::{Value, json};

use super::plan::VOLUMES;
use super::world::counts;
use crate::parity::{Normal, Snapshot, text_at};

/// Two reads so long apart are the same.
const REST: Duration = Duration::from_secs(10);
/// Silent nodes have come back, rollouts and back-offs have ended by then.
const LIMIT: Duration = Duration::from_secs(420);
/// Kinds that report the moment, or of one control plane alone.
const NOT_COMPARED: [&str; 8] = [
    "events",
    "events.events.k8s.io",
    "componentstatuses",
    "leases.coordination.k8s.io",
    "storageversions.internal.apiserver.k8s.io",
    "clustertrustbundles.certificates.k8s.io",
    "pods.metrics.k8s.io",
    "nodes.metrics.k8s.io",
];
/// What a ReplicaSet of a Deployment bears from when it was scaled last.
const OF_ITS_LAST_SCALE: [&str; 2] = [
    "deployment.kubernetes.io/desired-replicas",
    "deployment.kubernetes.io/max-replicas",
];

async fn everything(control_plane: &ControlPlane) -> Result<Vec<Value>> {
    let resources = control_plane
        .kubectl(&["api-resources", "--verbs=list", "-o", "name"])
        .await?;
    let resources: Vec<&str> = resources
        .split_whitespace()
        .filter(|name| !NOT_COMPARED.contains(name))
        .collect();
    let said = control_plane
        .kubectl(&["get", &resources.join(","), "-A", "-o", "json"])
        .await?;
    let mut list: Value = serde_json::from_str(&said)?;
    let mut all: Vec<Value> = serde_json::from_value(list["items"].take())?;
    // Upstream makes the accounts of all of its controllers when it starts, Manifold that of one that writes.
    all.retain(|object| {
        text_at(object, "/kind") != "ServiceAccount"
            || text_at(object, "/metadata/namespace") != "kube-system"
    });
    Ok(all)
}

/// Why the cluster is not at rest.
fn restless(all: &[Value]) -> Vec<String> {
    let mut why = Vec::new();
    for object in all {
        let (kind, name) = (text_at(object, "/kind"), text_at(object, "/metadata/name"));
        let number = |pointer| object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
        let phase = text_at(object, "/status/phase");
        if !text_at(object, "/metadata/deletionTimestamp").is_empty() {
            why.push(format!("{kind} {name} is being deleted"));
        } else if kind == "Pod" && !["Running", "Succeeded"].contains(&phase) {
            why.push(format!("{kind} {name} is {phase}"));
        } else if ["Deployment", "StatefulSet"].contains(&kind) {
            let wanted = number("/spec/replicas");
            let counts = [
                "/status/replicas",
                "/status/updatedReplicas",
                "/status/availableReplicas",
            ]
            .map(number);
            if counts != [wanted; 3] {
                why.push(format!("{kind} {name} has {counts:?} of {wanted}"));
            }
        } else if kind == "DaemonSet" {
            let wanted = number("/status/desiredNumberScheduled");
            let counts = ["/status/updatedNumberScheduled", "/status/numberAvailable"].map(number);
            if counts != [wanted; 2] {
                why.push(format!("{kind} {name} has {counts:?} of {wanted}"));
            }
        } else if kind == "Node" {
            let taints = object.pointer("/spec/taints").and_then(Value::as_array);
            if let Some(taints) = taints.filter(|taints| !taints.is_empty()) {
                why.push(format!("{kind} {name} has {taints:?}"));
            }
        }
    }
    why
}

/// Waits until everything has come to its end and stays as it is.
pub(super) async fn at_rest(control_plane: &ControlPlane) -> Result<Snapshot> {
    let began = Instant::now();
    let mut before: Option<Snapshot> = None;
    loop {
        // A kind may have gone between the two questions.
        let all = match everything(control_plane).await {
            Ok(all) => all,
            Err(error) if began.elapsed() > LIMIT => return Err(error),
            Err(_) => Vec::new(),
        };
        let why = restless(&all);
        let now = snapshot(&all);
        if why.is_empty()
            && let Some(before) = &before
            && before.objects == now.objects
            && !all.is_empty()
        {
            println!("week: at the end: {:?}", counts(&all));
            return Ok(now);
        }
        ensure!(
            began.elapsed() < LIMIT,
            "it does not come to rest: {}",
            match why.is_empty() {
                true => "something still changes".to_owned(),
                false => why.join(", "),
            }
        );
        before = why.is_empty().then_some(now);
        tokio::time::sleep(REST).await;
    }
}

/// Where an object comes in the order of learning: the rank of its kind, and its number among its owner's.
fn place(object: &Value) -> (u8, i64) {
    match text_at(object, "/kind") {
        "ReplicaSet" => {
            let revision = "/metadata/annotations/deployment.kubernetes.io~1revision";
            (0, text_at(object, revision).parse().unwrap_or(0))
        }
        "ControllerRevision" => (0, object["revision"].as_i64().unwrap_or(0)),
        "Job" => {
            let created = text_at(object, "/metadata/creationTimestamp");
            let created = created.parse::<jiff::Timestamp>();
            (0, created.map_or(0, jiff::Timestamp::as_second))
        }
        "Pod" => (1, 0),
        _ => (2, 0),
    }
}

fn snapshot(all: &[Value]) -> Snapshot {
    let mut normal = Normal::default();
    // Owners before what is named after them, and those of one owner in the order in which it made them.
    let mut in_order: Vec<&Value> = all.iter().collect();
    in_order.sort_by_key(|object| place(object));
    for object in in_order {
        normal.learn(object);
    }
    let evened = all.iter().map(|object| {
        let mut even = normal.object(object);
        plain(&mut even);
        even
    });
    Snapshot::of("at the end", evened)
}

/// Fields whose values follow from chance or from this cluster alone.
const OWN: [&str; 6] = [
    "podCIDR",
    "podCIDRs",
    "caBundle",
    "client-ca-file",
    "requestheader-client-ca-file",
    "externalName",
];

/// What `kubectl apply` has applied.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// What follows from chance, from the order in which things happened, or from their number.
fn plain(object: &mut Value) {
    let kind = text_at(object, "/kind").to_owned();
    let generation = object.pointer("/metadata/generation").cloned();
    let observed = object.pointer("/status/observedGeneration").cloned();
    let unused = kind == "ReplicaSet" && object.pointer("/spec/replicas") == Some(&json!(0));
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
        if let Some(annotations) = metadata
            .get_mut("annotations")
            .and_then(Value::as_object_mut)
            && unused
        {
            for name in OF_ITS_LAST_SCALE {
                annotations.remove(name);
            }
        }
    }
    // A rollout changes its ReplicaSets in as many steps as its pods come in.
    if generation.is_some() && generation == observed {
        object["metadata"]["generation"] = json!("<seen>");
        object["status"]["observedGeneration"] = json!("<seen>");
    }
    if let Some(Value::Array(conditions)) = object.pointer_mut("/status/conditions") {
        conditions.sort_by_key(|one| text_at(one, "/type").to_owned());
    }
    // The API server and the server of metrics listen where a port was free.
    let of_a_server = ["default", "kube-system"].contains(&text_at(object, "/metadata/namespace"))
        || kind == "APIService";
    own(object, of_a_server);
}

/// Replaces [`OWN`] fields and names of volumes, and ports if so said.
fn own(value: &mut Value, ports: bool) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let is_port = ports && ["port", "targetPort"].contains(&key.as_str());
                if OWN.contains(&key.as_str()) || is_port && value.is_number() {
                    *value = json!(format!("<{key}>"));
                    continue;
                }
                // The object once more, as a text.
                let applied = match &*value {
                    Value::String(text) if key == LAST_APPLIED => serde_json::from_str(text).ok(),
                    _ => None,
                };
                if let Some(applied) = applied {
                    *value = applied;
                }
                own(value, ports);
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| own(value, ports)),
        Value::String(text) => {
            for class in VOLUMES {
                *text = without_number(text, class);
            }
        }
        _ => {}
    }
}

/// A text in which volumes of a class, `disk-3`, have no number. Which of them a claim gets is chance, and
/// their names are in their uids' places too.
fn without_number(text: &str, class: &str) -> String {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let name = |word: &str| {
        let number = word
            .strip_prefix(class)
            .and_then(|rest| rest.strip_prefix('-'));
        match number.is_some_and(|number| number.parse::<u16>().is_ok()) {
            true => format!("<{class}>"),
            false => word.to_owned(),
        }
    };
    text.split_inclusive(|c| !is_of_name(c))
        .map(|piece| match piece.char_indices().next_back() {
            Some((at, last)) if !is_of_name(last) => format!("{}{last}", name(&piece[..at])),
            _ => name(piece),
        })
        .collect()
}

#[test]
fn two_ends_that_differ_by_chance_alone_are_the_same() {
    let end = |hash: &str, generation: u32, disk: u32, minute: u32, port: u32, uids: [&str; 2]| {
        let set = format!("web-{hash}");
        let (job, volume) = (format!("minutely-{minute}"), format!("disk-{disk}"));
        vec![
            json!({"kind": "ReplicaSet", "metadata": {"name": set, "generation": generation, "uid": uids[0],
                "labels": {"pod-template-hash": hash}, "managedFields": [{"time": generation}],
                "annotations": {"deployment.kubernetes.io/revision": "3", "deployment.kubernetes.io/max-replicas": "5"},
                "ownerReferences": [{"controller": true, "kind": "Deployment", "name": "web"}]},
                "spec": {"replicas": 0}, "status": {"observedGeneration": generation}}),
            json!({"kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": {"volumeName": volume}}),
            json!({"kind": "PersistentVolume", "metadata": {"name": volume, "uid": uids[1]}}),
            // In the order in which they are listed.
            json!({"kind": "Pod", "metadata": {"name": format!("{job}-x2b4c"), "generateName": format!("{job}-"),
                "ownerReferences": [{"controller": true, "kind": "Job", "name": job}]},
                "status": {"phase": "Succeeded"}}),
            json!({"kind": "Job", "metadata": {"name": job, "creationTimestamp": "2026-01-01T00:00:00Z",
                "ownerReferences": [{"controller": true, "kind": "CronJob", "name": "minutely"}]}}),
            json!({"kind": "Endpoints", "metadata": {"name": "kubernetes", "namespace": "default",
                "annotations": {LAST_APPLIED: json!({"port": port}).to_string()}},
                "subsets": [{"ports": [{"port": port}]}]}),
        ]
    };
    let uids = [
        "6f0f5bd6-6b9c-4a2e-8a55-0d9d2f2e9d10",
        "0d9d2f2e-6b9c-4a2e-8a55-6f0f5bd69d10",
    ];
    let (one, other) = (
        end("5d59d67564", 7, 1, 29_000_001, 40_001, uids),
        end("77f5b8d9c6", 4, 3, 29_000_070, 40_002, [uids[1], uids[0]]),
    );
    assert_eq!(snapshot(&one).objects, snapshot(&other).objects);
    let mut late = other.clone();
    late[0]["status"]["observedGeneration"] = json!(3);
    assert_ne!(snapshot(&one).objects, snapshot(&late).objects);
    assert_eq!(restless(&other), Vec::<String>::new());
    let pod = json!({"kind": "Pod", "metadata": {"name": "a"}, "status": {"phase": "Pending"}});
    assert_eq!(restless(&[pod]), ["Pod a is Pending"]);
}

#[test]
fn volumes_lose_their_numbers_and_nothing_else_does() {
    for (text, plain) in [
        ("disk-3", "<disk>"),
        (
            "<uid of PersistentVolume disk-3>",
            "<uid of PersistentVolume <disk>>",
        ),
        ("disk-db-0", "disk-db-0"),
        ("a-disk-3", "a-disk-3"),
        ("disk-", "disk-"),
        ("disk-3, disk-4", "<disk>, <disk>"),
    ] {
        assert_eq!(without_number(text, "disk"), plain, "{text}");
    }
}
