//! The probes of a kubelet, as `deploy/` sets them, at running replicas.

use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use harness::{Replica, workspace_root};
use serde_json::Value;
use tokio::time::MissedTickBehavior;

/// What is probed of whom.
const MANIFESTS: [(&str, &str); 2] = [
    (
        "deploy/base/stateful-set.yaml",
        "/spec/template/spec/containers/0",
    ),
    ("deploy/static-pod/manifold.yaml", "/spec/containers/0"),
];

/// One probe of a container.
#[derive(Debug, Clone)]
pub(super) struct Probe {
    /// Whether its failures restart the container.
    pub(super) restarts: bool,
    path: String,
    period: Duration,
    timeout: Duration,
    /// Failures in a row that have an effect.
    threshold: u64,
}

/// What a probe has found at all replicas.
#[derive(Debug, Default)]
pub(super) struct Found {
    asked: u64,
    failed: u64,
    longest_run: u64,
    slowest: Duration,
    /// How often the threshold was reached.
    pub(super) effects: u64,
}

/// A probe, and what it has found.
#[derive(Debug)]
pub(super) struct Kubelet {
    pub(super) probe: Probe,
    found: Mutex<Found>,
}

/// The probes of liveness and readiness in the manifests.
pub(super) fn kubelets() -> Result<Vec<Kubelet>> {
    let mut all = Vec::new();
    for (file, container) in MANIFESTS {
        let text = std::fs::read_to_string(workspace_root().join(file)).context(file)?;
        let mut documents = serde_yaml::Deserializer::from_str(&text)
            .map(<Value as serde::Deserialize>::deserialize);
        let container = documents.find_map(|document| document.ok()?.pointer(container).cloned());
        let container = container.with_context(|| format!("no container in {file}"))?;
        for (name, restarts) in [("livenessProbe", true), ("readinessProbe", false)] {
            if let Some(probe) = container.get(name) {
                let probe = parsed(probe, restarts);
                all.push(Kubelet {
                    probe: probe.with_context(|| format!("{name} of {file}"))?,
                    found: Mutex::default(),
                });
            }
        }
    }
    Ok(all)
}

fn parsed(probe: &Value, restarts: bool) -> Option<Probe> {
    let number = |name: &str| probe.get(name)?.as_u64();
    Some(Probe {
        restarts,
        path: probe.pointer("/httpGet/path")?.as_str()?.to_owned(),
        period: Duration::from_secs(number("periodSeconds")?),
        timeout: Duration::from_secs(number("timeoutSeconds")?),
        threshold: number("failureThreshold")?,
    })
}

impl Kubelet {
    /// Asks one replica again and again, each time over a connection of its own.
    pub(super) async fn ask(&self, replica: &Replica) -> Result<Infallible> {
        let mut periods = tokio::time::interval(self.probe.period);
        periods.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut run = 0;
        loop {
            periods.tick().await;
            let request = http::Request::get(&self.probe.path).body(Vec::new())?;
            let (client, since) = (replica.client()?, Instant::now());
            let answer =
                tokio::time::timeout(self.probe.timeout, client.request_text(request)).await;
            let well = matches!(answer, Ok(Ok(_)));
            run = if well { 0 } else { run + 1 };
            let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            found.asked += 1;
            found.failed += u64::from(!well);
            found.longest_run = found.longest_run.max(run);
            found.slowest = found.slowest.max(since.elapsed());
            found.effects += u64::from(run == self.probe.threshold);
        }
    }

    /// How often the threshold was reached since the start, and all in words.
    pub(super) fn said(&self) -> (u64, String) {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let effect = if self.probe.restarts {
            "restarts"
        } else {
            "times unready"
        };
        let said = format!(
            "{} each {:?}: {} answers, {} failures, {} in a row of {}, slowest {:.0?}: {} {effect}",
            self.probe.path,
            self.probe.period,
            found.asked,
            found.failed,
            found.longest_run,
            self.probe.threshold,
            found.slowest,
            found.effects
        );
        (found.effects, said)
    }
}

#[test]
fn what_a_kubelet_asks_is_read_from_the_manifests() {
    let kubelets = kubelets().expect("probes");
    let found: Vec<_> = kubelets
        .iter()
        .map(|kubelet| (kubelet.probe.path.as_str(), kubelet.probe.restarts))
        .collect();
    assert_eq!(
        found,
        [("/livez", true), ("/readyz", false), ("/healthz", true)]
    );
}
