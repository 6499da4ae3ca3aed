//! Autoscaling on real metrics APIs: the same curves under kube-controller-manager and under Manifold lead to
//! the same sizes, conditions and events; a replica that is killed within a stabilization window makes
//! nothing shrink early; an API that hangs costs those alone who ask it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use futures::{StreamExt, TryStreamExt, stream};
use harness::control_plane::Builder;
use harness::{ControlPlane, Metrics, MetricsApi, run_test, until};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::support::{PATIENCE, POLL, Unrest, all_end_well, alone, beside, complete, fleet_of};

/// The period and the window of both managers, short enough for a test.
const PERIOD: Duration = Duration::from_secs(2);
const WINDOW: Duration = Duration::from_secs(12);
/// Until an autoscaler has followed a value: a few periods, and a busy machine.
const FOLLOWS: Duration = Duration::from_secs(60);

/// What pods use, as kwok's kubelets report it.
const USAGE: &str = "kwok.x-k8s.io/usage-cpu";

fn flags() -> Vec<String> {
    flags_with(WINDOW)
}

fn flags_with(window: Duration) -> Vec<String> {
    vec![
        format!(
            "--horizontal-pod-autoscaler-sync-period={}s",
            PERIOD.as_secs()
        ),
        format!(
            "--horizontal-pod-autoscaler-downscale-stabilization={}s",
            window.as_secs()
        ),
        "--horizontal-pod-autoscaler-cpu-initialization-period=1s".to_owned(),
        "--horizontal-pod-autoscaler-initial-readiness-delay=1s".to_owned(),
    ]
}

/// A control plane whose aggregation layer finds a server on loopback: by an ExternalName, which it follows
/// where it routes by services and not by endpoints.
fn bed() -> Builder {
    ControlPlane::builder()
        .nodes(5)
        .api_server_arg("--enable-aggregator-routing=false")
}

