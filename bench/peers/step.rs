//! What is measured, and how much of it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::peer::{Peer, Qps};

/// Pods that fit on a node.
pub(crate) const PODS_PER_NODE: usize = 110;
const NODES_MIN: usize = 5;
/// Shorter, a measurement of managers at rest means nothing.
const REST_MIN: Duration = Duration::from_secs(5);

/// One step. Those that need another's objects stand after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Step {
    Empty,
    Create,
    RollOut,
    ScaleDown,
    DeleteBackground,
    DeleteForeground,
    Namespaces,
    Job,
    Deployment,
    Hold,
    Rest,
    Start,
    Killed,
    Stopped,
    Added,
}

impl Step {
    pub(crate) const ALL: [Self; 15] = [
        Self::Empty,
        Self::Create,
        Self::RollOut,
        Self::ScaleDown,
        Self::DeleteBackground,
        Self::DeleteForeground,
        Self::Namespaces,
        Self::Job,
        Self::Deployment,
        Self::Hold,
        Self::Rest,
        Self::Start,
        Self::Killed,
        Self::Stopped,
        Self::Added,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Create => "create",
            Self::RollOut => "roll-out",
            Self::ScaleDown => "scale-down",
            Self::DeleteBackground => "delete-background",
            Self::DeleteForeground => "delete-foreground",
            Self::Namespaces => "namespaces",
            Self::Job => "job",
            Self::Deployment => "deployment",
            Self::Hold => "hold",
            Self::Rest => "rest",
            Self::Start => "start",
            Self::Killed => "killed",
            Self::Stopped => "stopped",
            Self::Added => "added",
        }
    }

    /// What happens, at these sizes.
    pub(crate) fn words(self, sizes: &Sizes) -> String {
        let Sizes {
            web,
            gone,
            namespaces,
            job,
            deployment,
            hold,
            rest,
            ..
        } = sizes;
        let held = hold.0 * hold.1;
        match self {
            Self::Empty => format!(
                "nothing happens for {} s, and no pod is there",
                rest.as_secs()
            ),
            Self::Create => format!("{} Deployments of {} pods are created", web.0, web.1),
            Self::RollOut => format!("they get a new template, {} pods in all", web.0 * web.1),
            Self::ScaleDown => format!("each is scaled down to {}", web.1 / 5),
            Self::DeleteBackground => format!(
                "{} Deployments of {} pods are deleted in the background",
                gone.0, gone.1
            ),
            Self::DeleteForeground => format!(
                "{} Deployments of {} pods are deleted in the foreground",
                gone.0, gone.1
            ),
            Self::Namespaces => format!(
                "{} namespaces of {} ConfigMaps are deleted at once",
                namespaces.0, namespaces.1
            ),
            Self::Job => format!("a Job of {job} pods runs to completion"),
            Self::Deployment => format!("a Deployment of {deployment} pods is created"),
            Self::Hold => format!(
                "{} Deployments of {} pods are created and held",
                hold.0, hold.1
            ),
            Self::Rest => format!(
                "nothing happens for {} s, with {held} pods held",
                rest.as_secs()
            ),
            Self::Start => format!(
                "the managers start with {held} pods there and {PENDING} Deployments that nobody has served"
            ),
            Self::Killed => "SIGKILL to the leader, beside a standby, or to a replica".to_owned(),
            Self::Stopped => "SIGTERM to the leader, beside a standby, or to a replica".to_owned(),
            Self::Added => "a standby or a replica more".to_owned(),
        }
    }

    /// The controllers without which nothing would come of it.
    fn needs(self) -> &'static [&'static str] {
        match self {
            Self::DeleteBackground | Self::DeleteForeground => &[
                "deployment-controller",
                "replicaset-controller",
                "garbage-collector-controller",
            ],
            Self::Empty => &[],
            Self::Namespaces => &["namespace-controller"],
            Self::Job => &["job-controller", "garbage-collector-controller"],
            _ => &[
                "deployment-controller",
                "replicaset-controller",
                "garbage-collector-controller",
            ],
        }
    }

    /// The first controller that it needs and that is not among these.
    pub(crate) fn lacks(self, built: &[&str]) -> Option<&'static str> {
        self.needs()
            .iter()
            .find(|name| !built.contains(name))
            .copied()
    }

    /// Why it does not apply to this peer, if so.
    pub(crate) fn unfit(self, peer: Peer) -> Option<&'static str> {
        match (self, peer) {
            (Self::Killed | Self::Stopped, Peer::Manifold { replicas: 1, .. }) => {
                Some("nobody would be left")
            }
            (
                Self::Empty | Self::Rest | Self::Start | Self::Killed | Self::Stopped | Self::Added,
                Peer::Watcher,
            ) => Some("there is nothing to watch"),
            _ => None,
        }
    }

    /// Whether it runs with this limit of requests unless it was asked for by name. At 20 a second the large
    /// ones take hours and show no more than the small ones.
    pub(crate) fn is_usual(self, qps: Qps) -> bool {
        qps == Qps::Lifted || matches!(self, Self::Create | Self::RollOut | Self::ScaleDown)
    }

    /// Whether it continues from the pods that are held.
    pub(crate) fn needs_hold(self) -> bool {
        self >= Self::Hold
    }
}

