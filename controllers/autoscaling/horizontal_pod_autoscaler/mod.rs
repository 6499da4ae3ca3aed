//! Sets the size of what a HorizontalPodAutoscaler targets so that its metrics come near their targets.
//!
//! Watches horizontalpodautoscalers, pods, and the workloads whose selectors may overlap; asks live for the
//! target's scale and for metrics (resource, custom, external), each with a timeout of its own, before it
//! decides. Writes the target's `scale`, on the version that the decision rests on, then the autoscaler's
//! status. A key per autoscaler, evaluated once a period at instants that follow from its uid ([`turn`]).
//!
//! Remembers recommendations and scalings; see [`history`] for what outlives a handoff, a restart and a
//! crash.

use controllers_kit::{
    Controller, Descriptor, Failure, FlagDefault, Flags, Key, MetricKind, MetricSpec, Outcome,
    Plan, Query, Refusal, Sharding, SignedDuration, Snapshot, Str, Timestamp, Verb, Watches, pods,
};
use kubernetes_proto::{
    apps::{Deployment, ReplicaSet, StatefulSet},
    autoscaling::{HorizontalPodAutoscaler, HorizontalPodAutoscalerStatus},
    core::{Pod, ReplicationController},
};
use serde::{Deserialize, Serialize};

pub mod history;
pub mod limits;
mod metrics;
mod overlap;
mod plan;
pub mod replicas;
mod sources;
mod turn;

use history::History;

const PERIOD: &str = "horizontal-pod-autoscaler-sync-period";
const WINDOW: &str = "horizontal-pod-autoscaler-downscale-stabilization";
const TOLERANCE: &str = "horizontal-pod-autoscaler-tolerance";
const CPU_INITIALIZATION: &str = "horizontal-pod-autoscaler-cpu-initialization-period";
const READINESS_DELAY: &str = "horizontal-pod-autoscaler-initial-readiness-delay";

const CONFIGURABLE_TOLERANCE: &str = "HPAConfigurableTolerance";
const SCALE_TO_ZERO: &str = "HPAScaleToZero";
const POD_LEVEL: &str = "PodLevelResources";

const RECONCILIATIONS: &str = "horizontal_pod_autoscaler_controller_reconciliations_total";
const RECONCILIATION_SECONDS: &str =
    "horizontal_pod_autoscaler_controller_reconciliation_duration_seconds";
const COMPUTATIONS: &str = "horizontal_pod_autoscaler_controller_metric_computation_total";
const COMPUTATION_SECONDS: &str =
    "horizontal_pod_autoscaler_controller_metric_computation_duration_seconds";
const COUNT: &str = "horizontal_pod_autoscaler_controller_num_horizontal_pod_autoscalers";
const DESIRED: &str = "horizontal_pod_autoscaler_controller_desired_replicas";

/// Periods shorter than this would evaluate autoscalers faster than answers come.
const PERIOD_MILLIS_MIN: i64 = 100;

/// The horizontal-pod-autoscaler controller.
pub struct HorizontalPodAutoscalers {
    settings: Settings,
}

/// The values of flags and gates.
#[derive(Clone, Debug)]
struct Settings {
    period_millis: i64,
    window: SignedDuration,
    tolerance: f64,
    cpu_initialization: SignedDuration,
    readiness_delay: SignedDuration,
    configurable_tolerance: bool,
    scale_to_zero: bool,
    pod_level: bool,
}

/// What is remembered of one autoscaler.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// The autoscaler's uid: another of the same name starts over.
    uid: Str,
    /// The turn that was taken last.
    turn: Option<i64>,
    /// Whether the turn must be repeated: the target had changed since the decision.
    redo: bool,
    /// Whether the previous owner's checkpoint in the API was restored.
    restored: bool,
    /// The target's selector, as its scale last had it.
    selector: Option<String>,
    /// Rounds of queries in this turn.
    rounds: u8,
    /// Recommendations and scalings.
    history: History,
    /// The scaling that is being written.
    rescale: Option<Rescale>,
    /// A scaling that was abandoned when the fence closed: the target's size shows whether it happened.
    doubtful: Option<Rescale>,
    /// A scaling that has failed and has not been reported yet.
    failed: Option<Failed>,
}

