//! What happens in a week: lists of deeds that follow from a seed and a length alone, one for each part of
//! the cluster's life. Deeds of one list follow each other; lists run side by side.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

/// The namespace of most objects.
pub(super) const NAMESPACE: &str = "week";
/// The namespace with a quota.
pub(super) const BOUNDED: &str = "week-bounded";
/// Where CronJobs are.
pub(super) const CRON_JOBS: [&str; 2] = ["minutely", "forbidding"];
/// The label of nodes that never fall silent, for pods that nothing may disturb.
pub(super) const STEADY: &str = "tests.manifold.dev/steady";
pub(super) const NODES_STEADY: usize = 3;
pub(super) const NODES: usize = 6;
/// The external metric that the autoscaler follows.
pub(super) const METRIC: &str = "queue";
/// Names of volumes begin so, for StatefulSets and for claims alone.
pub(super) const VOLUMES: [&str; 2] = ["disk", "loose"];
pub(super) const VOLUMES_EACH: usize = 8;
/// The nodes' grace period: kwok is silent for up to 46 s where the API server comes back, since it waits 30
/// s after the refused creation of a Lease that is there.
pub(super) const GRACE_SECONDS: u64 = 75;
/// About the time between two changes of a list.
const PACE: Duration = Duration::from_secs(8);
const PACE_OF_JOBS: Duration = Duration::from_secs(5);
/// Upstream checks for new kinds every 30 seconds.
const PACE_OF_DEFINITIONS: Duration = Duration::from_secs(20);
/// A node is silent for so long: [`GRACE_SECONDS`], its pods' toleration, and a while.
const SILENCE: Duration = Duration::from_secs(GRACE_SECONDS + 20);
const BETWEEN_NODES: Duration = Duration::from_secs(20);
/// The API server is away for so long, so often; the first time in the middle of a short week.
const OUTAGE: Duration = Duration::from_secs(5);
const OUTAGES_EVERY: Duration = Duration::from_secs(8 * 60);
/// Jobs that are left when newer ones have come.
const JOBS_KEPT: usize = 4;

/// One thing that is done to the cluster, and what is awaited of it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Deed {
    Create(Value),
    /// A merge patch; then its controller has seen it.
    Change {
        kind: &'static str,
        namespace: &'static str,
        name: String,
        to: Value,
    },
    /// With this propagation policy; then it is gone.
    Delete {
        kind: &'static str,
        namespace: &'static str,
        name: String,
        how: &'static str,
    },
    /// A fact of an object, by a JSON pointer, gets this value.
    Await {
        kind: &'static str,
        namespace: &'static str,
        name: String,
        fact: &'static str,
        is: Value,
    },
    /// Released volumes of claims alone are taken away and provided again.
    Provide,
    /// The external metric takes a value.
    Metric(u32),
    /// The node falls silent.
    Silence(String),
    /// The manager has found it unreachable: after more than its grace period where a replica that was killed
    /// or an outage of the API server has restarted the measurement.
    Unreachable(String),
    /// It has its kubelet again.
    Wake(String),
    /// A node as new.
    Join(String),
    Pause(Duration),
    /// The API server goes away, and comes back after this time.
    Outage(Duration),
}

/// Deeds that follow each other.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct List {
    pub(super) name: String,
    /// Whether its deeds are spread over the week; others pause as they need to.
    pub(super) spread: bool,
    pub(super) deeds: Vec<Deed>,
}

/// All lists of a week.
pub(super) fn lists(seed: u64, length: Duration) -> Vec<List> {
    let mut lists = Vec::new();
    let mut add = |name: &str, pace: Duration, make: &dyn Fn(&mut StdRng, usize) -> Vec<Deed>| {
        // Each from its own source: a change of one list leaves the others as they are.
        let own = seed.wrapping_mul(31).wrapping_add(lists.len() as u64);
        let count = (length.as_secs() / pace.as_secs().max(1)) as usize;
        let deeds = make(&mut StdRng::seed_from_u64(own), count);
        let name = name.to_owned();
        let spread = !pace.is_zero();
        lists.push(List {
            name,
            spread,
            deeds,
        });
    };
    for number in 0..3 {
        add(&format!("web-{number}"), PACE, &|random, count| {
            webs(random, count, number)
        });
    }
    add("stateful", PACE * 2, &stateful);
    add("jobs", PACE_OF_JOBS, &jobs);
    add("volumes", PACE, &volumes);
    add("affairs", PACE, &affairs);
    add("definitions", PACE_OF_DEFINITIONS, &definitions);
    add("nodes", Duration::ZERO, &|random, _| nodes(random, length));
    add("api-server", Duration::ZERO, &|_, _| outages(length));
    lists
}