/// One step of a curve.
enum Step {
    /// The metric takes a value; none: it is gone.
    Value(&'static str),
    /// The target gets this size.
    Reaches(i32),
    /// Nothing changes for this number of periods.
    Holds(u32),
    /// A user scales.
    Scale(i32),
    /// A condition gets this reason.
    Says(&'static str, &'static str),
}
use Step::{Holds, Reaches, Says, Scale, Value as Is};

/// A metric, as an autoscaler has it and as the test sets it.
#[derive(Clone, Copy)]
enum Metric {
    /// An external one, for each pod.
    External,
    /// An external one as a whole.
    ExternalValue,
    /// A custom one of the pods.
    Pods,
    /// A custom one of a Service.
    Object,
    /// CPU, in percent of what is requested; the value is in thousandths.
    Cpu,
    /// CPU of one container.
    ContainerCpu,
    /// CPU as an average.
    CpuAverage,
}

impl Metric {
    fn spec(self) -> Value {
        let each = json!({"type": "AverageValue", "averageValue": "10"});
        match self {
            Self::External => {
                json!({"type": "External", "external": {"metric": {"name": "NAME"}, "target": each}})
            }
            Self::ExternalValue => json!({"type": "External", "external": {
                "metric": {"name": "NAME"}, "target": {"type": "Value", "value": "10"}}}),
            Self::Pods => {
                json!({"type": "Pods", "pods": {"metric": {"name": "load"}, "target": each}})
            }
            Self::Object => json!({"type": "Object", "object": {
                "describedObject": {"apiVersion": "v1", "kind": "Service", "name": "NAME"},
                "metric": {"name": "load"}, "target": each}}),
            Self::Cpu => json!({"type": "Resource", "resource": {
                "name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}),
            Self::ContainerCpu => json!({"type": "ContainerResource", "containerResource": {
                "name": "cpu", "container": "app",
                "target": {"type": "Utilization", "averageUtilization": 50}}}),
            Self::CpuAverage => json!({"type": "Resource", "resource": {
                "name": "cpu", "target": {"type": "AverageValue", "averageValue": "500m"}}}),
        }
    }

    fn set(self, api: &MetricsApi, namespace: &str, name: &str, value: &str) {
        let given = (!value.is_empty()).then_some(value);
        match self {
            Self::External | Self::ExternalValue => {
                api.external(namespace, name, &given.into_iter().collect::<Vec<_>>());
            }
            Self::Pods => api.pods(namespace, name, "load", given),
            Self::Object => api.object(namespace, &format!("services/{name}"), "load", given),
            Self::Cpu | Self::ContainerCpu | Self::CpuAverage => {
                let milli = given.map(|value| value.parse().expect("thousandths of a CPU"));
                api.usage(namespace, name, milli);
            }
        }
    }
}

/// An autoscaler, its target, and what happens to its metric.
struct Curve {
    name: &'static str,
    size: u32,
    min: i32,
    max: i32,
    metric: Metric,
    behavior: Option<Value>,
    steps: Vec<Step>,
}

fn curve(name: &'static str, size: u32, metric: Metric, steps: Vec<Step>) -> Curve {
    Curve {
        name,
        size,
        min: 1,
        max: 10,
        metric,
        behavior: None,
        steps,
    }
}

impl Curve {
    fn bounds(mut self, min: i32, max: i32) -> Self {
        (self.min, self.max) = (min, max);
        self
    }

    fn behavior(mut self, behavior: Value) -> Self {
        self.behavior = Some(behavior);
        self
    }
}

#[rustfmt::skip]
fn curves() -> Vec<Curve> {
    use Metric::{ContainerCpu, Cpu, CpuAverage, External, ExternalValue, Object, Pods};
    let down = |policy: Value| json!({"scaleDown": {"stabilizationWindowSeconds": 0, "policies": [policy]}});
    vec![
        // Steps, ramps, spikes, flapping.
        curve("step-up", 2, External,        vec![Is("20"), Holds(3), Is("50"), Reaches(4), Reaches(5), Holds(3)]),
        curve("step-down", 5, External,      vec![Is("50"), Holds(3), Is("20"), Says("AbleToScale", "ScaleDownStabilized"), Reaches(2), Holds(2)]),
        curve("ramp", 1, External,           vec![Is("20"), Reaches(2), Is("30"), Reaches(3), Is("40"), Reaches(4), Is("50"), Reaches(5), Holds(2)]),
        curve("spike", 2, External,          vec![Is("20"), Holds(2), Is("40"), Reaches(4), Is("20"), Holds(3), Reaches(2), Holds(2)]),
        curve("flapping", 3, External,       vec![Is("30"), Holds(2), Is("32"), Holds(3), Is("28"), Holds(3), Is("32"), Holds(3)]),
        curve("to-the-most", 3, External,    vec![Is("900"), Reaches(6), Reaches(7), Holds(3)]).bounds(1, 7),
        curve("to-the-least", 4, External,   vec![Is("0"), Reaches(2), Holds(2)]).bounds(2, 7),
        curve("too-many", 6, External,       vec![Is("60"), Reaches(4), Holds(3)]).bounds(1, 4),
        curve("too-few", 1, External,        vec![Is("10"), Reaches(3), Holds(3)]).bounds(3, 5),
        curve("by-hand", 2, External,        vec![Is("20"), Holds(2), Scale(4), Reaches(4), Reaches(2), Holds(2)]),
        curve("none", 0, External,           vec![Is("20"), Says("ScalingActive", "ScalingDisabled"), Holds(2)]),
        curve("value", 2, ExternalValue,     vec![Is("10"), Holds(2), Is("20"), Reaches(4), Is("10"), Holds(3)]),
        // Gaps.
        curve("gap", 2, External,            vec![Is("20"), Holds(2), Is(""), Says("ScalingActive", "FailedGetExternalMetric"), Is("30"), Reaches(3), Holds(2)]),
        curve("never", 2, External,          vec![Is(""), Says("ScalingActive", "FailedGetExternalMetric"), Holds(2)]),
        // Other sources.
        curve("pods", 2, Pods,               vec![Is("10"), Holds(3), Is("20"), Reaches(4), Is("10"), Holds(4)]),
        curve("pods-gone", 2, Pods,          vec![Is("10"), Holds(2), Is(""), Says("ScalingActive", "FailedGetPodsMetric")]),
        curve("object", 2, Object,           vec![Is("20"), Holds(2), Is("40"), Reaches(4), Holds(3)]),
        curve("cpu", 2, Cpu,                 vec![Is("50"), Holds(3), Is("100"), Reaches(4), Is("50"), Holds(4)]),
        curve("cpu-down", 4, Cpu,            vec![Is("50"), Holds(3), Is("25"), Reaches(2), Is("50"), Holds(3)]),
        curve("container", 2, ContainerCpu,  vec![Is("50"), Holds(3), Is("100"), Reaches(4), Is("50"), Holds(4)]),
        curve("cpu-average", 2, CpuAverage,  vec![Is("500"), Holds(3), Is("1000"), Reaches(4), Is("500"), Holds(4)]),
        curve("within", 3, Cpu,              vec![Is("52"), Holds(5)]),
        // Behaviors.
        curve("slow-down", 4, External,      vec![Is("40"), Holds(2), Is("10"), Reaches(3), Reaches(2), Reaches(1), Holds(2)])
            .behavior(down(json!({"type": "Pods", "value": 1, "periodSeconds": 4}))),
        curve("never-down", 3, External,     vec![Is("30"), Holds(2), Is("10"), Says("ScalingLimited", "ScaleDownLimit"), Holds(3)])
            .behavior(json!({"scaleDown": {"stabilizationWindowSeconds": 0, "selectPolicy": "Disabled"}})),
        curve("slow-up", 2, External,        vec![Is("50"), Reaches(3), Reaches(4), Reaches(5), Holds(3)])
            .behavior(json!({"scaleUp": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 3}]}})),
        curve("late-up", 2, External,        vec![Is("20"), Holds(3), Is("40"), Says("AbleToScale", "ScaleUpStabilized"), Reaches(4), Holds(2)])
            .behavior(json!({"scaleUp": {"stabilizationWindowSeconds": 6}})),
        curve("tolerant", 4, External,       vec![Is("40"), Holds(2), Is("55"), Holds(3), Is("70"), Reaches(7), Holds(2)])
            .behavior(json!({"scaleUp": {"tolerance": "0.5"}})),
        curve("half-down", 8, External,      vec![Is("80"), Holds(2), Is("10"), Reaches(4), Reaches(2), Reaches(1)])
            .behavior(down(json!({"type": "Percent", "value": 50, "periodSeconds": 4}))),
    ]
}

/// What a curve has led to.
#[derive(Debug, PartialEq, Eq)]
struct Course {
    name: &'static str,
    sizes: Vec<i32>,
    conditions: Vec<String>,
    events: BTreeSet<String>,
}

fn target(name: &str, size: u32) -> Value {
    let mut deployment = crate::support::deployment(name, size);
    deployment["spec"]["template"]["spec"]["containers"][0]["resources"] =
        json!({"requests": {"cpu": "100m"}});
    deployment
}

/// With one metric, whose name is that of the target.
fn autoscaler_of(name: &str, metric: Metric, (min, max): (i32, i32)) -> Result<Value> {
    let metric = metric.spec().to_string().replace("NAME", name);
    Ok(json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "minReplicas": min, "maxReplicas": max,
            "metrics": [serde_json::from_str::<Value>(&metric)?],
        }
    }))
}