/// A scaling that is being written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Rescale {
    from: i32,
    to: i32,
    at: Timestamp,
    /// The status if it fails.
    unscaled: HorizontalPodAutoscalerStatus,
}

/// A scaling that has failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Failed {
    why: String,
    status: HorizontalPodAutoscalerStatus,
}

impl Memory {
    fn of(uid: Str) -> Self {
        Self {
            uid,
            ..Self::default()
        }
    }

    fn is_of(&self, uid: &str) -> bool {
        self.uid == *uid
    }

    /// Marks the turn as taken.
    fn done(&mut self, settings: &Settings, now: Timestamp) {
        self.turn = Some(turn::present(settings, now, &self.uid));
        self.redo = false;
        self.rounds = 0;
    }

    /// Whether there may be one more round of queries.
    fn another_round(&mut self, most: u8) -> bool {
        self.rounds = self.rounds.saturating_add(1);
        self.rounds < most
    }
}

/// Its metrics, named as upstream names them.
const METRICS: &[MetricSpec] = &[
    MetricSpec::new(
        RECONCILIATIONS,
        MetricKind::Counter,
        &["action", "error"],
        "Number of reconciliations of HPA controller.",
    ),
    MetricSpec::new(
        RECONCILIATION_SECONDS,
        MetricKind::Histogram(0.001, 2.0, 15),
        &["action", "error"],
        "The time(seconds) that the HPA controller takes to reconcile once.",
    ),
    MetricSpec::new(
        COMPUTATIONS,
        MetricKind::Counter,
        &["action", "error", "metric_type"],
        "Number of metric computations.",
    ),
    MetricSpec::new(
        COMPUTATION_SECONDS,
        MetricKind::Histogram(0.001, 2.0, 15),
        &["action", "error", "metric_type"],
        "The time(seconds) that the HPA controller takes to calculate one metric; all metrics of an HPA are \
                 asked for at once, so each counts the whole.",
    ),
    MetricSpec::new(
        COUNT,
        MetricKind::Sum,
        &[],
        "Current number of controlled HPA objects; the replicas' sum is the cluster's.",
    ),
    MetricSpec::new(
        DESIRED,
        MetricKind::Gauge,
        &["namespace", "hpa_name"],
        "Current desired replica count for HPA objects.",
    ),
];

impl Controller for HorizontalPodAutoscalers {
    type Memory = Memory;

    fn describe() -> Descriptor {
        let seconds = |count| FlagDefault::Duration(std::time::Duration::from_secs(count));
        Descriptor::new("horizontal-pod-autoscaler-controller", Sharding::ByObject)
            .aliases(&["horizontalpodautoscaling"])
            .service_account("horizontal-pod-autoscaler")
            .event_source("horizontal-pod-autoscaler")
            .queue("horizontalpodautoscaler")
            .retry_max_flag(PERIOD)
            .workers(
                "concurrent-horizontal-pod-autoscaler-syncs",
                5,
                "The number of horizontal pod autoscaler objects that are allowed to sync concurrently; those that \
                 wait for an answer do not count.",
            )
            .flag(
                PERIOD,
                seconds(15),
                "The period for syncing the number of pods in horizontal pod autoscaler.",
            )
            .flag(
                WINDOW,
                seconds(300),
                "The period for which autoscaler will look backwards and not scale down below any recommendation it \
                 made during that period.",
            )
            .flag(
                TOLERANCE,
                FlagDefault::Float(0.1),
                "The minimum change (from 1.0) in the desired-to-actual metrics ratio for the horizontal pod \
                 autoscaler to consider scaling.",
            )
            .flag(
                CPU_INITIALIZATION,
                seconds(300),
                "The period after pod start when CPU samples might be skipped.",
            )
            .flag(
                READINESS_DELAY,
                seconds(30),
                "The period after pod start during which readiness changes will be treated as initial readiness.",
            )
            .gate(CONFIGURABLE_TOLERANCE, true)
            .gate(SCALE_TO_ZERO, false)
            .gate(POD_LEVEL, true)
            .reads_live::<HorizontalPodAutoscaler>()
            .writes_status::<HorizontalPodAutoscaler>()
            .rule("*", "*/scale", &["get", "patch"])
            .reads::<Pod>()
            .reads::<ReplicationController>()
            .reads::<Deployment>()
            .reads::<ReplicaSet>()
            .reads::<StatefulSet>()
            .rule("metrics.k8s.io", "pods", &["list"])
            .rule("custom.metrics.k8s.io", "*", &["get", "list"])
            .rule("external.metrics.k8s.io", "*", &["get", "list"])
            .metrics(METRICS)
            .differences(include_str!("differences.md"))
    }

