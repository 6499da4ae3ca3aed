//! Faults that are planted in one of the two managers, or by somebody else: the shadow finds each.
//!
//! One control plane serves all of them. Faults that need the same managers are planted side by side, each in
//! a namespace of its own.

use std::time::Duration;

use anyhow::{Result, ensure};
use harness::{ControlPlane, Replica, run_test, until};
use inspect::{AGREED, DIFFERS, Shadow, ShadowDifference, UNDECIDED};
use serde_json::{Value, json};

use super::{NAMESPACE, SOON, prepared, report, shadow, upstream, written};
use crate::support::{PATIENCE, POLL, alone};

/// A fault is found within the patience of slow controllers, and what upstream takes.
const FOUND: Duration = Duration::from_secs(100);

/// Controllers that both run unless a fault says otherwise.
const BOTH: &[&str] = &[
    "deployment-controller",
    "replicaset-controller",
    "replicationcontroller-controller",
    "statefulset-controller",
    "daemonset-controller",
    "disruption-controller",
    "job-controller",
    "cronjob-controller",
    "ttl-after-finished-controller",
    "serviceaccount-controller",
    "root-ca-certificate-publisher-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "resourcequota-controller",
    "endpoints-controller",
    "endpointslice-controller",
    "persistentvolumeclaim-protection-controller",
    "persistentvolume-protection-controller",
    "node-lifecycle-controller",
    "ttl-controller",
];

/// A fault, the deed that shows it, and the difference by which it is found.
struct Fault {
    name: &'static str,
    /// What is made in the fault's namespace.
    make: Vec<Value>,
    /// Commands of kubectl afterwards; in the namespace.
    then: &'static [&'static str],
    kind: &'static str,
    /// The difference's resource and verb.
    resource: &'static str,
    verb: &'static str,
}

/// What is the same for several faults.
struct Group {
    name: &'static str,
    kcm: Vec<String>,
    shadow: Vec<String>,
    faults: Vec<Fault>,
}

fn controllers(without: &[&str]) -> String {
    let list: Vec<&str> = BOTH
        .iter()
        .copied()
        .filter(|name| !without.contains(name))
        .collect();
    format!("--controllers={}", list.join(","))
}

fn template(name: &str) -> Value {
    json!({
        "metadata": {"labels": {"app": name}},
        "spec": {"containers": [{"name": "app", "image": "example/app:1"}]},
    })
}

fn workload(api: &str, kind: &str, spec: &Value) -> Value {
    let mut object = json!({
        "apiVersion": api, "kind": kind, "metadata": {"name": "web"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": template("web")},
    });
    for (name, value) in spec.as_object().into_iter().flatten() {
        object["spec"][name] = value.clone();
    }
    object
}

fn stateful_set() -> Value {
    workload("apps/v1", "StatefulSet", &json!({"serviceName": "web"}))
}

fn replicas(count: u32) -> Value {
    json!({"replicas": count})
}

fn job(spec: &Value) -> Value {
    let mut template = template("web");
    template["spec"]["restartPolicy"] = json!("Never");
    let mut object = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "web"},
        "spec": {"template": template},
    });
    for (name, value) in spec.as_object().into_iter().flatten() {
        object["spec"][name] = value.clone();
    }
    object
}

fn service() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
    })
}

fn claim() -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "web"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    })
}

/// A finding that a write which is planned here is not made by upstream.
fn missing(
    name: &'static str,
    make: Vec<Value>,
    resource: &'static str,
    verb: &'static str,
) -> Fault {
    Fault {
        name,
        make,
        then: &[],
        kind: "missing",
        resource,
        verb,
    }
}

/// A finding that upstream makes a write which is not planned here.
fn extra(
    name: &'static str,
    make: Vec<Value>,
    resource: &'static str,
    verb: &'static str,
) -> Fault {
    Fault {
        kind: "extra",
        ..missing(name, make, resource, verb)
    }
}