fn autoscaler(curve: &Curve) -> Result<Value> {
    let mut hpa = autoscaler_of(curve.name, curve.metric, (curve.min, curve.max))?;
    if let Some(behavior) = &curve.behavior {
        hpa["spec"]["behavior"] = behavior.clone();
    }
    Ok(hpa)
}

struct Stage<'a> {
    control_plane: &'a ControlPlane,
    client: Client,
    namespace: String,
}

impl<'a> Stage<'a> {
    /// In a namespace of its own.
    async fn new(control_plane: &'a ControlPlane, prefix: &str) -> Result<Self> {
        Ok(Self {
            control_plane,
            client: control_plane.client().await?,
            namespace: control_plane.namespace(prefix).await?,
        })
    }

    fn deployments(&self) -> Api<Deployment> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn autoscalers(&self) -> Api<HorizontalPodAutoscaler> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn create(&self, object: &Value) -> Result<()> {
        self.control_plane
            .kubectl_with_input(&["-n", &self.namespace, "create"], &object.to_string())
            .await?;
        Ok(())
    }

    async fn size(&self, name: &str) -> Result<i32> {
        let deployment = self.deployments().get(name).await?;
        Ok(deployment.spec.and_then(|spec| spec.replicas).unwrap_or(1))
    }

    /// Waits until a target has a size, noting those on the way.
    async fn reaches(&self, name: &str, wanted: i32, sizes: &mut Vec<i32>) -> Result<()> {
        let begun = Instant::now();
        loop {
            let size = self.size(name).await?;
            note(sizes, size);
            if size == wanted {
                return Ok(());
            }
            ensure!(
                begun.elapsed() < FOLLOWS,
                "{name} does not come to {wanted}: {sizes:?}"
            );
            tokio::time::sleep(POLL).await;
        }
    }