fn deployment(namespace: &str, name: &str, replicas: u32, strategy: &str) -> Value {
    // A pod on a silent node would hold all up, and which revisions there were would follow from its place.
    let place = match strategy {
        "Recreate" => json!({"nodeSelector": {STEADY: "true"}}),
        _ => json!({}),
    };
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 3,
            "strategy": {"type": strategy},
            "selector": {"matchLabels": {"app": name}},
            "template": template(name, &place),
        },
    })
}

/// A pod template of this label; its pods leave a silent node after a few seconds.
fn template(app: &str, more: &Value) -> Value {
    let tolerate = |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5});
    let mut template = json!({
        "metadata": {"labels": {"app": app}},
        "spec": {
            "containers": [{"name": "app", "image": "example/app:0"}],
            "tolerations": [
                tolerate("node.kubernetes.io/not-ready"),
                tolerate("node.kubernetes.io/unreachable"),
            ],
        },
    });
    for (field, value) in more.as_object().into_iter().flatten() {
        template["spec"][field] = value.clone();
    }
    template
}

/// A change to a template that nobody has had before.
fn rolled_out(number: usize) -> Value {
    json!({"spec": {"template": {"metadata": {"annotations": {"week": number.to_string()}}}}})
}

fn change(kind: &'static str, name: &str, to: Value) -> Deed {
    Deed::Change {
        kind,
        namespace: NAMESPACE,
        name: name.to_owned(),
        to,
    }
}

fn delete(kind: &'static str, name: &str, how: &'static str) -> Deed {
    Deed::Delete {
        kind,
        namespace: NAMESPACE,
        name: name.to_owned(),
        how,
    }
}

fn facts(kind: &'static str, name: &str, facts: &[(&'static str, Value)]) -> Vec<Deed> {
    let of = |(fact, is): &(&'static str, Value)| Deed::Await {
        kind,
        namespace: NAMESPACE,
        name: name.to_owned(),
        fact,
        is: is.clone(),
    };
    facts.iter().map(of).collect()
}

/// Two Deployments, a Service and a budget: scaled, rolled out, rolled back, paused, deleted and made again.
fn webs(random: &mut StdRng, count: usize, list: usize) -> Vec<Deed> {
    let names = [format!("web-{list}-a"), format!("web-{list}-b")];
    let strategy = |at: usize| {
        if at == 1 && list == 2 {
            "Recreate"
        } else {
            "RollingUpdate"
        }
    };
    let mut deeds = Vec::new();
    for (at, name) in names.iter().enumerate() {
        deeds.push(Deed::Create(deployment(NAMESPACE, name, 3, strategy(at))));
        deeds.push(Deed::Create(json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"selector": {"app": name}, "ports": [{"port": 80}]},
        })));
        deeds.push(Deed::Create(json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": name}}},
        })));
    }
    // Where all pods go before others come, a template that follows another at once has no ReplicaSet, or has
    // one: which revisions there were would follow from a pod's last second.
    let is_over = |at: usize, replicas: u32| match strategy(at) {
        "Recreate" => {
            let updated = ("/status/updatedReplicas", json!(replicas));
            facts("Deployment", &names[at], &[updated])
        }
        _ => Vec::new(),
    };
    // The newest template of each, and the one before, since it was made last.
    let mut templates = [(0, None), (0, None)];
    let mut sizes = [3, 3];
    for number in 1..=count {
        let at = random.random_range(0..2);
        let name = &names[at];
        let (newest, before) = templates[at];
        match random.random_range(0..10) {
            0..3 => {
                let replicas: u32 = random.random_range(1..=8);
                deeds.push(change(
                    "Deployment",
                    name,
                    json!({"spec": {"replicas": replicas}}),
                ));
                sizes[at] = replicas;
            }
            3..6 => {
                deeds.push(change("Deployment", name, rolled_out(number)));
                deeds.extend(is_over(at, sizes[at]));
                templates[at] = (number, Some(newest));
            }
            6 => {
                let Some(before) = before else { continue };
                deeds.push(change("Deployment", name, rolled_out(before)));
                deeds.extend(is_over(at, sizes[at]));
                templates[at] = (before, Some(newest));
            }
            7 => {
                deeds.push(change(
                    "Deployment",
                    name,
                    json!({"spec": {"paused": true}}),
                ));
                deeds.push(change("Deployment", name, rolled_out(number)));
                deeds.push(change(
                    "Deployment",
                    name,
                    json!({"spec": {"paused": false}}),
                ));
                deeds.extend(is_over(at, sizes[at]));
                templates[at] = (number, Some(newest));
            }
            8 => {
                let how = ["Background", "Foreground"][random.random_range(0..2)];
                deeds.push(delete("Deployment", name, how));
                // Another template: a ReplicaSet that is not gone yet has the name of its own.
                let mut again = deployment(NAMESPACE, name, 4, strategy(at));
                again["spec"]["template"]["metadata"]["annotations"] =
                    json!({"week": number.to_string()});
                deeds.push(Deed::Create(again));
                sizes[at] = 4;
                templates[at] = (number, None);
            }
            _ => {
                let most: u32 = random.random_range(1..=2);
                deeds.push(change(
                    "PodDisruptionBudget",
                    name,
                    json!({"spec": {"maxUnavailable": most}}),
                ));
            }
        }
    }
    deeds
}