/// Deployments that wait for a manager to start.
pub(crate) const PENDING: usize = 32;

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Step {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|step| step.name() == text)
            .ok_or_else(|| {
                let names: Vec<&str> = Self::ALL.iter().map(|step| step.name()).collect();
                format!("the steps are {}", names.join(", "))
            })
    }
}

/// How much of each; pairs are how many, and of what size.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sizes {
    pub(crate) web: (usize, usize),
    pub(crate) gone: (usize, usize),
    pub(crate) namespaces: (usize, usize),
    pub(crate) job: usize,
    pub(crate) deployment: usize,
    pub(crate) hold: (usize, usize),
    pub(crate) rest: Duration,
    scale: f64,
}

impl Sizes {
    /// At a scale of 1 what is promised, smaller for trials.
    pub(crate) fn at(scale: f64) -> Self {
        // Sizes are far below what a float holds exactly.
        let scaled = |count: f64| (count * scale).round().max(2.0) as usize;
        Self {
            web: (scaled(40.0), 50),
            gone: (scaled(50.0), 100),
            namespaces: (scaled(100.0), 50),
            job: scaled(2_000.0),
            deployment: scaled(2_000.0),
            hold: (scaled(200.0), 50),
            rest: Duration::from_secs(60).mul_f64(scale).max(REST_MIN),
            scale,
        }
    }

    pub(crate) fn scale(&self) -> f64 {
        self.scale
    }

    /// Nodes for the most pods that any of the steps has at a time, and a tenth more.
    pub(crate) fn nodes(&self, steps: &[Step]) -> usize {
        let pods = steps.iter().map(|step| match step {
            // A rollout has a quarter more for a time.
            Step::Create | Step::RollOut | Step::ScaleDown => self.web.0 * self.web.1 * 5 / 4,
            Step::DeleteBackground | Step::DeleteForeground => self.gone.0 * self.gone.1,
            Step::Empty | Step::Namespaces => 0,
            Step::Job => self.job,
            Step::Deployment => self.deployment,
            _ => self.hold.0 * self.hold.1,
        });
        let most = pods.max().unwrap_or(0);
        (most + most / 10).div_ceil(PODS_PER_NODE).max(NODES_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_read_as_they_are_written_and_others_are_refused_with_all_names() {
        for step in Step::ALL {
            assert_eq!(step.name().parse(), Ok(step));
            let json = serde_json::to_value(step).unwrap();
            assert_eq!(json, step.name());
        }
        let error = "creat".parse::<Step>().unwrap_err();
        assert!(error.contains("empty, create, roll-out"), "{error}");
    }

    #[test]
    fn a_step_whose_controllers_are_missing_names_the_first() {
        let built = ["deployment-controller", "replicaset-controller"];
        assert_eq!(Step::Namespaces.lacks(&built), Some("namespace-controller"));
        assert_eq!(
            Step::Create.lacks(&built),
            Some("garbage-collector-controller")
        );
        let all: Vec<&str> = node_registry::descriptors()
            .iter()
            .map(|descriptor| descriptor.name)
            .collect();
        for step in Step::ALL {
            assert_eq!(step.lacks(&all), None, "{step}");
        }
    }

    #[test]
    fn at_full_scale_ten_thousand_pods_are_held_on_a_hundred_nodes() {
        let sizes = Sizes::at(1.0);
        assert_eq!(sizes.hold.0 * sizes.hold.1, 10_000);
        assert_eq!(sizes.nodes(&Step::ALL), 100);
        assert_eq!(sizes.nodes(&[Step::Namespaces]), NODES_MIN);
        let small = Sizes::at(0.01);
        assert_eq!((small.web.0, small.hold.0, small.job), (2, 2, 20));
        assert_eq!(small.rest, REST_MIN);
    }
}