    async fn run(&self, api: &MetricsApi, curve: &Curve) -> Result<Course> {
        let name = curve.name;
        let size = i32::try_from(curve.size)?;
        if let Some(Is(first)) = curve.steps.first() {
            curve.metric.set(api, &self.namespace, name, first);
        }
        self.create(&target(name, curve.size)).await?;
        complete(&self.deployments(), name, size).await?;
        self.create(&autoscaler(curve)?).await?;
        let mut sizes = vec![size];
        for step in &curve.steps {
            match step {
                Is(value) => curve.metric.set(api, &self.namespace, name, value),
                Reaches(wanted) => self.reaches(name, *wanted, &mut sizes).await?,
                Holds(periods) => {
                    let end = Instant::now() + PERIOD * *periods;
                    while Instant::now() < end {
                        note(&mut sizes, self.size(name).await?);
                        tokio::time::sleep(POLL).await;
                    }
                }
                Scale(size) => {
                    let patch = Patch::Merge(json!({"spec": {"replicas": size}}));
                    self.deployments()
                        .patch(name, &PatchParams::default(), &patch)
                        .await?;
                }
                Says(kind, reason) => {
                    let what = format!("{name}: {kind} is {reason}");
                    until(&what, FOLLOWS, POLL, || async {
                        let conditions = self.conditions(name).await?;
                        let begins = format!("{kind}=");
                        let found = conditions.iter().any(|one| {
                            one.starts_with(&begins) && one.contains(&format!(" {reason}: "))
                        });
                        Ok(found.then_some(()))
                    })
                    .await?;
                    note(&mut sizes, self.size(name).await?);
                }
            }
        }
        // The last read is reported.
        let mut conditions = self.conditions(name).await?;
        let begun = Instant::now();
        loop {
            tokio::time::sleep(PERIOD * 2).await;
            let now = self.conditions(name).await?;
            if now == conditions {
                break;
            }
            ensure!(
                begun.elapsed() < FOLLOWS,
                "{name} never is at rest: {now:?}"
            );
            conditions = now;
        }
        note(&mut sizes, self.size(name).await?);
        Ok(Course {
            name,
            sizes,
            conditions,
            events: self.events(name).await?,
        })
    }

    /// Waits until an autoscaler has read its metric.
    async fn reads(&self, name: &str) -> Result<()> {
        until(
            &format!("{name} reads its metric"),
            PATIENCE,
            POLL,
            || async {
                let conditions = self.conditions(name).await?;
                let read = |one: &String| one.contains("ValidMetricFound");
                Ok(conditions.iter().any(read).then_some(()))
            },
        )
        .await
    }

    async fn conditions(&self, name: &str) -> Result<Vec<String>> {
        let hpa = self.autoscalers().get(name).await?;
        let conditions = hpa
            .status
            .and_then(|status| status.conditions)
            .unwrap_or_default();
        Ok(conditions
            .into_iter()
            .map(|one| {
                format!(
                    "{}={} {}: {}",
                    one.type_,
                    one.status,
                    one.reason.unwrap_or_default(),
                    even(&one.message.unwrap_or_default(), &self.namespace)
                )
            })
            .collect())
    }

    async fn events(&self, name: &str) -> Result<BTreeSet<String>> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &self.namespace);
        let of = ListParams::default().fields(&format!(
            "involvedObject.kind=HorizontalPodAutoscaler,involvedObject.name={name}"
        ));
        Ok(events
            .list(&of)
            .await?
            .items
            .into_iter()
            .map(|event| {
                format!(
                    "{} {} {}",
                    event.type_.unwrap_or_default(),
                    event.reason.unwrap_or_default(),
                    even(&event.message.unwrap_or_default(), &self.namespace)
                )
            })
            .collect())
    }
}

fn note(sizes: &mut Vec<i32>, size: i32) {
    if sizes.last() != Some(&size) {
        sizes.push(size);
    }
}

/// Evens out the namespace.
fn even(text: &str, namespace: &str) -> String {
    text.replace(namespace, "NAMESPACE")
}

/// All curves at once, in a namespace of their own; nothing of them continues afterwards.
async fn play(
    control_plane: &ControlPlane,
    api: &MetricsApi,
) -> Result<(Vec<Course>, Vec<String>)> {
    let stage = Stage::new(control_plane, "hpa").await?;
    let curves = curves();
    let courses = try_join_all(curves.iter().map(|curve| stage.run(api, curve))).await?;
    let mut shown = Vec::new();
    for line in [
        "get hpa step-up pods cpu",
        "get hpa step-up pods cpu -o wide",
        "describe hpa step-up",
        "describe hpa cpu",
        "describe hpa late-up",
    ] {
        let mut args = vec!["-n", stage.namespace.as_str()];
        args.extend(line.split(' '));
        let said = control_plane.kubectl(&args).await?;
        shown.extend(seen(&said, &stage.namespace));
    }
    stage
        .autoscalers()
        .delete_collection(&DeleteParams::default(), &ListParams::default())
        .await?;
    stage
        .deployments()
        .delete_collection(&DeleteParams::default(), &ListParams::default())
        .await?;
    Ok((courses, shown))
}

