//! Each type of metric: the query, the meaning of the answer, the report.

use controllers_kit::Answer;
use serde_json::{Value, json};

use super::parts::{Life, asked, autoscaler, usage, world};

const CUSTOM: &str = "/apis/custom.metrics.k8s.io/v1beta2/namespaces/default";
const OLD_CUSTOM: &str = "/apis/custom.metrics.k8s.io/v1beta1/namespaces/default";

fn items(items: &Value) -> Value {
    json!({"items": items})
}

fn of_pods(amounts: &[&str]) -> Value {
    let all: Vec<Value> = amounts
        .iter()
        .enumerate()
        .map(|(number, amount)| {
            json!({"describedObject": {"kind": "Pod", "name": format!("web-{number}")},
                   "timestamp": "2026-03-02T11:59:45Z", "value": amount})
        })
        .collect();
    items(&Value::from(all))
}

/// An autoscaler of two pods with one metric, after its first evaluation.
#[allow(
    clippy::needless_pass_by_value,
    reason = "cases read better with their JSON inline"
)]
fn evaluated(metric: Value, path: &str, answer: Value) -> Life {
    let mut life = Life::of(
        world(2)
            .with(autoscaler(json!([metric])))
            .serving(path, answer),
    );
    life.pass(16);
    life
}

#[test]
fn pods_metrics() {
    let metric = json!({"type": "Pods", "pods": {
        "metric": {"name": "requests", "selector": {"matchLabels": {"verb": "GET"}}},
        "target": {"type": "AverageValue", "averageValue": "10"}
    }});
    let path = |base: &str| {
        format!("{base}/pods/*/requests?labelSelector=app%3Dweb&metricLabelSelector=verb%3DGET")
    };
    let life = evaluated(metric, &path(CUSTOM), of_pods(&["20", "15"]));
    assert_eq!(life.size(), 4);
    assert_eq!(
        life.world.events(),
        ["Normal SuccessfulRescale New size: 4; reason: pods metric requests above target"]
    );
    assert_eq!(
        serde_json::to_value(&life.hpa().status.as_ref().unwrap().current_metrics[0]).unwrap(),
        json!({"type": "Pods", "pods": {
            "metric": {"name": "requests", "selector": {"matchLabels": {"verb": "GET"}}},
            "current": {"averageValue": "17500m"}
        }})
    );
}

/// An autoscaler of two pods with these `Pods` metrics, where these group versions are served.
fn of_custom(metrics: &[&str], served: &[&str]) -> Life {
    let metrics = metrics.iter().map(|name| {
        json!({"type": "Pods", "pods": {
            "metric": {"name": name}, "target": {"type": "AverageValue", "averageValue": "10"}
        }})
    });
    let metrics = Value::from_iter(metrics);
    let world = world(2).with_group_versions(served);
    Life::of(world.with(autoscaler(metrics)))
}

fn custom_path(base: &str, metric: &str) -> String {
    format!("{base}/pods/*/{metric}?labelSelector=app%3Dweb")
}

#[test]
fn the_version_of_the_custom_metrics_api_is_the_first_known_that_the_server_prefers() {
    const OTHER: &str = "custom.metrics.k8s.io/v2";
    const OLD: &str = "custom.metrics.k8s.io/v1beta1";
    const NEW: &str = "custom.metrics.k8s.io/v1beta2";
    for (served, expected) in [
        (&[OLD][..], OLD_CUSTOM),
        (&[NEW], CUSTOM),
        (&[OTHER, NEW, OLD], CUSTOM),
        (&["apps/v1", OLD, NEW], OLD_CUSTOM),
    ] {
        let mut life = of_custom(&["requests"], served);
        let path = custom_path(expected, "requests");
        life.world = life.world.serving(&path, of_pods(&["20", "15"]));
        life.pass(16);
        assert_eq!(life.size(), 4, "{served:?}");
        assert!(asked(&life.world, &life.memory).contains(&path));
    }
    for (served, expected) in [
        (
            &["apps/v1"][..],
            "no custom metrics API (custom.metrics.k8s.io) registered",
        ),
        (&[OTHER], "no known available metric versions found"),
    ] {
        let mut life = of_custom(&["requests"], served);
        life.pass(16);
        assert_eq!(
            life.world.events()[0],
            format!(
                "Warning FailedGetPodsMetric unable to get metric requests: unable to fetch metrics from custom \
                 metrics API: {expected}"
            )
        );
    }
}