/// A StatefulSet with claims and a DaemonSet.
fn stateful(random: &mut StdRng, count: usize) -> Vec<Deed> {
    let claim = json!({"metadata": {"name": "data"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "storageClassName": VOLUMES[0],
        "resources": {"requests": {"storage": "1Gi"}},
    }});
    let steady = json!({"nodeSelector": {STEADY: "true"}});
    let mut size = 2;
    let mut deeds = vec![
        Deed::Create(json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet",
            "metadata": {"name": "db", "namespace": NAMESPACE},
            "spec": {
                "replicas": size, "serviceName": "db", "revisionHistoryLimit": 3,
                "selector": {"matchLabels": {"app": "db"}},
                "template": template("db", &steady),
                "volumeClaimTemplates": [claim],
            },
        })),
        Deed::Create(json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": {"name": "agent", "namespace": NAMESPACE},
            "spec": {
                "revisionHistoryLimit": 3,
                "updateStrategy": {"rollingUpdate": {"maxUnavailable": "50%"}},
                "selector": {"matchLabels": {"app": "agent"}},
                "template": template("agent", &json!({})),
            },
        })),
    ];
    let complete = |size: usize| {
        let size = json!(size);
        facts(
            "StatefulSet",
            "db",
            &[
                ("/status/readyReplicas", size.clone()),
                ("/status/updatedReplicas", size.clone()),
                ("/status/replicas", size),
            ],
        )
    };
    deeds.extend(complete(size));
    for number in 1..=count {
        match random.random_range(0..4) {
            0 => {
                size = random.random_range(1..=4);
                deeds.push(change(
                    "StatefulSet",
                    "db",
                    json!({"spec": {"replicas": size}}),
                ));
                deeds.extend(complete(size));
            }
            1 | 2 => {
                deeds.push(change("StatefulSet", "db", rolled_out(number)));
                deeds.extend(complete(size));
            }
            _ => deeds.push(change("DaemonSet", "agent", rolled_out(number))),
        }
    }
    deeds
}