/// What kubectl shows, without ages, times, and the events, which are compared apart.
fn seen(said: &str, namespace: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for line in said.lines() {
        if line.starts_with("Events:") {
            break;
        }
        if line.starts_with("CreationTimestamp:") {
            continue;
        }
        let mut words: Vec<&str> = line.split_whitespace().collect();
        // A table's last column is the age.
        if said.starts_with("NAME") {
            words.pop();
        }
        lines.push(even(&words.join(" "), namespace));
    }
    lines
}

#[test]
#[ignore = "minutes: cargo parity"]
fn curves_lead_to_the_same_under_both_managers() {
    let _alone = alone();
    run_test(async {
        let control_plane = bed().start().await?;
        let api = MetricsApi::start(&control_plane).await?;
        let flags = flags();

        let given: Vec<&str> = flags.iter().map(String::as_str).collect();
        let mut kcm = control_plane.start_kcm(&given).await?;
        let (theirs, their_output) = play(&control_plane, &api).await?;
        kcm.process().terminate(PATIENCE).await?;

        let fleet = fleet_of(&control_plane, &given).await?;
        let mut replicas = fleet.start_all(2).await?;
        let (ours, our_output) = play(&control_plane, &api).await?;
        all_end_well(&mut replicas).await?;

        let mut differing = Vec::new();
        for (theirs, ours) in theirs.iter().zip(&ours) {
            if theirs != ours {
                differing.push(format!("theirs {theirs:#?}\nours {ours:#?}"));
            }
        }
        println!("hpa: {} curves, {} differ", ours.len(), differing.len());
        ensure!(differing.is_empty(), "{}", differing.join("\n"));
        let (missing, surplus): (Vec<_>, Vec<_>) = (
            their_output
                .iter()
                .filter(|line| !our_output.contains(line))
                .collect(),
            // The one difference that controllers/README.md lists.
            our_output
                .iter()
                .filter(|line| {
                    !their_output.contains(line) && !line.contains("manifold.dev/scale-events")
                })
                .collect(),
        );
        ensure!(
            surplus.is_empty() && missing.iter().all(|line| line.starts_with("Annotations:")),
            "kubectl shows {surplus:#?} instead of {missing:#?}"
        );
        Ok(())
    });
}

/// What the kubelets say that each of a Deployment's pods uses, the size at which that comes to rest, and
/// what holds it there. It begins with four pods; what comes between is up to when metrics-server has read.
/// What it measures is a few hundred-thousandths off, and thousandths of a core are rounded up: no figure
/// lies where that would decide.
const METERED: [(&str, i32, &str); 3] = [
    ("50m", 4, "DesiredWithinRange"),
    ("22m", 2, "TooFewReplicas"),
    ("150m", 6, "TooManyReplicas"),
];
/// metrics-server reads every ten seconds and needs two checks.
const METERED_FOLLOWS: Duration = Duration::from_secs(120);

/// The conditions at each of these sizes.
async fn meter(control_plane: &ControlPlane) -> Result<Vec<Vec<String>>> {
    let stage = Stage::new(control_plane, "metered").await?;
    let most = METERED
        .map(|(_, size, _)| size)
        .into_iter()
        .max()
        .unwrap_or(1);
    let curve = curve("cpu", 4, Metric::Cpu, Vec::new()).bounds(2, most);
    let mut target = target(curve.name, curve.size);
    target["spec"]["template"]["metadata"]["annotations"] = json!({USAGE: METERED[0].0});
    stage.create(&target).await?;
    complete(&stage.deployments(), curve.name, i32::try_from(curve.size)?).await?;
    stage.create(&autoscaler(&curve)?).await?;
    let pods: Api<Pod> = Api::namespaced(stage.client.clone(), &stage.namespace);
    let mut reported = Vec::new();
    for (usage, size, held) in METERED {
        let annotate = Patch::Merge(json!({"metadata": {"annotations": {USAGE: usage}}}));
        for pod in pods.list(&ListParams::default()).await?.items {
            let name = pod.metadata.name.unwrap_or_default();
            pods.patch(&name, &PatchParams::default(), &annotate)
                .await?;
        }
        let what = format!("{usage} for each lead to {size} pods, and no further");
        let conditions = until(&what, METERED_FOLLOWS, POLL, || async {
            let now = stage.size(curve.name).await?;
            let mut conditions = stage.conditions(curve.name).await?;
            conditions.sort();
            ensure!(now == size, "{now} pods: {conditions:?}");
            let measured = conditions
                .iter()
                .any(|one| one.contains("ValidMetricFound"));
            let at_rest = ["ReadyForNewScale", held]
                .iter()
                .all(|reason| conditions.iter().any(|one| one.contains(reason)));
            ensure!(measured && at_rest, "{conditions:?}");
            Ok(Some(conditions))
        })
        .await?;
        reported.push(conditions);
    }
    stage
        .autoscalers()
        .delete(curve.name, &DeleteParams::default())
        .await?;
    stage
        .deployments()
        .delete(curve.name, &DeleteParams::background())
        .await?;
    Ok(reported)
}

