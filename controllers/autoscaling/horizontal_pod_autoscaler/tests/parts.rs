//! A Deployment, its pods, an autoscaler of it, and metrics.

use controllers_kit::{
    Plan, SignedDuration, Snapshot,
    testing::{Common, PodBuild, WorkloadBuild, World, deployment, pod},
};
use kubernetes_proto::{
    Object,
    apps::Deployment,
    autoscaling::{HorizontalPodAutoscaler, HorizontalPodAutoscalerCondition},
    core::{Container, Pod},
};
use serde_json::{Value, json};

use super::{
    super::{HorizontalPodAutoscalers, Memory},
    formula::asking,
};

/// The path of resource usage of `app=web`.
pub(super) const USAGE: &str =
    "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods?labelSelector=app%3Dweb";
/// The path of the external metric `queue`.
pub(super) const QUEUE: &str = "/apis/external.metrics.k8s.io/v1beta1/namespaces/default/queue";

/// An autoscaler `web` of Deployment `web`, 1 to 10 replicas, with these metrics.
#[allow(
    clippy::needless_pass_by_value,
    reason = "cases read better with their JSON inline"
)]
pub(super) fn autoscaler(metrics: Value) -> HorizontalPodAutoscaler {
    let mut hpa: HorizontalPodAutoscaler = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "uid-hpa-web"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "minReplicas": 1,
            "maxReplicas": 10,
            "metrics": metrics,
        },
        "status": {},
    }))
    .unwrap();
    hpa.metadata_mut().creation_timestamp = None;
    hpa
}

/// 100 % of the requested CPU.
pub(super) fn cpu() -> Value {
    json!({"type": "Resource", "resource": {
        "name": "cpu", "target": {"type": "Utilization", "averageUtilization": 100}
    }})
}

/// One replica for every 10 in the queue.
pub(super) fn queue() -> Value {
    json!({"type": "External", "external": {
        "metric": {"name": "queue"}, "target": {"type": "AverageValue", "averageValue": "10"}
    }})
}

/// A Deployment with as many pods as it wants, each asking for one CPU.
pub(super) fn world(replicas: i32) -> World {
    let web: Deployment = deployment("web").replicas(replicas);
    let mut web = web;
    web.status.get_or_insert_default().replicas = replicas;
    let mut world = World::at("12:00:00")
        .without_kubelets()
        .with_group_versions(&["custom.metrics.k8s.io/v1beta2"])
        .with(web);
    for number in 0..replicas {
        world.put(running(&format!("web-{number}")));
    }
    world
}

/// A pod that has been running for an hour.
pub(super) fn running(name: &str) -> Pod {
    let mut pod = pod(name)
        .label("app", "web")
        .ready("11:01:00")
        .phase("Running");
    pod.status.as_mut().unwrap().start_time = Some(controllers_kit::testing::at("11:00:00").into());
    pod.spec.get_or_insert_default().containers = vec![Container {
        name: "app".into(),
        resources: Some(asking("cpu", "1")),
        ..Container::default()
    }];
    pod
}

/// Usage in thousandths of a CPU, pod by pod.
pub(super) fn usage(amounts: &[i64]) -> Value {
    let items: Vec<Value> = amounts
        .iter()
        .enumerate()
        .map(|(number, amount)| {
            json!({
                "metadata": {"name": format!("web-{number}"), "namespace": "default"},
                "timestamp": "2026-03-02T11:59:45Z",
                "window": "30s",
                "containers": [{"name": "app", "usage": {"cpu": format!("{amount}m"), "memory": "64Mi"}}]
            })
        })
        .collect();
    json!({"kind": "PodMetricsList", "items": items})
}

/// An external metric's values.
pub(super) fn values(values: &[&str]) -> Value {
    let items: Vec<Value> = values
        .iter()
        .map(|value| json!({"metricName": "queue", "value": value}))
        .collect();
    json!({"kind": "ExternalMetricValueList", "items": items})
}

/// An autoscaler's life in a world: evaluated once a period, its plans applied, its outcomes learned.
pub(super) struct Life {
    pub world: World,
    pub memory: Memory,
}

impl Life {
    /// Of a world with an autoscaler that has just been seen for the first time.
    pub(super) fn of(world: World) -> Self {
        Self {
            world,
            memory: Memory::default(),
        }
    }

