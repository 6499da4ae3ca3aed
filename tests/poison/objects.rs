//! The objects: each field at the end of what the API's validation admits.

use serde_json::{Map, Value, json};

/// Objects that are created together.
pub(super) struct Poison {
    /// What they try.
    pub(super) name: &'static str,
    /// Manifests, in the order in which they are created.
    pub(super) objects: Vec<Value>,
    /// Statuses that are written afterwards: kind, name, status.
    pub(super) statuses: Vec<(&'static str, &'static str, Value)>,
    /// What is deleted afterwards, as kubectl names it.
    pub(super) deleted: Vec<&'static str>,
}

fn poison(name: &'static str, objects: Vec<Value>) -> Poison {
    Poison {
        name,
        objects,
        statuses: Vec::new(),
        deleted: Vec::new(),
    }
}

fn object(api_version: &str, kind: &str, name: &str, spec: &Value) -> Value {
    json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": spec})
}

fn template(app: &str) -> Value {
    json!({
        "metadata": {"labels": {"app": app}},
        "spec": {"containers": [{"name": "app", "image": "example/app:1"}]},
    })
}

fn once(app: &str) -> Value {
    let mut template = template(app);
    template["spec"]["restartPolicy"] = json!("Never");
    template
}

fn selector(app: &str) -> Value {
    json!({"matchLabels": {"app": app}})
}

/// As many entries of some shape as asked for, under numbered keys.
fn numbered(count: usize, prefix: &str, value: &Value) -> Map<String, Value> {
    (0..count)
        .map(|number| (format!("{prefix}{number}"), value.clone()))
        .collect()
}

/// All of them.
pub(super) fn poisons() -> Vec<Poison> {
    // Pods come first: later the workloads have used up the namespace's quota.
    let mut all = pods();
    all.extend(workloads());
    all.extend(batch());
    all.extend(the_rest());
    all
}

fn pods() -> Vec<Poison> {
    vec![
        Poison {
            deleted: vec!["pod/patient"],
            ..poison(
                "a pod that may take 2^63-1 seconds to end",
                vec![json!({
                    "apiVersion": "v1", "kind": "Pod",
                    "metadata": {"name": "patient", "labels": {"app": "ordered"}, "finalizers": ["example.com/never"]},
                    "spec": {
                        "terminationGracePeriodSeconds": i64::MAX, "activeDeadlineSeconds": i32::MAX,
                        "containers": [{"name": "app", "image": "example/app:1"}],
                    },
                })],
            )
        },
        poison(
            "a pod that asks for 9 E bytes and 2^63-1 processors",
            vec![json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "greedy"},
                "spec": {"containers": (0..2).map(|n| json!({
                    "name": format!("app-{n}"), "image": "example/app:1",
                    "resources": {"requests": {"memory": "9223372036854775807", "cpu": "9223372036854775807"}},
                })).collect::<Vec<_>>()},
            })],
        ),
    ]
}