#[test]
#[ignore = "minutes: cargo parity"]
fn what_kubelets_report_to_metrics_server_leads_to_the_same() {
    let _alone = alone();
    run_test(async {
        let control_plane = bed().metrics_server().start().await?;
        let flags = flags();
        let given: Vec<&str> = flags.iter().map(String::as_str).collect();
        let mut kcm = control_plane.start_kcm(&given).await?;
        let theirs = meter(&control_plane).await?;
        kcm.process().terminate(PATIENCE).await?;
        let fleet = fleet_of(&control_plane, &given).await?;
        let mut replicas = fleet.start_all(2).await?;
        let ours = meter(&control_plane).await?;
        all_end_well(&mut replicas).await?;
        println!(
            "hpa: metrics-server: {METERED:?}; {} conditions compared",
            ours.concat().len()
        );
        ensure!(ours == theirs, "theirs {theirs:#?}\nours {ours:#?}");
        Ok(())
    });
}

/// As the manager has it by default, and how many autoscalers it must hold for.
const DEFAULT_PERIOD: Duration = Duration::from_secs(15);
const CROWD: usize = 1_000;
/// What may lie between two checks of one autoscaler, at the 99th percentile.
const GAP_MAX: Duration = Duration::from_secs(16);
/// For how long it is observed: eight periods.
const OBSERVED_FOR: Duration = Duration::from_secs(120);
const MADE_AT_ONCE: usize = 20;

impl Stage<'_> {
    /// A target of one pod, and an autoscaler whose metric says that this is right.
    async fn make_calm(&self, api: &MetricsApi, name: &str) -> Result<()> {
        api.external(&self.namespace, name, &["10"]);
        let deployment = serde_json::from_value(target(name, 1))?;
        let post = PostParams::default();
        self.deployments().create(&post, &deployment).await?;
        let hpa = serde_json::from_value(autoscaler_of(name, Metric::External, (1, 3))?)?;
        self.autoscalers().create(&post, &hpa).await?;
        Ok(())
    }
}

/// How a manager kept the period of all, and what that cost.
struct Pace {
    reads: usize,
    median: Duration,
    p99: Duration,
    most: Duration,
    /// Seconds of processors a second, of all its processes.
    processors: f64,
    /// Of the largest process, in MB.
    memory: f64,
}

/// Observes while a manager is at rest but for its autoscalers.
async fn pace<F, R>(api: &MetricsApi, metrics: F) -> Result<Pace>
where
    F: Fn() -> R,
    R: Future<Output = Result<Vec<Metrics>>>,
{
    let used = |all: &[Metrics]| -> Result<f64> {
        all.iter()
            .map(|one| one.sum("process_cpu_seconds_total", &[]))
            .sum::<Option<f64>>()
            .context("no process_cpu_seconds_total")
    };
    let before = used(&metrics().await?)?;
    let begun = Instant::now();
    api.forget();
    tokio::time::sleep(OBSERVED_FOR).await;
    let took = begun.elapsed();
    let asked = api.asked();
    let after = metrics().await?;
    ensure!(
        asked.len() == CROWD,
        "{} of {CROWD} were examined",
        asked.len()
    );
    let mut gaps: Vec<Duration> = asked
        .values()
        .flat_map(|times| times.windows(2).map(|two| two[1] - two[0]))
        .collect();
    // Who is not examined again has a gap too.
    gaps.extend(asked.values().filter_map(|times| {
        let silent = begun + took - *times.last()?;
        (silent > GAP_MAX).then_some(silent)
    }));
    gaps.sort_unstable();
    let at = |share: f64| gaps[((gaps.len() - 1) as f64 * share) as usize];
    let memory = after
        .iter()
        .filter_map(|one| one.sum("process_resident_memory_bytes", &[]))
        .fold(0.0, f64::max);
    Ok(Pace {
        reads: asked.values().map(Vec::len).sum(),
        median: at(0.5),
        p99: at(0.99),
        most: at(1.0),
        processors: (used(&after)? - before) / took.as_secs_f64(),
        memory: memory / 1e6,
    })
}