/// Upstream lacks controllers.
fn upstream_lacks() -> Group {
    let without = [
        "statefulset-controller",
        "daemonset-controller",
        "cronjob-controller",
        "job-controller",
        "disruption-controller",
        "endpointslice-controller",
        "endpoints-controller",
        "resourcequota-controller",
        "persistentvolumeclaim-protection-controller",
        "root-ca-certificate-publisher-controller",
    ];
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "web"},
        "spec": {"hard": {"pods": "10"}},
    });
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
    });
    let mut cron = json!({
        "apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "web"},
        "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": job(&json!({}))["spec"]}},
    });
    cron["spec"]["jobTemplate"]["spec"]["completions"] = json!(1);
    Group {
        name: "upstream lacks controllers",
        kcm: vec![controllers(&without)],
        shadow: vec![controllers(&[])],
        faults: vec![
            missing(
                "no StatefulSet's pods",
                vec![stateful_set()],
                "pods",
                "create",
            ),
            missing(
                "no DaemonSet's pods",
                vec![workload("apps/v1", "DaemonSet", &json!({}))],
                "pods",
                "create",
            ),
            missing("no CronJob's Jobs", vec![cron], "jobs.batch", "create"),
            missing("no Job's pods", vec![job(&json!({}))], "pods", "create"),
            missing(
                "no budget's status",
                vec![budget],
                "poddisruptionbudgets.policy",
                "patch",
            ),
            missing(
                "no slices",
                vec![service()],
                "endpointslices.discovery.k8s.io",
                "create",
            ),
            missing("no Endpoints", vec![service()], "endpoints", "create"),
            missing("no quota's status", vec![quota], "resourcequotas", "patch"),
            // Admission adds what protects a claim; the controller takes it off.
            Fault {
                then: &["delete persistentvolumeclaim web --wait=false"],
                ..missing(
                    "a claim that is deleted stays protected",
                    vec![claim()],
                    "persistentvolumeclaims",
                    "patch",
                )
            },
            missing("no authority in namespaces", vec![], "configmaps", "create"),
        ],
    }
}

/// The shadow lacks controllers.
fn shadow_lacks() -> Group {
    let without = [
        "deployment-controller",
        "statefulset-controller",
        "job-controller",
        "root-ca-certificate-publisher-controller",
    ];
    Group {
        name: "the shadow lacks controllers",
        kcm: vec![controllers(&[])],
        shadow: vec![controllers(&without)],
        faults: vec![
            extra(
                "a Deployment's ReplicaSet",
                vec![workload("apps/v1", "Deployment", &replicas(1))],
                "replicasets.apps",
                "create",
            ),
            Fault {
                then: &[
                    "wait --for=create replicaset -l app=web --timeout=60s",
                    "scale deployment web --replicas=3",
                ],
                ..extra(
                    "a Deployment that is scaled",
                    vec![workload("apps/v1", "Deployment", &replicas(1))],
                    "replicasets.apps",
                    "update",
                )
            },
            extra(
                "a StatefulSet's pods",
                vec![stateful_set()],
                "pods",
                "create",
            ),
            extra("a Job's pods", vec![job(&json!({}))], "pods", "create"),
            extra("a namespace's authority", vec![], "configmaps", "create"),
        ],
    }
}

/// Both run the same with other flags.
fn other_flags() -> Group {
    Group {
        name: "flags differ",
        kcm: vec![
            controllers(&[]),
            "--enable-garbage-collector=false".to_owned(),
            "--max-endpoints-per-slice=1".to_owned(),
        ],
        shadow: vec![controllers(&[])],
        faults: vec![
            Fault {
                then: &[
                    "wait --for=create pod -l app=web --timeout=60s",
                    "delete replicaset web --cascade=background",
                ],
                ..missing(
                    "nobody clears up",
                    vec![workload("apps/v1", "ReplicaSet", &replicas(1))],
                    "pods",
                    "delete",
                )
            },
            extra(
                "a slice for each pod",
                vec![service(), workload("apps/v1", "ReplicaSet", &replicas(3))],
                "endpointslices.discovery.k8s.io",
                "create",
            ),
        ],
    }
}