fn workloads() -> Vec<Poison> {
    vec![
        poison(
            "a StatefulSet of 2^31-1 pods, one after the other",
            vec![object(
                "apps/v1",
                "StatefulSet",
                "ordered",
                &json!({
                    "replicas": i32::MAX, "minReadySeconds": i32::MAX, "revisionHistoryLimit": i32::MAX,
                    "serviceName": "", "selector": selector("ordered"), "template": template("ordered"),
                }),
            )],
        ),
        poison(
            "a StatefulSet of 2^31-1 pods at once, from the last ordinal on",
            vec![object(
                "apps/v1",
                "StatefulSet",
                "parallel",
                &json!({
                    "replicas": i32::MAX, "podManagementPolicy": "Parallel", "serviceName": "",
                    "ordinals": {"start": i32::MAX}, "selector": selector("parallel"), "template": template("parallel"),
                    "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": i32::MAX}},
                }),
            )],
        ),
        poison(
            "a Deployment of 2^31-1 pods with a surge of as many",
            vec![object(
                "apps/v1",
                "Deployment",
                "surge",
                &json!({
                    "replicas": i32::MAX, "minReadySeconds": i32::MAX - 1, "progressDeadlineSeconds": i32::MAX,
                    "revisionHistoryLimit": i32::MAX, "selector": selector("surge"), "template": template("surge"),
                    "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": i32::MAX, "maxUnavailable": i32::MAX}},
                }),
            )],
        ),
        poison(
            "a ReplicaSet and a ReplicationController of 2^31-1 pods",
            vec![
                object(
                    "apps/v1",
                    "ReplicaSet",
                    "many",
                    &json!({
                        "replicas": i32::MAX, "minReadySeconds": i32::MAX, "selector": selector("many"),
                        "template": template("many"),
                    }),
                ),
                object(
                    "v1",
                    "ReplicationController",
                    "many",
                    &json!({
                        "replicas": i32::MAX, "minReadySeconds": i32::MAX, "selector": {"app": "many-rc"},
                        "template": template("many-rc"),
                    }),
                ),
            ],
        ),
        poison(
            "a DaemonSet with every number at its end",
            vec![object(
                "apps/v1",
                "DaemonSet",
                "daemon",
                &json!({
                    "minReadySeconds": i32::MAX, "revisionHistoryLimit": i32::MAX, "selector": selector("daemon"),
                    "template": template("daemon"),
                    "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": i32::MAX}},
                }),
            )],
        ),
        poison(
            "budgets that ask for 2^31-1 pods",
            vec![
                object(
                    "policy/v1",
                    "PodDisruptionBudget",
                    "least",
                    &json!({"minAvailable": i32::MAX, "selector": {}}),
                ),
                object(
                    "policy/v1",
                    "PodDisruptionBudget",
                    "most",
                    &json!({"maxUnavailable": i32::MAX, "selector": selector("ordered")}),
                ),
            ],
        ),
        poison(
            "a selector of 4,000 values",
            vec![object(
                "apps/v1",
                "ReplicaSet",
                "choosy",
                &json!({
                    "replicas": 1, "template": template("choosy"),
                    "selector": {"matchExpressions": [{
                        "key": "app", "operator": "In",
                        "values": (0..4_000).map(|n| format!("value-{n}")).chain(["choosy".to_owned()])
                            .collect::<Vec<_>>(),
                    }]},
                }),
            )],
        ),
    ]
}

fn batch() -> Vec<Poison> {
    let cron = |name: &str, schedule: &str| {
        object(
            "batch/v1",
            "CronJob",
            name,
            &json!({
                "schedule": schedule, "startingDeadlineSeconds": i64::MAX, "timeZone": "Asia/Kathmandu",
                "successfulJobsHistoryLimit": i32::MAX, "failedJobsHistoryLimit": i32::MAX,
                "jobTemplate": {"spec": {"template": once("cron")}},
            }),
        )
    };
    vec![
        poison(
            "a Job of 2^31-1 completions at once",
            vec![object(
                "batch/v1",
                "Job",
                "many",
                &json!({
                    "completions": i32::MAX, "parallelism": i32::MAX, "backoffLimit": i32::MAX,
                    "activeDeadlineSeconds": i32::MAX, "ttlSecondsAfterFinished": i32::MAX, "template": once("many-job"),
                }),
            )],
        ),
        poison(
            "an Indexed Job of 2^31-1 indexes",
            vec![object(
                "batch/v1",
                "Job",
                "indexed",
                &json!({
                    "completionMode": "Indexed", "completions": i32::MAX, "parallelism": 100_000,
                    "template": once("indexed"),
                }),
            )],
        ),
        poison(
            "an Indexed Job with a back-off limit for each of 100,000 indexes, whose status names every second one",
            vec![object(
                "batch/v1",
                "Job",
                "per-index",
                &json!({
                    "completionMode": "Indexed", "completions": 100_000, "parallelism": 100_000,
                    "backoffLimitPerIndex": i32::MAX, "maxFailedIndexes": 100_000, "template": once("per-index"),
                }),
            )],
        ),
        Poison {
            statuses: vec![
                (
                    "cronjob",
                    "long-ago",
                    json!({"lastScheduleTime": "0001-01-01T00:00:01Z"}),
                ),
                (
                    "cronjob",
                    "leap-day",
                    json!({"lastScheduleTime": "9999-12-31T23:59:59Z"}),
                ),
            ],
            ..poison(
                "CronJobs that ran last in the years 1 and 9999",
                vec![
                    cron("long-ago", "* * * * *"),
                    cron("leap-day", "0 0 29 2 *"),
                ],
            )
        },
    ]
}