/// Jobs that run to their end, wait, or are cleared away by themselves; and CronJobs all the time.
fn jobs(random: &mut StdRng, count: usize) -> Vec<Deed> {
    let steady = json!({"nodeSelector": {STEADY: "true"}, "restartPolicy": "Never"});
    let cron = |name: &str, policy: &str| {
        Deed::Create(json!({
            "apiVersion": "batch/v1", "kind": "CronJob",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                "schedule": "* * * * *", "concurrencyPolicy": policy,
                "successfulJobsHistoryLimit": 1, "failedJobsHistoryLimit": 1,
                "jobTemplate": {"spec": {"template": template(name, &steady)}},
            },
        }))
    };
    let mut deeds = vec![cron(CRON_JOBS[0], "Allow"), cron(CRON_JOBS[1], "Forbid")];
    let mut kept: Vec<String> = Vec::new();
    for number in 1..=count {
        let name = format!("job-{number}");
        let completions: u32 = random.random_range(1..=6);
        let parallelism: u32 = random.random_range(1..=3);
        let (suspended, brief) = (random.random_ratio(1, 4), random.random_ratio(1, 4));
        let mode = ["NonIndexed", "Indexed"][random.random_range(0..2)];
        let mut job = json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                "completions": completions, "parallelism": parallelism, "completionMode": mode,
                "suspend": suspended,
                "template": template("job", &steady),
            },
        });
        if brief {
            job["spec"]["ttlSecondsAfterFinished"] = json!(2);
        }
        deeds.push(Deed::Create(job));
        if suspended {
            deeds.extend(facts(
                "Job",
                &name,
                &[("/status/conditions/0/type", json!("Suspended"))],
            ));
            deeds.push(change("Job", &name, json!({"spec": {"suspend": false}})));
        }
        if brief {
            // Null where there is none any more.
            deeds.extend(facts("Job", &name, &[("", Value::Null)]));
        } else {
            deeds.extend(facts(
                "Job",
                &name,
                &[("/status/succeeded", json!(completions))],
            ));
            kept.push(name);
        }
        if kept.len() > JOBS_KEPT {
            deeds.push(delete("Job", &kept.remove(0), "Background"));
        }
    }
    deeds
}

/// A volume that the tests provide.
pub(super) fn volume(class: &str, number: usize) -> Value {
    let name = format!("{class}-{number}");
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {
            "storageClassName": class, "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Retain",
            "csi": {"driver": "csi.example.com", "volumeHandle": name},
        },
    })
}

/// Claims that are bound and given up; what they leave is cleared away and provided again.
fn volumes(random: &mut StdRng, count: usize) -> Vec<Deed> {
    let mut deeds = Vec::new();
    let mut claims: Vec<String> = Vec::new();
    for number in 1..=count {
        // As many as there are volumes at most.
        if claims.len() < VOLUMES_EACH && (claims.is_empty() || random.random_ratio(1, 2)) {
            let name = format!("claim-{number}");
            deeds.push(Deed::Create(json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": {"name": name, "namespace": NAMESPACE},
                "spec": {
                    "storageClassName": VOLUMES[1], "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": "1Gi"}},
                },
            })));
            deeds.extend(facts(
                "PersistentVolumeClaim",
                &name,
                &[("/status/phase", json!("Bound"))],
            ));
            claims.push(name);
        } else {
            let name = claims.remove(random.random_range(0..claims.len()));
            deeds.push(delete("PersistentVolumeClaim", &name, "Background"));
            deeds.push(Deed::Provide);
        }
    }
    deeds
}