/// Both run the same; somebody else meddles.
fn third_parties() -> Group {
    let delete = |name, make, then, resource| Fault {
        then,
        ..extra(name, make, resource, "delete")
    };
    Group {
        name: "somebody meddles",
        kcm: vec![controllers(&[])],
        shadow: vec![controllers(&[])],
        faults: vec![
            delete(
                "a pod of a ReplicaSet is deleted",
                vec![workload("apps/v1", "ReplicaSet", &replicas(2))],
                &[
                    "wait --for=condition=Ready pod -l app=web --timeout=60s",
                    "delete pod -l app=web --wait=false",
                ],
                "pods",
            ),
            delete(
                "a pod of a Job is deleted",
                vec![job(&json!({}))],
                &[
                    "wait --for=create pod -l job-name=web --timeout=60s",
                    "delete pod -l job-name=web --wait=false",
                ],
                "pods",
            ),
            delete(
                "a ReplicaSet of a Deployment is deleted",
                vec![workload("apps/v1", "Deployment", &replicas(1))],
                &[
                    "wait --for=create replicaset -l app=web --timeout=60s",
                    "delete replicaset -l app=web --wait=false",
                ],
                "replicasets.apps",
            ),
            delete(
                "a pod of a ReplicationController is deleted",
                vec![json!({
                    "apiVersion": "v1", "kind": "ReplicationController", "metadata": {"name": "web"},
                    "spec": {"replicas": 1, "selector": {"app": "web"}, "template": template("web")},
                })],
                &[
                    "wait --for=create pod -l app=web --timeout=60s",
                    "delete pod -l app=web --wait=false",
                ],
                "pods",
            ),
            delete(
                "a slice is deleted",
                vec![service()],
                &[
                    "wait --for=create endpointslice -l kubernetes.io/service-name=web --timeout=60s",
                    "delete endpointslice -l kubernetes.io/service-name=web --wait=false",
                ],
                "endpointslices.discovery.k8s.io",
            ),
            delete(
                "a revision of a StatefulSet is deleted",
                vec![stateful_set()],
                &[
                    "wait --for=create controllerrevision -l app=web --timeout=60s",
                    "delete controllerrevision -l app=web --wait=false",
                ],
                "controllerrevisions.apps",
            ),
            delete(
                "a pod of a DaemonSet is deleted",
                vec![workload("apps/v1", "DaemonSet", &json!({}))],
                &[
                    "wait --for=create pod -l app=web --timeout=60s",
                    "delete pod -l app=web --wait=false",
                ],
                "pods",
            ),
        ],
    }
}

fn is_found(found: &Shadow, fault: &Fault, namespace: &str) -> bool {
    let is_it = |one: &ShadowDifference| {
        one.namespace == namespace
            && one.kind == fault.kind
            && one.resource == fault.resource
            && one.write.starts_with(fault.verb)
    };
    found.differences.iter().any(is_it)
}

async fn plant(control_plane: &ControlPlane, fault: &Fault) -> Result<String> {
    let namespace = control_plane.namespace("fault").await?;
    for object in &fault.make {
        let apply = ["-n", namespace.as_str(), "create"];
        control_plane
            .kubectl_with_input(&apply, &object.to_string())
            .await?;
    }
    for command in fault.then {
        let mut args = vec!["-n", namespace.as_str()];
        args.extend(command.split_whitespace());
        control_plane.kubectl(&args).await?;
    }
    Ok(namespace)
}