#[test]
fn a_custom_metric_without_data_is_its_own_failure_alone_in_every_period() {
    let mut life = of_custom(&["a", "b"], &["custom.metrics.k8s.io/v1beta1"]);
    let path = custom_path(OLD_CUSTOM, "a");
    life.world = life.world.serving(&path, of_pods(&["20", "15"]));
    for (period, size) in [4, 5, 6, 7, 8].into_iter().enumerate() {
        life.pass(if period == 0 { 16 } else { 15 });
        assert!(
            life.conditions()
                .contains(&"ScalingActive=True ValidMetricFound".to_owned()),
            "{:?} in period {period}",
            life.conditions()
        );
        assert_eq!(life.size(), size, "in period {period}");
        // The next period needs one replica more.
        life.follow();
        let each = format!("{}m", 10_000 * (size + 1) / size);
        let amounts = vec![&*each; usize::try_from(size).unwrap()];
        life.world = life.world.serving(&path, of_pods(&amounts));
    }
}

#[test]
fn the_adapter_s_own_words_for_a_missing_metric_are_reported() {
    for (answer, expected) in [
        (
            "the server could not find the metric requests for pods",
            "the server could not find the metric requests for pods",
        ),
        (
            "the server could not find the requested resource",
            "the server could not find the requested resource (get pods.custom.metrics.k8s.io * requests)",
        ),
    ] {
        let mut life = of_custom(&["requests"], &["custom.metrics.k8s.io/v1beta1"]);
        let path = custom_path(OLD_CUSTOM, "requests");
        life.world.serve(&path, Answer::NotFound(answer.to_owned()));
        life.pass(16);
        assert_eq!(
            life.world.events()[0],
            format!(
                "Warning FailedGetPodsMetric unable to get metric requests: unable to fetch metrics from custom \
                 metrics API: {expected}"
            )
        );
    }
}

#[test]
fn object_metrics() {
    let metric = |target: Value| {
        json!({"type": "Object", "object": {
            "describedObject": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db"},
            "metric": {"name": "sessions"},
            "target": target
        }})
    };
    let path = format!("{CUSTOM}/statefulsets.apps/db/sessions");
    let one = items(&json!([{"describedObject": {"name": "db"}, "value": "30"}]));
    let life = evaluated(
        metric(json!({"type": "Value", "value": "20"})),
        &path,
        one.clone(),
    );
    assert_eq!(life.size(), 3);
    assert_eq!(
        life.world.events(),
        ["Normal SuccessfulRescale New size: 3; reason: StatefulSet metric sessions above target"]
    );
    let life = evaluated(
        metric(json!({"type": "AverageValue", "averageValue": "10"})),
        &path,
        one,
    );
    assert_eq!(life.size(), 3);
    assert_eq!(
        serde_json::to_value(&life.hpa().status.as_ref().unwrap().current_metrics[0]).unwrap()["object"]
            ["current"],
        json!({"averageValue": "15"})
    );
    // Exactly one value is wanted.
    let two = items(&json!([{"value": "1"}, {"value": "2"}]));
    let life = evaluated(metric(json!({"type": "Value", "value": "20"})), &path, two);
    assert_eq!(
        life.world.events(),
        [
            "Warning FailedGetObjectMetric unable to get metric sessions: StatefulSet on default db/unable to fetch \
             metrics from custom metrics API: the custom metrics API server returned 2 results when we asked for \
             exactly one",
            "Warning FailedComputeMetricsReplicas invalid metrics (1 invalid out of 1), first error is: failed to get \
             object metric value: unable to get metric sessions: StatefulSet on default db/unable to fetch metrics \
             from custom metrics API: the custom metrics API server returned 2 results when we asked for exactly one",
        ]
    );
    let life = evaluated(metric(json!({"type": "Value"})), &path, json!({}));
    assert_eq!(
        life.message("ScalingActive"),
        "the HPA was unable to compute the replica count: invalid object metric source: neither a value target nor an \
         average value target was set"
    );
}

