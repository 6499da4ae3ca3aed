//! Autoscalers under a load that rises and falls.

use std::time::Duration;

use controllers_kit::testing::{DeploymentBuild, WorkloadBuild, deployment};
use kubernetes_proto::{Object, autoscaling::HorizontalPodAutoscaler};
use serde_json::{Value, json};

use super::Making;
use crate::metrics;

/// From the rise to the fall: so long that the new size has been recommended by then.
const PLATEAU: Duration = Duration::from_secs(14);

/// An autoscaler of the Deployment of its name.
fn autoscaler(name: &str, spec: &Value) -> HorizontalPodAutoscaler {
    let mut hpa: HorizontalPodAutoscaler =
        serde_json::from_value(json!({"spec": spec})).expect("an autoscaler");
    let spec = hpa.spec.get_or_insert_default();
    let target = spec.scale_target_ref.get_or_insert_default();
    target.api_version = "apps/v1".to_owned();
    target.kind = "Deployment".to_owned();
    target.name = name.to_owned();
    let meta = hpa.metadata_mut();
    meta.name = name.into();
    meta.namespace = "default".into();
    meta.uid = format!("uid-horizontalpodautoscalers-default-{name}")
        .as_str()
        .into();
    hpa
}

pub(super) fn autoscaled(making: &mut Making) {
    // The windows end amid faults.
    making.workload.faults = Duration::from_secs(75);
    for name in ["queue", "usage"] {
        making.put(
            deployment(name)
                .replicas(2)
                .selects(&[("app", name)])
                .history(0),
        );
        metrics::set(&mut making.workload.world, "default", name, 20);
    }
    let pods = |count: i32, seconds: i32| json!([{"type": "Pods", "value": count, "periodSeconds": seconds}]);
    let (up, down) = (making.count(2, 3), making.count(2, 4));
    making.put(autoscaler(
        "queue",
        &json!({
            "minReplicas": 1,
            "maxReplicas": 8,
            "metrics": [{"type": "External", "external": {
                "metric": {"name": "queue"},
                "target": {"type": "AverageValue", "averageValue": "10"},
            }}],
            "behavior": {
                "scaleUp": {"policies": pods(up, 15)},
                "scaleDown": {"policies": pods(down, 20)},
            },
        }),
    ));
    making.put(autoscaler(
        "usage",
        &json!({
            "minReplicas": 1,
            "maxReplicas": 6,
            "metrics": [{"type": "Resource", "resource": {
                "name": "cpu",
                "target": {"type": "AverageValue", "averageValue": "10m"},
            }}],
        }),
    ));
    let set = |making: &mut Making, name: &'static str, value: i64| {
        making.then(move |world| metrics::set(world, "default", name, value));
    };
    let high = i64::from(making.count(6, 8)) * 10;
    set(making, "queue", high);
    set(making, "usage", 50);
    making.at += PLATEAU;
    let middle = i64::from(making.count(3, 5)) * 10;
    set(making, "queue", middle);
    set(making, "usage", 25);
    making.at += PLATEAU;
    set(making, "queue", 20);
    set(making, "usage", 10);
    // Once more before the window is over, in some variants.
    if making.dice.chance(500) {
        set(making, "queue", 60);
        making.at += PLATEAU;
        set(making, "queue", 20);
    }
}