/// A quota, an autoscaler, namespaces and roles.
fn affairs(random: &mut StdRng, count: usize) -> Vec<Deed> {
    let of_quota = |kind, name: &str, fact, is: Value| Deed::Await {
        kind,
        namespace: BOUNDED,
        name: name.to_owned(),
        fact,
        is,
    };
    let scaler = json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "scaled", "namespace": NAMESPACE},
        "spec": {
            "minReplicas": 1, "maxReplicas": 6,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "scaled"},
            "metrics": [{"type": "External", "external": {
                "metric": {"name": METRIC}, "target": {"type": "AverageValue", "averageValue": "10"},
            }}],
        },
    });
    let mut bounded = deployment(BOUNDED, "bounded", 2, "RollingUpdate");
    // A pod that ends on a silent node would count for as long as that is silent.
    bounded["spec"]["template"]["spec"]["nodeSelector"] = json!({STEADY: "true"});
    let quota = |pods: u32| json!({"spec": {"hard": {"pods": pods.to_string()}}});
    let mut deeds = vec![
        Deed::Metric(20),
        Deed::Create(deployment(NAMESPACE, "scaled", 1, "RollingUpdate")),
        Deed::Create(scaler),
        Deed::Create(json!({
            "apiVersion": "v1", "kind": "ResourceQuota",
            "metadata": {"name": "quota", "namespace": BOUNDED},
            "spec": {"hard": {"pods": "3", "count/deployments.apps": "5"}},
        })),
        of_quota("ResourceQuota", "quota", "/status/hard/pods", json!("3")),
        Deed::Create(bounded),
        Deed::Create(json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": "week-sum"},
            "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"week": "part"}}]},
            "rules": [],
        })),
    ];
    for number in 1..=count {
        match random.random_range(0..4) {
            0 => {
                let value: u32 = random.random_range(1..=6);
                deeds.push(Deed::Metric(value * 10));
                deeds.extend(facts("Deployment", "scaled", &[("/status/readyReplicas", json!(value))]));
            }
            1 => {
                // Fewer than are wanted, then room for all. The change of size wakes upstream's back-off.
                let wanted: u32 = random.random_range(4..=6);
                let of = |kind, name: &str, to| Deed::Change {
                    kind,
                    namespace: BOUNDED,
                    name: name.to_owned(),
                    to,
                };
                deeds.extend([
                    of("ResourceQuota", "quota", quota(3)),
                    of_quota("ResourceQuota", "quota", "/status/hard/pods", json!("3")),
                    of("Deployment", "bounded", json!({"spec": {"replicas": wanted}})),
                    of_quota("Deployment", "bounded", "/status/readyReplicas", json!(3)),
                    of("ResourceQuota", "quota", quota(20)),
                    of_quota("ResourceQuota", "quota", "/status/hard/pods", json!("20")),
                    of("Deployment", "bounded", json!({"spec": {"replicas": 3}})),
                    of_quota("Deployment", "bounded", "/status/readyReplicas", json!(3)),
                ]);
            }
            2 => {
                let name = format!("week-passing-{number}");
                let inside = deployment(&name, "inside", 2, "RollingUpdate");
                deeds.extend([
                    Deed::Create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})),
                    Deed::Create(inside),
                    Deed::Create(json!({"apiVersion": "v1", "kind": "ConfigMap",
                        "metadata": {"name": "inside", "namespace": name}})),
                    Deed::Pause(Duration::from_secs(2)),
                    Deed::Delete {
                        kind: "Namespace",
                        namespace: "",
                        name,
                        how: "Background",
                    },
                ]);
            }
            _ => deeds.push(Deed::Create(json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
                "metadata": {"name": format!("week-part-{number:04}"), "labels": {"week": "part"}},
                "rules": [{"apiGroups": ["example.com"], "resources": [format!("things-{number}")], "verbs": ["get"]}],
            }))),
        }
    }
    deeds
}