#[test]
fn a_metric_of_the_namespace_has_a_place_of_its_own() {
    let metric = json!({"type": "Object", "object": {
        "describedObject": {"apiVersion": "v1", "kind": "Namespace", "name": "whatever"},
        "metric": {"name": "load"}, "target": {"type": "Value", "value": "1"}
    }});
    let path = format!("{CUSTOM}/metrics/load");
    let life = evaluated(metric, &path, items(&json!([{"value": "1500m"}])));
    assert_eq!(life.size(), 3);
}

#[test]
fn external_metrics() {
    let metric = |target: Value| {
        json!({"type": "External", "external": {
            "metric": {"name": "queue/depth", "selector": {"matchLabels": {"q": "a"}}}, "target": target
        }})
    };
    let path = "/apis/external.metrics.k8s.io/v1beta1/namespaces/default/queue%2Fdepth?labelSelector=q%3Da";
    let answer = items(&json!([{"value": "10"}, {"value": "20"}]));
    let by_value = metric(json!({"type": "Value", "value": "20"}));
    let life = evaluated(by_value.clone(), path, answer.clone());
    assert_eq!(life.size(), 3);
    assert_eq!(
        life.world.events(),
        [
            "Normal SuccessfulRescale New size: 3; reason: external metric queue/depth(&LabelSelector{MatchLabels:\
          map[string]string{q: a,},MatchExpressions:[]LabelSelectorRequirement{},}) above target"
        ]
    );
    let life = evaluated(
        metric(json!({"type": "AverageValue", "averageValue": "10"})),
        path,
        answer,
    );
    assert_eq!(life.size(), 3);
    let life = evaluated(by_value, path, items(&json!([])));
    assert_eq!(
        life.message("ScalingActive"),
        "the HPA was unable to compute the replica count: unable to get external metric default/queue/depth/\
         &LabelSelector{MatchLabels:map[string]string{q: a,},MatchExpressions:[]LabelSelectorRequirement{},}: no \
         metrics returned from external metrics API"
    );
}

#[test]
fn resource_metrics_as_an_average_and_of_one_container() {
    let path = super::parts::USAGE;
    let metric = json!({"type": "Resource", "resource": {
        "name": "memory", "target": {"type": "AverageValue", "averageValue": "32Mi"}
    }});
    let life = evaluated(metric, path, usage(&[0, 0]));
    assert_eq!(life.size(), 4);
    assert_eq!(
        serde_json::to_value(&life.hpa().status.as_ref().unwrap().current_metrics[0]).unwrap()["resource"]
            ["current"],
        json!({"averageValue": "64Mi"})
    );
    let metric = |container: &str| {
        json!({"type": "ContainerResource", "containerResource": {
            "name": "cpu", "container": container,
            "target": {"type": "Utilization", "averageUtilization": 50}
        }})
    };
    let life = evaluated(metric("app"), path, usage(&[1000, 1000]));
    assert_eq!(life.size(), 4);
    assert_eq!(
        life.world.events(),
        [
            "Normal SuccessfulRescale New size: 4; reason: cpu container resource utilization (percentage of request) \
          above target"
        ]
    );
    let life = evaluated(metric("other"), path, usage(&[1000, 1000]));
    assert_eq!(
        life.world.events()[0],
        "Warning FailedGetContainerResourceMetric failed to get cpu utilization: did not receive metrics for targeted \
         pods (pods might be unready)"
    );
}

#[test]
fn a_type_that_nobody_knows_is_the_spec_s_fault() {
    let life = evaluated(json!({"type": "Moon"}), "/nothing", json!({}));
    assert_eq!(
        life.world.events(),
        [
            "Warning InvalidMetricSourceType unknown metric source type \"Moon\"",
            "Warning FailedComputeMetricsReplicas invalid metrics (1 invalid out of 1), first error is: unknown metric \
             source type \"Moon\""
        ]
    );
}

#[test]
fn a_failing_api_is_reported_in_its_own_words() {
    let mut life = Life::of(world(2).with(autoscaler(json!([super::parts::queue()]))));
    life.world.serve(
        super::parts::QUEUE,
        Answer::Failed("no answer within 10 s".into()),
    );
    life.pass(16);
    assert_eq!(
        life.message("ScalingActive"),
        "the HPA was unable to compute the replica count: unable to get external metric default/queue/nil: unable to \
         fetch metrics from external metrics API: no answer within 10 s"
    );
}