#[test]
#[ignore = "minutes: cargo parity"]
fn a_thousand_autoscalers_keep_their_period() {
    let _alone = alone();
    run_test(async {
        let control_plane = bed().pods_per_node(CROWD).start().await?;
        let api = MetricsApi::start(&control_plane).await?;
        let stage = Stage::new(&control_plane, "crowd").await?;
        let no_limits = ["--kube-api-qps=5000", "--kube-api-burst=5000"];
        let mut kcm = control_plane.start_kcm(&no_limits).await?;
        let names: Vec<String> = (0..CROWD).map(|number| format!("web-{number}")).collect();
        stream::iter(&names)
            .map(|name| stage.make_calm(&api, name))
            .buffer_unordered(MADE_AT_ONCE)
            .try_collect::<Vec<()>>()
            .await?;
        for name in &names {
            complete(&stage.deployments(), name, 1).await?;
        }
        // Every autoscaler has reported its metric.
        tokio::time::sleep(DEFAULT_PERIOD * 2).await;
        let theirs = pace(&api, || async { Ok(vec![kcm.metrics().await?]) }).await?;
        kcm.process().terminate(PATIENCE).await?;

        let fleet = fleet_of(&control_plane, &no_limits).await?;
        let mut replicas = fleet.start_all(2).await?;
        tokio::time::sleep(DEFAULT_PERIOD * 2).await;
        let ours = pace(&api, || async {
            try_join_all(replicas.iter().map(harness::Replica::metrics)).await
        })
        .await?;
        all_end_well(&mut replicas).await?;
        for (who, pace) in [
            ("kube-controller-manager", &theirs),
            ("two replicas", &ours),
        ] {
            println!(
                "hpa: {CROWD} autoscalers under {who}: {} reads, {:.2?} after the one before (median), {:.2?} (p99), \
                 {:.2?} (most); {:.3} processors, {:.1} MB",
                pace.reads, pace.median, pace.p99, pace.most, pace.processors, pace.memory
            );
        }
        ensure!(ours.p99 <= GAP_MAX, "examined after {:?}", ours.p99);
        Ok(())
    });
}

/// A window that a manager's restart falls into, and how often that is tried.
const LONG_WINDOW: Duration = Duration::from_secs(30);
const RUNS: usize = 3;
/// Several autoscalers, so that whichever replica dies had some of them; each with this many pods.
const FALLING: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const FALLING_SIZE: i32 = 6;
/// All ranges move every few seconds, and one replica is killed within the window, once: each kill begins its
/// autoscalers' windows again.
const UNREST: Unrest = Unrest {
    moved: 64,
    kill_every: Duration::from_secs(10),
    kills_max: 1,
};

impl Stage<'_> {
    /// Makes autoscalers whose metric has been read.
    async fn make_falling(&self, api: &MetricsApi) -> Result<()> {
        for name in FALLING {
            let size = u32::try_from(FALLING_SIZE)?;
            api.external(&self.namespace, name, &["60"]);
            self.create(&target(name, size)).await?;
            let curve = curve(name, size, Metric::External, Vec::new());
            self.create(&autoscaler(&curve)?).await?;
        }
        for name in FALLING {
            complete(&self.deployments(), name, FALLING_SIZE).await?;
            self.reads(name).await?;
        }
        Ok(())
    }

    /// The load falls; after how long each target shrinks.
    async fn fall(&self, api: &MetricsApi) -> Result<Vec<Duration>> {
        let fallen = Instant::now();
        for name in FALLING {
            api.external(&self.namespace, name, &["10"]);
        }
        let mut shrunk: Vec<Option<Duration>> = vec![None; FALLING.len()];
        while shrunk.iter().any(Option::is_none) {
            for (name, shrunk) in FALLING.iter().zip(&mut shrunk) {
                if self.size(name).await? < FALLING_SIZE && shrunk.is_none() {
                    *shrunk = Some(fallen.elapsed());
                }
            }
            ensure!(
                fallen.elapsed() < FOLLOWS + 2 * LONG_WINDOW,
                "not all have shrunk: {shrunk:?}"
            );
            tokio::time::sleep(POLL).await;
        }
        self.autoscalers()
            .delete_collection(&DeleteParams::default(), &ListParams::default())
            .await?;
        Ok(shrunk.into_iter().flatten().collect())
    }
}

