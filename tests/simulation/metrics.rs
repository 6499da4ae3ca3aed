//! The metrics APIs. A workload says what load there is (`World::serve` under [`load`]); an external metric
//! is that load, and the resource metrics of pods are it, spread evenly over those that are ready.

use controllers_kit::{Answer, Object, pods, testing::World};
use kubernetes_proto::core::Pod;
use serde_json::{Value, json};

use crate::selection::Selection;

/// Where a workload keeps a load.
pub fn load(namespace: &str, name: &str) -> String {
    format!("/load/{namespace}/{name}")
}

/// Sets a load.
pub fn set(world: &mut World, namespace: &str, name: &str, value: i64) {
    let answer = Answer::Object(std::sync::Arc::new(value.into()));
    world.serve(&load(namespace, name), answer);
}

fn present(world: &World, namespace: &str, name: &str) -> Option<i64> {
    match world.served(&load(namespace, name))? {
        Answer::Object(value) => value.as_i64(),
        Answer::Missing | Answer::NotFound(_) | Answer::Failed(_) => None,
    }
}

/// The namespace and the name of an external metric's path.
pub fn external(path: &str) -> Option<(&str, &str)> {
    path.strip_prefix("/apis/external.metrics.k8s.io/v1beta1/namespaces/")?
        .split_once('/')
}

fn resource(path: &str) -> Option<&str> {
    path.strip_prefix("/apis/metrics.k8s.io/v1beta1/namespaces/")?
        .strip_suffix("/pods")
}

/// What a metrics API says; `None` where the path is another's, and within it where there is no such metric.
pub fn answer(world: &World, path: &str, query: &[(String, String)]) -> Option<Option<Value>> {
    let now = world.now().to_string();
    if let Some((namespace, name)) = external(path) {
        let value = present(world, namespace, name);
        return Some(value.map(|value| {
            json!({
                "kind": "ExternalMetricValueList",
                "apiVersion": "external.metrics.k8s.io/v1beta1",
                "metadata": {},
                "items": [{"metricName": name, "metricLabels": {}, "timestamp": now,
                           "value": value.to_string()}],
            })
        }));
    }
    let namespace = resource(path)?;
    let selector = query
        .iter()
        .find(|(name, _)| name == "labelSelector")
        .map_or("", |(_, value)| value);
    Some(usage(world, namespace, selector, &now))
}

/// The load is kept under the value of the pods' label `app`.
fn usage(world: &World, namespace: &str, selector: &str, now: &str) -> Option<Value> {
    let selection = Selection::parse(selector).ok()?;
    let ready: Vec<_> = world
        .all::<Pod>()
        .into_iter()
        .filter(|pod| {
            let meta = Object::metadata(&**pod);
            *meta.namespace == *namespace
                && selection.matches(&meta.labels)
                && !meta.is_terminating()
                && pods::is_ready(pod)
        })
        .collect();
    let app = ready
        .first()
        .and_then(|pod| Object::metadata(&**pod).label("app"))
        .unwrap_or_default();
    let share = present(world, namespace, app).unwrap_or(0)
        / i64::try_from(ready.len()).unwrap_or(1).max(1);
    let items: Vec<Value> = ready
        .iter()
        .map(|pod| {
            json!({
                "metadata": {"name": &*Object::metadata(&**pod).name, "namespace": namespace},
                "timestamp": now,
                "window": "1s",
                "containers": [{"name": "app", "usage": {"cpu": format!("{share}m"), "memory": "1Mi"}}],
            })
        })
        .collect();
    Some(json!({
        "kind": "PodMetricsList",
        "apiVersion": "metrics.k8s.io/v1beta1",
        "metadata": {},
        "items": items,
    }))
}