    fn new(flags: &Flags) -> Self {
        let duration =
            |name| SignedDuration::try_from(flags.duration(name)).unwrap_or(SignedDuration::MAX);
        let period = i64::try_from(duration(PERIOD).as_millis()).unwrap_or(i64::MAX);
        // Windows longer than a year would leave the calendar.
        let bounded = |name| duration(name).min(SignedDuration::from_hours(24 * 365));
        Self {
            settings: Settings {
                period_millis: period.max(PERIOD_MILLIS_MIN),
                window: bounded(WINDOW),
                tolerance: flags.float(TOLERANCE),
                cpu_initialization: bounded(CPU_INITIALIZATION),
                readiness_delay: bounded(READINESS_DELAY),
                configurable_tolerance: flags.bool(CONFIGURABLE_TOLERANCE),
                scale_to_zero: flags.bool(SCALE_TO_ZERO),
                pod_level: flags.bool(POD_LEVEL),
            },
        }
    }

    fn watch(&self, on: &mut Watches) {
        on.catalogue();
        on.kind::<HorizontalPodAutoscaler>()
            .wakes_itself()
            .indexed_by(overlap::TARGET, overlap::target);
        on.kind::<Pod>()
            .indexed_by_labels(pods::LABELED, pods::labels_of);
        on.kind::<Deployment>()
            .indexed_by(overlap::WANTED, overlap::wanted::<Deployment>);
        on.kind::<ReplicaSet>()
            .indexed_by(overlap::WANTED, overlap::wanted::<ReplicaSet>);
        on.kind::<StatefulSet>()
            .indexed_by(overlap::WANTED, overlap::wanted::<StatefulSet>);
        on.kind::<ReplicationController>()
            .indexed_by(overlap::WANTED, overlap::wanted::<ReplicationController>);
    }

    fn ask(&self, key: &Key, seen: &Snapshot<'_>, memory: &Memory) -> Vec<Query> {
        plan::ask(&self.settings, key, seen, memory)
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, memory: &mut Memory) -> Result<Plan, Refusal> {
        plan::plan(&self.settings, key, seen, memory)
    }

    fn learn(&self, outcome: &Outcome<'_>, memory: &mut Memory) {
        let is_scale = matches!(
            outcome.action.verb,
            Verb::Patch {
                subresource: "scale",
                ..
            }
        );
        let Some(rescale) = memory.rescale.take_if(|_| is_scale) else {
            return;
        };
        match &outcome.result {
            Ok(_) => {
                // An earlier one can't be executed any more: the target's version has changed.
                memory.doubtful = None;
                memory.history.scaled(rescale.from, rescale.to, rescale.at);
            }
            // The decision rests on an outdated target: it is repeated on the present one.
            Err(Failure::Conflict(_) | Failure::Skipped) => memory.redo = true,
            // It may have been sent before the fence closed, and this replica may keep its ranges.
            Err(Failure::Fenced) => {
                memory.redo = true;
                memory.doubtful = Some(rescale);
            }
            // It may have been executed: its effect counts, and the next reconcile sees the result.
            Err(Failure::Timeout(why)) => {
                memory.history.scaled(rescale.from, rescale.to, rescale.at);
                memory.failed = Some(Failed {
                    why: why.clone(),
                    status: rescale.unscaled,
                });
            }
            Err(failure) => {
                memory.failed = Some(Failed {
                    why: failure.to_string(),
                    status: rescale.unscaled,
                });
            }
        }
    }

    fn shift(&self, memory: &mut Memory, by: SignedDuration) {
        memory.history.shift(by);
        if let Some(doubtful) = &mut memory.doubtful {
            doubtful.at = doubtful.at.checked_add(by).unwrap_or(doubtful.at);
        }
    }
}

#[cfg(test)]
mod tests;