/// Kinds that come with their objects and go with them; what these own is collected.
fn definitions(random: &mut StdRng, count: usize) -> Vec<Deed> {
    let mut deeds = Vec::new();
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "gadgets.week.example.com"},
        "spec": {
            "group": "week.example.com", "scope": "Namespaced",
            "names": {"kind": "Gadget", "plural": "gadgets"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true,
            }}}],
        },
    });
    let mut number = 0;
    while number < count {
        deeds.push(Deed::Create(definition.clone()));
        deeds.push(Deed::Await {
            kind: "CustomResourceDefinition",
            namespace: "",
            name: "gadgets.week.example.com".to_owned(),
            fact: "/status/acceptedNames/kind",
            is: json!("Gadget"),
        });
        let mut left = Vec::new();
        for _ in 0..random.random_range(2..5) {
            number += 1;
            let name = format!("gadget-{number}");
            let of = |kind: &str, version: &str, name: &str| json!({"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}});
            let mut owned = of("ConfigMap", "v1", &name);
            // Filled with the owner's uid by the one who does it.
            owned["metadata"]["ownerReferences"] = json!([{
                "apiVersion": "week.example.com/v1", "kind": "Gadget", "name": name, "uid": "",
            }]);
            deeds.push(Deed::Create(of("Gadget", "week.example.com/v1", &name)));
            deeds.push(Deed::Create(owned));
            if random.random_ratio(1, 2) {
                let how = ["Background", "Foreground"][random.random_range(0..2)];
                deeds.push(delete("Gadget", &name, how));
                deeds.extend(facts("ConfigMap", &name, &[("", Value::Null)]));
            } else {
                left.push(name);
            }
        }
        // The last one stays.
        if number < count {
            // Who has not learnt of a kind before it goes can't report that its objects are gone.
            for name in left {
                deeds.push(delete("Gadget", &name, "Background"));
                deeds.extend(facts("ConfigMap", &name, &[("", Value::Null)]));
            }
            deeds.push(Deed::Delete {
                kind: "CustomResourceDefinition",
                namespace: "",
                name: "gadgets.week.example.com".to_owned(),
                how: "Background",
            });
        }
    }
    deeds
}

/// Nodes fall silent and come back, are cordoned, or are taken away for good and replaced.
fn nodes(random: &mut StdRng, length: Duration) -> Vec<Deed> {
    let mut deeds = vec![Deed::Pause(BETWEEN_NODES / 2)];
    let mut passed = BETWEEN_NODES / 2;
    let cordon = |name: &str, on: bool| Deed::Change {
        kind: "Node",
        namespace: "",
        name: name.to_owned(),
        to: json!({"spec": {"unschedulable": on}}),
    };
    let mut turn = 0;
    // Each ends within the week.
    while passed + SILENCE + BETWEEN_NODES <= length {
        let number = random.random_range(NODES_STEADY..NODES);
        let name = format!("node-{number}");
        deeds.extend([
            Deed::Silence(name.clone()),
            Deed::Pause(SILENCE),
            Deed::Unreachable(name.clone()),
        ]);
        if turn % 2 == 1 {
            deeds.push(Deed::Delete {
                kind: "Node",
                namespace: "",
                name: name.clone(),
                how: "Background",
            });
            deeds.push(Deed::Join(name.clone()));
        } else {
            deeds.push(Deed::Wake(name.clone()));
        }
        deeds.extend([
            cordon(&name, true),
            Deed::Pause(BETWEEN_NODES),
            cordon(&name, false),
        ]);
        passed += SILENCE + BETWEEN_NODES;
        turn += 1;
    }
    deeds
}

fn outages(length: Duration) -> Vec<Deed> {
    let mut deeds = Vec::new();
    let every = OUTAGES_EVERY.min(length / 2);
    let mut passed = every;
    while passed + OUTAGE < length {
        deeds.extend([Deed::Pause(every), Deed::Outage(OUTAGE)]);
        passed += every;
    }
    // What an outage has ended is started again until the week is over.
    deeds.push(Deed::Pause(length.saturating_sub(passed - every)));
    deeds
}

#[test]
fn a_seed_and_a_length_say_all_that_happens() {
    let short = Duration::from_secs(180);
    assert_eq!(lists(7, short), lists(7, short));
    assert_ne!(lists(7, short), lists(8, short));
    let deeds = |length| {
        lists(7, length)
            .iter()
            .map(|list| list.deeds.len())
            .sum::<usize>()
    };
    assert!(deeds(short) > 150, "{}", deeds(short));
    assert!(deeds(short * 10) > 1_500, "{}", deeds(short * 10));
    let outages = |length| {
        let all = lists(7, length).into_iter().flat_map(|list| list.deeds);
        all.filter(|deed| matches!(deed, Deed::Outage(_))).count()
    };
    assert_eq!(
        (outages(short), outages(Duration::from_secs(35 * 60))),
        (1, 4)
    );
}

#[test]
fn nothing_is_changed_that_is_not_there() {
    let mut there = std::collections::BTreeSet::new();
    for list in lists(3, Duration::from_secs(1_200)) {
        for deed in list.deeds {
            match deed {
                Deed::Create(object) => {
                    let text = |pointer: &str| {
                        object
                            .pointer(pointer)
                            .and_then(Value::as_str)
                            .unwrap_or("")
                            .to_owned()
                    };
                    let key = (
                        text("/kind"),
                        text("/metadata/namespace"),
                        text("/metadata/name"),
                    );
                    assert!(there.insert(key.clone()), "{key:?} is made twice");
                }
                Deed::Change {
                    kind,
                    namespace,
                    name,
                    ..
                } if kind != "Node" => {
                    let key = (kind.to_owned(), namespace.to_owned(), name);
                    assert!(there.contains(&key), "{key:?} is not there");
                }
                Deed::Delete {
                    kind,
                    namespace,
                    name,
                    ..
                } if kind != "Node" => {
                    let key = (kind.to_owned(), namespace.to_owned(), name);
                    assert!(there.remove(&key), "{key:?} is not there");
                }
                Deed::Await {
                    kind,
                    namespace,
                    name,
                    fact: "",
                    ..
                } => {
                    there.remove(&(kind.to_owned(), namespace.to_owned(), name));
                }
                _ => {}
            }
        }
    }
}