fn the_rest() -> Vec<Poison> {
    let references: Vec<Value> = (0..7_000)
        .map(|number| {
            json!({
                "apiVersion": "v1", "kind": "ConfigMap", "name": format!("nobody-{number}"),
                "uid": format!("00000000-0000-0000-0000-{number:012}"), "blockOwnerDeletion": true,
            })
        })
        .collect();
    let addresses: Vec<Value> = (0..20_000)
        .map(|n| json!({"ip": format!("10.{}.{}.{}", n / 65_536, n / 256 % 256, n % 256)}))
        .collect();
    let mut hard = numbered(5_000, "count/things-", &json!("9223372036854775807"));
    let hard: Map<String, Value> = std::mem::take(&mut hard)
        .into_iter()
        .map(|(name, value)| (format!("{name}.example.com"), value))
        .collect();
    vec![
        poison(
            "a ConfigMap with 7,000 owners that do not exist",
            vec![json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": "orphan", "ownerReferences": references},
            })],
        ),
        poison(
            "a ConfigMap of 1 MB and one with 250 kB of annotations",
            vec![
                json!({
                    "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "large"},
                    "data": {"text": "x".repeat(1_000_000)},
                }),
                json!({
                    "apiVersion": "v1", "kind": "ConfigMap",
                    "metadata": {"name": "annotated", "annotations": numbered(2_500, "note-", &json!("x".repeat(80)))},
                }),
            ],
        ),
        poison(
            "Endpoints of 20,000 addresses to be mirrored",
            vec![
                object(
                    "v1",
                    "Service",
                    "mirrored",
                    &json!({"ports": [{"port": 80}], "clusterIP": "None"}),
                ),
                json!({
                    "apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "mirrored"},
                    "subsets": [{"addresses": addresses, "ports": [{"port": 80}]}],
                }),
            ],
        ),
        poison(
            "a quota of 5,000 limits",
            vec![object(
                "v1",
                "ResourceQuota",
                "wide",
                &json!({ "hard": hard }),
            )],
        ),
        poison(
            "an autoscaler from 1 to 2^31-1 pods with every window at its end",
            vec![object(
                "autoscaling/v2",
                "HorizontalPodAutoscaler",
                "wide",
                &json!({
                    "minReplicas": 1, "maxReplicas": i32::MAX,
                    "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "surge"},
                    "metrics": [
                        {"type": "Resource", "resource": {"name": "cpu", "target": {
                            "type": "Utilization", "averageUtilization": i32::MAX}}},
                        {"type": "External", "external": {"metric": {"name": "queue"}, "target": {
                            "type": "Value", "value": "9223372036854775807"}}},
                    ],
                    "behavior": {
                        "scaleUp": {"stabilizationWindowSeconds": 3_600, "policies": [
                            {"type": "Percent", "value": i32::MAX, "periodSeconds": 1_800}]},
                        "scaleDown": {"stabilizationWindowSeconds": 3_600, "policies": [
                            {"type": "Pods", "value": i32::MAX, "periodSeconds": 1_800}]},
                    },
                }),
            )],
        ),
        poison(
            "a Lease renewed in the year 9999 that changed hands 2^31-1 times",
            vec![object(
                "coordination.k8s.io/v1",
                "Lease",
                "eternal",
                &json!({
                    "holderIdentity": "x".repeat(1_000), "leaseDurationSeconds": i32::MAX, "leaseTransitions": i32::MAX,
                    "acquireTime": "9999-12-31T23:59:59.999999Z", "renewTime": "9999-12-31T23:59:59.999999Z",
                }),
            )],
        ),
    ]
}