/// In `cargo verify` a hundred simulated runs show the same.
#[test]
#[ignore = "minutes: cargo parity"]
fn a_replica_killed_within_the_window_makes_nothing_shrink_early() {
    let _alone = alone();
    run_test(async {
        let control_plane = bed().start().await?;
        let api = MetricsApi::start(&control_plane).await?;
        let client = control_plane.client().await?;
        let flags = flags_with(LONG_WINDOW);

        // What upstream's manager remembers goes with its process.
        let given: Vec<&str> = flags.iter().map(String::as_str).collect();
        let mut kcm = control_plane.start_kcm(&given).await?;
        let falling = Stage::new(&control_plane, "falling").await?;
        falling.make_falling(&api).await?;
        let restart = async {
            tokio::time::sleep(LONG_WINDOW / 3).await;
            kcm.process().kill();
            control_plane.start_kcm(&given).await
        };
        let (shrunk, kcm) = tokio::try_join!(falling.fall(&api), restart)?;
        println!(
            "hpa: kube-controller-manager restarted within the window: shrunk after {shrunk:.1?}"
        );
        drop(kcm);

        let fleet = fleet_of(&control_plane, &given).await?;
        let mut replicas = fleet.start_all(3).await?;
        for _ in 0..RUNS {
            let falling = Stage::new(&control_plane, "falling").await?;
            falling.make_falling(&api).await?;
            let fall = falling.fall(&api);
            let (shrunk, moves, kills) =
                UNREST.during(fall, &fleet, &mut replicas, &client).await?;
            println!(
                "hpa: {moves} moves and {kills} kills within the window: shrunk after {shrunk:.1?}"
            );
            ensure!(moves > 0 && kills > 0, "nothing happened meanwhile");
            // The last check of the old load may have been a period before it fell.
            let earliest = LONG_WINDOW - PERIOD;
            ensure!(
                shrunk.iter().all(|after| *after >= earliest),
                "shrunk after {shrunk:?}, the window is {LONG_WINDOW:?}"
            );
        }
        Ok(())
    });
}

#[test]
fn an_api_that_hangs_costs_those_alone_who_ask_it() {
    let _beside = beside();
    run_test(async {
        let control_plane = bed().start().await?;
        let api = MetricsApi::start(&control_plane).await?;
        let flags = flags();
        let given: Vec<&str> = flags.iter().map(String::as_str).collect();
        let fleet = fleet_of(&control_plane, &given).await?;
        let mut replicas = fleet.start_all(1).await?;
        let stage = Stage::new(&control_plane, "hpa").await?;
        // More of them hang than keys may be worked on at once.
        let hanging: Vec<&'static str> = vec!["h1", "h2", "h3", "h4", "h5", "h6", "h7", "h8"];
        for name in hanging {
            api.external(&stage.namespace, name, &["10"]);
            stage.create(&target(name, 1)).await?;
            stage
                .create(&autoscaler(&curve(name, 1, Metric::External, Vec::new()))?)
                .await?;
        }
        api.object(&stage.namespace, "services/other", "load", Some("10"));
        stage.create(&target("other", 1)).await?;
        stage
            .create(&autoscaler(&curve("other", 1, Metric::Object, Vec::new()))?)
            .await?;
        complete(&stage.deployments(), "other", 1).await?;
        stage.reads("other").await?;
        api.hang("external.metrics.k8s.io", true);
        let begun = Instant::now();
        tokio::time::sleep(PERIOD * 3).await;
        let mut longest = Duration::ZERO;
        for (size, value) in [(2, "20"), (3, "30"), (4, "40"), (5, "50")] {
            let set = Instant::now();
            api.object(&stage.namespace, "services/other", "load", Some(value));
            stage.reaches("other", size, &mut Vec::new()).await?;
            longest = longest.max(set.elapsed());
        }
        let until_failed = until("the others report it", FOLLOWS, POLL, || async {
            let conditions = stage.conditions("h1").await?;
            Ok(conditions
                .iter()
                .any(|one| one.contains("no answer within"))
                .then_some(begun.elapsed()))
        })
        .await?;
        api.hang("external.metrics.k8s.io", false);
        println!(
            "hpa: while an API hung, another's values were followed within {longest:?}; reported after {until_failed:?}"
        );
        ensure!(
            longest < PERIOD * 2,
            "a value was followed after {longest:?}, the period is {PERIOD:?}"
        );
        all_end_well(&mut replicas).await?;
        Ok(())
    });
}
