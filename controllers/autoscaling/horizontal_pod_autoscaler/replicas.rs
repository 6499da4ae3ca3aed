//! How many replicas a metric asks for: the formula, and what pods without samples or not ready count for.

use std::{collections::BTreeMap, sync::Arc};

use controllers_kit::{SignedDuration, Timestamp, conditions, pods};
use kubernetes_proto::{
    Object, Shared,
    core::{Amount, Pod, PodSpec, ResourceRequirements},
};

/// A metric of one pod.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// In thousandths.
    pub value: i64,
    /// When the sample was taken.
    pub at: Timestamp,
    /// The time it is an average over.
    pub window: SignedDuration,
}

/// The samples by the pods' names.
pub type Samples = BTreeMap<String, Sample>;

/// The deviation of the ratio of usage and target from 1 that is tolerated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerances {
    /// The tolerance below 1.
    pub down: f64,
    /// The tolerance above 1.
    pub up: f64,
}

impl Tolerances {
    /// Whether a ratio is near enough to 1.
    pub fn hold(&self, ratio: f64) -> bool {
        1.0 - self.down <= ratio && ratio <= 1.0 + self.up
    }
}

/// The inputs of the formula besides the metric.
#[derive(Clone, Copy)]
pub struct Circumstances<'a> {
    /// The replicas that the target has now: its scale's `spec.replicas`.
    pub current: i32,
    /// The pods that the target selects.
    pub pods: &'a [Arc<Pod>],
    /// How far from 1 is near enough.
    pub tolerances: Tolerances,
    /// The present.
    pub now: Timestamp,
    /// `--horizontal-pod-autoscaler-cpu-initialization-period`.
    pub cpu_initialization: SignedDuration,
    /// `--horizontal-pod-autoscaler-initial-readiness-delay`.
    pub readiness_delay: SignedDuration,
    /// Gate PodLevelResources.
    pub pod_level: bool,
}

/// What a metric proposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// The proposed number of replicas.
    pub replicas: i32,
    /// In percent of the requests, where that is the target.
    pub utilization: Option<i32>,
    /// The usage as the status reports it, in thousandths.
    pub usage: i64,
}

/// Rounded up, saturating at the largest `i32`.
fn up(replicas: f64) -> i32 {
    replicas.ceil() as i32
}

// ---- pods ----

#[derive(Debug, Default, PartialEq, Eq)]
struct Groups<'a> {
    ready: usize,
    unready: Vec<&'a str>,
    missing: Vec<&'a str>,
    ignored: Vec<&'a str>,
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().map_or("", |status| &status.phase)
}

fn group<'a>(with: &Circumstances<'a>, samples: &Samples, cpu: bool) -> Groups<'a> {
    let mut groups = Groups::default();
    for pod in with.pods {
        let name = Object::metadata(&**pod).name.as_str();
        if Object::is_terminating(&**pod) || phase(pod) == "Failed" {
            groups.ignored.push(name);
        } else if phase(pod) == "Pending" {
            groups.unready.push(name);
        } else {
            match samples.get(name) {
                None => groups.missing.push(name),
                Some(sample) if cpu && is_warming_up(with, pod, sample) => {
                    groups.unready.push(name);
                }
                Some(_) => groups.ready += 1,
            }
        }
    }
    groups
}

/// Whether a CPU sample reflects a pod's start rather than its load.
fn is_warming_up(with: &Circumstances<'_>, pod: &Pod, sample: &Sample) -> bool {
    let status = pod.status.as_ref();
    let started = status.and_then(|status| pods::instant(status.start_time));
    let ready = status.and_then(|status| conditions::find(&status.conditions, "Ready"));
    let (Some(started), Some(ready)) = (started, ready) else {
        return true;
    };
    let is_unready = ready.status == "False";
    let since = pods::instant(ready.last_transition_time).unwrap_or(Timestamp::MIN);
    if started + with.cpu_initialization > with.now {
        // A sample that began before the pod became ready does not reflect its load.
        let whole = since.checked_add(sample.window).unwrap_or(Timestamp::MAX);
        is_unready || sample.at < whole
    } else {
        // Not ready, and never was.
        is_unready && started + with.readiness_delay > since
    }
}

fn ready_count(with: &Circumstances<'_>) -> Result<usize, String> {
    if with.pods.is_empty() {
        return Err(format!("unable to calculate ready pods: {NO_PODS}"));
    }
    let ready = |pod: &&Arc<Pod>| phase(pod) == "Running" && pods::is_ready(pod);
    Ok(with.pods.iter().filter(ready).count())
}

const NO_PODS: &str = "no pods returned by selector while calculating replica count";
const NO_SAMPLES: &str = "did not receive metrics for targeted pods (pods might be unready)";

// ---- metrics of pods ----

/// How samples are compared with the target.
enum Against<'a> {
    /// Percent of what pods request.
    Requests(&'a BTreeMap<&'a str, i64>, i32),
    /// An average, in thousandths.
    Average(i64),
}