    fn plan(&mut self) -> Plan {
        self.world
            .plan_with::<HorizontalPodAutoscalers>("web", &mut self.memory)
            .unwrap_or_else(|refusal| panic!("it can't be planned: {refusal}"))
    }

    /// One plan, applied and learned from; its actions.
    pub(super) fn step(&mut self) -> Vec<String> {
        let plan = self.plan();
        let verbs = plan.verbs();
        self.apply(&plan);
        verbs
    }

    pub(super) fn apply(&mut self, plan: &Plan) {
        use controllers_kit::Controller as _;
        let applied = self.world.apply(plan);
        let flags = self.world.flags([&HorizontalPodAutoscalers::describe()]);
        let controller = HorizontalPodAutoscalers::new(&flags);
        for (action, result) in &applied.0 {
            let result = result.as_ref().cloned();
            let outcome = controllers_kit::Outcome { action, result };
            controller.learn(&outcome, &mut self.memory);
        }
        assert!(applied.failures().is_empty(), "{:?}", applied.failures());
    }

    /// Through some seconds, second by second.
    pub(super) fn pass(&mut self, seconds: i64) {
        for _ in 0..seconds {
            self.world = self.world.later(1);
            // A bounded number of rounds of queries.
            for _ in 0..6 {
                let plan = self.plan();
                self.apply(&plan);
                if plan.requeue != controllers_kit::Requeue::Now {
                    break;
                }
            }
        }
    }

    /// Another owner, who knows nothing.
    pub(super) fn crash(&mut self) {
        self.memory = Memory::default();
    }

    /// Another owner, after a handoff.
    pub(super) fn hand_over(&mut self) {
        let text = serde_json::to_string(&self.memory).unwrap();
        self.memory = serde_json::from_str(&text).unwrap();
    }

    pub(super) fn size(&self) -> i32 {
        self.world
            .get::<Deployment>("web")
            .spec
            .as_ref()
            .unwrap()
            .replicas
            .unwrap()
    }

    pub(super) fn hpa(&self) -> std::sync::Arc<HorizontalPodAutoscaler> {
        self.world.get("web")
    }

    /// As `AbleToScale=True ReadyForNewScale`, in their order.
    pub(super) fn conditions(&self) -> Vec<String> {
        self.each_condition(|condition| {
            format!(
                "{}={} {}",
                condition.r#type, condition.status, condition.reason
            )
        })
    }

    /// The message of a condition.
    pub(super) fn message(&self, r#type: &str) -> String {
        self.each_condition(|condition| {
            if condition.r#type == r#type {
                condition.message.clone()
            } else {
                String::new()
            }
        })
        .concat()
    }

    fn each_condition(
        &self,
        show: impl Fn(&HorizontalPodAutoscalerCondition) -> String,
    ) -> Vec<String> {
        self.hpa()
            .status
            .iter()
            .flat_map(|status| &status.conditions)
            .map(show)
            .collect()
    }

    /// The Deployment gets as many pods as it wants, and reports them.
    pub(super) fn follow(&mut self) {
        let size = self.size();
        for pod in self.world.all::<Pod>() {
            let name = Object::metadata(&*pod).name.to_string();
            let number: i32 = name.rsplit('-').next().unwrap().parse().unwrap();
            if number >= size {
                self.world.vanish::<Pod>(&name);
            }
        }
        for number in 0..size {
            let name = format!("web-{number}");
            if self.world.find::<Pod>(&name).is_none() {
                self.world.put(running(&name));
            }
        }
        self.world.change::<Deployment>("web", |web| {
            web.status.get_or_insert_default().replicas = size;
        });
    }
}

/// A world's queries of an autoscaler, for an evaluation that is due.
pub(super) fn asked(world: &World, memory: &Memory) -> Vec<String> {
    use controllers_kit::Controller as _;
    let flags = world.flags([&HorizontalPodAutoscalers::describe()]);
    let controller = HorizontalPodAutoscalers::new(&flags);
    let none = controllers_kit::Answers::new();
    let later = world.now() + SignedDuration::from_secs(15);
    let seen = Snapshot::new(world, &none, later);
    controller
        .ask(&controllers_kit::Key::new("default", "web"), &seen, memory)
        .into_iter()
        .map(|query| match query {
            controllers_kit::Query::Path { path, .. } => path,
            other => format!("{other:?}"),
        })
        .collect()
}
