//! What each metric of an autoscaler asks for, and what the status reports of it.

use controllers_kit::{Snapshot, selectors::in_messages};
use kubernetes_proto::{
    autoscaling::{
        ContainerResourceMetricStatus, ExternalMetricSource, ExternalMetricStatus,
        MetricIdentifier, MetricSpec, MetricStatus, MetricTarget, MetricValueStatus,
        ObjectMetricSource, ObjectMetricStatus, PodsMetricSource, PodsMetricStatus,
        ResourceMetricStatus,
    },
    meta::Quantity,
};

use super::{
    replicas::{self, Circumstances, Proposal},
    sources::{self, Asking},
};

/// A metric that was computed.
#[derive(Clone, Debug, PartialEq)]
pub struct Computed {
    /// The size that it proposes.
    pub replicas: i32,
    /// Its name in events and conditions.
    pub name: String,
    /// As the status reports it.
    pub status: MetricStatus,
}

/// A metric that could not be computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The reason of event and condition.
    pub reason: &'static str,
    /// The message of event and condition.
    pub why: String,
    /// What the summary over all metrics says.
    pub summary: String,
    /// Whether the autoscaler's spec is at fault.
    pub spec: bool,
}

/// What all metrics asked for together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The largest proposal; `None` where none counts.
    pub replicas: Option<i32>,
    /// The metric that asks for it.
    pub name: String,
    /// One per metric, empty where it could not be computed.
    pub statuses: Vec<MetricStatus>,
    /// What failed, in the order of the metrics.
    pub failures: Vec<Failed>,
    /// Each metric's type, with its proposal if there is one.
    pub proposals: Vec<(String, Option<i32>)>,
}

impl Outcome {
    /// The summary of the failures; `None` for none.
    pub fn error(&self) -> Option<String> {
        let first = self.failures.first()?;
        Some(format!(
            "invalid metrics ({} invalid out of {}), first error is: {}",
            self.failures.len(),
            self.statuses.len(),
            first.summary
        ))
    }
}

/// The inputs of a metric's computation.
pub struct Given<'a> {
    /// The cache and the answers.
    pub seen: &'a Snapshot<'a>,
    /// How they were asked for.
    pub asking: Asking<'a>,
    /// The target's pods, sizes and bounds.
    pub with: Circumstances<'a>,
    /// The scale's `status.replicas`.
    pub present: i32,
}