/// The ratio of usage and target; utilization in percent; the average usage.
fn ratio(samples: &Samples, against: &Against<'_>) -> Result<(f64, Option<i32>, i64), String> {
    match against {
        Against::Requests(requests, target) => {
            let (mut used, mut requested, mut count) = (0i128, 0i128, 0i128);
            for (name, sample) in samples {
                if let Some(request) = requests.get(name.as_str()) {
                    used += i128::from(sample.value);
                    requested += i128::from(*request);
                    count += 1;
                }
            }
            if requested == 0 {
                return Err("no metrics returned matched known pods".to_owned());
            }
            let utilization = i32::try_from(used * 100 / requested).unwrap_or(i32::MAX);
            let average = i64::try_from(used / count).unwrap_or(i64::MAX);
            let ratio = f64::from(utilization) / f64::from(*target);
            Ok((ratio, Some(utilization), average))
        }
        Against::Average(target) => {
            let used: i128 = samples
                .values()
                .map(|sample| i128::from(sample.value))
                .sum();
            let count = i128::try_from(samples.len().max(1)).unwrap_or(i128::MAX);
            let average = i64::try_from(used / count).unwrap_or(i64::MAX);
            Ok((average as f64 / *target as f64, None, average))
        }
    }
}

/// The proposal of a metric of pods. Pods without a value are counted against the change: scaling down, the
/// missing ones use all that they may; scaling up, they and the unready ones use nothing; and a change
/// whose direction this would reverse is not made.
fn of_pods(
    with: &Circumstances<'_>,
    mut samples: Samples,
    cpu: bool,
    against: &Against<'_>,
) -> Result<Proposal, String> {
    let groups = group(with, &samples, cpu);
    for name in groups.ignored.iter().chain(&groups.unready) {
        samples.remove(*name);
    }
    if samples.is_empty() {
        return Err(NO_SAMPLES.to_owned());
    }
    let (first, utilization, usage) = ratio(&samples, against)?;
    let propose = |replicas| Proposal {
        replicas,
        utilization,
        usage,
    };
    let up_with_unready = !groups.unready.is_empty() && first > 1.0;
    if !up_with_unready && groups.missing.is_empty() {
        if with.tolerances.hold(first) {
            return Ok(propose(with.current));
        }
        return Ok(propose(up(first * groups.ready as f64)));
    }

    let mut count_as = |name: &str, value: i64| {
        let sample = Sample {
            value,
            at: with.now,
            window: SignedDuration::ZERO,
        };
        samples.insert(name.to_owned(), sample);
    };
    for name in &groups.missing {
        if first < 1.0 {
            count_as(name, full(against, name));
        } else if first > 1.0 {
            count_as(name, 0);
        }
    }
    if up_with_unready {
        for name in &groups.unready {
            count_as(name, 0);
        }
    }

    let (second, ..) = ratio(&samples, against)?;
    let turned = (first < 1.0 && second > 1.0) || (first > 1.0 && second < 1.0);
    if with.tolerances.hold(second) || turned {
        return Ok(propose(with.current));
    }
    let replicas = up(second * samples.len() as f64);
    let turned =
        (second < 1.0 && replicas > with.current) || (second > 1.0 && replicas < with.current);
    Ok(propose(if turned { with.current } else { replicas }))
}

/// The assumed usage of a pod without a sample when scaling down: all that it requests, or the target where
/// that is more.
fn full(against: &Against<'_>, name: &str) -> i64 {
    match against {
        Against::Requests(requests, target) => {
            let request = requests.get(name).copied().unwrap_or(0);
            let used = i128::from(request) * i128::from((*target).max(100)) / 100;
            i64::try_from(used).unwrap_or(i64::MAX)
        }
        Against::Average(target) => *target,
    }
}

/// A resource whose target is a share of what pods request.
///
/// # Errors
/// Where it can't be computed; upstream's words.
pub fn of_utilization(
    with: &Circumstances<'_>,
    samples: Samples,
    resource: &str,
    container: &str,
    target: i32,
) -> Result<Proposal, String> {
    if with.pods.is_empty() {
        return Err(NO_PODS.to_owned());
    }
    let groups = group(with, &samples, resource == "cpu");
    let left = samples.keys().any(|name| {
        !groups.ignored.contains(&name.as_str()) && !groups.unready.contains(&name.as_str())
    });
    if !left {
        return Err(NO_SAMPLES.to_owned());
    }
    let requests = requests(with, container, resource)?;
    of_pods(
        with,
        samples,
        resource == "cpu",
        &Against::Requests(&requests, target),
    )
}

/// A resource or another metric of pods whose target is an average in thousandths. `resource` is empty for
/// another.
///
/// # Errors
/// Where it can't be computed; upstream's words.
pub fn of_average(
    with: &Circumstances<'_>,
    samples: Samples,
    resource: &str,
    target: i64,
) -> Result<Proposal, String> {
    if with.pods.is_empty() {
        return Err(NO_PODS.to_owned());
    }
    of_pods(with, samples, resource == "cpu", &Against::Average(target))
}

// ---- metrics of something else ----