async fn play(control_plane: &ControlPlane, group: &Group, lost: &mut Vec<String>) -> Result<()> {
    let mut kcm = upstream(control_plane, &group.kcm).await?;
    let mut replicas = shadow(control_plane, &group.shadow, 1, SOON).await?;
    let mut namespaces = Vec::new();
    for fault in &group.faults {
        namespaces.push(plant(control_plane, fault).await?);
    }
    for (fault, namespace) in group.faults.iter().zip(&namespaces) {
        let found = until(fault.name, FOUND, POLL * 10, || async {
            let found = report(&replicas[0]).await?;
            ensure!(is_found(&found, fault, namespace), "{}", found.text());
            Ok(Some(found))
        })
        .await;
        match found {
            Ok(found) => {
                ensure!(found.exit_code() == DIFFERS, "{}", found.text());
                println!("shadow: found: {}: {}", group.name, fault.name);
            }
            Err(error) => {
                println!("shadow: NOT found: {}: {}", group.name, fault.name);
                lost.push(format!("{}: {}: {error:#}", group.name, fault.name));
            }
        }
    }
    end(&mut replicas).await?;
    kcm.process().terminate(PATIENCE).await?;
    for namespace in &namespaces {
        let delete = ["delete", "namespace", namespace, "--wait=false"];
        control_plane.kubectl(&delete).await?;
    }
    Ok(())
}

async fn end(replicas: &mut [Replica]) -> Result<()> {
    for replica in replicas {
        replica.terminate(PATIENCE).await?;
    }
    Ok(())
}

#[test]
#[ignore = "minutes: cargo parity"]
fn each_planted_fault_is_found() {
    let _alone = alone();
    run_test(async {
        let control_plane = prepared(2).await?;
        let groups = [
            upstream_lacks(),
            shadow_lacks(),
            other_flags(),
            third_parties(),
        ];
        let mut lost = Vec::new();
        let mut planted = 0;
        for group in &groups {
            planted += group.faults.len();
            play(&control_plane, group, &mut lost).await?;
        }
        println!("shadow: {planted} faults planted, {} not found", lost.len());
        ensure!(lost.is_empty(), "{lost:#?}");
        let (_, others) = written(&control_plane)?;
        ensure!(others.is_empty(), "{others:#?}");
        Ok(())
    });
}

#[test]
#[ignore = "minutes: cargo parity"]
fn without_anybody_in_charge_there_is_no_verdict() {
    let _alone = alone();
    run_test(async {
        let control_plane = prepared(5).await?;
        let flags = vec![controllers(&[])];
        let mut kcm = upstream(&control_plane, &flags).await?;
        let mut replicas = shadow(&control_plane, &flags, 1, SOON).await?;
        let namespace = control_plane.namespace("agreed").await?;
        let apply = ["-n", namespace.as_str(), "create"];
        let object = workload("apps/v1", "Deployment", &json!({"replicas": 1})).to_string();
        control_plane.kubectl_with_input(&apply, &object).await?;
        until("both agree", PATIENCE, POLL * 10, || async {
            let found = report(&replicas[0]).await?;
            ensure!(
                found.exit_code() == AGREED && !found.is_pending(),
                "{}",
                found.text()
            );
            Ok(Some(()))
        })
        .await?;
        let map = [
            "-n",
            NAMESPACE,
            "get",
            "configmap",
            "manifold-shadow",
            "-o",
            "jsonpath={.data.verdict}",
        ];
        until("the report is written", PATIENCE, POLL * 10, || async {
            let verdict = control_plane.kubectl(&map).await?;
            ensure!(verdict == "agreed", "{verdict:?}");
            Ok(Some(()))
        })
        .await?;
        kcm.process().kill();
        until("nobody is in charge", PATIENCE, POLL * 10, || async {
            let found = report(&replicas[0]).await?;
            ensure!(found.exit_code() == UNDECIDED, "{}", found.text());
            Ok(Some(()))
        })
        .await?;
        end(&mut replicas).await
    });
}