/// Computes all metrics. The largest proposal counts; a failed metric forbids scaling below the present
/// size.
pub fn all(specs: &[MetricSpec], given: &Given<'_>) -> Outcome {
    let mut outcome = Outcome::default();
    let mut best: Option<(i32, String)> = None;
    for spec in specs {
        match one(spec, given) {
            Ok(computed) => {
                outcome
                    .proposals
                    .push((spec.r#type.clone(), Some(computed.replicas)));
                outcome.statuses.push(computed.status);
                // A proposal of none gives way to any other.
                if best
                    .as_ref()
                    .is_none_or(|(most, _)| *most == 0 || computed.replicas > *most)
                {
                    best = Some((computed.replicas, computed.name));
                }
            }
            Err(failed) => {
                outcome.proposals.push((spec.r#type.clone(), None));
                outcome.statuses.push(MetricStatus::default());
                outcome.failures.push(failed);
            }
        }
    }
    let blocked = best
        .as_ref()
        .is_none_or(|(most, _)| !outcome.failures.is_empty() && *most < given.with.current);
    if let Some((replicas, name)) = best.filter(|_| !blocked) {
        outcome.replicas = Some(replicas);
        outcome.name = name;
    }
    outcome
}

fn one(spec: &MetricSpec, given: &Given<'_>) -> Result<Computed, Failed> {
    match spec.r#type.as_str() {
        "Resource" => {
            let source = spec.resource.clone().unwrap_or_default();
            let target = source.target.unwrap_or_default();
            resource(given, &source.name, "", &target)
                .map(|(proposal, name, current)| Computed {
                    replicas: proposal.replicas,
                    name,
                    status: MetricStatus {
                        r#type: spec.r#type.clone(),
                        resource: Some(ResourceMetricStatus {
                            name: source.name.clone(),
                            current: Some(current),
                        }),
                        ..MetricStatus::default()
                    },
                })
                .map_err(|why| Failed {
                    reason: "FailedGetResourceMetric",
                    summary: format!("failed to get {} resource metric value: {why}", source.name),
                    why,
                    spec: false,
                })
        }
        "ContainerResource" => {
            let source = spec.container_resource.clone().unwrap_or_default();
            let target = source.target.unwrap_or_default();
            resource(given, &source.name, &source.container, &target)
                .map(|(proposal, name, current)| Computed {
                    replicas: proposal.replicas,
                    name,
                    status: MetricStatus {
                        r#type: spec.r#type.clone(),
                        container_resource: Some(ContainerResourceMetricStatus {
                            name: source.name.clone(),
                            container: source.container.clone(),
                            current: Some(current),
                        }),
                        ..MetricStatus::default()
                    },
                })
                .map_err(|why| Failed {
                    reason: "FailedGetContainerResourceMetric",
                    summary: format!(
                        "failed to get {} container metric value: {why}",
                        source.container
                    ),
                    why,
                    spec: false,
                })
        }
        "Pods" => {
            let source = spec.pods.clone().unwrap_or_default();
            pods(given, &source).map_err(|why| Failed {
                reason: "FailedGetPodsMetric",
                summary: format!("failed to get pods metric value: {why}"),
                why,
                spec: false,
            })
        }
        "Object" => {
            let source = spec.object.clone().unwrap_or_default();
            object(given, &source).map_err(|(why, summary)| Failed {
                reason: "FailedGetObjectMetric",
                summary: format!("failed to get object metric value: {summary}"),
                why,
                spec: false,
            })
        }
        "External" => {
            let source = spec.external.clone().unwrap_or_default();
            let metric = source.metric.clone().unwrap_or_default().name;
            external(given, &source).map_err(|(why, summary)| Failed {
                reason: "FailedGetExternalMetric",
                summary: format!("failed to get {metric} external metric value: {summary}"),
                why,
                spec: false,
            })
        }
        other => {
            let why = format!("unknown metric source type {other:?}");
            Err(Failed {
                reason: "InvalidMetricSourceType",
                summary: why.clone(),
                why,
                spec: true,
            })
        }
    }
}

fn milli(quantity: &Quantity) -> i64 {
    quantity.milli().unwrap_or(0)
}

fn decimal(milli: i64) -> Option<Quantity> {
    Some(Quantity::of_milli(milli))
}

fn resource(
    given: &Given<'_>,
    resource: &str,
    container: &str,
    target: &MetricTarget,
) -> Result<(Proposal, String, MetricValueStatus), String> {
    let samples = || {
        sources::usage(given.seen, &given.asking.resource(), resource, container)
            .map_err(|error| format!("unable to get metrics for resource {resource}: {error}"))
    };
    // Memory is given in the metrics server's own units.
    let amount = |milli| {
        if resource == "memory" {
            Some(Quantity::of_milli_binary(milli))
        } else {
            decimal(milli)
        }
    };
    if let Some(average) = &target.average_value {
        let proposal = samples()
            .and_then(|samples| {
                replicas::of_average(&given.with, samples, resource, milli(average))
            })
            .map_err(|error| format!("failed to get {resource} usage: {error}"))?;
        let current = MetricValueStatus {
            average_value: amount(proposal.usage),
            ..MetricValueStatus::default()
        };
        return Ok((proposal, format!("{resource} resource"), current));
    }
    let Some(utilization) = target.average_utilization else {
        return Err(
            "invalid resource metric source: neither an average utilization target nor an average value (usage) \
             target was set"
                .to_owned(),
        );
    };
    let proposal = samples()
        .and_then(|samples| {
            replicas::of_utilization(&given.with, samples, resource, container, utilization)
        })
        .map_err(|error| format!("failed to get {resource} utilization: {error}"))?;
    let current = MetricValueStatus {
        average_utilization: proposal.utilization,
        average_value: amount(proposal.usage),
        value: None,
    };
    let kind = if container.is_empty() {
        "resource"
    } else {
        "container resource"
    };
    let name = format!("{resource} {kind} utilization (percentage of request)");
    Ok((proposal, name, current))
}

fn pods(given: &Given<'_>, source: &PodsMetricSource) -> Result<Computed, String> {
    let metric = source.metric.clone().unwrap_or_default();
    let target = source.target.clone().unwrap_or_default();
    let target = target.average_value.as_ref().map_or(0, milli);
    let samples = sources::custom(given.seen, given.asking.pods(&metric), &metric.name)
        .map_err(|error| format!("unable to get metric {}: {error}", metric.name))?;
    let proposal = replicas::of_average(&given.with, samples, "", target)?;
    Ok(Computed {
        replicas: proposal.replicas,
        name: format!("pods metric {}", metric.name),
        status: MetricStatus {
            r#type: "Pods".to_owned(),
            pods: Some(PodsMetricStatus {
                metric: Some(metric),
                current: Some(MetricValueStatus {
                    average_value: decimal(proposal.usage),
                    ..MetricValueStatus::default()
                }),
            }),
            ..MetricStatus::default()
        },
    })
}

/// An error's text for the condition and for the summary.
type Reasons = (String, String);

fn object(given: &Given<'_>, source: &ObjectMetricSource) -> Result<Computed, Reasons> {
    let metric = source.metric.clone().unwrap_or_default();
    let described = source.described_object.clone().unwrap_or_default();
    let target = source.target.clone().unwrap_or_default();
    let usage = || {
        let query = given.asking.object(&described, &metric);
        sources::object(given.seen, query, &described, &metric.name).map_err(|error| {
            // The words stand where upstream has put them.
            format!(
                "unable to get metric {}: {} on {} {}/{error}",
                metric.name, described.kind, given.asking.namespace, described.name
            )
        })
    };
    let status = |current| MetricStatus {
        r#type: "Object".to_owned(),
        object: Some(ObjectMetricStatus {
            metric: Some(metric.clone()),
            current: Some(current),
            described_object: Some(described.clone()),
        }),
        ..MetricStatus::default()
    };
    match (target.r#type.as_str(), &target.value, &target.average_value) {
        ("Value", Some(value), _) => {
            let proposal = usage()
                .and_then(|usage| replicas::of_value(&given.with, usage, milli(value)))
                .map_err(|why| (why.clone(), why))?;
            Ok(Computed {
                replicas: proposal.replicas,
                name: format!("{} metric {}", described.kind, metric.name),
                status: status(MetricValueStatus {
                    value: decimal(proposal.usage),
                    ..MetricValueStatus::default()
                }),
            })
        }
        ("AverageValue", _, Some(value)) => {
            let usage = usage().map_err(|why| {
                let summary = format!("failed to get {} object metric: {why}", metric.name);
                (why, summary)
            })?;
            let proposal =
                replicas::of_value_per_pod(&given.with, given.present, usage, milli(value));
            Ok(Computed {
                replicas: proposal.replicas,
                name: sources::named(&metric),
                status: status(MetricValueStatus {
                    average_value: decimal(proposal.usage),
                    ..MetricValueStatus::default()
                }),
            })
        }
        _ => {
            let why = "invalid object metric source: neither a value target nor an average value target was set";
            Err((why.to_owned(), why.to_owned()))
        }
    }
}

fn external(given: &Given<'_>, source: &ExternalMetricSource) -> Result<Computed, Reasons> {
    let metric: MetricIdentifier = source.metric.clone().unwrap_or_default();
    let target = source.target.clone().unwrap_or_default();
    let usage = || {
        let query = given.asking.external(&metric);
        sources::external(given.seen, query, &metric.name)
            .map(|values| replicas::sum(&values))
            .map_err(|error| {
                format!(
                    "unable to get external metric {}/{}/{}: {error}",
                    given.asking.namespace,
                    metric.name,
                    in_messages(metric.selector.as_ref())
                )
            })
    };
    let computed = |proposal: Proposal, current| Computed {
        replicas: proposal.replicas,
        name: sources::named(&metric),
        status: MetricStatus {
            r#type: "External".to_owned(),
            external: Some(ExternalMetricStatus {
                metric: Some(metric.clone()),
                current: Some(current),
            }),
            ..MetricStatus::default()
        },
    };
    if let Some(average) = &target.average_value {
        let usage = usage().map_err(|why| {
            let summary = format!("failed to get {} external metric: {why}", metric.name);
            (why, summary)
        })?;
        let proposal =
            replicas::of_value_per_pod(&given.with, given.present, usage, milli(average));
        return Ok(computed(
            proposal,
            MetricValueStatus {
                average_value: decimal(proposal.usage),
                ..MetricValueStatus::default()
            },
        ));
    }
    if let Some(value) = &target.value {
        let proposal = usage()
            .and_then(|usage| replicas::of_value(&given.with, usage, milli(value)))
            .map_err(|why| {
                let summary = format!("failed to get external metric {}: {why}", metric.name);
                (why, summary)
            })?;
        return Ok(computed(
            proposal,
            MetricValueStatus {
                value: decimal(proposal.usage),
                ..MetricValueStatus::default()
            },
        ));
    }
    let why = "invalid external metric source: neither a value target nor an average value target was set";
    Err((why.to_owned(), why.to_owned()))
}