/// A metric of an object, or an external one, whose target is a value.
///
/// # Errors
/// Where it can't be computed; upstream's words.
pub fn of_value(with: &Circumstances<'_>, usage: i64, target: i64) -> Result<Proposal, String> {
    let ratio = usage as f64 / target as f64;
    let replicas = if with.current == 0 {
        up(ratio)
    } else if with.tolerances.hold(ratio) {
        with.current
    } else {
        up(ratio * ready_count(with)? as f64)
    };
    Ok(Proposal {
        replicas,
        utilization: None,
        usage,
    })
}

/// A metric of an object, or an external one, whose target is a value for each pod. `present` is the
/// scale's `status.replicas`. It is 0 while a target is scaled from zero: the usage of each is then
/// reported as 0.
pub fn of_value_per_pod(
    with: &Circumstances<'_>,
    present: i32,
    usage: i64,
    target: i64,
) -> Proposal {
    let ratio = usage as f64 / (target as f64 * f64::from(present));
    let replicas = if with.tolerances.hold(ratio) {
        present
    } else {
        up(usage as f64 / target as f64)
    };
    let each = if present == 0 {
        0
    } else if usage == i64::MAX {
        i64::MAX
    } else {
        (usage as f64 / f64::from(present)).ceil() as i64
    };
    Proposal {
        replicas,
        utilization: None,
        usage: each,
    }
}

/// The saturating sum of an external metric's values.
pub fn sum(values: &[i64]) -> i64 {
    let sum: i128 = values.iter().map(|value| i128::from(*value)).sum();
    i64::try_from(sum).unwrap_or(i64::MAX)
}

// ---- requests ----

fn amount(amounts: &[Amount], resource: &str) -> Option<i64> {
    amounts
        .iter()
        .find(|amount| amount.key == *resource)?
        .value
        .as_ref()?
        .milli()
}

fn requested(resources: Option<&Shared<ResourceRequirements>>, resource: &str) -> Option<i64> {
    amount(&resources?.requests, resource)
}

fn requests<'a>(
    with: &Circumstances<'a>,
    container: &str,
    resource: &str,
) -> Result<BTreeMap<&'a str, i64>, String> {
    with.pods
        .iter()
        .map(|pod| {
            let name = Object::metadata(&**pod).name.as_str();
            let request = match &pod.spec {
                Some(spec) if with.pod_level && container.is_empty() && has_pod_level(spec) => {
                    of_pod_level(spec, resource).ok_or_else(|| {
                        format!("missing pod-level request for {resource} in Pod {name}")
                    })?
                }
                Some(spec) => of_containers(spec, container, resource, name)?,
                None => 0,
            };
            Ok((name, request))
        })
        .collect()
}

/// Resources that may be requested for a pod as a whole.
fn is_pod_level(resource: &str) -> bool {
    matches!(resource, "cpu" | "memory") || resource.starts_with("hugepages-")
}

fn has_pod_level(spec: &PodSpec) -> bool {
    spec.resources
        .iter()
        .flat_map(|resources| &resources.requests)
        .any(|amount| is_pod_level(&amount.key))
}

/// The pod-level request; where the pod has none for this resource, what its containers need at once:
/// regular ones and sidecars together, or an init container with the sidecars before it.
fn of_pod_level(spec: &PodSpec, resource: &str) -> Option<i64> {
    let overhead = amount(&spec.overhead, resource);
    let whole = requested(spec.resources.as_ref(), resource).filter(|_| is_pod_level(resource));
    let request = whole.or_else(|| {
        let of = |resources: &Option<Shared<ResourceRequirements>>| {
            requested(resources.as_ref(), resource)
        };
        let regular: Vec<i64> = spec
            .containers
            .iter()
            .filter_map(|container| of(&container.resources))
            .collect();
        let (mut sidecars, mut most, mut known) = (0, 0, !regular.is_empty());
        for container in &spec.init_containers {
            let Some(request) = of(&container.resources) else {
                continue;
            };
            known = true;
            if container.restart_policy == "Always" {
                sidecars += request;
                most = most.max(sidecars);
            } else {
                most = most.max(sidecars + request);
            }
        }
        known.then(|| most.max(regular.iter().sum::<i64>() + sidecars))
    });
    match (request, overhead) {
        (None, None) => None,
        (request, overhead) => Some(request.unwrap_or(0) + overhead.unwrap_or(0)),
    }
}

fn of_containers(
    spec: &PodSpec,
    container: &str,
    resource: &str,
    pod: &str,
) -> Result<i64, String> {
    let regular = spec
        .containers
        .iter()
        .map(|one| (one.name.as_str(), one.resources.as_ref()));
    let sidecars = spec
        .init_containers
        .iter()
        .filter(|one| one.restart_policy == "Always")
        .map(|one| (one.name.as_str(), one.resources.as_ref()));
    let (mut request, mut found) = (0, false);
    for (name, resources) in regular.chain(sidecars) {
        if container.is_empty() || container == name {
            found = true;
            request += requested(resources, resource).ok_or_else(|| {
                format!("missing request for {resource} in container {name} of Pod {pod}")
            })?;
        }
    }
    if !container.is_empty() && !found {
        return Err(format!("container {container} not found in Pod {pod}"));
    }
    Ok(request)
}
