//! What must hold of autoscaling, whatever becomes of replicas: nothing shrinks while the stabilization
//! window still holds a larger recommendation, and nothing grows or shrinks faster than a policy of pods
//! allows.
//!
//! What was recommended follows from the values that were reported: an external metric's average over pods. A
//! value that has come just when its range changed hands may not have been recommended, so a few are let
//! pass; and a process may have stood still for a moment between a decision and its write.

use std::{collections::BTreeMap, time::Duration};

use controllers_kit::Object;
use kubernetes_proto::{
    AnyObject, Resource,
    autoscaling::{HorizontalPodAutoscaler, HpaScalingRules},
};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    metrics,
    server::{Change, Request, Server},
};

const CONTROLLER: &str = "horizontal-pod-autoscaler-controller";
/// The period of reads in a simulated fleet.
pub const PERIOD: Duration = Duration::from_secs(2);
/// The stabilization window of scale-downs in a simulated fleet.
pub const WINDOW: Duration = Duration::from_secs(30);
/// Values that may have been reported without becoming a recommendation.
const UNHEARD: usize = 3;
/// From a decision to the send of its write, at most: a process that is stuck for longer has lost its
/// fence by then.
const ON_THE_WAY: Duration = Duration::from_secs(5);

/// A scaling.
struct Scaled {
    sent: Instant,
    by: i64,
}

/// All that is remembered.
#[derive(Default)]
pub struct Scaling {
    /// By namespace and external metric: what was reported, and when.
    reported: BTreeMap<(String, String), Vec<(Instant, i64)>>,
    /// By the target's uid.
    scaled: BTreeMap<String, Vec<Scaled>>,
    /// How often a target has become smaller.
    pub shrunk: u64,
}

impl Scaling {
    /// A process has been given a metric's value.
    pub fn reported(&mut self, request: &Request, body: &[u8]) {
        let Some((namespace, name)) = metrics::external(&request.path) else {
            return;
        };
        let json: Value = serde_json::from_slice(body).unwrap_or_default();
        let value = json["items"][0]["value"].as_str();
        if let Some(value) = value.and_then(|value| value.parse().ok()) {
            self.reported
                .entry((namespace.to_owned(), name.to_owned()))
                .or_default()
                .push((Instant::now(), value));
        }
    }

    /// Judges a change that was sent at an instant by a controller.
    pub fn after(
        &mut self,
        server: &Server,
        change: &Change,
        controller: Option<&str>,
        sent: Instant,
    ) -> Option<String> {
        let (old, new) = (change.old.as_ref()?, change.new.as_ref()?);
        let (from, to) = (size(old)?, size(new)?);
        if controller != Some(CONTROLLER) || from == to {
            return None;
        }
        self.shrunk += u64::from(to < from);
        let meta = new.metadata();
        let resource = new.resource();
        let wrong = server
            .world
            .all::<HorizontalPodAutoscaler>()
            .into_iter()
            .find(|hpa| {
                Object::metadata(&**hpa).namespace == meta.namespace
                    && targets(hpa, resource, &meta.name)
            })
            .and_then(|hpa| self.judge(&hpa, &meta.uid, (from, to), sent));
        self.scaled
            .entry(meta.uid.to_string())
            .or_default()
            .push(Scaled {
                sent,
                by: to - from,
            });
        wrong.map(|why| {
            format!(
                "{CONTROLLER}: scaled {} from {from} to {to}: {why}",
                meta.name
            )
        })
    }

    fn judge(
        &self,
        hpa: &HorizontalPodAutoscaler,
        target: &str,
        (from, to): (i64, i64),
        sent: Instant,
    ) -> Option<String> {
        let spec = hpa.spec.as_ref()?;
        let most = i64::from(spec.max_replicas);
        let least = i64::from(spec.min_replicas.unwrap_or(1));
        if from > most || from < least {
            return None;
        }
        let behavior = spec.behavior.as_ref();
        let rules = behavior.and_then(|behavior| match to < from {
            true => behavior.scale_down.as_ref(),
            false => behavior.scale_up.as_ref(),
        });
        let too_fast = rules.and_then(|rules| self.too_fast(rules, target, to - from, sent));
        if too_fast.is_some() || to > from {
            return too_fast;
        }
        let [metric] = spec.metrics.as_slice() else {
            return None;
        };
        let external = metric.external.as_ref()?;
        let average = external.target.as_ref()?.average_value.as_ref()?;
        let average = average.milli()? / 1000;
        let place = (
            Object::metadata(hpa).namespace.to_string(),
            external.metric.as_ref()?.name.clone(),
        );
        let window = rules
            .and_then(|rules| rules.stabilization_window_seconds)
            .map_or(WINDOW, |seconds| {
                Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
            });
        let larger = self
            .reported
            .get(&place)?
            .iter()
            .filter(|(at, _)| *at <= sent && sent - *at < window)
            .filter(|(_, value)| ((value + average - 1) / average).clamp(least, most) > to)
            .count();
        (larger > UNHEARD)
            .then(|| format!("within the window of {window:?} more was wanted {larger} times"))
    }

    /// Whether a policy of pods forbids a change.
    fn too_fast(
        &self,
        rules: &HpaScalingRules,
        target: &str,
        by: i64,
        sent: Instant,
    ) -> Option<String> {
        let [policy] = rules.policies.as_slice() else {
            return None;
        };
        if policy.r#type != "Pods" {
            return None;
        }
        let period = Duration::from_secs(u64::try_from(policy.period_seconds).ok()?);
        let before: i64 = self
            .scaled
            .get(target)
            .into_iter()
            .flatten()
            .filter(|one| one.by.signum() == by.signum())
            .filter(|one| one.sent <= sent && sent - one.sent + ON_THE_WAY < period)
            .map(|one| one.by.abs())
            .sum();
        (before + by.abs() > i64::from(policy.value)).then(|| {
            format!(
                "{} more within {period:?}, {} may be",
                before + by.abs(),
                policy.value
            )
        })
    }
}

fn targets(hpa: &HorizontalPodAutoscaler, resource: &Resource, name: &str) -> bool {
    hpa.spec
        .as_ref()
        .and_then(|spec| spec.scale_target_ref.as_ref())
        .is_some_and(|target| target.kind == resource.kind && target.name == name)
}

fn size(object: &AnyObject) -> Option<i64> {
    object.to_json()["spec"]["replicas"].as_i64()
}
